//! Objects of the daemon that its threads and sockets share.

use super::drain::Rest;
use super::events::Events;
use super::given::Given;
use super::privilege::Groups;
use super::touched::TouchedMemory;
use offramp_adapter::ipsec::KeyRegistry;
use offramp_ports::sys::sandbox::Sandbox;
use std::path::PathBuf;
use std::sync::Arc;

/// The objects that all threads and sockets share.
#[derive(Clone, Debug)]
pub struct Threads {
    /// The registry of IPsec keys, with the sequence numbers used by the associations of all ports.
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
    /// Guest sockets that replace the sockets in the file.
    pub given: Arc<Given>,
}
