//! A device's statistics for its driver (virtio 1.4, 5.1.9.5.11): the kinds of statistics, and the layout of an answer.

use bitflags::bitflags;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_STATS_TYPE_CVQ, VIRTIO_NET_STATS_TYPE_RX_BASIC, VIRTIO_NET_STATS_TYPE_RX_CSUM,
    VIRTIO_NET_STATS_TYPE_RX_GSO, VIRTIO_NET_STATS_TYPE_RX_SPEED, VIRTIO_NET_STATS_TYPE_TX_BASIC,
    VIRTIO_NET_STATS_TYPE_TX_CSUM, VIRTIO_NET_STATS_TYPE_TX_GSO, VIRTIO_NET_STATS_TYPE_TX_SPEED,
};

bitflags! {
    /// The kinds of statistics. The documentation of each kind lists the kind's counters.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StatisticsTypes: u64 {
        /// Received frames: notifications, packets, bytes, interrupts, drops, drops without a buffer.
        const RX_BASIC = VIRTIO_NET_STATS_TYPE_RX_BASIC as u64;
        /// Received frames by checksum: verified, partial, none, wrong.
        const RX_CSUM = VIRTIO_NET_STATS_TYPE_RX_CSUM as u64;
        /// Received super-frames: packets, bytes, coalesced packets, coalesced bytes.
        const RX_GSO = VIRTIO_NET_STATS_TYPE_RX_GSO as u64;
        /// Frames dropped by the receive rate limit: packets, bytes.
        const RX_SPEED = VIRTIO_NET_STATS_TYPE_RX_SPEED as u64;
        /// Transmitted frames: notifications, packets, bytes, interrupts, drops, malformed frames.
        const TX_BASIC = VIRTIO_NET_STATS_TYPE_TX_BASIC as u64;
        /// Transmitted frames by checksum: none to compute, computed by the device.
        const TX_CSUM = VIRTIO_NET_STATS_TYPE_TX_CSUM as u64;
        /// Transmitted super-frames: packets and bytes, packets and bytes of the segments, packets and bytes of
        /// super-frames with a single segment.
        const TX_GSO = VIRTIO_NET_STATS_TYPE_TX_GSO as u64;
        /// Frames dropped by the transmit rate limit: packets, bytes.
        const TX_SPEED = VIRTIO_NET_STATS_TYPE_TX_SPEED as u64;
        /// Control commands: all commands, successful commands.
        const CVQ = VIRTIO_NET_STATS_TYPE_CVQ;
    }
}

impl StatisticsTypes {
    /// The kinds of statistics of a receive queue.
    pub const RX: Self = Self::RX_BASIC.union(Self::RX_CSUM).union(Self::RX_GSO).union(Self::RX_SPEED);
    /// The kinds of statistics of a transmit queue.
    pub const TX: Self = Self::TX_BASIC.union(Self::TX_CSUM).union(Self::TX_GSO).union(Self::TX_SPEED);

    /// Returns the number of counters of a single kind of statistics.
    fn counters(self) -> usize {
        match self {
            Self::CVQ | Self::TX_CSUM | Self::RX_SPEED | Self::TX_SPEED => 2,
            Self::RX_CSUM | Self::RX_GSO => 4,
            _ => 6,
        }
    }
}

/// A request for one queue's statistics (an element of `virtio_net_ctrl_queue_stats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatisticsOf {
    /// Index of the queue.
    pub vq_index: u16,
    /// Requested kinds of statistics, including bits without a name.
    pub types: StatisticsTypes,
}

/// Length of a `virtio_net_ctrl_queue_stats` element in bytes.
const REQUEST_LEN: usize = 16;

impl StatisticsOf {
    /// Parses the elements of a command. Bytes after the last whole element are ignored.
    pub(super) fn parse(fields: &[u8]) -> Vec<Self> {
        let (elements, _) = fields.as_chunks::<REQUEST_LEN>();
        let of_element = |[low, high, _, _, _, _, _, _, types @ ..]: &[u8; REQUEST_LEN]| Self {
            vq_index: u16::from_le_bytes([*low, *high]),
            types: StatisticsTypes::from_bits_retain(u64::from_le_bytes(*types)),
        };
        elements.iter().map(of_element).collect()
    }
}

/// Appends the reply for one kind of statistics to an answer: `virtio_net_stats_reply_hdr`, then the counters. If
/// `counters` is too short, the missing counters are written as 0.
pub fn append_reply(answer: &mut Vec<u8>, vq_index: u16, kind: StatisticsTypes, counters: &[u64]) {
    let count = kind.counters();
    // `size` includes the header.
    let size = (size_of::<u64>() * (1 + count)) as u16;
    let type_of_reply = kind.bits().trailing_zeros() as u8;
    answer.extend([type_of_reply, 0]);
    answer.extend([vq_index, 0, size].into_iter().flat_map(u16::to_le_bytes));
    answer.extend(counters.iter().copied().chain(std::iter::repeat(0)).take(count).flat_map(u64::to_le_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_linux_sends_them() {
        let basic_and_checksum = [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        let control = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let bytes = [&basic_and_checksum[..], &control, &[1, 2, 3]].concat();
        let of = |vq_index, types| StatisticsOf { vq_index, types };
        let expected = [of(0, StatisticsTypes::RX_BASIC | StatisticsTypes::RX_CSUM), of(4, StatisticsTypes::CVQ)];
        assert_eq!(StatisticsOf::parse(&bytes), expected);
        let unknown = StatisticsOf::parse(&[0xff; 16]);
        assert_eq!((unknown[0].vq_index, unknown[0].types.bits()), (u16::MAX, u64::MAX));
    }

    /// Compares with the sizes of the structures in Linux' `include/uapi/linux/virtio_net.h`.
    #[test]
    fn replies_have_the_sizes_and_types_of_the_specification() {
        let sizes = [
            (StatisticsTypes::CVQ, 32, 24),
            (StatisticsTypes::RX_BASIC, 0, 56),
            (StatisticsTypes::RX_CSUM, 1, 40),
            (StatisticsTypes::RX_GSO, 2, 40),
            (StatisticsTypes::RX_SPEED, 3, 24),
            (StatisticsTypes::TX_BASIC, 16, 56),
            (StatisticsTypes::TX_CSUM, 17, 24),
            (StatisticsTypes::TX_GSO, 18, 56),
            (StatisticsTypes::TX_SPEED, 19, 24),
        ];
        for (kind, number, size) in sizes {
            let mut answer = vec![0xee];
            append_reply(&mut answer, 0x0102, kind, &[7, 8]);
            let header = [number, 0, 2, 1, 0, 0, size as u8, 0];
            assert_eq!((answer.len(), &answer[1..9]), (1 + size, &header[..]), "{kind:?}");
            assert_eq!(answer[9..25], [7u64.to_le_bytes(), 8u64.to_le_bytes()].concat(), "{kind:?}");
            assert!(answer[25..].iter().all(|byte| *byte == 0));
        }
    }
}
