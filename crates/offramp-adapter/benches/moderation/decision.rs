//! The cost of the decision per frame, and a check for allocations.

use crate::policies;
use offramp_adapter::moderation::Moderator;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The cost of an interrupt, in nanoseconds.
const INTERRUPT_NS: u64 = 10_000;
/// Distance between frames, in nanoseconds: full frames at 10 Gbit/s, and single frames.
const DISTANCES_NS: [u64; 2] = [1230, 1_000_000];
const FRAME_BYTES: u64 = 1514;
/// Number of frames in one sample. A sample takes some hundred microseconds, so the cost of reading the clock is
/// negligible.
const SAMPLE_FRAMES: u64 = 65_536;
/// Number of samples per policy. The median of the samples is reported.
const SAMPLES: usize = 101;

/// An allocator that counts every allocation of the process.
pub struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`; `System` allocated `at`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// A policy under an endless stream of frames. Without a moderator, only the loop is measured.
struct Stream {
    name: &'static str,
    moderator: Option<Moderator>,
    distance_ns: u64,
    now_ns: u64,
    samples_ns: Vec<f64>,
    interrupts: u64,
    allocations: u64,
}

impl Stream {
    fn new(name: &'static str, moderator: Option<Moderator>, distance_ns: u64, samples: usize) -> Self {
        let samples_ns = Vec::with_capacity(samples);
        Self { name, moderator, distance_ns, now_ns: 0, samples_ns, interrupts: 0, allocations: 0 }
    }

    fn sample(&mut self, frames: u64) {
        let times_ns = (1..=frames).map(|frame| self.now_ns + frame * self.distance_ns);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        let start = Instant::now();
        match &mut self.moderator {
            Some(moderator) => self.interrupts += decide(moderator, times_ns),
            None => {
                for now_ns in times_ns {
                    black_box((now_ns, FRAME_BYTES));
                }
            }
        }
        self.samples_ns.push(start.elapsed().as_nanos() as f64 / frames as f64);
        self.allocations += ALLOCATIONS.load(Ordering::Relaxed) - allocations;
        self.now_ns += frames * self.distance_ns;
    }

    fn median_ns(&mut self) -> f64 {
        self.samples_ns.sort_by(f64::total_cmp);
        self.samples_ns[self.samples_ns.len() / 2]
    }
}

/// Records the arrival of each frame, asks for the decision, and records a due interrupt. Returns the number of
/// interrupts.
fn decide(moderator: &mut Moderator, times_ns: impl Iterator<Item = u64>) -> u64 {
    let mut interrupts = 0;
    for now_ns in times_ns {
        let (now_ns, bytes) = black_box((now_ns, FRAME_BYTES));
        moderator.arrived(now_ns, bytes);
        if moderator.is_due(now_ns) {
            moderator.fired(now_ns);
            interrupts += 1;
        }
    }
    interrupts
}

/// Measures all policies, one sample of each in turn, and prints the medians.
pub fn measure(is_test: bool) {
    let (samples, frames) = if is_test { (1, 64) } else { (SAMPLES, SAMPLE_FRAMES) };
    for distance_ns in DISTANCES_NS {
        let stream = |(name, moderator)| Stream::new(name, Some(moderator), distance_ns, samples);
        let mut streams = vec![Stream::new("(the loop alone)", None, distance_ns, samples)];
        streams.extend(policies::all(INTERRUPT_NS).into_iter().map(stream));
        for _ in 0..samples {
            for stream in &mut streams {
                stream.sample(frames);
            }
        }
        println!("decision per frame, frames {distance_ns} ns apart, median of {samples} samples");
        println!("  {:<36} {:>8} {:>18} {:>12}", "policy", "ns", "interrupts/frame", "allocations");
        for stream in &mut streams {
            let median_ns = stream.median_ns();
            let interrupts = stream.interrupts as f64 / (samples as f64 * frames as f64);
            println!("  {:<36} {median_ns:>8.2} {interrupts:>18.3} {:>12}", stream.name, stream.allocations);
            assert_eq!(stream.allocations, 0, "{} allocates", stream.name);
        }
    }
}
