//! The frame a port has sent, still on its way.

use crate::pipeline::plan::Planned;
use crate::vlan::FrameVlan;
use offramp_offload::segment::Segmenter;
use std::ops::Range;

/// A frame on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) planned: Planned,
    /// Bytes of the planned frame.
    pub(super) frame_len: usize,
    pub(super) vlan: FrameVlan,
    /// The ports still to be visited.
    pub(super) to: Range<usize>,
    /// Frames of it handed to a port; the maximum over the ports.
    pub(super) frames_handed: usize,
    /// The rest of a begun segmentation for the next port.
    pub(super) segments: Option<Segmenter>,
}

impl Pending {
    /// Goes on to the next port, even if this one was handed only a part of the frame.
    pub(super) fn advance(&mut self) {
        self.note_segments();
        self.to.start += 1;
    }

    /// Counts the written segments as handed and drops the rest.
    pub(super) fn note_segments(&mut self) {
        if let Some(rest) = self.segments.take() {
            self.frames_handed = self.frames_handed.max(self.planned.frames_left() - rest.frames_left());
        }
    }
}
