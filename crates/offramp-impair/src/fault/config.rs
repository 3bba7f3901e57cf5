//! Settings of the faults, and their ranges.

use crate::OutOfRange;
use std::ops::RangeInclusive;

/// Permitted bus rates, bytes per second.
pub const BUS_BYTES_PER_SECOND: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Permitted times per frame, nanoseconds.
pub const FRAME_NS: RangeInclusive<u64> = 0..=1_000_000_000;
/// Permitted delays, nanoseconds.
pub const DELAY_NS: RangeInclusive<u64> = 0..=10_000_000_000;
/// Permitted values of N, for one frame in N lost, doubled or judged wrongly.
pub const ONE_IN: RangeInclusive<u32> = 2..=1_000_000_000;
/// Permitted sizes of reversed groups.
pub const REVERSE_FRAMES: RangeInclusive<usize> = 2..=1024;

/// A bus between the adapter and the host. It copies frames one at a time, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusConfig {
    /// Bytes copied per second, in both directions together; `None`: the copy takes no time.
    pub bytes_per_second: Option<u64>,
    /// Additional time per frame, nanoseconds: the handler, registers, the driver's way to it.
    pub frame_ns: u64,
}

/// The direction in which a checksum verdict errs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongVerdict {
    /// Good frames are marked bad. No host port has such a mark; the frame is lost at the point where the host's stack
    /// would discard it.
    GoodIsBad,
    /// Bad frames are marked good, and a wrong payload reaches the host's programs.
    BadIsGood,
}

/// A checksum unit that errs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictConfig {
    /// The direction of its errors.
    pub wrong: WrongVerdict,
    /// One frame in this number is judged wrongly, chosen by its bytes: its retransmission again.
    pub one_in: u32,
}

/// The faults of one adapter; by default it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// The speed of the bus.
    pub bus: BusConfig,
    /// Nothing is sent over the bus while a received frame waits: the processor copies, and its handler reads all
    /// arrived frames before a program goes on.
    pub receive_first: bool,
    /// One in this number of frames is lost on the wire.
    pub loss_one_in: Option<u32>,
    /// One in this number of frames comes twice from the wire.
    pub duplicate_one_in: Option<u32>,
    /// Additional delay of each frame on the wire, nanoseconds.
    pub delay_ns: u64,
    /// Groups of this number of frames are handed over in reverse order.
    pub reverse_frames: Option<usize>,
    /// The checksum unit errs.
    pub verdict: Option<VerdictConfig>,
    /// Seed for the choice of lost and doubled frames.
    pub seed: u64,
}

impl FaultConfig {
    /// Returns whether no fault is configured.
    pub fn is_none(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }

    /// Checks the settings given by a user.
    ///
    /// # Errors
    /// One line with the setting, its value and its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let verdict = self.verdict.map(|verdict| verdict.one_in);
        if let Some(rate) = self.bus.bytes_per_second {
            OutOfRange::check(&BUS_BYTES_PER_SECOND, rate, |rate| format!("bus of {rate} bytes per second is"))?;
        }
        OutOfRange::check(&FRAME_NS, self.bus.frame_ns, |ns| format!("bus with {ns} ns for each frame is"))?;
        OutOfRange::check(&DELAY_NS, self.delay_ns, |ns| format!("delay of {ns} ns is"))?;
        if let Some(frames) = self.reverse_frames {
            OutOfRange::check(&REVERSE_FRAMES, frames, |frames| format!("reversing groups of {frames} frames is"))?;
        }
        for (what, one_in) in
            [("loss", self.loss_one_in), ("duplication", self.duplicate_one_in), ("a wrong verdict", verdict)]
        {
            one_in.map_or(Ok(()), |n| OutOfRange::check(&ONE_IN, n, |n| format!("{what} of one frame in {n} is")))?;
        }
        Ok(())
    }
}

impl BusConfig {
    /// Returns whether a copy takes no time at all.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the time to copy a frame of `len` bytes, nanoseconds.
    pub fn copy_ns(&self, len: usize) -> u64 {
        const NANOSECONDS: u128 = 1_000_000_000;
        let rate = |rate: u64| len as u128 * NANOSECONDS / u128::from(rate.max(1));
        let bytes_ns = self.bytes_per_second.map_or(0, rate);
        u64::try_from(bytes_ns).unwrap_or(u64::MAX).saturating_add(self.frame_ns)
    }
}
