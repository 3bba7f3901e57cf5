//! Breakdown of the time per frame into activities and idle time. The breakdown covers the link, the bus, the adapter's
//! memory and the processors.

use crate::link::{FCS_LEN, INTERFRAME_GAP_LEN, PREAMBLE_LEN};
use crate::metrics;
use crate::pool;
use crate::profile::Profile;
use crate::sensitivity::{Ranges, Study, elasticities, factors};
use crate::simulation::{Activity, FULL_FRAME_LEN, Latency, Outcome};
use crate::text::render;
use crate::time::Span;
use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;
use strum::VariantArray;

/// Minimum utilization at which a resource counts as the limit of a run, in percent.
const FULL_PERCENT: f64 = 97.0;
/// Minimum utilization at which a bus counts as the limit of a run, in percent. Transactions of different lengths never
/// fill a bus completely.
const BUS_FULL_PERCENT: f64 = 93.0;
/// Relative change of each parameter in the search for the limit of a run without a saturated resource.
const VARIED_SHARE: f64 = 0.1;
/// Minimum elasticity of throughput at which a parameter counts as a limit: percent of throughput per percent of the
/// parameter.
const LIMIT_ELASTICITY: f64 = 0.05;
/// Maximum number of reported limits.
const LIMITS_MAX: usize = 3;

/// One activity, and the share of the measured time spent on the activity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Name for display.
    pub name: &'static str,
    /// Time per frame, in microseconds.
    pub us_per_frame: f64,
    /// Share of the measured time, in percent.
    pub percent: f64,
}

/// Breakdown of the time of a run, per frame of the direction with more frames.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Mean time from one frame to the next, in microseconds.
    pub us_between_frames: f64,
    /// Activities of the link, and the link's idle time and gaps.
    pub line: Vec<Part>,
    /// Activities of the bus; empty unless the adapter is master of a bus with limits.
    pub bus: Vec<Part>,
    /// Activities and idle time of all processors together.
    pub processor: Vec<Part>,
    /// Activities and idle time of each processor, by index of the processor; empty for a single processor.
    pub processors: Vec<Vec<Part>>,
    /// Mean wait of a frame in the adapter's memory, in microseconds.
    pub ring_wait_us: f64,
    /// Limit of the run: lost frames in the adapter's memory, or else the name of the saturated resource. If no frame
    /// is lost and no resource is saturated, the text says so.
    pub limit: &'static str,
}

/// Computes the breakdown for an outcome.
pub fn explain(outcome: &Outcome) -> Explanation {
    let frames = outcome.counts.frames_arrived.max(outcome.counts.frames_sent).max(1) as f64;
    let part = |name, us: f64| Part { name, us_per_frame: us / frames, percent: us / outcome.seconds / 1e4 };
    let all_us = outcome.seconds * 1e6;
    let [host, peer] = outcome.counts.line_busy.map(Span::as_us);
    let mut line = vec![part("frames to the host", peer), part("frames from the host", host)];
    let gap_us = outcome.frame_time_us * INTERFRAME_GAP_LEN as f64 / (PREAMBLE_LEN + FULL_FRAME_LEN + FCS_LEN) as f64;
    let [gaps_to, gaps_from] =
        [outcome.counts.frames_arrived, outcome.counts.frames_sent].map(|frames| frames as f64 * gap_us);
    if outcome.line_is_shared {
        let gaps = gaps_to + gaps_from;
        line.push(part("gaps of 96 bits", gaps));
        line.push(part("idle: longer gaps, collisions, nothing to send", all_us - host - peer - gaps));
    } else {
        line.push(part("gaps of 96 bits to the host", gaps_to));
        line.push(part("gaps of 96 bits from the host", gaps_from));
        line.push(part("idle to the host", all_us - peer - gaps_to));
        line.push(part("idle from the host", all_us - host - gaps_from));
    }
    let busy_us: f64 = outcome.counts.busy.into_iter().map(Span::as_us).sum();
    let work = |activities: &[Span], idle_us: f64| -> Vec<Part> {
        let of = Activity::VARIANTS.iter().map(|of| part(of.name(), activities[*of as usize].as_us()));
        of.filter(|part| part.us_per_frame > 0.0).chain([part("idle", idle_us)]).collect()
    };
    let processor = work(&outcome.counts.activities, all_us * outcome.processors as f64 - busy_us);
    let loads = outcome.processor_loads.iter().filter(|_| outcome.processors > 1);
    let processors = loads.map(|of| work(&of.activities, all_us * (1.0 - of.busy_percent / 100.0))).collect();
    let [to_host, from_host] = outcome.counts.bus_busy.map(Span::as_us);
    let bus = [part("moving to the host", to_host), part("moving from the host", from_host)];
    let bus = bus.into_iter().filter(|_| to_host + from_host > 0.0).collect();
    Explanation {
        us_between_frames: all_us / frames,
        line,
        bus,
        processor,
        processors,
        ring_wait_us: outcome.ring_wait_us,
        limit: fully_used(outcome).unwrap_or("no resource is saturated"),
    }
}

fn fully_used(outcome: &Outcome) -> Option<&'static str> {
    Some(if outcome.lost() > 0 {
        "frames lost in the adapter's memory"
    } else if outcome.cpu_percent >= FULL_PERCENT {
        "the processor"
    } else if outcome.busiest_processor_percent >= FULL_PERCENT {
        "one of the processors"
    } else if outcome.bus_limit_percent() >= BUS_FULL_PERCENT {
        "the bus"
    } else if outcome.line_percent.iter().any(|&percent| percent >= FULL_PERCENT) {
        "the link"
    } else {
        return None;
    })
}

/// Returns the limit of a profile's run: lost frames in the adapter's memory, or else the saturated resource, or else
/// the parameters with the largest effect on throughput. The search for these parameters takes two runs per parameter.
pub fn limit(profile: &Profile, outcome: &Outcome) -> String {
    fully_used(outcome).map_or_else(|| by_experiment(profile, outcome), str::to_owned)
}

fn by_experiment(profile: &Profile, outcome: &Outcome) -> String {
    let (Ok(workload), Some(metric)) = (outcome.workload.parse(), metrics::find("throughput_bytes_per_s")) else {
        return "not known".to_owned();
    };
    let (factors, not_varied) = factors(profile, Ranges::Share(VARIED_SHARE));
    let study = Study { profile, workload, metric, threads: pool::threads(), not_varied: &not_varied };
    let found = match elasticities(&study, &factors) {
        Ok(found) => found,
        Err(error) => return format!("no resource is saturated; with other parameters: {error}"),
    };
    let strong = found.effects.iter().filter(|effect| effect.main.abs() >= LIMIT_ELASTICITY).take(LIMITS_MAX);
    let named: Vec<_> = strong.map(|of| format!("{} ({:+.2} % for 1 % of it)", of.name, of.main)).collect();
    match named.as_slice() {
        [] => "no resource is saturated, and no single parameter changes throughput".to_owned(),
        _ => format!("no resource is saturated; throughput depends on {}", named.join(", ")),
    }
}

/// Formats the explanation for display.
pub fn text(profile: &Profile, outcome: &Outcome) -> String {
    let (explanation, limit) = (explain(outcome), limit(profile, outcome));
    render("explain.txt", context! { explanation => Serde(explanation), outcome => Serde(outcome), limit })
}

/// Formats the outcome and its input for display.
pub fn run_text(profile: &Profile, outcome: &Outcome) -> String {
    let said = profile.said().map(|(key, quantity)| {
        let (value, scaled) = profile.used(key);
        let interval = quantity.interval.map(|interval| key.dimension.show_interval(interval));
        let notes: Vec<_> = scaled.into_iter().chain(interval).chain([quantity.source.clone()]).collect();
        context! { name => key.name, value, tag => Serde(quantity.tag), notes }
    });
    let latency = outcome.latency.as_ref();
    let is_of_frames = latency.is_some_and(|of| of.is_of_frames);
    let (said, latency) = (said.collect::<Vec<_>>(), latency.map(Latency::text));
    render(
        "run.txt",
        context! { outcome => Serde(outcome), counts => Serde(outcome.counts), latency, is_of_frames, said },
    )
}
