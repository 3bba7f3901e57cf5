//! The configuration file as written: all keys, not yet checked.
//!
//! Each value keeps its position in the file, so that every error names its line. `docs/config.md` describes every key,
//! and a test compares the document with these types.

use super::ipsec::{PolicyKeys, SaKeys, Word};
use super::limit::Limit;
use super::moderation::Moderation;
use super::unit::Amount;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use toml::Spanned;

/// The value of an optional key, with its position in the file.
pub type Key<T> = Option<Spanned<T>>;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub daemon: Key<Daemon>,
    pub faults: Key<bool>,
    #[serde(default)]
    pub port: Vec<Spanned<Port>>,
    #[serde(default)]
    pub switch: Vec<Spanned<Switch>>,
}

/// `[daemon]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    pub control: Key<String>,
    pub control_mode: Key<i64>,
    pub control_group: Key<String>,
    pub control_read_only: Key<String>,
    pub control_read_only_mode: Key<i64>,
    pub metrics: Key<String>,
    pub user: Key<String>,
    pub state_directory: Key<String>,
    pub sandbox: Key<String>,
}

/// `[[port]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub name: Key<String>,
    /// Parsed by the kind of host.
    pub host: Key<IgnoredAny>,
    pub wire: Key<IgnoredAny>,
    pub mtu: Key<i64>,
    #[serde(default)]
    pub features: BTreeMap<Spanned<String>, Spanned<bool>>,
    pub rx_usecs: Key<Amount>,
    pub moderation: Key<Moderation>,
    pub limit: Key<Limit>,
    pub poll_usecs: Key<Amount>,
    pub cpus: Key<Vec<Spanned<i64>>>,
    pub mac_addresses: Key<Vec<Spanned<String>>>,
    pub ip_addresses: Key<Vec<Spanned<String>>>,
    pub isolated: Key<bool>,
    pub vlan: Key<i64>,
    pub vlans: Key<Vec<Spanned<toml::Value>>>,
    pub memory: Key<Memory>,
    pub faults: Key<Faults>,
    pub ipsec: Key<Ipsec>,
    #[serde(default)]
    pub sa: Vec<Spanned<SaKeys>>,
    #[serde(default)]
    pub policy: Vec<Spanned<PolicyKeys>>,
}

/// `port.ipsec`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipsec {
    pub transmit: Key<String>,
    pub receive: Key<String>,
    pub other: Key<Vec<Spanned<Word>>>,
    pub ike: Key<bool>,
}

/// `port.memory`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "without the feature `impair`, no key is read")]
pub struct Memory {
    pub card_bytes: Key<Amount>,
    pub receive_bytes: Key<Amount>,
    pub receive_pages: Key<Amount>,
    pub page_bytes: Key<Amount>,
    pub ring_entries: Key<Amount>,
    pub transmit_buffers: Key<Amount>,
    pub policy: Key<String>,
    pub recover_usecs: Key<Amount>,
}

/// `port.faults`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "without the feature `impair`, no key is read")]
pub struct Faults {
    pub bus_bytes_per_second: Key<Amount>,
    pub bus_frame_usecs: Key<Amount>,
    pub bus_receive_first: Key<bool>,
    pub loss_one_in: Key<Amount>,
    pub duplicate_one_in: Key<Amount>,
    pub delay_usecs: Key<Amount>,
    pub reverse_frames: Key<Amount>,
    pub verdict: Key<String>,
    pub verdict_one_in: Key<Amount>,
    pub seed: Key<Amount>,
}

/// `[[switch]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    pub name: Key<String>,
    pub mac_entries_max: Key<Amount>,
    pub age_seconds: Key<Amount>,
    pub flood_frames_per_second: Key<Amount>,
    pub unknown_unicast: Key<String>,
    pub forward_reserved: Key<Vec<Spanned<String>>>,
    pub forward: Key<Vec<Spanned<String>>>,
}
