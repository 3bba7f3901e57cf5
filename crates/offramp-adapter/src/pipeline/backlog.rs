//! Moderation on a switch for a host that is interrupted by handing over, as a TAP.
//!
//! On a cable its frames wait on the wire. A switch has no wire, so they wait here, as their senders lent them.

use crate::moderation::{ModerationConfig, Moderator};
use crate::stats::Direction;
use offramp_offload::frame::{Frame, FrameBuffer};
use std::collections::VecDeque;

/// Frames and super-frames that wait at most, and their bytes: as many as a cable without delay holds. What waits is
/// handed over when there are more, whatever the policy.
const FRAMES_MAX: usize = 512;
const BYTES_MAX: usize = 1024 * 1024;

/// The frames that wait for one host.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    moderator: Moderator,
    frames: VecDeque<FrameBuffer<Vec<u8>>>,
    free: Vec<FrameBuffer<Vec<u8>>>,
    bytes: usize,
}

impl Backlog {
    /// Changes when what waits is handed over.
    pub(crate) fn set(&mut self, config: ModerationConfig, stats: &Direction) {
        self.moderator.set(config);
        self.moderator.show(stats);
    }

    /// Whether frames are handed over at once.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.moderator.is_off()
    }

    /// Frames and super-frames that wait.
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

    /// Whether what waits is to be handed over now; `is_forced`: whatever the policy says.
    pub(crate) fn is_due(&self, now_ns: u64, is_forced: bool) -> bool {
        let is_full = self.frames.len() >= FRAMES_MAX || self.bytes >= BYTES_MAX;
        !self.frames.is_empty() && (is_forced || self.is_off() || is_full || self.moderator.is_due(now_ns))
    }

    /// When what waits is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        if self.frames.is_empty() { None } else { self.moderator.next_due_ns() }
    }

    /// Hands over all that waits to `deliver`. `clock` is the processor's time that the caller has had, nanoseconds.
    pub(crate) fn release(
        &mut self,
        stats: &Direction,
        now_ns: u64,
        clock: &impl Fn() -> u64,
        mut deliver: impl FnMut(Frame<'_>),
    ) {
        let begun_ns = (!self.is_off() && self.moderator.measures_next()).then(clock);
        self.moderator.fired(now_ns);
        let frames = self.frames.len();
        while let Some(mut buffer) = self.frames.pop_front() {
            deliver(buffer.frame());
            self.free.push(buffer);
        }
        self.bytes = 0;
        if let Some(begun_ns) = begun_ns {
            self.moderator.handled(frames as u32, clock().saturating_sub(begun_ns));
        }
        self.moderator.show(stats);
    }

    /// Records how many bytes the host sent.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }
}
