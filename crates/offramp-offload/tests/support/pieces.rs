//! The pieces received by a host, and the check that segmentation of the pieces restores the frames from the wire.

use super::{addresses, difference, hex, layout};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer};
use offramp_offload::frame::Frame;
use offramp_offload::layout::{Network, Transport};
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use std::collections::BTreeMap;

/// A frame received by a host, without padding: one frame from the wire, or several coalesced frames.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Metadata of the piece.
    pub meta: RxMeta,
    /// Bytes of the piece.
    pub bytes: Vec<u8>,
}

/// Coalesces these frames with the code under test.
pub fn by_us(frames: &[Vec<u8>]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut out = |meta: &RxMeta, bytes: &[u8]| pieces.push(Piece::new(*meta, bytes));
    for frame in frames {
        let mut frame = frame.clone();
        coalescer.push(Frame::received(&mut frame), Offloads::RATIFIED, None, 0, &mut out);
    }
    coalescer.flush(&mut out);
    pieces
}

impl Piece {
    /// Makes a piece from these bytes, without padding.
    pub fn new(meta: RxMeta, bytes: &[u8]) -> Self {
        Self { meta, bytes: trimmed(bytes).to_vec() }
    }

    /// Returns the payload length in bytes. Returns the length of the whole frame if the frame has no layout.
    pub fn payload_len(&self) -> usize {
        layout(&self.bytes).map_or(self.bytes.len(), |layout| layout.payload_len())
    }

    /// Returns true for several coalesced frames.
    pub fn is_coalesced(&self) -> bool {
        self.meta.segmentation.is_some()
    }

    /// Returns true for a single frame with a partial checksum. The kernel coalesced this frame and then segmented the
    /// aggregate, because the kernel's output format cannot express the aggregate.
    pub fn is_cut_again(&self) -> bool {
        !self.is_coalesced() && matches!(self.meta.checksum, ChecksumState::Partial(_))
    }

    /// Segments the piece into frames of the wire.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let checksum = match self.meta.checksum {
            ChecksumState::Partial(partial) => Some(partial),
            _ => None,
        };
        let request = TxMeta { checksum, segmentation: self.meta.segmentation };
        let mut bytes = self.bytes.clone();
        let whole = Frame::new(&mut bytes, request);
        let mut segmenter = Segmenter::new(&whole, &SegmentPolicy::default()).expect("it can be segmented");
        let mut frames = Vec::new();
        while segmenter.frames_left() > 0 {
            let mut out = vec![0; segmenter.next_len()];
            segmenter.write_next(&whole, &mut out);
            frames.push(out);
        }
        if let (true, Some(partial)) = (self.is_cut_again(), checksum) {
            // 0 and 0xffff are the same number in one's complement. TCP segments on a wire have 0.
            let field = &mut frames[0][partial.field()..partial.field() + 2];
            if *field == [0xff, 0xff] && partial.offset == 16 {
                field.fill(0);
            }
        }
        frames
    }

    /// Formats the piece for a failed test.
    pub fn describe(&self) -> String {
        let size = self.meta.segmentation.map_or(0, |s| s.size);
        let head = &self.bytes[..self.bytes.len().min(80)];
        format!("{} bytes, gso_size {size}, {:?}: {}", self.payload_len(), self.meta.checksum, hex(head))
    }
}

/// Returns the frame without the bytes after the packet.
pub fn trimmed(frame: &[u8]) -> &[u8] {
    layout(frame).map_or(frame, |layout| &frame[..layout.packet_end])
}

/// Checks that segmentation of the pieces restores the original frames, in the order of each flow.
///
/// # Errors
/// Returns a description of the difference.
pub fn check_inverse(frames: &[Vec<u8>], ours: &[Piece]) -> Result<(), String> {
    let mut flows = Flows::of(frames);
    for piece in ours {
        let cut = piece.frames();
        let originals = flows.next(&cut[0], cut.len())?;
        let are_fixed = ids_are_fixed(&originals);
        for (original, cut) in originals.iter().zip(&cut) {
            let cut = if are_fixed { with_id_of(cut, original) } else { cut.clone() };
            if let Some(difference) = difference(trimmed(original), &cut) {
                return Err(format!("segmenting does not give the frame back (first what came in) {difference}"));
            }
        }
    }
    flows.check_is_empty()
}

/// The key of frames that must keep their order: IP version, transport, addresses and ports. All opaque frames are one
/// flow.
pub type Flow = (u8, Vec<u8>);

/// Returns the flow of a frame.
pub fn flow_of(frame: &[u8]) -> Flow {
    match layout(frame) {
        Ok(layout) if layout.transport != Transport::Opaque => {
            let kind = 1 + u8::from(layout.network == Network::Ipv6) + 2 * u8::from(layout.transport == Transport::Udp);
            let ports = &frame[layout.transport_start..layout.transport_start + 4];
            (kind, [&addresses(frame), ports].concat())
        }
        _ => (0, Vec::new()),
    }
}

/// Groups pieces by flow, in the order of delivery.
pub fn by_flow(pieces: &[Piece]) -> BTreeMap<Flow, Vec<&Piece>> {
    let mut flows: BTreeMap<Flow, Vec<&Piece>> = BTreeMap::new();
    for piece in pieces {
        flows.entry(flow_of(&piece.bytes)).or_default().push(piece);
    }
    flows
}

/// The original frames by flow, consumed from the front.
pub struct Flows<'a>(BTreeMap<Flow, Vec<&'a [u8]>>);

impl<'a> Flows<'a> {
    /// Groups frames in their original order.
    pub fn of(frames: &'a [Vec<u8>]) -> Self {
        let mut flows: BTreeMap<Flow, Vec<&[u8]>> = BTreeMap::new();
        for frame in frames {
            flows.entry(flow_of(frame)).or_default().push(frame);
        }
        Self(flows)
    }

    /// Consumes the next `count` frames of the flow of `like`.
    ///
    /// # Errors
    /// Returns an error if fewer than `count` frames are left.
    pub fn next(&mut self, like: &[u8], count: usize) -> Result<Vec<&'a [u8]>, String> {
        let queue = self.0.entry(flow_of(like)).or_default();
        if queue.len() < count {
            return Err("more came out than went in".into());
        }
        Ok(queue.drain(..count).collect())
    }

    /// Checks that all original frames were consumed.
    ///
    /// # Errors
    /// Returns an error if frames are left.
    pub fn check_is_empty(&self) -> Result<(), String> {
        let left: usize = self.0.values().map(Vec::len).sum();
        if left == 0 { Ok(()) } else { Err(format!("{left} frames are missing")) }
    }
}

/// Returns the offset of the IPv4 ID, or `None` if the frame carries no IPv4.
pub fn id_at(frame: &[u8]) -> Option<usize> {
    let layout = layout(frame).ok()?;
    (layout.network == Network::Ipv4).then_some(layout.network_start + 4)
}

/// Returns true if the first two IPv4 IDs are equal and DF is set. In this case, all IDs of the coalesced frames are
/// equal.
pub fn ids_are_fixed(frames: &[&[u8]]) -> bool {
    let id = |frame: &[u8]| id_at(frame).map(|at| [frame[at], frame[at + 1], frame[at + 2] & 0x40]);
    let has_df = |frame: &[u8]| id(frame).is_some_and(|[.., df]| df != 0);
    matches!(frames, [a, b, ..] if has_df(a) && id(a) == id(b))
}

/// Returns the frame with the ID and header checksum of `original`.
fn with_id_of(frame: &[u8], original: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some(at) = id_at(original) {
        for field in [at..at + 2, at + 6..at + 8] {
            frame[field.clone()].copy_from_slice(&original[field]);
        }
    }
    frame
}

/// Returns the payload length of each piece, in bytes.
pub fn sizes(pieces: &[Piece]) -> Vec<usize> {
    pieces.iter().map(Piece::payload_len).collect()
}
