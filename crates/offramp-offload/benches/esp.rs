//! ESP beside the raw AEAD of the same library on the same buffers, in one process.
//!
//! `cargo bench -p offramp-offload --bench esp -- [--quick] [FILTER]` prints a table per work and sets
//! the ratios beside the targets. Quote ratios of one run, never single figures.

#[path = "esp/ends.rs"]
mod ends;
#[path = "peers/harness.rs"]
#[allow(dead_code, reason = "the other benchmark writes a file of rows")]
mod harness;
#[path = "esp/works.rs"]
mod works;

#[global_allocator]
static ALLOCATOR: harness::CountingAllocator = harness::CountingAllocator;

fn main() {
    let mut report = harness::Report::named("esp", ends::RAW_AEAD, std::env::args().skip(1));
    println!("ciphers: {:?}", offramp_offload::esp::aws_lc());
    works::measure(&mut report);
    report.finish();
}
