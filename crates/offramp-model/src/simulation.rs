//! One run: a host under study, its adapter, a line, and a peer.
//!
//! | file | what happens there |
//! |---|---|
//! | `simulation.rs` | the events, and who is told of each |
//! | `simulation/line.rs` | who sends when |
//! | `simulation/driver.rs` | interrupts, reading frames out |
//! | `simulation/host.rs` | TCP, UDP and processes of the host |
//! | `simulation/peer.rs` | the other machine |
//! | `simulation/outcome.rs` | what is counted |

mod driver;
mod host;
mod line;
mod outcome;
mod peer;

pub use outcome::{ACTIVITIES, Activity, Counts, Outcome};

use crate::config::{Config, Workload};
use crate::cpu::{Completion, Cpu, Priority};
use crate::events::EventQueue;
use crate::link::{Link, Station};
use crate::profile::{Profile, ProfileError};
use crate::rpc::{Call, reply_frames};
use crate::tcp::{Receiver, Sender};
use crate::time::{Span, Time};
use driver::Driver;
use line::StationState;
use offramp_adapter::memory::MemoryConfigError;
use offramp_offload::segment::Refused;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The host under study.
const HOST: Station = 0;
/// The machine that it talks to.
const PEER: Station = 1;

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The profile is wrong.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The adapter's memory is none.
    #[error("adapter.memory: {0}")]
    Memory(#[from] MemoryConfigError),
    /// The RPC's reply cannot be cut into frames.
    #[error("workload.rpc_size: {0}")]
    Rpc(#[from] Refused),
    /// Nothing is to happen any more before the run is over.
    #[error("the run stands still at {at_us} us: {waiting}")]
    Stalled {
        /// Since when.
        at_us: u64,
        /// Who waits for what.
        waiting: String,
    },
}

/// A frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Bytes without FCS.
    len: u64,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Segment { flow: usize, start: u64, len: u64 },
    Ack { flow: usize, next: u64, window: u64 },
    Request { slot: usize, number: u64, attempt: u32 },
    Fragment { slot: usize, number: u64, attempt: u32 },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The processor's job is done.
    Cpu { generation: u64 },
    /// A station has waited for what it waits between two frames.
    Ready(Station),
    /// The last bit of a frame has left.
    Sent { station: Station, transmission: u64 },
    /// The line is free for this station.
    Free(Station),
    /// A frame has reached a station.
    Arrive(Station, Frame),
    /// The moderator may want an interrupt.
    Moderation,
    /// The peer's answer to something is there.
    PeerSends(Frame),
    /// The peer has looked at an acknowledgement.
    PeerAck { flow: usize, next: u64, window: u64 },
    /// The peer's application writes.
    Write { flow: usize },
    /// A sender's time may be out.
    Retransmission { flow: usize },
    /// An acknowledgement has waited long enough.
    DelayedAck { flow: usize },
    /// A call's time may be out.
    RpcTimer { slot: usize },
    /// Interrupts are shut out.
    Mask,
    /// Counting begins.
    Warm,
}

/// Work of the host's processor.
#[derive(Clone, Copy, Debug)]
enum Job {
    InterruptEntry,
    ReadOut,
    BatchFrame(Frame),
    BatchBegin,
    Segment { flow: usize, start: u64, len: u64 },
    Ack { flow: usize, next: u64, window: u64 },
    Read { flow: usize, bytes: u64 },
    Fragment { slot: usize, number: u64, attempt: u32 },
    Call { slot: usize },
    Reply { slot: usize },
    Mask,
}

/// A TCP connection from the peer to the host.
#[derive(Debug)]
struct Flow {
    sender: Sender,
    receiver: Receiver,
    is_reading: bool,
    /// When the earliest event of the sender's timer comes.
    timer_at: Option<Time>,
    /// When a delayed acknowledgement is due.
    ack_due: Option<Time>,
    ack_timer_runs: bool,
    written: u64,
}

/// A run under way.
#[derive(Debug)]
struct Simulation {
    config: Config,
    events: EventQueue<Event>,
    now: Time,
    rng: ChaCha8Rng,
    cpu: Cpu<Job>,
    link: Link,
    stations: [StationState; 2],
    driver: Driver,
    flows: Vec<Flow>,
    calls: Vec<Call>,
    reply_frames: Vec<u64>,
    /// Until when the slower link of the peer is busy.
    hop_free: Time,
    counts: Counts,
    handled: u64,
}

/// Runs a workload on a system, and says what came of it.
///
/// # Errors
/// When the profile does not fit together, or the run stands still.
pub fn run(profile: &Profile, workload: Workload) -> Result<Outcome, ModelError> {
    let config = Config::new(profile, workload)?;
    let mut simulation = Simulation::new(&config)?;
    simulation.start();
    simulation.run()
}

impl Simulation {
    fn new(config: &Config) -> Result<Self, ModelError> {
        let is_rpc = config.workload.workload == Workload::NfsRead;
        let reply_frames = if is_rpc { reply_frames(config.workload.rpc_size as usize)? } else { Vec::new() };
        let flows = if is_rpc { 0 } else { config.workload.flows };
        let calls = if is_rpc { config.workload.rpc_outstanding } else { 0 };
        Ok(Self {
            events: EventQueue::default(),
            now: Time::START,
            rng: ChaCha8Rng::seed_from_u64(config.workload.seed),
            cpu: Cpu::default(),
            link: Link::new(config.link),
            stations: [StationState::new(config.link.gap()), StationState::new(config.peer.gap)],
            driver: Driver::new(&config.adapter),
            flows: (0..flows).map(|_| Flow::new(config)).collect(),
            calls: vec![Call::default(); calls as usize],
            reply_frames,
            hop_free: Time::START,
            counts: Counts::default(),
            handled: 0,
            config: *config,
        })
    }

    fn start(&mut self) {
        self.events.schedule(Time::START + self.config.workload.warmup, Event::Warm);
        if self.config.host.mask_interval > Span::ZERO {
            self.schedule_mask();
        }
        for flow in 0..self.flows.len() {
            self.start_flow(flow);
        }
        for slot in 0..self.calls.len() {
            self.start_call(slot);
        }
    }

    fn run(mut self) -> Result<Outcome, ModelError> {
        let end = Time::START + self.config.workload.warmup + self.config.workload.time;
        let mut warm = Counts::default();
        while let Some((at, event)) = self.events.next_before(end) {
            self.now = at;
            self.handled += 1;
            if let Event::Warm = event {
                warm = self.counts_now();
            } else {
                self.handle(event);
            }
        }
        if self.events.is_empty() {
            return Err(ModelError::Stalled { at_us: self.now.ns() / 1000, waiting: self.waiting() });
        }
        self.now = end;
        let counts = self.counts_now().since(&warm);
        Ok(Outcome::new(&self.config, &counts, self.handled))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Cpu { generation } => self.on_cpu(generation),
            Event::Ready(station) => self.on_ready(station),
            Event::Sent { station, transmission } => self.on_sent(station, transmission),
            Event::Free(station) => self.on_free(station),
            Event::Arrive(station, frame) => self.on_arrive(station, frame),
            Event::Moderation => self.on_moderation(),
            Event::PeerSends(frame) => self.send(PEER, frame),
            Event::PeerAck { flow, next, window } => self.on_peer_ack(flow, next, window),
            Event::Write { flow } => self.on_write(flow),
            Event::Retransmission { flow } => self.on_retransmission(flow),
            Event::DelayedAck { flow } => self.on_delayed_ack(flow),
            Event::RpcTimer { slot } => self.on_rpc_timer(slot),
            Event::Mask => self.on_mask(),
            Event::Warm => {}
        }
    }

    fn on_cpu(&mut self, generation: u64) {
        let Some(job) = self.cpu.complete(self.now, generation) else { return };
        match job {
            Job::InterruptEntry => self.on_interrupt(),
            Job::ReadOut => self.on_read_out(),
            Job::BatchBegin => self.begin_batch(),
            Job::BatchFrame(frame) => self.on_batch_frame(frame),
            Job::Segment { flow, start, len } => self.on_segment(flow, start, len),
            Job::Ack { flow, next, window } => self.on_ack_built(flow, next, window),
            Job::Read { flow, bytes } => self.on_read(flow, bytes),
            Job::Fragment { slot, number, attempt } => self.on_fragment(slot, number, attempt),
            Job::Call { slot } => self.on_call_built(slot),
            Job::Reply { slot } => self.on_reply_read(slot),
            Job::Mask => {}
        }
        let next = self.cpu.resume(self.now);
        self.expect(next);
    }

    /// Work for the processor, charged to what it is for.
    fn work(&mut self, priority: Priority, job: Job, costs: &[(Activity, Span)]) {
        let cost = self.charge(costs);
        let completion = self.cpu.submit(self.now, priority, job, cost);
        self.expect(completion);
    }

    /// The same, before all else of that priority: it follows from the job that is just done.
    fn work_next(&mut self, priority: Priority, job: Job, costs: &[(Activity, Span)]) {
        let cost = self.charge(costs);
        self.cpu.submit_next(priority, job, cost);
    }

    fn charge(&mut self, costs: &[(Activity, Span)]) -> Span {
        let mut sum = Span::ZERO;
        for &(activity, span) in costs {
            self.counts.activities[activity as usize] += span;
            sum += span;
        }
        sum
    }

    fn expect(&mut self, completion: Option<Completion>) {
        if let Some(Completion { at, generation }) = completion {
            self.events.schedule(at, Event::Cpu { generation });
        }
    }

    /// Who waits for what, for a run that stands still.
    fn waiting(&self) -> String {
        let flows = self.flows.iter().enumerate().map(|(at, flow)| {
            let (in_flight, cwnd) = (flow.sender.in_flight(), flow.sender.cwnd());
            format!("connection {at} has {in_flight} bytes under way, a congestion window of {cwnd}")
        });
        let calls = self.calls.iter().map(|call| format!("call {} is not answered", call.number));
        flows.chain(calls).collect::<Vec<_>>().join("; ")
    }
}

impl Flow {
    fn new(config: &Config) -> Self {
        Self {
            sender: Sender::new(config.peer.sender),
            receiver: Receiver::new(config.host.ack_policy),
            is_reading: false,
            timer_at: None,
            ack_due: None,
            ack_timer_runs: false,
            written: 0,
        }
    }
}
