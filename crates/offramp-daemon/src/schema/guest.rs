//! The status of a guest with a vhost-user port.

use serde::{Deserialize, Serialize};

/// A guest's settings from its control queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlQueueStatus {
    /// Number of queue pairs in use for receiving.
    pub queue_pairs: u16,
    /// Accepted receive offloads, by their names in the specification.
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
    /// The queue pair of unhashed frames; set only with a table.
    pub unclassified: Option<u16>,
}

/// A guest's receive filter (`ip link set … promisc`, `ip maddress` and VLANs in the guest).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterStatus {
    /// Enabled receive modes, by virtio's names; `None` if the guest set none, and receives frames for every address.
    pub modes: Option<Vec<String>>,
    /// The guest's own address, which replaces the port's.
    pub mac: Option<String>,
    /// Number of further unicast addresses.
    pub unicast_addresses: usize,
    /// Number of multicast addresses.
    pub multicast_addresses: usize,
    /// VLANs of received tagged frames; `None` for all.
    pub vlans: Option<Vec<u16>>,
}

/// A guest's coalescing settings for a ring (`ethtool -C` in the guest).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalescingStatus {
    /// Maximum wait of the first waiting frame, microseconds.
    pub usecs: u32,
    /// Maximum number of waiting frames.
    pub frames: u32,
}
