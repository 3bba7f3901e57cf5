//! Tests of the worker's pulse and interrupts, and of the poll time.

use super::*;
use nix::errno::Errno;
use std::os::fd::OwnedFd;

/// A task that blocks in a read of a pipe.
struct Waiting {
    pipe: OwnedFd,
    interrupts: Arc<AtomicUsize>,
}

/// A task that never has work.
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
        // An interrupt has no effect while the thread is outside the read, so interrupt the thread repeatedly. The
        // first counted interrupt may be an earlier interrupt, so also wait for the next turn.
        while interrupts.load(Ordering::Relaxed) == seen || worker.pulse().turns == turns {
            worker.interrupt();
            std::thread::yield_now();
        }
    }
    // The waiting task ends, and the idle task continues.
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
