//! A case: a published result in a TOML file, with the runs that reproduce the result.
//!
//! ```toml
//! published = "486-40 with a WD8003EP: 970 kB/s at 13.4 MHz"
//! source = "the Linux Ethernet HOWTO"
//! system = "486-wd8003ep"
//! workload = "ttcp-receive"
//! set = { "bus.clock" = "13.4MHz" }
//!
//! [[row]]
//! metric = "throughput_kib_per_s"
//! value = 970
//! within = "5 %"
//! ```
//!
//! A case with several runs names each run in `[run]`. The top-level keys are the defaults for all runs. `[figure]`
//! defines named expressions over the metrics of runs. The keys `metric` and `holds` of a row are expressions over runs
//! and figures. The texts of a row are templates over the names of runs and figures.

use super::Kind;
use crate::config::Workload;
use crate::profile::quantity::nearest;
use crate::profile::schema::{KEYS, Key};
use crate::profile::{Profile, ProfileError, form, key_error, read_text};
use crate::sweep::between;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the run in a case without named runs. Expressions name the figures of this run without a prefix.
pub(super) const ONLY_RUN: &str = "run";

pub(super) type Settings = BTreeMap<String, String>;

/// A comparison of two variants of an experiment of `offramp lab`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the base variant.
    pub base: String,
    /// Name of the variant that the claim compares with the base variant.
    pub variant: String,
    /// Names of metrics: first the metric of the claim, then further metrics for display.
    pub metrics: Vec<String>,
    /// Published range of the ratio of `variant` to `base` in the first metric.
    pub ratio: Option<[f64; 2]>,
    /// Published range of the first metric's value in the variant.
    pub value: Option<[f64; 2]>,
}

/// A run, or a list of runs over varied values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RunSpec {
    system: Option<String>,
    workload: Option<String>,
    set: Settings,
    pub(super) vary: BTreeMap<String, Vec<String>>,
}

/// A row of a case.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RowSpec {
    pub(super) part: String,
    pub(super) kind: Kind,
    /// Expression for the figure of the row.
    pub(super) metric: Option<String>,
    /// Published value of the figure.
    pub(super) value: Option<f64>,
    pub(super) unit: Option<String>,
    pub(super) within: Option<Within>,
    /// Template for the model's result in words.
    pub(super) shows: Option<String>,
    /// Expression for a condition on the result.
    pub(super) holds: Option<String>,
    pub(super) target: Option<String>,
    pub(super) assumed: String,
}

/// A published result.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Permanent number of the case, or the name of its file.
    #[serde(default)]
    pub id: String,
    /// The published result.
    pub published: String,
    /// The publication, and the machine of the measurement.
    pub source: String,
    /// Remark about measurements of the claim by `offramp lab`; empty for no remark.
    #[serde(default)]
    pub note: String,
    /// The comparisons by which `offramp lab` measures the claim; empty if `offramp lab` cannot measure the claim.
    #[serde(default)]
    pub lab: Vec<Comparison>,
    pub(super) system: Option<String>,
    pub(super) workload: Option<String>,
    #[serde(default)]
    pub(super) set: Settings,
    #[serde(default)]
    pub(super) run: BTreeMap<String, RunSpec>,
    #[serde(default)]
    pub(super) figure: BTreeMap<String, String>,
    #[serde(default, rename = "row")]
    pub(super) rows: Vec<RowSpec>,
    #[serde(skip)]
    pub(super) file: PathBuf,
}

/// The maximum deviation of a figure from the published value.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Within {
    Percent(f64),
    Points(f64),
    Factor(f64),
}

impl TryFrom<String> for Within {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const FORM: &str = "write it as \"5 %\", \"3 points\" or \"factor 2\"";
        let (first, second) = text.split_once(' ').ok_or(FORM)?;
        let (number, of): (&str, fn(f64) -> Self) = match (first, second) {
            ("factor", factor) => (factor, Self::Factor),
            (percent, "%") => (percent, Self::Percent),
            (points, "points") => (points, Self::Points),
            _ => return Err(FORM),
        };
        number.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite()).map(of).ok_or(FORM)
    }
}

/// One run of a case.
pub(super) struct Planned {
    pub(super) profile: Profile,
    pub(super) workload: Workload,
    /// All inputs that affect the outcome, as text.
    pub(super) fingerprint: String,
}

impl Case {
    /// Parses a case from the text of a file.
    ///
    /// # Errors
    /// Returns an error if the text is not valid TOML, or if a key is unknown, missing or invalid. The error names the
    /// file, the key and the nearest name.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ProfileError> {
        let mut case: Self = toml::from_str(text).map_err(|error| form(&file.display().to_string(), &error))?;
        file.clone_into(&mut case.file);
        if case.id.is_empty() {
            case.id = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        if case.run.is_empty() && case.system.is_some() {
            case.run.insert(ONLY_RUN.to_owned(), RunSpec::default());
        }
        match case.rows.iter().find_map(wrong) {
            Some((key, why)) => Err(case.error(&format!("row.{key}"), why.to_owned())),
            None if case.rows.is_empty() => {
                Err(case.error("row", "missing; add a [[row]] with the compared value".to_owned()))
            }
            None if case.source.trim().is_empty() => {
                Err(case.error("source", "empty; name the publication".to_owned()))
            }
            None => Ok(case),
        }
    }

    /// Builds an error about a key of the case.
    pub(super) fn error(&self, key: &str, why: String) -> ProfileError {
        key_error(&self.file.display().to_string(), key, why)
    }

    /// Expands a named run of the case to one run per combination of varied values.
    ///
    /// # Errors
    /// Returns an error if a system, a workload, a parameter or a value is invalid.
    pub(super) fn planned(&self, name: &str, variation: Variation) -> Result<Vec<Planned>, ProfileError> {
        let run = &self.run[name];
        let missing = |key: &str| self.error(&format!("run.{name}.{key}"), format!("the {key} is missing"));
        let system = run.system.as_ref().or(self.system.as_ref()).ok_or_else(|| missing("system"))?;
        let workload = run.workload.as_ref().or(self.workload.as_ref()).ok_or_else(|| missing("workload"))?;
        let found = workload.parse().map_err(|_| {
            let names: Vec<_> = Workload::names().map(|(name, _)| name).collect();
            let why = format!("there is no workload {workload:?}; use one of: {}", names.join(", "));
            self.error("workload", why + &nearest(workload, &names))
        })?;
        let beside = self.file.parent().unwrap_or(Path::new("")).join(system);
        let is_file = beside.extension().is_some_and(|extension| extension == "toml");
        let base = Profile::load(&if is_file { beside.to_string_lossy().into_owned() } else { system.clone() })
            .map_err(|error| self.error("system", error.to_string()))?;
        let mut settings: Vec<Settings> = vec![self.set.clone().into_iter().chain(run.set.clone()).collect()];
        for (key, values) in &run.vary {
            let with = |of: &Settings, value: &String| {
                of.clone().into_iter().chain([(key.clone(), value.clone())]).collect::<Settings>()
            };
            settings = settings.iter().flat_map(|of| values.iter().map(move |value| with(of, value))).collect();
        }
        let planned = |of: &Settings| {
            let mut profile = base.clone();
            profile.set_all(of).map_err(|error| self.error("set", error.to_string()))?;
            let mut fingerprint = format!("{} {workload} {of:?}", base.name);
            if let Some((varied, how)) = variation.of(&profile) {
                profile = varied;
                fingerprint += &how;
            }
            Ok(Planned { profile, workload: found, fingerprint })
        };
        settings.iter().map(planned).collect()
    }
}

/// A change of parameters that applies to all runs of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variation {
    /// No variation.
    None,
    /// Raises this parameter, if a higher value is valid.
    Raised(&'static Key),
    /// Sets every number with an interval to its value in one sample. The fields are the index of the sample and the
    /// number of samples.
    Sample(usize, usize),
}

impl Variation {
    /// Returns the varied profile, and a name for the variation. `None` if the variation changes no parameter, or gives
    /// an invalid profile.
    fn of(self, profile: &Profile) -> Option<(Profile, String)> {
        let mut varied = profile.clone();
        match self {
            Self::None => None,
            Self::Raised(key) => {
                let value = profile.value(key.name);
                let is_raised = value > 0 && varied.set_base_units([(key, raised(key, value))]).is_ok();
                is_raised.then(|| (varied, key.name.to_owned()))
            }
            Self::Sample(sample, samples) => {
                let intervals: Vec<_> =
                    KEYS.iter().filter_map(|key| Some((key, profile.interval(key.name)?))).collect();
                let at = |&(key, interval): &(&'static Key, _)| {
                    (key, between(key, interval, false, place(key, sample, samples)))
                };
                let is_varied = !intervals.is_empty() && varied.set_base_units(intervals.iter().map(at)).is_ok();
                is_varied.then(|| (varied, format!("sample {sample} of {samples}")))
            }
        }
    }
}

/// Returns the relative position of a number in its interval, from 0 to 1. As in a Latin hypercube, each of `samples`
/// equal parts of the interval has one sample. A number has the same position in all runs of a sample.
fn place(key: &Key, sample: usize, samples: usize) -> f64 {
    let seed = KEYS.iter().position(|other| other.name == key.name).unwrap_or_default() as u64;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut parts: Vec<usize> = (0..samples).collect();
    parts.shuffle(&mut rng);
    let within = (0..=sample).map(|_| rng.random_range(0.0..1.0)).last().unwrap_or(0.5);
    (parts[sample] as f64 + within) / samples as f64
}

/// Returns the value raised by 10 %, and by at least one step.
pub(super) fn raised(key: &Key, value: u64) -> u64 {
    let higher = value.saturating_add(value / 10);
    (higher - higher % key.step()).max(value.saturating_add(key.step()))
}

/// Returns the first key of the row that conflicts with other keys, and the reason.
fn wrong(row: &RowSpec) -> Option<(&'static str, &'static str)> {
    match (&row.metric, row.value, row.within) {
        (None, Some(_), _) => Some(("metric", "missing; a published value needs a metric")),
        (None, ..) if row.shows.is_none() => Some(("metric", "missing, like `shows`; add one of them")),
        (_, value, within) if value.is_some() != within.is_some() => {
            Some(("within", "only a published value has a tolerance, and each needs one"))
        }
        (_, Some(0.0), Some(Within::Percent(_) | Within::Factor(_))) => {
            Some(("within", "for a value of 0, write the tolerance in points"))
        }
        _ => None,
    }
}

/// Reads cases from files. For a directory, reads all its `.toml` files in order of names.
///
/// # Errors
/// Returns an error if a file cannot be read or is not a valid case.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Case>, ProfileError> {
    texts(paths)?.iter().map(|(file, text)| Case::parse(text, file)).collect()
}

/// Returns the paths and the texts of files. For a directory, returns all its `.toml` files in order of names.
pub(super) fn texts(paths: &[PathBuf]) -> Result<Vec<(PathBuf, String)>, ProfileError> {
    let failed = |file: &Path, error| ProfileError::Read { file: file.display().to_string(), error };
    let mut files = Vec::new();
    for path in paths {
        let mut found = vec![path.clone()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).and_then(|of| of.map(|entry| Ok(entry?.path())).collect());
            found = entries.map_err(|error| failed(path, error))?;
            found.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
            found.sort();
        }
        files.extend(found);
    }
    let text = |file: PathBuf| match read_text(&file) {
        Ok(text) => Ok((file, text)),
        Err(error) => Err(failed(&file, error)),
    };
    files.into_iter().map(text).collect()
}
