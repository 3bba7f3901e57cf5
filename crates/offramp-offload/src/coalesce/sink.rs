//! The receiver of the frames from a [`Coalescer`](super::Coalescer), and the memory it lends.

use crate::checksum::Sum;
use crate::meta::RxMeta;

/// The result of appending payload to a frame in lent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is part of the frame.
    Kept,
    /// Its checksum is wrong. The frame is as it was.
    Bad,
    /// The memory has no room for it. The frame is as it was.
    NoRoom,
}

/// The receiver of the frames from a [`Coalescer`](super::Coalescer). A closure may be one; it lends no memory, so
/// aggregates lie in that of the coalescer.
///
/// A receiver with memory of its own lends it, so that payload is copied once:
///
/// ```text
/// reserve(slot, head)                  a frame begins
/// append(slot, payload, headers_sum)   for each segment: copied into place and verified in one pass
/// commit(slot, meta, head, len)        the headers, repaired, go in front; only now may the receiver see the frame
/// ```
pub trait Sink {
    /// Takes a frame in the coalescer's memory, or the one just pushed.
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]);

    /// Begins frame `slot` (below [`CoalesceConfig::flows_max`](super::CoalesceConfig::flows_max)) in the receiver's
    /// own memory, with room for `head`, its headers so far, left free at its front. Drops any uncommitted frame of
    /// that slot. Returns false if it lends nothing.
    fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let _ = (slot, head);
        false
    }

    /// Appends payload to frame `slot` if, with `headers_sum`, its checksum is right.
    fn append(&mut self, slot: usize, payload: &[u8], headers_sum: Sum) -> Appended {
        let _ = (slot, payload, headers_sum);
        Appended::NoRoom
    }

    /// Ends frame `slot`: writes `head` to its front. It is `len` bytes long, headers included.
    fn commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) {
        let _ = (slot, meta, head, len);
    }
}

impl<F: FnMut(&RxMeta, &[u8])> Sink for F {
    #[inline]
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) {
        self(meta, frame);
    }
}
