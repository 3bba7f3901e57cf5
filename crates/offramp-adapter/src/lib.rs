//! The adapter itself, without I/O: what a frame goes through, what is counted, and the cable.
//!
//! | module | what it does |
//! |---|---|
//! | [`port`] | the two traits, the host's side and the wire's side of an adapter, and the life of a port |
//! | [`host_io`] | a host port that a thread can sleep on |
//! | [`port_security`] | the source addresses that a port's host may use |
//! | [`vlan`] | the VLANs of a port, and the tags that it puts in and takes out |
//! | [`pipeline`] | the way of a frame, the same for a pair and a switch: source, route, sink |
//! | [`pair`] | one queue pair: both directions over one host port and one wire port |
//! | [`switch`] | a learning switch among host ports, and the link between two |
//! | [`cable`] | a link between two adapters, with a rate, a delay and a bounded queue |
//! | [`moderation`] | the interrupts to the host for arrived frames |
//! | [`ipsec`] | security associations and policy: sealing for the wire and opening for the host |
//! | [`steering`] | the choice of the guest's queue pair for a received frame |
//! | [`stats`] | counters per queue, with a reason for every frame that is lost |
//! | [`config`] | every size, limit and default |
//!
//! Over a [`cable`], a queue pair at either end segments everything into frames of the wire and coalesces it again:
//! that is an adapter, and its work can be measured. In a [`switch`] a super-frame stays whole if the receiver takes
//! it; a frame is changed only as its receiver needs.
//!
//! `crates/offramp-ports/examples/two_taps.rs` builds an adapter from these parts, `switch.rs` beside it a switch.
//!
//! No system call, no clock, no thread: time is an argument, in nanoseconds since any fixed moment.

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
