//! Tests that large send with ESP gives the same frames as segmentation followed by sealing of each segment.

use crate::bench::{config, every_config, gcm, layout, open, pair, seal};
use crate::support::packet::{CWR, Checksum, FIN, PSH, Packet};
use offramp_offload::esp::{
    Lifetime, LifetimeEvent, Mode, OutboundSa, PlanRefused, SaConfig, SealRefused, SealedSegments, Suite,
};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ROOM: usize = 4096;
const POLICY: SegmentPolicy = SegmentPolicy { fragment_id: 0 };

fn super_frame(payload_len: usize, is_ipv6: bool, is_udp: bool) -> Packet {
    let flags = FIN | PSH | CWR | 0x10;
    Packet { is_ipv6, is_udp, checksum: Checksum::Partial, flags, id: 0xfffe, ..sized(payload_len) }
}

fn sized(payload_len: usize) -> Packet {
    Packet::tcp(payload_len)
}

fn meta(packet: &Packet, size: u16) -> TxMeta {
    let kind = match (packet.is_udp, packet.is_ipv6) {
        (true, _) => SegmentationKind::Udp,
        (false, false) => SegmentationKind::Tcp4,
        (false, true) => SegmentationKind::Tcp6,
    };
    let partial = PartialChecksum { start: packet.transport_start() as u16, offset: packet.checksum_offset() as u16 };
    TxMeta { checksum: Some(partial), segmentation: Some(Segmentation::new(kind, size)) }
}

/// Returns the clear frames of a segmented super-frame.
fn clear_frames(frame: &[u8], meta: &TxMeta) -> Vec<Vec<u8>> {
    let mut bytes = frame.to_vec();
    let frame = Frame::new(&mut bytes, *meta);
    let mut plan = Segmenter::new(&frame, &POLICY).unwrap();
    let mut frames = Vec::new();
    while plan.frames_left() > 0 {
        let mut out = vec![0; ROOM];
        let len = plan.write_next(&frame, &mut out);
        out.truncate(len);
        frames.push(out);
    }
    frames
}

fn plan(frame: &mut Frame<'_>, sa: &OutboundSa) -> SealedSegments {
    SealedSegments::new(frame, &POLICY, sa).unwrap()
}

#[test]
fn a_super_frame_is_segmented_and_sealed_as_if_each_frame_were_sealed_alone() {
    for config in every_config() {
        for (is_ipv6, is_udp) in [(false, false), (true, false), (false, true)] {
            let packet = super_frame(5000, is_ipv6, is_udp);
            let (frame, meta) = (packet.build(), meta(&packet, 1203));
            let (mut alone, mut receiver) = pair(&config);
            let clear = clear_frames(&frame, &meta);
            let expected: Vec<_> = clear.iter().map(|frame| seal(&mut alone, frame)).collect();
            assert_eq!(one_by_one(&config, &frame, &meta), expected, "{config:?}");
            assert_eq!(in_runs(&config, &frame, &meta, ROOM * 10), expected, "{config:?}");
            for (sealed, clear) in expected.iter().zip(clear) {
                assert_eq!(open(&mut receiver, sealed), Ok(clear));
            }
        }
    }
}

fn one_by_one(config: &SaConfig, frame: &[u8], meta: &TxMeta) -> Vec<Vec<u8>> {
    let mut sa = OutboundSa::with_library(config, crate::library()).unwrap();
    let mut bytes = frame.to_vec();
    let mut frame = Frame::new(&mut bytes, *meta);
    let mut plan = plan(&mut frame, &sa);
    let mut sealed = Vec::new();
    loop {
        let (len, mut out) = (plan.next_len(&frame, &sa), vec![0; ROOM]);
        let Some(one) = plan.write_next(&mut sa, &frame, &mut out).unwrap() else { return sealed };
        assert_eq!((one.start, one.end), (0, len));
        out.truncate(len);
        sealed.push(out);
    }
}

/// Seals in runs. Headers and unsealed payload in the super-frame must stay unchanged.
fn in_runs(config: &SaConfig, frame: &[u8], meta: &TxMeta, room_len: usize) -> Vec<Vec<u8>> {
    let mut sa = OutboundSa::with_library(config, crate::library()).unwrap();
    let mut bytes = frame.to_vec();
    let mut lent = Frame::new(&mut bytes, *meta);
    let mut plan = plan(&mut lent, &sa);
    let mut sealed = Vec::new();
    let payload_at = lent.layout().unwrap().payload_start;
    let size = meta.segmentation.map_or(0, |segmentation| usize::from(segmentation.size));
    while plan.frames_left() > 0 {
        let mut out = vec![0; room_len];
        let run = plan.write_run(&mut sa, &mut lent, &mut out, ROOM).unwrap();
        assert!(run.frames > 0);
        sealed.extend((0..run.frames).map(|n| out[n * ROOM..n * ROOM + run.frame_len].to_vec()));
        assert_eq!(lent.bytes()[..payload_at], frame[..payload_at]);
        let unsealed = (payload_at + sealed.len() * size).min(frame.len());
        assert_eq!(lent.bytes()[unsealed..], frame[unsealed..], "{} were sealed", sealed.len());
    }
    assert_eq!(plan.write_run(&mut sa, &mut lent, &mut [], ROOM).unwrap().frames, 0);
    sealed
}

#[test]
fn runs_are_as_long_as_there_is_room_and_give_the_same_frames() {
    let packet = super_frame(64_000, false, false);
    let (frame, meta) = (packet.build(), meta(&packet, 1400));
    let config = config(gcm());
    let expected = one_by_one(&config, &frame, &meta);
    assert_eq!(expected.len(), 46);
    for slots in [1, 2, 3, 7, 45, 46, 64] {
        assert_eq!(in_runs(&config, &frame, &meta, slots * ROOM), expected, "{slots} slots");
    }
}

#[test]
fn runs_of_any_sizes_give_the_frames_that_are_sealed_one_by_one() {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let config = config(gcm());
    for _ in 0..500 {
        let size = rng.random_range(1..1500);
        let payload_len = rng.random_range(1..=usize::from(size) * 40);
        let tags = vec![(0x8100, 7); rng.random_range(0..3)];
        let packet = Packet { tags, ..super_frame(payload_len, rng.random(), rng.random()) };
        let (frame, meta) = (packet.build(), meta(&packet, size));
        let room_len = rng.random_range(1..50) * ROOM;
        let expected = one_by_one(&config, &frame, &meta);
        assert!(in_runs(&config, &frame, &meta, room_len) == expected, "{packet:?}, size {size}, room {room_len}");
    }
}

#[test]
fn frames_that_are_not_cut_are_sealed_as_they_are_without_their_padding() {
    let config = config(gcm());
    let whole = Packet { padding: 6, ..Packet::tcp(10) };
    let without = Packet { padding: 0, ..whole.clone() }.build();
    let expected = vec![seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &without)];
    assert_eq!(one_by_one(&config, &whole.build(), &TxMeta::default()), expected);
    assert_eq!(in_runs(&config, &whole.build(), &TxMeta::default(), ROOM), expected);
    // This super-frame fits into one segment, so only its checksum is completed.
    let small = super_frame(100, true, false);
    let sealed = one_by_one(&config, &small.build(), &meta(&small, 1000));
    let clear = Packet { checksum: Checksum::Full, ..small }.build();
    assert_eq!(sealed, vec![seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &clear)]);
}

#[test]
fn a_run_ends_where_numbers_or_lifetimes_end_and_leaves_the_rest_to_be_sent() {
    let packet = super_frame(14_000, false, false);
    let (mut bytes, meta) = (packet.build(), meta(&packet, 1400));
    let mut frame = Frame::new(&mut bytes, meta);
    let by_number = SaConfig { sequence: u64::from(u32::MAX) - 4, ..config(gcm()) };
    let by_packets = Lifetime { soft_packets: Some(2), hard_packets: Some(4), ..Lifetime::default() };
    let by_bytes = Lifetime { hard_bytes: Some(3 * 1440 + 1), ..Lifetime::default() };
    let cases = [
        (by_number, SealRefused::SequenceExhausted, None),
        (SaConfig { lifetime: by_packets, ..config(gcm()) }, SealRefused::Expired, Some(LifetimeEvent::Hard)),
        (SaConfig { lifetime: by_bytes, ..config(gcm()) }, SealRefused::Expired, Some(LifetimeEvent::Hard)),
    ];
    for (config, refused, event) in cases {
        let mut sa = OutboundSa::with_library(&config, crate::library()).unwrap();
        let (mut plan, mut out) = (plan(&mut frame, &sa), vec![0; ROOM * 10]);
        let run = plan.write_run(&mut sa, &mut frame, &mut out, ROOM).unwrap();
        assert_eq!((run.frames, run.event, plan.frames_left()), (4, event, 6), "{refused}");
        assert_eq!(plan.write_run(&mut sa, &mut frame, &mut out, ROOM), Err(refused));
        assert_eq!(plan.write_next(&mut sa, &frame, &mut out), Err(refused));
        let mut next = OutboundSa::with_library(&crate::bench::config(gcm()), crate::library()).unwrap();
        assert_eq!(plan.write_run(&mut next, &mut frame, &mut out, ROOM).unwrap().frames, 5, "another SA goes on");
    }
}

#[test]
fn a_slot_too_short_for_the_sealed_frame_is_refused_before_a_byte_is_written() {
    let packet = super_frame(14_000, false, false);
    let (mut bytes, meta) = (packet.build(), meta(&packet, 1400));
    let mut frame = Frame::new(&mut bytes, meta);
    let mut sa = OutboundSa::with_library(&config(gcm()), crate::library()).unwrap();
    let mut plan = plan(&mut frame, &sa);
    let len = plan.next_len(&frame, &sa);
    let mut out = vec![0xee; len * 3];
    assert_eq!(plan.write_next(&mut sa, &frame, &mut out[..len - 1]), Err(SealRefused::NoRoom));
    assert_eq!(plan.write_run(&mut sa, &mut frame, &mut out, len - 1), Err(SealRefused::NoRoom));
    assert_eq!((plan.frames_left(), sa.sequence(), out.iter().all(|&b| b == 0xee)), (10, 0, true));
    assert_eq!(plan.write_run(&mut sa, &mut frame, &mut out, len).unwrap().frames, 3);
}

#[test]
fn a_super_frame_cut_for_the_path_fits_it_exactly() {
    for suite in Suite::all() {
        for mode in crate::bench::modes() {
            let mut sa = OutboundSa::with_library(&SaConfig { mode, ..config(suite) }, crate::library()).unwrap();
            let size = sa.payload_max(1500, 20, 20).unwrap();
            let packet = super_frame(3 * size, false, false);
            let (mut bytes, mut out) = (packet.build(), vec![0; ROOM]);
            let mut frame = Frame::new(&mut bytes, meta(&packet, size as u16));
            let mut plan = plan(&mut frame, &sa);
            while let Some(sealed) = plan.write_next(&mut sa, &frame, &mut out).unwrap() {
                let layout = layout(&out[..sealed.end]);
                assert!(layout.packet_end - layout.network_start <= 1500);
                assert!(layout.packet_end - layout.network_start > 1500 - suite.alignment());
            }
        }
    }
}

#[test]
fn fragments_of_a_large_datagram_need_a_tunnel() {
    let packet = Packet { is_udp: true, ports: (1, 2), checksum: Checksum::Partial, ..sized(5000) };
    let partial = PartialChecksum { start: 34, offset: 6 };
    let segmentation = Segmentation::new(SegmentationKind::UdpFragments, 1400);
    let meta = TxMeta { checksum: Some(partial), segmentation: Some(segmentation) };
    let frame = packet.build();
    for mode in crate::bench::modes() {
        let config = SaConfig { mode, ..config(gcm()) };
        let (mut alone, _) = pair(&config);
        if mode == Mode::Transport {
            let mut bytes = frame.clone();
            let mut whole = Frame::new(&mut bytes, meta);
            let refused = SealedSegments::new(&mut whole, &POLICY, &alone).unwrap_err();
            assert_eq!(refused, PlanRefused::Seal(SealRefused::Fragment));
        } else {
            let expected: Vec<_> = clear_frames(&frame, &meta).iter().map(|frame| seal(&mut alone, frame)).collect();
            assert_eq!(in_runs(&config, &frame, &meta, ROOM * 10), expected);
        }
    }
}
