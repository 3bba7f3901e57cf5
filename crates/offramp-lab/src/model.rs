//! The report of a lab run: the JSON object printed by `offramp lab --json`, version 1.
//!
//! The name of a field with a unit ends with this unit. A figure that was not measured is `null`, never 0.

pub use crate::metric::{Sample, Variant};
use serde::{Deserialize, Serialize};

/// Version of the JSON object. The version is incremented when a field changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// The results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabReport {
    /// Version of the JSON object: [`VERSION`].
    pub version: u32,
    /// Version of offramp.
    pub offramp: String,
    /// Machine of the run.
    pub machine: Machine,
    /// Settings of the run.
    pub settings: Settings,
    /// Experiments, in the order of their measurement.
    pub experiments: Vec<Experiment>,
}

/// The machine of a run: properties that affect the figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release (`uname -r`).
    pub kernel: String,
    /// Model name of the processor.
    pub processor: String,
    /// Number of processors available to the run.
    pub cpus: usize,
    /// Name of the checksum implementation that was chosen for this processor at run time.
    pub checksum_kernel: String,
    /// Processors used by the hosts.
    pub host_cpus: Vec<usize>,
    /// Processors used by the adapters. On a machine with one processor, hosts and adapters share this processor.
    pub adapter_cpus: Vec<usize>,
    /// Description of how host and adapter processor time are separated.
    pub cpu_split: String,
    /// One-way latency of a cache line between a host's and an adapter's processor, in nanoseconds: minimum, median and
    /// maximum over the samples.
    pub line_distance_ns: Option<[f64; 3]>,
    /// The load of other programs. `None` in an object of an older offramp.
    #[serde(default)]
    pub other_programs: Option<OtherPrograms>,
    /// Reason why the hosts' receive work could not be moved to the hosts' processors (RPS). `None` if it was moved.
    #[serde(default)]
    pub without_rps: Option<String>,
    /// The guest used as host A. `None` if both hosts are namespaces, or if the run used an existing interface.
    pub guest: Option<Guest>,
}

/// The load of other programs, in processors: 0.5 is half of one processor.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct OtherPrograms {
    /// Mean load before the run, by the idle time of all processors.
    pub before_cpus: f64,
    /// Median load around the samples, by the times of the processes in `/proc`. `None` if not measured.
    pub during_cpus: Option<f64>,
    /// Maximum load around a sample.
    pub during_cpus_max: Option<f64>,
}

/// A guest: properties that affect the figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Guest {
    /// Accelerator: `kvm` or `tcg` (emulation) of QEMU (`-accel`), or `uml` (User Mode Linux).
    pub accelerator: String,
    /// Reason why no faster accelerator was used, if any.
    pub accelerator_note: Option<String>,
    /// Kernel release in the guest (`uname -r`).
    pub kernel: String,
    /// Version of the program that runs the guest.
    pub qemu: String,
    /// Number of processors of the guest.
    pub cpus: usize,
    /// Memory of the guest, MiB.
    pub memory_mib: u64,
    /// Time from the guest's start to its first answer, in seconds.
    pub boot_s: f64,
    /// Description of the method that switches offloads between the variants.
    pub switched: String,
}

/// The settings common to all samples of the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Number of samples per variant.
    pub repeats: usize,
    /// Measured time per sample, in seconds.
    pub seconds: f64,
    /// TCP congestion control, set on each socket.
    pub congestion: String,
    /// Description of the threads that ran the adapters, and the reason for this choice.
    pub threads: String,
    /// Duration of the whole run, in seconds.
    pub elapsed_s: f64,
}

/// An experiment: one question, answered by variants that differ in one setting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Experiment {
    /// Short name, as used with `--only`.
    pub name: String,
    /// The question that the experiment answers, in one sentence.
    pub question: String,
    /// Numbers of the published claims that the experiment tests.
    pub claims: Vec<String>,
    /// Description of the settings common to all variants.
    pub fixed: String,
    /// The compared variants. The first variant is the base of every ratio.
    pub variants: Vec<Variant>,
    /// Main comparison: the second variant against the first, in the main metric.
    pub verdict: Option<Verdict>,
    /// Further comparisons, with other metrics or other variants.
    pub verdicts: Vec<Verdict>,
    /// Caveats of this result.
    pub notes: Vec<String>,
    /// Results for the bounds in the experiment's file.
    #[serde(default)]
    pub judgements: Vec<Judgement>,
}

/// A bound on a ratio, and the measured ratio.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// The comparison with the ratio to which the bound applies.
    pub verdict: Verdict,
    /// Upper bound of the ratio; `None` for no upper bound.
    pub at_most: Option<f64>,
    /// Lower bound of the ratio; `None` for no lower bound.
    pub at_least: Option<f64>,
    /// `true` if the measured ratio meets the bound, whatever its interval.
    pub is_met: bool,
}

impl Judgement {
    /// Returns the result by the whole confidence interval, in contrast to `is_met`. `None` if some values of the
    /// interval meet the bound and others do not.
    pub fn is_kept(&self) -> Option<bool> {
        let [low, high] = self.verdict.ci95;
        let (least, most) = (self.at_least.unwrap_or(f64::NEG_INFINITY), self.at_most.unwrap_or(f64::INFINITY));
        match (least <= low && high <= most, high < least || low > most) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            (false, false) => None,
        }
    }
}

/// The comparison of two variants in one metric: the ratio, and its confidence interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the compared metric, a field of [`Variant`].
    pub metric: String,
    /// Name of the base variant.
    pub base: String,
    /// Name of the variant compared with the base.
    pub variant: String,
    /// Ratio of the variant to the base: the median of the ratios per round.
    pub ratio: f64,
    /// 95 % confidence interval of the ratio.
    pub ci95: [f64; 2],
    /// `true` if the interval excludes 1.
    pub significant: bool,
    /// Number of compared rounds.
    pub rounds: usize,
    /// Values of the base and of the variant in the round with the median ratio. For an even number of rounds, the
    /// geometric means over the two middle rounds. `None` in an object of an older offramp.
    #[serde(default)]
    pub pair: Option<[f64; 2]>,
}
