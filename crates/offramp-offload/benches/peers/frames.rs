//! The frames for the benchmarks of segmentation and coalescing: TCP over IPv4 with timestamps, 45 segments of 1448
//! bytes.

use offramp_offload::checksum;
use offramp_offload::frame::Frame;

/// Payload length of one segment in bytes: MTU 1500 minus IPv4, TCP and timestamps.
pub const MSS: usize = 1448;
/// Number of segments in a 64 KiB super-frame.
pub const SEGMENTS: usize = 45;
/// Length of an Ethernet header in bytes.
pub const LINK_HEADER_LEN: usize = 14;
/// Length of the IPv4 and TCP headers with timestamps, in bytes.
pub const HEADER_LEN: usize = 52;
/// Length of all headers in bytes.
pub const HEADERS_LEN: usize = LINK_HEADER_LEN + HEADER_LEN;
/// Offset of the first byte covered by the checksum.
pub const CHECKSUM_START: usize = 34;
/// Offset of the checksum field in the TCP header.
pub const CHECKSUM_OFFSET: usize = 16;

/// Returns pseudo-random bytes.
pub fn data(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// Returns a frame with the pseudo-header's sum in its checksum field.
pub fn partial_frame(flow: u16, sequence: u32, id: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_LEN];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((HEADER_LEN + payload.len()) as u16).to_be_bytes());
    frame[18..20].copy_from_slice(&id.to_be_bytes());
    frame[20] = 0x40;
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..36].copy_from_slice(&5001_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&(40_000 + flow).to_be_bytes());
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&77_u32.to_be_bytes());
    frame[46..48].copy_from_slice(&[0x80, flags]);
    frame[48..50].copy_from_slice(&502_u16.to_be_bytes());
    frame[54..66].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 5]);
    frame.extend_from_slice(payload);
    Frame::received(&mut frame).make_partial().expect("a frame of our own");
    frame
}

/// Returns the same frame with a complete checksum, as sent on the wire.
pub fn frame(flow: u16, sequence: u32, id: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = partial_frame(flow, sequence, id, flags, payload);
    let partial =
        offramp_offload::meta::PartialChecksum { start: CHECKSUM_START as u16, offset: CHECKSUM_OFFSET as u16 };
    let end = frame.len();
    checksum::complete(&mut frame, partial, end).expect("a frame of our own");
    frame
}
