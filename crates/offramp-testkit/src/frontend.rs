//! A vhost-user frontend: one connection to a backend.
//!
//! For correct behaviour, [`Frontend::negotiate`] and the start of a [`Guest`](crate::Guest) send the requests in the
//! order of QEMU, DPDK or another frontend ([`Dialect`]). Every request is a method that waits for the answer. A test
//! can send wrong messages with [`Frontend::send_raw`] and [`Frontend::send_bytes`], and read any message with
//! [`Frontend::recv_raw`].

mod handshake;
mod message;
mod requests;
mod shared;
mod state;

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

pub(crate) use handshake::Vring;
pub use handshake::{Dialect, HandshakeOptions, Negotiated};
pub use message::{FLAG_NEED_REPLY, FLAG_REPLY, HEADER_LEN, Header, RawMessage, VERSION, backend_request, request};
pub use requests::{MemRegion, NO_FD, VringAddr};
pub use shared::{DirtyLog, Inflight};

use crate::wait::Deadline;

/// Default timeout of every wait for the backend.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of descriptors received with one message (the specification's largest message carries 8).
const FDS_MAX: usize = 64;
/// Maximum received payload in bytes, far above every payload in the specification.
const PAYLOAD_LEN_MAX: u32 = 1 << 20;
/// Pause between two attempts to connect.
const CONNECT_NAP: Duration = Duration::from_millis(5);

/// A backend's refusal of a request: an error in the answer, or a closed connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The backend answered with an error.
    #[error("the backend refused request {request} with {code}")]
    Refused {
        /// Number of the request.
        request: u32,
        /// Value in the acknowledgement, other than 0.
        code: u64,
    },
    /// The backend closed the connection.
    #[error("the backend closed the connection at request {request}")]
    Closed {
        /// Number of the request.
        request: u32,
    },
}

/// A connection to a backend.
#[derive(Debug)]
pub struct Frontend {
    stream: UnixStream,
    timeout: Duration,
    /// Maximum number of bytes per send.
    piece_len: usize,
    /// True if the backend acknowledges every request that has no other answer.
    reply_ack: bool,
    /// The frontend's socket of the channel for the backend's requests.
    backend_channel: Option<UnixStream>,
}

/// Shuts the connection down, so that the backend detects the end of the connection at once. A plain close would not
/// suffice, because a process started by another test can still hold a copy of the socket.
impl Drop for Frontend {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Frontend {
    /// Connects to a backend at the socket `path`. Waits until the backend listens.
    pub fn connect(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let connected = Deadline::after(TIMEOUT).look_for(|| {
            let stream = UnixStream::connect(path);
            if stream.is_err() {
                std::thread::sleep(CONNECT_NAP);
            }
            stream.ok()
        });
        Self::new(connected.unwrap_or_else(|| panic!("nobody accepted at {} within {TIMEOUT:?}", path.display())))
    }

    /// Waits for a backend that connects to `listener`.
    pub fn accept(listener: &UnixListener) -> Self {
        let waited = Deadline::after(TIMEOUT).wait_for(listener, PollFlags::POLLIN);
        assert!(waited, "no backend connected within {TIMEOUT:?}");
        Self::new(listener.accept().expect("accepting the backend").0)
    }

    /// Makes a frontend with a connected socket.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, timeout: TIMEOUT, piece_len: usize::MAX, reply_ack: false, backend_channel: None }
    }

    /// Sets the timeout of every wait for the backend.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends every message in pieces of at most `len` bytes from now on.
    pub fn set_piece_len(&mut self, len: usize) {
        self.piece_len = len.max(1);
    }

    /// Returns the socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends bytes unchanged, with descriptors. Returns true if the backend had not closed the connection.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let pieces = bytes.chunks(self.piece_len).enumerate();
        pieces.fold(true, |is_open, (nth, piece)| {
            let fds = if nth == 0 { fds } else { &[] };
            is_open && send_all(&self.stream, piece, fds, self.timeout)
        })
    }

    /// Sends a message with any header, any payload (even if it contradicts the header) and any descriptors. Returns
    /// true if the backend had not closed the connection.
    pub fn send_raw(&self, header: Header, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.send_bytes(&[&header.to_bytes(), payload].concat(), fds)
    }

    /// Returns the next message from the backend, or `None` if the backend closed the connection. Panics if no message
    /// is received within `timeout`.
    pub fn recv_raw(&self, timeout: Duration) -> Option<RawMessage> {
        recv_message(&self.stream, timeout, "an answer")
    }

    /// Returns true if the backend closes the connection within `timeout`. Drops all messages received before the
    /// connection closes.
    pub fn is_closed_within(&self, timeout: Duration) -> bool {
        let deadline = Deadline::after(timeout);
        let mut bytes = [0; 256];
        while deadline.wait_for(&self.stream, PollFlags::POLLIN) {
            match recv_some(&self.stream, &mut bytes) {
                Ok((0, _)) | Err(_) => return true,
                Ok(_) => {}
            }
        }
        false
    }
}

/// Sends all bytes, and the descriptors with the first bytes. Returns true if the peer had not closed the connection.
fn send_all(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>], timeout: Duration) -> bool {
    let deadline = Deadline::after(timeout);
    let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let with_fds = sent == 0 && !fds.is_empty();
        let control: &[_] = if with_fds { &[ControlMessage::ScmRights(&fds)] } else { &[] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&bytes[sent..])], control, flags, None) {
            Ok(len) => sent += len,
            Err(Errno::EAGAIN) => {
                let room = deadline.wait_for(stream, PollFlags::POLLOUT);
                assert!(room, "the backend did not read its socket for {timeout:?}");
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return false,
            Err(error) => panic!("sending {} bytes and {} descriptors: {error}", bytes.len(), fds.len()),
        }
    }
    true
}

/// Calls `recvmsg` once.
fn recv_some(stream: &UnixStream, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut control = nix::cmsg_space!([std::os::fd::RawFd; FDS_MAX]);
    let mut iov = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut iov, Some(&mut control), flags)?;
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just created these descriptors for this call, and no other code uses them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, fds))
}

/// Receives a whole message. Returns `None` if the peer closed the connection.
fn recv_message(stream: &UnixStream, timeout: Duration, what: &str) -> Option<RawMessage> {
    let deadline = Deadline::after(timeout);
    let mut fds = Vec::new();
    let header = Header::from_bytes(&recv_exact(stream, HEADER_LEN, deadline, &mut fds, what)?.try_into().ok()?);
    let len = header.payload_len;
    assert!(len <= PAYLOAD_LEN_MAX, "the backend announces a payload of {len} bytes: {header:?}");
    let payload = recv_exact(stream, len as usize, deadline, &mut fds, what)?;
    Some(RawMessage { header, payload, fds })
}

fn recv_exact(
    stream: &UnixStream,
    len: usize,
    deadline: Deadline,
    fds: &mut Vec<OwnedFd>,
    what: &str,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut got = 0;
    while got < len {
        let waited = deadline.wait_for(stream, PollFlags::POLLIN);
        assert!(waited, "waited in vain for {what} from the backend ({got} of {len} bytes came)");
        match recv_some(stream, &mut bytes[got..]) {
            Ok((0, _)) | Err(Errno::ECONNRESET) => return None,
            Ok((more, with)) => {
                got += more;
                fds.extend(with);
            }
            Err(Errno::EINTR) => {}
            Err(error) => panic!("receiving {what} from the backend: {error}"),
        }
    }
    Some(bytes)
}
