//! A ring of a port: a virtqueue, its state set by the frontend, and the moderation of its notifications.

use super::moderation::{CallModeration, Tally};
use crate::vhost_user::counters::QueueCounters;
use crate::worker::thread_time_ns;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::ring::{BadRing, Chain};
use offramp_virtio::vring::{Vring, VringSetup};

/// Divisor of the receive ring's size: when fewer than size / divisor buffers are left, the guest is notified
/// regardless of the moderation. While the guest wakes up, the port delivers frames into the remaining buffers. Drivers
/// refill a ring before half of its buffers are used (Linux: after 32 of 256), so this limit applies only to a sleeping
/// guest.
pub(super) const RECEIVE_GUARD_PART: u16 = 2;
/// Divisor of the transmit ring's size. When size / divisor frames were returned since the last notification, a guest
/// that needs a notification gets one, regardless of the moderation. A driver whose ring is full stops, and requests
/// one notification for most of the ring (Linux: three quarters). The port can send the ring's remaining frames before
/// the driver resumes. A frame can use several descriptors, so a full ring can hold fewer frames than descriptors.
const TRANSMIT_GUARD_PART: u16 = 4;

/// The state of a ring set by the frontend (`SET_VRING_ENABLE`; vhost-user, "Ring states").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RingState {
    /// The frontend has not set a state yet. The guest's frames wait, because the driver may start before the
    /// frontend's message arrives. Discarding these frames would cause needless losses.
    #[default]
    Unset,
    Enabled,
    /// Enabled, and each received frame is inspected for the guest's filter, statistics or hash.
    Inspecting,
    /// Disabled: the guest's frames are discarded.
    Disabled,
}

impl RingState {
    pub(super) fn is_enabled(self) -> bool {
        matches!(self, Self::Enabled | Self::Inspecting)
    }
}

/// One ring with its state and moderation.
#[derive(Debug, Default)]
pub(super) struct PortVring {
    pub vring: Vring,
    pub state: RingState,
    /// True from the start until the stop of the ring by the frontend, including pauses for a memory replacement.
    pub is_in_use: bool,
    /// The frames in used chains that are not yet published.
    pub tally: Tally,
    pub moderation: CallModeration,
    /// The guest's coalescing settings, if the guest made any.
    pub wish: Option<Coalescing>,
    /// Number of notifications since the last [`Self::take_made`].
    made: u64,
    /// Number of notifications since the guest negotiated statistics.
    pub notified: u64,
}

impl PortVring {
    /// Starts the ring.
    pub(super) fn start(&mut self, setup: VringSetup, log: Option<&DirtyLog>) -> Result<(), BadRing> {
        self.vring.start(setup, log)?;
        if !self.moderation.is_off() && self.vring.inherit_unsignalled() {
            // The previous backend may have deferred a notification, which this backend must send.
            self.moderation.defer(Tally::default().take());
        }
        self.is_in_use = true;
        Ok(())
    }

    /// Stops the ring before an immediate restart, but leaves it marked as in use. Returns the ring's base, or `None`
    /// if the ring did not run.
    pub(super) fn pause(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) -> Option<u32> {
        self.publish(log, counters);
        self.decide(None, counters);
        self.vring.stop()
    }

    /// Adds a chain to the used chains, which the next `publish` returns to the driver.
    #[inline]
    pub(super) fn add_used(&mut self, chain: &Chain, written: u32) {
        self.vring.add_used(chain, written);
    }

    /// Publishes the used chains to the guest. Notifies the guest if needed, unless moderation defers the notification.
    #[inline]
    pub(super) fn publish(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) {
        let Some(published) = self.vring.publish(log) else { return };
        let tally = self.tally.take();
        if self.moderation.is_off() {
            if published.needs_notification {
                self.notify(counters);
            }
        } else if published.needs_notification {
            self.moderation.defer(tally);
        } else {
            self.moderation.polled(tally);
        }
    }

    /// Notifies the guest now.
    #[inline]
    fn notify(&mut self, counters: &QueueCounters) {
        if self.vring.notify() {
            counters.calls.add(1);
            self.made += 1;
            self.notified = self.notified.wrapping_add(1);
        }
    }

    /// Sends the deferred notification if the guest still needs a notification, and drops the deferred notification if
    /// not.
    #[cold]
    pub(super) fn decide(&mut self, now_ns: Option<u64>, counters: &QueueCounters) {
        if !self.moderation.is_deferred() {
            return;
        }
        if !self.vring.needs_notification() {
            return self.moderation.forget_deferred();
        }
        let begun_ns = self.moderation.measures_next().then(thread_time_ns);
        self.notify(counters);
        if let Some(begun_ns) = begun_ns {
            self.moderation.costed(thread_time_ns().saturating_sub(begun_ns));
        }
        self.moderation.notified(now_ns);
    }

    /// Changes the moderation. Sends a deferred notification now if the new policy is `Off`.
    pub(super) fn moderate(&mut self, config: &ModerationConfig, counters: &QueueCounters) {
        if config.policy == Policy::Off {
            self.decide(None, counters);
        }
        self.moderation.moderate(config);
    }

    /// Returns whether the guest must be woken because few receive buffers are left.
    pub(super) fn is_running_out(&self) -> bool {
        let size = self.vring.size();
        let guard = u16::try_from(self.moderation.config().ring_guard_frames).unwrap_or(u16::MAX).min(size);
        let guard = guard.max(size.div_ceil(RECEIVE_GUARD_PART));
        let fetched = u16::try_from(self.vring.waiting().len()).unwrap_or(u16::MAX);
        let wanted = guard.saturating_sub(fetched);
        wanted > 0 && self.vring.is_started() && !self.vring.has_ahead(wanted)
    }

    /// Returns whether so many transmit chains were used that the guest must be notified.
    pub(super) fn is_filling_up(&self) -> bool {
        self.moderation.since_call() >= u64::from(self.vring.size() / TRANSMIT_GUARD_PART)
    }

    /// Fetches chains. Returns whether any chain was fetched. An invalid ring is stopped and reported to the frontend.
    #[inline]
    pub(super) fn fetch(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) -> bool {
        let Ok(fetched) = self.vring.fetch(log) else {
            self.fail(log, counters);
            return false;
        };
        if fetched.bad > 0 {
            counters.bad_chains.add(fetched.bad as u64);
        }
        fetched.chains + fetched.bad > 0
    }

    #[cold]
    fn fail(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) {
        // Publish the delivered frames, which are already counted.
        self.publish(log, counters);
        self.decide(None, counters);
        counters.broken_rings.add(1);
        self.vring.fail();
        self.is_in_use = false;
    }

    /// Returns the number of notifications since the last call.
    #[inline]
    pub(super) fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }
}
