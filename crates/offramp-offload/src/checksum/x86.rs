//! The compute kernels for processors with AVX2 or AVX-512.
//!
//! A word with a flipped top bit, read as a signed number, is the word minus 2¹⁵. `vpmaddwd` multiplies such words by
//! one and adds adjacent pairs of a whole vector. `vpdpwssd` also accumulates the result. The correction for the
//! flipped bits depends only on the number of words. All arithmetic is exact modulo 2³², even if a lane wraps. The true
//! sum of one call's words stays below 2³²: `CHUNK_LEN_MAX` bytes and one more vector for the masked ends are 2¹⁵ + 32
//! words, each less than 2¹⁶.

// The module uses two dozen intrinsics, whose names all begin with `_mm`.
#![allow(clippy::wildcard_imports)]

use super::kernel::{CHUNK_LEN_MAX, LENS, ManyCopies, SHORT_LEN_MAX, copy_and_sum_short_to};
use super::portable;
use super::{Head, HeadWords, Run, Sum};
use core::arch::x86_64::*;

/// Length of a 512-bit vector, and of a cache line, in bytes.
const ZMM: usize = 64;
/// Length of a 256-bit vector in bytes.
const YMM: usize = 32;
/// Length of a 128-bit vector in bytes.
const XMM: usize = 16;
/// Number of independent accumulators. Four hide the latency of an accumulation, four cycles, at one vector per cycle.
const UNROLL: usize = 4;
/// Difference between a word and the signed number that remains after a flip of the word's top bit.
const BIAS_PER_WORD: u32 = 1 << 15;

/// Returns the number by which flipping the top bit of each word decreases the sum of `bytes` bytes, modulo 2³².
#[inline]
const fn bias(bytes: usize) -> u32 {
    (bytes as u32 / 2).wrapping_mul(BIAS_PER_WORD)
}

/// Returns a mask of all bytes of a vector except the `count` lowest. `count` is 0 to 64.
#[inline]
const fn all_but_low_bytes(count: usize) -> __mmask64 {
    (!0u64).unbounded_shl(count as u32)
}

/// A vector at an unaligned address. A volatile load of this type is one instruction.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// Defines the copy of a kernel, with the kernel's `accumulate`, `total`, `low_bytes` and `without_low_bytes`.
macro_rules! copying {
    ($features:literal, $vector:ty, $zero:ident, $store:ident) => {
        /// Length of a vector in bytes.
        const LEN: usize = size_of::<$vector>();

        /// Copies `len` bytes and computes their sum. Stores at aligned addresses, except in the first and the last
        /// vector, which overlap their neighbours.
        ///
        /// Another program can write to the source at the same time. The sum is the sum of the copied bytes. An overlap
        /// is read and stored twice; the bytes stored last count.
        ///
        /// # Safety
        /// The processor has the features, and `len` lies in `kernel::LENS`. At `from`, `len` bytes are readable. At
        /// `to`, `len` bytes are writable, none of them in the source.
        #[inline]
        #[target_feature(enable = $features)]
        pub(in super::super) unsafe fn copy_and_sum(from: *const u8, len: usize, to: *mut u8) -> u64 {
            debug_assert!(len > SHORT_LEN_MAX && len <= CHUNK_LEN_MAX);
            // `lead` is even, so that words stay aligned to the message. With an odd `to`, the stores are not aligned.
            let lead = (LEN - to.addr() % LEN) & !1;
            // The last whole words, from an even offset. The vectors before them end at `end`.
            let (last_at, end) = ((len - LEN) & !1, len - (len - lead) % LEN);
            let mut acc = [$zero(); UNROLL];
            // SAFETY: last_at + LEN <= len, the length of source and destination.
            let last = unsafe { copy(from.add(last_at), to.add(last_at)) };
            acc[2] = accumulate(acc[2], without_low_bytes(last, end - last_at));
            // SAFETY: source and destination have more than LEN bytes.
            let first = unsafe { copy(from, to) };
            acc[0] = accumulate(acc[0], low_bytes(first, lead));
            let mut at = lead;
            while at + UNROLL * LEN <= len {
                for (i, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the vector ends at or before `len`.
                    *acc = accumulate(*acc, unsafe { copy(from.add(at + i * LEN), to.add(at + i * LEN)) });
                }
                at += UNROLL * LEN;
            }
            while at + LEN <= len {
                // SAFETY: the vector ends at or before `len`.
                acc[1] = accumulate(acc[1], unsafe { copy(from.add(at), to.add(at)) });
                at += LEN;
            }
            let total = total(acc, at - lead + 2 * LEN);
            if len % 2 == 0 {
                return total;
            }
            // SAFETY: the byte is the last of `len` bytes.
            let odd = unsafe { from.add(len - 1).read_volatile() };
            // SAFETY: as above.
            unsafe { *to.add(len - 1) = odd };
            total + u64::from(u16::from_ne_bytes([odd, 0]))
        }

        /// Implements `Kernel::run`.
        ///
        /// # Safety
        /// The processor has the features.
        #[target_feature(enable = $features)]
        pub(in super::super) unsafe fn run<W: ManyCopies>(work: W) -> W::Output {
            work.run(|src, piece| {
                let to = piece.start_for(src.len());
                if !LENS.contains(&src.len()) {
                    // SAFETY: the piece has as many writable bytes.
                    return Sum(unsafe { copy_and_sum_short_to(src, to) });
                }
                // SAFETY: the caller vouches for the features, the length was checked, and the piece has as many
                // writable bytes.
                Sum(unsafe { copy_and_sum(src.as_ptr(), src.len(), to) })
            })
        }

        /// Copies one vector and returns the vector. The load is volatile: the vector has the bytes that were stored,
        /// even if another program writes to the source. The loop around it does not become a memcpy and a second pass.
        ///
        /// # Safety
        /// The processor has the features. `LEN` bytes are readable at `from`, and writable at `to`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn copy(from: *const u8, to: *mut u8) -> $vector {
            // SAFETY: the caller vouches for the readable bytes, and the type needs no alignment.
            let Unaligned(vector) = unsafe { from.cast::<Unaligned<$vector>>().read_volatile() };
            // SAFETY: the caller vouches for the writable bytes.
            unsafe { $store(to.cast(), vector) };
            vector
        }
    };
}

/// Defines an AVX-512 kernel. The two kernels differ in how they accumulate a vector's words.
macro_rules! avx512_kernel {
    ($name:ident, $features:literal, |$acc:ident, $flipped:ident, $ones:ident| $accumulated:expr) => {
        pub(super) mod $name {
            use super::*;

            /// Adds the words of `vector`, each minus 2¹⁵, to `acc`.
            #[inline]
            #[target_feature(enable = $features)]
            fn accumulate($acc: __m512i, vector: __m512i) -> __m512i {
                let $flipped = _mm512_xor_si512(vector, _mm512_set1_epi16(i16::MIN));
                let $ones = _mm512_set1_epi16(1);
                $accumulated
            }

            /// Returns the sum of the words accumulated from `bytes` bytes.
            #[inline]
            #[target_feature(enable = $features)]
            fn total(acc: [__m512i; UNROLL], bytes: usize) -> u64 {
                let lanes = _mm512_add_epi32(_mm512_add_epi32(acc[0], acc[1]), _mm512_add_epi32(acc[2], acc[3]));
                u64::from((_mm512_reduce_add_epi32(lanes) as u32).wrapping_add(bias(bytes)))
            }

            /// Returns the sum of `bytes`. Reads whole cache lines, with masks for the first and the last line. Words
            /// are read at even addresses, so an odd start only rotates the result.
            ///
            /// # Safety
            /// The processor has the features, and the length of the message lies in `kernel::LENS`.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn sum(bytes: &[u8]) -> u64 {
                debug_assert!(bytes.len() > SHORT_LEN_MAX && bytes.len() <= CHUNK_LEN_MAX);
                let start = bytes.as_ptr();
                let lead = start.addr() % ZMM;
                let first_line = start.wrapping_sub(lead);
                let end = lead + bytes.len();
                let mut acc = [_mm512_setzero_si512(); UNROLL];
                // SAFETY: `bytes` is longer than a line, so the line ends inside `bytes`. The line's bytes before
                // `bytes` are masked off and not read.
                let first = unsafe { _mm512_maskz_loadu_epi8(all_but_low_bytes(lead), first_line.cast()) };
                acc[0] = accumulate(acc[0], first);
                let mut at = ZMM;
                while at + UNROLL * ZMM <= end {
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let line = first_line.wrapping_add(at + i * ZMM);
                        // SAFETY: the line is aligned and lies inside `bytes`: it starts after the first line and ends
                        // at or before `end`.
                        *acc = accumulate(*acc, unsafe { _mm512_load_si512(line.cast()) });
                    }
                    at += UNROLL * ZMM;
                }
                while at + ZMM <= end {
                    // SAFETY: the line is aligned and ends at or before `end`.
                    let line = unsafe { _mm512_load_si512(first_line.wrapping_add(at).cast()) };
                    acc[1] = accumulate(acc[1], line);
                    at += ZMM;
                }
                let mask = !all_but_low_bytes(end - at);
                // SAFETY: the bytes past `end` are masked off and not read.
                let last = unsafe { _mm512_maskz_loadu_epi8(mask, first_line.wrapping_add(at).cast()) };
                acc[2] = accumulate(acc[2], last);
                let total = total(acc, at + ZMM);
                if lead % 2 == 0 { total } else { total.rotate_left(8) }
            }

            /// Implements `Kernel::write_frames`. All steps are in one function, so that no register is saved and
            /// restored between two frames. Heads are assembled in registers.
            ///
            /// # Safety
            /// The processor has the features, and the length of a segment lies in `kernel::LENS`. At `src`, `count`
            /// segments are readable.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn write_frames(
                run: &Run,
                head: &Head,
                (src, count): (*const u8, usize),
                dst: &mut [u8],
                mut changed: impl FnMut(usize) -> (HeadWords, u64),
            ) {
                let blocks = [HeadBlock::of(head, 0), HeadBlock::of(head, 1)];
                for (n, slot) in dst.chunks_mut(run.stride).take(count).enumerate() {
                    let frame = &mut slot[..head.len + run.segment_len];
                    let (words, head_sum) = changed(n);
                    // SAFETY: the frame is longer than a segment, which is longer than two vectors.
                    unsafe { store_head(&blocks, words, head.len, frame.as_mut_ptr()) };
                    // SAFETY: the caller vouches for the segment and its length. The frame after the head has the same
                    // length.
                    let sum = unsafe {
                        let segment = src.add(n * run.segment_len);
                        copy_and_sum(segment, run.segment_len, frame[head.len..].as_mut_ptr())
                    };
                    head.put_checksum(portable::add(head_sum, sum), frame);
                }
            }

            /// Writes a head of `len` bytes. The bytes after the head get arbitrary values, and the caller then
            /// overwrites these bytes with the segment.
            ///
            /// # Safety
            /// The processor has the features, and two vectors are writable at `to`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store_head(blocks: &[HeadBlock; 2], words: HeadWords, len: usize, to: *mut u8) {
                // SAFETY: the caller vouches for two writable vectors.
                unsafe { _mm512_storeu_si512(to.cast(), blocks[0].with(words)) };
                let second = to.wrapping_add(ZMM);
                if len > ZMM + XMM {
                    // SAFETY: the caller vouches for two writable vectors.
                    unsafe { _mm512_storeu_si512(second.cast(), blocks[1].with(words)) };
                } else if len > ZMM {
                    // This store of 16 bytes touches fewer cache lines than the store of a whole vector. A head of TCP
                    // with timestamps in IPv4 fits.
                    let vector = _mm512_castsi512_si128(blocks[1].with(words));
                    // SAFETY: the caller vouches for two writable vectors.
                    unsafe { _mm_storeu_si128(second.cast(), vector) };
                }
            }

            /// One of the two 512-bit vectors that hold a head.
            struct HeadBlock {
                bytes: __m512i,
                /// For each 16-bit word of the vector: the index of the [`HeadWords`] word that replaces it.
                sources: __m512i,
                /// Mask of the 16-bit words that a [`HeadWords`] word replaces.
                mask: __mmask32,
            }

            impl HeadBlock {
                /// Loads the first or the second vector of `head`.
                #[inline]
                #[target_feature(enable = $features)]
                fn of(head: &Head, block: usize) -> Self {
                    let bytes = &head.bytes.as_chunks::<ZMM>().0[block];
                    // SAFETY: `bytes` has ZMM bytes.
                    let mut bytes = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
                    let place = |at: u8| (1u64.unbounded_shl(u32::from(at) / 2) >> (block * ZMM / 2)) as __mmask32;
                    for &(at, value) in &head.fixed {
                        bytes = _mm512_mask_set1_epi16(bytes, place(at), value.to_be() as i16);
                    }
                    let (mut sources, mut mask) = (_mm512_setzero_si512(), 0);
                    for (source, &at) in head.places.iter().enumerate() {
                        mask |= place(at);
                        sources = _mm512_mask_set1_epi16(sources, place(at), source as i16);
                    }
                    Self { bytes, sources, mask }
                }

                /// Returns the vector with `words` inserted at the offsets of `words`.
                #[inline]
                #[target_feature(enable = $features)]
                fn with(&self, words: HeadWords) -> __m512i {
                    let words = _mm512_set1_epi64(words.0 as i64);
                    _mm512_mask_permutexvar_epi16(self.bytes, self.mask, self.sources, words)
                }
            }

            /// Returns `vector` with 0 in all bytes except the `count` lowest.
            #[inline]
            #[target_feature(enable = $features)]
            fn low_bytes(vector: __m512i, count: usize) -> __m512i {
                _mm512_maskz_mov_epi8(!all_but_low_bytes(count), vector)
            }

            /// Returns `vector` with 0 in the `count` lowest bytes.
            #[inline]
            #[target_feature(enable = $features)]
            fn without_low_bytes(vector: __m512i, count: usize) -> __m512i {
                _mm512_maskz_mov_epi8(all_but_low_bytes(count), vector)
            }

            copying!($features, __m512i, _mm512_setzero_si512, _mm512_storeu_si512);
        }
    };
}

avx512_kernel!(avx512_vnni, "avx512f,avx512bw,avx512vnni", |acc, flipped, ones| _mm512_dpwssd_epi32(
    acc, flipped, ones
));
avx512_kernel!(avx512, "avx512f,avx512bw", |acc, flipped, ones| _mm512_add_epi32(
    acc,
    _mm512_madd_epi16(flipped, ones)
));

/// The AVX2 kernel. The sum reads vectors from the start, and the scalar path adds the remaining bytes. The copy masks
/// the words that two vectors share.
pub(super) mod avx2 {
    use super::*;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn accumulate(acc: __m256i, vector: __m256i) -> __m256i {
        let flipped = _mm256_xor_si256(vector, _mm256_set1_epi16(i16::MIN));
        _mm256_add_epi32(acc, _mm256_madd_epi16(flipped, _mm256_set1_epi16(1)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(acc: [__m256i; UNROLL], bytes: usize) -> u64 {
        let lanes = _mm256_add_epi32(_mm256_add_epi32(acc[0], acc[1]), _mm256_add_epi32(acc[2], acc[3]));
        let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b1110>(four));
        let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b01>(two));
        u64::from((_mm_cvtsi128_si32(one) as u32).wrapping_add(bias(bytes)))
    }

    /// Returns the sum of `bytes`.
    ///
    /// # Safety
    /// The processor has AVX2, and the length of the message lies in `kernel::LENS`.
    #[target_feature(enable = "avx2")]
    pub(in super::super) unsafe fn sum(bytes: &[u8]) -> u64 {
        let mut acc = [_mm256_setzero_si256(); UNROLL];
        let (blocks, rest) = bytes.as_chunks::<{ UNROLL * YMM }>();
        for block in blocks {
            for (acc, vector) in acc.iter_mut().zip(block.as_chunks::<YMM>().0) {
                // SAFETY: `vector` has YMM bytes.
                *acc = accumulate(*acc, unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) });
            }
        }
        let (vectors, tail) = rest.as_chunks::<YMM>();
        for vector in vectors {
            // SAFETY: `vector` has YMM bytes.
            acc[0] = accumulate(acc[0], unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) });
        }
        portable::add(total(acc, bytes.len() - tail.len()), portable::sum_short(tail))
    }

    /// A vector of ones, a vector of zeros and a vector of ones.
    static MASKS: [u8; 3 * YMM] = {
        let mut masks = [0xff; 3 * YMM];
        let mut at = YMM;
        while at < 2 * YMM {
            masks[at] = 0;
            at += 1;
        }
        masks
    };

    /// Returns the vector at offset `at` of [`MASKS`]. `at` is at most 64. `mask(YMM - n)` keeps the `n` lowest bytes
    /// of a vector, and `mask(2 * YMM - n)` keeps all others.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn mask(at: usize) -> __m256i {
        let mask: &[u8] = &MASKS[at..at + YMM];
        // SAFETY: `mask` has YMM bytes.
        unsafe { _mm256_loadu_si256(mask.as_ptr().cast()) }
    }

    /// Returns `vector` with 0 in all bytes except the `count` lowest.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn low_bytes(vector: __m256i, count: usize) -> __m256i {
        _mm256_and_si256(vector, mask(YMM - count))
    }

    /// Returns `vector` with 0 in the `count` lowest bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn without_low_bytes(vector: __m256i, count: usize) -> __m256i {
        _mm256_and_si256(vector, mask(2 * YMM - count))
    }

    copying!("avx2", __m256i, _mm256_setzero_si256, _mm256_storeu_si256);
}
