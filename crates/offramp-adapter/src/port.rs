//! The two kinds of port of an adapter: the host port and the wire port.
//!
//! Each buffer is lent by its owner. A host port lends the last fetched frame. A wire port lends the buffer for the
//! next frame, and the last arrived frame. No frame is copied when the port passes the frame on, and no memory is
//! allocated per frame. Time is an argument, in nanoseconds since any fixed moment.
//!
//! One thread owns a port and runs this loop:
//!
//! ```text
//! loop:
//!     now_ns = clock
//!     while budget and port.tx_next(now_ns)?:     the next frame that the host sends
//!         bytes = port.tx_unasked()?              no request: sent unparsed, if the adapter changes nothing
//!         frame = port.tx_lend()                  otherwise parsed, and lent until the next tx_next;
//!                                                 tx_frame() if the payload is read more than once
//!         plan, route, deliver or put on the wire
//!     for each frame for the host:
//!         port.rx_deliver(meta, bytes)?           Full: lost and counted; Closed: the port ends
//!         or in place, where the port lends its host's buffers, several frames at a time:
//!         port.rx_reserve(slot, head)             a frame begins
//!         port.rx_room(slot, len, count)          payloads are copied into the room, and verified in one pass
//!         port.rx_fill(slot, len)                 the bytes of the room that belong to the frame
//!         port.rx_commit(slot, meta, head)?       headers last; then as rx_deliver
//!         port.rx_wants_commit()                  the host waits for its buffers: commit all of them
//!     port.rx_flush(now_ns)                       the host sees everything, at the latest now
//!     port.interrupts(n)?.send_due(now_ns)        where interrupts are separate from delivery
//!     nothing moved: arm, poll once more, sleep, disarm
//! ```

use crate::moderation::ModerationConfig;
use crate::stats::{Direction, Loss};
use crate::steering::Steering;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::vlan::TagChange;
use std::task::Waker;

/// The reason a port did not accept or provide a frame. The frame is lost, and the caller counts the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The host or the wire currently has no room.
    #[error("no room")]
    Full,
    /// The host or the wire refuses this frame, with this error number.
    #[error("refused (error number {0})")]
    Refused(i32),
    /// The frame is lost between this port and the host or the wire.
    #[error("lost ({})", .0.name())]
    Lost(Loss),
    /// A filter of the host or of the wire rejects this frame.
    #[error("filtered by the host")]
    Filtered,
    /// The host or the wire is gone for good, and the port is unusable.
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

/// Maximum number of pieces of memory in [`Frame::shared`] of a frame that a port lends.
pub const SHARED_PIECES_MAX: usize = 32;

/// Numbers of interrupts sent to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounts {
    /// Number of interrupts for received frames.
    pub receive: u64,
    /// Number of interrupts for transmit completions, which free the host's buffers.
    pub transmit: u64,
}

/// The interrupts of a host that can access its frames before an interrupt.
///
/// A guest shares its rings: it sees the frames published by [`HostPort::rx_flush`] with or without an interrupt. A
/// polling guest needs no interrupt. So for this kind of host, moderation defers only the interrupt, never a frame.
/// Each queue of the port has separate moderation for received frames and for transmit completions. Frames are counted
/// as the adapter hands them over: a super-frame counts as one frame, since the host processes it as one frame.
pub trait Interrupts {
    /// Changes the moderation, also for frames already published. Under
    /// [`Policy::Off`](crate::moderation::Policy::Off), the initial state, each publication interrupts the host. A
    /// change to this policy sends a deferred interrupt at once.
    fn moderate(&mut self, config: &ModerationConfig);

    /// Sends the interrupts due at `now_ns`. The adapter calls this method after each batch, and at
    /// [`Interrupts::next_due_ns`].
    ///
    /// Returns the number of interrupts sent since the last call, including interrupts that were not deferred.
    fn send_due(&mut self, now_ns: u64) -> InterruptCounts;

    /// Returns and removes one recorded wait, in nanoseconds. When a deferred interrupt is sent, the port records the
    /// wait of the oldest received frame for this interrupt. The caller repeats the call until the result is `None`.
    fn take_wait_ns(&mut self) -> Option<u64> {
        None
    }

    /// Returns the time of the next interrupt if no further frames are published, as of the last
    /// [`Interrupts::send_due`].
    fn next_due_ns(&self) -> Option<u64>;

    /// Returns the measured or configured cost of an interrupt for received frames, in nanoseconds; 0 without
    /// moderation.
    fn cost_ns(&self) -> u64;

    /// Returns the maximum wait of an interrupt for a received frame, in nanoseconds.
    fn wait_max_ns(&self) -> u64;
}

/// Receive in place: the adapter writes frames into the host's own buffers. A port whose host lends no buffers keeps
/// the default methods.
#[auto_impl::auto_impl(Box)]
pub trait InPlace {
    /// Begins a frame in the host's own buffers, with room for its headers `head` at the front. At the commit, headers
    /// with the same length and the same addresses replace `head`. `slot` identifies the frame until the commit.
    /// Returns `false` if the host lends no buffers or has no room: the adapter then builds the frame in its own memory
    /// and calls [`HostPort::rx_deliver`].
    #[inline]
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        let _ = (slot, head);
        false
    }

    /// Returns the host's memory behind the bytes of a slot's frame, with room for up to `count` payloads of `len`
    /// bytes. The room is shorter if the host has less memory, and can be longer. The next call must be
    /// [`InPlace::rx_fill`].
    #[inline]
    fn rx_room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        let _ = (slot, len, count);
        Room::default()
    }

    /// Appends the first `len` bytes of the last [`InPlace::rx_room`] to the frame of a slot. The host sees no part of
    /// the frame yet.
    #[inline]
    fn rx_fill(&mut self, slot: usize, len: usize) {
        let _ = (slot, len);
    }

    /// Completes the frame of a slot: writes `head` to the front of the frame and delivers the frame. The frame has
    /// `len` bytes, including headers.
    ///
    /// # Errors
    /// Fails as [`HostPort::rx_deliver`] does.
    #[inline]
    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        let _ = (slot, meta, head, len);
        Err(PortError::Full)
    }

    /// Returns whether the host waits for its lent buffers: frames written in place should then be committed now.
    #[inline]
    fn rx_wants_commit(&self) -> bool {
        false
    }
}

/// The host port of one queue pair: a kernel with a TAP, a guest, or a program.
#[auto_impl::auto_impl(Box)]
pub trait HostPort: InPlace {
    /// Fetches the next frame from the host. Returns `false` if the host had no frame. [`HostPort::tx_frame`] lends the
    /// frame until the next call.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone. Returns another error for a frame that the port cannot pass
    /// on, for example because its offload request is invalid; the frame is lost.
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError>;

    /// Lends the last fetched frame, with the host's offload requests. Before the first frame, lends an empty frame.
    /// The frame lies in the port's own memory, never in a guest's shared memory. So a guest cannot change the frame,
    /// and ESP can overwrite its sealed parts.
    fn tx_frame(&mut self) -> Frame<'_>;

    /// Lends the last fetched frame with its VLAN tag changed as in `change`. [`HostPort::tx_frame`] lends the frame
    /// with its own tag again. Returns `None` if the port cannot insert the tag; the caller then loses the frame. A
    /// port with a [`FrameBuffer`](offramp_offload::frame::FrameBuffer) can insert a tag.
    #[inline]
    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        let _ = change;
        None
    }

    /// Lends the last fetched frame as [`HostPort::tx_frame`] does, but the payload may lie in the host's memory
    /// ([`Frame::shared`], up to [`SHARED_PIECES_MAX`] pieces). The caller reads each byte of the payload once. Before
    /// a second read, the caller calls [`HostPort::tx_frame`]. This call copies the payload into the port's own memory.
    /// A port that always has the frame in its own memory can use the default method.
    #[inline]
    fn tx_lend(&mut self) -> Frame<'_> {
        self.tx_frame()
    }

    /// Lends the last fetched frame as [`HostPort::tx_frame_with_tag`] does, with the payload of [`HostPort::tx_lend`].
    #[inline]
    fn tx_lend_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.tx_frame_with_tag(change)
    }

    /// Returns the bytes of the last fetched frame if the host requests no offload for the frame. If the adapter
    /// changes nothing, this frame needs no parsing. Returns `None` for a frame with an offload request. A port whose
    /// frames must all be parsed always returns `None`.
    #[inline]
    fn tx_unasked(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the cost of the last [`HostPort::tx_next`] or [`HostPort::tx_hold`] in addition to the frame's own
    /// bytes. The unit is an equivalent byte: the time to copy one byte. The cost also counts after a refused frame or
    /// without a frame. The cost is charged to the budget of the turn, because a guest may split a
    /// frame into a thousand descriptors.
    #[inline]
    fn tx_cost_bytes(&self) -> usize {
        0
    }

    /// Returns the queue of the last fetched frame, for a host with counters per queue.
    #[inline]
    fn tx_queue(&self) -> usize {
        0
    }

    /// Replaces [`HostPort::tx_next`] while the host is at its transmit limit. The port does all work of `tx_next`
    /// except fetching a frame.
    #[inline]
    fn tx_hold(&mut self) {}

    /// Returns the steering of a port that chooses among its own receive queues by flow. If the port returns a
    /// steering, [`RxMeta::hash`] contains the frame's flow hash on delivery. A coalesced frame has the hash of the
    /// received frames, and a segment has the hash of the super-frame.
    #[inline]
    fn steering(&self) -> Option<&Steering> {
        None
    }

    /// Hands a frame to the host.
    ///
    /// # Errors
    /// Fails if the host has no room, refuses the frame, or is gone. The frame is lost.
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError>;

    /// Returns whether [`HostPort::rx_deliver_lent`] accepts frames with [`Frame::shared`] bytes.
    #[inline]
    fn rx_takes_shared(&self) -> bool {
        false
    }

    /// Hands over, unchanged, a frame that another host lends. Only a port that [takes](HostPort::rx_takes_shared)
    /// [`Frame::shared`] bytes gets a frame with such bytes.
    ///
    /// # Errors
    /// Fails as [`HostPort::rx_deliver`] does.
    #[inline]
    fn rx_deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>) -> Result<(), PortError> {
        self.rx_deliver(meta, frame.bytes())
    }

    /// Returns the queue of the last delivered frame, as [`HostPort::tx_queue`] does for the last fetched frame.
    #[inline]
    fn rx_queue(&self) -> usize {
        0
    }

    /// Reports a frame lost because the queue for the port's receive limit is full. On the wire, the frame makes
    /// `frames` frames with `bytes` bytes in total. The port's counters include the loss; a host may also count the
    /// loss for each of its own queues.
    #[inline]
    fn rx_lost_to_limit(&mut self, frame: &Frame<'_>, frames: usize, bytes: usize) {
        let _ = (frame, frames, bytes);
    }

    /// Ends a batch: the host sees all delivered frames, now at the latest. A port with one system call per frame can
    /// use the default method.
    #[inline]
    fn rx_flush(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Returns the interrupts of a queue if interrupts are separate from delivery; `None` after the last queue. If
    /// delivery is the interrupt, always returns `None`, and moderation decides the time of delivery.
    fn interrupts(&mut self, queue: usize) -> Option<&mut dyn Interrupts> {
        let _ = queue;
        None
    }

    /// Returns the offloads the host can currently use, in both directions.
    fn accepts(&self) -> Offloads;

    /// Returns whether the host understands [`ChecksumState::Good`](offramp_offload::meta::ChecksumState::Good). A
    /// Linux TAP does not understand this mark: for a TAP, only a partial checksum marks a frame as verified.
    fn honours_data_valid(&self) -> bool {
        true
    }
}

/// Adjacent buffers lent by a wire.
#[derive(Debug)]
pub struct Loan<'a> {
    /// The buffers; the last buffer may be shorter than `stride`.
    pub bytes: &'a mut [u8],
    /// Distance from the start of one buffer to the start of the next buffer, in bytes.
    pub stride: usize,
}

/// A frame on the wire, not yet taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time of the frame's last bit, in nanoseconds; 0 if unknown to the wire.
    pub at_ns: u64,
    /// Bytes of the frame, without FCS.
    pub len: usize,
}

/// The wire port of one queue pair.
pub trait WirePort {
    /// Returns the number of frames the wire accepts now; 0 makes the host wait.
    fn room(&mut self, now_ns: u64) -> usize;

    /// Lends buffers for the next outgoing frames: up to `count` buffers of `len` bytes each, as room allows. Returns
    /// `None` if the wire has no room, or if the frame is too long for the wire.
    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>>;

    /// Sends the first `count` of the lent buffers, `len` bytes from each, after all earlier frames.
    fn put(&mut self, len: usize, count: usize, now_ns: u64);

    /// Ends a batch: the wire transmits all frames put so far.
    fn flush(&mut self);

    /// Takes the next frame that arrived by `now_ns`, and lends the frame until the next call.
    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]>;

    /// Takes up to `frames_max` frames that arrived by `now_ns`, and lends them together until the next call. Takes
    /// every returned frame, even if the caller does not read the frame. Returns at least one frame if `frames_max` is
    /// above 0 and [`WirePort::take`] would return a frame. A wire that lends one frame at a time can use the default
    /// method.
    #[inline]
    fn take_run(&mut self, now_ns: u64, frames_max: usize) -> impl Iterator<Item = &mut [u8]> {
        if frames_max == 0 { None } else { self.take(now_ns) }.into_iter()
    }

    /// Returns the arrival time of the next frame in flight.
    fn next_arrival_ns(&self) -> Option<u64>;

    /// Passes each untaken frame that arrives by `until_ns` to `note`, in order, except the first `skip` frames. Takes
    /// no frame.
    ///
    /// Returns the number of further frames the wire accepts before the other end of the wire has to wait. Returns
    /// `u32::MAX` if the other end never has to wait, or if the number is unknown.
    fn arrivals(&self, skip: usize, until_ns: u64, note: impl FnMut(Arrival)) -> u32;

    /// Advances the wire's time to `now_ns`. Counts in `stats` the frames that this end of the wire lost since the last
    /// call ([`Direction::lose_on_line`]), each as incoming and as lost. Sets the gauges of the adapter's memory.
    ///
    /// Returns how many of the frames lost since the last call may have been reported by [`WirePort::arrivals`] before.
    /// These frames were the oldest of the reported frames. A wire without loss after arrival, for example a cable, can
    /// use the default method.
    #[inline]
    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        let _ = (now_ns, stats);
        0
    }
}

/// A wire that wakes a sleeping thread, and whose sending times are known.
pub trait Line: WirePort {
    /// Registers `waker`, which is woken when the other end puts a frame or makes room. The caller must poll once more
    /// before it sleeps.
    fn register(&self, waker: &Waker);

    /// Cancels [`Line::register`].
    fn unregister(&self);

    /// Returns the time at which a wire at its rate limit has room again, without action of the wire's other end.
    /// Returns `None` if the wire has room now, or if only the other end can make room.
    fn next_room_ns(&self, now_ns: u64) -> Option<u64>;

    /// Returns the time at which the last bit of all frames put so far leaves this end of the wire, in nanoseconds. The
    /// time is in the past if the wire is free.
    fn sent_ns(&self) -> u64;

    /// Returns whether no frame is left to be taken, neither arrived nor in flight.
    fn is_idle(&self) -> bool;
}
