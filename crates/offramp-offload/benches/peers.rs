//! Compares offramp with other libraries and with the machine's limits, in one process.
//!
//! `cargo bench -p offramp-offload --bench peers -- [--quick | --profile WHO] [FILTER]` prints a table for each
//! operation and writes `target/bench/peers.json`. `FILTER` is a part of an operation's name. A filtered run and a run
//! under `cargo test --benches` write no file. Quote ratios from one run, never single figures.

#[path = "peers/checksum.rs"]
mod checksum;
#[path = "peers/frames.rs"]
mod frames;
#[path = "peers/harness.rs"]
#[allow(dead_code, reason = "targets are of another benchmark")]
mod harness;
#[path = "peers/rsc.rs"]
mod rsc;
#[path = "peers/tso.rs"]
mod tso;

#[global_allocator]
static ALLOCATOR: harness::CountingAllocator = harness::CountingAllocator;

fn main() {
    let mut report = harness::Report::named("peers", harness::REFERENCE, std::env::args().skip(1));
    checksum::measure(&mut report);
    tso::measure(&mut report);
    rsc::measure(&mut report);
    report.finish();
}
