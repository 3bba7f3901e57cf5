//! The flood limit of a port.

use crate::limit::TokenBucket;

/// A limit of flooded frames. Defaults: [`FloodLimit::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLimit {
    /// Frames per second in the long run; each segment of a super-frame counts.
    pub frames_per_s: u32,
    /// Frames at once after a quiet time. A super-frame of more frames never passes.
    pub burst_frames: u32,
}

impl Default for FloodLimit {
    /// 10,000 frames per second, 1,024 at once: far above the needs of address resolution and discovery, and a small
    /// part of one processor's forwarding rate.
    fn default() -> Self {
        Self { frames_per_s: 10_000, burst_frames: 1024 }
    }
}

impl FloodLimit {
    /// Creates the bucket of a port.
    pub(super) fn bucket(self) -> TokenBucket {
        TokenBucket::new(self.frames_per_s.into(), self.burst_frames.into())
    }
}
