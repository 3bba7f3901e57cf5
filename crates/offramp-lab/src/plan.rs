//! The experiments: question, fixed settings and variants. Each experiment of offramp is a file in `experiments/`.
//! Users can run files of their own ([`Experiment::read`]).

mod file;
mod layers;

pub use file::{Bound, Experiment};

use crate::compare::grouped;
use offramp_adapter::config::MTU_DEFAULT;
use offramp_model::claims::{self, Comparison};
use offramp_testbed::guest::{Accelerator, DriverCoalescing};
use offramp_testbed::host::HostSettings;
use offramp_testbed::rig::{RigConfig, Threads};
use offramp_testbed::traffic::{CONGESTION_DEFAULT, Params};
use std::path::Path;
use std::sync::LazyLock;

pub(crate) const GIGABIT_BPS: u64 = 1_000_000_000;
/// Interrupt rate of the e1000 in claims H1 and H2, per second: the static default of the e1000 driver. Without this
/// limit of the interrupt rate, a gigabit link wakes the host for every frame.
pub(crate) const GIGABIT_INTERRUPTS_PER_SECOND: u32 = 8000;
/// Name of the experiment that measures a host which only receives.
pub(crate) const RECEIVER: &str = "receiver";

/// Metrics compared in addition to the main metric, unless the file lists other metrics.
const COMPARED: [&str; 5] =
    ["throughput_bps", "transactions_per_s", "host_cpu_s_per_gb", "adapter_cpu_s_per_gb", "machine_cpu_s_per_gb"];
/// Metrics compared in addition to [`COMPARED`] in experiments that run only by name. The moderation experiments, which
/// run only by name, need these metrics.
const COMPARED_ON_REQUEST: [&str; 4] = ["latency_p50_us", "latency_p99_us", "interrupts_per_frame", "interrupts_per_s"];

/// The user's settings for all experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Measured time per sample, in seconds.
    pub seconds: f64,
    /// Number of TCP streams per direction.
    pub streams: u32,
    /// TCP congestion control.
    pub congestion: String,
    /// Link rate in experiments that do not fix the rate, in bits per second. `None` for an unlimited link.
    pub rate_bps: Option<u64>,
    /// MTU in experiments that do not fix the MTU, bytes.
    pub mtu: usize,
    /// Number of queue pairs per adapter.
    pub queues: u16,
    /// Distribution of the adapters' work over threads.
    pub threads: Threads,
    /// Settings of the hosts. An experiment can add further settings.
    pub host: HostSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seconds: 0.5,
            streams: 1,
            congestion: CONGESTION_DEFAULT.to_owned(),
            rate_bps: None,
            mtu: MTU_DEFAULT,
            queues: 1,
            threads: Threads::Shared,
            host: HostSettings::default(),
        }
    }
}

/// One variant of an experiment.
#[derive(Clone, Debug)]
pub struct VariantPlan {
    /// Short name: the difference from other variants.
    pub name: String,
    /// Configuration of the two hosts, and of the adapters between them.
    pub rig: RigConfig,
    /// Parameters of the traffic.
    pub traffic: Params,
}

/// The plan of an experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Short name of the experiment.
    pub name: String,
    /// The question that the experiment answers, in one sentence.
    pub question: String,
    /// Description of the settings common to all variants.
    pub fixed: String,
    /// Metric of the main verdict. The main verdict compares the second variant with the first.
    pub metric: String,
    /// Metrics compared in addition to the main metric.
    pub compared: Vec<String>,
    /// Bounds for every variant except the base.
    pub bounds: Vec<Bound>,
    /// `true` if the experiment runs only by name. A default run omits such experiments, so that it ends within 90 s.
    pub on_request: bool,
    /// Name of the experiment's group, if any.
    pub group: Option<String>,
    /// Variants. The first variant is the base.
    pub variants: Vec<VariantPlan>,
}

impl Plan {
    /// Returns the numbers of the published claims that compare two variants of this experiment.
    pub fn claims(&self) -> Vec<&'static str> {
        let has = |name: &str| self.variants.iter().any(|variant| variant.name == name);
        let bears_on = |of: &Comparison| of.experiment == self.name && has(&of.base) && has(&of.variant);
        claims::all().iter().filter(|claim| claim.lab.iter().any(bears_on)).map(|claim| claim.id.as_str()).collect()
    }

    /// Returns whether round trips are measured after each sample. Experiments with `on_request` omit these round trips
    /// to end sooner. If such an experiment is about latencies, its own traffic measures them.
    pub fn has_round_trips(&self) -> bool {
        !self.on_request
    }
}

macro_rules! experiments {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../experiments/", $name, ".toml")))),+]
    };
}

static EMBEDDED: &[(&str, &str)] = experiments![
    "lso",
    "tx-checksum",
    "rx-checksum",
    "rsc",
    "jumbo",
    "lso-1g",
    "lso-1g-duplex",
    "lso-transactions",
    "uso",
    "udp-bulk",
    "accecn",
    "tso-udp",
    "all",
    "relay",
    "moderation-rpc",
    "moderation-bulk",
    "moderation-mixed",
    "moderation-bursts",
    "interrupt-cap",
    "receiver",
    "order",
    "packet-memory-tcp",
    "packet-memory-udp",
    "rx-window",
    "rpc-size",
    "checksum-verdict",
    "ipsec-gcm",
    "ipsec-chacha20",
    "ipsec-3des",
];

/// Returns every experiment shipped with offramp, in the order of a full run.
///
/// # Panics
/// Never panics: the files are part of the program, and tests parse them.
pub fn experiments() -> &'static [Experiment] {
    static EXPERIMENTS: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
        let read = |(name, text): &(&str, &str)| {
            Experiment::parse(text, Path::new(&format!("{name}.toml"))).unwrap_or_else(|error| panic!("{error}"))
        };
        EMBEDDED.iter().map(read).collect()
    });
    &EXPERIMENTS
}

/// Returns the groups of experiments: the name of each group, and the names of its experiments.
pub fn groups() -> Vec<(&'static str, Vec<&'static str>)> {
    grouped(experiments().iter().filter_map(|of| Some((of.group.as_deref()?, of.name.as_str()))))
}

/// Returns the plan of every shipped experiment, in the order of a full run.
///
/// # Panics
/// Never panics: tests build the plan of every shipped experiment.
pub fn plans(settings: &Settings) -> Vec<Plan> {
    experiments().iter().map(|of| of.plan(settings).unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Returns the plans of the shipped experiments that are possible with a guest as host A, for the guest's accelerator
/// and driver, in the order of a full run. By default, the guest sends. In experiments about receiving, the guest
/// receives. In experiments about a server, the guest serves.
///
/// # Panics
/// Never panics: tests build the plan of every shipped experiment.
pub fn guest_plans(settings: &Settings, accelerator: Accelerator, driver: DriverCoalescing) -> Vec<Plan> {
    let plan = |of: &Experiment| of.guest_plan(settings, accelerator, driver).transpose();
    experiments().iter().filter_map(plan).map(|plan| plan.unwrap_or_else(|error| panic!("{error}"))).collect()
}

#[cfg(test)]
mod tests;
