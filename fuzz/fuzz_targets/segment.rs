//! Fuzz target: arbitrary frames and requests for segmentation. `crates/offramp-offload/tests/hostile/mod.rs` has the
//! code. `.ci/fuzz 60 segment` runs the target for 60 seconds.

#![no_main]

#[allow(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/offramp-offload/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::segment(bytes);
});
