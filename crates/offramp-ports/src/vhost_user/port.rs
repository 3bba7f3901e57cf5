//! All queue pairs of a guest in one thread.

use super::queue::VhostQueue;
use crate::worker::HostIo;
use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{RxMeta, TxMeta};
use std::os::fd::BorrowedFd;

/// All queue pairs of a [`VhostUser`](super::VhostUser) as one host port, for a thread that serves them
/// together, as a switch does.
///
/// Frames are taken from the pairs in turn. They are given to the pair that `RxMeta::queue` names if the
/// guest has enabled it, else to the first, which every guest uses (virtio 1.3, 5.1.6.5.6).
#[derive(Debug)]
pub struct VhostPort {
    queues: Vec<VhostQueue>,
    /// Which pair has the frame that was last taken.
    taken_from: usize,
    /// Which pair is asked first.
    first: usize,
}

impl VhostPort {
    /// `None` without a queue.
    pub fn new(queues: Vec<VhostQueue>) -> Option<Self> {
        (!queues.is_empty()).then_some(Self { queues, taken_from: 0, first: 0 })
    }
}

impl HostPort for VhostPort {
    fn take(&mut self) -> Result<bool, PortError> {
        let count = self.queues.len();
        for nth in 0..count {
            self.taken_from = (self.first + nth) % count;
            if self.queues[self.taken_from].take()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn taken(&self) -> (TxMeta, &[u8]) {
        self.queues[self.taken_from].taken()
    }

    fn give(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let wanted = usize::from(meta.queue);
        let is_usable = self.queues.get(wanted).is_some_and(VhostQueue::receives);
        self.queues[if is_usable { wanted } else { 0 }].give(meta, frame)
    }

    fn flush(&mut self) {
        self.first = (self.first + 1) % self.queues.len();
        self.queues.iter_mut().for_each(HostPort::flush);
    }

    fn accepts(&self) -> Offloads {
        self.queues[0].accepts()
    }

    fn takes_verdicts(&self) -> bool {
        self.queues[0].takes_verdicts()
    }
}

impl HostIo for VhostPort {
    fn arm(&mut self) {
        self.queues.iter_mut().for_each(HostIo::arm);
    }

    fn disarm(&mut self) {
        self.queues.iter_mut().for_each(HostIo::disarm);
    }

    fn watch<'a>(&'a self, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        for queue in &self.queues {
            queue.watch(watch);
        }
    }
}
