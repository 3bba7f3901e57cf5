//! The host's side of a port: a TAP or a guest. The rest of the daemon does not know the kind.

use super::config::{HostConfig, PortConfig, TapHost, VhostUserHost, WireConfig};
use super::drain::{AnyHost, Mark, Rest, Resting};
use super::events::Events;
use super::privilege::Groups;
use super::state::hex;
use super::threads::Threads;
use crate::schema::{
    CoalescingStatus, ControlQueueStatus, EventKind, FilterStatus, GuestCounters, HashStatus, HostStatus,
};
use offramp_adapter::cable::CableEnd;
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::Line;
use offramp_adapter::stats::Counter;
use offramp_impair::fault::{self, FaultConfig};
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::Offloads;
use offramp_offload::sync::lock;
use offramp_ports::capture::{CapturePoint, Watched};
use offramp_ports::sys::{NetNs, SysError, link};
use offramp_ports::tap::{Tap, TapConfig, TapError};
use offramp_ports::vhost_user::{
    Observer, PortEvent, QueueCounters, VhostPort, VhostUser, VhostUserBuilder, VhostUserConfig, VhostUserError,
    feature_name,
};
use offramp_ports::worker::{HostIo, Task};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Frames held per queue by a TAP's host: more than its largest send window. A TAP drops frames beyond its queue; a
/// driver would hold the host back.
const TAP_TX_QUEUE_LEN: u32 = 8192;

/// An error at the opening of a host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("port \"{port}\": host.namespace {}: {cause}", file.display())]
    Namespace { port: String, file: PathBuf, cause: io::Error },
    #[error("port \"{port}\": {cause}")]
    Tap { port: String, cause: TapError },
    #[error("port \"{port}\": {cause}")]
    Link { port: String, cause: SysError },
    #[error("port \"{port}\": {cause}")]
    VhostUser { port: String, cause: VhostUserError },
}

/// An open host.
#[derive(Debug)]
pub enum Host {
    Tap {
        tap: Tap,
        namespace: Option<PathBuf>,
    },
    /// Locked while it is read: unused queues belong to one thread at a time.
    VhostUser(Box<Mutex<VhostUser>>),
}

/// Opens the host of a port, and offers the features of the configuration. `None` for a host without need for
/// privileges: [`open_guest`] opens it after they are given up.
///
/// # Errors
/// The system's refusal, with the port's name.
pub fn open_privileged(config: &PortConfig) -> Result<Option<Host>, HostError> {
    match &config.host {
        HostConfig::Tap(host) => open_tap(config, host).map(Some),
        HostConfig::VhostUser(_) => Ok(None),
    }
}

/// Opens the host of a port if it is a guest. A guest starts a thread, and this thread must not have privileges.
///
/// # Errors
/// As [`open_privileged`].
pub fn open_guest(config: &PortConfig, threads: &Threads) -> Result<Option<Host>, HostError> {
    let HostConfig::VhostUser(host) = &config.host else { return Ok(None) };
    let guest = guest_config(config, host, &threads.groups);
    let listener = threads.given.listener(&config.name);
    let observer = observer(&config.name, &threads.events);
    let builder = VhostUserBuilder::new(&guest).listener(listener).sandbox(threads.sandbox.clone());
    let opened = builder.observer(observer).open();
    let port = opened.map_err(|cause| HostError::VhostUser { port: config.name.clone(), cause })?;
    Ok(Some(Host::VhostUser(Box::new(Mutex::new(port)))))
}

/// Publishes the events of a guest's port.
fn observer(port: &str, events: &Arc<Events>) -> Observer {
    let (port, events) = (port.to_owned(), Arc::clone(events));
    Box::new(move |event| {
        let port = port.clone();
        events.publish(match event {
            PortEvent::Connected => EventKind::Connected { port },
            PortEvent::Negotiated { features } => {
                EventKind::Negotiated { port, virtio_features: feature_names(features) }
            }
            PortEvent::Disconnected { reason } => EventKind::Disconnected { port, reason },
        });
    })
}

/// Features by the names of the virtio specification.
fn feature_names(features: u64) -> Vec<String> {
    let named = (0..u64::BITS).filter(|bit| features >> bit & 1 == 1).filter_map(feature_name);
    named.map(str::to_owned).collect()
}

fn guest_config(config: &PortConfig, host: &VhostUserHost, groups: &Groups) -> VhostUserConfig {
    VhostUserConfig {
        mode: host.mode,
        socket_rights: groups.rights(host.socket_mode, host.socket_group.as_ref()),
        allowed_uid: host.allowed_uid,
        queue_pairs: host.queue_pairs,
        mac: host.mac,
        steers: !matches!(config.wire, WireConfig::Cable(_)),
        mac_addresses: config.security.mac_addresses.clone(),
        // Below one megabit per second a guest can read no speed.
        speed_mbps: config
            .bits_per_second
            .and_then(|rate| u32::try_from(rate / 1_000_000).ok())
            .filter(|rate| *rate > 0),
        control_queue: host.control_queue,
        mtu: u16::try_from(config.mtu).ok(),
        offloads: config.offloads,
        rings: host.rings,
        queue_size_max: host.queue_size_max,
        memory_bytes_max: host.memory_bytes_max,
        carrier: match &config.wire {
            WireConfig::Tap(interface) | WireConfig::Packet(interface) => Some(interface.clone()),
            WireConfig::Cable(_) | WireConfig::Switch(_) => None,
        },
        ..VhostUserConfig::new(&host.socket)
    }
}

fn open_tap(config: &PortConfig, host: &TapHost) -> Result<Host, HostError> {
    let port = || config.name.clone();
    let wanted = TapConfig {
        queues: host.queue_pairs,
        mtu: config.mtu as u32,
        mac: host.mac,
        tx_queue_len: Some(TAP_TX_QUEUE_LEN),
        ..TapConfig::new(&host.interface)
    };
    let open = || open_tap_here(&wanted, config);
    let tap = match &host.namespace {
        None => open()?,
        Some(file) => {
            let entered = NetNs::open(file).and_then(|namespace| namespace.run(open));
            entered.map_err(|cause| HostError::Namespace { port: port(), file: file.clone(), cause })??
        }
    };
    Ok(Host::Tap { tap, namespace: host.namespace.clone() })
}

/// Makes a TAP in the calling thread's namespace and brings it up.
///
/// # Errors
/// The system's refusal, with the port's name.
pub fn open_tap_here(wanted: &TapConfig, config: &PortConfig) -> Result<Tap, HostError> {
    let port = || config.name.clone();
    let tap = Tap::open(wanted).map_err(|cause| HostError::Tap { port: port(), cause })?;
    tap.offer(config.offloads).map_err(|cause| HostError::Tap { port: port(), cause })?;
    link::set_up(&wanted.name).map_err(|cause| HostError::Link { port: port(), cause })?;
    Ok(tap)
}

impl Host {
    /// Returns the features supported by this kind of host.
    pub fn supported(&self) -> Offloads {
        match self {
            Self::Tap { tap, .. } => tap.supported(),
            Self::VhostUser(_) => Offloads::all(),
        }
    }

    /// Returns the features on offer if the user allows `allowed`. A guest sees them at its next negotiation.
    pub fn offered(&self, allowed: Offloads) -> Offloads {
        Offloads::offer(self.supported(), Offloads::all(), allowed)
    }

    /// Returns the accepted features. A TAP's kernel accepts a whole offer at once.
    pub fn negotiated(&self) -> Offloads {
        match self {
            Self::Tap { tap, .. } => tap.offered(),
            Self::VhostUser(port) => lock(port).status().offloads(),
        }
    }

    /// Returns the features in use if the user allows `allowed`. A guest may use granted transmit features until its
    /// next negotiation. The adapter may change its use of receive features at any time.
    pub fn in_use(&self, allowed: Offloads) -> Offloads {
        let negotiated = self.negotiated();
        match self {
            Self::Tap { .. } => (negotiated & allowed).with_prerequisites(),
            Self::VhostUser(_) => (negotiated & Offloads::TX) | Offloads::offer(Offloads::RX, negotiated, allowed),
        }
    }

    /// Offers a set from now on, or from the next negotiation.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn offer(&self, offloads: Offloads) -> Result<(), String> {
        match self {
            Self::Tap { tap, .. } => tap.offer(offloads).map(drop).map_err(|error| error.to_string()),
            Self::VhostUser(port) => {
                lock(port).allow(offloads);
                Ok(())
            }
        }
    }

    /// Sets the link for the host: the carrier of a TAP, the status read by a guest.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn set_link_on(&self, is_on: bool) -> Result<(), String> {
        match self {
            Self::Tap { tap, .. } => tap.set_carrier(is_on).map_err(|error| error.to_string()),
            Self::VhostUser(port) => {
                lock(port).link().set_on(is_on);
                Ok(())
            }
        }
    }

    /// Notes a cable to another host. If both are guests, each sees its link up while the other is there. A TAP is
    /// always there.
    pub fn join(&self, far: &Self) {
        if let (Self::VhostUser(near), Self::VhostUser(far)) = (self, far) {
            lock(near).join(&lock(far));
        }
    }

    /// Disconnects a guest's frontend, with the reason for `show`. Returns whether there is one.
    pub fn disconnect(&self, why: &str) -> bool {
        match self {
            Self::Tap { .. } => false,
            Self::VhostUser(port) => lock(port).disconnect(why),
        }
    }

    /// Begins [`Host::close`] without waiting.
    pub fn begin_close(&self) {
        if let Self::VhostUser(port) = self {
            lock(port).begin_close();
        }
    }

    /// Disconnects a guest's frontend for good, and so gives back the guest's memory.
    pub fn close(&self) {
        if let Self::VhostUser(port) = self {
            lock(port).close();
        }
    }

    /// Removes the socket's file, if the host has one.
    pub fn remove_socket(&self) {
        if let Self::VhostUser(port) = self {
            lock(port).remove_socket();
        }
    }

    /// Returns its status for `show`.
    pub fn status(&self) -> HostStatus {
        match self {
            Self::Tap { tap, namespace } => {
                HostStatus::Tap { interface: tap.name().to_owned(), namespace: namespace.clone() }
            }
            Self::VhostUser(port) => guest_status(&lock(port)),
        }
    }

    /// Returns the counters of its guest and frontend, if it has one.
    pub fn guest_counters(&self) -> Option<GuestCounters> {
        match self {
            Self::Tap { .. } => None,
            Self::VhostUser(port) => Some(guest_counters(&lock(port))),
        }
    }

    /// Returns the reason why its last frontend was disconnected, if one was.
    pub fn last_refusal(&self) -> Option<String> {
        match self {
            Self::Tap { .. } => None,
            Self::VhostUser(port) => lock(port).status().last_refusal,
        }
    }

    /// Returns the task of queue pair `queue` with a cable as its wire; `None` if there is no such queue.
    pub fn cable_task(&mut self, queue: usize, wire: CableEnd, parts: &TaskParts<'_>) -> Option<Box<dyn Task>> {
        match self {
            Self::Tap { tap, .. } => Some(pair_task(tap.queue(queue)?, queue, wire, parts)),
            Self::VhostUser(port) => Some(pair_task(lock(port).queue(queue)?, queue, wire, parts)),
        }
    }

    /// Returns all its queue pairs as one port of a switch; `None` when they are in use.
    pub fn switch_port(&mut self, point: &Arc<CapturePoint>, control: &Arc<PortControl>) -> Option<AnyHost> {
        Some(match self {
            Self::Tap { tap, .. } => Box::new(Watched::new(tap.port(), point, control, 0)),
            Self::VhostUser(port) => {
                let mut port = lock(port);
                let queues = (0..usize::from(port.config().queue_pairs)).map(|queue| port.queue(queue));
                Box::new(Watched::new(VhostPort::new(queues.collect::<Option<_>>()?)?, point, control, 0))
            }
        })
    }
}

fn pair_task<H: HostIo + Send + 'static>(
    host: H,
    queue: usize,
    wire: CableEnd,
    parts: &TaskParts<'_>,
) -> Box<dyn Task> {
    let (memory, faults) = (parts.memory, parts.faults);
    let host = Watched::new(host, parts.point, parts.control, queue);
    if memory.is_none() && faults.is_none() {
        resting(host, wire, queue, parts)
    } else {
        resting(fault::host(host, faults, parts.control, queue), fault::wire(wire, faults, memory), queue, parts)
    }
}

/// Makes a queue pair that can be brought to rest.
fn resting<H, W>(host: H, wire: W, queue: usize, parts: &TaskParts<'_>) -> Box<dyn Task>
where
    H: HostIo + Send + 'static,
    W: Line + Send + 'static,
{
    let pair = QueuePair::new(parts.adapter, parts.control, queue, host, wire);
    Box::new(Resting::new(pair, parts.rest, parts.mark))
}

fn guest_status(port: &VhostUser) -> HostStatus {
    let status = port.status();
    HostStatus::VhostUser {
        socket: port.config().socket.clone(),
        connected: status.is_connected,
        virtio_features: feature_names(status.features),
        ring_entries: status.ring_entries,
        memory_bytes: status.memory_bytes,
        control_queue: status.control.map(|control| {
            Box::new(ControlQueueStatus {
                queue_pairs: control.queue_pairs,
                guest_offloads: feature_names(control.guest_offloads),
                coalescing: control
                    .coalescing
                    .iter()
                    .map(|wish| wish.map(|wish| CoalescingStatus { usecs: wish.max_usecs, frames: wish.max_packets }))
                    .collect(),
                filter: FilterStatus {
                    modes: control
                        .filter
                        .modes
                        .map(|on| on.iter_names().map(|(name, _)| name.to_lowercase()).collect()),
                    mac: control.filter.mac.map(mac_text),
                    unicast_addresses: control.filter.unicast_addresses,
                    multicast_addresses: control.filter.multicast_addresses,
                    vlans: control.filter.vlans,
                },
                hash: control.hash.map(|hash| HashStatus {
                    types: hash.types.iter_names().map(|(name, _)| name.to_owned()).collect(),
                    key: hex(&hash.key),
                    reported: hash.is_reported,
                    table: hash.table,
                    unclassified: hash.unclassified,
                }),
                refused: control.refused,
            })
        }),
        last_refusal: status.last_refusal,
        counters: guest_counters(port),
    }
}

fn guest_counters(port: &VhostUser) -> GuestCounters {
    let sum =
        |of: fn(&QueueCounters) -> &Counter| port.queue_counters().iter().map(|counters| of(counters).get()).sum();
    let channel = port.channel_counters();
    GuestCounters {
        connections: channel.connections.get(),
        refused_connections: channel.refused_connections.get(),
        messages: channel.messages.get(),
        bad_messages: channel.bad_messages.get(),
        lost_memories: channel.lost_memories.get(),
        calls: sum(|counters| &counters.calls),
        bad_chains: sum(|counters| &counters.bad_chains),
        broken_rings: sum(|counters| &counters.broken_rings),
        discarded: sum(|counters| &counters.discarded),
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// The parts of a task besides its host and its wire.
#[derive(Clone, Copy, Debug)]
pub struct TaskParts<'a> {
    pub adapter: &'a AdapterConfig,
    pub memory: &'a MemoryConfig,
    pub faults: &'a FaultConfig,
    pub control: &'a Arc<PortControl>,
    pub point: &'a Arc<CapturePoint>,
    pub rest: &'a Arc<Rest>,
    pub mark: &'a Arc<Mark>,
}
