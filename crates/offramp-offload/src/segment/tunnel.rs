//! Super-frames in a tunnel, as delivered by Linux on a packet socket. Segmentation and checksum are requested for the
//! inner packet, and no field names the tunnel.
//!
//! A virtio header of 12 bytes cannot describe such super-frames. So [`TunnelSegmenter`] turns each super-frame into
//! frames that such a header can describe:
//!
//! | outer packet | frames |
//! |---|---|
//! | UDP: VXLAN, VXLAN-GPE, Geneve, FOU, GUE | UDP super-frames; per datagram: tunnel headers, one inner segment |
//! | GRE (with key or checksum), IP in IP | one complete frame per inner segment |
//!
//! The outer UDP checksum is requested even if the sender omitted it. USO does not support datagrams without a
//! checksum, and every endpoint must accept a checksum (RFC 7348 4, RFC 8926 3.3, RFC 6935 5). All other bytes equal
//! the output of Linux' GSO. The following are refused: a second tunnel inside the first, GRE with sequence numbers,
//! remote checksum offload, inner extension headers.

use super::{Refused, SegmentPolicy, Segmenter};
use crate::checksum;
use crate::frame::Frame;
use crate::layout::{
    ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_HEADER_LEN_MIN,
    IPV4_ID_OFFSET, IPV4_TOTAL_LEN_OFFSET, IPV6_HEADER_LEN, IPV6_PAYLOAD_LEN_OFFSET, Network, Transport,
    UDP_LENGTH_OFFSET, be16, link_header_len, put16,
};
use crate::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};

/// Protocol numbers of IPv4 and IPv6 in IP (RFC 2003, RFC 2473).
const PROTOCOLS_IP_IN_IP: [u8; 2] = [4, 41];
/// Protocol number of GRE (RFC 2784).
const PROTOCOL_GRE: u8 = 47;
/// GRE's flag for the optional checksum word (RFC 2890 2). Flags other than checksum and key are not supported.
const GRE_CHECKSUM: u16 = 0x8000;
/// GRE's flag for the optional key word (RFC 2890 2).
const GRE_KEY: u16 = 0x2000;
const GRE_WORD_LEN: usize = 4;
/// Length in bytes of a VXLAN header, and of a Geneve header without options (RFC 7348 5, RFC 8926 3.4).
const VXLAN_HEADER_LEN: usize = 8;
/// Mask for Geneve's option length in the first header byte, in units of 4 bytes.
const GENEVE_OPTIONS: u8 = 0x3f;
/// Flag for remote checksum offload in VXLAN's second byte (Linux `VXLAN_HF_RCO`). With this flag, the inner checksum
/// is not complete.
const VXLAN_REMOTE_CHECKSUM: u8 = 0x20;
/// Maximum number of datagrams in a super-frame, as in Linux' GRO (`UDP_GRO_CNT_MAX`).
const DATAGRAMS_MAX: u16 = 64;
/// Maximum length of an IP packet in bytes.
const PACKET_LEN_MAX: usize = u16::MAX as usize;
/// Length of GUE's header without optional fields, in bytes.
const GUE_HEADER_LEN: usize = 4;

/// Writes the frames of one super-frame in a tunnel, one by one. The caller passes the same frame to every call.
#[derive(Clone, Debug)]
pub struct TunnelSegmenter {
    /// All headers before the inner IP header.
    head: Vec<u8>,
    outer: FrameLayout,
    /// Request for the inner packet, with offsets as if an Ethernet header directly preceded the inner packet.
    inner: TxMeta,
    pub(super) segments: Segmenter,
    /// IPv4 ID of the next outer packet.
    id: u16,
}

impl TunnelSegmenter {
    /// Plans the output frames for `frame`. Returns `None` if the frame has no request, or a request for the outer
    /// transport. If the request is for an inner packet, overwrites the two bytes before the inner IP header.
    ///
    /// # Errors
    /// Returns an error if the tunnel is unknown, or the frame's bytes do not allow the request. After an error, the
    /// caller must send no part of the frame.
    pub fn new(frame: &mut Frame<'_>) -> Result<Option<Self>, Refused> {
        let TxMeta { checksum: Some(partial), segmentation: Some(segmentation) } = frame.request() else {
            return Ok(None);
        };
        let Ok((bytes, &outer)) = frame.parts_mut() else { return Ok(None) };
        let inner_transport = usize::from(partial.start);
        if outer.network == Network::Opaque || inner_transport <= outer.transport_start {
            return Ok(None);
        }
        let at = inner_packet(bytes, &outer, inner_transport).ok_or(Refused::Tunnel)?;
        if segmentation.kind == SegmentationKind::UdpFragments || outer.fragment {
            return Err(Refused::Tunnel);
        }
        let head = bytes[..at].to_vec();
        put16(bytes, at - 2, if bytes[at] >> 4 == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 });
        let ethernet = at - ETHERNET_HEADER_LEN;
        let checksum = PartialChecksum { start: (inner_transport - ethernet) as u16, ..partial };
        let inner = TxMeta { checksum: Some(checksum), segmentation: Some(segmentation) };
        let segments = Segmenter::new(&Frame::new(&mut bytes[ethernet..], inner), &SegmentPolicy::default())?;
        if ethernet - outer.network_start + segments.next_len() > PACKET_LEN_MAX {
            return Err(Refused::TooLong);
        }
        let id = be16(&head, outer.network_start + IPV4_ID_OFFSET);
        Ok(Some(Self { head, outer, inner, segments, id }))
    }

    /// Writes the next frame to the front of `out`. Returns the frame's length and request. Returns `None` after the
    /// last frame, or if `out` is shorter than the next frame.
    pub fn write_next(&mut self, frame: &mut Frame<'_>, out: &mut [u8]) -> Option<(usize, TxMeta)> {
        let ethernet = self.head.len() - ETHERNET_HEADER_LEN;
        let inner = Frame::new(frame.bytes_mut().get_mut(ethernet..)?, self.inner);
        let is_udp = self.outer.transport == Transport::Udp;
        let (tunnel_at, segments_max) =
            if is_udp { (self.outer.payload_start, DATAGRAMS_MAX) } else { (self.head.len(), 1) };
        let (outer_head, tunnel) = self.head.split_at(tunnel_at);
        let room = out.len().min(self.outer.network_start + PACKET_LEN_MAX);
        let size = (tunnel.len() + self.segments.next_len()).saturating_sub(ETHERNET_HEADER_LEN);
        let (mut end, mut count) = (tunnel_at, 0);
        while count < segments_max && self.segments.frames_left() > 0 {
            // The segment's Ethernet header overwrites bytes before the segment. The overwritten bytes are restored
            // from `kept`, or replaced by the tunnel's headers.
            let at = end + tunnel.len() - ETHERNET_HEADER_LEN;
            let segment_end = at + self.segments.next_len();
            if segment_end > room {
                break;
            }
            let kept: [u8; ETHERNET_HEADER_LEN] = *out[at..].first_chunk()?;
            self.segments.write_next(&inner, &mut out[at..segment_end]);
            out[at..at + ETHERNET_HEADER_LEN].copy_from_slice(&kept);
            out[end..end + tunnel.len()].copy_from_slice(tunnel);
            (end, count) = (segment_end, count + 1);
        }
        if count == 0 {
            return None;
        }
        out[..tunnel_at].copy_from_slice(outer_head);
        let out = &mut out[..end];
        self.write_network(out);
        self.id = self.id.wrapping_add(count);
        let datagrams = Segmentation::new(SegmentationKind::Udp, size as u16);
        let checksum = self.write_transport(out);
        Some((end, TxMeta { checksum, segmentation: (count > 1).then_some(datagrams) }))
    }

    /// Writes the frame-dependent fields of the outer IP header.
    fn write_network(&self, out: &mut [u8]) {
        let at = self.outer.network_start;
        let packet_len = (out.len() - at) as u16;
        if self.outer.network == Network::Ipv6 {
            return put16(out, at + IPV6_PAYLOAD_LEN_OFFSET, packet_len - IPV6_HEADER_LEN as u16);
        }
        for (offset, value) in
            [(IPV4_TOTAL_LEN_OFFSET, packet_len), (IPV4_ID_OFFSET, self.id), (IPV4_CHECKSUM_OFFSET, 0)]
        {
            put16(out, at + offset, value);
        }
        let checksum = checksum::sum(&out[at..self.outer.transport_start]).checksum();
        put16(out, at + IPV4_CHECKSUM_OFFSET, checksum);
    }

    /// Writes the frame-dependent fields of the outer UDP or GRE header. Returns the checksum that the receiver of the
    /// frame must complete, if any.
    fn write_transport(&self, out: &mut [u8]) -> Option<PartialChecksum> {
        let at = self.outer.transport_start;
        if self.outer.transport == Transport::Udp {
            let len = (out.len() - at) as u16;
            put16(out, at + UDP_LENGTH_OFFSET, len);
            return Frame::received(out).make_partial();
        }
        if self.outer.protocol == PROTOCOL_GRE && be16(out, at) & GRE_CHECKSUM != 0 {
            put16(out, at + GRE_WORD_LEN, 0);
            let checksum = checksum::sum(&out[at..]).checksum();
            put16(out, at + GRE_WORD_LEN, checksum);
        }
        None
    }
}

/// Returns the offset of the inner packet. The headers of a known tunnel end at this offset, and the inner headers end
/// at `transport`.
fn inner_packet(frame: &[u8], outer: &FrameLayout, transport: usize) -> Option<usize> {
    let packet = |at| ends_at(frame, at, transport).then_some(at);
    let behind_ethernet = |at: usize| link_header_len(frame.get(at..)?).ok().and_then(|len| packet(at + len));
    let any = |at| packet(at).or_else(|| behind_ethernet(at));
    if outer.transport == Transport::Udp {
        let body = outer.payload_start;
        let header: &[u8; VXLAN_HEADER_LEN] = frame.get(body..)?.first_chunk()?;
        let is_gue = header[0] == 0;
        let has_whole_checksums = header[1] & VXLAN_REMOTE_CHECKSUM == 0;
        let options = usize::from(header[0] & GENEVE_OPTIONS) * 4;
        let fou = packet(body);
        let gue = || packet(body + GUE_HEADER_LEN).filter(|_| is_gue);
        let vxlan = || any(body + VXLAN_HEADER_LEN).or_else(|| any(body + VXLAN_HEADER_LEN + options));
        return fou.or_else(gue).or_else(|| vxlan().filter(|_| has_whole_checksums));
    }
    match outer.protocol {
        protocol if PROTOCOLS_IP_IN_IP.contains(&protocol) => packet(outer.transport_start),
        PROTOCOL_GRE => {
            let flags = be16(frame.get(outer.transport_start..)?.first_chunk::<2>()?, 0);
            let words = 1 + (flags & (GRE_CHECKSUM | GRE_KEY)).count_ones() as usize;
            let is_known = flags & !(GRE_CHECKSUM | GRE_KEY) == 0;
            any(outer.transport_start + words * GRE_WORD_LEN).filter(|_| is_known)
        }
        _ => None,
    }
}

/// Returns whether an IP header begins at `at` and ends at `end`. The IPv4 header checksum distinguishes a header from
/// other bytes.
fn ends_at(frame: &[u8], at: usize, end: usize) -> bool {
    let Some(header) = frame.get(at..end) else { return false };
    match header.first() {
        Some(first) if first >> 4 == 4 => {
            let len = usize::from(first & 0x0f) * 4;
            header.len() >= IPV4_HEADER_LEN_MIN && header.len() == len && checksum::sum(header).is_right()
        }
        Some(first) => first >> 4 == 6 && header.len() == IPV6_HEADER_LEN,
        None => false,
    }
}
