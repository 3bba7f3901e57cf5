//! Calls through a pipe or, as User Mode Linux has it in place of one, a socket.
//!
//! The reader of a pipe can block its writer indefinitely. So a thread of its own writes, and the threads of the frames
//! raise an eventfd for it.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The bytes of one call in a pipe.
const CALL: [u8; 8] = 1u64.to_ne_bytes();
/// The value to end the thread: it exceeds the calls between two reads of the counter.
const END: u64 = 1 << 32;

/// A thread for calls through a pipe, until this is dropped.
#[derive(Debug)]
pub(super) struct CallPipe(Arc<EventFd>);

impl CallPipe {
    /// Starts the thread. It holds `threads` while it lives: also after this is dropped, as long as the pipe's reader
    /// blocks it.
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

    /// Returns the eventfd in place of the pipe.
    pub(super) fn bell(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

/// Writes one call. A pipe or socket without a reader harms only its maker.
fn notify(pipe: &OwnedFd) {
    // A full socket has unread calls. A wait for room might last for ever: the two ends of one socket may be the calls
    // of two rings, held by no process but this one.
    if send(pipe.as_raw_fd(), &CALL, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) == Err(Errno::ENOTSOCK) {
        let _ = write(pipe, &CALL);
    }
}

impl Drop for CallPipe {
    fn drop(&mut self) {
        // This cannot block: the counter is far from full.
        let _ = self.0.write(END);
    }
}
