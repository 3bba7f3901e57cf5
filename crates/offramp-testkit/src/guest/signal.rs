//! Kicks, interrupts and errors of a queue: eventfds, and counts of their uses.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::ring::Virtqueue;
use crate::wait::Deadline;

/// Counts of the uses of a queue's eventfds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Kicks by the driver.
    pub kicks: u64,
    /// Interrupts by the device.
    pub calls: u64,
    /// Errors reported by the device.
    pub errors: u64,
}

/// The eventfds of a queue.
#[derive(Debug)]
pub(super) struct QueueFds {
    kick: EventFd,
    call: EventFd,
    err: EventFd,
    seen: Signals,
    interrupts: bool,
}

impl QueueFds {
    pub(super) fn new(interrupts: bool) -> Self {
        let new = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).expect("making an eventfd");
        Self { kick: new(), call: new(), err: new(), seen: Signals::default(), interrupts }
    }

    pub(super) fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    pub(super) fn err(&self) -> BorrowedFd<'_> {
        self.err.as_fd()
    }

    pub(super) fn wants_interrupts(&self) -> bool {
        self.interrupts
    }

    /// Kicks the device.
    pub(super) fn send_kick(&mut self) {
        self.kick.write(1).expect("kicking the device");
        self.seen.kicks += 1;
    }

    /// Returns the counts so far.
    pub(super) fn count(&mut self) -> Signals {
        self.seen.calls += drain(&self.call);
        self.seen.errors += drain(&self.err);
        self.seen
    }

    /// Waits until `look` finds something in the ring: asleep between interrupts when the queue wants them, else by
    /// polling. Panics when an interrupt is missing.
    pub(super) fn wait<T>(
        &mut self,
        ring: &mut Virtqueue,
        timeout: Duration,
        mut look: impl FnMut(&mut Virtqueue) -> Option<T>,
    ) -> Option<T> {
        let deadline = Deadline::after(timeout);
        if !self.interrupts {
            return deadline.look_for(|| look(ring));
        }
        loop {
            if let Some(found) = look(ring) {
                return Some(found);
            }
            if ring.enable_interrupts() {
                continue;
            }
            let called = deadline.wait_for(&self.call, PollFlags::POLLIN);
            self.count();
            if !called {
                let late = look(ring).is_some();
                assert!(!late, "the device used a chain within {timeout:?} and sent no interrupt for it");
                return None;
            }
        }
    }
}

/// Takes an eventfd's count.
fn drain(fd: &EventFd) -> u64 {
    match fd.read() {
        Ok(count) => count,
        Err(Errno::EAGAIN) => 0,
        Err(error) => panic!("reading an eventfd: {error}"),
    }
}
