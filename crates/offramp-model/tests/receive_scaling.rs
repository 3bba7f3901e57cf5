//! Several queues: each has its ring, its moderation and its processor, and a connection has one of them.

use offramp_model::config::Workload::{self, NfsRead, TtcpBoth, TtcpReceive, TtcpSend};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};
use proptest::prelude::*;

/// A host of four processors at 100 Gbit/s, for a short time.
fn server(settings: &[(&str, &str)]) -> Profile {
    let base = Profile::load("server-100g").unwrap().with("host.processors", "4").with("host.placement", "spread");
    let base = base.with("workload.time", "30ms");
    settings.iter().fold(base, |profile, (key, value)| profile.with(key, value))
}

fn receives(settings: &[(&str, &str)]) -> Outcome {
    run(&server(settings), TtcpReceive).unwrap()
}

/// Without coalescing, each frame costs its own receive work, which is the limit.
fn frame_by_frame(queues: &str, flows: &str) -> Outcome {
    // All that is under way fits into one ring: what is lost hides what queues bring.
    let lossless = [("adapter.receive_descriptors", "4096"), ("host.receive_window", "128KiB")];
    let settings = [("adapter.coalesce", "off"), ("adapter.queues", queues), ("workload.flows", flows)];
    receives(&[&lossless[..], &settings].concat())
}

#[test]
fn one_connection_is_no_faster_on_several_queues_whatever_its_hash() {
    let single = receives(&[("adapter.queues", "1")]);
    let of = |seed| receives(&[("adapter.queues", "4"), ("workload.seed", seed)]);
    let shares = ["1", "2", "3", "4", "5"].map(|seed| of(seed).bytes_per_second / single.bytes_per_second);
    assert!(shares.iter().all(|&share| (share - 1.0).abs() < 0.001), "{shares:?}");
}

#[test]
fn many_connections_have_several_queues_work_at_once() {
    let [one, two, four] = ["1", "2", "4"].map(|queues| frame_by_frame(queues, "32").bytes_per_second);
    assert!((1.8..2.1).contains(&(two / one)), "{}", two / one);
    assert!(four / one > 2.7, "{}", four / one);
    let few = frame_by_frame("4", "2").bytes_per_second;
    assert!(few < 1.01 * two, "two connections have two queues at most: {few} against {two}");
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
fn queues_do_not_change_the_order_within_a_connection() {
    let outcome = receives(&[("adapter.queues", "4"), ("workload.flows", "8")]);
    assert_eq!((outcome.lost(), outcome.counts.out_of_order, outcome.counts.retransmissions), (0, 0, 0));
    assert!(outcome.counts.segments_received > 0);
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

#[derive(Clone, Copy, Debug)]
struct System {
    queues: u64,
    processors: u64,
    flows: u64,
    placement: &'static str,
    moderation: &'static str,
    receive: &'static str,
    descriptors: u64,
    workload: Workload,
    seed: u64,
}

fn systems() -> impl Strategy<Value = System> {
    let sizes = (1u64..9, 1u64..6, 1u64..12, 8u64..512, 0u64..1000);
    let rules = (
        prop::sample::select(vec!["pinned", "spread"]),
        prop::sample::select(vec!["off", "fixed-gap", "coalescing", "e1000", "net-dim", "area", "quiet-or-area"]),
        prop::sample::select(vec!["interrupt", "deferred"]),
        prop::sample::select(vec![TtcpReceive, TtcpSend, TtcpBoth, NfsRead]),
    );
    (sizes, rules).prop_map(|((queues, processors, flows, descriptors, seed), rules)| System {
        queues,
        processors,
        flows,
        descriptors,
        seed,
        placement: rules.0,
        moderation: rules.1,
        receive: rules.2,
        workload: rules.3,
    })
}

impl System {
    fn profile(&self) -> Profile {
        Profile::load("server-82599")
            .unwrap()
            .with("adapter.coalesce", "off")
            .with("host.receive", self.receive)
            .with("host.processors", &self.processors.to_string())
            .with("host.placement", self.placement)
            .with("adapter.queues", &self.queues.to_string())
            .with("adapter.receive_descriptors", &self.descriptors.to_string())
            .with("adapter.moderation", self.moderation)
            .with("workload.flows", &self.flows.to_string())
            .with("workload.seed", &self.seed.to_string())
            .with("host.receive_window", "64KiB")
            .with("workload.warmup", "0s")
            .with("workload.time", "4ms")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_and_interrupt_is_of_one_queue_and_every_load_of_one_processor(system in systems()) {
        let outcome = run(&system.profile(), system.workload).unwrap();
        let counts = &outcome.counts;
        let per_second = |count: u64| count as f64 / outcome.seconds;
        let queues = &outcome.queue_loads;
        prop_assert_eq!(queues.len() as u64, system.queues);
        let frames: f64 = queues.iter().map(|queue| queue.frames_per_second).sum();
        let interrupts: f64 = queues.iter().map(|queue| queue.interrupts_per_second).sum();
        prop_assert!((frames - per_second(counts.frames_received)).abs() < 1.0);
        prop_assert!((interrupts - outcome.interrupts_per_second).abs() < 1.0);
        prop_assert!(queues.iter().map(|queue| queue.lost_frames).sum::<u64>() <= outcome.lost());
        let gone = counts.frames_received + outcome.lost();
        let held = counts.frames_arrived.checked_sub(gone).expect("no frame is counted twice");
        prop_assert!(held <= system.queues * system.descriptors + 512, "{} frames held", held);
        prop_assert!(counts.interrupts <= counts.frames_arrived + counts.sends_completed + system.queues);

        let busy: f64 = outcome.processor_loads.iter().map(|of| of.busy_percent).sum();
        prop_assert!((busy - outcome.cpu_percent * system.processors as f64).abs() < 1e-6);
        prop_assert!(outcome.processor_loads.iter().all(|of| of.busy_percent <= 100.000_001));
        prop_assert_eq!(run(&system.profile(), system.workload).unwrap(), outcome, "the same input gives the same bytes");
    }
}
