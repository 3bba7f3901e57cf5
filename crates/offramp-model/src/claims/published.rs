//! What was published, and what the lab compares for it: `claims.toml`.

use serde::Deserialize;
use std::sync::LazyLock;

/// Where claims were published.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What it is, and of which machine.
    pub name: String,
    /// Its claims.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
}

/// A published claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its number, which it keeps for good.
    pub id: String,
    /// What was published.
    pub published: String,
    /// What a reader of the lab's figures must know; empty for nothing.
    #[serde(default)]
    pub note: String,
    /// What the lab compares for it; nothing where the lab cannot measure it.
    #[serde(default)]
    pub lab: Vec<Comparison>,
}

/// Two variants of an experiment of the lab.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Name of the experiment.
    pub experiment: String,
    /// The variant that is compared with.
    pub base: String,
    /// The variant that the claim is about.
    pub variant: String,
    /// Names of metrics: the one that the claim is about, and those that show what came with it.
    pub metrics: Vec<String>,
    /// Published range of the first metric, variant over base.
    pub ratio: Option<[f64; 2]>,
    /// Published range of the first metric of the variant.
    pub value: Option<[f64; 2]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "source")]
    sources: Vec<Source>,
}

/// Every claim by its source, in the order of their numbers.
///
/// # Panics
/// Never: the file is part of the program, and tests read it.
pub fn sources() -> &'static [Source] {
    static FILE: LazyLock<File> =
        LazyLock::new(|| toml::from_str(include_str!("../../claims.toml")).expect("claims.toml is well-formed"));
    &FILE.sources
}

/// Every claim, in the order of their numbers.
pub fn all() -> impl Iterator<Item = &'static Claim> {
    sources().iter().flat_map(|source| &source.claims)
}

/// What a claim says; nothing for a number that there is not.
pub(super) fn text_of(id: &str) -> &'static str {
    all().find(|claim| claim.id == id).map_or("", |claim| &claim.published)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_sixty_claims_stands_once_and_says_something() {
        let numbers = [("M", 21), ("R", 12), ("H", 7), ("I", 20)];
        let expected: Vec<String> =
            numbers.iter().flat_map(|(letter, last)| (1..=*last).map(move |n| format!("{letter}{n}"))).collect();
        assert_eq!(all().map(|claim| claim.id.as_str()).collect::<Vec<_>>(), expected);
        assert!(all().all(|claim| !claim.published.is_empty() && text_of(&claim.id) == claim.published));
    }

    #[test]
    fn a_published_range_is_of_one_kind_and_not_empty() {
        for claim in all() {
            for of in &claim.lab {
                assert!(!of.metrics.is_empty() && (of.ratio.is_none() || of.value.is_none()), "{}", claim.id);
                let range = of.ratio.or(of.value);
                assert!(range.is_none_or(|[low, high]| 0.0 <= low && low <= high), "{}", claim.id);
            }
        }
    }
}
