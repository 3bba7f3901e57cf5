//! The kinds of hosts, and the kinds of interfaces on a wire. A new kind needs one file in this folder, and one line in
//! the list of hosts (`hosts!`) or of interfaces (`WIRES`).

pub mod host;
pub mod null;
mod packet;
pub mod tap;
pub mod vhost_user;
pub mod wire;

use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::schema::unit::Amount;
use crate::schema::unknown;
use host::{Host, HostTraits, Means, PortKind, Settings};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Deref, DerefMut};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wire::WireKind;

/// A value with its position in the file.
type Value<'a> = Spanned<DeValue<'a>>;

macro_rules! hosts {
    ($($kind:ident($module:ident),)*) => {
        /// The configuration of a port's host.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum HostConfig {
            $($kind($module::Config),)*
        }

        impl Deref for HostConfig {
            type Target = HostTraits;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$kind(config) => &config.traits,)* }
            }
        }

        impl DerefMut for HostConfig {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$kind(config) => &mut config.traits,)* }
            }
        }

        impl HostConfig {
            /// Opens the host as [`PortKind::open`] does.
            ///
            /// # Errors
            /// Returns the system's error.
            pub fn open(&self, port: &Settings<'_>, means: Means) -> Result<RunningHost, String> {
                match self { $(Self::$kind(config) => config.open(port, means).map(Box::new).map(RunningHost::$kind),)* }
            }
        }

        impl HostConfig {
            /// Returns the interface that ends with the host, as [`PortKind::own_interface`] does.
            pub fn own_interface(&self) -> Option<String> {
                match self { $(Self::$kind(config) => config.own_interface(),)* }
            }

            /// Returns the reason why the host cannot be opened, as [`PortKind::missing`] does.
            pub fn missing(&self, is_running: bool) -> Option<String> {
                match self { $(Self::$kind(config) => config.missing(is_running),)* }
            }
        }

        /// A running host of a port.
        #[derive(Debug)]
        pub enum RunningHost {
            $($kind(Box<<$module::Config as PortKind>::Host>),)*
        }

        impl Deref for RunningHost {
            type Target = dyn Host;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$kind(host) => &**host,)* }
            }
        }

        impl RunningHost {
            /// Returns the host's status for `show`.
            pub fn status(&self) -> HostStatus {
                match self { $(Self::$kind(host) => HostStatus::$kind($module::Config::status(host)),)* }
            }
        }

        /// The status of a port's host.
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        #[allow(missing_docs, reason = "the types have the documentation")]
        pub enum HostStatus {
            $($kind($module::Status),)*
        }

        impl fmt::Display for HostStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$kind(status) => status.fmt(f),)* }
            }
        }

        /// The kinds of hosts.
        const HOSTS: &[Kind] = &[$(Kind {
            name: stringify!($module),
            example: <$module::Config as PortKind>::EXAMPLE,
            keys: keys_of::<<$module::Config as PortKind>::Keys>,
            check: |check, value| {
                Ok(HostConfig::$kind($module::Config::check(check, &parsed(check, value)?)?))
            },
        },)*];
    };
}

hosts! {
    Tap(tap),
    VhostUser(vhost_user),
    Null(null),
}

/// The kinds of interfaces on a wire.
const WIRES: &[WireKind] = &[tap::WIRE, packet::WIRE];

/// The configuration of a port's wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireConfig {
    /// A cable to the port with this name.
    Cable(String),
    /// The switch with this name.
    Switch(String),
    /// An interface: the name of its kind, and the name of the interface.
    Interface(&'static str, String),
}

impl WireConfig {
    /// Returns the kind and the name of the interface on the wire; `None` for a cable or a switch.
    pub fn interface(&self) -> Option<(&'static WireKind, &str)> {
        let Self::Interface(kind, interface) = self else { return None };
        Some((WIRES.iter().find(|known| known.name == *kind)?, interface))
    }

    /// Returns the wire's status for `show`.
    pub fn status(&self) -> WireStatus {
        match self.clone() {
            Self::Cable(port) => WireStatus::Cable { port },
            Self::Switch(name) => WireStatus::Switch { name },
            Self::Interface(kind, interface) => WireStatus::Interface { kind: kind.to_owned(), interface },
        }
    }
}

/// The status of a port's wire.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WireStatus {
    /// A cable to another port.
    Cable {
        /// The name of the port at the other end.
        port: String,
    },
    /// A switch.
    Switch {
        /// The name of the switch.
        name: String,
    },
    /// An interface.
    #[serde(untagged)]
    Interface {
        /// The key that selected the interface's kind in the file.
        kind: String,
        /// The name of the interface.
        interface: String,
    },
}

impl fmt::Display for WireStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cable { port } => write!(f, "cable to {port}"),
            Self::Switch { name } => write!(f, "switch {name}"),
            Self::Interface { kind, interface } => {
                let known = WIRES.iter().find(|known| known.name == *kind);
                write!(f, "{} {interface}", known.map_or(kind.as_str(), |known| known.noun))
            }
        }
    }
}

/// Checks `port.wire`. Returns the wire, and the rate of a cable as written in the file.
///
/// # Errors
/// Returns an error for the first wrong key or value.
pub fn wire(check: &Check<'_>, value: &Value<'_>) -> Result<(WireConfig, Option<Spanned<Amount>>), ConfigError> {
    let kinds = wire_kinds();
    let table = known_table(check, value, &[&kinds[..], &["bits_per_second"]].concat())?;
    let mut found = kinds.iter().filter(|kind| table.contains_key(**kind));
    let (Some(kind), None) = (found.next(), found.next()) else {
        return Err(check.0.wrong(value.span(), format!("port.wire: write exactly one of {}", kinds.join(", "))));
    };
    let name: Spanned<String> = parsed(check, &table[*kind])?;
    let wire = match *kind {
        "cable" => WireConfig::Cable(name.into_inner()),
        "switch" => WireConfig::Switch(name.into_inner()),
        kind => WireConfig::Interface(kind, check.interface(&format!("port.wire.{kind}"), &name)?),
    };
    Ok((wire, table.get("bits_per_second").map(|rate| parsed(check, rate)).transpose()?))
}

/// Returns the keys that select the kind of wire.
pub fn wire_kinds() -> Vec<&'static str> {
    ["cable"].into_iter().chain(WIRES.iter().map(|kind| kind.name)).chain(["switch"]).collect()
}

impl HostStatus {
    /// Returns the status of a guest; `None` for another kind of host.
    pub fn guest(&self) -> Option<&vhost_user::Status> {
        if let Self::VhostUser(guest) = self { Some(guest) } else { None }
    }
}

/// A kind of host in the file.
struct Kind {
    /// The key that selects this kind.
    name: &'static str,
    example: &'static str,
    keys: fn() -> Vec<String>,
    check: fn(&Check<'_>, &Value<'_>) -> Result<HostConfig, ConfigError>,
}

/// Returns a table, after a check that all its keys are known.
fn known_table<'a, 'b>(
    check: &Check<'_>,
    value: &'a Value<'b>,
    known: &[&str],
) -> Result<&'a DeTable<'b>, ConfigError> {
    let Some(table) = value.as_ref().as_table() else {
        let message = "no table; write host = { tap = \"NAME\" } or wire = { cable = \"PORT\" }";
        return Err(check.0.wrong(value.span(), message));
    };
    match table.keys().find(|key| !known.contains(&key.as_ref().as_ref())) {
        None => Ok(table),
        Some(key) if key.as_ref() == packet::WIRE.name => {
            let message =
                "packet is a kind of wire; write host = { tap = \"NAME\" } and wire = { packet = \"INTERFACE\" }";
            Err(check.0.wrong(key.span(), message))
        }
        Some(key) => Err(check.0.wrong(key.span(), unknown("key", key.as_ref(), known.iter().copied()))),
    }
}

/// Deserialises a value.
fn parsed<K: DeserializeOwned>(check: &Check<'_>, value: &Value<'_>) -> Result<K, ConfigError> {
    K::deserialize(value.clone().into_deserializer()).map_err(|error| check.0.refused(&error))
}

/// Returns the keys of the type `K`. Serde has no list of keys, but its error for an unknown key names all known keys
/// in backquotes.
pub fn keys_of<K: DeserializeOwned>() -> Vec<String> {
    let refusal = toml::from_str::<K>("'' = 0").err();
    let reason = refusal.map(|error| error.message().to_owned()).unwrap_or_default();
    reason.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

/// Returns the keys of all kinds of hosts.
pub fn host_keys() -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for key in HOSTS.iter().flat_map(|kind| (kind.keys)()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Checks `port.host`. The error for a key of another kind names that kind.
///
/// # Errors
/// Returns an error for the first wrong key or value.
pub fn host(check: &Check<'_>, value: &Value<'_>) -> Result<HostConfig, ConfigError> {
    let known = host_keys();
    let table = known_table(check, value, &known.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut named = HOSTS.iter().filter(|kind| table.contains_key(kind.name));
    let (Some(kind), None) = (named.next(), named.next()) else {
        let examples: Vec<&str> = HOSTS.iter().map(|kind| kind.example).collect();
        return Err(check.0.wrong(value.span(), format!("port.host: write either {}", examples.join(" or "))));
    };
    let own = (kind.keys)();
    if let Some(key) = table.keys().find(|key| !own.iter().any(|own| own == key.as_ref())) {
        let owner = HOSTS.iter().find(|kind| (kind.keys)().iter().any(|own| own == key.as_ref()));
        let owner = owner.map_or("", |owner| owner.name);
        let key_name = key.as_ref();
        let message = format!("port.host.{key_name} belongs to a host with {owner}; leave it out here");
        return Err(check.0.wrong(key.span(), message));
    }
    (kind.check)(check, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_wire_has_its_kind_and_no_kind_hides_another() {
        let interface = |kind: &str| WireStatus::Interface { kind: kind.to_owned(), interface: "eth0".to_owned() };
        for (wire, json, text) in [
            (interface("packet"), "{\"kind\":\"packet\",\"interface\":\"eth0\"}", "interface eth0"),
            (interface("tap"), "{\"kind\":\"tap\",\"interface\":\"eth0\"}", "tap eth0"),
            (WireStatus::Cable { port: "b".to_owned() }, "{\"kind\":\"cable\",\"port\":\"b\"}", "cable to b"),
        ] {
            assert_eq!(serde_json::to_string(&wire).unwrap(), json);
            assert_eq!(serde_json::from_str::<WireStatus>(json).unwrap(), wire);
            assert_eq!(wire.to_string(), text);
        }
    }
}
