//! Latencies and losses of requests, datagrams and raw frames in a run.

use crate::text::render;
use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

/// The latencies, rates and losses of a run's exchanges over the measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// `true` if the exchanges are raw frames.
    #[serde(skip)]
    pub is_of_frames: bool,
    /// Exchanges due, per second. An exchange is a request, a datagram or a raw frame.
    pub offered_per_second: f64,
    /// Completed exchanges, per second.
    pub done_per_second: f64,
    /// Lost exchanges, per second.
    pub lost_per_second: f64,
    /// Exchanges lost before the link, per second. The sender's queue was full, too many exchanges were outstanding, or
    /// the sender gave up after too many collisions.
    pub sender_dropped_per_second: f64,
    /// Exchanges lost because the adapter's FIFO or receive memory was full, per second.
    pub adapter_dropped_per_second: f64,
    /// Exchanges lost because the backlog between interrupt handler and protocol was full, per second.
    pub backlog_dropped_per_second: f64,
    /// Exchanges lost because the receive buffer of the socket was full, per second.
    pub socket_dropped_per_second: f64,
    /// Exchanges lost because the output queue before the transmit ring was full, per second.
    pub output_queue_dropped_per_second: f64,
    /// Mean number of outstanding exchanges over time.
    pub under_way: f64,
    /// Number of outstanding exchanges at the start of the measured time.
    pub under_way_at_start: u64,
    /// Number of outstanding exchanges at the end of the measured time.
    pub under_way_at_end: u64,
    /// Mean age of the outstanding exchanges at the end of the measured time, limited to the measured time, in
    /// microseconds.
    pub under_way_at_end_us: f64,
    /// `true` if the number of outstanding exchanges grew by more than one burst, and by more than 1 % of the exchanges
    /// due. The latencies then depend on the duration of the run.
    pub grows: bool,
    /// Mean number of raw frames in each queue of the host.
    pub queues: Vec<QueueMean>,
    /// Mean latency of an exchange from its due time to its completion, in microseconds.
    pub mean_us: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 95th percentile of the latency, in microseconds.
    pub p95_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency, in microseconds.
    pub p999_us: f64,
    /// Maximum latency, in microseconds.
    pub max_us: f64,
    /// Parts of the mean latency, by stage.
    pub parts: Vec<LatencyPart>,
    /// Histogram of the latencies.
    pub histogram: Vec<LatencyBucket>,
}

impl Latency {
    /// Formats the results for display.
    pub fn text(&self) -> String {
        render("latency.txt", context! { is_of_frames => self.is_of_frames, ..Value::from(Serde(self)) })
    }
}

/// The mean length of a queue in the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueMean {
    /// Name of the queue.
    pub name: &'static str,
    /// Mean number of frames in the queue over time.
    pub mean_frames: f64,
}

/// A part of the mean latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyPart {
    /// Name of the stage.
    pub name: &'static str,
    /// Mean time in the stage, in microseconds.
    pub mean_us: f64,
}

/// A bucket of the histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatencyBucket {
    /// Upper end of the bucket, in nanoseconds. The lower end is the upper end of the previous bucket.
    pub up_to_ns: u64,
    /// Number of exchanges in the bucket.
    pub count: u64,
}
