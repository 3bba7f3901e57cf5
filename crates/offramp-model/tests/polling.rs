//! A driver that polls as Linux' NAPI does: when interrupts are off and on again, what software holds to coalesce, and what a
//! process that polls saves.

use offramp_model::config::Workload::{self, UdpReceive, UdpSend};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};
use proptest::prelude::*;

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
    fn queues_of_one_processor_share_its_budget(queues in 1_u64..6, weight in 1_u64..64, budget in 64_u64..300) {
        // A socket that takes what comes between two turns of the process: the budget, what the last poll exceeds it by, and
        // what the protocol has not handed over when the turn begins.
        const DATAGRAM_LEN: u64 = 60 + 256;
        let numbers = [queues, weight, budget].map(|number| number.to_string());
        let window = format!("{}byte", DATAGRAM_LEN * (budget + weight * (queues + 1)));
        let settings = [
            ("workload.arrivals", "periodic"),
            ("workload.request_rate", "3000000"),
            ("workload.flows", "16"),
            ("workload.time", "50ms"),
            ("host.processors", "1"),
            ("host.receive_window", &window),
            ("adapter.queues", &numbers[0]),
            ("host.poll_weight", &numbers[1]),
            ("host.poll_budget", &numbers[2]),
        ];
        let latency = outcome(UdpReceive, &settings).latency.unwrap();
        prop_assert!(latency.done_per_second > 0.0 && latency.adapter_dropped_per_second > 0.0, "{latency:?}");
        prop_assert_eq!(latency.socket_dropped_per_second.to_bits(), 0.0_f64.to_bits());
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
