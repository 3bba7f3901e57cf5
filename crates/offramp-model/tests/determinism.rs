//! The same input gives the same bytes, and no frame goes without being counted.

use offramp_model::claims;
use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};

fn outcome(name: &str, workload: Workload, seed: &str) -> Outcome {
    // Interrupts that are shut out at random, and collisions, draw from the generator.
    let profile = Profile::load(name).unwrap().with("host.mask_interval", "50ms").with("host.mask_time", "3ms");
    run(&profile.with("peer.gap", "9.6us").with("workload.seed", seed), workload).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    for (name, workload) in [("486-3c503", Workload::TtcpReceive), ("486-wd8003e", Workload::NfsRead)] {
        let [first, second, other] = ["1", "1", "2"].map(|seed| format!("{:?}", outcome(name, workload, seed)));
        assert_eq!(first, second);
        assert_ne!(first, other, "{name}: the generator has no say");
    }
}

#[test]
fn the_table_of_claims_is_the_same_every_time_it_is_made() {
    let make = || claims::text(&claims::check(claims::all(), |_| false, 0).unwrap());
    assert_eq!(make(), make());
}
