//! The adapter's own packet memory, where it has little.
//!
//! A card of the 1990s had 8 or 16 KiB for both directions. What the host has not read out when the next frame
//! comes must fit beside it, or one of the two is lost. [`PacketMemory`] puts such a memory between a line and
//! whoever takes frames from it: frames come into it at the moments at which the line brings them, and leave it
//! at the moments for which they are taken. Both are times of the line, not of the thread: a thread that is late
//! and then takes each frame for the moment at which it was due (as [`Slow`](crate::fault::Slow) does) loses what a
//! punctual one would lose.
//!
//! The rules alone, without the bytes, are a [`Memory`].

mod config;
mod room;

pub use config::{
    CARD_BYTES, FRAME_OVERHEAD_LEN_DP8390, MemoryConfig, MemoryConfigError, OverflowPolicy, PAGE_LEN, PAGE_LEN_DP8390,
    RECEIVE_BYTES, RECEIVE_PAGES, RECEIVE_RING_ENTRIES, RECOVER_NS, RECOVER_NS_DP8390, ReceiveMemory,
    TRANSMIT_BUFFER_PAGES_DP8390, TRANSMIT_BUFFERS, TRANSMIT_BUFFERS_DP8390,
};
pub use room::{Fate, Memory, MemoryCounts};

use offramp_adapter::port::{Arrival, Line, Loan, WirePort};
use offramp_adapter::stats::{Direction, Loss};
use std::collections::VecDeque;
use std::task::Waker;

/// A line behind a packet memory.
///
/// Each direction without a limit is passed through as it is. In a limited one a received frame is copied once
/// more, into the memory; what was allocated for that is used again.
#[derive(Debug)]
pub struct PacketMemory<W> {
    line: W,
    memory: Memory,
    /// The bytes of what is held.
    frames: VecDeque<Vec<u8>>,
    /// Buffers of frames that are gone.
    free: Vec<Vec<u8>>,
    /// The frame last taken.
    lent: Vec<u8>,
    /// All that arrived by then is held or lost.
    now_ns: u64,
    /// When each frame that is held to be sent will have left.
    sending: VecDeque<u64>,
    /// Of the counts, what was told.
    told: MemoryCounts,
}

impl<W: Line> PacketMemory<W> {
    /// Puts a memory before a line.
    pub fn new(line: W, config: &MemoryConfig) -> Self {
        Self {
            line,
            memory: Memory::new(config),
            frames: VecDeque::new(),
            free: Vec::new(),
            lent: Vec::new(),
            now_ns: 0,
            sending: VecDeque::new(),
            told: MemoryCounts::default(),
        }
    }

    /// The line.
    pub fn line(&self) -> &W {
        &self.line
    }

    /// The line, to change it between polls.
    pub fn line_mut(&mut self) -> &mut W {
        &mut self.line
    }

    /// What was counted since the memory was made.
    pub fn counts(&self) -> MemoryCounts {
        self.memory.counts()
    }

    fn limits_receive(&self) -> bool {
        self.memory.config().limits_receive()
    }

    /// Takes from the line all that arrives by `now_ns`.
    fn fill(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.line.next_arrival_ns().filter(|&at_ns| at_ns <= now_ns) {
            // Nothing there after all: it was lost on the line, or the line takes its time.
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
                let mut held = self.free.pop().unwrap_or_default();
                held.clear();
                held.extend_from_slice(frame);
                self.frames.push_back(held);
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Counts what was not counted yet; returns the frames that were held and are lost.
    fn tell(&mut self, stats: &Direction) -> usize {
        let counts = self.memory.counts();
        let told = std::mem::replace(&mut self.told, counts);
        if counts == told {
            return 0;
        }
        let overrun = counts.overrun - told.overrun;
        stats.lose_on_line(Loss::Drop, counts.dropped - told.dropped);
        stats.lose_on_line(Loss::Overrun, overrun);
        stats.memory_bytes_max.set(counts.bytes_max as u64);
        stats.burst_frames_max.set(counts.burst_frames_max);
        overrun as usize
    }

    /// Transmit buffers that are free.
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
        // One by one: each has a time of its own at which its buffer is free again.
        let count = if self.memory.config().transmit_buffers.is_some() { count.min(1) } else { count };
        self.line.lend(len, count)
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        self.line.put(len, count, now_ns);
        if self.memory.config().transmit_buffers.is_some() && count > 0 {
            self.sending.push_back(self.line.sent_ns());
        }
    }

    fn flush(&mut self) {
        self.line.flush();
    }

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

    /// What is behind the time of the last [`WirePort::advance`] or [`WirePort::take`] is named as if it found room.
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
        // What is gone from the line had not been named: what was named is held here.
        self.line.advance(now_ns, stats);
        self.tell(stats)
    }
}

impl<W: Line> Line for PacketMemory<W> {
    fn register(&self, waker: &Waker) {
        self.line.register(waker);
    }

    fn unregister(&self) {
        self.line.unregister();
    }

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        let line = self.line.next_room_ns(now_ns);
        let Some(buffers) = self.memory.config().transmit_buffers else { return line };
        // The buffer whose frame leaves makes room for the next one.
        let first_free = self.sending.len().checked_sub(buffers).and_then(|behind| self.sending.get(behind));
        first_free.copied().filter(|&at| at > now_ns).into_iter().chain(line).max()
    }

    fn sent_ns(&self) -> u64 {
        self.line.sent_ns()
    }

    fn is_idle(&self) -> bool {
        self.memory.is_empty() && self.line.is_idle()
    }

    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        if !self.limits_receive() {
            return self.line.begin(at_ns);
        }
        self.fill(at_ns);
        self.memory.first().filter(|first| first.at_ns <= at_ns)?;
        self.memory.begin()
    }
}
