//! The peer sends streams and answers requests. The model of the peer has no processor, only a gap between frames, a
//! turnaround time and a service time.

use super::frame::{Content, Frame, PEER};
use super::state::{Event, Simulation};
use crate::tcp::Received;
use crate::time::{Span, Time};

impl Simulation {
    pub(super) fn start_flow(&mut self, flow: usize) {
        if !self.flows[flow].is_to_host {
            self.flows[flow].sender.write_until(0);
            self.write_more(flow);
        } else if self.config.workload.rate_bps > 0 {
            self.flows[flow].sender.write_until(0);
            self.on_write(flow);
        } else {
            self.pump(flow);
        }
    }

    /// Handles a due write of a stream's sender. The peer's application writes one segment, and schedules its next
    /// write. The host's process writes in [`Self::write_more`].
    pub(super) fn on_write(&mut self, flow: usize) {
        if !self.flows[flow].is_to_host {
            self.flows[flow].write_at = None;
            return self.write_more(flow);
        }
        let mss = self.config.peer.sender.mss;
        self.flows[flow].written += mss;
        let written = self.flows[flow].written;
        self.flows[flow].sender.write_until(written);
        self.events.schedule(self.due(written), Event::Write { flow });
        self.pump(flow);
    }

    /// Sends as much data as the windows allow.
    pub(super) fn pump(&mut self, flow: usize) {
        if !self.flows[flow].is_to_host {
            self.host_pump(flow);
            return self.watch(flow);
        }
        let mss = self.config.peer.sender.mss;
        while let Some(segment) = self.flows[flow].sender.next(self.now, mss) {
            let content = Content::Segment { flow, start: segment.start, len: segment.len };
            self.peer_sends(Frame::new(segment.len + self.config.workload.headers_len, content));
        }
        self.watch(flow);
    }

    /// Sends a frame from the peer, through the slower link if configured.
    pub(super) fn peer_sends(&mut self, frame: Frame) {
        let hop_bps = self.config.peer.hop_bps;
        if hop_bps == 0 {
            self.send(PEER, frame);
            return;
        }
        self.hop_free = self.hop_free.max(self.now) + Span::of_bytes_at(frame.len, hop_bps);
        self.events.schedule(self.hop_free, Event::PeerSends(frame));
    }

    /// Starts the retransmission timer of a flow. If the deadline moves later, the scheduled event checks the new
    /// deadline. If the deadline moves earlier, another event is scheduled: for example, when an acknowledgement ends
    /// the back-off.
    fn watch(&mut self, flow: usize) {
        let state = &mut self.flows[flow];
        let deadline = state.sender.deadline;
        if deadline != Time::NEVER && state.timer_at.is_none_or(|at| deadline < at) {
            state.timer_at = Some(deadline);
            self.events.schedule(deadline, Event::Retransmission { flow });
        }
    }

    pub(super) fn on_retransmission(&mut self, flow: usize) {
        let state = &mut self.flows[flow];
        if state.timer_at != Some(self.now) {
            return;
        }
        state.timer_at = None;
        if state.sender.deadline <= self.now {
            state.sender.time_out(self.now);
            self.pump(flow);
        } else {
            self.watch(flow);
        }
    }

    /// Handles a frame that reaches the peer at `arrives`. `arrives` can be in the future. Except for a message, no
    /// event before `arrives` changes the peer's reaction, so the reaction is scheduled now.
    pub(super) fn on_peer_frame(&mut self, frame: Frame, arrives: Time) {
        let at = arrives + self.config.peer.turnaround_time;
        match frame.content {
            Content::Ack { flow, next, window } if at > self.now => {
                self.events.schedule(at, Event::PeerAck { flow, next, window });
            }
            Content::Ack { flow, next, window } => self.on_acknowledged(flow, next, window),
            Content::Request { slot, number, attempt } => {
                let at = arrives + self.config.peer.service_time;
                self.events.schedule(at, Event::PeerReplies { slot, number, attempt });
            }
            Content::Segment { flow, start, len } => self.on_peer_segment(arrives, flow, start, len),
            Content::Datagram { payload } => self.counts.bytes += payload,
            Content::Message(_) if arrives > self.now => self.events.schedule(arrives, Event::Arrive(PEER, frame)),
            Content::Message(message) => self.on_peer_message(message),
            // The peer never receives fragments.
            Content::Fragment { .. } => {}
        }
    }

    /// Handles a segment at the peer. The peer's process reads the data at once.
    fn on_peer_segment(&mut self, arrives: Time, flow: usize, start: u64, len: u64) {
        let receiver = &mut self.flows[flow].receiver;
        let before = receiver.received();
        let received = receiver.receive(start, len);
        let bytes = receiver.received() - before;
        receiver.read(bytes);
        self.counts.bytes += bytes;
        self.counts.bytes_sent += bytes;
        match received {
            Received::Acknowledge => self.peer_acknowledges(flow, arrives),
            Received::Delay => self.delay_ack(flow, arrives),
        }
    }

    pub(super) fn peer_acknowledges(&mut self, flow: usize, arrives: Time) {
        self.flows[flow].ack_due = None;
        let (next, window) = self.flows[flow].receiver.ack();
        let frame = Frame::new(self.ack_frame_len(), Content::Ack { flow, next, window });
        let at = arrives + self.config.peer.turnaround_time;
        if at > self.now {
            self.events.schedule(at, Event::PeerSends(frame));
        } else {
            self.send(PEER, frame);
        }
    }

    /// Passes an acknowledgement to the sender of a stream.
    pub(super) fn on_acknowledged(&mut self, flow: usize, next: u64, window: u64) {
        let sender = &mut self.flows[flow].sender;
        self.counts.acks_received += 1;
        self.counts.in_flight += sender.in_flight();
        sender.acknowledge(self.now, next, window);
        self.pump(flow);
    }

    /// Sends all fragments of a reply back to back.
    pub(super) fn on_peer_replies(&mut self, slot: usize, number: u64, attempt: u32) {
        for at in 0..self.reply_frames.len() {
            let content = Content::Fragment { slot, number, attempt };
            self.send(PEER, Frame::new(self.reply_frames[at], content));
        }
    }
}
