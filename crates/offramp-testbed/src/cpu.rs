//! Processors: the load of each processor, the cache-line latency between two processors, and threads that keep
//! processors awake.

mod awake;
mod distance;
mod others;
mod times;

pub use awake::AwakeCpus;
pub use distance::line_distance_ns;
pub use others::OtherPrograms;
pub use times::{CpuTime, CpuTimes, Worked, tick_us};
