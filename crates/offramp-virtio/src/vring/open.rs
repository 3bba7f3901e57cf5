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
/// Maximum number of bytes prefetched behind a frame.
const PREFETCH_LEN: usize = 2048;

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
    /// Number of chains added by the last [`Vring::lend`].
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

    /// Adds the next `chains` waiting chains to frame `slot`. Returns the address and the length of each piece of guest
    /// memory behind the frame, in order. The pieces stay writable until the vring is stopped, and no reference to
    /// their bytes exists. Call [`Vring::fill`] before any other operation on the ring.
    #[inline]
    pub fn lend(&mut self, slot: usize, chains: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        self.extend(slot, chains);
        let frame = self.open.frames.get(slot);
        let Place { buffer, mut offset } = frame.map_or_else(Place::default, |frame| frame.end);
        let buffers = frame.and_then(|frame| frame.buffers.get(buffer..)).unwrap_or_default();
        buffers.iter().map(move |buffer| {
            let offset = std::mem::take(&mut offset);
            (buffer.host.as_ptr().wrapping_add(offset), buffer.len() - offset)
        })
    }

    /// Appends to frame `slot` the first `len` bytes of the pieces that [`Vring::lend`] returned. Chains that the frame
    /// does not need wait again. A dirty log gets a mark for the first `written` bytes of the pieces, because bytes
    /// with a wrong checksum are written, too.
    #[inline]
    pub fn fill(&mut self, slot: usize, len: usize, log: Option<(&DirtyLog, usize)>) {
        let Some(frame) = self.open.frames.get_mut(slot) else { return };
        if let Some((log, written)) = log {
            frame.advance(written, |buffer, offset, len| log.mark(buffer.guest + offset as u64, len as u64));
        }
        let (end, filled) = frame.advance(len, |_, _, _| {});
        (frame.end, frame.len) = (end, frame.len + filled);
        // A frame without payload needs no chain. Its first chain would otherwise keep every chain from being
        // published.
        let mut spare = 0;
        while spare < frame.added
            && let Some(last) = frame.chains.last()
            && (len == 0 || frame.capacity - last.len() >= frame.len)
        {
            frame.capacity -= last.len();
            frame.buffers.truncate(frame.buffers.len() - self.batch.buffers(last).len());
            frame.chains.pop();
            spare += 1;
        }
        frame.added = 0;
        self.open.chains -= spare;
        self.batch.wait_again(spare);
        self.prefetch_next(slot, len.min(PREFETCH_LEN));
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

    /// Adds waiting chains to frame `slot`.
    #[inline]
    fn extend(&mut self, slot: usize, chains: usize) {
        let Some(frame) = self.open.frames.get_mut(slot) else { return };
        // The place of the first payload byte depends on the chain that contains it.
        let has_no_end = frame.capacity < frame.len;
        frame.added = 0;
        for _ in 0..chains {
            let Some(chain) = self.batch.pop() else { break };
            frame.buffers.extend(self.batch.buffers(&chain).iter().map(Buffer::of_the_same));
            frame.chains.push(chain);
            frame.capacity += chain.len();
            frame.added += 1;
        }
        self.open.chains += frame.added;
        if has_no_end {
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
    /// Passes to `part` each part of the `len` bytes behind the frame: a buffer, an offset and a length. Returns the
    /// end of these bytes, and the number of bytes for which there is room.
    #[inline]
    fn advance(&self, len: usize, mut part: impl FnMut(&Buffer, usize, usize)) -> (Place, usize) {
        let (mut end, mut left) = (self.end, len);
        while let Some(buffer) = self.buffers.get(end.buffer)
            && left > 0
        {
            let part_len = left.min(buffer.len() - end.offset);
            part(buffer, end.offset, part_len);
            left -= part_len;
            end.offset += part_len;
            if end.offset == buffer.len() {
                end = Place { buffer: end.buffer + 1, offset: 0 };
            }
        }
        (end, len - left)
    }

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
