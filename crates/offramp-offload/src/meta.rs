//! Metadata of a frame.
//!
//! Partial checksums and segmentations occur in both directions: a host can request them on transmit, and the adapter
//! can report them on receive. [`PartialChecksum`] and [`Segmentation`] mirror the virtio network header (virtio 1.3,
//! 5.1.6) without the byte layout of the header. Ports convert between these types and the virtio network header.

use crate::vlan::TagChange;

/// A checksum that is still to be completed. The checksum field of the frame holds the pseudo-header's sum, folded but
/// not inverted. The bytes from `start` to the end of the packet are still to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartialChecksum {
    /// Offset of the first byte covered by the checksum, from the start of the frame.
    pub start: u16,
    /// Offset of the checksum field from `start` (16 for TCP, 6 for UDP).
    pub offset: u16,
}

impl PartialChecksum {
    /// Returns the offset of the checksum field from the start of the frame.
    pub fn field(self) -> usize {
        usize::from(self.start) + usize::from(self.offset)
    }

    /// Returns the start and the offset after a VLAN tag was added or removed. `start` saturates at 65,535: only a
    /// frame longer than any packet reaches that value.
    pub(crate) fn after_tag_change(self, change: TagChange) -> Self {
        Self { start: self.start.saturating_add_signed(change.added_len() as i16), ..self }
    }
}

/// The state of a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// The checksums were not verified, or the frame has no checksums.
    #[default]
    Unknown,
    /// The checksums of the IPv4 header and of the transport were verified and are correct.
    Good,
    /// The checksum of the IPv4 header or of the transport was verified and is wrong.
    Bad,
    /// The checksum field holds the pseudo-header's sum, because the payload was verified or never left the host.
    Partial(PartialChecksum),
}

/// The protocol of the frames that a segmentation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentationKind {
    /// TCP over IPv4 (LSO, TSO).
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams with payloads of equal size, except the last (USO).
    Udp,
    /// IP fragments of one large UDP datagram (UFO).
    UdpFragments,
}

/// A segmentation: requested by the host on transmit, or the inverse of a coalescing on receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segmentation {
    /// Protocol of the frames that the segmentation makes.
    pub kind: SegmentationKind,
    /// Payload bytes of every segment except the last (`gso_size`, MSS), without headers.
    pub size: u16,
    /// Treatment of TCP's CWR bit.
    pub cwr: Cwr,
}

impl Segmentation {
    /// Returns a segmentation with [`Cwr::Unmarked`].
    pub const fn new(kind: SegmentationKind, size: u16) -> Self {
        Self { kind, size, cwr: Cwr::Unmarked }
    }
}

/// The treatment of TCP's CWR bit when a super-frame is segmented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cwr {
    /// The super-frame's metadata has no rule for CWR. A set CWR bit is copied to the first segment only, as with
    /// [`Self::First`].
    #[default]
    Unmarked,
    /// CWR is copied to the first segment only (RFC 3168 6.1.2; virtio's ECN bit).
    First,
    /// CWR is copied to every segment, as a bit of the ACE counter (RFC 9768 3.2.2; the AccECN bit proposed for
    /// virtio).
    All,
}

/// The work that a host requests from the adapter for one frame to transmit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxMeta {
    /// Checksum to complete, if any.
    pub checksum: Option<PartialChecksum>,
    /// Segmentation to do, if any.
    pub segmentation: Option<Segmentation>,
}

/// The metadata that the adapter delivers to a host with one received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RxMeta {
    /// Verdict on the checksums.
    pub checksum: ChecksumState,
    /// Segmentation that restores the original frames, if the frame was coalesced.
    pub segmentation: Option<Segmentation>,
    /// Total length of all headers in bytes, 0 if unknown. The host can use the length to size buffers.
    pub header_len: u16,
    /// Number of frames from the wire that this frame consists of.
    pub segments: u16,
    /// Toeplitz hash of the flow, if computed.
    pub hash: Option<u32>,
    /// Host's receive queue for the frame.
    pub queue: u16,
}

impl RxMeta {
    /// The metadata of one frame without verdict, segmentation or hash.
    pub const UNMARKED: Self =
        Self { checksum: ChecksumState::Unknown, segmentation: None, header_len: 0, segments: 1, hash: None, queue: 0 };
}

impl Default for RxMeta {
    fn default() -> Self {
        Self::UNMARKED
    }
}
