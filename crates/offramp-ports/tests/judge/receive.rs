//! Receive coalescing by the kernel and by us, and how the two are compared.

use super::bench::{Bench, BenchConfig, INPUT, Told};
use super::{difference, hex};
use nix::time::{ClockId, clock_gettime};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer};
use offramp_offload::layout::{FrameLayout, LengthFrom, Network, Transport};
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::sys::{ethtool, rps};
use offramp_ports::vnet_hdr::{HEADER_LEN, decode_rx};
use std::collections::BTreeMap;

/// How long the kernel holds frames at most, in nanoseconds: far longer than a case takes, since each
/// case hands them out itself.
const FLUSH_TIMEOUT_NS: &str = "200000000";
/// How often the input may be polled without an interrupt: never an end to it.
const DEFERRED_INTERRUPTS: &str = "1000";
/// How often a case is written anew until all its frames fall into one tick.
const ATTEMPTS_MAX: usize = 50;
/// A frame of this length or more, Ethernet header included, is cut before a TAP sees it (Linux
/// `GSO_LEGACY_MAX_SIZE`).
const KERNEL_FRAME_LEN_MAX: usize = 65_536;

/// A frame of the line, or several joined, as a host is told of them; without padding.
#[derive(Clone, Debug)]
pub struct Piece {
    /// What is said of it.
    pub meta: RxMeta,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The kernel's receive path.
pub struct Receiver {
    bench: Bench,
}

impl Receiver {
    /// Makes the bench, with GRO for TCP and for forwarded UDP.
    pub fn new() -> Self {
        let all = Offloads::TX;
        let bench = Bench::new(BenchConfig { input: all, output: all, napi: true });
        let features = [("rx-gro", true), ("rx-udp-gro-forwarding", true)];
        bench.ns().run(|| ethtool::set_features(INPUT, &features)).unwrap().unwrap();
        rps::write_attribute(bench.ns(), INPUT, "gro_flush_timeout", FLUSH_TIMEOUT_NS).unwrap();
        rps::write_attribute(bench.ns(), INPUT, "napi_defer_hard_irqs", DEFERRED_INTERRUPTS).unwrap();
        Self { bench }
    }

    /// What the kernel makes of these frames when they come at once.
    ///
    /// It holds frames back until the end of a poll in a later tick of its clock than the one in which
    /// the first came. So all are written within one tick, and a sentinel in the next ends the case.
    pub fn judge(&mut self, frames: &[Vec<u8>]) -> Vec<Piece> {
        for _ in 0..ATTEMPTS_MAX {
            let tick = next_tick();
            for frame in frames {
                self.bench.write(&[0; HEADER_LEN], frame).unwrap();
            }
            let is_in_time = ticks() == tick;
            next_tick();
            let mut told = self.bench.wait(); // Its sentinel overtakes what its poll hands out,
            told.extend(self.bench.wait()); // this one comes behind.
            if is_in_time {
                return told.into_iter().map(Piece::told).collect();
            }
        }
        panic!("the machine is too busy to write {} frames within one tick", frames.len());
    }
}

/// What we make of these frames.
pub fn by_us(frames: &[Vec<u8>]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut out = |meta: &RxMeta, bytes: &mut [u8]| pieces.push(Piece::new(*meta, bytes));
    for frame in frames {
        let mut frame = frame.clone();
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip);
        coalescer.offer(&mut frame, &layout, Offloads::RX, None, 0, &mut out);
    }
    coalescer.flush(&mut out);
    pieces
}

impl Piece {
    /// A piece of these bytes.
    pub fn new(meta: RxMeta, bytes: &[u8]) -> Self {
        Self { meta, bytes: trimmed(bytes).to_vec() }
    }

    fn told((header, bytes): Told) -> Self {
        Self::new(decode_rx(&header).expect("the kernel's header"), &bytes)
    }

    /// Bytes of payload; of all that follows the Ethernet header when there is no transport.
    pub fn payload_len(&self) -> usize {
        FrameLayout::parse(&self.bytes, LengthFrom::Ip).map_or(self.bytes.len(), |layout| layout.payload_len())
    }

    /// Several frames in one.
    pub fn is_joined(&self) -> bool {
        self.meta.segmentation.is_some()
    }

    /// One frame whose checksum is still to be completed: the kernel had joined it, and cut it again
    /// because the output cannot express what it had made.
    pub fn is_cut_again(&self) -> bool {
        !self.is_joined() && matches!(self.meta.checksum, ChecksumState::Partial(_))
    }

    /// The frames of the line that it is.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let checksum = match self.meta.checksum {
            ChecksumState::Partial(partial) => Some(partial),
            _ => None,
        };
        let request = TxMeta { checksum, segmentation: self.meta.segmentation };
        let mut segmenter = Segmenter::new(&self.bytes, &request, &SegmentPolicy::default()).expect("it can be cut");
        let mut frames = Vec::new();
        while segmenter.frames_left() > 0 {
            let mut out = vec![0; segmenter.next_len()];
            segmenter.write_next(&self.bytes, &mut out);
            frames.push(out);
        }
        if let (true, Some(partial)) = (self.is_cut_again(), checksum) {
            // 0 and 0xffff are the same number; of the two, TCP's segments on a line have 0.
            let field = &mut frames[0][partial.field()..partial.field() + 2];
            if *field == [0xff, 0xff] && partial.offset == 16 {
                field.fill(0);
            }
        }
        frames
    }

    /// How it looks in a failed test.
    pub fn describe(&self) -> String {
        let size = self.meta.segmentation.map_or(0, |s| s.size);
        let head = &self.bytes[..self.bytes.len().min(80)];
        format!("{} bytes, gso_size {size}, {:?}: {}", self.payload_len(), self.meta.checksum, hex(head))
    }
}

/// The frame without what lies behind its packet.
pub fn trimmed(frame: &[u8]) -> &[u8] {
    FrameLayout::parse(frame, LengthFrom::Ip).map_or(frame, |layout| &frame[..layout.packet_end])
}

/// Checks that cutting what we handed out gives the frames that came in, in the order of each flow.
///
/// # Errors
/// What differs.
pub fn check_inverse(frames: &[Vec<u8>], ours: &[Piece]) -> Result<(), String> {
    let mut flows = Flows::of(frames);
    for piece in ours {
        let cut = piece.frames();
        let originals = flows.next(&cut[0], cut.len())?;
        let are_fixed = ids_are_fixed(&originals);
        for (original, cut) in originals.iter().zip(&cut) {
            let cut = if are_fixed { with_id_of(cut, original) } else { cut.clone() };
            if let Some(difference) = difference(trimmed(original), &cut) {
                return Err(format!("cutting does not give the frame back (first what came in) {difference}"));
            }
        }
    }
    flows.check_is_empty()
}

/// Compares what the kernel handed out with what we did, piece by piece within each flow.
///
/// Where the kernel cut an aggregate again, its frames are compared with those of ours; two reasons
/// for that are known, and any other is a difference.
///
/// # Errors
/// What differs.
pub fn check_same(frames: &[Vec<u8>], kernel: &[Piece], ours: &[Piece]) -> Result<(), String> {
    let mut originals = Flows::of(frames);
    let mut kernels = by_flow(kernel);
    for piece in ours {
        let originals = originals.next(&piece.bytes, piece.frames().len())?;
        let queue = kernels.entry(flow_of(&piece.bytes)).or_default();
        let is_cut_again = queue.first().is_some_and(|first| first.is_cut_again());
        if !is_cut_again {
            let same = queue.first().ok_or("the kernel handed out less than we did")?;
            check_piece(same, piece)?;
            queue.remove(0);
            continue;
        }
        if !piece.is_joined() {
            return Err("the kernel joined what we did not".into());
        }
        if !ids_are_fixed(&originals) && piece.bytes.len() < KERNEL_FRAME_LEN_MAX {
            return Err("the kernel cut an aggregate again, for no reason that is known".into());
        }
        if queue.len() < originals.len() {
            return Err("the kernel handed out fewer frames than we joined".into());
        }
        for (original, again) in originals.iter().zip(queue.drain(..originals.len())) {
            if !again.is_cut_again() || again.frames()[0] != trimmed(original) {
                return Err("the kernel did not join this frame, we did".into());
            }
        }
    }
    let left: usize = kernels.values().map(Vec::len).sum();
    if left == 0 { Ok(()) } else { Err(format!("the kernel handed out {left} pieces more")) }
}

/// Checks that the kernel handed out the frames that came in, in any order. The IPv4 ID is left out:
/// of joined datagrams with a fixed one, the kernel's header says that it counts.
///
/// # Errors
/// When it did not.
pub fn check_nothing_lost(frames: &[Vec<u8>], kernel: &[Piece]) -> Result<(), String> {
    let without_id = |frame: &[u8]| {
        let mut frame = trimmed(frame).to_vec();
        if let Some(at) = id_at(&frame) {
            frame[at..at + 2].fill(0);
            frame[at + 6..at + 8].fill(0);
        }
        frame
    };
    let mut came: Vec<_> = kernel.iter().flat_map(Piece::frames).map(|frame| without_id(&frame)).collect();
    let mut went: Vec<_> = frames.iter().map(|frame| without_id(frame)).collect();
    came.sort();
    went.sort();
    if came == went { Ok(()) } else { Err("the kernel handed out other frames than came in".into()) }
}

fn check_piece(kernel: &Piece, ours: &Piece) -> Result<(), String> {
    if let Some(difference) = difference(&kernel.bytes, &ours.bytes) {
        return Err(format!("pieces of {} and {} bytes differ {difference}", kernel.payload_len(), ours.payload_len()));
    }
    if kernel.meta.segmentation != ours.meta.segmentation {
        return Err(format!("{:?} by the kernel, {:?} by us", kernel.meta.segmentation, ours.meta.segmentation));
    }
    match (kernel.meta.checksum, ours.meta.checksum) {
        (ChecksumState::Partial(_), _) | (_, ChecksumState::Partial(_))
            if kernel.meta.checksum != ours.meta.checksum =>
        {
            Err(format!("{:?} by the kernel, {:?} by us", kernel.meta.checksum, ours.meta.checksum))
        }
        (ChecksumState::Good, ChecksumState::Bad) => Err("good to the kernel, bad to us".into()),
        _ => Ok(()),
    }
}

/// Which frames must stay in order: IP version, transport and ports. What is opaque is one flow.
type Flow = (u8, Vec<u8>);

fn flow_of(frame: &[u8]) -> Flow {
    match FrameLayout::parse(frame, LengthFrom::Ip) {
        Ok(layout) if layout.transport != Transport::Opaque => {
            let kind = 1 + u8::from(layout.network == Network::Ipv6) + 2 * u8::from(layout.transport == Transport::Udp);
            (kind, frame[layout.transport_start..layout.transport_start + 4].to_vec())
        }
        _ => (0, Vec::new()),
    }
}

fn by_flow(pieces: &[Piece]) -> BTreeMap<Flow, Vec<&Piece>> {
    let mut flows: BTreeMap<Flow, Vec<&Piece>> = BTreeMap::new();
    for piece in pieces {
        flows.entry(flow_of(&piece.bytes)).or_default().push(piece);
    }
    flows
}

/// The frames that came in, by flow, to be taken from the front.
struct Flows<'a>(BTreeMap<Flow, Vec<&'a [u8]>>);

impl<'a> Flows<'a> {
    fn of(frames: &'a [Vec<u8>]) -> Self {
        let mut flows: BTreeMap<Flow, Vec<&[u8]>> = BTreeMap::new();
        for frame in frames {
            flows.entry(flow_of(frame)).or_default().push(frame);
        }
        Self(flows)
    }

    fn next(&mut self, like: &[u8], count: usize) -> Result<Vec<&'a [u8]>, String> {
        let queue = self.0.entry(flow_of(like)).or_default();
        if queue.len() < count {
            return Err("more came out than went in".into());
        }
        Ok(queue.drain(..count).collect())
    }

    fn check_is_empty(&self) -> Result<(), String> {
        let left: usize = self.0.values().map(Vec::len).sum();
        if left == 0 { Ok(()) } else { Err(format!("{left} frames are missing")) }
    }
}

/// Where the IPv4 ID lies, if there is one.
fn id_at(frame: &[u8]) -> Option<usize> {
    let layout = FrameLayout::parse(frame, LengthFrom::Ip).ok()?;
    (layout.network == Network::Ipv4).then_some(layout.network_start + 4)
}

fn ids_are_fixed(frames: &[&[u8]]) -> bool {
    let id = |frame: &[u8]| id_at(frame).map(|at| [frame[at], frame[at + 1]]);
    matches!(frames, [a, b, ..] if id(a).is_some() && id(a) == id(b))
}

/// The frame with ID and header checksum of another.
fn with_id_of(frame: &[u8], original: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some(at) = id_at(original) {
        for field in [at..at + 2, at + 6..at + 8] {
            frame[field.clone()].copy_from_slice(&original[field]);
        }
    }
    frame
}

/// The kernel's clock that steps with its ticks, in nanoseconds.
fn ticks() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("Linux has had this clock since 2.6.32");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// Waits for the next tick and returns its time.
fn next_tick() -> i64 {
    let before = ticks();
    loop {
        let now = ticks();
        if now != before {
            return now;
        }
        std::hint::spin_loop();
    }
}

/// Payload bytes of each piece.
pub fn sizes(pieces: &[Piece]) -> Vec<usize> {
    pieces.iter().map(Piece::payload_len).collect()
}
