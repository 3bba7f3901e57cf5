//! The stages that fetch one host's frames, plan the frames, and pass them to the route.
//!
//! If the route has no room for a whole super-frame, the segments that fit are sent, and the super-frame stays in the
//! host's buffer. The host sends no further frame until the route has room, so no frame is lost for lack of room on the
//! wire.

use super::budget::{Budget, Progress};
use super::control::PortControl;
use super::plan::{Plan, Planned};
use crate::port::{HostPort, Loan, PortError};
use crate::stats::{Direction, Loss, QueueStats};
use crate::vlan::{FrameVlan, PortVlans};
use offramp_offload::frame::Frame;
use offramp_offload::segment::Segmenter;
use offramp_offload::vlan::TagChange;
use std::ops::Range;

/// The destination of planned frames: the wire, or the other ports of a switch.
pub(crate) trait Route<H: HostPort> {
    /// Returns the number of frames that can be sent now. A result of 0 ends the turn.
    fn room(&mut self, budget: &mut Budget, now_ns: u64) -> usize;

    /// Sends a frame without offload requests, without a plan. Returns the length of the sent frame; `None` if the
    /// frame was not sent and must be planned.
    #[inline]
    fn put_whole(&mut self, frame: &[u8], source: (&Plan, &PortVlans), now_ns: u64) -> Option<usize> {
        let _ = (frame, source, now_ns);
        None
    }

    /// Returns the change to the VLAN tag of the host's frame. The tag is changed before the frame is planned.
    fn change(&self, vlan: FrameVlan) -> TagChange;

    /// Returns the destination ports of a host's frame; `frames` is the number of frames after segmentation.
    ///
    /// # Errors
    /// Returns the reason for losing the frame.
    fn find(&mut self, frame: &[u8], vlan: FrameVlan, frames: usize, now_ns: u64) -> Result<Range<usize>, Loss>;

    /// Sends the pending frame to its destinations, as far as the route has room.
    #[inline]
    fn bring(&mut self, source: &mut Source, host: &mut H, stats: &Direction, budget: &mut Budget, now_ns: u64)
    where
        Self: Sized,
    {
        source.write(host, self, stats, budget, now_ns);
    }

    /// Returns the maximum number of IP bytes in a frame; `usize::MAX` if the destination ports check the length.
    fn mtu(&self) -> usize;

    /// Lends buffers for the next frames, up to `count` of `len` bytes each. Returns `None` if the route has no room,
    /// or if the frame is too long.
    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>>;

    /// Sends the frames in the first `count` lent buffers. Returns the number of frames that reached a destination.
    fn put(&mut self, to: &Destination, len: usize, count: usize, now_ns: u64) -> usize;

    /// Sends a keepalive. Returns whether there was room for the keepalive.
    fn put_keepalive(&mut self, frame: &[u8], vlans: &PortVlans, now_ns: u64) -> bool;
}

/// The destination of a frame.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) vlan: FrameVlan,
    /// Range of the destination ports that have not yet received the frame; unused on a wire.
    pub(crate) ports: Range<usize>,
}

/// A fetched and planned frame, not yet fully sent.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) planned: Planned,
    /// Bytes of the host's frame.
    pub(crate) frame_len: usize,
    pub(crate) to: Destination,
    /// Number of resulting frames handed to a port and not yet counted; the maximum over the ports.
    pub(crate) frames_handed: usize,
    /// The remaining segments for the next port, if a segmentation has begun.
    pub(crate) segments: Option<Segmenter>,
}

impl Pending {
    /// Moves on to the next port, even if the current port was handed only a part of the frame.
    pub(crate) fn advance(&mut self) {
        self.note_segments();
        self.to.ports.start += 1;
    }

    /// Counts the written segments as handed over, and discards the remaining segments.
    fn note_segments(&mut self) {
        if let Some(rest) = self.segments.take() {
            self.frames_handed = self.frames_handed.max(self.planned.frames_left() - rest.frames_left());
        }
    }
}

/// Counts of one batch.
#[derive(Default)]
struct Batch {
    /// Number of frames and super-frames fetched from the host, and the bytes of the frames that were sent.
    host_frames: usize,
    host_bytes: usize,
    /// Number of frames sent unchanged, and total bytes of these frames; both are added to the counters once per batch.
    whole_frames: usize,
    whole_bytes: usize,
}

impl Batch {
    fn count(&self, is_interrupt: bool, queues: &[QueueStats]) {
        let stats = &queues[0].transmit;
        // Without sent frames, the counters must not be written, because another worker may own the cache line of the
        // counters.
        if self.whole_frames > 0 {
            for counter in [&stats.host_frames, &stats.frames_in, &stats.frames_out] {
                counter.add(self.whole_frames as u64);
            }
            stats.bytes_out.add(self.whole_bytes as u64);
        }
        if self.host_frames > 0 {
            for queue in queues {
                queue.transmit.end_batch();
            }
            stats.interrupts.add(u64::from(is_interrupt));
        }
    }
}

/// The stages that fetch and plan the frames of one host.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) plan: Plan,
    pub(crate) vlans: PortVlans,
    pub(crate) pending: Option<Pending>,
    /// The VLAN tag change of the frame fetched last.
    change: TagChange,
    /// True if no further frame is fetched from the host. Frames already fetched are still sent.
    pub(crate) is_draining: bool,
    /// True if a batch of fetched frames counts as an interrupt for transmit completions, because fetching frees the
    /// host's buffers.
    interrupts_by_taking: bool,
    /// Bytes fetched from the host in the last turn.
    pub(crate) sent_bytes: usize,
    /// True if the host was given an ICMP message, and the message is not yet flushed. The flush follows after the
    /// batch, because a flush discards the frames that the coalescer holds open in the host's memory.
    pub(crate) has_answered: bool,
}

impl Source {
    pub(crate) fn new(control: &PortControl, host: &mut impl HostPort) -> Self {
        Self {
            plan: Plan::new(control),
            vlans: control.security().vlans.clone(),
            pending: None,
            change: TagChange::Keep,
            is_draining: false,
            interrupts_by_taking: host.interrupts(0).is_none(),
            sent_bytes: 0,
            has_answered: false,
        }
    }

    /// Returns the number of frames waiting for room.
    pub(crate) fn held(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| pending.planned.frames_left())
    }

    /// Applies changed settings, and advances the time of the limit and of the associations. Associations change only
    /// between two super-frames.
    #[inline]
    pub(crate) fn take_over(&mut self, control: &PortControl, mtu: usize, is_shared: bool, now_ns: u64) {
        let pending = self.pending.as_ref().map(|pending| &pending.planned);
        self.plan.take_over(control, pending, mtu, is_shared, now_ns);
    }

    /// Moves frames until the host has no frame or is at its transmit limit, the route has no room, or the budget is
    /// spent.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone.
    pub(crate) fn poll<H: HostPort>(
        &mut self,
        host: &mut H,
        route: &mut impl Route<H>,
        queues: &[QueueStats],
        budget: &mut Budget,
        now_ns: u64,
    ) -> Result<Progress, PortError> {
        if !self.plan.is_link_on {
            self.conclude(sent_by(host, queues), Loss::LinkOff);
        }
        let Self { plan, vlans, .. } = self;
        plan.send_keepalives(&queues[0].transmit, now_ns, |frame| route.put_keepalive(frame, vlans, now_ns));
        let mut batch = Batch::default();
        let outcome = self.move_batch(host, route, &mut batch, queues, budget, now_ns);
        batch.count(self.interrupts_by_taking, queues);
        self.sent_bytes = batch.host_bytes;
        outcome
    }

    #[inline]
    fn move_batch<H: HostPort>(
        &mut self,
        host: &mut H,
        route: &mut impl Route<H>,
        batch: &mut Batch,
        queues: &[QueueStats],
        budget: &mut Budget,
        now_ns: u64,
    ) -> Result<Progress, PortError> {
        let mut moved = false;
        while budget.is_left() && route.room(budget, now_ns) > 0 {
            let mut cost_bytes = 0;
            if self.pending.is_none() {
                if self.is_draining {
                    return Ok(Progress { moved, more: false });
                }
                let has_frame = self.fetch(host, route, batch, queues, budget, now_ns)?;
                cost_bytes = host.tx_cost_bytes();
                if !has_frame {
                    budget.spend(0, cost_bytes);
                    return Ok(Progress { moved, more: false });
                }
            }
            moved = true;
            if self.pending.is_some() {
                let stats = sent_by(host, queues);
                route.bring(self, host, stats, budget, now_ns);
            }
            budget.spend(0, cost_bytes);
        }
        let more = !budget.is_left();
        Ok(Progress { moved: moved || more, more })
    }

    /// Fetches the next frame. Sends the frame at once if the frame needs no change. Returns `true` if a frame is
    /// pending, was sent, or was lost and counted. Returns `false` if the host has no frame, or is at its transmit
    /// limit.
    #[inline]
    fn fetch<H: HostPort>(
        &mut self,
        host: &mut H,
        route: &mut impl Route<H>,
        batch: &mut Batch,
        queues: &[QueueStats],
        budget: &mut Budget,
        now_ns: u64,
    ) -> Result<bool, PortError> {
        if !self.plan.meter.is_open(now_ns) {
            host.tx_hold();
            return Ok(false);
        }
        match host.tx_next(now_ns) {
            Ok(true) => batch.host_frames += 1,
            Err(error @ (PortError::Refused(_) | PortError::Lost(_))) => {
                let reason = if let PortError::Lost(reason) = error { reason } else { Loss::BadRequest };
                self.plan.meter.spend_refused();
                lose(reason, 1, sent_by(host, queues), budget);
                return Ok(true);
            }
            Err(error @ PortError::Closed(_)) => return Err(error),
            Ok(false) | Err(PortError::Full | PortError::Filtered) => return Ok(false),
        }
        let source = (&self.plan, &self.vlans);
        if let Some(len) = host.tx_unasked().and_then(|frame| route.put_whole(frame, source, now_ns)) {
            self.plan.meter.spend(1, len);
            budget.spend_frame(len);
            batch.whole_frames += 1;
            batch.whole_bytes += len;
            batch.host_bytes += len;
            return Ok(true);
        }
        let stats = sent_by(host, queues);
        stats.host_frames.add(1);
        match self.admit(host, route, stats, now_ns) {
            Ok(pending) => {
                stats.frames_in.add(pending.planned.frames_left() as u64);
                batch.host_bytes += pending.frame_len;
                self.pending = Some(pending);
            }
            Err((reason, frames)) => lose(reason, frames, stats, budget),
        }
        if let Some(outcome) = self.plan.answer(host, self.change != TagChange::Keep) {
            self.has_answered = true;
            if let Err(error @ PortError::Closed(_)) = outcome {
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Plans and routes the fetched frame. If the frame is lost, the error holds the reason and the number of lost
    /// frames.
    #[inline]
    fn admit<H: HostPort>(
        &mut self,
        host: &mut H,
        route: &mut impl Route<H>,
        stats: &Direction,
        now_ns: u64,
    ) -> Result<Pending, (Loss, usize)> {
        let Self { plan, vlans, change, .. } = self;
        // A cipher reads the payload more than once, and so do several destinations.
        let is_read_once = !plan.seals();
        let mut frame = if is_read_once { host.tx_lend() } else { host.tx_frame() };
        let vlan = vlans.of_sent(frame.bytes()).map_err(|reason| {
            plan.meter.spend_frame(&frame, 1);
            (reason, 1)
        })?;
        *change = route.change(vlan);
        if *change != TagChange::Keep {
            frame = lent(host, *change, is_read_once).ok_or((Loss::BadRequest, 1))?;
        }
        let planned = plan.plan(&mut frame, stats, now_ns).map_err(|reason| (reason, 1))?;
        let frames = planned.frames_left();
        let ports = route.find(frame.bytes(), vlan, frames, now_ns).map_err(|reason| (reason, frames))?;
        let (to, frame_len) = (Destination { vlan, ports }, frame.len());
        // A flood goes to all ports except the sender's port, so among two ports it has one destination.
        let has_one_destination = to.ports.len() <= 2;
        if !frame.shared().is_empty() && (!has_one_destination || frames == 1) {
            host.tx_frame();
        }
        Ok(Pending { planned, frame_len, to, frames_handed: 0, segments: None })
    }

    /// Writes frames of the pending plan into memory lent by the route, while the route has room. If the association of
    /// sealed frames ends, the remaining frames are lost.
    pub(crate) fn write<H: HostPort>(
        &mut self,
        host: &mut H,
        route: &mut impl Route<H>,
        stats: &Direction,
        budget: &mut Budget,
        now_ns: u64,
    ) {
        let Self { plan, pending: slot, change, .. } = self;
        let Some(pending) = &mut *slot else { return };
        let Some(mut frame) = lent(host, *change, true) else { return self.conclude(stats, Loss::BadRequest) };
        let (mut frames, mut bytes) = (0, 0);
        let is_over = loop {
            if pending.planned.frames_left() == 0 {
                break true;
            }
            let room = route.room(budget, now_ns);
            if room == 0 {
                break false;
            }
            match (send_run(plan, pending, &mut frame, route, room, now_ns), &mut pending.planned) {
                (Ok((len, count, handed)), _) => {
                    budget.spend(count, count * len);
                    frames += handed;
                    bytes += handed * len;
                    if handed < count {
                        stats.lose(Loss::NoDestination, count - handed);
                    }
                }
                (Err(reason), Planned::Clear(segments)) => {
                    segments.skip_next();
                    budget.spend_frame(0);
                    stats.lose(reason, 1);
                }
                (Err(reason), Planned::Sealed(rest, _)) => {
                    budget.spend_frame(0);
                    stats.lose(reason, rest.frames_left());
                    break true;
                }
            }
        };
        if is_over {
            *slot = None;
        }
        stats.frames_out.add(frames as u64);
        stats.bytes_out.add(bytes as u64);
    }

    /// Finishes the pending frame. The resulting frames that no port received are counted as lost for `reason`.
    pub(crate) fn conclude(&mut self, stats: &Direction, reason: Loss) {
        let Some(mut pending) = self.pending.take() else { return };
        pending.note_segments();
        let handed = pending.frames_handed;
        stats.lose(reason, pending.planned.frames_left() - handed);
        stats.frames_out.add(handed as u64);
        if handed > 0 {
            stats.bytes_out.add(pending.frame_len as u64);
        }
    }
}

/// Returns the counters of the queue that sent the last fetched frame.
#[inline]
fn sent_by<'a>(host: &impl HostPort, queues: &'a [QueueStats]) -> &'a Direction {
    &QueueStats::of(queues, || host.tx_queue()).transmit
}

/// Counts frames that are lost before any of the frames is handed to a destination.
fn lose(reason: Loss, frames: usize, stats: &Direction, budget: &mut Budget) {
    budget.spend_frame(0);
    stats.frames_in.add(frames as u64);
    stats.lose(reason, frames);
}

/// Lends the last fetched frame, with its VLAN tag changed. With `is_read_once`, the payload may lie in the host's
/// memory.
#[inline]
pub(crate) fn lent(host: &mut impl HostPort, change: TagChange, is_read_once: bool) -> Option<Frame<'_>> {
    match (change, is_read_once) {
        (TagChange::Keep, true) => Some(host.tx_lend()),
        (TagChange::Keep, false) => Some(host.tx_frame()),
        (change, true) => host.tx_lend_with_tag(change),
        (change, false) => host.tx_frame_with_tag(change),
    }
}

/// Sends the next frames of one length, at most `room` frames. Returns the length of the frames, the number of sent
/// frames, and the number of frames that reached a destination.
#[inline]
fn send_run<H: HostPort>(
    plan: &mut Plan,
    pending: &mut Pending,
    frame: &mut Frame<'_>,
    route: &mut impl Route<H>,
    room: usize,
    now_ns: u64,
) -> Result<(usize, usize, usize), Loss> {
    let Pending { planned, to, .. } = pending;
    let (len, count) = plan.next_run(frame, planned, route.mtu())?;
    let Some(loan) = route.lend(len, room.min(count)) else {
        // The route has room but lends no buffer: the frame is too long.
        let mut unlimited = Budget::UNLIMITED;
        return if route.room(&mut unlimited, now_ns) > 0 { Err(Loss::TooLong) } else { Ok((len, 0, 0)) };
    };
    let count = plan.write_run(frame, planned, loan.bytes, loan.stride, now_ns)?;
    Ok((len, count, route.put(to, len, count, now_ns)))
}
