//! Calls through a pipe or, as User Mode Linux has it in place of one, a socket.
//!
//! Whoever reads a pipe can hold up who writes to it for as long as they like. So a thread of its own writes, and the
//! threads of the frames raise an eventfd for it.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// What a call is in a pipe.
const CALL: [u8; 8] = 1u64.to_ne_bytes();
/// What ends the thread: more calls than there will be between two looks of it.
const END: u64 = 1 << 32;

/// A thread that calls through a pipe until this is dropped.
#[derive(Debug)]
pub(super) struct CallPipe(Arc<EventFd>);

impl CallPipe {
    /// Starts the thread, which holds `threads` while it lives: also after this is dropped, as long as the pipe's reader
    /// holds it up.
    pub fn start(pipe: OwnedFd, threads: &Arc<()>) -> io::Result<Self> {
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

    /// The eventfd that stands for the pipe.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

/// A call through a pipe or socket that nobody reads any more harms only who made it.
fn notify(pipe: &OwnedFd) {
    // A full socket has calls that its reader has not seen. To wait for room might be for ever: the two ends of one may be
    // the calls of two rings, so that no process but this one has them.
    if send(pipe.as_raw_fd(), &CALL, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) == Err(Errno::ENOTSOCK) {
        let _ = write(pipe, &CALL);
    }
}

impl Drop for CallPipe {
    fn drop(&mut self) {
        // It cannot wait: far fewer calls than that fill the counter.
        let _ = self.0.write(END);
    }
}
