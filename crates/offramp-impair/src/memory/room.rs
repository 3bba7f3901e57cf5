//! The rules by which a packet memory holds and loses frames, without the frames' bytes.

use super::config::{MemoryConfig, OverflowPolicy};
use offramp_adapter::port::Arrival;
use std::collections::VecDeque;

/// Length of a full Ethernet frame without FCS: the assumed length of the next frame until a longer frame arrives.
const FULL_FRAME_LEN: usize = 1514;

/// The outcome of a frame's arrival at the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The frame is in the memory, as the newest frame.
    Held {
        /// Number of frames displaced by the new frame: the displaced frames are the oldest frames, except the frame
        /// being read out.
        overrun: usize,
    },
    /// The frame is lost.
    Dropped,
}

/// The counts of a memory since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Number of frames lost at their arrival because the memory had no room.
    pub dropped: u64,
    /// Number of frames displaced by newer frames.
    pub overrun: u64,
    /// Maximum number of bytes in use at one time, in whole pages if the memory has pages.
    pub bytes_max: usize,
    /// Maximum number of frames accepted in a row. A row ends when a frame is lost, or when the memory becomes empty.
    pub burst_frames_max: u64,
}

/// A frame in the memory.
#[derive(Clone, Copy, Debug)]
struct Held {
    arrival: Arrival,
    units: usize,
}

/// The state of a receive memory: its frames, in the order of their arrival.
///
/// Arrivals and reads must be recorded in order of time. If a frame arrives at the time when a read ends, the arrival
/// must be recorded first, while the memory still holds the read frame.
#[derive(Clone, Debug)]
pub struct Memory {
    config: MemoryConfig,
    held: VecDeque<Held>,
    units: usize,
    is_read: bool,
    /// Time before which arriving frames are lost, in nanoseconds.
    stopped_until_ns: u64,
    frame_len_max: usize,
    burst_frames: u64,
    counts: MemoryCounts,
}

impl Memory {
    /// Creates an empty memory. A configuration refused by [`MemoryConfig::check`] is harmless, but the memory may have
    /// no room for any frame.
    pub fn new(config: &MemoryConfig) -> Self {
        Self {
            config: *config,
            held: VecDeque::new(),
            units: 0,
            is_read: false,
            stopped_until_ns: 0,
            frame_len_max: FULL_FRAME_LEN,
            burst_frames: 0,
            counts: MemoryCounts::default(),
        }
    }

    /// Returns the configuration of the memory.
    pub fn config(&self) -> &MemoryConfig {
        &self.config
    }

    /// Records the arrival of a frame.
    pub fn arrive(&mut self, arrival: Arrival) -> Fate {
        self.frame_len_max = self.frame_len_max.max(arrival.len);
        let units = self.config.units(arrival.len);
        if arrival.at_ns < self.stopped_until_ns {
            return self.drop_one();
        }
        if self.has_room(units) {
            self.hold(Held { arrival, units });
            return Fate::Held { overrun: 0 };
        }
        match self.config.policy {
            OverflowPolicy::Drop => self.drop_one(),
            OverflowPolicy::StopAndRecover { recover_ns } => {
                self.stopped_until_ns = arrival.at_ns.saturating_add(recover_ns);
                self.drop_one()
            }
            OverflowPolicy::Overrun if !self.can_make_room(units) => self.drop_one(),
            OverflowPolicy::Overrun => {
                let overrun = self.make_room(units);
                self.hold(Held { arrival, units });
                Fate::Held { overrun }
            }
        }
    }

    /// Returns the oldest frame in the memory.
    pub fn first(&self) -> Option<Arrival> {
        self.held.front().map(|held| held.arrival)
    }

    /// Returns the frames in the memory, the oldest frame first.
    pub fn held(&self) -> impl Iterator<Item = Arrival> {
        self.held.iter().map(|held| held.arrival)
    }

    /// Begins to read out the oldest frame, which can no longer be displaced.
    pub fn begin(&mut self) -> Option<Arrival> {
        self.is_read = !self.held.is_empty();
        self.first()
    }

    /// Ends the read of the oldest frame and frees its room.
    pub fn end(&mut self) -> Option<Arrival> {
        self.is_read = false;
        let held = self.held.pop_front()?;
        self.units -= held.units;
        Some(held.arrival)
    }

    /// Returns whether the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the index of the oldest frame that can be displaced.
    pub fn first_unread(&self) -> usize {
        usize::from(self.is_read)
    }

    /// Returns the number of further frames that certainly fit into the memory. Each frame is assumed to have the
    /// length of a full frame, or of the longest frame so far if that length is greater.
    pub fn room_frames(&self) -> usize {
        let free = self.config.capacity() - self.units;
        let fit = free.checked_div(self.config.units(self.frame_len_max)).unwrap_or(usize::MAX);
        fit.min(self.ring_entries() - self.held.len())
    }

    /// Returns the counts since the memory was created.
    pub fn counts(&self) -> MemoryCounts {
        self.counts
    }

    fn ring_entries(&self) -> usize {
        self.config.receive_ring_entries.unwrap_or(usize::MAX)
    }

    fn has_room(&self, units: usize) -> bool {
        units <= self.config.capacity() - self.units && self.held.len() < self.ring_entries()
    }

    /// Returns whether a frame would fit next to the frame being read out, if all other frames were displaced.
    fn can_make_room(&self, units: usize) -> bool {
        let kept = self.held.front().filter(|_| self.is_read).map_or(0, |held| held.units);
        units <= self.config.capacity() - kept && self.first_unread() < self.ring_entries()
    }

    /// Displaces frames until the memory has room for `units` more units, starting with the oldest displaceable frame.
    /// Returns the number of displaced frames.
    fn make_room(&mut self, units: usize) -> usize {
        let mut overrun = 0;
        while !self.has_room(units)
            && let Some(lost) = self.held.remove(self.first_unread())
        {
            self.units -= lost.units;
            overrun += 1;
        }
        self.burst_frames = 0;
        self.counts.overrun += overrun as u64;
        overrun
    }

    fn hold(&mut self, held: Held) {
        if self.held.is_empty() {
            self.burst_frames = 0;
        }
        self.burst_frames += 1;
        self.held.push_back(held);
        self.units += held.units;
        let counts = &mut self.counts;
        counts.burst_frames_max = counts.burst_frames_max.max(self.burst_frames);
        counts.bytes_max = counts.bytes_max.max(self.units * self.config.unit_len());
    }

    fn drop_one(&mut self) -> Fate {
        self.burst_frames = 0;
        self.counts.dropped += 1;
        Fate::Dropped
    }
}
