//! Published results compared with the model. A case is a file with one published result, and with the runs that
//! reproduce the result. The claims are the 60 cases shipped with offramp. A case has one or more rows in the table of
//! claims. A row has a published figure, the model's figure, and a target for the deviation.
//!
//! A row that misses its target stays in the table. For each fitted or chosen number, the profile names the rows for
//! which the number was fitted or chosen. A row is no prediction if its result depends on a chosen number, or on a
//! number that was fitted to this row. The table also counts the fitted and chosen numbers, the rows of each kind,
//! and the published figures met by predictions.
//!
//! | file | content |
//! |---|---|
//! | `claims/case.rs` | the file format of a case |
//! | `claims/engine.rs` | runs and expressions of a case; the parameters that affect a row |
//! | `claims/functions.rs` | functions for expressions |
//! | `claims/mechanism.rs` | charts of the mechanisms behind the claims, one file per mechanism |
//! | `claims/live.rs` | measurements of a claim by `offramp lab` |

mod case;
mod engine;
mod functions;
mod live;
pub mod mechanism;

pub use case::{Case, Comparison, read};
pub use live::{Live, LiveFigure, LiveRun};

use crate::pool;
use crate::profile::ProfileError;
use crate::profile::quantity::Tag;
use crate::text::render;
use case::{RowSpec, Variation};
use engine::{Engine, has_intervals, parameters};
use minijinja::context;
use minijinja::value::Serde;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

/// Maximum error at which a prediction meets its published figure, in percent or in percentage points.
const MET_PERCENT: f64 = 10.0;
const MET_POINTS: f64 = 5.0;
/// Unit of an error between two percentages.
const POINTS: &str = "points";

/// The kind of evidence for the modelled figure of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Numbers of the profile were fitted to this row, or to another row with the same figure.
    Fitted,
    /// The row's result depends on a number without a published value. The number was chosen with knowledge of this
    /// row's or a similar row's published result.
    Chosen,
    /// The row's result depends only on numbers that were neither fitted to this row nor chosen.
    #[default]
    Predicted,
    /// The row follows only from the structure of the model: an exact number, or the sign of a difference.
    Structural,
    /// The row has no published figure. The table only shows the model's result.
    Shown,
}

/// A parameter that affects the figure of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dependence {
    /// Name of the parameter.
    pub name: &'static str,
    /// Elasticity: change of the figure in percent, per percent of the parameter.
    pub elasticity: f64,
    /// Kind of evidence for the parameter's value.
    pub tag: Tag,
    /// Rows for which the parameter's value was fitted or chosen.
    pub fitted_to: Vec<String>,
}

/// One row of the table of claims.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Permanent number of the case, or the name of its file.
    pub id: String,
    /// The part of the case that this row covers; empty if the row covers the whole case.
    pub part: String,
    /// The published result.
    pub published: String,
    /// The model's result; `None` if a run stalls.
    pub modelled: Option<String>,
    /// Lowest and highest result of the model over the intervals of all uncertain numbers, including the nominal
    /// result. `None` if no number has an interval.
    pub interval: Option<[String; 2]>,
    /// Measurements of the claim by `offramp lab`, one per comparison; `None` without measurements.
    pub live: Option<Vec<Live>>,
    /// Deviation of the model's figure from the published figure.
    pub error: Option<f64>,
    /// Unit of `error`: `%`, or `points` if both figures are percentages.
    pub error_unit: &'static str,
    /// Kind of evidence for the modelled figure.
    pub kind: Kind,
    /// Target for the model's result, in words.
    pub target: String,
    /// `true` if the row meets its target; `None` without a target.
    pub ok: Option<bool>,
    /// Unknown and assumed values, or the reason for a missing figure.
    pub assumption: String,
    /// Parameters that affect the figure, the strongest first; empty if no examined parameter affects the figure.
    /// `None` if no parameter was examined.
    pub hangs_on: Option<Vec<Dependence>>,
}

impl Row {
    fn new(case: &Case, spec: &RowSpec) -> Self {
        let (id, published) = (case.id.clone(), case.published.clone());
        Self { id, published, error_unit: "%", kind: spec.kind, ..Self::default() }
    }

    /// Returns whether the row is a prediction that meets the published figure.
    fn is_met(&self) -> bool {
        let most = if self.error_unit == POINTS { MET_POINTS } else { MET_PERCENT };
        self.kind == Kind::Predicted && self.ok == Some(true) && self.error.is_some_and(|error| error.abs() <= most)
    }
}

/// The table of claims, with the counts of its rows and numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// All rows, in order of cases.
    pub rows: Vec<Row>,
    /// Numbers in the profiles of the cases' systems that were fitted to rows of claims.
    pub fitted_numbers: Vec<FittedNumber>,
    /// Numbers in the profiles of the cases' systems that were chosen with knowledge of rows of claims.
    pub chosen_numbers: Vec<FittedNumber>,
    /// Number of rows with kind [`Kind::Fitted`].
    pub fitted_rows: usize,
    /// Number of rows with kind [`Kind::Chosen`].
    pub chosen_rows: usize,
    /// Number of rows with kind [`Kind::Predicted`].
    pub predicted_rows: usize,
    /// Number of predicted rows with both a modelled and a published figure.
    pub predicted_figures: usize,
    /// Number of distinct published figures met by predicted rows, within 10 % or 5 points.
    pub predicted_figures_met: usize,
    /// Number of rows that miss their target.
    pub missed_rows: usize,
    /// The run of `offramp lab` that measured the values in [`Row::live`]; `None` if no run was given.
    pub live_run: Option<LiveRun>,
}

/// A fitted or chosen number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FittedNumber {
    /// Name of the parameter.
    pub name: &'static str,
    /// Value, with unit.
    pub value: String,
    /// Rows for which the number was fitted or chosen.
    pub rows: Vec<String>,
}

impl Table {
    fn new(rows: Vec<Row>, cases: &[Case]) -> Self {
        let count = |is: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
        let of_kind = |kind| count(&|row| row.kind == kind);
        let met: BTreeSet<_> = rows.iter().filter(|row| row.is_met()).map(|row| (&row.id, &row.published)).collect();
        Self {
            fitted_numbers: numbers(cases, Tag::Fitted),
            chosen_numbers: numbers(cases, Tag::Chosen),
            fitted_rows: of_kind(Kind::Fitted),
            chosen_rows: of_kind(Kind::Chosen),
            predicted_rows: of_kind(Kind::Predicted),
            predicted_figures: count(&|row| row.kind == Kind::Predicted && row.error.is_some()),
            predicted_figures_met: met.len(),
            missed_rows: count(&|row| row.ok == Some(false)),
            live_run: None,
            rows,
        }
    }

    /// Returns whether every row meets its target.
    pub fn is_ok(&self) -> bool {
        self.missed_rows == 0
    }
}

/// Runs all cases, and repeats the runs at `samples` points of the intervals of uncertain numbers. `hangs_on` selects,
/// by tag, the parameters to examine for an effect on each row. For each selected parameter, all runs of a row are
/// repeated once with a higher value of the parameter.
///
/// # Errors
/// Returns an error if a case contains an unknown name or an invalid expression.
pub fn check(cases: &[Case], hangs_on: fn(Tag) -> bool, samples: usize) -> Result<Table, ProfileError> {
    let engine = Engine::new();
    for case in cases {
        case.run.keys().try_for_each(|name| case.planned(name, Variation::None).map(drop))?;
    }
    let specs: Vec<_> = cases.iter().flat_map(|case| case.rows.iter().map(move |spec| (case, spec))).collect();
    let rows = pool::map(&specs, pool::threads(), |(case, spec)| engine.row(case, spec), |_, row| row.is_ok());
    let mut rows = rows.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    for (row, interval) in rows.iter_mut().zip(intervals(&engine, &specs, samples)) {
        row.interval = interval;
    }
    let has_figure = |spec: &RowSpec| spec.metric.is_some() && !matches!(spec.kind, Kind::Structural | Kind::Shown);
    let varied = specs.iter().enumerate().filter(|(_, (_, spec))| has_figure(spec));
    let varied: Vec<_> =
        varied.flat_map(|(at, (case, _))| parameters(case, hangs_on).into_iter().map(move |of| (at, of))).collect();
    let one = |(at, of): &(usize, _)| engine.dependence(specs[*at].0, specs[*at].1, of);
    let found = pool::map(&varied, pool::threads(), one, |_, _| true);
    for ((at, _), dependence) in varied.iter().zip(found) {
        rows[*at].hangs_on.get_or_insert_default().extend(dependence.flatten());
    }
    for hangs_on in rows.iter_mut().filter_map(|row| row.hangs_on.as_mut()) {
        hangs_on.sort_by(|a, b| b.elasticity.abs().total_cmp(&a.elasticity.abs()));
    }
    Ok(Table::new(rows, cases))
}

/// Returns the lowest and highest figure of each row over all samples and the nominal run. `None` for a row without a
/// figure, or whose runs have no number with an interval.
fn intervals(engine: &Engine, specs: &[(&Case, &RowSpec)], samples: usize) -> Vec<Option<[String; 2]>> {
    let rows = specs.iter().enumerate().filter(|(_, (case, spec))| spec.metric.is_some() && has_intervals(case));
    // The last index is the nominal run.
    let places: Vec<_> = rows.flat_map(|(at, _)| (0..=samples).map(move |sample| (at, sample))).collect();
    let one = |&(at, sample): &(usize, usize)| {
        let variation = if sample < samples { Variation::Sample(sample, samples) } else { Variation::None };
        engine.figure(specs[at].0, specs[at].1.metric.as_ref()?, variation).ok()
    };
    let found = pool::map(&places, pool::threads(), one, |_, _| true);
    let mut ends = vec![None; specs.len()];
    for ((at, _), value) in places.iter().zip(found) {
        let Some(value) = value.flatten().filter(|_| samples > 0) else { continue };
        let [low, high] = ends[*at].unwrap_or([value; 2]);
        ends[*at] = Some([value.min(low), value.max(high)]);
    }
    let shown = |(ends, (_, spec)): (Option<[f64; 2]>, &(&Case, &RowSpec))| {
        ends.map(|ends| ends.map(|value| engine::shown(spec, value)))
    };
    ends.into_iter().zip(specs).map(shown).collect()
}

/// Formats the table for display: one line per row, the row's assumptions below the line, and the counts at the end.
/// The measurements of a claim by `offramp lab` follow the claim's first row.
pub fn text(table: &Table) -> String {
    render("claims.txt", context! { table => Serde(table), met_percent => MET_PERCENT, met_points => MET_POINTS })
}

/// Returns the distinct numbers with this tag in the runs of the cases.
fn numbers(cases: &[Case], tag: Tag) -> Vec<FittedNumber> {
    let mut found = BTreeMap::new();
    for (key, quantity) in cases.iter().flat_map(|case| parameters(case, |of| of == tag)) {
        let value = key.dimension.show(quantity.value);
        found.insert((key.name, value.clone()), FittedNumber { name: key.name, value, rows: quantity.fitted_to });
    }
    found.into_values().collect()
}

/// Path and text of each claim, in numerical order.
static EMBEDDED: &[(&str, &str)] = embedded! { "cases", "toml":
    "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10", "M11", "M12", "M13", "M14", "M15", "M16", "M17", "M18", "M19", "M20", "M21",
    "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12",
    "H1", "H2", "H3", "H4", "H5", "H6", "H7",
    "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I16", "I17", "I18", "I19", "I20",
};

/// Returns every claim shipped with offramp, in numerical order.
///
/// # Panics
/// Never panics: the files are part of the program, and tests parse them.
pub fn all() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let case =
            |(file, text): &(&str, &str)| Case::parse(text, Path::new(file)).unwrap_or_else(|error| panic!("{error}"));
        EMBEDDED.iter().map(case).collect()
    });
    &CASES
}
