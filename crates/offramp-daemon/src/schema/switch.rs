//! The status of a switch, for `show`.

use serde::{Deserialize, Serialize};

/// The status of a switch. A super-frame counts as its segments.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// The name of the switch.
    pub name: String,
    /// Names of the ports, in the order of the configuration.
    pub ports: Vec<String>,
    /// Size of the address table, in stations.
    pub mac_entries_max: usize,
    /// The ageing time, seconds.
    pub age_seconds: u32,
    /// Number of learned stations within the ageing time; `null` if the switch's thread does not answer.
    pub stations_known: Option<usize>,
    /// Age of the station with the oldest last frame, seconds; `null` without stations.
    pub oldest_age_s: Option<u64>,
    /// Age of the station with the most recent frame, seconds; `null` without stations.
    pub newest_age_s: Option<u64>,
    /// The stations, sorted by port and address; `null` unless the request names the switch. The list has at most
    /// [`STATIONS_MAX`] learned stations.
    pub stations: Option<Vec<StationStatus>>,
    /// Counters of flooded frames.
    pub floods: FloodStatus,
    /// The reserved addresses to which frames were sent: an entry for forwarded and an entry for lost frames.
    pub reserved: Vec<ReservedStatus>,
}

/// Maximum number of learned stations in an answer. A larger table does not fit the memory that the daemon grants its
/// clients.
pub const STATIONS_MAX: usize = 16_384;

/// A station of a switch.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StationStatus {
    /// The Ethernet address.
    pub mac: String,
    /// The VLAN; `null` for untagged frames, and for an address bound to its port in every VLAN.
    pub vlan: Option<u16>,
    /// The name of the port.
    pub port: String,
    /// Time since the station's last frame, seconds; `null` for a bound address (`mac_addresses`) without a frame in the
    /// ageing time.
    pub age_s: Option<u64>,
}

/// Counters of flooded frames.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_field_names, reason = "units stand last in names")]
pub struct FloodStatus {
    /// Frames to group addresses (broadcast and multicast), sent to all other ports.
    pub group_frames: u64,
    /// Frames to unknown stations, sent to all other ports.
    pub unknown_frames: u64,
    /// Frames lost at the flood limit of their ingress port.
    pub limited_frames: u64,
}

/// Frames to a reserved address (IEEE 802.1Q 8.6.3).
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedStatus {
    /// The address.
    pub address: String,
    /// The switch forwarded these frames, by `forward` or `forward_reserved`. If not, they are lost as `reserved`.
    pub forwarded: bool,
    /// Number of frames.
    pub frames: u64,
}
