//! Outbound processing: turns a clear frame into an ESP packet (RFC 4303 3.3).

use super::cipher::{Parts, Protection};
use super::config::SaConfig;
use super::error::{InvalidSa, SealRefused};
use super::library::{CipherLibrary, aws_lc};
use super::lifetime::{LifetimeEvent, Spent};
use super::shared::Grant;
use super::suite::{Suite, TAG_LEN};
use super::trailer::{SHORT_PAD_LEN_MAX, TRAILER_FIELDS_LEN, short_trailer};
use super::tunnel::{
    Inner, LenAndProtocol, NEXT_HEADER_IPV4, NEXT_HEADER_IPV6, Outer, PROTOCOL_ESP, set_len_and_protocol,
};
use super::udp::{self, ESP_HEADER_LEN, UdpPorts};
use super::usual::{COMMON_FRONT_LEN, Usual, move_headers, of_usual};
use crate::checksum::{Sum, sum};
use crate::frame::Frame;
use crate::layout::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_HEADER_LEN_MIN as IPV4_HEADER_LEN,
    IPV4_ID_OFFSET, Network, PROTOCOL_UDP, UDP_HEADER_LEN, put16,
};
use crate::segment::Heads;
use std::ops::Range;

/// Maximum length of an IPv4 packet, and of the bytes after an IPv6 header, in bytes.
const IP_LEN_MAX: usize = u16::MAX as usize;

/// Alignment of the trailer's end on the fast path, in bytes (RFC 4303 2.4).
const COMMON_ALIGNMENT: usize = 4;

/// The offsets of a sealed frame, the packet's sequence number, and the lifetime limit that the packet reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Offset of the sealed frame's first byte from the start of the buffer.
    pub start: usize,
    /// Offset of the sealed frame's end from the start of the buffer.
    pub end: usize,
    /// Sequence number of the packet.
    pub sequence: u64,
    /// Lifetime limit that this packet reached, if any.
    pub event: Option<LifetimeEvent>,
}

/// A sending security association.
///
/// Only one thread at a time uses an association, so that packets are sent in the order of their sequence numbers.
#[derive(Debug)]
pub struct OutboundSa {
    protection: Protection,
    outer: Option<Outer>,
    udp: Option<UdpPorts>,
    /// True for an association in transport mode, with an AEAD that sends the IV in the packet, without UDP
    /// encapsulation.
    is_common: bool,
    /// Last sequence number sent.
    sent: u64,
    /// Last sequence number that the association may use. Equals `sent` once a hard lifetime is reached.
    last: u64,
    spent: Spent,
}

/// The offsets and lengths of a packet's parts. Offsets in `parts` count from the sealed frame's start.
#[derive(Clone, Copy)]
struct Shape {
    parts: Parts,
    /// Offset of the protected bytes in the clear frame.
    payload_at: usize,
    payload_len: usize,
    pad_len: usize,
    next_header: u8,
    inner: Inner,
}

/// The shape of a packet on the fast path (see [`OutboundSa::usual`]).
#[derive(Clone, Copy)]
struct CommonShape {
    payload_len: usize,
    pad_len: usize,
    /// Offset of the sealed frame's end.
    end: usize,
}

impl CommonShape {
    /// Returns the shape of a packet with the IP header at `network_start` and the payload from `payload_at` to
    /// `payload_end`.
    #[inline]
    fn of(payload_at: usize, payload_end: usize, network_start: usize) -> Result<Self, SealRefused> {
        let payload_len = payload_end - payload_at;
        let body_len = (payload_len + TRAILER_FIELDS_LEN + COMMON_ALIGNMENT - 1) & !(COMMON_ALIGNMENT - 1);
        let end = payload_at + COMMON_FRONT_LEN + body_len + TAG_LEN;
        if end - network_start > IP_LEN_MAX {
            return Err(SealRefused::TooLong);
        }
        Ok(Self { payload_len, pad_len: body_len - TRAILER_FIELDS_LEN - payload_len, end })
    }
}

impl OutboundSa {
    /// Makes an association from its description.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// Does the same as [`OutboundSa::new`], with the AEADs of `library`.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        config.validate()?;
        let outer = config.tunnel().map(|tunnel| Outer::new(tunnel, config.udp));
        let protection = Protection::of(config, library)?;
        Ok(Self {
            is_common: outer.is_none() && config.udp.is_none() && protection.is_aead_with_iv(),
            protection,
            outer,
            udp: config.udp,
            sent: config.sequence,
            last: if config.esn { u64::MAX } else { u64::from(u32::MAX) },
            spent: Spent::new(config.lifetime),
        })
    }

    /// Returns the security parameters index.
    pub fn spi(&self) -> u32 {
        self.protection.spi
    }

    /// Returns the suite.
    pub fn suite(&self) -> Suite {
        self.protection.suite
    }

    /// Returns the name of the cipher library.
    pub fn library_name(&self) -> &'static str {
        self.protection.library_name
    }

    /// Returns the last sequence number sent, 0 before the first packet.
    pub fn sequence(&self) -> u64 {
        self.sent
    }

    /// Returns the number of packets sealed so far.
    pub fn packets(&self) -> u64 {
        self.spent.packets()
    }

    /// Returns the total length of the clear packets sealed so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.spent.bytes()
    }

    /// Returns how many more packets of `packet_len` clear bytes the sequence numbers and hard lifetimes allow.
    pub fn packets_left(&self, packet_len: usize) -> u64 {
        (self.last - self.sent).min(self.spent.packets_left(packet_len))
    }

    /// Assigns the sequence numbers of `grant`, which no other thread uses, to the next packets. Discards unused
    /// numbers of earlier grants.
    pub fn take_over(&mut self, grant: Grant) {
        (self.sent, self.last) = grant.into_range();
        if self.spent.is_used_up() {
            self.last = self.sent;
        }
    }

    /// Returns the number of bytes that sealing adds in front of the frame. The number is the same for every frame of
    /// this association.
    pub fn front_len(&self) -> usize {
        let wrapped = self.outer.as_ref().map_or(udp::header_len(self.udp), Outer::len);
        wrapped + ESP_HEADER_LEN + self.protection.iv_len
    }

    /// Returns the maximum number of bytes that sealing adds at the frame's end: padding, trailer and check value.
    pub fn tail_len_max(&self) -> usize {
        self.protection.alignment - 1 + TRAILER_FIELDS_LEN + self.protection.icv_len
    }

    /// Returns the length of the sealed frame, in bytes.
    ///
    /// # Errors
    /// Returns the error that [`OutboundSa::seal`] would return.
    pub fn sealed_len(&self, frame: &Frame<'_>) -> Result<usize, SealRefused> {
        let (bytes, layout) = frame.parts().map_err(|_| SealRefused::NotIp)?;
        self.sealed_len_of(bytes, layout)
    }

    #[inline]
    pub(super) fn sealed_len_of(&self, frame: &[u8], layout: &FrameLayout) -> Result<usize, SealRefused> {
        Ok(self.shape_of(frame, layout)?.parts.end)
    }

    /// Returns the maximum length of a clear IP packet for which the sealed packet has at most `path_mtu` IP bytes. The
    /// result is exact, padding included. `network_header_len` is the length of the IP header with options and
    /// extension headers, ignored in a tunnel. Returns `None` if even an empty packet does not fit.
    pub fn packet_len_max(&self, path_mtu: usize, network_header_len: usize) -> Option<usize> {
        let stays_clear = if self.outer.is_some() { 0 } else { network_header_len };
        let room = path_mtu.min(IP_LEN_MAX).checked_sub(stays_clear + self.front_len() + self.protection.icv_len)?;
        let body_len = room - room % self.protection.alignment;
        Some(stays_clear + body_len.checked_sub(TRAILER_FIELDS_LEN)?)
    }

    /// Returns the maximum TCP or UDP payload that fits into the limit of [`OutboundSa::packet_len_max`]. The result is
    /// the maximum segment size for super-frames. `transport_header_len` is the length of the TCP or UDP header with
    /// options.
    pub fn payload_max(
        &self,
        path_mtu: usize,
        network_header_len: usize,
        transport_header_len: usize,
    ) -> Option<usize> {
        let packet_len = self.packet_len_max(path_mtu, network_header_len)?;
        packet_len.checked_sub(network_header_len + transport_header_len)
    }

    /// Seals `frame` into the front of `out`, without the Ethernet padding. `frame` stays unchanged.
    ///
    /// # Errors
    /// Returns an error if the frame cannot be sealed. Only [`SealRefused::Cipher`] uses up a sequence number.
    #[inline]
    pub fn seal(&mut self, frame: &Frame<'_>, out: &mut [u8]) -> Result<Sealed, SealRefused> {
        let (frame, layout) = frame.parts().map_err(|_| SealRefused::NotIp)?;
        match self.usual(layout) {
            Some(Usual::Ipv4) => of_usual!(0, self.seal_usual(frame, layout, out)),
            Some(usual) => self.seal_less_usual(usual, frame, layout, out),
            None => self.seal_any(frame, layout, out),
        }
    }

    #[inline(never)]
    fn seal_less_usual(
        &mut self,
        usual: Usual,
        frame: &[u8],
        layout: &FrameLayout,
        out: &mut [u8],
    ) -> Result<Sealed, SealRefused> {
        of_usual!(usual, self.seal_usual(frame, layout, out))
    }

    pub(super) fn seal_any(
        &mut self,
        frame: &[u8],
        layout: &FrameLayout,
        out: &mut [u8],
    ) -> Result<Sealed, SealRefused> {
        let shape = self.shape_of(frame, layout)?;
        let out = out.get_mut(..shape.parts.end).ok_or(SealRefused::NoRoom)?;
        self.seal_shaped(out, layout, &shape, 0, |out, headers_len| {
            out[..headers_len].copy_from_slice(&frame[..headers_len]);
            let payload = &frame[shape.payload_at..shape.payload_at + shape.payload_len];
            out[shape.parts.body_at..][..shape.payload_len].copy_from_slice(payload);
        })
    }

    /// Seals the frame at `start` of `buffer` in place. The sealed frame starts [`OutboundSa::front_len`] bytes earlier
    /// and ends up to [`OutboundSa::tail_len_max`] bytes later. The length field of the IP header determines the
    /// frame's end.
    ///
    /// # Errors
    /// Returns an error if the frame cannot be sealed. After every error except [`SealRefused::Cipher`], the frame is
    /// unchanged.
    #[inline]
    pub fn seal_in_place(&mut self, buffer: &mut [u8], start: usize) -> Result<Sealed, SealRefused> {
        let frame = Frame::received(buffer.get_mut(start..).ok_or(SealRefused::NoRoom)?);
        let layout = *frame.layout().map_err(|_| SealRefused::NotIp)?;
        self.seal_at(buffer, start, &layout)
    }

    /// Does the same as [`OutboundSa::seal_in_place`], for a frame with this layout.
    #[inline]
    pub(super) fn seal_at(
        &mut self,
        buffer: &mut [u8],
        start: usize,
        layout: &FrameLayout,
    ) -> Result<Sealed, SealRefused> {
        match self.usual(layout) {
            Some(Usual::Ipv4) => of_usual!(0, self.seal_usual_in_place(buffer, start, layout)),
            Some(usual) => self.seal_less_usual_in_place(usual, buffer, start, layout),
            None => self.seal_any_in_place(buffer, start, layout),
        }
    }

    #[inline(never)]
    fn seal_less_usual_in_place(
        &mut self,
        usual: Usual,
        buffer: &mut [u8],
        start: usize,
        layout: &FrameLayout,
    ) -> Result<Sealed, SealRefused> {
        of_usual!(usual, self.seal_usual_in_place(buffer, start, layout))
    }

    /// Returns the header layout if frame and association qualify for the fast path. The association must use transport
    /// mode and an AEAD that sends the IV in the packet, without UDP encapsulation. The fast path has the same result
    /// as [`OutboundSa::seal_any`] and [`OutboundSa::seal_any_in_place`].
    #[inline]
    fn usual(&self, layout: &FrameLayout) -> Option<Usual> {
        if self.is_common && !layout.fragment { Usual::of(layout) } else { None }
    }

    /// Does the same as [`OutboundSa::seal_any_in_place`], for headers at constant offsets: the IP header at `NETWORK`,
    /// the ESP header at `TRANSPORT`, the encrypted part at `BODY`.
    #[inline]
    fn seal_usual_in_place<const NETWORK: usize, const TRANSPORT: usize, const BODY: usize>(
        &mut self,
        buffer: &mut [u8],
        start: usize,
        layout: &FrameLayout,
    ) -> Result<Sealed, SealRefused> {
        let shape = CommonShape::of(TRANSPORT, layout.packet_end, NETWORK)?;
        let from = start.checked_sub(COMMON_FRONT_LEN).ok_or(SealRefused::NoRoom)?;
        let out = buffer.get_mut(from..).and_then(|out| out.get_mut(..shape.end)).ok_or(SealRefused::NoRoom)?;
        let (headers, packet) = out.split_first_chunk_mut::<BODY>().ok_or(SealRefused::NoRoom)?;
        // Check for room in the buffer before a sequence number is used or a byte is moved.
        trailer_of(packet, shape)?;
        let sequence = self.next_sequence()?;
        // Read the header before the move, because a load after the move would wait for the stores.
        let changed = LenAndProtocol::of(&headers[COMMON_FRONT_LEN + NETWORK..], shape.end - NETWORK, PROTOCOL_ESP);
        headers.copy_within(COMMON_FRONT_LEN.., 0);
        changed.write(&mut headers[NETWORK..TRANSPORT]);
        headers[TRANSPORT..].copy_from_slice(&self.protection.header_and_iv(sequence));
        *trailer_of(packet, shape)? = short_trailer(shape.pad_len, layout.protocol).to_le_bytes();
        self.protection.seal_usual(packet, sequence).map_err(|_| SealRefused::Cipher)?;
        let event = self.spend(layout.packet_end - NETWORK);
        Ok(Sealed { start: from, end: from + shape.end, sequence, event })
    }

    /// Does the same as [`OutboundSa::seal_any`], for headers at constant offsets.
    #[inline]
    fn seal_usual<const NETWORK: usize, const TRANSPORT: usize, const BODY: usize>(
        &mut self,
        frame: &[u8],
        layout: &FrameLayout,
        out: &mut [u8],
    ) -> Result<Sealed, SealRefused> {
        let shape = CommonShape::of(TRANSPORT, layout.packet_end, NETWORK)?;
        let out = out.get_mut(..shape.end).ok_or(SealRefused::NoRoom)?;
        let (headers, packet) = out.split_first_chunk_mut::<BODY>().ok_or(SealRefused::NoRoom)?;
        let (clear, payload) = frame[..layout.packet_end].split_at(TRANSPORT);
        let sequence = self.next_sequence()?;
        headers[..TRANSPORT].copy_from_slice(clear);
        let changed = LenAndProtocol::of(&clear[NETWORK..], shape.end - NETWORK, PROTOCOL_ESP);
        changed.write(&mut headers[NETWORK..TRANSPORT]);
        headers[TRANSPORT..].copy_from_slice(&self.protection.header_and_iv(sequence));
        let trailer = short_trailer(shape.pad_len, layout.protocol).to_le_bytes();
        let trailer = &trailer[..shape.pad_len + TRAILER_FIELDS_LEN];
        self.protection.seal_usual_from([payload, trailer], packet, sequence).map_err(|_| SealRefused::Cipher)?;
        let event = self.spend(layout.packet_end - NETWORK);
        Ok(Sealed { start: 0, end: shape.end, sequence, event })
    }

    /// Seals the segments of `heads`, each from its position in the super-frame to the front of one slot of `stride`
    /// bytes. Returns the number of sealed segments, and the last lifetime limit that one of these segments reached.
    /// After the last segment, `frame` must have room for a trailer.
    ///
    /// The cipher requires contiguous input. So each transport header is written directly in front of the segment's
    /// payload. The header overwrites bytes already sealed, or the super-frame's headers, which are restored at the
    /// end. The trailer is written after the payload, over bytes that are restored immediately.
    pub(super) fn seal_segments(
        &mut self,
        frame: &mut [u8],
        heads: &Heads,
        layout: &FrameLayout,
        out: &mut [u8],
        stride: usize,
    ) -> Result<(usize, Option<LifetimeEvent>), SealRefused> {
        let with_trailer = heads.segment_len + size_of::<u64>();
        let room = frame.len().checked_sub(heads.payload_at + with_trailer);
        let frames = room.map_or(0, |room| (room / heads.segment_len + 1).min(heads.frames));
        let (Some(usual), true) = (self.usual(layout), frames > 0) else { return Ok((0, None)) };
        let run = Segments { heads, frames, stride, protocol: layout.protocol };
        let Some(before) = frame.first_chunk::<{ Heads::LEN_MAX }>().copied() else { return Ok((0, None)) };
        let event = of_usual!(usual, self.seal_usual_segments(frame, &run, out));
        frame[..heads.len].copy_from_slice(&before[..heads.len]);
        Ok((frames, event?))
    }

    #[inline(never)]
    fn seal_usual_segments<const NETWORK: usize, const TRANSPORT: usize, const BODY: usize>(
        &mut self,
        frame: &mut [u8],
        run: &Segments,
        out: &mut [u8],
    ) -> Result<Option<LifetimeEvent>, SealRefused> {
        let (heads, transport_len) = (run.heads, run.heads.len - TRANSPORT);
        let packet_end = heads.len + heads.segment_len;
        let shape = CommonShape::of(TRANSPORT, packet_end, NETWORK)?;
        let trailer_len = shape.pad_len + TRAILER_FIELDS_LEN;
        let trailer = short_trailer(shape.pad_len, run.protocol).to_le_bytes();
        let (front, network_sum) = front_of::<NETWORK, TRANSPORT, BODY>(heads, shape.end);
        let payload =
            |n: usize| heads.payload_at + n * heads.segment_len..heads.payload_at + (n + 1) * heads.segment_len;
        let mut event = None;
        let mut payload_sum = sum(&frame[payload(0)]);
        for n in 0..run.frames {
            let Range { start: payload_at, end: payload_end } = payload(n);
            let header_at = payload_at - transport_len;
            heads.copy_last_to(&mut frame[..payload_at], transport_len);
            heads.write_transport(n, &mut frame[header_at..payload_at], payload_sum);
            if n + 1 < run.frames {
                // While the sum is computed here, the stores above complete. Otherwise, the cipher's loads of the same
                // bytes would wait for them.
                payload_sum = sum(&frame[payload(n + 1)]);
            }
            let slot = out[n * run.stride..].get_mut(..shape.end).ok_or(SealRefused::NoRoom)?;
            let (headers, packet) = slot.split_first_chunk_mut::<BODY>().ok_or(SealRefused::NoRoom)?;
            let after = frame[payload_end..].first_chunk_mut().ok_or(SealRefused::NoRoom)?;
            let sequence = self.next_sequence()?;
            let saved = std::mem::replace(after, trailer);
            *headers = front;
            if TRANSPORT - NETWORK == IPV4_HEADER_LEN {
                let id = heads.id(n);
                put16(headers, NETWORK + IPV4_ID_OFFSET, id);
                put16(headers, NETWORK + IPV4_CHECKSUM_OFFSET, network_sum.plus(Sum::word(id)).checksum());
            }
            headers[TRANSPORT..].copy_from_slice(&self.protection.header_and_iv(sequence));
            let clear = &frame[header_at..payload_end + trailer_len];
            let sealed = self.protection.seal_usual_from([clear, &[]], packet, sequence);
            frame[payload_end..payload_end + saved.len()].copy_from_slice(&saved);
            sealed.map_err(|_| SealRefused::Cipher)?;
            event = self.spend(packet_end - NETWORK).or(event);
        }
        Ok(event)
    }

    /// Counts a sealed packet.
    #[inline]
    fn spend(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        if self.spent.spend_quietly(packet_len) { None } else { self.spend_last(packet_len) }
    }

    /// Counts a packet that can be the last packet of the association.
    #[cold]
    fn spend_last(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        let event = self.spent.spend(packet_len);
        if event == Some(LifetimeEvent::Hard) {
            self.last = self.sent;
        }
        event
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
        self.seal_shaped(out, layout, &shape, from, |out, headers_len| move_headers(out, front_len, 0, headers_len))
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
        // Alignments are powers of two, so a mask replaces a division.
        let body_len =
            (payload_len + TRAILER_FIELDS_LEN + self.protection.alignment - 1) & !(self.protection.alignment - 1);
        let esp_at = payload_at + wrapped_len;
        let body_at = esp_at + ESP_HEADER_LEN + self.protection.iv_len;
        let icv_at = body_at + body_len;
        let parts = Parts { esp_at, body_at, icv_at, end: icv_at + self.protection.icv_len };
        if parts.end - layout.network_start > IP_LEN_MAX {
            return Err(SealRefused::TooLong);
        }
        let pad_len = body_len - TRAILER_FIELDS_LEN - payload_len;
        Ok(Shape { parts, payload_at, payload_len, pad_len, next_header, inner })
    }

    /// Returns the reason for a [`OutboundSa::packets_left`] of 0.
    #[cold]
    pub(super) fn why_no_more(&self) -> SealRefused {
        if self.spent.is_used_up() { SealRefused::Expired } else { SealRefused::SequenceExhausted }
    }

    #[inline]
    fn next_sequence(&mut self) -> Result<u64, SealRefused> {
        if self.sent >= self.last {
            return Err(self.why_no_more());
        }
        self.sent += 1;
        Ok(self.sent)
    }

    #[inline]
    fn write_network(&self, out: &mut [u8], layout: &FrameLayout, shape: &Shape, sequence: u64) {
        let Some(outer) = &self.outer else {
            let protocol = if self.udp.is_some() { PROTOCOL_UDP } else { PROTOCOL_ESP };
            return set_len_and_protocol(out, layout, shape.parts.end, protocol);
        };
        let ethertype = if outer.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        put16(out, layout.network_start - 2, ethertype);
        outer.write(&mut out[layout.network_start..], shape.inner, sequence as u16);
    }

    /// Writes the sealed packet of this shape and counts the packet. The function `place` writes the payload, and the
    /// headers of the given length, into `out`.
    #[inline]
    fn seal_shaped(
        &mut self,
        out: &mut [u8],
        layout: &FrameLayout,
        shape: &Shape,
        start: usize,
        place: impl FnOnce(&mut [u8], usize),
    ) -> Result<Sealed, SealRefused> {
        let sequence = self.next_sequence()?;
        place(out, if self.outer.is_some() { layout.network_start } else { layout.transport_start });
        self.write_network(out, layout, shape, sequence);
        write_trailer(&mut out[shape.parts.body_at + shape.payload_len..], shape);
        self.protection.seal(out, &shape.parts, sequence).map_err(|_| SealRefused::Cipher)?;
        let end = shape.parts.end;
        if let Some(ports) = self.udp {
            let is_ipv4 = self.outer.as_ref().map_or(layout.network == Network::Ipv4, Outer::is_ipv4);
            let ipv6_header_at = (!is_ipv4).then_some(layout.network_start);
            udp::write_header(out, shape.parts.esp_at - UDP_HEADER_LEN, end, ports.bytes(), ipv6_header_at);
        }
        let event = self.spend(layout.packet_end - layout.network_start);
        Ok(Sealed { start, end: start + end, sequence, event })
    }
}

/// A group of segments sealed together.
struct Segments<'a> {
    heads: &'a Heads,
    frames: usize,
    /// Distance between the starts of two consecutive slots, in bytes.
    stride: usize,
    /// Next header in the trailers.
    protocol: u8,
}

/// Returns the first `BODY` bytes of a sealed segment that ends at `end`, and the sum of its IPv4 header. IPv4 ID, IPv4
/// checksum, ESP header and IV are still 0.
fn front_of<const NETWORK: usize, const TRANSPORT: usize, const BODY: usize>(
    heads: &Heads,
    end: usize,
) -> ([u8; BODY], Sum) {
    let mut front = [0; BODY];
    front[..TRANSPORT].copy_from_slice(&heads.bytes[..TRANSPORT]);
    let header = &mut front[NETWORK..TRANSPORT];
    if header.len() == IPV4_HEADER_LEN {
        put16(header, IPV4_ID_OFFSET, 0);
    }
    LenAndProtocol::of(header, end - NETWORK, PROTOCOL_ESP).write(header);
    if header.len() == IPV4_HEADER_LEN {
        put16(header, IPV4_CHECKSUM_OFFSET, 0);
    }
    let sum = sum(header);
    (front, sum)
}

/// Returns the eight bytes from the start of the trailer on. `packet` consists of the encrypted part and the check
/// value. The check value later overwrites the bytes after the trailer.
#[inline]
fn trailer_of(packet: &mut [u8], shape: CommonShape) -> Result<&mut [u8; size_of::<u64>()], SealRefused> {
    packet.get_mut(shape.payload_len..).and_then(|tail| tail.first_chunk_mut()).ok_or(SealRefused::NoRoom)
}

/// Writes the padding (1, 2, 3 and so on, RFC 4303 2.4), the padding length and the next header to the front of `tail`.
/// `tail` ends with the check value. The check value later overwrites the bytes after the trailer.
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
