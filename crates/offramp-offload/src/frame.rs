//! A frame: its bytes, the host's request, and its layout, as one value.
//!
//! Only [`Frame::new`] parses frames. Every later stage reads the layout stored in the frame, and cannot combine the
//! bytes of one frame with the layout of another. Decryption and decapsulation make new frames.
//!
//! A port that owns the memory of its frames uses a [`FrameBuffer`]. The buffer parses each frame once, and lends the
//! frame until the next frame is set.

use crate::checksum::{self, FrameBytes, PROTOCOL_SCTP, SCTP_CHECKSUM_OFFSET, SCTP_HEADER_LEN, SharedBytes, Sum};
use crate::count;
use crate::layout::{self, FrameLayout, LengthFrom, Malformed, PROTOCOL_UDP, Transport, VLAN_TAG_LEN};
use crate::meta::{ChecksumState, PartialChecksum, SegmentationKind, TxMeta};
use crate::vlan::{TAG_AT, TagChange};
use std::ops::Range;

/// The result of parsing a frame.
#[derive(Clone, Copy, Debug)]
struct Parsed {
    request: TxMeta,
    /// Reason why the frame has no layout. Kept apart from `layout`: the compiler would write a `Result` of both as
    /// single bytes and read it as words, at the cost of a store-forwarding stall per frame.
    malformed: Option<Malformed>,
    /// Layout of the frame. Meaningless if the frame is malformed.
    layout: FrameLayout,
}

impl Parsed {
    /// The result of parsing an empty buffer.
    const NOTHING: Self = Self {
        request: TxMeta { checksum: None, segmentation: None },
        malformed: Some(Malformed::Runt),
        layout: FrameLayout::NOTHING,
    };

    /// Parses the frame. The IP length field of a super-frame can have any value, so a super-frame's packet ends at the
    /// end of `bytes`.
    #[inline]
    fn parse(&mut self, bytes: &[u8], request: TxMeta) {
        count::parsed();
        let length_from = if request.segmentation.is_some() { LengthFrom::Frame } else { LengthFrom::Ip };
        self.request = request;
        self.malformed = self.layout.parse_into(bytes, length_from).err();
    }

    #[inline]
    fn layout(&self) -> Result<&FrameLayout, Malformed> {
        self.malformed.map_or(Ok(&self.layout), Err)
    }

    /// Returns the parse result for the frame after one VLAN tag was added or removed. The result equals a new parse
    /// for up to [`VLAN_TAGS_MAX`](crate::layout::VLAN_TAGS_MAX) tags.
    fn after_tag_change(&self, change: TagChange) -> Self {
        let request =
            TxMeta { checksum: self.request.checksum.map(|partial| partial.after_tag_change(change)), ..self.request };
        Self { request, malformed: self.malformed, layout: self.layout.after_tag_change(change) }
    }
}

/// A parsed Ethernet frame without FCS.
///
/// ```
/// use offramp_offload::frame::Frame;
/// use offramp_offload::meta::TxMeta;
///
/// let mut bytes = [0u8; 60];
/// bytes[12..14].copy_from_slice(&[0x08, 0x06]); // ARP: nothing after Ethernet is read.
/// let frame = Frame::new(&mut bytes, TxMeta::default());
/// assert_eq!(frame.link_header_len(), Ok(14));
/// assert_eq!(frame.layout().unwrap().packet_end, 60);
/// ```
#[derive(Debug)]
pub struct Frame<'a> {
    bytes: &'a mut [u8],
    /// The bytes after `bytes`, in memory of the host. Only [`FrameBuffer::lent`] makes a frame with such bytes.
    shared: &'a [SharedBytes],
    parsed: Parsed,
}

impl<'a> Frame<'a> {
    /// Parses `bytes` with the host's `request`. The default request is empty, as for a frame from the wire. A
    /// malformed frame is accepted. For a malformed frame, [`Frame::layout`] returns the reason.
    #[inline]
    pub fn new(bytes: &'a mut [u8], request: TxMeta) -> Self {
        let mut frame = Self { bytes, shared: &[], parsed: Parsed::NOTHING };
        frame.parsed.parse(frame.bytes, request);
        frame
    }

    /// Parses a frame from the wire, without a request.
    #[inline]
    pub fn received(bytes: &'a mut [u8]) -> Self {
        Self::new(bytes, TxMeta::default())
    }

    /// Returns all bytes, padding included. For a frame with [`Frame::shared`] bytes, returns the bytes before the
    /// shared bytes: all headers, and possibly the start of the payload.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Returns the bytes after [`Frame::bytes`] that lie in memory of the host; empty for most frames. The host can
    /// write to these bytes at any time, so read each byte once.
    #[inline]
    pub fn shared(&self) -> &[SharedBytes] {
        self.shared
    }

    /// Returns the number of all bytes, padding included.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a frame without bytes is malformed")]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared_len()
    }

    /// Returns the number of [`Frame::shared`] bytes.
    #[inline]
    pub fn shared_len(&self) -> usize {
        if self.shared.is_empty() { 0 } else { self.shared.iter().map(SharedBytes::len).sum() }
    }

    /// Returns all bytes, for a copy.
    #[inline]
    pub(crate) fn all_bytes(&self) -> FrameBytes<'_> {
        FrameBytes { private: self.bytes, shared: self.shared }
    }

    /// Returns the host's request.
    #[inline]
    pub fn request(&self) -> TxMeta {
        self.parsed.request
    }

    /// Returns the layout. For a frame with [`Frame::shared`] bytes, the packet in the layout ends with the private
    /// bytes.
    ///
    /// # Errors
    /// Returns the reason why the frame has no layout. Offloads must not change a frame without layout.
    #[inline]
    pub fn layout(&self) -> Result<&FrameLayout, Malformed> {
        self.parsed.layout()
    }

    /// Returns the length of the Ethernet header and its VLAN tags in bytes. An MTU excludes these bytes.
    ///
    /// # Errors
    /// Returns [`Malformed::Runt`] if the frame is shorter than the Ethernet header and its tags.
    #[inline]
    pub fn link_header_len(&self) -> Result<usize, Malformed> {
        match self.layout() {
            Ok(layout) => Ok(layout.network_start),
            Err(_) => layout::link_header_len(self.bytes),
        }
    }

    /// Verifies the checksums of the frame.
    ///
    /// * [`ChecksumState::Good`]: the checksums of the IPv4 header (if present) and of TCP or UDP are correct.
    /// * [`ChecksumState::Bad`]: one of these checksums is wrong. A UDP checksum of 0 over IPv6 is wrong (RFC 8200
    ///   8.1).
    /// * [`ChecksumState::Unknown`]: no wrong checksum was found, but not all checksums could be verified. The frame is
    ///   malformed, has [`Frame::shared`] bytes, or carries no IP, neither TCP nor UDP, only a fragment, or a UDP
    ///   checksum of 0 over IPv4 (RFC 768: the sender computed no checksum).
    pub fn verify(&self) -> ChecksumState {
        match self.parts() {
            Ok((bytes, layout)) if self.shared.is_empty() => checksum::verify(bytes, layout),
            _ => ChecksumState::Unknown,
        }
    }

    /// Returns false for a wrong checksum of the IPv4 header (RFC 791 3.1), and true for every frame without an IPv4
    /// header.
    pub fn has_good_ipv4_header(&self) -> bool {
        self.parts().map_or(true, |(bytes, layout)| checksum::ipv4_header_is_good(bytes, layout))
    }

    /// Returns the sum of the pseudo-header: both addresses, the protocol and the length (RFC 9293 3.1 and RFC 768 over
    /// IPv4, RFC 8200 8.1 over IPv6). `transport_len` is the length of transport header and payload in bytes, and can
    /// exceed 65,535. Returns [`Sum::ZERO`] if the frame carries no IP.
    pub fn pseudo_header(&self, transport_len: u32) -> Sum {
        self.parts().map_or(Sum::ZERO, |(bytes, layout)| checksum::pseudo_header(bytes, layout, transport_len))
    }

    /// Turns a transport checksum into a partial checksum. [`Frame::verify`] must have returned
    /// [`ChecksumState::Good`]. The checksum field receives the pseudo-header's sum, as in a frame that never left a
    /// host. [`checksum::complete`] restores the old value of the field (0 as 0xffff). Returns `None`, and changes
    /// nothing, if the frame carries neither TCP nor UDP, or has [`Frame::shared`] bytes.
    pub fn make_partial(&mut self) -> Option<PartialChecksum> {
        let is_private = self.shared.is_empty();
        let (bytes, layout) = self.parts_mut().ok()?;
        (is_private && layout.transport != Transport::Opaque).then(|| checksum::make_partial(bytes, layout))
    }

    /// Returns the range of the SCTP packet if `partial` points to SCTP's checksum field. The caller must then write a
    /// CRC-32C: on a packet socket, Linux delivers SCTP packets with the same mark as packets that need an Internet
    /// checksum.
    pub(crate) fn sctp_packet(&self, partial: PartialChecksum) -> Option<Range<usize>> {
        let layout = self.layout().ok()?;
        let (start, offset) = (usize::from(partial.start), usize::from(partial.offset));
        let is_sctp = layout.protocol == PROTOCOL_SCTP && !layout.fragment;
        let is_its_field = start == layout.transport_start && offset == SCTP_CHECKSUM_OFFSET;
        let has_header = layout.transport_len() >= SCTP_HEADER_LEN;
        (is_sctp && is_its_field && has_header).then_some(start..layout.packet_end)
    }

    /// Returns the source address followed by the destination address: 8 bytes for IPv4, 32 for IPv6, none if the frame
    /// is opaque or malformed.
    #[inline]
    pub fn addresses(&self) -> &[u8] {
        self.parts().map_or(&[], |(bytes, layout)| layout.addresses(bytes))
    }

    /// Overwrites the transport checksum of a packet with the correct value. The caller must have verified the packet
    /// by other means. A UDP checksum of 0 means "no checksum" and stays 0. A frame with [`Frame::shared`] bytes stays
    /// unchanged.
    pub fn write_checksum(&mut self) {
        if !self.shared.is_empty() {
            return;
        }
        let Ok((bytes, layout)) = self.parts_mut() else { return };
        let field = layout.checksum_field();
        let has_none = layout.protocol == PROTOCOL_UDP && bytes.get(field..field + 2) == Some(&[0, 0]);
        if layout.transport != Transport::Opaque && !has_none {
            let partial = checksum::make_partial(bytes, layout);
            // The start and the checksum field are valid, because both were derived from the layout.
            let _ = checksum::complete(bytes, partial, layout.packet_end);
        }
    }

    /// Returns the same frame with a shorter lifetime.
    #[inline]
    pub fn reborrow(&mut self) -> Frame<'_> {
        Frame { bytes: self.bytes, shared: self.shared, parsed: self.parsed }
    }

    /// Returns the frame without a segmentation request, with the packet length from the IP header. Parses the frame
    /// again if segmentation was requested. A frame with [`Frame::shared`] bytes keeps its request.
    pub fn unsegmented(&mut self) -> Frame<'_> {
        match self.parsed.request {
            TxMeta { segmentation: None, .. } => self.reborrow(),
            TxMeta { .. } if !self.shared.is_empty() => self.reborrow(),
            TxMeta { checksum, .. } => Frame::new(self.bytes, TxMeta { checksum, segmentation: None }),
        }
    }

    /// Returns the frame without padding, and with `request` in place of the current request. A frame without layout
    /// keeps all bytes.
    pub fn requesting(&mut self, request: TxMeta) -> Frame<'_> {
        let end = self.layout().map_or(self.bytes.len(), |layout| layout.packet_end);
        Frame { bytes: &mut self.bytes[..end], shared: self.shared, parsed: Parsed { request, ..self.parsed } }
    }

    /// Returns the mutable bytes and the layout.
    #[inline]
    pub(crate) fn parts_mut(&mut self) -> Result<(&mut [u8], &FrameLayout), Malformed> {
        let layout = self.parsed.layout()?;
        Ok((self.bytes, layout))
    }

    /// Returns the bytes and the layout.
    #[inline]
    pub(crate) fn parts(&self) -> Result<(&[u8], &FrameLayout), Malformed> {
        Ok((self.bytes, self.layout()?))
    }

    /// Returns all bytes, mutably. The caller must not change the headers.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Replaces the frame by the decrypted frame in `range` of its bytes, with the `layout` parsed from these bytes.
    #[inline]
    pub(crate) fn narrow(&mut self, range: Range<usize>, layout: FrameLayout) {
        self.bytes = &mut std::mem::take(&mut self.bytes)[range];
        self.parsed = Parsed { request: TxMeta::default(), malformed: None, layout };
    }
}

/// The state of a frame in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The frame was set and not parsed. Only the request in `parsed` is valid.
    Set,
    /// The frame was lent, so `parsed` is valid.
    Parsed,
    /// The frame was lent with a changed VLAN tag. Holds the change, and the previous bytes at the tag's offset.
    Changed(TagChange, Option<[u8; VLAN_TAG_LEN]>),
}

/// Memory of a port, with one frame inside.
///
/// `M` is memory of constant length: `Box<[u8]>`, `Vec<u8>`, a part of a larger area. The [`VLAN_TAG_LEN`] bytes before
/// a frame are reserved for a tag.
// The host's request lies in one cache line, because it is read immediately after it is written. A request split over
// two cache lines delayed each small frame by 10 to 17 ns.
#[derive(Debug)]
#[repr(align(64))]
pub struct FrameBuffer<M> {
    memory: M,
    place: Range<usize>,
    parsed: Parsed,
    state: State,
    /// The bytes of the frame after the bytes at `place`, not yet copied into `memory`.
    shared: Vec<SharedBytes>,
}

impl FrameBuffer<Vec<u8>> {
    /// Copies a frame into this buffer, with the frame's request and layout.
    pub fn copy_from(&mut self, frame: &Frame<'_>) {
        count::copied(frame.bytes.len());
        self.memory.clear();
        self.memory.extend_from_slice(frame.bytes);
        for shared in frame.shared {
            let start = self.memory.len();
            self.memory.resize(start + shared.len(), 0);
            shared.copy_and_sum(&mut self.memory[start..]);
        }
        self.place = 0..self.memory.len();
        self.parsed = frame.parsed;
        self.parsed.layout.packet_end += self.memory.len() - frame.bytes.len();
        self.state = State::Parsed;
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> FrameBuffer<M> {
    /// Returns a buffer without a frame.
    pub fn new(memory: M) -> Self {
        Self { memory, place: 0..0, parsed: Parsed::NOTHING, state: State::Set, shared: Vec::new() }
    }

    /// Drops the current frame and returns the memory for the next frame.
    #[inline]
    pub fn memory_mut(&mut self) -> &mut [u8] {
        self.clear();
        self.memory.as_mut()
    }

    /// Returns the memory in `range` without dropping the frame. Returns `None` if `range` overlaps the frame or
    /// exceeds the memory. A port that sends and receives frames in one memory area uses this function.
    #[inline]
    pub fn beside(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        let is_apart = range.end <= self.place.start || range.start >= self.place.end;
        if is_apart { self.memory.as_mut().get_mut(range) } else { None }
    }

    /// Drops the frame.
    #[inline]
    pub fn clear(&mut self) {
        self.shared.clear();
        self.place = 0..0;
        self.parsed.request = TxMeta::default();
        self.state = State::Set;
    }

    /// Makes the bytes at `place` the frame, with the host's `request`. The frame is empty if `place` exceeds the
    /// memory.
    #[inline]
    pub fn set(&mut self, place: Range<usize>, request: TxMeta) {
        let is_within = self.memory.as_ref().get(place.clone()).is_some();
        (self.place, self.parsed.request) = if is_within { (place, request) } else { (0..0, TxMeta::default()) };
        self.shared.clear();
        self.state = State::Set;
    }

    /// Does the same as [`FrameBuffer::set`] for a frame with further bytes `shared`, in memory of the host, after the
    /// bytes at `place`. The frame is empty if its bytes exceed the memory.
    ///
    /// [`FrameBuffer::lent`] and [`FrameBuffer::lent_with_tag`] lend the frame as it is. [`FrameBuffer::frame`] and
    /// [`FrameBuffer::frame_with_tag`] first copy `shared` into the memory. The caller must call
    /// [`FrameBuffer::gather`], [`FrameBuffer::set`] or [`FrameBuffer::clear`] before the bytes become unreadable.
    pub fn set_shared(&mut self, place: Range<usize>, request: TxMeta, shared: impl Iterator<Item = SharedBytes>) {
        let private_end = place.end;
        self.set(place, request);
        self.shared.extend(shared);
        let end = self.shared.iter().fold(private_end, |end, shared| end + shared.len());
        if end > self.memory.as_ref().len() {
            self.clear();
        }
    }

    /// Copies all bytes of the frame into the memory. Call this function before the host's memory becomes unreadable.
    #[inline]
    pub fn gather(&mut self) {
        if !self.shared.is_empty() {
            self.gather_shared();
        }
    }

    #[cold]
    fn gather_shared(&mut self) {
        let front_end = self.place.end;
        for shared in &self.shared {
            let end = self.place.end + shared.len();
            if let Some(to) = self.memory.as_mut().get_mut(self.place.end..end) {
                shared.copy_and_sum(to);
                self.place.end = end;
            }
        }
        self.shared.clear();
        if self.state != State::Set {
            self.parsed.layout.packet_end += self.place.end - front_end;
        }
    }

    /// Parses a frame with shared bytes by its private bytes. Copies the shared bytes if the private bytes do not hold
    /// all headers, or if the frame is not segmented by its headers alone.
    fn parse_private(&mut self) {
        let bytes = self.memory.as_ref().get(self.place.clone()).unwrap_or_default();
        self.parsed.parse(bytes, self.parsed.request);
        let is_segmented = self.parsed.request.segmentation.is_some_and(|segmentation| {
            matches!(segmentation.kind, SegmentationKind::Tcp4 | SegmentationKind::Tcp6 | SegmentationKind::Udp)
        });
        let has_headers = self.parsed.malformed.is_none() && self.parsed.layout.transport != Transport::Opaque;
        if is_segmented && has_headers {
            self.state = State::Parsed;
        } else {
            self.gather_shared();
        }
    }

    /// Returns the frame, or an empty runt frame if no frame is set. The first call for a frame parses the frame. All
    /// bytes of the frame are private.
    #[inline]
    pub fn frame(&mut self) -> Frame<'_> {
        self.gather();
        self.lent()
    }

    /// Returns the frame as [`FrameBuffer::frame`] does. The bytes of [`FrameBuffer::set_shared`] stay in the host's
    /// memory ([`Frame::shared`]), unless the frame is malformed, or must be read as a whole for another reason.
    #[inline]
    pub fn lent(&mut self) -> Frame<'_> {
        if let State::Changed(change, tag) = self.state {
            change.undo(self.memory.as_mut(), self.place.start, tag);
            self.state = State::Parsed;
        }
        if !self.shared.is_empty() && self.state == State::Set {
            self.parse_private();
        }
        let bytes = self.memory.as_mut().get_mut(self.place.clone()).unwrap_or_default();
        if self.state == State::Set {
            self.parsed.parse(bytes, self.parsed.request);
            self.state = State::Parsed;
        }
        Frame { bytes, shared: &self.shared, parsed: self.parsed }
    }

    /// Returns the frame with a changed VLAN tag, without a new parse. Only the two MAC addresses move. Returns `None`
    /// if the memory has no room for a tag before the frame. All bytes of the frame are private.
    pub fn frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.gather();
        self.lent_with_tag(change)
    }

    /// Returns the frame with a changed VLAN tag, as [`FrameBuffer::lent`] returns it with its own tag.
    pub fn lent_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        if change == TagChange::Keep {
            return Some(self.lent());
        }
        let is_changed = matches!(self.state, State::Changed(made, _) if made == change);
        if !is_changed {
            let tag = self.lent().bytes.get(TAG_AT..).and_then(<[u8]>::first_chunk).copied();
            change.apply(self.memory.as_mut(), self.place.start)?;
            self.state = State::Changed(change, tag);
        }
        let start = change.new_start(self.place.start)?;
        let bytes = self.memory.as_mut().get_mut(start..self.place.end)?;
        Some(Frame { bytes, shared: &self.shared, parsed: self.parsed.after_tag_change(change) })
    }

    /// Returns the length of the frame as set, without a tag change.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.shared.iter().fold(self.place.len(), |len, shared| len + shared.len())
    }

    /// Returns the frame's bytes without parsing the frame. Returns `None` if the frame has a request or bytes in the
    /// host's memory, or was lent with a changed VLAN tag.
    #[inline]
    pub fn unasked(&self) -> Option<&[u8]> {
        let bytes = self.memory.as_ref().get(self.place.clone())?;
        let is_changed = matches!(self.state, State::Changed(..));
        let is_unasked = self.parsed.request == TxMeta::default();
        (!is_changed && is_unasked && self.shared.is_empty()).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Segmentation;
    use crate::segment::tests::{PAYLOAD_LEN, tcp4_frame};
    use std::mem::offset_of;

    /// This test fails if the compiler moves the fields. Other offsets of the fields would make the code slower, not
    /// wrong.
    #[test]
    fn what_is_asked_for_a_frame_lies_in_one_cache_line() {
        let line_len = align_of::<FrameBuffer<Vec<u8>>>();
        for at in [offset_of!(FrameBuffer<Box<[u8]>>, parsed.request), offset_of!(FrameBuffer<Vec<u8>>, parsed.request)]
        {
            assert!(at % line_len + size_of::<TxMeta>() <= line_len, "{at}");
        }
    }

    #[test]
    fn a_buffer_lends_the_same_frame_until_the_next_one() {
        let bytes = tcp4_frame();
        let mut buffer = FrameBuffer::new(vec![0u8; 4096]);
        assert!(buffer.frame().bytes().is_empty());
        buffer.memory_mut()[64..64 + bytes.len()].copy_from_slice(&bytes);
        buffer.set(64..64 + bytes.len(), TxMeta::default());
        for _ in 0..2 {
            assert_eq!(buffer.frame().bytes(), bytes);
            assert_eq!(buffer.frame().layout().unwrap().payload_len(), PAYLOAD_LEN);
        }
        buffer.memory_mut();
        assert_eq!(buffer.frame().layout(), Err(Malformed::Runt));
    }

    #[test]
    fn memory_beside_a_frame_can_be_written_while_the_frame_is_lent_out() {
        let bytes = tcp4_frame();
        let mut buffer = FrameBuffer::new(vec![0u8; 4096]);
        buffer.memory_mut()[64..64 + bytes.len()].copy_from_slice(&bytes);
        buffer.set(64..64 + bytes.len(), TxMeta::default());
        buffer.beside(0..64).unwrap().fill(1);
        buffer.beside(64 + bytes.len()..4096).unwrap().fill(2);
        assert_eq!(buffer.frame().bytes(), bytes);
        assert!(
            buffer.beside(63..65).is_none() && buffer.beside(70..80).is_none() && buffer.beside(4000..4097).is_none()
        );
    }

    #[test]
    fn a_place_outside_the_memory_is_an_empty_frame() {
        let mut buffer = FrameBuffer::new(vec![0u8; 64]);
        buffer.set(32..65, TxMeta::default());
        assert!(buffer.frame().bytes().is_empty());
    }

    #[test]
    fn the_length_of_a_super_frame_is_a_template_until_nothing_is_segmented() {
        let mut bytes = tcp4_frame();
        bytes[16..18].fill(0); // The IPv4 total length.
        let segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, 1000));
        let mut frame = Frame::new(&mut bytes, TxMeta { segmentation, checksum: None });
        assert_eq!(frame.layout().unwrap().payload_len(), PAYLOAD_LEN);
        assert_eq!(frame.unsegmented().layout(), Err(Malformed::Length));
    }

    #[test]
    fn a_frame_asked_for_otherwise_has_no_padding() {
        let mut bytes = tcp4_frame();
        let len = bytes.len();
        bytes.extend([0; 7]);
        let mut frame = Frame::received(&mut bytes);
        assert_eq!(frame.requesting(TxMeta::default()).bytes().len(), len);
        assert_eq!(frame.bytes().len(), len + 7);
    }
}
