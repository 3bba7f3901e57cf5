//! A number with its unit, source and kind of evidence.

use serde::{Deserialize, Serialize};

/// The kind of evidence for a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Tag {
    /// Measured by the named source.
    Measured,
    /// From a data sheet, a standard or the source code of a driver.
    Documented,
    /// Calculated from other numbers, which the source names.
    Derived,
    /// Fitted, so that the model reproduces the published results of the rows in [`Quantity::fitted_to`]. The model's
    /// results in these rows are not predictions.
    Fitted,
    /// Unknown, and chosen by someone who knew the published results of the rows in [`Quantity::fitted_to`]. No result
    /// that depends on this number is a prediction.
    Chosen,
    /// Unknown, and assumed for the reason in [`Quantity::source`].
    #[default]
    Assumed,
    /// Set by the user.
    Set,
}

/// The dimension of a number, with its valid units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Time, stored in picoseconds.
    Time,
    /// Time per byte, stored in femtoseconds per byte.
    TimePerByte,
    /// Size, stored in bytes.
    Bytes,
    /// Frequency, stored in hertz.
    Frequency,
    /// Bit rate, stored in bits per second.
    BitRate,
    /// Ratio, stored in parts per million.
    Ratio,
    /// A count. The string is the name of the unit.
    Count(&'static str),
    /// One of the listed words, without a unit.
    Choice(&'static [&'static str]),
}

/// Name of a unit, and its size in base units.
type Unit = (&'static str, u64);

const TIME: &[Unit] = &[("ps", 1), ("ns", 1_000), ("us", 1_000_000), ("ms", 1_000_000_000), ("s", 1_000_000_000_000)];
const TIME_PER_BYTE: &[Unit] = &[("ps/byte", 1_000), ("ns/byte", 1_000_000), ("us/byte", 1_000_000_000)];
const BYTES: &[Unit] = &[("byte", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)];
const FREQUENCY: &[Unit] = &[("Hz", 1), ("kHz", 1_000), ("MHz", 1_000_000), ("GHz", 1_000_000_000)];
const BIT_RATE: &[Unit] = &[("bit/s", 1), ("kbit/s", 1_000), ("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000)];
const RATIO: &[Unit] = &[("ratio", 1_000_000), ("%", 10_000)];

impl Dimension {
    fn units(&self) -> Vec<Unit> {
        match self {
            Self::Time => TIME.to_vec(),
            Self::TimePerByte => TIME_PER_BYTE.to_vec(),
            Self::Bytes => BYTES.to_vec(),
            Self::Frequency => FREQUENCY.to_vec(),
            Self::BitRate => BIT_RATE.to_vec(),
            Self::Ratio => RATIO.to_vec(),
            Self::Count(unit) => vec![(*unit, 1)],
            Self::Choice(_) => Vec::new(),
        }
    }

    pub(super) fn has_unit(&self, unit: &str) -> bool {
        self.units().iter().any(|(name, _)| *name == unit)
    }

    /// Lists the valid units for display.
    pub fn unit_names(&self) -> String {
        let names: Vec<_> = self.units().iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    /// Converts a decimal number with a unit to base units, or a word of a [`Self::Choice`] to its index.
    ///
    /// # Errors
    /// Returns a message if `number` is not a valid decimal number, or if `unit` is not a valid unit.
    pub fn value(&self, number: &str, unit: &str) -> Result<u64, String> {
        if let Self::Choice(words) = self {
            let at = words.iter().position(|word| *word == number).map(|at| at as u64);
            let why = || format!("{number:?} is none of: {}{}", words.join(", "), nearest(number, words));
            return at.ok_or_else(why);
        }
        let units = self.units();
        let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
            let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
            let what =
                if unit.is_empty() { "the unit is missing".into() } else { format!("unit {unit:?} does not fit") };
            return Err(format!("{what}; use one of: {}{}", names.join(", "), usual(unit, &names)));
        };
        let (value, is_whole) =
            scaled(number, *factor).ok_or_else(|| format!("{number:?} is not a number of 0 or more that fits"))?;
        match self {
            Self::Bytes | Self::Count(_) if !is_whole => {
                Err(format!("{number:?} {unit} is not a whole number of {}", units[0].0))
            }
            _ => Ok(value),
        }
    }

    /// Formats a value given in base units, in the largest unit in which the number is at least 1. A ratio is always in
    /// percent, and a [`Self::Choice`] gives its word.
    pub fn show(&self, value: u64) -> String {
        if let Self::Choice(words) = self {
            return words.get(value as usize).copied().unwrap_or("?").to_owned();
        }
        let units = self.units();
        let (name, factor) = match self {
            Self::Ratio => ("%", 10_000),
            _ => *units.iter().rev().find(|(_, factor)| value >= *factor).unwrap_or(&units[0]),
        };
        let number = format!("{:.3}", value as f64 / factor as f64);
        format!("{} {name}", number.trim_end_matches('0').trim_end_matches('.'))
    }

    /// Formats an interval given in base units.
    pub fn show_interval(&self, [low, high]: [u64; 2]) -> String {
        format!("{} to {}", self.show(low), self.show(high))
    }
}

/// Returns a hint at the nearest of `names`. The hint is empty if no name is near.
pub fn nearest(word: &str, names: &[&str]) -> String {
    let best = offramp_offload::names::nearest(word, names.iter().copied());
    best.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default()
}

/// Other spellings of units, in lower case and with `u` for micro. Each spelling is paired with offramp's spelling.
const USUAL: &str = "b=byte bytes=byte octets=byte k=KiB kb=KiB kbyte=KiB m=MiB mb=MiB mbyte=MiB gb=MiB gib=MiB nsec=ns \
    usec=us usecs=us microseconds=us msec=ms sec=s seconds=s ps/b=ps/byte ns/b=ns/byte us/b=us/byte \
    bps=bit/s b/s=bit/s kbps=kbit/s kb/s=kbit/s kbit=kbit/s mbps=Mbit/s mb/s=Mbit/s mbit=Mbit/s gbps=Gbit/s \
    gb/s=Gbit/s gbit=Gbit/s mt/s=MHz gt/s=GHz percent=% pct=%";

fn usual_units() -> impl Iterator<Item = (&'static str, &'static str)> {
    USUAL.split(' ').filter_map(|pair| pair.split_once('='))
}

/// Returns a hint at the intended unit among `names`.
fn usual(unit: &str, names: &[&str]) -> String {
    let small = unit.replace(['µ', 'μ'], "u").to_lowercase();
    let is_meant =
        |name: &&&str| name.to_lowercase() == small || usual_units().any(|pair| pair == (small.as_str(), **name));
    match names.iter().find(is_meant) {
        Some(name @ (&"KiB" | &"MiB")) => {
            let bytes = BYTES.iter().find(|(of, _)| of == name).map_or(1, |(_, bytes)| *bytes);
            format!("; did you mean {name:?}? 1 {name} is {bytes} byte")
        }
        Some(name) if unit.contains("B/s") => format!("; did you mean {name:?}? 1 {unit} is 8 {name}"),
        Some(name) => format!("; did you mean {name:?}?"),
        None => nearest(unit, names),
    }
}

/// Multiplies a decimal number by `factor`, and rounds to the nearest integer. The second result tells whether the
/// product was an integer before rounding.
fn scaled(number: &str, factor: u64) -> Option<(u64, bool)> {
    const DIGITS_MAX: usize = 18;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let divisor = 10u128.pow(fraction.len() as u32);
    let value = digits.parse::<u128>().ok()? * u128::from(factor);
    let rounded = u64::try_from((value + divisor / 2) / divisor).ok()?;
    Some((rounded, value.is_multiple_of(divisor)))
}

/// Splits "13.4 MHz" or "13.4MHz" into number and unit.
pub(crate) fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    // The sign belongs to the number, so that an error about the number shows the sign.
    let unsigned = text.trim_start_matches(['-', '+']);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let end = text.len() - unsigned.len() + end;
    (&text[..end], text[end..].trim())
}

/// The value of a parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantity {
    /// Value in base units; for a word, its index in the list of words.
    pub value: u64,
    /// The interval of uncertainty, in base units, including both ends of the interval and the value. `None` if no
    /// interval was given.
    pub interval: Option<[u64; 2]>,
    /// The kind of evidence.
    pub tag: Tag,
    /// The source of the value, or the reason of an assumption.
    pub source: String,
    /// The rows of the table of claims ([`crate::claims`]) for which the number was fitted or chosen.
    pub fitted_to: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_scaled_without_floating_point() {
        assert_eq!(Dimension::Frequency.value("13.4", "MHz"), Ok(13_400_000));
        assert_eq!(Dimension::Time.value("9.6", "us"), Ok(9_600_000));
        assert_eq!(Dimension::Ratio.value("133.3333", "%"), Ok(1_333_333));
        assert_eq!(Dimension::Bytes.value("8", "KiB"), Ok(8192));
        assert_eq!(Dimension::Count("page").value("9", "page"), Ok(9));
    }

    #[test]
    fn pieces_and_bytes_are_whole() {
        assert_eq!(Dimension::Bytes.value("2.5", "KiB"), Ok(2560));
        assert_eq!(
            Dimension::Count("flow").value("2.5", "flow").unwrap_err(),
            "\"2.5\" flow is not a whole number of flow"
        );
        assert!(Dimension::Bytes.value("1.3", "KiB").unwrap_err().contains("whole number of byte"));
        assert_eq!(Dimension::Count("flow").value("2.0", "flow"), Ok(2));
    }

    #[test]
    fn what_is_wrong_is_said_with_the_nearest_name() {
        let error = Dimension::Frequency.value("8", "Mhz").unwrap_err();
        assert!(error.contains("\"MHz\""), "{error}");
        assert!(Dimension::Time.value("8", "").unwrap_err().contains("missing"));
        assert!(Dimension::Time.value("-8", "us").is_err());
        assert!(Dimension::Time.value("99999999999999999999", "s").is_err());
        assert!(Dimension::Choice(&["drop", "overrun"]).value("overun", "").unwrap_err().contains("\"overrun\""));
    }

    #[test]
    fn every_usual_unit_stands_for_one_that_there_is_and_an_unknown_one_for_none() {
        for (unit, meant) in usual_units() {
            let all = [TIME, TIME_PER_BYTE, BYTES, FREQUENCY, BIT_RATE, RATIO].concat();
            assert!(unit.to_lowercase() == unit && all.iter().any(|(name, _)| *name == meant), "{unit}");
        }
        assert!(!Dimension::Time.value("8", "KB").unwrap_err().contains("did you mean"), "no time is meant");
    }

    #[test]
    fn values_are_shown_in_a_unit_that_suits() {
        assert_eq!(Dimension::Time.show(1_230_400_000), "1.23 ms");
        assert_eq!(Dimension::Frequency.show(6_700_000), "6.7 MHz");
        assert_eq!(Dimension::Ratio.show(1_333_333), "133.333 %");
        assert_eq!(Dimension::Time.show(0), "0 ps");
        assert_eq!(Dimension::Time.show_interval([900_000, 1_100_000]), "900 ns to 1.1 us");
    }

    #[test]
    fn a_number_and_its_unit_are_told_apart() {
        assert_eq!(split("13.4MHz"), ("13.4", "MHz"));
        assert_eq!(split(" 8 KiB "), ("8", "KiB"));
        assert_eq!(split("drop"), ("", "drop"));
        assert_eq!(split("-3MHz"), ("-3", "MHz"));
    }
}
