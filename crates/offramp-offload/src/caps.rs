//! The offloads of an adapter, and the rule for offering them.
//!
//! The adapter offers an offload if the device and the peer support it, and the user has enabled it. Every offload is
//! one bit. An offload whose prerequisite is missing is removed from the offer (virtio 1.3, 5.1.3.1).

use bitflags::bitflags;

bitflags! {
    /// A set of offloads. Transmit offloads apply to frames from the host to the adapter. Receive offloads apply to
    /// frames from the adapter to the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Offloads: u32 {
        /// Transmit: complete TCP and UDP checksums.
        const TX_CHECKSUM = 1 << 0;
        /// Transmit: segment TCP over IPv4 (LSO, TSO).
        const TSO4 = 1 << 1;
        /// Transmit: segment TCP over IPv6.
        const TSO6 = 1 << 2;
        /// Transmit: segment TCP with CWR set.
        const TSO_ECN = 1 << 3;
        /// Transmit: segment TCP with CWR on every segment, for AccECN (RFC 9768).
        const TSO_ACCECN = 1 << 6;
        /// Transmit: segment UDP into datagrams (USO).
        const USO = 1 << 4;
        /// Transmit: segment a large UDP datagram into IP fragments (UFO).
        const UFO = 1 << 5;
        /// Receive: verify checksums and mark frames with the verdict.
        const RX_CHECKSUM = 1 << 8;
        /// Receive: coalesce TCP over IPv4 (RSC, LRO).
        const RSC4 = 1 << 9;
        /// Receive: coalesce TCP over IPv6.
        const RSC6 = 1 << 10;
        /// Receive: coalesce UDP datagrams (URO).
        const RSC_UDP = 1 << 11;
        /// Receive: deliver TCP super-frames that other hosts sent with CWR set. Receive coalescing builds no
        /// super-frame with CWR set.
        const RSC_ECN = 1 << 12;
        /// Receive: coalesce TCP with CWR set, and deliver super-frames with CWR on every segment (AccECN).
        const RSC_ACCECN = 1 << 13;
    }
}

/// One offload, and its names and bits in offramp, Linux, virtio and NDIS.
#[derive(Clone, Copy, Debug)]
pub struct OffloadName {
    /// The offload's bit.
    pub offload: Offloads,
    /// offramp's name of the offload, used on the command line.
    pub name: &'static str,
    /// Linux' name of the offload (`ethtool -k`).
    pub ethtool: &'static str,
    /// Name of the virtio-net feature for the offload, without `VIRTIO_NET_F_`.
    pub virtio: &'static str,
    /// NDIS' INF keyword of the offload.
    pub ndis: &'static str,
    /// virtio-net's feature bits of the offload. Device and driver negotiate these bits together (virtio 1.3, 5.1.3).
    pub virtio_bits: u64,
    /// `TUN_F_*` flags with which the process at a TAP tells Linux to leave the offload to that process
    /// (`TUNSETOFFLOAD`; Linux `include/uapi/linux/if_tun.h`). 0 for receive offloads.
    pub tun_flags: u32,
}

/// Every offload, listed once. The virtio bits of AccECN are proposed, not ratified (virtio-spec issue 232; Linux patch
/// "`virtio_net`: add AccECN feature negotiation and correct ECN flag handling", v3, 2026-02-03). Linux accepts the two
/// USO flags of a TAP only together. Linux accepts the UFO flag, but since 4.14 never requests UFO.
pub const NAMES: [OffloadName; 13] = [
    name(
        Offloads::TX_CHECKSUM,
        ["tx-checksum", "tx-checksum-ip-generic", "CSUM", "*TCPUDPChecksumOffloadIPv4"],
        1 << 0,
        0x01,
    ),
    name(Offloads::TSO4, ["tso4", "tx-tcp-segmentation", "HOST_TSO4", "*LsoV2IPv4"], 1 << 11, 0x02),
    name(Offloads::TSO6, ["tso6", "tx-tcp6-segmentation", "HOST_TSO6", "*LsoV2IPv6"], 1 << 12, 0x04),
    name(Offloads::TSO_ECN, ["tso-ecn", "tx-tcp-ecn-segmentation", "HOST_ECN", "*LsoV2IPv4"], 1 << 13, 0x08),
    name(Offloads::TSO_ACCECN, ["tso-accecn", "tx-tcp-accecn-segmentation", "HOST_ACCECN", "none"], 1 << 25, 0),
    name(Offloads::USO, ["uso", "tx-udp-segmentation", "HOST_USO", "*UsoIPv4"], 1 << 56, 0x20 | 0x40),
    name(Offloads::UFO, ["ufo", "tx-udp-fragmentation", "HOST_UFO", "none"], 1 << 14, 0x10),
    name(Offloads::RX_CHECKSUM, ["rx-checksum", "rx-checksum", "GUEST_CSUM", "*TCPUDPChecksumOffloadIPv4"], 1 << 1, 0),
    name(Offloads::RSC4, ["rsc4", "rx-gro-hw", "GUEST_TSO4", "*RscIPv4"], 1 << 7, 0),
    name(Offloads::RSC6, ["rsc6", "rx-gro-hw", "GUEST_TSO6", "*RscIPv6"], 1 << 8, 0),
    name(Offloads::RSC_ECN, ["rsc-ecn", "rx-gro-hw", "GUEST_ECN", "*RscIPv4"], 1 << 9, 0),
    name(Offloads::RSC_ACCECN, ["rsc-accecn", "rx-gro-hw", "GUEST_ACCECN", "none"], 1 << 26, 0),
    name(Offloads::RSC_UDP, ["rsc-udp", "rx-udp-gro-forwarding", "GUEST_USO4", "*UdpRsc"], 1 << 54 | 1 << 55, 0),
];

const fn name(offload: Offloads, names: [&'static str; 4], virtio_bits: u64, tun_flags: u32) -> OffloadName {
    let [name, ethtool, virtio, ndis] = names;
    OffloadName { offload, name, ethtool, virtio, ndis, virtio_bits, tun_flags }
}

impl Offloads {
    /// The AccECN offloads of transmit and receive.
    pub const ACCECN: Self = Self::TSO_ACCECN.union(Self::RSC_ACCECN);
    /// All offloads except AccECN, whose virtio bits are not ratified: the default offloads of a port.
    pub const RATIFIED: Self = Self::all().difference(Self::ACCECN);
    /// Large send of TCP over IPv4 and IPv6, with ECN.
    pub const LSO: Self = Self::TSO4.union(Self::TSO6).union(Self::TSO_ECN);
    /// Receive coalescing of TCP over IPv4 and IPv6, with ECN.
    pub const RSC: Self = Self::RSC4.union(Self::RSC6).union(Self::RSC_ECN);
    /// All transmit offloads.
    pub const TX: Self = Self::TX_CHECKSUM.union(Self::LSO).union(Self::TSO_ACCECN).union(Self::USO).union(Self::UFO);
    /// All receive offloads.
    pub const RX: Self = Self::RX_CHECKSUM.union(Self::RSC).union(Self::RSC_ACCECN).union(Self::RSC_UDP);

    /// Returns the offloads common to the three sets, except offloads whose prerequisite is missing.
    pub fn offer(device: Self, peer: Self, user: Self) -> Self {
        (device & peer & user).with_prerequisites()
    }

    /// Removes every offload whose prerequisite is missing. Segmentation needs the transmit checksum, and coalescing
    /// needs a checksum verdict. ECN and AccECN need segmentation or coalescing of TCP.
    #[must_use]
    pub fn with_prerequisites(self) -> Self {
        let mut set = self;
        if !set.contains(Self::TX_CHECKSUM) {
            set -= Self::TX;
        }
        if !set.intersects(Self::TSO4 | Self::TSO6) {
            set -= Self::TSO_ECN | Self::TSO_ACCECN;
        }
        if !set.contains(Self::RX_CHECKSUM) {
            set -= Self::RX;
        }
        if !set.intersects(Self::RSC4 | Self::RSC6) {
            set -= Self::RSC_ECN | Self::RSC_ACCECN;
        }
        set
    }

    /// Returns the offload with this name in [`NAMES`], for example `tso4` or `rx-checksum`.
    pub fn by_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|n| n.name == name).map(|n| n.offload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_what_device_peer_and_user_agree_on() {
        let device = Offloads::all();
        let peer = Offloads::TX | Offloads::RX_CHECKSUM;
        let user = Offloads::all() - Offloads::UFO;
        assert_eq!(Offloads::offer(device, peer, user), (Offloads::TX - Offloads::UFO) | Offloads::RX_CHECKSUM);
    }

    #[test]
    fn no_offload_is_offered_without_its_prerequisite() {
        let all = Offloads::all();
        assert_eq!(Offloads::offer(all, all, all - Offloads::TX_CHECKSUM), Offloads::RX);
        assert_eq!(Offloads::offer(all, all, all - Offloads::RX_CHECKSUM), Offloads::TX);
        let no_tso = all - Offloads::TSO4 - Offloads::TSO6;
        assert!(!Offloads::offer(all, all, no_tso).contains(Offloads::TSO_ECN));
        let no_rsc = all - Offloads::RSC4 - Offloads::RSC6;
        assert!(!Offloads::offer(all, all, no_rsc).contains(Offloads::RSC_ECN));
        for bits in 0..=Offloads::all().bits() {
            let set = Offloads::from_bits_truncate(bits).with_prerequisites();
            assert_eq!(set.with_prerequisites(), set, "the rule is idempotent");
        }
    }

    #[test]
    fn every_offload_has_one_name_and_is_found_by_it() {
        let all = NAMES.iter().fold(Offloads::empty(), |set, n| {
            assert_eq!(Offloads::by_name(n.name), Some(n.offload));
            assert!(!set.intersects(n.offload));
            set | n.offload
        });
        assert_eq!(all, Offloads::all());
    }
}
