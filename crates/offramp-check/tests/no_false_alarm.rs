//! Tests of repeated checks on correct paths, of Linux alone and with offramp's adapters, under other traffic. No check
//! may find a fault.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;

use common::rig::Rig;
use common::traffic::{Traffic, runs};
use common::{Bed, NAMES};
use offramp_check::end::End;
use offramp_check::run::{Config, run};
use offramp_ports::sys::link;

/// Addresses of the two ends for the other traffic.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 61, 7, 1), Ipv4Addr::new(10, 61, 7, 2)];

/// Checks a path repeatedly during other traffic.
fn never_wrong(bed: &Bed, ends: impl Fn() -> [Box<dyn End>; 2]) {
    for ((namespace, name), address) in bed.namespaces.iter().zip(NAMES).zip(ADDRESSES) {
        namespace.run(|| link::add_address(name, IpAddr::V4(address), 24).unwrap()).unwrap();
    }
    let traffic = Traffic::start(&bed.namespaces[0], ADDRESSES);
    for seed in 0..runs() {
        let before = traffic.sent();
        let config = Config { seed, ..common::quick() };
        let report = run(&mut ends(), &config, &AtomicBool::new(false), &mut |_| ()).unwrap();
        assert_eq!(common::wrong(&report), "", "seed {seed}");
        assert!(traffic.sent() > before, "the other traffic stands still");
    }
}

fn of_interfaces(bed: &Bed) -> [Box<dyn End>; 2] {
    [0, 1].map(|side| -> Box<dyn End> { Box::new(bed.end(side).unwrap()) })
}

#[test]
fn a_veth_pair_is_never_wrong() {
    for mtu in [1500, 9000] {
        let bed = Bed::veth("veth", mtu);
        never_wrong(&bed, || of_interfaces(&bed));
    }
}

#[test]
fn a_bridge_between_two_veth_pairs_is_never_wrong() {
    for mtu in [1500, 9000] {
        let bed = Bed::bridged("bridge", mtu);
        never_wrong(&bed, || of_interfaces(&bed));
    }
}

#[test]
fn two_taps_with_adapters_and_a_cable_between_them_are_never_wrong() {
    for mtu in [1500, 9000] {
        let rig = Rig::new("taps", mtu, |_, tap, _| tap);
        never_wrong(&rig.bed, || rig.ends());
    }
}
