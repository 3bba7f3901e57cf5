//! Predicts the variants from which no cost was derived, and compares the predictions with the measurements.

use std::fmt::Write as _;

use offramp_model::config::Workload;
use offramp_model::profile::{Profile, ProfileError};
use offramp_model::simulation::run;

use super::costs::Costs;
use super::experiments::{PREDICTED, PREDICTED_OF_RECEIVER};
use super::profile::settings;
use super::samples::Samples;
use super::setup::Setup;
use super::target::{CPU_PERCENT, THROUGHPUT_PERCENT, error_percent};
use super::units::BITS_PER_BYTE;
use super::{CalibrateError, Calibration};
use crate::metric::GB;
use crate::model::Experiment;
use crate::plan::{GIGABIT_BPS, RECEIVER};

const BITS_PER_GIGABIT: f64 = 1e9;

/// Prediction and measurement of a variant from which no cost was derived.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Name of the variant.
    pub variant: &'static str,
    /// Predicted and measured payload rate, Gbit/s.
    pub gbit_per_s: [f64; 2],
    /// Predicted and measured processor time of the hosts per 10^9 bytes, in seconds.
    pub host_cpu_s_per_gb: [f64; 2],
    /// Lower and upper bound of the measured processor time of the hosts, in seconds per 10^9 bytes. The bounds differ
    /// if a hypervisor took processor time.
    pub measured_range_s_per_gb: [f64; 2],
}

/// The comparison of a prediction with the targets for throughput and processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The throughput and the processor time meet their targets.
    Met,
    /// The throughput or the processor time misses its target.
    Missed,
    /// Undecided: the measurement of the processor time is too uncertain, because a hypervisor took processor time.
    Open,
}

impl Prediction {
    /// Returns the error of the predicted throughput, in percent.
    #[must_use]
    pub fn throughput_error(&self) -> f64 {
        error_percent(self.gbit_per_s)
    }

    /// Returns the error of the predicted processor time, in percent.
    #[must_use]
    pub fn cpu_error(&self) -> f64 {
        error_percent(self.host_cpu_s_per_gb)
    }

    /// Compares the prediction with both targets. The processor time meets its target if the whole measured range is
    /// within the target. The verdict is [`Verdict::Open`] if the throughput meets its target, but only a part of the
    /// range is within the target for processor time.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let [predicted, _] = self.host_cpu_s_per_gb;
        let [most, least] = self.measured_range_s_per_gb.map(|measured| error_percent([predicted, measured]));
        let keeps = |error: f64| error.abs() <= CPU_PERCENT;
        // `may_keep` is `true` if a value in the measured range meets the target. If `keeps` is `true` at both ends,
        // the whole range meets the target.
        let may_keep = least <= CPU_PERCENT && most >= -CPU_PERCENT;
        let has_throughput = self.throughput_error().abs() <= THROUGHPUT_PERCENT;
        match (has_throughput && may_keep, keeps(least) && keeps(most)) {
            (false, _) => Verdict::Missed,
            (true, false) => Verdict::Open,
            (true, true) => Verdict::Met,
        }
    }

    fn is(&self, verdict: Verdict) -> bool {
        self.verdict() == verdict
    }
}

/// Predicts the measured experiments from which no cost was derived. `profile` is the name or path of a profile.
///
/// # Errors
/// Returns an error if the profile is invalid, a run of the model fails, or an experiment is missing.
pub fn predict(
    profile: &str,
    calibration: &Calibration,
    experiments: &[Experiment],
) -> Result<Vec<Prediction>, CalibrateError> {
    let base = Profile::load(profile)?;
    let one = |((experiment, variant), setup): ((&'static str, &'static str), Setup)| {
        let measured = Samples { experiments, round: None }.get((experiment, variant))?;
        let costs = &calibration.costs;
        let outcome = if experiment == RECEIVER {
            run(&set_up_receiver(&base, costs, &setup)?, Workload::TtcpReceive)?
        } else {
            run(&set_up(&base, costs, &setup)?, Workload::TtcpSend)?
        };
        let busy_s = outcome.cpu_percent / 100.0 * outcome.seconds * outcome.processors as f64;
        let gb = outcome.bytes_per_second * outcome.seconds / GB;
        Ok(Prediction {
            experiment,
            variant,
            gbit_per_s: [outcome.bytes_per_second * BITS_PER_BYTE, BITS_PER_BYTE / measured.time_s]
                .map(|bit_per_s| bit_per_s / BITS_PER_GIGABIT),
            host_cpu_s_per_gb: [busy_s / gb, measured.host_ns],
            measured_range_s_per_gb: [measured.host_min_ns, measured.host_max_ns],
        })
    };
    let of_receiver = PREDICTED_OF_RECEIVER.into_iter().filter(|_| calibration.costs.receiver.is_some());
    PREDICTED.into_iter().chain(of_receiver).map(one).collect()
}

/// Returns the profile `base` with the costs of a receive-only host. The peer shares a processor with the adapters, so
/// the gap between two frames of the model's peer is `Costs::peer_ns`. The wake-up time is 0, because the derived costs
/// already include wake-ups.
fn set_up_receiver(base: &Profile, costs: &Costs, setup: &Setup) -> Result<Profile, ProfileError> {
    let mut profile = set_up(base, costs, setup)?;
    profile.set("host.wake_time", "0ns")?;
    profile.set("adapter.coalesce", if setup.rsc { "on" } else { "off" })?;
    Ok(profile)
}

fn set_up(base: &Profile, costs: &Costs, setup: &Setup) -> Result<Profile, ProfileError> {
    let mut profile = base.clone();
    for setting in settings(costs, setup) {
        profile.set(setting.key, &setting.text())?;
    }
    profile.set("adapter.lso", if setup.lso { "on" } else { "off" })?;
    profile.set("adapter.checksum", if setup.host_checksums_sent { "off" } else { "on" })?;
    profile.set("workload.mss", &format!("{:.0}byte", setup.mss))?;
    if setup.is_gigabit {
        profile.set("link.rate", &format!("{GIGABIT_BPS}bit/s"))?;
    }
    Ok(profile)
}

/// Formats the predictions for display.
#[must_use]
pub fn predictions_text(predictions: &[Prediction]) -> String {
    let mut out = format!(
        "{:24} {:>10} {:>10} {:>8}   {:>10} {:>10} {:>8}\n",
        "held out of calibration", "Gbit/s", "measured", "error", "host s/GB", "measured", "error"
    );
    for of in predictions {
        let name = format!("{}, {}", of.experiment, of.variant);
        let [speed, measured_speed] = of.gbit_per_s;
        let [cpu, measured_cpu] = of.host_cpu_s_per_gb;
        let [least, most] = of.measured_range_s_per_gb;
        let verdict = match of.verdict() {
            Verdict::Met => "ok".to_owned(),
            Verdict::Missed => "MISS".to_owned(),
            Verdict::Open => format!("open: measured {least:.3} to {most:.3}"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{name:24} {speed:>10.2} {measured_speed:>10.2} {:>+6.1} %   {cpu:>10.3} {measured_cpu:>10.3} {:>+6.1} % {verdict}",
            of.throughput_error(),
            of.cpu_error()
        );
    }
    let count = |verdict| predictions.iter().filter(|of| of.is(verdict)).count();
    let (met, open) = (count(Verdict::Met), count(Verdict::Open));
    let targets = format!("within {THROUGHPUT_PERCENT} % of throughput and {CPU_PERCENT} % of processor time");
    let _ = write!(out, "{met} of {} {targets}", predictions.len());
    if open > 0 {
        let _ = write!(out, "; {open} open: a hypervisor took processor time, busy or idle");
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hypervisor_leaves_open_is_neither_met_nor_missed() {
        let prediction = |predicted: f64, measured: [f64; 3]| Prediction {
            experiment: "lso-1g",
            variant: "off",
            gbit_per_s: [0.94, 0.94],
            host_cpu_s_per_gb: [predicted, measured[1]],
            measured_range_s_per_gb: [measured[0], measured[2]],
        };
        let verdict = |predicted, measured| prediction(predicted, measured).verdict();
        assert_eq!(verdict(3.0, [2.9, 3.0, 3.1]), Verdict::Met);
        assert_eq!(verdict(3.0, [0.0, 2.0, 3.4]), Verdict::Open);
        assert_eq!(verdict(3.0, [2.9, 3.0, 9.0]), Verdict::Open);
        assert_eq!(verdict(3.0, [0.0, 1.0, 2.0]), Verdict::Missed);
        assert_eq!(verdict(3.0, [4.0, 5.0, 6.0]), Verdict::Missed);
        let slow = Prediction { gbit_per_s: [0.5, 0.94], ..prediction(3.0, [0.0, 2.0, 3.4]) };
        assert_eq!(slow.verdict(), Verdict::Missed, "throughput is not open");
        let text = predictions_text(&[prediction(3.0, [0.0, 2.0, 3.4])]);
        assert!(text.contains("open: measured 0.000 to 3.400") && text.contains("0 of 1 within"), "{text}");
    }
}
