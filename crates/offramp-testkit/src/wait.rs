//! Waits with a deadline.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Number of polls before each nap. Polling detects short-lived states, and a nap leaves the processor to the peer.
const SPINS_BEFORE_NAP: u32 = 200;
/// Duration of a nap, a sleep between two polls.
const NAP: Duration = Duration::from_micros(20);

/// The deadline of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// Returns a deadline `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// Returns true after the deadline.
    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// Waits until `fd` has `events`, has an error, or is closed. Returns false at the deadline.
    pub(crate) fn wait_for(self, fd: impl AsFd, events: PollFlags) -> bool {
        loop {
            let left = self.0.saturating_duration_since(Instant::now());
            // Round up, so that the loop does not spin in the last part of a millisecond.
            let timeout = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(fd.as_fd(), events)], timeout) {
                Ok(0) if self.is_over() => return false,
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return true,
                Err(error) => panic!("poll: {error}"),
            }
        }
    }

    /// Calls `look` until it returns a value, or until the deadline.
    pub(crate) fn look_for<T>(self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spins = 0;
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if self.is_over() {
                return None;
            }
            spins += 1;
            if spins % SPINS_BEFORE_NAP == 0 { std::thread::sleep(NAP) } else { std::hint::spin_loop() }
        }
    }
}
