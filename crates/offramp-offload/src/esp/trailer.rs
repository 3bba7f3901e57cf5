//! The trailer after the payload: padding, padding length, and next header (RFC 4303 2.4 to 2.6).

/// Length of the two fields after the padding, in bytes: pad length and next header (RFC 4303 2.5, 2.6).
pub(super) const TRAILER_FIELDS_LEN: usize = 2;

/// Maximum padding that fits into one word together with the two fields after it, in bytes.
pub(super) const SHORT_PAD_LEN_MAX: usize = size_of::<u64>() - TRAILER_FIELDS_LEN;
/// The padding bytes 1, 2, 3 and so on, as a little-endian word.
const SHORT_PADDING: u64 = 0x0807_0605_0403_0201;

/// Returns a trailer as one word, for a single store.
#[inline]
pub(super) fn short_trailer(pad_len: usize, next_header: u8) -> u64 {
    let word = SHORT_TRAILERS[pad_len];
    word | u64::from(next_header) << (u8::BITS * (pad_len as u32 + 1))
}

/// Trailers without next header, one for each padding length that fits into a word.
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
