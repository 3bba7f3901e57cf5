//! The compute kernels: one portable and several vectorized routines that sum long messages. The first use selects the
//! fastest kernel that this processor can run.

use core::ops::{Range, RangeInclusive};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Head, HeadWords, RoomPiece, Run, SharedBytes, Sum, portable};

/// Maximum length for the inlined scalar path, in bytes. Up to this length, a call of a kernel costs more time than the
/// kernel saves.
pub(super) const SHORT_LEN_MAX: usize = 128;
/// Maximum length for one call to a kernel, in bytes. The value is even, so that the next call starts at an even
/// offset. The value is small enough for 32-bit accumulators, see `x86`.
pub(super) const CHUNK_LEN_MAX: usize = 1 << 16;

/// The message lengths, in bytes, that a kernel accepts in one call. The methods of [`Kernel`] handle all other
/// lengths.
pub(super) const LENS: RangeInclusive<usize> = SHORT_LEN_MAX + 1..=CHUNK_LEN_MAX;

/// The vector instructions of a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vectors {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    None,
}

/// Work that copies many messages, such as the payloads of consecutive frames. The compiler makes one version of the
/// work for each kernel, with the kernel's copy inlined. So the variables of the work stay in registers from one
/// message to the next. Variables in memory would cost time: a load waits for a store of the payload to an address with
/// the same low bits.
pub(crate) trait ManyCopies {
    /// The result of the work.
    type Output;

    /// Does the work. The argument copies bytes to the front of a piece and returns their sum. It panics if the piece
    /// is shorter than the bytes.
    fn run(self, copy_and_sum: impl Fn(&[u8], RoomPiece) -> Sum) -> Self::Output;
}

/// The bytes that [`Kernel::write_frames`] segments: private bytes, or bytes that another program can write.
pub(crate) trait Source: Copy {
    fn len(self) -> usize;
    fn as_ptr(self) -> *const u8;

    /// Returns the bytes in `range`.
    ///
    /// # Panics
    /// Panics if `range` ends past the bytes.
    fn part(self, range: Range<usize>) -> Self;

    /// Copies the bytes to the front of `dst` and returns the sum of the copied bytes.
    fn copy_and_sum(self, kernel: &Kernel, dst: &mut [u8]) -> u64;
}

impl Source for &[u8] {
    #[inline]
    fn len(self) -> usize {
        self.len()
    }

    #[inline]
    fn as_ptr(self) -> *const u8 {
        self.as_ptr()
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }

    #[inline]
    fn copy_and_sum(self, kernel: &Kernel, dst: &mut [u8]) -> u64 {
        kernel.copy_and_sum(self, dst)
    }
}

impl Source for SharedBytes {
    #[inline]
    fn len(self) -> usize {
        Self::len(&self)
    }

    #[inline]
    fn as_ptr(self) -> *const u8 {
        Self::as_ptr(&self)
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        Self::part(&self, range)
    }

    #[inline]
    fn copy_and_sum(self, kernel: &Kernel, dst: &mut [u8]) -> u64 {
        kernel.copy_and_sum_shared(self, dst)
    }
}

/// One implementation of the sum of a message. Code outside this module receives only kernels that run on this
/// processor.
pub(crate) struct Kernel {
    /// Name of the kernel, as returned by `kernel_name`.
    pub(super) name: &'static str,
    vectors: Vectors,
    is_available: fn() -> bool,
    /// Computes the sum of a message with a length in `LENS`.
    sum: unsafe fn(&[u8]) -> u64,
    /// Computes the sum of a message with a length in `LENS`, and copies the message to another address. The
    /// destination has as many writable bytes as the message, and is not read.
    copy_and_sum: unsafe fn(*const u8, usize, *mut u8) -> u64,
    /// True if [`Self::copy_and_sum`] computes the sum of the copied bytes, even if another program writes to the
    /// message at the same time.
    reads_once: bool,
}

/// All kernels, fastest first. The last kernel runs on every processor.
static KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx512-vnni",
        vectors: Vectors::Avx512Vnni,
        is_available: || is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni"),
        sum: x86::avx512_vnni::sum,
        copy_and_sum: x86::avx512_vnni::copy_and_sum,
        reads_once: true,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx512",
        vectors: Vectors::Avx512,
        is_available: || is_x86_feature_detected!("avx512bw"),
        sum: x86::avx512::sum,
        copy_and_sum: x86::avx512::copy_and_sum,
        reads_once: true,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx2",
        vectors: Vectors::Avx2,
        is_available: || is_x86_feature_detected!("avx2"),
        sum: x86::avx2::sum,
        copy_and_sum: x86::avx2::copy_and_sum,
        reads_once: true,
    },
    Kernel {
        name: "portable",
        vectors: Vectors::None,
        is_available: || true,
        sum: portable::sum,
        copy_and_sum: portable::copy_and_sum,
        reads_once: false,
    },
];

/// The kernel in use, or null before the first use.
static ACTIVE: AtomicPtr<Kernel> = AtomicPtr::new(ptr::null_mut());

/// Returns the kernels that run on this processor, fastest first.
pub(super) fn available() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().filter(|kernel| (kernel.is_available)())
}

/// Returns the kernel in use. Selects the fastest kernel at the first call.
#[inline]
pub(super) fn active() -> &'static Kernel {
    let found = ACTIVE.load(Ordering::Relaxed);
    // SAFETY: the pointer is null, or was made by `activate` from a reference to an immutable static.
    unsafe { found.as_ref() }.unwrap_or_else(detect)
}

/// Selects the fastest kernel. Concurrent threads select the same kernel.
#[cold]
fn detect() -> &'static Kernel {
    activate(available().next().unwrap_or(portable()))
}

/// Returns the kernel that runs on every processor.
pub(super) fn portable() -> &'static Kernel {
    &KERNELS[KERNELS.len() - 1]
}

/// Selects a kernel for all further calls.
pub(super) fn activate(kernel: &'static Kernel) -> &'static Kernel {
    ACTIVE.store(ptr::from_ref(kernel).cast_mut(), Ordering::Relaxed);
    kernel
}

impl Kernel {
    /// Writes a frame to the front of each slot of `dst`: the head, then a segment of `src`. `changed` maps a frame
    /// number to the changed words of the frame's head, and the sum of the head.
    ///
    /// # Panics
    /// Panics if a slot has no room for its frame, or a frame is shorter than [`Head::LEN_MAX`].
    #[inline]
    pub(super) fn write_frames(
        &self,
        run: &Run,
        head: &Head,
        src: impl Source,
        dst: &mut [u8],
        mut changed: impl FnMut(usize) -> (HeadWords, u64),
    ) {
        let count = src.len() / run.segment_len;
        #[cfg(target_arch = "x86_64")]
        if LENS.contains(&run.segment_len) {
            if self.vectors == Vectors::Avx512Vnni {
                // SAFETY: this processor has the kernel (see `Kernel`), the length is one of `LENS`, and `src` has as
                // many segments.
                return unsafe { x86::avx512_vnni::write_frames(run, head, (src.as_ptr(), count), dst, changed) };
            }
            if self.vectors == Vectors::Avx512 {
                // SAFETY: as above.
                return unsafe { x86::avx512::write_frames(run, head, (src.as_ptr(), count), dst, changed) };
            }
        }
        for (n, slot) in dst.chunks_mut(run.stride).take(count).enumerate() {
            let frame = &mut slot[..head.len + run.segment_len];
            let (words, head_sum) = changed(n);
            head.write(words, frame);
            let segment = src.part(n * run.segment_len..(n + 1) * run.segment_len);
            let sum = segment.copy_and_sum(self, &mut frame[head.len..]);
            head.put_checksum(portable::add(head_sum, sum), frame);
        }
    }

    /// Does the same as [`Kernel::copy_and_sum`] for bytes that another program can write at the same time. Returns the
    /// sum of the copied bytes.
    ///
    /// # Panics
    /// Panics if `dst` is shorter than `src`.
    pub(super) fn copy_and_sum_shared(&self, src: SharedBytes, dst: &mut [u8]) -> u64 {
        let dst = &mut dst[..src.len()];
        let piece_len = if self.reads_once { CHUNK_LEN_MAX } else { SHORT_LEN_MAX };
        let pieces = dst.chunks_mut(piece_len).enumerate();
        pieces.fold(0, |total, (n, dst)| {
            let from = src.part(n * piece_len..n * piece_len + dst.len());
            let sum = if self.reads_once && LENS.contains(&from.len()) {
                // SAFETY: this processor has the kernel, the length is one of `LENS`, and `dst` has as many bytes.
                unsafe { (self.copy_and_sum)(from.as_ptr(), from.len(), dst.as_mut_ptr()) }
            } else {
                let mut copy = [0; SHORT_LEN_MAX];
                let copy = &mut copy[..from.len()];
                from.read(copy);
                portable::copy_and_sum_short(copy, dst)
            };
            portable::add(total, sum)
        })
    }

    /// Does `work` with this kernel.
    #[inline]
    pub(super) fn run<W: ManyCopies>(&self, work: W) -> W::Output {
        match self.vectors {
            // SAFETY: this processor has the kernel (see `Kernel`).
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512Vnni => unsafe { x86::avx512_vnni::run(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => unsafe { x86::avx512::run(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => unsafe { x86::avx2::run(work) },
            Vectors::None => work.run(|src, piece| {
                // SAFETY: the piece has as many writable bytes.
                Sum(unsafe { self.copy_and_sum_to(src, piece.start_for(src.len())) })
            }),
        }
    }

    /// Returns the sum of `bytes`, modulo 2⁶⁴ − 1.
    #[inline]
    pub(super) fn sum(&self, bytes: &[u8]) -> u64 {
        if !LENS.contains(&bytes.len()) {
            return self.sum_in_chunks(bytes);
        }
        // SAFETY: this processor has the kernel (see `Kernel`), and the length is one of `LENS`.
        unsafe { (self.sum)(bytes) }
    }

    /// Copies `src` to the front of `dst` and computes the sum of `src`.
    ///
    /// # Panics
    /// Panics if `dst` is shorter than `src`.
    #[inline]
    pub(super) fn copy_and_sum(&self, src: &[u8], dst: &mut [u8]) -> u64 {
        let dst = &mut dst[..src.len()];
        // SAFETY: `dst` has `src.len()` bytes, borrowed exclusively.
        unsafe { self.copy_and_sum_to(src, dst.as_mut_ptr()) }
    }

    /// Copies `src` to `dst` and computes the sum of `src`. `dst` is not read.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `src.len()` bytes, none of them in `src`.
    #[inline]
    pub(super) unsafe fn copy_and_sum_to(&self, src: &[u8], dst: *mut u8) -> u64 {
        if !LENS.contains(&src.len()) {
            // SAFETY: the caller vouches for `dst`.
            return unsafe { self.copy_and_sum_in_chunks(src, dst) };
        }
        // SAFETY: this processor has the kernel (see `Kernel`), and the length is one of `LENS`. The caller vouches for
        // `dst`.
        unsafe { (self.copy_and_sum)(src.as_ptr(), src.len(), dst) }
    }

    #[cold]
    fn sum_in_chunks(&self, bytes: &[u8]) -> u64 {
        if bytes.len() <= SHORT_LEN_MAX {
            return portable::sum_short(bytes);
        }
        bytes.chunks(CHUNK_LEN_MAX).fold(0, |total, chunk| portable::add(total, self.sum(chunk)))
    }

    /// # Safety
    /// The conditions of [`Kernel::copy_and_sum_to`] apply.
    #[cold]
    unsafe fn copy_and_sum_in_chunks(&self, src: &[u8], dst: *mut u8) -> u64 {
        if src.len() <= SHORT_LEN_MAX {
            // SAFETY: the caller vouches for `dst`.
            return unsafe { copy_and_sum_short_to(src, dst) };
        }
        src.chunks(CHUNK_LEN_MAX).enumerate().fold(0, |total, (n, from)| {
            // SAFETY: the caller vouches for `dst`, and the chunk lies inside `dst`.
            portable::add(total, unsafe { self.copy_and_sum_to(from, dst.add(n * CHUNK_LEN_MAX)) })
        })
    }
}

/// Does the same as [`Kernel::copy_and_sum_to`] for a short message.
///
/// # Safety
/// The conditions of [`Kernel::copy_and_sum_to`] apply.
#[inline]
pub(super) unsafe fn copy_and_sum_short_to(src: &[u8], dst: *mut u8) -> u64 {
    // SAFETY: the caller vouches for `dst`.
    unsafe { ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
    portable::sum_short(src)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDE: usize = 512;
    const COUNT: usize = 3;

    fn changed(n: usize) -> (HeadWords, u64) {
        (HeadWords::new(0x0102_0304 + n as u32, 0x0506_0708 - n as u32), 0x1234 + n as u64)
    }

    /// Builds the frames by the definition, byte by byte. Bytes after a frame keep `filler`.
    fn expected(head: &Head, segment_len: usize, src: &[u8], filler: u8) -> Vec<u8> {
        let mut out = vec![filler; STRIDE * COUNT];
        for (n, slot) in out.chunks_mut(STRIDE).enumerate() {
            let segment = &src[n * segment_len..(n + 1) * segment_len];
            let (words, head_sum) = changed(n);
            let mut bytes = *head.bytes;
            for (at, value) in head.fixed {
                bytes[usize::from(at)..][..2].copy_from_slice(&value.to_be_bytes());
            }
            for (word, &at) in words.0.to_ne_bytes().chunks(2).zip(&head.places).filter(|(_, at)| **at != Head::NOWHERE)
            {
                bytes[usize::from(at)..][..2].copy_from_slice(word);
            }
            slot[..head.len].copy_from_slice(&bytes[..head.len]);
            slot[head.len..head.len + segment_len].copy_from_slice(segment);
            let checksum = super::super::Sum(portable::add(head_sum, portable::sum(segment))).checksum();
            let checksum = if checksum == 0 { head.checksum_zero } else { checksum };
            slot[head.checksum_at..][..2].copy_from_slice(&checksum.to_be_bytes());
        }
        out
    }

    #[test]
    fn every_kernel_writes_the_same_frames_for_every_length_of_head_and_segment() {
        let bytes: [u8; Head::LEN_MAX] = core::array::from_fn(|i| (i * 7) as u8);
        let src: Vec<u8> = (0..STRIDE * COUNT).map(|i| ((i * 31) >> 3) as u8).collect();
        for kernel in available() {
            for len in 42..=Head::LEN_MAX {
                let places = [18, 24, Head::NOWHERE, (len / 2 * 2 - 4) as u8];
                let fixed = [(16, 0xabcd), ((len / 2 * 2 - 6) as u8, 0x0102)];
                let head = Head { bytes: &bytes, len, fixed, places, checksum_at: 30, checksum_zero: 0xffff };
                for segment_len in (Head::LEN_MAX - len).max(1)..STRIDE - Head::LEN_MAX {
                    let mut out = vec![0xa5; STRIDE * COUNT];
                    let run = Run { segment_len, stride: STRIDE };
                    let private = &src[..COUNT * segment_len];
                    kernel.write_frames(&run, &head, private, &mut out, changed);
                    let expected = expected(&head, segment_len, &src, 0xa5);
                    assert!(out == expected, "{}: head {len}, segment {segment_len}", kernel.name);
                    out.fill(0xa5);
                    // SAFETY: `src` is not changed during the call.
                    let shared = unsafe { SharedBytes::new(private.as_ptr(), private.len()) };
                    kernel.write_frames(&run, &head, shared, &mut out, changed);
                    assert!(out == expected, "{}, shared: head {len}, segment {segment_len}", kernel.name);
                }
            }
        }
    }
}
