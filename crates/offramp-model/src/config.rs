//! A profile with its types: what a run is made with.

use crate::bus::{Bus, IsaTransfers};
use crate::link::LinkConfig;
use crate::profile::{Profile, schema};
use crate::tcp::{AckPolicy, SenderConfig, Variant};
use crate::time::{PICOSECONDS_PER_NANOSECOND, Span};
use offramp_adapter::memory::{MemoryConfig, MemoryConfigError, OverflowPolicy, ReceiveMemory};
use offramp_adapter::moderation::{AreaConfig, DimProfiles, E1000Mode, ModerationConfig, Policy};

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// The peer sends a stream over TCP, and a process of the host reads it (`ttcp -r`).
    TtcpReceive,
    /// The host reads files of the peer by NFS over UDP.
    NfsRead,
}

impl Workload {
    /// Every workload, with the name that a user gives.
    pub const NAMES: [(&'static str, Self); 2] = [("ttcp-receive", Self::TtcpReceive), ("nfs-read", Self::NfsRead)];

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
    /// The driver, per frame read out.
    pub frame: Span,
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
    /// Femtoseconds per byte summed; 0 where the adapter does it.
    pub checksum_fs_per_byte: u64,
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
    /// Mean time between moments at which interrupts are shut out; zero: never.
    pub mask_interval: Span,
    /// How long they are shut out.
    pub mask: Span,
}

/// Its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Packet memory.
    pub memory: MemoryConfig,
    /// When the host is interrupted.
    pub moderation: ModerationConfig,
    /// How bytes get to the host.
    pub bus: Bus,
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
}

/// What is sent, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadConfig {
    /// What.
    pub workload: Workload,
    /// TCP connections.
    pub flows: u64,
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
    pub fn new(profile: &Profile, workload: Workload) -> Result<Self, MemoryConfigError> {
        let fields = Fields(profile);
        Ok(Self {
            host: fields.host(),
            adapter: fields.adapter()?,
            link: LinkConfig {
                rate_bps: profile.value("link.rate"),
                full_duplex: fields.word("link.duplex", schema::DUPLEXES) == "full",
                delay: fields.time("link.delay"),
            },
            peer: fields.peer(),
            workload: fields.workload(workload),
        })
    }
}

struct Fields<'a>(&'a Profile);

impl Fields<'_> {
    fn time(&self, name: &str) -> Span {
        Span(self.0.value(name))
    }

    fn word(&self, name: &str, words: &'static [&'static str]) -> &'static str {
        words.get(self.0.value(name) as usize).copied().unwrap_or_default()
    }

    fn is_on(&self, name: &str) -> bool {
        self.word(name, schema::SWITCHES) == "on"
    }

    fn cost(&self, name: &str) -> Span {
        self.time(name).scaled_ppm(self.0.value("host.cost_scale"))
    }

    /// Femtoseconds per byte; the arithmetic of picoseconds serves.
    fn cost_per_byte(&self, name: &str) -> u64 {
        self.cost(name).0
    }

    fn host(&self) -> HostConfig {
        let checksum = if self.is_on("adapter.checksum") { 0 } else { self.cost_per_byte("host.checksum_time") };
        let receive_in = match self.word("host.receive", schema::RECEIVES) {
            "deferred" => ReceiveIn::Deferred { reversed: self.word("host.order", schema::ORDERS) == "reversed" },
            _ => ReceiveIn::Interrupt,
        };
        HostConfig {
            costs: Costs {
                interrupt: self.cost("host.interrupt_time"),
                frame: self.cost("host.frame_time"),
                tcp: self.cost("host.tcp_time"),
                ack: self.cost("host.ack_time"),
                udp: self.cost("host.udp_time"),
                rpc: self.cost("host.rpc_time"),
                read: self.cost("host.read_time"),
                read_chunk: self.0.value("host.read_chunk"),
                copy_fs_per_byte: self.cost_per_byte("host.copy_time"),
                checksum_fs_per_byte: checksum,
            },
            ack_policy: AckPolicy {
                segments_per_ack: self.0.value("host.segments_per_ack") as u32,
                window: self.0.value("host.receive_window"),
            },
            delayed_ack: self.time("host.delayed_ack_time"),
            receive_in,
            mask_interval: self.time("host.mask_interval"),
            mask: self.time("host.mask_time"),
        }
    }

    fn adapter(&self) -> Result<AdapterConfig, MemoryConfigError> {
        let memory = MemoryConfig { policy: self.overflow(), ..self.memory()? };
        memory.check()?;
        Ok(AdapterConfig { memory, moderation: self.moderation(), bus: self.bus() })
    }

    fn memory(&self) -> Result<MemoryConfig, MemoryConfigError> {
        if self.word("adapter.memory_kind", schema::MEMORIES) == "dp8390" {
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
        match self.word("adapter.overflow", schema::OVERFLOWS) {
            "overrun" => OverflowPolicy::Overrun,
            "stop-and-recover" => OverflowPolicy::StopAndRecover {
                recover_ns: self.time("adapter.recover_time").0 / PICOSECONDS_PER_NANOSECOND,
            },
            _ => OverflowPolicy::Drop,
        }
    }

    fn moderation(&self) -> ModerationConfig {
        let policy = match self.word("adapter.moderation", schema::MODERATIONS) {
            "fixed-gap" => {
                Policy::FixedGap { max_interrupts_per_second: self.0.value("adapter.interrupt_rate") as u32 }
            }
            "e1000" => Policy::E1000(E1000Mode::default()),
            "net-dim" => Policy::NetDim(DimProfiles::default()),
            "quiet-or-area" => Policy::QuietOrArea(AreaConfig::default()),
            _ => Policy::Off,
        };
        ModerationConfig { policy, ..ModerationConfig::default() }
    }

    fn bus(&self) -> Bus {
        let access = self.word("adapter.access", schema::ACCESSES);
        if access == "master" {
            return Bus::Master;
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

    fn peer(&self) -> PeerConfig {
        let variant = match self.word("peer.tcp", schema::VARIANTS) {
            "reno" => Variant::Reno,
            "tahoe" => Variant::Tahoe,
            _ => Variant::GoBackN,
        };
        PeerConfig {
            gap: self.time("peer.gap"),
            turnaround: self.time("peer.turnaround_time"),
            sender: SenderConfig {
                mss: self.0.value("workload.mss"),
                variant,
                rto_min: self.time("peer.rto_min"),
                initial_window_segments: self.0.value("peer.initial_window"),
                window: self.0.value("host.receive_window"),
            },
            service: self.time("peer.service_time"),
            hop_bps: self.0.value("link.hop_rate"),
        }
    }

    fn workload(&self, workload: Workload) -> WorkloadConfig {
        WorkloadConfig {
            workload,
            flows: self.0.value("workload.flows"),
            read_size: self.0.value("workload.read_size"),
            rate_bps: self.0.value("workload.rate"),
            rpc_size: self.0.value("workload.rpc_size"),
            rpc_outstanding: self.0.value("workload.rpc_outstanding"),
            rpc_in_rounds: self.word("workload.rpc_issue", schema::ISSUES) == "round",
            rpc_timer: self.time("workload.rpc_timer"),
            warmup: self.time("workload.warmup"),
            time: self.time("workload.time"),
            seed: self.0.value("workload.seed"),
        }
    }
}
