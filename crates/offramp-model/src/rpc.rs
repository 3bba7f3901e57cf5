//! NFS reads over UDP: the frames of a reply, and the outstanding calls. The module also builds real frames for hashing
//! and segmentation.
//!
//! The model builds the reply as a real frame, and offramp's own code fragments this frame. The model therefore needs
//! no formula for the number and lengths of the fragments.

use crate::time::Time;
use offramp_offload::frame::Frame;
use offramp_offload::layout::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, PROTOCOL_TCP, PROTOCOL_UDP, UDP_HEADER_LEN};
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{Refused, SegmentPolicy, Segmenter};

const IPV4_HEADER_LEN: usize = 20;
/// Offset of the UDP or TCP header in a frame.
const TRANSPORT_AT: usize = ETHERNET_HEADER_LEN + IPV4_HEADER_LEN;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM_AT: u16 = 6;
/// Payload of a fragment at an MTU of 1500, in bytes. RFC 791 requires a multiple of 8.
const FRAGMENT_PAYLOAD_LEN: u16 = 1480;
/// Length of the headers before the data in the reply to an NFS read, in bytes. The RPC header has 24 bytes (RFC 1057
/// 8: xid, type, status, an empty verifier, acceptance). The NFS result before the data has 76 bytes (RFC 1094 2.2.7:
/// status, 17 words of attributes, length).
pub const REPLY_HEADER_LEN: usize = 100;
/// Length of a request's frame without FCS, bytes: 42 of headers, 24 of an RPC call, 60 of credentials, 44 of NFS. The
/// credentials are a Unix credential with a few groups, and an empty verifier. The NFS arguments are a file handle,
/// offset, count and total count (RFC 1094 2.2.7).
pub const REQUEST_FRAME_LEN: u64 = 170;

/// Returns the lengths, without FCS, of the frames of a reply to a read of `size` bytes.
///
/// # Errors
/// Returns an error if the reply exceeds one UDP datagram.
pub fn reply_frames(size: usize) -> Result<Vec<u64>, Refused> {
    fragment_lens(UDP_HEADER_LEN + REPLY_HEADER_LEN + size)
}

fn fragment_lens(datagram_len: usize) -> Result<Vec<u64>, Refused> {
    frame_lens(&udp_frame(&mut datagram(datagram_len)))
}

/// Segments `frame` with offramp's own code, and returns the lengths of the resulting frames.
fn frame_lens(frame: &Frame<'_>) -> Result<Vec<u64>, Refused> {
    let mut segmenter = Segmenter::new(frame, &SegmentPolicy::default())?;
    let frames = 0..segmenter.frames_left();
    let next = |_| {
        let len = segmenter.next_len() as u64;
        segmenter.skip_next();
        len
    };
    Ok(frames.map(next).collect())
}

/// Attaches transmit metadata to a UDP datagram. The adapter fragments a datagram that exceeds one frame.
fn udp_frame(bytes: &mut [u8]) -> Frame<'_> {
    handed_down(bytes, TRANSPORT_AT, UDP_CHECKSUM_AT, SegmentationKind::UdpFragments, FRAGMENT_PAYLOAD_LEN)
}

/// Attaches transmit metadata to a frame: checksum offload, and segmentation if more than `size` bytes follow the
/// headers.
fn handed_down(bytes: &mut [u8], headers_len: usize, offset: u16, kind: SegmentationKind, size: u16) -> Frame<'_> {
    let is_one = bytes.len() - headers_len <= usize::from(size);
    let segmentation = (!is_one).then_some(Segmentation::new(kind, size));
    let checksum = Some(PartialChecksum { start: TRANSPORT_AT as u16, offset });
    Frame::new(bytes, TxMeta { checksum, segmentation })
}

/// Builds an Ethernet frame with a UDP datagram. The length of the datagram includes the UDP header. The ports are 0.
fn datagram(datagram_len: usize) -> Vec<u8> {
    let mut frame = ipv4_frame(PROTOCOL_UDP, datagram_len);
    frame[TRANSPORT_AT + 4..TRANSPORT_AT + 6].copy_from_slice(&u16::try_from(datagram_len).unwrap_or(0).to_be_bytes());
    frame
}

/// Builds an Ethernet frame with an IPv4 packet. The payload consists of `payload_len` zero bytes.
fn ipv4_frame(protocol: u8, payload_len: usize) -> Vec<u8> {
    const VERSION_AND_HEADER_WORDS: u8 = 0x45;
    const TIME_TO_LIVE: u8 = 64;
    let mut frame = vec![0; ETHERNET_HEADER_LEN + IPV4_HEADER_LEN + payload_len];
    let total_len = u16::try_from(IPV4_HEADER_LEN + payload_len).unwrap_or(0);
    frame[ETHERNET_HEADER_LEN - 2..ETHERNET_HEADER_LEN].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let ip = &mut frame[ETHERNET_HEADER_LEN..];
    ip[0] = VERSION_AND_HEADER_WORDS;
    ip[2..4].copy_from_slice(&total_len.to_be_bytes());
    ip[8] = TIME_TO_LIVE;
    ip[9] = protocol;
    frame
}

/// Address and port of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// IPv4 address in network byte order.
    pub address: [u8; 4],
    /// TCP or UDP port.
    pub port: u16,
}

/// Writes the source and destination addresses and ports into an IPv4 frame. TCP and UDP have the ports at the same
/// offset.
fn address(frame: &mut [u8], from: Endpoint, to: Endpoint) {
    const ADDRESSES_AT: usize = ETHERNET_HEADER_LEN + 12;
    frame[ADDRESSES_AT..ADDRESSES_AT + 4].copy_from_slice(&from.address);
    frame[ADDRESSES_AT + 4..ADDRESSES_AT + 8].copy_from_slice(&to.address);
    frame[TRANSPORT_AT..TRANSPORT_AT + 2].copy_from_slice(&from.port.to_be_bytes());
    frame[TRANSPORT_AT + 2..TRANSPORT_AT + 4].copy_from_slice(&to.port.to_be_bytes());
}

/// Builds a frame of a TCP connection without payload.
pub(crate) fn tcp_frame(from: Endpoint, to: Endpoint) -> Vec<u8> {
    let mut frame = large_send(0, 0);
    address(&mut frame, from, to);
    frame
}

/// Builds the first frame of the reply to a read of `size` bytes, fragmented by offramp's own code.
///
/// # Errors
/// Returns an error if the reply exceeds one UDP datagram.
pub(crate) fn first_reply_frame(size: usize, from: Endpoint, to: Endpoint) -> Result<Vec<u8>, Refused> {
    let mut reply = datagram(UDP_HEADER_LEN + REPLY_HEADER_LEN + size);
    address(&mut reply, from, to);
    let reply = udp_frame(&mut reply);
    let mut segmenter = Segmenter::new(&reply, &SegmentPolicy::default())?;
    let mut first = vec![0; segmenter.next_len()];
    segmenter.write_next(&reply, &mut first);
    Ok(first)
}

const TCP_HEADER_LEN: usize = 20;
/// Total length of the headers of a TCP super-frame, in bytes.
const TCP_HEADERS_LEN: usize = TRANSPORT_AT + TCP_HEADER_LEN;

/// Builds a TCP super-frame as sent by a host: `len` bytes of the stream, starting at byte `sequence`.
fn large_send(sequence: u64, len: u64) -> Vec<u8> {
    const DATA_OFFSET_WORDS: u8 = 0x50;
    const ACK: u8 = 0x10;
    let mut frame = ipv4_frame(PROTOCOL_TCP, TCP_HEADER_LEN + len as usize);
    let tcp = &mut frame[TRANSPORT_AT..];
    tcp[4..8].copy_from_slice(&(sequence as u32).to_be_bytes());
    tcp[12] = DATA_OFFSET_WORDS;
    tcp[13] = ACK;
    frame
}

/// Attaches transmit metadata to a TCP super-frame. The adapter segments a super-frame that exceeds one segment.
fn tcp_super_frame(bytes: &mut [u8], mss: u64) -> Frame<'_> {
    const TCP_CHECKSUM_AT: u16 = 16;
    let size = u16::try_from(mss).unwrap_or(u16::MAX);
    handed_down(bytes, TCP_HEADERS_LEN, TCP_CHECKSUM_AT, SegmentationKind::Tcp4, size)
}

/// Returns the payload lengths of the segments of a TCP super-frame with `len` bytes.
///
/// offramp's own code segments a real frame.
pub fn tcp_payloads(len: u64, mss: u64) -> Vec<u64> {
    let lens = frame_lens(&tcp_super_frame(&mut large_send(0, len), mss));
    let payloads = |lens: Vec<u64>| lens.into_iter().map(|len| len - TCP_HEADERS_LEN as u64).collect();
    // A frame rejected by the segmenter is sent unsegmented.
    lens.map_or_else(|_| vec![len], payloads)
}

/// Builds the segments, with checksums, of a stream of TCP super-frames. `sends` lists the payload lengths of the
/// super-frames.
#[cfg(test)]
pub(crate) fn tcp_segments(sends: &[u64], mss: u64) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut sequence = 0;
    for &len in sends {
        let mut send = large_send(sequence, len);
        // The peer's IP identification continues from one super-frame to the next.
        let id = ETHERNET_HEADER_LEN + 4;
        send[id..id + 2].copy_from_slice(&(frames.len() as u16).to_be_bytes());
        sum_headers(&mut send);
        let send = tcp_super_frame(&mut send, mss);
        let mut segmenter = Segmenter::new(&send, &SegmentPolicy::default()).unwrap();
        while segmenter.frames_left() > 0 {
            let mut frame = vec![0; segmenter.next_len()];
            segmenter.write_next(&send, &mut frame);
            frames.push(frame);
        }
        sequence += len;
    }
    frames
}

/// Writes the checksums that a host with checksum offload computes: of the IP header, and of the pseudo-header.
#[cfg(test)]
fn sum_headers(frame: &mut [u8]) {
    use offramp_offload::checksum::sum;
    let (ip, tcp) = frame[ETHERNET_HEADER_LEN..].split_at_mut(IPV4_HEADER_LEN);
    let header = sum(ip).checksum();
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let [high, low] = (tcp.len() as u16).to_be_bytes();
    let pseudo = sum(&ip[12..20]).plus(sum(&[0, PROTOCOL_TCP, high, low])).fold();
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
}

/// Returns the lengths, without FCS, of the frames of a UDP datagram with `size` bytes of data, fragmented by the host.
///
/// # Errors
/// Returns an error if `size` exceeds the largest datagram.
pub fn datagram_frames(size: usize) -> Result<Vec<u64>, Refused> {
    fragment_lens(UDP_HEADER_LEN + size)
}

/// A slot for RPC calls. At most one call of a slot is outstanding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Serial number of the call. A slot serves one call after the other.
    pub number: u64,
    /// Number of retransmissions.
    pub attempt: u32,
    /// Number of received fragments of the reply to the latest attempt of the call.
    pub fragments: u32,
    /// `true` once the reply is complete.
    pub is_answered: bool,
    /// `true` once the process has read the reply.
    pub is_read: bool,
    /// Time of the next retransmission.
    pub deadline: Time,
    /// Time of the earliest scheduled timer event of the slot.
    pub timer_at: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_take_the_pages_that_arithmetic_gives_them() {
        let pages = |size| -> u64 { reply_frames(size).unwrap().iter().map(|len| (len + 8).div_ceil(256)).sum() };
        assert_eq!([1024, 2048, 4096, 8192].map(pages), [5, 9, 18, 34]);
        assert_eq!(reply_frames(8192).unwrap()[..5], [1514; 5]);
    }

    #[test]
    fn a_large_send_is_cut_into_full_segments_and_a_rest_and_no_byte_is_lost() {
        for (len, mss) in [(64_000, 1460), (1461, 1460), (2920, 1460), (60_000, 8960), (1000, 1460)] {
            let payloads = tcp_payloads(len, mss);
            assert_eq!(payloads.iter().sum::<u64>(), len);
            assert_eq!(payloads.len() as u64, len.div_ceil(mss));
            assert!(payloads[..payloads.len() - 1].iter().all(|&payload| payload == mss));
        }
    }

    #[test]
    fn a_reply_that_no_datagram_holds_is_refused() {
        assert!(reply_frames(70_000).is_err());
    }
}
