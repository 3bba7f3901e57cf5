//! Random interleavings of flows, with loss, swaps, duplicates, wrong checksums, fragments, padding and bytes changed
//! anywhere. Every frame must be delivered once, unchanged, in the order of its flow.

use super::*;
use crate::checksum::verify;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// The key of a group of frames that must be delivered in the order of arrival.
type Group = (u8, Vec<u8>, Vec<u8>);

fn group(frame: &[u8]) -> Group {
    match FrameLayout::parse(frame, LengthFrom::Ip) {
        Err(_) => (0, Vec::new(), Vec::new()),
        Ok(layout) if layout.transport == Transport::Opaque => {
            (1, layout.addresses(frame).to_vec(), vec![layout.protocol, u8::from(layout.fragment)])
        }
        Ok(layout) => {
            let ports = &frame[layout.transport_start..layout.transport_start + 4];
            (2 + u8::from(layout.transport == Transport::Udp), layout.addresses(frame).to_vec(), ports.to_vec())
        }
    }
}

/// The sender of one flow.
struct Sender {
    spec: Spec,
    size: usize,
    counts_ids: bool,
}

impl Sender {
    fn new(random: &mut ChaCha8Rng, n: u16) -> Self {
        let mut spec = tcp(random.random(), 0);
        spec.source_port = 5000 + n;
        spec.source = random.random_range(1..4);
        spec.is_ipv6 = random.random_bool(0.4);
        spec.is_udp = random.random_bool(0.3);
        spec.id = random.random();
        if random.random_bool(0.5) {
            spec.tcp_options = TIMESTAMPS.to_vec();
        }
        if random.random_bool(0.2) {
            spec.tags = vec![0x81, 0, 0, 7];
        }
        if random.random_bool(0.2) {
            spec.destination_options = Some([1, 4, 0, 0, 0, 0]);
        }
        Self { spec, size: random.random_range(1..1500), counts_ids: random.random_bool(0.7) }
    }

    fn next(&mut self, random: &mut ChaCha8Rng) -> Vec<u8> {
        let mut spec = self.spec.clone();
        let len = if random.random_bool(0.95) { self.size } else { random.random_range(0..1500) };
        spec.payload = (0..len).map(|_| random.random()).collect();
        self.spec.seq = spec.seq.wrapping_add(len as u32);
        self.spec.id = spec.id.wrapping_add(u16::from(self.counts_ids));
        if random.random_bool(0.08) {
            disturb(random, &mut spec);
        }
        spec.build()
    }
}

/// Makes one random change to the frame of `spec`: a change that a faulty wire or a peer can cause.
fn disturb(random: &mut ChaCha8Rng, spec: &mut Spec) {
    match random.random_range(0..16) {
        0 => spec.checksum = Checksum::Wrong,
        1 => spec.ip_checksum_is_bad = true,
        2 => spec.checksum = Checksum::Absent,
        3 => spec.padding = random.random_range(1..20),
        4 => spec.fragment_field = random.random(),
        5 => spec.flags = random.random(),
        6 => spec.flags |= PSH,
        7 => spec.flags |= FIN,
        8 => spec.ack += 1,
        9 => spec.ttl -= 1,
        10 => spec.tos ^= 3,
        11 => spec.id = random.random(),
        12 => spec.ip_options = vec![1; 4],
        13 => spec.payload.clear(),
        14 => spec.source_mac = 9,
        _ => spec.seq = spec.seq.wrapping_sub(1),
    }
}

/// Drops, duplicates, swaps and corrupts frames, as a faulty wire can.
fn line(random: &mut ChaCha8Rng, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    for mut frame in frames {
        match random.random_range(0..100) {
            0 => continue,
            1 => out.push(frame.clone()),
            2 => {
                let at = random.random_range(0..=out.len());
                out.insert(at, frame);
                continue;
            }
            3 | 4 => {
                let at = random.random_range(0..frame.len().min(100));
                frame[at] ^= 1 << random.random_range(0..8);
            }
            5 => frame.truncate(random.random_range(0..frame.len())),
            6 => frame.iter_mut().for_each(|byte| *byte = random.random()),
            _ => {}
        }
        out.push(frame);
    }
    out
}

pub(super) fn frames_of(random: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let flows = random.random_range(1..8);
    let mut senders: Vec<_> = (0..flows).map(|n| Sender::new(random, n)).collect();
    let mut frames = Vec::new();
    while frames.len() < 200 {
        let sender = random.random_range(0..senders.len());
        for _ in 0..random.random_range(1..12) {
            frames.push(senders[sender].next(random));
        }
    }
    line(random, frames)
}

/// Returns random limits.
pub(super) fn random_config(random: &mut ChaCha8Rng) -> CoalesceConfig {
    CoalesceConfig {
        flows_max: random.random_range(1..10),
        packet_len_max: if random.random_bool(0.5) { PACKET_LEN_MAX } else { random.random_range(100..20_000) },
        segments_max: if random.random_bool(0.8) { u16::MAX } else { random.random_range(1..10) },
        udp_segments_max: 64,
        hold_ns: random.random_range(0..200),
        rx_csum: RxCsum::DataValid,
    }
}

/// Pushes all frames, with flushes, timeouts and changes of the offloads between the frames. Checks that no frame is
/// lost.
fn run(random: &mut ChaCha8Rng, frames: &[Vec<u8>]) -> Vec<Delivered> {
    let config = random_config(random);
    let mut coalescer = Coalescer::new(config);
    let mut delivered: Vec<Delivered> = Vec::new();
    let mut enabled = ALL;
    for (n, frame) in frames.iter().enumerate() {
        match random.random_range(0..300) {
            0 => enabled = Offloads::from_bits_truncate(random.random()) | Offloads::RX_CHECKSUM,
            1 | 2 => enabled = ALL,
            3 => flush(&mut coalescer, &mut delivered),
            4..15 => {
                coalescer.flush_expired(n as u64, &mut |meta: &RxMeta, bytes: &[u8]| {
                    delivered.push((*meta, bytes.to_vec()));
                });
            }
            _ => {}
        }
        push_one(&mut coalescer, frame, enabled, n as u64, &mut delivered);
        let handed_out: usize = delivered.iter().map(|(meta, _)| usize::from(meta.segments)).sum();
        assert_eq!(handed_out + coalescer.held(), n + 1, "frames in = frames out + held");
    }
    flush(&mut coalescer, &mut delivered);
    delivered
}

/// Finds the pushed frame for each delivered frame, in the order of its group, and compares the two frames.
fn matched(delivered: &[Delivered], frames: &[Vec<u8>]) -> Vec<usize> {
    let mut left: BTreeMap<Group, std::vec::IntoIter<usize>> = BTreeMap::new();
    let mut by_group: BTreeMap<Group, Vec<usize>> = BTreeMap::new();
    for (n, frame) in frames.iter().enumerate() {
        by_group.entry(group(frame)).or_default().push(n);
    }
    left.extend(by_group.into_iter().map(|(group, indices)| (group, indices.into_iter())));
    let mut order = Vec::new();
    for one in delivered {
        let start = order.len();
        for cut in segments_of(one) {
            let n = left.get_mut(&group(&cut)).and_then(Iterator::next).expect("a frame that never went in");
            order.push(n);
            assert_same_frame(&cut, &frames[n], &frames[order[start]]);
            assert_verdict(&one.0, &frames[n]);
        }
    }
    assert_eq!(order.len(), frames.len());
    order
}

fn assert_verdict(meta: &RxMeta, frame: &[u8]) {
    let verdict =
        FrameLayout::parse(frame, LengthFrom::Ip).map_or(ChecksumState::Unknown, |layout| verify(frame, &layout));
    match meta.checksum {
        ChecksumState::Partial(_) => assert_eq!(verdict, ChecksumState::Good, "only verified frames join"),
        delivered => assert_eq!(delivered, verdict),
    }
}

/// Checks that no frame overtakes a malformed frame, or a fragment with the same source and destination address.
fn assert_barriers(order: &[usize], frames: &[Vec<u8>]) {
    let groups: Vec<_> = frames.iter().map(|frame| group(frame)).collect();
    for (position, n) in order.iter().enumerate() {
        let (class, addresses, detail) = &groups[*n];
        let is_fragment = *class == 1 && detail[1] == 1;
        if *class != 0 && !is_fragment {
            continue;
        }
        for (other_position, other) in order.iter().enumerate() {
            let (other_class, other_addresses, _) = &groups[*other];
            let is_held_kind = *class == 0 || (*other_class >= 2 && other_addresses == addresses);
            if is_held_kind {
                assert_eq!(other.cmp(n), other_position.cmp(&position), "a frame passed a fragment or a malformed one");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_comes_out_once_and_in_the_order_of_its_flow(seed in any::<u64>()) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let frames = frames_of(&mut random);
        let delivered = run(&mut random, &frames);
        let order = matched(&delivered, &frames);
        assert_barriers(&order, &frames);
    }

    #[test]
    fn bytes_changed_anywhere_never_panic(seed in any::<u64>()) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut frames = frames_of(&mut random);
        for frame in frames.iter_mut().filter(|frame| !frame.is_empty()) {
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..frame.len().min(80));
                frame[at] = random.random();
            }
        }
        let delivered = run(&mut random, &frames);
        matched(&delivered, &frames);
    }
}

#[test]
fn the_random_streams_are_coalesced() {
    let (mut went_in, mut came_out) = (0, 0);
    for seed in 0..50 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let frames = frames_of(&mut random);
        came_out += run(&mut random, &frames).len();
        went_in += frames.len();
    }
    assert!(came_out * 3 < went_in * 2, "{came_out} of {went_in} came out: the properties test little");
}
