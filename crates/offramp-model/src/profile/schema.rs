//! The table of parameters. `parameters.toml` gives the name, meaning, range and default of each parameter. The unit of
//! the default determines the dimension.

use super::quantity::{Dimension, nearest, split};
use super::workload::Workload;
use crate::time::PICOSECONDS_PER_MICROSECOND;
use Dimension::{BitRate, Bytes, Choice, Count, Frequency, Ratio, Time, TimePerByte};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A map with a word or a name as the key.
type ByWord<T> = BTreeMap<&'static str, T>;

/// The definition of a parameter.
#[derive(Clone, Debug)]
pub struct Key {
    /// Section and name, such as `bus.clock`.
    pub name: &'static str,
    /// Dimension of the value.
    pub dimension: Dimension,
    /// Minimum, in base units.
    pub min: u64,
    /// Maximum, in base units.
    pub max: u64,
    /// Default value, in the format of a setting.
    pub default: &'static str,
    /// `true` for a processor time of the host. A run multiplies such a time by `host.cost_scale`.
    pub is_scaled: bool,
    /// Meaning of the parameter, in one sentence.
    pub meaning: &'static str,
    /// The parameter has an effect only if each parameter listed here has one of the listed words.
    pub only_with: ByWord<Vec<&'static str>>,
    /// Workloads to which the parameter applies; empty for all workloads.
    workloads: Vec<Workload>,
    /// For each word of this parameter: the names of other parameters, and the word that each of these parameters must
    /// have.
    pub(super) needs: ByWord<ByWord<&'static str>>,
    /// Allowed values in base units, by kind of bus.
    pub(super) values: ByWord<Vec<u64>>,
}

impl Key {
    /// Returns whether the parameter applies to a workload.
    pub fn is_of(&self, workload: Workload) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&workload)
    }

    /// Parses a setting, such as `8MHz`, into base units.
    ///
    /// # Errors
    /// Returns a message if the text is not a number, the unit is invalid, or the value is out of range.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        let (number, unit) = match self.dimension {
            Choice(_) => (text, ""),
            // A count can omit its unit, because only one unit is valid.
            Count(unit) if split(text).1.is_empty() => (split(text).0, unit),
            _ => split(text),
        };
        self.dimension.value(number, unit).and_then(|value| self.in_range(value))
    }

    /// Returns the granularity of the value, in base units.
    pub fn step(&self) -> u64 {
        // Virtio's notification coalescing counts whole microseconds.
        let is_whole = ["adapter.interrupt_wait", "adapter.transmit_wait"].contains(&self.name);
        if is_whole { PICOSECONDS_PER_MICROSECOND } else { 1 }
    }

    /// Returns a value in base units, if the value is valid for this parameter.
    ///
    /// # Errors
    /// Returns a message if the value is out of range, or not a multiple of [`Self::step`].
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

/// Sections of a profile: the five kinds of parts, and the workload.
pub const SECTIONS: [&str; 6] = ["host", "adapter", "bus", "link", "peer", "workload"];

/// A parameter as written in `parameters.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: &'static str,
    /// Valid words; empty for a numeric parameter.
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
    /// Builds the definition of the parameter.
    ///
    /// # Errors
    /// Returns a message if a value's dimension differs from that of the default.
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
/// Never panics: the table is part of the program, and a test parses it.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let table: BTreeMap<&str, Vec<Entry>> = toml::from_str(include_str!("../../parameters.toml"))
        .unwrap_or_else(|error| panic!("parameters.toml: {error}"));
    let key = |entry: Entry| entry.key().unwrap_or_else(|why| panic!("parameters.toml: {why}"));
    table.into_values().flatten().map(key).collect()
});

/// Returns the parameter with this name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the parameter with this name, or an error with a hint.
///
/// # Errors
/// Returns a message with the nearest name if no parameter has this name.
pub fn known(name: &str) -> Result<&'static Key, String> {
    find(name).ok_or_else(|| {
        let (section, own) = name.split_once('.').unwrap_or(("", name));
        // The user may have omitted the section, or given a wrong section. The hint therefore names all parameters with
        // this name, in any section.
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
    /// Returns the parameters of section `workload` that apply to this workload.
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
