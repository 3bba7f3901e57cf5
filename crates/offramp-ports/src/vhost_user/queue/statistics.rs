//! Queue statistics for a guest's driver (`VIRTIO_NET_F_DEVICE_STATS`). Frames are counted only for a guest that
//! negotiated this feature.

use offramp_adapter::port::PortError;
use offramp_offload::meta::{ChecksumState, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_virtio::control::statistics::StatisticsTypes;

/// Offset of the data offset field in a TCP header, and length of a UDP header in bytes.
const TCP_DATA_OFFSET: usize = 12;
const UDP_HEADER_LEN: u64 = 8;

/// A number of frames and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    packets: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.wrapping_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// Counters of the frames received and sent by a queue pair since its guest negotiated `DEVICE_STATS`.
#[derive(Clone, Debug, Default)]
pub(super) struct Statistics {
    received: Amount,
    rx_drops: u64,
    rx_overruns: u64,
    /// Received frames by checksum state: verified, partial, not verified, wrong.
    rx_checksums: [u64; 4],
    rx_gso: Amount,
    rx_coalesced: Amount,
    rx_over_limit: Amount,
    sent: Amount,
    tx_malformed: u64,
    /// Sent frames without and with a checksum request.
    tx_checksums: [u64; 2],
    tx_gso: Amount,
    tx_segments: Amount,
    tx_unsegmented: Amount,
}

impl Statistics {
    /// Counts a frame of `len` bytes as delivered to the guest, or as lost.
    #[inline(never)]
    pub(super) fn received(&mut self, meta: &RxMeta, len: usize, outcome: Result<(), PortError>) {
        if let Err(error) = outcome {
            self.rx_drops += 1;
            self.rx_overruns += u64::from(error == PortError::Full);
            return;
        }
        let len = len as u64;
        self.received.add(1, len);
        let nth = match meta.checksum {
            ChecksumState::Good => 0,
            ChecksumState::Partial(_) => 1,
            ChecksumState::Unknown => 2,
            ChecksumState::Bad => 3,
        };
        self.rx_checksums[nth] += 1;
        if meta.segmentation.is_some() {
            let segments = u64::from(meta.segments);
            self.rx_gso.add(1, len);
            // Each coalesced segment had its own headers.
            self.rx_coalesced.add(segments, len + segments.saturating_sub(1) * u64::from(meta.header_len));
        }
    }

    /// Counts a frame that was discarded by the port's rate limit. The frame counts as `frames` packets, the number of
    /// frames that it makes on the wire, as in the port's own counter. A super-frame lost for lack of buffers counts as
    /// one packet.
    pub(super) fn lost_to_limit(&mut self, frames: u64, bytes: u64) {
        self.rx_drops += frames;
        self.rx_over_limit.add(frames, bytes);
    }

    /// Counts a frame of `len` bytes sent by the guest. `front` has the frame's headers.
    pub(super) fn sent(&mut self, meta: &TxMeta, front: &[u8], len: usize) {
        let len = len as u64;
        self.sent.add(1, len);
        self.tx_checksums[usize::from(meta.checksum.is_some())] += 1;
        let Some(segmentation) = meta.segmentation else { return };
        self.tx_gso.add(1, len);
        let headers = headers_len(meta, segmentation, front).min(len);
        let segments = (len - headers).div_ceil(u64::from(segmentation.size)).max(1);
        if segments == 1 {
            self.tx_unsegmented.add(1, len);
        }
        self.tx_segments.add(segments, len + (segments - 1) * headers);
    }

    /// Counts a chain without a frame, or an invalid request.
    pub(super) fn malformed(&mut self) {
        self.tx_malformed += 1;
    }

    /// Returns the counters of one type, in the order of the specification. `notified` is the number of notifications
    /// sent to the guest for this ring. The number of the guest's kicks is unknown, because simultaneous kicks appear
    /// as a single kick.
    pub(super) fn counters(&self, kind: StatisticsTypes, notified: u64) -> Vec<u64> {
        let pairs = |amounts: &[Amount]| amounts.iter().flat_map(|amount| [amount.packets, amount.bytes]).collect();
        match kind {
            StatisticsTypes::RX_BASIC => {
                vec![0, self.received.packets, self.received.bytes, notified, self.rx_drops, self.rx_overruns]
            }
            StatisticsTypes::RX_CSUM => self.rx_checksums.to_vec(),
            StatisticsTypes::RX_GSO => pairs(&[self.rx_gso, self.rx_coalesced]),
            StatisticsTypes::RX_SPEED => pairs(&[self.rx_over_limit]),
            StatisticsTypes::TX_BASIC => {
                vec![0, self.sent.packets, self.sent.bytes, notified, self.tx_malformed, self.tx_malformed]
            }
            StatisticsTypes::TX_CSUM => self.tx_checksums.to_vec(),
            StatisticsTypes::TX_GSO => pairs(&[self.tx_gso, self.tx_segments, self.tx_unsegmented]),
            // A transmit frame over the limit stays in the guest's ring, and is not dropped.
            StatisticsTypes::TX_SPEED => vec![0; 2],
            _ => Vec::new(),
        }
    }
}

/// Returns the length of the headers in each segment of a super-frame, in bytes. The checksum request contains the
/// start of the transport header.
fn headers_len(meta: &TxMeta, segmentation: Segmentation, frame: &[u8]) -> u64 {
    let Some(start) = meta.checksum.map(|partial| usize::from(partial.start)) else { return 0 };
    let of_transport = match segmentation.kind {
        SegmentationKind::Tcp4 | SegmentationKind::Tcp6 => {
            frame.get(start + TCP_DATA_OFFSET).map_or(0, |words| u64::from(words >> 4) * 4)
        }
        SegmentationKind::Udp => UDP_HEADER_LEN,
        // Only the IP header is repeated in each IP fragment. The UDP header is part of the first fragment's payload.
        SegmentationKind::UdpFragments => 0,
    };
    start as u64 + of_transport
}
