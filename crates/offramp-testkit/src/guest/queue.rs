//! The common parts of all queues: a ring in guest memory, and eventfds for kicks, interrupts and errors.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::frontend::Vring;
use crate::memory::GuestMemory;
use crate::ring::{RingOptions, Used, Virtqueue};
use crate::wait::Deadline;

/// The numbers of signals on a queue's eventfds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Number of kicks by the driver.
    pub kicks: u64,
    /// Number of interrupts by the device.
    pub calls: u64,
    /// Number of errors reported by the device.
    pub errors: u64,
}

/// A ring and its eventfds.
#[derive(Debug)]
pub struct Queue {
    pub(super) memory: GuestMemory,
    pub(super) ring: Virtqueue,
    kick: EventFd,
    call: EventFd,
    err: EventFd,
    seen: Signals,
    interrupts: bool,
}

impl Queue {
    pub(super) fn new(memory: &GuestMemory, packed: bool, size: u16, options: RingOptions, interrupts: bool) -> Self {
        let eventfd =
            || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).expect("making an eventfd");
        let mut queue = Self {
            memory: memory.clone(),
            ring: Virtqueue::new(memory, packed, size, options),
            kick: eventfd(),
            call: eventfd(),
            err: eventfd(),
            seen: Signals::default(),
            interrupts,
        };
        queue.set_interrupts();
        queue
    }

    fn set_interrupts(&mut self) {
        if !self.interrupts {
            self.ring.disable_interrupts();
        }
    }

    /// Returns the description of the queue for a backend, as vring `index` with the start position `base`.
    pub(super) fn vring(&self, index: u32, base: u32) -> Vring<'_> {
        let [kick, call, err] = [&self.kick, &self.call, &self.err].map(AsFd::as_fd);
        Vring { index, size: self.ring.size(), base, addresses: self.ring.addresses(), kick, call, err }
    }

    /// Publishes added chains, and kicks if the device requested a kick. Returns true after a kick.
    pub fn publish(&mut self) -> bool {
        let wanted = self.ring.publish();
        if wanted {
            self.kick();
        }
        wanted
    }

    /// Kicks the device, even if the device did not request a kick.
    pub fn kick(&mut self) {
        self.kick.write(1).expect("kicking the device");
        self.seen.kicks += 1;
    }

    /// Returns the numbers of kicks, interrupts and errors so far.
    pub fn signals(&mut self) -> Signals {
        self.seen.calls += drain(&self.call);
        self.seen.errors += drain(&self.err);
        self.seen
    }

    /// Waits for the next used chain. Sleeps between interrupts if the queue uses interrupts, else polls. Panics if an
    /// interrupt is missing.
    pub(super) fn wait_used(&mut self, timeout: Duration) -> Option<Used> {
        let deadline = Deadline::after(timeout);
        if !self.interrupts {
            return deadline.look_for(|| self.ring.take_used());
        }
        loop {
            if let Some(used) = self.ring.take_used() {
                return Some(used);
            }
            if self.ring.enable_interrupts() {
                continue;
            }
            let called = deadline.wait_for(&self.call, PollFlags::POLLIN);
            self.signals();
            if !called {
                let late = self.ring.take_used().is_some();
                assert!(!late, "the device used a chain within {timeout:?} and sent no interrupt for it");
                return None;
            }
        }
    }

    /// Returns all visible used chains that were not yet taken from the ring. A later call that takes chains still
    /// returns these chains.
    pub fn snoop_used(&mut self) -> Vec<Used> {
        self.ring.snoop_used()
    }

    /// Returns the number of chains in flight: the chains that the device has not used yet, and the used chains that
    /// were not yet taken from the ring.
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Returns the ring, for raw access. Chains added by the test through raw access have the test's buffers. For such
    /// chains, the queue neither assembles the device's bytes nor reuses the buffers.
    pub fn ring(&mut self) -> &mut Virtqueue {
        &mut self.ring
    }

    pub(super) fn move_to(&mut self, memory: &GuestMemory) {
        self.memory = memory.clone();
        self.ring.move_to(memory);
    }

    pub(super) fn reset(&mut self) {
        self.ring.reset();
        self.set_interrupts();
    }
}

/// Reads and clears an eventfd's counter.
fn drain(fd: &EventFd) -> u64 {
    match fd.read() {
        Ok(count) => count,
        Err(Errno::EAGAIN) => 0,
        Err(error) => panic!("reading an eventfd: {error}"),
    }
}
