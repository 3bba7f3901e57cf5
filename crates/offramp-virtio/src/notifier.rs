//! Notifications by eventfd: calls to the driver, and kicks from the driver.
//!
//! The virtual machine monitor creates these file descriptors, and can make them blocking at any time, because the
//! monitor and this process share the flag `O_NONBLOCK`. On a blocking descriptor, a `read` would wait for a kick, and
//! a `write` would wait for room in a counter filled by the monitor. So kicks are read with `RWF_NOWAIT`. Writes to an
//! eventfd do not support `RWF_NOWAIT`. Instead, the kernel signals the eventfd at the end of an asynchronous read of
//! zero bytes (`io_submit(2)`), without waiting.

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Number of bytes in a read from an eventfd.
const EVENT_LEN: usize = 8;
/// Maximum number of completed asynchronous reads before the results of these reads are discarded.
const REQUESTS_MAX: libc::c_long = 64;
/// `IOCB_CMD_PREAD` (Linux `include/uapi/linux/aio_abi.h`).
const PREAD: u16 = 0;
/// `IOCB_FLAG_RESFD`: signal an eventfd (Linux `include/uapi/linux/aio_abi.h`).
const RAISE_EVENT: u32 = 1;
/// Read flags that no kernel supports. The kernel refuses these flags after it has checked the eventfd, and before the
/// read.
const NO_SUCH_FLAGS: u32 = 1 << 31;

/// Linux' `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    read_flags: u32,
    opcode: u16,
    priority: i16,
    file: i32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: i32,
}

/// Linux' `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ended([u64; 4]);

/// A context for Linux' asynchronous I/O, to signal eventfds of other processes. A device needs one context for all its
/// rings.
#[derive(Clone, Debug)]
pub struct Events(Arc<Context>);

#[derive(Debug)]
struct Context {
    id: libc::c_ulong,
    /// Empty file for the reads of zero bytes.
    nothing: OwnedFd,
}

/// The error for a file descriptor that is no eventfd.
#[derive(Debug, thiserror::Error)]
#[error("no eventfd: {cause}")]
pub struct NoEventFd {
    /// Refused file descriptor.
    pub fd: OwnedFd,
    cause: Errno,
}

impl Events {
    /// Creates a context.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks asynchronous I/O (`CONFIG_AIO`), denies asynchronous I/O to this process,
    /// or has reached the limit of requests (`fs.aio-max-nr`).
    pub fn new() -> io::Result<Self> {
        let nothing = memfd_create(c"offramp-nothing", MFdFlags::MFD_CLOEXEC)?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number to `id`, which has enough room.
        Errno::result(unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS_MAX, &raw mut id) })?;
        Ok(Self(Arc::new(Context { id, nothing })))
    }

    /// Takes ownership of a file descriptor created by another process.
    ///
    /// # Errors
    /// Returns an error if the descriptor is no eventfd. The kernel itself checks the descriptor, so the check works in
    /// every sandbox, without `/proc`.
    pub fn event(&self, fd: OwnedFd) -> Result<Event, NoEventFd> {
        match self.0.read_nothing(fd.as_fd(), NO_SUCH_FLAGS) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(Event { fd, context: Arc::clone(&self.0) }),
            Err(cause) => Err(NoEventFd { fd, cause }),
        }
    }
}

impl Context {
    /// Reads zero bytes, so that the kernel signals `event` at the end of the read.
    fn read_nothing(&self, event: BorrowedFd<'_>, read_flags: u32) -> nix::Result<()> {
        let mut request = Request {
            read_flags,
            opcode: PREAD,
            file: self.nothing.as_raw_fd(),
            flags: RAISE_EVENT,
            event: event.as_raw_fd(),
            ..Request::default()
        };
        match self.submit(&mut request) {
            // Completed requests still occupy all request slots of the context.
            Err(Errno::EAGAIN) => {
                self.clear_ended();
                self.submit(&mut request)
            }
            done => done,
        }
    }

    fn submit(&self, request: &mut Request) -> nix::Result<()> {
        let mut requests = [&raw mut *request];
        // SAFETY: the kernel reads one pointer and the request at this address, and writes a key into the request. The
        // request has no buffer, and is complete when the call returns.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1, requests.as_mut_ptr()) };
        Errno::result(submitted).map(drop)
    }

    #[cold]
    fn clear_ended(&self) {
        let mut ended = [Ended::default(); REQUESTS_MAX as usize];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most `ended.len()` results.
        unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, 0, ended.len(), ended.as_mut_ptr(), &raw const at_once);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `self` owns the context, and no request is in progress.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

/// An eventfd created by another process.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
    context: Arc<Context>,
}

impl Event {
    /// Returns the same eventfd with another file descriptor.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, context: Arc::clone(&self.context) })
    }

    /// Increments the eventfd's counter, if the counter has room, without waiting.
    fn raise(&self) {
        // The call fails only if the kernel is out of memory. A full counter is no failure.
        let _ = self.context.read_nothing(self.fd.as_fd(), 0);
    }

    /// Resets the eventfd's counter to 0, without waiting. Returns false if the descriptor is no longer an eventfd.
    fn drain(&self) -> bool {
        let mut count = [0u8; EVENT_LEN];
        let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: `part` describes the whole buffer `count`, which outlives the call.
        let len = unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
        matches!(Errno::result(len), Ok(_) | Err(Errno::EAGAIN | Errno::EINTR))
    }
}

/// A sender of notifications to the driver, or to the virtual machine monitor. A sender without a descriptor sends
/// nothing.
#[derive(Debug, Default)]
pub struct CallNotifier(Option<Event>);

impl CallNotifier {
    /// Creates a notifier for `event`.
    pub fn new(event: Option<Event>) -> Self {
        Self(event)
    }

    /// Sends one notification. Returns `false` without a descriptor.
    #[inline]
    pub fn notify(&self) -> bool {
        let Some(event) = &self.0 else { return false };
        event.raise();
        true
    }
}

/// The receiver of the driver's kicks.
#[derive(Debug, Default)]
pub(crate) struct Kick(Option<Event>);

impl Kick {
    pub fn new(event: Option<Event>) -> Self {
        Self(event)
    }

    /// Returns the eventfd to wait on.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|event| event.fd.as_fd())
    }

    /// Resets the counter of kicks.
    pub fn drain(&mut self) {
        // Drop a descriptor that cannot be drained, because the descriptor would keep a thread awake forever.
        self.0.take_if(|event| !event.drain());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;

    #[test]
    fn an_eventfd_is_raised_and_drained_without_waiting_and_known_without_being_raised() {
        let events = Events::new().unwrap();
        let theirs = EventFd::new().unwrap();
        let event = events.event(theirs.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(event.drain(), "there was nothing to read");
        for _ in 0..3 * REQUESTS_MAX {
            event.raise();
        }
        assert_eq!(theirs.read(), Ok(3 * REQUESTS_MAX as u64));
        theirs.write(u64::MAX - 1).unwrap();
        event.raise();
        event.raise();
        assert!(event.drain() && event.drain());
        event.raise();
        assert_eq!(theirs.read(), Ok(1));
    }

    #[test]
    fn other_descriptors_are_no_eventfds() {
        let events = Events::new().unwrap();
        let (_read_end, pipe) = nix::unistd::pipe().unwrap();
        assert_eq!(events.event(pipe).unwrap_err().cause, Errno::EINVAL);
        let memory = memfd_create(c"no event", MFdFlags::MFD_CLOEXEC).unwrap();
        assert_eq!(events.event(memory).unwrap_err().cause, Errno::EINVAL);
    }
}
