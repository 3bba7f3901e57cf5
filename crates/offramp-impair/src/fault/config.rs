//! The faults that there are, and their ranges.

use crate::OutOfRange;
use std::ops::RangeInclusive;

/// Rates of a bus that may be given, bytes per second.
pub const BUS_BYTES_PER_SECOND: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Times for each frame that may be given, nanoseconds.
pub const FRAME_NS: RangeInclusive<u64> = 0..=1_000_000_000;
/// Delays that may be given, nanoseconds.
pub const DELAY_NS: RangeInclusive<u64> = 0..=10_000_000_000;
/// Numbers of frames of which one may be lost, doubled or judged wrongly.
pub const ONE_IN: RangeInclusive<u32> = 2..=1_000_000_000;
/// Sizes of the groups that may be turned round.
pub const REVERSE_FRAMES: RangeInclusive<usize> = 2..=1024;

/// A bus between the adapter and the host, over which each frame is copied, one at a time, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusConfig {
    /// Bytes that are copied in a second, in both directions together; `None`: the copy takes no time.
    pub bytes_per_second: Option<u64>,
    /// What each frame costs besides, nanoseconds: the handler, registers, the driver's way to it.
    pub frame_ns: u64,
}

/// Which way a verdict on a checksum errs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongVerdict {
    /// Good frames are marked bad. No host port has such a mark; the frame is lost where the host's stack would
    /// discard it.
    GoodIsBad,
    /// Bad frames are marked good, and a wrong payload reaches the host's programs.
    BadIsGood,
}

/// A checksum unit that errs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictConfig {
    /// Which way it errs.
    pub wrong: WrongVerdict,
    /// It errs on one in this number of frames, chosen by their bytes: on a retransmission again.
    pub one_in: u32,
}

/// The faults of one adapter; by default it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// How slow the bus is.
    pub bus: BusConfig,
    /// Over the bus, nothing is sent while a received frame waits: the processor copies, and its handler reads all that
    /// has come before it lets a program go on.
    pub receive_first: bool,
    /// One in this number of frames is lost on the wire.
    pub loss_one_in: Option<u32>,
    /// One in this number of frames comes twice from the wire.
    pub duplicate_one_in: Option<u32>,
    /// Additional delay of each frame on the wire, nanoseconds.
    pub delay_ns: u64,
    /// Groups of this number of frames are handed over in the wrong order, each group the last one first.
    pub reverse_frames: Option<usize>,
    /// The checksum unit errs.
    pub verdict: Option<VerdictConfig>,
    /// Which frames are lost and doubled.
    pub seed: u64,
}

impl FaultConfig {
    /// Whether there is no fault at all.
    pub fn is_none(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }

    /// Checks what a user may get wrong.
    ///
    /// # Errors
    /// One line that names the setting, its value and its range.
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
    /// Whether a copy takes no time at all.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Time that the copy of a frame of `len` bytes takes, nanoseconds.
    pub fn copy_ns(&self, len: usize) -> u64 {
        const NANOSECONDS: u128 = 1_000_000_000;
        let rate = |rate: u64| len as u128 * NANOSECONDS / u128::from(rate.max(1));
        let bytes_ns = self.bytes_per_second.map_or(0, rate);
        u64::try_from(bytes_ns).unwrap_or(u64::MAX).saturating_add(self.frame_ns)
    }
}
