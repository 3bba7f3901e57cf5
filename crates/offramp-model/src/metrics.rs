//! Metrics of an outcome: names, units and headings for comparisons, sweeps and sensitivity analyses.

use crate::simulation::{Latency, Outcome};
use crate::time::PICOSECONDS_PER_SECOND;

/// A metric of an outcome.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric's column in a table, and of the metric in command-line options. The name ends with the unit.
    pub name: &'static str,
    /// Heading for display, with the unit.
    pub heading: &'static str,
    /// Computes the metric, in the unit given by the name.
    pub value: fn(&Outcome) -> f64,
}

/// Defines [`METRICS`] from a list of names, functions and headings.
macro_rules! metrics {
    ($($name:ident: $value:expr, $heading:literal;)+) => {
        /// Every metric, in the order of the columns of a table.
        pub static METRICS: &[Metric] =
            &[$(Metric { name: stringify!($name), heading: $heading, value: $value }),+];
    };
}

metrics! {
    throughput_bytes_per_s: |of| of.bytes_per_second, "throughput, bytes/s";
    throughput_kib_per_s: |of| of.kib_per_second, "throughput, KiB/s";
    cpu_percent: |of| of.cpu_percent, "processor, %";
    cpu_busiest_percent: |of| of.busiest_processor_percent, "the busiest processor, %";
    cpu_ns_per_byte: cpu_ns_per_byte, "processor, ns/byte";
    cpu_interrupt_percent: |of| of.cpu_percent_by_priority[0], "processor in interrupt handlers, %";
    cpu_softirq_percent: |of| of.cpu_percent_by_priority[1], "processor in softirqs or DPCs, %";
    cpu_process_percent: |of| of.cpu_percent_by_priority[2], "processor in processes, %";
    ring_wait_us: |of| of.ring_wait_us, "wait of a frame in the adapter, us";
    interrupts_per_s: |of| of.interrupts_per_second, "interrupts/s";
    frames_per_s: |of| of.frames_per_second, "frames to the host/s";
    line_in_percent: |of| of.line_percent[1], "line, frames to the host, %";
    line_out_percent: |of| of.line_percent[0], "line, frames from the host, %";
    bus_in_percent: |of| of.bus_percent[0], "bus to the host, %";
    bus_out_percent: |of| of.bus_percent[1], "bus from the host, %";
    in_flight_segments: |of| of.in_flight_segments, "segments under way";
    lost_frames: |of| of.lost() as f64, "frames lost in the adapter";
    retransmissions: |of| of.counts.retransmissions as f64, "sent again";
    timeouts: |of| of.counts.timeouts as f64, "timeouts";
    requests_per_s: |of| latency(of, |of| of.done_per_second), "frames, requests or datagrams done/s";
    requests_lost_per_s: |of| latency(of, |of| of.lost_per_second), "frames, requests or datagrams lost/s";
    offered_per_s: |of| latency(of, |of| of.offered_per_second), "frames, requests or datagrams due/s";
    lost_sender_per_s: |of| latency(of, |of| of.sender_dropped_per_second), "lost at the sender/s";
    lost_adapter_per_s: |of| latency(of, |of| of.adapter_dropped_per_second), "lost in the adapter/s";
    lost_backlog_per_s: |of| latency(of, |of| of.backlog_dropped_per_second), "lost in the backlog/s";
    lost_socket_per_s: |of| latency(of, |of| of.socket_dropped_per_second), "lost at the socket/s";
    lost_output_queue_per_s: |of| latency(of, |of| of.output_queue_dropped_per_second), "lost in the output queue/s";
    latency_mean_us: |of| latency(of, |of| of.mean_us), "latency, mean, us";
    latency_p50_us: |of| latency(of, |of| of.p50_us), "latency, p50, us";
    latency_p95_us: |of| latency(of, |of| of.p95_us), "latency, p95, us";
    latency_p99_us: |of| latency(of, |of| of.p99_us), "latency, p99, us";
    latency_p999_us: |of| latency(of, |of| of.p999_us), "latency, p99.9, us";
}

/// Returns the metric with this name.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Returns a latency metric. The value is NaN for a workload without requests, datagrams or raw frames.
fn latency(outcome: &Outcome, value: fn(&Latency) -> f64) -> f64 {
    outcome.latency.as_ref().map_or(f64::NAN, value)
}

/// Returns the host's processor time per byte of payload, in nanoseconds. The value is NaN if no payload was
/// transferred.
fn cpu_ns_per_byte(outcome: &Outcome) -> f64 {
    const PICOSECONDS_PER_NANOSECOND: f64 = 1e3;
    let processors = outcome.processors as f64;
    let busy = outcome.cpu_percent / 100.0 * processors * outcome.seconds * PICOSECONDS_PER_SECOND as f64;
    let bytes = outcome.bytes_per_second * outcome.seconds;
    if bytes > 0.0 { busy / PICOSECONDS_PER_NANOSECOND / bytes } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once_and_is_found() {
        for (at, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[at + 1..].iter().all(|other| other.name != metric.name), "{}", metric.name);
            assert_eq!(find(metric.name).map(|found| found.heading), Some(metric.heading));
        }
        assert!(find("speed").is_none());
    }
}
