//! Compares segmentation with the kernel: Linux and offramp segment the same super-frames, and the outputs are compared
//! byte for byte.
//!
//! The output TAP offers no offload, so the kernel must segment and checksum all input. `OFFRAMP_VECTORS` and
//! `OFFRAMP_SEED` set the number of vectors and their seed.

use crate::judge::bench::{Bench, BenchConfig};
use crate::judge::generate::{Vector, vector};
use crate::judge::support::packet::{Checksum, DESTINATION, FRAGMENT, Packet, ROUTING};
use crate::judge::support::{difference, hex};
use crate::judge::{how_to_repeat, kernel_release, random_for, seed, vectors};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter, repair_headers};
use offramp_ports::vnet_hdr::{GSO_ECN, GSO_TCPV6, GSO_UDP_L4, HEADER_LEN, decode_tx, encode_tx};
use std::collections::BTreeMap;

const VECTORS_DEFAULT: u64 = 20_000;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
const TCP_HEADER_LEN: usize = 20;
const UDP_HEADER_LEN: usize = 8;

/// The outcome of a transmitted frame.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Sent(Vec<Vec<u8>>),
    Refused(String),
}

impl Outcome {
    fn summary(&self) -> String {
        match self {
            Outcome::Sent(frames) => format!("sent {} frames", frames.len()),
            Outcome::Refused(why) => format!("refused ({why})"),
        }
    }
}

fn bench() -> Bench {
    Bench::new(BenchConfig { input: Offloads::TX, output: Offloads::empty(), napi: false })
}

fn by_kernel(bench: &mut Bench, header: &[u8], frame: &[u8]) -> Outcome {
    if let Err(errno) = bench.write(header, frame) {
        return Outcome::Refused(errno.to_string());
    }
    let frames: Vec<_> = bench.drain().into_iter().map(|(_, frame)| frame).collect();
    if frames.is_empty() { Outcome::Refused("dropped without an error".into()) } else { Outcome::Sent(frames) }
}

fn by_us(header: &[u8; HEADER_LEN], frame: &[u8]) -> Outcome {
    let meta = match decode_tx(header) {
        Ok(meta) => meta,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let mut copy = frame.to_vec();
    let whole = Frame::new(&mut copy, meta);
    let mut segmenter = match Segmenter::new(&whole, &SegmentPolicy::default()) {
        Ok(segmenter) => segmenter,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let mut frames = Vec::with_capacity(segmenter.frames_left());
    while segmenter.frames_left() > 0 {
        let mut out = vec![0xaa; segmenter.next_len()];
        segmenter.write_next(&whole, &mut out);
        frames.push(out);
    }
    Outcome::Sent(frames)
}

/// Returns the reason for a permitted difference in the output of this vector.
fn exception(vector: &Vector) -> Option<&'static str> {
    let segmentation = vector.meta.segmentation?;
    if vector.frame.len() - headers_guessed_by_kernel(vector)? > usize::from(segmentation.size) && !is_cut(vector) {
        return Some("Linux tries to segment what fits into one segment, and drops it; we send it");
    }
    let kinds: Vec<_> = vector.packet.extensions.iter().map(|(kind, _)| *kind).collect();
    let routing_at = kinds.iter().position(|kind| *kind == ROUTING).unwrap_or(kinds.len());
    let is_fragments = segmentation.kind == SegmentationKind::UdpFragments;
    if is_fragments && is_cut(vector) && kinds[routing_at..].contains(&DESTINATION) {
        return Some("Linux repeats these destination options behind each fragment header, as if they were payload");
    }
    None
}

/// Returns the header length that the kernel assumes when it decides whether to segment. With a partial checksum, the
/// kernel ignores TCP options. Without a partial checksum, the kernel assumes the shortest IP and TCP headers.
fn headers_guessed_by_kernel(vector: &Vector) -> Option<usize> {
    let (shortest_network, transport) = match vector.meta.segmentation?.kind {
        SegmentationKind::Tcp4 => (IPV4_HEADER_LEN, TCP_HEADER_LEN),
        SegmentationKind::Tcp6 => (IPV6_HEADER_LEN, TCP_HEADER_LEN),
        SegmentationKind::Udp => (IPV4_HEADER_LEN, UDP_HEADER_LEN),
        SegmentationKind::UdpFragments => (IPV4_HEADER_LEN, 0), // Fragmentation treats the UDP header as payload.
    };
    Some(vector.meta.checksum.map_or(shortest_network, |partial| usize::from(partial.start)) + transport)
}

/// Returns whether the frame must be split into more than one segment.
fn is_cut(vector: &Vector) -> bool {
    let Some(segmentation) = vector.meta.segmentation else { return false };
    let is_fragments = segmentation.kind == SegmentationKind::UdpFragments;
    let headers = if is_fragments { vector.packet.transport_start() } else { vector.packet.payload_start() };
    vector.frame.len() - headers > usize::from(segmentation.size)
}

/// Adjusts the kernel's IPv6 fragments for the comparison in two points.
///
/// * The identification is masked, because it is a hash with a secret.
/// * Linux 6.18 adds the extension headers of each earlier fragment to the offset. RFC 8200 4.5 counts only the
///   fragmentable part, like offramp, so the surplus is subtracted.
fn fragments_aligned(vector: &Vector, outcome: Outcome, surplus: usize) -> Outcome {
    let is_fragments = vector.meta.segmentation.is_some_and(|s| s.kind == SegmentationKind::UdpFragments);
    match outcome {
        Outcome::Sent(mut frames) if is_fragments && vector.packet.is_ipv6 && frames.len() > 1 => {
            for (n, frame) in frames.iter_mut().enumerate() {
                let header = &mut frame[vector.packet.transport_start()..];
                let offset = u16::from_be_bytes([header[2], header[3]]).wrapping_sub((n * surplus) as u16);
                header[2..4].copy_from_slice(&offset.to_be_bytes());
                header[4..8].fill(0);
            }
            Outcome::Sent(frames)
        }
        other => other,
    }
}

/// Returns an error that describes the difference between both outcomes.
fn verdict(kernel: &Outcome, ours: &Outcome) -> Result<(), String> {
    match (kernel, ours) {
        (Outcome::Refused(_), Outcome::Refused(_)) => Ok(()),
        (Outcome::Sent(kernel), Outcome::Sent(ours)) => {
            for (n, (kernel, ours)) in kernel.iter().zip(ours).enumerate() {
                if let Some(difference) = difference(kernel, ours) {
                    return Err(format!("frame {n} differs {difference}"));
                }
            }
            let counts = (kernel.len(), ours.len());
            if counts.0 == counts.1 {
                Ok(())
            } else {
                Err(format!("the kernel sent {} frames, we {}", counts.0, counts.1))
            }
        }
        _ => Err(format!("the kernel {}, we: {}", kernel.summary(), ours.summary())),
    }
}

fn compare(bench: &mut Bench, vector: &Vector) -> Result<Outcome, String> {
    let surplus = vector.packet.extensions_len();
    let ours = fragments_aligned(vector, by_us(&vector.header, &vector.frame), 0);
    let kernel = fragments_aligned(vector, by_kernel(bench, &vector.header, &vector.frame), surplus);
    if verdict(&kernel, &ours).is_err() {
        // The kernel's frames may not have arrived yet. Wait before reporting a difference.
        let late: Vec<_> = bench.wait().into_iter().map(|(_, frame)| frame).collect();
        if !late.is_empty() {
            return Err(format!(
                "the kernel was not done: {} frames came late, before it {}",
                late.len(),
                kernel.summary()
            ));
        }
    }
    match exception(vector) {
        Some(_) => Ok(kernel),
        None => verdict(&kernel, &ours).map(|()| kernel),
    }
}

fn describe(vector: &Vector) -> String {
    let packet = &vector.packet;
    format!(
        "{}: payload {} bytes, TCP options {}, IP options {}, extension headers {:?}, tags {}, {:?}\n  header {}\n  frame {} …",
        vector.kind,
        packet.payload.len(),
        packet.options.len(),
        packet.ip_options.len(),
        packet.extensions.iter().map(|(kind, body)| (*kind, body.len() + 1)).collect::<Vec<_>>(),
        packet.tags.len(),
        vector.meta,
        hex(&vector.header),
        hex(&vector.frame[..vector.frame.len().min(160)]),
    )
}

/// The cases covered by a run, so that a run without relevant cases fails.
#[derive(Debug, Default)]
struct Seen {
    frames: usize,
    refused: usize,
    excepted: usize,
    cut: BTreeMap<&'static str, usize>,
    zero_sums: usize,
    folded_sums: usize,
}

impl Seen {
    fn note(&mut self, vector: &Vector, outcome: &Outcome) {
        self.excepted += usize::from(exception(vector).is_some());
        let Outcome::Sent(frames) = outcome else {
            self.refused += 1;
            return;
        };
        self.frames += frames.len();
        *self.cut.entry(vector.kind).or_default() += usize::from(frames.len() > 1);
        let field = vector.meta.checksum.map(PartialChecksum::field);
        let sums = field.into_iter().flat_map(|at| frames.iter().filter_map(move |f| f.get(at..at + 2)));
        for sum in sums {
            self.zero_sums += usize::from(sum == [0, 0]);
            self.folded_sums += usize::from(sum == [0xff, 0xff]);
        }
    }
}

#[test]
fn every_super_frame_is_cut_as_the_kernel_cuts_it() {
    let (seed, count) = (seed(), vectors(VECTORS_DEFAULT));
    println!("{count} vectors, OFFRAMP_SEED={seed}");
    let mut bench = bench();
    let mut seen = Seen::default();
    for index in 0..count {
        let vector = vector(&mut random_for(seed, index));
        match compare(&mut bench, &vector) {
            Ok(outcome) => seen.note(&vector, &outcome),
            Err(why) => panic!("{}\n  {}\n  {why}", how_to_repeat(seed, index), describe(&vector)),
        }
    }
    println!("{seen:#?}");
    assert!(bench.wait().is_empty(), "the kernel sent frames that nobody waited for");
    assert!(seen.excepted * 20 <= count as usize, "too few vectors were compared");
    let needed = count as usize / 200;
    assert!(seen.cut.values().filter(|cut| **cut > needed).count() >= 6, "each kind of segmentation occurred");
    assert!(seen.zero_sums > needed && seen.folded_sums > needed, "checksums of 0 occurred");
}

/// Clears the IP length, IPv4 header checksum and UDP length, as some drivers do, and lets offramp repair these fields.
fn repaired(vector: &Vector) -> Vec<u8> {
    let (packet, mut frame) = (&vector.packet, vector.frame.clone());
    let network = packet.network_start();
    frame[network + if packet.is_ipv6 { 4 } else { 2 }..][..2].fill(0);
    if !packet.is_ipv6 {
        frame[network + 10..network + 12].fill(0);
    }
    if packet.is_udp {
        frame[packet.transport_start() + 4..][..2].fill(0);
    }
    repair_headers(&mut Frame::new(&mut frame, vector.meta));
    frame
}

#[test]
fn a_super_frame_with_repaired_headers_is_cut_by_the_kernel_as_by_us() {
    let (seed, count) = (seed(), vectors(VECTORS_DEFAULT) / 10);
    let (mut bench, mut cut) = (bench(), 0);
    for index in 0..count {
        let vector = vector(&mut random_for(seed, index));
        let is_repaired = vector.meta.segmentation.is_some() && is_cut(&vector);
        if !is_repaired || exception(&vector).is_some() {
            continue;
        }
        let ours = fragments_aligned(&vector, by_us(&vector.header, &vector.frame), 0);
        let kernel = by_kernel(&mut bench, &vector.header, &repaired(&vector));
        let kernel = fragments_aligned(&vector, kernel, vector.packet.extensions_len());
        if let Err(why) = verdict(&kernel, &ours) {
            panic!("{}\n  {}\n  {why}", how_to_repeat(seed, index), describe(&vector));
        }
        cut += 1;
    }
    assert!(cut * 4 > count, "{cut} of {count} vectors are segmented");
}

/// The treatment of an invalid request by the kernel and by offramp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The kernel and offramp both refuse the request.
    Same,
    /// offramp sends a frame that the kernel refuses.
    Looser(&'static str),
    /// offramp refuses a frame that the kernel sends.
    Stricter(&'static str),
}

/// Returns a TCP super-frame over IPv4 with 5,000 bytes of payload after a TCP header of 20 bytes.
fn tcp_5000() -> Packet {
    Packet { id: 7, checksum: Checksum::Partial, ..Packet::tcp(5000) }
}

fn udp_5000() -> Packet {
    Packet { id: 7, checksum: Checksum::Partial, ..Packet::udp(5000) }
}

/// Returns a header that requests the correct segmentation of `packet`.
fn request(packet: &Packet, kind: SegmentationKind, size: u16) -> [u8; HEADER_LEN] {
    let start = packet.transport_start() as u16;
    let checksum = Some(PartialChecksum { start, offset: packet.checksum_offset() as u16 });
    encode_tx(&TxMeta { checksum, segmentation: Some(Segmentation::new(kind, size)) })
}

fn tcp_request(packet: &Packet, size: u16) -> [u8; HEADER_LEN] {
    request(packet, SegmentationKind::Tcp4, size)
}

/// Changes bytes of a frame or a header.
fn changed<T: AsMut<[u8]>>(mut bytes: T, at: usize, with: &[u8]) -> T {
    bytes.as_mut()[at..at + with.len()].copy_from_slice(with);
    bytes
}

type Case = (&'static str, [u8; HEADER_LEN], Vec<u8>, Rule);

/// Returns invalid fields of the virtio network header.
fn bad_headers() -> Vec<Case> {
    const FLAGS: usize = 0;
    const TYPE: usize = 1;
    const HEADER_LEN_AT: usize = 2;
    const SIZE: usize = 4;
    const START: usize = 6;
    const OFFSET: usize = 8;
    let (tcp, udp) = (tcp_5000(), udp_5000());
    let (tcp_frame, udp_frame) = (tcp.build(), udp.build());
    let good = tcp_request(&tcp, 1448);
    let uso = request(&udp, SegmentationKind::Udp, 1000);
    let plain = |start: u16, offset: u16| {
        encode_tx(&TxMeta { checksum: Some(PartialChecksum { start, offset }), segmentation: None })
    };
    let hint = Rule::Looser("the header length is a hint, and we do not need it");
    vec![
        ("gso_size 0", changed(good, SIZE, &[0, 0]), tcp_frame.clone(), Rule::Same),
        ("gso_size 65535", changed(good, SIZE, &[0xff, 0xff]), tcp_frame.clone(), Rule::Same),
        ("gso_type 2", changed(good, TYPE, &[2]), tcp_frame.clone(), Rule::Same),
        ("gso_type 0x7f", changed(good, TYPE, &[0x7f]), tcp_frame.clone(), Rule::Same),
        ("the ECN bit alone", changed(good, TYPE, &[GSO_ECN]), tcp_frame.clone(), Rule::Same),
        ("TCP over IPv6 asked for IPv4", changed(good, TYPE, &[GSO_TCPV6]), tcp_frame.clone(), Rule::Same),
        ("USO asked for TCP", changed(good, TYPE, &[GSO_UDP_L4]), tcp_frame.clone(), Rule::Same),
        ("USO with the ECN bit", changed(uso, TYPE, &[GSO_UDP_L4 | GSO_ECN]), udp_frame.clone(), Rule::Same),
        ("USO without a checksum to complete", changed(uso, FLAGS, &[0]), udp_frame.clone(), Rule::Same),
        ("USO of 129 datagrams", changed(uso, SIZE, &[39, 0]), udp.build(), Rule::Same),
        ("TCP checksum field 6", changed(good, OFFSET, &[6, 0]), tcp_frame.clone(), Rule::Same),
        ("UDP checksum field 16", changed(uso, OFFSET, &[16, 0]), udp_frame, Rule::Same),
        ("checksum start past the frame", plain(60_000, 16), tcp_frame.clone(), Rule::Same),
        ("checksum field across the end", plain(5053, 0), tcp_frame.clone(), Rule::Same),
        ("checksum start inside the IP header", changed(good, START, &[30, 0]), tcp_frame.clone(), Rule::Same),
        ("checksum start behind the TCP header", changed(good, START, &[36, 0]), tcp_frame.clone(), Rule::Same),
        ("checksum start in the link header", plain(15, 0), tcp_frame.clone(), Rule::Looser("no byte is out of reach")),
        ("header length beyond the frame", changed(good, HEADER_LEN_AT, &[0xff, 0xff]), tcp_frame.clone(), hint),
        ("header length of 5 bytes", changed(changed(good, FLAGS, &[0]), HEADER_LEN_AT, &[5, 0]), tcp_frame, hint),
    ]
}

/// Returns frames that contradict their request.
fn bad_frames() -> Vec<Case> {
    const IP: usize = 14;
    const TCP: usize = 34;
    let good = tcp_request(&tcp_5000(), 1448);
    let frame = tcp_5000().build();
    let udp = udp_5000();
    let options = Packet { options: vec![1; 12], ..tcp_5000() };
    let tagged = Packet { tags: vec![(0x8100, 1); 3], ..tcp_5000() };
    let fragment = Packet { is_ipv6: true, extensions: vec![(FRAGMENT, vec![0, 0, 1, 0, 0, 0, 9])], ..tcp_5000() };
    let many = Packet { is_ipv6: true, extensions: vec![(DESTINATION, vec![0; 7]); 9], ..tcp_5000() };
    let long_header = changed(frame[..60].to_vec(), TCP + 12, &[0xf0]);
    let plain = [0; HEADER_LEN];
    vec![
        ("an empty frame", plain, Vec::new(), Rule::Same),
        ("a frame of 13 bytes", plain, frame[..13].to_vec(), Rule::Same),
        ("a VLAN tag that is cut off", plain, [&frame[..12], &[0x81, 0, 0]].concat(), Rule::Same),
        ("IP header length 16", good, changed(frame.clone(), IP, &[0x44]), Rule::Same),
        ("IP header length 60", good, changed(frame.clone(), IP, &[0x4f]), Rule::Same),
        ("IP version 5", good, changed(frame.clone(), IP, &[0x55]), Rule::Stricter("it is not IPv4")),
        ("TCP header length 16", good, changed(frame.clone(), TCP + 12, &[0x40]), Rule::Same),
        ("a TCP header longer than the frame", tcp_request(&tcp_5000(), 2), long_header.clone(), Rule::Same),
        ("the same, nothing to segment", good, long_header, Rule::Stricter("a header is cut off")),
        ("protocol UDP", good, changed(frame.clone(), IP + 9, &[17]), Rule::Same),
        ("an EtherType that is not IP", good, changed(frame.clone(), 12, &[0x88, 0x99]), Rule::Same),
        ("IPv6's EtherType", good, changed(frame.clone(), 12, &[0x86, 0xdd]), Rule::Same),
        (
            "TCP behind an IPv6 fragment header",
            request(&fragment, SegmentationKind::Tcp6, 1400),
            fragment.build(),
            Rule::Same,
        ),
        (
            "fragments of a size that is no multiple of 8",
            request(&udp, SegmentationKind::UdpFragments, 1001),
            udp.build(),
            Rule::Stricter("an offset counts in units of 8 bytes: the kernel's fragments cannot be put together"),
        ),
        ("three VLAN tags", tcp_request(&tagged, 1448), tagged.build(), Rule::Stricter("two are looked through")),
        (
            "nine extension headers",
            request(&many, SegmentationKind::Tcp6, 1400),
            many.build(),
            Rule::Stricter("eight are looked through"),
        ),
        (
            "payload of one segment, but for TCP options",
            tcp_request(&options, 5000),
            options.build(),
            Rule::Looser("it fits"),
        ),
    ]
}

#[test]
fn what_the_kernel_refuses_is_refused_or_listed_here() {
    let mut bench = bench();
    let mut wrong = Vec::new();
    for (name, header, frame, rule) in bad_headers().into_iter().chain(bad_frames()) {
        let kernel = by_kernel(&mut bench, &header, &frame);
        assert!(bench.wait().is_empty(), "{name}: the kernel was not done");
        let ours = by_us(&header, &frame);
        let are_sent = (matches!(kernel, Outcome::Sent(_)), matches!(ours, Outcome::Sent(_)));
        let expected = match rule {
            Rule::Same => are_sent == (false, false),
            Rule::Looser(_) => are_sent == (false, true),
            Rule::Stricter(_) => are_sent == (true, false),
        };
        let line = format!("{name}: the kernel {}, we {} ({rule:?})", kernel.summary(), ours.summary());
        println!("{line}");
        if !expected {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "not as listed (kernel {}):\n{}", kernel_release(), wrong.join("\n"));
}
