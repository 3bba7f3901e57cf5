//! The budget, the memory and the result of a turn: the processing of one host's frames during a poll.

use crate::config::frame_len_max;

/// Alignment of consecutively written frames: a cache line.
pub(crate) const FRAME_ALIGN: usize = 64;
/// Length of a [`Scratch`], in bytes. Segments written together take little more memory than a first-level cache has,
/// and the longest frame of the largest MTU fits.
pub(crate) const SCRATCH_LEN: usize =
    (frame_len_max(crate::config::MTU_MAX) + FRAME_ALIGN).next_multiple_of(FRAME_ALIGN);

/// Memory for rewritten frames. All ports of a switch share one scratch.
pub(crate) type Scratch = Box<[u8]>;

/// Bytes charged for a lost frame: the shortest Ethernet frame. Without this charge, a flood of bad frames could
/// monopolise the thread.
const LOST_FRAME_BYTES: usize = 60;

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// True if at least one frame moved.
    pub moved: bool,
    /// True if more work is ready, or may be ready, without a wait.
    pub more: bool,
}

impl Progress {
    /// Merges the results of two polls.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { moved: self.moved || other.moved, more: self.more || other.more }
    }
}

/// The remaining budget of a turn.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
    /// Bytes by which the last frame of the turn exceeded the budget.
    pub(crate) debt_bytes: usize,
}

impl Budget {
    pub(crate) const UNLIMITED: Self = Self { frames: usize::MAX, bytes: usize::MAX, debt_bytes: 0 };

    pub(crate) fn new(frames: usize, bytes: usize) -> Self {
        Self { frames, bytes, debt_bytes: 0 }
    }

    pub(crate) fn is_left(&self) -> bool {
        self.frames > 0 && self.bytes > 0
    }

    /// Charges one frame of `len` bytes; a `len` of 0 stands for a lost frame.
    #[inline]
    pub(crate) fn spend_frame(&mut self, len: usize) {
        self.spend(1, len.max(LOST_FRAME_BYTES));
    }

    #[inline]
    pub(crate) fn spend(&mut self, frames: usize, bytes: usize) {
        self.frames = self.frames.saturating_sub(frames);
        self.debt_bytes += bytes.saturating_sub(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The memory, budget and time of a turn.
pub(crate) struct Work<'a> {
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) budget: &'a mut Budget,
    pub(crate) now_ns: u64,
}
