//! Tests that bytes from a hostile host or wire never make a function panic, hang, or lose a frame.

mod hostile;

use offramp_offload::checksum;
use offramp_offload::esp::Refused;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{PartialChecksum, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::Path;

/// Number of inputs per test. The fuzz targets run without a limit.
const INPUTS: usize = 20_000;

fn seed() -> u64 {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    seed
}

/// Builds a nearly valid frame: TCP or UDP over IPv4 or IPv6, with a few bytes changed.
fn nearly_right(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let version6 = rng.random_bool(0.4);
    let tcp = rng.random_bool(0.7);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for _ in 0..rng.random_range(0..6_u8).saturating_sub(3) {
        frame.extend_from_slice(&[0x81, 0, 0, 7]);
    }
    let payload = rng.random_range(0..300_usize);
    let transport_len = payload + if tcp { 20 } else { 8 };
    let network_start = frame.len() + 2;
    let protocol = if tcp { 6 } else { 17 };
    if version6 {
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&(transport_len as u16).to_be_bytes());
        frame.extend_from_slice(&[protocol, 64]);
        frame.extend_from_slice(&[0xfd; 32]);
    } else {
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&((20 + transport_len) as u16).to_be_bytes());
        frame.extend_from_slice(&[0, rng.random_range(0..4), 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum::sum(&frame[network_start..]).checksum();
        frame[network_start + 10..network_start + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame.extend_from_slice(&[0, 1, 0, rng.random_range(0..3)]);
    if tcp {
        let sequence = rng.random_range(0..4_u32) * 100;
        frame.extend_from_slice(&sequence.to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 9, 0x50, 0x10, 0, 9, 0, 0, 0, 0]);
    } else {
        frame.extend_from_slice(&(transport_len as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0]);
    }
    frame.resize(frame.len() + payload, 0x5a);
    let mut parsed = Frame::received(&mut frame);
    if let Some(partial) = parsed.make_partial() {
        let end = parsed.layout().unwrap().packet_end;
        checksum::complete(&mut frame, partial, end).unwrap();
    }
    for _ in 0..rng.random_range(0..3) {
        let at = rng.random_range(0..frame.len());
        frame[at] = rng.random();
    }
    if rng.random_bool(0.05) {
        frame.truncate(rng.random_range(0..frame.len()));
    }
    frame
}

#[test]
fn a_layout_is_true_of_any_bytes() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for _ in 0..INPUTS {
        hostile::layout(&nearly_right(&mut rng));
        let mut noise = vec![0; rng.random_range(0..100)];
        rng.fill_bytes(&mut noise);
        hostile::layout(&noise);
    }
}

/// Overwrites lengths and clears checksums in the headers of a frame, as some drivers do. Returns the start of the
/// transport header and the offset of the transport checksum.
fn leave_out(rng: &mut ChaCha8Rng, frame: &mut [u8]) -> Option<(u16, u16)> {
    let layout = *Frame::received(frame).layout().ok()?;
    let (network, transport) = (layout.network_start, layout.transport_start);
    let offset = if layout.protocol == 6 { 16 } else { 6 };
    let is_version4 = *frame.get(network)? >> 4 == 4;
    let mut fields = vec![if is_version4 { network + 2 } else { network + 4 }, transport + offset];
    if is_version4 {
        fields.push(network + 10);
    }
    if layout.protocol == 17 {
        fields.push(transport + 4);
    }
    for at in fields {
        let lie = if rng.random_bool(0.7) { 0 } else { rng.random_range(0..400_u16) };
        frame.get_mut(at..at + 2)?.copy_from_slice(&lie.to_be_bytes());
    }
    Some((transport as u16, offset as u16))
}

/// Encapsulates a TCP segment in a tunnel: VXLAN, Geneve with options, FOU, GRE with a key, or IP in IP. Returns the
/// frame and the start of the inner TCP header.
fn in_a_tunnel(rng: &mut ChaCha8Rng) -> (Vec<u8>, u16) {
    let mut inner = small_frames()[0].clone();
    inner.resize(inner.len() + rng.random_range(0..3000), 0x5a);
    let inner_len = (inner.len() - 14) as u16;
    inner[16..18].copy_from_slice(&inner_len.to_be_bytes());
    inner[24..26].fill(0);
    let sum = checksum::sum(&inner[14..34]).checksum();
    inner[24..26].copy_from_slice(&sum.to_be_bytes());
    let (protocol, head, begin): (u8, &[u8], usize) = match rng.random_range(0..5) {
        0 => (17, &[8, 0, 0, 0, 0, 0, 7, 0], 0),
        1 => (17, &[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 0], 0),
        2 => (17, &[], 14),
        3 => (47, &[0x20, 0, 0x65, 0x58, 0, 0, 0, 7], 0),
        _ => (4, &[], 14),
    };
    let udp_len = (8 + head.len() + inner.len() - begin) as u16;
    let [high, low] = udp_len.to_be_bytes();
    let udp: &[u8] = if protocol == 17 { &[0x12, 0xb5, 0x12, 0xb5, high, low, 0, 0] } else { &[] };
    let body = [udp, head, &inner[begin..]].concat();
    let mut frame = small_frames()[1][..34].to_vec();
    frame[16..18].copy_from_slice(&((20 + body.len()) as u16).to_be_bytes());
    frame[23] = protocol;
    frame[24..26].fill(0);
    let sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let transport = frame.len() + udp.len() + head.len() + 34 - begin;
    frame.extend_from_slice(&body);
    (frame, transport as u16)
}

/// Returns an input for `hostile::segment`, with a segment size of `size`.
fn request(kind: u8, (start, offset): (u16, u16), size: u16, frame: &[u8]) -> Vec<u8> {
    let words = [start, offset, size].map(u16::to_le_bytes).concat();
    [&[3, kind][..], &words, &[0, 0], frame].concat()
}

#[test]
fn lengths_and_checksums_that_a_driver_left_out_or_invented_cost_no_segment_its_checksum() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut begun = 0;
    for _ in 0..INPUTS {
        let mut frame = nearly_right(&mut rng);
        let Some(place) = leave_out(&mut rng, &mut frame) else { continue };
        let mut input = request(rng.random_range(0..4), place, rng.random_range(1..400), &frame);
        if rng.random_bool(0.1) {
            // Add a trailer of up to 64 KiB.
            input[0] |= 8;
            input[8..10].copy_from_slice(&rng.random::<[u8; 2]>());
        }
        begun += usize::from(hostile::segment(&input).0);
    }
    assert!(begun > INPUTS / 10, "{begun} of {INPUTS}");
}

#[test]
fn a_super_frame_in_a_tunnel_comes_out_in_right_frames_or_not_at_all() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for _ in 0..INPUTS {
        let (mut frame, start) = in_a_tunnel(&mut rng);
        let changes = rng.random_range(0..3);
        for _ in 0..changes {
            let at = rng.random_range(0..frame.len().min(120));
            frame[at] = rng.random();
        }
        let kind = if changes > 0 { rng.random_range(0..4) } else { 0 };
        let input = request(kind, (start, 16), rng.random_range(1..2000), &frame);
        let frames = hostile::segment(&input).1;
        assert!(changes > 0 || frames > 0, "{frame:02x?}");
    }
}

#[test]
fn a_segmenter_keeps_its_word_on_any_bytes() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for _ in 0..INPUTS {
        let mut input: Vec<u8> = (0..10).map(|_| rng.random()).collect();
        let frame = nearly_right(&mut rng);
        if rng.random_bool(0.8) {
            // Make a request that nearly matches the frame.
            let start = [34_u16, 54, 38, 14][rng.random_range(0..4)];
            let offset = [16_u16, 6][rng.random_range(0..2)];
            input[2..4].copy_from_slice(&start.to_le_bytes());
            input[4..6].copy_from_slice(&offset.to_le_bytes());
            input[7] = 0;
        }
        input.extend_from_slice(&frame);
        hostile::segment(&input);
    }
}

/// Returns valid frames with little or no payload: TCP and UDP over IPv4 and IPv6. The last two frames have a VLAN tag.
fn small_frames() -> [Vec<u8>; 4] {
    let ipv4 = |protocol: u8, len: u8| {
        let mut header = vec![8, 0, 0x45, 0, 0, 20 + len, 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = checksum::sum(&header[2..]).checksum();
        header[12..14].copy_from_slice(&sum.to_be_bytes());
        header
    };
    let ipv6 = |protocol: u8, len: u8| {
        let mut header = vec![0x81, 0, 0, 7, 0x86, 0xdd, 0x60, 0, 0, 0, 0, len, protocol, 64];
        header.extend_from_slice(&[0xfd; 32]);
        header
    };
    let tcp = [0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    let udp = |len: u8| [0, 1, 0, 2, 0, len, 0, 0];
    let frame = |network: Vec<u8>, transport: &[u8], payload: &[u8]| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for part in [&network, transport, payload] {
            frame.extend_from_slice(part);
        }
        frame
    };
    let payload: Vec<u8> = (1..=9).collect();
    [
        frame(ipv4(6, 29), &tcp, &payload),
        frame(ipv4(17, 17), &udp(17), &payload),
        frame(ipv6(6, 29), &tcp, &payload),
        frame(ipv6(17, 17), &udp(17), &payload),
    ]
}

/// Computes the checksum of `bytes` word by word. Returns the bytes of the checksum field.
fn slow_checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u64::from(pair[0]) * 256 + pair.get(1).map_or(0, |low| u64::from(*low));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = sum % 0x1_0000 + sum / 0x1_0000;
    }
    // A checksum of 0 means "no checksum".
    let checksum = if sum == 0xffff { 0xffff } else { 0xffff - sum as u16 };
    checksum.to_be_bytes()
}

/// Computes the expected result of a request that asks only for a checksum. Returns `None` if the request must be
/// refused.
fn completed(frame: &[u8], start: u16, offset: u16) -> Option<Vec<u8>> {
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    let mut frame = frame.to_vec();
    let checksum = slow_checksum(frame.get(start..)?);
    frame.get_mut(field..field + 2)?.copy_from_slice(&checksum);
    Some(frame)
}

#[test]
fn every_request_at_its_borders_is_done_or_refused_for_frames_of_every_small_length() {
    for whole in small_frames() {
        for len in 0..=whole.len() {
            let frame = &whole[..len];
            let about = |border: usize| (0..3).map(move |n| (border as u16).wrapping_add(n).wrapping_sub(1));
            let places: Vec<u16> = [0, 14, 34, 38, 54, 58, len, 1 << 16].into_iter().flat_map(about).collect();
            let fields: Vec<u16> =
                [0, 6, 16, len.saturating_sub(34), len, 1 << 15, 1 << 16].into_iter().flat_map(about).collect();
            for (&start, &offset) in places.iter().flat_map(|start| fields.iter().map(move |offset| (start, offset))) {
                let [s, o] = [start, offset].map(u16::to_le_bytes);
                let partial = PartialChecksum { start, offset };
                let request = TxMeta { checksum: Some(partial), segmentation: None };
                let mut copy = frame.to_vec();
                let request = Frame::new(&mut copy, request);
                let done = Segmenter::new(&request, &SegmentPolicy::default()).ok().map(|mut plan| {
                    let mut out = vec![0; frame.len()];
                    assert_eq!((plan.frames_left(), plan.write_next(&request, &mut out)), (1, frame.len()));
                    out
                });
                let expected = if frame.len() < 14 { None } else { completed(frame, start, offset) };
                // A truncated tag leaves no whole Ethernet header.
                if request.link_header_len().is_ok() || frame.len() < 14 {
                    assert_eq!(done, expected, "{len} bytes, start {start}, offset {offset}");
                } else {
                    assert_eq!(done, None, "{len} bytes");
                }
                // Repeat the request as a segmentation, for every kind and around every significant size.
                for kind in 0..4 {
                    for size in [0, 1, 2, 7, 8, 9, 16, len as u16, u16::MAX - 1, u16::MAX] {
                        let [low, high] = size.to_le_bytes();
                        let mut input = vec![3, kind, s[0], s[1], o[0], o[1], low, high, 0, 0];
                        input.extend_from_slice(frame);
                        hostile::segment(&input);
                    }
                }
            }
        }
    }
}

#[test]
fn a_coalescer_gives_back_every_frame_once_whatever_the_bytes() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for _ in 0..INPUTS / 20 {
        let mut input = vec![rng.random()];
        for _ in 0..40 {
            let frame = nearly_right(&mut rng);
            input.extend_from_slice(&(frame.len() as u16).to_le_bytes());
            input.extend_from_slice(&frame);
        }
        hostile::coalesce(&input);
    }
}

#[test]
fn a_coalescer_gives_back_overlapping_fragments_marks_and_long_trailers_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for _ in 0..INPUTS / 20 {
        let mut input = vec![0; 200];
        rng.fill_bytes(&mut input);
        // Build frames from fields, with trailers in a tenth of the inputs.
        input[0] |= 4;
        if rng.random_bool(0.9) {
            input[1..].iter_mut().for_each(|byte| *byte &= !0x10);
        }
        hostile::coalesce(&input);
    }
}

/// Builds a nearly valid ESP packet, in IP or in UDP. The packet has the SPI of the hostile tests' association, or the
/// next SPI, and is neither encrypted nor authenticated.
fn nearly_esp(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut frame = nearly_right(rng);
    let spi = hostile::esp::SPI + rng.random_range(0..2);
    let Ok(&layout) = Frame::received(&mut frame).layout() else { return frame };
    let at =
        if rng.random_bool(0.5) || layout.payload_len() < 8 { layout.transport_start } else { layout.payload_start };
    if layout.packet_end >= at + 8 && layout.protocol_at < frame.len() {
        frame[at..at + 4].copy_from_slice(&spi.to_be_bytes());
        frame[at + 4..at + 8].copy_from_slice(&rng.random_range(0..100_u32).to_be_bytes());
        if at == layout.transport_start {
            frame[layout.protocol_at] = 50;
        } else {
            frame[layout.transport_start + 2..layout.transport_start + 4].copy_from_slice(&4500_u16.to_be_bytes());
        }
    }
    frame
}

/// Appends a length byte and the bytes.
fn push_bytes(input: &mut Vec<u8>, bytes: &[u8]) {
    let len = bytes.len().min(usize::from(u8::MAX));
    input.push(len as u8);
    input.extend_from_slice(&bytes[..len]);
}

/// Appends one event of an association, in the format of `hostile::esp`.
fn push_event(input: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    let event = rng.random_range(0..9_u8);
    input.push(event);
    let back = rng.random_range(0..20_u8).saturating_sub(12);
    match event {
        0 => push_bytes(input, &nearly_esp(rng)),
        1 => input.extend_from_slice(&[rng.random::<u8>() & 0x9f, rng.random(), rng.random(), rng.random()]),
        2 => push_bytes(input, &nearly_right(rng)),
        3 | 4 => {
            let frame = nearly_right(rng);
            input.push([1, 4, 6, 17, 41, 59][rng.random_range(0..6)]);
            push_bytes(input, frame.get(14..).unwrap_or_default());
            if event == 4 {
                let trailer = [rng.random_range(0..4_u8), 2, rng.random_range(0..4), 1];
                push_bytes(input, &trailer[..rng.random_range(0..=4)]);
            }
        }
        5 => input.extend_from_slice(&rng.random_range(0..100_u16).to_le_bytes()),
        6 => input.push(back),
        7 => {
            let how = rng.random::<u8>() & !1;
            input.extend_from_slice(&[back, how, rng.random_range(0..120), 0, rng.random::<u8>() & rng.random::<u8>()]);
        }
        _ => input.extend_from_slice(&[back, rng.random(), rng.random_range(0..120), 0]),
    }
}

#[test]
fn an_opener_hands_on_what_was_sent_once_and_counts_the_rest_whatever_happens() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let (mut opened, mut refused) = (0, [0; Refused::ALL.len()]);
    for _ in 0..INPUTS / 10 {
        let mut input = rng.random::<[u8; 3]>().to_vec();
        for _ in 0..40 {
            push_event(&mut input, &mut rng);
        }
        let (well, counts) = hostile::esp::esp(&input);
        opened += well;
        for (sum, &reason) in refused.iter_mut().zip(Refused::ALL) {
            *sum += counts.of(reason);
        }
    }
    println!("{opened} opened, refused {refused:?}");
    assert!(opened > 0);
    for (count, &reason) in refused.into_iter().zip(Refused::ALL) {
        assert!(count > 0, "no packet was refused for: {reason}");
    }
}

/// Tests the parser with words from real `ip xfrm` text, split and recombined at random.
#[test]
fn text_that_is_nearly_right_is_read_or_refused_in_one_line() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let real = [
        include_str!("xfrm/commands.sh"),
        include_str!("xfrm/states.txt"),
        include_str!("xfrm/states-statistics.txt"),
        include_str!("xfrm/states-oneline.txt"),
        include_str!("xfrm/policies-statistics.txt"),
    ];
    for text in real {
        hostile::xfrm::text(text.as_bytes());
    }
    let real = real.concat();
    let words: Vec<&str> = real.split_inclusive([' ', '\n', '\t', '\\']).collect();
    for _ in 0..INPUTS / 10 {
        let mut text = Vec::new();
        for _ in 0..rng.random_range(1..12) {
            let from = rng.random_range(0..words.len());
            let to = (from + rng.random_range(1..60_usize)).min(words.len());
            text.extend_from_slice(words[from..to].concat().as_bytes());
        }
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..text.len());
            text[at] = rng.random();
        }
        hostile::xfrm::text(&text);
    }
}

/// Tests the parser with random statements. Some statements match each other, and define associations for the sender,
/// the receiver, or both.
#[test]
fn statements_that_are_right_in_themselves_are_read_or_refused_in_one_line() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut meant = [0; 2];
    for _ in 0..INPUTS {
        let mut input = vec![0; rng.random_range(1..50)];
        rng.fill_bytes(&mut input[1..]);
        for (sum, associations) in meant.iter_mut().zip(hostile::xfrm::xfrm(&input)) {
            *sum += associations.unwrap_or(0);
        }
    }
    assert!(meant.iter().all(|&sum| sum > 0), "nothing means an association: {meant:?}");
}

/// Returns the stored inputs from fuzzing that reached new code.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let inputs: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    inputs
}

#[test]
fn what_fuzzing_kept_is_survived() {
    for input in kept("coalesce") {
        hostile::coalesce(&input);
    }
    let reached: Vec<_> = kept("segment").iter().map(|input| hostile::segment(input)).collect();
    assert!(reached.iter().any(|(is_begun, _)| *is_begun) && reached.iter().any(|(_, of_tunnel)| *of_tunnel > 0));
    for input in kept("xfrm") {
        hostile::xfrm::xfrm(&input);
    }
    let mut refused = [0; Refused::ALL.len()];
    for input in kept("esp") {
        let (_, counts) = hostile::esp::esp(&input);
        refused.iter_mut().zip(Refused::ALL).for_each(|(sum, &reason)| *sum += counts.of(reason));
    }
    assert!(!refused.contains(&0), "fuzzing has reached every refusal: {refused:?}");
}
