//! Segmentation reverts coalescing. The segmenter turns the coalescer's output into the received frames, in the order
//! of each flow, even if the wire changed frames.
//!
//! There is one exception: equal IPv4 IDs with DF increase after segmentation, because a vnet header has no field for
//! equal IDs. (RFC 6864 4.1: the ID of a datagram with DF set has no meaning.)

mod support;

use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, PACKET_LEN_MAX, RxCsum, Sink};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, RxMeta};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::packet::{Checksum, DESTINATION, DF, FIN, MF, PSH, Packet, pattern};
use support::pieces::{Piece, check_inverse};

/// Number of frame sequences in a test run.
const SEQUENCES: u32 = 1_500;
/// Number of frames in a sequence before changes by the wire.
const FRAMES: usize = 80;

/// Flags AE, CWR and ECE: AccECN's counter (RFC 9768 3.2.2).
const ACE: u16 = 0x1c0;

/// One endpoint of a TCP connection, or a sender of datagrams.
struct Sender {
    packet: Packet,
    size: usize,
    id_step: u16,
    /// Value of the ACE counter, and the average number of frames between two increments of the counter. `None` for a
    /// sender without AccECN.
    ace: Option<(u16, u16)>,
}

impl Sender {
    fn new(random: &mut ChaCha8Rng, flow: u16) -> Self {
        let mut packet = Packet { is_udp: random.random_bool(0.3), ..Packet::tcp(0) };
        packet.is_ipv6 = random.random_bool(0.4);
        packet.ports = (5000 + flow, 80);
        packet.seq = if random.random_bool(0.2) { u32::MAX - 2000 } else { random.random() };
        packet.id = if random.random_bool(0.2) { u16::MAX - 3 } else { random.random() };
        packet.fragment = if random.random() { DF } else { 0 };
        if random.random_bool(0.5) {
            packet.options = vec![1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
        }
        if random.random_bool(0.2) {
            packet.tags = vec![(0x8100, random.random()); random.random_range(1..3)];
        }
        if random.random_bool(0.2) {
            packet.extensions = vec![(DESTINATION, vec![0, 1, 4, 0, 0, 0, 0])];
        }
        let size = if random.random_bool(0.9) { random.random_range(1..1500) } else { random.random_range(1500..9000) };
        let ace = random.random_bool(0.4).then(|| (random.random_range(0..8), random.random_range(1..20)));
        Self { packet, size, id_step: [1, 1, 1, 0][random.random_range(0..4)], ace }
    }

    fn next(&mut self, random: &mut ChaCha8Rng) -> Packet {
        let len = if random.random_bool(0.93) { self.size } else { random.random_range(0..self.size * 2) };
        if let Some((ace, frames)) = &mut self.ace {
            if random.random_ratio(1, u32::from(*frames)) {
                *ace = (*ace + random.random_range(1..8)) % 8;
            }
            self.packet.flags = self.packet.flags & !ACE | *ace << ACE.trailing_zeros();
        }
        let mut packet = Packet { payload: pattern(self.packet.seq, len), ..self.packet.clone() };
        self.packet.seq = self.packet.seq.wrapping_add(len as u32);
        self.packet.id = self.packet.id.wrapping_add(self.id_step);
        if packet.payload_start() + len < 60 {
            packet.padding = 60 - packet.payload_start() - len;
        }
        if random.random_bool(0.05) {
            packet.flags |= [FIN, PSH, PSH, 1 << random.random_range(0..12)][random.random_range(0..4)];
        }
        packet
    }
}

/// Corrupts a frame on the wire: changes any field, or a checksum.
fn damage(random: &mut ChaCha8Rng, packet: &mut Packet) {
    match random.random_range(0..9) {
        0 => packet.checksum = Checksum::Wrong,
        1 => packet.ip_checksum_is_wrong = true,
        2 => packet.checksum = Checksum::Absent,
        3 => packet.fragment ^= MF,
        4 => packet.hops -= 1,
        5 => packet.padding = random.random_range(0..30),
        6 => packet.ip_options = vec![1; 4],
        7 => packet.urgent = random.random(),
        _ => packet.ack = packet.ack.wrapping_add(1),
    }
}

/// Interleaves some flows, with lost, duplicated, swapped and corrupted frames, and with flipped bits.
fn sequence(random: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let flows = random.random_range(1..6);
    let mut senders: Vec<_> = (0..flows).map(|flow| Sender::new(random, flow)).collect();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    while frames.len() < FRAMES {
        let sender = random.random_range(0..senders.len());
        for _ in 0..random.random_range(1..10) {
            let mut packet = senders[sender].next(random);
            let fate = random.random_range(0..50);
            if fate == 0 {
                continue; // The frame is lost.
            }
            if fate < 3 {
                damage(random, &mut packet);
            }
            let mut frame = packet.build();
            match fate {
                3 => frames.push(frame.clone()),
                4 if !frames.is_empty() => frames.insert(frames.len() - 1, frame.clone()),
                5 => {
                    let at = random.random_range(0..frame.len());
                    frame[at] ^= 1 << random.random_range(0..8);
                }
                _ => {}
            }
            frames.push(frame);
        }
    }
    frames
}

/// A receiver that accepts delivered frames and lends memory. The memory can run out at any time.
struct Receiver {
    pieces: Vec<Piece>,
    /// Frames in lent memory by slot, with room for the headers.
    lent: Vec<Option<Vec<u8>>>,
    /// Length of the frame in front of the last room, bytes.
    filled_len: usize,
    random: ChaCha8Rng,
    /// Probability of lending no memory, and of having no room in lent memory, 0 to 1.
    scarcity: f64,
}

impl Receiver {
    fn new(random: &mut ChaCha8Rng) -> Self {
        let scarcity = [0.0, 0.05, 1.0][random.random_range(0..3)];
        Self { pieces: Vec::new(), lent: vec![None; 8], filled_len: 0, random: ChaCha8Rng::from_rng(random), scarcity }
    }
}

impl Sink for Receiver {
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) {
        self.pieces.push(Piece::new(*meta, frame));
    }

    fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let head_len = head.len();
        let is_lent = !self.random.random_bool(self.scarcity);
        if is_lent {
            self.lent[slot] = Some(vec![0xee; head_len]);
        }
        is_lent
    }

    fn room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        let frame = self.lent[slot].as_mut().expect("a frame that was begun");
        self.filled_len = frame.len();
        if !self.random.random_bool(self.scarcity) {
            frame.resize(frame.len() + len * count, 0xee);
        }
        Room::from(&mut frame[self.filled_len..])
    }

    fn fill(&mut self, slot: usize, len: usize) {
        self.lent[slot].as_mut().expect("a frame that was begun").truncate(self.filled_len + len);
    }

    fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) {
        let mut frame = self.lent[slot].take().expect("a frame that was begun");
        frame[..head.len()].copy_from_slice(head);
        assert_eq!((frame.len(), usize::from(meta.header_len)), (len, head.len()));
        self.pieces.push(Piece::new(*meta, &frame));
    }
}

/// Pushes all frames, with pauses in which all or some aggregates are flushed.
fn coalesce(random: &mut ChaCha8Rng, frames: &[Vec<u8>]) -> Vec<Piece> {
    let config = CoalesceConfig {
        flows_max: random.random_range(1..8),
        packet_len_max: if random.random_bool(0.7) { PACKET_LEN_MAX } else { random.random_range(100..20_000) },
        hold_ns: random.random_range(0..60),
        rx_csum: if random.random() { RxCsum::DataValid } else { RxCsum::NeedsCsum },
        ..CoalesceConfig::default()
    };
    let mut coalescer = Coalescer::new(config);
    let mut out = Receiver::new(random);
    let enabled = if random.random() { Offloads::RX } else { Offloads::RX - Offloads::RSC_ACCECN };
    for (n, frame) in frames.iter().enumerate() {
        let mut frame = frame.clone();
        let frame = Frame::received(&mut frame);
        let (may_hold, held) = (coalescer.may_hold(&frame, enabled), coalescer.held());
        coalescer.push(frame, enabled, None, n as u64, &mut out);
        assert!(may_hold || coalescer.held() <= held, "a frame was held that may not be");
        match random.random_range(0..60) {
            0 => coalescer.flush(&mut out),
            1..10 => coalescer.flush_expired(n as u64, &mut out),
            _ => {}
        }
    }
    coalescer.flush(&mut out);
    assert_eq!(coalescer.held(), 0);
    out.pieces
}

/// Verifies the frame's checksums with a word-by-word computation.
fn is_right(frame: &[u8]) -> bool {
    let Ok(layout) = support::layout(frame) else { return false };
    let transport = &frame[layout.transport_start..layout.packet_end];
    let len = (transport.len() as u32).to_be_bytes();
    let addresses = support::addresses(frame);
    let pseudo = [&addresses[..], &len, &[0, layout.protocol]].concat();
    let header = &frame[layout.network_start..layout.transport_start];
    let is_ipv4 = addresses.len() == 8;
    let sum = support::packet::slow_sum;
    sum(&[&pseudo, transport]) == 0xffff && (!is_ipv4 || sum(&[header]) == 0xffff)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: SEQUENCES, ..ProptestConfig::default() })]

    #[test]
    fn segmenting_what_was_coalesced_gives_back_what_came_in(seed in any::<u64>()) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let frames = sequence(&mut random);
        let pieces = coalesce(&mut random, &frames);
        if let Err(why) = check_inverse(&frames, &pieces) {
            return Err(TestCaseError::fail(why));
        }
    }

    #[test]
    fn nothing_is_called_good_that_is_not(seed in any::<u64>()) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let frames = sequence(&mut random);
        for piece in coalesce(&mut random, &frames) {
            // A partial checksum means a verified frame, and the comparison above covers such frames.
            if piece.meta.checksum == ChecksumState::Good {
                prop_assert!(is_right(&piece.bytes), "{}", piece.describe());
            }
        }
    }
}

#[test]
fn most_frames_of_these_sequences_are_coalesced() {
    let (mut went_in, mut came_out) = (0, 0);
    for seed in 0..50 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let frames = sequence(&mut random);
        came_out += coalesce(&mut random, &frames).len();
        went_in += frames.len();
    }
    assert!(came_out * 2 < went_in, "{came_out} of {went_in} came out: the properties test little");
}
