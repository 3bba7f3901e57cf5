//! The times that a request waits, in addition to the time of the work for the request, derived from round trips.

use super::cost::{Cost, named_costs};
use super::experiments::{CAPPED, PLAIN};
use super::samples::Samples;
use super::units::NANOSECONDS_PER_MICROSECOND;
use crate::model::Sample;
use crate::plan::GIGABIT_INTERRUPTS_PER_SECOND;

named_costs! {
    /// The times that a request waits, in addition to the time of the work for the request, in nanoseconds.
    Waits {
        /// Minimum time from wake-up until a process runs, sum over the processes at both ends, in nanoseconds.
        wake_up_ns: WAKE_UP = "both ends, ns/request until processes run",
        /// Mean of the exponentially distributed time in addition to `wake_up_ns`, in nanoseconds.
        wake_up_tail_ns: WAKE_UP_TAIL = "both ends, ns/request on top, mean",
        /// Time from the due time of an interrupt until the adapters' thread detects the expired timer, in nanoseconds.
        timer_ns: TIMER = "adapters, ns until a timer is noticed",
    }
}

impl Waits {
    /// Derives the waits; `None` without measured round trips. `work_ns` is the time of the work for a small request
    /// and its response, with the delay of the link, in nanoseconds.
    pub(super) fn learn(samples: Samples, work_ns: f64) -> Option<Self> {
        let ns = |of, value| samples.mean(of, value).map(|us| us * NANOSECONDS_PER_MICROSECOND);
        let (p50, p99) = (ns(PLAIN, p50_us)?, ns(PLAIN, p99_us)?);
        let gap_ns = 1e9 / f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
        // The distance from the median to the 99th percentile of an exponential distribution is ln 50 times the mean.
        let tail = (p99 - p50).max(0.0) / 50.0_f64.ln();
        Some(Self {
            wake_up_ns: (p50 - tail * 2.0_f64.ln() - work_ns).max(0.0),
            wake_up_tail_ns: tail,
            timer_ns: (ns(CAPPED, p50_us)? - gap_ns.max(p50)).max(0.0),
        })
    }
}

pub(super) fn p50_us(sample: &Sample) -> Option<f64> {
    sample.latency_p50_us
}

pub(super) fn p99_us(sample: &Sample) -> Option<f64> {
    sample.latency_p99_us
}
