//! Deliberate impairments of a link or a card, for experiments.
//!
//! | module | what it does |
//! |---|---|
//! | [`memory`] | a small packet memory in the adapter: frames without room are lost by a rule |
//! | [`fault`] | wires and hosts with impairments: slow, lossy, out of order, wrong in their verdicts |

#![forbid(unsafe_code)]

mod common;
pub mod fault;
pub mod memory;
mod range;
mod read_out;

pub use range::OutOfRange;
pub use read_out::ReadOut;
