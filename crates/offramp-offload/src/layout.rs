//! The offsets of a frame's headers.
//!
//! [`Frame::new`](crate::frame::Frame::new) parses Ethernet, VLAN tags, IPv4 or IPv6 with extension headers, and TCP or
//! UDP once. The parser checks every length and stores the offsets. No later stage reads a header length again: a
//! layout always agrees with the bytes of its frame.
//!
//! ```text
//! 0            network_start   transport_start   payload_start      packet_end   frame.len()
//! | Ethernet+VLAN | IP + ext. hdrs | TCP or UDP + opts | payload ...... | padding .. |
//! ```

use crate::vlan::TagChange;
use std::net::Ipv4Addr;

/// Length of an Ethernet header without tags, in bytes.
pub const ETHERNET_HEADER_LEN: usize = 14;
/// Minimum number of bytes after an Ethernet header and its tags (IEEE 802.3 3.2.7, `minFrameSize`).
const ETHERNET_DATA_LEN_MIN: usize = 46;
/// Length of one VLAN tag in bytes (IEEE 802.1Q).
pub const VLAN_TAG_LEN: usize = 4;
/// Maximum number of parsed VLAN tags. A frame with more tags is opaque.
pub const VLAN_TAGS_MAX: usize = 2;
/// Maximum number of parsed IPv6 extension headers. RFC 8504 5.3 allows a node to limit the number of extension
/// headers. A whole packet has up to four parsed headers by RFC 8200 4.1: hop-by-hop options, a routing header, and
/// destination options twice. The limit is twice this number.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// Value of the next-header field before an IPv6 fragment header.
pub const NEXT_HEADER_FRAGMENT: u8 = 44;
/// Length of the fragment header in each fragment of an IPv6 packet, in bytes (RFC 8200 4.5).
pub const IPV6_FRAGMENT_HEADER_LEN: usize = 8;
const NEXT_HEADER_HOP_BY_HOP: u8 = 0;
const NEXT_HEADER_ROUTING: u8 = 43;
const NEXT_HEADER_DESTINATION: u8 = 60;

pub(crate) const IPV4_HEADER_LEN_MIN: usize = 20;
/// Length of an IPv6 header without extension headers, in bytes.
pub const IPV6_HEADER_LEN: usize = 40;
/// Length of a TCP header without options, in bytes.
pub const TCP_HEADER_LEN_MIN: usize = 20;
/// Length of a UDP header in bytes.
pub const UDP_HEADER_LEN: usize = 8;

/// Offset of the total length in an IPv4 header (RFC 791 3.1).
pub(crate) const IPV4_TOTAL_LEN_OFFSET: usize = 2;
/// Offset of the identification in an IPv4 header.
pub(crate) const IPV4_ID_OFFSET: usize = 4;
/// Offset of flags and fragment offset in an IPv4 header.
pub(crate) const IPV4_FRAGMENT_OFFSET: usize = 6;
/// First byte of an IPv4 header without options: version 4, header length of five words (RFC 791 3.1).
const IPV4_WITHOUT_OPTIONS: u8 = 0x45;
/// DF, the flag that forbids fragmentation. A whole packet can carry this flag (RFC 791 3.1).
pub(crate) const IPV4_DONT_FRAGMENT: u16 = 0x4000;
/// Offset of the header checksum in an IPv4 header.
pub(crate) const IPV4_CHECKSUM_OFFSET: usize = 10;
/// Offset of the payload length in an IPv6 header (RFC 8200 3).
pub(crate) const IPV6_PAYLOAD_LEN_OFFSET: usize = 4;
/// Offset of the sequence number in a TCP header (RFC 9293 3.1).
pub(crate) const TCP_SEQUENCE_OFFSET: usize = 4;
/// Offset of the flags in a TCP header.
pub const TCP_FLAGS_OFFSET: usize = 13;
/// Offset of the checksum in a TCP header.
pub const TCP_CHECKSUM_OFFSET: usize = 16;
/// Offset of the length in a UDP header (RFC 768).
pub(crate) const UDP_LENGTH_OFFSET: usize = 4;
/// Offset of the checksum in a UDP header.
pub const UDP_CHECKSUM_OFFSET: usize = 6;

/// TCP's FIN flag.
pub(crate) const TCP_FIN: u8 = 0x01;
/// TCP's SYN flag.
pub(crate) const TCP_SYN: u8 = 0x02;
/// TCP's RST flag.
pub(crate) const TCP_RST: u8 = 0x04;
/// TCP's PSH flag.
pub(crate) const TCP_PSH: u8 = 0x08;
/// TCP's URG flag.
pub(crate) const TCP_URG: u8 = 0x20;
/// TCP's CWR flag (RFC 3168 6.1).
pub const TCP_CWR: u8 = 0x80;

/// The protocol after the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// IPv4 (RFC 791).
    Ipv4,
    /// IPv6 (RFC 8200).
    Ipv6,
    /// Any other protocol. Only the Ethernet header was parsed.
    Opaque,
}

/// The protocol of the IP packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP (RFC 9293), with a complete header in this frame.
    Tcp,
    /// UDP (RFC 768), with a complete header in this frame.
    Udp,
    /// Any other protocol, and every fragment.
    Opaque,
}

/// The field or value that determines the end of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LengthFrom {
    /// The length field of the IP header, for a frame from the wire. Padding can follow its packet. The length field of
    /// a UDP header must agree with the IP length.
    Ip,
    /// The length field of the IP header, regardless of UDP's length field, because options can follow a datagram (RFC
    /// 9868).
    IpAlone,
    /// The length of the frame's buffer, for a super-frame. A segmenter replaces the IP length of a super-frame, so the
    /// host need not fill in this field (NDIS `LSOv2` writes 0; Linux ignores the value). IPv4's fragment bits of a
    /// super-frame do not hide the transport header, because Linux copies these bits to every segment.
    Frame,
}

/// The reason why a frame has no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// The frame is shorter than an Ethernet header and its tags.
    #[error("shorter than an Ethernet header")]
    Runt,
    /// A header does not fit into the frame or the packet.
    #[error("a header is cut off")]
    Truncated,
    /// The version nibble does not agree with the EtherType.
    #[error("IP version does not match the EtherType")]
    Version,
    /// A header length field is below the protocol's minimum.
    #[error("header length below the minimum")]
    HeaderLength,
    /// A length field exceeds the available bytes, or is smaller than the header that contains the field.
    #[error("length field does not agree with the frame")]
    Length,
    /// The packet has more than [`EXTENSION_HEADERS_MAX`] IPv6 extension headers.
    #[error("too many IPv6 extension headers")]
    ExtensionHeaders,
}

/// The offsets of all parts of a frame, counted from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// Protocol after the Ethernet header and its tags.
    pub network: Network,
    /// Protocol above IP. A received fragment has [`Transport::Opaque`].
    pub transport: Transport,
    /// True for a fragment (IPv4: MF or an offset; IPv6: a fragment header).
    pub fragment: bool,
    /// True if IPv4 options or IPv6 extension headers are present.
    pub network_options: bool,
    /// Last protocol number read (IPv4 protocol, final IPv6 next header). 0 if the frame is opaque.
    pub protocol: u8,
    /// Start of the IP header, or of the bytes after the Ethernet header if the frame is opaque.
    pub network_start: usize,
    /// Offset of the byte with `protocol`. A segmenter that adds an IPv6 fragment header stores the number of that
    /// header in this byte.
    pub protocol_at: usize,
    /// Start of the TCP or UDP header, or of the bytes after the IP header.
    pub transport_start: usize,
    /// Start of the payload. Equals `transport_start` if the transport is opaque.
    pub payload_start: usize,
    /// End of the packet. Bytes after the packet are padding.
    pub packet_end: usize,
}

impl FrameLayout {
    /// The layout of an empty buffer.
    pub(crate) const NOTHING: Self = Self::opaque(0, 0);

    /// Parses a frame without FCS into `self`. The function does not return the layout, because a return value of this
    /// size would be copied.
    ///
    /// The offsets of the layout are ordered and lie inside `frame`:
    /// `network_start <= transport_start <= payload_start <= packet_end <= frame.len()`.
    ///
    /// # Errors
    /// Returns an error if a header is truncated or a length is wrong. After an error, offloads must not change the
    /// frame.
    #[inline]
    pub(crate) fn parse_into(&mut self, frame: &[u8], length_from: LengthFrom) -> Result<(), Malformed> {
        let (ethertype, network_start) = parse_ethernet(frame)?;
        match ethertype {
            ETHERTYPE_IPV4 => parse_ipv4(frame, network_start, length_from, self),
            ETHERTYPE_IPV6 => parse_ipv6(frame, network_start, length_from, self),
            _ => {
                *self = Self::opaque(network_start, frame.len());
                Ok(())
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn parse(frame: &[u8], length_from: LengthFrom) -> Result<Self, Malformed> {
        let mut layout = Self::NOTHING;
        layout.parse_into(frame, length_from).map(|()| layout)
    }

    const fn opaque(network_start: usize, frame_len: usize) -> Self {
        Self {
            network: Network::Opaque,
            transport: Transport::Opaque,
            fragment: false,
            network_options: false,
            protocol: 0,
            network_start,
            protocol_at: network_start,
            transport_start: network_start,
            payload_start: network_start,
            packet_end: frame_len,
        }
    }

    /// Returns the layout after one tag was added or removed.
    pub(crate) fn after_tag_change(self, change: TagChange) -> Self {
        let moved = |at: usize| at.wrapping_add_signed(change.added_len());
        Self {
            network_start: moved(self.network_start),
            protocol_at: moved(self.protocol_at),
            transport_start: moved(self.transport_start),
            payload_start: moved(self.payload_start),
            packet_end: moved(self.packet_end),
            ..self
        }
    }

    /// Returns the length of the payload after all headers in bytes, without padding.
    pub fn payload_len(&self) -> usize {
        self.packet_end - self.payload_start
    }

    /// Returns the length of transport header and payload in bytes, without padding.
    pub fn transport_len(&self) -> usize {
        self.packet_end - self.transport_start
    }

    /// Returns whether bytes other than Ethernet padding follow the packet. Ethernet padding consists of zeros, and
    /// extends the MAC client data to 46 bytes (IEEE 802.3 3.2.7).
    #[inline]
    pub(crate) fn has_trailer(&self, frame: &[u8]) -> bool {
        frame.len() != self.packet_end && self.is_trailer(frame)
    }

    #[inline(never)]
    fn is_trailer(&self, frame: &[u8]) -> bool {
        let is_padded = frame.len() <= self.network_start + ETHERNET_DATA_LEN_MIN;
        !is_padded || frame[self.packet_end..].iter().any(|byte| *byte != 0)
    }

    /// Returns the offset of the TCP or UDP checksum, bytes from the start of the frame.
    pub fn checksum_field(&self) -> usize {
        let offset = if self.transport == Transport::Udp { UDP_CHECKSUM_OFFSET } else { TCP_CHECKSUM_OFFSET };
        self.transport_start + offset
    }

    /// Returns the length of the Ethernet header and its VLAN tags in bytes.
    pub fn link_header_len(&self) -> usize {
        self.network_start
    }

    /// Returns the source address followed by the destination address: 8 bytes for IPv4, 32 for IPv6, none if the frame
    /// is opaque.
    pub(crate) fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        match self.network {
            Network::Ipv4 => &frame[self.network_start + 12..self.network_start + 20],
            Network::Ipv6 => &frame[self.network_start + 8..self.network_start + 40],
            Network::Opaque => &[],
        }
    }
}

/// Returns the length of the Ethernet header and its VLAN tags in bytes, even for a frame without layout.
///
/// # Errors
/// Returns [`Malformed::Runt`] if the frame is shorter than the Ethernet header and its tags.
#[inline]
pub fn link_header_len(frame: &[u8]) -> Result<usize, Malformed> {
    parse_ethernet(frame).map(|(_, len)| len)
}

/// Returns a layout for use with [`FrameLayout::addresses`] only. The IP packet after the addresses can be malformed.
/// Returns `None` if the frame has no whole IP header of the EtherType's version.
pub(crate) fn fixed_network(frame: &[u8]) -> Option<FrameLayout> {
    let (ethertype, start) = parse_ethernet(frame).ok()?;
    let (network, version, header_len) = match ethertype {
        ETHERTYPE_IPV4 => (Network::Ipv4, 4, IPV4_HEADER_LEN_MIN),
        ETHERTYPE_IPV6 => (Network::Ipv6, 6, IPV6_HEADER_LEN),
        _ => return None,
    };
    let header = frame.get(start..start + header_len)?;
    (header[0] >> 4 == version).then(|| FrameLayout { network, ..FrameLayout::opaque(start, frame.len()) })
}

fn parse_ethernet(frame: &[u8]) -> Result<(u16, usize), Malformed> {
    let mut type_at = ETHERNET_HEADER_LEN - 2;
    let mut tags = 0;
    loop {
        let ethertype = frame.get(type_at..type_at + 2).map(|field| be16(field, 0)).ok_or(Malformed::Runt)?;
        let tagged = matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN);
        if !tagged || tags == VLAN_TAGS_MAX {
            return Ok((ethertype, type_at + 2));
        }
        tags += 1;
        type_at += VLAN_TAG_LEN;
    }
}

fn parse_ipv4(frame: &[u8], start: usize, length_from: LengthFrom, layout: &mut FrameLayout) -> Result<(), Malformed> {
    let header = frame.get(start..start + IPV4_HEADER_LEN_MIN).ok_or(Malformed::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(Malformed::Version);
    }
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header_len < IPV4_HEADER_LEN_MIN {
        return Err(Malformed::HeaderLength);
    }
    let transport_start = start + header_len;
    if transport_start > frame.len() {
        return Err(Malformed::Truncated);
    }
    let packet_end = match length_from {
        LengthFrom::Frame => frame.len(),
        LengthFrom::Ip | LengthFrom::IpAlone => start + usize::from(be16(header, IPV4_TOTAL_LEN_OFFSET)),
    };
    if packet_end < transport_start || packet_end > frame.len() {
        return Err(Malformed::Length);
    }
    let fragment_field = be16(header, IPV4_FRAGMENT_OFFSET);
    *layout = FrameLayout {
        network: Network::Ipv4,
        transport: Transport::Opaque,
        // A fragment has MF (0x2000) or a fragment offset. DF (0x4000) does not make a fragment.
        fragment: fragment_field & 0x3fff != 0,
        network_options: header_len > IPV4_HEADER_LEN_MIN,
        protocol: header[9],
        network_start: start,
        protocol_at: start + 9,
        transport_start,
        payload_start: transport_start,
        packet_end,
    };
    parse_transport(frame, layout, length_from)
}

/// Returns the source address of a whole, well-formed IPv4 packet without options. Skips the full parse. Returns `None`
/// for any other packet: only a full parse finds the source address of such a packet.
#[inline]
pub fn plain_ipv4_source(packet: &[u8]) -> Option<Ipv4Addr> {
    let (header, _) = plain_ipv4(packet, LengthFrom::Ip)?;
    let [.., a, b, c, d, _, _, _, _] = *header;
    Some(Ipv4Addr::new(a, b, c, d))
}

/// Returns the transport of a whole, well-formed IPv4 packet without options, in a frame without a VLAN tag.
#[inline]
pub(crate) fn plain_ipv4_transport(frame: &[u8], length_from: LengthFrom) -> Option<Transport> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_HEADER_LEN>()?;
    if be16(ethernet, ETHERNET_HEADER_LEN - 2) != ETHERTYPE_IPV4 {
        return None;
    }
    plain_ipv4(packet, length_from).map(|(_, transport)| transport)
}

/// Returns header and transport of a whole IPv4 packet without options, if a full parse would accept the packet.
#[inline]
fn plain_ipv4(packet: &[u8], length_from: LengthFrom) -> Option<(&[u8; IPV4_HEADER_LEN_MIN], Transport)> {
    let header = packet.first_chunk::<IPV4_HEADER_LEN_MIN>()?;
    let is_plain = header[0] == IPV4_WITHOUT_OPTIONS && be16(header, IPV4_FRAGMENT_OFFSET) & !IPV4_DONT_FRAGMENT == 0;
    let packet_end = match length_from {
        LengthFrom::Frame => packet.len(),
        LengthFrom::Ip | LengthFrom::IpAlone => be16(header, IPV4_TOTAL_LEN_OFFSET).into(),
    };
    let segment = packet.get(IPV4_HEADER_LEN_MIN..packet_end).filter(|_| is_plain)?;
    transport_in(segment, header[9], length_from).ok().map(|(transport, _)| (header, transport))
}

fn parse_ipv6(frame: &[u8], start: usize, length_from: LengthFrom, layout: &mut FrameLayout) -> Result<(), Malformed> {
    let header = frame.get(start..start + IPV6_HEADER_LEN).ok_or(Malformed::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(Malformed::Version);
    }
    let packet_end = match length_from {
        LengthFrom::Frame => frame.len(),
        LengthFrom::Ip | LengthFrom::IpAlone => {
            start + IPV6_HEADER_LEN + usize::from(be16(header, IPV6_PAYLOAD_LEN_OFFSET))
        }
    };
    if packet_end > frame.len() {
        return Err(Malformed::Length);
    }
    *layout = FrameLayout {
        network: Network::Ipv6,
        transport: Transport::Opaque,
        fragment: false,
        network_options: false,
        protocol: header[6],
        network_start: start,
        protocol_at: start + 6,
        transport_start: start + IPV6_HEADER_LEN,
        payload_start: start + IPV6_HEADER_LEN,
        packet_end,
    };
    walk_extension_headers(frame, layout)?;
    parse_transport(frame, layout, length_from)
}

/// Returns true for the protocol number of an IPv6 extension header.
pub(crate) fn is_extension_header(protocol: u8) -> bool {
    matches!(protocol, NEXT_HEADER_HOP_BY_HOP | NEXT_HEADER_ROUTING | NEXT_HEADER_DESTINATION | NEXT_HEADER_FRAGMENT)
}

/// Parses the extension headers. Each extension header except the fragment header contains its own length (RFC 8200 4).
fn walk_extension_headers(frame: &[u8], layout: &mut FrameLayout) -> Result<(), Malformed> {
    let mut headers = 0;
    while is_extension_header(layout.protocol) {
        headers += 1;
        if headers > EXTENSION_HEADERS_MAX {
            return Err(Malformed::ExtensionHeaders);
        }
        let at = layout.transport_start;
        let packet = &frame[..layout.packet_end];
        let (next, len_units) = match packet.get(at..at + 2) {
            Some(pair) => (pair[0], pair[1]),
            None => return Err(Malformed::Truncated),
        };
        let is_fragment = layout.protocol == NEXT_HEADER_FRAGMENT;
        let header_len = if is_fragment { 8 } else { (usize::from(len_units) + 1) * 8 };
        if at + header_len > layout.packet_end {
            return Err(Malformed::Truncated);
        }
        layout.fragment |= is_fragment;
        layout.network_options = true;
        layout.protocol = next;
        layout.protocol_at = at;
        layout.transport_start = at + header_len;
        layout.payload_start = layout.transport_start;
        if is_fragment {
            break; // The next bytes can belong to any part of the payload.
        }
    }
    Ok(())
}

fn parse_transport(frame: &[u8], layout: &mut FrameLayout, length_from: LengthFrom) -> Result<(), Malformed> {
    let is_template = length_from == LengthFrom::Frame && layout.network == Network::Ipv4;
    if layout.fragment && !is_template {
        return Ok(());
    }
    let segment = &frame[layout.transport_start..layout.packet_end];
    let (transport, header_len) = transport_in(segment, layout.protocol, length_from)?;
    layout.transport = transport;
    layout.payload_start = layout.transport_start + header_len;
    Ok(())
}

/// Returns the transport of a whole packet with the payload `segment`, and the length of the transport header (0 if
/// opaque).
///
/// # Errors
/// Returns the errors of [`FrameLayout::parse_into`].
#[inline]
pub(crate) fn transport_in(
    segment: &[u8],
    protocol: u8,
    length_from: LengthFrom,
) -> Result<(Transport, usize), Malformed> {
    match protocol {
        PROTOCOL_TCP => Ok((Transport::Tcp, tcp_header_len(segment)?)),
        PROTOCOL_UDP => Ok((Transport::Udp, udp_header_len(segment, length_from)?)),
        _ => Ok((Transport::Opaque, 0)),
    }
}

fn tcp_header_len(segment: &[u8]) -> Result<usize, Malformed> {
    let offset_byte = *segment.get(..TCP_HEADER_LEN_MIN).and_then(|h| h.get(12)).ok_or(Malformed::Truncated)?;
    let header_len = usize::from(offset_byte >> 4) * 4;
    if header_len < TCP_HEADER_LEN_MIN {
        Err(Malformed::HeaderLength)
    } else if header_len > segment.len() {
        Err(Malformed::Truncated)
    } else {
        Ok(header_len)
    }
}

/// Checks UDP's length field. This length must agree with the IP length: a shorter UDP length leaves bytes without a
/// checksum.
fn udp_header_len(segment: &[u8], length_from: LengthFrom) -> Result<usize, Malformed> {
    let header = segment.get(..UDP_HEADER_LEN).ok_or(Malformed::Truncated)?;
    let udp_len = usize::from(be16(header, UDP_LENGTH_OFFSET));
    if length_from == LengthFrom::Ip && udp_len != segment.len() {
        return Err(Malformed::Length);
    }
    Ok(UDP_HEADER_LEN)
}

/// Returns the big-endian 16-bit word at offset `at`.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Writes a big-endian 16-bit word.
#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests;
