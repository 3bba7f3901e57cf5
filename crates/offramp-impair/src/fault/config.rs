//! Settings of the impairments, and their ranges.

use crate::OutOfRange;
use std::ops::RangeInclusive;

/// Valid bus rates, in bytes per second.
pub const BUS_BYTES_PER_SECOND: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Valid values of the additional bus time per frame, in nanoseconds.
pub const FRAME_NS: RangeInclusive<u64> = 0..=1_000_000_000;
/// Valid values of the additional delay on the wire, in nanoseconds.
pub const DELAY_NS: RangeInclusive<u64> = 0..=10_000_000_000;
/// Valid values of `loss_one_in` and `duplicate_one_in` in [`FaultConfig`], and of [`VerdictConfig::one_in`].
pub const ONE_IN: RangeInclusive<u32> = 2..=1_000_000_000;
/// Valid values of [`FaultConfig::reverse_frames`], frames.
pub const REVERSE_FRAMES: RangeInclusive<usize> = 2..=1024;

/// A bus between the adapter and the host. The bus copies one frame at a time; both directions share the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusConfig {
    /// Bytes copied per second, in both directions together; `None` if a copy takes no time.
    pub bytes_per_second: Option<u64>,
    /// Additional time per frame, in nanoseconds: the time of the interrupt handler, of register accesses, and of the
    /// driver's other work for the frame.
    pub frame_ns: u64,
}

/// The kind of wrong checksum verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongVerdict {
    /// Good frames are marked as bad. No host port can pass on a frame marked as bad, so such a frame is lost in the
    /// adapter. With a real card, the host's stack drops it.
    GoodIsBad,
    /// Bad frames are marked as good, and a corrupted payload reaches the host's programs.
    BadIsGood,
}

/// The configuration of a faulty checksum unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictConfig {
    /// The kind of wrong verdict.
    pub wrong: WrongVerdict,
    /// The verdict is wrong for each frame whose checksum over payload and TCP sequence number is a multiple of this
    /// number. On average, one in `one_in` frames gets a wrong verdict. A retransmission of the same bytes gets a wrong
    /// verdict again.
    pub one_in: u32,
}

/// The impairments of one adapter; by default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// The bus to the host.
    pub bus: BusConfig,
    /// `true` if received frames have priority on the bus: the host sends no frame while a received frame is being
    /// copied or waits for its copy. This setting models a host whose processor does the copies. The interrupt handler
    /// of such a host reads all arrived frames before a program continues.
    pub receive_first: bool,
    /// Number of received frames per lost frame: the wire loses one frame in each group of this size. `None`: no loss.
    pub loss_one_in: Option<u32>,
    /// Number of received frames per duplicated frame: the wire delivers one frame in each group of this size twice.
    /// `None`: no duplicates.
    pub duplicate_one_in: Option<u32>,
    /// Additional delay of each frame on the wire, in nanoseconds.
    pub delay_ns: u64,
    /// Number of frames in a group. The host receives each group in reverse order. `None`: the order stays unchanged.
    pub reverse_frames: Option<usize>,
    /// The fault of the checksum unit; `None`: the checksum unit is correct.
    pub verdict: Option<VerdictConfig>,
    /// Seed for choosing the lost and the duplicated frames.
    pub seed: u64,
}

impl FaultConfig {
    /// Returns `true` if no impairment is configured.
    pub fn is_none(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }

    /// Checks that every setting is in its range.
    ///
    /// # Errors
    /// Returns a message of one line: the first invalid setting, its value and its range.
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
    /// Returns whether a copy over the bus takes no time.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the time to copy a frame of `len` bytes, in nanoseconds.
    pub fn copy_ns(&self, len: usize) -> u64 {
        const NANOSECONDS: u128 = 1_000_000_000;
        let rate = |rate: u64| len as u128 * NANOSECONDS / u128::from(rate.max(1));
        let bytes_ns = self.bytes_per_second.map_or(0, rate);
        u64::try_from(bytes_ns).unwrap_or(u64::MAX).saturating_add(self.frame_ns)
    }
}
