//! Measures the cost of moderation: the cost of the decision for each frame, and the cost of each policy compared with
//! the best schedule.
//!
//! `cargo bench -p offramp-adapter --bench moderation` measures the decision per frame, and fails if a decision
//! allocates memory. With `-- --table`, the program prints a table in virtual time. The table shows the cost of each
//! policy as a multiple of the lowest cost of any schedule with knowledge of the future. The table uses no wall clock
//! and is the same on every machine. With `--test`, either mode runs with hardly any work, and the figures are
//! meaningless. `OFFRAMP_SEED` selects other random workloads.

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
