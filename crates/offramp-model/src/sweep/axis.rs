//! A varied parameter and its values, parsed from the format of the command line.

use super::{POINTS_MAX, SweepError};
use crate::profile::Profile;
use crate::profile::quantity::Dimension;
use crate::profile::schema::{self, Key};

/// The values of a varied parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Listed values, in base units.
    Listed(Vec<u64>),
    /// All values between two ends, including both ends.
    Range {
        /// Lower end, in base units.
        from: u64,
        /// Upper end, in base units.
        to: u64,
        /// `true` for equal ratios between values, `false` for equal differences.
        is_log: bool,
        /// Number of values on a grid.
        count: Option<usize>,
    },
}

/// A varied parameter.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Definition of the parameter.
    pub key: &'static Key,
    /// Values of the parameter.
    pub values: Values,
}

const FORMS: &str = "write KEY=VALUE,VALUE,... or KEY=FROM..TO/COUNT, with units; FROM..TO:log/COUNT for equal ratios; \
                     KEY/COUNT for the interval in the profile";

impl Axis {
    /// Parses an axis such as `bus.clock=4MHz..32MHz/8`, `bus.clock=4MHz..32MHz:log/8` or
    /// `adapter.overflow=drop,overrun`. For a Latin hypercube, the count, such as `/8`, can be omitted.
    ///
    /// # Errors
    /// Returns an error if the parameter is unknown, or a value is invalid.
    pub fn parse(text: &str) -> Result<Self, SweepError> {
        let wrong = |why: String| SweepError::Wrong { of: text.to_owned(), why };
        let (name, values) = text.split_once('=').ok_or_else(|| wrong(FORMS.to_owned()))?;
        let key = schema::known(name.trim()).map_err(wrong)?;
        let values = match values.split_once("..") {
            Some((from, rest)) => range(key, from, rest),
            None => listed(key, values),
        };
        Ok(Self { key, values: values.map_err(wrong)? })
    }

    /// Parses an axis, in the same formats as [`Self::parse`]. A name without values, such as `host.wake_time` or
    /// `host.wake_time/5`, selects the parameter's interval in the profile.
    ///
    /// # Errors
    /// Fails like [`Self::parse`], and if the profile has no interval for the parameter.
    pub fn parse_for(text: &str, profile: &Profile) -> Result<Self, SweepError> {
        if text.contains('=') {
            return Self::parse(text);
        }
        let wrong = |why: String| SweepError::Wrong { of: text.to_owned(), why };
        let (name, count) = text.split_once('/').map_or((text, None), |(name, count)| (name, Some(count)));
        let key = schema::known(name.trim()).map_err(wrong)?;
        let Some([from, to]) = profile.interval(key.name) else {
            return Err(wrong(format!("{} has no interval for this key; {FORMS}", profile.name)));
        };
        let count = count.map(counted).transpose().map_err(wrong)?;
        Ok(Self { key, values: Values::Range { from, to, is_log: false, count } })
    }

    /// Returns the values on a grid, in base units.
    pub(super) fn listed(&self) -> Result<Vec<u64>, SweepError> {
        match &self.values {
            Values::Listed(values) => Ok(values.clone()),
            Values::Range { count: Some(count), .. } => {
                let last = (*count - 1).max(1) as f64;
                Ok((0..*count).map(|step| self.at(step as f64 / last)).collect())
            }
            Values::Range { count: None, .. } => {
                let why = "a grid needs the number of values; add /COUNT".to_owned();
                Err(SweepError::Wrong { of: self.key.name.to_owned(), why })
            }
        }
    }

    /// Returns the value at a relative position from 0 to 1 in the range of the axis, in base units.
    pub(super) fn at(&self, place: f64) -> u64 {
        match &self.values {
            Values::Listed(values) => {
                let at = (place * values.len() as f64) as usize;
                values[at.min(values.len() - 1)]
            }
            Values::Range { from, to, is_log, .. } => between(self.key, [*from, *to], *is_log, place),
        }
    }

    /// Formats the axis, with values in base units.
    pub(super) fn text(&self) -> String {
        format!("{}={:?}", self.key.name, self.values)
    }
}

/// Returns the value of a parameter at a relative position from 0 to 1 in a range, in base units. `is_log` selects a
/// geometric range.
pub(crate) fn between(key: &Key, [from, to]: [u64; 2], is_log: bool, place: f64) -> u64 {
    let (low, high) = (from as f64, to as f64);
    let value = if is_log { low * (high / low).powf(place) } else { low + (high - low) * place };
    let step = key.step() as f64;
    (((value / step).round() * step) as u64).clamp(from, to)
}

fn listed(key: &Key, text: &str) -> Result<Values, String> {
    text.split(',').map(|value| key.parse(value.trim())).collect::<Result<_, _>>().map(Values::Listed)
}

fn range(key: &Key, from: &str, rest: &str) -> Result<Values, String> {
    if matches!(key.dimension, Dimension::Choice(_)) {
        return Err("the key takes words; list them with commas".to_owned());
    }
    // A count consists of digits, so that the slash before the count differs from the slash in "Mbit/s".
    let is_count = |count: &str| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, count) = match rest.rsplit_once('/').filter(|(_, count)| is_count(count)) {
        Some((rest, count)) => (rest, Some(counted(count)?)),
        None => (rest, None),
    };
    let (to, is_log) = rest.strip_suffix(":log").map_or((rest, false), |to| (to, true));
    let (from, to) = (key.parse(from.trim())?, key.parse(to.trim())?);
    if from >= to {
        return Err("the range is empty; write the smaller value first".to_owned());
    }
    if is_log && from == 0 {
        return Err("a logarithmic range cannot start at 0".to_owned());
    }
    Ok(Values::Range { from, to, is_log, count })
}

fn counted(count: &str) -> Result<usize, String> {
    match count.parse() {
        Ok(count) if (2..=POINTS_MAX).contains(&count) => Ok(count),
        Ok(_) => Err(format!("a range has 2 to {POINTS_MAX} values")),
        Err(_) => Err(format!("{count:?} is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(text: &str) -> Vec<u64> {
        Axis::parse(text).unwrap().listed().unwrap()
    }

    #[test]
    fn ranges_are_read_with_units_and_counts_and_hold_both_ends() {
        assert_eq!(grid("bus.clock=4MHz..8MHz/3"), [4_000_000, 6_000_000, 8_000_000]);
        assert_eq!(grid("bus.clock=4MHz..16MHz:log/3"), [4_000_000, 8_000_000, 16_000_000]);
        assert_eq!(grid("link.rate=10Mbit/s..100Mbit/s/2"), [10_000_000, 100_000_000]);
        assert_eq!(grid("adapter.interrupt_rate=1000..2000/2"), [1000, 2000]);
    }

    #[test]
    fn a_value_between_is_one_that_the_parameter_takes() {
        let axis = Axis::parse("adapter.interrupt_wait=1us..10us").unwrap();
        for place in 0..100 {
            axis.key.in_range(axis.at(f64::from(place) / 100.0)).unwrap();
        }
    }

    #[test]
    fn lists_are_read_in_their_order() {
        assert_eq!(grid("host.receive_window=32KiB, 4KiB"), [32_768, 4096]);
        assert_eq!(grid("adapter.overflow=overrun,drop"), [1, 0]);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_axis() {
        for [text, why, _] in &crate::profile::tests::wrong("axes") {
            let error = Axis::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(text) && error.contains(why), "{text}: {error}");
        }
        let uncounted = Axis::parse("bus.clock=1MHz..2MHz").unwrap().listed().unwrap_err().to_string();
        assert_eq!(uncounted, "bus.clock: a grid needs the number of values; add /COUNT");
    }
}
