//! The latency of a cache line between two processors.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use offramp_ports::sys::cpu::pin_current_thread;

/// Number of round trips between two clock readings.
const BATCH: u64 = 200;

/// A counter alone on two adjacent cache lines, because processors fetch adjacent lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Default)]
struct Court {
    ping: Line,
    pong: Line,
    stop: AtomicBool,
}

/// Returns the one-way latency of a cache line between two processors, in nanoseconds. The latency is half the median
/// round trip between two threads, one pinned to each processor. The threads exchange messages for about `duration`.
///
/// # Errors
/// Returns an error if both processors are the same, or a processor cannot be used.
pub fn line_distance_ns(cpu_a: usize, cpu_b: usize, duration: Duration) -> io::Result<f64> {
    if cpu_a == cpu_b {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a distance needs two processors"));
    }
    let court = Court::default();
    thread::scope(|scope| {
        let (ready, pinned) = sync_channel(1);
        let court = &court;
        scope.spawn(move || answer(court, cpu_b, &ready));
        let player = scope.spawn(move || {
            let measured = pinned
                .recv()
                .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
                .and_then(|()| pin_current_thread(&[cpu_a]))
                .map(|()| play(court, duration));
            court.stop.store(true, Ordering::Relaxed);
            measured
        });
        player.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Answers every ping until `court.stop` is set.
fn answer(court: &Court, cpu: usize, ready: &SyncSender<io::Result<()>>) {
    let pinned = pin_current_thread(&[cpu]);
    let failed = pinned.is_err();
    if ready.send(pinned).is_err() || failed {
        return;
    }
    let mut expected = 1;
    while !court.stop.load(Ordering::Relaxed) {
        if court.ping.0.load(Ordering::Acquire) == expected {
            court.pong.0.store(expected, Ordering::Release);
            expected += 1;
        }
    }
}

/// Measures batches of round trips for `duration`. Returns half the median round trip in nanoseconds. The first batch
/// is omitted, because the first ping may have to wake the answering thread.
fn play(court: &Court, duration: Duration) -> f64 {
    let mut round = 0;
    let mut trips_ns = Vec::new();
    let began = Instant::now();
    let mut last = began;
    while trips_ns.len() < 2 || began.elapsed() < duration {
        for _ in 0..BATCH {
            round += 1;
            court.ping.0.store(round, Ordering::Release);
            while court.pong.0.load(Ordering::Acquire) != round {
                spin_loop();
            }
        }
        let now = Instant::now();
        trips_ns.push((now - last).as_nanos() as f64 / BATCH as f64);
        last = now;
    }
    let trips_ns = &mut trips_ns[1..];
    let middle = trips_ns.len() / 2;
    *trips_ns.select_nth_unstable_by(middle, f64::total_cmp).1 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_ports::sys::cpu::online;

    #[test]
    fn two_processors_have_a_distance() {
        let cpus = online();
        if let [a, b, ..] = cpus[..] {
            let ns = line_distance_ns(a, b, Duration::from_millis(20)).unwrap();
            assert!(ns.is_finite() && ns > 0.0);
        }
    }

    #[test]
    fn a_processor_has_no_distance_to_itself_or_to_none() {
        let first = online()[0];
        assert!(line_distance_ns(first, first, Duration::ZERO).is_err());
        assert!(line_distance_ns(first, 1_000_000, Duration::ZERO).is_err());
    }
}
