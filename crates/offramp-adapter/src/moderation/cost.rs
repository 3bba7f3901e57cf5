//! The cost of an interrupt, estimated from the handling times of batches.
//!
//! Handling a batch takes a fixed time for the interrupt (wake-up, saved state, cold caches; claim M9 in
//! `crates/offramp-model/cases`) and a time per frame. The estimator fits a straight line through the pairs (frames,
//! time). The line's value at zero frames is the fixed time.

use super::cost_factor::CostFactor;

/// Lowest accepted cost, in nanoseconds. A cost below the cost of one system call is a measurement error.
pub const COST_NS_MIN: u64 = 200;
/// Highest accepted cost, in nanoseconds: the gap of e1000 under bulk traffic. A frame waits at most the cost, so the
/// maximum bounds the effect of a wrong measurement.
pub const COST_NS_MAX: u64 = 250_000;
/// Assumed cost until enough batches are measured, in nanoseconds.
pub const COST_NS_START: u64 = 10_000;

/// Factor that reduces the weight of all earlier batches at each new batch. About the last 256 batches determine the
/// estimate, so under load, the estimate follows a change within some tenths of a second.
const KEEP: f64 = 1.0 - 1.0 / 256.0;
/// Total weight of the measurements at which the estimate counts as settled.
const WEIGHT_SETTLED: f64 = 128.0;
/// One in this number of interrupts is measured, once the estimate has settled ([`WEIGHT_SETTLED`]). A measurement
/// reads a thread's processor time twice, takes some tenths of a microsecond, and would delay a lone request.
const MEASURED_ONE_IN: u32 = 8;
/// Minimum total weight of batches for an estimate.
const WEIGHT_MIN: f64 = 16.0;
/// Minimum variance of the batch sizes for fitting a line, in frames².
const VARIANCE_MIN: f64 = 0.25;
/// Maximum accepted handling time, in nanoseconds. A longer batch was interrupted by other work, and counts with this
/// maximum.
const HANDLING_NS_MAX: u64 = 1_000_000;
/// Maximum factor by which the handling time of a batch may exceed the expected time; the excess is ignored. Without
/// this maximum, a thread that loses its processor for a millisecond, once per hundred batches, would double the
/// estimated cost of a ten-microsecond interrupt. A lasting increase of the cost still raises the estimate.
const UNEXPECTED: f64 = 4.0;
/// Maximum frames counted per batch, so that the regression stays exact.
const BATCH_FRAMES_MAX: u32 = 65_536;
const PERCENT: u64 = 100;
/// Default target of interrupts per second under load. The value lies between 4000, the rate of Linux's e1000 driver
/// for bulk data, and 8000, the driver's static rate. At the default rate, a frame waits at most 160 microseconds. At
/// higher rates, guests under mixed load get nearly half as many interrupts as without moderation. At lower rates, the
/// guests' requests take longer (`cargo bench -p offramp-lab --bench vhost_moderation -- --only mixed --load-interrupts
/// 5500,7500`).
pub const LOAD_INTERRUPTS_PER_SECOND_DEFAULT: u32 = 6250;

/// The source of the interrupt cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptCost {
    /// A configured cost.
    Given {
        /// Interrupt cost, in nanoseconds of waiting time of one frame.
        ns: u64,
    },
    /// A cost measured while the port runs.
    Measured {
        /// Factor on the measured cost, in percent: nanoseconds of waiting per nanosecond of saved processor time. Use
        /// more than 100 where the processor is the bottleneck.
        factor_percent: u32,
    },
    /// A cost measured while the port runs, multiplied by a factor that rises under load. The factor rises while the
    /// frame rate is high and a wait gathers further frames, until the interrupt rate falls to `interrupts_per_second`.
    /// No frame waits longer than the time between two interrupts at that rate. The area trigger's bound assumes a
    /// constant factor and does not hold for this cost.
    Adaptive {
        /// Target interrupts per second under load.
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
    /// The measured cost with a factor of 1.
    pub const MEASURED: Self = Self::Measured { factor_percent: PERCENT as u32 };

    /// Returns the cost in nanoseconds, without the adaptive factor. A measured cost is read from `estimator`.
    pub(super) fn ns(&self, estimator: &CostEstimator) -> u64 {
        match *self {
            Self::Given { ns } => ns,
            Self::Measured { factor_percent } => estimator.cost_ns() * u64::from(factor_percent) / PERCENT,
            Self::Adaptive { .. } => estimator.cost_ns(),
        }
    }

    /// Returns the adaptive factor; `None` for a configured cost and for a measured cost with a fixed factor.
    pub(super) fn factor(&self) -> Option<CostFactor> {
        match *self {
            Self::Adaptive { interrupts_per_second } => Some(CostFactor::new(interrupts_per_second)),
            _ => None,
        }
    }
}

/// An estimator of the interrupt cost: a linear regression of handling time on batch size, with exponential decay.
#[derive(Clone, Debug)]
pub struct CostEstimator {
    weight: f64,
    frames: f64,
    ns: f64,
    frames_squared: f64,
    frames_ns: f64,
    cost_ns: u64,
    /// Number of interrupts since the last measured interrupt.
    passed: u32,
}

impl Default for CostEstimator {
    fn default() -> Self {
        let cost_ns = COST_NS_START;
        Self { weight: 0.0, frames: 0.0, ns: 0.0, frames_squared: 0.0, frames_ns: 0.0, cost_ns, passed: 0 }
    }
}

impl CostEstimator {
    /// Returns the current estimate, in nanoseconds; always in [`COST_NS_MIN`]…[`COST_NS_MAX`].
    pub fn cost_ns(&self) -> u64 {
        self.cost_ns
    }

    /// Returns whether to measure the next interrupt: every interrupt until the estimate has settled, and every eighth
    /// interrupt afterwards.
    pub(super) fn measures_next(&mut self) -> bool {
        self.passed += 1;
        let is_measured = self.weight < WEIGHT_SETTLED || self.passed >= MEASURED_ONE_IN;
        if is_measured {
            self.passed = 0;
        }
        is_measured
    }

    /// Adds the measurement of a batch of `frames` frames, which was handled in `took_ns` including the interrupt.
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

    /// Adds the measurement of an interrupt whose cost `ns`, without the work on frames, was measured separately.
    pub fn observe_interrupt(&mut self, ns: u64) {
        // Before the first measurement, an interrupt is expected to cost the start value.
        let longest_ns =
            if self.weight < WEIGHT_MIN { COST_NS_START as f64 * UNEXPECTED } else { self.longest_ns(0.0) };
        let ns = (ns.min(HANDLING_NS_MAX) as f64).min(longest_ns);
        self.weight = self.weight * KEEP + 1.0;
        self.ns = self.ns * KEEP + ns;
        if self.weight >= WEIGHT_MIN {
            self.cost_ns = ((self.ns / self.weight) as u64).clamp(COST_NS_MIN, COST_NS_MAX);
        }
    }

    /// Returns the longest plausible time of a batch of `frames` frames, from the mean time per batch or per frame,
    /// whichever gives the longer time. The mean time of a batch and the mean time of a frame both include a share of
    /// the interrupts' cost.
    fn longest_ns(&self, frames: f64) -> f64 {
        if self.weight < WEIGHT_MIN {
            return HANDLING_NS_MAX as f64;
        }
        let of_frames_ns = if self.frames > 0.0 { self.ns / self.frames * frames } else { 0.0 };
        let expected_ns = (self.ns / self.weight).max(of_frames_ns).max(COST_NS_MIN as f64);
        expected_ns * UNEXPECTED
    }

    /// Returns the fitted line's value for an empty batch. If all batches have the same size, no line can be fitted.
    /// Without a fitted line, returns the earlier estimate, but at most the mean time of a whole batch.
    fn intercept_ns(&self) -> f64 {
        let spread = self.weight * self.frames_squared - self.frames * self.frames;
        let known = self.cost_ns as f64;
        // More frames cannot take less time: a falling line is noise.
        let is_rising = self.weight * self.frames_ns >= self.frames * self.ns;
        if is_rising && spread >= VARIANCE_MIN * self.weight * self.weight {
            (self.frames_squared * self.ns - self.frames * self.frames_ns) / spread
        } else {
            known.min(self.ns / self.weight)
        }
    }
}
