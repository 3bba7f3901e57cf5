//! A frame of the simulation: its length and content, without bytes. Also the indices of the two stations.

use crate::link::Station;

/// The host under study.
pub(super) const HOST: Station = 0;
/// The peer at the other end of the link.
pub(super) const PEER: Station = 1;
/// Identifies the message to which a frame or a job belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) slot: usize,
    /// Serial number of the exchange. A slot serves one exchange after the other.
    pub(super) number: u64,
    /// Number of retransmissions in the exchange.
    pub(super) attempt: u32,
    pub(super) flow: usize,
    /// `true` if the host sends the request.
    pub(super) from_host: bool,
    pub(super) is_response: bool,
}

impl Message {
    /// Returns whether the host sends this message.
    pub(super) fn is_of_host(&self) -> bool {
        self.from_host != self.is_response
    }
}

/// A frame in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Length without FCS, bytes.
    pub(super) len: u64,
    pub(super) content: Content,
    /// `true` for the last frame of a send. For a super-frame, only the last segment completes the send.
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
