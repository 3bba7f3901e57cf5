//! Answers to the host about packets that are too long after sealing, as a tunnel endpoint sends such answers (RFC 4301
//! 8.2.1). An answer is ICMP "fragmentation needed" (RFC 1191 4) or `ICMPv6` "packet too big" (RFC 4443 3.2).
//!
//! The source address of an answer is the packet's destination address, because the adapter has no address of its own.

use offramp_offload::checksum::{self, Sum};
use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, IPV6_HEADER_LEN, Network};

/// Minimum time between two answers of a queue pair, in nanoseconds (RFC 1812 4.3.2.8 and RFC 4443 2.4 (f) require a
/// rate limit).
const ANSWER_GAP_NS: u64 = 10_000_000;
/// Maximum length of an IPv4 answer, in bytes (RFC 1812 4.3.2.3).
const IPV4_ANSWER_LEN_MAX: usize = 576;
/// Maximum length of an IPv6 answer, in bytes (RFC 4443 3.2: the minimum MTU).
const IPV6_ANSWER_LEN_MAX: usize = 1280;

const IPV4_HEADER_LEN: usize = 20;
const IPV4_FRAGMENT_OFFSET: usize = 6;
const IPV4_DONT_FRAGMENT: u8 = 0x40;
const IPV4_FRAGMENT_PLACE: u16 = 0x1fff;
const HOP_LIMIT: u8 = 64;
const MAC_LEN: usize = 6;
/// The group bit of a MAC address.
const MAC_GROUP: u8 = 1;

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// Length of the ICMP header, in bytes: type, code, checksum, and four bytes with the MTU.
const ICMP_HEADER_LEN: usize = 8;
const ICMP_CHECKSUM_OFFSET: usize = 2;
/// Type and code: destination unreachable, fragmentation needed and DF set.
const ICMP_FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
const ICMPV6_PACKET_TOO_BIG: [u8; 2] = [2, 0];
/// Types of ICMP queries and of replies to queries. An ICMP error may be sent about a query, but never about another
/// ICMP error.
const ICMP_QUERIES: [u8; 10] = [0, 8, 9, 10, 13, 14, 15, 16, 17, 18];
/// First `ICMPv6` type that is not an error (RFC 4443 2.1).
const ICMPV6_INFORMATIONAL: u8 = 128;

/// The answers of one queue pair, built in one buffer that is allocated once.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    frame: Vec<u8>,
    is_ready: bool,
    next_ns: u64,
}

impl Answers {
    /// Makes an answer to the sender of `frame`, with an MTU of `mtu` IP bytes, if an answer is allowed.
    pub(super) fn make(&mut self, frame: &Frame<'_>, mtu: usize, now_ns: u64) {
        let (Ok(layout), frame) = (frame.layout(), frame.bytes()) else { return };
        let is_allowed = now_ns >= self.next_ns && frame[0] & MAC_GROUP == 0;
        if !is_allowed || !may_be_answered(frame, layout) {
            return;
        }
        let Ok(mtu) = u16::try_from(mtu) else { return };
        self.next_ns = now_ns.saturating_add(ANSWER_GAP_NS);
        self.frame.clear();
        self.frame.extend_from_slice(&frame[MAC_LEN..2 * MAC_LEN]);
        self.frame.extend_from_slice(&frame[..MAC_LEN]);
        self.frame.extend_from_slice(&frame[2 * MAC_LEN..layout.network_start]);
        let packet = &frame[layout.network_start..layout.packet_end];
        match layout.network {
            Network::Ipv4 => write_ipv4(&mut self.frame, packet, mtu),
            _ => write_ipv6(&mut self.frame, packet, mtu),
        }
        self.is_ready = true;
    }

    /// Returns the last answer; a second call returns `None`.
    pub(crate) fn take(&mut self) -> Option<&mut [u8]> {
        std::mem::take(&mut self.is_ready).then_some(self.frame.as_mut_slice())
    }
}

/// Returns whether an ICMP error may be sent about the frame. An ICMP error must not be sent about a packet that may be
/// fragmented on its path. Fragments after the first fragment and ICMP errors are also excluded (RFC 1122 3.2.2, RFC
/// 4443 2.4 (e)).
fn may_be_answered(frame: &[u8], layout: &FrameLayout) -> bool {
    let message = frame[..layout.packet_end].get(layout.transport_start).copied();
    match layout.network {
        Network::Ipv4 => {
            let at = layout.network_start + IPV4_FRAGMENT_OFFSET;
            let place = u16::from_be_bytes([frame[at], frame[at + 1]]);
            let is_error = layout.protocol == PROTOCOL_ICMP && message.is_none_or(|kind| !ICMP_QUERIES.contains(&kind));
            frame[at] & IPV4_DONT_FRAGMENT != 0 && place & IPV4_FRAGMENT_PLACE == 0 && !is_error
        }
        Network::Ipv6 => {
            let is_error = layout.protocol == PROTOCOL_ICMPV6 && message.is_none_or(|kind| kind < ICMPV6_INFORMATIONAL);
            !layout.fragment && !is_error
        }
        Network::Opaque => false,
    }
}

fn write_ipv4(out: &mut Vec<u8>, packet: &[u8], mtu: u16) {
    let quoted = &packet[..packet.len().min(IPV4_ANSWER_LEN_MAX - IPV4_HEADER_LEN - ICMP_HEADER_LEN)];
    let packet_len = (IPV4_HEADER_LEN + ICMP_HEADER_LEN + quoted.len()) as u16;
    let mut header = [0; IPV4_HEADER_LEN];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&packet_len.to_be_bytes());
    header[8..10].copy_from_slice(&[HOP_LIMIT, PROTOCOL_ICMP]);
    header[12..16].copy_from_slice(&packet[16..20]);
    header[16..20].copy_from_slice(&packet[12..16]);
    let checksum = checksum::sum(&header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&header);
    write_icmp(out, ICMP_FRAGMENTATION_NEEDED, mtu, quoted, Sum::ZERO);
}

fn write_ipv6(out: &mut Vec<u8>, packet: &[u8], mtu: u16) {
    let quoted = &packet[..packet.len().min(IPV6_ANSWER_LEN_MAX - IPV6_HEADER_LEN - ICMP_HEADER_LEN)];
    let icmp_len = (ICMP_HEADER_LEN + quoted.len()) as u16;
    let mut header = [0; IPV6_HEADER_LEN];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&icmp_len.to_be_bytes());
    header[6..8].copy_from_slice(&[PROTOCOL_ICMPV6, HOP_LIMIT]);
    header[8..24].copy_from_slice(&packet[24..40]);
    header[24..40].copy_from_slice(&packet[8..24]);
    out.extend_from_slice(&header);
    let pseudo = checksum::sum(&header[8..40]).plus(Sum::word(icmp_len)).plus(Sum::word(u16::from(PROTOCOL_ICMPV6)));
    write_icmp(out, ICMPV6_PACKET_TOO_BIG, mtu, quoted, pseudo);
}

/// Writes the ICMP message. In both IP versions, the MTU is in the last two of the four bytes after the checksum.
fn write_icmp(out: &mut Vec<u8>, kind: [u8; 2], mtu: u16, quoted: &[u8], pseudo: Sum) {
    let at = out.len();
    out.extend_from_slice(&kind);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&mtu.to_be_bytes());
    out.extend_from_slice(quoted);
    let checksum = pseudo.plus(checksum::sum(&out[at..])).checksum();
    out[at + ICMP_CHECKSUM_OFFSET..at + ICMP_CHECKSUM_OFFSET + 2].copy_from_slice(&checksum.to_be_bytes());
}
