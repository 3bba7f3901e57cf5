//! Inbound processing: turns an ESP packet into a clear frame (RFC 4303 3.4).

use super::cipher::{Parts, Protection};
use super::config::SaConfig;
use super::error::{InvalidSa, Refused};
use super::library::{CipherLibrary, aws_lc};
use super::lifetime::{LifetimeEvent, Spent};
use super::replay::ReplayWindow;
use super::selector::{Selector, addresses};
use super::suite::{Suite, TAG_LEN};
use super::trailer::{SHORT_PAD_LEN_MAX, TRAILER_FIELDS_LEN, short_trailer};
use super::tunnel::{
    LenAndProtocol, NEXT_HEADER_IPV4, NEXT_HEADER_IPV6, class_of, ecn_of, set_ecn, set_len_and_protocol,
};
use super::udp::{ESP_HEADER_LEN, EspPacket};
use super::usual::{Usual, move_headers, of_usual};
use crate::checksum::{ipv4_header_is_good, is_good_ipv4_header};
use crate::frame::Frame;
use crate::layout::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, FrameLayout, LengthFrom, PROTOCOL_UDP, Transport, UDP_HEADER_LEN,
    UDP_LENGTH_OFFSET, be16, is_extension_header, put16, transport_in,
};
use std::net::IpAddr;

/// Next header of a dummy packet (RFC 4303 2.6).
pub const NEXT_HEADER_NONE: u8 = 59;

/// The offsets and the layout of an opened frame, the packet's sequence number, and the lifetime limit that the packet
/// reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Offset of the clear frame's first byte from the start of the sealed frame.
    pub start: usize,
    /// Offset of the clear frame's end from the start of the sealed frame.
    pub end: usize,
    /// Layout of the clear frame, counted from the start of the clear frame.
    pub layout: FrameLayout,
    /// Sequence number of the packet.
    pub sequence: u64,
    /// True if a NAT might have changed the addresses, which makes the transport checksum wrong (RFC 3948 3.1.2). The
    /// ESP check value proves that the bytes are genuine, so the caller recomputes the checksum.
    pub checksum_is_stale: bool,
    /// Lifetime limit that this packet reached, if any.
    pub event: Option<LifetimeEvent>,
}

impl Opened {
    /// Returns the length of the clear IP packet, in bytes.
    pub(super) fn packet_len(&self) -> usize {
        self.end - self.start - self.layout.network_start
    }
}

/// The constant part of a receiving association, which threads can share.
///
/// A single thread uses [`InboundSa`], which does all steps. Threads with a shared association lock the window twice:
/// for [`ReplayWindow::check`], and for [`ReplayWindow::advance`]. [`Opener::decrypt`] runs between the two steps,
/// without the lock. If two threads open the same packet, [`ReplayWindow::advance`] succeeds in only one thread. An
/// `Opener` does not count packets and bytes for the lifetime limits; its caller counts them.
#[derive(Debug)]
pub struct Opener {
    protection: Protection,
    is_tunnel: bool,
    is_encapsulated: bool,
    /// True for an association in transport mode, with an AEAD that sends the IV in the packet, without UDP
    /// encapsulation and selector.
    is_common: bool,
    /// Selector of the clear packets, or `None` to accept every packet.
    selector: Option<Selector>,
    destination: Option<IpAddr>,
}

/// A genuine packet, decrypted in place.
#[derive(Clone, Copy, Debug)]
pub struct Decrypted {
    parts: Parts,
}

impl Opener {
    /// Makes an opener from the association's description.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// Does the same as [`Opener::new`], with the AEADs of `library`.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        config.validate()?;
        let tunnel_destination = config.tunnel().map(|tunnel| tunnel.destination);
        let protection = Protection::of(config, library)?;
        let selector = Some(config.selector.clone()).filter(|selector| *selector != Selector::default());
        let is_bare = tunnel_destination.is_none() && config.udp.is_none() && selector.is_none();
        Ok(Self {
            is_common: is_bare && protection.is_aead_with_iv(),
            protection,
            is_tunnel: tunnel_destination.is_some(),
            is_encapsulated: config.udp.is_some(),
            selector,
            destination: config.destination.or(tunnel_destination),
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

    /// Returns the header layout if the packet qualifies for the fast path of [`InboundSa::open`]. The fast path and
    /// the general path have the same result.
    #[inline]
    fn usual(&self, layout: &FrameLayout, packet: &EspPacket) -> Option<Usual> {
        let is_common = self.is_common
            && packet.spi == self.protection.spi
            && packet.esp_at == layout.transport_start
            && !packet.is_encapsulated
            && !layout.fragment;
        if is_common { Usual::of(layout) } else { None }
    }

    /// Returns true if the packet's outer destination is valid for this association.
    #[inline]
    pub fn is_addressed(&self, frame: &Frame<'_>) -> bool {
        let Ok((frame, layout)) = frame.parts() else { return false };
        match self.destination {
            None => true,
            Some(wanted) => addresses(frame, layout).is_some_and(|(_, destination)| destination == wanted),
        }
    }

    /// Verifies the packet and decrypts the payload in place. `sequence` is the result of [`ReplayWindow::check`].
    ///
    /// # Errors
    /// Returns [`Refused::UnknownSpi`], [`Refused::Malformed`] or [`Refused::Policy`], with the frame unchanged.
    /// Returns [`Refused::BadTag`] for a wrong check value, and then leaves the bytes of the payload unspecified.
    #[inline]
    pub fn decrypt(&self, frame: &mut Frame<'_>, packet: &EspPacket, sequence: u64) -> Result<Decrypted, Refused> {
        let (frame, layout) = frame.parts_mut().map_err(|_| Refused::Malformed)?;
        // The check value covers the association's SPI and `sequence`, so the SPI and the sequence number of the packet
        // must equal these two values.
        if packet.spi != self.protection.spi {
            return Err(Refused::UnknownSpi);
        }
        if packet.sequence != sequence as u32 {
            return Err(Refused::BadTag);
        }
        let parts = self.parts_of(frame, layout, packet)?;
        self.protection.open(frame, &parts, sequence).map_err(|_| Refused::BadTag)?;
        Ok(Decrypted { parts })
    }

    /// Checks IP header, encapsulation, lengths and alignment before decryption.
    #[inline]
    fn parts_of(&self, frame: &[u8], layout: &FrameLayout, packet: &EspPacket) -> Result<Parts, Refused> {
        if packet.is_encapsulated != self.is_encapsulated {
            return Err(Refused::Policy);
        }
        if !ipv4_header_is_good(frame, layout) {
            return Err(Refused::Malformed);
        }
        let esp_at = if packet.is_encapsulated { layout.payload_start } else { layout.transport_start };
        if packet.esp_at != esp_at {
            return Err(Refused::Malformed); // `packet` was parsed from another frame.
        }
        let body_at = packet.esp_at + ESP_HEADER_LEN + self.protection.iv_len;
        let icv_at = layout.packet_end.checked_sub(self.protection.icv_len).ok_or(Refused::Malformed)?;
        let body_len = icv_at.checked_sub(body_at).ok_or(Refused::Malformed)?;
        // Alignments are powers of two, so a mask replaces a division.
        if body_len < TRAILER_FIELDS_LEN || body_len & (self.protection.alignment - 1) != 0 {
            return Err(Refused::Malformed);
        }
        Ok(Parts { esp_at: packet.esp_at, body_at, icv_at, end: layout.packet_end })
    }

    /// Unwraps a decrypted packet. Moves the headers up to the payload, which stays in place. After the call, `frame`
    /// is the clear frame.
    ///
    /// # Errors
    /// Returns [`Refused::Malformed`], [`Refused::Policy`], [`Refused::Congestion`] or [`Refused::Dummy`].
    #[inline]
    pub fn unwrap(&self, frame: &mut Frame<'_>, decrypted: Decrypted, sequence: u64) -> Result<Opened, Refused> {
        let (bytes, layout) = frame.parts_mut().map_err(|_| Refused::Malformed)?;
        let parts = &decrypted.parts;
        let (payload_end, next_header) = read_trailer(&bytes[..parts.icv_at], parts.body_at)?;
        if next_header == NEXT_HEADER_NONE {
            return Err(Refused::Dummy);
        }
        let (start, clear) = if self.is_tunnel {
            unwrap_tunnel(bytes, layout, parts.body_at, payload_end, next_header)?
        } else {
            unwrap_transport(bytes, layout, parts.body_at, payload_end, next_header)?
        };
        let end = start + clear.packet_end;
        if self.selector.as_ref().is_some_and(|selector| !selector.matches_packet(&bytes[start..end], &clear)) {
            return Err(Refused::Policy);
        }
        frame.narrow(start..end, clear);
        let checksum_is_stale = self.is_encapsulated && !self.is_tunnel;
        Ok(Opened { start, end, layout: clear, sequence, checksum_is_stale, event: None })
    }
}

/// Returns the offset of the payload's end, and the next header. The padding bytes must be 1, 2, 3 and so on (RFC 4303
/// 2.4).
#[inline]
fn read_trailer(frame: &[u8], body_at: usize) -> Result<(usize, u8), Refused> {
    if let Some(tail) = frame.last_chunk() {
        // The decrypted bytes are read once, as one word.
        let word = u64::from_le_bytes(*tail);
        let (next_header, pad_len) = ((word >> (7 * u8::BITS)) as u8, usize::from((word >> (6 * u8::BITS)) as u8));
        let payload_end = frame.len().wrapping_sub(TRAILER_FIELDS_LEN + pad_len);
        if pad_len <= SHORT_PAD_LEN_MAX && payload_end >= body_at && payload_end <= frame.len() {
            let padding_at = (SHORT_PAD_LEN_MAX - pad_len) as u32 * u8::BITS;
            let is_counted = word >> padding_at == short_trailer(pad_len, next_header);
            return if is_counted { Ok((payload_end, next_header)) } else { Err(Refused::Malformed) };
        }
    }
    read_any_trailer(frame, body_at)
}

/// Does the same as [`read_trailer`], byte by byte.
#[inline(never)]
fn read_any_trailer(frame: &[u8], body_at: usize) -> Result<(usize, u8), Refused> {
    let &[.., pad_len, next_header] = frame else { return Err(Refused::Malformed) };
    let pad_end = frame.len() - TRAILER_FIELDS_LEN;
    let payload_end =
        pad_end.checked_sub(usize::from(pad_len)).filter(|&end| end >= body_at).ok_or(Refused::Malformed)?;
    let is_counted = frame[payload_end..pad_end].iter().zip(1..).all(|(&byte, n)| byte == n);
    if is_counted { Ok((payload_end, next_header)) } else { Err(Refused::Malformed) }
}

/// Returns the start and the layout of the clear frame.
#[inline]
fn unwrap_transport(
    frame: &mut [u8],
    layout: &FrameLayout,
    body_at: usize,
    payload_end: usize,
    next_header: u8,
) -> Result<(usize, FrameLayout), Refused> {
    let headers_len = layout.transport_start;
    let start = body_at - headers_len;
    let end = end_without_tfc(&frame[..payload_end], body_at, next_header)?;
    move_headers(frame, 0, start, headers_len);
    let clear = &mut frame[start..end];
    set_len_and_protocol(clear, layout, end - start, next_header);
    let clear_layout = *Frame::received(clear).layout().map_err(|_| Refused::Malformed)?;
    Ok((start, clear_layout))
}

/// The parsed contents of a decrypted body.
struct Clear {
    protocol: u8,
    transport: Transport,
    /// Length of transport header and payload in bytes.
    len: usize,
    transport_header_len: usize,
}

impl Clear {
    /// Parses the contents with the same result as [`unwrap_transport`]. Does not support IPv6 extension headers.
    #[inline]
    fn of(body: &[u8]) -> Result<Self, Refused> {
        let (payload_end, protocol) = read_trailer(body, 0)?;
        if protocol == NEXT_HEADER_NONE {
            return Err(Refused::Dummy);
        }
        let len = end_without_tfc(&body[..payload_end], 0, protocol)?;
        let (transport, transport_header_len) =
            transport_in(&body[..len], protocol, LengthFrom::Ip).map_err(|_| Refused::Malformed)?;
        Ok(Self { protocol, transport, len, transport_header_len })
    }
}

/// Returns the end of the payload without padding for traffic flow confidentiality. Padding for traffic flow
/// confidentiality requires a payload with a length field. In transport mode, only UDP has a length field (RFC 4303
/// 2.7).
#[inline]
fn end_without_tfc(frame: &[u8], payload_at: usize, next_header: u8) -> Result<usize, Refused> {
    if next_header != PROTOCOL_UDP {
        return Ok(frame.len());
    }
    let header = frame[payload_at..].first_chunk::<UDP_HEADER_LEN>().ok_or(Refused::Malformed)?;
    let end = payload_at + usize::from(be16(header, UDP_LENGTH_OFFSET));
    if end <= frame.len() { Ok(end) } else { Err(Refused::Malformed) }
}

/// Returns the start and the layout of the clear frame. The inner packet's length field determines the frame's end.
#[inline]
fn unwrap_tunnel(
    frame: &mut [u8],
    layout: &FrameLayout,
    body_at: usize,
    payload_end: usize,
    next_header: u8,
) -> Result<(usize, FrameLayout), Refused> {
    let ethertype = match next_header {
        NEXT_HEADER_IPV4 => ETHERTYPE_IPV4,
        NEXT_HEADER_IPV6 => ETHERTYPE_IPV6,
        _ => return Err(Refused::Policy),
    };
    let outer_class = class_of(frame, layout);
    let link_len = layout.network_start;
    let start = body_at - link_len;
    frame.copy_within(..link_len, start);
    put16(frame, body_at - 2, ethertype);
    let clear = &mut frame[start..payload_end];
    let clear_layout = *Frame::received(clear).layout().map_err(|_| Refused::Malformed)?;
    let ecn = ecn_of(class_of(clear, &clear_layout), outer_class).map_err(|_| Refused::Congestion)?;
    set_ecn(clear, &clear_layout, ecn);
    Ok((start, clear_layout))
}

/// The anti-replay window and the used lifetime of a receiving association.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) window: ReplayWindow,
    pub(super) spent: Spent,
}

impl Seen {
    pub(super) fn new(config: &SaConfig) -> Self {
        let window = ReplayWindow::new(config.replay_window, config.esn, config.sequence);
        Self { window, spent: Spent::new(config.lifetime) }
    }

    #[inline]
    pub(super) fn check(&self, low: u32) -> Result<u64, Refused> {
        if self.spent.is_used_up() {
            return Err(Refused::Expired);
        }
        Ok(self.window.check(low)?)
    }
}

/// A receiving security association.
#[derive(Debug)]
pub struct InboundSa {
    opener: Opener,
    seen: Seen,
}

impl InboundSa {
    /// Makes an association from its description.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// Does the same as [`InboundSa::new`], with the AEADs of `library`.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        Ok(Self { opener: Opener::with_library(config, library)?, seen: Seen::new(config) })
    }

    /// Returns the constant part of the association.
    pub fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Returns the anti-replay window.
    pub fn window(&self) -> &ReplayWindow {
        &self.seen.window
    }

    /// Returns the number of genuine packets so far.
    pub fn packets(&self) -> u64 {
        self.seen.spent.packets()
    }

    /// Returns the total length of the clear packets so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.seen.spent.bytes()
    }

    /// Returns the last lifetime limit that a genuine but refused packet reached ([`Refused::Dummy`],
    /// [`Refused::Policy`], and others). No [`Opened`] has reported this event. Each event is returned once.
    pub fn pending_event(&mut self) -> Option<LifetimeEvent> {
        self.seen.spent.take_pending()
    }

    /// Opens a frame in place. The steps are replay check, integrity check and decryption, window update, and removal
    /// of ESP header and trailer (RFC 4303 3.4). After the call, `frame` is the clear frame, inside the bytes of the
    /// sealed frame.
    ///
    /// # Errors
    /// Returns the reason to refuse the packet. After an error, the frame's bytes are unspecified. The anti-replay
    /// window has moved only if the packet was genuine.
    #[inline]
    pub fn open(&mut self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        match frame.layout().ok().and_then(|layout| self.opener.usual(layout, packet)) {
            Some(usual) => of_usual!(usual, self.open_usual(frame, packet)),
            None => self.open_any(frame, packet),
        }
    }

    #[inline(never)]
    fn open_any(&mut self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        let sequence = self.seen.check(packet.sequence)?;
        let decrypted = self.opener.decrypt(frame, packet, sequence)?;
        self.seen.window.advance(sequence)?;
        self.unwrap(frame, decrypted, sequence)
    }

    /// Unwraps a genuine packet and counts the packet.
    fn unwrap(&mut self, frame: &mut Frame<'_>, decrypted: Decrypted, sequence: u64) -> Result<Opened, Refused> {
        let opened = self.opener.unwrap(frame, decrypted, sequence);
        let opened = opened.inspect_err(|_| self.seen.spent.spend_refused())?;
        let event = self.seen.spent.spend(opened.packet_len());
        Ok(Opened { event, ..opened })
    }

    /// Does the same as [`InboundSa::open_any`], for headers at constant offsets: the IP header at `NETWORK`, ESP at
    /// `TRANSPORT`, the encrypted part at `BODY`.
    #[inline(never)]
    fn open_usual<const NETWORK: usize, const TRANSPORT: usize, const BODY: usize>(
        &mut self,
        frame: &mut Frame<'_>,
        packet: &EspPacket,
    ) -> Result<Opened, Refused> {
        let sequence = self.seen.check(packet.sequence)?;
        let (bytes, layout) = frame.parts_mut().map_err(|_| Refused::Malformed)?;
        let layout = *layout;
        let whole = &mut bytes[..layout.packet_end];
        let (headers, packet) = whole.split_first_chunk_mut::<BODY>().ok_or(Refused::Malformed)?;
        let body_len = packet.len().checked_sub(TAG_LEN).ok_or(Refused::Malformed)?;
        let has_good_header = headers[NETWORK..TRANSPORT].as_array().is_none_or(is_good_ipv4_header);
        if !has_good_header || body_len < TRAILER_FIELDS_LEN || body_len & (self.opener.protection.alignment - 1) != 0 {
            return Err(Refused::Malformed);
        }
        let counter_iv = u64::from_be_bytes(*headers.last_chunk().ok_or(Refused::Malformed)?);
        self.opener.protection.open_usual(packet, sequence, counter_iv).map_err(|_| Refused::BadTag)?;
        self.seen.window.advance(sequence)?;
        // The layout must include extension headers, but this fast path does not parse extension headers.
        if is_extension_header(packet[body_len - 1]) {
            let icv_at = BODY + body_len;
            let parts = Parts { esp_at: TRANSPORT, body_at: BODY, icv_at, end: layout.packet_end };
            return self.unwrap(frame, Decrypted { parts }, sequence);
        }
        let clear = Clear::of(&packet[..body_len]).inspect_err(|_| self.seen.spent.spend_refused())?;
        let packet_end = TRANSPORT + clear.len;
        let changed = LenAndProtocol::of(&headers[NETWORK..TRANSPORT], packet_end - NETWORK, clear.protocol);
        headers.copy_within(..TRANSPORT, BODY - TRANSPORT);
        changed.write(&mut headers[BODY - TRANSPORT + NETWORK..]);
        let event = self.seen.spent.spend(packet_end - NETWORK);
        let (start, end) = (BODY - TRANSPORT, BODY - TRANSPORT + packet_end);
        let layout = FrameLayout {
            transport: clear.transport,
            protocol: clear.protocol,
            payload_start: TRANSPORT + clear.transport_header_len,
            packet_end,
            ..layout
        };
        frame.narrow(start..end, layout);
        Ok(Opened { start, end, layout, sequence, checksum_is_stale: false, event })
    }
}
