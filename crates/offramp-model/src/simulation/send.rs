//! The transmit path of TCP and UDP in the host under study.
//!
//! TCP data are always sent by the process, even if an acknowledgement opened the window. The sends thus stay in order,
//! and run on the processor of the process.

use super::engine::PAGE_LEN;
use super::frame::{Content, Frame};
use super::outcome::Activity;
use super::state::{Event, Job, Simulation};
use super::steering::Steering;
use crate::config::Workload;
use crate::cpu::Priority;
use crate::time::{Span, Time};

/// Maximum data length of a UDP datagram, in bytes (RFC 768 and 791).
pub(super) const DATAGRAM_LEN_MAX: u64 = 65_507;

impl Simulation {
    /// Starts the next write of the process, if the write is due and fits into the socket's buffer. The due time of a
    /// write does not depend on the time of the previous write, so a late write does not delay later writes.
    pub(super) fn write_more(&mut self, flow: usize) {
        let size = self.config.workload.write_size;
        let due = self.due(self.flows[flow].written);
        let state = &mut self.flows[flow];
        let unacknowledged = state.written - state.sender.unacknowledged();
        let has_room = unacknowledged == 0 || unacknowledged + size <= self.config.host.send.buffer;
        if state.process_works || !has_room || state.write_at.is_some() {
            return;
        }
        if due > self.now {
            state.write_at = Some(due);
            self.events.schedule(due, Event::Write { flow });
            return;
        }
        state.process_works = true;
        let costs = &self.config.host.costs;
        let costs = [
            (Activity::Process, costs.write_time),
            (Activity::Copy, Span::of_bytes(size, costs.write_copy_fs_per_byte)),
        ];
        self.work(Priority::User, Job::Write { flow }, &costs);
    }

    /// Returns the due time of the write after the first `bytes` bytes. Without a given rate of the application, every
    /// write is due at once.
    pub(super) fn due(&self, bytes: u64) -> Time {
        match self.config.workload.rate_bps {
            0 => Time::START,
            rate_bps => Time::START + Span::of_bytes_at(bytes, rate_bps),
        }
    }

    pub(super) fn on_written(&mut self, flow: usize) {
        let state = &mut self.flows[flow];
        state.process_works = false;
        state.written += self.config.workload.write_size;
        let written = state.written;
        state.sender.write_until(written);
        self.pump(flow);
        self.write_more(flow);
    }

    /// Sends as much data as the windows allow, as segments or super-frames.
    pub(super) fn host_pump(&mut self, flow: usize) {
        let chunk_len = self.config.host.send.chunk_len;
        while let Some(segment) = self.flows[flow].sender.next(self.now, chunk_len) {
            let job = Job::Send { flow, start: segment.start, len: segment.len };
            let costs = self.send_costs(segment.len);
            self.work(Priority::User, job, &costs);
        }
    }

    fn send_costs(&self, len: u64) -> [(Activity, Span); 5] {
        let costs = &self.config.host.costs;
        let is_large = len > self.config.host.send.sender.mss;
        let large = costs.chunk_time + costs.page_time.times(len.div_ceil(PAGE_LEN));
        let frame_len = len + self.config.workload.headers_len;
        [
            (Activity::Segment, if is_large { large } else { costs.segment_time }),
            (Activity::Registers, costs.register_time),
            (Activity::Checksum, Span::of_bytes(len, costs.send_checksum_fs_per_byte)),
            (Activity::Crypt, Span::of_bytes(len, costs.crypt_fs_per_byte)),
            (Activity::Bus, self.config.adapter.bus.processor_time(frame_len)),
        ]
    }

    pub(super) fn on_segment_built(&mut self, flow: usize, start: u64, len: u64) {
        self.counts.sends += 1;
        let len_on_line = len + self.config.workload.headers_len;
        self.transmit(Frame::new(len_on_line, Content::Segment { flow, start, len }));
    }

    /// Passes a received acknowledgement to the host's TCP sender.
    pub(super) fn on_ack_in(&mut self, flow: usize, next: u64, window: u64) {
        self.on_acknowledged(flow, next, window);
        self.write_more(flow);
    }

    fn datagram_len(&self) -> u64 {
        self.config.workload.write_size.min(DATAGRAM_LEN_MAX)
    }

    /// Returns the host's costs of sending `len` bytes in `frames`. `each` is the protocol's time per frame.
    pub(super) fn costs_of_frames(
        &self,
        len: u64,
        frames: &[u64],
        (protocol, each): (Activity, Span),
    ) -> [(Activity, Span); 7] {
        let costs = &self.config.host.costs;
        // Raw frames pass only through the driver, without a write by a process.
        let write = if protocol == Activity::Driver { Span::ZERO } else { costs.write_time };
        [
            (Activity::Process, write),
            (protocol, each.times(frames.len() as u64)),
            (Activity::Registers, costs.register_time.times(frames.len() as u64)),
            (Activity::Copy, Span::of_bytes(len, costs.write_copy_fs_per_byte)),
            (Activity::Checksum, Span::of_bytes(len, costs.send_checksum_fs_per_byte)),
            (Activity::Crypt, Span::of_bytes(len, costs.crypt_fs_per_byte)),
            (Activity::Bus, self.config.adapter.bus.processor_time(frames.iter().sum())),
        ]
    }

    /// Sends the next datagram of the process.
    pub(super) fn send_datagram(&mut self) {
        let protocol = (Activity::Udp, self.config.host.costs.udp_time);
        let costs = self.costs_of_frames(self.datagram_len(), &self.datagram_frames, protocol);
        self.work(Priority::User, Job::Datagram, &costs);
    }

    /// Transmits the fragments of a datagram. The host fragments, because no modelled adapter does (claim H6). The
    /// process continues once all fragments have a descriptor.
    pub(super) fn on_datagram_built(&mut self) {
        self.counts.sends += 1;
        self.datagram_bytes += self.datagram_len();
        for at in 0..self.datagram_frames.len() {
            // The last fragment completes the datagram at the peer, because the link keeps the order of frames and
            // loses none.
            let is_last = at + 1 == self.datagram_frames.len();
            let payload = if is_last { self.datagram_len() } else { 0 };
            self.transmit(Frame::new(self.datagram_frames[at], Content::Datagram { payload }));
        }
        self.datagram_bytes_sent += self.datagram_len();
        let due = self.due(self.datagram_bytes_sent);
        if due > self.now {
            self.events.schedule(due, Event::NextDatagram);
        } else {
            self.on_next_datagram();
        }
    }

    /// Makes the process wait until another datagram fits into the send buffer and the transmit ring.
    pub(super) fn on_next_datagram(&mut self) {
        self.datagram_waits = true;
        self.wake_datagrams();
    }

    pub(super) fn wake_datagrams(&mut self) {
        let is_udp = self.config.workload.workload == Workload::UdpSend;
        let has_memory =
            self.datagram_bytes == 0 || self.datagram_bytes + self.datagram_len() <= self.config.host.send.buffer;
        if is_udp && self.datagram_waits && has_memory && self.drivers[Steering::OF_DATAGRAMS].has_room() {
            self.datagram_waits = false;
            self.send_datagram();
        }
    }
}
