//! What arithmetic says of any system holds for every run: bounds of throughput, interrupts and processor time, and
//! the conservation of frames.

mod support;

use offramp_model::config::{Config, Workload};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Activity, Outcome, run};
use offramp_model::time::Span;
use proptest::prelude::*;
use support::{Settings, settings, system};

const MSS: u64 = 1460;
const FULL_FRAME_LEN: u64 = 1514;
/// What is under way when counting begins and ends: a window at most, and its work.
const SIMULATED_S: u64 = 4;

fn systems() -> impl Strategy<Value = Settings> {
    settings(
        &[
            ("bus.clock", 4_000..30_000, "kHz"),
            ("adapter.transfer_cycles", 2..8, ""),
            ("adapter.transfer_width", 1..3, "byte"),
            ("host.cost_scale", 10..400, "%"),
            ("host.receive_window", 1460..65_536, "byte"),
            ("peer.gap", 10..300, "us"),
        ],
        &[
            ("adapter.memory", &["8KiB", "16KiB", "32KiB"]),
            ("workload.rate", &["0kbit/s", "500kbit/s", "4000kbit/s"]),
            ("adapter.overflow", &["drop", "overrun", "stop-and-recover"]),
            ("peer.tcp", &["go-back-n", "tahoe", "reno"]),
            ("link.duplex", &["half", "full"]),
            ("host.receive", &["interrupt", "deferred"]),
            ("host.order", &["forward", "reversed"]),
            ("adapter.moderation", &["off", "fixed-gap", "coalescing", "e1000", "net-dim", "area", "quiet-or-area"]),
        ],
    )
}

/// Time of the processor that every full segment takes at least, whatever is done together for several.
fn least_work(config: &Config) -> Span {
    let costs = &config.host.costs;
    let per_byte = Span::of_bytes(MSS, costs.checksum_fs_per_byte) + Span::of_bytes(MSS, costs.copy_fs_per_byte);
    config.adapter.bus.processor_time(FULL_FRAME_LEN) + costs.frame_time + costs.tcp_time + per_byte
}

fn assert_bounds(config: &Config, outcome: &Outcome) {
    let counts = &outcome.counts;
    let bytes = counts.bytes as f64;
    let wire = config.link.frame_time(FULL_FRAME_LEN) + config.link.gap();
    assert!(bytes <= SIMULATED_S as f64 / wire.as_s() * MSS as f64, "more than the wire carries");
    assert!(bytes <= SIMULATED_S as f64 / least_work(config).as_s() * MSS as f64, "more than the processor does");
    let round_trip = config.link.frame_time(FULL_FRAME_LEN) + config.link.frame_time(0);
    let window = config.host.ack_policy.window as f64;
    assert!(bytes <= window * (SIMULATED_S as f64 / round_trip.as_s() + 1.0), "more than a window per round trip");
    if config.workload.rate_bps > 0 {
        let written = config.workload.rate_bps as f64 / 8.0 * SIMULATED_S as f64;
        assert!(bytes <= written + 2.0 * MSS as f64, "more than was written");
    }
}

fn assert_processor(outcome: &Outcome) {
    let counts = &outcome.counts;
    let given: Span = counts.activities.iter().fold(Span::ZERO, |sum, &span| sum + span);
    let done: Span = counts.busy.iter().fold(Span::ZERO, |sum, &span| sum + span);
    assert!(done <= given, "more done than was given");
    assert!(outcome.cpu_percent <= 100.000_001);
}

fn assert_frames(config: &Config, outcome: &Outcome) {
    let counts = &outcome.counts;
    let gone = counts.frames_received + counts.dropped + counts.overrun;
    let held = counts.frames_arrived.checked_sub(gone).expect("no frame is counted twice");
    assert!(held <= 64 * 1024 / 256, "{held} frames held");
    assert!(counts.interrupts <= counts.frames_arrived + counts.frames_sent, "more interrupts than reasons");
    assert!(counts.segments_received <= counts.frames_received);
    let tcp = counts.activities[Activity::Tcp as usize];
    assert!(tcp >= config.host.costs.tcp_time.times(counts.segments_received), "segments that cost nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_system_does_more_than_its_closed_forms_allow(settings in systems()) {
        let profile = system("486-wd8003ep", &settings).with("workload.warmup", "0s");
        let profile = profile.with("workload.time", &format!("{SIMULATED_S}s"));
        let config = Config::new(&profile, Workload::TtcpReceive).unwrap();
        let outcome = run(&profile, Workload::TtcpReceive).unwrap();
        assert_bounds(&config, &outcome);
        assert_processor(&outcome);
        assert_frames(&config, &outcome);
    }

    #[test]
    fn bytes_in_flight_that_fit_into_the_ring_are_never_lost(clock_khz in 2_000u64..30_000, cycles in 2u64..8) {
        // Three frames take 18 of 19 pages.
        let profile = Profile::load("486-3c503").unwrap()
            .with("bus.clock", &format!("{clock_khz}kHz"))
            .with("adapter.transfer_cycles", &cycles.to_string())
            .with("host.receive_window", "4KiB")
            .with("workload.time", "4s");
        let outcome = run(&profile, Workload::TtcpReceive).unwrap();
        prop_assert_eq!(outcome.lost(), 0);
        prop_assert!(outcome.counts.bytes > 0);
    }

    #[test]
    fn a_ring_that_is_read_faster_than_the_wire_fills_it_loses_nothing(clock_khz in 9_000u64..30_000) {
        let profile = Profile::load("486-wd8003ep").unwrap()
            .with("peer.tcp", "go-back-n")
            .with("bus.clock", &format!("{clock_khz}kHz"))
            .with("workload.time", "4s");
        let outcome = run(&profile, Workload::TtcpReceive).unwrap();
        prop_assert_eq!(outcome.lost(), 0);
    }
}

/// The shortest frames that there are, and FIFOs as small as those of old chips.
#[test]
fn frames_below_the_shortest_of_ethernet_take_its_time_and_small_fifos_hold_what_fits() {
    const RATE: f64 = 10e6;
    for mss in [1, 6, 20, 64, 200] {
        for (workload, lso) in [(Workload::TtcpReceive, "off"), (Workload::TtcpSend, "off"), (Workload::TtcpSend, "on")]
        {
            let base = Profile::load("server-82599").unwrap().with("workload.tcp_options", "0byte");
            let base = base.with("workload.mss", &format!("{mss}byte")).with("link.rate", "10Mbit/s");
            let fifo = format!("{}byte", 2 * (mss + 54).max(60));
            let base = base.with("adapter.receive_fifo", &fifo).with("adapter.transmit_fifo", &fifo);
            let base = base.with("adapter.lso", lso).with("workload.write_size", "1KiB").with("workload.time", "1s");
            let outcome = run(&base.with("workload.warmup", "1s"), workload).unwrap();
            // Headers of 54 bytes; preamble, delimiter, FCS and gap of 24; at least 60 between them.
            let wire = f64::from(mss + 54).max(60.0) + 24.0;
            let expected = RATE / 8.0 * f64::from(mss) / wire;
            let error = outcome.bytes_per_second / expected - 1.0;
            assert!(error.abs() < 0.01 && outcome.lost() == 0, "mss {mss}, {workload:?}, LSO {lso}: {error}");
        }
    }
    let small = Profile::load("server-82599").unwrap().with("workload.mss", "64byte");
    let refused = small.clone().with("adapter.receive_fifo", "256byte").set("workload.mss", "1448byte").unwrap_err();
    assert!(refused.to_string().contains("256 bytes do not take one frame of 1514 bytes"), "{refused}");
}
