//! Port security: the allowed source addresses of a port's host, and its VLANs.
//!
//! | frame | checked address | setting |
//! |---|---|---|
//! | Ethernet | source | `mac_addresses` |
//! | ARP, RARP | sender's hardware address, and sender's protocol address; in a probe (RFC 5227) the target's | both |
//! | IPv4 | source; 0.0.0.0 passes to a DHCP server (RFC 2131) and in IGMP (RFC 3376) | `ip_addresses` |
//! | IPv6 | source; `::` passes in messages sent before a host has an address (RFC 4861, RFC 3810) | see below |
//! | neighbour discovery | sender's link-layer address; target of an advertisement and of DAD (RFC 4862) | both |
//!
//! The IPv6 source must be in `ip_addresses`, or be a link-local address made from `mac_addresses` (RFC 4862).
//!
//! A frame is refused if it could carry an address that the checks cannot reach. Examples are an unparsable IP packet,
//! and a frame with too many tags. A host may request a checksum only in the transport header or after it. Receivers
//! ignore neighbour discovery in fragments (RFC 6980), so fragments with neighbour discovery pass.

use crate::stats::Loss;
use crate::vlan::PortVlans;
use offramp_offload::esp::Prefix;
use offramp_offload::frame::Frame;
use offramp_offload::layout::{
    ETHERNET_HEADER_LEN, FrameLayout, Malformed, Network, PROTOCOL_TCP, PROTOCOL_UDP, Transport, plain_ipv4_source,
};
use offramp_offload::vlan::begins_tag;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MAC_LEN: usize = 6;
/// The universal/local bit in an Ethernet address's first octet. The bit is inverted in an interface identifier (RFC
/// 4291, appendix A).
const UNIVERSAL_BIT: u8 = 2;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_RARP: [u8; 2] = [0x80, 0x35];
/// First bytes of an ARP packet: hardware type Ethernet, protocol type IPv4, and both address lengths (RFC 826).
const ARP_OF_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
/// Offset of the sender's hardware address in an ARP packet, and the length of the packet.
const ARP_SENDER: usize = 8;
const ARP_LEN: usize = 28;
const DHCP_SERVER_PORT: [u8; 2] = [0, 67];
const PROTOCOL_IGMP: u8 = 2;
const PROTOCOL_ICMPV6: u8 = 58;
/// Offset of the next header's type in the IPv6 header (RFC 8200 3).
const NEXT_HEADER: usize = 6;

/// Message types of `ICMPv6` (RFC 4861 4, RFC 2710 3, RFC 3810 5.2).
mod icmpv6 {
    pub(super) const MLD_REPORT: u8 = 131;
    pub(super) const MLD_DONE: u8 = 132;
    pub(super) const ROUTER_SOLICITATION: u8 = 133;
    pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
    pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub(super) const MLD2_REPORT: u8 = 143;
    /// Offsets in an `ICMPv6` message: of the checksum, and of a neighbour message's target address.
    pub(super) const CHECKSUM: usize = 2;
    pub(super) const TARGET: usize = 8;
    pub(super) const OPTION_SOURCE_LINK_LAYER: u8 = 1;
    pub(super) const OPTION_TARGET_LINK_LAYER: u8 = 2;
    /// Unit of an option's length, in bytes.
    pub(super) const OPTION_UNIT: usize = 8;
}

/// The allowed source addresses of a port's host, and its VLANs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSecurity {
    /// Allowed Ethernet addresses; empty allows any. On a switch, the allowed addresses belong to this port alone,
    /// except the addresses of [virtual routers](is_virtual_router).
    pub mac_addresses: Vec<[u8; MAC_LEN]>,
    /// Allowed IP addresses; empty allows any.
    pub ip_addresses: Vec<Prefix>,
    /// The VLANs of the port.
    pub vlans: PortVlans,
}

impl PortSecurity {
    /// Returns whether every source address passes.
    pub(crate) fn is_off(&self) -> bool {
        self.mac_addresses.is_empty() && self.ip_addresses.is_empty()
    }

    /// Checks the source addresses of a frame from the host.
    ///
    /// # Errors
    /// Returns [`Loss::Spoofed`] for a forbidden source, and [`Loss::Malformed`] without an Ethernet header.
    #[inline]
    pub(crate) fn check(&self, frame: &Frame<'_>) -> Result<(), Loss> {
        let bytes = frame.bytes();
        let source = bytes.get(MAC_LEN..2 * MAC_LEN).ok_or(Loss::Malformed)?;
        let passes = self.may_be(source)
            && leaves_headers(frame)
            && match frame.layout() {
                Ok(layout) => self.passes_packet(bytes, layout, frame.addresses()),
                // The host's stack may parse more extension headers than the adapter, so the frame is refused.
                Err(Malformed::ExtensionHeaders) => false,
                Err(_) => self.ip_addresses.is_empty(),
            };
        if passes { Ok(()) } else { Err(Loss::Spoofed) }
    }

    /// Returns whether a frame without offload requests passes by addresses at fixed offsets, without parsing. If
    /// `false`, [`PortSecurity::check`] decides.
    #[inline]
    pub(crate) fn passes_unparsed(&self, frame: &[u8]) -> bool {
        let Some(([_, _, _, _, _, _, source @ .., high, low], packet)) =
            frame.split_first_chunk::<ETHERNET_HEADER_LEN>()
        else {
            return false;
        };
        let is_own = match [*high, *low] {
            ETHERTYPE_IPV4 if self.ip_addresses.is_empty() => true,
            ETHERTYPE_IPV4 => plain_ipv4_source(packet).is_some_and(|source| self.may_have(source.into())),
            ETHERTYPE_IPV6 => {
                let is_plain = matches!(packet.get(NEXT_HEADER), Some(&(PROTOCOL_TCP | PROTOCOL_UDP)));
                is_plain && self.ip_addresses.is_empty()
            }
            _ => false,
        };
        is_own && self.may_be(source)
    }

    /// Returns whether the host may use this Ethernet address as a source address.
    #[inline]
    fn may_be(&self, mac: &[u8]) -> bool {
        // Usually the list has one address, and one comparison costs less than a loop.
        match &*self.mac_addresses {
            [] => true,
            [only] => only == mac,
            several => several.iter().any(|own| own == mac),
        }
    }

    /// Returns whether the host may use this IP address as a source address.
    #[inline]
    fn may_have(&self, address: IpAddr) -> bool {
        self.ip_addresses.is_empty()
            || self.ip_addresses.iter().any(|known| known.contains(address))
            || matches!(address, IpAddr::V6(address) if self.has_link_local(address))
    }

    /// Returns whether this is the link-local address made from an Ethernet address of the host (RFC 4862 5.3, RFC 2464
    /// 5).
    fn has_link_local(&self, address: Ipv6Addr) -> bool {
        let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, first, b, c, 0xff, 0xfe, last @ ..] = address.octets() else { return false };
        let known = |mac: &[u8; 6]| mac[..3] == [first ^ UNIVERSAL_BIT, b, c] && mac[3..] == last;
        self.mac_addresses.iter().any(known)
    }

    fn passes_packet(&self, bytes: &[u8], layout: &FrameLayout, addresses: &[u8]) -> bool {
        let packet = &bytes[layout.network_start..layout.packet_end];
        let transport = &bytes[layout.transport_start..layout.packet_end];
        match layout.network {
            Network::Ipv4 => self.ip_addresses.is_empty() || self.passes_ipv4(layout, transport, addresses),
            Network::Ipv6 => self.passes_ipv6(layout, transport, addresses),
            Network::Opaque => match bytes[..layout.network_start].last_chunk() {
                Some(&(ETHERTYPE_ARP | ETHERTYPE_RARP)) => self.passes_arp(packet),
                Some(ethertype) => !begins_tag(*ethertype),
                None => false,
            },
        }
    }

    fn passes_arp(&self, packet: &[u8]) -> bool {
        let Some(packet) = packet.first_chunk::<ARP_LEN>() else { return false };
        let ipv4 = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let (sender, target) = (ipv4(ARP_SENDER + MAC_LEN), ipv4(ARP_LEN - 4));
        // A probe carries the probed address as the target; RARP carries no protocol address.
        let claimed = if sender.is_unspecified() { target } else { sender };
        packet.starts_with(&ARP_OF_IPV4)
            && self.may_be(&packet[ARP_SENDER..ARP_SENDER + MAC_LEN])
            && (claimed.is_unspecified() || self.may_have(claimed.into()))
    }

    fn passes_ipv4(&self, layout: &FrameLayout, transport: &[u8], addresses: &[u8]) -> bool {
        let Some(source) = addresses.first_chunk().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets)) else {
            return false;
        };
        let is_dhcp = || layout.transport == Transport::Udp && transport.get(2..4) == Some(&DHCP_SERVER_PORT);
        let names_nobody = || source.is_unspecified() && (layout.protocol == PROTOCOL_IGMP || is_dhcp());
        self.may_have(source.into()) || names_nobody()
    }

    fn passes_ipv6(&self, layout: &FrameLayout, transport: &[u8], addresses: &[u8]) -> bool {
        let Some(source) = ipv6(addresses) else { return false };
        let icmp = Some(transport).filter(|_| layout.protocol == PROTOCOL_ICMPV6 && !layout.fragment);
        let has_source = self.may_have(source.into())
            || (source.is_unspecified() && icmp.and_then(<[u8]>::first).is_some_and(|kind| is_without_address(*kind)));
        has_source && icmp.is_none_or(|message| self.passes_discovery(message, source))
    }

    /// Returns whether all neighbour addresses in an `ICMPv6` message are allowed.
    fn passes_discovery(&self, message: &[u8], source: Ipv6Addr) -> bool {
        use icmpv6::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, OPTION_SOURCE_LINK_LAYER};
        use icmpv6::{OPTION_TARGET_LINK_LAYER, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION, TARGET};
        let Some(&kind) = message.first() else { return false };
        let (options, of_sender) = match kind {
            ROUTER_SOLICITATION => (8, OPTION_SOURCE_LINK_LAYER),
            ROUTER_ADVERTISEMENT => (16, OPTION_SOURCE_LINK_LAYER),
            NEIGHBOUR_SOLICITATION => (24, OPTION_SOURCE_LINK_LAYER),
            NEIGHBOUR_ADVERTISEMENT => (24, OPTION_TARGET_LINK_LAYER),
            _ => return true,
        };
        let claims_target =
            kind == NEIGHBOUR_ADVERTISEMENT || (kind == NEIGHBOUR_SOLICITATION && source.is_unspecified());
        let target = message.get(TARGET..).and_then(ipv6);
        (!claims_target || target.is_some_and(|target| self.may_have(target.into())))
            && message.get(options..).is_some_and(|options| self.passes_options(options, of_sender))
    }

    fn passes_options(&self, mut options: &[u8], of_sender: u8) -> bool {
        while let [kind, units, ..] = *options {
            let len = usize::from(units) * icmpv6::OPTION_UNIT;
            let Some(option) = options.get(..len).filter(|option| !option.is_empty()) else { return false };
            if kind == of_sender && !self.may_be(&option[2..2 + MAC_LEN]) {
                return false;
            }
            options = &options[len..];
        }
        true
    }
}

/// Returns whether this is the address of a virtual router, shared by all routers of its group (RFC 9568 7.3).
pub fn is_virtual_router(mac: &[u8; MAC_LEN]) -> bool {
    matches!(mac, [0, 0, 0x5e, 0, 1 | 2, _])
}

/// Returns whether the requested checksum, if any, is written after the checked headers. The sender can give the
/// checksum any value.
fn leaves_headers(frame: &Frame<'_>) -> bool {
    let Some(partial) = frame.request().checksum else { return true };
    frame.layout().is_ok_and(|layout| match (layout.network, layout.protocol) {
        (Network::Opaque, _) => false,
        (_, PROTOCOL_ICMPV6) => partial.field() == layout.transport_start + icmpv6::CHECKSUM,
        _ => partial.field() >= layout.transport_start,
    })
}

/// Returns whether a host sends `ICMPv6` messages of this type before it has an address.
fn is_without_address(kind: u8) -> bool {
    use icmpv6::{MLD_DONE, MLD_REPORT, MLD2_REPORT, NEIGHBOUR_SOLICITATION, ROUTER_SOLICITATION};
    matches!(kind, MLD_REPORT | MLD_DONE | MLD2_REPORT | NEIGHBOUR_SOLICITATION | ROUTER_SOLICITATION)
}

fn ipv6(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: [u8; MAC_LEN] = [2, 0, 0, 0, 0, 1];

    fn bound_to(mac: [u8; MAC_LEN]) -> PortSecurity {
        PortSecurity { mac_addresses: vec![[2, 0, 0, 0, 0, 9], mac], ..PortSecurity::default() }
    }

    /// Returns the rules for a host that is also restricted to 10.0.0.0/8.
    fn bound_to_network() -> PortSecurity {
        let ip_addresses = vec![Prefix::new(Ipv4Addr::new(10, 0, 0, 0).into(), 8).unwrap()];
        PortSecurity { ip_addresses, ..bound_to(MAC) }
    }

    /// Returns an IPv4 packet with 20 bytes of transport data and six bytes of padding.
    fn ipv4(protocol: u8) -> Vec<u8> {
        let header = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let transport = if protocol == PROTOCOL_TCP { [0, 1, 0, 2, 0, 0, 0, 0] } else { [0, 1, 0, 2, 0, 20, 0, 0] };
        let mut bytes = [&[0xff; MAC_LEN][..], &MAC, &ETHERTYPE_IPV4, &header, &transport, &[0; 18]].concat();
        // The TCP header is five words long.
        bytes[ETHERNET_HEADER_LEN + 32] = 0x50;
        bytes
    }

    /// Returns an Ethernet frame of this type from [`MAC`]. The packet in the frame starts with the bytes `first`.
    fn frame(ethertype: [u8; 2], first: &[u8]) -> Vec<u8> {
        let mut packet = [0; 60];
        packet[..first.len()].copy_from_slice(first);
        [&[0xff; MAC_LEN][..], &MAC, &ethertype, &packet].concat()
    }

    #[test]
    fn ipv4_and_plain_tcp_and_udp_over_ipv6_pass_unparsed_from_a_bound_address_alone() {
        let with_next_header = |protocol| frame(ETHERTYPE_IPV6, &[0x60, 0, 0, 0, 0, 20, protocol]);
        for passes in [frame(ETHERTYPE_IPV4, &[0x45]), with_next_header(PROTOCOL_TCP), with_next_header(PROTOCOL_UDP)] {
            assert!(bound_to(MAC).passes_unparsed(&passes));
            assert!(!bound_to([2, 0, 0, 0, 0, 2]).passes_unparsed(&passes));
            assert!(!bound_to_network().passes_unparsed(&passes), "nothing but the network's");
        }
        for parsed in [frame(ETHERTYPE_ARP, &ARP_OF_IPV4), with_next_header(PROTOCOL_ICMPV6), with_next_header(0)] {
            assert!(!bound_to(MAC).passes_unparsed(&parsed));
        }
    }

    #[test]
    fn plain_tcp_and_udp_of_a_bound_network_pass_unparsed() {
        for protocol in [PROTOCOL_TCP, PROTOCOL_UDP] {
            assert!(bound_to_network().passes_unparsed(&ipv4(protocol)));
            let mut foreign = ipv4(protocol);
            foreign[ETHERNET_HEADER_LEN + 12] = 11;
            assert!(!bound_to_network().passes_unparsed(&foreign));
        }
    }

    proptest! {
        #[test]
        fn what_passes_unparsed_with_a_changed_byte_or_a_cut_end_passes_the_check(
            protocol in prop::sample::select(vec![PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_ICMPV6]),
            changes in prop::collection::vec((12_usize..54, any::<u8>()), 0..3),
            len in 12_usize..61,
        ) {
            let mut bytes = ipv4(protocol);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.truncate(len);
            let security = bound_to_network();
            if security.passes_unparsed(&bytes) {
                prop_assert_eq!(security.check(&Frame::received(&mut bytes)), Ok(()));
            }
        }

        #[test]
        fn what_passes_unparsed_passes_the_check(
            ethertype in prop::sample::select(vec![ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP, [0x81, 0], [0x91, 0]]),
            first in prop::collection::vec(any::<u8>(), 0..60),
            next_header in prop::sample::select(vec![0, PROTOCOL_TCP, PROTOCOL_UDP, 44, PROTOCOL_ICMPV6]),
            version in prop::sample::select(vec![0x45, 0x4f, 0x60, 0]),
            len in 0_usize..74,
        ) {
            let mut bytes = frame(ethertype, &first);
            bytes[ETHERNET_HEADER_LEN] = version;
            bytes[ETHERNET_HEADER_LEN + NEXT_HEADER] = next_header;
            bytes.truncate(len);
            let security = bound_to(MAC);
            if security.passes_unparsed(&bytes) {
                prop_assert_eq!(security.check(&Frame::received(&mut bytes)), Ok(()));
            }
        }
    }
}
