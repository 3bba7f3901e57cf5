//! Sample reports for tests. The figures are invented, with noise from a fixed pseudo-random sequence.

use crate::compare::{note, summarise, verdict};
use crate::metric::RPC_HEADER_BYTES;
use crate::model::{Experiment, Guest, Judgement, LabReport, Machine, Sample, Settings, VERSION, Variant, Verdict};
use crate::plan;
use offramp_model::claims;

const ROUNDS: usize = 5;
const SECONDS: f64 = 2.0;

/// Mean figures of a variant.
struct Rates {
    name: &'static str,
    throughput_gbps: f64,
    transactions_per_s: Option<f64>,
    host_s_per_gb: f64,
    adapter_s_per_gb: f64,
    frame_len: f64,
    rtt_us: f64,
    latency: Option<Latency>,
}

/// Mean interrupts and latencies under a moderation policy.
#[derive(Clone, Copy)]
struct Latency {
    interrupts_per_frame: f64,
    p50_us: f64,
    p99_us: f64,
}

const fn rates(name: &'static str, throughput_gbps: f64, host_s_per_gb: f64, adapter_s_per_gb: f64) -> Rates {
    let (transactions_per_s, frame_len, rtt_us) = (None, 1448.0, 31.0);
    let latency = None;
    Rates { name, throughput_gbps, transactions_per_s, host_s_per_gb, adapter_s_per_gb, frame_len, rtt_us, latency }
}

/// Returns the next number, in -1..1, of a linear congruential sequence. The noise is the same in every test run.
fn noise(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
}

fn variant(rates: &Rates, seed: &mut u64) -> Variant {
    let samples = (0..ROUNDS).map(|round| sample(rates, round, seed)).collect();
    summarise(rates.name, samples)
}

fn sample(rates: &Rates, round: usize, seed: &mut u64) -> Sample {
    let throughput_bps = rates.throughput_gbps * 1e9 * (1.0 + 0.03 * noise(seed));
    let bytes = throughput_bps * SECONDS / 8.0;
    let gb = bytes / 1e9;
    let frames = bytes / rates.frame_len;
    let rtt_us = rates.rtt_us * (1.0 + 0.05 * noise(seed));
    Sample {
        round,
        seconds: SECONDS,
        throughput_bps: Some(throughput_bps),
        transactions_per_s: rates.transactions_per_s.map(|per_s| per_s * (1.0 + 0.03 * noise(seed))),
        host_cpu_s: Some(rates.host_s_per_gb * gb * (1.0 + 0.02 * noise(seed))),
        adapter_cpu_s: Some(rates.adapter_s_per_gb * gb * (1.0 + 0.02 * noise(seed))),
        machine_cpu_s: Some((rates.host_s_per_gb + rates.adapter_s_per_gb) * gb * 1.03),
        bytes: bytes as u64,
        rtt_p50_us: Some(rtt_us),
        rtt_p99_us: Some(rtt_us * 2.3),
        rtt_awake_p50_us: Some(rtt_us * 0.4),
        rtt_awake_p99_us: Some(rtt_us * 0.7),
        retransmits: Some(if round == 3 { 2 } else { 0 }),
        wire_frames: Some((frames * 1.04) as u64),
        host_frames: Some((frames * 0.52) as u64),
        sent_frames: Some((frames * 0.06) as u64),
        interrupts_per_s: Some((frames * 0.03).round()),
        interrupts_per_frame: rates.latency.map(|latency| latency.interrupts_per_frame * (1.0 + 0.05 * noise(seed))),
        latency_p50_us: rates.latency.map(|latency| latency.p50_us * (1.0 + 0.04 * noise(seed))),
        latency_p99_us: rates.latency.map(|latency| latency.p99_us * (1.0 + 0.2 * noise(seed))),
        lost_frames: Some(0),
        out_of_order: Some(0),
        dsacks: Some(0),
        cwnd_segments: Some(120.0),
        stall_s: Some(0.01),
        line_distance_ns: Some(if round == 2 { [57.0, 291.0] } else { [55.0, 58.0] }),
        ..Sample::default()
    }
}

/// Returns the claims of an experiment.
fn claims_of(name: &str) -> Vec<String> {
    let touched = claims::all().iter().filter(|claim| claim.lab.iter().any(|of| of.experiment == name));
    touched.map(|claim| claim.id.clone()).collect()
}

fn experiment(name: &str, question: &str, metrics: &[&str], rates: &[Rates]) -> Experiment {
    let mut seed = name.bytes().fold(3, |seed: u64, byte| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let variants: Vec<Variant> = rates.iter().map(|rates| variant(rates, &mut seed)).collect();
    let base = &variants[0];
    let mut verdicts = variants[1..]
        .iter()
        .flat_map(|variant| metrics.iter().filter_map(move |metric| verdict(base, variant, metric)));
    let main = verdicts.next();
    let further = verdicts.collect();
    let notes = note(base, &variants[1], metrics[0]).into_iter().collect();
    Experiment {
        name: name.to_owned(),
        question: question.to_owned(),
        claims: claims_of(name),
        fixed: "one TCP connection, MTU 1500, both hosts' other offloads off, writes of 64 KiB".to_owned(),
        variants,
        verdict: main,
        verdicts: further,
        notes,
        judgements: Vec::new(),
    }
}

/// Moderation policies with invented figures: interrupts per frame, median and 99th percentile of the latency, in
/// microseconds.
const POLICIES: [(&str, [f64; 3]); 7] = [
    ("off", [0.93, 61.0, 140.0]),
    ("quiet-or-area", [0.47, 63.0, 151.0]),
    ("area", [0.44, 71.0, 160.0]),
    ("net-dim", [0.11, 160.0, 390.0]),
    ("e1000", [0.24, 65.0, 214.0]),
    ("8000/s", [0.12, 121.0, 264.0]),
    ("50 us or 32", [0.31, 102.0, 204.0]),
];

/// Returns an experiment on moderation, with latencies if its load is `timed`.
pub fn moderation(name: &str, timed: bool) -> Experiment {
    let of_policy = |(name, [interrupts_per_frame, p50_us, p99_us]): (&'static str, [f64; 3])| Rates {
        latency: Some(Latency { interrupts_per_frame, p50_us, p99_us }),
        ..rates(name, 0.94, 1.2 + 0.5 * interrupts_per_frame, 1.0)
    };
    let metrics = ["host_cpu_s_per_gb", "interrupts_per_frame", "latency_p50_us", "latency_p99_us"];
    let rates = POLICIES.map(of_policy);
    let mut found = experiment(name, "What is moderation worth?", &metrics, &rates);
    for variant in &mut found.variants {
        for sample in &mut variant.samples {
            (sample.rtt_p50_us, sample.rtt_p99_us) = (None, None);
            (sample.rtt_awake_p50_us, sample.rtt_awake_p99_us) = (None, None);
            if !timed {
                (sample.latency_p50_us, sample.latency_p99_us) = (None, None);
            }
        }
        *variant = summarise(&variant.name, std::mem::take(&mut variant.samples));
    }
    if !timed {
        found.verdicts.retain(|verdict| !verdict.metric.starts_with("latency"));
    }
    let latency = found.verdicts.iter().filter(|verdict| verdict.metric == "latency_p99_us");
    let bound = |verdict: &Verdict| Judgement {
        verdict: verdict.clone(),
        at_most: Some(1.25),
        at_least: None,
        is_met: verdict.ratio <= 1.25,
    };
    found.judgements = latency.map(bound).collect();
    found
}

/// Returns [`report()`] with the four loads of moderation appended.
pub fn with_moderation() -> LabReport {
    let mut report = report();
    for name in ["moderation-rpc", "moderation-bulk", "moderation-mixed", "moderation-bursts"] {
        report.experiments.push(moderation(name, name != "moderation-bulk"));
    }
    report
}

const BULK: [&str; 2] = ["throughput_bps", "host_cpu_s_per_gb"];
const AT_A_FULL_LINE: [&str; 2] = ["host_cpu_s_per_gb", "throughput_bps"];
const TRANSACTIONS: [&str; 2] = ["transactions_per_s", "host_cpu_s_per_gb"];

/// Returns a report with the twelve experiments of a full run.
pub fn report() -> LabReport {
    let experiments = of_checksums_and_large_send().into_iter().chain(of_the_rest()).collect();
    LabReport { version: VERSION, offramp: "0.1.0".to_owned(), machine: machine(), settings: settings(), experiments }
}

fn of_checksums_and_large_send() -> Vec<Experiment> {
    let serving = |name, per_s: f64, host| Rates {
        transactions_per_s: Some(per_s),
        rtt_us: 44.0,
        ..rates(name, per_s * 8192.0 * 8.0 / 1e9, host, 0.61)
    };
    vec![
        experiment(
            "tx-checksum",
            "What is transmit checksum offload worth?",
            &BULK,
            &[rates("off", 7.41, 1.02, 0.66), rates("on", 7.88, 0.93, 0.71)],
        ),
        experiment(
            "rx-checksum",
            "What is receive checksum offload worth?",
            &BULK,
            &[rates("off", 7.52, 1.01, 0.62), rates("on", 7.55, 0.99, 0.72)],
        ),
        experiment(
            "lso",
            "What is large send worth?",
            &BULK,
            &[rates("off", 7.9, 0.99, 0.7), rates("on", 22.9, 0.34, 0.33)],
        ),
        experiment(
            "lso-1g",
            "What is large send worth on a link of 1 Gbit/s, sending only?",
            &AT_A_FULL_LINE,
            &[rates("off", 0.941, 1.61, 1.2), rates("on", 0.941, 0.58, 0.8)],
        ),
        experiment(
            "lso-1g-duplex",
            "What is large send worth on a link of 1 Gbit/s, both ways at once?",
            &BULK,
            &[rates("off", 1.78, 1.7, 1.3), rates("on", 1.86, 0.7, 0.9)],
        ),
        experiment(
            "lso-transactions",
            "What is large send worth to a server with other work?",
            &TRANSACTIONS,
            &[serving("off", 21_400.0, 2.9), serving("on", 23_800.0, 2.6)],
        ),
    ]
}

fn of_the_rest() -> Vec<Experiment> {
    let jumbo = Rates { frame_len: 8948.0, ..rates("MTU 9000", 24.8, 0.31, 0.22) };
    vec![
        experiment(
            "uso",
            "What is UDP segmentation worth?",
            &BULK,
            &[rates("off", 5.1, 1.5, 1.1), rates("on", 17.3, 0.44, 0.41)],
        ),
        experiment(
            "tso-udp",
            "Does the TSO switch change anything for UDP?",
            &BULK,
            &[rates("TSO off", 5.1, 1.5, 1.1), rates("TSO on", 5.1, 1.5, 1.1)],
        ),
        experiment(
            "rsc",
            "What is receive coalescing worth?",
            &BULK,
            &[rates("off", 12.2, 0.64, 0.41), rates("on", 22.9, 0.34, 0.33)],
        ),
        experiment(
            "jumbo",
            "What is an MTU of 9000 worth against 1500?",
            &BULK,
            &[rates("MTU 1500", 7.9, 0.99, 0.7), jumbo],
        ),
        experiment(
            "relay",
            "How do the adapters compare with a bare relay without offloads?",
            &BULK,
            &[
                rates("bare relay", 3.3, 1.9, 2.4),
                rates("adapters, off", 7.9, 0.99, 0.7),
                rates("adapters, on", 31.8, 0.22, 0.19),
            ],
        ),
        experiment(
            "all",
            "What is everything worth together?",
            &BULK,
            &[rates("none", 3.1, 2.2, 2.0), rates("all", 33.5, 0.21, 0.19), rates("checksums only", 3.4, 2.0, 2.1)],
        ),
    ]
}

fn machine() -> Machine {
    Machine {
        kernel: "6.18.5".to_owned(),
        processor: "AMD EPYC 9R45".to_owned(),
        cpus: 2,
        checksum_kernel: "avx512-vnni".to_owned(),
        host_cpus: vec![0],
        adapter_cpus: vec![1],
        cpu_split: "The hosts run on CPU 0 and the adapters on CPU 1; each one's busy time is read from /proc/stat."
            .to_owned(),
        line_distance_ns: Some([54.0, 57.0, 296.0]),
        other_programs: None,
        without_rps: None,
        guest: None,
    }
}

/// Returns [`report()`] for a run with a guest as host A.
pub fn with_guest() -> LabReport {
    let mut report = report();
    report.machine.guest = Some(Guest {
        accelerator: "tcg".to_owned(),
        accelerator_note: Some("KVM is there, but the guest did not start with it".to_owned()),
        kernel: "6.1.0-56-cloud-amd64".to_owned(),
        qemu: "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)".to_owned(),
        cpus: 1,
        memory_mib: 224,
        boot_s: 4.2,
        switched: "Transmit offloads are switched in the guest's driver.".to_owned(),
    });
    for variant in report.experiments.iter_mut().flat_map(|experiment| &mut experiment.variants) {
        for sample in &mut variant.samples {
            sample.guest_cpu_s = sample.host_cpu_s.map(|host_s| 0.9 * host_s);
            (sample.rtt_awake_p50_us, sample.rtt_awake_p99_us) = (None, None);
        }
        *variant = summarise(&variant.name, std::mem::take(&mut variant.samples));
    }
    report
}

fn settings() -> Settings {
    Settings {
        repeats: ROUNDS,
        seconds: SECONDS,
        congestion: "cubic".to_owned(),
        threads: "one thread drives both adapters, as there is one processor for them".to_owned(),
        elapsed_s: 312.4,
    }
}

/// Returns the result of the shipped experiment `name`: each variant has three equal samples, given by `sample` for the
/// variant's name.
pub fn planned(name: &str, sample: impl Fn(&str) -> Sample) -> Experiment {
    let all = plan::plans(&plan::Settings::default());
    let plan = all.into_iter().find(|plan| plan.name == name).expect("an experiment");
    let rounds = |name: &str| (0..3).map(|round| Sample { round, ..sample(name) }).collect();
    let variants: Vec<Variant> =
        plan.variants.iter().map(|variant| summarise(&variant.name, rounds(&variant.name))).collect();
    Experiment {
        name: plan.name.clone(),
        question: plan.question.clone(),
        claims: claims_of(name),
        fixed: plan.fixed.clone(),
        verdict: verdict(&variants[0], &variants[1], &plan.metric),
        variants,
        verdicts: Vec::new(),
        notes: Vec::new(),
        judgements: Vec::new(),
    }
}

/// Returns a sample with `mbit` Mbit/s and without losses.
pub fn at(mbit: f64) -> Sample {
    let throughput_bps = mbit * 1e6;
    let bytes = (throughput_bps / 16.0) as u64;
    let responses = bytes as f64 / f64::from(8192 + RPC_HEADER_BYTES);
    Sample {
        seconds: 0.5,
        throughput_bps: Some(throughput_bps),
        bytes,
        wire_frames: Some((responses * 7.0) as u64),
        retransmits: Some(0),
        lost_frames: Some(0),
        out_of_order: Some(0),
        dsacks: Some(0),
        cwnd_segments: Some(100.0),
        stall_s: Some(0.01),
        ..Sample::default()
    }
}

/// Returns a report of the experiments with impaired cards and links. The measured results equal the published results.
pub fn with_impairments() -> LabReport {
    let card = |mbit, dropped, overrun, burst| Sample {
        dropped_frames: Some(dropped),
        overrun_frames: Some(overrun),
        burst_frames_max: Some(burst),
        memory_bytes_max: Some(18 * 256),
        rpc_retransmits: Some(dropped / 2),
        ..at(mbit)
    };
    let order = planned("order", |name| match name {
        "strict, 64, four" => Sample { out_of_order: Some(800), cwnd_segments: Some(2.0), ..at(96.0) },
        "strict, in order" | "in order" => at(940.0),
        "reversed 64" => Sample { out_of_order: Some(9000), dsacks: Some(9), ..at(90.0) },
        _ => Sample { out_of_order: Some(300), retransmits: Some(60), cwnd_segments: Some(2.0), ..at(24.0) },
    });
    let memory = |name: &str| match name {
        "5 kB, overruns" => card(5.0, 0, 40, 12),
        name if name.contains("fast") => card(9.4, 0, 0, 2),
        name if name.starts_with("64 kB") => card(7.0, 0, 0, 44),
        name if name.starts_with("13 kB") => card(5.0, 10, 0, 33),
        _ => card(3.0, 40, 0, 12),
    };
    let window = planned("rx-window", |name| match name {
        "32 kB" => card(3.0, 40, 0, 10),
        "32 kB, today" => card(4.5, 30, 0, 10),
        "32 kB, slow hop" => card(4.7, 0, 0, 2),
        _ => card(4.6, 0, 0, 3),
    });
    let rpc = planned("rpc-size", |name| match name {
        "8-bit, 4 kB" | "8-bit, 8 kB" => card(2.0, 40, 0, 12),
        name if name.starts_with("8-bit,") => card(6.0, 0, 0, 20),
        "16-bit, 1 kB" => card(6.5, 0, 0, 2),
        _ => card(9.5, 0, 0, 3),
    });
    let verdicts = planned("checksum-verdict", |name| match name {
        "wrong verdicts" => Sample { stall_s: Some(0.5), ..at(0.0) },
        _ => at(3000.0),
    });
    let [tcp, udp] = ["packet-memory-tcp", "packet-memory-udp"].map(|name| planned(name, memory));
    LabReport { experiments: vec![order, tcp, udp, window, rpc, verdicts], ..report() }
}
