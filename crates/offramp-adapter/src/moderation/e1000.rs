//! The rates that Linux's e1000 driver chooses between.
//!
//! From the frames and bytes since the last interrupt a queue is taken for one of three classes; each
//! has a rate, kept as a shortest gap between interrupts (the adapter's ITR register). The rate falls at
//! once and rises by steps. Source of the rules and figures: Linux
//! `drivers/net/ethernet/intel/e1000/e1000_main.c` and `Documentation/networking/device_drivers/ethernet/intel/e1000.rst`.
//!
//! The driver judges receive and transmit together and takes the slower class, since one interrupt
//! serves both; here each queue is judged alone. On a line below 1 Gbit/s the driver keeps to the rate of
//! bulk data; that is not done here.

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

/// Interrupts per second of the class of few, short frames.
const LOWEST_PER_SECOND: u32 = 70_000;
/// Interrupts per second in between, and at the start.
const LOW_PER_SECOND: u32 = 20_000;
/// Interrupts per second of the class of bulk data.
const BULK_PER_SECOND: u32 = 4_000;
/// A rise takes steps of one part in so many of the rate that is aimed at.
const RISE_DIVISOR: u32 = 4;

/// Mean bytes of a frame above which it is a jumbo frame.
const JUMBO_BYTES: u64 = 8000;
/// Mean bytes of a frame above which it is a joined or cut one.
const LARGE_BYTES: u64 = 2000;
/// Mean bytes of a frame above which many of them are bulk data.
const FULL_BYTES: u64 = 1200;
/// From lowest to low: fewer frames than these with more bytes than those.
const LOWEST_FRAMES: u64 = 5;
const LOWEST_BYTES: u64 = 512;
/// Low judges by the size of the frames above so many bytes.
const LOW_BYTES: u64 = 10_000;
/// Low becomes bulk when so many bytes come in fewer frames than these.
const LOW_FRAMES_FEW: u64 = 10;
/// Many frames ask for a higher rate.
const FRAMES_MANY: u64 = 35;
/// From low to lowest: at most these frames with fewer bytes than those.
const LONE_FRAMES: u64 = 2;
const LONE_BYTES: u64 = 512;
/// Bulk becomes low above so many bytes if the frames are many …
const BULK_BYTES: u64 = 25_000;
/// … and below so many.
const BULK_BYTES_FEW: u64 = 6000;

/// Period of the balanced mode's decisions, nanoseconds: the driver's watchdog.
const BALANCE_NS: u64 = 2 * NANOSECONDS_PER_SECOND;
/// The balanced mode's rate when both directions carry the same.
const BALANCED_PER_SECOND: u32 = 2000;
/// What is added when only one direction carries anything.
const ONE_SIDED_PER_SECOND: u64 = 6000;
/// The balanced mode's rate when nothing is carried, and at the start.
const IDLE_PER_SECOND: u32 = 8000;

/// Values of the driver's parameter `InterruptThrottleRate` that adapt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum E1000Mode {
    /// 1, "dynamic": up to 70,000 interrupts per second for few, short frames.
    Dynamic,
    /// 3, "dynamic conservative", the driver's default: up to 20,000.
    #[default]
    Conservative,
    /// 4, "simplified": 2000 to 8000, by how unlike receive and transmit are. It wants to hear of the
    /// [other direction](super::Moderator::other_direction).
    Simplified,
}

/// What a queue carries, as far as its last interrupt shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Lowest,
    Low,
    Bulk,
}

impl Class {
    /// The class after an interrupt for so many frames and bytes.
    #[inline]
    fn after(self, frames: u64, bytes: u64) -> Self {
        if frames == 0 {
            return self;
        }
        // The mean, rounded down, is above the limit: divided by a constant, which is a multiplication.
        let is_mean_above = |limit: u64| bytes / (limit + 1) >= frames;
        match self {
            Self::Lowest if is_mean_above(JUMBO_BYTES) => Self::Bulk,
            Self::Lowest if frames < LOWEST_FRAMES && bytes > LOWEST_BYTES => Self::Low,
            Self::Low if bytes > LOW_BYTES => {
                let is_bulk = is_mean_above(JUMBO_BYTES) || frames < LOW_FRAMES_FEW || is_mean_above(FULL_BYTES);
                match is_bulk {
                    true => Self::Bulk,
                    false if frames > FRAMES_MANY => Self::Lowest,
                    false => Self::Low,
                }
            }
            Self::Low if is_mean_above(LARGE_BYTES) => Self::Bulk,
            Self::Low if frames <= LONE_FRAMES && bytes < LONE_BYTES => Self::Lowest,
            Self::Bulk if bytes > BULK_BYTES && frames > FRAMES_MANY => Self::Low,
            Self::Bulk if bytes < BULK_BYTES_FEW => Self::Low,
            same => same,
        }
    }

    fn per_second(self) -> u32 {
        match self {
            Self::Lowest => LOWEST_PER_SECOND,
            Self::Low => LOW_PER_SECOND,
            Self::Bulk => BULK_PER_SECOND,
        }
    }
}

/// Bytes of both directions since a moment.
#[derive(Clone, Copy, Debug)]
struct Balance {
    since_ns: u64,
    own_bytes: u64,
    other_bytes: u64,
}

impl Balance {
    fn since(since_ns: u64) -> Self {
        Self { since_ns, own_bytes: 0, other_bytes: 0 }
    }

    fn per_second(&self) -> u32 {
        let sum = u128::from(self.own_bytes) + u128::from(self.other_bytes);
        let difference = u128::from(self.own_bytes.abs_diff(self.other_bytes));
        let share = (difference * u128::from(ONE_SIDED_PER_SECOND)).checked_div(sum);
        share.map_or(IDLE_PER_SECOND, |share| BALANCED_PER_SECOND + share as u32)
    }
}

/// The judgement of one queue.
#[derive(Clone, Debug)]
pub(super) struct E1000 {
    mode: E1000Mode,
    class: Class,
    per_second: u32,
    /// None until the first interrupt, which gives it the time.
    balance: Option<Balance>,
}

impl E1000 {
    pub(super) fn new(mode: E1000Mode) -> Self {
        let per_second = if mode == E1000Mode::Simplified { IDLE_PER_SECOND } else { LOW_PER_SECOND };
        Self { mode, class: Class::Low, per_second, balance: None }
    }

    /// Shortest time between two interrupts now, nanoseconds.
    pub(super) fn gap_ns(&self) -> u64 {
        NANOSECONDS_PER_SECOND / u64::from(self.per_second)
    }

    /// Learns of bytes that went the other way.
    pub(super) fn other_direction(&mut self, bytes: u64) {
        if let Some(balance) = &mut self.balance {
            balance.other_bytes = balance.other_bytes.saturating_add(bytes);
        }
    }

    /// Learns of an interrupt and of the frames and bytes since the one before. Whether the gap is another
    /// one now.
    #[inline]
    pub(super) fn fired(&mut self, now_ns: u64, frames: u64, bytes: u64) -> bool {
        match self.mode {
            E1000Mode::Simplified => self.weigh(now_ns, bytes),
            E1000Mode::Dynamic | E1000Mode::Conservative => self.classify(frames, bytes),
        }
    }

    /// Writes only what changes: an interrupt that finds the queue as the one before left it waits for nothing
    /// that was written there.
    #[inline]
    fn classify(&mut self, frames: u64, bytes: u64) -> bool {
        let class = match self.class.after(frames, bytes) {
            Class::Lowest if self.mode == E1000Mode::Conservative => Class::Low,
            class => class,
        };
        let aim = class.per_second();
        if class == self.class && aim == self.per_second {
            return false;
        }
        self.class = class;
        let per_second = aim.min(self.per_second + aim / RISE_DIVISOR);
        std::mem::replace(&mut self.per_second, per_second) != per_second
    }

    #[inline]
    fn weigh(&mut self, now_ns: u64, bytes: u64) -> bool {
        let balance = self.balance.get_or_insert(Balance::since(now_ns));
        balance.own_bytes = balance.own_bytes.saturating_add(bytes);
        if now_ns.saturating_sub(balance.since_ns) < BALANCE_NS {
            return false;
        }
        let per_second = balance.per_second();
        self.balance = Some(Balance::since(now_ns));
        std::mem::replace(&mut self.per_second, per_second) != per_second
    }
}

#[cfg(test)]
mod tests;
