//! Requests and their responses over UDP or TCP, and datagrams or raw frames at a rate: the time when each is due, and
//! the places where it waits or is lost.
//!
//! A raw frame is a message without a protocol. A forwarded one is a request with a response out of the second adapter.
//!
//! A message over UDP is one datagram. A message over TCP is one segment or several, and carries the acknowledgement of
//! the message before it. A lost message over TCP is sent again after the sender's shortest timeout. Over UDP, a lost
//! message ends its exchange as lost; in a closed loop the next one begins after `workload.rpc_timer`.

use super::latency::{Latency, LatencyBucket, LatencyPart, QueueMean};
use super::line::SENDER_FRAMES;
use super::{Activity, Content, Event, Frame, Job, ModelError, PEER, Simulation};
use crate::config::{Arrivals, Carrier, Config, ExchangeConfig, IMIX};
use crate::cpu::Priority;
use crate::link::{FCS_LEN, FRAME_LEN_MIN};
use crate::rpc::{datagram_frames, tcp_payloads};
use crate::time::{PICOSECONDS_PER_SECOND, Span, Time};
use hdrhistogram::Histogram;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use strum::EnumCount;

/// Maximum exchanges under way. Those due beyond them are lost.
const UNDER_WAY_MAX: usize = 1 << 16;
/// Longest latency in the range of the histogram, ns: an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Digits of a latency: its error is below 0.1 %.
const DIGITS: u8 = 3;
/// Size of a frame in a socket's buffer beside its bytes: an `sk_buff` or an mbuf.
const BUFFER_HEADER_LEN: u64 = 256;
/// A run is reported as growing if its exchanges under way grow by more than one part in this number of those due.
const GROWTH_PARTS: u64 = 100;
/// Buckets of the printed histogram: the first one's end in ns, and the ratio of an end to the one before it.
const BUCKETS: (u64, f64) = (1000, std::f64::consts::SQRT_2);

/// The stages of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// On the link, before the peer's frames on it, and in the peer.
    Link,
    /// In the adapter and on the bus, in either direction.
    Adapter,
    /// In the host's memory, until the interrupt.
    Moderation,
    /// From the interrupt until the driver has read it out.
    Interrupt,
    /// Until the protocol has it.
    Softirq,
    /// Until its process runs.
    WakeUp,
    /// In the process, sending included.
    Application,
    /// Until a raw frame gets a descriptor of a transmit ring.
    OutputQueue,
}

/// Every stage, with a name for people.
const STAGES: [&str; 8] = [
    "link and peer",
    "adapter and bus",
    "moderation",
    "interrupt",
    "softirq",
    "wake-up",
    "application",
    "output queue",
];

/// The place of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumCount)]
pub(super) enum Place {
    /// Before the link: the sender's queue was full, or it gave up after too many collisions.
    Sender,
    /// In the adapter's FIFO or receive memory.
    Adapter,
    /// Between interrupt handler and protocol.
    Backlog,
    /// At the socket of the process.
    Socket,
    /// Before the transmit ring.
    OutputQueue,
}

/// Queues of the host for raw frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// The receive memory, until the driver has read a frame out.
    Ring,
    /// From then until it is forwarded.
    Backlog,
    /// From then until it has a descriptor of the transmit ring.
    Output,
}

/// Every queue, with a name for people.
const QUEUES: [&str; 3] = ["ring", "backlog", "output queue"];

/// The message of a frame or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) slot: usize,
    /// A slot is used for one exchange after another.
    number: u64,
    /// Number of retransmissions of its messages.
    attempt: u32,
    pub(super) flow: usize,
    /// The host sends the request.
    from_host: bool,
    pub(super) is_response: bool,
}

impl Message {
    /// Returns whether the host sends it.
    fn is_of_host(&self) -> bool {
        self.from_host != self.is_response
    }
}

/// A class of equal exchanges.
#[derive(Debug)]
struct Kind {
    /// Its frequency, relative to the others.
    weight: u64,
    /// Frames of a request, and of a response.
    frames: [Vec<u64>; 2],
    /// Bytes counted for a finished one.
    bytes: u64,
}

impl Kind {
    /// Returns the kind of raw frames of a length with FCS. They are not answered, but may be forwarded.
    fn of_frame(weight: u64, len: u64) -> Self {
        Self { weight, frames: [vec![len - FCS_LEN], vec![len - FCS_LEN]], bytes: len }
    }

    /// Returns the kind of requests and responses.
    fn of_messages(config: &Config, exchange: &ExchangeConfig) -> Result<Self, ModelError> {
        let frames = |len: u64| -> Result<Vec<u64>, ModelError> {
            let (lens, headers_len) = match exchange.carrier {
                Carrier::Tcp => (tcp_payloads(len, config.host.send.sender.mss), config.workload.headers_len),
                _ => (datagram_frames(len as usize)?, 0),
            };
            Ok(lens.into_iter().map(|len| (len + headers_len).max(FRAME_LEN_MIN)).collect())
        };
        Ok(Self {
            weight: 1,
            frames: [frames(exchange.request_len)?, frames(exchange.response_len.max(1))?],
            bytes: exchange.request_len + exchange.response_len,
        })
    }
}

/// A count over time.
#[derive(Debug, Default)]
struct Occupancy {
    count: u64,
    /// The integral of the count over time, until `since`.
    ps: u128,
    since: Time,
}

impl Occupancy {
    fn set(&mut self, now: Time, count: u64) {
        self.ps += u128::from(now.since(self.since).0) * u128::from(self.count);
        (self.count, self.since) = (count, now);
    }

    /// Restarts the integral.
    fn count_from(&mut self, now: Time) {
        self.set(now, self.count);
        self.ps = 0;
    }

    /// Returns the mean over `counted`, up to now.
    fn mean(&mut self, now: Time, counted: Span) -> f64 {
        self.set(now, self.count);
        self.ps as f64 / counted.0 as f64
    }
}

/// An exchange under way.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    message: Message,
    due: Time,
    /// End of the time already divided into stages.
    at: Time,
    stages: [Span; STAGES.len()],
    /// Received frames of the message.
    frames: usize,
    /// Work of the process under way.
    cost: Span,
    kind: usize,
    /// The queue of a waiting raw frame.
    queue: Option<Queue>,
}

/// All exchanges of a run.
#[derive(Debug)]
pub(super) struct Exchanges {
    config: ExchangeConfig,
    slots: Vec<Exchange>,
    free: Vec<usize>,
    kinds: Vec<Kind>,
    begun: u64,
    /// Exchanges begun, and requests due, of the peer and of the host.
    turn: [u64; 2],
    arrived: [u64; 2],
    /// Bytes of requests in the socket's buffer.
    socket_len: u64,
    /// Raw frames not sent yet by the host's process.
    unsent: u64,
    under_way: Occupancy,
    /// Exchanges under way at the start of counting.
    under_way_at_start: u64,
    queues: [Occupancy; QUEUES.len()],
    latencies: Histogram<u64>,
    counted: Counted,
}

/// Counters of exchanges.
#[derive(Debug, Default)]
struct Counted {
    stages: [u128; STAGES.len()],
    done: u64,
    offered: u64,
    lost: [u64; Place::COUNT],
}

impl Exchanges {
    /// Creates the exchanges of a workload; `None` for a workload without any.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, ModelError> {
        let Some(exchange) = config.workload.exchange else { return Ok(None) };
        let kinds = match exchange.carrier {
            Carrier::Frame(Some(len)) => vec![Kind::of_frame(1, len)],
            Carrier::Frame(None) => IMIX.iter().map(|&(weight, len)| Kind::of_frame(weight, len)).collect(),
            Carrier::Udp | Carrier::Tcp => vec![Kind::of_messages(config, &exchange)?],
        };
        let latencies = Histogram::new_with_max(LATENCY_MAX_NS, DIGITS).expect("a histogram has up to 5 digits");
        Ok(Some(Self {
            config: exchange,
            slots: Vec::new(),
            free: Vec::new(),
            kinds,
            begun: 0,
            turn: [0; 2],
            arrived: [0; 2],
            socket_len: 0,
            unsent: 0,
            under_way: Occupancy::default(),
            under_way_at_start: 0,
            queues: Default::default(),
            latencies,
            counted: Counted::default(),
        }))
    }

    fn is_of_frames(&self) -> bool {
        matches!(self.config.carrier, Carrier::Frame(_))
    }

    /// Returns the frames of a message.
    fn frames(&self, message: Message) -> &[u64] {
        &self.kinds[self.slots[message.slot].kind].frames[usize::from(message.is_response)]
    }

    /// Returns the longest frame of a request.
    fn frame_len_max(&self) -> u64 {
        self.kinds.iter().flat_map(|kind| kind.frames[0].iter().copied()).max().unwrap_or(FRAME_LEN_MIN)
    }

    /// Draws the kind of the next exchange.
    fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
        if self.kinds.len() == 1 {
            return 0;
        }
        let mut at = rng.random_range(0..self.kinds.iter().map(|kind| kind.weight).sum());
        let is_below = |kind: &Kind| {
            let is_below = at < kind.weight;
            at = at.saturating_sub(kind.weight);
            is_below
        };
        self.kinds.iter().position(is_below).unwrap_or(0)
    }

    /// Returns the size of a request in the socket's buffer, bytes.
    fn request_buffer_len(&self) -> u64 {
        self.kinds[0].frames[0].iter().map(|len| len + BUFFER_HEADER_LEN).sum()
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts counting.
    pub(super) fn count_from(&mut self, now: Time) {
        self.under_way.count_from(now);
        self.under_way_at_start = self.under_way.count;
        self.queues.iter_mut().for_each(|queue| queue.count_from(now));
        self.counted = Counted::default();
        self.latencies.reset();
    }

    /// Returns the exchange of a message, unless it is over or the message was sent again.
    fn of(&mut self, message: Message) -> Option<&mut Exchange> {
        self.slots.get_mut(message.slot).filter(|of| of.message == message)
    }

    fn begin(&mut self, now: Time, from_host: bool, kind: usize) -> Option<Message> {
        self.counted.offered += 1;
        if self.under_way() == UNDER_WAY_MAX {
            self.counted.lost[Place::Sender as usize] += 1;
            return None;
        }
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let [of_peer, of_host] = self.config.flows;
        let turn = &mut self.turn[usize::from(from_host)];
        // Those of the host come after those of the peer.
        let flow = if from_host { of_peer + *turn % of_host } else { *turn % of_peer } as usize;
        (*turn, self.begun) = (*turn + 1, self.begun + 1);
        let message = Message { slot, number: self.begun, attempt: 0, flow, from_host, is_response: false };
        let stages = [Span::ZERO; STAGES.len()];
        let exchange = Exchange { message, due: now, at: now, stages, frames: 0, cost: Span::ZERO, kind, queue: None };
        match self.slots.get_mut(slot) {
            Some(of) => *of = exchange,
            None => self.slots.push(exchange),
        }
        self.under_way.set(now, self.under_way() as u64);
        Some(message)
    }

    fn end(&mut self, now: Time, message: Message) {
        self.move_to(now, message, None);
        // No message has this number, so late frames find no exchange.
        self.slots[message.slot].message.number = 0;
        self.free.push(message.slot);
        self.under_way.set(now, self.under_way() as u64);
    }

    /// Moves a raw frame out of its queue and into another one, or into none.
    pub(super) fn move_to(&mut self, now: Time, message: Message, queue: Option<Queue>) {
        if !self.is_of_frames() {
            return;
        }
        let Some(of) = self.of(message) else { return };
        let left = std::mem::replace(&mut of.queue, queue);
        if left == Some(Queue::Output) {
            self.mark(now, message, Stage::OutputQueue);
        }
        for (queue, entered) in [(left, false), (queue, true)] {
            if let Some(queue) = queue {
                let occupancy = &mut self.queues[queue as usize];
                let count = if entered { occupancy.count + 1 } else { occupancy.count - 1 };
                occupancy.set(now, count);
            }
        }
    }

    fn mark(&mut self, now: Time, message: Message, stage: Stage) {
        if let Some(of) = self.of(message) {
            of.stages[stage as usize] += now.since(of.at);
            of.at = of.at.max(now);
        }
    }

    /// Counts a frame of a message. Returns whether it was the last one.
    fn completes(&mut self, message: Message) -> bool {
        let frames = self.frames(message).len();
        self.of(message).is_some_and(|of| {
            of.frames += 1;
            of.frames == frames
        })
    }

    /// Turns an exchange to its response, and returns that.
    fn response_to(&mut self, request: Message) -> Option<Message> {
        let of = self.of(request)?;
        (of.message.is_response, of.frames) = (true, 0);
        Some(of.message)
    }

    /// Returns whether more were due than done or lost: by more than a part of those due, and by more than one burst.
    fn grows(&self) -> bool {
        let more = self.under_way.count.saturating_sub(self.under_way_at_start);
        more > self.config.at_once() && more * GROWTH_PARTS > self.counted.offered
    }

    /// Returns their results by `now`, over the counted time.
    pub(super) fn outcome(&mut self, now: Time, counted: Span) -> Latency {
        let us = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let per_second = |count: u64| count as f64 / counted.as_s();
        let mean_us = |sum_ps: u128| sum_ps as f64 / 1e6 / self.counted.done as f64;
        let (first, ratio) = BUCKETS;
        let buckets = self.latencies.iter_log(first, ratio).map(|bucket| LatencyBucket {
            up_to_ns: bucket.value_iterated_to(),
            count: bucket.count_since_last_iteration(),
        });
        let (is_of_frames, grows) = (self.is_of_frames(), self.grows());
        let begun = self.slots.iter().filter(|of| of.message.number > 0).map(|of| of.due);
        let waited = begun.fold(Span::ZERO, |sum, due| sum + now.since(due).min(counted));
        let lost = |place| per_second(self.counted.lost[place as usize]);
        let queue = |(name, of): (&'static str, &mut Occupancy)| QueueMean { name, mean_frames: of.mean(now, counted) };
        // Only raw frames wait in an output queue.
        let stages = if is_of_frames { STAGES.len() } else { Stage::OutputQueue as usize };
        let stages = STAGES.into_iter().zip(self.counted.stages).take(stages);
        let queues = QUEUES.into_iter().zip(&mut self.queues).map(queue);
        Latency {
            is_of_frames,
            offered_per_second: per_second(self.counted.offered),
            done_per_second: per_second(self.counted.done),
            lost_per_second: per_second(self.counted.lost.iter().sum()),
            sender_dropped_per_second: lost(Place::Sender),
            adapter_dropped_per_second: lost(Place::Adapter),
            backlog_dropped_per_second: lost(Place::Backlog),
            socket_dropped_per_second: lost(Place::Socket),
            output_queue_dropped_per_second: lost(Place::OutputQueue),
            under_way: self.under_way.mean(now, counted),
            under_way_at_start: self.under_way_at_start,
            under_way_at_end: self.under_way.count,
            under_way_at_end_us: waited.as_us() / self.under_way.count.max(1) as f64,
            grows,
            queues: queues.filter(|_| is_of_frames).collect(),
            mean_us: self.latencies.mean() / 1e3,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.latencies.max() as f64 / 1e3,
            parts: stages.map(|(name, sum)| LatencyPart { name, mean_us: mean_us(sum) }).collect(),
            histogram: buckets.filter(|bucket| bucket.count > 0).collect(),
        }
    }
}

impl Simulation {
    /// Starts the first requests of a closed loop, or schedules the first arrival.
    pub(super) fn start_exchanges(&mut self) {
        let Some(ExchangeConfig { arrivals, flows, outstanding, .. }) = self.config.workload.exchange else { return };
        for (from_host, flows) in [false, true].into_iter().zip(flows).filter(|&(_, flows)| flows > 0) {
            if arrivals == Arrivals::Closed {
                for _ in 0..flows * outstanding {
                    self.begin_exchange(from_host);
                }
            } else {
                self.schedule_arrival(from_host);
            }
        }
    }

    fn schedule_arrival(&mut self, from_host: bool) {
        let Some(exchanges) = &self.exchanges else { return };
        let ExchangeConfig { arrivals, request_rate, burst, .. } = exchanges.config;
        let arrived = exchanges.arrived[usize::from(from_host)];
        let at = match arrivals {
            Arrivals::Poisson => self.now + self.exponential(Span(PICOSECONDS_PER_SECOND / request_rate)),
            // By the clock, so rounding errors do not add up.
            Arrivals::Bursts => Time::START + Span::of_cycles(arrived + burst, request_rate),
            Arrivals::Closed | Arrivals::Periodic => Time::START + Span::of_cycles(arrived + 1, request_rate),
        };
        self.events.schedule(at, Event::RequestDue { from_host });
    }

    /// Returns an exponentially distributed span.
    fn exponential(&mut self, mean: Span) -> Span {
        let uniform: f64 = self.rng.random();
        Span((-(1.0 - uniform).ln() * mean.0 as f64) as u64)
    }

    pub(super) fn on_request_due(&mut self, from_host: bool) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let count = exchanges.config.at_once();
        exchanges.arrived[usize::from(from_host)] += count;
        for _ in 0..count {
            self.begin_exchange(from_host);
        }
        self.schedule_arrival(from_host);
    }

    pub(super) fn begin_exchange(&mut self, from_host: bool) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let kind = exchanges.draw(&mut self.rng);
        let Some(message) = exchanges.begin(self.now, from_host, kind) else { return };
        if self.sender_is_late(from_host) {
            self.lose(message, Place::Sender);
        } else {
            self.send_message(message);
        }
    }

    /// Returns whether the queue of a sender of raw frames is full.
    fn sender_is_late(&self, from_host: bool) -> bool {
        let Some(exchanges) = self.exchanges.as_ref().filter(|of| of.is_of_frames()) else { return false };
        let frames_max = SENDER_FRAMES.max(exchanges.config.at_once());
        if from_host {
            return exchanges.unsent >= frames_max;
        }
        self.is_behind(PEER, frames_max, exchanges.frame_len_max())
    }

    /// Sends a message from the peer, or from a process of the host as soon as it runs.
    fn send_message(&mut self, message: Message) {
        if message.is_of_host() {
            let costs = self.message_costs(message);
            return self.process(message, &costs);
        }
        self.each_frame(message, Self::peer_sends);
    }

    /// Calls `send` with every frame of a message.
    fn each_frame(&mut self, message: Message, send: fn(&mut Self, Frame)) {
        for at in 0.. {
            let Some(&len) = self.exchanges.as_ref().and_then(|of| of.frames(message).get(at)) else { return };
            send(self, Frame::new(len, Content::Message(message)));
        }
    }

    /// Submits work of the process of a message.
    fn process(&mut self, message: Message, costs: &[(Activity, Span)]) {
        let Some(of) = self.exchanges.as_mut().and_then(|exchanges| exchanges.of(message)) else { return };
        of.cost = costs.iter().fold(Span::ZERO, |sum, &(_, span)| sum + span);
        self.exchanges.iter_mut().for_each(|of| of.unsent += 1);
        self.work(Priority::User, Job::Process(message), costs);
    }

    /// Returns the cost of a message for its sending process.
    fn message_costs(&self, message: Message) -> [(Activity, Span); 7] {
        let costs = &self.config.host.costs;
        let Some(exchanges) = &self.exchanges else { return [(Activity::Process, Span::ZERO); 7] };
        let of = exchanges.config;
        let len = if message.is_response { of.response_len } else { of.request_len };
        let protocol = match of.carrier {
            Carrier::Tcp => (Activity::Segment, costs.segment_time),
            Carrier::Udp => (Activity::Udp, costs.udp_time),
            Carrier::Frame(_) => (Activity::Driver, Span::ZERO),
        };
        self.costs_of_frames(len, exchanges.frames(message), protocol)
    }

    /// Ends the stage of a frame.
    pub(super) fn mark(&mut self, frame: &Frame, stage: Stage) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.mark(self.now, message, stage);
        }
    }

    /// Moves a raw frame to a queue, or out of all queues.
    pub(super) fn wait_in(&mut self, frame: &Frame, queue: Option<Queue>) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.move_to(self.now, message, queue);
        }
    }

    /// Ends the stages of a frame read out by the driver after an interrupt at `interrupted`.
    pub(super) fn mark_read_out(&mut self, frame: &Frame, interrupted: Time) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.mark(interrupted, message, Stage::Moderation);
            exchanges.mark(self.now, message, Stage::Interrupt);
        }
    }

    /// Submits the protocol's work for a frame of a message.
    pub(super) fn receive_message(&mut self, message: Message, len: u64) {
        let costs = self.config.host.costs;
        let Some(of) = self.config.workload.exchange else { return };
        let protocol = match of.carrier {
            Carrier::Tcp => (Activity::Tcp, costs.tcp_time),
            Carrier::Udp => (Activity::Udp, costs.udp_time),
            // A frame to forward waits for its softirq.
            Carrier::Frame(_) if of.forwards => {
                let bus = (Activity::Bus, self.config.adapter.bus.processor_time(len));
                let costs = [(Activity::Route, costs.route_time), (Activity::Registers, costs.register_time), bus];
                return self.work_of_protocol(Job::Message(message), &costs);
            }
            // No protocol takes it.
            Carrier::Frame(_) => return self.finish(message),
        };
        let sum_fs_per_byte = costs.checksum_fs_per_byte.max(costs.capture_fs_per_byte);
        let costs = [
            protocol,
            (Activity::Checksum, Span::of_bytes(len, sum_fs_per_byte)),
            (Activity::Crypt, Span::of_bytes(len, costs.crypt_fs_per_byte)),
        ];
        self.work_of_protocol(Job::Message(message), &costs);
    }

    /// Takes a frame from the protocol of the host: the last one of a message wakes the process.
    pub(super) fn on_message(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        exchanges.mark(self.now, message, Stage::Softirq);
        exchanges.move_to(self.now, message, None);
        let of = exchanges.config;
        if of.forwards {
            // The frame leaves through the second adapter.
            let forwarded = exchanges.response_to(message);
            return forwarded.into_iter().for_each(|forwarded| self.transmit_message(forwarded));
        }
        if !exchanges.completes(message) {
            return;
        }
        if !message.is_response && of.carrier != Carrier::Tcp {
            if exchanges.socket_len + exchanges.request_buffer_len() > self.config.host.ack_policy.window {
                return self.lose(message, Place::Socket);
            }
            exchanges.socket_len += exchanges.request_buffer_len();
        }
        match self.wake_up(message) {
            Span::ZERO => self.serve(message),
            wait => self.events.schedule(self.now + wait, Event::WakeUp(message)),
        }
    }

    /// Returns the further sleep of a process after a message wakes it; zero if processes have work.
    fn wake_up(&mut self, message: Message) -> Span {
        let (least, tail) = (self.config.host.wake_up_time, self.config.host.wake_up_tail);
        let processor = self.place(Priority::User, &Job::Process(message));
        if least + tail == Span::ZERO || self.cpus[processor].waiting(Priority::User) > 0 {
            return Span::ZERO;
        }
        least + self.exponential(tail)
    }

    /// Submits the work of the host's process for a message.
    pub(super) fn serve(&mut self, message: Message) {
        let Some(of) = self.config.workload.exchange else { return };
        let len = if message.is_response { of.response_len } else { of.request_len };
        let service = self.config.host.costs.rpc_time;
        let service = if of.service_is_exponential { self.exponential(service) } else { service };
        let [read, copy] = self.read_costs(len);
        let mut costs = vec![read, copy, (Activity::Rpc, service)];
        if !message.is_response
            && of.response_len > 0
            && let Some(response) = self.exchanges.as_mut().and_then(|exchanges| exchanges.of(message))
        {
            let response = Message { is_response: true, ..response.message };
            costs.extend(self.message_costs(response));
        }
        self.process(message, &costs);
    }

    /// Ends the work of the host's process for a message: it is sent, or received and answered.
    pub(super) fn on_processed(&mut self, message: Message) {
        self.process_ends(message);
        self.process_waits(message.flow);
    }

    fn process_ends(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let of = exchanges.config;
        exchanges.unsent -= 1;
        let Some(cost) = exchanges.of(message).map(|of| of.cost) else { return };
        exchanges.mark(Time(self.now.0.saturating_sub(cost.0)), message, Stage::WakeUp);
        exchanges.mark(self.now, message, Stage::Application);
        let mut sent = Some(message);
        if !message.is_of_host() {
            if !message.is_response && of.carrier == Carrier::Udp {
                exchanges.socket_len -= exchanges.request_buffer_len();
            }
            if message.is_response || of.response_len == 0 {
                return self.finish(message);
            }
            sent = exchanges.response_to(message);
        }
        if let Some(sent) = sent {
            self.transmit_message(sent);
        }
    }

    fn transmit_message(&mut self, message: Message) {
        self.each_frame(message, Self::transmit);
    }

    /// Takes a frame at the peer. The peer answers a request after its service time; a response ends the exchange.
    pub(super) fn on_peer_message(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        exchanges.mark(self.now, message, Stage::Link);
        if !exchanges.completes(message) {
            return;
        }
        if message.is_response || exchanges.config.response_len == 0 {
            return self.finish(message);
        }
        if let Some(response) = exchanges.response_to(message) {
            self.events.schedule(self.now + self.config.peer.service_time, Event::SendMessage(response));
        }
    }

    fn finish(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let Some(of) = exchanges.of(message).copied() else { return };
        let latency = self.now.since(of.due);
        exchanges.latencies.saturating_record(latency.whole_ns());
        exchanges.counted.stages.iter_mut().zip(of.stages).for_each(|(sum, span)| *sum += u128::from(span.0));
        exchanges.counted.done += 1;
        exchanges.end(self.now, message);
        self.counts.bytes += exchanges.kinds[of.kind].bytes;
        let wait = if message.from_host { Span::ZERO } else { self.config.peer.turnaround_time };
        self.next_of_loop(message.from_host, wait);
    }

    /// Begins the next exchange of a closed loop after `wait`.
    fn next_of_loop(&mut self, from_host: bool, wait: Span) {
        if self.config.workload.exchange.is_some_and(|of| of.arrivals == Arrivals::Closed) {
            self.events.schedule(self.now + wait, Event::NextExchange { from_host });
        }
    }

    /// Loses a frame. Only messages are handled here; other frames have their own timers.
    pub(super) fn lose_frame(&mut self, frame: &Frame, place: Place) {
        if let Content::Message(message) = frame.content {
            self.lose(message, place);
        }
    }

    pub(super) fn lose(&mut self, message: Message, place: Place) {
        let host_sends = message.is_of_host();
        let Some(exchanges) = &mut self.exchanges else { return };
        let is_tcp = exchanges.config.carrier == Carrier::Tcp;
        let Some(of) = exchanges.of(message) else { return };
        if is_tcp {
            of.message.attempt += 1;
            of.frames = 0;
            let message = of.message;
            let sender = if host_sends { self.config.host.send.sender } else { self.config.peer.sender };
            self.counts.retransmissions += 1;
            self.counts.timeouts += 1;
            return self.events.schedule(self.now + sender.rto_min, Event::SendMessage(message));
        }
        exchanges.counted.lost[place as usize] += 1;
        exchanges.end(self.now, message);
        self.next_of_loop(message.from_host, self.config.workload.rpc_timer);
    }

    /// Sends a finished response of the peer, or a lost message again.
    pub(super) fn on_send_message(&mut self, message: Message) {
        if message.is_of_host() && message.is_response {
            // The process is done with it: only the protocol sends it again.
            self.transmit_message(message);
        } else {
            self.send_message(message);
        }
    }
}
