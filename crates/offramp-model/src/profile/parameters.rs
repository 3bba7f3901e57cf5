//! The list of parameters for users: the entries of [`KEYS`], and the profiles that set each parameter.

use super::quantity::Dimension;
use super::schema::{self, KEYS, Key};
use super::{RawProfile, embedded};
use serde::Serialize;
use std::collections::BTreeMap;

/// A parameter. Default and range have the format of a setting, such as `8MHz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// Section and name of the parameter.
    pub name: &'static str,
    /// Valid units, or valid words.
    pub units: String,
    /// Smallest and largest value; `None` for a word.
    pub range: Option<[String; 2]>,
    /// Value used if no profile sets the parameter.
    pub default: String,
    /// `true` if a run multiplies the value by `host.cost_scale`.
    pub is_scaled: bool,
    /// Meaning of the parameter, in one sentence.
    pub meaning: &'static str,
    /// Profiles shipped with offramp that set the parameter, as `kind/name`.
    pub set_by: Vec<String>,
}

/// Returns the parameters whose name or meaning contains `pattern`, ignoring case. An empty `pattern` matches every
/// parameter.
///
/// # Errors
/// Returns a message with the nearest name if no parameter matches.
pub fn parameters(pattern: &str) -> Result<Vec<Parameter>, String> {
    let pattern = pattern.to_lowercase();
    let set_by = set_by();
    let of = |key: &Key| {
        let show = |value| key.dimension.show(value);
        let (units, range) = match key.dimension {
            Dimension::Choice(words) => (words.join(", "), None),
            dimension => (dimension.unit_names(), Some([show(key.min), show(key.max)])),
        };
        Parameter {
            name: key.name,
            units,
            range,
            default: show(key.parse(key.default).unwrap_or(key.min)),
            is_scaled: key.is_scaled,
            meaning: key.meaning,
            set_by: set_by.get(key.name).cloned().unwrap_or_default(),
        }
    };
    let has_it = |key: &&Key| key.name.contains(&pattern) || key.meaning.to_lowercase().contains(&pattern);
    let found: Vec<_> = KEYS.iter().filter(has_it).map(of).collect();
    match schema::known(&pattern) {
        Err(why) if found.is_empty() => Err(format!("{pattern}: {why}")),
        _ => Ok(found),
    }
}

/// Returns the profiles that set each parameter, by parameter name.
fn set_by() -> BTreeMap<String, Vec<String>> {
    let mut set_by: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (kind, profile, text) in embedded::PROFILES {
        let Ok(raw) = toml::from_str::<RawProfile>(text) else { continue };
        for (section, values) in &raw.sections {
            for name in values.as_table().into_iter().flat_map(toml::Table::keys) {
                set_by.entry(format!("{section}.{name}")).or_default().push(format!("{kind}/{profile}"));
            }
        }
    }
    set_by
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_by_its_name_or_its_meaning_with_the_profiles_that_set_it() {
        assert_eq!(parameters("").unwrap().len(), KEYS.len());
        let clock = &parameters("bus.clock").unwrap()[0];
        assert_eq!(clock.range, Some(["100 kHz".to_owned(), "200 GHz".to_owned()]));
        assert!(clock.default == "8 MHz" && clock.set_by.contains(&"bus/isa-8".to_owned()), "{clock:?}");
        let of = |pattern: &str| parameters(pattern).unwrap().iter().map(|of| of.name).collect::<Vec<_>>();
        assert_eq!(of("IOMMU"), ["bus.iommu", "bus.iotlb", "bus.walk_time"]);
        assert_eq!(parameters("adapter.lso").unwrap()[0].units, "off, on");
        assert!(parameters("adapter.lsso").unwrap_err().contains("did you mean \"adapter.lso\"?"));
    }
}
