//! This machine as a host of the model: what its experiments cost, taken apart, and the rest of them predicted.
//!
//! In the lab both hosts run on the same processors, and the adapters on another one. What the hosts' processors take for
//! a byte of payload is taken for a sum of what they did for it:
//!
//! ```text
//! host    = byte + sends × send + receives × receive [+ sum sent] [+ sum received]
//! adapter = byte + wire frames × frame + (sends + receives) × hand-over [- sums that the hosts make]
//! ```
//!
//! The counts are those of the adapters, so the costs follow by least squares from a few experiments (`lso`, `rsc`,
//! `tx-checksum`, `rx-checksum`, and `jumbo` at an MTU of 9000), none of them below 0. Where a line is the limit, the
//! hosts sleep between two interrupts, and what a hand-over then costs beyond that sum is waking: taken from
//! `interrupt-cap` at 8000 interrupts a second, and so are the pieces in which frames are then handed over. The profile
//! that is made of all this is a host that pays for both ends of a connection: that is what was measured. All other
//! experiments are predicted by runs of the model on that profile.
//!
//! What a host pays that only receives is measured by itself (`receiver`): it has a processor alone, and the sending host
//! shares the other one with the adapters. Its processor's time is
//!
//! ```text
//! receiver = byte + (receives + acknowledgements) × hand-over [+ sum received]
//! ```
//!
//! by least squares from three variants, the sum from `rx-checksum`; two more are predicted. The other processor is the
//! limit of the speed there, so the time that a byte takes is its work, and is taken apart like that of the adapters.

mod costs;
mod experiments;
mod least_squares;
mod predictions;
mod profile;
mod receiver;
mod samples;
mod setup;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use offramp_model::profile::ProfileError;
use offramp_model::simulation::ModelError;

use self::costs::Cost;
use self::samples::Samples;
use crate::model::Experiment;

pub use self::costs::Costs;
pub use self::experiments::plans;
pub use self::predictions::{CPU_PERCENT, Prediction, THROUGHPUT_PERCENT, Verdict, predict, predictions_text};
pub use self::receiver::ReceiverCosts;

const NANOSECONDS_PER_SECOND: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;

/// Why a machine cannot be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// An experiment that is needed was not run, or did not tell hosts and adapters apart.
    #[error(
        "{experiment}, {variant}: no sample with processor time of hosts and adapters; a machine with two processors is needed"
    )]
    Missing {
        /// The experiment.
        experiment: String,
        /// The variant.
        variant: String,
    },
    /// The profile that was made is none.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A run of the model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Costs with the range that the rounds of the run give them.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// From all rounds together.
    pub costs: Costs,
    /// From each round by itself that tells all.
    pub rounds: Vec<Costs>,
}

impl Calibration {
    /// Takes a run apart.
    ///
    /// # Errors
    /// When an experiment is missing, or did not tell hosts and adapters apart.
    pub fn of(experiments: &[Experiment]) -> Result<Self, CalibrateError> {
        let costs = Costs::learn(Samples { experiments, round: None })?;
        let samples = experiments.iter().flat_map(|of| &of.variants).flat_map(|of| &of.samples);
        let rounds = samples.map(|sample| sample.round + 1).max().unwrap_or(0);
        // A round with a sample that tells nothing, as one in which nothing arrived, has no costs of its own.
        let rounds = (0..rounds).filter_map(|round| Costs::learn(Samples { experiments, round: Some(round) }).ok());
        Ok(Self { costs, rounds: rounds.collect() })
    }

    /// The costs for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{:40} {:>10}   {:>10} {:>10}\n", "cost", "measured", "from", "to");
        for (cost, value) in self.costs.values() {
            let (name, [low, high]) = (cost.name(), self.interval(cost));
            // Writing to a string does not fail.
            let _ = writeln!(out, "{name:40} {value:>10.3}   {low:>10.3} {high:>10.3}");
        }
        out
    }

    /// The smallest and the largest value that a round by itself, or all together, give.
    fn interval(&self, cost: Cost) -> [f64; 2] {
        let all = self.rounds.iter().chain([&self.costs]).flat_map(Costs::values);
        let values = all.filter(|(of, _)| *of == cost).map(|(_, value)| value);
        values.fold([f64::INFINITY, 0.0], |[low, high], value| [low.min(value), high.max(value)])
    }
}
