//! The effect of uncertain numbers in a profile on the outcome of a run.
//!
//! Each number that has an interval is one axis of a Latin hypercube ([`crate::sweep`]). If a number has an interval in
//! both compared systems, each sample uses the same relative position in both intervals.

use crate::config::Workload;
use crate::metrics::{METRICS, Metric};
use crate::pool;
use crate::profile::Profile;
use crate::profile::schema::{KEYS, Key};
use crate::simulation::Outcome;
use crate::sweep::{Axis, Design, Row, Sweep, SweepError, Values};
use crate::text::render;
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

pub use crate::text::intervals;

/// Default number of samples.
pub const SAMPLES: usize = 64;

/// Runs of one or two systems, sampled over all intervals.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Names of the numbers with an interval in at least one system.
    pub varied: Vec<&'static str>,
    /// The runs of each system. Rows with the same index use the same positions in the intervals.
    pub rows: Vec<Vec<Row>>,
}

/// The spread of outcomes of a system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Names of the numbers with an interval.
    pub varied: Vec<&'static str>,
    /// Number of runs.
    pub samples: usize,
    /// Number of failed runs.
    pub failed: usize,
    /// Error of the first failed run.
    pub why: Option<String>,
    /// Metrics whose values differ between runs.
    pub figures: Vec<Figure>,
}

/// The spread of one metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the metric in [`METRICS`].
    pub name: &'static str,
    /// Heading for display, with the unit.
    pub heading: &'static str,
    /// Value of the nominal run, with each number as given in the profile.
    pub nominal: f64,
    /// Lowest and highest value of all runs, including the nominal run.
    pub interval: [f64; 2],
}

/// The joint spread of outcomes of two systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Joint {
    /// Names of the numbers with an interval in at least one system.
    pub varied: Vec<&'static str>,
    /// Number of runs of each system.
    pub samples: usize,
    /// Number of failed runs of each system.
    pub failed: [usize; 2],
    /// Metrics whose values differ between runs.
    pub figures: Vec<JointFigure>,
}

/// The joint spread of one metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JointFigure {
    /// Name of the metric in [`METRICS`].
    pub name: &'static str,
    /// Heading for display, with the unit.
    pub heading: &'static str,
    /// Lowest and highest value of each system.
    pub intervals: [[f64; 2]; 2],
    /// Number of samples in which the runs of both systems have a value.
    pub pairs: usize,
    /// Number of samples in which the second system has the higher value.
    pub second_is_higher: usize,
}

/// Runs `workload` on each of `systems`, on all processors, at `samples` points of the intervals of uncertain numbers.
/// The seed is `workload.seed` of the first system. `on_run` is called after each run. Returns `None` if no number has
/// an interval, or if `samples` is 0.
///
/// # Errors
/// Returns an error if `samples` is too large.
pub fn sample(
    systems: &[&Profile],
    workload: Workload,
    samples: usize,
    mut on_run: impl FnMut(),
) -> Result<Option<Samples>, SweepError> {
    let is_interval = |key: &&Key| systems.iter().any(|profile| profile.interval(key.name).is_some());
    let varied: Vec<_> = KEYS.iter().filter(is_interval).collect();
    let (Some(first), false, 1..) = (systems.first(), varied.is_empty(), samples) else { return Ok(None) };
    let design = Design::Latin { points: samples, seed: first.value("workload.seed") };
    let mut of = |profile: &&Profile| {
        let axes = varied.iter().map(|key| axis(profile, key)).collect();
        let sweep = Sweep { profile: (*profile).clone(), workload, axes, design };
        sweep.run(Vec::new(), pool::threads(), |_| {
            on_run();
            true
        })
    };
    let rows = systems.iter().map(&mut of).collect::<Result<_, _>>()?;
    Ok(Some(Samples { varied: varied.iter().map(|key| key.name).collect(), rows }))
}

/// Returns the axis of a number in one system: its interval, or its only value.
fn axis(profile: &Profile, key: &'static Key) -> Axis {
    let values = match profile.interval(key.name) {
        Some([from, to]) => Values::Range { from, to, is_log: false, count: None },
        None => Values::Listed(vec![profile.value(key.name)]),
    };
    Axis { key, values }
}

impl Samples {
    /// Returns the spread of one system's metrics, with the nominal values.
    pub fn spread(&self, system: usize, nominal: &Outcome) -> Spread {
        let rows = &self.rows[system];
        let figure = |(at, metric): (usize, &Metric)| {
            let nominal = (metric.value)(nominal);
            let values = rows.iter().filter_map(|row| row.result.as_ref().ok()).map(|values| values[at]);
            // A metric that does not apply to the workload is NaN in every run, and is omitted.
            let [low, high] = values.fold([nominal; 2], |[low, high], value| [low.min(value), high.max(value)]);
            let (name, heading, interval) = (metric.name, metric.heading, [low, high]);
            (low < high).then_some(Figure { name, heading, nominal, interval })
        };
        let failures: Vec<_> = rows.iter().filter_map(|row| row.result.as_ref().err()).collect();
        Spread {
            varied: self.varied.clone(),
            samples: rows.len(),
            failed: failures.len(),
            why: failures.first().map(|why| (*why).clone()),
            figures: METRICS.iter().enumerate().filter_map(figure).collect(),
        }
    }

    /// Returns the joint spread of two systems' metrics. Also returns the number of samples in which the second system
    /// has the higher value.
    pub fn joint(&self, nominal: [&Outcome; 2]) -> Joint {
        let spreads = [0, 1].map(|system| self.spread(system, nominal[system]));
        let of = |(at, metric): (usize, &Metric)| {
            let found = [0, 1].map(|system: usize| spreads[system].figures.iter().find(|of| of.name == metric.name));
            if found == [None; 2] {
                return None;
            }
            let only = nominal.map(|outcome| [(metric.value)(outcome); 2]);
            let intervals = [0, 1].map(|system: usize| found[system].map_or(only[system], |of| of.interval));
            let value = |row: &Row| row.result.as_ref().ok().map(|values| values[at]).filter(|value| !value.is_nan());
            let pairs = self.rows[0].iter().zip(&self.rows[1]).filter_map(|(a, b)| value(a).zip(value(b)));
            let (pairs, higher) = pairs.fold((0, 0), |(all, higher), (a, b)| (all + 1, higher + usize::from(b > a)));
            let (name, heading) = (metric.name, metric.heading);
            Some(JointFigure { name, heading, intervals, pairs, second_is_higher: higher })
        };
        let figures = METRICS.iter().enumerate().filter_map(of).collect();
        Joint {
            varied: self.varied.clone(),
            samples: self.rows[0].len(),
            failed: spreads.each_ref().map(|of| of.failed),
            figures,
        }
    }
}

/// Formats the spread for display.
pub fn text(spread: &Spread) -> String {
    render("uncertainty.txt", Value::from(Serde(spread)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::run;

    fn system(settings: &[(&str, &str)]) -> Profile {
        let mut profile = Profile::load("486-wd8003ep").unwrap();
        profile.set_all([("workload.time", "2s"), ("workload.warmup", "200ms")]).unwrap();
        profile.set_all(settings.iter().copied()).unwrap();
        profile
    }

    fn samples(systems: &[&Profile], samples: usize) -> Option<Samples> {
        sample(systems, Workload::TtcpReceive, samples, || ()).unwrap()
    }

    #[test]
    fn an_outcome_lies_within_what_it_may_be_and_a_wider_interval_gives_a_wider_one() {
        let width = |interval: &str| {
            let profile = system(&[("host.tcp_time", interval), ("bus.clock", "6.7MHz")]);
            let outcome = run(&profile, Workload::TtcpReceive).unwrap();
            let spread = samples(&[&profile], 16).unwrap().spread(0, &outcome);
            assert_eq!((spread.varied.as_slice(), spread.samples, spread.failed), (&["host.tcp_time"][..], 16, 0));
            for Figure { nominal, interval: [low, high], .. } in &spread.figures {
                assert!(low <= nominal && nominal <= high, "{spread:?}");
            }
            let figure = spread.figures.iter().find(|figure| figure.name == "throughput_kib_per_s").unwrap();
            figure.interval[1] - figure.interval[0]
        };
        assert!(width("100us..300us") > 2.0 * width("180us..220us"));
    }

    #[test]
    fn what_is_not_an_interval_takes_no_run() {
        let (fixed, open) = (system(&[]), system(&[("host.tcp_time", "100us..300us")]));
        assert!(samples(&[&fixed], 16).is_none() && samples(&[&open], 0).is_none());
    }

    #[test]
    fn the_same_seed_gives_the_same_samples_and_a_number_of_both_systems_moves_alike_in_both() {
        let slow = system(&[("host.tcp_time", "100us..300us"), ("bus.clock", "6.7MHz")]);
        let fast = system(&[("host.tcp_time", "100us..300us"), ("bus.clock", "8MHz")]);
        let twice = [(); 2].map(|()| format!("{:?}", samples(&[&slow], 8).unwrap().rows));
        assert_eq!(twice[0], twice[1]);
        let higher = |systems: [&Profile; 2]| {
            let outcomes = systems.map(|profile| run(profile, Workload::TtcpReceive).unwrap());
            let joint = samples(&systems, 16).unwrap().joint(outcomes.each_ref());
            let figure = joint.figures.iter().find(|figure| figure.name == "throughput_kib_per_s").unwrap();
            (figure.pairs, figure.second_is_higher)
        };
        // If `host.tcp_time` were drawn separately for each system, the system with the slower bus would sometimes be
        // faster.
        assert_eq!(higher([&slow, &fast]), (16, 16));
        assert_eq!(higher([&fast, &slow]), (16, 0));
        assert_eq!(higher([&slow, &slow]), (16, 0));
    }

    #[test]
    fn runs_without_an_outcome_are_counted_and_the_first_says_why() {
        // A run with an MSS above the receive window is rejected.
        let profile = system(&[("workload.mss", "536byte..4KiB"), ("host.receive_window", "3KiB")]);
        let outcome = run(&profile, Workload::TtcpReceive).unwrap();
        let spread = samples(&[&profile], 16).unwrap().spread(0, &outcome);
        assert!((1..16).contains(&spread.failed), "{spread:?}");
        assert!(spread.why.as_deref().is_some_and(|why| why.contains("is smaller than one segment")), "{spread:?}");
        assert!(text(&spread).contains("of the runs failed"));
    }
}
