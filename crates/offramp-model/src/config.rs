//! A profile with its types: the input of a run.
//!
//! A field with the name of a parameter is this parameter; `parameters.toml` gives its meaning.

use crate::bus::pci::Command;
use crate::bus::pcie::Pcie;
use crate::bus::{Bus, IsaTransfers};
use crate::link::LinkConfig;
use crate::profile::quantity::Dimension;
use crate::profile::{Profile, schema};
use crate::tcp::{AckPolicy, HEADERS_LEN, SenderConfig};
use crate::time::{PICOSECONDS_PER_MICROSECOND, Span};
use offramp_adapter::moderation::{AreaConfig, Coalescing, DimProfiles, E1000Mode, ModerationConfig, Policy};
use offramp_impair::OutOfRange;
use offramp_impair::memory::{MemoryConfig, OverflowPolicy, ReceiveMemory};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use crate::profile::workload::Workload;

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

impl Config {
    /// Converts a profile.
    ///
    /// # Errors
    /// When the configuration of the adapter's memory is invalid.
    pub fn new(profile: &Profile, workload: Workload) -> Result<Self, OutOfRange> {
        let fields = Fields(profile);
        Ok(Self {
            host: fields.host(),
            adapter: fields.adapter(workload)?,
            link: link(profile),
            peer: fields.peer(),
            workload: fields.workload(workload),
        })
    }
}

/// Returns the bus of a profile, and its adapter's read command on PCI.
pub fn bus(profile: &Profile) -> (Bus, Command) {
    let fields = Fields(profile);
    (fields.bus(), fields.section::<EngineConfig>("adapter").read_command)
}

/// Returns the line of a profile.
pub(crate) fn link(profile: &Profile) -> LinkConfig {
    LinkConfig {
        rate_bps: profile.value("link.rate"),
        full_duplex: profile.word("link.duplex") == "full",
        delay: Span(profile.value("link.delay")),
    }
}

struct Fields<'a>(&'a Profile);

impl Fields<'_> {
    /// Reads the parameters of a section, as a run uses them, into the fields of a type.
    fn section<T: DeserializeOwned>(&self, section: &str) -> T {
        let own = |name: &str| name.strip_prefix(section)?.strip_prefix('.').map(str::to_owned);
        let value = |key: &schema::Key| match (key.dimension, self.0.value(key.name)) {
            (Dimension::Choice(["off", "on"]), at) => toml::Value::Boolean(at == 1),
            (Dimension::Choice(words), at) => toml::Value::String(words[at as usize].to_owned()),
            _ if key.is_scaled => toml::Value::Integer(self.cost(key.name).0 as i64),
            (_, value) => toml::Value::Integer(value as i64),
        };
        let table: toml::Table = schema::KEYS.iter().filter_map(|key| Some((own(key.name)?, value(key)))).collect();
        // The types match `parameters.toml`, and tests read them.
        table.try_into().unwrap_or_else(|error| panic!("{section}: {error}"))
    }

    fn time(&self, name: &str) -> Span {
        Span(self.0.value(name))
    }

    /// Reads a limit; 0 stands for no limit.
    fn limit(&self, name: &str) -> usize {
        match self.0.value(name) {
            0 => usize::MAX,
            limit => limit as usize,
        }
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.word(name) == "on"
    }

    /// Reads a time of the processor; the arithmetic of picoseconds serves femtoseconds per byte, too.
    fn cost(&self, name: &str) -> Span {
        self.time(name).scaled_ppm(self.0.value("host.cost_scale"))
    }

    fn host(&self) -> HostConfig {
        let reversed = self.0.word("host.order") == "reversed";
        let is_deferred = self.0.word("host.receive") == "deferred";
        HostConfig {
            costs: self.costs(),
            ack_policy: AckPolicy { mss: self.0.value("workload.mss"), ..self.section("host") },
            receive_in: if is_deferred { ReceiveIn::Deferred { reversed } } else { ReceiveIn::Interrupt },
            poll: PollConfig {
                weight: self.limit("host.poll_weight"),
                budget: self.limit("host.poll_budget"),
                ..self.section("host")
            },
            send: self.host_send(),
            captures: self.is_on("host.capture"),
            ..self.section("host")
        }
    }

    fn costs(&self) -> Costs {
        let (path, miss) = (self.cost("host.checksum_time"), self.cost("host.checksum_miss_time"));
        let receive = (path + miss.scaled_ppm(self.0.value("host.receive_miss"))).0;
        let adapter = self.0.word("adapter.checksum");
        let crypt = self.cost("host.crypt_time").scaled_ppm(self.0.value("workload.encrypted")).0;
        Costs {
            checksum_fs_per_byte: if ["on", "receive"].contains(&adapter) { 0 } else { receive },
            capture_fs_per_byte: if self.is_on("host.capture") { receive } else { 0 },
            send_checksum_fs_per_byte: if ["on", "transmit"].contains(&adapter) { 0 } else { (path + miss).0 },
            crypt_fs_per_byte: if self.0.word("adapter.ipsec") == "host" { crypt } else { 0 },
            ..self.section("host")
        }
    }

    fn host_send(&self) -> SendConfig {
        let (mss, largest) = (self.0.value("workload.mss"), self.0.value("adapter.segment_chunk"));
        SendConfig {
            sender: SenderConfig { mss, window: self.0.value("peer.receive_window"), ..self.section("host") },
            chunk_len: if self.is_on("adapter.lso") { (largest - largest % mss).max(mss) } else { mss },
            buffer: self.0.value("host.send_buffer"),
        }
    }

    fn adapter(&self, workload: Workload) -> Result<AdapterConfig, OutOfRange> {
        Ok(AdapterConfig {
            queues: self.0.value("adapter.queues"),
            memory: self.memory()?,
            moderation: self.moderation(),
            completion_moderation: self.completion_moderation(),
            bus: self.bus(),
            engine: self.engine(workload),
            coalesced_by: match self.0.word("adapter.coalesce") {
                "on" => CoalescedBy::Adapter,
                "host" => CoalescedBy::Host,
                _ => CoalescedBy::Nobody,
            },
            segments_max: self.0.value("adapter.coalesce_segments"),
            gap: self.time("adapter.gap"),
            timer_latency: self.time("adapter.timer_latency"),
        })
    }

    fn engine(&self, workload: Workload) -> EngineConfig {
        // Only protocols encrypt, not raw frames.
        let encrypts = self.0.word("adapter.ipsec") == "adapter" && !workload.is_of_frames();
        EngineConfig {
            crypt_bps: if encrypts { self.0.value("adapter.crypt_rate") } else { 0 },
            encrypted_ppm: self.0.value("workload.encrypted"),
            ..self.section("adapter")
        }
    }

    fn memory(&self) -> Result<MemoryConfig, OutOfRange> {
        let size = |name| self.0.value(name) as usize;
        let policy = match self.0.word("adapter.overflow") {
            "overrun" => OverflowPolicy::Overrun,
            "stop-and-recover" => {
                OverflowPolicy::StopAndRecover { recover_ns: self.time("adapter.recover_time").whole_ns() }
            }
            _ => OverflowPolicy::Drop,
        };
        let memory = match self.0.word("adapter.memory_kind") {
            "dp8390" => MemoryConfig { policy, ..MemoryConfig::dp8390(size("adapter.memory"))? },
            _ => MemoryConfig {
                receive: ReceiveMemory::Unlimited,
                receive_ring_entries: Some(size("adapter.receive_descriptors")),
                transmit_buffers: Some(size("adapter.transmit_descriptors")),
                policy,
            },
        };
        memory.check()?;
        Ok(memory)
    }

    fn moderation(&self) -> ModerationConfig {
        let policy = match self.0.word("adapter.moderation") {
            "fixed-gap" => {
                Policy::FixedGap { max_interrupts_per_second: self.0.value("adapter.interrupt_rate") as u32 }
            }
            "coalescing" => self.coalescing("adapter.interrupt_wait", "adapter.interrupt_frames"),
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
            "coalescing" => self.coalescing("adapter.transmit_wait", "adapter.transmit_frames"),
            _ => return None,
        };
        Some(ModerationConfig { policy, ..ModerationConfig::default() })
    }

    fn coalescing(&self, wait: &str, frames: &str) -> Policy {
        let max_usecs = (self.time(wait).0 / PICOSECONDS_PER_MICROSECOND) as u32;
        Policy::Coalescing(Coalescing { max_usecs, max_packets: self.0.value(frames) as u32 })
    }

    fn bus(&self) -> Bus {
        match self.0.word("bus.kind") {
            "isa" => Bus::Isa(IsaTransfers {
                clock_hz: self.0.value("bus.clock"),
                width: self.0.value("adapter.transfer_width"),
                cycles: self.0.value("adapter.transfer_cycles"),
                // Memory needs no recovery between two accesses.
                recovery_cycles: match self.0.word("adapter.access") {
                    "port" => self.0.value("adapter.recovery_cycles"),
                    _ => 0,
                },
                contention_ppm: self.0.value("adapter.contention"),
            }),
            "pci" => Bus::Pci(self.section("bus")),
            "pci-x" => Bus::PciX(self.section("bus")),
            "pcie" => {
                let iommu = self.is_on("bus.iommu").then(|| self.section("bus"));
                Bus::Pcie(Pcie { iommu, ..self.section("bus") })
            }
            _ => Bus::Master,
        }
    }

    fn peer(&self) -> PeerConfig {
        let (mss, window) = (self.0.value("workload.mss"), self.0.value("host.receive_window"));
        PeerConfig {
            sender: SenderConfig { mss, window, ..self.section("peer") },
            hop_bps: self.0.value("link.hop_rate"),
            ack_policy: AckPolicy { mss, ..self.section("peer") },
            ..self.section("peer")
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
        let of: ExchangeConfig = self.section("workload");
        // Without return traffic, no loop can close.
        let is_paced = is_one_way && of.arrivals == Arrivals::Closed;
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
            arrivals: if is_paced { Arrivals::Periodic } else { of.arrivals },
            service_is_exponential: self.0.word("workload.service") == "exponential",
            ..of
        })
    }

    fn workload(&self, workload: Workload) -> WorkloadConfig {
        WorkloadConfig {
            workload,
            headers_len: HEADERS_LEN + self.0.value("workload.tcp_options"),
            rpc_in_rounds: self.0.word("workload.rpc_issue") == "round",
            exchange: self.exchange(workload),
            seed: self.0.value("workload.seed"),
            ..self.section("workload")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::schema::{self, KEYS};
    use crate::simulation::run;
    use std::collections::BTreeMap;

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
        // This run has no loss, so the timer of requests has no effect.
        let base = Profile::load("windows-lab").unwrap().with("adapter.ipsec", "host").with("workload.time", "200ms");
        let base = base.with("workload.warmup", "5ms").with("workload.rate", "20Mbit/s");
        let base = base.with("host.crypt_time", "5ns/byte").with("host.rpc_time", "5us");
        let base = base.with("workload.request_size", "4000byte").with("workload.arrivals", "poisson");
        let others = "rpc_issue=round role=client frame_size=128byte frame_mix=imix direction=from-host arrivals=bursts \
                      service=exponential request_rate=20000 response_size=100byte encrypted=50% tcp_options=12byte \
                      flows=3 rpc_outstanding=3 rate=30Mbit/s read_size=1KiB";
        let others: BTreeMap<_, _> = others.split(' ').filter_map(|of| of.split_once('=')).collect();
        let mut wrong = Vec::new();
        for (name, workload) in Workload::names() {
            let plain = run(&base, workload).unwrap();
            for key in schema::names_of("workload") {
                let own = key.split_once('.').unwrap().1;
                if ["warmup", "time", "seed", "rpc_timer", "outstanding", "burst"].contains(&own) {
                    continue;
                }
                let half = format!("{}byte", base.value(key) / 2);
                let other = others.get(own).copied().unwrap_or(&half);
                let outcome = run(&base.clone().with(key, other), workload).unwrap();
                if (outcome != plain) != workload.parameters().contains(&key) {
                    wrong.push(format!("{name} {key}={other}"));
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}
