//! Several queues: each has its ring, its moderation and its processor, and a connection has one of them.

mod support;

use offramp_model::config::Workload::{NfsRead, TtcpBoth, TtcpReceive, TtcpSend};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};
use proptest::prelude::*;
use support::{Settings, settings, system};

/// A host of four processors at 100 Gbit/s, for a short time.
fn server(settings: &[(&str, &str)]) -> Profile {
    let base = Profile::load("server-100g").unwrap().with("host.processors", "4").with("host.placement", "spread");
    let base = base.with("workload.time", "30ms");
    settings.iter().fold(base, |profile, (key, value)| profile.with(key, value))
}

fn receives(settings: &[(&str, &str)]) -> Outcome {
    run(&server(settings), TtcpReceive).unwrap()
}

#[test]
fn each_queue_interrupts_its_own_processor_and_processes_are_where_the_placement_says() {
    for placement in ["spread", "pinned"] {
        let outcome = receives(&[("adapter.queues", "2"), ("workload.flows", "16"), ("host.placement", placement)]);
        let [first, second, spare, last] = &outcome.processor_loads[..] else { panic!("four processors") };
        for of in [first, second] {
            assert!(of.busy_percent_by_priority[0] > 0.0 && of.busy_percent_by_priority[1] > 0.0, "{of:?}");
        }
        for of in [spare, last] {
            assert_eq!(of.busy_percent_by_priority[..2], [0.0, 0.0], "{placement}: {of:?}");
        }
        assert!(last.busy_percent_by_priority[2] > 0.0);
        assert_eq!(spare.busy_percent_by_priority[2] > 0.0, placement == "spread", "{spare:?}");
        assert_eq!(outcome.queue_loads.iter().map(|queue| queue.processor).collect::<Vec<_>>(), [Some(0), Some(1)]);
    }
}

#[test]
fn fragments_of_all_replies_meet_in_one_queue() {
    let outcome = run(&server(&[("adapter.queues", "4"), ("workload.rpc_size", "8KiB")]), NfsRead).unwrap();
    let used = outcome.queue_loads.iter().filter(|queue| queue.frames_per_second > 0.0).count();
    assert_eq!(used, 1, "{:?}", outcome.queue_loads);
}

#[test]
fn what_several_queues_cannot_be_combined_with_is_refused() {
    let refused = |system, settings: &[(&str, &str)], why: &str| {
        let base = Profile::load(system).unwrap();
        let mut profile = settings.iter().fold(base, |profile, (key, value)| profile.with(key, value));
        let text = profile.set("adapter.queues", "2").unwrap_err().to_string();
        assert!(text.contains("adapter.queues: 2 queues") && text.contains(why), "{text}");
        assert_eq!(profile.value("adapter.queues"), 1, "what is refused changes nothing");
    };
    refused("486-wd8003ep", &[], "need adapter.access to be \"master\"; it is \"memory\"");
    refused("server-82599", &[("adapter.memory_kind", "dp8390")], "need adapter.memory_kind to be \"descriptors\"");
    refused("server-82599", &[("host.placement", "balanced")], "use host.placement \"pinned\" or \"spread\"");
    refused("ndis-2011", &[], "set host.poll_interval to 0us");
    let mut profile = server(&[("adapter.queues", "2")]);
    assert!(profile.set("host.placement", "balanced").is_err(), "in whichever order they are set");
}

fn systems() -> impl Strategy<Value = Settings> {
    settings(
        &[
            ("adapter.queues", 1..9, ""),
            ("host.processors", 1..6, ""),
            ("workload.flows", 1..12, ""),
            ("adapter.receive_descriptors", 8..512, ""),
            ("workload.seed", 0..1000, ""),
        ],
        &[
            ("host.placement", &["pinned", "spread"]),
            ("adapter.moderation", &["off", "fixed-gap", "coalescing", "e1000", "net-dim", "area", "quiet-or-area"]),
            ("host.receive", &["interrupt", "deferred"]),
            ("adapter.coalesce", &["off"]),
            ("host.receive_window", &["64KiB"]),
            ("workload.warmup", &["0s"]),
            ("workload.time", &["4ms"]),
        ],
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_and_interrupt_is_of_one_queue_and_every_load_of_one_processor(
        settings in systems(), workload in prop::sample::select(vec![TtcpReceive, TtcpSend, TtcpBoth, NfsRead]),
    ) {
        let profile = system("server-82599", &settings);
        let queue_count = profile.value("adapter.queues");
        let outcome = run(&profile, workload).unwrap();
        let counts = &outcome.counts;
        let per_second = |count: u64| count as f64 / outcome.seconds;
        let queues = &outcome.queue_loads;
        prop_assert_eq!(queues.len() as u64, queue_count);
        let frames: f64 = queues.iter().map(|queue| queue.frames_per_second).sum();
        let interrupts: f64 = queues.iter().map(|queue| queue.interrupts_per_second).sum();
        prop_assert!((frames - per_second(counts.frames_received)).abs() < 1.0);
        prop_assert!((interrupts - outcome.interrupts_per_second).abs() < 1.0);
        prop_assert!(queues.iter().map(|queue| queue.lost_frames).sum::<u64>() <= outcome.lost());
        let gone = counts.frames_received + outcome.lost();
        let held = counts.frames_arrived.checked_sub(gone).expect("no frame is counted twice");
        let descriptors = queue_count * profile.value("adapter.receive_descriptors");
        prop_assert!(held <= descriptors + 512, "{} frames held", held);
        prop_assert!(counts.interrupts <= counts.frames_arrived + counts.sends_completed + queue_count);

        let busy: f64 = outcome.processor_loads.iter().map(|of| of.busy_percent).sum();
        prop_assert!((busy - outcome.cpu_percent * profile.value("host.processors") as f64).abs() < 1e-6);
        prop_assert!(outcome.processor_loads.iter().all(|of| of.busy_percent <= 100.000_001));
        prop_assert_eq!(run(&profile, workload).unwrap(), outcome, "the same input gives the same bytes");
    }
}
