//! Why a machine cannot be calibrated.

use offramp_model::profile::ProfileError;
use offramp_model::simulation::ModelError;

/// Why a machine cannot be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A required experiment was not run, or did not separate hosts and adapters.
    #[error(
        "{experiment}, {variant}: no sample separates the processor time of hosts and adapters; use a machine with \
         two processors"
    )]
    Missing {
        /// The experiment.
        experiment: String,
        /// The variant.
        variant: String,
    },
    /// The resulting profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A run of the model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

pub(super) fn missing((experiment, variant): (&str, &str)) -> CalibrateError {
    CalibrateError::Missing { experiment: experiment.to_owned(), variant: variant.to_owned() }
}
