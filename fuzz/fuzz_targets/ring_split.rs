//! `.ci/fuzz 60 ring_split`: see `crates/offramp-virtio/tests/ring_bytes/mod.rs`.

#![no_main]

#[path = "../../crates/offramp-virtio/tests/ring_bytes/mod.rs"]
mod ring_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ring_bytes::ring(bytes, false));
