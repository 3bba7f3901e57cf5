//! `.ci/fuzz 60 xfrm`: see `crates/offramp-offload/tests/hostile/xfrm.rs`. The real texts in
//! `crates/offramp-offload/tests/xfrm` are good beginnings, and `fuzz/xfrm.dict` has the words.

#![no_main]

#[allow(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/offramp-offload/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::xfrm::xfrm(bytes);
});
