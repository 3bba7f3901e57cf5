//! The traits that each kind of host implements: [`PortKind`] for its configuration, and [`Host`] for a running host.

use crate::config::check::Check;
use crate::config::impair::{self, FaultConfig, MemoryConfig};
use crate::config::place::ConfigError;
use crate::drain::{AnyHost, Mark, Rest, Resting};
use crate::events::Events;
use offramp_adapter::cable::CableEnd;
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::Line;
use offramp_offload::caps::Offloads;
use offramp_ports::capture::{CapturePoint, Watched};
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::sys::socket_file::SocketRights;
use offramp_ports::vhost_user::VhostUser;
use offramp_ports::worker::{HostIo, Polling, Task};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The properties of a configured host, common to all kinds of hosts. The default host needs no privileges, and has no
/// address and one queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTraits {
    pub queue_pairs: u16,
    /// The Ethernet address of the host, if the file contains one.
    pub mac: Option<[u8; 6]>,
    /// True if the adapter spreads received flows over the queue pairs. If `false`, the host port steers the flows
    /// itself.
    pub is_steered: bool,
    /// True if the host can find frames in its rings before an interrupt. Moderation then delays only the interrupt,
    /// and no frame.
    pub has_interrupts: bool,
    /// Default polling of the port's threads.
    pub polling: Polling,
    /// The configuration key of the host, if only a privileged process can open the host.
    pub privileged_key: Option<&'static str>,
    /// The resource that the host creates, other than a socket, in words for error messages. Only one port may create
    /// it.
    pub made: Option<String>,
    /// The IP addresses that the daemon sets on the host's interface.
    pub addresses: Vec<HostAddress>,
    /// The socket on which the daemon listens for the host.
    pub socket: Option<ListeningSocket>,
}

/// An IP address of the host's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    pub address: IpAddr,
    pub prefix_len: u8,
    /// The address and its namespace, in words for error messages. Only one port may have the same address in a
    /// namespace.
    pub made: String,
}

impl Default for HostTraits {
    fn default() -> Self {
        let (is_steered, has_interrupts, polling) = (false, false, Polling::Off);
        let (mac, privileged_key, made, addresses, socket) = (None, None, None, Vec::new(), None);
        Self { queue_pairs: 1, mac, is_steered, has_interrupts, polling, privileged_key, made, addresses, socket }
    }
}

/// A kind of host, implemented by the type of its configuration.
pub trait PortKind: Sized {
    /// The keys of this kind in `port.host`.
    type Keys: DeserializeOwned;
    /// A running host.
    type Host: Host;
    /// The status of a running host, for `show`.
    type Status;
    /// The key that selects the kind, with an example value.
    const EXAMPLE: &str;

    /// Checks the keys.
    ///
    /// # Errors
    /// Returns an error for the first wrong value.
    fn check(check: &Check<'_>, keys: &Self::Keys) -> Result<Self, ConfigError>;

    /// Opens the host, and offers the features of the configuration. A host with a [`HostTraits::privileged_key`] is
    /// opened before the daemon gives up its privileges. Any other host is opened after the daemon has given up its
    /// privileges, and may start threads, which must have no privileges.
    ///
    /// # Errors
    /// Returns an error if the host cannot be opened or configured. The text has the cause, and where possible the key
    /// and a remedy.
    fn open(&self, port: &Settings<'_>, means: Means) -> Result<Self::Host, String>;

    fn status(host: &Self::Host) -> Self::Status;

    /// Returns the interface that the kernel deletes at the end of the host, as in `show`.
    fn own_interface(&self) -> Option<String> {
        None
    }

    /// Returns the reason why the host cannot be opened on this machine now, with the remedy. Changes nothing.
    /// `is_running` is true if a daemon with the same control socket runs. A device in use is then no reason, because
    /// that daemon may be its user.
    fn missing(&self, _is_running: bool) -> Option<String> {
        None
    }
}

/// A socket on which the daemon listens for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningSocket {
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// The group, by name; `None` for the process's group.
    pub group: Option<String>,
}

/// The settings of a port that its host depends on.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub name: &'a str,
    pub mtu: usize,
    pub offloads: Offloads,
    pub mac_addresses: &'a [[u8; 6]],
    pub bits_per_second: Option<u64>,
    pub is_on_cable: bool,
    /// The name of the interface on the wire.
    pub interface: Option<&'a str>,
}

/// The daemon's resources for opening a host that needs no privileges. A privileged host is opened with the default.
#[derive(Debug, Default)]
pub struct Means {
    pub events: Arc<Events>,
    pub sandbox: Sandbox,
    /// A listening socket passed by the daemon's parent process.
    pub listener: Option<UnixListener>,
    /// The permissions and the group of [`HostTraits::socket`].
    pub rights: SocketRights,
}

/// A running host.
pub trait Host: Debug + Send + Sync {
    /// Returns the features supported by this kind of host.
    fn supported(&self) -> Offloads {
        Offloads::RATIFIED
    }

    /// Returns the features accepted by the host.
    fn negotiated(&self) -> Offloads {
        self.supported()
    }

    /// Returns the features that the host declined at its last negotiation.
    fn declined(&self) -> Offloads {
        Offloads::empty()
    }

    /// Returns whether the host is not connected, so that nothing is negotiated.
    fn is_absent(&self) -> bool {
        false
    }

    /// Returns the features in use if the user allows `allowed`.
    fn in_use(&self, allowed: Offloads) -> Offloads {
        (self.negotiated() & allowed).with_prerequisites()
    }

    /// Returns the features offered to the host if the user allows `allowed`.
    fn offered(&self, allowed: Offloads) -> Offloads {
        Offloads::offer(self.supported(), Offloads::all(), allowed)
    }

    /// Offers a set of features. The offer takes effect at once, or at the host's next negotiation.
    ///
    /// # Errors
    /// Fails if the host is gone.
    fn offer(&self, offloads: Offloads) -> Result<(), String> {
        let _ = offloads;
        Ok(())
    }

    /// Switches the host's link on or off.
    ///
    /// # Errors
    /// Fails if the host is gone.
    fn set_link_on(&self, is_on: bool) -> Result<(), String> {
        let _ = is_on;
        Ok(())
    }

    /// Restores the settings that an existing device had before the daemon used it. Called when the daemon ends, after
    /// the last frame.
    fn restore(&self) {}

    /// Returns the vhost-user port of a guest; `None` for other hosts. If both hosts on a cable are guests, the caller
    /// joins their ports, so that each guest sees its link up only while the other guest is connected.
    fn guest(&self) -> Option<&Mutex<VhostUser>> {
        None
    }

    /// Returns the task of one queue pair with a cable as its wire; `None` if there is no such queue.
    fn cable_task(&self, parts: TaskParts<'_>) -> Option<Box<dyn Task>>;

    /// Returns all queue pairs of the host as one port of a switch; `None` if the queue pairs are in use.
    fn switch_port(&self, watch: Watch<'_>) -> Option<AnyHost>;
}

/// The capture point and the counters for a host's frames.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    pub point: &'a Arc<CapturePoint>,
    pub control: &'a Arc<PortControl>,
}

impl Watch<'_> {
    /// Wraps a host as a port of a switch.
    pub fn port(self, host: impl HostIo + Send + 'static) -> AnyHost {
        Box::new(Watched::new(host, self.point, self.control, 0))
    }
}

/// The parts of a queue pair's task on a cable, except its host.
#[derive(Debug)]
pub struct TaskParts<'a> {
    pub queue: usize,
    pub wire: CableEnd,
    pub adapter: &'a AdapterConfig,
    pub memory: &'a MemoryConfig,
    pub faults: &'a FaultConfig,
    pub watch: Watch<'a>,
    pub rest: &'a Arc<Rest>,
    pub mark: &'a Arc<Mark>,
}

impl TaskParts<'_> {
    /// Returns the task for `host`.
    pub fn task(self, host: impl HostIo + Send + 'static) -> Box<dyn Task> {
        let Self { queue, wire, adapter, memory, faults, watch, rest, mark } = self;
        let host = Watched::new(host, watch.point, watch.control, queue);
        if memory.is_none() && faults.is_none() {
            resting(QueuePair::new(adapter, watch.control, queue, host, wire), rest, mark)
        } else {
            let (host, wire) = (impair::host(host, faults, watch.control, queue), impair::wire(wire, faults, memory));
            resting(QueuePair::new(adapter, watch.control, queue, host, wire), rest, mark)
        }
    }
}

/// Wraps a queue pair into a task that takes part in draining.
fn resting<H, W>(pair: QueuePair<H, W>, rest: &Arc<Rest>, mark: &Arc<Mark>) -> Box<dyn Task>
where
    H: HostIo + Send + 'static,
    W: Line + Send + 'static,
{
    Box::new(Resting::new(pair, rest, mark))
}
