//! Factors for the conversion of units.

pub(super) const NANOSECONDS_PER_SECOND: f64 = 1e9;
pub(super) const BITS_PER_BYTE: f64 = 8.0;
pub(super) const NANOSECONDS_PER_MICROSECOND: f64 = 1e3;
