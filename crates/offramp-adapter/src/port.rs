//! The two sides of an adapter: a host, and a wire.
//!
//! The owner of a buffer lends it. A host port lends the frame it fetched last; a wire port lends the buffer for the
//! next frame and the frame that arrived last. Nothing is copied to change hands, and nothing is allocated per frame.
//! Time is an argument, in nanoseconds since any fixed moment.
//!
//! One thread owns a port. This is its life:
//!
//! ```text
//! loop:
//!     now_ns = clock
//!     while budget and port.tx_next(now_ns)?:     the next frame that the host sends
//!         bytes = port.tx_unasked()?              no request: sent unparsed, if the adapter changes nothing
//!         frame = port.tx_frame()                 otherwise parsed, and lent until the next tx_next
//!         plan, route, deliver or put on the wire
//!     for each frame for the host:
//!         port.rx_deliver(meta, bytes)?           Full: lost and counted; Closed: the port ends
//!         or in place, where the port lends its host's buffers, several frames at a time:
//!         port.rx_reserve(slot, head)             a frame begins
//!         port.rx_append(slot, payload, checksum) copied and verified in one pass
//!         port.rx_commit(slot, meta, head)?       headers last; then as rx_deliver
//!         port.rx_wants_commit()                  the host waits for its buffers: commit all of them
//!     port.rx_flush(now_ns)                       the host sees everything, at the latest now
//!     port.interrupts(n)?.send_due(now_ns)        where interrupts are apart from handing over
//!     nothing moved: arm, poll once more, sleep, disarm
//! ```

use crate::moderation::ModerationConfig;
use crate::stats::{Direction, Loss};
use crate::steering::Steering;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Sum;
use offramp_offload::coalesce::Appended;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::vlan::TagChange;
use std::task::Waker;

/// The reason a port did not take or give a frame. The frame is lost; the caller counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The other side has no room now.
    #[error("no room")]
    Full,
    /// The other side refuses this frame (its error number).
    #[error("refused (error number {0})")]
    Refused(i32),
    /// The frame is lost between the other side and this port.
    #[error("lost ({})", .0.name())]
    Lost(Loss),
    /// The other side filters such frames.
    #[error("filtered by the host")]
    Filtered,
    /// The other side is gone and will not come back; the port is of no more use.
    #[error("closed (error number {0})")]
    Closed(i32),
}

impl PortError {
    /// Returns the loss reason of an undelivered frame.
    pub fn loss(self) -> Loss {
        match self {
            Self::Full => Loss::Drop,
            Self::Filtered => Loss::GuestFilter,
            Self::Lost(reason) => reason,
            Self::Refused(_) | Self::Closed(_) => Loss::HostRefused,
        }
    }
}

/// Interrupts sent to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounts {
    /// Interrupts for received frames.
    pub receive: u64,
    /// Interrupts for transmit completions: the host's buffers are free again.
    pub transmit: u64,
}

/// The interrupts of a host with access to its frames before an interrupt.
///
/// A guest shares its rings: it sees the frames that [`HostPort::rx_flush`] publishes, with or without an interrupt. A
/// polling guest needs none. So moderation defers no frame here, only the interrupt. Each queue of the port is
/// moderated for itself, received frames and transmit completions apart, and frames count as they are handed over: a
/// super-frame is one, as the host works on it as one.
pub trait Interrupts {
    /// Changes the moderation, for frames already published, too. With [`Policy::Off`](crate::moderation::Policy::Off),
    /// the initial state, each publication interrupts the host; a deferred interrupt is sent at once.
    fn moderate(&mut self, config: &ModerationConfig);

    /// Sends the interrupts due at `now_ns`. Called after each batch, and at [`Interrupts::next_due_ns`].
    ///
    /// Returns the interrupts sent since the last call, undeferred ones included.
    fn send_due(&mut self, now_ns: u64) -> InterruptCounts;

    /// Returns one wait of an oldest received frame for a deferred interrupt sent since the last call, nanoseconds.
    /// `None` after all were returned.
    fn take_wait_ns(&mut self) -> Option<u64> {
        None
    }

    /// Returns the time of the next interrupt if no more frames are published, as of the last [`Interrupts::send_due`].
    fn next_due_ns(&self) -> Option<u64>;

    /// Returns the known cost of an interrupt for received frames, nanoseconds; 0 without moderation.
    fn cost_ns(&self) -> u64;

    /// Returns the maximum wait of an interrupt for a received frame, nanoseconds.
    fn wait_max_ns(&self) -> u64;
}

/// Receive in place: frames are written into the host's own buffers. A port without such buffers implements nothing of
/// it.
#[auto_impl::auto_impl(Box)]
pub trait InPlace {
    /// Begins a frame written in place, in the host's own buffers, with room for `head` at its front. These are its
    /// headers; others of the same length and addresses replace them at the commit. `slot` names the frame until then.
    /// `false`, also from a port without such buffers: the frame is built in the adapter's memory and delivered by
    /// [`HostPort::rx_deliver`].
    #[inline]
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let _ = (slot, head);
        false
    }

    /// Appends payload to the frame of a slot if its checksum is right together with `headers_sum`. The host sees
    /// nothing of it yet.
    #[inline]
    fn rx_append(&mut self, slot: usize, payload: &[u8], headers_sum: Sum) -> Appended {
        let _ = (slot, payload, headers_sum);
        Appended::NoRoom
    }

    /// Completes the frame of a slot: `head` goes to its front, and it is delivered. It has `len` bytes, headers
    /// included.
    ///
    /// # Errors
    /// As for [`HostPort::rx_deliver`].
    #[inline]
    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        let _ = (slot, meta, head, len);
        Err(PortError::Full)
    }

    /// Returns whether frames written in place should be committed now: the host waits for its buffers.
    #[inline]
    fn rx_wants_commit(&self) -> bool {
        false
    }
}

/// The host's side of one queue pair: a kernel behind a TAP, a guest, a program.
#[auto_impl::auto_impl(Box)]
pub trait HostPort: InPlace {
    /// Fetches the next frame from the host. Returns `false` if there was none. [`HostPort::tx_frame`] lends it until
    /// the next call.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone; [`PortError::Refused`] for a frame the port cannot express
    /// (it is lost).
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError>;

    /// Lends the frame fetched last, with the host's requests for it; an empty one before the first. It lies in the
    /// port's own memory, never in a guest's shared memory: it cannot change, and ESP overwrites its sealed parts.
    fn tx_frame(&mut self) -> Frame<'_>;

    /// Lends the same frame with another VLAN tag, until it is lent otherwise. `None` if the port cannot insert the
    /// tag: the frame is lost. A port with a [`FrameBuffer`](offramp_offload::frame::FrameBuffer) can.
    #[inline]
    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        let _ = change;
        None
    }

    /// Returns the bytes of the frame fetched last if the host requests nothing for it: an unchanged frame need not be
    /// parsed. `None` otherwise, or where the port has every frame parsed.
    #[inline]
    fn tx_unasked(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the cost of the last [`HostPort::tx_next`] or [`HostPort::tx_hold`] beyond the frame's bytes, in bytes
    /// of equal cost; also after a refused frame or none. The turn pays it: a guest may give a frame in a thousand
    /// pieces.
    #[inline]
    fn tx_cost_bytes(&self) -> usize {
        0
    }

    /// Returns the queue of the frame fetched last, of a host whose queues count by themselves.
    #[inline]
    fn tx_queue(&self) -> usize {
        0
    }

    /// Replaces [`HostPort::tx_next`] while the host is at its limit: a port does the other work of that call.
    #[inline]
    fn tx_hold(&mut self) {}

    /// Returns the steering of a port that chooses among its own receive queues by flow. The flow's hash of a frame
    /// comes back as [`RxMeta::hash`], also with the frames coalesced from this one or segmented out of it.
    #[inline]
    fn steering(&self) -> Option<&Steering> {
        None
    }

    /// Hands a frame to the host.
    ///
    /// # Errors
    /// When the host has no room, refuses the frame or is gone: the frame is lost.
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError>;

    /// Returns the queue of the frame handed over last, as [`HostPort::tx_queue`].
    #[inline]
    fn rx_queue(&self) -> usize {
        0
    }

    /// Reports a frame beyond the port's limit, lost as its queue is full. On the wire it is `frames` with `bytes` in
    /// all. The port's counters include it; a host may count it for each of its own queues.
    #[inline]
    fn rx_lost_to_limit(&mut self, frame: &Frame<'_>, frames: usize, bytes: usize) {
        let _ = (frame, frames, bytes);
    }

    /// Ends a batch: the host sees all delivered frames, at the latest now. A port with one system call per frame has
    /// nothing to do here.
    #[inline]
    fn rx_flush(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Returns the interrupts of a queue if they are separate from delivery; `None` after the last queue. `None` for
    /// the first one, always: delivery is the interrupt, and moderation decides its time.
    fn interrupts(&mut self, queue: usize) -> Option<&mut dyn Interrupts> {
        let _ = queue;
        None
    }

    /// Returns the offloads the host can use now, in both directions.
    fn accepts(&self) -> Offloads;

    /// Returns whether the host understands [`ChecksumState::Good`](offramp_offload::meta::ChecksumState::Good). A
    /// Linux TAP does not: it takes only a partial checksum as a verdict.
    fn honours_data_valid(&self) -> bool {
        true
    }
}

/// Buffers lent by a wire, side by side.
#[derive(Debug)]
pub struct Loan<'a> {
    /// The buffers; the last one may be shorter than `stride`.
    pub bytes: &'a mut [u8],
    /// Distance from one buffer to the next.
    pub stride: usize,
}

/// A frame not yet taken from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time of its last bit, nanoseconds; 0 if unknown to the wire.
    pub at_ns: u64,
    /// Bytes, without FCS.
    pub len: usize,
}

/// The wire's side of one queue pair.
pub trait WirePort {
    /// Returns the number of frames the wire takes now; 0 holds the host back.
    fn room(&mut self, now_ns: u64) -> usize;

    /// Lends buffers for the next frames to leave: up to `count` of `len` bytes each, as room allows. `None` without
    /// room, or if the frame is too long for the wire.
    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>>;

    /// Puts the first `count` of the lent buffers on the wire, `len` bytes of each, after all earlier ones.
    fn put(&mut self, len: usize, count: usize, now_ns: u64);

    /// Ends a batch: all frames put are on their way.
    fn flush(&mut self);

    /// Takes the next frame arrived by `now_ns`, lent until the next call.
    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]>;

    /// Returns the arrival time of the next frame on its way.
    fn next_arrival_ns(&self) -> Option<u64>;

    /// Passes each untaken frame arriving by `until_ns` to `note`, in order, without the first `skip` of them. Takes
    /// none.
    ///
    /// Returns the number of further frames the wire takes before its other end has to wait; `u32::MAX` if it never has
    /// to, or if unknown.
    fn arrivals(&self, skip: usize, until_ns: u64, note: impl FnMut(Arrival)) -> u32;

    /// Advances the wire's time to `now_ns`. Counts in `stats` the frames lost on this side since the last call, each
    /// as come in and lost ([`Direction::lose_on_line`]), and the contents of the adapter's memory.
    ///
    /// Returns the number of frames gone since the last call, of those [`WirePort::arrivals`] may have passed. They
    /// were the oldest ones. A wire without loss after arrival, as a cable, has nothing to do here.
    #[inline]
    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        let _ = (now_ns, stats);
        0
    }
}

/// A wire a thread can sleep on. It knows its sending times and its reads.
pub trait Line: WirePort {
    /// Wakes `waker` when the other end puts a frame or makes room. The caller must poll once more before it sleeps.
    fn register(&self, waker: &Waker);

    /// Undoes [`Line::register`].
    fn unregister(&self);

    /// Returns the time at which a wire without room by its rate has some again, with no action of its other end.
    /// `None` if it has room now, or if only the other end can make it.
    fn next_room_ns(&self, now_ns: u64) -> Option<u64>;

    /// Returns the time at which the last bit of all frames put so far leaves, nanoseconds; in the past if the wire is
    /// free.
    fn sent_ns(&self) -> u64;

    /// Returns whether no frame is left to be taken, arrived or on its way.
    fn is_idle(&self) -> bool;
}
