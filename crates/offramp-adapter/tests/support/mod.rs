//! A host in memory, and frames for this host.

#![allow(dead_code, missing_docs, reason = "each test file uses a part of it")]

pub mod line;

use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::switch::Serving;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::{self, SharedBytes};
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::vlan::TagChange;
use std::collections::VecDeque;
use std::sync::Arc;

/// A host that sends queued frames and stores received frames. It lends the payload of super-frames in pieces, as the
/// port of a guest does, unless `lends_whole` is set.
#[derive(Default)]
pub struct MemoryHost {
    pub to_send: VecDeque<(TxMeta, Vec<u8>)>,
    pub taken: Option<FrameBuffer<Vec<u8>>>,
    pub lends_whole: bool,
    /// The bytes of the taken super-frame after the first [`FRONT_LEN`].
    pub rest: Vec<u8>,
    pub given: Vec<(RxMeta, Vec<u8>)>,
    /// Number of frames that the host refuses before it accepts a frame.
    pub refuse: usize,
    pub honours_data_valid: bool,
    /// Offloads accepted by the host; `None` for all.
    pub accepts: Option<Offloads>,
    /// Error number with which the host is closed.
    pub closed: Option<i32>,
    pub flushes: usize,
    /// True if `tx_unasked` lends frames without offload requests; the adapter can pass these frames on unparsed.
    pub lends_unasked: bool,
    /// Cost of fetching each frame, and of a fetch without a frame, in bytes.
    pub cost_bytes: usize,
    pub frameless_cost_bytes: usize,
    /// Cost of the last fetch, in bytes.
    pub last_cost_bytes: usize,
    /// The switch's record of the served host, and this host's number in the switch.
    pub serving: Option<(Arc<Serving>, usize)>,
}

impl MemoryHost {
    fn check_serving(&self) {
        if let Some((serving, index)) = &self.serving {
            assert_eq!(serving.index(), *index);
        }
    }
}

/// Number of bytes of a super-frame that the host lends as private bytes, and length of the pieces of the other bytes.
const FRONT_LEN: usize = 130;
const PIECE_LEN: usize = 777;

/// Start of the fetched frame in its buffer, with room for a tag before the frame.
const TAKEN_AT: usize = 64;

impl MemoryHost {
    fn buffer(&mut self) -> &mut FrameBuffer<Vec<u8>> {
        self.taken.get_or_insert_with(|| FrameBuffer::new(Vec::new()))
    }
}

impl InPlace for MemoryHost {}

impl HostPort for MemoryHost {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        self.check_serving();
        if let Some(errno) = self.closed {
            return Err(PortError::Closed(errno));
        }
        let next = self.to_send.pop_front();
        self.last_cost_bytes = if next.is_some() { self.cost_bytes } else { self.frameless_cost_bytes };
        let Some((request, frame)) = next else { return Ok(false) };
        let front_len =
            if request.segmentation.is_some() && !self.lends_whole { frame.len().min(FRONT_LEN) } else { frame.len() };
        let mut memory = vec![0; TAKEN_AT + frame.len()];
        memory[TAKEN_AT..TAKEN_AT + front_len].copy_from_slice(&frame[..front_len]);
        let mut taken = FrameBuffer::new(memory);
        self.rest = frame[front_len..].to_vec();
        // SAFETY: `rest` stays unchanged until the next frame replaces both `rest` and `taken`.
        let pieces = self.rest.chunks(PIECE_LEN).map(|piece| unsafe { SharedBytes::new(piece.as_ptr(), piece.len()) });
        taken.set_shared(TAKEN_AT..TAKEN_AT + front_len, request, pieces);
        self.taken = Some(taken);
        Ok(true)
    }

    fn tx_lend(&mut self) -> Frame<'_> {
        self.buffer().lent()
    }

    fn tx_lend_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.buffer().lent_with_tag(change)
    }

    fn rx_takes_shared(&self) -> bool {
        true
    }

    fn rx_deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>) -> Result<(), PortError> {
        let mut whole = frame.bytes().to_vec();
        for piece in frame.shared() {
            // SAFETY: the lending host changes no byte of the piece before its next frame.
            whole.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.as_ptr(), piece.len()) });
        }
        self.rx_deliver(meta, &whole)
    }

    fn tx_cost_bytes(&self) -> usize {
        self.last_cost_bytes
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.buffer().frame()
    }

    fn tx_unasked(&self) -> Option<&[u8]> {
        self.taken.as_ref().filter(|_| self.lends_unasked)?.unasked()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.buffer().frame_with_tag(change)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.check_serving();
        if let Some(errno) = self.closed {
            return Err(PortError::Closed(errno));
        }
        if self.refuse > 0 {
            self.refuse -= 1;
            return Err(PortError::Full);
        }
        self.given.push((*meta, frame.to_vec()));
        Ok(())
    }

    fn rx_flush(&mut self, _now_ns: u64) {
        self.check_serving();
        self.flushes += 1;
    }

    fn accepts(&self) -> Offloads {
        self.accepts.unwrap_or(Offloads::all())
    }

    fn honours_data_valid(&self) -> bool {
        self.honours_data_valid
    }
}

/// Returns a TCP frame over IPv4, with the checksum of the pseudo-header in its checksum field.
pub fn tcp_frame(flow: u16, sequence: u32, payload: &[u8]) -> (TxMeta, Vec<u8>) {
    let mut frame = vec![0; 54];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((40 + payload.len()) as u16).to_be_bytes());
    frame[20] = 0x40;
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let header_sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    frame[34..36].copy_from_slice(&(1000 + flow).to_be_bytes());
    frame[36..38].copy_from_slice(&80_u16.to_be_bytes());
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[46] = 0x50;
    frame[47] = 0x10;
    frame[48..50].copy_from_slice(&[0x20, 0]);
    frame.extend_from_slice(payload);
    let whole = Frame::received(&mut frame);
    let transport_len = whole.layout().unwrap().transport_len();
    let pseudo = whole.pseudo_header(transport_len as u32).fold();
    frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
    (TxMeta { checksum: Some(PartialChecksum { start: 34, offset: 16 }), segmentation: None }, frame)
}

/// Returns a TCP frame with a request to segment its payload at `size` bytes.
pub fn tcp_super_frame(flow: u16, sequence: u32, payload: &[u8], size: u16) -> (TxMeta, Vec<u8>) {
    let (meta, frame) = tcp_frame(flow, sequence, payload);
    let segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, size));
    (TxMeta { segmentation, ..meta }, frame)
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((seed + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Checks the checksums of a received TCP frame, and returns the frame's payload.
pub fn payload_of<'a>(meta: &RxMeta, frame: &'a [u8]) -> &'a [u8] {
    let layout = Frame::received(&mut frame.to_vec()).layout().copied().unwrap();
    assert!(Frame::received(&mut frame.to_vec()).has_good_ipv4_header());
    let mut completed = frame.to_vec();
    if let ChecksumState::Partial(partial) = meta.checksum {
        checksum::complete(&mut completed, partial, layout.packet_end).unwrap();
    }
    assert_eq!(Frame::received(&mut completed).verify(), ChecksumState::Good);
    &frame[layout.payload_start..layout.packet_end]
}
