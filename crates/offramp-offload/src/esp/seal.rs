//! The sending side: a clear frame becomes an ESP packet (RFC 4303 3.3).

use super::cipher::{ESP_HEADER_LEN, Parts, Protection};
use super::config::{InvalidSa, Mode, SaConfig};
use super::lifetime::{LifetimeEvent, Spent};
use super::shared::Grant;
use super::suite::Suite;
use super::tunnel::{Inner, NEXT_HEADER_IPV4, NEXT_HEADER_IPV6, Outer, PROTOCOL_ESP, mend_network};
use super::udp::{self, UdpPorts};
use crate::layout::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FrameLayout, Network, PROTOCOL_UDP};
use std::fmt;

/// Pad length and next header behind the padding (RFC 4303 2.5, 2.6).
pub(super) const TRAILER_FIELDS_LEN: usize = 2;
/// Most bytes of an IPv4 packet, and of what follows an IPv6 header.
const IP_LEN_MAX: usize = u16::MAX as usize;

/// Why a frame is not sealed. Nothing of it may then go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SealRefused {
    /// No IP packet: ESP has nothing to protect.
    #[error("not an IP packet")]
    NotIp,
    /// A fragment in transport mode (RFC 4303 3.3.4).
    #[error("a fragment cannot be sealed in transport mode; use a tunnel")]
    Fragment,
    /// The sealed packet would be longer than IP can say.
    #[error("the sealed packet would be longer than 65535 bytes")]
    TooLong,
    /// The buffer has no room in front of or behind the frame.
    #[error("no room for the sealed frame in the buffer")]
    NoRoom,
    /// The last sequence number was used (RFC 4303 3.3.3): this association sends nothing any more.
    #[error("sequence numbers are used up; make a new SA, or one with esn")]
    SequenceExhausted,
    /// A hard lifetime is reached.
    #[error("the SA's hard lifetime is reached; make a new SA")]
    Expired,
    /// The cipher library failed, which it never should.
    #[error("the cipher library failed")]
    Cipher,
}

/// Where the sealed frame lies, and what sealing it brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// First byte of the sealed frame, counted from the start of the buffer.
    pub start: usize,
    /// End of the sealed frame, counted from the start of the buffer.
    pub end: usize,
    /// Its sequence number.
    pub sequence: u64,
    /// A lifetime that ended with this packet.
    pub event: Option<LifetimeEvent>,
}

/// An association that seals.
///
/// One thread at a time, so that sequence numbers leave in their order.
pub struct OutboundSa {
    spi: u32,
    suite: Suite,
    protection: Protection,
    outer: Option<Outer>,
    udp: Option<UdpPorts>,
    /// Of the suite, at hand.
    iv_len: usize,
    icv_len: usize,
    alignment: usize,
    /// The last sequence number that was sent.
    sent: u64,
    /// The last one that may be sent.
    last: u64,
    spent: Spent,
}

/// Where everything of a packet comes to lie. Offsets of `parts` count from the sealed frame's start.
#[derive(Clone, Copy)]
struct Shape {
    parts: Parts,
    /// Where the protected bytes start in the clear frame.
    payload_at: usize,
    payload_len: usize,
    pad_len: usize,
    next_header: u8,
    inner: Inner,
}

impl OutboundSa {
    /// Makes an association from its description.
    ///
    /// # Errors
    /// When something is wrong with the description, as one line.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        config.validate()?;
        let outer = match &config.mode {
            Mode::Transport => None,
            Mode::Tunnel(tunnel) => Some(Outer::new(tunnel, config.udp)),
        };
        Ok(Self {
            spi: config.spi,
            suite: config.suite,
            protection: protection_of(config)?,
            outer,
            udp: config.udp,
            iv_len: config.suite.iv_len(),
            icv_len: config.suite.icv_len(),
            alignment: config.suite.alignment(),
            sent: config.sequence,
            last: if config.esn { u64::MAX } else { u64::from(u32::MAX) },
            spent: Spent::new(config.lifetime),
        })
    }

    /// Security parameters index.
    pub fn spi(&self) -> u32 {
        self.spi
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The last sequence number that was sent, 0 before the first.
    pub fn sequence(&self) -> u64 {
        self.sent
    }

    /// Packets sealed so far.
    pub fn packets(&self) -> u64 {
        self.spent.packets()
    }

    /// Bytes of the clear packets sealed so far.
    pub fn bytes(&self) -> u64 {
        self.spent.bytes()
    }

    /// How many more packets of `packet_len` clear bytes may be sealed: what sequence numbers and hard
    /// lifetimes leave.
    pub fn packets_left(&self, packet_len: usize) -> u64 {
        (self.last - self.sent).min(self.spent.packets_left(packet_len))
    }

    /// Goes on with numbers that were granted to this one alone; what was left of earlier ones is given up.
    pub fn take_over(&mut self, grant: Grant) {
        (self.sent, self.last) = grant.into_range();
    }

    /// Bytes that a sealed frame is longer in front: the same for every frame of this association.
    pub fn front_len(&self) -> usize {
        let wrapped = self.outer.as_ref().map_or(udp::header_len(self.udp), Outer::len);
        wrapped + ESP_HEADER_LEN + self.iv_len
    }

    /// Most bytes that a sealed frame is longer behind: padding, trailer and check value.
    pub fn tail_len_max(&self) -> usize {
        self.alignment - 1 + TRAILER_FIELDS_LEN + self.icv_len
    }

    /// Length of the sealed frame, bytes.
    ///
    /// # Errors
    /// As [`OutboundSa::seal`] would.
    pub fn sealed_len(&self, frame: &[u8], layout: &FrameLayout) -> Result<usize, SealRefused> {
        Ok(self.shape_of(frame, layout)?.parts.end)
    }

    /// The longest clear IP packet whose sealed packet still fits into `path_mtu` IP bytes: exact,
    /// padding included. `network_header_len` counts the IP header with options and extension headers
    /// (of no account in a tunnel). `None` when not even an empty one fits.
    pub fn packet_len_max(&self, path_mtu: usize, network_header_len: usize) -> Option<usize> {
        let stays_clear = if self.outer.is_some() { 0 } else { network_header_len };
        let room = path_mtu.min(IP_LEN_MAX).checked_sub(stays_clear + self.front_len() + self.icv_len)?;
        let body_len = room - room % self.alignment;
        Some(stays_clear + body_len.checked_sub(TRAILER_FIELDS_LEN)?)
    }

    /// The longest TCP or UDP payload that still fits, as [`OutboundSa::packet_len_max`]: the size to
    /// cut super-frames to. `transport_header_len` counts the TCP or UDP header with its options.
    pub fn payload_max(
        &self,
        path_mtu: usize,
        network_header_len: usize,
        transport_header_len: usize,
    ) -> Option<usize> {
        let packet_len = self.packet_len_max(path_mtu, network_header_len)?;
        packet_len.checked_sub(network_header_len + transport_header_len)
    }

    /// Seals `frame` into the front of `out`. `frame` stays as it is.
    ///
    /// `layout` is of a frame of the line ([`crate::layout::LengthFrom::Ip`]); bytes behind the packet
    /// are not taken along.
    ///
    /// # Errors
    /// When the frame cannot be sealed. No sequence number is used up then, except by
    /// [`SealRefused::Cipher`].
    ///
    /// # Panics
    /// When `layout` was not made from this frame and reaches beyond its end.
    #[inline]
    pub fn seal(&mut self, frame: &[u8], layout: &FrameLayout, out: &mut [u8]) -> Result<Sealed, SealRefused> {
        let shape = self.shape_of(frame, layout)?;
        let out = out.get_mut(..shape.parts.end).ok_or(SealRefused::NoRoom)?;
        let sequence = self.next_sequence()?;
        let headers_len = if self.outer.is_some() { layout.network_start } else { layout.transport_start };
        out[..headers_len].copy_from_slice(&frame[..headers_len]);
        self.write_network(out, layout, &shape, sequence);
        let (body_at, payload_len) = (shape.parts.body_at, shape.payload_len);
        out[body_at..body_at + payload_len].copy_from_slice(&frame[shape.payload_at..shape.payload_at + payload_len]);
        write_trailer(&mut out[body_at + payload_len..], &shape);
        self.protection.seal(out, &shape.parts, sequence).map_err(|_| SealRefused::Cipher)?;
        Ok(self.finish(out, layout, &shape, sequence, 0))
    }

    /// Seals the frame that starts at `start` of `buffer` in place: the sealed one starts
    /// [`OutboundSa::front_len`] bytes earlier and ends up to [`OutboundSa::tail_len_max`] bytes later.
    ///
    /// # Errors
    /// When the frame cannot be sealed; it is then unchanged, except after [`SealRefused::Cipher`].
    ///
    /// # Panics
    /// When `layout` was not made from the frame at `start` and reaches beyond its end.
    #[inline]
    pub fn seal_in_place(
        &mut self,
        buffer: &mut [u8],
        start: usize,
        layout: &FrameLayout,
    ) -> Result<Sealed, SealRefused> {
        let shape = self.shape_of(buffer.get(start..).ok_or(SealRefused::NoRoom)?, layout)?;
        let front_len = shape.parts.body_at - shape.payload_at;
        let from = start.checked_sub(front_len).ok_or(SealRefused::NoRoom)?;
        let out = buffer.get_mut(from..from + shape.parts.end).ok_or(SealRefused::NoRoom)?;
        let sequence = self.next_sequence()?;
        let headers_len = if self.outer.is_some() { layout.network_start } else { layout.transport_start };
        move_headers(out, front_len, 0, headers_len);
        self.write_network(out, layout, &shape, sequence);
        write_trailer(&mut out[shape.parts.body_at + shape.payload_len..], &shape);
        self.protection.seal(out, &shape.parts, sequence).map_err(|_| SealRefused::Cipher)?;
        Ok(self.finish(out, layout, &shape, sequence, from))
    }

    #[inline]
    fn shape_of(&self, frame: &[u8], layout: &FrameLayout) -> Result<Shape, SealRefused> {
        let inner = Inner::of(frame, layout).ok_or(SealRefused::NotIp)?;
        let (payload_at, next_header, wrapped_len) = match &self.outer {
            Some(outer) => {
                let is_ipv4 = layout.network == Network::Ipv4;
                let next_header = if is_ipv4 { NEXT_HEADER_IPV4 } else { NEXT_HEADER_IPV6 };
                (layout.network_start, next_header, outer.len())
            }
            None if layout.fragment => return Err(SealRefused::Fragment),
            None => (layout.transport_start, layout.protocol, udp::header_len(self.udp)),
        };
        let payload_len = layout.packet_end - payload_at;
        // Alignments are powers of two: a mask spares a division.
        let body_len = (payload_len + TRAILER_FIELDS_LEN + self.alignment - 1) & !(self.alignment - 1);
        let esp_at = payload_at + wrapped_len;
        let body_at = esp_at + ESP_HEADER_LEN + self.iv_len;
        let icv_at = body_at + body_len;
        let parts = Parts { esp_at, body_at, icv_at, end: icv_at + self.icv_len };
        if parts.end - layout.network_start > IP_LEN_MAX {
            return Err(SealRefused::TooLong);
        }
        let pad_len = body_len - TRAILER_FIELDS_LEN - payload_len;
        Ok(Shape { parts, payload_at, payload_len, pad_len, next_header, inner })
    }

    /// Why [`OutboundSa::packets_left`] is 0.
    pub(super) fn why_no_more(&self) -> SealRefused {
        if self.spent.is_used_up() { SealRefused::Expired } else { SealRefused::SequenceExhausted }
    }

    #[inline]
    fn next_sequence(&mut self) -> Result<u64, SealRefused> {
        if self.spent.is_used_up() {
            return Err(SealRefused::Expired);
        }
        if self.sent >= self.last {
            return Err(SealRefused::SequenceExhausted);
        }
        self.sent += 1;
        Ok(self.sent)
    }

    #[inline]
    fn write_network(&self, out: &mut [u8], layout: &FrameLayout, shape: &Shape, sequence: u64) {
        let Some(outer) = &self.outer else {
            let protocol = if self.udp.is_some() { PROTOCOL_UDP } else { PROTOCOL_ESP };
            mend_network(out, layout, shape.parts.end, protocol);
            return;
        };
        let network_start = layout.network_start;
        let ethertype = if outer.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        out[network_start - 2..network_start].copy_from_slice(&ethertype.to_be_bytes());
        outer.write(&mut out[network_start..], shape.inner, sequence as u16);
    }

    /// Writes what depends on the sealed bytes, and counts the packet.
    #[inline]
    fn finish(&mut self, out: &mut [u8], layout: &FrameLayout, shape: &Shape, sequence: u64, start: usize) -> Sealed {
        let end = shape.parts.end;
        if let Some(ports) = self.udp {
            let is_ipv4 = self.outer.as_ref().map_or(layout.network == Network::Ipv4, Outer::is_ipv4);
            let udp_at = match &self.outer {
                Some(outer) => layout.network_start + outer.network_len(),
                None => layout.transport_start,
            };
            let ipv6_header_at = (!is_ipv4).then_some(layout.network_start);
            udp::write_header(out, udp_at, end, ports, ipv6_header_at);
        }
        let event = self.spent.spend(layout.packet_end - layout.network_start);
        Sealed { start, end: start + end, sequence, event }
    }
}

/// Moves headers of `len` bytes within a frame. The usual ones are moved by two overlapping loads and
/// stores, whose length the compiler knows.
#[inline]
pub(super) fn move_headers(frame: &mut [u8], from: usize, to: usize, len: usize) {
    const HALF: usize = 32;
    if !(HALF..=2 * HALF).contains(&len) {
        frame.copy_within(from..from + len, to);
        return;
    }
    let headers = &frame[from..from + len];
    let (Some(&first), Some(&last)) = (headers.first_chunk::<HALF>(), headers.last_chunk::<HALF>()) else { return };
    let moved = &mut frame[to..to + len];
    if let Some(place) = moved.first_chunk_mut() {
        *place = first;
    }
    if let Some(place) = moved.last_chunk_mut() {
        *place = last;
    }
}

/// The cipher of an association.
pub(super) fn protection_of(config: &SaConfig) -> Result<Protection, InvalidSa> {
    let keys = (config.encryption_key.bytes(), config.integrity_key.bytes());
    Protection::new(config.spi, config.suite, keys.0, keys.1, config.esn)
        .map_err(|_| InvalidSa::WeakKey { spi: config.spi, suite: config.suite })
}

/// Padding 1, 2, 3, … (RFC 4303 2.4), its length and the next header, written to the front of `tail`,
/// which reaches up to the end of the check value: what is written behind the trailer is written again.
#[inline]
fn write_trailer(tail: &mut [u8], shape: &Shape) {
    match tail.first_chunk_mut() {
        Some(word) if shape.pad_len <= SHORT_PAD_LEN_MAX => *word = short_trailer(shape).to_le_bytes(),
        _ => {
            let trailer = &mut tail[..shape.pad_len + TRAILER_FIELDS_LEN];
            for (n, byte) in (1..).zip(&mut *trailer) {
                *byte = n;
            }
            trailer[shape.pad_len..].copy_from_slice(&[shape.pad_len as u8, shape.next_header]);
        }
    }
}

/// Longest padding that fits into a word with what follows it.
const SHORT_PAD_LEN_MAX: usize = size_of::<u64>() - TRAILER_FIELDS_LEN;
/// Padding 1, 2, 3, … as it lies in a little-endian word.
const SHORT_PADDING: u64 = 0x0807_0605_0403_0201;

/// A trailer in one word, so that it is written by one store.
#[inline]
fn short_trailer(shape: &Shape) -> u64 {
    let pad_bits = shape.pad_len as u32 * u8::BITS;
    let padding = SHORT_PADDING & ((1 << pad_bits) - 1);
    padding | (shape.pad_len as u64 | u64::from(shape.next_header) << u8::BITS) << pad_bits
}

impl fmt::Debug for OutboundSa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format_args!("{:#010x}", self.spi);
        f.debug_struct("OutboundSa")
            .field("spi", &name)
            .field("suite", &self.suite)
            .field("sequence", &self.sent)
            .finish_non_exhaustive()
    }
}
