//! The Internet checksum (RFC 1071): compute, compute while copying, verify, complete, update. And SCTP's CRC-32C.
//!
//! Words are added as they lie in memory, so the hot path swaps no bytes; only [`Sum::fold`] and [`Sum::word`] know of
//! byte order. Short inputs take an inlined scalar path, long ones the best kernel of this processor, found at run
//! time:
//!
//! | kernel | per turn | where |
//! |---|---|---|
//! | `avx512-vnni` | 64 bytes, one dot product | AVX-512 BW + VNNI |
//! | `avx512` | 64 bytes, one multiply-add, one add | AVX-512 BW |
//! | `avx2` | 32 bytes, one multiply-add, one add | AVX2 |
//! | `portable` | 8 bytes, carries kept | everywhere |

mod crc32c;
mod frame;
mod kernel;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::count;
pub(crate) use crc32c::{PROTOCOL_SCTP, SCTP_CHECKSUM_OFFSET, SCTP_HEADER_LEN, write_sctp};
pub use frame::{CompleteError, complete, update16};
pub(crate) use frame::{ipv4_header_is_good, is_good_ipv4_header, make_partial, pseudo_header, verify};
use kernel::SHORT_LEN_MAX;

/// A one's-complement sum of 16-bit words in memory order, not folded.
///
/// Additions are modulo 2⁶⁴ − 1, with the carry brought around. 2¹⁶ − 1 divides that, so no chain of additions, however
/// long, can overflow or lose anything. Zero means "nothing but zeros was added"; every other multiple of 2¹⁶ − 1 folds
/// to 0xffff (RFC 1071 section 2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of an empty message.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of a 16-bit value (host integer), big-endian, at an even offset of the message.
    #[inline]
    pub const fn word(be: u16) -> Self {
        Self(be.to_be() as u64)
    }

    /// Returns the sum of a 32-bit value (host integer), big-endian, at an even offset of the message.
    #[inline]
    pub const fn long(be: u32) -> Self {
        Self(be.to_be() as u64)
    }

    /// Returns the sum of both messages, each starting at an even offset.
    #[inline]
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(portable::add(self.0, other.0))
    }

    /// Returns the sum without its part `other` (one's-complement subtraction, RFC 1624).
    ///
    /// The difference of two equal sums is the negative zero: it folds to 0xffff, not to 0.
    #[inline]
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        self.plus(Self(!other.0))
    }

    /// Returns the sum of the same bytes when they start at an odd offset of the message (RFC 1071 section 2, byte
    /// order independence).
    #[inline]
    #[must_use]
    pub const fn at_odd_offset(self) -> Self {
        Self(self.0.rotate_left(8))
    }

    /// Folds the sum into 16 bits, a host integer with the folded sum as its big-endian bytes. Returns 0 only for the
    /// sum of nothing but zeros, and 0xffff for every other multiple of 0xffff.
    #[inline]
    pub const fn fold(self) -> u16 {
        // The upper half of x + rotated x is upper + lower + the carry between them.
        let sum32 = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        let sum16 = (sum32.wrapping_add(sum32.rotate_left(16)) >> 16) as u16;
        u16::from_be(sum16)
    }

    /// Returns true for the sum of a message that includes a right checksum (RFC 1071 section 1).
    #[inline]
    pub const fn is_right(self) -> bool {
        self.fold() == u16::MAX
    }

    /// Returns the value of a header's checksum field: the inverted folded sum, a host integer.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// As [`Sum::checksum`], with 0xffff for 0: the same number in one's complement, in protocols where 0 means "no
    /// checksum".
    #[inline]
    pub(crate) const fn checksum_not_zero(self) -> u16 {
        match self.checksum() {
            0 => u16::MAX,
            checksum => checksum,
        }
    }
}

/// Returns the sum of `bytes`; an odd last byte is padded with a zero byte (RFC 1071 section 4.1).
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum(if bytes.len() <= SHORT_LEN_MAX { portable::sum_short(bytes) } else { kernel::active().sum(bytes) })
}

/// Copies `src` to the front of `dst` and computes its sum in the same pass. Leaves bytes of `dst` past `src.len()`
/// untouched.
///
/// # Panics
/// When `dst` is shorter than `src`.
#[inline]
pub fn copy_and_sum(src: &[u8], dst: &mut [u8]) -> Sum {
    count::copied(src.len());
    Sum(if src.len() <= SHORT_LEN_MAX {
        portable::copy_and_sum_short(src, dst)
    } else {
        kernel::active().copy_and_sum(src, dst)
    })
}

/// As [`copy_and_sum`], but to memory with other writers, such as a guest's. No reference to it may exist. It is not
/// read.
///
/// # Safety
/// `dst` must be valid for writes of as many bytes as `src` has, none of them in `src`.
#[inline]
pub unsafe fn copy_and_sum_to(src: &[u8], dst: *mut u8) -> Sum {
    count::copied(src.len());
    // SAFETY: the caller vouches for `dst`.
    Sum(unsafe { kernel::active().copy_and_sum_to(src, dst) })
}

/// The sizes of a segmented message: its segments, and the slots of its frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Bytes of a segment.
    pub(crate) segment_len: usize,
    /// Distance of the slots.
    pub(crate) stride: usize,
}

/// The headers of every segment of a run: the same bytes but for some words and the checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    /// The bytes; those past `len` are undefined.
    pub(crate) bytes: &'a [u8; Head::LEN_MAX],
    /// Bytes of the head.
    pub(crate) len: usize,
    /// Replacements for words in `bytes`: even offset, and value (host integer).
    pub(crate) fixed: [(u8, u16); 2],
    /// The offset of each of the [`HeadWords`]: even, or [`Head::NOWHERE`].
    pub(crate) places: [u8; HeadWords::COUNT],
    /// Offset of the segment's checksum.
    pub(crate) checksum_at: usize,
    /// The word to write for a checksum of 0 (host integer).
    pub(crate) checksum_zero: u16,
}

impl Head<'_> {
    /// Ethernet, a tag, IPv6 and TCP with every option fit. Two of the longest vectors.
    pub(crate) const LEN_MAX: usize = 128;
    /// The offset of an absent word.
    pub(crate) const NOWHERE: u8 = u8::MAX;

    /// Writes all of `bytes`, because the copy's length is then a constant. The payload later overwrites the bytes
    /// after the head.
    fn write(&self, words: HeadWords, frame: &mut [u8]) {
        frame[..Self::LEN_MAX].copy_from_slice(self.bytes);
        let changed = self.places.iter().enumerate().map(|(n, &at)| (at, words.get(n)));
        let fixed = self.fixed.iter().map(|&(at, value)| (at, value.to_be_bytes()));
        for (at, word) in fixed.chain(changed).filter(|&(at, _)| at != Self::NOWHERE) {
            frame[usize::from(at)..usize::from(at) + 2].copy_from_slice(&word);
        }
    }

    /// Writes the checksum for a message with this `sum`.
    #[inline]
    fn put_checksum(&self, sum: u64, frame: &mut [u8]) {
        let checksum = match Sum(sum).checksum() {
            0 => self.checksum_zero,
            checksum => checksum,
        };
        frame[self.checksum_at..self.checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Four words that differ from frame to frame, as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadWords(u64);

impl HeadWords {
    /// The number of words.
    pub(crate) const COUNT: usize = 4;

    /// Packs two words each of `first` and `second` (host integers, written big-endian).
    #[inline]
    pub(crate) const fn new(first: u32, second: u32) -> Self {
        Self(first.to_be() as u64 | (second.to_be() as u64) << u32::BITS)
    }

    /// Returns word `n` as it lies in memory.
    fn get(self, n: usize) -> [u8; 2] {
        ((self.0 >> (u16::BITS as usize * n)) as u16).to_ne_bytes()
    }
}

/// Writes a frame for each whole segment of `src` to the front of its slot of `dst`: the head, then the segment.
/// Computes the segment's sum in the same pass. `changed` returns, for a frame number, the changed words of its head
/// and the sum of the head. Leaves bytes past a frame untouched.
///
/// # Panics
/// When a slot has no room for its frame, a frame is shorter than [`Head::LEN_MAX`], or a length of
/// `run` is 0.
#[inline]
pub(crate) fn write_frames(
    run: &Run,
    head: &Head,
    src: &[u8],
    dst: &mut [u8],
    mut changed: impl FnMut(usize) -> (HeadWords, Sum),
) {
    kernel::active().write_frames(run, head, src, dst, |n| {
        count::copied(run.segment_len);
        let (words, sum) = changed(n);
        (words, sum.0)
    });
}

/// Returns the name of this machine's kernel for long messages: `avx512-vnni`, `avx512`, `avx2` or `portable`.
pub fn kernel_name() -> &'static str {
    kernel::active().name
}

/// Uses the portable kernel from now on. For counts of instructions, as these must not depend on the processor.
#[doc(hidden)]
pub fn use_portable_kernel() {
    kernel::activate(kernel::portable());
}

/// Computes the checksum by the definition: big-endian words added one by one (RFC 1071 section 1). Slow and obvious,
/// as a reference for every kernel.
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
