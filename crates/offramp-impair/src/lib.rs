//! Deliberate impairments of a link or a card, for experiments.
//!
//! | module | purpose |
//! |---|---|
//! | [`memory`] | a small packet memory in the adapter; a policy chooses the frames lost for lack of room |
//! | [`fault`] | wires and hosts with impairments: slow, lossy, out of order, or with wrong checksum verdicts |

#![forbid(unsafe_code)]

mod common;
pub mod fault;
pub mod memory;
mod range;
mod read_out;

pub use range::OutOfRange;
pub use read_out::ReadOut;
