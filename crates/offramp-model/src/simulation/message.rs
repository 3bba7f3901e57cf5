//! The path of requests, responses, datagrams and raw frames through the host and the peer.

use super::exchange::{Place, Queue, Stage};
use super::frame::{Content, Frame, Message, PEER};
use super::line::SENDER_FRAMES;
use super::outcome::Activity;
use super::state::{Event, Job, Simulation};
use crate::config::{Arrivals, Carrier, ExchangeConfig};
use crate::cpu::Priority;
use crate::time::{PICOSECONDS_PER_SECOND, Span, Time};
use rand::RngExt;

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
            // The time is computed from the start of the run, so that rounding errors do not add up.
            Arrivals::Bursts => Time::START + Span::of_cycles(arrived + burst, request_rate),
            Arrivals::Closed | Arrivals::Periodic => Time::START + Span::of_cycles(arrived + 1, request_rate),
        };
        self.events.schedule(at, Event::RequestDue { from_host });
    }

    /// Draws an exponentially distributed span.
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

    /// Returns whether the sender's queue for raw frames is full.
    fn sender_is_late(&self, from_host: bool) -> bool {
        let Some(exchanges) = self.exchanges.as_ref().filter(|of| of.is_of_frames()) else { return false };
        let frames_max = SENDER_FRAMES.max(exchanges.config.at_once());
        if from_host {
            return exchanges.unsent >= frames_max;
        }
        self.is_behind(PEER, frames_max, exchanges.frame_len_max())
    }

    /// Sends a message. The peer sends at once; the host sends when the host's process runs.
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

    /// Submits the work of the host's process for a message.
    fn process(&mut self, message: Message, costs: &[(Activity, Span)]) {
        let Some(of) = self.exchanges.as_mut().and_then(|exchanges| exchanges.of(message)) else { return };
        of.cost = costs.iter().fold(Span::ZERO, |sum, &(_, span)| sum + span);
        self.exchanges.iter_mut().for_each(|of| of.unsent += 1);
        self.work(Priority::User, Job::Process(message), costs);
    }

    /// Returns the costs of sending a message from a process.
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

    /// Ends a stage of the exchange to which a frame belongs.
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

    /// Ends the moderation and interrupt stages of a frame read by the driver. The interrupt was at `interrupted`.
    pub(super) fn mark_read_out(&mut self, frame: &Frame, interrupted: Time) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.mark(interrupted, message, Stage::Moderation);
            exchanges.mark(self.now, message, Stage::Interrupt);
        }
    }

    /// Submits the work of the protocol for a frame of a message.
    pub(super) fn receive_message(&mut self, message: Message, len: u64) {
        let costs = self.config.host.costs;
        let Some(of) = self.config.workload.exchange else { return };
        let protocol = match of.carrier {
            Carrier::Tcp => (Activity::Tcp, costs.tcp_time),
            Carrier::Udp => (Activity::Udp, costs.udp_time),
            // A frame to be forwarded waits for the softirq.
            Carrier::Frame(_) if of.forwards => {
                let bus = (Activity::Bus, self.config.adapter.bus.processor_time(len));
                let costs = [(Activity::Route, costs.route_time), (Activity::Registers, costs.register_time), bus];
                return self.work_of_protocol(Job::Message(message), &costs);
            }
            // The exchange of a raw frame ends here, because no protocol processes the frame.
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

    /// Handles a frame after protocol processing. The last frame of a message wakes the process.
    pub(super) fn on_message(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
        exchanges.mark(self.now, message, Stage::Softirq);
        exchanges.move_to(self.now, message, None);
        let of = exchanges.config;
        if of.forwards {
            // The host forwards the frame through the second adapter.
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

    /// Returns the delay from the wake-up of the process for a message until the process runs. The delay is zero if the
    /// processor already has work for processes.
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

    /// Ends the work of the host's process for a message. The process has sent the host's message, or has received the
    /// peer's message and sent the response, if any.
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

    /// Handles a frame of a message at the peer. The peer answers a request after `service_time`. A response completes
    /// the exchange.
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
        let Some(bytes) = exchanges.finish(self.now, message) else { return };
        self.counts.bytes += bytes;
        let wait = if message.from_host { Span::ZERO } else { self.config.peer.turnaround_time };
        self.next_of_loop(message.from_host, wait);
    }

    /// Begins the next exchange of a closed loop after `wait`.
    fn next_of_loop(&mut self, from_host: bool, wait: Span) {
        if self.config.workload.exchange.is_some_and(|of| of.arrivals == Arrivals::Closed) {
            self.events.schedule(self.now + wait, Event::NextExchange { from_host });
        }
    }

    /// Handles the loss of a frame, if the frame belongs to a message. Streams and calls have their own retransmission
    /// timers.
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
        exchanges.lose(self.now, message, place);
        self.next_of_loop(message.from_host, self.config.workload.rpc_timer);
    }

    /// Sends a response of the peer, or retransmits a lost message.
    pub(super) fn on_send_message(&mut self, message: Message) {
        if message.is_of_host() && message.is_response {
            // The process has sent the response before, so only the protocol retransmits.
            self.transmit_message(message);
        } else {
            self.send_message(message);
        }
    }
}
