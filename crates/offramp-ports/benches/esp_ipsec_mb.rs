//! Compares ESP with ipsec-mb to the raw AEAD of ipsec-mb on the same buffers, and to ESP with aws-lc.
//!
//! `cargo bench -p offramp-ports --bench esp_ipsec_mb -- [--quick | --profile WHO] [FILTER]` runs the same work as
//! `cargo bench -p offramp-offload --bench esp`. If the library is not installed, the benchmark prints a message and
//! ends.

#[path = "../../offramp-offload/benches/esp/ends.rs"]
mod ends;
#[path = "../../offramp-offload/benches/peers/harness.rs"]
#[allow(dead_code, reason = "the other benchmark writes a file of rows")]
mod harness;
#[path = "ipsec_mb/raw.rs"]
mod raw;
#[path = "../../offramp-offload/benches/esp/works.rs"]
mod works;

use offramp_offload::esp::{CipherLibrary, OutboundSa, aws_lc};
use offramp_ports::ipsec_mb;

/// Required speed of sealing a packet of 1,420 bytes, relative to aws-lc.
const SPEED_OVER_AWS_LC: f64 = 1.8;
/// The name of the results with which ipsec-mb is compared.
const WITH_AWS_LC: &str = "with aws-lc";

#[global_allocator]
static ALLOCATOR: harness::CountingAllocator = harness::CountingAllocator;

/// Returns the cipher library under measurement.
fn library() -> &'static dyn CipherLibrary {
    ipsec_mb::library().expect("main has asked for it")
}

fn main() {
    if let Err(reason) = ipsec_mb::library() {
        println!("not measured: {reason}");
        return;
    }
    let mut report = harness::Report::named("esp_ipsec_mb", ends::RAW_AEAD, std::env::args().skip(1));
    println!("ciphers: {:?}", library());
    works::measure(&mut report);
    compare_libraries(&mut report);
    report.finish();
}

/// Runs the same packets through both libraries.
fn compare_libraries(report: &mut harness::Report) {
    let suite = ends::suite("aes128gcm16");
    for packet_len in [64, 1420, 8900] {
        let ours = works::sealing_in_place(harness::OURSELVES, ends::outbound(suite), packet_len);
        let sa = OutboundSa::with_library(&ends::config(suite), aws_lc()).expect("a right description");
        let theirs = works::sealing_in_place(WITH_AWS_LC, sa, packet_len);
        let work = format!("seal_in_place_both_libraries_{packet_len}");
        report.measure(&work, packet_len, vec![ours, theirs]);
        report.aim_at_speed_of(&work, WITH_AWS_LC, if packet_len == 1420 { SPEED_OVER_AWS_LC } else { 1.0 });
    }
}
