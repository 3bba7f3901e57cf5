//! Which faults there are, and how bad they may be.

use std::ops::RangeInclusive;

/// Rates of a bus that may be given, bytes per second.
pub const BUS_BYTES_PER_SECOND: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Times for each frame that may be given, nanoseconds.
pub const FRAME_NS: RangeInclusive<u64> = 0..=1_000_000_000;
/// Delays that may be given, nanoseconds.
pub const DELAY_NS: RangeInclusive<u64> = 0..=10_000_000_000;
/// Of how many frames one may be lost, doubled or judged wrongly.
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
    /// Good frames are marked bad. No host port can be told so; the frame is lost where the host's stack would
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
    /// On one of so many frames, by their bytes: on a retransmission again.
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
    /// One of so many frames of the line is lost on it.
    pub loss_one_in: Option<u32>,
    /// One of so many frames of the line comes twice.
    pub duplicate_one_in: Option<u32>,
    /// Each frame of the line comes so much later, nanoseconds.
    pub delay_ns: u64,
    /// Groups of so many frames are handed over in the wrong order, each group the last one first.
    pub reverse_frames: Option<usize>,
    /// The checksum unit errs.
    pub verdict: Option<VerdictConfig>,
    /// Which frames are lost and doubled.
    pub seed: u64,
}

/// Why faults are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultConfigError {
    /// A bus that stands still.
    #[error("bus of {0} bytes per second is out of range; use {min} to {max}", min = BUS_BYTES_PER_SECOND.start(), max = BUS_BYTES_PER_SECOND.end())]
    Bus(u64),
    /// Time for a frame beyond use.
    #[error("bus with {0} ns for each frame is out of range; use {min} to {max}", min = FRAME_NS.start(), max = FRAME_NS.end())]
    Frame(u64),
    /// A delay beyond use.
    #[error("delay of {0} ns is out of range; use {min} to {max}", min = DELAY_NS.start(), max = DELAY_NS.end())]
    Delay(u64),
    /// A group that is none, or more than a batch.
    #[error("reversing groups of {0} frames is out of range; use {min} to {max}", min = REVERSE_FRAMES.start(), max = REVERSE_FRAMES.end())]
    Reverse(usize),
    /// Every frame, or none.
    #[error("{what} of one frame in {one_in} is out of range; use {min} to {max}", min = ONE_IN.start(), max = ONE_IN.end())]
    OneIn {
        /// Which fault.
        what: &'static str,
        /// What was given.
        one_in: u32,
    },
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
    pub fn check(&self) -> Result<(), FaultConfigError> {
        use FaultConfigError as Error;
        if let Some(rate) = self.bus.bytes_per_second.filter(|rate| !BUS_BYTES_PER_SECOND.contains(rate)) {
            return Err(Error::Bus(rate));
        }
        if !FRAME_NS.contains(&self.bus.frame_ns) {
            return Err(Error::Frame(self.bus.frame_ns));
        }
        if !DELAY_NS.contains(&self.delay_ns) {
            return Err(Error::Delay(self.delay_ns));
        }
        if let Some(frames) = self.reverse_frames.filter(|frames| !REVERSE_FRAMES.contains(frames)) {
            return Err(Error::Reverse(frames));
        }
        let verdict = self.verdict.map(|verdict| verdict.one_in);
        let all = [("loss", self.loss_one_in), ("duplication", self.duplicate_one_in), ("a wrong verdict", verdict)];
        let wrong = all.into_iter().find_map(|(what, given)| Some((what, given.filter(|n| !ONE_IN.contains(n))?)));
        wrong.map_or(Ok(()), |(what, one_in)| Err(Error::OneIn { what, one_in }))
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
