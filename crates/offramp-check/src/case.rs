//! One case of a check: the frames to send, and the frames expected at the receiver.
//!
//! A case is data. This module builds both kinds of frames from the case, segment by segment and field by field, by the
//! rules of Linux' software segmentation. The code prefers simplicity to speed.

use std::fmt;

use offramp_offload::meta::{Cwr, PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use strum::EnumMessage;

use crate::packet::{self, ACK, CWR, ECE, FIN, Field, Headers, Identity, Ip, PSH, Protocol, Station, Way};

/// Destination of every frame, from the locally administered range. No host has this address, so no host answers.
pub(crate) const DESTINATION: [u8; 6] = [0x02, 0x6f, 0x66, 0x72, 0x61, 0x6d];

/// Length of an Ethernet header without a tag, in bytes.
const ETHERNET_LEN: usize = 14;
/// Number of frames in a [`Load::Train`], except [`Train::Long`].
const TRAIN_FRAMES: u16 = 8;
/// Index of the differing frame of a train. In some trains, all frames from this index on differ from the earlier
/// frames. In other trains, the last frame differs instead of this one (see [`Train`]).
const TRAIN_ODD_ONE: u16 = 3;
/// Payload of the last frame of [`Train::Padded`], in bytes. Over IPv4 and without TCP options, the frame is shorter
/// than [`FRAME_LEN_MIN`].
const PADDED_PAYLOAD_LEN: u16 = 3;
/// Minimum length of a frame without FCS, in bytes (IEEE 802.3, 4A.4.2).
const FRAME_LEN_MIN: usize = 60;
/// A trailer of the Parallel Redundancy Protocol (IEC 62439-3 4.2.7): sequence number, LAN identifier and size, suffix.
const TRAILER: [u8; 6] = [0x12, 0x34, 0xa0, 0x5a, 0x88, 0xfb];
/// Number of frames in a [`Train::Long`]. With the usual payload of a train, the frames exceed the 64 KiB of one
/// super-frame.
const TRAIN_LONG_FRAMES: u16 = 60;
/// Length in bytes of the header between the outer and the inner UDP header of a [`Load::Deep`]: a VXLAN header (RFC
/// 7348).
const DEEP_LEN: usize = 8;

/// TCP options of every frame of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpOptions {
    /// No options.
    None,
    /// Timestamps (RFC 7323) as sent by Linux, 12 bytes.
    Timestamps,
    /// 40 bytes, the maximum of a TCP header: timestamps, then the option "no operation".
    Full,
}

impl TcpOptions {
    /// Returns the length of the options in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Timestamps => 12,
            Self::Full => 40,
        }
    }

    fn bytes(self, timestamp: u32) -> Vec<u8> {
        let mut bytes = [&[1, 1, 8, 10][..], &timestamp.to_be_bytes(), &[0, 0, 0x12, 0x34]].concat();
        bytes.resize(self.len().max(bytes.len()), 1);
        bytes.truncate(self.len());
        bytes
    }
}

/// The checksum of an unsegmented frame. Reports quote the comment of each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::EnumMessage)]
pub enum Checksum {
    /// asked for
    Asked,
    /// complete
    Complete,
    /// absent
    Absent,
    /// wrong on purpose
    Wrong,
    /// of another payload
    WrongPayload,
    /// wrong on purpose, in the IP header
    WrongIpHeader,
}

impl Checksum {
    fn is_bad(self) -> bool {
        matches!(self, Self::Wrong | Self::WrongPayload | Self::WrongIpHeader)
    }
}

/// The difference between the frames of a train, if there is one. Coalescing must preserve this difference. Reports
/// quote the comment of each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::EnumMessage, strum::VariantArray)]
pub enum Train {
    /// all alike
    Even,
    /// the last shorter
    ShortLast,
    /// one shorter
    Short,
    /// one with PSH
    Push,
    /// the last with FIN
    FinLast,
    /// one with CWR
    Cwr,
    /// all with AE, CWR and ECE, AccECN's counter
    Counter,
    /// two values of AccECN's counter
    Counters,
    /// one with ECE
    Ece,
    /// one with congestion experienced
    Congestion,
    /// one with another window
    Window,
    /// two timestamps
    Timestamp,
    /// one with another hop count
    Hops,
    /// a gap in the IDs
    IdGap,
    /// a gap in the sequence numbers
    SequenceGap,
    /// one with a wrong checksum
    Bad,
    /// more than 64 KiB
    Long,
    /// one in two IP fragments
    Fragment,
    /// the last shorter and padded
    Padded,
    /// the last shorter, with a trailer
    Trailed,
}

/// The frames to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// A super-frame with a segmentation request.
    Super {
        /// Payload bytes of each segment except the last.
        size: u16,
        /// Number of segments.
        segments: u16,
        /// Payload bytes of the last segment.
        last: u16,
    },
    /// A single frame.
    One {
        /// Payload bytes.
        len: u16,
        /// State of the frame's checksum.
        checksum: Checksum,
    },
    /// A UDP datagram without checksum, whose payload contains a second UDP datagram. The sender requests the checksum
    /// of the inner datagram.
    Deep {
        /// Payload bytes of the inner datagram.
        len: u16,
    },
    /// Consecutive frames of one flow.
    Train {
        /// Payload bytes of each frame.
        len: u16,
        /// The difference between the frames.
        kind: Train,
    },
}

/// A case of a check, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub struct Case {
    /// IP version.
    pub ip: Ip,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// VLAN tag control information.
    pub vlan: Option<u16>,
    /// Length of the IPv4 options in words, or of an IPv6 extension header in units of 8 bytes.
    pub ip_options: u8,
    /// Options of every TCP header.
    pub tcp_options: TcpOptions,
    /// True if the super-frame has CWR set, as for TSO with ECN.
    pub cwr: bool,
    /// True if the last segment has PSH set.
    pub push: bool,
    /// True if the last segment has FIN set.
    pub fin: bool,
    /// IPv4 ID of the first packet.
    pub ip_id: u16,
    /// Sequence number of the first payload byte.
    pub sequence: u32,
    /// True if the payload is chosen so that the first frame's checksum is 0.
    pub folds_to_zero: bool,
    /// Number of the case. Addresses and payload are derived from this number. `None` selects the next free number.
    pub number: Option<u16>,
    /// True if `hdr_len` in the vnet header covers only the Ethernet header. The kernel may then place the IP and
    /// transport headers in other memory pages.
    pub scattered: bool,
    /// The method by which the frames are sent.
    pub way: Way,
    /// The frames to send.
    pub load: Load,
}

/// A frame to send, with its offload requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub bytes: Vec<u8>,
    pub request: TxMeta,
    /// Value of `hdr_len` in the vnet header: the number of bytes that the kernel must keep contiguous.
    pub header_len: u16,
}

/// An expected frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub bytes: Vec<u8>,
    /// True if the frame's checksum is wrong. A frame with a wrong checksum may be lost, but must not change and must
    /// not be marked good.
    pub is_bad: bool,
}

/// A case with its frames as bytes.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub case: Case,
    pub sent: Vec<Sent>,
    pub expected: Vec<Expected>,
}

/// Ethernet addresses of the frames, and seed of the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressing {
    pub destination: [u8; 6],
    pub source: [u8; 6],
    pub seed: u64,
}

impl Case {
    /// Creates a case of TCP or UDP over `ip`, without options, tags or other special settings.
    pub(crate) fn new(ip: Ip, protocol: Protocol, load: Load) -> Self {
        Self {
            ip,
            protocol,
            vlan: None,
            ip_options: 0,
            tcp_options: TcpOptions::None,
            cwr: false,
            push: true,
            fin: false,
            ip_id: 0x1234,
            sequence: 0x0102_0304,
            folds_to_zero: false,
            number: None,
            scattered: false,
            way: Way::PacketSocket,
            load,
        }
    }

    /// Returns the length of IP and transport headers together, in bytes.
    pub(crate) fn packet_header_len(&self) -> usize {
        let headers = self.headers(&Addressing { destination: [0; 6], source: [0; 6], seed: 0 }, NOBODY);
        headers.len() - headers.link_len()
    }

    /// Returns the length of the case's longest IP packet on the wire, in bytes.
    pub(crate) fn packet_len_max(&self) -> usize {
        let payload = match self.load {
            Load::Super { size, .. } => size,
            Load::One { len, .. } | Load::Train { len, .. } => len,
            Load::Deep { len } => len + 2 * DEEP_LEN as u16,
        };
        self.packet_header_len() + usize::from(payload)
    }

    fn headers(&self, addressing: &Addressing, identity: Identity) -> Headers {
        let is_of_socket = self.way == Way::UdpSocket;
        Headers {
            destination: if is_of_socket { identity.group(self.ip) } else { addressing.destination },
            source: addressing.source,
            vlan: self.vlan,
            ip: self.ip,
            protocol: self.protocol,
            identity,
            station: if is_of_socket { Station::Group } else { Station::Nobody },
            class: 0,
            // A UDP socket sends to a multicast group. A hop limit of 1 keeps its datagrams on the link.
            hops: if is_of_socket { 1 } else { 64 },
            ip_id: self.ip_id,
            ip_options: self.ip_options,
            sequence: self.sequence,
            flags: ACK,
            ae: false,
            window: 0x2000,
            tcp_options: self.tcp_options.bytes(FIRST_TIMESTAMP),
        }
    }

    /// Builds the frames of the case.
    pub(crate) fn build(&self, addressing: &Addressing, identity: Identity) -> Built {
        let headers = self.headers(addressing, identity);
        let mut bytes = Bytes::new(addressing.seed, identity.case);
        let (sent, expected) = match self.load {
            Load::Super { size, segments, last } => {
                let len = usize::from(size) * (usize::from(segments) - 1) + usize::from(last);
                self.super_frame(&headers, bytes.take(len), usize::from(size))
            }
            Load::One { len, checksum } => self.one(&headers, bytes.take(len.into()), checksum),
            Load::Deep { len } => self.deep(&headers, &bytes.take(len.into())),
            Load::Train { len, kind } => self.train(&headers, len, kind, &mut bytes),
        };
        Built { case: *self, sent, expected }
    }

    fn sent(&self, headers: &Headers, bytes: Vec<u8>, segmentation: Option<Segmentation>) -> Sent {
        let start = headers.transport_start() as u16;
        let checksum = Some(PartialChecksum { start, offset: headers.checksum_offset() as u16 });
        let header_len = if self.scattered { ETHERNET_LEN } else { headers.len() } as u16;
        Sent { bytes, request: TxMeta { checksum, segmentation }, header_len }
    }

    fn super_frame(&self, headers: &Headers, mut payload: Vec<u8>, size: usize) -> (Vec<Sent>, Vec<Expected>) {
        if self.folds_to_zero && size >= 2 && payload.len() >= 2 {
            payload[..2].fill(0);
            let first = self.segments(headers, &payload, size).swap_remove(0);
            payload[..2].copy_from_slice(&checksum_of(headers, &first));
        }
        let kind = match (self.protocol, self.ip) {
            (Protocol::Tcp, Ip::V4) => SegmentationKind::Tcp4,
            (Protocol::Tcp, Ip::V6) => SegmentationKind::Tcp6,
            (Protocol::Udp, _) => SegmentationKind::Udp,
        };
        let mut whole = headers.clone();
        whole.flags |= self.last_flags() | if self.cwr { CWR } else { 0 };
        let segmentation =
            Segmentation { kind, size: size as u16, cwr: if self.cwr { Cwr::First } else { Cwr::Unmarked } };
        let bytes = whole.frame(&payload, Field::PseudoHeader);
        let segments = self.segments(headers, &payload, size);
        let expected = segments.into_iter().map(|bytes| Expected { bytes, is_bad: false }).collect();
        (vec![self.sent(headers, bytes, Some(segmentation))], expected)
    }

    /// Returns the TCP flags that only the last segment has.
    fn last_flags(&self) -> u8 {
        (if self.push { PSH } else { 0 }) | if self.fin { FIN } else { 0 }
    }

    /// Builds the segments. Each segment has its own length, ID and sequence number. The case's PSH and FIN are set
    /// only in the last segment, and its CWR only in the first segment.
    fn segments(&self, headers: &Headers, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
        let pieces: Vec<&[u8]> = payload.chunks(size).collect();
        let segment = |(n, piece): (usize, &&[u8])| {
            let mut headers = headers.clone();
            headers.ip_id = self.ip_id.wrapping_add(n as u16);
            headers.sequence = self.sequence.wrapping_add((n * size) as u32);
            if n + 1 == pieces.len() {
                headers.flags |= self.last_flags();
            }
            if n == 0 && self.cwr {
                headers.flags |= CWR;
            }
            headers.frame(piece, Field::Right)
        };
        pieces.iter().enumerate().map(segment).collect()
    }

    fn one(&self, headers: &Headers, mut payload: Vec<u8>, checksum: Checksum) -> (Vec<Sent>, Vec<Expected>) {
        let mut headers = headers.clone();
        headers.flags |= PSH;
        if self.folds_to_zero && payload.len() >= 2 {
            payload[..2].fill(0);
            let value = checksum_of(&headers, &headers.frame(&payload, Field::Right));
            payload[..2].copy_from_slice(&value);
        }
        let mut expected = headers.frame(&payload, Field::Right);
        let mut sent = self.sent(&headers, expected.clone(), None);
        match checksum {
            Checksum::Asked => sent.bytes = headers.frame(&payload, Field::PseudoHeader),
            Checksum::Complete => sent.request.checksum = None,
            other => {
                sent.request.checksum = None;
                sent.bytes = spoiled(&headers, &payload, other);
                expected.clone_from(&sent.bytes);
            }
        }
        (vec![sent], vec![Expected { bytes: expected, is_bad: checksum.is_bad() }])
    }

    fn deep(&self, headers: &Headers, payload: &[u8]) -> (Vec<Sent>, Vec<Expected>) {
        let inner = |field| {
            // The inner datagram has no IP header. Its checksum covers the addresses of the outer IP header, as in the
            // kernel's self-test `csum`.
            let whole = headers.frame(payload, field);
            [&[8, 0, 0, 0, 0, 0, 7, 0][..DEEP_LEN], &whole[headers.transport_start()..]].concat()
        };
        let mut sent = self.sent(headers, headers.frame(&inner(Field::PseudoHeader), Field::Absent), None);
        let start = headers.len() + DEEP_LEN;
        sent.request.checksum = Some(PartialChecksum { start: start as u16, offset: headers.checksum_offset() as u16 });
        let expected = headers.frame(&inner(Field::Right), Field::Absent);
        (vec![sent], vec![Expected { bytes: expected, is_bad: false }])
    }

    fn train(&self, headers: &Headers, len: u16, kind: Train, bytes: &mut Bytes) -> (Vec<Sent>, Vec<Expected>) {
        let count = if kind == Train::Long { TRAIN_LONG_FRAMES } else { TRAIN_FRAMES };
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        let (mut ip_id, mut sequence) = (self.ip_id, self.sequence);
        for n in 0..count {
            let (is_odd_one, is_last) = (n == TRAIN_ODD_ONE, n + 1 == count);
            let is_short =
                is_odd_one && kind == Train::Short || is_last && matches!(kind, Train::ShortLast | Train::Trailed);
            if is_odd_one && kind == Train::IdGap {
                ip_id = ip_id.wrapping_add(1);
            }
            if is_odd_one && kind == Train::SequenceGap {
                sequence = sequence.wrapping_add(u32::from(len));
            }
            let mut headers = Headers { ip_id, sequence, ..headers.clone() };
            match kind {
                Train::Push if is_odd_one => headers.flags |= PSH,
                Train::FinLast if is_last => headers.flags |= PSH | FIN,
                Train::Cwr if is_odd_one => headers.flags |= CWR,
                Train::Counter => (headers.ae, headers.flags) = (true, headers.flags | CWR | ECE),
                Train::Counters if n < TRAIN_ODD_ONE => (headers.ae, headers.flags) = (true, headers.flags | CWR | ECE),
                Train::Counters => headers.flags |= CWR,
                Train::Ece if is_odd_one => headers.flags |= ECE,
                Train::Congestion if is_odd_one => headers.class |= 3,
                Train::Window if is_odd_one => headers.window += 1,
                Train::Hops if is_odd_one => headers.hops -= 1,
                Train::Timestamp if n >= TRAIN_ODD_ONE => {
                    headers.tcp_options = self.tcp_options.bytes(FIRST_TIMESTAMP + 1);
                }
                _ => {}
            }
            let payload_len = match () {
                () if is_short => len / 2,
                () if is_last && kind == Train::Padded => PADDED_PAYLOAD_LEN,
                () => len,
            };
            let payload = bytes.take(payload_len.into());
            let is_bad = is_odd_one && kind == Train::Bad;
            let mut frame = headers.frame(&payload, if is_bad { Field::Wrong } else { Field::Right });
            match kind {
                Train::Padded if frame.len() < FRAME_LEN_MIN => frame.resize(FRAME_LEN_MIN, 0),
                Train::Trailed if is_last => frame.extend(TRAILER),
                _ => {}
            }
            let is_fragmented = is_odd_one && kind == Train::Fragment;
            for bytes in if is_fragmented { headers.fragments(&frame) } else { vec![frame] } {
                let mut one = self.sent(&headers, bytes.clone(), None);
                one.request.checksum = None;
                sent.push(one);
                expected.push(Expected { bytes, is_bad });
            }
            ip_id = ip_id.wrapping_add(1);
            sequence = sequence.wrapping_add(payload.len() as u32);
        }
        (sent, expected)
    }
}

/// Value of the TCP timestamp in all frames of a case. In a [`Train::Timestamp`], the later frames have the next value.
const FIRST_TIMESTAMP: u32 = 0x0070_0001;
/// Identity for headers that are not sent; only their lengths are used.
const NOBODY: Identity = Identity { run: 0, case: 0 };

/// Builds a frame whose checksum is absent or wrong.
fn spoiled(headers: &Headers, payload: &[u8], checksum: Checksum) -> Vec<u8> {
    match checksum {
        Checksum::Absent => headers.frame(payload, Field::Absent),
        Checksum::Wrong => headers.frame(payload, Field::Wrong),
        Checksum::WrongPayload => {
            let mut frame = headers.frame(payload, Field::Right);
            if let Some(last) = frame.last_mut() {
                *last ^= 0x10;
            }
            frame
        }
        _ => {
            let mut frame = headers.frame(payload, Field::Right);
            frame[headers.link_len() + 10] ^= 0x40;
            frame
        }
    }
}

/// Returns the checksum field of a frame whose first payload word is 0. If the caller writes this value into that word,
/// the frame's checksum becomes 0.
fn checksum_of(headers: &Headers, frame: &[u8]) -> [u8; 2] {
    let at = headers.transport_start() + packet::checksum_offset(headers.protocol);
    // For UDP, the field is 0xffff in place of 0. No correction is needed, because a one's complement sum does not
    // distinguish 0xffff from 0.
    [frame[at], frame[at + 1]]
}

/// Generator of pseudo-random payload from a seed. Payloads differ between cases, and between the frames of a case.
pub(crate) struct Bytes {
    state: u64,
}

impl Bytes {
    pub(crate) fn new(seed: u64, case: u16) -> Self {
        Self { state: seed ^ u64::from(case) << 48 }
    }

    /// Generates the next `len` bytes with `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bytes.extend((z ^ (z >> 31)).to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.protocol == Protocol::Tcp { "TCP" } else { "UDP" };
        let version = if self.ip == Ip::V4 { 4 } else { 6 };
        write!(f, "{protocol} over IPv{version}")?;
        match self.load {
            Load::Super { size, segments, last } => {
                write!(f, ", {segments} segments of {size} bytes, the last of {last}")?;
            }
            Load::One { len, checksum } => {
                write!(f, ", {len} bytes, checksum {}", checksum.get_documentation().unwrap_or_default())?;
            }
            Load::Deep { len } => write!(f, ", checksum inside of {len} bytes in UDP")?,
            Load::Train { len, kind } => {
                write!(f, ", frames of {len} bytes, {}", kind.get_documentation().unwrap_or_default())?;
            }
        }
        match self.tcp_options {
            TcpOptions::None => {}
            TcpOptions::Timestamps => write!(f, ", timestamps")?,
            TcpOptions::Full => write!(f, ", 40 bytes of TCP options")?,
        }
        match (self.ip_options, self.ip) {
            (0, _) => {}
            (words, Ip::V4) => write!(f, ", {} bytes of IP options", 4 * words)?,
            (units, Ip::V6) => write!(f, ", an extension header of {} bytes", 8 * units)?,
        }
        let notes = [
            (self.cwr, "CWR"),
            (self.fin, "FIN"),
            (self.ip_id > u16::MAX - 64 && self.ip == Ip::V4, "the ID wraps"),
            (self.sequence > u32::MAX - 65_536, "the sequence number wraps"),
            (self.folds_to_zero, "a checksum of 0"),
            (self.scattered, "headers not contiguous"),
            (self.way == Way::UdpSocket, "by a UDP socket"),
            (self.way == Way::TagInSkb && self.vlan.is_some(), "the tag beside the frame"),
        ];
        for (_, note) in notes.iter().filter(|(is_so, _)| *is_so) {
            write!(f, ", {note}")?;
        }
        self.vlan.map_or(Ok(()), |tag| write!(f, ", VLAN {}", tag & 0xfff))
    }
}
