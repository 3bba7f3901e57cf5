//! Frames with their headers, between chains and private memory.
//!
//! Callers check lengths first. The copies stay within buffers and slices whatever the lengths are.

use super::Vring;
use crate::dirty_log::DirtyLog;
use crate::net_header::HEADER_LEN;
use crate::ring::{Buffer, Chain};
use std::ptr;

/// Where `num_buffers` lies in the header (virtio 1.3, 5.1.6).
const NUM_BUFFERS_AT: usize = 10;

impl Vring {
    /// Copies a frame that the driver transmits, and `header_len` bytes of header before it, into private memory.
    /// Returns the frame's length; `None` when the chain holds no frame, or a longer one than `frame`.
    #[inline]
    pub fn read_frame(
        &self,
        chain: &Chain,
        header_len: usize,
        header: &mut [u8; HEADER_LEN],
        frame: &mut [u8],
    ) -> Option<usize> {
        let len = chain.len().checked_sub(header_len).filter(|len| (1..=frame.len()).contains(len))?;
        let buffers = self.buffers(chain);
        if let ([only], HEADER_LEN) = (buffers, header_len) {
            *header = only.header()?;
            only.read(HEADER_LEN, &mut frame[..len]);
            return Some(len);
        }
        let header = &mut header[..header_len];
        match buffers {
            [only] => {
                only.read(0, header);
                only.read(header.len(), &mut frame[..len]);
            }
            [first, second] if first.len() == header.len() => {
                first.read(0, header);
                second.read(0, &mut frame[..len]);
            }
            _ => read_scattered(buffers, header, &mut frame[..len]),
        }
        Some(len)
    }

    /// Writes a frame that the driver receives into the next `chains` waiting chains, and adds these to the used ones.
    /// Each chain but the last is filled completely (virtio 1.3, 5.1.6.4.1).
    #[inline]
    pub fn write_frame(
        &mut self,
        chains: usize,
        header_len: usize,
        header: &mut [u8; HEADER_LEN],
        frame: &[u8],
        log: Option<&DirtyLog>,
    ) {
        header[NUM_BUFFERS_AT..].copy_from_slice(&(chains as u16).to_le_bytes());
        if let Some(chain) = self.waiting().first().copied()
            && let ([only], HEADER_LEN, 1, None) = (self.buffers(&chain), header_len, chains, log)
            && only.write_whole(header, frame)
        {
            self.pop();
            return self.add_used(&chain, (HEADER_LEN + frame.len()) as u32);
        }
        let header = &header[..header_len];
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
    /// Bytes of the buffer.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The buffer's guest-physical address.
    #[inline]
    pub fn guest_address(&self) -> u64 {
        self.guest
    }

    /// Copies bytes from `offset` on into private memory, as far as the buffer goes.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let len = out.len().min(self.len().saturating_sub(offset));
        // SAFETY: `offset + len` bytes of the buffer are mapped guest memory (an offset past its end copies nothing),
        // and `out` is private. The guest may write meanwhile: then the copy holds some of either, and only the copy
        // is looked at.
        unsafe { ptr::copy_nonoverlapping(self.host.as_ptr().wrapping_add(offset), out.as_mut_ptr(), len) };
    }

    /// Copies bytes into the buffer from `offset` on, as far as it goes.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let len = bytes.len().min(self.len().saturating_sub(offset));
        // SAFETY: as in `read`; `bytes` is never part of guest memory, to which nobody has a reference.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.as_ptr().wrapping_add(offset), len) };
    }

    /// The header at the front, if it is all there. A copy of a known length is two moves.
    #[inline]
    fn header(&self) -> Option<[u8; HEADER_LEN]> {
        // SAFETY: as in `read`, for the first bytes of a buffer that has them.
        (self.len() >= HEADER_LEN).then(|| unsafe { self.host.cast::<[u8; HEADER_LEN]>().read_unaligned() })
    }

    /// Writes header and frame, if they fit.
    #[inline]
    fn write_whole(&self, header: &[u8; HEADER_LEN], frame: &[u8]) -> bool {
        let fits = self.len() >= HEADER_LEN + frame.len();
        if fits {
            // SAFETY: as in `write`, for the first bytes of a buffer that has them.
            unsafe { self.host.cast::<[u8; HEADER_LEN]>().write_unaligned(*header) };
            self.write(HEADER_LEN, frame);
        }
        fits
    }

    /// Fills the buffer with the bytes from `at` on of header and frame together. Returns how many those were.
    #[inline]
    fn write_piece(&self, header: &[u8], frame: &[u8], at: usize) -> usize {
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
