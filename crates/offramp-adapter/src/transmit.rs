//! Host to line: take a super-frame, plan it, cut it into buffers of the line.

use crate::config::AdapterConfig;
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss};
use offramp_offload::segment::{Refused, SegmentPolicy, Segmenter};

/// What a poll of one direction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// At least one frame moved.
    pub moved: bool,
    /// There is, or may be, more to do at once.
    pub more: bool,
}

impl Progress {
    /// What two directions did together.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { moved: self.moved || other.moved, more: self.more || other.more }
    }
}

/// The transmit pipeline of one queue pair.
///
/// A super-frame that the line has no room for stays with its owner, half cut if need be: the line's
/// shortage holds the host back and nothing is lost for it.
#[derive(Debug)]
pub struct Transmit {
    policy: SegmentPolicy,
    mtu: usize,
    batch_bytes: usize,
    pending: Option<Segmenter>,
}

impl Transmit {
    /// An empty pipeline.
    pub fn new(config: &AdapterConfig) -> Self {
        Self {
            policy: SegmentPolicy { id_range: config.id_range, fragment_id: 0 },
            mtu: config.mtu,
            batch_bytes: config.transmit_batch_bytes,
            pending: None,
        }
    }

    /// Frames that wait for room on the line.
    pub fn held(&self) -> usize {
        self.pending.as_ref().map_or(0, Segmenter::frames_left)
    }

    /// Moves frames until the host has none, the line has no room, or a batch is full.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    pub fn poll(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        stats: &Direction,
        now_ns: u64,
    ) -> Result<Progress, PortError> {
        let mut progress = Progress::default();
        let mut batch_bytes = 0;
        while batch_bytes < self.batch_bytes && wire.room(now_ns) > 0 {
            if self.pending.is_none() && !self.take(host, stats)? {
                wire.flush();
                return Ok(progress);
            }
            progress.moved = true;
            batch_bytes += self.put(host.taken().1, wire, stats, now_ns);
        }
        wire.flush();
        progress.more = batch_bytes >= self.batch_bytes;
        Ok(progress)
    }

    /// Takes and plans the next frame; `false` when the host has none.
    fn take(&mut self, host: &mut impl HostPort, stats: &Direction) -> Result<bool, PortError> {
        match host.take() {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(PortError::Refused(_)) => {
                stats.frames_in.add(1);
                stats.lose(Loss::BadRequest, 1);
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
        stats.host_frames.add(1);
        let (meta, frame) = host.taken();
        match Segmenter::new(frame, &meta, &self.policy) {
            Ok(plan) => {
                stats.frames_in.add(plan.frames_left() as u64);
                self.policy.fragment_id = self.policy.fragment_id.wrapping_add(1);
                self.pending = Some(plan);
            }
            Err(refused) => {
                stats.frames_in.add(1);
                stats.lose(reason(refused), 1);
            }
        }
        Ok(true)
    }

    /// Writes frames of the pending plan while the line has room; returns the bytes written.
    fn put(&mut self, frame: &[u8], wire: &mut impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let Some(plan) = &mut self.pending else { return 0 };
        let (mut frames, mut bytes) = (0, 0);
        while plan.frames_left() > 0 {
            let len = plan.next_len();
            if len - plan.link_header_len() > self.mtu {
                plan.skip_next();
                stats.lose(Loss::TooLong, 1);
                continue;
            }
            let room = wire.room(now_ns);
            if room == 0 {
                break;
            }
            let Some(loan) = wire.lend(len, room.min(plan.run_len())) else {
                // A line with room that lends nothing is too narrow for this frame.
                if wire.room(now_ns) > 0 {
                    plan.skip_next();
                    stats.lose(Loss::TooLong, 1);
                }
                continue;
            };
            let count = plan.write_run(frame, loan.bytes, loan.stride);
            wire.put(len, count, now_ns);
            frames += count;
            bytes += len * count;
        }
        if plan.frames_left() == 0 {
            self.pending = None;
        }
        stats.frames_out.add(frames as u64);
        stats.bytes_out.add(bytes as u64);
        bytes
    }
}

fn reason(refused: Refused) -> Loss {
    match refused {
        Refused::Malformed(_) => Loss::Malformed,
        _ => Loss::BadRequest,
    }
}
