//! Bytes in memory that another program can write at the same time, such as the memory of a guest.

use super::{Sum, copy_and_sum_shared};
use core::ops::Range;

/// Minimum length of a page of memory, in bytes.
const PAGE_LEN: usize = 4096;

/// Bytes that another program can write at the same time. No reference to such bytes may exist. Each function reads
/// each byte once: the sum of [`SharedBytes::copy_and_sum`] is the sum of the copied bytes.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    start: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, by volatile loads, and any thread may read them.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Returns the `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be readable until the last use of the result and its copies. No reference to the bytes may exist
    /// while a function of this type runs.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, for a system call.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Returns the bytes in `range`.
    ///
    /// # Panics
    /// Panics if `range` ends past the bytes.
    #[inline]
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len);
        Self { start: self.start.wrapping_add(range.start), len: range.end - range.start }
    }

    /// Copies the bytes to the front of `dst` and computes the sum of the copied bytes, as
    /// [`copy_and_sum`](super::copy_and_sum()) does.
    ///
    /// # Panics
    /// Panics if `dst` is shorter than the bytes.
    #[inline]
    pub fn copy_and_sum(&self, dst: &mut [u8]) -> Sum {
        copy_and_sum_shared(*self, dst)
    }

    /// Reads one byte of each page. If another program has made a page unreadable, the read raises a signal. A system
    /// call with the same bytes would only return an error.
    pub fn touch(&self) {
        for at in (0..self.len).step_by(PAGE_LEN) {
            // SAFETY: `new`'s caller vouches for `len` readable bytes.
            unsafe { self.start.add(at).read_volatile() };
        }
        if let Some(last) = self.len.checked_sub(1) {
            // SAFETY: as above.
            unsafe { self.start.add(last).read_volatile() };
        }
    }

    /// Copies the first bytes to `dst`, word by word.
    pub(super) fn read(&self, dst: &mut [u8]) {
        assert!(dst.len() <= self.len);
        let (words, tail) = dst.as_chunks_mut::<{ size_of::<u64>() }>();
        let mut from = self.start;
        for word in words {
            // SAFETY: `new`'s caller vouches for `len` readable bytes, of which these are some. The type needs no
            // alignment.
            *word = unsafe { from.cast::<Unaligned>().read_volatile() }.0.to_ne_bytes();
            from = from.wrapping_add(size_of::<u64>());
        }
        for byte in tail {
            // SAFETY: as above.
            *byte = unsafe { from.read_volatile() };
            from = from.wrapping_add(1);
        }
    }
}

/// A word at an unaligned address. A volatile load of an array of bytes would load one byte at a time.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned(u64);

/// The bytes of a frame: private bytes, and shared bytes after them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameBytes<'a> {
    /// All headers, and possibly the start of the payload.
    pub(crate) private: &'a [u8],
    /// The other bytes of the frame, in order. Empty if all bytes are private.
    pub(crate) shared: &'a [SharedBytes],
}

/// Adjacent bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stretch<'a> {
    Private(&'a [u8]),
    Shared(SharedBytes),
}

impl Stretch<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }
}

impl<'a> FrameBytes<'a> {
    /// Returns the adjacent bytes from offset `at` on; empty past the frame's end.
    pub(crate) fn from(&self, at: usize) -> Stretch<'a> {
        if at < self.private.len() {
            return Stretch::Private(&self.private[at..]);
        }
        let mut at = at - self.private.len();
        for bytes in self.shared {
            if at < bytes.len() {
                return Stretch::Shared(bytes.part(at..bytes.len()));
            }
            at -= bytes.len();
        }
        Stretch::Private(&[])
    }

    /// Copies the first bytes to `dst`.
    pub(crate) fn copy(&self, dst: &mut [u8]) {
        if self.shared.is_empty() {
            dst.copy_from_slice(&self.private[..dst.len()]);
        } else {
            self.copy_and_sum(0, dst);
        }
    }

    /// Copies the bytes from offset `at` on to `dst` and returns the sum of the copied bytes. Copies fewer bytes if the
    /// frame ends before.
    pub(crate) fn copy_and_sum(&self, at: usize, dst: &mut [u8]) -> Sum {
        if self.shared.is_empty() {
            return super::copy_and_sum(&self.private[at..at + dst.len()], dst);
        }
        let (mut sum, mut copied) = (Sum::ZERO, 0);
        while copied < dst.len() {
            let to = &mut dst[copied..];
            let (len, of_stretch) = match self.from(at + copied) {
                Stretch::Private([]) => break,
                Stretch::Private(bytes) => {
                    let len = bytes.len().min(to.len());
                    (len, super::copy_and_sum(&bytes[..len], to))
                }
                Stretch::Shared(bytes) => {
                    let len = bytes.len().min(to.len());
                    (len, bytes.part(0..len).copy_and_sum(to))
                }
            };
            sum = sum.plus(if copied % 2 == 1 { of_stretch.at_odd_offset() } else { of_stretch });
            copied += len;
        }
        sum
    }
}
