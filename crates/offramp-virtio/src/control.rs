//! Commands of a network device's control queue (virtio 1.3, 5.1.6.5), as far as a device here obeys them.
//!
//! A command is a class, a number in it, and fields in little-endian order. Bytes after the last field are ignored: the
//! structures of Linux' driver are padded.

use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_GUEST_OFFLOADS, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, VIRTIO_NET_CTRL_MQ,
    VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_RX_SET,
    VIRTIO_NET_CTRL_NOTF_COAL_TX_SET, VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET,
    VIRTIO_NET_ERR, VIRTIO_NET_OK,
};

/// `ack` of an answer: done.
pub const OK: u8 = VIRTIO_NET_OK as u8;
/// `ack` of an answer: refused, nothing has changed.
pub const ERR: u8 = VIRTIO_NET_ERR as u8;
/// Bytes of the longest command: the MAC tables of a driver that fills them, with room.
pub const COMMAND_LEN_MAX: usize = 1 << 16;

/// Longest wait and most frames until the driver is notified (virtio 1.3, 5.1.6.5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationCoalescing {
    /// Microseconds after the first frame that waits.
    pub max_usecs: u32,
    /// Frames that wait.
    pub max_packets: u32,
}

/// What a driver wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET`: it uses that many queue pairs.
    QueuePairs(u16),
    /// `VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET`: it takes those offloads on receive, as feature bits.
    GuestOffloads(u64),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_TX_SET`: for all transmit queues.
    CoalesceTransmit(NotificationCoalescing),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_RX_SET`: for all receive queues.
    CoalesceReceive(NotificationCoalescing),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET`: for one queue.
    CoalesceQueue(u16, NotificationCoalescing),
    /// `VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET`: it asks for what is in force in a queue.
    CoalescingOfQueue(u16),
}

impl Command {
    /// Reads a command; `None` for one that is unknown, or too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[class, command], fields) = bytes.split_first_chunk()?;
        let u16_at = |at: usize| Some(u16::from_le_bytes(fields.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(fields.get(at..at + 4)?.try_into().ok()?));
        // Packets first in `virtio_net_ctrl_coal`.
        let coalescing =
            |at: usize| Some(NotificationCoalescing { max_packets: u32_at(at)?, max_usecs: u32_at(at + 4)? });
        Some(match (class.into(), command.into()) {
            (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET) => Self::QueuePairs(u16_at(0)?),
            (VIRTIO_NET_CTRL_GUEST_OFFLOADS, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET) => {
                Self::GuestOffloads(u64::from(u32_at(4)?) << 32 | u64::from(u32_at(0)?))
            }
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_TX_SET) => Self::CoalesceTransmit(coalescing(0)?),
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_RX_SET) => Self::CoalesceReceive(coalescing(0)?),
            // `virtio_net_ctrl_coal_vq` has two reserved bytes after the number.
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET) => {
                Self::CoalesceQueue(u16_at(0)?, coalescing(4)?)
            }
            (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET) => Self::CoalescingOfQueue(u16_at(0)?),
            _ => return None,
        })
    }
}

impl NotificationCoalescing {
    /// As it stands after `ack` in the answer to [`Command::CoalescingOfQueue`].
    pub fn to_bytes(self) -> [u8; 8] {
        let (packets, usecs) = (self.max_packets.to_le_bytes(), self.max_usecs.to_le_bytes());
        std::array::from_fn(|at| if at < 4 { packets[at] } else { usecs[at - 4] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 7.3 sends them (seen at a device), padding included.
    #[test]
    fn commands_are_read_as_linux_sends_them() {
        let coalescing = NotificationCoalescing { max_usecs: 50, max_packets: 16 };
        let fields = [16, 0, 0, 0, 50, 0, 0, 0];
        let cases = [
            (vec![4, 0, 2, 0], Command::QueuePairs(2)),
            (vec![5, 0, 0x82, 1, 0, 0, 0, 0, 0xc0, 0], Command::GuestOffloads(0x00c0_0000_0000_0182)),
            ([&[6, 0][..], &fields].concat(), Command::CoalesceTransmit(coalescing)),
            ([&[6, 1][..], &fields].concat(), Command::CoalesceReceive(coalescing)),
            ([&[6, 2, 3, 0, 0xff, 0xff][..], &fields, &[0; 3]].concat(), Command::CoalesceQueue(3, coalescing)),
            (vec![6, 3, 1, 0, 0, 0], Command::CoalescingOfQueue(1)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Command::parse(&bytes), Some(expected));
        }
        assert_eq!(coalescing.to_bytes(), fields);
    }

    #[test]
    fn what_is_unknown_or_too_short_is_no_command() {
        for bytes in
            [&[][..], &[4], &[4, 0], &[4, 0, 2], &[6, 2, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0], &[4, 9, 2, 0], &[9, 0]]
        {
            assert_eq!(Command::parse(bytes), None, "{bytes:?}");
        }
    }
}
