//! Requests and their responses over UDP or TCP, and datagrams that come at a rate: when each is due, and where it waits.
//!
//! A message over UDP is one datagram. A message over TCP is one segment or several, and carries the acknowledgement of the
//! message before it. A lost message over TCP is sent again after the sender's shortest timeout. Over UDP an exchange whose
//! message is lost is lost; in a closed loop the next one begins after `workload.rpc_timer`.

use super::{Activity, Content, Event, Frame, Job, ModelError, Simulation};
use crate::config::{Arrivals, Config, ExchangeConfig};
use crate::cpu::Priority;
use crate::link::FRAME_LEN_MIN;
use crate::rpc::{datagram_frames, tcp_payloads};
use crate::time::{PICOSECONDS_PER_SECOND, Span, Time};
use hdrhistogram::Histogram;
use rand::RngExt;
use serde::Serialize;
use std::fmt::Write as _;

/// Exchanges under way at most. Those due beyond them are lost.
const UNDER_WAY_MAX: usize = 1 << 16;
/// Longest latency that the histogram resolves, ns: an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Digits of a latency: its error is below 0.1 %.
const DIGITS: u8 = 3;
/// What a frame in a socket's buffer counts beside its bytes: an `sk_buff` or an mbuf.
const BUFFER_HEADER_LEN: u64 = 256;
/// Buckets of the printed histogram: the first one's end in ns, and the ratio of an end to the one before it.
const BUCKETS: (u64, f64) = (1000, std::f64::consts::SQRT_2);

/// Where an exchange waits.
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
    /// Until the process runs that it is for.
    WakeUp,
    /// In the process, which also sends.
    Application,
}

/// Every stage, with a name for people.
const STAGES: [&str; 7] =
    ["link and peer", "adapter and bus", "moderation", "interrupt", "softirq", "wake-up", "application"];

/// Which message a frame or a job is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) slot: usize,
    /// A slot is used for one exchange after another.
    number: u64,
    /// How often a message of it was sent again.
    attempt: u32,
    pub(super) flow: usize,
    is_response: bool,
}

/// An exchange under way.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    message: Message,
    due: Time,
    /// Its time until then is divided into stages.
    at: Time,
    stages: [Span; STAGES.len()],
    /// Frames of the message that have come.
    frames: usize,
    /// Work of the process under way.
    cost: Span,
}

/// All exchanges of a run.
#[derive(Debug)]
pub(super) struct Exchanges {
    config: ExchangeConfig,
    slots: Vec<Exchange>,
    free: Vec<usize>,
    /// Frames of a request, and of a response.
    frames: [Vec<u64>; 2],
    begun: u64,
    /// Requests for which an arrival has come.
    arrived: u64,
    /// Bytes of requests that wait for the process.
    socket_len: u64,
    /// Exchanges under way, times how long, until `since`.
    under_way_ps: u128,
    since: Time,
    latencies: Histogram<u64>,
    stages: [u128; STAGES.len()],
    done: u64,
    offered: u64,
    lost: u64,
    socket_dropped: u64,
}

/// The results of exchanges, over the time that was counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Requests or datagrams that were due, per second.
    pub offered_per_second: f64,
    /// Those that were done, per second.
    pub done_per_second: f64,
    /// Those that were lost, per second.
    pub lost_per_second: f64,
    /// Part of them for which the socket of the process had no room.
    pub socket_dropped_per_second: f64,
    /// Under way, on average over time.
    pub under_way: f64,
    /// Mean time from when one is due until it is done, microseconds.
    pub mean_us: f64,
    /// Half of them take no longer.
    pub p50_us: f64,
    /// 95 % of them take no longer.
    pub p95_us: f64,
    /// 99 % of them take no longer.
    pub p99_us: f64,
    /// 99.9 % of them take no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Parts of the mean, microseconds, by where it is spent.
    pub parts: Vec<LatencyPart>,
    /// How many took up to how long, and longer than the entry before.
    pub histogram: Vec<LatencyBucket>,
}

impl Latency {
    /// For people.
    pub fn text(&self) -> String {
        const BAR_LEN: u64 = 40;
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "requests or datagrams    {:.0}/s due, {:.0}/s done, {:.0}/s lost ({:.0}/s by the socket), {:.2} under way",
            self.offered_per_second,
            self.done_per_second,
            self.lost_per_second,
            self.socket_dropped_per_second,
            self.under_way
        );
        let _ = writeln!(
            out,
            "latency, us              p50 {:.2}, p95 {:.2}, p99 {:.2}, p99.9 {:.2}, mean {:.2}, max {:.2}",
            self.p50_us, self.p95_us, self.p99_us, self.p999_us, self.mean_us, self.max_us
        );
        for LatencyPart { name, mean_us } in &self.parts {
            let _ = writeln!(out, "  {name:22} {mean_us:.3}");
        }
        let most = self.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(1);
        for LatencyBucket { up_to_ns, count } in &self.histogram {
            let bar = "#".repeat((count * BAR_LEN).div_ceil(most) as usize);
            let _ = writeln!(out, "  up to {:>12.1} us {count:>10} {bar}", *up_to_ns as f64 / 1e3);
        }
        out
    }
}

/// A part of the mean latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyPart {
    /// Where it is spent.
    pub name: &'static str,
    /// Mean, microseconds.
    pub mean_us: f64,
}

/// A bucket of the histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatencyBucket {
    /// Its end, nanoseconds.
    pub up_to_ns: u64,
    /// Exchanges in it.
    pub count: u64,
}

impl Exchanges {
    /// `None` for a workload that has none.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, ModelError> {
        let Some(exchange) = config.workload.exchange else { return Ok(None) };
        let headers_len = config.workload.headers_len;
        let frames = |len: u64| -> Result<Vec<u64>, ModelError> {
            let lens = if exchange.is_tcp {
                tcp_payloads(len, config.host.send.sender.mss)
                    .into_iter()
                    .map(|payload| payload + headers_len)
                    .collect()
            } else {
                datagram_frames(len as usize)?
            };
            Ok(lens.into_iter().map(|len| len.max(FRAME_LEN_MIN)).collect())
        };
        let latencies = Histogram::new_with_max(LATENCY_MAX_NS, DIGITS).expect("a histogram has up to 5 digits");
        Ok(Some(Self {
            config: exchange,
            slots: Vec::new(),
            free: Vec::new(),
            frames: [frames(exchange.request_len)?, frames(exchange.response_len.max(1))?],
            begun: 0,
            arrived: 0,
            socket_len: 0,
            under_way_ps: 0,
            since: Time::START,
            latencies,
            stages: [0; STAGES.len()],
            done: 0,
            offered: 0,
            lost: 0,
            socket_dropped: 0,
        }))
    }

    /// Bytes that a request takes in the socket's buffer.
    fn request_buffer_len(&self) -> u64 {
        self.frames[0].iter().map(|len| len + BUFFER_HEADER_LEN).sum()
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Counts the time since the number under way changed last.
    fn integrate(&mut self, now: Time) {
        self.under_way_ps += u128::from(now.since(self.since).0) * self.under_way() as u128;
        self.since = now;
    }

    /// Counting begins.
    pub(super) fn count_from(&mut self, now: Time) {
        self.integrate(now);
        (self.under_way_ps, self.done, self.offered, self.lost, self.socket_dropped) = (0, 0, 0, 0, 0);
        self.stages = [0; STAGES.len()];
        self.latencies.reset();
    }

    /// The exchange that a message is of, unless it is over or the message was sent again.
    fn of(&mut self, message: Message) -> Option<&mut Exchange> {
        self.slots.get_mut(message.slot).filter(|of| of.message == message)
    }

    fn begin(&mut self, now: Time) -> Option<Message> {
        self.offered += 1;
        if self.under_way() == UNDER_WAY_MAX {
            self.lost += 1;
            return None;
        }
        self.integrate(now);
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let flow = (self.begun % self.config.flows) as usize;
        self.begun += 1;
        let message = Message { slot, number: self.begun, attempt: 0, flow, is_response: false };
        let exchange =
            Exchange { message, due: now, at: now, stages: [Span::ZERO; STAGES.len()], frames: 0, cost: Span::ZERO };
        match self.slots.get_mut(slot) {
            Some(of) => *of = exchange,
            None => self.slots.push(exchange),
        }
        Some(message)
    }

    fn end(&mut self, now: Time, slot: usize) {
        self.integrate(now);
        // No message has this number.
        self.slots[slot].message.number = 0;
        self.free.push(slot);
    }

    fn mark(&mut self, now: Time, message: Message, stage: Stage) {
        if let Some(of) = self.of(message) {
            of.stages[stage as usize] += now.since(of.at);
            of.at = of.at.max(now);
        }
    }

    /// A frame of a message has come: whether it was the last.
    fn completes(&mut self, message: Message) -> bool {
        let frames = self.frames[usize::from(message.is_response)].len();
        self.of(message).is_some_and(|of| {
            of.frames += 1;
            of.frames == frames
        })
    }

    /// The response to a message, if it is a request.
    fn response_to(&mut self, request: Message) -> Option<Message> {
        let of = self.of(request)?;
        (of.message.is_response, of.frames) = (true, 0);
        Some(of.message)
    }

    /// Their results by `now`, over the time that was counted.
    pub(super) fn outcome(&mut self, now: Time, counted: Span) -> Latency {
        self.integrate(now);
        let us = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let per_second = |count: u64| count as f64 / counted.as_s();
        let mean_us = |sum_ps: u128| sum_ps as f64 / 1e6 / self.done as f64;
        let (first, ratio) = BUCKETS;
        let buckets = self.latencies.iter_log(first, ratio).map(|bucket| LatencyBucket {
            up_to_ns: bucket.value_iterated_to(),
            count: bucket.count_since_last_iteration(),
        });
        Latency {
            offered_per_second: per_second(self.offered),
            done_per_second: per_second(self.done),
            lost_per_second: per_second(self.lost),
            socket_dropped_per_second: per_second(self.socket_dropped),
            under_way: self.under_way_ps as f64 / counted.0 as f64,
            mean_us: self.latencies.mean() / 1e3,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.latencies.max() as f64 / 1e3,
            parts: STAGES
                .into_iter()
                .zip(self.stages)
                .map(|(name, sum)| LatencyPart { name, mean_us: mean_us(sum) })
                .collect(),
            histogram: buckets.filter(|bucket| bucket.count > 0).collect(),
        }
    }
}

impl Simulation {
    /// The first requests of a closed loop, or the first arrival.
    pub(super) fn start_exchanges(&mut self) {
        let Some(ExchangeConfig { arrivals, flows, outstanding, .. }) = self.config.workload.exchange else { return };
        if arrivals == Arrivals::Closed {
            for _ in 0..flows * outstanding {
                self.begin_exchange();
            }
        } else {
            self.schedule_arrival();
        }
    }

    fn schedule_arrival(&mut self) {
        let Some(exchanges) = &self.exchanges else { return };
        let ExchangeConfig { arrivals, rate_per_second, burst, .. } = exchanges.config;
        let arrived = exchanges.arrived;
        let at = match arrivals {
            Arrivals::Poisson => self.now + self.exponential(Span(PICOSECONDS_PER_SECOND / rate_per_second)),
            // By the clock, so that no rounding adds up.
            Arrivals::Bursts => Time::START + Span::of_cycles(arrived + burst, rate_per_second),
            Arrivals::Closed | Arrivals::Periodic => Time::START + Span::of_cycles(arrived + 1, rate_per_second),
        };
        self.events.schedule(at, Event::RequestDue);
    }

    /// A span that is exponentially distributed.
    fn exponential(&mut self, mean: Span) -> Span {
        let uniform: f64 = self.rng.random();
        Span((-(1.0 - uniform).ln() * mean.0 as f64) as u64)
    }

    pub(super) fn on_request_due(&mut self) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let ExchangeConfig { arrivals, burst, .. } = exchanges.config;
        let count = if arrivals == Arrivals::Bursts { burst } else { 1 };
        exchanges.arrived += count;
        for _ in 0..count {
            self.begin_exchange();
        }
        self.schedule_arrival();
    }

    pub(super) fn begin_exchange(&mut self) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let Some(message) = exchanges.begin(self.now) else { return };
        self.send_message(message);
    }

    fn host_sends(&self, message: Message) -> bool {
        self.config.workload.exchange.is_some_and(|of| of.host_is_client) != message.is_response
    }

    /// The peer sends a message, or a process of the host does when it runs.
    fn send_message(&mut self, message: Message) {
        if self.host_sends(message) {
            let costs = self.message_costs(message);
            return self.process(message, &costs);
        }
        let mut at = 0;
        while let Some(frame) = self.message_frame(message, at) {
            self.peer_sends(frame);
            at += 1;
        }
    }

    fn message_frame(&self, message: Message, at: usize) -> Option<Frame> {
        let lens = &self.exchanges.as_ref()?.frames[usize::from(message.is_response)];
        lens.get(at).map(|&len| Frame::new(len, Content::Message(message)))
    }

    /// Work of the process of a message.
    fn process(&mut self, message: Message, costs: &[(Activity, Span)]) {
        let Some(of) = self.exchanges.as_mut().and_then(|exchanges| exchanges.of(message)) else { return };
        of.cost = costs.iter().fold(Span::ZERO, |sum, &(_, span)| sum + span);
        self.work(Priority::User, Job::Process(message), costs);
    }

    /// What a message costs the process that sends it.
    fn message_costs(&self, message: Message) -> [(Activity, Span); 7] {
        let (costs, bus) = (&self.config.host.costs, &self.config.adapter.bus);
        let Some(exchanges) = &self.exchanges else { return [(Activity::Process, Span::ZERO); 7] };
        let of = exchanges.config;
        let len = if message.is_response { of.response_len } else { of.request_len };
        let frames = &exchanges.frames[usize::from(message.is_response)];
        let protocol = if of.is_tcp { (Activity::Segment, costs.segment) } else { (Activity::Udp, costs.udp) };
        let each = protocol.1.times(frames.len() as u64);
        [
            (Activity::Process, costs.write),
            (protocol.0, each),
            (Activity::Registers, costs.register.times(frames.len() as u64)),
            (Activity::Copy, Span::of_bytes(len, costs.write_copy_fs_per_byte)),
            (Activity::Checksum, Span::of_bytes(len, costs.send_checksum_fs_per_byte)),
            (Activity::Crypt, Span::of_bytes(len, costs.crypt_fs_per_byte)),
            (Activity::Bus, bus.processor_time(frames.iter().sum())),
        ]
    }

    /// A frame has come as far as this.
    pub(super) fn mark(&mut self, frame: &Frame, stage: Stage) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.mark(self.now, message, stage);
        }
    }

    /// The driver has read a frame out, after an interrupt that came at `interrupted`.
    pub(super) fn mark_read_out(&mut self, frame: &Frame, interrupted: Time) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.mark(interrupted, message, Stage::Moderation);
            exchanges.mark(self.now, message, Stage::Interrupt);
        }
    }

    /// What the protocol takes for a frame of a message.
    pub(super) fn receive_message(&mut self, message: Message, len: u64) {
        let costs = self.config.host.costs;
        let is_tcp = self.config.workload.exchange.is_some_and(|of| of.is_tcp);
        let protocol = if is_tcp { (Activity::Tcp, costs.tcp) } else { (Activity::Udp, costs.udp) };
        let sum_fs_per_byte = costs.checksum_fs_per_byte.max(costs.capture_fs_per_byte);
        let costs = [
            protocol,
            (Activity::Checksum, Span::of_bytes(len, sum_fs_per_byte)),
            (Activity::Crypt, Span::of_bytes(len, costs.crypt_fs_per_byte)),
        ];
        self.work(Priority::Softirq, Job::Message(message), &costs);
    }

    /// The protocol of the host has a frame: the last one of a message wakes the process.
    pub(super) fn on_message(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        exchanges.mark(self.now, message, Stage::Softirq);
        if !exchanges.completes(message) {
            return;
        }
        let of = exchanges.config;
        let len = if message.is_response { of.response_len } else { of.request_len };
        if !message.is_response && !of.is_tcp {
            if exchanges.socket_len + exchanges.request_buffer_len() > self.config.host.ack_policy.window {
                exchanges.socket_dropped += 1;
                return self.lose(message);
            }
            exchanges.socket_len += exchanges.request_buffer_len();
        }
        let service = self.config.host.costs.rpc;
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

    /// The process of the host has done what a message needs: it has sent it, or received it and answered.
    pub(super) fn on_processed(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let of = exchanges.config;
        let Some(cost) = exchanges.of(message).map(|of| of.cost) else { return };
        exchanges.mark(Time(self.now.0.saturating_sub(cost.0)), message, Stage::WakeUp);
        exchanges.mark(self.now, message, Stage::Application);
        if !self.host_sends(message) {
            let Some(exchanges) = &mut self.exchanges else { return };
            if !message.is_response && !of.is_tcp {
                exchanges.socket_len -= exchanges.request_buffer_len();
            }
            if message.is_response || of.response_len == 0 {
                return self.finish(message);
            }
        }
        let is_answer = !self.host_sends(message);
        let Some(exchanges) = &mut self.exchanges else { return };
        if let Some(sent) = if is_answer { exchanges.response_to(message) } else { Some(message) } {
            self.transmit_message(sent);
        }
    }

    fn transmit_message(&mut self, message: Message) {
        let mut at = 0;
        while let Some(frame) = self.message_frame(message, at) {
            self.transmit(frame);
            at += 1;
        }
    }

    /// The peer has a frame. It answers a request after its service time; a response ends the exchange.
    pub(super) fn on_peer_message(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        exchanges.mark(self.now, message, Stage::Link);
        if !exchanges.completes(message) {
            return;
        }
        if message.is_response {
            return self.finish(message);
        }
        if let Some(response) = exchanges.response_to(message) {
            self.events.schedule(self.now + self.config.peer.service, Event::SendMessage(response));
        }
    }

    fn finish(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        let Some(of) = exchanges.of(message).copied() else { return };
        let latency = self.now.since(of.due);
        exchanges.latencies.saturating_record(latency.whole_ns());
        exchanges.stages.iter_mut().zip(of.stages).for_each(|(sum, span)| *sum += u128::from(span.0));
        exchanges.done += 1;
        exchanges.end(self.now, message.slot);
        self.counts.bytes += exchanges.config.request_len + exchanges.config.response_len;
        self.next_of_loop(if self.config.workload.exchange.is_some_and(|of| of.host_is_client) {
            Span::ZERO
        } else {
            self.config.peer.turnaround
        });
    }

    /// In a closed loop the next exchange begins after `wait`.
    fn next_of_loop(&mut self, wait: Span) {
        if self.config.workload.exchange.is_some_and(|of| of.arrivals == Arrivals::Closed) {
            self.events.schedule(self.now + wait, Event::NextExchange);
        }
    }

    /// A frame is lost; others than those of messages have their own timers.
    pub(super) fn lose_frame(&mut self, frame: &Frame) {
        if let Content::Message(message) = frame.content {
            self.lose(message);
        }
    }

    fn lose(&mut self, message: Message) {
        let host_sends = self.host_sends(message);
        let Some(exchanges) = &mut self.exchanges else { return };
        let is_tcp = exchanges.config.is_tcp;
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
        exchanges.lost += 1;
        exchanges.end(self.now, message.slot);
        self.next_of_loop(self.config.workload.rpc_timer);
    }

    /// A response of the peer is there, or a lost message is sent again.
    pub(super) fn on_send_message(&mut self, message: Message) {
        if self.host_sends(message) && message.is_response {
            // It was processed before: only the protocol sends it again.
            self.transmit_message(message);
        } else {
            self.send_message(message);
        }
    }
}
