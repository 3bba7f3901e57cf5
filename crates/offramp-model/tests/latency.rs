//! Latency against queueing theory: waits of servers that closed forms give, and Little's law for any system.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::profile::schema::KEYS;
use offramp_model::simulation::{Latency, run};
use proptest::prelude::*;

const SERVICE_US: f64 = 10.0;
const LOAD: f64 = 0.7;

/// A host that takes no time but for its application, on a link and a bus that hardly take any.
fn server(service: &str, settings: &[(&str, &str)]) -> Latency {
    let mut profile = Profile::load("server-82599").unwrap();
    profile.set_base_units(KEYS.iter().filter(|key| key.is_scaled).map(|key| (key, 0))).unwrap();
    let rate = format!("{}request/s", (LOAD / SERVICE_US * 1e6) as u64);
    for (key, value) in [
        ("bus.kind", "unlimited"),
        ("adapter.moderation", "off"),
        ("adapter.receive_time", "0ns"),
        ("adapter.segment_time", "0ns"),
        ("link.rate", "400Gbit/s"),
        ("link.delay", "0us"),
        ("peer.turnaround_time", "0us"),
        ("peer.gap", "0us"),
        ("host.rpc_time", "10us"),
        ("workload.arrivals", "poisson"),
        ("workload.request_rate", &rate),
        ("workload.service", service),
        ("workload.time", "15s"),
    ] {
        profile.set(key, value).unwrap_or_else(|error| panic!("{error}"));
    }
    profile.set_all(settings.iter().copied()).unwrap();
    run(&profile, Workload::UdpRr).unwrap().latency.unwrap()
}

/// The time that a share of requests stays below, by the distribution of the time that a request is under way.
fn quantile(share: f64, distribution: impl Fn(f64) -> f64) -> f64 {
    // The sum of M/D/1 alternates, so it has no digits left far beyond.
    let (mut low, mut high) = (0.0, 300.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if distribution(middle) < share { low = middle } else { high = middle }
    }
    low
}

fn assert_quantiles(latency: &Latency, distribution: impl Fn(f64) -> f64) {
    for (share, modelled) in [(0.5, latency.p50_us), (0.95, latency.p95_us), (0.99, latency.p99_us)] {
        let expected = quantile(share, &distribution);
        println!("{share}: {expected:.2} us by the closed form, {modelled:.2} modelled");
        assert!((modelled / expected - 1.0).abs() < 0.03, "{share}: {modelled} against {expected}");
    }
}

#[test]
fn random_requests_of_equal_work_wait_as_in_m_d_1() {
    // Erlang 1909; Iversen, Teletraffic Engineering, 10.4.2: the wait is at most t with this probability.
    let wait = |t: f64| {
        let terms = (0..=t as i32).scan(1.0, |factorial, k| {
            *factorial *= f64::from(k.max(1));
            let rest = LOAD * (t - f64::from(k));
            Some((-rest).powi(k) / *factorial * rest.exp())
        });
        (1.0 - LOAD) * terms.sum::<f64>()
    };
    assert_quantiles(&server("fixed", &[]), |us| if us < SERVICE_US { 0.0 } else { wait(us / SERVICE_US - 1.0) });
}

#[test]
fn random_requests_of_exponential_work_wait_as_in_m_m_1() {
    assert_quantiles(&server("exponential", &[]), |us| 1.0 - (-(1.0 - LOAD) * us / SERVICE_US).exp());
}

#[test]
fn a_process_that_sleeps_runs_after_a_least_time_and_an_exponentially_distributed_one() {
    let settings = [
        ("workload.arrivals", "closed"),
        ("host.rpc_time", "0us"),
        ("host.wake_up_time", "30us"),
        ("host.wake_up_tail", "6us"),
    ];
    assert_quantiles(&server("fixed", &settings), |us| 1.0 - (-(us - 30.0).max(0.0) / 6.0).exp());
}

#[test]
fn a_lone_request_is_as_late_as_the_timer_that_ends_the_gap_between_interrupts() {
    let settings = [
        ("workload.arrivals", "closed"),
        ("workload.time", "1s"),
        ("adapter.moderation", "fixed-gap"),
        ("adapter.interrupt_rate", "8000"),
        ("adapter.timer_latency", "15us"),
        // What is sent needs no interrupt.
        ("adapter.transmit_moderation", "coalescing"),
        ("adapter.transmit_wait", "1s"),
        ("adapter.transmit_frames", "1000000"),
    ];
    let latency = server("fixed", &settings);
    assert!((latency.p50_us - 140.0).abs() < 1.0, "{} us", latency.p50_us);
}

/// What is under way, on average, is rate times latency; and the parts make up the latency.
fn assert_littles_law(system: &str, workload: Workload, settings: &[(&str, String)]) {
    let mut profile = Profile::load(system).unwrap();
    profile.set_all([("workload.time", "400ms"), ("workload.warmup", "100ms")]).unwrap();
    profile.set_all(settings.iter().map(|(key, value)| (*key, value.as_str()))).unwrap();
    let outcome = run(&profile, workload).unwrap();
    let of = outcome.latency.unwrap();
    let (done, lost) = (of.done_per_second * outcome.seconds, of.lost_per_second * outcome.seconds);
    // What was under way at either end: the slots that there are.
    let offered = of.offered_per_second * outcome.seconds;
    assert!((offered - done - lost).abs() <= 65_536.0, "{offered} due, {done} done, {lost} lost");
    let parts: f64 = of.parts.iter().map(|part| part.mean_us).sum();
    // The histogram's mean has an error of its own: 0.1 %, and whole nanoseconds.
    assert!(done == 0.0 || (parts - of.mean_us).abs() <= 0.001 * parts + 0.002, "{parts} against {}", of.mean_us);
    // Of those that were lost nobody knows how long they were under way.
    let ends = of.max_us / 1e6 / outcome.seconds;
    if lost == 0.0 && done > 1000.0 && ends < 0.01 {
        // Those that wait to be sent again, or in a queue that grows, have no latency yet.
        let waited = of.under_way_at_end as f64 * of.under_way_at_end_us;
        let law = (of.done_per_second * of.mean_us + waited / outcome.seconds) / 1e6;
        assert!((law / of.under_way - 1.0).abs() < 0.02, "{} under way, {law} by the law", of.under_way);
    }
}

#[test]
fn littles_law_holds_where_some_requests_wait_to_be_sent_again_when_the_run_ends() {
    // Bursts of 144 segments into a ring of 137: what finds no room is sent again after a second.
    let settings = [
        ("workload.arrivals", "bursts"),
        ("workload.request_rate", "182149"),
        ("workload.burst", "72"),
        ("workload.request_size", "1781byte"),
        ("workload.response_size", "1449byte"),
        ("adapter.receive_descriptors", "137"),
    ];
    assert_littles_law("server-100g", Workload::TcpRr, &settings.map(|(key, value)| (key, value.to_owned())));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_under_way_is_rate_times_latency_and_the_parts_make_up_the_latency(
        system in prop::sample::select(vec!["486-wd8003ep", "p4-e1000-pci", "server-82599", "server-100g"]),
        workload in prop::sample::select(vec![Workload::UdpReceive, Workload::UdpRr, Workload::TcpRr]),
        role in prop::sample::select(vec!["server", "client"]),
        arrivals in prop::sample::select(vec!["closed", "poisson", "periodic", "bursts"]),
        (flows, outstanding, rate, burst) in (1_u64..5, 1_u64..9, 10_u64..200_000, 1_u64..100),
        (request, response) in (1_u64..5000, 1_u64..5000),
        descriptors in 8_u64..256,
    ) {
        assert_littles_law(system, workload, &[
            ("workload.role", role.to_owned()),
            ("workload.arrivals", arrivals.to_owned()),
            ("workload.flows", flows.to_string()),
            ("workload.outstanding", outstanding.to_string()),
            ("workload.request_rate", rate.to_string()),
            ("workload.burst", burst.to_string()),
            ("workload.request_size", format!("{request}byte")),
            ("workload.response_size", format!("{response}byte")),
            ("adapter.receive_descriptors", descriptors.to_string()),
        ]);
    }
}
