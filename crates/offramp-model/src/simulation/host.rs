//! TCP and UDP receive processing, and the processes of the host under study.

use super::exchange::{Place, Queue};
use super::frame::{Content, Frame};
use super::outcome::Activity;
use super::state::{Event, Job, Simulation};
use crate::config::ReceiveIn;
use crate::cpu::Priority;
use crate::link::FRAME_LEN_MIN;
use crate::rpc::{Call, REQUEST_FRAME_LEN};
use crate::tcp::Received;
use crate::time::{Span, Time};

/// Maximum number of doublings of an RPC's retransmission timeout. The NFS clients of BSD and Linux limit this timeout
/// to 60 s.
const RPC_DOUBLINGS_MAX: u32 = 6;

impl Simulation {
    /// Passes a frame from the driver to its protocol.
    pub(super) fn receive(&mut self, frame: Frame) {
        let costs = self.config.host.costs;
        match frame.content {
            Content::Segment { flow, start, len } => {
                let sum_fs_per_byte = costs.checksum_fs_per_byte.max(costs.capture_fs_per_byte);
                let costs = [
                    (Activity::Tcp, costs.tcp_time),
                    (Activity::Checksum, Span::of_bytes(len, sum_fs_per_byte)),
                    (Activity::Crypt, Span::of_bytes(len, costs.crypt_fs_per_byte)),
                ];
                self.work_of_protocol(Job::Segment { flow, start, len }, &costs);
            }
            Content::Fragment { slot, number, attempt } => {
                let checksum = Span::of_bytes(frame.len, costs.checksum_fs_per_byte);
                let costs = [(Activity::Udp, costs.udp_time), (Activity::Checksum, checksum)];
                self.work_of_protocol(Job::Fragment { slot, number, attempt }, &costs);
            }
            Content::Ack { flow, next, window } => {
                let costs = [(Activity::AckReceived, costs.ack_receive_time)];
                self.work_of_protocol(Job::AckIn { flow, next, window }, &costs);
            }
            Content::Message(message) => self.receive_message(message, frame.len),
            // The host never receives the RPC requests and datagrams that the host itself sent.
            Content::Request { .. } | Content::Datagram { .. } => {}
        }
    }

    /// Returns whether frames wait in a backlog between interrupt handler and softirq.
    pub(super) fn has_backlogs(&self) -> bool {
        self.config.host.receive_in == ReceiveIn::Interrupt
    }

    /// Queues a frame for the softirq of its protocol. A frame read by an interrupt handler is dropped if the backlog
    /// is full.
    pub(super) fn work_of_protocol(&mut self, job: Job, costs: &[(Activity, Span)]) {
        if self.has_backlogs() {
            let processor = self.place(Priority::Softirq, &job);
            if self.backlogs[processor] >= self.config.host.backlog {
                self.counts.backlog_dropped += 1;
                if let Job::Message(message) = job {
                    self.lose(message, Place::Backlog);
                }
                return;
            }
            self.backlogs[processor] += 1;
        }
        if let (Job::Message(message), Some(exchanges)) = (job, &mut self.exchanges) {
            exchanges.move_to(self.now, message, Some(Queue::Backlog));
        }
        self.work(Priority::Softirq, job, costs);
    }

    pub(super) fn on_segment(&mut self, flow: usize, start: u64, len: u64) {
        self.counts.segments_received += 1;
        if self.is_refused(start) {
            self.flows[flow].refused += 1;
            self.counts.refused += 1;
            return;
        }
        match self.flows[flow].receiver.receive(start, len) {
            Received::Acknowledge => self.acknowledge(flow),
            Received::Delay => self.delay_ack(flow, self.now),
        }
        self.wake_reader(flow);
    }

    /// Returns whether the stack drops a valid segment because the adapter marks its checksum as bad. While a packet
    /// capture runs, or without checksum offload, the stack verifies the checksum itself, and never drops such a
    /// segment.
    fn is_refused(&self, start: u64) -> bool {
        let every = self.config.adapter.engine.verdict_fault;
        let believes = self.config.host.costs.checksum_fs_per_byte == 0 && !self.config.host.captures;
        every > 0 && believes && start / self.config.peer.sender.mss % every == every - 1
    }

    /// Submits the work of building an acknowledgement for the in-order data. This work runs ahead of other protocol
    /// work on the processor.
    fn acknowledge(&mut self, flow: usize) {
        self.flows[flow].ack_due = None;
        let (next, window) = self.flows[flow].receiver.ack();
        let costs = self.ack_costs();
        self.work_next(Priority::Softirq, Job::Ack { flow, next, window }, &costs);
    }

    fn ack_costs(&self) -> [(Activity, Span); 2] {
        let bus = self.config.adapter.bus.processor_time(self.ack_frame_len());
        [(Activity::Ack, self.config.host.costs.ack_time), (Activity::Bus, bus)]
    }

    pub(super) fn on_ack_built(&mut self, flow: usize, next: u64, window: u64) {
        self.counts.acks += 1;
        self.transmit(Frame::new(self.ack_frame_len(), Content::Ack { flow, next, window }));
    }

    pub(super) fn ack_frame_len(&self) -> u64 {
        self.config.workload.headers_len.max(FRAME_LEN_MIN)
    }

    pub(super) fn delay_ack(&mut self, flow: usize, from: Time) {
        let is_ours = self.flows[flow].is_to_host;
        let wait = if is_ours { self.config.host.delayed_ack_time } else { self.config.peer.delayed_ack_time };
        let due = from + wait;
        let state = &mut self.flows[flow];
        state.ack_due = Some(due);
        if !state.ack_timer_runs {
            state.ack_timer_runs = true;
            self.events.schedule(due, Event::DelayedAck { flow });
        }
    }

    pub(super) fn on_delayed_ack(&mut self, flow: usize) {
        let state = &mut self.flows[flow];
        state.ack_timer_runs = false;
        match state.ack_due {
            Some(due) if due > self.now => {
                state.ack_timer_runs = true;
                self.events.schedule(due, Event::DelayedAck { flow });
            }
            Some(_) if !state.is_to_host => self.peer_acknowledges(flow, self.now),
            Some(_) => {
                state.ack_due = None;
                let (next, window) = state.receiver.ack();
                let costs = self.ack_costs();
                self.work(Priority::Softirq, Job::Ack { flow, next, window }, &costs);
            }
            None => {}
        }
    }

    fn wake_reader(&mut self, flow: usize) {
        let bytes = self.flows[flow].receiver.unread().min(self.config.workload.read_size);
        if bytes == 0 || self.flows[flow].process_works {
            return;
        }
        self.flows[flow].process_works = true;
        let costs = self.read_costs(bytes);
        self.work(Priority::User, Job::Read { flow, bytes }, &costs);
    }

    pub(super) fn read_costs(&self, bytes: u64) -> [(Activity, Span); 2] {
        let costs = &self.config.host.costs;
        let reads = costs.read_time.times(bytes.div_ceil(costs.read_chunk));
        [(Activity::Process, reads), (Activity::Copy, Span::of_bytes(bytes, costs.copy_fs_per_byte))]
    }

    pub(super) fn on_read(&mut self, flow: usize, bytes: u64) {
        self.counts.bytes += bytes;
        let state = &mut self.flows[flow];
        state.process_works = false;
        let tells_window = state.receiver.read(bytes);
        if tells_window {
            self.acknowledge(flow);
        }
        self.wake_reader(flow);
        self.process_waits(flow);
    }

    /// Starts the next call of a slot.
    pub(super) fn start_call(&mut self, slot: usize) {
        let call = &mut self.calls[slot];
        *call = Call { number: call.number + 1, timer_at: call.timer_at, ..Call::default() };
        self.send_call(slot);
    }

    fn send_call(&mut self, slot: usize) {
        let doublings = self.calls[slot].attempt.min(RPC_DOUBLINGS_MAX);
        let deadline = self.now + self.config.workload.rpc_timer.times(1 << doublings);
        self.calls[slot].deadline = deadline;
        self.watch_call(slot);
        let bus = self.config.adapter.bus.processor_time(REQUEST_FRAME_LEN);
        let costs = [(Activity::Udp, self.config.host.costs.udp_time), (Activity::Bus, bus)];
        self.work(Priority::User, Job::Call { slot }, &costs);
    }

    pub(super) fn on_call_built(&mut self, slot: usize) {
        let call = self.calls[slot];
        let content = Content::Request { slot, number: call.number, attempt: call.attempt };
        self.transmit(Frame::new(REQUEST_FRAME_LEN, content));
    }

    /// Schedules a timer event for a slot at the deadline, unless an earlier timer event is scheduled. Each timer event
    /// checks the deadline.
    fn watch_call(&mut self, slot: usize) {
        let call = &mut self.calls[slot];
        if call.deadline != Time::NEVER && call.timer_at.is_none_or(|at| call.deadline < at) {
            call.timer_at = Some(call.deadline);
            self.events.schedule(call.deadline, Event::RpcTimer { slot });
        }
    }

    pub(super) fn on_rpc_timer(&mut self, slot: usize) {
        let call = &mut self.calls[slot];
        if call.timer_at != Some(self.now) {
            return;
        }
        call.timer_at = None;
        if call.deadline > self.now {
            return self.watch_call(slot);
        }
        // Fragments of the earlier reply cannot complete the new reply, because the IP identification differs.
        (call.attempt, call.fragments) = (call.attempt + 1, 0);
        self.counts.retransmissions += 1;
        self.counts.timeouts += 1;
        self.send_call(slot);
    }

    pub(super) fn on_fragment(&mut self, slot: usize, number: u64, attempt: u32) {
        let call = &mut self.calls[slot];
        if (call.number, call.attempt) != (number, attempt) || call.is_answered {
            return;
        }
        call.fragments += 1;
        if call.fragments as usize == self.reply_frames.len() {
            call.is_answered = true;
            call.deadline = Time::NEVER;
            let [process, copy] = self.read_costs(self.config.workload.rpc_size);
            let costs = [process, copy, (Activity::Rpc, self.config.host.costs.rpc_time)];
            self.work(Priority::User, Job::Reply { slot }, &costs);
        }
    }

    pub(super) fn on_reply_read(&mut self, slot: usize) {
        self.counts.bytes += self.config.workload.rpc_size;
        self.counts.calls += 1;
        self.calls[slot].is_read = true;
        if !self.config.workload.rpc_in_rounds {
            self.start_call(slot);
        } else if self.calls.iter().all(|call| call.is_read) {
            for slot in 0..self.calls.len() {
                self.start_call(slot);
            }
        }
    }
}
