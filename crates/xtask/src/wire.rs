//! Unlimited lines: one swallows frames, one makes them, one sends them back.

use crate::frames;
use offramp_adapter::config::frame_len_max;
use offramp_adapter::port::{Arrival, Loan, WirePort};
use offramp_offload::vlan::{CUSTOMER_TAG, TAG_AT};
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Frames start at multiples of a cache line.
const FRAME_ALIGN: usize = 64;
/// Frames on a line at a time: those of a 64 KiB super-frame at MSS 1448, and some.
const ROOM: usize = 64;
/// Different buffers of the generator, sent in turn: as many as a burst of testpmd.
const GENERATED_BUFFERS: usize = 32;
/// Bytes of a generated frame written anew each time, as testpmd writes its headers.
const GENERATED_HEAD_LEN: usize = frames::UDP_HEADERS_LEN;
/// Frames on their way back through the echo: so few that they stay in the near caches, as the buffers of DPDK's own
/// echo do. The guest has to wait while they are all in use.
const ECHO_SLOTS: usize = 128;

/// Swallows every frame, into the same buffers again and again.
#[derive(Debug)]
pub struct Discard {
    bytes: Box<[u8]>,
    frame_len_max: usize,
    flushes: u64,
}

impl Discard {
    /// Creates a line for frames with up to `mtu` bytes of IP.
    pub fn new(mtu: usize) -> Self {
        let frame_len_max = frame_len_max(mtu);
        let bytes = vec![0; ROOM * frame_len_max.next_multiple_of(FRAME_ALIGN)].into_boxed_slice();
        Self { bytes, frame_len_max, flushes: 0 }
    }
}

impl WirePort for Discard {
    fn room(&mut self, _now_ns: u64) -> usize {
        ROOM
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let count = count.min(ROOM);
        let stride = len.next_multiple_of(FRAME_ALIGN);
        let end = count.checked_sub(1)? * stride + len;
        (len <= self.frame_len_max).then(|| Loan { bytes: &mut self.bytes[..end], stride })
    }

    fn put(&mut self, _len: usize, _count: usize, _now_ns: u64) {}

    fn flush(&mut self) {
        self.flushes += 1;
    }

    fn take(&mut self, _now_ns: u64) -> Option<&mut [u8]> {
        None
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    fn arrivals(&self, _skip: usize, _until_ns: u64, _note: impl FnMut(Arrival)) -> u32 {
        u32::MAX
    }
}

/// Makes UDP frames without end, and swallows the frames of the other direction.
#[derive(Debug)]
pub struct Generate {
    swallow: Discard,
    template: Vec<u8>,
    buffers: Vec<Vec<u8>>,
    next: usize,
}

impl Generate {
    /// Creates a line with frames of `len` bytes (without FCS) always ready, with a VLAN's tag or none.
    pub fn new(mtu: usize, len: usize, vid: Option<u16>) -> Self {
        let mut template = frames::udp(len.max(frames::UDP_HEADERS_LEN), 1024, &mut SmallRng::seed_from_u64(0));
        if let Some(vid) = vid {
            template.splice(TAG_AT..TAG_AT, [CUSTOMER_TAG, vid.to_be_bytes()].concat());
        }
        Self { swallow: Discard::new(mtu), buffers: vec![template.clone(); GENERATED_BUFFERS], template, next: 0 }
    }
}

impl WirePort for Generate {
    fn room(&mut self, now_ns: u64) -> usize {
        self.swallow.room(now_ns)
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        self.swallow.lend(len, count)
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        self.swallow.put(len, count, now_ns);
    }

    fn flush(&mut self) {
        self.swallow.flush();
    }

    fn take(&mut self, _now_ns: u64) -> Option<&mut [u8]> {
        let frame = &mut self.buffers[self.next];
        self.next = (self.next + 1) % GENERATED_BUFFERS;
        frame[..GENERATED_HEAD_LEN].copy_from_slice(&self.template[..GENERATED_HEAD_LEN]);
        Some(frame)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        Some(0)
    }

    fn arrivals(&self, skip: usize, _until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        // Frames without end; one batch at a time is enough.
        let new = GENERATED_BUFFERS.saturating_sub(skip);
        (0..new).for_each(|_| note(Arrival { at_ns: 0, len: self.template.len() }));
        u32::MAX
    }
}

/// Sends every frame back, in order; when it is full, the host has to wait.
#[derive(Debug)]
pub struct Echo {
    bytes: Box<[u8]>,
    lens: Box<[usize]>,
    slot_len: usize,
    frame_len_max: usize,
    /// Frames put so far.
    head: usize,
    /// Frames on their way back so far: later ones were not flushed yet.
    flushed: usize,
    /// Frames taken so far; the last one is still lent.
    tail: usize,
}

impl Echo {
    /// Creates a line for frames with up to `mtu` bytes of IP.
    pub fn new(mtu: usize) -> Self {
        let frame_len_max = frame_len_max(mtu);
        let slot_len = frame_len_max.next_multiple_of(FRAME_ALIGN);
        Self {
            bytes: vec![0; ECHO_SLOTS * slot_len].into_boxed_slice(),
            lens: vec![0; ECHO_SLOTS].into_boxed_slice(),
            slot_len,
            frame_len_max,
            head: 0,
            flushed: 0,
            tail: 0,
        }
    }

    /// Returns the number of free slots, without the slot lent by `take`.
    fn free(&self) -> usize {
        ECHO_SLOTS - 1 - (self.head - self.tail)
    }
}

impl WirePort for Echo {
    fn room(&mut self, _now_ns: u64) -> usize {
        self.free()
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let first = self.head % ECHO_SLOTS;
        let count = count.min(self.free()).min(ECHO_SLOTS - first);
        let start = first * self.slot_len;
        let end = start + count.checked_sub(1)? * self.slot_len + len;
        (len <= self.frame_len_max).then(|| Loan { bytes: &mut self.bytes[start..end], stride: self.slot_len })
    }

    fn put(&mut self, len: usize, count: usize, _now_ns: u64) {
        for _ in 0..count {
            self.lens[self.head % ECHO_SLOTS] = len;
            self.head += 1;
        }
    }

    fn flush(&mut self) {
        self.flushed = self.head;
    }

    fn take(&mut self, _now_ns: u64) -> Option<&mut [u8]> {
        if self.tail == self.flushed {
            return None;
        }
        let slot = self.tail % ECHO_SLOTS;
        self.tail += 1;
        let start = slot * self.slot_len;
        Some(&mut self.bytes[start..start + self.lens[slot]])
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        (self.tail != self.flushed).then_some(0)
    }

    fn arrivals(&self, skip: usize, _until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        (self.tail..self.flushed).skip(skip).for_each(|frame| {
            note(Arrival { at_ns: 0, len: self.lens[frame % ECHO_SLOTS] });
        });
        self.free() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts frames like the transmit pipeline; returns the number taken by the line.
    fn put(wire: &mut impl WirePort, frames: &[Vec<u8>]) -> usize {
        let mut sent = 0;
        for frame in frames {
            if wire.room(0) == 0 {
                break;
            }
            let Some(loan) = wire.lend(frame.len(), 1) else { break };
            loan.bytes[..frame.len()].copy_from_slice(frame);
            wire.put(frame.len(), 1, 0);
            sent += 1;
        }
        wire.flush();
        sent
    }

    #[test]
    fn the_echo_gives_back_every_frame_in_order_round_after_round() {
        let mut echo = Echo::new(1500);
        for round in 0..5 {
            let frames = frames::mixed(round, false);
            let frames: Vec<_> = frames.into_iter().filter(|frame| frame.len() <= 1514).collect();
            for burst in frames.chunks(ECHO_SLOTS / 2) {
                assert_eq!(put(&mut echo, burst), burst.len());
                for frame in burst {
                    assert_eq!(echo.take(0).as_deref(), Some(frame.as_slice()));
                }
                assert!(echo.take(0).is_none());
            }
        }
    }

    #[test]
    fn a_full_echo_holds_the_host_back_and_never_writes_over_the_frame_it_lends() {
        let mut echo = Echo::new(1500);
        let frame = |n: usize| [&n.to_be_bytes()[..], &[0; 56]].concat();
        let sent = put(&mut echo, &(0..2 * ECHO_SLOTS).map(frame).collect::<Vec<_>>());
        assert_eq!(sent, ECHO_SLOTS - 1);
        assert_eq!(echo.take(0).as_deref(), Some(frame(0).as_slice()));
        assert_eq!(put(&mut echo, &[frame(9), frame(9)]), 1);
        assert_eq!(echo.bytes[..64], frame(0));
    }

    #[test]
    fn a_run_of_lent_buffers_ends_where_the_memory_ends() {
        const STEP: usize = ECHO_SLOTS / 4;
        let mut echo = Echo::new(1500);
        while echo.lend(60, STEP).is_some_and(|loan| loan.bytes.len() >= 60) && echo.head < ECHO_SLOTS - STEP {
            echo.put(60, STEP, 0);
        }
        echo.flush();
        while echo.take(0).is_some() {}
        let loan = echo.lend(60, 10 * ROOM).unwrap();
        assert!(loan.bytes.len() <= ROOM * loan.stride);
    }

    #[test]
    fn a_frame_that_is_too_long_for_the_line_is_lent_no_buffer() {
        assert!(Echo::new(1500).lend(9000, 1).is_none());
        assert!(Discard::new(1500).lend(9000, 1).is_none());
        assert!(Discard::new(9000).lend(9014, ROOM).is_some());
    }

    #[test]
    fn the_generator_makes_the_same_frame_again_whatever_was_done_to_it() {
        let mut generator = Generate::new(1500, 64, None);
        let first = generator.take(0).unwrap().to_vec();
        for _ in 0..3 * GENERATED_BUFFERS {
            let frame = generator.take(0).unwrap();
            assert_eq!(frame, first);
            frame[..14].fill(0xff);
        }
        assert_eq!(first.len(), 64);
    }
}
