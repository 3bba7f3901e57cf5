//! Tests of the guest's choice of a pair for each flow (virtio 1.3, 5.1.6.5.7; V7, V8, V46, V59, V60, V62).

use super::{ERR, OK, PAIRS_SET, command, status};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, rng, wait_until};
use offramp_ports::vhost_user::ControlQueue;
use offramp_testkit::{Guest, GuestBuilder, VnetHeader, features, features::protocol};
use rand::{Rng, RngExt};
use std::net::IpAddr;
use std::time::Duration;

pub(super) const RSS_CONFIG: [u8; 2] = [4, 1];
const HASH_CONFIG: [u8; 2] = [4, 2];
pub(super) const PAIRS: u16 = 3;
pub(super) const KEY_LEN: usize = 40;
/// Bits of hashed packet types.
const IPV4: u32 = 1;
const IPV6: u32 = 8;
const UDPV4: u32 = 4;
pub(super) const ALL: u32 = 0x3f;

pub(super) fn rig() -> Rig {
    let control_queue = ControlQueue::Backend;
    Rig::with(&RigConfig { control_queue, on_switch: true, ..RigConfig::mtu(1500).queue_pairs(PAIRS) })
}

pub(super) fn builder(case: &Case) -> GuestBuilder {
    let protocol = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS | protocol::CONFIG;
    let features = features::MQ | features::RSS;
    case.guest().queue_pairs(PAIRS).features(features).control_queue().protocol_features(protocol)
}

/// Returns a `virtio_net_rss_config`, with a byte of padding as in Linux.
pub(super) fn config(types: u32, mask: u16, unclassified: u16, table: &[u16], max_tx_vq: u16, key: &[u8]) -> Vec<u8> {
    let mut bytes = types.to_le_bytes().to_vec();
    bytes.extend([mask, unclassified].iter().chain(table).chain([&max_tx_vq]).flat_map(|word| word.to_le_bytes()));
    bytes.push(key.len() as u8);
    bytes.extend(key);
    bytes.push(0);
    bytes
}

/// Computes the hash by its definition, bit by bit.
pub(super) fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let mut hash = 0;
    for at in (0..8 * input.len()).filter(|at| bit(input, *at)) {
        (0..32).for_each(|n| hash ^= u32::from(bit(key, at + n)) << (31 - n));
    }
    hash
}

/// Returns a datagram of a random flow, and its hashed bytes without and with ports.
pub(super) fn datagram(rng: &mut impl Rng) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let flow: [u8; 12] = rng.random();
    let (addresses, ports) = flow.split_at(8);
    let frame = [&ETHERNET[..], &[8, 0], &ipv4(17, addresses), ports, &[0, 26, 0, 0], &[0x5a; 18]].concat();
    (frame, addresses.to_vec(), flow.to_vec())
}

const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 0x61, 2, 0, 0, 0, 0, 0x62];

/// Returns the header of an IPv4 packet of 46 bytes.
fn ipv4(protocol: u8, addresses: &[u8]) -> Vec<u8> {
    let mut ip = [&[0x45, 0, 0, 46, 0, 1, 0, 0, 64, protocol, 0, 0][..], addresses].concat();
    let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    // The first fold of the sum of ten words can carry once more.
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = !(folded + (folded >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip
}

/// Returns a segment of TCP between two addresses and ports, source first.
fn segment(addresses: [&str; 2], ports: [u16; 2]) -> Vec<u8> {
    let octets = addresses.map(|address| match address.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    });
    let addresses = octets.concat();
    let (ethertype, ip) = match addresses.len() {
        8 => ([8, 0], ipv4(6, &addresses)),
        _ => ([0x86, 0xdd], [&[0x60, 0, 0, 0, 0, 26, 6, 64][..], &addresses].concat()),
    };
    let ports = ports.map(u16::to_be_bytes).concat();
    [&ETHERNET[..], &ethertype, &ip, &ports, &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 9, 0, 0, 0, 0], &[0x5a; 6]]
        .concat()
}

/// Sends a frame, and checks that it arrives on `pair`.
#[track_caller]
fn expect(sender: &mut Guest, guest: &mut Guest, frame: &[u8], pair: usize) {
    sender.tx(0).send(&VnetHeader::default(), &[frame]);
    let received = guest.rx(pair).recv_within(PATIENCE).expect("a frame on the pair of its flow");
    assert_eq!(received.frame, frame);
}

#[test]
fn v59_v60_each_flow_is_received_on_the_pair_that_the_guest_has_chosen_for_its_hash() {
    let rig = rig();
    for case in Case::rings() {
        let mut sender = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case));
        for pair in 0..PAIRS {
            guest.rx(pair.into()).fill(128, 2048);
        }
        let mut rng = rng();
        for types in [UDPV4 | IPV4, IPV4, ALL] {
            let mut key = [0; KEY_LEN];
            rng.fill_bytes(&mut key);
            let table: Vec<u16> = (0..16).map(|_| rng.random_range(0..PAIRS)).collect();
            let unclassified = rng.random_range(0..PAIRS);
            let fields = config(types, 15, unclassified, &table, PAIRS, &key);
            assert_eq!(command(&mut guest, RSS_CONFIG, &fields), OK, "{case:?}");
            for _ in 0..20 {
                let (frame, addresses, flow) = datagram(&mut rng);
                let hash = toeplitz(&key, if types & UDPV4 != 0 { &flow } else { &addresses });
                expect(&mut sender, &mut guest, &frame, table[hash as usize & 15].into());
            }
            let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0x62, 8, 6], &[0; 46]].concat();
            expect(&mut sender, &mut guest, &arp, unclassified.into());
        }
        // Without hashed types, all frames are unclassified, as in Linux with `rxhash off`.
        assert_eq!(command(&mut guest, RSS_CONFIG, &config(0, 0, 2, &[0], PAIRS, &[])), OK);
        expect(&mut sender, &mut guest, &datagram(&mut rng).0, 2);
        let shown = status(&rig, 0).hash.expect("what it has set");
        assert_eq!((shown.table, shown.unclassified, shown.types.bits()), (vec![0], Some(2), 0), "{case:?}");
        assert!(status(&rig, 0).queue_pairs == PAIRS && !shown.is_reported);
        // The port steers flows again, to a single pair.
        assert_eq!(command(&mut guest, PAIRS_SET, &[1, 0]), OK);
        expect(&mut sender, &mut guest, &datagram(&mut rng).0, 0);
        assert!((1..3).all(|pair| guest.rx(pair).recv_within(Duration::ZERO).is_none()), "{case:?}");
        wait_until("its end", || status(&rig, 0).hash.is_some_and(|hash| hash.table.is_empty()));
    }
}

/// Returns the bytes of a `virtio_net_hash_config`.
fn hashing(types: u32, key: &[u8]) -> Vec<u8> {
    [&types.to_le_bytes()[..], &[0xee; 8], &[key.len() as u8], key].concat()
}

#[test]
fn v46_the_header_of_a_received_frame_has_its_hash_and_what_was_hashed() {
    let rig = rig();
    for (case, is_in_one) in Case::layouts().flat_map(|case| [(case, false), (case, true)]) {
        let mut sender = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case).features(features::HASH_REPORT));
        // Use one buffer for header and frame. In the other cases, use three buffers for the header, and several chains
        // for a mergeable frame.
        match (is_in_one, case.mergeable) {
            (true, _) => guest.rx(0).fill(80, 2048),
            (false, true) => guest.rx(0).fill_chains(80, &[8; 3]),
            (false, false) => guest.rx(0).fill_chains(80, &[8, 8, 2048]),
        };
        let mut rng = rng();
        let mut key = [0; KEY_LEN];
        rng.fill_bytes(&mut key);
        let mut receive = |guest: &mut Guest, frame: &[u8]| {
            sender.tx(0).send(&VnetHeader::default(), &[frame]);
            let received = guest.rx(0).recv_within(PATIENCE).expect("a frame");
            assert_eq!((&received.frame[..], received.header.len()), (frame, 20), "{case:?}");
            received.header[12..].to_vec()
        };
        let report = |hash: u32, kind: u8| [&hash.to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
        assert_eq!(receive(&mut guest, &datagram(&mut rng).0), [0; 8], "nothing is hashed yet");
        for (types, kind) in [(UDPV4 | IPV4, 3), (IPV4, 1), (ALL, 3)] {
            assert_eq!(command(&mut guest, HASH_CONFIG, &hashing(types, &key)), OK, "{case:?}");
            for _ in 0..5 {
                let (frame, addresses, flow) = datagram(&mut rng);
                let hash = toeplitz(&key, if kind == 3 { &flow } else { &addresses });
                assert_eq!(receive(&mut guest, &frame), report(hash, kind), "{case:?}");
            }
            let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0x62, 8, 6], &[0; 46]].concat();
            assert_eq!(receive(&mut guest, &arp), [0; 8]);
        }
        assert_eq!(command(&mut guest, HASH_CONFIG, &hashing(ALL, &[7; KEY_LEN + 1])), ERR);
        // Transmitted frames also have the longer header, whose additional bytes are ignored.
        sender.rx(0).fill(8, 2048);
        let (frame, ..) = datagram(&mut rng);
        guest.tx(0).send(&VnetHeader::default(), &[&frame]);
        assert_eq!(sender.rx(0).recv_within(PATIENCE).expect("a frame").frame, frame, "{case:?}");
    }
}

/// The key and some results from "Verifying the RSS hash calculation" (NDIS): source and destination, their ports, and
/// the hashes without and with ports.
const PUBLISHED_KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];
const PUBLISHED: [([&str; 2], [u16; 2], [u32; 2]); 4] = [
    (["66.9.149.187", "161.142.100.80"], [2794, 1766], [0x323e_8fc2, 0x51cc_c178]),
    (["199.92.111.2", "65.69.140.83"], [14230, 4739], [0xd718_262a, 0xc626_b0ea]),
    (["3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"], [2794, 1766], [0x2cc1_8cd5, 0x4020_7d3d]),
    (["3ffe:501:8::260:97ff:fe40:efab", "ff02::1"], [14230, 4739], [0x0f0c_461c, 0xdde5_1bbf]),
];

#[test]
fn v46_a_received_frame_has_the_hash_that_is_published_for_its_flow() {
    let rig = rig();
    for case in Case::rings() {
        let mut sender = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case).features(features::HASH_REPORT));
        guest.rx(0).fill(80, 2048);
        // `kinds` are the numbers of the hashed type in the header, for IPv4 and for IPv6.
        for (types, nth, kinds) in [(IPV4 | IPV6, 0, [1, 4]), (ALL, 1, [2, 5])] {
            assert_eq!(command(&mut guest, HASH_CONFIG, &hashing(types, &PUBLISHED_KEY)), OK, "{case:?}");
            for (addresses, ports, hashes) in PUBLISHED {
                let frame = segment(addresses, ports);
                sender.tx(0).send(&VnetHeader::default(), &[&frame]);
                let received = guest.rx(0).recv_within(PATIENCE).expect("a frame");
                let kind = kinds[usize::from(addresses[0].contains(':'))];
                let expected = [&hashes[nth].to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
                assert_eq!((&received.header[12..], received.frame), (&expected[..], frame), "{case:?} {addresses:?}");
            }
        }
        let shown = status(&rig, 0).hash.expect("what it has set");
        assert_eq!((shown.types.bits(), shown.key, shown.is_reported), (ALL, PUBLISHED_KEY, true), "{case:?}");
        assert_eq!((shown.table, shown.unclassified), (vec![], None), "{case:?}");
    }
}

#[test]
fn what_no_adapter_can_spread_is_refused() {
    let rig = rig();
    let mut guest = rig.guest(0, &builder(&Case::rings().next().unwrap()));
    let key = [7; KEY_LEN];
    let wrong = [
        // A table of three entries, a table above the maximum size, and a table shorter than its mask.
        config(ALL, 2, 0, &[0, 1, 2], PAIRS, &key),
        config(ALL, 255, 0, &[0; 256], PAIRS, &key),
        config(ALL, 127, 0, &[0; 8], 0, &[]),
        // Tables with pairs that do not exist.
        config(ALL, 1, 0, &[0, PAIRS], PAIRS, &key),
        config(ALL, 1, PAIRS, &[0, 1], PAIRS, &key),
        config(ALL, 1, 0, &[0, 1], PAIRS + 1, &key),
        config(ALL, 1, 0, &[0, 1], 0, &key),
        // An unknown packet type, and a key that is too long.
        config(1 << 6, 1, 0, &[0, 1], PAIRS, &key),
        config(ALL, 1, 0, &[0, 1], PAIRS, &[7; KEY_LEN + 1]),
    ];
    for fields in &wrong {
        assert_eq!(command(&mut guest, RSS_CONFIG, fields), ERR, "{fields:?}");
    }
    assert_eq!(command(&mut guest, RSS_CONFIG, &config(ALL, 127, 0, &[1; 128], 2, &key)), OK);
    wait_until("two pairs", || status(&rig, 0).queue_pairs == 2);
    // V62: a reset clears the settings.
    drop(guest);
    let _guest = rig.guest(0, &builder(&Case::rings().next().unwrap()));
    wait_until("none", || rig.ports[0].status().control.is_some_and(|control| control.hash.is_none()));
}

#[test]
fn v7_v8_a_driver_reads_what_it_may_ask_for_where_the_port_can_spread_flows() {
    let case = Case::rings().next().unwrap();
    let read = |rig: &Rig, builder: &GuestBuilder| {
        let mut guest = rig.guest(0, builder);
        (guest.negotiated().features & features::RSS != 0, guest.frontend().get_config(17, 7).unwrap())
    };
    assert_eq!(read(&rig(), &builder(&case)), (true, vec![40, 128, 0, 0x3f, 0, 0, 0]));
    // On a cable, each pair has a separate thread, so the port cannot steer flows. A single pair leaves no choice.
    let protocol = protocol::MQ | protocol::CONFIG;
    for (on_switch, pairs) in [(false, PAIRS), (true, 1)] {
        let control_queue = ControlQueue::Backend;
        let rig = Rig::with(&RigConfig { control_queue, on_switch, ..RigConfig::mtu(1500).queue_pairs(pairs) });
        let builder = case.guest().control_queue().protocol_features(protocol).features_if_offered(features::RSS);
        assert_eq!(read(&rig, &builder), (false, vec![0; 7]), "{pairs}");
    }
}

#[test]
fn a_frame_for_a_pair_that_its_frontend_has_disabled_comes_on_another_one() {
    let rig = rig();
    for case in Case::rings() {
        let mut sender = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case));
        for pair in 0..PAIRS {
            guest.rx(pair.into()).fill(64, 2048);
        }
        let fields = config(ALL, 0, 1, &[1], PAIRS, &[7; KEY_LEN]);
        assert_eq!(command(&mut guest, RSS_CONFIG, &fields), OK, "{case:?}");
        let (frame, ..) = datagram(&mut rng());
        expect(&mut sender, &mut guest, &frame, 1);
        guest.frontend().set_vring_enable(2, false).unwrap();
        sender.tx(0).send(&VnetHeader::default(), &[&frame]);
        wait_until("the frame on another pair", || {
            [0, 2].iter().any(|pair| guest.rx(*pair).recv_within(Duration::ZERO).is_some())
        });
        guest.frontend().set_vring_enable(2, true).unwrap();
        expect(&mut sender, &mut guest, &frame, 1);
    }
}
