//! Adds the results of a lab run, read from JSON, to the model's table of claims.

use std::path::Path;

use offramp_model::claims::{LiveRun, Table};
use thiserror::Error;

use crate::model::{LabReport, VERSION};
use crate::report::claims::by_claim;

/// An error while reading a lab report.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    File {
        /// Path of the file.
        path: String,
        /// Cause of the error.
        error: std::io::Error,
    },
    /// The file is not a report.
    #[error("{path}: not a lab report: {error}; write one with `offramp lab --json > {path}`")]
    Json {
        /// Path of the file.
        path: String,
        /// Parse error, with the line.
        error: serde_json::Error,
    },
    /// The report has an unsupported version.
    #[error("{path} is version {found} of the lab's report, and this program reads version {VERSION}; measure again")]
    Version {
        /// Path of the file.
        path: String,
        /// Version of the report.
        found: u64,
    },
}

/// Reads a report printed by `offramp lab --json`.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a report, or has an unsupported version.
pub fn read(path: &Path) -> Result<LabReport, LiveError> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| LiveError::File { path: name(), error })?;
    parse(&text, &name())
}

fn parse(text: &str, path: &str) -> Result<LabReport, LiveError> {
    let json = |error| LiveError::Json { path: path.to_owned(), error };
    // Check the version first: another version can lack fields, and the error must name the version.
    let value: serde_json::Value = serde_json::from_str(text).map_err(json)?;
    match value["version"].as_u64() {
        Some(found) if found != u64::from(VERSION) => Err(LiveError::Version { path: path.to_owned(), found }),
        // Parse the text again, so that an error has a line number.
        _ => serde_json::from_str(text).map_err(json),
    }
}

/// Adds the results of a run to the rows of its claims.
pub fn fill(table: &mut Table, report: &LabReport) {
    let measured = by_claim(report);
    for row in &mut table.rows {
        row.live = measured.iter().find(|(claim, _)| claim.id == row.id).map(|(_, live)| live.clone());
    }
    let (machine, settings) = (&report.machine, &report.settings);
    table.live_run = Some(LiveRun {
        offramp: report.offramp.clone(),
        kernel: machine.kernel.clone(),
        processor: machine.processor.clone(),
        cpus: machine.cpus,
        has_guest: machine.guest.is_some(),
        repeats: settings.repeats,
        seconds: settings.seconds,
        experiments: report.experiments.iter().map(|experiment| experiment.name.clone()).collect(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{sample, to_json};

    #[test]
    fn what_the_lab_wrote_is_read() {
        let report = parse(&to_json(&sample::report()), "lab.json").unwrap();
        assert_eq!(to_json(&report), to_json(&sample::report()));
    }

    #[test]
    fn what_is_no_report_is_refused_with_file_and_reason() {
        let refused = |text: &str| parse(text, "lab.json").unwrap_err().to_string();
        assert!(refused("").starts_with("lab.json: not a lab report"));
        assert!(refused("{\"version\": 1}").contains("missing field"));
        assert!(refused("[1, 2]").contains("not a lab report") && refused("{\"version\": \"1\"}").contains("line 1"));
        let newer = to_json(&sample::report()).replace("\"version\": 1", "\"version\": 2");
        assert!(refused(&newer).contains("is version 2") && refused(&newer).contains("measure again"));
        assert!(read(Path::new("/nowhere/lab.json")).unwrap_err().to_string().contains("/nowhere/lab.json"));
    }
}
