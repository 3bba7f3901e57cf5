//! The daemon's configuration file, checked.
//!
//! Every error names the file, the line, the key and what to write instead.

mod card;
mod file;
mod ipsec;
mod place;
mod security;
mod share;
#[cfg(test)]
mod tests;

pub use ipsec::{IpsecConfig, SaEntry};
pub use place::{ConfigError, unknown};

use crate::control::{Names, SandboxLevel};
use crate::moderation::{RX_USECS_MAX, fixed_gap};
use file::{Host, Key, Wire};
use offramp_adapter::cable::RATE_BPS;
use offramp_adapter::config::{MTU_DEFAULT, MTU_MAX, MTU_MIN};
use offramp_adapter::limit::PortLimits;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::switch::UnknownUnicast;
use offramp_impair::fault::FaultConfig;
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::{NAMES, Offloads};
use offramp_ports::sys::{cpu, link};
use offramp_ports::tap::QUEUES_MAX;
use offramp_ports::vhost_user::{ControlQueue, MEMORY_BYTES_MAX, Mode, RingFeatures};
use offramp_ports::worker::Polling;
use place::Place;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Where the control socket is unless the file says otherwise.
pub const CONTROL_DEFAULT: &str = "/run/offramp/control.sock";
/// Permissions of a socket: the daemon's user alone.
const SOCKET_MODE_DEFAULT: u32 = 0o600;
/// Of one that only shows: anyone who may enter its directory.
const READ_ONLY_MODE_DEFAULT: u32 = 0o666;
/// All permission bits that a socket has use for.
const SOCKET_MODE_MAX: u32 = 0o777;
/// Numbers of users; the largest one stands for none (chown(2)).
const UIDS: RangeInclusive<i64> = 0..=u32::MAX as i64 - 1;
/// Longest path of a Unix socket in bytes (unix(7): 108 with the zero byte), less the room for the
/// name under which the control socket is made before it is put in its place.
const SOCKET_PATH_LEN_MAX: usize = 96;
/// Directory of named network namespaces (ip-netns(8)).
const NETNS_DIRECTORY: &str = "/run/netns";
/// Longest name of a port or a switch in bytes: it stands in tables.
const NAME_LEN_MAX: usize = 32;
/// Longest time that a thread may look for more: beyond it a thread that never sleeps is meant.
const POLL_USECS_MAX: i64 = 1_000_000;
/// Smallest and largest virtqueue (virtio 1.3 2.7, 2.8: 32768 entries), and the default.
const QUEUE_SIZE: RangeInclusive<i64> = 64..=32_768;
const QUEUE_SIZE_DEFAULT: i64 = 1024;
/// Memory of a guest in bytes: from what boots nothing to all that a process can map.
const MEMORY_BYTES: RangeInclusive<i64> = 1 << 20..=1 << 47;
/// Rates of a cable that may be given, bits per second.
const BITS_PER_SECOND: RangeInclusive<i64> = *RATE_BPS.start() as i64..=*RATE_BPS.end() as i64;
/// Most addresses that a switch learns, and the default: as a Linux bridge in order of magnitude.
const MAC_ENTRIES: RangeInclusive<i64> = 1..=1_048_576;
const MAC_ENTRIES_DEFAULT: i64 = 4096;
/// Time after which a switch forgets an address in seconds (IEEE 802.1Q 8.8.3: 10 to 1,000,000, 300).
const AGE_SECONDS: RangeInclusive<i64> = 10..=1_000_000;
const AGE_SECONDS_DEFAULT: i64 = 300;
/// Frames that a switch floods from one port in a second, and the default.
const FLOOD_FRAMES: RangeInclusive<i64> = 0..=1_000_000_000;
const FLOOD_FRAMES_DEFAULT: i64 = 10_000;

/// Names that stand for several features.
pub const FEATURE_GROUPS: [(&str, Offloads); 3] =
    [("lso", Offloads::LSO), ("rsc", Offloads::RSC), ("all", Offloads::all())];

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub daemon: DaemonConfig,
    pub ports: Vec<PortConfig>,
    pub switches: Vec<SwitchConfig>,
    /// Files from which keys were read.
    pub key_files: Vec<PathBuf>,
}

/// What concerns the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The control socket.
    pub control: PathBuf,
    /// Its permission bits.
    pub control_mode: u32,
    /// Its group, by name; the process's own when `None`.
    pub control_group: Option<String>,
    /// A socket for those who may only look, and its permission bits.
    pub control_read_only: Option<(PathBuf, u32)>,
    /// Where counters are served to Prometheus.
    pub metrics: Option<MetricsAddress>,
    /// The user to become when the devices are open.
    pub user: Option<String>,
    /// Where the sequence numbers of keys outlive the daemon.
    pub state_directory: Option<PathBuf>,
    /// What the sandbox takes from the process, once its devices are open.
    pub sandbox: SandboxLevel,
}

impl DaemonConfig {
    /// The control sockets, each with its key.
    pub fn control_sockets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let read_only = self.control_read_only.iter().map(|(path, _)| ("daemon.control_read_only", path));
        [("daemon.control", &self.control)].into_iter().chain(read_only)
    }

    /// All its sockets that are files, each with its key.
    pub fn sockets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let metrics = self.metrics.iter().filter_map(|address| match address {
            MetricsAddress::Unix(path) => Some(("daemon.metrics", path)),
            MetricsAddress::Tcp(_) => None,
        });
        self.control_sockets().chain(metrics)
    }
}

/// Where counters are served.
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
    /// What the user allows.
    pub offloads: Offloads,
    /// When the host is interrupted for what has arrived.
    pub moderation: ModerationConfig,
    /// The rates at which the host may send and receive.
    pub limits: PortLimits,
    /// How long the port's threads look for more before they sleep, in microseconds; `None`: as the host asks for.
    pub poll_usecs: Option<u32>,
    /// Bits per second of the cable, both ways alike; `None` for one that is never the limit.
    pub bits_per_second: Option<u64>,
    /// The adapter's own memory for packets.
    pub memory: MemoryConfig,
    /// What is wrong with the adapter, for experiments.
    pub faults: FaultConfig,
    /// Processors of the port's threads: queue pair *i* runs on entry *i*, again from the first where there
    /// are fewer; anywhere when empty.
    pub cpus: Vec<usize>,
    /// Security associations and their policy.
    pub ipsec: IpsecConfig,
    /// The source addresses that the host may use.
    pub security: PortSecurity,
    /// On a switch: the port reaches only ports that are not isolated.
    pub isolated: bool,
}

/// Who is on the host's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostConfig {
    Tap(TapHost),
    VhostUser(VhostUserHost),
}

/// The kernel, behind a TAP interface that the daemon makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapHost {
    pub interface: String,
    pub queue_pairs: u16,
    /// File of the namespace that the interface is made in; the daemon's own when `None`.
    pub namespace: Option<PathBuf>,
    pub mac: Option<[u8; 6]>,
}

/// A guest, behind a vhost-user socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserHost {
    pub socket: PathBuf,
    pub mode: Mode,
    pub queue_pairs: u16,
    pub mac: Option<[u8; 6]>,
    pub control_queue: ControlQueue,
    pub rings: RingFeatures,
    pub queue_size_max: u16,
    /// Most bytes of the guest's memory.
    pub memory_bytes_max: u64,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// Its group, by name; the process's own when `None`.
    pub socket_group: Option<String>,
    /// The only user that may be the frontend.
    pub allowed_uid: Option<u32>,
}

/// How long a guest's thread may look for more before it sleeps, while frames come soon after one another: about
/// what it costs to sleep, be kicked and wake up.
const GUEST_POLL_TIME_MAX: Duration = Duration::from_micros(50);

impl PortConfig {
    /// Whether its wire leads to the switch of that name.
    pub fn is_on(&self, switch: &str) -> bool {
        matches!(&self.wire, WireConfig::Switch(name) if name == switch)
    }

    /// How the port's threads poll: a guest's kicks are costly, a TAP's readiness is not.
    pub fn polling(&self) -> Polling {
        match (self.poll_usecs, &self.host) {
            (Some(0), _) | (None, HostConfig::Tap(_)) => Polling::Off,
            (Some(usecs), _) => Polling::Fixed(Duration::from_micros(u64::from(usecs))),
            (None, HostConfig::VhostUser(_)) => Polling::Adaptive(GUEST_POLL_TIME_MAX),
        }
    }
}

impl HostConfig {
    /// Queue pairs of the host.
    pub fn queue_pairs(&self) -> u16 {
        match self {
            Self::Tap(tap) => tap.queue_pairs,
            Self::VhostUser(vhost) => vhost.queue_pairs,
        }
    }

    /// Ethernet address of the host, if the file says one.
    fn mac(&self) -> Option<[u8; 6]> {
        match self {
            Self::Tap(tap) => tap.mac,
            Self::VhostUser(vhost) => vhost.mac,
        }
    }
}

/// What is on the wire side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireConfig {
    /// The port of that name, at the other end of a cable.
    Cable(String),
    /// A TAP interface that the daemon makes.
    Tap(String),
    /// An interface that exists.
    Packet(String),
    /// The switch of that name.
    Switch(String),
}

/// A learning switch among ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    pub name: String,
    pub mac_entries_max: usize,
    pub age_seconds: u32,
    pub flood_frames_per_second: u32,
    pub unknown_unicast: UnknownUnicast,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &read(file)?)
    }

    /// As [`Config::load`], for a daemon that also has the ports and switches of `others`, which clients added.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_beside(file: &Path, others: &Self) -> Result<Self, ConfigError> {
        let text = read(file)?;
        // The file alone must be right: the daemon will be started again with it.
        Self::parse(file, &text)?;
        Self::parse_beside(file, &text, others, None)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_beside(file, text, &Self::default(), None)
    }

    /// Checks ports and switches that a client adds to a daemon that runs `self`; errors call the text `source`. Only they
    /// are in what is returned.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse_added(&self, source: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_beside(source, text, self, Some(&self.daemon))
    }

    /// `client_of`: the text is of a client of that daemon.
    fn parse_beside(
        file: &Path,
        text: &str,
        others: &Self,
        client_of: Option<&DaemonConfig>,
    ) -> Result<Self, ConfigError> {
        let check = Check(Place::new(file, text));
        let written: file::File = toml::from_str(text).map_err(|error| check.0.refused(&error))?;
        if written.port.is_empty() && written.switch.is_empty() {
            return Err(check
                .0
                .wrong(0..0, "no port; write at least one [[port]], or a [[switch]] for ports that are added later"));
        }
        let daemon = match client_of {
            Some(daemon) => {
                check.is_of_a_client(&written)?;
                daemon.clone()
            }
            None => check.daemon(written.daemon.as_ref().map_or(&file::Daemon::default(), Spanned::as_ref))?,
        };
        let mut switches = others.switches.clone();
        for switch in &written.switch {
            switches.push(check.switch(switch)?);
        }
        let has_faults = written.faults.as_ref().is_some_and(|faults| *faults.as_ref());
        let directory = file.parent().unwrap_or(Path::new(""));
        let mut ports = others.ports.clone();
        for port in &written.port {
            ports.push(check.port(port, has_faults, directory, &daemon)?);
        }
        let names = written.port.iter().map(|port| &port.as_ref().name);
        check.names_are_unique("port", names, others.ports.iter().map(|port| &*port.name))?;
        let names = written.switch.iter().map(|switch| &switch.as_ref().name);
        check.names_are_unique("switch", names, others.switches.iter().map(|switch| &*switch.name))?;
        for (port, written) in ports[others.ports.len()..].iter().zip(&written.port) {
            check.wire_leads_somewhere(port, written, &ports, &switches)?;
        }
        check.ports_share_no_key(&ports, &written.port)?;
        check.ports_share_no_address(&ports, &written.port)?;
        check.nothing_is_made_twice(&daemon, &ports, &written.port)?;
        check.switches_have_room(&ports, &switches, &written.switch)?;
        let keys = written.port.iter().flat_map(|port| &port.as_ref().sa);
        let key_files = keys.filter_map(|sa| Some(directory.join(sa.as_ref().key_file.as_ref()?))).collect();
        let (ports, switches) = (ports.split_off(others.ports.len()), switches.split_off(others.switches.len()));
        Ok(Self { daemon, ports, switches, key_files })
    }

    /// Whether there is a port of that name.
    pub fn has_port(&self, name: &str) -> bool {
        self.ports.iter().any(|port| port.name == name)
    }

    /// Whether there is a switch of that name.
    pub fn has_switch(&self, name: &str) -> bool {
        self.switches.iter().any(|switch| switch.name == name)
    }

    /// A wire that leads nowhere, in words, as after a removal.
    pub fn loose_end(&self) -> Option<String> {
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

    /// Takes out of `names` what is not here.
    pub fn retain_own(&self, names: &mut Names) {
        names.ports.retain(|name| self.has_port(name));
        names.switches.retain(|name| self.has_switch(name));
    }

    /// The sockets that this process listens on.
    pub fn sockets(&self) -> impl Iterator<Item = &PathBuf> {
        let of_guests = self.ports.iter().filter_map(|port| match &port.host {
            HostConfig::VhostUser(host) if host.mode == Mode::Server => Some(&host.socket),
            HostConfig::VhostUser(_) | HostConfig::Tap(_) => None,
        });
        self.daemon.sockets().map(|(_, path)| path).chain(of_guests)
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|cause| ConfigError::Read { file: file.to_owned(), cause })
}

/// The bits of a feature or a group of features.
///
/// # Errors
/// One line with the nearest known name.
pub fn feature(name: &str) -> Result<Offloads, String> {
    let group = FEATURE_GROUPS.iter().find(|(group, _)| *group == name).map(|(_, offloads)| *offloads);
    let known = NAMES.iter().map(|known| known.name).chain(FEATURE_GROUPS.iter().map(|(group, _)| *group));
    Offloads::by_name(name).or(group).ok_or_else(|| unknown("feature", name, known))
}

/// The checks, each with the place to name.
struct Check<'a>(Place<'a>);

impl Check<'_> {
    /// Refuses what only the daemon's own file may say.
    fn is_of_a_client(&self, written: &file::File) -> Result<(), ConfigError> {
        if let Some(daemon) = &written.daemon {
            return Err(self.0.wrong(daemon.span(), "[daemon] belongs to the daemon's own file; leave it out here"));
        }
        match written.port.iter().flat_map(|port| &port.as_ref().sa).next() {
            None => Ok(()),
            Some(sa) => {
                let message = "[[port.sa]] reads a key file, which no client may have the daemon do; leave it out here, and \
                               install the association by \"offramp sa add\"";
                Err(self.0.wrong(sa.span(), message))
            }
        }
    }

    fn daemon(&self, written: &file::Daemon) -> Result<DaemonConfig, ConfigError> {
        let control = match &written.control {
            Some(path) => self.socket("daemon.control", path)?,
            None => PathBuf::from(CONTROL_DEFAULT),
        };
        let levels = [("full", SandboxLevel::Full), ("log", SandboxLevel::Log), ("off", SandboxLevel::Off)];
        let text = |key: &Key<String>| key.as_ref().map(|value| value.as_ref().clone());
        Ok(DaemonConfig {
            control,
            control_mode: self.permissions("daemon.control_mode", &written.control_mode, SOCKET_MODE_DEFAULT)?,
            control_group: text(&written.control_group),
            control_read_only: self.control_read_only(written)?,
            metrics: self.metrics(&written.metrics)?,
            user: text(&written.user),
            state_directory: self.state_directory(&written.state_directory)?,
            sandbox: self.one_of("daemon", "sandbox", &written.sandbox, &levels)?.unwrap_or_default(),
        })
    }

    fn control_read_only(&self, written: &file::Daemon) -> Result<Option<(PathBuf, u32)>, ConfigError> {
        let key = "daemon.control_read_only_mode";
        let mode = self.permissions(key, &written.control_read_only_mode, READ_ONLY_MODE_DEFAULT)?;
        match (&written.control_read_only, &written.control_read_only_mode) {
            (Some(path), _) => Ok(Some((self.socket("daemon.control_read_only", path)?, mode))),
            (None, Some(mode)) => {
                Err(self.0.wrong(mode.span(), format!("{key} belongs to daemon.control_read_only; write that, too")))
            }
            (None, None) => Ok(None),
        }
    }

    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn metrics(&self, written: &Key<String>) -> Result<Option<MetricsAddress>, ConfigError> {
        let Some(text) = written else { return Ok(None) };
        if text.as_ref().starts_with('/') {
            return self.socket("daemon.metrics", text).map(|path| Some(MetricsAddress::Unix(path)));
        }
        text.as_ref().parse().map(|address| Some(MetricsAddress::Tcp(address))).map_err(|_| {
            let message = format!(
                "daemon.metrics {:?}: use an address with a port, as \"127.0.0.1:9099\" or \"[::1]:9099\", or an absolute path",
                text.as_ref()
            );
            self.0.wrong(text.span(), message)
        })
    }

    /// The service manager names one, unless the file does.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn state_directory(&self, written: &Key<String>) -> Result<Option<PathBuf>, ConfigError> {
        match written {
            None => Ok(state_directory_of_service()),
            Some(text) if Path::new(text.as_ref()).is_absolute() => Ok(Some(text.as_ref().into())),
            Some(text) => {
                let message = format!("daemon.state_directory \"{}\": use an absolute path", text.as_ref());
                Err(self.0.wrong(text.span(), message))
            }
        }
    }

    /// Permission bits of a socket.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn permissions(&self, key: &str, written: &Key<i64>, default: u32) -> Result<u32, ConfigError> {
        match written {
            None => Ok(default),
            Some(mode) => {
                let bits = u32::try_from(*mode.as_ref()).ok().filter(|bits| *bits <= SOCKET_MODE_MAX);
                bits.ok_or_else(|| {
                    let number = *mode.as_ref();
                    let given = if number < 0 { number.to_string() } else { format!("{number:#o}") };
                    let message = format!("{key} {given} is out of range; use 0o000 to 0o777, such as 0o660");
                    self.0.wrong(mode.span(), message)
                })
            }
        }
    }

    fn switch(&self, written: &Spanned<file::Switch>) -> Result<SwitchConfig, ConfigError> {
        let name = self.name("switch", written.as_ref().name.as_ref(), written)?;
        let written = written.as_ref();
        let number =
            |key, value: &Key<i64>, range, default| self.number(&format!("switch.{key}"), value, range, default);
        Ok(SwitchConfig {
            name,
            mac_entries_max: number("mac_entries_max", &written.mac_entries_max, MAC_ENTRIES, MAC_ENTRIES_DEFAULT)?
                as usize,
            age_seconds: number("age_seconds", &written.age_seconds, AGE_SECONDS, AGE_SECONDS_DEFAULT)? as u32,
            flood_frames_per_second: number(
                "flood_frames_per_second",
                &written.flood_frames_per_second,
                FLOOD_FRAMES,
                FLOOD_FRAMES_DEFAULT,
            )? as u32,
            unknown_unicast: self
                .one_of("switch", "unknown_unicast", &written.unknown_unicast, &security::UNKNOWN_UNICAST)?
                .unwrap_or_default(),
        })
    }

    fn port(
        &self,
        whole: &Spanned<file::Port>,
        has_faults: bool,
        directory: &Path,
        daemon: &DaemonConfig,
    ) -> Result<PortConfig, ConfigError> {
        let written = whole.as_ref();
        let name = self.name("port", written.name.as_ref(), whole)?;
        let missing = |key: &str, what: &str| {
            self.0.wrong(whole.span(), format!("port \"{name}\" has no {key}; write {key} = {{ {what} }}"))
        };
        let host = written.host.as_ref().ok_or_else(|| missing("host", "tap = \"NAME\""))?;
        let wire = written.wire.as_ref().ok_or_else(|| missing("wire", "cable = \"PORT\""))?;
        let mtu = self.number("port.mtu", &written.mtu, MTU_MIN as i64..=MTU_MAX as i64, MTU_DEFAULT as i64)?;
        let poll_usecs = self.number("port.poll_usecs", &written.poll_usecs, 0..=POLL_USECS_MAX, 0)?;
        let (host, line) = (self.host(host)?, self.wire(wire)?);
        Ok(PortConfig {
            ipsec: self.ipsec(&name, written, directory, &host, daemon)?,
            security: self.security(written, host.mac())?,
            isolated: self.isolated(written, &line)?,
            host,
            wire: line,
            mtu: mtu as usize,
            offloads: self.features(&written.features)?,
            moderation: self.moderation(written)?,
            limits: written.limit.as_ref().map(|limit| limit.as_ref().0).unwrap_or_default(),
            poll_usecs: written.poll_usecs.is_some().then_some(poll_usecs as u32),
            bits_per_second: self.bits_per_second(wire.as_ref())?,
            memory: self.memory(written.memory.as_ref(), mtu as usize)?,
            faults: self.faults(written.faults.as_ref(), has_faults)?,
            cpus: self.cpus(written.cpus.as_ref())?,
            name,
        })
    }

    fn moderation(&self, written: &file::Port) -> Result<ModerationConfig, ConfigError> {
        let rx_usecs = self.number("port.rx_usecs", &written.rx_usecs, 0..=RX_USECS_MAX, 0)?;
        match (&written.moderation, &written.rx_usecs) {
            (Some(moderation), None) => Ok(moderation.as_ref().config()),
            (Some(moderation), Some(_)) => {
                let message = "port.moderation and port.rx_usecs both say when the host is interrupted; leave one out";
                Err(self.0.wrong(moderation.span(), message))
            }
            (None, Some(_)) => Ok(fixed_gap(rx_usecs as u32)),
            (None, None) if can_moderate(written) => Ok(ModerationConfig::adaptive()),
            (None, None) => Ok(ModerationConfig::default()),
        }
    }

    fn features(&self, written: &BTreeMap<Spanned<String>, Spanned<bool>>) -> Result<Offloads, ConfigError> {
        // In the order in which they are written: `all = false` before `tso4 = true` leaves that one.
        let mut ordered: Vec<_> = written.iter().collect();
        ordered.sort_by_key(|(name, _)| name.span().start);
        ordered.into_iter().try_fold(Offloads::all(), |allowed, (name, on)| {
            let offloads = feature(name.as_ref()).map_err(|message| self.0.wrong(name.span(), message))?;
            Ok(if *on.as_ref() { allowed | offloads } else { allowed - offloads })
        })
    }

    fn cpus(&self, written: Option<&Spanned<Vec<Spanned<i64>>>>) -> Result<Vec<usize>, ConfigError> {
        let Some(written) = written else { return Ok(Vec::new()) };
        let online = cpu::online();
        let checked = written.as_ref().iter().map(|number| {
            let known = usize::try_from(*number.as_ref()).ok().filter(|cpu| online.contains(cpu));
            let message = || format!("port.cpus: no processor {}; there are {online:?}", number.as_ref());
            known.ok_or_else(|| self.0.wrong(number.span(), message()))
        });
        checked.collect()
    }

    fn host(&self, written: &Spanned<Host>) -> Result<HostConfig, ConfigError> {
        let host = written.as_ref();
        match (&host.tap, &host.vhost_user) {
            (Some(name), None) => self.tap_host(name, host),
            (None, Some(socket)) => self.vhost_user_host(socket, host),
            _ => {
                let message = "port.host: write either tap = \"INTERFACE\" or vhost_user = \"SOCKET\"";
                Err(self.0.wrong(written.span(), message))
            }
        }
    }

    fn tap_host(&self, name: &Spanned<String>, host: &Host) -> Result<HostConfig, ConfigError> {
        self.belongs_not(
            "vhost_user",
            [
                ("mode", host.mode.as_ref().map(Spanned::span)),
                ("control_queue", host.control_queue.as_ref().map(Spanned::span)),
                ("packed", host.packed.as_ref().map(Spanned::span)),
                ("indirect", host.indirect.as_ref().map(Spanned::span)),
                ("event_idx", host.event_idx.as_ref().map(Spanned::span)),
                ("in_order", host.in_order.as_ref().map(Spanned::span)),
                ("mrg_rxbuf", host.mrg_rxbuf.as_ref().map(Spanned::span)),
                ("queue_size_max", host.queue_size_max.as_ref().map(Spanned::span)),
                ("memory_bytes_max", host.memory_bytes_max.as_ref().map(Spanned::span)),
                ("socket_mode", host.socket_mode.as_ref().map(Spanned::span)),
                ("socket_group", host.socket_group.as_ref().map(Spanned::span)),
                ("allowed_uid", host.allowed_uid.as_ref().map(Spanned::span)),
            ],
        )?;
        Ok(HostConfig::Tap(TapHost {
            interface: self.interface("port.host.tap", name)?,
            queue_pairs: self.queue_pairs(host, QUEUES_MAX)?,
            // A name stands for a file of `ip netns`; an absolute path replaces the directory.
            namespace: host.namespace.as_ref().map(|name| Path::new(NETNS_DIRECTORY).join(name.as_ref())),
            mac: self.mac(host.mac.as_ref())?,
        }))
    }

    fn vhost_user_host(&self, socket: &Spanned<String>, host: &Host) -> Result<HostConfig, ConfigError> {
        self.belongs_not("tap", [("namespace", host.namespace.as_ref().map(Spanned::span))])?;
        let modes = [("server", Mode::Server), ("client", Mode::Client)];
        let switches = [
            (RingFeatures::PACKED, &host.packed),
            (RingFeatures::INDIRECT, &host.indirect),
            (RingFeatures::EVENT_IDX, &host.event_idx),
            (RingFeatures::IN_ORDER, &host.in_order),
            (RingFeatures::MRG_RXBUF, &host.mrg_rxbuf),
        ];
        let off = switches.into_iter().filter(|(_, key)| key.as_ref().is_some_and(|on| !*on.as_ref()));
        let queue_size_max =
            self.number("port.host.queue_size_max", &host.queue_size_max, QUEUE_SIZE, QUEUE_SIZE_DEFAULT)?;
        let memory_bytes_max =
            self.number("port.host.memory_bytes_max", &host.memory_bytes_max, MEMORY_BYTES, MEMORY_BYTES_MAX as i64)?;
        let mode = self.one_of("port.host", "mode", &host.mode, &modes)?.unwrap_or_default();
        let of_a_server = [host.socket_mode.as_ref().map(Spanned::span), host.socket_group.as_ref().map(Spanned::span)];
        if let (Mode::Client, Some(at)) = (mode, of_a_server.into_iter().flatten().next()) {
            let message =
                "port.host.socket_mode and socket_group belong to mode \"server\": who listens makes the socket";
            return Err(self.0.wrong(at, message));
        }
        let allowed_uid = self.number("port.host.allowed_uid", &host.allowed_uid, UIDS, 0)?;
        let control_queue = self.control_queue(host)?;
        Ok(HostConfig::VhostUser(VhostUserHost {
            socket: self.socket("port.host.vhost_user", socket)?,
            mode,
            socket_mode: self.permissions("port.host.socket_mode", &host.socket_mode, SOCKET_MODE_DEFAULT)?,
            socket_group: host.socket_group.as_ref().map(|group| group.as_ref().clone()),
            allowed_uid: host.allowed_uid.is_some().then_some(allowed_uid as u32),
            queue_pairs: self.queue_pairs(host, control_queue.queue_pairs_max())?,
            mac: self.mac(host.mac.as_ref())?,
            control_queue,
            rings: off.fold(RingFeatures::all(), |rings, (ring, _)| rings - ring),
            queue_size_max: queue_size_max as u16,
            memory_bytes_max: memory_bytes_max as u64,
        }))
    }

    fn control_queue(&self, host: &Host) -> Result<ControlQueue, ConfigError> {
        let known =
            [("frontend", ControlQueue::Frontend), ("backend", ControlQueue::Backend), ("none", ControlQueue::None)];
        let chosen = self.one_of("port.host", "control_queue", &host.control_queue, &known)?.unwrap_or_default();
        match &host.queue_pairs {
            Some(pairs) if chosen == ControlQueue::None && *pairs.as_ref() > 1 => {
                let message = "port.host.queue_pairs: a guest without a control queue uses one; write 1";
                Err(self.0.wrong(pairs.span(), message))
            }
            _ => Ok(chosen),
        }
    }

    /// What the word at `table`.`key` stands for, if there is one.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn one_of<T: Copy>(
        &self,
        table: &str,
        key: &str,
        written: &Key<String>,
        known: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let Some(written) = written else { return Ok(None) };
        let found = known.iter().find(|(name, _)| *name == written.as_ref().as_str());
        let wrong = || {
            let message = unknown(key, written.as_ref(), known.iter().map(|(name, _)| *name));
            self.0.wrong(written.span(), format!("{table}.{message}"))
        };
        found.map(|(_, meant)| Some(*meant)).ok_or_else(wrong)
    }

    /// Refuses keys that only another kind of host has.
    fn belongs_not<const N: usize>(
        &self,
        kind: &str,
        keys: [(&str, Option<std::ops::Range<usize>>); N],
    ) -> Result<(), ConfigError> {
        match keys.into_iter().find_map(|(key, at)| Some((key, at?))) {
            None => Ok(()),
            Some((key, at)) => {
                Err(self.0.wrong(at, format!("port.host.{key} belongs to a host with {kind}; leave it out here")))
            }
        }
    }

    fn queue_pairs(&self, host: &Host, most: u16) -> Result<u16, ConfigError> {
        Ok(self.number("port.host.queue_pairs", &host.queue_pairs, 1..=i64::from(most), 1)? as u16)
    }

    fn mac(&self, written: Option<&Spanned<String>>) -> Result<Option<[u8; 6]>, ConfigError> {
        written.map(|written| self.address_of_host("port.host.mac", written)).transpose()
    }

    fn address_of_host(&self, key: &str, written: &Spanned<String>) -> Result<[u8; 6], ConfigError> {
        let text = written.as_ref();
        parse_mac(text).ok_or_else(|| {
            let message = format!(
                "{key} \"{text}\" is no address of one host; write six bytes in hexadecimal, such as \
                 \"02:00:00:00:00:01\", the first of them even"
            );
            self.0.wrong(written.span(), message)
        })
    }

    fn wire(&self, written: &Spanned<Wire>) -> Result<WireConfig, ConfigError> {
        let wire = written.as_ref();
        let name = |key: &Spanned<String>| key.as_ref().clone();
        match (&wire.cable, &wire.tap, &wire.packet, &wire.switch) {
            (Some(port), None, None, None) => Ok(WireConfig::Cable(name(port))),
            (None, Some(tap), None, None) => Ok(WireConfig::Tap(self.interface("port.wire.tap", tap)?)),
            (None, None, Some(device), None) => Ok(WireConfig::Packet(self.interface("port.wire.packet", device)?)),
            (None, None, None, Some(switch)) => Ok(WireConfig::Switch(name(switch))),
            _ => Err(self.0.wrong(written.span(), "port.wire: write exactly one of cable, tap, packet, switch")),
        }
    }

    fn bits_per_second(&self, wire: &Wire) -> Result<Option<u64>, ConfigError> {
        let rate = self.number("port.wire.bits_per_second", &wire.bits_per_second, BITS_PER_SECOND, 0)?;
        match &wire.bits_per_second {
            Some(written) if wire.cable.is_none() => {
                Err(self.0.wrong(written.span(), "port.wire.bits_per_second belongs to a cable; leave it out here"))
            }
            written => Ok(written.is_some().then_some(rate as u64)),
        }
    }

    fn wire_leads_somewhere(
        &self,
        port: &PortConfig,
        written: &Spanned<file::Port>,
        ports: &[PortConfig],
        switches: &[SwitchConfig],
    ) -> Result<(), ConfigError> {
        let at = written.as_ref().wire.as_ref().map_or(written.span(), Spanned::span);
        let wrong = |message: String| Err(self.0.wrong(at, message));
        let has_impairments = !port.memory.is_none() || !port.faults.is_none();
        if has_impairments && !matches!(port.wire, WireConfig::Cable(_)) {
            return wrong("port.wire: memory and faults need a cable; leave them out".to_owned());
        }
        match &port.wire {
            WireConfig::Tap(_) | WireConfig::Packet(_) => Ok(()),
            WireConfig::Switch(name) if switches.iter().any(|switch| &switch.name == name) => Ok(()),
            WireConfig::Switch(name) => {
                let known = switches.iter().map(|switch| switch.name.as_str());
                wrong(format!("port.wire: {}", unknown("switch", name, known)))
            }
            WireConfig::Cable(name) => match cable_peer(port, name, ports) {
                Ok(()) => Ok(()),
                Err(message) => wrong(format!("port.wire: {message}")),
            },
        }
    }

    fn interface(&self, key: &str, written: &Spanned<String>) -> Result<String, ConfigError> {
        let name = written.as_ref();
        if link::is_valid_name(name) {
            return Ok(name.clone());
        }
        let message = format!(
            "{key} \"{name}\" is no interface name; use 1 to {} bytes without spaces, '/', ':' or '%'",
            link::NAME_LEN_MAX
        );
        Err(self.0.wrong(written.span(), message))
    }

    fn socket(&self, key: &str, written: &Spanned<String>) -> Result<PathBuf, ConfigError> {
        let path = PathBuf::from(written.as_ref());
        if path.is_absolute() && path.file_name().is_some() && path.as_os_str().len() <= SOCKET_PATH_LEN_MAX {
            return Ok(path);
        }
        let message =
            format!("{key} \"{}\": use an absolute path of at most {SOCKET_PATH_LEN_MAX} bytes", path.display());
        Err(self.0.wrong(written.span(), message))
    }

    fn name<T>(&self, what: &str, key: Option<&Spanned<String>>, whole: &Spanned<T>) -> Result<String, ConfigError> {
        let Some(written) = key else {
            return Err(self.0.wrong(whole.span(), format!("a {what} has no name; write name = \"…\"")));
        };
        let name = written.as_ref();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(fits) {
            return Ok(name.clone());
        }
        let message = format!("{what}.name \"{name}\": use 1 to {NAME_LEN_MAX} of the characters A-Z a-z 0-9 . _ -");
        Err(self.0.wrong(written.span(), message))
    }

    fn names_are_unique<'b>(
        &self,
        what: &str,
        names: impl Iterator<Item = &'b Key<String>>,
        others: impl Iterator<Item = &'b str>,
    ) -> Result<(), ConfigError> {
        let mut seen: Vec<&str> = others.collect();
        for name in names.flatten() {
            if seen.contains(&name.as_ref().as_str()) {
                let message = format!("{what}.name \"{}\" is taken by another {what}", name.as_ref());
                return Err(self.0.wrong(name.span(), message));
            }
            seen.push(name.as_ref());
        }
        Ok(())
    }

    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn number(
        &self,
        key: &str,
        written: &Key<i64>,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64, ConfigError> {
        match written {
            None => Ok(default),
            Some(value) if range.contains(value.as_ref()) => Ok(*value.as_ref()),
            Some(value) => {
                let (least, most) = range.into_inner();
                let message = format!("{key} {} is out of range; use {least} to {most}", value.as_ref());
                Err(self.0.wrong(value.span(), message))
            }
        }
    }
}

/// The first directory of systemd's `StateDirectory=` (systemd.exec(5)).
fn state_directory_of_service() -> Option<PathBuf> {
    let listed = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&listed).find(|path| path.is_absolute())
}

/// Whether a cable has its other end, and both ends fit.
fn cable_peer(port: &PortConfig, peer: &str, ports: &[PortConfig]) -> Result<(), String> {
    let name = &port.name;
    if name == peer {
        return Err(format!("the cable of port \"{name}\" ends at the port itself; name another port"));
    }
    let Some(other) = ports.iter().find(|other| other.name == peer) else {
        return Err(unknown("port", peer, ports.iter().map(|other| other.name.as_str()).filter(|other| other != name)));
    };
    if other.wire != WireConfig::Cable(name.clone()) {
        return Err(format!(
            "the cable of port \"{name}\" ends at port \"{peer}\", which must say wire = {{ cable = \"{name}\" }}"
        ));
    }
    if other.mtu != port.mtu {
        return Err(format!("mtu {} here and {} at the other end of the cable; make them equal", port.mtu, other.mtu));
    }
    if other.bits_per_second != port.bits_per_second {
        let rate = |port: &PortConfig| port.bits_per_second.map_or("no limit".to_owned(), |rate| rate.to_string());
        let (here, there) = (rate(port), rate(other));
        return Err(format!("bits_per_second {here} here and {there} at the other end of the cable; make them equal"));
    }
    let (here, there) = (port.host.queue_pairs(), other.host.queue_pairs());
    if here != there {
        return Err(format!("queue_pairs {here} here and {there} at the other end of the cable; make them equal"));
    }
    Ok(())
}

/// Six bytes in hexadecimal with colons between them, of one host: no group's address, not all zero.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let parts: Vec<&str> = text.split(':').collect();
    let byte = |part: &&str| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None };
    let bytes: [u8; 6] = parts.iter().map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()?;
    (bytes[0] & 1 == 0 && bytes != [0; 6]).then_some(bytes)
}

/// Whether frames can wait for the host: on a cable; or the host sees them before it is interrupted.
fn can_moderate(port: &file::Port) -> bool {
    let is_on_cable = port.wire.as_ref().is_some_and(|wire| wire.as_ref().cable.is_some());
    is_on_cable || port.host.as_ref().is_some_and(|host| host.as_ref().vhost_user.is_some())
}
