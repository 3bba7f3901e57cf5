//! One queue pair: both directions over one host port and one wire port, in one thread.

use crate::config::AdapterConfig;
pub use crate::pipeline::control::{PortControl, PreparedIpsec};
use crate::port::{HostPort, PortError, WirePort};
use crate::receive::Receive;
use crate::transmit::{Progress, Transmit};
use std::sync::Arc;
use std::task::Waker;

/// A queue pair and its pipelines. It shares nothing on the way of a frame.
#[derive(Debug)]
pub struct QueuePair<H, W> {
    host: H,
    wire: W,
    transmit: Transmit,
    receive: Receive,
    control: Arc<PortControl>,
    queue: usize,
    moderation_changes: u32,
    /// Set for a host with interrupts apart from handing over.
    next_interrupt_ns: Option<u64>,
}

impl<H: HostPort, W: WirePort> QueuePair<H, W> {
    /// Connects a host port and a wire port. `queue` is the index of this pair in `control`.
    pub fn new(config: &AdapterConfig, control: &Arc<PortControl>, queue: usize, mut host: H, wire: W) -> Self {
        let receive = Receive::new(config, control, &mut host);
        Self {
            transmit: Transmit::new(config, control),
            receive,
            host,
            wire,
            control: Arc::clone(control),
            queue,
            moderation_changes: 0,
            next_interrupt_ns: None,
        }
    }

    /// As [`QueuePair::poll_timed`], but does not measure what an interrupt costs.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll(&mut self, now_ns: u64) -> Result<Progress, PortError> {
        self.poll_timed(now_ns, &|| now_ns)
    }

    /// Moves a batch in each direction. Receive goes first: delivered frames leave room for more. `clock` returns the
    /// caller's processor time, nanoseconds from any moment; it is read only under moderation, before and after some
    /// batches.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll_timed(&mut self, now_ns: u64, clock: &impl Fn() -> u64) -> Result<Progress, PortError> {
        self.poll_within(|host| host, now_ns, clock)
    }

    /// As [`QueuePair::poll_timed`], but of the host within this one: what stands around it has nothing to add in this batch.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll_within<P: HostPort>(
        &mut self,
        within: impl FnOnce(&mut H) -> &mut P,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<Progress, PortError> {
        let Self { host, wire, transmit, receive, control, queue, moderation_changes, next_interrupt_ns } = self;
        let (host, stats) = (within(host), &control.queues()[*queue]);
        if host.interrupts().is_none()
            && let Some(moderation) = control.changed_moderation(moderation_changes)
        {
            receive.set_moderation(moderation, &stats.receive);
        }
        receive.take_over(control, now_ns);
        transmit.take_over(control, now_ns);
        let received = receive.poll(host, wire, control.offloads(), &stats.receive, now_ns, clock)?;
        // Sends due interrupts to a host that sees frames before it is interrupted. Returns whether this host is one.
        let mut interrupt = |host: &mut P| {
            let Some(interrupts) = host.interrupts() else { return false };
            *next_interrupt_ns = control.send_interrupts(*queue, interrupts, moderation_changes, now_ns);
            true
        };
        // Raise the receive interrupt before starting transmit: a transmit batch may take long.
        interrupt(host);
        let stats = &stats.transmit;
        let sent = transmit.poll(host, wire, stats, now_ns)?;
        // Idle transmit must not dirty this cache line; another worker may own it.
        if sent.host_frames > 0 {
            stats.end_batch();
        }
        if !interrupt(host) && sent.moved {
            // Idle transmit must not dirty this cache line; another worker may own it.
            if sent.host_frames > 0 {
                stats.interrupts.add(1);
            }
            receive.sent(sent.bytes_out as u64);
        }
        Ok(received.and(sent))
    }

    /// Sets whether frames are still fetched from the host. A drained pair sends the frames it has, delivers arriving
    /// ones regardless of the limit, and then holds nothing ([`QueuePair::held`]).
    pub fn set_draining(&mut self, is_draining: bool) {
        self.transmit.is_draining = is_draining;
        self.receive.is_draining = is_draining;
    }

    /// Returns whether the host has reached its send limit. Its frames wait until [`QueuePair::next_deadline_ns`] at
    /// the latest, and need not wake the caller.
    pub fn is_host_held(&self) -> bool {
        self.transmit.plan.meter.opens_ns().is_some()
    }

    /// Sets the waker for changes of settings.
    pub fn register(&self, waker: &Waker) {
        self.control.register(waker);
    }

    /// Returns the number of frames inside the pipelines: taken, and neither handed over nor counted as lost.
    pub fn held(&self) -> usize {
        self.transmit.held() + self.receive.held()
    }

    /// Returns the next time of work without any new frame: an arrival, waiting frames, held ones, an interrupt, or the
    /// end of a wait for the limit.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let receive_ns = self.receive.next_deadline_ns(&self.wire);
        receive_ns.into_iter().chain(self.transmit.plan.next_deadline_ns()).chain(self.next_interrupt_ns).min()
    }

    /// Returns the host's side.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the host's side, to change it between polls.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Returns the wire's side.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Returns the wire's side, to change it between polls.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }
}
