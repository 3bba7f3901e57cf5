//! One port of a switch: the stages of its pipeline, its queue and its host.

use super::control::SwitchPort;
use super::pending::Pending;
use crate::limit::{TokenBucket, wire_bytes};
use crate::pipeline::backlog::Backlog;
use crate::pipeline::deliver::{Budget, Deliver, Lent, Outlet, Scratch, Work};
use crate::pipeline::plan::Plan;
use crate::port::{HostPort, PortError};
use crate::stats::Loss;
use crate::vlan::{FrameVlan, PortVlans};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::segment::Segmenter;
use offramp_offload::vlan::TagChange;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Port<P> {
    pub(super) host: P,
    pub(super) shared: Arc<SwitchPort>,
    pub(super) vlans: PortVlans,
    pub(super) plan: Plan,
    pub(super) deliver: Deliver,
    /// Receive offloads accepted by the host and allowed by the user.
    pub(super) enabled: Offloads,
    pub(super) backlog: Backlog,
    pub(super) floods: Option<TokenBucket>,
    /// Excess bytes of its last turns, not yet paid.
    pub(super) debt_bytes: usize,
    pub(super) pending: Option<Pending>,
    /// The last moderation change taken over.
    pub(super) moderation_changes: u32,
    /// Set for a host that sees frames before an interrupt.
    pub(super) next_interrupt_ns: Option<u64>,
}

impl<P: HostPort> Port<P> {
    /// Takes over changed settings.
    pub(super) fn begin_batch(&mut self, now_ns: u64) {
        self.note_offloads();
        let Self { shared, plan, deliver, backlog, pending, .. } = self;
        deliver.take_over(shared, now_ns);
        let planned = pending.as_ref().map(|pending| &pending.planned);
        plan.take_over(shared, planned, shared.mtu(), false, now_ns);
        if deliver.interrupts_by_handing_over
            && let Some(moderation) = shared.changed_moderation(&mut self.moderation_changes)
        {
            backlog.set(moderation, &shared.stats().receive);
        }
        if !self.plan.is_link_on {
            conclude(self, Loss::LinkOff);
        }
    }

    /// Notes the host's accepted offloads. A guest may negotiate anew while its port is fetched from, thus once more
    /// after each turn; other frames reach the port outside its turn only.
    pub(super) fn note_offloads(&mut self) {
        self.enabled = Offloads::offer(Offloads::RX, self.host.accepts(), self.shared.offloads());
    }

    /// Hands frames over by `work`, and notes a closed host.
    pub(super) fn with_outlet<R>(&mut self, work: impl FnOnce(&mut Deliver, &mut Outlet<'_, P>) -> R) -> R {
        let mut outlet = outlet(&mut self.host, &self.shared, self.enabled);
        let done = work(&mut self.deliver, &mut outlet);
        self.deliver.note(&mut outlet);
        close(&self.shared, outlet.closed);
        done
    }

    /// Brings one frame of another port, or queues it until it may pass. Returns `true` when done.
    pub(super) fn push(&mut self, mut lent: Lent<'_>, segments: &mut Option<Segmenter>, work: &mut Work<'_>) -> bool {
        // The rest of a super-frame follows its delivered part.
        if segments.is_none() {
            if !self.takes_at_once(work.now_ns) {
                work.budget.spend(1, lent.frame.bytes().len());
                self.queue(&lent.frame, lent.frames(), work);
                return true;
            }
            self.deliver.meter.spend_frame(&lent.frame, lent.frames());
        }
        self.with_outlet(|deliver, outlet| deliver.push(outlet, &mut lent, segments, work))
    }

    /// Returns the change of a frame's tag for the host.
    ///
    /// # Errors
    /// The reason if the host does not get it.
    #[inline]
    pub(super) fn change_for(&self, vlan: FrameVlan) -> Result<TagChange, Loss> {
        if self.plan.is_link_on { self.vlans.change_for(vlan) } else { Err(Loss::LinkOff) }
    }

    /// Counts frames lost before delivery to the host.
    pub(super) fn lose(&self, reason: Loss, frames: usize, work: &mut Work<'_>) {
        work.budget.spend(1, 0);
        let stats = &self.shared.stats().receive;
        stats.frames_in.add(frames as u64);
        stats.lose(reason, frames);
    }

    /// Brings one frame as on a wire. Other ports may get it, too.
    pub(super) fn push_received(&mut self, frame: &mut Frame<'_>, work: &mut Work<'_>) {
        if !self.takes_at_once(work.now_ns) {
            return self.queue(frame, 1, work);
        }
        self.deliver.meter.spend_frame(frame, 1);
        self.with_outlet(|deliver, outlet| deliver.push_shared(outlet, frame, work));
    }

    /// Returns whether a frame need not wait for moderation or the limit.
    #[inline]
    fn takes_at_once(&mut self, now_ns: u64) -> bool {
        self.backlog.is_passed_by() && self.deliver.meter.is_open(now_ns)
    }

    /// Queues a frame of `frames` segments, unless the limit has filled the queue.
    fn queue(&mut self, frame: &Frame<'_>, frames: usize, work: &mut Work<'_>) {
        if self.is_queue_full() {
            self.release_backlog(false, work.scratch, work.now_ns, &|| work.now_ns);
        }
        if self.is_queue_full() {
            self.lose_to_limit(frame, frames);
        } else {
            self.backlog.push(frame, work.now_ns);
        }
    }

    fn lose_to_limit(&mut self, frame: &Frame<'_>, frames: usize) {
        self.with_outlet(|_, outlet| outlet.lose(Loss::RateLimit, frames));
        self.host.rx_lost_to_limit(frame, frames, wire_bytes(frame, frames));
    }

    /// Returns whether the limit leaves no room for one more frame. Without a limit, the end of the batch makes room.
    fn is_queue_full(&self) -> bool {
        let Self { deliver: Deliver { meter, .. }, backlog, .. } = self;
        meter.is_limited() && (backlog.is_full() || meter.delays_too_long(backlog.len(), backlog.bytes()))
    }

    /// Hands over the due frames, as far as the limit allows; with `is_forced`, all of them.
    fn release_backlog(&mut self, is_forced: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        while self.backlog.is_due(now_ns, is_forced || self.is_queue_full())
            && (is_forced || self.deliver.meter.is_open(now_ns))
        {
            self.release_due(is_forced, scratch, now_ns, clock);
        }
    }

    fn release_due(&mut self, is_forced: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        let Self { host, shared, plan, deliver, enabled, backlog, .. } = self;
        let is_link_on = plan.is_link_on;
        let mut outlet = outlet(host, shared, *enabled);
        let mut budget = Budget::UNLIMITED;
        let mut work = Work { scratch, budget: &mut budget, now_ns };
        backlog.release(&shared.stats().receive, now_ns, clock, |frame| {
            if !is_forced && !deliver.meter.is_open(now_ns) {
                return false;
            }
            // It was planned once already: the same bytes give the same plan.
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
        close(shared, outlet.closed);
    }

    /// Ends a batch: publishes the delivered frames to the host and sends its due interrupts.
    pub(super) fn end_batch(
        &mut self,
        is_draining: bool,
        scratch: &mut Scratch,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) {
        self.release_backlog(is_draining, scratch, now_ns, clock);
        if !self.deliver.is_idle() {
            self.with_outlet(|deliver, outlet| deliver.end_batch(outlet, now_ns));
        }
        if let Some(interrupts) = self.host.interrupts() {
            let seen = &mut self.moderation_changes;
            self.next_interrupt_ns = self.shared.send_interrupts(0, interrupts, seen, now_ns);
        }
    }
}

impl<P> Port<P> {
    pub(super) fn is_open(&self) -> bool {
        self.shared.closed().is_none()
    }

    /// Returns whether frames of that VLAN go from this port to the other one.
    pub(super) fn reaches(&self, other: &Self, vlan: FrameVlan) -> bool {
        other.is_in(vlan) && !(self.shared.is_isolated() && other.shared.is_isolated())
    }

    /// Returns whether the port is open and in that VLAN.
    pub(super) fn is_in(&self, vlan: FrameVlan) -> bool {
        self.is_open() && self.vlans.takes(vlan)
    }

    /// Returns the next deadline without a new frame.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        let limit_ns = self.deliver.meter.opens_ns().unwrap_or(0);
        let backlog_ns = self.backlog.next_due_ns().map(|at| at.max(limit_ns));
        let held_ns = self.deliver.next_deadline_ns().into_iter().chain(backlog_ns);
        held_ns.chain(self.plan.next_deadline_ns()).chain(self.next_interrupt_ns).min()
    }
}

fn outlet<'a, P: HostPort>(host: &'a mut P, shared: &'a SwitchPort, enabled: Offloads) -> Outlet<'a, P> {
    Outlet::new(host, &shared.stats().receive, enabled, shared.mtu())
}

/// Closes the port if the error says so.
pub(super) fn close(shared: &SwitchPort, error: Option<PortError>) {
    if let Some(PortError::Closed(errno)) = error {
        shared.close(errno);
    }
}

/// Returns the next port of a port's pending frame.
pub(super) fn next_of<P>(ports: &[Option<Port<P>>], from: usize) -> Option<usize> {
    let pending = ports[from].as_ref()?.pending.as_ref()?;
    pending.to.clone().next()
}

/// Skips a port the pending frame cannot reach, or not any more.
pub(super) fn leave_out<P>(port: &mut Port<P>, unreachable: usize) {
    if let Some(pending) = port.pending.as_mut().filter(|pending| pending.to.start == unreachable) {
        pending.advance();
    }
}

/// Concludes the pending frame of a port: counts its frames handed to no port as lost for `reason`.
pub(super) fn conclude<P>(port: &mut Port<P>, reason: Loss) {
    let Some(mut pending) = port.pending.take() else { return };
    pending.note_segments();
    let (handed, stats) = (pending.frames_handed, &port.shared.stats().transmit);
    stats.lose(reason, pending.planned.frames_left() - handed);
    stats.frames_out.add(handed as u64);
    if handed > 0 {
        stats.bytes_out.add(pending.frame_len as u64);
    }
}
