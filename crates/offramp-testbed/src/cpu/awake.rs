//! Threads that keep processors awake during a measurement.

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use offramp_ports::sys::cpu::{current_thread, pin_current_thread, set_idle_priority};

/// Maximum time between two clock readings of a spinning thread if no other work ran in between. A reading takes about
/// 50 ns, and an interrupt more than a microsecond.
const TURN_MAX: Duration = Duration::from_micros(1);

/// Threads that keep processors awake, one per processor. Each thread spins while nothing else wants to run
/// (`SCHED_IDLE`, nice 19), so that the processor neither halts nor slows down. The threads end when this value is
/// dropped.
#[derive(Debug)]
pub struct AwakeCpus {
    stop: Arc<AtomicBool>,
    spinners: Vec<Spinner>,
}

#[derive(Debug)]
struct Spinner {
    thread: i32,
    /// Time in which only this thread ran on its processor, in nanoseconds.
    idle_ns: Arc<AtomicU64>,
    handle: JoinHandle<()>,
}

impl AwakeCpus {
    /// Starts a thread on each processor in `cpus`. The thread keeps its processor awake.
    ///
    /// # Errors
    /// Returns an error if a processor cannot be used. After an error, no spinning thread remains.
    pub fn start(cpus: &[usize]) -> io::Result<Self> {
        let mut awake = Self { stop: Arc::default(), spinners: Vec::new() };
        for &cpu in cpus {
            awake.spin_on(cpu)?;
        }
        Ok(awake)
    }

    /// Returns the kernel thread numbers of the spinning threads, so that their time can be counted separately.
    pub fn threads(&self) -> impl Iterator<Item = i32> {
        self.spinners.iter().map(|spinner| spinner.thread)
    }

    /// Returns for each processor the nanoseconds since the start in which only the spinning thread ran. The results
    /// are in the order of the processors given to [`AwakeCpus::start`]. Interrupts count as other work. The processor
    /// time of the spinning thread would be too high, because most kernels charge an interrupt's time to the
    /// interrupted thread.
    pub fn idle_ns(&self) -> impl Iterator<Item = u64> {
        self.spinners.iter().map(|spinner| spinner.idle_ns.load(Ordering::Relaxed))
    }

    fn spin_on(&mut self, cpu: usize) -> io::Result<()> {
        let stop = Arc::clone(&self.stop);
        let (ready, started) = sync_channel(1);
        let idle_ns = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&idle_ns);
        let handle = Builder::new().name("ofr-awake".into()).spawn(move || {
            let prepared = pin_current_thread(&[cpu]).and_then(|()| set_idle_priority());
            let failed = prepared.is_err();
            // If the thread that starts the spinning threads has ended, the send fails, and the spinning thread is not
            // needed.
            if ready.send(prepared.map(|()| current_thread())).is_ok() && !failed {
                spin_until(&stop, &counter);
            }
        })?;
        let prepared = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        self.spinners.push(Spinner { thread: *prepared.as_ref().unwrap_or(&0), idle_ns, handle });
        prepared.map(|_| ())
    }
}

impl Drop for AwakeCpus {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for spinner in self.spinners.drain(..) {
            // A spinning thread cannot panic.
            let _ = spinner.handle.join();
        }
    }
}

/// Reads the clock until `stop` is set, and adds the intervals between two readings to `idle_ns`. Intervals longer than
/// `TURN_MAX` are not added, because other work ran during these intervals.
fn spin_until(stop: &AtomicBool, idle_ns: &AtomicU64) {
    let mut last = Instant::now();
    let mut idle = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        spin_loop();
        let now = Instant::now();
        if now - last < TURN_MAX {
            idle += now - last;
            idle_ns.store(idle.as_nanos() as u64, Ordering::Relaxed);
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_ports::sys::cpu::{online, thread_cpu_ns_of};

    #[test]
    fn processors_are_kept_awake_until_the_value_is_dropped() {
        let awake = AwakeCpus::start(&online()).unwrap();
        let threads: Vec<i32> = awake.threads().collect();
        assert_eq!(threads.len(), online().len());
        while threads.iter().any(|&t| thread_cpu_ns_of(t).unwrap() == 0) || awake.idle_ns().any(|idle| idle == 0) {
            std::thread::yield_now();
        }
        drop(awake);
        // The kernel may still list an ended thread briefly after `join`.
        while threads.iter().any(|&t| thread_cpu_ns_of(t).is_ok()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_runs_on_a_processor_that_is_kept_awake_is_not_its_idle_time() {
        let cpu = online()[0];
        let began = Instant::now();
        let awake = AwakeCpus::start(&[cpu]).unwrap();
        let worked = std::thread::spawn(move || {
            pin_current_thread(&[cpu]).unwrap();
            let (begin, me) = (Instant::now(), current_thread());
            while begin.elapsed() < Duration::from_millis(50) {
                spin_loop();
            }
            thread_cpu_ns_of(me).unwrap()
        });
        let worked_ns = worked.join().unwrap();
        let idle_ns = awake.idle_ns().next().unwrap();
        assert!(idle_ns + worked_ns <= began.elapsed().as_nanos() as u64, "{idle_ns} and {worked_ns}");
    }

    #[test]
    fn a_processor_that_does_not_exist_is_refused() {
        assert!(AwakeCpus::start(&[online()[0], 1_000_000]).is_err());
    }
}
