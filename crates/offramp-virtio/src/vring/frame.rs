//! Copies of frames with headers between chains and private memory.
//!
//! Callers check lengths first. The copies stay within buffers and slices for every length.

use super::Vring;
use crate::dirty_log::DirtyLog;
use crate::memory::{Unaligned, copy_shared};
use crate::net_header::{HASH_HEADER_LEN, HEADER_LEN, NetHeader};
use crate::ring::{Buffer, Chain};
use std::ptr::NonNull;

#[cfg(debug_assertions)]
std::thread_local! {
    static COPIED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of frame bytes copied by this thread between chains and private memory, for tests with counters.
#[cfg(debug_assertions)]
pub fn copied_bytes() -> u64 {
    COPIED.with(std::cell::Cell::get)
}

/// Counts `bytes` copied bytes of a frame, in a build with debug assertions.
#[inline]
fn copied(bytes: usize) {
    #[cfg(debug_assertions)]
    COPIED.with(|copied| copied.set(copied.get() + bytes as u64));
    let _ = bytes;
}

impl Vring {
    /// Copies a transmitted frame, and the `header_len` bytes of header before the frame, into private memory. Returns
    /// the frame's length. Returns `None` if the chain contains no frame, or a frame longer than `frame`.
    #[inline]
    pub fn read_frame(
        &self,
        chain: &Chain,
        header_len: usize,
        header: &mut [u8; HEADER_LEN],
        frame: &mut [u8],
    ) -> Option<usize> {
        let len = chain.len().checked_sub(header_len).filter(|len| (1..=frame.len()).contains(len))?;
        self.read_front(chain, header_len, header, &mut frame[..len])?;
        Some(len)
    }

    /// Copies the `header_len` bytes of header, and the first bytes of the frame after the header, into private memory.
    /// The chain must have at least as many bytes as `header` and `front` together. Returns `None` for a chain without
    /// a header.
    #[inline]
    pub fn read_front(
        &self,
        chain: &Chain,
        header_len: usize,
        header: &mut [u8; HEADER_LEN],
        front: &mut [u8],
    ) -> Option<()> {
        copied(front.len());
        let buffers = self.buffers(chain);
        if let ([only], HEADER_LEN) = (buffers, header_len) {
            *header = only.header()?;
            only.read(HEADER_LEN, front);
            return Some(());
        }
        if header_len > HEADER_LEN {
            // The bytes that the driver wrote at the offset of the hash are ignored.
            let mut with_hash = [0; HASH_HEADER_LEN];
            read_scattered(buffers, &mut with_hash[..header_len], front);
            header.copy_from_slice(&with_hash[..HEADER_LEN]);
            return Some(());
        }
        let header = &mut header[..header_len];
        match buffers {
            [only] => {
                only.read(0, header);
                only.read(header.len(), front);
            }
            [first, second] if first.len() == header.len() => {
                first.read(0, header);
                second.read(0, front);
            }
            _ => read_scattered(buffers, header, front),
        }
        Some(())
    }

    /// Returns the address and the length of each piece of guest memory that holds the chain's bytes from offset `from`
    /// on. The pieces stay readable until the vring is stopped. The driver can write to the pieces at any time.
    pub fn pieces(&self, chain: &Chain, from: usize) -> impl Iterator<Item = (*const u8, usize)> {
        let mut skipped = from;
        self.buffers(chain).iter().filter_map(move |buffer| {
            let offset = skipped.min(buffer.len());
            skipped -= offset;
            let len = buffer.len() - offset;
            (len > 0).then(|| (buffer.host.as_ptr().wrapping_add(offset).cast_const(), len))
        })
    }

    /// Copies bytes from `offset` of the chain on, after the header, into private memory.
    pub fn read_rest(&self, chain: &Chain, offset: usize, rest: &mut [u8]) {
        copied(rest.len());
        let (mut skipped, mut rest) = (offset, rest);
        for buffer in self.buffers(chain) {
            let from = skipped.min(buffer.len());
            skipped -= from;
            let len = (buffer.len() - from).min(rest.len());
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            buffer.read(from, now);
            rest = later;
        }
    }

    /// Writes a received frame like [`Vring::write_frame`]. The first bytes of the frame are in `front`, in private
    /// memory. The other bytes are in `shared` pieces, each given by its address and length. Another driver can write
    /// to the pieces at the same time. Each byte is read once.
    ///
    /// # Safety
    /// The pieces must be readable. No reference to a byte of the pieces may exist.
    pub unsafe fn write_shared_frame(
        &mut self,
        chains: usize,
        header_len: usize,
        header: NetHeader,
        front: &[u8],
        shared: impl Iterator<Item = (*const u8, usize)>,
        log: Option<&DirtyLog>,
    ) {
        let header = NetHeader { num_buffers: chains as u16, ..header }.to_bytes_with_hash();
        let private = [(header.as_ptr(), header_len), (front.as_ptr(), front.len())];
        let mut sources = private.into_iter().chain(shared);
        let mut source = (front.as_ptr(), 0);
        for _ in 0..chains {
            let Some(chain) = self.pop() else { return };
            let mut written = 0;
            for buffer in self.buffers(&chain) {
                // SAFETY: the caller vouches for the pieces, and the other sources are private.
                let len = unsafe { buffer.fill_from(&mut source, &mut sources) };
                if let Some(log) = log {
                    log.mark(buffer.guest, len as u64);
                }
                written += len;
            }
            self.add_used(&chain, written as u32);
        }
    }

    /// Writes a received frame into the next `chains` waiting chains, and adds these chains to the used chains. Writes
    /// the number of chains into `header`. Each chain except the last is filled completely (virtio 1.3, 5.1.6.4.1).
    #[inline]
    pub fn write_frame(
        &mut self,
        chains: usize,
        header_len: usize,
        header: NetHeader,
        frame: &[u8],
        log: Option<&DirtyLog>,
    ) {
        copied(frame.len());
        let header = NetHeader { num_buffers: chains as u16, ..header };
        if let Some(chain) = self.waiting().first().copied()
            && let ([only], HEADER_LEN | HASH_HEADER_LEN, 1, None) = (self.buffers(&chain), header_len, chains, log)
            && only.write_whole(&header, header_len, frame)
        {
            self.pop();
            return self.add_used(&chain, (header_len + frame.len()) as u32);
        }
        let header = &header.to_bytes_with_hash()[..header_len];
        let mut at = 0;
        for _ in 0..chains {
            let Some(chain) = self.pop() else { return };
            let start = at;
            for buffer in self.buffers(&chain) {
                let len = buffer.write_piece(header, frame, at);
                if let Some(log) = log {
                    log.mark(buffer.guest, len as u64);
                }
                at += len;
            }
            self.add_used(&chain, (at - start) as u32);
        }
    }
}

impl Buffer {
    /// Returns the length of the buffer in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Copies bytes from `offset` on into private memory, up to the buffer's end.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let len = out.len().min(self.len().saturating_sub(offset));
        // Security depends on reading these bytes only once. All later checks, parses and changes use the private copy,
        // so a guest that writes at the same time changes no checked byte. Never read a byte of the buffer before or
        // after this copy. SAFETY: `offset + len` bytes of the buffer are mapped guest memory (an offset past the
        // buffer's end copies nothing), and `out` is private. If the guest writes during the copy, the copy contains a
        // mix of old and new bytes, and only the copy is read afterwards.
        unsafe { copy_shared(self.host.as_ptr().wrapping_add(offset), out.as_mut_ptr(), len) };
    }

    /// Copies bytes into the buffer from `offset` on, up to the buffer's end.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let len = bytes.len().min(self.len().saturating_sub(offset));
        // SAFETY: `offset + len` bytes of the buffer are mapped guest memory. `bytes` is never part of guest memory,
        // because no reference into guest memory exists.
        unsafe { copy_shared(bytes.as_ptr(), self.host.as_ptr().wrapping_add(offset), len) };
    }

    /// Fills the buffer from `source` and then from the next `sources`, each an address and a length. Returns the
    /// number of written bytes, and leaves the rest of the last source in `source`.
    ///
    /// # Safety
    /// Each source must be readable, and no reference to guest memory may exist.
    unsafe fn fill_from(
        &self,
        source: &mut (*const u8, usize),
        sources: &mut impl Iterator<Item = (*const u8, usize)>,
    ) -> usize {
        let mut at = 0;
        while at < self.len() {
            if source.1 == 0 {
                let Some(next) = sources.next() else { break };
                *source = next;
                continue;
            }
            let len = source.1.min(self.len() - at);
            copied(len);
            // SAFETY: the caller vouches for the source, and `at + len` bytes of the buffer are mapped guest memory. If
            // two drivers made source and buffer overlap, both get arbitrary bytes.
            unsafe { copy_shared(source.0, self.host.as_ptr().wrapping_add(at), len) };
            *source = (source.0.wrapping_add(len), source.1 - len);
            at += len;
        }
        at
    }

    /// Reads a complete header at the front with two volatile loads, which the compiler neither repeats nor omits.
    #[inline]
    fn header(&self) -> Option<[u8; HEADER_LEN]> {
        if self.len() < HEADER_LEN {
            return None;
        }
        // SAFETY: the buffer is mapped guest memory and has at least these bytes, and the types need no alignment.
        let (Unaligned(first), Unaligned(last)) = unsafe {
            let last = self.host.add(size_of::<u64>());
            (self.host.cast::<Unaligned<u64>>().read_volatile(), last.cast::<Unaligned<u32>>().read_volatile())
        };
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&first.to_le_bytes());
        header[8..].copy_from_slice(&last.to_le_bytes());
        Some(header)
    }

    /// Writes a header of [`HEADER_LEN`] or [`HASH_HEADER_LEN`] bytes, and the frame, if the buffer has room. Returns
    /// whether the buffer had room.
    #[inline]
    fn write_whole(&self, header: &NetHeader, header_len: usize, frame: &[u8]) -> bool {
        let fits = self.len() >= header_len + frame.len();
        if fits {
            let (first, last) = header.words();
            // SAFETY: the buffer is mapped guest memory and has at least these bytes.
            unsafe {
                write_changed(self.host.cast::<u64>(), first.to_le());
                write_changed(self.host.add(size_of::<u64>()).cast::<u32>(), last.to_le());
            }
            if header_len == HASH_HEADER_LEN {
                // SAFETY: the buffer is mapped guest memory and has these 8 bytes.
                unsafe { write_changed(self.host.add(HEADER_LEN).cast::<u64>(), header.hash_word().to_le()) };
            }
            self.write(header_len, frame);
        }
        fits
    }

    /// Fills the buffer with the bytes of header and frame, treated as one sequence, from offset `at` of the sequence
    /// on. Returns the number of written bytes.
    #[inline]
    pub(super) fn write_piece(&self, header: &[u8], frame: &[u8], at: usize) -> usize {
        let room = self.len();
        let of_header = header.get(at..).unwrap_or_default();
        let of_header = &of_header[..of_header.len().min(room)];
        let of_frame = frame.get((at + of_header.len()).saturating_sub(header.len())..).unwrap_or_default();
        let of_frame = &of_frame[..of_frame.len().min(room - of_header.len())];
        self.write(0, of_header);
        self.write(of_header.len(), of_frame);
        of_header.len() + of_frame.len()
    }
}

/// Writes a part of a header only if the part differs from the bytes in the buffer. The next frame in a buffer usually
/// has the same header as the previous frame, and an unwritten line stays in the caches of driver and device.
///
/// # Safety
/// `to` points to mapped guest memory with room for a `T`.
#[inline]
unsafe fn write_changed<T: Copy + PartialEq>(to: NonNull<T>, part: T) {
    // SAFETY: the caller guarantees mapped guest memory. A guest that writes to the header at the same time only
    // corrupts its own header.
    unsafe {
        let to = to.cast::<Unaligned<T>>();
        let Unaligned(old) = to.read_volatile();
        if old != part {
            to.write_volatile(Unaligned(part));
        }
    }
}

/// Copies a header and a frame from buffers of any shape.
fn read_scattered(buffers: &[Buffer], header: &mut [u8], frame: &mut [u8]) {
    let (mut header, mut frame) = (header, frame);
    for buffer in buffers {
        let mut offset = 0;
        for part in [&mut header, &mut frame] {
            let len = part.len().min(buffer.len() - offset);
            let (now, later) = std::mem::take(part).split_at_mut(len);
            buffer.read(offset, now);
            *part = later;
            offset += len;
        }
    }
}
