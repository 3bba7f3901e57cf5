//! What an interrupt is worth when many frames come: the price that its cost is multiplied by.
//!
//! The area trigger trades waiting against interrupts at a rate that somebody has to set. One that spares a
//! lone request every wait interrupts for each frame of bulk data, and one that is right for bulk data makes
//! requests wait for company that never comes. So the rate is learned from what waiting has brought: it
//! rises while frames come thick and interrupts come more often than they are meant to under load, and falls
//! back when a frame has waited in vain. A rise is first an attempt, which holds frames back long enough to tell; the
//! more often it was in vain, the longer until the next one, so that requests one by one hardly ever wait.
//!
//! A price that has risen bets on frames to come. A silence says that the bet is lost: it ends the wait, as long as
//! interrupts stay as few as they are meant to be. So a request beside bulk data does not wait for the next burst.

use super::{Circumstances, End, Interrupt, NANOSECONDS_PER_SECOND, NEVER, SAVED_INTERRUPTS_MAX, Silence};

/// One, as the price counts.
const ONE: u64 = 256;
/// Highest price: with the lowest cost that is believed it still holds 100 Gbit/s of full frames, 8 million a
/// second, back by a default gap.
const PRICE_MAX: u64 = ONE << 20;
/// A rise is by one part in so many, and so is a fall without haste.
const STEP: u64 = 4;
/// A wait in vain divides the price by so much.
const FALL: u64 = 4;
/// So many waits in vain are forgiven behind one that paid: all that silences can end in a row, and those say little of a
/// load whose frames are hardly closer than a silence; and two more.
const EXCUSES: u32 = SAVED_INTERRUPTS_MAX + 2;
/// Frames come thick when there are so many for each interrupt that is meant to be: fewer are not worth the wait.
const FRAMES_PER_INTERRUPT_MIN: u64 = 4;
/// A silence is so small a part of the time between two interrupts that are meant to be: half as long as frames are
/// apart that hardly come thick.
const SILENCE_SHARE: u64 = 2 * FRAMES_PER_INTERRUPT_MIN;
/// About so many interrupts make up a mean load: enough that it matters little whether they end with a burst or with
/// what is between two.
const LOAD_INTERRUPTS: u64 = 64;
/// A pause between two interrupts counts as so many gaps at most: else, a long one would outweigh all that it separates.
const PAUSE_GAPS_MAX: u64 = LOAD_INTERRUPTS / 4;
/// Most interrupts between two attempts that were in vain: of requests one by one, one in so many waits.
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
    /// Waits in vain that are forgiven yet.
    excuses: u32,
    /// What ended the last wait.
    last_end: End,
    /// What the last interrupt was for, and what many have been for.
    last: Load,
    mean: Load,
}

impl Price {
    /// Of a queue that is to be interrupted so many times a second when frames come thick.
    pub(super) fn new(interrupts_per_second: u32) -> Self {
        let gap_ns = NANOSECONDS_PER_SECOND / u64::from(interrupts_per_second.max(1));
        let (last, mean) = Default::default();
        Self { gap_ns, level: ONE, until_attempt: 0, patience: 1, excuses: 0, last_end: End::Time, last, mean }
    }

    /// The time between two interrupts that are meant to be; no frame waits longer.
    pub(super) fn gap_ns(&self) -> u64 {
        self.gap_ns
    }

    /// The silence that ends a wait: none while the price has not risen, and the wait is worth it by itself.
    pub(super) fn silence(&self) -> Silence {
        let wait_ns = if self.level == ONE { NEVER } else { self.gap_ns / SILENCE_SHARE };
        Silence { wait_ns, gap_ns: self.gap_ns }
    }

    /// A cost at this price.
    pub(super) fn of(&self, cost_ns: u64) -> u64 {
        cost_ns.saturating_mul(self.level) / ONE
    }

    /// Learns of an interrupt. Whether the price is another one now.
    ///
    /// What the host has seen without an interrupt came, but was not gathered by waiting.
    #[inline]
    pub(super) fn fired(&mut self, interrupt: Interrupt, circumstances: impl FnOnce() -> Circumstances) -> bool {
        let is_usual = interrupt.since_ns() >= self.gap_ns && self.level == ONE && !interrupt.has_waited;
        !is_usual && self.learn(&interrupt, circumstances())
    }

    /// Apart from the usual case, which is not slowed by it.
    #[inline(never)]
    fn learn(&mut self, interrupt: &Interrupt, circumstances: Circumstances) -> bool {
        let end = circumstances.end;
        let before = self.level;
        let since_ns = interrupt.since_ns();
        let load = Load { frames: interrupt.frames, ns: since_ns };
        // At the lowest price a frame waits for what an interrupt costs, and no longer: that is not to gather others.
        let was_held = interrupt.has_waited && self.level > ONE;
        if was_held && interrupt.told_frames < self.gathered_frames_min(end) {
            self.in_vain();
        } else {
            self.paid(load, was_held, circumstances);
        }
        let ns = since_ns.min(PAUSE_GAPS_MAX * self.gap_ns);
        (self.last, self.mean) = (load, self.mean.with(Load { ns, ..load }));
        self.last_end = end;
        self.level != before
    }

    /// Whether so many frames in so long are worth waiting for.
    fn is_thick(&self, load: Load) -> bool {
        load.frames.saturating_mul(self.gap_ns) / FRAMES_PER_INTERRUPT_MIN > load.ns
    }

    /// So many frames that are told together were worth waiting for. Where frames come thick, in the mean or until a
    /// silence, as many as make them thick, if there is room for so many: a few may be no more than one request's own.
    fn gathered_frames_min(&self, end: End) -> u64 {
        match end {
            End::Silence => FRAMES_PER_INTERRUPT_MIN,
            End::Time | End::Area if self.is_thick(self.mean) => FRAMES_PER_INTERRUPT_MIN,
            End::Time | End::Area | End::Room => 2,
        }
    }

    /// Frames that were not held, or that were worth it.
    fn paid(&mut self, load: Load, was_held: bool, circumstances: Circumstances) {
        let is_thick = self.is_thick(load);
        if was_held && is_thick {
            (self.until_attempt, self.patience, self.excuses) = (0, 1, EXCUSES);
        }
        if is_thick && load.ns < self.gap_ns {
            // Behind a silence a higher price would change nothing, but where it ends what the price had begun.
            if circumstances.end != End::Silence || self.last_end == End::Area {
                self.rise(circumstances.cost_ns);
            }
        } else if !self.is_thick(load.plus(self.last)) || load.ns > 2 * self.gap_ns {
            // A few frames between two bursts are not thin: the burst counts, too.
            self.level = (self.level - self.level / STEP).max(ONE);
        }
    }

    /// A frame was held, and hardly another came. Some times, between the bursts of a thick load, that says nothing; behind
    /// those, that waiting gathers none.
    fn in_vain(&mut self) {
        if !self.is_thick(self.mean) {
            self.level = (self.level / FALL).max(ONE);
        } else if let Some(left) = self.excuses.checked_sub(1) {
            self.excuses = left;
            return;
        } else {
            (self.level, self.patience) = (ONE, self.patience.max(EXCUSES));
        }
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        self.until_attempt = self.patience;
    }

    fn rise(&mut self, cost_ns: u64) {
        if let Some(left) = self.until_attempt.checked_sub(1) {
            self.until_attempt = left;
            return;
        }
        let next = self.level + self.level / STEP;
        // Where frames come thick, the first step is to hold as many as that takes for a whole gap: a shorter wait may end
        // before others come, and would say nothing.
        let is_first = self.level == ONE && self.is_thick(self.mean);
        let first =
            if is_first { self.gap_ns.saturating_mul(FRAMES_PER_INTERRUPT_MIN * ONE) / cost_ns.max(1) } else { 0 };
        self.level = next.max(first).min(PRICE_MAX);
    }
}
