//! Conversion of a profile to the configuration of a run.

use super::{
    AdapterConfig, Arrivals, Carrier, CoalescedBy, Config, Costs, EngineConfig, ExchangeConfig, HostConfig, PeerConfig,
    PollConfig, ReceiveIn, SendConfig, Workload, WorkloadConfig,
};
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
use serde::de::DeserializeOwned;

impl Config {
    /// Converts a profile to the configuration of a run.
    ///
    /// # Errors
    /// Returns an error if the configuration of the adapter's memory is invalid.
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

/// Returns the link of a profile.
pub(crate) fn link(profile: &Profile) -> LinkConfig {
    LinkConfig {
        rate_bps: profile.value("link.rate"),
        full_duplex: profile.word("link.duplex") == "full",
        delay: Span(profile.value("link.delay")),
    }
}

struct Fields<'a>(&'a Profile);

impl Fields<'_> {
    /// Converts the parameters of a section to the fields of `T`. Processor times are scaled.
    fn section<T: DeserializeOwned>(&self, section: &str) -> T {
        let own = |name: &str| name.strip_prefix(section)?.strip_prefix('.').map(str::to_owned);
        let value = |key: &schema::Key| match (key.dimension, self.0.value(key.name)) {
            (Dimension::Choice(["off", "on"]), at) => toml::Value::Boolean(at == 1),
            (Dimension::Choice(words), at) => toml::Value::String(words[at as usize].to_owned()),
            _ if key.is_scaled => toml::Value::Integer(self.cost(key.name).0 as i64),
            (_, value) => toml::Value::Integer(value as i64),
        };
        let table: toml::Table = schema::KEYS.iter().filter_map(|key| Some((own(key.name)?, value(key)))).collect();
        // Never panics: the types match `parameters.toml`, and tests convert every section.
        table.try_into().unwrap_or_else(|error| panic!("{section}: {error}"))
    }

    fn time(&self, name: &str) -> Span {
        Span(self.0.value(name))
    }

    /// Returns the value of a parameter that sets a limit. The value 0 means no limit, and gives `usize::MAX`.
    fn limit(&self, name: &str) -> usize {
        match self.0.value(name) {
            0 => usize::MAX,
            limit => limit as usize,
        }
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.word(name) == "on"
    }

    /// Returns a scaled processor time, in picoseconds or in femtoseconds per byte. The factor `host.cost_scale`
    /// applies to both units alike.
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
        // Raw frames are never encrypted.
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
                // Memory accesses need no recovery cycles.
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
        // Traffic without responses cannot be closed-loop.
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
        // The run has no loss, so the retransmission timer of requests has no effect.
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
