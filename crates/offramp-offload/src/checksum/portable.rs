//! The sum in portable Rust, for short messages and for processors without AVX2.

use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

/// Length of the words that the sum adds, in bytes.
const WORD: usize = size_of::<u64>();
/// Number of bytes added in one chain of additions with carry, before the end-around carry.
const CHAIN: usize = 4 * WORD;
/// Length of a block in bytes. [`copy_and_sum`] copies a block, and then computes the block's sum. A block fits into
/// any first-level cache. For a copy as short as a block, the C library does not use `rep movsb`. On Zen 4, `rep movsb`
/// to an unaligned destination is 28 times slower than vectors.
const COPY_BLOCK_LEN: usize = 1024;

/// Returns `a + b` modulo 2⁶⁴ − 1, with an end-around carry.
#[inline]
pub(super) const fn add(a: u64, b: u64) -> u64 {
    let (low, carry) = a.overflowing_add(b);
    low + carry as u64 // After a carry, `low` is at most 2⁶⁴ − 2, so this addition cannot carry.
}

/// Returns the sum of a short message, modulo 2⁶⁴ − 1. Uses one chain of additions with carry.
#[inline]
pub(super) fn sum_short(bytes: &[u8]) -> u64 {
    let (chains, rest) = bytes.as_chunks::<CHAIN>();
    let total = chains.iter().fold(0, chain);
    add(total, sum_words(rest, bytes))
}

/// Returns the sum of a long message. Uses two parallel carry chains.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<{ 2 * CHAIN }>();
    let (mut even, mut odd) = (0, 0);
    for pair in pairs {
        let (chains, _) = pair.as_chunks::<CHAIN>();
        even = chain(even, &chains[0]);
        odd = chain(odd, &chains[1]);
    }
    add(add(even, odd), sum_short(rest))
}

/// Copies a short message and computes the message's sum, word by word.
///
/// # Panics
/// Panics if `dst` is shorter than `src`.
#[inline]
pub(super) fn copy_and_sum_short(src: &[u8], dst: &mut [u8]) -> u64 {
    let dst = &mut dst[..src.len()];
    let (chains, rest) = src.as_chunks::<CHAIN>();
    let (to_chains, to_rest) = dst.as_chunks_mut::<CHAIN>();
    let mut total = 0;
    for (from, to) in chains.iter().zip(to_chains) {
        *to = *from;
        compiler_fence(Ordering::SeqCst); // Without this fence, the loop becomes a memcpy and a second pass.
        total = chain(total, from);
    }
    let (words, _) = rest.as_chunks::<WORD>();
    let (to_words, to_tail) = to_rest.as_chunks_mut::<WORD>();
    for (from, to) in words.iter().zip(to_words) {
        *to = *from;
        compiler_fence(Ordering::SeqCst);
    }
    let tail_len = to_tail.len();
    copy_tail(src, dst, tail_len);
    add(total, sum_words(rest, src))
}

/// Copies a long message and computes the message's sum, block by block.
///
/// # Safety
/// At `src`, `len` bytes are readable, and no other program writes to them. At `dst`, `len` bytes are writable, none of
/// them in the source.
pub(super) unsafe fn copy_and_sum(src: *const u8, len: usize, dst: *mut u8) -> u64 {
    // SAFETY: the caller vouches for `src`.
    let src = unsafe { core::slice::from_raw_parts(src, len) };
    src.chunks(COPY_BLOCK_LEN).enumerate().fold(0, |total, (n, from)| {
        // SAFETY: the caller vouches for `dst`, and the block lies inside `dst`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), dst.add(n * COPY_BLOCK_LEN), from.len()) };
        add(total, sum(from))
    })
}

/// Adds the four words of `bytes` to `total`, each with the carry of the previous addition.
#[inline]
fn chain(total: u64, bytes: &[u8; CHAIN]) -> u64 {
    let (words, _) = bytes.as_chunks::<WORD>();
    let (total, carry) = total.carrying_add(u64::from_ne_bytes(words[0]), false);
    let (total, carry) = total.carrying_add(u64::from_ne_bytes(words[1]), carry);
    let (total, carry) = total.carrying_add(u64::from_ne_bytes(words[2]), carry);
    let (total, carry) = total.carrying_add(u64::from_ne_bytes(words[3]), carry);
    total + carry as u64
}

/// Returns the sum of `rest`, the end of `message`. `rest` is shorter than [`CHAIN`] bytes.
#[inline]
fn sum_words(rest: &[u8], message: &[u8]) -> u64 {
    let (words, tail) = rest.as_chunks::<WORD>();
    let total = words.iter().fold(0, |total, word| add(total, u64::from_ne_bytes(*word)));
    add(total, last_word(message, tail.len()))
}

/// Returns the last `len` < 8 bytes of `message`, padded with zeros to a word.
#[inline]
fn last_word(message: &[u8], len: usize) -> u64 {
    if len == 0 {
        return 0;
    }
    match message.last_chunk::<WORD>() {
        Some(last) => (u64::from_be_bytes(*last) << (8 * (WORD - len))).to_be(),
        None => padded(message),
    }
}

/// Returns a message of less than eight bytes, padded with zeros to a word.
#[inline]
fn padded(message: &[u8]) -> u64 {
    let (mut word, mut rest, mut shift) = (0, message, u64::BITS);
    if let Some((four, after)) = rest.split_first_chunk() {
        shift -= u32::BITS;
        word |= u64::from(u32::from_be_bytes(*four)) << shift;
        rest = after;
    }
    if let Some((two, after)) = rest.split_first_chunk() {
        shift -= u16::BITS;
        word |= u64::from(u16::from_be_bytes(*two)) << shift;
        rest = after;
    }
    if let Some(one) = rest.first() {
        word |= u64::from(*one) << (shift - u8::BITS);
    }
    word.to_be()
}

/// Copies the last `len` < 8 bytes of `src`. The bytes before the last `len` bytes are already copied, and can be
/// copied again.
#[inline]
fn copy_tail(src: &[u8], dst: &mut [u8], len: usize) {
    if len == 0 {
        return;
    }
    match (src.last_chunk::<WORD>(), dst.last_chunk_mut::<WORD>()) {
        (Some(from), Some(to)) => *to = *from,
        _ => {
            for (from, to) in src.iter().zip(dst) {
                *to = *from;
                compiler_fence(Ordering::SeqCst);
            }
        }
    }
}
