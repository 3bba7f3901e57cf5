//! `.ci/fuzz 60 check_messages`: see `crates/offramp-check/tests/hostile/mod.rs`.

#![no_main]

#[path = "../../crates/offramp-check/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::messages(bytes));
