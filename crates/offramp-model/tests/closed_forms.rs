//! What arithmetic says of any system holds for every run: bounds of throughput, interrupts and processor time, and
//! the conservation of frames.

use offramp_model::config::{Config, Workload};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Activity, Outcome, run};
use offramp_model::time::Span;
use proptest::prelude::*;

const MSS: u64 = 1460;
const FULL_FRAME_LEN: u64 = 1514;
/// What is under way when counting begins and ends: a window at most, and its work.
const SIMULATED_S: u64 = 4;

#[derive(Clone, Debug)]
struct System {
    clock_khz: u64,
    cycles: u64,
    width: u64,
    card_kib: u64,
    scale_percent: u64,
    window: u64,
    gap_us: u64,
    overflow: &'static str,
    tcp: &'static str,
    duplex: &'static str,
    receive: &'static str,
    order: &'static str,
    moderation: &'static str,
    rate_kbps: u64,
}

fn systems() -> impl Strategy<Value = System> {
    let machine = (4_000u64..30_000, 2u64..8, 1u64..3, prop::sample::select(vec![8u64, 16, 32]), 10u64..400);
    let stream = (1460u64..65_536, 10u64..300, prop::sample::select(vec![0u64, 500, 4_000]));
    let rules = (
        prop::sample::select(vec!["drop", "overrun", "stop-and-recover"]),
        prop::sample::select(vec!["go-back-n", "tahoe", "reno"]),
        prop::sample::select(vec!["half", "full"]),
        prop::sample::select(vec!["interrupt", "deferred"]),
        prop::sample::select(vec!["forward", "reversed"]),
        prop::sample::select(vec!["off", "fixed-gap", "coalescing", "e1000", "net-dim", "area", "quiet-or-area"]),
    );
    (machine, stream, rules).prop_map(|(machine, stream, rules)| System {
        clock_khz: machine.0,
        cycles: machine.1,
        width: machine.2,
        card_kib: machine.3,
        scale_percent: machine.4,
        window: stream.0,
        gap_us: stream.1,
        rate_kbps: stream.2,
        overflow: rules.0,
        tcp: rules.1,
        duplex: rules.2,
        receive: rules.3,
        order: rules.4,
        moderation: rules.5,
    })
}

impl System {
    fn profile(&self) -> Profile {
        Profile::load("486-wd8003ep")
            .unwrap()
            .with("bus.clock", &format!("{}kHz", self.clock_khz))
            .with("adapter.transfer_cycles", &self.cycles.to_string())
            .with("adapter.transfer_width", &format!("{}byte", self.width))
            .with("adapter.memory", &format!("{}KiB", self.card_kib))
            .with("host.cost_scale", &format!("{}%", self.scale_percent))
            .with("host.receive_window", &format!("{}byte", self.window))
            .with("peer.gap", &format!("{}us", self.gap_us))
            .with("adapter.overflow", self.overflow)
            .with("peer.tcp", self.tcp)
            .with("link.duplex", self.duplex)
            .with("host.receive", self.receive)
            .with("host.order", self.order)
            .with("adapter.moderation", self.moderation)
            .with("workload.rate", &format!("{}kbit/s", self.rate_kbps))
            .with("workload.warmup", "0s")
            .with("workload.time", &format!("{SIMULATED_S}s"))
    }
}

/// Time of the processor that every full segment takes at least, whatever is done together for several.
fn least_work(config: &Config) -> Span {
    let costs = &config.host.costs;
    let per_byte = Span::of_bytes(MSS, costs.checksum_fs_per_byte) + Span::of_bytes(MSS, costs.copy_fs_per_byte);
    config.adapter.bus.processor_time(FULL_FRAME_LEN) + costs.frame + costs.tcp + per_byte
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
    assert!(tcp >= config.host.costs.tcp.times(counts.segments_received), "segments that cost nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_system_does_more_than_its_closed_forms_allow(system in systems()) {
        let profile = system.profile();
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
