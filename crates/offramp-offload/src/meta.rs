//! Metadata of a frame.
//!
//! A partial checksum and a segmentation exist in both directions: a host may ask for them on transmit, and the adapter
//! may report them on receive. The two types mirror the virtio network header (virtio 1.3, 5.1.6) without its layout;
//! ports translate.

use crate::vlan::TagChange;

/// A checksum still to be completed. The field holds the folded, not inverted sum of the pseudo-header; everything from
/// `start` to the end of the packet is still to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartialChecksum {
    /// First byte covered by the checksum, counted from the start of the frame.
    pub start: u16,
    /// Offset of the field, counted from `start` (TCP 16, UDP 6).
    pub offset: u16,
}

impl PartialChecksum {
    /// Returns the offset of the checksum field from the start of the frame.
    pub fn field(self) -> usize {
        usize::from(self.start) + usize::from(self.offset)
    }

    /// Returns the checksum's place after a tag was added or removed. A place at the end of 64 KiB stays: only a frame
    /// longer than any packet has it.
    pub(crate) fn after_tag_change(self, change: TagChange) -> Self {
        Self { start: self.start.saturating_add_signed(change.added_len() as i16), ..self }
    }
}

/// The state of a frame's checksums.
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

/// The output of a segmentation.
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

/// A segmentation requested by the host (transmit), or the inverse of a coalescing (receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segmentation {
    /// The kind of output.
    pub kind: SegmentationKind,
    /// Payload bytes of every segment but the last (`gso_size`, MSS), without headers.
    pub size: u16,
    /// The meaning of TCP's CWR in the super-frame.
    pub cwr: Cwr,
}

impl Segmentation {
    /// Returns a segmentation without a mark for CWR.
    pub const fn new(kind: SegmentationKind, size: u16) -> Self {
        Self { kind, size, cwr: Cwr::Unmarked }
    }
}

/// The meaning of TCP's CWR in a super-frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cwr {
    /// No mark. A set bit goes to the first segment only, as with [`Self::First`].
    #[default]
    Unmarked,
    /// It goes to the first segment only (RFC 3168 6.1.2; virtio's ECN bit).
    First,
    /// It goes to every segment, as a bit of the ACE counter (RFC 9768 3.2.2; the AccECN bit proposed for virtio).
    All,
}

/// A host's request to the adapter for one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxMeta {
    /// The checksum to complete, if any.
    pub checksum: Option<PartialChecksum>,
    /// The segmentation to do, if any.
    pub segmentation: Option<Segmentation>,
}

/// The adapter's report to a host about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RxMeta {
    /// The verdict on the checksums.
    pub checksum: ChecksumState,
    /// Set when the frame was coalesced from several: this segmentation gives them back.
    pub segmentation: Option<Segmentation>,
    /// Bytes of all headers together, 0 when not known. A hint for the host's buffers.
    pub header_len: u16,
    /// The number of frames on the wire.
    pub segments: u16,
    /// Toeplitz hash of the flow, when it was computed.
    pub hash: Option<u32>,
    /// The host's receive queue for the frame.
    pub queue: u16,
}

impl RxMeta {
    /// One frame without any verdict.
    pub const UNMARKED: Self =
        Self { checksum: ChecksumState::Unknown, segmentation: None, header_len: 0, segments: 1, hash: None, queue: 0 };
}

impl Default for RxMeta {
    fn default() -> Self {
        Self::UNMARKED
    }
}
