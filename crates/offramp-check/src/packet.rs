//! Builds frames from their header fields, and recognizes the case of a frame by its IP addresses. Checksums are
//! computed word by word as in RFC 1071. The code that builds frames shares nothing with the adapter's code. An error
//! of the adapter therefore does not also appear in the expected frames.

use offramp_offload::meta::RxMeta;

/// TCP's FIN flag.
pub(crate) const FIN: u8 = 0x01;
/// TCP's PSH flag.
pub(crate) const PSH: u8 = 0x08;
/// TCP's ACK flag.
pub(crate) const ACK: u8 = 0x10;
/// TCP's ECE flag (RFC 3168 6.1).
pub(crate) const ECE: u8 = 0x40;
/// TCP's CWR flag (RFC 3168 6.1).
pub(crate) const CWR: u8 = 0x80;

/// `EtherType` of a VLAN tag (IEEE 802.1Q).
pub(crate) const VLAN_TYPE: u16 = 0x8100;
/// The don't-fragment bit in IPv4's fragment field.
const DONT_FRAGMENT: u16 = 0x4000;
/// IPv6 next header value of destination options.
const DESTINATION_OPTIONS: u8 = 60;
/// IPv6 next header value of a fragment header, and the length of that header in bytes.
const FRAGMENT: u8 = 44;
const FRAGMENT_LEN: usize = 8;
/// IPv4's one-byte option "no operation" (RFC 791 3.1).
const NO_OPERATION: u8 = 1;
/// Source and destination port of every frame: a port for private use (RFC 6335 6), and the port of the discard
/// service.
pub(crate) const PORTS: [u16; 2] = [49_209, 9];

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ip {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

/// The transport protocol of the IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The method by which a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The frame is sent unchanged by a packet socket with a vnet header.
    PacketSocket,
    /// The frame is sent by a packet socket. Its VLAN tag is moved from the frame into the skb's metadata, as a VLAN
    /// interface does.
    TagInSkb,
    /// A UDP socket sends the frame's payload. The kernel builds the same headers, except the IPv4 ID.
    UdpSocket,
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Bytes of the frame. A VLAN tag removed by the kernel is inserted again.
    pub bytes: Vec<u8>,
    /// Metadata of the frame, as reported by the interface's driver and the kernel.
    pub meta: RxMeta,
}

/// The contents of the checksum field of TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    /// The correct checksum.
    Right,
    /// The checksum of the pseudo-header, left by a host for its adapter to complete.
    PseudoHeader,
    /// A checksum with two wrong bits, but never 0, because 0 means no checksum (RFC 768).
    Wrong,
    /// The value 0: the sender computed no checksum.
    Absent,
}

/// The case and the run of a frame, encoded in the frame's IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Number of the run. The number distinguishes runs that are active at the same time.
    pub run: u16,
    /// Number of the case.
    pub case: u16,
}

/// Prefixes of the IPv4 addresses, from the range for benchmarks (RFC 2544 C.2.2): `198.18.0.0/15`.
const RANGE_V4: [[u8; 2]; 2] = [[198, 18], [198, 19]];
/// Prefix of the IPv6 addresses, which are unique local addresses (RFC 4193): `fd00::/8`.
const RANGE_V6: [u8; 14] = [0xfd, 0x6f, 0x66, 0x72, 0x61, 0x6d, 0x70, 0, 0, 0, 0, 0, 0, 0];
/// Prefix of unassigned IPv4 multicast groups in the organization-local scope (RFC 2365 6.2): `239.194.0.0/16`.
const GROUPS_V4: [u8; 2] = [239, 194];
/// Prefix of transient (not permanently assigned) IPv6 multicast groups in the link-local scope (RFC 4291 2.7):
/// `ff12::/16`.
const GROUPS_V6: [u8; 14] = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0x6f, 0x66, 0x72, 0x61, 0x6d, 0x70];

/// The kind of a frame's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Station {
    /// An Ethernet address that no host has.
    Nobody,
    /// A multicast group without members. A socket can send to the group without a route or a neighbour entry.
    Group,
}

impl Identity {
    /// Returns the source and destination address, concatenated.
    fn addresses(self, ip: Ip, station: Station) -> Vec<u8> {
        let words = [self.case, self.run].map(u16::to_be_bytes);
        let to_v4 = if station == Station::Group { GROUPS_V4 } else { RANGE_V4[1] };
        let to_v6 = if station == Station::Group { GROUPS_V6 } else { RANGE_V6 };
        match ip {
            Ip::V4 => [RANGE_V4[0], words[0], to_v4, words[1]].concat(),
            Ip::V6 => [&RANGE_V6[..], &words[0], &to_v6, &words[1]].concat(),
        }
    }

    /// Returns the Ethernet address of the multicast group (RFC 1112 6.4, RFC 2464 7).
    pub(crate) fn group(self, ip: Ip) -> [u8; 6] {
        let [a, b] = self.run.to_be_bytes();
        match ip {
            Ip::V4 => [0x01, 0x00, 0x5e, GROUPS_V4[1] & 0x7f, a, b],
            Ip::V6 => [0x33, 0x33, GROUPS_V6[12], GROUPS_V6[13], a, b],
        }
    }

    /// Reads the identity from a frame's IP addresses. Returns `None` if the frame does not belong to a check. Fields
    /// other than the IP addresses may be wrong.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        Self::and_station(frame).map(|(identity, _)| identity)
    }

    /// Reads the identity like [`Identity::of`], and the kind of destination.
    pub(crate) fn and_station(frame: &[u8]) -> Option<(Self, Station)> {
        let at = offramp_offload::layout::link_header_len(frame).ok()?;
        let word = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
        let (case, to_nobody, to_group, run) = match frame.get(at)? >> 4 {
            4 => {
                let [range, case, to, run] = [12, 14, 16, 18].map(|field| frame.get(at + field..at + field + 2));
                (case.filter(|_| range == Some(&RANGE_V4[0])), to == Some(&RANGE_V4[1]), to == Some(&GROUPS_V4), run)
            }
            6 => {
                let (from, to) = (frame.get(at + 8..at + 24)?, frame.get(at + 24..at + 40)?);
                let case = from.strip_prefix(&RANGE_V6);
                (case, to.starts_with(&RANGE_V6), to.starts_with(&GROUPS_V6), to.get(14..))
            }
            _ => return None,
        };
        let station = match (to_nobody, to_group) {
            (true, _) => Station::Nobody,
            (_, true) => Station::Group,
            _ => return None,
        };
        Some((Self { case: word(case?), run: word(run?) }, station))
    }
}

/// The header fields of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    pub destination: [u8; 6],
    pub source: [u8; 6],
    /// VLAN tag control information.
    pub vlan: Option<u16>,
    pub ip: Ip,
    pub protocol: Protocol,
    pub identity: Identity,
    pub station: Station,
    /// IPv4 type of service, or IPv6 traffic class.
    pub class: u8,
    /// IPv4 TTL, or IPv6 hop limit.
    pub hops: u8,
    pub ip_id: u16,
    /// Length of the IPv4 options in words, or of an IPv6 destination options header in units of 8 bytes.
    pub ip_options: u8,
    pub sequence: u32,
    pub flags: u8,
    /// TCP's AE flag, the bit above the other flags (RFC 9768 3.1).
    pub ae: bool,
    pub window: u16,
    pub tcp_options: Vec<u8>,
}

impl Headers {
    /// Returns the length of the Ethernet header and the tag, in bytes.
    pub(crate) fn link_len(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    fn ip_len(&self) -> usize {
        match self.ip {
            Ip::V4 => 20 + 4 * usize::from(self.ip_options),
            Ip::V6 => 40 + 8 * usize::from(self.ip_options),
        }
    }

    fn transport_len(&self) -> usize {
        match self.protocol {
            Protocol::Tcp => 20 + self.tcp_options.len(),
            Protocol::Udp => 8,
        }
    }

    /// Returns the offset of the TCP or UDP header.
    pub(crate) fn transport_start(&self) -> usize {
        self.link_len() + self.ip_len()
    }

    /// Returns the length of all headers, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.transport_start() + self.transport_len()
    }

    /// Returns the checksum's offset in the TCP or UDP header.
    pub(crate) fn checksum_offset(&self) -> usize {
        checksum_offset(self.protocol)
    }

    /// Builds the frame with these header fields and `payload`.
    pub(crate) fn frame(&self, payload: &[u8], field: Field) -> Vec<u8> {
        let transport = self.transport(payload, field);
        let mut frame = [self.destination, self.source].concat();
        if let Some(tag) = self.vlan {
            frame.extend([VLAN_TYPE.to_be_bytes(), tag.to_be_bytes()].concat());
        }
        match self.ip {
            Ip::V4 => frame.extend(self.ipv4(transport.len())),
            Ip::V6 => frame.extend(self.ipv6(transport.len())),
        }
        frame.extend(transport);
        frame
    }

    /// Splits `frame`, which has these headers, into two IP fragments (RFC 791 3.2, RFC 8200 4.5).
    pub(crate) fn fragments(&self, frame: &[u8]) -> Vec<Vec<u8>> {
        let (start, transport) = (self.transport_start(), &frame[self.transport_start()..]);
        let first_len = transport.len() / 2 / 8 * 8;
        let (first, rest) = transport.split_at(first_len);
        let pieces = [(first, 0, 1u16), (rest, first_len as u16, 0)];
        let fragment = |(piece, offset, more): (&[u8], u16, u16)| {
            let mut head = frame[..start].to_vec();
            let at = self.link_len();
            match self.ip {
                Ip::V4 => {
                    head[at + 2..at + 4].copy_from_slice(&((self.ip_len() + piece.len()) as u16).to_be_bytes());
                    head[at + 6..at + 8].copy_from_slice(&(more << 13 | (offset / 8)).to_be_bytes());
                    head[at + 10..at + 12].fill(0);
                    let checksum = !ones_complement_sum(&[&head[at..]]);
                    head[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
                }
                Ip::V6 => {
                    let len = self.ip_len() - 40 + FRAGMENT_LEN + piece.len();
                    head[at + 4..at + 6].copy_from_slice(&(len as u16).to_be_bytes());
                    // No other extension header precedes the fragment header, because only trains are fragmented, and
                    // `ip_options` is 0 in a train.
                    head[at + 6] = FRAGMENT;
                    head.extend([protocol_number(self.protocol), 0]);
                    head.extend((offset | more).to_be_bytes());
                    head.extend([0, 0, self.ip_id.to_be_bytes()[0], self.ip_id.to_be_bytes()[1]]);
                }
            }
            [head, piece.to_vec()].concat()
        };
        pieces.into_iter().map(fragment).collect()
    }

    fn ipv4(&self, transport_len: usize) -> Vec<u8> {
        let header_len = self.ip_len();
        let mut header = vec![0x40 | (header_len / 4) as u8, self.class];
        header.extend(((header_len + transport_len) as u16).to_be_bytes());
        header.extend(self.ip_id.to_be_bytes());
        header.extend(DONT_FRAGMENT.to_be_bytes());
        header.extend([self.hops, protocol_number(self.protocol), 0, 0]);
        header.extend(self.identity.addresses(Ip::V4, self.station));
        header.resize(header_len, NO_OPERATION);
        let checksum = !ones_complement_sum(&[&header]);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        [vec![0x08, 0x00], header].concat()
    }

    fn ipv6(&self, transport_len: usize) -> Vec<u8> {
        let protocol = protocol_number(self.protocol);
        let extension_len = 8 * usize::from(self.ip_options);
        let mut header = vec![0x86, 0xdd];
        header.extend((6u32 << 28 | u32::from(self.class) << 20 | 0x5_1a7e).to_be_bytes());
        header.extend(((extension_len + transport_len) as u16).to_be_bytes());
        header.extend([if extension_len > 0 { DESTINATION_OPTIONS } else { protocol }, self.hops]);
        header.extend(self.identity.addresses(Ip::V6, self.station));
        if let Some(padding) = extension_len.checked_sub(4) {
            // A PadN option fills the header (RFC 8200 4.2).
            header.extend([protocol, self.ip_options - 1, 1, padding as u8]);
            header.resize(header.len() + padding, 0);
        }
        header
    }

    fn transport(&self, payload: &[u8], field: Field) -> Vec<u8> {
        let mut bytes = PORTS.map(u16::to_be_bytes).concat();
        match self.protocol {
            Protocol::Tcp => {
                bytes.extend(self.sequence.to_be_bytes());
                bytes.extend(0x0a0b_0c0du32.to_be_bytes());
                bytes.extend([((self.transport_len() / 4) as u8 * 16) | u8::from(self.ae), self.flags]);
                bytes.extend(self.window.to_be_bytes());
                bytes.extend([0; 4]);
                bytes.extend(&self.tcp_options);
            }
            Protocol::Udp => {
                bytes.extend(((8 + payload.len()) as u16).to_be_bytes());
                bytes.extend([0; 2]);
            }
        }
        bytes.extend(payload);
        let at = self.checksum_offset();
        let pseudo = self.pseudo_header(bytes.len());
        let right = checksum(self.protocol, &[&pseudo, &bytes]);
        let value = match field {
            Field::Right => right,
            Field::PseudoHeader => ones_complement_sum(&[&pseudo]),
            Field::Wrong if right == 0x0101 => 0x0100,
            Field::Wrong => right ^ 0x0101,
            Field::Absent => 0,
        };
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        bytes
    }

    /// Builds the pseudo-header (RFC 9293 3.1, RFC 768, RFC 8200 8.1) for a segment of `transport_len` bytes.
    pub(crate) fn pseudo_header(&self, transport_len: usize) -> Vec<u8> {
        let mut pseudo = self.identity.addresses(self.ip, self.station);
        pseudo.extend((transport_len as u32).to_be_bytes());
        pseudo.extend([0, protocol_number(self.protocol)]);
        pseudo
    }
}

/// Returns the checksum's offset in a TCP or UDP header.
pub(crate) fn checksum_offset(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Tcp => 16,
        Protocol::Udp => 6,
    }
}

fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

/// Returns the checksum of a segment's parts with 0 in the checksum field. UDP writes 0xffff instead of 0, because 0
/// means no checksum (RFC 768).
pub(crate) fn checksum(protocol: Protocol, parts: &[&[u8]]) -> u16 {
    match (!ones_complement_sum(parts), protocol) {
        (0, Protocol::Udp) => u16::MAX,
        (checksum, _) => checksum,
    }
}

/// Returns the folded sum of RFC 1071 section 1, not inverted. Every part except the last must have an even length.
pub(crate) fn ones_complement_sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18 marks a UDP datagram without a checksum as verified. A wrong checksum of 0 would therefore be
    /// reported as a fault.
    #[test]
    fn a_wrong_checksum_is_never_one_that_means_none() {
        let headers = Headers {
            destination: [2, 0, 0, 0, 0, 1],
            source: [2, 0, 0, 0, 0, 2],
            vlan: None,
            ip: Ip::V6,
            protocol: Protocol::Udp,
            identity: Identity { run: 1, case: 1 },
            station: Station::Nobody,
            class: 0,
            hops: 64,
            ip_id: 0,
            ip_options: 0,
            sequence: 0,
            flags: 0,
            ae: false,
            window: 0,
            tcp_options: Vec::new(),
        };
        let sums = |word: u16, field| headers.frame(&word.to_be_bytes(), field)[60..62].to_vec();
        let at_risk = (0..=u16::MAX).find(|word| sums(*word, Field::Right) == [1, 1]).unwrap();
        assert_ne!(sums(at_risk, Field::Wrong), [0, 0]);
        assert_ne!(sums(at_risk, Field::Wrong), sums(at_risk, Field::Right));
    }
}
