//! How many frames a port may flood.

use std::time::Duration;

/// Frames are counted in parts, one per nanosecond and frame per second of the rate.
const PARTS_PER_FRAME: u64 = Duration::from_secs(1).as_nanos() as u64;

/// A limit of frames that go to every port. Defaults: [`FloodLimit::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLimit {
    /// Frames per second in the long run; a super-frame counts as many as it makes.
    pub frames_per_s: u32,
    /// Frames at once after a quiet time. A super-frame of more frames never passes.
    pub burst_frames: u32,
}

impl Default for FloodLimit {
    /// 10,000 frames per second, 1,024 at once: far above what address resolution and discovery need,
    /// and a small part of what one processor forwards.
    fn default() -> Self {
        Self { frames_per_s: 10_000, burst_frames: 1024 }
    }
}

/// A token bucket that starts full.
#[derive(Debug)]
pub(super) struct TokenBucket {
    frames_per_s: u64,
    parts_max: u64,
    parts: u64,
    filled_ns: u64,
}

impl TokenBucket {
    pub(super) fn new(limit: FloodLimit) -> Self {
        let parts_max = u64::from(limit.burst_frames) * PARTS_PER_FRAME;
        Self { frames_per_s: u64::from(limit.frames_per_s), parts_max, parts: parts_max, filled_ns: 0 }
    }

    /// Takes tokens for `frames` if there are enough. A clock that goes back adds none.
    pub(super) fn take(&mut self, frames: usize, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        self.parts = self.parts.saturating_add(elapsed_ns.saturating_mul(self.frames_per_s)).min(self.parts_max);
        let wanted = (frames as u64).saturating_mul(PARTS_PER_FRAME);
        let has_enough = wanted <= self.parts;
        if has_enough {
            self.parts -= wanted;
        }
        has_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = PARTS_PER_FRAME;

    #[test]
    fn a_burst_passes_at_once_and_the_rate_from_then_on() {
        let mut bucket = TokenBucket::new(FloodLimit { frames_per_s: 10, burst_frames: 3 });
        let passed = |bucket: &mut TokenBucket, now| (0..100).filter(|_| bucket.take(1, now)).count();
        assert_eq!(passed(&mut bucket, 0), 3);
        assert_eq!(passed(&mut bucket, SECOND_NS / 10 - 1), 0);
        assert_eq!(passed(&mut bucket, SECOND_NS / 10), 1);
        assert_eq!(passed(&mut bucket, SECOND_NS * 100), 3, "a quiet time saves up one burst, no more");
    }

    #[test]
    fn a_clock_that_jumps_neither_overflows_nor_gives_more_than_a_burst() {
        let mut bucket = TokenBucket::new(FloodLimit { frames_per_s: u32::MAX, burst_frames: u32::MAX });
        assert!(bucket.take(u32::MAX as usize, 5));
        assert!(!bucket.take(1, 0), "back");
        assert!(bucket.take(1, u64::MAX));
        assert!(!bucket.take(usize::MAX, u64::MAX));
    }
}
