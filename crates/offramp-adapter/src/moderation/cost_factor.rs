//! The area trigger's factor of the interrupt cost. It follows the load.
//!
//! The area trigger trades waiting against interrupts at a given rate. A rate that spares a lone request every wait
//! interrupts for each frame of bulk data. A rate good for bulk data makes requests wait for company in vain. So the
//! rate is learned from the results of waiting. The factor rises while frames come thick and interrupts exceed their
//! target under load. It falls back when a frame has waited in vain. The first rise is an attempt: it holds frames back
//! long enough to tell. The more attempts were in vain, the longer until the next one, so requests one by one hardly
//! ever wait.
//!
//! A raised factor bets on frames to come. An idle gap shows that the bet is lost. It ends the wait, as long as
//! interrupts stay within their target. So a request beside bulk data does not wait for the next burst.

use super::{End, IdleGap, Interrupt, NANOSECONDS_PER_SECOND, NEVER, SAVED_INTERRUPTS_MAX};

/// A factor of one.
const ONE: u64 = 256;
/// Highest factor: with the lowest accepted cost it still holds 100 Gbit/s of full frames, 8 million a second, back by
/// a default gap.
const FACTOR_MAX: u64 = ONE << 20;
/// Divisor of the factor: the quotient is one step up, and one step down if no frame waited in vain.
const STEP: u64 = 4;
/// Divisor of the factor after a wait in vain.
const FALL: u64 = 4;
/// Waits in vain forgiven after one that paid. Idle gaps can end as many waits in a row as interrupts are saved. If
/// frames are hardly closer than an idle gap, those waits show little of the load. Two more are forgiven.
const EXCUSES: u32 = SAVED_INTERRUPTS_MAX + 2;
/// Frames come thick from this many on per targeted interrupt: fewer are not worth the wait.
const FRAMES_PER_INTERRUPT_MIN: u64 = 4;
/// Divisor of the target gap between two interrupts: the quotient is an idle gap, half the distance of frames at the
/// limit of thick.
const IDLE_GAP_DIVISOR: u64 = 2 * FRAMES_PER_INTERRUPT_MIN;
/// Interrupts in a mean load: enough to make their place, at the end of a burst or between two, matter little.
const LOAD_INTERRUPTS: u64 = 64;
/// Most gaps counted for a pause between two interrupts: a long pause would outweigh the load on both sides.
const PAUSE_GAPS_MAX: u64 = LOAD_INTERRUPTS / 4;
/// Most interrupts between two attempts in vain: of requests one by one, one in this number waits.
const PATIENCE_MAX: u32 = 4096;

/// A number of frames, and the time of their arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    frames: u64,
    ns: u64,
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self { frames: self.frames.saturating_add(other.frames), ns: self.ns.saturating_add(other.ns) }
    }

    /// Returns the mean load with `last` added; each interrupt counts less than the next one.
    fn with(self, last: Self) -> Self {
        // In parts of one: a few frames are forgotten as fast as many.
        let add = |mean: u64, last: u64| (mean - mean / LOAD_INTERRUPTS).saturating_add(last.saturating_mul(ONE));
        Self { frames: add(self.frames, last.frames), ns: add(self.ns, last.ns) }
    }
}

/// The factor of the interrupt cost, and how it changes.
#[derive(Clone, Debug)]
pub(super) struct CostFactor {
    /// The target time between two interrupts; no frame waits longer.
    pub(super) gap_ns: u64,
    /// In parts of [`ONE`].
    factor: u64,
    /// Interrupts until waiting is tried again.
    until_attempt: u32,
    /// Interrupts from the next attempt in vain until waiting is tried again.
    patience: u32,
    /// Waits in vain still to be forgiven.
    excuses: u32,
    /// The end of the last wait.
    last_end: End,
    /// The load of the last interrupt, and the mean load of many.
    last: Load,
    mean: Load,
}

impl CostFactor {
    /// Creates the factor of a queue with a target of `interrupts_per_second` when frames come thick.
    pub(super) fn new(interrupts_per_second: u32) -> Self {
        let gap_ns = NANOSECONDS_PER_SECOND / u64::from(interrupts_per_second.max(1));
        let (last, mean) = Default::default();
        Self { gap_ns, factor: ONE, until_attempt: 0, patience: 1, excuses: 0, last_end: End::Time, last, mean }
    }

    /// Returns the idle gap for ending a wait: none at a factor of one, as the interrupt then costs no less than the
    /// wait.
    pub(super) fn idle_gap(&self) -> IdleGap {
        let wait_ns = if self.factor == ONE { NEVER } else { self.gap_ns / IDLE_GAP_DIVISOR };
        IdleGap { wait_ns, interrupt_gap_ns: self.gap_ns }
    }

    /// Returns a cost multiplied by this factor.
    pub(super) fn of(&self, cost_ns: u64) -> u64 {
        cost_ns.saturating_mul(self.factor) / ONE
    }

    /// Learns from an interrupt, and returns whether the factor has changed. `end` is as in [`super::Rule::fired`].
    ///
    /// Frames seen by the host without an interrupt count as load, but not as gathered by waiting.
    #[inline]
    pub(super) fn fired(&mut self, interrupt: Interrupt, end: impl FnOnce() -> (End, u64)) -> bool {
        let is_usual = interrupt.since_ns() >= self.gap_ns && self.factor == ONE && !interrupt.has_waited;
        !is_usual && self.learn(&interrupt, end())
    }

    /// Handles the rare case out of line, so as not to slow the usual one.
    #[inline(never)]
    fn learn(&mut self, interrupt: &Interrupt, (end, cost_ns): (End, u64)) -> bool {
        let before = self.factor;
        let since_ns = interrupt.since_ns();
        let load = Load { frames: interrupt.frames, ns: since_ns };
        // With a factor of one, a frame waits no longer than an interrupt costs, and not to gather others.
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

    /// Returns whether frames come thick.
    fn is_thick(&self, load: Load) -> bool {
        load.frames.saturating_mul(self.gap_ns) / FRAMES_PER_INTERRUPT_MIN > load.ns
    }

    /// Returns the number of frames that a wait must gather to be worth its delay. After an idle gap, or when frames
    /// come thick on average and the ring has room, this is the limit of thick: fewer frames may all belong to one
    /// request.
    fn gathered_frames_min(&self, end: End) -> u64 {
        match end {
            End::Idle => FRAMES_PER_INTERRUPT_MIN,
            End::Time | End::Area if self.is_thick(self.mean) => FRAMES_PER_INTERRUPT_MIN,
            End::Time | End::Area | End::Room => 2,
        }
    }

    /// Learns that the frames were not deferred, or the wait has paid.
    fn paid(&mut self, load: Load, was_deferred: bool, end: End, cost_ns: u64) {
        let is_thick = self.is_thick(load);
        if was_deferred && is_thick {
            (self.until_attempt, self.patience, self.excuses) = (0, 1, EXCUSES);
        }
        if is_thick && load.ns < self.gap_ns {
            // After an idle gap a higher factor would change nothing, unless the gap ends what the factor had begun.
            if end != End::Idle || self.last_end == End::Area {
                self.rise(cost_ns);
            }
        } else if !self.is_thick(load.plus(self.last)) || load.ns > 2 * self.gap_ns {
            // A few frames between two bursts are not thin: the burst counts, too.
            self.factor = (self.factor - self.factor / STEP).max(ONE);
        }
    }

    /// Learns that a frame was deferred and hardly another came. Between the bursts of a thick load a few such waits
    /// are forgiven; more of them show that waiting gathers none.
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
        // If frames come thick, the first step holds the frames of a whole gap: a shorter wait may end before others
        // come, and would show nothing.
        let is_first = self.factor == ONE && self.is_thick(self.mean);
        let first =
            if is_first { self.gap_ns.saturating_mul(FRAMES_PER_INTERRUPT_MIN * ONE) / cost_ns.max(1) } else { 0 };
        self.factor = next.max(first).min(FACTOR_MAX);
    }
}
