//! Whether the link of a port is up, as its guest reads it.

use crate::bell::Bell;
use offramp_offload::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The state of a port's link, which its guest reads as `status` of its configuration (virtio 1.3, 5.1.4). It is
/// up until it is set down.
#[derive(Debug)]
pub struct Link {
    is_up: AtomicBool,
    /// Rings when the state has changed.
    bell: Bell,
}

impl Link {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { is_up: AtomicBool::new(true), bell: Bell::new()? }))
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Sets whether the link is up; a change is reported to a guest whose frontend takes reports.
    pub fn set_up(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            self.bell.ring();
        }
    }

    /// Clears the bell.
    pub(super) fn clear(&self) {
        self.bell.clear();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Whether a port's frontend is connected, and the link of the port at the other end.
#[derive(Debug, Default)]
pub(super) struct Presence(Mutex<(bool, Option<Arc<Link>>)>);

impl Presence {
    /// Keeps `far` up while the frontend is connected, from now on.
    pub fn follow(&self, far: &Arc<Link>) {
        let mut inner = lock(&self.0);
        inner.1 = Some(Arc::clone(far));
        far.set_up(inner.0);
    }

    /// Sets whether the frontend is connected.
    pub fn set(&self, is_connected: bool) {
        let mut inner = lock(&self.0);
        inner.0 = is_connected;
        if let Some(far) = &inner.1 {
            far.set_up(is_connected);
        }
    }
}
