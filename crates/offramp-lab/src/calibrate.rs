//! This machine as a host of the model: the costs in its experiments, and predictions of the other experiments.
//!
//! In the lab both hosts run on the same processors, and the adapters on another one. Processor time for a byte of
//! payload is split into these costs:
//!
//! ```text
//! host    = byte + sends × send + receives × receive [+ checksum sent] [+ checksum received]
//! adapter = byte + wire frames × frame + (sends + receives) × hand-over [- checksums that the hosts make]
//! ```
//!
//! The adapters count sends, receives and wire frames. The costs follow by least squares from a few experiments (`lso`,
//! `rsc`, `tx-checksum`, `rx-checksum`, and `jumbo` at an MTU of 9000); none of them is below 0. If the link is the
//! limit, the hosts sleep between two interrupts, and a hand-over takes additional time to wake them. `interrupt-cap`
//! at 8000 interrupts a second measures this time, and the bytes handed over at once. The resulting
//! profile is a host with the costs of both ends of a connection, because both were measured together. Runs of the
//! model on that profile predict all other experiments.
//!
//! The experiment `receiver` measures a receive-only host. It has a processor alone, and the sending host shares the
//! other one with the adapters. The processor time of the receiving host is
//!
//! ```text
//! receiver = byte + (receives + acknowledgements) × hand-over [+ checksum received]
//! ```
//!
//! by least squares from three variants, and the checksum from `rx-checksum`; two more variants are predicted. The
//! other processor limits the speed there, so its processor time for a byte equals the time between two bytes. This work is split like
//! the adapters' work.
//!
//! A request also waits until processes run, and until the adapters' thread notices a due interrupt. One small request
//! at a time without moderation yields the wait for a process, as a minimum and an exponentially distributed part. With
//! a gap between interrupts it yields the wait for the adapters' thread. Latencies and interrupts under other moderation are predicted.

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

/// Costs with their range over the rounds of the run.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// From all rounds together.
    pub costs: Costs,
    /// From each complete round alone.
    pub rounds: Vec<Costs>,
}

impl Calibration {
    /// Learns the costs from a run.
    ///
    /// # Errors
    /// When an experiment is missing, or did not separate hosts and adapters.
    pub fn of(experiments: &[Experiment]) -> Result<Self, CalibrateError> {
        let costs = Costs::learn(Samples { experiments, round: None })?;
        let samples = experiments.iter().flat_map(|of| &of.variants).flat_map(|of| &of.samples);
        let rounds = samples.map(|sample| sample.round + 1).max().unwrap_or(0);
        // A round with an empty sample has no costs of its own.
        let rounds = (0..rounds).filter_map(|round| Costs::learn(Samples { experiments, round: Some(round) }).ok());
        Ok(Self { costs, rounds: rounds.collect() })
    }

    /// The costs for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{:40} {:>10}   {:>10} {:>10}\n", "cost", "measured", "from", "to");
        for (name, value) in self.costs.values() {
            let [low, high] = self.interval(name);
            // Writing to a string does not fail.
            let _ = writeln!(out, "{name:40} {value:>10.3}   {low:>10.3} {high:>10.3}");
        }
        out
    }

    /// Minimum and maximum over each round alone and all together.
    fn interval(&self, cost: Cost) -> [f64; 2] {
        let all = self.rounds.iter().chain([&self.costs]).flat_map(Costs::values);
        let values = all.filter(|(of, _)| *of == cost).map(|(_, value)| value);
        values.fold([f64::INFINITY, 0.0], |[low, high], value| [low.min(value), high.max(value)])
    }
}
