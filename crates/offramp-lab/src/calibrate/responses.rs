//! Predictions of latencies and interrupts under other moderation policies, from the waits derived from round trips.

use std::fmt::Write as _;

use offramp_model::config::Workload;
use offramp_model::profile::{Profile, ProfileError};
use offramp_model::simulation::run;

use super::Calibration;
use super::error::{CalibrateError, missing};
use super::experiments::{BULK, Moderated, PREDICTED_OF_RESPONSES};
use super::samples::Samples;
use super::target::error_percent;
use super::units::NANOSECONDS_PER_MICROSECOND;
use super::waits::{Waits, p50_us, p99_us};
use crate::model::{Experiment, Sample};
use crate::plan::{GIGABIT_BPS, GIGABIT_INTERRUPTS_PER_SECOND};
use offramp_testbed::traffic::RR_MESSAGE_BYTES;

/// Maximum error of a predicted latency percentile, in percent.
pub const LATENCY_PERCENT: f64 = 25.0;
/// Maximum error of predicted interrupts per second, in percent.
pub const INTERRUPTS_PERCENT: f64 = 20.0;
/// A predicted and measured figure of an experiment from which no wait was derived.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Name of the variant.
    pub variant: &'static str,
    /// Name of the figure, with the unit.
    pub name: &'static str,
    /// Predicted and measured value.
    pub values: [f64; 2],
    /// Maximum error, in percent.
    pub within_percent: f64,
}

impl Figure {
    /// Returns the error of the prediction, in percent.
    #[must_use]
    pub fn error(&self) -> f64 {
        error_percent(self.values)
    }

    /// Returns whether the error meets the target.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.error().abs() <= self.within_percent
    }
}

/// Predicts latencies and interrupt rates. `profile` is the name or path of a profile. Variants whose measurements gave
/// the waits are left out. The result is empty if `calibration` has no waits.
///
/// # Errors
/// Returns an error if the profile is invalid, a run of the model fails, or an experiment is missing.
pub fn predict_responses(
    profile: &str,
    calibration: &Calibration,
    experiments: &[Experiment],
) -> Result<Vec<Figure>, CalibrateError> {
    let (base, samples) = (Profile::load(profile)?, Samples { experiments, round: None });
    let mut found = Vec::new();
    for moderated in &PREDICTED_OF_RESPONSES {
        let Some(waits) = calibration.costs.waits else { return Ok(Vec::new()) };
        let (experiment, variant) = moderated.of;
        let profile = set_up(&base, moderated, &waits)?;
        let mut add = |name, predicted, value: fn(&Sample) -> Option<f64>, within_percent| {
            let measured = samples.mean(moderated.of, value).ok_or_else(|| missing(moderated.of))?;
            found.push(Figure { experiment, variant, name, values: [predicted, measured], within_percent });
            Ok::<_, CalibrateError>(())
        };
        if experiment == BULK {
            // The host acknowledges the frames of an interrupt together, and these acknowledgements cause one interrupt
            // on the other host. Both hosts thus have equally many interrupts.
            let predicted = 2.0 * run(&profile, Workload::TtcpReceive)?.interrupts_per_second;
            add("interrupts/s", predicted, |sample| sample.interrupts_per_s, INTERRUPTS_PERCENT)?;
        } else if let Some(latency) = run(&profile, Workload::TcpRr)?.latency {
            add("p50, us", latency.p50_us, p50_us, LATENCY_PERCENT)?;
            add("p99, us", latency.p99_us, p99_us, LATENCY_PERCENT)?;
        }
    }
    Ok(found)
}

/// Returns the profile `base` with hosts that do not sleep, and with a link of 1 Gbit/s. Transmit completions need no
/// interrupt.
fn set_up(base: &Profile, moderated: &Moderated, waits: &Waits) -> Result<Profile, ProfileError> {
    let mut profile = base.clone();
    let timer_us = waits.timer_ns / NANOSECONDS_PER_MICROSECOND;
    let mut wait_us = moderated.wait_us.max(1.0);
    if moderated.of.0 == BULK {
        // In the lab, a super-frame crosses the link at once, and the adapters' thread sleeps until the next
        // super-frame. No frame between two super-frames wakes the thread for a due interrupt, so every interrupt is
        // late by `waits.timer_ns`.
        let gap_us = 1e6 / f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
        wait_us += timer_us;
        profile.set_all([
            ("adapter.timer_latency", "0ns".to_owned()),
            ("adapter.interrupt_rate", format!("{:.0}interrupt/s", 1e6 / (gap_us + timer_us))),
        ])?;
    }
    // The peer's adapter also moderates interrupts. The delay by this moderation is part of the model's service time.
    let peer_us = if moderated.wait_us > 0.0 { moderated.wait_us + timer_us } else { 0.0 };
    profile.set_all([
        ("link.rate", format!("{GIGABIT_BPS}bit/s")),
        ("host.wake_time", "0ns".to_owned()),
        ("adapter.moderation", moderated.moderation.to_owned()),
        ("adapter.interrupt_wait", format!("{wait_us:.0}us")),
        ("adapter.interrupt_frames", "32".to_owned()),
        ("adapter.transmit_moderation", "coalescing".to_owned()),
        ("adapter.transmit_wait", "1s".to_owned()),
        ("adapter.transmit_frames", "1000000".to_owned()),
        ("peer.service_time", format!("{peer_us:.3}us")),
        ("workload.role", "client".to_owned()),
        ("workload.request_size", format!("{RR_MESSAGE_BYTES}byte")),
        ("workload.response_size", format!("{RR_MESSAGE_BYTES}byte")),
        ("workload.time", "2s".to_owned()),
    ])?;
    Ok(profile)
}

/// Formats the figures for display.
#[must_use]
pub fn figures_text(figures: &[Figure]) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let mut out = format!("{:42} {:>10} {:>10} {:>8}\n", "held out of calibration", "predicted", "measured", "error");
    for of in figures {
        let name = format!("{}, {}, {}", of.experiment, of.variant, of.name);
        let ([predicted, measured], verdict) = (of.values, if of.is_met() { "ok" } else { "MISS" });
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:42} {predicted:>10.1} {measured:>10.1} {:>+6.1} % {verdict}", of.error());
    }
    let met = figures.iter().filter(|of| of.is_met()).count();
    let targets = format!("within {LATENCY_PERCENT} % of latencies and {INTERRUPTS_PERCENT} % of interrupts");
    let _ = writeln!(out, "{met} of {} {targets}", figures.len());
    out
}
