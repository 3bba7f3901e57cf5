//! A request of a client: one JSON object per line.

use super::ipsec::SaKeys;
use super::key::KeyText;
use super::limit::Limit;
use super::moderation::Moderation;
use super::unit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Version of the protocol, increased when a field is removed or changes its meaning.
pub const VERSION: u32 = 1;

/// Maximum captured bytes of a packet, as in tcpdump. Every super-frame fits completely.
pub const SNAPLEN_MAX: u32 = 262_144;

/// Valid sizes of a capture's buffer in the daemon, in bytes.
pub const CAPTURE_BUFFER: RangeInclusive<u64> = 64 << 10..=256 << 20;
/// Default size of a capture's buffer in the daemon, in bytes.
pub const CAPTURE_BUFFER_DEFAULT: u64 = 48 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Requests the state and the counters of all ports and switches, of one port, or of one switch.
    Show {
        /// Version of the client's protocol.
        version: u32,
        /// The name of a port or of a switch; all ports and switches if absent. The answer for a switch has the
        /// switch's ports and stations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// Leaves out everything that an overview does not need, so that the answer for hundreds of ports is short.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        summary: bool,
    },
    /// Subscribes to all later events until the connection ends.
    Monitor {
        /// Version of the client's protocol.
        version: u32,
    },
    /// Requests the packets of a port until the client shuts down its sending direction of the connection.
    Capture {
        /// Version of the client's protocol.
        version: u32,
        /// The name of the port.
        port: String,
        /// Maximum captured bytes of each packet.
        #[serde(default = "snaplen_max")]
        snaplen: u32,
        /// Maximum size of the packets that wait for a slow client, in bytes; [`CAPTURE_BUFFER_DEFAULT`] if absent.
        #[serde(default, deserialize_with = "unit::bytes", skip_serializing_if = "Option::is_none")]
        buffer_bytes: Option<u64>,
    },
    /// Changes features, moderation, limits or the link of a port. The request must contain at least one of these four
    /// settings.
    Set {
        /// Version of the client's protocol.
        version: u32,
        /// The name of the port.
        port: String,
        /// Features or groups of features by name; `true` allows a feature.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        features: BTreeMap<String, bool>,
        /// The new interrupt moderation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moderation: Option<Moderation>,
        /// The new rate limits for sending and receiving, which replace the earlier limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        /// The new state of the link; `true` is on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link: Option<bool>,
    },
    /// Adds the ports and switches in a text with the format of the configuration file: all of them, or none.
    Add {
        /// Version of the client's protocol.
        version: u32,
        /// The name of the text in error messages. The daemon opens no file with this name.
        source: String,
        /// The text, with the tables `[[port]]` and `[[switch]]`.
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
        /// The name of the port.
        port: String,
        /// The association, without its keys.
        sa: Box<SaKeys>,
        /// The association's keys, in hexadecimal.
        key: KeyText,
    },
    /// Removes a security association at once.
    SaDel {
        /// Version of the client's protocol.
        version: u32,
        /// The name of the port.
        port: String,
        /// `in` or `out`.
        direction: String,
        /// The association's security parameters index.
        spi: u32,
    },
    /// Replaces a security association without losing a frame.
    SaRekey {
        /// Version of the client's protocol.
        version: u32,
        /// The name of the port.
        port: String,
        /// The direction of both associations: `in` or `out`.
        direction: String,
        /// The security parameters index of the old association.
        spi: u32,
        /// The settings of the new association that differ from the settings of the old association.
        to: Box<SaKeys>,
        /// The new association's keys, in hexadecimal.
        key: KeyText,
        /// Time for which an old inbound association still opens packets, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_seconds: Option<u64>,
    },
}

fn snaplen_max() -> u32 {
    SNAPLEN_MAX
}
