//! One queue pair: both directions over one host port and one wire port, in one thread.

use crate::config::AdapterConfig;
use crate::pipeline::Progress;
use crate::pipeline::budget::Budget;
pub use crate::pipeline::control::{PortControl, PreparedIpsec};
use crate::pipeline::sink::{HostSink, ToWire};
use crate::pipeline::source::Source;
use crate::port::{HostPort, PortError, WirePort};
use crate::receive::Receive;
use std::sync::Arc;
use std::task::Waker;

/// A queue pair: a source and a sink in each direction. Queue pairs share no data on the frame path.
#[derive(Debug)]
pub struct QueuePair<H, W> {
    host: H,
    wire: W,
    source: Source,
    sink: HostSink,
    control: Arc<PortControl>,
    queue: usize,
    mtu: usize,
    transmit_batch_bytes: usize,
    receive_batch_frames: usize,
}

impl<H: HostPort, W: WirePort> QueuePair<H, W> {
    /// Connects a host port and a wire port. `queue` is the index of this pair in `control`. A host that sees frames
    /// before it is interrupted ([`HostPort::interrupts`]) receives all arrived frames at once, under any moderation.
    pub fn new(config: &AdapterConfig, control: &Arc<PortControl>, queue: usize, mut host: H, wire: W) -> Self {
        Self {
            source: Source::new(control, &mut host),
            sink: HostSink::new(&config.coalesce, config.queues, control, &mut host),
            host,
            wire,
            control: Arc::clone(control),
            queue,
            mtu: config.mtu,
            transmit_batch_bytes: config.transmit_batch_bytes,
            receive_batch_frames: config.receive_batch_frames,
        }
    }

    /// Polls as [`QueuePair::poll_timed`] does, but does not measure the interrupt cost.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone.
    pub fn poll(&mut self, now_ns: u64) -> Result<Progress, PortError> {
        self.poll_timed(now_ns, &|| now_ns)
    }

    /// Moves a batch in each direction. The receive direction is served first, because delivered frames leave room on
    /// the wire for further frames. `clock` returns the caller's processor time, nanoseconds from any moment. The clock
    /// is read only under moderation, before and after some batches.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone.
    pub fn poll_timed(&mut self, now_ns: u64, clock: &impl Fn() -> u64) -> Result<Progress, PortError> {
        self.poll_within(|host| host, now_ns, clock)
    }

    /// Polls as [`QueuePair::poll_timed`] does, with the port that `within` returns as the host. A caller uses this
    /// method to poll a wrapped host directly if the wrapper has no work in this batch.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone.
    pub fn poll_within<P: HostPort>(
        &mut self,
        within: impl FnOnce(&mut H) -> &mut P,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<Progress, PortError> {
        let Self { host, wire, source, sink, control, queue, mtu, .. } = self;
        let (host, stats) = (within(host), &control.queues()[*queue..=*queue]);
        sink.take_over(control, &stats[0].receive, now_ns);
        source.take_over(control, *mtu, control.queues().len() > 1, now_ns);
        let (allowed, batch_frames) = (control.offloads(), self.receive_batch_frames);
        let receive = Receive { wire: &mut *wire, port: &*source, allowed, mtu: *mtu, batch_frames };
        let received = receive.poll(host, sink, stats, now_ns, clock)?;
        // The host is interrupted for received frames before the transmit direction is served, because a transmit batch
        // may take long.
        sink.interrupt(host, control, stats, now_ns);
        let mut budget = Budget::new(usize::MAX, self.transmit_batch_bytes);
        let mut route = ToWire { wire, mtu: *mtu };
        let sent = source.poll(host, &mut route, stats, &mut budget, now_ns);
        route.wire.flush();
        let sent = sent?;
        if std::mem::take(&mut source.has_answered) {
            host.rx_flush(now_ns);
        }
        sink.hold.sent(source.sent_bytes as u64);
        sink.interrupt(host, control, stats, now_ns);
        Ok(received.and(sent))
    }

    /// Stops or resumes fetching from the host. A draining pair sends its fetched frames and delivers arriving frames
    /// regardless of the receive limit, until the pair holds no frame ([`QueuePair::held`]).
    pub fn set_draining(&mut self, is_draining: bool) {
        self.source.is_draining = is_draining;
    }

    /// Returns whether the host is at its transmit limit. The frames of a host at its limit wait until
    /// [`QueuePair::next_deadline_ns`] at the latest, and need not wake the caller.
    pub fn is_host_held(&self) -> bool {
        self.source.plan.meter.opens_ns().is_some()
    }

    /// Registers `waker`, which is woken when the port's link, moderation, limits, or associations and policy change.
    pub fn register(&self, waker: &Waker) {
        self.control.register(waker);
    }

    /// Returns the number of frames in the pipelines: frames that were fetched, and neither handed over nor counted as
    /// lost.
    pub fn held(&self) -> usize {
        self.source.held() + self.sink.deliver.held()
    }

    /// Returns the next deadline if the host sends no further frame. A deadline is an arrival, the release of waiting
    /// frames, an interrupt, or the end of a wait for a rate limit.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let receive_ns = self.sink.next_deadline_ns(self.sink.hold.next_open_ns(&self.wire));
        receive_ns.into_iter().chain(self.source.plan.next_deadline_ns()).min()
    }

    /// Returns the host port.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the host port, for changes between polls.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Returns the wire port.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Returns the wire port, for changes between polls.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }
}
