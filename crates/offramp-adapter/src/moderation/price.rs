//! What an interrupt is worth when many frames come: the price that its cost is multiplied by.
//!
//! The area trigger trades waiting against interrupts at a rate that somebody has to set. One that spares a
//! lone request every wait interrupts for each frame of bulk data, and one that is right for bulk data makes
//! requests wait for company that never comes. So the rate is learned from what waiting has brought: it
//! rises while frames come thick and interrupts come more often than they are meant to under load, and falls
//! back when a frame has waited alone. A rise is first an attempt; the more often it was in vain, the longer
//! until the next one, so that a flow of lone requests hardly ever waits.

use super::{Interrupt, NANOSECONDS_PER_SECOND};

/// One, as the price counts.
const ONE: u64 = 256;
/// Highest price: with the lowest cost that is believed it still holds 100 Gbit/s of full frames, 8 million a
/// second, back by a default gap.
const PRICE_MAX: u64 = ONE << 20;
/// A rise is by one part in so many, and so is a fall without haste.
const STEP: u64 = 4;
/// A wait in vain divides the price by so much.
const FALL: u64 = 4;
/// Frames come thick when there are so many for each interrupt that is meant to be: fewer are not worth the wait.
const FRAMES_PER_INTERRUPT_MIN: u64 = 4;
/// Most interrupts between two attempts that were in vain: one in so many waits.
const PATIENCE_MAX: u32 = 4096;

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
}

impl Price {
    /// Of a queue that is to be interrupted so many times a second when frames come thick.
    pub(super) fn new(interrupts_per_second: u32) -> Self {
        let gap_ns = NANOSECONDS_PER_SECOND / u64::from(interrupts_per_second.max(1));
        Self { gap_ns, level: ONE, until_attempt: 0, patience: 1 }
    }

    /// The time between two interrupts that are meant to be; no frame waits longer.
    pub(super) fn gap_ns(&self) -> u64 {
        self.gap_ns
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
        let is_thick = frames.saturating_mul(self.gap_ns) / FRAMES_PER_INTERRUPT_MIN > since_ns;
        if has_waited && told_frames <= 1 {
            self.level = (self.level / FALL).max(ONE);
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.until_attempt = self.patience;
        } else if is_thick && since_ns < self.gap_ns {
            self.rise(has_waited);
        } else if !is_thick || since_ns > 2 * self.gap_ns {
            self.level = (self.level - self.level / STEP).max(ONE);
        }
        self.level != before
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
