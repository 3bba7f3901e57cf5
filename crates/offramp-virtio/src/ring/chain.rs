//! Fetched chains, and the buffers of the chains.

use super::descriptor::{INDIRECT, NEXT, WRITE, prefetch, prefetch_to_write};
use super::{BadChain, CHAIN_DESCRIPTORS_MAX, FETCH_BUFFERS_MAX, FETCH_MAX};
use crate::memory::{GuestMemory, Window};
use crate::net_header::HEADER_LEN;
use std::ptr::NonNull;

/// Maximum number of taken chains that stay in the vector in front of the waiting chains. With more taken chains, the
/// waiting chains move to the front of the vector. The move is so rare that its cost is negligible, and the vector is
/// small enough to stay in the cache.
pub(super) const TAKEN_MAX: usize = 8 * FETCH_MAX;

/// Length of a cache line in bytes.
const LINE_LEN: usize = 64;

/// A translated and checked buffer of a chain. The buffer is usable while its [`Vring`](crate::Vring) is borrowed,
/// because the borrow keeps the memory mapped.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) host: NonNull<u8>,
    /// Guest-physical address, for the dirty log.
    pub(crate) guest: u64,
    pub(crate) len: u32,
}

impl Buffer {
    /// Prefetches the cache lines of up to `len` bytes from `offset` for writing, within the buffer. Returns the number
    /// of bytes in this range.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, len: usize) -> usize {
        let len = len.min((self.len as usize).saturating_sub(offset));
        for at in (offset..offset + len).step_by(LINE_LEN) {
            prefetch_to_write(self.host.as_ptr().wrapping_add(at));
        }
        len
    }

    /// Acquires ownership of the cache line at `offset` by a write. The written byte has no meaning, because the driver
    /// reads the buffer only after the device has used the chain. A prefetch for writing does not acquire a line that
    /// this processor can already read. The guest's processor has also read the earlier contents, so the line is
    /// shared. The claims of a batch run in parallel, but the writes of the batch's frames run one after another.
    #[inline]
    fn claim(&self, offset: usize) {
        if offset < self.len as usize {
            // SAFETY: the byte lies in the buffer, which is mapped guest memory writable by the device.
            unsafe { self.host.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// Returns a copy of the buffer, for an open frame of the same vring.
    #[inline]
    pub(crate) fn of_the_same(&self) -> Self {
        Self { ..*self }
    }
}

/// A fetched chain of one [`Vring`](crate::Vring).
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// Index of the head (split), or buffer ID (packed).
    pub(super) id: u16,
    /// Number of ring slots that the chain occupies: always 1 in a split ring.
    pub(super) slots: u16,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) len: u32,
}

impl Chain {
    /// Returns the total length of the chain's buffers in bytes. Returns 0 for an unusable chain: the device must
    /// return such a chain to the driver without using its buffers.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a chain without bytes is a bad one")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the maximum number of descriptors read for the chain. This number measures the cost to fetch the chain,
    /// and to copy the chain's buffers.
    #[inline]
    pub fn descriptors(&self) -> usize {
        match self.count {
            0 => CHAIN_DESCRIPTORS_MAX.max(self.slots).into(),
            count => count as usize,
        }
    }
}

/// A used chain that is not yet published. Before the publish, the entry stays in private memory. The driver polls the
/// cache lines of the ring, and each line should move between the processors only once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) id: u16,
    pub(super) slots: u16,
    pub(super) written: u32,
}

/// The fetched chains in the order of the ring: taken chains, and from index `next` on the waiting chains.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) chains: Vec<Chain>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) next: usize,
    /// True if a fetch claims cache lines of writable buffers (see [`Buffer::claim`]). With a dirty log, no cache line
    /// is claimed, because the log would miss the writes that claim cache lines.
    pub(crate) claims: bool,
    /// In a control queue, one entry for each of `buffers`: true for a buffer that the device can write and must not
    /// read. Empty in other rings, to save time per frame.
    pub(super) is_writable: Vec<bool>,
}

// SAFETY: the pointers of a batch point into guest memory that the batch's vring keeps mapped (see `Region`).
unsafe impl Send for Batch {}

impl Batch {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.chains.len()
    }

    /// Returns the waiting chains.
    #[inline]
    pub fn waiting(&self) -> &[Chain] {
        &self.chains[self.next..]
    }

    #[inline]
    pub fn buffers(&self, chain: &Chain) -> &[Buffer] {
        &self.buffers[chain.first as usize..][..chain.count as usize]
    }

    /// Returns whether a fetch has reached the maximum number of buffers. `buffers` is the number of buffers at the
    /// start of the fetch.
    #[inline]
    pub(super) fn is_full(&self, buffers: usize) -> bool {
        self.buffers.len() - buffers >= FETCH_BUFFERS_MAX
    }

    /// Adds a chain with a single buffer inside the window and with the flags `wanted`, like almost every chain.
    /// Returns `false` for any other chain, which the slow path must add.
    #[inline]
    pub(super) fn push_single(
        &mut self,
        window: &Window,
        (guest, len): (u64, u32),
        flags: u16,
        id: u16,
        wanted: u16,
    ) -> bool {
        if flags & (NEXT | INDIRECT | WRITE) != wanted || len == 0 {
            return false;
        }
        let Some(host) = window.at(guest, u64::from(len)) else { return false };
        let first = self.buffers.len() as u32;
        self.buffers.push(Buffer { host, guest, len });
        self.chains.push(Chain { id, slots: 1, first, count: 1, len });
        true
    }

    /// Returns for each buffer of a control queue's chain whether the device can write the buffer.
    pub fn is_writable(&self, chain: &Chain) -> &[bool] {
        &self.is_writable[chain.first as usize..][..chain.count as usize]
    }

    /// Marks the newest buffers of a control queue as writable or readable.
    pub(super) fn mark(&mut self, is_writable: bool) {
        self.is_writable.resize(self.buffers.len(), is_writable);
    }

    /// Drops the buffers of a bad chain, from `first` on.
    pub(super) fn truncate(&mut self, first: usize) {
        self.buffers.truncate(first);
        self.is_writable.truncate(first);
    }

    /// Takes the next chain.
    #[inline]
    pub fn pop(&mut self) -> Option<Chain> {
        let chain = *self.chains.get(self.next)?;
        self.next += 1;
        Some(chain)
    }

    /// Makes the last `chains` taken chains wait again. Between taking these chains and this call, the caller must not
    /// fetch.
    pub fn wait_again(&mut self, chains: usize) {
        self.next = self.next.saturating_sub(chains);
    }

    /// Drops the taken chains. The waiting chains stay in the batch.
    pub(super) fn make_room(&mut self) {
        if self.is_empty() {
            self.clear();
        } else if self.next >= TAKEN_MAX {
            self.forget_taken();
        }
    }

    /// Drops the taken chains before they accumulate. In a receive ring, some chains can always be waiting.
    #[cold]
    fn forget_taken(&mut self) {
        self.chains.drain(..self.next);
        self.next = 0;
        let buffers = self.chains.first().map_or(self.buffers.len(), |chain| chain.first as usize);
        self.buffers.drain(..buffers);
        self.is_writable.drain(..buffers.min(self.is_writable.len()));
        for chain in &mut self.chains {
            chain.first -= buffers as u32;
        }
    }

    pub fn clear(&mut self) {
        self.chains.clear();
        self.buffers.clear();
        self.is_writable.clear();
        self.next = 0;
    }

    /// Prefetches the first cache lines of every buffer from chain `from` on.
    #[inline]
    pub(super) fn prefetch(&self, from: usize, writable: bool) {
        let first = self.chains.get(from).map_or(self.buffers.len(), |chain| chain.first as usize);
        for buffer in &self.buffers[first..] {
            let start = buffer.host.as_ptr();
            prefetch(start);
            if writable && self.claims {
                if !is_apart(start, HEADER_LEN) {
                    buffer.claim(0);
                }
                // If the header lies in a cache line of its own, do not claim that line: the header usually equals the
                // previous header and is not written.
                buffer.claim(LINE_LEN);
            } else {
                prefetch(start.wrapping_add(LINE_LEN));
            }
        }
    }
}

/// Returns whether the byte `offset` bytes after `start` lies in another cache line than `start`.
#[inline]
fn is_apart(start: *const u8, offset: usize) -> bool {
    start as usize % LINE_LEN + offset >= LINE_LEN
}

/// Adds one buffer of a chain, in pieces if the buffer crosses the border of two regions.
#[inline]
pub(super) fn add_buffer(
    memory: &GuestMemory,
    guest: u64,
    len: u32,
    buffers: &mut Vec<Buffer>,
) -> Result<(), BadChain> {
    if len == 0 {
        return Ok(());
    }
    match memory.at_guest(guest, u64::from(len)) {
        Some(host) => buffers.push(Buffer { host, guest, len }),
        None => add_pieces(memory, guest, len, buffers)?,
    }
    Ok(())
}

#[cold]
fn add_pieces(memory: &GuestMemory, mut guest: u64, len: u32, buffers: &mut Vec<Buffer>) -> Result<(), BadChain> {
    let mut left = u64::from(len);
    while left > 0 {
        let piece = memory.left_at_guest(guest).ok_or(BadChain::Address)?.min(left);
        let host = memory.at_guest(guest, piece).ok_or(BadChain::Address)?;
        buffers.push(Buffer { host, guest, len: piece as u32 });
        guest = guest.checked_add(piece).ok_or(BadChain::Address)?;
        left -= piece;
    }
    Ok(())
}

/// Returns the chain of all buffers from index `first` of `buffers` on.
pub(super) fn close_chain(id: u16, slots: u16, first: usize, buffers: &[Buffer]) -> Result<Chain, BadChain> {
    let len: u64 = buffers[first..].iter().map(|buffer| u64::from(buffer.len)).sum();
    let len = u32::try_from(len).map_err(|_| BadChain::TooLong)?;
    Ok(Chain { id, slots, first: first as u32, count: (buffers.len() - first) as u32, len })
}
