//! Memory for payloads that another program can read and write at the same time, such as the buffers of a guest.

// Only inlined functions are compiled for the vector instructions of a kernel.
#![allow(clippy::inline_always)]

use super::{Sum, copy_and_sum_to};
use core::marker::PhantomData;
use core::slice;

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
    /// The bytes must be writable until the last use of the result and its copies. While a function of this module
    /// runs, no reference to the bytes may exist, and no other thread of this program may access them.
    #[inline]
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no caller asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    ///
    /// # Panics
    /// Panics if there are fewer than `len` bytes.
    #[inline(always)]
    pub(super) fn start_for(self, len: usize) -> *mut u8 {
        assert!(len <= self.len);
        self.start
    }
}

/// The room for the next bytes of a frame: pieces of memory, in order.
#[derive(Debug)]
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
    pub(crate) fn len(&self) -> usize {
        self.front.len + self.pieces.clone().map(|piece| piece.len).sum::<usize>()
    }

    /// Copies `src` to the front of the room and computes the sum of `src` in the same pass. The next call writes
    /// behind these bytes. Returns `None` if `src` does not fit; then some of its bytes were copied.
    #[inline]
    pub fn copy_and_sum(&mut self, src: &[u8]) -> Option<Sum> {
        // SAFETY: the piece has as many writable bytes.
        self.copy_with(src, |src, piece| unsafe { copy_and_sum_to(src, piece.start_for(src.len())) })
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

    /// Returns the next `len` bytes, at most the rest of the current piece.
    #[inline(always)]
    fn take(&mut self, len: usize) -> RoomPiece {
        let RoomPiece { start, len: left } = self.front;
        self.front = RoomPiece { start: start.wrapping_add(len), len: left - len };
        RoomPiece { start, len }
    }
}
