//! Selectors, which define the packets of an association (RFC 4301 4.4.1.1).

use crate::frame::Frame;
use crate::layout::{self, FrameLayout, Network, Transport, be16};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// A network: an address and the number of its significant leading bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Returns the network with the first `len` bits of `address`, or `None` if `len` exceeds the address length. Bits
    /// past `len` are ignored.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { u32::BITS } else { u128::BITS };
        (u32::from(len) <= bits).then_some(Self { address, len })
    }

    /// Returns the network that contains only `address`.
    pub fn of(address: IpAddr) -> Self {
        Self { address, len: if address.is_ipv4() { u32::BITS } else { u128::BITS } as u8 }
    }

    /// Returns the given address, bits past the prefix included.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of significant leading bits.
    pub fn prefix_len(&self) -> u8 {
        self.len
    }

    /// Returns the intersection of two networks, or `None` if the intersection is empty.
    pub fn and(self, other: Self) -> Option<Self> {
        let (wide, narrow) = if self.len <= other.len { (self, other) } else { (other, self) };
        wide.contains(narrow.address).then_some(narrow)
    }

    /// Returns true for an address of this network.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (differing, bits) = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), u32::BITS),
            (IpAddr::V6(a), IpAddr::V6(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), u128::BITS),
            _ => return false,
        };
        differing.min(bits) >= u32::from(self.len)
    }
}

/// The conditions for the packets of an association. A field with `None` matches every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Network of the source address.
    pub source: Option<Prefix>,
    /// Network of the destination address.
    pub destination: Option<Prefix>,
    /// IP protocol number (for IPv6, of the last header).
    pub protocol: Option<u8>,
    /// Source ports. A packet without ports (another protocol, a fragment) does not match.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination ports. A packet without ports does not match.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Selector {
    /// Returns true for a matching clear IP packet, and false if the frame carries no IP. The ports of a fragment are
    /// unknown, so a fragment matches no selector with ports. See also [`Selector::may_match`].
    pub fn matches(&self, frame: &Frame<'_>) -> bool {
        frame.parts().is_ok_and(|(bytes, layout)| self.matches_packet(bytes, layout))
    }

    pub(super) fn matches_packet(&self, frame: &[u8], layout: &FrameLayout) -> bool {
        let Some((source, destination)) = addresses(frame, layout) else { return false };
        self.has_addresses(source, destination)
            && self.protocol.is_none_or(|protocol| protocol == layout.protocol)
            && port_matches(self.source_ports.as_ref(), frame, layout, 0)
            && port_matches(self.destination_ports.as_ref(), frame, layout, 2)
    }

    /// Returns true for a clear IP packet that matches, and for a possible fragment of a matching packet. Unknown
    /// ports, and a protocol named only in another fragment, are treated as matching (RFC 4301 7). A packet that
    /// possibly matches must not be sent unencrypted.
    ///
    /// An IP stack can accept a frame that this crate's parser refuses. So a frame without layout is matched by its
    /// addresses only.
    pub fn may_match(&self, frame: &Frame<'_>) -> bool {
        let Ok((bytes, layout)) = frame.parts() else { return self.may_match_malformed(frame.bytes()) };
        if !layout.fragment {
            return self.matches_packet(bytes, layout);
        }
        let is_protocol_hidden = layout.network == Network::Ipv6 && layout::is_extension_header(layout.protocol);
        addresses(bytes, layout).is_some_and(|(source, destination)| self.has_addresses(source, destination))
            && (is_protocol_hidden || self.protocol.is_none_or(|protocol| protocol == layout.protocol))
    }

    /// Matches only the addresses. Returns false if the frame has no IP header.
    fn may_match_malformed(&self, frame: &[u8]) -> bool {
        layout::fixed_network(frame)
            .and_then(|layout| addresses(frame, &layout))
            .is_some_and(|(source, destination)| self.has_addresses(source, destination))
    }

    fn has_addresses(&self, source: IpAddr, destination: IpAddr) -> bool {
        self.source.is_none_or(|prefix| prefix.contains(source))
            && self.destination.is_none_or(|prefix| prefix.contains(destination))
    }
}

fn port_matches(ports: Option<&RangeInclusive<u16>>, frame: &[u8], layout: &FrameLayout, offset: usize) -> bool {
    let Some(ports) = ports else { return true };
    let at = layout.transport_start + offset;
    layout.transport != Transport::Opaque && ports.contains(&be16(frame, at))
}

/// Returns source and destination address of a packet, or `None` if the frame carries no IP.
pub(super) fn addresses(frame: &[u8], layout: &FrameLayout) -> Option<(IpAddr, IpAddr)> {
    let bytes = layout.addresses(frame);
    match layout.network {
        Network::Ipv4 => pair::<4>(bytes),
        Network::Ipv6 => pair::<16>(bytes),
        Network::Opaque => None,
    }
}

fn pair<const N: usize>(addresses: &[u8]) -> Option<(IpAddr, IpAddr)>
where
    IpAddr: From<[u8; N]>,
{
    let (source, destination) = addresses.split_first_chunk::<N>()?;
    Some((IpAddr::from(*source), IpAddr::from(*destination.first_chunk()?)))
}
