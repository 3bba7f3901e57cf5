//! Everything that threads and sockets share.

use super::drain::Rest;
use super::events::Events;
use super::given::Given;
use super::privilege::Groups;
use offramp_adapter::ipsec::KeyRegistry;
use offramp_ports::sys::sandbox::Sandbox;
use std::path::PathBuf;
use std::sync::Arc;

/// Everything that all threads and sockets share.
#[derive(Clone, Debug)]
pub struct Threads {
    /// Sequence numbers that associations of all ports have used.
    pub keys: Arc<KeyRegistry>,
    pub rest: Arc<Rest>,
    pub sandbox: Sandbox,
    /// The groups of sockets.
    pub groups: Groups,
    /// Directories for new sockets; `None`: wherever the process's user may.
    pub socket_directories: Option<Vec<PathBuf>>,
    /// The readers of events.
    pub events: Arc<Events>,
    /// Sockets that the file does not name.
    pub given: Arc<Given>,
}
