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
use offramp_adapter::pair::QueuePair;
use offramp_adapter::port::{HostPort, Line, PortError, WirePort};
use offramp_impair::fault::{Reverse, VerdictFault};
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

/// A host port that a worker can sleep on.
pub trait HostIo: HostPort {
    /// Asks the host to make a descriptor readable when it has something. The caller polls once more
    /// before it sleeps: a frame from before this call does not show.
    fn arm(&mut self);

    /// Takes back what [`HostIo::arm`] asked for, and empties the descriptors.
    fn disarm(&mut self);

    /// Names each descriptor that becomes readable when the host has something. If `is_held`, something other than a
    /// frame: the host's frames wait for its limit.
    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>));

    /// Returns true if the host may have something and yet no descriptor becomes readable. The worker then polls it
    /// each [`LOOK`].
    fn is_unannounced(&self) -> bool {
        false
    }

    /// Moves a batch of a queue pair with this host. Returns whether anything moved. A decorator with nothing to add
    /// has the host inside polled.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    fn poll_pair<W: WirePort>(pair: &mut QueuePair<Self, W>, now_ns: u64) -> Result<bool, PortError>
    where
        Self: Sized,
    {
        Ok(pair.poll_timed(now_ns, &thread_time_ns)?.moved)
    }
}

impl<H: HostIo + ?Sized> HostIo for Box<H> {
    fn arm(&mut self) {
        (**self).arm();
    }

    fn disarm(&mut self) {
        (**self).disarm();
    }

    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        (**self).watch(is_held, watch);
    }

    fn is_unannounced(&self) -> bool {
        (**self).is_unannounced()
    }
}

/// Has a decorator sleep on the descriptors of its host.
macro_rules! sleep_on_host {
    ($decorator:ident) => {
        impl<H: HostIo> HostIo for $decorator<H> {
            fn arm(&mut self) {
                self.host.arm();
            }

            fn disarm(&mut self) {
                self.host.disarm();
            }

            fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
                self.host.watch(is_held, watch);
            }

            fn is_unannounced(&self) -> bool {
                self.host.is_unannounced()
            }
        }
    };
}

sleep_on_host!(Reverse);
sleep_on_host!(VerdictFault);

/// A unit of work for a worker.
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
        H::poll_pair(self, now_ns)
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

impl Task for Box<dyn Task> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        (**self).poll(now_ns)
    }

    fn arm(&mut self, waker: &Waker) {
        (**self).arm(waker);
    }

    fn disarm(&mut self) {
        (**self).disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        (**self).watch(now_ns, watch);
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
    /// Grows with each turn of all tasks.
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
    /// When the thread or its descriptor cannot be made.
    pub fn start<T: Task + 'static>(name: &str, tasks: Vec<T>, cpus: Option<Vec<usize>>) -> io::Result<Self> {
        Self::start_polling(name, tasks, cpus, Polling::Off, Sandbox::default())
    }

    /// As [`Worker::start`], with polling before each sleep, in a sandbox.
    ///
    /// # Errors
    /// As [`Worker::start`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::os::fd::OwnedFd;

    /// A task in a blocking read of a pipe.
    struct Waiting {
        pipe: OwnedFd,
        interrupts: Arc<AtomicUsize>,
    }

    /// A task that never has anything to do.
    struct Idle;

    impl Task for Waiting {
        fn poll(&mut self, _now_ns: u64) -> Result<bool, PortError> {
            match nix::unistd::read(&self.pipe, &mut [0]) {
                Err(Errno::EINTR) => {
                    self.interrupts.fetch_add(1, Ordering::Relaxed);
                    Ok(true)
                }
                _ => Err(PortError::Closed(libc::EPIPE)),
            }
        }

        fn arm(&mut self, _waker: &Waker) {}

        fn disarm(&mut self) {}

        fn watch<'a>(&'a mut self, _now_ns: u64, _watch: &mut Watch<'a>) {}
    }

    impl Task for Idle {
        fn poll(&mut self, _now_ns: u64) -> Result<bool, PortError> {
            Ok(false)
        }

        fn arm(&mut self, _waker: &Waker) {}

        fn disarm(&mut self) {}

        fn watch<'a>(&'a mut self, _now_ns: u64, _watch: &mut Watch<'a>) {}
    }

    #[test]
    fn a_worker_says_which_task_it_is_in_and_can_be_interrupted_there() {
        let (pipe, other_end) = nix::unistd::pipe().unwrap();
        let interrupts = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<Box<dyn Task>> =
            vec![Box::new(Idle), Box::new(Waiting { pipe, interrupts: Arc::clone(&interrupts) })];
        let worker = Worker::start("waiting", tasks, None).unwrap();
        while worker.pulse().task != Some(1) {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            let (seen, Pulse { turns, .. }) = (interrupts.load(Ordering::Relaxed), worker.pulse());
            // The thread may have been outside of the call, and an earlier interrupt may be counted here.
            while interrupts.load(Ordering::Relaxed) == seen || worker.pulse().turns == turns {
                worker.interrupt();
                std::thread::yield_now();
            }
        }
        // The task ends; the other one goes on.
        drop(other_end);
        let Pulse { turns, .. } = worker.pulse();
        while worker.pulse().turns < turns + 3 {
            std::thread::yield_now();
        }
        assert!(worker.is_running() && worker.pulse().task != Some(1));
    }

    #[test]
    fn an_adaptive_poll_time_grows_while_sleeps_are_short_and_is_forgotten_after_a_long_one() {
        let max = Duration::from_micros(50);
        let mut time = PollTime::new(Polling::Adaptive(max));
        assert_eq!(time.now, Duration::ZERO);
        let grown: Vec<_> = (0..6)
            .map(|_| {
                time.slept(max);
                time.now.as_micros()
            })
            .collect();
        assert_eq!(grown, [4, 8, 16, 32, 50, 50]);
        time.slept(max + Duration::from_nanos(1));
        assert_eq!(time.now, Duration::ZERO);
    }

    #[test]
    fn two_ports_in_one_thread_are_polled_as_the_more_demanding_one_asks() {
        let (short, long) = (Duration::from_micros(1), Duration::from_micros(9));
        let rising = [Polling::Off, Polling::Adaptive(short), Polling::Adaptive(long), Polling::Fixed(short)];
        for (n, weaker) in rising.iter().enumerate() {
            for stronger in &rising[n..] {
                assert_eq!((weaker.or(*stronger), stronger.or(*weaker)), (*stronger, *stronger));
            }
        }
    }

    #[test]
    fn a_fixed_poll_time_stays() {
        let mut time = PollTime::new(Polling::Off);
        time.follow(Polling::Fixed(Duration::from_micros(7)));
        for sleep in [Duration::ZERO, Duration::from_secs(1)] {
            time.slept(sleep);
            assert_eq!(time.now, Duration::from_micros(7));
        }
        assert_eq!(PollTime::new(Polling::Off).now, Duration::ZERO);
    }
}

#[cfg(all(test, feature = "loom"))]
mod every_order {
    use super::*;
    use loom::thread;
    use offramp_adapter::cable::{CableConfig, cable};
    use offramp_adapter::config::AdapterConfig;
    use offramp_adapter::moderation::{ModerationConfig, Policy};
    use offramp_adapter::pair::PortControl;
    use offramp_adapter::port::{InterruptCounts, Interrupts, WirePort};
    use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
    use offramp_offload::caps::Offloads;
    use offramp_offload::frame::Frame;
    use offramp_offload::meta::RxMeta;

    /// Bytes of the shortest frame.
    const FRAME_LEN: usize = 60;
    /// A setting that differs from every port's first one.
    const CHANGED: ModerationConfig = ModerationConfig { policy: Policy::Off, ring_guard_frames: 77 };

    fn shared() -> Arc<Shared> {
        let bell = Arc::new(Bell::new().unwrap());
        Arc::new(Shared {
            bell,
            stop: AtomicBool::new(false),
            thread_id: AtomicI32::new(0),
            turns: AtomicU64::new(0),
            task: AtomicUsize::new(NO_TASK),
            polling: Mutex::default(),
        })
    }

    fn drive<T: Task>(task: T, shared: &Shared) {
        run(vec![(0, task)], shared, PollTime::new(Polling::Off));
    }

    fn closed() -> PortError {
        PortError::Closed(1)
    }

    /// A host that ends its worker as soon as it is polled, or as its moderation has changed.
    struct Host {
        shared: Arc<Shared>,
        ends_when_polled: bool,
    }

    impl HostPort for Host {
        fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
            if self.ends_when_polled {
                self.shared.end();
            }
            Ok(false)
        }

        fn tx_frame(&mut self) -> Frame<'_> {
            Frame::received(&mut [])
        }

        fn rx_deliver(&mut self, _meta: &RxMeta, _frame: &[u8]) -> Result<(), PortError> {
            Ok(())
        }

        fn rx_flush(&mut self, _now_ns: u64) {}

        fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
            Some(self)
        }

        fn accepts(&self) -> Offloads {
            Offloads::empty()
        }

        fn honours_data_valid(&self) -> bool {
            true
        }
    }

    impl Interrupts for Host {
        fn moderate(&mut self, config: &ModerationConfig) {
            self.ends_when_polled |= *config == CHANGED;
        }

        fn send_due(&mut self, _now_ns: u64) -> InterruptCounts {
            InterruptCounts::default()
        }

        fn next_due_ns(&self) -> Option<u64> {
            None
        }

        fn cost_ns(&self) -> u64 {
            0
        }

        fn wait_max_ns(&self) -> u64 {
            0
        }
    }

    impl HostIo for Host {
        fn arm(&mut self) {}

        fn disarm(&mut self) {}

        fn watch<'a>(&'a self, _is_held: bool, _watch: &mut dyn FnMut(BorrowedFd<'a>)) {}
    }

    fn send_one(end: &mut CableEnd) -> bool {
        let is_lent = end.lend(FRAME_LEN, 1).is_some();
        if is_lent {
            end.put(FRAME_LEN, 1, 0);
            end.flush();
        }
        is_lent
    }

    /// Takes frames from a cable until it has all.
    struct Receiver {
        end: CableEnd,
        expected: usize,
    }

    impl Task for Receiver {
        fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
            let mut taken = 0;
            while self.end.take(now_ns).is_some() {
                taken += 1;
            }
            self.expected -= taken;
            if self.expected == 0 { Err(closed()) } else { Ok(taken > 0) }
        }

        fn arm(&mut self, waker: &Waker) {
            self.end.register(waker);
        }

        fn disarm(&mut self) {
            self.end.unregister();
        }

        fn watch<'a>(&'a mut self, _now_ns: u64, _watch: &mut Watch<'a>) {}
    }

    /// Puts one frame into a cable as soon as it has room.
    struct Transmitter(CableEnd);

    impl Task for Transmitter {
        fn poll(&mut self, _now_ns: u64) -> Result<bool, PortError> {
            if send_one(&mut self.0) { Err(closed()) } else { Ok(false) }
        }

        fn arm(&mut self, waker: &Waker) {
            self.0.register(waker);
        }

        fn disarm(&mut self) {
            self.0.unregister();
        }

        fn watch<'a>(&'a mut self, _now_ns: u64, _watch: &mut Watch<'a>) {}
    }

    #[test]
    fn a_worker_that_sleeps_wakes_for_each_frame_of_its_cable() {
        loom::model(|| {
            let (mut here, there) = cable(&CableConfig::default());
            let shared = shared();
            let worker = thread::spawn(move || {
                drive(Receiver { end: there, expected: 2 }, &shared);
            });
            assert!(send_one(&mut here) && send_one(&mut here));
            worker.join().unwrap();
        });
    }

    #[test]
    fn a_worker_that_sleeps_on_a_full_cable_wakes_when_it_has_room() {
        loom::model(|| {
            let (mut here, mut there) = cable(&CableConfig::default());
            while let Some(loan) = here.lend(FRAME_LEN, usize::MAX) {
                let count = (loan.bytes.len() - FRAME_LEN) / loan.stride + 1;
                here.put(FRAME_LEN, count, 0);
                here.flush();
            }
            let shared = shared();
            let worker = thread::spawn(move || drive(Transmitter(here), &shared));
            let mut taken = 0;
            // One more than a batch: taken frames go back with the first frame of the next batch.
            while taken < 65 && there.take(0).is_some() {
                taken += 1;
            }
            assert_eq!(taken, 65);
            worker.join().unwrap();
        });
    }

    #[test]
    fn a_pair_whose_worker_sleeps_has_a_changed_setting_at_once() {
        loom::model(|| {
            let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
            let (_here, there) = cable(&CableConfig::default());
            let shared = shared();
            let control = PortControl::new(&config);
            let host = Host { shared: Arc::clone(&shared), ends_when_polled: false };
            let pair = QueuePair::new(&config, &control, 0, host, there);
            let worker = thread::spawn(move || drive(pair, &shared));
            control.set_moderation(CHANGED);
            worker.join().unwrap();
        });
    }

    #[test]
    fn a_switch_whose_worker_sleeps_polls_a_port_that_is_added() {
        loom::model(|| {
            let config = SwitchConfig { ports_max: 1, stations_max: 1, ..SwitchConfig::default() };
            let switch = Switch::new(&config);
            let (shared, control) = (shared(), Arc::clone(switch.control()));
            let host = Host { shared: Arc::clone(&shared), ends_when_polled: true };
            let worker = thread::spawn(move || drive(switch, &shared));
            control.add(host, &PortConfig { stations_max: 1, ..PortConfig::default() }).unwrap();
            worker.join().unwrap();
        });
    }

    #[test]
    fn a_worker_that_sleeps_wakes_to_stop() {
        loom::model(|| {
            let (_here, there) = cable(&CableConfig::default());
            let shared = shared();
            let inside = Arc::clone(&shared);
            let worker = thread::spawn(move || {
                drive(Receiver { end: there, expected: 1 }, &inside);
            });
            shared.end();
            worker.join().unwrap();
        });
    }
}
