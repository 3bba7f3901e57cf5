//! The virtio network header (`struct virtio_net_hdr_v1`, virtio 1.3, 5.1.6) before every frame. All fields are
//! little-endian.
//!
//! | bytes | field         | meaning                                                 |
//! |-------|---------------|---------------------------------------------------------|
//! | 0     | `flags`       | [`NEEDS_CSUM`], [`DATA_VALID`]                          |
//! | 1     | `gso_type`    | [`GSO_NONE`] … [`GSO_UDP_L4`], or'ed with [`GSO_ECN`]   |
//! | 2–3   | `hdr_len`     | length of all headers: a hint, 0 if unknown             |
//! | 4–5   | `gso_size`    | payload bytes of every segment except the last          |
//! | 6–7   | `csum_start`  | offset of the first byte covered by the checksum        |
//! | 8–9   | `csum_offset` | offset of the checksum field from `csum_start`          |
//! | 10–11 | `num_buffers` | number of chains of a received frame                    |
//! | 12–15 | `hash_value`  | the frame's hash, only with `HASH_REPORT`               |
//! | 16–17 | `hash_report` | type of the hash, 0 for none; two zero bytes follow     |

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 12;
/// Length of the header with a hash, in bytes.
pub const HASH_HEADER_LEN: usize = 20;
/// Length of the header for legacy drivers without mergeable buffers, in bytes. A legacy header lacks `num_buffers`.
pub const LEGACY_LEN: usize = 10;

/// `flags`: the checksum is partial (virtio 1.3, 5.1.6, `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was verified (virtio 1.3, 5.1.6, `VIRTIO_NET_HDR_F_DATA_VALID`).
pub const DATA_VALID: u8 = 2;

/// `gso_type`: a single frame without segmentation (virtio 1.3, 5.1.6).
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4 (virtio 1.3, 5.1.6).
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: one UDP datagram to divide into IP fragments, UFO (virtio 1.3, 5.1.6).
pub const GSO_UDP: u8 = 3;
/// `gso_type`: TCP over IPv6 (virtio 1.3, 5.1.6).
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP datagrams of equal size, USO (virtio 1.3, 5.1.6).
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type`: the TCP segment carries CWR (virtio 1.3, 5.1.6).
pub const GSO_ECN: u8 = 0x80;
/// `gso_type`: every segment keeps CWR, for AccECN. The value is proposed, not ratified (virtio-spec issue 232; Linux
/// patch "`virtio_net`: add AccECN feature negotiation and correct ECN flag handling", v3, 2026-02-03).
pub const GSO_ACCECN: u8 = 0x10;

/// The fields of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// Flags: [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// Segmentation type: [`GSO_NONE`] to [`GSO_UDP_L4`], or'ed with [`GSO_ECN`] or [`GSO_ACCECN`].
    pub gso_type: u8,
    /// Length of all headers in bytes: a hint, 0 if unknown.
    pub hdr_len: u16,
    /// Payload bytes of every segment except the last.
    pub gso_size: u16,
    /// Offset of the first byte covered by the checksum.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Number of chains of a received frame.
    pub num_buffers: u16,
    /// Hash of the frame.
    pub hash_value: u32,
    /// Type of the hash.
    pub hash_report: u16,
}

impl NetHeader {
    /// Parses a header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: field(2),
            gso_size: field(4),
            csum_start: field(6),
            csum_offset: field(8),
            num_buffers: field(10),
            ..Self::default()
        }
    }

    /// Returns the bytes of the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let (first, last) = self.words();
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&last.to_le_bytes());
        bytes
    }

    /// Returns the header with the hash. For drivers without `HASH_REPORT`, the caller drops the last 8 bytes.
    pub(crate) fn to_bytes_with_hash(self) -> [u8; HASH_HEADER_LEN] {
        let mut bytes = [0; HASH_HEADER_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&self.to_bytes());
        bytes[HEADER_LEN..].copy_from_slice(&self.hash_word().to_le_bytes());
        bytes
    }

    /// Returns the last 8 bytes of a header with a hash, as a little-endian number.
    #[inline]
    pub(crate) fn hash_word(&self) -> u64 {
        u64::from(self.hash_value) | u64::from(self.hash_report) << 32
    }

    /// Returns the header as two little-endian numbers: the first 8 bytes, and the last 4 bytes. The numbers stay in
    /// registers. If a header were written by fields and read as a whole, the read would wait for all earlier stores,
    /// including stores to guest memory.
    #[inline]
    pub(crate) fn words(&self) -> (u64, u32) {
        let first = u64::from(self.flags) | u64::from(self.gso_type) << 8 | u64::from(self.hdr_len) << 16;
        let first = first | u64::from(self.gso_size) << 32 | u64::from(self.csum_start) << 48;
        (first, u32::from(self.csum_offset) | u32::from(self.num_buffers) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_specifications() {
        let header = NetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 66,
            gso_size: 0x05a8,
            csum_start: 0x0122,
            csum_offset: 0x0010,
            num_buffers: 0x0203,
            ..NetHeader::default()
        };
        let with_hash = NetHeader { hash_value: 0x0405_0607, hash_report: 0x0809, ..header }.to_bytes_with_hash();
        assert_eq!(with_hash[12..], [7, 6, 5, 4, 9, 8, 0, 0]);
        let bytes = [1, 0x81, 66, 0, 0xa8, 0x05, 0x22, 0x01, 0x10, 0, 3, 2];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(NetHeader::from_bytes(&bytes), header);
    }

    #[test]
    fn every_value_of_each_field_lies_where_the_specification_has_it() {
        let others = NetHeader {
            flags: 0x12,
            gso_type: 0x34,
            hdr_len: 0x5678,
            gso_size: 0x9abc,
            csum_start: 0xdef0,
            csum_offset: 0x1357,
            num_buffers: 0x2468,
            ..NetHeader::default()
        };
        let step = if cfg!(miri) { 4099 } else { 1 };
        for value in (0..=u16::MAX).step_by(step) {
            let [low, high] = value.to_le_bytes();
            let fields = [
                (0, 1, NetHeader { flags: low, ..others }),
                (1, 1, NetHeader { gso_type: low, ..others }),
                (2, 2, NetHeader { hdr_len: value, ..others }),
                (4, 2, NetHeader { gso_size: value, ..others }),
                (6, 2, NetHeader { csum_start: value, ..others }),
                (8, 2, NetHeader { csum_offset: value, ..others }),
                (10, 2, NetHeader { num_buffers: value, ..others }),
            ];
            for (at, len, header) in fields {
                let mut bytes = others.to_bytes();
                bytes[at..at + len].copy_from_slice(&[low, high][..len]);
                assert_eq!((header.to_bytes(), NetHeader::from_bytes(&bytes)), (bytes, header), "{value:#x} at {at}");
            }
        }
    }
}
