//! Captures of a running host's frames.
//!
//! Each queue of a port wraps its host in a [`Watched`]. Without a capture, the wrapper loads one counter per batch of
//! a queue pair or, in a switch, per frame. During a capture, the first bytes of each frame are copied into a queue of
//! bounded size. The data thread never waits for the reader. If the queue is full, the packet is missing from the
//! capture, and counted.

use offramp_adapter::host_io::HostIo;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::pass_on;
use offramp_adapter::port::{HostPort, InPlace, PortError, WirePort};
use offramp_adapter::stats::{Loss, QueueStats};
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation};
use offramp_offload::sync::lock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

/// Memory of a queued packet in addition to the packet's bytes, in bytes: the entry in the queue, and the allocator's
/// header.
const PACKET_OVERHEAD: usize = size_of::<Packet>() + 16;

/// The direction of a packet, as seen by its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The host sends the packet.
    Transmit,
    /// The host receives the packet.
    Receive,
}

/// The vnet header of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vnet {
    /// The partial checksum, if the packet has one.
    pub partial: Option<PartialChecksum>,
    /// The adapter's verdict on the checksums of a received packet; `true` for valid checksums.
    pub verdict: Option<bool>,
    /// The segmentation request of a super-frame.
    pub segmentation: Option<Segmentation>,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Time of the copy, since the Unix epoch.
    pub at: Duration,
    /// The packet's direction.
    pub way: Way,
    /// Index of the packet's queue pair.
    pub queue: usize,
    /// The packet's vnet header.
    pub vnet: Vnet,
    /// The number of the packet's wire frames that were lost, and the reason. If the frames were lost for several
    /// reasons, this is the first of these reasons in the order of `Loss::ALL`. `None` if no frame was lost.
    pub lost: Option<(Loss, u64)>,
    /// Length of the packet, in bytes.
    pub len: usize,
    /// The first bytes of the packet.
    pub data: Box<[u8]>,
    /// Number of packets missing from the capture before this packet, because of a slow reader.
    pub missed: u64,
}

/// The point at which a capture copies a port's frames. Dropping the point ends its capture.
#[derive(Debug, Default)]
pub struct CapturePoint {
    /// Number of starts and stops of captures. The data thread locks `sink` only when this number has changed.
    changes: AtomicU32,
    sink: Mutex<Option<Arc<Sink>>>,
}

/// The destination of captured packets.
#[derive(Debug)]
struct Sink {
    packets: Sender<Packet>,
    snaplen: usize,
    /// Maximum number of bytes queued for the reader.
    bytes_max: usize,
    waiting: Arc<Waiting>,
}

/// The packets queued for the reader.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    missed: AtomicU64,
}

/// A running capture, from which the reader takes packets. Dropping this value ends the capture.
#[derive(Debug)]
pub struct Capture {
    packets: Receiver<Packet>,
    waiting: Arc<Waiting>,
    point: Weak<CapturePoint>,
}

impl CapturePoint {
    /// Captures the first `snaplen` bytes of each packet, starting with the next batch. At most `bytes_max` bytes wait
    /// for the reader. Returns `None` if another capture is running.
    pub fn start(self: &Arc<Self>, snaplen: usize, bytes_max: usize) -> Option<Capture> {
        let mut sink = lock(&self.sink);
        if sink.is_some() {
            return None;
        }
        let (sender, packets) = channel();
        let waiting = Arc::new(Waiting::default());
        *sink = Some(Arc::new(Sink { packets: sender, snaplen, bytes_max, waiting: Arc::clone(&waiting) }));
        self.changes.fetch_add(1, Ordering::Release);
        Some(Capture { packets, waiting, point: Arc::downgrade(self) })
    }
}

impl Capture {
    /// Returns the next packet.
    ///
    /// # Errors
    /// Returns an error if no packet arrived within `time`, or the port is gone.
    pub fn next(&self, time: Duration) -> Result<Packet, RecvTimeoutError> {
        let packet = self.packets.recv_timeout(time)?;
        self.waiting.bytes.fetch_sub(packet.data.len() + PACKET_OVERHEAD, Ordering::Relaxed);
        Ok(packet)
    }

    /// Ends the capture with the next batch. [`Capture::next`] still returns the packets that are already captured.
    pub fn stop(&self) {
        if let Some(point) = self.point.upgrade() {
            let mut sink = lock(&point.sink);
            // The sink may already belong to another capture.
            if sink.as_ref().is_some_and(|sink| Arc::ptr_eq(&sink.waiting, &self.waiting)) {
                *sink = None;
                point.changes.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Returns the number of packets missing since the last captured packet, because of a slow reader.
    pub fn missed(&self) -> u64 {
        self.waiting.missed.load(Ordering::Relaxed)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Sink {
    /// Returns a copy of a packet, or `None` if the queue is full.
    fn copy(&self, way: Way, queue: usize, vnet: Vnet, frame: &[u8], len: usize) -> Option<Packet> {
        let data = &frame[..frame.len().min(self.snaplen)];
        let len_queued = data.len() + PACKET_OVERHEAD;
        let bytes = self.waiting.bytes.fetch_add(len_queued, Ordering::Relaxed);
        if bytes + len_queued > self.bytes_max {
            self.waiting.bytes.fetch_sub(len_queued, Ordering::Relaxed);
            self.waiting.missed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Some(Packet { at, way, queue, vnet, lost: None, len, data: data.into(), missed: 0 })
    }

    fn send(&self, mut packet: Packet) {
        packet.missed = self.waiting.missed.swap(0, Ordering::Relaxed);
        // Sending fails only after the end of the capture.
        let _ = self.packets.send(packet);
    }
}

/// A host whose frames pass a [`CapturePoint`].
#[derive(Debug)]
pub struct Watched<H> {
    host: H,
    point: Arc<CapturePoint>,
    /// The port's control, with the statistics that show whether a sent frame was lost.
    control: Arc<PortControl>,
    queue: usize,
    /// Without a capture: the value of [`CapturePoint::changes`] when this wrapper last took over the point's sink.
    /// During a capture: one less than that value. The two values then differ at every fetch, so each fetch calls
    /// `tx_next_watched`.
    changes: u32,
    watch: Option<Watch>,
}

/// A number of lost frames for each [`Loss`].
type LostFrames = [u64; Loss::ALL.len()];

#[derive(Debug)]
struct Watch {
    sink: Arc<Sink>,
    /// The value of [`CapturePoint::changes`] when the wrapper took over `sink`.
    changes: u32,
    /// The last frame sent by the host. The adapter knows only at the next fetch whether this frame was lost.
    sent: Option<Packet>,
    /// The number of lost frames for each [`Loss`] when `sent` was fetched.
    lost: LostFrames,
}

impl<H: HostPort> Watched<H> {
    /// Returns a wrapper for queue pair `queue` of the port with this `control`.
    pub fn new(host: H, point: &Arc<CapturePoint>, control: &Arc<PortControl>, queue: usize) -> Self {
        let (point, control) = (Arc::clone(point), Arc::clone(control));
        Self { host, point, control, queue, changes: 0, watch: None }
    }

    /// Returns true if no capture is running and none has started since this wrapper last took over the sink.
    fn is_idle(&self) -> bool {
        self.point.changes.load(Ordering::Acquire) == self.changes
    }

    fn take_over(&mut self, changes: u32) {
        let sink = lock(&self.point.sink).clone();
        self.changes = changes.wrapping_sub(u32::from(sink.is_some()));
        self.watch = sink.map(|sink| Watch { sink, changes, sent: None, lost: [0; Loss::ALL.len()] });
    }

    #[cold]
    fn tx_next_watched(&mut self, changes: u32, now_ns: u64) -> Result<bool, PortError> {
        self.conclude();
        if self.watch.as_ref().is_none_or(|watch| watch.changes != changes) {
            self.take_over(changes);
        }
        let next = self.host.tx_next(now_ns);
        if self.watch.is_some() && next == Ok(true) {
            self.note_sent();
        }
        next
    }

    fn lost(&self) -> LostFrames {
        let stats = &QueueStats::of(self.control.queues(), || self.queue + self.host.tx_queue()).transmit;
        std::array::from_fn(|n| stats.lost(Loss::ALL[n]))
    }

    /// Sends the last fetched frame to the capture, with the number of its wire frames that were lost.
    #[cold]
    fn conclude(&mut self) {
        let Some(mut packet) = self.watch.as_mut().and_then(|watch| watch.sent.take()) else { return };
        let now = self.lost();
        let Some(Watch { sink, lost, .. }) = &self.watch else { return };
        let since = Loss::ALL.iter().zip(now.iter().zip(lost)).map(|(&reason, (now, before))| (reason, now - before));
        packet.lost =
            since.filter(|(_, frames)| *frames > 0).reduce(|(reason, sum), (_, frames)| (reason, sum + frames));
        sink.send(packet);
    }

    #[cold]
    fn note_sent(&mut self) {
        let lost = self.lost();
        let Self { host, queue, watch: Some(watch), .. } = self else { return };
        watch.lost = lost;
        let queue = *queue + host.tx_queue();
        watch.sent = if let Some(bytes) = host.tx_unasked() {
            watch.sink.copy(Way::Transmit, queue, Vnet::default(), bytes, bytes.len())
        } else {
            let frame = host.tx_frame();
            let request = frame.request();
            let vnet = Vnet { partial: request.checksum, segmentation: request.segmentation, verdict: None };
            watch.sink.copy(Way::Transmit, queue, vnet, frame.bytes(), frame.bytes().len())
        };
    }

    #[cold]
    fn note_received(&self, meta: &RxMeta, frame: &[u8], len: usize, outcome: Result<(), PortError>) {
        let Some(Watch { sink, .. }) = &self.watch else { return };
        let (partial, verdict) = match meta.checksum {
            ChecksumState::Unknown => (None, None),
            ChecksumState::Good => (None, Some(true)),
            ChecksumState::Bad => (None, Some(false)),
            ChecksumState::Partial(partial) => (Some(partial), None),
        };
        let vnet = Vnet { partial, verdict, segmentation: meta.segmentation };
        if let Some(packet) = sink.copy(Way::Receive, self.queue + self.host.rx_queue(), vnet, frame, len) {
            // Use the same loss reason as the counters.
            let reason = outcome.err().map(PortError::loss);
            sink.send(Packet { lost: reason.map(|reason| (reason, u64::from(meta.segments))), ..packet });
        }
    }
}

impl<H: HostPort> InPlace for Watched<H> {
    pass_on!(host: rx_room rx_fill rx_wants_commit);

    /// Returns false during a capture. A frame written in place exists only in the host's memory, where the capture
    /// cannot copy it.
    #[inline]
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        self.watch.is_none() && self.host.rx_reserve(slot, head)
    }

    #[inline]
    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        let outcome = self.host.rx_commit(slot, meta, head, len);
        if self.watch.is_some() {
            // The port reserved this frame before the capture started. Only the frame's head is in private memory and
            // can be copied.
            self.note_received(meta, head, len, outcome);
        }
        outcome
    }
}

impl<H: HostPort> HostPort for Watched<H> {
    pass_on!(host: tx_frame tx_frame_with_tag tx_lend tx_lend_with_tag tx_unasked tx_queue tx_cost_bytes steering rx_queue rx_lost_to_limit rx_flush);
    pass_on!(host: rx_deliver_lent interrupts accepts honours_data_valid);

    /// Returns false during a capture, because the capture also reads the frame and needs it in private memory.
    #[inline]
    fn rx_takes_shared(&self) -> bool {
        self.watch.is_none() && self.host.rx_takes_shared()
    }

    #[inline]
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let changes = self.point.changes.load(Ordering::Acquire);
        if changes == self.changes { self.host.tx_next(now_ns) } else { self.tx_next_watched(changes, now_ns) }
    }

    fn tx_hold(&mut self) {
        if self.watch.is_some() {
            self.conclude();
        }
        self.host.tx_hold();
    }

    #[inline]
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let outcome = self.host.rx_deliver(meta, frame);
        if self.watch.is_some() {
            self.note_received(meta, frame, frame.len(), outcome);
        }
        outcome
    }
}

impl<H: HostIo> HostIo for Watched<H> {
    pass_on!(host: disarm watch is_unannounced);

    fn arm(&mut self) {
        // Send the last frame before the worker sleeps: the next fetch can be far in the future.
        if self.watch.is_some() {
            self.conclude();
        }
        self.host.arm();
    }

    /// Polls the pair. Without a capture, the pair calls the wrapped host directly.
    fn poll_pair<W: WirePort>(
        pair: &mut QueuePair<Self, W>,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<bool, PortError> {
        let progress = if pair.host().is_idle() {
            pair.poll_within(|watched| &mut watched.host, now_ns, clock)
        } else {
            pair.poll_timed(now_ns, clock)
        };
        Ok(progress?.moved)
    }
}
