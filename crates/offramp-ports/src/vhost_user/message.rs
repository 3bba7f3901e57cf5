//! Receives the messages of a frontend, one after another.
//!
//! No function here blocks. While a message is incomplete, the thread serves the port's other events. A message that is
//! incomplete at its deadline ends the connection. Crate `vhost` reads a message without checking its length. The crate
//! therefore gets only whole messages, on a separate socket.

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use offramp_virtio::memory::REGIONS_MAX;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Length of a message's header in bytes: request, flags, size (vhost-user, "Message specification").
pub(super) const HEADER_LEN: usize = 12;
/// Maximum length of a message's payload, in bytes: more than enough for a table of 32 regions.
const PAYLOAD_LEN_MAX: usize = 4096;
/// Maximum length of a message, in bytes.
pub(super) const MESSAGE_LEN_MAX: usize = HEADER_LEN + PAYLOAD_LEN_MAX;
/// Maximum number of descriptors with a message: one for each region of a table.
const FDS_MAX: usize = REGIONS_MAX;
/// Length of the control data in bytes: a header and the maximum number of descriptors of one message (`SCM_MAX_FD` in
/// unix(7), 253).
const CONTROL_LEN: usize = 16 + 253 * FD_LEN;
/// Length of a descriptor in control data, in bytes.
const FD_LEN: usize = size_of::<libc::c_int>();
/// Time limit for the remaining bytes of a message after its first bytes have arrived.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// The reason for an unreadable or refused message. The connection must end.
#[derive(Debug)]
pub(super) struct Unreadable(pub String);

impl<E: std::error::Error> From<E> for Unreadable {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub request: u32,
    pub flags: u32,
    pub size: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.get(..HEADER_LEN)?.as_chunks::<4>();
        let word = |nth: usize| u32::from_ne_bytes(words[nth]);
        Some(Self { request: word(0), flags: word(1), size: word(2) as usize })
    }
}

/// A whole message.
#[derive(Debug)]
pub(super) struct Message {
    pub header: Header,
    bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Message {
    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// Returns all bytes including the header, and the descriptors.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.bytes, self.fds)
    }

    /// Sends the message with its descriptors to `stream`.
    pub(super) fn send(&self, stream: &UnixStream) -> Result<(), Unreadable> {
        send_with_fds(stream, &self.bytes, &self.fds)
    }
}

/// Sends bytes and descriptors. Fails if the socket has no room for all bytes.
pub(super) fn send_with_fds(stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> Result<(), Unreadable> {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let control: &[_] = if raw.is_empty() { &[] } else { &[ControlMessage::ScmRights(&raw)] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(Unreadable(format!("only {sent} of {} bytes were sent", bytes.len())))
    }
}

/// The result of reading from the socket.
#[derive(Debug)]
pub(super) enum Next<M> {
    Whole(M),
    /// Only a part of the message has arrived.
    Part,
    /// The frontend has disconnected.
    Gone,
}

/// The message being received.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    deadline: Option<Instant>,
}

impl Incoming {
    /// Returns the deadline for the remaining bytes of a message, if a part of the message has arrived.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Reads from a readable socket.
    pub(super) fn receive(&mut self, stream: &UnixStream) -> Result<Next<Message>, Unreadable> {
        let mut has_taken = false;
        loop {
            let missing = self.missing()?;
            if let (Some(header), 0) = (Header::parse(&self.bytes), missing) {
                let Self { bytes, fds, .. } = std::mem::take(self);
                return Ok(Next::Whole(Message { header, bytes, fds }));
            }
            let mut room = [0; MESSAGE_LEN_MAX];
            match receive_with_fds(stream, &mut room[..missing]) {
                Ok((0, _)) if self.bytes.is_empty() => return Ok(Next::Gone),
                Ok((0, _)) => return Err(Unreadable("connection closed within a message".to_owned())),
                Ok((len, fds)) => {
                    self.bytes.extend(&room[..len]);
                    self.fds.extend(fds);
                }
                Err(Errno::EAGAIN) if has_taken => {
                    self.deadline.get_or_insert_with(|| Instant::now() + REST_PATIENCE);
                    return Ok(Next::Part);
                }
                // The socket is readable, but has no bytes in band.
                Err(Errno::EAGAIN) => return Err(Unreadable("out-of-band bytes".to_owned())),
                Err(Errno::EINTR) => continue,
                Err(error @ Errno::ENOBUFS) => return Err(Unreadable(format!("too many descriptors: {error}"))),
                Err(_) if self.bytes.is_empty() => return Ok(Next::Gone),
                Err(error) => return Err(error.into()),
            }
            has_taken = true;
        }
    }

    /// Returns the number of bytes missing from the header or, after the header, from the message.
    fn missing(&self) -> Result<usize, Unreadable> {
        let header = Header::parse(&self.bytes);
        let (request, size) = header.map_or((0, 0), |header| (header.request, header.size));
        if size > PAYLOAD_LEN_MAX || self.fds.len() > FDS_MAX {
            return Err(Unreadable(format!("message {request} of {size} bytes, {} descriptors", self.fds.len())));
        }
        Ok(HEADER_LEN + size - self.bytes.len())
    }
}

/// Receives the available bytes from a socket, with their descriptors. Returns `ENOBUFS` if the descriptors exceed the
/// limit of this process.
pub(super) fn receive_with_fds(stream: &UnixStream, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL_LEN.div_ceil(8)];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zero is valid for all fields of the structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to buffers of the given lengths, which outlive the call.
    let len = Errno::result(unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) })?;
    // SAFETY: the kernel has filled in the message.
    let fds = unsafe { take_fds(&message) };
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Errno::ENOBUFS);
    }
    Ok((len as usize, fds))
}

/// Takes the descriptors from a received message.
///
/// # Safety
/// `recvmsg` must have filled in the message, and no other code must take the message's descriptors.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the caller guarantees that the kernel filled in the message and its control buffer.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while let Some(header) = NonNull::new(control) {
        // SAFETY: the kernel has written this header.
        let (level, kind, len) =
            unsafe { (header.as_ref().cmsg_level, header.as_ref().cmsg_type, header.as_ref().cmsg_len) };
        #[allow(clippy::unnecessary_cast, reason = "libraries of C give it different types")]
        let len = len as usize;
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the kernel has written this header; the data starts after it.
            let data = unsafe { libc::CMSG_DATA(control) };
            // SAFETY: the length of a header without data is a constant.
            let count = (len - unsafe { libc::CMSG_LEN(0) } as usize) / FD_LEN;
            for at in 0..count {
                let mut fd = [0; FD_LEN];
                // SAFETY: `data` points to `count` descriptors of `FD_LEN` bytes.
                unsafe { std::ptr::copy_nonoverlapping(data.add(at * FD_LEN), fd.as_mut_ptr(), FD_LEN) };
                // SAFETY: the kernel has just created the descriptor, and no other code owns it.
                fds.push(unsafe { OwnedFd::from_raw_fd(libc::c_int::from_ne_bytes(fd)) });
            }
        }
        // SAFETY: the message and its control buffer are valid, as for CMSG_FIRSTHDR.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    fds
}
