//! Tests of super-frames handed over whole. If Linux segments such a super-frame, the result must equal offramp's
//! segments, even if a driver left header fields empty.

use crate::packet::{Checksum, DF, FIN, MF, PSH, Packet, pattern, slow_sum};
use crate::support::MemoryHost;
use offramp_adapter::stats::Loss;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use proptest::prelude::*;

/// Sends a broadcast frame from one port. Returns the frames received by a port with all offloads, and by a port
/// without offloads.
fn flooded(request: TxMeta, frame: &[u8]) -> [Vec<(RxMeta, Vec<u8>)>; 2] {
    let mut switch = Switch::new(&SwitchConfig::default());
    for accepts in [Offloads::all(), Offloads::all(), Offloads::empty()] {
        let host = MemoryHost { accepts: Some(accepts), ..MemoryHost::default() };
        switch.control().add(host, &PortConfig { mtu: 9_000, flood_limit: None, ..PortConfig::default() }).unwrap();
    }
    switch.poll(0);
    let frame = [&[0xff; 6], &frame[6..]].concat();
    switch.host_mut(0).unwrap().to_send.push_back((request, frame));
    while switch.poll(0).moved {}
    let stats = &switch.control().ports()[0];
    let given = [1, 2].map(|port| std::mem::take(&mut switch.host_mut(port).unwrap().given));
    let refused = stats.stats().transmit.lost(Loss::BadRequest);
    assert_eq!(refused == 1, given.iter().all(Vec::is_empty), "{refused} refused");
    given
}

fn request(packet: &Packet, size: u16) -> TxMeta {
    let kind = match (packet.is_udp, packet.is_ipv6) {
        (true, _) => SegmentationKind::Udp,
        (false, true) => SegmentationKind::Tcp6,
        (false, false) => SegmentationKind::Tcp4,
    };
    let partial = PartialChecksum { start: packet.transport_start() as u16, offset: packet.checksum_offset() as u16 };
    TxMeta { checksum: Some(partial), segmentation: Some(Segmentation::new(kind, size)) }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Number of combinations of the bits of [`emptied`].
const EMPTY: u8 = 1 << 5;

/// Builds the frame without the fields selected by the bits of `empty`. The fields are the IP length, the IPv4 header
/// checksum, the UDP length, the length in the pseudo-header sum, and the whole pseudo-header sum.
fn emptied(packet: &Packet, empty: u8) -> Vec<u8> {
    let mut frame = packet.build();
    let (network, transport) = (packet.network_start(), packet.transport_start());
    let field = transport + packet.checksum_offset();
    let without_len = slow_sum(&[&packet.addresses(), &[0, packet.protocol()]]);
    let fields = [
        (network + if packet.is_ipv6 { 4 } else { 2 }, 0, true),
        (network + 10, 0, !packet.is_ipv6),
        (transport + 4, 0, packet.is_udp),
        (field, without_len, true),
        (field, 0, true),
    ];
    for (bit, (at, value, exists)) in fields.into_iter().enumerate() {
        if exists && empty & 1 << bit != 0 {
            put(&mut frame, at, value);
        }
    }
    frame
}

/// Segments a super-frame by Linux's rules: `ip_rcv` and `ipv6_rcv` drop a packet with a wrong length or header
/// checksum. For the checksum, `udp_gso_segment` takes the old length from the UDP header, and `tcp_gso_segment` from
/// the frame.
fn segmented_by_linux((meta, frame): &(RxMeta, Vec<u8>), packet: &Packet) -> Vec<Vec<u8>> {
    let (network, transport, payload_at) = (packet.network_start(), packet.transport_start(), packet.payload_start());
    let Some(segmentation) = meta.segmentation else { return vec![completed(meta, frame)] };
    let packet_len = frame.len() - network;
    if packet.is_ipv6 {
        assert_eq!(usize::from(word(frame, network + 4)), packet_len - 40);
    } else {
        assert_eq!(usize::from(word(frame, network + 2)), packet_len);
        assert_eq!(slow_sum(&[&frame[network..transport]]), 0xffff);
    }
    let field = transport + packet.checksum_offset();
    let udp_len = if packet.is_udp { word(frame, transport + 4) } else { 0 };
    assert!(!packet.is_udp || usize::from(udp_len) == frame.len() - transport);
    let chunks: Vec<_> = frame[payload_at..].chunks(usize::from(segmentation.size)).collect();
    let cut = |(n, chunk): (usize, &&[u8])| {
        let mut out = [&frame[..payload_at], chunk].concat();
        let (ip_len, transport_len) = ((out.len() - network) as u16, (out.len() - transport) as u16);
        if packet.is_ipv6 {
            put(&mut out, network + 4, ip_len - 40);
        } else {
            put(&mut out, network + 2, ip_len);
            put(&mut out, network + 4, word(frame, network + 4).wrapping_add(n as u16));
            put(&mut out, network + 10, 0);
            let checksum = !slow_sum(&[&out[network..transport]]);
            put(&mut out, network + 10, checksum);
        }
        let old_len = if packet.is_udp { udp_len } else { (frame.len() - transport) as u16 };
        let begun =
            slow_sum(&[&word(frame, field).to_be_bytes(), &(!old_len).to_be_bytes(), &transport_len.to_be_bytes()]);
        if packet.is_udp {
            put(&mut out, transport + 4, transport_len);
        } else {
            let seq = packet.seq.wrapping_add(n as u32 * u32::from(segmentation.size));
            out[transport + 4..transport + 8].copy_from_slice(&seq.to_be_bytes());
            out[transport + 13] &= if n + 1 < chunks.len() { !(FIN | PSH) as u8 } else { 0xff };
        }
        put(&mut out, field, begun);
        let checksum = !slow_sum(&[&out[transport..]]);
        put(&mut out, field, if checksum == 0 && packet.is_udp { 0xffff } else { checksum });
        out
    };
    chunks.iter().enumerate().map(cut).collect()
}

/// Completes the checksum of a frame as a host does.
fn completed(meta: &RxMeta, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let ChecksumState::Partial(partial) = meta.checksum {
        let checksum = !slow_sum(&[&frame[usize::from(partial.start)..]]);
        put(&mut frame, partial.field(), if checksum == 0 { 0xffff } else { checksum });
    }
    frame
}

fn packet() -> impl Strategy<Value = Packet> {
    (any::<[bool; 3]>(), 1..60_000_usize, any::<(u16, u32)>(), 0..4_usize).prop_map(
        |([is_ipv6, is_udp, has_tag], len, (id, seq), options)| {
            let template = if is_udp { Packet::udp(0) } else { Packet::tcp(0) };
            Packet {
                is_ipv6,
                tags: if has_tag { vec![(0x8100, 7)] } else { Vec::new() },
                fragment: DF,
                id,
                seq,
                flags: template.flags | PSH,
                options: if is_udp { Vec::new() } else { vec![1; 4 * options] },
                payload: pattern(seq, len),
                checksum: Checksum::Partial,
                ..template
            }
        },
    )
}

proptest! {
    #[test]
    fn a_super_frame_segmented_by_its_receiver_gives_the_frames_that_we_segment(
        packet in packet(), size in 8..8_900_u16, empty in 0..EMPTY,
    ) {
        let [whole, cut] = flooded(request(&packet, size), &emptied(&packet, empty));
        prop_assert!(whole.len() <= 1);
        let ours: Vec<_> = cut.into_iter().map(|(_, frame)| frame).collect();
        let by_receiver: Vec<_> = whole.iter().flat_map(|whole| segmented_by_linux(whole, &packet)).collect();
        prop_assert_eq!(by_receiver, ours);
    }
}

/// Linux 7 raises a segment size below 8. A receiver holds a fragment until it has all other fragments of the packet.
#[test]
fn a_super_frame_that_its_receiver_would_change_or_lose_is_segmented() {
    let tcp = Packet { checksum: Checksum::Partial, ..Packet::tcp(70) };
    for (packet, size) in [(tcp.clone(), 7), (Packet { fragment: MF, ..tcp }, 35)] {
        let [whole, cut] = flooded(request(&packet, size), &packet.build());
        assert_eq!(whole.len(), 70 / usize::from(size));
        let strip = |given: Vec<(RxMeta, Vec<u8>)>| given.into_iter().map(|(m, frame)| completed(&m, &frame)).collect();
        let [whole, cut]: [Vec<_>; 2] = [whole, cut].map(strip);
        assert_eq!(whole, cut);
    }
}
