//! Whether the line of a port is up, as its guest is told.

use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_offload::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The state of a port's line, which its guest reads as `status` of its configuration (virtio 1.3, 5.1.4). It is
/// up until somebody says otherwise.
#[derive(Debug)]
pub struct Link {
    is_up: AtomicBool,
    /// Rings when the state has changed.
    bell: EventFd,
}

impl Link {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Arc::new(Self { is_up: AtomicBool::new(true), bell }))
    }

    /// Whether the line is up.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Says whether the line is up; a guest that can be told is told of a change.
    pub fn set_up(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            // A full counter means that it rings already.
            let _ = self.bell.write(1);
        }
    }

    /// Takes back the ringing.
    pub(super) fn silence(&self) {
        // Empty: nobody rang.
        let _ = self.bell.read();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Whether a port's frontend is there, and the line at whose other end that port is.
#[derive(Debug, Default)]
pub(super) struct Presence(Mutex<(bool, Option<Arc<Link>>)>);

impl Presence {
    /// Has `far` be up while the frontend is there, from now on.
    pub fn follow(&self, far: &Arc<Link>) {
        let mut inner = lock(&self.0);
        inner.1 = Some(Arc::clone(far));
        far.set_up(inner.0);
    }

    /// Says whether the frontend is there.
    pub fn set(&self, is_there: bool) {
        let mut inner = lock(&self.0);
        inner.0 = is_there;
        if let Some(far) = &inner.1 {
            far.set_up(is_there);
        }
    }
}
