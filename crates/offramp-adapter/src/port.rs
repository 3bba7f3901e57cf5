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
//!     port.rx_flush(now_ns)                       the host sees everything, at the latest now
//!     port.interrupts()?.send_due(now_ns)         where interrupts are apart from handing over
//!     nothing moved: arm, poll once more, sleep, disarm
//! ```

use crate::moderation::ModerationConfig;
use crate::stats::Direction;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
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
    /// Not known yet, and not lost: the port keeps the frame, and says later what became of it ([`HostPort::settle`]).
    #[error("kept until the end of the batch")]
    Held,
    /// The other side is gone and will not come back; the port is of no more use.
    #[error("closed (error number {0})")]
    Closed(i32),
}

/// What became of a frame that a host port had kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What the port was told of the frame.
    pub meta: RxMeta,
    /// Bytes of the frame.
    pub len: usize,
    /// Whether the host took it; never [`PortError::Held`].
    pub outcome: Result<(), PortError>,
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
/// A guest shares its rings: what [`HostPort::rx_flush`] shows it is there from then on, whether or not it is
/// called for it, and a guest that polls needs no call. So moderation holds back no frame here, only the
/// interrupt. Each queue of the port is moderated for itself, received frames and transmit completions apart,
/// and frames count as they are handed over: a super-frame is one, as the host works on it as one.
pub trait Interrupts {
    /// Changes when the host is interrupted, for what it was shown already, too. With
    /// [`Policy::Off`](crate::moderation::Policy::Off), as in the beginning, it is interrupted whenever it is
    /// shown something; what waits then is told at once.
    fn moderate(&mut self, config: &ModerationConfig);

    /// Sends what is due at `now_ns`. Asked behind each batch, and when [`Interrupts::next_due_ns`] has come.
    ///
    /// Returns how many were sent since the last time, also those that nothing held back.
    fn send_due(&mut self, now_ns: u64) -> InterruptCounts;

    /// When the next one is due if the host is shown nothing more, as of the last [`Interrupts::send_due`].
    fn next_due_ns(&self) -> Option<u64>;

    /// What an interrupt for received frames costs as far as that is known, nanoseconds; 0 without moderation.
    fn cost_ns(&self) -> u64;

    /// The longest that an interrupt for a received frame waits, nanoseconds.
    fn wait_max_ns(&self) -> u64;
}

/// The host's side of one queue pair: a kernel behind a TAP, a guest, a program.
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
    /// When the host has no room, refuses the frame or is gone: the frame is lost. [`PortError::Held`] when that shows
    /// only at the end of the batch.
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError>;

    /// Ends a batch: the host sees everything that was delivered so far, at the latest now.
    fn rx_flush(&mut self, now_ns: u64);

    /// What became of the next frame that was [`PortError::Held`]; to be asked until `None` after each
    /// [`HostPort::rx_flush`]. A port that says at once what becomes of a frame has nothing to do here.
    #[inline]
    fn settle(&mut self) -> Option<Settled> {
        None
    }

    /// The host's interrupts, where they are apart from handing over; always, or never. `None`: handing over
    /// is the interrupt, and moderation decides when that is.
    fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
        None
    }

    /// What the host can ask for and can be told now.
    fn accepts(&self) -> Offloads;

    /// Whether the host understands [`ChecksumState::Good`](offramp_offload::meta::ChecksumState::Good).
    /// A Linux TAP does not: it takes only a partial checksum as a verdict.
    fn honours_data_valid(&self) -> bool;
}

impl<H: HostPort + ?Sized> HostPort for Box<H> {
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        (**self).tx_next(now_ns)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        (**self).tx_frame()
    }

    fn flow_hash(&self, frame: &Frame<'_>) -> Option<u32> {
        (**self).flow_hash(frame)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        (**self).rx_deliver(meta, frame)
    }

    fn rx_flush(&mut self, now_ns: u64) {
        (**self).rx_flush(now_ns);
    }

    fn settle(&mut self) -> Option<Settled> {
        (**self).settle()
    }

    fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
        (**self).interrupts()
    }

    fn accepts(&self) -> Offloads {
        (**self).accepts()
    }

    fn honours_data_valid(&self) -> bool {
        (**self).honours_data_valid()
    }
}

/// Buffers that a line lends, side by side.
#[derive(Debug)]
pub struct Loan<'a> {
    /// The buffers; the last one may be shorter than `stride`.
    pub bytes: &'a mut [u8],
    /// Distance from one buffer to the next.
    pub stride: usize,
}

/// A frame on the line that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit arrives, nanoseconds; 0 where the line does not know.
    pub at_ns: u64,
    /// Bytes, without FCS.
    pub len: usize,
}

/// The line's side of one queue pair.
pub trait WirePort {
    /// How many more frames the line takes now; 0 holds the host back.
    fn room(&mut self, now_ns: u64) -> usize;

    /// Lends buffers for the next frames to leave: up to `count` of `len` bytes each, as many as there
    /// is room for; `None` when there is room for none, or the frame is too long for the line.
    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>>;

    /// Puts the first `count` of the lent buffers on the line, `len` bytes of each, behind all that were
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
    /// Returns how many more frames the line holds behind them before its other end has to wait;
    /// `u32::MAX` where nobody has to, or it is not known.
    fn arrivals(&self, skip: usize, until_ns: u64, note: impl FnMut(Arrival)) -> u32;

    /// Lets the line's own time go on to `now_ns`, and counts in `stats` what came of it besides frames to
    /// take: those that were lost on this side of the line since it was last asked (each as a frame that came
    /// in and was lost, [`Direction::lose_on_line`]), and what the adapter's memory held.
    ///
    /// Returns how many of the frames that [`WirePort::arrivals`] may have named are gone again since it was
    /// last asked. They were the oldest ones. A line that keeps what has arrived, as a cable does, has
    /// nothing to do here.
    #[inline]
    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        let _ = (now_ns, stats);
        0
    }
}

/// A line that a thread can sleep on, and that knows when it sends and when it is read.
pub trait Line: WirePort {
    /// Asks for `waker` to be called when a frame was put at the other end, or room was made there.
    /// The caller must poll once more before it sleeps.
    fn register(&self, waker: &Waker);

    /// Takes back what [`Line::register`] asked for.
    fn unregister(&self);

    /// When a line that has no room for itself has some again, without anything happening at its other
    /// end; `None` when it has some now, or when only the other end can make it.
    fn next_room_ns(&self, now_ns: u64) -> Option<u64>;

    /// When the last bit of all that was put so far will have left, nanoseconds; a time in the past when
    /// the line is free.
    fn sent_ns(&self) -> u64;

    /// Whether nothing is left to be taken, arrived or on its way.
    fn is_idle(&self) -> bool;

    /// Begins to read out the next frame that has arrived by `at_ns`, and says which. It is lent by the
    /// next [`WirePort::take`], which ends the reading, and is not lost until then.
    ///
    /// A frame that was found lost meanwhile is passed over: where this is `None` although
    /// [`WirePort::next_arrival_ns`] had promised a frame, that one is gone.
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        first(self, at_ns)
    }
}

/// The first frame that has arrived by `until_ns`.
pub fn first<W: WirePort + ?Sized>(wire: &W, until_ns: u64) -> Option<Arrival> {
    let mut found = None;
    wire.arrivals(0, until_ns, |arrival| {
        found.get_or_insert(arrival);
    });
    found
}
