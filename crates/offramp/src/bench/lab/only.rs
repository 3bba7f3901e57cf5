//! The words of `--only`: names of experiments, and ethtool's names of their features.

use offramp_offload::caps::Offloads;
use offramp_offload::names;
use offramp_testbed::error::TestbedError;

/// Returns the experiments named by a word of `--only`. The word may be the name of an experiment or group, or a name
/// of a feature or an offload. In the latter case, returns the experiments about the same feature, or else the
/// experiments about the same offload.
///
/// # Errors
/// Returns an error if the word names no experiment.
pub fn experiments_of(word: &str, known: &[&str]) -> Result<Vec<String>, TestbedError> {
    if known.contains(&word) {
        return Ok(vec![word.to_owned()]);
    }
    let found = sharing(word, known);
    if found.is_empty() {
        let words =
            names::all().filter(|of_table| !sharing(of_table, known).is_empty()).map(|of_table| of_table as &str);
        let hint = names::hint(word, known.iter().copied().chain(words));
        return Err(TestbedError::UnknownExperiment { name: word.to_owned(), hint, known: known.join(", ") });
    }
    Ok(found)
}

/// Returns the names in `known` that share a feature with `word`. If there are none, returns the names that share an
/// offload with `word`.
fn sharing(word: &str, known: &[&str]) -> Vec<String> {
    let (offloads, features) = (names::offloads(word).unwrap_or(Offloads::empty()), names::features(word));
    let has_feature = |name: &str| names::features(name).iter().any(|feature| features.contains(feature));
    let has_offload = |name: &str| {
        names::offloads(name).is_some_and(|of_name| of_name != Offloads::RATIFIED && of_name.intersects(offloads))
    };
    let found = |is_meant: &dyn Fn(&str) -> bool| {
        known.iter().filter(|name| is_meant(name)).map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    [found(&has_feature), found(&has_offload)].into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}
