//! An eventfd that wakes a thread from `ppoll`.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

/// An eventfd that is readable from a call of `ring` until the next call of `clear`.
#[derive(Debug)]
pub(crate) struct Bell {
    event: EventFd,
    /// Models the eventfd's counter for loom, which cannot model system calls.
    #[cfg(feature = "loom")]
    counter: every_order::Counter,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            event: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            #[cfg(feature = "loom")]
            counter: every_order::Counter::new(),
        })
    }

    pub(crate) fn ring(&self) {
        #[cfg(feature = "loom")]
        self.counter.ring();
        // The write fails only if the eventfd's counter is full. A descriptor with a full counter is already readable.
        let _ = self.event.write(1);
    }

    pub(crate) fn clear(&self) {
        #[cfg(feature = "loom")]
        self.counter.clear();
        // The read fails only if the eventfd's counter is zero, because no thread has called `ring`.
        let _ = self.event.read();
    }

    #[cfg(all(test, feature = "loom"))]
    pub fn is_ringing(&self) -> bool {
        self.counter.is_ringing()
    }

    /// Sleeps until the bell rings, one of `fds` has an event, or `timeout` has passed.
    pub(crate) fn sleep<'a>(&'a self, mut fds: Vec<PollFd<'a>>, timeout: Duration) {
        // The sleep on the modelled counter has already ended, so do not wait for the descriptor.
        #[cfg(feature = "loom")]
        let timeout = timeout.min(self.counter.sleep());
        fds.push(PollFd::new(self.event.as_fd(), PollFlags::POLLIN));
        match ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            // Only `EINTR` is possible for descriptors owned by this process. Sleep, so that an unexpected error does
            // not cause a busy loop.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(feature = "loom")]
mod every_order {
    use loom::sync::Condvar;
    use offramp_offload::sync::Mutex;
    use std::time::Duration;

    /// A model of an eventfd's counter, and of the thread that sleeps until the counter is set.
    #[derive(Debug)]
    pub(super) struct Counter {
        is_ringing: Mutex<bool>,
        sleeper: Condvar,
    }

    impl Counter {
        pub fn new() -> Self {
            Self { is_ringing: Mutex::new(false), sleeper: Condvar::new() }
        }

        pub fn ring(&self) {
            *self.is_ringing.lock() = true;
            self.sleeper.notify_one();
        }

        pub fn clear(&self) {
            *self.is_ringing.lock() = false;
        }

        #[cfg(test)]
        pub fn is_ringing(&self) -> bool {
            *self.is_ringing.lock()
        }

        /// Sleeps until the bell rings. Returns zero: the caller need not wait for the descriptor.
        pub fn sleep(&self) -> Duration {
            let mut is_ringing = self.is_ringing.lock();
            while !*is_ringing {
                is_ringing = self.sleeper.wait(is_ringing).expect("nobody panics");
            }
            Duration::ZERO
        }
    }
}
