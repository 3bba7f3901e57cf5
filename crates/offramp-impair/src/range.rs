use std::fmt::Display;
use std::ops::RangeInclusive;

/// The error for a setting out of its range: one line with the setting, its value and its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} out of range; use {range}")]
pub struct OutOfRange {
    setting: String,
    range: String,
}

impl OutOfRange {
    /// Checks a value against its range. `setting` describes the value in the error, for example "bus of 0 bytes per
    /// second is".
    pub(crate) fn check<T: PartialOrd + Display + Copy>(
        range: &RangeInclusive<T>,
        value: T,
        setting: impl FnOnce(T) -> String,
    ) -> Result<(), Self> {
        let refused = || Self { setting: setting(value), range: format!("{} to {}", range.start(), range.end()) };
        if range.contains(&value) { Ok(()) } else { Err(refused()) }
    }

    /// Adds a note after the range in the error message.
    pub(crate) fn noting(self, note: &str) -> Self {
        Self { range: self.range + note, ..self }
    }
}
