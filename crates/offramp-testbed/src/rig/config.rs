//! The configuration of a rig.

use super::settings::{self, PlacementForm};
use crate::error::TestbedError;
use crate::esp::{EspBy, EspLink, PROGRAM_INTERFACE};
use crate::host::HostSettings;
use offramp_adapter::config::MTU_DEFAULT;
use offramp_adapter::moderation::ModerationConfig;
use offramp_impair::fault::FaultConfig;
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::Offloads;
use offramp_ports::sys::cpu;
use offramp_ports::worker::Polling;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// IPv4 addresses of the two hosts, from the range reserved for benchmarks (RFC 2544 C.2.2).
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Network prefix length of both hosts' addresses, in bits.
pub(crate) const PREFIX_LEN: u8 = 24;
/// Ethernet addresses of the two hosts, from the locally administered range.
pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0x18, 1], [2, 0, 0, 0, 0x18, 2]];
/// Name of the network interface in each host's namespace.
pub const INTERFACE: &str = "ofr0";

/// Maximum number of segments in an unlimited super-frame (Linux `GSO_LEGACY_MAX_SEGS`).
pub(crate) const GSO_SEGS: u32 = u16::MAX as u32;

/// The distribution of the adapters' work over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threads {
    /// For each queue pair's cable, one thread runs the adapters at both ends. A frame stays in one processor's cache.
    Shared,
    /// One thread per adapter.
    PerAdapter,
    /// One thread per direction. Each thread segments in the adapter at one end of the cable, and coalesces in the
    /// adapter at the other end. A frame stays in the cache of one processor, and acknowledgements do not wait for data
    /// of the reverse direction.
    PerDirection,
}

/// The path between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// Two adapters and a cable.
    Adapters(Threads),
    /// A relay between the TAPs, without adapters.
    Relay,
}

/// The processors used by hosts and adapters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "PlacementForm")]
pub struct Placement {
    /// Processors of the hosts' programs and of the hosts' receive work.
    pub host_cpus: Vec<usize>,
    /// Processors of the adapters.
    pub adapter_cpus: Vec<usize>,
    /// Processors of the server's host, if only the server's host is measured. If `server_cpus` is set, `host_cpus` are
    /// the processors of the client's host only, and may overlap `adapter_cpus`.
    pub server_cpus: Option<Vec<usize>>,
}

impl From<PlacementForm> for Placement {
    fn from(form: PlacementForm) -> Self {
        match form {
            PlacementForm::Apart => Self::apart(),
            PlacementForm::ServerAlone => Self::server_alone(),
            PlacementForm::Free => Self::free(),
        }
    }
}

impl Placement {
    /// Returns a placement with the adapters on the last processor and the hosts on the other processors. If the
    /// machine has one processor, hosts and adapters share this processor.
    pub fn apart() -> Self {
        let mut host_cpus = cpu::online();
        let adapter_cpus = if host_cpus.len() > 1 { host_cpus.pop().into_iter().collect() } else { host_cpus.clone() };
        Self { host_cpus, adapter_cpus, server_cpus: None }
    }

    /// Returns a placement with the server's host on the first processor, and the client's host and the adapters on the
    /// last processor. If the machine has one processor, hosts and adapters share this processor.
    pub fn server_alone() -> Self {
        let online = cpu::online();
        let [first, last] = [online.first(), online.last()].map(|cpu| cpu.copied().into_iter().collect::<Vec<_>>());
        Self { host_cpus: last.clone(), adapter_cpus: last, server_cpus: Some(first) }
    }

    /// Returns `true` if no other host or adapter shares the processors of the server's host.
    pub fn has_server_alone(&self) -> bool {
        let is_others = |cpu: &usize| self.host_cpus.contains(cpu) || self.adapter_cpus.contains(cpu);
        self.server_cpus.as_ref().is_some_and(|cpus| !cpus.iter().any(is_others))
    }

    /// Returns a placement without restrictions: every thread may run on every processor.
    pub fn free() -> Self {
        Self { host_cpus: cpu::online(), adapter_cpus: cpu::online(), server_cpus: None }
    }

    /// Returns the processors of the client's host if `is_client`, else those of the server's host.
    pub fn cpus_of(&self, is_client: bool) -> &[usize] {
        self.server_cpus.as_deref().filter(|_| !is_client).unwrap_or(&self.host_cpus)
    }

    /// Returns whether hosts and adapters share no processor.
    pub fn is_apart(&self) -> bool {
        self.host_cpus.iter().all(|cpu| !self.adapter_cpus.contains(cpu))
    }
}

/// Impairments of host B's adapter, as of a card with little memory on a slow bus, or of a faulty card. The default has
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Card {
    /// The card's packet memory.
    #[serde(deserialize_with = "settings::memory")]
    pub memory: MemoryConfig,
    /// The card's bus to the host, and its faults.
    #[serde(deserialize_with = "settings::faults")]
    pub faults: FaultConfig,
}

impl Card {
    /// Returns whether the card has neither a memory limit nor faults.
    pub fn is_none(&self) -> bool {
        self.memory.is_none() && self.faults.is_none()
    }
}

/// The configuration of a rig.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RigConfig {
    /// Maximum number of IP bytes in a frame, for both hosts and the wire.
    pub mtu: usize,
    /// Link rate in bits per second; `None` (in a file: `"unlimited"`) sets no limit.
    #[serde(deserialize_with = "settings::rate")]
    pub rate_bps: Option<u64>,
    /// Offloads of both adapters.
    #[serde(deserialize_with = "settings::offloads")]
    pub offloads: Offloads,
    /// Interrupt moderation of both adapters.
    #[serde(deserialize_with = "settings::moderation")]
    pub moderation: ModerationConfig,
    /// True if the hosts segment in software (Linux' GSO) when the adapter does not segment.
    pub host_gso: bool,
    /// True if a guest coalesces in software (Linux' GRO). For a host with a TAP, [`HostSettings::gro`] enables GRO.
    pub host_gro: bool,
    /// Settings of the hosts.
    pub host: HostSettings,
    /// Host of the client, 0 or 1; the server runs on the other host.
    pub client: usize,
    /// Number of queue pairs of each adapter. Each pair has its own cable and an equal share of the rate.
    pub queues: u16,
    /// Path between the hosts.
    pub between: Between,
    /// Processors of hosts and adapters.
    pub placement: Placement,
    /// Time for which the adapters' threads poll before they sleep.
    #[serde(deserialize_with = "settings::polling")]
    pub polling: Polling,
    /// Impairments of host B's adapter.
    pub card: Card,
    /// Encryption of the hosts' packets on the wire; `None` sends the packets unencrypted.
    #[serde(deserialize_with = "settings::esp")]
    pub esp: Option<EspLink>,
}

impl RigConfig {
    /// Returns whether a program on each host encrypts and decrypts.
    pub(super) fn has_esp_programs(&self) -> bool {
        self.esp.is_some_and(|link| link.by == EspBy::Host)
    }

    /// Returns the name of the interface that carries the hosts' TCP connections.
    pub(super) fn tcp_interface(&self) -> &'static str {
        if self.has_esp_programs() { PROGRAM_INTERFACE } else { INTERFACE }
    }

    /// Returns the MTU of the interface that carries the hosts' TCP connections, in IP bytes.
    pub(super) fn tcp_mtu(&self) -> Result<usize, TestbedError> {
        Ok(self.esp.map(|link| link.clear_mtu(self.mtu)).transpose()?.unwrap_or(self.mtu))
    }
}

impl Default for RigConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            rate_bps: None,
            offloads: Offloads::RATIFIED,
            moderation: ModerationConfig::default(),
            host_gso: true,
            host_gro: false,
            host: HostSettings::default(),
            client: 0,
            queues: 1,
            between: Between::Adapters(Threads::Shared),
            placement: Placement::apart(),
            polling: Polling::Off,
            card: Card::default(),
            esp: None,
        }
    }
}
