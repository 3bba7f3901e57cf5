//! The report of a lab run: the object printed by `offramp lab --json`, version 1.
//!
//! Units stand last in each name. An unmeasured figure is `null`, never 0.

pub use crate::metric::{Sample, Variant};
use serde::{Deserialize, Serialize};

/// Version of the object; it grows when a field changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// The results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabReport {
    /// [`VERSION`].
    pub version: u32,
    /// `offramp`'s own version.
    pub offramp: String,
    /// The machine of the run.
    pub machine: Machine,
    /// The settings of the run.
    pub settings: Settings,
    /// The experiments, in the order of the run.
    pub experiments: Vec<Experiment>,
}

/// The machine, as far as it bears on the figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// Model name of the processor.
    pub processor: String,
    /// Number of processors available to the run.
    pub cpus: usize,
    /// The checksum code chosen at run time.
    pub checksum_kernel: String,
    /// Processors of the hosts.
    pub host_cpus: Vec<usize>,
    /// Processors of the adapters; the same as the hosts' if there is only one.
    pub adapter_cpus: Vec<usize>,
    /// The separation of host and adapter processor time, in a sentence.
    pub cpu_split: String,
    /// One-way time of a cache line between a host's and an adapter's processor: smallest, median
    /// and largest of the samples, in nanoseconds.
    pub line_distance_ns: Option<[f64; 3]>,
    /// The guest as host A; `None`: both hosts are namespaces, or not ours.
    pub guest: Option<Guest>,
}

/// A guest, as far as it bears on the figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Guest {
    /// Its accelerator: `kvm` or `tcg` (emulation) of QEMU (`-accel`), or `uml` (User Mode Linux).
    pub accelerator: String,
    /// The reason it is not the faster one, if any.
    pub accelerator_note: Option<String>,
    /// `uname -r` in the guest.
    pub kernel: String,
    /// Version of the program running it.
    pub qemu: String,
    /// Processors of the guest.
    pub cpus: usize,
    /// Memory of the guest in MiB.
    pub memory_mib: u64,
    /// From its start to its first answer, in seconds.
    pub boot_s: f64,
    /// The method of switching offloads, in a sentence or two.
    pub switched: String,
}

/// The settings common to all samples of the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Samples of each variant.
    pub repeats: usize,
    /// Measured time of each sample.
    pub seconds: f64,
    /// TCP congestion control, set on each socket.
    pub congestion: String,
    /// Threads of the adapters, with the reason.
    pub threads: String,
    /// The whole run's length.
    pub elapsed_s: f64,
}

/// One question: variants with one difference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Experiment {
    /// Short name, as `--only` takes it.
    pub name: String,
    /// The question, in a sentence.
    pub question: String,
    /// Numbers of the published claims it bears on.
    pub claims: Vec<String>,
    /// The settings common to all variants, in a sentence.
    pub fixed: String,
    /// The compared variants; the first is the base of every ratio.
    pub variants: Vec<Variant>,
    /// The main comparison: the second variant against the first in the question's metric.
    pub verdict: Option<Verdict>,
    /// Further comparisons: other metrics, other variants.
    pub verdicts: Vec<Verdict>,
    /// Caveats of this result.
    pub notes: Vec<String>,
    /// Bounds set beforehand, each with its verdict per variant.
    #[serde(default)]
    pub judgements: Vec<Judgement>,
}

/// A bound on a ratio, and the measured ratio.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// The comparison: the bound applies to the ratio to its `base`.
    pub verdict: Verdict,
    /// Upper bound of the ratio.
    pub at_most: Option<f64>,
    /// Lower bound of the ratio.
    pub at_least: Option<f64>,
    /// The measured ratio, the median of the rounds', keeps the bound.
    pub is_met: bool,
}

impl Judgement {
    /// Returns whether the whole interval of the ratio lies on the same side of the bound as the ratio.
    pub fn is_sure(&self) -> bool {
        let [low, high] = self.verdict.ci95;
        let keeps = |ratio: f64| {
            self.at_most.is_none_or(|most| ratio <= most) && self.at_least.is_none_or(|least| ratio >= least)
        };
        keeps(low) == self.is_met && keeps(high) == self.is_met
    }
}

/// The verdict on a difference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of a field of [`Variant`].
    pub metric: String,
    /// The base variant.
    pub base: String,
    /// The variant compared with it.
    pub variant: String,
    /// Variant over base: median of the rounds' ratios.
    pub ratio: f64,
    /// 95 % confidence interval of the ratio.
    pub ci95: [f64; 2],
    /// The interval does not hold 1.
    pub significant: bool,
    /// Compared rounds: both samples taken at a like distance between the processors.
    pub rounds: usize,
}
