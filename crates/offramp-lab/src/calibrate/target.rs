//! Maximum errors of predictions.

/// Maximum error of a predicted throughput, in percent.
pub const THROUGHPUT_PERCENT: f64 = 15.0;
/// Maximum error of a predicted processor time, in percent.
pub const CPU_PERCENT: f64 = 20.0;

/// Returns the error of a prediction, in percent. The error is positive if the prediction exceeds the measurement.
pub(super) fn error_percent([predicted, measured]: [f64; 2]) -> f64 {
    100.0 * (predicted / measured - 1.0)
}
