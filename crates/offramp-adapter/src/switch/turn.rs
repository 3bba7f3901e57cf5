//! One turn of a port: fetches its frames and brings them to the other ports.

use super::pending::Pending;
use super::port::{Port, close, conclude, leave_out, next_of};
use super::route::FrameStations;
use super::{SEALED_AT, Switch};
use crate::pipeline::deliver::{Budget, FRAME_ALIGN, Lent, Work};
use crate::pipeline::plan::{Plan, Planned};
use crate::port::{HostPort, PortError};
use crate::stats::Loss;
use crate::transmit::{Progress, lent};
use crate::vlan::FrameVlan;
use offramp_offload::frame::Frame;
use offramp_offload::meta::TxMeta;
use offramp_offload::vlan::TagChange;
use std::ops::Range;

/// Check the clock after this many bytes; fewer cannot exceed a turn.
const TIMED_BYTES: usize = 16 * 1024;

impl<P: HostPort> Switch<P> {
    /// Moves frames of one port until it has no more, or its budget is spent.
    pub(super) fn turn(&mut self, from: usize, now_ns: u64, clock: &impl Fn() -> u64) -> Progress {
        self.send_keepalives(from, now_ns);
        let Some(port) = &mut self.ports[from] else { return Progress::default() };
        let bytes = self.config.turn_bytes.max(1);
        let paid_bytes = port.debt_bytes.min(bytes);
        port.debt_bytes -= paid_bytes;
        let mut budget = Budget::new(self.config.turn_frames.max(1), bytes - paid_bytes);
        let progress = self.move_frames(from, &mut budget, now_ns, clock);
        if let Some(port) = &mut self.ports[from] {
            port.debt_bytes += budget.debt_bytes;
            port.note_offloads();
            port.shared.stats().transmit.end_batch();
        }
        progress
    }

    fn move_frames(&mut self, from: usize, budget: &mut Budget, now_ns: u64, clock: &impl Fn() -> u64) -> Progress {
        let mut progress = Progress::default();
        let mut timer = TurnTimer { bytes: budget.bytes, since_ns: None };
        while budget.is_left() && !timer.is_over(budget, self.config.turn_ns, clock) {
            let is_pending = matches!(&self.ports[from], Some(Port { pending: Some(_), .. }));
            let mut cost_bytes = 0;
            if !is_pending {
                let Some(cost) = self.take(from, now_ns, budget) else { return progress };
                cost_bytes = cost;
            }
            if let Some(port) = &self.ports[from]
                && !progress.moved
                && port.deliver.interrupts_by_handing_over
            {
                // Its buffers are free again.
                port.shared.stats().transmit.interrupts.add(1);
            }
            progress.moved = true;
            self.forward(from, now_ns, budget);
            budget.spend(0, cost_bytes);
        }
        Progress { moved: true, more: true, ..Progress::default() }
    }

    /// Takes the next frame of a port and routes it. Returns the cost of the fetch in bytes; `None` without a frame, or
    /// if the port is at its limit.
    fn take(&mut self, from: usize, now_ns: u64, budget: &mut Budget) -> Option<usize> {
        let is_draining = self.is_draining;
        let port = self.ports[from].as_mut().filter(|port| port.is_open() && !is_draining)?;
        self.serving.enter(from);
        if !port.plan.meter.is_open(now_ns) {
            port.host.tx_hold();
            budget.spend(0, port.host.tx_cost_bytes());
            return None;
        }
        let refused = match port.host.tx_next(now_ns) {
            Ok(true) => None,
            Err(PortError::Refused(_)) => {
                port.plan.meter.spend_refused();
                Some((Loss::BadRequest, 1))
            }
            Ok(false) | Err(PortError::Full | PortError::Filtered) => {
                budget.spend(0, port.host.tx_cost_bytes());
                return None;
            }
            Err(PortError::Closed(errno)) => {
                port.shared.close(errno);
                self.stations.forget(from);
                return None;
            }
        };
        let cost_bytes = port.host.tx_cost_bytes();
        if let Some((loss, frames)) = refused.or_else(|| self.admit(from, now_ns).err()) {
            self.refuse(from, loss, frames, budget);
        }
        Some(cost_bytes)
    }

    /// Plans the frame fetched from a port and routes it. If it goes nowhere, the error has the reason and the number
    /// of frames.
    fn admit(&mut self, from: usize, now_ns: u64) -> Result<(), (Loss, usize)> {
        let Some(port) = &mut self.ports[from] else { return Ok(()) };
        let stats = &port.shared.stats().transmit;
        stats.host_frames.add(1);
        let mut frame = port.host.tx_frame();
        let frame_len = frame.bytes().len();
        let stations = FrameStations::of(frame.bytes(), &port.vlans).map_err(|loss| {
            port.plan.meter.spend_frame(&frame, 1);
            (loss, 1)
        })?;
        let planned = port.plan.plan(&mut frame, stats, now_ns);
        port.backlog.sent(frame_len as u64);
        if let Some(outcome) = port.plan.answer(&mut port.host, false) {
            close(&port.shared, outcome.err());
            port.deliver.is_unflushed = true;
        }
        let planned = planned.map_err(|loss| (loss, 1))?;
        let frames = planned.frames_left();
        let to = self.route(from, &stations, frames, now_ns).map_err(|loss| (loss, frames))?;
        if let Some(port) = &mut self.ports[from] {
            port.shared.stats().transmit.frames_in.add(frames as u64);
            let vlan = stations.vlan;
            port.pending = Some(Pending { planned, frame_len, vlan, to, frames_handed: 0, segments: None });
        }
        Ok(())
    }

    /// Counts frames without a destination.
    fn refuse(&self, from: usize, loss: Loss, frames: usize, budget: &mut Budget) {
        budget.spend(1, 0);
        if let Some(port) = &self.ports[from] {
            let stats = &port.shared.stats().transmit;
            stats.frames_in.add(frames as u64);
            stats.lose(loss, frames);
        }
    }

    /// Brings the pending frame of a port to all its destinations, or as many as the budget allows.
    fn forward(&mut self, from: usize, now_ns: u64, budget: &mut Budget) {
        if matches!(&self.ports[from], Some(Port { pending: Some(Pending { planned: Planned::Sealed(..), .. }), .. })) {
            return self.forward_sealed(from, now_ns, budget);
        }
        let Self { ports, stations, scratch, serving, .. } = self;
        while let Some(next) = next_of(ports, from) {
            if !budget.is_left() {
                return;
            }
            if let Ok([Some(source), Some(port)]) = ports.get_disjoint_mut([from, next])
                && let Some(vlan) = source.pending.as_ref().map(|pending| pending.vlan)
                && source.reaches(port, vlan)
                && let Some(Pending { planned: Planned::Clear(plan), frame_len, segments, .. }) = &mut source.pending
            {
                let mut work = Work { scratch, budget, now_ns };
                let is_done = match port.change_for(vlan) {
                    Err(reason) => {
                        // Some segments may have been delivered before the link went off.
                        let frames = segments.take().map_or_else(|| plan.frames_left(), |rest| rest.frames_left());
                        port.lose(reason, frames, &mut work);
                        true
                    }
                    Ok(change) => {
                        let planned_len = frame_len.wrapping_add_signed(change.added_len());
                        let frame = lent(&mut source.host, change);
                        let Some(frame) = frame.filter(|frame| frame.bytes().len() == planned_len) else {
                            conclude(source, Loss::NoDestination); // The port took back what it lent.
                            return;
                        };
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
                if let Some(pending) = &mut source.pending {
                    pending.frames_handed = pending.planned.frames_left();
                    pending.advance();
                }
            } else if let Some(source) = &mut ports[from] {
                leave_out(source, next);
            }
        }
        if let Some(port) = &mut ports[from] {
            conclude(port, Loss::NoDestination);
        }
    }

    /// Seals the pending frame of a port run by run, and brings each to all its destinations.
    fn forward_sealed(&mut self, from: usize, now_ns: u64, budget: &mut Budget) {
        while budget.is_left() {
            let Some(Port { host, shared, plan, pending, .. }) = &mut self.ports[from] else { return };
            let Some(Pending { planned, to, vlan, .. }) = pending else { return };
            if planned.frames_left() == 0 {
                *pending = None;
                return;
            }
            let (to, vlan) = (to.clone(), *vlan);
            let out = &mut self.sealed.memory_mut()[SEALED_AT..];
            let (len, stride, count) = match write_sealed(plan, planned, &mut host.tx_frame(), out, now_ns) {
                Ok(run) => run,
                Err(reason) => {
                    // When its association ends, the rest of a frame is lost.
                    shared.stats().transmit.lose(reason, planned.frames_left());
                    *pending = None;
                    return;
                }
            };
            budget.spend(count, count * len);
            let handed = (0..count).filter(|nth| {
                let start = SEALED_AT + nth * stride;
                self.bring(from, &to, vlan, start..start + len, now_ns)
            });
            let handed = handed.count();
            let Some(port) = &self.ports[from] else { return };
            let stats = &port.shared.stats().transmit;
            stats.lose(Loss::NoDestination, count - handed);
            stats.frames_out.add(handed as u64);
            stats.bytes_out.add((handed * len) as u64);
        }
    }

    /// Brings one sealed frame, in `vlan`, to all its destinations. Returns whether there was one.
    fn bring(&mut self, from: usize, to: &Range<usize>, vlan: FrameVlan, place: Range<usize>, now_ns: u64) -> bool {
        let Self { ports, stations, scratch, sealed, serving, .. } = self;
        sealed.set(place, TxMeta::default());
        let mut budget = Budget::UNLIMITED;
        let mut is_handed = false;
        for to in to.clone() {
            if let Ok([Some(source), Some(port)]) = ports.get_disjoint_mut([from, to])
                && source.reaches(port, vlan)
            {
                serving.enter(to);
                let mut work = Work { scratch, budget: &mut budget, now_ns };
                match port.change_for(vlan).map(|change| sealed.frame_with_tag(change)) {
                    Ok(frame) => frame.into_iter().for_each(|mut frame| port.push_received(&mut frame, &mut work)),
                    Err(reason) => port.lose(reason, 1, &mut work),
                }
                if !port.is_open() {
                    stations.forget(to);
                }
                is_handed = true;
            }
        }
        is_handed
    }

    /// Sends the due keepalives of a port.
    fn send_keepalives(&mut self, from: usize, now_ns: u64) {
        let Some(Port { plan, shared, .. }) = &mut self.ports[from] else { return };
        let mut due = Vec::new();
        plan.send_keepalives(&shared.stats().transmit, now_ns, |frame| {
            due.push(frame.to_vec());
            true
        });
        for bytes in due {
            let place = SEALED_AT..SEALED_AT + bytes.len();
            self.sealed.memory_mut()[place.clone()].copy_from_slice(&bytes);
            let Some(port) = &self.ports[from] else { return };
            // It is no frame of the host's: an undeliverable one is not counted.
            if let Ok(stations) = FrameStations::of(&bytes, &port.vlans)
                && let Ok(to) = self.route(from, &stations, 1, now_ns)
            {
                self.bring(from, &to, stations.vlan, place, now_ns);
            }
        }
    }
}

/// The timer of a turn.
struct TurnTimer {
    /// Bytes left in the budget at the last clock read.
    bytes: usize,
    /// The first clock read.
    since_ns: Option<u64>,
}

impl TurnTimer {
    /// Returns whether the turn has reached its maximum time.
    #[inline]
    fn is_over(&mut self, budget: &Budget, turn_ns: u64, clock: &impl Fn() -> u64) -> bool {
        if self.bytes - budget.bytes < TIMED_BYTES {
            return false;
        }
        self.bytes = budget.bytes;
        let now_ns = clock();
        now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns)) >= turn_ns
    }
}

/// Seals the next frames of one length into the front of `out`. Returns their length, their stride and their number.
fn write_sealed(
    plan: &mut Plan,
    planned: &mut Planned,
    frame: &mut Frame<'_>,
    out: &mut [u8],
    now_ns: u64,
) -> Result<(usize, usize, usize), Loss> {
    let (len, frames_left) = plan.next_run(frame, planned, usize::MAX)?;
    let stride = len.next_multiple_of(FRAME_ALIGN);
    let slots = out.len().checked_div(stride).unwrap_or(0).min(frames_left);
    if slots == 0 {
        return Err(Loss::TooLong);
    }
    let count = plan.write_run(frame, planned, &mut out[..slots * stride], stride, now_ns)?;
    Ok((len, stride, count))
}
