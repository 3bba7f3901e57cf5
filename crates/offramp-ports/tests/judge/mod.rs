//! Shared parts of the tests that compare offramp with the kernel.
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

/// Environment variable for the number of vectors, which overrides the test's default.
const VECTORS_VARIABLE: &str = "OFFRAMP_VECTORS";
/// Environment variable for the seed: a number, or `random` for a different seed in each run.
const SEED_VARIABLE: &str = "OFFRAMP_SEED";
const SEED_DEFAULT: u64 = 0x6f66_6672_616d_7031;

/// Returns the number of vectors to run.
///
/// # Panics
/// Panics if the value of the variable is not a number.
pub fn vectors(default: u64) -> u64 {
    match env::var(VECTORS_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VECTORS_VARIABLE}={text} is not a number")),
        Err(_) => default,
    }
}

/// Returns the seed of this run.
///
/// # Panics
/// Panics if the value of the variable is neither a number nor `random`.
pub fn seed() -> u64 {
    match env::var(SEED_VARIABLE).as_deref() {
        Ok("random") => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is not a number")),
        Err(_) => SEED_DEFAULT,
    }
}

/// Returns the random generator for one vector, so that each vector can be repeated without the vectors before it.
pub fn random_for(seed: u64, index: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(index);
    random
}

/// Returns instructions to repeat one vector.
pub fn how_to_repeat(seed: u64, index: u64) -> String {
    format!("vector {index} of {SEED_VARIABLE}={seed} (run more vectors than that), kernel {}", kernel_release())
}

/// Returns the release of the kernel used for the comparison.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
