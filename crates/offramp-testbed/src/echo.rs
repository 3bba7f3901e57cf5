//! A wire that returns every frame to the host that sent the frame.

use offramp_adapter::config::frame_len_max;
use offramp_adapter::port::{Arrival, Loan, WirePort};

/// Alignment of frames in bytes, a multiple of a cache line.
const FRAME_ALIGN: usize = 64;
/// Number of slots for frames to return. The number is small, so that the slots stay in the near caches, as the buffers
/// of an echo by DPDK do. The guest waits while all slots are in use.
const ECHO_SLOTS: usize = 128;

/// A wire port that returns every frame to the host, in order. While all slots are in use, the host waits.
#[derive(Debug)]
pub struct Echo {
    bytes: Box<[u8]>,
    lens: Box<[usize]>,
    slot_len: usize,
    frame_len_max: usize,
    /// Number of frames stored in slots so far.
    head: usize,
    /// Number of frames flushed so far; only flushed frames can be taken.
    flushed: usize,
    /// Number of frames taken so far; the last frame taken is still lent to the caller of `take`.
    tail: usize,
}

impl Echo {
    /// Creates a wire for frames with up to `mtu` bytes of IP.
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

    /// Returns the number of free slots. The slot lent by `take` is not free.
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
    use crate::frames;

    /// Puts frames as the transmit pipeline does. Returns the number of frames accepted by the wire.
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
        let loan = echo.lend(60, 640).unwrap();
        assert!(loan.bytes.len() <= 64 * loan.stride);
    }

    #[test]
    fn a_frame_that_is_too_long_for_the_echo_is_lent_no_buffer() {
        assert!(Echo::new(1500).lend(9000, 1).is_none());
    }
}
