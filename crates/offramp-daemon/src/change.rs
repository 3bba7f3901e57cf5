//! A change of what runs, as a client or a signal asks for it.

use crate::schema::{Difference, RefusalCode};
use std::sync::mpsc::SyncSender;

/// A change.
#[derive(Debug)]
pub enum Change {
    /// The ports and switches of a text come; errors call it `source`.
    Add { source: String, toml: String },
    /// Ports and switches go.
    Remove { ports: Vec<String>, switches: Vec<String> },
    /// The file is read again.
    Reload,
    /// Nothing changes from now on.
    Stop,
}

/// The difference that was made, or the reason for none.
pub type Outcome = Result<Difference, (RefusalCode, String)>;

/// A change, and where its outcome goes.
#[derive(Debug)]
pub struct Asked {
    pub change: Change,
    pub outcome: SyncSender<Outcome>,
}
