//! Test frames: real packets with correct checksums, in bursts and sizes that reveal errors of ring code.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Length of an Ethernet header in bytes.
const ETHERNET_HEADER_LEN: usize = 14;
/// Length of an IPv4 header without options, in bytes.
const IPV4_HEADER_LEN: usize = 20;
/// Length of a UDP header in bytes.
const UDP_HEADER_LEN: usize = 8;
/// Length of all headers of a UDP frame, in bytes.
pub const UDP_HEADERS_LEN: usize = ETHERNET_HEADER_LEN + IPV4_HEADER_LEN + UDP_HEADER_LEN;
/// EtherType of IPv4.
const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType for local experiments (IEEE 802). No offload may change frames with this EtherType.
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
/// Protocol number of UDP in an IPv4 header.
const PROTOCOL_UDP: u8 = 17;
/// Minimum length of a frame in bytes, without FCS.
pub const FRAME_LEN_MIN: usize = 60;
/// Maximum length of a frame at Ethernet's MTU, in bytes.
const FRAME_LEN_MTU_1500: usize = 1514;
/// Length of a frame that fits into one buffer of testpmd together with the virtio header. A buffer has 2048 bytes
/// after the headroom.
const FRAME_LEN_ONE_BUFFER: usize = 2000;
/// Length of a frame that needs several buffers: four times 2000 bytes, as in DPDK's own interoperability plans.
const FRAME_LEN_CHAINED: usize = 8000;
/// Number of frames of at most [`FRAME_LEN_MTU_1500`] bytes, including UDP and non-IP frames.
const SHORT_FRAMES: usize = 150;
/// Number of frames that almost fill one buffer.
const ONE_BUFFER_FRAMES: usize = 8;
/// Number of frames that need a chain of buffers. All frames together fit into the smallest ring (255 entries), even if
/// nobody reads the ring. They need 178 entries: 150 for the short frames, 8 for the frames of one buffer, and 5 for
/// each of the 4 chained frames.
const CHAINED_FRAMES: usize = 4;

/// Builds a UDP frame of `len` bytes with correct checksums. `len` must be at least [`UDP_HEADERS_LEN`], and the IP
/// packet at most 65,535 bytes.
pub fn udp(len: usize, flow: u16, fill: &mut impl Rng) -> Vec<u8> {
    let mut frame = vec![0; len];
    fill.fill_bytes(&mut frame[UDP_HEADERS_LEN..]);
    let ip_len = (len - ETHERNET_HEADER_LEN) as u16;
    let udp_len = ip_len - IPV4_HEADER_LEN as u16;
    frame[..ETHERNET_HEADER_LEN].copy_from_slice(&ethernet(ETHERTYPE_IPV4));
    let ip = &mut frame[ETHERNET_HEADER_LEN..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    ip[6] = 0x40; // Do not fragment.
    ip[8] = 64;
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&[198, 18, 0, 1]);
    ip[16..20].copy_from_slice(&[198, 18, 0, 2]);
    let header_sum = !ones_complement(&ip[..IPV4_HEADER_LEN]);
    ip[10..12].copy_from_slice(&header_sum.to_be_bytes());
    let pseudo = [&ip[12..20], &[0, PROTOCOL_UDP], &udp_len.to_be_bytes()].concat();
    let udp = &mut ip[IPV4_HEADER_LEN..];
    udp[0..2].copy_from_slice(&flow.to_be_bytes());
    udp[2..4].copy_from_slice(&9u16.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let sum = !ones_complement(&[&pseudo, &*udp].concat());
    // A checksum of 0 is sent as 0xffff, because 0 means that there is no checksum (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Returns the 16-bit one's complement sum of big-endian words, an odd last byte padded with 0 (RFC 1071). The function
/// shares no code with offramp's adapter, so that a test finds a defect of the adapter's checksum code.
pub fn ones_complement(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn ethernet(ethertype: u16) -> [u8; ETHERNET_HEADER_LEN] {
    let [high, low] = ethertype.to_be_bytes();
    [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, high, low]
}

/// Builds a frame that is not IP, with random contents.
fn foreign(len: usize, fill: &mut impl Rng) -> Vec<u8> {
    let mut frame = vec![0; len];
    fill.fill_bytes(&mut frame);
    frame[..ETHERNET_HEADER_LEN].copy_from_slice(&ethernet(ETHERTYPE_EXPERIMENT));
    frame
}

/// Builds the frames of one queue. The first frames are UDP and non-IP frames. Their lengths are the minimum, the
/// maximum at Ethernet's MTU, and random lengths between these. The next frames almost fill one buffer. If `chained` is
/// true, frames that need a chain of buffers follow. The same seed gives the same frames.
pub fn mixed(seed: u64, chained: bool) -> Vec<Vec<u8>> {
    let mut random = SmallRng::seed_from_u64(seed);
    let flow = 1024 + (seed % 60_000) as u16;
    let mut frames: Vec<_> = (0..SHORT_FRAMES).map(|index| short(index, flow, &mut random)).collect();
    frames.extend((0..ONE_BUFFER_FRAMES).map(|_| udp(FRAME_LEN_ONE_BUFFER, flow, &mut random)));
    if chained {
        frames.extend((0..CHAINED_FRAMES).map(|_| udp(FRAME_LEN_CHAINED, flow, &mut random)));
    }
    frames
}

fn short(index: usize, flow: u16, random: &mut SmallRng) -> Vec<u8> {
    let len = match index % 4 {
        0 => FRAME_LEN_MIN,
        1 => FRAME_LEN_MTU_1500,
        _ => random.random_range(FRAME_LEN_MIN..=FRAME_LEN_MTU_1500),
    };
    if index % 8 == 7 { foreign(len, random) } else { udp(len, flow, random) }
}

/// Returns whether the checksums of an IPv4 TCP or UDP frame are correct.
#[cfg(test)]
fn checksums_are_right(frame: &[u8]) -> bool {
    let ip = &frame[ETHERNET_HEADER_LEN..];
    let transport_len = (ip.len() - IPV4_HEADER_LEN) as u16;
    let pseudo = [&ip[12..20], &[0, ip[9]], &transport_len.to_be_bytes(), &ip[IPV4_HEADER_LEN..]].concat();
    ones_complement(&ip[..IPV4_HEADER_LEN]) == 0xffff && ones_complement(&pseudo) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_right_checksums_and_lengths() {
        for frame in mixed(1, true).iter().filter(|frame| frame[12..14] == ETHERTYPE_IPV4.to_be_bytes()) {
            assert!(checksums_are_right(frame));
            let ip_len = u16::from_be_bytes([frame[16], frame[17]]);
            assert_eq!(usize::from(ip_len) + ETHERNET_HEADER_LEN, frame.len());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_frames_and_another_gives_others() {
        assert_eq!(mixed(7, true), mixed(7, true));
        assert_ne!(mixed(7, true), mixed(8, true));
    }

    #[test]
    fn without_chains_every_frame_fits_one_buffer() {
        assert!(mixed(3, false).iter().all(|frame| frame.len() <= FRAME_LEN_ONE_BUFFER));
        assert!(mixed(3, true).iter().any(|frame| frame.len() == FRAME_LEN_CHAINED));
    }
}
