//! Every run goes on, or says why it does not.

use offramp_model::config::Workload::TtcpReceive;
use offramp_model::profile::Profile;
use offramp_model::simulation::{ModelError, run};
use proptest::prelude::*;

fn polled(interval: &str) -> Profile {
    let base = Profile::load("ndis-2011").unwrap().with("workload.warmup", "0s").with("workload.time", "20ms");
    base.with("host.poll_interval", interval)
}

#[test]
fn a_driver_that_polls_all_the_time_ends_as_one_does_that_polls_often() {
    let [always, often] = ["1ps", "1ns"].map(|interval| run(&polled(interval), TtcpReceive).unwrap());
    assert!((always.bytes_per_second / often.bytes_per_second - 1.0).abs() < 0.01);
    assert!(always.events < 2 * often.events, "{} events", always.events);
}

#[test]
fn a_run_in_which_too_much_happens_is_an_outcome() {
    let error = run(&polled("1ms").with("host.mask_interval", "1ps"), TtcpReceive).unwrap_err();
    assert!(matches!(error, ModelError::Crowded { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_follow_from_frames_and_not_from_the_ticks_of_a_timer(exponent in 0u32..10) {
        let outcome = run(&polled(&format!("{}ps", 10u64.pow(exponent))), TtcpReceive).unwrap();
        let frames = outcome.counts.frames_arrived + outcome.counts.frames_sent;
        prop_assert!(outcome.events < 30 * frames + 1000, "{} events, {frames} frames", outcome.events);
    }
}
