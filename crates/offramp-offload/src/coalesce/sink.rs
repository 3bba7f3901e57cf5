//! The receiver of the frames from a [`Coalescer`](super::Coalescer), and the memory lent by the receiver.

use crate::checksum::Sum;
use crate::meta::RxMeta;

/// The result of appending payload to a frame in lent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The payload was appended to the frame.
    Kept,
    /// The payload's checksum is wrong. The frame is unchanged.
    Bad,
    /// The memory has no room for the payload. The frame is unchanged.
    NoRoom,
}

/// The receiver of the frames from a [`Coalescer`](super::Coalescer). A closure can be a receiver, but lends no memory.
/// With a closure, aggregates use the coalescer's memory.
///
/// A receiver can lend its own memory, so that the payload is copied only once:
///
/// ```text
/// reserve(slot, head)                  a frame begins
/// append(slot, payload, headers_sum)   for each segment: copied into place and verified in one pass
/// commit(slot, meta, head, len)        the headers, repaired, go in front; only now may the receiver see the frame
/// ```
pub trait Sink {
    /// Receives a complete frame in the coalescer's memory, or the frame passed to `push`.
    fn deliver(&mut self, meta: &RxMeta, frame: &[u8]);

    /// Begins frame `slot` (below [`CoalesceConfig::flows_max`](super::CoalesceConfig::flows_max)) in the receiver's
    /// memory. Leaves room at the frame's front for `head`, the current headers. Drops any uncommitted frame of that
    /// slot. Returns false if the receiver lends no memory.
    fn reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let _ = (slot, head);
        false
    }

    /// Appends payload to frame `slot` if the checksum over payload and `headers_sum` is correct.
    fn append(&mut self, slot: usize, payload: &[u8], headers_sum: Sum) -> Appended {
        let _ = (slot, payload, headers_sum);
        Appended::NoRoom
    }

    /// Returns whether the caller should commit all open frames now, because the receiver waits for its memory.
    /// [`Coalescer::push`](super::Coalescer::push) does not ask.
    fn wants_commit(&self) -> bool {
        false
    }

    /// Ends frame `slot` and writes `head` to the frame's front. `len` is the frame's length in bytes, headers
    /// included.
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
