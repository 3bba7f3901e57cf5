//! Keepalives of an idle association behind a NAT (RFC 3948 4). If the association has sent no packet for its keepalive
//! interval, the adapter sends a datagram of one byte with the association's addresses and ports.
//!
//! A keepalive is made from the headers of the last sealed packet, including the Ethernet header. Before the first
//! sealed packet, no keepalive is sent, because the NAT has no entry to keep alive.

use super::InForce;
use super::association::Outbound;
use crate::stats::Direction;
use offramp_offload::esp::write_keepalive;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{Segmentation, SegmentationKind, TxMeta};
use offramp_offload::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// Time after which a keepalive is sent again if the wire had no room for the keepalive, in nanoseconds. The time is
/// short compared with keepalive intervals, and long compared with the time between frames.
const RETRY_NS: u64 = 10_000_000;
/// Maximum bytes copied from a sealed frame: Ethernet with tags, IP with options and UDP, and some IPv6 extension
/// headers in transport mode. If the headers of a frame are longer, no keepalive is sent.
const HEADERS_LEN_MAX: usize = 192;

/// Metadata of a frame truncated after its headers: the length fields in the headers are ignored, as for a super-frame.
const HEADERS_ALONE: TxMeta =
    TxMeta { checksum: None, segmentation: Some(Segmentation::new(SegmentationKind::Udp, 0)) };

/// The keepalives of one association. All queue pairs of the association share the keepalives, and a rekey passes the
/// keepalives on to the new association. A NAT cannot distinguish the new association from the old association.
#[derive(Debug)]
pub(super) struct Keepalive {
    gap_ns: u64,
    /// Number of keepalives sent so far.
    pub(super) sent: AtomicU64,
    last: Mutex<Last>,
}

/// The last packet that an association sent.
#[derive(Debug, Default)]
struct Last {
    /// Time of the last sent packet, in nanoseconds; `None` before the first packet.
    at_ns: Option<u64>,
    /// The headers of the last sealed frame, from which a keepalive is made.
    headers: Vec<u8>,
}

impl Keepalive {
    pub(super) fn new(seconds: u32) -> Self {
        let gap_ns = u64::from(seconds) * NS_PER_SECOND;
        Self { gap_ns, sent: AtomicU64::new(0), last: Mutex::default() }
    }

    /// Records a sealed frame. Returns the time of the next keepalive if no further frame is sent.
    fn sealed(&self, frame: &[u8], now_ns: u64) -> u64 {
        let mut last = lock(&self.last);
        // Another thread may have read a later time than this thread, and may still have taken the lock first.
        let at_ns = last.at_ns.map_or(now_ns, |at_ns| at_ns.max(now_ns));
        last.at_ns = Some(at_ns);
        last.headers.clear();
        last.headers.extend_from_slice(&frame[..frame.len().min(HEADERS_LEN_MAX)]);
        at_ns.saturating_add(self.gap_ns)
    }

    fn due_ns(&self) -> Option<u64> {
        lock(&self.last).at_ns.map(|at_ns| at_ns.saturating_add(self.gap_ns))
    }

    /// Writes a keepalive to `out` if a keepalive is due. Returns whether a keepalive was written. If several threads
    /// call this method at the same time, only one thread gets the keepalive.
    fn take(&self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let mut last = lock(&self.last);
        if last.at_ns.is_none_or(|at_ns| now_ns < at_ns.saturating_add(self.gap_ns)) {
            return false;
        }
        last.at_ns = Some(now_ns);
        write_keepalive(&Frame::new(&mut last.headers, HEADERS_ALONE), out).is_some()
    }

    /// Makes a keepalive due again after the retry interval, because the wire had no room.
    fn put_back(&self, now_ns: u64) {
        lock(&self.last).at_ns = Some((now_ns + RETRY_NS).saturating_sub(self.gap_ns));
    }
}

/// The keepalives of one queue pair.
#[derive(Debug)]
pub(crate) struct Keepalives {
    /// The outbound associations. [`Keepalives::sealed`] takes an index into this list.
    associations: Vec<Arc<Outbound>>,
    frame: Vec<u8>,
    /// Time at which [`Keepalives::send`] next checks whether a keepalive is due, in nanoseconds. If another queue pair
    /// has sent a packet in the meantime, the keepalive is due only later.
    pub(crate) next_due_ns: Option<u64>,
}

impl Keepalives {
    /// Creates the keepalives of a queue pair; `None` if no association sends keepalives.
    pub(crate) fn new(in_force: &Arc<InForce>) -> Option<Box<Self>> {
        let associations = in_force.outbound.clone();
        let next_due_ns = associations.iter().filter_map(|sa| sa.keepalive.as_ref()?.due_ns()).min();
        let is_any = associations.iter().any(|sa| sa.keepalive.as_ref().is_some());
        is_any.then(|| Box::new(Self { associations, frame: Vec::new(), next_due_ns }))
    }

    /// Records that the association with index `by` sealed frames. `frame` is the first sealed frame, and all sealed
    /// frames have the same headers.
    pub(crate) fn sealed(&mut self, by: usize, frame: &[u8], now_ns: u64) {
        let Some(keepalive) = self.associations.get(by).and_then(|sa| sa.keepalive.as_ref()) else { return };
        let due_ns = keepalive.sealed(frame, now_ns);
        // If a keepalive becomes due later than the stored time, [`Keepalives::send`] finds the later time when the
        // stored time is reached.
        self.next_due_ns = Some(self.next_due_ns.map_or(due_ns, |next| next.min(due_ns)));
    }

    /// Passes due keepalives to `send`, which returns whether the wire had room.
    #[inline]
    pub(crate) fn send(&mut self, stats: &Direction, now_ns: u64, send: impl FnMut(&mut [u8]) -> bool) {
        if self.next_due_ns.is_some_and(|at_ns| now_ns >= at_ns) {
            self.send_due(stats, now_ns, send);
        }
    }

    fn send_due(&mut self, stats: &Direction, now_ns: u64, mut send: impl FnMut(&mut [u8]) -> bool) {
        for sa in &self.associations {
            let Some(keepalive) = sa.keepalive.as_ref().filter(|_| sa.shared.ended().is_none()) else { continue };
            if !keepalive.take(now_ns, &mut self.frame) {
                continue;
            }
            if send(&mut self.frame) {
                keepalive.sent.fetch_add(1, Relaxed);
                stats.frames_in.add(1);
                stats.frames_out.add(1);
                stats.bytes_out.add(self.frame.len() as u64);
            } else {
                keepalive.put_back(now_ns);
            }
        }
        // An association that has ended needs no keepalives.
        let alive = self.associations.iter().filter(|sa| sa.shared.ended().is_none());
        self.next_due_ns = alive.filter_map(|sa| sa.keepalive.as_ref()?.due_ns()).min();
    }
}
