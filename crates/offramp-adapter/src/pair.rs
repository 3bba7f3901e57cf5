//! One queue pair: both directions over one host port and one wire port, in one thread.

use crate::config::AdapterConfig;
use crate::port::{HostPort, PortError, WirePort};
use crate::receive::Receive;
use crate::stats::QueueStats;
use crate::transmit::{Progress, Transmit};
use offramp_offload::caps::Offloads;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the outside may change and read while queue pairs run.
#[derive(Debug)]
pub struct Control {
    offloads: AtomicU32,
    queues: Box<[QueueStats]>,
}

impl Control {
    /// Controls and counters for the queues of one adapter.
    pub fn new(config: &AdapterConfig) -> Arc<Self> {
        Arc::new(Self {
            offloads: AtomicU32::new(config.offloads.bits()),
            queues: (0..config.queues).map(|_| QueueStats::default()).collect(),
        })
    }

    /// What the user allows now.
    pub fn offloads(&self) -> Offloads {
        Offloads::from_bits_truncate(self.offloads.load(Ordering::Relaxed))
    }

    /// Changes what the user allows, from the next batch on.
    pub fn set_offloads(&self, offloads: Offloads) {
        self.offloads.store(offloads.bits(), Ordering::Relaxed);
    }

    /// Counters, one entry per queue.
    pub fn queues(&self) -> &[QueueStats] {
        &self.queues
    }
}

/// A queue pair and its pipelines. It shares nothing on the way of a frame.
#[derive(Debug)]
pub struct QueuePair<H, W> {
    host: H,
    wire: W,
    transmit: Transmit,
    receive: Receive,
    control: Arc<Control>,
    queue: usize,
}

impl<H: HostPort, W: WirePort> QueuePair<H, W> {
    /// Joins a host port and a wire port. `queue` is the index of this pair in `control`.
    pub fn new(config: &AdapterConfig, control: &Arc<Control>, queue: usize, host: H, wire: W) -> Self {
        Self {
            transmit: Transmit::new(config),
            receive: Receive::new(config, host.takes_verdicts()),
            host,
            wire,
            control: Arc::clone(control),
            queue,
        }
    }

    /// Moves a batch in each direction. Receive goes first: what has arrived leaves room for more.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll(&mut self, now_ns: u64) -> Result<Progress, PortError> {
        let stats = &self.control.queues[self.queue];
        let allowed = Offloads::offer(Offloads::RX, self.host.accepts(), self.control.offloads());
        let received = self.receive.poll(&mut self.host, &mut self.wire, allowed, &stats.receive, now_ns)?;
        let sent = self.transmit.poll(&mut self.host, &mut self.wire, &stats.transmit, now_ns)?;
        Ok(received.or(sent))
    }

    /// Frames inside the pipelines: taken, and neither handed over nor counted as lost.
    pub fn held(&self) -> usize {
        self.transmit.held() + self.receive.held()
    }

    /// When something is due without any new frame: an arrival, or held frames.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let arrival = self.wire.next_arrival_ns();
        let hold = self.receive.next_deadline_ns();
        let due = arrival.into_iter().chain(hold).min()?;
        Some(due.max(self.receive.not_before_ns()))
    }

    /// The host's side.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The host's side, to change it between polls.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// The line's side.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// The line's side, to change it between polls.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }
}
