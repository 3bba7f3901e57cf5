//! The driver of a control queue, which sends one command at a time.

use std::time::Duration;

use super::queue::Queue;
use crate::memory::GuestMemory;
use crate::ring::Buffer;

/// Maximum length of a command, and of an answer, in bytes.
const PART_LEN_MAX: u64 = 1 << 17;
/// Time limit for an answer, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The guest's driver of a control queue.
#[derive(Debug)]
pub struct ControlQueue {
    pub(super) queue: Queue,
    command_at: u64,
    answer_at: u64,
}

impl ControlQueue {
    pub(super) fn new(queue: Queue) -> Self {
        let [command_at, answer_at] = [(); 2].map(|()| queue.memory.alloc(PART_LEN_MAX, 64));
        Self { queue, command_at, answer_at }
    }

    /// Sends a command with one buffer per piece, and waits for the answer. The device can write the answer into
    /// separate buffers with the lengths `answer_lens`. Returns the written bytes, or `None` if the device returned the
    /// chain without an answer.
    pub fn command(&mut self, pieces: &[&[u8]], answer_lens: &[usize]) -> Option<Vec<u8>> {
        let mut at = self.command_at;
        let mut buffers = Vec::new();
        for piece in pieces {
            self.queue.memory.write(at, piece);
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

    /// Sends any chain, and waits for the answer. The answer begins in the first writable buffer.
    pub fn chain(&mut self, buffers: &[Buffer]) -> Option<Vec<u8>> {
        self.queue.ring.add(buffers, &[]).expect("room for a command");
        self.publish();
        let used = self.queue.wait_used(PATIENCE).expect("an answer");
        (used.len > 0).then(|| self.queue.memory.read_vec(self.answer_at, used.len as usize))
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.queue.memory
    }
}
