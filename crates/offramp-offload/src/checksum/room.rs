//! Memory for payloads that another program can read and write at the same time, such as the buffers of a guest.

// Only inlined functions are compiled for the vector instructions of a kernel.
#![allow(clippy::inline_always)]

use super::{Sum, copy_and_sum_to};
use core::marker::PhantomData;
use core::slice;

/// Length of a cache line in bytes.
const CACHE_LINE_LEN: usize = 64;

/// Adjacent writable bytes that another program can read and write at the same time. No reference to such bytes may
/// exist.
#[derive(Clone, Copy, Debug)]
pub struct RoomPiece {
    start: *mut u8,
    len: usize,
}

// SAFETY: the bytes are only written, and any thread may write them.
unsafe impl Send for RoomPiece {}

impl RoomPiece {
    /// Returns the `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be writable until the last use of the result and its copies. No reference to the bytes may exist
    /// while a function of this module runs.
    #[inline]
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Prefetches the cache lines of the first `len` bytes for writing.
    #[inline(always)]
    fn prefetch(self, len: usize) {
        for at in (0..len).step_by(CACHE_LINE_LEN) {
            prefetch_to_write(self.start.wrapping_add(at));
        }
    }

    /// Copies `src` to the front of the bytes with `copy_and_sum`, a function with the effect of
    /// [`copy_and_sum_to`].
    ///
    /// # Panics
    /// Panics if `src` is longer than the bytes.
    #[inline(always)]
    pub(super) fn fill(self, src: &[u8], copy_and_sum: impl FnOnce(&[u8], *mut u8) -> Sum) -> Sum {
        assert!(src.len() <= self.len);
        copy_and_sum(src, self.start)
    }
}

/// Prefetches the cache line of an address, and acquires ownership of the line.
#[inline(always)]
fn prefetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only the caches, and a processor without this instruction does nothing. The compiler's
    // intrinsic becomes a plain prefetch unless the whole program is compiled for newer processors.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = at;
}

/// The room for the next bytes of a frame: pieces of memory, in order.
#[derive(Clone, Debug)]
pub struct Room<'a> {
    /// The rest of the current piece.
    front: RoomPiece,
    pieces: slice::Iter<'a, RoomPiece>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl Default for Room<'_> {
    /// Returns a room for no byte.
    #[inline]
    fn default() -> Self {
        Self::from(&mut [][..])
    }
}

impl<'a> From<&'a mut [u8]> for Room<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        let front = RoomPiece { start: bytes.as_mut_ptr(), len: bytes.len() };
        Self { front, pieces: [].iter(), borrowed: PhantomData }
    }
}

impl<'a> Room<'a> {
    /// Returns the room in `pieces`.
    #[inline]
    #[must_use]
    pub fn new(pieces: &'a [RoomPiece]) -> Self {
        Self { pieces: pieces.iter(), ..Self::default() }
    }

    /// Returns the number of bytes that fit.
    #[must_use]
    pub fn len(&self) -> usize {
        self.front.len + self.pieces.clone().map(|piece| piece.len).sum::<usize>()
    }

    /// Returns whether no byte fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `src` to the front of the room and computes the sum of `src` in the same pass. The next call writes
    /// behind these bytes. Returns `None` if `src` does not fit; then some of its bytes were copied.
    #[inline]
    pub fn copy_and_sum(&mut self, src: &[u8]) -> Option<Sum> {
        // SAFETY: a piece has as many writable bytes.
        self.copy_with(src, |src, piece| piece.fill(src, |src, to| unsafe { copy_and_sum_to(src, to) }))
    }

    /// Does the same as [`Self::copy_and_sum`]. `copy_and_sum` copies a part of `src` to a piece that has room for it.
    #[inline(always)]
    pub(crate) fn copy_with(&mut self, src: &[u8], copy_and_sum: impl Fn(&[u8], RoomPiece) -> Sum) -> Option<Sum> {
        if src.len() <= self.front.len {
            return Some(copy_and_sum(src, self.take(src.len())));
        }
        let (mut sum, mut src, mut is_odd) = (Sum::ZERO, src, false);
        while !src.is_empty() {
            if self.front.len == 0 {
                self.front = *self.pieces.next()?;
            }
            let (now, later) = src.split_at(src.len().min(self.front.len));
            let of_part = copy_and_sum(now, self.take(now.len()));
            sum = sum.plus(if is_odd { of_part.at_odd_offset() } else { of_part });
            is_odd ^= now.len() % 2 == 1;
            src = later;
        }
        Some(sum)
    }

    /// Prefetches the cache lines of the next `len` bytes for writing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, len: usize) {
        let now = len.min(self.front.len);
        self.front.prefetch(now);
        if now < len
            && let Some(next) = self.pieces.as_slice().first()
        {
            next.prefetch((len - now).min(next.len));
        }
    }

    /// Returns the next `len` bytes, at most the rest of the current piece.
    #[inline(always)]
    fn take(&mut self, len: usize) -> RoomPiece {
        let RoomPiece { start, len: left } = self.front;
        self.front = RoomPiece { start: start.wrapping_add(len), len: left - len };
        RoomPiece { start, len }
    }
}
