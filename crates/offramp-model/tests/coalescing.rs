//! Coalescing has its price and its bounds: each frame of the wire costs whoever coalesces it, and an aggregate holds no
//! more than it may.

use offramp_model::config::{Config, Workload::TtcpReceive};
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use proptest::prelude::*;

/// Bytes of an IP packet, which an aggregate is.
const PACKET_LEN_MAX: u64 = 65_535;
/// Segments that an 82599 coalesces: as many as descriptors (Intel 82599 datasheet, 7.11).
const SEGMENTS_MAX_82599: u64 = 16;

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_host_that_coalesces_takes_its_driver_s_time_for_each_frame(mss in 64u64..1448, flows in 1u64..5) {
        let profile = Profile::load("server-100g")
            .unwrap()
            .with("workload.mss", &format!("{mss}byte"))
            .with("workload.flows", &flows.to_string())
            // Less than a ring, so that nothing is lost.
            .with("host.receive_window", &format!("{}byte", (100 * mss).max(1460)))
            .with("workload.time", "10ms");
        let config = Config::new(&profile, TtcpReceive).unwrap();
        let outcome = run(&profile, TtcpReceive).unwrap();
        let frames = outcome.counts.frames_received;
        // One more batch may have been taken than was handled.
        let ring = profile.value("adapter.receive_descriptors");
        let took_s = config.host.costs.frame_time.times(frames.saturating_sub(ring)).as_s();
        let processors = config.host.processors as f64;
        prop_assert!(took_s <= outcome.seconds * processors, "{frames} frames in {} s", outcome.seconds);
    }

    #[test]
    fn an_aggregate_holds_no_more_segments_and_bytes_than_it_may(mss in 64u64..8960, flows in 1u64..5) {
        for (system, segments_max) in [("server-82599", SEGMENTS_MAX_82599), ("server-100g", PACKET_LEN_MAX)] {
            let profile = Profile::load(system)
                .unwrap()
                .with("adapter.receive_fifo", "2MiB")
                .with("workload.mss", &format!("{mss}byte"))
                .with("workload.flows", &flows.to_string())
                .with("host.receive_window", &format!("{}byte", (100 * mss).max(1460)))
                .with("workload.time", "10ms");
            let counts = run(&profile, TtcpReceive).unwrap().counts;
            let most = segments_max.min(PACKET_LEN_MAX / mss).max(1);
            // What was read out and not handled when counting began and ended.
            let slack = 2 * profile.value("adapter.receive_descriptors");
            prop_assert!(
                counts.frames_received <= most * (counts.segments_received + 1) + slack,
                "{system}: {} frames in {} aggregates of at most {most}", counts.frames_received, counts.segments_received
            );
        }
    }
}
