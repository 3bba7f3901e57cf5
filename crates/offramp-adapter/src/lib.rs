//! The adapter itself, without I/O: what a frame goes through, what is counted, and the cable.
//!
//! | module | what it does |
//! |---|---|
//! | [`port`] | the two traits: the host's side and the line's side of an adapter |
//! | [`transmit`] | host to line: plan, cut, put |
//! | [`receive`] | line to host: parse, verify, steer, join, indicate |
//! | [`moderation`] | when the host is interrupted for what has come |
//! | [`pair`] | one queue pair: both directions over one host port and one wire port |
//! | [`cable`] | a line between two adapters, with a rate, a delay and a bounded queue |
//! | [`ipsec`] | security associations and policy: what is sealed for the line and opened for the host |
//! | [`stats`] | counters per queue, with a reason for every frame that is lost |
//! | [`steering`] | on which of a host's queue pairs a frame is received |
//! | [`switch`] | a learning switch among host ports, and the link between two |
//! | [`config`] | every size, limit and default |
//!
//! Two ways lead from one host to another. Over a [`cable`], a queue pair at either end cuts everything
//! into frames of a line and joins it again: that is an adapter, and what it does can be measured. In a
//! [`switch`] a super-frame stays whole where the receiver takes it, and nothing is done to a frame that
//! its receiver does not need: that is how guests, TAPs and interfaces are joined.
//!
//! No system call, no clock, no thread: time is an argument, in nanoseconds since any fixed moment.

#![forbid(unsafe_code)]

pub mod cable;
pub mod config;
pub mod ipsec;
pub mod moderation;
pub mod pair;
pub mod pipeline;
pub mod port;
pub mod receive;
pub mod stats;
pub mod steering;
pub mod switch;
pub mod transmit;
