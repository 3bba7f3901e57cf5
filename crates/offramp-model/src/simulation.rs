//! One run: a host under study, its adapter, a line, and a peer.
//!
//! | file | content |
//! |---|---|
//! | `simulation.rs` | the events, and their handlers |
//! | `simulation/line.rs` | the stations and the line |
//! | `simulation/dma.rs` | the path through an adapter that is bus master |
//! | `simulation/driver.rs` | interrupts, reading frames out |
//! | `simulation/napi.rs` | polling in place of interrupts |
//! | `simulation/steering.rs` | the queue of each connection |
//! | `simulation/send.rs` | TCP and UDP of the host, sending |
//! | `simulation/host.rs` | TCP, UDP and processes of the host |
//! | `simulation/exchange.rs` | requests, responses, datagrams and raw frames, and their queues |
//! | `simulation/latency.rs` | their results |
//! | `simulation/peer.rs` | the other machine |
//! | `simulation/outcome.rs` | counters and results |

mod dma;
mod driver;
mod exchange;
mod host;
mod latency;
mod line;
mod napi;
mod outcome;
mod peer;
mod send;
mod steering;

pub use latency::{Latency, LatencyBucket, LatencyPart, QueueMean};
pub use outcome::{Activity, Counts, FULL_FRAME_LEN, Outcome, ProcessorLoad, QueueLoad};

use crate::config::{Config, Placement, Workload};
use crate::cpu::{Completion, Cpu, Priority};
use crate::events::EventQueue;
use crate::link::{Begin, Link, STATIONS, Station};
use crate::profile::{Profile, ProfileError};
use crate::rpc::{Call, datagram_frames, reply_frames};
use crate::tcp::{Receiver, Sender};
use crate::time::{Span, Time};
use dma::{Dma, Master};
use driver::{Completed, Driver};
use exchange::{Exchanges, Message};
use line::StationState;
use napi::Polls;
use offramp_impair::OutOfRange;
use offramp_offload::segment::Refused;
use outcome::Since;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use steering::Steering;
use strum::EnumCount;

/// The host under study.
const HOST: Station = 0;
/// The machine at the other end.
const PEER: Station = 1;
/// Data of the largest datagram of a process (RFC 768 and 791).
const DATAGRAM_LEN_MAX: u64 = 65_507;

/// Maximum events per virtual [`SPAN_MIN_US`]: a hundred times those of the smallest frames of 64 connections at 400
/// Gbit/s.
const EVENTS_MAX: u64 = 1 << 22;
const SPAN_MIN_US: u64 = 10;

/// Reasons for a run without an outcome.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The profile is wrong.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The configuration of the adapter's memory is invalid.
    #[error("adapter.memory: {0}")]
    Memory(#[from] OutOfRange),
    /// The RPC's reply cannot be fragmented.
    #[error("workload.rpc_size: {0}")]
    Rpc(#[from] Refused),
    /// No event is left before the end of the run, or nothing came through in spite of timeouts.
    #[error("the run stands still at {at_us} us: {waiting}")]
    Stalled {
        /// The moment.
        at_us: u64,
        /// The waiting connections and calls.
        waiting: String,
    },
    /// A run cannot go through so many events.
    #[error(
        "at {at_us} us the run hardly goes on: more than {events} events within {SPAN_MIN_US} us; an interval or a rate of \
         the profile is out of proportion"
    )]
    Crowded {
        /// The moment.
        at_us: u64,
        /// Events in that span.
        events: u64,
    },
    /// Nothing came through in the counted time, and no timeout has ended the wait yet.
    #[error(
        "nothing came through until {until_us} us, when the run ends: {waiting}; a longer workload.time shows whether it \
         is slow or stands still"
    )]
    Nothing {
        /// The end of the run.
        until_us: u64,
        /// The waiting connections and calls.
        waiting: String,
    },
}

/// A frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Bytes without FCS.
    len: u64,
    content: Content,
    /// Ends its send: `true` for every frame but the segments before the last one of a large send.
    completes: bool,
}

impl Frame {
    fn new(len: u64, content: Content) -> Self {
        Self { len, content, completes: true }
    }

    /// Returns the connection of a segment.
    fn flow(&self) -> Option<usize> {
        match self.content {
            Content::Segment { flow, .. } => Some(flow),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Segment { flow: usize, start: u64, len: u64 },
    Ack { flow: usize, next: u64, window: u64 },
    Request { slot: usize, number: u64, attempt: u32 },
    Fragment { slot: usize, number: u64, attempt: u32 },
    Datagram { payload: u64 },
    Message(Message),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A processor's job is done.
    Cpu { processor: usize, generation: u64 },
    /// A station on the line of an adapter has waited its time between two frames.
    Ready { adapter: usize, station: Station },
    /// The last bit of a frame has left.
    Sent { adapter: usize, station: Station, transmission: u64 },
    /// A station begins to send, unless it has heard the other one.
    Begin { adapter: usize, begin: Begin },
    /// A frame of the host has left, on a line of its own.
    Left(Frame),
    /// A frame has reached a station.
    Arrive(Station, Frame),
    /// The bus has taken a frame to the host.
    DmaWritten(Frame),
    /// The bus has taken a frame to the adapter, and its engine is done with it.
    DmaRead(Frame),
    /// The driver's timer.
    Poll { queue: usize },
    /// The timer of a queue with its interrupts off begins a poll.
    NapiTimer { queue: usize },
    /// A queue's moderator may want an interrupt.
    Moderation { queue: usize },
    /// The peer's answer to something is there.
    PeerSends(Frame),
    /// The peer's reply to a call is there.
    PeerReplies { slot: usize, number: u64, attempt: u32 },
    /// The peer has processed an acknowledgement.
    PeerAck { flow: usize, next: u64, window: u64 },
    /// The peer's application writes.
    Write { flow: usize },
    /// The host's process wants to send another datagram.
    NextDatagram,
    /// A request, a datagram or a raw frame is due.
    RequestDue { from_host: bool },
    /// A process wakes up for a message.
    WakeUp(Message),
    /// A closed loop goes on.
    NextExchange { from_host: bool },
    /// A message is to be sent: the peer has it ready, or it was lost.
    SendMessage(Message),
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
    InterruptEntry { queue: usize },
    ReadOut { queue: usize },
    BatchFrame { queue: usize, frame: Frame },
    BatchBegin { queue: usize },
    PollTurn { queue: usize },
    Segment { flow: usize, start: u64, len: u64 },
    Ack { flow: usize, next: u64, window: u64 },
    Read { flow: usize, bytes: u64 },
    BusyPoll { flow: usize, until: Time },
    Fragment { slot: usize, number: u64, attempt: u32 },
    Call { slot: usize },
    Reply { slot: usize },
    Completions { queue: usize, completed: Completed },
    AckIn { flow: usize, next: u64, window: u64 },
    Write { flow: usize },
    Send { flow: usize, start: u64, len: u64 },
    Datagram,
    Message(Message),
    Process(Message),
    Mask,
}

impl Job {
    /// Returns whether a protocol takes a frame.
    fn is_of_protocol(&self) -> bool {
        matches!(self, Self::Segment { .. } | Self::Fragment { .. } | Self::AckIn { .. } | Self::Message(_))
    }

    fn owner(&self) -> Owner {
        match *self {
            Self::InterruptEntry { queue }
            | Self::ReadOut { queue }
            | Self::BatchFrame { queue, .. }
            | Self::BatchBegin { queue }
            | Self::PollTurn { queue }
            | Self::Completions { queue, .. } => Owner::Queue(queue),
            Self::Segment { flow, .. }
            | Self::Ack { flow, .. }
            | Self::Read { flow, .. }
            | Self::BusyPoll { flow, .. }
            | Self::AckIn { flow, .. }
            | Self::Write { flow }
            | Self::Send { flow, .. } => Owner::Flow(flow),
            Self::Message(message) | Self::Process(message) => Owner::Flow(message.flow),
            Self::Fragment { slot, .. } | Self::Call { slot } | Self::Reply { slot } => Owner::Call(slot),
            Self::Datagram | Self::Mask => Owner::None,
        }
    }

    /// Returns the number of its connection, or of its call. A job of the driver has none.
    fn connection(&self) -> Option<usize> {
        match self.owner() {
            Owner::Flow(number) | Owner::Call(number) => Some(number),
            Owner::Queue(_) | Owner::None => None,
        }
    }
}

/// The owner of a job: a queue's driver, a connection, or a call.
enum Owner {
    Queue(usize),
    Flow(usize),
    Call(usize),
    None,
}

/// A TCP connection with data in one direction.
#[derive(Debug, Default)]
struct Flow {
    /// From the peer to the host; else from the host to the peer.
    is_to_host: bool,
    sender: Sender,
    receiver: Receiver,
    /// The process reads or writes.
    process_works: bool,
    /// Segments refused by the host because the adapter reported them as bad.
    refused: u64,
    /// The earliest event of the sender's timer.
    timer_at: Option<Time>,
    /// The time of a delayed acknowledgement.
    ack_due: Option<Time>,
    ack_timer_runs: bool,
    /// Bytes written by the process.
    written: u64,
    /// The scheduled time of the next write at a rate.
    write_at: Option<Time>,
}

/// An adapter of the host, with its line and the stations at both of its ends, but without its queue pairs.
#[derive(Debug)]
struct Adapter {
    dma: Dma,
    link: Link,
    stations: [StationState; STATIONS],
}

/// A run under way.
#[derive(Debug)]
struct Simulation {
    config: Config,
    events: EventQueue<Event>,
    now: Time,
    rng: ChaCha8Rng,
    cpus: Vec<Cpu<Job>>,
    /// Work given to each processor, by activity.
    activities: Vec<[Span; Activity::COUNT]>,
    /// The processor with a job just done, and its follow-up jobs not submitted yet.
    deciding: Option<usize>,
    /// Interrupts given to processors in turn so far.
    interrupt_turn: usize,
    adapters: Vec<Adapter>,
    /// The buses of the adapters.
    masters: Vec<Master>,
    steering: Steering,
    /// One for each queue, those of the first adapter first.
    drivers: Vec<Driver>,
    flows: Vec<Flow>,
    calls: Vec<Call>,
    reply_frames: Vec<u64>,
    datagram_frames: Vec<u64>,
    /// The process waits for room to send another datagram.
    datagram_waits: bool,
    /// Payload of all datagrams so far.
    datagram_bytes_sent: u64,
    /// Payload of datagrams with a completion not yet processed by the host.
    datagram_bytes: u64,
    exchanges: Option<Exchanges>,
    /// Frames on each processor between the interrupt handler and their protocol.
    backlogs: Vec<usize>,
    /// Polls of the softirqs of each processor.
    polls: Vec<Polls>,
    /// The time at which the slower link of the peer is free again.
    hop_free: Time,
    counts: Counts,
    handled: u64,
}

/// Runs a workload on a system, and returns its outcome.
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
        let calls = if is_rpc { config.workload.rpc_outstanding } else { 0 };
        let directions = directions(config);
        let exchanges = Exchanges::new(config)?;
        let adapters = if config.workload.workload == Workload::Forward { 2 } else { 1 };
        Ok(Self {
            events: EventQueue::default(),
            now: Time::START,
            rng: ChaCha8Rng::seed_from_u64(config.workload.seed),
            cpus: (0..config.host.processors).map(|_| Cpu::default()).collect(),
            activities: vec![[Span::ZERO; Activity::COUNT]; config.host.processors as usize],
            deciding: None,
            interrupt_turn: 0,
            adapters: (0..adapters).map(|_| Adapter::new(config)).collect(),
            masters: Master::buses(&config.adapter, adapters),
            backlogs: vec![0; config.host.processors as usize],
            polls: vec![Polls::default(); config.host.processors as usize],
            steering: Steering::new(config, &directions, calls as usize),
            drivers: (0..adapters as u64 * config.adapter.queues).map(|_| Driver::new(&config.adapter)).collect(),
            // The connections of exchanges have no stream.
            flows: (directions.into_iter().filter(|_| exchanges.is_none()))
                .map(|is_to_host| Flow::new(config, is_to_host))
                .collect(),
            calls: vec![Call::default(); calls as usize],
            reply_frames,
            datagram_frames: datagram_frames(config.workload.write_size.min(DATAGRAM_LEN_MAX) as usize)?,
            datagram_waits: false,
            datagram_bytes_sent: 0,
            datagram_bytes: 0,
            exchanges,
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
        if self.config.workload.workload == Workload::UdpSend {
            self.send_datagram();
        }
        self.start_exchanges();
    }

    fn run(mut self) -> Result<Outcome, ModelError> {
        let end = Time::START + self.config.workload.warmup + self.config.workload.time;
        let (mut warm, mut warm_parts) = (Counts::default(), self.parts_now());
        let mut checked = Time::START;
        while let Some((at, event)) = self.events.next_before(end) {
            self.now = at;
            self.handled += 1;
            if self.handled.is_multiple_of(EVENTS_MAX) {
                if at.since(checked) < Span::us(SPAN_MIN_US) {
                    return Err(ModelError::Crowded { at_us: at.ns() / 1000, events: EVENTS_MAX });
                }
                checked = at;
            }
            if let Event::Warm = event {
                (warm, warm_parts) = (self.counts_now(), self.parts_now());
                self.adapters.iter_mut().flat_map(|of| &mut of.dma.busy).for_each(|busy| busy.count_from(at));
                self.exchanges.iter_mut().for_each(|of| of.count_from(at));
            } else {
                self.handle(event);
            }
        }
        if self.events.is_empty() {
            return Err(ModelError::Stalled { at_us: self.now.ns() / 1000, waiting: self.waiting() });
        }
        self.now = end;
        let all = self.counts_now();
        let counts = all.since(&warm);
        // Exchanges may have none done; that is an outcome.
        if counts.bytes == 0 && self.exchanges.is_none() {
            let (at_us, waiting) = (self.now.ns() / 1000, self.waiting());
            return Err(match all.timeouts {
                0 => ModelError::Nothing { until_us: at_us, waiting },
                _ => ModelError::Stalled { at_us, waiting },
            });
        }
        let parts = self.parts_now().since(&warm_parts);
        let latency = self.exchanges.as_mut().map(|of| of.outcome(end, self.config.workload.time));
        Ok(Outcome::new(&self.config, &counts, &parts, &self.steering, self.handled, latency))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Cpu { processor, generation } => self.on_cpu(processor, generation),
            Event::DmaWritten(frame) => self.on_dma_written(frame),
            Event::DmaRead(frame) => self.send(HOST, frame),
            Event::Poll { queue } => self.on_poll(queue),
            Event::NapiTimer { queue } => self.on_napi_timer(queue),
            Event::Ready { adapter, station } => self.on_ready(adapter, station),
            Event::Sent { adapter, station, transmission } => self.on_sent(adapter, station, transmission),
            Event::Begin { adapter, begin } => self.on_begin(adapter, begin),
            Event::Left(frame) => self.on_left(frame),
            Event::Arrive(HOST, frame) => self.on_host_frame(frame),
            Event::Arrive(_, frame) => self.on_peer_frame(frame, self.now),
            Event::Moderation { queue } => self.on_moderation(queue),
            Event::PeerSends(frame) => self.send(PEER, frame),
            Event::PeerReplies { slot, number, attempt } => self.on_peer_replies(slot, number, attempt),
            Event::PeerAck { flow, next, window } => self.on_acknowledged(flow, next, window),
            Event::Write { flow } => self.on_write(flow),
            Event::NextDatagram => self.on_next_datagram(),
            Event::RequestDue { from_host } => self.on_request_due(from_host),
            Event::WakeUp(message) => self.serve(message),
            Event::NextExchange { from_host } => self.begin_exchange(from_host),
            Event::SendMessage(message) => self.on_send_message(message),
            Event::Retransmission { flow } => self.on_retransmission(flow),
            Event::DelayedAck { flow } => self.on_delayed_ack(flow),
            Event::RpcTimer { slot } => self.on_rpc_timer(slot),
            Event::Mask => self.on_mask(),
            Event::Warm => {}
        }
    }

    fn on_cpu(&mut self, processor: usize, generation: u64) {
        let Some(job) = self.cpus[processor].complete(self.now, generation) else { return };
        self.deciding = Some(processor);
        if self.has_backlogs() && job.is_of_protocol() {
            self.backlogs[processor] -= 1;
        }
        match job {
            Job::InterruptEntry { queue } => self.on_interrupt(queue),
            Job::ReadOut { queue } => self.on_read_out(queue),
            Job::BatchBegin { queue } => self.begin_batch(queue),
            Job::PollTurn { .. } => self.poll_on(processor),
            Job::Completions { queue, completed } => self.on_completions(queue, completed),
            Job::BatchFrame { queue, frame } => self.on_batch_frame(queue, frame),
            Job::Segment { flow, start, len } => self.on_segment(flow, start, len),
            Job::Ack { flow, next, window } => self.on_ack_built(flow, next, window),
            Job::Read { flow, bytes } => self.on_read(flow, bytes),
            Job::BusyPoll { flow, until } => self.on_busy_poll(flow, until),
            Job::Fragment { slot, number, attempt } => self.on_fragment(slot, number, attempt),
            Job::Call { slot } => self.on_call_built(slot),
            Job::Reply { slot } => self.on_reply_read(slot),
            Job::AckIn { flow, next, window } => self.on_ack_in(flow, next, window),
            Job::Write { flow } => self.on_written(flow),
            Job::Send { flow, start, len } => self.on_segment_built(flow, start, len),
            Job::Datagram => self.on_datagram_built(),
            Job::Message(message) => self.on_message(message),
            Job::Process(message) => self.on_processed(message),
            Job::Mask => {}
        }
        self.deciding = None;
        let next = self.cpus[processor].resume(self.now);
        self.expect(processor, next);
    }

    /// Returns the processor for a job.
    fn place(&self, priority: Priority, job: &Job) -> usize {
        let count = self.cpus.len();
        if count == 1 {
            return 0;
        }
        if priority == Priority::Softirq
            && let Some(processor) = self.drivers[self.queue_of(job)].napi.polled_on
        {
            return processor;
        }
        match self.config.host.placement {
            // A process without a connection.
            _ if matches!(job, Job::Datagram) => count - 1,
            Placement::Balanced => job.connection().unwrap_or_else(|| self.turn_of(job)) % count,
            Placement::Pinned | Placement::Spread
                if priority != Priority::User || matches!(job, Job::PollTurn { .. }) =>
            {
                self.queue_of(job) % count
            }
            Placement::Pinned => count - 1,
            Placement::Spread => job.connection().map_or(count - 1, |connection| self.steering.process(connection)),
        }
    }

    /// Returns the turn of the interrupt behind a job of the driver.
    fn turn_of(&self, job: &Job) -> usize {
        if let Owner::Queue(queue) = job.owner() { self.drivers[queue].turn } else { self.interrupt_turn }
    }

    /// Returns the queue whose interrupts cause a job. Interrupts are shut out on the first processor.
    fn queue_of(&self, job: &Job) -> usize {
        match job.owner() {
            Owner::Queue(queue) => queue,
            Owner::Flow(flow) => self.steering.of_flow(flow),
            Owner::Call(_) => self.steering.of_replies(),
            Owner::None => Steering::OF_DATAGRAMS,
        }
    }

    /// Returns the adapter on the path of a frame: the second one carries forwarded frames.
    fn adapter_of(&self, frame: &Frame) -> usize {
        usize::from(self.steering.is_forwarded(&frame.content))
    }

    /// Submits work for the processor, and charges it to its activities.
    fn work(&mut self, priority: Priority, job: Job, costs: &[(Activity, Span)]) {
        let processor = self.place(priority, &job);
        let cost = self.charge(processor, costs);
        let completion = self.cpus[processor].submit(self.now, priority, job, cost);
        self.expect(processor, completion);
    }

    /// Submits follow-up work of a job. If that job was on the same processor, the work comes before all else of its
    /// priority.
    fn work_next(&mut self, priority: Priority, job: Job, costs: &[(Activity, Span)]) {
        let processor = self.place(priority, &job);
        if self.deciding != Some(processor) {
            return self.work(priority, job, costs);
        }
        let cost = self.charge(processor, costs);
        self.cpus[processor].submit_next(priority, job, cost);
    }

    fn charge(&mut self, processor: usize, costs: &[(Activity, Span)]) -> Span {
        let mut sum = Span::ZERO;
        for &(activity, span) in costs {
            self.activities[processor][activity as usize] += span;
            sum += span;
        }
        sum
    }

    fn expect(&mut self, processor: usize, completion: Option<Completion>) {
        if let Some(Completion { at, generation }) = completion {
            self.events.schedule(at, Event::Cpu { processor, generation });
        }
    }

    /// Lists the waiting connections and calls of a stalled run.
    fn waiting(&self) -> String {
        let flows = self.flows.iter().enumerate().map(|(at, flow)| flow.waiting(at));
        let calls = self.calls.iter().enumerate().map(|(at, call)| {
            let (number, attempt) = (call.number, call.attempt);
            format!("call {number} of slot {at} waits for its reply after {attempt} requests sent again")
        });
        let mut all: Vec<_> = flows.chain(calls).collect();
        if self.datagram_waits {
            all.push("the process waits for room to send another datagram".to_owned());
        }
        let Counts { dropped, overrun, .. } = self.counts_now();
        if dropped + overrun > 0 {
            all.push(format!("the adapter has lost {dropped} frames for want of room and overrun {overrun}"));
        }
        all.join("; ")
    }
}

/// Returns the direction of each connection; for exchanges, the direction of its requests.
fn directions(config: &Config) -> Vec<bool> {
    if let Some(exchange) = config.workload.exchange {
        let [of_peer, of_host] = exchange.flows.map(|flows| flows as usize);
        return [vec![true; of_peer], vec![false; of_host]].concat();
    }
    let to_host = matches!(config.workload.workload, Workload::TtcpReceive | Workload::TtcpBoth);
    let from_host = matches!(config.workload.workload, Workload::TtcpSend | Workload::TtcpBoth);
    let of = |is_there: bool| if is_there { config.workload.flows as usize } else { 0 };
    [vec![true; of(to_host)], vec![false; of(from_host)]].concat()
}

impl Adapter {
    fn new(config: &Config) -> Self {
        Self {
            dma: Dma::default(),
            link: Link::new(config.link),
            stations: [StationState::new(config.adapter.gap), StationState::new(config.peer.gap)],
        }
    }
}

impl Flow {
    fn new(Config { host, peer, .. }: &Config, is_to_host: bool) -> Self {
        let (sender, policy) =
            if is_to_host { (peer.sender, host.ack_policy) } else { (host.send.sender, peer.ack_policy) };
        Self { is_to_host, sender: Sender::new(sender), receiver: Receiver::new(policy), ..Self::default() }
    }

    fn waiting(&self, at: usize) -> String {
        let who = if self.is_to_host { "peer" } else { "host" };
        let (byte, under_way, times) =
            (self.sender.unacknowledged(), self.sender.in_flight(), self.sender.timeouts_in_row);
        let refused = match self.refused {
            0 => String::new(),
            count => format!("; the host has refused {count} segments that its adapter called bad"),
        };
        format!(
            "connection {at}: the {who} waits for byte {byte} to be acknowledged, with {under_way} bytes under way, \
             after {times} timeouts in a row{refused}"
        )
    }
}
