//! Lines and hosts that resist, for experiments and tests: each is a port in front of another port.
//!
//! | type | what it does |
//! |---|---|
//! | [`Slow`] | copies frames over a slow bus, one at a time, in both directions |
//! | [`Loss`] | loses one in so many frames on the line |
//! | [`Duplicate`] | brings one in so many frames twice |
//! | [`Delay`] | brings each frame later |
//! | [`Reverse`] | tells the host of groups of frames in the wrong order |
//! | [`VerdictFault`] | marks some good frames bad, or bad ones good |
//!
//! [`wire`] and [`host`] put all of them before a port, with the adapter's [memory](crate::memory) where a card has
//! it: behind the bus. A fault that is not configured passes everything on as it is; a port without any is faster
//! without them.

mod config;
mod host;
mod line;
mod slow;

pub use config::{
    BUS_BYTES_PER_SECOND, BusConfig, DELAY_NS, FRAME_NS, FaultConfig, FaultConfigError, ONE_IN, REVERSE_FRAMES,
    VerdictConfig, WrongVerdict,
};
pub use host::{Reverse, VerdictFault};
pub use line::{Delay, Duplicate, Loss};
pub use slow::Slow;

use crate::memory::{MemoryConfig, PacketMemory};
use offramp_adapter::port::{HostPort, Line};

/// A line with every fault of a line, an adapter's memory, and the bus to its host.
pub type Wire<W> = Slow<PacketMemory<Duplicate<Delay<Loss<W>>>>>;

/// A host with every fault of what is told to a host.
pub type Host<H> = Reverse<VerdictFault<H>>;

/// Of the seed, what keeps the frames that are doubled apart from those that are lost.
const DUPLICATE_SEED: u64 = 1 << 63;

/// Puts the faults of `faults` that concern the line, and a memory, before a line.
pub fn wire<W: Line>(line: W, faults: &FaultConfig, memory: &MemoryConfig) -> Wire<W> {
    let lossy = Loss::new(line, faults.loss_one_in, faults.seed);
    let late = Delay::new(lossy, faults.delay_ns);
    let doubled = Duplicate::new(late, faults.duplicate_one_in, faults.seed ^ DUPLICATE_SEED);
    Slow::new(PacketMemory::new(doubled, memory), faults.bus).receiving_first(faults.receive_first)
}

/// Puts the faults of `faults` that concern what a host is told before a host.
pub fn host<H: HostPort>(host: H, faults: &FaultConfig) -> Host<H> {
    Reverse::new(VerdictFault::new(host, faults.verdict), faults.reverse_frames)
}
