//! Queue pairs that can be brought to rest without losing a frame.
//!
//! To rest in two phases: first nothing more is taken from any host, until no pair holds a frame it
//! took; nothing new gets on a line from then on. Then each line is emptied into its host.

use nix::sys::eventfd::EventFd;
use offramp_adapter::cable::CableEnd;
use offramp_adapter::pair::QueuePair;
use offramp_adapter::port::{Line, PortError};
use offramp_ports::worker::{HostIo, Task, Watch};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// How far all pairs are on their way to rest.
const RUNNING: u8 = 0;
const SHUT: u8 = 1;
const EMPTYING: u8 = 2;

/// Longest time that a rest may take: a host that takes nothing cannot keep the daemon.
const REST_MAX: Duration = Duration::from_secs(3);
/// Time between two looks at whether all are at rest.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The phase of all pairs, and what wakes those that sleep when it changes.
#[derive(Debug)]
pub struct Rest {
    phase: AtomicU8,
    /// Readable from the first phase on.
    bell: EventFd,
}

/// What one pair says of itself.
#[derive(Debug, Default)]
pub struct Mark {
    /// The last phase whose end it has reached.
    reached: AtomicU8,
    ended: AtomicBool,
}

impl Mark {
    /// Whether the pair's host is gone for good.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Notes that the end of a phase is reached.
    pub fn note(&self, phase: u8) {
        self.reached.store(phase, Ordering::Release);
    }

    fn is_past(&self, phase: u8) -> bool {
        self.has_ended() || self.reached.load(Ordering::Acquire) >= phase
    }
}

impl Rest {
    /// Pairs run.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { phase: AtomicU8::new(RUNNING), bell: EventFd::new()? }))
    }

    /// Readable as soon as all are to come to rest.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Whether all still run.
    pub fn is_running(&self) -> bool {
        self.phase() == RUNNING
    }

    /// How far all are on their way to rest.
    pub fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    /// Brings all pairs to rest; whether every frame that was taken has gone out.
    pub fn bring_about(&self, marks: &[Arc<Mark>]) -> bool {
        let until = Instant::now() + REST_MAX;
        // A full counter means that it rings already.
        let _ = self.bell.write(1);
        [SHUT, EMPTYING].into_iter().all(|phase| {
            self.phase.store(phase, Ordering::Release);
            while !marks.iter().all(|mark| mark.is_past(phase)) {
                if Instant::now() >= until {
                    return false;
                }
                thread::sleep(LOOK_INTERVAL);
            }
            true
        })
    }
}

/// Says that a host, or an interface on a wire, is gone for good.
pub fn say_gone(who: &str, error: PortError) {
    eprintln!("offramp: {who} is gone: {error}; it carries nothing any more");
}

/// A queue pair on a cable that says when it is at rest, and when its host is gone.
#[derive(Debug)]
pub struct RestingPair<H, W = CableEnd> {
    pair: QueuePair<H, W>,
    rest: Arc<Rest>,
    mark: Arc<Mark>,
    /// What a message calls its host.
    who: String,
}

impl<H: HostIo, W: Line> RestingPair<H, W> {
    /// `who` is what a message calls its host.
    pub fn new(pair: QueuePair<H, W>, rest: &Arc<Rest>, mark: &Arc<Mark>, who: String) -> Self {
        Self { pair, rest: Arc::clone(rest), mark: Arc::clone(mark), who }
    }

    /// Notes the phase whose end is reached. Nothing is held after a poll that moved nothing; a line may
    /// still hold frames, which only counts when no more can come.
    fn note(&self, phase: u8, moved: bool) {
        let at_rest = match phase {
            RUNNING => return,
            SHUT => self.pair.held() == 0,
            _ => !moved && self.pair.held() == 0 && self.pair.wire().is_idle(),
        };
        if at_rest {
            self.mark.note(phase);
        }
    }
}

impl<H: HostIo + Send, W: Line + Send> Task for RestingPair<H, W> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let phase = self.rest.phase();
        self.pair.set_draining(phase != RUNNING);
        let polled = Task::poll(&mut self.pair, now_ns);
        match polled {
            Ok(moved) => self.note(phase, moved),
            Err(error @ PortError::Closed(_)) => {
                say_gone(&self.who, error);
                self.mark.ended.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        polled
    }

    fn arm(&mut self, waker: &Waker) {
        self.pair.arm(waker);
    }

    fn disarm(&mut self) {
        self.pair.disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        watch.readable(self.rest.bell());
        // From then on it is polled until its thread is ended.
        if self.rest.phase() == RUNNING {
            self.pair.watch(now_ns, watch);
        }
    }
}
