//! The trailer after the payload: padding, its length, and the next header (RFC 4303 2.4 to 2.6).

/// Pad length and next header after the padding (RFC 4303 2.5, 2.6).
pub(super) const TRAILER_FIELDS_LEN: usize = 2;

/// Longest padding that fits into a word with the two fields after it.
pub(super) const SHORT_PAD_LEN_MAX: usize = size_of::<u64>() - TRAILER_FIELDS_LEN;
/// Padding 1, 2, 3, … as it lies in a little-endian word.
const SHORT_PADDING: u64 = 0x0807_0605_0403_0201;

/// Returns a trailer in one word, for a single store.
#[inline]
pub(super) fn short_trailer(pad_len: usize, next_header: u8) -> u64 {
    let word = SHORT_TRAILERS[pad_len];
    word | u64::from(next_header) << (u8::BITS * (pad_len as u32 + 1))
}

/// Trailers with every padding that fits into a word, without the next header.
const SHORT_TRAILERS: [u64; SHORT_PAD_LEN_MAX + 1] = {
    let mut trailers = [0; SHORT_PAD_LEN_MAX + 1];
    let mut pad_len = 0;
    while pad_len <= SHORT_PAD_LEN_MAX {
        let pad_bits = pad_len as u32 * u8::BITS;
        trailers[pad_len] = SHORT_PADDING & ((1 << pad_bits) - 1) | (pad_len as u64) << pad_bits;
        pad_len += 1;
    }
    trailers
};
