//! Determines the receive queue of a hardware adapter in which each frame arrived. No system call reports the queue. A
//! filter therefore encodes the queue number in the length of the truncated frame.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{PacketConfig, PacketError, open_socket, socket, system};
use crate::sys::link;
use crate::vnet_hdr::HEADER_LEN;

/// Number of bytes captured from each frame, sufficient for the headers up to the TCP or UDP ports.
pub const HEAD_LEN: usize = 64;
/// Size of the socket buffer in the kernel, in bytes.
const BUFFER_LEN: usize = 4 << 20;

/// The first bytes of a frame, and its receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The frame's first [`HEAD_LEN`] bytes, or all bytes of a shorter frame.
    pub head: Vec<u8>,
    /// The receive queue, counted from 0. `None` if the driver records no queue.
    pub queue: Option<u16>,
}

/// Frames received by an interface for one Ethernet address, with their receive queues. The frames must be longer than
/// [`HEAD_LEN`] bytes plus the number of queues.
#[derive(Debug)]
pub struct RxQueues {
    fd: OwnedFd,
    header_len: usize,
    buffer: Box<[u8]>,
}

impl RxQueues {
    /// Starts capturing on an interface in the calling thread's namespace.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist or the kernel refuses a request.
    pub fn open(interface: &str, destination: [u8; 6]) -> Result<Self, PacketError> {
        let config = PacketConfig { buffer_len: BUFFER_LEN, ..PacketConfig::new(interface) };
        super::check(&config)?;
        let index = link::index(interface).map_err(|_| PacketError::NoInterface(interface.to_owned()))?;
        let (fd, header_len) = open_socket(&config, index)?;
        socket::set_promiscuous(fd.as_fd(), index).map_err(system(interface, "turning on promiscuous mode"))?;
        socket::let_in_by_queue(fd.as_fd(), destination, HEAD_LEN as u32)
            .map_err(system(interface, "filtering frames"))?;
        let buffer = vec![0; HEAD_LEN + usize::from(u16::MAX)].into_boxed_slice();
        Ok(Self { fd, header_len, buffer })
    }

    /// Returns the next frame, or `None` if none is queued. To wait for a frame, poll the descriptor.
    ///
    /// # Errors
    /// Returns an error if the interface is down or gone.
    pub fn next_arrival(&mut self) -> io::Result<Option<Arrival>> {
        loop {
            let mut header = [0; HEADER_LEN];
            match socket::receive(self.fd.as_fd(), &mut header[..self.header_len], &mut self.buffer) {
                Ok(received) if received.is_outgoing => {}
                Ok(received) => {
                    let number = received.len.saturating_sub(HEAD_LEN) as u16;
                    let head = self.buffer[..received.len.min(HEAD_LEN)].to_vec();
                    return Ok(Some(Arrival { head, queue: number.checked_sub(1) }));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for RxQueues {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
