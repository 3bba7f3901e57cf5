//! The names of costs.

/// One of the [`Costs`](super::Costs), by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    Byte,
    Send,
    Receive,
    ChecksumSent,
    ChecksumReceived,
    Wake,
    Doorbell,
    AdapterByte,
    AdapterFrame,
    AdapterHandOver,
    AdapterChecksumSent,
    AdapterChecksumReceived,
    ChunkLen,
    CoalescedLen,
    PacedSentLen,
    PacedCoalescedLen,
    FramesPerSegment,
    ReceiverByte,
    ReceiverHandOver,
    ReceiverSegmentsPerAck,
    PeerByte,
    PeerFrame,
    PeerHandOver,
    WakeUp,
    WakeUpTail,
    Timer,
}

impl Cost {
    /// Returns the cost's owner and unit, for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Byte => "host, ns/byte, both ends",
            Self::Send => "host, ns/send",
            Self::Receive => "host, ns/receive",
            Self::ChecksumSent => "host, ns/byte checksum, sent",
            Self::ChecksumReceived => "host, ns/byte checksum, received",
            Self::Wake => "host, ns/interrupt when idle",
            Self::Doorbell => "host, ns/send when adapters sleep",
            Self::AdapterByte => "adapters, ns/byte",
            Self::AdapterFrame => "adapters, ns/frame on the wire",
            Self::AdapterHandOver => "adapters, ns/hand-over",
            Self::AdapterChecksumSent => "adapters, ns/byte checksum, sent",
            Self::AdapterChecksumReceived => "adapters, ns/byte checksum, received",
            Self::ChunkLen => "bytes/send with LSO",
            Self::CoalescedLen => "bytes/receive with RSC",
            Self::PacedSentLen => "bytes/send with LSO, link the limit",
            Self::PacedCoalescedLen => "bytes/receive with RSC, link the limit",
            Self::FramesPerSegment => "frames/segment",
            Self::ReceiverByte => "receiving host, ns/byte",
            Self::ReceiverHandOver => "receiving host, ns/hand-over",
            Self::ReceiverSegmentsPerAck => "receiving host, segments/acknowledgement",
            Self::PeerByte => "its peer and adapters, ns/byte",
            Self::PeerFrame => "its peer and adapters, ns/frame",
            Self::PeerHandOver => "its peer and adapters, ns/hand-over",
            Self::WakeUp => "both ends, ns/request until processes run",
            Self::WakeUpTail => "both ends, ns/request on top, mean",
            Self::Timer => "adapters, ns until a timer is noticed",
        }
    }
}
