//! Virtual time: whole picoseconds since the start of a run.
//!
//! A time has 64 bits, enough for 213 days. This module computes without floating point, so a run gives the same result
//! on every machine. Additions saturate at [`Time::NEVER`].

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Sub};

/// Picoseconds per second.
pub const PICOSECONDS_PER_SECOND: u64 = 1_000_000_000_000;
/// Picoseconds per microsecond.
pub const PICOSECONDS_PER_MICROSECOND: u64 = 1_000_000;
/// Picoseconds per nanosecond.
pub const PICOSECONDS_PER_NANOSECOND: u64 = 1_000;
const FEMTOSECONDS_PER_PICOSECOND: u128 = 1_000;
const BITS_PER_BYTE: u128 = 8;

/// A point in time, in picoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A duration, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span(pub u64);

impl Time {
    /// The start of the run.
    pub const START: Self = Self(0);
    /// A time after the end of any run.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns whole nanoseconds since the start, rounded down. Used for offramp's own code, which counts in
    /// nanoseconds.
    pub fn ns(self) -> u64 {
        self.0 / PICOSECONDS_PER_NANOSECOND
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// A span of zero.
    pub const ZERO: Self = Self(0);

    /// Converts microseconds to a duration.
    pub const fn us(us: u64) -> Self {
        Self(us.saturating_mul(PICOSECONDS_PER_MICROSECOND))
    }

    /// Converts nanoseconds to a duration.
    pub const fn ns(ns: u64) -> Self {
        Self(ns.saturating_mul(PICOSECONDS_PER_NANOSECOND))
    }

    /// Returns the span of `cycles` of a clock at `hz`, rounded to the nearest picosecond. A clock of 0 Hz gives the
    /// longest possible span.
    pub fn of_cycles(cycles: u64, hz: u64) -> Self {
        divide(u128::from(cycles) * u128::from(PICOSECONDS_PER_SECOND), u128::from(hz))
    }

    /// Returns the transfer time of `bytes` at a rate in bits per second, rounded to the nearest picosecond.
    pub fn of_bytes_at(bytes: u64, bits_per_second: u64) -> Self {
        let picobits = u128::from(bytes) * BITS_PER_BYTE * u128::from(PICOSECONDS_PER_SECOND);
        divide(picobits, u128::from(bits_per_second))
    }

    /// Returns the processing time of `bytes` at a cost in femtoseconds per byte, rounded to the nearest picosecond.
    pub fn of_bytes(bytes: u64, femtoseconds_per_byte: u64) -> Self {
        divide(u128::from(bytes) * u128::from(femtoseconds_per_byte), FEMTOSECONDS_PER_PICOSECOND)
    }

    /// Multiplies this span by `count`.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// Multiplies this span by `ppm` parts per million, rounded to the nearest picosecond.
    #[must_use]
    pub fn scaled_ppm(self, ppm: u64) -> Self {
        const PPM: u128 = 1_000_000;
        divide(u128::from(self.0) * u128::from(ppm), PPM)
    }

    /// Returns whole nanoseconds, rounded down. Used for offramp's own code, which counts in nanoseconds.
    pub fn whole_ns(self) -> u64 {
        self.0 / PICOSECONDS_PER_NANOSECOND
    }

    /// Returns microseconds, for display.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / PICOSECONDS_PER_MICROSECOND as f64
    }

    /// Returns seconds, for display.
    pub fn as_s(self) -> f64 {
        self.0 as f64 / PICOSECONDS_PER_SECOND as f64
    }
}

fn divide(value: u128, by: u128) -> Span {
    if by == 0 {
        return Span(u64::MAX);
    }
    Span(u64::try_from((value + by / 2) / by).unwrap_or(u64::MAX))
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;
    /// Subtracts a span, and saturates at zero.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_frame_on_ethernet_takes_as_long_as_the_standard_says() {
        // 1514 bytes, FCS, preamble and gap: 1538 byte times of 800 ns.
        assert_eq!(Span::of_bytes_at(1538, 10_000_000), Span::ns(1_230_400));
    }

    #[test]
    fn cycles_are_rounded_to_the_nearest_picosecond() {
        assert_eq!(Span::of_cycles(3, 8_000_000), Span(375_000));
        assert_eq!(Span::of_cycles(1, 6_700_000), Span(149_254));
        assert_eq!(Span::of_cycles(1, 0), Span(u64::MAX));
    }

    #[test]
    fn what_would_lie_behind_the_end_of_time_never_comes() {
        assert_eq!(Time(5) + Span(u64::MAX), Time::NEVER);
        assert_eq!(Time(5).since(Time(7)), Span::ZERO);
    }
}
