//! The two sides of an adapter: a host, and a wire.
//!
//! The owner of a buffer lends it: a host port lends the frame that it fetched last, a wire port lends the
//! buffer into which the next frame is written and the frame that arrived last. Nothing is copied to
//! change hands, and nothing is allocated per frame. Time is an argument, in nanoseconds since any
//! fixed moment.
//!
//! One thread owns a port. This is its life:
//!
//! ```text
//! loop:
//!     now_ns = clock
//!     while budget and port.tx_next(now_ns)?:     the next frame that the host sends
//!         frame = port.tx_frame()                 lent until the next tx_next
//!         plan, route, deliver or put on the wire
//!     for each frame for the host:
//!         port.rx_deliver(meta, bytes)?           Full: lost and counted; Closed: the port ends
//!         or, in place, where the port lends its host's buffers, several frames at a time:
//!         port.rx_reserve(slot, head)             a frame begins
//!         port.rx_append(slot, payload, checksum) copied and verified in one pass
//!         port.rx_commit(slot, meta, head)?       headers last; then as rx_deliver
//!         port.rx_wants_commit()                  the host waits for its buffers: commit all of them
//!     port.rx_flush(now_ns)                       the host sees everything, at the latest now
//!     port.interrupts()?.send_due(now_ns)         where interrupts are apart from handing over
//!     nothing moved: arm, poll once more, sleep, disarm
//! ```

use crate::moderation::ModerationConfig;
use crate::stats::{Direction, Loss};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Sum;
use offramp_offload::coalesce::Appended;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::vlan::TagChange;
use std::task::Waker;

/// Why a port could not do what was asked. The frame is lost and is counted by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The other side has no room now.
    #[error("no room")]
    Full,
    /// The other side refuses this frame (its error number).
    #[error("refused (error number {0})")]
    Refused(i32),
    /// The other side has said that it does not want such frames.
    #[error("filtered by the host")]
    Filtered,
    /// The other side is gone and will not come back; the port is of no more use.
    #[error("closed (error number {0})")]
    Closed(i32),
}

impl PortError {
    /// The reason under which a frame that was not delivered is counted.
    pub fn loss(self) -> Loss {
        match self {
            Self::Full => Loss::Drop,
            Self::Filtered => Loss::GuestFilter,
            Self::Refused(_) | Self::Closed(_) => Loss::HostRefused,
        }
    }
}

/// How often a host was interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounts {
    /// For frames that it was given.
    pub receive: u64,
    /// For frames that were taken from it: its buffers are free again.
    pub transmit: u64,
}

/// The interrupts of a host that sees what it is given before it is interrupted for it.
///
/// A guest shares its rings: it sees what [`HostPort::rx_flush`] shows it, with or without an interrupt, and a guest
/// that polls needs none. So moderation defers no frame here, only the interrupt. Each queue of the port is moderated for itself, received frames and transmit completions apart,
/// and frames count as they are handed over: a super-frame is one, as the host works on it as one.
pub trait Interrupts {
    /// Changes when the host is interrupted, for what it was shown already, too. With
    /// [`Policy::Off`](crate::moderation::Policy::Off), as in the beginning, it is interrupted whenever it is
    /// shown something; an interrupt that waits then is sent at once.
    fn moderate(&mut self, config: &ModerationConfig);

    /// Sends what is due at `now_ns`. Called after each batch, and at [`Interrupts::next_due_ns`].
    ///
    /// Returns how many were sent since the last time, also those that nothing held back.
    fn send_due(&mut self, now_ns: u64) -> InterruptCounts;

    /// How long the oldest received frame had waited for an interrupt that moderation deferred and that was sent since the
    /// last time, nanoseconds; `None` when that was said for each of them.
    fn take_wait_ns(&mut self) -> Option<u64> {
        None
    }

    /// When the next one is due if the host is shown nothing more, as of the last [`Interrupts::send_due`].
    fn next_due_ns(&self) -> Option<u64>;

    /// What an interrupt for received frames costs as far as that is known, nanoseconds; 0 without moderation.
    fn cost_ns(&self) -> u64;

    /// The longest that an interrupt for a received frame waits, nanoseconds.
    fn wait_max_ns(&self) -> u64;
}

/// The host's side of one queue pair: a kernel behind a TAP, a guest, a program.
#[auto_impl::auto_impl(Box)]
pub trait HostPort {
    /// Fetches the next frame that the host sends; whether there was one. [`HostPort::tx_frame`] lends it until the next
    /// call.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone; [`PortError::Refused`] for a frame that the port
    /// cannot express (it is lost).
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError>;

    /// The frame that was fetched last, with what the host asks for it; an empty one before the first. It lies in the
    /// port's own memory, never in what a guest shares: it cannot change, and ESP writes over what it has sealed of it.
    fn tx_frame(&mut self) -> Frame<'_>;

    /// The same frame with another VLAN tag, until it is lent otherwise. `None`, and the frame is lost, of a port that cannot
    /// put the tag in; one that keeps a [`FrameBuffer`](offramp_offload::frame::FrameBuffer) can.
    #[inline]
    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        let _ = change;
        None
    }

    /// The bytes of the frame that was fetched last, if the host asks nothing for it: one that goes as it is need not be
    /// parsed. `None` otherwise, or where the port has every frame parsed.
    #[inline]
    fn tx_unasked(&self) -> Option<&[u8]> {
        None
    }

    /// What fetching cost at the last [`HostPort::tx_next`] or [`HostPort::tx_hold`] beside the frame's bytes, as bytes that are
    /// carried; also if it refused the frame, or had none. A turn is charged with it: a guest may give a frame in a thousand
    /// pieces.
    #[inline]
    fn tx_cost_bytes(&self) -> usize {
        0
    }

    /// Called in place of [`HostPort::tx_next`] while the host's limit leaves its frames where they are: a port that does
    /// other work there does that.
    #[inline]
    fn tx_hold(&mut self) {}

    /// Whether [`HostPort::flow_hash`] looks into frames.
    #[inline]
    fn steers_flows(&self) -> bool {
        false
    }

    /// A number for the flow of a frame that is to be delivered, where the port chooses among receive queues of its own.
    /// It comes back as [`RxMeta::hash`], also for what was coalesced from the frame or segmented out of it.
    #[inline]
    fn flow_hash(&self, frame: &Frame<'_>) -> Option<u32> {
        let _ = frame;
        None
    }

    /// Hands a frame to the host.
    ///
    /// # Errors
    /// When the host has no room, refuses the frame or is gone: the frame is lost.
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError>;

    /// Begins a frame that is written in place, into the host's own buffers, with room for `head` left free at its front:
    /// these are its headers, and others of the same length and addresses follow. `slot` names it until it is committed.
    /// `false`, as of a port without such buffers: the frame is built in the adapter's memory and delivered by
    /// [`HostPort::rx_deliver`].
    #[inline]
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let _ = (slot, head);
        false
    }

    /// Appends payload to the frame of a slot if its checksum is right together with `headers_sum`. The host sees nothing
    /// of it yet.
    #[inline]
    fn rx_append(&mut self, slot: usize, payload: &[u8], headers_sum: Sum) -> Appended {
        let _ = (slot, payload, headers_sum);
        Appended::NoRoom
    }

    /// Completes the frame of a slot: `head` goes to its front, and it is delivered. It has `len` bytes, headers included.
    ///
    /// # Errors
    /// As for [`HostPort::rx_deliver`].
    #[inline]
    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        let _ = (slot, meta, head, len);
        Err(PortError::Full)
    }

    /// Names a frame that exceeds the limit of the port, and is lost as the queue for it is full. On the wire it is `frames`
    /// with `bytes` in all. The port's counters have it; a host may count it for each of its own queues.
    #[inline]
    fn rx_lost_to_limit(&mut self, frame: &Frame<'_>, frames: usize, bytes: usize) {
        let _ = (frame, frames, bytes);
    }

    /// Whether frames that are written in place should be committed now: they keep the host waiting for its buffers.
    #[inline]
    fn rx_wants_commit(&self) -> bool {
        false
    }

    /// Ends a batch: the host sees everything that was delivered so far, at the latest now.
    fn rx_flush(&mut self, now_ns: u64);

    /// The host's interrupts, where they are apart from handing over; always, or never. `None`: handing over
    /// is the interrupt, and moderation decides when that is.
    fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
        None
    }

    /// The offloads that the host can use now, in both directions.
    fn accepts(&self) -> Offloads;

    /// Whether the host understands [`ChecksumState::Good`](offramp_offload::meta::ChecksumState::Good).
    /// A Linux TAP does not: it takes only a partial checksum as a verdict.
    fn honours_data_valid(&self) -> bool;
}

/// Buffers that a wire lends, side by side.
#[derive(Debug)]
pub struct Loan<'a> {
    /// The buffers; the last one may be shorter than `stride`.
    pub bytes: &'a mut [u8],
    /// Distance from one buffer to the next.
    pub stride: usize,
}

/// A frame that was not taken from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit arrives, nanoseconds; 0 where the wire does not know.
    pub at_ns: u64,
    /// Bytes, without FCS.
    pub len: usize,
}

/// The wire's side of one queue pair.
pub trait WirePort {
    /// How many more frames the wire takes now; 0 holds the host back.
    fn room(&mut self, now_ns: u64) -> usize;

    /// Lends buffers for the next frames to leave: up to `count` of `len` bytes each, as many as there
    /// is room for; `None` when there is room for none, or the frame is too long for the wire.
    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>>;

    /// Puts the first `count` of the lent buffers on the wire, `len` bytes of each, after all that were
    /// put before.
    fn put(&mut self, len: usize, count: usize, now_ns: u64);

    /// Ends a batch: everything that was put is on its way.
    fn flush(&mut self);

    /// Takes the next frame that has arrived by `now_ns`, lent until the next call.
    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]>;

    /// When the next frame will have arrived, if one is on its way.
    fn next_arrival_ns(&self) -> Option<u64>;

    /// Names each frame that will have arrived by `until_ns` and was not taken, in order, but for the
    /// first `skip` of them. Nothing is taken.
    ///
    /// Returns how many more frames the wire takes before its other end has to wait; `u32::MAX` where it never has to, or
    /// it is not known.
    fn arrivals(&self, skip: usize, until_ns: u64, note: impl FnMut(Arrival)) -> u32;

    /// Lets the time of the wire go on to `now_ns`, and counts in `stats` the frames that were lost on this side of it
    /// since the last call (each as a frame that came in and was lost, [`Direction::lose_on_line`]), and what the
    /// adapter's memory contained.
    ///
    /// Returns how many of the frames that [`WirePort::arrivals`] may have named are gone since the last call. They were
    /// the oldest ones. A wire that loses nothing of what has arrived, as a cable, has nothing to do here.
    #[inline]
    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        let _ = (now_ns, stats);
        0
    }
}

/// A wire that a thread can sleep on, and that knows when it sends and when it is read.
pub trait Line: WirePort {
    /// Wakes `waker` when a frame was put at the other end, or room was made there.
    /// The caller must poll once more before it sleeps.
    fn register(&self, waker: &Waker);

    /// Takes back [`Line::register`].
    fn unregister(&self);

    /// When a wire that has no room by its rate has some again, without anything happening at its other
    /// end; `None` when it has some now, or when only the other end can make it.
    fn next_room_ns(&self, now_ns: u64) -> Option<u64>;

    /// When the last bit of all that was put so far will have left, nanoseconds; a time in the past when
    /// the wire is free.
    fn sent_ns(&self) -> u64;

    /// Whether nothing is left to be taken, arrived or on its way.
    fn is_idle(&self) -> bool;
}
