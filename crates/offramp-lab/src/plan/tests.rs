use super::*;
use crate::metric;
use offramp_adapter::moderation::Policy;
use offramp_offload::caps::Offloads;
use offramp_testbed::rig::{Between, Card};
use offramp_testbed::traffic::{Direction, Workload};
use std::collections::BTreeSet;
use std::path::Path;

fn plan(name: &str) -> Plan {
    plans(&Settings::default()).into_iter().find(|plan| plan.name == name).expect("an experiment")
}

fn variant(name: &str, variant: &str) -> VariantPlan {
    plan(name).variants.into_iter().find(|found| found.name == variant).expect("a variant")
}

fn guest_plan(name: &str, accelerator: Accelerator, driver: DriverCoalescing) -> Plan {
    let plans = guest_plans(&Settings::default(), accelerator, driver);
    plans.into_iter().find(|plan| plan.name == name).expect("an experiment")
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.variants.iter().map(|variant| variant.name.as_str()).collect()
}

#[test]
fn every_file_of_the_folder_is_an_experiment() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let embedded = EMBEDDED.iter().map(|(name, _)| format!("{name}.toml"));
    assert_eq!(files.collect::<BTreeSet<_>>(), embedded.collect());
}

#[test]
fn a_group_is_made_of_experiments_on_request_and_is_none_itself() {
    for (group, members) in groups() {
        assert!(members.len() > 1 && members.iter().all(|name| plan(name).on_request), "{group}");
        assert!(experiments().iter().all(|of| of.name != group), "{group}");
    }
}

#[test]
fn every_experiment_may_be_set_and_its_traffic_be_made() {
    for plan in plans(&Settings::default()) {
        for variant in &plan.variants {
            assert_eq!(variant.rig.moderation.check(), Ok(()), "{}: {}", plan.name, variant.name);
            assert_eq!(variant.rig.card.memory.check(), Ok(()), "{}: {}", plan.name, variant.name);
            assert_eq!(variant.rig.card.faults.check(), Ok(()), "{}: {}", plan.name, variant.name);
            assert_eq!(variant.traffic.check(), Ok(()), "{}: {}", plan.name, variant.name);
        }
        assert!(plan.compared.iter().chain([&plan.metric]).all(|metric| metric::find(metric).is_some()));
        for bound in &plan.bounds {
            assert!(plan.metric == bound.metric || plan.compared.contains(&bound.metric), "{bound:?}");
        }
    }
}

#[test]
fn only_what_runs_by_default_measures_round_trips() {
    for plan in plans(&Settings::default()) {
        assert_eq!(plan.has_round_trips(), !plan.on_request, "{}", plan.name);
    }
}

#[test]
fn a_guest_can_make_every_one_of_its_experiments() {
    for plan in guest_plans(&Settings::default(), Accelerator::Uml, DriverCoalescing::Adaptive) {
        assert!(plan.variants.len() >= 2, "{}", plan.name);
        for variant in plan.variants {
            let is_joined_by_adapters = matches!(variant.rig.between, Between::Adapters(_));
            assert!(is_joined_by_adapters && variant.traffic.check().is_ok(), "{}: {}", plan.name, variant.name);
        }
    }
}

#[test]
fn where_the_question_is_about_receiving_the_guest_receives() {
    let guest_plan = |name| guest_plan(name, Accelerator::Uml, DriverCoalescing::Adaptive);
    for name in ["rx-checksum", "rsc", "moderation-bulk", "moderation-mixed"] {
        let plan = guest_plan(name);
        assert!(plan.variants.iter().all(|v| v.traffic.direction == Direction::Receive && v.rig.client == 0));
    }
    assert!(guest_plan("lso").variants.iter().all(|v| v.traffic.direction == Direction::Send));
    assert!(guest_plan("lso-transactions").variants.iter().all(|v| v.rig.client == 1));
}

#[test]
fn a_guest_joins_only_where_the_variant_says_so() {
    let joining: Vec<_> = guest_plans(&Settings::default(), Accelerator::Uml, DriverCoalescing::Adaptive)
        .into_iter()
        .flat_map(|plan| plan.variants)
        .filter(|variant| variant.rig.host_gro)
        .map(|variant| variant.name)
        .collect();
    assert_eq!(joining, ["off, guest GRO"]);
}

/// User settings that differ from the defaults.
fn chosen() -> [Settings; 3] {
    let host = HostSettings { rps: false, busy_poll_usecs: 50, gro: true, ..HostSettings::default() };
    let plain = Settings::default();
    [
        Settings { mtu: 1400, rate_bps: Some(250_000), host, ..plain.clone() },
        Settings { mtu: 9000, rate_bps: Some(GIGABIT_BPS), streams: 3, ..plain.clone() },
        Settings { mtu: 1500, rate_bps: Some(2_500_000_000), ..plain },
    ]
}

#[test]
fn what_is_said_to_be_fixed_is_so_whatever_the_user_sets() {
    for plan in chosen().iter().flat_map(plans) {
        let said = |text: &str| plan.fixed.contains(text);
        for VariantPlan { name, rig, traffic } in &plan.variants {
            let mtu = format!("MTU {}", rig.mtu);
            // The experiments on old Ethernet cards (DP8390) only use the default MTU, which their text need not name.
            let is_mtu_said = said(&mtu) || *name == mtu || (rig.mtu == MTU_DEFAULT && said("8390"));
            let name = format!("{}: {name}: {}", plan.name, plan.fixed);
            assert!(is_mtu_said, "{name}");
            assert!(!said("a link without a limit,") || rig.rate_bps.is_none(), "{name}");
            assert!(said("Mbit/s") || said("Gbit/s") || said("kbit/s") || rig.rate_bps.is_none(), "{name}");
            assert!(!said(" 0 "), "{name}");
            let is_gap_named = name.contains("/s: ");
            let is_gapped = matches!(rig.moderation.policy, Policy::FixedGap { .. });
            assert!(!is_gapped || said("interrupts a second") || is_gap_named, "{name}");
            assert!(!said("1 TCP stream(s)") || traffic.streams == 1, "{name}");
        }
    }
}

#[test]
fn a_rate_is_said_in_the_largest_unit_of_which_it_is_a_whole_number() {
    let said = [GIGABIT_BPS, 2_500_000_000, 250_000, 1].map(file::text_of);
    assert_eq!(said, ["1 Gbit/s", "2500 Mbit/s", "250 kbit/s", "1 bit/s"]);
}

#[test]
fn what_the_user_sets_of_the_hosts_reaches_every_variant_and_is_said() {
    let [settings, ..] = chosen();
    for plan in plans(&settings) {
        assert!(
            plan.fixed.ends_with("; the hosts: GRO of their own, busy polling for 50 us, no RPS"),
            "{}",
            plan.fixed
        );
        for VariantPlan { name, rig, .. } in &plan.variants {
            let HostSettings { rps, busy_poll_usecs, gro, .. } = rig.host;
            assert_eq!((rps, busy_poll_usecs, gro), (false, 50, true), "{}: {name}", plan.name);
        }
    }
}

#[test]
fn a_datagram_of_a_fixed_size_fits_the_mtu_whatever_the_user_sets() {
    for variant in chosen().iter().flat_map(plans).filter(|plan| plan.name == "uso").flat_map(|plan| plan.variants) {
        let Workload::Udp(udp) = variant.traffic.workload else { panic!("datagrams") };
        assert!(variant.rig.mtu >= udp.datagram_bytes as usize + 28);
    }
}

#[test]
fn every_policy_stands_every_load() {
    let (group, loads) = groups().remove(0);
    assert_eq!((group, loads.len()), ("moderation", 4));
    for plan in loads.into_iter().map(plan) {
        let named = plan.variants.iter().map(|variant| variant.rig.moderation.policy.name());
        let expected = ["off", "quiet-or-area", "area", "net-dim", "e1000", "fixed-gap", "coalescing"];
        assert!(named.eq(expected), "{}", plan.name);
        assert!(plan.variants.iter().all(|variant| variant.traffic == plan.variants[0].traffic));
        assert_eq!(plan.bounds.is_empty(), plan.name == "moderation-bursts");
    }
}

#[test]
fn a_guest_sleeps_as_it_likes_and_its_driver_is_asked_where_the_adapter_hears_it() {
    const IN_QEMU: [&str; 3] = ["off", "quiet-or-area", "8000/s"];
    for name in ["moderation-rpc", "moderation-bulk", "moderation-mixed"] {
        let emulated = guest_plan(name, Accelerator::Tcg, DriverCoalescing::None);
        assert_eq!(names(&emulated), IN_QEMU);
        let fast = guest_plan(name, Accelerator::Uml, DriverCoalescing::Fixed);
        let by_the_driver = fast.variants.iter().filter(|variant| variant.rig.host.coalescing.is_some());
        assert_eq!(by_the_driver.count(), 3, "one needs DIM");
        assert_eq!(fast.variants.len(), plan(name).variants.len() + 3);
        assert!(!fast.fixed.contains("DIM"), "{}", fast.fixed);
        let with_dim = guest_plan(name, Accelerator::Tcg, DriverCoalescing::Adaptive);
        assert_eq!(names(&with_dim)[..3], IN_QEMU);
        assert!(with_dim.variants.len() == 7 && with_dim.fixed.contains("DIM"), "{}", with_dim.fixed);
        for plan in [emulated, fast, with_dim] {
            assert!(plan.variants.iter().all(|variant| !variant.rig.host.awake) && !plan.fixed.contains("awake"));
        }
    }
}

/// Rate of the link in the experiments on old Ethernet cards, in bits per second.
const CARD_BPS: u64 = 10_000_000;

#[test]
fn the_slow_bus_alone_is_slower_than_the_line() {
    // Length of a full frame, in bytes: without and with preamble, FCS and gap (IEEE 802.3).
    let (frame_len, wire_len) = (1514, 1538);
    let wire_ns = wire_len * 8 * 1_000_000_000 / CARD_BPS;
    let copy_ns = |name, of| variant(name, of).rig.card.faults.bus.copy_ns(frame_len);
    let slow_ns = copy_ns("packet-memory-tcp", "5 kB, slow bus");
    assert!(slow_ns > wire_ns);
    for (name, of) in [("packet-memory-tcp", "5 kB, fast bus"), ("rpc-size", "16-bit, 1 kB")] {
        assert!(copy_ns(name, of) < wire_ns);
    }
    let Workload::Udp(bursts) = variant("packet-memory-udp", "5 kB, slow bus").traffic.workload else { panic!("UDP") };
    let slow_hop = variant("rx-window", "32 kB, slow hop").rig.rate_bps.unwrap();
    assert!(bursts.rate_bps.max(slow_hop) < CARD_BPS * wire_ns / slow_ns);
}

#[test]
fn the_cards_hold_as_many_full_frames_as_published() {
    let frames = |of| variant("packet-memory-tcp", of).rig.card.memory.frames(1514);
    assert_eq!(frames("5 kB, slow bus"), 3, "claim I5");
    assert_eq!(frames("13 kB, slow bus"), 8);
    assert!(frames("64 kB, slow bus") > 40);
}

#[test]
fn a_full_group_comes_sooner_than_its_time() {
    let frame_ns = 1538 * 8;
    for variant in plan("order").variants {
        let Policy::Coalescing(group) = variant.rig.moderation.policy else { panic!("groups") };
        assert!(u64::from(group.max_packets) * frame_ns < u64::from(group.max_usecs) * 1000);
        assert!(!variant.rig.offloads.intersects(Offloads::RSC));
    }
    assert_eq!(variant("order", "strict, 16").rig.card.faults.reverse_frames, Some(16));
    assert_eq!(variant("order", "strict, in order").rig.card, Card::default());
}

#[test]
fn what_may_stall_is_cut_off_and_the_small_window_fits_the_small_card() {
    for name in ["order", "packet-memory-tcp", "rx-window", "checksum-verdict"] {
        assert!(plan(name).variants.iter().all(|variant| variant.traffic.is_cut_off()), "{name}");
    }
    let small = variant("rx-window", "4 kB");
    let frames = (small.traffic.receive_window_bytes as usize).div_ceil(1460);
    assert!(small.rig.card.memory.frames(1514) >= frames);
    assert!(variant("rx-window", "32 kB").traffic.receive_window_bytes as usize > 3 * 1460);
}

#[test]
fn the_client_that_calls_has_the_card() {
    assert!(plan("rpc-size").variants.iter().all(|variant| variant.rig.client == 1));
    let Workload::Rpc(rpc) = variant("rpc-size", "8-bit, 8 kB").traffic.workload else { panic!("calls") };
    // At an MTU of 1500, each frame except the last carries 1480 bytes of a datagram (claim I15).
    assert_eq!((rpc.response_bytes + 8).div_ceil(1480), 6);
}

/// A user's experiment.
const OWN: &str = r#"question = "Do eight streams gain by large sends?"
fixed = "MTU {mtu}, {link}"
metric = "host_cpu_s_per_gb"
set = { traffic.streams = 8 }

[part.slow]
rig.rate_bps = 100_000_000

[[variant]]
name = "off"
parts = ["slow"]
set = { rig.offloads = ["all", "-lso"] }

[[variant]]
name = "on"
"#;

fn own(text: &str) -> Result<Experiment, String> {
    Experiment::parse(text, Path::new("mine.toml"))
}

#[test]
fn a_users_file_is_an_experiment_like_those_shipped() {
    let plan = own(OWN).unwrap().plan(&Settings { mtu: 1400, ..Settings::default() }).unwrap();
    assert_eq!((plan.name.as_str(), plan.metric.as_str()), ("mine", "host_cpu_s_per_gb"));
    assert_eq!(plan.fixed, "MTU 1400, a link without a limit, 8 TCP stream(s), cubic");
    let [off, on] = plan.variants.as_slice() else { panic!("two variants") };
    assert!(!off.rig.offloads.intersects(Offloads::LSO) && on.rig.offloads == Offloads::RATIFIED);
    assert_eq!((off.traffic.streams, on.rig.mtu), (8, 1400));
    assert_eq!((off.rig.rate_bps, on.rig.rate_bps), (Some(100_000_000), None));
}

#[test]
fn the_example_of_the_documentation_is_an_experiment() {
    let text = include_str!("../../../../docs/lab-json.md");
    let example = text.split("```toml\n").nth(1).and_then(|after| after.split("```").next()).expect("an example");
    assert_eq!(own(example).unwrap().plan(&Settings::default()).unwrap().variants.len(), 2);
}

#[test]
fn what_is_wrong_in_a_users_file_is_refused_with_its_line_and_a_remedy() {
    let cases: &[(&str, &str, &str)] = &[
        ("metric =", "metrik =", "mine.toml:3: metrik: it is none of: "),
        ("metric =", "metrik =", "did you mean \"metric\"?"),
        ("traffic.streams", "traffic.stream", "mine.toml:4: stream: it is none of: "),
        ("traffic.streams", "traffic.stream", "did you mean \"streams\"?"),
        ("\"-lso\"", "\"-lsso\"", "mine.toml:12: lsso: it is none of: "),
        ("\"-lso\"", "\"-lsso\"", "did you mean \"lso\"?"),
        ("[\"slow\"]", "[\"slw\"]", "mine.toml:11: there is no [part.slw]; did you mean \"slow\"?"),
        ("host_cpu_s_per_gb", "host_cpu_per_gb", "mine.toml:3: there is no metric \"host_cpu_per_gb\""),
        ("host_cpu_s_per_gb", "host_cpu_per_gb", "did you mean \"host_cpu_s_per_gb\"?"),
        ("streams = 8", "streams = 65", "mine.toml: variant \"off\": traffic: streams: 65 is not within 1 to 64"),
        ("streams = 8", "streams = \"8\"", "mine.toml:4: invalid type: string \"8\", expected u32"),
        ("streams = 8 }", "streams = 8, rig.mtu = 9 }", "mine.toml: variant \"off\": rig: mtu 9 "),
        ("streams = 8 }", "streams = 8, rig.queues = 0 }", "rig.queues: 0 is not within 1 to 64"),
        ("streams = 8 }", "streams = 8, rig.client = 2 }", "rig.client: 2 is neither 0 nor 1"),
        ("streams = 8 }", "streams = 8, rig.moderation = \"area2\" }", "did you mean \"area\"?"),
        ("streams = 8 }", "streams = 8, rig.card.memory.card_bytes = 1 }", "mine.toml:4: card of 1 bytes is"),
        (
            "streams = 8 }",
            "streams = 8, rig.host.sysctls = [[\"kernel.core_pattern\", \"x\"]] }",
            "\"kernel.core_pattern\" is not a host's; use names that begin with net.",
        ),
        ("name = \"on\"", "name = \"off\"", "mine.toml:15: there are two variants \"off\"; rename one"),
        ("name = \"on\"", "name = \" \"", "mine.toml:15: variant.name: empty; write a text for the reader"),
        (
            "name = \"on\"",
            "name = \"a\\u001b[2J\"",
            "mine.toml:15: variant.name: contains a control character; remove it",
        ),
        ("name = \"on\"", "nam = \"on\"", "mine.toml:15: nam: it is none of: "),
        ("[[variant]]\nname = \"on\"", "", "write two or more [[variant]] tables"),
        ("{link}", "{lnk}", "unknown name in braces; use mtu, link, moderated_link or awake"),
        ("name = \"on\"", "name = \"on\"\nset = { rig.offloads = [\"al\" }", "mine.toml:16: "),
    ];
    for (from, to, expected) in cases {
        let text = OWN.replacen(from, to, 1);
        assert_ne!(text, OWN, "{from}");
        let error = own(&text).map(|_| ()).unwrap_err();
        assert!(error.contains(expected) && error.lines().count() == 1, "{expected}: {error}");
    }
    let bounds = |bound: &str| own(&OWN.replacen("metric =", &format!("bounds = [{bound}]\nmetric ="), 1)).map(|_| ());
    let is_refused = |bound, why: &str| bounds(bound).unwrap_err().contains(why);
    assert_eq!(bounds("{ metric = \"throughput_bps\", best_of = [], at_least = 0.9 }"), Ok(()));
    assert!(is_refused("{ metric = \"throughput_bps\" }", "mine.toml:3: bounds: write either at_most or at_least"));
    assert!(is_refused("{ metric = \"throughput\", at_most = 1 }", "there is no metric \"throughput\""));
    assert!(is_refused(
        "{ metric = \"throughput_bps\", at_most = 1, best_of = [\"of\"] }",
        "there is no variant \"of\""
    ));
}

#[test]
fn a_file_without_measure_is_refused() {
    let many: Vec<_> = (0..10_000).map(|n| format!("[[variant]]\nname = \"{n}\"\n")).collect();
    let many = many.concat();
    let error = own(&format!("{OWN}{many}")).map(|_| ()).unwrap_err();
    assert_eq!(error, "mine.toml:1: 10002 variants exceed the maximum of 32; write several files");
    let long = own(&OWN.replace("Do eight", &"Do eight".repeat(200))).map(|_| ()).unwrap_err();
    assert!(long.contains("letters exceed the maximum of 1000; shorten it"), "{long}");
    let named = Experiment::parse(OWN, Path::new("a b\u{1b}.toml")).map(|_| ()).unwrap_err();
    assert!(named.contains("the file name names the experiment"), "{named}");
    assert!(own("").map(|_| ()).unwrap_err().contains("question: it is missing"));
    let directory = std::env::temp_dir().join(format!("offramp-experiment-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("lso.toml");
    std::fs::write(&file, OWN).unwrap();
    let taken = Experiment::read(&file).map(|_| ()).unwrap_err();
    assert!(taken.ends_with("offramp has an experiment lso; rename the file"), "{taken}");
    std::fs::write(&file, "#".repeat(1 << 21)).unwrap();
    assert!(Experiment::read(&file).map(|_| ()).unwrap_err().contains("the file exceeds"));
    std::fs::remove_dir_all(&directory).unwrap();
}
