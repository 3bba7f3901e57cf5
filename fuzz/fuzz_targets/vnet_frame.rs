//! Fuzz target: an arbitrary virtio network header and frame from a guest.
//! `crates/offramp-ports/tests/vhost_bytes/mod.rs` has the code. `.ci/fuzz 60 vnet_frame` runs the target for 60
//! seconds.

#![no_main]

#[allow(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/offramp-ports/tests/vhost_bytes/mod.rs"]
mod vhost_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    vhost_bytes::vnet_frame(bytes);
});
