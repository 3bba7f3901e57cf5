//! A frame that its sender lends to another host of the switch.

use super::budget::{FRAME_ALIGN, Work};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::PACKET_LEN_MAX;
use offramp_offload::frame::Frame;
use offramp_offload::layout::{TCP_CWR, TCP_FLAGS_OFFSET};
use offramp_offload::meta::{ChecksumState, Cwr, PartialChecksum, RxMeta, Segmentation, SegmentationKind};
use offramp_offload::segment::Segmenter;

/// Minimum TCP payload per segment of a super-frame that is handed over whole, in bytes. Linux 7 raises a smaller
/// requested size to this value (`TCP_MIN_GSO_SIZE`), and would produce other segments than requested.
pub(super) const TCP_SEGMENT_LEN_MIN: u16 = 8;

/// A frame lent by its sender, and its segmentation plan.
pub(crate) struct Lent<'a> {
    pub(crate) frame: Frame<'a>,
    pub(crate) plan: &'a Segmenter,
}

impl Lent<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.frame.len()
    }

    pub(crate) fn frames(&self) -> usize {
        self.plan.frames_left()
    }

    /// Returns the segmentation if the frame becomes more than one segment.
    pub(super) fn segmentation(&self) -> Option<Segmentation> {
        self.frame.request().segmentation.filter(|_| self.frames() > 1)
    }

    /// Returns whether the longest of the resulting frames fits into the MTU.
    pub(super) fn fits(&self, mtu: usize) -> bool {
        self.plan.next_len() - self.plan.link_header_len() <= mtu
    }

    /// Returns the marks of a super-frame that is handed over untouched. Returns `None` if the super-frame must be
    /// segmented, for example because `enabled` lacks a needed offload.
    ///
    /// A super-frame with CWR gets the mark of CWR, even if its sender did not mark it. With CWR, a super-frame is
    /// delivered whole only to a driver with ECN negotiated (virtio 1.3, 5.1.6.4.1). With AccECN's CWR, a super-frame
    /// is delivered whole only to a driver with AccECN negotiated. Without CWR, all drivers segment a super-frame in
    /// the same way.
    pub(super) fn untouched(&self, segmentation: Segmentation, enabled: Offloads) -> Option<RxMeta> {
        let partial = self.frame.request().checksum?;
        if self.len() - self.plan.link_header_len() > PACKET_LEN_MAX {
            return None; // Too long for an IP header's length field and for a guest's buffers.
        }
        if self.frame.layout().is_ok_and(|layout| layout.fragment) {
            return None; // The receiver would wait for the other fragments of the packet.
        }
        let (needed, is_tcp) = match segmentation.kind {
            SegmentationKind::Tcp4 => (Offloads::RSC4, true),
            SegmentationKind::Tcp6 => (Offloads::RSC6, true),
            SegmentationKind::Udp => (Offloads::RSC_UDP, false),
            SegmentationKind::UdpFragments => return None,
        };
        if is_tcp && segmentation.size < TCP_SEGMENT_LEN_MIN {
            return None;
        }
        let has_cwr = is_tcp && carries_cwr(self.frame.bytes(), partial);
        let (ecn, cwr) = match segmentation.cwr {
            Cwr::All if has_cwr => (Offloads::RSC_ACCECN, Cwr::All),
            Cwr::First if is_tcp => (Offloads::RSC_ECN, Cwr::First),
            Cwr::Unmarked if has_cwr => (Offloads::RSC_ECN, Cwr::First),
            _ => (Offloads::empty(), Cwr::Unmarked),
        };
        let needed = needed | ecn;
        enabled.contains(needed).then(|| RxMeta {
            checksum: ChecksumState::Partial(partial),
            segmentation: Some(Segmentation { cwr, ..segmentation }),
            header_len: self.header_len(segmentation),
            segments: self.frames() as u16,
            ..RxMeta::default()
        })
    }

    /// Returns the total length of all headers of a super-frame, in bytes. Returns 0 for a datagram to be fragmented,
    /// because only the first fragment of a datagram has a UDP header.
    pub(super) fn header_len(&self, segmentation: Segmentation) -> u16 {
        match segmentation.kind {
            SegmentationKind::UdpFragments => 0,
            _ => (self.plan.next_len() - usize::from(segmentation.size)) as u16,
        }
    }
}

/// Returns whether CWR is set in the TCP header, which starts where the checksum starts.
fn carries_cwr(frame: &[u8], partial: PartialChecksum) -> bool {
    frame.get(usize::from(partial.start) + TCP_FLAGS_OFFSET).is_some_and(|flags| flags & TCP_CWR != 0)
}

/// Returns whether the host initialised the checksum field of TCP or UDP with the sum of the pseudo-header, so that the
/// segments' checksums will be right. A guest may write any value into the checksum field. The result is `false` for a
/// fragment, because the checksum covers more bytes than the fragment has.
pub(super) fn has_good_pseudo_header(frame: &Frame<'_>) -> bool {
    let (Ok(layout), Some(partial)) = (frame.layout(), frame.request().checksum) else { return false };
    let is_transport =
        (usize::from(partial.start), partial.field()) == (layout.transport_start, layout.checksum_field());
    let begun = frame.bytes().get(partial.field()..).and_then(|rest| rest.first_chunk());
    let pseudo_header = frame.pseudo_header((layout.transport_len() + frame.shared_len()) as u32).fold();
    is_transport && !layout.fragment && begun.is_some_and(|begun| u16::from_be_bytes(*begun) == pseudo_header)
}

/// Writes the next frames of one length into the scratch, as many as fit. Returns the length of each written frame, the
/// distance between the starts of two written frames, and the number of written frames.
pub(super) fn segment_into_scratch(
    lent: &Lent<'_>,
    rest: &mut Segmenter,
    work: &mut Work<'_>,
) -> (usize, usize, usize) {
    let len = rest.next_len();
    let stride = len.next_multiple_of(FRAME_ALIGN);
    let slots = (work.scratch.len() / stride).min(work.budget.frames.max(1));
    let count = rest.write_run(&lent.frame, &mut work.scratch[..slots * stride], stride);
    work.budget.spend(count, count * len);
    (len, stride, count)
}
