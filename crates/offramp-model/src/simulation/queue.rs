//! A queue pair of the adapter, as seen by the driver.

use super::frame::{Content, Frame};
use super::outcome::Activity;
use crate::config::AdapterConfig;
use crate::time::{Span, Time};
use offramp_adapter::moderation::Moderator;
use offramp_impair::memory::Memory;
use std::collections::VecDeque;

/// A queue pair as seen by the driver. offramp's own code ([`offramp_impair::memory`]) decides whether the receive
/// memory stores or loses a frame.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) memory: Memory,
    /// Frames in the receive memory.
    pub(super) frames: VecDeque<Frame>,
    pub(super) moderator: Moderator,
    /// Separate moderator of transmit completions. `None` if `moderator` also counts transmit completions.
    pub(super) completion_moderator: Option<Moderator>,
    /// Time of the scheduled event at which the moderator is checked for a due interrupt.
    pub(super) moderation_at: Option<Time>,
    /// `true` while the handler or its deferred part runs. Until both have ended, the queue raises no further
    /// interrupt.
    pub(super) is_active: bool,
    /// `true` while a batch started by the polling timer is in progress.
    pub(super) is_polling: bool,
    /// `true` if the next tick of the polling timer is scheduled. A tick without waiting work is never scheduled.
    pub(super) poll_is_scheduled: bool,
    /// Time of the last interrupt or timer tick.
    pub(super) interrupted_at: Time,
    /// Accumulated cost of the current interrupt, if the moderator measures this interrupt.
    pub(super) handling: Option<Handling>,
    /// Frames to pass to the stack, the first frame at the end.
    pub(super) batch: Vec<Aggregate>,
    /// Aggregates that GRO holds for further segments (`host.gro_flush_timeout`).
    pub(super) held: Vec<Aggregate>,
    /// State of polling.
    pub(super) napi: Napi,
    pub(super) transmit_buffers: usize,
    /// Number of transmit buffers or descriptors in use.
    pub(super) in_use: usize,
    /// Frames that wait for a free transmit buffer.
    pub(super) waiting: VecDeque<Frame>,
    pub(super) completed: Completed,
    /// Number of frames read by the driver.
    pub(super) received: u64,
    /// Number of interrupts of the queue.
    pub(super) interrupts: u64,
    /// Serial number, among all queues' interrupts, of the queue's last interrupt.
    pub(super) turn: usize,
}

/// A received frame, with the segments coalesced into the frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggregate {
    pub(super) frame: Frame,
    /// Payload of the first segment, in bytes.
    pub(super) piece: u64,
    /// Number of frames of the link that were coalesced into this frame.
    pub(super) segments: u64,
    /// Time at which the driver read the first segment.
    pub(super) since: Time,
}

impl Aggregate {
    pub(super) fn new(frame: Frame, since: Time) -> Self {
        let piece = if let Content::Segment { len, .. } = frame.content { len } else { 0 };
        Self { frame, piece, segments: 1, since }
    }

    /// Returns whether another segment with `more` bytes fits.
    pub(super) fn has_room(&self, more: u64, segments_max: u64) -> bool {
        let Content::Segment { len, .. } = self.frame.content else { return false };
        let is_open = self.segments < segments_max && len.is_multiple_of(self.piece);
        is_open && self.frame.len + more <= COALESCED_LEN_MAX
    }

    /// Appends `next` if its data follow directly on the data of this aggregate, and are no longer than the first
    /// segment. Returns whether `next` was appended.
    pub(super) fn append(&mut self, next: &Self, segments_max: u64) -> bool {
        let Content::Segment { start: next_start, len: next_len, .. } = next.frame.content else { return false };
        let fits = next.segments == 1 && next_len <= self.piece && self.has_room(next_len, segments_max);
        let Content::Segment { start, len, .. } = &mut self.frame.content else { return false };
        if !fits || *start + *len != next_start {
            return false;
        }
        *len += next_len;
        self.frame.len += next_len;
        self.segments += 1;
        true
    }
}

/// An interrupt and the following batches, with the processor time charged for both. Like the model, offramp's ports
/// measure the cost of an interrupt together with the following batches. The cost excludes the later work of TCP and of
/// processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handling {
    /// Number of received frames and completed sends, as counted by the moderator.
    pub(super) frames: u64,
    pub(super) took: Span,
}

/// Sends completed by the adapter. A completed send keeps its descriptor and memory until the host has processed the
/// completion.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completed {
    pub(super) sends: u64,
    /// Payload of completed datagrams, in bytes.
    pub(super) datagram_bytes: u64,
}

impl Driver {
    pub(super) fn new(config: &AdapterConfig) -> Self {
        Self {
            memory: Memory::new(&config.memory),
            frames: VecDeque::new(),
            moderator: Moderator::new(config.moderation),
            completion_moderator: config.completion_moderation.map(Moderator::new),
            moderation_at: None,
            is_active: false,
            is_polling: false,
            poll_is_scheduled: false,
            interrupted_at: Time::START,
            handling: None,
            batch: Vec::new(),
            held: Vec::new(),
            napi: Napi::default(),
            transmit_buffers: config.memory.transmit_buffers.unwrap_or(usize::MAX),
            in_use: 0,
            waiting: VecDeque::new(),
            completed: Completed::default(),
            received: 0,
            interrupts: 0,
            turn: 0,
        }
    }

    /// Notifies the moderator of a received frame with `bytes`, or of a completed send (0 bytes). Like offramp's
    /// interrupt gate, also passes the free room of the receive memory to the moderator. Frames thus do not wait in a
    /// full ring. A completed send does not change the free room.
    pub(super) fn note_waiting(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0
            && let Some(moderator) = &mut self.completion_moderator
        {
            return moderator.arrived(now_ns, bytes);
        }
        self.moderator.arrived(now_ns, bytes);
        self.moderator.ring_has(u32::try_from(self.memory.room_frames()).unwrap_or(u32::MAX));
    }

    /// Adds `frames` frames, and the driver's processor time `costs`, to the measured cost of the current interrupt.
    pub(super) fn handles(&mut self, frames: u64, costs: &[(Activity, Span)]) {
        if let Some(handling) = &mut self.handling {
            handling.frames += frames;
            handling.took = costs.iter().fold(handling.took, |sum, &(_, span)| sum + span);
        }
    }

    /// Ends the handler and its deferred part. As in offramp's ports, the moderator receives the measured cost if at
    /// least one frame was handled.
    pub(super) fn ends(&mut self) {
        self.is_active = false;
        if let Some(Handling { frames: frames @ 1.., took }) = self.handling.take() {
            self.moderator.handled(u32::try_from(frames).unwrap_or(u32::MAX), took.whole_ns());
        }
    }

    /// Returns the moderators of the queue's interrupt.
    pub(super) fn moderators(&mut self) -> impl Iterator<Item = &mut Moderator> {
        std::iter::once(&mut self.moderator).chain(&mut self.completion_moderator)
    }

    /// Returns whether an interrupt is due. If an interrupt is due, the moderators then treat all waiting frames and
    /// sends as announced by this interrupt.
    pub(super) fn fires(&mut self, now_ns: u64) -> bool {
        let is_due = self.moderators().any(|moderator| moderator.is_due(now_ns));
        if is_due {
            self.moderators().for_each(|moderator| _ = moderator.fired(now_ns));
        }
        is_due
    }

    /// Notifies the moderators of a poll, so that waiting frames and sends need no interrupt.
    pub(super) fn seen(&mut self) {
        self.moderators().for_each(|moderator| _ = moderator.seen());
    }

    /// Returns whether a poll would find frames or completed sends.
    pub(super) fn has_work(&self) -> bool {
        self.memory.first().is_some() || self.completed.sends > 0
    }

    /// Returns whether the driver can transmit another frame without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.in_use < self.transmit_buffers && self.waiting.is_empty()
    }
}

/// The state of a queue's polling.
#[derive(Debug, Default)]
pub(super) struct Napi {
    /// Number of frames found so far by the current poll.
    pub(super) found: usize,
    /// Remaining number of polls without a frame, before interrupts are enabled.
    pub(super) deferrals_left: u64,
    /// Time at which the timer starts a poll; `None` without a scheduled poll. Before this time, interrupts can be on
    /// or off.
    pub(super) timer_at: Option<Time>,
    /// `true` if interrupts are off and no poll is in progress.
    pub(super) is_waiting: bool,
    /// Processor of the process that busy-polls the queue, if any.
    pub(super) polled_on: Option<usize>,
}

/// State of the polls that the softirqs of one processor run.
#[derive(Clone, Debug, Default)]
pub(super) struct Polls {
    /// Number of queues with an incomplete poll.
    pub(super) queues: usize,
    /// Number of frames taken from the processor's queues since processes last ran.
    pub(super) taken: usize,
    /// Queues whose poll continues after processes have run.
    pub(super) waiting: Vec<usize>,
}

/// Maximum length of a coalesced frame, in bytes: the longest IP packet and an Ethernet header.
const COALESCED_LEN_MAX: u64 = 65_535 + 14;

/// Coalesces consecutive segments of a connection in the same way as offramp's own code
/// ([`offramp_offload::coalesce`]). An aggregate has at most `segments_max` segments and the length of one IP packet.
/// All segments have the length of the first segment, except for a shorter last segment.
pub(super) fn coalesce(batch: &mut Vec<Aggregate>, segments_max: u64) {
    let mut coalesced: Vec<Aggregate> = Vec::with_capacity(batch.len());
    for next in batch.drain(..) {
        let last_of_flow =
            next.frame.flow().and_then(|flow| coalesced.iter_mut().rev().find(|last| last.frame.flow() == Some(flow)));
        if !last_of_flow.is_some_and(|last| last.append(&next, segments_max)) {
            coalesced.push(next);
        }
    }
    *batch = coalesced;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::tcp_segments;
    use crate::tcp::HEADERS_LEN;
    use offramp_offload::caps::Offloads;
    use offramp_offload::coalesce::{CoalesceConfig, Coalescer};
    use offramp_offload::frame::Frame as BytesFrame;

    const MSS: u64 = 1460;

    /// Returns the lengths of the frames that offramp's own coalescer makes from the segments of a stream. The payload
    /// lengths of the stream's super-frames are `sends`.
    fn coalesced_by_the_adapter(sends: &[u64]) -> Vec<u64> {
        let mut coalescer = Coalescer::new(CoalesceConfig::default());
        let mut lens = Vec::new();
        let mut out = |_: &_, frame: &[u8]| lens.push(frame.len() as u64);
        for mut frame in tcp_segments(sends, MSS) {
            coalescer.push(BytesFrame::received(&mut frame), Offloads::all(), None, 0, &mut out);
        }
        coalescer.flush(&mut out);
        lens
    }

    fn coalesced_by_the_model(sends: &[u64]) -> Vec<u64> {
        let mut batch = Vec::new();
        let mut start = 0;
        for payload in sends.iter().flat_map(|&len| crate::rpc::tcp_payloads(len, MSS)) {
            let content = Content::Segment { flow: 0, start, len: payload };
            batch.push(Aggregate::new(Frame::new(HEADERS_LEN + payload, content), Time::START));
            start += payload;
        }
        coalesce(&mut batch, u64::from(CoalesceConfig::default().segments_max));
        batch.iter().map(|of| of.frame.len).collect()
    }

    #[test]
    fn the_model_coalesces_as_the_adapter_does() {
        for sends in
            [&[10 * MSS][..], &[40 * MSS, 40 * MSS], &[5 * MSS + 700, 10 * MSS], &[100, 100, 100], &[44 * MSS, 800]]
        {
            assert_eq!(coalesced_by_the_model(sends), coalesced_by_the_adapter(sends), "{sends:?}");
        }
    }
}
