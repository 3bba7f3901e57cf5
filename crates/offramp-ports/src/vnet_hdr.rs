//! Encodes and decodes the virtio network header before each frame: offloads requested by a host, and reports of the
//! adapter to a host. [`offramp_virtio::net_header`] defines the fields. This module neither reads nor changes the
//! frame.

use offramp_offload::meta::{ChecksumState, Cwr, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};

use offramp_virtio::net_header::NetHeader;
pub use offramp_virtio::net_header::{
    DATA_VALID, GSO_ACCECN, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, HEADER_LEN, NEEDS_CSUM,
};

/// Default of `num_buffers`, the number of descriptor chains that hold the frame (virtio 1.3, 5.1.6.4.1).
const ONE_BUFFER: u16 = 1;

/// An error in a header: an unknown or contradictory request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VnetError {
    /// A `gso_type` that is not in the specification.
    #[error("unknown gso_type {0:#04x}")]
    GsoType(u8),
    /// A segmentation with a segment size of 0.
    #[error("gso_type {0:#04x} with gso_size 0")]
    GsoSize(u8),
}

/// Decodes a host's request for one frame.
///
/// The flag `DATA_VALID` requests no operation. The flag states that the host's own adapter verified the checksum of a
/// forwarded frame.
///
/// # Errors
/// Returns an error if the header requests an unknown segmentation or a segment size of 0.
#[inline]
pub fn decode_tx(header: &[u8; HEADER_LEN]) -> Result<TxMeta, VnetError> {
    let header = NetHeader::from_bytes(header);
    Ok(TxMeta { checksum: decode_checksum(&header), segmentation: decode_segmentation(&header)? })
}

/// Encodes a request for one frame, as a host does.
pub fn encode_tx(meta: &TxMeta) -> [u8; HEADER_LEN] {
    let mut header = NetHeader::default();
    encode_segmentation(&mut header, meta.segmentation);
    if let Some(partial) = meta.checksum {
        encode_checksum(&mut header, partial);
    }
    header.to_bytes()
}

/// Decodes the metadata of a received frame, as a host does. The header lacks the number of coalesced frames, so
/// `segments` is 1. The header also lacks a hash and a queue.
///
/// # Errors
/// Returns an error if the header reports an unknown segmentation or a segment size of 0.
pub fn decode_rx(header: &[u8; HEADER_LEN]) -> Result<RxMeta, VnetError> {
    let header = NetHeader::from_bytes(header);
    let checksum = match decode_checksum(&header) {
        Some(partial) => ChecksumState::Partial(partial),
        None if header.flags & DATA_VALID != 0 => ChecksumState::Good,
        None => ChecksumState::Unknown,
    };
    let segmentation = decode_segmentation(&header)?;
    Ok(RxMeta { checksum, segmentation, header_len: header.hdr_len, ..RxMeta::default() })
}

/// Encodes the metadata of a received frame for the host.
///
/// The header cannot report a wrong checksum. `Bad` is therefore encoded like `Unknown`, and the host verifies the
/// checksum.
#[inline]
pub fn encode_rx(meta: &RxMeta) -> [u8; HEADER_LEN] {
    rx_header(meta).to_bytes()
}

/// Returns the header encoded by [`encode_rx`], before conversion to bytes.
#[inline]
pub(crate) fn rx_header(meta: &RxMeta) -> NetHeader {
    let mut header = NetHeader { hdr_len: meta.header_len, num_buffers: ONE_BUFFER, ..NetHeader::default() };
    encode_segmentation(&mut header, meta.segmentation);
    match meta.checksum {
        ChecksumState::Partial(partial) => encode_checksum(&mut header, partial),
        ChecksumState::Good => header.flags = DATA_VALID,
        ChecksumState::Bad | ChecksumState::Unknown => {}
    }
    header
}

#[inline]
fn decode_checksum(header: &NetHeader) -> Option<PartialChecksum> {
    let needed = header.flags & NEEDS_CSUM != 0;
    needed.then_some(PartialChecksum { start: header.csum_start, offset: header.csum_offset })
}

#[inline]
fn encode_checksum(header: &mut NetHeader, partial: PartialChecksum) {
    header.flags = NEEDS_CSUM;
    header.csum_start = partial.start;
    header.csum_offset = partial.offset;
}

#[inline]
fn decode_segmentation(header: &NetHeader) -> Result<Option<Segmentation>, VnetError> {
    let gso_type = header.gso_type;
    let kind = match gso_type & !(GSO_ECN | GSO_ACCECN) {
        GSO_NONE if gso_type == GSO_NONE => return Ok(None),
        GSO_TCPV4 => SegmentationKind::Tcp4,
        GSO_TCPV6 => SegmentationKind::Tcp6,
        GSO_UDP_L4 => SegmentationKind::Udp,
        GSO_UDP => SegmentationKind::UdpFragments,
        _ => return Err(VnetError::GsoType(gso_type)),
    };
    match header.gso_size {
        0 => Err(VnetError::GsoSize(gso_type)),
        size => Ok(Some(Segmentation { kind, size, cwr: decode_cwr(gso_type) })),
    }
}

/// If `GSO_ECN` and `GSO_ACCECN` are both set, `GSO_ACCECN` takes precedence, as in the Linux patch for AccECN.
#[inline]
fn decode_cwr(gso_type: u8) -> Cwr {
    if gso_type & GSO_ACCECN != 0 {
        Cwr::All
    } else if gso_type & GSO_ECN != 0 {
        Cwr::First
    } else {
        Cwr::Unmarked
    }
}

#[inline]
fn encode_segmentation(header: &mut NetHeader, segmentation: Option<Segmentation>) {
    let Some(Segmentation { kind, size, cwr }) = segmentation else { return };
    let gso_type = match kind {
        SegmentationKind::Tcp4 => GSO_TCPV4,
        SegmentationKind::Tcp6 => GSO_TCPV6,
        SegmentationKind::Udp => GSO_UDP_L4,
        SegmentationKind::UdpFragments => GSO_UDP,
    };
    header.gso_type = gso_type
        | match cwr {
            Cwr::Unmarked => 0,
            Cwr::First => GSO_ECN,
            Cwr::All => GSO_ACCECN,
        };
    header.gso_size = size;
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
        let cwr = prop_oneof![Just(Cwr::Unmarked), Just(Cwr::First), Just(Cwr::All)];
        (kind, 1u16.., cwr).prop_map(|(kind, size, cwr)| Segmentation { kind, size, cwr })
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
        let segmentation = Some(Segmentation { kind: SegmentationKind::Tcp4, size: 0x05a8, cwr: Cwr::First });
        let header = encode_tx(&TxMeta { checksum, segmentation });
        assert_eq!(header, [1, 0x81, 0, 0, 0xa8, 0x05, 0x22, 0x01, 0x10, 0, 0, 0]);
        let good = RxMeta { checksum: ChecksumState::Good, header_len: 66, ..RxMeta::default() };
        assert_eq!(encode_rx(&good), [2, 0, 66, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn a_segmentation_that_does_not_exist_is_refused() {
        for gso_type in [2, 6, 0x20, 0x21, 0x7f, GSO_ECN, GSO_ACCECN] {
            let header = [0, gso_type, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(decode_tx(&header), Err(VnetError::GsoType(gso_type)));
        }
        let no_size = [NEEDS_CSUM, GSO_TCPV4, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
        assert_eq!(decode_tx(&no_size), Err(VnetError::GsoSize(GSO_TCPV4)));
    }

    #[test]
    fn every_type_flag_and_border_of_a_size_is_read_as_the_specification_says() {
        use SegmentationKind::{Tcp4, Tcp6, Udp, UdpFragments};
        let kinds = [(1, Tcp4), (3, UdpFragments), (4, Tcp6), (5, Udp)];
        let borders = [0, 1, 2, 0x00ff, 0x0100, 0x7fff, 0x8000, u16::MAX - 1, u16::MAX];
        for (flags, gso_type) in (0..=u8::MAX).flat_map(|flags| (0..=u8::MAX).map(move |gso_type| (flags, gso_type))) {
            for (n, size) in borders.into_iter().enumerate() {
                // The other fields take the border values in a different order.
                let (start, offset) = (borders[(n + 3) % borders.len()], borders[(2 * n + 5) % borders.len()]);
                let (hdr_len, num_buffers) =
                    (borders[(4 * n + 1) % borders.len()], borders[(5 * n + 7) % borders.len()]);
                let header = NetHeader {
                    flags,
                    gso_type,
                    hdr_len,
                    gso_size: size,
                    csum_start: start,
                    csum_offset: offset,
                    num_buffers,
                    ..NetHeader::default()
                };
                let kind = kinds.iter().find(|(number, _)| *number == gso_type & 0x6f).map(|(_, kind)| *kind);
                let segmentation = match (gso_type, kind, size) {
                    (0, ..) => Ok(None),
                    (_, None, _) => Err(VnetError::GsoType(gso_type)),
                    (_, Some(_), 0) => Err(VnetError::GsoSize(gso_type)),
                    (_, Some(kind), _) => {
                        let cwr = match (gso_type & 0x10, gso_type & 0x80) {
                            (0x10, _) => Cwr::All,
                            (_, 0x80) => Cwr::First,
                            _ => Cwr::Unmarked,
                        };
                        Ok(Some(Segmentation { kind, size, cwr }))
                    }
                };
                let partial = (flags % 2 == 1).then_some(PartialChecksum { start, offset });
                let expected = segmentation.map(|segmentation| TxMeta { checksum: partial, segmentation });
                assert_eq!(decode_tx(&header.to_bytes()), expected, "{header:?}");
                let checksum = match (partial, flags & 2) {
                    (Some(partial), _) => ChecksumState::Partial(partial),
                    (None, 0) => ChecksumState::Unknown,
                    (None, _) => ChecksumState::Good,
                };
                let expected = segmentation.map(|segmentation| RxMeta {
                    checksum,
                    segmentation,
                    header_len: hdr_len,
                    ..RxMeta::default()
                });
                assert_eq!(decode_rx(&header.to_bytes()), expected, "{header:?}");
            }
        }
    }
}
