//! The virtio network header before every frame (virtio 1.3, 5.1.6). The fields can have any values, valid or not.

use crate::features;

/// Length of `struct virtio_net_hdr` with `num_buffers` in bytes (virtio 1.3, 5.1.6).
pub const BASE_LEN: usize = 12;
/// Length of the header of a legacy driver without mergeable buffers, in bytes. A legacy header lacks `num_buffers`
/// (virtio 1.3, 5.1.6.1).
pub const LEGACY_LEN: usize = 10;
/// Length of the header with hash value and hash report in bytes (virtio 1.3, 5.1.6, `HASH_REPORT`).
pub const HASH_LEN: usize = 20;

/// `flags`: compute the checksum from `csum_start` on and store it at `csum_offset`.
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was verified.
pub const DATA_VALID: u8 = 2;
/// `gso_type`: a single frame without segmentation.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: segment TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: divide one UDP datagram into IP fragments.
pub const GSO_UDP: u8 = 3;
/// `gso_type`: segment TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: segment into UDP datagrams of equal size.
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type`, or'ed: the TCP segment has CWR set.
pub const GSO_ECN: u8 = 0x80;
/// `gso_type`, or'ed: every segment keeps CWR (proposed: virtio-spec issue 232).
pub const GSO_ACCECN: u8 = 0x10;

/// The fields of the header (virtio 1.3, 5.1.6). In the ring, every field is little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// Flags, such as [`NEEDS_CSUM`] and [`DATA_VALID`].
    pub flags: u8,
    /// Segmentation type: [`GSO_NONE`] to [`GSO_UDP_L4`], or'ed with [`GSO_ECN`].
    pub gso_type: u8,
    /// Length of all headers of the frame in bytes.
    pub hdr_len: u16,
    /// Payload bytes of every segment except the last.
    pub gso_size: u16,
    /// Offset of the first byte covered by the checksum.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Number of buffers filled by a received frame.
    pub num_buffers: u16,
}

impl VnetHeader {
    /// Returns the request to segment a TCP frame over IPv4 into segments with `gso_size` bytes of payload. The frame has
    /// neither VLAN tags nor options.
    pub fn tcp4(gso_size: u16) -> Self {
        let (hdr_len, csum_start, csum_offset) = (54, 34, 16);
        Self { flags: NEEDS_CSUM, gso_type: GSO_TCPV4, hdr_len, gso_size, csum_start, csum_offset, num_buffers: 0 }
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; BASE_LEN] {
        let mut bytes = [0; BASE_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let words = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses the first [`BASE_LEN`] bytes. With only [`LEGACY_LEN`] bytes, `num_buffers` is 1. Panics if `bytes` is
    /// shorter.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        assert!(bytes.len() >= LEGACY_LEN, "a virtio-net header has {LEGACY_LEN} bytes, here are {}", bytes.len());
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: if bytes.len() < BASE_LEN { 1 } else { word(10) },
        }
    }
}

/// Returns the length of the header in bytes for the negotiated `features` (virtio 1.3, 5.1.6).
pub fn header_len(features: u64) -> usize {
    match features {
        _ if features & features::HASH_REPORT != 0 => HASH_LEN,
        _ if features & (features::VERSION_1 | features::MRG_RXBUF) == 0 => LEGACY_LEN,
        _ => BASE_LEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_bytes() {
        let header = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 0x0102,
            gso_size: 0x0304,
            csum_start: 0x0506,
            csum_offset: 0x0708,
            num_buffers: 0x090a,
        };
        assert_eq!(header.to_bytes(), [1, 0x81, 2, 1, 4, 3, 6, 5, 8, 7, 0x0a, 9]);
        assert_eq!(VnetHeader::from_bytes(&header.to_bytes()), header);
    }
}
