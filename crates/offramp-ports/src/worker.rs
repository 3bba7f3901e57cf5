//! A thread that drives queue pairs, and sleeps when there is nothing to do.
//!
//! One worker may drive several pairs in turn, also both ends of one cable: a frame then crosses from
//! host to host without leaving the processor's cache. It sleeps in one `ppoll` over the hosts'
//! descriptors and an `eventfd` by which the other end of a cable wakes it.

use crate::sys::cpu;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use offramp_adapter::cable::CableEnd;
use offramp_adapter::pair::QueuePair;
use offramp_adapter::port::{HostPort, PortError, WirePort};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep: a guard against a lost wake-up, long enough to cost nothing.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A queue pair between a host and a cable.
pub type CablePair<H> = QueuePair<H, CableEnd>;

/// A descriptor that wakes a sleeping worker.
#[derive(Debug)]
struct Bell(EventFd);

impl Bell {
    fn new() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
    }

    fn ring(&self) {
        // A full counter means that it rings already.
        let _ = self.0.write(1);
    }

    fn silence(&self) {
        // Empty: nobody rang.
        let _ = self.0.read();
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
}

impl Worker {
    /// Starts a thread of that name (15 bytes are shown by the system) that drives `pairs`, on the
    /// processors `cpus` when given.
    ///
    /// # Errors
    /// When the thread or its descriptor cannot be made.
    pub fn start<H>(name: &str, pairs: Vec<CablePair<H>>, cpus: Option<Vec<usize>>) -> io::Result<Self>
    where
        H: HostPort + AsFd + Send + 'static,
    {
        let shared = Arc::new(Shared {
            bell: Arc::new(Bell::new()?),
            stop: AtomicBool::new(false),
            thread_id: AtomicI32::new(0),
        });
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            inside.thread_id.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            if let Some(cpus) = cpus {
                // A processor that cannot be had changes the speed, not what is carried.
                let _ = cpu::pin_current_thread(&cpus);
            }
            run(pairs, &inside);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The kernel's number of the thread, 0 until it runs.
    pub fn thread_id(&self) -> i32 {
        self.shared.thread_id.load(Ordering::Acquire)
    }

    /// Whether the thread still runs; it ends by itself when all its hosts are gone.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn run<H: HostPort + AsFd>(mut pairs: Vec<CablePair<H>>, shared: &Shared) {
    let epoch = Instant::now();
    let waker = Waker::from(Arc::clone(&shared.bell));
    while !shared.stop.load(Ordering::Acquire) && !pairs.is_empty() {
        if poll_all(&mut pairs, epoch.elapsed().as_nanos() as u64) {
            continue;
        }
        for pair in &pairs {
            pair.wire().register(&waker);
        }
        // What came between the last poll and the registration would not have rung.
        let now_ns = epoch.elapsed().as_nanos() as u64;
        if !poll_all(&mut pairs, now_ns) {
            sleep(&mut pairs, &shared.bell, now_ns);
        }
        for pair in &pairs {
            pair.wire().unregister();
        }
        shared.bell.silence();
    }
}

/// Polls every pair once; whether any frame moved. A pair whose host is gone is given up.
fn poll_all<H: HostPort>(pairs: &mut Vec<CablePair<H>>, now_ns: u64) -> bool {
    let mut moved = false;
    pairs.retain_mut(|pair| match pair.poll(now_ns) {
        Ok(progress) => {
            moved |= progress.moved;
            true
        }
        Err(PortError::Closed(_)) => false,
        Err(_) => true,
    });
    moved
}

fn sleep<H: HostPort + AsFd>(pairs: &mut [CablePair<H>], bell: &Bell, now_ns: u64) {
    let mut wake_ns = now_ns + SLEEP_MAX.as_nanos() as u64;
    let mut has_room = Vec::with_capacity(pairs.len());
    for pair in pairs.iter_mut() {
        wake_ns = pair.next_deadline_ns().map_or(wake_ns, |at| wake_ns.min(at));
        let room = pair.wire_mut().room(now_ns) > 0;
        if !room {
            // The host waits until the line is free again.
            wake_ns = pair.wire().next_room_ns(now_ns).map_or(wake_ns, |at| wake_ns.min(at));
        }
        has_room.push(room);
    }
    let mut fds = vec![PollFd::new(bell.0.as_fd(), PollFlags::POLLIN)];
    fds.extend(
        pairs
            .iter()
            .zip(has_room)
            .filter(|(_, room)| *room)
            .map(|(pair, _)| PollFd::new(pair.host().as_fd(), PollFlags::POLLIN)),
    );
    let timeout = TimeSpec::from_duration(Duration::from_nanos(wake_ns.saturating_sub(now_ns)));
    match ppoll(&mut fds, Some(timeout), None) {
        Ok(_) | Err(Errno::EINTR) => {}
        // Nothing else can happen to descriptors that are owned here; do not spin if it does.
        Err(_) => std::thread::sleep(Duration::from_millis(1)),
    }
}
