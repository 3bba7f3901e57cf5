//! Sends calls (interrupts to a guest) through a pipe, or through a socket (User Mode Linux uses a socket in place of a
//! pipe).
//!
//! The reader of a pipe can block its writer indefinitely. A separate thread therefore writes to the pipe, and the data
//! threads wake this thread through an eventfd.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The bytes that signal one call: the number 1, as for an eventfd.
const CALL: [u8; 8] = 1u64.to_ne_bytes();
/// The eventfd value that ends the thread. The value exceeds any number of calls that can be signalled between two
/// reads of the eventfd's counter.
const END: u64 = 1 << 32;

/// A thread that forwards calls to a pipe. Dropping this value ends the thread.
#[derive(Debug)]
pub(super) struct CallPipe(Arc<EventFd>);

impl CallPipe {
    /// Starts the thread, which holds a clone of `threads` until its end. A reader that blocks the pipe can delay the
    /// end of the thread beyond the drop of the returned value.
    pub(super) fn start(pipe: OwnedFd, threads: &Arc<()>) -> io::Result<Self> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        let (calls, alive) = (Arc::clone(&bell), Arc::clone(threads));
        std::thread::Builder::new().name("ofr-call".to_owned()).spawn(move || {
            while calls.read().is_ok_and(|count| count < END) {
                notify(&pipe);
            }
            drop(alive);
        })?;
        Ok(Self(bell))
    }

    /// Returns the eventfd that the data threads signal in place of the pipe.
    pub(super) fn bell(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

/// Writes one call. A pipe or socket without a reader harms only the frontend that created it.
fn notify(pipe: &OwnedFd) {
    // Do not wait for room: a full socket already has unread calls, and the wait might never end. The two sockets of a
    // pair may be the call descriptors of two rings, and this process may be the only holder of both.
    if send(pipe.as_raw_fd(), &CALL, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) == Err(Errno::ENOTSOCK) {
        let _ = write(pipe, &CALL);
    }
}

impl Drop for CallPipe {
    fn drop(&mut self) {
        // The write cannot block, because the eventfd's counter is far from full.
        let _ = self.0.write(END);
    }
}
