//! When a guest is called for what a ring has shown it: at once, or when moderation says so.
//!
//! A guest sees what is shown at once; only the call is put off. Whether it wants one is the ring's own rule
//! (virtio 1.3, 2.7.7.2, 2.8.14), asked when something is shown: a driver that looks by itself at that moment
//! sees it, and is owed nothing. It is asked again when the call is due, about everything since the last
//! decision: the driver may have looked meanwhile, and wish for another place.

use super::counters::QueueCounters;
use crate::worker::thread_time_ns;
use nix::unistd::write;
use offramp_adapter::moderation::{COST_NS_START, ModerationConfig, Moderator, Policy};
use std::os::fd::OwnedFd;

/// What a call is taken to cost the guest, nanoseconds: the interrupt, waking its processor, its driver's
/// work around a batch. Nobody outside sees it, so it is what an interrupt is taken to cost before anything is
/// measured; what the call costs here is measured, and comes on top.
const GUEST_COST_NS: u64 = COST_NS_START;
/// What an eventfd is written.
const EVENT: [u8; 8] = 1u64.to_ne_bytes();

/// Frames, as they are handed over, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub frames: u32,
    pub bytes: u64,
}

impl Tally {
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.frames = self.frames.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// What was counted, which begins anew. Chains that go back without a frame are something to look at, too.
    #[inline]
    pub fn take(&mut self) -> Self {
        let Self { frames, bytes } = std::mem::take(self);
        Self { frames: frames.max(1), bytes }
    }

    fn plus(self, other: Self) -> Self {
        Self { frames: self.frames.saturating_add(other.frames), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// The calls of one ring.
#[derive(Debug)]
pub(super) struct Calls {
    event: Option<OwnedFd>,
    /// Nothing is put off, and the moderator is not asked.
    is_off: bool,
    moderator: Moderator,
    /// Shown and wanted, and not known to the moderator yet.
    wanted: Tally,
    /// Shown to a driver that looks by itself, and not known to the moderator yet.
    unwanted: Tally,
    /// Frames that were shown since the last call, wanted or not.
    since_call: u64,
    /// Calls that were made and that nobody asked about yet.
    made: u64,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            event: None,
            is_off: true,
            moderator: Moderator::default(),
            wanted: Tally::default(),
            unwanted: Tally::default(),
            since_call: 0,
            made: 0,
        }
    }
}

impl Calls {
    /// Takes over what a call is made by; none: the guest is never called.
    pub fn set_event(&mut self, event: Option<OwnedFd>) {
        self.event = event;
    }

    #[inline]
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Changes the moderation, for what waits, too. Before it is switched off, what waits is to be decided.
    pub fn moderate(&mut self, config: &ModerationConfig) {
        self.is_off = config.policy == Policy::Off;
        self.moderator.set(*config);
    }

    /// The moderation in force.
    pub fn config(&self) -> &ModerationConfig {
        self.moderator.config()
    }

    /// Calls the guest now.
    #[inline]
    pub fn call(&mut self, counters: &QueueCounters) {
        let Some(event) = &self.event else { return };
        counters.calls.add(1);
        self.made += 1;
        // EAGAIN: the guest has more calls to see than an eventfd can count. Other errors are the frontend's
        // loss: it made the descriptor.
        let _ = write(event, &EVENT);
    }

    /// Calls the guest for what waits, and learns what that costs. Where the time is not known, as when a ring
    /// is stopped, no gap counts from here.
    pub fn call_for_waiting(&mut self, now_ns: Option<u64>, counters: &QueueCounters) {
        let begun_ns = self.moderator.measures_next().then(thread_time_ns);
        self.call(counters);
        self.since_call = 0;
        if let Some(begun_ns) = begun_ns {
            self.moderator.costed(GUEST_COST_NS.saturating_add(thread_time_ns().saturating_sub(begun_ns)));
        }
        match now_ns {
            Some(now_ns) => self.moderator.fired(now_ns),
            None => self.moderator.seen(),
        };
        self.wanted = Tally::default();
    }

    /// The guest looks at what waits by itself.
    pub fn forget_waiting(&mut self) {
        self.moderator.seen();
        self.unwanted = self.unwanted.plus(std::mem::take(&mut self.wanted));
    }

    /// Something was shown, and the guest wants to be called for it.
    pub fn put_off(&mut self, shown: Tally) {
        self.since_call = self.since_call.saturating_add(u64::from(shown.frames));
        self.wanted = self.wanted.plus(shown);
    }

    /// Something was shown to a guest that looks by itself, at that and at all that waited.
    pub fn leave(&mut self, shown: Tally) {
        self.put_off(shown);
        self.forget_waiting();
    }

    /// Tells the moderator what was shown since the last time; what that was.
    pub fn note(&mut self, now_ns: u64) -> Tally {
        let (unwanted, wanted) = (std::mem::take(&mut self.unwanted), std::mem::take(&mut self.wanted));
        if unwanted.frames > 0 {
            self.moderator.arrived_together(now_ns, unwanted.frames, unwanted.bytes);
            self.moderator.seen();
        }
        if wanted.frames > 0 {
            self.moderator.arrived_together(now_ns, wanted.frames, wanted.bytes);
        }
        unwanted.plus(wanted)
    }

    /// So many bytes went the other way.
    pub fn other_direction(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }

    /// Whether a call is put off.
    pub fn is_waiting(&self) -> bool {
        self.moderator.waiting() > 0 || self.wanted.frames > 0
    }

    /// Frames that were shown since the last call, whether or not the guest wanted one.
    pub fn since_call(&self) -> u64 {
        self.since_call
    }

    /// Whether the guest is to be called for what the moderator knows of.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.moderator.is_due(now_ns)
    }

    /// When it is due if nothing else is shown.
    pub fn next_due_ns(&self) -> Option<u64> {
        if self.is_off { None } else { self.moderator.next_due_ns() }
    }

    /// What a call costs, nanoseconds; 0 while nothing is put off.
    pub fn cost_ns(&self) -> u64 {
        if self.is_off { 0 } else { self.moderator.cost_ns() }
    }

    /// The longest that a call is put off, nanoseconds.
    pub fn wait_max_ns(&self) -> u64 {
        self.moderator.wait_max_ns()
    }

    /// How many calls were made since the last time.
    #[inline]
    pub fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }
}
