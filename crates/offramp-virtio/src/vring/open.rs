//! Received frames that are written into the driver's buffers piece by piece, several frames at a time.
//!
//! Chains are returned in the order in which frames are committed. This order can differ from the order of the fetch,
//! so this module must not be used with `IN_ORDER` (virtio 1.3, 2.7.9).
//!
//! No chain is published while a frame is open. If this device is killed, the next device treats all chains before the
//! first unused chain as used. A split ring stores the position of the first unused chain in the used index, and a
//! packed ring in the inflight region.

use super::Vring;
use crate::dirty_log::DirtyLog;
use crate::net_header::NetHeader;
use crate::ring::{Buffer, Chain};

/// Maximum number of chains and buffers for which a slot keeps allocated memory between frames. The value is large
/// enough for a frame of 64 KiB in buffers of 1500 bytes.
const KEPT_MAX: usize = 64;

/// An incomplete frame.
#[derive(Debug, Default)]
struct OpenFrame {
    chains: Vec<Chain>,
    buffers: Vec<Buffer>,
    /// Total length of all chains, in bytes.
    capacity: usize,
    /// Length of headers and frame so far, in bytes. The first `head_len` bytes are written last.
    len: usize,
    /// The buffer, and the offset in this buffer, for the next byte.
    end: Place,
    /// State before the last append.
    before: Before,
}

/// The state of a frame before an append, and the number of chains added by the append.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    len: usize,
    end: Place,
    buffers: usize,
    added: usize,
}

/// A buffer of an open frame, and an offset in the buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    buffer: usize,
    offset: usize,
}

// SAFETY: the pointers of a frame point into guest memory that the frame's vring keeps mapped. A vring drops its open
// frames before the vring drops the memory.
unsafe impl Send for OpenFrame {}

/// The open frames of a ring, by slot number.
#[derive(Debug, Default)]
pub(super) struct OpenFrames {
    frames: Vec<OpenFrame>,
    /// Number of chains in all open frames.
    chains: usize,
}

impl OpenFrames {
    /// Returns whether a chain is part of an open frame.
    #[inline]
    pub(super) fn has_chains(&self) -> bool {
        self.chains > 0
    }

    /// Drops all open frames and returns the chains of these frames.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Chain> {
        self.chains = 0;
        std::mem::take(&mut self.frames).into_iter().flat_map(|frame| frame.chains)
    }
}

impl Vring {
    /// Begins frame `slot`. The frame's first `head_len` bytes, network header included, are written last. An
    /// uncommitted frame in this slot is dropped, and the new frame receives the dropped frame's chains.
    pub fn open_frame(&mut self, slot: usize, head_len: usize) {
        if self.open.frames.len() <= slot {
            self.open.frames.resize_with(slot + 1, OpenFrame::default);
        }
        let frame = &mut self.open.frames[slot];
        (frame.len, frame.end) = (head_len, frame.place_of(head_len));
    }

    /// Returns the number of bytes that the chains of frame `slot` lack to append `len` bytes, or `None` if the frame
    /// is not open.
    #[inline]
    pub fn lacks(&self, slot: usize, len: usize) -> Option<usize> {
        let frame = self.open.frames.get(slot).filter(|frame| frame.len > 0)?;
        Some((frame.len + len).saturating_sub(frame.capacity))
    }

    /// Returns whether frame `slot` has a chain.
    #[inline]
    pub fn has_chain(&self, slot: usize) -> bool {
        self.open.frames.get(slot).is_some_and(|frame| frame.capacity > 0)
    }

    /// Returns whether any open frame has a chain.
    #[inline]
    pub fn has_open_frames(&self) -> bool {
        self.open.has_chains()
    }

    /// Returns the number of chains that the next [`Vring::publish`] would publish after a commit of all open frames.
    #[inline]
    pub fn unpublished(&self) -> usize {
        self.staged + self.open.chains
    }

    /// Adds the next `chains` waiting chains to frame `slot` and appends `bytes`. The frame must have room for `bytes`
    /// in the old and the added chains. `append` calls `copy` with each piece and the destination of the piece: as many
    /// writable bytes in guest memory, without any reference to these bytes.
    #[inline]
    pub fn append(
        &mut self,
        slot: usize,
        chains: usize,
        bytes: &[u8],
        log: Option<&DirtyLog>,
        mut copy: impl FnMut(&[u8], *mut u8),
    ) {
        self.extend(slot, chains);
        let Some(frame) = self.open.frames.get_mut(slot) else { return };
        let (mut place, mut rest) = (frame.end, bytes);
        while let Some(buffer) = frame.buffers.get(place.buffer)
            && !rest.is_empty()
        {
            if place.offset == buffer.len() {
                place = Place { buffer: place.buffer + 1, offset: 0 };
                continue;
            }
            let (piece, behind) = rest.split_at(rest.len().min(buffer.len() - place.offset));
            copy(piece, buffer.host.as_ptr().wrapping_add(place.offset));
            if let Some(log) = log {
                log.mark(buffer.guest + place.offset as u64, piece.len() as u64);
            }
            (place.offset, rest) = (place.offset + piece.len(), behind);
        }
        frame.end = place;
        frame.len += bytes.len();
        self.prefetch_next(slot, bytes.len());
    }

    /// Prefetches the cache lines of the next `len` bytes of frame `slot`, while the headers of the next segment are
    /// compared. The next segment usually has the length of the last segment.
    #[inline]
    fn prefetch_next(&self, slot: usize, len: usize) {
        let Some(frame) = self.open.frames.get(slot) else { return };
        let mut left = len;
        if let Some(buffer) = frame.buffers.get(frame.end.buffer) {
            left -= buffer.prefetch(frame.end.offset, left);
        }
        if left > 0
            && let Some(next) = self.batch.waiting().first()
            && let Some(buffer) = self.batch.buffers(next).first()
        {
            buffer.prefetch(0, left);
        }
    }

    /// Reverts the last [`Vring::append`] to frame `slot`. The added chains wait again, and the appended bytes lie past
    /// the frame's end. Call this function before any other operation on the ring.
    #[cold]
    pub fn take_back(&mut self, slot: usize) {
        let Some(frame) = self.open.frames.get_mut(slot) else { return };
        let Before { len, end, buffers, added } = std::mem::take(&mut frame.before);
        for _ in 0..added {
            frame.capacity -= frame.chains.pop().map_or(0, |chain| chain.len());
        }
        (frame.len, frame.end) = (len, end);
        frame.buffers.truncate(buffers);
        self.open.chains -= added;
        self.batch.wait_again(added);
    }

    /// Adds waiting chains to frame `slot`.
    #[inline]
    fn extend(&mut self, slot: usize, chains: usize) {
        let Some(frame) = self.open.frames.get_mut(slot) else { return };
        let is_first = frame.chains.is_empty();
        frame.before = Before { len: frame.len, end: frame.end, buffers: frame.buffers.len(), added: 0 };
        for _ in 0..chains {
            let Some(chain) = self.batch.pop() else { break };
            frame.buffers.extend(self.batch.buffers(&chain).iter().map(Buffer::of_the_same));
            frame.chains.push(chain);
            frame.capacity += chain.len();
            frame.before.added += 1;
        }
        self.open.chains += frame.before.added;
        if is_first {
            frame.end = frame.place_of(frame.len);
        }
    }

    /// Completes frame `slot`: writes `header_len` bytes of `header` and then `head` to the frame's front, and adds the
    /// frame's chains to the used chains. Returns `false` if the frame has no chains, or lost its chains when the ring
    /// was stopped.
    pub fn commit(
        &mut self,
        slot: usize,
        header_len: usize,
        header: NetHeader,
        head: &[u8],
        log: Option<&DirtyLog>,
    ) -> bool {
        let Some(frame) = self.open.frames.get_mut(slot).map(std::mem::take) else { return false };
        let header = NetHeader { num_buffers: frame.chains_in_use() as u16, ..header };
        let header = &header.to_bytes_with_hash()[..header_len];
        let mut at = 0;
        for buffer in &frame.buffers {
            if at >= header.len() + head.len() {
                break;
            }
            let room = buffer.write_piece(header, head, at);
            if let Some(log) = log {
                log.mark(buffer.guest, room as u64);
            }
            at += room;
        }
        let mut rest = frame.len;
        for chain in &frame.chains {
            let written = rest.min(chain.len());
            rest -= written;
            self.add_used(chain, written as u32);
        }
        self.open.chains -= frame.chains.len();
        let is_complete = !frame.chains.is_empty();
        // Keep the allocated memory for the next frame.
        if let Some(slot) = self.open.frames.get_mut(slot) {
            *slot = frame.emptied();
        }
        is_complete
    }

    /// Adds the chains of all open frames to the used chains, with length 0, before the ring is published or stopped.
    #[cold]
    pub(super) fn cancel_open_frames(&mut self) {
        let chains: Vec<Chain> = self.open.clear().collect();
        for chain in chains {
            self.add_used(&chain, 0);
        }
    }
}

impl OpenFrame {
    /// Returns the number of chains with bytes of the frame. The number can be less than the number of all chains if
    /// the slot had an uncommitted frame before.
    #[inline]
    fn chains_in_use(&self) -> usize {
        let (mut chains, mut room) = (0, 0);
        while room < self.len && chains < self.chains.len() {
            room += self.chains[chains].len();
            chains += 1;
        }
        chains
    }

    /// Returns the buffer and the offset of the frame's byte `at`.
    #[inline]
    fn place_of(&self, at: usize) -> Place {
        let mut offset = at;
        for (n, buffer) in self.buffers.iter().enumerate() {
            if offset < buffer.len() {
                return Place { buffer: n, offset };
            }
            offset -= buffer.len();
        }
        Place { buffer: self.buffers.len(), offset: 0 }
    }

    /// Returns an empty frame with the same allocated memory, limited to [`KEPT_MAX`] chains and buffers.
    fn emptied(self) -> Self {
        let Self { mut chains, mut buffers, .. } = self;
        chains.clear();
        buffers.clear();
        chains.shrink_to(KEPT_MAX);
        buffers.shrink_to(KEPT_MAX);
        Self { chains, buffers, ..Self::default() }
    }
}
