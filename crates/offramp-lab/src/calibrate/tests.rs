use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;

use super::experiments::{PREDICTED, PREDICTED_OF_RECEIVER};
use super::setup::{HEADERS_LEN, MSS, Setup};
use super::units::{BITS_PER_BYTE, NANOSECONDS_PER_SECOND};
use super::*;
use crate::model::{Sample, Variant};
use crate::plan::{GIGABIT_BPS, GIGABIT_INTERRUPTS_PER_SECOND, RECEIVER};

/// The known costs of the simulated machine.
const TRUE: Costs = Costs {
    byte_ns: 0.25,
    send_ns: 900.0,
    receive_ns: 1200.0,
    checksum_sent_ns: 0.05,
    checksum_received_ns: 0.08,
    wake_ns: 20_000.0,
    doorbell_ns: 5_000.0,
    adapter_byte_ns: 0.12,
    adapter_frame_ns: 60.0,
    adapter_hand_over_ns: 500.0,
    adapter_checksum_sent_ns: 0.03,
    adapter_checksum_received_ns: 0.04,
    chunk_len: 60_000.0,
    coalesced_len: 50_000.0,
    paced_sent_len: 14_000.0,
    paced_coalesced_len: 8_000.0,
    frames_per_segment: 1.05,
    receiver: Some(TRUE_RECEIVER),
    waits: None,
};

const TRUE_RECEIVER: ReceiverCosts = ReceiverCosts {
    byte_ns: 0.15,
    hand_over_ns: 700.0,
    segments_per_ack: 20.0,
    peer_byte_ns: 0.5,
    peer_frame_ns: 50.0,
    peer_hand_over_ns: 1000.0,
};

/// Length of preamble, frame check sequence and gap on the link, in bytes (IEEE 802.3 3.1.1, 4.4.2).
const LINE_OVERHEAD_LEN: f64 = 24.0;

/// Returns the time of a payload byte on the link, or 0 if the link is not the limit.
fn line_ns(setup: &Setup) -> f64 {
    let frame_bits = (setup.mss + HEADERS_LEN + LINE_OVERHEAD_LEN) * BITS_PER_BYTE;
    if setup.is_gigabit { frame_bits / GIGABIT_BPS as f64 * NANOSECONDS_PER_SECOND / setup.mss } else { 0.0 }
}

/// Returns a sample of the experiment `receiver`, with the processor time and the frames of the receiving host. The
/// slower of the two processors limits the throughput.
fn sample_of_receiver(setup: &Setup, round: usize) -> Sample {
    let both = sample(setup, round);
    let [bytes, mss] = [both.bytes as f64, setup.mss];
    let coalesced = setup.mss / TRUE.coalesced_len;
    let (up, acks) = if setup.rsc { (coalesced, coalesced) } else { (1.0, 1.0 / TRUE_RECEIVER.segments_per_ack) };
    let checksum_ns = if setup.host_checksums_received { TRUE.checksum_received_ns } else { 0.0 };
    let host_ns = TRUE_RECEIVER.byte_ns + checksum_ns + TRUE_RECEIVER.hand_over_ns * (up + acks) / mss;
    let other_ns = TRUE.peer_ns(&TRUE_RECEIVER, setup) / mss;
    Sample {
        seconds: host_ns.max(other_ns) * bytes / 1e9,
        host_cpu_s: Some(host_ns * bytes / 1e9),
        sent_frames: Some((acks / mss * bytes) as u64),
        host_frames: Some((up / mss * bytes) as u64),
        ..both
    }
}

fn sample(setup: &Setup, round: usize) -> Sample {
    const BYTES: f64 = 1e10;
    let pieces = TRUE.hand_overs(setup);
    let [handed_up, handed_down] = [pieces.up / setup.mss, (pieces.down + pieces.acks) / setup.mss];
    let wire = TRUE.frames_per_segment / setup.mss;
    let by_host = [setup.host_checksums_sent, setup.host_checksums_received];
    let summed = |costs: [f64; 2]| -> f64 { by_host.iter().zip(costs).filter(|of| *of.0).map(|of| of.1).sum() };
    let spared = summed([TRUE.adapter_checksum_sent_ns, TRUE.adapter_checksum_received_ns]);
    let summed = summed([TRUE.checksum_sent_ns, TRUE.checksum_received_ns]);
    let interrupts_per_byte = line_ns(setup) / NANOSECONDS_PER_SECOND * f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
    let waking = TRUE.wake_ns * interrupts_per_byte;
    let send_ns = TRUE.send_ns + if setup.adapters_sleep { TRUE.doorbell_ns } else { 0.0 };
    let host = TRUE.byte_ns + send_ns * handed_down + TRUE.receive_ns * handed_up + summed + waking;
    let adapter = TRUE.adapter_byte_ns - spared
        + TRUE.adapter_frame_ns * wire
        + TRUE.adapter_hand_over_ns * (handed_up + handed_down);
    // Hosts, adapters and link form a pipeline, so the slowest stage decides the time.
    Sample {
        round,
        seconds: host.max(adapter).max(line_ns(setup)) * BYTES / 1e9,
        bytes: BYTES as u64,
        host_cpu_s: Some(host * BYTES / 1e9),
        adapter_cpu_s: Some(adapter * BYTES / 1e9),
        sent_frames: Some((handed_down * BYTES) as u64),
        host_frames: Some((handed_up * BYTES) as u64),
        wire_frames: Some((wire * BYTES) as u64),
        ..Sample::default()
    }
}

fn experiment(experiment: &str, variants: &[(&str, Setup)]) -> Experiment {
    let variant = |(name, setup): &(&str, Setup)| {
        let sample = if experiment == RECEIVER { sample_of_receiver } else { sample };
        let samples: Vec<Sample> = (0..3).map(|round| sample(setup, round)).collect();
        let throughput_bps = Some(samples[0].bytes as f64 * 8.0 / samples[0].seconds);
        Variant { name: (*name).to_owned(), throughput_bps, samples, ..Variant::default() }
    };
    Experiment {
        name: experiment.to_owned(),
        question: String::new(),
        claims: Vec::new(),
        fixed: String::new(),
        variants: variants.iter().map(variant).collect(),
        verdict: None,
        verdicts: Vec::new(),
        notes: Vec::new(),
        judgements: Vec::new(),
    }
}

fn experiments() -> Vec<Experiment> {
    let all = Setup::ALL_ON;
    let uncoalesced = Setup { rsc: false, ..all };
    let gigabit = |lso| Setup { lso, is_gigabit: true, adapters_sleep: lso, ..all };
    let polled = Setup { adapters_sleep: false, ..gigabit(true) };
    let none = Setup { host_checksums_sent: true, host_checksums_received: true, ..Setup::BARE };
    vec![
        experiment("lso", &[("off", Setup { lso: false, ..all }), ("on", all)]),
        experiment("rsc", &[("off", uncoalesced), ("on", all)]),
        experiment("tx-checksum", &[("off", Setup { host_checksums_sent: true, ..all }), ("on", all)]),
        experiment(
            "rx-checksum",
            &[("off", Setup { host_checksums_received: true, ..uncoalesced }), ("on", uncoalesced)],
        ),
        experiment("jumbo", &[("MTU 1500", Setup::BARE), ("MTU 9000", Setup { mss: 8948.0, ..Setup::BARE })]),
        experiment("interrupt-cap", &[("8000/s", gigabit(true)), ("adapters poll, 8000/s", polled)]),
        experiment("all", &[("none", none), ("all", all), ("checksums only", Setup::BARE)]),
        experiment("lso-1g", &[("off", gigabit(false)), ("on", gigabit(true))]),
        experiment(
            RECEIVER,
            &[
                ("off", Setup { rsc: false, ..all }),
                ("on", all),
                ("MTU 9000", Setup { rsc: false, mss: 8948.0, ..all }),
                ("no checksums", Setup { rsc: false, host_checksums_received: true, ..all }),
                ("MTU 3000", Setup { rsc: false, mss: 2948.0, ..all }),
            ],
        ),
    ]
}

/// Returns experiments with irregular rounds. One round measures nothing, and one round lacks the receiving host. One
/// variant takes more host time than the sum of the known costs. In another variant, a hypervisor makes the hosts' time
/// uncertain.
fn uneven_experiments() -> Vec<Experiment> {
    let mut experiments = experiments();
    for of in &mut experiments {
        for variant in &mut of.variants {
            let factor = if (&*of.name, &*variant.name) == ("jumbo", "MTU 1500") { 1.5 } else { 1.0 };
            let is_open = (&*of.name, &*variant.name) == ("all", "none");
            for sample in &mut variant.samples {
                let round = sample.round as f64;
                let times = |seconds: Option<f64>, part: f64| seconds.map(|seconds| seconds * (1.0 + part * round));
                sample.host_cpu_s = times(sample.host_cpu_s, 0.02).map(|seconds| seconds * factor);
                sample.adapter_cpu_s = times(sample.adapter_cpu_s, 0.03);
                sample.seconds *= 1.0 + 0.01 * round;
                let host_s = sample.host_cpu_s.unwrap();
                sample.host_cpu_range_s = is_open.then_some([host_s * 0.5, host_s]);
            }
        }
    }
    experiments[0].variants[0].samples.push(Sample { round: 3, ..Sample::default() });
    let receiver = experiments.iter_mut().find(|of| of.name == RECEIVER).unwrap();
    receiver.variants[0].samples[2].host_cpu_s = None;
    experiments
}

#[test]
fn the_texts_of_a_run_are_these() {
    let experiments = uneven_experiments();
    let calibration = Calibration::of(&experiments).unwrap();
    assert_eq!(calibration.text(), include_str!("expected/costs.txt"));
    let profile = calibration.profile("a \"machine\"");
    assert_eq!(profile, include_str!("expected/profile.toml"));
    let path = std::env::temp_dir().join(format!("offramp-texts-{}.toml", std::process::id()));
    std::fs::write(&path, profile).unwrap();
    let predictions = predict(path.to_str().unwrap(), &calibration, &experiments);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(predictions_text(&predictions.unwrap()), include_str!("expected/predictions.txt"));
}

#[test]
fn the_texts_of_a_run_without_a_receiving_host_are_these() {
    let mut experiments = uneven_experiments();
    experiments.retain(|of| of.name != RECEIVER);
    let calibration = Calibration::of(&experiments).unwrap();
    assert_eq!(calibration.text(), include_str!("expected/costs-without-receiver.txt"));
    assert_eq!(calibration.profile("this"), include_str!("expected/profile-without-receiver.toml"));
}

#[test]
fn the_costs_of_a_machine_that_is_a_sum_of_costs_are_found() {
    let found = Calibration::of(&experiments()).unwrap().costs;
    for ((cost, value), (of, expected)) in found.values().into_iter().zip(TRUE.values()) {
        assert!(cost == of && (value / expected - 1.0).abs() < 0.01, "{cost:?}: {value} instead of {expected}");
    }
}

#[test]
fn a_profile_is_made_that_the_model_reads_and_that_predicts_what_was_not_learned_from() {
    let experiments = experiments();
    let calibration = Calibration::of(&experiments).unwrap();
    let path = std::env::temp_dir().join(format!("offramp-this-host-{}.toml", std::process::id()));
    std::fs::write(&path, calibration.profile("a \"machine\"")).unwrap();
    let predictions = predict(path.to_str().unwrap(), &calibration, &experiments);
    std::fs::remove_file(&path).unwrap();
    let predictions = predictions.unwrap();
    assert_eq!(predictions.len(), PREDICTED.len() + PREDICTED_OF_RECEIVER.len());
    for of in &predictions {
        assert_eq!(of.verdict(), Verdict::Met, "{}", predictions_text(&predictions));
    }
    let text = predictions_text(&predictions);
    assert!(text.contains("8 of 8 within") && !text.contains("MISS"), "{text}");
}

#[test]
fn what_was_measured_is_in_the_profile_with_the_interval_of_its_rounds() {
    let mut experiments = experiments();
    // In one of twelve rounds, the hosts' cost is ten times as high. The trimmed mean omits that round.
    for of in experiments.iter_mut().flat_map(|of| &mut of.variants) {
        let one = of.samples[0].clone();
        of.samples = (0..12).map(|round| Sample { round, ..one.clone() }).collect();
    }
    for of in &mut experiments {
        for variant in &mut of.variants {
            variant.samples[1].host_cpu_s = variant.samples[1].host_cpu_s.map(|seconds| seconds * 10.0);
        }
    }
    let calibration = Calibration::of(&experiments).unwrap();
    let path = std::env::temp_dir().join(format!("offramp-intervals-{}.toml", std::process::id()));
    std::fs::write(&path, calibration.profile("this")).unwrap();
    let profile = Profile::load(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    let profile = profile.unwrap();
    let quantity = profile.quantity("host.chunk_time");
    let [low, high] = quantity.interval.unwrap();
    // The simulated machine's true cost per send, in `host.chunk_time`, is 900 ns.
    let is_near = |value: u64, expected: f64| (value as f64 / 1000.0 / expected - 1.0).abs() < 0.02;
    assert!(is_near(low, 900.0) && is_near(quantity.value, 900.0) && is_near(high, 9000.0), "{quantity:?}");
    assert!(quantity.source.contains("12 rounds"), "{quantity:?}");
    assert_eq!(profile.quantity("host.tcp").interval, None);
}

#[test]
fn a_host_of_the_profile_receives_as_fast_as_its_costs_allow_and_joining_spares_it_what_they_say() {
    let calibration = Calibration::of(&experiments()).unwrap();
    let path = std::env::temp_dir().join(format!("offramp-receiver-{}.toml", std::process::id()));
    std::fs::write(&path, calibration.profile("this")).unwrap();
    let profile = Profile::load(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    let profile = profile.unwrap();
    let ns_per_byte = |coalesce| {
        // With a peer slower than the host, the host sleeps, and waking the host takes time. The test therefore sets
        // the wake-up time to 0.
        let awake = profile.clone().with("host.wake_time", "0ns").with("adapter.coalesce", coalesce);
        let outcome = run(&awake, Workload::TtcpReceive).unwrap();
        outcome.cpu_percent / 100.0 * 1e9 / outcome.bytes_per_second
    };
    let (plain, coalesced) = (ns_per_byte("off"), ns_per_byte("on"));
    let handed_over_ns = TRUE_RECEIVER.hand_over_ns * (1.0 + 1.0 / TRUE_RECEIVER.segments_per_ack);
    let expected = TRUE_RECEIVER.byte_ns + handed_over_ns / MSS;
    assert!((plain / expected - 1.0).abs() < 0.03, "{plain} instead of {expected}");
    // A coalesced frame has at most 64 KiB, and causes one acknowledgement.
    let least = TRUE_RECEIVER.byte_ns + 2.0 * TRUE_RECEIVER.hand_over_ns / 65_536.0;
    assert!(coalesced > least && coalesced < 1.3 * least, "{coalesced}, and {least} at least");
}

#[test]
fn verifying_a_checksum_may_spare_more_than_it_costs() {
    let mut experiments = experiments();
    let of = experiments.iter_mut().find(|of| of.name == "rx-checksum").unwrap();
    for by_host in &mut of.variants[0].samples {
        by_host.host_cpu_s = by_host.host_cpu_s.map(|seconds| seconds * 0.9);
    }
    let costs = Calibration::of(&experiments).unwrap().costs;
    assert!(costs.checksum_received_ns < 0.0, "{costs:?}");
    let copy_time = |host_checksums_received| {
        let setup = Setup { host_checksums_received, ..Setup::ALL_ON };
        let found = super::profile::settings(&costs, &setup);
        found.iter().find(|of| of.key == "host.copy_time").unwrap().text()
    };
    assert_eq!(copy_time(false), format!("{:.6}ns/byte", TRUE_RECEIVER.byte_ns));
    assert!(copy_time(true) < copy_time(false));
}

#[test]
fn a_machine_that_does_not_tell_what_a_receiving_host_pays_has_all_other_costs() {
    let mut experiments = experiments();
    experiments.retain(|of| of.name != RECEIVER);
    let calibration = Calibration::of(&experiments).unwrap();
    assert_eq!(calibration.costs, Costs { receiver: None, ..Calibration::of(&self::experiments()).unwrap().costs });
    let profile = calibration.profile("this");
    assert!(!calibration.text().contains("receiving host") && !profile.contains("\ncopy_time"), "{profile}");
}

#[test]
fn a_machine_that_cannot_tell_hosts_and_adapters_apart_is_refused() {
    let mut experiments = experiments();
    for sample in experiments[0].variants.iter_mut().flat_map(|variant| &mut variant.samples) {
        sample.adapter_cpu_s = None;
    }
    let error = Calibration::of(&experiments).unwrap_err().to_string();
    assert!(error.contains("lso, off") && error.contains("two processors"), "{error}");
    experiments.remove(0);
    assert!(Calibration::of(&experiments).is_err());
}

#[test]
fn a_sample_that_tells_nothing_costs_its_round_and_not_the_run() {
    let mut experiments = experiments();
    experiments[3].variants[1].samples[1].bytes = 0;
    let calibration = Calibration::of(&experiments).unwrap();
    assert_eq!(calibration.rounds.len(), 2);
    let [found, whole] = [calibration, Calibration::of(&self::experiments()).unwrap()].map(|of| of.costs.byte_ns);
    assert!((found / whole - 1.0).abs() < 1e-9, "{found} instead of {whole}");
    for sample in &mut experiments[3].variants[1].samples {
        sample.bytes = 0;
    }
    assert!(Calibration::of(&experiments).unwrap_err().to_string().contains("rx-checksum, on"));
}

/// Returns results for requests and bulk data under moderation, as measured on a virtual machine with two processors.
/// For requests, the figures are the median and the 99th percentile of the latency, in microseconds. For bulk data, the
/// figure is the number of interrupts per second of both hosts.
fn moderated_experiments() -> Vec<Experiment> {
    let rpc = [("off", 76.3, 101.0), ("8000/s", 140.3, 162.6), ("quiet-or-area", 77.0, 101.6), ("e1000", 76.7, 101.2)];
    let rpc = rpc.into_iter().chain([("50 us or 32", 206.3, 233.0)]);
    let request =
        |(name, p50, p99)| (name, Sample { latency_p50_us: Some(p50), latency_p99_us: Some(p99), ..Sample::default() });
    let bulk = [("8000/s", 14_148.0), ("50 us or 32", 26_744.0)];
    let interrupted = |(name, per_s)| (name, Sample { interrupts_per_s: Some(per_s), ..Sample::default() });
    let of = |name: &str, samples: Vec<(&str, Sample)>| {
        let variant = |(name, sample): (&str, Sample)| {
            let samples = (0..3).map(|round| Sample { round, ..sample.clone() }).collect();
            Variant { name: name.to_owned(), samples, ..Variant::default() }
        };
        Experiment { variants: samples.into_iter().map(variant).collect(), ..experiment(name, &[]) }
    };
    let moderated =
        [of("moderation-rpc", rpc.map(request).collect()), of("moderation-bulk", bulk.map(interrupted).into())];
    experiments().into_iter().chain(moderated).collect()
}

#[test]
fn latencies_and_interrupts_under_moderation_are_predicted_from_requests_with_none_and_with_a_gap() {
    let experiments = moderated_experiments();
    let calibration = Calibration::of(&experiments).unwrap();
    let path = std::env::temp_dir().join(format!("offramp-waits-{}.toml", std::process::id()));
    std::fs::write(&path, calibration.profile("this")).unwrap();
    let figures = predict_responses(path.to_str().unwrap(), &calibration, &experiments);
    std::fs::remove_file(&path).unwrap();
    let figures = figures.unwrap();
    let text = figures_text(&figures);
    assert!(figures.len() == 8 && figures.iter().all(Figure::is_met) && text.contains("8 of 8 within"), "{text}");
    let far = Figure { values: [126.0, 100.0], ..figures[0].clone() };
    assert!(!far.is_met() && figures_text(&[far]).contains("MISS"));
}

#[test]
fn a_machine_whose_requests_were_not_measured_predicts_none_of_them() {
    let experiments = experiments();
    let calibration = Calibration::of(&experiments).unwrap();
    assert!(!calibration.profile("this").contains("wake_up_time"));
    assert!(predict_responses("486-wd8003ep", &calibration, &experiments).unwrap().is_empty());
}
