//! The fields of a frame, and the comparison of two frames by fields.

use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, Network, Transport, link_header_len};
use strum::EnumMessage;

use crate::packet::ones_complement_sum;

/// Maximum length to which a short frame may be padded, in bytes. Ethernet's minimum without FCS is 60 bytes (IEEE
/// 802.3, 4A.4.2), and some adapters pad tagged frames by four more bytes.
const PADDED_LEN_MAX: usize = 64;

/// Differences that a check permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Segments may have any IPv4 ID (`tx-tcp-mangleid-segmentation`).
    pub any_id: bool,
    /// Frames with a wrong checksum, padded datagrams and fragments may overtake earlier frames. Linux' GRO holds other
    /// frames of the same flow, but delivers frames with a wrong checksum, padded datagrams and fragments at once.
    pub unheld_overtake: bool,
}

/// A field of a frame. Reports quote the comment of each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumMessage)]
pub(super) enum Name {
    /// Ethernet header
    Ethernet,
    /// VLAN tag
    VlanTag,
    /// type of service or traffic class
    TrafficClass,
    /// IPv4 length
    Ipv4Length,
    /// IPv6 payload length
    Ipv6Length,
    /// IPv4 ID
    IpId,
    /// TTL or hop limit
    HopLimit,
    /// IP header
    IpHeader,
    /// IP options
    IpOptions,
    /// ports
    Ports,
    /// sequence number
    Sequence,
    /// TCP flags
    Flags,
    /// TCP header
    TcpHeader,
    /// TCP window
    Window,
    /// TCP options
    TcpOptions,
    /// UDP length
    UdpLength,
    /// payload
    Payload,
    /// IPv4 header checksum
    IpChecksum,
    /// checksum
    Checksum,
}

impl Name {
    pub(super) fn text(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }

    /// Formats the bytes of a field for a report.
    pub(super) fn decode(self, bytes: &[u8]) -> String {
        const SHOWN: usize = 16;
        match self {
            _ if bytes.is_empty() => "nothing".to_owned(),
            Self::Ipv4Length | Self::Ipv6Length | Self::UdpLength | Self::Window | Self::IpId if bytes.len() == 2 => {
                be16(bytes, 0).to_string()
            }
            Self::HopLimit => bytes[0].to_string(),
            Self::Sequence if bytes.len() == 4 => {
                u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).to_string()
            }
            Self::Flags => flags_text(bytes[0]),
            Self::VlanTag if bytes.len() == 4 => {
                let tag = be16(bytes, 2);
                format!("VLAN {} priority {}", tag & 0xfff, tag >> 13)
            }
            Self::Payload => {
                let more = if bytes.len() > SHOWN { "…" } else { "" };
                format!("{} bytes: {}{more}", bytes.len(), hex(&bytes[..bytes.len().min(SHOWN)]))
            }
            _ => format!("0x{}", hex(bytes)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn flags_text(flags: u8) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set: Vec<&str> =
        NAMES.iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(" ") }
}

/// A field that differs, with the expected and the captured value.
#[derive(Clone, Debug)]
pub(super) struct FieldDifference {
    pub name: Name,
    pub expected: Vec<u8>,
    pub got: Vec<u8>,
}

/// The positions of a frame's headers and payload.
pub(super) struct Parsed {
    pub layout: FrameLayout,
}

impl Parsed {
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let mut bytes = frame.to_vec();
        let layout = *Frame::received(&mut bytes).layout().ok()?;
        Some(Self { layout })
    }

    /// Returns the offset of the transport checksum in the frame. A super-frame has its checksum at the same offset as
    /// its segments.
    pub(super) fn checksum_at(&self) -> usize {
        let offset = if self.layout.transport == Transport::Udp { 6 } else { 16 };
        self.layout.transport_start + offset
    }

    pub(super) fn pseudo_header(&self, frame: &[u8], transport_len: usize) -> Vec<u8> {
        let start = self.layout.network_start;
        let addresses = match self.layout.network {
            Network::Ipv4 => &frame[start + 12..start + 20],
            _ => &frame[start + 8..start + 40],
        };
        [addresses, &(transport_len as u32).to_be_bytes(), &[0, self.layout.protocol]].concat()
    }

    /// Returns the ranges of all fields in the order of the frame, followed by the checksums.
    fn fields(&self) -> Vec<(Name, std::ops::Range<usize>)> {
        let FrameLayout { network_start: ip, transport_start: at, payload_start, packet_end, .. } = self.layout;
        let mut fields = vec![(Name::Ethernet, 0..12), (Name::Ethernet, ip - 2..ip)];
        match self.layout.network {
            Network::Ipv4 => fields.extend([
                (Name::IpHeader, ip..ip + 1),
                (Name::TrafficClass, ip + 1..ip + 2),
                (Name::Ipv4Length, ip + 2..ip + 4),
                (Name::IpId, ip + 4..ip + 6),
                (Name::IpHeader, ip + 6..ip + 8),
                (Name::HopLimit, ip + 8..ip + 9),
                (Name::IpHeader, ip + 9..ip + 10),
                (Name::IpHeader, ip + 12..ip + 20),
                (Name::IpOptions, ip + 20..at),
                (Name::IpChecksum, ip + 10..ip + 12),
            ]),
            Network::Ipv6 => fields.extend([
                (Name::TrafficClass, ip..ip + 2),
                (Name::IpHeader, ip + 2..ip + 4),
                (Name::Ipv6Length, ip + 4..ip + 6),
                (Name::IpHeader, ip + 6..ip + 7),
                (Name::HopLimit, ip + 7..ip + 8),
                (Name::IpHeader, ip + 8..ip + 40),
                (Name::IpOptions, ip + 40..at),
            ]),
            Network::Opaque => {}
        }
        match self.layout.transport {
            Transport::Tcp => fields.extend([
                (Name::Ports, at..at + 4),
                (Name::Sequence, at + 4..at + 8),
                (Name::TcpHeader, at + 8..at + 13),
                (Name::Flags, at + 13..at + 14),
                (Name::Window, at + 14..at + 16),
                (Name::TcpHeader, at + 18..at + 20),
                (Name::TcpOptions, at + 20..payload_start),
            ]),
            Transport::Udp => fields.extend([(Name::Ports, at..at + 4), (Name::UdpLength, at + 4..at + 6)]),
            Transport::Opaque => {}
        }
        fields.push((Name::Payload, payload_start..packet_end));
        if self.layout.transport != Transport::Opaque {
            fields.push((Name::Checksum, self.checksum_at()..self.checksum_at() + 2));
        }
        // Checksums are last, because they change with every other field. The stable sort keeps the order of the other
        // fields.
        fields.sort_by_key(|(name, _)| matches!(name, Name::IpChecksum | Name::Checksum));
        fields
    }
}

/// Returns the bytes of a field, or `None` if the frame lacks the field.
pub(super) fn value_of(frame: &[u8], name: Name) -> Option<Vec<u8>> {
    let parsed = Parsed::of(frame)?;
    let range = parsed.fields().into_iter().find(|(found, _)| *found == name)?.1;
    Some(frame[range].to_vec())
}

/// Returns the bytes of the VLAN tags.
fn tags(frame: &[u8]) -> &[u8] {
    let end = link_header_len(frame).unwrap_or(14);
    frame.get(12..end - 2).unwrap_or(&[])
}

pub(super) fn first_difference(expected: &[u8], got: &[u8], allowed: Allowed) -> Option<FieldDifference> {
    if expected == got {
        return None;
    }
    differences(expected, got, allowed).into_iter().next()
}

/// Returns the fields that differ between two frames, except permitted differences.
pub(super) fn differences(expected: &[u8], got: &[u8], allowed: Allowed) -> Vec<FieldDifference> {
    let (tags_expected, tags_got) = (tags(expected), tags(got));
    if tags_expected != tags_got {
        return vec![FieldDifference { name: Name::VlanTag, expected: tags_expected.to_vec(), got: tags_got.to_vec() }];
    }
    let Some(parsed) = Parsed::of(expected) else {
        return vec![FieldDifference { name: Name::Ethernet, expected: expected.to_vec(), got: got.to_vec() }];
    };
    let got = without_tail(expected, got, parsed.layout.packet_end);
    let mut found = Vec::new();
    for (name, range) in parsed.fields() {
        // Bytes beyond the expected packet count as payload.
        let end = if name == Name::Payload { got.len().max(range.start) } else { range.end };
        let bytes = got.get(range.start.min(got.len())..end.min(got.len())).unwrap_or_default();
        let expected = &expected[range];
        if expected != bytes && !is_allowed(name, got, bytes, &parsed, allowed) {
            found.push(FieldDifference { name, expected: expected.to_vec(), got: bytes.to_vec() });
        }
    }
    found
}

/// Removes padding, or the trailer that was sent, from a captured frame. Coalescing may remove padding and trailer, so
/// neither is compared.
fn without_tail<'a>(expected: &[u8], got: &'a [u8], packet_end: usize) -> &'a [u8] {
    let is_padded = got.len() > packet_end && got.len() <= PADDED_LEN_MAX;
    let has_trailer = expected.len() > packet_end && got.len() == expected.len();
    let is_trailed = has_trailer && got[packet_end..] == expected[packet_end..];
    if is_padded || is_trailed { &got[..packet_end] } else { got }
}

fn is_allowed(name: Name, got: &[u8], bytes: &[u8], parsed: &Parsed, allowed: Allowed) -> bool {
    let layout = &parsed.layout;
    match name {
        Name::IpId => allowed.any_id,
        Name::IpChecksum if allowed.any_id => {
            let header = got.get(layout.network_start..layout.transport_start).unwrap_or_default();
            ones_complement_sum(&[header]) == u16::MAX
        }
        // In one's complement, 0 and 0xffff are the same number, and a TCP checksum of 0 has no special meaning.
        Name::Checksum if layout.transport == Transport::Tcp && matches!(bytes, [0, 0] | [0xff, 0xff]) => {
            let len = layout.packet_end - layout.transport_start;
            let transport = got.get(layout.transport_start..layout.packet_end).unwrap_or_default();
            transport.len() == len && ones_complement_sum(&[&parsed.pseudo_header(got, len), transport]) == u16::MAX
        }
        _ => false,
    }
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
