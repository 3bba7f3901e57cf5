//! CRC-32C, the checksum of an SCTP packet (RFC 9260 6.8 and appendix A). CRC-32C covers no pseudo-header, so a sender
//! that offloads the checksum leaves the checksum field zero.

/// IP protocol number of SCTP.
pub(crate) const PROTOCOL_SCTP: u8 = 132;
/// Offset of the checksum in SCTP's common header (RFC 9260 3.1).
pub(crate) const SCTP_CHECKSUM_OFFSET: usize = 8;
/// Length of SCTP's common header in bytes. The checksum is the last field of the header.
pub(crate) const SCTP_HEADER_LEN: usize = 12;
/// Castagnoli's polynomial, with the lowest coefficient in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Number of bytes that [`update`] processes per step.
const STEP_LEN: usize = 8;

/// Table of remainders: `TABLES[n][byte]` is the remainder of `byte` followed by `n` zero bytes.
static TABLES: [[u32; 256]; STEP_LEN] = tables();

const fn tables() -> [[u32; 256]; STEP_LEN] {
    let mut tables = [[0; 256]; STEP_LEN];
    let mut at = 0;
    while at < STEP_LEN * 256 {
        let (n, byte) = (at / 256, at % 256);
        tables[n][byte] = if n == 0 {
            remainder(byte as u32)
        } else {
            let before = tables[n - 1][byte];
            before >> 8 ^ tables[0][(before & 0xff) as usize]
        };
        at += 1;
    }
    tables
}

/// Computes the remainder of eight bits, bit by bit.
const fn remainder(mut bits: u32) -> u32 {
    let mut left = 8;
    while left > 0 {
        bits = if bits & 1 == 0 { bits >> 1 } else { bits >> 1 ^ POLYNOMIAL };
        left -= 1;
    }
    bits
}

/// Returns the remainder of a message after appending `bytes`. `crc` is the remainder of the message before `bytes`.
fn update(mut crc: u32, bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<STEP_LEN>();
    for step in steps {
        let word = u64::from_le_bytes(*step) ^ u64::from(crc);
        crc = (0..STEP_LEN).fold(0, |crc, n| crc ^ TABLES[STEP_LEN - 1 - n][(word >> (8 * n) & 0xff) as usize]);
    }
    rest.iter().fold(crc, |crc, &byte| crc >> 8 ^ TABLES[0][(crc as u8 ^ byte) as usize])
}

/// Writes the checksum of the SCTP packet that fills `packet`. The old value of the checksum field is ignored. A packet
/// shorter than SCTP's common header stays unchanged.
pub(crate) fn write_sctp(packet: &mut [u8]) {
    let Some((header, rest)) = packet.split_at_mut_checked(SCTP_HEADER_LEN) else { return };
    header[SCTP_CHECKSUM_OFFSET..].fill(0);
    let crc = !update(update(!0, header), rest);
    header[SCTP_CHECKSUM_OFFSET..].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the remainder bit by bit.
    fn oracle(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, &byte| crc >> 8 ^ remainder((crc ^ u32::from(byte)) & 0xff))
    }

    #[test]
    fn the_remainders_are_those_of_rfc_3720() {
        // Known answers of RFC 3720 appendix B.4.
        let counted: Vec<u8> = (0..32).collect();
        for (bytes, crc) in [(&[0; 32][..], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (&counted, 0x46dd_794e)] {
            assert_eq!((!update(!0, bytes), oracle(bytes)), (crc, crc));
        }
    }

    proptest! {
        #[test]
        fn every_message_has_the_remainder_of_its_bits(bytes: Vec<u8>, cut in 0usize..64) {
            let cut = cut.min(bytes.len());
            let fast = update(update(!0, &bytes[..cut]), &bytes[cut..]);
            prop_assert_eq!(!fast, oracle(&bytes));
        }

        #[test]
        fn a_packet_has_one_checksum_for_any_old_field(mut packet in prop::collection::vec(any::<u8>(), 12..200)) {
            let mut cleared = packet.clone();
            cleared[8..12].fill(0);
            write_sctp(&mut packet);
            prop_assert_eq!(&packet[8..12], oracle(&cleared).to_le_bytes());
            prop_assert_eq!((&packet[..8], &packet[12..]), (&cleared[..8], &cleared[12..]));
        }
    }
}
