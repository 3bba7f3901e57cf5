//! A small packet memory in the adapter.
//!
//! A network card of the 1990s had a packet memory of 8 or 16 KiB for both directions together. An arriving frame must
//! fit next to the frames not yet read out by the host. If the memory has too little room, a frame is lost. A
//! [`PacketMemory`] models such a small memory. It lies between a wire and the wire's reader. Frames enter the memory
//! at the time of their arrival on the wire, and leave the memory when the reader takes them.
//!
//! Arrival time and departure time are times of the wire, not of the thread. If a thread polls late, it can pass to
//! [`WirePort::take`] the earlier time at which the frame was due. [`Slow`](crate::fault::Slow) does so. A late thread
//! then loses the same frames as a punctual thread.
//!
//! A [`Memory`] implements only the rules for holding and losing frames, without the frames' bytes.

mod config;
mod room;

pub use config::{
    CARD_BYTES, FRAME_OVERHEAD_LEN_DP8390, MemoryConfig, OverflowPolicy, PAGE_LEN, PAGE_LEN_DP8390, RECEIVE_BYTES,
    RECEIVE_PAGES, RECEIVE_RING_ENTRIES, RECOVER_NS, RECOVER_NS_DP8390, ReceiveMemory, TRANSMIT_BUFFER_PAGES_DP8390,
    TRANSMIT_BUFFERS, TRANSMIT_BUFFERS_DP8390,
};
pub use room::{Fate, Memory, MemoryCounts};

use crate::ReadOut;
use crate::common::copied;
use offramp_adapter::pass_on;
use offramp_adapter::port::{Arrival, Line, Loan, WirePort};
use offramp_adapter::stats::{Direction, Loss};
use std::collections::VecDeque;

/// A wire with a packet memory.
///
/// Frames in a direction without a limit pass through unchanged. If the receive direction is limited, each received
/// frame is copied once more, into a reused buffer of the memory.
#[derive(Debug)]
pub struct PacketMemory<W> {
    /// The wrapped wire.
    pub line: W,
    memory: Memory,
    /// The bytes of the frames in the memory.
    frames: VecDeque<Vec<u8>>,
    /// Empty buffers for later frames.
    free: Vec<Vec<u8>>,
    /// The last frame taken by the reader, lent to the reader until its next call.
    lent: Vec<u8>,
    /// Time up to which all arrivals are in the memory or lost, in nanoseconds.
    now_ns: u64,
    /// Departure time of each frame waiting to be sent, in nanoseconds.
    sending: VecDeque<u64>,
    /// The counts already added to the port's counters.
    counted: MemoryCounts,
}

impl<W: Line> PacketMemory<W> {
    /// Puts a packet memory between an adapter and `line`.
    pub fn new(line: W, config: &MemoryConfig) -> Self {
        Self {
            line,
            memory: Memory::new(config),
            frames: VecDeque::new(),
            free: Vec::new(),
            lent: Vec::new(),
            now_ns: 0,
            sending: VecDeque::new(),
            counted: MemoryCounts::default(),
        }
    }

    /// Returns the counts since the memory was created.
    pub fn counts(&self) -> MemoryCounts {
        self.memory.counts()
    }

    fn limits_receive(&self) -> bool {
        self.memory.config().limits_receive()
    }

    /// Takes all frames from the wire that arrive by `now_ns`.
    fn fill(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.line.next_arrival_ns().filter(|&at_ns| at_ns <= now_ns) {
            // If `take` returns no frame, the wire has lost the frame, or delivers it later.
            let Some(frame) = self.line.take(at_ns) else {
                if self.line.next_arrival_ns() == Some(at_ns) {
                    break;
                }
                continue;
            };
            let first_unread = self.memory.first_unread();
            if let Fate::Held { overrun } = self.memory.arrive(Arrival { at_ns, len: frame.len() }) {
                for _ in 0..overrun {
                    self.free.extend(self.frames.remove(first_unread));
                }
                self.frames.push_back(copied(&mut self.free, frame));
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Adds to `stats` the counts since the last call. Returns the number of frames displaced from the memory.
    fn count(&mut self, stats: &Direction) -> usize {
        let counts = self.memory.counts();
        let before = std::mem::replace(&mut self.counted, counts);
        if counts == before {
            return 0;
        }
        let overrun = counts.overrun - before.overrun;
        stats.lose_on_line(Loss::Drop, counts.dropped - before.dropped);
        stats.lose_on_line(Loss::Overrun, overrun);
        stats.memory_bytes_max.set(counts.bytes_max as u64);
        stats.burst_frames_max.set(counts.burst_frames_max);
        overrun as usize
    }

    /// Returns the number of free transmit buffers; `usize::MAX` without a limit.
    fn free_buffers(&mut self, now_ns: u64) -> usize {
        let Some(buffers) = self.memory.config().transmit_buffers else { return usize::MAX };
        while self.sending.front().is_some_and(|&sent_ns| sent_ns <= now_ns) {
            self.sending.pop_front();
        }
        buffers.saturating_sub(self.sending.len())
    }
}

impl<W: Line> WirePort for PacketMemory<W> {
    fn room(&mut self, now_ns: u64) -> usize {
        let free = self.free_buffers(now_ns);
        if free == 0 { 0 } else { self.line.room(now_ns).min(free) }
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        // The wire lends one buffer at a time, since each buffer becomes free at a different time.
        let count = if self.memory.config().transmit_buffers.is_some() { count.min(1) } else { count };
        self.line.lend(len, count)
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        self.line.put(len, count, now_ns);
        if self.memory.config().transmit_buffers.is_some() && count > 0 {
            self.sending.push_back(self.line.sent_ns());
        }
    }

    pass_on!(line: flush);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        if !self.limits_receive() {
            return self.line.take(now_ns);
        }
        self.fill(now_ns);
        self.memory.first().filter(|first| first.at_ns <= now_ns)?;
        self.memory.end();
        let frame = self.frames.pop_front()?;
        self.free.push(std::mem::replace(&mut self.lent, frame));
        Some(&mut self.lent)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.memory.first().map(|first| first.at_ns).or_else(|| self.line.next_arrival_ns())
    }

    /// Predicts the arrivals after the last [`WirePort::advance`] or [`WirePort::take`], on the assumption that the
    /// memory has room for these frames.
    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        if !self.limits_receive() {
            return self.line.arrivals(skip, until_ns, note);
        }
        self.memory.held().skip(skip).take_while(|held| held.at_ns <= until_ns).for_each(&mut note);
        if until_ns > self.now_ns {
            self.line.arrivals(skip.saturating_sub(self.frames.len()), until_ns, note);
        }
        u32::try_from(self.memory.room_frames()).unwrap_or(u32::MAX)
    }

    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        if !self.limits_receive() {
            return self.line.advance(now_ns, stats);
        }
        self.fill(now_ns);
        // Ignore the wire's own result: the frames reported by `arrivals` are now in the memory, and the wire lost only
        // other frames.
        self.line.advance(now_ns, stats);
        self.count(stats)
    }
}

impl<W: Line> Line for PacketMemory<W> {
    pass_on!(line: register unregister sent_ns);

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        let line = self.line.next_room_ns(now_ns);
        let Some(buffers) = self.memory.config().transmit_buffers else { return line };
        // When the frame at index `behind` of `sending` departs, a transmit buffer becomes free for the next frame.
        let first_free = self.sending.len().checked_sub(buffers).and_then(|behind| self.sending.get(behind));
        first_free.copied().filter(|&at| at > now_ns).into_iter().chain(line).max()
    }

    fn is_idle(&self) -> bool {
        self.memory.is_empty() && self.line.is_idle()
    }
}

impl<W: ReadOut> ReadOut for PacketMemory<W> {
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        if !self.limits_receive() {
            return self.line.begin(at_ns);
        }
        self.fill(at_ns);
        self.memory.first().filter(|first| first.at_ns <= at_ns)?;
        self.memory.begin()
    }
}
