//! A change of the running ports and switches, requested by a client or a signal.

use crate::schema::{Difference, RefusalCode};
use std::sync::mpsc::SyncSender;

/// The kinds of changes.
#[derive(Debug)]
pub enum Change {
    /// Adds the ports and switches in the text `toml`. Error messages call this text `source`.
    Add { source: String, toml: String },
    /// Removes ports and switches.
    Remove { ports: Vec<String>, switches: Vec<String> },
    /// Reads the configuration file again, and applies its changes.
    Reload,
    /// Refuses every later change.
    Stop,
}

/// The ports and switches added and removed by a change, or the reason for refusing the change.
pub type Outcome = Result<Difference, (RefusalCode, String)>;

/// A requested change, and the channel for its outcome.
#[derive(Debug)]
pub struct Asked {
    pub change: Change,
    pub outcome: SyncSender<Outcome>,
}
