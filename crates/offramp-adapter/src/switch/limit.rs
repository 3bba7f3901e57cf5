//! The flood limit of a port.

use crate::limit::TokenBucket;

/// A limit on flooded frames. [`FloodLimit::default`] explains the default values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLimit {
    /// Mean frames per second; each segment of a super-frame counts.
    pub frames_per_s: u32,
    /// Frames allowed at once after an idle time. A super-frame with more segments than this number never passes.
    pub burst_frames: u32,
}

impl Default for FloodLimit {
    /// Returns a limit of 10,000 frames per second, with 1,024 frames at once. Both values are far above the needs of
    /// address resolution and discovery, and a small part of one processor's forwarding rate.
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
