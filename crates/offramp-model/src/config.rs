//! A profile with its types: what a run is made with.

use crate::bus::pci::{Command, Pci};
use crate::bus::pcie::{Iommu, Pcie};
use crate::bus::pcix::PciX;
use crate::bus::{Bus, IsaTransfers};
use crate::link::LinkConfig;
use crate::profile::Profile;
use crate::tcp::{AckPolicy, HEADERS_LEN, SenderConfig, Variant};
use crate::time::{PICOSECONDS_PER_MICROSECOND, PICOSECONDS_PER_NANOSECOND, Span};
use offramp_adapter::moderation::{AreaConfig, Coalescing, DimProfiles, E1000Mode, ModerationConfig, Policy};
use offramp_impair::OutOfRange;
use offramp_impair::memory::{MemoryConfig, OverflowPolicy, ReceiveMemory};

/// What is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workload {
    #[default]
    /// The peer sends a stream over TCP, and a process of the host reads it (`ttcp -r`).
    TtcpReceive,
    /// The host reads files of the peer by NFS over UDP.
    NfsRead,
    /// A process of the host sends a stream over TCP (`ttcp -t`).
    TtcpSend,
    /// Both at once.
    TtcpBoth,
    /// A process of the host sends datagrams over UDP, which the host fragments.
    UdpSend,
    /// Datagrams come to the host at a rate, and a process reads them.
    UdpReceive,
    /// Requests and responses over UDP.
    UdpRr,
    /// Requests and responses over TCP.
    TcpRr,
    /// Raw frames at a rate, which no protocol of the host takes.
    Source,
    /// Raw frames at a rate, which the host forwards from one adapter to a second one.
    Forward,
}

impl Workload {
    /// Every workload, with the name that a user gives.
    pub const NAMES: [(&'static str, Self); 11] = [
        ("ttcp-receive", Self::TtcpReceive),
        ("ttcp-send", Self::TtcpSend),
        ("ttcp", Self::TtcpSend),
        ("ttcp-both", Self::TtcpBoth),
        ("nfs-read", Self::NfsRead),
        ("udp-send", Self::UdpSend),
        ("udp-receive", Self::UdpReceive),
        ("udp-rr", Self::UdpRr),
        ("tcp-rr", Self::TcpRr),
        ("source", Self::Source),
        ("forward", Self::Forward),
    ];

    /// What happens in it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::TtcpReceive => "the peer sends a stream over TCP, and a process of the host reads it",
            Self::TtcpSend => "a process of the host sends a stream over TCP",
            Self::TtcpBoth => "a stream over TCP in each direction at once",
            Self::NfsRead => "the host reads files of the peer by NFS over UDP",
            Self::UdpSend => "a process of the host sends datagrams over UDP, which the host fragments",
            Self::UdpReceive => "datagrams come to the host at workload.request_rate, and a process reads them",
            Self::UdpRr => "requests and responses over UDP, with the host as server or client",
            Self::TcpRr => "requests and responses over TCP, with the host as server or client",
            Self::Source => {
                "raw frames at workload.request_rate, in one direction or both, which no protocol of the host takes"
            }
            Self::Forward => {
                "raw frames at workload.request_rate, which the host forwards to a second adapter like the first"
            }
        }
    }

    /// It is of raw frames.
    pub fn is_of_frames(self) -> bool {
        matches!(self, Self::Source | Self::Forward)
    }

    /// Something comes or goes at a rate, and nothing comes back that could close a loop.
    pub fn is_one_way(self) -> bool {
        self == Self::UdpReceive || self.is_of_frames()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, workload)| *workload == self).map_or("", |(name, _)| name)
    }
}

/// Where a driver reads frames out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveIn {
    /// The interrupt handler, frame by frame until none is left.
    Interrupt,
    /// A deferred procedure or softirq, batch by batch; the handler only schedules it.
    Deferred {
        /// Each batch is handed over last frame first.
        reversed: bool,
    },
}

/// Times of the processor, scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// An interrupt.
    pub interrupt: Span,
    /// Added to an interrupt where the processor was idle.
    pub wake: Span,
    /// The driver, per frame read out.
    pub frame: Span,
    /// Software that coalesces, per frame read out.
    pub gro: Span,
    /// A poll of a process that finds nothing.
    pub poll: Span,
    /// TCP and IP, per segment received.
    pub tcp: Span,
    /// Per acknowledgement sent.
    pub ack: Span,
    /// UDP and IP, per frame.
    pub udp: Span,
    /// A remote procedure call.
    pub rpc: Span,
    /// A process that reads, per piece.
    pub read: Span,
    /// Bytes of such a piece.
    pub read_chunk: u64,
    /// Femtoseconds per byte copied to a process.
    pub copy_fs_per_byte: u64,
    /// Femtoseconds per byte received whose checksum the host verifies; 0 where the adapter does it.
    pub checksum_fs_per_byte: u64,
    /// Femtoseconds per byte received where a capture makes the stack verify every checksum itself.
    pub capture_fs_per_byte: u64,
    /// Femtoseconds per byte sent whose checksum the host computes; 0 where the adapter does it.
    pub send_checksum_fs_per_byte: u64,
    /// Femtoseconds per byte of a process copied to be sent.
    pub write_copy_fs_per_byte: u64,
    /// Femtoseconds per byte encrypted or decrypted by the processor, over all bytes.
    pub crypt_fs_per_byte: u64,
    /// A write of a process.
    pub write: Span,
    /// Per segment sent without the adapter's segmentation.
    pub segment: Span,
    /// Per large send that the adapter segments.
    pub chunk: Span,
    /// Per page of a large send.
    pub page: Span,
    /// An acknowledgement received.
    pub ack_receive: Span,
    /// Per send completed.
    pub completion: Span,
    /// A register of the adapter, for each frame handed down.
    pub register: Span,
    /// Per frame forwarded.
    pub route: Span,
}

/// Which processor does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Interrupts, softirqs and protocols of a queue are on the processor of its number, counted from the first, and round
    /// again where there are fewer; processes, and what they send, are on the last. The queues of a second adapter are
    /// counted after those of the first.
    Pinned,
    /// Each connection has one, with softirqs and protocols; interrupts go round. For a single queue.
    Balanced,
    /// Interrupts, softirqs and protocols as with [`Placement::Pinned`]; the process of a connection, and what it sends,
    /// is where the fewest connections are received for and the fewest processes are, as a scheduler ends up that balances.
    Spread,
}

/// A TCP that sends: of the host or of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendConfig {
    /// Its window and its answer to loss.
    pub sender: SenderConfig,
    /// Bytes that are handed down at once: a segment, or a large send.
    pub chunk_len: u64,
    /// Bytes that a process may write before they are acknowledged.
    pub buffer: u64,
}

/// How a deferred driver polls after an interrupt, as Linux' NAPI does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollConfig {
    /// Frames that it takes at once, before it polls on in turn with other queues; `usize::MAX`: as many as the budget says.
    pub weight: usize,
    /// Frames that it takes before it polls on in turn with processes; `usize::MAX`: all.
    pub budget: usize,
    /// Polls without a frame, each begun by a timer, until interrupts are on again.
    pub defer_hard_irqs: u64,
    /// Until the timer begins a poll; zero: there is none.
    pub flush_timeout: Span,
    /// A process that has nothing to do polls for this time; zero: it sleeps.
    pub busy: Span,
    /// Longest that interrupts are off while a process works on what it has polled; zero: they are on.
    pub suspend: Span,
}

/// The host under study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// What its work costs.
    pub costs: Costs,
    /// Its TCP's acknowledgements and window.
    pub ack_policy: AckPolicy,
    /// Longest that an acknowledgement waits.
    pub delayed_ack: Span,
    /// Where frames are read out.
    pub receive_in: ReceiveIn,
    /// A deferred driver polls for frames by a timer of this interval; zero: when it is interrupted.
    pub poll_interval: Span,
    /// How a deferred driver polls after an interrupt.
    pub poll: PollConfig,
    /// Frames that wait on a processor between an interrupt handler and the protocol, at most.
    pub backlog: usize,
    /// Raw frames that wait for a descriptor of a transmit ring, at most.
    pub output_queue: usize,
    /// Mean time between moments at which interrupts are shut out; zero: never.
    pub mask_interval: Span,
    /// How long they are shut out.
    pub mask: Span,
    /// Processors.
    pub processors: u64,
    /// Which does what.
    pub placement: Placement,
    /// Its TCP, as it sends.
    pub send: SendConfig,
    /// A capture runs.
    pub captures: bool,
}

/// Its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Pairs of a receive and a transmit queue.
    pub queues: u64,
    /// Packet memory, of each queue.
    pub memory: MemoryConfig,
    /// When the host is interrupted, for each queue.
    pub moderation: ModerationConfig,
    /// The same for completed sends, where they do not count as frames received.
    pub completion_moderation: Option<ModerationConfig>,
    /// How bytes get to the host.
    pub bus: Bus,
    /// The way of frames through it.
    pub engine: EngineConfig,
    /// Of segments that wait together.
    pub coalescing: CoalescingConfig,
    /// Between two of its frames, where that is longer than the link's gap.
    pub gap: Span,
}

/// Who coalesces segments of a connection that wait together, and so pays for each frame of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoalescedBy {
    /// They are handed over one by one.
    Nobody,
    /// The adapter: its engine's time for each frame received.
    Adapter,
    /// The host: its driver's time for each frame.
    Host,
}

/// How segments are coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalescingConfig {
    /// Who does it.
    pub by: CoalescedBy,
    /// Segments of an aggregate at most; an IP packet's length is a bound of its own.
    pub segments_max: u64,
}

/// How frames go through an adapter that is bus master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Time of its engine for each frame sent.
    pub segment: Span,
    /// Time of its engine for each frame received.
    pub receive: Span,
    /// Bits per second that it encrypts or decrypts; 0: it does not.
    pub crypt_bps: u64,
    /// Share of the bytes that this concerns, parts of a million.
    pub encrypted_ppm: u64,
    /// How it reads over PCI.
    pub read_command: Command,
    /// Bytes that may wait for the bus.
    pub receive_fifo: u64,
    /// Bytes that may wait for the link.
    pub transmit_fifo: u64,
    /// Bytes of a frame that must have come before it goes over the bus; 0: all.
    pub cut_through: u64,
    /// Bytes of a receive buffer.
    pub buffer: u64,
    /// Bytes of a descriptor.
    pub descriptor: u64,
    /// Descriptors read at once.
    pub descriptor_fetch: u64,
    /// Descriptors written back at once.
    pub descriptor_write_back: u64,
    /// Segments for each one whose checksum the adapter reports as bad; 0: none.
    pub verdict_fault: u64,
}

/// The machine at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Between two of its frames.
    pub gap: Span,
    /// From a frame that comes until its answer.
    pub turnaround: Span,
    /// Its TCP.
    pub sender: SenderConfig,
    /// Until a reply is there.
    pub service: Span,
    /// Bits per second of the slower link that its frames cross first; 0: none.
    pub hop_bps: u64,
    /// Its TCP's acknowledgements and window.
    pub ack_policy: AckPolicy,
    /// Longest that an acknowledgement waits.
    pub delayed_ack: Span,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A number of them is under way: each response lets the next request go.
    Closed,
    /// At random moments of a mean rate, whatever is under way.
    Poisson,
    /// One after each interval.
    Periodic,
    /// Several at once after each interval.
    Bursts,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A datagram.
    Udp,
    /// Segments of a connection.
    Tcp,
    /// A raw frame of a length with FCS; `None`: of [`IMIX`].
    Frame(Option<u64>),
}

/// Frames of a mix as it is usual for routers: weights, and lengths with FCS. They have IP packets of 40 bytes (the frame
/// is padded), 576 (RFC 791: what every host takes) and 1500 (the MTU of Ethernet).
pub const IMIX: [(u64, u64); 3] = [(7, 64), (4, 594), (1, 1518)];

/// Requests and responses, datagrams that are received, or raw frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeConfig {
    /// What a message is.
    pub carrier: Carrier,
    /// Connections on which the peer begins, and those on which the host does, each in turn.
    pub flows: [u64; 2],
    /// Bytes of a request or of a datagram that a process sends or reads; 0: of a raw frame none does.
    pub request_len: u64,
    /// Bytes of a response; 0: there is none, or it is what was received.
    pub response_len: u64,
    /// The host sends what it receives on through a second adapter.
    pub forwards: bool,
    /// When they are sent.
    pub arrivals: Arrivals,
    /// How many per second, where they are not closed.
    pub rate_per_second: u64,
    /// How many at once in a burst.
    pub burst: u64,
    /// How many of a connection are under way, where they are closed.
    pub outstanding: u64,
    /// The time of the application is exponentially distributed.
    pub service_is_exponential: bool,
}

impl ExchangeConfig {
    /// How many are due at once.
    pub fn at_once(&self) -> u64 {
        if self.arrivals == Arrivals::Bursts { self.burst } else { 1 }
    }
}

/// What is sent, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadConfig {
    /// What.
    pub workload: Workload,
    /// TCP connections.
    pub flows: u64,
    /// Bytes of Ethernet, IP and TCP headers with options.
    pub headers_len: u64,
    /// Bytes that a process writes at once, or of a datagram.
    pub write_size: u64,
    /// Bytes that the receiving process asks for at once.
    pub read_size: u64,
    /// Payload bits per second that the application writes; 0: no limit.
    pub rate_bps: u64,
    /// Data of one RPC, bytes.
    pub rpc_size: u64,
    /// RPCs under way at once.
    pub rpc_outstanding: u64,
    /// All of them are sent at once, when all are answered; else each as the one before it is.
    pub rpc_in_rounds: bool,
    /// Until a request is sent again.
    pub rpc_timer: Span,
    /// Requests and responses, where the workload is of them.
    pub exchange: Option<ExchangeConfig>,
    /// Before anything is counted.
    pub warmup: Span,
    /// What is counted.
    pub time: Span,
    /// Of the random numbers.
    pub seed: u64,
}

/// All that a run is made with.
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
    /// What is sent.
    pub workload: WorkloadConfig,
}

impl Config {
    /// The types of a profile.
    ///
    /// # Errors
    /// When the adapter's memory is none.
    pub fn new(profile: &Profile, workload: Workload) -> Result<Self, OutOfRange> {
        let fields = Fields(profile);
        let adapter = fields.adapter()?;
        // What is encrypted is in protocols.
        let crypt_bps = if workload.is_of_frames() { 0 } else { adapter.engine.crypt_bps };
        Ok(Self {
            host: fields.host(),
            adapter: AdapterConfig { engine: EngineConfig { crypt_bps, ..adapter.engine }, ..adapter },
            link: LinkConfig {
                rate_bps: profile.value("link.rate"),
                full_duplex: profile.word("link.duplex") == "full",
                delay: fields.time("link.delay"),
            },
            peer: fields.peer(),
            workload: fields.workload(workload),
        })
    }
}

/// The bus of a profile, and the command by which its adapter reads over PCI.
pub fn bus(profile: &Profile) -> (Bus, Command) {
    let fields = Fields(profile);
    (fields.bus(), fields.engine().read_command)
}

struct Fields<'a>(&'a Profile);

impl Fields<'_> {
    fn time(&self, name: &str) -> Span {
        Span(self.0.value(name))
    }

    /// A number of which 0 stands for no limit.
    fn limit(&self, name: &str) -> usize {
        match self.0.value(name) {
            0 => usize::MAX,
            limit => limit as usize,
        }
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.word(name) == "on"
    }

    fn cost(&self, name: &str) -> Span {
        self.time(name).scaled_ppm(self.0.value("host.cost_scale"))
    }

    /// Femtoseconds per byte; the arithmetic of picoseconds serves.
    fn cost_per_byte(&self, name: &str) -> u64 {
        self.cost(name).0
    }

    fn host(&self) -> HostConfig {
        let checksum = self.0.word("adapter.checksum");
        let captures = self.is_on("host.capture");
        let (path, miss) = (self.cost_per_byte("host.checksum_time"), self.cost_per_byte("host.checksum_miss_time"));
        let receive_sum = path + Span(miss).scaled_ppm(self.0.value("host.receive_miss")).0;
        let is_ours = |by_adapter: &[&str]| !by_adapter.contains(&checksum);
        let receive_in = match self.0.word("host.receive") {
            "deferred" => ReceiveIn::Deferred { reversed: self.0.word("host.order") == "reversed" },
            _ => ReceiveIn::Interrupt,
        };
        HostConfig {
            costs: Costs {
                interrupt: self.cost("host.interrupt_time"),
                wake: self.cost("host.wake_time"),
                frame: self.cost("host.frame_time"),
                gro: self.cost("host.gro_time"),
                poll: self.cost("host.poll_time"),
                tcp: self.cost("host.tcp_time"),
                ack: self.cost("host.ack_time"),
                udp: self.cost("host.udp_time"),
                rpc: self.cost("host.rpc_time"),
                read: self.cost("host.read_time"),
                read_chunk: self.0.value("host.read_chunk"),
                copy_fs_per_byte: self.cost_per_byte("host.copy_time"),
                checksum_fs_per_byte: if is_ours(&["on", "receive"]) { receive_sum } else { 0 },
                capture_fs_per_byte: if captures { receive_sum } else { 0 },
                send_checksum_fs_per_byte: if is_ours(&["on", "transmit"]) { path + miss } else { 0 },
                write_copy_fs_per_byte: self.cost_per_byte("host.write_copy_time"),
                crypt_fs_per_byte: self.crypt(),
                write: self.cost("host.write_time"),
                segment: self.cost("host.segment_time"),
                chunk: self.cost("host.chunk_time"),
                page: self.cost("host.page_time"),
                ack_receive: self.cost("host.ack_receive_time"),
                completion: self.cost("host.completion_time"),
                register: self.cost("host.register_time"),
                route: self.cost("host.route_time"),
            },
            ack_policy: AckPolicy {
                segments_per_ack: self.0.value("host.segments_per_ack") as u32,
                mss: self.0.value("workload.mss"),
                window: self.0.value("host.receive_window"),
            },
            delayed_ack: self.time("host.delayed_ack_time"),
            receive_in,
            poll_interval: self.time("host.poll_interval"),
            poll: PollConfig {
                weight: self.limit("host.poll_weight"),
                budget: self.limit("host.poll_budget"),
                defer_hard_irqs: self.0.value("host.defer_hard_irqs"),
                flush_timeout: self.time("host.gro_flush_timeout"),
                busy: self.time("host.busy_poll"),
                suspend: self.time("host.irq_suspend_timeout"),
            },
            backlog: self.0.value("host.backlog") as usize,
            output_queue: self.0.value("host.output_queue") as usize,
            mask_interval: self.time("host.mask_interval"),
            mask: self.time("host.mask_time"),
            processors: self.0.value("host.processors"),
            placement: match self.0.word("host.placement") {
                "balanced" => Placement::Balanced,
                "spread" => Placement::Spread,
                _ => Placement::Pinned,
            },
            send: self.host_send(),
            captures,
        }
    }

    /// Time of the processor per byte for what it encrypts itself.
    fn crypt(&self) -> u64 {
        if self.0.word("adapter.ipsec") != "host" {
            return 0;
        }
        Span(self.cost_per_byte("host.crypt_time")).scaled_ppm(self.0.value("workload.encrypted")).0
    }

    fn host_send(&self) -> SendConfig {
        let mss = self.0.value("workload.mss");
        let largest = self.0.value("adapter.segment_chunk");
        SendConfig {
            sender: SenderConfig {
                mss,
                variant: self.variant("host.tcp"),
                rto_min: self.time("host.rto_min"),
                initial_window_segments: self.0.value("host.initial_window"),
                window: self.0.value("peer.receive_window"),
            },
            chunk_len: if self.is_on("adapter.lso") { (largest - largest % mss).max(mss) } else { mss },
            buffer: self.0.value("host.send_buffer"),
        }
    }

    fn variant(&self, name: &str) -> Variant {
        match self.0.word(name) {
            "tahoe" => Variant::Tahoe,
            "reno" => Variant::Reno,
            "new-reno" => Variant::NewReno,
            "cubic" => Variant::Cubic,
            _ => Variant::GoBackN,
        }
    }

    fn adapter(&self) -> Result<AdapterConfig, OutOfRange> {
        let memory = MemoryConfig { policy: self.overflow(), ..self.memory()? };
        memory.check()?;
        let queues = self.0.value("adapter.queues");
        let (moderation, bus) = (self.moderation(), self.bus());
        let coalescing = CoalescingConfig {
            by: match self.0.word("adapter.coalesce") {
                "on" => CoalescedBy::Adapter,
                "host" => CoalescedBy::Host,
                _ => CoalescedBy::Nobody,
            },
            segments_max: self.0.value("adapter.coalesce_segments"),
        };
        Ok(AdapterConfig {
            queues,
            memory,
            moderation,
            completion_moderation: self.completion_moderation(),
            bus,
            engine: self.engine(),
            coalescing,
            gap: self.time("adapter.gap"),
        })
    }

    fn engine(&self) -> EngineConfig {
        let encrypts = self.0.word("adapter.ipsec") == "adapter";
        EngineConfig {
            segment: self.time("adapter.segment_time"),
            receive: self.time("adapter.receive_time"),
            crypt_bps: if encrypts { self.0.value("adapter.crypt_rate") } else { 0 },
            encrypted_ppm: self.0.value("workload.encrypted"),
            read_command: match self.0.word("adapter.read_command") {
                "mr" => Command::Read,
                "mrl" => Command::ReadLine,
                _ => Command::ReadMultiple,
            },
            receive_fifo: self.0.value("adapter.receive_fifo"),
            transmit_fifo: self.0.value("adapter.transmit_fifo"),
            cut_through: self.0.value("adapter.cut_through"),
            buffer: self.0.value("adapter.buffer"),
            descriptor: self.0.value("adapter.descriptor"),
            descriptor_fetch: self.0.value("adapter.descriptor_fetch"),
            descriptor_write_back: self.0.value("adapter.descriptor_write_back"),
            verdict_fault: self.0.value("adapter.verdict_fault"),
        }
    }

    fn memory(&self) -> Result<MemoryConfig, OutOfRange> {
        if self.0.word("adapter.memory_kind") == "dp8390" {
            return MemoryConfig::dp8390(self.0.value("adapter.memory") as usize);
        }
        Ok(MemoryConfig {
            receive: ReceiveMemory::Unlimited,
            receive_ring_entries: Some(self.0.value("adapter.receive_descriptors") as usize),
            transmit_buffers: Some(self.0.value("adapter.transmit_descriptors") as usize),
            policy: OverflowPolicy::Drop,
        })
    }

    fn overflow(&self) -> OverflowPolicy {
        match self.0.word("adapter.overflow") {
            "overrun" => OverflowPolicy::Overrun,
            "stop-and-recover" => OverflowPolicy::StopAndRecover {
                recover_ns: self.time("adapter.recover_time").0 / PICOSECONDS_PER_NANOSECOND,
            },
            _ => OverflowPolicy::Drop,
        }
    }

    fn moderation(&self) -> ModerationConfig {
        let policy = match self.0.word("adapter.moderation") {
            "fixed-gap" => {
                Policy::FixedGap { max_interrupts_per_second: self.0.value("adapter.interrupt_rate") as u32 }
            }
            "coalescing" => Policy::Coalescing(Coalescing {
                max_usecs: (self.time("adapter.interrupt_wait").0 / PICOSECONDS_PER_MICROSECOND) as u32,
                max_packets: self.0.value("adapter.interrupt_frames") as u32,
            }),
            "e1000" => Policy::E1000(E1000Mode::default()),
            "net-dim" => Policy::NetDim(DimProfiles::default()),
            "area" => Policy::Area(AreaConfig::default()),
            "quiet-or-area" => Policy::QuietOrArea(AreaConfig::default()),
            _ => Policy::Off,
        };
        ModerationConfig { policy, ..ModerationConfig::default() }
    }

    fn completion_moderation(&self) -> Option<ModerationConfig> {
        let policy = match self.0.word("adapter.transmit_moderation") {
            "off" => Policy::Off,
            "coalescing" => Policy::Coalescing(Coalescing {
                max_usecs: (self.time("adapter.transmit_wait").0 / PICOSECONDS_PER_MICROSECOND) as u32,
                max_packets: self.0.value("adapter.transmit_frames") as u32,
            }),
            _ => return None,
        };
        Some(ModerationConfig { policy, ..ModerationConfig::default() })
    }

    fn bus(&self) -> Bus {
        let access = self.0.word("adapter.access");
        if self.0.word("bus.kind") != "isa" {
            return self.master();
        }
        // Memory needs no recovery between two accesses.
        let recovery_cycles = if access == "port" { self.0.value("adapter.recovery_cycles") } else { 0 };
        Bus::Isa(IsaTransfers {
            clock_hz: self.0.value("bus.clock"),
            width: self.0.value("adapter.transfer_width"),
            cycles: self.0.value("adapter.transfer_cycles"),
            recovery_cycles,
            contention_ppm: self.0.value("adapter.contention"),
        })
    }

    /// What a bus master is master of.
    fn master(&self) -> Bus {
        match self.0.word("bus.kind") {
            "pci" => Bus::Pci(Pci {
                clock_hz: self.0.value("bus.clock"),
                width: self.0.value("bus.width"),
                overhead_cycles: self.0.value("bus.overhead"),
                wait_states: self.0.value("bus.wait_states"),
                burst_len_max: self.0.value("bus.burst"),
                cache_line_len: self.0.value("bus.cache_line"),
            }),
            "pci-x" => Bus::PciX(PciX {
                clock_hz: self.0.value("bus.clock"),
                width: self.0.value("bus.width"),
                overhead_cycles: self.0.value("bus.overhead"),
                burst_len_max: self.0.value("bus.burst"),
                read_request_len_max: self.0.value("bus.read_request"),
                read_latency: self.time("bus.read_latency"),
                outstanding_reads: self.0.value("bus.outstanding_reads"),
            }),
            "pcie" => Bus::Pcie(Pcie {
                transfers_per_second: self.0.value("bus.clock"),
                lanes: self.0.value("bus.lanes"),
                payload_len_max: self.0.value("bus.payload"),
                read_request_len_max: self.0.value("bus.read_request"),
                completion_len_max: self.0.value("bus.completion"),
                has_ecrc: self.is_on("bus.ecrc"),
                read_latency: self.time("bus.read_latency"),
                write_latency: self.time("bus.write_latency"),
                outstanding_reads: self.0.value("bus.outstanding_reads"),
                write_interval: self.time("bus.write_interval"),
                read_engine: self.time("bus.read_time"),
                write_engine: self.time("bus.write_time"),
                line_len: self.0.value("bus.cache_line"),
                posted_credit_len: self.0.value("bus.posted_credit"),
                credit_latency: self.time("bus.credit_latency"),
                iommu: self.is_on("bus.iommu").then(|| Iommu {
                    entries: self.0.value("bus.iotlb"),
                    page_len: self.0.value("bus.page"),
                    window_len: self.0.value("bus.window"),
                    walk_time: self.time("bus.walk_time"),
                    walkers: self.0.value("bus.walkers"),
                }),
            }),
            _ => Bus::Master,
        }
    }

    fn peer(&self) -> PeerConfig {
        PeerConfig {
            gap: self.time("peer.gap"),
            turnaround: self.time("peer.turnaround_time"),
            sender: SenderConfig {
                mss: self.0.value("workload.mss"),
                variant: self.variant("peer.tcp"),
                rto_min: self.time("peer.rto_min"),
                initial_window_segments: self.0.value("peer.initial_window"),
                window: self.0.value("host.receive_window"),
            },
            service: self.time("peer.service_time"),
            hop_bps: self.0.value("link.hop_rate"),
            ack_policy: AckPolicy {
                segments_per_ack: self.0.value("peer.segments_per_ack") as u32,
                mss: self.0.value("workload.mss"),
                window: self.0.value("peer.receive_window"),
            },
            delayed_ack: self.time("peer.delayed_ack_time"),
        }
    }

    fn exchange(&self, workload: Workload) -> Option<ExchangeConfig> {
        let is_one_way = workload.is_one_way();
        if !is_one_way && !matches!(workload, Workload::UdpRr | Workload::TcpRr) {
            return None;
        }
        let flows = self.0.value("workload.flows");
        let direction = match workload {
            Workload::Source => self.0.word("workload.direction"),
            Workload::UdpRr | Workload::TcpRr if self.0.word("workload.role") == "client" => "from-host",
            _ => "to-host",
        };
        let frame_len = (self.0.word("workload.frame_mix") == "single").then(|| self.0.value("workload.frame_size"));
        let arrivals = match self.0.word("workload.arrivals") {
            "poisson" => Arrivals::Poisson,
            "bursts" => Arrivals::Bursts,
            // Nothing comes back that could close a loop.
            "closed" if !is_one_way => Arrivals::Closed,
            _ => Arrivals::Periodic,
        };
        Some(ExchangeConfig {
            carrier: match workload {
                Workload::TcpRr => Carrier::Tcp,
                Workload::Source | Workload::Forward => Carrier::Frame(frame_len),
                _ => Carrier::Udp,
            },
            flows: ["from-host", "to-host"].map(|other| if direction == other { 0 } else { flows }),
            forwards: workload == Workload::Forward,
            request_len: if workload.is_of_frames() { 0 } else { self.0.value("workload.request_size") },
            response_len: if is_one_way { 0 } else { self.0.value("workload.response_size") },
            arrivals,
            rate_per_second: self.0.value("workload.request_rate"),
            burst: self.0.value("workload.burst"),
            outstanding: self.0.value("workload.outstanding"),
            service_is_exponential: self.0.word("workload.service") == "exponential",
        })
    }

    fn workload(&self, workload: Workload) -> WorkloadConfig {
        WorkloadConfig {
            workload,
            flows: self.0.value("workload.flows"),
            headers_len: HEADERS_LEN + self.0.value("workload.tcp_options"),
            write_size: self.0.value("workload.write_size"),
            read_size: self.0.value("workload.read_size"),
            rate_bps: self.0.value("workload.rate"),
            rpc_size: self.0.value("workload.rpc_size"),
            rpc_outstanding: self.0.value("workload.rpc_outstanding"),
            rpc_in_rounds: self.0.word("workload.rpc_issue") == "round",
            rpc_timer: self.time("workload.rpc_timer"),
            exchange: self.exchange(workload),
            warmup: self.time("workload.warmup"),
            time: self.time("workload.time"),
            seed: self.0.value("workload.seed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::effect::parameters_of;
    use crate::profile::schema::{self, KEYS};
    use crate::simulation::run;

    #[test]
    fn a_run_uses_each_time_of_the_processor_scaled_and_nothing_else() {
        let base =
            Profile::load("p4-e1000-pci").unwrap().with("host.crypt_time", "1us/byte").with("adapter.ipsec", "host");
        let scaled = base.clone().with("host.cost_scale", "200%");
        let mut doubled = base.clone();
        let costs = KEYS.iter().filter(|key| key.is_scaled);
        doubled.set_base_units(costs.map(|key| (key, 2 * base.value(key.name)))).unwrap();
        let of = |profile| Config::new(profile, Workload::TtcpSend).unwrap();
        assert_eq!(of(&scaled), of(&doubled));
        assert_ne!(of(&scaled), of(&base));
    }

    #[test]
    fn a_workload_has_the_parameters_that_it_names_and_no_other() {
        // Nothing is lost here, so the timer of requests has no effect.
        let base = Profile::load("windows-lab").unwrap().with("adapter.ipsec", "host").with("workload.time", "200ms");
        let base = base.with("workload.warmup", "5ms").with("workload.rate", "20Mbit/s");
        let base = base.with("host.crypt_time", "5ns/byte").with("host.rpc_time", "5us");
        let base = base.with("workload.request_size", "4000byte").with("workload.arrivals", "poisson");
        let mut wrong = Vec::new();
        for (name, workload) in Workload::NAMES {
            let plain = run(&base, workload).unwrap();
            for key in schema::names_of("workload") {
                let own = key.split_once('.').unwrap().1;
                if ["warmup", "time", "seed", "rpc_timer", "outstanding", "burst"].contains(&own) {
                    continue;
                }
                let other = match own {
                    "rpc_issue" => "round".to_owned(),
                    "role" => "client".to_owned(),
                    "frame_size" => "128byte".to_owned(),
                    "frame_mix" => "imix".to_owned(),
                    "direction" => "from-host".to_owned(),
                    "arrivals" => "bursts".to_owned(),
                    "service" => "exponential".to_owned(),
                    "request_rate" => "20000".to_owned(),
                    "response_size" => "100byte".to_owned(),
                    "encrypted" => "50%".to_owned(),
                    "tcp_options" => "12byte".to_owned(),
                    "flows" | "rpc_outstanding" => "3".to_owned(),
                    "rate" => "30Mbit/s".to_owned(),
                    "read_size" => "1KiB".to_owned(),
                    _ => format!("{}byte", base.value(key) / 2),
                };
                let outcome = run(&base.clone().with(key, &other), workload).unwrap();
                if (outcome != plain) != parameters_of(workload).contains(&key) {
                    wrong.push(format!("{name} {key}={other}"));
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}
