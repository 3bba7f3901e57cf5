//! Calibration: derives the costs of this machine from some of the lab's experiments, and predicts the other
//! experiments with the model.
//!
//! In the lab, both hosts share processors, and the adapters run on a separate processor. The processor time per byte
//! of payload is the sum of these costs:
//!
//! ```text
//! host    = byte + sends × send + receives × receive [+ checksum sent] [+ checksum received]
//! adapter = byte + wire frames × frame + (sends + receives) × hand-over [- checksums computed by the hosts]
//! ```
//!
//! The adapters count sends, receives and wire frames. Non-negative least squares gives the costs from a few
//! experiments: `lso`, `rsc`, `tx-checksum`, `rx-checksum`, and `jumbo` at an MTU of 9000. If the link is the limit,
//! the hosts sleep between interrupts, and each interrupt takes additional time to wake a host. The adapters' thread
//! sleeps too, and each send takes additional time to wake the thread. Two variants of `interrupt-cap` measure these
//! two times, at 8000 interrupts per second. The adapters poll in one variant, and sleep in the other variant. The
//! variants also measure the bytes per send and per receive. The experiments measure the costs of both ends of a
//! connection together. The resulting profile therefore describes a host with the costs of both ends. From that
//! profile, the model predicts the variants from which no cost was derived.
//!
//! The experiment `receiver` measures a receive-only host. The receiving host has its own processor. The sending host
//! and the adapters share another processor. The processor time of the receiving host is:
//!
//! ```text
//! receiver = byte + (receives + acknowledgements) × hand-over [+ checksum received]
//! ```
//!
//! Least squares gives the costs of the receive-only host from three variants of `receiver`. The checksum cost is that
//! of `rx-checksum`. The model predicts two more variants of `receiver`. The shared processor limits the throughput of
//! `receiver`, so the processor's time per byte equals the time between two bytes. This time is split into a cost per
//! byte, per frame and per hand-over, like the cost of the adapters.
//!
//! A request also waits until processes run, and until the adapters' thread detects a due interrupt. Single small
//! requests without moderation measure the wait for a process: a minimum, and an exponentially distributed part. Single
//! small requests with a gap between interrupts measure the wait for the adapters' thread. The model predicts latencies
//! and interrupt rates under other moderation policies.

mod cost;
mod costs;
mod error;
mod experiments;
mod least_squares;
mod predictions;
mod profile;
mod receiver;
mod responses;
mod samples;
mod setup;
mod target;
#[cfg(test)]
mod tests;
mod units;
mod waits;

use std::fmt::Write as _;

use self::cost::Cost;
use self::samples::Samples;
use crate::model::Experiment;

pub use self::costs::Costs;
pub use self::error::CalibrateError;
pub use self::experiments::plans;
pub use self::predictions::{Prediction, Verdict, predict, predictions_text};
pub use self::receiver::ReceiverCosts;
pub use self::responses::{Figure, figures_text, predict_responses};
pub use self::target::{CPU_PERCENT, THROUGHPUT_PERCENT};
pub use self::waits::Waits;

/// The costs derived from a lab run, and the range of each cost over the rounds of the run.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Costs derived from all rounds together.
    pub costs: Costs,
    /// Costs derived from each complete round separately.
    pub rounds: Vec<Costs>,
}

impl Calibration {
    /// Derives the costs from the experiments of a run.
    ///
    /// # Errors
    /// Returns an error if an experiment is missing, or did not separate the processor time of hosts and adapters.
    pub fn of(experiments: &[Experiment]) -> Result<Self, CalibrateError> {
        let costs = Costs::learn(Samples { experiments, round: None })?;
        let samples = experiments.iter().flat_map(|of| &of.variants).flat_map(|of| &of.samples);
        let rounds = samples.map(|sample| sample.round + 1).max().unwrap_or(0);
        // No costs can be derived from a round in which a sample lacks data, so such a round is omitted.
        let rounds = (0..rounds).filter_map(|round| Costs::learn(Samples { experiments, round: Some(round) }).ok());
        Ok(Self { costs, rounds: rounds.collect() })
    }

    /// Formats the costs for display.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{:40} {:>10}   {:>10} {:>10}\n", "cost", "measured", "from", "to");
        for (name, value) in self.costs.values() {
            let [low, high] = self.interval(name);
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:40} {value:>10.3}   {low:>10.3} {high:>10.3}");
        }
        out
    }

    /// Returns the minimum and maximum of a cost over the separate rounds and over all rounds together.
    fn interval(&self, cost: Cost) -> [f64; 2] {
        let all = self.rounds.iter().chain([&self.costs]).flat_map(Costs::values);
        let values = all.filter(|(of, _)| *of == cost).map(|(_, value)| value);
        values.fold([f64::INFINITY, 0.0], |[low, high], value| [low.min(value), high.max(value)])
    }
}
