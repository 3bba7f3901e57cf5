//! The cost of moderation: the decision for each frame, and each policy beside the best schedule.
//!
//! `cargo bench -p offramp-adapter --bench moderation` measures the decision per frame and fails when one allocates.
//! With `-- --table` it prints, in virtual time, the cost of each policy as a multiple of the lowest cost of any
//! schedule that knows the future. This table uses no wall clock, and is the same on every machine. `--test` does
//! either with hardly any work, and its figures mean nothing; `OFFRAMP_SEED` chooses other random workloads.

#[path = "moderation/decision.rs"]
mod decision;
#[path = "moderation/policies.rs"]
mod policies;
#[path = "moderation/table.rs"]
mod table;
#[path = "../tests/trial.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod trial;
#[path = "moderation/workloads.rs"]
mod workloads;

#[global_allocator]
static ALLOCATOR: decision::CountingAllocator = decision::CountingAllocator;

fn main() {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let is_test = has("--test");
    if has("--table") {
        table::print(is_test);
    } else {
        decision::measure(is_test);
    }
}
