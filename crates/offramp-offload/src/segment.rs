//! Large send: segments a super-frame into the frames of the wire.
//!
//! One pass copies the payload and computes its checksum. The output equals the output of Linux' software GSO to the
//! byte. Tests compare this output with the kernel's output.
//!
//! | kind | fields that change from frame to frame |
//! |---|---|
//! | TCP | IP length, IPv4 ID, IPv4 and TCP checksums, sequence number, FIN, PSH (last), CWR (first, AccECN all) |
//! | UDP (USO) | IP length, IPv4 ID and header checksum, UDP length, checksum |
//! | UDP fragments (UFO) | IP length, fragment offset, MF, header checksum; one UDP checksum covers the datagram |
//!
//! All other header fields (VLAN tags, options, extension headers, ECE, window, timestamps) are copied. Sources: RFC
//! 9293, RFC 3168 6.1.2 and RFC 9768 3.2.2 (CWR), RFC 791 and RFC 8200 4.5 (fragments), RFC 6864 (IDs).

mod super_frame;
mod tunnel;
mod whole;

use crate::checksum::{FrameBytes, write_sctp};
use crate::count;
use crate::frame::Frame;
use crate::layout::{Malformed, put16};
use crate::meta::PartialChecksum;
use crate::vlan::TagChange;
use std::ops::Range;
pub(crate) use super_frame::Heads;
use super_frame::SuperFrame;
pub use tunnel::TunnelSegmenter;
pub use whole::repair_headers;

/// Maximum number of datagrams in one USO super-frame, as in Linux (`UDP_MAX_SEGMENTS`).
pub const UDP_SEGMENTS_MAX: usize = 128;

/// The settings of a port for segmentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentPolicy {
    /// Identification for the fragments of the next IPv6 datagram (RFC 8200 4.5).
    pub fragment_id: u32,
}

/// The reason to refuse a segmentation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// The frame is malformed, so it has no layout.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
    /// The segment size is 0 or 65535, or, for fragments, no multiple of 8.
    #[error("segment size is not usable")]
    SegmentSize,
    /// The packet does not match the segmentation kind.
    #[error("packet does not match the segmentation kind")]
    Kind,
    /// `start` and `offset` of the checksum lie outside the frame, or do not name the transport's checksum field.
    #[error("checksum start or offset does not fit the frame")]
    ChecksumPlace,
    /// The request makes more than [`UDP_SEGMENTS_MAX`] datagrams.
    #[error("too many datagrams")]
    TooManySegments,
    /// The request applies to a packet inside an unknown tunnel.
    #[error("tunnel is unknown, or its kind of segment is")]
    Tunnel,
    /// A datagram or a segment exceeds 64 KiB.
    #[error("datagram or segment too long")]
    TooLong,
}

/// Writes the frames of one super-frame, one by one, into buffers of the caller.
///
/// A segmenter holds no reference to the super-frame, so the caller can wait while the transmit queue of the wire is
/// full. The caller passes the same frame to every call. If the caller passes a shorter frame, the segmenter writes no
/// further frame.
#[derive(Clone, Debug)]
pub struct Segmenter {
    frame_len: usize,
    link_header_len: usize,
    work: Work,
    frames_left: usize,
}

#[derive(Clone, Debug)]
enum Work {
    Copy,
    Complete(PartialChecksum),
    /// Complete the CRC-32C of the SCTP packet in this range.
    CompleteCrc(Range<usize>),
    Segment(SuperFrame),
}

impl Segmenter {
    /// Plans the output frames for `frame` and the request of `frame`.
    ///
    /// # Errors
    /// Returns an error if the frame's bytes do not allow the request. After an error, the caller must send no part of
    /// the frame.
    pub fn new(frame: &Frame<'_>, policy: &SegmentPolicy) -> Result<Self, Refused> {
        let link_header_len = frame.link_header_len()?;
        let (request, frame_len) = (frame.request(), frame.len());
        let super_frame = match request.segmentation {
            Some(segmentation) => SuperFrame::plan(frame, segmentation, policy)?,
            None => None,
        };
        let frames_left = super_frame.as_ref().map_or(1, SuperFrame::frames);
        let work = match (super_frame, request.checksum) {
            (Some(super_frame), _) => Work::Segment(super_frame),
            (None, Some(partial)) if partial.field() + 2 > frame_len => return Err(Refused::ChecksumPlace),
            (None, Some(partial)) => frame.sctp_packet(partial).map_or(Work::Complete(partial), Work::CompleteCrc),
            (None, None) => Work::Copy,
        };
        Ok(Self { frame_len, link_header_len, work, frames_left })
    }

    /// Returns this segmenter, adapted to the same frame after one VLAN tag was added or removed.
    #[must_use]
    pub fn after_tag_change(&self, change: TagChange) -> Self {
        let moved = |len: usize| len.wrapping_add_signed(change.added_len());
        let work = match &self.work {
            Work::Copy => Work::Copy,
            Work::Complete(partial) => Work::Complete(partial.after_tag_change(change)),
            Work::CompleteCrc(packet) => Work::CompleteCrc(moved(packet.start)..moved(packet.end)),
            Work::Segment(super_frame) => Work::Segment(super_frame.after_tag_change(change)),
        };
        Self {
            frame_len: moved(self.frame_len),
            link_header_len: moved(self.link_header_len),
            work,
            frames_left: self.frames_left,
        }
    }

    /// Returns the length of the Ethernet header and VLAN tags of every frame, in bytes. An MTU excludes these bytes.
    pub fn link_header_len(&self) -> usize {
        self.link_header_len
    }

    /// Returns whether the host requested a CRC-32C. A peer cannot complete the CRC, because a partial checksum means
    /// the Internet checksum (virtio 1.3, 5.1.6.2).
    pub fn completes_crc(&self) -> bool {
        matches!(self.work, Work::CompleteCrc(_))
    }

    /// Returns the number of frames still to be written.
    pub fn frames_left(&self) -> usize {
        self.frames_left
    }

    /// Returns the length of the next frame in bytes, or 0 after the last frame.
    #[inline]
    pub fn next_len(&self) -> usize {
        match &self.work {
            _ if self.frames_left == 0 => 0,
            Work::Segment(super_frame) => super_frame.next_len(self.frames_left),
            _ => self.frame_len,
        }
    }

    /// Writes the next frame to the front of `out`. Returns the frame's length, or 0 after the last frame.
    ///
    /// # Panics
    /// Panics if `out` is shorter than [`Segmenter::next_len`]. Only a mistake of the caller causes this panic, never a
    /// frame.
    #[inline]
    pub fn write_next(&mut self, frame: &Frame<'_>, out: &mut [u8]) -> usize {
        let Some(frame) = self.planned(frame) else { return 0 };
        let len = match &mut self.work {
            Work::Segment(super_frame) => super_frame.write_next(frame, out, self.frames_left),
            work => work.write_whole(frame, self.frame_len, out),
        };
        self.frames_left -= 1;
        len
    }

    /// Returns the super-frame's bytes if frames are left to write. Ends the plan if `frame` is shorter than planned.
    #[inline]
    fn planned<'a>(&mut self, frame: &'a Frame<'_>) -> Option<FrameBytes<'a>> {
        if frame.len() < self.frame_len {
            self.frames_left = 0;
        }
        (self.frames_left > 0).then(|| frame.all_bytes())
    }

    /// Returns the number of the next frames that all have the length [`Segmenter::next_len`]. One
    /// [`Segmenter::write_run`] writes at most this number.
    pub fn run_len(&self) -> usize {
        match &self.work {
            // The last segment can be shorter.
            Work::Segment(_) if self.frames_left > 1 => self.frames_left - 1,
            _ => self.frames_left.min(1),
        }
    }

    /// Writes the next frames to the slots of `stride` bytes in `out`, each to the front of one slot. Writes at most
    /// [`Segmenter::run_len`] frames and returns the number of written frames.
    ///
    /// Writes the same frames as one call of [`Segmenter::write_next`] per frame, but is faster: the header words
    /// common to the frames stay in registers.
    ///
    /// # Panics
    /// Panics if `stride` is shorter than [`Segmenter::next_len`]. Only a mistake of the caller causes this panic,
    /// never a frame.
    pub fn write_run(&mut self, frame: &Frame<'_>, out: &mut [u8], stride: usize) -> usize {
        let len = self.next_len();
        if out.len() < len || len == 0 {
            return 0;
        }
        let count = self.run_len().min((out.len() - len) / stride + 1);
        if !matches!(self.work, Work::Segment(_)) {
            return usize::from(self.write_next(frame, out) > 0);
        }
        let Some(bytes) = self.planned(frame) else { return 0 };
        let Work::Segment(super_frame) = &mut self.work else { return 0 };
        let mut written = 0;
        while written < count {
            let out = &mut out[written * stride..];
            let of_shape = super_frame.write_some(bytes, out, stride, count - written, self.frames_left);
            self.frames_left -= of_shape;
            written += of_shape;
        }
        count
    }

    /// Returns the headers of at most `count` next frames. Returns the headers of fewer frames if a later frame has
    /// another length or other TCP flags. Returns `None` if the frame is not segmented, for IP fragments, and if the
    /// headers are too long or the frames too short. [`Segmenter::write_run`] writes those frames.
    ///
    /// The caller must report the number of frames written with these headers to [`Segmenter::pass`].
    pub(crate) fn heads(&mut self, frame: &Frame<'_>, count: usize) -> Option<Heads> {
        let frame = self.planned(frame)?;
        match &mut self.work {
            Work::Segment(super_frame) => super_frame.heads(frame, count.min(self.frames_left), self.frames_left),
            _ => None,
        }
    }

    /// Records that the caller has written the next `count` frames, with the headers from [`Segmenter::heads`].
    pub(crate) fn pass(&mut self, count: usize) {
        self.frames_left -= count;
        if let Work::Segment(super_frame) = &mut self.work {
            super_frame.advance(count);
        }
    }

    /// Skips the next frame. The caller uses this function if the wire refuses the frame.
    pub fn skip_next(&mut self) {
        if self.frames_left > 0 {
            self.pass(1);
        }
    }
}

impl Work {
    /// Writes an unsegmented frame of `len` bytes.
    fn write_whole(&self, frame: FrameBytes<'_>, len: usize, out: &mut [u8]) -> usize {
        let out = &mut out[..len];
        if let Self::Complete(partial) = self {
            copy_and_complete(frame, *partial, out);
        } else {
            count::copied(len);
            frame.copy(out);
        }
        if let Self::CompleteCrc(packet) = self
            && let Some(packet) = out.get_mut(packet.clone())
        {
            write_sctp(packet);
        }
        len
    }
}

/// Computes the checksum from `start` to the end of the frame while copying. Linux writes a checksum of 0 as 0xFFFF in
/// an unsegmented frame, for every protocol.
fn copy_and_complete(frame: FrameBytes<'_>, partial: PartialChecksum, out: &mut [u8]) {
    let start = usize::from(partial.start);
    frame.copy(&mut out[..start]);
    let sum = frame.copy_and_sum(start, &mut out[start..]);
    put16(out, partial.field(), sum.checksum_not_zero());
}

#[cfg(test)]
pub(crate) mod tests;
