//! Counters at one moment, and interim results between two moments.

use std::time::Instant;

use super::report::{Interval, rate_bps};

/// Maximum number of interim results stored per direction. Later results are reported but not stored.
pub(super) const INTERVALS_MAX: usize = 10_000;

/// The task of a data thread, at the client or at the server of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Sends bulk data or requests.
    Sending,
    /// Receives bulk data or answers requests.
    Receiving,
    /// Makes or answers requests during bulk data.
    Exchanging,
}

/// The counters of one role at one moment, summed over the role's threads.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) bytes: u64,
    pub(super) units: u64,
    pub(super) retransmits: u64,
    pub(super) segments_sent: u64,
    pub(super) segments_received: u64,
    pub(super) segments_out_of_order: u64,
    pub(super) dsacks: u64,
    pub(super) reorderings: u64,
    pub(super) cwnd_segments: u32,
}

/// The counters of all roles at one moment.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) sending: Mark,
    pub(super) receiving: Mark,
    pub(super) exchanging: Mark,
}

impl Moment {
    /// Returns the counters of one role.
    pub(super) fn of(&self, role: Role) -> Mark {
        match role {
            Role::Sending => self.sending,
            Role::Receiving => self.receiving,
            Role::Exchanging => self.exchanging,
        }
    }
}

/// The mean of integers; 0 without any integer.
#[derive(Default)]
pub(super) struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    /// Adds one value.
    pub(super) fn add(&mut self, value: u32) {
        self.sum += u64::from(value);
        self.count += 1;
    }

    /// Returns the mean of the values added so far.
    pub(super) fn get(&self) -> u32 {
        self.sum.checked_div(self.count).unwrap_or(0) as u32
    }
}

/// Appends an interval to the list, unless the list already has [`INTERVALS_MAX`] intervals.
pub(super) fn keep(intervals: &mut Vec<Interval>, interval: Option<Interval>) {
    if intervals.len() < INTERVALS_MAX {
        intervals.extend(interval);
    }
}

/// Adds `rest`, an interval too short to be reported separately, to the last interval. The intervals in the list
/// therefore add up to the window.
pub(super) fn merge_last(intervals: &mut Vec<Interval>, rest: Option<Interval>) {
    let Some(rest) = rest else { return };
    let Some(last) = intervals.last_mut().filter(|last| last.end_seconds >= rest.start_seconds) else {
        return keep(intervals, Some(rest));
    };
    last.end_seconds = rest.end_seconds;
    last.bytes += rest.bytes;
    last.units += rest.units;
    last.throughput_bps = rate_bps(last.bytes, last.end_seconds - last.start_seconds);
    last.retransmits += rest.retransmits;
    last.cwnd_segments = rest.cwnd_segments;
}

/// Returns the interval between two moments, with times relative to `origin`.
pub(super) fn interval_between(origin: Instant, from: (Instant, Mark), to: (Instant, Mark)) -> Interval {
    let bytes = to.1.bytes - from.1.bytes;
    Interval {
        start_seconds: (from.0 - origin).as_secs_f64(),
        end_seconds: (to.0 - origin).as_secs_f64(),
        bytes,
        units: to.1.units - from.1.units,
        throughput_bps: rate_bps(bytes, (to.0 - from.0).as_secs_f64()),
        retransmits: to.1.retransmits.saturating_sub(from.1.retransmits),
        cwnd_segments: to.1.cwnd_segments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(origin: Instant, msecs: u64, bytes: u64) -> (Instant, Mark) {
        (origin + Duration::from_millis(msecs), Mark { bytes, ..Mark::default() })
    }

    #[test]
    fn a_short_rest_is_added_to_the_interval_before_it_and_nothing_is_lost() {
        let origin = Instant::now();
        let marks = [at(origin, 0, 0), at(origin, 100, 5000), at(origin, 101, 5040)];
        let mut intervals = Vec::new();
        keep(&mut intervals, Some(interval_between(origin, marks[0], marks[1])));
        merge_last(&mut intervals, Some(interval_between(origin, marks[1], marks[2])));
        assert_eq!(intervals, [interval_between(origin, marks[0], marks[2])]);
    }

    #[test]
    fn a_rest_without_an_interval_before_it_stands_alone() {
        let origin = Instant::now();
        let mut intervals = Vec::new();
        merge_last(&mut intervals, Some(interval_between(origin, at(origin, 0, 0), at(origin, 1, 7))));
        merge_last(&mut intervals, None);
        assert_eq!(intervals.iter().map(|interval| interval.bytes).sum::<u64>(), 7);
    }
}
