//! What makes a link or a card worse on purpose, for experiments.
//!
//! | module | what it does |
//! |---|---|
//! | [`memory`] | the adapter's own packet memory, where it has little: what does not fit is lost by a rule |
//! | [`fault`] | lines and hosts with impairments: slow, lossy, out of order, wrong in their verdicts |

#![forbid(unsafe_code)]

pub mod fault;
pub mod memory;
