//! Numbers with a unit: `100M`, `64KiB`, `50us`. One parser for the file, the control protocol and the command line.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The unit of a number without a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bits per second. `k`, `M`, `G` and `T` are powers of 1000.
    BitsPerSecond,
    /// Bytes. `K`, `M`, `G` and `KiB`, `MiB`, `GiB` are powers of 1024, and `kB`, `MB`, `GB` are powers of 1000.
    Bytes,
    /// Bytes per second, with the suffixes of [`Unit::Bytes`].
    BytesPerSecond,
    /// Nanoseconds. `ns`, `us`, `ms`, `s`, `min` and `h` are the suffixes of every time.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Seconds.
    Seconds,
    /// Things that are counted. `k`, `M` and `G` are powers of 1000.
    Count,
}

/// A suffix, and its factor.
type Suffix = (&'static str, u64);

const BITS: &[Suffix] = &[("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];
const COUNTS: &[Suffix] = &[("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
const BYTES: &[Suffix] = &[
    ("B", 1),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("KB", 1_000),
    ("m", 1 << 20),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("g", 1 << 30),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
];
/// The suffixes of times, with their factors in nanoseconds.
const TIMES: &[Suffix] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Unit {
    /// Returns the unit of a key, determined by the end of the key's name; [`Unit::Count`] for a name without a unit.
    pub fn of_key(key: &str) -> Self {
        let units = [
            ("bits_per_second", Self::BitsPerSecond),
            ("bytes_per_second", Self::BytesPerSecond),
            ("_ns", Self::Nanoseconds),
            ("_usecs", Self::Microseconds),
            ("_seconds", Self::Seconds),
            ("bytes", Self::Bytes),
            ("bytes_max", Self::Bytes),
        ];
        units.into_iter().find(|(end, _)| key.ends_with(end)).map_or(Self::Count, |(_, unit)| unit)
    }

    /// Returns an example of a number with this unit, for messages.
    fn example(self) -> &'static str {
        match self {
            Self::BitsPerSecond => "100M or 1G",
            Self::Bytes | Self::BytesPerSecond => "64KiB or 1MiB",
            Self::Nanoseconds | Self::Microseconds => "50us or 10ms",
            Self::Seconds => "30s or 5min",
            Self::Count => "10k or 1M",
        }
    }

    /// Returns the suffixes, and the factor of a number without a suffix.
    fn suffixes(self) -> (&'static [Suffix], u64) {
        match self {
            Self::BitsPerSecond => (BITS, 1),
            Self::Bytes | Self::BytesPerSecond => (BYTES, 1),
            Self::Nanoseconds => (TIMES, 1),
            Self::Microseconds => (TIMES, 1_000),
            Self::Seconds => (TIMES, 1_000_000_000),
            Self::Count => (COUNTS, 1),
        }
    }

    /// Parses a decimal number with an optional suffix, and converts it to a whole number of this unit.
    ///
    /// # Errors
    /// Returns a phrase with an example if the text is no such number, or is not a whole number of this unit.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        const WHOLE: &str = "is no whole number";
        let wrong = || format!("{WHOLE}, and no number with a unit such as {}", self.example());
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = (&text[..end], text[end..].trim_start());
        let (suffixes, one) = self.suffixes();
        let ends: &[&str] = match self {
            Self::BitsPerSecond => &["bit/s", "bps", "bit"],
            Self::BytesPerSecond => &["/s"],
            _ => &[],
        };
        let suffix = ends.iter().find_map(|end| suffix.strip_suffix(end)).unwrap_or(suffix);
        let factor = match suffix {
            "" => one,
            suffix => suffixes.iter().find(|(name, _)| *name == suffix).ok_or_else(wrong)?.1,
        };
        let product = scaled(number, factor).ok_or_else(wrong)?;
        if !product.is_multiple_of(u128::from(one)) {
            return Err(format!("{WHOLE} of the key's unit"));
        }
        u64::try_from(product / u128::from(one)).map_err(|_| "is too large".to_owned())
    }
}

/// Multiplies a decimal number by `factor`. Returns `None` if the product is no whole number.
fn scaled(number: &str, factor: u64) -> Option<u128> {
    const DIGITS_MAX: usize = 18;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if whole.is_empty() || number.ends_with('.') || digits.len() > DIGITS_MAX {
        return None;
    }
    let divisor = 10u128.pow(fraction.len() as u32);
    let product = digits.parse::<u128>().ok()? * u128::from(factor);
    product.is_multiple_of(divisor).then_some(product / divisor)
}

/// Replaces a text with a unit by its number in the key's unit.
///
/// # Errors
/// Returns the phrase of [`Unit::parse`], also for a value that is neither a whole number nor a text.
pub(super) fn with_unit(key: &str, value: &Value) -> Result<Value, String> {
    match value {
        Value::String(text) => Unit::of_key(key).parse(text).map(Value::from),
        whole if whole.is_i64() || whole.is_u64() => Ok(whole.clone()),
        _ => Err("is no whole number".to_owned()),
    }
}

/// A number in a file: a whole number, or a text with a unit.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "write a whole number, or a text with a unit such as \"64KiB\"")]
pub enum Amount {
    /// A whole number in the key's unit.
    Number(i64),
    /// A number with a suffix.
    Text(String),
}

/// A number of a key in the file.
pub trait Written {
    /// Returns the number in the unit of `key`.
    ///
    /// # Errors
    /// Returns the phrase of [`Unit::parse`].
    fn number(&self, key: &str) -> Result<i64, String>;
}

impl Written for i64 {
    fn number(&self, _: &str) -> Result<i64, String> {
        Ok(*self)
    }
}

impl Written for Amount {
    fn number(&self, key: &str) -> Result<i64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => {
                let number = Unit::of_key(key).parse(text).map_err(|why| format!("{key} {text:?} {why}"))?;
                number.try_into().map_err(|_| format!("{key} {text:?} is too large"))
            }
        }
    }
}

/// Reads an optional number of bytes.
pub(super) fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    optional(from, Unit::Bytes)
}

/// Reads an optional number of seconds.
pub(super) fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    optional(from, Unit::Seconds)
}

/// Reads an optional number without a unit, such as a number of frames.
pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    optional(from, Unit::Count)
}

fn optional<'de, D: Deserializer<'de>>(from: D, unit: Unit) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "write a whole number, or a text with a unit such as \"64KiB\"")]
    enum Form {
        Number(u64),
        Text(String),
    }
    Option::<Form>::deserialize(from)?
        .map(|form| match form {
            Form::Number(number) => Ok(number),
            Form::Text(text) => unit.parse(&text).map_err(|why| D::Error::custom(format!("{text:?} {why}"))),
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_suffixes_of_its_unit() {
        for (unit, text, number) in [
            (Unit::BitsPerSecond, "100M", 100_000_000),
            (Unit::BitsPerSecond, "2.5G", 2_500_000_000),
            (Unit::BitsPerSecond, "10 Mbit/s", 10_000_000),
            (Unit::BitsPerSecond, "10Mbps", 10_000_000),
            (Unit::Bytes, "64KiB", 65_536),
            (Unit::Bytes, "128K", 131_072),
            (Unit::Bytes, "1MB", 1_000_000),
            (Unit::BytesPerSecond, "1MiB/s", 1 << 20),
            (Unit::Microseconds, "10ms", 10_000),
            (Unit::Microseconds, "50us", 50),
            (Unit::Microseconds, "50", 50),
            (Unit::Nanoseconds, "1.5us", 1500),
            (Unit::Seconds, "5min", 300),
            (Unit::Count, "10k", 10_000),
            (Unit::Count, "7", 7),
        ] {
            assert_eq!(unit.parse(text), Ok(number), "{text}");
        }
    }

    #[test]
    fn another_text_is_refused_with_an_example() {
        for text in ["", "M", "1.", ".5G", "-1", "1X", "1e9", "10ms", "1.5.2", "99999999999999999999", "1 M M", "½"] {
            assert!(Unit::BitsPerSecond.parse(text).unwrap_err().ends_with("such as 100M or 1G"), "{text}");
        }
        assert_eq!(Unit::Microseconds.parse("5ns").unwrap_err(), "is no whole number of the key's unit");
        assert_eq!(Unit::BitsPerSecond.parse("99999999999G").unwrap_err(), "is too large");
        assert!(Unit::Bytes.parse("1.3KiB").is_err() && Unit::Bytes.parse("100Mbit").is_err());
    }

    #[test]
    fn a_key_has_the_unit_at_the_end_of_its_name() {
        for (key, unit) in [
            ("tx_bits_per_second", Unit::BitsPerSecond),
            ("tx_burst_bytes", Unit::Bytes),
            ("port.host.memory_bytes_max", Unit::Bytes),
            ("bus_bytes_per_second", Unit::BytesPerSecond),
            ("rx_usecs", Unit::Microseconds),
            ("interrupt_cost_ns", Unit::Nanoseconds),
            ("age_seconds", Unit::Seconds),
            ("rx_frames_per_second", Unit::Count),
        ] {
            assert_eq!(Unit::of_key(key), unit, "{key}");
        }
    }
}
