//! Helpers of all tests of the coalescer: a small frame builder and a segmenter, independent of the code under test.

mod linux;
mod metadata;
mod order;
mod properties;
mod runs;

use super::*;
use crate::layout::LengthFrom;
use crate::meta::{Cwr, TxMeta};
use crate::segment::{SegmentPolicy, Segmenter};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;
const AE: u8 = 0x01;
/// Receive offloads of a host without AccECN support.
const ALL: Offloads = Offloads::RX.difference(Offloads::RSC_ACCECN);
/// TCP options: NOP, NOP, timestamps with value 7 and echo 9.
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

/// Computes the sum defined in RFC 1071 section 1, word by word.
fn slow_sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The description of a frame to build.
#[derive(Clone, Debug)]
struct Spec {
    source_mac: u8,
    destination_mac: u8,
    /// Whole VLAN tags: TPID and TCI.
    tags: Vec<u8>,
    is_ipv6: bool,
    is_udp: bool,
    /// Last byte of the source address.
    source: u8,
    source_port: u16,
    tos: u8,
    ttl: u8,
    id: u16,
    fragment_field: u16,
    flow_label: u16,
    ip_options: Vec<u8>,
    /// Contents of an IPv6 destination-options header of eight bytes: the six bytes after next header and length.
    destination_options: Option<[u8; 6]>,
    seq: u32,
    ack: u32,
    flags: u8,
    /// AE bit of the TCP header, above the eight bits of `flags`.
    ae: u8,
    window: u16,
    urgent: u16,
    tcp_options: Vec<u8>,
    payload: Vec<u8>,
    padding: usize,
    checksum: Checksum,
    ip_checksum_is_bad: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksum {
    Right,
    Wrong,
    Absent,
}

/// Returns bytes whose values encode their offset in the stream, so that a test detects every swap.
fn stream(seq: u32, len: usize) -> Vec<u8> {
    (seq..seq + len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Returns a TCP segment over IPv4 at sequence number `seq`, with `len` bytes of payload and IPv4 ID 1000.
fn tcp(seq: u32, len: usize) -> Spec {
    Spec {
        source_mac: 1,
        destination_mac: 2,
        tags: Vec::new(),
        is_ipv6: false,
        is_udp: false,
        source: 1,
        source_port: 1500,
        tos: 0,
        ttl: 64,
        id: 1000,
        fragment_field: 0x4000,
        flow_label: 5,
        ip_options: Vec::new(),
        destination_options: None,
        seq,
        ack: 77,
        flags: ACK,
        ae: 0,
        window: 502,
        urgent: 0,
        tcp_options: Vec::new(),
        payload: stream(seq, len),
        padding: 0,
        checksum: Checksum::Right,
        ip_checksum_is_bad: false,
    }
}

/// Returns consecutive TCP segments with payloads of these sizes, and with increasing IPv4 IDs.
fn tcp_run(sizes: &[usize]) -> Vec<Spec> {
    let mut seq = 10_000;
    let specs = sizes.iter().enumerate().map(|(n, len)| {
        let spec = Spec { id: 1000 + n as u16, ..tcp(seq, *len) };
        seq += *len as u32;
        spec
    });
    specs.collect()
}

/// Returns UDP datagrams with payloads of these sizes, and with increasing IPv4 IDs.
fn udp_run(sizes: &[usize]) -> Vec<Spec> {
    tcp_run(sizes).into_iter().map(|spec| Spec { is_udp: true, ..spec }).collect()
}

fn to_ipv6(specs: Vec<Spec>) -> Vec<Spec> {
    specs.into_iter().map(|spec| Spec { is_ipv6: true, ..spec }).collect()
}

/// Pads a frame to the minimum length of Ethernet.
fn padded(spec: Spec) -> Spec {
    Spec { padding: 60_usize.saturating_sub(spec.build().len()), ..spec }
}

/// Changes frame `at` of `specs`.
fn with(mut specs: Vec<Spec>, at: usize, change: impl Fn(&mut Spec)) -> Vec<Spec> {
    change(&mut specs[at]);
    specs
}

/// Changes every frame of `specs`.
fn with_all(mut specs: Vec<Spec>, change: impl Fn(usize, &mut Spec)) -> Vec<Spec> {
    specs.iter_mut().enumerate().for_each(|(n, spec)| change(n, spec));
    specs
}

impl Spec {
    fn addresses(&self) -> (Vec<u8>, Vec<u8>) {
        if self.is_ipv6 {
            let mut source = vec![0xfd; 16];
            let mut destination = vec![0xfc; 16];
            source[15] = self.source;
            destination[15] = 200;
            (source, destination)
        } else {
            (vec![192, 0, 2, self.source], vec![192, 0, 2, 200])
        }
    }

    fn protocol(&self) -> u8 {
        if self.is_udp { 17 } else { 6 }
    }

    fn transport(&self) -> Vec<u8> {
        let mut header = Vec::new();
        header.extend(self.source_port.to_be_bytes());
        header.extend(8000u16.to_be_bytes());
        let checksum_at = if self.is_udp {
            header.extend((8 + self.payload.len() as u16).to_be_bytes());
            header.extend([0, 0]);
            6
        } else {
            header.extend(self.seq.to_be_bytes());
            header.extend(self.ack.to_be_bytes());
            header.extend([(5 + self.tcp_options.len() as u8 / 4) << 4 | self.ae, self.flags]);
            header.extend(self.window.to_be_bytes());
            header.extend([0, 0]);
            header.extend(self.urgent.to_be_bytes());
            header.extend(&self.tcp_options);
            16
        };
        header.extend(&self.payload);
        let (source, destination) = self.addresses();
        let len = (header.len() as u32).to_be_bytes();
        let mut checksum = !slow_sum(&[&source, &destination, &len, &[0, self.protocol()], &header]);
        if self.is_udp && checksum == 0 {
            checksum = 0xffff;
        }
        match self.checksum {
            Checksum::Right => {}
            Checksum::Wrong => checksum ^= 0x1000,
            Checksum::Absent => checksum = 0,
        }
        header[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn network(&self, transport_len: usize) -> Vec<u8> {
        let (source, destination) = self.addresses();
        let mut header = Vec::new();
        if self.is_ipv6 {
            let extension = self.destination_options.map_or(0, |_| 8);
            header.extend([0x60 | self.tos >> 4, self.tos << 4]);
            header.extend(self.flow_label.to_be_bytes());
            header.extend((extension as u16 + transport_len as u16).to_be_bytes());
            header.extend([if extension > 0 { 60 } else { self.protocol() }, self.ttl]);
            header.extend(source);
            header.extend(destination);
            if let Some(options) = self.destination_options {
                header.extend([self.protocol(), 0]);
                header.extend(options);
            }
            return header;
        }
        let header_len = 20 + self.ip_options.len();
        header.extend([0x40 | (header_len / 4) as u8, self.tos]);
        header.extend((header_len as u16 + transport_len as u16).to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(self.fragment_field.to_be_bytes());
        header.extend([self.ttl, self.protocol(), 0, 0]);
        header.extend(source);
        header.extend(destination);
        header.extend(&self.ip_options);
        let mut checksum = !slow_sum(&[&header]);
        if self.ip_checksum_is_bad {
            checksum ^= 1;
        }
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn build(&self) -> Vec<u8> {
        let transport = self.transport();
        let mut frame = vec![2, 0, 0, 0, 0, self.destination_mac, 2, 0, 0, 0, 0, self.source_mac];
        frame.extend(&self.tags);
        frame.extend(if self.is_ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        frame.extend(self.network(transport.len()));
        frame.extend(transport);
        frame.extend(std::iter::repeat_n(0, self.padding));
        frame
    }
}

/// A frame delivered by the coalescer: its metadata and its bytes.
type Delivered = (RxMeta, Vec<u8>);

fn push_one(coalescer: &mut Coalescer, frame: &[u8], enabled: Offloads, now_ns: u64, delivered: &mut Vec<Delivered>) {
    let mut frame = frame.to_vec();
    let mut out = |meta: &RxMeta, bytes: &[u8]| delivered.push((*meta, bytes.to_vec()));
    coalescer.push(Frame::received(&mut frame), enabled, None, now_ns, &mut out);
}

/// Pushes the frames as a run. Returns the number of frames coalesced without a parse.
fn push_run(
    coalescer: &mut Coalescer,
    frames: &mut [Vec<u8>],
    enabled: Offloads,
    now_ns: u64,
    out: &mut impl Sink,
) -> usize {
    let mut followed = coalescer.follow(frames.iter_mut().map(Vec::as_mut_slice), enabled, out);
    let mut count = followed.count;
    while let Some(frame) = followed.other {
        coalescer.push(Frame::received(frame), enabled, None, now_ns, out);
        followed = coalescer.follow(followed.rest, enabled, out);
        count += followed.count;
    }
    count
}

fn flush(coalescer: &mut Coalescer, delivered: &mut Vec<Delivered>) {
    coalescer.flush(&mut |meta: &RxMeta, bytes: &[u8]| delivered.push((*meta, bytes.to_vec())));
    assert_eq!(coalescer.held(), 0);
    assert_eq!(coalescer.next_deadline_ns(), None);
}

fn coalesce_with(config: CoalesceConfig, frames: &[Vec<u8>]) -> Vec<Delivered> {
    let mut coalescer = Coalescer::new(config);
    let mut delivered = Vec::new();
    for frame in frames {
        push_one(&mut coalescer, frame, ALL, 0, &mut delivered);
    }
    flush(&mut coalescer, &mut delivered);
    let mut in_runs = Vec::new();
    let mut out = |meta: &RxMeta, bytes: &[u8]| in_runs.push((*meta, bytes.to_vec()));
    push_run(&mut coalescer, &mut frames.to_vec(), ALL, 0, &mut out);
    flush(&mut coalescer, &mut in_runs);
    assert!(in_runs == delivered, "the frames as a run: {in_runs:?}");
    delivered
}

/// Returns the payload sizes of the delivered frames of one flow. Checks that segmentation of the delivered frames
/// restores exactly the frames in `specs`.
fn sizes_with(config: CoalesceConfig, specs: &[Spec]) -> Vec<usize> {
    let frames: Vec<_> = specs.iter().map(Spec::build).collect();
    let delivered = coalesce_with(config, &frames);
    assert_segments_into(&delivered, &frames);
    delivered.iter().map(payload_len).collect()
}

fn sizes(specs: &[Spec]) -> Vec<usize> {
    sizes_with(CoalesceConfig::default(), specs)
}

fn payload_len((_, bytes): &Delivered) -> usize {
    FrameLayout::parse(bytes, LengthFrom::Ip).unwrap().payload_len()
}

/// Returns the frame without padding.
fn trimmed(frame: &[u8]) -> &[u8] {
    FrameLayout::parse(frame, LengthFrom::Ip).map_or(frame, |layout| &frame[..layout.packet_end])
}

fn assert_segments_into(delivered: &[Delivered], frames: &[Vec<u8>]) {
    let mut left = frames.iter();
    for one in delivered {
        let first = left.clone().next();
        for cut in segments_of(one) {
            let original = left.next().expect("more came out than went in");
            assert_same_frame(&cut, original, first.unwrap());
        }
    }
    assert_eq!(left.count(), 0, "frames are missing");
}

/// Compares a segment with the original frame, except for padding. Ignores the ID if the sender used a constant ID with
/// DF.
fn assert_same_frame(cut: &[u8], original: &[u8], first: &[u8]) {
    let mut cut = trimmed(cut).to_vec();
    let original = trimmed(original);
    if let Some(id_at) = ipv4_id_at(original)
        && original[id_at + 2] & 0x40 != 0
        && original[id_at..id_at + 2] == first[id_at..id_at + 2]
    {
        cut[id_at..id_at + 2].copy_from_slice(&original[id_at..id_at + 2]);
        cut[id_at + 6..id_at + 8].copy_from_slice(&original[id_at + 6..id_at + 8]);
    }
    assert_eq!(cut, original);
}

fn ipv4_id_at(frame: &[u8]) -> Option<usize> {
    let layout = FrameLayout::parse(frame, LengthFrom::Ip).ok()?;
    (layout.network == Network::Ipv4).then_some(layout.network_start + 4)
}

/// Segments an aggregate as a host does, with new checksums. Also checks the metadata.
fn segments_of((meta, bytes): &Delivered) -> Vec<Vec<u8>> {
    let Some(segmentation) = meta.segmentation else {
        assert_eq!(meta.segments, 1);
        return vec![bytes.clone()];
    };
    let layout = FrameLayout::parse(bytes, LengthFrom::Ip).expect("an aggregate is well formed");
    assert_eq!(layout.packet_end, bytes.len(), "an aggregate has no padding");
    assert_eq!(usize::from(meta.header_len), layout.payload_start);
    assert!(crate::checksum::ipv4_header_is_good(bytes, &layout));
    assert_pseudo_sum(meta, bytes, &layout);
    let payloads: Vec<_> = bytes[layout.payload_start..].chunks(usize::from(segmentation.size)).collect();
    assert_eq!(payloads.len(), usize::from(meta.segments));
    let headers = &bytes[..layout.payload_start];
    let is_last = |n: usize| n + 1 == payloads.len();
    let offset = |n: usize| n * usize::from(segmentation.size);
    let cut = |(n, payload): (usize, &&[u8])| segment_one(headers, payload, &layout, (n, offset(n)), is_last(n));
    let frames: Vec<_> = payloads.iter().enumerate().map(cut).collect();
    assert_eq!(by_segmenter(meta, bytes), frames);
    frames
}

/// Segments the aggregate with this crate's segmenter.
fn by_segmenter(meta: &RxMeta, bytes: &[u8]) -> Vec<Vec<u8>> {
    let ChecksumState::Partial(partial) = meta.checksum else { panic!("an aggregate's checksum is partial") };
    let asked = TxMeta { checksum: Some(partial), segmentation: meta.segmentation };
    let mut bytes = bytes.to_vec();
    let aggregate = Frame::new(&mut bytes, asked);
    let mut segmenter = Segmenter::new(&aggregate, &SegmentPolicy::default()).expect("an aggregate can be segmented");
    let mut frames = Vec::new();
    while segmenter.frames_left() > 0 {
        let mut frame = vec![0; segmenter.next_len()];
        segmenter.write_next(&aggregate, &mut frame);
        frames.push(frame);
    }
    frames
}

fn assert_pseudo_sum(meta: &RxMeta, bytes: &[u8], layout: &FrameLayout) {
    let ChecksumState::Partial(partial) = meta.checksum else { panic!("an aggregate's checksum is partial") };
    assert_eq!(usize::from(partial.start), layout.transport_start);
    assert_eq!(partial.offset, if layout.transport == Transport::Tcp { 16 } else { 6 });
    let field = partial.field();
    let len = (layout.transport_len() as u32).to_be_bytes();
    let pseudo = slow_sum(&[layout.addresses(bytes), &len, &[0, layout.protocol]]);
    assert_eq!(bytes[field..field + 2], pseudo.to_be_bytes());
}

fn segment_one(
    headers: &[u8],
    payload: &[u8],
    layout: &FrameLayout,
    (n, offset): (usize, usize),
    is_last: bool,
) -> Vec<u8> {
    let mut frame = [headers, payload].concat();
    let (ip, transport) = (layout.network_start, layout.transport_start);
    let ip_len = (frame.len() - ip) as u16;
    if layout.network == Network::Ipv4 {
        let id = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]).wrapping_add(n as u16);
        frame[ip + 2..ip + 4].copy_from_slice(&ip_len.to_be_bytes());
        frame[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
        frame[ip + 10..ip + 12].fill(0);
        let checksum = !slow_sum(&[&frame[ip..transport]]);
        frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        frame[ip + 4..ip + 6].copy_from_slice(&(ip_len - 40).to_be_bytes());
    }
    let transport_len = (frame.len() - transport) as u32;
    let field = if layout.transport == Transport::Tcp {
        let first_seq = u32::from_be_bytes(frame[transport + 4..transport + 8].try_into().unwrap());
        let seq = first_seq.wrapping_add(offset as u32);
        frame[transport + 4..transport + 8].copy_from_slice(&seq.to_be_bytes());
        if !is_last {
            frame[transport + 13] &= !(FIN | PSH);
        }
        transport + 16
    } else {
        frame[transport + 4..transport + 6].copy_from_slice(&(transport_len as u16).to_be_bytes());
        transport + 6
    };
    frame[field..field + 2].fill(0);
    let pseudo_len = transport_len.to_be_bytes();
    let sum = slow_sum(&[layout.addresses(&frame), &pseudo_len, &[0, layout.protocol], &frame[transport..]]);
    let checksum = if sum == 0xffff && layout.transport == Transport::Udp { 0xffff } else { !sum };
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    frame
}
