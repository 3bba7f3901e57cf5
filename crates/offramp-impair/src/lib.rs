//! What makes a link or a card worse on purpose, for experiments.
//!
//! | module | what it does |
//! |---|---|
//! | [`memory`] | the adapter's own packet memory, where it has little: what does not fit is lost by a rule |
//! | [`fault`] | wires and hosts with impairments: slow, lossy, out of order, wrong in their verdicts |

#![forbid(unsafe_code)]

pub mod fault;
pub mod memory;
mod pass_on;
mod range;
mod read_out;

pub use range::OutOfRange;
pub use read_out::ReadOut;
