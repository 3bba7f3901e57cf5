//! Wrappers of a host: they deliver received frames in the wrong order, or with a wrong checksum verdict. Transmitted
//! frames are unchanged.

use super::config::{VerdictConfig, WrongVerdict};
use crate::common::copied;
use offramp_adapter::host_io::HostIo;
use offramp_adapter::pair::PortControl;
use offramp_adapter::pass_on;
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::stats::Direction;
use offramp_offload::checksum;
use offramp_offload::frame::Frame;
use offramp_offload::layout::Transport;
use offramp_offload::meta::{ChecksumState, RxMeta};
use std::sync::Arc;

/// The error number for a frame marked as bad: Linux's `EBADMSG`.
const BAD_MESSAGE: i32 = 74;
/// Offset of the sequence number in a TCP header (RFC 9293 3.1).
const TCP_SEQUENCE: std::ops::Range<usize> = 4..8;

/// A host that receives each group of frames in reverse order. The frames left at the end of a batch also form a group.
///
/// A frame counts as delivered as soon as it belongs to a group. If the host refuses the frame when the whole group is
/// delivered, the counters are corrected, and the frame counts as lost. The host is interrupted even if it has refused
/// frames.
#[derive(Debug)]
pub struct Reverse<H> {
    /// The wrapped host.
    pub host: H,
    group: usize,
    gathered: Vec<(RxMeta, Vec<u8>)>,
    free: Vec<Vec<u8>>,
    control: Arc<PortControl>,
    queue: usize,
}

impl<H: HostPort> Reverse<H> {
    /// Wraps a host, and reverses the order of the frames in each group of `group` frames. If `group` is `None`, 0 or
    /// 1, the order stays unchanged. `queue` of `control` has the counters of this host's frames.
    pub fn new(host: H, group: Option<usize>, control: &Arc<PortControl>, queue: usize) -> Self {
        let (group, control) = (group.unwrap_or(1), Arc::clone(control));
        Self { host, group, gathered: Vec::new(), free: Vec::new(), control, queue }
    }

    /// Delivers the gathered frames to the host, the last frame first.
    fn release(&mut self) {
        let stats = &self.control.queues()[self.queue].receive;
        while let Some((meta, frame)) = self.gathered.pop() {
            if let Err(error) = self.host.rx_deliver(&meta, &frame) {
                lose_given(stats, &meta, frame.len(), error);
            }
            self.free.push(frame);
        }
    }
}

/// Corrects the counters for a frame refused by the host: the frame was counted as delivered, and is now counted as
/// lost.
fn lose_given(stats: &Direction, meta: &RxMeta, len: usize, error: PortError) {
    stats.frames_out.sub(u64::from(meta.segments));
    stats.bytes_out.sub(len as u64);
    stats.host_frames.sub(1);
    // A wrong checksum was already counted when the frame was counted as delivered.
    let meta = RxMeta { checksum: ChecksumState::Unknown, ..*meta };
    stats.given(&meta, len, Err(error.loss()));
}

impl<H> InPlace for Reverse<H> {}

impl<H: HostIo> HostIo for Reverse<H> {
    pass_on!(host: arm disarm watch is_unannounced);
}

impl<H: HostPort> HostPort for Reverse<H> {
    pass_on!(host: tx_next tx_hold tx_frame tx_frame_with_tag interrupts accepts honours_data_valid);

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if self.gathered.len() + 1 < self.group {
            self.gathered.push((*meta, copied(&mut self.free, frame)));
            return Ok(());
        }
        let outcome = self.host.rx_deliver(meta, frame);
        self.release();
        outcome
    }

    fn rx_flush(&mut self, now_ns: u64) {
        self.release();
        self.host.rx_flush(now_ns);
    }
}

/// A host behind an adapter's faulty checksum unit. The unit gives a wrong verdict on each frame whose checksum over
/// payload and TCP sequence number is a multiple of [`VerdictConfig::one_in`]. A retransmission of the same bytes gets
/// the wrong verdict again, so the TCP connection stalls forever (claim R8 of `offramp-model`).
///
/// Without `rx-checksum` there are no verdicts, and every frame passes. Coalesced frames share one verdict. Only
/// without coalescing is a retransmission certain to get the wrong verdict again.
#[derive(Debug)]
pub struct VerdictFault<H> {
    /// The wrapped host.
    pub host: H,
    config: Option<VerdictConfig>,
    copy: Vec<u8>,
    wrong: u64,
}

impl<H: HostPort> VerdictFault<H> {
    /// Wraps `host`. If `config` is `None`, no verdict is wrong.
    pub fn new(host: H, config: Option<VerdictConfig>) -> Self {
        Self { host, config, copy: Vec::new(), wrong: 0 }
    }

    /// Returns the number of wrong verdicts.
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    fn deliver_as_good(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if self.host.honours_data_valid() {
            return self.host.rx_deliver(&RxMeta { checksum: ChecksumState::Good, ..*meta }, frame);
        }
        let mut marked = Frame::received(&mut self.copy);
        let (Some(partial), Ok(layout)) = (marked.make_partial(), marked.layout()) else {
            return self.host.rx_deliver(meta, frame);
        };
        let frame = &marked.bytes()[..layout.packet_end];
        self.host.rx_deliver(&RxMeta { checksum: ChecksumState::Partial(partial), ..*meta }, frame)
    }

    /// Returns whether the checksum unit gives a wrong verdict on the frame. If a wrong verdict is possible, copies the
    /// frame into `self.copy`.
    fn is_judged_wrongly(&mut self, meta: &RxMeta, frame: &[u8]) -> bool {
        let Some(config) = self.config.filter(|config| may_be_wrong(config.wrong, meta.checksum)) else {
            return false;
        };
        self.copy.clear();
        self.copy.extend_from_slice(frame);
        sum_of(&Frame::received(&mut self.copy)).is_some_and(|sum| sum.is_multiple_of(u64::from(config.one_in.max(1))))
    }
}

impl<H> InPlace for VerdictFault<H> {}

impl<H: HostIo> HostIo for VerdictFault<H> {
    pass_on!(host: arm disarm watch is_unannounced);
}

impl<H: HostPort> HostPort for VerdictFault<H> {
    pass_on!(host: tx_next tx_hold tx_frame tx_frame_with_tag rx_flush interrupts accepts honours_data_valid);

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if !self.is_judged_wrongly(meta, frame) {
            return self.host.rx_deliver(meta, frame);
        }
        self.wrong += 1;
        match meta.checksum {
            ChecksumState::Bad => self.deliver_as_good(meta, frame),
            _ => Err(PortError::Refused(BAD_MESSAGE)),
        }
    }
}

fn may_be_wrong(wrong: WrongVerdict, verdict: ChecksumState) -> bool {
    match (wrong, verdict) {
        (_, ChecksumState::Unknown) => false,
        (WrongVerdict::GoodIsBad, verdict) => verdict != ChecksumState::Bad,
        (WrongVerdict::BadIsGood, verdict) => verdict == ChecksumState::Bad,
    }
}

/// Returns the checksum over payload and TCP sequence number, as the criterion for a wrong verdict. Returns `None` for
/// a frame without a UDP or TCP checksum. Also returns `None` for a frame without payload, because a sender retransmits
/// only payload.
fn sum_of(frame: &Frame<'_>) -> Option<u64> {
    let (bytes, layout) = (frame.bytes(), frame.layout().ok()?);
    let is_summed = matches!(layout.transport, Transport::Tcp | Transport::Udp) && !layout.fragment;
    if !is_summed || layout.payload_start >= layout.packet_end {
        return None;
    }
    let payload = u64::from(checksum::sum(&bytes[layout.payload_start..layout.packet_end]).fold());
    let sequence = match layout.transport {
        Transport::Tcp => u64::from(checksum::sum(&bytes[layout.transport_start..][TCP_SEQUENCE]).fold()),
        _ => 0,
    };
    Some(payload + sequence)
}
