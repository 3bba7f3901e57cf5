//! A queue pair of the adapter from its driver's view.

use super::frame::{Content, Frame};
use super::outcome::Activity;
use crate::config::AdapterConfig;
use crate::time::{Span, Time};
use offramp_adapter::moderation::Moderator;
use offramp_impair::memory::Memory;
use std::collections::VecDeque;

/// A queue pair of the adapter from its driver's view. The adapter's own code decides between storing and losing a
/// frame.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) memory: Memory,
    /// The frames in the memory.
    pub(super) frames: VecDeque<Frame>,
    pub(super) moderator: Moderator,
    /// Moderator of completed sends, if it is not the one of received frames.
    pub(super) completion_moderator: Option<Moderator>,
    /// The time of the scheduled question to the moderator.
    pub(super) moderation_at: Option<Time>,
    /// The handler or its deferred part runs: no further interrupt comes.
    pub(super) is_active: bool,
    /// A batch begun by the timer is under way.
    pub(super) is_polling: bool,
    /// The timer's next tick is scheduled; ticks with nothing waiting are left out.
    pub(super) poll_is_scheduled: bool,
    /// Time of the last interrupt, or of the last tick of the timer.
    pub(super) interrupted_at: Time,
    /// Cost of the interrupt under way so far, if the moderator measures it.
    pub(super) handling: Option<Handling>,
    /// The frames to hand over, the next one last.
    pub(super) batch: Vec<Aggregate>,
    /// Aggregates held by software for further segments (`host.gro_flush_timeout`).
    pub(super) held: Vec<Aggregate>,
    /// State of polling in place of interrupts.
    pub(super) napi: Napi,
    pub(super) transmit_buffers: usize,
    /// Transmit buffers or descriptors in use.
    pub(super) in_use: usize,
    /// Frames that wait for a free transmit buffer.
    pub(super) waiting: VecDeque<Frame>,
    pub(super) completed: Completed,
    /// Frames read out by the driver so far.
    pub(super) received: u64,
    /// Interrupts so far.
    pub(super) interrupts: u64,
    /// Number of its last interrupt among all interrupts.
    pub(super) turn: usize,
}

/// A frame to hand over, with its coalesced segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggregate {
    pub(super) frame: Frame,
    /// Payload of the first segment.
    pub(super) piece: u64,
    /// Frames on the wire.
    pub(super) segments: u64,
    /// The time at which the first was read out.
    pub(super) since: Time,
}

impl Aggregate {
    pub(super) fn new(frame: Frame, since: Time) -> Self {
        let piece = if let Content::Segment { len, .. } = frame.content { len } else { 0 };
        Self { frame, piece, segments: 1, since }
    }

    /// Returns whether there is room for `more` bytes of another segment.
    pub(super) fn has_room(&self, more: u64, segments_max: u64) -> bool {
        let Content::Segment { len, .. } = self.frame.content else { return false };
        let is_open = self.segments < segments_max && len.is_multiple_of(self.piece);
        is_open && self.frame.len + more <= COALESCED_LEN_MAX
    }

    /// Appends a segment if it follows, and is no longer than the first.
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

/// An interrupt and the batch after it, with their cost as charged to the processor; the ports measure the same of
/// theirs. The later work of TCP and processes is not part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handling {
    /// Received frames and completed sends: the moderator counts both.
    pub(super) frames: u64,
    pub(super) took: Span,
}

/// Sends completed by the adapter. Until the host has processed them, they keep their descriptors and their memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completed {
    pub(super) sends: u64,
    /// Payload of datagrams among them.
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

    /// Notifies the moderator of a frame of `bytes`, or of a completed send (0 bytes), not yet known to the host. Like
    /// the product's own gate, this passes the room left in the receive memory, so no frame waits in a full ring. A
    /// completed send takes no room there, so the moderator gets the same room again.
    pub(super) fn note_waiting(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0
            && let Some(moderator) = &mut self.completion_moderator
        {
            return moderator.arrived(now_ns, bytes);
        }
        self.moderator.arrived(now_ns, bytes);
        self.moderator.ring_has(u32::try_from(self.memory.room_frames()).unwrap_or(u32::MAX));
    }

    /// Adds the driver's time for this number of frames of the batch.
    pub(super) fn handles(&mut self, frames: u64, costs: &[(Activity, Span)]) {
        if let Some(handling) = &mut self.handling {
            handling.frames += frames;
            handling.took = costs.iter().fold(handling.took, |sum, &(_, span)| sum + span);
        }
    }

    /// Ends the handler and its deferred part. The moderator learns their cost if the batches held something, as in the
    /// ports.
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

    /// Returns whether an interrupt is due, and lets it cover all waiting frames and sends.
    pub(super) fn fires(&mut self, now_ns: u64) -> bool {
        let is_due = self.moderators().any(|moderator| moderator.is_due(now_ns));
        if is_due {
            self.moderators().for_each(|moderator| _ = moderator.fired(now_ns));
        }
        is_due
    }

    /// Notifies the moderators of a poll: waiting frames and sends need no interrupt.
    pub(super) fn seen(&mut self) {
        self.moderators().for_each(|moderator| _ = moderator.seen());
    }

    /// Returns whether a poll would find something.
    pub(super) fn has_work(&self) -> bool {
        self.memory.first().is_some() || self.completed.sends > 0
    }

    /// Returns whether another frame can be handed down without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.in_use < self.transmit_buffers && self.waiting.is_empty()
    }
}

/// The state of a queue's polling.
#[derive(Debug, Default)]
pub(super) struct Napi {
    /// Frames found by the poll under way.
    pub(super) found: usize,
    /// Polls without a frame until interrupts are on again.
    pub(super) deferrals_left: u64,
    /// The time at which the timer begins a poll, with interrupts on or off.
    pub(super) timer_at: Option<Time>,
    /// Interrupts are off, and no poll is under way.
    pub(super) is_waiting: bool,
    /// The processor of a polling process.
    pub(super) polled_on: Option<usize>,
}

/// Polls of the softirqs of a processor.
#[derive(Clone, Debug, Default)]
pub(super) struct Polls {
    /// Queues with an incomplete poll.
    pub(super) queues: usize,
    /// Frames taken from all of them since the last turn of processes.
    pub(super) taken: usize,
    /// The queues among them to poll on after the next turn of processes.
    pub(super) waiting: Vec<usize>,
}

/// Bytes of the largest coalesced frame: an IP packet's, and an Ethernet header's.
const COALESCED_LEN_MAX: u64 = 65_535 + 14;

/// Coalesces consecutive segments of a connection, as the adapter's own code does ([`offramp_offload::coalesce`]): up
/// to `segments_max` and the length of one IP packet, all as long as the first. A shorter segment is the last one.
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

    /// Returns the lengths of the adapter's coalesced frames for a stream with these large sends.
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
