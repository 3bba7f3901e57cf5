//! Impairments of wires and hosts, for experiments and tests: each is a port in front of another port.
//!
//! | type | what it does |
//! |---|---|
//! | [`Slow`] | copies frames over a slow bus, one at a time, in both directions |
//! | [`Loss`] | loses one in `one_in` frames |
//! | [`Duplicate`] | brings one in `one_in` frames twice |
//! | [`Delay`] | delays each frame |
//! | [`Reverse`] | hands groups of frames to the host in reverse order |
//! | [`VerdictFault`] | marks some good frames bad, or bad ones good |
//!
//! [`wire`] and [`host`] put all of them before a port. They place the adapter's [memory](crate::memory) as in a card,
//! on its side of the bus. A fault without configuration passes everything on unchanged; a port without any is faster
//! without them.

mod config;
mod host;
mod line;
mod slow;

pub use config::{
    BUS_BYTES_PER_SECOND, BusConfig, DELAY_NS, FRAME_NS, FaultConfig, ONE_IN, REVERSE_FRAMES, VerdictConfig,
    WrongVerdict,
};
pub use host::{Reverse, VerdictFault};
pub use line::{Delay, Duplicate, Loss};
pub use slow::Slow;

use crate::memory::{MemoryConfig, PacketMemory};
use offramp_adapter::pair::PortControl;
use offramp_adapter::port::{HostPort, Line};
use std::sync::Arc;

/// A wire with every fault of a wire, an adapter's memory, and the bus to its host.
pub type Wire<W> = Slow<PacketMemory<Duplicate<Delay<Loss<W>>>>>;

/// A host with every fault of received frames.
pub type Host<H> = Reverse<VerdictFault<H>>;

/// Seed bit for the choice of duplicates, apart from the losses.
const DUPLICATE_SEED: u64 = 1 << 63;

/// Puts the wire's part of `faults`, and a memory, before a wire.
pub fn wire<W: Line>(line: W, faults: &FaultConfig, memory: &MemoryConfig) -> Wire<W> {
    let lossy = Loss::new(line, faults.loss_one_in, faults.seed);
    let late = Delay::new(lossy, faults.delay_ns);
    let doubled = Duplicate::new(late, faults.duplicate_one_in, faults.seed ^ DUPLICATE_SEED);
    Slow::new(PacketMemory::new(doubled, memory), faults.bus).receiving_first(faults.receive_first)
}

/// Puts the host's part of `faults`, for received frames, before that host. Frames that the host refuses after they
/// were reversed are counted as lost in `queue` of `control`.
pub fn host<H: HostPort>(host: H, faults: &FaultConfig, control: &Arc<PortControl>, queue: usize) -> Host<H> {
    Reverse::new(VerdictFault::new(host, faults.verdict), faults.reverse_frames, control, queue)
}
