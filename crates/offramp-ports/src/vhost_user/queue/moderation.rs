//! Decides when a guest is notified of used chains: at once, or later.
//!
//! Used chains are published at once; only the notification is deferred. When chains are published, the driver's fields
//! in the ring decide whether the driver needs a notification (virtio 1.3, 2.7.7.2 and 2.8.14). A driver that is
//! polling its ring sees the chains and needs no notification. When a deferred notification is due, the port reads
//! these fields again: the driver may have polled since the deferral and moved `used_event`.

use offramp_adapter::moderation::{COST_NS_START, ModerationConfig, Moderator, Policy};

/// Assumed cost of an interrupt for the guest, in nanoseconds: the interrupt, the wake-up of its processor, and its
/// driver's work per batch. The port cannot measure this cost from outside the guest. Therefore, this constant is the
/// cost that the moderator assumes before its first measurement. The port adds the measured cost of the notification on
/// this thread.
const GUEST_COST_NS: u64 = COST_NS_START;

/// A number of frames returned to the driver, and their bytes.
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

    /// Returns the tally and resets it. If only chains without a frame were returned, they count as one frame, because
    /// the guest must also be notified of such chains.
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
    /// True if notifications are never deferred, and the moderator is unused.
    is_off: bool,
    moderator: Moderator,
    /// Published frames that need a notification and are not yet reported to the moderator.
    wanted: Tally,
    /// Frames published to a polling driver and not yet reported to the moderator.
    unwanted: Tally,
    /// Number of frames published since the last notification, including frames that need no notification.
    since_call: u64,
    /// Time that the oldest frame waited for the last notification, in nanoseconds. `None` after
    /// [`Self::take_waited_ns`].
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

    /// Changes the moderation, also for notifications that are already deferred. Send or drop deferred notifications
    /// before switching moderation off.
    pub(super) fn moderate(&mut self, config: &ModerationConfig) {
        self.is_off = config.policy == Policy::Off;
        self.moderator.set(*config);
    }

    /// Returns the current moderation.
    pub(super) fn config(&self) -> &ModerationConfig {
        self.moderator.config()
    }

    /// Returns whether to measure the cost of the next notification.
    pub(super) fn measures_next(&mut self) -> bool {
        self.moderator.measures_next()
    }

    /// Records `cost_ns`, the measured time that a notification took on this thread.
    pub(super) fn costed(&mut self, cost_ns: u64) {
        self.moderator.costed(GUEST_COST_NS.saturating_add(cost_ns));
    }

    /// Records a notification for all deferred chains. If `now_ns` is `None`, for example because the ring is stopped,
    /// the moderator measures no interval from this notification.
    pub(super) fn notified(&mut self, now_ns: Option<u64>) {
        self.since_call = 0;
        self.waited_ns = now_ns.map(|now_ns| self.moderator.waited_ns(now_ns));
        match now_ns {
            Some(now_ns) => self.moderator.fired(now_ns),
            None => self.moderator.seen(),
        };
        self.wanted = Tally::default();
    }

    /// Returns and clears the time that the oldest frame waited for the last notification, in nanoseconds.
    pub(super) fn take_waited_ns(&mut self) -> Option<u64> {
        self.waited_ns.take()
    }

    /// Drops the deferred notification, because the polling guest sees all chains.
    pub(super) fn forget_deferred(&mut self) {
        self.moderator.seen();
        self.unwanted = self.unwanted.plus(std::mem::take(&mut self.wanted));
    }

    /// Defers the notification for published chains.
    pub(super) fn defer(&mut self, published: Tally) {
        self.since_call = self.since_call.saturating_add(u64::from(published.frames));
        self.wanted = self.wanted.plus(published);
    }

    /// Records chains published to a polling driver, which sees these and all deferred chains.
    pub(super) fn polled(&mut self, published: Tally) {
        self.defer(published);
        self.forget_deferred();
    }

    /// Reports to the moderator the chains published since the last call of this function, and returns their tally.
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

    /// Reports to the moderator the `bytes` transferred in the opposite direction.
    pub(super) fn other_direction(&mut self, bytes: u64) {
        self.moderator.other_direction(bytes);
    }

    /// Returns whether a notification is deferred.
    pub(super) fn is_deferred(&self) -> bool {
        self.moderator.waiting() > 0 || self.wanted.frames > 0
    }

    /// Returns the number of frames published since the last notification, including frames that need no notification.
    pub(super) fn since_call(&self) -> u64 {
        self.since_call
    }

    /// Returns whether a notification is due for the frames reported to the moderator.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.moderator.is_due(now_ns)
    }

    /// Returns the time at which a notification is due if no further chain is published.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.is_off { None } else { self.moderator.next_due_ns() }
    }

    /// Returns the cost of an interrupt, in nanoseconds, or 0 if moderation is off.
    pub(super) fn cost_ns(&self) -> u64 {
        if self.is_off { 0 } else { self.moderator.cost_ns() }
    }

    /// Returns the maximum delay of a notification, in nanoseconds.
    pub(super) fn wait_max_ns(&self) -> u64 {
        self.moderator.wait_max_ns()
    }
}
