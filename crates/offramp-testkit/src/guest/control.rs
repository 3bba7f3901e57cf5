//! The driver's end of a control queue: one command after the other.

use std::time::Duration;

use super::signal::QueueFds;
use crate::memory::GuestMemory;
use crate::ring::{Buffer, Virtqueue};

/// Bytes of the longest command, and of the longest answer.
const PART_LEN_MAX: u64 = 1 << 17;
/// Time limit for an answer, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(30);

/// A control queue.
#[derive(Debug)]
pub struct ControlQueue {
    memory: GuestMemory,
    ring: Virtqueue,
    fds: QueueFds,
    command_at: u64,
    answer_at: u64,
}

impl ControlQueue {
    pub(super) fn new(memory: &GuestMemory, (ring, fds): (Virtqueue, QueueFds)) -> Self {
        let [command_at, answer_at] = [(); 2].map(|()| memory.alloc(PART_LEN_MAX, 64));
        Self { memory: memory.clone(), ring, fds, command_at, answer_at }
    }

    /// Sends a command in as many pieces, and waits for the answer. The device may write `answer_lens` bytes of it into
    /// buffers of their own. Returns the written bytes; `None`: the chain went back with nothing.
    pub fn command(&mut self, pieces: &[&[u8]], answer_lens: &[usize]) -> Option<Vec<u8>> {
        let mut at = self.command_at;
        let mut buffers = Vec::new();
        for piece in pieces {
            self.memory.write(at, piece);
            buffers.push(Buffer::readable(at, piece.len()));
            at += piece.len() as u64;
        }
        at = self.answer_at;
        for &len in answer_lens {
            buffers.push(Buffer::writable(at, len));
            at += len as u64;
        }
        self.chain(&buffers)
    }

    /// Sends a chain of any kind. Its answer begins at the first buffer that the device may write.
    pub fn chain(&mut self, buffers: &[Buffer]) -> Option<Vec<u8>> {
        self.ring.add(buffers, &[]).expect("room for a command");
        if self.ring.publish() {
            self.fds.send_kick();
        }
        let used = self.fds.wait(&mut self.ring, PATIENCE, Virtqueue::take_used).expect("an answer");
        (used.len > 0).then(|| self.memory.read_vec(self.answer_at, used.len as usize))
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Returns the ring, for raw access. Chains added there by the test have buffers of its own.
    pub fn ring_mut(&mut self) -> &mut Virtqueue {
        &mut self.ring
    }

    /// Makes added chains visible and kicks when the device wants it.
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.fds.send_kick();
        }
    }

    pub(super) fn reset(&mut self) {
        self.ring.reset();
    }

    pub(super) fn ring(&self) -> &Virtqueue {
        &self.ring
    }

    pub(super) fn fds(&self) -> &QueueFds {
        &self.fds
    }
}
