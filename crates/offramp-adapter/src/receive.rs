//! Wire to host: fetches frames from the wire, up to the batch size and the host's receive limit, and delivers the
//! frames to the host.

use crate::pipeline::Progress;
use crate::pipeline::outlet::{Outlet, lose};
use crate::pipeline::sink::HostSink;
use crate::pipeline::source::Source;
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss, QueueStats};
use offramp_offload::caps::Offloads;

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
        let admits_all = port.plan.is_link_on && port.vlans.takes_all() && !deliver.meter.is_limited();
        let mut frames = 0;
        while frames < batch_frames && (is_draining || deliver.meter.is_open(now_ns)) {
            // After each frame, a limited host may be at its limit.
            let run_frames = if deliver.meter.is_limited() { 1 } else { batch_frames - frames };
            let arrived = wire.take_run(now_ns, run_frames);
            let mut run = Run { arrived, port, stats, admits_all, taken: 0, admitted: 0, bytes: 0 };
            if passes {
                run.by_ref().for_each(|frame| deliver.pass_received(&mut outlet, frame));
            } else {
                deliver.push_run(&mut outlet, run.by_ref(), now_ns);
            }
            if run.taken == 0 {
                break;
            }
            deliver.meter.spend(run.admitted, run.bytes);
            frames += run.taken;
        }
        deliver.end_batch(&mut outlet, now_ns);
        let closed = outlet.closed;
        hold.end(begun_ns, frames, stats, clock);
        let progress = Progress { moved: frames > 0, more: frames == self.batch_frames };
        closed.map_or(Ok(progress), Err)
    }
}

/// The frames of a run that may pass to the host: those of the host's VLANs, while the link is on.
struct Run<'a, I> {
    arrived: I,
    port: &'a Source,
    stats: &'a Direction,
    /// True if every frame passes unchanged, and the host has no limit for which `admitted` and `bytes` are counted.
    admits_all: bool,
    /// Number of frames taken from the wire so far.
    taken: usize,
    admitted: usize,
    bytes: usize,
}

impl<'f, I: Iterator<Item = &'f mut [u8]>> Iterator for Run<'_, I> {
    type Item = &'f mut [u8];

    #[inline]
    fn next(&mut self) -> Option<&'f mut [u8]> {
        loop {
            let frame = self.arrived.next()?;
            self.taken += 1;
            if self.admits_all {
                return Some(frame);
            }
            if let Some(frame) = self.admit(frame) {
                return Some(frame);
            }
        }
    }
}

impl<I> Run<'_, I> {
    /// Returns the frame as its host gets it. Counts a frame that its host must not get as lost.
    #[inline(never)]
    fn admit<'f>(&mut self, frame: &'f mut [u8]) -> Option<&'f mut [u8]> {
        let Source { plan, vlans, .. } = self.port;
        let for_host = if plan.is_link_on { vlans.take_from_wire(frame) } else { Err(Loss::LinkOff) };
        let frame = for_host.map_err(|reason| lose(self.stats, reason, 1)).ok()?;
        self.admitted += 1;
        self.bytes += frame.len();
        Some(frame)
    }
}
