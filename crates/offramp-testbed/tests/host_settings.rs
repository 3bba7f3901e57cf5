//! Tests of host settings inside a rig. The tests need root to make namespaces and TAPs.

use offramp_ports::sys::rps;
use offramp_testbed::host::HostSettings;
use offramp_testbed::rig::{INTERFACE, Placement, Rig, RigConfig};

/// Returns the mask of the processors for a host's receive work, as written by the kernel.
fn receive_processors(rig: &Rig, side: usize) -> String {
    rps::read_attribute(rig.host(side), INTERFACE, "queues/rx-0/rps_cpus").unwrap()
}

#[test]
fn receive_work_is_moved_to_the_hosts_processors_unless_it_is_to_stay() {
    let config = RigConfig::default();
    if !config.placement.is_apart() {
        // With one processor, receive work cannot be moved.
        return;
    }
    let moved = Rig::start(&config).unwrap();
    let stays = HostSettings { rps: false, ..HostSettings::default() };
    let left = Rig::start(&RigConfig { host: stays, ..config }).unwrap();
    // Inside a user namespace, the kernel refuses to move receive work.
    if moved.has_rps() {
        assert_ne!(receive_processors(&moved, 0), receive_processors(&left, 0));
    }
    assert!(!left.has_rps());
    assert!(receive_processors(&left, 0).chars().all(|letter| "0,".contains(letter)));
}

#[test]
fn a_host_that_serves_alone_on_its_processor_does_its_receive_work_there() {
    let config = RigConfig { placement: Placement::server_alone(), ..RigConfig::default() };
    if !config.placement.has_server_alone() {
        // On a machine with one processor, the server's host shares the processor with the client's host.
        return;
    }
    let rig = Rig::start(&config).unwrap();
    if rig.has_rps() {
        let masks = [config.client, 1 - config.client].map(|side| receive_processors(&rig, side));
        assert_ne!(masks[0], masks[1]);
        let of_server = 1_u64 << config.placement.cpus_of(false)[0];
        assert_eq!(u64::from_str_radix(&masks[1].trim().replace(',', ""), 16), Ok(of_server));
    }
}
