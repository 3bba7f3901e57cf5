//! Line to host: open, parse, verify, steer, join, indicate.

mod gate;

use crate::config::AdapterConfig;
use crate::ipsec::{InForce, Ipsec, Opening};
use crate::moderation::ModerationConfig;
use crate::port::{HostPort, PortError, Settled, WirePort};
use crate::stats::{Direction, Loss};
use crate::transmit::Progress;
use gate::Gate;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, Telling};
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::rss::{INDIRECTION_ENTRIES_DEFAULT, IndirectionTable, Toeplitz};
use std::sync::Arc;

/// Which of the host's queues a flow goes to (receive-side scaling).
#[derive(Debug)]
struct Steering {
    hash: Toeplitz,
    table: IndirectionTable,
}

impl Steering {
    /// None for a single queue: there is nothing to choose.
    fn new(queues: u16) -> Option<Self> {
        let table = IndirectionTable::new(INDIRECTION_ENTRIES_DEFAULT, queues).ok()?;
        (queues > 1).then(|| Self { hash: Toeplitz::default(), table })
    }
}

/// The receive pipeline of one queue pair.
#[derive(Debug)]
pub struct Receive {
    coalescer: Coalescer,
    steering: Option<Steering>,
    enabled: Offloads,
    mtu: usize,
    batch_frames: usize,
    hold_ns: u64,
    gate: Gate,
    /// `None` while no frame has to do with IPsec.
    opening: Option<Box<Opening>>,
    /// The host's interrupts are apart from handing over, and are not counted here.
    is_host_interrupted_apart: bool,
}

impl Receive {
    /// An empty pipeline.
    ///
    /// `honours_data_valid` is what the host port says of itself ([`HostPort::honours_data_valid`]).
    pub fn new(config: &AdapterConfig, honours_data_valid: bool) -> Self {
        let telling = if honours_data_valid { Telling::Verdict } else { Telling::PartialSum };
        Self {
            coalescer: Coalescer::new(CoalesceConfig { telling, ..config.coalesce }),
            steering: Steering::new(config.queues),
            enabled: Offloads::empty(),
            mtu: config.mtu,
            batch_frames: config.receive_batch_frames,
            hold_ns: config.coalesce.hold_ns,
            gate: Gate::new(config.moderation),
            opening: None,
            is_host_interrupted_apart: false,
        }
    }

    /// Hands over what has arrived at once, whatever the moderation: the host sees it before it is interrupted
    /// ([`HostPort::interrupts`]).
    pub(crate) fn leave_interrupts_to_host(&mut self) {
        self.gate.set(ModerationConfig::default());
        self.is_host_interrupted_apart = true;
    }

    /// Frames that are held to be joined.
    pub fn held(&self) -> usize {
        self.coalescer.held()
    }

    /// When something is to be handed over without any new frame: what is held to be joined, or what
    /// `wire` has, arrived or still under way.
    pub fn next_deadline_ns(&self, wire: &impl WirePort) -> Option<u64> {
        let ipsec_ns = self.opening.as_ref().and_then(|opening| opening.next_due_ns());
        self.coalescer.next_deadline_ns().into_iter().chain(self.gate.next_open_ns(wire)).chain(ipsec_ns).min()
    }

    /// Opens with these associations from now on.
    pub(crate) fn set_ipsec(&mut self, in_force: &Arc<InForce>) {
        self.opening = Opening::new(in_force);
    }

    /// Says what time it is to the associations.
    #[inline]
    pub(crate) fn tick(&mut self, ipsec: &Ipsec, now_ns: u64) {
        if let Some(opening) = &mut self.opening {
            opening.tick(ipsec, now_ns);
        }
    }

    /// Changes when frames are handed over, for those that wait too.
    pub fn set_moderation(&mut self, config: ModerationConfig, stats: &Direction) {
        self.gate.set(config);
        self.tell_moderation(stats);
    }

    /// So many bytes went the other way; moderation may depend on it.
    pub fn sent(&mut self, bytes: u64) {
        self.gate.sent(bytes);
    }

    fn tell_moderation(&self, stats: &Direction) {
        stats.interrupt_cost_ns.set(self.gate.cost_ns());
        stats.wait_max_ns.set(self.gate.wait_max_ns());
    }

    /// Moves frames that are due until the line has none or a batch is full, then ends the batch.
    ///
    /// `enabled` is what is on at this moment; what was held under other settings is handed over
    /// first, so that a switch neither loses nor reorders a frame. `clock` is the
    /// processor's time that the caller has had, nanoseconds from any moment; under moderation it is read before and
    /// behind some batches, to learn what they cost.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        enabled: Offloads,
        stats: &Direction,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<Progress, PortError> {
        let lost = wire.advance(now_ns, stats);
        self.gate.lost(lost);
        let due = self.gate.open(wire, now_ns);
        if due == 0 && self.coalescer.next_deadline_ns().is_none_or(|at| now_ns < at) {
            return Ok(Progress::default());
        }
        let begun_ns = self.gate.measures_next().then(clock);
        let batch_frames = self.batch_frames.min(due);
        let mut outlet = Outlet { host, steering: self.steering.as_ref(), stats, closed: None, has_delivered: false };
        if enabled != self.enabled {
            self.coalescer.flush(&mut |meta, frame| outlet.deliver(meta, frame));
            self.enabled = enabled;
        }
        let mut frames = 0;
        while frames < batch_frames {
            let Some(bytes) = wire.take(now_ns) else { break };
            frames += 1;
            stats.frames_in.add(1);
            let mut frame = Frame::received(bytes);
            let opened = match (refuse(&frame, self.mtu), &mut self.opening) {
                (None, Some(opening)) => opening.open(&mut frame, stats),
                (refused, _) => refused.map_or(Ok(()), Err),
            };
            if let Err(reason) = opened {
                stats.lose(reason, 1);
                continue;
            }
            let hash = outlet.flow_hash(&frame);
            if enabled.intersects(Offloads::RX) {
                self.coalescer.push(frame, enabled, hash, now_ns, &mut |meta, frame| outlet.deliver(meta, frame));
            } else {
                outlet.deliver(&RxMeta { hash, ..RxMeta::default() }, frame.bytes());
            }
        }
        if self.hold_ns == 0 {
            self.coalescer.flush(&mut |meta, frame| outlet.deliver(meta, frame));
        } else {
            self.coalescer.flush_expired(now_ns, &mut |meta, frame| outlet.deliver(meta, frame));
        }
        let (closed, has_delivered) = outlet.end_batch(now_ns);
        if has_delivered && !self.is_host_interrupted_apart {
            stats.interrupts.add(1);
        }
        if !self.gate.is_off() && frames > 0 {
            self.gate.taken(frames);
            if let Some(begun_ns) = begun_ns {
                self.gate.handled(frames, clock().saturating_sub(begun_ns));
            }
            self.tell_moderation(stats);
        }
        match closed {
            Some(error) => Err(error),
            None => Ok(Progress { moved: frames > 0, more: frames == self.batch_frames }),
        }
    }
}

fn refuse(frame: &Frame<'_>, mtu: usize) -> Option<Loss> {
    match frame.link_header_len() {
        Ok(link_header_len) if frame.bytes().len() - link_header_len > mtu => Some(Loss::TooLong),
        Ok(_) => None,
        Err(_) => Some(Loss::Malformed),
    }
}

/// A host that is delivered to.
struct Outlet<'a, H> {
    host: &'a mut H,
    steering: Option<&'a Steering>,
    stats: &'a Direction,
    /// Why the host is gone.
    closed: Option<PortError>,
    /// The host took at least one frame.
    has_delivered: bool,
}

impl<H: HostPort> Outlet<'_, H> {
    fn flow_hash(&self, frame: &Frame<'_>) -> Option<u32> {
        match self.steering {
            Some(steering) => steering.hash.hash_frame(frame),
            None => self.host.flow_hash(frame),
        }
    }

    #[inline]
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) {
        let queue = self.steering.zip(meta.hash).map_or(0, |(steering, hash)| steering.table.queue(hash));
        let meta = RxMeta { queue, ..*meta };
        let outcome = self.host.rx_deliver(&meta, frame);
        self.has_delivered |= count(&Settled { meta, len: frame.len(), outcome }, self.stats, &mut self.closed);
    }

    /// Shows the host what it was delivered; why it is gone, and whether it took anything in this batch.
    fn end_batch(mut self, now_ns: u64) -> (Option<PortError>, bool) {
        let Self { host, stats, closed, has_delivered, .. } = &mut self;
        host.end_batch(now_ns, |settled| *has_delivered |= count(&settled, stats, closed));
        (self.closed, self.has_delivered)
    }
}

/// Counts what became of a frame; whether the host took it.
fn count(settled: &Settled, stats: &Direction, closed: &mut Option<PortError>) -> bool {
    let Settled { meta, len, outcome } = settled;
    stats.given(meta, *len, *outcome);
    if let Err(error @ PortError::Closed(_)) = outcome {
        *closed = Some(*error);
    }
    outcome.is_ok()
}
