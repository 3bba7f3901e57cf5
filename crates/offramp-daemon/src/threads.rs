//! The state shared by threads and sockets.

use super::drain::Rest;
use super::events::Events;
use super::given::Given;
use super::privilege::Groups;
use super::touched::TouchedMemory;
use offramp_adapter::ipsec::KeyRegistry;
use offramp_ports::sys::sandbox::Sandbox;
use std::path::PathBuf;
use std::sync::Arc;

/// The state shared by all threads and sockets.
#[derive(Clone, Debug)]
pub struct Threads {
    /// Used sequence numbers of the associations of all ports.
    pub keys: Arc<KeyRegistry>,
    pub rest: Arc<Rest>,
    pub sandbox: Sandbox,
    pub touched: Arc<TouchedMemory>,
    /// The groups of sockets.
    pub groups: Groups,
    /// Directories for new sockets; `None`: wherever the process's user may.
    pub socket_directories: Option<Vec<PathBuf>>,
    /// The readers of events.
    pub events: Arc<Events>,
    /// Sockets without a name in the file.
    pub given: Arc<Given>,
}
