//! Receive coalescing: merges verified frames of a flow into one frame, the aggregate. Segmentation of an aggregate
//! returns the original bytes.
//!
//! The coalescer accepts the same frames as Linux 6.18's GRO (TCP, and UDP as with `rx-udp-gro-forwarding`), with these
//! stricter rules:
//!
//! * The IP and transport checksums of a frame are verified in the pass that copies the frame's payload. A frame with a
//!   wrong checksum leaves the aggregate unchanged.
//! * Frames of a flow keep their order: an aggregate is delivered before any later frame of the same flow. A pure ACK,
//!   a frame with a wrong checksum or a frame with IPv4 options flushes the frame's flow. The ports of a fragment are
//!   unknown, so a fragment flushes every flow with the fragment's source and destination address. A malformed frame
//!   flushes all flows.
//! * Ethernet padding is trimmed before a frame is coalesced. A frame with other bytes after the IP packet (a
//!   redundancy control trailer, a time stamp) is delivered alone and unchanged.
//! * Two fields that Linux ignores must be equal in all frames of an aggregate, because segmentation would change them:
//!   the urgent pointer, and the reserved bit of IPv4's fragment field.
//! * Frames with equal IPv4 IDs are coalesced only with DF set.
//! * Frames with CWR are coalesced only with [`Offloads::RSC_ACCECN`]. Segmentation by RFC 3168 keeps CWR on the
//!   first segment only, and so falsifies AccECN's counter in AE, CWR and ECE (RFC 9768 3.2.2). With `RSC_ACCECN`,
//!   frames with CWR are coalesced as in Linux 7, and the aggregate is marked with [`Cwr::All`](crate::meta::Cwr).
//! * A frame with a TCP or IPv4 checksum field of 0xffff is not coalesced. A receiver accepts 0xffff in place of 0, but
//!   segmentation would write 0.
//!
//! | frame | action |
//! |---|---|
//! | next in sequence, same headers, same length as the first | is coalesced |
//! | next in sequence, same headers, but shorter, or with PSH or FIN | is coalesced, and closes the aggregate |
//! | longer; after a gap; other headers; beyond the size limit | closes the aggregate, and starts another if allowed |
//! | PSH or FIN without an aggregate; no payload; SYN, RST, URG | is delivered alone, after its flow's aggregate |
//! | CWR without `RSC_ACCECN`; IPv4 options; headers > 192 bytes | is delivered alone, after its flow's aggregate |
//! | UDP without checksum; with a trailer | is delivered alone, after its flow's aggregate |
//!
//! The IPv4 IDs of an aggregate increase by one per frame or, with DF set, are all equal. The second frame of an
//! aggregate decides between increasing and equal IDs. A vnet header has no field for equal IDs, so segmentation of an
//! aggregate with equal IDs writes increasing IDs. (RFC 6864 4.1: the ID of a datagram with DF set has no meaning.)
//! Only for equal IDs does segmentation not return the original bytes.
//!
//! When every slot of the flow table is in use, the coalescer delivers the aggregate of the oldest flow, and a new flow
//! gets its slot.

mod flow;
mod follow;
mod head;
mod sink;
mod table;
#[cfg(test)]
mod tests;

use crate::caps::Offloads;
use crate::checksum::{make_partial, verify};
use crate::frame::Frame;
use crate::layout::{ETHERNET_HEADER_LEN, FrameLayout, Network, Transport, VLAN_TAG_LEN, VLAN_TAGS_MAX};
use crate::meta::{ChecksumState, RxMeta};
use crate::segment::UDP_SEGMENTS_MAX;
use flow::{First, Outcome};
pub use follow::Followed;
use head::{Key, NetworkFields, Shape, TransportFields};
pub use sink::Sink;
use table::FlowTable;

/// Maximum length of an IP packet, in bytes: the largest 16-bit length (RFC 791 3.1).
pub const PACKET_LEN_MAX: usize = 65_535;
/// Upper limit of [`CoalesceConfig::flows_max`]. Each flow has its own buffer.
pub const FLOWS_MAX: usize = 65_536;
/// Default maximum number of flows with an aggregate at once. Linux' GRO holds 8 flows in each of 8 hash buckets.
pub const FLOWS_MAX_DEFAULT: usize = 64;
/// Default maximum number of datagrams in a UDP aggregate, as in Linux (`UDP_GRO_CNT_MAX`).
pub const UDP_SEGMENTS_MAX_DEFAULT: u16 = 64;
/// Maximum length of a link header parsed by [`FrameLayout::parse_into`], in bytes.
const LINK_HEADER_LEN_MAX: usize = ETHERNET_HEADER_LEN + VLAN_TAGS_MAX * VLAN_TAG_LEN;
/// Length of a cache line in bytes.
const CACHE_LINE_LEN: usize = 64;

/// The limits of a [`Coalescer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceConfig {
    /// Maximum number of flows with an aggregate at once, 1 to [`FLOWS_MAX`]. Each flow has a buffer for
    /// `packet_len_max` bytes and a link header.
    pub flows_max: usize,
    /// Maximum length of an aggregate's IP packet in bytes, up to [`PACKET_LEN_MAX`]. Longer frames are delivered
    /// alone.
    pub packet_len_max: usize,
    /// Maximum number of TCP segments in an aggregate, 1 or more.
    pub segments_max: u16,
    /// Maximum number of UDP datagrams in an aggregate, 1 to [`UDP_SEGMENTS_MAX`].
    pub udp_segments_max: u16,
    /// Maximum time to hold an aggregate after the arrival of its first frame, in nanoseconds. If the value is 0, the
    /// caller must call [`Coalescer::flush`] at the end of each batch.
    pub hold_ns: u64,
    /// The mark that a frame with correct checksums gets in its metadata.
    pub rx_csum: RxCsum,
}

/// The UDP port of DHCP clients, big-endian (RFC 2131 4.1).
const DHCP_CLIENT_PORT: [u8; 2] = 68_u16.to_be_bytes();

/// The form in which the host learns that the checksums of a frame are correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxCsum {
    /// [`ChecksumState::Good`]: the bytes of the frame are unchanged. Guests support this mark.
    #[default]
    DataValid,
    /// [`ChecksumState::Partial`]: the checksum field receives the pseudo-header's sum. A Linux TAP supports only this
    /// mark, and ignores virtio's `DATA_VALID`. A DHCP reply keeps its checksum, because DHCP clients read raw frames
    /// and verify the checksum.
    NeedsCsum,
}

impl Default for CoalesceConfig {
    fn default() -> Self {
        Self {
            flows_max: FLOWS_MAX_DEFAULT,
            packet_len_max: PACKET_LEN_MAX,
            segments_max: u16::MAX,
            udp_segments_max: UDP_SEGMENTS_MAX_DEFAULT,
            hold_ns: 0,
            rx_csum: RxCsum::DataValid,
        }
    }
}

impl CoalesceConfig {
    /// Returns the configuration with all values clamped to their limits.
    fn bounded(self) -> Self {
        Self {
            flows_max: self.flows_max.clamp(1, FLOWS_MAX),
            packet_len_max: self.packet_len_max.min(PACKET_LEN_MAX),
            segments_max: self.segments_max.max(1),
            udp_segments_max: self.udp_segments_max.clamp(1, UDP_SEGMENTS_MAX as u16),
            ..self
        }
    }
}

/// The bytes and the layout of a frame.
type Framed<'a> = (&'a mut [u8], &'a FrameLayout);
/// The hash of a frame, and the time of its arrival in nanoseconds.
type Arrival = (Option<u32>, u64);

/// A coalescer for the frames of one receive queue. The [module](self) documents the rules.
///
/// [`Coalescer::new`] allocates all memory.
#[derive(Debug)]
pub struct Coalescer {
    config: CoalesceConfig,
    table: FlowTable,
    buffers: Buffers,
    /// Offloads in the latest call of [`Coalescer::push`], with or without their prerequisites.
    asked: Offloads,
    /// Receive offloads in use: the requested offloads whose prerequisites are also requested.
    enabled: Offloads,
}

impl Coalescer {
    /// Returns a coalescer without flows. Clamps the values of `config` to their limits.
    pub fn new(config: CoalesceConfig) -> Self {
        let config = config.bounded();
        Self {
            config,
            table: FlowTable::new(config.flows_max),
            buffers: Buffers::new(config.flows_max, config.packet_len_max + LINK_HEADER_LEN_MAX),
            asked: Offloads::empty(),
            enabled: Offloads::empty(),
        }
    }

    /// Coalesces one frame from the wire. The frame is copied to an aggregate, in memory lent by `out` if possible. A
    /// frame that is not coalesced is delivered to `out`, after every frame that must precede it.
    ///
    /// * `enabled` selects receive offloads ([`Offloads::RX`]). An offload without its prerequisites is ignored. Before
    ///   an offload is switched off, all held frames are delivered.
    /// * `hash` is copied to the metadata of the delivered frame. An aggregate has the hash of its first frame.
    ///
    /// With [`Offloads::RX_CHECKSUM`], a frame delivered alone carries the verdict of [`Frame::verify`], marked as in
    /// [`CoalesceConfig::rx_csum`]. Without [`Offloads::RX_CHECKSUM`], frames delivered alone are not verified. A frame
    /// delivered alone keeps its padding, unless the frame is marked with a partial checksum. A frame with a trailer is
    /// not marked with a partial checksum. An aggregate of a single frame is delivered without padding. The field
    /// `queue` of the metadata is 0, and the caller sets `queue`.
    ///
    /// After the call, the bytes of `frame` are the same as before. A partial checksum is written only while `out`
    /// reads the frame.
    #[inline]
    pub fn push(
        &mut self,
        mut frame: Frame<'_>,
        enabled: Offloads,
        hash: Option<u32>,
        now_ns: u64,
        out: &mut impl Sink,
    ) {
        self.switch(enabled, out);
        let Ok((frame, layout)) = frame.parts_mut() else { return self.pass_malformed(frame.bytes_mut(), hash, out) };
        // Frames arrive in bursts of one flow. So compare with the headers of the previous frame's flow before any
        // look-up.
        let last = self.table.last;
        let flow = self.table.flow_mut(last);
        if flow.has_ports_of(frame, layout) {
            match flow.coalesce(frame, layout, &mut self.buffers.bytes, last, out) {
                Outcome::Open => return,
                Outcome::OtherHeaders => {}
                other => return self.settle(other, last, (frame, layout), (hash, now_ns), out),
            }
        }
        self.push_to_any((frame, layout), (hash, now_ns), out);
    }

    /// Returns whether [`Coalescer::push`] may put the frame into an aggregate. Reads neither checksums nor flows.
    /// While the coalescer holds frames, the answer is true for every frame with payload, because the frame may
    /// continue an aggregate.
    pub fn may_hold(&self, frame: &Frame<'_>, enabled: Offloads) -> bool {
        let Ok((bytes, layout)) = frame.parts() else { return false };
        let is_coalesced =
            offload_of(layout).is_some_and(|offload| enabled.contains(offload)) && layout.payload_len() > 0;
        is_coalesced && (self.table.oldest().is_some() || self.first_of(bytes, layout, enabled).is_some())
    }

    /// Delivers all held aggregates, the oldest first. With a `hold_ns` of 0, call this function at the end of each
    /// batch.
    pub fn flush(&mut self, out: &mut impl Sink) {
        while let Some(slot) = self.table.oldest() {
            self.close(slot, out);
        }
    }

    /// Delivers the aggregates held for `hold_ns` or longer.
    pub fn flush_expired(&mut self, now_ns: u64, out: &mut impl Sink) {
        while let Some(slot) = self.table.oldest() {
            if self.deadline_ns(slot) > now_ns {
                break;
            }
            self.close(slot, out);
        }
    }

    /// Returns the time at which [`Self::flush_expired`] next has a flow to deliver, in nanoseconds, or `None` if no
    /// flow is held. The time lies in the past if `hold_ns` is 0.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.table.oldest().map(|slot| self.deadline_ns(slot))
    }

    /// Returns the number of held frames. Iterates over all flows.
    pub fn held(&self) -> usize {
        let slots = std::iter::successors(self.table.oldest(), |slot| self.table.flows.newer(*slot));
        slots.map(|slot| usize::from(self.table.flow(slot).segments)).sum()
    }

    fn deadline_ns(&self, slot: usize) -> u64 {
        self.table.flow(slot).started_ns.saturating_add(self.config.hold_ns)
    }

    /// Applies the requested offloads. Flushes all flows if an offload is switched off.
    #[inline]
    fn switch(&mut self, asked: Offloads, out: &mut impl Sink) {
        if asked != self.asked {
            self.asked = asked;
            let enabled = asked.with_prerequisites() & Offloads::RX;
            if !enabled.contains(self.enabled) {
                self.flush(out);
            }
            self.enabled = enabled;
        }
    }

    /// Returns the key of the frame's flow, or `None` if frames of this kind are not coalesced.
    #[inline]
    fn key_of(&self, frame: &[u8], layout: &FrameLayout) -> Option<Key> {
        if self.enabled.contains(offload_of(layout)?) { Key::of(frame, layout) } else { None }
    }

    /// Coalesces a frame that does not belong to the previous frame's flow.
    #[inline(never)]
    fn push_to_any(&mut self, (frame, layout): Framed<'_>, arrival: Arrival, out: &mut impl Sink) {
        let Some(key) = self.key_of(frame, layout) else {
            return self.pass_without_flow((frame, layout), arrival, out);
        };
        let Some(slot) = self.table.find(&key) else {
            return self.start_or_pass(key, (frame, layout), arrival, out);
        };
        match self.table.flow_mut(slot).coalesce(frame, layout, &mut self.buffers.bytes, slot, out) {
            Outcome::Open => {}
            other => self.settle(other, slot, (frame, layout), arrival, out),
        }
    }

    /// Delivers a flow's aggregate after a frame that completed the aggregate, or that could not be coalesced with it.
    /// A frame that was not coalesced then starts a new aggregate or is delivered alone.
    #[inline(never)]
    fn settle(
        &mut self,
        outcome: Outcome,
        slot: usize,
        (frame, layout): Framed<'_>,
        arrival: Arrival,
        out: &mut impl Sink,
    ) {
        let key = self.table.flow(slot).key;
        if outcome == Outcome::Last {
            self.table.flow_mut(slot).note_last(frame, layout);
        }
        self.close(slot, out);
        match outcome {
            Outcome::Open | Outcome::Last => {}
            Outcome::Bad => out.deliver(&alone(layout, ChecksumState::Bad, arrival.0), frame),
            Outcome::OtherHeaders | Outcome::Refused => self.start_or_pass(key, (frame, layout), arrival, out),
        }
    }

    /// Handles a frame of a flow without an aggregate: the frame starts an aggregate, or is delivered alone if it must
    /// not start an aggregate.
    fn start_or_pass(&mut self, key: Key, (frame, layout): Framed<'_>, (hash, now_ns): Arrival, out: &mut impl Sink) {
        let Some((shape, network, transport)) = self.first_of(frame, layout, self.enabled) else {
            return self.pass(frame, layout, hash, out);
        };
        if self.table.flows.vacant().is_none()
            && let Some(oldest) = self.table.oldest()
        {
            self.close(oldest, out);
        }
        let Some(slot) = self.table.flows.vacant() else { return self.pass(frame, layout, hash, out) };
        let (config, buffer_start) = (&self.config, self.buffers.start_of(slot));
        let first = First { frame, layout, network, transport, shape, key, config, slot, buffer_start, hash, now_ns };
        if self.table.flow_mut(slot).start(&first, self.buffers.of(slot), out) {
            self.table.insert();
        } else {
            out.deliver(&alone(layout, ChecksumState::Bad, hash), frame);
        }
    }

    /// Parses a frame as the first frame of an aggregate. Returns `None` if the frame must not start an aggregate.
    fn first_of(
        &self,
        frame: &[u8],
        layout: &FrameLayout,
        enabled: Offloads,
    ) -> Option<(Shape, NetworkFields, TransportFields)> {
        let has_room = layout.packet_end - layout.network_start <= self.config.packet_len_max;
        let has_ipv4_options = layout.network == Network::Ipv4 && layout.network_options;
        if !has_room || has_ipv4_options || layout.payload_len() == 0 || self.keeps_bytes(frame, layout) {
            return None;
        }
        let shape = Shape::of(layout)?;
        let headers = frame.get(..layout.payload_start)?;
        let network = NetworkFields::of(headers, &shape)?;
        let transport = TransportFields::of(headers, &shape)?;
        let is_unusual = network.is_unusual || transport.is_unusual;
        let knows_accecn = enabled.contains(Offloads::RSC_ACCECN);
        (!is_unusual && transport.may_be_first(knows_accecn)).then_some((shape, network, transport))
    }

    /// Returns whether a frame must be delivered alone and unchanged. The function returns true for a frame with a
    /// trailer. With [`RxCsum::NeedsCsum`], the function also returns true for a datagram to a DHCP client: the client
    /// reads raw frames and would see a partial checksum.
    #[inline]
    fn keeps_bytes(&self, frame: &[u8], layout: &FrameLayout) -> bool {
        layout.has_trailer(frame) || self.config.rx_csum == RxCsum::NeedsCsum && is_for_dhcp_client(frame, layout)
    }

    /// Delivers a malformed frame after all held frames, because a malformed frame can belong to any flow.
    #[cold]
    fn pass_malformed(&mut self, frame: &mut [u8], hash: Option<u32>, out: &mut impl Sink) {
        self.flush(out);
        out.deliver(&RxMeta { hash, ..RxMeta::default() }, frame);
    }

    /// Delivers a frame of a kind that is not coalesced. A fragment can belong to any flow with the fragment's source
    /// and destination address.
    fn pass_without_flow(&mut self, (frame, layout): Framed<'_>, (hash, _): Arrival, out: &mut impl Sink) {
        if layout.fragment {
            self.flush_between(layout.addresses(frame), out);
        }
        self.pass(frame, layout, hash, out);
    }

    /// Delivers a frame alone, with the verdict on its checksums. A frame marked with a partial checksum loses its
    /// padding, because the receiver completes the checksum over all bytes to the end of the frame. A frame with a
    /// trailer, and a reply of a DHCP server, are delivered with unchanged bytes and without a mark.
    fn pass(&self, frame: &mut [u8], layout: &FrameLayout, hash: Option<u32>, out: &mut impl Sink) {
        let is_verified = self.enabled.contains(Offloads::RX_CHECKSUM);
        let verdict = if is_verified { verify(frame, layout) } else { ChecksumState::Unknown };
        if verdict == ChecksumState::Good && self.config.rx_csum == RxCsum::NeedsCsum {
            if self.keeps_bytes(frame, layout) {
                return out.deliver(&alone(layout, ChecksumState::Unknown, hash), frame);
            }
            let field = layout.checksum_field();
            let verified = [frame[field], frame[field + 1]];
            let partial = make_partial(frame, layout);
            out.deliver(&alone(layout, ChecksumState::Partial(partial), hash), &frame[..layout.packet_end]);
            frame[field..field + 2].copy_from_slice(&verified);
        } else {
            out.deliver(&alone(layout, verdict, hash), frame);
        }
    }

    /// Delivers the aggregate of one flow and frees the flow's slot.
    fn close(&mut self, slot: usize, out: &mut impl Sink) {
        let (buffer, flow) = (self.buffers.of(slot), self.table.flow(slot));
        let (meta, len) = flow.finish(buffer, self.config.rx_csum);
        let is_in_place = flow.is_in_place;
        self.table.remove(slot);
        if is_in_place {
            out.commit(slot, &meta, &buffer[..usize::from(meta.header_len)], len);
        } else {
            out.deliver(&meta, &buffer[..len]);
        }
    }

    /// Delivers the aggregate of every flow from the source to the destination in `addresses`, the oldest first.
    fn flush_between(&mut self, addresses: &[u8], out: &mut impl Sink) {
        let mut next = self.table.oldest();
        while let Some(slot) = next {
            next = self.table.flows.newer(slot);
            if self.table.flow(slot).key.is_between(addresses) {
                self.close(slot, out);
            }
        }
    }
}

/// Returns the offload that coalesces frames of this kind, or `None` for other kinds.
#[inline]
fn offload_of(layout: &FrameLayout) -> Option<Offloads> {
    match (layout.transport, layout.network) {
        (Transport::Tcp, Network::Ipv4) => Some(Offloads::RSC4),
        (Transport::Tcp, Network::Ipv6) => Some(Offloads::RSC6),
        (Transport::Udp, _) => Some(Offloads::RSC_UDP),
        _ => None,
    }
}

/// Returns the metadata of a frame delivered alone.
fn alone(layout: &FrameLayout, checksum: ChecksumState, hash: Option<u32>) -> RxMeta {
    let header_len = match layout.transport {
        Transport::Opaque => 0,
        _ => layout.payload_start as u16,
    };
    RxMeta { checksum, header_len, hash, ..RxMeta::default() }
}

/// Returns whether a frame carries a datagram to a DHCP client (RFC 2131 4.1). A DHCP client reads raw frames before it
/// has an address. Linux' `xt_CHECKSUM` exists for these clients.
fn is_for_dhcp_client(frame: &[u8], layout: &FrameLayout) -> bool {
    let port_at = layout.transport_start + 2;
    layout.transport == Transport::Udp && frame.get(port_at..port_at + 2) == Some(&DHCP_CLIENT_PORT)
}

/// The buffers of all flows, in one allocation.
#[derive(Debug)]
struct Buffers {
    bytes: Vec<u8>,
    /// Offset of the first flow's buffer in the allocation, aligned to a cache line.
    start: usize,
    stride: usize,
    len: usize,
}

impl Buffers {
    fn new(count: usize, len: usize) -> Self {
        let stride = len.next_multiple_of(CACHE_LINE_LEN);
        let bytes = vec![0; count * stride + CACHE_LINE_LEN];
        let start = bytes.as_ptr().align_offset(CACHE_LINE_LEN).min(CACHE_LINE_LEN);
        Self { bytes, start, stride, len }
    }

    fn start_of(&self, slot: usize) -> usize {
        self.start + slot * self.stride
    }

    fn of(&mut self, slot: usize) -> &mut [u8] {
        let start = self.start_of(slot);
        &mut self.bytes[start..start + self.len]
    }
}
