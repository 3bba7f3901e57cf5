//! A TAP interface created by the daemon: the kernel is the host, or the TAP is on the wire.

use super::host::{Host, HostTraits, Means, PortKind, Settings, TaskParts, Watch};
use super::wire::{Interface, WireKind};
use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::drain::AnyHost;
use offramp_offload::caps::Offloads;
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{QUEUES_MAX, Tap, TapConfig, TapError};
use offramp_ports::worker::Task;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Maximum number of frames in each transmit queue of a TAP's kernel: more than the kernel's largest send window. A TAP
/// drops further frames, while the driver of a network card would stop the queue.
const TAP_TX_QUEUE_LEN: u32 = 8192;
/// Directory with the files of named network namespaces (ip-netns(8)).
const NETNS_DIRECTORY: &str = "/run/netns";

/// The keys of `port.host` for this kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    tap: Spanned<String>,
    namespace: Option<Spanned<String>>,
    queue_pairs: Option<Spanned<i64>>,
    mac: Option<Spanned<String>>,
}

/// The configuration of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub interface: String,
    /// File of the interface's network namespace; `None` for the daemon's own namespace.
    pub namespace: Option<PathBuf>,
    pub traits: HostTraits,
}

impl PortKind for Config {
    type Keys = Keys;
    type Host = TapHost;
    type Status = Status;
    const EXAMPLE: &str = "tap = \"INTERFACE\"";

    fn check(check: &Check<'_>, keys: &Keys) -> Result<Self, ConfigError> {
        let interface = check.interface("port.host.tap", &keys.tap)?;
        // A name denotes a file in the directory of `ip netns`. An absolute path replaces this directory.
        let namespace = keys.namespace.as_ref().map(|name| Path::new(NETNS_DIRECTORY).join(name.as_ref()));
        let place = namespace.iter().map(|file| format!(" in {}", file.display()));
        let traits = HostTraits {
            queue_pairs: check.queue_pairs(&keys.queue_pairs, QUEUES_MAX)?,
            mac: check.mac(keys.mac.as_ref())?,
            is_steered: true,
            privileged_key: Some("host.tap"),
            made: Some([format!("the interface {interface}")].into_iter().chain(place).collect()),
            ..HostTraits::default()
        };
        Ok(Self { interface, namespace, traits })
    }

    fn open(&self, port: &Settings<'_>, _: Means) -> Result<TapHost, String> {
        let wanted = TapConfig {
            queues: self.traits.queue_pairs,
            mtu: port.mtu as u32,
            mac: self.traits.mac,
            tx_queue_len: Some(TAP_TX_QUEUE_LEN),
            ..TapConfig::new(&self.interface)
        };
        let tap = match &self.namespace {
            None => open(Tap::open(&wanted), port.offloads)?,
            Some(file) => NetNs::open(file)
                .and_then(|namespace| namespace.run(|| open(Tap::open_in(&namespace, &wanted), port.offloads)))
                .map_err(|cause| format!("host.namespace {}: {cause}", file.display()))??,
        };
        Ok(TapHost { tap, namespace: self.namespace.clone() })
    }

    fn status(host: &TapHost) -> Status {
        Status { interface: host.tap.name().to_owned(), namespace: host.namespace.clone() }
    }
}

/// Offers the features of an opened TAP, and sets the TAP's link up in the calling thread's namespace.
fn open(opened: Result<Tap, TapError>, offloads: Offloads) -> Result<Tap, String> {
    let tap = opened.map_err(|cause| cause.to_string())?;
    tap.offer(offloads).map_err(|cause| cause.to_string())?;
    link::set_up(tap.name()).map_err(|cause| cause.to_string())?;
    Ok(tap)
}

/// The interface as a running host.
#[derive(Debug)]
pub struct TapHost {
    tap: Tap,
    namespace: Option<PathBuf>,
}

impl Host for TapHost {
    fn supported(&self) -> Offloads {
        self.tap.supported()
    }

    /// The kernel accepts every offered feature at once.
    fn negotiated(&self) -> Offloads {
        self.tap.offered()
    }

    fn offer(&self, offloads: Offloads) -> Result<(), String> {
        self.tap.offer(offloads).map(drop).map_err(|error| error.to_string())
    }

    fn set_link_on(&self, is_on: bool) -> Result<(), String> {
        self.tap.set_carrier(is_on).map_err(|error| error.to_string())
    }

    fn cable_task(&self, parts: TaskParts<'_>) -> Option<Box<dyn Task>> {
        let queue = self.tap.queue(parts.queue)?;
        Some(parts.task(queue))
    }

    fn switch_port(&self, watch: Watch<'_>) -> Option<AnyHost> {
        Some(watch.port(self.tap.port()))
    }
}

/// The status of a TAP interface.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The name of the interface.
    pub interface: String,
    /// The file of the interface's namespace; `None` for the daemon's own namespace.
    pub namespace: Option<PathBuf>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tap {}", self.interface)?;
        self.namespace.iter().try_for_each(|file| write!(f, " in {}", file.display()))
    }
}

/// The kind of interface on a wire.
pub const WIRE: WireKind = WireKind {
    name: "tap",
    noun: "tap",
    is_made: true,
    open: |interface, mtu| {
        let wanted = TapConfig { mtu: mtu as u32, ..TapConfig::new(interface) };
        Ok(Box::new(open(Tap::open(&wanted), Offloads::all())?))
    },
};

impl Interface for Tap {
    fn switch_port(&self) -> Option<AnyHost> {
        Some(Box::new(self.queue(0)?))
    }
}
