//! Counters of a rig's adapters.

use offramp_adapter::pair::PortControl;
use offramp_adapter::stats::{Direction, Loss};
use std::sync::Arc;

/// Counters of one direction: sums over adapters and queues, or maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Wire frames that entered the adapter: segments from the host (transmit) or frames from the wire (receive).
    pub frames_in: u64,
    /// Wire frames that left the adapter, before any coalescing.
    pub frames_out: u64,
    /// Frames exchanged with the hosts. A super-frame or a coalesced frame counts as one frame.
    pub host_frames: u64,
    /// Interrupts sent to a guest, or batches exchanged with a TAP.
    pub interrupts: u64,
    /// Frames lost for any reason.
    pub lost: u64,
    /// Frames dropped because the adapter's memory was full; included in `lost`.
    pub dropped: u64,
    /// Frames overwritten in the adapter's memory by newer frames; included in `lost`.
    pub overrun: u64,
    /// Maximum number of bytes in an adapter's memory at one time, since the adapter's creation.
    pub memory_bytes_max: u64,
    /// Maximum number of consecutive frames that an adapter's memory stored without a loss, since the adapter's
    /// creation.
    pub burst_frames_max: u64,
}

impl Count {
    fn of(direction: &Direction) -> Self {
        Self {
            frames_in: direction.frames_in.get(),
            frames_out: direction.frames_out.get(),
            host_frames: direction.host_frames.get(),
            interrupts: direction.interrupts.get(),
            lost: direction.lost_total(),
            dropped: direction.memory_dropped.get(),
            overrun: direction.lost(Loss::Overrun),
            memory_bytes_max: direction.memory_bytes_max.get(),
            burst_frames_max: direction.burst_frames_max.get(),
        }
    }

    /// Returns the counts since `earlier`. The maxima in the result cover the whole time since the adapter's creation,
    /// not only the time since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            frames_in: self.frames_in - earlier.frames_in,
            frames_out: self.frames_out - earlier.frames_out,
            host_frames: self.host_frames - earlier.host_frames,
            interrupts: self.interrupts - earlier.interrupts,
            lost: self.lost - earlier.lost,
            dropped: self.dropped - earlier.dropped,
            overrun: self.overrun - earlier.overrun,
            ..self
        }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.frames_in += other.frames_in;
        self.frames_out += other.frames_out;
        self.host_frames += other.host_frames;
        self.interrupts += other.interrupts;
        self.lost += other.lost;
        self.dropped += other.dropped;
        self.overrun += other.overrun;
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.burst_frames_max = self.burst_frames_max.max(other.burst_frames_max);
    }
}

/// Counters of both adapters, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Direction from the host to the wire.
    pub transmit: Count,
    /// Direction from the wire to the host.
    pub receive: Count,
}

impl Counts {
    /// Adds up the counters of adapters.
    pub fn of(controls: &[Arc<PortControl>]) -> Self {
        let mut counts = Self::default();
        for queue in controls.iter().flat_map(|control| control.queues()) {
            counts.transmit += Count::of(&queue.transmit);
            counts.receive += Count::of(&queue.receive);
        }
        counts
    }

    /// Returns the counts since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { transmit: self.transmit.since(earlier.transmit), receive: self.receive.since(earlier.receive) }
    }

    /// Returns the number of frames lost in either direction.
    pub fn lost(&self) -> u64 {
        self.transmit.lost + self.receive.lost
    }

    /// Returns whether each frame that entered an adapter has left the adapter or was counted as lost.
    pub fn is_balanced(&self) -> bool {
        [self.transmit, self.receive].iter().all(|c| c.frames_in == c.frames_out + c.lost)
            && self.transmit.frames_out == self.receive.frames_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_offload::meta::RxMeta;

    #[test]
    fn dropped_are_frames_without_room_in_the_memory_and_not_those_without_room_at_the_host() {
        let direction = Direction::default();
        direction.lose_on_line(Loss::Drop, 3);
        direction.frames_in.add(1);
        direction.given(&RxMeta::default(), 60, Err(Loss::Drop));
        let count = Count::of(&direction);
        assert_eq!((count.dropped, count.lost, count.frames_in), (3, 4, 4));
    }
}
