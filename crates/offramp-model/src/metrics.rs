//! What is read off an outcome: the names, units and meanings that comparisons, sweeps and sensitivities share.

use crate::simulation::{Latency, Outcome};
use crate::time::PICOSECONDS_PER_SECOND;

/// A figure of an outcome.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// As columns and options name it; the unit stands last.
    pub name: &'static str,
    /// For people, with the unit.
    pub heading: &'static str,
    /// Reads it; in the unit of the name.
    pub value: fn(&Outcome) -> f64,
}

/// Every figure, in the order of columns.
pub static METRICS: &[Metric] = &[
    Metric { name: "throughput_bytes_per_s", heading: "throughput, bytes/s", value: |of| of.bytes_per_second },
    Metric { name: "throughput_kib_per_s", heading: "throughput, KiB/s", value: |of| of.kib_per_second },
    Metric { name: "cpu_percent", heading: "processor, %", value: |of| of.cpu_percent },
    Metric {
        name: "cpu_busiest_percent",
        heading: "the busiest processor, %",
        value: |of| of.busiest_processor_percent,
    },
    Metric { name: "cpu_ns_per_byte", heading: "processor, ns/byte", value: cpu_ns_per_byte },
    Metric {
        name: "cpu_interrupt_percent",
        heading: "processor in interrupt handlers, %",
        value: |of| of.cpu_percent_by_priority[0],
    },
    Metric {
        name: "cpu_softirq_percent",
        heading: "processor in softirqs or DPCs, %",
        value: |of| of.cpu_percent_by_priority[1],
    },
    Metric {
        name: "cpu_process_percent",
        heading: "processor in processes, %",
        value: |of| of.cpu_percent_by_priority[2],
    },
    Metric { name: "ring_wait_us", heading: "wait of a frame in the adapter, us", value: |of| of.ring_wait_us },
    Metric { name: "interrupts_per_s", heading: "interrupts/s", value: |of| of.interrupts_per_second },
    Metric { name: "frames_per_s", heading: "frames to the host/s", value: |of| of.frames_per_second },
    Metric { name: "line_in_percent", heading: "line, frames to the host, %", value: |of| of.line_percent[1] },
    Metric { name: "line_out_percent", heading: "line, frames from the host, %", value: |of| of.line_percent[0] },
    Metric { name: "bus_in_percent", heading: "bus to the host, %", value: |of| of.bus_percent[0] },
    Metric { name: "bus_out_percent", heading: "bus from the host, %", value: |of| of.bus_percent[1] },
    Metric { name: "in_flight_segments", heading: "segments under way", value: |of| of.in_flight_segments },
    Metric { name: "lost_frames", heading: "frames lost in the adapter", value: |of| of.lost() as f64 },
    Metric { name: "retransmissions", heading: "sent again", value: |of| of.counts.retransmissions as f64 },
    Metric { name: "timeouts", heading: "timeouts", value: |of| of.counts.timeouts as f64 },
    Metric {
        name: "requests_per_s",
        heading: "frames, requests or datagrams done/s",
        value: |of| latency(of, |of| of.done_per_second),
    },
    Metric {
        name: "requests_lost_per_s",
        heading: "frames, requests or datagrams lost/s",
        value: |of| latency(of, |of| of.lost_per_second),
    },
    Metric {
        name: "offered_per_s",
        heading: "frames, requests or datagrams due/s",
        value: |of| latency(of, |of| of.offered_per_second),
    },
    Metric {
        name: "lost_sender_per_s",
        heading: "lost at the sender/s",
        value: |of| latency(of, |of| of.sender_dropped_per_second),
    },
    Metric {
        name: "lost_adapter_per_s",
        heading: "lost in the adapter/s",
        value: |of| latency(of, |of| of.adapter_dropped_per_second),
    },
    Metric {
        name: "lost_backlog_per_s",
        heading: "lost in the backlog/s",
        value: |of| latency(of, |of| of.backlog_dropped_per_second),
    },
    Metric {
        name: "lost_socket_per_s",
        heading: "lost at the socket/s",
        value: |of| latency(of, |of| of.socket_dropped_per_second),
    },
    Metric {
        name: "lost_output_queue_per_s",
        heading: "lost in the output queue/s",
        value: |of| latency(of, |of| of.output_queue_dropped_per_second),
    },
    Metric { name: "latency_mean_us", heading: "latency, mean, us", value: |of| latency(of, |of| of.mean_us) },
    Metric { name: "latency_p50_us", heading: "latency, p50, us", value: |of| latency(of, |of| of.p50_us) },
    Metric { name: "latency_p95_us", heading: "latency, p95, us", value: |of| latency(of, |of| of.p95_us) },
    Metric { name: "latency_p99_us", heading: "latency, p99, us", value: |of| latency(of, |of| of.p99_us) },
    Metric { name: "latency_p999_us", heading: "latency, p99.9, us", value: |of| latency(of, |of| of.p999_us) },
];

/// The figure of a name.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// A figure of requests or datagrams; not a number for a workload without them.
fn latency(outcome: &Outcome, value: fn(&Latency) -> f64) -> f64 {
    outcome.latency.as_ref().map_or(f64::NAN, value)
}

/// Processor time of the host for each byte of payload; not a number where nothing came.
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
    use crate::config::Workload;
    use crate::profile::Profile;
    use crate::simulation::run;

    #[test]
    fn every_name_is_there_once_and_is_found() {
        for (at, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[at + 1..].iter().all(|other| other.name != metric.name), "{}", metric.name);
            assert_eq!(find(metric.name).map(|found| found.heading), Some(metric.heading));
        }
        assert!(find("speed").is_none());
    }

    #[test]
    fn processor_time_per_byte_and_throughput_give_the_load() {
        let profile = Profile::load("486-wd8003ep").unwrap().with("workload.time", "2s");
        let outcome = run(&profile, Workload::TtcpReceive).unwrap();
        let load = cpu_ns_per_byte(&outcome) * 1e-9 * outcome.bytes_per_second;
        assert!((load * 100.0 - outcome.cpu_percent).abs() < 1e-6);
    }
}
