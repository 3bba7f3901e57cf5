//! Evaluates the rows of cases. A run is simulated once, when an expression first uses the run.

use super::case::{Case, ONLY_RUN, Planned, RowSpec, Variation, Within, raised};
use super::functions::environment;
use super::{Dependence, POINTS, Row};
use crate::metrics::{self, METRICS};
use crate::profile::ProfileError;
use crate::profile::quantity::{Dimension, Quantity, Tag, nearest};
use crate::profile::schema::{KEYS, Key};
use crate::sensitivity::OF_THE_RUN;
use crate::simulation::{ModelError, Outcome, run};
use minijinja::value::{Serde, ValueKind, merge_maps};
use minijinja::{Environment, Value};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Minimum elasticity at which a figure counts as dependent on a parameter: percent of the figure per percent of the
/// parameter.
const DEPENDS_FROM: f64 = 0.05;
/// Key for the reason of the stall. Only the figures of a run without an outcome have this key.
const STALLED: &str = "stalled";

/// The figures of a run, set once the run has ended.
type Cell = Arc<OnceLock<Value>>;

pub(super) struct Engine {
    environment: Environment<'static>,
    outcomes: Mutex<HashMap<String, Cell>>,
}

impl Engine {
    pub(super) fn new() -> Self {
        Self { environment: environment(), outcomes: Mutex::default() }
    }

    /// Evaluates a row. A row with a stalled run misses its target.
    pub(super) fn row(&self, case: &Case, spec: &RowSpec) -> Result<Row, ProfileError> {
        self.judged(case, spec).or_else(|(key, why)| match self.stalled(case) {
            Some(stalled) => Ok(Row { ok: Some(false), assumption: stalled, ..Row::new(case, spec) }),
            None => Err(case.error(&format!("row.{key}"), why)),
        })
    }

    fn judged(&self, case: &Case, spec: &RowSpec) -> Result<Row, (&'static str, String)> {
        let render = |key, text: &str| self.render(case, text).map_err(|why| (key, why));
        let metric = spec.metric.as_ref().map(|text| self.figure(case, text, Variation::None)).transpose();
        let modelled = metric.map_err(|why| ("metric", why))?;
        let holds = spec.holds.as_ref().map(|text| self.evaluate(case, text, Variation::None, false)).transpose();
        let holds = holds.map_err(|why| ("holds", why))?.map(|value| value.is_true());
        let part = render("part", &spec.part)?;
        let mut row = Row { part, ok: holds, assumption: render("assumed", &spec.assumed)?, ..Row::new(case, spec) };
        let show = |value: f64| shown(spec, value);
        row.modelled = modelled.map(show);
        if let (Some(published), Some(modelled), Some(within)) = (spec.value, modelled, spec.within) {
            let (points, percent) = (modelled - published, 100.0 * (modelled / published - 1.0));
            let (target, error, unit, is_within) = match within {
                Within::Percent(most) => (format!("within {most} %"), percent, "%", percent.abs() <= most),
                Within::Points(most) => (format!("within {most} points"), points, POINTS, points.abs() <= most),
                Within::Factor(most) => {
                    let is_within = (1.0 / most..=most).contains(&(modelled / published));
                    (format!("within a factor of {most}"), percent, "%", is_within)
                }
            };
            let ok = Some(is_within && holds.unwrap_or(true));
            row = Row { published: show(published), target, error: Some(error), error_unit: unit, ok, ..row };
        }
        if let Some(text) = &spec.shows {
            row.modelled = Some(render("shows", text)?);
            case.published.clone_into(&mut row.published);
        }
        if let Some(target) = &spec.target {
            target.clone_into(&mut row.target);
        }
        Ok(row)
    }

    /// Returns the elasticity of a row's figure with respect to a parameter. `None` if the effect is negligible.
    pub(super) fn dependence(&self, case: &Case, spec: &RowSpec, of: &(&'static Key, Quantity)) -> Option<Dependence> {
        let (metric, (key, quantity)) = (spec.metric.as_ref()?, of);
        let here = self.figure(case, metric, Variation::None).ok()?;
        let change = (self.figure(case, metric, Variation::Raised(key)).ok()? - here) / here.abs();
        let elasticity = change / (raised(key, quantity.value) as f64 / quantity.value as f64).ln();
        let (tag, fitted_to) = (quantity.tag, quantity.fitted_to.clone());
        let depends = elasticity.is_finite() && elasticity.abs() >= DEPENDS_FROM;
        depends.then_some(Dependence { name: key.name, elasticity, tag, fitted_to })
    }

    pub(super) fn figure(&self, case: &Case, text: &str, variation: Variation) -> Result<f64, String> {
        f64::try_from(self.evaluate(case, text, variation, false)?).map_err(|error| error.to_string())
    }

    pub(super) fn evaluate(
        &self,
        case: &Case,
        text: &str,
        variation: Variation,
        is_figure: bool,
    ) -> Result<Value, String> {
        let expression = self.environment.compile_expression(text).map_err(|error| error.to_string())?;
        let names = self.names(case, expression.undeclared_variables(true), variation, is_figure)?;
        expression.eval(names).map_err(|error| error.to_string())
    }

    /// Evaluates a condition on the curves of a chart.
    pub(super) fn holds(&self, text: &str, curves: &impl Serialize) -> Result<bool, String> {
        let curves = Value::from_pairs([("of", Value::from(Serde(curves)))]);
        let found = self.environment.compile_expression(text).and_then(|expression| expression.eval(curves));
        found.map(|value| value.is_true()).map_err(|error| error.to_string())
    }

    fn render(&self, case: &Case, text: &str) -> Result<String, String> {
        let template = self.environment.template_from_str(text).map_err(|error| error.to_string())?;
        let names = self.names(case, template.undeclared_variables(true), Variation::None, false)?;
        template.render(names).map_err(|error| error.to_string())
    }

    /// Returns the values of the names in an expression. A figure can only use runs, not figures, so cycles are
    /// impossible.
    fn names(
        &self,
        case: &Case,
        paths: HashSet<String>,
        variation: Variation,
        is_figure: bool,
    ) -> Result<Value, String> {
        let mut names = BTreeMap::new();
        for path in paths {
            let mut parts = path.split('.');
            let (name, field) = (parts.next().unwrap_or_default(), parts.next());
            let value = if case.run.contains_key(name) {
                let run = self.run(case, name, variation);
                field.map_or(Ok(()), |field| read(&run, field).map(drop))?;
                run
            } else if let Some(text) = case.figure.get(name).filter(|_| !is_figure) {
                self.evaluate(case, text, variation, true)?
            } else if self.environment.globals().any(|(global, _)| global == name) {
                continue;
            } else if case.run.contains_key(ONLY_RUN) {
                read(&self.run(case, ONLY_RUN, variation), name)?
            } else {
                let known: Vec<&str> = case.run.keys().chain(case.figure.keys()).map(String::as_str).collect();
                return Err(format!("there is no run or figure {name:?}{}", nearest(name, &known)));
            };
            names.insert(name.to_owned(), value);
        }
        Ok(Value::from_pairs(names))
    }

    /// Returns the figures of a run, by name. For a run expanded over varied values, returns a list with one map per
    /// combination of values.
    fn run(&self, case: &Case, name: &str, variation: Variation) -> Value {
        let key = format!("{} {name} {:?} {variation:?}", case.file.display(), case.set);
        self.once(key, || {
            // [`super::check`] has validated the run before.
            let planned = case.planned(name, variation).unwrap_or_default();
            let mut all: Vec<Value> = planned.iter().map(|planned| self.outcome(planned)).collect();
            if case.run[name].vary.is_empty() { all.pop().unwrap_or_default() } else { Value::from(all) }
        })
    }

    fn outcome(&self, planned: &Planned) -> Value {
        self.once(planned.fingerprint.clone(), || fields(run(&planned.profile, planned.workload)))
    }

    fn once(&self, key: String, make: impl FnOnce() -> Value) -> Value {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = Arc::clone(outcomes.entry(key).or_default());
        drop(outcomes);
        cell.get_or_init(make).clone()
    }

    /// Returns the reason of the case's first stalled run, if any.
    pub(super) fn stalled(&self, case: &Case) -> Option<String> {
        let planned = case.run.keys().filter_map(|name| case.planned(name, Variation::None).ok()).flatten();
        planned.map(|of| self.outcome(&of)).find_map(|of| of.get_attr(STALLED).ok()?.as_str().map(str::to_owned))
    }
}

/// Formats a figure with the same number of decimals as the published value.
pub(super) fn shown(spec: &RowSpec, value: f64) -> String {
    let digits = spec.value.map_or(1, |value| value.to_string().split_once('.').map_or(0, |(_, of)| of.len()));
    format!("{value:.digits$} {}", unit(spec)).trim_end().to_owned()
}

/// Returns the unit of a row. The default is the unit of the metric.
fn unit(spec: &RowSpec) -> &str {
    let of_metric = || metrics::find(spec.metric.as_ref()?.rsplit('.').next()?)?.heading.rsplit_once(", ");
    spec.unit.as_deref().or_else(|| of_metric().map(|(_, unit)| unit)).unwrap_or_default()
}

/// Reads a figure of a run.
fn read(run: &Value, name: &str) -> Result<Value, String> {
    let value = run.get_attr(name).unwrap_or_default();
    if !value.is_undefined() {
        return Ok(value);
    }
    if run.kind() == ValueKind::Seq {
        return Err(format!("varied runs are a list; use map(attribute={name:?})"));
    }
    let known: Vec<_> = run.try_iter().into_iter().flatten().map(|name| name.to_string()).collect();
    let known: Vec<_> = known.iter().map(String::as_str).collect();
    Err(format!("a run has no {name:?}; use one of: {}{}", known.join(", "), nearest(name, &known)))
}

/// Returns every metric and counter of a run, its measured time and its number of events. For a stalled or failed run,
/// the result has only the reason.
fn fields(result: Result<Outcome, ModelError>) -> Value {
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(ModelError::Stalled { waiting: why, .. } | ModelError::Nothing { waiting: why, .. }) => {
            return Value::from_pairs([(STALLED, why)]);
        }
        Err(error) => return Value::from_pairs([(STALLED, error.to_string())]),
    };
    let of_run = [("seconds", Value::from(outcome.seconds)), ("events", Value::from(outcome.events))];
    let metrics = METRICS.iter().map(|metric| (metric.name, (metric.value)(&outcome)));
    let metrics = metrics.filter(|(_, value)| !value.is_nan()).map(|(name, value)| (name, Value::from(value)));
    // A counter, which is an integer, overrides a metric with the same name.
    merge_maps([Value::from_pairs(metrics.chain(of_run)), Value::from(Serde(outcome.counts))])
}

/// Returns whether any number in the case's runs has an interval.
pub(super) fn has_intervals(case: &Case) -> bool {
    let planned = case.run.keys().filter_map(|name| case.planned(name, Variation::None).ok()).flatten();
    planned.into_iter().any(|of| KEYS.iter().any(|key| of.profile.interval(key.name).is_some()))
}

/// Returns the numeric parameters above 0 in a case's runs, if `is_wanted` accepts their tag. Parameters of the run
/// itself, such as its seed, are omitted.
pub(super) fn parameters(case: &Case, is_wanted: impl Fn(Tag) -> bool) -> Vec<(&'static Key, Quantity)> {
    let mut found: BTreeMap<_, (&'static Key, Quantity)> = BTreeMap::new();
    for planned in case.run.keys().filter_map(|name| case.planned(name, Variation::None).ok()).flatten() {
        for (key, quantity) in planned.profile.said() {
            let is_number = !matches!(key.dimension, Dimension::Choice(_)) && quantity.value > 0;
            // If runs differ in the parameter, a value from the profile replaces a value set by a case. Only the
            // profile's value has a source.
            let is_better = found.get(key.name).is_none_or(|(_, of)| of.tag == Tag::Set);
            if is_number && !OF_THE_RUN.contains(&key.name) && is_wanted(quantity.tag) && is_better {
                found.insert(key.name, (key, quantity.clone()));
            }
        }
    }
    found.into_values().collect()
}
