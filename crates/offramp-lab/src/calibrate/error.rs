//! Errors of calibration.

use offramp_model::profile::ProfileError;
use offramp_model::simulation::ModelError;

/// Reasons why a machine cannot be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A required experiment was not run, or did not separate the processor time of hosts and adapters.
    #[error(
        "{experiment}, {variant}: no sample separates the processor time of hosts and adapters; use a machine with \
         two processors"
    )]
    Missing {
        /// Name of the experiment.
        experiment: String,
        /// Name of the variant.
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
