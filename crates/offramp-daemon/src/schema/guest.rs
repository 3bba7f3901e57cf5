//! The state of a guest behind a vhost-user port.

use serde::{Deserialize, Serialize};

/// The settings that a guest made by its control queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlQueueStatus {
    /// Queue pairs that it receives on.
    pub queue_pairs: u16,
    /// Offloads on receive that it takes, by the specification's names.
    pub guest_offloads: Vec<String>,
    /// Its wish for notifications of each ring, as in `ring_entries`; `None` without one.
    pub coalescing: Vec<Option<CoalescingStatus>>,
    /// Its receive filter.
    #[serde(default)]
    pub filter: FilterStatus,
    /// The hash of received frames; `None`: it has not asked for one.
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

/// Counters of a guest's port besides frames, since the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCounters {
    /// Frontends that connected.
    pub connections: u64,
    /// Frontends that were turned away.
    pub refused_connections: u64,
    /// Messages of frontends.
    pub messages: u64,
    /// Messages that were refused.
    pub bad_messages: u64,
    /// Memory regions that the frontend removed while in use.
    #[serde(default)]
    pub lost_memories: u64,
    /// Interrupts that were sent to the guest.
    pub calls: u64,
    /// Chains of descriptors that cannot be used.
    pub bad_chains: u64,
    /// Rings that were stopped for invalid contents.
    pub broken_rings: u64,
    /// Frames for which the guest has no buffer.
    pub discarded: u64,
}
