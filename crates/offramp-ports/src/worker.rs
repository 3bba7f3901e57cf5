//! A thread that polls tasks, and sleeps when no task has work.
//!
//! One worker can poll several tasks in turn, including both ends of one cable (a direct connection between two hosts).
//! If one worker polls both ends of a cable, a frame moves from host to host within the processor's cache. The worker
//! sleeps in one `ppoll` on the tasks' descriptors and an `eventfd`. Other threads, such as the thread at the opposite
//! end of a cable, wake the worker through the `eventfd`.

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

/// Maximum sleep, a safeguard against a lost wake-up. Polling 500 idle ports takes 2 ms.
pub const SLEEP_MAX: Duration = Duration::from_secs(10);
/// Poll interval for a host without notifications, such as a guest whose ring lacks a kick descriptor.
pub const LOOK: Duration = Duration::from_millis(10);
/// Timer slack of a sleep in nanoseconds: the smallest allowed value. The kernel's default of 50 us is longer than most
/// delays by interrupt moderation.
const TIMER_SLACK_NS: u64 = 1;

/// The time that a worker polls before it sleeps. Polling occupies a processor. A wake-up costs the guest a kick, and
/// delays the frame by some microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Never polls before a sleep.
    #[default]
    Off,
    /// Before each sleep, polls for this time.
    Fixed(Duration),
    /// Polls for at most this time, and only while frames arrive soon after a sleep begins.
    Adaptive(Duration),
}

impl Polling {
    /// Returns the setting with more polling, for two ports in one thread: `Fixed` before `Adaptive` before `Off`, then
    /// the longer time before the shorter time.
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

/// The time to poll before the next sleep. With `Polling::Adaptive`, the time doubles after a sleep no longer than the
/// maximum poll time, and returns to 0 after a longer sleep.
#[derive(Clone, Copy, Debug)]
struct PollTime {
    now: Duration,
    polling: Polling,
}

/// The smallest adaptive poll time above 0.
const POLL_TIME_MIN: Duration = Duration::from_micros(4);

impl PollTime {
    fn new(polling: Polling) -> Self {
        let now = if let Polling::Fixed(time) = polling { time } else { Duration::ZERO };
        Self { now, polling }
    }

    /// Adopts a poll setting. A changed setting resets the poll time.
    fn follow(&mut self, polling: Polling) {
        if polling != self.polling {
            *self = Self::new(polling);
        }
    }

    /// Adapts the poll time to the length of the last sleep.
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
    /// Moves a batch of frames. Returns whether any frame moved.
    ///
    /// # Errors
    /// Returns an error if the port fails. [`PortError::Closed`] ends the task.
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError>;

    /// Requests that each source of the task's work wakes the worker: descriptors become readable, and other threads
    /// call `waker`. The worker polls once more before it sleeps.
    fn arm(&mut self, waker: &Waker);

    /// Cancels the wake-ups requested by [`Task::arm`].
    fn disarm(&mut self);

    /// Registers the events that end a sleep starting at `now_ns`.
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

    /// Ends the sleep when a host has frames or messages. [`HostIo::watch`] explains `is_held`.
    pub fn host(&mut self, host: &'a impl HostIo, is_held: bool, now_ns: u64) {
        host.watch(is_held, &mut |fd| self.readable(fd));
        if host.is_unannounced() {
            self.until(now_ns + LOOK.as_nanos() as u64);
        }
    }

    /// Ends the sleep at `at_ns`, on the clock of [`Task::poll`].
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
            // The host's frames wait until the wire has room again.
            watch.until(at);
        }
    }
}

/// A running worker. Dropping the handle stops the worker and its thread.
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
    /// The index of the task being polled; [`NO_TASK`] between two tasks, [`ASLEEP`] during a sleep.
    task: AtomicUsize,
    polling: Mutex<Polling>,
}

const NO_TASK: usize = usize::MAX;
/// The value of `Shared::task` while the thread sleeps.
const ASLEEP: usize = NO_TASK - 1;

impl Shared {
    /// Records `task` as the task being polled.
    #[inline]
    fn enter(&self, task: usize) {
        self.task.store(task, Ordering::Release);
    }

    /// Counts a round over all tasks, or the end of a sleep. No other thread writes the counter.
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
    /// True if the worker sleeps. A sleep ends at the next event, or after [`SLEEP_MAX`].
    pub is_asleep: bool,
    /// Index of the task being polled, in the order given at the start. `None` between two tasks.
    pub task: Option<usize>,
}

/// The signal that interrupts a thread in a system call. A process without a handler ignores this signal.
const INTERRUPT: Signal = Signal::SIGURG;

extern "C" fn interrupted(_signal: libc::c_int) {}

/// Installs a handler, so that [`INTERRUPT`] ends system calls with `EINTR`.
fn handle_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let action = SigAction::new(SigHandler::Handler(interrupted), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing. The call fails only for signals that cannot be handled. SIGURG can be
        // handled.
        let _ = unsafe { sigaction(INTERRUPT, &action) };
    });
}

impl Worker {
    /// Starts a thread that polls `tasks`, pinned to the processors `cpus` if given. The thread's name is `name`, of
    /// which the system shows the first 15 bytes. The thread sleeps as soon as no task has work.
    ///
    /// # Errors
    /// Returns an error if the thread or the eventfd cannot be created.
    pub fn start<T: Task + 'static>(name: &str, tasks: Vec<T>, cpus: Option<Vec<usize>>) -> io::Result<Self> {
        Self::start_polling(name, tasks, cpus, Polling::Off, Sandbox::default())
    }

    /// Starts a worker like [`Worker::start`], in a sandbox, and with polling before each sleep.
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
                // A failed pinning affects only the speed.
                let _ = cpu::pin_current_thread(&cpus);
            }
            // If the kernel refuses the smaller timer slack, sleeps end later, but no frame is lost.
            let _ = set_timerslack(TIMER_SLACK_NS);
            sandbox.enter_thread(ThreadKind::Data);
            run(tasks.into_iter().enumerate().collect(), &inside, PollTime::new(polling));
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the kernel's id of the thread, or 0 until the thread runs.
    pub fn thread_id(&self) -> i32 {
        self.shared.thread_id.load(Ordering::Acquire)
    }

    /// Returns the thread's current activity.
    pub fn pulse(&self) -> Pulse {
        let task = self.shared.task.load(Ordering::Acquire);
        let turns = self.shared.turns.load(Ordering::Relaxed);
        Pulse { turns, is_asleep: task == ASLEEP, task: Some(task).filter(|&task| task < ASLEEP) }
    }

    /// Interrupts the blocking system call of the thread, if any, with `EINTR`. The thread continues in any case.
    pub fn interrupt(&self) {
        handle_interrupts();
        let (process, thread) = (nix::unistd::getpid().as_raw(), self.thread_id());
        // The sandbox allows tgkill only with this process' id. The id of an ended thread matches no thread. Before the
        // thread runs, its id is 0, which tgkill(2) refuses. SAFETY: the call takes its arguments by value, and the
        // signal's handler does nothing.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPT as libc::c_int) };
    }

    /// Wakes the thread from a sleep, so that its tasks notice a change.
    pub fn wake(&self) {
        self.shared.bell.ring();
    }

    /// Sets the thread's poll setting from its next sleep on, and pins the thread to `cpus`.
    pub fn place(&self, cpus: &[usize], polling: Polling) {
        *lock(&self.shared.polling) = polling;
        let thread = self.thread_id();
        // Before the thread runs, its id is 0, and pinning id 0 would pin the caller. A thread that is not pinned here
        // keeps the processors given at its start.
        if thread != 0 {
            // A failed pinning affects only the speed.
            let _ = cpu::pin_thread(thread, cpus);
        }
    }

    /// Returns whether the thread still runs. The thread ends when all its tasks have ended.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already printed its message.
            let _ = thread.join();
        }
    }
}

/// Returns the nanoseconds since a start time common to all workers, so that both ends of a cable share the clock.
pub fn clock_ns() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Returns this thread's processor time in nanoseconds, which measures the cost of an interrupt. Wall time would
/// include the run time of a woken thread that preempts this one. Returns 0 if the kernel has no clock for a thread's
/// processor time. A measured cost of 0 makes interrupts count as free.
pub(crate) fn thread_time_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Polls the numbered tasks until all have ended or the worker stops.
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
        // A frame that arrived between the last poll and [`Task::arm`] did not wake this worker, so poll once more.
        let now_ns = clock_ns();
        if !poll_all(&mut tasks, shared, now_ns) {
            shared.enter(ASLEEP);
            sleep(&mut tasks, &shared.bell, now_ns);
            // Count the turn before entering a task, so that the watchdog does not report a long sleep as a stall.
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

/// Polls every task once and drops the ended tasks. Returns true if any frame moved or any task ended: without tasks
/// the worker must not sleep.
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
