//! The stage deliver: opens ESP packets, verifies and coalesces frames, segments super-frames for a host without the
//! needed offload, and hands frames over with marks such as the checksum state.
//!
//! No frame overtakes another: before a frame bypasses the coalescer, the coalescer is flushed.

use super::budget::Work;
use super::control::PortControl;
use super::lent::{Lent, TCP_SEGMENT_LEN_MIN, has_good_pseudo_header, segment_into_scratch};
use super::outlet::{Outlet, Rss, ToHost};
use crate::ipsec::Opening;
use crate::limit::Meter;
use crate::port::HostPort;
use crate::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum, Sink};
use offramp_offload::count;
use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, link_header_len};
use offramp_offload::meta::{ChecksumState, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::Segmenter;

/// Minimum payload of a frame with a partial checksum that may be the first of a coalesced frame, in bytes. The value
/// is the default maximum segment size of TCP (RFC 9293 3.7.1). A frame with less payload is a single message;
/// coalescing such messages is not worth the computation of their checksums.
const TRAIN_SEGMENT_LEN_MIN: usize = 536;

/// The last stage of the pipeline of one queue pair or one port of a switch.
#[derive(Debug)]
pub(crate) struct Deliver {
    coalescer: Coalescer,
    /// The receive limit of the host. The caller of a push method checks the limit before the call and charges the
    /// frame.
    pub(crate) meter: Meter,
    rx_csum: RxCsum,
    rss: Option<Rss>,
    /// The IPsec state for received frames; `None` while IPsec affects no frame.
    opening: Option<Box<Opening>>,
    /// The number of changes of the associations when this stage last applied the associations.
    ipsec_changes: u32,
    hold_ns: u64,
    /// True if at least one frame was handed over since the last flush.
    pub(crate) is_unflushed: bool,
    /// True if the host accepted at least one frame since the host's last interrupt.
    has_taken: bool,
    /// True if delivery interrupts the host. If `false`, interrupts are separate from delivery, and each interrupt is
    /// counted when it is sent.
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
            interrupts_by_handing_over: host.interrupts(0).is_none(),
        }
    }

    /// Returns the number of frames waiting to be coalesced.
    pub(crate) fn held(&self) -> usize {
        self.coalescer.held()
    }

    /// Returns the next deadline: of a frame waiting to be coalesced, or of an association.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let ipsec_ns = self.opening.as_ref().and_then(|opening| opening.next_due_ns);
        self.coalescer.next_deadline_ns().into_iter().chain(ipsec_ns).min()
    }

    /// Returns the deadline of the frames waiting to be coalesced.
    pub(crate) fn next_release_ns(&self) -> Option<u64> {
        self.coalescer.next_deadline_ns()
    }

    /// Returns whether no frame was handed over since the last batch ended, and no frame waits to be coalesced.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_unflushed && self.next_release_ns().is_none()
    }

    /// Applies a changed limit and changed associations, and advances the time of the limit and of the associations to
    /// `now_ns`.
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

    /// Flushes the coalescer after a change of settings, or before the port is removed.
    pub(crate) fn release(&mut self, outlet: &mut Outlet<'_, impl HostPort>) {
        let (coalescer, mut out) = self.parts(outlet);
        coalescer.flush(&mut out);
    }

    /// Delivers a frame received from a wire, without offload requests.
    #[inline]
    pub(crate) fn push_received(&mut self, outlet: &mut Outlet<'_, impl HostPort>, mut frame: Frame<'_>, now_ns: u64) {
        if let Err(reason) = self.open(outlet, &mut frame) {
            return outlet.lose(reason, 1);
        }
        outlet.came_in(1);
        self.verify(outlet, frame, now_ns);
    }

    /// Delivers frames received from a wire, in order, as [`Deliver::push_received`] does.
    #[inline]
    pub(crate) fn push_run<'f>(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        mut frames: impl Iterator<Item = &'f mut [u8]>,
        now_ns: u64,
    ) {
        if self.opening.is_some() || !outlet.enabled.intersects(Offloads::RX) {
            return frames.for_each(|frame| self.push_received(outlet, Frame::received(frame), now_ns));
        }
        loop {
            if !self.coalescer.can_follow() {
                let Some(frame) = frames.next() else { break };
                self.push_received(outlet, Frame::received(frame), now_ns);
                continue;
            }
            let enabled = outlet.enabled;
            let (coalescer, mut out) = self.parts(outlet);
            let followed = coalescer.follow(frames, enabled, &mut out);
            if out.wants_commit() {
                coalescer.flush(&mut out);
            }
            if followed.count > 0 {
                self.is_unflushed = true;
                outlet.came_in(followed.count);
            }
            let Some(frame) = followed.other else { break };
            self.push_received(outlet, Frame::received(frame), now_ns);
            frames = followed.rest;
        }
    }

    /// Returns whether all frames of a wire reach the host unchanged, and so need no parsing.
    #[inline]
    pub(crate) fn passes_received(&self, outlet: &Outlet<'_, impl HostPort>) -> bool {
        let is_looked_into = outlet.enabled.intersects(Offloads::RX) || self.opening.is_some() || self.rss.is_some();
        !is_looked_into && outlet.host.steering().is_none()
    }

    /// Delivers a frame of a wire unparsed. [`Deliver::passes_received`] must hold.
    #[inline]
    pub(crate) fn pass_received(&mut self, outlet: &mut Outlet<'_, impl HostPort>, frame: &[u8]) {
        if let Err(reason) = outlet.takes(link_header_len(frame), frame.len()) {
            return outlet.lose(reason, 1);
        }
        outlet.came_in(1);
        self.release(outlet);
        self.is_unflushed = true;
        outlet.hand_over(None, &RxMeta::UNMARKED, frame);
    }

    /// Refuses a frame that is malformed or too long for the host, and opens a sealed frame.
    #[inline]
    fn open(&mut self, outlet: &Outlet<'_, impl HostPort>, frame: &mut Frame<'_>) -> Result<(), Loss> {
        outlet.takes(frame.link_header_len(), frame.bytes().len())?;
        self.opening.as_mut().map_or(Ok(()), |opening| opening.open(frame, outlet.stats))
    }

    /// Verifies a frame with unknown checksum state and coalesces it, as far as the host's offloads allow.
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

    /// Returns the flow hash with which the host steers the frame.
    #[inline]
    fn hash_of(&self, outlet: &Outlet<'_, impl HostPort>, frame: &Frame<'_>) -> Option<u32> {
        match &self.rss {
            Some(rss) => rss.hash.hash_frame(frame),
            None => outlet.host.steering()?.flow(frame).map(u32::from),
        }
    }

    /// Delivers one frame sent by another host. Returns `false` if the budget ended within a segmentation: `segments`
    /// holds the remaining segments, and the caller must deliver the same frame again.
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
            self.hand_over_lent(outlet, &meta, &lent.frame);
            return true;
        }
        self.push_segments(outlet, lent, segmentation, segments, work)
    }

    /// Segments a super-frame for a host without the needed offload.
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
            let (len, stride, count) = segment_into_scratch(lent, rest, work);
            outlet.came_in(count);
            for slot in work.scratch.chunks_mut(stride).take(count) {
                let frame = &mut slot[..len];
                let checksum = self.checksum_of_segment(frame, segmentation.kind, outlet.enabled, is_proved);
                outlet.hand_over(self.rss.as_ref(), &RxMeta { checksum, ..meta }, frame);
            }
        }
        rest.frames_left() == 0
    }

    /// Delivers a frame received from a wire. Other ports also receive this frame. The frame's bytes do not change: a
    /// sealed frame is opened in a copy.
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

    /// Segments a host's frame and delivers the segments like frames received from a wire.
    fn push_segments_received(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        lent: &Lent<'_>,
        segments: &mut Option<Segmenter>,
        work: &mut Work<'_>,
    ) -> bool {
        let rest = segments.get_or_insert_with(|| lent.plan.clone());
        while rest.frames_left() > 0 && work.budget.is_left() {
            let (len, stride, count) = segment_into_scratch(lent, rest, work);
            for slot in work.scratch.chunks_mut(stride).take(count) {
                self.push_received(outlet, Frame::received(&mut slot[..len]), work.now_ns);
            }
        }
        rest.frames_left() == 0
    }

    /// Delivers a frame without segmentation.
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
                outlet.came_in(1);
                self.verify(outlet, frame, work.now_ns);
            }
            None => self.hand_over_in_order(outlet, &meta, lent.frame.bytes()),
            Some(_) if self.may_coalesce(lent, outlet.enabled) => {
                lent.frame.write_checksum();
                outlet.came_in(1);
                self.verify(outlet, lent.frame.reborrow(), work.now_ns);
                // The next port gets the frame with its original checksum request.
                lent.frame.make_partial();
            }
            Some(partial) if honours_checksums && !lent.plan.completes_crc() => {
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

    /// Returns whether a frame with a partial checksum can be coalesced, so that completing its checksum is worthwhile.
    /// Some hosts send several segments in succession instead of a super-frame, for example a host with AccECN.
    fn may_coalesce(&self, lent: &Lent<'_>, enabled: Offloads) -> bool {
        // The layout of a frame with a segmentation request ends where the frame ends, not where its IP packet ends.
        let TxMeta { checksum: Some(_), segmentation: None } = lent.frame.request() else { return false };
        let payload_len = lent.frame.layout().map_or(0, FrameLayout::payload_len);
        let is_coalescing = self.next_release_ns().is_some();
        let payload_len_min = if is_coalescing { TCP_SEGMENT_LEN_MIN.into() } else { TRAIN_SEGMENT_LEN_MIN };
        payload_len >= payload_len_min
            && self.coalescer.may_hold(&lent.frame, enabled)
            && has_good_pseudo_header(&lent.frame)
    }

    /// Does the same as [`Deliver::hand_over_in_order`] for a frame whose payload may lie in its sender's memory.
    fn hand_over_lent(&mut self, outlet: &mut Outlet<'_, impl HostPort>, meta: &RxMeta, frame: &Frame<'_>) {
        if frame.shared().is_empty() {
            return self.hand_over_in_order(outlet, meta, frame.bytes());
        }
        self.begin_in_order(outlet, meta);
        outlet.hand_over_lent(self.rss.as_ref(), meta, frame);
    }

    /// Hands a frame over unchanged. Flushes the coalescer first, because the coalescer may hold earlier frames of the
    /// same flow.
    fn hand_over_in_order(&mut self, outlet: &mut Outlet<'_, impl HostPort>, meta: &RxMeta, frame: &[u8]) {
        self.begin_in_order(outlet, meta);
        outlet.hand_over(self.rss.as_ref(), meta, frame);
    }

    /// Flushes the coalescer before a frame bypasses it, and counts the frame as incoming.
    #[inline]
    fn begin_in_order(&mut self, outlet: &mut Outlet<'_, impl HostPort>, meta: &RxMeta) {
        self.release(outlet);
        self.is_unflushed = true;
        outlet.came_in(meta.segments.into());
    }

    /// Returns the checksum mark of a segment whose checksums were just written. With `is_proved`, the checksum is
    /// right; otherwise, this method verifies the checksum. Fragments of a UDP datagram are unmarked, because a
    /// fragment has no checksum.
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

    /// Ends a batch: hands over the expired frames of the coalescer, and publishes all delivered frames to the host.
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

    /// Publishes the delivered frames to the host, and counts an interrupt if delivery interrupts the host.
    pub(crate) fn flush(&mut self, outlet: &mut Outlet<'_, impl HostPort>, now_ns: u64) {
        outlet.host.rx_flush(now_ns);
        outlet.end_batch();
        self.note(outlet);
        if std::mem::take(&mut self.has_taken) && self.interrupts_by_handing_over {
            outlet.stats.interrupts.add(1);
        }
    }

    /// Moves the flag `has_taken` from `outlet` to this stage.
    #[inline]
    pub(crate) fn note(&mut self, outlet: &mut Outlet<'_, impl HostPort>) {
        self.has_taken |= std::mem::take(&mut outlet.has_taken);
    }
}
