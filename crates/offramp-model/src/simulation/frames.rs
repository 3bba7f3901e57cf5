//! Raw frames: what their sender has no time for, and their way through a host that forwards them.

use super::exchange::{Message, Queue};
use super::line::SENDER_FRAMES;
use super::{Activity, Content, Frame, Job, PEER, Simulation};

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

    /// A raw frame waits for the softirq that forwards it.
    pub(super) fn receive_to_forward(&mut self, message: Message, len: u64) {
        let costs = &self.config.host.costs;
        let costs = [
            (Activity::Route, costs.route_time),
            (Activity::Registers, costs.register_time),
            (Activity::Bus, self.config.adapter.bus.processor_time(len)),
        ];
        self.work_of_protocol(Job::Message(message), &costs);
    }

    /// The host sends a raw frame out of its second adapter.
    pub(super) fn forward(&mut self, message: Message) {
        let Some(exchanges) = &mut self.exchanges else { return };
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
