//! Benchmark of large send: a 64 KiB super-frame becomes 45 complete frames in transmit buffers.

use crate::frames::{
    CHECKSUM_OFFSET, CHECKSUM_START, HEADER_LEN, HEADERS_LEN, LINK_HEADER_LEN, MSS, SEGMENTS, data, partial_frame,
};
use crate::harness::{Contender, OURSELVES, REFERENCE, Report};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use std::hint::black_box;

/// Distance between the starts of two consecutive frames in the transmit buffer in bytes, a multiple of a cache line.
const SLOT: usize = (HEADERS_LEN + MSS).next_multiple_of(64);
/// Sequence number of the first segment.
const SEQUENCE: u32 = 1000;
/// TCP flags of the super-frame: ACK and PSH.
const FLAGS: u8 = 0x18;

/// Measures the operations of this file.
pub fn measure(report: &mut Report) {
    let super_frame = partial_frame(0, SEQUENCE, 7, FLAGS, &data(SEGMENTS * MSS));
    check(&super_frame);
    let bytes = SEGMENTS * MSS;
    report.measure("tso_64k_mss1448", bytes, vec![ours(&super_frame), memcpy(&super_frame), tun_rs(&super_frame)]);
}

fn meta() -> TxMeta {
    TxMeta {
        checksum: Some(PartialChecksum { start: CHECKSUM_START as u16, offset: CHECKSUM_OFFSET as u16 }),
        segmentation: Some(Segmentation::new(SegmentationKind::Tcp4, MSS as u16)),
    }
}

fn cut(super_frame: &mut [u8], line: &mut [u8]) -> usize {
    let super_frame = Frame::new(super_frame, meta());
    let mut plan = Segmenter::new(&super_frame, &SegmentPolicy::default()).expect("a frame of our own");
    let written = plan.write_run(&super_frame, line, SLOT);
    plan.write_next(&super_frame, &mut line[written * SLOT..]);
    plan.frames_left()
}

fn ours(super_frame: &[u8]) -> Contender<'static> {
    let (mut super_frame, mut line) = (super_frame.to_vec(), vec![0; SLOT * SEGMENTS]);
    Contender::new(OURSELVES, move || cut(black_box(&mut super_frame), black_box(&mut line)))
}

/// Copies headers and payload of every segment, without any other work.
fn memcpy(super_frame: &[u8]) -> Contender<'_> {
    let mut line = vec![0; SLOT * SEGMENTS];
    Contender::new(REFERENCE, move || {
        let super_frame = black_box(super_frame);
        for (n, slot) in black_box(&mut line).chunks_exact_mut(SLOT).enumerate() {
            let from = HEADERS_LEN + n * MSS;
            slot[..HEADERS_LEN].copy_from_slice(&super_frame[..HEADERS_LEN]);
            slot[HEADERS_LEN..HEADERS_LEN + MSS].copy_from_slice(&super_frame[from..from + MSS]);
        }
    })
}

fn tun_rs(super_frame: &[u8]) -> Contender<'_> {
    let offset = tun_rs::VIRTIO_NET_HDR_LEN;
    let header = tun_rs::VirtioNetHdr {
        flags: 1,
        gso_type: tun_rs::VIRTIO_NET_HDR_GSO_TCPV4,
        hdr_len: HEADER_LEN as u16,
        gso_size: MSS as u16,
        csum_start: (CHECKSUM_START - LINK_HEADER_LEN) as u16,
        csum_offset: CHECKSUM_OFFSET as u16,
    };
    let mut packet = super_frame[LINK_HEADER_LEN..].to_vec();
    let (mut out, mut sizes) = (vec![vec![0; 2048]; 64], vec![0; 64]);
    let cut = move |packet: &mut Vec<u8>| {
        tun_rs::gso_split(black_box(packet), header, &mut out, &mut sizes, offset, false).expect("a frame of our own")
    };
    let mut cut = cut;
    assert_eq!(cut(&mut packet), SEGMENTS);
    Contender::new("tun-rs", move || cut(&mut packet))
}

/// Checks the measured output: every frame has correct checksums and its part of the payload.
fn check(super_frame: &[u8]) {
    let mut line = vec![0; SLOT * SEGMENTS];
    assert_eq!(cut(&mut super_frame.to_vec(), &mut line), 0);
    for (n, slot) in line.chunks_exact_mut(SLOT).enumerate() {
        let frame = &mut slot[..HEADERS_LEN + MSS];
        assert_eq!(Frame::received(frame).verify(), ChecksumState::Good, "segment {n}");
        let from = HEADERS_LEN + n * MSS;
        assert_eq!(frame[HEADERS_LEN..], super_frame[from..from + MSS]);
    }
}
