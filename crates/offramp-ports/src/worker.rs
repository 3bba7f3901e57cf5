//! A thread that drives tasks, and sleeps when there is nothing to do.
//!
//! One worker may drive several tasks in turn, also both ends of one cable: a frame then crosses from
//! host to host without leaving the processor's cache. It sleeps in one `ppoll` over the tasks'
//! descriptors and an `eventfd` by which other threads (the other end of a cable) wake it.

use crate::bell::Bell;
use crate::sys::cpu;
use crate::sys::sandbox::{Sandbox, ThreadKind};
use nix::poll::{PollFd, PollFlags};
use nix::sys::prctl::set_timerslack;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};
use offramp_adapter::cable::CableEnd;
pub use offramp_adapter::host_io::HostIo;
use offramp_adapter::pair::QueuePair;
use offramp_adapter::port::{Line, PortError};
use offramp_offload::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use offramp_offload::sync::lock;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep: a guard against a lost wake-up. Five hundred ports that are polled for nothing take 2 ms.
pub const SLEEP_MAX: Duration = Duration::from_secs(10);
/// Poll interval for a host without announcements, such as a guest whose ring has no kick.
pub const LOOK: Duration = Duration::from_millis(10);
/// Timer slack of a sleep in nanoseconds: the smallest value allowed. The kernel's default of 50 us is longer than
/// moderation delays most interrupts.
const TIMER_SLACK_NS: u64 = 1;

/// The time a worker polls for more before it sleeps. Polling costs a processor; a wake-up costs the guest a
/// kick and the frame some microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Not at all.
    #[default]
    Off,
    /// Always this long.
    Fixed(Duration),
    /// Not at all while frames come rarely; up to this long while they come again soon after a sleep began.
    Adaptive(Duration),
}

impl Polling {
    /// Returns the stronger of two settings, for two ports in one thread: fixed before adaptive, then the longer time.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let strength = |polling| match polling {
            Self::Off => (0, Duration::ZERO),
            Self::Adaptive(time) => (1, time),
            Self::Fixed(time) => (2, time),
        };
        if strength(other) > strength(self) { other } else { self }
    }
}

/// The time to poll before the next sleep. It doubles after a sleep no longer than the longest time allowed, and
/// returns to 0 after a longer one.
#[derive(Clone, Copy, Debug)]
struct PollTime {
    now: Duration,
    polling: Polling,
}

/// The first step of an adaptive poll time after 0.
const POLL_TIME_MIN: Duration = Duration::from_micros(4);

impl PollTime {
    fn new(polling: Polling) -> Self {
        let now = if let Polling::Fixed(time) = polling { time } else { Duration::ZERO };
        Self { now, polling }
    }

    /// Adopts a poll setting; its time starts over if the setting is new.
    fn follow(&mut self, polling: Polling) {
        if polling != self.polling {
            *self = Self::new(polling);
        }
    }

    /// Adapts the time to a sleep that is over.
    fn slept(&mut self, sleep: Duration) {
        if let Polling::Adaptive(max) = self.polling {
            let grown = (self.now * 2).max(POLL_TIME_MIN).min(max);
            self.now = if sleep <= max { grown } else { Duration::ZERO };
        }
    }
}

/// A queue pair between a host and a cable.
pub type CablePair<H> = QueuePair<H, CableEnd>;

/// A unit of work for a worker.
#[auto_impl::auto_impl(Box)]
pub trait Task: Send {
    /// Moves a batch. Returns whether anything moved.
    ///
    /// # Errors
    /// [`PortError::Closed`] ends the task.
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError>;

    /// Asks all sources of work to wake the task: descriptors by being readable, other threads by `waker`. The
    /// worker polls once more before it sleeps.
    fn arm(&mut self, waker: &Waker);

    /// Takes back what [`Task::arm`] asked for.
    fn disarm(&mut self);

    /// Names the events that end a sleep from `now_ns` on.
    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>);
}

/// The events that end a worker's sleep.
#[derive(Debug)]
pub struct Watch<'a> {
    fds: Vec<PollFd<'a>>,
    wake_ns: u64,
}

impl<'a> Watch<'a> {
    /// Ends the sleep when a descriptor becomes readable.
    pub fn readable(&mut self, fd: BorrowedFd<'a>) {
        self.fds.push(PollFd::new(fd, PollFlags::POLLIN));
    }

    /// Ends the sleep when a host has something; `is_held` as in [`HostIo::watch`].
    pub fn host(&mut self, host: &'a impl HostIo, is_held: bool, now_ns: u64) {
        host.watch(is_held, &mut |fd| self.readable(fd));
        if host.is_unannounced() {
            self.until(now_ns + LOOK.as_nanos() as u64);
        }
    }

    /// Ends the sleep at a time, on the clock of [`Task::poll`].
    pub fn until(&mut self, at_ns: u64) {
        self.wake_ns = self.wake_ns.min(at_ns);
    }
}

impl<H: HostIo + Send, W: Line + Send> Task for QueuePair<H, W> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        H::poll_pair(self, now_ns, &thread_time_ns)
    }

    fn arm(&mut self, waker: &Waker) {
        self.register(waker);
        self.wire().register(waker);
        self.host_mut().arm();
    }

    fn disarm(&mut self) {
        self.wire().unregister();
        self.host_mut().disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        if let Some(at) = self.next_deadline_ns() {
            watch.until(at);
        }
        if self.wire_mut().room(now_ns) > 0 {
            watch.host(self.host(), self.is_host_held(), now_ns);
        } else if let Some(at) = self.wire().next_room_ns(now_ns) {
            // The host waits until the wire has room again.
            watch.until(at);
        }
    }
}

/// A running worker; it stops, and its thread ends, when this is dropped.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bell: Arc<Bell>,
    stop: AtomicBool,
    thread_id: AtomicI32,
    turns: AtomicU64,
    /// [`NO_TASK`] between two.
    task: AtomicUsize,
    polling: Mutex<Polling>,
}

const NO_TASK: usize = usize::MAX;
/// In no task, but asleep until somebody rings.
const ASLEEP: usize = NO_TASK - 1;

impl Shared {
    /// Records the task that the thread enters.
    #[inline]
    fn enter(&self, task: usize) {
        self.task.store(task, Ordering::Release);
    }

    /// Counts a turn. No other thread writes the counter.
    #[inline]
    fn count_turn(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// A worker's activity at one moment, for a watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// Grows by one with each round over all tasks, and after each sleep.
    pub turns: u64,
    /// It sleeps until there is something to do, for [`SLEEP_MAX`] at most.
    pub is_asleep: bool,
    /// The task that it drives, counted as they were given; `None` between two.
    pub task: Option<usize>,
}

/// The signal that interrupts a thread in a system call. A process without this handler ignores it.
const INTERRUPT: Signal = Signal::SIGURG;

extern "C" fn interrupted(_signal: libc::c_int) {}

/// Has [`INTERRUPT`] end system calls (`EINTR`).
fn handle_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let action = SigAction::new(SigHandler::Handler(interrupted), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        // It fails only for signals that cannot be handled; this one can.
        let _ = unsafe { sigaction(INTERRUPT, &action) };
    });
}

impl Worker {
    /// Starts a thread to drive `tasks`, on the processors `cpus` when given. The system shows 15 bytes of its
    /// `name`. It sleeps as soon as there is nothing to do.
    ///
    /// # Errors
    /// Returns an error if the thread or its descriptor cannot be made.
    pub fn start<T: Task + 'static>(name: &str, tasks: Vec<T>, cpus: Option<Vec<usize>>) -> io::Result<Self> {
        Self::start_polling(name, tasks, cpus, Polling::Off, Sandbox::default())
    }

    /// As [`Worker::start`], with polling before each sleep, in a sandbox.
    ///
    /// # Errors
    /// Returns the errors of [`Worker::start`].
    pub fn start_polling<T: Task + 'static>(
        name: &str,
        tasks: Vec<T>,
        cpus: Option<Vec<usize>>,
        polling: Polling,
        sandbox: Sandbox,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            bell: Arc::new(Bell::new()?),
            stop: AtomicBool::new(false),
            thread_id: AtomicI32::new(0),
            turns: AtomicU64::new(0),
            task: AtomicUsize::new(NO_TASK),
            polling: Mutex::new(polling),
        });
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            inside.thread_id.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            if let Some(cpus) = cpus {
                // Without the processor the speed changes, not the frames.
                let _ = cpu::pin_current_thread(&cpus);
            }
            // Without it sleeps end later, but no frame changes.
            let _ = set_timerslack(TIMER_SLACK_NS);
            sandbox.enter_thread(ThreadKind::Data);
            run(tasks.into_iter().enumerate().collect(), &inside, PollTime::new(polling));
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The kernel's number of the thread, 0 until it runs.
    pub fn thread_id(&self) -> i32 {
        self.shared.thread_id.load(Ordering::Acquire)
    }

    /// Returns the thread's activity now.
    pub fn pulse(&self) -> Pulse {
        let task = self.shared.task.load(Ordering::Acquire);
        let turns = self.shared.turns.load(Ordering::Relaxed);
        Pulse { turns, is_asleep: task == ASLEEP, task: Some(task).filter(|&task| task < ASLEEP) }
    }

    /// Interrupts the system call that the thread waits in (`EINTR`), if any. The thread goes on in any case.
    pub fn interrupt(&self) {
        handle_interrupts();
        let (process, thread) = (nix::unistd::getpid().as_raw(), self.thread_id());
        // The sandbox allows only tgkill with this process' id. The number of an ended thread names none, and the
        // kernel refuses the 0 from before the thread begins.
        // SAFETY: the call takes its arguments by value, and the signal's handler does nothing.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPT as libc::c_int) };
    }

    /// Has the thread make a turn soon if it sleeps, so that its tasks find a change.
    pub fn wake(&self) {
        self.shared.bell.ring();
    }

    /// Has the thread poll in this way from its next sleep on, and run on `cpus`.
    pub fn place(&self, cpus: &[usize], polling: Polling) {
        *lock(&self.shared.polling) = polling;
        let thread = self.thread_id();
        // Before the thread runs its id is 0, and 0 would pin the caller. It begins on the processors of its start.
        if thread != 0 {
            // As at the start, without the processor only the speed changes.
            let _ = cpu::pin_thread(thread, cpus);
        }
    }

    /// Returns whether the thread still runs; it ends by itself when all its tasks have ended.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Returns the nanoseconds since a moment common to all workers: both ends of a cable share this clock.
pub fn clock_ns() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Returns this thread's processor time in nanoseconds, the measure of an interrupt's cost. Wall time would also
/// count a woken thread that has the processor, perhaps for longer than the interrupt took. 0 if the kernel has no
/// such clock: an interrupt then counts as free.
pub(crate) fn thread_time_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Drives tasks with their numbers.
fn run<T: Task>(mut tasks: Vec<(usize, T)>, shared: &Shared, mut poll_time: PollTime) {
    let waker = Waker::from(Arc::clone(&shared.bell));
    let mut idle_since = None;
    while !shared.stop.load(Ordering::Acquire) && !tasks.is_empty() {
        let now_ns = clock_ns();
        if poll_all(&mut tasks, shared, now_ns) {
            idle_since = None;
            continue;
        }
        let idle = Duration::from_nanos(now_ns - *idle_since.get_or_insert(now_ns));
        if idle < poll_time.now {
            std::hint::spin_loop();
            continue;
        }
        idle_since = None;
        for (number, task) in &mut tasks {
            shared.enter(*number);
            task.arm(&waker);
        }
        // A frame between the last poll and the arming would not have rung.
        let now_ns = clock_ns();
        if !poll_all(&mut tasks, shared, now_ns) {
            shared.enter(ASLEEP);
            sleep(&mut tasks, &shared.bell, now_ns);
            // Before it enters a task, so that the watchdog does not report a long sleep as a stall.
            shared.count_turn();
            poll_time.slept(Duration::from_nanos(clock_ns() - now_ns));
            poll_time.follow(*lock(&shared.polling));
        }
        for (number, task) in &mut tasks {
            shared.enter(*number);
            task.disarm();
        }
        shared.bell.clear();
    }
}

/// Polls every task once and drops the tasks that ended. Returns whether any frame moved or a task ended: after the
/// last one there is nothing to sleep for.
fn poll_all<T: Task>(tasks: &mut Vec<(usize, T)>, shared: &Shared, now_ns: u64) -> bool {
    shared.count_turn();
    let mut moved = false;
    tasks.retain_mut(|(number, task)| {
        shared.enter(*number);
        match task.poll(now_ns) {
            Ok(progress) => {
                moved |= progress;
                true
            }
            Err(PortError::Closed(_)) => {
                moved = true;
                false
            }
            Err(_) => true,
        }
    });
    moved
}

fn sleep<T: Task>(tasks: &mut [(usize, T)], bell: &Bell, now_ns: u64) {
    let wake_ns = now_ns + SLEEP_MAX.as_nanos() as u64;
    let mut watch = Watch { fds: Vec::with_capacity(1 + tasks.len()), wake_ns };
    for (_, task) in tasks {
        task.watch(now_ns, &mut watch);
    }
    bell.sleep(watch.fds, Duration::from_nanos(watch.wake_ns.saturating_sub(now_ns)));
}

#[cfg(all(test, feature = "loom"))]
mod every_order;
#[cfg(test)]
mod tests;
