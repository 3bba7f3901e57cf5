//! A change of the running ports and switches, for a client or a signal.

use crate::schema::{Difference, RefusalCode};
use std::sync::mpsc::SyncSender;

/// A change.
#[derive(Debug)]
pub enum Change {
    /// Adds the ports and switches of a text; errors call it `source`.
    Add { source: String, toml: String },
    /// Removes ports and switches.
    Remove { ports: Vec<String>, switches: Vec<String> },
    /// Reads the file again.
    Reload,
    /// Refuses every later change.
    Stop,
}

/// The difference made, or the reason for none.
pub type Outcome = Result<Difference, (RefusalCode, String)>;

/// A change, and the receiver of its outcome.
#[derive(Debug)]
pub struct Asked {
    pub change: Change,
    pub outcome: SyncSender<Outcome>,
}
