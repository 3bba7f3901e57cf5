//! The error of starting a port, a switch or a thread.

use offramp_adapter::ipsec::SaError;
use offramp_adapter::switch::SwitchError;
use std::io;

/// An error at the start of a port, a switch or a thread.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("port \"{port}\": {cause}")]
    Device { port: String, cause: String },
    #[error("port \"{port}\": wire: {cause}")]
    Switch { port: String, cause: SwitchError },
    #[error("port \"{port}\": {cause}")]
    Ipsec { port: String, cause: SaError },
    #[error("port \"{port}\": starting a thread: {cause}")]
    Thread { port: String, cause: io::Error },
    #[error("the system has no descriptor left: {0}")]
    Rest(io::Error),
}
