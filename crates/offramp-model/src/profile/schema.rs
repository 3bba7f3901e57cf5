//! Every parameter: `parameters.toml` gives its name, meaning, range and default. The unit of the default gives the
//! dimension.

use super::quantity::{Dimension, nearest, split};
use super::workload::Workload;
use crate::time::PICOSECONDS_PER_MICROSECOND;
use Dimension::{BitRate, Bytes, Choice, Count, Frequency, Ratio, Time, TimePerByte};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Words, each with its consequences.
type ByWord<T> = BTreeMap<&'static str, T>;

/// A parameter.
#[derive(Clone, Debug)]
pub struct Key {
    /// Section and name: `bus.clock`.
    pub name: &'static str,
    /// Its dimension.
    pub dimension: Dimension,
    /// Smallest value, base units.
    pub min: u64,
    /// Largest value, base units.
    pub max: u64,
    /// Value without any from a profile, as a user writes it.
    pub default: &'static str,
    /// A time of the host's processor: a run uses it times `host.cost_scale`.
    pub is_scaled: bool,
    /// Meaning, in a sentence.
    pub meaning: &'static str,
    /// The parameter has an effect only where another one has one of these words.
    pub only_with: ByWord<Vec<&'static str>>,
    /// The only workloads with this parameter; all have it if none is named.
    workloads: Vec<Workload>,
    /// Required values of other parameters, by words of this one.
    pub(super) needs: ByWord<ByWord<&'static str>>,
    /// All values, base units, on a bus of a kind.
    pub(super) values: ByWord<Vec<u64>>,
}

impl Key {
    /// Returns whether a workload has it.
    pub fn is_of(&self, workload: Workload) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&workload)
    }

    /// Parses a value as a user writes it, with its unit, into base units.
    ///
    /// # Errors
    /// In words: no number, no such unit, or out of range.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        let (number, unit) = match self.dimension {
            Choice(_) => (text, ""),
            // Pieces need no unit: there is only one.
            Count(unit) if split(text).1.is_empty() => (split(text).0, unit),
            _ => split(text),
        };
        self.dimension.value(number, unit).and_then(|value| self.in_range(value))
    }

    /// Returns the base units from one value to the next.
    pub fn step(&self) -> u64 {
        // Virtio's notification condition has whole microseconds.
        let is_whole = ["adapter.interrupt_wait", "adapter.transmit_wait"].contains(&self.name);
        if is_whole { PICOSECONDS_PER_MICROSECOND } else { 1 }
    }

    /// Returns a value in base units, if it is one of this parameter.
    ///
    /// # Errors
    /// In words, with the range.
    pub fn in_range(&self, value: u64) -> Result<u64, String> {
        let show = |value| self.dimension.show(value);
        if !value.is_multiple_of(self.step()) {
            return Err(format!("{} is not a whole number of {}", show(value), show(self.step())));
        }
        if (self.min..=self.max).contains(&value) {
            return Ok(value);
        }
        Err(format!("{} is out of range; use {} to {}", show(value), show(self.min), show(self.max)))
    }
}

/// Sections: the kinds of profile, each describing one part of a system, and the workload.
pub const SECTIONS: [&str; 6] = ["host", "adapter", "bus", "link", "peer", "workload"];

/// A parameter as the table has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: &'static str,
    /// All values of a parameter without a number.
    #[serde(default)]
    words: Vec<&'static str>,
    min: Option<&'static str>,
    max: Option<&'static str>,
    default: &'static str,
    #[serde(default)]
    is_scaled: bool,
    meaning: &'static str,
    #[serde(default)]
    only_with: ByWord<Vec<&'static str>>,
    #[serde(default)]
    workloads: Vec<Workload>,
    #[serde(default)]
    needs: ByWord<ByWord<&'static str>>,
    #[serde(default)]
    values: ByWord<Vec<&'static str>>,
}

impl Entry {
    /// # Errors
    /// In words: a value does not have the dimension of the default.
    fn key(self) -> Result<Key, String> {
        let unit = split(self.default).1;
        let of_unit = [Time, TimePerByte, Bytes, Frequency, BitRate, Ratio].into_iter().find(|of| of.has_unit(unit));
        let last = self.words.len().saturating_sub(1) as u64;
        let (dimension, last) = match self.words {
            words if words.is_empty() => (of_unit.unwrap_or(Count(unit)), u64::MAX),
            words => (Choice(words.leak()), last),
        };
        let value = |text: &str| dimension.value(split(text).0, split(text).1);
        let end = |text: Option<_>, otherwise| text.map_or(Ok(otherwise), value);
        let (min, max) = (end(self.min, 0)?, end(self.max, last)?);
        let all = |(kind, of): (_, Vec<_>)| Ok((kind, of.into_iter().map(value).collect::<Result<_, String>>()?));
        let values = self.values.into_iter().map(all).collect::<Result<_, String>>()?;
        let Self { name, default, is_scaled, meaning, only_with, workloads, needs, .. } = self;
        Ok(Key { name, dimension, min, max, default, is_scaled, meaning, only_with, workloads, needs, values })
    }
}

/// All parameters, in the order of display.
///
/// # Panics
/// Never: the table is part of the program, and a test reads it.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let table: BTreeMap<&str, Vec<Entry>> = toml::from_str(include_str!("../../parameters.toml"))
        .unwrap_or_else(|error| panic!("parameters.toml: {error}"));
    let key = |entry: Entry| entry.key().unwrap_or_else(|why| panic!("parameters.toml: {why}"));
    table.into_values().flatten().map(key).collect()
});

/// Returns the parameter with a name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the parameter with a name.
///
/// # Errors
/// In words, with the nearest name.
pub fn known(name: &str) -> Result<&'static Key, String> {
    find(name).ok_or_else(|| {
        let (section, own) = name.split_once('.').unwrap_or(("", name));
        // The right name without its section, or in another one.
        let ends: Vec<_> =
            KEYS.iter().map(|key| key.name).filter(|of| of.split_once('.').is_some_and(|(_, of)| of == own)).collect();
        let mut names = names_of(section);
        if names.is_empty() {
            names = KEYS.iter().map(|key| key.name).collect();
        }
        match ends.as_slice() {
            [] => format!("there is no such parameter{}", nearest(name, &names)),
            _ => format!("there is no such parameter; did you mean {}?", ends.join(" or ")),
        }
    })
}

/// Returns the names of all parameters of a section.
pub fn names_of(section: &str) -> Vec<&'static str> {
    let is_of = |name: &&str| name.split_once('.').is_some_and(|(of, _)| of == section);
    KEYS.iter().map(|key| key.name).filter(is_of).collect()
}

impl Workload {
    /// Returns its parameters in the section `workload`.
    pub fn parameters(self) -> Vec<&'static str> {
        let own = KEYS.iter().filter(|key| key.name.starts_with("workload.") && key.is_of(self));
        own.map(|key| key.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_range_and_every_name_is_there_once() {
        for (at, key) in KEYS.iter().enumerate() {
            let (number, unit) =
                if matches!(key.dimension, Choice(_)) { (key.default, "") } else { split(key.default) };
            let value = key.dimension.value(number, unit).unwrap_or_else(|why| panic!("{}: {why}", key.name));
            assert!((key.min..=key.max).contains(&value), "{}", key.name);
            assert!(KEYS[at + 1..].iter().all(|other| other.name != key.name), "{}", key.name);
            let section = key.name.split_once('.').unwrap().0;
            assert!(SECTIONS.contains(&section), "{}", key.name);
            let needs = key.needs.values().flatten().map(|(other, word)| (other, vec![*word]));
            for (other, words) in key.only_with.clone().iter().map(|(a, b)| (a, b.clone())).chain(needs) {
                let Some(Choice(known)) = find(other).map(|key| key.dimension) else { panic!("{}: {other}", key.name) };
                assert!(words.iter().all(|word| known.contains(word)), "{}: {words:?}", key.name);
            }
        }
    }
}
