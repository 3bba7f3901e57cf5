//! Properties that hold for any bytes. The fuzz targets and the ordinary tests call these functions.

pub mod esp;
#[path = "../support/packet.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod packet;
pub mod xfrm;

use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum, Sink};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, Cwr, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter, TunnelSegmenter, repair_headers};
use packet::{ACK, CWR, Checksum, DF, ECE, FIN, FRAGMENT, MF, PSH, Packet, TCP};
use std::collections::BTreeMap;

/// Maximum number of bytes added to a frame by segmentation: IPv6's fragment header.
const ADDED_MAX: usize = 8;
/// Maximum length of a frame from a packet socket, in bytes.
const LINE_LEN_MAX: usize = 65_536 + 22;

/// The remaining bytes of an input, followed by zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Consumes a length byte and returns that many bytes, or all remaining bytes.
    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..len).unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// Checks that offsets are ordered and inside the frame.
pub fn layout(bytes: &[u8]) {
    let segmentation = Segmentation::new(SegmentationKind::Tcp4, 1);
    for segmentation in [None, Some(segmentation)] {
        let mut copy = bytes.to_vec();
        let frame = Frame::new(&mut copy, TxMeta { checksum: None, segmentation });
        if let Ok(l) = frame.layout() {
            let offsets = [l.network_start, l.transport_start, l.payload_start, l.packet_end, bytes.len()];
            assert!(offsets.is_sorted(), "{l:?}");
            assert!(frame.addresses().len() <= 32);
        }
    }
}

/// Segments an input: ten bytes of request, then the frame. The frame can get a trailer of up to 64 KiB. Every output
/// frame must have the announced length. The number of output frames must not exceed the announced number. A repair of
/// the headers must be complete, and must change no length. Returns whether the frame's partial checksum was correct
/// after the repair, and the number of frames from a tunnel.
pub fn segment(bytes: &[u8]) -> (bool, usize) {
    let Some((ask, frame)) = bytes.split_first_chunk::<10>() else { return (false, 0) };
    let word = |at: usize| u16::from_le_bytes([ask[at], ask[at + 1]]);
    let kinds = [SegmentationKind::Tcp4, SegmentationKind::Tcp6, SegmentationKind::Udp, SegmentationKind::UdpFragments];
    let meta = TxMeta {
        checksum: (ask[0] & 1 != 0).then(|| PartialChecksum { start: word(2), offset: word(4) }),
        segmentation: (ask[0] & 2 != 0).then(|| Segmentation {
            kind: kinds[usize::from(ask[1] & 3)],
            size: word(6),
            cwr: [Cwr::Unmarked, Cwr::First, Cwr::All, Cwr::All][usize::from(ask[0] >> 2 & 3)],
        }),
    };
    let policy = SegmentPolicy { fragment_id: u32::from(word(8)) };
    let mut frame = frame.to_vec();
    if ask[0] & 8 != 0 {
        frame.resize(frame.len() + usize::from(word(8)), ask[1]);
    }
    let lengths = segments(&frame, meta, policy);
    let mut repaired = frame.clone();
    repair_headers(&mut Frame::new(&mut repaired, meta));
    assert_eq!(segments(&repaired, meta, policy), lengths, "a repair changes headers alone");
    let mut again = repaired.clone();
    repair_headers(&mut Frame::new(&mut again, meta));
    assert!(again == repaired, "a repair was not complete");
    (is_begun(&Frame::new(&mut again, meta)), tunnel(frame, meta))
}

/// Returns the lengths of all segments, or `None` if the request is refused. Checks that a correct partial checksum
/// leads to correct checksums in all segments.
fn segments(frame: &[u8], meta: TxMeta, policy: SegmentPolicy) -> Option<Vec<usize>> {
    let mut copy = frame.to_vec();
    let request = Frame::new(&mut copy, meta);
    let mut plan = Segmenter::new(&request, &policy).ok()?;
    let is_begun = is_begun(&request);
    let mut out = vec![0; frame.len() + ADDED_MAX];
    let (mut lengths, mut left) = (Vec::new(), plan.frames_left());
    assert!(left <= frame.len().max(1));
    while left > 0 {
        let len = plan.next_len();
        assert!(len <= out.len());
        assert_eq!(plan.write_next(&request, &mut out), len);
        assert!(!is_begun || Frame::received(&mut out[..len]).verify() != ChecksumState::Bad, "{meta:?} {frame:02x?}");
        lengths.push(len);
        left -= 1;
        assert_eq!(plan.frames_left(), left);
    }
    assert_eq!(plan.write_next(&request, &mut out), 0);
    Some(lengths)
}

/// Returns whether the partial checksum is correct: the field contains the pseudo-header's sum.
fn is_begun(request: &Frame<'_>) -> bool {
    let (Ok(layout), Some(partial)) = (request.layout(), request.request().checksum) else { return false };
    let field = partial.field();
    let offset = if layout.protocol == TCP { 16 } else { 6 };
    let is_its_own = field == layout.transport_start + offset && !layout.network_options && !layout.fragment;
    let pseudo = request.pseudo_header(layout.transport_len() as u32).fold();
    is_its_own && request.bytes().get(field..field + 2) == Some(&pseudo.to_be_bytes())
}

/// Segments a super-frame in a tunnel. Each output frame must allow segmentation, and no segment may have a wrong
/// checksum. Returns the number of frames.
fn tunnel(mut frame: Vec<u8>, meta: TxMeta) -> usize {
    let len = frame.len();
    let mut whole = Frame::new(&mut frame, meta);
    let Ok(Some(mut rest)) = TunnelSegmenter::new(&mut whole) else { return 0 };
    let (mut out, mut frames) = (vec![0; LINE_LEN_MAX], 0);
    while let Some((len, request)) = rest.write_next(&mut whole, &mut out) {
        let made = Frame::new(&mut out[..len], request);
        let mut plan = Segmenter::new(&made, &SegmentPolicy::default()).expect("a frame out of a tunnel");
        let mut segment = vec![0; plan.next_len()];
        while plan.frames_left() > 0 {
            let len = plan.write_next(&made, &mut segment);
            assert_ne!(Frame::received(&mut segment[..len]).verify(), ChecksumState::Bad);
        }
        frames += 1;
    }
    assert!((1..=len).contains(&frames), "{frames} frames");
    frames
}

/// Coalesces an input: a byte of settings, then frames, each after a length of two bytes, or frames built from fields.
/// Every frame must be delivered once, alone or coalesced, and no frame may remain at the end. Frames in runs, in
/// memory that the receiver lends, must be delivered like frames one by one.
pub fn coalesce(bytes: &[u8]) {
    let Some((&settings, mut rest)) = bytes.split_first() else { return };
    let (mut frames, mut sequence) = (Vec::new(), 0);
    while rest.len() >= 2 {
        let mut input = Input(rest);
        frames.push(if settings & 4 != 0 {
            built(&mut input, &mut sequence)
        } else {
            let len = usize::from(input.word()).min(input.0.len());
            input.0.split_off(..len).unwrap_or_default().to_vec()
        });
        rest = input.0;
    }
    let one_by_one = coalesced(settings, &frames, false);
    assert!(coalesced(settings, &frames, true) == one_by_one, "runs differ from {one_by_one:?}");
}

/// Returns the delivered frames.
fn coalesced(settings: u8, frames: &[Vec<u8>], in_runs: bool) -> Vec<(RxMeta, Vec<u8>)> {
    const RUN: usize = 8;
    let rx_csum = if settings & 1 != 0 { RxCsum::NeedsCsum } else { RxCsum::DataValid };
    let config = CoalesceConfig { flows_max: usize::from(settings >> 4), rx_csum, ..CoalesceConfig::default() };
    let (mut coalescer, mut out) = (Coalescer::new(config), Receiver { lends: in_runs, ..Receiver::default() });
    let mut frames = frames.to_vec();
    for (n, run) in frames.chunks_mut(RUN).enumerate() {
        let now_ns = n as u64;
        let enabled = if settings & 2 != 0 { Offloads::from_bits_truncate(n as u32 * 0x100) } else { Offloads::RX };
        let offered = (n * RUN + run.len()) as u64;
        let run = run.iter_mut().map(Vec::as_mut_slice);
        if in_runs {
            let mut followed = coalescer.follow(run, enabled, &mut out);
            while let Some(frame) = followed.other {
                coalescer.push(Frame::received(frame), enabled, None, now_ns, &mut out);
                followed = coalescer.follow(followed.rest, enabled, &mut out);
            }
        } else {
            run.for_each(|frame| coalescer.push(Frame::received(frame), enabled, None, now_ns, &mut out));
        }
        let given: u64 = out.delivered.iter().map(|(meta, _)| u64::from(meta.segments)).sum();
        assert_eq!(offered, given + coalescer.held() as u64);
    }
    coalescer.flush(&mut out);
    assert_eq!(coalescer.held(), 0);
    out.delivered
}

/// A receiver that can lend memory to every second flow.
#[derive(Default)]
struct Receiver {
    lends: bool,
    open: BTreeMap<usize, Vec<u8>>,
    /// Length of the frame in front of the last room, in bytes.
    filled_len: usize,
    delivered: Vec<(RxMeta, Vec<u8>)>,
}

impl Sink for Receiver {
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) {
        self.delivered.push((*meta, frame.to_vec()));
    }

    fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let is_lent = self.lends && slot.is_multiple_of(2);
        if is_lent {
            self.open.insert(slot, head.to_vec());
        }
        is_lent
    }

    fn room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        let frame = self.open.get_mut(&slot).expect("a frame that was begun");
        self.filled_len = frame.len();
        frame.resize(frame.len() + len * count, 0xee);
        Room::from(&mut frame[self.filled_len..])
    }

    fn fill(&mut self, slot: usize, len: usize) {
        self.open.get_mut(&slot).expect("a frame that was begun").truncate(self.filled_len + len);
    }

    fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) {
        let mut frame = self.open.remove(&slot).expect("a frame that was begun");
        assert_eq!(frame.len(), len);
        frame[..head.len()].copy_from_slice(head);
        self.delivered.push((*meta, frame));
    }
}

/// Builds the next frame of a flow. The frame can be a fragment that overlaps other fragments, and can have a long
/// trailer.
fn built(input: &mut Input, sequence: &mut u32) -> Vec<u8> {
    let (kind, flags, len) = (input.byte(), u16::from(input.byte()), usize::from(input.byte()) * 4);
    let is = |bit: u8| kind >> bit & 1 == 1;
    let flags = ACK | flags & (FIN | PSH | ECE | CWR);
    let mut packet = Packet { is_ipv6: is(0), is_udp: is(1), flags, seq: *sequence, fragment: DF, ..Packet::tcp(len) };
    if is(2) {
        let [offset, more] = [input.byte(), u8::from(is(3))];
        packet.fragment = u16::from(offset) | if is(3) { MF } else { 0 };
        packet.extensions = vec![(FRAGMENT, vec![0, 0, offset & !7 | more, 0, 0, 0, 9])];
    }
    packet.padding = if is(4) { usize::from(input.word()) } else { 0 };
    if is(5) {
        packet.checksum = Checksum::Wrong;
    }
    packet.ports.0 += u16::from(is(6));
    // If the step is smaller than the payload, the next frame overlaps this one.
    *sequence = sequence.wrapping_add(if is(7) { u32::from(input.byte()) } else { len as u32 });
    packet.build()
}
