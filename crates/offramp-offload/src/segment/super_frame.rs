//! A super-frame of several segments: the words common to all its frames, and the words that change from frame to
//! frame.

use super::{Refused, SegmentPolicy, UDP_SEGMENTS_MAX};
use crate::checksum::{self, FrameBytes, Head, HeadWords, Run, Stretch, Sum};
use crate::frame::Frame;
use crate::layout::{
    FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_FRAGMENT_OFFSET, IPV4_ID_OFFSET, IPV4_TOTAL_LEN_OFFSET,
    IPV6_FRAGMENT_HEADER_LEN, IPV6_HEADER_LEN, IPV6_PAYLOAD_LEN_OFFSET, NEXT_HEADER_FRAGMENT, Network,
    TCP_CHECKSUM_OFFSET, TCP_CWR, TCP_FIN, TCP_FLAGS_OFFSET, TCP_PSH, TCP_SEQUENCE_OFFSET, Transport,
    UDP_CHECKSUM_OFFSET, UDP_HEADER_LEN, UDP_LENGTH_OFFSET, be16, put16,
};
use crate::meta::{Cwr, PartialChecksum, Segmentation, SegmentationKind};
use crate::vlan::TagChange;

/// A segment size with a special meaning in Linux (`GSO_BY_FRAGS`), refused in requests.
const SEGMENT_SIZE_RESERVED: u16 = 0xffff;
/// Unit of fragment offsets: 8 bytes (RFC 791 3.1, RFC 8200 4.5).
const FRAGMENT_UNIT: usize = 8;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
const IPV6_MORE_FRAGMENTS: u16 = 0x0001;

/// Index of the IPv4 ID in the [`HeadWords`].
const ID_WORD: usize = 0;
const NETWORK_CHECKSUM_WORD: usize = 1;
const SEQUENCE_HIGH_WORD: usize = 2;
const SEQUENCE_LOW_WORD: usize = 3;

#[derive(Clone, Debug)]
enum Kind {
    /// TCP segments. `first_only` is CWR if only the first frame carries CWR, else 0.
    Tcp {
        sequence: u32,
        flags: u8,
        first_only: u8,
    },
    Udp,
    Fragments {
        id: u32,
        udp_checksum: u16,
    },
}

/// The position of a frame among the frames of a super-frame. Frames with the same `Shape` have some header words in
/// common, which are computed once per shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    First,
    Middle,
    Last,
}

/// A super-frame of several segments.
#[derive(Clone, Debug)]
pub(super) struct SuperFrame {
    kind: Kind,
    layout: FrameLayout,
    /// Offset of the end of the headers copied to every frame.
    headers_end: usize,
    segment_len: usize,
    /// Number of payload bytes already written.
    written: usize,
    id: u16,
    /// Sum of the IPv4 header without length, ID, checksum and, for fragments, the fragment bits.
    fixed_network_sum: Sum,
    /// Sum of the pseudo-header and the transport header without the changing words.
    fixed_transport_sum: Sum,
    /// Value of `frames_left` at which the frames with the next [`Shape`] start.
    reshape_at: usize,
    /// The [`Shape`] of the frames to which the fields below apply.
    shape: Shape,
    /// Length of a frame of this shape, in bytes.
    frame_len: usize,
    /// True if the headers of this shape fit into a [`Head`], and the frame has at least [`Head::LEN_MAX`] bytes.
    has_head: bool,
    /// `fixed_network_sum` plus the words that are equal in all frames of this shape.
    network_sum: Sum,
    /// `fixed_transport_sum` plus the words that are equal in all frames of this shape.
    transport_sum: Sum,
}

impl SuperFrame {
    /// Plans a super-frame. Returns `None` if the payload fits into one segment: such a frame is sent unsegmented.
    pub(super) fn plan(
        frame: &Frame<'_>,
        segmentation: Segmentation,
        policy: &SegmentPolicy,
    ) -> Result<Option<Self>, Refused> {
        if matches!(segmentation.size, 0 | SEGMENT_SIZE_RESERVED) {
            return Err(Refused::SegmentSize);
        }
        let partial = frame.request().checksum;
        let is_fragments = segmentation.kind == SegmentationKind::UdpFragments;
        if is_fragments && !frame.shared().is_empty() {
            return Err(Refused::Kind); // The first fragment has the checksum of the whole datagram.
        }
        let shared_len = frame.shared_len();
        let (frame, layout) = frame.parts()?;
        let mut layout = *layout;
        layout.packet_end += shared_len;
        check_kind(&layout, segmentation)?;
        check_checksum_place(&layout, partial, segmentation.kind)?;
        let headers_end = if is_fragments { layout.transport_start } else { layout.payload_start };
        let segment_len = usize::from(segmentation.size);
        let segmented_len = layout.packet_end - headers_end;
        if segmented_len <= segment_len {
            return Ok(None);
        }
        if headers_end - layout.network_start + IPV6_FRAGMENT_HEADER_LEN + segment_len > usize::from(u16::MAX) {
            return Err(Refused::TooLong);
        }
        match segmentation.kind {
            SegmentationKind::Udp if segmented_len > segment_len * UDP_SEGMENTS_MAX => {
                return Err(Refused::TooManySegments);
            }
            SegmentationKind::UdpFragments if segment_len % FRAGMENT_UNIT != 0 => return Err(Refused::SegmentSize),
            SegmentationKind::UdpFragments if segmented_len > usize::from(u16::MAX) => return Err(Refused::TooLong),
            _ => {}
        }
        Ok(Some(Self {
            kind: plan_kind(frame, &layout, segmentation, policy),
            headers_end,
            segment_len,
            written: 0,
            id: be16(frame, layout.network_start + IPV4_ID_OFFSET),
            fixed_network_sum: network_sum(frame, &layout, is_fragments),
            fixed_transport_sum: transport_sum(frame, &layout, partial),
            reshape_at: usize::MAX,
            shape: Shape::First,
            frame_len: 0,
            has_head: false,
            network_sum: Sum::ZERO,
            transport_sum: Sum::ZERO,
            layout,
        }))
    }

    /// Returns the same super-frame after one tag was added or removed.
    pub(super) fn after_tag_change(&self, change: TagChange) -> Self {
        Self {
            layout: self.layout.after_tag_change(change),
            headers_end: self.headers_end.wrapping_add_signed(change.added_len()),
            reshape_at: usize::MAX,
            ..self.clone()
        }
    }

    fn segmented_len(&self) -> usize {
        self.layout.packet_end - self.headers_end
    }

    pub(super) fn frames(&self) -> usize {
        self.segmented_len().div_ceil(self.segment_len)
    }

    fn is_fragments(&self) -> bool {
        matches!(self.kind, Kind::Fragments { .. })
    }

    /// Returns the length of each frame's headers in bytes, including IPv6's fragment header.
    fn header_len(&self) -> usize {
        let fragmented_v6 = self.is_fragments() && self.layout.network == Network::Ipv6;
        self.headers_end + if fragmented_v6 { IPV6_FRAGMENT_HEADER_LEN } else { 0 }
    }

    pub(super) fn next_len(&self, frames_left: usize) -> usize {
        let payload_len = if frames_left > 1 { self.segment_len } else { self.segmented_len() - self.written };
        self.header_len() + payload_len
    }

    #[inline]
    pub(super) fn advance(&mut self, count: usize) {
        self.written += count * self.segment_len;
        self.id = self.id.wrapping_add(count as u16);
    }

    /// Writes the next frame and returns its length. `frames_left` includes this frame.
    #[inline]
    pub(super) fn write_next(&mut self, frame: FrameBytes<'_>, out: &mut [u8], frames_left: usize) -> usize {
        let len = self.next_len(frames_left);
        self.write_some(frame, &mut out[..len], len, 1, frames_left);
        len
    }

    /// Writes up to `count` next frames with the same [`Shape`], each to the front of one slot of `stride` bytes.
    /// Returns the number of written frames.
    pub(super) fn write_some(
        &mut self,
        frame: FrameBytes<'_>,
        out: &mut [u8],
        stride: usize,
        count: usize,
        frames_left: usize,
    ) -> usize {
        if frames_left <= self.reshape_at {
            self.take_shape(frames_left);
        }
        let count = count.min(frames_left - self.reshape_at);
        let written = if self.has_head { self.write_with_head(frame, out, stride, count) } else { 0 };
        if written > 0 {
            self.advance(written);
            return written;
        }
        self.write_without_head(frame, &mut out[..self.frame_len]);
        self.advance(1);
        1
    }

    /// Writes up to `count` frames with the same [`Shape`], each to the front of one slot of `stride` bytes. Returns
    /// the number of written frames: the frames whose payload lies in the frame's next stretch of memory.
    fn write_with_head(&self, frame: FrameBytes<'_>, out: &mut [u8], stride: usize, count: usize) -> usize {
        let from = self.headers_end + self.written;
        let run = Run { segment_len: self.frame_len - self.headers_end, stride };
        let stretch = frame.from(from);
        let count = count.min(stretch.len() / run.segment_len);
        let Some(head) = self.head(frame.private).filter(|_| count > 0) else { return 0 };
        let changes = self.changes();
        let len = count * run.segment_len;
        match stretch {
            Stretch::Private(payload) => {
                checksum::write_frames(&run, &head, &payload[..len], out, |n| changes.of(n));
            }
            Stretch::Shared(payload) => {
                checksum::write_frames(&run, &head, payload.part(0..len), out, |n| changes.of(n));
            }
        }
        count
    }

    /// Returns the headers of at most `count` next frames with the same [`Shape`]. Returns `None` if the headers are
    /// too long or the frames too short, and for fragments.
    pub(super) fn heads(&mut self, frame: FrameBytes<'_>, count: usize, frames_left: usize) -> Option<Heads> {
        if frames_left <= self.reshape_at {
            self.take_shape(frames_left);
        }
        if !self.has_head {
            return None;
        }
        let mut bytes = *frame.private.first_chunk()?;
        for (at, word) in [self.network_len(), self.transport_word(frame.private)] {
            put16(&mut bytes, at, word);
        }
        Some(Heads {
            bytes,
            len: self.headers_end,
            payload_at: self.headers_end + self.written,
            segment_len: self.frame_len - self.headers_end,
            frames: count.min(frames_left - self.reshape_at),
            is_tcp: matches!(self.kind, Kind::Tcp { .. }),
            changes: self.changes(),
        })
    }

    /// Returns the headers of the frames with the current [`Shape`], with the offsets of the words that differ from
    /// frame to frame. Returns `None` for a frame shorter than the minimum for a head.
    fn head<'a>(&self, frame: &'a [u8]) -> Option<Head<'a>> {
        let (network, transport) = (self.layout.network_start, self.layout.transport_start);
        let is_tcp = matches!(self.kind, Kind::Tcp { .. });
        let mut places = [Head::NOWHERE; HeadWords::COUNT];
        if self.layout.network == Network::Ipv4 {
            places[ID_WORD] = (network + IPV4_ID_OFFSET) as u8;
            places[NETWORK_CHECKSUM_WORD] = (network + IPV4_CHECKSUM_OFFSET) as u8;
        }
        if is_tcp {
            places[SEQUENCE_HIGH_WORD] = (transport + TCP_SEQUENCE_OFFSET) as u8;
            places[SEQUENCE_LOW_WORD] = (transport + TCP_SEQUENCE_OFFSET + 2) as u8;
        }
        Some(Head {
            bytes: frame.first_chunk()?,
            len: self.headers_end,
            fixed: [self.network_len(), self.transport_word(frame)].map(|(at, value)| (at as u8, value)),
            places,
            checksum_at: self.layout.checksum_field(),
            // Linux writes a TCP checksum of 0 unchanged, because 0 has a special meaning only in UDP.
            checksum_zero: if is_tcp { 0 } else { u16::MAX },
        })
    }

    /// Returns the header words of the next frames that differ from frame to frame.
    fn changes(&self) -> Changes {
        let (sequence, sequence_step) = match self.kind {
            Kind::Tcp { sequence, .. } => (sequence.wrapping_add(self.written as u32), self.segment_len as u32),
            _ => (0, 0),
        };
        Changes {
            id: self.id,
            network_sum: self.network_sum.fold(),
            sequence,
            sequence_step,
            transport_sum: self.transport_sum,
        }
    }

    /// Writes one frame without a [`Head`]. Used for a frame with long headers, a short frame, a fragment, or
    /// a frame whose payload lies in several stretches of memory.
    #[inline(never)]
    fn write_without_head(&self, frame: FrameBytes<'_>, out: &mut [u8]) {
        out[..self.headers_end].copy_from_slice(&frame.private[..self.headers_end]);
        self.write_shape(out);
        let from = self.headers_end + self.written;
        let payload_sum = frame.copy_and_sum(from, &mut out[self.header_len()..]);
        if self.is_fragments() {
            self.write_fragment_fields(frame.private, out);
        } else {
            self.write_id(out);
            let is_tcp = matches!(self.kind, Kind::Tcp { .. });
            self.changes().write_transport(0, is_tcp, &mut out[self.layout.transport_start..], payload_sum);
        }
    }

    /// Computes the header words common to all frames with the next [`Shape`].
    #[inline(never)]
    fn take_shape(&mut self, frames_left: usize) {
        (self.shape, self.reshape_at) = match frames_left {
            1 => (Shape::Last, 0),
            _ if self.written == 0 && self.first_differs() => (Shape::First, frames_left - 1),
            _ => (Shape::Middle, 1),
        };
        self.frame_len = self.next_len(frames_left);
        self.has_head = !self.is_fragments() && self.headers_end <= Head::LEN_MAX && self.frame_len >= Head::LEN_MAX;
        let packet_len = (self.frame_len - self.layout.network_start) as u16;
        let transport_len = Sum::word((self.frame_len - self.layout.transport_start) as u16);
        self.network_sum = self.fixed_network_sum.plus(Sum::word(packet_len));
        let added = match self.kind {
            Kind::Tcp { flags, first_only, .. } => {
                Sum::word(u16::from(flags_of(flags, first_only, self.shape))).plus(transport_len)
            }
            // The UDP length is added twice: for the pseudo-header and for the UDP header.
            _ => transport_len.plus(transport_len),
        };
        self.transport_sum = self.fixed_transport_sum.plus(added);
    }

    fn first_differs(&self) -> bool {
        match self.kind {
            Kind::Tcp { flags, first_only, .. } => flags & first_only != 0,
            Kind::Udp => false,
            Kind::Fragments { .. } => true,
        }
    }

    /// Writes the header fields common to all frames with the same [`Shape`].
    fn write_shape(&self, headers: &mut [u8]) {
        let (at, len) = self.network_len();
        put16(headers, at, len);
        if !self.is_fragments() {
            let (at, word) = self.transport_word(headers);
            put16(headers, at, word);
        }
    }

    /// Returns the offset and the value of the IP header's length field in this shape.
    fn network_len(&self) -> (usize, u16) {
        let at = self.layout.network_start;
        let packet_len = (self.frame_len - at) as u16;
        match self.layout.network {
            Network::Ipv4 => (at + IPV4_TOTAL_LEN_OFFSET, packet_len),
            _ => (at + IPV6_PAYLOAD_LEN_OFFSET, packet_len - IPV6_HEADER_LEN as u16),
        }
    }

    /// Returns the offset and the value of the transport header's word that differs between shapes. The word contains
    /// TCP's flags, or UDP's length.
    fn transport_word(&self, headers: &[u8]) -> (usize, u16) {
        let at = self.layout.transport_start;
        match self.kind {
            Kind::Tcp { flags, first_only, .. } => {
                let at = at + TCP_FLAGS_OFFSET - 1;
                (at, u16::from_be_bytes([headers[at], flags_of(flags, first_only, self.shape)]))
            }
            _ => (at + UDP_LENGTH_OFFSET, (self.frame_len - at) as u16),
        }
    }

    fn write_id(&self, out: &mut [u8]) {
        if self.layout.network == Network::Ipv4 {
            let at = self.layout.network_start;
            put16(out, at + IPV4_ID_OFFSET, self.id);
            put16(out, at + IPV4_CHECKSUM_OFFSET, self.network_sum.plus(Sum::word(self.id)).checksum());
        }
    }

    /// Writes the header fields that make the frame in `out` a fragment. All fragments carry the datagram's ID, and the
    /// first fragment carries the datagram's checksum.
    fn write_fragment_fields(&self, frame: &[u8], out: &mut [u8]) {
        let Kind::Fragments { id, udp_checksum } = self.kind else { return };
        let at = self.layout.network_start;
        let more = |bit: u16| if self.shape == Shape::Last { 0 } else { bit };
        if self.layout.network == Network::Ipv4 {
            let field = (self.written / FRAGMENT_UNIT) as u16 | more(IPV4_MORE_FRAGMENTS);
            let id = be16(frame, at + IPV4_ID_OFFSET);
            put16(out, at + IPV4_FRAGMENT_OFFSET, field);
            let sum = self.network_sum.plus(Sum::word(id)).plus(Sum::word(field));
            put16(out, at + IPV4_CHECKSUM_OFFSET, sum.checksum());
        } else {
            let header = self.headers_end;
            out[header] = out[self.layout.protocol_at];
            out[header + 1] = 0;
            put16(out, header + 2, self.written as u16 | more(IPV6_MORE_FRAGMENTS));
            out[header + 4..header + 8].copy_from_slice(&id.to_be_bytes());
            out[self.layout.protocol_at] = NEXT_HEADER_FRAGMENT;
        }
        if self.shape == Shape::First {
            put16(out, self.header_len() + UDP_CHECKSUM_OFFSET, udp_checksum);
        }
    }
}

/// The header fields that differ between frames of the same [`Shape`].
#[derive(Clone, Copy, Debug)]
struct Changes {
    id: u16,
    /// Folded `SuperFrame::network_sum`.
    network_sum: u16,
    sequence: u32,
    sequence_step: u32,
    transport_sum: Sum,
}

/// The headers of the segments of a super-frame, for a caller that writes the frames itself.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    /// All headers, except the IPv4 ID, the IPv4 header checksum and the fields written by [`Heads::write_transport`].
    /// Bytes past `len` can have any value.
    pub(crate) bytes: [u8; Head::LEN_MAX],
    /// Length of all headers in bytes.
    pub(crate) len: usize,
    /// Offset of the first frame's payload in the super-frame. The payloads of the later frames follow without a gap.
    pub(crate) payload_at: usize,
    /// Payload length of each frame in bytes.
    pub(crate) segment_len: usize,
    /// Number of frames with these headers.
    pub(crate) frames: usize,
    is_tcp: bool,
    changes: Changes,
}

impl Heads {
    /// Maximum length of all headers, in bytes.
    pub(crate) const LEN_MAX: usize = Head::LEN_MAX;

    /// Returns the IPv4 ID of the `n`th frame.
    #[inline]
    pub(crate) fn id(&self, n: usize) -> u16 {
        self.changes.id(n)
    }

    /// Writes the last `count` bytes of the headers to the end of `place`. After the call, the other bytes of `place`
    /// can have any value, because a `count` of at most 32 is copied as one block of 32 bytes.
    #[inline]
    pub(crate) fn copy_last_to(&self, place: &mut [u8], count: usize) {
        const USUAL: usize = 32;
        match (self.bytes[..self.len].last_chunk::<USUAL>(), place.last_chunk_mut()) {
            (Some(last), Some(place)) if count <= USUAL => *place = *last,
            _ => {
                let at = place.len() - count;
                place[at..].copy_from_slice(&self.bytes[self.len - count..self.len]);
            }
        }
    }

    /// Writes sequence number and checksum of the `n`th frame to `header`, a copy of the transport header in
    /// [`Heads::bytes`].
    #[inline]
    pub(crate) fn write_transport(&self, n: usize, header: &mut [u8], payload_sum: Sum) {
        self.changes.write_transport(n, self.is_tcp, header, payload_sum);
    }
}

impl Changes {
    #[inline]
    fn id(&self, n: usize) -> u16 {
        self.id.wrapping_add(n as u16)
    }

    #[inline]
    fn sequence(&self, n: usize) -> u32 {
        self.sequence.wrapping_add((n as u32).wrapping_mul(self.sequence_step))
    }

    /// Linux writes a TCP checksum of 0 unchanged, because 0 has a special meaning only in UDP.
    #[inline]
    fn write_transport(&self, n: usize, is_tcp: bool, header: &mut [u8], payload_sum: Sum) {
        let sum = self.transport_sum.plus(payload_sum);
        if !is_tcp {
            put16(header, UDP_CHECKSUM_OFFSET, sum.checksum_not_zero());
            return;
        }
        let sequence = self.sequence(n);
        header[TCP_SEQUENCE_OFFSET..TCP_SEQUENCE_OFFSET + 4].copy_from_slice(&sequence.to_be_bytes());
        put16(header, TCP_CHECKSUM_OFFSET, sum.plus(Sum::long(sequence)).checksum());
    }

    /// Returns the header words of the `n`th next frame that differ from frame to frame, and the sum of the frame's
    /// headers.
    #[inline]
    fn of(&self, n: usize) -> (HeadWords, Sum) {
        let id = self.id(n);
        let (sum, carry) = self.network_sum.overflowing_add(id);
        let checksum = !(sum + u16::from(carry));
        let sequence = self.sequence(n);
        let words = HeadWords::new(u32::from(id) << 16 | u32::from(checksum), sequence);
        (words, self.transport_sum.plus(Sum::long(sequence)))
    }
}

/// Returns the TCP flags of the frames with this [`Shape`]: only the first frame carries `first_only`, and only the
/// last carries FIN and PSH.
fn flags_of(flags: u8, first_only: u8, shape: Shape) -> u8 {
    match shape {
        Shape::First => flags & !(TCP_FIN | TCP_PSH),
        Shape::Middle => flags & !(TCP_FIN | TCP_PSH | first_only),
        Shape::Last => flags & !first_only,
    }
}

fn check_kind(layout: &FrameLayout, segmentation: Segmentation) -> Result<(), Refused> {
    let fits = match segmentation.kind {
        SegmentationKind::Tcp4 => layout.network == Network::Ipv4 && layout.transport == Transport::Tcp,
        SegmentationKind::Tcp6 => layout.network == Network::Ipv6 && layout.transport == Transport::Tcp,
        // UDP has no CWR, and Linux refuses the bit.
        SegmentationKind::Udp => layout.transport == Transport::Udp && segmentation.cwr == Cwr::Unmarked,
        SegmentationKind::UdpFragments => layout.transport == Transport::Udp,
    };
    if fits { Ok(()) } else { Err(Refused::Kind) }
}

/// Checks that a requested checksum names the transport's field. TCP and UFO requests can omit the checksum, because
/// this code computes a missing sum of the pseudo-header. USO requests must not omit the checksum.
fn check_checksum_place(
    layout: &FrameLayout,
    partial: Option<PartialChecksum>,
    kind: SegmentationKind,
) -> Result<(), Refused> {
    match partial {
        Some(p) if usize::from(p.start) == layout.transport_start && p.field() == layout.checksum_field() => Ok(()),
        None if kind != SegmentationKind::Udp => Ok(()),
        _ => Err(Refused::ChecksumPlace),
    }
}

fn plan_kind(frame: &[u8], layout: &FrameLayout, segmentation: Segmentation, policy: &SegmentPolicy) -> Kind {
    let at = layout.transport_start;
    match segmentation.kind {
        SegmentationKind::Tcp4 | SegmentationKind::Tcp6 => {
            let sequence_at = at + TCP_SEQUENCE_OFFSET;
            let sequence = u32::from(be16(frame, sequence_at)) << 16 | u32::from(be16(frame, sequence_at + 2));
            let first_only = if segmentation.cwr == Cwr::All { 0 } else { TCP_CWR };
            Kind::Tcp { sequence, flags: frame[at + TCP_FLAGS_OFFSET], first_only }
        }
        SegmentationKind::Udp => Kind::Udp,
        SegmentationKind::UdpFragments => {
            Kind::Fragments { id: policy.fragment_id, udp_checksum: datagram_checksum(frame, layout) }
        }
    }
}

/// Computes the UDP checksum over the whole datagram. Only the first fragment carries the checksum.
fn datagram_checksum(frame: &[u8], layout: &FrameLayout) -> u16 {
    let at = layout.transport_start;
    let sum = checksum::pseudo_header(frame, layout, layout.transport_len() as u32)
        .plus(checksum::sum(&frame[at..at + UDP_CHECKSUM_OFFSET]))
        .plus(checksum::sum(&frame[at + UDP_HEADER_LEN..layout.packet_end]));
    sum.checksum_not_zero()
}

/// Returns the sum of the IPv4 header words that are equal in all frames.
fn network_sum(frame: &[u8], layout: &FrameLayout, is_fragments: bool) -> Sum {
    if layout.network != Network::Ipv4 {
        return Sum::ZERO;
    }
    let header = &frame[layout.network_start..layout.transport_start];
    let fragment_bits = if is_fragments { Sum::ZERO } else { checksum::sum(&header[6..8]) };
    checksum::sum(&header[..2])
        .plus(fragment_bits)
        .plus(checksum::sum(&header[8..10]))
        .plus(checksum::sum(&header[12..]))
}

/// Returns the sum of the pseudo-header and of the transport header words that are equal in all frames. Length, payload
/// and the words added by [`SuperFrame::take_shape`] and [`Changes::write_transport`] are excluded.
fn transport_sum(frame: &[u8], layout: &FrameLayout, partial: Option<PartialChecksum>) -> Sum {
    let header = &frame[layout.transport_start..layout.payload_start];
    let pseudo = match partial {
        // Take the pseudo-header's sum from the host's checksum field, minus the length: only the host knows the final
        // destination of a source route.
        Some(p) => Sum::word(be16(frame, p.field())).minus(Sum::long(layout.transport_len() as u32)),
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
