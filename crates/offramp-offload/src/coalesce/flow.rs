//! The life of one aggregate: start, coalescing of frames, and end.

use super::head::{CommonSums, Key, NetworkFields, Shape, TCP_LAST, Template, TransportFields};
use super::sink::append;
use super::{CoalesceConfig, RxCsum, Sink};
use crate::checksum::copy_and_sum;
use crate::layout::{
    FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_TOTAL_LEN_OFFSET, IPV6_HEADER_LEN, IPV6_PAYLOAD_LEN_OFFSET,
    TCP_CHECKSUM_OFFSET, TCP_CWR, TCP_FLAGS_OFFSET, UDP_CHECKSUM_OFFSET, UDP_LENGTH_OFFSET, put16,
};
use crate::meta::{ChecksumState, Cwr, PartialChecksum, RxMeta, Segmentation, SegmentationKind};

/// Length of the two ports at the front of a TCP or UDP header, in bytes.
const PORTS_LEN: usize = 4;

/// The result of an attempt to coalesce a frame with an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The frame was coalesced, and the aggregate accepts more frames.
    Open,
    /// The frame was coalesced, and the aggregate accepts no further frame.
    Last,
    /// The frame's headers differ from the aggregate's headers. No checksum was verified.
    OtherHeaders,
    /// The headers are the same, but the frame does not continue the aggregate. No checksum was verified.
    Refused,
    /// A checksum is wrong. The aggregate is unchanged.
    Bad,
}

/// A candidate for the first frame of an aggregate, with its parsed headers.
#[derive(Debug)]
pub(super) struct First<'a> {
    pub(super) frame: &'a [u8],
    pub(super) layout: &'a FrameLayout,
    pub(super) network: NetworkFields,
    pub(super) transport: TransportFields,
    pub(super) shape: Shape,
    pub(super) key: Key,
    pub(super) config: &'a CoalesceConfig,
    /// The flow's slot, which identifies the frame in lent memory.
    pub(super) slot: usize,
    /// Offset of the flow's buffer in the memory of all buffers.
    pub(super) buffer_start: usize,
    pub(super) hash: Option<u32>,
    pub(super) now_ns: u64,
}

/// The state of an aggregate, without its bytes.
///
/// All frames except the last carry `size` bytes. So the number of frames determines the offset of the next payload in
/// the stream and in the buffer. Coalescing a frame usually changes only the number of frames, because each additional
/// store would wait for the stores of the payload. In a vacant slot, neither key nor template matches any frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) key: Key,
    /// Ports in memory order. They are compared first, because a comparison of the whole key costs more.
    ports: [u8; PORTS_LEN],
    /// Sequence number of the first frame, 0 for UDP.
    pub(super) seq: u32,
    /// Increment of the sequence number per frame, 0 for UDP.
    pub(super) seq_step: u32,
    /// Number of frames in the aggregate.
    pub(super) segments: u16,
    /// Maximum number of frames in the aggregate.
    pub(super) segments_max: u16,
    /// Payload length of every frame except the last, in bytes.
    pub(super) size: u16,
    /// Payload length of the last frame, in bytes. Equals `size` until a frame completes the aggregate.
    size_last: u16,
    /// IPv4 ID of the first frame, 0 for IPv6.
    pub(super) id: u16,
    /// Increment of the IPv4 ID per frame, 1 or 0. The increment is known from the second frame on.
    pub(super) id_step: u16,
    /// FIN and PSH of the last frame.
    flags_last: u8,
    pub(super) shape: Shape,
    pub(super) sums: CommonSums,
    /// True if the payload lies in lent memory, and the buffer holds only the headers.
    pub(super) is_in_place: bool,
    /// Offset of the flow's buffer in the memory of all buffers.
    pub(super) buffer_start: usize,
    /// Maximum length of the aggregate in bytes, link header included.
    pub(super) len_max: usize,
    hash: Option<u32>,
    /// Arrival time of the first frame, in nanoseconds.
    pub(super) started_ns: u64,
    pub(super) template: Template,
    /// The predicted next flow: the slot that was found or started most recently after a frame of this flow. The slot
    /// can be vacant.
    pub(super) successor: usize,
}

impl Flow {
    /// Starts the aggregate with its first frame. Copies the frame without padding, and verifies the frame in the same
    /// pass. The frame is copied to memory lent by `out`, or to `buffer` if `out` lends no memory. Returns false, and
    /// leaves the slot vacant, if a checksum is wrong.
    pub(super) fn start(&mut self, first: &First<'_>, buffer: &mut [u8], out: &mut impl Sink) -> bool {
        let First { frame, layout, network, transport, shape, config, .. } = first;
        let (headers, payload) = frame[..layout.packet_end].split_at(layout.payload_start);
        self.sums = CommonSums::of(frame, layout, network, transport);
        if !self.sums.ip_is_right(network) {
            return false;
        }
        buffer[..headers.len()].copy_from_slice(headers);
        let header_sum = self.sums.transport_headers(transport, layout.transport_len() as u16);
        let is_lent = out.reserve(first.slot, headers);
        let in_place = if is_lent { append(out, first.slot, payload, header_sum) } else { None };
        self.is_in_place = in_place == Some(true);
        let is_right =
            in_place.unwrap_or_else(|| copy_and_sum(payload, &mut buffer[headers.len()..]).plus(header_sum).is_right());
        if !is_right {
            return false;
        }
        self.shape = *shape;
        self.segments = 1;
        self.segments_max = if shape.is_udp { config.udp_segments_max } else { config.segments_max };
        self.size = payload.len() as u16;
        self.size_last = self.size;
        self.seq = transport.seq;
        self.seq_step = if shape.is_udp { 0 } else { u32::from(self.size) };
        self.id = network.id;
        self.flags_last = 0;
        self.len_max = layout.network_start + config.packet_len_max;
        self.buffer_start = first.buffer_start;
        self.ports.copy_from_slice(&headers[layout.transport_start..][..PORTS_LEN]);
        self.template.set(headers, shape);
        (self.key, self.hash, self.started_ns) = (first.key, first.hash, first.now_ns);
        true
    }

    /// Makes the slot vacant.
    pub(super) fn vacate(&mut self) {
        self.key = Key::default();
        self.template.vacate();
        self.segments = 0;
    }

    /// Returns whether the frame has the ports of this flow. This test is cheap and comes first, because most frames of
    /// other flows have other ports.
    #[inline]
    pub(super) fn has_ports_of(&self, frame: &[u8], layout: &FrameLayout) -> bool {
        let start = layout.transport_start;
        frame.get(start..start + PORTS_LEN).is_some_and(|ports| *ports == self.ports)
    }

    /// Coalesces the frame if segmentation of the aggregate would restore the frame. Appends the frame's payload and
    /// verifies the frame in the same pass. The sum of the header words that are equal in all frames was computed from
    /// the first frame.
    #[inline]
    pub(super) fn coalesce(
        &mut self,
        frame: &[u8],
        layout: &FrameLayout,
        buffers: &mut [u8],
        slot: usize,
        out: &mut impl Sink,
    ) -> Outcome {
        let Some(headers) = self.template.match_headers(frame, layout) else { return Outcome::OtherHeaders };
        let stream_len = usize::from(self.segments) * usize::from(self.size);
        match self.continue_network(headers) {
            Outcome::Open => {}
            other => return other,
        }
        let Some(fields) = TransportFields::of(headers, &self.shape) else { return Outcome::OtherHeaders };
        let seq_next = self.seq.wrapping_add(u32::from(self.segments) * self.seq_step);
        if fields.is_unusual || fields.seq != seq_next {
            return Outcome::Refused;
        }
        let header_sum = self.sums.transport_headers(&fields, layout.transport_len() as u16);
        let Some(payload) = frame.get(headers.len()..layout.packet_end) else { return Outcome::OtherHeaders };
        let size_fits = payload.len().wrapping_sub(1) < usize::from(self.size); // The payload has 1 to `size` bytes.
        let tail = headers.len() + stream_len;
        if !size_fits || tail + payload.len() > self.len_max || self.segments >= self.segments_max {
            return Outcome::Refused;
        }
        if layout.has_trailer(frame) {
            return Outcome::Refused;
        }
        let is_full = payload.len() == usize::from(self.size) && fields.flags & TCP_LAST == 0;
        let coalesced = if is_full && self.segments + 1 < self.segments_max { Outcome::Open } else { Outcome::Last };
        if self.is_in_place {
            match append(out, slot, payload, header_sum) {
                Some(true) => {}
                Some(false) => return Outcome::Bad,
                None => return Outcome::Refused,
            }
        } else {
            let tail = self.buffer_start + tail;
            let payload_sum = copy_and_sum(payload, &mut buffers[tail..tail + payload.len()]);
            if !payload_sum.plus(header_sum).is_right() {
                return Outcome::Bad; // The copied bytes lie past the aggregate's end.
            }
        }
        self.segments += 1; // This store follows a branch, so the next frame does not wait for this checksum.
        coalesced
    }

    /// Compares the IP header's varying fields with the expected next values.
    #[inline]
    fn continue_network(&mut self, headers: &[u8]) -> Outcome {
        let Some(fields) = NetworkFields::of(headers, &self.shape) else { return Outcome::OtherHeaders };
        if self.segments == 1 {
            self.id_step = u16::from(fields.id != self.id || !fields.may_repeat_id);
        }
        let id_next = self.id.wrapping_add(self.segments.wrapping_mul(self.id_step));
        if fields.is_unusual || fields.id != id_next {
            Outcome::Refused
        } else if self.sums.ip_is_right(&fields) {
            Outcome::Open
        } else {
            Outcome::Bad
        }
    }

    /// Stores the payload length and the flags of the last frame.
    pub(super) fn note_last(&mut self, frame: &[u8], layout: &FrameLayout) {
        self.size_last = layout.payload_len() as u16;
        if !self.shape.is_udp {
            self.flags_last = frame[layout.transport_start + TCP_FLAGS_OFFSET] & TCP_LAST;
        }
    }

    /// Returns the length of the aggregate in bytes, headers included.
    fn len(&self) -> usize {
        let full = usize::from(self.segments) - 1;
        usize::from(self.shape.payload_start) + full * usize::from(self.size) + usize::from(self.size_last)
    }

    /// Updates the headers at the front of the buffer for the whole aggregate. Returns the metadata and the length in
    /// bytes of the aggregate.
    pub(super) fn finish(&self, buffer: &mut [u8], rx_csum: RxCsum) -> (RxMeta, usize) {
        let meta = RxMeta {
            checksum: ChecksumState::Good,
            segmentation: None,
            header_len: self.shape.payload_start,
            segments: self.segments,
            hash: self.hash,
            queue: 0,
        };
        let is_coalesced = self.segments > 1;
        if !is_coalesced && rx_csum == RxCsum::DataValid {
            return (meta, self.len());
        }
        if is_coalesced {
            self.write_network(&mut buffer[usize::from(self.shape.network_start)..]);
        }
        let transport = &mut buffer[usize::from(self.shape.transport_start)..];
        let has_cwr = !self.shape.is_udp && transport[TCP_FLAGS_OFFSET] & TCP_CWR != 0;
        let offset = self.write_transport(transport);
        let partial = PartialChecksum { start: self.shape.transport_start, offset: offset as u16 };
        let segmentation = is_coalesced.then_some(Segmentation {
            kind: self.kind(),
            size: self.size,
            cwr: if has_cwr { Cwr::All } else { Cwr::Unmarked },
        });
        let checksum = ChecksumState::Partial(partial);
        (RxMeta { checksum, segmentation, ..meta }, self.len())
    }

    fn kind(&self) -> SegmentationKind {
        match (self.shape.is_udp, self.shape.is_ipv6) {
            (true, _) => SegmentationKind::Udp,
            (false, true) => SegmentationKind::Tcp6,
            (false, false) => SegmentationKind::Tcp4,
        }
    }

    /// Writes IPv4 total length and header checksum, or IPv6 payload length.
    fn write_network(&self, network: &mut [u8]) {
        let packet_len = (self.len() - usize::from(self.shape.network_start)) as u16;
        if self.shape.is_ipv6 {
            put16(network, IPV6_PAYLOAD_LEN_OFFSET, packet_len - IPV6_HEADER_LEN as u16);
        } else {
            put16(network, IPV4_TOTAL_LEN_OFFSET, packet_len);
            put16(network, IPV4_CHECKSUM_OFFSET, self.sums.ip_checksum(packet_len, self.id));
        }
    }

    /// Writes the TCP flags or the UDP length, and the pseudo-header's sum to the checksum field. Returns the offset of
    /// the checksum field from the transport header.
    fn write_transport(&self, transport: &mut [u8]) -> usize {
        let transport_len = (self.len() - usize::from(self.shape.transport_start)) as u16;
        let field = if self.shape.is_udp {
            put16(transport, UDP_LENGTH_OFFSET, transport_len);
            UDP_CHECKSUM_OFFSET
        } else {
            transport[TCP_FLAGS_OFFSET] |= self.flags_last;
            TCP_CHECKSUM_OFFSET
        };
        put16(transport, field, self.sums.pseudo_sum(transport_len));
        field
    }
}
