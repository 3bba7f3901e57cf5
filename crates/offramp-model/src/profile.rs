//! Profiles: files that describe hosts, adapters, buses, links and peers. Each number has a unit, a source and a tag
//! for the kind of evidence ([`quantity::Tag`]).
//!
//! A file describes one part (`kind = "adapter"`), or a whole system of named parts (`kind = "system"`). A file can
//! extend another file of the same kind (`extends = "wd8003ep"`), and then lists only the differences:
//!
//! ```toml
//! kind = "adapter"
//! title = "a WD8003EP with twice the memory"
//! extends = "wd8003ep"
//!
//! [adapter]
//! memory = { value = 16, unit = "KiB", tag = "assumed", source = "what if" }
//! ```
//!
//! A system names each part by the name of a profile shipped with offramp, or by the path of a `.toml` file. Such a
//! path is relative to the file that contains the path.
//!
//! A number with several measurements has an interval, in the unit of its value. Example: `write_copy_time = { value =
//! 0.25, unit = "ns/byte", interval = [0.24, 0.27], tag = "measured", source = "…" }`. [`crate::uncertainty`] computes
//! the effect of these intervals on an outcome.

mod embedded;
mod fit;
pub mod parameters;
pub mod quantity;
pub mod schema;
pub mod workload;

use crate::bus::PPM;
use crate::time::Span;
use quantity::{Dimension, Quantity, Tag, nearest};
use schema::{KEYS, Key, SECTIONS};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use workload::Workload;

/// Maximum length of a chain of `extends`, files.
const EXTENDS_MAX: usize = 16;
const SYSTEM: &str = "system";
/// Maximum length of a profile's file, in bytes: a hundred times the longest profile shipped with offramp.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Reasons to reject a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile has the requested name.
    #[error("there is no {kind} profile {name:?}{hint}; `offramp model list` names all")]
    Unknown {
        /// Requested kind of profile.
        kind: String,
        /// Requested name.
        name: String,
        /// A hint at the nearest known name.
        hint: String,
    },
    /// A file cannot be read.
    #[error("{file}: {error}")]
    Read {
        /// Path of the file.
        file: String,
        /// Cause of the error.
        error: std::io::Error,
    },
    /// A file, or the user, gives an invalid value.
    #[error("{file}: {why}")]
    Wrong {
        /// Source of the value: the file, or `--set`.
        file: String,
        /// The key, the error, and the remedy.
        why: String,
    },
}

/// A number as written in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "expected { value = 8, unit = \"MHz\", tag = \"assumed\", source = \"why\" }")]
struct RawQuantity {
    value: toml::Value,
    #[serde(default)]
    unit: String,
    interval: Option<toml::Value>,
    tag: Tag,
    source: String,
    #[serde(default)]
    fitted_to: Vec<String>,
}

/// A parsed file, before its numbers are converted to base units.
#[derive(Deserialize)]
struct RawProfile {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    title: String,
    extends: Option<String>,
    #[serde(default)]
    parts: BTreeMap<String, String>,
    #[serde(flatten)]
    sections: toml::Table,
}

/// A system with all its parts. Each parameter has a value.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Name of the profile, or path of its file.
    pub name: String,
    /// Short description of the profile.
    pub title: String,
    /// Name or path of each part's profile, by section.
    pub parts: BTreeMap<String, String>,
    values: BTreeMap<&'static str, Quantity>,
}

/// A profile shipped with offramp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// `host`, `adapter`, `bus`, `link`, `peer` or `system`.
    pub kind: &'static str,
    /// Name of the profile.
    pub name: &'static str,
    /// Short description of the profile.
    pub title: String,
}

/// Returns all profiles shipped with offramp.
pub fn list() -> Vec<Listed> {
    let title = |text: &str| toml::from_str::<RawProfile>(text).map(|raw| raw.title).unwrap_or_default();
    embedded::PROFILES.iter().map(|&(kind, name, text)| Listed { kind, name, title: title(text) }).collect()
}

impl Profile {
    /// Loads a system with all its parts, by name or by path.
    ///
    /// # Errors
    /// Returns an error if the system or a part is missing or invalid. The error names the file, the key and the
    /// reason.
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        let mut profile = Self { name: name.to_owned(), ..Self::default() };
        profile.add(SYSTEM, name, Path::new(""), &mut Vec::new())?;
        profile.check_parts()?;
        profile.add_defaults();
        profile.check()?;
        Ok(profile)
    }

    /// Loads a single bus, by name or by path. In the result, only the parameters of the bus are meaningful.
    ///
    /// # Errors
    /// Fails like [`Self::load`].
    pub fn load_bus(name: &str) -> Result<Self, ProfileError> {
        let mut profile = Self { name: name.to_owned(), ..Self::default() };
        profile.add("bus", name, Path::new(""), &mut Vec::new())?;
        profile.add_defaults();
        if profile.word("bus.kind") != "isa" {
            let master = known(name, "adapter.access")?;
            profile.values.insert(master.name, set_for_this_run(master.parse("master").unwrap_or(master.max)));
        }
        profile.check()?;
        Ok(profile)
    }

    /// Adds the values of one file, in this order: the values of the extended file, the values of the parts' files, the
    /// file's own values. A later value replaces an earlier value.
    fn add(&mut self, kind: &str, name: &str, from: &Path, chain: &mut Vec<String>) -> Result<(), ProfileError> {
        let (file, directory, text) = read(kind, name, from)?;
        let names_itself = chain.contains(&file) || chain.len() >= EXTENDS_MAX;
        chain.push(file.clone());
        if names_itself {
            let why = format!("extends itself, by way of {}", chain.join(", "));
            return Err(ProfileError::Wrong { file, why });
        }
        let raw: RawProfile = toml::from_str(&text).map_err(|error| form(&file, &error))?;
        if let Some((name, _)) = [("kind", &raw.kind), ("title", &raw.title)].into_iter().find(|(_, of)| of.is_empty())
        {
            return Err(key_error(&file, name, "it is missing".to_owned()));
        }
        if raw.kind != kind {
            return Err(key_error(&file, "kind", format!("{:?} does not fit here; use a {kind} profile", raw.kind)));
        }
        if let Some(base) = &raw.extends {
            self.add(kind, base, &directory, chain).map_err(|error| named_by(&file, "extends", error))?;
        }
        self.title.clone_from(&raw.title);
        self.add_parts(&raw, &file, &directory)?;
        self.add_values(&raw, &file)
    }

    fn add_parts(&mut self, raw: &RawProfile, file: &str, directory: &Path) -> Result<(), ProfileError> {
        for (section, name) in &raw.parts {
            if raw.kind != SYSTEM || !SECTIONS.contains(&section.as_str()) || section == "workload" {
                let why = format!("a {} has no such part{}", raw.kind, nearest(section, &SECTIONS));
                return Err(key_error(file, &format!("parts.{section}"), why));
            }
            self.values.retain(|key, _| key.split_once('.').is_none_or(|(of, _)| of != section));
            let title = self.title.clone();
            let key = format!("parts.{section}");
            self.add(section, name, directory, &mut Vec::new()).map_err(|error| named_by(file, &key, error))?;
            self.title = title;
            self.parts.insert(section.clone(), name.clone());
        }
        Ok(())
    }

    fn add_values(&mut self, raw: &RawProfile, file: &str) -> Result<(), ProfileError> {
        for (section, values) in &raw.sections {
            if !SECTIONS.contains(&section.as_str()) {
                let known = [&["kind", "title", "extends", "parts"], &SECTIONS[..]].concat();
                return Err(key_error(file, section, format!("there is no such key{}", nearest(section, &known))));
            }
            let values =
                values.as_table().ok_or_else(|| key_error(file, section, "this key is a section: [name]".to_owned()));
            for (name, value) in values? {
                let full = format!("{section}.{name}");
                if raw.kind != SYSTEM && raw.kind != *section {
                    let why = format!("a profile of kind {:?} has no section {section}", raw.kind);
                    return Err(key_error(file, &full, why));
                }
                let key = known(file, &full)?;
                let value = RawQuantity::deserialize(value.clone()).map_err(|error| {
                    let named = wrong_name(&error).map(|(name, why)| format!("its {name} {why}"));
                    key_error(file, &full, named.unwrap_or_else(|| error.message().to_owned()))
                })?;
                self.values.insert(key.name, quantity(file, key, &value)?);
            }
        }
        Ok(())
    }

    /// Rejects a system without a host, adapter, link or peer, because all parameters of the missing part would be
    /// defaults. The bus is optional: a bus master without a bus profile is never limited by the bus.
    fn check_parts(&self) -> Result<(), ProfileError> {
        let of = |key: &str, section: &str| key.split_once('.').is_some_and(|(of, _)| of == section);
        let is_said = |section: &str| self.values.keys().any(|key| of(key, section));
        match ["host", "adapter", "link", "peer"].into_iter().find(|section| !is_said(section)) {
            Some(section) => {
                let why = format!("the {section} is missing; name one of `offramp model list`, or a file");
                Err(key_error(&self.name, &format!("parts.{section}"), why))
            }
            None => Ok(()),
        }
    }

    fn add_defaults(&mut self) {
        for key in KEYS.iter() {
            self.values.entry(key.name).or_insert_with(|| Quantity {
                value: key.parse(key.default).unwrap_or(key.min),
                source: "the default without a value in the profile".to_owned(),
                ..Quantity::default()
            });
        }
    }

    /// Sets a parameter from a user's text. Examples for `bus.clock`: the value `13.4MHz`, or the interval
    /// `8MHz..13.4MHz`. For an interval, the parameter's value is the middle of the interval.
    ///
    /// # Errors
    /// Returns an error if the parameter is unknown, or if its value is invalid, or inconsistent with other values.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ProfileError> {
        self.set_all([(name, text)])
    }

    /// Sets several parameters from a user's texts, and then checks all values together. Some values are valid only in
    /// combination.
    ///
    /// # Errors
    /// Fails like [`Self::set`]. After an error, no parameter has changed.
    pub fn set_all(
        &mut self,
        settings: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
    ) -> Result<(), ProfileError> {
        let mut changed = self.clone();
        for (name, text) in settings {
            let key = known("--set", name.as_ref())?;
            let (value, interval) = parsed(key, text.as_ref()).map_err(|why| key_error("--set", key.name, why))?;
            changed.values.insert(key.name, Quantity { interval, ..set_for_this_run(value) });
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Sets several parameters to values in base units, and then checks all values together.
    ///
    /// # Errors
    /// Returns an error if a value is out of range, or if the values are inconsistent. After an error, some or all of
    /// the parameters can have changed.
    pub fn set_base_units(
        &mut self,
        values: impl IntoIterator<Item = (&'static Key, u64)>,
    ) -> Result<(), ProfileError> {
        for (key, value) in values {
            let value = key.in_range(value).map_err(|why| key_error("--set", key.name, why))?;
            self.values.insert(key.name, set_for_this_run(value));
        }
        self.check()
    }

    /// Sets a parameter like [`Self::set`], for a setting known to be valid.
    ///
    /// # Panics
    /// Panics if the setting is invalid. Only a programming error can cause this panic.
    #[must_use]
    pub fn with(mut self, name: &str, text: &str) -> Self {
        if let Err(error) = self.set(name, text) {
            panic!("{error}");
        }
        self
    }

    /// Returns the value of a parameter in base units.
    pub fn value(&self, name: &str) -> u64 {
        self.quantity(name).value
    }

    /// Returns the word chosen for a parameter. A numeric parameter has the empty string.
    pub fn word(&self, name: &str) -> &'static str {
        match schema::find(name).map(|key| key.dimension) {
            Some(Dimension::Choice(words)) => words.get(self.value(name) as usize).copied().unwrap_or_default(),
            _ => "",
        }
    }

    /// Returns the value of a parameter, with source and tag.
    ///
    /// # Panics
    /// Panics if the parameter does not exist. Only a programming error can cause this panic.
    pub fn quantity(&self, name: &str) -> &Quantity {
        self.values.get(name).unwrap_or_else(|| panic!("no parameter {name}"))
    }

    /// Returns the interval of a parameter, in base units. `None` if no interval was given, or if both ends of the
    /// interval are equal.
    pub fn interval(&self, name: &str) -> Option<[u64; 2]> {
        self.quantity(name).interval.filter(|[low, high]| low < high)
    }

    /// Returns every parameter, in the order of [`KEYS`].
    pub fn all(&self) -> impl Iterator<Item = (&'static Key, &Quantity)> {
        KEYS.iter().map(|key| (key, self.quantity(key.name)))
    }

    /// Returns every parameter set by a file or the user, in the order of [`KEYS`].
    pub fn said(&self) -> impl Iterator<Item = (&'static Key, &Quantity)> {
        let is_said = |quantity: &&Quantity| !quantity.source.starts_with("the default");
        KEYS.iter().filter_map(move |key| Some((key, self.values.get(key.name).filter(is_said)?)))
    }

    /// Returns a message for each user setting that has no effect on a run of this workload.
    pub fn without_effect(&self, workload: Workload) -> Vec<String> {
        let why = |key: &Key| {
            let name = key.name;
            let in_vain = key.only_with.iter().map(|(other, words)| (other, words, self.word(other)));
            let in_vain = in_vain.filter(|(_, words, is)| !words.contains(is));
            let with = in_vain.map(|(other, _, is)| format!("{name} has no effect: {other} is {is:?}"));
            let of = (!key.is_of(workload)).then(|| format!("{name} has no effect on {}", workload.name()));
            with.chain(of).collect::<Vec<_>>()
        };
        self.all().filter(|(_, quantity)| quantity.tag == Tag::Set).flat_map(|(key, _)| why(key)).collect()
    }

    /// Formats the value that a run uses for a parameter. The second text shows the calculation if `host.cost_scale`
    /// changes the value.
    pub fn used(&self, key: &Key) -> (String, Option<String>) {
        let (value, scale) = (self.value(key.name), self.value("host.cost_scale"));
        let shown = key.dimension.show(value);
        if !key.is_scaled || scale == PPM || value == 0 {
            return (shown, None);
        }
        let ratio = schema::find("host.cost_scale").map_or_else(String::new, |of| of.dimension.show(scale));
        (key.dimension.show(Span(value).scaled_ppm(scale).0), Some(format!("{shown} x {ratio}")))
    }
}

/// If a file is unknown or unreadable, adds to the error the key that refers to the file.
fn named_by(file: &str, key: &str, error: ProfileError) -> ProfileError {
    match error {
        ProfileError::Unknown { .. } | ProfileError::Read { .. } => key_error(file, key, error.to_string()),
        of_itself @ ProfileError::Wrong { .. } => of_itself,
    }
}

/// Reads a file of at most `FILE_LEN_MAX` bytes.
///
/// # Errors
/// Returns an error if the file cannot be read, or exceeds `FILE_LEN_MAX`.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    if File::open(path)?.take(FILE_LEN_MAX + 1).read_to_string(&mut text)? as u64 > FILE_LEN_MAX {
        let why = format!("the file exceeds {FILE_LEN_MAX} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Returns the name of a profile's file for errors, the base directory for its relative paths, and its text.
fn read(kind: &str, name: &str, from: &Path) -> Result<(String, PathBuf, String), ProfileError> {
    if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
        let path = from.join(name);
        let file = path.display().to_string();
        let text = read_text(&path).map_err(|error| ProfileError::Read { file: file.clone(), error })?;
        return Ok((file, path.parent().unwrap_or(from).to_owned(), text));
    }
    let of_kind = || embedded::PROFILES.iter().filter(|(of, _, _)| *of == kind);
    let Some((_, _, text)) = of_kind().find(|(_, of, _)| *of == name) else {
        let names: Vec<_> = of_kind().map(|(_, name, _)| *name).collect();
        let hint = nearest(name, &names);
        return Err(ProfileError::Unknown { kind: kind.to_owned(), name: name.to_owned(), hint });
    };
    Ok((format!("{kind}/{name}.toml"), from.to_owned(), (*text).to_owned()))
}

fn known(file: &str, name: &str) -> Result<&'static Key, ProfileError> {
    schema::known(name).map_err(|why| key_error(file, name, why))
}

/// Parses a user's text. Returns the value and, for an interval, both ends of the interval. For an interval, the
/// parameter's value is the middle of the interval.
fn parsed(key: &Key, text: &str) -> Result<(u64, Option<[u64; 2]>), String> {
    let Some((low, high)) = text.split_once("..") else { return Ok((key.parse(text)?, None)) };
    if matches!(key.dimension, Dimension::Choice(_)) {
        return Err("a word has no interval".to_owned());
    }
    let (low, high) = (key.parse(low)?, key.parse(high)?);
    if low >= high {
        return Err("the interval is empty; write the smaller value first".to_owned());
    }
    let middle = low.midpoint(high);
    Ok((middle - middle % key.step(), Some([low, high])))
}

fn set_for_this_run(value: u64) -> Quantity {
    Quantity { value, tag: Tag::Set, source: "set for this run".to_owned(), ..Quantity::default() }
}

fn quantity(file: &str, key: &'static Key, raw: &RawQuantity) -> Result<Quantity, ProfileError> {
    let wrong = |why| key_error(file, key.name, why);
    let value = base_units(key, &raw.value, &raw.unit).map_err(wrong)?;
    let interval =
        raw.interval.as_ref().map(|ends| interval(key, ends, &raw.unit, value)).transpose().map_err(wrong)?;
    if raw.source.trim().is_empty() {
        return Err(wrong("the source is empty; name the source of the number".to_owned()));
    }
    if matches!(raw.tag, Tag::Fitted | Tag::Chosen) == raw.fitted_to.is_empty() {
        let why = "a fitted or chosen number needs `fitted_to` with its rows, and other numbers have none";
        return Err(wrong(why.to_owned()));
    }
    Ok(Quantity { value, interval, tag: raw.tag, source: raw.source.clone(), fitted_to: raw.fitted_to.clone() })
}

/// Converts a value from a file to base units.
fn base_units(key: &Key, value: &toml::Value, unit: &str) -> Result<u64, String> {
    let number = match value {
        toml::Value::String(word) if matches!(key.dimension, Dimension::Choice(_)) => word.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        other => return Err(format!("{other} is not a valid value")),
    };
    key.dimension.value(&number, unit).and_then(|value| key.in_range(value))
}

/// Converts an interval from a file to base units. An interval has two numbers in the unit of `value`, and contains
/// `value`.
fn interval(key: &Key, ends: &toml::Value, unit: &str, value: u64) -> Result<[u64; 2], String> {
    if matches!(key.dimension, Dimension::Choice(_)) {
        return Err("a word has no interval".to_owned());
    }
    let ends = ends.as_array().map(Vec::as_slice);
    let Some([low, high]) = ends else {
        return Err("an interval is two numbers in the unit of the value: interval = [low, high]".to_owned());
    };
    let end = |end| base_units(key, end, unit).map_err(|why| format!("its interval: {why}"));
    let (low, high) = (end(low)?, end(high)?);
    if !(low..=high).contains(&value) {
        let (shown, value) = (key.dimension.show_interval([low, high]), key.dimension.show(value));
        return Err(format!("the interval {shown} does not contain the value {value}; write the smaller end first"));
    }
    Ok([low, high])
}

/// Returns the name that a TOML error reports as unknown or missing, and the reason.
fn wrong_name(error: &toml::de::Error) -> Option<(&str, String)> {
    // Examples of messages: "unknown field `withn`, expected one of `part`, `kind`, …", "missing field `source`".
    let names: Vec<&str> = error.message().split('`').skip(1).step_by(2).collect();
    match (error.message().split(' ').next(), names.as_slice()) {
        (Some("unknown"), [name, known @ ..]) => {
            Some((name, format!("is none of: {}{}", known.join(", "), nearest(name, known))))
        }
        (Some("missing"), [name]) => Some((name, "is missing".to_owned())),
        _ => None,
    }
}

/// Formats a TOML error in one line. An unknown name gets the nearest known name as a hint.
pub fn explain(error: &toml::de::Error) -> String {
    match wrong_name(error) {
        Some((name, why)) => format!("{name}: it {why}"),
        None => error.message().lines().collect::<Vec<_>>().join(", "),
    }
}

/// Converts a TOML error to a [`ProfileError`]. An unknown name gets the nearest known name as a hint.
pub(crate) fn form(file: &str, error: &toml::de::Error) -> ProfileError {
    let is_unknown = error.message().starts_with("unknown");
    let why = if is_unknown { explain(error) } else { error.to_string() };
    ProfileError::Wrong { file: file.to_owned(), why }
}

pub(crate) fn key_error(file: &str, key: &str, mut why: String) -> ProfileError {
    why.insert_str(0, &format!("{key}: "));
    ProfileError::Wrong { file: file.to_owned(), why }
}

#[cfg(test)]
pub(crate) mod tests;
