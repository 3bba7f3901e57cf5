//! A port's rate limits as written by a user: in the file, on the command line, and in the control protocol.

use super::unit::with_unit;
use super::word::unknown;
use offramp_adapter::limit::{BITS_PER_SECOND, BURST_BYTES, BURST_FRAMES, FRAMES_PER_SECOND, PortLimits};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The word that removes all limits on the command line.
pub const OFF: &str = "off";

/// A key of the limits: its name, its field, its range, and another key that it requires.
pub struct Key {
    /// The name of the key.
    pub name: &'static str,
    field: fn(&mut PortLimits) -> &mut Option<u64>,
    /// The range of the key's value.
    pub range: RangeInclusive<u64>,
    needs: Option<&'static str>,
}

impl Key {
    const fn new(
        name: &'static str,
        field: fn(&mut PortLimits) -> &mut Option<u64>,
        range: RangeInclusive<u64>,
        needs: Option<&'static str>,
    ) -> Self {
        Self { name, field, range, needs }
    }
}

/// All keys, in the order of display.
pub const KEYS: [Key; 8] = [
    Key::new("tx_bits_per_second", |limits| &mut limits.tx.bits_per_second, BITS_PER_SECOND, None),
    Key::new("tx_frames_per_second", |limits| &mut limits.tx.frames_per_second, FRAMES_PER_SECOND, None),
    Key::new("tx_burst_bytes", |limits| &mut limits.tx.burst_bytes, BURST_BYTES, Some("tx_bits_per_second")),
    Key::new("tx_burst_frames", |limits| &mut limits.tx.burst_frames, BURST_FRAMES, Some("tx_frames_per_second")),
    Key::new("rx_bits_per_second", |limits| &mut limits.rx.bits_per_second, BITS_PER_SECOND, None),
    Key::new("rx_frames_per_second", |limits| &mut limits.rx.frames_per_second, FRAMES_PER_SECOND, None),
    Key::new("rx_burst_bytes", |limits| &mut limits.rx.burst_bytes, BURST_BYTES, Some("rx_bits_per_second")),
    Key::new("rx_burst_frames", |limits| &mut limits.rx.burst_frames, BURST_FRAMES, Some("rx_frames_per_second")),
];

/// The limits of a port: an object with keys of [`KEYS`]. An absent key sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Limit(pub PortLimits);

impl TryFrom<Value> for Limit {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(keys) => Self::from_keys(&keys),
            _ => Err(format!("limit is a table of its keys: {}", KEYS.map(|key| key.name).join(", "))),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.given().try_for_each(|(name, number)| map.serialize_entry(name, &number))?;
        map.end()
    }
}

impl Limit {
    /// Parses the words of a command: `KEY=VALUE` for each key, or `off`.
    ///
    /// # Errors
    /// Returns one line with the wrong word and the known words.
    pub fn from_words(words: &[String]) -> Result<Self, String> {
        if words == [OFF] {
            return Ok(Self::default());
        }
        let key = |word: &String| {
            let (key, value) = word.split_once('=').ok_or_else(|| {
                format!(
                    "limit: \"{word}\" is neither KEY=NUMBER nor \"{OFF}\"; write such as {}=1000000000",
                    KEYS[0].name
                )
            })?;
            Ok((key.to_owned(), value.parse::<i64>().map_or_else(|_| value.into(), Value::from)))
        };
        Self::from_keys(&words.iter().map(key).collect::<Result<_, String>>()?)
    }

    fn from_keys(keys: &Map<String, Value>) -> Result<Self, String> {
        let mut limits = PortLimits::default();
        for (name, value) in keys {
            let key = KEYS.into_iter().find(|key| key.name == name);
            let key = key.ok_or_else(|| unknown("key", name, KEYS.iter().map(|key| key.name)))?;
            let value = &with_unit(name, value).map_err(|why| format!("limit.{name} {value} {why}"))?;
            let number = value.as_u64().filter(|number| key.range.contains(number)).ok_or_else(|| {
                let (least, most) = key.range.into_inner();
                format!("limit.{name} {value} is out of range; use {least} to {most}")
            })?;
            if let Some(needed) = key.needs.filter(|needed| !keys.contains_key(*needed)) {
                return Err(format!("limit.{name} belongs to {needed}; write that too, or leave it out"));
            }
            *(key.field)(&mut limits) = Some(number);
        }
        Ok(Self(limits))
    }

    /// Returns the keys that set a limit, with their values.
    fn given(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let mut limits = self.0;
        KEYS.into_iter().filter_map(move |key| Some((key.name, (*(key.field)(&mut limits))?)))
    }

    /// Formats the limits in one line; empty without a limit.
    pub fn sentence(&self) -> String {
        self.given().map(|(name, number)| format!("{name} {number}")).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_adapter::limit::RateLimit;

    fn parsed(words: &str) -> Result<Limit, String> {
        Limit::from_words(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn every_key_has_its_place_and_reads_back_as_it_is_shown() {
        let words: Vec<_> = KEYS.iter().zip(1001..).map(|(key, number)| format!("{}={number}", key.name)).collect();
        let limit = Limit::from_words(&words).unwrap();
        let direction = |first: u64| RateLimit {
            bits_per_second: Some(first),
            frames_per_second: Some(first + 1),
            burst_bytes: Some(first + 2),
            burst_frames: Some(first + 3),
        };
        assert_eq!(limit.0, PortLimits { tx: direction(1001), rx: direction(1005) });
        let text = serde_json::to_string(&limit).unwrap();
        assert_eq!(serde_json::from_str::<Limit>(&text).unwrap(), limit, "{text}");
        assert_eq!(limit.sentence(), words.join(" ").replace('=', " "));
        assert_eq!((parsed("off"), Limit::default().sentence().as_str()), (Ok(Limit::default()), ""));
        assert_eq!(serde_json::to_string(&Limit::default()).unwrap(), "{}");
    }

    #[test]
    fn a_number_may_have_a_unit_on_the_command_line_and_in_json() {
        let limit = parsed("tx_bits_per_second=100M tx_burst_bytes=64KiB rx_frames_per_second=10k").unwrap();
        assert_eq!(limit.sentence(), "tx_bits_per_second 100000000 tx_burst_bytes 65536 rx_frames_per_second 10000");
        let json = r#"{"tx_bits_per_second":"100M","tx_burst_bytes":"64KiB","rx_frames_per_second":10000}"#;
        assert_eq!(serde_json::from_str::<Limit>(json).unwrap(), limit);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_right() {
        let refused = |words: &str, text: &str| {
            let message = parsed(words).unwrap_err();
            assert!(message.contains(text), "{words}: {message}");
        };
        refused("tx_bits_per_sec=5", "unknown key \"tx_bits_per_sec\"; did you mean \"tx_bits_per_second\"?");
        refused("tx_bits_per_second=10X", "limit.tx_bits_per_second \"10X\" is no whole number");
        refused("tx_bits_per_second=10M tx_burst_bytes=1ms", "\"1ms\" is no whole number, and no number with a unit");
        refused("tx_bits_per_second=999", "limit.tx_bits_per_second 999 is out of range; use 1000 to 1000000000000");
        refused("rx_frames_per_second=-1", "limit.rx_frames_per_second -1 is out of range; use 1 to");
        refused("rx_burst_bytes=9000", "limit.rx_burst_bytes belongs to rx_bits_per_second; write that too");
        refused("tx_frames_per_second=5 tx_burst_bytes=9000", "limit.tx_burst_bytes belongs to tx_bits_per_second");
        refused("none", "\"none\" is neither KEY=NUMBER nor \"off\"");
        let message = serde_json::from_str::<Limit>("5").unwrap_err().to_string();
        assert!(message.contains("limit is a table of its keys: tx_bits_per_second, "), "{message}");
    }
}
