//! Fuzz target: arbitrary bytes from a client to the server of `offramp check`.
//! `crates/offramp-check/tests/hostile/mod.rs` has the code. `.ci/fuzz 60 check_messages` runs the target for 60
//! seconds.

#![no_main]

#[path = "../../crates/offramp-check/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::messages(bytes));
