//! Large send: cuts a super-frame into the frames of the line.
//!
//! The payload is cut, then the headers are mended, then the sums are written: three functions and
//! one pass over the payload, whose sum is taken while it is copied. The output equals that of
//! Linux' software GSO to the byte, checked against the kernel itself.
//!
//! | kind | what changes from frame to frame |
//! |---|---|
//! | TCP | IP length, IPv4 ID and header sum, sequence number, FIN and PSH (last only), CWR (first only), checksum |
//! | UDP (USO) | IP length, IPv4 ID and header sum, UDP length, checksum |
//! | UDP fragments (UFO) | IP length, fragment offset and MF, header sum; the UDP checksum covers the whole datagram |
//!
//! Everything else (VLAN tags, options, extension headers, ECE, window, timestamps) is copied.
//! Sources: RFC 9293, RFC 3168 6.1.2 (CWR), RFC 791 and RFC 8200 4.5 (fragments), RFC 6864 (IDs).

use crate::checksum::{self, Sum, copy_and_sum};
use crate::layout::{
    self, FrameLayout, IPV6_HEADER_LEN, LengthFrom, Malformed, NEXT_HEADER_FRAGMENT, Network, Transport, UDP_HEADER_LEN,
};
use crate::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};

/// Most datagrams that one USO super-frame may hold, as in Linux (`UDP_MAX_SEGMENTS`).
pub const UDP_SEGMENTS_MAX: usize = 128;
/// A segment size that Linux keeps for another meaning (`GSO_BY_FRAGS`) and refuses from outside.
const SEGMENT_SIZE_RESERVED: u16 = 0xffff;
/// Fragment offsets count in units of 8 bytes (RFC 791 3.1, RFC 8200 4.5).
const FRAGMENT_UNIT: usize = 8;
const IPV6_FRAGMENT_HEADER_LEN: usize = 8;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
const IPV6_MORE_FRAGMENTS: u16 = 0x0001;

const TCP_CHECKSUM_OFFSET: usize = 16;
const UDP_CHECKSUM_OFFSET: usize = 6;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// How the IPv4 ID runs from segment to segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdRange {
    /// 0…0xFFFF, as Linux, virtio and NDIS USO count.
    #[default]
    Bits16,
    /// 0…0x7FFF, as NDIS `LSOv2` asks: the upper half belongs to packets that are not segmented.
    Bits15,
}

/// What a port decides about segmentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentPolicy {
    /// How IPv4 IDs run.
    pub id_range: IdRange,
    /// The identification for the fragments of the next IPv6 datagram (RFC 8200 4.5).
    pub fragment_id: u32,
}

/// Why a frame is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// The frame has no layout.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
    /// Segment size 0, 65535, or no multiple of 8 for fragments.
    #[error("segment size is not usable")]
    SegmentSize,
    /// The packet is not what the segmentation kind says.
    #[error("packet does not match the segmentation kind")]
    Kind,
    /// `start` and `offset` of the checksum lie outside the frame or not at the transport's field.
    #[error("checksum start or offset does not fit the frame")]
    ChecksumPlace,
    /// More than [`UDP_SEGMENTS_MAX`] datagrams.
    #[error("too many datagrams")]
    TooManySegments,
    /// A datagram or a segment of more than 64 KiB.
    #[error("datagram or segment too long")]
    TooLong,
}

/// Gives out the frames of one super-frame, one by one, into buffers that the caller lends.
///
/// It keeps no reference to the super-frame, so that a line without room can be waited for; the
/// caller hands the same bytes to every call.
#[derive(Clone, Debug)]
pub struct Segmenter {
    frame_len: usize,
    link_header_len: usize,
    work: Work,
    frames_left: usize,
}

#[derive(Clone, Debug)]
enum Work {
    Copy,
    Complete(PartialChecksum),
    Cut(Cut),
}

impl Segmenter {
    /// Plans the frames of `frame` as `meta` asks.
    ///
    /// # Errors
    /// When the request cannot be done on these bytes; nothing may then be sent.
    pub fn new(frame: &[u8], meta: &TxMeta, policy: &SegmentPolicy) -> Result<Self, Refused> {
        let link_header_len = layout::link_header_len(frame)?;
        let work = match meta.segmentation {
            Some(segmentation) => Cut::plan(frame, meta.checksum, segmentation, policy)?.map(Work::Cut),
            None => None,
        };
        let work = match (work, meta.checksum) {
            (Some(cut), _) => cut,
            (None, Some(partial)) => {
                if partial.field() + 2 > frame.len() {
                    return Err(Refused::ChecksumPlace);
                }
                Work::Complete(partial)
            }
            (None, None) => Work::Copy,
        };
        let frames_left = match &work {
            Work::Cut(cut) => cut.frames(),
            _ => 1,
        };
        Ok(Self { frame_len: frame.len(), link_header_len, work, frames_left })
    }

    /// Bytes of Ethernet header and VLAN tags of every frame: what an MTU does not count.
    pub fn link_header_len(&self) -> usize {
        self.link_header_len
    }

    /// Frames that are still to be written.
    pub fn frames_left(&self) -> usize {
        self.frames_left
    }

    /// Length of the next frame in bytes, 0 when all are written.
    pub fn next_len(&self) -> usize {
        match &self.work {
            _ if self.frames_left == 0 => 0,
            Work::Cut(cut) => cut.header_len() + cut.next_payload_len(),
            _ => self.frame_len,
        }
    }

    /// Writes the next frame to the front of `out` and returns its length, 0 when all are written.
    ///
    /// # Panics
    /// If `frame` is shorter than the one planned for, or `out` than [`Segmenter::next_len`]: a
    /// mistake of the caller, which no input can cause.
    pub fn write_next(&mut self, frame: &[u8], out: &mut [u8]) -> usize {
        let len = self.next_len();
        if len == 0 {
            return 0;
        }
        self.frames_left -= 1;
        let out = &mut out[..len];
        match &mut self.work {
            Work::Copy => out.copy_from_slice(&frame[..len]),
            Work::Complete(partial) => copy_and_complete(frame, *partial, out),
            Work::Cut(cut) => cut.write_next(frame, out),
        }
        len
    }

    /// Skips the next frame, which the line does not take.
    pub fn skip_next(&mut self) {
        if self.frames_left > 0 {
            self.frames_left -= 1;
            if let Work::Cut(cut) = &mut self.work {
                cut.advance();
            }
        }
    }
}

/// Sums from `start` to the end of the frame while copying. Linux writes 0xFFFF for a sum of 0,
/// whatever the protocol, when the frame is not segmented.
fn copy_and_complete(frame: &[u8], partial: PartialChecksum, out: &mut [u8]) {
    let start = usize::from(partial.start);
    out[..start].copy_from_slice(&frame[..start]);
    let sum = copy_and_sum(&frame[start..out.len()], &mut out[start..]);
    put16(out, partial.field(), non_zero(sum.checksum()));
}

#[derive(Clone, Debug)]
enum Kind {
    Tcp { sequence: u32, flags: u8 },
    Udp,
    Fragments { id: u32, udp_checksum: u16 },
}

/// A super-frame that really is cut.
#[derive(Clone, Debug)]
struct Cut {
    kind: Kind,
    layout: FrameLayout,
    /// Headers that are copied to every frame end here.
    headers_end: usize,
    segment_len: usize,
    /// Cut bytes that were written.
    written: usize,
    id: u16,
    id_range: IdRange,
    /// IPv4 header without length, ID, fragment bits (fragments only) and checksum.
    network_sum: Sum,
    /// Pseudo-header and transport header without all that changes.
    transport_sum: Sum,
}

impl Cut {
    /// `None` when the payload fits into one segment: the frame then goes out as it is.
    fn plan(
        frame: &[u8],
        partial: Option<PartialChecksum>,
        segmentation: Segmentation,
        policy: &SegmentPolicy,
    ) -> Result<Option<Self>, Refused> {
        if matches!(segmentation.size, 0 | SEGMENT_SIZE_RESERVED) {
            return Err(Refused::SegmentSize);
        }
        let layout = FrameLayout::parse(frame, LengthFrom::Frame)?;
        check_kind(&layout, segmentation)?;
        check_checksum_place(&layout, partial, segmentation.kind)?;
        let is_fragments = segmentation.kind == SegmentationKind::UdpFragments;
        let headers_end = if is_fragments { layout.transport_start } else { layout.payload_start };
        let segment_len = usize::from(segmentation.size);
        let cut_len = layout.packet_end - headers_end;
        if cut_len <= segment_len {
            return Ok(None);
        }
        if headers_end - layout.network_start + IPV6_FRAGMENT_HEADER_LEN + segment_len > usize::from(u16::MAX) {
            return Err(Refused::TooLong);
        }
        match segmentation.kind {
            SegmentationKind::Udp if cut_len > segment_len * UDP_SEGMENTS_MAX => return Err(Refused::TooManySegments),
            SegmentationKind::UdpFragments if segment_len % FRAGMENT_UNIT != 0 => return Err(Refused::SegmentSize),
            SegmentationKind::UdpFragments if cut_len > usize::from(u16::MAX) => return Err(Refused::TooLong),
            _ => {}
        }
        let kind = plan_kind(frame, &layout, segmentation.kind, policy);
        Ok(Some(Self {
            network_sum: network_sum(frame, &layout, is_fragments),
            transport_sum: transport_sum(frame, &layout, partial),
            id: be16(frame, layout.network_start + 4),
            id_range: policy.id_range,
            written: 0,
            kind,
            layout,
            headers_end,
            segment_len,
        }))
    }

    fn cut_len(&self) -> usize {
        self.layout.packet_end - self.headers_end
    }

    fn frames(&self) -> usize {
        self.cut_len().div_ceil(self.segment_len)
    }

    fn next_payload_len(&self) -> usize {
        self.segment_len.min(self.cut_len() - self.written)
    }

    /// Bytes of all headers of each frame, with the fragment header that IPv6 needs.
    fn header_len(&self) -> usize {
        let fragmented_v6 = matches!(self.kind, Kind::Fragments { .. }) && self.layout.network == Network::Ipv6;
        self.headers_end + if fragmented_v6 { IPV6_FRAGMENT_HEADER_LEN } else { 0 }
    }

    fn is_last(&self) -> bool {
        self.written + self.segment_len >= self.cut_len()
    }

    fn advance(&mut self) {
        self.written += self.next_payload_len();
        self.id = self.id.wrapping_add(1);
        if self.id_range == IdRange::Bits15 {
            self.id &= 0x7fff;
        }
    }

    fn write_next(&mut self, frame: &[u8], out: &mut [u8]) {
        let payload_sum = self.copy_payload(frame, out);
        self.mend_network_header(frame, out);
        self.mend_transport_header(out, payload_sum);
        self.advance();
    }

    fn copy_payload(&self, frame: &[u8], out: &mut [u8]) -> Sum {
        let from = self.headers_end + self.written;
        out[..self.headers_end].copy_from_slice(&frame[..self.headers_end]);
        copy_and_sum(&frame[from..from + self.next_payload_len()], &mut out[self.header_len()..])
    }

    fn mend_network_header(&self, frame: &[u8], out: &mut [u8]) {
        let packet_len = (out.len() - self.layout.network_start) as u16;
        match self.layout.network {
            Network::Ipv4 => self.mend_ipv4(frame, out, packet_len),
            _ => self.mend_ipv6(out, packet_len),
        }
    }

    fn mend_ipv4(&self, frame: &[u8], out: &mut [u8], packet_len: u16) {
        let at = self.layout.network_start;
        let mut sum = self.network_sum.plus(Sum::word(packet_len)).plus(Sum::word(self.id_now(frame)));
        put16(out, at + 2, packet_len);
        put16(out, at + 4, self.id_now(frame));
        if matches!(self.kind, Kind::Fragments { .. }) {
            let more = if self.is_last() { 0 } else { IPV4_MORE_FRAGMENTS };
            let field = (self.written / FRAGMENT_UNIT) as u16 | more;
            put16(out, at + 6, field);
            sum = sum.plus(Sum::word(field));
        }
        put16(out, at + 10, sum.checksum());
    }

    /// Fragments share the datagram's ID; segments count on from it.
    fn id_now(&self, frame: &[u8]) -> u16 {
        match self.kind {
            Kind::Fragments { .. } => be16(frame, self.layout.network_start + 4),
            _ => self.id,
        }
    }

    fn mend_ipv6(&self, out: &mut [u8], packet_len: u16) {
        put16(out, self.layout.network_start + 4, packet_len - IPV6_HEADER_LEN as u16);
        if let Kind::Fragments { id, .. } = self.kind {
            let more = if self.is_last() { 0 } else { IPV6_MORE_FRAGMENTS };
            let header = self.headers_end;
            out[header] = out[self.layout.protocol_at];
            out[header + 1] = 0;
            put16(out, header + 2, self.written as u16 | more);
            out[header + 4..header + 8].copy_from_slice(&id.to_be_bytes());
            out[self.layout.protocol_at] = NEXT_HEADER_FRAGMENT;
        }
    }

    fn mend_transport_header(&self, out: &mut [u8], payload_sum: Sum) {
        let at = self.layout.transport_start;
        let transport_len = (out.len() - at) as u16;
        match self.kind {
            Kind::Tcp { sequence, flags } => {
                let sequence = sequence.wrapping_add(self.written as u32);
                let flags = self.tcp_flags(flags);
                out[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
                out[at + 13] = flags;
                let sum = (self.transport_sum.plus(payload_sum))
                    .plus(Sum::word((sequence >> 16) as u16))
                    .plus(Sum::word(sequence as u16))
                    .plus(Sum::word(u16::from(flags)))
                    .plus(Sum::word(transport_len));
                // Linux writes a segment's sum of 0 as it is: only UDP gives 0 a meaning.
                put16(out, at + TCP_CHECKSUM_OFFSET, sum.checksum());
            }
            Kind::Udp => {
                // The length counts twice: in the pseudo-header and in the header.
                let lengths = Sum::word(transport_len).plus(Sum::word(transport_len));
                let sum = self.transport_sum.plus(payload_sum).plus(lengths);
                put16(out, at + 4, transport_len);
                put16(out, at + UDP_CHECKSUM_OFFSET, non_zero(sum.checksum()));
            }
            Kind::Fragments { udp_checksum, .. } if self.written == 0 => {
                put16(out, self.header_len() + UDP_CHECKSUM_OFFSET, udp_checksum);
            }
            Kind::Fragments { .. } => {}
        }
    }

    fn tcp_flags(&self, flags: u8) -> u8 {
        let first = if self.written == 0 { 0 } else { TCP_CWR };
        let last = if self.is_last() { 0 } else { TCP_FIN | TCP_PSH };
        flags & !(first | last)
    }
}

fn check_kind(layout: &FrameLayout, segmentation: Segmentation) -> Result<(), Refused> {
    let fits = match segmentation.kind {
        SegmentationKind::Tcp4 => layout.network == Network::Ipv4 && layout.transport == Transport::Tcp,
        SegmentationKind::Tcp6 => layout.network == Network::Ipv6 && layout.transport == Transport::Tcp,
        // UDP has no CWR: Linux refuses the bit.
        SegmentationKind::Udp => layout.transport == Transport::Udp && !segmentation.ecn,
        SegmentationKind::UdpFragments => layout.transport == Transport::Udp,
    };
    if fits { Ok(()) } else { Err(Refused::Kind) }
}

/// The checksum that a segmentation completes is the transport's. TCP may leave it out (the sum of
/// the pseudo-header is then made here), as may UFO; USO must not.
fn check_checksum_place(
    layout: &FrameLayout,
    partial: Option<PartialChecksum>,
    kind: SegmentationKind,
) -> Result<(), Refused> {
    let field = match kind {
        SegmentationKind::Tcp4 | SegmentationKind::Tcp6 => TCP_CHECKSUM_OFFSET,
        SegmentationKind::Udp | SegmentationKind::UdpFragments => UDP_CHECKSUM_OFFSET,
    };
    match partial {
        Some(p) if usize::from(p.start) == layout.transport_start && usize::from(p.offset) == field => Ok(()),
        None if kind != SegmentationKind::Udp => Ok(()),
        _ => Err(Refused::ChecksumPlace),
    }
}

fn plan_kind(frame: &[u8], layout: &FrameLayout, kind: SegmentationKind, policy: &SegmentPolicy) -> Kind {
    let at = layout.transport_start;
    match kind {
        SegmentationKind::Tcp4 | SegmentationKind::Tcp6 => {
            let sequence = u32::from(be16(frame, at + 4)) << 16 | u32::from(be16(frame, at + 6));
            Kind::Tcp { sequence, flags: frame[at + 13] }
        }
        SegmentationKind::Udp => Kind::Udp,
        SegmentationKind::UdpFragments => {
            Kind::Fragments { id: policy.fragment_id, udp_checksum: datagram_checksum(frame, layout) }
        }
    }
}

/// The checksum of a whole datagram, before it is cut into fragments.
fn datagram_checksum(frame: &[u8], layout: &FrameLayout) -> u16 {
    let at = layout.transport_start;
    let sum = checksum::pseudo_header(frame, layout, layout.transport_len() as u32)
        .plus(checksum::sum(&frame[at..at + UDP_CHECKSUM_OFFSET]))
        .plus(checksum::sum(&frame[at + UDP_HEADER_LEN..layout.packet_end]));
    non_zero(sum.checksum())
}

/// The part of the IPv4 header's sum that all frames share.
fn network_sum(frame: &[u8], layout: &FrameLayout, is_fragments: bool) -> Sum {
    if layout.network != Network::Ipv4 {
        return Sum::ZERO;
    }
    let header = &frame[layout.network_start..layout.transport_start];
    let fragment_bits = if is_fragments { Sum::ZERO } else { checksum::sum(&header[6..8]) };
    checksum::sum(&header[..2]).plus(fragment_bits).plus(checksum::sum(&header[8..10])).plus(checksum::sum(&header[12..]))
}

/// The part of the transport's sum that all frames share: without length, payload and what
/// [`Cut::mend_transport_header`] changes.
fn transport_sum(frame: &[u8], layout: &FrameLayout, partial: Option<PartialChecksum>) -> Sum {
    let header = &frame[layout.transport_start..layout.payload_start];
    let pseudo = match partial {
        // The host's own pseudo-header sum, less its length: it knows the final destination of a
        // source route.
        Some(p) => Sum::word(be16(frame, p.field())).minus(long_word(layout.transport_len())),
        None => checksum::pseudo_header(frame, layout, 0),
    };
    let fixed = match layout.transport {
        Transport::Tcp => checksum::sum(&header[..4])
            .plus(checksum::sum(&header[8..12]))
            .plus(Sum::word(u16::from(header[12]) << 8))
            .plus(checksum::sum(&header[14..16]))
            .plus(checksum::sum(&header[18..])),
        _ => checksum::sum(&header[..4]),
    };
    pseudo.plus(fixed)
}

fn long_word(value: usize) -> Sum {
    Sum::word((value >> 16) as u16).plus(Sum::word(value as u16))
}

fn non_zero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests;
