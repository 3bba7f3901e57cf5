//! Tests of adding and removing ports and switches while a daemon runs, and of the errors.

#[allow(dead_code, reason = "shared with other tests of the daemon")]
#[path = "up/bed.rs"]
mod bed;

use bed::{ADDRESSES, Bed, direction, on_switch, queue_sum};
use nix::sys::signal::Signal;
use offramp_ports::sys::link;
use offramp_testkit::{Guest, VnetHeader};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time limit that only detects a hang.
const PATIENCE: Duration = Duration::from_secs(20);
const BROADCAST: [u8; 6] = [0xff; 6];

/// Starts a daemon with two TAPs on the switch "lan". The switch drops frames to unknown addresses, so frames to an
/// address that it has forgotten are lost.
fn start(name: &str, daemon: &str) -> Bed {
    let mut bed = Bed::unstarted(name, daemon);
    bed.rewrite(|text| on_switch(text) + "unknown_unicast = \"drop\"\n");
    bed.start_again();
    bed
}

fn socket(bed: &Bed, name: &str) -> PathBuf {
    bed.file().with_file_name(format!("{name}.sock"))
}

/// Returns the section of a guest's port in the daemon's file.
fn guest(bed: &Bed, name: &str, wire: &str) -> String {
    format!("[[port]]\nname = \"{name}\"\nhost.vhost_user = \"{}\"\nwire.{wire}\n", socket(bed, name).display())
}

/// Runs `offramp port add -` or `offramp switch add -` with `text` as standard input.
fn add_by(bed: &Bed, noun: &str, text: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args([noun, "add", "-", "--control"]).arg(bed.control()).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn add(bed: &Bed, text: &str) -> Output {
    add_by(bed, "port", text)
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output, text: &str) {
    bed::refused(output, &[text]);
}

fn names(bed: &Bed) -> Vec<String> {
    bed.show()["ports"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns a frame of a protocol that nobody answers.
fn frame(source: u8, destination: [u8; 6]) -> Vec<u8> {
    [&destination[..], &[2, 0, 0, 0, 1, source], &[0x88, 0xb5], &[source; 46]].concat()
}

fn filled(mut guest: Guest) -> Guest {
    guest.rx(0).fill(64, 2048);
    guest.rx(0).publish();
    guest.rx(0).kick();
    guest
}

/// Sends numbered datagrams from host a to host b, one after another, until `is_over`. Every datagram must arrive, in
/// order. Host b never sends, so the frames arrive only if the switch does not forget host b's address.
fn carry_datagrams(bed: &Bed, is_over: &AtomicBool, carried: &AtomicU64) {
    let sender = bed.host(0).run(|| UdpSocket::bind((ADDRESSES[0], 0)).unwrap()).unwrap();
    let receiver = bed.host(1).run(|| UdpSocket::bind((ADDRESSES[1], 0)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = receiver.local_addr().unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let number = carried.load(Ordering::Relaxed);
        for n in number..number + 32 {
            sender.send_to(&n.to_be_bytes(), to).unwrap();
        }
        for n in number..number + 32 {
            let mut bytes = [0; 8];
            assert_eq!(receiver.recv(&mut bytes).expect("a datagram of others was lost"), 8);
            assert_eq!(u64::from_be_bytes(bytes), n);
            carried.store(n + 1, Ordering::Relaxed);
        }
    }
}

#[test]
fn ports_come_and_go_and_nobody_else_loses_a_frame() {
    let bed = start("come-and-go", "");
    let lost = |status: &Value| -> Vec<Value> {
        let directions = ["a", "b"].iter().flat_map(|port| ["transmit", "receive"].map(|way| (*port, way)));
        directions.map(|(port, way)| direction(status, port, way)["lost"].clone()).collect()
    };
    // After this transfer, each host has resolved the other host's address.
    bed.carry_tcp_for("0.05");
    let before = lost(&bed.show());
    let (is_over, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let carrying = scope.spawn(|| carry_datagrams(&bed, &is_over, &carried));
        let goes_on = || {
            let now = carried.load(Ordering::Relaxed);
            bed.until(|| carried.load(Ordering::Relaxed) > now || carrying.is_finished());
        };
        for round in 0..12 {
            goes_on();
            let bound = format!("{}mac_addresses = [\"02:00:00:00:01:01\"]\n", guest(&bed, "vm0", "switch = \"lan\""));
            let text = bound + &guest(&bed, "vm1", "switch = \"lan\"") + &guest(&bed, "vm2", "cable = \"vm3\"");
            let added = done(&add(&bed, &(text + &guest(&bed, "vm3", "cable = \"vm2\""))));
            assert_eq!(added, "port vm0 added\nport vm1 added\nport vm2 added\nport vm3 added\n");
            goes_on();
            // In the first eight rounds, connect guests that send frames.
            let guests: Vec<_> = [1, 2]
                .iter()
                .filter(|_| round < 8)
                .map(|n| {
                    let mut vm = filled(Guest::builder().connect(socket(&bed, &format!("vm{n}"))));
                    for _ in 0..32 {
                        vm.tx(0).send(&VnetHeader::default(), &[&frame(n + 1, BROADCAST)]);
                    }
                    vm
                })
                .collect();
            goes_on();
            assert_eq!(done(&bed.run(&["port", "remove", "vm1", "vm3", "vm2"])).lines().count(), 3);
            goes_on();
            assert_eq!(done(&bed.run(&["port", "remove", "vm0"])), "port vm0 removed\n");
            drop(guests);
            assert!((0..4).all(|n| !socket(&bed, &format!("vm{n}")).exists()));
        }
        is_over.store(true, Ordering::Relaxed);
        carrying.join().unwrap();
    });
    let after = bed.show();
    assert_eq!(lost(&after), before);
    assert!(queue_sum(&after, "b", "receive", "frames_out") >= carried.load(Ordering::Relaxed));
    assert_eq!(names(&bed), ["a", "b"]);
}

#[test]
fn guests_that_were_added_exchange_frames_on_a_switch_and_a_cable() {
    let mut bed = start("guests", "");
    let switch = "[[switch]]\nname = \"late\"\n";
    assert_eq!(done(&add_by(&bed, "switch", switch)), "switch late added\n");
    for (pair, wires) in
        [(["s0", "s1"], ["switch = \"late\""; 2]), (["c0", "c1"], ["cable = \"c1\"", "cable = \"c0\""])]
    {
        done(&add(&bed, &[guest(&bed, pair[0], wires[0]), guest(&bed, pair[1], wires[1])].concat()));
        let [mut near, mut far] = pair.map(|name| filled(Guest::builder().connect(socket(&bed, name))));
        for (from, to) in [(1, 2), (2, 1)] {
            let sent = frame(from, BROADCAST);
            near.tx(0).send(&VnetHeader::default(), &[&sent]);
            assert_eq!(far.rx(0).recv(PATIENCE).frame, sent);
            std::mem::swap(&mut near, &mut far);
            assert_ne!(from, to);
        }
    }
    // Every thread is in the sandbox, including threads started later.
    let tasks = fs::read_dir(format!("/proc/{}/task", bed.process())).unwrap();
    let statuses: Vec<_> =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok()).collect();
    for name in ["ofr-ports", "ofr-late-0", "ofr-c0-0", "ofr-vhost-user"] {
        assert!(statuses.iter().any(|status| status.starts_with(&format!("Name:\t{name}\n"))), "{name}");
    }
    assert!(statuses.iter().all(|status| status.contains("\nSeccomp:\t2\n")));
    // An added port behaves like a port in the file: the port can be shown and set, and ends with the daemon.
    assert!(bed.run(&["set", "s0", "lso", "off"]).status.success());
    // Adding a switch leaves the settings of running ports unchanged.
    assert!(bed.run(&["set", "a", "lso", "off"]).status.success());
    done(&add_by(&bed, "switch", "[[switch]]\nname = \"later\"\n"));
    assert!(["a", "s0"].iter().all(|port| bed::feature(&bed.show(), port, "tso4")["allowed"] == false));
    refused(&bed.run(&["switch", "remove", "late"]), "port \"s0\" is on it");
    refused(&bed.run(&["port", "remove", "c0"]), "the cable of port \"c1\" ends there; remove both together");
    assert_eq!(
        done(&bed.run(&["port", "remove", "s0", "s1", "--json"])),
        "{\"added\":{\"ports\":[],\"switches\":[]},\"removed\":{\"ports\":[\"s0\",\"s1\"],\"switches\":[]}}\n"
    );
    assert_eq!(done(&bed.run(&["switch", "remove", "late"])), "switch late removed\n");
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    assert!(!socket(&bed, "c0").exists() && !socket(&bed, "c1").exists());
}

#[test]
fn what_cannot_be_added_or_removed_is_one_clear_line_and_nothing_has_changed() {
    let bed = start("wrong", "");
    let before = names(&bed);
    let files = || {
        let mut files: Vec<_> =
            fs::read_dir(bed.file().parent().unwrap()).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    };
    let taken = UnixListener::bind(socket(&bed, "taken")).unwrap();
    let files_before = files();
    let good = guest(&bed, "good", "switch = \"lan\"");
    let after_good = |text: &str| add(&bed, &format!("{good}{text}"));
    let on_lan = |name: &str| guest(&bed, name, "switch = \"lan\"");
    refused(&after_good(&on_lan("a")), "-:6: port.name \"a\" is taken by another port");
    refused(&after_good(&on_lan("taken")), "the socket is in use");
    let same_socket = on_lan("other").replace("other.sock", "good.sock");
    refused(&after_good(&same_socket), "is that of port \"good\" already");
    let tap =
        |name: &str, tap: &str| format!("[[port]]\nname = \"{name}\"\nhost.tap = \"{tap}\"\nwire.switch = \"lan\"\n");
    refused(&after_good(&tap("t", "ofr9")), "port \"t\": host.tap: it takes privileges that the daemon has given up");
    refused(
        &after_good("[[port]]\nname = \"w\"\nhost.vhost_user = \"/x\"\nwire.packet = \"lo\"\n"),
        "wire.packet: it takes privileges",
    );
    refused(&after_good(&guest(&bed, "c", "cable = \"a\"")), "must say wire = { cable = \"c\" }");
    refused(&after_good(&guest(&bed, "c", "switch = \"lam\"")), "did you mean \"lan\"?");
    refused(&after_good("[[port]]\nnam = \"x\"\n"), "-:6: unknown key \"nam\"; did you mean \"name\"?");
    refused(&after_good("[[switch]]\nname = \"lan\"\n"), "switch.name \"lan\" is taken");
    refused(&add(&bed, "[daemon]\n"), "no port");
    refused(&add(&bed, &format!("[daemon]\nuser = \"root\"\n{good}")), "[daemon] belongs to the daemon's own file");
    refused(&after_good("[[port.sa]]\ndirection = \"out\"\nkey_file = \"/etc/shadow\"\n"), "offramp sa add");
    let grouped = on_lan("g").replace("wire", "host.socket_group = \"audio\"\nwire");
    refused(&after_good(&grouped), "this is none of them; name it there");
    let elsewhere = on_lan("e").replace(bed.file().parent().unwrap().to_str().unwrap(), "/var/tmp");
    refused(&after_good(&elsewhere), "the sandbox lets this daemon make sockets in");
    let missing = on_lan("m").replace("m.sock", "none/m.sock");
    refused(&after_good(&missing), "create the directory");
    refused(&add(&bed, &"x".repeat(1 << 17)), "");
    refused(&bed.run(&["port", "add", "/nonexistent.toml"]), "/nonexistent.toml: cannot be read");
    refused(&bed.run(&["port", "remove", "a", "lan"]), "unknown port \"lan\"");
    refused(&bed.run(&["switch", "remove", "lam"]), "did you mean \"lan\"?");
    refused(&bed.run(&["switch", "remove", "lan"]), "port \"a\" is on it");
    assert_eq!((names(&bed), files()), (before, files_before));
    drop(taken);
    // The file is now a dead socket, which the daemon replaces.
    done(&after_good(&on_lan("taken")));
    assert!(
        bed.stderr().contains("add \"-\": refused") && bed.stderr().contains("add \"-\": done"),
        "{}",
        bed.stderr()
    );
}

#[test]
fn a_port_that_is_removed_under_traffic_is_gone_and_may_come_again() {
    let bed = start("again", "");
    for _ in 0..5 {
        done(&add(&bed, &[guest(&bed, "vm0", "switch = \"lan\""), guest(&bed, "vm1", "switch = \"lan\"")].concat()));
        let mut sender = filled(Guest::builder().connect(socket(&bed, "vm0")));
        let mut receiver = filled(Guest::builder().connect(socket(&bed, "vm1")));
        sender.tx(0).send(&VnetHeader::default(), &[&frame(1, BROADCAST)]);
        receiver.rx(0).recv(PATIENCE);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // After the removal of the sender's port, the ring stays full, and staging a frame fails.
                    sender.tx(0).stage(&VnetHeader::default(), &[&frame(1, [2, 0, 0, 0, 1, 2])]);
                    sender.tx(0).publish();
                }
                sender
            });
            done(&bed.run(&["port", "remove", "vm1"]));
            done(&bed.run(&["port", "remove", "vm0"]));
            is_over.store(true, Ordering::Relaxed);
            drop(sending.join().unwrap());
        });
        refused(&bed.run(&["port", "remove", "vm1"]), "unknown port \"vm1\"");
    }
    bed.carry_tcp();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", bed.process())).unwrap().count();
    done(&add(&bed, &guest(&bed, "vm0", "switch = \"lan\"")));
    done(&bed.run(&["port", "remove", "vm0"]));
    bed.until(|| fs::read_dir(format!("/proc/{}/fd", bed.process())).unwrap().count() == descriptors);
}

#[test]
fn the_interface_of_a_removed_tap_is_named_and_gone() {
    let bed = start("tap-removed", "");
    let is_there = |side: usize| bed.host(side).run(|| link::index(bed::INTERFACE).is_ok()).unwrap();
    assert!(is_there(0) && is_there(1));
    let said = done(&bed.run(&["port", "remove", "a"]));
    let (removed, interface) = said.split_once('\n').unwrap();
    assert_eq!(removed, "port a removed");
    assert!(interface.starts_with("tap ofr0 in /proc/"), "{said}");
    assert!(interface.ends_with(" deleted, with its addresses and routes\n"), "{said}");
    let said: Value = serde_json::from_str(&done(&bed.run(&["port", "remove", "b", "--json"]))).unwrap();
    assert!(said["deleted_interfaces"][0].as_str().unwrap().starts_with("tap ofr0 in /proc/"), "{said}");
    assert!(!is_there(0) && !is_there(1));
}

#[test]
fn sighup_makes_what_runs_be_what_the_file_says_or_changes_nothing() {
    let bed = start("difference", "");
    let text = fs::read_to_string(bed.file()).unwrap();
    let reload = |text: &str, told: &str| {
        let before = bed.stderr().len();
        fs::write(bed.file(), text).unwrap();
        bed.signal(Signal::SIGHUP);
        bed.until(|| bed.stderr()[before..].contains(told));
        // Drop the notifications: unread notifications would block the daemon.
        bed.drop_notices();
    };
    done(&add(&bed, &guest(&bed, "client", "switch = \"lan\"")));
    let vm = guest(&bed, "vm0", "switch = \"lan\"") + &guest(&bed, "vm1", "switch = \"new\"");
    let more = format!("{text}{vm}[[switch]]\nname = \"new\"\n");
    reload(&more, "reloaded\nswitch new added\nport vm0 added\nport vm1 added\n");
    assert_eq!(names(&bed), ["a", "b", "vm0", "vm1", "client"]);
    let _guest = Guest::builder().connect(socket(&bed, "vm0"));
    bed.carry_tcp();
    // Each file below changes a feature, which is valid, and contains one error. The daemon must apply no part of such
    // a file.
    let featured = more.replace("# changes of b", "features = { rsc = false }");
    for (wrong, why) in [
        (featured.replace("name = \"vm1\"", "nam = \"vm1\""), "unknown key \"nam\""),
        (featured.replace("# changes of a", "mtu = 1400"), "port \"a\": mtu cannot change while the port runs"),
        (
            featured.clone() + &guest(&bed, "client2", "switch = \"lan\"").replace("client2.sock", "client.sock"),
            "is that of port \"client\" already",
        ),
        (featured.replace("name = \"lan\"", "name = \"lan\"\nage_seconds = 10"), "switch \"lan\" cannot change"),
        (featured.replace("[daemon]", "[daemon]\ncontrol_mode = 0o660"), "[daemon] cannot change"),
        (
            featured.clone() + "[[port]]\nname = \"t\"\nhost.tap = \"ofr9\"\nwire.switch = \"lan\"\n",
            "host.tap: it takes privileges",
        ),
    ] {
        reload(&wrong, "nothing has changed");
        assert!(bed.stderr().contains(why), "{why}: {}", bed.stderr());
        assert_eq!(names(&bed), ["a", "b", "vm0", "vm1", "client"]);
        assert_eq!(bed::feature(&bed.show(), "b", "rsc4")["allowed"], true, "{why}");
    }
    // A reload adds ports of the file that a client has removed. A port added by a client can become a port of the
    // file.
    done(&bed.run(&["port", "remove", "vm1"]));
    let client = guest(&bed, "client", "switch = \"lan\"");
    reload(&(featured.clone() + &client), "reloaded\nport vm1 added\n");
    assert_eq!(bed::feature(&bed.show(), "b", "rsc4")["allowed"], false);
    assert_eq!(bed.show()["ports"][2]["host"]["connected"], true, "vm0 was not disturbed");
    reload(&text, "switch new removed\nport vm0 removed\nport vm1 removed\nport client removed\n");
    assert_eq!(names(&bed), ["a", "b"]);
    bed.carry_tcp();
}

#[test]
fn five_hundred_ports_on_one_switch_carry_frames() {
    let bed = start("five-hundred", "");
    let mut control = BufReader::new(UnixStream::connect(bed.control()).unwrap());
    for first in (0..500).step_by(100) {
        let toml: String = (first..first + 100).map(|n| guest(&bed, &format!("vm{n}"), "switch = \"lan\"")).collect();
        let request = serde_json::json!({"version": 1, "request": "add", "source": "test", "toml": toml});
        writeln!(control.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        control.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["difference"]["added"]["ports"].as_array().map(Vec::len), Some(100), "{answer}");
    }
    let [mut near, mut far] = ["vm0", "vm499"].map(|name| filled(Guest::builder().connect(socket(&bed, name))));
    near.tx(0).send(&VnetHeader::default(), &[&frame(1, BROADCAST)]);
    assert_eq!(far.rx(0).recv(PATIENCE).frame, frame(1, BROADCAST));
    far.tx(0).send(&VnetHeader::default(), &[&frame(2, [2, 0, 0, 0, 1, 1])]);
    assert_eq!(near.rx(0).recv(PATIENCE).frame, frame(2, [2, 0, 0, 0, 1, 1]));
    assert_eq!(names(&bed).len(), 502);
    bed.carry_tcp();
    let all: Vec<String> = (0..500).map(|n| format!("vm{n}")).collect();
    let arguments: Vec<&str> = ["port", "remove"].into_iter().chain(all.iter().map(String::as_str)).collect();
    assert_eq!(done(&bed.run(&arguments)).lines().count(), 500);
    assert_eq!(names(&bed), ["a", "b"]);
}

#[test]
fn a_thousand_control_clients_keep_nobody_out_for_long_and_hold_no_port_up() {
    let bed = start("thousand", "");
    let clients: Vec<_> = (0..1000).map(|_| UnixStream::connect(bed.control()).unwrap()).collect();
    bed.carry_tcp();
    let busy = clients.iter().filter(|client| {
        let mut line = String::new();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(*client).read_line(&mut line).is_ok() && line.contains("\"busy\"")
    });
    assert!(busy.count() > 900, "all but those that are served hear that the daemon is busy");
    drop(clients);
    bed.until(|| add(&bed, &guest(&bed, "vm0", "switch = \"lan\"")).status.success());
    done(&bed.run(&["port", "remove", "vm0"]));
}

#[test]
fn a_client_that_may_only_look_adds_and_removes_nothing() {
    let mut bed = Bed::unstarted("look", "");
    let socket = bed.file().with_file_name("show.sock");
    let key = format!("[daemon]\ncontrol_read_only = \"{}\"\n", socket.display());
    bed.rewrite(|text| text.replacen("[daemon]\n", &key, 1));
    bed.start_without_hosts();
    for request in [
        "{\"version\":1,\"request\":\"add\",\"source\":\"x\",\"toml\":\"\"}\n",
        "{\"version\":1,\"request\":\"remove\",\"ports\":[\"a\",\"b\"]}\n",
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(answer.contains("\"read_only\""), "{answer}");
    }
    assert_eq!(names(&bed), ["a", "b"]);
}

#[test]
fn monitor_says_what_happens_while_it_happens() {
    let bed = start("monitor", "");
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_offramp"))
        .args(["monitor", "--control"])
        .arg(bed.control())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(event["unix_ms"].as_u64().unwrap() > 1_700_000_000_000, "{event}");
        event
    };
    // The daemon may not serve the monitor yet, so make changes until the monitor reports a change.
    let heard = std::thread::scope(|scope| {
        let first = scope.spawn(&mut next);
        while !first.is_finished() {
            done(&add_by(&bed, "switch", "[[switch]]\nname = \"s\"\n"));
            done(&bed.run(&["switch", "remove", "s"]));
        }
        first.join().unwrap()
    });
    assert_eq!(heard["switch"], "s");
    done(&add(&bed, &guest(&bed, "vm0", "switch = \"lan\"")));
    let mut vm = Guest::builder().connect(socket(&bed, "vm0"));
    vm.frontend();
    drop(vm);
    bed.until(|| bed.show()["ports"][2]["host"]["connected"] == false);
    // Connect a frontend that sends a forbidden message.
    let mut wrong = UnixStream::connect(socket(&bed, "vm0")).unwrap();
    wrong.write_all(&[0xff; 64]).unwrap();
    bed.until(|| bed.show()["ports"][2]["host"]["counters"]["bad_messages"] == 1);
    done(&bed.run(&["port", "remove", "vm0"]));
    let mut of_vm = Vec::new();
    while of_vm.last().is_none_or(|event: &Value| event["event"] != "port_removed") {
        let event = next();
        of_vm.extend((event["port"] == "vm0").then_some(event));
    }
    let kinds: Vec<_> = of_vm.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let mut short = kinds.clone();
    short.dedup();
    let expected =
        ["port_added", "connected", "negotiated", "disconnected", "connected", "disconnected", "port_removed"];
    assert_eq!(short, expected, "{of_vm:?}");
    let negotiated = of_vm.iter().rfind(|event| event["event"] == "negotiated").unwrap();
    assert!(negotiated["virtio_features"].as_array().unwrap().contains(&"VERSION_1".into()), "{negotiated}");
    let reasons: Vec<_> =
        of_vm.iter().filter(|event| event["event"] == "disconnected").map(|event| event["reason"].clone()).collect();
    assert!(reasons[0].is_null() && reasons[1].is_string(), "{reasons:?}");

    assert!(bed.run(&["set", "a", "limit", "tx_bits_per_second=1000000"]).status.success());
    bed.carry_tcp();
    let limited = std::iter::from_fn(|| Some(next())).find(|event| event["event"] == "limit_reached").unwrap();
    assert_eq!((&limited["port"], &limited["direction"]), (&"a".into(), &"transmit".into()));
    // The monitor ends with the daemon.
    bed.signal(Signal::SIGTERM);
    assert_eq!(monitor.wait().unwrap().code(), Some(1));
}
