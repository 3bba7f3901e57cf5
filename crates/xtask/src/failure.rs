//! How a step of a harness ends when it does not end well.

use std::fmt::Display;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It was tried, and what happened is wrong; or the machine lacks what is needed.
    #[error("{0}")]
    Failed(String),
    /// It cannot be tried: one of the programs, or this machine, does not have what it takes.
    #[error("{0}")]
    NotPossible(String),
    /// A signal asked the harness to stop.
    #[error("stopped by a signal")]
    Stopped,
}

/// What a step of a harness returns.
pub type Result<T> = std::result::Result<T, Failure>;

/// A failure with that text.
pub fn failed<T>(why: impl Display) -> Result<T> {
    Err(Failure::Failed(why.to_string()))
}

/// A step that cannot be tried, with the reason.
pub fn not_possible<T>(why: impl Display) -> Result<T> {
    Err(Failure::NotPossible(why.to_string()))
}

/// Says what was being done when a call of the system or of another crate failed.
pub trait Doing<T> {
    /// Turns the error into a failure of `what` (a phrase such as `starting dpdk-testpmd`).
    ///
    /// # Errors
    /// When this is an error.
    fn doing(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure::Failed(format!("{what}: {error}")))
    }
}
