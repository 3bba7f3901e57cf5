//! Coalesces runs of consecutive frames in one loop, without a parse of each frame. A frame with a full-size payload
//! continues an aggregate if its headers have the expected values.
//!
//! The coalescer guesses a frame's flow before it reads the frame. The first guess is the flow of the previous frame.
//! The second guess is the flow found after that flow the last time. A guess from the frame's own bytes would delay the
//! copy.

// Only inlined functions are compiled for the vector instructions of a kernel.
#![allow(clippy::inline_always)]

use super::flow::Flow;
use super::head::{CommonSums, NetworkFields, Shape, TCP_LAST, Template, TransportFields};
use super::{Coalescer, Sink};
use crate::caps::Offloads;
use crate::checksum::{ManyCopies, Room, RoomPiece, Sum, is_for_kernel, many_copies};
use crate::count;
use crate::layout::{IPV4_TOTAL_LEN_OFFSET, IPV6_PAYLOAD_LEN_OFFSET, UDP_LENGTH_OFFSET};

/// Number of frames for which a receiver is first asked for room. A room takes time for each of its frames, so a short
/// run asks for a short room.
const ROOM_FRAMES: usize = 1;
/// Factor by which the number of frames grows from one room to the next.
const ROOM_GROWTH: usize = 4;

/// The outcome of [`Coalescer::follow`].
#[derive(Debug)]
pub struct Followed<'f, I> {
    /// Number of coalesced frames.
    pub count: usize,
    /// The first frame that was not coalesced. `None` if every frame was coalesced.
    pub other: Option<&'f mut [u8]>,
    /// The frames after `other`.
    pub rest: I,
}

impl Coalescer {
    /// Returns whether [`Coalescer::follow`] can coalesce a frame: whether a guessed flow has an aggregate of two or
    /// more frames.
    #[inline]
    pub fn can_follow(&self) -> bool {
        let last = self.table.flow(self.table.last);
        last.segments > 1 || self.table.flow(last.successor).segments > 1
    }

    /// Coalesces the first frames of a run: those that continue the guessed flow's aggregate with a full-size payload.
    /// Stops when `out` requests a commit ([`Sink::wants_commit`]). Has the same effect as [`Coalescer::push`] for each
    /// of these frames. The caller pushes [`Followed::other`], and calls this function again for the rest.
    ///
    /// A coalesced frame has the length, the link header, the addresses and the ports of the aggregate's first frame.
    /// A decision based on these fields holds for all coalesced frames, and need not be repeated.
    #[inline]
    pub fn follow<'f, I>(&mut self, mut frames: I, enabled: Offloads, out: &mut impl Sink) -> Followed<'f, I>
    where
        I: Iterator<Item = &'f mut [u8]>,
    {
        self.switch(enabled, out);
        let first = frames.next();
        let mut followed = Followed { count: 0, other: first, rest: frames };
        let mut guess = self.table.last;
        while followed.other.is_some() {
            let before = followed.count;
            followed = self.follow_flow(guess, followed, out);
            let was_right = followed.count > before;
            let next = self.table.flow(guess).successor;
            if next == guess || !was_right && guess != self.table.last {
                break;
            }
            if was_right {
                self.table.last = guess;
            }
            guess = next;
        }
        followed
    }

    /// Coalesces the first frames of a run if they continue the flow in `slot`.
    #[inline]
    fn follow_flow<'f, I>(&mut self, slot: usize, followed: Followed<'f, I>, out: &mut impl Sink) -> Followed<'f, I>
    where
        I: Iterator<Item = &'f mut [u8]>,
    {
        let flow = self.table.flow_mut(slot);
        let Some((expected, place, frames_max)) = flow.expected() else { return followed };
        let before = followed.count;
        let run = Run { expected, template: &flow.template, frames_max, followed };
        let followed = if flow.is_in_place {
            run.follow_in_place(slot, out)
        } else {
            let place = &mut self.buffers.bytes[place..place + frames_max * run.expected.size()];
            many_copies(RunToRoom { run, room: Room::from(place) }).followed
        };
        flow.segments += (followed.count - before) as u16;
        followed
    }
}

/// The expected fields of a flow's next full-size frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) shape: Shape,
    pub(super) sums: CommonSums,
    pub(super) seq: u32,
    pub(super) seq_step: u32,
    pub(super) id: u16,
    pub(super) id_step: u16,
    /// Length of transport header and payload, in bytes.
    pub(super) transport_len: u16,
}

impl Expected {
    /// Returns the payload length of the frame in bytes.
    fn size(&self) -> usize {
        usize::from(self.transport_len) - usize::from(self.shape.payload_start - self.shape.transport_start)
    }

    /// Returns the sum of the frame's pseudo-header and transport header. Returns `None` if a field is not the
    /// expected one, or if the IP checksum is wrong. The caller compares all other fields with the template.
    #[inline(always)]
    fn confirm(&self, headers: &[u8]) -> Option<Sum> {
        let Self { shape, sums, seq, id, transport_len, .. } = self;
        let (network_start, transport_start) = (usize::from(shape.network_start), usize::from(shape.transport_start));
        let (len_at, packet_len) = if shape.is_ipv6 {
            let ipv6_payload_start = network_start + crate::layout::IPV6_HEADER_LEN;
            (IPV6_PAYLOAD_LEN_OFFSET, transport_len + (transport_start - ipv6_payload_start) as u16)
        } else {
            (IPV4_TOTAL_LEN_OFFSET, transport_len + (transport_start - network_start) as u16)
        };
        let network = NetworkFields::of(headers, shape)?;
        let transport = TransportFields::of(headers, shape)?;
        let is_len_right = word_at(headers, network_start + len_at)? == packet_len
            && (!shape.is_udp || word_at(headers, transport_start + UDP_LENGTH_OFFSET)? == *transport_len);
        let is_next = transport.seq == *seq && network.id == *id && transport.flags & TCP_LAST == 0;
        let is_usual = !network.is_unusual && !transport.is_unusual;
        (is_len_right && is_next && is_usual && sums.ip_is_right(&network))
            .then(|| sums.transport_headers(&transport, *transport_len))
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.seq = self.seq.wrapping_add(self.seq_step);
        self.id = self.id.wrapping_add(self.id_step);
    }
}

/// A run of frames of one flow.
struct Run<'a, 'f, I> {
    expected: Expected,
    template: &'a Template,
    frames_max: usize,
    followed: Followed<'f, I>,
}

impl<'f, I: Iterator<Item = &'f mut [u8]>> Run<'_, 'f, I> {
    /// Coalesces frames in memory lent by `out`, until a frame is not the expected one or `out` has no room.
    #[inline]
    fn follow_in_place(mut self, slot: usize, out: &mut impl Sink) -> Followed<'f, I> {
        let (size, end, mut room_frames) = (self.expected.size(), self.followed.count + self.frames_max, ROOM_FRAMES);
        while self.followed.count < end && !out.wants_commit() && self.next_payload().is_some() {
            let before = self.followed.count;
            let room = out.room(slot, size, room_frames.min(end - before));
            self.frames_max = (room.len() / size).min(end - before);
            self = many_copies(RunToRoom { run: self, room });
            let count = self.followed.count - before;
            out.fill(slot, count * size);
            if count == 0 || count < self.frames_max {
                break;
            }
            room_frames = room_frames.saturating_mul(ROOM_GROWTH);
        }
        self.followed
    }

    /// Returns the payload of the next frame, and the sum of the frame's other checksummed parts. Returns `None` if the
    /// next frame is not the expected one.
    #[inline(always)]
    fn next_payload(&self) -> Option<(&[u8], Sum)> {
        let headers_len = usize::from(self.expected.shape.payload_start);
        let frame = self.followed.other.as_deref().filter(|frame| frame.len() == headers_len + self.expected.size())?;
        let (headers, payload) = frame.split_at(headers_len);
        let sum = if self.template.is_like(headers) { self.expected.confirm(headers) } else { None };
        Some((payload, sum?))
    }

    /// Passes the payload of each frame to `keep`, with the sum of the frame's other checksummed parts, until a frame
    /// is not the expected one or `keep` returns false. `keep` returns false if it did not coalesce the payload.
    #[inline(always)]
    fn keep_each(mut self, mut keep: impl FnMut(&[u8], Sum) -> bool) -> Self {
        let end = self.followed.count + self.frames_max;
        while self.followed.count < end
            && let Some((payload, sum)) = self.next_payload()
            && keep(payload, sum)
        {
            self.expected.advance();
            self.followed.count += 1;
            self.followed.other = self.followed.rest.next();
        }
        self
    }
}

/// A run of frames, and the room for their payloads.
struct RunToRoom<'a, 'f, 'r, I> {
    run: Run<'a, 'f, I>,
    room: Room<'r>,
}

impl<'a, 'f, I: Iterator<Item = &'f mut [u8]>> ManyCopies for RunToRoom<'a, 'f, '_, I> {
    type Output = Run<'a, 'f, I>;

    #[inline(always)]
    fn run(self, copy_and_sum: impl Fn(&[u8], RoomPiece) -> Sum) -> Run<'a, 'f, I> {
        let Self { run, mut room } = self;
        run.keep_each(|payload, sum| {
            count::copied(payload.len());
            // Bytes of a bad frame lie past the aggregate's end.
            room.copy_with(payload, &copy_and_sum).is_some_and(|of_payload| of_payload.plus(sum).is_right())
        })
    }
}

#[inline(always)]
fn word_at(headers: &[u8], at: usize) -> Option<u16> {
    headers.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

impl Flow {
    /// Returns the expected fields of the next full-size frame, the place of its payload in the memory of all buffers,
    /// and the maximum number of such frames. Returns `None` if the flow accepts no such frame, or if each frame
    /// requires the checks of [`Flow::coalesce`]: the slot is vacant, the IPv4 ID's increment is unknown, or the
    /// payload is short.
    #[inline]
    pub(super) fn expected(&self) -> Option<(Expected, usize, usize)> {
        let size = usize::from(self.size);
        if self.segments < 2 || !is_for_kernel(size) {
            return None;
        }
        let tail = usize::from(self.shape.payload_start) + usize::from(self.segments) * size;
        let fitting = self.len_max.saturating_sub(tail) / size;
        // The last possible frame completes the aggregate.
        let frames_max = fitting.min(usize::from(self.segments_max.saturating_sub(self.segments + 1)));
        let expected = Expected {
            shape: self.shape,
            sums: self.sums,
            seq: self.seq.wrapping_add(u32::from(self.segments) * self.seq_step),
            seq_step: self.seq_step,
            id: self.id.wrapping_add(self.segments.wrapping_mul(self.id_step)),
            id_step: self.id_step,
            transport_len: self.size + (self.shape.payload_start - self.shape.transport_start),
        };
        Some((expected, self.buffer_start + tail, frames_max))
    }
}
