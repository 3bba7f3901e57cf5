//! Stations that share a line: each by its distance and its own readiness.

use offramp_model::config::{Config, Workload};
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use proptest::prelude::*;

const FULL_FRAME_LEN: u64 = 1514;

/// A host that is never the limit, on a link that it shares.
fn system(rate: &str, delay_ns: u64) -> Profile {
    Profile::load("p4-e1000-pcix")
        .unwrap()
        .with("host.cost_scale", "1%")
        .with("link.delay", &format!("{delay_ns}ns"))
        .with("link.rate", rate)
        .with("link.duplex", "half")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_station_that_sends_alone_does_not_wait_for_the_other_end(delay_ns in 0u64..25_600) {
        let profile = system("10Mbit/s", delay_ns).with("workload.write_size", "1472byte");
        let link = Config::new(&profile, Workload::UdpSend).unwrap().link;
        let outcome = run(&profile, Workload::UdpSend).unwrap();
        let frames = outcome.seconds / (link.frame_time(FULL_FRAME_LEN) + link.gap()).as_s();
        prop_assert!((outcome.counts.frames_sent as f64 - frames).abs() <= 1.5, "{:?} of {frames}", outcome.counts);
    }

    #[test]
    fn a_gigabit_that_is_shared_has_frames_of_a_slot_at_least(write_size in 1u64..1400, delay_ns in 0u64..2048) {
        let profile = system("1Gbit/s", delay_ns).with("workload.write_size", &format!("{write_size}byte"));
        let outcome = run(&profile, Workload::UdpSend).unwrap();
        // Preamble, the slot of 512 bytes, the gap (IEEE 802.3 4.2.3.4).
        let least_s = (8 + 512 + 12) as f64 * 8e-9;
        let most = outcome.seconds / least_s + 1.0;
        prop_assert!(outcome.counts.frames_sent as f64 <= most, "{} of {most}", outcome.counts.frames_sent);
    }
}

#[test]
fn a_line_that_nobody_can_share_is_refused() {
    for (rate, delay, why) in [("10Mbit/s", "30us", "25.6 us apart at most"), ("10Gbit/s", "1ns", "up to 1 Gbit/s")] {
        let mut profile = Profile::load("486-wd8003ep").unwrap();
        let error = profile.set("link.rate", rate).and_then(|()| profile.set("link.delay", delay)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}
