//! A TAP interface: the kernel is the host, or the TAP is on the wire. The daemon creates the interface, or attaches to
//! an existing interface that its user owns.

use super::host::{Host, HostAddress, HostTraits, Means, PortKind, Settings, TaskParts, Watch};
use super::wire::{Interface, WireKind};
use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::drain::AnyHost;
use nix::errno::Errno;
use offramp_offload::caps::Offloads;
use offramp_ports::sys::privilege::{Capability, holds};
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{QUEUES_MAX, Tap, TapConfig, TapError};
use offramp_ports::worker::Task;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use toml::{Spanned, Value};

/// Maximum number of frames in each transmit queue of the kernel for a TAP: more than the kernel's largest send window.
/// A TAP drops further frames, while the driver of a network card would stop the queue.
const TAP_TX_QUEUE_LEN: u32 = 8192;
/// Maximum time to wait until another daemon closes its TAP of the same name, and the time between two attempts to open
/// the TAP.
const END_TIME_MAX: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of addresses of a TAP.
pub const ADDRESSES_MAX: usize = 16;
/// Directory with the files of named network namespaces (ip-netns(8)).
const NETNS_DIRECTORY: &str = "/run/netns";

/// The keys of `port.host` for this kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    tap: Spanned<String>,
    existing: Option<bool>,
    namespace: Option<Spanned<String>>,
    address: Option<Spanned<Value>>,
    queue_pairs: Option<Spanned<i64>>,
    mac: Option<Spanned<String>>,
}

/// The configuration of a TAP host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub interface: String,
    /// True to attach to an interface made by another program.
    pub is_existing: bool,
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
        let is_existing = keys.existing.unwrap_or_default();
        let of_created = [
            ("namespace", keys.namespace.as_ref().map(Spanned::span), "start the daemon in it: ip netns exec NAME"),
            ("mac", keys.mac.as_ref().map(Spanned::span), "use `ip link set`"),
            ("address", keys.address.as_ref().map(Spanned::span), "use `ip address add`"),
        ];
        for (key, span, remedy) in of_created {
            if let Some(span) = span.filter(|_| is_existing) {
                let message =
                    format!("port.host.{key}: an existing interface keeps its own; leave the key out, and {remedy}");
                return Err(check.0.wrong(span, message));
            }
        }
        // A name denotes a file in the directory of `ip netns`. An absolute path replaces this directory.
        let namespace = keys.namespace.as_ref().map(|name| Path::new(NETNS_DIRECTORY).join(name.as_ref()));
        let place = namespace.as_ref().map(|file| format!(" in {}", file.display())).unwrap_or_default();
        let addresses = keys
            .address
            .as_ref()
            .map(|written| addresses(written.as_ref(), &place).map_err(|wrong| check.0.wrong(written.span(), wrong)));
        let traits = HostTraits {
            addresses: addresses.transpose()?.unwrap_or_default(),
            queue_pairs: check.queue_pairs(&keys.queue_pairs, QUEUES_MAX)?,
            mac: check.mac(keys.mac.as_ref())?,
            is_steered: true,
            privileged_key: Some("host.tap"),
            made: Some(format!("the interface {interface}{place}")),
            ..HostTraits::default()
        };
        Ok(Self { interface, is_existing, namespace, traits })
    }

    fn open(&self, port: &Settings<'_>, _: Means) -> Result<TapHost, String> {
        if self.is_existing {
            return Ok(TapHost { tap: self.attach(port)?, namespace: None });
        }
        let wanted = TapConfig {
            queues: self.traits.queue_pairs,
            mtu: port.mtu as u32,
            mac: self.traits.mac,
            tx_queue_len: Some(TAP_TX_QUEUE_LEN),
            ..TapConfig::new(&self.interface)
        };
        let tap = match &self.namespace {
            None => open(when_free(&wanted, || Tap::open(&wanted)), port.offloads, &self.traits.addresses)?,
            Some(file) => NetNs::open(file)
                .and_then(|namespace| {
                    namespace.run(|| {
                        let opened = when_free(&wanted, || Tap::open_in(&namespace, &wanted));
                        open(opened, port.offloads, &self.traits.addresses)
                    })
                })
                .map_err(|cause| not_entered(file, &cause))??,
        };
        Ok(TapHost { tap, namespace: self.namespace.clone() })
    }

    fn missing(&self, is_running: bool) -> Option<String> {
        match &self.namespace {
            None if self.is_existing => match Tap::check(&self.interface, self.traits.queue_pairs).err()? {
                TapError::InUse(_) if is_running => None,
                refusal => Some(format!("host.existing: {refusal}")),
            },
            None => taken("host.tap", &self.interface, is_running).or_else(|| {
                let needed = "host.tap: a new TAP needs CAP_NET_ADMIN; run as root or grant it";
                (!holds(Capability::CAP_NET_ADMIN)).then(|| needed.to_owned())
            }),
            Some(file) => match NetNs::open(file) {
                Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => Some(not_entered(file, &cause)),
                Err(cause) => Some(format!("host.namespace: {cause}; \"ip netns add NAME\" makes a namespace")),
                Ok(namespace) => match namespace.run(|| taken("host.tap", &self.interface, is_running)) {
                    Ok(taken) => taken,
                    Err(cause) => Some(not_entered(file, &cause)),
                },
            },
        }
    }

    fn own_interface(&self) -> Option<String> {
        let status = Status { interface: self.interface.clone(), namespace: self.namespace.clone() };
        (!self.is_existing).then(|| status.to_string())
    }

    fn status(host: &TapHost) -> Status {
        Status { interface: host.tap.name().to_owned(), namespace: host.namespace.clone() }
    }
}

impl Config {
    /// Attaches to the existing interface, and warns of interface settings with which frames are lost.
    fn attach(&self, port: &Settings<'_>) -> Result<Tap, String> {
        let interface = &self.interface;
        let attached = Tap::attach(interface, self.traits.queue_pairs);
        let tap = attached.map_err(|cause| format!("host.existing: {cause}"))?;
        tap.offer(port.offloads).map_err(|cause| cause.to_string())?;
        let warn = |warning: &str| log!("offramp: port \"{}\": {warning}", port.name);
        if tap.mtu() as usize != port.mtu {
            let (mtu, own) = (port.mtu, tap.mtu());
            warn(&format!(
                "mtu {mtu} differs from the {own} of interface {interface}; make them equal, or longer frames are lost \
                 (too_long): run `ip link set {interface} mtu {mtu}`, or set mtu = {own}"
            ));
        }
        if link::tun(interface).is_ok_and(|found| found.is_some_and(|found| !found.is_up)) {
            warn(&format!(
                "interface {interface} is down and loses every frame (host_refused); run `ip link set {interface} up`"
            ));
        }
        Ok(tap)
    }
}

/// Opens a TAP. If another TAP has the name, waits for its end: a daemon that was told to end may still send its last
/// frames.
fn when_free(wanted: &TapConfig, open: impl Fn() -> Result<Tap, TapError>) -> Result<Tap, TapError> {
    let until = Instant::now() + END_TIME_MAX;
    // The other TAP can disappear between the failed open and this look.
    let is_free_or_tun = || !matches!(link::tun(&wanted.name), Ok(None));
    loop {
        match open() {
            Err(TapError::NameTaken(_)) if Instant::now() < until && is_free_or_tun() => thread::sleep(LOOK),
            opened => return opened,
        }
    }
}

/// Returns the reason why a TAP cannot have this name in the calling thread's namespace. An existing TAP of this name
/// may belong to a running daemon with the same file.
fn taken(key: &str, interface: &str, is_running: bool) -> Option<String> {
    let other = match link::tun(interface) {
        Ok(Some(_)) if is_running => return None,
        Ok(Some(_)) => "TAP",
        Ok(None) => "interface",
        Err(_) => return None,
    };
    Some(format!("{key}: another {other} has the name \"{interface}\"; choose another name, or delete that {other}"))
}

/// Returns the error for a namespace that cannot be entered.
fn not_entered(file: &Path, cause: &io::Error) -> String {
    let remedy = match cause.kind() {
        io::ErrorKind::PermissionDenied => "; run as root, or start the daemon in the namespace without host.namespace",
        _ => "",
    };
    format!("host.namespace {}: {cause}{remedy}", file.display())
}

/// Parses an address, or an array of addresses. `place` is the namespace of the interface, for messages.
fn addresses(written: &Value, place: &str) -> Result<Vec<HostAddress>, String> {
    let listed = if let Value::Array(listed) = written { listed.as_slice() } else { std::slice::from_ref(written) };
    if listed.len() > ADDRESSES_MAX {
        return Err(format!("port.host.address: {} addresses exceed the maximum of {ADDRESSES_MAX}", listed.len()));
    }
    listed.iter().map(|written| address(written, place)).collect()
}

fn address(written: &Value, place: &str) -> Result<HostAddress, String> {
    let wrong = |fault: &str| {
        format!("port.host.address {written}: {fault}; write ADDRESS/BITS, such as \"198.18.0.1/24\" or \"fd00::1/64\"")
    };
    let parts = written.as_str().and_then(|text| text.split_once('/'));
    let parsed = parts.and_then(|(address, bits)| Some((address.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?)));
    let (address, prefix_len) = parsed.ok_or_else(|| wrong("no address with the bits of its network"))?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    if !(1..=bits_max).contains(&prefix_len) {
        return Err(wrong(&format!("the network has 1 to {bits_max} bits")));
    }
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(wrong("no address of one host"));
    }
    if let IpAddr::V4(v4) = address {
        let host = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
        // A network with a prefix of 31 or 32 bits has no network address and no broadcast address (RFC 3021).
        if prefix_len < 31 && (v4.to_bits() & host == 0 || v4.to_bits() & host == host) {
            return Err(wrong("the address of the network, or its broadcast address"));
        }
    }
    Ok(HostAddress { address, prefix_len, made: format!("the address {address}{place}") })
}

/// Offers the features of a created TAP, sets the TAP's link up in the calling thread's namespace, and sets its
/// addresses. An IPv6 address is usable at once, because the kernel does no duplicate address detection for it.
fn open(opened: Result<Tap, TapError>, offloads: Offloads, addresses: &[HostAddress]) -> Result<Tap, String> {
    let tap = opened.map_err(|cause| cause.to_string())?;
    tap.offer(offloads).map_err(|cause| cause.to_string())?;
    link::set_up(tap.name()).map_err(|cause| cause.to_string())?;
    for host in addresses {
        let added = link::add_address(tap.name(), host.address, host.prefix_len);
        added.map_err(|cause| {
            let is_off = host.address.is_ipv6() && cause.raw_os_error() == Some(Errno::EACCES as i32);
            let remedy = if is_off { "; set the sysctl net.ipv6.conf.default.disable_ipv6 to 0 there" } else { "" };
            format!("host.address: {cause}{remedy}")
        })?;
    }
    Ok(tap)
}

/// A TAP interface as a running host.
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

    fn restore(&self) {
        self.tap.restore();
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

/// The kind `tap` of interfaces on a wire.
pub const WIRE: WireKind = WireKind {
    name: "tap",
    noun: "tap",
    is_made: true,
    open: |interface, mtu| {
        let wanted = TapConfig { mtu: mtu as u32, ..TapConfig::new(interface) };
        Ok(Box::new(open(Tap::open(&wanted), Offloads::all(), &[])?))
    },
    missing: |interface, is_running| taken("wire.tap", interface, is_running),
};

impl Interface for Tap {
    fn switch_port(&self) -> Option<AnyHost> {
        Some(Box::new(self.queue(0)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_tap_is_opened_again_if_another_tap_of_its_name_has_just_disappeared() {
        let tries = Cell::new(0);
        let open = || {
            tries.set(tries.get() + 1);
            let name = String::from("ofr-not-there");
            Err(if tries.get() == 1 { TapError::NameTaken(name) } else { TapError::Missing(name) })
        };
        let outcome = when_free(&TapConfig::new("ofr-not-there"), open);
        assert!(matches!(outcome, Err(TapError::Missing(_))) && tries.get() == 2);
    }
}
