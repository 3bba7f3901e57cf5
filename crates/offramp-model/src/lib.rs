//! Simulated adapters, buses and hosts in virtual time.
//!
//! A run is a discrete-event simulation in whole picoseconds. The same profile, workload and seed give bit-identical
//! results. A run calls the product's own code instead of a copy, and adds the time of each step. The product's code
//! decides the contents and losses of an adapter's memory ([`offramp_impair::memory`]) and the times of interrupts
//! ([`offramp_adapter::moderation`]). The product's code also decides the receive queue of a connection
//! ([`offramp_offload::rss`]) and the segmentation or fragmentation of a frame ([`offramp_offload::segment`]).
//!
//! | module | content |
//! |---|---|
//! | [`time`], [`events`] | picoseconds; the queue of future events |
//! | [`cpu`] | a processor with three preemptive priorities |
//! | [`bus`] | the cost of moving bytes between an adapter and its host |
//! | [`link`] | the link: half duplex with collisions, or full duplex |
//! | [`tcp`], [`rpc`] | windows and timers of TCP; calls and frames of NFS |
//! | [`profile`], [`config`] | files for hosts, adapters, buses and links; each number has a unit, a source and a tag |
//! | [`simulation`] | one simulation run |
//! | [`explain`] | breakdown of the time per frame |
//! | [`metrics`], [`compare`] | metrics of an outcome; comparison of two systems |
//! | [`sweep`], [`sensitivity`] | runs over parameter ranges; the effect of each parameter |
//! | [`uncertainty`] | the spread of outcomes over the intervals of uncertain numbers |
//! | [`pool`] | parallel execution of runs |
//! | [`claims`] | published results, one per file, compared with the model; explanatory curves |

#![forbid(unsafe_code)]

/// Embeds files from a directory of this crate, as pairs of path and text.
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
