//! Compares ESP with the raw AEAD of the same library, on the same buffers, in one process.
//!
//! `cargo bench -p offramp-offload --bench esp -- [--quick | --profile WHO] [FILTER]` prints a table for each operation
//! and compares the ratios with the targets. Quote ratios from one run, never single figures. For ipsec-mb, run `cargo
//! bench -p offramp-ports --bench esp_ipsec_mb`.

#[path = "esp/ends.rs"]
mod ends;
#[path = "peers/harness.rs"]
#[allow(dead_code, reason = "the other benchmark writes a file of rows")]
mod harness;
#[path = "esp/raw.rs"]
mod raw;
#[path = "esp/works.rs"]
mod works;

#[global_allocator]
static ALLOCATOR: harness::CountingAllocator = harness::CountingAllocator;

/// Returns the cipher library to measure.
fn library() -> &'static dyn offramp_offload::esp::CipherLibrary {
    offramp_offload::esp::aws_lc()
}

fn main() {
    let mut report = harness::Report::named("esp", ends::RAW_AEAD, std::env::args().skip(1));
    println!("ciphers: {:?}", library());
    works::measure(&mut report);
    report.finish();
}
