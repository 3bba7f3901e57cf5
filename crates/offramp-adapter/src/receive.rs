//! Wire to host: waits for moderation, then delivers.

mod gate;

use crate::config::AdapterConfig;
use crate::moderation::ModerationConfig;
use crate::pipeline::control::PortControl;
use crate::pipeline::deliver::{Deliver, Outlet};
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss};
use crate::transmit::Progress;
use crate::vlan::PortVlans;
use gate::Gate;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;

/// The receive pipeline of one queue pair.
#[derive(Debug)]
pub struct Receive {
    deliver: Deliver,
    gate: Gate,
    vlans: PortVlans,
    mtu: usize,
    batch_frames: usize,
    /// As the port's control had it when the batch began.
    is_link_on: bool,
    /// The wire is emptied regardless of the limit.
    pub(crate) is_draining: bool,
}

impl Receive {
    /// Creates an empty pipeline for this host, with the port's VLANs. A host that sees frames before it is interrupted
    /// ([`HostPort::interrupts`]) gets all arrived frames at once, under any moderation.
    pub fn new(config: &AdapterConfig, control: &PortControl, host: &mut impl HostPort) -> Self {
        let deliver = Deliver::new(&config.coalesce, config.queues, control, host);
        let moderation =
            if deliver.interrupts_by_handing_over { config.moderation } else { ModerationConfig::default() };
        Self {
            deliver,
            gate: Gate::new(moderation),
            vlans: control.security().vlans.clone(),
            mtu: config.mtu,
            batch_frames: config.receive_batch_frames,
            is_link_on: control.is_link_on(),
            is_draining: false,
        }
    }

    /// Returns the number of frames held for coalescing.
    pub fn held(&self) -> usize {
        self.deliver.held()
    }

    /// Returns the next time to deliver without any new frame: for frames held for coalescing, and for frames of
    /// `wire`, arrived or still on their way.
    pub fn next_deadline_ns(&self, wire: &impl WirePort) -> Option<u64> {
        let frames_ns = self.gate.next_open_ns(wire).map(|at| at.max(self.deliver.meter.opens_ns().unwrap_or(0)));
        self.deliver.next_deadline_ns().into_iter().chain(frames_ns).min()
    }

    /// Takes over changed link, limit and associations, and advances their time.
    #[inline]
    pub(crate) fn take_over(&mut self, control: &PortControl, now_ns: u64) {
        self.is_link_on = control.is_link_on();
        self.deliver.take_over(control, now_ns);
    }

    /// Changes the moderation of received frames, also of waiting ones.
    pub fn set_moderation(&mut self, config: ModerationConfig, stats: &Direction) {
        self.gate.set(config);
        self.gate.moderator.show(stats);
    }

    /// Records how many bytes went the other way.
    pub fn sent(&mut self, bytes: u64) {
        self.gate.moderator.other_direction(bytes);
    }

    /// Returns whether the limit lets the host receive.
    #[inline]
    fn is_open(&mut self, now_ns: u64) -> bool {
        self.is_draining || self.deliver.meter.is_open(now_ns)
    }

    /// Moves due frames until the wire has none, the host is at its limit or a batch is full, then ends the batch.
    ///
    /// `allowed` are the offloads the user allows now. `clock` returns the caller's processor time, nanoseconds from
    /// any moment; under moderation it is read before and after some batches, to learn their cost.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        allowed: Offloads,
        stats: &Direction,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<Progress, PortError> {
        self.gate.left(wire.advance(now_ns, stats));
        let due = if self.is_open(now_ns) { self.gate.open(wire, stats, now_ns) } else { 0 };
        if due == 0 && self.deliver.next_release_ns().is_none_or(|at| now_ns < at) {
            return Ok(Progress::default());
        }
        let is_moderated = !self.gate.moderator.is_off();
        let begun_ns = (is_moderated && self.gate.moderator.measures_next()).then(clock);
        let batch_frames = self.batch_frames.min(due);
        let enabled = Offloads::offer(Offloads::RX, host.accepts(), allowed);
        let mut outlet = Outlet::new(host, stats, enabled, self.mtu);
        let passes = self.deliver.passes_received(&outlet);
        let mut frames = 0;
        while frames < batch_frames && self.is_open(now_ns) {
            let Some(bytes) = wire.take(now_ns) else { break };
            frames += 1;
            let admitted = if self.is_link_on { self.vlans.take_from_wire(bytes) } else { Err(Loss::LinkOff) };
            let bytes = match admitted {
                Ok(bytes) => bytes,
                Err(reason) => {
                    outlet.lose(reason, 1);
                    continue;
                }
            };
            self.deliver.meter.spend(1, bytes.len());
            if passes {
                self.deliver.pass_received(&mut outlet, bytes);
            } else {
                self.deliver.push_received(&mut outlet, Frame::received(bytes), now_ns);
            }
        }
        self.deliver.end_batch(&mut outlet, now_ns);
        let closed = outlet.closed;
        if is_moderated && frames > 0 {
            self.gate.left(frames);
            if let Some(begun_ns) = begun_ns {
                self.gate.moderator.handled(frames as u32, clock().saturating_sub(begun_ns));
            }
            self.gate.moderator.show(stats);
        }
        let progress = Progress { moved: frames > 0, more: frames == self.batch_frames, ..Progress::default() };
        closed.map_or(Ok(progress), Err)
    }
}
