//! TCP, calls and large sends against their closed forms.

use offramp_model::config::{Config, Workload};
use offramp_model::profile::Profile;
use offramp_model::rpc::{REQUEST_FRAME_LEN, reply_frames};
use offramp_model::simulation::{ModelError, Outcome, run};
use offramp_model::tcp::{AckPolicy, Receiver, Segment, Sender, SenderConfig, Variant};
use offramp_model::time::{Span, Time};
use proptest::prelude::*;

const MSS: u64 = 1460;
const ROUND: Span = Span::us(10_000);

fn with(name: &str, settings: &[(&str, &str)]) -> Profile {
    settings.iter().fold(Profile::load(name).unwrap(), |profile, (key, value)| profile.with(key, value))
}

/// Segments in a round trip, on average, of a sender that loses every `every`-th segment once.
fn segments_per_round(variant: Variant, round_trip: Span, every: u64) -> f64 {
    const ROUNDS: u64 = 20_000;
    let window = 4000 * MSS;
    let config = SenderConfig { mss: MSS, variant, rto_min: Span::us(1_000_000), initial_window_segments: 2, window };
    let mut sender = Sender::new(config);
    let mut receiver = Receiver::new(AckPolicy { segments_per_ack: 1, mss: MSS, window });
    let mut new_segments = 0u64;
    // What is sent now arrives a round trip later, as its acknowledgement.
    let mut send = |sender: &mut Sender, now: Time, arriving: &mut Vec<Segment>| {
        while let Some(segment) = sender.next(now, MSS) {
            new_segments += u64::from(!segment.is_retransmission);
            if segment.is_retransmission || !new_segments.is_multiple_of(every) {
                arriving.push(segment);
            }
        }
    };
    let mut arriving: Vec<Segment> = Vec::new();
    for round in 1..=ROUNDS {
        let now = Time::START + round_trip.times(round);
        for segment in std::mem::take(&mut arriving) {
            receiver.receive(segment.start, segment.len);
            receiver.read(u64::MAX);
            let (next, offered) = receiver.ack();
            sender.acknowledge(now, next, offered);
            send(&mut sender, now, &mut arriving);
        }
        if now >= sender.deadline {
            sender.time_out(now);
        }
        send(&mut sender, now, &mut arriving);
    }
    receiver.received() as f64 / MSS as f64 / ROUNDS as f64
}

#[test]
fn reno_with_loss_keeps_the_window_of_its_square_root_law() {
    // Mathis et al. 1997: the square root of 3/2 over the share of segments lost, an acknowledgement for each.
    // It counts no round trips for recovery, which matter less the longer the way back to the full window is.
    for (every, least) in [(200u64, 0.65), (800, 0.8), (3200, 0.88), (20_000, 0.94)] {
        let law = (1.5 * every as f64).sqrt();
        for variant in [Variant::Reno, Variant::NewReno] {
            let share = segments_per_round(variant, ROUND, every) / law;
            println!("{variant:?}, one in {every}: {share:.3} of the law");
            assert!((least..1.05).contains(&share), "{variant:?}, one in {every}: {share:.3} of the law");
        }
    }
}

#[test]
fn cubic_is_like_reno_over_short_ways_and_keeps_its_own_law_over_long_ones() {
    let reno = segments_per_round(Variant::NewReno, ROUND, 200);
    let share = segments_per_round(Variant::Cubic, ROUND, 200) / reno;
    assert!((0.9..1.2).contains(&share), "{share:.3} of Reno");
    // RFC 9438 5.1: 1.054 times the fourth root of the cube of the round trip over the share lost.
    let long = ROUND.times(10);
    let law = 1.054 * (long.as_s() * 20_000.0).powf(0.75);
    let share = segments_per_round(Variant::Cubic, long, 20_000) / law;
    assert!((0.85..1.1).contains(&share), "{share:.3} of the law");
}

#[test]
fn one_call_at_a_time_takes_its_service_the_line_and_the_host() {
    for size in [1024usize, 4096, 8192] {
        let profile = with(
            "486-wd8013",
            &[
                ("host.cost_scale", "0.01%"),
                ("bus.clock", "10GHz"),
                ("workload.rpc_outstanding", "1"),
                ("workload.rpc_size", &format!("{size}byte")),
            ],
        );
        let config = Config::new(&profile, Workload::NfsRead).unwrap();
        let outcome = run(&profile, Workload::NfsRead).unwrap();
        let frames = reply_frames(size).unwrap();
        let line: Span = frames.iter().fold(Span::ZERO, |sum, &len| sum + config.link.frame_time(len));
        let gaps = config.peer.gap.times(frames.len() as u64 - 1);
        // Of the request, and of the last frame of the reply: those before it are on their way meanwhile.
        let delays = config.link.delay.times(2);
        let request = config.link.frame_time(REQUEST_FRAME_LEN);
        let cycle = config.peer.service_time + line + gaps + delays + request;
        let share = outcome.bytes_per_second / (size as f64 / cycle.as_s());
        assert!((0.98..1.001).contains(&share), "{size}: {share:.4} of the closed form");
    }
}

#[test]
fn a_run_that_cannot_make_progress_says_who_waits_for_what() {
    let profile = with("ndis-2011", &[("adapter.checksum", "on"), ("adapter.verdict_fault", "1")]);
    let error = run(&profile, Workload::TtcpReceive).unwrap_err();
    assert!(matches!(error, ModelError::Stalled { .. }));
    let text = error.to_string();
    assert!(text.contains("the peer waits for byte 0 to be acknowledged"), "{text}");
    assert!(text.contains("called bad"), "{text}");
}

#[test]
fn a_run_in_which_nothing_came_through_is_no_outcome_of_zero() {
    // With one descriptor all that is under way is lost before anything is counted, and the run ends before the sender's
    // shortest timeout.
    let profile = Profile::load("server-82599").unwrap().with("adapter.receive_descriptors", "1");
    let error = run(&profile, Workload::TtcpReceive).unwrap_err();
    assert!(matches!(error, ModelError::Nothing { .. }));
    let text = error.to_string();
    assert!(text.contains("connection 0: the peer waits for byte 21720 to be acknowledged"), "{text}");
    assert!(text.contains("the adapter has lost 8 frames for want of room"), "{text}");
    assert!(text.contains("workload.time"), "{text}");
}

#[test]
fn a_bus_is_never_busier_than_the_time_that_was_counted_at_any_speed() {
    for (system, key, speeds) in [
        ("p4-e1000-pci", "bus.clock", ["1MHz", "5MHz", "30MHz"]),
        ("p4-e1000-pcix", "bus.clock", ["1MHz", "5MHz", "30MHz"]),
        ("server-100g", "bus.lanes", ["1lane", "2lane", "12lane"]),
    ] {
        for (speed, workload) in speeds.into_iter().flat_map(|speed| {
            [Workload::TtcpSend, Workload::TtcpReceive, Workload::TtcpBoth].map(|workload| (speed, workload))
        }) {
            // Frames go over the bus while they come, and fill memories that hold many of them.
            let settings =
                [("adapter.cut_through", "256byte"), ("adapter.receive_fifo", "2MiB"), ("workload.time", "20ms")];
            let profile = with(system, &settings).with("workload.warmup", "5ms").with(key, speed);
            let Ok(outcome) = run(&profile, workload) else { continue };
            let (busy, name) = (outcome.bus_limit_percent(), workload.name());
            assert!(busy <= 100.000_001, "{system} at {speed}, {name}: {busy} %");
            assert!(busy > 90.0 || speed != speeds[1], "{system} at {speed}, {name}: {busy} % of the limit");
        }
    }
}

fn line_bound(config: &Config, outcome: &Outcome) -> f64 {
    let mss = config.host.send.sender.mss;
    let frame = config.link.frame_time(mss + config.workload.headers_len) + config.link.gap();
    outcome.seconds / frame.as_s() * mss as f64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_host_sends_more_than_line_window_processor_and_bus_allow(
        scale in 20u64..400, window_kib in 4u64..256, mss in 500u64..8960, lso in prop::bool::ANY,
        bus in prop::sample::select(vec!["p4-e1000-pci", "p4-e1000-processor", "server-82599"]),
        workload in prop::sample::select(vec![Workload::TtcpSend, Workload::TtcpBoth]), delay_us in 0u64..500,
    ) {
        let window = (window_kib * 1024).max(2 * mss);
        let profile = with(bus, &[
            ("workload.time", "60ms"),
            ("host.cost_scale", &format!("{scale}%")),
            ("workload.mss", &format!("{mss}byte")),
            ("host.receive_window", &format!("{window}byte")),
            ("peer.receive_window", &format!("{window}byte")),
            ("adapter.lso", if lso { "on" } else { "off" }),
            ("link.delay", &format!("{delay_us}us")),
        ]);
        let config = Config::new(&profile, workload).unwrap();
        let outcome = run(&profile, workload).unwrap();
        let counts = &outcome.counts;
        let slack = (config.workload.flows * window) as f64 * 2.0;
        let sent = counts.bytes_sent as f64;
        prop_assert!(sent <= line_bound(&config, &outcome) + slack, "more than the line carries");
        let round_trip = config.link.delay.times(2) + config.link.frame_time(mss) + config.peer.turnaround_time;
        let windows = config.workload.flows as f64 * window as f64 * outcome.seconds / round_trip.as_s();
        prop_assert!(sent <= windows + slack, "more than a window in a round trip");
        prop_assert!(outcome.cpu_percent <= 100.000_001);
        let copied = sent * config.host.costs.write_copy_fs_per_byte as f64 / 1e15;
        prop_assert!(copied <= outcome.seconds * config.host.processors as f64 * 1.01 + slack / 1e8, "more than is copied");
        prop_assert!(outcome.bus_limit_percent() <= 100.000_001, "{:?}", outcome.bus_percent);
        prop_assert!(counts.interrupts <= counts.frames_arrived + counts.sends_completed + 1);
        prop_assert!(counts.sends_completed <= counts.frames_sent);
        prop_assert!(counts.bytes_sent <= counts.bytes);
        prop_assert_eq!(run(&profile, workload).unwrap(), outcome, "the same input gives the same bytes");
    }
}
