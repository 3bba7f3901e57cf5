//! Reusable buffers in guest memory.

use std::collections::BTreeMap;

use crate::memory::GuestMemory;

/// Minimum length of a buffer in bytes: a cache line.
const LEN_MIN: usize = 64;

/// A pool of buffers, grouped by length in powers of two.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: BTreeMap<usize, Vec<u64>>,
}

impl Pool {
    /// Returns a buffer of at least `len` bytes, from `memory` if no free buffer is left.
    pub(super) fn take(&mut self, memory: &GuestMemory, len: usize) -> u64 {
        let class = class(len);
        let used_before = self.free.get_mut(&class).and_then(Vec::pop);
        used_before.unwrap_or_else(|| memory.alloc(class as u64, LEN_MIN as u64))
    }

    /// Returns a buffer from `take(_, len)` to the pool.
    pub(super) fn give_back(&mut self, addr: u64, len: usize) {
        self.free.entry(class(len)).or_default().push(addr);
    }
}

fn class(len: usize) -> usize {
    len.next_power_of_two().max(LEN_MIN)
}
