//! The distribution of received frames over an interface's queues.

use nix::errno::Errno;
use offramp_offload::rss::KEY_LEN;
use offramp_ports::packet::HEAD_LEN;
use offramp_ports::sys::ethtool::{self, FlowKind, HASH_TOEPLITZ, HASHED_ADDRESSES, HASHED_PORTS};
use serde::{Deserialize, Serialize};

use crate::packet::{Ip, Protocol};

/// Kinds of packets with separate hash settings.
pub(crate) const KINDS: [(Ip, Protocol, FlowKind); 4] = [
    (Ip::V4, Protocol::Tcp, FlowKind::Tcp4),
    (Ip::V4, Protocol::Udp, FlowKind::Udp4),
    (Ip::V6, Protocol::Tcp, FlowKind::Tcp6),
    (Ip::V6, Protocol::Udp, FlowKind::Udp6),
];
/// Payload of each frame for the check of receive queues, in bytes.
pub(crate) const PAYLOAD_LEN: u16 = 1100;
/// Maximum number of queues. The capture encodes the queue in the captured length. A frame with [`PAYLOAD_LEN`] bytes
/// of payload is therefore too short for more queues.
const QUEUES_MAX: u64 = PAYLOAD_LEN as u64 - HEAD_LEN as u64;

/// The rule by which an end distributes received frames over its queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// The driver does not distribute frames over queues, or does not report the rule.
    NotOffered,
    /// The distribution cannot be checked; the text is the reason.
    NotReachable(String),
    /// A Toeplitz hash selects the queue.
    ByHash {
        /// Key of the hash.
        key: Vec<u8>,
        /// Queue for each value of the hash's low bits. The number of entries is a power of two.
        table: Vec<u32>,
        /// Hashed fields for TCP and UDP over IPv4, then for TCP and UDP over IPv6. A kind with [`Hashed::Unknown`] is
        /// not checked.
        hashed: [Hashed; 4],
    },
}

/// Hashed header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hashed {
    /// Source and destination address.
    Addresses,
    /// Source and destination address, and both ports.
    AddressesAndPorts,
    /// No fields, other fields, or fields not reported by the driver.
    Unknown,
}

impl Steering {
    /// Reads the driver's settings of an interface in the calling thread's namespace.
    pub(crate) fn of_interface(name: &str) -> Self {
        let not_reachable = |why: &str| Self::NotReachable(why.to_owned());
        let hash = match ethtool::rx_hash(name) {
            Ok(hash) if hash.key.is_empty() || hash.table.is_empty() => return Self::NotOffered,
            Ok(hash) => hash,
            Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => return Self::NotOffered,
            Err(error) => return Self::NotReachable(error.to_string()),
        };
        let queues = ethtool::rx_queues(name).unwrap_or(0);
        let is_single = hash.table.iter().all(|queue| *queue == hash.table[0]);
        let hashed = KINDS.map(|(_, _, kind)| match ethtool::rx_hash_fields(name, kind) {
            Ok(HASHED_ADDRESSES) => Hashed::Addresses,
            Ok(fields) if fields == HASHED_ADDRESSES | HASHED_PORTS => Hashed::AddressesAndPorts,
            _ => Hashed::Unknown,
        });
        match () {
            () if queues < 2 => not_reachable("one receive queue; add queues with `ethtool -L`"),
            () if queues > QUEUES_MAX => Self::NotReachable(format!("more than {QUEUES_MAX} receive queues")),
            () if is_single => not_reachable("the indirection table names a single queue (`ethtool -x`)"),
            () if hash.function != HASH_TOEPLITZ => not_reachable("the hash function is not Toeplitz (`ethtool -x`)"),
            () if hash.transform != 0 => {
                not_reachable("the hash is symmetric; only Toeplitz is checked (`ethtool -x`)")
            }
            () if hash.key.len() < KEY_LEN => {
                Self::NotReachable(format!("the hash key is shorter than {KEY_LEN} bytes"))
            }
            () if !hash.table.len().is_power_of_two() => {
                not_reachable("the size of the indirection table is not a power of two (`ethtool -x`)")
            }
            () if hashed == [Hashed::Unknown; 4] => {
                not_reachable("the driver does not report the hashed fields, or hashes others than addresses and ports")
            }
            () => Self::ByHash { key: hash.key, table: hash.table, hashed },
        }
    }
}
