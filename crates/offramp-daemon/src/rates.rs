//! The rates of a port over the last second.

use crate::schema::Rates;
use offramp_adapter::stats::{Direction, Loss, QueueStats};
use offramp_offload::sync::lock;
use std::sync::Mutex;

const NANOSECONDS_PER_SECOND: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;

/// The rates of a port's queue pairs between the last two samples of its counters.
#[derive(Debug, Default)]
pub struct PortRates(Mutex<Vec<[Sampled; 2]>>);

/// The counters of one direction at the last sample, and the rates between the last two samples.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    at_ns: u64,
    frames: u64,
    bytes: u64,
    lost: u64,
    interrupts: u64,
    rates: Option<Rates>,
}

impl Sampled {
    fn next(self, direction: &Direction, at_ns: u64) -> Self {
        let (frames, bytes) = (direction.frames_out.get(), direction.bytes_out.get());
        let lost = Loss::ALL.iter().map(|&reason| direction.lost(reason)).sum();
        let interrupts = direction.interrupts.get();
        let seconds = at_ns.saturating_sub(self.at_ns) as f64 / NANOSECONDS_PER_SECOND;
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let rates = (self.at_ns > 0 && seconds > 0.0).then(|| Rates {
            frames_per_s: per_s(frames, self.frames),
            bits_per_s: per_s(bytes, self.bytes) * BITS_PER_BYTE,
            lost_per_s: per_s(lost, self.lost),
            interrupts_per_s: Some(per_s(interrupts, self.interrupts)),
        });
        Self { at_ns, frames, bytes, lost, interrupts, rates }
    }
}

impl PortRates {
    /// Reads the counters of all queue pairs at `now_ns`. The caller samples once per second.
    pub fn sample(&self, queues: &[QueueStats], now_ns: u64) {
        let mut sampled = lock(&self.0);
        sampled.resize(queues.len(), Default::default());
        for ([transmit, receive], stats) in sampled.iter_mut().zip(queues) {
            *transmit = transmit.next(&stats.transmit, now_ns);
            *receive = receive.next(&stats.receive, now_ns);
        }
    }

    /// Returns the rates of a queue pair, transmit and receive; `None` before the second sample.
    pub fn of(&self, queue: usize) -> [Option<Rates>; 2] {
        lock(&self.0).get(queue).map_or([None; 2], |sampled| sampled.map(|direction| direction.rates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_the_counts_between_two_samples_over_the_time_between_them() {
        let (rates, stats) = (PortRates::default(), [QueueStats::default()]);
        rates.sample(&stats, 1_000_000_000);
        assert_eq!(rates.of(0), [None; 2], "one sample has no rate");
        stats[0].transmit.frames_out.add(300);
        stats[0].transmit.bytes_out.add(4000);
        stats[0].transmit.lose(Loss::Drop, 2);
        rates.sample(&stats, 3_000_000_000);
        let [Some(transmit), Some(receive)] = rates.of(0) else { panic!("two samples have rates") };
        let Rates { frames_per_s, bits_per_s, lost_per_s, interrupts_per_s } = transmit;
        assert_eq!((frames_per_s, bits_per_s, lost_per_s, interrupts_per_s), (150.0, 16_000.0, 1.0, Some(0.0)));
        assert!(receive.frames_per_s.abs() < f64::EPSILON);
        assert_eq!(rates.of(1), [None; 2]);
    }
}
