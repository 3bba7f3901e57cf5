//! What lets received frames through: at once, or when moderation says so.
//!
//! Frames wait on the wire. One decision releases all that wait, however many batches it takes to deliver
//! them; frames that come meanwhile wait for the next one.

use crate::moderation::{ModerationConfig, Moderator, Policy};
use crate::port::{Arrival, WirePort};

/// One queue's gate.
#[derive(Debug)]
pub(super) struct Gate {
    moderator: Moderator,
    /// Nothing waits, and the moderator is not asked.
    is_off: bool,
    /// Frames on the wire that the moderator knows of and has not released; they come after the released ones.
    noted: usize,
    /// Frames on the wire that were released.
    released: usize,
    /// The moderator knows how much room there is, and so when to wake for the first frames.
    knows_room: bool,
}

impl Gate {
    pub(super) fn new(config: ModerationConfig) -> Self {
        Self {
            moderator: Moderator::new(config),
            is_off: config.policy == Policy::Off,
            noted: 0,
            released: 0,
            knows_room: false,
        }
    }

    /// Changes the setting, for what waits too. The gate never closes behind frames that were let through,
    /// unless it is taken away: then all that is on the wire is free.
    pub(super) fn set(&mut self, config: ModerationConfig) {
        self.is_off = config.policy == Policy::Off;
        self.moderator.set(config);
        if self.is_off {
            self.moderator.seen();
            (self.noted, self.released) = (0, 0);
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    /// How many frames may be fetched from the wire now.
    #[inline]
    pub(super) fn open(&mut self, wire: &impl WirePort, now_ns: u64) -> usize {
        if self.is_off { usize::MAX } else { self.open_moderated(wire, now_ns) }
    }

    fn open_moderated(&mut self, wire: &impl WirePort, now_ns: u64) -> usize {
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
            moderator.fired(now_ns);
            self.released = std::mem::take(noted);
        }
        self.released
    }

    /// The oldest `frames` on the wire were lost there before they were fetched.
    #[inline]
    pub(super) fn lost(&mut self, frames: usize) {
        if frames > 0 {
            let released = frames.min(self.released);
            self.released -= released;
            self.noted = self.noted.saturating_sub(frames - released);
        }
    }

    /// `frames` were fetched from the wire.
    #[inline]
    pub(super) fn taken(&mut self, frames: usize) {
        self.released = self.released.saturating_sub(frames);
    }

    /// Whether it is worth measuring how long the next batch takes.
    pub(super) fn measures_next(&mut self) -> bool {
        !self.is_off && self.moderator.measures_next()
    }

    /// Delivering a batch of `frames` took `took_ns`.
    pub(super) fn handled(&mut self, frames: usize, took_ns: u64) {
        self.moderator.handled(frames as u32, took_ns);
    }

    /// The host sent `bytes`.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }

    /// When the frames that are on the wire now are released if no other one comes.
    pub(super) fn next_open_ns(&self, wire: &impl WirePort) -> Option<u64> {
        if self.is_off || self.released > 0 {
            return wire.next_arrival_ns();
        }
        // Frames that are still under way may make it sooner than those that wait. To know it now spares
        // a wake-up for each of them.
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

    /// What an interrupt was found to cost, nanoseconds; 0 while nothing is measured.
    pub(super) fn cost_ns(&self) -> u64 {
        if self.is_off { 0 } else { self.moderator.cost_ns() }
    }

    /// The longest that a frame waits, nanoseconds.
    pub(super) fn wait_max_ns(&self) -> u64 {
        self.moderator.wait_max_ns()
    }
}
