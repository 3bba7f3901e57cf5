//! The cost of an interrupt, learned from the handling times of batches.
//!
//! Handling a batch takes a fixed time (the interrupt: wake-up, state, caches; M9) and a time per
//! frame. A straight line through the pairs (frames, time) has the fixed part as its value at zero.

use super::cost_factor::CostFactor;

/// Lowest accepted cost, nanoseconds: less than one system call is a fault of the measurement.
pub const COST_NS_MIN: u64 = 200;
/// Highest accepted cost, nanoseconds: the gap of e1000 under bulk traffic. A frame waits at most the cost, so this
/// bounds the effect of a wrong measurement.
pub const COST_NS_MAX: u64 = 250_000;
/// Cost until enough batches were measured, nanoseconds.
pub const COST_NS_START: u64 = 10_000;

/// Share of a measured batch's weight left at the next batch. About the last 256 batches count, so that the estimate
/// follows a change of load within some tenths of a second under load.
const KEEP: f64 = 1.0 - 1.0 / 256.0;
/// Weight of measurements above which only one interrupt in [`MEASURED_ONE_IN`] is measured.
const WEIGHT_SETTLED: f64 = 128.0;
/// Above that weight, one interrupt in this number is measured. Reading a thread's processor time twice costs some
/// tenths of a microsecond, and a lone request would wait for it.
const MEASURED_ONE_IN: u32 = 8;
/// Weight of batches before anything is concluded.
const WEIGHT_MIN: f64 = 16.0;
/// Least variance of the batch sizes, in frames², for drawing a line through them.
const VARIANCE_MIN: f64 = 0.25;
/// Longest accepted handling time, nanoseconds: a longer batch was interrupted by something else and counts as this
/// long.
const HANDLING_NS_MAX: u64 = 1_000_000;
/// A batch counts as at most this multiple of the expected time. A thread that lost its processor for a millisecond,
/// once in a hundred batches, would otherwise double the apparent cost of an interrupt of ten microseconds. A real
/// growth is followed all the same.
const UNEXPECTED: f64 = 4.0;
/// Most frames counted for a batch, so that the regression stays exact.
const BATCH_FRAMES_MAX: u32 = 65_536;
const PERCENT: u64 = 100;
/// Default of interrupts per second under load: between 4000, the rate of Linux's e1000 driver for bulk data, and its
/// static 8000. A frame then waits at most 160 microseconds. With more, guests under mixed load come near half the
/// interrupts of no moderation; with fewer, their requests take longer (`cargo bench -p offramp-lab --bench
/// vhost_moderation -- --only mixed --load-interrupts 5500,7500`).
pub const LOAD_INTERRUPTS_PER_SECOND_DEFAULT: u32 = 6250;

/// The source of the interrupt cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptCost {
    /// It is known.
    Given {
        /// Interrupt cost in nanoseconds of waiting of one frame.
        ns: u64,
    },
    /// It is measured while the port runs.
    Measured {
        /// Factor of the measured cost, percent: nanoseconds of waiting for each nanosecond of saved processor time.
        /// Above 100 where the processor is the limit.
        factor_percent: u32,
    },
    /// It is measured while the port runs, and multiplied by a factor that rises under load. The factor rises while
    /// frames come thick and waiting gathers some, until interrupts are as few as given here. No frame waits longer
    /// than the time between two of them. The trigger's bound needs a constant factor and does not hold here.
    Adaptive {
        /// Interrupts per second under load.
        interrupts_per_second: u32,
    },
}

impl Default for InterruptCost {
    /// Returns the adaptive cost with [`LOAD_INTERRUPTS_PER_SECOND_DEFAULT`].
    fn default() -> Self {
        Self::Adaptive { interrupts_per_second: LOAD_INTERRUPTS_PER_SECOND_DEFAULT }
    }
}

impl InterruptCost {
    /// Measured, with a factor of 1.
    pub const MEASURED: Self = Self::Measured { factor_percent: PERCENT as u32 };

    /// Returns the cost in nanoseconds, by `estimator` if measured; without the adaptive factor.
    pub(super) fn ns(&self, estimator: &CostEstimator) -> u64 {
        match *self {
            Self::Given { ns } => ns,
            Self::Measured { factor_percent } => estimator.cost_ns() * u64::from(factor_percent) / PERCENT,
            Self::Adaptive { .. } => estimator.cost_ns(),
        }
    }

    /// Returns the adaptive factor, if there is one.
    pub(super) fn factor(&self) -> Option<CostFactor> {
        match *self {
            Self::Adaptive { interrupts_per_second } => Some(CostFactor::new(interrupts_per_second)),
            _ => None,
        }
    }
}

/// An estimator of the interrupt cost: a linear regression of handling time on batch size with exponential forgetting.
#[derive(Clone, Debug)]
pub struct CostEstimator {
    weight: f64,
    frames: f64,
    ns: f64,
    frames_squared: f64,
    frames_ns: f64,
    cost_ns: u64,
    /// Interrupts since one was measured.
    passed: u32,
}

impl Default for CostEstimator {
    fn default() -> Self {
        let cost_ns = COST_NS_START;
        Self { weight: 0.0, frames: 0.0, ns: 0.0, frames_squared: 0.0, frames_ns: 0.0, cost_ns, passed: 0 }
    }
}

impl CostEstimator {
    /// Returns the cost known so far, nanoseconds; always in [`COST_NS_MIN`]…[`COST_NS_MAX`].
    pub fn cost_ns(&self) -> u64 {
        self.cost_ns
    }

    /// Returns whether to measure the next interrupt: each of the first hundreds, then one in eight.
    pub(super) fn measures_next(&mut self) -> bool {
        self.passed += 1;
        let is_measured = self.weight < WEIGHT_SETTLED || self.passed >= MEASURED_ONE_IN;
        if is_measured {
            self.passed = 0;
        }
        is_measured
    }

    /// Learns from a batch of `frames`, handled in `took_ns` with the interrupt included.
    pub fn observe(&mut self, frames: u32, took_ns: u64) {
        let frames = f64::from(frames.min(BATCH_FRAMES_MAX));
        let ns = (took_ns.min(HANDLING_NS_MAX) as f64).min(self.longest_ns(frames));
        self.weight = self.weight * KEEP + 1.0;
        self.frames = self.frames * KEEP + frames;
        self.ns = self.ns * KEEP + ns;
        self.frames_squared = self.frames_squared * KEEP + frames * frames;
        self.frames_ns = self.frames_ns * KEEP + frames * ns;
        if self.weight >= WEIGHT_MIN {
            self.cost_ns = (self.intercept_ns() as u64).clamp(COST_NS_MIN, COST_NS_MAX);
        }
    }

    /// Learns from an interrupt with a measured cost of `ns` by itself.
    pub fn observe_interrupt(&mut self, ns: u64) {
        // An interrupt by itself is expected to cost something before any was measured.
        let longest_ns =
            if self.weight < WEIGHT_MIN { COST_NS_START as f64 * UNEXPECTED } else { self.longest_ns(0.0) };
        let ns = (ns.min(HANDLING_NS_MAX) as f64).min(longest_ns);
        self.weight = self.weight * KEEP + 1.0;
        self.ns = self.ns * KEEP + ns;
        if self.weight >= WEIGHT_MIN {
            self.cost_ns = ((self.ns / self.weight) as u64).clamp(COST_NS_MIN, COST_NS_MAX);
        }
    }

    /// Returns the longest plausible time of a batch of `frames`: by the mean batch or by the mean frame. Each includes
    /// a share of the interrupts.
    fn longest_ns(&self, frames: f64) -> f64 {
        if self.weight < WEIGHT_MIN {
            return HANDLING_NS_MAX as f64;
        }
        let of_frames_ns = if self.frames > 0.0 { self.ns / self.frames * frames } else { 0.0 };
        let expected_ns = (self.ns / self.weight).max(of_frames_ns).max(COST_NS_MIN as f64);
        expected_ns * UNEXPECTED
    }

    /// Returns the line's value for a batch of no frames. If all batches have the same size, there is no line: the
    /// earlier cost stays, unless it exceeds the mean of a whole batch.
    fn intercept_ns(&self) -> f64 {
        let spread = self.weight * self.frames_squared - self.frames * self.frames;
        let known = self.cost_ns as f64;
        // Batches cannot take less time with more frames: a falling line is noise.
        let is_rising = self.weight * self.frames_ns >= self.frames * self.ns;
        if is_rising && spread >= VARIANCE_MIN * self.weight * self.weight {
            (self.frames_squared * self.ns - self.frames * self.frames_ns) / spread
        } else {
            known.min(self.ns / self.weight)
        }
    }
}
