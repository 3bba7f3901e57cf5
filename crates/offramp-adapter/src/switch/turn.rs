//! One turn of a port: the switch sends the port's frames to the other ports.

use super::control::SwitchPort;
use super::route::FrameStations;
use super::{SEALED_AT, Switch};
use crate::limit::TokenBucket;
use crate::pipeline::Progress;
use crate::pipeline::budget::{Budget, FRAME_ALIGN, Work};
use crate::pipeline::lent::Lent;
use crate::pipeline::plan::Planned;
use crate::pipeline::source::{Destination, Pending, Route, Source, lent};
use crate::port::{HostPort, Loan};
use crate::stats::{Direction, Loss};
use crate::vlan::{FrameVlan, PortVlans};
use offramp_offload::meta::TxMeta;
use offramp_offload::vlan::TagChange;
use std::ops::Range;

/// Number of bytes moved between two clock reads; moving fewer bytes cannot take longer than a turn.
const TIMED_BYTES: usize = 16 * 1024;

impl<P: HostPort> Switch<P> {
    /// Moves frames of one port until the port has no further frame, or the budget of its turn is spent. During the
    /// turn, the port is taken out of the list of ports.
    pub(super) fn turn(&mut self, from: usize, now_ns: u64, clock: &impl Fn() -> u64) -> Progress {
        let Some(mut port) = self.ports[from].take() else { return Progress::default() };
        let bytes = self.config.turn_bytes.max(1);
        let paid_bytes = port.debt_bytes.min(bytes);
        port.debt_bytes -= paid_bytes;
        let mut budget = Budget::new(self.config.turn_frames.max(1), bytes - paid_bytes);
        let (shared, source) = (&port.shared, &mut port.source);
        source.is_draining = self.is_draining || shared.closed().is_some();
        let (timer, floods) = (TurnTimer { bytes: budget.bytes, since_ns: None }, &mut port.floods);
        let mut others = Others { switch: self, from: shared, floods, timer, clock };
        let outcome = source.poll(&mut port.host, &mut others, shared.queues(), &mut budget, now_ns);
        port.sink.deliver.is_unflushed |= std::mem::take(&mut source.has_answered);
        port.sink.hold.sent(source.sent_bytes as u64);
        port.debt_bytes += budget.debt_bytes;
        port.note_offloads();
        port.close(outcome.err());
        if !port.is_open() {
            self.stations.forget(from);
        }
        self.ports[from] = Some(port);
        outcome.unwrap_or(Progress { moved: true, more: false })
    }
}

/// The route of a switch port: the other ports.
struct Others<'a, P, C> {
    switch: &'a mut Switch<P>,
    from: &'a SwitchPort,
    floods: &'a mut Option<TokenBucket>,
    timer: TurnTimer,
    clock: &'a C,
}

impl<P: HostPort, C: Fn() -> u64> Route<P> for Others<'_, P, C> {
    #[inline]
    fn room(&mut self, budget: &mut Budget, _now_ns: u64) -> usize {
        self.switch.serving.enter(self.from.index);
        if self.timer.is_over(budget, self.switch.config.turn_ns, self.clock) {
            budget.frames = 0;
        }
        if budget.is_left() { budget.frames } else { 0 }
    }

    fn change(&self, _vlan: FrameVlan) -> TagChange {
        TagChange::Keep
    }

    fn find(&mut self, frame: &[u8], vlan: FrameVlan, frames: usize, now_ns: u64) -> Result<Range<usize>, Loss> {
        self.switch.route(self.from, self.floods, &FrameStations::of(frame, vlan), frames, now_ns)
    }

    /// Delivers an unencrypted frame to all its destinations, or to as many as the budget allows.
    fn bring(&mut self, source: &mut Source, host: &mut P, stats: &Direction, budget: &mut Budget, now_ns: u64) {
        let Switch { ports, stations, scratch, serving, .. } = &mut *self.switch;
        let Some(pending) = &mut source.pending else { return };
        while let Some(next) = pending.to.ports.clone().next() {
            let Pending { planned, frame_len, to, segments, .. } = &mut *pending;
            let Planned::Clear(plan) = planned else { return source.write(host, self, stats, budget, now_ns) };
            if !budget.is_left() {
                return;
            }
            if let Some(port) = ports[next].as_mut().filter(|port| port.is_reached(self.from, to.vlan)) {
                let mut work = Work { scratch, budget, now_ns };
                let is_done = match port.change_for(to.vlan) {
                    Err(reason) => {
                        // Some segments may have been delivered before the link was switched off.
                        let frames = segments.take().map_or_else(|| plan.frames_left(), |rest| rest.frames_left());
                        port.lose(reason, frames, &mut work);
                        true
                    }
                    Ok(change) => {
                        let planned_len = frame_len.wrapping_add_signed(change.added_len());
                        let mut frame = lent(host, change, true);
                        if frame.as_ref().is_some_and(|frame| !frame.shared().is_empty())
                            && !port.host.rx_takes_shared()
                        {
                            frame = lent(host, change, false);
                        }
                        // Stop if the sending port no longer lends the same frame.
                        let Some(frame) = frame.filter(|frame| frame.len() == planned_len) else { break };
                        let changed = (change != TagChange::Keep).then(|| plan.after_tag_change(change));
                        serving.enter(next);
                        port.push(Lent { frame, plan: changed.as_ref().unwrap_or(plan) }, segments, &mut work)
                    }
                };
                if !port.is_open() {
                    stations.forget(next);
                }
                if !is_done {
                    return;
                }
                pending.frames_handed = pending.planned.frames_left();
            }
            pending.advance();
        }
        source.conclude(stats, Loss::NoDestination);
    }

    fn mtu(&self) -> usize {
        usize::MAX
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let memory = &mut self.switch.sealed.memory_mut()[SEALED_AT..];
        let stride = len.next_multiple_of(FRAME_ALIGN);
        let slots = memory.len().checked_div(stride).unwrap_or(0).min(count);
        (slots > 0).then(|| Loan { bytes: &mut memory[..slots * stride], stride })
    }

    /// Delivers sealed frames to all their destinations.
    fn put(&mut self, to: &Destination, len: usize, count: usize, now_ns: u64) -> usize {
        let start = |nth| SEALED_AT + nth * len.next_multiple_of(FRAME_ALIGN);
        (0..count).filter(|&nth| self.bring_sealed(to, start(nth)..start(nth) + len, now_ns)).count()
    }

    /// Sends a keepalive to its destination ports. The host did not send the keepalive, so an undeliverable keepalive
    /// is not counted.
    fn put_keepalive(&mut self, frame: &[u8], vlans: &PortVlans, now_ns: u64) -> bool {
        let place = SEALED_AT..SEALED_AT + frame.len();
        self.switch.sealed.memory_mut()[place.clone()].copy_from_slice(frame);
        if let Ok(vlan) = vlans.of_sent(frame)
            && let Ok(ports) = self.find(frame, vlan, 1, now_ns)
        {
            self.bring_sealed(&Destination { vlan, ports }, place, now_ns);
        }
        true
    }
}

impl<P: HostPort, C> Others<'_, P, C> {
    /// Delivers one sealed frame to all its destination ports. Returns whether the frame had a destination port.
    fn bring_sealed(&mut self, to: &Destination, place: Range<usize>, now_ns: u64) -> bool {
        let Switch { ports, stations, scratch, sealed, serving, .. } = &mut *self.switch;
        sealed.set(place, TxMeta::default());
        let mut budget = Budget::UNLIMITED;
        let mut is_handed = false;
        for next in to.ports.clone() {
            let Some(port) = ports[next].as_mut().filter(|port| port.is_reached(self.from, to.vlan)) else { continue };
            serving.enter(next);
            let mut work = Work { scratch, budget: &mut budget, now_ns };
            match port.change_for(to.vlan).map(|change| sealed.frame_with_tag(change)) {
                Ok(frame) => frame.into_iter().for_each(|mut frame| port.push_received(&mut frame, &mut work)),
                Err(reason) => port.lose(reason, 1, &mut work),
            }
            if !port.is_open() {
                stations.forget(next);
            }
            is_handed = true;
        }
        is_handed
    }
}

/// The time limit of a turn.
struct TurnTimer {
    /// Bytes left in the budget at the last clock read.
    bytes: usize,
    /// Time of the first clock read, in nanoseconds.
    since_ns: Option<u64>,
}

impl TurnTimer {
    /// Returns whether the turn has reached its maximum time.
    #[inline]
    fn is_over(&mut self, budget: &Budget, turn_ns: u64, clock: &impl Fn() -> u64) -> bool {
        if self.bytes.saturating_sub(budget.bytes) < TIMED_BYTES {
            return false;
        }
        self.bytes = budget.bytes;
        let now_ns = clock();
        now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns)) >= turn_ns
    }
}
