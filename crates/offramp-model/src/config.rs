//! The typed configuration of a run, converted from a profile.
//!
//! A field without a comment is the value of a parameter with the same name, described in `parameters.toml`.

mod read;

use crate::bus::Bus;
use crate::bus::pci::Command;
use crate::link::LinkConfig;
use crate::tcp::{AckPolicy, SenderConfig};
use crate::time::Span;
use offramp_adapter::moderation::ModerationConfig;
use offramp_impair::memory::MemoryConfig;
use serde::Deserialize;

pub use crate::profile::workload::Workload;
pub use read::bus;
pub(crate) use read::link;

/// The context in which a driver reads frames from the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveIn {
    /// The interrupt handler reads frames one by one, until no frame is left.
    #[default]
    Interrupt,
    /// A deferred procedure call or softirq reads frames in batches. The interrupt handler only schedules this call or
    /// softirq.
    Deferred {
        /// `true` if each batch is passed to the stack in reverse order.
        reversed: bool,
    },
}

/// Processor times, multiplied by `host.cost_scale`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the host")]
pub struct Costs {
    pub interrupt_time: Span,
    pub wake_time: Span,
    pub frame_time: Span,
    pub gro_time: Span,
    pub poll_time: Span,
    pub tcp_time: Span,
    pub ack_time: Span,
    pub udp_time: Span,
    pub rpc_time: Span,
    pub read_time: Span,
    pub read_chunk: u64,
    #[serde(rename = "copy_time")]
    pub copy_fs_per_byte: u64,
    #[serde(rename = "write_copy_time")]
    pub write_copy_fs_per_byte: u64,
    /// Time to verify the checksum, in femtoseconds per received byte; 0 if the adapter verifies checksums.
    #[serde(skip)]
    pub checksum_fs_per_byte: u64,
    /// Time to verify the checksum because a capture runs, in femtoseconds per received byte; 0 without a capture.
    #[serde(skip)]
    pub capture_fs_per_byte: u64,
    /// Time to compute the checksum, in femtoseconds per sent byte; 0 if the adapter computes checksums.
    #[serde(skip)]
    pub send_checksum_fs_per_byte: u64,
    /// Time to encrypt or decrypt on the processor, in femtoseconds per byte, averaged over encrypted and unencrypted
    /// bytes.
    #[serde(skip)]
    pub crypt_fs_per_byte: u64,
    pub write_time: Span,
    pub segment_time: Span,
    pub chunk_time: Span,
    pub page_time: Span,
    pub ack_receive_time: Span,
    pub completion_time: Span,
    pub register_time: Span,
    pub route_time: Span,
}

/// The assignment of work to processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Interrupts, softirqs and protocols of queue N run on processor N, modulo the number of processors. Processes,
    /// with their sends, run on the last processor. The queues of a second adapter are numbered after the queues of the
    /// first adapter.
    Pinned,
    /// Each connection or call has a processor for its protocols and its process. Interrupts, with the driver's
    /// softirqs, are distributed round robin. This placement needs a single queue.
    Balanced,
    /// Interrupts, softirqs and protocols are placed as with [`Placement::Pinned`]. The processes, with their sends,
    /// are placed one by one, each on the processor with the fewest connections and processes so far. A connection
    /// counts on the processor of its queue. A load-balancing scheduler converges to this placement.
    Spread,
}

/// The settings of the host's TCP senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendConfig {
    /// Window and congestion control of the sender.
    pub sender: SenderConfig,
    /// Maximum length of a send passed to the adapter, in bytes: one segment, or a super-frame.
    pub chunk_len: u64,
    /// Send buffer: maximum number of unacknowledged bytes written by a process.
    pub buffer: u64,
}

/// Polling by a deferred driver after an interrupt, as in Linux' NAPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the host")]
pub struct PollConfig {
    /// Maximum number of frames per poll of a queue, before other queues are polled. `usize::MAX` if only `budget`
    /// limits a poll.
    #[serde(skip)]
    pub weight: usize,
    /// Maximum number of frames per softirq, before processes run; `usize::MAX` for no limit.
    #[serde(skip)]
    pub budget: usize,
    pub defer_hard_irqs: u64,
    pub gro_flush_timeout: Span,
    pub busy_poll: Span,
    pub irq_suspend_timeout: Span,
}

/// The host under study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the host")]
pub struct HostConfig {
    #[serde(skip)]
    pub costs: Costs,
    #[serde(skip)]
    pub ack_policy: AckPolicy,
    #[serde(skip)]
    pub receive_in: ReceiveIn,
    #[serde(skip)]
    pub poll: PollConfig,
    #[serde(skip)]
    pub send: SendConfig,
    /// `true` while a packet capture runs on the host.
    #[serde(skip)]
    pub captures: bool,
    pub delayed_ack_time: Span,
    pub wake_up_time: Span,
    pub wake_up_tail: Span,
    pub poll_interval: Span,
    pub backlog: usize,
    pub output_queue: usize,
    pub mask_interval: Span,
    pub mask_time: Span,
    pub processors: u64,
    pub placement: Placement,
}

/// The host's adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Number of queue pairs: a receive and a transmit queue each.
    pub queues: u64,
    /// Packet memory of each queue.
    pub memory: MemoryConfig,
    /// Interrupt moderation of each queue.
    pub moderation: ModerationConfig,
    /// Interrupt moderation for transmit completions. `None` if completions share the receive moderation.
    pub completion_moderation: Option<ModerationConfig>,
    /// Bus to the host.
    pub bus: Bus,
    /// Processing of frames inside the adapter.
    pub engine: EngineConfig,
    /// The component that coalesces received segments, host or adapter; [`CoalescedBy::Nobody`] for none.
    pub coalesced_by: CoalescedBy,
    /// Maximum number of segments per super-frame. The maximum length of an IP packet is a further limit.
    pub segments_max: u64,
    /// Minimum gap between two frames sent by the adapter. If the link's interframe gap is longer, the interframe gap
    /// applies.
    pub gap: Span,
    /// Delay from the time when an interrupt is due until the interrupt occurs. A frame that arrives during the delay
    /// triggers the interrupt at once.
    pub timer_latency: Span,
}

/// The component that coalesces received segments of a connection. Coalescing costs time for each frame from the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoalescedBy {
    /// Segments are passed to the stack one by one.
    Nobody,
    /// The adapter coalesces (LRO). Each received frame costs engine time.
    Adapter,
    /// The host coalesces (GRO). Each received frame costs driver time.
    Host,
}

/// Processing of frames inside a bus-master adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the adapter")]
pub struct EngineConfig {
    pub segment_time: Span,
    pub receive_time: Span,
    /// Rate of encryption and decryption in the adapter, in bits per second; 0 if the adapter does not encrypt.
    #[serde(skip)]
    pub crypt_bps: u64,
    /// Share of encrypted bytes, parts per million.
    #[serde(skip)]
    pub encrypted_ppm: u64,
    pub read_command: Command,
    pub receive_fifo: u64,
    pub transmit_fifo: u64,
    pub cut_through: u64,
    pub buffer: u64,
    pub descriptor: u64,
    pub descriptor_fetch: u64,
    pub descriptor_write_back: u64,
    pub verdict_fault: u64,
}

/// The peer at the other end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the peer")]
pub struct PeerConfig {
    pub gap: Span,
    pub turnaround_time: Span,
    #[serde(skip)]
    pub sender: SenderConfig,
    pub service_time: Span,
    /// Rate of a slower link in front of the peer, in bits per second; 0 without a slower link.
    #[serde(skip)]
    pub hop_bps: u64,
    #[serde(skip)]
    pub ack_policy: AckPolicy,
    pub delayed_ack_time: Span,
}

/// The arrival process of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Closed loop: a fixed number of requests is outstanding, and each response triggers the next request.
    Closed,
    /// Poisson process with a mean rate, independent of outstanding requests.
    Poisson,
    /// One request is due at a time, at regular intervals.
    Periodic,
    /// Several requests are due at once, at regular intervals.
    Bursts,
}

/// The transport of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// A datagram.
    #[default]
    Udp,
    /// Segments of a TCP connection.
    Tcp,
    /// A raw frame with this length, including FCS; `None` for lengths from [`IMIX`].
    Frame(Option<u64>),
}

/// A mix of frames common in router tests: weight, and length with FCS in bytes. The IP packets have 40 bytes (the
/// frame is padded), 576 (RFC 791: every host accepts this length) and 1500 (the MTU of Ethernet).
pub const IMIX: [(u64, u64); 3] = [(7, 64), (4, 594), (1, 1518)];

/// Traffic of requests and responses, received datagrams, or raw frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the workload")]
pub struct ExchangeConfig {
    #[serde(skip)]
    pub carrier: Carrier,
    /// Number of flows with requests from the peer, and number of flows with requests from the host. The flows of a
    /// direction send in round-robin order.
    #[serde(skip)]
    pub flows: [u64; 2],
    /// Length of a request or datagram, in bytes; 0 for raw frames, because no process touches a raw frame.
    #[serde(skip)]
    pub request_len: u64,
    /// Length of a response, in bytes; 0 if no response is sent, or if the response is the forwarded frame.
    #[serde(skip)]
    pub response_len: u64,
    /// `true` if the host forwards received frames through a second adapter.
    #[serde(skip)]
    pub forwards: bool,
    pub arrivals: Arrivals,
    pub request_rate: u64,
    pub burst: u64,
    pub outstanding: u64,
    /// `true` if the service time of the application is exponentially distributed.
    #[serde(skip)]
    pub service_is_exponential: bool,
}

impl ExchangeConfig {
    /// Returns the number of requests that become due at once.
    pub fn at_once(&self) -> u64 {
        if self.arrivals == Arrivals::Bursts { self.burst } else { 1 }
    }
}

/// The traffic of a run, and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the workload")]
pub struct WorkloadConfig {
    #[serde(skip)]
    pub workload: Workload,
    pub flows: u64,
    /// Total length of Ethernet, IP and TCP headers, including options, in bytes.
    #[serde(skip)]
    pub headers_len: u64,
    pub write_size: u64,
    pub read_size: u64,
    #[serde(rename = "rate")]
    pub rate_bps: u64,
    pub rpc_size: u64,
    pub rpc_outstanding: u64,
    /// `true` if all NFS calls are sent at once, after the process has read all previous replies. `false` if each reply
    /// that the process has read triggers one call.
    #[serde(skip)]
    pub rpc_in_rounds: bool,
    pub rpc_timer: Span,
    /// Messages of the workload; `None` for streams and NFS.
    #[serde(skip)]
    pub exchange: Option<ExchangeConfig>,
    pub warmup: Span,
    pub time: Span,
    #[serde(skip)]
    pub seed: u64,
}

/// The complete configuration of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The host under study.
    pub host: HostConfig,
    /// The host's adapter.
    pub adapter: AdapterConfig,
    /// The link.
    pub link: LinkConfig,
    /// The peer.
    pub peer: PeerConfig,
    /// The traffic.
    pub workload: WorkloadConfig,
}
