//! An application that writes at a rate is paced by the clock, not by the end of its last write.

use offramp_model::config::Workload::{TtcpReceive, TtcpSend, UdpSend};
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_host_with_time_to_spare_sends_and_receives_at_the_rate_that_was_asked_for(
        mbit in 5u64..500, write_size in 1460u64..60_000, scale in 10u64..60,
        workload in prop::sample::select(vec![TtcpReceive, TtcpSend, UdpSend]),
    ) {
        let profile = Profile::load("p4-e1000-pcix")
            .unwrap()
            .with("host.cost_scale", &format!("{scale}%"))
            .with("workload.flows", "1")
            .with("workload.rate", &format!("{mbit}Mbit/s"))
            .with("workload.write_size", &format!("{write_size}byte"));
        let outcome = run(&profile, workload).unwrap();
        prop_assume!(outcome.busiest_processor_percent < 90.0);
        let asked = mbit as f64 * 1e6 / 8.0 * outcome.seconds;
        let off = (outcome.counts.bytes as f64 - asked).abs();
        // A write is whole, and what is under way when counting begins and ends is a window at most.
        let slack = 3.0 * write_size as f64 + 0.002 * asked;
        prop_assert!(off <= slack, "{} instead of {asked} bytes, {}", outcome.counts.bytes, workload.name());
    }
}
