//! Charts of throughput and latency over load, for one or two systems.

use offramp_model::config::Workload;
use offramp_model::metrics::METRICS;
use offramp_model::pool;
use offramp_model::profile::Profile;
use offramp_model::profile::schema::{self, Key};
use offramp_model::sweep::{Axis, Design, Sweep, SweepError, Values};

use crate::report::figure::{Figure, Mark, Plot, Series};

/// The horizontal axis begins at the run's load divided by `FROM`, and ends at the run's load multiplied by `TO`.
const FROM: u64 = 8;
const TO: u64 = 4;
/// Number of points per curve.
const POINTS: usize = 21;
/// Metrics drawn over the load.
const DRAWN: [&str; 3] = ["throughput_kib_per_s", "requests_per_s", "latency_p99_us"];

/// Returns the parameter of the offered load. `None` if the workload has no fixed load, but saturates the system.
fn load(profile: &Profile, workload: Workload) -> Option<&'static Key> {
    let has_requests = workload.is_one_way() || matches!(workload, Workload::UdpRr | Workload::TcpRr);
    let is_closed = profile.word("workload.arrivals") == "closed" && !workload.is_one_way();
    let name = match (has_requests, is_closed) {
        (true, true) => "workload.outstanding",
        (true, false) => "workload.request_rate",
        (false, _) => "workload.rate",
    };
    schema::find(name).filter(|key| profile.value(key.name) > 0)
}

/// Draws the charts. The result is empty for a workload without an offered load, or for systems with different load
/// parameters.
///
/// # Errors
/// Fails like [`Sweep::run`].
pub fn charts(systems: &[&Profile], workload: Workload) -> Result<Vec<Figure>, SweepError> {
    let mut loads: Vec<_> = systems.iter().map(|profile| load(profile, workload)).collect();
    loads.dedup_by_key(|key| key.map(|key| key.name));
    let [Some(key)] = loads[..] else { return Ok(Vec::new()) };
    let mut drawn = Vec::new();
    for profile in systems {
        let value = profile.value(key.name);
        let (from, to) = ((value / FROM).max(key.min).max(1), (value * TO).min(key.max));
        let axes = vec![Axis { key, values: Values::Range { from, to, is_log: true, count: Some(POINTS) } }];
        let sweep = Sweep { profile: (*profile).clone(), workload, axes, design: Design::Grid };
        let rows = sweep.run(Vec::new(), pool::threads(), |_| true)?;
        drawn.push((sweep.points()?, rows, profile.name.clone()));
    }
    let chart = |(at, metric): (usize, &offramp_model::metrics::Metric)| {
        let series = drawn.iter().map(|(points, rows, name)| Series {
            name: name.clone(),
            mark: Mark::Line,
            points: rows
                .iter()
                .filter_map(|row| Some([points[row.point][0] as f64, row.result.as_ref().ok()?[at]]))
                .collect(),
        });
        let series: Vec<_> = series.collect();
        let has_points = series.iter().any(|of| of.points.iter().any(|[_, y]| y.is_finite()));
        (has_points && DRAWN.contains(&metric.name)).then(|| {
            Figure::Plot(Plot {
                title: format!("{} against load", metric.heading),
                x_title: format!("{}, {}", key.name, key.dimension.unit_names().split(", ").next().unwrap_or_default()),
                y_title: metric.heading.to_owned(),
                x_is_log: true,
                y_is_log: metric.name.starts_with("latency"),
                series,
            })
        })
    };
    Ok(METRICS.iter().enumerate().filter_map(chart).collect())
}
