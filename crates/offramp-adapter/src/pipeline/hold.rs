//! The frames that wait for delivery to a host. A frame waits for moderation if handing over interrupts the host, as
//! for a TAP. A frame also waits for the host's receive limit.
//!
//! On a cable, waiting frames stay in the cable's queue until the adapter fetches them. A switch has no cable, so
//! copies of the lent frames wait in a queue of the destination port, with super-frames unsegmented. One decision of
//! the moderator releases all waiting frames. The delivery of the released frames takes as many batches as needed.
//! Frames that arrive after a decision wait for the next decision.

use crate::moderation::{ModerationConfig, Moderator};
use crate::port::{Arrival, WirePort};
use crate::stats::Direction;
use offramp_offload::frame::{Frame, FrameBuffer};
use std::collections::VecDeque;

/// Maximum number of queued frames and super-frames, and maximum number of bytes in the queue: the capacity of a cable
/// without delay. When the queue reaches either maximum, its frames are handed over under any moderation policy, as far
/// as the receive limit permits.
const FRAMES_MAX: usize = 512;
const BYTES_MAX: usize = 1024 * 1024;

/// The waiting frames of one host.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    moderator: Moderator,
    /// Number of waiting frames that the moderator has recorded and not yet released. In the queue of the cable or of
    /// the switch port, these frames follow the released frames.
    noted: usize,
    /// Number of released frames. Released frames are the oldest waiting frames, and wait only for the receive limit.
    released: usize,
    /// True if the moderator knows for how many frames the wire has room. Without this number, the moderator cannot
    /// compute the time of the first wake-up.
    knows_room: bool,
    /// The waiting frames on a switch; empty on a cable.
    queue: VecDeque<FrameBuffer<Vec<u8>>>,
    queued_bytes: usize,
    free: Vec<FrameBuffer<Vec<u8>>>,
}

impl Hold {
    /// Changes the moderation, also for frames that already wait. Released frames stay released. Without moderation,
    /// all frames are released.
    pub(crate) fn set(&mut self, config: ModerationConfig, stats: &Direction) {
        self.moderator.set(config);
        if self.moderator.is_off() {
            self.moderator.seen();
            (self.noted, self.released) = (0, self.queue.len());
        }
        self.moderator.show(stats);
    }

    /// Records the number of bytes sent by the host.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }

    /// Begins a delivery of waiting frames. Returns the caller's processor time, read from `clock`, if the moderator
    /// measures the cost of this delivery.
    #[inline]
    pub(crate) fn begin(&mut self, clock: &impl Fn() -> u64) -> Option<u64> {
        (!self.moderator.is_off() && self.moderator.measures_next()).then(clock)
    }

    /// Ends a delivery of the oldest `frames` frames; `begun_ns` is the result of [`Hold::begin`].
    #[inline]
    pub(crate) fn end(&mut self, begun_ns: Option<u64>, frames: usize, stats: &Direction, clock: &impl Fn() -> u64) {
        self.left(frames);
        if self.moderator.is_off() || frames == 0 {
            return;
        }
        if let Some(begun_ns) = begun_ns {
            self.moderator.handled(frames as u32, clock().saturating_sub(begun_ns));
        }
        self.moderator.show(stats);
    }

    /// Records that the oldest `frames` frames no longer wait, because the frames were handed over or were lost on the
    /// wire.
    #[inline]
    pub(crate) fn left(&mut self, frames: usize) {
        if frames > 0 {
            let released = frames.min(self.released);
            self.released -= released;
            self.noted = self.noted.saturating_sub(frames - released);
        }
    }

    fn release_noted(&mut self, stats: &Direction, now_ns: u64) {
        if !self.moderator.is_off() {
            stats.interrupt_wait_ns.record(self.moderator.waited_ns(now_ns));
        }
        self.moderator.fired(now_ns);
        self.released = std::mem::take(&mut self.noted);
    }

    /// Returns the number of frames that can be fetched from the wire now.
    #[inline]
    pub(crate) fn open(&mut self, wire: &impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        if self.moderator.is_off() { usize::MAX } else { self.open_moderated(wire, stats, now_ns) }
    }

    fn open_moderated(&mut self, wire: &impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let Self { moderator, noted, knows_room, .. } = self;
        let known = *noted;
        let room = wire.arrivals(self.released + known, now_ns, |arrival| {
            *noted += 1;
            moderator.arrived(arrival.at_ns, arrival.len as u64);
        });
        if *noted > known || !*knows_room {
            moderator.ring_has(room);
            *knows_room = true;
        }
        if self.released == 0 && moderator.is_due(now_ns) {
            self.release_noted(stats, now_ns);
        }
        self.released
    }

    /// Returns the release time of the frames now on the wire if no further frame arrives.
    pub(crate) fn next_open_ns(&self, wire: &impl WirePort) -> Option<u64> {
        if self.moderator.is_off() || self.released > 0 {
            return wire.next_arrival_ns();
        }
        // Frames in flight can bring the release forward. Computing the time now saves a wake-up for each frame in
        // flight.
        let mut ahead = self.moderator.clone();
        let mut due_ns = ahead.next_due_ns();
        wire.arrivals(self.noted, u64::MAX, |Arrival { at_ns, len }| {
            if due_ns.is_none_or(|due_ns| at_ns < due_ns) {
                ahead.arrived(at_ns, len as u64);
                // A frame is not released before its arrival, even if the frame is the last frame allowed to wait.
                due_ns = ahead.next_due_ns().map(|due_ns| due_ns.max(at_ns));
            }
        });
        due_ns
    }

    /// Returns whether a new frame can be handed over at once, without overtaking a queued frame.
    #[inline]
    pub(crate) fn is_passed_by(&self) -> bool {
        self.moderator.is_off() && self.queue.is_empty()
    }

    /// Returns whether the queue has reached its maximum of frames or bytes.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= FRAMES_MAX || self.queued_bytes >= BYTES_MAX
    }

    /// Returns the number of bytes in the queue.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Returns the number of queued frames and super-frames.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Queues a copy of a frame until the frame is due.
    pub(crate) fn push(&mut self, frame: &Frame<'_>, now_ns: u64) {
        let mut copy = self.free.pop().unwrap_or_else(|| FrameBuffer::new(Vec::new()));
        copy.copy_from(frame);
        self.queued_bytes += frame.len();
        self.queue.push_back(copy);
        self.noted += 1;
        self.moderator.arrived(now_ns, frame.len() as u64);
        self.moderator.ring_has(FRAMES_MAX.saturating_sub(self.queue.len()) as u32);
    }

    /// Returns whether to hand over the queued frames now. With `is_forced`, the queued frames are due under any
    /// policy.
    pub(crate) fn is_due(&self, now_ns: u64, is_forced: bool) -> bool {
        let is_released = is_forced || self.released > 0 || self.moderator.is_off();
        !self.queue.is_empty() && (is_released || self.is_full() || self.moderator.is_due(now_ns))
    }

    /// Returns the time at which the queued frames are due; 0 if released frames wait only for the receive limit.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        match self.queue.len() {
            0 => None,
            _ if self.released > 0 || self.moderator.is_off() => Some(0),
            _ => self.moderator.next_due_ns(),
        }
    }

    /// Hands queued frames to `deliver` until `deliver` returns `false`. The frame refused by `deliver` stays in the
    /// queue.
    pub(crate) fn release(
        &mut self,
        stats: &Direction,
        now_ns: u64,
        clock: &impl Fn() -> u64,
        mut deliver: impl FnMut(Frame<'_>) -> bool,
    ) {
        let begun_ns = self.begin(clock);
        if self.released == 0 {
            self.release_noted(stats, now_ns);
        }
        let mut handed = 0;
        while handed < self.released
            && let Some(buffer) = self.queue.front_mut()
        {
            let frame = buffer.frame();
            let len = frame.bytes().len();
            if !deliver(frame) {
                break;
            }
            handed += 1;
            self.queued_bytes -= len;
            self.free.extend(self.queue.pop_front());
        }
        self.end(begun_ns, handed, stats, clock);
    }
}
