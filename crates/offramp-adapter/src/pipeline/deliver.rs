//! Deliver: open, verify, coalesce, segment if the host needs it, mark, hand over.
//!
//! Nothing overtakes: before a frame goes past the coalescer, the coalescer is flushed.

use crate::config::frame_len_max;
use crate::ipsec::Opening;
use crate::limit::Meter;
use crate::pipeline::control::PortControl;
use crate::port::{HostPort, PortError};
use crate::stats::{Direction, Loss};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Sum;
use offramp_offload::coalesce::{Appended, CoalesceConfig, Coalescer, PACKET_LEN_MAX, RxCsum, Sink};
use offramp_offload::count;
use offramp_offload::frame::Frame;
use offramp_offload::layout::{Malformed, TCP_CWR, TCP_FLAGS_OFFSET, link_header_len};
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind};
use offramp_offload::rss::{INDIRECTION_ENTRIES_DEFAULT, IndirectionTable, Toeplitz};
use offramp_offload::segment::Segmenter;

/// Alignment of consecutively written frames: a cache line.
pub(crate) const FRAME_ALIGN: usize = 64;
/// Bytes of a scratch: a run stays near the first-level cache, and the longest frame of the largest MTU fits.
pub(crate) const SCRATCH_LEN: usize =
    (frame_len_max(crate::config::MTU_MAX) + FRAME_ALIGN).next_multiple_of(FRAME_ALIGN);

/// Memory for rewritten frames. All ports of a switch share it.
pub(crate) type Scratch = Box<[u8]>;

/// The rest of a turn.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
    /// Excess bytes of the last frame.
    pub(crate) debt_bytes: usize,
}

impl Budget {
    pub(crate) const UNLIMITED: Self = Self { frames: usize::MAX, bytes: usize::MAX, debt_bytes: 0 };

    pub(crate) fn new(frames: usize, bytes: usize) -> Self {
        Self { frames, bytes, debt_bytes: 0 }
    }

    pub(crate) fn is_left(&self) -> bool {
        self.frames > 0 && self.bytes > 0
    }

    pub(crate) fn spend(&mut self, frames: usize, bytes: usize) {
        self.frames = self.frames.saturating_sub(frames);
        self.debt_bytes += bytes.saturating_sub(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The memory, budget and time of a turn.
pub(crate) struct Work<'a> {
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) budget: &'a mut Budget,
    pub(crate) now_ns: u64,
}

/// A host as destination, with its current offloads and MTU.
pub(crate) struct Outlet<'a, H> {
    pub(crate) host: &'a mut H,
    pub(crate) stats: &'a Direction,
    /// Offloads accepted by the host and allowed by the user.
    pub(crate) enabled: Offloads,
    /// Maximum IP bytes of a frame.
    pub(crate) mtu: usize,
    /// The reason if the host is gone.
    pub(crate) closed: Option<PortError>,
    /// The host took a frame.
    pub(crate) has_taken: bool,
}

impl<'a, H: HostPort> Outlet<'a, H> {
    pub(crate) fn new(host: &'a mut H, stats: &'a Direction, enabled: Offloads, mtu: usize) -> Self {
        Self { host, stats, enabled, mtu, closed: None, has_taken: false }
    }

    /// Checks a wire frame of `len` bytes: it must have a link header and fit into the MTU.
    #[inline]
    fn takes(&self, link_header_len: Result<usize, Malformed>, len: usize) -> Result<(), Loss> {
        match link_header_len {
            Ok(link_header_len) if len - link_header_len > self.mtu => Err(Loss::TooLong),
            Ok(_) => Ok(()),
            Err(_) => Err(Loss::Malformed),
        }
    }

    #[inline]
    fn hand_over(&mut self, rss: Option<&Rss>, meta: &RxMeta, frame: &[u8]) {
        match with_queue(rss, meta) {
            Some(meta) => self.hand_over_marked(&meta, frame),
            None => self.hand_over_marked(meta, frame),
        }
    }

    #[inline]
    fn hand_over_marked(&mut self, meta: &RxMeta, frame: &[u8]) {
        let outcome = self.host.rx_deliver(meta, frame);
        self.count(meta, frame.len(), outcome);
    }

    /// Counts the outcome of a delivery.
    #[inline]
    fn count(&mut self, meta: &RxMeta, len: usize, outcome: Result<(), PortError>) {
        self.stats.given(meta, len, outcome.map_err(PortError::loss));
        self.has_taken |= outcome.is_ok();
        if let Err(error @ PortError::Closed(_)) = outcome {
            self.closed = Some(error);
        }
    }

    pub(crate) fn lose(&self, reason: Loss, frames: usize) {
        self.stats.frames_in.add(frames as u64);
        self.stats.lose(reason, frames);
    }
}

/// Returns `meta` with the flow's queue; `None` if queues are not chosen here.
///
/// A copy for every frame would cost more than it seems. A read of bytes just written in smaller pieces waits until all
/// earlier writes are done, those into a guest's memory too.
#[inline]
fn with_queue(rss: Option<&Rss>, meta: &RxMeta) -> Option<RxMeta> {
    let rss = rss?;
    let queue = meta.hash.map_or(0, |hash| rss.table.queue(hash));
    Some(RxMeta { queue, ..*meta })
}

/// A frame lent by its sender, and its segmentation plan.
pub(crate) struct Lent<'a> {
    pub(crate) frame: Frame<'a>,
    pub(crate) plan: &'a Segmenter,
}

impl Lent<'_> {
    fn len(&self) -> usize {
        self.frame.bytes().len()
    }

    pub(crate) fn frames(&self) -> usize {
        self.plan.frames_left()
    }

    /// Returns the segmentation if the frame makes more than one.
    fn segmentation(&self) -> Option<Segmentation> {
        self.frame.request().segmentation.filter(|_| self.frames() > 1)
    }

    /// Returns whether the longest of its frames fits.
    fn fits(&self, mtu: usize) -> bool {
        self.plan.next_len() - self.plan.link_header_len() <= mtu
    }

    /// Returns the marks of an untouched super-frame; `None` if `enabled` cannot express them.
    ///
    /// A super-frame with CWR is marked as one, even if its sender did not mark it, and goes only to a driver with ECN
    /// negotiated (virtio 1.3, 5.1.6.4.1).
    fn untouched(&self, segmentation: Segmentation, enabled: Offloads) -> Option<RxMeta> {
        let partial = self.frame.request().checksum?;
        if self.len() - self.plan.link_header_len() > PACKET_LEN_MAX {
            return None; // Too long for an IP header's length field and for a guest's buffers.
        }
        let (needed, is_tcp) = match segmentation.kind {
            SegmentationKind::Tcp4 => (Offloads::RSC4, true),
            SegmentationKind::Tcp6 => (Offloads::RSC6, true),
            SegmentationKind::Udp => (Offloads::RSC_UDP, false),
            SegmentationKind::UdpFragments => return None,
        };
        let has_cwr = is_tcp && (segmentation.ecn || carries_cwr(self.frame.bytes(), partial));
        let needed = if has_cwr { needed | Offloads::RSC_ECN } else { needed };
        enabled.contains(needed).then(|| RxMeta {
            checksum: ChecksumState::Partial(partial),
            segmentation: Some(Segmentation { ecn: has_cwr, ..segmentation }),
            header_len: self.header_len(segmentation),
            segments: self.frames() as u16,
            ..RxMeta::default()
        })
    }

    /// Returns the bytes of all headers of a super-frame. 0 for a datagram to be fragmented, as only its first fragment
    /// has a UDP header.
    fn header_len(&self, segmentation: Segmentation) -> u16 {
        match segmentation.kind {
            SegmentationKind::UdpFragments => 0,
            _ => (self.plan.next_len() - usize::from(segmentation.size)) as u16,
        }
    }
}

/// Returns whether the TCP header, at the checksum's start, has CWR set.
fn carries_cwr(frame: &[u8], partial: PartialChecksum) -> bool {
    frame.get(usize::from(partial.start) + TCP_FLAGS_OFFSET).is_some_and(|flags| flags & TCP_CWR != 0)
}

/// The choice of a host's queue for a flow (receive-side scaling).
#[derive(Debug)]
struct Rss {
    hash: Toeplitz,
    table: IndirectionTable,
}

impl Rss {
    /// Returns `None` for a single queue: there is no choice.
    fn new(queues: u16) -> Option<Self> {
        let table = IndirectionTable::new(INDIRECTION_ENTRIES_DEFAULT, queues).ok()?;
        (queues > 1).then(|| Self { hash: Toeplitz::default(), table })
    }
}

/// The coalescer's sink: hands its frames to the host.
struct ToHost<'a, 'b, H> {
    outlet: &'a mut Outlet<'b, H>,
    rss: Option<&'a Rss>,
    /// The host's own buffers may be lent. Not across batches: a host must not wait for its buffers.
    is_lending: bool,
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
    fn append(&mut self, slot: usize, payload: &[u8], headers_sum: Sum) -> Appended {
        self.outlet.host.rx_append(slot, payload, headers_sum)
    }

    #[inline]
    fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) {
        let marked = with_queue(self.rss, meta);
        let meta = marked.as_ref().unwrap_or(meta);
        let outcome = self.outlet.host.rx_commit(slot, meta, head, len);
        self.outlet.count(meta, len, outcome);
    }
}

/// The last stage of the pipeline of one queue pair or one port of a switch.
#[derive(Debug)]
pub(crate) struct Deliver {
    coalescer: Coalescer,
    /// The receive limit of the host. The caller of a push checks it first, and spends.
    pub(crate) meter: Meter,
    rx_csum: RxCsum,
    rss: Option<Rss>,
    /// `None` while IPsec concerns no frame.
    opening: Option<Box<Opening>>,
    /// The last change of associations taken over.
    ipsec_changes: u32,
    hold_ns: u64,
    /// Something was handed over since the last flush.
    pub(crate) is_unflushed: bool,
    /// The host took a frame since it was interrupted last.
    has_taken: bool,
    /// Delivery interrupts the host; otherwise interrupts are separate and counted elsewhere.
    pub(crate) interrupts_by_handing_over: bool,
}

impl Deliver {
    /// Creates the stage. `queues` is the number of the host's queues for receive-side scaling.
    pub(crate) fn new(coalesce: &CoalesceConfig, queues: u16, control: &PortControl, host: &mut impl HostPort) -> Self {
        let rx_csum = if host.honours_data_valid() { RxCsum::DataValid } else { RxCsum::NeedsCsum };
        Self {
            coalescer: Coalescer::new(CoalesceConfig { rx_csum, ..*coalesce }),
            meter: Meter::new(&control.rx_limiter),
            rx_csum,
            rss: Rss::new(queues),
            opening: None,
            ipsec_changes: 0,
            hold_ns: coalesce.hold_ns,
            is_unflushed: false,
            has_taken: false,
            interrupts_by_handing_over: host.interrupts().is_none(),
        }
    }

    /// Counts the frames waiting to be coalesced.
    pub(crate) fn held(&self) -> usize {
        self.coalescer.held()
    }

    /// Returns the next deadline of waiting frames or associations.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let ipsec_ns = self.opening.as_ref().and_then(|opening| opening.next_due_ns);
        self.coalescer.next_deadline_ns().into_iter().chain(ipsec_ns).min()
    }

    /// Returns the deadline of the frames waiting to be coalesced.
    pub(crate) fn next_release_ns(&self) -> Option<u64> {
        self.coalescer.next_deadline_ns()
    }

    /// Returns `true` if no frame was handed over since the last batch ended, and none waits to be coalesced.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_unflushed && self.next_release_ns().is_none()
    }

    /// Takes over a changed limit and changed associations, and advances their time.
    #[inline]
    pub(crate) fn take_over(&mut self, control: &PortControl, now_ns: u64) {
        self.meter.take_over(now_ns);
        let ipsec = control.ipsec();
        let changes = ipsec.changes();
        if changes != self.ipsec_changes {
            self.ipsec_changes = changes;
            self.opening = Opening::new(&ipsec.in_force());
        }
        if let Some(opening) = &mut self.opening {
            opening.tick(ipsec, now_ns);
        }
    }

    /// Returns the coalescer and its sink.
    #[inline]
    fn parts<'a, 'b, H>(&'a mut self, outlet: &'a mut Outlet<'b, H>) -> (&'a mut Coalescer, ToHost<'a, 'b, H>) {
        let out = ToHost { outlet, rss: self.rss.as_ref(), is_lending: self.hold_ns == 0 };
        (&mut self.coalescer, out)
    }

    /// Flushes the coalescer: settings have changed, or the port is removed.
    pub(crate) fn release(&mut self, outlet: &mut Outlet<'_, impl HostPort>) {
        let (coalescer, mut out) = self.parts(outlet);
        coalescer.flush(&mut out);
    }

    /// Brings a frame of a wire, without requests.
    #[inline]
    pub(crate) fn push_received(&mut self, outlet: &mut Outlet<'_, impl HostPort>, mut frame: Frame<'_>, now_ns: u64) {
        outlet.stats.frames_in.add(1);
        if let Err(reason) = self.open(outlet, &mut frame) {
            return outlet.stats.lose(reason, 1);
        }
        self.verify(outlet, frame, now_ns);
    }

    /// Returns whether all frames of a wire go to the host unchanged: then they need not be parsed.
    #[inline]
    pub(crate) fn passes_received(&self, outlet: &Outlet<'_, impl HostPort>) -> bool {
        let is_looked_into = outlet.enabled.intersects(Offloads::RX) || self.opening.is_some() || self.rss.is_some();
        !is_looked_into && !outlet.host.steers_flows()
    }

    /// Brings a frame of a wire if [`Deliver::passes_received`].
    #[inline]
    pub(crate) fn pass_received(&mut self, outlet: &mut Outlet<'_, impl HostPort>, frame: &[u8]) {
        outlet.stats.frames_in.add(1);
        if let Err(reason) = outlet.takes(link_header_len(frame), frame.len()) {
            return outlet.stats.lose(reason, 1);
        }
        self.release(outlet);
        self.is_unflushed = true;
        outlet.hand_over(None, &RxMeta::UNMARKED, frame);
    }

    /// Refuses a frame the host cannot take, and opens a sealed one.
    #[inline]
    fn open(&mut self, outlet: &Outlet<'_, impl HostPort>, frame: &mut Frame<'_>) -> Result<(), Loss> {
        outlet.takes(frame.link_header_len(), frame.bytes().len())?;
        self.opening.as_mut().map_or(Ok(()), |opening| opening.open(frame, outlet.stats))
    }

    /// Verifies a frame without known state and coalesces it, as far as the host's offloads allow.
    #[inline]
    fn verify(&mut self, outlet: &mut Outlet<'_, impl HostPort>, frame: Frame<'_>, now_ns: u64) {
        self.is_unflushed = true;
        let (hash, enabled) = (self.hash_of(outlet, &frame), outlet.enabled);
        let is_verified = enabled.intersects(Offloads::RX);
        if is_verified && frame.layout().is_err() {
            outlet.stats.unparsed.add(1);
        }
        let (coalescer, mut out) = self.parts(outlet);
        if is_verified {
            coalescer.push(frame, enabled, hash, now_ns, &mut out);
            if out.outlet.host.rx_wants_commit() {
                coalescer.flush(&mut out);
            }
        } else {
            coalescer.flush(&mut out);
            out.deliver(&RxMeta { hash, ..RxMeta::default() }, frame.bytes());
        }
    }

    /// Returns the hash by which the host steers the frame.
    #[inline]
    fn hash_of(&self, outlet: &Outlet<'_, impl HostPort>, frame: &Frame<'_>) -> Option<u32> {
        match &self.rss {
            Some(rss) => rss.hash.hash_frame(frame),
            None => outlet.host.flow_hash(frame),
        }
    }

    /// Brings one frame sent by another host. Returns `false` if the budget ended in the middle of a segmentation. Then
    /// `segments` has the rest, and the same frame is to be brought again.
    pub(crate) fn push(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        lent: &mut Lent<'_>,
        segments: &mut Option<Segmenter>,
        work: &mut Work<'_>,
    ) -> bool {
        if let Some(opening) = &self.opening {
            if opening.is_sealed(&lent.frame) {
                return self.push_segments_received(outlet, lent, segments, work);
            }
            if segments.is_none()
                && let Err(reason) = opening.judge_clear(&lent.frame, outlet.stats)
            {
                work.budget.spend(1, 0);
                outlet.lose(reason, lent.frames());
                return true;
            }
        }
        let Some(segmentation) = lent.segmentation() else {
            work.budget.spend(1, lent.len());
            self.push_frame(outlet, lent, work);
            return true;
        };
        if segments.is_none()
            && lent.fits(outlet.mtu)
            && let Some(meta) = lent.untouched(segmentation, outlet.enabled)
        {
            work.budget.spend(1, lent.len());
            let meta = RxMeta { hash: self.hash_of(outlet, &lent.frame), ..meta };
            self.hand_over_in_order(outlet, &meta, lent.frame.bytes());
            return true;
        }
        self.push_segments(outlet, lent, segmentation, segments, work)
    }

    /// Segments a super-frame for a host without the offload for it.
    fn push_segments(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        lent: &Lent<'_>,
        segmentation: Segmentation,
        segments: &mut Option<Segmenter>,
        work: &mut Work<'_>,
    ) -> bool {
        let rest = segments.get_or_insert_with(|| lent.plan.clone());
        self.release(outlet);
        self.is_unflushed = true;
        let meta = RxMeta {
            header_len: lent.header_len(segmentation),
            hash: self.hash_of(outlet, &lent.frame),
            ..RxMeta::default()
        };
        let is_proved = has_good_pseudo_header(&lent.frame);
        while rest.frames_left() > 0 && work.budget.is_left() {
            if rest.next_len() - rest.link_header_len() > outlet.mtu {
                work.budget.spend(1, 0);
                rest.skip_next();
                outlet.lose(Loss::TooLong, 1);
                continue;
            }
            let (len, stride, count) = write_run(lent, rest, work);
            outlet.stats.frames_in.add(count as u64);
            for slot in work.scratch.chunks_mut(stride).take(count) {
                let frame = &mut slot[..len];
                let checksum = self.checksum_of_segment(frame, segmentation.kind, outlet.enabled, is_proved);
                outlet.hand_over(self.rss.as_ref(), &RxMeta { checksum, ..meta }, frame);
            }
        }
        rest.frames_left() == 0
    }

    /// Brings a frame of a wire for several ports: its bytes stay unchanged.
    pub(crate) fn push_shared(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        frame: &mut Frame<'_>,
        work: &mut Work<'_>,
    ) {
        let is_opened = self.opening.as_ref().is_some_and(|opening| opening.is_sealed(frame));
        if !is_opened {
            return self.push_received(outlet, frame.reborrow(), work.now_ns);
        }
        let copy = &mut work.scratch[..frame.bytes().len()];
        count::copied(frame.bytes().len());
        copy.copy_from_slice(frame.bytes());
        self.push_received(outlet, Frame::received(copy), work.now_ns);
    }

    /// Segments a host's frame and brings the segments as frames from a wire.
    fn push_segments_received(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        lent: &Lent<'_>,
        segments: &mut Option<Segmenter>,
        work: &mut Work<'_>,
    ) -> bool {
        let rest = segments.get_or_insert_with(|| lent.plan.clone());
        while rest.frames_left() > 0 && work.budget.is_left() {
            let (len, stride, count) = write_run(lent, rest, work);
            for slot in work.scratch.chunks_mut(stride).take(count) {
                self.push_received(outlet, Frame::received(&mut slot[..len]), work.now_ns);
            }
        }
        rest.frames_left() == 0
    }

    /// Brings a frame without segmentation.
    fn push_frame(&mut self, outlet: &mut Outlet<'_, impl HostPort>, lent: &mut Lent<'_>, work: &mut Work<'_>) {
        if !lent.fits(outlet.mtu) {
            return outlet.lose(Loss::TooLong, 1);
        }
        let honours_checksums = outlet.enabled.contains(Offloads::RX_CHECKSUM);
        let hash = self.hash_of(outlet, &lent.frame);
        let meta = RxMeta { hash, ..RxMeta::default() };
        match lent.frame.request().checksum {
            None if honours_checksums => {
                let frame = lent.frame.unsegmented();
                outlet.stats.frames_in.add(1);
                self.verify(outlet, frame, work.now_ns);
            }
            None => self.hand_over_in_order(outlet, &meta, lent.frame.bytes()),
            Some(partial) if honours_checksums => {
                let meta = RxMeta { checksum: ChecksumState::Partial(partial), ..meta };
                self.hand_over_in_order(outlet, &meta, lent.frame.bytes());
            }
            Some(_) => {
                let scratch = &mut *work.scratch;
                let len = lent.plan.clone().write_next(&lent.frame, scratch);
                self.hand_over_in_order(outlet, &meta, &scratch[..len]);
            }
        }
    }

    /// Hands a frame over unchanged, after the frames in the coalescer: it may be of any flow.
    fn hand_over_in_order(&mut self, outlet: &mut Outlet<'_, impl HostPort>, meta: &RxMeta, frame: &[u8]) {
        self.release(outlet);
        self.is_unflushed = true;
        outlet.stats.frames_in.add(u64::from(meta.segments));
        outlet.hand_over(self.rss.as_ref(), meta, frame);
    }

    /// Returns the mark of a segment with its checksums just written. Fragments alone have no checksum of their own.
    fn checksum_of_segment(
        &self,
        segment: &mut [u8],
        kind: SegmentationKind,
        enabled: Offloads,
        is_proved: bool,
    ) -> ChecksumState {
        if !enabled.contains(Offloads::RX_CHECKSUM) || kind == SegmentationKind::UdpFragments {
            return ChecksumState::Unknown;
        }
        if !is_proved && Frame::received(segment).verify() != ChecksumState::Good {
            return ChecksumState::Unknown;
        }
        match self.rx_csum {
            RxCsum::DataValid => ChecksumState::Good,
            RxCsum::NeedsCsum => {
                Frame::received(segment).make_partial().map_or(ChecksumState::Unknown, ChecksumState::Partial)
            }
        }
    }

    /// Ends a batch: hands over the expired frames of the coalescer, and publishes everything to the host.
    pub(crate) fn end_batch(&mut self, outlet: &mut Outlet<'_, impl HostPort>, now_ns: u64) {
        if self.hold_ns == 0 {
            self.release(outlet);
        } else if self.next_release_ns().is_some_and(|at| at <= now_ns) {
            self.is_unflushed = true;
            let (coalescer, mut out) = self.parts(outlet);
            coalescer.flush_expired(now_ns, &mut out);
        }
        if std::mem::take(&mut self.is_unflushed) {
            self.flush(outlet, now_ns);
        }
    }

    /// Publishes the delivered frames to the host, and counts the interrupt if delivery is one.
    pub(crate) fn flush(&mut self, outlet: &mut Outlet<'_, impl HostPort>, now_ns: u64) {
        outlet.host.rx_flush(now_ns);
        outlet.stats.end_batch();
        self.note(outlet);
        if std::mem::take(&mut self.has_taken) && self.interrupts_by_handing_over {
            outlet.stats.interrupts.add(1);
        }
    }

    /// Takes over the `has_taken` of `outlet`.
    #[inline]
    pub(crate) fn note(&mut self, outlet: &mut Outlet<'_, impl HostPort>) {
        self.has_taken |= std::mem::take(&mut outlet.has_taken);
    }
}

/// Returns whether the host began the checksum with the frame's pseudo-header: then the segments' checksums will be
/// right. A guest may begin with anything, and the checksum of a fragment does not cover its bytes.
fn has_good_pseudo_header(frame: &Frame<'_>) -> bool {
    let (Ok(layout), Some(partial)) = (frame.layout(), frame.request().checksum) else { return false };
    let begun = frame.bytes().get(partial.field()..).and_then(|rest| rest.first_chunk());
    let pseudo_header = frame.pseudo_header(layout.transport_len() as u32).fold();
    !layout.fragment && begun.is_some_and(|begun| u16::from_be_bytes(*begun) == pseudo_header)
}

/// Writes the next frames of one length into the scratch, as many as fit. Returns their length, their stride and their
/// number.
fn write_run(lent: &Lent<'_>, rest: &mut Segmenter, work: &mut Work<'_>) -> (usize, usize, usize) {
    let len = rest.next_len();
    let stride = len.next_multiple_of(FRAME_ALIGN);
    let slots = (work.scratch.len() / stride).min(work.budget.frames.max(1));
    let count = rest.write_run(&lent.frame, &mut work.scratch[..slots * stride], stride);
    work.budget.spend(count, count * len);
    (len, stride, count)
}
