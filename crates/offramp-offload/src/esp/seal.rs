//! The sending side: a clear frame becomes an ESP packet (RFC 4303 3.3).

use super::cipher::{ESP_HEADER_LEN, Parts, Protection};
use super::config::{InvalidSa, Mode, SaConfig};
use super::library::{CipherLibrary, TAG_LEN, aws_lc};
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

/// Bytes of ESP header and IV of the usual suites (RFC 4106 3.1).
const COMMON_FRONT_LEN: usize = ESP_HEADER_LEN + 8;
/// What the trailer of the usual suites ends at a multiple of (RFC 4303 2.4).
const COMMON_ALIGNMENT: usize = 4;

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
    /// An AEAD with its IV on the line, transport mode, no UDP.
    is_common: bool,
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

/// The same in the usual case (see [`OutboundSa::is_common`]).
#[derive(Clone, Copy)]
struct CommonShape {
    payload_len: usize,
    pad_len: usize,
    /// End of the sealed frame.
    end: usize,
}

impl CommonShape {
    #[inline]
    fn of(layout: &FrameLayout) -> Result<Self, SealRefused> {
        let payload_len = layout.packet_end - layout.transport_start;
        let body_len = (payload_len + TRAILER_FIELDS_LEN + COMMON_ALIGNMENT - 1) & !(COMMON_ALIGNMENT - 1);
        let end = layout.transport_start + COMMON_FRONT_LEN + body_len + TAG_LEN;
        if end - layout.network_start > IP_LEN_MAX {
            return Err(SealRefused::TooLong);
        }
        Ok(Self { payload_len, pad_len: body_len - TRAILER_FIELDS_LEN - payload_len, end })
    }
}

impl OutboundSa {
    /// Makes an association from its description.
    ///
    /// # Errors
    /// When something is wrong with the description, as one line.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// As [`OutboundSa::new`], with the ciphers of `library`, where it has them.
    ///
    /// # Errors
    /// When something is wrong with the description, as one line.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        config.validate()?;
        let outer = match &config.mode {
            Mode::Transport => None,
            Mode::Tunnel(tunnel) => Some(Outer::new(tunnel, config.udp)),
        };
        let protection = protection_of(config, library)?;
        Ok(Self {
            spi: config.spi,
            suite: config.suite,
            is_common: outer.is_none() && config.udp.is_none() && protection.aead_with_iv().is_some(),
            protection,
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

    /// The library that its ciphers come from.
    pub fn library_name(&self) -> &'static str {
        self.protection.library_name()
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
        if self.is_common(layout) { self.seal_common(frame, layout, out) } else { self.seal_any(frame, layout, out) }
    }

    pub(super) fn seal_any(
        &mut self,
        frame: &[u8],
        layout: &FrameLayout,
        out: &mut [u8],
    ) -> Result<Sealed, SealRefused> {
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
        if self.is_common(layout) {
            return self.seal_common_in_place(buffer, start, layout);
        }
        self.seal_any_in_place(buffer, start, layout)
    }

    /// Whether the frame is the usual case: an AEAD with its IV on the line, transport mode, no UDP. It goes in
    /// as few steps as there can be, to the same end as [`OutboundSa::seal_any`] and
    /// [`OutboundSa::seal_any_in_place`].
    #[inline]
    fn is_common(&self, layout: &FrameLayout) -> bool {
        self.is_common && !layout.fragment && layout.network != Network::Opaque
    }

    #[inline]
    fn seal_common_in_place(
        &mut self,
        buffer: &mut [u8],
        start: usize,
        layout: &FrameLayout,
    ) -> Result<Sealed, SealRefused> {
        let shape = CommonShape::of(layout)?;
        let from = start.checked_sub(COMMON_FRONT_LEN).ok_or(SealRefused::NoRoom)?;
        self.seal_shape_in_place(buffer, layout, shape, from)
    }

    /// The sealed frame starts at `from`, the clear one behind it.
    #[inline]
    fn seal_shape_in_place(
        &mut self,
        buffer: &mut [u8],
        layout: &FrameLayout,
        shape: CommonShape,
        from: usize,
    ) -> Result<Sealed, SealRefused> {
        let out = buffer.get_mut(from..from + shape.end).ok_or(SealRefused::NoRoom)?;
        let sequence = self.next_sequence()?;
        move_headers_down(out, layout.transport_start);
        self.protect_common(out, layout, shape, sequence)?;
        Ok(self.count_common(layout, shape, sequence, from))
    }

    /// Seals frames that are all of this layout, each in place and `start` bytes from the front of its slot of `stride`
    /// bytes, as so many calls of [`OutboundSa::seal_in_place`]. The last lifetime that ended with one of them.
    pub(super) fn seal_slots(
        &mut self,
        out: &mut [u8],
        stride: usize,
        frames: usize,
        start: usize,
        layout: &FrameLayout,
    ) -> Result<Option<LifetimeEvent>, SealRefused> {
        let mut event = None;
        let is_common = self.is_common(layout) && start == COMMON_FRONT_LEN;
        let shape = CommonShape::of(layout);
        for slot in 0..frames {
            let slot = &mut out[slot * stride..];
            let sealed = match shape {
                Ok(shape) if is_common => self.seal_shape_in_place(slot, layout, shape, 0)?,
                _ => self.seal_in_place(slot, start, layout)?,
            };
            event = sealed.event.or(event);
        }
        Ok(event)
    }

    #[inline]
    fn seal_common(&mut self, frame: &[u8], layout: &FrameLayout, out: &mut [u8]) -> Result<Sealed, SealRefused> {
        let shape = CommonShape::of(layout)?;
        let out = out.get_mut(..shape.end).ok_or(SealRefused::NoRoom)?;
        let sequence = self.next_sequence()?;
        let headers_len = layout.transport_start;
        copy_headers(&frame[..layout.packet_end], out, headers_len);
        let payload = &frame[headers_len..layout.packet_end];
        let packet = self.write_front(out, layout, shape, sequence)?;
        let trailer = short_trailer(shape.pad_len, layout.protocol).to_le_bytes();
        let trailer = &trailer[..shape.pad_len + TRAILER_FIELDS_LEN];
        let Some(aead) = self.protection.aead_with_iv() else { return Err(SealRefused::Cipher) };
        let (nonce, aad) = (self.protection.nonce(sequence), self.protection.aad(sequence));
        aead.seal_from(nonce, aad, payload, trailer, packet).map_err(|_| SealRefused::Cipher)?;
        Ok(self.count_common(layout, shape, sequence, 0))
    }

    /// Writes ESP header and IV, mends the IP header, and gives the rest, from the encrypted bytes on.
    #[inline]
    fn write_front<'a>(
        &self,
        out: &'a mut [u8],
        layout: &FrameLayout,
        shape: CommonShape,
        sequence: u64,
    ) -> Result<&'a mut [u8], SealRefused> {
        let (headers, rest) = out.split_at_mut(layout.transport_start);
        let (front, packet) = rest.split_first_chunk_mut().ok_or(SealRefused::NoRoom)?;
        *front = self.protection.header_and_iv(sequence);
        mend_network(headers, layout, shape.end, PROTOCOL_ESP);
        Ok(packet)
    }

    /// Headers and payload are at their place in `out`: writes everything else and encrypts.
    #[inline]
    fn protect_common(
        &self,
        out: &mut [u8],
        layout: &FrameLayout,
        shape: CommonShape,
        sequence: u64,
    ) -> Result<(), SealRefused> {
        let Some(aead) = self.protection.aead_with_iv() else { return Err(SealRefused::Cipher) };
        let packet = self.write_front(out, layout, shape, sequence)?;
        let trailer = short_trailer(shape.pad_len, layout.protocol);
        packet[shape.payload_len..shape.payload_len + size_of::<u64>()].copy_from_slice(&trailer.to_le_bytes());
        let (nonce, aad) = (self.protection.nonce(sequence), self.protection.aad(sequence));
        aead.seal(nonce, aad, packet).map_err(|_| SealRefused::Cipher)
    }

    #[inline]
    fn count_common(&mut self, layout: &FrameLayout, shape: CommonShape, sequence: u64, start: usize) -> Sealed {
        let event = self.spent.spend(layout.packet_end - layout.network_start);
        Sealed { start, end: start + shape.end, sequence, event }
    }

    pub(super) fn seal_any_in_place(
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

/// Moves headers of `len` bytes to the start of `frame` from [`COMMON_FRONT_LEN`] bytes behind it. The usual ones
/// are moved by three or four loads and stores as long as the distance, which do not reach beyond the place of
/// ESP header and IV.
#[inline]
fn move_headers_down(frame: &mut [u8], len: usize) {
    const THREE: usize = 3 * COMMON_FRONT_LEN;
    const FOUR: usize = 4 * COMMON_FRONT_LEN;
    let moved = match len.div_ceil(COMMON_FRONT_LEN) * COMMON_FRONT_LEN {
        THREE => move_steps::<THREE>(frame),
        FOUR => move_steps::<FOUR>(frame),
        _ => None,
    };
    if moved.is_none() {
        frame.copy_within(COMMON_FRONT_LEN..COMMON_FRONT_LEN + len, 0);
    }
}

/// Copies headers of `len` bytes to the start of `out`, in the same steps.
#[inline]
fn copy_headers(frame: &[u8], out: &mut [u8], len: usize) {
    const THREE: usize = 3 * COMMON_FRONT_LEN;
    match (len.div_ceil(COMMON_FRONT_LEN) * COMMON_FRONT_LEN, frame.first_chunk(), out.first_chunk_mut::<THREE>()) {
        (THREE, Some(headers), Some(place)) => *place = *headers,
        _ => out[..len].copy_from_slice(&frame[..len]),
    }
}

/// `None`, and nothing done, when the frame is too short.
#[inline]
fn move_steps<const LEN: usize>(frame: &mut [u8]) -> Option<()> {
    let moved = *frame[COMMON_FRONT_LEN..].first_chunk::<LEN>()?;
    *frame.first_chunk_mut()? = moved;
    Some(())
}

/// The cipher of an association.
pub(super) fn protection_of(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Protection, InvalidSa> {
    let keys = (config.encryption_key.bytes(), config.integrity_key.bytes());
    Protection::new(config.spi, config.suite, keys.0, keys.1, config.esn, library)
        .map_err(|_| InvalidSa::WeakKey { spi: config.spi, suite: config.suite })
}

/// Padding 1, 2, 3, … (RFC 4303 2.4), its length and the next header, written to the front of `tail`,
/// which reaches up to the end of the check value: what is written behind the trailer is written again.
#[inline]
fn write_trailer(tail: &mut [u8], shape: &Shape) {
    match tail.first_chunk_mut() {
        Some(word) if shape.pad_len <= SHORT_PAD_LEN_MAX => {
            *word = short_trailer(shape.pad_len, shape.next_header).to_le_bytes();
        }
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
pub(super) const SHORT_PAD_LEN_MAX: usize = size_of::<u64>() - TRAILER_FIELDS_LEN;
/// Padding 1, 2, 3, … as it lies in a little-endian word.
const SHORT_PADDING: u64 = 0x0807_0605_0403_0201;

/// A trailer in one word, so that it is written by one store.
#[inline]
pub(super) fn short_trailer(pad_len: usize, next_header: u8) -> u64 {
    let word = SHORT_TRAILERS[pad_len];
    word | u64::from(next_header) << (u8::BITS * (pad_len as u32 + 1))
}

/// Trailers with every padding that fits into a word, without the next header.
const SHORT_TRAILERS: [u64; SHORT_PAD_LEN_MAX + 1] = {
    let mut trailers = [0; SHORT_PAD_LEN_MAX + 1];
    let mut pad_len = 0;
    while pad_len <= SHORT_PAD_LEN_MAX {
        let pad_bits = pad_len as u32 * u8::BITS;
        trailers[pad_len] = SHORT_PADDING & ((1 << pad_bits) - 1) | (pad_len as u64) << pad_bits;
        pad_len += 1;
    }
    trailers
};

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
