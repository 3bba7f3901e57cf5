//! Moderation of received frames on the wire: decides how many may be fetched.
//!
//! One decision releases all waiting frames, in as many batches as their delivery takes; frames arriving meanwhile wait
//! for the next one.

use crate::moderation::{ModerationConfig, Moderator};
use crate::port::{Arrival, WirePort};
use crate::stats::Direction;

/// One queue's gate.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) moderator: Moderator,
    /// Frames on the wire noted by the moderator and not yet released; they come after the released ones.
    noted: usize,
    /// Released frames on the wire.
    released: usize,
    /// The moderator knows how much room there is, and so when to wake for the first frames.
    knows_room: bool,
}

impl Gate {
    pub(super) fn new(config: ModerationConfig) -> Self {
        Self { moderator: Moderator::new(config), noted: 0, released: 0, knows_room: false }
    }

    /// Changes the setting, also for waiting frames. Released frames stay so; without moderation all frames on the wire
    /// are released.
    pub(super) fn set(&mut self, config: ModerationConfig) {
        self.moderator.set(config);
        if self.moderator.is_off() {
            self.moderator.seen();
            (self.noted, self.released) = (0, 0);
        }
    }

    /// Returns the number of frames that may be fetched from the wire now.
    #[inline]
    pub(super) fn open(&mut self, wire: &impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        if self.moderator.is_off() { usize::MAX } else { self.open_moderated(wire, stats, now_ns) }
    }

    fn open_moderated(&mut self, wire: &impl WirePort, stats: &Direction, now_ns: u64) -> usize {
        let Self { moderator, noted, knows_room, .. } = self;
        let known = *noted;
        let room = wire.arrivals(self.released + known, now_ns, |arrival| {
            *noted += 1;
            moderator.arrived(arrival.at_ns, arrival.len as u64);
        });
        if *noted > known || !*knows_room {
            moderator.ring_has(room);
            *knows_room = true;
        }
        if self.released == 0 && moderator.is_due(now_ns) {
            stats.interrupt_wait_ns.record(moderator.waited_ns(now_ns));
            moderator.fired(now_ns);
            self.released = std::mem::take(noted);
        }
        self.released
    }

    /// Records that the oldest `frames` on the wire left it: they were fetched, or lost there.
    #[inline]
    pub(super) fn left(&mut self, frames: usize) {
        if frames > 0 {
            let released = frames.min(self.released);
            self.released -= released;
            self.noted = self.noted.saturating_sub(frames - released);
        }
    }

    /// Returns when the frames now on the wire are released if no other one comes.
    pub(super) fn next_open_ns(&self, wire: &impl WirePort) -> Option<u64> {
        if self.moderator.is_off() || self.released > 0 {
            return wire.next_arrival_ns();
        }
        // Frames under way may bring the release forward. Computing this now spares a wake-up for each of them.
        let mut ahead = self.moderator.clone();
        let mut due_ns = ahead.next_due_ns();
        wire.arrivals(self.noted, u64::MAX, |Arrival { at_ns, len }| {
            if due_ns.is_none_or(|due_ns| at_ns < due_ns) {
                ahead.arrived(at_ns, len as u64);
                // Not before it is there, even when it makes as many frames as may wait.
                due_ns = ahead.next_due_ns().map(|due_ns| due_ns.max(at_ns));
            }
        });
        due_ns
    }
}
