//! Benchmarks of the Internet checksum, with and without a copy in the same pass.

use std::hint::black_box;

use offramp_offload::checksum;

use crate::harness::{Contender, OURSELVES, REFERENCE, Report};

/// Length of each of the two fixed buffers, in bytes.
const BUFFER_LEN: usize = 1 << 17;
/// Offset of messages from a cache line's boundary, equal to the offset after a large `malloc`.
const START: usize = 16;
/// Name of the row with the limit: a plain read of the message. No checksum can be faster.
const READ: &str = "limit_read";

/// Lengths of messages for a checksum without copy, in bytes.
const SUM_LENS: [usize; 5] = [64, 256, 1500, 9000, 65_536];
/// Lengths of messages for a copy with checksum, in bytes.
const COPY_LENS: [usize; 2] = [1500, 9000];

/// Length of a page in bytes.
const PAGE: usize = 4096;

/// A buffer with messages at offset [`START`] in a page, so that every run has the same alignment.
struct Buffer(Vec<u8>);

impl Buffer {
    fn filled() -> Self {
        Self((0..(BUFFER_LEN + PAGE) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect())
    }

    /// Returns the start of the first message.
    fn start(&self) -> usize {
        self.0.as_ptr().align_offset(PAGE) + START
    }

    fn message(&self, len: usize) -> &[u8] {
        &self.0[self.start()..][..len]
    }

    fn message_mut(&mut self, len: usize) -> &mut [u8] {
        let start = self.start();
        &mut self.0[start..][..len]
    }
}

/// Measures all operations of this file.
pub fn measure(report: &mut Report) {
    println!("checksum kernel: {}", checksum::kernel_name());
    let (from, mut to, mut copy_to) = (Buffer::filled(), Buffer::filled(), Buffer::filled());
    for len in SUM_LENS {
        let contenders = sum_contenders(from.message(len), to.message_mut(len));
        report.measure(&format!("checksum_{len}"), len, contenders);
    }
    for len in COPY_LENS {
        let (message, to) = (from.message(len), to.message_mut(len));
        let contenders = vec![
            Contender::new(OURSELVES, move || {
                checksum::copy_and_sum(black_box(message), black_box(&mut *to)).checksum()
            }),
            memcpy(message, copy_to.message_mut(len)),
        ];
        report.measure(&format!("copy_checksum_{len}"), len, contenders);
    }
}

fn sum_contenders<'a>(message: &'a [u8], target: &'a mut [u8]) -> Vec<Contender<'a>> {
    vec![
        Contender::new(OURSELVES, move || checksum::sum(black_box(message)).checksum()),
        memcpy(message, target),
        Contender::new(READ, move || read::limit(black_box(message))),
        Contender::new("smoltcp", move || smoltcp_sum(black_box(message))),
        Contender::new("internet-checksum", move || internet_checksum::checksum(black_box(message))),
        Contender::new("tun-rs", move || tun_rs::checksum(black_box(message), 0)),
    ]
}

/// Copies the same bytes between two fixed buffers with the C library.
fn memcpy<'a>(from: &'a [u8], to: &'a mut [u8]) -> Contender<'a> {
    Contender::new(REFERENCE, move || black_box(&mut *to).copy_from_slice(black_box(from)))
}

/// The read limit: reads all bytes into vector registers and adds them, without computing a checksum.
mod read {
    /// Reads with this machine's widest vector instruction.
    #[inline]
    pub fn limit(bytes: &[u8]) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512bw") {
                // SAFETY: the processor has AVX-512BW.
                return unsafe { x86::avx512(bytes) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                return unsafe { x86::avx2(bytes) };
            }
        }
        words(bytes)
    }

    fn words(bytes: &[u8]) -> u64 {
        let (words, _) = bytes.as_chunks::<8>();
        words.iter().fold(0, |total, word| total.wrapping_add(u64::from_ne_bytes(*word)))
    }

    #[cfg(target_arch = "x86_64")]
    mod x86 {
        #![allow(clippy::wildcard_imports)]
        use core::arch::x86_64::*;

        /// Reads whole cache lines, with masks for the first and the last line. No load crosses a line.
        #[target_feature(enable = "avx512f,avx512bw")]
        pub fn avx512(bytes: &[u8]) -> u64 {
            const LINE: usize = 64;
            let lead = bytes.as_ptr().addr() % LINE;
            let (first, end) = (bytes.as_ptr().wrapping_sub(lead), lead + bytes.len());
            let mut acc = [_mm512_setzero_si512(); 4];
            let mut mask = !0 << lead;
            let mut at = 0;
            while at + 4 * LINE <= end {
                for (i, acc) in acc.iter_mut().enumerate() {
                    let line = first.wrapping_add(at + i * LINE);
                    // SAFETY: the line lies inside `bytes`, except for the masked bytes.
                    *acc = _mm512_add_epi64(*acc, unsafe { _mm512_maskz_loadu_epi8(mask, line.cast()) });
                    mask = !0;
                }
                at += 4 * LINE;
            }
            while at < end {
                mask &= !(!0u64).unbounded_shl((end - at) as u32);
                // SAFETY: the line lies inside `bytes`, except for the masked bytes.
                let line = unsafe { _mm512_maskz_loadu_epi8(mask, first.wrapping_add(at).cast()) };
                acc[0] = _mm512_add_epi64(acc[0], line);
                mask = !0;
                at += LINE;
            }
            let total = _mm512_add_epi64(_mm512_add_epi64(acc[0], acc[1]), _mm512_add_epi64(acc[2], acc[3]));
            _mm512_reduce_add_epi64(total) as u64
        }

        /// Reads vectors from the start of `bytes`, without alignment.
        #[target_feature(enable = "avx2")]
        pub fn avx2(bytes: &[u8]) -> u64 {
            let mut acc = [_mm256_setzero_si256(); 4];
            let (blocks, rest) = bytes.as_chunks::<128>();
            for block in blocks {
                for (acc, vector) in acc.iter_mut().zip(block.as_chunks::<32>().0) {
                    // SAFETY: `vector` has 32 bytes.
                    *acc = _mm256_add_epi64(*acc, unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) });
                }
            }
            let total = _mm256_add_epi64(_mm256_add_epi64(acc[0], acc[1]), _mm256_add_epi64(acc[2], acc[3]));
            let half = _mm_add_epi64(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
            (_mm_cvtsi128_si64(half) as u64).wrapping_add(super::words(rest))
        }
    }
}

/// Computes smoltcp's checksum.
fn smoltcp_sum(message: &[u8]) -> u16 {
    smoltcp::wire::checksum::data(message)
}
