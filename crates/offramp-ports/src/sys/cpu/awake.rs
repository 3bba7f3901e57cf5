//! Keeps processors from sleeping while something else is measured.

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

use super::super::SysError;
use super::{current_thread, pin_current_thread};

/// The nicest priority. `/proc/stat` counts such threads as `nice`, apart from the measured work.
const NICEST: libc::c_int = 19;

/// One thread per processor that spins when nothing else wants to run (`SCHED_IDLE`, nice 19), so that
/// the processor neither halts nor slows down. Ends with this value.
#[derive(Debug)]
pub struct AwakeCpus {
    stop: Arc<AtomicBool>,
    spinners: Vec<(i32, JoinHandle<()>)>,
}

impl AwakeCpus {
    /// Keeps these processors awake from now on.
    ///
    /// # Errors
    /// When one of them may not be used; none is kept awake then.
    pub fn start(cpus: &[usize]) -> io::Result<Self> {
        let mut awake = Self { stop: Arc::default(), spinners: Vec::new() };
        for &cpu in cpus {
            awake.spin_on(cpu)?;
        }
        Ok(awake)
    }

    /// The numbers of the spinning threads, to set their time apart.
    pub fn threads(&self) -> impl Iterator<Item = i32> {
        self.spinners.iter().map(|(thread, _)| *thread)
    }

    fn spin_on(&mut self, cpu: usize) -> io::Result<()> {
        let stop = Arc::clone(&self.stop);
        let (ready, started) = sync_channel(1);
        let spinner = Builder::new().name("ofr-awake".into()).spawn(move || {
            let prepared = pin_current_thread(&[cpu]).and_then(|()| be_idle());
            let failed = prepared.is_err();
            // Nobody listens only when the starter has gone; then there is nothing to keep awake for.
            if ready.send(prepared.map(|()| current_thread())).is_ok() && !failed {
                spin_until(&stop);
            }
        })?;
        let prepared = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        self.spinners.push((*prepared.as_ref().unwrap_or(&0), spinner));
        prepared.map(|_| ())
    }
}

impl Drop for AwakeCpus {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for (_, spinner) in self.spinners.drain(..) {
            // A spinner cannot panic, and a drop has nobody to tell.
            let _ = spinner.join();
        }
    }
}

fn spin_until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        spin_loop();
    }
}

/// Lets the calling thread run only when nothing else wants to.
fn be_idle() -> io::Result<()> {
    // SAFETY: setpriority takes its arguments by value; 0 is the calling thread on Linux.
    let nice = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICEST) };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_setscheduler reads one `sched_param`, which lives through the call.
    let idle = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if nice == 0 && idle == 0 {
        Ok(())
    } else {
        Err(SysError::new("giving a thread idle priority", io::Error::last_os_error()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cpu::{online, thread_cpu_ns_of};

    #[test]
    fn processors_are_kept_awake_until_the_value_is_dropped() {
        let awake = AwakeCpus::start(&online()).unwrap();
        let threads: Vec<i32> = awake.threads().collect();
        assert_eq!(threads.len(), online().len());
        while threads.iter().any(|&t| thread_cpu_ns_of(t).unwrap() == 0) {
            std::thread::yield_now();
        }
        drop(awake);
        // A thread that was joined has ended, but the kernel may still be taking its number away.
        while threads.iter().any(|&t| thread_cpu_ns_of(t).is_ok()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_processor_that_does_not_exist_is_refused() {
        assert!(AwakeCpus::start(&[online()[0], 1_000_000]).is_err());
    }
}
