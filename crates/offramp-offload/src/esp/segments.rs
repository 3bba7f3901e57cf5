//! Large send with ESP: segments a super-frame, and seals each segment with its own header, sequence number and IV.

use super::error::SealRefused;
use super::lifetime::LifetimeEvent;
use super::seal::{OutboundSa, Sealed};
use crate::frame::Frame;
use crate::layout::{FrameLayout, Malformed};
use crate::meta::SegmentationKind;
use crate::segment::{Refused, SegmentPolicy, Segmenter};

/// Number of clear bytes that are segmented before the same bytes are sealed. These bytes fill a third of a first-level
/// cache of 48 KiB, so they stay in the cache.
const CHUNK_LEN: usize = 16 * 1024;

/// The reason to refuse a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PlanRefused {
    /// The super-frame cannot be segmented as requested.
    #[error("{0}")]
    Segment(#[from] Refused),
    /// The segments cannot be sealed.
    #[error("{0}")]
    Seal(#[from] SealRefused),
    /// The super-frame is malformed, so it has no layout.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
}

/// Consecutive frames of equal length, sealed by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedRun {
    /// Number of frames in the run.
    pub frames: usize,
    /// Length of each frame, in bytes.
    pub frame_len: usize,
    /// Last lifetime limit that one of the frames reached, if any.
    pub event: Option<LifetimeEvent>,
}

/// Writes the sealed frames of one super-frame, one by one or in runs, directly into transmit buffers of the wire.
/// `SealedSegments` holds no reference to the super-frame. The caller passes the same frame and the same association to
/// every call.
#[derive(Clone, Debug)]
pub struct SealedSegments {
    plan: Segmenter,
    /// Layout of the super-frame. The segments have the same layout, except for the offset of the segment's end.
    layout: FrameLayout,
}

impl SealedSegments {
    /// Plans the sealed frames for `frame` and the request of `frame`, with the association `sa`.
    ///
    /// The segment size must not exceed [`OutboundSa::payload_max`], because longer sealed frames would exceed the path
    /// MTU.
    ///
    /// # Errors
    /// Returns an error if the frame's bytes do not allow the request. After an error, the caller must send no part of
    /// the frame.
    pub fn new(frame: &mut Frame<'_>, policy: &SegmentPolicy, sa: &OutboundSa) -> Result<Self, PlanRefused> {
        let plan = Segmenter::new(frame, policy)?;
        if plan.frames_left() == 1 {
            let frame = frame.unsegmented();
            sa.sealed_len(&frame)?;
            return Ok(Self { plan, layout: *frame.layout()? });
        }
        let mut layout = *frame.layout()?;
        layout.fragment |= frame.request().segmentation.is_some_and(|s| s.kind == SegmentationKind::UdpFragments);
        layout.packet_end = plan.next_len();
        sa.sealed_len_of(frame.bytes(), &layout)?;
        Ok(Self { plan, layout })
    }

    /// Returns the number of frames still to be written.
    pub fn frames_left(&self) -> usize {
        self.plan.frames_left()
    }

    /// Returns the length of the next sealed frame in bytes, or 0 after the last frame.
    pub fn next_len(&self, frame: &Frame<'_>, sa: &OutboundSa) -> usize {
        if self.frames_left() == 0 { 0 } else { sa.sealed_len_of(frame.bytes(), &self.next_layout()).unwrap_or(0) }
    }

    /// Returns the length of the clear IP packet in the next frame, in bytes.
    pub fn next_packet_len(&self) -> usize {
        let layout = self.next_layout();
        layout.packet_end - layout.network_start
    }

    /// Returns the layout of the next clear frame.
    fn next_layout(&self) -> FrameLayout {
        let is_whole = self.plan.next_len() < self.layout.packet_end;
        let packet_end = if is_whole { self.plan.next_len() } else { self.layout.packet_end };
        FrameLayout { packet_end, ..self.layout }
    }

    /// Seals the next frame into the front of `out`. Returns `Ok(None)` after the last frame.
    ///
    /// # Errors
    /// Returns an error if the association refuses the frame or `out` is too short. After an error, the next call tries
    /// the same frame again.
    pub fn write_next(
        &mut self,
        sa: &mut OutboundSa,
        frame: &Frame<'_>,
        out: &mut [u8],
    ) -> Result<Option<Sealed>, SealRefused> {
        if self.frames_left() == 0 {
            return Ok(None);
        }
        let layout = self.next_layout();
        self.check_room(sa, frame, &layout, out.len())?;
        let front_len = sa.front_len();
        if self.plan.write_next(frame, &mut out[front_len..]) == 0 {
            return Ok(None); // The caller passed another frame.
        }
        sa.seal_at(out, front_len, &layout).map(Some)
    }

    /// Checks for all reasons to refuse the next frame, before a byte of the frame is written.
    fn check_room(
        &self,
        sa: &OutboundSa,
        frame: &Frame<'_>,
        layout: &FrameLayout,
        room_len: usize,
    ) -> Result<usize, SealRefused> {
        let sealed_len = sa.sealed_len_of(frame.bytes(), layout)?;
        if room_len < sealed_len.max(sa.front_len() + self.plan.next_len()) {
            return Err(SealRefused::NoRoom);
        }
        if sa.packets_left(layout.packet_end - layout.network_start) == 0 {
            return Err(sa.why_no_more());
        }
        Ok(sealed_len)
    }

    /// Seals the next frames of equal length into the slots of `stride` bytes in `out`, each to the front of its slot.
    /// Stops at the last slot or at the first frame of another length. Returns an empty run after the last frame.
    ///
    /// Writes the same frames as one call of [`SealedSegments::write_next`] per frame, but is faster, because the
    /// payload is encrypted directly from `frame` into `out`. The function writes each segment's headers and trailer
    /// into `frame` next to the segment's payload, over payload that is already sealed. After the call, payload bytes
    /// in `frame` that were sealed can have any value. All other bytes of `frame` are unchanged.
    ///
    /// # Errors
    /// Returns an error if the association refuses the frames or a slot is too short. After an error, no frame was
    /// written.
    pub fn write_run(
        &mut self,
        sa: &mut OutboundSa,
        frame: &mut Frame<'_>,
        out: &mut [u8],
        stride: usize,
    ) -> Result<SealedRun, SealRefused> {
        let mut run = SealedRun { frames: 0, frame_len: 0, event: None };
        if self.frames_left() == 0 {
            return Ok(run);
        }
        let layout = self.next_layout();
        run.frame_len = self.check_room(sa, frame, &layout, stride.min(out.len()))?;
        let packets_left = sa.packets_left(layout.packet_end - layout.network_start);
        let slots = (out.len() - run.frame_len) / stride + 1;
        let count = self.plan.run_len().min(slots).min(usize::try_from(packets_left).unwrap_or(usize::MAX));
        let chunk = (CHUNK_LEN / stride).max(1);
        while run.frames < count {
            let (out, left) = (&mut out[run.frames * stride..], count - run.frames);
            let (mut frames, mut event) = match self.plan.heads(frame, left) {
                Some(heads) => sa.seal_segments(frame.bytes_mut(), &heads, &layout, out, stride)?,
                None => (0, None),
            };
            if frames > 0 {
                self.plan.pass(frames);
            } else {
                frames = chunk.min(left);
                event = self.write_chunk(sa, frame, out, stride, frames, &layout)?;
            }
            run.event = event.or(run.event);
            run.frames += frames;
        }
        Ok(run)
    }

    fn write_chunk(
        &mut self,
        sa: &mut OutboundSa,
        frame: &Frame<'_>,
        out: &mut [u8],
        stride: usize,
        frames: usize,
        layout: &FrameLayout,
    ) -> Result<Option<LifetimeEvent>, SealRefused> {
        let front_len = sa.front_len();
        let clear_end = front_len + (frames - 1) * stride + self.plan.next_len();
        if self.plan.write_run(frame, &mut out[front_len..clear_end], stride) != frames {
            return Err(SealRefused::NoRoom); // The caller passed another frame.
        }
        let mut event = None;
        for slot in 0..frames {
            event = sa.seal_at(&mut out[slot * stride..], front_len, layout)?.event.or(event);
        }
        Ok(event)
    }
}
