//! Comparison of two systems under the same workload.

use crate::explain::{Explanation, Part, explain};
use crate::metrics::METRICS;
use crate::profile::Profile;
use crate::simulation::Outcome;
use crate::text::render;
use crate::uncertainty::{Joint, Samples};
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

/// One metric or activity, with its values for both systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Heading of the metric, with the unit, or name of the activity.
    pub name: String,
    /// Values of the first and of the second system.
    pub values: [f64; 2],
    /// Value of the second system divided by the value of the first system. `None` if the first value is 0, or a value
    /// is not finite.
    pub ratio: Option<f64>,
}

/// A parameter with different values in the two systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Name of the parameter.
    pub name: &'static str,
    /// Values of the first and of the second system, with units.
    pub values: [String; 2],
    /// Kind of evidence for each of the two values.
    pub tags: [String; 2],
}

/// The comparison of two outcomes of one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Names of the two systems.
    pub systems: [String; 2],
    /// Name of the workload.
    pub workload: &'static str,
    /// Metrics: throughput, processor utilization, latency and counters.
    pub metrics: Vec<Compared>,
    /// Time of each activity of the link, in microseconds per KiB of payload. Frame sizes can differ between the
    /// systems, so times per frame are not comparable.
    pub line_us_per_kib: Vec<Compared>,
    /// Time of each activity of the bus, in microseconds per KiB of payload; empty if the adapter is not bus master.
    pub bus_us_per_kib: Vec<Compared>,
    /// Time of each activity of the processors, in microseconds per KiB of payload.
    pub processor_us_per_kib: Vec<Compared>,
    /// Limit of each system: lost frames in the adapter's memory, or the name of the saturated resource. If no frame is
    /// lost and no resource is saturated, the text says so.
    pub limits: [&'static str; 2],
    /// Parameters with different values in the two systems.
    pub differences: Vec<Difference>,
    /// Joint spread over the intervals of uncertain numbers. `None` if no number has an interval, or no samples were
    /// requested.
    pub joint: Option<Joint>,
}

/// Compares two runs of one workload. With `samples`, the comparison includes the joint spread over the intervals of
/// uncertain numbers.
pub fn compare(profiles: [&Profile; 2], outcomes: [&Outcome; 2], samples: Option<&Samples>) -> Comparison {
    let explanations = outcomes.map(explain);
    let metrics =
        METRICS.iter().map(|metric| compared(metric.heading, outcomes.map(|outcome| (metric.value)(outcome))));
    // A metric that does not apply to the workload is NaN in both runs, and is omitted.
    let metrics = metrics.filter(|metric| !metric.values.iter().all(|value| value.is_nan()));
    Comparison {
        systems: profiles.map(|profile| profile.name.clone()),
        workload: outcomes[0].workload,
        metrics: metrics.collect(),
        line_us_per_kib: parts(outcomes, &explanations, |explanation| &explanation.line),
        bus_us_per_kib: parts(outcomes, &explanations, |explanation| &explanation.bus),
        processor_us_per_kib: parts(outcomes, &explanations, |explanation| &explanation.processor),
        limits: [explanations[0].limit, explanations[1].limit],
        differences: differences(profiles),
        joint: samples.map(|samples| samples.joint(outcomes)),
    }
}

fn compared(name: &str, values: [f64; 2]) -> Compared {
    let ratio = values[1] / values[0];
    Compared { name: name.to_owned(), values, ratio: ratio.is_finite().then_some(ratio) }
}

/// Pairs the activities of both systems by name, in the order of the first system. Activities that exist only in the
/// second system follow at the end.
fn parts(
    outcomes: [&Outcome; 2],
    explanations: &[Explanation; 2],
    of: fn(&Explanation) -> &Vec<Part>,
) -> Vec<Compared> {
    let [first, second] = [of(&explanations[0]), of(&explanations[1])];
    let mut names: Vec<&str> = first.iter().map(|part| part.name).collect();
    for part in second {
        if !names.contains(&part.name) {
            names.push(part.name);
        }
    }
    let us = |at: usize, name: &str| {
        let part = of(&explanations[at]).iter().find(|part| part.name == name);
        // Frames per KiB of payload: the frame rate divided by the payload rate.
        let frames_per_kib = 1e6 / explanations[at].us_between_frames / outcomes[at].kib_per_second;
        part.map_or(0.0, |part| part.us_per_frame * frames_per_kib)
    };
    let both = |name: &str| compared(name, [us(0, name), us(1, name)]);
    names.into_iter().map(both).collect()
}

fn differences(profiles: [&Profile; 2]) -> Vec<Difference> {
    let [first, second] = profiles;
    let differs = first.all().zip(second.all()).filter(|((_, a), (_, b))| a.value != b.value);
    differs
        .map(|((key, a), (_, b))| Difference {
            name: key.name,
            values: [a, b].map(|quantity| key.dimension.show(quantity.value)),
            tags: [a, b].map(|quantity| quantity.tag.to_string()),
        })
        .collect()
}

/// Formats the comparison for display.
pub fn text(comparison: &Comparison) -> String {
    render("compare.txt", Value::from(Serde(comparison)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Workload;
    use crate::simulation::run;

    fn comparison(setting: (&str, &str)) -> Comparison {
        let base = Profile::load("486-wd8003ep").unwrap().with("workload.time", "2s");
        let other = base.clone().with(setting.0, setting.1);
        let [a, b] = [&base, &other].map(|profile| run(profile, Workload::TtcpReceive).unwrap());
        compare([&base, &other], [&a, &b], None)
    }

    #[test]
    fn a_system_compared_with_itself_differs_in_nothing() {
        let comparison = comparison(("bus.clock", "8MHz"));
        assert!(comparison.differences.is_empty());
        let all = [&comparison.metrics, &comparison.line_us_per_kib, &comparison.processor_us_per_kib];
        for row in all.into_iter().flatten() {
            assert!(row.ratio.is_none_or(|ratio| (ratio - 1.0).abs() < f64::EPSILON), "{row:?}");
            assert_eq!(row.values[0].to_bits(), row.values[1].to_bits(), "{row:?}");
        }
    }

    #[test]
    fn a_faster_bus_shows_in_the_time_that_the_processor_waits_for_it_and_is_named() {
        let comparison = comparison(("bus.clock", "16MHz"));
        let names: Vec<_> = comparison.differences.iter().map(|difference| difference.name).collect();
        assert_eq!(names, ["bus.clock"]);
        let bus = comparison.processor_us_per_kib.iter().find(|row| row.name.starts_with("bus")).unwrap();
        assert!((bus.ratio.unwrap() - 0.5).abs() < 0.01, "{bus:?}");
        assert!(comparison.metrics[0].ratio.unwrap() > 1.1);
        assert!(text(&comparison).contains("bus.clock"));
    }

    #[test]
    fn the_parts_of_each_system_make_up_all_of_its_time() {
        let comparison = comparison(("adapter.transfer_cycles", "6"));
        for system in 0..2 {
            let throughput = comparison.metrics[1].values[system];
            let total_us: f64 = comparison.line_us_per_kib.iter().map(|row| row.values[system]).sum();
            assert!((total_us * throughput / 1e6 - 1.0).abs() < 1e-6, "{total_us}");
        }
    }
}
