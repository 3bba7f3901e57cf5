//! Sensitivity analysis: the effect of each parameter on an outcome.
//!
//! | method | result | runs |
//! |---|---|---|
//! | elasticity | percent of the outcome per percent of one parameter | 2 per parameter |
//! | Morris | mean and spread of the effects along random paths through the ranges | (parameters + 1) per path |
//! | Sobol | shares of the outcome's variance: first-order, and total | (parameters + 2) per sample |
//!
//! - Elasticity varies one parameter, with all other parameters unchanged.
//! - Morris: a large spread shows nonlinear effects or interactions between parameters. Source of the method: Morris,
//!   Technometrics 33 (1991) 161. Source of the mean of absolute values: Campolongo, Cariboni and Saltelli,
//!   Environmental Modelling and Software 22 (2007) 1509.
//! - Sobol: the first-order share is the effect of a parameter alone. The total share includes interactions. Source of
//!   the first-order share: Saltelli et al., Computer Physics Communications 181 (2010) 259, formula (b). Source of the
//!   total share: Jansen, Computer Physics Communications 117 (1999) 35.
//!
//! The methods are independent of the model: each method chooses points of a unit cube, and analyses the values of a
//! function at these points.

pub mod morris;
pub mod sobol;

use crate::config::Workload;
use crate::metrics::Metric;
use crate::pool;
use crate::profile::Profile;
use crate::profile::quantity::{Dimension, Quantity};
use crate::profile::schema::Key;
use crate::simulation::{ModelError, run};
use crate::sweep::{POINTS_MAX, between};
use crate::text::render;
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;
use std::num::NonZeroUsize;

/// Parameters of the run itself, not of the modelled system.
pub(crate) const OF_THE_RUN: [&str; 3] = ["workload.warmup", "workload.time", "workload.seed"];

/// The ranges of varied parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ranges {
    /// A range around the value in the profile: from value / (1 + share) to value × (1 + share).
    Share(f64),
    /// The interval in the profile. A parameter without an interval has a range given by the share, as with
    /// [`Ranges::Share`].
    Intervals(f64),
}

/// A varied parameter, with a range around its value in the profile.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// Definition of the parameter.
    pub key: &'static Key,
    /// Value in the profile, in base units.
    pub value: u64,
    /// Lower end of the range, in base units.
    pub low: u64,
    /// Upper end of the range, in base units.
    pub high: u64,
    /// `true` for a linear range, as for an interval. `false` for a geometric range.
    pub is_linear: bool,
}

impl Factor {
    fn new(key: &'static Key, quantity: &Quantity, ranges: Ranges) -> Self {
        let value = quantity.value;
        match (ranges, quantity.interval) {
            (Ranges::Intervals(_), Some([low, high])) if low < high => Self { key, value, low, high, is_linear: true },
            (Ranges::Share(share) | Ranges::Intervals(share), _) => Self::around(key, value, share),
        }
    }

    fn around(key: &'static Key, value: u64, share: f64) -> Self {
        // The ends of the range are rounded inwards, so that a coarse parameter never varies by more than the share.
        let (low, high) = (value as f64 / (1.0 + share), value as f64 * (1.0 + share));
        let (low, high) = (low.ceil() as u64, high.floor() as u64);
        let step = key.step();
        let (low, high) = (low.next_multiple_of(step), high - high % step);
        Self { key, value, low: low.max(key.min).max(1), high: high.min(key.max), is_linear: false }
    }

    /// Returns the value at a relative position from 0 to 1 in the range, in base units.
    fn at(&self, place: f64) -> u64 {
        between(self.key, [self.low, self.high], !self.is_linear, place)
    }

    /// Returns `true` if the two ends of the range differ, and both are valid in this profile.
    fn varies(&self, profile: &Profile) -> bool {
        let is_value = |value| profile.clone().set_base_units([(self.key, value)]).is_ok();
        self.low < self.high && is_value(self.low) && is_value(self.high)
    }
}

/// Returns the numeric parameters of the profile that have an interval or a nonzero value, each with its range. The
/// second result names the parameters without a second valid value in their range, such as the lanes of a bus.
pub fn factors(profile: &Profile, ranges: Ranges) -> (Vec<Factor>, Vec<&'static str>) {
    let is_number = |key: &Key| !matches!(key.dimension, Dimension::Choice(_)) && !OF_THE_RUN.contains(&key.name);
    let said =
        profile.said().filter(|(key, quantity)| is_number(key) && (quantity.value > 0 || quantity.interval.is_some()));
    let (varied, fixed): (Vec<_>, Vec<_>) =
        said.map(|(key, quantity)| Factor::new(key, quantity, ranges)).partition(|factor| factor.varies(profile));
    (varied, fixed.iter().map(|factor| factor.key.name).collect())
}

/// Selects parameters by name.
///
/// # Errors
/// Returns a message if a name is unknown, has no range, or appears twice.
pub fn only(factors: &[Factor], names: &[String]) -> Result<Vec<Factor>, String> {
    let of = |name: &String| {
        let key = crate::profile::schema::known(name).map_err(|why| format!("{name}: {why}"))?;
        let found = factors.iter().find(|factor| factor.key.name == key.name);
        found.copied().ok_or_else(|| {
            format!("{name}: the profile has no number other than 0, or no other value is in this range")
        })
    };
    let found = names.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let is_before = |at: usize| found[..at].iter().any(|before: &Factor| before.key.name == found[at].key.name);
    match (0..found.len()).find(|at| is_before(*at)) {
        Some(at) => Err(format!("{}: named twice", found[at].key.name)),
        None => Ok(found),
    }
}

/// A study of one metric, for one workload on one system.
#[derive(Clone, Copy, Debug)]
pub struct Study<'a> {
    /// The studied system.
    pub profile: &'a Profile,
    /// The workload.
    pub workload: Workload,
    /// The studied metric.
    pub metric: &'static Metric,
    /// Number of concurrent runs.
    pub threads: NonZeroUsize,
    /// Names of the parameters that the study does not vary, because their range contains no second valid value.
    pub not_varied: &'a [&'static str],
}

impl Study<'_> {
    fn value(&self, settings: &[(&'static Key, u64)]) -> Result<f64, ModelError> {
        let mut profile = self.profile.clone();
        profile.set_base_units(settings.iter().copied())?;
        run(&profile, self.workload).map(|outcome| (self.metric.value)(&outcome))
    }

    fn values(&self, points: &[Vec<(&'static Key, u64)>]) -> Result<Vec<f64>, ModelError> {
        let results = pool::map(points, self.threads, |point| self.value(point), |_, result| result.is_ok());
        // Runs stop after the first failure, so only results after the failure are missing.
        results.into_iter().flatten().collect()
    }

    /// Returns the values of the metric at points of the unit cube.
    fn values_at(&self, factors: &[Factor], points: &[Vec<f64>]) -> Result<Vec<f64>, ModelError> {
        let settings = |point: &Vec<f64>| -> Vec<_> {
            factors.iter().zip(point).map(|(factor, at)| (factor.key, factor.at(*at))).collect()
        };
        let points: Vec<_> = points.iter().map(settings).collect();
        self.values(&points)
    }
}

/// The effect of one parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Name of the parameter.
    pub name: &'static str,
    /// Value in the profile, with unit.
    pub value: String,
    /// Kind of evidence for the value.
    pub tag: String,
    /// Range of the parameter in the study, with units.
    pub range: [String; 2],
    /// Main index: the elasticity, Morris' mean absolute effect, or Sobol's first-order share.
    pub main: f64,
    /// Second index: Morris' spread, or Sobol's total share. `None` for elasticities.
    pub other: Option<f64>,
}

/// The result of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Names of the parameters that were not varied, because their range contains no second valid value.
    pub not_varied: Vec<&'static str>,
    /// Name of the method, with its source.
    pub method: &'static str,
    /// Headings of the two indices.
    pub columns: [&'static str; 2],
    /// Heading of the metric.
    pub metric: &'static str,
    /// Number of runs.
    pub runs: usize,
    /// Effects of the varied parameters, the strongest first.
    pub effects: Vec<Effect>,
}

/// Name of a method with its source, and the headings of its indices.
type Method = (&'static str, [&'static str; 2]);

const ELASTICITY: Method = (
    "elasticity: the logarithm of the outcome's ratio over that of the parameter's, one at a time",
    ["elasticity", ""],
);
const MORRIS: Method =
    ("Morris 1991, with the mean of absolute effects of Campolongo et al. 2007", ["mean |effect|", "spread"]);
const SOBOL: Method = (
    "Sobol: first order by Saltelli et al. 2010, total by Jansen 1999, plain random samples",
    ["first order", "total"],
);

/// Computes the elasticity for each parameter, over the parameter's range, with all other parameters unchanged.
///
/// # Errors
/// Returns an error if a run fails.
pub fn elasticities(study: &Study, factors: &[Factor]) -> Result<Sensitivity, ModelError> {
    let ends = |factor: &Factor| [vec![(factor.key, factor.low)], vec![(factor.key, factor.high)]];
    let points: Vec<_> = factors.iter().flat_map(ends).collect();
    let values = study.values(&points)?;
    let of = |(factor, ends): (&Factor, &[f64])| {
        let elasticity = (ends[1] / ends[0]).ln() / (factor.high as f64 / factor.low as f64).ln();
        (elasticity, None)
    };
    Ok(ranked(study, factors, points.len(), ELASTICITY, factors.iter().zip(values.chunks_exact(2)).map(of)))
}

/// Computes Morris' elementary effects along random paths. An effect has the unit of the outcome, and is scaled to the
/// whole range of the parameter.
///
/// # Errors
/// Returns an error if a run fails.
pub fn morris(study: &Study, factors: &[Factor], paths: usize, seed: u64) -> Result<Sensitivity, ModelError> {
    let points = morris::design(factors.len(), paths, seed);
    let values = study.values_at(factors, &points)?;
    let effects = morris::effects(&points, &values, factors.len()).into_iter();
    let indices = effects.map(|effect| (effect.mean_absolute, Some(effect.spread)));
    Ok(ranked(study, factors, points.len(), MORRIS, indices))
}

/// Computes the Sobol indices of each parameter: its first-order and its total share of the outcome's variance. All
/// parameters vary at once.
///
/// # Errors
/// Returns an error if a run fails.
pub fn sobol(study: &Study, factors: &[Factor], samples: usize, seed: u64) -> Result<Sensitivity, ModelError> {
    let points = sobol::design(factors.len(), samples, seed);
    let values = study.values_at(factors, &points)?;
    let indices = sobol::indices(&values, factors.len(), samples).into_iter();
    Ok(ranked(study, factors, points.len(), SOBOL, indices.map(|index| (index.first, Some(index.total)))))
}

fn ranked(
    study: &Study,
    factors: &[Factor],
    runs: usize,
    (method, columns): Method,
    indices: impl Iterator<Item = (f64, Option<f64>)>,
) -> Sensitivity {
    let show = |factor: &Factor, value| factor.key.dimension.show(value);
    let effect = |(factor, (main, other)): (&Factor, (f64, Option<f64>))| Effect {
        name: factor.key.name,
        value: show(factor, factor.value),
        tag: study.profile.quantity(factor.key.name).tag.to_string(),
        range: [show(factor, factor.low), show(factor, factor.high)],
        main,
        other,
    };
    let mut effects: Vec<_> = factors.iter().zip(indices).map(effect).collect();
    let strength = |effect: &Effect| effect.other.filter(|_| columns[1] == "total").unwrap_or(effect.main).abs();
    effects.sort_by(|a, b| strength(b).total_cmp(&strength(a)));
    let not_varied = study.not_varied.to_vec();
    Sensitivity { not_varied, method, columns, metric: study.metric.heading, runs, effects }
}

/// Formats the effects for display.
pub fn text(found: &Sensitivity) -> String {
    render("sensitivity.txt", Value::from(Serde(found)))
}

/// Converts a range in percent to a share. Valid ranges are above 0 and at most 1000 %.
///
/// # Errors
/// Returns a message if the range is invalid.
pub fn checked_share(percent: f64) -> Result<f64, String> {
    const PERCENT_MAX: f64 = 1000.0;
    if percent > 0.0 && percent <= PERCENT_MAX {
        return Ok(percent / 100.0);
    }
    Err(format!("a range of {percent} % is invalid; use more than 0 and up to {PERCENT_MAX} %"))
}

/// Checks that a method needs at most [`POINTS_MAX`] runs.
///
/// # Errors
/// Returns a message with the largest valid number if the method needs more runs.
pub fn checked_runs(runs_each: usize, times: usize) -> Result<usize, String> {
    match runs_each.checked_mul(times).filter(|runs| *runs <= POINTS_MAX) {
        Some(runs) => Ok(runs),
        None => {
            Err(format!("{times} times {runs_each} runs are too many; up to {} times", POINTS_MAX / runs_each.max(1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::find;
    use crate::profile::quantity::Tag;

    fn study(profile: &Profile) -> Study<'_> {
        let metric = find("throughput_kib_per_s").unwrap();
        Study { profile, workload: Workload::TtcpReceive, metric, threads: pool::threads(), not_varied: &[] }
    }

    fn profile() -> Profile {
        Profile::load("486-wd8003ep").unwrap().with("workload.time", "10s").with("workload.warmup", "200ms")
    }

    #[test]
    fn throughput_of_a_host_that_is_full_grows_as_its_costs_and_its_bus_shrink() {
        let profile = profile().with("bus.clock", "6.7MHz");
        let found = elasticities(&study(&profile), &factors(&profile, Ranges::Share(0.05)).0).unwrap();
        let of = |name: &str| found.effects.iter().find(|effect| effect.name == name).unwrap().main;
        assert!((-0.8..-0.3).contains(&of("host.cost_scale")), "{}", of("host.cost_scale"));
        // The times of the host and of the bus add up to the whole time, so the two effects add up to 1.
        let both = of("bus.clock") - of("host.cost_scale");
        assert!((both - 1.0).abs() < 0.05, "{both}");
        assert!(of("link.rate").abs() < 0.05, "the line is not what limits: {}", of("link.rate"));
        assert!(found.effects[0].main.abs() >= found.effects[1].main.abs());
    }

    #[test]
    fn the_global_methods_agree_on_what_matters_most() {
        let profile = profile();
        let names = ["host.cost_scale", "bus.clock", "link.delay"].map(str::to_owned);
        let factors = only(&factors(&profile, Ranges::Share(0.2)).0, &names).unwrap();
        let by_morris = morris(&study(&profile), &factors, 6, 1).unwrap();
        let by_sobol = sobol(&study(&profile), &factors, 48, 1).unwrap();
        assert_eq!((by_morris.runs, by_sobol.runs), (6 * 4, 48 * 5));
        for found in [by_morris, by_sobol] {
            assert_eq!(found.effects[2].name, "link.delay", "{found:?}");
        }
    }

    #[test]
    fn words_zeros_and_what_says_how_to_run_have_no_range() {
        let profile = Profile::load("486-wd8003e").unwrap();
        let (factors, _) = factors(&profile, Ranges::Share(0.1));
        let names: Vec<_> = factors.iter().map(|factor| factor.key.name).collect();
        assert!(names.contains(&"bus.clock") && !names.contains(&"adapter.overflow"));
        assert!(!names.iter().any(|name| OF_THE_RUN.contains(name)));
        let wrong = |name: &str| only(&factors, &[name.to_owned()]).unwrap_err();
        assert!(wrong("adapter.overflow").contains("no number"));
        assert!(wrong("bus.clok").contains("did you mean \"bus.clock\""));
        let twice = ["bus.clock", "host.tcp_time", "bus.clock"].map(str::to_owned);
        assert_eq!(only(&factors, &twice).unwrap_err(), "bus.clock: named twice");
    }

    #[test]
    fn more_runs_than_a_sweep_may_have_are_refused_before_anything_is_laid_out_for_them() {
        assert_eq!(checked_runs(30, 20), Ok(600));
        assert_eq!(checked_runs(10, POINTS_MAX / 10), Ok(POINTS_MAX));
        assert!(checked_runs(10, POINTS_MAX / 10 + 1).unwrap_err().contains("up to 100000 times"));
        assert!(checked_runs(30, usize::MAX).is_err());
    }

    #[test]
    fn a_number_without_other_values_in_the_range_is_not_varied_but_named() {
        let profile = Profile::load("server-82599").unwrap();
        let (varied, fixed) = factors(&profile, Ranges::Share(0.1));
        for name in ["host.segments_per_ack", "bus.lanes", "bus.clock", "bus.payload"] {
            assert!(fixed.contains(&name), "{name} in {fixed:?}");
        }
        assert!(varied.iter().any(|factor| factor.key.name == "adapter.receive_descriptors"));
        let (varied, _) = factors(&profile, Ranges::Share(0.5));
        let acks = varied.iter().find(|factor| factor.key.name == "host.segments_per_ack").unwrap();
        assert_eq!((acks.low, acks.value, acks.high), (2, 2, 3));
    }

    proptest::proptest! {
        #[test]
        fn no_number_is_varied_by_more_than_the_share_that_was_asked_for(
            percent in 1u32..300, at in 0..crate::profile::list().len(),
        ) {
            let listed = &crate::profile::list()[at];
            proptest::prop_assume!(listed.kind == "system");
            let profile = Profile::load(listed.name).unwrap();
            let share = 1.0 + f64::from(percent) / 100.0;
            for factor in factors(&profile, Ranges::Share(share - 1.0)).0 {
                let value = factor.value as f64;
                let is_in = factor.low as f64 >= value / share * (1.0 - 1e-9) && factor.high as f64 <= value * share * (1.0 + 1e-9);
                proptest::prop_assert!(is_in, "{factor:?}");
            }
        }
    }

    #[test]
    fn a_number_that_was_measured_is_varied_over_its_interval_unless_a_share_is_wanted() {
        let (key, other) = (crate::profile::schema::find("host.wake_time").unwrap(), [0, 4_000_000]);
        let quantity = Quantity { value: 1_000_000, interval: Some(other), tag: Tag::Measured, ..Quantity::default() };
        let over = |quantity: &Quantity, ranges| {
            let factor = Factor::new(key, quantity, ranges);
            [0.0, 0.5, 1.0].map(|place| factor.at(place))
        };
        assert_eq!(over(&quantity, Ranges::Intervals(0.25)), [0, 2_000_000, 4_000_000]);
        assert_eq!(over(&quantity, Ranges::Share(0.25)), [800_000, 1_000_000, 1_250_000]);
        let unknown = Quantity { interval: None, ..quantity.clone() };
        assert_eq!(over(&unknown, Ranges::Intervals(0.25)), [800_000, 1_000_000, 1_250_000]);
        // An interval with equal ends counts as no interval.
        let once = Quantity { interval: Some([1_000_000, 1_000_000]), ..quantity };
        assert_eq!(over(&once, Ranges::Intervals(0.25)), [800_000, 1_000_000, 1_250_000]);
    }
}
