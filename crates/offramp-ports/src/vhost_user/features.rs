//! virtio's feature bits (virtio 1.3, 5.1.3, 6; vhost-user, "Feature bits"), and which of them an adapter
//! offers.

use super::ControlQueue;
use offramp_offload::caps::Offloads;
use virtio_bindings::virtio_config::{
    VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_UFO, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The frontend is to log what the device writes (`VHOST_F_LOG_ALL`).
pub(super) const LOG_ALL: u64 = 1 << 26;
/// Protocol features are negotiated (`VHOST_USER_F_PROTOCOL_FEATURES`).
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Modern: little-endian, header of 12 bytes.
pub(super) const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
/// One ring of descriptors.
pub(super) const RING_PACKED: u64 = 1 << VIRTIO_F_RING_PACKED;
/// Frames over several chains.
pub(super) const MRG_RXBUF: u64 = 1 << VIRTIO_NET_F_MRG_RXBUF;
/// Calls and kicks by index.
pub(super) const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// Tables of descriptors.
pub(super) const INDIRECT_DESC: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC;
/// There is a control queue.
pub(super) const CTRL_VQ: u64 = 1 << VIRTIO_NET_F_CTRL_VQ;
/// Several queue pairs.
pub(super) const MQ: u64 = 1 << VIRTIO_NET_F_MQ;
/// The guest's address in the configuration.
pub(super) const MAC: u64 = 1 << VIRTIO_NET_F_MAC;
/// The guest tells where it is by itself, when it is asked to.
pub(super) const GUEST_ANNOUNCE: u64 = 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;
/// Largest MTU in the configuration.
pub(super) const MTU: u64 = 1 << VIRTIO_NET_F_MTU;

bitflags::bitflags! {
    /// What a port offers of rings and their memory, each switchable. All are on by default.
    ///
    /// `ACCESS_PLATFORM` is not among them: it promises to translate addresses of a virtual IOMMU, of which
    /// the frontend would have to tell (`IOTLB_MSG`, which crate `vhost` does not know).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RingFeatures: u64 {
        /// Packed rings (virtio 1.3, 2.8).
        const PACKED = RING_PACKED;
        /// Indirect descriptors (2.7.5.3).
        const INDIRECT = INDIRECT_DESC;
        /// Calls and kicks by index (2.7.10).
        const EVENT_IDX = EVENT_IDX;
        /// Buffers are used in the order in which they were made available (2.7.9).
        const IN_ORDER = 1 << VIRTIO_F_IN_ORDER;
        /// Received frames may lie in several chains (5.1.6.4).
        const MRG_RXBUF = MRG_RXBUF;
        /// One queue may be reset alone (2.6.1).
        const RING_RESET = 1 << VIRTIO_F_RING_RESET;
    }
}

impl Default for RingFeatures {
    fn default() -> Self {
        Self::all()
    }
}

/// Offloads and the bits that stand for them.
const OFFLOADS: [(Offloads, u64); 11] = [
    (Offloads::TX_CHECKSUM, 1 << VIRTIO_NET_F_CSUM),
    (Offloads::TSO4, 1 << VIRTIO_NET_F_HOST_TSO4),
    (Offloads::TSO6, 1 << VIRTIO_NET_F_HOST_TSO6),
    (Offloads::TSO_ECN, 1 << VIRTIO_NET_F_HOST_ECN),
    (Offloads::USO, 1 << VIRTIO_NET_F_HOST_USO),
    (Offloads::UFO, 1 << VIRTIO_NET_F_HOST_UFO),
    (Offloads::RX_CHECKSUM, 1 << VIRTIO_NET_F_GUEST_CSUM),
    (Offloads::RSC4, 1 << VIRTIO_NET_F_GUEST_TSO4),
    (Offloads::RSC6, 1 << VIRTIO_NET_F_GUEST_TSO6),
    (Offloads::RSC_ECN, 1 << VIRTIO_NET_F_GUEST_ECN),
    (Offloads::RSC_UDP, 1 << VIRTIO_NET_F_GUEST_USO4 | 1 << VIRTIO_NET_F_GUEST_USO6),
];

/// The feature bits of an offer, but for those that follow from the configuration ([`MQ`], [`MAC`], [`MTU`]).
pub(super) fn offer(rings: RingFeatures, offloads: Offloads, control_queue: ControlQueue) -> u64 {
    let offloads = offloads.with_prerequisites();
    let mut bits = rings.bits() | VERSION_1 | PROTOCOL_FEATURES | 1 << VIRTIO_NET_F_STATUS;
    for (offload, of_offload) in OFFLOADS {
        if offloads.contains(offload) {
            bits |= of_offload;
        }
    }
    if control_queue == ControlQueue::Frontend {
        // The frontend serves it; these say that the device does not mind.
        bits |= CTRL_VQ | GUEST_ANNOUNCE;
    }
    bits | LOG_ALL
}

/// The offloads that negotiated bits stand for.
pub(super) fn offloads(negotiated: u64) -> Offloads {
    let is_on = |bits: u64| negotiated & bits == bits;
    let set = OFFLOADS.iter().filter(|(_, bits)| is_on(*bits)).fold(Offloads::empty(), |set, (o, _)| set | *o);
    set.with_prerequisites()
}

/// Bytes of the header in front of each frame (virtio 1.3, 5.1.6): legacy drivers without mergeable
/// buffers leave out `num_buffers`.
pub(super) fn header_len(negotiated: u64) -> usize {
    const LEGACY_LEN: usize = 10;
    if negotiated & (VERSION_1 | MRG_RXBUF) == 0 { LEGACY_LEN } else { crate::vnet_hdr::HEADER_LEN }
}

/// A feature's name in the specification, for what is shown to people; `None` for a bit that is never offered.
pub fn feature_name(bit: u32) -> Option<&'static str> {
    Some(match bit {
        VIRTIO_NET_F_CSUM => "CSUM",
        VIRTIO_NET_F_GUEST_CSUM => "GUEST_CSUM",
        VIRTIO_NET_F_MTU => "MTU",
        VIRTIO_NET_F_MAC => "MAC",
        VIRTIO_NET_F_GUEST_TSO4 => "GUEST_TSO4",
        VIRTIO_NET_F_GUEST_TSO6 => "GUEST_TSO6",
        VIRTIO_NET_F_GUEST_ECN => "GUEST_ECN",
        VIRTIO_NET_F_HOST_TSO4 => "HOST_TSO4",
        VIRTIO_NET_F_HOST_TSO6 => "HOST_TSO6",
        VIRTIO_NET_F_HOST_ECN => "HOST_ECN",
        VIRTIO_NET_F_HOST_UFO => "HOST_UFO",
        VIRTIO_NET_F_MRG_RXBUF => "MRG_RXBUF",
        VIRTIO_NET_F_STATUS => "STATUS",
        VIRTIO_NET_F_CTRL_VQ => "CTRL_VQ",
        VIRTIO_NET_F_GUEST_ANNOUNCE => "GUEST_ANNOUNCE",
        VIRTIO_NET_F_MQ => "MQ",
        26 => "LOG_ALL",
        VIRTIO_RING_F_INDIRECT_DESC => "INDIRECT_DESC",
        VIRTIO_RING_F_EVENT_IDX => "EVENT_IDX",
        30 => "PROTOCOL_FEATURES",
        VIRTIO_F_VERSION_1 => "VERSION_1",
        VIRTIO_F_RING_PACKED => "RING_PACKED",
        VIRTIO_F_IN_ORDER => "IN_ORDER",
        VIRTIO_F_RING_RESET => "RING_RESET",
        VIRTIO_NET_F_GUEST_USO4 => "GUEST_USO4",
        VIRTIO_NET_F_GUEST_USO6 => "GUEST_USO6",
        VIRTIO_NET_F_HOST_USO => "HOST_USO",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_comes_back_as_what_was_asked_for() {
        for bits in 0..=Offloads::all().bits() {
            let wanted = Offloads::from_bits_truncate(bits).with_prerequisites();
            assert_eq!(offloads(offer(RingFeatures::all(), wanted, ControlQueue::Frontend)), wanted);
        }
    }

    #[test]
    fn what_is_switched_off_is_not_offered() {
        for feature in RingFeatures::all() {
            let bits = offer(RingFeatures::all() - feature, Offloads::all(), ControlQueue::Frontend);
            assert_eq!(bits & feature.bits(), 0, "{feature:?}");
        }
        let all = offer(RingFeatures::all(), Offloads::all(), ControlQueue::Frontend);
        let without = offer(RingFeatures::all(), Offloads::all(), ControlQueue::None);
        assert_eq!(all ^ without, CTRL_VQ | GUEST_ANNOUNCE, "what needs a control queue, and nothing else");
        let none = offer(RingFeatures::empty(), Offloads::empty(), ControlQueue::Frontend);
        let every_offload = OFFLOADS.iter().fold(0, |bits, (_, of_one)| bits | of_one);
        assert_eq!(none & every_offload, 0);
    }

    #[test]
    fn every_bit_that_is_offered_has_a_name() {
        let bits = offer(RingFeatures::all(), Offloads::all(), ControlQueue::Frontend) | MQ | MAC | MTU;
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            assert!(feature_name(bit).is_some(), "bit {bit}");
        }
    }
}
