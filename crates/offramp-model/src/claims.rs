//! The published claims, beside what the model says.
//!
//! A miss stays in the table. A number is fitted only to the rows that its profile names, and the table says how many
//! numbers were fitted and how many rows are predicted.

mod isa;
mod live;
mod ndis;
mod published;
mod text;
mod tso;
mod windows;

pub use live::{Live, LiveFigure, LiveRun};
pub use published::{Claim, Comparison, Source, all, sources};
pub use text::text;

use crate::profile::{self, Profile};
use crate::simulation::ModelError;
use serde::Serialize;
use std::collections::BTreeMap;

const PERCENT: &str = "%";

/// How a row came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Numbers of the profile were chosen for it.
    Fitted,
    /// A number that nobody published decides it, and was chosen with this row or one like it in view.
    Chosen,
    /// It comes out of numbers that were not.
    Predicted,
    /// It follows from the structure alone: an exact number, or a sign.
    Structural,
    /// It has no figure to compare with; what the model does is shown.
    Shown,
    /// The model does not have it yet.
    NotModelled,
}

impl Kind {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Chosen => "chosen",
            Self::Predicted => "predicted",
            Self::Structural => "structural",
            Self::Shown => "shown",
            Self::NotModelled => "not modelled",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The claim's number.
    pub id: &'static str,
    /// Which part of it, where it has several.
    pub part: String,
    /// What was published.
    pub published: String,
    /// What the model says.
    pub modelled: Option<String>,
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
    /// Whether it does; `None` where it is not modelled.
    pub ok: Option<bool>,
    /// What is not known and was assumed, or why there is no figure.
    pub assumption: String,
}

/// The whole table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// All claims, in the order of their numbers.
    pub rows: Vec<Row>,
    /// Numbers that were fitted, with the rows that they were fitted to.
    pub fitted_numbers: Vec<FittedNumber>,
    /// Rows that a number decides which was chosen with them in view.
    pub chosen_rows: usize,
    /// Rows that are predicted.
    pub predicted_rows: usize,
    /// Those of them that have an error, and so a figure on both sides.
    pub predicted_figures: usize,
    /// Those of these that keep to their target.
    pub predicted_figures_met: usize,
    /// Rows that leave their target.
    pub missed_rows: usize,
    /// Claims that are not modelled yet.
    pub not_modelled: usize,
    /// The run of the lab behind `live`; `None`: none was given.
    pub live_run: Option<LiveRun>,
}

/// A number that was fitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FittedNumber {
    /// The parameter.
    pub name: &'static str,
    /// Its value, with unit.
    pub value: String,
    /// The rows that it was fitted to.
    pub rows: Vec<String>,
}

impl Table {
    /// Whether every row that is modelled keeps to its target.
    pub fn is_ok(&self) -> bool {
        self.missed_rows == 0
    }
}

/// Runs all that the claims need.
///
/// # Errors
/// When a profile that comes with offramp is wrong, or a run stands still.
pub fn table() -> Result<Table, ModelError> {
    let mut modelled = modelled()?;
    let mut rows = Vec::new();
    for claim in all() {
        let (of_claim, others) = modelled.into_iter().partition::<Vec<_>, _>(|row: &Row| row.id == claim.id);
        modelled = others;
        if of_claim.is_empty() {
            rows.push(Row::not_modelled(claim));
        }
        rows.extend(of_claim);
    }
    let count = |is: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let is_figure = |row: &Row| row.kind == Kind::Predicted && row.error.is_some();
    let chosen_rows = count(&|row| row.kind == Kind::Chosen);
    let predicted_rows = count(&|row| row.kind == Kind::Predicted);
    let predicted_figures = count(&is_figure);
    let predicted_figures_met = count(&|row| is_figure(row) && row.ok == Some(true));
    let missed_rows = count(&|row| row.ok == Some(false));
    let not_modelled = count(&|row| row.kind == Kind::NotModelled);
    Ok(Table {
        rows,
        fitted_numbers: fitted_numbers()?,
        chosen_rows,
        predicted_rows,
        predicted_figures,
        predicted_figures_met,
        missed_rows,
        not_modelled,
        live_run: None,
    })
}

/// The rows of all families, each made by a thread of its own: they share nothing, so their order does not matter.
fn modelled() -> Result<Vec<Row>, ModelError> {
    type Family = fn() -> Result<Vec<Row>, ModelError>;
    const FAMILIES: [Family; 4] = [isa::rows, ndis::rows, tso::rows, windows::rows];
    let families = std::thread::scope(|scope| {
        let threads = FAMILIES.map(|family| scope.spawn(family));
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let families = families.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(families.concat())
}

/// Every number that was fitted in any system or bus that comes with offramp, once.
fn fitted_numbers() -> Result<Vec<FittedNumber>, ModelError> {
    let mut found = BTreeMap::new();
    for listed in profile::list() {
        let profile = match listed.kind {
            "system" => Profile::load(listed.name)?,
            "bus" => Profile::load_bus(listed.name)?,
            _ => continue,
        };
        for (key, quantity) in profile.fitted() {
            let value = key.dimension.show(quantity.value);
            let number = FittedNumber { name: key.name, value: value.clone(), rows: quantity.fitted_to.clone() };
            found.insert((key.name, value), number);
        }
    }
    Ok(found.into_values().collect())
}

impl Row {
    fn not_modelled(claim: &'static Claim) -> Self {
        Self {
            id: &claim.id,
            part: String::new(),
            published: claim.published.clone(),
            modelled: None,
            live: None,
            error: None,
            error_unit: PERCENT,
            kind: Kind::NotModelled,
            target: String::new(),
            ok: None,
            assumption: "not modelled yet".to_owned(),
        }
    }

    /// A row with words on both sides.
    fn words(id: &'static str, kind: Kind, modelled: String, target: &str, ok: bool, assumption: &str) -> Self {
        Self {
            id,
            part: String::new(),
            published: published::text_of(id).to_owned(),
            modelled: Some(modelled),
            live: None,
            error: None,
            error_unit: PERCENT,
            kind,
            target: target.to_owned(),
            ok: Some(ok),
            assumption: assumption.to_owned(),
        }
    }

    /// A row with a figure on both sides, which must not differ by more than `within_percent`.
    fn figure(id: &'static str, kind: Kind, figures: Figures, within_percent: f64, assumption: &str) -> Self {
        let error = 100.0 * (figures.modelled / figures.published - 1.0);
        Self {
            id,
            part: figures.part,
            published: format!("{:.0} {}", figures.published, figures.unit),
            modelled: Some(format!("{:.0} {}", figures.modelled, figures.unit)),
            live: None,
            error: Some(error),
            error_unit: PERCENT,
            kind,
            target: format!("within {within_percent} %"),
            ok: Some(error.abs() <= within_percent),
            assumption: assumption.to_owned(),
        }
    }

    /// A predicted row with figures that are percentages, which must not differ by more than `within_points`.
    fn points(id: &'static str, figures: Figures, within_points: f64, assumption: &str) -> Self {
        let points = figures.modelled - figures.published;
        let row = Self::figure(id, Kind::Predicted, figures, within_points, assumption);
        let (target, ok) = (format!("within {within_points} points"), Some(points.abs() <= within_points));
        Self { target, ok, error: Some(points), error_unit: "points", ..row }
    }

    /// The same row, of one part of a claim.
    fn of_part(mut self, part: &str) -> Self {
        part.clone_into(&mut self.part);
        self
    }
}

/// Two figures to compare.
struct Figures {
    part: String,
    published: f64,
    modelled: f64,
    unit: &'static str,
}
