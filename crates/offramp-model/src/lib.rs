//! Simulated adapters, buses and hosts in virtual time.
//!
//! A run is a discrete-event simulation in whole picoseconds. The same profile, workload and seed give bit-identical
//! results. The model calls offramp's own code, not a copy of it. This code decides the contents and losses of an
//! adapter's memory ([`offramp_impair::memory`]), and the times of interrupts ([`offramp_adapter::moderation`]). It
//! also decides the receive queue of a connection ([`offramp_offload::rss`]), and segments or fragments frames
//! ([`offramp_offload::segment`]). The model adds the time that each step takes on the link, the bus and the
//! processors.
//!
//! | module | content |
//! |---|---|
//! | [`time`], [`events`] | picoseconds; the queue of future events |
//! | [`cpu`] | a processor with three preemptive priorities |
//! | [`bus`] | the cost of moving bytes between an adapter and its host |
//! | [`link`] | the link: half duplex with collisions, or full duplex |
//! | [`tcp`], [`rpc`] | windows and timers of TCP; calls and frames of NFS |
//! | [`profile`], [`config`] | files for hosts, adapters, buses and links, with the evidence for each number |
//! | [`simulation`] | one simulation run |
//! | [`explain`] | breakdown of the time per frame |
//! | [`metrics`], [`compare`] | metrics of an outcome; comparison of two systems |
//! | [`sweep`], [`sensitivity`] | runs over parameter ranges; the effect of each parameter |
//! | [`uncertainty`] | the spread of outcomes over the intervals of uncertain numbers |
//! | [`pool`] | parallel execution of runs |
//! | [`claims`] | published results, one per file, compared with the model; explanatory curves |

#![forbid(unsafe_code)]

/// Embeds the named text files of a directory of this crate. Expands to a slice with the path and the text of each
/// file.
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
