//! What requests, datagrams and raw frames say of a run: how long they took, and what became of them.

use crate::text::render;
use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

/// The results of exchanges, over the time that was counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// They are raw frames.
    #[serde(skip)]
    pub is_of_frames: bool,
    /// Requests, datagrams or raw frames that were due, per second.
    pub offered_per_second: f64,
    /// Those that were done, per second.
    pub done_per_second: f64,
    /// Those that were lost, per second.
    pub lost_per_second: f64,
    /// Part of them that were never on the link: their sender had more to send than it could.
    pub sender_dropped_per_second: f64,
    /// Part of them for which the adapter's FIFO or receive memory had no room.
    pub adapter_dropped_per_second: f64,
    /// Part of them for which the queue between interrupt handler and protocol had no room.
    pub backlog_dropped_per_second: f64,
    /// Part of them for which the socket of the process had no room.
    pub socket_dropped_per_second: f64,
    /// Part of them for which the queue before the transmit ring had no room.
    pub output_queue_dropped_per_second: f64,
    /// Under way, on average over time.
    pub under_way: f64,
    /// Under way when counting began.
    pub under_way_at_start: u64,
    /// Under way when counting ended.
    pub under_way_at_end: u64,
    /// Mean time, of that which was counted, that these had been under way by then, microseconds.
    pub under_way_at_end_us: f64,
    /// More were due than were done or lost: they wait ever longer, and each latency hangs on how long the run is.
    pub grows: bool,
    /// Raw frames in each queue of the host, on average over time.
    pub queues: Vec<QueueMean>,
    /// Mean time from when one is due until it is done, microseconds.
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
    /// Parts of the mean, microseconds, by where it is spent.
    pub parts: Vec<LatencyPart>,
    /// How many took up to how long, and longer than the entry before.
    pub histogram: Vec<LatencyBucket>,
}

impl Latency {
    /// For people.
    pub fn text(&self) -> String {
        render("latency.txt", context! { is_of_frames => self.is_of_frames, ..Value::from(Serde(self)) })
    }
}

/// A queue of the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueMean {
    /// Which.
    pub name: &'static str,
    /// Frames in it, on average over time.
    pub mean_frames: f64,
}

/// A part of the mean latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyPart {
    /// Where it is spent.
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
