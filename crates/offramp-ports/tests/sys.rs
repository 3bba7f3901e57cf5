//! Tests of namespaces, links, features, steering and child processes, each compared with another source in the kernel.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::common::{is_root_of_the_machine, namespace};
use offramp_ports::sys::{NetNs, confine, cpu, ethtool, link, rps};

/// Returns the names in `/proc/net/dev` of the calling thread's namespace, sorted.
fn names_by_proc() -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let mut names: Vec<_> = text.lines().skip(2).map(|l| l.split(':').next().unwrap().trim().to_owned()).collect();
    names.sort();
    names
}

fn names_by_netlink() -> Vec<String> {
    let mut names = link::list().unwrap();
    names.sort();
    names
}

#[test]
fn a_new_namespace_is_empty_and_nobody_else_is_in_it() {
    let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let ns = namespace();
    assert_eq!(fs::read_link("/proc/thread-self/ns/net").unwrap(), own, "the maker stays where it is");
    assert_eq!(ns.run(names_by_proc).unwrap(), ["lo"]);
    assert_ne!(ns.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap(), own);
    assert_eq!(NetNs::current().unwrap().run(names_by_proc).unwrap(), names_by_proc());
}

#[test]
fn what_runs_in_a_namespace_may_borrow_and_its_panic_is_passed_on() {
    let ns = namespace();
    let mut count = 0;
    ns.run(|| count += 1).unwrap();
    assert_eq!(count, 1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ns.run(|| panic!("as it should"))));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "as it should");
}

#[test]
fn a_veth_joins_two_namespaces() {
    let (a, b) = (namespace(), namespace());
    a.run(|| {
        link::create_veth("va", "vb").unwrap();
        assert_eq!(names_by_netlink(), names_by_proc());
        link::move_to("vb", &b).unwrap();
        assert_eq!(names_by_proc(), ["lo", "va"]);
        link::add_address("va", Ipv4Addr::new(10, 1, 0, 1).into(), 24).unwrap();
        link::add_address("va", "fd01::1".parse().unwrap(), 64).unwrap();
        link::set_up("va").unwrap();
    })
    .unwrap();
    b.run(|| {
        assert_eq!(names_by_proc(), ["lo", "vb"]);
        link::set_mac("vb", [2, 0, 0, 0, 0, 9]).unwrap();
        link::add_address("vb", Ipv4Addr::new(10, 1, 0, 2).into(), 24).unwrap();
        link::add_address("vb", "fd01::2".parse().unwrap(), 64).unwrap();
        link::set_up("vb").unwrap();
    })
    .unwrap();
    for (to, from) in [("10.1.0.2", "10.1.0.1"), ("fd01::2", "fd01::1")] {
        let to: IpAddr = to.parse().unwrap();
        // An IPv6 address without duplicate address detection can be bound at once.
        let listener = b.run(|| TcpListener::bind((to, 80)).unwrap()).unwrap();
        let stream = a.run(|| TcpStream::connect((to, 80)).unwrap()).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), from.parse::<IpAddr>().unwrap());
        drop((stream, listener));
    }
    let counted = a.run(|| link::statistics("va").unwrap()).unwrap();
    let by_sysfs = |name: &str| rps::read_attribute(&a, "va", &format!("statistics/{name}")).unwrap();
    assert!(counted.tx_packets > 6);
    assert!(by_sysfs("tx_packets").parse::<u64>().unwrap() >= counted.tx_packets);
    assert!(by_sysfs("rx_bytes").parse::<u64>().unwrap() >= counted.rx_bytes);
}

#[test]
fn what_is_set_on_a_link_is_what_sysfs_shows() {
    let ns = namespace();
    ns.run(|| {
        link::create_bridge("br0").unwrap();
        link::create_veth("va", "vb").unwrap();
        link::set_master("va", "br0").unwrap();
        link::set_mtu("vb", 9000).unwrap();
        link::set_mac("vb", [2, 0, 0, 0, 0, 9]).unwrap();
        link::set_tx_queue_len("vb", 77).unwrap();
        link::set_up("vb").unwrap();
        assert_eq!(link::mac("vb").unwrap(), [2, 0, 0, 0, 0, 9]);
    })
    .unwrap();
    let shown = |name: &str, attribute: &str| rps::read_attribute(&ns, name, attribute).unwrap();
    let index = ns.run(|| link::index("vb").unwrap()).unwrap();
    assert_eq!(shown("vb", "ifindex"), index.to_string());
    assert_eq!(shown("vb", "mtu"), "9000");
    assert_eq!(shown("vb", "address"), "02:00:00:00:00:09");
    assert_eq!(shown("vb", "tx_queue_len"), "77");
    assert_eq!(shown("vb", "flags"), "0x1003", "up");
    assert_eq!(shown("br0", "bridge/multicast_snooping"), "0");
    assert!(shown("br0", "brif/va/port_no").starts_with("0x"));
    ns.run(|| link::set_down("vb").unwrap()).unwrap();
    assert_eq!(shown("vb", "flags"), "0x1002", "down");
    ns.run(|| {
        link::delete("va").unwrap();
        link::delete("br0").unwrap();
        assert_eq!(names_by_proc(), ["lo"]);
    })
    .unwrap();
}

#[test]
fn a_permanent_neighbour_is_in_the_kernels_table_and_ipv6_can_be_kept_off() {
    let ns = namespace();
    ns.run(|| {
        link::create_veth("va", "vb").unwrap();
        link::disable_ipv6("va").unwrap();
        link::set_up("va").unwrap();
        link::set_up("vb").unwrap();
        link::add_address("va", Ipv4Addr::new(10, 1, 0, 1).into(), 24).unwrap();
        link::add_neighbour("va", Ipv4Addr::new(10, 1, 0, 7).into(), [2, 0, 0, 0, 0, 7]).unwrap();
        link::add_neighbour("vb", "fd01::7".parse().unwrap(), [2, 0, 0, 0, 0, 7]).unwrap();
        let arp = fs::read_to_string("/proc/thread-self/net/arp").unwrap();
        assert!(arp.lines().any(|l| l.starts_with("10.1.0.7 ") && l.contains("02:00:00:00:00:07")), "{arp}");
        let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        assert!(!addresses.contains("va") && addresses.contains("vb"), "{addresses}");
    })
    .unwrap();
}

#[test]
fn what_is_refused_names_the_interface_and_the_reason() {
    let ns = namespace();
    ns.run(|| {
        let line = link::set_mtu("nope", 1500).unwrap_err().to_string();
        assert_eq!(line, "looking for interface \"nope\": No such device (os error 19)");
        let line = link::set_mtu("lo", 5).map_or_else(|e| e.to_string(), |()| String::new());
        assert!(line.is_empty() || line.contains("setting MTU 5 on interface \"lo\""), "{line}");
        let line = link::create_veth("lo", "vb").unwrap_err().to_string();
        assert!(line.starts_with("making veth interface \"lo\": File exists"), "{line}");
    })
    .unwrap();
}

#[test]
fn features_can_be_read_and_switched_by_name() {
    let ns = namespace();
    ns.run(|| {
        link::create_veth("va", "vb").unwrap();
        let before = ethtool::Features::read("va").unwrap();
        assert!(before.names().count() > 40);
        assert_eq!(before.active("tx-tcp-segmentation"), Some(true));
        assert_eq!(before.changeable("tx-tcp-segmentation"), Some(true));
        assert_eq!(before.changeable("netns-local").or(Some(false)), Some(false));
        assert_eq!(before.active("no-such-feature"), None);
        ethtool::set_features("va", &[("tx-tcp-segmentation", false), ("rx-gro", true)]).unwrap();
        let after = ethtool::Features::read("va").unwrap();
        assert_eq!((after.active("tx-tcp-segmentation"), after.active("rx-gro")), (Some(false), Some(true)));
        assert_eq!(after.requested("tx-tcp-segmentation"), Some(false));
        let line = ethtool::set_features("va", &[("no-such-feature", true)]).unwrap_err().to_string();
        let expected = "switching no-such-feature on of interface \"va\": the kernel knows no feature";
        assert!(line.starts_with(expected), "{line}");
        let fixed = ethtool::set_features("va", &[("rx-lro", true)]).unwrap_err().to_string();
        assert!(fixed.ends_with("it is fixed on this interface"), "{fixed}");
        assert_eq!(ethtool::driver_info("va").unwrap().driver, "veth");
        assert_eq!(ethtool::driver_info("nope").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    })
    .unwrap();
}

#[test]
fn steering_is_set_in_the_interfaces_own_namespace() {
    if !is_root_of_the_machine() {
        return;
    }
    let ns = namespace();
    ns.run(|| link::create_veth("va", "vb").unwrap()).unwrap();
    let mounts_before = mounts_at("/sys");
    let first = cpu::online()[0];
    rps::set(&ns, "va", &[first]).unwrap();
    let shown = rps::read_attribute(&ns, "va", "queues/rx-0/rps_cpus").unwrap();
    assert_eq!(u64::from_str_radix(&shown.replace(',', ""), 16).unwrap(), 1 << first);
    rps::set(&ns, "va", &[]).unwrap();
    let shown = rps::read_attribute(&ns, "va", "queues/rx-0/rps_cpus").unwrap();
    assert_eq!(u64::from_str_radix(&shown.replace(',', ""), 16).unwrap(), 0);
    rps::write_attribute(&ns, "va", "gro_flush_timeout", "20000").unwrap();
    assert_eq!(rps::read_attribute(&ns, "va", "gro_flush_timeout").unwrap(), "20000");
    let line = rps::set(&ns, "nope", &[0]).unwrap_err().to_string();
    assert!(line.starts_with("setting receive packet steering of interface \"nope\""), "{line}");
    assert_eq!(mounts_at("/sys"), mounts_before, "no mount is left");
}

/// Returns the number of file systems mounted on `directory`, stacked over each other. On some machines `/sys` has
/// several mounts from the start.
fn mounts_at(directory: &str) -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    mounts.lines().filter(|mount| mount.split(' ').nth(1) == Some(directory)).count()
}

#[test]
fn a_child_is_confined_to_its_namespace_and_processors() {
    let ns = namespace();
    ns.run(|| link::create_veth("va", "vb").unwrap()).unwrap();
    let last = *cpu::online().last().unwrap();
    let mut cat = Command::new("cat");
    cat.args(["/proc/self/net/dev", "/proc/self/status"]);
    confine(&mut cat, Some(&ns), Some(&[last])).unwrap();
    let text = String::from_utf8(cat.output().unwrap().stdout).unwrap();
    assert!(text.contains("va:") && text.contains("vb:"), "{text}");
    let allowed = text.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    assert_eq!(allowed, last.to_string());
    let mut never = Command::new("true");
    confine(&mut never, None, Some(&[1023])).unwrap();
    assert!(never.spawn().is_err(), "a processor that does not exist");
}

#[test]
fn a_child_dies_with_the_thread_that_started_it() {
    let mut child = std::thread::spawn(|| {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").stdin(Stdio::null());
        confine(&mut sleep, None, None).unwrap();
        sleep.spawn().unwrap()
    })
    .join()
    .unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn processor_time_is_that_of_the_thread_or_the_process_asked_for() {
    let own_ns = || cpu::thread_cpu_ns_of(cpu::current_thread()).unwrap();
    let before = own_ns();
    while own_ns() == before {}
    let own = own_ns();
    assert!(cpu::process_cpu_ns_of(std::process::id() as i32).unwrap() >= own);
    for nobody in [-1, 0, 0x3fff_ffff, i32::MAX] {
        assert!(cpu::thread_cpu_ns_of(nobody).is_err() && cpu::process_cpu_ns_of(nobody).is_err());
    }
    assert!(cpu::thread_cpu_ns_of(1).is_err(), "a thread of another process");
}

#[test]
fn a_thread_stays_on_the_processors_it_is_pinned_to() {
    let last = *cpu::online().last().unwrap();
    std::thread::spawn(move || {
        cpu::pin_current_thread(&[last]).unwrap();
        assert_eq!(cpu::online(), [last]);
        assert!(cpu::pin_current_thread(&[1_000_000]).is_err());
    })
    .join()
    .unwrap();
}
