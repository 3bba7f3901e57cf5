//! Tests that a run of frames has the same result as its frames pushed one by one.

use super::properties::{frames_of, random_config};
use super::*;
use crate::checksum::{Room, RoomPiece, with_each_kernel};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// Number of random lines of 200 frames. Each line is coalesced by each kernel, and in lent memory.
const LINES: u64 = 1_700;

/// A receiver that lends memory to some flows.
#[derive(Clone, Debug, Default)]
struct Receiver {
    lends: bool,
    /// Maximum length of a frame in lent memory, in bytes.
    room_len: usize,
    /// Number of rooms until the receiver waits for its memory; `None` if it never waits.
    rooms_left: Option<usize>,
    /// Lends room for one payload at a time.
    is_scarce: bool,
    open: BTreeMap<usize, Vec<u8>>,
    /// The pieces of the last room, and the length of the frame before them, bytes.
    room: Vec<RoomPiece>,
    filled_len: usize,
    /// Number of pieces so far, from which the length of the next piece follows.
    pieces: usize,
    delivered: Vec<Delivered>,
}

impl Sink for Receiver {
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) {
        self.delivered.push((*meta, frame.to_vec()));
    }

    fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let is_lent = self.lends && slot.is_multiple_of(2);
        if is_lent {
            self.open.insert(slot, head.to_vec());
        }
        is_lent
    }

    fn room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        let frame = self.open.get_mut(&slot).unwrap();
        self.filled_len = frame.len();
        // The room is sometimes longer than requested, and often only long enough for one payload.
        let count = if self.is_scarce { 1 } else { count + self.pieces % 3 };
        frame.resize((frame.len() + len * count).min(self.room_len.max(frame.len())), 0xee);
        self.room.clear();
        let mut left = &mut frame[self.filled_len..];
        while !left.is_empty() {
            let (piece, rest) = left.split_at_mut((1 + self.pieces * 7919 % (3 * len)).min(left.len()));
            self.pieces += 1;
            // SAFETY: the caller writes to the bytes before the next access to the frame.
            self.room.push(unsafe { RoomPiece::new(piece.as_mut_ptr(), piece.len()) });
            left = rest;
        }
        Room::new(&self.room)
    }

    fn fill(&mut self, slot: usize, len: usize) {
        self.rooms_left = self.rooms_left.map(|rooms| rooms.saturating_sub(1));
        self.open.get_mut(&slot).unwrap().truncate(self.filled_len + len);
    }

    fn wants_commit(&self) -> bool {
        self.rooms_left == Some(0)
    }

    fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) {
        let mut frame = self.open.remove(&slot).unwrap();
        assert_eq!(frame.len(), len);
        frame[..head.len()].copy_from_slice(head);
        self.delivered.push((*meta, frame));
    }
}

/// A change between two runs.
enum Between {
    Nothing,
    Flush,
    Wait(u64),
    Switch(Offloads),
}

impl Between {
    fn random(random: &mut ChaCha8Rng) -> Self {
        match random.random_range(0..20) {
            0 => Self::Flush,
            1..4 => Self::Wait(random.random_range(0..100)),
            4 => Self::Switch(Offloads::RX_CHECKSUM),
            5 => Self::Switch(Offloads::RX_CHECKSUM | Offloads::RSC4),
            6..8 => Self::Switch(Offloads::RX),
            8 => Self::Switch(ALL),
            _ => Self::Nothing,
        }
    }
}

/// Coalesces the frames in runs, or one by one. Returns the delivered frames, and the number of frames coalesced
/// without a parse.
fn coalesce_in(
    config: CoalesceConfig,
    mut receiver: Receiver,
    runs: &[(&[Vec<u8>], Between)],
    is_one_by_one: bool,
) -> (Vec<Delivered>, usize) {
    let mut coalescer = Coalescer::new(config);
    let (mut enabled, mut now_ns, mut followed) = (Offloads::RX, 0, 0);
    for (frames, between) in runs {
        match between {
            Between::Nothing => {}
            Between::Flush => coalescer.flush(&mut receiver),
            Between::Wait(ns) => {
                now_ns += ns;
                coalescer.flush_expired(now_ns, &mut receiver);
            }
            Between::Switch(offloads) => enabled = *offloads,
        }
        let mut copies = frames.to_vec();
        if is_one_by_one {
            for frame in &mut copies {
                coalescer.push(Frame::received(frame), enabled, None, now_ns, &mut receiver);
            }
        } else {
            followed += push_run(&mut coalescer, &mut copies, enabled, now_ns, &mut receiver);
        }
        assert!(copies == *frames, "a frame was changed");
    }
    coalescer.flush(&mut receiver);
    (receiver.delivered, followed)
}

#[test]
fn a_run_gives_what_its_frames_give_one_by_one() {
    let (mut frames_len, mut followed) = (0, 0);
    for seed in 0..LINES {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (frames, config) = (frames_of(&mut random), random_config(&mut random));
        let mut runs = Vec::new();
        let mut left = &frames[..];
        while !left.is_empty() {
            let (run, rest) = left.split_at(random.random_range(1..=left.len().min(64)));
            runs.push((run, Between::random(&mut random)));
            left = rest;
        }
        let keeps = Receiver::default();
        let (room_len, is_scarce) = (random.random_range(2_000..70_000), random.random_bool(0.3));
        let lends = Receiver { lends: true, room_len, is_scarce, ..Receiver::default() };
        for receiver in [keeps, lends] {
            let (one_by_one, _) = coalesce_in(config, receiver.clone(), &runs, true);
            with_each_kernel(|kernel| {
                let (in_runs, count) = coalesce_in(config, receiver.clone(), &runs, false);
                assert!(in_runs == one_by_one, "seed {seed}, {kernel}: {in_runs:?}\nis not\n{one_by_one:?}");
                frames_len += frames.len();
                followed += count;
            });
        }
    }
    // With fewer frames coalesced without a parse, the test would mostly compare the path with a parse with itself.
    assert!(followed > frames_len / 10, "only {followed} of {frames_len} frames were coalesced without a parse");
}

fn frames_of_flow(port: u16) -> Vec<Vec<u8>> {
    with_all(tcp_run(&[500; 20]), |_, spec| spec.source_port = port).iter().map(Spec::build).collect()
}

#[test]
fn a_flow_that_follows_another_is_guessed_from_the_last_time() {
    let (first, second) = (frames_of_flow(1), frames_of_flow(2));
    let mut frames: Vec<_> = first.into_iter().zip(second).flat_map(|(a, b)| [a, b]).collect();
    let (mut coalescer, mut receiver) = (Coalescer::new(CoalesceConfig::default()), Receiver::default());
    let followed = push_run(&mut coalescer, &mut frames, ALL, 0, &mut receiver);
    coalescer.flush(&mut receiver);
    assert_eq!(receiver.delivered.iter().map(payload_len).collect::<Vec<_>>(), [10_000, 10_000]);
    assert!(followed >= 2 * 18, "{followed}");
}

#[test]
fn a_run_ends_where_the_receiver_waits_for_its_memory() {
    let mut frames = frames_of_flow(1);
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut receiver = Receiver { lends: true, room_len: 70_000, ..Receiver::default() };
    push_run(&mut coalescer, &mut frames[..2], ALL, 0, &mut receiver);
    receiver.rooms_left = Some(0);
    let rest = frames[2..].iter_mut().map(Vec::as_mut_slice);
    let followed = coalescer.follow(rest, ALL, &mut receiver);
    assert_eq!((followed.count, followed.other.is_some(), followed.rest.count()), (0, true, 17));
}

#[test]
fn a_receiver_that_lends_room_for_one_payload_at_a_time_gets_a_whole_run() {
    let mut frames = with_all(tcp_run(&[500; 60]), |_, _| {}).iter().map(Spec::build).collect::<Vec<_>>();
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut receiver = Receiver { lends: true, room_len: 70_000, is_scarce: true, ..Receiver::default() };
    let followed = push_run(&mut coalescer, &mut frames, ALL, 0, &mut receiver);
    coalescer.flush(&mut receiver);
    assert_eq!(receiver.delivered.iter().map(payload_len).collect::<Vec<_>>(), [30_000]);
    assert!(followed > 50, "{followed}");
}

#[test]
fn a_run_ends_after_the_room_in_which_the_receiver_begins_to_wait_for_its_memory() {
    let mut frames = frames_of_flow(1);
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut receiver = Receiver { lends: true, room_len: 70_000, ..Receiver::default() };
    push_run(&mut coalescer, &mut frames[..2], ALL, 0, &mut receiver);
    (receiver.rooms_left, receiver.is_scarce) = (Some(1), true);
    let rest = frames[2..].iter_mut().map(Vec::as_mut_slice);
    let followed = coalescer.follow(rest, ALL, &mut receiver);
    assert_eq!((followed.count, followed.other.is_some(), followed.rest.count()), (1, true, 16));
}
