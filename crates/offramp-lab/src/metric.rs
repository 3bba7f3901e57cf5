//! The metrics of the lab: each with its value in a sample, its place in a variant, and its words.

use crate::model::{Sample, Variant};
use crate::report::numbers::{count, cpu_seconds, gbit, microseconds, percent, seconds, segments, share};
use offramp_testbed::stats::median;

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
    /// Its median in a variant.
    pub median: fn(&Variant) -> Option<f64>,
    of_sample: fn(&Sample) -> Option<f64>,
}

impl Metric {
    /// Returns its value in one sample; `None` if the sample did not measure it, or if the value is not finite.
    pub fn value(&self, sample: &Sample) -> Option<f64> {
        (self.of_sample)(sample).filter(|value| value.is_finite())
    }
}

/// The field of each metric in [`Variant`], its value in a sample, the format of a value, heading and noun.
macro_rules! metrics {
    ($($field:ident: $of_sample:expr, $text:path, $heading:literal, $noun:literal;)+) => {
        /// Every metric, in the order of the tables.
        pub static METRICS: &[Metric] = &[$(Metric {
            name: stringify!($field),
            heading: $heading,
            noun: $noun,
            text: $text,
            median: |variant| variant.$field,
            of_sample: $of_sample,
        }),+];

        /// Creates a variant without a name, with the median of every metric over `samples`.
        pub(crate) fn medians(samples: &[Sample]) -> Variant {
            Variant { $($field: median_of(samples, $of_sample),)+ ..Variant::default() }
        }
    };
}

metrics! {
    throughput_bps: |sample| sample.throughput_bps, gbit,
        "Throughput, Gbit/s", "the throughput";
    transactions_per_s: |sample| sample.transactions_per_s, count,
        "Transactions, 1/s", "the transactions per second";
    host_cpu_s_per_gb: |sample| cpu_per_gb(sample, sample.host_cpu_s), cpu_seconds,
        "Host CPU, s/GB", "the host CPU per GB";
    adapter_cpu_s_per_gb: |sample| cpu_per_gb(sample, sample.adapter_cpu_s), cpu_seconds,
        "Adapter CPU, s/GB", "the adapter CPU per GB";
    machine_cpu_s_per_gb: |sample| cpu_per_gb(sample, sample.machine_cpu_s), cpu_seconds,
        "Whole machine's CPU, s/GB", "the whole machine's CPU per GB";
    host_cpu_percent: |sample| cpu_percent(sample, sample.host_cpu_s), percent,
        "Host CPU, % of one processor", "the hosts' share of a processor";
    adapter_cpu_percent: |sample| cpu_percent(sample, sample.adapter_cpu_s), percent,
        "Adapter CPU, % of one processor", "the adapters' share of a processor";
    guest_cpu_percent: |sample| cpu_percent(sample, sample.guest_cpu_s), percent,
        "Guest's own account, % of one of its processors", "the guest's own share of a processor";
    rtt_p50_us: |sample| sample.rtt_p50_us, microseconds,
        "Round trip as found, median, µs", "the median round trip";
    rtt_p99_us: |sample| sample.rtt_p99_us, microseconds,
        "Round trip as found, 99th percentile, µs", "the 99th percentile of the round trip";
    rtt_awake_p50_us: |sample| sample.rtt_awake_p50_us, microseconds,
        "Round trip, processors awake, median, µs", "the median round trip of processors kept awake";
    rtt_awake_p99_us: |sample| sample.rtt_awake_p99_us, microseconds,
        "Round trip, processors awake, 99th percentile, µs",
        "the 99th percentile of the round trip of processors kept awake";
    retransmits: |sample| number(sample.retransmits), count,
        "TCP segments sent again", "the retransmits";
    wire_frames: |sample| number(sample.wire_frames), count,
        "Frames on the wire", "the frames on the wire";
    host_frames: |sample| number(sample.host_frames), count,
        "Frames handed to the receiving host", "the frames handed to the host";
    sent_frames: |sample| number(sample.sent_frames), count,
        "Frames that the hosts handed over", "the frames that the hosts handed over";
    interrupts_per_s: |sample| sample.interrupts_per_s, count,
        "Interrupts, 1/s", "the interrupts per second";
    lost_frames: |sample| number(sample.lost_frames), count,
        "Frames lost", "the lost frames";
    interrupts_per_frame: |sample| sample.interrupts_per_frame, share,
        "Interrupts per frame from the wire", "the interrupts per frame";
    latency_p50_us: |sample| sample.latency_p50_us, microseconds,
        "Answer to a request, median, µs", "the median time to an answer";
    latency_p99_us: |sample| sample.latency_p99_us, microseconds,
        "Answer to a request, 99th percentile, µs", "the 99th percentile of the time to an answer";
    dropped_frames: |sample| number(sample.dropped_frames), count,
        "Frames that found no room in the card's memory", "the frames without room";
    overrun_frames: |sample| number(sample.overrun_frames), count,
        "Frames lost in the card's memory to newer ones", "the overruns";
    burst_frames_max: |sample| number(sample.burst_frames_max), count,
        "Longest burst without a loss, frames", "the longest burst without a loss";
    memory_bytes_max: |sample| number(sample.memory_bytes_max), count,
        "Most bytes held in the card's memory", "the most bytes held in the card's memory";
    out_of_order: |sample| number(sample.out_of_order), count,
        "TCP segments that arrived out of order", "the segments out of order";
    dsacks: |sample| number(sample.dsacks), count,
        "TCP segments known to have been sent again for nothing", "the segments sent again for nothing";
    cwnd_segments: |sample| sample.cwnd_segments, segments,
        "TCP congestion window, segments", "the congestion window";
    stall_s: |sample| sample.stall_s, seconds,
        "Longest time without a byte, s", "the longest time without a byte";
    rpc_retransmits: |sample| number(sample.rpc_retransmits), count,
        "Calls made again", "the calls made again";
}

/// Metrics of claims alone: a variant has no field for them.
static OF_CLAIMS: [Metric; 3] = [
    Metric {
        name: "wire_frames_per_gb",
        heading: "Frames on the wire, 1/GB",
        noun: "the frames on the wire per GB",
        text: count,
        median: |variant| median_of(&variant.samples, wire_frames_per_gb),
        of_sample: wire_frames_per_gb,
    },
    Metric {
        name: "host_frames_per_gb",
        heading: "Frames delivered to the receiving host, 1/GB",
        noun: "the frames delivered to the host per GB",
        text: count,
        median: |variant| median_of(&variant.samples, host_frames_per_gb),
        of_sample: host_frames_per_gb,
    },
    Metric {
        name: "wire_frames_per_response",
        heading: "Frames on the wire for each response of 8 kB",
        noun: "the frames on the wire for each response",
        text: |frames| format!("{frames:.2}"),
        median: |variant| median_of(&variant.samples, wire_frames_per_response),
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

fn wire_frames_per_gb(sample: &Sample) -> Option<f64> {
    Some(sample.wire_frames? as f64 * GB / sample.bytes as f64)
}

fn host_frames_per_gb(sample: &Sample) -> Option<f64> {
    Some(sample.host_frames? as f64 * GB / sample.bytes as f64)
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

fn number(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}
