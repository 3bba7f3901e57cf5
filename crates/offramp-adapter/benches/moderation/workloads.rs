//! Frames of typical loads.

use crate::trial::Frame;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEED_DEFAULT: u64 = 1_988;
const SECOND_NS: u64 = 1_000_000_000;
const MILLISECOND_NS: u64 = 1_000_000;
/// Length of a request or a response, in bytes.
const SHORT_BYTES: u64 = 100;
/// Length of a full frame without FCS, in bytes.
const FULL_BYTES: u64 = 1514;
/// Line time of a full frame at 1 Gbit/s, in nanoseconds: 1538 byte times with preamble, FCS and gap.
const FULL_AT_1_GBIT_NS: u64 = 12_304;
/// Line time of a full frame at 10 Gbit/s, in nanoseconds.
const FULL_AT_10_GBIT_NS: u64 = 1230;
const REQUEST_NS: u64 = MILLISECOND_NS;
const BURST_FRAMES: u64 = 32;
const BURST_NS: u64 = 2 * MILLISECOND_NS;
/// Numbers of requests and of bulk frames that alternate: requests for 240 ms, and bulk frames for 10 ms.
const ALTERNATING_REQUESTS: u64 = 240;
const ALTERNATING_BULK: u64 = 813;

/// Number of frames in a burst between requests. The bursts fill half of a 1 Gbit/s line.
const MIXED_BURST_FRAMES: u64 = 10;
const MIXED_BURST_NS: u64 = 2 * MIXED_BURST_FRAMES * FULL_AT_1_GBIT_NS;
const MIXED_REQUEST_NS: u64 = MILLISECOND_NS / 4;

/// A named load.
pub struct Workload {
    pub name: &'static str,
    pub frames: Vec<Frame>,
}

/// Returns the loads, long enough to train the adaptive policies. A test uses a hundredth of each load.
pub fn all(is_test: bool) -> Vec<Workload> {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED_DEFAULT);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = |frames: usize| if is_test { frames / 100 } else { frames };
    let workload = |name, frames| Workload { name, frames };
    vec![
        workload("RPC 1 k/s", requests(0).take(count(20_000)).collect()),
        workload("Poisson 20 k/s", poisson(&mut rng, 20_000, count(200_000))),
        workload("bulk 1 Gbit/s", bulk(0).take(count(400_000)).collect()),
        workload("Poisson 600 k/s", poisson(&mut rng, 600_000, count(600_000))),
        workload("32-bursts", bursts().take(count(100_000)).collect()),
        workload("alternating", alternating().take(count(100_000)).collect()),
        workload("mixed", mixed(count(400_000))),
    ]
}

/// Returns one short frame per millisecond from `start_ns` on.
fn requests(start_ns: u64) -> impl Iterator<Item = Frame> {
    (0..).map(move |index| Frame { at_ns: start_ns + index * REQUEST_NS, bytes: SHORT_BYTES })
}

/// Returns full frames back to back at 1 Gbit/s.
fn bulk(start_ns: u64) -> impl Iterator<Item = Frame> {
    (0..).map(move |index| Frame { at_ns: start_ns + index * FULL_AT_1_GBIT_NS, bytes: FULL_BYTES })
}

/// Returns short, independent frames.
fn poisson(rng: &mut ChaCha8Rng, per_second: u64, count: usize) -> Vec<Frame> {
    let mean_ns = (SECOND_NS / per_second) as f64;
    let mut at_ns = 0.0;
    let mut frame = || {
        at_ns -= mean_ns * (1.0 - rng.random::<f64>()).ln();
        Frame { at_ns: at_ns as u64, bytes: SHORT_BYTES }
    };
    (0..count).map(|_| frame()).collect()
}

/// Returns 32 full frames back to back at 10 Gbit/s, every two milliseconds.
fn bursts() -> impl Iterator<Item = Frame> {
    let frame = |burst, index| Frame { at_ns: burst * BURST_NS + index * FULL_AT_10_GBIT_NS, bytes: FULL_BYTES };
    (0..).flat_map(move |burst| (0..BURST_FRAMES).map(move |index| frame(burst, index)))
}

/// Returns alternating requests and bulk data.
fn alternating() -> impl Iterator<Item = Frame> {
    const REQUESTS_NS: u64 = ALTERNATING_REQUESTS * REQUEST_NS;
    const TURN_NS: u64 = REQUESTS_NS + ALTERNATING_BULK * FULL_AT_1_GBIT_NS;
    (0..).map(|turn| turn * TURN_NS).flat_map(|start_ns| {
        let some_requests = requests(start_ns).take(ALTERNATING_REQUESTS as usize);
        some_requests.chain(bulk(start_ns + REQUESTS_NS).take(ALTERNATING_BULK as usize))
    })
}

/// Returns bursts that fill half of a 1 Gbit/s line, and short frames whose position drifts through the bursts.
fn mixed(frames: usize) -> Vec<Frame> {
    let bursts = (0..).flat_map(|burst| bulk(burst * MIXED_BURST_NS).take(MIXED_BURST_FRAMES as usize));
    let mut requests = (0..).map(|index| Frame { at_ns: index * MIXED_REQUEST_NS, bytes: SHORT_BYTES }).peekable();
    let mut mixed = Vec::with_capacity(frames);
    for full in bursts.take(frames) {
        // A request arrives at the time of the next full frame, directly before this frame.
        while let Some(request) = requests.next_if(|request| request.at_ns <= full.at_ns) {
            mixed.push(Frame { at_ns: full.at_ns, ..request });
        }
        mixed.push(full);
    }
    mixed
}
