//! The pair on which a guest wants each flow (virtio 1.3, 5.1.6.5.7; V7, V8, V46, V59, V60, V62).

use super::{ERR, OK, PAIRS_SET, command, status};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, rng, wait_until};
use offramp_ports::vhost_user::ControlQueue;
use offramp_testkit::{Guest, GuestBuilder, VnetHeader, features, features::protocol};
use rand::{Rng, RngExt};
use std::time::Duration;

pub(super) const RSS_CONFIG: [u8; 2] = [4, 1];
const HASH_CONFIG: [u8; 2] = [4, 2];
pub(super) const PAIRS: u16 = 3;
pub(super) const KEY_LEN: usize = 40;
/// Kinds of packets.
const IPV4: u32 = 1;
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

/// `virtio_net_rss_config`, with a byte of padding as Linux has it.
pub(super) fn config(types: u32, mask: u16, unclassified: u16, table: &[u16], max_tx_vq: u16, key: &[u8]) -> Vec<u8> {
    let mut bytes = types.to_le_bytes().to_vec();
    bytes.extend([mask, unclassified].iter().chain(table).chain([&max_tx_vq]).flat_map(|word| word.to_le_bytes()));
    bytes.push(key.len() as u8);
    bytes.extend(key);
    bytes.push(0);
    bytes
}

/// The definition of the hash, bit by bit.
pub(super) fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let mut hash = 0;
    for at in (0..8 * input.len()).filter(|at| bit(input, *at)) {
        (0..32).for_each(|n| hash ^= u32::from(bit(key, at + n)) << (31 - n));
    }
    hash
}

/// A datagram of some flow, and what is hashed of it with and without ports.
pub(super) fn datagram(rng: &mut impl Rng) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let flow: [u8; 12] = rng.random();
    let (addresses, ports) = flow.split_at(8);
    let mut ip = [&[0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0][..], addresses].concat();
    let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    // The sum of ten words carries once at most after one fold, unless it is all ones.
    let sum = if u32::from(!sum) == 0x1_0000 { 0xfffe } else { sum };
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let ethernet = [2, 0, 0, 0, 0, 0x61, 2, 0, 0, 0, 0, 0x62, 8, 0];
    let frame = [&ethernet[..], &ip, ports, &[0, 26, 0, 0], &[0x5a; 18]].concat();
    (frame, addresses.to_vec(), flow.to_vec())
}

/// Sends a frame, which must arrive on one pair.
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
        // Kinds of none: all is unclassified, as Linux has it with `rxhash off`.
        assert_eq!(command(&mut guest, RSS_CONFIG, &config(0, 0, 2, &[0], PAIRS, &[])), OK);
        expect(&mut sender, &mut guest, &datagram(&mut rng).0, 2);
        wait_until("it to be shown", || status(&rig, 0).spreads_flows && status(&rig, 0).queue_pairs == PAIRS);
        // The port spreads flows again, over one pair.
        assert_eq!(command(&mut guest, PAIRS_SET, &[1, 0]), OK);
        expect(&mut sender, &mut guest, &datagram(&mut rng).0, 0);
        assert!((1..3).all(|pair| guest.rx(pair).recv_within(Duration::ZERO).is_none()), "{case:?}");
        wait_until("its end", || !status(&rig, 0).spreads_flows);
    }
}

/// `virtio_net_hash_config`.
fn hashing(types: u32, key: &[u8]) -> Vec<u8> {
    [&types.to_le_bytes()[..], &[0xee; 8], &[key.len() as u8], key].concat()
}

#[test]
fn v46_the_header_of_a_received_frame_has_its_hash_and_what_was_hashed() {
    let rig = rig();
    for (case, is_in_one) in Case::layouts().flat_map(|case| [(case, false), (case, true)]) {
        let mut sender = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case).features(features::HASH_REPORT));
        // Header and frame lie in one buffer; or the header in three, and a frame in several chains where they are mergeable.
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
        // What the guest sends has the longer header, too, and what stands there is nobody's business.
        sender.rx(0).fill(8, 2048);
        let (frame, ..) = datagram(&mut rng);
        guest.tx(0).send(&VnetHeader::default(), &[&frame]);
        assert_eq!(sender.rx(0).recv_within(PATIENCE).expect("a frame").frame, frame, "{case:?}");
    }
}

#[test]
fn what_no_adapter_can_spread_is_refused() {
    let rig = rig();
    let mut guest = rig.guest(0, &builder(&Case::rings().next().unwrap()));
    let key = [7; KEY_LEN];
    let wrong = [
        // A table of three, of more than there may be, and shorter than its mask says.
        config(ALL, 2, 0, &[0, 1, 2], PAIRS, &key),
        config(ALL, 255, 0, &[0; 256], PAIRS, &key),
        config(ALL, 127, 0, &[0; 8], 0, &[]),
        // Pairs that are not there.
        config(ALL, 1, 0, &[0, PAIRS], PAIRS, &key),
        config(ALL, 1, PAIRS, &[0, 1], PAIRS, &key),
        config(ALL, 1, 0, &[0, 1], PAIRS + 1, &key),
        config(ALL, 1, 0, &[0, 1], 0, &key),
        // A kind that is not known, and a key that is too long.
        config(1 << 6, 1, 0, &[0, 1], PAIRS, &key),
        config(ALL, 1, 0, &[0, 1], PAIRS, &[7; KEY_LEN + 1]),
    ];
    for fields in &wrong {
        assert_eq!(command(&mut guest, RSS_CONFIG, fields), ERR, "{fields:?}");
    }
    assert_eq!(command(&mut guest, RSS_CONFIG, &config(ALL, 127, 0, &[1; 128], 2, &key)), OK);
    wait_until("two pairs", || status(&rig, 0).queue_pairs == 2);
    // V62: at a reset it is forgotten.
    drop(guest);
    let _guest = rig.guest(0, &builder(&Case::rings().next().unwrap()));
    wait_until("none", || rig.ports[0].status().control.is_some_and(|control| !control.spreads_flows));
}

#[test]
fn v7_v8_a_driver_reads_what_it_may_ask_for_where_the_port_can_spread_flows() {
    let case = Case::rings().next().unwrap();
    let read = |rig: &Rig, builder: &GuestBuilder| {
        let mut guest = rig.guest(0, builder);
        (guest.negotiated().features & features::RSS != 0, guest.frontend().get_config(17, 7).unwrap())
    };
    assert_eq!(read(&rig(), &builder(&case)), (true, vec![40, 128, 0, 0x3f, 0, 0, 0]));
    // Each pair of a cable has a thread of its own, and a single pair nothing to choose from.
    let protocol = protocol::MQ | protocol::CONFIG;
    for (on_switch, pairs) in [(false, PAIRS), (true, 1)] {
        let control_queue = ControlQueue::Backend;
        let rig = Rig::with(&RigConfig { control_queue, on_switch, ..RigConfig::mtu(1500).queue_pairs(pairs) });
        let builder = case.guest().control_queue().protocol_features(protocol).features_if_offered(features::RSS);
        assert_eq!(read(&rig, &builder), (false, vec![0; 7]), "{pairs}");
    }
}
