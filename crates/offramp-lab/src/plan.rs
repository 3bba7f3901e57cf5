//! The experiments: the question, the fixed settings, and the variants. Each is a file in `experiments/`; a user may
//! write more ([`Experiment::read`]).

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
/// Interrupt rate of the e1000 of claims H1 and H2: 8000 per second, its driver's static default. Without it, a gigabit
/// link wakes the host for every frame.
pub(crate) const GIGABIT_INTERRUPTS_PER_SECOND: u32 = 8000;
/// The experiment with a receive-only host.
pub(crate) const RECEIVER: &str = "receiver";

/// Metrics compared besides the main one, unless the file lists them.
const COMPARED: [&str; 5] =
    ["throughput_bps", "transactions_per_s", "host_cpu_s_per_gb", "adapter_cpu_s_per_gb", "machine_cpu_s_per_gb"];
/// Further ones of experiments on request: their question is the timing of interrupts.
const COMPARED_ON_REQUEST: [&str; 4] = ["latency_p50_us", "latency_p99_us", "interrupts_per_frame", "interrupts_per_s"];

/// The user's settings for all experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Measured time of each sample.
    pub seconds: f64,
    /// TCP streams in each direction.
    pub streams: u32,
    /// TCP congestion control.
    pub congestion: String,
    /// Link rate where an experiment does not fix it; `None`: never the limit.
    pub rate_bps: Option<u64>,
    /// MTU where an experiment does not fix it.
    pub mtu: usize,
    /// Queue pairs of each adapter.
    pub queues: u16,
    /// The threads of the adapters.
    pub threads: Threads,
    /// Settings of the hosts; an experiment may add to them.
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

/// One setting of an experiment.
#[derive(Clone, Debug)]
pub struct VariantPlan {
    /// The difference, in a word or two.
    pub name: String,
    /// The rig.
    pub rig: RigConfig,
    /// The traffic.
    pub traffic: Params,
}

/// One question.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Short name.
    pub name: String,
    /// The question.
    pub question: String,
    /// Settings common to all variants.
    pub fixed: String,
    /// The metric of the main verdict: the second variant against the first.
    pub metric: String,
    /// Metrics compared besides the main one.
    pub compared: Vec<String>,
    /// Bounds of every variant but the base.
    pub bounds: Vec<Bound>,
    /// Runs only by name: without such experiments, a default run ends within 90 s.
    pub on_request: bool,
    /// Name of its group, if any.
    pub group: Option<String>,
    /// Variants; the first is the base.
    pub variants: Vec<VariantPlan>,
}

impl Plan {
    /// Returns the numbers of the published claims with both variants in this experiment.
    pub fn claims(&self) -> Vec<&'static str> {
        let has = |name: &str| self.variants.iter().any(|variant| variant.name == name);
        let bears_on = |of: &Comparison| of.experiment == self.name && has(&of.base) && has(&of.variant);
        claims::all().iter().filter(|claim| claim.lab.iter().any(bears_on)).map(|claim| claim.id.as_str()).collect()
    }

    /// Returns true if round trips are measured after each sample. An experiment on request measures its own latencies
    /// where they matter, and must end soon.
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

/// Returns every experiment shipped with offramp, in the order of the run.
///
/// # Panics
/// Never: the files are part of the program, and tests read them.
pub fn experiments() -> &'static [Experiment] {
    static EXPERIMENTS: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
        let read = |(name, text): &(&str, &str)| {
            Experiment::parse(text, Path::new(&format!("{name}.toml"))).unwrap_or_else(|error| panic!("{error}"))
        };
        EMBEDDED.iter().map(read).collect()
    });
    &EXPERIMENTS
}

/// Returns the names of groups of experiments, each with its members.
pub fn groups() -> Vec<(&'static str, Vec<&'static str>)> {
    grouped(experiments().iter().filter_map(|of| Some((of.group.as_deref()?, of.name.as_str()))))
}

/// Returns every experiment, in the order of the run.
///
/// # Panics
/// Never: tests make every experiment that is shipped.
pub fn plans(settings: &Settings) -> Vec<Plan> {
    experiments().iter().map(|of| of.plan(settings).unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Returns the experiments possible with one guest as host A, for its accelerator and driver, in the order of a default
/// run. The guest sends. In questions about receiving it receives; in questions about a server it serves.
///
/// # Panics
/// Never: tests make every experiment that is shipped.
pub fn guest_plans(settings: &Settings, accelerator: Accelerator, driver: DriverCoalescing) -> Vec<Plan> {
    let plan = |of: &Experiment| of.guest_plan(settings, accelerator, driver).transpose();
    experiments().iter().filter_map(plan).map(|plan| plan.unwrap_or_else(|error| panic!("{error}"))).collect()
}

#[cfg(test)]
mod tests;
