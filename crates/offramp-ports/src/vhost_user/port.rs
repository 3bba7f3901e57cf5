//! All queue pairs of a guest in one thread.

use super::queue::VhostQueue;
use crate::worker::HostIo;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::port::{HostPort, InterruptCounts, Interrupts, PortError};
use offramp_adapter::steering::{Choice, Steering};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{RxMeta, TxMeta};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// All queue pairs of a [`VhostUser`](super::VhostUser) as one host port, for a thread that serves them
/// together, as a switch does.
///
/// Frames are taken from the pairs in turn. What the guest receives is steered over the pairs that it has in
/// use, as [`steering`](offramp_adapter::steering) says; a port of one pair pays nothing for it.
#[derive(Debug)]
pub struct VhostPort {
    queues: Vec<VhostQueue>,
    /// Which pair has the frame that was last taken.
    taken_from: usize,
    /// Which pair is asked first.
    first: usize,
    /// None with one pair.
    steering: Option<Box<SteeringClock>>,
}

/// The steering, and the moment from which its time counts.
#[derive(Debug)]
struct SteeringClock {
    steering: Steering,
    epoch: Instant,
}

impl VhostPort {
    /// `None` without a queue.
    pub fn new(queues: Vec<VhostQueue>) -> Option<Self> {
        let clock = || Box::new(SteeringClock { steering: Steering::new(), epoch: Instant::now() });
        let steering = (queues.len() > 1).then(clock);
        (!queues.is_empty()).then_some(Self { queues, taken_from: 0, first: 0, steering })
    }

    /// Takes from the pairs in turn; whether one had a frame.
    #[inline]
    fn take_any(&mut self) -> Result<bool, PortError> {
        let count = self.queues.len();
        for nth in 0..count {
            self.taken_from = (self.first + nth) % count;
            if self.queues[self.taken_from].take()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes on which pair the guest sends the flow of the frame last taken.
    fn note_taken(&mut self) {
        let Some(clock) = &mut self.steering else { return };
        let (meta, frame) = self.queues[self.taken_from].taken();
        let Some(flow) = clock.steering.flow(frame, meta.segmentation.is_some()) else { return };
        let choice = clock.steering.sent(flow, self.taken_from);
        self.leave(choice);
    }

    /// The pair that a frame is given to.
    fn choose(&mut self, meta: &RxMeta, frame: &[u8]) -> usize {
        let Some(clock) = &mut self.steering else { return 0 };
        let flow = clock.steering.flow(frame, meta.segmentation.is_some());
        let choice = clock.steering.receive(flow);
        if !self.queues[choice.pair].receives() && self.look_which_receive() {
            // The guest has stopped to use that pair in the middle of a batch.
            return self.choose(meta, frame);
        }
        self.leave(choice)
    }

    /// Has the guest see first what the flow had on another pair; the flow's pair.
    fn leave(&mut self, choice: Choice) -> usize {
        if let Some(left) = choice.left {
            self.queues[left].publish_received();
        }
        choice.pair
    }

    /// Looks which pairs the guest receives on; whether that changed.
    fn look_which_receive(&mut self) -> bool {
        let Self { queues, steering: Some(clock), .. } = self else { return false };
        let receiving = queues.iter().enumerate().filter(|(_, queue)| queue.receives()).map(|(pair, _)| pair);
        let has_changed = clock.steering.set_pairs(receiving);
        if has_changed {
            // Any flow may be on another pair from now on.
            queues.iter_mut().for_each(VhostQueue::publish_received);
        }
        has_changed
    }
}

impl HostPort for VhostPort {
    fn take(&mut self) -> Result<bool, PortError> {
        let has_frame = self.take_any()?;
        if has_frame {
            self.note_taken();
        }
        Ok(has_frame)
    }

    fn taken(&self) -> (TxMeta, &[u8]) {
        self.queues[self.taken_from].taken()
    }

    fn taken_mut(&mut self) -> &mut [u8] {
        self.queues[self.taken_from].taken_mut()
    }

    fn give(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let pair = self.choose(meta, frame);
        self.queues[pair].give(meta, frame)
    }

    fn flush(&mut self) {
        self.first = (self.first + 1) % self.queues.len();
        self.queues.iter_mut().for_each(HostPort::flush);
        self.look_which_receive();
        if let Some(clock) = &mut self.steering {
            clock.steering.set_now(clock.epoch.elapsed().as_nanos() as u64);
        }
    }

    fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
        Some(self)
    }

    fn accepts(&self) -> Offloads {
        self.queues[0].accepts()
    }

    fn takes_verdicts(&self) -> bool {
        self.queues[0].takes_verdicts()
    }
}

/// Each pair for itself: a guest has an interrupt for each.
impl Interrupts for VhostPort {
    fn moderate(&mut self, config: &ModerationConfig) {
        self.queues.iter_mut().for_each(|queue| queue.moderate(config));
    }

    fn send_due(&mut self, now_ns: u64) -> InterruptCounts {
        self.queues.iter_mut().map(|queue| queue.send_due(now_ns)).fold(InterruptCounts::default(), |sum, counts| {
            InterruptCounts { receive: sum.receive + counts.receive, transmit: sum.transmit + counts.transmit }
        })
    }

    fn next_due_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(Interrupts::next_due_ns).min()
    }

    /// The highest of all pairs.
    fn cost_ns(&self) -> u64 {
        self.queues.iter().map(Interrupts::cost_ns).max().unwrap_or_default()
    }

    /// The longest of all pairs.
    fn wait_max_ns(&self) -> u64 {
        self.queues.iter().map(Interrupts::wait_max_ns).max().unwrap_or_default()
    }
}

impl HostIo for VhostPort {
    fn arm(&mut self) {
        self.queues.iter_mut().for_each(HostIo::arm);
        self.look_which_receive();
    }

    fn disarm(&mut self) {
        self.queues.iter_mut().for_each(HostIo::disarm);
        self.look_which_receive();
    }

    fn watch<'a>(&'a self, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        for queue in &self.queues {
            queue.watch(watch);
        }
    }
}
