//! The counters and results of a run.

use super::latency::Latency;
use super::steering::Steering;
use crate::bus::Bus;
use crate::config::{Config, Placement, Workload};
use crate::cpu::PRIORITIES;
use crate::time::Span;
use serde::Serialize;
use strum::{EnumCount, EnumMessage};

/// Activities of the host's processors. The variants' comments are names for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumCount, strum::EnumMessage, strum::VariantArray)]
pub enum Activity {
    /// interrupts
    Interrupt,
    /// driver
    Driver,
    /// bus, the processor waits
    Bus,
    /// TCP and IP
    Tcp,
    /// UDP and IP
    Udp,
    /// checksum
    Checksum,
    /// acknowledgements
    Ack,
    /// copy to the process
    Copy,
    /// process, system calls
    Process,
    /// RPC
    Rpc,
    /// interrupts shut out
    Masked,
    /// TCP and IP, sending
    Segment,
    /// acknowledgements received
    AckReceived,
    /// encryption
    Crypt,
    /// registers of the adapter
    Registers,
    /// forwarding
    Route,
}

impl Activity {
    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}

/// Counters that never decrease. `since` returns the difference between this reading and an earlier reading.
pub(super) trait Since {
    fn since(&self, earlier: &Self) -> Self;
}

impl Since for u64 {
    fn since(&self, earlier: &Self) -> Self {
        self - earlier
    }
}

impl Since for Span {
    fn since(&self, earlier: &Self) -> Self {
        *self - *earlier
    }
}

impl<T: Since, const LEN: usize> Since for [T; LEN] {
    fn since(&self, earlier: &Self) -> Self {
        std::array::from_fn(|at| self[at].since(&earlier[at]))
    }
}

impl<T: Since> Since for Vec<T> {
    fn since(&self, earlier: &Self) -> Self {
        self.iter().zip(earlier).map(|(now, before)| now.since(before)).collect()
    }
}

/// Defines a struct of monotonic counters.
macro_rules! growing {
    ($(#[$of:meta])* $vis:vis struct $name:ident { $($(#[$doc:meta])* $field_vis:vis $field:ident: $type:ty,)* }) => {
        $(#[$of])*
        $vis struct $name { $($(#[$doc])* $field_vis $field: $type,)* }

        impl Since for $name {
            fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.since(&earlier.$field),)* }
            }
        }
    };
}

growing! {
    /// Counters of a run. All counters are monotonic.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Counts {
        /// Number of payload bytes read by the host's processes, or received in order by the peer.
        pub bytes: u64,
        /// Number of payload bytes sent by the host over TCP, a part of `bytes`.
        pub bytes_sent: u64,
        /// Number of segments, super-frames or datagrams passed to the adapter.
        pub sends: u64,
        /// Number of sends and acknowledgements completed by the adapter.
        pub sends_completed: u64,
        /// Number of segments dropped by the host because the adapter reported a bad checksum.
        pub refused: u64,
        /// Busy time of the bus, to the host and from the host, if the adapter is bus master.
        pub bus_busy: [Span; 2],
        /// Number of frames received by the adapter.
        pub frames_arrived: u64,
        /// Number of frames read by the driver.
        pub frames_received: u64,
        /// Number of received frames dropped because a FIFO or the receive memory was full.
        pub dropped: u64,
        /// Number of received frames overwritten in the adapter's memory by later frames.
        pub overrun: u64,
        /// Number of frames dropped because the backlog between interrupt handler and protocol was full.
        pub backlog_dropped: u64,
        /// Number of frames sent by the host.
        pub frames_sent: u64,
        /// Number of interrupts.
        pub interrupts: u64,
        /// Number of batches read by a deferred driver.
        pub batches: u64,
        /// Number of segments received by TCP.
        pub segments_received: u64,
        /// Number of segments received out of order.
        pub out_of_order: u64,
        /// Number of acknowledgements sent.
        pub acks: u64,
        /// Number of retransmitted segments and requests.
        pub retransmissions: u64,
        /// Number of timeouts of TCP senders and calls.
        pub timeouts: u64,
        /// Number of duplicate acknowledgements received by all TCP senders.
        pub duplicate_acks: u64,
        /// Number of acknowledgements received by TCP senders.
        pub acks_received: u64,
        /// Sum of the bytes in flight, sampled at each of the `acks_received`.
        pub in_flight: u64,
        /// Number of answered calls.
        pub calls: u64,
        /// Number of collisions on the link.
        pub collisions: u64,
        /// Number of frames given up after too many collisions.
        pub excessive_collisions: u64,
        /// Sum over all frames of the time in the adapter's memory until the driver read the frame.
        pub ring_wait: Span,
        /// Time on the link of frames from the host, and of frames from the peer.
        pub line_busy: [Span; 2],
        /// Busy time of all processors, by priority.
        pub busy: [Span; PRIORITIES.len()],
        /// Processor time of all jobs submitted, by activity.
        pub activities: [Span; Activity::COUNT],
    }
}

growing! {
    /// Counters of one processor. All counters are monotonic.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct ProcessorCounts {
        pub(super) busy: [Span; PRIORITIES.len()],
        pub(super) activities: [Span; Activity::COUNT],
    }
}

growing! {
    /// Counters of one queue. All counters are monotonic.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct QueueCounts {
        pub(super) frames: u64,
        pub(super) interrupts: u64,
        pub(super) lost: u64,
    }
}

growing! {
    /// Counters of each processor and of each queue.
    #[derive(Clone, Debug)]
    pub(super) struct Parts {
        pub(super) processors: Vec<ProcessorCounts>,
        pub(super) queues: Vec<QueueCounts>,
    }
}

/// The load of one processor of the host over the measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorLoad {
    /// Utilization of the processor, in percent.
    pub busy_percent: f64,
    /// Utilization by interrupt handlers, softirqs and processes, in percent.
    pub busy_percent_by_priority: [f64; PRIORITIES.len()],
    /// Processor time of the jobs submitted in the measured time, by activity.
    #[serde(skip)]
    pub activities: [Span; Activity::COUNT],
}

/// The load of one queue pair of an adapter over the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueLoad {
    /// Index of the adapter, from 0. Adapter 1 sends the frames that the host forwards.
    pub adapter: u64,
    /// Index of the processor that handles the queue's interrupts, from 0. `None` if interrupts are distributed round
    /// robin.
    pub processor: Option<u64>,
    /// Number of connections assigned to the queue by the hash.
    pub flows: u64,
    /// Frames read from the queue, per second.
    pub frames_per_second: f64,
    /// Interrupts of the queue, per second.
    pub interrupts_per_second: f64,
    /// Number of frames lost because the queue's ring was full.
    pub lost_frames: u64,
}

/// The result of a run over the measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Throughput, in bytes per second: payload of streams and messages, or length of raw frames.
    pub bytes_per_second: f64,
    /// Throughput in KiB (1024 bytes) per second, the `KB` of `ttcp`.
    pub kib_per_second: f64,
    /// Throughput of data sent by the host over TCP, bytes per second.
    pub sent_bytes_per_second: f64,
    /// Number of processors of the host.
    pub processors: u64,
    /// Utilization of the busiest processor, in percent.
    pub busiest_processor_percent: f64,
    /// Load of each processor, by index of the processor.
    pub processor_loads: Vec<ProcessorLoad>,
    /// Load of each queue pair, by index of the queue; first the queues of the first adapter.
    pub queue_loads: Vec<QueueLoad>,
    /// `true` if both stations share the time of the link (half duplex).
    pub line_is_shared: bool,
    /// `true` if both directions share the time of the bus (PCI and PCI-X).
    pub bus_is_shared: bool,
    /// Mean utilization of the processors, in percent.
    pub cpu_percent: f64,
    /// Mean utilization by interrupt handlers, softirqs and processes, in percent.
    pub cpu_percent_by_priority: [f64; PRIORITIES.len()],
    /// Interrupts per second.
    pub interrupts_per_second: f64,
    /// Frames received by the adapter, per second.
    pub frames_per_second: f64,
    /// Utilization of the link by frames from the host, and by frames from the peer, in percent.
    pub line_percent: [f64; 2],
    /// Utilization of the bus by transfers to the host, and from the host, in percent, if the adapter is bus master.
    pub bus_percent: [f64; 2],
    /// Mean time of a frame in the adapter's memory until the driver reads the frame, in microseconds.
    pub ring_wait_us: f64,
    /// Mean number of segments in flight per connection, sampled at each acknowledgement.
    pub in_flight_segments: f64,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Number of events in the whole run, including warm-up.
    pub events: u64,
    /// Name of the workload.
    pub workload: &'static str,
    /// Time of a full frame on the link, without the gap, in microseconds.
    pub frame_time_us: f64,
    /// Latency of requests, datagrams or raw frames; `None` for other workloads.
    pub latency: Option<Latency>,
    /// Counters over the measured time.
    #[serde(skip)]
    pub counts: Counts,
}

/// Bytes per KiB.
const KIB: f64 = 1024.0;
/// Length of a full frame without FCS, bytes.
pub const FULL_FRAME_LEN: u64 = 1514;

impl Outcome {
    pub(super) fn new(
        config: &Config,
        counts: &Counts,
        parts: &Parts,
        steering: &Steering,
        events: u64,
        latency: Option<Latency>,
    ) -> Self {
        let seconds = config.workload.time.as_s();
        let percent = |span: Span| 100.0 * span.as_s() / seconds;
        let processors = config.host.processors as f64;
        let per_second = |count: u64| count as f64 / seconds;
        let in_flight = counts.in_flight as f64 / counts.acks_received.max(1) as f64;
        let workload: Workload = config.workload.workload;
        let processor_load = |of: &ProcessorCounts| ProcessorLoad {
            busy_percent: percent(of.busy.into_iter().fold(Span::ZERO, |sum, span| sum + span)),
            busy_percent_by_priority: of.busy.map(percent),
            activities: of.activities,
        };
        let processor_loads: Vec<_> = parts.processors.iter().map(processor_load).collect();
        let goes_round = config.host.placement == Placement::Balanced && config.host.processors > 1;
        let queue_load = |(at, queue): (usize, &QueueCounts)| QueueLoad {
            adapter: at as u64 / config.adapter.queues,
            processor: (!goes_round).then_some(at as u64 % config.host.processors),
            flows: steering.flows_of(at) as u64,
            frames_per_second: per_second(queue.frames),
            interrupts_per_second: per_second(queue.interrupts),
            lost_frames: queue.lost,
        };
        Self {
            bytes_per_second: per_second(counts.bytes),
            kib_per_second: per_second(counts.bytes) / KIB,
            sent_bytes_per_second: per_second(counts.bytes_sent),
            processors: config.host.processors,
            busiest_processor_percent: processor_loads.iter().map(|of| of.busy_percent).fold(0.0, f64::max),
            processor_loads,
            queue_loads: parts.queues.iter().enumerate().map(queue_load).collect(),
            // Forwarded frames leave on the link of the second adapter, so the two directions never share a link.
            line_is_shared: !config.link.full_duplex && workload != Workload::Forward,
            bus_is_shared: matches!(config.adapter.bus, Bus::Pci(_) | Bus::PciX(_)),
            cpu_percent: counts.busy.iter().copied().map(percent).sum::<f64>() / processors,
            cpu_percent_by_priority: counts.busy.map(|span| percent(span) / processors),
            bus_percent: counts.bus_busy.map(percent),
            interrupts_per_second: per_second(counts.interrupts),
            frames_per_second: per_second(counts.frames_arrived),
            line_percent: counts.line_busy.map(percent),
            ring_wait_us: counts.ring_wait.as_us() / counts.frames_received.max(1) as f64,
            in_flight_segments: in_flight / config.peer.sender.mss as f64,
            seconds,
            events,
            workload: workload.name(),
            frame_time_us: config.link.frame_time(FULL_FRAME_LEN).as_us(),
            latency,
            counts: *counts,
        }
    }

    /// Returns the utilization of the bus, or of its busier direction, in percent.
    pub fn bus_limit_percent(&self) -> f64 {
        let [to_host, from_host] = self.bus_percent;
        if self.bus_is_shared { to_host + from_host } else { to_host.max(from_host) }
    }

    /// Returns the number of received frames lost in the adapter.
    pub fn lost(&self) -> u64 {
        self.counts.dropped + self.counts.overrun
    }
}
