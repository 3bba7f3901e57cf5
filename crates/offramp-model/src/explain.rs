//! Where each microsecond of a frame goes: the line, the adapter's memory, the processor, and idleness.

use crate::config::Workload;
use crate::cpu::PRIORITIES;
use crate::link::{FCS_LEN, INTERFRAME_GAP_LEN, PREAMBLE_LEN};
use crate::metrics;
use crate::pool;
use crate::profile::Profile;
use crate::sensitivity::{Ranges, Study, elasticities, factors};
use crate::simulation::{ACTIVITIES, FULL_FRAME_LEN, Outcome};
use crate::time::Span;
use serde::Serialize;
use std::fmt::Write;

/// Share from which a resource counts as fully used: the limit of a run.
const FULL_PERCENT: f64 = 97.0;
/// Share from which a bus counts as fully used: transactions of different length do not fill it to the last clock.
const BUS_FULL_PERCENT: f64 = 93.0;
/// By how much each parameter is varied to find the one that limits a run in which nothing is fully used.
const VARIED_SHARE: f64 = 0.1;
/// Percent of throughput for one percent of a parameter, from which it counts as a limit.
const LIMIT_ELASTICITY: f64 = 0.05;
/// Limits that are named at most.
const LIMITS_MAX: usize = 3;
/// Names of the priorities, for people.
const PRIORITY_NAMES: [&str; PRIORITIES.len()] = ["interrupt handlers", "softirqs", "processes"];

/// A part of the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Microseconds of each frame.
    pub us_per_frame: f64,
    /// Share of the time that was counted, percent.
    pub percent: f64,
}

/// The time of a run, per frame on the line of the direction that has more of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Time from one frame to the next.
    pub us_between_frames: f64,
    /// What the line was busy with, and how long it was idle or in gaps.
    pub line: Vec<Part>,
    /// What the bus was busy with, where the adapter is master of one that has limits.
    pub bus: Vec<Part>,
    /// What the processors were busy with, and how long they were idle, all together.
    pub processor: Vec<Part>,
    /// The time of each processor by itself, in their order, where there are several.
    pub processors: Vec<Vec<Part>>,
    /// Mean wait of a frame in the adapter's memory before it is read out, microseconds.
    pub ring_wait_us: f64,
    /// What limits the run, where something is fully used.
    pub limit: &'static str,
}

/// Explains an outcome.
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
        let of = ACTIVITIES.into_iter().map(|(activity, name)| part(name, activities[activity as usize].as_us()));
        of.filter(|part| part.us_per_frame > 0.0).chain([part("idle", idle_us)]).collect()
    };
    let processor = work(&outcome.counts.activities, all_us * outcome.processors as f64 - busy_us);
    let loads = outcome.processor_loads.iter().filter(|_| outcome.processors > 1);
    let processors = loads.map(|of| work(&of.activities, all_us * (1.0 - of.busy_percent / 100.0))).collect();
    let [to_host, from_host] = outcome.counts.bus_busy.map(Span::as_us);
    let bus = if to_host + from_host > 0.0 {
        vec![part("moving to the host", to_host), part("moving from the host", from_host)]
    } else {
        Vec::new()
    };
    Explanation {
        us_between_frames: all_us / frames,
        line,
        bus,
        processor,
        processors,
        ring_wait_us: outcome.ring_wait_us,
        limit: fully_used(outcome).unwrap_or("nothing is fully used"),
    }
}

fn fully_used(outcome: &Outcome) -> Option<&'static str> {
    Some(if outcome.lost() > 0 {
        "frames that are lost in the adapter's memory"
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

/// What limits a run of a profile: what is fully used or, where nothing is, the parameters that throughput hangs on most.
/// Two runs for each parameter find them.
pub fn limit(profile: &Profile, outcome: &Outcome) -> String {
    fully_used(outcome).map_or_else(|| by_experiment(profile, outcome), str::to_owned)
}

fn by_experiment(profile: &Profile, outcome: &Outcome) -> String {
    let workload = Workload::NAMES.iter().find(|(name, _)| *name == outcome.workload);
    let (Some((_, workload)), Some(metric)) = (workload, metrics::find("throughput_bytes_per_s")) else {
        return "not known".to_owned();
    };
    let (factors, not_varied) = factors(profile, Ranges::Share(VARIED_SHARE));
    let study = Study { profile, workload: *workload, metric, threads: pool::threads(), not_varied: &not_varied };
    let found = match elasticities(&study, &factors) {
        Ok(found) => found,
        Err(error) => return format!("nothing is fully used; with other parameters, {error}"),
    };
    let strong = found.effects.iter().filter(|effect| effect.main.abs() >= LIMIT_ELASTICITY).take(LIMITS_MAX);
    let named: Vec<_> = strong.map(|of| format!("{} ({:+.2} % for 1 % of it)", of.name, of.main)).collect();
    match named.as_slice() {
        [] => "nothing is fully used, and no parameter by itself changes throughput".to_owned(),
        _ => format!("nothing is fully used; throughput hangs on {}", named.join(", ")),
    }
}

/// The explanation for people.
pub fn text(profile: &Profile, outcome: &Outcome) -> String {
    let explanation = explain(outcome);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "A frame every {:.1} us.", explanation.us_between_frames);
    write_parts(&mut out, "the line", &explanation.line);
    if !explanation.bus.is_empty() {
        write_parts(&mut out, "the bus", &explanation.bus);
    }
    let title = if outcome.processors > 1 { "the processors, all together" } else { "the processor" };
    write_parts(&mut out, title, &explanation.processor);
    for (at, parts) in explanation.processors.iter().enumerate() {
        write_parts(&mut out, &format!("processor {at}"), parts);
    }
    let _ = writeln!(out, "\nthe processor by priority: {}", levels_text(outcome));
    if outcome.queue_loads.len() > 1 {
        let _ = writeln!(out, "\n{}", queues_text(outcome));
    }
    let _ =
        writeln!(out, "a frame waits {:.1} us in the adapter's memory before it is read out", explanation.ring_wait_us);
    let _ = writeln!(out, "limit: {}", limit(profile, outcome));
    out
}

/// The share of all processors at each priority, for people.
pub fn levels_text(outcome: &Outcome) -> String {
    let shares = PRIORITY_NAMES.iter().zip(outcome.cpu_percent_by_priority);
    let shares: Vec<_> = shares.map(|(name, percent)| format!("{name} {percent:.1} %")).collect();
    shares.join(", ")
}

/// Who shares which queue, for people: a line for each.
pub fn queues_text(outcome: &Outcome) -> String {
    let mut out = format!(
        "{:8} {:>9} {:>11} {:>10} {:>14} {:>11}\n",
        "", "processor", "connections", "frames/s", "interrupts/s", "frames lost"
    );
    for (at, queue) in outcome.queue_loads.iter().enumerate() {
        let processor = queue.processor.map_or_else(|| "any".to_owned(), |processor| processor.to_string());
        let name = match queue.adapter {
            0 => format!("queue {at}"),
            _ => format!("out {}", at % (outcome.queue_loads.len() / 2)),
        };
        let (frames, interrupts) = (queue.frames_per_second, queue.interrupts_per_second);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{name:8} {processor:>9} {:>11} {frames:>10.0} {interrupts:>14.0} {:>11}",
            queue.flows, queue.lost_frames
        );
    }
    out
}

fn write_parts(out: &mut String, title: &str, parts: &[Part]) {
    const BAR_PERCENT: f64 = 2.5;
    let _ = writeln!(out, "\n{title:36} {:>10} {:>7}", "us/frame", "share");
    for part in parts {
        let bar = "#".repeat((part.percent / BAR_PERCENT).round().max(0.0) as usize);
        let _ = writeln!(out, "  {:34} {:>10.1} {:>5.1} %  {bar}", part.name, part.us_per_frame, part.percent);
    }
}
