//! The link state of a port, as read by its guest.

use crate::bell::Bell;
use offramp_offload::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// Bits for the reasons why a link is down.
const WIRE_DOWN: u8 = 1;
const SET_OFF: u8 = 1 << 1;

/// The state of a port's link, reported as `status` in the guest's configuration (virtio 1.3, 5.1.4). The link is up
/// while the wire is up and the operator has not switched the link off. A new link is up.
#[derive(Debug)]
pub struct Link {
    /// Bits of the reasons why the link is down. 0 while the link is up.
    down: AtomicU8,
    /// Wakes the control thread after the link state has changed.
    bell: Bell,
}

impl Link {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { down: AtomicU8::new(0), bell: Bell::new()? }))
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.down.load(Ordering::Acquire) == 0
    }

    /// Sets the state of the wire. A change of the link is reported to the guest if the frontend supports reports of
    /// configuration changes.
    pub fn set_up(&self, is_up: bool) {
        self.set(WIRE_DOWN, is_up);
    }

    /// Switches the link on or off, independently of the wire. A change of the link is reported as by [`Link::set_up`].
    pub fn set_on(&self, is_on: bool) {
        self.set(SET_OFF, is_on);
    }

    fn set(&self, reason: u8, is_up: bool) {
        let before = if is_up {
            self.down.fetch_and(!reason, Ordering::AcqRel)
        } else {
            self.down.fetch_or(reason, Ordering::AcqRel)
        };
        let now = if is_up { before & !reason } else { before | reason };
        if (before == 0) != (now == 0) {
            self.bell.ring();
        }
    }

    /// Makes the descriptor unreadable until the next change of the link.
    pub(super) fn clear(&self) {
        self.bell.clear();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The presence of a port's frontend, and the link of the port at the opposite end of the cable.
#[derive(Debug, Default)]
pub(super) struct Presence(Mutex<(bool, Option<Arc<Link>>)>);

impl Presence {
    /// Makes the link `far` follow the presence of this port's frontend.
    pub(super) fn follow(&self, far: &Arc<Link>) {
        let mut inner = lock(&self.0);
        inner.1 = Some(Arc::clone(far));
        far.set_up(inner.0);
    }

    /// Sets the presence of the frontend.
    pub(super) fn set(&self, is_connected: bool) {
        let mut inner = lock(&self.0);
        inner.0 = is_connected;
        if let Some(far) = &inner.1 {
            far.set_up(is_connected);
        }
    }
}
