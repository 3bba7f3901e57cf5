//! Nothing is wrong on a path of Linux' own, however often it is checked, beside other traffic.

mod common;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use common::rig::Rig;
use common::{Bed, NAMES};
use offramp_check::end::End;
use offramp_check::run::{Config, run};
use offramp_ports::sys::link;

/// How often each path is checked; overrides the number for a short test.
const RUNS: &str = "OFFRAMP_CHECK_RUNS";
/// Addresses of the two ends, for the other traffic.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 61, 7, 1), Ipv4Addr::new(10, 61, 7, 2)];
const PORT: u16 = 9;
/// Datagrams that are sent at once. Then as long a pause follows: half of the load that a thread makes. A burst fits the
/// shortest queue on the way: this is other traffic, and no flood.
const BURST: usize = 32;

fn runs() -> u64 {
    std::env::var(RUNS).map_or(1, |text| text.parse().unwrap_or_else(|_| panic!("{RUNS}={text} is not a number")))
}

/// UDP in one direction, half of the time. It ends when this is dropped.
struct Traffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    fn start(bed: &Bed) -> Self {
        for ((namespace, name), address) in bed.namespaces.iter().zip(NAMES).zip(ADDRESSES) {
            namespace.run(|| link::add_address(name, IpAddr::V4(address), 24).unwrap()).unwrap();
        }
        let socket = bed.namespaces[0].run(|| UdpSocket::bind((ADDRESSES[0], 0)).unwrap()).unwrap();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = thread::spawn(move || {
            let datagram = [0x5a; 1400];
            while !until.load(Ordering::Relaxed) {
                let begun = Instant::now();
                for _ in 0..BURST {
                    let is_sent = socket.send_to(&datagram, (ADDRESSES[1], PORT)).is_ok();
                    count.fetch_add(u64::from(is_sent), Ordering::Relaxed);
                }
                thread::sleep(begun.elapsed());
            }
        });
        Self { stop, sent, thread: Some(thread) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Checks a path again and again beside other traffic.
fn never_wrong(bed: &Bed, ends: impl Fn() -> [Box<dyn End>; 2]) {
    let traffic = Traffic::start(bed);
    for seed in 0..runs() {
        let before = traffic.sent.load(Ordering::Relaxed);
        let config = Config { seed, ..common::quick() };
        let report = run(&mut ends(), &config, &AtomicBool::new(false), &mut |_| ()).unwrap();
        assert_eq!(common::wrong(&report), "", "seed {seed}");
        assert!(traffic.sent.load(Ordering::Relaxed) > before, "the other traffic stands still");
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
