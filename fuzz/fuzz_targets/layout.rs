//! Fuzz target: arbitrary bytes for the frame parser. `crates/offramp-offload/tests/hostile/mod.rs` has the code.
//! `.ci/fuzz 60 layout` runs the target for 60 seconds.

#![no_main]

#[allow(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/offramp-offload/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::layout(bytes));
