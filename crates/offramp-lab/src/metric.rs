//! What the lab measures: each metric with its value in a sample, its place in a variant, and its words.

use crate::compare::GB;
use crate::model::{Sample, Variant};
use crate::report::words::{count, cpu_seconds, gbit, microseconds, percent, seconds, segments, share};

/// One thing that is measured.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Name of its field in [`Variant`], which says what it is and in which unit.
    pub name: &'static str,
    /// Heading, with the unit.
    pub heading: &'static str,
    /// As it stands after "2.9 ×".
    pub noun: &'static str,
    /// A value of it in the unit of the heading.
    pub text: fn(f64) -> String,
    /// Its median in a variant.
    pub median: fn(&Variant) -> Option<f64>,
    place: fn(&mut Variant) -> &mut Option<f64>,
    of_sample: fn(&Sample) -> Option<f64>,
}

impl Metric {
    /// Its value in one sample; `None` where the sample did not measure it, or where the value is not finite.
    pub fn value(&self, sample: &Sample) -> Option<f64> {
        (self.of_sample)(sample).filter(|value| value.is_finite())
    }

    /// Where a variant has its median.
    pub(crate) fn median_mut<'a>(&self, variant: &'a mut Variant) -> &'a mut Option<f64> {
        (self.place)(variant)
    }
}

/// Of each metric its field in [`Variant`], its value in a sample, how a value is written, heading and noun.
macro_rules! metrics {
    ($($field:ident: $of_sample:expr, $text:path, $heading:literal, $noun:literal;)+) => {
        /// Every metric, in the order in which tables show it.
        pub static METRICS: &[Metric] = &[$(Metric {
            name: stringify!($field),
            heading: $heading,
            noun: $noun,
            text: $text,
            median: |variant| variant.$field,
            place: |variant| &mut variant.$field,
            of_sample: $of_sample,
        }),+];
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
        "Frames on the line", "the frames on the line";
    host_frames: |sample| number(sample.host_frames), count,
        "Frames handed to the receiving host", "the frames handed to the host";
    sent_frames: |sample| number(sample.sent_frames), count,
        "Frames that the hosts handed over", "the frames that the hosts handed over";
    interrupts_per_s: |sample| sample.interrupts_per_s, count,
        "Interrupts, 1/s", "the interrupts per second";
    lost_frames: |sample| number(sample.lost_frames), count,
        "Frames lost", "the lost frames";
    interrupts_per_frame: |sample| sample.interrupts_per_frame, share,
        "Interrupts for each frame from the line", "the interrupts per frame";
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

/// The metric of that name; `None` of an unknown one.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Processor seconds for 10^9 bytes that arrived.
fn cpu_per_gb(sample: &Sample, cpu_s: Option<f64>) -> Option<f64> {
    (sample.bytes > 0).then_some(cpu_s? * GB / sample.bytes as f64)
}

/// Processor seconds as a share of one processor: 200 % are two of them.
fn cpu_percent(sample: &Sample, cpu_s: Option<f64>) -> Option<f64> {
    (sample.seconds > 0.0).then_some(cpu_s? * 100.0 / sample.seconds)
}

fn number(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}
