//! Host to line: take a super-frame, plan it, cut it into buffers of the line.

use crate::config::AdapterConfig;
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss};
use offramp_offload::layout;
use offramp_offload::meta::TxMeta;
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

/// What a frame that is lost counts for in a batch, in bytes: as the shortest one of a line. A host that
/// sends nothing else must not hold the thread forever.
const LOST_FRAME_BYTES: usize = 60;

/// What taking a frame came to.
enum Taken {
    /// The host has none.
    Nothing,
    /// It went as it is, so many bytes.
    Sent(usize),
    /// It is planned, or was lost and counted.
    Other,
}

/// Frames that went as they are, counted once per batch.
#[derive(Default)]
struct Tally {
    frames: usize,
    bytes: usize,
}

impl Tally {
    fn settle(&mut self, stats: &Direction) {
        let Self { frames, bytes } = std::mem::take(self);
        // A pair that only receives leaves these counters to the one that transmits.
        if frames == 0 {
            return;
        }
        for counter in [&stats.host_frames, &stats.frames_in, &stats.frames_out] {
            counter.add(frames as u64);
        }
        stats.bytes_out.add(bytes as u64);
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
        let mut whole = Tally::default();
        while batch_bytes < self.batch_bytes && wire.room(now_ns) > 0 {
            if self.pending.is_none() {
                match self.take(host, wire, &mut whole, stats, now_ns)? {
                    Taken::Nothing => {
                        whole.settle(stats);
                        wire.flush();
                        return Ok(progress);
                    }
                    Taken::Sent(bytes) => {
                        progress.moved = true;
                        batch_bytes += bytes;
                        continue;
                    }
                    Taken::Other => {}
                }
            }
            progress.moved = true;
            batch_bytes += self.put(host.taken().1, wire, stats, now_ns).max(LOST_FRAME_BYTES);
        }
        whole.settle(stats);
        wire.flush();
        progress.more = batch_bytes >= self.batch_bytes;
        Ok(progress)
    }

    /// Takes the next frame, and sends it at once if it goes as it is.
    #[inline]
    fn take(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        whole: &mut Tally,
        stats: &Direction,
        now_ns: u64,
    ) -> Result<Taken, PortError> {
        match host.take() {
            Ok(false) => return Ok(Taken::Nothing),
            Ok(true) => {}
            Err(PortError::Refused(_)) => {
                stats.frames_in.add(1);
                stats.lose(Loss::BadRequest, 1);
                return Ok(Taken::Other);
            }
            Err(error) => {
                whole.settle(stats);
                return Err(error);
            }
        }
        let (meta, frame) = host.taken();
        if meta == TxMeta::default() && self.put_whole(frame, wire, now_ns) {
            whole.frames += 1;
            whole.bytes += frame.len();
            return Ok(Taken::Sent(frame.len()));
        }
        self.plan(&meta, frame, stats);
        Ok(Taken::Other)
    }

    /// Sends a frame of which nothing is asked, without planning it; `false` when that is not how it goes.
    #[inline]
    fn put_whole(&self, frame: &[u8], wire: &mut impl WirePort, now_ns: u64) -> bool {
        let Ok(link_header_len) = layout::link_header_len(frame) else { return false };
        if frame.len() - link_header_len > self.mtu {
            return false;
        }
        let Some(loan) = wire.lend(frame.len(), 1) else { return false };
        loan.bytes[..frame.len()].copy_from_slice(frame);
        wire.put(frame.len(), 1, now_ns);
        true
    }

    /// Plans what a frame becomes, or counts why it does not go.
    fn plan(&mut self, meta: &TxMeta, frame: &[u8], stats: &Direction) {
        stats.host_frames.add(1);
        match Segmenter::new(frame, meta, &self.policy) {
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
