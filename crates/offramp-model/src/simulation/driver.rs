//! The work of the host's driver: interrupts, reading frames from the adapter's memory, and transmission.

use super::exchange::{Place, Queue, Stage};
use super::frame::{Content, Frame, HOST};
use super::outcome::Activity;
use super::queue::{Aggregate, Completed, Handling, coalesce};
use super::state::{Event, Job, Simulation};
use crate::bus::Bus;
use crate::config::{AdapterConfig, CoalescedBy, ReceiveIn};
use crate::cpu::Priority;
use crate::time::{Span, Time};
use offramp_adapter::port::Arrival;
use offramp_impair::memory::Fate;
use rand::RngExt;

impl Simulation {
    /// Handles a frame received by the host's adapter.
    pub(super) fn on_host_frame(&mut self, frame: Frame) {
        self.counts.frames_arrived += 1;
        self.mark(&frame, Stage::Link);
        match self.config.adapter.bus {
            Bus::Isa(_) => self.frame_is_held(frame),
            Bus::Master | Bus::Pci(_) | Bus::PciX(_) | Bus::Pcie(_) => self.dma_receive(frame),
        }
    }

    /// Stores a received frame in host memory (bus master) or in card memory (ISA).
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

    /// Handles the end of the transmission of a frame from the host.
    pub(super) fn on_transmitted(&mut self, frame: Frame) {
        self.counts.frames_sent += 1;
        self.complete(frame);
    }

    /// Frees the adapter's memory of a frame that was sent or given up. If the frame completes a send, informs the
    /// driver.
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

    /// Processes completed sends. Returns `true` if the processing takes time, so that [`Self::on_completions`]
    /// continues after the processing.
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

    /// Frees descriptors and memory of completed sends, and transmits waiting frames.
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

    /// Transmits a frame, or queues the frame if no descriptor is free. A raw frame is lost if the output queue is
    /// full, too. The caller has already charged the processor time for the frame's bytes.
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

    /// Enters the interrupt handler of a queue. The queue has no further interrupt until the handler and its deferred
    /// part have ended.
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

    /// Ends the handler and its deferred part, and enables the queue's interrupt.
    pub(super) fn interrupts_on(&mut self, queue: usize) {
        self.drivers[queue].ends();
        self.interrupt_if_due(queue);
    }

    pub(super) fn on_interrupt(&mut self, queue: usize) {
        match self.config.host.receive_in {
            ReceiveIn::Interrupt => self.read_out_next(queue),
            ReceiveIn::Deferred { .. } if self.polls() => {
                // A driver that polls at a fixed interval ignores the interrupt, but the interrupt costs time.
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

    /// Schedules the next tick of the polling timer, unless a tick is scheduled or a batch is in progress.
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

    /// Reads the next frame from the adapter, or ends the handler.
    fn read_out_next(&mut self, queue: usize) {
        let driver = &mut self.drivers[queue];
        // The running handler also reads frames that have arrived since its start, so these frames need no interrupt.
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

    /// Begins a batch of a deferred driver: processes completed sends once, and then takes the waiting frames.
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
        // Sends that were completed since the batch began still need an interrupt.
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
        // The moderator counts frames before coalescing.
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
        // `next_of_batch` pops frames from the end.
        if !is_reversed {
            batch.reverse();
        }
        self.drivers[queue].batch = batch;
        self.next_of_batch(queue);
    }

    /// Removes from `batch` the aggregates to hold for further segments, and returns these aggregates. An aggregate is
    /// held if it is the last aggregate of its connection in `batch`, has room, and began in the current jiffy.
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
        // The wait is uniformly distributed around the mean, because no better data are available.
        let wait = self.rng.random_range(0..=self.config.host.mask_interval.0.saturating_mul(2));
        self.events.schedule(self.now + Span(wait), Event::Mask);
    }

    pub(super) fn on_mask(&mut self) {
        let costs = [(Activity::Masked, self.config.host.mask_time)];
        self.work(Priority::Interrupt, Job::Mask, &costs);
        self.schedule_mask();
    }
}
