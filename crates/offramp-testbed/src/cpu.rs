//! Processors: their load, the cache-line latency between them, and threads that keep them awake.

mod awake;
mod distance;
mod times;

pub use awake::AwakeCpus;
pub use distance::line_distance_ns;
pub use times::{CpuTime, CpuTimes, Worked, tick_us};
