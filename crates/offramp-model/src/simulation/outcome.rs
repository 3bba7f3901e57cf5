//! The counters and results of a run.

use super::latency::Latency;
use super::steering::Steering;
use crate::bus::Bus;
use crate::config::{Config, Placement, Workload};
use crate::cpu::PRIORITIES;
use crate::time::Span;
use serde::Serialize;
use strum::{EnumCount, EnumMessage};

/// The activities of the host's processor.
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
    /// Its name for people.
    pub fn name(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}

/// The difference of growing values.
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

/// Defines a struct of growing fields.
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
    /// Counters, all growing.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Counts {
        /// Payload bytes read by the process, and received in order by the peer.
        pub bytes: u64,
        /// Part of `bytes` sent by the host over TCP.
        pub bytes_sent: u64,
        /// Segments, large sends or datagrams handed down by the host.
        pub sends: u64,
        /// Sends and acknowledgements completed by the adapter.
        pub sends_completed: u64,
        /// Segments refused by the host because its adapter reported them as bad.
        pub refused: u64,
        /// Time of the bus towards the host and from it, where the adapter is master.
        pub bus_busy: [Span; 2],
        /// Frames received by the adapter.
        pub frames_arrived: u64,
        /// Frames read out by the driver.
        pub frames_received: u64,
        /// Frames lost for lack of room.
        pub dropped: u64,
        /// Frames stored in the memory, and overwritten by newer ones.
        pub overrun: u64,
        /// Frames lost for lack of room in the queue between interrupt handler and protocol.
        pub backlog_dropped: u64,
        /// Frames sent by the host.
        pub frames_sent: u64,
        /// Interrupts.
        pub interrupts: u64,
        /// Batches handed over by a deferred driver.
        pub batches: u64,
        /// Segments received by TCP.
        pub segments_received: u64,
        /// Segments among them out of order.
        pub out_of_order: u64,
        /// Acknowledgements sent.
        pub acks: u64,
        /// Segments or requests sent again.
        pub retransmissions: u64,
        /// Timeouts of senders and calls.
        pub timeouts: u64,
        /// Acknowledgements without news for a sender.
        pub duplicate_acks: u64,
        /// Acknowledgements received by a sender.
        pub acks_received: u64,
        /// Sum of the bytes under way at each of `acks_received`.
        pub in_flight: u64,
        /// Calls answered.
        pub calls: u64,
        /// Collisions on the wire.
        pub collisions: u64,
        /// Frames given up after too many collisions.
        pub excessive_collisions: u64,
        /// Time of frames in the adapter's memory until the driver read them out, over all frames.
        pub ring_wait: Span,
        /// Time of each station's frames on the link.
        pub line_busy: [Span; 2],
        /// Time of the processor by priority.
        pub busy: [Span; PRIORITIES.len()],
        /// Work given to the processor, by activity.
        pub activities: [Span; Activity::COUNT],
    }
}

growing! {
    /// Counters of one processor, all growing.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct ProcessorCounts {
        pub(super) busy: [Span; PRIORITIES.len()],
        pub(super) activities: [Span; Activity::COUNT],
    }
}

growing! {
    /// Counters of one queue, all growing.
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

/// One processor of the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorLoad {
    /// Busy share of it, percent.
    pub busy_percent: f64,
    /// The same in interrupt handlers, softirqs and processes.
    pub busy_percent_by_priority: [f64; PRIORITIES.len()],
    /// Work given to it, by activity.
    #[serde(skip)]
    pub activities: [Span; Activity::COUNT],
}

/// One queue pair of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueLoad {
    /// Its adapter, the first is 0. The second one carries forwarded frames.
    pub adapter: u64,
    /// The processor for its interrupts, the first is 0; `None` where interrupts go round.
    pub processor: Option<u64>,
    /// Connections assigned to it by the hash.
    pub flows: u64,
    /// Frames read out of it, per second.
    pub frames_per_second: f64,
    /// Its interrupts, per second.
    pub interrupts_per_second: f64,
    /// Frames lost for lack of room in its ring.
    pub lost_frames: u64,
}

/// The result of a run, over the counted time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Payload read by the process, or raw frames through the host, bytes per second.
    pub bytes_per_second: f64,
    /// Payload in KiB (1024 bytes) per second, the `KB` of `ttcp`.
    pub kib_per_second: f64,
    /// Part of it sent by the host over TCP, bytes per second.
    pub sent_bytes_per_second: f64,
    /// Processors of the host.
    pub processors: u64,
    /// Busy share of the busiest of them, percent.
    pub busiest_processor_percent: f64,
    /// Load of each processor, in their order.
    pub processor_loads: Vec<ProcessorLoad>,
    /// Each queue of the adapter.
    pub queue_loads: Vec<QueueLoad>,
    /// Both stations share the time of the link, as at half duplex.
    pub line_is_shared: bool,
    /// Both directions of the bus share its time, as on PCI.
    pub bus_is_shared: bool,
    /// Busy share of all processors, percent.
    pub cpu_percent: f64,
    /// The same in interrupt handlers, softirqs and processes.
    pub cpu_percent_by_priority: [f64; PRIORITIES.len()],
    /// Interrupts per second.
    pub interrupts_per_second: f64,
    /// Frames received by the adapter, per second.
    pub frames_per_second: f64,
    /// Share of the link's time taken by the host's and the peer's frames, percent.
    pub line_percent: [f64; 2],
    /// Share of the bus's time taken by frames to the host and from it, percent, where the adapter is master.
    pub bus_percent: [f64; 2],
    /// Mean time in the adapter's memory before a frame is read out, microseconds.
    pub ring_wait_us: f64,
    /// Mean segments of a connection under way at each acknowledgement.
    pub in_flight_segments: f64,
    /// Counted time, seconds.
    pub seconds: f64,
    /// Events of the whole run.
    pub events: u64,
    /// The workload's name.
    pub workload: &'static str,
    /// Time of one full frame on the wire, without gap, microseconds.
    pub frame_time_us: f64,
    /// Latency, of requests and datagrams.
    pub latency: Option<Latency>,
    /// The counters.
    #[serde(skip)]
    pub counts: Counts,
}

/// Bytes of a KiB.
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
            // Forwarded frames leave on another line.
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

    /// Returns the busy share of the bus, or of its busier direction, percent.
    pub fn bus_limit_percent(&self) -> f64 {
        let [to_host, from_host] = self.bus_percent;
        if self.bus_is_shared { to_host + from_host } else { to_host.max(from_host) }
    }

    /// Returns the number of received frames lost.
    pub fn lost(&self) -> u64 {
        self.counts.dropped + self.counts.overrun
    }
}
