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

/// Addresses of the two hosts, of the range reserved for measuring (RFC 2544 C.2.2).
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Bits of the network part of both.
pub(crate) const PREFIX_LEN: u8 = 24;
/// Ethernet addresses of the two hosts, of the locally administered range.
pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0x18, 1], [2, 0, 0, 0, 0x18, 2]];
/// Name of the interface in each namespace.
pub const INTERFACE: &str = "ofr0";

/// Segments of an unlimited super-frame (Linux `GSO_LEGACY_MAX_SEGS`).
pub(crate) const GSO_SEGS: u32 = u16::MAX as u32;

/// The threads of the adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threads {
    /// One thread for both ends of each queue pair's cable: a frame stays in one processor's cache.
    Shared,
    /// One thread per adapter.
    PerAdapter,
    /// One thread per direction: each segments at one end and coalesces at the other. A frame stays in one
    /// processor's cache, and acknowledgements need not wait for data.
    PerDirection,
}

/// The connection between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// Two adapters and a cable.
    Adapters(Threads),
    /// The bare relay.
    Relay,
}

/// The processors of hosts and adapters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "PlacementForm")]
pub struct Placement {
    /// Processors of the hosts' programs and of their receive work.
    pub host_cpus: Vec<usize>,
    /// Processors of the adapters.
    pub adapter_cpus: Vec<usize>,
    /// Processors of the serving host, if only that host is measured. `host_cpus` are then those of the client's host;
    /// the adapters may share them.
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
    /// Returns the last processor for the adapters, the others for the hosts; one for both if there is no other.
    pub fn apart() -> Self {
        let mut host_cpus = cpu::online();
        let adapter_cpus = if host_cpus.len() > 1 { host_cpus.pop().into_iter().collect() } else { host_cpus.clone() };
        Self { host_cpus, adapter_cpus, server_cpus: None }
    }

    /// Returns the first processor for the serving host alone, the last one for the other host and the adapters. One
    /// serves all if there is no other.
    pub fn server_alone() -> Self {
        let online = cpu::online();
        let [first, last] = [online.first(), online.last()].map(|cpu| cpu.copied().into_iter().collect::<Vec<_>>());
        Self { host_cpus: last.clone(), adapter_cpus: last, server_cpus: Some(first) }
    }

    /// Returns whether the serving host has processors of its own.
    pub fn has_server_alone(&self) -> bool {
        let is_others = |cpu: &usize| self.host_cpus.contains(cpu) || self.adapter_cpus.contains(cpu);
        self.server_cpus.as_ref().is_some_and(|cpus| !cpus.iter().any(is_others))
    }

    /// Returns all processors for all threads; the scheduler chooses.
    pub fn free() -> Self {
        Self { host_cpus: cpu::online(), adapter_cpus: cpu::online(), server_cpus: None }
    }

    /// Returns the processors of the client's host, or of the server's.
    pub fn cpus_of(&self, is_client: bool) -> &[usize] {
        self.server_cpus.as_deref().filter(|_| !is_client).unwrap_or(&self.host_cpus)
    }

    /// Returns whether hosts and adapters share no processor.
    pub fn is_apart(&self) -> bool {
        self.host_cpus.iter().all(|cpu| !self.adapter_cpus.contains(cpu))
    }
}

/// Extra properties of host B's adapter: a card with little memory on a slow bus, or one with faults. By default it is
/// neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Card {
    /// Its packet memory.
    #[serde(deserialize_with = "settings::memory")]
    pub memory: MemoryConfig,
    /// Its bus to the host, and its faults.
    #[serde(deserialize_with = "settings::faults")]
    pub faults: FaultConfig,
}

impl Card {
    /// Returns whether there are none.
    pub fn is_none(&self) -> bool {
        self.memory.is_none() && self.faults.is_none()
    }
}

/// The configuration of a rig.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RigConfig {
    /// IP bytes of a frame, of both hosts and the wire.
    pub mtu: usize,
    /// Link rate in bits per second; `None`: no limit, `"unlimited"` in a file.
    #[serde(deserialize_with = "settings::rate")]
    pub rate_bps: Option<u64>,
    /// The offloads of both adapters.
    #[serde(deserialize_with = "settings::offloads")]
    pub offloads: Offloads,
    /// The interrupt moderation of both adapters.
    #[serde(deserialize_with = "settings::moderation")]
    pub moderation: ModerationConfig,
    /// The hosts segment in software (Linux' own GSO) if the adapter does not.
    pub host_gso: bool,
    /// A guest coalesces in software (Linux' own GRO). Linux never coalesces frames from a TAP.
    pub host_gro: bool,
    /// The settings of the hosts.
    pub host: HostSettings,
    /// The host of the client, 0 or 1; the other one is the server's.
    pub client: usize,
    /// Queue pairs of each adapter, each with its own cable and its share of the rate.
    pub queues: u16,
    /// The connection between the hosts.
    pub between: Between,
    /// The processors of hosts and adapters.
    pub placement: Placement,
    /// The poll time of the adapters' threads before they sleep.
    #[serde(deserialize_with = "settings::polling")]
    pub polling: Polling,
    /// Extra properties of host B's adapter.
    pub card: Card,
    /// The encryption of the hosts' packets on the wire; `None`: they are clear.
    #[serde(deserialize_with = "settings::esp")]
    pub esp: Option<EspLink>,
}

impl RigConfig {
    /// Returns whether a program of each host seals and opens.
    pub(super) fn has_esp_programs(&self) -> bool {
        self.esp.is_some_and(|link| link.by == EspBy::Host)
    }

    /// Returns the interface of the hosts' TCP.
    pub(super) fn tcp_interface(&self) -> &'static str {
        if self.has_esp_programs() { PROGRAM_INTERFACE } else { INTERFACE }
    }

    /// Returns the IP bytes of a frame of the hosts' TCP.
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
