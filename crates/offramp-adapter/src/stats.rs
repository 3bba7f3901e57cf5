//! Counters per queue and direction, with a reason for every lost frame.
//!
//! Both directions count frames of the wire: a super-frame of 45 segments counts as 45 frames. So `frames_in` =
//! `frames_out` + lost frames while no frame is in flight inside the adapter. A counter has one writing thread and any
//! number of reading threads.

use offramp_offload::meta::{ChecksumState, RxMeta};
use offramp_offload::segment::Refused;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use strum::{IntoStaticStr, VariantArray};

/// The reason for losing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Loss {
    /// The frame was lost for lack of room.
    Drop,
    /// A frame in the adapter's memory was lost: for lack of room, a newer frame displaced the older frame.
    Overrun,
    /// The frame is longer than the MTU allows.
    TooLong,
    /// The bytes are no valid frame: shorter than an Ethernet header, or with an offload request on unparsable headers.
    Malformed,
    /// The host requested an offload that the frame's bytes do not allow.
    BadRequest,
    /// The port cannot pass the frame's offload to the adapter. For example, a packet socket cannot describe a
    /// super-frame of UDP fragments, so Linux discards this super-frame.
    Unsupported,
    /// The host refused the frame.
    HostRefused,
    /// The host's own filter rejected the frame: none of its tables contains the address or the VLAN.
    GuestFilter,
    /// The operator switched the port's link off.
    LinkOff,
    /// The host may not use the frame's source address, or the address is bound to another port.
    Spoofed,
    /// The frame's VLAN is not a VLAN of the port, or the port refuses the frame's tag. A switch also counts this
    /// reason if the destination port is not in the frame's VLAN.
    Vlan,
    /// Switch: ingress and destination port are both isolated.
    Isolated,
    /// Switch: the ingress port has reached its flood limit.
    FloodLimit,
    /// Switch: the host is at its receive limit, and the queue for the host is full.
    RateLimit,
    /// Switch: there is no other port, or all destination ports were removed before delivery. The reason also covers an
    /// unknown station if the switch does not flood.
    NoDestination,
    /// Switch: the destination station is on the ingress port.
    Hairpin,
    /// Switch: bridges do not forward the reserved destination address (IEEE 802.1D 7.12.6).
    Reserved,
    /// An impairment of the wire lost the frame on purpose.
    Fault,
    /// IPsec: no inbound association has this SPI at this destination address.
    UnknownSpi,
    /// IPsec: the integrity check value (ICV) is wrong.
    BadTag,
    /// IPsec: the sequence number was accepted before.
    Replayed,
    /// IPsec: the sequence number is left of the replay window, or is 0.
    TooOld,
    /// IPsec: a protected packet is truncated, unaligned, wrongly padded, or has malformed content.
    EspMalformed,
    /// IPsec: the packet is genuine, but outside its association's selectors.
    SaPolicy,
    /// IPsec: a fragment of a protected packet, or a fragment to be sealed in transport mode.
    EspFragment,
    /// IPsec: the association has reached a hard lifetime.
    SaExpired,
    /// IPsec: the outer header marks congestion, but the packet has no ECN capability (RFC 6040 4.2).
    Congestion,
    /// IPsec: a dummy packet, sent to be discarded (RFC 4303 2.6).
    Dummy,
    /// IPsec: a NAT-keepalive, discarded by the receiver (RFC 3948 4).
    Keepalive,
    /// IPsec: the packet was received unencrypted, but an association should have protected it (RFC 4301 5.2).
    Unprotected,
    /// IPsec: the packet matches no association, and the policy discards packets without an association.
    Discard,
    /// IPsec: the association's sequence numbers are used up (RFC 4303 3.3.3), or the next sequence numbers are not yet
    /// reserved.
    SequenceExhausted,
    /// IPsec: the cipher library failed unexpectedly.
    Cipher,
}

impl From<Refused> for Loss {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Malformed(_) => Self::Malformed,
            _ => Self::BadRequest,
        }
    }
}

/// Lost received frames in the columns of Linux's `/proc/net/dev` (`net/core/net-procfs.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetDevColumns {
    /// Number of frames refused, or lost for lack of room (`rx_dropped`, `rx_missed_errors`).
    pub drop: u64,
    /// Number of frames displaced by newer frames, or lost in the adapter's FIFO (`rx_fifo_errors`).
    pub fifo: u64,
    /// Number of malformed frames (`rx_length_errors`, `rx_frame_errors` and similar counters).
    pub frame: u64,
}

impl Loss {
    /// All reasons, in the order of the counters.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A counter with one writing thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[doc(hidden)]
    pub const IS_GAUGE: bool = false;

    /// Adds `n` without a locked instruction, because only one thread writes.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    /// Subtracts a count that was added too early. A reader may see the counter decrease.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).saturating_sub(n), Relaxed);
    }

    /// Returns the current count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A current value with one writing thread.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    #[doc(hidden)]
    pub const IS_GAUGE: bool = true;

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Number of bounds of a [`Histogram`].
const BOUNDS: usize = 15;

/// The number of values up to each bound, and the sum of all values. Bounds are powers of two, in units of `UNIT`. Only
/// one thread writes a histogram.
#[derive(Debug, Default)]
pub struct Histogram<const UNIT: u64> {
    counts: [Counter; BOUNDS + 1],
    sum: Counter,
}

impl<const UNIT: u64> Histogram<UNIT> {
    /// Counts a value.
    #[inline]
    pub fn record(&self, value: u64) {
        let bucket = u64::BITS - value.div_ceil(UNIT).saturating_sub(1).leading_zeros();
        self.counts[(bucket as usize).min(BOUNDS)].add(1);
        self.sum.add(value);
    }

    /// Returns the bounds of the buckets, inclusive. One further bucket counts all larger values.
    pub fn bounds() -> impl Iterator<Item = u64> {
        (0..BOUNDS).map(|power| UNIT << power)
    }

    /// Returns the number of values in each bucket.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(Counter::get)
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

/// Metadata of a counter for all places where the counter is shown: JSON, the command line, Prometheus, the log and the
/// documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name in JSON, with the unit as suffix.
    pub name: &'static str,
    /// Description of the counter.
    pub help: &'static str,
    /// True if the value can decrease.
    pub is_gauge: bool,
    /// Name of the Prometheus metric; `None` without a metric.
    pub metric: Option<&'static str>,
    /// Text of the line shown on a terminal for a count above 0; `None` without a line.
    pub shown: Option<&'static str>,
    /// Text in the log line about a guest's faults; `None` if the counter is not for a fault.
    pub logged: Option<&'static str>,
}

impl Row {
    /// Returns a row whose metric has the counter's name.
    pub const fn new(name: &'static str, help: &'static str, is_gauge: bool) -> Self {
        Self { name, help: help.trim_ascii_start(), is_gauge, metric: Some(name), shown: None, logged: None }
    }
}

/// Defines a struct of counters and its table of rows. Each field is a row, and the field's comment is the row's help.
/// Other fields of [`Row`] may follow the field's type. Fields after `..` have no row.
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])*
        pub struct $table:ident {
            $($(#[doc = $help:literal])+ $name:ident: $kind:ident $({ $($of_row:tt)* })?,)+
            $(.. $($rest:tt)*)?
        }
    ) => {
        $(#[$about])*
        pub struct $table {
            $($(#[doc = $help])+ pub $name: $crate::stats::$kind,)+
            $($($rest)*)?
        }

        impl $table {
            /// The rows of these counters.
            pub const ROWS: &'static [$crate::stats::Row] = &[$(
                $crate::stats::Row {
                    $($($of_row)*,)?
                    ..$crate::stats::Row::new(stringify!($name), concat!($($help),+), $crate::stats::$kind::IS_GAUGE)
                }
            ),+];

            /// Returns each row with its current value.
            pub fn values(&self) -> impl Iterator<Item = (&'static $crate::stats::Row, u64)> {
                Self::ROWS.iter().zip([$(self.$name.get()),+])
            }
        }
    };
}

counters! {
    /// One direction of one queue.
    #[derive(Debug, Default)]
    pub struct Direction {
        /// Frames of the wire that came in. Transmit: each segment of a super-frame, and NAT-keepalives, though no host
        /// sent them.
        frames_in: Counter,
        /// Frames of the wire that went out (receive: before coalescing), even if the interface on the wire refused
        /// them (`wire_lost`). `frames_in` = `frames_out` + `lost`, except frames in flight.
        frames_out: Counter,
        /// Bytes that went out, Ethernet header included, FCS not.
        bytes_out: Counter,
        /// Frames as the host sees them: its super-frames, and its coalesced frames.
        host_frames: Counter,
        /// Guest: interrupts sent for received frames (receive) and for transmit completions (transmit); a polling
        /// guest gets none. TAP: batches with frames given to it (receive) or taken from it (transmit).
        interrupts: Counter,
        /// Receive: measured cost of an interrupt; 0 while moderation is off.
        interrupt_cost_ns: Gauge { metric: None },
        /// Receive: maximum wait of a frame (TAP), or of the interrupt for it (guest), under the moderation in force.
        wait_max_ns: Gauge { metric: Some("interrupt_wait_max") },
        /// Frames without a matching security association, passed on unchanged; super-frames count once.
        bypassed: Counter,
        /// Receive: frames with a wrong checksum, passed on and marked as bad.
        bad_checksum: Counter { metric: Some("bad_checksums"), shown: Some("bad checksum, passed on") },
        /// Receive: unparsable frames, passed on unchanged.
        unparsed: Counter { shown: Some("not parsed, passed on") },
        /// Receive: maximum number of bytes in use in the adapter's memory at one time, in whole pages if the memory
        /// has pages; 0 for a memory without limit.
        memory_bytes_max: Gauge { metric: None },
        /// Receive: maximum number of consecutive frames that the adapter's memory stored without a loss and without
        /// becoming empty in between.
        burst_frames_max: Gauge { metric: None },
        ..
        /// Receive: frames lost because the adapter's memory had no room. [`Loss::Drop`] also counts frames lost
        /// because the host had no room.
        pub memory_dropped: Counter,
        lost: LostFrames,
        /// Number of frames given to the host, or fetched from the host, in one batch.
        pub batch_frames: Histogram<1>,
        /// Receive: wait of the oldest frame before each interrupt under moderation, in nanoseconds.
        pub interrupt_wait_ns: Histogram<1000>,
    }
}

impl Direction {
    /// Counts lost frames.
    pub fn lose(&self, reason: Loss, frames: usize) {
        self.lost.0[reason as usize].add(frames as u64);
    }

    /// Counts frames lost between their arrival and the fetch from the wire: in the adapter's memory, or on an impaired
    /// wire.
    pub fn lose_on_line(&self, reason: Loss, frames: u64) {
        // Two queue pairs may share these counters, one queue pair per direction. So a queue pair without loss must not
        // write.
        if frames > 0 {
            self.frames_in.add(frames);
            self.lost.0[reason as usize].add(frames);
            if reason == Loss::Drop {
                self.memory_dropped.add(frames);
            }
        }
    }

    /// Ends a batch, possibly without frames of the host.
    #[inline]
    pub(crate) fn end_batch(&self) {
        // The subtraction saturates, because frames may have been subtracted from `host_frames` again.
        let frames = self.host_frames.get().saturating_sub(self.batch_frames.sum());
        if frames > 0 {
            self.batch_frames.record(frames);
        }
    }

    /// Sets the gauges of the interrupt cost and the maximum wait.
    pub(crate) fn show_moderation(&self, cost_ns: u64, wait_max_ns: u64) {
        self.interrupt_cost_ns.set(cost_ns);
        self.wait_max_ns.set(wait_max_ns);
    }

    /// Returns the lost frames in the columns of `/proc/net/dev`; each frame counts in one column.
    pub fn net_dev(&self) -> NetDevColumns {
        let mut columns = NetDevColumns::default();
        for &reason in Loss::ALL {
            let column = match reason {
                Loss::Overrun => &mut columns.fifo,
                Loss::TooLong | Loss::Malformed | Loss::BadTag | Loss::EspMalformed => &mut columns.frame,
                _ => &mut columns.drop,
            };
            *column += self.lost(reason);
        }
        columns
    }

    /// Counts a frame of `len` bytes by the outcome of its delivery to a host.
    pub fn given(&self, meta: &RxMeta, len: usize, outcome: Result<(), Loss>) {
        let frames = usize::from(meta.segments);
        if meta.checksum == ChecksumState::Bad {
            self.bad_checksum.add(frames as u64);
        }
        match outcome {
            Ok(()) => {
                self.frames_out.add(frames as u64);
                self.bytes_out.add(len as u64);
                self.host_frames.add(1);
            }
            Err(reason) => self.lose(reason, frames),
        }
    }

    /// Returns the number of frames lost for a reason.
    pub fn lost(&self, reason: Loss) -> u64 {
        self.lost.0[reason as usize].get()
    }

    /// Returns the total number of lost frames.
    pub fn lost_total(&self) -> u64 {
        self.lost.0.iter().map(Counter::get).sum()
    }
}

/// Lost frames, by reason.
#[derive(Debug)]
struct LostFrames([Counter; Loss::ALL.len()]);

impl Default for LostFrames {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

/// The counters of both directions of one queue pair.
#[derive(Debug, Default)]
pub struct QueueStats {
    /// Host to wire.
    pub transmit: Direction,
    /// Wire to host.
    pub receive: Direction,
}

impl QueueStats {
    /// Returns the counters of the queue with the index that `queue` returns. If `queues` has only one entry, the entry
    /// counts for all queues.
    #[inline]
    pub fn of(queues: &[Self], queue: impl FnOnce() -> usize) -> &Self {
        match queues {
            [all] => all,
            each => &each[queue().min(each.len() - 1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter() {
        let d = Direction::default();
        for (n, &reason) in Loss::ALL.iter().enumerate() {
            d.lose(reason, n + 1);
        }
        for (n, &reason) in Loss::ALL.iter().enumerate() {
            assert_eq!(d.lost(reason), n as u64 + 1, "{}", reason.name());
        }
        let reasons = Loss::ALL.len() as u64;
        assert_eq!(d.lost_total(), reasons * (reasons + 1) / 2);
    }

    #[test]
    fn a_counter_is_one_row() {
        counters! {
            /// One more.
            #[derive(Default)]
            pub struct More {
                /// Frames of
                /// a kind.
                frames: Counter { metric: Some("frames_of_a_kind"), shown: Some("frames") },
                /// Bytes.
                bytes_max: Gauge { metric: None, logged: Some("bytes") },
                ..
                aside: u64,
            }
        }
        let more = More { aside: 7, ..More::default() };
        more.frames.add(more.aside);
        let row = |name, help, is_gauge, metric, shown, logged| Row { name, help, is_gauge, metric, shown, logged };
        let frames = row("frames", "Frames of a kind.", false, Some("frames_of_a_kind"), Some("frames"), None);
        let bytes = row("bytes_max", "Bytes.", true, None, None, Some("bytes"));
        assert_eq!(more.values().collect::<Vec<_>>(), [(&frames, 7), (&bytes, 0)]);
    }

    #[test]
    fn a_value_is_counted_up_to_the_least_bound_that_it_does_not_exceed() {
        fn counts<const UNIT: u64>(values: &[u64]) -> (Vec<u64>, u64) {
            let histogram = Histogram::<UNIT>::default();
            for value in values {
                histogram.record(*value);
            }
            let counts: Vec<u64> = histogram.counts().collect();
            for (bound, up_to) in Histogram::<UNIT>::bounds().zip(1..) {
                let expected = values.iter().filter(|value| **value <= bound).count() as u64;
                assert_eq!(counts[..up_to].iter().sum::<u64>(), expected, "up to {bound}");
            }
            (counts, histogram.sum())
        }
        let (counts_of_frames, sum) = counts::<1>(&[0, 1, 2, 3, 4, 5, 64, 65, 16_384, 16_385, 1 << 40]);
        assert_eq!(counts_of_frames, [2, 1, 2, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(sum, 144 + 32_769 + (1 << 40));
        let (counts_of_ns, _) = counts::<1000>(&[0, 1, 1000, 1001, 2000, 2001, 16_384_000, 16_384_001]);
        assert_eq!((counts_of_ns[0], counts_of_ns[1], counts_of_ns[2], counts_of_ns[15]), (3, 2, 1, 1));
    }

    #[test]
    fn a_batch_is_as_many_frames_as_the_host_had_since_the_last_one() {
        let d = Direction::default();
        for frames in [3, 0, 1, 0, 64] {
            d.host_frames.add(frames);
            d.end_batch();
        }
        let counts: Vec<u64> = d.batch_frames.counts().collect();
        assert_eq!((counts[0], counts[2], counts[6], d.batch_frames.sum()), (1, 1, 1, 68));
        assert_eq!(counts.iter().sum::<u64>(), 3);
    }

    #[test]
    fn each_loss_is_in_one_column_of_proc_net_dev() {
        let d = Direction::default();
        for &reason in Loss::ALL {
            d.lose(reason, 1);
        }
        assert_eq!(d.net_dev(), NetDevColumns { drop: Loss::ALL.len() as u64 - 5, fifo: 1, frame: 4 });
    }

    #[test]
    fn what_is_lost_on_the_line_came_in() {
        let d = Direction::default();
        d.lose_on_line(Loss::Drop, 3);
        assert_eq!((d.frames_in.get(), d.lost(Loss::Drop)), (3, 3));
    }

    #[test]
    fn a_host_without_room_is_no_memory_without_room() {
        let d = Direction::default();
        d.lose_on_line(Loss::Drop, 3);
        d.lose_on_line(Loss::Overrun, 2);
        d.given(&RxMeta::default(), 60, Err(Loss::Drop));
        assert_eq!((d.lost(Loss::Drop), d.memory_dropped.get()), (4, 3));
    }
}
