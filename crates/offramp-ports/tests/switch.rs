//! Three hosts with a TAP each, on a switch polled by a worker.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::namespace;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchControl, SwitchPort};
use offramp_offload::caps::Offloads;
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::worker::Worker;
use sha2::{Digest, Sha256};

const HOSTS: usize = 3;
const TRANSFER_LEN: usize = 8_000_000;
/// Time limit of a socket operation. A longer wait is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, 1 + host as u8)
}

/// Creates a host: a namespace with a TAP that is up and offers the offloads `offer`. The hosts resolve each other by
/// ARP.
fn host(number: usize, offer: Offloads) -> (NetNs, Tap) {
    let ns = namespace();
    let config = TapConfig { mac: Some([2, 0, 0, 0, 0, 1 + number as u8]), ..TapConfig::new("ofr0") };
    let tap = Tap::open_in(&ns, &config).unwrap_or_else(|e| panic!("{e}"));
    tap.offer(offer).unwrap();
    ns.run(|| {
        link::disable_ipv6("ofr0").unwrap();
        link::add_address("ofr0", IpAddr::V4(address(number)), 24).unwrap();
        link::set_up("ofr0").unwrap();
    })
    .unwrap();
    (ns, tap)
}

struct Bench {
    hosts: Vec<(NetNs, Tap)>,
    ports: Vec<Arc<SwitchPort>>,
    control: Arc<SwitchControl<TapQueue>>,
    _worker: Worker,
}

impl Bench {
    /// Creates a host for each offer, all on one switch.
    fn new(offers: [Offloads; HOSTS], config: &SwitchConfig) -> Self {
        let switch = Switch::new(config);
        let control = Arc::clone(switch.control());
        let worker = Worker::start("ofr-switch", vec![switch], None).unwrap();
        let hosts: Vec<_> = offers.into_iter().enumerate().map(|(n, offer)| host(n, offer)).collect();
        let add = |(_, tap): &(NetNs, Tap)| control.add(tap.queue(0).unwrap(), &PortConfig::default()).unwrap();
        let ports = hosts.iter().map(add).collect();
        Self { hosts, ports, control, _worker: worker }
    }

    /// Sends data over TCP from one host to another and compares the received bytes.
    fn transfer(&self, from: usize, to: usize) {
        let listener = self.hosts[to].0.run(|| TcpListener::bind((address(to), 7000)).unwrap()).unwrap();
        let data: Vec<u8> =
            (0..TRANSFER_LEN as u32).map(|n| ((n + from as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let got = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap();
                got
            });
            let to = (address(to), 7000);
            let mut stream = self.hosts[from].0.run(|| TcpStream::connect(to).unwrap()).unwrap();
            stream.write_all(&data).unwrap();
            drop(stream);
            receiver.join().unwrap()
        });
        assert_eq!(Sha256::digest(&got), Sha256::digest(&data), "from {from} to {to}");
    }

    fn pairs() -> impl Iterator<Item = (usize, usize)> {
        (0..HOSTS).flat_map(|from| (0..HOSTS).filter(move |&to| to != from).map(move |to| (from, to)))
    }

    /// Returns the number of wire frames for the host, and the number of frames delivered to the host.
    fn given(&self, host: usize) -> (u64, u64) {
        let receive = &self.ports[host].stats().receive;
        (receive.frames_out.get(), receive.host_frames.get())
    }
}

const SUPER_FRAMES: Offloads = Offloads::TX.union(Offloads::RX);
/// Minimum number of frames in a transfer at MSS 1460, for any segmentation by the host.
const FRAMES_MIN: u64 = (TRANSFER_LEN / 1460) as u64;

#[test]
fn super_frames_pass_whole_between_hosts_that_take_them() {
    let bench = Bench::new([SUPER_FRAMES; HOSTS], &SwitchConfig::default());
    for (from, to) in Bench::pairs() {
        let before = bench.given(to);
        bench.transfer(from, to);
        let after = bench.given(to);
        let (frames, given) = (after.0 - before.0, after.1 - before.1);
        assert!(frames >= FRAMES_MIN && given * 5 < frames, "{frames} frames were given in {given}");
    }
    assert!(bench.ports.iter().all(|port| port.stations() == 1 && port.stats().receive.bad_checksum.get() == 0));
}

#[test]
fn a_host_that_takes_nothing_gets_frames_of_the_line_and_one_that_asks_nothing_is_joined_for() {
    let offers = [SUPER_FRAMES, Offloads::empty(), Offloads::RX];
    let bench = Bench::new(offers, &SwitchConfig::default());
    for (from, to) in Bench::pairs() {
        bench.transfer(from, to);
    }
    let (frames, given) = bench.given(1);
    assert!(frames >= 2 * FRAMES_MIN && given == frames, "{frames} frames were given in {given}");
    let (frames, given) = bench.given(2);
    assert!(frames >= 2 * FRAMES_MIN && given < frames, "{frames} frames were given in {given}");
}

#[test]
fn a_port_can_go_and_come_back_and_a_deleted_interface_ends_only_its_own() {
    let mut bench = Bench::new([SUPER_FRAMES; HOSTS], &SwitchConfig::default());
    bench.transfer(0, 1);
    bench.control.remove(&bench.ports[1]);
    let back = bench.hosts[1].1.queue(0).unwrap();
    bench.ports[1] = bench.control.add(back, &PortConfig::default()).unwrap();
    bench.transfer(0, 1);
    bench.hosts[1].0.run(|| link::delete("ofr0").unwrap()).unwrap();
    bench.transfer(2, 0);
    assert_eq!(bench.ports[1].closed(), Some(libc::EBADFD));
}
