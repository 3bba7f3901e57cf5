mod shared;
mod tunnel;

use super::*;
use crate::checksum::{self, verify};
use crate::frame::FrameBuffer;
use crate::layout::VLAN_TAG_LEN;
use crate::layout::{
    FrameLayout, LengthFrom, NEXT_HEADER_FRAGMENT, Network, TCP_CHECKSUM_OFFSET, TCP_CWR, TCP_FIN, TCP_PSH, Transport,
    UDP_CHECKSUM_OFFSET, be16,
};
use crate::meta::{ChecksumState, Cwr, Segmentation, SegmentationKind, TxMeta};
use crate::vlan::TagChange;
use etherparse::PacketBuilder;
use proptest::prelude::*;

/// Payload length of [`tcp4_frame`] in bytes.
pub(crate) const PAYLOAD_LEN: usize = 100;

/// Returns a TCP frame over IPv4 with correct checksums, as received from the wire.
pub(crate) fn tcp4_frame() -> Vec<u8> {
    let (frame, meta) = tcp_super_frame(false, &pattern(PAYLOAD_LEN), 0x18, 1, 1);
    cut(&frame, &meta, &SegmentPolicy::default()).remove(0)
}

/// Returns a TCP super-frame with the pseudo-header's sum in its checksum field, as sent by a host.
fn tcp_super_frame(version6: bool, payload: &[u8], flags_byte: u8, id: u16, sequence: u32) -> (Vec<u8>, TxMeta) {
    let mut frame = Vec::new();
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let options = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 5];
    if version6 {
        let tcp = link.ipv6([3; 16], [5; 16], 64).tcp(1111, 2222, sequence, 8192).options_raw(&options).unwrap();
        tcp.write(&mut frame, payload).unwrap();
    } else {
        let tcp = link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1111, 2222, sequence, 8192);
        tcp.options_raw(&options).unwrap().write(&mut frame, payload).unwrap();
        put16(&mut frame, 18, id);
        put16(&mut frame, 24, 0);
        let header_sum = checksum::sum(&frame[14..34]).checksum();
        put16(&mut frame, 24, header_sum);
    }
    let kind = if version6 { SegmentationKind::Tcp6 } else { SegmentationKind::Tcp4 };
    let start = if version6 { 54 } else { 34 };
    frame[start + 13] = flags_byte;
    let meta = with_partial_sum(&mut frame, start, TCP_CHECKSUM_OFFSET);
    (frame, TxMeta { segmentation: Some(Segmentation::new(kind, 1448)), ..meta })
}

fn udp_super_frame(version6: bool, payload: &[u8], kind: SegmentationKind, size: u16) -> (Vec<u8>, TxMeta) {
    let mut frame = Vec::new();
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    if version6 {
        link.ipv6([3; 16], [5; 16], 64).udp(1111, 2222).write(&mut frame, payload).unwrap();
    } else {
        link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1111, 2222).write(&mut frame, payload).unwrap();
    }
    let meta = with_partial_sum(&mut frame, if version6 { 54 } else { 34 }, UDP_CHECKSUM_OFFSET);
    (frame, TxMeta { segmentation: Some(Segmentation::new(kind, size)), ..meta })
}

fn with_partial_sum(frame: &mut [u8], start: usize, offset: usize) -> TxMeta {
    let layout = FrameLayout::parse(frame, LengthFrom::Frame).unwrap();
    let pseudo = checksum::pseudo_header(frame, &layout, layout.transport_len() as u32);
    put16(frame, start + offset, pseudo.fold());
    TxMeta { checksum: Some(PartialChecksum { start: start as u16, offset: offset as u16 }), segmentation: None }
}

fn plan(frame: &[u8], meta: &TxMeta) -> Result<Segmenter, Refused> {
    Segmenter::new(&Frame::new(&mut frame.to_vec(), *meta), &SegmentPolicy::default())
}

fn cut(frame: &[u8], meta: &TxMeta, policy: &SegmentPolicy) -> Vec<Vec<u8>> {
    let mut bytes = frame.to_vec();
    let frame = Frame::new(&mut bytes, *meta);
    let mut plan = Segmenter::new(&frame, policy).unwrap();
    let mut frames = Vec::new();
    while plan.frames_left() > 0 {
        let mut out = vec![0; plan.next_len()];
        assert_eq!(plan.write_next(&frame, &mut out), out.len());
        frames.push(out);
    }
    assert_eq!(plan.write_next(&frame, &mut []), 0);
    frames
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn cwr_stays_on_every_segment_if_the_request_says_accecn_and_on_the_first_otherwise() {
    for version6 in [false, true] {
        for (mark, of_all) in [(Cwr::Unmarked, false), (Cwr::First, false), (Cwr::All, true)] {
            // The flags CWR, ECE, ACK and PSH are set here, and AE below.
            let (mut frame, mut meta) = tcp_super_frame(version6, &pattern(5000), 0xd8, 1, 1);
            let start = usize::from(meta.checksum.unwrap().start);
            frame[start + 12] |= 1;
            meta.segmentation = meta.segmentation.map(|s| Segmentation { cwr: mark, ..s });
            let frames = cut(&frame, &meta, &SegmentPolicy::default());
            assert_eq!(frames.len(), 4);
            for (n, segment) in frames.iter().enumerate() {
                let layout = FrameLayout::parse(segment, LengthFrom::Ip).unwrap();
                assert_eq!(verify(segment, &layout), ChecksumState::Good);
                assert_eq!(segment[start + 13] & TCP_CWR != 0, of_all || n == 0, "segment {n}, {mark:?}");
                assert_eq!((segment[start + 12] & 1, segment[start + 13] & 0x40), (1, 0x40), "AE and ECE on all");
                assert_eq!(segment[start + 13] & TCP_PSH != 0, n == 3);
            }
        }
    }
}

#[test]
fn tcp_segments_carry_the_payload_in_order_with_right_sums_and_flags() {
    for version6 in [false, true] {
        let payload = pattern(10_000);
        // The flags are CWR, ECE, PSH, ACK and FIN.
        let (frame, meta) = tcp_super_frame(version6, &payload, 0xd9, 0xfffe, 0xffff_f000);
        let frames = cut(&frame, &meta, &SegmentPolicy::default());
        assert_eq!(frames.len(), 7);
        let mut payloads = Vec::new();
        for (n, segment) in frames.iter().enumerate() {
            let layout = FrameLayout::parse(segment, LengthFrom::Ip).unwrap();
            let tcp = &segment[layout.transport_start..];
            assert_eq!(verify(segment, &layout), ChecksumState::Good);
            assert_eq!(layout.packet_end, segment.len());
            let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
            assert_eq!(sequence, 0xffff_f000_u32.wrapping_add(n as u32 * 1448));
            assert_eq!(tcp[13] & TCP_CWR != 0, n == 0, "CWR on the first only");
            assert_eq!(tcp[13] & TCP_FIN != 0, n == 6, "FIN on the last only");
            assert_eq!(tcp[13] & TCP_PSH != 0, n == 6, "PSH on the last only");
            assert_eq!(tcp[13] & 0x50, 0x50, "ECE and ACK on all");
            assert_eq!(&tcp[20..32], &frame[layout.transport_start + 20..layout.transport_start + 32]);
            if !version6 {
                assert_eq!(be16(segment, 18), 0xfffe_u16.wrapping_add(n as u16));
            }
            payloads.extend_from_slice(&segment[layout.payload_start..]);
        }
        assert_eq!(payloads, payload);
    }
}

#[test]
fn frames_written_in_runs_are_the_same_as_frames_written_one_by_one() {
    const STRIDE: usize = 1600;
    for (version6, payload_len, slots) in [(false, 30_000, 64), (true, 30_000, 5), (false, 1449, 2), (true, 100, 1)] {
        let (mut bytes, meta) = tcp_super_frame(version6, &pattern(payload_len), 0xd9, 0xfff0, 0xffff_0000);
        let expected = cut(&bytes, &meta, &SegmentPolicy::default());
        let frame = Frame::new(&mut bytes, meta);
        let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).unwrap();
        let mut frames = Vec::new();
        while plan.frames_left() > 0 {
            let (len, mut out) = (plan.next_len(), vec![0; STRIDE * slots]);
            let written = plan.write_run(&frame, &mut out, STRIDE);
            assert!(written > 0);
            frames.extend(out.chunks(STRIDE).take(written).map(|slot| slot[..len].to_vec()));
        }
        assert_eq!(frames, expected);
    }
}

#[test]
fn ip_ids_wrap_around() {
    let (frame, meta) = tcp_super_frame(false, &pattern(1448 * 3), 0x10, 0xfffe, 1);
    let ids: Vec<_> = cut(&frame, &meta, &SegmentPolicy::default()).iter().map(|f| be16(f, 18)).collect();
    assert_eq!(ids, [0xfffe, 0xffff, 0x0000]);
}

/// Returns an SCTP packet in the form delivered by Linux on a packet socket: a zero checksum field, and the request for
/// a checksum.
fn sctp_frame(version6: bool, padding: usize) -> (Vec<u8>, TxMeta) {
    let mut frame = Vec::new();
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let packet = [&[0x1f, 0x90, 0x1f, 0x91, 0, 0, 0, 7, 0, 0, 0, 0][..], &pattern(17)].concat();
    if version6 {
        link.ipv6([3; 16], [5; 16], 64).write(&mut frame, 132.into(), &packet).unwrap();
    } else {
        link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).write(&mut frame, 132.into(), &packet).unwrap();
    }
    let start = (frame.len() - packet.len()) as u16;
    frame.resize(frame.len() + padding, 0);
    (frame, TxMeta { checksum: Some(PartialChecksum { start, offset: 8 }), segmentation: None })
}

#[test]
fn an_sctp_packet_gets_its_crc_and_no_internet_checksum() {
    for (version6, padding) in [(false, 0), (false, 5), (true, 0), (true, 9)] {
        let (frame, meta) = sctp_frame(version6, padding);
        let start = usize::from(meta.checksum.unwrap().start);
        let mut expected = frame.clone();
        // The expected checksum was computed by scapy 2.6.1: bytes(SCTP(sport=8080, dport=8081, tag=7) / Raw(payload)).
        expected[start + 8..start + 12].copy_from_slice(&[0xb8, 0x6f, 0x5d, 0x39]);
        assert_eq!(cut(&frame, &meta, &SegmentPolicy::default()), [expected], "IPv6: {version6}, padding {padding}");
    }
}

#[test]
fn a_frame_that_fits_one_segment_is_completed_and_otherwise_left_alone() {
    let (frame, meta) = tcp_super_frame(false, &pattern(1448), 0x19, 77, 5);
    let frames = cut(&frame, &meta, &SegmentPolicy::default());
    assert_eq!(frames.len(), 1);
    let layout = FrameLayout::parse(&frames[0], LengthFrom::Ip).unwrap();
    assert_eq!(verify(&frames[0], &layout), ChecksumState::Good);
    let mut expected = frame.clone();
    expected[50..52].copy_from_slice(&frames[0][50..52]);
    assert_eq!(frames[0], expected);
}

#[test]
fn udp_datagrams_have_their_own_length_and_checksum() {
    for version6 in [false, true] {
        let payload = pattern(5001);
        let (frame, meta) = udp_super_frame(version6, &payload, SegmentationKind::Udp, 1000);
        let frames = cut(&frame, &meta, &SegmentPolicy::default());
        let lens: Vec<_> = frames
            .iter()
            .map(|f| {
                let layout = FrameLayout::parse(f, LengthFrom::Ip).unwrap();
                assert_eq!(verify(f, &layout), ChecksumState::Good);
                layout.payload_len()
            })
            .collect();
        assert_eq!(lens, [1000, 1000, 1000, 1000, 1000, 1]);
    }
}

#[test]
fn a_large_datagram_becomes_fragments_that_reassemble_to_it() {
    for version6 in [false, true] {
        let payload = pattern(5000);
        let (frame, meta) = udp_super_frame(version6, &payload, SegmentationKind::UdpFragments, 1480);
        let policy = SegmentPolicy { fragment_id: 0xdead_beef };
        let frames = cut(&frame, &meta, &policy);
        let mut datagram = Vec::new();
        for (n, fragment) in frames.iter().enumerate() {
            let layout = FrameLayout::parse(fragment, LengthFrom::Ip).unwrap();
            assert!(layout.fragment);
            assert!(checksum::ipv4_header_is_good(fragment, &layout));
            let more = n + 1 < frames.len();
            let (offset, more_bit) = if version6 {
                assert_eq!(fragment[20], NEXT_HEADER_FRAGMENT);
                assert_eq!(fragment[58..62], 0xdead_beef_u32.to_be_bytes());
                (usize::from(be16(fragment, 56) & 0xfff8), be16(fragment, 56) & 1 != 0)
            } else {
                (usize::from(be16(fragment, 20) & 0x1fff) * 8, be16(fragment, 20) & 0x2000 != 0)
            };
            assert_eq!((offset, more_bit), (datagram.len(), more));
            datagram.extend_from_slice(&fragment[layout.transport_start..]);
        }
        let start = if version6 { 54 } else { 34 };
        let mut whole = frame[..start].to_vec();
        whole.extend_from_slice(&datagram);
        let layout = FrameLayout::parse(&whole, LengthFrom::Ip).unwrap();
        assert_eq!(verify(&whole, &layout), ChecksumState::Good);
        assert_eq!(&whole[layout.payload_start..], &payload[..]);
    }
}

#[test]
fn requests_that_do_not_fit_the_bytes_are_refused() {
    let (frame, meta) = tcp_super_frame(false, &pattern(5000), 0x10, 1, 1);
    let ask = |size, kind, checksum| {
        let meta = TxMeta { checksum, segmentation: Some(Segmentation::new(kind, size)) };
        plan(&frame, &meta).map(|s| s.frames_left())
    };
    let tcp4 = SegmentationKind::Tcp4;
    assert_eq!(ask(0, tcp4, meta.checksum), Err(Refused::SegmentSize));
    assert_eq!(ask(65535, tcp4, meta.checksum), Err(Refused::SegmentSize));
    assert_eq!(ask(1, tcp4, meta.checksum), Ok(5000));
    assert_eq!(ask(1448, SegmentationKind::Tcp6, meta.checksum), Err(Refused::Kind));
    assert_eq!(ask(1448, SegmentationKind::Udp, meta.checksum), Err(Refused::Kind));
    let place = |start, offset| Some(PartialChecksum { start, offset });
    assert_eq!(ask(1448, tcp4, place(36, 16)), Err(Refused::ChecksumPlace));
    assert_eq!(ask(1448, tcp4, place(34, 6)), Err(Refused::ChecksumPlace));
    assert_eq!(ask(1448, tcp4, None), Ok(4), "TCP may leave the checksum to us");
    let plain = TxMeta { checksum: place(60_000, 16), segmentation: None };
    assert_eq!(plan(&frame, &plain).unwrap_err(), Refused::ChecksumPlace);
    let (udp, meta) = udp_super_frame(false, &pattern(1290), SegmentationKind::Udp, 10);
    assert_eq!(plan(&udp, &meta).unwrap_err(), Refused::TooManySegments);
    let (udp, meta) = udp_super_frame(false, &pattern(5000), SegmentationKind::UdpFragments, 1477);
    assert_eq!(plan(&udp, &meta).unwrap_err(), Refused::SegmentSize);
    let runt = plan(&frame[..13], &TxMeta::default());
    assert_eq!(runt.unwrap_err(), Refused::Malformed(Malformed::Runt));
}

proptest! {
    #[test]
    fn no_request_on_any_bytes_panics_and_every_frame_has_the_length_announced(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        mutate in proptest::collection::vec((0..300_usize, any::<u8>()), 0..6),
        real: bool, version6: bool,
        size: u16, kind in 0..4_u8, start in 0..80_u16, offset in 0..40_u16, partial: bool,
    ) {
        let mut frame = if real { tcp_super_frame(version6, &bytes, 0x18, 1, 1).0 } else { bytes };
        for (at, value) in mutate {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        let kind = [SegmentationKind::Tcp4, SegmentationKind::Tcp6, SegmentationKind::Udp,
            SegmentationKind::UdpFragments][usize::from(kind)];
        let start = if real { if version6 { 54 } else { 34 } } else { start };
        let offset = if real { 16 } else { offset };
        let meta = TxMeta {
            checksum: partial.then_some(PartialChecksum { start, offset }),
            segmentation: Some(Segmentation::new(kind, if real { size % 64 } else { size })),
        };
        let frame = Frame::new(&mut frame, meta);
        if let Ok(mut plan) = Segmenter::new(&frame, &SegmentPolicy::default()) {
            let mut out = vec![0; 70_000];
            while plan.frames_left() > 0 {
                let announced = plan.next_len();
                prop_assert!(announced > 0 && announced <= out.len());
                prop_assert_eq!(plan.write_next(&frame, &mut out), announced);
            }
        }
    }
}

/// Returns all frames that the segmenter `plan` writes.
fn written(mut plan: Segmenter, frame: &Frame<'_>) -> Vec<Vec<u8>> {
    let one = |plan: &mut Segmenter| {
        let mut out = vec![0; plan.next_len()];
        plan.write_next(frame, &mut out);
        out
    };
    (0..plan.frames_left()).map(|_| one(&mut plan)).collect()
}

/// Returns a frame without a tag, of one of eight kinds, and its request. `cut_at` is the length of a truncated TCP
/// segment after its Ethernet header.
fn frame_of_kind(kind: usize, version6: bool, payload: &[u8], cut_at: usize) -> (Vec<u8>, TxMeta) {
    match kind {
        0 | 1 => tcp_super_frame(version6, payload, 0x18, 7, 9),
        2 => udp_super_frame(version6, payload, SegmentationKind::Udp, 400),
        3 => udp_super_frame(version6, payload, SegmentationKind::UdpFragments, 400),
        4 => (udp_super_frame(version6, payload, SegmentationKind::Udp, 400).0, TxMeta::default()),
        5 => ([&[2; 12][..], &[0x88, 0xb5], payload].concat(), TxMeta::default()),
        6 => (tcp4_frame()[..14 + cut_at].to_vec(), TxMeta::default()),
        _ => {
            let (frame, meta) = tcp_super_frame(version6, payload, 0x18, 7, 9);
            (frame, TxMeta { segmentation: None, ..meta })
        }
    }
}

proptest! {
    /// A buffer lends a frame with another tag as if the frame had been sent with this tag. Later, the buffer lends the
    /// original frame again.
    #[test]
    fn a_tag_that_is_changed_in_place_changes_nothing_else(
        kind in 0..8_usize, version6: bool, tags in 0..3_usize, tci: u16, len in 0..5000_usize, cut_at in 0..80_usize,
        changes in prop::collection::vec((0..4_u8, any::<u16>()), 1..5),
    ) {
        const AT: usize = 64;
        let payload = pattern(len);
        let (mut sent, mut request) = frame_of_kind(kind, version6, &payload, cut_at);
        let tag_len = tags * VLAN_TAG_LEN;
        for _ in 0..tags {
            sent.splice(12..12, [0x81, 0, tci.to_be_bytes()[0], tci.to_be_bytes()[1]]);
        }
        if let Some(partial) = &mut request.checksum {
            partial.start += tag_len as u16;
        }
        let mut buffer = FrameBuffer::new(vec![0; AT + sent.len() + 100]);
        buffer.memory_mut()[AT..AT + sent.len()].copy_from_slice(&sent);
        buffer.set(AT..AT + sent.len(), request);
        let policy = SegmentPolicy::default();
        for (which, tci) in changes {
            let new = tci.to_be_bytes();
            let (change, mut expected) = (match which {
                0 if tags < 2 => TagChange::Push(tci),
                1 if tags > 0 => TagChange::Pop,
                2 if tags > 0 => TagChange::Set(tci),
                _ => TagChange::Keep,
            }, sent.clone());
            match change {
                TagChange::Keep => {}
                TagChange::Push(_) => drop(expected.splice(12..12, [0x81, 0, new[0], new[1]])),
                TagChange::Pop => drop(expected.drain(12..16)),
                TagChange::Set(_) => drop(expected.splice(14..16, new)),
            }
            let moved = |partial: PartialChecksum| PartialChecksum {
                start: partial.start.wrapping_add_signed(change.added_len() as i16), ..partial
            };
            let mut expected_bytes = expected.clone();
            let expected = Frame::new(&mut expected_bytes, TxMeta { checksum: request.checksum.map(moved), ..request });
            let plan = Segmenter::new(&buffer.frame(), &policy);
            let changed = buffer.frame_with_tag(change).unwrap();
            prop_assert_eq!(changed.bytes(), expected.bytes());
            prop_assert_eq!(changed.request(), expected.request());
            prop_assert_eq!(changed.layout(), expected.layout());
            match (plan, Segmenter::new(&expected, &policy)) {
                (Ok(mut plan), Ok(mut expected_plan)) => {
                    // Change the tag in the middle of a super-frame as well.
                    for _ in 0..tci % 3 {
                        let mut out = vec![0; plan.next_len()];
                        plan.write_next(&Frame::new(&mut sent.clone(), request), &mut out);
                        expected_plan.skip_next();
                    }
                    let plan = plan.after_tag_change(change);
                    prop_assert_eq!(plan.link_header_len(), expected_plan.link_header_len());
                    prop_assert_eq!(written(plan, &changed), written(expected_plan, &expected));
                }
                (plan, expected_plan) => prop_assert_eq!(plan.err(), expected_plan.err()),
            }
            if which % 2 == 0 {
                prop_assert!(buffer.frame().bytes() == sent);
            }
        }
        prop_assert!(buffer.frame().bytes() == sent);
        prop_assert_eq!(buffer.frame().request(), request);
    }
}

#[test]
fn without_room_before_a_frame_no_tag_is_put_in() {
    let bytes = tcp4_frame();
    for (at, has_room) in [(3, false), (4, true)] {
        let mut buffer = FrameBuffer::new(vec![0; 4096]);
        buffer.memory_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        buffer.set(at..at + bytes.len(), TxMeta::default());
        assert_eq!(buffer.frame_with_tag(TagChange::Push(5)).is_some(), has_room);
        assert_eq!(buffer.frame().bytes(), bytes);
    }
}

/// Bit of the IP length in the set of fields that [`emptied`] clears. Some drivers leave these fields empty.
const LENGTH: u8 = 1;
const HEADER_CHECKSUM: u8 = 2;
const UDP_LENGTH: u8 = 4;
const PSEUDO_HEADER: u8 = 8;
const PSEUDO_HEADER_LENGTH: u8 = 16;

/// Clears the fields in the set `empty` of a super-frame with `meta`.
fn emptied(frame: &[u8], meta: &TxMeta, empty: u8) -> Vec<u8> {
    let layout = FrameLayout::parse(frame, LengthFrom::Frame).unwrap();
    let (network, transport) = (layout.network_start, layout.transport_start);
    let field = meta.checksum.unwrap().field();
    let mut frame = frame.to_vec();
    let is_ipv4 = layout.network == Network::Ipv4;
    let without_len = checksum::pseudo_header(&frame, &layout, 0).fold();
    let fields = [
        (LENGTH, network + if is_ipv4 { 2 } else { 4 }, 0, true),
        (HEADER_CHECKSUM, network + 10, 0, is_ipv4),
        (UDP_LENGTH, transport + 4, 0, layout.transport == Transport::Udp),
        (PSEUDO_HEADER_LENGTH, field, without_len, true),
        (PSEUDO_HEADER, field, 0, true),
    ];
    for (_, at, value, _) in fields.into_iter().filter(|(bit, _, _, exists)| empty & bit != 0 && *exists) {
        put16(&mut frame, at, value);
    }
    frame
}

proptest! {
    #[test]
    fn header_fields_that_a_driver_left_empty_are_repaired_and_others_stay(
        (version6, is_udp) in any::<(bool, bool)>(), len in 1..20_000_usize, size in 500..9_000_u16, empty in 0..32_u8,
    ) {
        let (frame, mut meta) = if is_udp {
            udp_super_frame(version6, &pattern(len), SegmentationKind::Udp, size)
        } else {
            tcp_super_frame(version6, &pattern(len), 0x18, 7, 1000)
        };
        meta.segmentation = meta.segmentation.map(|s| Segmentation { size, ..s });
        let mut bytes = emptied(&frame, &meta, empty);
        repair_headers(&mut Frame::new(&mut bytes, meta));
        prop_assert_eq!(&bytes, &frame);
    }
}

#[test]
fn a_packet_of_one_segment_keeps_its_length_and_its_padding() {
    let (mut frame, meta) = tcp_super_frame(false, &[7; 4], 0x18, 7, 1000);
    frame.extend([0; 9]);
    let before = frame.clone();
    repair_headers(&mut Frame::new(&mut frame, meta));
    assert_eq!(frame, before);
}

#[test]
fn a_field_begun_with_another_address_and_a_frame_without_a_request_stay() {
    let (mut frame, meta) = tcp_super_frame(true, &pattern(5000), 0x18, 7, 1000);
    put16(&mut frame, meta.checksum.unwrap().field(), 0x1234);
    let before = frame.clone();
    repair_headers(&mut Frame::new(&mut frame, meta));
    assert_eq!(frame, before);
    let mut frame = emptied(&before, &meta, 31);
    let before = frame.clone();
    repair_headers(&mut Frame::new(&mut frame, TxMeta { segmentation: None, ..meta }));
    assert_eq!(frame, before);
}
