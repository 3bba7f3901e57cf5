//! The state and the counters of a daemon and its ports, for `show`.

use super::association::IpsecStatus;
use super::feature::FeatureStatus;
use super::limit::Limit;
use super::moderation::Moderation;
use super::sandbox::SandboxStatus;
use crate::kind::{HostStatus, WireStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The daemon and its ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub offramp: String,
    /// The process identifier.
    pub process: u32,
    /// Time since the daemon began, to work out rates.
    pub uptime_ns: u64,
    /// The sandbox of the process; `null` from a daemon without one.
    pub sandbox: Option<SandboxStatus>,
    /// The ports.
    pub ports: Vec<PortStatus>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The name.
    pub name: String,
    /// The side of the host.
    pub host: HostStatus,
    /// The side of the wire.
    pub wire: WireStatus,
    /// The interface on its wire is there; `false`: gone for good. `true` on any other wire.
    #[serde(default = "is_there")]
    pub wire_running: bool,
    /// Frames lost at the interface on its wire; `null` on any other wire.
    pub wire_lost: Option<WireLost>,
    /// The maximum length of a frame in IP bytes.
    pub mtu: usize,
    /// The VLAN of frames without tag; `null` where they are in none.
    pub vlan: Option<u16>,
    /// VLANs of passing tags, as numbers and ranges. Every tag passes if this is empty and `vlan` is `null`.
    #[serde(default)]
    pub vlans: Vec<String>,
    /// Shortest time between two interrupts; 0 unless the moderation is a fixed gap.
    pub rx_usecs: u32,
    /// The interrupt moderation of the host; `null` from an older daemon without moderation there.
    pub moderation: Option<Moderation>,
    /// The rates of the host for sending and receiving; `null` from a daemon without limits.
    pub limit: Option<Limit>,
    /// The state of the link; `null` from a daemon without this setting.
    pub link: Option<bool>,
    /// The processors of its threads; any when empty.
    pub cpus: Vec<usize>,
    /// Security associations; `null` from an older daemon without them.
    pub ipsec: Option<IpsecStatus>,
    /// The features.
    pub features: Vec<FeatureStatus>,
    /// The queue pairs; one where a switch drives all of them.
    pub queues: Vec<QueueStatus>,
}

/// Returns the default for daemons without this field: they ended when an interface was gone.
fn is_there() -> bool {
    true
}

/// Frames lost at the interface on a port's wire, by reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireLost {
    /// Went out of the adapter, and the interface did not take them.
    pub transmit: BTreeMap<String, u64>,
    /// Came in at the interface, and did not reach the adapter.
    pub receive: BTreeMap<String, u64>,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// The index, from 0.
    pub index: usize,
    /// Its host is there; `false`: gone for good.
    pub running: bool,
    /// The place of its stalled thread: the name of the port with that host, or empty outside of all hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    /// The system's number of its thread.
    pub thread: i32,
    /// From the host to the wire.
    pub transmit: DirectionStatus,
    /// From the wire to the host.
    pub receive: DirectionStatus,
}

/// One direction of a queue pair, since the daemon began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectionStatus {
    /// Incoming frames.
    pub frames_in: u64,
    /// Outgoing frames, after segmentation or coalescing.
    pub frames_out: u64,
    /// Bytes of them, without FCS.
    pub bytes_out: u64,
    /// Frames and super-frames exchanged with the host.
    pub host_frames: u64,
    /// Interrupts of a guest; batches received or sent by a TAP. `None` from an older daemon.
    pub interrupts: Option<u64>,
    /// The measured interrupt cost; 0 without a measurement.
    #[serde(default)]
    pub interrupt_cost_ns: u64,
    /// The longest wait of a frame, or of a guest's call for it.
    #[serde(default)]
    pub wait_max_ns: u64,
    /// Matched no security association and went on as they were.
    #[serde(default)]
    pub bypassed: u64,
    /// Frames passed on despite a wrong checksum.
    pub bad_checksum: u64,
    /// Frames of protocols unknown to the adapter.
    pub unparsed: u64,
    /// Largest fill of the adapter's memory in bytes; 0 without a limit of it.
    #[serde(default)]
    pub memory_bytes_max: u64,
    /// Longest run of frames into this memory without a loss and without emptying it.
    #[serde(default)]
    pub burst_frames_max: u64,
    /// The lost frames, as `/proc/net/dev` sorts them. `None` of an older daemon.
    pub drop: Option<u64>,
    /// The column `fifo`.
    pub fifo: Option<u64>,
    /// The column `frame`.
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

/// A histogram: counts of values up to each bound and above all bounds, and the sum of all values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramStatus {
    /// The count of each bucket.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

/// Rates per second.
#[allow(clippy::struct_field_names, reason = "units stand last in names")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Frames.
    pub frames_per_s: f64,
    /// Bits.
    pub bits_per_s: f64,
    /// Lost frames.
    pub lost_per_s: f64,
    /// Interrupts.
    pub interrupts_per_s: Option<f64>,
}
