//! The metrics of the lab: each with its value in a sample, its place in a variant, and its words.

use crate::report::numbers::{count, cpu_seconds, gbit, microseconds, percent, seconds, segments, share};
use offramp_testbed::stats::median;
use serde::{Deserialize, Serialize};

/// Bytes of the "GB" in processor time per GB.
pub const GB: f64 = 1e9;
/// Bytes before the data of an NFS read's response: RPC header and attributes.
pub(crate) const RPC_HEADER_BYTES: u32 = 100;

/// One metric.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Name of its field in [`Variant`]; the name includes the unit.
    pub name: &'static str,
    /// Heading, with the unit.
    pub heading: &'static str,
    /// The noun after "2.9 ×".
    pub noun: &'static str,
    /// Formats a value in the unit of the heading.
    pub text: fn(f64) -> String,
    /// Its field in a variant; `None`: a metric of claims alone.
    field: Option<fn(&Variant) -> Option<f64>>,
    of_sample: fn(&Sample) -> Option<f64>,
}

impl Metric {
    /// Returns its value in one sample; `None` if the sample did not measure it, or if the value is not finite.
    pub fn value(&self, sample: &Sample) -> Option<f64> {
        (self.of_sample)(sample).filter(|value| value.is_finite())
    }

    /// Returns its median in a variant.
    pub fn median(&self, variant: &Variant) -> Option<f64> {
        self.field.map_or_else(|| median_of(&variant.samples, self.of_sample), |field| field(variant))
    }
}

/// The table of metrics, and the structures with a field for each of its rows.
///
/// A row with a type is measured: a sample has a field of that type. A row with `=` is computed from a sample.
macro_rules! metrics {
    ($($(#[$doc:meta])+ $field:ident $(: $measured:ident)? $(= $computed:expr)?,
        $text:path, $heading:literal, $noun:literal;)+) => {
        /// Every metric, in the order of the tables.
        pub static METRICS: &[Metric] = &[$(Metric {
            name: stringify!($field),
            heading: $heading,
            noun: $noun,
            text: $text,
            field: Some(|variant| variant.$field),
            of_sample: metrics!(@$field $($measured)? $($computed)?),
        }),+];

        /// One setting, and the medians of its samples.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub struct Variant {
            /// The difference, in a word or two.
            pub name: String,
            $($(#[$doc])+ pub $field: Option<f64>,)+
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
            /// Payload bytes in the measured time.
            pub bytes: u64,
            /// Processor time of the hosts in the measured time.
            pub host_cpu_s: Option<f64>,
            /// Minimum and maximum of `host_cpu_s`: a hypervisor may have taken its time from the hosts' work or from
            /// their idle time, and the system does not tell. Both are the same if it took none. `None`: it does not
            /// bear on the figure.
            pub host_cpu_range_s: Option<[f64; 2]>,
            /// Processor time of the adapters in the measured time.
            pub adapter_cpu_s: Option<f64>,
            /// Busy time of a guest's processors in the measured time, by its own account.
            pub guest_cpu_s: Option<f64>,
            /// Processor time of the whole machine in the measured time, by the system's own account.
            pub machine_cpu_s: Option<f64>,
            $($(
                /// As in [`Variant`].
                pub $field: Option<$measured>,
            )?)+
            /// One-way time of a cache line between the two processors, before and after.
            pub line_distance_ns: Option<[f64; 2]>,
        }

        /// Returns the medians of `samples`, each over the samples' own values: figures per GB and shares are computed
        /// for each sample first.
        pub fn summarise(name: &str, samples: Vec<Sample>) -> Variant {
            Variant {
                $($field: median_of(&samples, metrics!(@$field $($measured)? $($computed)?)),)+
                name: name.to_owned(),
                samples,
            }
        }
    };
    (@$field:ident f64) => { |sample: &Sample| sample.$field };
    (@$field:ident u64) => { |sample: &Sample| sample.$field.map(|count| count as f64) };
    (@$field:ident $computed:expr) => { $computed };
}

metrics! {
    /// Payload received, in bits per second.
    throughput_bps: f64, gbit, "Throughput, Gbit/s", "the throughput";
    /// Requests answered per second, if the traffic is requests only.
    transactions_per_s: f64, count, "Transactions, 1/s", "the transactions per second";
    /// Processor time of the hosts for 10^9 bytes of payload.
    host_cpu_s_per_gb = |sample| cpu_per_gb(sample, sample.host_cpu_s), cpu_seconds,
        "Host CPU, s/GB", "the host CPU per GB";
    /// Processor time of the adapters for 10^9 bytes of payload.
    adapter_cpu_s_per_gb = |sample| cpu_per_gb(sample, sample.adapter_cpu_s), cpu_seconds,
        "Adapter CPU, s/GB", "the adapter CPU per GB";
    /// Processor time of the whole machine for 10^9 bytes of payload.
    machine_cpu_s_per_gb = |sample| cpu_per_gb(sample, sample.machine_cpu_s), cpu_seconds,
        "Whole machine's CPU, s/GB", "the whole machine's CPU per GB";
    /// Processor time of the hosts as a share of one processor: 200 % are two of them.
    host_cpu_percent = |sample| cpu_percent(sample, sample.host_cpu_s), percent,
        "Host CPU, % of one processor", "the hosts' share of a processor";
    /// Share of one processor taken by the adapters.
    adapter_cpu_percent = |sample| cpu_percent(sample, sample.adapter_cpu_s), percent,
        "Adapter CPU, % of one processor", "the adapters' share of a processor";
    /// Busy share of one of a guest's processors, by its own account.
    guest_cpu_percent = |sample| cpu_percent(sample, sample.guest_cpu_s), percent,
        "Guest CPU by its own count, % of one of its processors", "the guest's own count of CPU";
    /// Round trip of 64 bytes, as found: processors may sleep between.
    rtt_p50_us: f64, microseconds, "Round trip as found, median, µs", "the median round trip";
    /// As `rtt_p50_us`, the 99th percentile.
    rtt_p99_us: f64, microseconds, "Round trip as found, 99th percentile, µs", "the 99th percentile of the round trip";
    /// Round trip of 64 bytes with the processors kept awake.
    rtt_awake_p50_us: f64, microseconds,
        "Round trip, processors awake, median, µs", "the median round trip of processors kept awake";
    /// As `rtt_awake_p50_us`, the 99th percentile.
    rtt_awake_p99_us: f64, microseconds,
        "Round trip, processors awake, 99th percentile, µs",
        "the 99th percentile of the round trip of processors kept awake";
    /// TCP segments sent again.
    retransmits: u64, count, "TCP retransmits", "the retransmits";
    /// Frames over the link in both directions in the measured time.
    wire_frames: u64, count, "Frames on the wire", "the frames on the wire";
    /// Frames handed to the receiving host in that time.
    host_frames: u64, count, "Frames handed to the receiving host", "the frames handed to the host";
    /// Frames sent by the hosts in that time; a super-frame counts once.
    sent_frames: u64, count, "Frames sent by the hosts", "the frames sent by the hosts";
    /// Interrupts of the receiving hosts per second: batches of frames handed to a TAP, or interrupts of a guest.
    interrupts_per_s: f64, count, "Interrupts, 1/s", "the interrupts per second";
    /// Frames lost on the way, for any reason.
    lost_frames: u64, count, "Frames lost", "the lost frames";
    /// Interrupts per frame from the wire: 1 if every frame raises one.
    interrupts_per_frame: f64, share, "Interrupts per frame from the wire", "the interrupts per frame";
    /// Time to the answer of the traffic's own requests, the median. It starts at the request's due time if requests do
    /// not wait for each other.
    latency_p50_us: f64, microseconds, "Response time, median, µs", "the median response time";
    /// As `latency_p50_us`, the 99th percentile.
    latency_p99_us: f64, microseconds,
        "Response time, 99th percentile, µs", "the 99th percentile of the response time";
    /// Frames lost because the memory of host B's adapter had no room (`drop`).
    dropped_frames: u64, count, "Frames dropped, card memory full", "the dropped frames";
    /// Frames lost in the memory of host B's adapter to newer ones (`overrun`).
    overrun_frames: u64, count, "Frames overwritten in the card's memory", "the overruns";
    /// Maximum frames in a row into the memory of host B's adapter, with no loss and without the memory becoming empty,
    /// since the adapter was made.
    burst_frames_max: u64, count, "Longest burst without a loss, frames", "the longest burst without a loss";
    /// Maximum bytes held by the memory of host B's adapter at one time, whole pages, since the adapter was made.
    memory_bytes_max: u64, count, "Maximum fill of the card's memory, bytes", "the maximum fill of the card's memory";
    /// TCP segments received out of order. Each calls for a duplicate acknowledgement (RFC 5681 4.2).
    out_of_order: u64, count, "TCP segments received out of order", "the segments out of order";
    /// TCP segments reported as duplicates by the receiver (DSACK, RFC 2883): spurious retransmissions.
    dsacks: u64, count, "Spurious TCP retransmits (DSACK)", "the spurious retransmits";
    /// TCP congestion window of the senders, in segments: the median over the measured time.
    cwnd_segments: f64, segments, "TCP congestion window, segments", "the congestion window";
    /// Longest time without a byte delivered by TCP within the measured time, in seconds, to a hundredth of a second.
    stall_s: f64, seconds, "Longest stall, s", "the longest stall";
    /// Requests of remote procedure calls sent again, as no response came in time.
    rpc_retransmits: u64, count, "RPC retransmits", "the RPC retransmits";
}

/// Metrics of claims alone: a variant has no field for them.
static OF_CLAIMS: [Metric; 3] = [
    Metric {
        name: "wire_frames_per_gb",
        heading: "Frames on the wire, 1/GB",
        noun: "the frames on the wire per GB",
        text: count,
        field: None,
        of_sample: |sample| Some(sample.wire_frames? as f64 * GB / sample.bytes as f64),
    },
    Metric {
        name: "host_frames_per_gb",
        heading: "Frames delivered to the receiving host, 1/GB",
        noun: "the frames delivered to the host per GB",
        text: count,
        field: None,
        of_sample: |sample| Some(sample.host_frames? as f64 * GB / sample.bytes as f64),
    },
    Metric {
        name: "wire_frames_per_response",
        heading: "Frames on the wire for each response of 8 kB",
        noun: "the frames on the wire for each response",
        text: |frames| format!("{frames:.2}"),
        field: None,
        of_sample: wire_frames_per_response,
    },
];

/// Returns the metric of that name; `None` if unknown.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().chain(&OF_CLAIMS).find(|metric| metric.name == name)
}

fn median_of(samples: &[Sample], of_sample: fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(&samples.iter().filter_map(of_sample).collect::<Vec<f64>>())
}

/// Each call of an 8 kB read has a request of one frame; it is not counted.
fn wire_frames_per_response(sample: &Sample) -> Option<f64> {
    let calls = sample.bytes as f64 / f64::from(8192 + RPC_HEADER_BYTES);
    Some(sample.wire_frames? as f64 / calls - 1.0)
}

/// Returns processor seconds per 10^9 received bytes.
fn cpu_per_gb(sample: &Sample, cpu_s: Option<f64>) -> Option<f64> {
    (sample.bytes > 0).then_some(cpu_s? * GB / sample.bytes as f64)
}

/// Returns processor seconds as a share of one processor: 200 % are two of them.
fn cpu_percent(sample: &Sample, cpu_s: Option<f64>) -> Option<f64> {
    (sample.seconds > 0.0).then_some(cpu_s? * 100.0 / sample.seconds)
}
