//! Raw frames that a host receives, sends or forwards: none goes without being counted, no line carries more than it can, and
//! overload ends as closed forms have it.

use offramp_model::config::{IMIX, Workload};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Latency, Outcome, run};
use proptest::prelude::*;

/// Preamble and gap of a frame on the wire, bytes.
const OVERHEAD_LEN: u64 = 8 + 12;

fn outcome(system: &str, workload: Workload, settings: &[(&str, String)]) -> (Outcome, Latency) {
    let mut profile = Profile::load(system).unwrap();
    profile.set_all(settings.iter().map(|(key, value)| (*key, value.as_str()))).unwrap();
    let outcome = run(&profile, workload).unwrap_or_else(|error| panic!("{error}"));
    let latency = outcome.latency.clone().unwrap();
    (outcome, latency)
}

/// Microseconds of a frame on one processor, with a bus that takes no time and adapters that interrupt for each frame.
#[derive(Clone, Copy, Debug)]
struct Costs {
    interrupt: u64,
    frame: u64,
    route: u64,
}

impl Costs {
    fn forwarded(self, rate: u64, settings: &[(&str, &str)]) -> (Outcome, Latency) {
        let us = |us: u64| format!("{us}us");
        let own = settings.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let all: Vec<_> = [
            ("host.processors", "1".to_owned()),
            ("host.interrupt_time", us(self.interrupt)),
            ("host.frame_time", us(self.frame)),
            ("host.route_time", us(self.route)),
            ("host.completion_time", us(0)),
            ("bus.kind", "unlimited".to_owned()),
            ("adapter.coalesce", "off".to_owned()),
            ("adapter.moderation", "off".to_owned()),
            ("workload.request_rate", rate.to_string()),
            ("workload.warmup", "200ms".to_owned()),
            ("workload.time", "300ms".to_owned()),
        ]
        .into_iter()
        .chain(own)
        .collect();
        outcome("server-82599", Workload::Forward, &all)
    }
}

fn costs() -> impl Strategy<Value = Costs> {
    (1_u64..4, 10_u64..40, 10_u64..80).prop_map(|(interrupt, frame, route)| Costs { interrupt, frame, route })
}

#[derive(Clone, Debug)]
struct Traffic {
    system: &'static str,
    is_forwarded: bool,
    settings: Vec<(&'static str, String)>,
    frame_size: u64,
    is_mixed: bool,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let workload = (
        prop::sample::select(vec!["486-wd8003ep", "p4-e1000-pci", "server-82599", "server-100g"]),
        any::<bool>(),
        prop::sample::select(vec!["to-host", "from-host", "both"]),
        prop::sample::select(vec!["poisson", "periodic", "bursts"]),
        prop::sample::select(vec!["single", "imix"]),
    );
    let numbers = (100_u64..4_000_000, 64_u64..1518, 1_u64..200, 1_u64..5, 0_u64..1000);
    let host = (
        prop::sample::select(vec!["interrupt", "deferred"]),
        prop::sample::select(vec!["full", "half"]),
        0_u64..80,
        1_u64..400,
        0_u64..400,
        prop::sample::select(vec!["off", "fixed-gap", "coalescing", "net-dim"]),
    );
    let processors = (1_u64..4, prop::sample::select(vec!["pinned", "balanced", "spread"]), 1_u64..4);
    (workload, numbers, host, processors).prop_map(|(workload, numbers, host, (processors, placement, queues))| {
        let (system, is_forwarded, direction, arrivals, mix) = workload;
        let (rate, frame_size, burst, flows, seed) = numbers;
        let (receive, duplex, budget, backlog, output_queue, moderation) = host;
        // Ten megabits share a line, and take few frames.
        let is_old = system.starts_with("486");
        let settings = vec![
            ("workload.direction", direction.to_owned()),
            ("workload.arrivals", arrivals.to_owned()),
            ("workload.frame_mix", mix.to_owned()),
            ("workload.request_rate", if is_old { rate / 100 } else { rate }.to_string()),
            ("workload.frame_size", format!("{frame_size}byte")),
            ("workload.burst", burst.to_string()),
            ("workload.flows", flows.to_string()),
            ("workload.seed", seed.to_string()),
            ("host.receive", receive.to_owned()),
            ("adapter.coalesce", "off".to_owned()),
            ("link.duplex", if is_old { duplex } else { "full" }.to_owned()),
            ("host.poll_budget", budget.to_string()),
            ("host.backlog", backlog.to_string()),
            ("host.output_queue", output_queue.to_string()),
            ("adapter.moderation", moderation.to_owned()),
            ("host.processors", processors.to_string()),
            ("host.placement", placement.to_owned()),
            ("adapter.queues", if is_old || placement == "balanced" { 1 } else { queues }.to_string()),
            // Nothing is under way yet when counting begins.
            ("workload.warmup", "0s".to_owned()),
            ("workload.time", if is_old { "3s" } else { "20ms" }.to_owned()),
        ];
        Traffic { system, is_forwarded, settings, frame_size, is_mixed: mix == "imix" }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn each_frame_is_delivered_or_lost_at_one_place_or_under_way_and_no_line_or_bus_carries_more_than_it_can(
        of in traffic(),
    ) {
        let workload = if of.is_forwarded { Workload::Forward } else { Workload::Source };
        let (outcome, frames) = outcome(of.system, workload, &of.settings);
        let count = |per_second: f64| (per_second * outcome.seconds).round() as u64;
        let due = count(frames.offered_per_second);
        let places = [
            frames.sender_dropped_per_second,
            frames.adapter_dropped_per_second,
            frames.backlog_dropped_per_second,
            frames.output_queue_dropped_per_second,
        ];
        let lost: u64 = places.into_iter().map(count).sum();
        prop_assert_eq!(due, count(frames.done_per_second) + lost + frames.under_way_at_end, "{:?}", frames);
        prop_assert_eq!(frames.socket_dropped_per_second.to_bits(), 0.0_f64.to_bits());
        prop_assert!(outcome.line_percent.iter().all(|&percent| percent <= 100.0), "{:?}", outcome.line_percent);
        prop_assert!(outcome.bus_limit_percent() <= 100.01, "{:?}", outcome.bus_percent);
        let smallest = if of.is_mixed { IMIX[0].1 } else { of.frame_size };
        let directions = if of.settings.contains(&("workload.direction", "both".to_owned())) { 2.0 } else { 1.0 };
        let line = Profile::load(of.system).unwrap().value("link.rate") as f64 / (8 * (smallest + OVERHEAD_LEN)) as f64;
        prop_assert!(
            frames.done_per_second <= directions * (line + 2.0 / outcome.seconds),
            "{} of {line}", frames.done_per_second
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn with_an_interrupt_a_frame_forwarding_gets_what_interrupts_leave_of_the_processor(
        costs in costs(),
        share_percent in 10_u64..150,
    ) {
        let received = costs.interrupt + costs.frame;
        let rate = share_percent * 10_000 / received;
        // A frame that is sent costs an interrupt, too. Where that delays the handler of one that is received until the next
        // one is there, or where handlers never end, frames have no interrupt each.
        let have_one_each = 1_000_000 / rate >= received + costs.interrupt;
        let never_ends = rate * costs.frame > 1_020_000;
        prop_assume!(have_one_each || never_ends);
        let (outcome, frames) = costs.forwarded(rate, &[("host.receive", "interrupt"), ("host.backlog", "50")]);
        let left = (1e6 - (rate * received) as f64).max(0.0);
        let expected = (rate as f64).min(left / (costs.route + costs.interrupt) as f64);
        prop_assert!(
            (frames.done_per_second - expected).abs() <= (0.03 * expected).max(20.0),
            "{} of {rate} frames, {expected} by the closed form", frames.done_per_second
        );
        // What is received for nothing is lost in the backlog, after the processor has worked for it.
        if expected < 0.9 * rate as f64 && have_one_each {
            prop_assert!(frames.backlog_dropped_per_second > 0.9 * frames.lost_per_second, "{frames:?}");
            prop_assert!(outcome.cpu_percent > 99.0);
        }
    }

    #[test]
    fn a_poll_loop_with_a_budget_holds_its_peak_at_any_load(
        costs in costs(),
        overload_percent in 110_u64..600,
        budget in prop::sample::select(vec![1_u64, 4, 16, 64, 300]),
    ) {
        let work = costs.frame + costs.route;
        let rate = overload_percent * 10_000 / work;
        // One batch more or less.
        let batch = budget as f64 / 0.3;
        let budget = budget.to_string();
        let (_, frames) = costs.forwarded(rate, &[("host.receive", "deferred"), ("host.poll_budget", &budget)]);
        // Each frame that is sent may cost an interrupt, or find the one before it under way.
        let [most, least] = [work, work + costs.interrupt].map(|us| 1e6 / us as f64);
        prop_assert!(
            (0.97 * least..=1.01 * most + batch).contains(&frames.done_per_second),
            "{} of {rate} frames; {least} to {most} by the closed form", frames.done_per_second
        );
        // What is lost was not worked for. A ring that fills slowly has lost nothing yet.
        prop_assert!(frames.adapter_dropped_per_second >= 0.97 * frames.lost_per_second, "{frames:?}");
    }

    #[test]
    fn the_frames_in_each_queue_are_their_rate_times_their_wait(
        system in prop::sample::select(vec!["p4-e1000-pci", "server-82599", "server-100g"]),
        receive in prop::sample::select(vec!["interrupt", "deferred"]),
        arrivals in prop::sample::select(vec!["poisson", "bursts"]),
        (rate, burst, descriptors) in (20_000_u64..200_000, 1_u64..100, 1_u64..100),
    ) {
        let (outcome, frames) = outcome(system, Workload::Forward, &[
            ("host.receive", receive.to_owned()),
            ("adapter.coalesce", "off".to_owned()),
            ("adapter.transmit_descriptors", descriptors.to_string()),
            ("workload.arrivals", arrivals.to_owned()),
            ("workload.burst", burst.to_string()),
            ("workload.request_rate", rate.to_string()),
            ("workload.warmup", "50ms".to_owned()),
            ("workload.time", "300ms".to_owned()),
        ]);
        // Of those that were lost nobody knows how long they waited.
        prop_assume!(frames.lost_per_second == 0.0 && frames.max_us / 1e6 / outcome.seconds < 0.01);
        let wait_us = |names: &[&str]| -> f64 {
            frames.parts.iter().filter(|part| names.contains(&part.name)).map(|part| part.mean_us).sum()
        };
        for (name, stages) in [
            ("ring", &["moderation", "interrupt"][..]),
            ("backlog", &["softirq"]),
            ("output queue", &["output queue"]),
        ] {
            let law = frames.done_per_second * wait_us(stages) / 1e6;
            let mean = frames.queues.iter().find(|queue| queue.name == name).unwrap().mean_frames;
            prop_assert!((mean - law).abs() <= 0.02 * law + 0.002, "{name}: {mean} frames, {law} by the law");
        }
        let law = frames.done_per_second * frames.mean_us / 1e6;
        prop_assert!((frames.under_way / law - 1.0).abs() < 0.02, "{} under way, {law} by the law", frames.under_way);
    }
}

#[test]
fn equal_seeds_give_equal_bytes_and_another_seed_another_mix() {
    for workload in [Workload::Source, Workload::Forward] {
        let of = |seed: &str| {
            let settings = ["workload.frame_mix", "workload.arrivals", "workload.seed", "workload.request_rate"];
            let values = ["imix", "poisson", seed, "500000"].map(str::to_owned);
            let settings: Vec<_> = settings.into_iter().zip(values).collect();
            format!("{:?}", outcome("server-82599", workload, &settings))
        };
        let [first, again, other] = ["1", "1", "2"].map(of);
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}

#[test]
fn an_adapter_that_sends_more_slowly_than_frames_come_fills_the_output_queue_and_the_rest_is_lost_there() {
    let settings = [
        ("adapter.gap", "10us".to_owned()),
        ("adapter.moderation", "off".to_owned()),
        ("adapter.transmit_descriptors", "16".to_owned()),
        ("host.output_queue", "50".to_owned()),
        ("workload.request_rate", "200000".to_owned()),
        ("workload.time", "200ms".to_owned()),
    ];
    let (_, frames) = outcome("server-82599", Workload::Forward, &settings);
    // The smallest frame at 10 Gbit/s without its gap: 72 bytes.
    let expected = 1e6 / (10.0 + 0.0576);
    assert!((frames.done_per_second / expected - 1.0).abs() < 0.001, "{frames:?}");
    let rest = 200_000.0 - frames.done_per_second;
    assert!((frames.output_queue_dropped_per_second / rest - 1.0).abs() < 0.001, "{frames:?}");
    let waiting = frames.queues.iter().find(|queue| queue.name == "output queue").unwrap().mean_frames;
    assert!((40.0..=50.0).contains(&waiting) && frames.under_way_at_end < 200, "{frames:?}");
}
