//! Repair of a super-frame's headers, for a receiver that gets the super-frame unsegmented.

use crate::checksum::{ipv4_header_is_good, pseudo_header, sum};
use crate::frame::Frame;
use crate::layout::{
    FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_TOTAL_LEN_OFFSET, IPV6_HEADER_LEN, IPV6_PAYLOAD_LEN_OFFSET, Network,
    Transport, UDP_LENGTH_OFFSET, be16, put16,
};
use crate::meta::SegmentationKind;

/// Repairs the headers of a frame with a segmentation request: IP and UDP lengths, the IPv4 header checksum, and the
/// length in the pseudo-header's sum. A segmenter derives these fields from the frame, but a receiver of the whole
/// frame reads them. Drivers for NDIS, DPDK and some BSDs can omit these fields.
///
/// Fields that are already correct are not written. A packet too long for its length fields stays unchanged.
#[inline]
pub fn repair_headers(frame: &mut Frame<'_>) {
    if frame.request().segmentation.is_some() {
        repair(frame);
    }
}

#[inline(never)]
fn repair(frame: &mut Frame<'_>) {
    let request = frame.request();
    let shared_len = frame.shared_len();
    let Ok((bytes, layout)) = frame.parts_mut() else { return };
    let layout = &FrameLayout { packet_end: layout.packet_end + shared_len, ..*layout };
    let Some(segmentation) = request.segmentation else { return };
    let Ok(packet_len) = u16::try_from(layout.packet_end - layout.network_start) else { return };
    let (len_at, len) = match layout.network {
        Network::Ipv4 => (layout.network_start + IPV4_TOTAL_LEN_OFFSET, packet_len),
        Network::Ipv6 => (layout.network_start + IPV6_PAYLOAD_LEN_OFFSET, packet_len - IPV6_HEADER_LEN as u16),
        Network::Opaque => return,
    };
    let is_fragments = segmentation.kind == SegmentationKind::UdpFragments;
    let segmented_len = if is_fragments { layout.transport_len() } else { layout.payload_len() };
    let is_single = segmented_len <= usize::from(segmentation.size);
    let written_len = be16(bytes, len_at);
    if is_single && written_len != 0 && written_len != len {
        return; // Padding can follow a packet of one segment.
    }
    write(bytes, len_at, len);
    if layout.transport == Transport::Udp {
        write(bytes, layout.transport_start + UDP_LENGTH_OFFSET, layout.transport_len() as u16);
    }
    if !ipv4_header_is_good(bytes, layout) {
        put16(bytes, layout.network_start + IPV4_CHECKSUM_OFFSET, 0);
        let checksum = sum(&bytes[layout.network_start..layout.transport_start]).checksum();
        put16(bytes, layout.network_start + IPV4_CHECKSUM_OFFSET, checksum);
    }
    if request.checksum.is_some_and(|partial| partial.field() == layout.checksum_field()) {
        repair_pseudo_header(bytes, layout);
    }
}

/// Repairs the pseudo-header's sum in the checksum field. Adds the missing length to a sum without length (from NDIS,
/// or DPDK's `rte_ipv4_phdr_cksum`), and replaces 0 by the whole sum. Any other value stays unchanged, because only the
/// host knows the final destination of a source route.
fn repair_pseudo_header(bytes: &mut [u8], layout: &FrameLayout) {
    if layout.transport == Transport::Opaque || layout.fragment || layout.network_options {
        return;
    }
    let field = layout.checksum_field();
    let (begun, without_len) = (be16(bytes, field), pseudo_header(bytes, layout, 0));
    if begun == 0 || begun == without_len.fold() {
        put16(bytes, field, pseudo_header(bytes, layout, layout.transport_len() as u32).fold());
    }
}

/// Writes a word unless the field already has this value: a write would dirty the cache line.
#[inline]
fn write(bytes: &mut [u8], at: usize, value: u16) {
    if be16(bytes, at) != value {
        put16(bytes, at, value);
    }
}
