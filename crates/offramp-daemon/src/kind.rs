//! The kinds of ports: hosts, and interfaces on a wire. A kind is one file here, and one line in one of the two lists.

pub mod host;
pub mod null;
mod packet;
pub mod tap;
pub mod vhost_user;
pub mod wire;

use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::schema::unknown;
use host::{Host, Means, Parts, PortKind, Settings};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Deref, DerefMut};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wire::Interface;

/// Returns the value of a table, at its place in the file.
type Value<'a> = Spanned<DeValue<'a>>;

macro_rules! hosts {
    ($($kind:ident($module:ident),)*) => {
        /// The host's side of a port as configured.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum HostConfig {
            $($kind($module::Config),)*
        }

        impl Deref for HostConfig {
            type Target = dyn PortKind;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$kind(config) => config,)* }
            }
        }

        impl DerefMut for HostConfig {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$kind(config) => config,)* }
            }
        }

        impl HostConfig {
            /// Opens the host, as [`Parts::open`].
            ///
            /// # Errors
            /// The system's refusal.
            pub fn open(&self, port: &Settings<'_>, means: Means) -> Result<RunningHost, String> {
                match self { $(Self::$kind(config) => config.open(port, means).map(Box::new).map(RunningHost::$kind),)* }
            }
        }

        /// The host's side of a running port.
        #[derive(Debug)]
        pub enum RunningHost {
            $($kind(Box<<$module::Config as Parts>::Host>),)*
        }

        impl Deref for RunningHost {
            type Target = dyn Host;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$kind(host) => &**host,)* }
            }
        }

        impl RunningHost {
            /// Returns the state for `show`.
            pub fn status(&self) -> HostStatus {
                match self { $(Self::$kind(host) => HostStatus::$kind($module::Config::status(host)),)* }
            }
        }

        /// The host's side of a port.
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
            example: <$module::Config as Parts>::EXAMPLE,
            keys: keys_of::<<$module::Config as Parts>::Keys>,
            check: |check, value| {
                Ok(HostConfig::$kind($module::Config::check(check, &keys(check, value)?)?))
            },
        },)*];
    };
}

macro_rules! wires {
    ($($kind:ident($module:ident),)*) => {
        /// The wire's side of a port as configured.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum WireConfig {
            /// The port of this name, at the other end of a cable.
            Cable(String),
            /// The switch of this name.
            Switch(String),
            $($kind(String),)*
        }

        impl WireConfig {
            /// Returns the interface on the wire.
            pub fn interface(&self) -> Option<&str> {
                match self {
                    Self::Cable(_) | Self::Switch(_) => None,
                    $(Self::$kind(interface) => Some(interface),)*
                }
            }

            /// Returns the key of the interface on the wire. Only a privileged process can open it.
            pub fn privileged_key(&self) -> Option<&'static str> {
                match self {
                    Self::Cable(_) | Self::Switch(_) => None,
                    $(Self::$kind(_) => Some(concat!("wire.", stringify!($module))),)*
                }
            }

            /// Names the thing that only one port may make.
            pub fn made(&self) -> Option<String> {
                match self {
                    Self::Cable(_) | Self::Switch(_) => None,
                    $(Self::$kind(interface) => $module::made(interface),)*
                }
            }

            /// Opens the interface on the wire.
            ///
            /// # Errors
            /// The system's refusal.
            pub fn open(&self, mtu: usize) -> Result<Option<Box<dyn Interface>>, String> {
                match self {
                    Self::Cable(_) | Self::Switch(_) => Ok(None),
                    $(Self::$kind(interface) => $module::open_wire(interface, mtu).map(Some),)*
                }
            }

            /// Returns the state for `show`.
            pub fn status(&self) -> WireStatus {
                match self.clone() {
                    Self::Cable(port) => WireStatus::Cable { port },
                    Self::Switch(name) => WireStatus::Switch { name },
                    $(Self::$kind(interface) => WireStatus::$kind { interface },)*
                }
            }
        }

        /// The wire of a port.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        pub enum WireStatus {
            /// A cable to another port.
            Cable {
                /// The port at its other end.
                port: String,
            },
            /// A switch.
            Switch {
                /// The name of the switch.
                name: String,
            },
            $(
                /// An interface.
                $kind {
                    /// The name of the interface.
                    interface: String,
                },
            )*
        }

        impl fmt::Display for WireStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Cable { port } => write!(f, "cable to {port}"),
                    Self::Switch { name } => write!(f, "switch {name}"),
                    $(Self::$kind { interface } => write!(f, "{} {interface}", $module::NOUN),)*
                }
            }
        }

        /// `port.wire`: one of these.
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct WireKeys {
            cable: Option<Spanned<String>>,
            $($module: Option<Spanned<String>>,)*
            switch: Option<Spanned<String>>,
            pub bits_per_second: Option<Spanned<i64>>,
        }

        /// Checks `port.wire`.
        ///
        /// # Errors
        /// The first wrong key or value.
        pub fn wire(check: &Check<'_>, value: &Value<'_>) -> Result<(WireConfig, WireKeys), ConfigError> {
            let keys: WireKeys = keys(check, value)?;
            let name = |key: &Spanned<String>| key.as_ref().clone();
            let mut found: Vec<_> = keys.cable.iter().map(|port| WireConfig::Cable(name(port))).collect();
            $(if let Some(written) = &keys.$module {
                let key = concat!("port.wire.", stringify!($module));
                found.push(WireConfig::$kind(check.interface(key, written)?));
            })*
            found.extend(keys.switch.iter().map(|switch| WireConfig::Switch(name(switch))));
            match (found.pop(), found.is_empty()) {
                (Some(wire), true) => Ok((wire, keys)),
                _ => {
                    let kinds = concat!("cable", $(", ", stringify!($module),)* ", switch");
                    Err(check.0.wrong(value.span(), format!("port.wire: write exactly one of {kinds}")))
                }
            }
        }
    };
}

hosts! {
    Tap(tap),
    VhostUser(vhost_user),
    Null(null),
}

wires! {
    Tap(tap),
    Packet(packet),
}

impl HostStatus {
    /// Returns the state of a guest.
    pub fn guest(&self) -> Option<&vhost_user::Status> {
        if let Self::VhostUser(guest) = self { Some(guest) } else { None }
    }
}

/// A kind of host in the file.
struct Kind {
    /// The key that chooses it.
    name: &'static str,
    example: &'static str,
    keys: fn() -> Vec<String>,
    check: fn(&Check<'_>, &Value<'_>) -> Result<HostConfig, ConfigError>,
}

/// Parses a table of keys.
fn keys<K: DeserializeOwned>(check: &Check<'_>, value: &Value<'_>) -> Result<K, ConfigError> {
    K::deserialize(value.clone().into_deserializer()).map_err(|error| check.0.refused(&error))
}

/// Returns the keys known by serde: its refusal of an unknown one names them between backquotes.
pub fn keys_of<K: DeserializeOwned>() -> Vec<String> {
    let refusal = toml::from_str::<K>("'' = 0").err();
    let reason = refusal.map(|error| error.message().to_owned()).unwrap_or_default();
    reason.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

/// Returns the keys of every kind of host.
pub fn host_keys() -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for key in HOSTS.iter().flat_map(|kind| (kind.keys)()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Checks `port.host`. A key of another kind is refused with the name of that kind.
///
/// # Errors
/// The first wrong key or value.
pub fn host(check: &Check<'_>, value: &Value<'_>) -> Result<HostConfig, ConfigError> {
    let empty = DeTable::new();
    let table = value.as_ref().as_table().unwrap_or(&empty);
    let known = host_keys();
    if let Some(key) = table.keys().find(|key| !known.iter().any(|known| known == key.as_ref())) {
        let known = known.iter().map(String::as_str);
        return Err(check.0.wrong(key.span(), unknown("key", key.as_ref(), known)));
    }
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
