//! Fuzz target: text for the parser of `ip xfrm`. `crates/offramp-offload/tests/hostile/xfrm.rs` has the code.
//! `.ci/fuzz 60 xfrm` runs the target for 60 seconds. `crates/offramp-offload/tests/xfrm` has real texts to start from,
//! and `fuzz/xfrm.dict` has words of `ip xfrm`.

#![no_main]

#[allow(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/offramp-offload/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::xfrm::xfrm(bytes);
});
