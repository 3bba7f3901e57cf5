//! The state and the counters of a daemon and its ports, for `show`.

use super::association::IpsecStatus;
use super::counts::Counts;
use super::feature::FeatureStatus;
use super::limit::Limit;
use super::moderation::Moderation;
use super::sandbox::SandboxStatus;
use super::switch::SwitchStatus;
use crate::kind::{HostStatus, WireStatus};
use offramp_adapter::stats::{Direction, Histogram, Loss, NetDevColumns};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The status of the daemon and its ports.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub offramp: String,
    /// The process identifier.
    pub process: u32,
    /// Time since the daemon's start, for computing rates, nanoseconds.
    pub uptime_ns: u64,
    /// The sandbox of the process; `null` only from an older daemon that does not report the sandbox.
    pub sandbox: Option<SandboxStatus>,
    /// The ports.
    pub ports: Vec<PortStatus>,
    /// The switches; empty if an older daemon does not report switches.
    #[serde(default)]
    pub switches: Vec<SwitchStatus>,
}

/// The status of one port.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The name of the port.
    pub name: String,
    /// The status of the host.
    pub host: HostStatus,
    /// The status of the wire.
    pub wire: WireStatus,
    /// The interface on the wire is present; `false` if the interface is gone for good. For any other wire, the value
    /// is always `true`.
    #[serde(default = "is_there")]
    pub wire_running: bool,
    /// Frames lost at the interface on the wire; `null` for any other wire.
    pub wire_lost: Option<WireLost>,
    /// Maximum IP bytes of a frame.
    pub mtu: usize,
    /// The smallest MTU on the wire: the MTU of the interface, or the smallest MTU of a port on the switch. Longer
    /// frames are lost on the wire. `null` on a cable, and if the MTU is unknown.
    pub wire_mtu: Option<usize>,
    /// The VLAN of untagged frames; `null` if untagged frames have no VLAN.
    pub vlan: Option<u16>,
    /// VLANs of permitted tags, as numbers and ranges. If the list is empty and `vlan` is `null`, every tag is
    /// permitted.
    #[serde(default)]
    pub vlans: Vec<String>,
    /// Minimum time between two interrupts, microseconds; 0 unless the moderation is a fixed gap.
    pub rx_usecs: u32,
    /// The interrupt moderation of the host; `null` only from an older daemon that does not report the moderation.
    #[cfg_attr(test, schemars(with = "Option<BTreeMap<String, serde_json::Value>>"))]
    pub moderation: Option<Moderation>,
    /// The host's rate limits for sending and receiving; `null` only from an older daemon that does not report the
    /// limits.
    #[cfg_attr(test, schemars(with = "Option<BTreeMap<String, u64>>"))]
    pub limit: Option<Limit>,
    /// The state of the link, `true` for on; `null` only from an older daemon that does not report the link.
    pub link: Option<bool>,
    /// The processors of the port's threads; any processor if the list is empty.
    pub cpus: Vec<usize>,
    /// The security associations; `null` only from an older daemon that does not report the associations.
    pub ipsec: Option<IpsecStatus>,
    /// The states of the port's features.
    pub features: Vec<FeatureStatus>,
    /// Number of queue pairs; `null` only from an older daemon that does not report the number.
    #[serde(default)]
    pub queue_pairs: Option<u16>,
    /// The status of the queue pairs. A TAP has one entry for all its queue pairs, except on a cable.
    pub queues: Vec<QueueStatus>,
}

/// Returns the value of `wire_running` for an older daemon that does not send this field. Such a daemon ended when an
/// interface was gone, so its interfaces are present.
fn is_there() -> bool {
    true
}

/// Lost frames, by reason.
pub type LostFrames = BTreeMap<Cow<'static, str>, u64>;

/// Frames lost at the interface on a port's wire, by reason.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireLost {
    /// Frames sent by the adapter that the interface refused.
    pub transmit: LostFrames,
    /// Frames that arrived at the interface and did not reach the adapter.
    pub receive: LostFrames,
}

/// The status of one queue pair.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// The index, from 0.
    pub index: usize,
    /// The host is present; `false` if the host is gone for good.
    pub running: bool,
    /// The location of the thread's stall: the name of the port in whose host the thread stalls, or empty outside of
    /// all hosts; absent without a stall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    /// The operating system's number of the thread.
    pub thread: i32,
    /// Counters of the direction from the host to the wire.
    pub transmit: DirectionStatus,
    /// Counters of the direction from the wire to the host.
    pub receive: DirectionStatus,
}

/// Counters of one direction of a queue pair, since the daemon's start.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionStatus {
    /// The counters of [`Direction`], then the lost frames in the columns of `/proc/net/dev`.
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, u64>"))]
    pub counts: Counts,
    /// Lost frames, by reason.
    pub lost: LostFrames,
    /// Number of the host's frames per batch; empty if an older daemon does not send this histogram.
    #[serde(default)]
    pub batch_frames: HistogramStatus,
    /// Receive: wait of the oldest frame before a deferred interrupt, nanoseconds; empty if an older daemon does not
    /// send this histogram.
    #[serde(default)]
    pub interrupt_wait_ns: HistogramStatus,
    /// Rates over the last second, or over the interval of the command `show`; `null` in the first two seconds of a
    /// port.
    pub rates: Option<Rates>,
}

/// A histogram: the number of values up to each bound, the number of values above all bounds, and the sum of all
/// values.
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// Returns the number of lost frames in a direction, by reason.
pub fn lost_frames(direction: &Direction) -> LostFrames {
    Loss::ALL.iter().map(|&reason| (reason.name().into(), direction.lost(reason))).collect()
}

/// Rates per second.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[allow(clippy::struct_field_names, reason = "units stand last in names")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Frames per second.
    pub frames_per_s: f64,
    /// Bits per second.
    pub bits_per_s: f64,
    /// Lost frames per second.
    pub lost_per_s: f64,
    /// Interrupts per second; `null` if the number is unknown.
    pub interrupts_per_s: Option<f64>,
}
