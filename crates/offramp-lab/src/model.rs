//! The report of a lab run: the object printed by `offramp lab --json`, version 1.
//!
//! Units stand last in each name. An unmeasured figure is `null`, never 0.

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
    #[serde(default)]
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

/// One setting, and the medians of its samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Variant {
    /// The difference, in a word or two.
    pub name: String,
    /// Payload received, in bits per second.
    pub throughput_bps: Option<f64>,
    /// Requests answered per second, if the traffic is requests only.
    pub transactions_per_s: Option<f64>,
    /// Processor time of the hosts for 10^9 bytes of payload.
    pub host_cpu_s_per_gb: Option<f64>,
    /// Processor time of the adapters for 10^9 bytes of payload.
    pub adapter_cpu_s_per_gb: Option<f64>,
    /// Processor time of the whole machine for 10^9 bytes of payload.
    pub machine_cpu_s_per_gb: Option<f64>,
    /// Processor time of the hosts as a share of one processor: 200 % are two of them.
    pub host_cpu_percent: Option<f64>,
    /// Share of one processor taken by the adapters.
    pub adapter_cpu_percent: Option<f64>,
    /// Busy share of one of a guest's processors, by its own account.
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
    /// Frames over the link in both directions in the measured time.
    pub wire_frames: Option<f64>,
    /// Frames handed to the receiving host in that time.
    pub host_frames: Option<f64>,
    /// Frames sent by the hosts in that time; a super-frame counts once.
    #[serde(default)]
    pub sent_frames: Option<f64>,
    /// Interrupts of the receiving hosts per second: batches of frames handed to a TAP, or interrupts of a guest.
    #[serde(default)]
    pub interrupts_per_s: Option<f64>,
    /// Interrupts per frame from the wire: 1 if every frame raises one.
    #[serde(default)]
    pub interrupts_per_frame: Option<f64>,
    /// Frames lost on the way, for any reason.
    pub lost_frames: Option<f64>,
    /// Time to the answer of the traffic's own requests, the median. It starts at the request's due time if requests do
    /// not wait for each other.
    #[serde(default)]
    pub latency_p50_us: Option<f64>,
    /// As `latency_p50_us`, the 99th percentile.
    #[serde(default)]
    pub latency_p99_us: Option<f64>,
    /// Frames lost because the memory of host B's adapter had no room (`drop`).
    #[serde(default)]
    pub dropped_frames: Option<f64>,
    /// Frames lost in the memory of host B's adapter to newer ones (`overrun`).
    #[serde(default)]
    pub overrun_frames: Option<f64>,
    /// Maximum frames in a row into the memory of host B's adapter, with no loss and without the memory becoming empty,
    /// since the adapter was made.
    #[serde(default)]
    pub burst_frames_max: Option<f64>,
    /// Maximum bytes held by the memory of host B's adapter at one time, whole pages, since the adapter was made.
    #[serde(default)]
    pub memory_bytes_max: Option<f64>,
    /// TCP segments received out of order. Each calls for a duplicate acknowledgement (RFC 5681 4.2).
    #[serde(default)]
    pub out_of_order: Option<f64>,
    /// TCP segments reported as duplicates by the receiver (DSACK, RFC 2883): spurious retransmissions.
    #[serde(default)]
    pub dsacks: Option<f64>,
    /// TCP congestion window of the senders, in segments: the median over the measured time.
    #[serde(default)]
    pub cwnd_segments: Option<f64>,
    /// Longest time without a byte delivered by TCP within the measured time, in seconds, to a hundredth of a second.
    #[serde(default)]
    pub stall_s: Option<f64>,
    /// Requests of remote procedure calls sent again, as no response came in time.
    #[serde(default)]
    pub rpc_retransmits: Option<f64>,
    /// Every sample, in the order taken.
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
    /// Minimum and maximum of `host_cpu_s`: a hypervisor may have taken its time from the hosts' work or from their
    /// idle time, and the system does not tell. Both are the same if it took none. `None`: it does not bear on the
    /// figure.
    #[serde(default)]
    pub host_cpu_range_s: Option<[f64; 2]>,
    /// Processor time of the adapters in the measured time.
    pub adapter_cpu_s: Option<f64>,
    /// Busy time of a guest's processors in the measured time, by its own account.
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
