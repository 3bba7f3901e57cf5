//! The checked configuration: the daemon, its ports and its switches.

use super::impair::{FaultConfig, MemoryConfig};
use crate::kind::host::Settings;
use crate::kind::{HostConfig, WireConfig};
use crate::schema::{Names, SandboxLevel};
use offramp_adapter::ipsec::{KeyRegistry, Policy, SaChange, SaDirection};
use offramp_adapter::limit::PortLimits;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::switch::{LinkProtocols, UnknownUnicast};
use offramp_offload::caps::Offloads;
use offramp_offload::esp::SaConfig;
use offramp_ports::worker::Polling;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub(crate) daemon: DaemonConfig,
    /// The ports, shared with the previous configuration and the next one.
    pub(crate) ports: Vec<Arc<PortConfig>>,
    pub(crate) switches: Vec<SwitchConfig>,
    /// Key files read for the configuration.
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

    /// Returns the message for the first wire whose far end is missing, for example after a removal. Returns `None` if
    /// no far end is missing.
    pub(crate) fn loose_end(&self) -> Option<String> {
        self.ports.iter().find_map(|port| match (&port.name, &port.wire) {
            (name, WireConfig::Switch(switch)) if !self.has_switch(switch) => {
                Some(format!("switch \"{switch}\": port \"{name}\" is on it; remove that first"))
            }
            (name, WireConfig::Cable(peer)) if !self.has_port(peer) => {
                Some(format!("port \"{peer}\": the cable of port \"{name}\" ends there; remove both together"))
            }
            _ => None,
        })
    }

    /// Returns the ports and the switches of `target` whose names this configuration does not contain.
    pub(crate) fn lacks(&self, target: &Self) -> (Vec<Arc<PortConfig>>, Vec<SwitchConfig>) {
        let names: HashSet<&str> = self.ports.iter().map(|port| &*port.name).collect();
        let ports = target.ports.iter().filter(|port| !names.contains(&*port.name));
        let switches = target.switches.iter().filter(|switch| !self.has_switch(&switch.name));
        (ports.cloned().collect(), switches.cloned().collect())
    }

    /// Removes from `names` the names that this configuration does not contain.
    pub(crate) fn retain_own(&self, names: &mut Names) {
        let ports: HashSet<&str> = self.ports.iter().map(|port| &*port.name).collect();
        names.ports.retain(|name| ports.contains(&**name));
        names.switches.retain(|name| self.has_switch(name));
    }

    /// Returns the paths of the sockets at which this process listens.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &PathBuf> {
        let of_guests = self.ports.iter().filter_map(|port| Some(&port.host.socket.as_ref()?.path));
        self.daemon.sockets().map(|(_, path)| path).chain(of_guests)
    }
}

/// The settings of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The path of the control socket.
    pub control: PathBuf,
    /// The permission bits of the control socket.
    pub control_mode: u32,
    /// The group of the control socket, by name; `None` for the process's group.
    pub control_group: Option<String>,
    /// The path of the read-only control socket, and its permission bits.
    pub control_read_only: Option<(PathBuf, u32)>,
    /// The address of the metrics server for Prometheus.
    pub metrics: Option<MetricsAddress>,
    /// The name of the user that the daemon becomes after it has opened its devices.
    pub user: Option<String>,
    /// The directory for the keys' sequence numbers, kept across restarts of the daemon.
    pub state_directory: Option<PathBuf>,
    /// The level of the sandbox, which is entered after the devices are open.
    pub sandbox: SandboxLevel,
}

impl DaemonConfig {
    /// Returns the directory of the control socket. Relative paths of guests' sockets start there.
    pub fn directory(&self) -> &Path {
        self.control.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the paths of the control sockets, each with the configuration key that sets the path.
    pub fn control_sockets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let read_only = self.control_read_only.iter().map(|(path, _)| ("daemon.control_read_only", path));
        [("daemon.control", &self.control)].into_iter().chain(read_only)
    }

    /// Returns the paths of all sockets of the daemon, each with the configuration key that sets the path.
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
    /// The path of a Unix socket. Every user may connect to it, because the socket only shows counters.
    Unix(PathBuf),
}

/// A port: one adapter with a host and a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    pub name: String,
    pub host: HostConfig,
    pub wire: WireConfig,
    /// Maximum number of IP bytes in a frame.
    pub mtu: usize,
    /// Features allowed by the user.
    pub offloads: Offloads,
    /// Interrupt moderation of the host.
    pub moderation: ModerationConfig,
    /// Rate limits of the host, for sending and receiving.
    pub limits: PortLimits,
    /// Time for which the port's threads poll before they sleep, in microseconds; `None` for the host's default.
    pub poll_usecs: Option<u32>,
    /// Rate of the cable in bits per second, the same in both directions; `None` if unlimited.
    pub bits_per_second: Option<u64>,
    /// Settings of the adapter's packet memory.
    pub memory: MemoryConfig,
    /// Injected faults of the adapter, for experiments.
    pub faults: FaultConfig,
    /// Processors of the port's threads: queue pair *i* runs on entry *i*, modulo the length of the list. If the list
    /// is empty, the threads run on any processor.
    pub cpus: Vec<usize>,
    /// The port's security associations and IPsec policy.
    pub ipsec: IpsecConfig,
    /// Allowed source addresses of the host.
    pub security: PortSecurity,
    /// True if the port is isolated on its switch: it then reaches only non-isolated ports.
    pub isolated: bool,
}

impl PortConfig {
    /// Returns whether the port is on the switch with this name.
    pub fn is_on(&self, switch: &str) -> bool {
        matches!(&self.wire, WireConfig::Switch(name) if name == switch)
    }

    /// Returns the interfaces that the kernel deletes at the end of the port.
    pub fn own_interfaces(&self) -> impl Iterator<Item = String> {
        let of_wire = self.wire.interface().filter(|(kind, _)| kind.is_made).map(|_| self.wire.status().to_string());
        self.host.own_interface().into_iter().chain(of_wire)
    }

    /// Returns the processor of queue pair `queue`; `None` for any processor.
    pub fn cpu(&self, queue: usize) -> Option<Vec<usize>> {
        let position = queue.checked_rem(self.cpus.len())?;
        Some(vec![self.cpus[position]])
    }

    /// Returns the polling mode of the port's threads.
    pub fn polling(&self) -> Polling {
        match self.poll_usecs {
            None => self.host.polling,
            Some(0) => Polling::Off,
            Some(usecs) => Polling::Fixed(Duration::from_micros(u64::from(usecs))),
        }
    }

    /// Returns the port's settings on which its host depends.
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
    pub forward: LinkProtocols,
}

/// The IPsec policy and the security associations of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsecConfig {
    pub policy: Policy,
    pub associations: Vec<SaEntry>,
}

/// A security association from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaEntry {
    pub direction: SaDirection,
    pub config: SaConfig,
}

impl SaEntry {
    /// Returns the change that installs the association. The association's sequence numbers continue after the last
    /// number used with the association's key.
    pub fn add(&self, keys: &KeyRegistry) -> SaChange {
        let used = keys.last_number(self.direction, &self.config).unwrap_or(0);
        let config = SaConfig { sequence: self.config.sequence.max(used), ..self.config.clone() };
        SaChange::Add { direction: self.direction, config: Box::new(config) }
    }

    /// Returns whether `running` was created from this entry. The sequence number is not compared: the association may
    /// have started after numbers that were already used with its key.
    pub fn is(&self, running: &SaConfig) -> bool {
        SaConfig { sequence: self.config.sequence, ..running.clone() } == self.config
    }

    /// Returns whether both associations seal with the same key in a counter mode.
    pub(super) fn shares_key(&self, other: &Self) -> bool {
        let both_seal = self.direction == SaDirection::Out && other.direction == SaDirection::Out;
        both_seal
            && self.config.suite.is_counter_mode()
            && other.config.suite.is_counter_mode()
            && self.config.encryption_key == other.config.encryption_key
    }
}

impl IpsecConfig {
    /// Returns the changes that install the policy and all associations.
    pub fn changes(&self, keys: &KeyRegistry) -> Vec<SaChange> {
        let associations = self.associations.iter().map(|entry| entry.add(keys));
        [SaChange::Policy(self.policy.clone())].into_iter().chain(associations).collect()
    }
}
