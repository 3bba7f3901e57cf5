//! Host to line: take a super-frame, plan it, cut it into buffers of the line, seal what is to be protected.

use crate::config::AdapterConfig;
use crate::ipsec::{InForce, Keepalives, Sealing};
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss};
use offramp_offload::esp::SealedSegments;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::segment::{Refused, SegmentPolicy, Segmenter};
use std::sync::Arc;

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

/// What is left of a frame.
#[derive(Debug)]
enum Pending {
    /// It goes in the clear.
    Clear(Segmenter),
    /// It is sealed, by the sealer of that number.
    Sealed(SealedSegments, usize),
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
    pending: Option<Pending>,
    /// Nothing more is fetched from the host.
    is_draining: bool,
    /// `None` while no frame has to do with IPsec.
    sealing: Option<Box<Sealing>>,
    /// `None` while no association reminds a NAT.
    keepalives: Option<Box<Keepalives>>,
}

impl Transmit {
    /// An empty pipeline.
    pub fn new(config: &AdapterConfig) -> Self {
        Self {
            policy: SegmentPolicy { id_range: config.id_range, fragment_id: 0 },
            mtu: config.mtu,
            batch_bytes: config.transmit_batch_bytes,
            pending: None,
            is_draining: false,
            sealing: None,
            keepalives: None,
        }
    }

    /// Frames that wait for room on the line.
    pub fn held(&self) -> usize {
        match &self.pending {
            None => 0,
            Some(Pending::Clear(plan)) => plan.frames_left(),
            Some(Pending::Sealed(plan, _)) => plan.frames_left(),
        }
    }

    /// Says whether frames are still fetched from the host. What was fetched goes out in either case.
    pub(crate) fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Whether a frame is sealed in part.
    #[inline]
    pub(crate) fn is_sealing(&self) -> bool {
        matches!(self.pending, Some(Pending::Sealed(..)))
    }

    /// Seals with these associations from now on; not while a frame is sealed in part. `is_shared`: other queue
    /// pairs do so, too.
    pub(crate) fn set_ipsec(&mut self, in_force: &Arc<InForce>, is_shared: bool) {
        self.sealing = Sealing::new(in_force, self.sealing.take(), self.mtu, is_shared);
        self.keepalives = Keepalives::new(in_force);
    }

    /// Says what time it is to the associations.
    #[inline]
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if let Some(sealing) = &mut self.sealing {
            sealing.tick(now_ns);
        }
    }

    /// When [`Transmit::tick`] has something to do.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let sealing_ns = self.sealing.as_ref().and_then(|sealing| sealing.next_due_ns());
        let keepalive_ns = self.keepalives.as_ref().and_then(|keepalives| keepalives.next_due_ns());
        sealing_ns.into_iter().chain(keepalive_ns).min()
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
        if let Some(keepalives) = &mut self.keepalives {
            keepalives.send(wire, stats, now_ns);
        }
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
            batch_bytes += self.put(host, wire, stats, now_ns).max(LOST_FRAME_BYTES);
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
        if self.is_draining {
            return Ok(Taken::Nothing);
        }
        match host.tx_next(now_ns) {
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
        let mut frame = host.tx_frame();
        if self.sealing.is_some() {
            stats.host_frames.add(1);
            self.judge(&mut frame, stats, now_ns);
            self.answer(host, now_ns)?;
            return Ok(Taken::Other);
        }
        if frame.request() == TxMeta::default() && self.put_whole(&frame, wire, now_ns) {
            let len = frame.bytes().len();
            whole.frames += 1;
            whole.bytes += len;
            return Ok(Taken::Sent(len));
        }
        stats.host_frames.add(1);
        self.plan(&frame, stats);
        Ok(Taken::Other)
    }

    /// Plans what a frame becomes where some are sealed, or counts why it does not go.
    fn judge(&mut self, frame: &mut Frame<'_>, stats: &Direction, now_ns: u64) {
        let Some(sealing) = &mut self.sealing else { return };
        match sealing.judge(frame, &self.policy, now_ns) {
            Ok(None) => {
                stats.bypassed.add(1);
                self.plan(frame, stats);
            }
            Ok(Some((plan, by))) => {
                stats.frames_in.add(plan.frames_left() as u64);
                self.policy.fragment_id = self.policy.fragment_id.wrapping_add(1);
                self.pending = Some(Pending::Sealed(plan, by));
            }
            Err(reason) => {
                stats.frames_in.add(1);
                stats.lose(reason, 1);
            }
        }
    }

    /// Tells the host what is to be said of the frame that was judged last. It is no frame of the line, and no
    /// counter of one counts it.
    fn answer(&mut self, host: &mut impl HostPort, now_ns: u64) -> Result<(), PortError> {
        let Some(answer) = self.sealing.as_mut().and_then(|sealing| sealing.answer()) else { return Ok(()) };
        let mut outcome = host.rx_deliver(&RxMeta::default(), answer);
        host.end_batch(now_ns, |settled| outcome = settled.outcome);
        match outcome {
            Err(error @ PortError::Closed(_)) => Err(error),
            // Whoever has no room is told the next time.
            _ => Ok(()),
        }
    }

    /// Sends a frame of which nothing is asked, without planning it; `false` when that is not how it goes.
    #[inline]
    fn put_whole(&self, frame: &Frame<'_>, wire: &mut impl WirePort, now_ns: u64) -> bool {
        let Ok(link_header_len) = frame.link_header_len() else { return false };
        let frame = frame.bytes();
        if frame.len() - link_header_len > self.mtu {
            return false;
        }
        let Some(loan) = wire.lend(frame.len(), 1) else { return false };
        loan.bytes[..frame.len()].copy_from_slice(frame);
        wire.put(frame.len(), 1, now_ns);
        true
    }

    /// Plans what a frame becomes, or counts why it does not go.
    fn plan(&mut self, frame: &Frame<'_>, stats: &Direction) {
        match Segmenter::new(frame, &self.policy) {
            Ok(plan) => {
                stats.frames_in.add(plan.frames_left() as u64);
                self.policy.fragment_id = self.policy.fragment_id.wrapping_add(1);
                self.pending = Some(Pending::Clear(plan));
            }
            Err(refused) => {
                stats.frames_in.add(1);
                stats.lose(reason(refused), 1);
            }
        }
    }

    /// Writes frames of the pending plan while the line has room; returns the bytes written.
    fn put(&mut self, host: &mut impl HostPort, wire: &mut impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let plan = match &mut self.pending {
            None => return 0,
            Some(Pending::Sealed(..)) => return self.put_sealed(&mut host.tx_frame(), wire, stats, now_ns),
            Some(Pending::Clear(plan)) => plan,
        };
        let frame = host.tx_frame();
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
            let count = plan.write_run(&frame, loan.bytes, loan.stride);
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

    /// As [`Transmit::put`], for frames that are sealed. When their association ends, the rest of them is lost.
    fn put_sealed(&mut self, frame: &mut Frame<'_>, wire: &mut impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let Some(Pending::Sealed(plan, by)) = &mut self.pending else { return 0 };
        let Some(sealer) = self.sealing.as_mut().and_then(|sealing| sealing.sealers.get_mut(*by)) else { return 0 };
        let (mut frames, mut bytes, mut lost) = (0, 0, None);
        while plan.frames_left() > 0 && lost.is_none() {
            let room = wire.room(now_ns);
            if room == 0 {
                break;
            }
            let len = sealer.next_len(frame, plan);
            let Some(loan) = wire.lend(len, room.min(plan.frames_left())) else {
                // As above.
                lost = (wire.room(now_ns) > 0).then_some(Loss::TooLong);
                continue;
            };
            match sealer.write_run(frame, plan, loan.bytes, loan.stride) {
                Ok(count) => {
                    if let Some(keepalives) = &mut self.keepalives {
                        keepalives.sealed(*by, &loan.bytes[..len], now_ns);
                    }
                    wire.put(len, count, now_ns);
                    frames += count;
                    bytes += len * count;
                }
                Err(reason) => lost = Some(reason),
            }
        }
        if let Some(reason) = lost {
            stats.lose(reason, plan.frames_left());
        }
        if lost.is_some() || plan.frames_left() == 0 {
            self.pending = None;
        }
        stats.frames_out.add(frames as u64);
        stats.bytes_out.add(bytes as u64);
        bytes
    }
}

pub(crate) fn reason(refused: Refused) -> Loss {
    match refused {
        Refused::Malformed(_) => Loss::Malformed,
        _ => Loss::BadRequest,
    }
}
