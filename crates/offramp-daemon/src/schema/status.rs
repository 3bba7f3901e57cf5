//! The state and the counters of a daemon and its ports, for `show`.

use super::association::IpsecStatus;
use super::counts::Counts;
use super::feature::FeatureStatus;
use super::limit::Limit;
use super::moderation::Moderation;
use super::sandbox::SandboxStatus;
use crate::kind::{HostStatus, WireStatus};
use offramp_adapter::stats::{Direction, Histogram, Loss, NetDevColumns};
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
    /// The least MTU on its wire: of the interface, or of a port on its switch; `null` on a cable, and where it is not
    /// known. Longer frames are lost there.
    pub wire_mtu: Option<usize>,
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
    /// The queue pairs; one for all of a TAP's unless the wire is a cable.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionStatus {
    /// The counters of [`Direction`], then the lost frames in the columns of `/proc/net/dev`.
    #[serde(flatten)]
    pub counts: Counts,
    /// Lost frames, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Frames of the host in a batch. Empty of an older daemon, as the next.
    #[serde(default)]
    pub batch_frames: HistogramStatus,
    /// Receive: wait of the oldest frame for a deferred interrupt.
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

impl From<&Direction> for DirectionStatus {
    fn from(direction: &Direction) -> Self {
        let NetDevColumns { drop, fifo, frame } = direction.net_dev();
        let counts = direction.values().map(|(row, count)| (row.name, count));
        Self {
            counts: counts.chain([("drop", drop), ("fifo", fifo), ("frame", frame)]).collect(),
            lost: lost_frames(direction),
            batch_frames: (&direction.batch_frames).into(),
            interrupt_wait_ns: (&direction.interrupt_wait_ns).into(),
            rates: None,
        }
    }
}

impl<const UNIT: u64> From<&Histogram<UNIT>> for HistogramStatus {
    fn from(histogram: &Histogram<UNIT>) -> Self {
        Self { counts: histogram.counts().collect(), sum: histogram.sum() }
    }
}

/// Returns the lost frames of a direction, by reason.
pub fn lost_frames(direction: &Direction) -> BTreeMap<String, u64> {
    Loss::ALL.iter().map(|&reason| (reason.name().to_owned(), direction.lost(reason))).collect()
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
