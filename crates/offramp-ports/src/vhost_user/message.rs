//! One message of a frontend, as it comes in.
//!
//! Nothing here waits: half a message leaves the thread free for the port's other business, and shows as late if the
//! rest does not come. Crate `vhost` reads a message without a check of its length, so it gets only whole ones, on a
//! socket of its own.

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use offramp_virtio::memory::REGIONS_MAX;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Bytes of a message's header: request, flags, size (vhost-user, "Message specification").
pub(super) const HEADER_LEN: usize = 12;
/// Longest payload of any message: a table of 32 regions and some room.
const PAYLOAD_LEN_MAX: usize = 4096;
/// Longest message.
pub(super) const MESSAGE_LEN_MAX: usize = HEADER_LEN + PAYLOAD_LEN_MAX;
/// Most descriptors of a message: one for each region of a table.
const FDS_MAX: usize = REGIONS_MAX;
/// Bytes of control data for the most descriptors of one message (`SCM_MAX_FD` of unix(7), 253), and their header.
const CONTROL_LEN: usize = 16 + 253 * FD_LEN;
/// Bytes of a descriptor in control data.
const FD_LEN: usize = size_of::<libc::c_int>();
/// Time limit for the rest of a message.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// An unreadable or refused message, with the reason: the connection is of no more use.
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

    /// Returns all bytes, from the header on, and the descriptors.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.bytes, self.fds)
    }

    /// Hands the message on, with its descriptors.
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

/// The state of the next message.
#[derive(Debug)]
pub(super) enum Next<M> {
    Whole(M),
    /// A part of it; the rest may come later.
    Part,
    /// The frontend has gone.
    Gone,
}

/// The incoming message.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    deadline: Option<Instant>,
}

impl Incoming {
    /// Returns the deadline for the rest of a message, if a part of it has come.
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
                // The socket is readable, and has nothing to read.
                Err(Errno::EAGAIN) => return Err(Unreadable("out-of-band bytes".to_owned())),
                Err(Errno::EINTR) => continue,
                Err(error @ Errno::ENOBUFS) => return Err(Unreadable(format!("too many descriptors: {error}"))),
                Err(_) if self.bytes.is_empty() => return Ok(Next::Gone),
                Err(error) => return Err(error.into()),
            }
            has_taken = true;
        }
    }

    /// Returns the missing bytes of the header, or of the message.
    fn missing(&self) -> Result<usize, Unreadable> {
        let header = Header::parse(&self.bytes);
        let (request, size) = header.map_or((0, 0), |header| (header.request, header.size));
        if size > PAYLOAD_LEN_MAX || self.fds.len() > FDS_MAX {
            return Err(Unreadable(format!("message {request} of {size} bytes, {} descriptors", self.fds.len())));
        }
        Ok(HEADER_LEN + size - self.bytes.len())
    }
}

/// Takes waiting bytes from a socket, with their descriptors. `ENOBUFS`: the descriptors exceed the limit of this
/// process.
pub(super) fn receive_with_fds(stream: &UnixStream, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL_LEN.div_ceil(8)];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all fields of the structure may be 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to buffers of the lengths that it says, which outlive the call.
    let len = Errno::result(unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) })?;
    // SAFETY: the kernel has filled the message in.
    let fds = unsafe { take_fds(&message) };
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Errno::ENOBUFS);
    }
    Ok((len as usize, fds))
}

/// The descriptors of a received message.
///
/// # Safety
/// `recvmsg` has filled in the message, and nobody else takes its descriptors.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the message and its control buffer are whole, as the caller promises.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while let Some(header) = NonNull::new(control) {
        // SAFETY: the kernel has written this header.
        let (level, kind, len) =
            unsafe { (header.as_ref().cmsg_level, header.as_ref().cmsg_type, header.as_ref().cmsg_len) };
        #[allow(clippy::unnecessary_cast, reason = "libraries of C give it different types")]
        let len = len as usize;
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above; the data begins after the header.
            let data = unsafe { libc::CMSG_DATA(control) };
            // SAFETY: the length of a header without data is a constant.
            let count = (len - unsafe { libc::CMSG_LEN(0) } as usize) / FD_LEN;
            for at in 0..count {
                let mut fd = [0; FD_LEN];
                // SAFETY: `count` descriptors of that length lie there.
                unsafe { std::ptr::copy_nonoverlapping(data.add(at * FD_LEN), fd.as_mut_ptr(), FD_LEN) };
                // SAFETY: the kernel has just made it, and nobody else knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(libc::c_int::from_ne_bytes(fd)) });
            }
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    fds
}
