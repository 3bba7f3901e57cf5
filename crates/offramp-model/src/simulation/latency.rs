//! Results of requests, datagrams and raw frames in a run: their latencies, and their fates.

use crate::text::render;
use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

/// The results of exchanges, over the counted time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// `true` for raw frames.
    #[serde(skip)]
    pub is_of_frames: bool,
    /// Requests, datagrams or raw frames due, per second.
    pub offered_per_second: f64,
    /// Finished ones, per second.
    pub done_per_second: f64,
    /// Lost ones, per second.
    pub lost_per_second: f64,
    /// Part of them lost before the link because their sender could not send fast enough.
    pub sender_dropped_per_second: f64,
    /// Part of them lost for lack of room in the adapter's FIFO or receive memory.
    pub adapter_dropped_per_second: f64,
    /// Part of them lost for lack of room in the queue between interrupt handler and protocol.
    pub backlog_dropped_per_second: f64,
    /// Part of them lost for lack of room in the socket of the process.
    pub socket_dropped_per_second: f64,
    /// Part of them lost for lack of room in the queue before the transmit ring.
    pub output_queue_dropped_per_second: f64,
    /// Under way, on average over time.
    pub under_way: f64,
    /// Under way when counting began.
    pub under_way_at_start: u64,
    /// Under way when counting ended.
    pub under_way_at_end: u64,
    /// Their mean time under way by then, within the counted time, microseconds.
    pub under_way_at_end_us: f64,
    /// More were due than done or lost: the wait grows, and each latency depends on the length of the run.
    pub grows: bool,
    /// Raw frames in each queue of the host, on average over time.
    pub queues: Vec<QueueMean>,
    /// Mean time from the due time to the end, microseconds.
    pub mean_us: f64,
    /// Half of them take no longer.
    pub p50_us: f64,
    /// 95 % of them take no longer.
    pub p95_us: f64,
    /// 99 % of them take no longer.
    pub p99_us: f64,
    /// 99.9 % of them take no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Parts of the mean by stage, microseconds.
    pub parts: Vec<LatencyPart>,
    /// Exchanges by latency: up to the bucket's end, and longer than the end of the one before.
    pub histogram: Vec<LatencyBucket>,
}

impl Latency {
    /// Formats the results for people.
    pub fn text(&self) -> String {
        render("latency.txt", context! { is_of_frames => self.is_of_frames, ..Value::from(Serde(self)) })
    }
}

/// A queue of the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueMean {
    /// Its name.
    pub name: &'static str,
    /// Frames in it, on average over time.
    pub mean_frames: f64,
}

/// A part of the mean latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyPart {
    /// Its stage.
    pub name: &'static str,
    /// Mean, microseconds.
    pub mean_us: f64,
}

/// A bucket of the histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatencyBucket {
    /// Its end, nanoseconds.
    pub up_to_ns: u64,
    /// Exchanges in it.
    pub count: u64,
}
