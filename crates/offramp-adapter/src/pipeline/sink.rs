//! The two kinds of destination of a frame: a host, and a wire.

use super::budget::Budget;
use super::control::PortControl;
use super::deliver::Deliver;
use super::hold::Hold;
use super::plan::Plan;
use super::source::{Destination, Route};
use crate::moderation::ModerationConfig;
use crate::port::{HostPort, Interrupts, Loan, WirePort};
use crate::stats::{Direction, Loss, QueueStats};
use crate::vlan::{FrameVlan, PortVlans};
use offramp_offload::coalesce::CoalesceConfig;
use offramp_offload::count;
use offramp_offload::layout::{VLAN_TAG_LEN, link_header_len};
use offramp_offload::vlan::{CUSTOMER_TAG, TAG_AT, TagChange};
use std::ops::Range;

/// The stages that deliver frames to one host.
#[derive(Debug)]
pub(crate) struct HostSink {
    pub(crate) deliver: Deliver,
    pub(crate) hold: Hold,
    /// The number of changes of the moderation when this sink last applied the moderation.
    moderation_changes: u32,
    /// Time of the next interrupt, in nanoseconds; `None` if no interrupt is pending, or if delivery interrupts the
    /// host.
    next_interrupt_ns: Option<u64>,
}

impl HostSink {
    pub(crate) fn new(coalesce: &CoalesceConfig, queues: u16, control: &PortControl, host: &mut impl HostPort) -> Self {
        Self {
            deliver: Deliver::new(coalesce, queues, control, host),
            hold: Hold::default(),
            moderation_changes: 0,
            next_interrupt_ns: None,
        }
    }

    /// Applies changed moderation, limit and associations, and advances the time of the limit and of the associations
    /// to `now_ns`.
    #[inline]
    pub(crate) fn take_over(&mut self, control: &PortControl, stats: &Direction, now_ns: u64) {
        if self.deliver.interrupts_by_handing_over
            && let Some(moderation) = control.changed_moderation(&mut self.moderation_changes)
        {
            self.hold.set(moderation, stats);
        }
        self.deliver.take_over(control, now_ns);
    }

    /// Sends due interrupts to a host whose interrupts are separate from delivery ([`HostPort::interrupts`]). Counts
    /// the interrupts in `queues`.
    #[inline]
    pub(crate) fn interrupt(
        &mut self,
        host: &mut impl HostPort,
        control: &PortControl,
        queues: &[QueueStats],
        now_ns: u64,
    ) {
        if self.deliver.interrupts_by_handing_over {
            return;
        }
        let changed = control.changed_moderation(&mut self.moderation_changes);
        self.next_interrupt_ns = None;
        let mut queue = 0;
        while let Some(interrupts) = host.interrupts(queue) {
            let next_ns = send_interrupts(interrupts, changed.as_ref(), QueueStats::of(queues, || queue), now_ns);
            self.next_interrupt_ns = self.next_interrupt_ns.into_iter().chain(next_ns).min();
            queue += 1;
        }
    }

    /// Returns the next deadline if no further frame arrives. `frames_ns` is the deadline of the waiting frames.
    pub(crate) fn next_deadline_ns(&self, frames_ns: Option<u64>) -> Option<u64> {
        let limit_ns = self.deliver.meter.opens_ns().unwrap_or(0);
        let frames_ns = frames_ns.map(|at| at.max(limit_ns));
        self.deliver.next_deadline_ns().into_iter().chain(frames_ns).chain(self.next_interrupt_ns).min()
    }
}

/// Sends the due interrupts of a queue and counts them. Returns the time of the next interrupt.
#[inline]
fn send_interrupts(
    interrupts: &mut dyn Interrupts,
    changed: Option<&ModerationConfig>,
    stats: &QueueStats,
    now_ns: u64,
) -> Option<u64> {
    if let Some(moderation) = changed {
        interrupts.moderate(moderation);
        stats.receive.show_moderation(interrupts.cost_ns(), interrupts.wait_max_ns());
    }
    let counts = interrupts.send_due(now_ns);
    // Counters without a change are not written, because another worker may own the cache line of the counters.
    if counts.transmit > 0 {
        stats.transmit.interrupts.add(counts.transmit);
    }
    if counts.receive > 0 {
        stats.receive.interrupts.add(counts.receive);
        while let Some(wait_ns) = interrupts.take_wait_ns() {
            stats.receive.interrupt_wait_ns.record(wait_ns);
        }
        stats.receive.show_moderation(interrupts.cost_ns(), interrupts.wait_max_ns());
    }
    interrupts.next_due_ns()
}

/// The route of a queue pair: every frame is sent on the pair's wire, whatever its destination address.
pub(crate) struct ToWire<'a, W> {
    pub(crate) wire: &'a mut W,
    pub(crate) mtu: usize,
}

impl<H: HostPort, W: WirePort> Route<H> for ToWire<'_, W> {
    #[inline]
    fn room(&mut self, _budget: &mut Budget, now_ns: u64) -> usize {
        self.wire.room(now_ns)
    }

    #[inline]
    fn put_whole(&mut self, frame: &[u8], (plan, vlans): (&Plan, &PortVlans), now_ns: u64) -> Option<usize> {
        let is_whole = plan.leaves(frame) && frame.len() - link_header_len(frame).ok()? <= self.mtu;
        match vlans.change_to_wire(frame).ok().filter(|_| is_whole)? {
            TagChange::Keep => put_frame(frame, self.wire, now_ns).then_some(frame.len()),
            TagChange::Push(tci) => put_tagged(frame, tci, self.wire, now_ns),
            TagChange::Pop | TagChange::Set(_) => None,
        }
    }

    #[inline]
    fn change(&self, vlan: FrameVlan) -> TagChange {
        vlan.tagged()
    }

    #[inline]
    fn find(&mut self, _frame: &[u8], _vlan: FrameVlan, _frames: usize, _now_ns: u64) -> Result<Range<usize>, Loss> {
        Ok(0..0)
    }

    #[inline]
    fn mtu(&self) -> usize {
        self.mtu
    }

    #[inline]
    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        self.wire.lend(len, count)
    }

    #[inline]
    fn put(&mut self, _to: &Destination, len: usize, count: usize, now_ns: u64) -> usize {
        self.wire.put(len, count, now_ns);
        count
    }

    fn put_keepalive(&mut self, frame: &[u8], _vlans: &PortVlans, now_ns: u64) -> bool {
        self.wire.room(now_ns) > 0 && put_frame(frame, self.wire, now_ns)
    }
}

/// Puts a frame on the wire. Returns `false` if the wire has no room.
#[inline]
fn put_frame(frame: &[u8], wire: &mut impl WirePort, now_ns: u64) -> bool {
    let Some(loan) = wire.lend(frame.len(), 1) else { return false };
    count::copied(frame.len());
    loan.bytes[..frame.len()].copy_from_slice(frame);
    wire.put(frame.len(), 1, now_ns);
    true
}

/// Puts a frame on the wire with a VLAN tag inserted. Returns the length with the tag; `None` if the wire has no room.
#[inline]
fn put_tagged(frame: &[u8], tci: u16, wire: &mut impl WirePort, now_ns: u64) -> Option<usize> {
    let (addresses, rest) = frame.split_at_checked(TAG_AT)?;
    let len = frame.len() + VLAN_TAG_LEN;
    let loan = wire.lend(len, 1)?;
    count::copied(frame.len());
    let (new_addresses, tagged) = loan.bytes[..len].split_at_mut(TAG_AT);
    new_addresses.copy_from_slice(addresses);
    tagged[..2].copy_from_slice(&CUSTOMER_TAG);
    tagged[2..VLAN_TAG_LEN].copy_from_slice(&tci.to_be_bytes());
    tagged[VLAN_TAG_LEN..].copy_from_slice(rest);
    wire.put(len, 1, now_ns);
    Some(len)
}
