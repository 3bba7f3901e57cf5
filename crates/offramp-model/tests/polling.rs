//! A driver that polls as Linux' NAPI does: when interrupts are off and on again, what software holds to coalesce, and what a
//! process that polls saves.

use offramp_model::config::Workload::{self, TtcpReceive, UdpReceive, UdpRr, UdpSend};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};
use proptest::prelude::*;

const INTERRUPT_US: f64 = 4.0;
const WAKE_US: f64 = 3.0;
const POLL_US: f64 = 0.2;

/// A server that is interrupted for each frame, unless `settings` say otherwise.
fn outcome(workload: Workload, settings: &[(&str, &str)]) -> Outcome {
    let base = Profile::load("server-82599").unwrap().with("adapter.moderation", "off").with("host.rpc_time", "2us");
    let base = base.with("host.interrupt_time", "4us").with("host.wake_time", "3us").with("host.poll_time", "200ns");
    run(&settings.iter().fold(base, |profile, (key, value)| profile.with(key, value)), workload).unwrap()
}

/// Datagrams at equal intervals to a host that defers its interrupts.
fn deferred(interval_us: u64, defer: u64, timeout_us: u64) -> Outcome {
    let rate = (1_000_000 / interval_us).to_string();
    let (defer, timeout) = (defer.to_string(), format!("{timeout_us}us"));
    let settings = [
        ("workload.arrivals", "periodic"),
        ("workload.request_rate", &rate),
        ("host.defer_hard_irqs", &defer),
        ("host.gro_flush_timeout", &timeout),
        ("workload.time", "50ms"),
    ];
    outcome(UdpReceive, &settings)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_that_come_before_the_last_deferral_is_over_never_interrupt(
        timeout_us in 20_u64..200, defer in 1_u64..10, share_percent in 20_u64..80,
    ) {
        // The poll of a frame, then one by the timer after each time, of which this many may find nothing.
        let interval_us = (defer * timeout_us * share_percent / 100).clamp(10, 1000);
        let deferred = deferred(interval_us, defer, timeout_us);
        let latency = deferred.latency.as_ref().unwrap();
        prop_assert_eq!(deferred.counts.interrupts, 0);
        prop_assert!((latency.done_per_second / latency.offered_per_second - 1.0).abs() < 0.02);
        // A frame waits for the timer at most, and then for its handling.
        prop_assert!(latency.max_us < timeout_us as f64 + 30.0, "{} us", latency.max_us);
    }

    #[test]
    fn frames_that_come_after_the_last_deferral_interrupt_each(
        timeout_us in 20_u64..60, defer in 1_u64..5, further_us in 60_u64..200,
    ) {
        let interval_us = (defer + 1) * timeout_us + further_us;
        let [deferred, plain] = [deferred(interval_us, defer, timeout_us), deferred(interval_us, 0, 0)];
        prop_assert_eq!(deferred.counts.interrupts, plain.counts.interrupts);
        // Each poll of the timer costs an interrupt of its own.
        prop_assert!(deferred.cpu_percent > plain.cpu_percent);
    }

    #[test]
    fn a_weight_changes_nothing_in_what_an_overloaded_processor_delivers(weight in 1_u64..128, budget in 64_u64..400) {
        let (weight, budget) = (weight.to_string(), budget.to_string());
        let of = |weight: &str| {
            let settings = [
                ("workload.arrivals", "periodic"),
                ("workload.request_rate", "3000000"),
                ("host.processors", "1"),
                ("host.receive_window", "1MiB"),
                ("host.poll_budget", &budget),
                ("host.poll_weight", weight),
            ];
            outcome(UdpReceive, &settings).latency.unwrap().done_per_second
        };
        let (weighted, plain) = (of(&weight), of("0"));
        prop_assert!((weighted / plain - 1.0).abs() < 0.02, "{weighted} against {plain}");
    }

    #[test]
    fn completions_with_a_rule_of_their_own_interrupt_once_for_that_number(frames in 2_u64..64) {
        let frames_text = frames.to_string();
        let settings = [
            ("workload.rate", "500Mbit/s"),
            ("workload.write_size", "1KiB"),
            ("adapter.transmit_moderation", "coalescing"),
            ("adapter.transmit_wait", "10ms"),
            ("adapter.transmit_frames", &frames_text),
        ];
        let [apart, shared] = [outcome(UdpSend, &settings), outcome(UdpSend, &settings[..2])];
        let expected = apart.counts.sends_completed / frames;
        prop_assert!(apart.counts.interrupts.abs_diff(expected) <= 1, "{} of {expected}", apart.counts.interrupts);
        prop_assert!(shared.counts.interrupts > expected);
        prop_assert!(apart.counts.sends_completed.abs_diff(shared.counts.sends_completed) <= frames);
    }
}

#[test]
fn software_coalesces_over_several_polls_where_a_timer_ends_the_wait() {
    let of = |timeout| {
        let settings = [
            ("adapter.coalesce", "host"),
            ("host.gro_flush_timeout", timeout),
            ("workload.rate", "2Gbit/s"),
            ("peer.gap", "5us"),
        ];
        outcome(TtcpReceive, &settings)
    };
    let [without, with] = [of("0us"), of("50us")];
    let per_aggregate =
        |outcome: &Outcome| outcome.counts.frames_received as f64 / outcome.counts.segments_received as f64;
    assert!(per_aggregate(&without) < 2.0, "{}", per_aggregate(&without));
    assert!(per_aggregate(&with) > 4.0, "{}", per_aggregate(&with));
    assert!((with.bytes_per_second / without.bytes_per_second - 1.0).abs() < 0.02, "and nothing is lost or late");
    assert!(with.cpu_percent < without.cpu_percent);
}

#[test]
fn what_software_looks_at_to_coalesce_costs_it_time_for_each_frame() {
    // Datagrams are not coalesced.
    let of = |time| {
        let settings = [("adapter.coalesce", "host"), ("host.gro_time", time), ("workload.request_rate", "50000")];
        outcome(UdpReceive, &[&settings[..], &[("workload.arrivals", "periodic")]].concat())
    };
    let [without, with] = [of("0us"), of("1us")];
    let busy_us = |outcome: &Outcome| outcome.counts.busy.iter().map(|span| span.as_s() * 1e6).sum::<f64>();
    let more_us = (busy_us(&with) - busy_us(&without)) / with.counts.frames_received as f64;
    assert!((more_us - 1.0).abs() < 0.01, "{more_us} us for each frame");
}

/// One request at a time to a server, whose process polls for `busy_poll`.
fn requests(busy_poll: &str, settings: &[(&str, &str)]) -> Outcome {
    outcome(UdpRr, &[&[("host.busy_poll", busy_poll), ("workload.time", "50ms")], settings].concat())
}

#[test]
fn a_process_that_polls_long_enough_is_never_interrupted_and_answers_sooner_by_an_interrupt_and_a_wake_up() {
    let [sleeps, polls] = [requests("0us", &[]), requests("100us", &[])];
    let p50_us = |outcome: &Outcome| outcome.latency.as_ref().unwrap().p50_us;
    let sooner_us = p50_us(&sleeps) - p50_us(&polls);
    assert!((sooner_us - INTERRUPT_US - WAKE_US).abs() <= 2.0 * POLL_US + 0.1, "{sooner_us} us");
    assert_eq!(polls.counts.interrupts, 0);
    let busiest = |outcome: &Outcome| outcome.busiest_processor_percent;
    assert!(busiest(&polls) > 99.0 && busiest(&sleeps) < 90.0, "{} and {} %", busiest(&polls), busiest(&sleeps));
}

#[test]
fn a_process_that_stops_polling_before_the_next_request_is_interrupted_for_each() {
    // It finds that its response has left, for which one that sleeps is interrupted, too.
    let [sleeps, polls] = [requests("0us", &[("link.delay", "50us")]), requests("10us", &[("link.delay", "50us")])];
    let done = |outcome: &Outcome| outcome.latency.as_ref().unwrap().done_per_second;
    assert!((done(&polls) / done(&sleeps) - 1.0).abs() < 0.02);
    assert!((sleeps.interrupts_per_second / done(&sleeps) - 2.0).abs() < 0.02);
    assert!((polls.interrupts_per_second / done(&polls) - 1.0).abs() < 0.02);
}

#[test]
fn interrupts_are_suspended_while_a_process_works_on_what_it_has_polled() {
    let load = [
        ("host.rpc_time", "20us"),
        ("workload.arrivals", "poisson"),
        ("workload.request_rate", "30000"),
        ("workload.flows", "8"),
        ("host.placement", "pinned"),
    ];
    let interrupts = |suspend| {
        let suspended = requests("2ms", &[&load[..], &[("host.irq_suspend_timeout", suspend)]].concat());
        let latency = suspended.latency.as_ref().unwrap();
        assert!((latency.done_per_second / latency.offered_per_second - 1.0).abs() < 0.05, "{suspend}");
        suspended.interrupts_per_second
    };
    let [on, suspended] = [interrupts("0us"), interrupts("10ms")];
    assert!(on > 5000.0, "{on} interrupts/s: requests come while the process works");
    assert!(suspended < 10.0, "{suspended} interrupts/s");
}
