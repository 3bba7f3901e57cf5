//! Shared parts of the tests with the kernel as judge.
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

/// Number of vectors of a run; overrides the test's own number.
const VECTORS_VARIABLE: &str = "OFFRAMP_VECTORS";
/// The seed of a run: a number, or `random` for another one each time.
const SEED_VARIABLE: &str = "OFFRAMP_SEED";
const SEED_DEFAULT: u64 = 0x6f66_6672_616d_7031;

/// Returns the number of vectors to run.
///
/// # Panics
/// When the variable holds no number.
pub fn vectors(default: u64) -> u64 {
    match env::var(VECTORS_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VECTORS_VARIABLE}={text} is not a number")),
        Err(_) => default,
    }
}

/// Returns the seed of this run.
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

/// Returns the random numbers of one vector: each can be made again without those before it.
pub fn random_for(seed: u64, index: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(index);
    random
}

/// Returns instructions to repeat one vector.
pub fn how_to_repeat(seed: u64, index: u64) -> String {
    format!("vector {index} of {SEED_VARIABLE}={seed} (run more vectors than that), kernel {}", kernel_release())
}

/// Returns the release of the judging kernel.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
