//! The switch: forwarded frames and dropped frames.

use crate::support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{ModerationConfig, Policy};
use offramp_adapter::pair::PortControl;
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::stats::Loss;
use offramp_adapter::switch::{
    FloodLimit, LinkProtocol, PortConfig, Switch, SwitchConfig, SwitchError, SwitchPort, UnknownUnicast,
};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, Cwr, PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

const SECOND_NS: u64 = 1_000_000_000;
const BROADCAST: [u8; 6] = [0xff; 6];

/// A switch whose ports have hosts in memory.
struct Bench {
    switch: Switch<MemoryHost>,
    ports: Vec<Arc<SwitchPort>>,
    now_ns: u64,
}

impl Bench {
    fn new(config: &SwitchConfig) -> Self {
        Self { switch: Switch::new(config), ports: Vec::new(), now_ns: 0 }
    }

    /// Creates a switch with `count` ports of this configuration.
    fn with_ports(count: usize, port: &PortConfig) -> Self {
        let mut bench = Self::new(&SwitchConfig::default());
        for _ in 0..count {
            bench.add(MemoryHost::default(), port);
        }
        bench
    }

    fn add(&mut self, host: MemoryHost, config: &PortConfig) -> Arc<SwitchPort> {
        let port = self.switch.control().add(host, config).unwrap();
        self.ports.push(Arc::clone(&port));
        self.switch.poll(self.now_ns);
        port
    }

    fn host(&mut self, port: usize) -> &mut MemoryHost {
        self.switch.host_mut(port).unwrap()
    }

    fn send(&mut self, from: usize, frame: (TxMeta, Vec<u8>)) {
        self.host(from).to_send.push_back(frame);
    }

    /// Sends a plain frame between two addresses, and runs the switch.
    fn say(&mut self, from: usize, source: [u8; 6], destination: [u8; 6]) {
        self.send(from, (TxMeta::default(), plain(source, destination)));
        self.run();
    }

    fn run(&mut self) {
        while self.switch.poll(self.now_ns).moved {}
    }

    /// Returns the number of frames received by each port since the last call.
    fn given(&mut self) -> Vec<usize> {
        (0..self.ports.len()).map(|n| std::mem::take(&mut self.host(n).given).len()).collect()
    }

    fn lost(&self, port: usize, reason: Loss) -> u64 {
        let stats = self.ports[port].stats();
        stats.transmit.lost(reason) + stats.receive.lost(reason)
    }

    fn assert_everything_is_accounted_for(&self) {
        for port in &self.ports {
            let (sent, got) = (&port.stats().transmit, &port.stats().receive);
            assert_eq!(sent.frames_in.get(), sent.frames_out.get() + sent.lost_total(), "{sent:?}");
            let held = self.switch.held(port.index()) as u64;
            assert_eq!(got.frames_in.get(), got.frames_out.get() + got.lost_total() + held, "{got:?}");
        }
    }
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// Returns a frame of a protocol without a parser.
fn plain(source: [u8; 6], destination: [u8; 6]) -> Vec<u8> {
    [&destination[..], &source, &[0x88, 0xb5], &[0; 46]].concat()
}

/// Sets the addresses of a frame.
fn between((meta, mut frame): (TxMeta, Vec<u8>), source: [u8; 6], destination: [u8; 6]) -> (TxMeta, Vec<u8>) {
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&source);
    (meta, frame)
}

#[test]
fn the_port_whose_host_is_called_is_named_for_a_watchdog() {
    let mut bench = Bench::with_ports(4, &PortConfig::default());
    for index in 0..4 {
        let serving = Arc::clone(bench.switch.serving());
        bench.host(index).serving = Some((serving, index));
    }
    // The cases are a broadcast, a unicast, a coalesced frame, and a frame segmented for a host without super-frames.
    // Each host checks the served port when the switch calls the host.
    bench.say(0, [2; 6], BROADCAST);
    bench.say(3, [4; 6], [2; 6]);
    bench.host(1).accepts = Some(Offloads::empty());
    for sequence in 0..8 {
        bench.send(2, tcp_frame(1, sequence * 100, &[7; 100]));
        bench.send(2, tcp_super_frame(2, sequence * 4000, &[7; 4000], 1000));
    }
    bench.run();
    let named = bench.switch.serving().clone();
    let hosts = bench.switch.hosts_mut();
    assert!(hosts.enumerate().all(|(index, _)| named.index() == index));
    assert!(bench.given().iter().all(|frames| *frames > 0));
}

#[test]
fn an_unknown_station_is_looked_for_at_every_other_port_and_then_known() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    bench.say(0, mac(1), mac(2));
    assert_eq!(bench.given(), [0, 1, 1]);
    bench.say(1, mac(2), mac(1));
    assert_eq!(bench.given(), [1, 0, 0], "the first one is known");
    bench.say(0, mac(1), mac(2));
    assert_eq!(bench.given(), [0, 1, 0]);
    bench.say(2, mac(3), BROADCAST);
    assert_eq!(bench.given(), [1, 1, 0]);
    assert_eq!(bench.ports.iter().map(|p| p.stations()).collect::<Vec<_>>(), [1, 1, 1]);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_station_that_moved_is_found_at_its_new_port() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    bench.say(0, mac(1), BROADCAST);
    bench.say(1, mac(1), BROADCAST);
    bench.given();
    bench.say(2, mac(3), mac(1));
    assert_eq!(bench.given(), [0, 1, 0]);
}

#[test]
fn a_station_that_was_silent_for_the_ageing_time_is_looked_for_again() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    bench.say(0, mac(1), BROADCAST);
    bench.given();
    bench.now_ns = 300 * SECOND_NS - 1;
    bench.say(1, mac(2), mac(1));
    assert_eq!(bench.given(), [1, 0, 0]);
    bench.now_ns = 300 * SECOND_NS;
    bench.say(1, mac(2), mac(1));
    assert_eq!(bench.given(), [1, 0, 1]);
}

#[test]
fn the_same_address_in_two_vlans_is_two_stations() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    let tagged = |source, destination, vid: u8| {
        let mut frame = plain(source, destination);
        frame.splice(12..12, [0x81, 0, 0, vid]);
        (TxMeta::default(), frame)
    };
    bench.send(0, tagged(mac(1), BROADCAST, 5));
    bench.send(1, tagged(mac(1), BROADCAST, 6));
    bench.run();
    bench.given();
    bench.send(2, tagged(mac(3), mac(1), 5));
    bench.send(2, tagged(mac(3), mac(1), 6));
    bench.send(2, tagged(mac(3), mac(1), 7));
    bench.run();
    assert_eq!(bench.given(), [2, 2, 0], "each in its VLAN, and one that nobody knows");
}

#[test]
fn no_frame_goes_back_to_where_it_came_from() {
    let mut bench = Bench::with_ports(2, &PortConfig::default());
    bench.say(0, mac(1), mac(1));
    bench.say(0, mac(2), mac(1));
    assert_eq!(bench.given(), [0, 0]);
    assert_eq!(bench.lost(0, Loss::Hairpin), 2);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn addresses_that_no_bridge_forwards_are_not_forwarded() {
    let mut bench = Bench::with_ports(2, &PortConfig::default());
    for last in 0..=0x10 {
        bench.say(0, mac(1), [0x01, 0x80, 0xc2, 0, 0, last]);
    }
    assert_eq!(bench.given(), [0, 1], "the seventeenth is an ordinary group");
    assert_eq!(bench.lost(0, Loss::Reserved), 16);
    assert_eq!(bench.ports[0].stations(), 1, "learned from the seventeenth");
}

#[test]
fn a_reserved_address_that_the_switch_forwards_passes_as_a_group() {
    let config = SwitchConfig { forward_reserved: 1 << 0xe, ..SwitchConfig::default() };
    let mut bench = Bench::new(&config);
    (0..2).for_each(|_| drop(bench.add(MemoryHost::default(), &PortConfig::default())));
    for last in 0..0x10 {
        bench.say(0, mac(1), [0x01, 0x80, 0xc2, 0, 0, last]);
    }
    assert_eq!(bench.given(), [0, 1]);
    assert_eq!(bench.lost(0, Loss::Reserved), 15);
}

#[test]
fn a_link_protocol_that_the_switch_forwards_passes_and_its_address_with_another_protocol_does_not() {
    let group = |last: u8| [0x01, 0x80, 0xc2, 0, 0, last];
    let samples = [
        (LinkProtocol::Stp, 0x0, &[0, 38, 0x42, 0x42, 3][..]),
        (LinkProtocol::Lacp, 0x2, &[0x88, 0x09, 1]),
        (LinkProtocol::Lacp, 0x2, &[0x88, 0x09, 2]),
        (LinkProtocol::Eapol, 0x3, &[0x88, 0x8e]),
        (LinkProtocol::Lldp, 0xe, &[0x88, 0xcc]),
        (LinkProtocol::Lldp, 0x3, &[0x81, 0, 0, 7, 0x88, 0xcc]),
        (LinkProtocol::Lldp, 0x0, &[0x88, 0xcc]),
        (LinkProtocol::Ptp, 0xe, &[0x88, 0xf7]),
    ];
    // PAUSE frames, Ethernet OAM, and SNAP frames to the STP address belong to none of these protocols.
    let others = [(0x1, &[0x88, 0x08][..]), (0x2, &[0x88, 0x09, 3]), (0x0, &[0, 38, 0xaa, 0xaa, 3])];
    for forwarded in samples.map(|(protocol, ..)| protocol) {
        let config = SwitchConfig { forward: [forwarded].into_iter().collect(), ..SwitchConfig::default() };
        let mut bench = Bench::new(&config);
        (0..2).for_each(|_| drop(bench.add(MemoryHost::default(), &PortConfig::default())));
        let mut send = |last, first: &[u8]| {
            let mut frame = [&group(last)[..], &mac(1), first].concat();
            frame.resize(60, 0);
            bench.send(0, (TxMeta::default(), frame));
            bench.run();
            bench.given()[1] == 1
        };
        for (protocol, last, first) in samples {
            assert_eq!(send(last, first), protocol == forwarded, "{protocol:?} with {forwarded:?}");
        }
        for (last, first) in others {
            assert!(!send(last, first), "{last} {first:?}");
        }
        bench.assert_everything_is_accounted_for();
    }
}

#[test]
fn what_is_flooded_keeps_to_a_burst_and_a_rate() {
    let limit = FloodLimit { frames_per_s: 10, burst_frames: 5 };
    let mut bench = Bench::with_ports(3, &PortConfig { flood_limit: Some(limit), ..PortConfig::default() });
    bench.say(1, mac(2), BROADCAST);
    bench.given();
    for _ in 0..20 {
        bench.say(0, mac(1), BROADCAST);
    }
    assert_eq!(bench.given(), [0, 5, 5]);
    assert_eq!(bench.lost(0, Loss::FloodLimit), 15);
    bench.say(0, mac(1), mac(2));
    bench.say(1, mac(2), BROADCAST);
    assert_eq!(bench.given(), [1, 1, 1], "a known station, and another port, have nothing to do with it");
    bench.now_ns += SECOND_NS / 5;
    for _ in 0..20 {
        bench.say(0, mac(1), BROADCAST);
    }
    assert_eq!(bench.given(), [0, 2, 2]);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_super_frame_that_is_flooded_counts_as_many_frames_as_it_makes() {
    let limit = FloodLimit { frames_per_s: 1, burst_frames: 9 };
    let mut bench = Bench::with_ports(2, &PortConfig { flood_limit: Some(limit), ..PortConfig::default() });
    bench.send(0, tcp_super_frame(0, 1, &pattern(0, 10_000), 1000));
    bench.send(0, tcp_super_frame(0, 1, &pattern(0, 9000), 1000));
    bench.run();
    assert_eq!(bench.lost(0, Loss::FloodLimit), 10);
    assert_eq!(bench.given(), [0, 1]);
}

#[test]
fn isolated_ports_reach_the_others_and_not_each_other() {
    let mut bench = Bench::with_ports(2, &PortConfig { isolated: true, ..PortConfig::default() });
    bench.say(0, mac(1), BROADCAST);
    assert_eq!((bench.given(), bench.lost(0, Loss::Isolated)), (vec![0, 0], 1), "nobody is there for it");
    bench.add(MemoryHost::default(), &PortConfig::default());
    for (from, expected) in [(0, [0, 0, 1]), (1, [0, 0, 1]), (2, [1, 1, 0])] {
        bench.say(from, mac(from as u8), BROADCAST);
        assert_eq!(bench.given(), expected);
    }
    bench.say(0, mac(0), mac(1));
    assert_eq!((bench.given(), bench.lost(0, Loss::Isolated)), (vec![0, 0, 0], 2));
    bench.say(0, mac(0), mac(2));
    bench.say(2, mac(2), mac(0));
    assert_eq!(bench.given(), [1, 0, 1]);
    bench.ports[1].set_isolated(false);
    bench.say(0, mac(0), mac(1));
    assert_eq!(bench.given(), [0, 1, 0], "the setting takes effect at once");
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_lone_port_talks_to_nobody() {
    let mut bench = Bench::with_ports(1, &PortConfig::default());
    bench.say(0, mac(1), BROADCAST);
    assert_eq!(bench.lost(0, Loss::NoDestination), 1);
}

#[test]
fn a_port_that_invents_addresses_makes_nobody_else_forgotten() {
    let mut bench = Bench::with_ports(3, &PortConfig { flood_limit: None, ..PortConfig::default() });
    bench.say(0, mac(1), BROADCAST);
    for n in 0..10_000_u32 {
        let [_, b, c, d] = n.to_be_bytes();
        bench.send(1, (TxMeta::default(), plain([6, 0, 0, b, c, d], mac(1))));
    }
    bench.run();
    assert_eq!(bench.given()[2], 1, "the first broadcast alone");
    assert_eq!(bench.ports[1].stations(), PortConfig::default().stations_max);
    bench.say(2, mac(3), mac(1));
    assert_eq!(bench.given(), [1, 0, 0]);
}

#[test]
fn a_super_frame_passes_whole_to_a_port_that_takes_it_and_is_cut_for_one_that_does_not() {
    let mut bench = Bench::new(&SwitchConfig::default());
    let takes = |accepts| MemoryHost { accepts: Some(accepts), ..MemoryHost::default() };
    bench.add(MemoryHost::default(), &PortConfig::default());
    bench.add(takes(Offloads::all()), &PortConfig::default());
    bench.add(takes(Offloads::RX_CHECKSUM), &PortConfig::default());
    bench.add(takes(Offloads::empty()), &PortConfig::default());
    bench.add(takes(Offloads::all()), &PortConfig { offloads: Offloads::RX_CHECKSUM, ..PortConfig::default() });
    let payload = pattern(1, 60_000);
    bench.send(0, between(tcp_super_frame(0, 1, &payload, 1460), mac(1), BROADCAST));
    bench.run();
    let whole = &bench.host(1).given[0];
    let expected = Segmentation::new(SegmentationKind::Tcp4, 1460);
    assert_eq!((whole.0.segmentation, whole.0.header_len, whole.0.segments), (Some(expected), 54, 42));
    assert!(matches!(whole.0.checksum, ChecksumState::Partial(_)));
    for port in 1..5 {
        let stats = bench.ports[port].stats();
        assert_eq!(stats.receive.frames_out.get(), 42);
        assert_eq!(stats.receive.host_frames.get(), if port == 1 { 1 } else { 42 });
        let given = &bench.host(port).given;
        let got: Vec<u8> = given.iter().flat_map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect();
        assert_eq!(got, payload);
        let unknown = given.iter().all(|(meta, _)| meta.checksum == ChecksumState::Unknown);
        assert_eq!(unknown, port == 3, "a port without checksum offload gets no mark");
    }
    assert_eq!(bench.ports[0].stats().transmit.host_frames.get(), 1);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_super_frame_with_cwr_passes_whole_and_marked_to_a_port_that_takes_it_and_is_cut_for_others() {
    // The super-frame is marked for the receiver if the sender's request marks it, or if CWR is set in the TCP header.
    let (marked, unmarked) = (Cwr::First, Cwr::Unmarked);
    for (says_so, flags) in [(marked, 0x10), (unmarked, 0x90), (marked, 0x90), (marked, 0xd0)] {
        let mut bench = Bench::new(&SwitchConfig::default());
        bench.add(MemoryHost::default(), &PortConfig::default());
        bench.add(MemoryHost::default(), &PortConfig::default());
        let not_agreed = Some(Offloads::all() - Offloads::RSC_ECN);
        bench.add(MemoryHost { accepts: not_agreed, ..MemoryHost::default() }, &PortConfig::default());
        let switched_off = PortConfig { offloads: Offloads::all() - Offloads::RSC_ECN, ..PortConfig::default() };
        bench.add(MemoryHost::default(), &switched_off);
        let (mut meta, mut frame) = tcp_super_frame(0, 1, &pattern(1, 3000), 1000);
        frame[47] = flags;
        meta.segmentation = meta.segmentation.map(|s| Segmentation { cwr: says_so, ..s });
        bench.send(0, between((meta, frame.clone()), mac(1), BROADCAST));
        bench.run();
        let lens: Vec<_> = (0..4).map(|port| bench.host(port).given.len()).collect();
        assert_eq!(lens, [0, 1, 3, 3]);
        let (told, whole) = &bench.host(1).given[0];
        assert_eq!(told.segmentation, Some(Segmentation { kind: SegmentationKind::Tcp4, size: 1000, cwr: Cwr::First }));
        assert_eq!(whole[12..], frame[12..]);
        for port in [2, 3] {
            let flags_given: Vec<u8> = bench.host(port).given.iter().map(|(_, frame)| frame[47]).collect();
            let behind = flags & !0x80;
            assert_eq!(flags_given, [flags, behind, behind], "CWR stays on the first segment alone");
        }
    }
}

#[test]
fn an_accecn_super_frame_passes_whole_to_a_port_that_knows_it_and_keeps_cwr_on_every_segment_for_others() {
    for (flags, whole) in [(0xd0, [false, true]), (0x50, [true, true])] {
        let mut bench = Bench::new(&SwitchConfig::default());
        bench.add(MemoryHost::default(), &PortConfig::default());
        bench.add(MemoryHost::default(), &PortConfig::default());
        let knows = PortConfig { offloads: Offloads::all(), ..PortConfig::default() };
        bench.add(MemoryHost::default(), &knows);
        let (mut meta, mut frame) = tcp_super_frame(0, 1, &pattern(1, 3000), 1000);
        (frame[46], frame[47]) = (frame[46] | 1, flags);
        meta.segmentation = meta.segmentation.map(|s| Segmentation { cwr: Cwr::All, ..s });
        bench.send(0, between((meta, frame.clone()), mac(1), BROADCAST));
        bench.run();
        for (port, is_whole) in [1, 2].into_iter().zip(whole) {
            let given = &bench.host(port).given;
            assert_eq!(given.len(), if is_whole { 1 } else { 3 }, "port {port}, flags {flags:#x}");
            let ace: Vec<_> = given.iter().map(|(_, frame)| (frame[46] & 1, frame[47] & 0xc0)).collect();
            assert_eq!(ace, vec![(1, flags & 0xc0); given.len()], "AE, CWR and ECE of every frame");
        }
        let told = bench.host(2).given[0].0.segmentation.map(|s| s.cwr);
        assert_eq!(told, Some(if flags & 0x80 == 0 { Cwr::Unmarked } else { Cwr::All }));
    }
}

#[test]
fn a_super_frame_with_ece_alone_needs_no_agreement() {
    let mut bench = Bench::new(&SwitchConfig::default());
    bench.add(MemoryHost::default(), &PortConfig::default());
    let not_agreed = Some(Offloads::all() - Offloads::RSC_ECN);
    bench.add(MemoryHost { accepts: not_agreed, ..MemoryHost::default() }, &PortConfig::default());
    let (meta, mut frame) = tcp_super_frame(0, 1, &pattern(1, 3000), 1000);
    frame[47] = 0x50;
    bench.send(0, (meta, frame));
    bench.run();
    let [(told, _)] = bench.host(1).given.as_slice() else { panic!("it was segmented") };
    assert_eq!(told.segmentation.map(|s| s.cwr), Some(Cwr::Unmarked));
}

#[test]
fn segments_of_a_frame_that_began_its_checksum_wrong_or_is_a_fragment_are_not_marked_good() {
    let none = Some(Offloads::all() - Offloads::RSC4);
    let frame = tcp_super_frame(0, 1, &pattern(1, 3000), 1000);
    let changed = |at: usize| {
        let (meta, mut frame) = frame.clone();
        frame[at] ^= 1;
        (meta, frame)
    };
    // The changed bytes are in the source address, the fragment offset (RFC 791 3.1), and the partial checksum.
    let all = [(frame.clone(), true), (changed(29), false), (changed(21), false), (changed(51), false)];
    for honours_data_valid in [true, false] {
        let mut bench = Bench::with_ports(1, &PortConfig::default());
        bench.add(MemoryHost { accepts: none, honours_data_valid, ..MemoryHost::default() }, &PortConfig::default());
        for (frame, is_good) in &all {
            bench.send(0, frame.clone());
            bench.run();
            let given = std::mem::take(&mut bench.host(1).given);
            assert_eq!(given.len(), 3);
            for (meta, mut segment) in given {
                assert_eq!(
                    meta.checksum != ChecksumState::Unknown,
                    *is_good,
                    "{honours_data_valid} {:02x?}",
                    &segment[..54]
                );
                let is_verified = Frame::received(&mut segment).verify() == ChecksumState::Good;
                assert!(!honours_data_valid || is_verified == *is_good);
            }
        }
    }
}

#[test]
fn segments_that_exceed_the_mtu_are_lost_one_by_one_and_the_last_that_fits_arrives() {
    let mut bench = Bench::new(&SwitchConfig::default());
    bench.add(MemoryHost::default(), &PortConfig::default());
    bench.add(MemoryHost::default(), &PortConfig { mtu: 1400, ..PortConfig::default() });
    bench.send(0, tcp_super_frame(0, 1, &pattern(1, 5000), 1460));
    bench.send(0, tcp_frame(0, 1, &pattern(1, 1360)));
    bench.send(0, tcp_frame(0, 1, &pattern(1, 1361)));
    bench.run();
    assert_eq!(bench.lost(1, Loss::TooLong), 4);
    assert_eq!(bench.given(), [0, 2]);
    bench.ports[1].set_mtu(1500).unwrap();
    bench.send(0, tcp_super_frame(0, 1, &pattern(1, 5000), 1460));
    bench.run();
    assert_eq!(bench.given(), [0, 1], "now it passes whole");
    assert_eq!(bench.ports[1].set_mtu(67), Err(SwitchError::Mtu(67)));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn frames_of_a_line_are_joined_for_a_port_that_wants_it_and_flushed_once_per_batch() {
    let mut bench = Bench::with_ports(2, &PortConfig::default());
    let payload = pattern(1, 14_600);
    for (n, part) in payload.chunks(1460).enumerate() {
        bench.send(0, complete(tcp_frame(0, 1 + 1460 * n as u32, part)));
    }
    let flushes = bench.host(1).flushes;
    bench.run();
    let given = std::mem::take(&mut bench.host(1).given);
    assert_eq!((given.len(), given[0].0.segments), (1, 10));
    assert_eq!(payload_of(&given[0].0, &given[0].1), payload);
    assert_eq!(bench.host(1).flushes, flushes + 1);
    bench.ports[1].set_offloads(Offloads::all() - Offloads::RSC4);
    bench.send(0, complete(tcp_frame(0, 1, &payload[..1460])));
    bench.send(0, complete(tcp_frame(0, 1461, &payload[..1460])));
    bench.run();
    let given = &bench.host(1).given;
    assert_eq!(given.len(), 2, "the setting takes effect at once");
    assert!(given.iter().all(|(meta, _)| matches!(meta.checksum, ChecksumState::Partial(_))));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_train_of_a_host_without_segmentation_is_joined_for_a_port_that_wants_it_and_reaches_others_as_it_was_sent() {
    let mut bench = Bench::new(&SwitchConfig::default());
    let takes = |accepts| MemoryHost { accepts: Some(accepts), ..MemoryHost::default() };
    for accepts in [Offloads::all(), Offloads::all(), Offloads::RX_CHECKSUM, Offloads::all(), Offloads::empty()] {
        bench.add(takes(accepts), &PortConfig::default());
    }
    let payload = pattern(1, 14_700);
    let train: Vec<_> =
        payload.chunks(1460).enumerate().map(|(n, part)| tcp_frame(0, 1 + 1460 * n as u32, part)).collect();
    let train: Vec<_> = train.into_iter().map(|frame| between(frame, mac(1), BROADCAST)).collect();
    for frame in &train {
        bench.send(0, frame.clone());
    }
    bench.run();
    let given: Vec<_> = (1..5).map(|port| std::mem::take(&mut bench.host(port).given)).collect();
    for joined in [&given[0], &given[2]] {
        assert_eq!((joined.len(), joined[0].0.segments), (1, 11), "the last one is short");
        assert_eq!(payload_of(&joined[0].0, &joined[0].1), payload);
    }
    let untouched = given[1].iter().zip(&train).all(|((meta, frame), (asked, sent))| {
        (meta.checksum, frame) == (ChecksumState::Partial(asked.checksum.unwrap()), sent)
    });
    assert!(given[1].len() == 11 && untouched, "the port after one that joins gets the request");
    let completed: Vec<_> = train.into_iter().map(|frame| complete(frame).1).collect();
    assert!(given[3].iter().map(|(_, frame)| frame).eq(&completed));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_frame_with_a_partial_checksum_that_can_join_no_other_passes_untouched() {
    let mut bench = Bench::with_ports(2, &PortConfig::default());
    let message = tcp_frame(0, 1, &pattern(1, 100));
    let mut begun_wrong = tcp_frame(0, 1, &pattern(1, 1000));
    begun_wrong.1[50] ^= 1;
    let mut elsewhere = tcp_frame(0, 1, &pattern(1, 1000));
    elsewhere.0.checksum = Some(PartialChecksum { start: 34, offset: 20 });
    // The request is to segment, but the payload fits into one segment, so the frame is no super-frame. The bytes after
    // its IP packet must arrive, too.
    let mut longer = tcp_super_frame(0, 1, &pattern(1, 1000), 1460);
    longer.1.extend([7; 50]);
    let mut pushed = tcp_frame(0, 1, &pattern(1, 1000));
    pushed.1[47] |= 8;
    for (asked, sent) in [message, begun_wrong, elsewhere, longer, pushed] {
        bench.send(0, (asked, sent.clone()));
        bench.run();
        let given = std::mem::take(&mut bench.host(1).given);
        assert_eq!(given.len(), 1);
        assert_eq!((given[0].0.checksum, &given[0].1), (ChecksumState::Partial(asked.checksum.unwrap()), &sent));
    }
}

#[test]
fn segments_that_are_too_small_for_a_super_frame_stay_apart_behind_one_that_waits() {
    let mut bench = Bench::with_ports(2, &PortConfig::default());
    bench.send(0, tcp_frame(9, 1, &[7; 600]));
    for n in 0..20 {
        bench.send(0, tcp_frame(0, 1 + 2 * n, &[n as u8; 2]));
    }
    bench.run();
    let given = &bench.host(1).given;
    assert!(given.len() == 21 && given.iter().all(|(meta, _)| meta.segmentation.is_none()));
}

#[test]
fn a_frame_that_goes_untouched_does_not_overtake_those_that_are_held() {
    let hold = PortConfig {
        coalesce: CoalesceConfig { hold_ns: SECOND_NS, ..CoalesceConfig::default() },
        ..PortConfig::default()
    };
    let mut bench = Bench::with_ports(2, &hold);
    bench.send(0, complete(tcp_frame(0, 1, &pattern(1, 1000))));
    bench.run();
    assert_eq!((bench.given(), bench.switch.held(1)), (vec![0, 0], 1));
    assert_eq!(bench.switch.next_deadline_ns(), Some(SECOND_NS));
    bench.assert_everything_is_accounted_for();
    bench.send(0, tcp_super_frame(0, 1001, &pattern(2, 3000), 1000));
    bench.run();
    let lens: Vec<_> = bench.host(1).given.iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!(lens, [1054, 3054]);
    bench.send(0, complete(tcp_frame(0, 4001, &pattern(1, 1000))));
    bench.run();
    bench.now_ns = SECOND_NS;
    bench.run();
    assert_eq!(bench.given(), [0, 3], "held frames are handed over when they are due");
    assert_eq!(bench.switch.next_deadline_ns(), None);
}

fn complete((meta, mut frame): (TxMeta, Vec<u8>)) -> (TxMeta, Vec<u8>) {
    let len = frame.len();
    offramp_offload::checksum::complete(&mut frame, meta.checksum.unwrap(), len).unwrap();
    (TxMeta::default(), frame)
}

#[test]
fn an_sctp_packet_arrives_with_its_crc_whatever_the_host_takes() {
    let mut packet = vec![0x45, 0, 0, 36, 0, 0, 0, 0, 64, 132, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([0x1f, 0x90, 0x1f, 0x91, 0, 0, 0, 7, 0, 0, 0, 0, 1, 2, 3, 4]);
    let frame = [&mac(2)[..], &mac(1), &[8, 0], &packet].concat();
    let asked = TxMeta { checksum: Some(PartialChecksum { start: 34, offset: 8 }), segmentation: None };
    for offloads in [Offloads::all(), Offloads::empty()] {
        let mut bench = Bench::with_ports(2, &PortConfig { offloads, ..PortConfig::default() });
        bench.send(0, (asked, frame.clone()));
        bench.run();
        let (meta, given) = bench.host(1).given.remove(0);
        // Expected bytes by scapy 2.6.1: bytes(SCTP(sport=8080, dport=8081, tag=7) / Raw(bytes([1, 2, 3, 4]))).
        assert_eq!(given, [&frame[..42], &[0x4c, 0xb9, 0xb2, 0x9b], &frame[46..]].concat());
        assert_eq!(meta.checksum, ChecksumState::Unknown);
    }
}

#[test]
fn a_port_without_room_loses_its_own_frames_alone() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    bench.host(1).refuse = 2;
    for n in 0..3 {
        bench.send(0, tcp_super_frame(n, 1, &pattern(1, 3000), 1000));
    }
    bench.run();
    assert_eq!(bench.given(), [0, 1, 3]);
    assert_eq!(bench.lost(1, Loss::Drop), 6);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_port_that_never_stops_sending_does_not_starve_another() {
    let mut bench = Bench::with_ports(3, &PortConfig { flood_limit: None, ..PortConfig::default() });
    bench.say(2, mac(3), BROADCAST);
    bench.given();
    for _ in 0..100_000 {
        bench.send(0, (TxMeta::default(), plain(mac(1), mac(3))));
    }
    bench.send(1, (TxMeta::default(), plain(mac(2), mac(3))));
    bench.switch.poll(0);
    let turn = SwitchConfig::default().turn_frames;
    assert_eq!(bench.given(), [0, 0, turn + 1]);
    assert!(bench.switch.poll(0).more);
}

#[test]
fn a_port_is_charged_for_the_pieces_of_its_frames_and_for_what_exceeds_its_turn() {
    let config = SwitchConfig { turn_bytes: 10_000, ..SwitchConfig::default() };
    let mut bench = Bench::new(&config);
    bench.add(MemoryHost { cost_bytes: 24_940, ..MemoryHost::default() }, &PortConfig::default());
    (0..2).for_each(|_| drop(bench.add(MemoryHost::default(), &PortConfig::default())));
    bench.say(2, mac(3), BROADCAST);
    bench.given();
    for port in [0, 1] {
        for _ in 0..300 {
            bench.send(port, (TxMeta::default(), plain(mac(1 + port as u8), mac(3))));
        }
    }
    let mut from_each_port = || {
        bench.switch.poll(0);
        let given = std::mem::take(&mut bench.host(2).given);
        [1, 2].map(|port| given.iter().filter(|(_, frame)| frame[11] == port).count())
    };
    // A frame that costs 25,000 bytes uses up the budget of two and a half turns. The budget of one turn, 10,000 bytes,
    // is enough for 167 short frames.
    let turns: Vec<_> = (0..4).map(|_| from_each_port()).collect();
    assert_eq!(turns, [[1, 167], [0, 133], [1, 0], [0, 0]], "{turns:?}");
}

#[test]
fn a_port_is_charged_for_a_fetch_that_brings_no_frame() {
    let mut bench = Bench::new(&SwitchConfig { turn_bytes: 10_000, ..SwitchConfig::default() });
    bench.add(MemoryHost::default(), &PortConfig::default());
    // The added port gets its first turn in this call.
    bench.add(MemoryHost { frameless_cost_bytes: 25_000, ..MemoryHost::default() }, &PortConfig::default());
    bench.send(1, (TxMeta::default(), plain(mac(2), mac(1))));
    // The port has exceeded its budget by the bytes of one and a half turns.
    let turns: Vec<_> = (0..2).map(|_| (bench.switch.poll(0), bench.given()[0]).1).collect();
    assert_eq!(turns, [0, 1]);
}

#[test]
fn a_turn_ends_when_its_frames_have_taken_too_long() {
    let mut bench = Bench::with_ports(2, &PortConfig::default());
    bench.say(1, mac(3), BROADCAST);
    bench.given();
    let frame = [plain(mac(1), mac(3)), vec![0; 1000]].concat();
    (0..200).for_each(|_| bench.send(0, (TxMeta::default(), frame.clone())));
    // At each read, the clock advances by three quarters of a turn's maximum time. The turn reads the clock after every
    // 16 KiB, and ends at the third read.
    let (turn_ns, looks) = (SwitchConfig::default().turn_ns, std::cell::Cell::new(0));
    let clock = || {
        looks.set(looks.get() + 1);
        looks.get() * turn_ns * 3 / 4
    };
    assert!(bench.switch.poll_timed(0, &|| 0, &clock).more);
    let per_look = (16 * 1024_usize).div_ceil(frame.len());
    assert_eq!((looks.get(), bench.given()[1]), (3, 3 * per_look));
    bench.run();
    assert_eq!(bench.given()[1], 200 - 3 * per_look);
}

#[test]
fn a_super_frame_of_very_many_frames_is_cut_in_many_turns() {
    let mut bench = Bench::new(&SwitchConfig { turn_frames: 100, ..SwitchConfig::default() });
    for _ in 0..3 {
        let host = MemoryHost { accepts: Some(Offloads::empty()), ..MemoryHost::default() };
        bench.add(host, &PortConfig { flood_limit: None, ..PortConfig::default() });
    }
    bench.say(2, mac(3), BROADCAST);
    bench.given();
    let payload = pattern(1, 30_000);
    bench.send(0, between(tcp_super_frame(0, 1, &payload, 1), mac(1), mac(3)));
    bench.send(1, (TxMeta::default(), plain(mac(2), mac(3))));
    bench.switch.poll(0);
    let sent_by = |frame: &[u8]| frame[11];
    let given = bench.host(2).given.iter().map(|(_, f)| sent_by(f)).collect::<Vec<_>>();
    assert_eq!((given.len(), given.contains(&2)), (101, true));
    bench.run();
    let given = std::mem::take(&mut bench.host(2).given);
    let got = given.iter().filter(|(_, f)| sent_by(f) == 1).flat_map(|(m, f)| payload_of(m, f).to_vec());
    assert_eq!(got.collect::<Vec<_>>(), payload);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn moderation_that_is_switched_on_in_the_middle_of_a_super_frame_brings_no_part_of_it_twice() {
    let mut bench = Bench::new(&SwitchConfig { turn_frames: 4, ..SwitchConfig::link() });
    bench.add(MemoryHost::default(), &PortConfig::default());
    let accepts = Some(Offloads::all() - Offloads::RSC);
    bench.add(MemoryHost { accepts, ..MemoryHost::default() }, &PortConfig::default());
    let data = pattern(7, 10_000);
    bench.send(0, tcp_super_frame(0, 1, &data, 1000));
    bench.switch.poll(0);
    assert_eq!(bench.host(1).given.len(), 4);
    let policy = Policy::FixedGap { max_interrupts_per_second: 1000 };
    bench.ports[1].set_moderation(ModerationConfig { policy, ..ModerationConfig::default() });
    bench.run();
    bench.now_ns = SECOND_NS;
    bench.run();
    let given: Vec<u8> =
        bench.host(1).given.iter().flat_map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect();
    assert_eq!(given.len(), data.len());
    assert!(given == data);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn moderation_that_is_switched_off_lets_no_frame_overtake_those_that_wait() {
    let policy = Policy::FixedGap { max_interrupts_per_second: 1000 };
    let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
    let mut bench = Bench::with_ports(2, &PortConfig { moderation, ..PortConfig::default() });
    for n in 0..4 {
        bench.send(0, (TxMeta::default(), [&plain(mac(1), mac(2))[..], &[n]].concat()));
        bench.switch.poll(0);
        if n == 2 {
            bench.ports[1].set_moderation(ModerationConfig::default());
        }
    }
    let given: Vec<u8> = bench.host(1).given.iter().map(|(_, frame)| frame[60]).collect();
    assert_eq!(given, [0, 1, 2, 3]);
}

#[test]
fn a_link_carries_everything_to_its_other_end_and_has_no_third() {
    let mut bench = Bench::new(&SwitchConfig::link());
    for _ in 0..2 {
        bench.add(MemoryHost::default(), &PortConfig::default());
    }
    bench.say(0, mac(1), [0x01, 0x80, 0xc2, 0, 0, 0]);
    bench.say(0, mac(1), mac(1));
    for _ in 0..5000 {
        bench.send(0, (TxMeta::default(), plain(mac(1), BROADCAST)));
    }
    bench.run();
    bench.say(1, mac(1), mac(1));
    assert_eq!(bench.given(), [1, 5002]);
    let refused = bench.switch.control().add(MemoryHost::default(), &PortConfig::default());
    assert_eq!(refused.unwrap_err(), SwitchError::LinkEnds);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn what_cannot_be_added_is_refused_in_one_clear_line() {
    let config = SwitchConfig { ports_max: 2, stations_max: 200, ..SwitchConfig::default() };
    let bench = Bench::new(&config);
    let control = bench.switch.control();
    let add = |config: &PortConfig| control.add(MemoryHost::default(), config).map(|p| p.index());
    assert_eq!(add(&PortConfig { mtu: 67, ..PortConfig::default() }), Err(SwitchError::Mtu(67)));
    assert_eq!(add(&PortConfig::default()), Ok(0));
    let refused = add(&PortConfig::default()).unwrap_err();
    assert_eq!(refused, SwitchError::Stations { wanted: 128, left: 72 });
    assert!(refused.to_string().contains("stations_max of the port is 128, and 72"));
    assert_eq!(add(&PortConfig { stations_max: 72, ..PortConfig::default() }), Ok(1));
    assert_eq!(add(&PortConfig { stations_max: 0, ..PortConfig::default() }), Err(SwitchError::Ports(2)));
}

#[test]
fn a_port_that_is_removed_is_forgotten_and_its_number_is_free_again() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    bench.say(0, mac(1), BROADCAST);
    bench.given();
    let gone = bench.ports.remove(0);
    bench.switch.control().remove(&gone);
    bench.switch.control().remove(&gone);
    bench.send(1, (TxMeta::default(), plain(mac(2), mac(1))));
    bench.run();
    assert!(bench.switch.host(0).is_none());
    assert_eq!(bench.host(2).given.len(), 1, "looked for");
    assert_eq!((gone.stations(), bench.switch.control().ports().len()), (0, 2));
    let again = bench.add(MemoryHost::default(), &PortConfig::default());
    assert_eq!(again.index(), 0);
    bench.switch.control().remove(&gone);
    bench.say(1, mac(2), mac(1));
    assert_eq!(bench.host(0).given.len(), 1, "the old handle does nothing to the new port");
}

#[test]
fn a_port_replaces_a_removed_one_before_the_switch_has_dropped_that() {
    let config = SwitchConfig { ports_max: 2, equal_shares: true, ..SwitchConfig::default() };
    let mut bench = Bench::new(&config);
    let security = PortSecurity { mac_addresses: vec![mac(1)], ..PortSecurity::default() };
    let add = |bench: &Bench| {
        let control = PortControl::secured(&AdapterConfig::default(), security.clone());
        bench.switch.control().add_controlled(MemoryHost::default(), &control, &PortConfig::default())
    };
    let gone = add(&bench).unwrap();
    bench.add(MemoryHost::default(), &PortConfig::default());
    assert_eq!(add(&bench).unwrap_err(), SwitchError::Bound(mac(1)));
    bench.switch.control().remove(&gone);
    // The switch has run no batch since the removal.
    let new = add(&bench).unwrap();
    assert!(bench.switch.control().has(&gone));
    assert_eq!(add(&bench).unwrap_err(), SwitchError::Bound(mac(1)));
    assert_eq!(
        bench.switch.control().add(MemoryHost::default(), &PortConfig::default()).unwrap_err(),
        SwitchError::Ports(2)
    );
    bench.run();
    assert!(!bench.switch.control().has(&gone));
    bench.say(1, mac(2), mac(1));
    assert_eq!(bench.host(new.index()).given.len(), 1);
}

#[test]
fn ports_that_come_and_go_take_no_frame_and_no_station_of_others() {
    let config = SwitchConfig {
        equal_shares: true,
        stations_max: 64,
        unknown_unicast: UnknownUnicast::Drop,
        ..SwitchConfig::default()
    };
    let mut bench = Bench::new(&config);
    let port = PortConfig { stations_max: 0, ..PortConfig::default() };
    (0..2).for_each(|_| drop(bench.add(MemoryHost::default(), &port)));
    (0..2).for_each(|n| bench.say(n, mac(n as u8), BROADCAST));
    bench.given();
    let mut sent = 0;
    for round in 0..20_u8 {
        let control = PortControl::secured(
            &AdapterConfig::default(),
            PortSecurity { mac_addresses: vec![mac(100 + round)], ..PortSecurity::default() },
        );
        let others: Vec<_> =
            (0..20).map(|_| bench.switch.control().add(MemoryHost::default(), &port).unwrap()).collect();
        let bound = bench.switch.control().add_controlled(MemoryHost::default(), &control, &port).unwrap();
        for _ in 0..3 {
            bench.say(0, mac(0), mac(1));
            bench.say(1, mac(1), mac(0));
            sent += 1;
        }
        others.iter().chain([&bound]).for_each(|other| bench.switch.control().remove(other));
        bench.say(0, mac(0), mac(1));
        bench.say(1, mac(1), mac(0));
        sent += 1;
        assert!(others.iter().all(|other| !bench.switch.control().has(other)));
    }
    assert_eq!([bench.host(0).given.len(), bench.host(1).given.len()], [sent, sent]);
    assert_eq!(bench.ports[1].index(), 1);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_port_that_goes_while_a_frame_is_cut_for_it_leaves_everything_accounted_for() {
    for (is_sender, is_flood) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bench = Bench::new(&SwitchConfig { turn_frames: 10, ..SwitchConfig::default() });
        for _ in 0..3 {
            let host = MemoryHost { accepts: Some(Offloads::empty()), ..MemoryHost::default() };
            bench.add(host, &PortConfig::default());
        }
        bench.say(1, mac(2), BROADCAST);
        let to = if is_flood { BROADCAST } else { mac(2) };
        bench.send(0, between(tcp_super_frame(0, 1, &pattern(1, 1000), 10), mac(1), to));
        bench.switch.poll(0);
        let gone = usize::from(!is_sender);
        bench.switch.control().remove(&bench.ports[gone]);
        bench.run();
        bench.assert_everything_is_accounted_for();
        let sent = &bench.ports[0].stats().transmit;
        assert_eq!(sent.lost(Loss::NoDestination), if is_flood && !is_sender { 0 } else { 90 });
        assert_eq!(bench.ports[1].stats().receive.frames_in.get(), 10);
    }
}

#[test]
fn a_flood_whose_every_destination_closes_is_lost_but_for_what_was_handed_over() {
    let mut bench = Bench::new(&SwitchConfig { turn_frames: 10, ..SwitchConfig::default() });
    for _ in 0..3 {
        let host = MemoryHost { accepts: Some(Offloads::empty()), ..MemoryHost::default() };
        bench.add(host, &PortConfig::default());
    }
    bench.send(0, between(tcp_super_frame(0, 1, &pattern(1, 1000), 10), mac(1), BROADCAST));
    bench.switch.poll(0);
    assert_eq!(bench.given(), [0, 10, 0]);
    bench.host(1).closed = Some(77);
    bench.host(2).closed = Some(77);
    // Each port's own turn detects its closed host, before or after the sender's turn.
    bench.run();
    let sent = &bench.ports[0].stats().transmit;
    let refused = bench.lost(1, Loss::HostRefused);
    assert_eq!((sent.frames_out.get(), sent.lost(Loss::NoDestination)), (10 + refused, 90 - refused));
    assert!(refused < 90, "what is left when the port is found closed is not tried");
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_port_that_takes_back_what_it_lent_loses_the_rest_of_that_frame_alone() {
    let mut bench = Bench::new(&SwitchConfig { turn_frames: 10, ..SwitchConfig::default() });
    for _ in 0..2 {
        let host = MemoryHost { accepts: Some(Offloads::empty()), ..MemoryHost::default() };
        bench.add(host, &PortConfig::default());
    }
    bench.send(0, tcp_super_frame(0, 1, &pattern(1, 1000), 10));
    bench.send(0, tcp_frame(0, 1, &pattern(1, 10)));
    bench.switch.poll(0);
    bench.host(0).taken = None;
    bench.run();
    assert_eq!(bench.given(), [0, 11]);
    assert_eq!(bench.lost(0, Loss::NoDestination), 90);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_port_that_is_gone_is_left_alone_and_the_others_go_on() {
    let mut bench = Bench::with_ports(3, &PortConfig::default());
    bench.say(0, mac(1), BROADCAST);
    bench.host(0).closed = Some(77);
    bench.run();
    bench.given();
    bench.say(1, mac(2), mac(1));
    assert_eq!(bench.ports[0].closed(), Some(77));
    assert_eq!((bench.given(), bench.ports[0].stations()), (vec![0, 0, 1], 0));
    assert_eq!(bench.switch.hosts().count(), 2);
    assert!(!bench.switch.poll(0).moved);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn whoever_waits_is_woken_when_a_port_comes_or_goes() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let mut switch = Switch::new(&SwitchConfig::default());
    switch.register(&Waker::from(Arc::clone(&count)));
    let port = switch.control().add(MemoryHost::default(), &PortConfig::default()).unwrap();
    switch.control().remove(&port);
    switch.unregister();
    switch.control().add(MemoryHost::default(), &PortConfig::default()).unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
}
