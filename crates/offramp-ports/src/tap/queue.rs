//! One queue pair of a TAP. One read(2) receives a frame from the host; one write(2) or writev(2) delivers a frame.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::uio::writev;
use nix::unistd::{read, write};
use offramp_adapter::host_io::HostIo;
use offramp_adapter::port::{HostPort, InPlace, PortError, SHARED_PIECES_MAX};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::SharedBytes;
use offramp_offload::count;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::RxMeta;
use offramp_offload::vlan::TagChange;

use super::Shared;
use crate::frame_memory::frame_memory;
use crate::vnet_hdr::{HEADER_LEN, decode_tx, encode_rx};

/// Maximum length in bytes of a frame that is copied after its vnet header for one write(2). A longer frame is sent
/// with writev(2). For a shorter frame, the second buffer of writev(2) costs the kernel more than the copy
/// (`benches/tap_io`).
const COPY_LEN_MAX: usize = 2048;

/// One queue pair of a [`Tap`](super::Tap), for one thread.
///
/// A `TapQueue` reads only its own queue, and writes to the queue given by `RxMeta::queue`. If the queue
/// `RxMeta::queue` does not exist, the `TapQueue` writes the frame to its own queue. Poll the descriptor for input.
#[derive(Debug)]
pub struct TapQueue {
    shared: Arc<Shared>,
    index: usize,
    frame: FrameBuffer<Box<[u8]>>,
    /// Offset of the vnet header in bytes, chosen to align the frame after the header.
    header_at: usize,
    /// Maximum number of bytes in one read: the header, the longest frame, and one byte to detect a longer frame.
    read_len_max: usize,
    /// A short frame for the host, stored after its vnet header.
    short: [u8; HEADER_LEN + COPY_LEN_MAX],
}

impl TapQueue {
    pub(super) fn new(shared: Arc<Shared>, index: usize, frame_len_max: usize) -> Self {
        let (frame, frame_at) = frame_memory(frame_len_max + 1);
        let header_at = frame_at - HEADER_LEN;
        let read_len_max = HEADER_LEN + frame_len_max + 1;
        Self { shared, index, frame, header_at, read_len_max, short: [0; _] }
    }

    /// Returns the queue's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the queue on which to deliver a frame.
    fn queue_for(&self, meta: &RxMeta) -> usize {
        let wanted = usize::from(meta.queue);
        if wanted < self.shared.fds.len() { wanted } else { self.index }
    }

    /// Accepts a frame that was read, `len` bytes including the header.
    fn accept(&mut self, len: usize) -> Result<bool, PortError> {
        if len >= self.read_len_max {
            return Err(PortError::Lost(Loss::TooLong));
        }
        let header = self.frame.memory_mut()[self.header_at..].first_chunk().ok_or(PortError::Refused(libc::EINVAL))?;
        let request = decode_tx(header).map_err(|_| PortError::Refused(libc::EINVAL))?;
        if len < HEADER_LEN {
            return Err(PortError::Refused(libc::EINVAL));
        }
        count::copied(len - HEADER_LEN);
        self.frame.set(self.header_at + HEADER_LEN..self.header_at + len, request);
        Ok(true)
    }
}

impl InPlace for TapQueue {}

impl HostPort for TapQueue {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        let room = &mut self.frame.memory_mut()[self.header_at..self.header_at + self.read_len_max];
        let len = loop {
            match read(&self.shared.fds[self.index], room) {
                Ok(len) => break len,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(e) => return Err(port_error(e)),
            }
        };
        self.accept(len)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.frame_with_tag(change)
    }

    #[inline]
    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        count::copied(frame.len());
        let header = encode_rx(meta);
        let fd = &self.shared.fds[self.queue_for(meta)];
        loop {
            let written = match self.short.get_mut(..HEADER_LEN + frame.len()) {
                Some(short) => {
                    count::copied(frame.len());
                    short[..HEADER_LEN].copy_from_slice(&header);
                    short[HEADER_LEN..].copy_from_slice(frame);
                    write(fd, short)
                }
                None => writev(fd, &[IoSlice::new(&header), IoSlice::new(frame)]),
            };
            match written {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(port_error(e)),
            }
        }
    }

    fn rx_takes_shared(&self) -> bool {
        true
    }

    fn rx_deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>) -> Result<(), PortError> {
        count::copied(frame.len());
        let header = encode_rx(meta);
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2 + SHARED_PIECES_MAX];
        let private = [(header.as_ptr(), header.len()), (frame.bytes().as_ptr(), frame.bytes().len())];
        let pieces = private.into_iter().chain(frame.shared().iter().map(|piece| (piece.as_ptr(), piece.len())));
        let mut count = 0;
        for (start, len) in pieces {
            let part = parts.get_mut(count).ok_or(PortError::Refused(libc::EMSGSIZE))?;
            *part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
            count += 1;
        }
        let fd = self.shared.fds[self.queue_for(meta)].as_raw_fd();
        loop {
            // SAFETY: each part is readable: the first two are private, and the sender keeps the others readable while
            // the frame is lent. The kernel only reads the parts.
            let written = unsafe { libc::writev(fd, parts.as_ptr(), count as libc::c_int) };
            match Errno::result(written) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => {
                    if e == Errno::EFAULT {
                        // A guest made its memory unreadable. Reading the same memory here raises SIGBUS, whose handler
                        // determines the guest from the address.
                        frame.shared().iter().for_each(SharedBytes::touch);
                    }
                    return Err(port_error(e));
                }
            }
        }
    }

    fn accepts(&self) -> Offloads {
        self.shared.offered()
    }

    fn honours_data_valid(&self) -> bool {
        false
    }
}

/// All queue pairs of a [`Tap`](super::Tap) as one host port, for a thread that serves all pairs, such as a switch. The
/// port fetches frames from the pairs in turn, and delivers each frame on the pair given by [`RxMeta::queue`].
#[derive(Debug)]
pub struct TapPort {
    queues: Vec<TapQueue>,
    /// Index of the pair with the last fetched frame. The next fetch polls this pair last.
    fetched_from: usize,
}

impl TapPort {
    pub(super) fn new(queues: Vec<TapQueue>) -> Self {
        Self { queues, fetched_from: 0 }
    }
}

impl InPlace for TapPort {}

impl HostPort for TapPort {
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let (count, last) = (self.queues.len(), self.fetched_from);
        for nth in 1..=count {
            self.fetched_from = (last + nth) % count;
            if self.queues[self.fetched_from].tx_next(now_ns)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.queues[self.fetched_from].tx_frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.queues[self.fetched_from].tx_frame_with_tag(change)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.queues[0].rx_deliver(meta, frame)
    }

    fn rx_takes_shared(&self) -> bool {
        self.queues[0].rx_takes_shared()
    }

    fn rx_deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>) -> Result<(), PortError> {
        self.queues[0].rx_deliver_lent(meta, frame)
    }

    fn accepts(&self) -> Offloads {
        self.queues[0].accepts()
    }

    fn honours_data_valid(&self) -> bool {
        self.queues[0].honours_data_valid()
    }
}

impl HostIo for TapPort {
    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        self.queues.iter().for_each(|queue| queue.watch(is_held, watch));
    }
}

impl HostIo for TapQueue {
    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        if !is_held {
            watch(self.as_fd());
        }
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fds[self.index].as_fd()
    }
}

/// Translates an error number of read(2) or write(2) on a TAP (Linux `drivers/net/tun.c`). The kernel returns `EBADFD`
/// after the interface was deleted, `EIO` while the interface is down, and `EINVAL` for an invalid frame.
fn port_error(errno: Errno) -> PortError {
    match errno {
        Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM => PortError::Full,
        Errno::EBADFD | Errno::EBADF | Errno::ENODEV | Errno::ENXIO => PortError::Closed(errno as i32),
        other => PortError::Refused(other as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_can_be_sent_to_its_thread() {
        fn sendable<T: Send>() {}
        sendable::<TapQueue>();
    }

    #[test]
    fn only_a_deleted_interface_closes_the_port() {
        assert_eq!(port_error(Errno::EBADFD), PortError::Closed(libc::EBADFD));
        assert_eq!(port_error(Errno::EIO), PortError::Refused(libc::EIO));
        assert_eq!(port_error(Errno::EINVAL), PortError::Refused(libc::EINVAL));
        assert_eq!(port_error(Errno::EAGAIN), PortError::Full);
    }
}
