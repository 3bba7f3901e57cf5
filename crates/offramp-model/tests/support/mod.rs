//! Systems whose parameters are drawn.

use offramp_model::profile::Profile;
use proptest::prelude::*;
use std::ops::Range;

/// What a parameter is set to.
pub type Settings = Vec<(&'static str, String)>;

/// A value for each of these parameters: a number of a range with a unit, or one of some words.
pub fn settings(
    numbers: &[(&'static str, Range<u64>, &'static str)],
    words: &[(&'static str, &'static [&'static str])],
) -> impl Strategy<Value = Settings> {
    let numbers = numbers
        .iter()
        .cloned()
        .map(|(key, range, unit)| range.prop_map(move |number| (key, format!("{number}{unit}"))).boxed());
    let words = words
        .iter()
        .map(|&(key, words)| prop::sample::select(words).prop_map(move |word| (key, word.to_owned())).boxed());
    numbers.chain(words).collect::<Vec<_>>()
}

/// A system with these settings.
pub fn system(name: &str, settings: &Settings) -> Profile {
    let mut profile = Profile::load(name).unwrap();
    profile.set_all(settings.iter().cloned()).unwrap();
    profile
}
