//! Impairments of an adapter's wire port and host port, for experiments and tests. Each impairment is a port that wraps
//! another port.
//!
//! | type | what it does |
//! |---|---|
//! | [`Slow`] | copies frames over a slow bus, one at a time, in both directions |
//! | [`Loss`] | loses one in `one_in` frames |
//! | [`Duplicate`] | delivers one in `one_in` frames twice |
//! | [`Delay`] | delays each frame |
//! | [`Reverse`] | delivers groups of frames to the host in reverse order |
//! | [`VerdictFault`] | marks some good frames as bad, or some bad frames as good |
//!
//! [`wire()`] and [`host()`] wrap a port in all of these impairments. The adapter's [memory](crate::memory) is on the
//! adapter's side of the bus, as in a card. An unconfigured impairment passes all frames unchanged, but costs some
//! processor time.

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

/// A wire with all impairments of wires, an adapter's memory, and the bus to its host.
pub type Wire<W> = Slow<PacketMemory<Duplicate<Delay<Loss<W>>>>>;

/// A host with all impairments of received frames.
pub type Host<H> = Reverse<VerdictFault<H>>;

/// Bit of the seed that makes the choice of duplicated frames independent of the choice of lost frames.
const DUPLICATE_SEED: u64 = 1 << 63;

/// Wraps a wire in the impairments of wires from `faults`, then in an adapter's memory, and then in the bus to the
/// adapter's host.
pub fn wire<W: Line>(line: W, faults: &FaultConfig, memory: &MemoryConfig) -> Wire<W> {
    let lossy = Loss::new(line, faults.loss_one_in, faults.seed);
    let late = Delay::new(lossy, faults.delay_ns);
    let doubled = Duplicate::new(late, faults.duplicate_one_in, faults.seed ^ DUPLICATE_SEED);
    Slow::new(PacketMemory::new(doubled, memory), faults.bus).receiving_first(faults.receive_first)
}

/// Wraps a host in the impairments of received frames from `faults`. If the host refuses a frame of a reversed group,
/// the frame counts as lost in the counters of `queue` in `control`.
pub fn host<H: HostPort>(host: H, faults: &FaultConfig, control: &Arc<PortControl>, queue: usize) -> Host<H> {
    Reverse::new(VerdictFault::new(host, faults.verdict), faults.reverse_frames, control, queue)
}
