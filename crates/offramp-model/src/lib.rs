//! Simulated adapters, buses and hosts in virtual time.
//!
//! A run is a discrete simulation of events in whole picoseconds; the same profile, workload and seed give the same
//! result to the last bit. It charges time around the product's own code, and duplicates none of it: the contents and
//! losses of an adapter's memory ([`offramp_impair::memory`]), the moments of interrupts
//! ([`offramp_adapter::moderation`]), the queue of a connection ([`offramp_offload::rss`]), and the segments or
//! fragments of a frame ([`offramp_offload::segment`]).
//!
//! | module | content |
//! |---|---|
//! | [`time`], [`events`] | picoseconds; the queue of future events |
//! | [`cpu`] | a processor with three priorities, each preempting those below |
//! | [`bus`] | the cost of moving bytes between an adapter and its host |
//! | [`link`] | the line: half duplex with collisions, or full duplex |
//! | [`tcp`], [`rpc`] | TCP's windows and timers; the frames and calls of NFS |
//! | [`profile`], [`config`] | hosts, adapters, buses, links in files; every number with unit, source and tag |
//! | [`simulation`] | one run |
//! | [`explain`] | the use of each microsecond of a frame |
//! | [`metrics`], [`compare`] | the figures of an outcome; two systems side by side |
//! | [`sweep`], [`sensitivity`] | many runs: over ranges of parameters, and the effect of each |
//! | [`uncertainty`] | the possible outcomes over intervals of numbers |
//! | [`pool`] | many runs at once |
//! | [`claims`] | published results, each in a file, beside the model's; explanatory curves |

#![forbid(unsafe_code)]

/// Files of a directory of this crate: the path of each, and its text.
macro_rules! embedded {
    ($directory:literal, $extension:literal: $($name:literal),* $(,)?) => {
        &[$((
            concat!($directory, "/", $name, ".", $extension),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $directory, "/", $name, ".", $extension)),
        ),)*]
    };
}

pub mod bus;
pub mod claims;
pub mod compare;
pub mod config;
pub mod cpu;
pub mod events;
pub mod explain;
pub mod link;
pub mod metrics;
pub mod pool;
pub mod profile;
pub mod rpc;
pub mod sensitivity;
pub mod simulation;
pub mod sweep;
pub mod tcp;
mod text;
pub mod time;
pub mod uncertainty;
