//! Measures the worth of each correct offload with the experiments of `offramp lab --device`.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use offramp_check::end::namespace_of;
use offramp_check::error::CheckError;
use offramp_check::plan::Depth;
use offramp_check::verdict::{Effect, Report, Verdict, Worth};
use offramp_lab::device::{self, DeviceConfig};
use offramp_lab::model::{Experiment, Verdict as Comparison};
use offramp_testbed::traffic::{CONGESTION_DEFAULT, PORT_DEFAULT};

/// The lab's experiments, and the offloads measured by each experiment.
const EXPERIMENTS: [(&str, &[&str]); 9] = [
    ("tx-checksum", &["tx-checksum"]),
    ("sg", &["tx-scatter-gather"]),
    ("tso", &["tso4", "tso6"]),
    ("uso", &["uso4", "uso6"]),
    ("rx-checksum", &["rx-checksum"]),
    ("gro", &["rx-gro"]),
    ("gro-hw", &["rx-gro-hw"]),
    ("lro", &["rx-lro"]),
    ("udp-gro", &["rx-udp-gro"]),
];
/// Number of samples per variant and seconds per sample, for a quick run and for a full run.
const SAMPLES_QUICK: (usize, f64) = (3, 0.3);
const SAMPLES_FULL: (usize, f64) = (5, 1.0);

/// The lab's name for the throughput metric.
const THROUGHPUT: &str = "throughput_bps";
/// Ratio of the upper to the lower limit of a confidence interval. Above this ratio, the interval is too wide to
/// distinguish a halving from no effect.
const TOO_NOISY_FROM: f64 = 2.0;

/// The end of the path to measure, its peer, and the depth of the measurement.
#[derive(Clone, Debug)]
pub struct WorthConfig {
    /// Name of an end in the report: `IF` or `NS/IF` on this machine.
    pub end: String,
    /// Address of `offramp ttcp --serve`, reached through the interface `end`: `host` or `host:port`.
    pub peer: String,
    /// Selects the number and the duration of the samples.
    pub depth: Depth,
    /// Directory of the settings to restore.
    pub state_dir: PathBuf,
}

/// Measures the worth of an end's correct offloads, and adds the results to the report. Restores every setting before
/// returning.
///
/// # Errors
/// Returns an error if the peer cannot be reached through the interface, no offload can be switched, or a setting could
/// not be restored. The report contains all measurements made before the error.
pub fn measure(
    report: &mut Report,
    config: &WorthConfig,
    stop: &AtomicBool,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<(), CheckError> {
    let is_right = |name: &&&str| {
        let mut rows = report.rows.iter();
        rows.any(|row| row.offload == **name && row.interface == config.end && matches!(row.verdict, Verdict::Right))
    };
    let right_of = |offloads: &[&'static str]| offloads.iter().filter(is_right).copied().collect::<Vec<_>>();
    let right: Vec<(&str, Vec<&'static str>)> =
        EXPERIMENTS.into_iter().map(|(name, offloads)| (name, right_of(offloads))).collect();
    let only: Vec<String> =
        right.iter().filter(|(_, offloads)| !offloads.is_empty()).map(|(name, _)| (*name).to_owned()).collect();
    if only.is_empty() {
        return Ok(());
    }
    let (namespace, interface, _) = namespace_of(&config.end)?;
    let (repeats, seconds) = if config.depth == Depth::Quick { SAMPLES_QUICK } else { SAMPLES_FULL };
    let peer = &config.peer;
    let device = DeviceConfig {
        interface: interface.to_owned(),
        peer: if peer.contains(':') { peer.clone() } else { format!("{peer}:{PORT_DEFAULT}") },
        repeats,
        seconds,
        streams: 1,
        congestion: CONGESTION_DEFAULT.to_owned(),
        state_dir: config.state_dir.clone(),
        only,
    };
    let mut experiments = Vec::new();
    let measured = namespace.run(|| device::run(&device, stop, &mut |line: &str| progress(line), &mut experiments))?;
    let offloads_of = |name: &str| right.iter().find(|(known, _)| *known == name).map(|(_, offloads)| offloads.clone());
    report.worth = experiments
        .iter()
        .map(|experiment| Worth {
            offloads: offloads_of(&experiment.name).unwrap_or_default(),
            interface: config.end.clone(),
            effect: effect(experiment),
            found: found(experiment),
        })
        .collect();
    Ok(measured?)
}

/// Judges an offload by throughput if the offload changes the throughput significantly. If not, judges the offload by
/// this machine's processor time.
fn effect(experiment: &Experiment) -> Effect {
    let is_worse = |verdict: &Comparison| (verdict.ratio > 1.0) == (verdict.metric != THROUGHPUT);
    match comparisons(experiment)[..] {
        [] => Effect::Unknown,
        [.., throughput] if throughput.significant && is_worse(throughput) => Effect::SlowsDown,
        [.., throughput] if throughput.significant => Effect::Pays,
        [cpu, ..] if cpu.significant && is_worse(cpu) => Effect::SlowsDown,
        [cpu, ..] if cpu.significant => Effect::Pays,
        [cpu, ..] if cpu.ci95[1] > TOO_NOISY_FROM * cpu.ci95[0] => Effect::Unknown,
        [_, ..] => Effect::NoDifference,
    }
}

/// Returns the comparisons with and without the offload: of this machine's processor time, and of throughput if
/// available.
fn comparisons(experiment: &Experiment) -> Vec<&Comparison> {
    let Some(main) = &experiment.verdict else { return Vec::new() };
    let is_same = |other: &&Comparison| other.base == main.base && other.variant == main.variant;
    let mut others = experiment.verdicts.iter().filter(is_same);
    [main].into_iter().chain(others.find(|other| other.metric == THROUGHPUT)).collect()
}

fn found(experiment: &Experiment) -> String {
    let text = |verdict: &&Comparison| {
        let noun = if verdict.metric == THROUGHPUT { "throughput" } else { "processor time per GB" };
        let [low, high] = verdict.ci95;
        format!("{:.2} × {noun} (95 %: {low:.2} to {high:.2})", verdict.ratio)
    };
    let all: Vec<String> = comparisons(experiment).iter().map(text).collect();
    if all.is_empty() { "nothing could be compared".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(main: Option<([f64; 2], f64)>, throughput: ([f64; 2], f64)) -> Experiment {
        let verdict = |metric: &str, (ci95, ratio): ([f64; 2], f64)| Comparison {
            metric: metric.to_owned(),
            base: "off".to_owned(),
            variant: "on".to_owned(),
            ratio,
            ci95,
            significant: ci95[0] > 1.0 || ci95[1] < 1.0,
            rounds: 5,
            pair: None,
        };
        let text = String::new;
        Experiment {
            name: text(),
            question: text(),
            claims: Vec::new(),
            fixed: text(),
            variants: Vec::new(),
            verdict: main.map(|main| verdict("host_cpu_s_per_gb", main)),
            verdicts: vec![verdict("throughput_bps", throughput)],
            notes: Vec::new(),
            judgements: Vec::new(),
        }
    }

    #[test]
    fn an_offload_pays_or_slows_down_by_throughput_first_and_processor_time_then() {
        let (same, less, more) = (([0.9, 1.1], 1.0), ([0.4, 0.6], 0.5), ([1.9, 2.1], 2.0));
        let of = |main, throughput| effect(&experiment(Some(main), throughput));
        assert_eq!(of(less, same), Effect::Pays);
        assert_eq!(of(more, same), Effect::SlowsDown);
        assert_eq!(of(more, more), Effect::Pays);
        assert_eq!(of(less, less), Effect::SlowsDown);
        assert_eq!(of(same, same), Effect::NoDifference);
        assert_eq!(of(([0.1, 9.0], 1.0), same), Effect::Unknown);
        assert_eq!(effect(&experiment(None, more)), Effect::Unknown);
        let text = "0.50 × processor time per GB (95 %: 0.40 to 0.60), 2.00 × throughput (95 %: 1.90 to 2.10)";
        assert_eq!(found(&experiment(Some(less), more)), text);
    }

    #[test]
    fn the_lab_has_every_experiment_and_the_check_every_offload() {
        for (name, offloads) in EXPERIMENTS {
            assert!(device::experiments().any(|known| known == name), "{name}");
            assert!(offloads.iter().all(|offload| offramp_check::run::names().contains(offload)), "{offloads:?}");
        }
    }
}
