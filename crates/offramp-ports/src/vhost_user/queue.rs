//! One queue pair of a guest, for one thread. The thread fetches frames from the transmit ring, and delivers frames to
//! the receive ring.
//!
//! A frame sent by the guest is copied into private memory before any byte is examined. If the guest changes the
//! original after the copy, the adapter still sends the checked copy. The payload of a super-frame may stay in the
//! guest's memory: no byte of the payload is examined, and each byte is read once. The port keeps the frame's chain
//! until the frame was read.

use super::mailbox::Receiver;
use super::rss::{FrameHash, Rss};
use crate::frame_memory::frame_memory;
use crate::vnet_hdr::rx_header;
use offramp_adapter::host_io::HostIo;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::port::{HostPort, InPlace, InterruptCounts, Interrupts, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::os::fd::BorrowedFd;

mod commands;
mod moderation;
mod receive;
mod state;
mod statistics;
#[cfg(test)]
mod tests;
mod transmit;
mod vring;

pub(super) use commands::Request;
pub(super) use state::{QueueState, Side, Start};

/// One queue pair of a [`VhostUser`](super::VhostUser), for one thread. Without a guest, the queue pair fetches no
/// frames, and refuses delivered frames for lack of buffers.
#[derive(Debug)]
pub struct VhostQueue {
    index: usize,
    mailbox: Receiver<QueueState>,
    state: QueueState,
    /// True if the rings or the guest's settings have changed since the last [`Self::take_changed`].
    has_changed: bool,
    frame: FrameBuffer<Box<[u8]>>,
    frame_at: usize,
    frame_len_max: usize,
}

impl VhostQueue {
    pub(super) fn new(index: usize, mailbox: Receiver<QueueState>, state: QueueState, frame_len_max: usize) -> Self {
        let (frame, frame_at) = frame_memory(frame_len_max);
        Self { index, mailbox, state, has_changed: false, frame, frame_at, frame_len_max }
    }

    /// Returns the pair's index.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns whether the guest uses the receive ring of this pair.
    pub fn receives(&self) -> bool {
        self.state.receive.state.is_enabled() && self.state.receive.is_in_use
    }

    /// Returns whether frames of the last fetched batch remain.
    #[inline]
    pub(super) fn has_fetched(&self) -> bool {
        !self.state.transmit.vring.waiting().is_empty()
    }

    /// Returns the length of the last fetched frame, in bytes.
    #[inline]
    pub(super) fn fetched_len(&self) -> usize {
        self.frame.frame_len()
    }

    /// Returns the guest's hash settings, if the guest made any.
    #[inline]
    pub(super) fn rss(&self) -> Option<&Rss> {
        self.state.rss.as_deref()
    }

    /// Returns whether the guest can query statistics.
    pub(super) fn has_statistics(&self) -> bool {
        self.state.statistics.is_some()
    }

    /// Delivers a frame like [`HostPort::rx_deliver`], with the frame's hash according to the guest's settings.
    #[inline]
    pub(super) fn deliver_hashed(&mut self, meta: &RxMeta, frame: &[u8], hash: FrameHash) -> Result<(), PortError> {
        self.state.deliver(meta, frame, hash)
    }

    /// Delivers a frame like [`HostPort::rx_deliver_lent`], with the frame's hash according to the guest's settings.
    pub(super) fn deliver_lent_hashed(
        &mut self,
        meta: &RxMeta,
        frame: &Frame<'_>,
        hash: FrameHash,
    ) -> Result<(), PortError> {
        self.state.deliver_lent(meta, frame, hash)
    }

    /// Delivers a frame to a guest with a filter, statistics or hash reports. Not inlined, to keep the code path of all
    /// other guests short.
    #[inline(never)]
    fn deliver_inspected(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let wants_hash = self.rss().filter(|_| self.state.reports_hashes());
        let hash = wants_hash.map(|rss| rss.hash(meta, frame)).unwrap_or_default();
        self.state.deliver(meta, frame, hash)
    }

    /// Runs the changes requested through the mailbox. Returns whether any change was requested.
    #[inline]
    fn serve(&mut self) -> bool {
        let has_work = self.mailbox.has_work();
        if has_work {
            // A change may stop the ring and unmap the memory.
            self.settle();
            self.mailbox.serve(&mut self.state);
        }
        has_work
    }

    /// Copies the rest of a frame that lies in the guest's memory, and returns the frame's chain.
    fn settle(&mut self) {
        self.frame.gather();
        self.state.return_kept();
    }

    /// Returns the chain of the last fetched frame. The caller no longer reads the frame.
    #[inline]
    pub(super) fn finish(&mut self) {
        if self.state.kept.is_some() {
            self.frame.clear();
            self.state.return_kept();
        }
    }

    /// Returns whether the rings or the guest's settings have changed since the last call.
    #[inline]
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Publishes the frames received so far to the guest.
    pub(super) fn publish_received(&mut self) {
        self.state.publish_receive();
    }

    /// Publishes the used chains of sent frames to the guest.
    #[inline]
    pub(super) fn publish_sent(&mut self) {
        self.finish();
        self.state.publish_transmit();
    }

    /// Returns and clears the cost of the last fetch, in equivalent bytes (see `QueueState::tx_cost_bytes`). The
    /// caller charges this cost to another fetch.
    #[inline]
    pub(super) fn take_cost_bytes(&mut self) -> usize {
        std::mem::take(&mut self.state.tx_cost_bytes)
    }

    /// Adds `cost_bytes` to the cost of the last fetch.
    #[cold]
    pub(super) fn charge(&mut self, cost_bytes: usize) {
        self.state.tx_cost_bytes += cost_bytes;
    }

    /// Loads the pending announcement as the next frame from the guest. Returns false if the frame exceeds the maximum
    /// length.
    #[cold]
    fn copy_announcement(&mut self) -> bool {
        let frame = self.state.announcement.take().filter(|frame| frame.len() <= self.frame_len_max);
        self.state.tx_cost_bytes = 0;
        if let Some(frame) = &frame {
            let place = self.frame_at..self.frame_at + frame.len();
            self.frame.memory_mut()[place.clone()].copy_from_slice(frame);
            self.frame.set(place, TxMeta::default());
        }
        frame.is_some()
    }

    /// Copies the next frame of the batch from guest memory, or only the first bytes of a super-frame.
    #[inline]
    fn copy_next(&mut self) -> Result<bool, PortError> {
        let memory = &mut self.frame.memory_mut()[self.frame_at..self.frame_at + self.frame_len_max];
        let Some((len, meta)) = self.state.next_frame(memory)? else { return Ok(false) };
        let place = self.frame_at..self.frame_at + len;
        if self.state.kept.is_some() {
            self.frame.set_shared(place, meta, self.state.kept_pieces());
        } else {
            self.frame.set(place, meta);
        }
        Ok(true)
    }
}

impl Drop for VhostQueue {
    /// Returns the chain of a frame that was sent. Otherwise, the next backend would send the frame again.
    fn drop(&mut self) {
        self.finish();
        self.state.publish_transmit();
    }
}

impl InPlace for VhostQueue {
    #[inline]
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        self.state.reserve(slot, head)
    }

    #[inline]
    fn rx_room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        self.state.room(slot, len, count)
    }

    #[inline]
    fn rx_fill(&mut self, slot: usize, len: usize) {
        self.state.fill(slot, len);
    }

    #[inline]
    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        self.state.commit(slot, meta, head, len)
    }

    #[inline]
    fn rx_wants_commit(&self) -> bool {
        self.state.wants_commit()
    }
}

impl HostPort for VhostQueue {
    #[inline]
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        self.finish();
        if !self.has_fetched() {
            self.frame.clear();
            // Do not change the rings while frames are being written into the receive ring. The end of the batch
            // completes the frames being written.
            if !self.state.receive.vring.has_open_frames() {
                self.has_changed |= self.serve();
            }
            if self.state.announcement.is_some() {
                return Ok(self.copy_announcement());
            }
            if !self.state.fetch_transmit() {
                return Ok(false);
            }
        }
        self.copy_next()
    }

    /// Applies ring changes and publishes completions even while a rate limit holds the port's frames.
    fn tx_hold(&mut self) {
        self.finish();
        if !self.state.receive.vring.has_open_frames() {
            self.has_changed |= self.serve();
        }
        self.state.hold_transmit();
    }

    #[inline]
    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.frame_with_tag(change)
    }

    #[inline]
    fn tx_lend(&mut self) -> Frame<'_> {
        self.frame.lent()
    }

    fn tx_lend_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.lent_with_tag(change)
    }

    #[inline]
    fn tx_cost_bytes(&self) -> usize {
        self.state.tx_cost_bytes
    }

    #[inline]
    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    #[inline]
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if self.state.takes_all() {
            self.state.write(rx_header(meta), frame)
        } else {
            self.deliver_inspected(meta, frame)
        }
    }

    fn rx_takes_shared(&self) -> bool {
        true
    }

    fn rx_deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>) -> Result<(), PortError> {
        let wants_hash = self.rss().filter(|_| self.state.reports_hashes());
        let hash = wants_hash.map(|rss| rss.hash(meta, frame.bytes())).unwrap_or_default();
        self.state.deliver_lent(meta, frame, hash)
    }

    fn rx_lost_to_limit(&mut self, _: &Frame<'_>, frames: usize, bytes: usize) {
        if let Some(statistics) = &mut self.state.statistics {
            statistics.lost_to_limit(frames as u64, bytes as u64);
        }
    }

    fn rx_flush(&mut self, _now_ns: u64) {
        self.state.publish();
        self.serve();
    }

    #[inline]
    fn interrupts(&mut self, queue: usize) -> Option<&mut dyn Interrupts> {
        (queue == 0).then_some(self)
    }

    fn accepts(&self) -> Offloads {
        self.state.offloads
    }
}

/// Interrupts of a guest are notifications: on the receive ring for frames, and on the transmit ring for completions.
///
/// Regardless of the policy, the guest is also notified when less than half of the receive ring's buffers are left. A
/// `ring_guard_frames` above half of the ring raises this limit. The guest is also notified when the frames returned
/// since the last notification reach a quarter of the transmit ring's size. A deferred notification is sent at once
/// when its ring is stopped. The cost of a notification is its measured time on this thread plus the assumed time in
/// the guest.
impl Interrupts for VhostQueue {
    fn moderate(&mut self, config: &ModerationConfig) {
        self.state.moderate(config);
    }

    #[inline]
    fn send_due(&mut self, now_ns: u64) -> InterruptCounts {
        self.state.notify_due(now_ns)
    }

    fn take_wait_ns(&mut self) -> Option<u64> {
        self.state.receive.moderation.take_waited_ns()
    }

    #[inline]
    fn next_due_ns(&self) -> Option<u64> {
        let QueueState { receive, transmit, .. } = &self.state;
        receive.moderation.next_due_ns().into_iter().chain(transmit.moderation.next_due_ns()).min()
    }

    fn cost_ns(&self) -> u64 {
        self.state.receive.moderation.cost_ns()
    }

    fn wait_max_ns(&self) -> u64 {
        self.state.receive.moderation.wait_max_ns()
    }
}

impl HostIo for VhostQueue {
    fn arm(&mut self) {
        self.settle();
        self.state.publish();
        self.serve();
        self.state.transmit.vring.enable_notifications(self.state.log.as_deref());
    }

    fn disarm(&mut self) {
        self.state.transmit.vring.disable_notifications(self.state.log.as_deref());
        self.serve();
    }

    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        watch(self.mailbox.bell());
        if let Some(kick) = self.state.transmit.vring.kick().filter(|_| !is_held) {
            watch(kick);
        }
    }

    fn is_unannounced(&self) -> bool {
        // No kick announces the chains that remain in a disabled ring, because the guest has already kicked for them.
        self.state.transmit.vring.is_unannounced() || self.state.has_discards()
    }
}
