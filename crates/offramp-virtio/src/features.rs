//! virtio's feature bits (virtio 1.3, 5.1.3 and 6).

use crate::net_header::{HASH_HEADER_LEN, HEADER_LEN, LEGACY_LEN};
use virtio_bindings::virtio_config::{
    VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, VIRTIO_NET_F_CTRL_MAC_ADDR, VIRTIO_NET_F_CTRL_RX,
    VIRTIO_NET_F_CTRL_RX_EXTRA, VIRTIO_NET_F_CTRL_VLAN, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_DEVICE_STATS,
    VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HASH_REPORT,
    VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_UFO,
    VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
    VIRTIO_NET_F_NOTF_COAL, VIRTIO_NET_F_RSS, VIRTIO_NET_F_SPEED_DUPLEX, VIRTIO_NET_F_STATUS,
    VIRTIO_NET_F_VQ_NOTF_COAL,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Modern device: little-endian fields, header of 12 bytes.
pub const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
/// Packed rings, with a single ring of descriptors.
pub const RING_PACKED: u64 = 1 << VIRTIO_F_RING_PACKED;
/// A received frame can occupy several chains.
pub const MRG_RXBUF: u64 = 1 << VIRTIO_NET_F_MRG_RXBUF;
/// Notifications are requested by ring index.
pub const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// Indirect descriptors are supported.
pub const INDIRECT_DESC: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC;
/// The device has a control queue.
pub const CTRL_VQ: u64 = 1 << VIRTIO_NET_F_CTRL_VQ;
/// The device has several queue pairs.
pub const MQ: u64 = 1 << VIRTIO_NET_F_MQ;
/// The device configuration contains the guest's Ethernet address.
pub const MAC: u64 = 1 << VIRTIO_NET_F_MAC;
/// Buffers are used in the order in which they were made available (virtio 1.3, 2.7.9).
pub const IN_ORDER: u64 = 1 << VIRTIO_F_IN_ORDER;
/// The guest announces its location on request.
pub const GUEST_ANNOUNCE: u64 = 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;
/// The driver can change its receive offloads ([`Command::GuestOffloads`](crate::control::Command::GuestOffloads)).
pub const CTRL_GUEST_OFFLOADS: u64 = 1 << VIRTIO_NET_F_CTRL_GUEST_OFFLOADS;
/// The driver can moderate notifications for all queues of a direction.
pub const NOTF_COAL: u64 = 1 << VIRTIO_NET_F_NOTF_COAL;
/// The driver can moderate notifications for one queue.
pub const VQ_NOTF_COAL: u64 = 1 << VIRTIO_NET_F_VQ_NOTF_COAL;
/// The driver selects the frames to receive by receive modes and a table of MAC addresses.
pub const CTRL_RX: u64 = 1 << VIRTIO_NET_F_CTRL_RX;
/// The device has further receive modes ([`ReceiveModes::EXTRA`](crate::control::ReceiveModes::EXTRA)).
pub const CTRL_RX_EXTRA: u64 = 1 << VIRTIO_NET_F_CTRL_RX_EXTRA;
/// The driver selects the VLANs to receive.
pub const CTRL_VLAN: u64 = 1 << VIRTIO_NET_F_CTRL_VLAN;
/// The driver configures how the device maps received flows to queues.
pub const RSS: u64 = 1 << VIRTIO_NET_F_RSS;
/// The header of a received frame contains the frame's hash.
pub const HASH_REPORT: u64 = 1 << VIRTIO_NET_F_HASH_REPORT;
/// The driver can request statistics of its queues.
pub const DEVICE_STATS: u64 = 1 << VIRTIO_NET_F_DEVICE_STATS;
/// The driver can change the device's MAC address.
pub const CTRL_MAC_ADDR: u64 = 1 << VIRTIO_NET_F_CTRL_MAC_ADDR;
/// The device configuration contains the link's speed.
pub const SPEED_DUPLEX: u64 = 1 << VIRTIO_NET_F_SPEED_DUPLEX;
/// The device configuration contains the maximum MTU.
pub const MTU: u64 = 1 << VIRTIO_NET_F_MTU;

bitflags::bitflags! {
    /// Features of rings and their memory that a device can offer. All are enabled by default.
    ///
    /// `ACCESS_PLATFORM` is not supported, because this crate does not translate addresses of a virtual IOMMU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RingFeatures: u64 {
        /// Packed rings (virtio 1.3, 2.8).
        const PACKED = RING_PACKED;
        /// Indirect descriptors are supported (2.7.5.3).
        const INDIRECT = INDIRECT_DESC;
        /// Notifications are requested by ring index (2.7.10).
        const EVENT_IDX = EVENT_IDX;
        /// Buffers are used in the order in which they were made available (2.7.9).
        const IN_ORDER = IN_ORDER;
        /// A received frame can occupy several chains (5.1.6.4).
        const MRG_RXBUF = MRG_RXBUF;
        /// A single queue can be reset (2.6.1).
        const RING_RESET = 1 << VIRTIO_F_RING_RESET;
    }
}

impl Default for RingFeatures {
    fn default() -> Self {
        Self::all()
    }
}

/// Returns the number of header bytes before each frame (virtio 1.3, 5.1.6). Legacy drivers without mergeable buffers
/// omit `num_buffers`. With `HASH_REPORT`, the header ends with the hash, in both directions.
pub fn header_len(negotiated: u64) -> usize {
    match negotiated {
        _ if negotiated & HASH_REPORT != 0 => HASH_HEADER_LEN,
        _ if negotiated & (VERSION_1 | MRG_RXBUF) == 0 => LEGACY_LEN,
        _ => HEADER_LEN,
    }
}

/// Transmit bit of AccECN, proposed for virtio (virtio-spec issue 232).
const HOST_ACCECN: u32 = 25;
/// Receive bit of AccECN, proposed for virtio (virtio-spec issue 232).
const GUEST_ACCECN: u32 = 26;

/// Returns a feature's name in the specification, without `VIRTIO_F_` or `VIRTIO_NET_F_`. Returns `None` for a bit
/// without a known name.
pub fn feature_name(bit: u32) -> Option<&'static str> {
    Some(match bit {
        VIRTIO_NET_F_CSUM => "CSUM",
        VIRTIO_NET_F_GUEST_CSUM => "GUEST_CSUM",
        VIRTIO_NET_F_CTRL_GUEST_OFFLOADS => "CTRL_GUEST_OFFLOADS",
        VIRTIO_NET_F_CTRL_RX => "CTRL_RX",
        VIRTIO_NET_F_CTRL_RX_EXTRA => "CTRL_RX_EXTRA",
        VIRTIO_NET_F_CTRL_VLAN => "CTRL_VLAN",
        VIRTIO_NET_F_CTRL_MAC_ADDR => "CTRL_MAC_ADDR",
        VIRTIO_NET_F_DEVICE_STATS => "DEVICE_STATS",
        VIRTIO_NET_F_RSS => "RSS",
        VIRTIO_NET_F_HASH_REPORT => "HASH_REPORT",
        VIRTIO_NET_F_SPEED_DUPLEX => "SPEED_DUPLEX",
        VIRTIO_NET_F_MTU => "MTU",
        VIRTIO_NET_F_MAC => "MAC",
        VIRTIO_NET_F_GUEST_TSO4 => "GUEST_TSO4",
        VIRTIO_NET_F_GUEST_TSO6 => "GUEST_TSO6",
        VIRTIO_NET_F_GUEST_ECN => "GUEST_ECN",
        VIRTIO_NET_F_HOST_TSO4 => "HOST_TSO4",
        VIRTIO_NET_F_HOST_TSO6 => "HOST_TSO6",
        VIRTIO_NET_F_HOST_ECN => "HOST_ECN",
        HOST_ACCECN => "HOST_ACCECN",
        GUEST_ACCECN => "GUEST_ACCECN",
        VIRTIO_NET_F_HOST_UFO => "HOST_UFO",
        VIRTIO_NET_F_MRG_RXBUF => "MRG_RXBUF",
        VIRTIO_NET_F_STATUS => "STATUS",
        VIRTIO_NET_F_CTRL_VQ => "CTRL_VQ",
        VIRTIO_NET_F_GUEST_ANNOUNCE => "GUEST_ANNOUNCE",
        VIRTIO_NET_F_MQ => "MQ",
        VIRTIO_RING_F_INDIRECT_DESC => "INDIRECT_DESC",
        VIRTIO_RING_F_EVENT_IDX => "EVENT_IDX",
        VIRTIO_F_VERSION_1 => "VERSION_1",
        VIRTIO_F_RING_PACKED => "RING_PACKED",
        VIRTIO_F_IN_ORDER => "IN_ORDER",
        VIRTIO_F_RING_RESET => "RING_RESET",
        VIRTIO_NET_F_GUEST_USO4 => "GUEST_USO4",
        VIRTIO_NET_F_GUEST_USO6 => "GUEST_USO6",
        VIRTIO_NET_F_HOST_USO => "HOST_USO",
        VIRTIO_NET_F_VQ_NOTF_COAL => "VQ_NOTF_COAL",
        VIRTIO_NET_F_NOTF_COAL => "NOTF_COAL",
        _ => return None,
    })
}
