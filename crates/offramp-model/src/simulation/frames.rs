//! Raw frames: what their sender has no time for, and their way through a host that forwards them.

use super::exchange::{Message, Place, Queue};
use super::line::SENDER_FRAMES;
use super::{Activity, Content, Frame, Job, PEER, Simulation};
use crate::config::ReceiveIn;
use crate::cpu::Priority;

impl Simulation {
    /// A sender of raw frames has as many before the next one as its own queue holds.
    pub(super) fn sender_is_late(&self, from_host: bool) -> bool {
        let Some(exchanges) = self.exchanges.as_ref().filter(|of| of.is_of_frames()) else { return false };
        let frames_max = SENDER_FRAMES.max(exchanges.config.at_once());
        if from_host {
            return exchanges.unsent >= frames_max;
        }
        self.is_behind(PEER, frames_max, exchanges.frame_len_max())
    }

    /// A raw frame waits for the softirq that forwards it. One that an interrupt handler has read out is lost where the backlog
    /// is full.
    pub(super) fn receive_to_forward(&mut self, message: Message, len: u64) {
        let job = Job::Message(message);
        let processor = self.place(Priority::Softirq, &job);
        let is_full = self.backlogs[processor] >= self.config.host.backlog;
        if is_full && self.config.host.receive_in == ReceiveIn::Interrupt {
            return self.lose(message, Place::Backlog);
        }
        self.backlogs[processor] += 1;
        self.exchanges.iter_mut().for_each(|of| of.move_to(self.now, message, Some(Queue::Backlog)));
        let costs = &self.config.host.costs;
        let costs = [
            (Activity::Route, costs.route_time),
            (Activity::Registers, costs.register_time),
            (Activity::Bus, self.config.adapter.bus.processor_time(len)),
        ];
        self.work(Priority::Softirq, job, &costs);
    }

    /// The host sends a raw frame out of its second adapter.
    pub(super) fn forward(&mut self, message: Message) {
        let processor = self.place(Priority::Softirq, &Job::Message(message));
        self.backlogs[processor] -= 1;
        let Some(exchanges) = &mut self.exchanges else { return };
        exchanges.move_to(self.now, message, None);
        if let Some(forwarded) = exchanges.response_to(message) {
            self.transmit_message(forwarded);
        }
    }

    /// A raw frame is in a queue, or in none any more.
    pub(super) fn wait_in(&mut self, frame: &Frame, queue: Option<Queue>) {
        if let (Content::Message(message), Some(exchanges)) = (frame.content, &mut self.exchanges) {
            exchanges.move_to(self.now, message, queue);
        }
    }
}
