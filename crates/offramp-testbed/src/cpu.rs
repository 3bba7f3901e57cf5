//! How busy processors are, how far they are from each other, and what keeps them awake.

mod awake;
mod distance;
mod times;

pub use awake::AwakeCpus;
pub use distance::line_distance_ns;
pub use times::{CpuTime, CpuTimes, Worked, tick_us};
