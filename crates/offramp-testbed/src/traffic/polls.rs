//! During the measured window, the controlling thread polls the congestion windows of the sending streams and the
//! progress of the test.

use std::time::{Duration, Instant};

/// Interval of the polls. A poll costs one system call per stream.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of stored congestion windows: ten minutes of one stream. Later values are not stored.
const WINDOWS_MAX: usize = 60_000;

/// Results of the polls at one end.
pub(super) struct Polls {
    due: Instant,
    /// Number of bytes carried at the last poll that found progress.
    progress: u64,
    /// Time of the last poll that found progress.
    moved: Instant,
    stall: Duration,
    windows: Vec<u32>,
}

impl Polls {
    /// Starts the polls at the start of the measured window. `progress` is the number of bytes carried so far.
    pub(super) fn new(now: Instant, progress: u64) -> Self {
        Self { due: now + POLL_INTERVAL, progress, moved: now, stall: Duration::ZERO, windows: Vec::new() }
    }

    /// Returns the time of the next poll.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Records a poll: the bytes carried so far, and the sending streams' congestion windows in segments.
    pub(super) fn take(&mut self, now: Instant, progress: u64, windows: impl Iterator<Item = u32>) {
        self.due = now + POLL_INTERVAL;
        self.stall = self.stall.max(now.saturating_duration_since(self.moved));
        if progress != self.progress {
            (self.progress, self.moved) = (progress, now);
        }
        let room = WINDOWS_MAX.saturating_sub(self.windows.len());
        self.windows.extend(windows.take(room));
    }

    /// Returns the longest time between two polls with progress. The start and the end of the measured window count as
    /// progress.
    pub(super) fn stall(&self) -> Duration {
        self.stall
    }

    /// Returns the median of the congestion windows in segments, or `None` if no congestion window was recorded.
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
    fn the_longest_time_without_a_byte_is_exact_to_one_poll_interval() {
        let start = Instant::now();
        let mut polls = Polls::new(start, 100);
        let at = |msecs| start + Duration::from_millis(msecs);
        for (msecs, progress) in [(10, 200), (20, 300), (30, 300), (70, 300), (80, 301), (90, 301)] {
            polls.take(at(msecs), progress, std::iter::empty());
        }
        assert_eq!(polls.stall(), Duration::from_millis(60));
        assert_eq!(polls.due(), at(90) + POLL_INTERVAL);
    }

    #[test]
    fn the_congestion_window_is_the_median_of_the_polls() {
        let start = Instant::now();
        let mut polls = Polls::new(start, 0);
        assert_eq!(polls.window_median(), None);
        for window in [10, 2, 3, 40] {
            polls.take(start, 0, [window].into_iter());
        }
        assert_eq!(polls.window_median(), Some(6.5));
    }
}
