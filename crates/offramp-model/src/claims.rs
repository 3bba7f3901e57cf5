//! Published results beside what the model says: cases, each in a file, and the 60 claims that come with offramp.
//!
//! A miss stays in the table. A number is fitted to the rows that its profile names, or chosen for them, and a row that
//! such a number decides is no prediction. The table counts the numbers, the rows, and the figures that predictions meet.
//!
//! | file | what happens there |
//! |---|---|
//! | `claims/case.rs` | the file of a case |
//! | `claims/engine.rs` | its runs, its expressions, and on which parameters a row hangs |
//! | `claims/functions.rs` | what an expression may call |
//! | `claims/mechanism.rs` | charts of what is behind the claims, each in a file |
//! | `claims/live.rs` | what the lab measured of a claim |

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

/// A published figure is met by a prediction within this, percent, or within these points.
const MET_PERCENT: f64 = 10.0;
const MET_POINTS: f64 = 5.0;
/// Unit of an error of percentages.
const POINTS: &str = "points";

/// How a row came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Numbers of the profile were fitted to it, or to another row that says the same.
    Fitted,
    /// A number that nobody published decides it, and was chosen with this row or one like it in view.
    Chosen,
    /// It comes out of numbers that were neither.
    #[default]
    Predicted,
    /// It follows from the structure alone: an exact number, or a sign.
    Structural,
    /// It has no figure to compare with; what the model does is shown.
    Shown,
}

/// A parameter that the figure of a row hangs on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dependence {
    /// The parameter.
    pub name: &'static str,
    /// Percent of the figure for one percent of it.
    pub elasticity: f64,
    /// How its number is known.
    pub tag: Tag,
    /// The rows that it was fitted to or chosen for.
    pub fitted_to: Vec<String>,
}

/// One line of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The case's number or name.
    pub id: String,
    /// Which part of it, where it has several.
    pub part: String,
    /// What was published.
    pub published: String,
    /// What the model says; `None` where its run stands still.
    pub modelled: Option<String>,
    /// The lowest and the highest that the model says over all numbers that are intervals, and the nominal one; `None` where
    /// none is.
    pub interval: Option<[String; 2]>,
    /// What the lab measured of the claim, by one comparison after the other; `None` where it measured nothing.
    pub live: Option<Vec<Live>>,
    /// By how much that is above what was published.
    pub error: Option<f64>,
    /// Unit of `error`: `%`, or `points` where both are percentages.
    pub error_unit: &'static str,
    /// Kind of evidence of the row.
    pub kind: Kind,
    /// The target that the row must meet.
    pub target: String,
    /// Whether it does; `None` where there is none.
    pub ok: Option<bool>,
    /// What is not known and was assumed, or why there is no figure.
    pub assumption: String,
    /// The parameters that its figure hangs on, the strongest first; `None`: it has none, or they were not asked for.
    pub hangs_on: Option<Vec<Dependence>>,
}

impl Row {
    fn new(case: &Case, spec: &RowSpec) -> Self {
        let (id, published) = (case.id.clone(), case.published.clone());
        Self { id, published, error_unit: "%", kind: spec.kind, ..Self::default() }
    }

    /// Whether a prediction meets the published figure.
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
    /// Numbers of the cases' systems that were fitted.
    pub fitted_numbers: Vec<FittedNumber>,
    /// Numbers of the cases' systems that were chosen.
    pub chosen_numbers: Vec<FittedNumber>,
    /// Rows that a number was fitted to, or that say the same.
    pub fitted_rows: usize,
    /// Rows that a number decides which was chosen with them in view.
    pub chosen_rows: usize,
    /// Rows that are predicted.
    pub predicted_rows: usize,
    /// Those of them that have an error, and so a figure on both sides.
    pub predicted_figures: usize,
    /// Published figures, each counted once, that such rows meet within 10 % or 5 points.
    pub predicted_figures_met: usize,
    /// Rows that leave their target.
    pub missed_rows: usize,
    /// The run of the lab behind `live`; `None`: none was given.
    pub live_run: Option<LiveRun>,
}

/// A number that was fitted or chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FittedNumber {
    /// The parameter.
    pub name: &'static str,
    /// Its value, with unit.
    pub value: String,
    /// The rows that it was fitted to or chosen for.
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

    /// Whether every row keeps to its target.
    pub fn is_ok(&self) -> bool {
        self.missed_rows == 0
    }
}

/// Runs all that the cases need, and again at `samples` places of the numbers that are intervals. A row names the parameters that it hangs on, as far as `hangs_on` wants
/// numbers with their tag: each such number takes one more of each run of the row.
///
/// # Errors
/// When a case names what there is not, or an expression of it is none.
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

/// The lowest and the highest figure of each row over all samples and the nominal one; `None` of a row whose runs have no
/// interval.
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

/// The table for people: a line for each row, what was assumed below it, and at the end how much was fitted. What the lab
/// measured of a claim stands below the first of its rows.
pub fn text(table: &Table) -> String {
    render("claims.txt", context! { table => Serde(table), met_percent => MET_PERCENT, met_points => MET_POINTS })
}

/// Every number with this tag on which a run of the cases rests, once.
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

/// Every claim that comes with offramp, in the order of their numbers.
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
