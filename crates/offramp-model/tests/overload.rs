//! More datagrams than a host can take: receive livelock as the closed form has it, and a poll loop that does not livelock.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::{Latency, Outcome, run};
use proptest::prelude::*;

/// Costs of a datagram, microseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    interrupt: u64,
    frame: u64,
    protocol: u64,
    application: u64,
}

fn outcome(costs: Costs, rate: u64, settings: &[(&str, &str)]) -> (Outcome, Latency) {
    let mut profile = Profile::load("server-82599").unwrap();
    let us = |us: u64| format!("{us}us");
    for (key, value) in [
        ("host.processors", "1".to_owned()),
        ("host.interrupt_time", us(costs.interrupt)),
        ("host.wake_time", us(0)),
        ("host.frame_time", us(costs.frame)),
        ("host.udp_time", us(costs.protocol)),
        ("host.read_time", us(0)),
        ("host.rpc_time", us(costs.application)),
        ("host.copy_time", "0ns/byte".to_owned()),
        ("adapter.coalesce", "off".to_owned()),
        // Two batches fit into the socket.
        ("host.receive_window", "128KiB".to_owned()),
        ("adapter.moderation", "off".to_owned()),
        ("workload.arrivals", "periodic".to_owned()),
        ("workload.request_rate", rate.to_string()),
        ("workload.warmup", "500ms".to_owned()),
        ("workload.time", "300ms".to_owned()),
    ] {
        profile.set(key, &value).unwrap();
    }
    for (key, value) in settings {
        profile.set(key, value).unwrap();
    }
    let outcome = run(&profile, Workload::UdpReceive).unwrap();
    let latency = outcome.latency.clone().unwrap();
    (outcome, latency)
}

fn costs() -> impl Strategy<Value = Costs> {
    (4_u64..20, 4_u64..20, 4_u64..20, 4_u64..40).prop_map(|(interrupt, frame, protocol, application)| Costs {
        interrupt,
        frame,
        protocol,
        application,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn with_an_interrupt_a_frame_processes_get_what_receiving_leaves_of_the_processor(
        costs in costs(),
        share_percent in 5_u64..95,
    ) {
        // Interrupts and protocol take this share of the processor, before any process.
        let receiving = costs.interrupt + costs.frame + costs.protocol;
        let rate = share_percent * 10_000 / receiving;
        let (_, latency) = outcome(costs, rate, &[("host.receive", "interrupt")]);
        let left = 1e6 - (rate * receiving) as f64;
        let expected = (rate as f64).min(left / costs.application as f64);
        prop_assert!((latency.done_per_second / expected - 1.0).abs() < 0.02 || (latency.done_per_second - expected).abs() < 50.0,
            "{} of {rate} datagrams, {expected} by the closed form", latency.done_per_second);
    }

    #[test]
    fn where_handlers_take_all_of_the_processor_the_backlog_bounds_what_waits_for_the_protocol(
        costs in costs(),
        overload_percent in 101_u64..300,
        backlog in 1_u64..500,
    ) {
        let rate = overload_percent * 10_000 / costs.frame;
        let settings = [("host.receive", "interrupt"), ("host.backlog", &backlog.to_string())];
        let (overloaded, latency) = outcome(costs, rate, &settings);
        // The ring, and what the socket has.
        let waiting = backlog + 4096 + 1000;
        prop_assert!(latency.under_way_at_end <= waiting, "{latency:?}");
        prop_assert_eq!(latency.sender_dropped_per_second.to_bits(), 0.0_f64.to_bits());
        prop_assert!(!latency.grows && overloaded.cpu_percent > 99.0);
    }

    #[test]
    fn a_poll_loop_with_a_budget_delivers_what_the_processor_can_when_receiving_alone_exceeds_it(
        costs in costs(),
        overload_percent in 110_u64..500,
        budget in 1_u64..128,
        receive in prop::sample::select(vec!["interrupt", "deferred"]),
    ) {
        // Receiving alone is more than the processor can do, so the ring is never empty.
        let rate = overload_percent * 10_000 / (costs.frame + costs.protocol);
        let capacity = 1e6 / (costs.frame + costs.protocol + costs.application) as f64;
        let budget = budget.to_string();
        let (polled, latency) = outcome(costs, rate, &[("host.receive", "deferred"), ("host.poll_budget", &budget)]);
        prop_assert!((latency.done_per_second / capacity - 1.0).abs() < 0.02, "{} of {capacity}", latency.done_per_second);
        prop_assert!(polled.interrupts_per_second < 10.0, "{} interrupts/s", polled.interrupts_per_second);
        // Nobody delivers more than the processor can, or more than is offered.
        let (_, other) = outcome(costs, rate, &[("host.receive", receive)]);
        prop_assert!(other.done_per_second <= capacity * 1.01);
        let all = latency.done_per_second + latency.lost_per_second;
        prop_assert!((all / latency.offered_per_second - 1.0).abs() < 0.02, "{all} of {}", latency.offered_per_second);
    }
}
