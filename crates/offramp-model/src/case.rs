//! A published result as a file: the system, what is set, the workload, and figures with how far the model may be from them.
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
//! value = 947
//! within = "5 %"
//! ```

use crate::config::Workload;
use crate::metrics::{self, METRICS};
use crate::profile::quantity::nearest;
use crate::profile::{Profile, ProfileError, key_error, read_text};
use crate::simulation::{ModelError, run};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

const OF_A_CASE: [&str; 6] = ["published", "source", "system", "workload", "set", "row"];
const OF_A_ROW: [&str; 3] = ["metric", "value", "within"];

#[derive(Debug, Deserialize)]
struct Case {
    published: String,
    source: String,
    system: String,
    workload: String,
    #[serde(default)]
    set: BTreeMap<String, String>,
    row: Vec<RowOfCase>,
}

#[derive(Debug, Deserialize)]
struct RowOfCase {
    metric: String,
    value: f64,
    within: String,
}

/// A case beside what the model says.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Its file.
    pub file: String,
    /// What was published.
    pub published: String,
    /// Where.
    pub source: String,
    /// Its figures.
    pub rows: Vec<CheckedRow>,
}

/// A published figure beside that of the model.
#[derive(Debug, Serialize)]
pub struct CheckedRow {
    /// The figure, one of [`METRICS`], with its unit.
    pub metric: &'static str,
    /// As published.
    pub published: f64,
    /// As modelled.
    pub modelled: f64,
    /// By how much the model is above, in the unit of `within`.
    pub error: f64,
    /// How far it may be, in percent or points.
    pub within: String,
    /// Whether it is not farther.
    pub ok: bool,
}

/// Reads a case, runs it, and compares.
///
/// # Errors
/// When the file cannot be read or a name in it is wrong, with the nearest one; and as [`run`].
pub fn check(path: &Path) -> Result<Checked, ModelError> {
    let file = path.display().to_string();
    let text = read_text(path).map_err(|error| ProfileError::Read { file: file.clone(), error })?;
    let form = |error| ProfileError::Form { file: file.clone(), error: Box::new(error) };
    let table: toml::Table = toml::from_str(&text).map_err(form)?;
    known(&file, &table, &OF_A_CASE)?;
    for row in table.get("row").and_then(toml::Value::as_array).into_iter().flatten() {
        row.as_table().map_or(Ok(()), |row| known(&file, row, &OF_A_ROW))?;
    }
    let case: Case = toml::from_str(&text).map_err(form)?;
    let names = Workload::NAMES.map(|(name, _)| name);
    let (_, workload) = Workload::NAMES.iter().find(|(name, _)| *name == case.workload).ok_or_else(|| {
        let why = format!("there is no workload {:?}; use one of: {}", case.workload, names.join(", "));
        key_error(&file, "workload", why + &nearest(&case.workload, &names))
    })?;
    let beside = path.parent().unwrap_or(Path::new("")).join(&case.system);
    let is_file = beside.extension().is_some_and(|extension| extension == "toml");
    let mut profile = Profile::load(&if is_file { beside.to_string_lossy().into_owned() } else { case.system.clone() })
        .map_err(|error| key_error(&file, "system", error.to_string()))?;
    profile
        .set_all(case.set.iter().map(|(key, value)| (key.as_str(), value.as_str())))
        .map_err(|error| key_error(&file, "set", error.to_string()))?;
    let metrics: Vec<_> = case.row.iter().map(|row| row.found(&file)).collect::<Result<_, _>>()?;
    let outcome = run(&profile, *workload)?;
    let rows = case.row.into_iter().zip(metrics).map(|(row, (metric, bound, is_percent))| {
        let (published, modelled) = (row.value, (metric.value)(&outcome));
        let error = if is_percent { 100.0 * (modelled / published - 1.0) } else { modelled - published };
        CheckedRow { metric: metric.name, published, modelled, error, within: row.within, ok: error.abs() <= bound }
    });
    Ok(Checked { rows: rows.collect(), file, published: case.published, source: case.source })
}

impl RowOfCase {
    /// Its metric, how far that may be, and whether this is a share.
    fn found(&self, file: &str) -> Result<(&'static metrics::Metric, f64, bool), ProfileError> {
        let metric = metrics::find(&self.metric).ok_or_else(|| {
            let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
            let why = format!("there is no metric {:?}; use one of: {}", self.metric, names.join(", "));
            key_error(file, "row.metric", why + &nearest(&self.metric, &names))
        })?;
        let bound = self.within.split_once(' ').and_then(|(number, unit)| Some((number.parse::<f64>().ok()?, unit)));
        match bound {
            Some((bound, "%")) if bound > 0.0 && self.value != 0.0 => Ok((metric, bound, true)),
            Some((bound, "points")) if bound > 0.0 => Ok((metric, bound, false)),
            _ => Err(key_error(
                file,
                "row.within",
                "write it as \"5 %\", or \"3 points\" of the metric's unit".to_owned(),
            )),
        }
    }
}

fn known(file: &str, table: &toml::Table, names: &[&str]) -> Result<(), ProfileError> {
    table.keys().find(|name| !names.contains(&name.as_str())).map_or(Ok(()), |name| {
        Err(key_error(
            file,
            name,
            format!("there is no such key; use one of: {}{}", names.join(", "), nearest(name, names)),
        ))
    })
}
