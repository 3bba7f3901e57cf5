//! The report of a run in three formats: JSON, text for a terminal, and an HTML page with charts. [`modelled`] makes
//! HTML pages with charts from the model's results.

mod answer;
mod axis;
mod chart;
mod claims;
pub mod document;
pub mod figure;
pub mod html;
mod limit;
pub mod modelled;
pub(crate) mod numbers;
mod opening;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod progress;
#[cfg(test)]
pub(crate) mod sample;
pub mod terminal;
mod tradeoff;
pub mod words;

pub use words::sentences;

use crate::model::LabReport;

/// Returns the report as indented JSON, without a trailing newline. `docs/lab-json.md` describes every field.
///
/// # Panics
/// Never panics: every field can be represented in JSON. A number that is not finite becomes `null`.
#[must_use]
pub fn to_json(report: &LabReport) -> String {
    serde_json::to_string_pretty(report).expect("every field of the report has a form in JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_as_json_reads_back_the_same() {
        let report = sample::report();
        let json = to_json(&report);
        let back: LabReport = serde_json::from_str(&json).expect("our own JSON");
        assert_eq!(to_json(&back), json);
        assert!(json.ends_with('}'));
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let json = to_json(&sample::report());
        assert!(json.contains("\"transactions_per_s\": null"), "no zero stands for a missing figure");
    }

    /// Checks that `docs/lab-json.md` documents every field of the JSON object.
    #[test]
    fn every_field_is_documented() {
        let document = include_str!("../../../docs/lab-json.md");
        let mut names = Vec::new();
        for report in [sample::with_guest(), sample::with_moderation()] {
            collect_names(&serde_json::to_value(report).expect("an object"), &mut names);
        }
        names.sort_unstable();
        names.dedup();
        let missing: Vec<&String> = names.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/lab-json.md does not name {missing:?}");
    }

    fn collect_names(value: &serde_json::Value, names: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    names.push(name.clone());
                    collect_names(value, names);
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| collect_names(item, names)),
            _ => {}
        }
    }
}
