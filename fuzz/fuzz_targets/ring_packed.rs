//! Fuzz target: a packed ring with arbitrary contents. `crates/offramp-virtio/tests/ring_bytes/mod.rs` has the code.
//! `.ci/fuzz 60 ring_packed` runs the target for 60 seconds.

#![no_main]

#[path = "../../crates/offramp-virtio/tests/ring_bytes/mod.rs"]
mod ring_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ring_bytes::ring(bytes, true));
