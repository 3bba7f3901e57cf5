//! The Internet checksum (RFC 1071): compute, compute while copying, verify, complete, update. The module also computes
//! SCTP's CRC-32C.
//!
//! Words are added in memory order, so the hot path swaps no bytes. Only [`Sum::word`], [`Sum::long`] and [`Sum::fold`]
//! convert the byte order. Short inputs use an inlined scalar path. Long inputs use the fastest compute kernel (a
//! vectorized routine) for this processor, selected at run time:
//!
//! | kernel | per iteration | processor |
//! |---|---|---|
//! | `avx512-vnni` | 64 bytes, one dot product | AVX-512 BW + VNNI |
//! | `avx512` | 64 bytes, one multiply-add, one add | AVX-512 BW |
//! | `avx2` | 32 bytes, one multiply-add, one add | AVX2 |
//! | `portable` | 8 bytes, add with carry | every processor |

mod crc32c;
mod frame;
mod kernel;
mod portable;
mod room;
mod shared;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::count;
pub(crate) use crc32c::{PROTOCOL_SCTP, SCTP_CHECKSUM_OFFSET, SCTP_HEADER_LEN, write_sctp};
pub use frame::{CompleteError, complete, update16};
pub(crate) use frame::{ipv4_header_is_good, is_good_ipv4_header, make_partial, pseudo_header, verify};
pub(crate) use kernel::ManyCopies;
use kernel::{SHORT_LEN_MAX, Source};
pub use room::{Room, RoomPiece};
pub use shared::SharedBytes;
pub(crate) use shared::{FrameBytes, Stretch};

/// A one's-complement sum of 16-bit words in memory order, not folded.
///
/// Additions are modulo 2⁶⁴ − 1, with an end-around carry. The modulus is a multiple of 2¹⁶ − 1, so no chain of
/// additions, however long, can overflow or lose a carry. The sum is zero only if all added words are zero. A nonzero
/// multiple of 2¹⁶ − 1 folds to 0xffff (RFC 1071 section 2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of an empty message.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of one 16-bit word, big-endian at an even offset of the message. `be` is the word's value as a
    /// host integer.
    #[inline]
    pub const fn word(be: u16) -> Self {
        Self(be.to_be() as u64)
    }

    /// Returns the sum of one 32-bit word, big-endian at an even offset of the message. `be` is the word's value as a
    /// host integer.
    #[inline]
    pub const fn long(be: u32) -> Self {
        Self(be.to_be() as u64)
    }

    /// Returns the sum of two parts of a message. Each part starts at an even offset of the message.
    #[inline]
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(portable::add(self.0, other.0))
    }

    /// Subtracts the partial sum `other` (one's-complement subtraction, RFC 1624).
    ///
    /// The difference of two equal sums is the negative zero, and folds to 0xffff, not to 0.
    #[inline]
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        self.plus(Self(!other.0))
    }

    /// Returns the sum that the same bytes have at an odd offset of the message (RFC 1071 section 2, byte order
    /// independence).
    #[inline]
    #[must_use]
    pub const fn at_odd_offset(self) -> Self {
        Self(self.0.rotate_left(8))
    }

    /// Folds the sum into 16 bits, as a host integer. Returns 0 only if all added words are zero, and 0xffff for each
    /// nonzero multiple of 0xffff.
    #[inline]
    pub const fn fold(self) -> u16 {
        // The lower half of `x + x.rotate_left(32)` is the sum of the two halves of `x`. The upper half is the same sum
        // plus the carry.
        let sum32 = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        let sum16 = (sum32.wrapping_add(sum32.rotate_left(16)) >> 16) as u16;
        u16::from_be(sum16)
    }

    /// Returns true for the sum of a message with a correct checksum inside (RFC 1071 section 1).
    #[inline]
    pub const fn is_right(self) -> bool {
        self.fold() == u16::MAX
    }

    /// Returns the value of a header's checksum field: the inverted folded sum, as a host integer.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns [`Sum::checksum`], but 0xffff in place of 0: the same number in one's complement. Used for protocols
    /// where a checksum field of 0 means "no checksum".
    #[inline]
    pub(crate) const fn checksum_not_zero(self) -> u16 {
        match self.checksum() {
            0 => u16::MAX,
            checksum => checksum,
        }
    }
}

/// Returns the sum of `bytes`. A zero byte pads an odd last byte (RFC 1071 section 4.1).
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum(if bytes.len() <= SHORT_LEN_MAX { portable::sum_short(bytes) } else { kernel::active().sum(bytes) })
}

/// Copies `src` to the front of `dst` and computes the sum of `src` in the same pass. Leaves bytes of `dst` past
/// `src.len()` untouched.
///
/// # Panics
/// Panics if `dst` is shorter than `src`.
#[inline]
pub fn copy_and_sum(src: &[u8], dst: &mut [u8]) -> Sum {
    count::copied(src.len());
    Sum(if src.len() <= SHORT_LEN_MAX {
        portable::copy_and_sum_short(src, dst)
    } else {
        kernel::active().copy_and_sum(src, dst)
    })
}

/// Does the same as [`copy_and_sum`], but writes to memory that other code can write at the same time, such as guest
/// memory. No reference to the destination may exist. The function does not read the destination.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes, none of them in `src`.
#[inline]
pub unsafe fn copy_and_sum_to(src: &[u8], dst: *mut u8) -> Sum {
    count::copied(src.len());
    // SAFETY: the caller vouches for `dst`.
    Sum(unsafe { kernel::active().copy_and_sum_to(src, dst) })
}

/// Does the same as [`copy_and_sum`] for bytes that another program can write at the same time.
#[inline]
fn copy_and_sum_shared(src: SharedBytes, dst: &mut [u8]) -> Sum {
    count::copied(src.len());
    Sum(kernel::active().copy_and_sum_shared(src, dst))
}

/// Does `work`, compiled for the vector instructions of the fastest kernel.
#[inline]
pub(crate) fn many_copies<W: ManyCopies>(work: W) -> W::Output {
    kernel::active().run(work)
}

/// Returns whether a kernel copies a message of `len` bytes in one call.
#[inline]
pub(crate) fn is_for_kernel(len: usize) -> bool {
    kernel::LENS.contains(&len)
}

/// The lengths that [`write_frames`] needs to segment a message. The destination consists of slots of equal length, one
/// for each frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Payload length of each frame in bytes.
    pub(crate) segment_len: usize,
    /// Distance between the starts of two consecutive slots of the destination, in bytes.
    pub(crate) stride: usize,
}

/// The headers common to all frames of one segmented message. From frame to frame, only some words and the checksum
/// differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    /// Header bytes. The bytes past `len` can have any value.
    pub(crate) bytes: &'a [u8; Head::LEN_MAX],
    /// Total length of the headers in bytes.
    pub(crate) len: usize,
    /// Words that differ from `bytes` and are equal in all frames: the even offset and the value (host integer) of each
    /// word.
    pub(crate) fixed: [(u8, u16); 2],
    /// Even offset of each of the [`HeadWords`], or [`Head::NOWHERE`].
    pub(crate) places: [u8; HeadWords::COUNT],
    /// Offset of the segment's checksum in the frame.
    pub(crate) checksum_at: usize,
    /// Value written to the checksum field if the computed checksum is 0 (host integer).
    pub(crate) checksum_zero: u16,
}

impl Head<'_> {
    /// Maximum head length: Ethernet, a tag, IPv6 and TCP with all options fit. The value is twice the length of the
    /// longest vector register.
    pub(crate) const LEN_MAX: usize = 128;
    /// Offset value that means "the word is absent".
    pub(crate) const NOWHERE: u8 = u8::MAX;

    /// Writes the head to the front of `frame`. Copies all of `bytes`, so that the copy has a constant length. The
    /// payload later overwrites the bytes after the head.
    #[inline]
    fn write(&self, words: HeadWords, frame: &mut [u8]) {
        let front = &mut frame[..Self::LEN_MAX];
        front.copy_from_slice(self.bytes);
        let mut put = |at: u8, word: [u8; 2]| {
            if at != Self::NOWHERE {
                front[usize::from(at)..usize::from(at) + 2].copy_from_slice(&word);
            }
        };
        for (at, value) in self.fixed {
            put(at, value.to_be_bytes());
        }
        for (n, at) in self.places.into_iter().enumerate() {
            put(at, words.get(n));
        }
    }

    /// Writes the checksum of a message with this `sum` to the checksum field of `frame`.
    #[inline]
    fn put_checksum(&self, sum: u64, frame: &mut [u8]) {
        let checksum = match Sum(sum).checksum() {
            0 => self.checksum_zero,
            checksum => checksum,
        };
        frame[self.checksum_at..self.checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The four 16-bit words of a head that differ from frame to frame, in memory order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadWords(u64);

impl HeadWords {
    /// Number of 16-bit words in [`HeadWords`].
    pub(crate) const COUNT: usize = 4;

    /// Packs the four words of `first` and `second` (two host integers, stored big-endian).
    #[inline]
    pub(crate) const fn new(first: u32, second: u32) -> Self {
        Self(first.to_be() as u64 | (second.to_be() as u64) << u32::BITS)
    }

    /// Returns word `n` in memory order.
    #[inline]
    fn get(self, n: usize) -> [u8; 2] {
        ((self.0 >> (u16::BITS as usize * n)) as u16).to_ne_bytes()
    }
}

/// Writes a frame for each whole segment of `src` to the front of one slot of `dst`: the head, then the segment.
/// Computes the segment's sum in the same pass. `changed` maps a frame number to the changed words of the frame's head
/// and the sum of this head. Bytes after each frame stay untouched.
///
/// # Panics
/// Panics if a slot has no room for its frame, a frame is shorter than [`Head::LEN_MAX`], or a length of `run` is 0.
#[inline]
pub(crate) fn write_frames(
    run: &Run,
    head: &Head,
    src: impl Source,
    dst: &mut [u8],
    mut changed: impl FnMut(usize) -> (HeadWords, Sum),
) {
    kernel::active().write_frames(run, head, src, dst, |n| {
        count::copied(run.segment_len);
        let (words, sum) = changed(n);
        (words, sum.0)
    });
}

/// Returns the name of the kernel selected for long messages: `avx512-vnni`, `avx512`, `avx2` or `portable`.
pub fn kernel_name() -> &'static str {
    kernel::active().name
}

/// Selects the portable compute kernel for all further sums of this process. Benchmarks that count instructions call
/// this function, because the number of instructions must not depend on the processor.
#[doc(hidden)]
pub fn use_portable_kernel() {
    kernel::activate(kernel::portable());
}

/// Calls `work` with the name of each kernel of this processor while the kernel is in use.
#[cfg(test)]
pub(crate) fn with_each_kernel(mut work: impl FnMut(&str)) {
    for kernel in kernel::available() {
        work(kernel::activate(kernel).name);
    }
    kernel::available().next().map(kernel::activate);
}

/// Computes the checksum by the definition: adds big-endian words one by one (RFC 1071 section 1). The code is slow and
/// obvious, a reference for every compute kernel.
#[cfg(test)]
fn oracle(bytes: &[u8]) -> u16 {
    let mut total: u128 = 0;
    for pair in bytes.chunks(2) {
        total += u128::from(pair[0]) * 256 + u128::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
