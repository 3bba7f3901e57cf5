//! The adaptive interrupt rates of Linux's e1000 driver.
//!
//! The driver assigns a queue to one of three classes, by the frames and bytes since the last interrupt. Each class has
//! a rate, stored as a shortest gap between interrupts (the adapter's ITR register). At a change of the class, the rate
//! falls at once or rises in steps. The rules and figures are from Linux
//! `drivers/net/ethernet/intel/e1000/e1000_main.c` and
//! `Documentation/networking/device_drivers/ethernet/intel/e1000.rst`.
//!
//! The driver classifies receive and transmit together and takes the slower class, because one interrupt serves both
//! directions. This module classifies each queue separately. On a link below 1 Gbit/s, the driver always uses the rate
//! for bulk data; this module uses all rates.

use super::NANOSECONDS_PER_SECOND;

/// Divisor of the target rate; the quotient is one step of a rise.
const RISE_DIVISOR: u32 = 4;

/// Mean bytes per frame above which frames count as jumbo frames.
const JUMBO_BYTES: u64 = 8000;
/// Mean bytes per frame above which frames count as super-frames.
const LARGE_BYTES: u64 = 2000;
/// Mean bytes per frame above which the frames of one interrupt, with more than [`LOW_BYTES`] bytes in total, count as
/// bulk data.
const FULL_BYTES: u64 = 1200;
/// The class changes from lowest to low if an interrupt reports fewer than [`LOWEST_FRAMES`] frames with more than
/// [`LOWEST_BYTES`] bytes in total.
const LOWEST_FRAMES: u64 = 5;
const LOWEST_BYTES: u64 = 512;
/// Bytes per interrupt above which the class low is re-evaluated by the size and the number of frames.
const LOW_BYTES: u64 = 10_000;
/// The class changes from low to bulk if an interrupt reports fewer frames than this number with more than
/// [`LOW_BYTES`] bytes in total.
const LOW_FRAMES_FEW: u64 = 10;
/// Number of frames per interrupt above which a queue can change to a class with a higher rate.
const FRAMES_MANY: u64 = 35;
/// The class changes from low to the highest permitted class if an interrupt reports at most [`LONE_FRAMES`] frames
/// with fewer than [`LONE_BYTES`] bytes in total.
const LONE_FRAMES: u64 = 2;
const LONE_BYTES: u64 = 512;
/// Bytes per interrupt above which the class changes from bulk to low, if there are more than [`FRAMES_MANY`] frames.
const BULK_BYTES: u64 = 25_000;
/// Bytes per interrupt below which the class changes from bulk to low.
const BULK_BYTES_FEW: u64 = 6000;

/// Period of decisions in the balanced mode, in nanoseconds: the period of the driver's watchdog.
const BALANCE_NS: u64 = 2 * NANOSECONDS_PER_SECOND;
/// Interrupts per second in the balanced mode if both directions carry equally many bytes.
const BALANCED_PER_SECOND: u32 = 2000;
/// Interrupts per second added if only one of the two directions carries bytes.
const ONE_SIDED_PER_SECOND: u64 = 6000;
/// Interrupts per second in the balanced mode without traffic, and at the start.
const IDLE_PER_SECOND: u32 = 8000;

/// Adaptive values of the driver's parameter `InterruptThrottleRate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum E1000Mode {
    /// 1, "dynamic": up to 70,000 interrupts per second for few and short frames.
    Dynamic,
    /// 3, "dynamic conservative", the driver's default: up to 20,000 interrupts per second.
    #[default]
    Conservative,
    /// 4, "simplified": 2000 to 8000 interrupts per second, by the imbalance between receive and transmit. This mode
    /// needs the bytes of the [other direction](super::Moderator::other_direction).
    Simplified,
}

/// The load class of a queue after the queue's last interrupt. A class is named by the required latency, and its value
/// is the number of interrupts per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Class {
    /// Bulk data.
    Bulk = 4000,
    /// Mixed traffic, and the initial class.
    Low = 20_000,
    /// Few, short frames.
    Lowest = 70_000,
}

impl Class {
    /// Returns the class after an interrupt that reports `frames` frames with `bytes` bytes in total. The returned
    /// class is at most `highest`.
    #[inline]
    fn after(self, frames: u64, bytes: u64, highest: Self) -> Self {
        if frames == 0 {
            return self;
        }
        // Compares the mean length, rounded down, with the limit. The result is exact below 2^50 frames per interrupt.
        let is_mean_above = |limit: u64| bytes >= frames.wrapping_mul(limit + 1);
        match self {
            Self::Lowest if is_mean_above(JUMBO_BYTES) => Self::Bulk,
            Self::Lowest if frames < LOWEST_FRAMES && bytes > LOWEST_BYTES => Self::Low,
            Self::Low if bytes > LOW_BYTES => {
                let is_bulk = is_mean_above(JUMBO_BYTES) || frames < LOW_FRAMES_FEW || is_mean_above(FULL_BYTES);
                match is_bulk {
                    true => Self::Bulk,
                    false if frames > FRAMES_MANY => highest,
                    false => Self::Low,
                }
            }
            Self::Low if is_mean_above(LARGE_BYTES) => Self::Bulk,
            Self::Low if frames <= LONE_FRAMES && bytes < LONE_BYTES => highest,
            Self::Bulk if bytes > BULK_BYTES && frames > FRAMES_MANY => Self::Low,
            Self::Bulk if bytes < BULK_BYTES_FEW => Self::Low,
            same => same,
        }
    }

    fn per_second(self) -> u32 {
        self as u32
    }
}

/// The class of one queue, chosen by the numbers of frames and bytes per interrupt.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    class: Class,
    per_second: u32,
    /// Highest class that this queue can get.
    highest: Class,
}

impl Classes {
    /// Creates the state of a queue with classes up to `highest`.
    pub(super) fn new(highest: Class) -> Self {
        Self { class: Class::Low, per_second: Class::Low.per_second(), highest }
    }

    /// Returns the current minimum time between two interrupts, in nanoseconds.
    pub(super) fn gap_ns(&self) -> u64 {
        NANOSECONDS_PER_SECOND / u64::from(self.per_second)
    }

    /// Updates the class after an interrupt, with the frames and bytes since the previous interrupt. Returns whether
    /// the gap has changed.
    ///
    /// Writes only changed values, so that the next interrupt usually does not stall on an earlier write.
    #[inline]
    pub(super) fn fired(&mut self, frames: u64, bytes: u64) -> bool {
        let class = self.class.after(frames, bytes, self.highest);
        if class == self.class && class.per_second() == self.per_second {
            return false;
        }
        self.turn(class)
    }

    /// Changes the class and the rate. Changes are rare, so the function is not inlined into [`Classes::fired`].
    #[inline(never)]
    fn turn(&mut self, class: Class) -> bool {
        self.class = class;
        let aim = class.per_second();
        let per_second = aim.min(self.per_second + aim / RISE_DIVISOR);
        std::mem::replace(&mut self.per_second, per_second) != per_second
    }
}

/// The interrupt rate of one queue, chosen by the balance of received and transmitted bytes.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    per_second: u32,
    /// Start of the current period of the balanced mode; `None` before the first interrupt.
    since_ns: Option<u64>,
    own_bytes: u64,
    other_bytes: u64,
}

impl Default for Balance {
    fn default() -> Self {
        Self { per_second: IDLE_PER_SECOND, since_ns: None, own_bytes: 0, other_bytes: 0 }
    }
}

impl Balance {
    /// Returns the current minimum time between two interrupts, in nanoseconds.
    pub(super) fn gap_ns(&self) -> u64 {
        NANOSECONDS_PER_SECOND / u64::from(self.per_second)
    }

    /// Adds `bytes` bytes that the queue's other direction carried.
    pub(super) fn other_direction(&mut self, bytes: u64) {
        self.other_bytes = self.other_bytes.saturating_add(bytes);
    }

    /// Updates the rate after an interrupt, with the bytes since the previous interrupt. Returns whether the gap has
    /// changed.
    #[inline]
    pub(super) fn fired(&mut self, now_ns: u64, bytes: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        self.own_bytes = self.own_bytes.saturating_add(bytes);
        now_ns.saturating_sub(since_ns) >= BALANCE_NS && self.weigh(now_ns)
    }

    #[cold]
    fn weigh(&mut self, now_ns: u64) -> bool {
        let both = u128::from(self.own_bytes) + u128::from(self.other_bytes);
        let difference = u128::from(self.own_bytes.abs_diff(self.other_bytes));
        let share = (difference * u128::from(ONE_SIDED_PER_SECOND)).checked_div(both);
        let per_second = share.map_or(IDLE_PER_SECOND, |share| BALANCED_PER_SECOND + share as u32);
        let before = std::mem::replace(self, Self { per_second, since_ns: Some(now_ns), ..Self::default() });
        per_second != before.per_second
    }
}

#[cfg(test)]
mod tests;
