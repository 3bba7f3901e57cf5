//! Tests of an aggregate's metadata, and of checksum fields that prevent coalescing.

use super::*;
use crate::meta::{PartialChecksum, Segmentation, SegmentationKind};

#[test]
fn an_aggregate_says_how_to_segment_it() {
    let cases = [
        (tcp_run(&[100; 2]), SegmentationKind::Tcp4, 34, 16, 54),
        (to_ipv6(tcp_run(&[100; 2])), SegmentationKind::Tcp6, 54, 16, 74),
        (udp_run(&[100; 2]), SegmentationKind::Udp, 34, 6, 42),
        (to_ipv6(udp_run(&[100; 2])), SegmentationKind::Udp, 54, 6, 62),
    ];
    for (specs, kind, start, offset, header_len) in cases {
        let frames: Vec<_> = specs.iter().map(Spec::build).collect();
        let mut coalescer = Coalescer::new(CoalesceConfig::default());
        let mut delivered = Vec::new();
        for (n, frame) in frames.iter().enumerate() {
            let hash = Some(n as u32);
            coalescer.push(Frame::received(&mut frame.clone()), ALL, hash, 0, &mut |_: &RxMeta, _: &[u8]| {
                panic!("it was delivered")
            });
        }
        flush(&mut coalescer, &mut delivered);
        let segmentation = Segmentation::new(kind, 100);
        let checksum = ChecksumState::Partial(PartialChecksum { start, offset });
        let expected =
            RxMeta { checksum, segmentation: Some(segmentation), header_len, segments: 2, hash: Some(0), queue: 0 };
        assert_eq!(delivered[0].0, expected);
    }
}

#[test]
fn a_partial_checksum_is_written_for_who_is_handed_the_frame_alone() {
    for spec in [tcp_run(&[3]), to_ipv6(tcp_run(&[100])), udp_run(&[3]), to_ipv6(udp_run(&[100]))].concat() {
        let mut frame = padded(spec).build();
        let before = frame.clone();
        let mut coalescer = Coalescer::new(CoalesceConfig { rx_csum: RxCsum::NeedsCsum, ..CoalesceConfig::default() });
        let mut delivered: Vec<Delivered> = Vec::new();
        // No coalescing offload is enabled, so `push` delivers the frame directly from its own bytes.
        let mut out = |meta: &RxMeta, bytes: &[u8]| delivered.push((*meta, bytes.to_vec()));
        coalescer.push(Frame::received(&mut frame), Offloads::RX_CHECKSUM, None, 0, &mut out);
        assert_eq!(frame, before);
        let [(meta, bytes)] = &delivered[..] else { panic!("{} frames came out", delivered.len()) };
        let layout = FrameLayout::parse(bytes, LengthFrom::Ip).unwrap();
        assert_pseudo_sum(meta, bytes, &layout);
        let field = layout.checksum_field();
        assert_ne!(bytes[field..field + 2], before[field..field + 2]);
        let (around, after) = (trimmed(&before), field + 2..);
        assert_eq!((&bytes[..field], &bytes[after.clone()]), (&around[..field], &around[after]));
    }
}

#[test]
fn the_builder_writes_the_sums_that_etherparse_calculates() {
    for spec in [tcp_run(&[101]), to_ipv6(tcp_run(&[101])), udp_run(&[101]), to_ipv6(udp_run(&[101]))].concat() {
        let frame = spec.build();
        let headers = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let payload = headers.payload.slice();
        let delivered = headers.transport.unwrap();
        let mut calculated = delivered.clone();
        match headers.net.unwrap() {
            etherparse::NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
                calculated.update_checksum_ipv4(&ip, payload).unwrap();
            }
            etherparse::NetHeaders::Ipv6(ip, _) => calculated.update_checksum_ipv6(&ip, payload).unwrap(),
            other @ etherparse::NetHeaders::Arp(_) => panic!("not IP: {other:?}"),
        }
        assert_eq!(delivered, calculated);
    }
}

#[test]
fn a_checksum_field_that_segmenting_would_write_otherwise_stands_alone() {
    let mut frames: Vec<_> = tcp_run(&[100; 3]).iter().map(Spec::build).collect();
    // Choose the second frame's last payload word such that all words except the checksum field add up to 0xffff. So
    // the checksum is 0, which can also be written as 0xffff.
    let layout = FrameLayout::parse(&frames[1], LengthFrom::Ip).unwrap();
    let frame = &mut frames[1];
    let (field, word) = (layout.transport_start + 16, layout.packet_end - 2);
    let checksum = u16::from_be_bytes([frame[field], frame[field + 1]]);
    let last = u16::from_be_bytes([frame[word], frame[word + 1]]);
    let sum = slow_sum(&[&checksum.to_be_bytes(), &last.to_be_bytes()]);
    frame[word..word + 2].copy_from_slice(&sum.to_be_bytes());
    for (value, expected) in [(0u16, vec![300]), (0xffff, vec![100, 100, 100])] {
        frames[1][field..field + 2].copy_from_slice(&value.to_be_bytes());
        let delivered = coalesce_with(CoalesceConfig::default(), &frames);
        assert!(delivered.iter().all(|(meta, _)| meta.checksum != ChecksumState::Bad));
        assert_segments_into(&delivered, &frames);
        assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn an_ipv4_checksum_field_that_segmenting_would_write_otherwise_stands_alone() {
    // The second frame's ID makes the words of its IPv4 header, without the checksum field, add up to 0xffff. So the
    // checksum is 0, which can also be written as 0xffff.
    let without_id = with(tcp_run(&[100; 3]), 1, |spec| spec.id = 0)[1].build();
    let id = u16::from_be_bytes([without_id[24], without_id[25]]);
    let mut frames: Vec<_> =
        with_all(tcp_run(&[100; 3]), |n, spec| spec.id = id - 1 + n as u16).iter().map(Spec::build).collect();
    assert_eq!(frames[1][24..26], [0, 0]);
    for (value, expected) in [(0u16, vec![300]), (0xffff, vec![100, 100, 100])] {
        frames[1][24..26].copy_from_slice(&value.to_be_bytes());
        let delivered = coalesce_with(CoalesceConfig::default(), &frames);
        assert!(delivered.iter().all(|(meta, _)| meta.checksum != ChecksumState::Bad));
        assert_segments_into(&delivered, &frames);
        assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), expected);
    }
}
