//! The queue of a switch's port: frames wait in it for moderation, where handing over is the interrupt as for a TAP, and
//! for the port's limit.
//!
//! On a cable they wait on the wire. A switch has no wire, so they wait here, as their senders lent them.

use crate::moderation::{ModerationConfig, Moderator};
use crate::stats::Direction;
use offramp_offload::frame::{Frame, FrameBuffer};
use std::collections::VecDeque;

/// Most waiting frames and super-frames, and their bytes: as many as a cable without delay holds. Above this, waiting
/// frames are handed over under any policy, as far as the limit allows.
const FRAMES_MAX: usize = 512;
const BYTES_MAX: usize = 1024 * 1024;

/// The waiting frames of one host.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    moderator: Moderator,
    frames: VecDeque<FrameBuffer<Vec<u8>>>,
    /// The oldest frames, with only the limit to wait for.
    released: usize,
    free: Vec<FrameBuffer<Vec<u8>>>,
    bytes: usize,
}

impl Backlog {
    /// Changes when what waits is handed over.
    pub(crate) fn set(&mut self, config: ModerationConfig, stats: &Direction) {
        self.moderator.set(config);
        self.moderator.show(stats);
    }

    /// Returns whether frames are handed over at once, and overtake none here.
    #[inline]
    pub(crate) fn is_passed_by(&self) -> bool {
        self.moderator.is_off() && self.frames.is_empty()
    }

    /// Returns whether no more should wait.
    pub(crate) fn is_full(&self) -> bool {
        self.frames.len() >= FRAMES_MAX || self.bytes >= BYTES_MAX
    }

    /// Returns the bytes waiting.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of waiting frames and super-frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Queues a copy of a frame until it is due.
    pub(crate) fn push(&mut self, frame: &Frame<'_>, now_ns: u64) {
        let mut copy = self.free.pop().unwrap_or_else(|| FrameBuffer::new(Vec::new()));
        copy.copy_from(frame);
        self.bytes += frame.bytes().len();
        self.frames.push_back(copy);
        self.moderator.arrived(now_ns, frame.bytes().len() as u64);
        self.moderator.ring_has(FRAMES_MAX.saturating_sub(self.frames.len()) as u32);
    }

    /// Returns whether to hand over the waiting frames now; `is_forced`: under any policy.
    pub(crate) fn is_due(&self, now_ns: u64, is_forced: bool) -> bool {
        let is_released = is_forced || self.released > 0 || self.moderator.is_off();
        !self.frames.is_empty() && (is_released || self.is_full() || self.moderator.is_due(now_ns))
    }

    /// Returns when the waiting frames are due; 0 if they wait for the limit alone.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        match self.frames.len() {
            0 => None,
            _ if self.released > 0 || self.moderator.is_off() => Some(0),
            _ => self.moderator.next_due_ns(),
        }
    }

    /// Hands over waiting frames to `deliver`, until it returns `false`: the frame stays then. `clock` returns the
    /// caller's processor time, nanoseconds.
    pub(crate) fn release(
        &mut self,
        stats: &Direction,
        now_ns: u64,
        clock: &impl Fn() -> u64,
        mut deliver: impl FnMut(Frame<'_>) -> bool,
    ) {
        let begun_ns = (!self.moderator.is_off() && self.moderator.measures_next()).then(clock);
        if self.released == 0 {
            if !self.moderator.is_off() {
                stats.interrupt_wait_ns.record(self.moderator.waited_ns(now_ns));
            }
            self.moderator.fired(now_ns);
            self.released = self.frames.len();
        }
        let before = self.released;
        while self.released > 0 {
            let Some(buffer) = self.frames.front_mut() else { break };
            let frame = buffer.frame();
            let len = frame.bytes().len();
            if !deliver(frame) {
                break;
            }
            self.released -= 1;
            self.bytes -= len;
            self.free.extend(self.frames.pop_front());
        }
        let handed = before - self.released;
        if let Some(begun_ns) = begun_ns.filter(|_| handed > 0) {
            self.moderator.handled(handed as u32, clock().saturating_sub(begun_ns));
        }
        self.moderator.show(stats);
    }

    /// Records how many bytes the host sent.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }
}
