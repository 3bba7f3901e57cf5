//! `.ci/fuzz 60 segment`: see `crates/offramp-offload/tests/hostile/mod.rs`.

#![no_main]

#[allow(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/offramp-offload/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::segment(bytes);
});
