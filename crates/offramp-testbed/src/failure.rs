//! The failures of a harness' steps.

use offramp_ports::sys::NetNs;
use std::fmt::Display;

/// The reason of an unfinished step.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The step was tried with a wrong result, or the machine lacks something.
    #[error("{0}")]
    Failed(String),
    /// The step cannot be tried: one of the programs, or this machine, lacks a capability.
    #[error("{0}")]
    NotPossible(String),
    /// A signal asked the harness to stop.
    #[error("stopped by a signal")]
    Stopped,
}

impl Failure {
    /// Changes the text of a failed step.
    #[must_use]
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(change(why)),
            other => other,
        }
    }

    /// Names the step before its failure.
    #[must_use]
    pub fn during(self, step: impl Display) -> Self {
        self.map(|why| format!("{step}: {why}"))
    }
}

/// The result of a harness' step.
pub type Result<T> = std::result::Result<T, Failure>;

/// Fails with that text.
///
/// # Errors
/// Always.
pub fn failed<T>(why: impl Display) -> Result<T> {
    Err(Failure::Failed(why.to_string()))
}

/// Skips a step with a reason: it cannot be tried.
///
/// # Errors
/// Always.
pub fn not_possible<T>(why: impl Display) -> Result<T> {
    Err(Failure::NotPossible(why.to_string()))
}

/// Adds the current action to a failed call of the system or of another crate.
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

/// Makes a network namespace.
///
/// # Errors
/// When this is not root.
pub fn new_namespace() -> Result<NetNs> {
    NetNs::new().doing("making a network namespace (run as root)")
}

/// Does something in a namespace. `what` names it in a failure.
///
/// # Errors
/// When it fails, or the namespace may not be entered.
pub fn inside<T: Send, E: Display + Send>(
    ns: &NetNs,
    what: impl Display,
    work: impl FnOnce() -> std::result::Result<T, E> + Send,
) -> Result<T> {
    ns.run(work).doing("entering a namespace")?.doing(what)
}
