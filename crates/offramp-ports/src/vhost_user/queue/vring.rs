//! A ring of a port: a virtqueue, its state by the frontend, and the moderation of its notifications.

use super::moderation::{CallModeration, Tally};
use crate::vhost_user::counters::QueueCounters;
use crate::worker::thread_time_ns;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::ring::{BadRing, Chain};
use offramp_virtio::vring::{Vring, VringSetup};

/// The part of its receive ring left to a guest when it is notified regardless of the moderation: while it wakes,
/// frames take the other buffers. Drivers fill a ring again before half of it is used (Linux: when 32 of 256 are), so
/// this binds only when the guest sleeps.
pub(super) const RECEIVE_GUARD_PART: u16 = 2;
/// The part of its transmit ring returned to a guest before it is notified if needed, regardless of the moderation. A
/// driver stops when its ring is full, and then wants one notification for most of it (Linux: three quarters); before
/// it comes back the rest may be sent. A frame may take several descriptors.
const TRANSMIT_GUARD_PART: u16 = 4;

/// The frontend's last state of a ring (`SET_VRING_ENABLE`; vhost-user, "Ring states").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RingState {
    /// Nothing yet. The guest's frames wait: the driver may have begun while its frontend's message is still under way.
    /// Frames discarded until it arrives would be lost needlessly.
    #[default]
    Unset,
    Enabled,
    /// Enabled, with a guest's filter or counters for received frames: each frame is inspected.
    Inspecting,
    /// The guest's frames are discarded.
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
    /// The frontend has started the ring and not stopped it: also while its memory is replaced.
    pub is_in_use: bool,
    /// Frames in used chains not yet published.
    pub tally: Tally,
    pub moderation: CallModeration,
    /// The guest's coalescing settings, if it made any.
    pub wish: Option<Coalescing>,
    /// Notifications made and not yet asked about.
    made: u64,
    /// Notifications made since the guest has statistics.
    pub notified: u64,
}

impl PortVring {
    /// Starts the ring.
    pub(super) fn start(&mut self, setup: VringSetup, log: Option<&DirtyLog>) -> Result<(), BadRing> {
        self.vring.start(setup, log)?;
        if !self.moderation.is_off() && self.vring.inherit_unsignalled() {
            // The previous backend may have deferred a notification.
            self.moderation.defer(Tally::default().take());
        }
        self.is_in_use = true;
        Ok(())
    }

    /// Stops a ring before an immediate new start: it stays in use. Returns its base, `None` if it did not run.
    pub(super) fn pause(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) -> Option<u32> {
        self.publish(log, counters);
        self.decide(None, counters);
        self.vring.stop()
    }

    /// Adds a chain to the used ones, on its way back to the driver.
    #[inline]
    pub(super) fn add_used(&mut self, chain: &Chain, written: u32) {
        self.vring.add_used(chain, written);
    }

    /// Shows the guest the used chains, and notifies it if needed, unless moderation defers it.
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

    /// Decides on a deferred notification: the guest gets it if it still needs it.
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

    /// Changes the moderation. Makes a pending notification now if the new one does not defer it.
    pub(super) fn moderate(&mut self, config: &ModerationConfig, counters: &QueueCounters) {
        if config.policy == Policy::Off {
            self.decide(None, counters);
        }
        self.moderation.moderate(config);
    }

    /// Returns whether the guest has too few receive buffers left to sleep any longer.
    pub(super) fn is_running_out(&self) -> bool {
        let size = self.vring.size();
        let guard = u16::try_from(self.moderation.config().ring_guard_frames).unwrap_or(u16::MAX).min(size);
        let guard = guard.max(size.div_ceil(RECEIVE_GUARD_PART));
        let fetched = u16::try_from(self.vring.waiting().len()).unwrap_or(u16::MAX);
        let wanted = guard.saturating_sub(fetched);
        wanted > 0 && self.vring.is_started() && !self.vring.has_ahead(wanted)
    }

    /// Returns whether the transmit ring has too many used chains for the guest to wait any longer.
    pub(super) fn is_filling_up(&self) -> bool {
        self.moderation.since_call() >= u64::from(self.vring.size() / TRANSMIT_GUARD_PART)
    }

    /// Fetches chains. Returns whether any wait now. An invalid ring is stopped, and reported to the frontend.
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
        // Delivered and counted frames are the guest's.
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
