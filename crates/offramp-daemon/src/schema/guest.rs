//! The state of a guest behind a vhost-user port.

use serde::{Deserialize, Serialize};

/// A guest's settings by its control queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlQueueStatus {
    /// Queue pairs in use for receiving.
    pub queue_pairs: u16,
    /// Accepted receive offloads, by the specification's names.
    pub guest_offloads: Vec<String>,
    /// Its wish for notifications of each ring, as in `ring_entries`; `None` without one.
    pub coalescing: Vec<Option<CoalescingStatus>>,
    /// Its receive filter.
    #[serde(default)]
    pub filter: FilterStatus,
    /// The hash of received frames; `None`: it has not asked for one.
    #[serde(default)]
    pub hash: Option<HashStatus>,
    /// Commands refused.
    pub refused: u64,
}

/// A guest's settings for the hashing of received frames and the spreading of flows (`ethtool -X`, `-N … rx-flow-hash`
/// and `-K … rxhash` in the guest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashStatus {
    /// Hashed kinds of packets, by virtio's names.
    pub types: Vec<String>,
    /// The Toeplitz key, in hexadecimal digits. Zeros follow a shorter one.
    pub key: String,
    /// The header of each frame has its hash.
    pub reported: bool,
    /// The queue pair of each value of a hash's low bits (RSS); empty: the port spreads the flows.
    pub table: Vec<u16>,
    /// The queue pair of unhashed frames, where there is a table.
    pub unclassified: Option<u16>,
}

/// A guest's receive filter (`ip link set … promisc`, `ip maddress` and VLANs in the guest).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterStatus {
    /// Enabled modes of receiving, by virtio's names; `None`: the guest set none, and receives from every address.
    pub modes: Option<Vec<String>>,
    /// Its address in place of the port's.
    pub mac: Option<String>,
    /// Further received addresses of stations.
    pub unicast_addresses: usize,
    /// Received addresses of groups.
    pub multicast_addresses: usize,
    /// VLANs of received tagged frames; `None`: all.
    pub vlans: Option<Vec<u16>>,
}

/// A guest's notification settings for a ring (`ethtool -C` in the guest).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalescingStatus {
    /// Microseconds after the first pending frame.
    pub usecs: u32,
    /// Frames that wait.
    pub frames: u32,
}
