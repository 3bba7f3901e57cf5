//! An exchange is a request with its response over UDP or TCP, or a datagram or raw frame without a response. This
//! module records the due time, the waiting times and the loss of each exchange.
//!
//! A message is a request, a response or a datagram. A raw frame is a message without a protocol. A forwarded frame is
//! an exchange, too: the request is the frame received on the first adapter, and the response is the same frame sent
//! through the second adapter.
//!
//! A message over UDP is one datagram. A message over TCP has one or more segments, and carries the acknowledgement of
//! the previous message. A lost message over TCP is retransmitted after the sender's minimum timeout. If a message over
//! UDP is lost, its exchange ends as lost. In a closed loop, the next exchange begins `workload.rpc_timer` after the
//! loss.

use super::frame::Message;
use super::latency::{Latency, LatencyBucket, LatencyPart, QueueMean};
use crate::config::{Carrier, Config, ExchangeConfig, IMIX};
use crate::link::{FCS_LEN, FRAME_LEN_MIN};
use crate::rpc::{datagram_frames, tcp_payloads};
use crate::time::{Span, Time};
use hdrhistogram::Histogram;
use offramp_offload::segment::Refused;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use strum::EnumCount;

/// Maximum number of outstanding exchanges. While this number of exchanges is outstanding, every further exchange that
/// becomes due is lost.
const UNDER_WAY_MAX: usize = 1 << 16;
/// Maximum latency of the histogram, in nanoseconds: one hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Significant digits of a recorded latency: the error is below 0.1 %.
const DIGITS: u8 = 3;
/// Overhead of a frame in a socket's buffer, in bytes: an `sk_buff` or an mbuf.
const BUFFER_HEADER_LEN: u64 = 256;
/// Divisor of the exchanges due: a run is reported as growing if its outstanding exchanges grow by more than 1/100 of
/// the exchanges due.
const GROWTH_PARTS: u64 = 100;
/// Buckets of the printed histogram: the upper end of the first bucket in nanoseconds, and the ratio between the ends
/// of adjacent buckets.
const BUCKETS: (u64, f64) = (1000, std::f64::consts::SQRT_2);

/// The stages of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The message is on the link, in the queue before the link, or in the peer.
    Link,
    /// The message is in the adapter or on the bus, in either direction.
    Adapter,
    /// The message is in the host's memory and waits for the interrupt.
    Moderation,
    /// The time from the interrupt until the driver has read the frame.
    Interrupt,
    /// The time from the read by the driver to the end of protocol processing.
    Softirq,
    /// The time from the end of protocol processing until the process runs.
    WakeUp,
    /// The message is in the process, including the send.
    Application,
    /// The raw frame is in the output queue, and waits for a transmit descriptor.
    OutputQueue,
}

/// Display names of the stages, in the order of [`Stage`].
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

/// The place where a message is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumCount)]
pub(super) enum Place {
    /// Before the link. The sender's queue was full, too many exchanges were outstanding, or the sender gave up after
    /// too many collisions.
    Sender,
    /// In the adapter: the FIFO or the receive memory was full.
    Adapter,
    /// In the backlog between interrupt handler and protocol.
    Backlog,
    /// At the socket: its receive buffer was full.
    Socket,
    /// In the output queue before the transmit ring.
    OutputQueue,
}

/// A queue in which a raw frame waits in the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Receive memory: from arrival until the driver has read the frame.
    Ring,
    /// Backlog: from the read by the driver until the frame is forwarded.
    Backlog,
    /// Output queue: from forwarding until the frame has a transmit descriptor.
    Output,
}

/// Display names of the queues, in the order of [`Queue`].
const QUEUES: [&str; 3] = ["ring", "backlog", "output queue"];

/// A class of exchanges with equal frame lengths, such as one frame size of a mix.
#[derive(Debug)]
struct Kind {
    /// Relative frequency of this class.
    weight: u64,
    /// Frame lengths of a request, and of a response, in bytes.
    frames: [Vec<u64>; 2],
    /// Number of bytes that a completed exchange adds to the throughput: payload of both messages, or length of the raw
    /// frame.
    bytes: u64,
}

impl Kind {
    /// Returns the class of raw frames with length `len`, including FCS. The response is the forwarded frame.
    fn of_frame(weight: u64, len: u64) -> Self {
        Self { weight, frames: [vec![len - FCS_LEN], vec![len - FCS_LEN]], bytes: len }
    }

    /// Returns the class of requests and responses.
    fn of_messages(config: &Config, exchange: &ExchangeConfig) -> Result<Self, Refused> {
        let frames = |len: u64| -> Result<Vec<u64>, Refused> {
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

/// A count, and the integral of the count over time.
#[derive(Debug, Default)]
struct Occupancy {
    count: u64,
    /// Integral of the count over time up to `since`, count × picoseconds.
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

    /// Returns the mean count over the measured time `counted`, which ends at `now`.
    fn mean(&mut self, now: Time, counted: Span) -> f64 {
        self.set(now, self.count);
        self.ps as f64 / counted.0 as f64
    }
}

/// An outstanding exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) message: Message,
    due: Time,
    /// Time up to which the exchange's time is already assigned to stages.
    at: Time,
    stages: [Span; STAGES.len()],
    /// Number of received frames of the current message.
    pub(super) frames: usize,
    /// Processor time of the process for the current message.
    pub(super) cost: Span,
    kind: usize,
    /// Queue in which a raw frame waits; `None` if the frame is in no queue.
    queue: Option<Queue>,
}

/// All exchanges of a run.
#[derive(Debug)]
pub(super) struct Exchanges {
    pub(super) config: ExchangeConfig,
    slots: Vec<Exchange>,
    free: Vec<usize>,
    kinds: Vec<Kind>,
    begun: u64,
    /// Number of exchanges begun: by the peer, and by the host.
    turn: [u64; 2],
    pub(super) arrived: [u64; 2],
    /// Number of bytes in the socket's receive buffer, including overhead.
    pub(super) socket_len: u64,
    /// Number of messages that wait for the host's process, or on which the process works.
    pub(super) unsent: u64,
    under_way: Occupancy,
    /// Number of outstanding exchanges at the start of the measured time.
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
    /// Creates the state of a workload's exchanges; `None` for a workload without exchanges.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, Refused> {
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

    pub(super) fn is_of_frames(&self) -> bool {
        matches!(self.config.carrier, Carrier::Frame(_))
    }

    /// Returns the frame lengths of a message.
    pub(super) fn frames(&self, message: Message) -> &[u64] {
        &self.kinds[self.slots[message.slot].kind].frames[usize::from(message.is_response)]
    }

    /// Returns the length of a request's longest frame, in bytes.
    pub(super) fn frame_len_max(&self) -> u64 {
        self.kinds.iter().flat_map(|kind| kind.frames[0].iter().copied()).max().unwrap_or(FRAME_LEN_MIN)
    }

    /// Draws the class of the next exchange.
    pub(super) fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
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

    /// Returns the size of a request in the socket's buffer, in bytes.
    pub(super) fn request_buffer_len(&self) -> u64 {
        self.kinds[0].frames[0].iter().map(|len| len + BUFFER_HEADER_LEN).sum()
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts the measured time.
    pub(super) fn count_from(&mut self, now: Time) {
        self.under_way.count_from(now);
        self.under_way_at_start = self.under_way.count;
        self.queues.iter_mut().for_each(|queue| queue.count_from(now));
        self.counted = Counted::default();
        self.latencies.reset();
    }

    /// Returns the exchange of a message. `None` if the exchange has ended, or if a retransmission has replaced the
    /// message.
    pub(super) fn of(&mut self, message: Message) -> Option<&mut Exchange> {
        self.slots.get_mut(message.slot).filter(|of| of.message == message)
    }

    pub(super) fn begin(&mut self, now: Time, from_host: bool, kind: usize) -> Option<Message> {
        self.counted.offered += 1;
        if self.under_way() == UNDER_WAY_MAX {
            self.counted.lost[Place::Sender as usize] += 1;
            return None;
        }
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let [of_peer, of_host] = self.config.flows;
        let turn = &mut self.turn[usize::from(from_host)];
        // Flows with requests from the host are numbered after flows with requests from the peer.
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

    /// Completes an exchange, and returns the number of bytes that the exchange adds to the throughput. `None` if the
    /// exchange has ended before.
    pub(super) fn finish(&mut self, now: Time, message: Message) -> Option<u64> {
        let of = self.of(message).copied()?;
        self.latencies.saturating_record(now.since(of.due).whole_ns());
        self.counted.stages.iter_mut().zip(of.stages).for_each(|(sum, span)| *sum += u128::from(span.0));
        self.counted.done += 1;
        self.end(now, message);
        Some(self.kinds[of.kind].bytes)
    }

    /// Ends an exchange as lost.
    pub(super) fn lose(&mut self, now: Time, message: Message, place: Place) {
        self.counted.lost[place as usize] += 1;
        self.end(now, message);
    }

    fn end(&mut self, now: Time, message: Message) {
        self.move_to(now, message, None);
        // No message has number 0, so a late frame does not match the slot.
        self.slots[message.slot].message.number = 0;
        self.free.push(message.slot);
        self.under_way.set(now, self.under_way() as u64);
    }

    /// Moves a raw frame from its queue to `queue`. With `None`, removes the frame from its queue.
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

    pub(super) fn mark(&mut self, now: Time, message: Message, stage: Stage) {
        if let Some(of) = self.of(message) {
            of.stages[stage as usize] += now.since(of.at);
            of.at = of.at.max(now);
        }
    }

    /// Counts a received frame of a message. Returns whether the message is complete.
    pub(super) fn completes(&mut self, message: Message) -> bool {
        let frames = self.frames(message).len();
        self.of(message).is_some_and(|of| {
            of.frames += 1;
            of.frames == frames
        })
    }

    /// Advances an exchange from request to response, and returns the response.
    pub(super) fn response_to(&mut self, request: Message) -> Option<Message> {
        let of = self.of(request)?;
        (of.message.is_response, of.frames) = (true, 0);
        Some(of.message)
    }

    /// Returns whether the number of outstanding exchanges has grown during the measured time. The growth must exceed
    /// one burst, and also the exchanges due divided by `GROWTH_PARTS`.
    fn grows(&self) -> bool {
        let more = self.under_way.count.saturating_sub(self.under_way_at_start);
        more > self.config.at_once() && more * GROWTH_PARTS > self.counted.offered
    }

    /// Returns the results over the measured time `counted`, which ends at `now`.
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
        // Only raw frames have an output queue.
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
