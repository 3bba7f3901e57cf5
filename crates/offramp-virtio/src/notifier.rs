//! Notifications by file descriptor: calls to the driver, kicks from it.

use nix::errno::Errno;
use nix::unistd::{read, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is written into an eventfd, and how many bytes are read from it.
const EVENT: [u8; 8] = 1u64.to_ne_bytes();

/// Raises notifications to the driver, or to its monitor. Without a descriptor there are none.
#[derive(Debug, Default)]
pub struct CallNotifier(Option<OwnedFd>);

impl CallNotifier {
    /// A notifier that writes to `event`.
    pub fn new(event: Option<OwnedFd>) -> Self {
        Self(event)
    }

    /// Raises one notification; `false` when there is no descriptor for it.
    #[inline]
    pub fn notify(&self) -> bool {
        let Some(event) = &self.0 else { return false };
        // EAGAIN: the driver has more notifications to see than an eventfd can count. Any other error harms only
        // the monitor, which made the descriptor.
        let _ = write(event, &EVENT);
        true
    }
}

/// The driver's kicks.
#[derive(Debug, Default)]
pub(crate) struct Kick(Option<OwnedFd>);

impl Kick {
    pub fn new(event: Option<OwnedFd>) -> Self {
        Self(event)
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Empties the counter. A descriptor that is no eventfd is given up: it would never let a thread sleep.
    pub fn drain(&mut self) {
        let mut count = EVENT;
        let Some(event) = &self.0 else { return };
        match read(event, &mut count) {
            Ok(len) if len == EVENT.len() => {}
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            _ => self.0 = None,
        }
    }
}
