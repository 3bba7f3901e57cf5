//! Keepalives of an idle association behind a NAT (RFC 3948 4): if it has sent no packet for its interval, a datagram
//! of one byte goes, with its addresses and ports.
//!
//! It is made from the last sealed packet, with its Ethernet header: before the first one the NAT has no entry.

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
/// Retry interval if the wire had no room, nanoseconds: soon beside any keepalive's pause, seldom beside frames.
const RETRY_NS: u64 = 10_000_000;
/// Most bytes copied of a sealed frame: Ethernet with tags, IP with options and UDP, and some extension headers of IPv6
/// in transport mode. If the headers are longer, there is no keepalive.
const HEADERS_LEN_MAX: usize = 192;

/// For a frame cut off after its headers: ignores its length fields, as for a super-frame.
const HEADERS_ALONE: TxMeta =
    TxMeta { checksum: None, segmentation: Some(Segmentation::new(SegmentationKind::Udp, 0)) };

/// The keepalives of one association, shared by its queue pairs and by its successor in a rekey: the NAT can tell none
/// of them apart.
#[derive(Debug)]
pub(super) struct Keepalive {
    gap_ns: u64,
    /// Keepalives so far.
    pub(super) sent: AtomicU64,
    last: Mutex<Last>,
}

/// The last packet sent.
#[derive(Debug, Default)]
struct Last {
    /// `None` before the first packet.
    at_ns: Option<u64>,
    /// Enough of the last sealed frame to make a keepalive of: its headers.
    headers: Vec<u8>,
}

impl Keepalive {
    pub(super) fn new(seconds: u32) -> Self {
        let gap_ns = u64::from(seconds) * NS_PER_SECOND;
        Self { gap_ns, sent: AtomicU64::new(0), last: Mutex::default() }
    }

    /// Notes that a frame was sealed. Returns when a keepalive is due if no other frame goes.
    fn sealed(&self, frame: &[u8], now_ns: u64) -> u64 {
        let mut last = lock(&self.last);
        // Time of several threads is read before they come here.
        let at_ns = last.at_ns.map_or(now_ns, |at_ns| at_ns.max(now_ns));
        last.at_ns = Some(at_ns);
        last.headers.clear();
        last.headers.extend_from_slice(&frame[..frame.len().min(HEADERS_LEN_MAX)]);
        at_ns.saturating_add(self.gap_ns)
    }

    fn due_ns(&self) -> Option<u64> {
        lock(&self.last).at_ns.map(|at_ns| at_ns.saturating_add(self.gap_ns))
    }

    /// Makes a keepalive if one is due, for one of several threads only.
    fn take(&self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let mut last = lock(&self.last);
        if last.at_ns.is_none_or(|at_ns| now_ns < at_ns.saturating_add(self.gap_ns)) {
            return false;
        }
        last.at_ns = Some(now_ns);
        write_keepalive(&Frame::new(&mut last.headers, HEADERS_ALONE), out).is_some()
    }

    /// Makes a keepalive due again a little later, after it found no room.
    fn put_back(&self, now_ns: u64) {
        lock(&self.last).at_ns = Some((now_ns + RETRY_NS).saturating_sub(self.gap_ns));
    }
}

/// The keepalives of one queue pair.
#[derive(Debug)]
pub(crate) struct Keepalives {
    /// As the outbound associations are numbered.
    associations: Vec<Arc<Outbound>>,
    frame: Vec<u8>,
    /// Time of the next check by [`Keepalives::send`]; other queue pairs may have sent meanwhile.
    pub(crate) next_due_ns: Option<u64>,
}

impl Keepalives {
    /// Creates the keepalives of a queue pair; `None` when no association sends any.
    pub(crate) fn new(in_force: &Arc<InForce>) -> Option<Box<Self>> {
        let associations = in_force.outbound.clone();
        let next_due_ns = associations.iter().filter_map(|sa| sa.keepalive.as_ref()?.due_ns()).min();
        let is_any = associations.iter().any(|sa| sa.keepalive.as_ref().is_some());
        is_any.then(|| Box::new(Self { associations, frame: Vec::new(), next_due_ns }))
    }

    /// Notes that frames of association number `by` were sealed, all with the headers of `frame`, the first one.
    pub(crate) fn sealed(&mut self, by: usize, frame: &[u8], now_ns: u64) {
        let Some(keepalive) = self.associations.get(by).and_then(|sa| sa.keepalive.as_ref()) else { return };
        let due_ns = keepalive.sealed(frame, now_ns);
        // A later one is found when the time of this one has come.
        self.next_due_ns = Some(self.next_due_ns.map_or(due_ns, |next| next.min(due_ns)));
    }

    /// Brings due keepalives to `send`, a function that returns whether there was room.
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
        // An ended association needs no keepalives.
        let alive = self.associations.iter().filter(|sa| sa.shared.ended().is_none());
        self.next_due_ns = alive.filter_map(|sa| sa.keepalive.as_ref()?.due_ns()).min();
    }
}
