//! The metrics of the lab. Each metric has a value per sample, a median per variant, and texts for display.

use crate::report::numbers::{count, cpu_seconds, gbit, microseconds, percent, seconds, segments, share};
use offramp_testbed::stats::median;
use serde::{Deserialize, Serialize};

/// Bytes per GB, for processor time per GB.
pub const GB: f64 = 1e9;
/// Length of the RPC header and attributes before the data in the response to an NFS read, in bytes.
pub(crate) const RPC_HEADER_BYTES: u32 = 100;

/// A metric.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Name of the field in [`Variant`]. The name includes the unit.
    pub name: &'static str,
    /// Heading of the metric in tables and charts, with the unit.
    pub heading: &'static str,
    /// Noun phrase for sentences, as after "2.9 ×".
    pub noun: &'static str,
    /// Formats a value, in the unit of the heading.
    pub text: fn(f64) -> String,
    /// Reads the field of a variant. `None` for a metric without a field.
    field: Option<fn(&Variant) -> Option<f64>>,
    of_sample: fn(&Sample) -> Option<f64>,
}

impl Metric {
    /// Returns the value of the metric in one sample. `None` if the metric was not measured, or if the value is not
    /// finite.
    pub fn value(&self, sample: &Sample) -> Option<f64> {
        (self.of_sample)(sample).filter(|value| value.is_finite())
    }

    /// Returns the median of the metric over the samples of a variant.
    pub fn median(&self, variant: &Variant) -> Option<f64> {
        self.field.map_or_else(|| median_of(&variant.samples, self.of_sample), |field| field(variant))
    }

    /// Returns the unit, taken from the end of the metric's name (`docs/lab-json.md`). Empty for a count.
    pub fn unit(&self) -> &'static str {
        const UNITS: [(&str, &str); 6] = [
            ("_bps", "bit/s"),
            ("_s_per_gb", "s/GB"),
            ("_per_gb", "1/GB"),
            ("_per_s", "1/s"),
            ("_percent", "%"),
            ("_us", "us"),
        ];
        let of_end = UNITS.iter().find(|(end, _)| self.name.ends_with(end)).map(|(_, unit)| *unit);
        of_end.unwrap_or(match self.name {
            "stall_s" => "s",
            "memory_bytes_max" => "byte",
            "cwnd_segments" => "segment",
            _ => "",
        })
    }
}

/// Defines the table of metrics, and the structures with a field per metric.
///
/// A row with a type is a measured metric, and [`Sample`] has a field of that type. A row with `=` is computed from
/// other fields of a sample.
macro_rules! metrics {
    ($($(#[$doc:meta])+ $field:ident $(: $measured:ident)? $(= $computed:expr)?,
        $text:path, $heading:literal, $noun:literal;)+) => {
        /// All metrics, in the order of the report's tables.
        pub static METRICS: &[Metric] = &[$(Metric {
            name: stringify!($field),
            heading: $heading,
            noun: $noun,
            text: $text,
            field: Some(|variant| variant.$field),
            of_sample: metrics!(@$field $($measured)? $($computed)?),
        }),+];

        /// One variant of an experiment: the medians over its samples.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub struct Variant {
            /// Short name of the variant: the difference from other variants.
            pub name: String,
            $($(#[$doc])+ pub $field: Option<f64>,)+
            /// All samples, in order of measurement.
            pub samples: Vec<Sample>,
        }

        /// One measurement.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub struct Sample {
            /// Index of the round. Samples of the same round are compared in pairs.
            pub round: usize,
            /// Measured time, in seconds.
            pub seconds: f64,
            /// Payload in the measured time, in bytes.
            pub bytes: u64,
            /// Processor time of the hosts in the measured time, in seconds.
            pub host_cpu_s: Option<f64>,
            /// Minimum and maximum of `host_cpu_s`, in seconds. The two values differ if a hypervisor took processor
            /// time: the system does not report whether the processor was then idle or busy. `None` if the time taken
            /// by a hypervisor does not affect `host_cpu_s`.
            pub host_cpu_range_s: Option<[f64; 2]>,
            /// Processor time of the adapters in the measured time, in seconds.
            pub adapter_cpu_s: Option<f64>,
            /// Busy time of the guest's processors in the measured time, in seconds, as counted by the guest.
            pub guest_cpu_s: Option<f64>,
            /// Processor time of the whole machine in the measured time, in seconds, as counted by the system.
            pub machine_cpu_s: Option<f64>,
            $($(
                /// See [`Variant`].
                pub $field: Option<$measured>,
            )?)+
            /// One-way latency of a cache line between the host's and the adapter's processor, before and after the
            /// sample, in nanoseconds.
            pub line_distance_ns: Option<[f64; 2]>,
            /// Mean number of processors that other programs used around the sample.
            pub other_cpus: Option<f64>,
            /// `true` if the times of hosts and adapters were measured separately. Either hosts and adapters ran on
            /// separate processors, or a guest was measured by the time of its processes. `false` if the hosts' time is
            /// the remainder: the time that is neither idle nor the adapters'. `None` without software adapters.
            pub is_separate: Option<bool>,
        }

        /// Returns a variant with the medians of `samples`. Ratios, such as figures per GB, are computed per sample
        /// before taking the median.
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
    /// Rate of received payload, in bits per second.
    throughput_bps: f64, gbit, "Throughput, Gbit/s", "the throughput";
    /// Requests answered per second, if the traffic consists of requests only.
    transactions_per_s: f64, count, "Transactions, 1/s", "the transactions per second";
    /// Processor time of the hosts per 10^9 bytes of payload, in seconds.
    host_cpu_s_per_gb = |sample| cpu_per_gb(sample, sample.host_cpu_s), cpu_seconds,
        "Host CPU, s/GB", "the host CPU per GB";
    /// Processor time of the adapters per 10^9 bytes of payload, in seconds.
    adapter_cpu_s_per_gb = |sample| cpu_per_gb(sample, sample.adapter_cpu_s), cpu_seconds,
        "Adapter CPU, s/GB", "the adapter CPU per GB";
    /// Processor time of the whole machine per 10^9 bytes of payload, in seconds.
    machine_cpu_s_per_gb = |sample| cpu_per_gb(sample, sample.machine_cpu_s), cpu_seconds,
        "Whole machine's CPU, s/GB", "the whole machine's CPU per GB";
    /// Processor time of the hosts, in percent of one processor: 200 % are two processors.
    host_cpu_percent = |sample| cpu_percent(sample, sample.host_cpu_s), percent,
        "Host CPU, % of one processor", "the hosts' share of a processor";
    /// Processor time of the adapters, in percent of one processor.
    adapter_cpu_percent = |sample| cpu_percent(sample, sample.adapter_cpu_s), percent,
        "Adapter CPU, % of one processor", "the adapters' share of a processor";
    /// Busy time of the guest's processors, in percent of one guest processor, as counted by the guest.
    guest_cpu_percent = |sample| cpu_percent(sample, sample.guest_cpu_s), percent,
        "Guest CPU by its own count, % of one of its processors", "the guest's own count of CPU";
    /// Median round-trip time of 64 bytes, in microseconds. Processors can sleep between requests.
    rtt_p50_us: f64, microseconds, "Round trip as found, median, µs", "the median round trip";
    /// 99th percentile of the round-trip time of 64 bytes, in microseconds. Processors can sleep between requests.
    rtt_p99_us: f64, microseconds, "Round trip as found, 99th percentile, µs", "the 99th percentile of the round trip";
    /// Median round-trip time of 64 bytes with processors kept awake, in microseconds.
    rtt_awake_p50_us: f64, microseconds,
        "Round trip, processors awake, median, µs", "the median round trip of processors kept awake";
    /// 99th percentile of the round-trip time of 64 bytes with processors kept awake, in microseconds.
    rtt_awake_p99_us: f64, microseconds,
        "Round trip, processors awake, 99th percentile, µs",
        "the 99th percentile of the round trip of processors kept awake";
    /// Number of retransmitted TCP segments.
    retransmits: u64, count, "TCP retransmits", "the retransmits";
    /// Number of frames on the link in the measured time, in both directions.
    wire_frames: u64, count, "Frames on the wire", "the frames on the wire";
    /// Number of frames passed to the receiving host in the measured time.
    host_frames: u64, count, "Frames handed to the receiving host", "the frames handed to the host";
    /// Number of frames sent by the hosts in the measured time. A super-frame counts once.
    sent_frames: u64, count, "Frames sent by the hosts", "the frames sent by the hosts";
    /// Interrupts of the receiving hosts per second. For a TAP, each batch of frames written to the TAP counts as one
    /// interrupt. For a guest, each interrupt for received frames counts.
    interrupts_per_s: f64, count, "Interrupts, 1/s", "the interrupts per second";
    /// Number of frames lost, for any reason.
    lost_frames: u64, count, "Frames lost", "the lost frames";
    /// Interrupts per frame received from the link: 1 if every frame raises an interrupt.
    interrupts_per_frame: f64, share, "Interrupts per frame from the wire", "the interrupts per frame";
    /// Median response time of the traffic's requests, in microseconds. For open-loop requests, the time starts when
    /// the request is due.
    latency_p50_us: f64, microseconds, "Response time, median, µs", "the median response time";
    /// 99th percentile of the response time of the traffic's requests, in microseconds.
    latency_p99_us: f64, microseconds,
        "Response time, 99th percentile, µs", "the 99th percentile of the response time";
    /// Number of frames lost because the memory of host B's adapter was full (`drop`).
    dropped_frames: u64, count, "Frames dropped, card memory full", "the dropped frames";
    /// Number of frames in the memory of host B's adapter that were overwritten by later frames (`overrun`).
    overrun_frames: u64, count, "Frames overwritten in the card's memory", "the overruns";
    /// Longest burst of frames stored in the memory of host B's adapter since creation of the adapter. A burst ends
    /// with a loss, or when the memory becomes empty.
    burst_frames_max: u64, count, "Longest burst without a loss, frames", "the longest burst without a loss";
    /// Maximum fill of the memory of host B's adapter since creation of the adapter, bytes in whole pages.
    memory_bytes_max: u64, count, "Maximum fill of the card's memory, bytes", "the maximum fill of the card's memory";
    /// Number of TCP segments received out of order. Each such segment requires a duplicate acknowledgement (RFC 5681
    /// 4.2).
    out_of_order: u64, count, "TCP segments received out of order", "the segments out of order";
    /// Number of spurious retransmissions: TCP segments reported as duplicates by the receiver (DSACK, RFC 2883).
    dsacks: u64, count, "Spurious TCP retransmits (DSACK)", "the spurious retransmits";
    /// Median TCP congestion window of the senders over the measured time, segments.
    cwnd_segments: f64, segments, "TCP congestion window, segments", "the congestion window";
    /// Longest time without data delivered by TCP within the measured time, in seconds, with a resolution of 0.01 s.
    stall_s: f64, seconds, "Longest stall, s", "the longest stall";
    /// Number of RPC requests retransmitted after a timeout.
    rpc_retransmits: u64, count, "RPC retransmits", "the RPC retransmits";
}

/// Name of the metric of total work: processor time of hosts and adapters together per 10^9 bytes of payload.
pub const TOTAL_WORK: &str = "total_cpu_s_per_gb";

/// Metrics without a field in [`Variant`], used for claims and for the explanation of an experiment's figures.
static WITHOUT_FIELD: [Metric; 4] = [
    Metric {
        name: TOTAL_WORK,
        heading: "CPU of hosts and adapters, s/GB",
        noun: "the CPU of hosts and adapters per GB",
        text: cpu_seconds,
        field: None,
        of_sample: |sample| cpu_per_gb(sample, Some(sample.host_cpu_s? + sample.adapter_cpu_s?)),
    },
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

/// Returns the metric with this name; `None` if unknown.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().chain(&WITHOUT_FIELD).find(|metric| metric.name == name)
}

fn median_of(samples: &[Sample], of_sample: fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(&samples.iter().filter_map(of_sample).collect::<Vec<f64>>())
}

/// Returns the number of frames on the link per response to a read of 8 KiB. The frame of the request is not counted.
fn wire_frames_per_response(sample: &Sample) -> Option<f64> {
    let calls = sample.bytes as f64 / f64::from(8192 + RPC_HEADER_BYTES);
    Some(sample.wire_frames? as f64 / calls - 1.0)
}

/// Returns processor time per 10^9 bytes of payload, in seconds.
fn cpu_per_gb(sample: &Sample, cpu_s: Option<f64>) -> Option<f64> {
    (sample.bytes > 0).then_some(cpu_s? * GB / sample.bytes as f64)
}

/// Returns processor time as percent of one processor: 200 % are two processors.
fn cpu_percent(sample: &Sample, cpu_s: Option<f64>) -> Option<f64> {
    (sample.seconds > 0.0).then_some(cpu_s? * 100.0 / sample.seconds)
}
