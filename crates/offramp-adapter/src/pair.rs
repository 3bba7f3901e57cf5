//! One queue pair: both directions over one host port and one wire port, in one thread.

use crate::config::AdapterConfig;
use crate::ipsec::{Ipsec, SaChange, SaError};
use crate::moderation::ModerationConfig;
use crate::port::{HostPort, PortError, WirePort};
use crate::receive::Receive;
use crate::stats::QueueStats;
use crate::transmit::{Progress, Transmit};
use offramp_offload::caps::Offloads;
use offramp_offload::sync::lock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// What the outside may change and read while queue pairs run.
#[derive(Debug)]
pub struct Control {
    offloads: AtomicU32,
    /// Grows with each change, so that a batch without one takes no lock.
    moderation_changes: AtomicU32,
    moderation: Mutex<ModerationConfig>,
    ipsec: Ipsec,
    /// Wake what drives the queue pairs.
    wakers: Mutex<Vec<Waker>>,
    queues: Box<[QueueStats]>,
}

impl Control {
    /// Controls and counters for the queues of one adapter.
    pub fn new(config: &AdapterConfig) -> Arc<Self> {
        Arc::new(Self {
            offloads: AtomicU32::new(config.offloads.bits()),
            moderation_changes: AtomicU32::new(0),
            moderation: Mutex::new(config.moderation),
            ipsec: Ipsec::default(),
            wakers: Mutex::new(Vec::new()),
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

    /// When the host is interrupted now.
    pub fn moderation(&self) -> ModerationConfig {
        *lock(&self.moderation)
    }

    /// Changes when the host is interrupted, from the next batch on and for frames that wait; queue pairs
    /// that sleep are woken.
    pub fn set_moderation(&self, moderation: ModerationConfig) {
        let mut current = lock(&self.moderation);
        *current = moderation;
        self.moderation_changes.fetch_add(1, Ordering::Release);
        drop(current);
        lock(&self.wakers).iter().for_each(Waker::wake_by_ref);
    }

    /// The security associations and their policy.
    pub fn ipsec(&self) -> &Ipsec {
        &self.ipsec
    }

    /// Makes all changes of associations and policy, or none, from the next batch on; queue pairs that sleep are
    /// woken.
    ///
    /// # Errors
    /// The first that cannot be made: where it stands in `changes`, and why. Nothing has changed then.
    pub fn change_ipsec(&self, changes: &[SaChange]) -> Result<(), (usize, SaError)> {
        self.ipsec.change(changes)?;
        lock(&self.wakers).iter().for_each(Waker::wake_by_ref);
        Ok(())
    }

    /// The moderation, if it was changed since `changes`.
    #[inline]
    fn changed_moderation(&self, changes: &mut u32) -> Option<ModerationConfig> {
        let now = self.moderation_changes.load(Ordering::Acquire);
        if now == *changes {
            return None;
        }
        *changes = now;
        Some(self.moderation())
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = lock(&self.wakers);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
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
    moderation_changes: u32,
    /// The last change of associations that either direction has taken over.
    opening_changes: u32,
    sealing_changes: u32,
    waker: Option<Waker>,
    /// Of a host whose interrupts are apart from handing over.
    next_interrupt_ns: Option<u64>,
}

impl<H: HostPort, W: WirePort> QueuePair<H, W> {
    /// Joins a host port and a wire port. `queue` is the index of this pair in `control`.
    pub fn new(config: &AdapterConfig, control: &Arc<Control>, queue: usize, mut host: H, wire: W) -> Self {
        let mut receive = Receive::new(config, host.honours_data_valid());
        if let Some(interrupts) = host.interrupts() {
            interrupts.moderate(&config.moderation);
            control.queues[queue].note_moderation(interrupts);
            receive.leave_interrupts_to_host();
        }
        Self {
            transmit: Transmit::new(config),
            receive,
            host,
            wire,
            control: Arc::clone(control),
            queue,
            moderation_changes: 0,
            opening_changes: 0,
            sealing_changes: 0,
            waker: None,
            next_interrupt_ns: None,
        }
    }

    /// As [`QueuePair::poll_timed`], where time stands still while a batch moves: what an interrupt
    /// costs is not measured.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll(&mut self, now_ns: u64) -> Result<Progress, PortError> {
        self.poll_timed(now_ns, &|| now_ns)
    }

    /// Moves a batch in each direction. Receive goes first: what has arrived leaves room for more.
    /// `clock` is the processor's time that the caller has had, nanoseconds from any moment; it is read only under
    /// moderation, before and behind some batches.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll_timed(&mut self, now_ns: u64, clock: &impl Fn() -> u64) -> Result<Progress, PortError> {
        let stats = &self.control.queues[self.queue];
        let allowed = Offloads::offer(Offloads::RX, self.host.accepts(), self.control.offloads());
        if let Some(moderation) = self.control.changed_moderation(&mut self.moderation_changes) {
            match self.host.interrupts() {
                Some(interrupts) => {
                    interrupts.moderate(&moderation);
                    stats.note_moderation(interrupts);
                }
                None => self.receive.set_moderation(moderation, &stats.receive),
            }
        }
        self.take_over_ipsec(now_ns);
        let stats = &self.control.queues[self.queue];
        let (host, wire) = (&mut self.host, &mut self.wire);
        let received = self.receive.poll(host, wire, allowed, &stats.receive, now_ns, clock)?;
        // What has come, now or before, is told before what the host sends is taken, which may be a batch.
        self.interrupt(now_ns);
        let stats = &self.control.queues[self.queue].transmit;
        let (taken_before, bytes_before) = (stats.host_frames.get(), stats.bytes_out.get());
        let sent = self.transmit.poll(&mut self.host, &mut self.wire, stats, now_ns)?;
        if !self.interrupt(now_ns) && sent.moved {
            // A pair that only receives leaves these counters to the one that transmits.
            let stats = &self.control.queues[self.queue].transmit;
            if stats.host_frames.get() > taken_before {
                stats.interrupts.add(1);
            }
            self.receive.sent(stats.bytes_out.get() - bytes_before);
        }
        Ok(received.or(sent))
    }

    /// Sends the interrupts that are due to a host that sees what it is given before them; whether this host is one.
    #[inline]
    fn interrupt(&mut self, now_ns: u64) -> bool {
        let Some(interrupts) = self.host.interrupts() else { return false };
        let counts = interrupts.send_due(now_ns);
        self.control.queues[self.queue].interrupted(counts, interrupts);
        self.next_interrupt_ns = interrupts.next_due_ns();
        true
    }

    /// Takes over associations that have changed, between two super-frames, and lets their time go on.
    #[inline]
    fn take_over_ipsec(&mut self, now_ns: u64) {
        let ipsec = &self.control.ipsec;
        let changes = ipsec.changes();
        if changes != self.opening_changes {
            self.opening_changes = changes;
            self.receive.set_ipsec(&ipsec.in_force());
        }
        if changes != self.sealing_changes && !self.transmit.is_sealing() {
            self.sealing_changes = changes;
            self.transmit.set_ipsec(&ipsec.in_force(), self.control.queues.len() > 1);
        }
        self.transmit.tick(now_ns);
        self.receive.tick(ipsec, now_ns);
    }

    /// Says whether frames are still fetched from the host: a pair that is drained sends out what it has, delivers
    /// what comes, and then holds nothing ([`QueuePair::held`]).
    pub fn set_draining(&mut self, is_draining: bool) {
        self.transmit.set_draining(is_draining);
    }

    /// Names what is to be woken by a change of settings.
    pub fn register(&mut self, waker: &Waker) {
        // Once, and not before each sleep: it is the same one as long as the same thread drives this.
        if self.waker.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            self.control.register(waker);
        }
    }

    /// Frames inside the pipelines: taken, and neither handed over nor counted as lost.
    pub fn held(&self) -> usize {
        self.transmit.held() + self.receive.held()
    }

    /// When something is due without any new frame: an arrival, frames that wait, held ones, or an interrupt.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let receive_ns = self.receive.next_deadline_ns(&self.wire);
        receive_ns.into_iter().chain(self.transmit.next_deadline_ns()).chain(self.next_interrupt_ns).min()
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
