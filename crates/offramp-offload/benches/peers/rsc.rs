//! Benchmark of receive coalescing: frames from the wire become contiguous super-frames, with verification and flow
//! look-up.

use crate::frames::{HEADERS_LEN, LINK_HEADER_LEN, MSS, SEGMENTS, data, frame};
use crate::harness::{Contender, OURSELVES, REFERENCE, Report};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum};
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use std::hint::black_box;

const FRAME_LEN: usize = HEADERS_LEN + MSS;
/// Distance between the starts of two consecutive frames in the receive buffer in bytes, a multiple of a cache line.
const SLOT: usize = FRAME_LEN.next_multiple_of(64);
/// TCP flags of the frames: ACK.
const FLAGS: u8 = 0x10;

/// Measures the operations of this file.
pub fn measure(report: &mut Report) {
    for flows in [1, 64] {
        let line = line(flows);
        let count = flows * SEGMENTS;
        let contenders = vec![
            ours(OURSELVES, Handing::Runs, &line, flows),
            ours("frame by frame", Handing::OneByOne, &line, flows),
            memcpy(&line, flows),
            tun_rs(&line),
        ];
        report.measure(&format!("rsc_{flows}flow{}_x45", if flows > 1 { "s" } else { "" }), count * MSS, contenders);
    }
}

/// Returns frames in order of arrival: one frame per flow, in rotation.
fn line(flows: usize) -> Vec<u8> {
    let payload = data(MSS);
    let mut line = vec![0; flows * SEGMENTS * SLOT];
    for (n, slot) in line.chunks_exact_mut(SLOT).enumerate() {
        let (flow, segment) = (n % flows, n / flows);
        let bytes = frame(flow as u16, 1000 + (segment * MSS) as u32, 7 + segment as u16, FLAGS, &payload);
        slot[..FRAME_LEN].copy_from_slice(&bytes);
    }
    line
}

/// The way of handing frames to the coalescer.
#[derive(Clone, Copy)]
enum Handing {
    Runs,
    OneByOne,
}

fn coalesce(handing: Handing, coalescer: &mut Coalescer, line: &mut [u8], out: &mut impl FnMut(&RxMeta, &[u8])) {
    let enabled = Offloads::RX_CHECKSUM | Offloads::RSC;
    let mut frames = line.chunks_exact_mut(SLOT).map(|slot| &mut slot[..FRAME_LEN]);
    match handing {
        Handing::OneByOne => {
            frames.for_each(|frame| coalescer.push(Frame::received(frame), enabled, None, 0, out));
        }
        Handing::Runs => loop {
            let followed = coalescer.follow(frames, enabled, out);
            let Some(frame) = followed.other else { break };
            coalescer.push(Frame::received(frame), enabled, None, 0, out);
            frames = followed.rest;
        },
    }
    coalescer.flush(out);
}

fn ours(who: &'static str, handing: Handing, line: &[u8], flows: usize) -> Contender<'static> {
    let config = CoalesceConfig { flows_max: flows, rx_csum: RxCsum::NeedsCsum, ..CoalesceConfig::default() };
    let (mut coalescer, mut line) = (Coalescer::new(config), line.to_vec());
    let mut lens = Vec::new();
    let mut note = |meta: &RxMeta, frame: &[u8]| lens.push((meta.segments, frame.len()));
    coalesce(handing, &mut coalescer, &mut line, &mut note);
    assert_eq!(lens, vec![(SEGMENTS as u16, HEADERS_LEN + SEGMENTS * MSS); flows], "everything is coalesced");
    Contender::new(who, move || {
        let mut bytes = 0;
        let mut note = |_: &RxMeta, frame: &[u8]| bytes += black_box(frame).len();
        coalesce(handing, &mut coalescer, black_box(&mut line), &mut note);
        bytes
    })
}

/// Appends every payload to the previous payload of the same flow.
fn memcpy(line: &[u8], flows: usize) -> Contender<'_> {
    let mut coalesced = vec![vec![0; HEADERS_LEN + SEGMENTS * MSS]; flows];
    Contender::new(REFERENCE, move || {
        for (n, slot) in black_box(line).chunks_exact(SLOT).enumerate() {
            let to = HEADERS_LEN + n / flows * MSS;
            coalesced[n % flows][to..to + MSS].copy_from_slice(&slot[HEADERS_LEN..FRAME_LEN]);
        }
        black_box(&mut coalesced);
    })
}

fn tun_rs(line: &[u8]) -> Contender<'static> {
    let offset = tun_rs::VIRTIO_NET_HDR_LEN;
    let packets: Vec<Vec<u8>> = line.chunks_exact(SLOT).map(|s| s[LINK_HEADER_LEN..FRAME_LEN].to_vec()).collect();
    let buffers = packets.iter().map(|packet| {
        let mut buffer = Vec::with_capacity(offset + usize::from(u16::MAX));
        buffer.resize(offset, 0);
        buffer.extend_from_slice(packet);
        buffer
    });
    let state = (buffers.collect::<Vec<_>>(), tun_rs::GROTable::new());
    let reset = move |(buffers, _): &mut (Vec<Vec<u8>>, tun_rs::GROTable)| {
        for (buffer, packet) in buffers.iter_mut().zip(&packets) {
            buffer.truncate(offset);
            buffer.extend_from_slice(packet);
        }
    };
    Contender::with_reset("tun-rs", state, reset, move |(buffers, table)| {
        table.apply_gro(buffers, offset, false).expect("packets of our own");
        buffers.len()
    })
}
