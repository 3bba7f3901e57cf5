//! Checks that no two ports use the same interface, socket or address.

use super::check::Check;
use super::place::ConfigError;
use super::types::{DaemonConfig, PortConfig, SwitchConfig};
use crate::kind::WireConfig;
use crate::schema::file::{self, Key};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use toml::Spanned;

/// Returns the ports of the file, each with its index in `ports` and its table in the file. In `ports`, the ports of
/// the file come last, after the ports of clients.
pub(super) fn last<'a>(
    ports: &'a [Arc<PortConfig>],
    written: &'a [Spanned<file::Port>],
) -> impl Iterator<Item = (usize, (&'a PortConfig, &'a Spanned<file::Port>))> {
    let first = ports.len() - written.len();
    (first..).zip(ports[first..].iter().map(|port| &**port).zip(written))
}

/// An interface, a socket or an address that a port creates.
#[derive(PartialEq)]
enum Made<'a> {
    Socket(&'a Path),
    /// Any other resource, as a phrase for messages.
    Other(Cow<'a, str>),
}

impl fmt::Display for Made<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "the socket {}", path.display()),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// Returns the interfaces, sockets and addresses created by a port, each with its position in the file.
fn made<'a>(
    port: &'a PortConfig,
    written: Option<&Spanned<file::Port>>,
) -> impl Iterator<Item = (Made<'a>, Range<usize>)> {
    let place = |written: &Spanned<file::Port>| {
        (place_of(&written.as_ref().host, written), place_of(&written.as_ref().wire, written))
    };
    let (host, wire) = written.map(place).unwrap_or_default();
    let of_wire = port.wire.interface().filter(|(kind, _)| kind.is_made);
    let of_wire = of_wire.map(|(_, interface)| (Made::Other(format!("the interface {interface}").into()), wire));
    let words = |made: &'a String| Made::Other(made.into());
    let socket = || port.host.socket.as_ref().map(|socket| Made::Socket(&socket.path));
    let of_host = port.host.made.as_ref().map(words).or_else(socket).into_iter();
    let of_host = of_host.chain(port.host.addresses.iter().map(move |address| words(&address.made)));
    of_host.map(move |made| (made, host.clone())).chain(of_wire)
}

#[allow(clippy::ref_option, reason = "a key as it stands in the file")]
fn place_of<T>(key: &Key<T>, whole: &Spanned<file::Port>) -> Range<usize> {
    key.as_ref().map_or(whole.span(), Spanned::span)
}

impl Check<'_> {
    /// Refuses a second port that creates the same interface, socket or address. Without this check, the start of the
    /// daemon would report the wrong port as faulty.
    pub(super) fn nothing_is_made_twice(
        &self,
        daemon: &DaemonConfig,
        ports: &[Arc<PortConfig>],
        written: &[Spanned<file::Port>],
    ) -> Result<(), ConfigError> {
        for (at, (key, path)) in daemon.sockets().enumerate() {
            if let Some((other, _)) = daemon.sockets().take(at).find(|(_, before)| *before == path) {
                let message = format!("{key} {} is {other} already; choose another", path.display());
                return Err(self.0.wrong(0..0, message));
            }
        }
        let of_daemon = |made: &Made<'_>| {
            let (key, _) = daemon.sockets().find(|(_, path)| Made::Socket(path) == *made)?;
            Some(if key == "daemon.metrics" {
                "the daemon's socket for metrics"
            } else {
                "the daemon's control socket"
            })
        };
        // The ports that are not from this file were already checked.
        let others = ports[..ports.len() - written.len()].iter();
        let mut all: Vec<_> = others.flat_map(|port| made(port, None).map(|(made, _)| (made, &port.name))).collect();
        for (_, (port, written)) in last(ports, written) {
            for (made, place) in made(port, Some(written)) {
                let of_port = || {
                    all.iter().find(|(known, _)| *known == made).map(|(_, other)| format!("that of port \"{other}\""))
                };
                if let Some(other) = of_daemon(&made).map(str::to_owned).or_else(of_port) {
                    let message = format!("port \"{}\": {made} is {other} already; choose another", port.name);
                    return Err(self.0.wrong(place, message));
                }
                all.push((made, &port.name));
            }
        }
        Ok(())
    }

    /// Refuses a switch whose table has no room for one address per port. Such a switch would learn no address on any
    /// port, and would flood every frame.
    pub(super) fn switches_have_room(
        &self,
        ports: &[Arc<PortConfig>],
        switches: &[SwitchConfig],
        written: &[Spanned<file::Switch>],
    ) -> Result<(), ConfigError> {
        let first = switches.len() - written.len();
        for (at, switch) in switches.iter().enumerate() {
            let wire = WireConfig::Switch(switch.name.clone());
            let on_it = ports.iter().filter(|port| port.wire == wire).count();
            if switch.mac_entries_max < on_it {
                let message = format!(
                    "switch.mac_entries_max {} of switch \"{}\" is less than its {on_it} ports, which share them equally; \
                     use {on_it} or more",
                    switch.mac_entries_max, switch.name
                );
                let place = at
                    .checked_sub(first)
                    .map(|at| written[at].as_ref().mac_entries_max.as_ref().map_or(written[at].span(), Spanned::span));
                let place = place.unwrap_or_default();
                return Err(self.0.wrong(place, message));
            }
        }
        Ok(())
    }
}
