//! How far a prediction may be from what was measured.

/// Throughput is to be predicted within this, percent.
pub const THROUGHPUT_PERCENT: f64 = 15.0;
/// Processor time is to be predicted within this, percent.
pub const CPU_PERCENT: f64 = 20.0;

/// The error of a prediction, percent; above 0 where more was predicted than measured.
pub(super) fn error_percent([predicted, measured]: [f64; 2]) -> f64 {
    100.0 * (predicted / measured - 1.0)
}
