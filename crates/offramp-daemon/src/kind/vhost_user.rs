//! A guest connected by a vhost-user socket.

use super::host::{Host, HostTraits, ListeningSocket, Means, PortKind, Settings, TaskParts, Watch};
use crate::config::check::{Check, SOCKET_MODE_DEFAULT};
use crate::config::place::ConfigError;
use crate::drain::AnyHost;
use crate::events::Events;
use crate::schema::unit::Amount;
use crate::schema::{CoalescingStatus, ControlQueueStatus, Counts, EventKind, FilterStatus, HashStatus};
use crate::state::hex;
use offramp_offload::caps::Offloads;
use offramp_offload::sync::lock;
use offramp_ports::sys::socket_file::SocketRights;
use offramp_ports::vhost_user::{
    ControlQueue, MEMORY_BYTES_MAX, Mode, Observer, PortEvent, RingFeatures, VhostPort, VhostUser, VhostUserBuilder,
    VhostUserConfig, feature_name,
};
use offramp_ports::worker::{Polling, Task};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toml::Spanned;

/// Valid user ids for `allowed_uid`. The largest 32-bit number means "no user" (chown(2)), so it is not valid.
const UIDS: RangeInclusive<i64> = 0..=u32::MAX as i64 - 1;
/// Valid virtqueue sizes in entries, and the default size (virtio 1.3 2.7, 2.8: at most 32768 entries).
pub const QUEUE_SIZE: RangeInclusive<i64> = 64..=32_768;
pub const QUEUE_SIZE_DEFAULT: i64 = 1024;
/// Valid limits on a guest's memory, in bytes. The lower bound is too small to boot any system; the upper bound is the
/// largest mapping of a process.
pub const MEMORY_BYTES: RangeInclusive<i64> = 1 << 20..=1 << 47;
/// Maximum polling time of a guest's thread before it sleeps, while frames arrive in quick succession. The time is
/// about the cost of a sleep, a kick and a wake-up.
pub const GUEST_POLL_TIME_MAX: Duration = Duration::from_micros(50);

type Key<T> = Option<Spanned<T>>;

/// The keys of `port.host` for this kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    vhost_user: Spanned<String>,
    mode: Key<String>,
    queue_pairs: Key<i64>,
    mac: Key<String>,
    control_queue: Key<String>,
    packed: Key<bool>,
    indirect: Key<bool>,
    event_idx: Key<bool>,
    in_order: Key<bool>,
    mrg_rxbuf: Key<bool>,
    queue_size_max: Key<i64>,
    memory_bytes_max: Key<Amount>,
    socket_mode: Key<i64>,
    socket_group: Key<String>,
    allowed_uid: Key<i64>,
}

/// The configuration of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub traits: HostTraits,
    /// The frontend's socket, in mode `client`.
    pub peer: Option<PathBuf>,
    pub control_queue: ControlQueue,
    pub rings: RingFeatures,
    pub queue_size_max: u16,
    /// Maximum size of the guest's memory, in bytes.
    pub memory_bytes_max: u64,
    /// The only user allowed to run the frontend; `None` for any user.
    pub allowed_uid: Option<u32>,
}

impl PortKind for Config {
    type Keys = Keys;
    type Host = Mutex<VhostUser>;
    type Status = Status;
    const EXAMPLE: &str = "vhost_user = \"SOCKET\"";

    fn check(check: &Check<'_>, keys: &Keys) -> Result<Self, ConfigError> {
        let number = |key, written, range, default| check.number(&format!("port.host.{key}"), written, range, default);
        let modes = [("server", Mode::Server), ("client", Mode::Client)];
        let switches = [
            (RingFeatures::PACKED, &keys.packed),
            (RingFeatures::INDIRECT, &keys.indirect),
            (RingFeatures::EVENT_IDX, &keys.event_idx),
            (RingFeatures::IN_ORDER, &keys.in_order),
            (RingFeatures::MRG_RXBUF, &keys.mrg_rxbuf),
        ];
        let off = switches.into_iter().filter(|(_, key)| key.as_ref().is_some_and(|on| !*on.as_ref()));
        let queue_size_max = number("queue_size_max", &keys.queue_size_max, QUEUE_SIZE, QUEUE_SIZE_DEFAULT)?;
        let key = "port.host.memory_bytes_max";
        let memory_bytes_max = check.number(key, &keys.memory_bytes_max, MEMORY_BYTES, MEMORY_BYTES_MAX as i64)?;
        let mode = check.one_of("port.host", "mode", &keys.mode, &modes)?.unwrap_or_default();
        let of_a_server = [keys.socket_mode.as_ref().map(Spanned::span), keys.socket_group.as_ref().map(Spanned::span)];
        if let (Mode::Client, Some(at)) = (mode, of_a_server.into_iter().flatten().next()) {
            let message =
                "port.host.socket_mode and socket_group belong to mode \"server\": who listens makes the socket";
            return Err(check.0.wrong(at, message));
        }
        let allowed_uid = number("allowed_uid", &keys.allowed_uid, UIDS, 0)?;
        let control_queue = control_queue(check, keys)?;
        let socket = ListeningSocket {
            path: check.guest_socket("port.host.vhost_user", &keys.vhost_user)?,
            mode: check.permissions("port.host.socket_mode", &keys.socket_mode, SOCKET_MODE_DEFAULT)?,
            group: keys.socket_group.as_ref().map(|group| group.as_ref().clone()),
        };
        let is_server = mode == Mode::Server;
        let traits = HostTraits {
            queue_pairs: check.queue_pairs(&keys.queue_pairs, control_queue.queue_pairs_max())?,
            mac: check.mac(keys.mac.as_ref())?,
            has_interrupts: true,
            // While the thread polls, the guest sends no kicks, which are expensive.
            polling: Polling::Adaptive(GUEST_POLL_TIME_MAX),
            socket: is_server.then(|| socket.clone()),
            ..HostTraits::default()
        };
        Ok(Self {
            traits,
            peer: (!is_server).then_some(socket.path),
            allowed_uid: keys.allowed_uid.is_some().then_some(allowed_uid as u32),
            control_queue,
            rings: off.fold(RingFeatures::all(), |rings, (ring, _)| rings - ring),
            queue_size_max: queue_size_max as u16,
            memory_bytes_max: memory_bytes_max as u64,
        })
    }

    fn open(
        &self,
        port: &Settings<'_>,
        Means { events, sandbox, listener, rights }: Means,
    ) -> Result<Self::Host, String> {
        let config = self.guest(port, rights);
        let builder = VhostUserBuilder::new(&config).listener(listener).sandbox(sandbox);
        let opened = builder.observer(observer(port.name, &events)).open();
        opened.map(Mutex::new).map_err(|cause| cause.to_string())
    }

    fn status(host: &Self::Host) -> Status {
        guest_status(&lock(host))
    }
}

fn control_queue(check: &Check<'_>, keys: &Keys) -> Result<ControlQueue, ConfigError> {
    let known =
        [("frontend", ControlQueue::Frontend), ("backend", ControlQueue::Backend), ("none", ControlQueue::None)];
    let chosen = check.one_of("port.host", "control_queue", &keys.control_queue, &known)?.unwrap_or_default();
    match &keys.queue_pairs {
        Some(pairs) if chosen == ControlQueue::None && *pairs.as_ref() > 1 => {
            let message = "port.host.queue_pairs: a guest without a control queue uses one; write 1";
            Err(check.0.wrong(pairs.span(), message))
        }
        _ => Ok(chosen),
    }
}

impl Config {
    fn guest(&self, port: &Settings<'_>, socket_rights: SocketRights) -> VhostUserConfig {
        let HostTraits { queue_pairs, mac, socket, .. } = &self.traits;
        let (mode, path) = match (&self.peer, socket) {
            (None, Some(socket)) => (Mode::Server, socket.path.clone()),
            (peer, _) => (Mode::Client, peer.clone().unwrap_or_default()),
        };
        VhostUserConfig {
            mode,
            socket_rights,
            allowed_uid: self.allowed_uid,
            queue_pairs: *queue_pairs,
            mac: *mac,
            steers: !port.is_on_cable,
            mac_addresses: port.mac_addresses.to_owned(),
            // The guest reads the speed in Mbit/s, so a guest gets no speed below 1 Mbit/s.
            speed_mbps: port
                .bits_per_second
                .and_then(|rate| u32::try_from(rate / 1_000_000).ok())
                .filter(|rate| *rate > 0),
            control_queue: self.control_queue,
            mtu: u16::try_from(port.mtu).ok(),
            offloads: port.offloads,
            rings: self.rings,
            queue_size_max: self.queue_size_max,
            memory_bytes_max: self.memory_bytes_max,
            carrier: port.interface.map(str::to_owned),
            ..VhostUserConfig::new(path)
        }
    }
}

/// Returns an observer that publishes the events of a guest's port.
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

/// Returns the names of the set feature bits, as in the virtio specification.
fn feature_names(features: u64) -> Vec<String> {
    let named = (0..u64::BITS).filter(|bit| features >> bit & 1 == 1).filter_map(feature_name);
    named.map(str::to_owned).collect()
}

/// The mutex serialises the threads that read the port's status, change its settings, or take one of its queues.
impl Host for Mutex<VhostUser> {
    fn supported(&self) -> Offloads {
        Offloads::all()
    }

    fn negotiated(&self) -> Offloads {
        lock(self).status().offloads()
    }

    fn declined(&self) -> Offloads {
        lock(self).status().declined_offloads()
    }

    fn is_absent(&self) -> bool {
        !lock(self).status().is_connected
    }

    /// Returns the features in use. A guest may use its negotiated transmit features until its next negotiation, so
    /// these features stay in use. The adapter can start or stop the use of receive features at any time.
    fn in_use(&self, allowed: Offloads) -> Offloads {
        let negotiated = self.negotiated();
        (negotiated & Offloads::TX) | Offloads::offer(Offloads::RX, negotiated, allowed)
    }

    fn offer(&self, offloads: Offloads) -> Result<(), String> {
        lock(self).allow(offloads);
        Ok(())
    }

    fn set_link_on(&self, is_on: bool) -> Result<(), String> {
        lock(self).link().set_on(is_on);
        Ok(())
    }

    fn guest(&self) -> Option<&Mutex<VhostUser>> {
        Some(self)
    }

    fn cable_task(&self, parts: TaskParts<'_>) -> Option<Box<dyn Task>> {
        let queue = lock(self).queue(parts.queue)?;
        Some(parts.task(queue))
    }

    fn switch_port(&self, watch: Watch<'_>) -> Option<AnyHost> {
        let mut port = lock(self);
        let queues = (0..usize::from(port.config().queue_pairs)).map(|queue| port.queue(queue));
        Some(watch.port(VhostPort::new(queues.collect::<Option<_>>()?)?))
    }
}

/// The status of a guest behind a vhost-user socket.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The path of the socket.
    pub socket: PathBuf,
    /// A frontend is connected.
    pub connected: bool,
    /// Negotiated virtio features, by the specification's names.
    pub virtio_features: Vec<String>,
    /// Number of entries of each ring, receive and transmit for each pair; 0 for a stopped ring.
    pub ring_entries: Vec<u16>,
    /// Guest memory mapped by the daemon, bytes.
    pub memory_bytes: u64,
    /// Mapped guest memory in the daemon's page tables, bytes; `None` if the kernel does not report this number.
    #[serde(default)]
    pub memory_touched_bytes: Option<u64>,
    /// The guest's settings from its control queue; `None` if the port has no control queue.
    #[serde(default)]
    pub control_queue: Option<Box<ControlQueueStatus>>,
    /// The reason why the daemon last disconnected the frontend.
    pub last_refusal: Option<String>,
    /// Counters of the guest's port, except the counters of frames.
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, u64>"))]
    pub counters: Counts,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.connected { "connected" } else { "disconnected" };
        write!(f, "vhost-user {}, {state}", self.socket.display())
    }
}

fn guest_status(port: &VhostUser) -> Status {
    let status = port.status();
    Status {
        socket: port.config().socket.clone(),
        connected: status.is_connected,
        virtio_features: feature_names(status.features),
        ring_entries: status.ring_entries,
        memory_bytes: status.memory_bytes,
        // The caller sets this field: it reads the process's mappings once for all guests.
        memory_touched_bytes: None,
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
        counters: port.guest_counts().collect(),
    }
}

/// Formats an Ethernet address.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}
