//! UDP encapsulation (RFC 3948), and the classification of received frames.

use super::error::Refused;
use super::selector::addresses;
use super::tunnel::{PROTOCOL_ESP, header_alone};
use crate::checksum::{Sum, sum};
use crate::frame::Frame;
use crate::layout::{Network, PROTOCOL_UDP, Transport, UDP_CHECKSUM_OFFSET, UDP_HEADER_LEN, UDP_LENGTH_OFFSET, put16};

/// Length of SPI and sequence number in bytes.
pub(super) const ESP_HEADER_LEN: usize = 8;
/// UDP port of encapsulated ESP, shared with IKE (RFC 3948 2.1).
pub const UDP_ENCAPSULATION_PORT: u16 = 4500;
/// The payload of a NAT-keepalive packet (RFC 3948 2.3).
pub const KEEPALIVE: [u8; 1] = [0xff];
/// Marker before an IKE message, in the place of an SPI (RFC 3948 2.2).
pub const NON_ESP_MARKER: [u8; 4] = [0; 4];

/// The ports of UDP encapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPorts {
    /// Source port of sent packets.
    pub source: u16,
    /// Destination port of sent packets.
    pub destination: u16,
}

impl Default for UdpPorts {
    fn default() -> Self {
        Self { source: UDP_ENCAPSULATION_PORT, destination: UDP_ENCAPSULATION_PORT }
    }
}

impl UdpPorts {
    pub(super) fn bytes(self) -> [u8; 4] {
        (u32::from(self.source) << u16::BITS | u32::from(self.destination)).to_be_bytes()
    }
}

/// An ESP packet in a frame, with the fields that identify its association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspPacket {
    /// Security parameters index.
    pub spi: u32,
    /// Sequence number, or the lower half of an extended sequence number.
    pub sequence: u32,
    /// True if the packet was received inside UDP.
    pub is_encapsulated: bool,
    /// Offset of the ESP header, bytes from the start of the frame.
    pub esp_at: usize,
}

/// The class of a received frame, for IPsec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// An ESP packet, directly in IP or in UDP.
    Esp(EspPacket),
    /// An IKE message after a non-ESP marker. The caller passes the frame unchanged to the key daemon.
    Ike,
    /// A NAT-keepalive, which the caller drops (RFC 3948 4).
    Keepalive,
    /// Any other frame. The IPsec policy decides whether the frame bypasses IPsec or is discarded.
    Clear,
}

impl Arrival {
    /// Classifies a frame from the wire. UDP packets to `udp_port` are encapsulated ([`UDP_ENCAPSULATION_PORT`], or
    /// `None` without encapsulation).
    ///
    /// # Errors
    /// Returns [`Refused::Malformed`] for ESP with a truncated header. Returns [`Refused::Fragment`] for a fragment of
    /// an ESP packet: the packet must be reassembled first (RFC 4303 3.4.1).
    #[inline]
    pub fn of(frame: &Frame<'_>, udp_port: Option<u16>) -> Result<Self, Refused> {
        let Ok((frame, layout)) = frame.parts() else { return Ok(Self::Clear) };
        if layout.protocol == PROTOCOL_ESP {
            if layout.fragment {
                return Err(Refused::Fragment);
            }
            return esp_packet(frame, layout.transport_start, layout.packet_end, false);
        }
        let Some(port) = udp_port.filter(|_| layout.transport == Transport::Udp) else { return Ok(Self::Clear) };
        let destination_port = frame[layout.transport_start + 2..].first_chunk().copied().map(u16::from_be_bytes);
        if destination_port != Some(port) {
            return Ok(Self::Clear);
        }
        let payload = &frame[layout.payload_start..layout.packet_end];
        if payload == KEEPALIVE {
            Ok(Self::Keepalive)
        } else if payload.starts_with(&NON_ESP_MARKER) {
            Ok(Self::Ike)
        } else {
            esp_packet(frame, layout.payload_start, layout.packet_end, true)
        }
    }
}

fn esp_packet(frame: &[u8], esp_at: usize, end: usize, is_encapsulated: bool) -> Result<Arrival, Refused> {
    let header = frame[esp_at..end].first_chunk::<ESP_HEADER_LEN>().ok_or(Refused::Malformed)?;
    let header = u64::from_be_bytes(*header);
    let (spi, sequence) = ((header >> u32::BITS) as u32, header as u32);
    Ok(Arrival::Esp(EspPacket { spi, sequence, is_encapsulated, esp_at }))
}

/// Writes the UDP header at `udp_at` of a sealed packet that ends at `end`. The checksum is 0 over IPv4 (RFC 3948 2.1).
/// Over IPv6, the checksum is computed, because 0 is not allowed (RFC 8200 8.1).
#[inline(never)]
pub(super) fn write_header(frame: &mut [u8], udp_at: usize, end: usize, ports: [u8; 4], ipv6_header_at: Option<usize>) {
    let udp_len = (end - udp_at) as u16;
    frame[udp_at..udp_at + 4].copy_from_slice(&ports);
    put16(frame, udp_at + UDP_LENGTH_OFFSET, udp_len);
    put16(frame, udp_at + UDP_CHECKSUM_OFFSET, 0);
    if let Some(at) = ipv6_header_at {
        let addresses = sum(&frame[at + 8..at + 40]);
        let pseudo = addresses.plus(Sum::word(udp_len)).plus(Sum::word(u16::from(PROTOCOL_UDP)));
        let checksum = pseudo.plus(sum(&frame[udp_at..end])).checksum_not_zero();
        put16(frame, udp_at + UDP_CHECKSUM_OFFSET, checksum);
    }
}

/// Writes a NAT-keepalive (RFC 3948 2.3) into `out`, with the Ethernet header, addresses and ports of the packet
/// `sealed`. Returns `None`, and leaves `out` empty, if `sealed` contains no UDP-encapsulated packet.
pub fn write_keepalive(sealed: &Frame<'_>, out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    let (sealed, layout) = sealed.parts().ok()?;
    let ports = *sealed[layout.transport_start..].first_chunk().filter(|_| layout.transport == Transport::Udp)?;
    let (source, destination) = addresses(sealed, layout)?;
    out.extend_from_slice(&sealed[..layout.network_start]);
    let network_at = out.len();
    out.extend_from_slice(&header_alone(source, destination, UDP_HEADER_LEN + KEEPALIVE.len()));
    let udp_at = out.len();
    out.extend_from_slice(&[0; UDP_HEADER_LEN]);
    out.extend_from_slice(&KEEPALIVE);
    let end = out.len();
    let ipv6_header_at = (layout.network == Network::Ipv6).then_some(network_at);
    write_header(out, udp_at, end, ports, ipv6_header_at);
    Some(())
}

/// Returns the number of bytes added by UDP encapsulation.
pub(super) fn header_len(ports: Option<UdpPorts>) -> usize {
    if ports.is_some() { UDP_HEADER_LEN } else { 0 }
}
