//! A frame described by fields, and its bytes. Checksums are computed word by word by the definition of RFC 1071,
//! independent of the code under test.

/// TCP's FIN flag.
pub const FIN: u16 = 0x001;
/// TCP's SYN flag.
pub const SYN: u16 = 0x002;
/// TCP's RST flag.
pub const RST: u16 = 0x004;
/// TCP's PSH flag.
pub const PSH: u16 = 0x008;
/// TCP's ACK flag.
pub const ACK: u16 = 0x010;
/// TCP's URG flag.
pub const URG: u16 = 0x020;
/// TCP's ECE flag.
pub const ECE: u16 = 0x040;
/// TCP's AE flag, for Accurate ECN (RFC 9768 3.1).
pub const AE: u16 = 0x100;
/// TCP's CWR flag.
pub const CWR: u16 = 0x080;

/// IPv4's don't-fragment bit, in its fragment field.
pub const DF: u16 = 0x4000;
/// IPv4's more-fragments bit, in its fragment field.
pub const MF: u16 = 0x2000;

/// IPv6 next header of hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// IPv6 next header of a routing header.
pub const ROUTING: u8 = 43;
/// IPv6 next header of a fragment header.
pub const FRAGMENT: u8 = 44;
/// IPv6 next header of destination options.
pub const DESTINATION: u8 = 60;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// Source MAC address of every frame in a comparison with the kernel. The address distinguishes these frames from the
/// kernel's frames.
pub const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0x0a, 1];
/// Destination MAC address of every frame in a comparison with the kernel.
pub const DESTINATION_MAC: [u8; 6] = [2, 0, 0, 0, 0x0b, 1];

/// The value of the transport's checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The correct checksum.
    Full,
    /// The pseudo-header's sum, as sent by a host to an adapter.
    Partial,
    /// The correct checksum with one bit flipped.
    Wrong,
    /// The value 0.
    Absent,
}

/// A frame described by fields.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Last byte of the sender's Ethernet address.
    pub source_mac: u8,
    /// Last byte of the receiver's Ethernet address.
    pub destination_mac: u8,
    /// VLAN tags: type and tag control information.
    pub tags: Vec<(u16, u16)>,
    /// True for IPv6, false for IPv4.
    pub is_ipv6: bool,
    /// True for UDP, false for TCP.
    pub is_udp: bool,
    /// `ToS` or traffic class.
    pub class: u8,
    /// `TTL` or hop limit.
    pub hops: u8,
    /// IPv4 ID.
    pub id: u16,
    /// IPv4 flags and fragment offset.
    pub fragment: u16,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// IPv4 options, a multiple of 4 bytes.
    pub ip_options: Vec<u8>,
    /// IPv6 extension headers: protocol number, and the header without its next-header byte.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// True for a wrong IPv4 header checksum.
    pub ip_checksum_is_wrong: bool,
    /// Source port and destination port.
    pub ports: (u16, u16),
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
    /// TCP flags: 9 bits, and the 3 reserved bits above.
    pub flags: u16,
    /// TCP window.
    pub window: u16,
    /// TCP urgent pointer.
    pub urgent: u16,
    /// TCP options, a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// Payload of TCP or UDP.
    pub payload: Vec<u8>,
    /// Number of bytes after the packet.
    pub padding: usize,
    /// Value of the checksum field.
    pub checksum: Checksum,
}

impl Packet {
    /// Returns a TCP packet over IPv4 without options, with `len` bytes from sequence number 1000.
    pub fn tcp(len: usize) -> Self {
        Self {
            source_mac: SOURCE_MAC[5],
            destination_mac: DESTINATION_MAC[5],
            tags: Vec::new(),
            is_ipv6: false,
            is_udp: false,
            class: 0,
            hops: 64,
            id: 0,
            fragment: 0,
            flow_label: 0,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            ip_checksum_is_wrong: false,
            ports: (1111, 2222),
            seq: 1000,
            ack: 5000,
            flags: ACK,
            window: 8192,
            urgent: 0,
            options: Vec::new(),
            payload: pattern(1000, len),
            padding: 0,
            checksum: Checksum::Full,
        }
    }

    /// Returns a UDP packet over IPv4 with `len` bytes.
    pub fn udp(len: usize) -> Self {
        Self { is_udp: true, ports: (3333, 4444), ..Self::tcp(len) }
    }

    /// Returns the start of the IP header.
    pub fn network_start(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    /// Returns the start of the TCP or UDP header.
    pub fn transport_start(&self) -> usize {
        self.network_start() + if self.is_ipv6 { 40 + self.extensions_len() } else { 20 + self.ip_options.len() }
    }

    /// Returns the length of all IPv6 extension headers in bytes.
    pub fn extensions_len(&self) -> usize {
        self.extensions.iter().map(|(_, body)| 1 + body.len()).sum()
    }

    /// Returns the length of the TCP or UDP header in bytes.
    pub fn transport_header_len(&self) -> usize {
        if self.is_udp { 8 } else { 20 + self.options.len() }
    }

    /// Returns the start of the payload.
    pub fn payload_start(&self) -> usize {
        self.transport_start() + self.transport_header_len()
    }

    /// Returns the offset of the checksum field in the transport header.
    pub fn checksum_offset(&self) -> usize {
        if self.is_udp { 6 } else { 16 }
    }

    /// Returns the protocol number of TCP or UDP.
    pub fn protocol(&self) -> u8 {
        if self.is_udp { UDP } else { TCP }
    }

    /// Returns the source address followed by the destination address.
    pub fn addresses(&self) -> Vec<u8> {
        if self.is_ipv6 {
            let of_host = |n| [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n];
            [of_host(1u8), of_host(2)].concat()
        } else {
            vec![10, 9, 0, 1, 10, 9, 0, 2]
        }
    }

    /// Builds the frame.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = self.link_header();
        let mut transport = self.transport_header();
        transport.extend_from_slice(&self.payload);
        if self.checksum != Checksum::Absent {
            let field = self.checksum_offset();
            let value = self.checksum_value(&transport);
            transport[field..field + 2].copy_from_slice(&value.to_be_bytes());
        }
        frame.extend(if self.is_ipv6 { self.ipv6(transport.len()) } else { self.ipv4(transport.len()) });
        frame.extend(transport);
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    fn link_header(&self) -> Vec<u8> {
        let mut header = [DESTINATION_MAC, SOURCE_MAC].concat();
        header[5] = self.destination_mac;
        header[11] = self.source_mac;
        for (kind, content) in &self.tags {
            header.extend(kind.to_be_bytes());
            header.extend(content.to_be_bytes());
        }
        header.extend(if self.is_ipv6 { [0x86, 0xdd] } else { [8, 0] });
        header
    }

    fn ipv4(&self, transport_len: usize) -> Vec<u8> {
        let header_len = 20 + self.ip_options.len();
        let mut header = vec![0x40 | (header_len / 4) as u8, self.class];
        header.extend(((header_len + transport_len) as u16).to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.hops, self.protocol(), 0, 0]);
        header.extend(self.addresses());
        header.extend(&self.ip_options);
        let checksum = !slow_sum(&[&header]) ^ u16::from(self.ip_checksum_is_wrong);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn ipv6(&self, transport_len: usize) -> Vec<u8> {
        let mut chain = Vec::new();
        for (n, (_, body)) in self.extensions.iter().enumerate() {
            chain.push(self.extensions.get(n + 1).map_or(self.protocol(), |(kind, _)| *kind));
            chain.extend(body);
        }
        let first = 6u32 << 28 | u32::from(self.class) << 20 | self.flow_label & 0xf_ffff;
        let mut header = first.to_be_bytes().to_vec();
        header.extend(((chain.len() + transport_len) as u16).to_be_bytes());
        header.push(self.extensions.first().map_or(self.protocol(), |(kind, _)| *kind));
        header.push(self.hops);
        header.extend(self.addresses());
        header.extend(chain);
        header
    }

    fn transport_header(&self) -> Vec<u8> {
        let mut header = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        if self.is_udp {
            header.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            header.extend([0, 0]);
            return header;
        }
        header.extend(self.seq.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        let words = (self.transport_header_len() / 4) as u16;
        header.extend((words << 12 | self.flags & 0xfff).to_be_bytes());
        header.extend(self.window.to_be_bytes());
        header.extend([0, 0]);
        header.extend(self.urgent.to_be_bytes());
        header.extend(&self.options);
        header
    }

    fn checksum_value(&self, transport: &[u8]) -> u16 {
        let len = (transport.len() as u32).to_be_bytes();
        let pseudo = [self.addresses(), len.to_vec(), vec![0, self.protocol()]].concat();
        let full = !slow_sum(&[&pseudo, transport]);
        match self.checksum {
            Checksum::Partial => slow_sum(&[&pseudo]),
            Checksum::Wrong => full ^ 1,
            Checksum::Full if self.is_udp && full == 0 => 0xffff,
            Checksum::Full | Checksum::Absent => full,
        }
    }
}

/// Returns bytes whose values encode their offset in the stream, so that a test detects every swap.
pub fn pattern(seq: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (seq.wrapping_add(n).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Returns the ones' complement sum of RFC 1071 section 1, not inverted. Every part except the last has an even length.
pub fn slow_sum(parts: &[&[u8]]) -> u16 {
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
