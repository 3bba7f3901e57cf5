//! Host to wire: fetch a frame, plan it, segment it into buffers of the wire, seal what is to be protected.

use crate::config::AdapterConfig;
use crate::pipeline::control::PortControl;
use crate::pipeline::plan::{Plan, Planned};
use crate::port::{HostPort, PortError, WirePort};
use crate::stats::{Direction, Loss};
use crate::vlan::PortVlans;
use offramp_offload::count;
use offramp_offload::frame::Frame;
use offramp_offload::layout::{VLAN_TAG_LEN, link_header_len};
use offramp_offload::vlan::{CUSTOMER_TAG, TAG_AT, TagChange};

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// At least one frame moved.
    pub moved: bool,
    /// There is, or may be, more to do at once.
    pub more: bool,
    /// Frames and super-frames fetched from the host.
    pub host_frames: usize,
    /// Bytes put on the wire.
    pub bytes_out: usize,
}

impl Progress {
    /// Returns the sum of two polls.
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

/// Bytes charged to the batch budget for a lost frame (the shortest of Ethernet), so that a flood of bad frames cannot
/// monopolise the thread.
const LOST_FRAME_BYTES: usize = 60;

/// The progress of a batch.
#[derive(Default)]
struct Batch {
    progress: Progress,
    /// Frames sent unchanged, and their bytes: counted once per batch.
    whole_frames: usize,
    whole_bytes: usize,
    /// Cost of fetching beside the frames' bytes.
    cost_bytes: usize,
}

impl Batch {
    fn count(&self, stats: &Direction) {
        // Idle transmit must not dirty this cache line; another worker may own it.
        if self.whole_frames == 0 {
            return;
        }
        for counter in [&stats.host_frames, &stats.frames_in, &stats.frames_out] {
            counter.add(self.whole_frames as u64);
        }
        stats.bytes_out.add(self.whole_bytes as u64);
    }
}

/// The transmit pipeline of one queue pair.
///
/// If the wire has no room for a super-frame, it stays with its owner, segmented in part if need be: the wire's
/// shortage holds the host back and nothing is lost for it.
#[derive(Debug)]
pub struct Transmit {
    pub(crate) plan: Plan,
    mtu: usize,
    batch_bytes: usize,
    pending: Option<Planned>,
    vlans: PortVlans,
    /// The tag change of the pending frame.
    change: TagChange,
    /// Nothing more is fetched from the host. Fetched frames go out in either case.
    pub(crate) is_draining: bool,
}

impl Transmit {
    /// Creates an empty pipeline for the host of this port.
    pub fn new(config: &AdapterConfig, control: &PortControl) -> Self {
        Self {
            plan: Plan::new(control),
            mtu: config.mtu,
            batch_bytes: config.transmit_batch_bytes,
            pending: None,
            vlans: control.security().vlans.clone(),
            change: TagChange::Keep,
            is_draining: false,
        }
    }

    /// Returns the number of frames waiting for room on the wire.
    pub fn held(&self) -> usize {
        self.pending.as_ref().map_or(0, Planned::frames_left)
    }

    /// Takes over changed settings, associations between two super-frames, and advances their time.
    #[inline]
    pub(crate) fn take_over(&mut self, control: &PortControl, now_ns: u64) {
        let is_shared = control.queues().len() > 1;
        self.plan.take_over(control, self.pending.as_ref(), self.mtu, is_shared, now_ns);
    }

    /// Moves frames until the host has none or is at its limit, the wire has no room, or a batch is full.
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
        if !self.plan.is_link_on
            && let Some(rest) = self.pending.take()
        {
            stats.lose(Loss::LinkOff, rest.frames_left());
        }
        self.plan.send_keepalives(stats, now_ns, |frame| wire.room(now_ns) > 0 && put_frame(frame, wire, now_ns));
        let mut batch = Batch::default();
        let outcome = self.move_batch(host, wire, &mut batch, stats, now_ns);
        batch.count(stats);
        wire.flush();
        outcome.map(|()| batch.progress)
    }

    #[inline]
    fn move_batch(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        batch: &mut Batch,
        stats: &Direction,
        now_ns: u64,
    ) -> Result<(), PortError> {
        let mut charged_bytes = 0;
        while charged_bytes + batch.cost_bytes < self.batch_bytes && wire.room(now_ns) > 0 {
            let mut bytes_out = 0;
            if self.pending.is_none() {
                let Some(whole_bytes) = self.fetch(host, wire, batch, stats, now_ns)? else { return Ok(()) };
                bytes_out = whole_bytes;
            }
            if bytes_out == 0 {
                bytes_out = self.put(host, wire, stats, now_ns);
            }
            batch.progress.moved = true;
            batch.progress.bytes_out += bytes_out;
            charged_bytes += bytes_out.max(LOST_FRAME_BYTES);
        }
        batch.progress.more = charged_bytes + batch.cost_bytes >= self.batch_bytes;
        Ok(())
    }

    /// Fetches the next frame, and sends it at once if it needs no change. Returns the bytes sent: 0 when the frame is
    /// planned, or was lost and counted; `None` when the host has none, or is at its limit.
    #[inline]
    fn fetch(
        &mut self,
        host: &mut impl HostPort,
        wire: &mut impl WirePort,
        batch: &mut Batch,
        stats: &Direction,
        now_ns: u64,
    ) -> Result<Option<usize>, PortError> {
        if !self.plan.meter.is_open(now_ns) {
            host.tx_hold();
            return Ok(None);
        }
        match if self.is_draining { Ok(false) } else { host.tx_next(now_ns) } {
            Ok(false) => return Ok(None),
            Ok(true) => batch.progress.host_frames += 1,
            Err(PortError::Refused(_)) => {
                self.plan.meter.spend_refused();
                batch.cost_bytes += host.tx_cost_bytes();
                stats.frames_in.add(1);
                stats.lose(Loss::BadRequest, 1);
                return Ok(Some(0));
            }
            Err(error) => return Err(error),
        }
        batch.cost_bytes += host.tx_cost_bytes();
        if let Some(len) = host.tx_unasked().and_then(|frame| self.put_whole(frame, wire, now_ns)) {
            self.plan.meter.spend(1, len);
            batch.whole_frames += 1;
            batch.whole_bytes += len;
            return Ok(Some(len));
        }
        stats.host_frames.add(1);
        match self.plan_next(host, stats, now_ns) {
            Ok(planned) => {
                stats.frames_in.add(planned.frames_left() as u64);
                self.pending = Some(planned);
            }
            Err(reason) => {
                stats.frames_in.add(1);
                stats.lose(reason, 1);
            }
        }
        if let Some(outcome) = self.plan.answer(host, self.change != TagChange::Keep) {
            host.rx_flush(now_ns);
            if let Err(error @ PortError::Closed(_)) = outcome {
                return Err(error);
            }
        }
        Ok(Some(0))
    }

    /// Plans the fetched frame for the wire.
    #[inline]
    fn plan_next(&mut self, host: &mut impl HostPort, stats: &Direction, now_ns: u64) -> Result<Planned, Loss> {
        let mut frame = host.tx_frame();
        self.change =
            self.vlans.change_to_wire(frame.bytes()).inspect_err(|_| self.plan.meter.spend_frame(&frame, 1))?;
        if self.change != TagChange::Keep {
            frame = host.tx_frame_with_tag(self.change).ok_or(Loss::BadRequest)?;
        }
        self.plan.plan(&mut frame, stats, now_ns)
    }

    /// Sends a frame without offload requests, unplanned. Returns its length; `None` if it cannot go this way.
    #[inline]
    fn put_whole(&self, frame: &[u8], wire: &mut impl WirePort, now_ns: u64) -> Option<usize> {
        let is_whole = self.plan.leaves(frame) && frame.len() - link_header_len(frame).ok()? <= self.mtu;
        match self.vlans.change_to_wire(frame).ok().filter(|_| is_whole)? {
            TagChange::Keep => put_frame(frame, wire, now_ns).then_some(frame.len()),
            TagChange::Push(tci) => put_tagged(frame, tci, wire, now_ns),
            TagChange::Pop | TagChange::Set(_) => None,
        }
    }

    /// Writes frames of the pending plan while the wire has room; returns the bytes written. When the association of
    /// sealed frames ends, the rest of them is lost.
    fn put(&mut self, host: &mut impl HostPort, wire: &mut impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let Self { plan, pending, mtu, change, .. } = self;
        let (Some(planned), Some(mut frame)) = (&mut *pending, lent(host, *change)) else { return 0 };
        let (mut frames, mut bytes) = (0, 0);
        let is_over = loop {
            if planned.frames_left() == 0 {
                break true;
            }
            let room = wire.room(now_ns);
            if room == 0 {
                break false;
            }
            match (put_run(plan, planned, &mut frame, wire, room, *mtu, now_ns), &mut *planned) {
                (Ok((len, count)), _) => {
                    frames += count;
                    bytes += len * count;
                }
                (Err(reason), Planned::Clear(segments)) => {
                    segments.skip_next();
                    stats.lose(reason, 1);
                }
                (Err(reason), Planned::Sealed(rest, _)) => {
                    stats.lose(reason, rest.frames_left());
                    break true;
                }
            }
        };
        if is_over {
            *pending = None;
        }
        stats.frames_out.add(frames as u64);
        stats.bytes_out.add(bytes as u64);
        bytes
    }
}

/// Returns the last fetched frame, with its tag changed.
#[inline]
pub(crate) fn lent(host: &mut impl HostPort, change: TagChange) -> Option<Frame<'_>> {
    match change {
        TagChange::Keep => Some(host.tx_frame()),
        change => host.tx_frame_with_tag(change),
    }
}

/// Puts the next frames of one length on a wire with `room`. Returns their length, and how many they are.
#[inline]
fn put_run(
    plan: &mut Plan,
    planned: &mut Planned,
    frame: &mut Frame<'_>,
    wire: &mut impl WirePort,
    room: usize,
    mtu: usize,
    now_ns: u64,
) -> Result<(usize, usize), Loss> {
    let (len, count) = plan.next_run(frame, planned, mtu)?;
    let Some(loan) = wire.lend(len, room.min(count)) else {
        // If the wire has room and lends nothing, it is too narrow for this frame.
        return if wire.room(now_ns) > 0 { Err(Loss::TooLong) } else { Ok((len, 0)) };
    };
    let count = plan.write_run(frame, planned, loan.bytes, loan.stride, now_ns)?;
    wire.put(len, count, now_ns);
    Ok((len, count))
}

/// Puts a frame on the wire; `false` where there is no room for it.
#[inline]
fn put_frame(frame: &[u8], wire: &mut impl WirePort, now_ns: u64) -> bool {
    let Some(loan) = wire.lend(frame.len(), 1) else { return false };
    count::copied(frame.len());
    loan.bytes[..frame.len()].copy_from_slice(frame);
    wire.put(frame.len(), 1, now_ns);
    true
}

/// Puts a frame with a tag more on the wire; its length then, `None` where there is no room for it.
#[inline]
fn put_tagged(frame: &[u8], tci: u16, wire: &mut impl WirePort, now_ns: u64) -> Option<usize> {
    let (addresses, rest) = frame.split_at_checked(TAG_AT)?;
    let len = frame.len() + VLAN_TAG_LEN;
    let loan = wire.lend(len, 1)?;
    count::copied(frame.len());
    let (new_addresses, tagged) = loan.bytes[..len].split_at_mut(TAG_AT);
    new_addresses.copy_from_slice(addresses);
    tagged[..2].copy_from_slice(&CUSTOMER_TAG);
    tagged[2..VLAN_TAG_LEN].copy_from_slice(&tci.to_be_bytes());
    tagged[VLAN_TAG_LEN..].copy_from_slice(rest);
    wire.put(len, 1, now_ns);
    Some(len)
}
