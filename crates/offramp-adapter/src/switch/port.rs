//! One port of a switch: the stages of its pipeline, its queue and its host.

use super::control::SwitchPort;
use crate::limit::{TokenBucket, wire_bytes};
use crate::pipeline::budget::{Budget, Scratch, Work};
use crate::pipeline::deliver::Deliver;
use crate::pipeline::lent::Lent;
use crate::pipeline::outlet::Outlet;
use crate::pipeline::sink::HostSink;
use crate::pipeline::source::Source;
use crate::port::{HostPort, PortError};
use crate::stats::Loss;
use crate::vlan::FrameVlan;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::segment::Segmenter;
use offramp_offload::vlan::TagChange;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Port<P> {
    pub(super) host: P,
    pub(super) shared: Arc<SwitchPort>,
    pub(super) source: Source,
    pub(super) sink: HostSink,
    /// Receive offloads accepted by the host and allowed by the user.
    pub(super) enabled: Offloads,
    pub(super) floods: Option<TokenBucket>,
    /// Number of bytes by which earlier turns exceeded their budget. Later turns are shortened by this number.
    pub(super) debt_bytes: usize,
}

impl<P: HostPort> Port<P> {
    pub(super) fn new(mut host: P, shared: Arc<SwitchPort>, floods: Option<TokenBucket>) -> Self {
        Self {
            source: Source::new(&shared, &mut host),
            sink: HostSink::new(&shared.config.coalesce, shared.config.queues, &shared, &mut host),
            host,
            shared,
            enabled: Offloads::empty(),
            floods,
            debt_bytes: 0,
        }
    }

    /// Applies changed settings.
    pub(super) fn begin_batch(&mut self, now_ns: u64) {
        self.note_offloads();
        let Self { shared, source, sink, .. } = self;
        sink.take_over(shared, &shared.stats().receive, now_ns);
        source.take_over(shared, shared.mtu(), false, now_ns);
    }

    /// Reads the host's accepted offloads. A guest may negotiate again while the switch fetches from its port, so this
    /// method also runs after each turn. Frames of other ports are delivered only outside the port's own turn.
    pub(super) fn note_offloads(&mut self) {
        self.enabled = Offloads::offer(Offloads::RX, self.host.accepts(), self.shared.offloads());
    }

    /// Runs `work` with the host as destination, and closes the port if the host is gone.
    pub(super) fn with_outlet<R>(&mut self, work: impl FnOnce(&mut Deliver, &mut Outlet<'_, P>) -> R) -> R {
        let mut outlet = outlet(&mut self.host, &self.shared, self.enabled);
        let done = work(&mut self.sink.deliver, &mut outlet);
        self.sink.deliver.note(&mut outlet);
        let closed = outlet.closed;
        self.close(closed);
        done
    }

    /// Delivers one frame of another port, or queues it. Returns `false` if the budget ended before the last segment:
    /// the caller must push the same frame again.
    pub(super) fn push(&mut self, mut lent: Lent<'_>, segments: &mut Option<Segmenter>, work: &mut Work<'_>) -> bool {
        // The remaining segments of a super-frame follow the delivered segments without waiting.
        if segments.is_none() {
            if !self.takes_at_once(work.now_ns) {
                work.budget.spend(1, lent.len());
                self.queue(&lent.frame, lent.frames(), work);
                return true;
            }
            self.sink.deliver.meter.spend_frame(&lent.frame, lent.frames());
        }
        self.with_outlet(|deliver, outlet| deliver.push(outlet, &mut lent, segments, work))
    }

    /// Returns the change of a frame's tag for the host.
    ///
    /// # Errors
    /// Returns the loss reason if the frame is not delivered to the host.
    #[inline]
    pub(super) fn change_for(&self, vlan: FrameVlan) -> Result<TagChange, Loss> {
        if self.source.plan.is_link_on { self.source.vlans.change_for(vlan) } else { Err(Loss::LinkOff) }
    }

    /// Counts frames lost before delivery to the host.
    pub(super) fn lose(&self, reason: Loss, frames: usize, work: &mut Work<'_>) {
        work.budget.spend(1, 0);
        let stats = &self.shared.stats().receive;
        stats.frames_in.add(frames as u64);
        stats.lose(reason, frames);
    }

    /// Delivers one frame received from a wire, which other ports may also receive.
    pub(super) fn push_received(&mut self, frame: &mut Frame<'_>, work: &mut Work<'_>) {
        if !self.takes_at_once(work.now_ns) {
            return self.queue(frame, 1, work);
        }
        self.sink.deliver.meter.spend_frame(frame, 1);
        self.with_outlet(|deliver, outlet| deliver.push_shared(outlet, frame, work));
    }

    /// Returns whether a frame can be delivered without waiting for moderation or the receive limit.
    #[inline]
    fn takes_at_once(&mut self, now_ns: u64) -> bool {
        self.sink.hold.is_passed_by() && self.sink.deliver.meter.is_open(now_ns)
    }

    /// Queues a frame of `frames` segments, or loses the frame if the receive limit has filled the queue.
    fn queue(&mut self, frame: &Frame<'_>, frames: usize, work: &mut Work<'_>) {
        if self.is_queue_full() {
            self.release_held(false, work.scratch, work.now_ns, &|| work.now_ns);
        }
        if self.is_queue_full() {
            self.lose_to_limit(frame, frames);
        } else {
            self.sink.hold.push(frame, work.now_ns);
        }
    }

    fn lose_to_limit(&mut self, frame: &Frame<'_>, frames: usize) {
        self.with_outlet(|_, outlet| outlet.lose(Loss::RateLimit, frames));
        self.host.rx_lost_to_limit(frame, frames, wire_bytes(frame, frames));
    }

    /// Returns whether the receive limit leaves no room for a further frame in the queue. Without a limit, the queue is
    /// emptied at the end of the batch.
    fn is_queue_full(&self) -> bool {
        let HostSink { deliver: Deliver { meter, .. }, hold, .. } = &self.sink;
        meter.is_limited() && (hold.is_full() || meter.delays_too_long(hold.queued(), hold.queued_bytes()))
    }

    /// Hands over the queued frames that are due, within the receive limit. With `is_forced`, hands over all queued
    /// frames.
    fn release_held(&mut self, is_forced: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        while self.sink.hold.is_due(now_ns, is_forced || self.is_queue_full())
            && (is_forced || self.sink.deliver.meter.is_open(now_ns))
        {
            self.release_due(is_forced, scratch, now_ns, clock);
        }
    }

    fn release_due(&mut self, is_forced: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        let Self { host, shared, source: Source { plan, .. }, sink: HostSink { deliver, hold, .. }, enabled, .. } =
            self;
        let is_link_on = plan.is_link_on;
        let mut outlet = outlet(host, shared, *enabled);
        let mut budget = Budget::UNLIMITED;
        let mut work = Work { scratch, budget: &mut budget, now_ns };
        hold.release(&shared.stats().receive, now_ns, clock, |frame| {
            if !is_forced && !deliver.meter.is_open(now_ns) {
                return false;
            }
            // The frame was planned before it was queued, and the same bytes give the same plan.
            if let Ok(plan) = plan.in_the_clear(&frame) {
                if !is_link_on {
                    outlet.lose(Loss::LinkOff, plan.frames_left());
                    return true;
                }
                deliver.meter.spend_frame(&frame, plan.frames_left());
                deliver.push(&mut outlet, &mut Lent { frame, plan: &plan }, &mut None, &mut work);
            }
            true
        });
        deliver.note(&mut outlet);
        let closed = outlet.closed;
        self.close(closed);
    }

    /// Ends a batch: publishes the delivered frames to the host and sends its due interrupts.
    pub(super) fn end_batch(
        &mut self,
        is_draining: bool,
        scratch: &mut Scratch,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) {
        self.release_held(is_draining, scratch, now_ns, clock);
        if !self.sink.deliver.is_idle() {
            self.with_outlet(|deliver, outlet| deliver.end_batch(outlet, now_ns));
        }
        self.sink.interrupt(&mut self.host, &self.shared, self.shared.queues(), now_ns);
    }
}

impl<P> Port<P> {
    pub(super) fn is_open(&self) -> bool {
        self.shared.closed().is_none()
    }

    /// Closes the port if the error is [`PortError::Closed`].
    pub(super) fn close(&self, error: Option<PortError>) {
        if let Some(PortError::Closed(errno)) = error {
            self.shared.close(errno);
        }
    }

    /// Returns whether frames of this VLAN from the port `from` reach this port.
    pub(super) fn is_reached(&self, from: &SwitchPort, vlan: FrameVlan) -> bool {
        self.is_in(vlan) && !(from.is_isolated() && self.shared.is_isolated())
    }

    /// Returns whether the port is open and in this VLAN.
    pub(super) fn is_in(&self, vlan: FrameVlan) -> bool {
        self.is_open() && self.source.vlans.takes(vlan)
    }

    /// Returns the next deadline if no further frame arrives.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        let held_ns = self.sink.next_deadline_ns(self.sink.hold.next_due_ns());
        held_ns.into_iter().chain(self.source.plan.next_deadline_ns()).min()
    }
}

fn outlet<'a, P: HostPort>(host: &'a mut P, shared: &'a SwitchPort, enabled: Offloads) -> Outlet<'a, P> {
    Outlet::new(host, shared.queues(), enabled, shared.mtu())
}
