//! A request of a client: one JSON object on a line.

use super::ipsec::SaKeys;
use super::key::KeyText;
use super::limit::Limit;
use super::moderation::Moderation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the protocol. It grows when a field goes or changes its meaning.
pub const VERSION: u32 = 1;

/// Most bytes of a packet in a capture, as tcpdump has it: every super-frame is whole.
pub const SNAPLEN_MAX: u32 = 262_144;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// State and counters of all ports, or of one.
    Show {
        /// Version of the client's protocol.
        version: u32,
        /// The port; all when left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Subscribes to all later events, until the connection ends.
    Monitor {
        /// Version of the client's protocol.
        version: u32,
    },
    /// The packets of a port, until the client ends its side of the connection.
    Capture {
        /// Version of the client's protocol.
        version: u32,
        /// The port.
        port: String,
        /// Bytes of each packet.
        #[serde(default = "snaplen_max")]
        snaplen: u32,
    },
    /// Switches features of a port, changes its moderation or its limit, or sets its link; at least one of them.
    Set {
        /// Version of the client's protocol.
        version: u32,
        /// The port.
        port: String,
        /// Features or groups of features, by name, and whether each is allowed.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        features: BTreeMap<String, bool>,
        /// When the host is interrupted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moderation: Option<Moderation>,
        /// The rates of the host for sending and receiving, in place of the earlier ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        /// The new state of the link; `true` is on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link: Option<bool>,
    },
    /// Adds the ports and switches of a text as the configuration file has them: all of them, or none.
    Add {
        /// Version of the client's protocol.
        version: u32,
        /// The name of the text in errors. The daemon opens no file of this name.
        source: String,
        /// `[[port]]` and `[[switch]]`.
        toml: String,
    },
    /// Removes ports and switches: all of them, or none.
    Remove {
        /// Version of the client's protocol.
        version: u32,
        /// Names of ports.
        #[serde(default)]
        ports: Vec<String>,
        /// Names of switches.
        #[serde(default)]
        switches: Vec<String>,
    },
    /// Installs a security association.
    SaAdd {
        /// Version of the client's protocol.
        version: u32,
        /// The port.
        port: String,
        /// The association, without its keys.
        sa: Box<SaKeys>,
        /// Its keys, in hexadecimal.
        key: KeyText,
    },
    /// Removes a security association at once.
    SaDel {
        /// Version of the client's protocol.
        version: u32,
        /// The port.
        port: String,
        /// `in` or `out`.
        direction: String,
        /// Its security parameters index.
        spi: u32,
    },
    /// Replaces a security association; no frame is lost.
    SaRekey {
        /// Version of the client's protocol.
        version: u32,
        /// The port.
        port: String,
        /// `in` or `out`, for both.
        direction: String,
        /// The security parameters index of the old one.
        spi: u32,
        /// The differences of the new one.
        to: Box<SaKeys>,
        /// Its keys, in hexadecimal.
        key: KeyText,
        /// Seconds of grace for an old inbound association beside the new one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_seconds: Option<u64>,
    },
}

fn snaplen_max() -> u32 {
    SNAPLEN_MAX
}
