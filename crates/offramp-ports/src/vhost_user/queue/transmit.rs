//! Reads frames from the transmit ring of a guest.

use super::state::{QueueState, Reads};
use super::vring::RingState;
use crate::vnet_hdr::{HEADER_LEN, decode_tx};
use offramp_adapter::port::{PortError, SHARED_PIECES_MAX};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::SharedBytes;
use offramp_offload::meta::{Cwr, SegmentationKind, TxMeta};
use offramp_virtio::ring::Chain;

/// Cost of each buffer of a frame after the first buffer: the number of bytes copied in the same time. Reading a
/// descriptor and copying from a separate buffer take as long as copying one or two cache lines.
const DESCRIPTOR_COST_BYTES: usize = 64;

/// Number of bytes of a kept frame that are copied into private memory. Usual headers fit, with options and with
/// extension headers. A frame whose headers do not fit is copied as a whole.
pub(super) const FRONT_LEN: usize = 256;
/// Minimum length of a chain whose frame can stay in the guest's memory, in bytes. Copying a shorter frame costs less
/// than keeping its chain.
const KEPT_LEN_MIN: usize = 4096;

impl QueueState {
    /// Fetches frames from the guest. Returns whether any frame was fetched.
    #[inline]
    pub(super) fn fetch_transmit(&mut self) -> bool {
        self.publish_transmit();
        self.tx_cost_bytes = 0;
        match self.transmit.state {
            RingState::Enabled | RingState::Inspecting => self.transmit.fetch(self.log.as_deref(), &self.counters),
            RingState::Unset => false,
            RingState::Disabled => {
                if self.transmit.fetch(self.log.as_deref(), &self.counters) {
                    self.discard_transmit();
                }
                false
            }
        }
    }

    /// Completes the fetched chains. Fetches new chains only from a disabled ring, to discard the frames in these
    /// chains.
    pub(super) fn hold_transmit(&mut self) {
        self.publish_transmit();
        self.tx_cost_bytes = 0;
        if self.transmit.state == RingState::Disabled {
            self.discard_transmit();
            self.fetch_transmit();
        }
    }

    /// Returns whether a disabled ring has frames to discard.
    pub(super) fn has_discards(&self) -> bool {
        self.transmit.state == RingState::Disabled && self.transmit.vring.has_ahead(1)
    }

    /// Discards the fetched frames of a disabled ring, as required of network devices (vhost-user, "Ring states").
    #[cold]
    fn discard_transmit(&mut self) {
        while let Some(chain) = self.transmit.vring.pop() {
            self.return_sent(&chain);
            self.tx_cost_bytes += chain.descriptors() * DESCRIPTOR_COST_BYTES;
            self.counters.discarded.add(1);
        }
        // Publish now, because it is possible that no frame follows and that nothing else ends the batch.
        self.publish_transmit();
    }

    /// Copies the next frame of the batch into `frame`. Returns the frame's length and the guest's request, or `None`
    /// at the end of the batch. For a super-frame, may copy only the first [`FRONT_LEN`] bytes;
    /// [`QueueState::kept_pieces`] then returns the other bytes.
    #[inline]
    pub(super) fn next_frame(&mut self, frame: &mut [u8]) -> Result<Option<(usize, TxMeta)>, PortError> {
        let Some(chain) = self.transmit.vring.pop() else { return Ok(None) };
        self.tx_cost_bytes = (chain.descriptors() - 1) * DESCRIPTOR_COST_BYTES;
        if chain.len() >= KEPT_LEN_MIN && self.reads != Reads::Frames {
            return self.next_long_frame(chain, frame).map(Some);
        }
        let mut header = [0; HEADER_LEN];
        let len = self.transmit.vring.read_frame(&chain, self.header_len, &mut header, frame);
        self.return_sent(&chain);
        let Some(len) = len else { return Err(self.malformed()) };
        let meta = match self.reads {
            // The guest has no offload to request, so ignore the header. DPDK's vectorized driver does not initialize
            // the header if no offload was negotiated.
            Reads::Frames => TxMeta::default(),
            Reads::Requests => self.request(&header)?,
            Reads::Counted => self.counted_request(&header, &frame[..len], len)?,
        };
        Ok(Some((len, meta)))
    }

    /// Does the same as [`QueueState::next_frame`] for a long frame. A super-frame with few buffers (Linux uses up to
    /// 19) stays in the guest's memory, except its first bytes. The port keeps the frame's chain until
    /// [`QueueState::return_kept`].
    #[inline(never)]
    fn next_long_frame(&mut self, chain: Chain, frame: &mut [u8]) -> Result<(usize, TxMeta), PortError> {
        let mut header = [0; HEADER_LEN];
        let len = chain.len() - self.header_len;
        let vring = &self.transmit.vring;
        let front = if len <= frame.len() { frame.get_mut(..FRONT_LEN) } else { None };
        let is_read = front.and_then(|front| vring.read_front(&chain, self.header_len, &mut header, front)).is_some();
        let meta = match self.reads {
            _ if !is_read => Err(self.malformed()),
            Reads::Counted => self.counted_request(&header, &frame[..FRONT_LEN], len),
            _ => self.request(&header),
        };
        let is_kept = meta.as_ref().is_ok_and(|meta| meta.segmentation.is_some())
            && self.transmit.vring.buffers(&chain).len() <= SHARED_PIECES_MAX;
        if is_kept {
            self.kept = Some(chain);
            return meta.map(|meta| (FRONT_LEN, meta));
        }
        if meta.is_ok() {
            self.transmit.vring.read_rest(&chain, self.header_len + FRONT_LEN, &mut frame[FRONT_LEN..len]);
        }
        self.return_sent(&chain);
        meta.map(|meta| (len, meta))
    }

    /// Returns the bytes of the kept chain after the copied front of its frame.
    pub(super) fn kept_pieces(&self) -> impl Iterator<Item = SharedBytes> {
        let vring = &self.transmit.vring;
        let pieces = self.kept.iter().flat_map(|chain| vring.pieces(chain, self.header_len + FRONT_LEN));
        // SAFETY: the vring keeps its memory mapped until it is stopped. Before that, the caller gathers the frame
        // (`VhostQueue::settle`). No reference into guest memory exists.
        pieces.map(|(start, len)| unsafe { SharedBytes::new(start, len) })
    }

    /// Adds the kept chain to the used chains. The caller no longer reads the chain's buffers.
    #[inline]
    pub(super) fn return_kept(&mut self) {
        if let Some(chain) = self.kept.take() {
            self.return_sent(&chain);
        }
    }

    #[inline]
    fn return_sent(&mut self, chain: &Chain) {
        self.transmit.add_used(chain, 0);
        self.transmit.tally.add(chain.len() as u64);
    }

    /// Counts a chain without a frame, and returns the error.
    #[cold]
    fn malformed(&mut self) -> PortError {
        self.statistics.iter_mut().for_each(|statistics| statistics.malformed());
        PortError::Refused(libc::EINVAL)
    }

    /// Decodes the request in a header, and counts a frame of `len` bytes in the guest's statistics. `front` has the
    /// frame's headers.
    fn counted_request(&mut self, header: &[u8; HEADER_LEN], front: &[u8], len: usize) -> Result<TxMeta, PortError> {
        let is_asked = self.offloads.intersects(Offloads::TX);
        let asked = if is_asked { self.request(header) } else { Ok(TxMeta::default()) };
        if let Some(statistics) = &mut self.statistics {
            match &asked {
                Ok(meta) => statistics.sent(meta, front, len),
                Err(_) => statistics.malformed(),
            }
        }
        asked
    }

    /// Decodes the request in a header.
    #[inline]
    fn request(&self, header: &[u8; HEADER_LEN]) -> Result<TxMeta, PortError> {
        let meta = decode_tx(header).map_err(|_| PortError::Refused(libc::EINVAL))?;
        if !self.offloads.contains(asked_of(&meta)) {
            // The driver requests an offload that was not negotiated (virtio 1.3, 5.1.6.2.1).
            return Err(PortError::Refused(libc::EINVAL));
        }
        Ok(meta)
    }
}

/// Returns the offloads that a request needs. `GSO_ECN` needs no separate offload, because this flag does not change
/// the segmentation.
#[inline]
fn asked_of(meta: &TxMeta) -> Offloads {
    let checksum = if meta.checksum.is_some() { Offloads::TX_CHECKSUM } else { Offloads::empty() };
    let segmentation = meta.segmentation.map_or(Offloads::empty(), |segmentation| match segmentation.kind {
        SegmentationKind::Tcp4 => Offloads::TSO4,
        SegmentationKind::Tcp6 => Offloads::TSO6,
        SegmentationKind::Udp => Offloads::USO,
        SegmentationKind::UdpFragments => Offloads::UFO,
    });
    let has_accecn = meta.segmentation.is_some_and(|segmentation| segmentation.cwr == Cwr::All);
    checksum | segmentation | if has_accecn { Offloads::TSO_ACCECN } else { Offloads::empty() }
}
