//! A host port that owns one memory area and lends frames in both directions, as an `AF_XDP` socket does with its UMEM
//! (Linux `Documentation/networking/af_xdp.rst`). The host's frames are lent in place, and received frames are written
//! directly to the memory that the host reads.

use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::layout::VLAN_TAG_LEN;
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// The start and end of a frame in the area.
type Place = Range<usize>;

/// An incomplete received frame.
#[derive(Debug)]
struct Open {
    start: usize,
    len: usize,
}

/// The port, and the host that shares the port's memory.
#[derive(Debug)]
pub struct UmemPort {
    area: FrameBuffer<Vec<u8>>,
    frame_len: usize,
    /// Start offsets of the free frames in the area (the fill ring).
    free: VecDeque<usize>,
    /// Frames sent by the host, which the adapter has not fetched yet (the transmit ring).
    to_send: VecDeque<(TxMeta, Place)>,
    /// Start offset of the frame lent to the adapter.
    lent: Option<usize>,
    open: HashMap<usize, Open>,
    /// Delivered frames, published to the host by the next flush (the receive ring).
    delivered: Vec<(RxMeta, Place)>,
    shown: VecDeque<(RxMeta, Place)>,
}

impl UmemPort {
    /// Makes an area of `frames` frames, each with `frame_len` bytes and room for a VLAN tag before the frame.
    pub fn new(frames: usize, frame_len: usize) -> Self {
        let stride = VLAN_TAG_LEN + frame_len;
        Self {
            area: FrameBuffer::new(vec![0; frames * stride]),
            frame_len,
            free: (0..frames).map(|n| n * stride + VLAN_TAG_LEN).collect(),
            to_send: VecDeque::new(),
            lent: None,
            open: HashMap::new(),
            delivered: Vec::new(),
            shown: VecDeque::new(),
        }
    }

    /// Sends a frame as the host. Returns false if the area has no room for the frame.
    pub fn send(&mut self, request: TxMeta, bytes: &[u8]) -> bool {
        let Some(place) = self.write(bytes) else { return false };
        self.to_send.push_back((request, place));
        true
    }

    /// Takes the next frame published to the host.
    pub fn recv(&mut self) -> Option<(RxMeta, Vec<u8>)> {
        let (meta, place) = self.shown.pop_front()?;
        self.free.push_back(place.start);
        let bytes = self.area.beside(place).expect("a frame that is not lent").to_vec();
        Some((meta, bytes))
    }

    /// Exchanges the free frames of the area with `other`. The caller can remove all free frames, or restore them.
    pub fn swap_free(&mut self, other: &mut VecDeque<usize>) {
        std::mem::swap(&mut self.free, other);
    }

    fn write(&mut self, bytes: &[u8]) -> Option<Place> {
        if bytes.len() > self.frame_len {
            return None;
        }
        let start = self.free.pop_front()?;
        let place = start..start + bytes.len();
        self.area.beside(place.clone())?.copy_from_slice(bytes);
        Some(place)
    }
}

impl InPlace for UmemPort {
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let head_len = head.len();
        self.free.extend(self.open.remove(&slot).map(|forgotten| forgotten.start));
        let Some(start) = self.free.pop_front() else { return false };
        self.open.insert(slot, Open { start, len: head_len });
        true
    }

    fn rx_room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        let Some(open) = self.open.get(&slot) else { return Room::default() };
        let (at, room) = (open.start + open.len, self.frame_len.saturating_sub(open.len));
        self.area.beside(at..at + room.min(len * count)).map(Room::from).unwrap_or_default()
    }

    fn rx_fill(&mut self, slot: usize, len: usize) {
        if let Some(open) = self.open.get_mut(&slot) {
            open.len += len;
        }
    }

    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        let Open { start, .. } = self.open.remove(&slot).ok_or(PortError::Full)?;
        self.area.beside(start..start + head.len()).ok_or(PortError::Full)?.copy_from_slice(head);
        self.delivered.push((*meta, start..start + len));
        Ok(())
    }
}

impl HostPort for UmemPort {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        self.area.clear();
        self.free.extend(self.lent.take());
        let Some((request, place)) = self.to_send.pop_front() else { return Ok(false) };
        self.lent = Some(place.start);
        self.area.set(place, request);
        Ok(true)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.area.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.area.frame_with_tag(change)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let place = self.write(frame).ok_or(PortError::Full)?;
        self.delivered.push((*meta, place));
        Ok(())
    }

    fn rx_flush(&mut self, _now_ns: u64) {
        self.shown.extend(self.delivered.drain(..));
    }

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }

    fn honours_data_valid(&self) -> bool {
        true
    }
}
