//! One run: the host under study, its adapter, a link, and a peer.
//!
//! | file | content |
//! |---|---|
//! | `simulation.rs` | start, event loop and end of a run |
//! | `simulation/line.rs` | the stations and the link |
//! | `simulation/transfer.rs` | transfers by a bus-master adapter |
//! | `simulation/driver.rs` | the driver: interrupts, receive and transmit |
//! | `simulation/napi.rs` | polling instead of interrupts |
//! | `simulation/send.rs` | transmit path of TCP and UDP in the host |
//! | `simulation/host.rs` | receive path of TCP and UDP, and processes of the host |
//! | `simulation/message.rs` | requests, responses, datagrams and raw frames |
//! | `simulation/peer.rs` | the peer |
//! | `simulation/state.rs` | the state of a run, its events, the jobs of its processors |
//! | `simulation/engine.rs` | FIFOs, engine and bus of a bus-master adapter |
//! | `simulation/queue.rs` | a queue pair |
//! | `simulation/exchange.rs` | exchanges (such as a request with its response), with their waiting times and losses |
//! | `simulation/steering.rs` | the queue of each connection (RSS) |
//! | `simulation/outcome.rs`, `latency.rs` | counters and results |
//! | `simulation/frame.rs` | a frame |

mod driver;
mod engine;
mod exchange;
mod frame;
mod host;
mod latency;
mod line;
mod message;
mod napi;
mod outcome;
mod peer;
mod queue;
mod send;
mod state;
mod steering;
mod transfer;

pub use latency::{Latency, LatencyBucket, LatencyPart, QueueMean};
pub use outcome::{Activity, Counts, FULL_FRAME_LEN, Outcome, ProcessorLoad, QueueLoad};

use crate::config::{Config, Workload};
use crate::cpu::{Cpu, PRIORITIES};
use crate::events::EventQueue;
use crate::profile::{Profile, ProfileError};
use crate::rpc::{Call, datagram_frames, reply_frames};
use crate::time::{Span, Time};
use engine::Master;
use exchange::Exchanges;
use frame::{HOST, PEER};
use offramp_impair::OutOfRange;
use offramp_offload::segment::Refused;
use outcome::{Parts, ProcessorCounts, QueueCounts, Since};
use queue::{Driver, Polls};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use send::DATAGRAM_LEN_MAX;
use state::{Adapter, Event, Flow, Job, Simulation};
use steering::Steering;
use strum::EnumCount;

/// Maximum number of events per [`SPAN_MIN_US`] of virtual time: a hundred times the events of minimum-size frames of
/// 64 connections at 400 Gbit/s.
const EVENTS_MAX: u64 = 1 << 22;
const SPAN_MIN_US: u64 = 10;

/// Reasons why a run fails.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The configuration of the adapter's memory is invalid.
    #[error("adapter.memory: {0}")]
    Memory(#[from] OutOfRange),
    /// The reply to an RPC call cannot be fragmented.
    #[error("workload.rpc_size: {0}")]
    Rpc(#[from] Refused),
    /// The event queue became empty before the end of the run, or no data arrived in the measured time although
    /// retransmission timers expired.
    #[error("the run is stuck at {at_us} us: {waiting}")]
    Stalled {
        /// Virtual time of the error, in microseconds.
        at_us: u64,
        /// Description of the waiting connections and calls.
        waiting: String,
    },
    /// Virtual time hardly advances: too many events occur within `SPAN_MIN_US`.
    #[error(
        "at {at_us} us the run hardly advances: more than {events} events within {SPAN_MIN_US} us; check the \
         profile's intervals and rates"
    )]
    Crowded {
        /// Virtual time of the error, in microseconds.
        at_us: u64,
        /// Number of events within `SPAN_MIN_US`.
        events: u64,
    },
    /// No data arrived in the measured time, and no retransmission timer has expired yet.
    #[error(
        "no data arrived until the end of the run at {until_us} us: {waiting}; a longer workload.time shows whether \
         the run is slow or stuck"
    )]
    Nothing {
        /// End of the run, in microseconds.
        until_us: u64,
        /// Description of the waiting connections and calls.
        waiting: String,
    },
}

/// Runs a workload on a system, and returns its outcome.
///
/// # Errors
/// Returns an error if the profile is inconsistent, or the run stalls.
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
            // The connections of exchanges carry messages, not streams.
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
        // For exchanges, an outcome without any completed exchange is valid.
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

    /// Returns all counters, including those kept by queues, flows and adapters.
    fn counts_now(&self) -> Counts {
        let of_queues = |count: fn(&Driver) -> u64| self.drivers.iter().map(count).sum::<u64>();
        let of_flows = |count: fn(&Flow) -> u64| self.flows.iter().map(count).sum::<u64>();
        let of_adapters = |count: fn(&Adapter) -> u64| self.adapters.iter().map(count).sum::<u64>();
        Counts {
            dropped: of_queues(|queue| queue.memory.counts().dropped) + of_adapters(|of| of.dma.dropped),
            frames_received: of_queues(|queue| queue.received),
            interrupts: of_queues(|queue| queue.interrupts),
            bus_busy: std::array::from_fn(|direction| {
                self.adapters.iter().fold(Span::ZERO, |sum, of| sum + of.dma.busy[direction].until(self.now))
            }),
            line_busy: std::array::from_fn(|station| self.counts.line_busy[station] - self.promised(station)),
            overrun: of_queues(|queue| queue.memory.counts().overrun),
            out_of_order: of_flows(|flow| flow.receiver.out_of_order),
            retransmissions: self.counts.retransmissions + of_flows(|flow| flow.sender.retransmissions),
            timeouts: self.counts.timeouts + of_flows(|flow| flow.sender.timeouts),
            duplicate_acks: of_flows(|flow| flow.sender.duplicate_acks),
            collisions: of_adapters(|of| of.link.collisions),
            excessive_collisions: of_adapters(|of| of.link.excessive_collisions),
            busy: PRIORITIES
                .map(|priority| self.cpus.iter().fold(Span::ZERO, |sum, cpu| sum + cpu.busy(self.now, priority))),
            activities: std::array::from_fn(|activity| {
                self.activities.iter().fold(Span::ZERO, |sum, of| sum + of[activity])
            }),
            ..self.counts
        }
    }

    /// Returns the link time booked by a full-duplex station beyond the current time. [`Self::send`] counts the time of
    /// a frame before the frame is sent.
    fn promised(&self, station: usize) -> Span {
        if !self.config.link.full_duplex {
            return Span::ZERO;
        }
        let given = self.adapters.iter().map(|of| of.stations[station].ready_at.since(self.now));
        given.fold(Span::ZERO, |sum, span| sum + span)
    }

    /// Returns the counters of each processor and of each queue.
    fn parts_now(&self) -> Parts {
        let processors = self.cpus.iter().zip(&self.activities).map(|(cpu, &activities)| ProcessorCounts {
            busy: PRIORITIES.map(|priority| cpu.busy(self.now, priority)),
            activities,
        });
        let queues = self.drivers.iter().map(|queue| QueueCounts {
            frames: queue.received,
            interrupts: queue.interrupts,
            lost: queue.memory.counts().dropped + queue.memory.counts().overrun,
        });
        Parts { processors: processors.collect(), queues: queues.collect() }
    }

    /// Describes the waiting connections and calls of a stalled run.
    fn waiting(&self) -> String {
        let flows = self.flows.iter().enumerate().map(|(at, flow)| flow.waiting(at));
        let calls = self.calls.iter().enumerate().map(|(at, call)| {
            let (number, attempt) = (call.number, call.attempt);
            format!("call {number} of slot {at} waits for its reply after {attempt} retransmitted requests")
        });
        let mut all: Vec<_> = flows.chain(calls).collect();
        if self.datagram_waits {
            all.push("the process waits for room to send another datagram".to_owned());
        }
        let Counts { dropped, overrun, .. } = self.counts_now();
        if dropped + overrun > 0 {
            all.push(format!("the adapter has dropped {dropped} frames without room and overrun {overrun}"));
        }
        all.join("; ")
    }
}

/// Returns the direction of each connection: `true` if data flow to the host. For requests and responses, data flow in
/// the direction of the requests.
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
