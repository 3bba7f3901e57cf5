//! A port, a switch or a thread could not be started.

use offramp_adapter::ipsec::SaError;
use offramp_adapter::switch::SwitchError;
use std::io;

/// A port, a switch or a thread could not be started.
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
