//! Tests of those requirements in virtio 1.3 and vhost-user for a network backend that no other test file covers.
//! Numbers such as V34 refer to the table in `docs/vhost-user.md`.

use std::os::fd::AsFd;

use crate::vhost_common::packet::{ACK, AE, CWR, Checksum, ECE, Packet};
use crate::vhost_common::{
    Case, PATIENCE, Rig, RigConfig, Scratch, SwitchRig, carry, check_received, cut, frame, rng, wait_until,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_ports::vhost_user::{ControlQueue, RingFeatures, VhostUser, VhostUserConfig, VhostUserError};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{MemRegion, VringAddr};
use offramp_testkit::ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, SplitDescriptor};
use offramp_testkit::vnet::{
    DATA_VALID, GSO_ACCECN, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM,
};
use offramp_testkit::{
    Buffer, Dialect, Frontend, Guest, GuestMemory, HeaderPlacement, Received, RegionSpec, RingOptions, TxLayout,
    Virtqueue, VnetHeader,
};
use rand::RngExt;

/// Offload requests available to a sending guest.
const SENDS: u64 = features::CSUM
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::HOST_USO
    | features::HOST_UFO;
/// A guest's address.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 77];

fn ethernet() -> Rig {
    Rig::with(&RigConfig::mtu(1500))
}

/// Returns a frame with a header that requests the checksum, and segmentation if `gso_type` is set.
fn asking(packet: &Packet, gso_type: u8, gso_size: u16) -> (VnetHeader, Vec<u8>) {
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: packet.payload_start() as u16,
        gso_size,
        csum_start: packet.transport_start() as u16,
        csum_offset: packet.checksum_offset() as u16,
        num_buffers: 0,
    };
    (header, Packet { checksum: Checksum::Partial, ..packet.clone() }.build())
}

/// Sends a frame, and receives until `frames` wire frames have arrived.
fn exchange(a: &mut Guest, b: &mut Guest, header: &VnetHeader, frame: &[u8], frames: usize) -> Vec<Received> {
    a.tx(0).send(header, &[frame]);
    let mut received = Vec::new();
    let mut count = 0;
    while count < frames {
        let next = b.rx(0).recv(PATIENCE);
        count += if next.vnet().gso_type == GSO_NONE { 1 } else { cut(&next.header, &next.frame).len() };
        received.push(next);
    }
    received
}

fn connect(rig: &Rig) -> Frontend {
    Frontend::connect(rig.socket(0))
}

// Tests of the configuration.

#[test]
fn v1_v2_v4_v9_r4_the_configuration_is_in_range_and_can_be_read_before_features_are_agreed() {
    let config = RigConfig { mac: Some(MAC), mtu_told: Some(1400), ..RigConfig::mtu(1500).queue_pairs(3) };
    let rig = Rig::with(&config);
    for _ in 0..2 {
        let mut frontend = connect(&rig);
        let offered = frontend.get_features().unwrap();
        assert_eq!(
            offered & (features::MQ | features::MAC | features::MTU),
            features::MQ | features::MAC | features::MTU
        );
        frontend.set_protocol_features(protocol::CONFIG | protocol::MQ).unwrap();
        assert_eq!(frontend.get_config(0, 6).unwrap(), MAC);
        assert_eq!(frontend.get_config(6, 2).unwrap(), [1, 0], "the link is up");
        assert_eq!(frontend.get_config(8, 2).unwrap(), [3, 0], "V1: pairs");
        assert_eq!(frontend.get_config(10, 2).unwrap(), 1400u16.to_le_bytes(), "V2 and V4: the MTU");
        assert_eq!(frontend.get_config(12, 5).unwrap(), [0xff; 5], "V9: speed and duplex are unknown");
        assert_eq!(frontend.get_queue_num(), Ok(3));
    }
}

#[test]
fn v2_an_mtu_that_no_guest_may_be_told_is_refused() {
    let scratch = Scratch::new();
    for mtu in [0, 1, 67] {
        let config = VhostUserConfig { mtu: Some(mtu), ..VhostUserConfig::new(scratch.path("port")) };
        assert!(matches!(VhostUser::open(&config), Err(VhostUserError::Mtu { .. })), "{mtu}");
    }
    for mtu in [68, 65_535] {
        let config = VhostUserConfig { mtu: Some(mtu), ..VhostUserConfig::new(scratch.path("port")) };
        assert!(VhostUser::open(&config).is_ok(), "{mtu}");
    }
}

#[test]
fn v11_r2_nothing_is_offered_without_what_it_needs() {
    let scratch = Scratch::new();
    let mut sets: Vec<_> = Offloads::all().iter().flat_map(|one| [one, Offloads::all() - one]).collect();
    sets.extend([Offloads::all(), Offloads::empty()]);
    for offloads in sets {
        let config = VhostUserConfig { offloads, ..VhostUserConfig::new(scratch.path("port")) };
        let mut port = VhostUser::open(&config).unwrap();
        drop(port.queue(0));
        let offered = Frontend::connect(&config.socket).get_features().unwrap();
        let has = |bits: u64| offered & bits != 0;
        let tso = features::HOST_TSO4 | features::HOST_TSO6;
        let guest_tso = features::GUEST_TSO4 | features::GUEST_TSO6;
        assert!(!has(tso | features::HOST_USO | features::HOST_UFO) || has(features::CSUM), "{offloads:?}");
        assert!(!has(features::HOST_ECN) || has(tso), "{offloads:?}");
        let of_guest_csum = guest_tso | features::GUEST_UFO | features::GUEST_USO4 | features::GUEST_USO6;
        assert!(!has(of_guest_csum) || has(features::GUEST_CSUM), "{offloads:?}");
        assert!(!has(features::GUEST_ECN) || has(guest_tso), "{offloads:?}");
        assert!(!has(features::MQ | features::HASH_REPORT), "V11: {offloads:?}");
        assert!(has(features::VERSION_1));
    }
}

#[test]
fn r2_what_was_not_offered_is_refused_and_what_lacks_its_ground_is_off() {
    let rig = ethernet();
    let mut frontend = connect(&rig);
    let offered = frontend.get_features().unwrap();
    frontend.set_protocol_features(protocol::REPLY_ACK).unwrap();
    frontend.set_features(features::VERSION_1 | features::PROTOCOL_FEATURES | features::HOST_TSO4).unwrap();
    assert_eq!(rig.ports[0].status().offloads(), Offloads::empty());
    assert!(frontend.set_features(offered | features::HASH_REPORT).is_err());
}

#[test]
fn what_a_frontend_was_shown_it_may_agree_to_though_it_was_switched_off_meanwhile() {
    let rig = ethernet();
    let mut frontend = connect(&rig);
    let shown = frontend.get_features().unwrap();
    frontend.set_protocol_features(protocol::REPLY_ACK).unwrap();
    // QEMU reads the features when it connects, and accepts features when the guest's driver starts.
    rig.ports[0].allow(Offloads::all() - Offloads::LSO - Offloads::UFO);
    frontend.set_features(shown).unwrap();
    let granted = Offloads::TSO4 | Offloads::UFO;
    wait_until("the features", || rig.ports[0].status().offloads().contains(granted));
    // A feature that was never offered is still refused. The port does not offer the withdrawn feature to the next
    // frontend.
    assert!(frontend.set_features(shown | features::HASH_REPORT).is_err());
    let mut next = connect(&rig);
    assert_eq!(next.get_features().unwrap() & features::HOST_TSO4, 0);
    next.set_protocol_features(protocol::REPLY_ACK).unwrap();
    assert!(next.set_features(shown).is_err());
}

#[test]
fn every_ring_feature_can_be_switched_off() {
    let scratch = Scratch::new();
    for one in RingFeatures::all() {
        let rings = RingFeatures::all() - one;
        let config = VhostUserConfig { rings, ..VhostUserConfig::new(scratch.path("port")) };
        let mut port = VhostUser::open(&config).unwrap();
        // Drop the queue, so that the port need not wait for the queue.
        drop(port.queue(0));
        assert_eq!(Frontend::connect(&config.socket).get_features().unwrap() & one.bits(), 0, "{one:?}");
        drop(port);
    }
}

// Tests of transmission.

#[test]
fn v12_v21_flags_that_are_not_known_are_ignored() {
    let (rig, frame) = (ethernet(), frame(&mut rng(), 100));
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(16, 1526);
    for flags in (2..=255u8).filter(|flags| flags & NEEDS_CSUM == 0) {
        a.tx(0).send(&VnetHeader { flags, ..VnetHeader::default() }, &[&frame]);
        let received = b.rx(0).recv(PATIENCE);
        assert!(received.frame == frame && received.vnet().flags == 0, "{flags:#x}");
    }
}

#[test]
fn v13_without_needs_csum_nobody_looks_at_the_place_of_the_checksum() {
    let rig = ethernet();
    let [mut a, mut b] = rig.guests(&Guest::builder().features(SENDS));
    b.rx(0).fill(16, 1526);
    let frame = Packet::tcp(100).build();
    for (csum_start, csum_offset) in [(0, 0), (34, 16), (65_535, 65_535), (20, 0)] {
        a.tx(0).send(&VnetHeader { csum_start, csum_offset, ..VnetHeader::default() }, &[&frame]);
        assert!(b.rx(0).recv(PATIENCE).frame == frame);
    }
}

#[test]
fn v15_the_length_of_the_headers_is_a_hint() {
    let rig = ethernet();
    let [mut a, mut b] = rig.guests(&Guest::builder().features(SENDS));
    b.rx(0).fill(64, 1526);
    let (header, frame) = asking(&Packet::tcp(5000), GSO_TCPV4, 1400);
    let expected = cut(&header.to_bytes(), &frame);
    for hdr_len in [0, 1, 13, 54, 55, 5054, 65_535] {
        let received = exchange(&mut a, &mut b, &VnetHeader { hdr_len, ..header }, &frame, expected.len());
        assert!(received.iter().map(|r| &r.frame).eq(&expected), "hdr_len {hdr_len}");
    }
}

#[test]
fn v16_to_v19_tunnels_that_were_not_agreed_are_refused() {
    const TUNNEL4: u8 = 0x20;
    const TUNNEL6: u8 = 0x40;
    let rig = ethernet();
    let [mut a, mut b] = rig.guests(&Guest::builder().features(SENDS));
    b.rx(0).fill(64, 1526);
    let (header, frame) = asking(&Packet::tcp(5000), GSO_TCPV4, 1400);
    let mut refused = 0;
    for tunnel in [TUNNEL4, TUNNEL6, TUNNEL4 | TUNNEL6] {
        for inner in [GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4] {
            for flags in [0, NEEDS_CSUM, NEEDS_CSUM | DATA_VALID] {
                a.tx(0).send(&VnetHeader { gso_type: inner | tunnel, flags, ..header }, &[&frame]);
                refused += 1;
            }
        }
    }
    a.tx(0).drain(PATIENCE);
    carry(&mut a, &mut b, 0, &crate::vhost_common::frame(&mut rng(), 60), &"the next");
    assert_eq!(rig.refused(0, Loss::BadRequest), refused);
}

#[test]
fn offloads_that_were_not_negotiated_are_refused() {
    // Virtio 1.3, 5.1.6.2.1: a driver must not request offloads that were not negotiated.
    let kinds = [
        (Packet::tcp(3000), GSO_TCPV4, features::HOST_TSO4),
        (Packet { is_ipv6: true, ..Packet::tcp(3000) }, GSO_TCPV6, features::HOST_TSO6),
        (Packet::udp(3000), GSO_UDP_L4, features::HOST_USO),
        (Packet::udp(3000), GSO_UDP, features::HOST_UFO),
        (Packet::tcp(3000), GSO_TCPV4 | GSO_ACCECN, features::HOST_ACCECN),
    ];
    for (packet, gso_type, feature) in kinds {
        let rig = ethernet();
        let agreed = SENDS & !feature & !features::HOST_ECN;
        let [mut a, mut b] = rig.guests(&Guest::builder().features(agreed));
        b.rx(0).fill(64, 1526);
        let (header, frame) = asking(&packet, gso_type, 1000);
        a.tx(0).send(&header, &[&frame]);
        carry(&mut a, &mut b, 0, &crate::vhost_common::frame(&mut rng(), 60), &"the next");
        assert_eq!(rig.refused(0, Loss::BadRequest), 1, "{gso_type}");
    }
}

#[test]
fn the_header_of_a_driver_that_can_ask_for_nothing_is_not_read() {
    // DPDK's vectorized driver does not clear the header.
    let mut rng = rng();
    let rig = ethernet();
    let [mut a, mut b] = rig.guests(&Guest::builder().features(features::GUEST_CSUM));
    b.rx(0).fill(128, 1526);
    for _ in 0..100 {
        let header = VnetHeader {
            flags: rng.random(),
            gso_type: rng.random(),
            hdr_len: rng.random(),
            gso_size: rng.random(),
            csum_start: rng.random(),
            csum_offset: rng.random(),
            ..VnetHeader::default()
        };
        let frame = Packet { checksum: Checksum::Wrong, ..Packet::tcp(100) }.build();
        let received = exchange(&mut a, &mut b, &header, &frame, 1);
        assert!(received[0].frame == frame && received[0].vnet().flags == 0, "{header:?}");
    }
    assert_eq!(rig.refused(0, Loss::BadRequest), 0);
}

#[test]
fn v20_a_frame_without_a_request_is_not_taken_for_right() {
    let rig = ethernet();
    let [mut a, mut b] = rig.guests(&Guest::builder().features(features::GUEST_CSUM));
    b.rx(0).fill(16, 1526);
    for is_udp in [false, true] {
        let wrong = Packet { is_udp, checksum: Checksum::Wrong, ..Packet::tcp(100) }.build();
        // DATA_VALID is only the guest's claim. The adapter marks only frames that it has verified.
        for flags in [0, DATA_VALID] {
            let received = exchange(&mut a, &mut b, &VnetHeader { flags, ..VnetHeader::default() }, &wrong, 1);
            assert!(received[0].frame == wrong && received[0].vnet().flags == 0, "udp: {is_udp}");
        }
    }
}

// Tests of reception.

#[test]
fn v22_v23_without_mergeable_buffers_a_frame_takes_one_chain() {
    let mut rng = rng();
    for case in Case::all().filter(|case| !case.mergeable && !case.indirect) {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill_chains(32, &[12, 100, 1414]);
        for len in [14, 88, 100, 101, 1514] {
            let received = carry(&mut a, &mut b, 0, &frame(&mut rng, len), &case);
            check_received(&received, false, &case);
            assert_eq!((received.chains.len(), received.num_buffers), (1, 1), "{case:?}");
        }
        // A frame that does not fit is lost, not distributed over several chains.
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(32, 1000);
        a.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng, 989)]);
        carry(&mut a, &mut b, 0, &frame(&mut rng, 988), &case);
        assert_eq!(rig.received(1, |d| d.lost(Loss::HostRefused)), 1, "{case:?}");
    }
}

#[test]
fn v26_v36_a_guest_that_agreed_to_nothing_is_told_nothing() {
    let rig = ethernet();
    let [mut a, mut b] = [rig.guest(0, &Guest::builder().features(SENDS)), rig.guest(1, &Guest::builder())];
    b.rx(0).fill(64, 1526);
    let (header, frame) = asking(&Packet::tcp(5000), GSO_TCPV4, 1400);
    let expected = cut(&header.to_bytes(), &frame);
    for received in exchange(&mut a, &mut b, &header, &frame, expected.len()) {
        let vnet = received.vnet();
        assert_eq!((vnet.flags, vnet.gso_type, vnet.gso_size), (0, GSO_NONE, 0));
    }
}

#[test]
fn v27_to_v31_only_the_kinds_that_were_agreed_are_joined() {
    let v6 = |packet: Packet| Packet { is_ipv6: true, ..packet };
    let kinds = [
        (Packet::tcp(8000), GSO_TCPV4, features::GUEST_TSO4),
        (v6(Packet::tcp(8000)), GSO_TCPV6, features::GUEST_TSO6),
        (Packet::udp(8000), GSO_UDP_L4, features::GUEST_USO4 | features::GUEST_USO6),
        (v6(Packet::udp(8000)), GSO_UDP_L4, features::GUEST_USO4 | features::GUEST_USO6),
    ];
    let halves_of_uso = [features::GUEST_USO4, features::GUEST_USO6];
    for agreed in kinds.iter().map(|kind| kind.2).chain(halves_of_uso) {
        let rig = ethernet();
        let mut a = rig.guest(0, &Guest::builder().features(SENDS));
        let mut b = rig.guest(1, &Guest::builder().mergeable(true).features(features::GUEST_CSUM | agreed));
        b.rx(0).fill(200, 1526);
        for (packet, gso_type, feature) in &kinds {
            let (header, frame) = asking(packet, *gso_type, 1000);
            let received = exchange(&mut a, &mut b, &header, &frame, 8);
            let may_coalesce = agreed & feature == *feature;
            let is_coalesced = received.iter().any(|r| r.vnet().gso_type != GSO_NONE);
            assert_eq!(is_coalesced, may_coalesce, "{agreed:#x}: {gso_type}");
            let kinds_told = received.iter().map(|r| r.vnet().gso_type);
            assert!(kinds_told.into_iter().all(|told| told == GSO_NONE || told == *gso_type), "{agreed:#x}");
        }
    }
}

#[test]
fn v33_no_super_frame_carries_ecn() {
    let rig = ethernet();
    let guest = Guest::builder().mergeable(true).features(SENDS | features::GUEST_CSUM | features::GUEST_TSO4);
    let [mut a, mut b] = rig.guests(&guest);
    b.rx(0).fill(200, 1526);
    for flags in [ACK | CWR, ACK | ECE, ACK | CWR | ECE] {
        let (header, frame) = asking(&Packet { flags, ..Packet::tcp(8000) }, GSO_TCPV4 | GSO_ECN, 1000);
        let expected = cut(&header.to_bytes(), &frame);
        let received = exchange(&mut a, &mut b, &header, &frame, 8);
        let mut segments = Vec::new();
        for one in received {
            assert_eq!(one.vnet().gso_type & GSO_ECN, 0);
            let is_coalesced = one.vnet().gso_type != GSO_NONE;
            let has_cwr = one.frame[47] & 0x80 != 0;
            assert!(!(is_coalesced && has_cwr), "CWR in a super-frame without its bit");
            segments.extend(if is_coalesced { cut(&one.header, &one.frame) } else { vec![one.frame] });
        }
        assert!(segments == expected);
    }
}

#[test]
fn v33_a_super_frame_with_cwr_goes_whole_to_a_guest_that_agreed_to_ecn_and_is_cut_for_one_that_did_not() {
    const TAKES: u64 = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    for case in Case::layouts() {
        for (agreed, is_whole) in [(features::GUEST_ECN, true), (0, false)] {
            let rig = SwitchRig::new(1, Offloads::RATIFIED);
            let mut a = rig.guest(0, &case.guest().features(SENDS));
            let mut b = rig.guest(1, &case.guest().features(TAKES | agreed));
            b.rx(0).fill(64, 1526);
            for (is_ipv6, kind) in [(false, GSO_TCPV4), (true, GSO_TCPV6)] {
                for flags in [ACK | CWR, ACK | CWR | ECE] {
                    let packet = Packet { is_ipv6, flags, ..Packet::tcp(8000) };
                    let (header, frame) = asking(&packet, kind | GSO_ECN, 1000);
                    let received = exchange(&mut a, &mut b, &header, &frame, 8);
                    let told: Vec<_> = received.iter().map(|one| one.vnet().gso_type).collect();
                    if is_whole {
                        assert_eq!(told, [kind | GSO_ECN], "{case:?}");
                        assert!(received[0].frame == frame, "{case:?}");
                    } else {
                        assert_eq!(told, [GSO_NONE; 8], "{case:?}");
                        let given: Vec<_> = received.into_iter().map(|one| one.frame).collect();
                        assert!(given == cut(&header.to_bytes(), &frame), "{case:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn accecn_keeps_cwr_on_every_segment_and_coalesces_it_for_a_guest_that_agreed() {
    const TAKES: u64 = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    let packet = Packet { flags: AE | ACK | CWR | ECE, ..Packet::tcp(8000) };
    let (header, frame) = asking(&packet, GSO_TCPV4 | GSO_ACCECN, 1000);
    let segments = cut(&header.to_bytes(), &frame);
    assert!(segments.iter().all(|segment| segment[46] & 1 == 1 && segment[47] & 0xc0 == 0xc0));
    for (agreed, told) in [(features::GUEST_ACCECN, vec![GSO_TCPV4 | GSO_ACCECN]), (0, vec![GSO_NONE; 8])] {
        let rig = SwitchRig::new(1, Offloads::all());
        let mut a = rig.guest(0, &Guest::builder().features(SENDS | features::HOST_ACCECN));
        let mut b = rig.guest(1, &Guest::builder().mergeable(true).features(TAKES | agreed));
        b.rx(0).fill(64, 1526);
        let received = exchange(&mut a, &mut b, &header, &frame, 8);
        assert_eq!(received.iter().map(|one| one.vnet().gso_type).collect::<Vec<_>>(), told);
        // The same frames, sent separately, are coalesced for the guest that negotiated AccECN.
        for segment in &segments {
            assert!(a.tx(0).stage(&VnetHeader::default(), &[segment]).is_some());
        }
        a.tx(0).publish();
        let mut given = Vec::new();
        while given.len() < segments.len() {
            let one = b.rx(0).recv(PATIENCE);
            given.extend(if one.vnet().gso_type == GSO_NONE { vec![one.frame] } else { cut(&one.header, &one.frame) });
        }
        assert!(given == segments);
    }
}

#[test]
fn accecn_is_offered_if_it_is_allowed_and_in_place_of_migration_whose_bit_is_the_same() {
    let (both, migrates) = (Offloads::all(), Offloads::all() - Offloads::RSC_ACCECN);
    for (told, has_tso, has_log) in [(both, true, false), (migrates, true, true), (Offloads::RATIFIED, false, true)] {
        let rig = SwitchRig::new(1, told);
        let mut a = rig.guest(0, &Guest::builder().features(SENDS));
        let offered = a.frontend().get_features().unwrap();
        assert_eq!(offered & features::HOST_ACCECN != 0, has_tso, "{told:?}");
        assert!(offered & features::GUEST_ACCECN != 0, "the bit of AccECN or of the log");
        assert_eq!(a.frontend().get_protocol_features().unwrap() & protocol::LOG_SHMFD != 0, has_log, "{told:?}");
    }
}

#[test]
fn v34_v37_v39_v40_what_is_told_of_a_frame_is_true() {
    let rig = ethernet();
    let told = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    let [mut a, mut b] = rig.guests(&Guest::builder().mergeable(true).features(SENDS | told));
    b.rx(0).fill(200, 1526);
    for is_ipv6 in [false, true] {
        let packet = Packet { is_ipv6, ..Packet::tcp(9000) };
        let (header, frame) = asking(&packet, if is_ipv6 { GSO_TCPV6 } else { GSO_TCPV4 }, 1000);
        let received = exchange(&mut a, &mut b, &header, &frame, 9);
        let vnet = received[0].vnet();
        assert_eq!(vnet.flags, NEEDS_CSUM, "V34 and V37");
        assert_eq!((vnet.gso_type, vnet.gso_size), (header.gso_type, 1000), "V37");
        assert!(vnet.hdr_len >= header.hdr_len, "V39");
        assert_eq!((vnet.csum_start, vnet.csum_offset), (header.csum_start, header.csum_offset), "V34");
        // As in the sender's frame, the checksum of the IP header is complete, and the TCP checksum field has the sum
        // of the pseudo-header.
        assert!(received[0].frame == frame, "V34");
        let alone = Packet { is_ipv6, ..Packet::tcp(500) }.build();
        let received = exchange(&mut a, &mut b, &VnetHeader::default(), &alone, 1);
        assert_eq!(received[0].vnet().flags, DATA_VALID, "V40");
    }
    // A frame without a checksum is not marked.
    let other = frame(&mut rng(), 100);
    assert_eq!(exchange(&mut a, &mut b, &VnetHeader::default(), &other, 1)[0].vnet().flags, 0, "V40");
}

// Tests of rings.

#[test]
fn r1_nothing_is_taken_before_the_ring_is_started() {
    for packed in [false, true] {
        let rig = ethernet();
        let mut frontend = connect(&rig);
        let memory = GuestMemory::new(&[RegionSpec::new(0x10_0000, 1 << 20)]);
        let offered = frontend.get_features().unwrap();
        frontend.set_protocol_features(protocol::REPLY_ACK).unwrap();
        let wanted = features::VERSION_1 | features::PROTOCOL_FEATURES | if packed { features::RING_PACKED } else { 0 };
        frontend.set_features(wanted & offered).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let mut ring = Virtqueue::new(&memory, packed, 8, RingOptions::default());
        let buffer = memory.alloc(128, 64);
        ring.add(&[Buffer::readable(buffer, 100)], &[]).unwrap();
        ring.publish();
        frontend.set_vring_num(1, 8).unwrap();
        frontend.set_vring_base(1, if packed { 0x8000_8000 } else { 0 }).unwrap();
        frontend.set_vring_addr(&VringAddr::new(&memory, 1, ring.addresses())).unwrap();
        frontend.set_vring_enable(1, true).unwrap();
        assert!(ring.take_used().is_none(), "R1");
        assert_eq!(rig.ports[0].status().ring_entries, [0, 0]);
        let kick = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
        frontend.set_vring_kick(1, Some(kick.as_fd())).unwrap();
        kick.write(1).unwrap();
        wait_until("the chain to be used", || ring.take_used().is_some());
    }
}

#[test]
fn r3_a_reset_device_touches_nothing_until_it_is_set_up_again() {
    for case in Case::layouts() {
        for message in 0..3 {
            let rig = ethernet();
            let [mut a, mut b] = rig.guests(&case.guest());
            b.rx(0).fill(16, 1526);
            let frame = frame(&mut rng(), 100);
            carry(&mut a, &mut b, 0, &frame, &case);
            let protocols = a.negotiated().protocol_offered;
            a.frontend().set_protocol_features(protocols).unwrap();
            match message {
                0 => a.frontend().set_status(0).unwrap(),
                1 => a.frontend().reset_device().unwrap(),
                _ => a.frontend().reset_owner().unwrap(),
            }
            assert_eq!(a.frontend().get_status(), Ok(0), "R3");
            a.tx(0).stage(&VnetHeader::default(), &[&frame]).unwrap();
            a.tx(0).publish();
            a.tx(0).kick();
            assert_eq!(rig.ports[0].status().ring_entries, [0, 0], "R3");
            assert!(a.tx(0).take_used().is_none(), "R3: {case:?}");
            a.reset_rings();
            a.start().unwrap();
            carry(&mut a, &mut b, 0, &frame, &case);
        }
    }
}

#[test]
fn r5_a_queue_that_is_reset_begins_anew_with_another_size() {
    let mut rng = rng();
    for case in Case::layouts() {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest().queue_size(256));
        b.rx(0).fill(64, 1526);
        for size in [256, 8, 64, 1024, 2] {
            carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
            // Stop the ring and start it at another address, as a frontend does when its guest resets the queue.
            let frontend = a.frontend();
            frontend.get_vring_base(1).unwrap();
            frontend.set_vring_enable(1, false).unwrap();
            let memory = a.memory().clone();
            let options = RingOptions { event_idx: case.event_idx, in_order: case.in_order };
            let mut ring = Virtqueue::new(&memory, case.packed, size, options);
            let kick = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
            let frontend = a.frontend();
            frontend.set_vring_num(1, size.into()).unwrap();
            frontend.set_vring_base(1, ring.resume_base()).unwrap();
            frontend.set_vring_addr(&VringAddr::new(&memory, 1, ring.addresses())).unwrap();
            frontend.set_vring_kick(1, Some(kick.as_fd())).unwrap();
            frontend.set_vring_enable(1, true).unwrap();
            assert_eq!(rig.ports[0].status().ring_entries[1], size);
            let sent = frame(&mut rng, 200);
            let buffer = memory.alloc(4096, 64);
            memory.write(buffer + 12, &sent);
            for _ in 0..3 * size {
                ring.add(&[Buffer::readable(buffer, 212)], &[]).unwrap();
                if ring.publish() {
                    kick.write(1).unwrap();
                }
                assert!(b.rx(0).recv(PATIENCE).frame == sent, "{case:?}: {size}");
                wait_until("the chain", || ring.take_used().is_some());
            }
            // Return to the guest's original ring.
            a.frontend().get_vring_base(1).unwrap();
            a.reset_rings();
            a.start().unwrap();
        }
    }
}

#[test]
fn r6_r7_sent_buffers_of_any_shape_are_read_and_never_written() {
    let mut rng = rng();
    for case in Case::all() {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(64, 1526);
        a.tx(0).set_compare(true);
        for pieces in [1, 2, 3, 7, 12] {
            for scattered in [1, 3, 40] {
                let layout = TxLayout {
                    header: offramp_testkit::HeaderPlacement::Split(pieces),
                    data: offramp_testkit::DataPlacement::Scattered(scattered),
                    indirect: case.indirect,
                };
                a.tx(0).set_layout(layout);
                carry(&mut a, &mut b, 0, &frame(&mut rng, 1000), &(case, layout));
            }
        }
        a.tx(0).drain(PATIENCE);
    }
}

#[test]
fn r8_a_table_may_follow_descriptors_and_its_own_write_flag_says_nothing() {
    let mut rng = rng();
    for case in Case::all().filter(|case| case.indirect && !case.in_order) {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(16, 1526);
        let (memory, sent) = (a.memory().clone(), frame(&mut rng, 300));
        let buffer = memory.alloc(4096, 64);
        memory.write(buffer + 12, &sent);
        let readable = |at: u64, len| Buffer::readable(buffer + at, len);
        let (direct, table) = ([readable(0, 5), readable(5, 7)], [readable(12, 100), readable(112, 200)]);
        for _ in 0..10 {
            a.tx(0).ring().add(&direct, &table).unwrap();
            a.tx(0).publish();
            let received = b.rx(0).recv(PATIENCE);
            assert!(received.frame == sent, "{case:?}");
        }
        if case.packed {
            continue;
        }
        // The WRITE flag in the descriptor that refers to an indirect table has no effect (virtio 1.3, 2.7.5.3.2).
        a.tx(0).drain(PATIENCE);
        let entries = memory.alloc(2 * DESC_LEN, DESC_LEN);
        SplitDescriptor { addr: buffer, len: 12, flags: DESC_NEXT, next: 1 }.write(&memory, entries);
        SplitDescriptor { addr: buffer + 12, len: 300, flags: 0, next: 0 }.write(&memory, entries + DESC_LEN);
        let ring = a.tx(0).ring().split();
        let idx = ring.avail_idx();
        let flags = DESC_INDIRECT | DESC_WRITE;
        ring.write_descriptor(0, SplitDescriptor { addr: entries, len: 2 * DESC_LEN as u32, flags, next: 0 });
        ring.write_avail(idx, 0);
        ring.set_avail_idx(idx.wrapping_add(1));
        a.tx(0).kick();
        assert!(b.rx(0).recv(PATIENCE).frame == sent, "{case:?}");
    }
}

#[test]
fn r9_no_more_is_said_to_be_written_than_was() {
    let mut rng = rng();
    for case in Case::all() {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(64, 1526);
        for len in [14, 60, 1514] {
            let received = carry(&mut a, &mut b, 0, &frame(&mut rng, len), &case);
            assert_eq!(received.chains[0].len as usize, len + 12, "{case:?}");
        }
        while a.tx(0).in_flight() > 0 {
            let used = a.tx(0).take_used_within(PATIENCE).expect("a sent chain");
            assert_eq!(used.len, 0, "{case:?}: nothing is written into what is sent");
        }
    }
}

#[test]
fn r11_kicks_without_a_reason_do_nothing() {
    let mut rng = rng();
    for case in Case::rings() {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(16, 1526);
        for _ in 0..200 {
            a.tx(0).kick();
            a.rx(0).kick();
        }
        carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
        a.tx(0).drain(PATIENCE);
        assert_eq!(rig.sent(0, |d| d.frames_in.get()), 1, "{case:?}");
    }
}

#[test]
fn r12_a_packed_descriptor_is_not_touched_before_it_is_available_nor_after_it_is_used() {
    let mut rng = rng();
    let case = Case::layouts().find(|case| case.packed).expect("a packed ring");
    let rig = ethernet();
    let [mut a, mut b] = rig.guests(&case.guest().queue_size(16));
    b.rx(0).fill(16, 1526);
    let ring = a.tx(0).ring().addresses().descriptors;
    let memory = a.memory().clone();
    for n in 0..100u64 {
        let before = memory.read_vec(ring, 16 * DESC_LEN as usize);
        carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &n);
        a.tx(0).drain(PATIENCE);
        let after = memory.read_vec(ring, 16 * DESC_LEN as usize);
        let slots = before.chunks(DESC_LEN as usize).zip(after.chunks(DESC_LEN as usize));
        let changed = slots.filter(|(before, after)| before != after).count();
        assert!(changed <= 2, "chain {n} has two descriptors, and {changed} were written");
    }
}

#[test]
fn r13_chains_are_used_in_the_order_in_which_they_were_made_available() {
    let mut rng = rng();
    for case in Case::all().filter(|case| !case.in_order) {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest().queue_size(64));
        b.rx(0).fill(64, 1526);
        let mut expected = std::collections::VecDeque::new();
        for _ in 0..50 {
            for _ in 0..10 {
                expected.extend(a.tx(0).stage(&VnetHeader::default(), &[&frame(&mut rng, 60)]));
            }
            a.tx(0).publish();
            for _ in 0..10 {
                let used = a.tx(0).take_used_within(PATIENCE).expect("a sent chain");
                assert_eq!(Some(used.id), expected.pop_front(), "{case:?}");
                b.rx(0).recv(PATIENCE);
            }
        }
    }
}

// Tests of the vhost-user protocol.

#[test]
fn every_dialect_brings_a_guest_up() {
    let mut rng = rng();
    for case in Case::layouts() {
        for dialect in [Dialect::Qemu, Dialect::Dpdk, Dialect::UserModeLinux] {
            for more in [0, protocol::STATUS, protocol::CONFIGURE_MEM_SLOTS] {
                let rig = ethernet();
                let builder = case.guest().dialect(dialect).protocol_features(protocol::REPLY_ACK | more);
                let [mut a, mut b] = rig.guests(&builder);
                b.rx(0).fill(16, 1526);
                carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &(case, dialect, more));
            }
        }
    }
}

#[test]
fn without_protocol_features_a_ring_is_enabled_from_the_start() {
    let rig = ethernet();
    let mut b = rig.guest(1, &Guest::builder());
    b.rx(0).fill(16, 1526);
    let frontend = connect(&rig);
    let memory = GuestMemory::new(&[RegionSpec::new(0x10_0000, 1 << 20)]);
    frontend.set_owner().unwrap();
    frontend.get_features().unwrap();
    frontend.set_features(features::VERSION_1).unwrap();
    frontend.set_mem_table(&memory).unwrap();
    let mut ring = Virtqueue::new(&memory, false, 8, RingOptions::default());
    let (buffer, sent) = (memory.alloc(128, 64), frame(&mut rng(), 100));
    memory.write(buffer + 12, &sent);
    ring.add(&[Buffer::readable(buffer, 112)], &[]).unwrap();
    ring.publish();
    let kick = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
    frontend.set_vring_num(1, 8).unwrap();
    frontend.set_vring_base(1, 0).unwrap();
    frontend.set_vring_addr(&VringAddr::new(&memory, 1, ring.addresses())).unwrap();
    frontend.set_vring_kick(1, Some(kick.as_fd())).unwrap();
    kick.write(1).unwrap();
    assert!(b.rx(0).recv(PATIENCE).frame == sent);
}

#[test]
fn a_ring_without_a_kick_is_looked_at_again_and_again() {
    let mut rng = rng();
    for case in Case::rings() {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(16, 1526);
        a.frontend().set_vring_kick(1, None).unwrap();
        // The test kit kicks a descriptor that the port no longer uses, so the port must find the chains by polling.
        for _ in 0..5 {
            carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
        }
    }
}

#[test]
fn a_packed_ring_that_ended_at_its_start_goes_on_there() {
    // The base of a packed ring that stopped at index 0 with wrap counter 0 is 0. Frontends without wrap counters also
    // use base 0 for a new ring.
    let (mut rng, case) = (rng(), Case::layouts().find(|case| case.packed).unwrap());
    for size in [1, 5, 8] {
        let rig = ethernet();
        let [mut a, mut b] = rig.guests(
            &case
                .guest()
                .queue_size(size)
                .tx_layout(TxLayout { header: HeaderPlacement::WithData, ..TxLayout::default() }),
        );
        b.rx(0).fill(1, 1526);
        let mut ended_at_start = 0;
        for _ in 0..6 * size {
            carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &size);
            for guest in [&a, &b] {
                let bases = guest.stop().unwrap();
                ended_at_start += bases.iter().filter(|base| **base == 0).count();
                guest.start_at(&bases).unwrap();
            }
        }
        assert!(ended_at_start >= 6, "{size}: {ended_at_start}");
    }
}

#[test]
fn a_port_without_a_control_queue_offers_nothing_that_needs_one() {
    let scratch = Scratch::new();
    let config = VhostUserConfig { control_queue: ControlQueue::None, ..VhostUserConfig::new(scratch.path("port")) };
    let mut port = VhostUser::open(&config).unwrap();
    drop(port.queue(0));
    let offered = Frontend::connect(&config.socket).get_features().unwrap();
    // CTRL_VQ, CTRL_RX, CTRL_VLAN, GUEST_ANNOUNCE, MQ, CTRL_MAC_ADDR (virtio 1.3, 5.1.3.1).
    let needs_one = [17, 18, 19, 21, 22, 23].iter().fold(0, |bits, bit| bits | 1u64 << bit);
    assert_eq!(offered & needs_one, 0, "{offered:#x}");
    let two = VhostUserConfig { queue_pairs: 2, socket: scratch.path("other"), ..config };
    let error = VhostUser::open(&two).map(|_| ()).unwrap_err();
    assert!(matches!(error, VhostUserError::ControlQueue { queue_pairs: 2, .. }), "{error}");
}

#[test]
fn a_frontend_that_hands_on_the_control_queue_is_told_what_to_set() {
    let rig = ethernet();
    let mut frontend = connect(&rig);
    let offered = frontend.get_features().unwrap();
    frontend.set_protocol_features(protocol::REPLY_ACK).unwrap();
    frontend.set_features(offered).unwrap();
    assert!(frontend.set_vring_num(2, 64).is_err());
    let refusal = || rig.ports[0].status().last_refusal.unwrap_or_default();
    wait_until("the reason", || refusal().contains("control_queue = \"none\""));
}

#[test]
fn a_memory_table_may_have_room_for_more_regions_than_it_has() {
    let specs = [RegionSpec::new(0x10_0000, 1 << 20), RegionSpec::new(0x40_0000, 1 << 20)];
    for regions in [1, 2] {
        for room in [1, 2, 3, 8, 32] {
            let rig = ethernet();
            let frontend = connect(&rig);
            let memory = GuestMemory::new(&specs[..regions]);
            frontend.set_mem_table_with_room(&memory, room).unwrap();
            let status = || rig.ports[0].status();
            wait_until("the memory", || status().memory_regions == regions);
            assert_eq!(status().memory_bytes, (regions as u64) << 20);
        }
    }
}

#[test]
fn the_status_is_kept_and_told() {
    let rig = ethernet();
    let mut a = rig.guest(0, &Guest::builder().protocol_features(protocol::STATUS | protocol::REPLY_ACK));
    assert_eq!(a.frontend().get_status(), Ok(15));
    assert_eq!(rig.ports[0].status().device_status, 15);
    for status in [1, 3, 0x80, 0] {
        a.frontend().set_status(status).unwrap();
        assert_eq!(a.frontend().get_status(), Ok(status));
    }
}

#[test]
fn the_mtu_that_the_frontend_tells_the_guest_is_known() {
    let rig = ethernet();
    let mut a = rig.guest(0, &Guest::builder().protocol_features(protocol::MTU | protocol::REPLY_ACK));
    for mtu in [68, 1500, 9000, 65_535] {
        a.frontend().net_set_mtu(mtu).unwrap();
        wait_until("the MTU", || rig.ports[0].status().frontend_mtu == Some(mtu as u16));
    }
}

#[test]
fn regions_of_memory_come_and_go() {
    let mut rng = rng();
    for case in Case::layouts() {
        let rig = ethernet();
        let all = protocol::CONFIGURE_MEM_SLOTS | protocol::REPLY_ACK;
        let [mut a, mut b] = rig.guests(&case.guest().protocol_features(all));
        b.rx(0).fill(16, 1526);
        assert_eq!(a.frontend().get_max_mem_slots(), Ok(32));
        let more = GuestMemory::new(&[RegionSpec::new(0x1_0000_0000, 1 << 20)]);
        let sent = frame(&mut rng, 100);
        more.write(0x1_0000_0000 + 12, &sent);
        for round in 0..5 {
            a.frontend().add_mem_reg(MemRegion::new(&more.regions()[0]), more.regions()[0].fd()).unwrap();
            a.tx(0).ring().add(&[Buffer::readable(0x1_0000_0000, 112)], &[]).unwrap();
            a.tx(0).publish();
            assert!(b.rx(0).recv(PATIENCE).frame == sent, "{case:?}");
            a.tx(0).drain(PATIENCE);
            a.frontend().rem_mem_reg(MemRegion::new(&more.regions()[0])).unwrap();
            // Removed memory cannot be read.
            a.tx(0).ring().add(&[Buffer::readable(0x1_0000_0000, 112)], &[]).unwrap();
            a.tx(0).publish();
            a.tx(0).drain(PATIENCE);
            assert_eq!(rig.bad_chains(0), round + 1, "{case:?}");
        }
    }
}

#[test]
fn the_inflight_region_is_given_and_taken_back() {
    let rig = ethernet();
    let protocols = protocol::INFLIGHT_SHMFD | protocol::REPLY_ACK;
    let mut a = rig.guest(0, &Guest::builder().protocol_features(protocols));
    let inflight = a.frontend().get_inflight_fd(2, 256).unwrap();
    assert_eq!((inflight.num_queues, inflight.queue_size, inflight.mmap_offset), (2, 256, 0));
    // A split queue needs 16 bytes plus 16 bytes per descriptor, and a packed queue 32 bytes plus 32 bytes per
    // descriptor ("Inflight I/O tracking").
    assert!(inflight.mmap_size >= 2 * (32 + 256 * 32));
    a.frontend().set_inflight_fd(&inflight).unwrap();
}

#[test]
fn a_refused_message_is_answered_before_the_connection_ends() {
    let rig = ethernet();
    let mut frontend = connect(&rig);
    frontend.get_features().unwrap();
    frontend.set_protocol_features(protocol::REPLY_ACK).unwrap();
    let refused = frontend.set_vring_num(0, 0);
    assert!(matches!(refused, Err(offramp_testkit::PeerError::Refused { code: 1, .. })), "{refused:?}");
    assert!(frontend.is_closed_within(PATIENCE));
}

/// Returns the announcement of a moved guest: a broadcast request for its station's own IP address (RFC 903).
fn rarp(mac: [u8; 6]) -> Vec<u8> {
    let who_am_i = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];
    [&[0xff; 6][..], &mac, &who_am_i, &mac, &[0; 4], &mac, &[0; 4], &[0; 18]].concat()
}

#[test]
fn a_guest_that_has_moved_and_cannot_tell_it_is_told_of_on_the_line() {
    for case in Case::layouts() {
        for pairs in [1, 2] {
            let rig = Rig::with(&RigConfig::mtu(1500).queue_pairs(pairs));
            let speaks = protocol::REPLY_ACK | protocol::RARP | protocol::MQ;
            let mut a = rig.guest(0, &case.guest().protocol_features(speaks).queue_pairs(pairs));
            let mut b = rig.guest(1, &case.guest().queue_pairs(pairs));
            b.rx(0).fill(8, 1526);
            for _ in 0..3 {
                a.frontend().send_rarp(MAC).unwrap();
                let received = b.rx(0).recv(PATIENCE);
                assert!(received.frame == rarp(MAC), "{case:?}: {:02x?}", received.frame);
            }
            assert_eq!(rig.sent(0, |d| d.frames_out.get()), 3, "counted as what the guest sends: {case:?}");
            carry(&mut a, &mut b, 0, &frame(&mut rng(), 200), &case);
        }
    }
}

#[test]
fn a_switch_learns_from_it_where_the_guest_is() {
    let rig = SwitchRig::new(1, Offloads::RATIFIED);
    let builder = Guest::builder().protocol_features(protocol::REPLY_ACK | protocol::RARP);
    let [mut a, mut b] = [0, 1].map(|side| rig.guest(side, &builder));
    b.rx(0).fill(8, 1526);
    assert_eq!(rig.seats[0].stations(), 0);
    a.frontend().send_rarp(MAC).unwrap();
    assert!(b.rx(0).recv(PATIENCE).frame == rarp(MAC));
    wait_until("the station to be counted", || rig.seats[0].stations() == 1);
}

#[test]
fn a_guest_that_tells_where_it_is_by_itself_is_not_told_of() {
    let rig = ethernet();
    let builder = Guest::builder().protocol_features(protocol::REPLY_ACK | protocol::RARP);
    let mut a = rig.guest(0, &builder.features(features::CTRL_VQ | features::GUEST_ANNOUNCE));
    let mut b = rig.guest(1, &Guest::builder());
    b.rx(0).fill(8, 1526);
    a.frontend().send_rarp(MAC).unwrap();
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"nothing came before it");
}

#[test]
fn an_announcement_that_was_not_agreed_or_of_no_station_is_refused() {
    let rig = ethernet();
    let without = Guest::builder().protocol_features(protocol::REPLY_ACK);
    let with = Guest::builder().protocol_features(protocol::REPLY_ACK | protocol::RARP);
    for (builder, mac) in [(&without, MAC), (&with, [0; 6]), (&with, [0xff; 6]), (&with, [1, 0, 0, 0, 0, 7])] {
        let mut guest = rig.guest(0, builder);
        guest.frontend().send_rarp(mac).unwrap_err();
        assert!(guest.frontend().is_closed_within(PATIENCE), "{mac:02x?}");
    }
}
