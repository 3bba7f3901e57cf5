//! What a host itself is set to reaches it. As root: namespaces and TAPs are made.

use offramp_lab::host::HostSettings;
use offramp_lab::rig::{INTERFACE, Rig, RigConfig};
use offramp_ports::sys::rps;

/// Processors that the receive work of host 0 may run on, as the kernel writes them.
fn receive_processors(rig: &Rig) -> String {
    rps::read_attribute(rig.host(0), INTERFACE, "queues/rx-0/rps_cpus").unwrap()
}

#[test]
fn receive_work_is_moved_to_the_hosts_processors_unless_it_is_to_stay() {
    let config = RigConfig::default();
    if !config.placement.is_apart() {
        // With one processor there is nowhere to move it.
        return;
    }
    let moved = Rig::start(&config).unwrap();
    let stays = HostSettings { rps: false, ..HostSettings::default() };
    let left = Rig::start(&RigConfig { host: stays, ..config }).unwrap();
    // Inside a user namespace the kernel refuses to move it.
    if moved.has_rps() {
        assert_ne!(receive_processors(&moved), receive_processors(&left));
    }
    assert!(!left.has_rps());
    assert!(receive_processors(&left).chars().all(|letter| "0,".contains(letter)));
}
