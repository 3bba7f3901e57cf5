//! Draining: stops the traffic of all tasks without losing a frame.
//!
//! Draining has two phases. In the first phase, each task stops fetching from its host and sends the frames that the
//! task holds. After the first phase, no task puts a further frame on a wire. In the second phase, each task delivers
//! all frames on its wire to its host.

use nix::sys::eventfd::EventFd;
use offramp_adapter::pair::QueuePair;
use offramp_adapter::port::{Line, PortError};
use offramp_adapter::switch::Switch;
use offramp_offload::sync::lock;
use offramp_ports::worker::{HostIo, Task, Watch};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// The phases in their order: no draining, the first phase, and the second phase.
const RUNNING: u8 = 0;
const SHUT: u8 = 1;
const EMPTYING: u8 = 2;

/// Maximum time for draining. After this time, a host that accepts no frames no longer delays the end of the daemon.
const REST_MAX: Duration = Duration::from_secs(3);
/// Time between two checks whether all tasks have completed a phase.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A host port of any kind. The ports of one switch may be of different kinds: a TAP, a guest and an interface.
pub type AnyHost = Box<dyn HostIo + Send>;

/// The current phase of all tasks, and the event that wakes sleeping tasks when draining starts.
#[derive(Debug)]
pub struct Rest {
    phase: AtomicU8,
    /// An event descriptor, readable from the first phase on.
    bell: EventFd,
}

/// The progress of one task.
#[derive(Debug, Default)]
pub struct Mark {
    /// The last phase completed by the task.
    reached: AtomicU8,
    /// The error number with which the task ended; 0 while the task runs.
    ended: AtomicI32,
    /// The location of the task's stall: the name of the port in whose host the thread stalls, or an empty string if it
    /// stalls outside of all hosts. `None` without a stall.
    stall: Mutex<Option<String>>,
}

impl Mark {
    /// Returns the error number if the host of the queue pair is gone for good; `None` while the host is present.
    pub fn ended(&self) -> Option<i32> {
        Some(self.ended.load(Ordering::Relaxed)).filter(|&errno| errno != 0)
    }

    /// Returns the location of the stall, as in the field `stall`; `None` without a stall.
    pub fn stall(&self) -> Option<String> {
        lock(&self.stall).clone()
    }

    /// Sets or clears the location of the stall.
    pub fn set_stall(&self, stall: Option<String>) {
        *lock(&self.stall) = stall;
    }

    fn is_past(&self, phase: u8) -> bool {
        self.ended().is_some() || self.reached.load(Ordering::Acquire) >= phase
    }
}

impl Rest {
    /// Creates the initial state, in which tasks run.
    ///
    /// # Errors
    /// Fails if the process has no free descriptor.
    pub fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { phase: AtomicU8::new(RUNNING), bell: EventFd::new()? }))
    }

    /// Returns the event descriptor, readable from the start of draining on.
    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    /// Drains all tasks. Returns whether every fetched frame was sent.
    pub fn bring_about(&self, marks: &[Arc<Mark>]) -> bool {
        let until = Instant::now() + REST_MAX;
        // Writing fails only if the event counter is full, and an event with a full counter is readable.
        let _ = self.bell.write(1);
        [SHUT, EMPTYING].into_iter().all(|phase| {
            self.phase.store(phase, Ordering::Release);
            while !marks.iter().all(|mark| mark.is_past(phase)) {
                if Instant::now() >= until {
                    return false;
                }
                thread::sleep(CHECK_INTERVAL);
            }
            true
        })
    }
}

/// A task that can be drained.
pub trait Drain: Task {
    /// Stops or resumes fetching frames from hosts.
    fn set_draining(&mut self, is_draining: bool);

    /// Returns whether the task has completed `phase`. `moved` must be true if the last poll moved frames.
    fn is_drained(&self, phase: u8, moved: bool) -> bool;
}

impl<H: HostIo + Send, W: Line + Send> Drain for QueuePair<H, W> {
    fn set_draining(&mut self, is_draining: bool) {
        QueuePair::set_draining(self, is_draining);
    }

    /// In the first phase, frames may remain on the wire, because the other end may still send frames.
    fn is_drained(&self, phase: u8, moved: bool) -> bool {
        self.held() == 0 && (phase != EMPTYING || (!moved && self.wire().is_idle()))
    }
}

impl Drain for Switch<AnyHost> {
    fn set_draining(&mut self, is_draining: bool) {
        Switch::set_draining(self, is_draining);
    }

    /// Returns `true` after a poll of all ports without a moved frame, if the switch holds no frame for an open port.
    fn is_drained(&self, _phase: u8, moved: bool) -> bool {
        let ports = self.control().ports();
        !moved && ports.iter().filter(|port| port.closed().is_none()).all(|port| self.held(port.index()) == 0)
    }
}

/// A task with draining. Its mark records the completed phases, and the error at the task's end.
pub struct Resting<T> {
    task: T,
    rest: Arc<Rest>,
    mark: Arc<Mark>,
}

impl<T: Drain> Resting<T> {
    pub fn new(task: T, rest: &Arc<Rest>, mark: &Arc<Mark>) -> Self {
        Self { task, rest: Arc::clone(rest), mark: Arc::clone(mark) }
    }
}

impl<T: Drain> Task for Resting<T> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let phase = self.rest.phase();
        self.task.set_draining(phase != RUNNING);
        let polled = self.task.poll(now_ns);
        match polled {
            Ok(moved) if phase != RUNNING && self.task.is_drained(phase, moved) => {
                self.mark.reached.store(phase, Ordering::Release);
            }
            Err(PortError::Closed(errno)) => {
                self.mark.ended.store(if errno == 0 { i32::MAX } else { errno }, Ordering::Relaxed);
            }
            _ => {}
        }
        polled
    }

    fn arm(&mut self, waker: &Waker) {
        self.task.arm(waker);
    }

    fn disarm(&mut self) {
        self.task.disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        watch.readable(self.rest.bell());
        // During draining, the task is polled without sleep, so it needs no events of its host.
        if self.rest.phase() == RUNNING {
            self.task.watch(now_ns, watch);
        }
    }
}
