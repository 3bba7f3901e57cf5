//! A profile with its types: the input of a run.
//!
//! A field with the name of a parameter is this parameter; `parameters.toml` gives its meaning.

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

/// The place where a driver reads frames out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveIn {
    /// The interrupt handler, frame by frame until none is left.
    #[default]
    Interrupt,
    /// A deferred procedure or softirq, batch by batch; the handler only schedules it.
    Deferred {
        /// Each batch is handed over last frame first.
        reversed: bool,
    },
}

/// Times of the processor, scaled.
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
    /// Per byte received, if the host verifies its checksum; 0 where the adapter does it.
    #[serde(skip)]
    pub checksum_fs_per_byte: u64,
    /// Per byte received, if a capture makes the stack verify every checksum itself.
    #[serde(skip)]
    pub capture_fs_per_byte: u64,
    /// Per byte sent, if the host computes its checksum; 0 where the adapter does it.
    #[serde(skip)]
    pub send_checksum_fs_per_byte: u64,
    /// Per byte encrypted or decrypted by the processor, over all bytes.
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
    /// Interrupts, softirqs and protocols of a queue are on the processor with its number, counted from the first, and
    /// round again if there are fewer processors. Processes and their sends are on the last. The queues of a second
    /// adapter are counted after those of the first.
    Pinned,
    /// Each connection has one, with softirqs and protocols; interrupts go round. For a single queue.
    Balanced,
    /// Interrupts, softirqs and protocols as with [`Placement::Pinned`]. The process of a connection, and its sends, go
    /// to the processor with the fewest connections to receive for and the fewest processes. A balancing scheduler ends
    /// up there, too.
    Spread,
}

/// A sending TCP: of the host or of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendConfig {
    /// Its window and its answer to loss.
    pub sender: SenderConfig,
    /// Bytes handed down at once: a segment, or a large send.
    pub chunk_len: u64,
    /// Maximum unacknowledged bytes written by a process.
    pub buffer: u64,
}

/// The polling of a deferred driver after an interrupt, as in Linux' NAPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the host")]
pub struct PollConfig {
    /// Maximum frames at once, before it polls on in turn with other queues; `usize::MAX`: the budget alone limits
    /// them.
    #[serde(skip)]
    pub weight: usize,
    /// Maximum frames before it polls on in turn with processes; `usize::MAX`: no limit.
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
    /// A capture runs.
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

/// Its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Pairs of a receive and a transmit queue.
    pub queues: u64,
    /// Packet memory, of each queue.
    pub memory: MemoryConfig,
    /// Interrupt moderation of each queue.
    pub moderation: ModerationConfig,
    /// The same for completed sends, if they do not count as received frames.
    pub completion_moderation: Option<ModerationConfig>,
    /// The path of bytes to the host.
    pub bus: Bus,
    /// The path of frames through it.
    pub engine: EngineConfig,
    /// The coalescing side for waiting segments.
    pub coalesced_by: CoalescedBy,
    /// Maximum segments of an aggregate; the length of an IP packet is another bound.
    pub segments_max: u64,
    /// Between two of its frames, if longer than the link's gap.
    pub gap: Span,
    /// Time from the moment when an interrupt is due until it comes, if no frame comes meanwhile.
    pub timer_latency: Span,
}

/// The side that coalesces waiting segments of a connection, and pays for each frame of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoalescedBy {
    /// They are handed over one by one.
    Nobody,
    /// The adapter: its engine's time for each frame received.
    Adapter,
    /// The host: its driver's time for each frame.
    Host,
}

/// The path of frames through an adapter that is bus master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the adapter")]
pub struct EngineConfig {
    pub segment_time: Span,
    pub receive_time: Span,
    /// Bits per second of its encryption or decryption; 0: it does neither.
    #[serde(skip)]
    pub crypt_bps: u64,
    /// Share of encrypted bytes, parts of a million.
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

/// The machine at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the peer")]
pub struct PeerConfig {
    pub gap: Span,
    pub turnaround_time: Span,
    #[serde(skip)]
    pub sender: SenderConfig,
    pub service_time: Span,
    /// Bits per second of a slower link in front of its own; 0: none.
    #[serde(skip)]
    pub hop_bps: u64,
    #[serde(skip)]
    pub ack_policy: AckPolicy,
    pub delayed_ack_time: Span,
}

/// The moments of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// A number of them is under way: each response lets the next request go.
    Closed,
    /// At random moments of a mean rate, independent of the requests under way.
    Poisson,
    /// One after each interval.
    Periodic,
    /// Several at once after each interval.
    Bursts,
}

/// The form of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// A datagram.
    #[default]
    Udp,
    /// Segments of a connection.
    Tcp,
    /// A raw frame of a length with FCS; `None`: of [`IMIX`].
    Frame(Option<u64>),
}

/// Frames of a mix usual for routers: weights, and lengths with FCS. They have IP packets of 40 bytes (the frame is
/// padded), 576 (RFC 791: every host accepts them) and 1500 (the MTU of Ethernet).
pub const IMIX: [(u64, u64); 3] = [(7, 64), (4, 594), (1, 1518)];

/// Requests and responses, received datagrams, or raw frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the workload")]
pub struct ExchangeConfig {
    #[serde(skip)]
    pub carrier: Carrier,
    /// Connections with requests of the peer, and those with requests of the host, each in turn.
    #[serde(skip)]
    pub flows: [u64; 2],
    /// Bytes of a request, or of a datagram sent or read by a process; 0: no process touches a raw frame.
    #[serde(skip)]
    pub request_len: u64,
    /// Bytes of a response; 0: there is none, or the response is the received frame.
    #[serde(skip)]
    pub response_len: u64,
    /// The host sends received frames on through a second adapter.
    #[serde(skip)]
    pub forwards: bool,
    pub arrivals: Arrivals,
    pub request_rate: u64,
    pub burst: u64,
    pub outstanding: u64,
    /// The time of the application is exponentially distributed.
    #[serde(skip)]
    pub service_is_exponential: bool,
}

impl ExchangeConfig {
    /// Returns the number of requests due at once.
    pub fn at_once(&self) -> u64 {
        if self.arrivals == Arrivals::Bursts { self.burst } else { 1 }
    }
}

/// The traffic and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the workload")]
pub struct WorkloadConfig {
    #[serde(skip)]
    pub workload: Workload,
    pub flows: u64,
    /// Bytes of Ethernet, IP and TCP headers with options.
    #[serde(skip)]
    pub headers_len: u64,
    pub write_size: u64,
    pub read_size: u64,
    #[serde(rename = "rate")]
    pub rate_bps: u64,
    pub rpc_size: u64,
    pub rpc_outstanding: u64,
    /// All of them are sent at once, when all are answered; else each when the one before it is answered.
    #[serde(skip)]
    pub rpc_in_rounds: bool,
    pub rpc_timer: Span,
    /// Requests and responses, where the workload is of them.
    #[serde(skip)]
    pub exchange: Option<ExchangeConfig>,
    pub warmup: Span,
    pub time: Span,
    #[serde(skip)]
    pub seed: u64,
}

/// The complete input of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The host under study.
    pub host: HostConfig,
    /// Its adapter.
    pub adapter: AdapterConfig,
    /// The line.
    pub link: LinkConfig,
    /// The other machine.
    pub peer: PeerConfig,
    /// The traffic.
    pub workload: WorkloadConfig,
}
