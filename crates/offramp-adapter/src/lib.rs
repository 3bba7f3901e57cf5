//! The adapter without I/O: the frame pipeline, the counters, and the cable.
//!
//! | module | what it does |
//! |---|---|
//! | [`port`] | the host's side and the wire's side of an adapter (two traits), and the life of a port |
//! | [`host_io`] | a host port with descriptors that wake a sleeping thread |
//! | [`port_security`] | the source addresses that a port's host may use |
//! | [`vlan`] | the VLANs of a port, and the tags that the port inserts and removes |
//! | [`pipeline`] | the stages of a frame's path, the same for a pair and a switch: source, route, sink |
//! | [`pair`] | one queue pair: both directions over one host port and one wire port |
//! | [`switch`] | a learning switch among host ports, and a link between two host ports |
//! | [`cable`] | a link between two adapters, with a rate, a delay and a bounded queue |
//! | [`moderation`] | interrupt moderation for received frames and transmit completions |
//! | [`ipsec`] | ESP security associations and policy: frames are sealed for the wire and opened for the host |
//! | [`steering`] | the choice of the guest's queue pair for a received frame |
//! | [`stats`] | counters per queue, with a reason for every lost frame |
//! | [`config`] | every size, limit and default |
//!
//! Over a [`cable`], the queue pair at either end segments super-frames into frames of the wire, and coalesces received
//! frames. So a cable exercises all work of an adapter, and the work can be measured. In a [`switch`] a super-frame
//! stays whole if the receiver accepts the offload. The switch changes a frame only where the receiver needs the
//! change.
//!
//! The example `crates/offramp-ports/examples/two_taps.rs` builds an adapter from these parts. The example `switch.rs`
//! in the same folder builds a switch.
//!
//! The crate makes no system call, reads no clock and starts no thread. Time is an argument, in nanoseconds since any
//! fixed moment.

#![forbid(unsafe_code)]

pub mod cable;
pub mod config;
pub mod host_io;
pub mod ipsec;
pub mod limit;
pub mod moderation;
pub mod pair;
mod pass_on;
pub mod pipeline;
pub mod port;
pub mod port_security;
mod receive;
pub mod stats;
pub mod steering;
pub mod switch;
pub mod vlan;
