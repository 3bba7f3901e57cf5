//! The Toeplitz hash by carry-less multiplication.
//!
//! The input words and the key are treated as polynomials, with their bits as coefficients. The first bit of an input
//! word is the coefficient of degree 31. The word is multiplied by the 64 key bits from the word's offset on. The first
//! of these key bits is the coefficient of degree 0. Bit `n` of the hash combines each bit `i` of the word with bit
//! `i + n` of these key bits. So bit `n` of the hash is the coefficient of degree 31 + n in the product. The products
//! of all words are added before the hash bits are extracted.

use super::{HASH_INPUT_LEN_MAX, KEY_LEN, WORD_LEN, Word};
use core::arch::x86_64::{
    _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_setzero_si128, _mm_xor_si128,
};

/// Number of words in the longest input.
const WORDS_MAX: usize = HASH_INPUT_LEN_MAX / WORD_LEN;

/// For each word of the input, the 64 key bits by which the word is multiplied. A value of this type exists only on
/// processors with the instruction for carry-less multiplication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyParts([u64; WORDS_MAX]);

impl KeyParts {
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Option<Self> {
        if !is_x86_feature_detected!("pclmulqdq") {
            return None;
        }
        let mut parts = [0; WORDS_MAX];
        for (part, bytes) in parts.iter_mut().zip(key.windows(size_of::<u64>()).step_by(WORD_LEN)) {
            *part = bytes.iter().fold(0, |part, byte| part << u8::BITS | u64::from(*byte)).reverse_bits();
        }
        Some(Self(parts))
    }

    /// Returns the hash of `words`, the part of the input from word `at` on. Returns `None` if the words exceed the
    /// longest input.
    #[inline]
    pub(super) fn hash<const WORDS: usize>(&self, at: usize, words: &[Word; WORDS]) -> Option<u32> {
        let parts = self.0.get(at..)?.first_chunk()?;
        // SAFETY: a `KeyParts` exists, so this processor has the instruction.
        Some(unsafe { multiply_and_add(words, parts) })
    }
}

#[target_feature(enable = "pclmulqdq")]
fn multiply_and_add<const WORDS: usize>(words: &[Word; WORDS], parts: &[u64; WORDS]) -> u32 {
    let mut sum = _mm_setzero_si128();
    // The loop uses an index. With an iterator over both arrays, the compiler does not inline the calls.
    for n in 0..WORDS {
        let word = _mm_cvtsi64_si128(u32::from_be_bytes(words[n]).into());
        sum = _mm_xor_si128(sum, _mm_clmulepi64_si128::<0>(word, _mm_cvtsi64_si128(parts[n] as i64)));
    }
    let degree_31_on = _mm_cvtsi128_si64(sum) as u64 >> (u32::BITS - 1);
    // Bit 0 of the hash is the most significant bit.
    (degree_31_on as u32).reverse_bits()
}
