//! The configuration, checked: the daemon, its ports and its switches.

use super::impair::{FaultConfig, MemoryConfig};
use crate::kind::host::Settings;
use crate::kind::{HostConfig, WireConfig};
use crate::schema::{Names, SandboxLevel};
use offramp_adapter::ipsec::{KeyRegistry, Policy, SaChange, SaDirection};
use offramp_adapter::limit::PortLimits;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::switch::UnknownUnicast;
use offramp_offload::caps::Offloads;
use offramp_offload::esp::SaConfig;
use offramp_ports::worker::Polling;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub(crate) daemon: DaemonConfig,
    pub(crate) ports: Vec<PortConfig>,
    pub(crate) switches: Vec<SwitchConfig>,
    /// Key files read by the configuration.
    pub(crate) key_files: Vec<PathBuf>,
}

impl Config {
    /// Returns whether a port has this name.
    pub(crate) fn has_port(&self, name: &str) -> bool {
        self.ports.iter().any(|port| port.name == name)
    }

    /// Returns whether a switch has this name.
    pub(crate) fn has_switch(&self, name: &str) -> bool {
        self.switches.iter().any(|switch| switch.name == name)
    }

    /// Describes the first wire without a far end, as after a removal.
    pub(crate) fn loose_end(&self) -> Option<String> {
        self.ports.iter().find_map(|PortConfig { name, wire, .. }| match wire {
            WireConfig::Switch(switch) if !self.has_switch(switch) => {
                Some(format!("switch \"{switch}\": port \"{name}\" is on it; remove that first"))
            }
            WireConfig::Cable(peer) if !self.has_port(peer) => {
                Some(format!("port \"{peer}\": the cable of port \"{name}\" ends there; remove both together"))
            }
            _ => None,
        })
    }

    /// Removes the names from `names` that are not in this configuration.
    pub(crate) fn retain_own(&self, names: &mut Names) {
        names.ports.retain(|name| self.has_port(name));
        names.switches.retain(|name| self.has_switch(name));
    }

    /// Returns the listening sockets of this process.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &PathBuf> {
        let of_guests = self.ports.iter().filter_map(|port| Some(&port.host.socket.as_ref()?.path));
        self.daemon.sockets().map(|(_, path)| path).chain(of_guests)
    }
}

/// The settings of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The control socket.
    pub control: PathBuf,
    /// Its permission bits.
    pub control_mode: u32,
    /// Its group, by name; the process's own when `None`.
    pub control_group: Option<String>,
    /// The read-only control socket, and its permission bits.
    pub control_read_only: Option<(PathBuf, u32)>,
    /// The address for Prometheus.
    pub metrics: Option<MetricsAddress>,
    /// The user to become when the devices are open.
    pub user: Option<String>,
    /// The directory of the keys' sequence numbers, kept across runs of the daemon.
    pub state_directory: Option<PathBuf>,
    /// The strictness of the sandbox, once the devices are open.
    pub sandbox: SandboxLevel,
}

impl DaemonConfig {
    /// Returns the control sockets, each with its key.
    pub fn control_sockets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let read_only = self.control_read_only.iter().map(|(path, _)| ("daemon.control_read_only", path));
        [("daemon.control", &self.control)].into_iter().chain(read_only)
    }

    /// Returns all its sockets with a file, each with its key.
    pub fn sockets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let metrics = self.metrics.iter().filter_map(|address| match address {
            MetricsAddress::Unix(path) => Some(("daemon.metrics", path)),
            MetricsAddress::Tcp(_) => None,
        });
        self.control_sockets().chain(metrics)
    }
}

/// The address of the metrics server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    Tcp(SocketAddr),
    /// A socket for everybody: it shows, and changes nothing.
    Unix(PathBuf),
}

/// One adapter: a host on one side, a wire on the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    pub name: String,
    pub host: HostConfig,
    pub wire: WireConfig,
    /// IP bytes of a frame.
    pub mtu: usize,
    /// The features allowed by the user.
    pub offloads: Offloads,
    /// When the host is interrupted for what has arrived.
    pub moderation: ModerationConfig,
    /// The rate limits of the host, for sending and receiving.
    pub limits: PortLimits,
    /// Polling time of the port's threads before they sleep, in microseconds; `None`: the host's default.
    pub poll_usecs: Option<u32>,
    /// Rate of the cable in bits per second, both ways alike; `None`: no limit.
    pub bits_per_second: Option<u64>,
    /// The adapter's own memory for packets.
    pub memory: MemoryConfig,
    /// Faults of the adapter, for experiments.
    pub faults: FaultConfig,
    /// Processors of the port's threads: queue pair *i* runs on entry *i*, again from the first where there
    /// are fewer; anywhere when empty.
    pub cpus: Vec<usize>,
    /// Security associations and their policy.
    pub ipsec: IpsecConfig,
    /// The allowed source addresses of the host.
    pub security: PortSecurity,
    /// On a switch: the port reaches only non-isolated ports.
    pub isolated: bool,
}

impl PortConfig {
    /// Returns whether its wire leads to the switch of this name.
    pub fn is_on(&self, switch: &str) -> bool {
        matches!(&self.wire, WireConfig::Switch(name) if name == switch)
    }

    /// Returns the processor of queue pair `queue`; `None`: any.
    pub fn cpu(&self, queue: usize) -> Option<Vec<usize>> {
        let position = queue.checked_rem(self.cpus.len())?;
        Some(vec![self.cpus[position]])
    }

    /// Returns the polling of the port's threads.
    pub fn polling(&self) -> Polling {
        match self.poll_usecs {
            None => self.host.polling,
            Some(0) => Polling::Off,
            Some(usecs) => Polling::Fixed(Duration::from_micros(u64::from(usecs))),
        }
    }

    /// Returns the settings for its host.
    pub fn settings(&self) -> Settings<'_> {
        Settings {
            name: &self.name,
            mtu: self.mtu,
            offloads: self.offloads,
            mac_addresses: &self.security.mac_addresses,
            bits_per_second: self.bits_per_second,
            is_on_cable: matches!(self.wire, WireConfig::Cable(_)),
            interface: self.wire.interface().map(|(_, interface)| interface),
        }
    }
}

/// A learning switch among ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    pub name: String,
    pub mac_entries_max: usize,
    pub age_seconds: u32,
    pub flood_frames_per_second: u32,
    pub unknown_unicast: UnknownUnicast,
    pub forward_reserved: u16,
}

/// The security associations of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsecConfig {
    pub policy: Policy,
    pub associations: Vec<SaEntry>,
}

/// One association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaEntry {
    pub direction: SaDirection,
    pub config: SaConfig,
}

impl SaEntry {
    /// Returns the change to install it. Numbers continue after the last one used with its key.
    pub fn add(&self, keys: &KeyRegistry) -> SaChange {
        let used = keys.last_number(self.direction, &self.config).unwrap_or(0);
        let config = SaConfig { sequence: self.config.sequence.max(used), ..self.config.clone() };
        SaChange::Add { direction: self.direction, config: Box::new(config) }
    }

    /// Returns whether `running` was made from this; it may have continued after a later number.
    pub fn is(&self, running: &SaConfig) -> bool {
        SaConfig { sequence: self.config.sequence, ..running.clone() } == self.config
    }

    /// Returns whether both seal, in a counter mode, with one key.
    pub(super) fn shares_key(&self, other: &Self) -> bool {
        let both_seal = self.direction == SaDirection::Out && other.direction == SaDirection::Out;
        both_seal
            && self.config.suite.is_counter_mode()
            && other.config.suite.is_counter_mode()
            && self.config.encryption_key == other.config.encryption_key
    }
}

impl IpsecConfig {
    /// Returns the changes to install all of it.
    pub fn changes(&self, keys: &KeyRegistry) -> Vec<SaChange> {
        let associations = self.associations.iter().map(|entry| entry.add(keys));
        [SaChange::Policy(self.policy.clone())].into_iter().chain(associations).collect()
    }
}
