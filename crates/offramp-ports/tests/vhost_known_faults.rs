//! Tests for known faults of other implementations, on a cable and on a switch. `docs/security.md` has the table of all
//! known faults and their tests.

use crate::vhost_common::packet::{Checksum, DF, Packet};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, SwitchRig, frame, rng};
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_offload::caps::Offloads;
use offramp_offload::esp::{SaConfig, SecretKey, Suite};
use offramp_testkit::features;
use offramp_testkit::vnet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM};
use offramp_testkit::{Guest, GuestBuilder, VnetHeader};
use std::time::{Duration, Instant};

/// The network between two guests.
#[derive(Debug)]
enum Between {
    Cable(Box<Rig>),
    Switch(SwitchRig),
}

impl Between {
    fn both() -> [Self; 2] {
        [Self::Cable(Box::new(Rig::with(&RigConfig::mtu(1500)))), Self::Switch(SwitchRig::new(1, Offloads::RATIFIED))]
    }

    fn guest(&self, side: usize, builder: &GuestBuilder) -> Guest {
        match self {
            Self::Cable(rig) => rig.guest(side, builder),
            Self::Switch(rig) => rig.guest(side, builder),
        }
    }
}

/// Runs a test with two guests on each network. The second guest accepts no offload and has receive buffers.
fn every_pair(features: u64, mut test: impl FnMut(&mut Guest, &mut Guest)) {
    for case in Case::layouts() {
        for between in Between::both() {
            println!("{case:?}, {}", if matches!(between, Between::Cable(_)) { "cable" } else { "switch" });
            let mut a = between.guest(0, &case.guest().features(features));
            let mut b = between.guest(1, &case.guest());
            b.rx(0).fill(64, 1526);
            test(&mut a, &mut b);
        }
    }
}

/// Sends a frame and then the frame `mark`. Returns the frames that arrive before the mark.
fn sent_before_mark(a: &mut Guest, b: &mut Guest, header: &VnetHeader, frame: &[u8], mark: &[u8]) -> Vec<Vec<u8>> {
    a.tx(0).send(header, &[frame]);
    a.tx(0).send(&VnetHeader::default(), &[mark]);
    a.tx(0).drain(PATIENCE);
    let mut arrived = Vec::new();
    loop {
        let received = b.rx(0).recv(PATIENCE);
        if received.frame == mark {
            return arrived;
        }
        arrived.push(received.frame);
    }
}

/// Returns the one's complement sum of big-endian words.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let total: u32 = bytes.chunks(2).map(word).sum();
    let once = (total & 0xffff) + (total >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[test]
fn a_checksum_that_begins_or_lies_beyond_the_frame_is_never_written() {
    // CVE-2024-11614 (DPDK's vhost): a `csum_start` beyond the frame made a length wrap around. The test covers every
    // edge: the frame's start, headers and end, and both ends of the field's range.
    let packet = Packet { checksum: Checksum::Partial, ..Packet::udp(20) };
    let frame_sent = packet.build();
    let len = frame_sent.len() as u16;
    let right_place = (packet.transport_start() as u16, packet.checksum_offset() as u16);
    let edges: Vec<u16> = [0, 13, right_place.0, right_place.1, len, u16::MAX - 1]
        .into_iter()
        .flat_map(|edge| (0..5).map(move |n| edge.wrapping_add(n).wrapping_sub(2)))
        .collect();
    let mark = frame(&mut rng(), 100);
    every_pair(features::CSUM, |a, b| {
        for &csum_start in &edges {
            for &csum_offset in &edges {
                let header = VnetHeader { flags: NEEDS_CSUM, csum_start, csum_offset, ..VnetHeader::default() };
                let arrived = sent_before_mark(a, b, &header, &frame_sent, &mark);
                let (start, field) = (usize::from(csum_start), usize::from(csum_start) + usize::from(csum_offset));
                let what = format!("csum_start {csum_start}, csum_offset {csum_offset} in {len} bytes");
                if field + 2 > frame_sent.len() {
                    assert!(arrived.is_empty(), "{what}");
                }
                assert!((csum_start, csum_offset) != right_place || arrived.len() == 1, "{what}");
                for frame in arrived {
                    // As in Linux' `skb_checksum_help`, the checksum covers the field's old content, and 0 is written
                    // as 0xffff.
                    let checksum = match !sum(&frame_sent[start..]) {
                        0 => u16::MAX,
                        checksum => checksum,
                    };
                    let mut expected = frame_sent.clone();
                    expected[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
                    assert!(frame == expected, "{what}");
                }
            }
        }
    });
}

#[test]
fn a_frame_shorter_than_an_ethernet_header_goes_nowhere() {
    // CVE-2024-41090 and CVE-2024-41091 (Linux' tap and tun): the Ethernet header was read even if the frame was too
    // short.
    let mark = frame(&mut rng(), 100);
    every_pair(features::CSUM, |a, b| {
        for len in 1..14 {
            let arrived = sent_before_mark(a, b, &VnetHeader::default(), &mark[..len], &mark);
            assert!(arrived.is_empty(), "{len} bytes");
        }
    });
}

#[test]
fn a_request_to_segment_what_is_no_ip_goes_nowhere() {
    // CVE-2020-27617 (QEMU's net_tx_pkt): an assertion failed for a packet that was neither IPv4 nor IPv6.
    const FEATURES: u64 = features::CSUM
        | features::HOST_TSO4
        | features::HOST_TSO6
        | features::HOST_ECN
        | features::HOST_USO
        | features::HOST_UFO;
    let mark = frame(&mut rng(), 100);
    let ethernet = |kind: [u8; 2], len: usize| {
        let mut frame = mark.clone();
        frame[12..14].copy_from_slice(&kind);
        frame.resize(len, 0x45);
        frame
    };
    // Frames with ARP, LLDP, an unregistered type, a length, and a VLAN tag, and with IP types but truncated packets.
    let frames = [[0x08, 0x06], [0x88, 0xcc], [0xff, 0xff], [0x00, 0x2e], [0x81, 0x00], [0x08, 0x00], [0x86, 0xdd]]
        .map(|kind| [14, 15, 18, 60, 1514].map(|len| ethernet(kind, len)));
    every_pair(FEATURES, |a, b| {
        for frame in frames.iter().flatten() {
            for gso_type in [GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, GSO_TCPV4 | GSO_ECN] {
                for gso_size in [1, 8, 1448] {
                    let header =
                        VnetHeader { flags: NEEDS_CSUM, gso_type, gso_size, csum_start: 14, ..VnetHeader::default() };
                    let arrived = sent_before_mark(a, b, &header, frame, &mark);
                    assert!(arrived.is_empty(), "{header:?} with {} bytes of {:?}", frame.len(), &frame[12..14]);
                }
            }
        }
    });
}

#[test]
fn a_frame_to_its_sender_is_not_given_back_to_it() {
    // CVE-2021-3416 (QEMU's adapters): a frame looped back to its sender was sent again, endlessly.
    let mut rng = rng();
    let (mark, mut looped) = (frame(&mut rng, 100), frame(&mut rng, 80));
    looped.copy_within(6..12, 0);
    every_pair(features::CSUM, |a, b| {
        a.rx(0).fill(8, 1526);
        for _ in 0..100 {
            sent_before_mark(a, b, &VnetHeader::default(), &looped, &mark);
        }
        assert!(a.rx(0).try_recv().is_none());
    });
}

/// Number of TCP segments in a train, and number of trains, in the test below.
const TRAIN_SEGMENTS: u32 = 10;
const TRAINS: u32 = 40;

#[test]
fn an_icmp_answer_to_a_guest_loses_no_frame_that_is_being_coalesced_in_its_buffers() {
    let case = Case::layouts().next().unwrap();
    let rig = SwitchRig::new(1, Offloads::RATIFIED);
    let suite = Suite::by_name("aes128gcm16").unwrap();
    let key = |len| SecretKey::new((0..len).map(|n| n as u8 + 1).collect());
    let sa = SaConfig::new(0x1001, suite, key(suite.encryption_key_len()), key(suite.integrity_key_len()));
    let seals = SaChange::Add { direction: SaDirection::Out, config: Box::new(sa) };
    rig.seats[1].change_ipsec(&[seals]).unwrap();
    let offers = features::CSUM | features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    let mut a = rig.guest(0, &case.guest().features(offers));
    let mut b = rig.guest(1, &case.guest().features(offers));
    b.rx(0).fill(250, 1526);
    let stats = || &rig.seats[1].stats().receive;
    let header = VnetHeader { flags: NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VnetHeader::default() };
    for train in 0..TRAINS {
        for segment in train * TRAIN_SEGMENTS..(train + 1) * TRAIN_SEGMENTS {
            let mut packet = Packet::tcp(1460);
            packet.checksum = Checksum::Partial;
            (packet.seq, packet.id) = (1000 + 1460 * segment, segment as u16);
            a.tx(0).stage(&header, &[&packet.build()]).unwrap();
        }
        // The datagram fits the MTU, but not after encryption, so the port answers the guest with an ICMP message.
        let mut long = Packet::udp(1472);
        long.fragment = DF;
        (long.source_mac, long.destination_mac) = (long.destination_mac, long.source_mac);
        b.tx(0).stage(&VnetHeader::default(), &[&long.build()]).unwrap();
        b.tx(0).ring().publish();
        a.tx(0).ring().publish();
        a.tx(0).kick();
        let segments = u64::from((train + 1) * TRAIN_SEGMENTS);
        let since = Instant::now();
        while stats().frames_in.get() < segments && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        while a.tx(0).take_used().is_some() {}
        while b.tx(0).take_used().is_some() {}
        assert_eq!(stats().lost_total(), 0, "after {segments} segments");
        while b.rx(0).try_recv().is_some() {}
        // A port sends at most one such answer in 10 ms.
        std::thread::sleep(Duration::from_millis(10));
    }
}
