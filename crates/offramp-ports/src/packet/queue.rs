//! One queue of an interface. One recvmsg(2) receives a frame; one sendmsg(2) transmits a frame.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use offramp_adapter::host_io::HostIo;
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::layout::VLAN_TAG_LEN;
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, TxMeta};
use offramp_offload::segment::TunnelSegmenter;
use offramp_offload::vlan::{TAG_AT, TagChange};

use super::Shared;
use super::socket::{self, Received};
use crate::frame_memory::frame_memory;
use crate::vnet_hdr::{DATA_VALID, HEADER_LEN, decode_tx, encode_rx};

/// One queue of a [`Packet`](super::Packet), for one thread. Poll its descriptor for input.
#[derive(Debug)]
pub struct PacketQueue {
    shared: Arc<Shared>,
    index: usize,
    frame: FrameBuffer<Box<[u8]>>,
    /// Offset in bytes of a received frame in `frame`. The bytes before a received frame have room for a VLAN tag.
    receive_at: usize,
    frame_len_max: usize,
    /// The last tunnelled super-frame and its remaining segments. `None` before the first tunnelled super-frame.
    tunnel: Option<Box<Tunnelled>>,
    /// The checksum state reported by the interface for the last received frame.
    checksum: ChecksumState,
    /// True after the kernel has reported `ENETDOWN`. After `ENETDOWN`, the kernel reports no further error when the
    /// interface is deleted.
    is_down: bool,
}

/// A tunnelled super-frame. The port segments it, and the adapter fetches the segments one by one.
#[derive(Debug)]
struct Tunnelled {
    frame: FrameBuffer<Box<[u8]>>,
    receive_at: usize,
    /// The remaining segments. `None` after the last segment.
    segments: Option<TunnelSegmenter>,
}

impl PacketQueue {
    pub(super) fn new(shared: Arc<Shared>, index: usize, frame_len_max: usize) -> Self {
        let (frame, receive_at) = frame_memory(frame_len_max);
        let (tunnel, checksum, is_down) = (None, ChecksumState::Unknown, false);
        Self { shared, index, frame, receive_at, frame_len_max, tunnel, checksum, is_down }
    }

    /// Returns the queue's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the checksum state reported by the interface for the last received frame. A partial checksum is reported
    /// as [`ChecksumState::Partial`].
    pub fn reported_checksum(&self) -> ChecksumState {
        self.checksum
    }

    #[cfg(test)]
    pub(super) fn header_len(&self) -> usize {
        self.shared.header_len
    }

    /// Accepts a received frame: restores its VLAN tag and decodes its vnet header.
    fn accept(&mut self, header: &[u8; HEADER_LEN], received: &Received) -> Result<(), PortError> {
        if received.is_cut_off {
            return Err(PortError::Lost(Loss::TooLong));
        }
        let mut request = decode_tx(&in_other_order(*header)).map_err(|_| PortError::Refused(libc::EINVAL))?;
        let (mut start, end) = (self.receive_at, self.receive_at + received.len);
        if let Some(tag) = received.tag.filter(|_| received.len >= TAG_AT) {
            start -= VLAN_TAG_LEN;
            let memory = self.frame.memory_mut();
            memory.copy_within(self.receive_at..self.receive_at + TAG_AT, start);
            memory[start + TAG_AT..][..VLAN_TAG_LEN].copy_from_slice(&tag);
            request.checksum = request.checksum.map(after_tag).transpose()?;
        }
        self.checksum = match request.checksum {
            Some(partial) => ChecksumState::Partial(partial),
            None if header[0] & DATA_VALID != 0 => ChecksumState::Good,
            None => ChecksumState::Unknown,
        };
        self.frame.set(start..end, request);
        if request.segmentation.is_some() { self.correct(start..end, request) } else { Ok(()) }
    }

    /// Corrects a super-frame that the kernel's vnet header describes wrongly.
    ///
    /// * The vnet header marks a tunnelled super-frame as plain TCP or UDP. The port therefore segments the super-frame
    ///   itself. The adapter fetches the segments one by one, beginning with the first segment.
    /// * In a super-frame that the kernel coalesced as a list (`rx-gro-list`), the checksum field still covers only the
    ///   first segment. If the sender completed this checksum, the vnet header does not request a new checksum. The
    ///   port writes the pseudo-header's sum to the field, and requests a new checksum.
    fn correct(&mut self, place: Range<usize>, request: TxMeta) -> Result<(), PortError> {
        let refused = PortError::Lost(Loss::Unsupported);
        let mut frame = self.frame.frame();
        let Some(segments) = TunnelSegmenter::new(&mut frame).map_err(|_| refused)? else {
            // With an IPv6 routing header, the checksum covers the final destination, which this code does not
            // determine. Leave frames with IPv4 options or extension headers unchanged.
            if frame.layout().is_ok_and(|layout| !layout.network_options)
                && let Some(partial) = frame.make_partial()
                && request.checksum.is_none_or(|asked| asked == partial)
            {
                self.frame.set(place, TxMeta { checksum: Some(partial), ..request });
            }
            return Ok(());
        };
        let tunnel = self.tunnel.get_or_insert_with(|| {
            let (frame, receive_at) = frame_memory(self.frame_len_max);
            Box::new(Tunnelled { frame, receive_at, segments: None })
        });
        std::mem::swap(&mut self.frame, &mut tunnel.frame);
        std::mem::swap(&mut self.receive_at, &mut tunnel.receive_at);
        tunnel.segments = Some(segments);
        if self.next_of_tunnel() { Ok(()) } else { Err(refused) }
    }

    /// Writes the next segment of a tunnelled super-frame into `frame`. Returns false if no segment is left.
    fn next_of_tunnel(&mut self) -> bool {
        let Some(Tunnelled { frame, segments, .. }) = self.tunnel.as_deref_mut() else { return false };
        let Some(rest) = segments else { return false };
        let out = &mut self.frame.memory_mut()[self.receive_at..self.receive_at + self.frame_len_max];
        let next = rest.write_next(&mut frame.frame(), out);
        match next {
            Some((len, request)) => self.frame.set(self.receive_at..self.receive_at + len, request),
            None => *segments = None,
        }
        next.is_some()
    }

    /// Translates the error of a system call. The kernel reports `ENETDOWN` once when the interface goes down,
    /// including just before the interface is deleted.
    fn error(&mut self, errno: i32) -> PortError {
        self.is_down |= errno == libc::ENETDOWN;
        if self.is_down && !socket::is_bound(self.as_fd()) {
            return PortError::Closed(libc::ENODEV);
        }
        match errno {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => PortError::Full,
            libc::ENXIO | libc::ENODEV | libc::EBADF => PortError::Closed(errno),
            other => PortError::Refused(other),
        }
    }
}

/// Adjusts a partial checksum for a VLAN tag inserted before the checksummed bytes.
fn after_tag(partial: PartialChecksum) -> Result<PartialChecksum, PortError> {
    let start = partial.start.checked_add(VLAN_TAG_LEN as u16).ok_or(PortError::Refused(libc::EINVAL))?;
    Ok(PartialChecksum { start, ..partial })
}

/// Converts a vnet header between the machine's byte order and little-endian. A packet socket uses the machine's byte
/// order (`vio_le` in Linux `net/packet/af_packet.c`); [`vnet_hdr`](crate::vnet_hdr) uses little-endian.
fn in_other_order(mut header: [u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    if cfg!(target_endian = "big") {
        header[2..].chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    header
}

impl InPlace for PacketQueue {}

impl HostPort for PacketQueue {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        if self.next_of_tunnel() {
            return Ok(true);
        }
        loop {
            let mut header = [0; HEADER_LEN];
            let fd = self.shared.fds[self.index].as_fd();
            let frame = &mut self.frame.memory_mut()[self.receive_at..self.receive_at + self.frame_len_max];
            match socket::receive(fd, &mut header[..self.shared.header_len], frame) {
                Ok(received) if received.is_outgoing => {}
                Ok(received) => {
                    self.is_down = false;
                    return self.accept(&header, &received).map(|()| true);
                }
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // `EINVAL` is the only error that loses a frame: the kernel frees a frame with an offload that a vnet
                // header cannot express (`virtio_net_hdr_from_skb`).
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Err(PortError::Lost(Loss::Unsupported)),
                Err(e) => match self.error(e.raw_os_error().unwrap_or(libc::EIO)) {
                    PortError::Full | PortError::Refused(libc::ENETDOWN) => return Ok(false),
                    other => return Err(other),
                },
            }
        }
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.frame_with_tag(change)
    }

    #[inline]
    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let header = in_other_order(encode_rx(meta));
        loop {
            let fd = self.shared.fds[self.index].as_fd();
            match socket::send(fd, &header[..self.shared.header_len], frame) {
                Ok(()) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) => return Err(self.error(e.raw_os_error().unwrap_or(libc::EIO))),
            }
        }
    }

    fn accepts(&self) -> Offloads {
        self.shared.accepts
    }

    /// Returns false. The flag `DATA_VALID` in the vnet header would mark a checksum as verified. A frame to be
    /// transmitted, however, needs a correct or a partial checksum.
    fn honours_data_valid(&self) -> bool {
        false
    }
}

impl HostIo for PacketQueue {
    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        if !is_held {
            watch(self.as_fd());
        }
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fds[self.index].as_fd()
    }
}
