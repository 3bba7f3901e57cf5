//! Host to wire: fetch a frame, plan it, segment it into buffers of the wire, seal what is to be protected.

use crate::config::AdapterConfig;
use crate::ipsec::Ipsec;
use crate::pipeline::plan::{Plan, Planned};
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{RxMeta, TxMeta};

/// What a poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// At least one frame moved.
    pub moved: bool,
    /// There is, or may be, more to do at once.
    pub more: bool,
    /// Frames and super-frames that were fetched from the host.
    pub host_frames: usize,
    /// Bytes that were put on the wire.
    pub bytes_out: usize,
}

impl Progress {
    /// What two polls did together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            moved: self.moved || other.moved,
            more: self.more || other.more,
            host_frames: self.host_frames + other.host_frames,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }
}

/// Bytes charged to the batch budget for a frame that is lost (the shortest of Ethernet), so that a flood of bad frames
/// cannot monopolise the thread.
const LOST_FRAME_BYTES: usize = 60;

/// What fetching a frame came to.
enum Fetched {
    /// The host has none.
    Nothing,
    /// It went as it is, with this many bytes.
    Sent(usize),
    /// It is planned, or was lost and counted.
    Planned,
    /// The port cannot express it: it was lost and counted.
    Refused,
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
        // Idle transmit must not dirty this cache line; another worker may own it.
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
/// A super-frame that the wire has no room for stays with its owner, segmented in part if need be: the wire's
/// shortage holds the host back and nothing is lost for it.
#[derive(Debug)]
pub struct Transmit {
    plan: Plan,
    mtu: usize,
    batch_bytes: usize,
    pending: Option<Planned>,
    /// Nothing more is fetched from the host.
    is_draining: bool,
}

impl Transmit {
    /// An empty pipeline.
    pub fn new(config: &AdapterConfig) -> Self {
        Self {
            plan: Plan::new(config.id_range),
            mtu: config.mtu,
            batch_bytes: config.transmit_batch_bytes,
            pending: None,
            is_draining: false,
        }
    }

    /// Frames that wait for room on the wire.
    pub fn held(&self) -> usize {
        self.pending.as_ref().map_or(0, Planned::frames_left)
    }

    /// Says whether frames are still fetched from the host. What was fetched goes out in either case.
    pub(crate) fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Takes over associations that have changed, between two super-frames, and lets their time go on. `is_shared`: other
    /// queue pairs seal with them, too.
    #[inline]
    pub(crate) fn take_over(&mut self, ipsec: &Ipsec, is_shared: bool, now_ns: u64) {
        if matches!(self.pending, Some(Planned::Sealed(..))) {
            self.plan.tick(now_ns);
        } else {
            self.plan.take_over(ipsec, self.mtu, is_shared, now_ns);
        }
    }

    /// When [`Transmit::take_over`] or a keepalive has something to do.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        self.plan.next_deadline_ns()
    }

    /// Moves frames until the host has none, the wire has no room, or a batch is full.
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
        self.plan.send_keepalives(stats, now_ns, |frame| wire.room(now_ns) > 0 && put_frame(frame, wire, now_ns));
        let mut batch_bytes = 0;
        let mut whole = Tally::default();
        while batch_bytes < self.batch_bytes && wire.room(now_ns) > 0 {
            if self.pending.is_none() {
                match self.fetch(host, wire, &mut whole, stats, now_ns)? {
                    Fetched::Nothing => {
                        whole.settle(stats);
                        wire.flush();
                        return Ok(progress);
                    }
                    Fetched::Sent(bytes) => {
                        progress =
                            progress.and(Progress { moved: true, more: false, host_frames: 1, bytes_out: bytes });
                        batch_bytes += bytes;
                        continue;
                    }
                    Fetched::Planned => progress.host_frames += 1,
                    Fetched::Refused => {}
                }
            }
            let bytes_out = self.put(host, wire, stats, now_ns);
            progress = progress.and(Progress { moved: true, more: false, host_frames: 0, bytes_out });
            batch_bytes += bytes_out.max(LOST_FRAME_BYTES);
        }
        whole.settle(stats);
        wire.flush();
        progress.more = batch_bytes >= self.batch_bytes;
        Ok(progress)
    }

    /// Fetches the next frame, and sends it at once if it goes as it is.
    #[inline]
    fn fetch(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        whole: &mut Tally,
        stats: &Direction,
        now_ns: u64,
    ) -> Result<Fetched, PortError> {
        if self.is_draining {
            return Ok(Fetched::Nothing);
        }
        match host.tx_next(now_ns) {
            Ok(false) => return Ok(Fetched::Nothing),
            Ok(true) => {}
            Err(PortError::Refused(_)) => {
                stats.frames_in.add(1);
                stats.lose(Loss::BadRequest, 1);
                return Ok(Fetched::Refused);
            }
            Err(error) => {
                whole.settle(stats);
                return Err(error);
            }
        }
        let mut frame = host.tx_frame();
        if self.plan.leaves_frames() && frame.request() == TxMeta::default() && self.put_whole(&frame, wire, now_ns) {
            let len = frame.bytes().len();
            whole.frames += 1;
            whole.bytes += len;
            return Ok(Fetched::Sent(len));
        }
        stats.host_frames.add(1);
        match self.plan.plan(&mut frame, stats, now_ns) {
            Ok(planned) => {
                stats.frames_in.add(planned.frames_left() as u64);
                self.pending = Some(planned);
            }
            Err(reason) => {
                stats.frames_in.add(1);
                stats.lose(reason, 1);
            }
        }
        self.answer(host, now_ns)?;
        Ok(Fetched::Planned)
    }

    /// Delivers the ICMP message about the frame that was planned last, if there is one.
    fn answer(&mut self, host: &mut impl HostPort, now_ns: u64) -> Result<(), PortError> {
        let Some(answer) = self.plan.answer() else { return Ok(()) };
        let outcome = host.rx_deliver(&RxMeta::default(), answer);
        host.rx_flush(now_ns);
        match outcome {
            Err(error @ PortError::Closed(_)) => Err(error),
            // A host without room gets the next one.
            _ => Ok(()),
        }
    }

    /// Sends a frame of which nothing is asked, without planning it; `false` when that is not how it goes.
    #[inline]
    fn put_whole(&self, frame: &Frame<'_>, wire: &mut impl WirePort, now_ns: u64) -> bool {
        let Ok(link_header_len) = frame.link_header_len() else { return false };
        let frame = frame.bytes();
        frame.len() - link_header_len <= self.mtu && put_frame(frame, wire, now_ns)
    }

    /// Writes frames of the pending plan while the line has room; returns the bytes written.
    fn put(&mut self, host: &mut impl HostPort, wire: &mut impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let plan = match &mut self.pending {
            None => return 0,
            Some(Planned::Sealed(..)) => return self.put_sealed(&mut host.tx_frame(), wire, stats, now_ns),
            Some(Planned::Clear(plan)) => plan,
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
        let Some(Planned::Sealed(plan, by)) = &mut self.pending else { return 0 };
        let Some((sealer, mut keepalives)) = self.plan.sealer(*by) else { return 0 };
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
                    if let Some(keepalives) = &mut keepalives {
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

/// Puts a frame on the wire; `false` where there is no room for it.
#[inline]
fn put_frame(frame: &[u8], wire: &mut impl WirePort, now_ns: u64) -> bool {
    let Some(loan) = wire.lend(frame.len(), 1) else { return false };
    loan.bytes[..frame.len()].copy_from_slice(frame);
    wire.put(frame.len(), 1, now_ns);
    true
}
