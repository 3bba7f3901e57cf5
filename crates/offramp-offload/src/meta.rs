//! Metadata of a frame.
//!
//! A partial checksum and a segmentation exist in both directions: a host may ask for them on transmit, and the adapter
//! may report them on receive. The two types mirror the virtio
//! network header (virtio 1.3, 5.1.6) without its layout; ports translate.

use crate::vlan::TagChange;

/// A checksum that is to be completed: the field holds the folded, not inverted sum of the
/// pseudo-header; everything from `start` to the end of the packet is still to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartialChecksum {
    /// First byte that the checksum covers, counted from the start of the frame.
    pub start: u16,
    /// Where the field lies, counted from `start` (TCP 16, UDP 6).
    pub offset: u16,
}

impl PartialChecksum {
    /// Offset of the checksum field from the start of the frame.
    pub fn field(self) -> usize {
        usize::from(self.start) + usize::from(self.offset)
    }

    /// The same checksum of a frame with a tag more or less. One that starts at the end of 64 KiB stays in place: only a
    /// frame longer than a packet can be has it.
    pub(crate) fn after_tag_change(self, change: TagChange) -> Self {
        Self { start: self.start.saturating_add_signed(change.added_len() as i16), ..self }
    }
}

/// What is known of a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// Nobody verified it, or there is nothing to verify.
    #[default]
    Unknown,
    /// The checksums of the IPv4 header and of the transport were verified and are right.
    Good,
    /// One of them was verified and is wrong.
    Bad,
    /// The payload was verified (or never left the host); the field holds the sum of the pseudo-header.
    Partial(PartialChecksum),
}

/// How a super-frame is segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentationKind {
    /// TCP over IPv4 (LSO, TSO).
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal size after one header (USO).
    Udp,
    /// One large UDP datagram into IP fragments (UFO).
    UdpFragments,
}

/// A segmentation that is asked for (transmit) or that would undo a coalescing (receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segmentation {
    /// Into what.
    pub kind: SegmentationKind,
    /// Payload bytes of every segment but the last (`gso_size`, MSS), without headers.
    pub size: u16,
    /// The super-frame carries TCP's CWR (virtio's ECN bit). It changes no byte of the output.
    pub ecn: bool,
}

/// What a host asks of the adapter for one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxMeta {
    /// The checksum to complete, if any.
    pub checksum: Option<PartialChecksum>,
    /// The segmentation to do, if any.
    pub segmentation: Option<Segmentation>,
}

/// What the adapter reports to a host about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RxMeta {
    /// What was found of the checksums.
    pub checksum: ChecksumState,
    /// Set when the frame was coalesced from several: this segmentation gives them back.
    pub segmentation: Option<Segmentation>,
    /// Bytes of all headers together, 0 when not known. A hint for the host's buffers.
    pub header_len: u16,
    /// How many frames of the wire this is.
    pub segments: u16,
    /// Toeplitz hash of the flow, when it was computed.
    pub hash: Option<u32>,
    /// The host's receive queue that the frame is for.
    pub queue: u16,
}

impl RxMeta {
    /// One frame of which nothing is known.
    pub const UNMARKED: Self =
        Self { checksum: ChecksumState::Unknown, segmentation: None, header_len: 0, segments: 1, hash: None, queue: 0 };
}

impl Default for RxMeta {
    fn default() -> Self {
        Self::UNMARKED
    }
}
