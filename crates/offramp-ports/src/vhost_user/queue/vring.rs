//! A ring of a port: a virtqueue, what its frontend says about it, and the moderation of its notifications.

use super::moderation::{CallModeration, Tally};
use crate::vhost_user::counters::QueueCounters;
use crate::worker::thread_time_ns;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::ring::{BadRing, Chain};
use offramp_virtio::vring::{Vring, VringSetup};

/// The part of its receive ring that a guest has left when it is notified whatever the moderation says: while it
/// wakes, frames take the other buffers. Drivers fill a ring again before half of it is used (Linux: when 32 of
/// 256 are), so this binds only when the guest sleeps.
pub(super) const RECEIVE_GUARD_PART: u16 = 2;
/// The part of its transmit ring that a guest gets back before it is notified, if it needs that, whatever the
/// moderation says. A driver stops when its ring is full, and then wants one notification for most of it (Linux: three
/// quarters); before it comes back the rest may be sent. A frame may take several descriptors.
const TRANSMIT_GUARD_PART: u16 = 4;

/// What the frontend last said about a ring (`SET_VRING_ENABLE`; vhost-user, "Ring states").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RingState {
    /// Nothing yet. What the guest sends waits: the driver may have begun while its frontend's message is still
    /// under way, and frames that were emptied out of the ring in between would be lost for nothing.
    #[default]
    Unset,
    Enabled,
    /// Enabled, of a guest that filters or counts what it receives: each frame is looked at.
    Inspecting,
    /// What the guest sends is discarded.
    Disabled,
}

impl RingState {
    pub fn is_enabled(self) -> bool {
        matches!(self, Self::Enabled | Self::Inspecting)
    }
}

/// One ring and what belongs to it.
#[derive(Debug, Default)]
pub(super) struct PortVring {
    pub vring: Vring,
    pub state: RingState,
    /// The frontend has started the ring and not stopped it: also while its memory is replaced.
    pub is_in_use: bool,
    /// Frames in chains that were added to the used ones and not published.
    pub tally: Tally,
    pub moderation: CallModeration,
    /// How its guest wants to be notified, if it has said so.
    pub wish: Option<Coalescing>,
    /// Notifications that were made and that nobody asked about yet.
    made: u64,
    /// Those that were made since the guest has statistics.
    pub notified: u64,
}

impl PortVring {
    /// Starts the ring.
    pub fn start(&mut self, setup: VringSetup, log: Option<&DirtyLog>) -> Result<(), BadRing> {
        self.vring.start(setup, log)?;
        if !self.moderation.is_off() && self.vring.inherit_unsignalled() {
            // Whoever drove it before may have deferred a notification.
            self.moderation.defer(Tally::default().take());
        }
        self.is_in_use = true;
        Ok(())
    }

    /// Stops a ring that will be started again at once: it stays in use. Its base, `None` when it did not run.
    pub fn pause(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) -> Option<u32> {
        self.publish(log, counters);
        self.decide(None, counters);
        self.vring.stop()
    }

    /// Adds a chain that goes back to the driver to the used ones.
    #[inline]
    pub fn add_used(&mut self, chain: &Chain, written: u32) {
        self.vring.add_used(chain, written);
    }

    /// Shows the guest the used chains, and notifies it if it needs that, unless moderation defers it.
    #[inline]
    pub fn publish(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) {
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
    pub fn decide(&mut self, now_ns: Option<u64>, counters: &QueueCounters) {
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

    /// Changes the moderation. A deferred notification that is deferred no more is made now.
    pub fn moderate(&mut self, config: &ModerationConfig, counters: &QueueCounters) {
        if config.policy == Policy::Off {
            self.decide(None, counters);
        }
        self.moderation.moderate(config);
    }

    /// Whether the guest has so few receive buffers left that it must not sleep any longer.
    pub fn is_running_out(&self) -> bool {
        let size = self.vring.size();
        let guard = u16::try_from(self.moderation.config().ring_guard_frames).unwrap_or(u16::MAX).min(size);
        let guard = guard.max(size.div_ceil(RECEIVE_GUARD_PART));
        let fetched = u16::try_from(self.vring.waiting().len()).unwrap_or(u16::MAX);
        let wanted = guard.saturating_sub(fetched);
        wanted > 0 && self.vring.is_started() && !self.vring.has_ahead(wanted)
    }

    /// Whether enough chains of the transmit ring are used that the guest must not wait any longer.
    pub fn is_filling_up(&self) -> bool {
        self.moderation.since_call() >= u64::from(self.vring.size() / TRANSMIT_GUARD_PART)
    }

    /// Fetches chains; whether any wait now. A ring that makes no sense is stopped, and reported to the frontend.
    #[inline]
    pub fn fetch(&mut self, log: Option<&DirtyLog>, counters: &QueueCounters) -> bool {
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
        // What was delivered and counted is the guest's.
        self.publish(log, counters);
        self.decide(None, counters);
        counters.broken_rings.add(1);
        self.vring.fail();
        self.is_in_use = false;
    }

    /// How many notifications were made since the last time.
    #[inline]
    pub fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }
}
