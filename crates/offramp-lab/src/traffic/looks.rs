//! What the controlling thread looks at again and again while the window is open: the congestion windows of the streams
//! that send, and whether anything moves.

use std::time::{Duration, Instant};

/// From one look to the next. A look costs one call of the kernel for each stream.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Congestion windows kept: ten minutes of one stream; later ones are not looked at.
const WINDOWS_MAX: usize = 60_000;

/// The looks at one end.
pub(super) struct Looks {
    due: Instant,
    /// What was carried at the last look at which there was more of it, and when that was.
    progress: u64,
    moved: Instant,
    stall: Duration,
    windows: Vec<u32>,
}

impl Looks {
    /// Begins with the window, when `progress` bytes had been carried.
    pub(super) fn new(now: Instant, progress: u64) -> Self {
        Self { due: now + LOOK_INTERVAL, progress, moved: now, stall: Duration::ZERO, windows: Vec::new() }
    }

    /// When to look next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Takes a look: bytes carried so far, and the congestion windows, in segments.
    pub(super) fn take(&mut self, now: Instant, progress: u64, windows: impl Iterator<Item = u32>) {
        self.due = now + LOOK_INTERVAL;
        self.stall = self.stall.max(now.saturating_duration_since(self.moved));
        if progress != self.progress {
            (self.progress, self.moved) = (progress, now);
        }
        let room = WINDOWS_MAX.saturating_sub(self.windows.len());
        self.windows.extend(windows.take(room));
    }

    /// Longest time between two looks at which more had been carried, the ends of the window among them.
    pub(super) fn stall(&self) -> Duration {
        self.stall
    }

    /// The median of the congestion windows; `None` of none.
    pub(super) fn window_median(&self) -> Option<f64> {
        let mut sorted = self.windows.clone();
        sorted.sort_unstable();
        let half = sorted.len() / 2;
        let upper = f64::from(*sorted.get(half)?);
        Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(f64::from(sorted[half - 1]), upper) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_without_a_byte_is_told_to_the_interval_of_the_looks() {
        let start = Instant::now();
        let mut looks = Looks::new(start, 100);
        let at = |msecs| start + Duration::from_millis(msecs);
        for (msecs, progress) in [(10, 200), (20, 300), (30, 300), (70, 300), (80, 301), (90, 301)] {
            looks.take(at(msecs), progress, std::iter::empty());
        }
        assert_eq!(looks.stall(), Duration::from_millis(60));
        assert_eq!(looks.due(), at(90) + LOOK_INTERVAL);
    }

    #[test]
    fn the_congestion_window_is_the_median_of_the_looks() {
        let start = Instant::now();
        let mut looks = Looks::new(start, 0);
        assert_eq!(looks.window_median(), None);
        for window in [10, 2, 3, 40] {
            looks.take(start, 0, [window].into_iter());
        }
        assert_eq!(looks.window_median(), Some(6.5));
    }
}
