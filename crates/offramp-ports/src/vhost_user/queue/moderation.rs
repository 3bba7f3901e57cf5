//! When the guest is notified of used chains: at once, or when moderation says so.
//!
//! A guest sees used chains at once; only the notification is deferred. The ring's rule decides the need for one
//! (virtio 1.3, 2.7.7.2 and 2.8.14), asked when the chains are published. A driver polling at this moment sees them,
//! and needs no notification. The ring is asked again when a deferred notification is due: the driver may have polled
//! meanwhile, and moved `used_event`.

use offramp_adapter::moderation::{COST_NS_START, ModerationConfig, Moderator, Policy};

/// The assumed cost of an interrupt for the guest, nanoseconds: the interrupt, waking its processor, its driver's work
/// around a batch. It is not observable from outside, so it equals the initial cost of an interrupt before any
/// measurement. The measured cost of the notification here is added.
const GUEST_COST_NS: u64 = COST_NS_START;

/// Frames handed over, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub frames: u32,
    pub bytes: u64,
}

impl Tally {
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.frames = self.frames.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// Returns the count and begins it anew. Chains going back without a frame count as one: the guest must see them,
    /// too.
    #[inline]
    pub(super) fn take(&mut self) -> Self {
        let Self { frames, bytes } = std::mem::take(self);
        Self { frames: frames.max(1), bytes }
    }

    fn plus(self, other: Self) -> Self {
        Self { frames: self.frames.saturating_add(other.frames), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// The moderation of one ring's notifications.
#[derive(Debug)]
pub(super) struct CallModeration {
    /// Notifications are never deferred, and the moderator is not asked.
    is_off: bool,
    moderator: Moderator,
    /// Published and in need of a notification, and not known to the moderator yet.
    wanted: Tally,
    /// Published to a polling driver, and not known to the moderator yet.
    unwanted: Tally,
    /// Frames published since the last notification, wanted or not.
    since_call: u64,
    /// Wait of the oldest frame for the last notification, nanoseconds, until somebody asks.
    waited_ns: Option<u64>,
}

impl Default for CallModeration {
    fn default() -> Self {
        Self {
            is_off: true,
            moderator: Moderator::default(),
            wanted: Tally::default(),
            unwanted: Tally::default(),
            since_call: 0,
            waited_ns: None,
        }
    }
}

impl CallModeration {
    #[inline]
    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Changes the moderation, also for deferred notifications. Before it is switched off, decide about those.
    pub(super) fn moderate(&mut self, config: &ModerationConfig) {
        self.is_off = config.policy == Policy::Off;
        self.moderator.set(*config);
    }

    /// Returns the moderation in force.
    pub(super) fn config(&self) -> &ModerationConfig {
        self.moderator.config()
    }

    /// Returns whether to measure the cost of the next notification.
    pub(super) fn measures_next(&mut self) -> bool {
        self.moderator.measures_next()
    }

    /// Records the cost of a notification here, `cost_ns`.
    pub(super) fn costed(&mut self, cost_ns: u64) {
        self.moderator.costed(GUEST_COST_NS.saturating_add(cost_ns));
    }

    /// Records a notification for all deferred chains. If the time is not known, as when a ring is stopped, no gap
    /// counts from here.
    pub(super) fn notified(&mut self, now_ns: Option<u64>) {
        self.since_call = 0;
        self.waited_ns = now_ns.map(|now_ns| self.moderator.waited_ns(now_ns));
        match now_ns {
            Some(now_ns) => self.moderator.fired(now_ns),
            None => self.moderator.seen(),
        };
        self.wanted = Tally::default();
    }

    /// Returns the wait of the oldest frame for the last notification, nanoseconds; once.
    pub(super) fn take_waited_ns(&mut self) -> Option<u64> {
        self.waited_ns.take()
    }

    /// Forgets the deferred chains: the guest polls, and sees them all.
    pub(super) fn forget_deferred(&mut self) {
        self.moderator.seen();
        self.unwanted = self.unwanted.plus(std::mem::take(&mut self.wanted));
    }

    /// Defers the notification for published chains.
    pub(super) fn defer(&mut self, published: Tally) {
        self.since_call = self.since_call.saturating_add(u64::from(published.frames));
        self.wanted = self.wanted.plus(published);
    }

    /// Records chains published to a polling driver: it sees them, and all deferred ones.
    pub(super) fn polled(&mut self, published: Tally) {
        self.defer(published);
        self.forget_deferred();
    }

    /// Tells the moderator of the chains published since the last time, and returns their tally.
    pub(super) fn note(&mut self, now_ns: u64) -> Tally {
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

    /// `bytes` went the other way.
    pub(super) fn other_direction(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }

    /// Returns whether a notification is deferred.
    pub(super) fn is_deferred(&self) -> bool {
        self.moderator.waiting() > 0 || self.wanted.frames > 0
    }

    /// Returns the frames published since the last notification, including unneeded ones.
    pub(super) fn since_call(&self) -> u64 {
        self.since_call
    }

    /// Returns whether a notification is due for the frames known to the moderator.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.moderator.is_due(now_ns)
    }

    /// Returns the due time, if nothing else is published.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.is_off { None } else { self.moderator.next_due_ns() }
    }

    /// Returns the cost of an interrupt, nanoseconds; 0 while nothing is deferred.
    pub(super) fn cost_ns(&self) -> u64 {
        if self.is_off { 0 } else { self.moderator.cost_ns() }
    }

    /// Returns the maximum delay of a notification, nanoseconds.
    pub(super) fn wait_max_ns(&self) -> u64 {
        self.moderator.wait_max_ns()
    }
}
