//! The Internet checksum (RFC 1071): sum, sum while copying, verify, complete, update.
//!
//! Words are added as they lie in memory, so the hot path swaps no bytes; only [`Sum::fold`] and
//! [`Sum::word`] know of byte order. Short inputs take an inlined scalar path, long ones the best
//! kernel of this processor, which is found at run time:
//!
//! | kernel | per turn | where |
//! |---|---|---|
//! | `avx512-vnni` | 64 bytes, one dot product | AVX-512 BW + VNNI |
//! | `avx512` | 64 bytes, one multiply-add, one add | AVX-512 BW |
//! | `avx2` | 32 bytes, one multiply-add, one add | AVX2 |
//! | `portable` | 8 bytes, carries kept | everywhere |

mod frame;
mod kernel;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use frame::{CompleteError, complete, ipv4_header_is_good, make_partial, pseudo_header, update16, verify};
use kernel::SHORT_LEN_MAX;

/// A one's-complement sum of 16-bit words in memory order, not folded.
///
/// The value is kept modulo 2⁶⁴ − 1 with the carry brought around. 2¹⁶ − 1 divides that, so no chain
/// of additions, however long, can overflow or lose anything. Zero means "nothing but zeros was
/// added"; every other multiple of 2¹⁶ − 1 folds to 0xffff (RFC 1071 section 2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// A 16-bit value (host integer) as it stands, big-endian, at an even offset of the message.
    #[inline]
    pub const fn word(be: u16) -> Self {
        Self(be.to_be() as u64)
    }

    /// The sum of both messages, each starting at an even offset.
    #[inline]
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(portable::add(self.0, other.0))
    }

    /// The sum without `other`, which is part of it (one's-complement subtraction, RFC 1624).
    ///
    /// What is left of equal sums is the negative zero: it folds to 0xffff, not to 0.
    #[inline]
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        self.plus(Self(!other.0))
    }

    /// The sum of the same bytes when they start at an odd offset of the message
    /// (RFC 1071 section 2, byte order independence).
    #[inline]
    #[must_use]
    pub const fn at_odd_offset(self) -> Self {
        Self(self.0.rotate_left(8))
    }

    /// The sum in 16 bits, a host integer whose big-endian bytes are the folded sum: 0 only for the
    /// sum of nothing but zeros, 0xffff for every other multiple of 0xffff.
    #[inline]
    pub const fn fold(self) -> u16 {
        // The upper half of x + rotated x is upper + lower + the carry between them.
        let sum32 = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        let sum16 = (sum32.wrapping_add(sum32.rotate_left(16)) >> 16) as u16;
        u16::from_be(sum16)
    }

    /// What a header's checksum field holds: the inverted folded sum, a host integer.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }
}

/// The sum of `bytes`; an odd last byte is padded with a zero byte (RFC 1071 section 4.1).
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum(if bytes.len() <= SHORT_LEN_MAX { portable::sum_short(bytes) } else { kernel::active().sum(bytes) })
}

/// Copies `src` to the front of `dst` and sums it in the same pass. Bytes of `dst` behind
/// `src.len()` are not touched.
///
/// # Panics
/// When `dst` is shorter than `src`.
#[inline]
pub fn copy_and_sum(src: &[u8], dst: &mut [u8]) -> Sum {
    Sum(if src.len() <= SHORT_LEN_MAX {
        portable::copy_and_sum_short(src, dst)
    } else {
        kernel::active().copy_and_sum(src, dst)
    })
}

/// How the segments of one message are laid out where they are copied to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Bytes of a segment.
    pub(crate) segment_len: usize,
    /// Distance of the slots.
    pub(crate) stride: usize,
    /// Where a segment starts in its slot.
    pub(crate) offset: usize,
}

/// [`copy_and_sum`] of each whole segment of `src` into its slot of `dst`. `each` gets the number, the
/// sum and the slot of a segment as soon as it is copied.
///
/// # Panics
/// When a slot has no room for its segment, or a length of `run` is 0.
#[inline]
pub(crate) fn copy_and_sum_each(run: &Run, src: &[u8], dst: &mut [u8], mut each: impl FnMut(usize, Sum, &mut [u8])) {
    kernel::active().copy_and_sum_each(run, src, dst, |n, sum, slot| each(n, Sum(sum), slot));
}

/// Which kernel long messages take on this machine: `avx512-vnni`, `avx512`, `avx2` or `portable`.
pub fn kernel_name() -> &'static str {
    kernel::active().name
}

/// The definition itself: big-endian words added one by one (RFC 1071 section 1). Slow and obvious;
/// what every kernel is held against.
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
