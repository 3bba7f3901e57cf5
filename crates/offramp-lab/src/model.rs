//! What a run of the lab says: the object that `offramp lab --json` prints, version 1.
//!
//! Units stand last in each name. A figure that was not measured is `null`, never 0.

use serde::{Deserialize, Serialize};

/// Version of the object; it grows when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// Everything that one run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabReport {
    /// [`VERSION`].
    pub version: u32,
    /// `offramp`'s own version.
    pub offramp: String,
    /// Where it ran.
    pub machine: Machine,
    /// How it ran.
    pub settings: Settings,
    /// What was asked, in the order in which it was run.
    pub experiments: Vec<Experiment>,
}

/// The machine, as far as it bears on the figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// Model name of the processor.
    pub processor: String,
    /// Processors that the run could use.
    pub cpus: usize,
    /// The checksum code that was chosen at run time.
    pub checksum_kernel: String,
    /// Processors that the hosts ran on.
    pub host_cpus: Vec<usize>,
    /// Processors that the adapters ran on; the same as the hosts' where there is only one.
    pub adapter_cpus: Vec<usize>,
    /// How host and adapter processor time were separated, in a sentence.
    pub cpu_split: String,
    /// One-way time of a cache line between a host's and an adapter's processor: smallest, median
    /// and largest of the samples, in nanoseconds.
    pub line_distance_ns: Option<[f64; 3]>,
    /// The guest that is host A; `None`: both hosts are namespaces, or not ours.
    #[serde(default)]
    pub guest: Option<Guest>,
}

/// A guest, as far as it bears on the figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Guest {
    /// What ran it: `kvm` or `tcg` (emulation) of QEMU (`-accel`), or `uml` (User Mode Linux).
    pub accelerator: String,
    /// Why it is not the faster one, if there is something to say.
    pub accelerator_note: Option<String>,
    /// `uname -r` in the guest.
    pub kernel: String,
    /// Version of the program that ran it.
    pub qemu: String,
    /// Processors of the guest.
    pub cpus: usize,
    /// Memory of the guest in MiB.
    pub memory_mib: u64,
    /// From its start to a guest that answers, in seconds.
    pub boot_s: f64,
    /// How offloads were switched, in a sentence or two.
    pub switched: String,
}

/// What every sample of the run had in common.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Samples of each variant.
    pub repeats: usize,
    /// Measured time of each sample.
    pub seconds: f64,
    /// TCP congestion control, set on each socket.
    pub congestion: String,
    /// Threads that drove the adapters, and why.
    pub threads: String,
    /// The whole run's length.
    pub elapsed_s: f64,
}

/// One question: variants that differ in one thing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Experiment {
    /// Short name, as `--only` takes it.
    pub name: String,
    /// The question, in a sentence.
    pub question: String,
    /// Numbers of the published claims that it bears on.
    pub claims: Vec<String>,
    /// What is the same in all variants, in a sentence.
    pub fixed: String,
    /// What was compared; the first is the base of every ratio.
    pub variants: Vec<Variant>,
    /// The main comparison: the second variant against the first in the metric that the question names.
    pub verdict: Option<Verdict>,
    /// Further comparisons: other metrics, other variants.
    pub verdicts: Vec<Verdict>,
    /// What a reader must know of this result, if anything.
    pub notes: Vec<String>,
    /// Bounds that were set beforehand, and whether each variant keeps them.
    #[serde(default)]
    pub judgements: Vec<Judgement>,
}

/// A bound on a ratio, and what was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// The comparison: its `base` is what the bound is set against.
    pub verdict: Verdict,
    /// Upper bound of the ratio.
    pub at_most: Option<f64>,
    /// Lower bound of the ratio.
    pub at_least: Option<f64>,
    /// The measured ratio, the median of the rounds', keeps the bound.
    pub is_met: bool,
}

impl Judgement {
    /// Whether the whole interval of the ratio lies on the same side of the bound as the ratio.
    pub fn is_sure(&self) -> bool {
        let [low, high] = self.verdict.ci95;
        let keeps = |ratio: f64| {
            self.at_most.is_none_or(|most| ratio <= most) && self.at_least.is_none_or(|least| ratio >= least)
        };
        keeps(low) == self.is_met && keeps(high) == self.is_met
    }
}

/// One setting, and the medians of its samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Variant {
    /// What is different, in a word or two.
    pub name: String,
    /// Payload that arrived, in bits per second.
    pub throughput_bps: Option<f64>,
    /// Requests answered in a second, where the traffic is nothing but requests.
    pub transactions_per_s: Option<f64>,
    /// Processor time of the hosts for 10^9 bytes of payload.
    pub host_cpu_s_per_gb: Option<f64>,
    /// Processor time of the adapters for 10^9 bytes of payload.
    pub adapter_cpu_s_per_gb: Option<f64>,
    /// Processor time of the whole machine for 10^9 bytes of payload.
    pub machine_cpu_s_per_gb: Option<f64>,
    /// Processor time of the hosts as a share of one processor: 200 % are two of them.
    pub host_cpu_percent: Option<f64>,
    /// Share of one processor that the adapters took.
    pub adapter_cpu_percent: Option<f64>,
    /// Share of one of its processors that a guest was not idle, by its own account.
    #[serde(default)]
    pub guest_cpu_percent: Option<f64>,
    /// Round trip of 64 bytes, as found: processors may sleep between.
    pub rtt_p50_us: Option<f64>,
    /// As `rtt_p50_us`, the 99th percentile.
    pub rtt_p99_us: Option<f64>,
    /// Round trip of 64 bytes with the processors kept awake.
    pub rtt_awake_p50_us: Option<f64>,
    /// As `rtt_awake_p50_us`, the 99th percentile.
    pub rtt_awake_p99_us: Option<f64>,
    /// TCP segments sent again.
    pub retransmits: Option<f64>,
    /// Frames that crossed the line in both directions in the measured time.
    pub wire_frames: Option<f64>,
    /// Frames that were handed to the receiving host in that time.
    pub host_frames: Option<f64>,
    /// Frames that the hosts handed over to be sent in that time; a super-frame counts once.
    #[serde(default)]
    pub sent_frames: Option<f64>,
    /// Interrupts of the receiving hosts per second: batches of frames handed to a TAP, or interrupts of a guest.
    #[serde(default)]
    pub interrupts_per_s: Option<f64>,
    /// Interrupts per frame from the wire: 1 where every frame raises one.
    #[serde(default)]
    pub interrupts_per_frame: Option<f64>,
    /// Frames lost on the way, for any reason.
    pub lost_frames: Option<f64>,
    /// Time to the answer of the traffic's own requests, the median; from the moment at which a request was due where
    /// the requests do not wait for each other.
    #[serde(default)]
    pub latency_p50_us: Option<f64>,
    /// As `latency_p50_us`, the 99th percentile.
    #[serde(default)]
    pub latency_p99_us: Option<f64>,
    /// Frames for which the memory of host B's adapter had no room (`drop`).
    #[serde(default)]
    pub dropped_frames: Option<f64>,
    /// Frames that were lost in the memory of host B's adapter to newer ones (`overrun`).
    #[serde(default)]
    pub overrun_frames: Option<f64>,
    /// Most frames that came into the memory of host B's adapter one after another without a loss and without the memory
    /// becoming empty, since the adapter was made.
    #[serde(default)]
    pub burst_frames_max: Option<f64>,
    /// Most bytes that the memory of host B's adapter has held at one time, whole pages, since the adapter was made.
    #[serde(default)]
    pub memory_bytes_max: Option<f64>,
    /// TCP segments that arrived out of order. Each calls for a duplicate acknowledgement (RFC 5681 4.2).
    #[serde(default)]
    pub out_of_order: Option<f64>,
    /// TCP segments that the receiver said it had already (DSACK, RFC 2883): sent again for nothing.
    #[serde(default)]
    pub dsacks: Option<f64>,
    /// TCP congestion window of the senders, in segments: the median over the measured time.
    #[serde(default)]
    pub cwnd_segments: Option<f64>,
    /// Longest time of the measured one in which TCP delivered not a byte, in seconds, to a hundredth of a second.
    #[serde(default)]
    pub stall_s: Option<f64>,
    /// Requests of remote procedure calls that were sent again, as no response came in time.
    #[serde(default)]
    pub rpc_retransmits: Option<f64>,
    /// Every sample, in the order in which they were taken.
    pub samples: Vec<Sample>,
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the round of interleaved samples; variants of one round are compared in pairs.
    pub round: usize,
    /// Measured time.
    pub seconds: f64,
    /// As in [`Variant`].
    pub throughput_bps: Option<f64>,
    /// As in [`Variant`].
    pub transactions_per_s: Option<f64>,
    /// Processor time of the hosts in the measured time.
    pub host_cpu_s: Option<f64>,
    /// The least and the most that `host_cpu_s` may be: the system does not say whether a hypervisor took time from the
    /// hosts' work or from their idling. Both are the same where it took none. `None`: it does not bear on the figure.
    #[serde(default)]
    pub host_cpu_range_s: Option<[f64; 2]>,
    /// Processor time of the adapters in the measured time.
    pub adapter_cpu_s: Option<f64>,
    /// Time that a guest's processors were not idle in the measured time, by its own account.
    #[serde(default)]
    pub guest_cpu_s: Option<f64>,
    /// Processor time of the whole machine in the measured time, by the system's own account.
    pub machine_cpu_s: Option<f64>,
    /// Payload bytes in the measured time.
    pub bytes: u64,
    /// As in [`Variant`].
    pub rtt_p50_us: Option<f64>,
    /// As in [`Variant`].
    pub rtt_p99_us: Option<f64>,
    /// As in [`Variant`].
    pub rtt_awake_p50_us: Option<f64>,
    /// As in [`Variant`].
    pub rtt_awake_p99_us: Option<f64>,
    /// As in [`Variant`].
    pub retransmits: Option<u64>,
    /// As in [`Variant`].
    pub wire_frames: Option<u64>,
    /// As in [`Variant`].
    pub host_frames: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub sent_frames: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub interrupts_per_s: Option<f64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub interrupts_per_frame: Option<f64>,
    /// As in [`Variant`].
    pub lost_frames: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub latency_p50_us: Option<f64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub latency_p99_us: Option<f64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub dropped_frames: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub overrun_frames: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub burst_frames_max: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub memory_bytes_max: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub out_of_order: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub dsacks: Option<u64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub cwnd_segments: Option<f64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub stall_s: Option<f64>,
    /// As in [`Variant`].
    #[serde(default)]
    pub rpc_retransmits: Option<u64>,
    /// One-way time of a cache line between the two processors, before and after.
    pub line_distance_ns: Option<[f64; 2]>,
}

/// What a difference is worth.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of a field of [`Variant`].
    pub metric: String,
    /// The variant that is the base.
    pub base: String,
    /// The variant that is compared with it.
    pub variant: String,
    /// Variant over base: median of the rounds' ratios.
    pub ratio: f64,
    /// 95 % confidence interval of the ratio.
    pub ci95: [f64; 2],
    /// The interval does not hold 1.
    pub significant: bool,
    /// Rounds that were compared: both samples taken at a like distance between the processors.
    pub rounds: usize,
}
