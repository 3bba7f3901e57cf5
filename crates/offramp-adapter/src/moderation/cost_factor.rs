//! The area trigger's factor on the interrupt cost, adapted to the load.
//!
//! The area trigger exchanges waiting time for interrupts at a fixed exchange rate: the interrupt cost times a factor.
//! A factor that makes no lone request wait causes an interrupt for each frame of bulk data. A factor suited to bulk
//! data delays lone requests in vain. So the factor adapts to the observed results of waiting. The factor rises while
//! the frame rate is high and the interrupt rate exceeds its target under load. The factor falls after a frame has
//! waited in vain.
//!
//! The first rise is an attempt: frames wait long enough to show whether waiting gathers further frames. Each failed
//! attempt lengthens the time until the next attempt, so single requests hardly ever wait.
//!
//! A raised factor assumes that further frames will arrive. An idle gap disproves the assumption, and ends the wait if
//! the interrupt rate is within its target. So a request between two bursts of bulk data does not wait for the second
//! burst.

use super::{End, IdleGap, Interrupt, NANOSECONDS_PER_SECOND, NEVER, SAVED_INTERRUPTS_MAX};

/// The fixed-point representation of a factor of 1.
const ONE: u64 = 256;
/// Maximum factor. With this factor, full frames at 100 Gbit/s (8 million per second) wait for a default gap between
/// interrupts, even at the lowest accepted cost.
const FACTOR_MAX: u64 = ONE << 20;
/// Divisor of the factor; the quotient is one step of a rise, and one step of a fall if no frame waited in vain.
const STEP: u64 = 4;
/// The factor is divided by this number after a wait in vain at a low frame rate.
const FALL: u64 = 4;
/// Number of waits in vain that do not lower the factor, counted from the last wait that gathered enough frames. Idle
/// gaps can end [`SAVED_INTERRUPTS_MAX`] consecutive waits, one wait per saved interrupt. If the distance between
/// frames is close to an idle gap, the number of gathered frames says little about the load. So the factor also stays
/// unchanged for two more waits in vain.
const EXCUSES: u32 = SAVED_INTERRUPTS_MAX + 2;
/// Minimum frames per target interrupt at which the frame rate counts as high: fewer frames are not worth a wait.
const FRAMES_PER_INTERRUPT_MIN: u64 = 4;
/// Divisor of the target gap between two interrupts. The quotient is an idle gap: half the distance between frames at
/// the lowest frame rate that counts as high.
const IDLE_GAP_DIVISOR: u64 = 2 * FRAMES_PER_INTERRUPT_MIN;
/// Number of interrupts averaged for the mean load. With so many interrupts, the position of the interrupts within a
/// burst hardly matters.
const LOAD_INTERRUPTS: u64 = 64;
/// Maximum length of a pause between two interrupts in the mean load, as a number of target gaps. A longer pause would
/// outweigh the load before and after the pause.
const PAUSE_GAPS_MAX: u64 = LOAD_INTERRUPTS / 4;
/// Maximum number of interrupts under a high frame rate between two failed attempts to wait. So among this many
/// consecutive single requests at a high rate, at least one request waits.
const PATIENCE_MAX: u32 = 4096;

/// A number of frames, and the time in which the frames arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    frames: u64,
    ns: u64,
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self { frames: self.frames.saturating_add(other.frames), ns: self.ns.saturating_add(other.ns) }
    }

    /// Returns the mean load after adding `last`. The weight of an interrupt decays with each later interrupt.
    fn with(self, last: Self) -> Self {
        // The mean is in fixed point, so that small frame counts decay as fast as large counts.
        let add = |mean: u64, last: u64| (mean - mean / LOAD_INTERRUPTS).saturating_add(last.saturating_mul(ONE));
        Self { frames: add(self.frames, last.frames), ns: add(self.ns, last.ns) }
    }
}

/// The factor of the interrupt cost, and the state of its adaptation.
#[derive(Clone, Debug)]
pub(super) struct CostFactor {
    /// Target time between two interrupts, in nanoseconds; no frame waits longer.
    pub(super) gap_ns: u64,
    /// The factor, in units of 1/[`ONE`].
    factor: u64,
    /// Number of interrupts under a high frame rate until the next attempt to wait.
    until_attempt: u32,
    /// Number of interrupts under a high frame rate from the last failed attempt to wait until the next attempt; at
    /// least doubled by each failed attempt, up to [`PATIENCE_MAX`].
    patience: u32,
    /// Number of further waits in vain that do not lower the factor.
    excuses: u32,
    /// The reason why the last wait ended.
    last_end: End,
    /// The load between the last two interrupts, and the mean load over about [`LOAD_INTERRUPTS`] interrupts.
    last: Load,
    mean: Load,
}

impl CostFactor {
    /// Creates the factor of a queue with a target of `interrupts_per_second` at a high frame rate.
    pub(super) fn new(interrupts_per_second: u32) -> Self {
        let gap_ns = NANOSECONDS_PER_SECOND / u64::from(interrupts_per_second.max(1));
        let (last, mean) = Default::default();
        Self { gap_ns, factor: ONE, until_attempt: 0, patience: 1, excuses: 0, last_end: End::Time, last, mean }
    }

    /// Returns the idle gap that ends a wait. At a factor of one, no idle gap ends a wait, because the interrupt costs
    /// at least as much as the wait.
    pub(super) fn idle_gap(&self) -> IdleGap {
        let wait_ns = if self.factor == ONE { NEVER } else { self.gap_ns / IDLE_GAP_DIVISOR };
        IdleGap { wait_ns, interrupt_gap_ns: self.gap_ns }
    }

    /// Returns `cost_ns` multiplied by the factor.
    pub(super) fn of(&self, cost_ns: u64) -> u64 {
        cost_ns.saturating_mul(self.factor) / ONE
    }

    /// Updates the factor after an interrupt. Returns whether the factor has changed. `end` has the same meaning as for
    /// [`super::Rule::fired`].
    ///
    /// Frames that the host saw without an interrupt count as load, but not as gathered by waiting.
    #[inline]
    pub(super) fn fired(&mut self, interrupt: Interrupt, end: impl FnOnce() -> (End, u64)) -> bool {
        let is_usual = interrupt.since_ns() >= self.gap_ns && self.factor == ONE && !interrupt.has_waited;
        !is_usual && self.learn(&interrupt, end())
    }

    /// Updates the factor in the cases in which the factor may change. These cases are rare, so the function is not
    /// inlined into [`CostFactor::fired`].
    #[inline(never)]
    fn learn(&mut self, interrupt: &Interrupt, (end, cost_ns): (End, u64)) -> bool {
        let before = self.factor;
        let since_ns = interrupt.since_ns();
        let load = Load { frames: interrupt.frames, ns: since_ns };
        // At a factor of one, a frame waits at most as long as an interrupt costs, so the wait is no attempt to gather
        // frames.
        let was_deferred = interrupt.has_waited && self.factor > ONE;
        if was_deferred && interrupt.waiting_frames < self.gathered_frames_min(end) {
            self.in_vain();
        } else {
            self.paid(load, was_deferred, end, cost_ns);
        }
        let ns = since_ns.min(PAUSE_GAPS_MAX * self.gap_ns);
        (self.last, self.mean) = (load, self.mean.with(Load { ns, ..load }));
        self.last_end = end;
        self.factor != before
    }

    /// Returns whether the load has a high frame rate.
    fn is_thick(&self, load: Load) -> bool {
        load.frames.saturating_mul(self.gap_ns) / FRAMES_PER_INTERRUPT_MIN > load.ns
    }

    /// Returns the number of frames that a wait must gather to justify its delay. After an idle gap, the number is
    /// [`FRAMES_PER_INTERRUPT_MIN`], because fewer frames may all belong to one request. At a high mean frame rate, the
    /// number is also [`FRAMES_PER_INTERRUPT_MIN`], unless the wait ended because the ring had no room.
    fn gathered_frames_min(&self, end: End) -> u64 {
        match end {
            End::Idle => FRAMES_PER_INTERRUPT_MIN,
            End::Time | End::Area if self.is_thick(self.mean) => FRAMES_PER_INTERRUPT_MIN,
            End::Time | End::Area | End::Room => 2,
        }
    }

    /// Updates the factor after frames that were not deferred, or after a wait that gathered enough frames.
    fn paid(&mut self, load: Load, was_deferred: bool, end: End, cost_ns: u64) {
        let is_thick = self.is_thick(load);
        if was_deferred && is_thick {
            (self.until_attempt, self.patience, self.excuses) = (0, 1, EXCUSES);
        }
        if is_thick && load.ns < self.gap_ns {
            // After an idle gap, a higher factor would change nothing, unless the previous wait ended at the area
            // limit.
            if end != End::Idle || self.last_end == End::Area {
                self.rise(cost_ns);
            }
        } else if !self.is_thick(load.plus(self.last)) || load.ns > 2 * self.gap_ns {
            // Few frames between two bursts do not mean a low frame rate. So the frames before the previous interrupt
            // count, too.
            self.factor = (self.factor - self.factor / STEP).max(ONE);
        }
    }

    /// Updates the factor after a wait that gathered hardly any further frames. Between the bursts of a high load, a
    /// few waits in vain do not lower the factor. Further waits in vain show that waiting gathers no frames, and reset
    /// the factor to one.
    fn in_vain(&mut self) {
        if !self.is_thick(self.mean) {
            self.factor = (self.factor / FALL).max(ONE);
        } else if let Some(left) = self.excuses.checked_sub(1) {
            self.excuses = left;
            return;
        } else {
            (self.factor, self.patience) = (ONE, self.patience.max(EXCUSES));
        }
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        self.until_attempt = self.patience;
    }

    fn rise(&mut self, cost_ns: u64) {
        if let Some(left) = self.until_attempt.checked_sub(1) {
            self.until_attempt = left;
            return;
        }
        let next = self.factor + self.factor / STEP;
        // At a high frame rate, the first rise makes frames wait for a whole gap. A shorter wait might end before
        // further frames arrive, and would not show whether waiting gathers frames.
        let is_first = self.factor == ONE && self.is_thick(self.mean);
        let first =
            if is_first { self.gap_ns.saturating_mul(FRAMES_PER_INTERRUPT_MIN * ONE) / cost_ns.max(1) } else { 0 };
        self.factor = next.max(first).min(FACTOR_MAX);
    }
}
