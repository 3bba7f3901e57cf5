//! The measured ESP operations, and the target speeds.

use crate::ends::{Aligned, RAW_AEAD, esp_of, frame, inbound, outbound, suite};
use crate::harness::{Contender, OURSELVES, Report};
use crate::raw::Raw;
use offramp_offload::checksum;
use offramp_offload::esp::{OutboundSa, ReplayWindow, SealedSegments, Suite, TAG_LEN};
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::SegmentPolicy;
use std::hint::black_box;

/// Lengths of clear IP packets in bytes, and target speeds relative to the raw AEAD.
const PACKETS: [(usize, f64); 2] = [(1420, 0.93), (8900, 0.97)];
/// Payload length of a super-frame, in bytes.
const SUPER_PAYLOAD_LEN: usize = 64 * 1024 - 120;
/// Target time of large send with ESP, relative to the time of the AEAD.
const LARGE_SEND_TIME: f64 = 1.1;
/// Name of the reference for large send with ESP in two passes: a checksum over each payload, and the raw AEAD. Every
/// two-pass implementation does at least this work.
const CHECKSUM_AND_RAW_AEAD: &str = "checksum, raw aead";
/// Target time of a replay check, in nanoseconds.
const REPLAY_NS: f64 = 3.0;
/// Number of sealed frames that are opened one after another. A replay window accepts each frame once.
const FRAMES: usize = 64;
const HEADERS_LEN: usize = 54;
const IP_HEADERS_LEN: usize = 34;
/// Offset of the encrypted bytes in a sealed frame. The raw AEAD starts at the same offset, so that the two contenders
/// have the same alignment.
const BODY_AT: usize = IP_HEADERS_LEN + 16;
/// Distance between the starts of two consecutive frames in the transmit buffer, in bytes. The distance is a multiple
/// of a cache line, with room for the added headers.
const SLOT: usize = 1536;

/// Measures the operations of this file.
pub fn measure(report: &mut Report) {
    for name in ["aes128gcm16", "chacha20poly1305"] {
        for (packet_len, target) in PACKETS {
            seal_in_place(report, suite(name), packet_len, target);
            seal_copying(report, suite(name), packet_len, target);
            open(report, suite(name), packet_len, target);
        }
    }
    large_send(report);
    replay(report);
}

fn seal_in_place(report: &mut Report, suite: Suite, packet_len: usize, target: f64) {
    let ours = sealing_in_place(OURSELVES, outbound(suite), packet_len);
    let sealed_len = outbound(suite).sealed_len(&Frame::received(&mut frame(packet_len)));
    let (mut raw, mut bytes) = (Raw::new(suite), Aligned::new(&vec![0x5a; sealed_len.expect("a frame of our own")]));
    let raw = Contender::new(RAW_AEAD, move || raw.seal(&mut black_box(&mut bytes)[BODY_AT..]));
    let work = format!("seal_in_place_{suite}_{packet_len}");
    report.measure(&work, packet_len, vec![ours, raw]);
    report.aim_at_speed(&work, target);
}

/// Seals one frame repeatedly. Each execution parses the frame, because sealing in place accepts bytes, not a parsed
/// frame.
pub fn sealing_in_place(who: &'static str, mut sa: OutboundSa, packet_len: usize) -> Contender<'static> {
    let clear = frame(packet_len);
    let front_len = sa.front_len();
    let mut buffer = Aligned::new(&[vec![0; front_len], clear.clone(), vec![0; sa.tail_len_max()]].concat());
    let headers = clear[..HEADERS_LEN].to_vec();
    Contender::new(who, move || {
        // Sealing moved or encrypted the headers, so write the headers of a new frame.
        buffer[front_len..front_len + HEADERS_LEN].copy_from_slice(&headers);
        sa.seal_in_place(black_box(&mut buffer), front_len).expect("numbers enough").end
    })
}

fn seal_copying(report: &mut Report, suite: Suite, packet_len: usize, target: f64) {
    let mut clear = Aligned::new(&frame(packet_len));
    let clear = Frame::received(&mut clear);
    let mut sa = outbound(suite);
    let sealed_len = sa.sealed_len(&clear).expect("a frame of our own");
    let mut out = Aligned::new(&vec![0; sealed_len]);
    let body_len = sealed_len - BODY_AT - TAG_LEN;
    let source = Aligned::new(&vec![0x5a; IP_HEADERS_LEN + body_len]);
    let ours =
        Contender::new(OURSELVES, move || sa.seal(black_box(&clear), black_box(&mut out)).expect("numbers enough").end);
    let (mut raw, mut bytes) = (Raw::new(suite), Aligned::new(&vec![0; sealed_len]));
    let raw = Contender::new(RAW_AEAD, move || {
        raw.seal_from(&black_box(&source)[IP_HEADERS_LEN..], &mut black_box(&mut bytes)[BODY_AT..]);
    });
    let work = format!("seal_copying_{suite}_{packet_len}");
    report.measure(&work, packet_len, vec![ours, raw]);
    report.aim_at_speed(&work, target);
}

/// Measures opening a batch of sealed frames in place. An association accepts each frame once, so a new batch is sealed
/// before each execution, outside the measured time. The time of ESP includes parsing the outer frame.
fn open(report: &mut Report, suite: Suite, packet_len: usize, target: f64) {
    let mut clear = frame(packet_len);
    let clear = Frame::received(&mut clear);
    let (mut sender, mut receiver) = (outbound(suite), inbound(suite));
    let sealed_len = sender.sealed_len(&clear).expect("a frame of our own");
    let new_batch = move |batch: &mut Vec<FrameBuffer<Aligned>>| {
        for buffer in batch.iter_mut() {
            sender.seal(&clear, buffer.memory_mut()).expect("numbers enough");
            buffer.set(0..sealed_len, TxMeta::default());
        }
    };
    let open_batch = move |batch: &mut Vec<FrameBuffer<Aligned>>| {
        for buffer in batch.iter_mut() {
            let mut frame = buffer.frame();
            let packet = esp_of(&frame);
            receiver.open(&mut frame, &packet).expect("a genuine packet");
        }
    };
    let buffers: Vec<_> = batch_of(&vec![0; sealed_len]).into_iter().map(FrameBuffer::new).collect();
    let ours = Contender::with_reset(OURSELVES, buffers, new_batch, open_batch);
    let batch = (Raw::new(suite), batch_of(&vec![0x5a; sealed_len]));
    let seal_batch = |state: &mut (Raw, Vec<Aligned>)| {
        for bytes in &mut state.1 {
            state.0.seal(&mut bytes[BODY_AT..]);
        }
    };
    let open_raw = |state: &mut (Raw, Vec<Aligned>)| {
        let first = state.0.sequence() - FRAMES as u64 + 1;
        for (bytes, sequence) in state.1.iter_mut().zip(first..) {
            state.0.open(sequence, &mut bytes[BODY_AT..]);
        }
    };
    let raw = Contender::with_reset(RAW_AEAD, batch, seal_batch, open_raw);
    let work = format!("open_{FRAMES}_{suite}_{packet_len}");
    report.measure(&work, packet_len * FRAMES, vec![ours, raw]);
    report.aim_at_speed(&work, target);
}

fn batch_of(frame: &[u8]) -> Vec<Aligned> {
    (0..FRAMES).map(|_| Aligned::new(frame)).collect()
}

fn large_send(report: &mut Report) {
    let suite = suite("aes128gcm16");
    let mut sa = outbound(suite);
    let size = sa.payload_max(1500, 20, 20).expect("a path for more than headers");
    let super_frame = Aligned::new(&frame(SUPER_PAYLOAD_LEN + 40));
    let partial = PartialChecksum { start: IP_HEADERS_LEN as u16, offset: 16 };
    let segmentation = Segmentation::new(SegmentationKind::Tcp4, size as u16);
    let meta = TxMeta { checksum: Some(partial), segmentation: Some(segmentation) };
    let segments = SUPER_PAYLOAD_LEN.div_ceil(size);
    let mut line = Aligned::new(&vec![0; SLOT * segments]);
    let (mut super_bytes, payloads) = (Aligned::new(&super_frame), Aligned::new(&super_frame));
    let ours = Contender::new(OURSELVES, move || {
        let mut frame = Frame::new(black_box(&mut super_bytes), meta);
        let mut plan = SealedSegments::new(&mut frame, &SegmentPolicy::default(), &sa).expect("a frame of our own");
        let mut written = 0;
        while plan.frames_left() > 0 {
            let run = plan.write_run(&mut sa, &mut frame, &mut line[written * SLOT..], SLOT).expect("room and numbers");
            written += run.frames;
        }
        written
    });
    let (mut raw, mut line) = (Raw::new(suite), Aligned::new(&vec![0; SLOT * segments]));
    let raw = Contender::new(RAW_AEAD, move || {
        for (slot, payload) in line.chunks_exact_mut(SLOT).zip(black_box(&super_frame)[HEADERS_LEN..].chunks(size)) {
            raw.seal_from(payload, &mut slot[BODY_AT..BODY_AT + payload.len() + TAG_LEN]);
        }
    });
    let (mut raw_of_floor, mut line) = (Raw::new(suite), Aligned::new(&vec![0; SLOT * segments]));
    let floor = Contender::new(CHECKSUM_AND_RAW_AEAD, move || {
        for (slot, payload) in line.chunks_exact_mut(SLOT).zip(black_box(&payloads)[HEADERS_LEN..].chunks(size)) {
            black_box(checksum::sum(payload));
            raw_of_floor.seal_from(payload, &mut slot[BODY_AT..BODY_AT + payload.len() + TAG_LEN]);
        }
    });
    report.measure("large_send_64k", SUPER_PAYLOAD_LEN, vec![ours, raw, floor]);
    report.aim_at_speed("large_send_64k", 1.0 / LARGE_SEND_TIME);
}

fn replay(report: &mut Report) {
    const CHECKS: u32 = 1024;
    let mut window = ReplayWindow::new(1024, true, 0);
    let mut low = 0_u32;
    let ours = Contender::new(OURSELVES, move || {
        for _ in 0..CHECKS {
            low = low.wrapping_add(1);
            if let Ok(sequence) = window.check(black_box(low)) {
                let _ = black_box(window.advance(sequence));
            }
        }
        window.highest()
    });
    report.measure("replay_1024", CHECKS as usize, vec![ours]);
    report.aim_at_ns("replay_1024", f64::from(CHECKS), REPLAY_NS);
}
