//! Random super-frames and plain frames from a host, generated from a seed.

use super::support::packet::{Checksum, DESTINATION, DF, HOP_BY_HOP, Packet, ROUTING};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{Cwr, PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter, UDP_SEGMENTS_MAX};
use offramp_ports::vnet_hdr::{HEADER_LEN, NEEDS_CSUM, encode_tx};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

/// Maximum length of a payload, in bytes: an IPv4 packet of 65,535 bytes with the shortest headers.
const PAYLOAD_LEN_MAX: usize = 65_495;
/// Maximum value of an IP length field, in bytes.
const PACKET_LEN_MAX: usize = 65_535;
/// Segment sizes for common MTUs, TCP options and tunnels.
const COMMON_SIZES: [usize; 9] = [536, 1208, 1220, 1360, 1428, 1440, 1448, 1460, 1472];
/// IPv4 IDs at the edges of the 15-bit and 16-bit ranges.
const EDGE_IDS: [u16; 6] = [0, 1, 0x7ffe, 0x7fff, 0xfffe, 0xffff];
/// TCP options: NOP, NOP, timestamps.
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
/// TCP options: SACK permitted, timestamps.
const SACK_AND_TIMESTAMPS: [u8; 12] = [4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
/// `EtherType` values of VLAN tags.
const TAG_TYPES: [u16; 2] = [0x8100, 0x88a8];
/// The bytes of a VXLAN header (RFC 7348).
const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 7, 0];
const VXLAN_PORT: u16 = 4789;

/// A frame sent by a host, with its offload requests.
pub struct Vector {
    /// Name of the vector's kind.
    pub kind: &'static str,
    /// The packet.
    pub packet: Packet,
    /// The offload requests.
    pub meta: TxMeta,
    /// The virtio network header.
    pub header: [u8; HEADER_LEN],
    /// The bytes of the frame.
    pub frame: Vec<u8>,
}

/// Returns a random vector.
pub fn vector(random: &mut ChaCha8Rng) -> Vector {
    match random.random_range(0..100) {
        0..30 => tcp(random, false),
        30..60 => tcp(random, true),
        60..75 => datagrams(random),
        75..81 => fragments(random),
        81..88 => partial(random),
        88..92 => tunnelled(random),
        _ => plain(random),
    }
}

fn tcp(random: &mut ChaCha8Rng, is_ipv6: bool) -> Vector {
    let mut packet = Packet { is_ipv6, ..Packet::tcp(0) };
    shape(random, &mut packet);
    let size = fill(random, &mut packet, usize::MAX, 0);
    let kind = if is_ipv6 { SegmentationKind::Tcp6 } else { SegmentationKind::Tcp4 };
    let segmentation =
        Segmentation { kind, size: size as u16, cwr: if random.random_bool(0.3) { Cwr::First } else { Cwr::Unmarked } };
    let is_partial = random.random_bool(0.8);
    packet.checksum = if is_partial { Checksum::Partial } else { any_checksum(random) };
    let name = if is_ipv6 { "TCP over IPv6" } else { "TCP over IPv4" };
    finish(random, name, packet, is_partial, Some(segmentation))
}

fn datagrams(random: &mut ChaCha8Rng) -> Vector {
    let mut packet = Packet { is_ipv6: random.random(), checksum: Checksum::Partial, ..Packet::udp(0) };
    shape(random, &mut packet);
    let mut size = fill(random, &mut packet, UDP_SEGMENTS_MAX, 0);
    if random.random_bool(0.05) {
        // Choose a size near the maximum number of datagrams, above or below the limit.
        size = (packet.payload.len() / random.random_range(UDP_SEGMENTS_MAX - 8..UDP_SEGMENTS_MAX + 8)).max(1);
    }
    let segmentation = Segmentation::new(SegmentationKind::Udp, size as u16);
    let name = if packet.is_ipv6 { "UDP over IPv6" } else { "UDP over IPv4" };
    finish(random, name, packet, true, Some(segmentation))
}

fn fragments(random: &mut ChaCha8Rng) -> Vector {
    let mut packet = Packet { is_ipv6: random.random_bool(0.3), ..Packet::udp(0) };
    shape(random, &mut packet);
    let size = fill(random, &mut packet, usize::MAX, 8).next_multiple_of(8);
    let segmentation = Segmentation::new(SegmentationKind::UdpFragments, size as u16);
    let is_partial = random.random_bool(0.8);
    packet.checksum = if is_partial { Checksum::Partial } else { any_checksum(random) };
    let name = if packet.is_ipv6 { "UDP fragments over IPv6" } else { "UDP fragments over IPv4" };
    finish(random, name, packet, is_partial, Some(segmentation))
}

fn partial(random: &mut ChaCha8Rng) -> Vector {
    let mut packet = Packet { is_ipv6: random.random(), is_udp: random.random(), ..Packet::tcp(0) };
    shape(random, &mut packet);
    packet.checksum = Checksum::Partial;
    let len_max = if random.random_bool(0.9) { 1500 } else { 60_000 };
    packet.payload = random_bytes(random, len_max);
    finish(random, "partial checksum", packet, true, None)
}

/// Returns a VXLAN packet with a partial checksum in the inner packet.
fn tunnelled(random: &mut ChaCha8Rng) -> Vector {
    let mut inner = Packet { is_ipv6: random.random(), is_udp: random.random(), ..Packet::tcp(0) };
    shape(random, &mut inner);
    inner.checksum = Checksum::Partial;
    inner.payload = random_bytes(random, 1400);
    let mut outer = Packet { is_ipv6: random.random(), checksum: Checksum::Absent, ..Packet::udp(0) };
    shape(random, &mut outer);
    outer.ports.1 = VXLAN_PORT;
    outer.payload = [&VXLAN[..], &inner.build()].concat();
    let start = outer.payload_start() + VXLAN.len() + inner.transport_start();
    let checksum = Some(PartialChecksum { start: start as u16, offset: inner.checksum_offset() as u16 });
    let meta = TxMeta { checksum, segmentation: None };
    Vector { kind: "tunnelled checksum", frame: outer.build(), header: encode_tx(&meta), packet: outer, meta }
}

/// Returns a frame without requests, which must arrive unchanged.
fn plain(random: &mut ChaCha8Rng) -> Vector {
    let mut packet = Packet { is_ipv6: random.random(), is_udp: random.random(), ..Packet::tcp(0) };
    shape(random, &mut packet);
    packet.checksum = any_checksum(random);
    packet.payload = random_bytes(random, 1500);
    packet.padding = random.random_range(0..20);
    let mut vector = finish(random, "plain", packet, false, None);
    if random.random_bool(0.3) {
        // The adapter must ignore the contents of a frame without requests.
        let at = vector.packet.network_start();
        random.fill_bytes(&mut vector.frame[at..]);
    }
    vector
}

fn any_checksum(random: &mut ChaCha8Rng) -> Checksum {
    [Checksum::Full, Checksum::Partial, Checksum::Wrong, Checksum::Absent][random.random_range(0..4)]
}

/// Chooses all properties of a packet except payload and checksum.
fn shape(random: &mut ChaCha8Rng, packet: &mut Packet) {
    let tags = [0, 0, 0, 1, 2][random.random_range(0..5)];
    packet.tags = (0..tags).map(|_| (TAG_TYPES[random.random_range(0..2)], random.random())).collect();
    packet.class = random.random();
    packet.hops = random.random();
    packet.id = if random.random_bool(0.5) { EDGE_IDS[random.random_range(0..6)] } else { random.random() };
    packet.fragment = match random.random_range(0..10) {
        0..4 => 0,
        4..8 => DF,
        _ => random.random(),
    };
    packet.flow_label = random.random();
    packet.ports = (random.random(), random.random());
    packet.seq = if random.random_bool(0.2) { u32::MAX - random.random_range(0..70_000) } else { random.random() };
    packet.ack = random.random();
    packet.flags = random.random();
    packet.window = random.random();
    packet.urgent = random.random();
    if packet.is_ipv6 {
        packet.extensions = extensions(random);
    } else if random.random_bool(0.2) {
        let len = 4 * random.random_range(1..=10);
        packet.ip_options = random_bytes_of_len(random, len);
    }
    if !packet.is_udp {
        packet.options = tcp_options(random);
    }
}

fn tcp_options(random: &mut ChaCha8Rng) -> Vec<u8> {
    match random.random_range(0..10) {
        0..3 => Vec::new(),
        3..6 => TIMESTAMPS.to_vec(),
        6..8 => SACK_AND_TIMESTAMPS.to_vec(),
        8 => random_bytes_of_len(random, 40),
        _ => {
            let len = 4 * random.random_range(1..10);
            random_bytes_of_len(random, len)
        }
    }
}

/// Returns zero, one or several extension headers. A hop-by-hop header is always the first (RFC 8200 4.1).
fn extensions(random: &mut ChaCha8Rng) -> Vec<(u8, Vec<u8>)> {
    let count = [0, 0, 0, 1, 1, 2, 3][random.random_range(0..7)];
    let mut one = |n: usize| {
        let kinds = if n == 0 { &[HOP_BY_HOP, ROUTING, DESTINATION][..] } else { &[ROUTING, DESTINATION] };
        let kind = kinds[random.random_range(0..kinds.len())];
        let units = if random.random_bool(0.05) { random.random() } else { random.random_range(0..4) };
        let mut body = random_bytes_of_len(random, (usize::from(units) + 1) * 8 - 1);
        body[0] = units;
        (kind, body)
    };
    (0..count).map(&mut one).collect()
}

/// Chooses a segment size and a payload, and returns the segment size. `counted` is the number of header bytes that
/// count as payload.
fn fill(random: &mut ChaCha8Rng, packet: &mut Packet, count_max: usize, counted: usize) -> usize {
    let headers = packet.payload_start() - packet.network_start();
    let payload_max = PAYLOAD_LEN_MAX.min(PACKET_LEN_MAX - headers);
    let size = match random.random_range(0..20) {
        0 => random.random_range(1..8),
        1..3 => random.random_range(8..64),
        3..5 => random.random_range(64..536),
        5..13 => COMMON_SIZES[random.random_range(0..COMMON_SIZES.len())],
        13..17 => random.random_range(536..1461),
        17..19 => random.random_range(1461..9001),
        _ => random.random_range(9001..60_000),
    };
    let count = match random.random_range(0..200) {
        0..150 => random.random_range(0..6),
        150..190 => random.random_range(6..48),
        190..199 => random.random_range(48..400),
        _ => PAYLOAD_LEN_MAX,
    };
    let edge = [-1, 0, 0, 1, random.random_range(0..size as i64)][random.random_range(0..5)];
    let wanted = (size * count.min(count_max)).saturating_add_signed(edge as isize).saturating_sub(counted);
    packet.payload = random_bytes_of_len(random, wanted.min(payload_max));
    size
}

fn random_bytes(random: &mut ChaCha8Rng, len_max: usize) -> Vec<u8> {
    let len = random.random_range(0..=len_max);
    random_bytes_of_len(random, len)
}

fn random_bytes_of_len(random: &mut ChaCha8Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    bytes
}

fn finish(
    random: &mut ChaCha8Rng,
    kind: &'static str,
    packet: Packet,
    is_partial: bool,
    segmentation: Option<Segmentation>,
) -> Vector {
    let partial = PartialChecksum { start: packet.transport_start() as u16, offset: packet.checksum_offset() as u16 };
    let meta = TxMeta { checksum: is_partial.then_some(partial), segmentation };
    let mut frame = packet.build();
    if segmentation.is_some() {
        falsify_lengths(random, &packet, &mut frame);
    }
    if is_partial && packet.extensions.iter().any(|(kind, _)| *kind == ROUTING) {
        // With a routing header, the host's checksum covers the final destination, which is not in the IPv6 header. So
        // the field can have any value.
        let field = partial.field();
        frame[field..field + 2].copy_from_slice(&random.random::<u16>().to_be_bytes());
    }
    if random.random_bool(0.3) {
        fold_to_zero(random, &packet, &meta, &mut frame);
    }
    let mut header = encode_tx(&meta);
    if segmentation.is_some() && random.random_bool(0.5) {
        // The header length is only a hint. Choose any value after the Ethernet header and inside the frame.
        let longest = frame.len().min(usize::from(u16::MAX)) as u16;
        let header_len =
            if random.random() { packet.payload_start() as u16 } else { random.random_range(14..=longest) };
        header[2..4].copy_from_slice(&header_len.to_le_bytes());
    }
    if random.random_bool(0.1) {
        // Set random flags that have no meaning for a sending host.
        header[0] |= random.random::<u8>() & !NEEDS_CSUM;
    }
    Vector { kind, packet, meta, header, frame }
}

/// Changes the length and checksum in a super-frame's IP header. Segmentation overwrites both fields, so any value is
/// valid.
fn falsify_lengths(random: &mut ChaCha8Rng, packet: &Packet, frame: &mut [u8]) {
    let at = packet.network_start() + if packet.is_ipv6 { 4 } else { 2 };
    let value = match random.random_range(0..6) {
        0 => 0,
        1 => random.random(),
        _ => return,
    };
    frame[at..at + 2].copy_from_slice(&u16::to_be_bytes(value));
    if !packet.is_ipv6 {
        let at = packet.network_start() + 10;
        frame[at..at + 2].copy_from_slice(&random.random::<u16>().to_be_bytes());
    }
}

/// Chooses two bytes of payload so that the checksum of one frame becomes 0. The value of the two bytes is the frame's
/// checksum computed while the bytes are 0. If the checksum computed here is wrong, the two bytes are wrong, and the
/// comparison fails.
fn fold_to_zero(random: &mut ChaCha8Rng, packet: &Packet, meta: &TxMeta, frame: &mut [u8]) {
    let is_fragments = meta.segmentation.is_some_and(|s| s.kind == SegmentationKind::UdpFragments);
    let size = match meta.segmentation {
        Some(segmentation) if !is_fragments => usize::from(segmentation.size),
        _ => packet.payload.len(), // The whole payload has one checksum.
    };
    let which = random.random_range(0..packet.payload.len().div_ceil(size.max(1)).max(1));
    let at = packet.payload_start() + which * size;
    if at + 2 > packet.payload_start() + packet.payload.len() {
        return;
    }
    frame[at..at + 2].fill(0);
    let mut copy = frame.to_vec();
    let whole = Frame::new(&mut copy, *meta);
    let Ok(mut segmenter) = Segmenter::new(&whole, &SegmentPolicy::default()) else { return };
    let has_fragment_header = is_fragments && packet.is_ipv6 && segmenter.frames_left() > 1;
    for _ in 0..which {
        segmenter.skip_next();
    }
    let mut out = vec![0; segmenter.next_len()];
    segmenter.write_next(&whole, &mut out);
    let field = packet.transport_start() + packet.checksum_offset() + if has_fragment_header { 8 } else { 0 };
    frame[at..at + 2].copy_from_slice(&[out[field], out[field + 1]]);
}
