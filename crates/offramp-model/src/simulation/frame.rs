//! Frames, their contents, and the two stations.

use crate::link::Station;

/// The host under study.
pub(super) const HOST: Station = 0;
/// The machine at the other end.
pub(super) const PEER: Station = 1;
/// The message of a frame or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) slot: usize,
    /// A slot is used for one exchange after another.
    pub(super) number: u64,
    /// Number of retransmissions of its messages.
    pub(super) attempt: u32,
    pub(super) flow: usize,
    /// The host sends the request.
    pub(super) from_host: bool,
    pub(super) is_response: bool,
}

impl Message {
    /// Returns whether the host sends it.
    pub(super) fn is_of_host(&self) -> bool {
        self.from_host != self.is_response
    }
}

/// A frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Bytes without FCS.
    pub(super) len: u64,
    pub(super) content: Content,
    /// Ends its send: `true` for every frame but the segments before the last one of a large send.
    pub(super) completes: bool,
}

impl Frame {
    pub(super) fn new(len: u64, content: Content) -> Self {
        Self { len, content, completes: true }
    }

    /// Returns the connection of a segment.
    pub(super) fn flow(&self) -> Option<usize> {
        match self.content {
            Content::Segment { flow, .. } => Some(flow),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Segment { flow: usize, start: u64, len: u64 },
    Ack { flow: usize, next: u64, window: u64 },
    Request { slot: usize, number: u64, attempt: u32 },
    Fragment { slot: usize, number: u64, attempt: u32 },
    Datagram { payload: u64 },
    Message(Message),
}
