//! Reusable buffers in guest memory.

use std::collections::BTreeMap;

use crate::memory::GuestMemory;

/// The smallest buffer of the pool: a cache line.
const LEN_MIN: usize = 64;

/// A pool of buffers, by powers of two.
#[derive(Debug)]
pub(super) struct Pool {
    memory: GuestMemory,
    free: BTreeMap<usize, Vec<u64>>,
}

impl Pool {
    pub(super) fn new(memory: &GuestMemory) -> Self {
        Self { memory: memory.clone(), free: BTreeMap::new() }
    }

    pub(super) fn move_to(&mut self, memory: &GuestMemory) {
        self.memory = memory.clone();
    }

    /// Takes a buffer of at least `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> u64 {
        let class = class(len);
        let used_before = self.free.get_mut(&class).and_then(Vec::pop);
        used_before.unwrap_or_else(|| self.memory.alloc(class as u64, LEN_MIN as u64))
    }

    /// Gives back the result of `take(len)`.
    pub(super) fn give_back(&mut self, addr: u64, len: usize) {
        self.free.entry(class(len)).or_default().push(addr);
    }
}

fn class(len: usize) -> usize {
    len.next_power_of_two().max(LEN_MIN)
}
