//! The status of a guest with a vhost-user port.

use serde::{Deserialize, Serialize};

/// A guest's settings from its control queue.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlQueueStatus {
    /// Number of queue pairs in use for receiving.
    pub queue_pairs: u16,
    /// The receive offloads that the guest has enabled, by their names in the virtio specification.
    pub guest_offloads: Vec<String>,
    /// Coalescing settings of each ring, in the order of `ring_entries`; `None` for a ring without settings.
    pub coalescing: Vec<Option<CoalescingStatus>>,
    /// The receive filter of the guest.
    #[serde(default)]
    pub filter: FilterStatus,
    /// The hash settings for received frames; `None` if the guest has not configured hashing.
    #[serde(default)]
    pub hash: Option<HashStatus>,
    /// Number of refused commands.
    pub refused: u64,
}

/// A guest's settings for hashing received frames and spreading flows. The commands in the guest are `ethtool -X`, `-N
/// … rx-flow-hash` and `-K … rxhash`.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashStatus {
    /// Hashed packet types, by virtio's names.
    pub types: Vec<String>,
    /// The Toeplitz key, in hexadecimal digits. A shorter key is padded with zeros.
    pub key: String,
    /// The virtio header of each received frame contains the frame's hash.
    pub reported: bool,
    /// The queue pair for each value of the hash's low bits (RSS). If the table is empty, the port spreads the flows.
    pub table: Vec<u16>,
    /// The queue pair that receives frames without a hash; set only with a table.
    pub unclassified: Option<u16>,
}

/// A guest's receive filter (`ip link set … promisc`, `ip maddress` and VLANs in the guest).
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterStatus {
    /// Enabled receive modes, by virtio's names; `None` if the guest set none, and receives frames for every address.
    pub modes: Option<Vec<String>>,
    /// The Ethernet address set by the guest, which replaces the address in the port's configuration.
    pub mac: Option<String>,
    /// Number of unicast addresses in the filter, in addition to the guest's own address.
    pub unicast_addresses: usize,
    /// Number of multicast addresses in the filter.
    pub multicast_addresses: usize,
    /// VLANs whose tagged frames the guest receives; `None` if the guest receives all VLANs.
    pub vlans: Option<Vec<u16>>,
}

/// A guest's coalescing settings for a ring (`ethtool -C` in the guest).
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalescingStatus {
    /// Maximum wait of the first waiting frame, microseconds.
    pub usecs: u32,
    /// Maximum number of waiting frames.
    pub frames: u32,
}
