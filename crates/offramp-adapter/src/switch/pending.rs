//! The frame that a port has sent and that is still on its way.

use crate::pipeline::plan::Planned;
use crate::vlan::FrameVlan;
use offramp_offload::segment::Segmenter;
use std::ops::Range;

/// A frame on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) planned: Planned,
    /// Bytes of the frame that was planned.
    pub(super) frame_len: usize,
    pub(super) vlan: FrameVlan,
    /// The ports that are still to be visited.
    pub(super) to: Range<usize>,
    /// Frames of it that were handed to a port; the most where there was more than one.
    pub(super) frames_handed: usize,
    /// The rest of a segmentation for the next port, if it has begun.
    pub(super) segments: Option<Segmenter>,
}

impl Pending {
    /// Goes on to the next port, whether or not the frame was brought to this one as a whole.
    pub(super) fn advance(&mut self) {
        self.note_segments();
        self.to.start += 1;
    }

    /// Counts what was written of a segmentation as handed; the rest is not written any more.
    pub(super) fn note_segments(&mut self) {
        if let Some(rest) = self.segments.take() {
            self.frames_handed = self.frames_handed.max(self.planned.frames_left() - rest.frames_left());
        }
    }
}
