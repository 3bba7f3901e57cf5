//! Pacing: the sender waits so that its rate does not exceed a limit.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;

use super::side::{Context, Phase};
use super::sockets::IO_TIMEOUT;

/// Maximum delay for which a sender compensates by faster sends. After a longer delay, the schedule restarts at the
/// present time.
const DEBT_MAX: Duration = Duration::from_millis(10);
/// Bits per byte × nanoseconds per second. Bytes × this constant / (bits per second) gives nanoseconds.
const BIT_NSECS_PER_BYTE: u128 = 8_000_000_000;
/// Timer slack of a paced thread in nanoseconds, the smallest possible. The kernel's default of 50 µs would increase
/// every latency, and 0 would select that default.
const TIMER_SLACK_NSECS: u64 = 1;

/// Sets the timer slack of the calling thread, so that the kernel does not wake it up to 50 µs late.
pub(super) fn wake_on_time() {
    // If the kernel refuses the timer slack, the thread wakes late, and the measured latencies include the delay.
    let _ = prctl::set_timerslack(TIMER_SLACK_NSECS);
}

/// The schedule of a paced sender.
pub(super) struct Pace {
    rate_bps: u64,
    due: Instant,
}

impl Pace {
    /// Starts the schedule of a sender now; a rate of 0 means no limit.
    pub(super) fn new(rate_bps: u64) -> Self {
        if rate_bps > 0 {
            wake_on_time();
        }
        Self { rate_bps, due: Instant::now() }
    }

    /// Waits until the next send is due. Returns `false` if the phase reaches [`Phase::Stop`] before this time.
    pub(super) fn wait(&mut self, context: &mut Context) -> bool {
        if self.rate_bps == 0 {
            return true;
        }
        loop {
            let now = Instant::now();
            if self.due <= now {
                if now - self.due > DEBT_MAX {
                    self.due = now;
                }
                return true;
            }
            if context.phase() >= Phase::Stop {
                return false;
            }
            thread::sleep((self.due - now).min(IO_TIMEOUT));
        }
    }

    /// Advances the schedule by the time of `len` sent bytes.
    pub(super) fn sent(&mut self, len: usize) {
        if self.rate_bps > 0 {
            self.due += time_of(len, self.rate_bps);
        }
    }
}

fn time_of(len: usize, rate_bps: u64) -> Duration {
    Duration::from_nanos((len as u128 * BIT_NSECS_PER_BYTE / u128::from(rate_bps)).try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_of_a_burst_is_its_bits_over_the_rate() {
        assert_eq!(time_of(1250, 10_000_000), Duration::from_millis(1));
        assert_eq!(time_of(65_507, 1), Duration::from_secs(524_056));
    }
}
