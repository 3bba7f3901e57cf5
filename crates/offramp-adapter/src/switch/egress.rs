//! One frame on its way to one port: untouched, completed, cut or joined, as that port takes it.

use super::{Budget, SwitchPort};
use crate::config::frame_len_max;
use crate::port::{HostPort, PortError, Settled};
use crate::stats::{Direction, Loss, QueueStats};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, PACKET_LEN_MAX, Telling};
use offramp_offload::frame::Frame;
use offramp_offload::layout::{TCP_CWR, TCP_FLAGS_OFFSET};
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind};
use offramp_offload::segment::Segmenter;

/// Frames that are cut start at multiples of a cache line.
const FRAME_ALIGN: usize = 64;
/// Bytes into which frames are cut or copied at once: a run stays in the first-level cache's
/// neighbourhood, and the longest frame of the largest MTU fits.
const SCRATCH_LEN: usize = (frame_len_max(crate::config::MTU_MAX) + FRAME_ALIGN).next_multiple_of(FRAME_ALIGN);

/// Where frames are written that do not go as they came. Shared by all ports of a switch.
#[derive(Debug)]
pub(super) struct Scratch(Box<[u8]>);

impl Scratch {
    pub(super) fn new() -> Self {
        Self(vec![0; SCRATCH_LEN].into())
    }
}

/// A frame that its sender lends, and how it would be cut.
pub(super) struct Lent<'a> {
    pub(super) frame: Frame<'a>,
    pub(super) plan: &'a Segmenter,
    /// What the port that it is for calls its flow.
    pub(super) hash: Option<u32>,
}

impl Lent<'_> {
    fn len(&self) -> usize {
        self.frame.bytes().len()
    }

    /// What is said of a frame of which nothing is known.
    fn unknown(&self) -> RxMeta {
        RxMeta { hash: self.hash, ..RxMeta::default() }
    }

    fn frames(&self) -> usize {
        self.plan.frames_left()
    }

    /// The segmentation, if the frame is more than one.
    fn segmentation(&self) -> Option<Segmentation> {
        self.frame.request().segmentation.filter(|_| self.frames() > 1)
    }

    /// Whether the longest of its frames fits.
    fn fits(&self, mtu: usize) -> bool {
        self.plan.next_len() - self.plan.link_header_len() <= mtu
    }

    /// What is told of the super-frame when it goes untouched; none if `enabled` cannot say it.
    ///
    /// A super-frame with CWR is told as one, whether its sender said so or not, and only to a driver that
    /// agreed to ECN (virtio 1.3, 5.1.6.4.1).
    fn untouched(&self, segmentation: Segmentation, enabled: Offloads) -> Option<RxMeta> {
        let partial = self.frame.request().checksum?;
        if self.len() - self.plan.link_header_len() > PACKET_LEN_MAX {
            return None; // Longer than an IP header can say, and than a guest has buffers for.
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
            hash: self.hash,
            ..RxMeta::default()
        })
    }

    /// Bytes of all headers of a super-frame; of a datagram for fragments only those in front of UDP's
    /// are the same everywhere, so nothing is said.
    fn header_len(&self, segmentation: Segmentation) -> u16 {
        match segmentation.kind {
            SegmentationKind::UdpFragments => 0,
            _ => (self.plan.next_len() - usize::from(segmentation.size)) as u16,
        }
    }
}

/// Whether the TCP header, where the checksum begins, has CWR set.
fn carries_cwr(frame: &[u8], partial: PartialChecksum) -> bool {
    frame.get(usize::from(partial.start) + TCP_FLAGS_OFFSET).is_some_and(|flags| flags & TCP_CWR != 0)
}

/// The way out to one port.
#[derive(Debug)]
pub(super) struct Egress {
    coalescer: Coalescer,
    telling: Telling,
    hold_ns: u64,
    /// Something was given since the last flush.
    is_unflushed: bool,
    /// Frames that the port was told of so far.
    told_frames: u64,
    /// The port's interrupts are apart from handing over, and are not counted here.
    is_interrupted_apart: bool,
}

/// A port that is given to, and what it takes at this moment.
pub(super) struct Outlet<'a, P> {
    host: &'a mut P,
    shared: &'a SwitchPort,
    enabled: Offloads,
    mtu: usize,
}

impl<'a, P: HostPort> Outlet<'a, P> {
    pub(super) fn new(host: &'a mut P, shared: &'a SwitchPort) -> Self {
        let enabled = Offloads::offer(Offloads::RX, host.accepts(), shared.offloads());
        Self { host, shared, enabled, mtu: shared.mtu() }
    }

    fn stats(&self) -> &'a Direction {
        &self.shared.stats().receive
    }

    fn give(&mut self, meta: &RxMeta, frame: &[u8]) {
        let outcome = self.host.rx_deliver(meta, frame);
        count(self.shared, &Settled { meta: *meta, len: frame.len(), outcome });
    }

    /// Shows the host what it was given.
    fn flush(&mut self, now_ns: u64) {
        let shared = self.shared;
        self.host.end_batch(now_ns, |settled| count(shared, &settled));
    }

    fn lose_too_long(&self) {
        self.stats().frames_in.add(1);
        self.stats().lose(Loss::TooLong, 1);
    }
}

/// What a turn works with.
pub(super) struct Work<'a> {
    pub(super) scratch: &'a mut Scratch,
    pub(super) budget: &'a mut Budget,
    pub(super) now_ns: u64,
}

/// Counts what became of a frame at a port, which may be gone.
fn count(port: &SwitchPort, settled: &Settled) {
    port.stats().receive.given(&settled.meta, settled.len, settled.outcome);
    if let Err(PortError::Closed(errno)) = settled.outcome {
        port.close(errno);
    }
}

impl Egress {
    pub(super) fn new(config: &CoalesceConfig, honours_data_valid: bool, is_interrupted_apart: bool) -> Self {
        let telling = if honours_data_valid { Telling::Verdict } else { Telling::PartialSum };
        Self {
            coalescer: Coalescer::new(CoalesceConfig { telling, ..*config }),
            telling,
            hold_ns: config.hold_ns,
            is_unflushed: false,
            told_frames: 0,
            is_interrupted_apart,
        }
    }

    /// Frames that are held to be joined.
    pub(super) fn held(&self) -> usize {
        self.coalescer.held()
    }

    /// When held frames are due, if any are.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.coalescer.next_deadline_ns()
    }

    /// Nothing was given since the last batch ended, and nothing is held.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_unflushed && self.next_deadline_ns().is_none()
    }

    /// Ends a batch.
    pub(super) fn end_batch(&mut self, mut outlet: Outlet<'_, impl HostPort>, now_ns: u64) {
        if self.hold_ns == 0 {
            self.coalescer.flush(&mut |meta, frame| outlet.give(meta, frame));
        } else if self.next_deadline_ns().is_some_and(|at| at <= now_ns) {
            self.is_unflushed = true;
            self.coalescer.flush_expired(now_ns, &mut |meta, frame| outlet.give(meta, frame));
        }
        if std::mem::take(&mut self.is_unflushed) {
            outlet.flush(now_ns);
            self.count_interrupt(outlet.stats());
        }
    }

    /// Hands over everything that is held, whatever its age.
    pub(super) fn release(&mut self, mut outlet: Outlet<'_, impl HostPort>, now_ns: u64) {
        self.coalescer.flush(&mut |meta, frame| outlet.give(meta, frame));
        outlet.flush(now_ns);
        self.count_interrupt(outlet.stats());
        self.is_unflushed = false;
    }

    /// The port was told of what it was given, if that was anything.
    fn count_interrupt(&mut self, stats: &Direction) {
        let given = stats.host_frames.get();
        if given > std::mem::replace(&mut self.told_frames, given) && !self.is_interrupted_apart {
            stats.interrupts.add(1);
        }
    }

    /// Frames were taken from the port.
    pub(super) fn count_taken(&self, stats: &QueueStats) {
        if !self.is_interrupted_apart {
            stats.transmit.interrupts.add(1);
        }
    }

    /// Brings one frame to the port, and whether that is done. It is not when the budget ended in the
    /// middle of a cut, of which `cut` has the rest; the same frame is then to be brought again.
    pub(super) fn deliver(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        lent: &mut Lent<'_>,
        cut: &mut Option<Segmenter>,
        work: &mut Work<'_>,
    ) -> bool {
        self.is_unflushed = true;
        let Some(segmentation) = lent.segmentation() else {
            work.budget.spend(1, lent.len());
            self.deliver_frame(outlet, lent, work);
            return true;
        };
        if cut.is_none()
            && lent.fits(outlet.mtu)
            && let Some(meta) = lent.untouched(segmentation, outlet.enabled)
        {
            work.budget.spend(1, lent.len());
            self.give_behind(outlet, &meta, lent.frame.bytes());
            return true;
        }
        let rest = cut.get_or_insert_with(|| lent.plan.clone());
        self.coalescer.flush(&mut |meta, frame| outlet.give(meta, frame));
        while rest.frames_left() > 0 && work.budget.is_left() {
            if rest.next_len() - rest.link_header_len() > outlet.mtu {
                work.budget.spend(1, 0);
                rest.skip_next();
                outlet.lose_too_long();
            } else {
                self.cut_run(outlet, lent, segmentation, rest, work);
            }
        }
        rest.frames_left() == 0
    }

    /// Brings a frame that is one already.
    fn deliver_frame(&mut self, outlet: &mut Outlet<'_, impl HostPort>, lent: &mut Lent<'_>, work: &mut Work<'_>) {
        if !lent.fits(outlet.mtu) {
            return outlet.lose_too_long();
        }
        let is_told = outlet.enabled.contains(Offloads::RX_CHECKSUM);
        match lent.frame.request().checksum {
            None if is_told => self.verify(outlet, lent, work),
            None => self.give_behind(outlet, &lent.unknown(), lent.frame.bytes()),
            Some(partial) if is_told => {
                let meta = RxMeta { checksum: ChecksumState::Partial(partial), ..lent.unknown() };
                self.give_behind(outlet, &meta, lent.frame.bytes());
            }
            Some(_) => {
                let scratch = &mut work.scratch.0;
                let len = lent.plan.clone().write_next(&lent.frame, scratch);
                self.give_behind(outlet, &lent.unknown(), &scratch[..len]);
            }
        }
    }

    /// Gives a frame as it is, behind everything that is held: it may be of any flow.
    fn give_behind(&mut self, outlet: &mut Outlet<'_, impl HostPort>, meta: &RxMeta, frame: &[u8]) {
        self.coalescer.flush(&mut |meta, frame| outlet.give(meta, frame));
        outlet.stats().frames_in.add(u64::from(meta.segments));
        outlet.give(meta, frame);
    }

    /// Verifies a frame of which nothing is known, and joins it if that is on.
    fn verify(&mut self, outlet: &mut Outlet<'_, impl HostPort>, lent: &mut Lent<'_>, work: &mut Work<'_>) {
        let hash = lent.hash;
        let frame = lent.frame.unsegmented();
        let (stats, enabled) = (outlet.stats(), outlet.enabled);
        stats.frames_in.add(1);
        stats.unparsed.add(u64::from(frame.layout().is_err()));
        self.coalescer.push(frame, enabled, hash, work.now_ns, &mut |meta, frame| outlet.give(meta, frame));
    }

    /// Writes and gives as many of the next frames as are of one length and fit into the scratch.
    fn cut_run(
        &mut self,
        outlet: &mut Outlet<'_, impl HostPort>,
        lent: &Lent<'_>,
        segmentation: Segmentation,
        rest: &mut Segmenter,
        work: &mut Work<'_>,
    ) {
        let len = rest.next_len();
        let stride = len.next_multiple_of(FRAME_ALIGN);
        let slots = (work.scratch.0.len() / stride).min(work.budget.frames.max(1));
        let out = &mut work.scratch.0[..slots * stride];
        let count = rest.write_run(&lent.frame, out, stride);
        work.budget.spend(count, count * len);
        outlet.stats().frames_in.add(count as u64);
        for slot in out.chunks_mut(stride).take(count) {
            let frame = &mut slot[..len];
            let checksum = self.checksum_of_segment(frame, segmentation.kind, outlet.enabled);
            let meta = RxMeta { checksum, header_len: lent.header_len(segmentation), ..lent.unknown() };
            outlet.give(&meta, frame);
        }
    }

    /// How a segment whose checksums were just written is marked. Only fragments have none of their own.
    fn checksum_of_segment(&self, segment: &mut [u8], kind: SegmentationKind, enabled: Offloads) -> ChecksumState {
        if !enabled.contains(Offloads::RX_CHECKSUM) || kind == SegmentationKind::UdpFragments {
            return ChecksumState::Unknown;
        }
        match self.telling {
            Telling::Verdict => ChecksumState::Good,
            Telling::PartialSum => {
                Frame::received(segment).make_partial().map_or(ChecksumState::Unknown, ChecksumState::Partial)
            }
        }
    }
}
