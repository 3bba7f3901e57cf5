//! The virtio features offered by a port (virtio 1.3, 5.1.3; vhost-user, "Feature bits"), and the offloads that these
//! features negotiate.

use offramp_offload::caps::{NAMES, Offloads};
pub use offramp_virtio::features::RingFeatures;
pub(super) use offramp_virtio::features::{
    CTRL_GUEST_OFFLOADS, CTRL_MAC_ADDR, CTRL_RX, CTRL_RX_EXTRA, CTRL_VLAN, CTRL_VQ, DEVICE_STATS, EVENT_IDX,
    GUEST_ANNOUNCE, HASH_REPORT, IN_ORDER, INDIRECT_DESC, MAC, MQ, MRG_RXBUF, MTU, NOTF_COAL, RING_PACKED, RSS,
    SPEED_DUPLEX, VERSION_1, VQ_NOTF_COAL, header_len,
};
use virtio_bindings::virtio_net::VIRTIO_NET_F_STATUS;

/// Maximum number of vrings that can have a kick descriptor: `SET_VRING_KICK` has 8 bits for the index (vhost-user,
/// "Vring descriptor index").
const VRINGS_MAX: u16 = 256;
/// Smallest MTU that can be offered to a guest, in bytes of the IP packet (virtio 1.3, 5.1.4.1).
pub const MTU_MIN: u16 = 68;
/// The bit in messages that means both `VHOST_F_LOG_ALL` and the proposed `GUEST_ACCECN`.
const SHARED: u64 = 1 << 26;
/// The proposed feature `GUEST_ACCECN`.
const GUEST_ACCECN: u64 = SHARED;
/// The device logs its writes to guest memory (`VHOST_F_LOG_ALL`). In messages, this feature has bit 26. This constant
/// has bit 31, which has no meaning in virtio, because the proposed `GUEST_ACCECN` also has bit 26.
pub(super) const LOG_ALL: u64 = 1 << 31;
/// Negotiation of protocol features (`VHOST_USER_F_PROTOCOL_FEATURES`).
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Features of the commands on a control queue served by the port, except features that depend on the configuration.
const COMMANDS: u64 = CTRL_RX
    | CTRL_RX_EXTRA
    | CTRL_VLAN
    | CTRL_MAC_ADDR
    | CTRL_GUEST_OFFLOADS
    | NOTF_COAL
    | VQ_NOTF_COAL
    | DEVICE_STATS
    | GUEST_ANNOUNCE;
/// The process that serves the guest's control queue, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlQueue {
    /// The frontend (QEMU, Cloud Hypervisor, DPDK's virtio-user) serves the control queue. The port receives no
    /// commands.
    #[default]
    Frontend,
    /// The port serves the control queue, so that a guest's `ethtool -C` and `-L` reach the adapter. This setting is
    /// for a monitor that passes the control queue to the backend (QEMU's generic vhost-user device, crosvm, libkrun,
    /// User Mode Linux). The control queue is the vring after the vrings of all queue pairs. For a driver without `MQ`
    /// and `RSS`, the control queue is the vring after the first pair (virtio 1.3, 5.1.2).
    Backend,
    /// The device has no control queue: `CTRL_VQ` and dependent features are not offered. This setting is for a
    /// frontend that does not serve a control queue, such as User Mode Linux.
    None,
}

impl ControlQueue {
    /// Returns the maximum number of queue pairs of a port: 128, or 127 if the port serves the control queue.
    pub fn queue_pairs_max(self) -> u16 {
        (VRINGS_MAX - u16::from(self == Self::Backend)) / 2
    }
}

/// Returns the offered feature bits, except the bits that depend on the configuration ([`MQ`], [`MAC`], [`MTU`],
/// [`SPEED_DUPLEX`]).
pub(super) fn offer(rings: RingFeatures, offloads: Offloads, control_queue: ControlQueue) -> u64 {
    let offloads = offloads.with_prerequisites();
    let mut bits = rings.bits() | VERSION_1 | PROTOCOL_FEATURES | 1 << VIRTIO_NET_F_STATUS | bits_of(offloads);
    match control_queue {
        // The frontend serves the control queue. These bits permit the frontend to offer a control queue.
        ControlQueue::Frontend => bits |= CTRL_VQ | GUEST_ANNOUNCE,
        ControlQueue::Backend => {
            bits |= CTRL_VQ | COMMANDS;
            // A monitor that leaves the control queue to the port (QEMU) sends no message when the driver resets a
            // single ring.
            bits &= !RingFeatures::RING_RESET.bits();
        }
        ControlQueue::None => {}
    }
    bits | LOG_ALL
}

/// Returns the bits of the offloads that a running guest can switch (virtio 1.3, 5.1.6.5.8).
pub(super) fn guest_offload_bits() -> u64 {
    bits_of(Offloads::RX)
}

fn bits_of(offloads: Offloads) -> u64 {
    NAMES.iter().filter(|row| offloads.contains(row.offload)).fold(0, |bits, row| bits | row.virtio_bits)
}

/// Removes `LOG_ALL` or `GUEST_ACCECN` from an offer that contains both, because bit 26 of a message means both. A
/// feature already in `shown` stays for the whole connection, because the frontend's acceptance contains only the bit.
/// A port that offers AccECN to its guest does not offer migration.
pub(super) fn with_one_meaning(offer: u64, shown: u64) -> u64 {
    match (shown & LOG_ALL != 0, (offer | shown) & GUEST_ACCECN != 0) {
        (true, _) => offer & !GUEST_ACCECN,
        (false, true) => offer & !LOG_ALL,
        (false, false) => offer,
    }
}

/// Converts feature bits to the bits in messages.
pub(super) fn to_message(features: u64) -> u64 {
    if features & LOG_ALL == 0 { features } else { features & !LOG_ALL | SHARED }
}

/// Converts the bits in a message to feature bits. `shown` are the features offered to this frontend.
pub(super) fn from_message(bits: u64, shown: u64) -> u64 {
    if shown & GUEST_ACCECN != 0 || bits & SHARED == 0 { bits } else { bits & !SHARED | LOG_ALL }
}

/// Returns the offloads in the negotiated bits.
pub(super) fn offloads(negotiated: u64) -> Offloads {
    let is_on = |bits: u64| negotiated & bits == bits;
    let rows = NAMES.iter().filter(|row| is_on(row.virtio_bits));
    let set = rows.fold(Offloads::empty(), |set, row| set | row.offload);
    set.with_prerequisites()
}

/// Returns the offloads of which at least one bit is in `bits`.
pub(super) fn offloads_with_any(bits: u64) -> Offloads {
    let rows = NAMES.iter().filter(|row| bits & row.virtio_bits != 0);
    rows.fold(Offloads::empty(), |set, row| set | row.offload)
}

/// Returns a feature's name in the specification, for display. Returns `None` for a bit that is never offered.
pub fn feature_name(bit: u32) -> Option<&'static str> {
    match 1u64.checked_shl(bit)? {
        LOG_ALL => Some("LOG_ALL"),
        PROTOCOL_FEATURES => Some("PROTOCOL_FEATURES"),
        _ => offramp_virtio::features::feature_name(bit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use virtio_bindings::virtio_net::{
        VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
        VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
        VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_UFO, VIRTIO_NET_F_HOST_USO,
    };

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
        let backend = offer(RingFeatures::all(), Offloads::all(), ControlQueue::Backend);
        assert_eq!(backend ^ without, CTRL_VQ | COMMANDS | RingFeatures::RING_RESET.bits());
        let none = offer(RingFeatures::empty(), Offloads::empty(), ControlQueue::Frontend);
        assert_eq!(none & bits_of(Offloads::all()), 0);
    }

    #[test]
    fn the_bits_of_an_offload_are_those_of_linux_header() {
        let linux = [
            ("CSUM", 1 << VIRTIO_NET_F_CSUM),
            ("HOST_TSO4", 1 << VIRTIO_NET_F_HOST_TSO4),
            ("HOST_TSO6", 1 << VIRTIO_NET_F_HOST_TSO6),
            ("HOST_ECN", 1 << VIRTIO_NET_F_HOST_ECN),
            ("HOST_ACCECN", 1 << 25), // Both AccECN bits have the numbers in the Linux patch.
            ("HOST_USO", 1 << VIRTIO_NET_F_HOST_USO),
            ("HOST_UFO", 1 << VIRTIO_NET_F_HOST_UFO),
            ("GUEST_CSUM", 1 << VIRTIO_NET_F_GUEST_CSUM),
            ("GUEST_TSO4", 1 << VIRTIO_NET_F_GUEST_TSO4),
            ("GUEST_TSO6", 1 << VIRTIO_NET_F_GUEST_TSO6),
            ("GUEST_ECN", 1 << VIRTIO_NET_F_GUEST_ECN),
            ("GUEST_ACCECN", 1 << 26),
            ("GUEST_USO4", 1u64 << VIRTIO_NET_F_GUEST_USO4 | 1 << VIRTIO_NET_F_GUEST_USO6),
        ];
        assert_eq!(NAMES.map(|row| (row.virtio, row.virtio_bits)), linux);
    }

    #[test]
    fn bit_26_keeps_its_first_meaning_on_a_connection() {
        let (accecn, log) = (VERSION_1 | GUEST_ACCECN, VERSION_1 | LOG_ALL);
        for (offer, shown, expected) in
            [(log, 0, log), (accecn | LOG_ALL, 0, accecn), (accecn | LOG_ALL, log, log), (log, accecn, VERSION_1)]
        {
            let offer = with_one_meaning(offer, shown);
            assert_eq!(offer, expected, "shown {shown:#x}");
            assert_eq!(from_message(to_message(offer), offer | shown), offer);
            assert_eq!(to_message(offer) & !(VERSION_1 | SHARED), 0, "no other bit is in a message");
        }
    }

    #[test]
    fn every_bit_that_is_offered_has_a_name() {
        let by = |control_queue| offer(RingFeatures::all(), Offloads::all(), control_queue);
        let bits =
            by(ControlQueue::Frontend) | by(ControlQueue::Backend) | MQ | MAC | MTU | RSS | HASH_REPORT | SPEED_DUPLEX;
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            assert!(feature_name(bit).is_some(), "bit {bit}");
        }
    }
}
