//! Writes received frames into the receive ring of a guest.

use super::state::QueueState;
use super::vring::{RECEIVE_GUARD_PART, RingState};
use crate::vhost_user::rss::FrameHash;
use crate::vnet_hdr::rx_header;
use offramp_adapter::port::PortError;
use offramp_offload::checksum::{Room, RoomPiece};
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_virtio::net_header::NetHeader;
use offramp_virtio::ring::{Chain, FETCH_MAX};
use std::hint::cold_path;

/// Maximum number of receive chains returned unused in a batch. Beyond that number, the guest counts as out of buffers.
const UNUSED_MAX: usize = FETCH_MAX;

impl QueueState {
    /// Returns whether received frames need no inspection. For frames without inspection, [`Self::write`] has the same
    /// effect as [`Self::deliver`], and is faster.
    #[inline]
    pub(super) fn takes_all(&self) -> bool {
        self.receive.state == RingState::Enabled
    }

    /// Writes a frame into receive chains if the guest's filter accepts the frame. If the guest negotiated hash
    /// reports, the frame's header contains the hash.
    #[inline]
    pub(super) fn deliver(&mut self, meta: &RxMeta, frame: &[u8], hash: FrameHash) -> Result<(), PortError> {
        let outcome = self.admit(frame).and_then(|()| {
            let mut header = rx_header(meta);
            if self.reports_hashes() {
                cold_path();
                hash.report(&mut header);
            }
            self.write(header, frame)
        });
        if let Some(statistics) = &mut self.statistics {
            cold_path();
            statistics.received(meta, frame.len(), outcome);
        }
        outcome
    }

    /// Does the same as [`Self::deliver`] for a frame whose payload may lie in its sender's memory.
    pub(super) fn deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>, hash: FrameHash) -> Result<(), PortError> {
        let outcome = self.admit(frame.bytes()).and_then(|()| {
            let mut header = rx_header(meta);
            if self.reports_hashes() {
                hash.report(&mut header);
            }
            self.write_lent(header, frame)
        });
        if let Some(statistics) = &mut self.statistics {
            statistics.received(meta, frame.len(), outcome);
        }
        outcome
    }

    /// Writes a frame into receive chains.
    #[expect(clippy::inline_always, reason = "a header that is passed in memory is slow to read")]
    #[inline(always)]
    pub(super) fn write(&mut self, header: NetHeader, frame: &[u8]) -> Result<(), PortError> {
        let chains = self.gather(self.header_len + frame.len())?;
        let log = self.log.as_deref();
        self.receive.vring.write_frame(chains, self.header_len, header, frame, log);
        self.receive.tally.add(frame.len() as u64);
        self.publish_full_batch();
        Ok(())
    }

    /// Writes a frame like [`Self::write`]. The frame's payload may lie in its sender's memory.
    pub(super) fn write_lent(&mut self, header: NetHeader, frame: &Frame<'_>) -> Result<(), PortError> {
        let chains = self.gather(self.header_len + frame.len())?;
        let log = self.log.as_deref();
        let pieces = frame.shared().iter().map(|piece| (piece.as_ptr(), piece.len()));
        let vring = &mut self.receive.vring;
        // SAFETY: the sender of the frame keeps the pieces readable while the frame is lent.
        unsafe { vring.write_shared_frame(chains, self.header_len, header, frame.bytes(), pieces, log) };
        self.receive.tally.add(frame.len() as u64);
        self.publish_full_batch();
        Ok(())
    }

    /// Returns an error if the ring is not enabled, or the guest's filter rejects the frame.
    #[inline]
    fn admit(&self, frame: &[u8]) -> Result<(), PortError> {
        if !self.receive.state.is_enabled() {
            return Err(PortError::Full);
        }
        if let Some(filter) = &self.filter {
            cold_path();
            if !filter.accepts(frame) {
                return Err(PortError::Filtered);
            }
        }
        Ok(())
    }

    /// Publishes the used chains of a full batch, unless a frame is still being written.
    #[inline]
    fn publish_full_batch(&mut self) {
        if self.receive.vring.staged() >= FETCH_MAX && !self.receive.vring.has_open_frames() {
            self.publish_receive();
        }
    }

    /// Returns whether the frames that are being coalesced in the guest's buffers should be completed now, because they
    /// occupy these buffers. The result is true when half of the ring is unpublished.
    #[inline]
    pub(super) fn wants_commit(&self) -> bool {
        let vring = &self.receive.vring;
        vring.has_open_frames() && vring.unpublished() >= usize::from(vring.size() / RECEIVE_GUARD_PART)
    }

    /// Starts a frame in the guest's buffers. Returns false if `IN_ORDER` was negotiated, because frames are completed
    /// in a different order than they were started. Returns false if the filter rejects the frame; the adapter then
    /// delivers the whole frame, and the port counts the frame as rejected. Returns false if hashes are reported,
    /// because only a complete frame can be hashed.
    pub(super) fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let is_lent = !self.out_of_buffers && !self.is_in_order && !self.reports_hashes() && self.admit(head).is_ok();
        if is_lent {
            self.receive.vring.open_frame(slot, self.header_len + head.len());
        }
        is_lent
    }

    /// Returns room in the guest's buffers for up to `count` payloads of `len` bytes, or no room if not even one fits.
    #[inline]
    pub(super) fn room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        self.room.clear();
        let Some(chains) = self.chains_for(slot, len, count) else { return Room::default() };
        let pieces = self.receive.vring.lend(slot, chains);
        let mut left = len * count;
        // A chain can have a thousand buffers, so take no more than needed.
        self.room.extend(pieces.map_while(|(start, len)| {
            // SAFETY: the pieces stay writable until the ring is stopped, which is after the end of this borrow.
            let piece = (left > 0).then(|| unsafe { RoomPiece::new(start, len) });
            left = left.saturating_sub(len);
            piece
        }));
        Room::new(&self.room)
    }

    /// Keeps the first `len` bytes of the last [`Self::room`].
    #[inline]
    pub(super) fn fill(&mut self, slot: usize, len: usize) {
        let log = self.log.as_deref().map(|log| (log, self.room.iter().map(RoomPiece::len).sum()));
        self.receive.vring.fill(slot, len, log);
    }

    /// Returns the number of receive chains to add to a frame, so that at least one and up to `count` payloads of `len`
    /// bytes fit. Returns `None` if not even one fits.
    #[inline]
    fn chains_for(&mut self, slot: usize, len: usize, count: usize) -> Option<usize> {
        let lacking = self.receive.vring.lacks(slot, len)?;
        // A driver without mergeable buffers receives each frame in one chain (virtio 1.3, 5.1.6.4).
        if !self.is_mergeable && self.receive.vring.has_chain(slot) {
            return (lacking == 0).then_some(0);
        }
        let mut chains = if lacking == 0 { 0 } else { self.gather(lacking).ok()? };
        if !self.is_mergeable {
            return Some(chains);
        }
        // The other payloads use chains that are already fetched, as long as no commit is due.
        let vring = &self.receive.vring;
        let chains_max = usize::from(vring.size() / RECEIVE_GUARD_PART).saturating_sub(vring.unpublished());
        let wanted = vring.lacks(slot, len * count)?;
        let waiting = vring.waiting();
        let mut room: usize = waiting[..chains].iter().map(Chain::len).sum();
        while room < wanted && chains < chains_max {
            let Some(chain) = waiting.get(chains).filter(|chain| chain.len() > 0) else { break };
            room += chain.len();
            chains += 1;
        }
        Some(chains)
    }

    /// Completes a frame that was coalesced in the guest's buffers.
    pub(super) fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        let log = self.log.as_deref();
        let is_whole = self.receive.vring.commit(slot, self.header_len, rx_header(meta), head, log);
        let outcome = if is_whole { Ok(()) } else { Err(PortError::Full) };
        if let Some(statistics) = &mut self.statistics {
            statistics.received(meta, len, outcome);
        }
        if is_whole {
            self.receive.tally.add(len as u64);
            self.publish_full_batch();
        }
        outcome
    }

    /// Returns the number of receive chains needed for a frame of `len` bytes including its header.
    #[inline]
    fn gather(&mut self, len: usize) -> Result<usize, PortError> {
        let (mut chains, mut room) = (0, 0);
        while !self.out_of_buffers {
            if let Some(chain) = self.receive.vring.waiting().get(chains) {
                if !self.is_mergeable {
                    return self.single(len);
                }
                if chain.len() == 0 {
                    // A bad chain cannot be part of a frame, and a frame cannot use chains before and after a bad
                    // chain.
                    self.return_unused(chains + 1);
                    (chains, room) = (0, 0);
                    continue;
                }
                chains += 1;
                room += chain.len();
                if room >= len {
                    return Ok(chains);
                }
            } else if chains > usize::from(self.receive.vring.size())
                || !self.receive.fetch(self.log.as_deref(), &self.counters)
            {
                self.out_of_buffers = true;
            }
        }
        Err(PortError::Full)
    }

    /// Returns the number of receive chains like [`QueueState::gather`], for a driver with one chain per frame (virtio
    /// 1.3, 5.1.6.4).
    fn single(&mut self, len: usize) -> Result<usize, PortError> {
        while !self.out_of_buffers {
            while let Some(chain) = self.receive.vring.waiting().first() {
                match chain.len() {
                    room if room >= len => return Ok(1),
                    // A bad chain is returned unchanged.
                    0 => self.return_unused(1),
                    _ => return Err(PortError::Refused(libc::EMSGSIZE)),
                }
            }
            if !self.receive.fetch(self.log.as_deref(), &self.counters) {
                self.out_of_buffers = true;
            }
        }
        Err(PortError::Full)
    }

    /// Returns receive chains to the guest unused. After [`UNUSED_MAX`] unused chains, the guest counts as out of
    /// buffers in this batch: searching for a usable chain takes time from other ports.
    #[cold]
    fn return_unused(&mut self, chains: usize) {
        self.returned_unused += chains;
        self.out_of_buffers |= self.returned_unused > UNUSED_MAX;
        for _ in 0..chains {
            let Some(chain) = self.receive.vring.pop() else { return };
            self.receive.add_used(&chain, 0);
        }
    }
}
