//! A bare relay: reads frames with their vnet header from one TAP and writes the frames to the other TAP.
//!
//! The relay is the baseline for two adapters: it does only the necessary work of a program between two TAPs. The relay
//! is no adapter: it forwards super-frames unsegmented, and has no wire.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};
use offramp_ports::sys::cpu;
use offramp_ports::tap::{FRAME_LEN_MAX, Tap, TapQueue};
use offramp_ports::vnet_hdr::HEADER_LEN;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Interval at which an idle relay checks its stop flag, in milliseconds.
const STOP_CHECK_MS: u16 = 50;

/// A running relay with one thread per direction. The relay stops on drop.
#[derive(Debug)]
pub struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Relays between the first queues of two TAPs, on the processors `cpus` if given.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started, or a TAP has no queue.
    pub fn start(a: &Tap, b: &Tap, cpus: Option<&[usize]>) -> io::Result<Self> {
        let mut relay = Self { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        for (from, to) in [(a, b), (b, a)] {
            let queue = |tap: &Tap| tap.queue(0).ok_or(io::Error::from(io::ErrorKind::NotFound));
            let (from, to, stop) = (queue(from)?, queue(to)?, Arc::clone(&relay.stop));
            let builder = std::thread::Builder::new().name("offramp-relay".to_owned());
            let cpus = cpus.map(<[usize]>::to_vec);
            relay.threads.push(builder.spawn(move || {
                if let Some(cpus) = cpus {
                    // A refused affinity changes the speed, not the data.
                    let _ = cpu::pin_current_thread(&cpus);
                }
                run(&from, &to, &stop);
            })?);
        }
        Ok(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread itself has reported its panic, if any.
            let _ = thread.join();
        }
    }
}

fn run(from: &TapQueue, to: &TapQueue, stop: &AtomicBool) {
    let mut buffer = vec![0; HEADER_LEN + FRAME_LEN_MAX];
    while !stop.load(Ordering::Relaxed) {
        match read(from.as_fd(), &mut buffer) {
            Ok(len) => {
                // The write to a full queue drops the frame, as a wire would.
                let _ = write(to.as_fd(), &buffer[..len]);
            }
            Err(Errno::EAGAIN) => {
                let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, PollTimeout::from(STOP_CHECK_MS));
            }
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}
