//! What an interrupt is worth when many frames come: the price that its cost is multiplied by.
//!
//! The area trigger trades waiting against interrupts at a rate that somebody has to set. One that spares a
//! lone request every wait interrupts for each frame of bulk data, and one that is right for bulk data makes
//! requests wait for company that never comes. So the rate is learned from what waiting has brought: it
//! rises while frames come thick and interrupts come more often than they are meant to under load, and falls
//! back when a frame has waited alone. A rise is first an attempt; the more often it was in vain, the longer
//! until the next one, so that a flow of lone requests hardly ever waits.
//!
//! A price that has risen bets on frames to come. A silence says that the bet is lost: it ends the wait, as long as
//! interrupts stay as few as they are meant to be. So a request beside bulk data does not wait for the next burst.

use super::{Interrupt, NANOSECONDS_PER_SECOND, Silence};

/// One, as the price counts.
const ONE: u64 = 256;
/// Highest price: with the lowest cost that is believed it still holds 100 Gbit/s of full frames, 8 million a
/// second, back by a default gap.
const PRICE_MAX: u64 = ONE << 20;
/// A rise is by one part in so many, and so is a fall without haste.
const STEP: u64 = 4;
/// A wait in vain behind another one divides the price by so much.
const FALL: u64 = 4;
/// Frames come thick when there are so many for each interrupt that is meant to be: fewer are not worth the wait.
const FRAMES_PER_INTERRUPT_MIN: u64 = 4;
/// A silence is so small a part of the time between two interrupts that are meant to be: half as long as frames are
/// apart that hardly come thick.
const SILENCE_SHARE: u64 = 2 * FRAMES_PER_INTERRUPT_MIN;
/// About so many interrupts make up a mean load: enough that it matters little whether they end with a burst or with
/// what is between two.
const LOAD_INTERRUPTS: u64 = 64;
/// Most interrupts between two attempts that were in vain: one in so many waits.
const PATIENCE_MAX: u32 = 4096;

/// Frames that came, and the time that they came in.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    frames: u64,
    ns: u64,
}

impl Load {
    fn plus(self, other: Self) -> Self {
        Self { frames: self.frames.saturating_add(other.frames), ns: self.ns.saturating_add(other.ns) }
    }

    /// The load of many interrupts, each counting less than the one behind it, with one more.
    fn with(self, last: Self) -> Self {
        // In parts of one: a few frames are forgotten as fast as many.
        let add = |sum: u64, last: u64| (sum - sum / LOAD_INTERRUPTS).saturating_add(last.saturating_mul(ONE));
        Self { frames: add(self.frames, last.frames), ns: add(self.ns, last.ns) }
    }
}

/// The price of an interrupt, and how it changes.
#[derive(Clone, Debug)]
pub(super) struct Price {
    gap_ns: u64,
    /// In parts of [`ONE`].
    level: u64,
    /// Interrupts until waiting is tried again.
    until_attempt: u32,
    /// How many that will be after the next attempt in vain.
    patience: u32,
    /// Whether the last wait was in vain.
    was_in_vain: bool,
    /// What the last interrupt was for, and what many have been for.
    last: Load,
    mean: Load,
}

impl Price {
    /// Of a queue that is to be interrupted so many times a second when frames come thick.
    pub(super) fn new(interrupts_per_second: u32) -> Self {
        let gap_ns = NANOSECONDS_PER_SECOND / u64::from(interrupts_per_second.max(1));
        let (last, mean) = Default::default();
        Self { gap_ns, level: ONE, until_attempt: 0, patience: 1, was_in_vain: false, last, mean }
    }

    /// The time between two interrupts that are meant to be; no frame waits longer.
    pub(super) fn gap_ns(&self) -> u64 {
        self.gap_ns
    }

    /// The silence that ends a wait: none while the price has not risen, and the wait is worth it by itself.
    pub(super) fn silence(&self) -> Silence {
        if self.level == ONE {
            return Silence::NEVER;
        }
        Silence { wait_ns: self.gap_ns / SILENCE_SHARE, gap_ns: self.gap_ns }
    }

    /// A cost at this price.
    pub(super) fn of(&self, cost_ns: u64) -> u64 {
        cost_ns.saturating_mul(self.level) / ONE
    }

    /// Learns of an interrupt. Whether the price is another one now.
    ///
    /// What the host has seen without an interrupt came, but was not gathered by waiting.
    #[inline]
    pub(super) fn fired(&mut self, interrupt: Interrupt) -> bool {
        let since_ns = interrupt.since_ns();
        let Interrupt { frames, told_frames, has_waited, .. } = interrupt;
        let is_usual = since_ns >= self.gap_ns && self.level == ONE && !has_waited;
        !is_usual && self.learn(since_ns, frames, told_frames, has_waited)
    }

    /// Apart from the usual case, which is not slowed by it; so its arguments are one by one, in registers.
    #[inline(never)]
    fn learn(&mut self, since_ns: u64, frames: u64, told_frames: u64, has_waited: bool) -> bool {
        let before = self.level;
        let load = Load { frames, ns: since_ns };
        let is_in_vain = has_waited && told_frames <= 1;
        if is_in_vain {
            self.fall();
        } else if self.is_thick(load) && since_ns < self.gap_ns {
            self.rise(has_waited);
        } else if !self.is_thick(load.plus(self.last)) || since_ns > 2 * self.gap_ns {
            // A few frames between two bursts are not thin: the burst counts, too.
            self.level = (self.level - self.level / STEP).max(ONE);
        }
        if has_waited {
            self.was_in_vain = is_in_vain;
        }
        (self.last, self.mean) = (load, self.mean.with(load));
        self.level != before
    }

    /// Whether so many frames in so long are worth waiting for.
    fn is_thick(&self, load: Load) -> bool {
        load.frames.saturating_mul(self.gap_ns) / FRAMES_PER_INTERRUPT_MIN > load.ns
    }

    /// A frame has waited alone. Once, between two bursts of a thick load, says nothing; else, that waiting gathers
    /// none.
    fn fall(&mut self) {
        if self.was_in_vain || !self.is_thick(self.mean) {
            self.level = (self.level / FALL).max(ONE);
        }
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        self.until_attempt = self.patience;
    }

    fn rise(&mut self, has_waited: bool) {
        if has_waited {
            // Others came: waiting pays.
            (self.until_attempt, self.patience) = (0, 1);
        }
        match self.until_attempt.checked_sub(1) {
            Some(left) => self.until_attempt = left,
            None => self.level = (self.level + self.level / STEP).min(PRICE_MAX),
        }
    }
}
