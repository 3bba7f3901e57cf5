//! The receiver of the frames from a [`Coalescer`](super::Coalescer), and the memory lent by the receiver.

use crate::checksum::{Room, Sum};
use crate::meta::RxMeta;

/// Writes payload to frame `slot` of `out`, and keeps the payload if the checksum over payload and `headers_sum` is
/// correct. Returns whether the checksum is correct, or `None` if the receiver has no room.
#[inline]
pub(super) fn append(out: &mut impl Sink, slot: usize, payload: &[u8], headers_sum: Sum) -> Option<bool> {
    let sum = out.room(slot, payload.len(), 1).copy_and_sum(payload);
    let is_right = sum.map(|sum| sum.plus(headers_sum).is_right());
    out.fill(slot, if is_right == Some(true) { payload.len() } else { 0 });
    is_right
}

/// The receiver of the frames from a [`Coalescer`](super::Coalescer). A closure can be a receiver, but lends no memory.
/// With a closure, aggregates use the coalescer's memory.
///
/// A receiver can lend its own memory, so that the payload is copied only once:
///
/// ```text
/// reserve(slot, head)            a frame begins
/// room(slot, len, count)         for each run of segments: room for up to `count` payloads of `len` bytes, which are
///                                copied into place and verified in one pass
/// fill(slot, len)                the bytes of the room that belong to the frame
/// commit(slot, meta, head, len)  the headers, repaired, go in front; only now may the receiver see the frame
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

    /// Returns the memory behind the bytes of frame `slot`, with room for up to `count` payloads of `len` bytes. The
    /// room is shorter if the receiver has less memory, and can be longer. The next call must be [`Sink::fill`].
    fn room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        let _ = (slot, len, count);
        Room::default()
    }

    /// Appends the first `len` bytes of the last [`Sink::room`] to frame `slot`.
    fn fill(&mut self, slot: usize, len: usize) {
        let _ = (slot, len);
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
