//! What the tests share in which the kernel is the judge.
#![allow(dead_code)]

pub mod bench;
pub mod generate;
pub mod receive;
#[path = "../../../offramp-offload/tests/support/mod.rs"]
pub mod support;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::env;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// How many vectors a run has; overrides the test's own number.
const VECTORS_VARIABLE: &str = "OFFRAMP_VECTORS";
/// The seed of a run: a number, or `random` for another one each time.
const SEED_VARIABLE: &str = "OFFRAMP_SEED";
const SEED_DEFAULT: u64 = 0x6f66_6672_616d_7031;

/// How many vectors to run.
///
/// # Panics
/// When the variable holds no number.
pub fn vectors(default: u64) -> u64 {
    match env::var(VECTORS_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VECTORS_VARIABLE}={text} is not a number")),
        Err(_) => default,
    }
}

/// The seed of this run.
///
/// # Panics
/// When the variable holds neither a number nor `random`.
pub fn seed() -> u64 {
    match env::var(SEED_VARIABLE).as_deref() {
        Ok("random") => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is not a number")),
        Err(_) => SEED_DEFAULT,
    }
}

/// The random numbers of one vector: each can be made again without those before it.
pub fn random_for(seed: u64, index: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(index);
    random
}

/// How to see one vector again.
pub fn how_to_repeat(seed: u64, index: u64) -> String {
    format!("vector {index} of {SEED_VARIABLE}={seed} (run more vectors than that), kernel {}", kernel_release())
}

/// Which kernel is the judge.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
