//! When the guest is notified of used chains: at once, or when moderation says so.
//!
//! A guest sees used chains at once; only the notification is deferred. Whether it needs one is the ring's rule (virtio
//! 1.3, 2.7.7.2 and 2.8.14), asked when the chains are published. If the driver polls at that moment it sees them, and
//! needs no notification. The ring is asked again when a deferred notification is due: the driver may have polled
//! meanwhile, and moved `used_event`.

use offramp_adapter::moderation::{COST_NS_START, ModerationConfig, Moderator, Policy};

/// What an interrupt is taken to cost the guest, nanoseconds: the interrupt, waking its processor, its driver's work
/// around a batch. Nobody outside sees that, so it is the cost that an interrupt has before anything is measured. What
/// the notification costs here is measured, and is added.
const GUEST_COST_NS: u64 = COST_NS_START;

/// Frames that were handed over, and their bytes.
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

    /// What was counted; the count begins anew. Chains that go back without a frame count as one: the guest must see
    /// them, too.
    #[inline]
    pub fn take(&mut self) -> Self {
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
    /// Nothing is deferred, and the moderator is not asked.
    is_off: bool,
    moderator: Moderator,
    /// Published and in need of a notification, and not known to the moderator yet.
    wanted: Tally,
    /// Published to a driver that polls, and not known to the moderator yet.
    unwanted: Tally,
    /// Frames that were published since the last notification, wanted or not.
    since_call: u64,
    /// How long the oldest frame had waited for the last notification, nanoseconds, until somebody asks.
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
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Changes the moderation, also for what is deferred. Before it is switched off, decide what is deferred.
    pub fn moderate(&mut self, config: &ModerationConfig) {
        self.is_off = config.policy == Policy::Off;
        self.moderator.set(*config);
    }

    /// The moderation in force.
    pub fn config(&self) -> &ModerationConfig {
        self.moderator.config()
    }

    /// Whether the cost of the next notification is to be measured.
    pub fn measures_next(&mut self) -> bool {
        self.moderator.measures_next()
    }

    /// The notification took `cost_ns` here.
    pub fn costed(&mut self, cost_ns: u64) {
        self.moderator.costed(GUEST_COST_NS.saturating_add(cost_ns));
    }

    /// The guest was notified of all that was deferred. Where the time is not known, as when a ring is stopped, no gap
    /// counts from here.
    pub fn notified(&mut self, now_ns: Option<u64>) {
        self.since_call = 0;
        self.waited_ns = now_ns.map(|now_ns| self.moderator.waited_ns(now_ns));
        match now_ns {
            Some(now_ns) => self.moderator.fired(now_ns),
            None => self.moderator.seen(),
        };
        self.wanted = Tally::default();
    }

    /// How long the oldest frame had waited for the last notification, nanoseconds; once.
    pub fn take_waited_ns(&mut self) -> Option<u64> {
        self.waited_ns.take()
    }

    /// The guest polls, and sees all that was deferred.
    pub fn forget_deferred(&mut self) {
        self.moderator.seen();
        self.unwanted = self.unwanted.plus(std::mem::take(&mut self.wanted));
    }

    /// Defers the notification for what was published.
    pub fn defer(&mut self, published: Tally) {
        self.since_call = self.since_call.saturating_add(u64::from(published.frames));
        self.wanted = self.wanted.plus(published);
    }

    /// Something was published to a driver that polls: it sees that, and all that was deferred.
    pub fn polled(&mut self, published: Tally) {
        self.defer(published);
        self.forget_deferred();
    }

    /// Tells the moderator what was published since the last time; what that was.
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

    /// `bytes` went the other way.
    pub fn other_direction(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }

    /// Whether a notification is deferred.
    pub fn is_deferred(&self) -> bool {
        self.moderator.waiting() > 0 || self.wanted.frames > 0
    }

    /// Frames that were published since the last notification, whether or not the guest needed one.
    pub fn since_call(&self) -> u64 {
        self.since_call
    }

    /// Whether a notification is due for what the moderator knows of.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.moderator.is_due(now_ns)
    }

    /// When it is due if nothing else is published.
    pub fn next_due_ns(&self) -> Option<u64> {
        if self.is_off { None } else { self.moderator.next_due_ns() }
    }

    /// What an interrupt costs, nanoseconds; 0 while nothing is deferred.
    pub fn cost_ns(&self) -> u64 {
        if self.is_off { 0 } else { self.moderator.cost_ns() }
    }

    /// The longest that a notification is deferred, nanoseconds.
    pub fn wait_max_ns(&self) -> u64 {
        self.moderator.wait_max_ns()
    }
}
