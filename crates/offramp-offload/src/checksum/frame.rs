//! Checksums in frames: pseudo-header, verify, complete, update.

use super::{Sum, sum};
use crate::layout::{FrameLayout, IPV4_HEADER_LEN_MIN, Network, Transport, UDP_CHECKSUM_OFFSET, put16};
use crate::meta::{ChecksumState, PartialChecksum};

/// Length of a checksum field in bytes.
const CHECKSUM_LEN: usize = 2;

/// Returns the sum of the pseudo-header: both addresses, the protocol and the length (RFC 9293 3.1 and RFC 768 over
/// IPv4, RFC 8200 8.1 over IPv6). `transport_len` is the length of transport header and payload in bytes, and can
/// exceed 65,535 (jumbograms, super-frames).
///
/// The addresses are read from the IP header. If an IPv6 routing header has segments left, the final destination is in
/// the routing header, and the sender's checksum covers that address. So [`verify`] reports such a frame as bad, as
/// every adapter does.
///
/// Returns [`Sum::ZERO`] if the network is opaque.
#[inline]
pub(crate) fn pseudo_header(frame: &[u8], layout: &FrameLayout, transport_len: u32) -> Sum {
    if layout.network == Network::Opaque {
        return Sum::ZERO;
    }
    let addresses = sum(layout.addresses(frame));
    addresses.plus(Sum::long(transport_len)).plus(Sum::word(u16::from(layout.protocol)))
}

/// Verifies the checksums of a frame from the wire.
///
/// * [`ChecksumState::Good`]: the checksums of the IPv4 header (if present) and of TCP or UDP are correct.
/// * [`ChecksumState::Bad`]: one of these checksums is wrong. A UDP checksum of 0 over IPv6 is wrong (RFC 8200 8.1).
/// * [`ChecksumState::Unknown`]: no wrong checksum was found, but not all checksums could be verified. The frame
///   carries no IP, neither TCP nor UDP, only a fragment, or a UDP checksum of 0 over IPv4 (RFC 768: the sender
///   computed no checksum).
pub(crate) fn verify(frame: &[u8], layout: &FrameLayout) -> ChecksumState {
    if !ipv4_header_is_good(frame, layout) {
        return ChecksumState::Bad;
    }
    if layout.network == Network::Opaque || layout.transport == Transport::Opaque {
        return ChecksumState::Unknown;
    }
    let segment = &frame[layout.transport_start..layout.packet_end];
    if layout.transport == Transport::Udp && segment[UDP_CHECKSUM_OFFSET..][..CHECKSUM_LEN] == [0, 0] {
        return match layout.network {
            Network::Ipv4 => ChecksumState::Unknown,
            _ => ChecksumState::Bad,
        };
    }
    let total = pseudo_header(frame, layout, segment.len() as u32).plus(sum(segment));
    if total.is_right() { ChecksumState::Good } else { ChecksumState::Bad }
}

/// Returns false for a wrong checksum of the IPv4 header, options included (RFC 791 3.1). Returns true for every other
/// network protocol, which has no header checksum.
#[inline]
pub(crate) fn ipv4_header_is_good(frame: &[u8], layout: &FrameLayout) -> bool {
    if layout.network != Network::Ipv4 {
        return true;
    }
    let header = &frame[layout.network_start..layout.transport_start];
    // Nearly every header lacks options. A header of constant length needs no loop.
    header.as_array().map_or_else(|| sum(header).is_right(), is_good_ipv4_header)
}

/// Does the same as [`ipv4_header_is_good`], for a header without options.
#[inline]
pub(crate) fn is_good_ipv4_header(header: &[u8; IPV4_HEADER_LEN_MIN]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    Sum(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()).is_right()
}

/// Turns a correct transport checksum into a partial checksum. The checksum field receives the pseudo-header's sum, as
/// in a frame that never left a host. [`complete`] restores the old value of the field (0 as 0xffff).
///
/// The frame must be TCP or UDP, and [`verify`] must have returned [`ChecksumState::Good`].
pub(crate) fn make_partial(frame: &mut [u8], layout: &FrameLayout) -> PartialChecksum {
    let offset = layout.checksum_field() - layout.transport_start;
    let pseudo = pseudo_header(frame, layout, layout.transport_len() as u32).fold();
    put16(frame, layout.checksum_field(), pseudo);
    PartialChecksum { start: layout.transport_start as u16, offset: offset as u16 }
}

/// The reason why [`complete`] completed no checksum. After an error, the frame is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CompleteError {
    /// The end of the packet, as passed by the caller, lies after the frame's end.
    #[error("checksum: packet end {end} lies past the frame of {frame_len} bytes; check the length given")]
    End {
        /// End of the packet as passed by the caller, bytes from the start of the frame.
        end: usize,
        /// Length of the frame, in bytes.
        frame_len: usize,
    },
    /// The checksum field does not lie between the first covered byte and the packet's end.
    #[error(
        "checksum: field at {field} does not lie inside the packet that ends at {end}; check csum_start and csum_offset"
    )]
    Field {
        /// Offset of the checksum field, bytes from the start of the frame.
        field: usize,
        /// End of the packet, bytes from the start of the frame.
        end: usize,
    },
}

/// Completes a checksum: computes the checksum over `frame[partial.start..end]` and writes the checksum to the checksum
/// field. The range includes the field, which holds the pseudo-header's sum.
///
/// Uses the start and the offset from `partial`, even an odd start or a start inside a tunnel. The function reads no
/// header. A result of 0 is written as 0xffff, the same number in one's complement. UDP requires 0xffff in place of 0
/// (RFC 768: 0 means "none"), TCP permits 0xffff, and Linux writes 0xffff for TCP and UDP.
///
/// # Errors
/// Returns an error if `start` or the field lies outside `frame[..end]`, or `end` lies outside the frame. After an
/// error, the frame is unchanged.
#[inline]
pub fn complete(frame: &mut [u8], partial: PartialChecksum, end: usize) -> Result<(), CompleteError> {
    let frame_len = frame.len();
    let packet = frame.get_mut(..end).ok_or(CompleteError::End { end, frame_len })?;
    let field = partial.field();
    if field + CHECKSUM_LEN > end {
        return Err(CompleteError::Field { field, end });
    }
    let checksum = sum(&packet[usize::from(partial.start)..]).checksum_not_zero();
    put16(packet, field, checksum);
    Ok(())
}

/// Returns the checksum field after one 16-bit word of the message changed from `old` to `new`. All values are host
/// integers (RFC 1624 section 3, equation 3: HC' = ~(~HC + ~m + m')).
#[inline]
pub const fn update16(field: u16, old: u16, new: u16) -> u16 {
    let total = !field as u32 + !old as u32 + new as u32;
    let once = (total & 0xffff) + (total >> 16);
    !((once & 0xffff) + (once >> 16)) as u16
}
