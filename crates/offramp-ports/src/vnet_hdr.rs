//! The virtio network header (`struct virtio_net_hdr_v1`, virtio 1.3, 5.1.6) in front of every frame
//! of a TAP, and what it means. All fields are little-endian; nothing of the frame itself is read or
//! changed.
//!
//! | bytes | field         | meaning                                                 |
//! |-------|---------------|---------------------------------------------------------|
//! | 0     | `flags`       | [`NEEDS_CSUM`], [`DATA_VALID`]                          |
//! | 1     | `gso_type`    | [`GSO_NONE`] … [`GSO_UDP_L4`], or'ed with [`GSO_ECN`]   |
//! | 2–3   | `hdr_len`     | bytes of all headers: a hint, 0 when not known          |
//! | 4–5   | `gso_size`    | payload bytes of every segment but the last             |
//! | 6–7   | `csum_start`  | first byte to sum                                       |
//! | 8–9   | `csum_offset` | the checksum field, from `csum_start`                   |
//! | 10–11 | `num_buffers` | 1 towards the host (5.1.6.4.1), not read from it        |

use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};

/// Bytes of the header.
pub const HEADER_LEN: usize = 12;

/// `flags`: the checksum is partial (virtio 1.3, 5.1.6, `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was verified (virtio 1.3, 5.1.6, `VIRTIO_NET_HDR_F_DATA_VALID`).
pub const DATA_VALID: u8 = 2;

/// `gso_type`: one frame as it is (virtio 1.3, 5.1.6).
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4 (virtio 1.3, 5.1.6).
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: one UDP datagram into IP fragments, UFO (virtio 1.3, 5.1.6).
pub const GSO_UDP: u8 = 3;
/// `gso_type`: TCP over IPv6 (virtio 1.3, 5.1.6).
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP datagrams of equal size, USO (virtio 1.3, 5.1.6).
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type`: the TCP segment carries CWR (virtio 1.3, 5.1.6).
pub const GSO_ECN: u8 = 0x80;

/// Frames of the host's that this header's `num_buffers` says it fills (virtio 1.3, 5.1.6.4.1).
const ONE_BUFFER: u16 = 1;

/// A header that says nothing we could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VnetError {
    /// A segmentation that is not in the specification we speak.
    #[error("unknown gso_type {0:#04x}")]
    GsoType(u8),
    /// A segmentation into segments without payload.
    #[error("gso_type {0:#04x} with gso_size 0")]
    GsoSize(u8),
}

/// Reads what a host asks for one frame.
///
/// `DATA_VALID` (a frame that the host forwards after its own adapter verified it) asks for nothing.
///
/// # Errors
/// When the header asks for a segmentation that does not exist or that has no size.
pub fn decode_tx(header: &[u8; HEADER_LEN]) -> Result<TxMeta, VnetError> {
    Ok(TxMeta { checksum: decode_checksum(header), segmentation: decode_segmentation(header)? })
}

/// Writes what a host asks for one frame, as the host would.
pub fn encode_tx(meta: &TxMeta) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    encode_segmentation(&mut header, meta.segmentation);
    if let Some(partial) = meta.checksum {
        encode_checksum(&mut header, partial);
    }
    header
}

/// Reads what an adapter tells of one frame, as the host would. The header does not say how many
/// frames were joined, so `segments` is 1; it has no hash and no queue.
///
/// # Errors
/// When the header tells of a segmentation that does not exist or that has no size.
pub fn decode_rx(header: &[u8; HEADER_LEN]) -> Result<RxMeta, VnetError> {
    let checksum = match decode_checksum(header) {
        Some(partial) => ChecksumState::Partial(partial),
        None if header[0] & DATA_VALID != 0 => ChecksumState::Good,
        None => ChecksumState::Unknown,
    };
    let segmentation = decode_segmentation(header)?;
    Ok(RxMeta { checksum, segmentation, header_len: field(header, 2), ..RxMeta::default() })
}

/// Writes what the adapter tells a host of one frame.
///
/// The header cannot say that a checksum is wrong: `Bad` is told as `Unknown` is, and the host sums
/// for itself.
pub fn encode_rx(meta: &RxMeta) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    set_field(&mut header, 2, meta.header_len);
    set_field(&mut header, 10, ONE_BUFFER);
    encode_segmentation(&mut header, meta.segmentation);
    match meta.checksum {
        ChecksumState::Partial(partial) => encode_checksum(&mut header, partial),
        ChecksumState::Good => header[0] = DATA_VALID,
        ChecksumState::Bad | ChecksumState::Unknown => {}
    }
    header
}

fn decode_checksum(header: &[u8; HEADER_LEN]) -> Option<PartialChecksum> {
    let needed = header[0] & NEEDS_CSUM != 0;
    needed.then(|| PartialChecksum { start: field(header, 6), offset: field(header, 8) })
}

fn encode_checksum(header: &mut [u8; HEADER_LEN], partial: PartialChecksum) {
    header[0] = NEEDS_CSUM;
    set_field(header, 6, partial.start);
    set_field(header, 8, partial.offset);
}

fn decode_segmentation(header: &[u8; HEADER_LEN]) -> Result<Option<Segmentation>, VnetError> {
    let gso_type = header[1];
    let kind = match gso_type & !GSO_ECN {
        GSO_NONE if gso_type == GSO_NONE => return Ok(None),
        GSO_TCPV4 => SegmentationKind::Tcp4,
        GSO_TCPV6 => SegmentationKind::Tcp6,
        GSO_UDP_L4 => SegmentationKind::Udp,
        GSO_UDP => SegmentationKind::UdpFragments,
        _ => return Err(VnetError::GsoType(gso_type)),
    };
    match field(header, 4) {
        0 => Err(VnetError::GsoSize(gso_type)),
        size => Ok(Some(Segmentation { kind, size, ecn: gso_type & GSO_ECN != 0 })),
    }
}

fn encode_segmentation(header: &mut [u8; HEADER_LEN], segmentation: Option<Segmentation>) {
    let Some(Segmentation { kind, size, ecn }) = segmentation else { return };
    let gso_type = match kind {
        SegmentationKind::Tcp4 => GSO_TCPV4,
        SegmentationKind::Tcp6 => GSO_TCPV6,
        SegmentationKind::Udp => GSO_UDP_L4,
        SegmentationKind::UdpFragments => GSO_UDP,
    };
    header[1] = if ecn { gso_type | GSO_ECN } else { gso_type };
    set_field(header, 4, size);
}

fn field(header: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn set_field(header: &mut [u8; HEADER_LEN], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn partial() -> impl Strategy<Value = PartialChecksum> {
        (any::<u16>(), any::<u16>()).prop_map(|(start, offset)| PartialChecksum { start, offset })
    }

    fn segmentation() -> impl Strategy<Value = Segmentation> {
        use SegmentationKind::{Tcp4, Tcp6, Udp, UdpFragments};
        let kind = prop_oneof![Just(Tcp4), Just(Tcp6), Just(Udp), Just(UdpFragments)];
        (kind, 1u16.., any::<bool>()).prop_map(|(kind, size, ecn)| Segmentation { kind, size, ecn })
    }

    proptest! {
        #[test]
        fn what_a_host_asks_survives_the_header(
            checksum in proptest::option::of(partial()),
            segmentation in proptest::option::of(segmentation()),
        ) {
            let meta = TxMeta { checksum, segmentation };
            prop_assert_eq!(decode_tx(&encode_tx(&meta)), Ok(meta));
        }

        #[test]
        fn what_an_adapter_tells_survives_the_header(
            checksum in prop_oneof![
                Just(ChecksumState::Unknown),
                Just(ChecksumState::Good),
                partial().prop_map(ChecksumState::Partial),
            ],
            segmentation in proptest::option::of(segmentation()),
            header_len: u16,
        ) {
            let meta = RxMeta { checksum, segmentation, header_len, ..RxMeta::default() };
            prop_assert_eq!(decode_rx(&encode_rx(&meta)), Ok(meta));
        }

        #[test]
        fn any_twelve_bytes_are_read_or_refused_alike_in_both_directions(header: [u8; HEADER_LEN]) {
            let (tx, rx) = (decode_tx(&header), decode_rx(&header));
            prop_assert_eq!(tx.map(|m| m.segmentation), rx.map(|m| m.segmentation));
            if let Ok(meta) = tx {
                prop_assert_eq!(decode_tx(&encode_tx(&meta)), Ok(meta));
            }
        }
    }

    #[test]
    fn a_bad_checksum_is_told_as_not_verified() {
        let bad = RxMeta { checksum: ChecksumState::Bad, ..RxMeta::default() };
        assert_eq!(encode_rx(&bad), encode_rx(&RxMeta::default()));
    }

    #[test]
    fn the_layout_is_the_specifications() {
        let checksum = Some(PartialChecksum { start: 0x0122, offset: 0x0010 });
        let segmentation = Some(Segmentation { kind: SegmentationKind::Tcp4, size: 0x05a8, ecn: true });
        let header = encode_tx(&TxMeta { checksum, segmentation });
        assert_eq!(header, [1, 0x81, 0, 0, 0xa8, 0x05, 0x22, 0x01, 0x10, 0, 0, 0]);
        let good = RxMeta { checksum: ChecksumState::Good, header_len: 66, ..RxMeta::default() };
        assert_eq!(encode_rx(&good), [2, 0, 66, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn a_segmentation_that_does_not_exist_is_refused() {
        for gso_type in [2, 6, 0x20, 0x21, 0x7f, GSO_ECN] {
            let header = [0, gso_type, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(decode_tx(&header), Err(VnetError::GsoType(gso_type)));
        }
        let no_size = [NEEDS_CSUM, GSO_TCPV4, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
        assert_eq!(decode_tx(&no_size), Err(VnetError::GsoSize(GSO_TCPV4)));
    }
}
