//! A host as destination: hands frames over and counts the outcomes.

use crate::port::{HostPort, PortError};
use crate::stats::{Direction, Loss, QueueStats};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::coalesce::Sink;
use offramp_offload::frame::Frame;
use offramp_offload::layout::Malformed;
use offramp_offload::meta::RxMeta;
use offramp_offload::rss::{INDIRECTION_ENTRIES_DEFAULT, IndirectionTable, Toeplitz};

/// A host as destination, with its current offloads and MTU.
pub(crate) struct Outlet<'a, H> {
    pub(crate) host: &'a mut H,
    /// The counters of the host's queues; not empty.
    queues: &'a [QueueStats],
    /// The counters of the first queue. Frames lost before the host chose a queue are counted here.
    pub(crate) stats: &'a Direction,
    /// Offloads accepted by the host and allowed by the user.
    pub(crate) enabled: Offloads,
    /// Maximum number of IP bytes in a frame.
    pub(crate) mtu: usize,
    /// The port's error if the host is gone; `None` while the host is present.
    pub(crate) closed: Option<PortError>,
    /// True if the host accepted at least one frame.
    pub(crate) has_taken: bool,
}

impl<'a, H: HostPort> Outlet<'a, H> {
    #[inline]
    pub(crate) fn new(host: &'a mut H, queues: &'a [QueueStats], enabled: Offloads, mtu: usize) -> Self {
        Self { host, queues, stats: &queues[0].receive, enabled, mtu, closed: None, has_taken: false }
    }

    /// Counts incoming frames of a host with one queue. With several queues, `chosen` counts the frame, after the host
    /// has chosen the frame's queue.
    #[inline]
    pub(super) fn came_in(&self, frames: usize) {
        if self.queues.len() == 1 {
            self.stats.frames_in.add(frames as u64);
        }
    }

    /// Ends a batch of every queue.
    pub(super) fn end_batch(&self) {
        for queue in self.queues {
            queue.receive.end_batch();
        }
    }

    /// Checks a wire frame of `len` bytes: the frame must have a link header and fit into the MTU.
    #[inline]
    pub(super) fn takes(&self, link_header_len: Result<usize, Malformed>, len: usize) -> Result<(), Loss> {
        match link_header_len {
            Ok(link_header_len) if len - link_header_len > self.mtu => Err(Loss::TooLong),
            Ok(_) => Ok(()),
            Err(_) => Err(Loss::Malformed),
        }
    }

    #[inline]
    pub(super) fn hand_over(&mut self, rss: Option<&Rss>, meta: &RxMeta, frame: &[u8]) {
        match with_queue(rss, meta) {
            Some(meta) => self.hand_over_marked(&meta, frame),
            None => self.hand_over_marked(meta, frame),
        }
    }

    /// Hands over a frame whose payload lies in its sender's memory.
    pub(super) fn hand_over_lent(&mut self, rss: Option<&Rss>, meta: &RxMeta, frame: &Frame<'_>) {
        let marked = with_queue(rss, meta);
        let meta = marked.as_ref().unwrap_or(meta);
        let outcome = self.host.rx_deliver_lent(meta, frame);
        self.count(meta, frame.len(), outcome);
    }

    #[inline]
    fn hand_over_marked(&mut self, meta: &RxMeta, frame: &[u8]) {
        let outcome = self.host.rx_deliver(meta, frame);
        self.count(meta, frame.len(), outcome);
    }

    /// Counts the outcome of a delivery.
    #[inline]
    fn count(&mut self, meta: &RxMeta, len: usize, outcome: Result<(), PortError>) {
        let stats = if self.queues.len() == 1 { self.stats } else { self.chosen(meta) };
        stats.given(meta, len, outcome.map_err(PortError::loss));
        self.has_taken |= outcome.is_ok();
        if let Err(error @ PortError::Closed(_)) = outcome {
            self.closed = Some(error);
        }
    }

    /// Returns the counters of the queue that the host chose for the frame, and counts the frame as incoming in these
    /// counters.
    #[inline(never)]
    fn chosen(&self, meta: &RxMeta) -> &'a Direction {
        let stats = &QueueStats::of(self.queues, || self.host.rx_queue()).receive;
        stats.frames_in.add(meta.segments.into());
        stats
    }

    pub(crate) fn lose(&self, reason: Loss, frames: usize) {
        lose(self.stats, reason, frames);
    }
}

/// Counts frames that are lost before a queue is chosen.
pub(crate) fn lose(stats: &Direction, reason: Loss, frames: usize) {
    stats.frames_in.add(frames as u64);
    stats.lose(reason, frames);
}

/// Returns `meta` with the queue of the frame's flow; `None` if the adapter does not choose the queue.
///
/// Returning `meta` itself in place of `None` would copy `meta` for every frame. A read of bytes that were just written
/// by smaller writes stalls the processor. The stall lasts until all earlier writes are done, including writes into a
/// guest's memory.
#[inline]
fn with_queue(rss: Option<&Rss>, meta: &RxMeta) -> Option<RxMeta> {
    let rss = rss?;
    let queue = meta.hash.map_or(0, |hash| rss.table.queue(hash));
    Some(RxMeta { queue, ..*meta })
}

/// The assignment of flows to a host's queues (receive-side scaling).
#[derive(Debug)]
pub(super) struct Rss {
    pub(super) hash: Toeplitz,
    table: IndirectionTable,
}

impl Rss {
    /// Creates the assignment; `None` for a single queue.
    pub(super) fn new(queues: u16) -> Option<Self> {
        let table = IndirectionTable::new(INDIRECTION_ENTRIES_DEFAULT, queues).ok()?;
        (queues > 1).then(|| Self { hash: Toeplitz::default(), table })
    }
}

/// The sink of the coalescer: hands coalesced frames to the host.
pub(super) struct ToHost<'a, 'b, H> {
    pub(super) outlet: &'a mut Outlet<'b, H>,
    pub(super) rss: Option<&'a Rss>,
    /// Allows the coalescer to write into the host's own buffers. `false` if the coalescer holds frames across batches:
    /// a host must not wait for its lent buffers.
    pub(super) is_lending: bool,
}

impl<H: HostPort> Sink for ToHost<'_, '_, H> {
    #[inline]
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) {
        self.outlet.hand_over(self.rss, meta, frame);
    }

    #[inline]
    fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        self.is_lending && self.outlet.host.rx_reserve(slot, head)
    }

    #[inline]
    fn room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        self.outlet.host.rx_room(slot, len, count)
    }

    #[inline]
    fn fill(&mut self, slot: usize, len: usize) {
        self.outlet.host.rx_fill(slot, len);
    }

    #[inline]
    fn wants_commit(&self) -> bool {
        self.outlet.host.rx_wants_commit()
    }

    #[inline]
    fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) {
        let marked = with_queue(self.rss, meta);
        let meta = marked.as_ref().unwrap_or(meta);
        let outcome = self.outlet.host.rx_commit(slot, meta, head, len);
        self.outlet.count(meta, len, outcome);
    }
}
