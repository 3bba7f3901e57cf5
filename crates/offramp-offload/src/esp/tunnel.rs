//! The outer header of a tunnel (RFC 4301 5.1.2), with the rules for DF, DSCP and ECN (RFC 6040).

use super::error::SaFault;
use super::udp::{self, UdpPorts};
use crate::checksum::{Sum, sum, update16};
use crate::layout::{
    FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_FRAGMENT_OFFSET, IPV4_HEADER_LEN_MIN as IPV4_HEADER_LEN, IPV4_ID_OFFSET,
    IPV4_TOTAL_LEN_OFFSET, IPV6_HEADER_LEN, IPV6_PAYLOAD_LEN_OFFSET, Network, PROTOCOL_UDP, be16, put16,
};
use std::net::IpAddr;

/// Default hop limit of outer headers (IANA's default for IP).
pub const HOP_LIMIT_DEFAULT: u8 = 64;
/// Maximum DSCP, six bits (RFC 2474 3).
const DSCP_MAX: u8 = 63;

/// IP protocol number of ESP.
pub(super) const PROTOCOL_ESP: u8 = 50;
/// Next header of a tunnelled IPv4 packet.
pub(super) const NEXT_HEADER_IPV4: u8 = 4;
/// Next header of a tunnelled IPv6 packet.
pub(super) const NEXT_HEADER_IPV6: u8 = 41;

const IPV6_PROTOCOL_OFFSET: usize = 6;
const IPV4_TTL_OFFSET: usize = 8;
const IPV4_DONT_FRAGMENT: u16 = 0x4000;
const ECN_MASK: u8 = 0b11;
const DSCP_SHIFT: u32 = 2;

/// The rule for the don't-fragment bit of an outer IPv4 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DfRule {
    /// DF is copied from the inner packet. For an inner IPv6 packet, DF is set, because no router may fragment IPv6
    /// packets.
    #[default]
    Copy,
    /// DF is always set.
    Set,
    /// DF is never set.
    Clear,
}

/// The rule for the DSCP of the outer header. The inner DSCP is unchanged at both ends of the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DscpRule {
    /// The DSCP is copied from the inner packet.
    #[default]
    Copy,
    /// The DSCP is always this value, 0 to 63.
    Set(u8),
}

/// The rule for the ECN field of the outer header (RFC 6040 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnRule {
    /// Normal mode: the field is copied from the inner packet.
    #[default]
    Normal,
    /// Compatibility mode: the outer header is never ECN-capable, because the tunnel's receiver would lose the
    /// congestion marks.
    Compatibility,
}

/// A tunnel: the two endpoint addresses, and the rules for the outer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer source address.
    pub source: IpAddr,
    /// Outer destination address.
    pub destination: IpAddr,
    /// Outer TTL or hop limit.
    pub hop_limit: u8,
    /// Rule for the outer DF bit (IPv4).
    pub df: DfRule,
    /// Rule for the outer DSCP.
    pub dscp: DscpRule,
    /// Rule for the outer ECN field.
    pub ecn: EcnRule,
}

impl Tunnel {
    /// Returns a tunnel that copies DF, DSCP and ECN from the inner to the outer header.
    pub fn new(source: IpAddr, destination: IpAddr) -> Self {
        Self {
            source,
            destination,
            hop_limit: HOP_LIMIT_DEFAULT,
            df: DfRule::Copy,
            dscp: DscpRule::Copy,
            ecn: EcnRule::Normal,
        }
    }

    pub(super) fn check(&self) -> Result<(), SaFault> {
        if self.source.is_ipv4() != self.destination.is_ipv4() {
            return Err(SaFault::TunnelAddresses { source_address: self.source, destination: self.destination });
        }
        match self.dscp {
            DscpRule::Set(given) if given > DSCP_MAX => Err(SaFault::Dscp(given)),
            _ => Ok(()),
        }
    }
}

/// The fields of the inner header needed for the outer header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inner {
    /// `ToS` or traffic class of the inner packet.
    class: u8,
    has_df: bool,
}

impl Inner {
    /// Reads the fields from the IP header. Returns `None` if the frame carries no IP.
    #[inline]
    pub(super) fn of(frame: &[u8], layout: &FrameLayout) -> Option<Self> {
        let header = frame[layout.network_start..].first_chunk::<IPV4_HEADER_LEN>()?;
        match layout.network {
            Network::Ipv4 => {
                let has_df = header[IPV4_FRAGMENT_OFFSET] & (IPV4_DONT_FRAGMENT >> 8) as u8 != 0;
                Some(Self { class: header[1], has_df })
            }
            Network::Ipv6 => Some(Self { class: header[0] << 4 | header[1] >> 4, has_df: true }),
            Network::Opaque => None,
        }
    }
}

/// The template of an outer header, with all constant fields.
#[derive(Clone, Debug)]
pub(super) struct Outer {
    bytes: [u8; IPV6_HEADER_LEN],
    network_len: usize,
    len: usize,
    /// Sum of the IPv4 header in `bytes`.
    fixed_sum: Sum,
    rules: Tunnel,
}

impl Outer {
    pub(super) fn new(tunnel: &Tunnel, udp: Option<UdpPorts>) -> Self {
        let mut bytes = [0; IPV6_HEADER_LEN];
        let protocol = if udp.is_some() { PROTOCOL_UDP } else { PROTOCOL_ESP };
        let network_len = match (tunnel.source, tunnel.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[0] = 0x45;
                bytes[8..10].copy_from_slice(&[tunnel.hop_limit, protocol]);
                bytes[12..16].copy_from_slice(&source.octets());
                bytes[16..20].copy_from_slice(&destination.octets());
                IPV4_HEADER_LEN
            }
            (source, destination) => {
                bytes[0] = 0x60;
                bytes[6..8].copy_from_slice(&[protocol, tunnel.hop_limit]);
                bytes[8..24].copy_from_slice(&to_v6(source));
                bytes[24..40].copy_from_slice(&to_v6(destination));
                IPV6_HEADER_LEN
            }
        };
        let len = network_len + udp::header_len(udp);
        Self { bytes, network_len, len, fixed_sum: sum(&bytes[..IPV4_HEADER_LEN]), rules: *tunnel }
    }

    pub(super) fn is_ipv4(&self) -> bool {
        self.network_len == IPV4_HEADER_LEN
    }

    /// Returns the length of the IP header and, if present, the UDP header, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Writes the header to the front of `packet`, the whole outer packet. `id` distinguishes IPv4 packets with DF
    /// clear (RFC 6864 4.2). [`udp::write_header`] writes the UDP header.
    #[inline(never)]
    pub(super) fn write(&self, packet: &mut [u8], inner: Inner, id: u16) {
        let packet_len = packet.len();
        packet[..self.network_len].copy_from_slice(&self.bytes[..self.network_len]);
        let class = self.class_of(inner);
        if !self.is_ipv4() {
            packet[..2].copy_from_slice(&(0x6000 | u16::from(class) << 4).to_be_bytes());
            put16(packet, IPV6_PAYLOAD_LEN_OFFSET, (packet_len - IPV6_HEADER_LEN) as u16);
            return;
        }
        let has_df = match self.rules.df {
            DfRule::Copy => inner.has_df,
            DfRule::Set => true,
            DfRule::Clear => false,
        };
        let fragment = if has_df { IPV4_DONT_FRAGMENT } else { 0 };
        // A packet with DF set needs no ID (RFC 6864 4.1).
        let id = if has_df { 0 } else { id };
        packet[1] = class;
        put16(packet, IPV4_TOTAL_LEN_OFFSET, packet_len as u16);
        put16(packet, IPV4_ID_OFFSET, id);
        put16(packet, IPV4_FRAGMENT_OFFSET, fragment);
        let changed = Sum::word(u16::from(class)).plus(Sum::word(packet_len as u16));
        let total = self.fixed_sum.plus(changed).plus(Sum::word(id)).plus(Sum::word(fragment));
        put16(packet, IPV4_CHECKSUM_OFFSET, total.checksum());
    }

    fn class_of(&self, inner: Inner) -> u8 {
        let dscp = match self.rules.dscp {
            DscpRule::Copy => inner.class & !ECN_MASK,
            DscpRule::Set(value) => value << DSCP_SHIFT,
        };
        match self.rules.ecn {
            EcnRule::Normal => dscp | inner.class & ECN_MASK,
            EcnRule::Compatibility => dscp,
        }
    }
}

/// Returns an IP header without options for `payload_len` bytes of UDP. DF is set, the traffic class is 0, and the hop
/// limit is the default. The header is for a packet of the adapter itself, so no field is copied from an inner packet.
pub(super) fn header_alone(source: IpAddr, destination: IpAddr, payload_len: usize) -> Vec<u8> {
    let rules = Tunnel { df: DfRule::Set, dscp: DscpRule::Set(0), ..Tunnel::new(source, destination) };
    let outer = Outer::new(&rules, Some(UdpPorts::default()));
    let mut packet = vec![0; outer.network_len + payload_len];
    outer.write(&mut packet, Inner { class: 0, has_df: true }, 0);
    packet.truncate(outer.network_len);
    packet
}

fn to_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The error for an outer congestion mark on an inner packet without ECN, which must be dropped (RFC 6040 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CongestionUnsaid;

/// Returns the ECN field of a decapsulated packet, computed from the inner and the outer ECN field (RFC 6040 4.2,
/// figure 4).
pub(super) fn ecn_of(inner: u8, outer: u8) -> Result<u8, CongestionUnsaid> {
    const NOT_ECT: u8 = 0b00;
    const ECT_1: u8 = 0b01;
    const ECT_0: u8 = 0b10;
    const CE: u8 = 0b11;
    match (inner & ECN_MASK, outer & ECN_MASK) {
        (NOT_ECT, CE) => Err(CongestionUnsaid),
        (NOT_ECT, _) => Ok(NOT_ECT),
        (_, CE) | (CE, _) => Ok(CE),
        (ECT_0, ECT_1) => Ok(ECT_1),
        (inner, _) => Ok(inner),
    }
}

/// Returns `ToS` or traffic class of a packet, or 0 if the frame carries no IP.
#[inline]
pub(super) fn class_of(frame: &[u8], layout: &FrameLayout) -> u8 {
    Inner::of(frame, layout).map_or(0, |inner| inner.class)
}

/// Writes the ECN field of an inner packet. Updates the IPv4 header checksum incrementally: a wrong checksum stays
/// wrong.
pub(super) fn set_ecn(frame: &mut [u8], layout: &FrameLayout, ecn: u8) {
    let at = layout.network_start;
    let old = be16(frame, at);
    let new = match layout.network {
        Network::Ipv4 => old & !u16::from(ECN_MASK) | u16::from(ecn),
        Network::Ipv6 => old & !(u16::from(ECN_MASK) << 4) | u16::from(ecn) << 4,
        Network::Opaque => return,
    };
    if old == new {
        return;
    }
    put16(frame, at, new);
    if layout.network == Network::Ipv4 {
        let field = be16(frame, at + IPV4_CHECKSUM_OFFSET);
        put16(frame, at + IPV4_CHECKSUM_OFFSET, update16(field, old, new));
    }
}

/// Sets length and protocol in the IP header of a packet in transport mode. Updates the IPv4 header checksum
/// incrementally: a wrong checksum stays wrong.
#[inline]
pub(super) fn set_len_and_protocol(frame: &mut [u8], layout: &FrameLayout, packet_end: usize, protocol: u8) {
    let at = layout.network_start;
    let packet_len = packet_end - at;
    if layout.network == Network::Ipv6 {
        put16(frame, at + IPV6_PAYLOAD_LEN_OFFSET, (packet_len - IPV6_HEADER_LEN) as u16);
        frame[layout.protocol_at] = protocol;
        return;
    }
    // Check the length once here, because indexing an array of known length needs no further checks.
    let Some(header) = frame[at..].first_chunk_mut::<IPV4_HEADER_LEN>() else { return };
    Ipv4Words::of(header, packet_len, protocol).write(header);
}

/// The words of an IPv4 header that differ between a clear packet and its ESP packet, in memory order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv4Words {
    len: u16,
    hops_and_checksum: u32,
}

impl Ipv4Words {
    /// Computes the new length word, protocol word and checksum (RFC 1624 3, equation 3). The words are in memory
    /// order, because a checksum does not depend on byte order (RFC 1071 2 (B)). The sum of five words cannot overflow
    /// 32 bits.
    #[inline]
    fn of(header: &[u8; IPV4_HEADER_LEN], packet_len: usize, protocol: u8) -> Self {
        let word = |at: usize| u32::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let (old_len, old_hops, field) =
            (word(IPV4_TOTAL_LEN_OFFSET), word(IPV4_TTL_OFFSET), word(IPV4_CHECKSUM_OFFSET));
        let len = (packet_len as u16).swap_bytes();
        let hops = old_hops & 0xff | u32::from(protocol) << u8::BITS;
        // An inverted word equals 0xffff minus the word.
        let sum = 3 * 0xffff + u32::from(len) + hops - field - old_len - old_hops;
        // The lower half of `x + x.rotate_left(16)` is the sum of the two halves of `x`. The upper half is the same sum
        // plus the carry.
        let sum = sum.wrapping_add(sum.rotate_left(u16::BITS)) >> u16::BITS;
        Self { len, hops_and_checksum: hops | (sum ^ 0xffff) << u16::BITS }
    }

    #[inline]
    fn write(self, header: &mut [u8; IPV4_HEADER_LEN]) {
        header[IPV4_TOTAL_LEN_OFFSET..IPV4_TOTAL_LEN_OFFSET + 2].copy_from_slice(&self.len.to_le_bytes());
        header[IPV4_TTL_OFFSET..IPV4_TTL_OFFSET + 4].copy_from_slice(&self.hops_and_checksum.to_le_bytes());
    }
}

/// The words written by [`set_len_and_protocol`], for an IP header without options or extension headers. The words are
/// computed before the header is moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum LenAndProtocol {
    Ipv4(Ipv4Words),
    Ipv6 { payload_len: u16, protocol: u8 },
}

impl LenAndProtocol {
    /// Computes the words. `header` is the whole IP header, and its length implies the IP version.
    #[inline]
    pub(super) fn of(header: &[u8], packet_len: usize, protocol: u8) -> Self {
        match header.as_array() {
            Some(header) => Self::Ipv4(Ipv4Words::of(header, packet_len, protocol)),
            None => Self::Ipv6 { payload_len: (packet_len - IPV6_HEADER_LEN) as u16, protocol },
        }
    }

    /// Writes the words to `header`, which has the length of the header passed to [`Self::of`].
    #[inline]
    pub(super) fn write(self, header: &mut [u8]) {
        match (self, header.first_chunk_mut()) {
            (Self::Ipv4(words), Some(header)) => words.write(header),
            (Self::Ipv6 { payload_len, protocol }, _) => {
                put16(header, IPV6_PAYLOAD_LEN_OFFSET, payload_len);
                header[IPV6_PROTOCOL_OFFSET] = protocol;
            }
            _ => {}
        }
    }
}
