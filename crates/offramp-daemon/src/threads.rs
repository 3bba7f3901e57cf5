//! Everything that threads and sockets share.

use super::drain::Rest;
use super::events::Events;
use super::given::Given;
use super::privilege::Groups;
use offramp_adapter::ipsec::KeyRegistry;
use offramp_ports::sys::sandbox::Sandbox;
use std::path::PathBuf;
use std::sync::Arc;

/// What all threads and sockets have in common.
#[derive(Clone, Debug)]
pub struct Threads {
    /// What associations of all ports have used.
    pub keys: Arc<KeyRegistry>,
    pub rest: Arc<Rest>,
    pub sandbox: Sandbox,
    /// Of sockets.
    pub groups: Groups,
    /// Where sockets can be made; `None`: wherever the process's user may.
    pub socket_directories: Option<Vec<PathBuf>>,
    /// Who hears what happens.
    pub events: Arc<Events>,
    /// Sockets that the file does not name.
    pub given: Arc<Given>,
}
