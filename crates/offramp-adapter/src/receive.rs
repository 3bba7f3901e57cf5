//! Wire to host: fetches frames from the wire, up to the batch size and the host's receive limit, and delivers the
//! frames to the host.

use crate::pipeline::Progress;
use crate::pipeline::outlet::{Outlet, lose};
use crate::pipeline::sink::HostSink;
use crate::pipeline::source::Source;
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Loss, QueueStats};
use offramp_offload::caps::Offloads;
use std::cell::Cell;

/// The wire of a queue pair as a source of frames, for one batch.
pub(crate) struct Receive<'a, W> {
    pub(crate) wire: &'a mut W,
    /// The source of the host's frames. The source holds the link state, the VLANs and the draining flag of both
    /// directions.
    pub(crate) port: &'a Source,
    /// Offloads currently allowed by the user.
    pub(crate) allowed: Offloads,
    /// Maximum number of IP bytes in a frame.
    pub(crate) mtu: usize,
    pub(crate) batch_frames: usize,
}

impl<W: WirePort> Receive<'_, W> {
    /// Moves due frames until no due frame is left, the host is at its receive limit, or the batch is full, and ends
    /// the batch.
    ///
    /// `clock` returns the caller's processor time, nanoseconds from any moment. Under moderation, the clock is read
    /// before and after some batches, to measure the cost of an interrupt.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone.
    #[inline]
    pub(crate) fn poll(
        self,
        host: &mut impl HostPort,
        HostSink { deliver, hold, .. }: &mut HostSink,
        queues: &[QueueStats],
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<Progress, PortError> {
        let Self { wire, port, .. } = self;
        let stats = &queues[0].receive;
        hold.left(wire.advance(now_ns, stats));
        // While a queue pair drains its wire, the receive limit does not apply.
        let is_draining = port.is_draining;
        let due = if is_draining || deliver.meter.is_open(now_ns) { hold.open(wire, stats, now_ns) } else { 0 };
        if due == 0 && deliver.next_release_ns().is_none_or(|at| now_ns < at) {
            return Ok(Progress::default());
        }
        let begun_ns = hold.begin(clock);
        let batch_frames = self.batch_frames.min(due);
        let enabled = Offloads::offer(Offloads::RX, host.accepts(), self.allowed);
        let mut outlet = Outlet::new(host, queues, enabled, self.mtu);
        let passes = deliver.passes_received(&outlet);
        let mut frames = 0;
        while frames < batch_frames && (is_draining || deliver.meter.is_open(now_ns)) {
            // After each frame, a limited host may be at its limit.
            let run_frames = if deliver.meter.is_limited() { 1 } else { batch_frames - frames };
            let (taken, admitted, bytes) = (Cell::new(0), Cell::new(0), Cell::new(0));
            let run = wire.take_run(now_ns, run_frames).filter_map(|frame| {
                taken.set(taken.get() + 1);
                let for_host = if port.plan.is_link_on { port.vlans.take_from_wire(frame) } else { Err(Loss::LinkOff) };
                let frame = for_host.map_err(|reason| lose(&queues[0].receive, reason, 1)).ok()?;
                admitted.set(admitted.get() + 1);
                bytes.set(bytes.get() + frame.len());
                Some(frame)
            });
            if passes {
                run.for_each(|frame| deliver.pass_received(&mut outlet, frame));
            } else {
                deliver.push_run(&mut outlet, run, now_ns);
            }
            if taken.get() == 0 {
                break;
            }
            deliver.meter.spend(admitted.get(), bytes.get());
            frames += taken.get();
        }
        deliver.end_batch(&mut outlet, now_ns);
        let closed = outlet.closed;
        hold.end(begun_ns, frames, stats, clock);
        let progress = Progress { moved: frames > 0, more: frames == self.batch_frames };
        closed.map_or(Ok(progress), Err)
    }
}
