//! Receive coalescing: merges verified frames of a flow such that segmenting them again gives the same bytes.
//!
//! It coalesces the same frames as Linux 6.18's GRO (TCP, and UDP as `rx-udp-gro-forwarding`), with these stricter
//! points:
//!
//! * Both checksums of a frame are verified in the same pass that copies its payload; a wrong frame leaves the
//!   aggregate as it was.
//! * Nothing overtakes: an aggregate is handed out before any frame that may belong to it. A pure ACK, a bad frame or
//!   one with IPv4 options flushes its flow, a fragment every flow between its addresses (its ports are not known), a
//!   malformed frame everything.
//! * Ethernet padding is trimmed before a frame is coalesced. Other bytes after the IP packet stay: such a frame (a
//!   redundancy control trailer, a time stamp) goes alone and unchanged.
//! * Fields ignored by Linux must be equal too, or segmenting would change them: the urgent pointer, the reserved bit
//!   of IPv4's fragment field.
//! * Frames with equal IPv4 IDs need DF.
//! * Frames with CWR need [`Offloads::RSC_ACCECN`]: a host that segments them again by RFC 3168 keeps CWR on the first
//!   alone, and so falsifies AccECN's counter in AE, CWR and ECE (RFC 9768 3.2.2). With that offload they are coalesced
//!   as in Linux 7, and the aggregate says so ([`Cwr::All`](crate::meta::Cwr)).
//! * A TCP or IPv4 checksum field of 0xffff stands alone: it is right, but segmenting writes 0.
//!
//! | a frame | what happens |
//! |---|---|
//! | next in sequence, same headers, as long as the first | is coalesced |
//! | the same, but shorter, or with PSH or FIN | is coalesced, and the aggregate is closed |
//! | longer; a gap; any header field differs; the aggregate would exceed its limit | the aggregate is closed, and the frame starts a new one if it may |
//! | PSH or FIN without an aggregate that it fits; no payload; SYN, RST, URG; CWR without `RSC_ACCECN`; IPv4 options; more than 192 bytes of headers; UDP without checksum; a trailer | goes alone, after what its flow held |
//!
//! IPv4 IDs count up by one per frame, or, with DF set, are all equal; the second frame decides between the two. A vnet
//! header cannot say "all equal", so segmenting such an aggregate gives IDs that count (RFC 6864 4.1: the ID of a
//! datagram with DF set means nothing). It is the one exception to "the same bytes".
//!
//! When every slot is taken, the oldest flow is handed out to make room.

mod flow;
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
use head::{Key, NetworkFields, Shape, TransportFields};
pub use sink::{Appended, Sink};
use table::FlowTable;

/// Maximum length of an IP packet, bytes: the largest 16-bit length (RFC 791 3.1).
pub const PACKET_LEN_MAX: usize = 65_535;
/// Maximum of configurable flows: each has a buffer of its own.
pub const FLOWS_MAX: usize = 65_536;
/// Default maximum of flows held at once. Linux holds 8 in each of 8 buckets.
pub const FLOWS_MAX_DEFAULT: usize = 64;
/// Default maximum of datagrams in a UDP aggregate, as in Linux (`UDP_GRO_CNT_MAX`).
pub const UDP_SEGMENTS_MAX_DEFAULT: u16 = 64;
/// Longest link header parsed by [`FrameLayout::parse_into`].
const LINK_HEADER_LEN_MAX: usize = ETHERNET_HEADER_LEN + VLAN_TAGS_MAX * VLAN_TAG_LEN;
/// Bytes of a cache line.
const CACHE_LINE_LEN: usize = 64;

/// Limits of a [`Coalescer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceConfig {
    /// Maximum of flows held at once, 1 to [`FLOWS_MAX`]. Each costs a buffer of `packet_len_max` and a link header.
    pub flows_max: usize,
    /// Maximum length of an aggregate, IP bytes; at most [`PACKET_LEN_MAX`]. Longer frames go alone.
    pub packet_len_max: usize,
    /// Maximum of TCP segments in an aggregate; at least 1.
    pub segments_max: u16,
    /// Maximum of UDP datagrams in an aggregate, 1 to [`UDP_SEGMENTS_MAX`].
    pub udp_segments_max: u16,
    /// Maximum wait of a flow after its first frame, in nanoseconds. With 0 the caller flushes at the end of each
    /// batch.
    pub hold_ns: u64,
    /// The mark for a right checksum.
    pub rx_csum: RxCsum,
}

/// The UDP port of DHCP clients, big-endian (RFC 2131 4.1).
const DHCP_CLIENT_PORT: [u8; 2] = 68_u16.to_be_bytes();

/// The mark for a host on a frame with right checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxCsum {
    /// By [`ChecksumState::Good`]; the frame keeps its bytes. A guest understands it.
    #[default]
    DataValid,
    /// By [`ChecksumState::Partial`]: the field gets the sum of the pseudo-header. A Linux TAP understands only this
    /// mark (it ignores virtio's `DATA_VALID`). A DHCP reply keeps its checksum: clients read it raw, and check it.
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
    /// Returns the nearest configuration within the limits.
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

/// A frame and its layout.
type Framed<'a> = (&'a mut [u8], &'a FrameLayout);
/// A frame's hash, and the time of its arrival in nanoseconds.
type Arrival = (Option<u32>, u64);

/// Coalesces the frames of one receive queue. See the [module](self) for the rules.
///
/// All memory is allocated by [`Coalescer::new`].
#[derive(Debug)]
pub struct Coalescer {
    config: CoalesceConfig,
    table: FlowTable,
    buffers: Buffers,
    /// The offloads last given by the caller, and those in effect.
    asked: Offloads,
    enabled: Offloads,
}

impl Coalescer {
    /// Returns a coalescer without flows. Brings values of `config` outside their limits to the nearest within.
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

    /// Coalesces one frame of the wire. It copies the frame to an aggregate (into memory that `out` lends if it does),
    /// or hands it to `out` after every frame that must precede it.
    ///
    /// * `enabled`: the receive offloads ([`Offloads::RX`]) are heeded, each with its prerequisites; when one of them
    ///   is switched off, everything held is handed out first.
    /// * `hash` is handed on; an aggregate has its first frame's.
    ///
    /// A frame handed out alone carries the verdict of [`Frame::verify`] when [`Offloads::RX_CHECKSUM`] is on, marked
    /// as in [`CoalesceConfig::rx_csum`]; without it nobody verifies. It keeps its padding, unless it is marked with a
    /// partial checksum. With a trailer it gets no such mark. The only frame of an aggregate is handed out without
    /// padding. `queue` is left 0 for the caller.
    ///
    /// Afterwards the bytes of `frame` are the same as before: a partial checksum is written for `out` alone.
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
        // Frames come in bursts of one flow: compare with the headers of the last one before any look-up.
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

    /// Hands out everything, in the order of the flows' starts. With a `hold_ns` of 0, call it at the end of each
    /// batch.
    pub fn flush(&mut self, out: &mut impl Sink) {
        while let Some(slot) = self.table.oldest() {
            self.close(slot, out);
        }
    }

    /// Hands out the flows held for `hold_ns` or longer.
    pub fn flush_expired(&mut self, now_ns: u64, out: &mut impl Sink) {
        while let Some(slot) = self.table.oldest() {
            if self.deadline_ns(slot) > now_ns {
                break;
            }
            self.close(slot, out);
        }
    }

    /// Returns the next time with work for [`Self::flush_expired`]; none without flows. It lies in the past when
    /// `hold_ns` is 0.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.table.oldest().map(|slot| self.deadline_ns(slot))
    }

    /// Counts the frames of all aggregates by a walk through the flows.
    pub fn held(&self) -> usize {
        let slots = std::iter::successors(self.table.oldest(), |slot| self.table.flows.newer(*slot));
        slots.map(|slot| usize::from(self.table.flow(slot).segments)).sum()
    }

    fn deadline_ns(&self, slot: usize) -> u64 {
        self.table.flow(slot).started_ns.saturating_add(self.config.hold_ns)
    }

    /// Takes over the enabled offloads. Switching one off flushes all flows.
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

    /// Returns the frame's flow; none for frames of a kind that is not coalesced.
    #[inline]
    fn key_of(&self, frame: &[u8], layout: &FrameLayout) -> Option<Key> {
        let offload = match (layout.transport, layout.network) {
            (Transport::Tcp, Network::Ipv4) => Offloads::RSC4,
            (Transport::Tcp, Network::Ipv6) => Offloads::RSC6,
            (Transport::Udp, _) => Offloads::RSC_UDP,
            _ => return None,
        };
        if self.enabled.contains(offload) { Key::of(frame, layout) } else { None }
    }

    /// Coalesces a frame of another flow than the last.
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

    /// Closes the aggregate of a flow after a frame that ended or did not continue it.
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

    /// Starts an aggregate with a frame whose flow has none, or hands the frame out.
    fn start_or_pass(&mut self, key: Key, (frame, layout): Framed<'_>, (hash, now_ns): Arrival, out: &mut impl Sink) {
        let Some((shape, network, transport)) = self.first_of(frame, layout) else {
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

    /// Reads a frame as the first of an aggregate; none if it may not be one.
    fn first_of(&self, frame: &[u8], layout: &FrameLayout) -> Option<(Shape, NetworkFields, TransportFields)> {
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
        let knows_accecn = self.enabled.contains(Offloads::RSC_ACCECN);
        (!is_unusual && transport.may_be_first(knows_accecn)).then_some((shape, network, transport))
    }

    /// Returns whether a frame goes alone and with the bytes that came: it has a trailer, or a DHCP client reads it raw
    /// and would see a partial checksum.
    #[inline]
    fn keeps_bytes(&self, frame: &[u8], layout: &FrameLayout) -> bool {
        layout.has_trailer(frame) || self.config.rx_csum == RxCsum::NeedsCsum && is_for_dhcp_client(frame, layout)
    }

    /// Hands out a malformed frame after everything else, as it may belong to any flow.
    #[cold]
    fn pass_malformed(&mut self, frame: &mut [u8], hash: Option<u32>, out: &mut impl Sink) {
        self.flush(out);
        out.deliver(&RxMeta { hash, ..RxMeta::default() }, frame);
    }

    /// Hands out a frame of a kind that is not coalesced. A fragment may belong to any flow between its addresses.
    fn pass_without_flow(&mut self, (frame, layout): Framed<'_>, (hash, _): Arrival, out: &mut impl Sink) {
        if layout.fragment {
            self.flush_between(layout.addresses(frame), out);
        }
        self.pass(frame, layout, hash, out);
    }

    /// Hands a frame out as it came, with the verdict on its checksums. A frame marked with a partial checksum loses
    /// its padding: the receiver completes the checksum over all bytes to the end of the frame. A frame with a trailer
    /// and a reply of a DHCP server keep their bytes, and go unmarked.
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

    /// Hands out one flow and gives its slot back.
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

    /// Hands out every flow between the two addresses, in the order of their starts.
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

/// Returns the metadata of a single frame.
fn alone(layout: &FrameLayout, checksum: ChecksumState, hash: Option<u32>) -> RxMeta {
    let header_len = match layout.transport {
        Transport::Opaque => 0,
        _ => layout.payload_start as u16,
    };
    RxMeta { checksum, header_len, hash, ..RxMeta::default() }
}

/// Returns whether this is a datagram to a DHCP client (RFC 2131 4.1). It reads raw frames before it has an address;
/// Linux' `xt_CHECKSUM` exists for these clients.
fn is_for_dhcp_client(frame: &[u8], layout: &FrameLayout) -> bool {
    let port_at = layout.transport_start + 2;
    layout.transport == Transport::Udp && frame.get(port_at..port_at + 2) == Some(&DHCP_CLIENT_PORT)
}

/// One buffer per flow, side by side in one allocation.
#[derive(Debug)]
struct Buffers {
    bytes: Vec<u8>,
    /// Offset of the first buffer: on a cache line.
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
