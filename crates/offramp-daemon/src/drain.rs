//! Tasks that can be brought to rest without losing a frame.
//!
//! Rest has two phases. First each task stops taking frames from its host and sends the frames it holds: nothing new
//! gets on a wire from then on. Then each wire is emptied into its host.

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

/// Phases of all tasks on the way to rest.
const RUNNING: u8 = 0;
const SHUT: u8 = 1;
const EMPTYING: u8 = 2;

/// Longest time for a rest: a host without room must not keep the daemon.
const REST_MAX: Duration = Duration::from_secs(3);
/// Time between two checks whether all are at rest.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A host port of any kind: ports of one switch are a TAP, a guest and an interface side by side.
pub type AnyHost = Box<dyn HostIo + Send>;

/// The phase of all tasks, and the event to wake sleeping tasks at a change.
#[derive(Debug)]
pub struct Rest {
    phase: AtomicU8,
    /// Readable from the first phase on.
    bell: EventFd,
}

/// The progress of one task.
#[derive(Debug, Default)]
pub struct Mark {
    /// The last completed phase.
    reached: AtomicU8,
    /// The error number at its end; 0: it has not ended.
    ended: AtomicI32,
    /// The place of its stall, if any: the name of the port with that host, or empty outside of all hosts.
    stall: Mutex<Option<String>>,
}

impl Mark {
    /// Returns the error number if the host of a queue pair is gone for good.
    pub fn ended(&self) -> Option<i32> {
        Some(self.ended.load(Ordering::Relaxed)).filter(|&errno| errno != 0)
    }

    /// Returns the place of its thread's stall, if any: the name of a port, or empty.
    pub fn stall(&self) -> Option<String> {
        lock(&self.stall).clone()
    }

    /// Sets or clears the place of its thread's stall.
    pub fn set_stall(&self, stall: Option<String>) {
        *lock(&self.stall) = stall;
    }

    fn is_past(&self, phase: u8) -> bool {
        self.ended().is_some() || self.reached.load(Ordering::Acquire) >= phase
    }
}

impl Rest {
    /// Returns the state before any rest: tasks run.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { phase: AtomicU8::new(RUNNING), bell: EventFd::new()? }))
    }

    /// Returns the bell's descriptor: readable as soon as all tasks are to come to rest.
    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    /// Brings all tasks to rest. Returns whether every frame taken has gone out.
    pub fn bring_about(&self, marks: &[Arc<Mark>]) -> bool {
        let until = Instant::now() + REST_MAX;
        // A full counter rings already.
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

/// A task that can be brought to rest.
pub trait Drain: Task {
    /// Sets whether frames of hosts stay where they are.
    fn set_draining(&mut self, is_draining: bool);

    /// Returns whether the end of `phase` is reached after a poll. `moved`: the poll moved frames.
    fn is_drained(&self, phase: u8, moved: bool) -> bool;
}

impl<H: HostIo + Send, W: Line + Send> Drain for QueuePair<H, W> {
    fn set_draining(&mut self, is_draining: bool) {
        QueuePair::set_draining(self, is_draining);
    }

    /// Counts the frames on the wire only when no more can come.
    fn is_drained(&self, phase: u8, moved: bool) -> bool {
        self.held() == 0 && (phase != EMPTYING || (!moved && self.wire().is_idle()))
    }
}

impl Drain for Switch<AnyHost> {
    fn set_draining(&mut self, is_draining: bool) {
        Switch::set_draining(self, is_draining);
    }

    /// Returns `true` after a turn of all ports without a moved frame, if the switch holds no frame for an open port.
    fn is_drained(&self, _phase: u8, moved: bool) -> bool {
        let ports = self.control().ports();
        !moved && ports.iter().filter(|port| port.closed().is_none()).all(|port| self.held(port.index()) == 0)
    }
}

/// A task that records its rest and its end.
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
        // From then on it is polled until its thread is ended.
        if self.rest.phase() == RUNNING {
            self.task.watch(now_ns, watch);
        }
    }
}
