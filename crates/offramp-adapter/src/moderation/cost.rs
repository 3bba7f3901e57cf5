//! What an interrupt costs, learned from how long batches take.
//!
//! Handling a batch takes a fixed time (the interrupt: wake-up, state, caches; M9) and a time per
//! frame. A straight line through the pairs (frames, time) has the fixed part as its value at zero.

use super::cost_factor::CostFactor;

/// Lowest cost that is believed, nanoseconds: less than one system call is a fault of the measurement.
pub const COST_NS_MIN: u64 = 200;
/// Highest cost that is believed, nanoseconds. A frame waits at most the cost, so this bounds what a
/// wrong measurement can do: it is the gap that e1000 keeps under bulk traffic.
pub const COST_NS_MAX: u64 = 250_000;
/// Cost until enough batches were measured, nanoseconds.
pub const COST_NS_START: u64 = 10_000;

/// Part of the weight that is left of a measured batch when the next one comes: the last 256 or so count, so
/// that a change of load is followed within some tenths of a second under load.
const KEEP: f64 = 1.0 - 1.0 / 256.0;
/// Weight of measurements from which on not every interrupt is measured.
const WEIGHT_SETTLED: f64 = 128.0;
/// One in this number of interrupts is measured then: to read a thread's processor time twice costs some tenths of
/// a microsecond, which a lone request would wait for.
const MEASURED_ONE_IN: u32 = 8;
/// Weight of batches before anything is concluded.
const WEIGHT_MIN: f64 = 16.0;
/// Variance of the batch sizes, in frames², below which no line can be drawn through them.
const VARIANCE_MIN: f64 = 0.25;
/// A batch that took longer was interrupted by something else; it counts as this long, nanoseconds.
const HANDLING_NS_MAX: u64 = 1_000_000;
/// A batch counts as at most this multiple of the expected time. A thread that lost its processor for a millisecond,
/// once in a hundred batches, would otherwise double the apparent cost of an interrupt of ten microseconds. A real
/// growth is followed all the same.
const UNEXPECTED: f64 = 4.0;
/// A batch of more frames counts as this many, so that the regression stays exact.
const BATCH_FRAMES_MAX: u32 = 65_536;
const PERCENT: u64 = 100;
/// Default of interrupts per second under load: between the 4000 that Linux's e1000 driver has for bulk data
/// and its static 8000. A frame then waits at most 160 microseconds. With more, guests under mixed load come near half the
/// interrupts that they have without moderation; with fewer, their requests take longer (`cargo bench -p offramp-lab
/// --bench vhost_moderation -- --only mixed --load-interrupts 5500,7500`).
pub const LOAD_INTERRUPTS_PER_SECOND_DEFAULT: u32 = 6250;

/// Where the cost of an interrupt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptCost {
    /// It is known.
    Given {
        /// Interrupt cost in nanoseconds of waiting of one frame.
        ns: u64,
    },
    /// It is measured while the port runs.
    Measured {
        /// Factor of the measured cost, percent: nanoseconds of waiting that save a nanosecond of processor time.
        /// Above 100 where the processor is the limit.
        factor_percent: u32,
    },
    /// It is measured while the port runs, and multiplied by a factor that rises under load: while frames come thick, and
    /// waiting gathers some, until no more interrupts come than these. No frame waits longer than the time
    /// between two of them. The bound of the trigger holds for a constant factor, so not for this.
    Adaptive {
        /// Interrupts per second under load.
        interrupts_per_second: u32,
    },
}

impl Default for InterruptCost {
    /// Adaptive, with [`LOAD_INTERRUPTS_PER_SECOND_DEFAULT`].
    fn default() -> Self {
        Self::Adaptive { interrupts_per_second: LOAD_INTERRUPTS_PER_SECOND_DEFAULT }
    }
}

impl InterruptCost {
    /// Measured, with a factor of 1.
    pub const MEASURED: Self = Self::Measured { factor_percent: PERCENT as u32 };

    /// The cost in nanoseconds, with `estimator` for what is measured; without the factor that adapts.
    pub(super) fn ns(&self, estimator: &CostEstimator) -> u64 {
        match *self {
            Self::Given { ns } => ns,
            Self::Measured { factor_percent } => estimator.cost_ns() * u64::from(factor_percent) / PERCENT,
            Self::Adaptive { .. } => estimator.cost_ns(),
        }
    }

    /// The factor that adapts, if it does.
    pub(super) fn factor(&self) -> Option<CostFactor> {
        match *self {
            Self::Adaptive { interrupts_per_second } => Some(CostFactor::new(interrupts_per_second)),
            _ => None,
        }
    }
}

/// Learns the cost of an interrupt: a linear regression of handling time on batch size that forgets.
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
    /// The cost as far as it is known, nanoseconds; always in [`COST_NS_MIN`]…[`COST_NS_MAX`].
    pub fn cost_ns(&self) -> u64 {
        self.cost_ns
    }

    /// Whether the next interrupt is to be measured: each of the first hundreds, then one in eight.
    pub(super) fn measures_next(&mut self) -> bool {
        self.passed += 1;
        let is_measured = self.weight < WEIGHT_SETTLED || self.passed >= MEASURED_ONE_IN;
        if is_measured {
            self.passed = 0;
        }
        is_measured
    }

    /// Learns from a batch of `frames` that took `took_ns` to handle, the interrupt included.
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

    /// Learns from an interrupt that was measured to cost `ns` by itself.
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

    /// The longest plausible time of a batch of `frames`: by the mean batch or by the mean frame, each of which has a share
    /// of the interrupts.
    fn longest_ns(&self, frames: f64) -> f64 {
        if self.weight < WEIGHT_MIN {
            return HANDLING_NS_MAX as f64;
        }
        let of_frames_ns = if self.frames > 0.0 { self.ns / self.frames * frames } else { 0.0 };
        let expected_ns = (self.ns / self.weight).max(of_frames_ns).max(COST_NS_MIN as f64);
        expected_ns * UNEXPECTED
    }

    /// Where the line meets a batch of no frames. Without batches of different sizes there is no line:
    /// what was known before stays, as far as it is below the mean of a whole batch.
    fn intercept_ns(&self) -> f64 {
        let spread = self.weight * self.frames_squared - self.frames * self.frames;
        let known = self.cost_ns as f64;
        // Frames that make a batch faster are noise.
        let is_rising = self.weight * self.frames_ns >= self.frames * self.ns;
        if is_rising && spread >= VARIANCE_MIN * self.weight * self.weight {
            (self.frames_squared * self.ns - self.frames * self.frames_ns) / spread
        } else {
            known.min(self.ns / self.weight)
        }
    }
}
