//! Failures of the steps of a test harness.

use offramp_ports::sys::NetNs;
use std::fmt::Display;

/// The reason why a step was not completed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The step failed, its result is wrong, or a needed program or file is missing.
    #[error("{0}")]
    Failed(String),
    /// The step cannot run, because a program or this machine lacks a capability.
    #[error("{0}")]
    NotPossible(String),
    /// A signal asked the harness to stop.
    #[error("stopped by a signal")]
    Stopped,
}

impl Failure {
    /// Replaces the text of a [`Failure::Failed`] by the return value of `change`.
    #[must_use]
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(change(why)),
            other => other,
        }
    }

    /// Prefixes the failure's text with the name of the step.
    #[must_use]
    pub fn during(self, step: impl Display) -> Self {
        self.map(|why| format!("{step}: {why}"))
    }
}

/// The result of a harness' step.
pub type Result<T> = std::result::Result<T, Failure>;

/// Returns a [`Failure::Failed`] with this text.
///
/// # Errors
/// Always returns an error.
pub fn failed<T>(why: impl Display) -> Result<T> {
    Err(Failure::Failed(why.to_string()))
}

/// Returns a [`Failure::NotPossible`] with this reason, so that the step is skipped.
///
/// # Errors
/// Always returns an error.
pub fn not_possible<T>(why: impl Display) -> Result<T> {
    Err(Failure::NotPossible(why.to_string()))
}

/// Adds the name of the attempted action to an error of the system or of another crate.
pub trait Doing<T> {
    /// Turns an error into a failure whose text begins with `what`, a phrase such as `starting dpdk-testpmd`.
    ///
    /// # Errors
    /// Returns an error if `self` is an error.
    fn doing(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure::Failed(format!("{what}: {error}")))
    }
}

/// Makes a network namespace.
///
/// # Errors
/// Returns an error if this process is not root.
pub fn new_namespace() -> Result<NetNs> {
    NetNs::new().doing("making a network namespace (run as root)")
}

/// Runs a closure in a network namespace. `what` names the action in a failure.
///
/// # Errors
/// Returns an error if the closure fails, or the namespace cannot be entered.
pub fn inside<T: Send, E: Display + Send>(
    ns: &NetNs,
    what: impl Display,
    work: impl FnOnce() -> std::result::Result<T, E> + Send,
) -> Result<T> {
    ns.run(work).doing("entering a namespace")?.doing(what)
}
