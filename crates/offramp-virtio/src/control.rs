//! Supported commands of a network device's control queue (virtio 1.3, 5.1.6.5).
//!
//! A command consists of a class, a command number, and little-endian fields. Bytes after the last field are ignored,
//! because Linux' driver sends padded structures.

pub mod statistics;

use statistics::StatisticsOf;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, VIRTIO_NET_CTRL_GUEST_OFFLOADS,
    VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET,
    VIRTIO_NET_CTRL_MAC_TABLE_SET, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_HASH_CONFIG, VIRTIO_NET_CTRL_MQ_RSS_CONFIG,
    VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_RX_SET,
    VIRTIO_NET_CTRL_NOTF_COAL_TX_SET, VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET,
    VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_ALLMULTI, VIRTIO_NET_CTRL_RX_ALLUNI, VIRTIO_NET_CTRL_RX_NOBCAST,
    VIRTIO_NET_CTRL_RX_NOMULTI, VIRTIO_NET_CTRL_RX_NOUNI, VIRTIO_NET_CTRL_RX_PROMISC, VIRTIO_NET_CTRL_STATS,
    VIRTIO_NET_CTRL_STATS_GET, VIRTIO_NET_CTRL_STATS_QUERY, VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_ADD,
    VIRTIO_NET_CTRL_VLAN_DEL, VIRTIO_NET_ERR, VIRTIO_NET_OK,
};

/// `ack` value of an answer: the command succeeded.
pub const OK: u8 = VIRTIO_NET_OK as u8;
/// `ack` value of an answer: the command was refused, and the device has changed nothing.
pub const ERR: u8 = VIRTIO_NET_ERR as u8;
/// Maximum length of a command in bytes. The full MAC tables of any driver fit.
pub const COMMAND_LEN_MAX: usize = 1 << 16;

/// The limits after which the driver is notified (virtio 1.3, 5.1.6.5.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationCoalescing {
    /// Maximum time between the first waiting frame and the notification, in microseconds.
    pub max_usecs: u32,
    /// Maximum number of frames that wait for the notification.
    pub max_packets: u32,
}

/// An Ethernet address.
pub type MacAddress = [u8; MAC_LEN];
const MAC_LEN: usize = 6;

bitflags::bitflags! {
    /// The receive modes, which extend or restrict the frames selected by the driver's MAC address and MAC table
    /// (virtio 1.3, 5.1.6.5.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReceiveModes: u8 {
        /// Receive all frames.
        const PROMISC = 1 << VIRTIO_NET_CTRL_RX_PROMISC;
        /// Receive all multicast frames.
        const ALLMULTI = 1 << VIRTIO_NET_CTRL_RX_ALLMULTI;
        /// Receive all unicast frames.
        const ALLUNI = 1 << VIRTIO_NET_CTRL_RX_ALLUNI;
        /// Receive no multicast frames, except broadcast.
        const NOMULTI = 1 << VIRTIO_NET_CTRL_RX_NOMULTI;
        /// Receive no unicast frames.
        const NOUNI = 1 << VIRTIO_NET_CTRL_RX_NOUNI;
        /// Receive no broadcast frames.
        const NOBCAST = 1 << VIRTIO_NET_CTRL_RX_NOBCAST;
    }
}

impl ReceiveModes {
    /// The modes of the feature `CTRL_RX_EXTRA`. The remaining modes belong to `CTRL_RX`.
    pub const EXTRA: Self = Self::ALLUNI.union(Self::NOMULTI).union(Self::NOUNI).union(Self::NOBCAST);
}

/// The driver's choice of hash for received frames (virtio 1.3, 5.1.6.5.6.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashConfig {
    /// Packet types to hash, one bit for each type.
    pub types: u32,
    /// Hash key.
    pub key: Vec<u8>,
}

/// The distribution of received flows over queue pairs (virtio 1.3, 5.1.6.5.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssConfig {
    /// Hash configuration for the received flows.
    pub hash: HashConfig,
    /// Queue pair for frames without a hash.
    pub unclassified: u16,
    /// Queue pair for each value of a hash's low bits.
    pub table: Vec<u16>,
    /// Number of transmit queues that the driver uses.
    pub max_tx_vq: u16,
}

/// A command from the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `VIRTIO_NET_CTRL_RX`: turns one receive mode (one bit) on or off.
    ReceiveMode(ReceiveModes, bool),
    /// `VIRTIO_NET_CTRL_MAC_TABLE_SET`: sets the addresses to receive in addition to the driver's address.
    MacTable {
        /// Unicast addresses.
        unicast: Vec<MacAddress>,
        /// Multicast addresses.
        multicast: Vec<MacAddress>,
    },
    /// `VIRTIO_NET_CTRL_MAC_ADDR_SET`: sets the driver's MAC address.
    MacAddress(MacAddress),
    /// `VIRTIO_NET_CTRL_VLAN_ADD` (true) and `_DEL` (false): turns reception of frames tagged with one VLAN on or off.
    Vlan(u16, bool),
    /// `VIRTIO_NET_CTRL_ANNOUNCE_ACK`: acknowledges the request to announce the guest.
    Announced,
    /// `VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET`: sets the number of queue pairs in use.
    QueuePairs(u16),
    /// `VIRTIO_NET_CTRL_MQ_RSS_CONFIG`: sets the distribution of received flows over the driver's queues.
    Rss(RssConfig),
    /// `VIRTIO_NET_CTRL_MQ_HASH_CONFIG`: sets the hash of received frames.
    Hash(HashConfig),
    /// `VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET`: sets the receive offloads that the driver accepts, as feature bits.
    GuestOffloads(u64),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_TX_SET`: sets the notification limits for all transmit queues.
    CoalesceTransmit(NotificationCoalescing),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_RX_SET`: sets the notification limits for all receive queues.
    CoalesceReceive(NotificationCoalescing),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET`: sets the notification limits for one queue.
    CoalesceQueue(u16, NotificationCoalescing),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET`: requests the current notification limits of one queue.
    CoalescingOfQueue(u16),
    /// `VIRTIO_NET_CTRL_STATS_QUERY`: requests the available kinds of statistics.
    StatisticsTypes,
    /// `VIRTIO_NET_CTRL_STATS_GET`: requests the statistics of queues.
    Statistics(Vec<StatisticsOf>),
}

impl Command {
    /// Parses a command. Returns `None` if the command is unknown or too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[class, command], fields) = bytes.split_first_chunk()?;
        let u16_at = |at: usize| Some(u16::from_le_bytes(fields.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(fields.get(at..at + 4)?.try_into().ok()?));
        // In `virtio_net_ctrl_coal`, `max_packets` precedes `max_usecs`.
        let coalescing =
            |at: usize| Some(NotificationCoalescing { max_packets: u32_at(at)?, max_usecs: u32_at(at + 4)? });
        Some(match (class.into(), command.into()) {
            (VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC..=VIRTIO_NET_CTRL_RX_NOBCAST) => {
                Self::ReceiveMode(ReceiveModes::from_bits_retain(1 << command), *fields.first()? != 0)
            }
            (VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET) => {
                let (unicast, rest) = mac_table(fields)?;
                Self::MacTable { unicast, multicast: mac_table(rest)?.0 }
            }
            (VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET) => Self::MacAddress(*fields.first_chunk()?),
            (VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_ADD) => Self::Vlan(u16_at(0)?, true),
            (VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_DEL) => Self::Vlan(u16_at(0)?, false),
            (VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK) => Self::Announced,
            (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET) => Self::QueuePairs(u16_at(0)?),
            (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG) => {
                let end_of_table = 8 + 2 * (usize::from(u16_at(4)?) + 1);
                let table = fields.get(8..end_of_table)?.as_chunks().0;
                Self::Rss(RssConfig {
                    hash: HashConfig { types: u32_at(0)?, key: hash_key(fields.get(end_of_table + 2..)?)? },
                    unclassified: u16_at(6)?,
                    table: table.iter().map(|entry| u16::from_le_bytes(*entry)).collect(),
                    max_tx_vq: u16_at(end_of_table)?,
                })
            }
            // Eight reserved bytes precede the key length.
            (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_HASH_CONFIG) => {
                Self::Hash(HashConfig { types: u32_at(0)?, key: hash_key(fields.get(12..)?)? })
            }
            (VIRTIO_NET_CTRL_GUEST_OFFLOADS, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET) => {
                Self::GuestOffloads(u64::from(u32_at(4)?) << 32 | u64::from(u32_at(0)?))
            }
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_TX_SET) => Self::CoalesceTransmit(coalescing(0)?),
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_RX_SET) => Self::CoalesceReceive(coalescing(0)?),
            // In `virtio_net_ctrl_coal_vq`, two reserved bytes follow the queue index.
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET) => {
                Self::CoalesceQueue(u16_at(0)?, coalescing(4)?)
            }
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET) => Self::CoalescingOfQueue(u16_at(0)?),
            (VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_QUERY) => Self::StatisticsTypes,
            (VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_GET) => Self::Statistics(StatisticsOf::parse(fields)),
            _ => return None,
        })
    }
}

/// Parses a hash key: a length byte, then the key.
fn hash_key(bytes: &[u8]) -> Option<Vec<u8>> {
    let (len, key) = bytes.split_first()?;
    Some(key.get(..usize::from(*len))?.to_vec())
}

/// Parses a `virtio_net_ctrl_mac`: the number of addresses, then the addresses. Also returns the bytes after the
/// addresses.
fn mac_table(bytes: &[u8]) -> Option<(Vec<MacAddress>, &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let len = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(MAC_LEN)?;
    let (table, rest) = rest.split_at_checked(len)?;
    Some((table.as_chunks().0.to_vec(), rest))
}

impl NotificationCoalescing {
    /// Returns the answer to [`Command::CoalescingOfQueue`], without `ack`.
    pub fn to_bytes(self) -> [u8; 8] {
        let (packets, usecs) = (self.max_packets.to_le_bytes(), self.max_usecs.to_le_bytes());
        std::array::from_fn(|at| if at < 4 { packets[at] } else { usecs[at - 4] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the commands of Linux 7.3, recorded at a device, padding included.
    #[test]
    fn commands_are_read_as_linux_sends_them() {
        let coalescing = NotificationCoalescing { max_usecs: 50, max_packets: 16 };
        let fields = [16, 0, 0, 0, 50, 0, 0, 0];
        let [own, group] = [[2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]];
        let tables = [&[1, 0, 0, 0, 0, 0, 1, 0, 0, 0][..], &group].concat();
        let cases = [
            (vec![0, 0, 1], Command::ReceiveMode(ReceiveModes::PROMISC, true)),
            (vec![0, 1, 0], Command::ReceiveMode(ReceiveModes::ALLMULTI, false)),
            (vec![0, 5, 1], Command::ReceiveMode(ReceiveModes::NOBCAST, true)),
            (tables, Command::MacTable { unicast: vec![], multicast: vec![group] }),
            (
                [&[1, 0, 1, 0, 0, 0][..], &own, &[0; 4]].concat(),
                Command::MacTable { unicast: vec![own], multicast: vec![] },
            ),
            ([&[1, 1][..], &own].concat(), Command::MacAddress(own)),
            (vec![2, 0, 5, 0], Command::Vlan(5, true)),
            (vec![2, 1, 0xff, 0x0f], Command::Vlan(4095, false)),
            (vec![3, 0], Command::Announced),
            (
                [&[4, 2, 1, 0, 0, 0][..], &[0xee; 8], &[1, 0xaa, 0, 0]].concat(),
                Command::Hash(HashConfig { types: 1, key: vec![0xaa] }),
            ),
            (
                [&[4, 1, 0x3f, 0, 0, 0, 1, 0, 2, 0, 0, 0, 1, 0, 3, 0, 2, 0xaa, 0xbb][..], &[0]].concat(),
                Command::Rss(RssConfig {
                    hash: HashConfig { types: 0x3f, key: vec![0xaa, 0xbb] },
                    unclassified: 2,
                    table: vec![0, 1],
                    max_tx_vq: 3,
                }),
            ),
            (vec![4, 0, 2, 0], Command::QueuePairs(2)),
            (vec![5, 0, 0x82, 1, 0, 0, 0, 0, 0xc0, 0], Command::GuestOffloads(0x00c0_0000_0000_0182)),
            ([&[6, 0][..], &fields].concat(), Command::CoalesceTransmit(coalescing)),
            ([&[6, 1][..], &fields].concat(), Command::CoalesceReceive(coalescing)),
            ([&[6, 2, 3, 0, 0xff, 0xff][..], &fields, &[0; 3]].concat(), Command::CoalesceQueue(3, coalescing)),
            (vec![6, 3, 1, 0, 0, 0], Command::CoalescingOfQueue(1)),
            (vec![8, 0], Command::StatisticsTypes),
            (vec![8, 1, 0, 0, 0, 0], Command::Statistics(vec![])),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Command::parse(&bytes), Some(expected));
        }
        assert_eq!(coalescing.to_bytes(), fields);
    }

    #[test]
    fn what_is_unknown_or_too_short_is_no_command() {
        let cases: [&[u8]; 17] = [
            &[],
            &[4],
            &[4, 0],
            &[4, 0, 2],
            &[6, 2, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0],
            &[4, 9, 2, 0],
            &[9, 0],
            &[0, 0],
            &[0, 6, 1],
            &[1, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0, 0],
            // The first command lacks an address. The second command claims more addresses than fit into any memory.
            &[1, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            &[1, 1, 2, 0, 0, 0, 0],
            &[1, 2, 2, 0, 0, 0, 0, 1],
            &[2, 0, 5],
            &[2, 2, 5, 0],
        ];
        for bytes in cases {
            assert_eq!(Command::parse(bytes), None, "{bytes:?}");
        }
    }
}
