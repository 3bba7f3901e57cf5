//! One aggregate: how it starts, what may join, how it is closed.

use super::Telling;
use super::head::{
    Common, Fields, IPV4_CHECKSUM_OFFSET, IPV4_TOTAL_LEN_OFFSET, IPV6_PAYLOAD_LEN_OFFSET, Key, TCP_CHECKSUM_OFFSET,
    TCP_FLAGS_OFFSET, TCP_LAST, UDP_CHECKSUM_OFFSET, UDP_LENGTH_OFFSET, fold,
};
use crate::checksum::copy_and_sum;
use crate::layout::{FrameLayout, IPV6_HEADER_LEN, Network, Transport};
use crate::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind};

/// What became of a frame that was held against an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// Joined; more may follow.
    Open,
    /// Joined; nothing may follow.
    Last,
    /// It does not continue the aggregate. Nothing was verified.
    Refused,
    /// A checksum is wrong. Nothing of it was kept.
    Bad,
}

/// What became of a frame that might be the first of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// It is held.
    Held,
    /// Its headers are of no kind that is held. Nothing was verified.
    Refused,
    /// A checksum is wrong.
    Bad,
}

/// A frame that might be the first of an aggregate, and all that is known of it.
#[derive(Debug)]
pub(super) struct First<'a> {
    pub(super) frame: &'a [u8],
    pub(super) layout: &'a FrameLayout,
    pub(super) fields: Fields,
    pub(super) key: Key,
    pub(super) limits: Limits,
    pub(super) hash: Option<u32>,
    pub(super) now_ns: u64,
}

/// How large an aggregate may grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// IP bytes.
    pub(super) packet_len_max: usize,
    /// Frames.
    pub(super) segments_max: u16,
}

/// An aggregate that is held, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) key: Key,
    /// Bytes in the buffer.
    len: usize,
    /// Bytes that the buffer may hold.
    len_max: usize,
    /// The sequence number that follows; not counted for UDP.
    seq_next: u32,
    /// Frames joined.
    pub(super) segments: u16,
    /// Frames that may be joined.
    segments_max: u16,
    /// Payload of the first frame: of every frame but the last.
    size: u16,
    /// IPv4 ID of the first frame.
    id: u16,
    /// What is added to the ID per frame, 1 or 0; known from the second frame on.
    id_step: u16,
    /// FIN and PSH of the last frame.
    flags_last: u8,
    kind: SegmentationKind,
    is_ipv6: bool,
    network_start: u16,
    transport_start: u16,
    payload_start: u16,
    hash: Option<u32>,
    /// Time of the first frame.
    pub(super) started_ns: u64,
    common: Common,
}

impl Flow {
    /// What a slot that holds nothing contains.
    pub(super) const VACANT: Self = Self {
        key: Key::NONE,
        len: 0,
        len_max: 0,
        seq_next: 0,
        segments: 0,
        segments_max: 0,
        size: 0,
        id: 0,
        id_step: 0,
        flags_last: 0,
        kind: SegmentationKind::Tcp4,
        is_ipv6: false,
        network_start: 0,
        transport_start: 0,
        payload_start: 0,
        hash: None,
        started_ns: 0,
        common: Common::VACANT,
    };

    /// Holds a first frame: copies it, without padding, to `buffer` and verifies it in the same pass.
    /// The slot stays vacant unless that went well.
    pub(super) fn start(&mut self, first: &First<'_>, buffer: &mut [u8]) -> Start {
        let First { frame, layout, fields, limits, .. } = first;
        if !self.common.set(frame, layout, fields) {
            return Start::Refused;
        }
        self.len = layout.payload_start;
        self.len_max = layout.network_start + limits.packet_len_max;
        self.seq_next = fields.seq;
        self.segments = 0;
        self.segments_max = limits.segments_max;
        self.size = fields.payload_len;
        self.id = fields.id;
        self.flags_last = 0;
        self.kind = kind_of(layout);
        self.is_ipv6 = layout.network == Network::Ipv6;
        self.network_start = layout.network_start as u16;
        self.transport_start = layout.transport_start as u16;
        self.payload_start = layout.payload_start as u16;
        buffer[..layout.payload_start].copy_from_slice(&frame[..layout.payload_start]);
        if !self.append(frame, layout, fields, buffer) {
            self.vacate();
            return Start::Bad;
        }
        (self.key, self.hash, self.started_ns) = (first.key, first.hash, first.now_ns);
        Start::Held
    }

    /// Makes the slot vacant.
    pub(super) fn vacate(&mut self) {
        self.key = Key::NONE;
        self.common.template.vacate();
    }

    /// Takes the frame if it continues this aggregate such that cutting gives both back.
    #[inline(always)]
    pub(super) fn join(&mut self, frame: &[u8], layout: &FrameLayout, buffer: &mut [u8]) -> Join {
        if !self.common.template.is_of(frame, layout) {
            return Join::Refused;
        }
        let Some(fields) = Fields::of(frame, layout) else { return Join::Refused };
        let has_room = self.len + usize::from(fields.payload_len) <= self.len_max && self.segments < self.segments_max;
        if !(self.is_continued_by(&fields) && has_room) {
            return Join::Refused;
        }
        if !self.append(frame, layout, &fields, buffer) {
            return Join::Bad;
        }
        self.flags_last = fields.flags & TCP_LAST;
        let is_last = fields.payload_len < self.size || self.flags_last != 0 || self.segments >= self.segments_max;
        if is_last { Join::Last } else { Join::Open }
    }

    /// Every field that varies is the one that cutting would write.
    #[inline(always)]
    fn is_continued_by(&mut self, fields: &Fields) -> bool {
        if self.segments == 1 {
            self.id_step = u16::from(fields.id != self.id);
        }
        let id_next = self.id.wrapping_add(self.segments.wrapping_mul(self.id_step)); // 0 for IPv6.
        let size_fits = fields.payload_len.wrapping_sub(1) < self.size; // 1 to size bytes.
        self.seq_next == fields.seq && id_next == fields.id && size_fits && fields.may_be_held()
    }

    /// Copies the payload behind what is there and verifies the frame on the way: the headers' sums
    /// are known but for the words that vary. A wrong frame leaves the aggregate as it was.
    #[inline(always)]
    fn append(&mut self, frame: &[u8], layout: &FrameLayout, fields: &Fields, buffer: &mut [u8]) -> bool {
        if !self.common.ip_is_right(fields) {
            return false;
        }
        let payload = &frame[layout.payload_start..layout.packet_end];
        let payload_sum = copy_and_sum(payload, &mut buffer[self.len..]);
        if !self.common.transport_is_right(fields, payload_sum) {
            return false;
        }
        self.len += payload.len();
        self.segments += 1;
        if self.kind != SegmentationKind::Udp {
            self.seq_next = fields.seq.wrapping_add(u32::from(fields.payload_len));
        }
        true
    }

    /// Mends the headers at the front of the buffer and says what the aggregate is. Returns its
    /// length in bytes too.
    pub(super) fn finish(&self, buffer: &mut [u8], telling: Telling) -> (RxMeta, usize) {
        let meta = RxMeta {
            checksum: ChecksumState::Good,
            segmentation: None,
            header_len: self.payload_start,
            segments: self.segments,
            hash: self.hash,
            queue: 0,
        };
        let is_joined = self.segments > 1;
        if !is_joined && telling == Telling::Verdict {
            return (meta, self.len);
        }
        if is_joined {
            self.mend_network(&mut buffer[usize::from(self.network_start)..]);
        }
        let offset = self.mend_transport(&mut buffer[usize::from(self.transport_start)..]);
        let partial = PartialChecksum { start: self.transport_start, offset: offset as u16 };
        let segmentation = is_joined.then_some(Segmentation { kind: self.kind, size: self.size, ecn: false });
        let checksum = ChecksumState::Partial(partial);
        (RxMeta { checksum, segmentation, ..meta }, self.len)
    }

    /// IPv4 total length and header checksum, or IPv6 payload length.
    fn mend_network(&self, network: &mut [u8]) {
        let packet_len = self.len - usize::from(self.network_start);
        if self.is_ipv6 {
            put16(network, IPV6_PAYLOAD_LEN_OFFSET, (packet_len - IPV6_HEADER_LEN) as u16);
        } else {
            let sum = fold(u32::from(self.common.ip) + packet_len as u32 + u32::from(self.id));
            put16(network, IPV4_TOTAL_LEN_OFFSET, packet_len as u16);
            put16(network, IPV4_CHECKSUM_OFFSET, !sum);
        }
    }

    /// Flags or UDP length, and the pseudo-header sum in the checksum field, whose offset it returns.
    fn mend_transport(&self, transport: &mut [u8]) -> usize {
        let transport_len = self.len - usize::from(self.transport_start);
        let pseudo = fold(u32::from(self.common.pseudo) + transport_len as u32);
        let field = if self.kind == SegmentationKind::Udp {
            put16(transport, UDP_LENGTH_OFFSET, transport_len as u16);
            UDP_CHECKSUM_OFFSET
        } else {
            transport[TCP_FLAGS_OFFSET] |= self.flags_last;
            TCP_CHECKSUM_OFFSET
        };
        put16(transport, field, pseudo);
        field
    }
}

fn kind_of(layout: &FrameLayout) -> SegmentationKind {
    match (layout.transport, layout.network) {
        (Transport::Udp, _) => SegmentationKind::Udp,
        (_, Network::Ipv6) => SegmentationKind::Tcp6,
        _ => SegmentationKind::Tcp4,
    }
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
