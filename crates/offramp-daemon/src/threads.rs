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
    /// The registry of keys, with the used sequence numbers of all ports' associations.
    pub keys: Arc<KeyRegistry>,
    pub rest: Arc<Rest>,
    pub sandbox: Sandbox,
    pub touched: Arc<TouchedMemory>,
    /// The groups of the sockets.
    pub groups: Groups,
    /// The only directories in which sockets may be created; `None` if sockets may be created anywhere.
    pub socket_directories: Option<Vec<PathBuf>>,
    /// The clients that receive events.
    pub events: Arc<Events>,
    /// Passed sockets that the file does not name.
    pub given: Arc<Given>,
}
