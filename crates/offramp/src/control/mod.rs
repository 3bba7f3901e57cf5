//! The daemon's control protocol: one JSON object per line, each way. `docs/control.md` is its reference.
//!
//! A daemon may be older than the client: a field that was added to an answer later is an `Option`, or has a default
//! that says nothing wrong.

pub mod client;
pub mod line;
pub mod pcapng;
pub mod server;
pub mod socket;

use crate::ipsec::{IpsecStatus, KeyText, SaKeys};
use crate::limit::Limit;
use crate::moderation::Moderation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Version of the protocol. It grows when a field goes or changes its meaning.
pub const VERSION: u32 = 1;
/// Longest request in bytes with its newline: some hundred ports fit.
pub const REQUEST_LEN_MAX: usize = 64 * 1024;
/// Longest answer in bytes that a client reads: 256 queue pairs on each of many ports.
pub const ANSWER_LEN_MAX: usize = 64 * 1024 * 1024;
/// Time that either side has for a whole line.
pub const LINE_TIME_MAX: Duration = Duration::from_secs(5);
/// Most bytes of a packet in a capture, as tcpdump has it: every super-frame is whole.
pub const SNAPLEN_MAX: u32 = 262_144;
/// Clients at once; the next one gets an error and is disconnected.
pub const CLIENTS_MAX: usize = 32;
/// Most of them of one user: no user can keep all others out.
pub const CLIENTS_OF_USER_MAX: usize = CLIENTS_MAX / 2;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// State and counters of all ports, or of one.
    Show {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// The port; all when left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Everything that happens from now on, until the connection ends.
    Monitor {
        /// Version of the protocol that the client speaks.
        version: u32,
    },
    /// The packets of a port, until the client ends its side of the connection.
    Capture {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// The port.
        port: String,
        /// Bytes of each packet.
        #[serde(default = "snaplen_max")]
        snaplen: u32,
    },
    /// Switches features of a port, changes its moderation or its limit, or sets its link; at least one of them.
    Set {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// The port.
        port: String,
        /// Features or groups of features, by name, and whether each is allowed.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        features: BTreeMap<String, bool>,
        /// When the host is interrupted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moderation: Option<Moderation>,
        /// The rates at which the host may send and receive, in place of those before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        /// Whether the link is on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link: Option<bool>,
    },
    /// Adds the ports and switches of a text as the configuration file has them: all of them, or none.
    Add {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// What errors call the text. The daemon opens no file of that name.
        source: String,
        /// `[[port]]` and `[[switch]]`.
        toml: String,
    },
    /// Removes ports and switches: all of them, or none.
    Remove {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// Names of ports.
        #[serde(default)]
        ports: Vec<String>,
        /// Names of switches.
        #[serde(default)]
        switches: Vec<String>,
    },
    /// Installs a security association.
    SaAdd {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// The port.
        port: String,
        /// The association, without its keys.
        sa: Box<SaKeys>,
        /// Its keys, in hexadecimal.
        key: KeyText,
    },
    /// Removes a security association at once.
    SaDel {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// The port.
        port: String,
        /// Which way it protects.
        direction: String,
        /// Its security parameters index.
        spi: u32,
    },
    /// Replaces a security association; no frame is lost.
    SaRekey {
        /// Version of the protocol that the client speaks.
        version: u32,
        /// The port.
        port: String,
        /// Which way both protect.
        direction: String,
        /// The security parameters index of the old one.
        spi: u32,
        /// What differs in the new one.
        to: Box<SaKeys>,
        /// Its keys, in hexadecimal.
        key: KeyText,
        /// How long an inbound one goes on beside the new one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_seconds: Option<u64>,
    },
}

fn snaplen_max() -> u32 {
    SNAPLEN_MAX
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// To `show`.
    Status(Status),
    /// To `set`.
    Changed(Changed),
    /// To `add` and `remove`.
    Difference(Difference),
    /// To `sa_add`, `sa_del` and `sa_rekey`: the port's associations as they are now.
    Ipsec(Box<IpsecStatus>),
    /// To `monitor`: events follow.
    Monitoring {},
    /// After `monitoring`, as often as something happens.
    Event(Event),
    /// To `capture`: pcapng follows.
    Capturing {},
    /// To anything that cannot be done.
    Error(Refusal),
}

/// An answer: its version and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub version: u32,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: RefusalCode,
    /// One line for a human.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// Not a request: no JSON, an unknown field, too long, too slow.
    BadRequest,
    /// The client speaks another version.
    BadVersion,
    UnknownPort,
    UnknownSwitch,
    UnknownFeature,
    /// What is to be added is wrong, or what would be left.
    BadConfiguration,
    /// A socket or a thread of what is to be added cannot be had.
    NotOpened,
    /// Too many clients; try again.
    Busy,
    /// The socket is one that only shows.
    ReadOnly,
    /// The host did not take the change.
    HostRefused,
    /// The security association is not as it must be, or there is none.
    BadAssociation,
}

/// The daemon and its ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub offramp: String,
    pub process: u32,
    /// Time since the daemon began, to work out rates.
    pub uptime_ns: u64,
    /// What keeps the process from the rest of the machine; `null` from a daemon that has no sandbox.
    pub sandbox: Option<SandboxStatus>,
    pub ports: Vec<PortStatus>,
}

/// How much of the machine a daemon keeps from itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SandboxLevel {
    /// What it does not need is refused.
    #[default]
    Full,
    /// System calls that it does not need are done, and named in the kernel's audit log.
    Log,
    /// Nothing.
    Off,
}

/// The sandbox of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// As the file says.
    pub level: SandboxLevel,
    /// Each thread has a filter of system calls.
    pub seccomp: bool,
    /// Version of Landlock that restricts files; `null`: none does.
    pub landlock: Option<u32>,
    /// What the kernel lacks of it.
    pub lacks: Vec<String>,
}

impl std::fmt::Display for SandboxStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sandbox: {}", self.level)?;
        let landlock = self.landlock.map(|version| format!("files by Landlock {version}"));
        let parts = self.seccomp.then(|| "system calls by seccomp".to_owned()).into_iter().chain(landlock);
        parts.chain(self.lacks.iter().map(|lack| format!("not {lack}"))).try_for_each(|part| write!(f, ", {part}"))
    }
}

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    pub name: String,
    pub host: HostStatus,
    pub wire: WireStatus,
    /// The interface on its wire is there; `false`: gone for good. `true` on any other wire.
    #[serde(default = "is_there")]
    pub wire_running: bool,
    /// What was lost at the interface on its wire; `null` on any other wire.
    pub wire_lost: Option<WireLost>,
    pub mtu: usize,
    /// The VLAN of frames without tag; `null` where they are in none.
    pub vlan: Option<u16>,
    /// VLANs whose tags pass, as numbers and ranges; every tag passes where this is empty and `vlan` is `null`.
    #[serde(default)]
    pub vlans: Vec<String>,
    /// Shortest time between two interrupts; 0 unless the moderation is a fixed gap.
    pub rx_usecs: u32,
    /// When the host is interrupted; `null` from an older daemon that does not moderate there.
    pub moderation: Option<Moderation>,
    /// The rates at which the host may send and receive; `null` from a daemon that has no limits.
    pub limit: Option<Limit>,
    /// Whether frames of the host and for it pass; `null` from a daemon that has no such setting.
    pub link: Option<bool>,
    pub cpus: Vec<usize>,
    /// Security associations; `null` from an older daemon that has none there.
    pub ipsec: Option<IpsecStatus>,
    pub features: Vec<FeatureStatus>,
    pub queues: Vec<QueueStatus>,
}

/// What a daemon that does not say has found: it ended when an interface was gone.
fn is_there() -> bool {
    true
}

/// The host's side of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HostStatus {
    Tap {
        interface: String,
        namespace: Option<PathBuf>,
    },
    VhostUser {
        socket: PathBuf,
        /// A frontend is there.
        connected: bool,
        /// Negotiated virtio features, by the specification's names.
        virtio_features: Vec<String>,
        /// Entries of each ring, 0 for one that does not run: receive and transmit of each pair.
        ring_entries: Vec<u16>,
        /// Guest memory that is mapped.
        memory_bytes: u64,
        /// What the guest has set by its control queue; `None` where the port does not serve one.
        #[serde(default)]
        control_queue: Option<Box<ControlQueueStatus>>,
        /// Why the daemon last disconnected a frontend, if it did.
        last_refusal: Option<String>,
        counters: GuestCounters,
    },
}

/// What a guest has set by its control queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlQueueStatus {
    /// Queue pairs that it receives on.
    pub queue_pairs: u16,
    /// Offloads on receive that it takes, by the specification's names.
    pub guest_offloads: Vec<String>,
    /// How it wants to be notified, of each ring as in `ring_entries`; `None` where it has not said so.
    pub coalescing: Vec<Option<CoalescingStatus>>,
    /// What it wants to receive.
    #[serde(default)]
    pub filter: FilterStatus,
    /// How its received frames are hashed; `None`: it has not said so.
    #[serde(default)]
    pub hash: Option<HashStatus>,
    /// Commands that were refused.
    pub refused: u64,
}

/// How a guest wants the frames that it receives to be hashed, and its flows to be spread (`ethtool -X`, `-N … rx-flow-hash` and
/// `-K … rxhash` in the guest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashStatus {
    /// Kinds of packets that are hashed, by virtio's names.
    pub types: Vec<String>,
    /// The Toeplitz key, in hexadecimal digits. Zeros follow one that was shorter.
    pub key: String,
    /// The header of each frame has its hash.
    pub reported: bool,
    /// The queue pair of each value of a hash's low bits (RSS); empty: the port spreads the flows.
    pub table: Vec<u16>,
    /// The queue pair of frames that are not hashed, where there is a table.
    pub unclassified: Option<u16>,
}

/// What a guest wants to receive (`ip link set … promisc`, `ip maddress` and VLANs in the guest).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterStatus {
    /// Modes of receiving that are on, by virtio's names; `None`: it has not said so, and receives from every address.
    pub modes: Option<Vec<String>>,
    /// The address that it has taken in place of the port's.
    pub mac: Option<String>,
    /// Further addresses of stations that it receives.
    pub unicast_addresses: usize,
    /// Addresses of groups that it receives.
    pub multicast_addresses: usize,
    /// VLANs whose tagged frames it receives; `None`: all.
    pub vlans: Option<Vec<u16>>,
}

/// How a guest wants to be notified of a ring (`ethtool -C` in the guest).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalescingStatus {
    /// Microseconds after the first frame that waits.
    pub usecs: u32,
    /// Frames that wait.
    pub frames: u32,
}

/// What happened at a guest's port besides frames, since the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCounters {
    pub connections: u64,
    pub refused_connections: u64,
    pub messages: u64,
    pub bad_messages: u64,
    #[serde(default)]
    pub lost_memories: u64,
    pub calls: u64,
    pub bad_chains: u64,
    pub broken_rings: u64,
    pub discarded: u64,
}

/// The wire of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WireStatus {
    Cable { port: String },
    Tap { interface: String },
    Packet { interface: String },
    Switch { name: String },
}

/// Frames that were lost at the interface on a port's wire, by reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireLost {
    /// Went out of the adapter, and the interface did not take them.
    pub transmit: BTreeMap<String, u64>,
    /// Came in at the interface, and did not reach the adapter.
    pub receive: BTreeMap<String, u64>,
}

/// One feature of one port, with its names in the field.
#[allow(clippy::struct_excessive_bools, reason = "four states that are independent of each other")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureStatus {
    pub name: String,
    pub ethtool: String,
    pub virtio: String,
    pub ndis: String,
    /// The user allows it.
    pub allowed: bool,
    /// The host is offered it.
    pub offered: bool,
    /// The host has accepted it.
    pub negotiated: bool,
    /// It is done now.
    pub in_use: bool,
    /// Why what is done differs from what is allowed; `null` where it does not.
    pub waits_for: Option<WaitsFor>,
}

/// What a feature waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The host cannot do it at all.
    Host,
    /// A feature that it stands on is off.
    Prerequisite,
    /// The host's next negotiation.
    Negotiation,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueStatus {
    pub index: usize,
    /// Its host is there; `false`: gone for good.
    pub running: bool,
    /// Its thread stands still: in the host of the port of that name, or outside of all when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    /// Thread that drives it, as the system numbers it.
    pub thread: i32,
    pub transmit: DirectionStatus,
    pub receive: DirectionStatus,
}

/// One direction of a queue pair, since the daemon began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectionStatus {
    pub frames_in: u64,
    pub frames_out: u64,
    pub bytes_out: u64,
    pub host_frames: u64,
    /// Interrupts of a guest; batches that a TAP received or sent. `None` from an older daemon.
    pub interrupts: Option<u64>,
    /// What an interrupt was found to cost; 0 while it is not measured.
    #[serde(default)]
    pub interrupt_cost_ns: u64,
    /// The longest that a frame, or a guest's call for it, waits.
    #[serde(default)]
    pub wait_max_ns: u64,
    /// Matched no security association and went on as they were.
    #[serde(default)]
    pub bypassed: u64,
    pub bad_checksum: u64,
    pub unparsed: u64,
    /// Most bytes that the adapter's memory has held; 0 where that has no limit.
    #[serde(default)]
    pub memory_bytes_max: u64,
    /// Most frames that came into that memory without a loss and without it becoming empty.
    #[serde(default)]
    pub burst_frames_max: u64,
    /// The lost frames, as `/proc/net/dev` sorts them. `None` of an older daemon.
    pub drop: Option<u64>,
    pub fifo: Option<u64>,
    pub frame: Option<u64>,
    /// Lost frames, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Frames of the host in a batch. Empty of an older daemon, as the next.
    #[serde(default)]
    pub batch_frames: HistogramStatus,
    /// Receive: how long the oldest frame waited for a deferred interrupt.
    #[serde(default)]
    pub interrupt_wait_ns: HistogramStatus,
    /// Over an interval; the command `show` works them out, the daemon leaves them `null`.
    pub rates: Option<Rates>,
}

/// How often values came up to each bound and above the one before, and above all bounds; and the sum of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramStatus {
    pub counts: Vec<u64>,
    pub sum: u64,
}

/// How much in a second.
#[allow(clippy::struct_field_names, reason = "units stand last in names")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub frames_per_s: f64,
    pub bits_per_s: f64,
    pub lost_per_s: f64,
    pub interrupts_per_s: Option<f64>,
}

/// What `set` did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    pub port: String,
    /// The features that were named, and those that are in use or not because of them, as they are now.
    pub features: Vec<FeatureStatus>,
    /// The moderation, if that was named.
    pub moderation: Option<Box<Moderation>>,
    /// The limit, if that was named.
    pub limit: Option<Box<Limit>>,
    /// The link, if that was named.
    pub link: Option<bool>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    #[serde(flatten)]
    pub event: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A frontend is there.
    Connected {
        port: String,
    },
    /// Frontend and port have agreed on features.
    Negotiated {
        port: String,
        virtio_features: Vec<String>,
    },
    /// The frontend is gone; `reason`: why the daemon disconnected it, if it did.
    Disconnected {
        port: String,
        reason: Option<String>,
    },
    /// The host has come to its limit; again after a time below it.
    LimitReached {
        port: String,
        direction: LimitDirection,
    },
    /// A thread stands still since a second, in the host of `port` if in one.
    Stalled {
        thread: i32,
        port: Option<String>,
    },
    /// It goes on.
    Resumed {
        thread: i32,
    },
    /// A host, or an interface on a wire, is gone for good.
    Gone {
        port: String,
        reason: String,
    },
    PortAdded {
        port: String,
    },
    PortRemoved {
        port: String,
    },
    SwitchAdded {
        switch: String,
    },
    SwitchRemoved {
        switch: String,
    },
    /// Events before this one that the client was too slow for.
    Lost {
        events: u64,
    },
}

/// Which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitDirection {
    /// What the host sends.
    Transmit,
    /// What it receives.
    Receive,
}

/// Ports and switches by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    pub ports: Vec<String>,
    pub switches: Vec<String>,
}

/// Ports and switches that were added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub added: Names,
    pub removed: Names,
}

/// A line for each.
impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (names, what) in [(&self.added, "added"), (&self.removed, "removed")] {
            names.switches.iter().try_for_each(|name| writeln!(f, "switch {name} {what}"))?;
            names.ports.iter().try_for_each(|name| writeln!(f, "port {name} {what}"))?;
        }
        Ok(())
    }
}

impl Answer {
    /// An answer of this version.
    pub fn new(outcome: Outcome) -> Self {
        Self { version: VERSION, outcome }
    }

    /// A refusal.
    pub fn refuse(code: RefusalCode, message: impl Into<String>) -> Self {
        Self::new(Outcome::Error(Refusal { code, message: message.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::AssociationStatus;
    use crate::limit;
    use crate::moderation::KEYS;
    use RefusalCode::{
        BadAssociation, BadConfiguration, BadRequest, BadVersion, Busy, HostRefused, NotOpened, ReadOnly,
        UnknownFeature, UnknownPort, UnknownSwitch,
    };
    use serde_json::Value;

    const DOCUMENT: &str = include_str!("../../../../docs/control.md");

    fn example() -> Status {
        let direction = DirectionStatus {
            frames_in: 1,
            frames_out: 1,
            bytes_out: 60,
            host_frames: 1,
            interrupts: Some(1),
            interrupt_cost_ns: 0,
            wait_max_ns: 0,
            bypassed: 0,
            bad_checksum: 0,
            unparsed: 0,
            memory_bytes_max: 0,
            burst_frames_max: 0,
            drop: Some(0),
            fifo: Some(0),
            frame: Some(0),
            lost: offramp_adapter::stats::Loss::ALL.iter().map(|reason| (reason.name().to_owned(), 0)).collect(),
            batch_frames: HistogramStatus::default(),
            interrupt_wait_ns: HistogramStatus::default(),
            rates: Some(Rates { frames_per_s: 1.0, bits_per_s: 1.0, lost_per_s: 0.0, interrupts_per_s: Some(1.0) }),
        };
        let feature = FeatureStatus {
            name: "tso4".into(),
            ethtool: "tx-tcp-segmentation".into(),
            virtio: "HOST_TSO4".into(),
            ndis: "*LsoV2IPv4".into(),
            allowed: true,
            offered: false,
            negotiated: false,
            in_use: false,
            waits_for: Some(WaitsFor::Prerequisite),
        };
        let lost = direction.lost.clone();
        let queue = QueueStatus {
            index: 0,
            running: true,
            stalled: None,
            thread: 7,
            transmit: direction.clone(),
            receive: direction,
        };
        let port = PortStatus {
            name: "a".into(),
            host: HostStatus::Tap { interface: "t".into(), namespace: None },
            wire: WireStatus::Cable { port: "b".into() },
            wire_running: true,
            wire_lost: Some(WireLost { transmit: lost.clone(), receive: lost }),
            mtu: 1500,
            vlan: Some(10),
            vlans: vec!["100-199".into()],
            rx_usecs: 0,
            moderation: Some(moderation()),
            limit: Some(Limit::default()),
            link: Some(true),
            cpus: vec![1],
            ipsec: Some(associations()),
            features: vec![feature],
            queues: vec![queue],
        };
        let counters = GuestCounters {
            connections: 1,
            refused_connections: 0,
            messages: 9,
            bad_messages: 0,
            lost_memories: 0,
            calls: 0,
            bad_chains: 0,
            broken_rings: 0,
            discarded: 0,
        };
        let guest = HostStatus::VhostUser {
            socket: "/s".into(),
            connected: true,
            virtio_features: vec!["CSUM".into()],
            ring_entries: vec![256, 256],
            memory_bytes: 4096,
            control_queue: Some(Box::new(ControlQueueStatus {
                queue_pairs: 1,
                guest_offloads: vec!["GUEST_CSUM".into()],
                coalescing: vec![Some(CoalescingStatus { usecs: 50, frames: 16 }), None],
                filter: FilterStatus { modes: Some(vec!["allmulti".into()]), ..FilterStatus::default() },
                hash: Some(HashStatus {
                    types: vec!["TCPV4".into()],
                    key: "6d5a".into(),
                    reported: true,
                    table: vec![1, 0],
                    unclassified: Some(0),
                }),
                refused: 0,
            })),
            last_refusal: Some("x".into()),
            counters,
        };
        let guest = PortStatus { host: guest, wire: WireStatus::Switch { name: "lan".into() }, ..port.clone() };
        Status { offramp: "0".into(), process: 1, uptime_ns: 5, sandbox: None, ports: vec![port, guest] }
    }

    fn associations() -> IpsecStatus {
        let association = AssociationStatus {
            direction: "out".into(),
            spi: 0x1000,
            suite: "aes128gcm16".into(),
            mode: "transport".into(),
            source: None,
            destination: None,
            esn: false,
            replay_window: 64,
            state: "alive".into(),
            sequence: 1,
            packets: 1,
            bytes: 40,
            keepalives: 1,
            refused: [("bad_tag".to_owned(), 1)].into(),
        };
        IpsecStatus {
            policies: vec!["out bypass: protocol 58".to_owned()],
            library: "x".into(),
            transmit: "bypass".into(),
            receive: "discard".into(),
            associations: vec![association],
            events: vec!["x".into()],
        }
    }

    fn moderation() -> Moderation {
        Moderation::from_words(&["area".to_owned()]).unwrap()
    }

    fn events() -> Vec<EventKind> {
        let (port, switch, thread) = ("a".to_owned(), "s".to_owned(), 7);
        vec![
            EventKind::Connected { port: port.clone() },
            EventKind::Negotiated { port: port.clone(), virtio_features: vec![] },
            EventKind::Disconnected { port: port.clone(), reason: None },
            EventKind::LimitReached { port: port.clone(), direction: LimitDirection::Transmit },
            EventKind::LimitReached { port: port.clone(), direction: LimitDirection::Receive },
            EventKind::Stalled { thread, port: None },
            EventKind::Resumed { thread },
            EventKind::Gone { port: port.clone(), reason: String::new() },
            EventKind::PortAdded { port: port.clone() },
            EventKind::PortRemoved { port },
            EventKind::SwitchAdded { switch: switch.clone() },
            EventKind::SwitchRemoved { switch },
            EventKind::Lost { events: 1 },
        ]
    }

    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                found.push(name.clone());
                names(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_names_every_field_and_every_word_of_the_protocol() {
        let mut found = Vec::new();
        let answers = [
            Answer::new(Outcome::Status(example())),
            Answer::new(Outcome::Ipsec(Box::new(associations()))),
            Answer::new(Outcome::Changed(Changed {
                port: "a".into(),
                features: example().ports[0].features.clone(),
                moderation: None,
                limit: None,
                link: None,
            })),
            Answer::new(Outcome::Difference(Difference::default())),
            Answer::new(Outcome::Monitoring {}),
            Answer::new(Outcome::Capturing {}),
            Answer::refuse(RefusalCode::Busy, "x"),
        ];
        for answer in &answers {
            names(&serde_json::to_value(answer).unwrap(), &mut found);
        }
        let (features, moderation, limit) = (BTreeMap::new(), Some(moderation()), Some(Limit::default()));
        let link = Some(false);
        let set = Request::Set { version: VERSION, port: "a".into(), features, moderation, limit, link };
        let show = Request::Show { version: VERSION, port: None };
        // Left out while it is empty.
        found.push("features".to_owned());
        found.extend(KEYS.iter().map(|(key, ..)| (*key).to_owned()));
        found.extend(limit::KEYS.iter().map(|key| key.name.to_owned()));
        let (port, direction, spi) = ("a".to_owned(), "in".to_owned(), 256);
        let key: KeyText = serde_json::from_str("\"00\"").unwrap();
        let sa: Box<SaKeys> = Box::default();
        let (source, toml, ports, switches) = Default::default();
        let come = Request::Add { version: VERSION, source, toml };
        let go = Request::Remove { version: VERSION, ports, switches };
        let add = Request::SaAdd { version: VERSION, port: port.clone(), sa: sa.clone(), key: key.clone() };
        let del = Request::SaDel { version: VERSION, port: port.clone(), direction: direction.clone(), spi };
        let grace_seconds = Some(1);
        let rekey = Request::SaRekey { version: VERSION, port, direction, spi, to: sa, key, grace_seconds };
        let monitor = Request::Monitor { version: VERSION };
        let capture = Request::Capture { version: VERSION, port: "a".into(), snaplen: 1 };
        for request in [set, show, monitor, capture, come, go, add, del, rekey] {
            let value = serde_json::to_value(request).unwrap();
            found.push(value["request"].as_str().unwrap().to_owned());
            names(&value, &mut found);
        }
        for event in events() {
            let value = serde_json::to_value(Answer::new(Outcome::Event(Event { unix_ms: 1, event }))).unwrap();
            found.extend(
                ["event", "direction"].iter().filter_map(|key| value["event"][key].as_str().map(str::to_owned)),
            );
            names(&value, &mut found);
        }
        let codes = [
            BadAssociation,
            BadConfiguration,
            BadRequest,
            BadVersion,
            Busy,
            HostRefused,
            NotOpened,
            ReadOnly,
            UnknownFeature,
            UnknownPort,
            UnknownSwitch,
        ];
        let waits = [WaitsFor::Host, WaitsFor::Prerequisite, WaitsFor::Negotiation];
        let words = codes.iter().map(|code| serde_json::to_value(code).unwrap());
        let words = words.chain(waits.iter().map(|waits| serde_json::to_value(waits).unwrap()));
        found.extend(words.map(|word| word.as_str().unwrap().to_owned()));
        let missing: Vec<_> = found.iter().filter(|name| !DOCUMENT.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/control.md does not name {missing:?}");
        for limit in [
            REQUEST_LEN_MAX as u64,
            LINE_TIME_MAX.as_secs(),
            CLIENTS_MAX as u64,
            CLIENTS_OF_USER_MAX as u64,
            u64::from(SNAPLEN_MAX),
            u64::from(VERSION),
        ] {
            assert!(DOCUMENT.contains(&format!(" {limit}")), "docs/control.md does not name {limit}");
        }
    }

    #[test]
    fn an_answer_reads_back_as_it_was_written() {
        let answer = Answer::new(Outcome::Status(example()));
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
    }

    #[test]
    fn answers_of_the_first_daemon_that_had_this_protocol_can_be_read() {
        let recorded = include_str!("tests/first-answers.json");
        let answers: Vec<Answer> = recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [Outcome::Status(status), Outcome::Changed(changed)] = [&answers[0].outcome, &answers[1].outcome] else {
            panic!("a status and a change: {answers:?}")
        };
        let [vm0, b] = &status.ports[..] else { panic!("two ports") };
        let received = &vm0.queues[0].receive;
        assert_eq!((received.frames_in, received.lost["drop"]), (6, 6));
        assert_eq!((received.interrupts, received.drop), (None, None), "not known is not none");
        assert!(vm0.wire_running && b.wire_running, "nothing is said to be gone");
        assert_eq!((&b.moderation, &b.ipsec, &b.limit, &changed.moderation), (&None, &None, &None, &None));
        assert_eq!((b.link, changed.link), (None, None));
    }

    #[test]
    fn the_requests_of_the_document_are_requests() {
        let requests = DOCUMENT.lines().filter(|line| line.starts_with("{\"version\""));
        let requests: Vec<Request> = requests.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(matches!(
            &requests[..],
            [
                Request::Show { .. },
                Request::Monitor { .. },
                Request::Capture { snaplen: 128, .. },
                Request::Set { moderation: None, .. },
                Request::Set { moderation: Some(_), .. },
                Request::Set { moderation: Some(_), .. },
                Request::Set { limit: Some(_), .. },
                Request::Set { limit: Some(_), .. },
                Request::Set { link: Some(false), .. },
                Request::Add { .. },
                Request::Remove { .. },
                Request::SaAdd { .. },
                Request::SaRekey { .. },
                Request::SaDel { .. }
            ]
        ));
    }
}
