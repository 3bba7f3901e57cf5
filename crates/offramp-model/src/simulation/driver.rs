//! The host's adapter and its driver: the receive memory, interrupts, reading frames out, handing frames down.

use super::exchange::{Place, Queue, Stage};
use super::napi::Napi;
use super::{Activity, Content, Event, Frame, HOST, Job, Simulation};
use crate::bus::Bus;
use crate::config::{AdapterConfig, CoalescedBy, ReceiveIn};
use crate::cpu::Priority;
use crate::time::{Span, Time};
use offramp_adapter::moderation::Moderator;
use offramp_adapter::port::Arrival;
use offramp_impair::memory::{Fate, Memory};
use rand::RngExt;
use std::collections::VecDeque;

/// A queue pair of the adapter from its driver's view. The adapter's own code decides between storing and losing a
/// frame.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) memory: Memory,
    /// The frames in the memory.
    frames: VecDeque<Frame>,
    moderator: Moderator,
    /// Moderator of completed sends, if it is not the one of received frames.
    completion_moderator: Option<Moderator>,
    /// The time of the scheduled question to the moderator.
    moderation_at: Option<Time>,
    /// The handler or its deferred part runs: no further interrupt comes.
    pub(super) is_active: bool,
    /// A batch begun by the timer is under way.
    is_polling: bool,
    /// The timer's next tick is scheduled; ticks with nothing waiting are left out.
    poll_is_scheduled: bool,
    /// Time of the last interrupt, or of the last tick of the timer.
    pub(super) interrupted_at: Time,
    /// Cost of the interrupt under way so far, if the moderator measures it.
    handling: Option<Handling>,
    /// The frames to hand over, the next one last.
    batch: Vec<Aggregate>,
    /// Aggregates held by software for further segments (`host.gro_flush_timeout`).
    pub(super) held: Vec<Aggregate>,
    /// State of polling in place of interrupts.
    pub(super) napi: Napi,
    transmit_buffers: usize,
    /// Transmit buffers or descriptors in use.
    in_use: usize,
    /// Frames that wait for a free transmit buffer.
    waiting: VecDeque<Frame>,
    completed: Completed,
    /// Frames read out by the driver so far.
    pub(super) received: u64,
    /// Interrupts so far.
    pub(super) interrupts: u64,
    /// Number of its last interrupt among all interrupts.
    pub(super) turn: usize,
}

/// A frame to hand over, with its coalesced segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggregate {
    frame: Frame,
    /// Payload of the first segment.
    piece: u64,
    /// Frames on the wire.
    segments: u64,
    /// The time at which the first was read out.
    since: Time,
}

impl Aggregate {
    fn new(frame: Frame, since: Time) -> Self {
        let piece = if let Content::Segment { len, .. } = frame.content { len } else { 0 };
        Self { frame, piece, segments: 1, since }
    }

    /// Returns whether there is room for `more` bytes of another segment.
    fn has_room(&self, more: u64, segments_max: u64) -> bool {
        let Content::Segment { len, .. } = self.frame.content else { return false };
        let is_open = self.segments < segments_max && len.is_multiple_of(self.piece);
        is_open && self.frame.len + more <= COALESCED_LEN_MAX
    }

    /// Appends a segment if it follows, and is no longer than the first.
    fn append(&mut self, next: &Self, segments_max: u64) -> bool {
        let Content::Segment { start: next_start, len: next_len, .. } = next.frame.content else { return false };
        let fits = next.segments == 1 && next_len <= self.piece && self.has_room(next_len, segments_max);
        let Content::Segment { start, len, .. } = &mut self.frame.content else { return false };
        if !fits || *start + *len != next_start {
            return false;
        }
        *len += next_len;
        self.frame.len += next_len;
        self.segments += 1;
        true
    }
}

/// An interrupt and the batch after it, with their cost as charged to the processor; the ports measure the same of
/// theirs. The later work of TCP and processes is not part of it.
#[derive(Clone, Copy, Debug)]
struct Handling {
    /// Received frames and completed sends: the moderator counts both.
    frames: u64,
    took: Span,
}

/// Sends completed by the adapter. Until the host has processed them, they keep their descriptors and their memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completed {
    sends: u64,
    /// Payload of datagrams among them.
    datagram_bytes: u64,
}

impl Driver {
    pub(super) fn new(config: &AdapterConfig) -> Self {
        Self {
            memory: Memory::new(&config.memory),
            frames: VecDeque::new(),
            moderator: Moderator::new(config.moderation),
            completion_moderator: config.completion_moderation.map(Moderator::new),
            moderation_at: None,
            is_active: false,
            is_polling: false,
            poll_is_scheduled: false,
            interrupted_at: Time::START,
            handling: None,
            batch: Vec::new(),
            held: Vec::new(),
            napi: Napi::default(),
            transmit_buffers: config.memory.transmit_buffers.unwrap_or(usize::MAX),
            in_use: 0,
            waiting: VecDeque::new(),
            completed: Completed::default(),
            received: 0,
            interrupts: 0,
            turn: 0,
        }
    }

    /// Notifies the moderator of a frame of `bytes`, or of a completed send (0 bytes), not yet known to the host. Like
    /// the product's own gate, this passes the room left in the receive memory, so no frame waits in a full ring. A
    /// completed send takes no room there, so the moderator gets the same room again.
    fn note_waiting(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0
            && let Some(moderator) = &mut self.completion_moderator
        {
            return moderator.arrived(now_ns, bytes);
        }
        self.moderator.arrived(now_ns, bytes);
        self.moderator.ring_has(u32::try_from(self.memory.room_frames()).unwrap_or(u32::MAX));
    }

    /// Adds the driver's time for this number of frames of the batch.
    fn handles(&mut self, frames: u64, costs: &[(Activity, Span)]) {
        if let Some(handling) = &mut self.handling {
            handling.frames += frames;
            handling.took = costs.iter().fold(handling.took, |sum, &(_, span)| sum + span);
        }
    }

    /// Ends the handler and its deferred part. The moderator learns their cost if the batches held something, as in the
    /// ports.
    fn ends(&mut self) {
        self.is_active = false;
        if let Some(Handling { frames: frames @ 1.., took }) = self.handling.take() {
            self.moderator.handled(u32::try_from(frames).unwrap_or(u32::MAX), took.whole_ns());
        }
    }

    /// Returns the moderators of the queue's interrupt.
    fn moderators(&mut self) -> impl Iterator<Item = &mut Moderator> {
        std::iter::once(&mut self.moderator).chain(&mut self.completion_moderator)
    }

    /// Returns whether an interrupt is due, and lets it cover all waiting frames and sends.
    fn fires(&mut self, now_ns: u64) -> bool {
        let is_due = self.moderators().any(|moderator| moderator.is_due(now_ns));
        if is_due {
            self.moderators().for_each(|moderator| _ = moderator.fired(now_ns));
        }
        is_due
    }

    /// Notifies the moderators of a poll: waiting frames and sends need no interrupt.
    fn seen(&mut self) {
        self.moderators().for_each(|moderator| _ = moderator.seen());
    }

    /// Returns whether a poll would find something.
    pub(super) fn has_work(&self) -> bool {
        self.memory.first().is_some() || self.completed.sends > 0
    }

    /// Returns whether another frame can be handed down without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.in_use < self.transmit_buffers && self.waiting.is_empty()
    }
}

impl Simulation {
    /// Takes a frame from the line.
    pub(super) fn on_host_frame(&mut self, frame: Frame) {
        self.counts.frames_arrived += 1;
        self.mark(&frame, Stage::Link);
        match self.config.adapter.bus {
            Bus::Isa(_) => self.frame_is_held(frame),
            Bus::Master | Bus::Pci(_) | Bus::PciX(_) | Bus::Pcie(_) => self.dma_receive(frame),
        }
    }

    /// Stores a frame in the memory of the host, or of a card read by the host.
    pub(super) fn frame_is_held(&mut self, frame: Frame) {
        self.mark(&frame, Stage::Adapter);
        let now_ns = self.now.ns();
        let queue = self.steering.of_frame(&frame.content);
        let driver = &mut self.drivers[queue];
        let first_unread = driver.memory.first_unread();
        if let Fate::Held { overrun } = driver.memory.arrive(Arrival { at_ns: now_ns, len: frame.len as usize }) {
            let overrun: Vec<_> = (0..overrun).filter_map(|_| driver.frames.remove(first_unread)).collect();
            driver.frames.push_back(frame);
            driver.note_waiting(now_ns, frame.len);
            for frame in overrun {
                self.lose_frame(&frame, Place::Adapter);
            }
            self.wait_in(&frame, Some(Queue::Ring));
            self.poll_if_polled(queue);
            self.interrupt_if_due(queue);
        } else {
            self.lose_frame(&frame, Place::Adapter);
        }
    }

    /// Completes a frame sent by the host.
    pub(super) fn on_transmitted(&mut self, frame: Frame) {
        self.counts.frames_sent += 1;
        self.complete(frame);
    }

    /// Ends a frame on the adapter: it was sent, or given up.
    pub(super) fn complete(&mut self, frame: Frame) {
        if !matches!(self.config.adapter.bus, Bus::Isa(_)) {
            self.dma_sent(frame);
        }
        if frame.completes {
            self.counts.sends_completed += 1;
            let queue = self.steering.of_frame(&frame.content);
            let driver = &mut self.drivers[queue];
            driver.completed.sends += 1;
            if let Content::Datagram { payload } = frame.content {
                driver.completed.datagram_bytes += payload;
            }
            driver.note_waiting(self.now.ns(), 0);
            self.poll_if_polled(queue);
            self.interrupt_if_due(queue);
        }
    }

    /// Processes completed sends. Returns whether that takes time; then it continues in [`Self::on_completions`].
    fn process_completions(&mut self, queue: usize, priority: Priority) -> bool {
        let completed = std::mem::take(&mut self.drivers[queue].completed);
        let took = self.config.host.costs.completion_time.times(completed.sends);
        if took == Span::ZERO {
            self.release(queue, completed);
            return false;
        }
        let costs = [(Activity::Driver, took)];
        self.drivers[queue].handles(completed.sends, &costs);
        self.work_next(priority, Job::Completions { queue, completed }, &costs);
        true
    }

    pub(super) fn on_completions(&mut self, queue: usize, completed: Completed) {
        self.release(queue, completed);
        match self.config.host.receive_in {
            ReceiveIn::Interrupt => self.read_out_next(queue),
            ReceiveIn::Deferred { .. } => self.take_batch(queue),
        }
    }

    /// Frees the descriptors and the memory of completed sends for waiting frames.
    fn release(&mut self, queue: usize, completed: Completed) {
        self.drivers[queue].in_use -= completed.sends as usize;
        while self.drivers[queue].in_use < self.drivers[queue].transmit_buffers
            && let Some(frame) = self.drivers[queue].waiting.pop_front()
        {
            self.wait_in(&frame, None);
            self.hand_down(queue, frame);
        }
        self.datagram_bytes -= completed.datagram_bytes;
        self.wake_datagrams();
    }

    /// Hands a frame down; its bytes are paid for already.
    pub(super) fn transmit(&mut self, frame: Frame) {
        let queue = self.steering.of_frame(&frame.content);
        let driver = &mut self.drivers[queue];
        if driver.in_use < driver.transmit_buffers {
            return self.hand_down(queue, frame);
        }
        if self.config.workload.workload.is_of_frames() && driver.waiting.len() >= self.config.host.output_queue {
            return self.lose_frame(&frame, Place::OutputQueue);
        }
        driver.waiting.push_back(frame);
        self.wait_in(&frame, Some(Queue::Output));
    }

    fn hand_down(&mut self, queue: usize, frame: Frame) {
        self.drivers[queue].in_use += 1;
        match self.config.adapter.bus {
            Bus::Isa(_) => self.send(HOST, frame),
            Bus::Master | Bus::Pci(_) | Bus::PciX(_) | Bus::Pcie(_) => self.dma_transmit(frame),
        }
    }

    pub(super) fn on_moderation(&mut self, queue: usize) {
        self.drivers[queue].moderation_at = None;
        self.interrupt_if_due(queue);
    }

    fn interrupt_if_due(&mut self, queue: usize) {
        let driver = &mut self.drivers[queue];
        if driver.is_active {
            return;
        }
        let now_ns = self.now.ns();
        if driver.fires(now_ns) {
            driver.interrupts += 1;
            self.interrupt_turn += 1;
            driver.turn = self.interrupt_turn;
            self.enter_interrupt(queue);
        } else if let Some(due_ns) = driver.moderators().filter_map(|moderator| moderator.next_due_ns()).min() {
            let due = Time::START + Span::ns(due_ns.max(now_ns + 1)) + self.config.adapter.timer_latency;
            if driver.moderation_at.is_none_or(|at| due < at) {
                driver.moderation_at = Some(due);
                self.events.schedule(due, Event::Moderation { queue });
            }
        }
    }

    /// Begins the handler. No other interrupt comes until its deferred part has ended.
    pub(super) fn enter_interrupt(&mut self, queue: usize) {
        let costs = self.config.host.costs;
        let processor = self.place(Priority::Interrupt, &Job::InterruptEntry { queue });
        let wake = if self.cpus[processor].jobs() == 0 { costs.wake_time } else { Span::ZERO };
        let took = costs.interrupt_time + wake;
        let driver = &mut self.drivers[queue];
        (driver.is_active, driver.interrupted_at) = (true, self.now);
        driver.handling = driver.moderator.measures_next().then_some(Handling { frames: 0, took });
        self.work(Priority::Interrupt, Job::InterruptEntry { queue }, &[(Activity::Interrupt, took)]);
    }

    /// Ends the handler and its deferred part: the adapter may interrupt again.
    pub(super) fn interrupts_on(&mut self, queue: usize) {
        self.drivers[queue].ends();
        self.interrupt_if_due(queue);
    }

    pub(super) fn on_interrupt(&mut self, queue: usize) {
        match self.config.host.receive_in {
            ReceiveIn::Interrupt => self.read_out_next(queue),
            ReceiveIn::Deferred { .. } if self.polls() => {
                // With a polling driver, this interrupt only cost time.
                let driver = &mut self.drivers[queue];
                driver.seen();
                driver.is_active = false;
                if let Some(Handling { took, .. }) = driver.handling.take() {
                    driver.moderator.costed(took.whole_ns());
                }
            }
            ReceiveIn::Deferred { .. } => self.begin_poll(queue),
        }
    }

    pub(super) fn polls(&self) -> bool {
        let is_deferred = matches!(self.config.host.receive_in, ReceiveIn::Deferred { .. });
        is_deferred && self.config.host.poll_interval > Span::ZERO
    }

    /// Schedules the next tick of the timer for a waiting frame or send, unless a batch is under way.
    fn poll_if_polled(&mut self, queue: usize) {
        if self.polls() && !self.drivers[queue].poll_is_scheduled && !self.drivers[queue].is_polling {
            self.drivers[queue].poll_is_scheduled = true;
            let interval = self.config.host.poll_interval;
            let tick = Time::START + interval.times(self.now.0 / interval.0 + 1);
            self.events.schedule(tick, Event::Poll { queue });
        }
    }

    pub(super) fn on_poll(&mut self, queue: usize) {
        let driver = &mut self.drivers[queue];
        (driver.poll_is_scheduled, driver.is_polling, driver.interrupted_at) = (false, true, self.now);
        self.begin_poll(queue);
    }

    /// Reads the next frame out, or ends the handler.
    fn read_out_next(&mut self, queue: usize) {
        let driver = &mut self.drivers[queue];
        // The running handler finds new frames without another interrupt.
        driver.seen();
        if self.process_completions(queue, Priority::Interrupt) {
            return;
        }
        let driver = &mut self.drivers[queue];
        let Some(first) = driver.memory.begin() else { return driver.ends() };
        self.counts.ring_wait += Span::ns(self.now.ns().saturating_sub(first.at_ns));
        let costs = [
            (Activity::Driver, self.config.host.costs.frame_time),
            (Activity::Bus, self.config.adapter.bus.processor_time(first.len as u64)),
        ];
        driver.handles(1, &costs);
        self.work_next(Priority::Interrupt, Job::ReadOut { queue }, &costs);
    }

    pub(super) fn on_read_out(&mut self, queue: usize) {
        if let Some(frame) = self.take_frame(queue) {
            self.mark_read_out(&frame, self.drivers[queue].interrupted_at);
            self.receive(frame);
        }
        self.read_out_next(queue);
    }

    fn take_frame(&mut self, queue: usize) -> Option<Frame> {
        let driver = &mut self.drivers[queue];
        driver.memory.end();
        let frame = driver.frames.pop_front();
        driver.received += u64::from(frame.is_some());
        frame
    }

    /// Processes completed sends once in a deferred driver, and then takes the frames in the memory.
    pub(super) fn begin_batch(&mut self, queue: usize) {
        if self.is_out_of_budget(queue) {
            return self.wait_for_turn(queue);
        }
        self.drivers[queue].seen();
        if !self.process_completions(queue, Priority::Softirq) {
            self.take_batch(queue);
        }
    }

    fn take_batch(&mut self, queue: usize) {
        let driver = &mut self.drivers[queue];
        // Sends completed meanwhile still need an interrupt.
        if driver.completed.sends == 0 {
            driver.seen();
        }
        let mut batch = std::mem::take(&mut driver.batch);
        batch.append(&mut driver.held);
        let held = batch.len();
        let len_max = held.saturating_add(self.batch_len_max());
        while batch.len() < len_max
            && let Some(first) = self.drivers[queue].memory.first()
        {
            self.counts.ring_wait += Span::ns(self.now.ns().saturating_sub(first.at_ns));
            batch.extend(self.take_frame(queue).map(|frame| Aggregate::new(frame, self.now)));
        }
        let found = batch.len() - held;
        self.counts.batches += u64::from(found > 0);
        // A coalesced frame was several frames, and the moderator has counted each.
        self.drivers[queue].handles(found as u64, &[]);
        let holds = self.batch_holds(queue, found);
        let AdapterConfig { coalesced_by, segments_max, .. } = self.config.adapter;
        if coalesced_by != CoalescedBy::Nobody {
            coalesce(&mut batch, segments_max);
        }
        if holds && coalesced_by == CoalescedBy::Host {
            self.drivers[queue].held = self.hold(&mut batch);
        }
        let is_reversed = self.config.host.receive_in == ReceiveIn::Deferred { reversed: true };
        // The next one is taken from the end.
        if !is_reversed {
            batch.reverse();
        }
        self.drivers[queue].batch = batch;
        self.next_of_batch(queue);
    }

    /// Takes out of a batch the aggregates to hold for further segments: the last one of each connection, if it is open
    /// and was begun in this tick.
    fn hold(&self, batch: &mut Vec<Aggregate>) -> Vec<Aggregate> {
        let segments_max = self.config.adapter.segments_max;
        let last_of = |flow| batch.iter().rposition(|of| of.frame.flow() == flow);
        let is_held: Vec<bool> = (batch.iter().enumerate())
            .map(|(at, of)| {
                of.has_room(of.piece, segments_max) && !self.is_old(of.since) && last_of(of.frame.flow()) == Some(at)
            })
            .collect();
        let mut is_held = is_held.into_iter();
        batch.extract_if(.., |_| is_held.next() == Some(true)).collect()
    }

    fn next_of_batch(&mut self, queue: usize) {
        let Some(Aggregate { frame, segments, .. }) = self.drivers[queue].batch.pop() else {
            if !self.polls() {
                return self.batch_ends(queue);
            }
            self.drivers[queue].is_polling = false;
            if self.drivers[queue].has_work() {
                self.poll_if_polled(queue);
            }
            return;
        };
        let by_host = self.config.adapter.coalesced_by == CoalescedBy::Host;
        let handled = if by_host { segments } else { 1 };
        let gro = if by_host { self.config.host.costs.gro_time } else { Span::ZERO };
        let costs = [
            (Activity::Driver, (self.config.host.costs.frame_time + gro).times(handled)),
            (Activity::Bus, self.config.adapter.bus.processor_time(frame.len)),
        ];
        self.drivers[queue].handles(0, &costs);
        self.work_next(Priority::Softirq, Job::BatchFrame { queue, frame }, &costs);
    }

    pub(super) fn on_batch_frame(&mut self, queue: usize, frame: Frame) {
        self.mark_read_out(&frame, self.drivers[queue].interrupted_at);
        self.receive(frame);
        self.next_of_batch(queue);
    }

    pub(super) fn schedule_mask(&mut self) {
        // Uniform around the mean, for lack of better data.
        let wait = self.rng.random_range(0..=self.config.host.mask_interval.0.saturating_mul(2));
        self.events.schedule(self.now + Span(wait), Event::Mask);
    }

    pub(super) fn on_mask(&mut self) {
        let costs = [(Activity::Masked, self.config.host.mask_time)];
        self.work(Priority::Interrupt, Job::Mask, &costs);
        self.schedule_mask();
    }
}

/// Bytes of the largest coalesced frame: an IP packet's, and an Ethernet header's.
const COALESCED_LEN_MAX: u64 = 65_535 + 14;

/// Coalesces consecutive segments of a connection, as the adapter's own code does ([`offramp_offload::coalesce`]): up
/// to `segments_max` and the length of one IP packet, all as long as the first. A shorter segment is the last one.
fn coalesce(batch: &mut Vec<Aggregate>, segments_max: u64) {
    let mut coalesced: Vec<Aggregate> = Vec::with_capacity(batch.len());
    for next in batch.drain(..) {
        let last_of_flow =
            next.frame.flow().and_then(|flow| coalesced.iter_mut().rev().find(|last| last.frame.flow() == Some(flow)));
        if !last_of_flow.is_some_and(|last| last.append(&next, segments_max)) {
            coalesced.push(next);
        }
    }
    *batch = coalesced;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::tcp_segments;
    use crate::tcp::HEADERS_LEN;
    use offramp_offload::caps::Offloads;
    use offramp_offload::coalesce::{CoalesceConfig, Coalescer};
    use offramp_offload::frame::Frame as BytesFrame;

    const MSS: u64 = 1460;

    /// Returns the lengths of the adapter's coalesced frames for a stream with these large sends.
    fn coalesced_by_the_adapter(sends: &[u64]) -> Vec<u64> {
        let mut coalescer = Coalescer::new(CoalesceConfig::default());
        let mut lens = Vec::new();
        let mut out = |_: &_, frame: &[u8]| lens.push(frame.len() as u64);
        for mut frame in tcp_segments(sends, MSS) {
            coalescer.push(BytesFrame::received(&mut frame), Offloads::all(), None, 0, &mut out);
        }
        coalescer.flush(&mut out);
        lens
    }

    fn coalesced_by_the_model(sends: &[u64]) -> Vec<u64> {
        let mut batch = Vec::new();
        let mut start = 0;
        for payload in sends.iter().flat_map(|&len| crate::rpc::tcp_payloads(len, MSS)) {
            let content = Content::Segment { flow: 0, start, len: payload };
            batch.push(Aggregate::new(Frame::new(HEADERS_LEN + payload, content), Time::START));
            start += payload;
        }
        coalesce(&mut batch, u64::from(CoalesceConfig::default().segments_max));
        batch.iter().map(|of| of.frame.len).collect()
    }

    #[test]
    fn the_model_coalesces_as_the_adapter_does() {
        for sends in
            [&[10 * MSS][..], &[40 * MSS, 40 * MSS], &[5 * MSS + 700, 10 * MSS], &[100, 100, 100], &[44 * MSS, 800]]
        {
            assert_eq!(coalesced_by_the_model(sends), coalesced_by_the_adapter(sends), "{sends:?}");
        }
    }
}
