//! Published results beside the model's: cases, each in a file, and the 60 claims shipped with offramp.
//!
//! A miss stays in the table. A number is fitted to the rows named in its profile, or chosen for them. A row decided by
//! such a number is no prediction. The table counts the numbers, the rows, and the figures met by predictions.
//!
//! | file | content |
//! |---|---|
//! | `claims/case.rs` | the file of a case |
//! | `claims/engine.rs` | its runs, its expressions, and the parameters behind a row |
//! | `claims/functions.rs` | functions for expressions |
//! | `claims/mechanism.rs` | charts of the mechanisms behind the claims, each in a file |
//! | `claims/live.rs` | the lab's measurements of a claim |

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

/// Maximum error of a prediction that meets a published figure: percent, or points.
const MET_PERCENT: f64 = 10.0;
const MET_POINTS: f64 = 5.0;
/// Unit of an error of percentages.
const POINTS: &str = "points";

/// The origin of a row's figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Numbers of the profile were fitted to this row, or to another row with the same figure.
    Fitted,
    /// An unpublished number decides the row. It was chosen with this row or a similar one in view.
    Chosen,
    /// Its numbers were neither fitted nor chosen for it.
    #[default]
    Predicted,
    /// The row follows from the structure alone: an exact number, or a sign.
    Structural,
    /// It has no figure to compare with; the table shows the model's result.
    Shown,
}

/// A parameter behind the figure of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dependence {
    /// The parameter.
    pub name: &'static str,
    /// Percent of the figure for one percent of it.
    pub elasticity: f64,
    /// The kind of evidence for its number.
    pub tag: Tag,
    /// The rows for which its number was fitted or chosen.
    pub fitted_to: Vec<String>,
}

/// One line of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The case's number or name.
    pub id: String,
    /// The part of the case, where it has several.
    pub part: String,
    /// The published result.
    pub published: String,
    /// The model's result; `None` where its run stands still.
    pub modelled: Option<String>,
    /// The lowest and the highest result of the model over all intervals of numbers, the nominal one included; `None`
    /// without intervals.
    pub interval: Option<[String; 2]>,
    /// The lab's measurements of the claim, one per comparison; `None` where there is none.
    pub live: Option<Vec<Live>>,
    /// Excess of the model's figure over the published one.
    pub error: Option<f64>,
    /// Unit of `error`: `%`, or `points` where both are percentages.
    pub error_unit: &'static str,
    /// Kind of evidence of the row.
    pub kind: Kind,
    /// The row's target.
    pub target: String,
    /// `true` if the row meets its target; `None` without a target.
    pub ok: Option<bool>,
    /// The unknown and assumed values, or the reason for a missing figure.
    pub assumption: String,
    /// The parameters behind its figure, the strongest first; `None`: it has none, or the caller did not ask for them.
    pub hangs_on: Option<Vec<Dependence>>,
}

impl Row {
    fn new(case: &Case, spec: &RowSpec) -> Self {
        let (id, published) = (case.id.clone(), case.published.clone());
        Self { id, published, error_unit: "%", kind: spec.kind, ..Self::default() }
    }

    /// Returns whether a prediction meets the published figure.
    fn is_met(&self) -> bool {
        let most = if self.error_unit == POINTS { MET_POINTS } else { MET_PERCENT };
        self.kind == Kind::Predicted && self.ok == Some(true) && self.error.is_some_and(|error| error.abs() <= most)
    }
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// All rows, in the order of the cases.
    pub rows: Vec<Row>,
    /// Fitted numbers of the cases' systems.
    pub fitted_numbers: Vec<FittedNumber>,
    /// Chosen numbers of the cases' systems.
    pub chosen_numbers: Vec<FittedNumber>,
    /// Rows with a number fitted to them, or equal to such rows.
    pub fitted_rows: usize,
    /// Rows decided by a number chosen with them in view.
    pub chosen_rows: usize,
    /// Predicted rows.
    pub predicted_rows: usize,
    /// Predicted rows with an error, and so a figure on both sides.
    pub predicted_figures: usize,
    /// Published figures met by such rows within 10 % or 5 points, each counted once.
    pub predicted_figures_met: usize,
    /// Rows outside their target.
    pub missed_rows: usize,
    /// The run of the lab behind `live`; `None`: none was given.
    pub live_run: Option<LiveRun>,
}

/// A fitted or chosen number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FittedNumber {
    /// The parameter.
    pub name: &'static str,
    /// Its value, with unit.
    pub value: String,
    /// The rows for which it was fitted or chosen.
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

    /// Returns whether every row keeps to its target.
    pub fn is_ok(&self) -> bool {
        self.missed_rows == 0
    }
}

/// Runs everything for the cases, and again at `samples` places of the intervals. A row names the parameters behind it;
/// `hangs_on` selects them by their tag. Each such parameter costs one more of each run of the row.
///
/// # Errors
/// When a case names something unknown, or one of its expressions is invalid.
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

/// Returns the lowest and the highest figure of each row over all samples and the nominal one; `None` for a row without
/// intervals.
fn intervals(engine: &Engine, specs: &[(&Case, &RowSpec)], samples: usize) -> Vec<Option<[String; 2]>> {
    let rows = specs.iter().enumerate().filter(|(_, (case, spec))| spec.metric.is_some() && has_intervals(case));
    // The nominal figure is the last one.
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

/// Formats the table for people: a line for each row, its assumptions below it, and at the end the number of fits. The
/// lab's measurements of a claim follow the first of its rows.
pub fn text(table: &Table) -> String {
    render("claims.txt", context! { table => Serde(table), met_percent => MET_PERCENT, met_points => MET_POINTS })
}

/// Returns every number with this tag behind a run of the cases, once.
fn numbers(cases: &[Case], tag: Tag) -> Vec<FittedNumber> {
    let mut found = BTreeMap::new();
    for (key, quantity) in cases.iter().flat_map(|case| parameters(case, |of| of == tag)) {
        let value = key.dimension.show(quantity.value);
        found.insert((key.name, value.clone()), FittedNumber { name: key.name, value, rows: quantity.fitted_to });
    }
    found.into_values().collect()
}

/// The claims, in the order of their numbers.
static EMBEDDED: &[(&str, &str)] = embedded! { "cases", "toml":
    "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10", "M11", "M12", "M13", "M14", "M15", "M16", "M17", "M18", "M19", "M20", "M21",
    "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12",
    "H1", "H2", "H3", "H4", "H5", "H6", "H7",
    "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I16", "I17", "I18", "I19", "I20",
};

/// Returns every claim shipped with offramp, in the order of their numbers.
///
/// # Panics
/// Never: the files are part of the program, and tests read them.
pub fn all() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let case =
            |(file, text): &(&str, &str)| Case::parse(text, Path::new(file)).unwrap_or_else(|error| panic!("{error}"));
        EMBEDDED.iter().map(case).collect()
    });
    &CASES
}
