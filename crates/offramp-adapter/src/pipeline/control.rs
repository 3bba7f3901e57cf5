//! Settings and counters of a port, accessible to any thread while the port runs. A queue pair and a port of a switch
//! share this type.

use crate::config::AdapterConfig;
use crate::ipsec::{Ipsec, Prepared, SaChange, SaError};
use crate::limit::{Limiter, PortLimits};
use crate::moderation::ModerationConfig;
use crate::port_security::PortSecurity;
use crate::stats::QueueStats;
use offramp_offload::caps::Offloads;
use offramp_offload::sync::Mutex;
use offramp_offload::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;
use std::task::Waker;

/// Checked changes of associations and policy that are not yet made. Dropping the value discards the changes.
pub struct PreparedIpsec<'a> {
    prepared: Prepared<'a>,
    control: &'a PortControl,
}

impl PreparedIpsec<'_> {
    /// Makes the changes, which take effect from the port's next batch on.
    pub fn make(self) {
        self.prepared.make();
        self.control.wake();
    }
}

/// Settings of a port, its security associations, and its counters. A changed setting takes effect from the port's next
/// batch on.
#[derive(Debug)]
pub struct PortControl {
    offloads: AtomicU32,
    is_link_on: AtomicBool,
    /// Number of changes of the moderation so far. The caller of [`PortControl::changed_moderation`] compares this
    /// number with its value in the previous batch, so a batch without a change takes no lock.
    moderation_changes: AtomicU32,
    moderation: Mutex<ModerationConfig>,
    ipsec: Ipsec,
    security: Arc<PortSecurity>,
    pub(crate) tx_limiter: Arc<Limiter>,
    pub(crate) rx_limiter: Arc<Limiter>,
    /// Wakers of the threads that drive the port.
    wakers: Mutex<Vec<Waker>>,
    queues: Box<[QueueStats]>,
}

impl PortControl {
    /// Creates the settings and counters for the queues of one port.
    pub fn new(config: &AdapterConfig) -> Arc<Self> {
        Self::secured(config, PortSecurity::default())
    }

    /// Creates the settings as [`PortControl::new`] does, for a host with the address and VLAN rules of `security`.
    pub fn secured(config: &AdapterConfig, security: PortSecurity) -> Arc<Self> {
        let AdapterConfig { offloads, moderation, queues, .. } = *config;
        Arc::new(Self {
            offloads: AtomicU32::new(offloads.bits()),
            is_link_on: AtomicBool::new(true),
            moderation_changes: AtomicU32::new(1),
            moderation: Mutex::new(moderation),
            ipsec: Ipsec::default(),
            security: Arc::new(security),
            tx_limiter: Limiter::new(queues),
            rx_limiter: Limiter::new(queues),
            wakers: Mutex::new(Vec::new()),
            queues: (0..queues).map(|_| QueueStats::default()).collect(),
        })
    }

    /// Returns the offloads currently allowed by the user.
    pub fn offloads(&self) -> Offloads {
        Offloads::from_bits_truncate(self.offloads.load(Relaxed))
    }

    /// Changes the offloads allowed by the user, from the next batch on.
    pub fn set_offloads(&self, offloads: Offloads) {
        self.offloads.store(offloads.bits(), Relaxed);
    }

    /// Returns whether the port's link is on. If the link is off, no frame from the host or for the host passes. The
    /// link is on initially.
    pub fn is_link_on(&self) -> bool {
        self.is_link_on.load(Relaxed)
    }

    /// Switches the port's link on or off, from the next batch on, and wakes the threads of the port. While the link is
    /// off, each frame from the host or for the host is lost and counted as
    /// [`Loss::LinkOff`](crate::stats::Loss::LinkOff).
    pub fn set_link_on(&self, is_on: bool) {
        self.is_link_on.store(is_on, Relaxed);
        self.wake();
    }

    /// Returns the interrupt moderation.
    pub fn moderation(&self) -> ModerationConfig {
        *self.moderation.lock()
    }

    /// Changes the interrupt moderation from the next batch on, also for frames that already wait. Wakes the thread of
    /// the port.
    pub fn set_moderation(&self, moderation: ModerationConfig) {
        let mut current = self.moderation.lock();
        *current = moderation;
        self.moderation_changes.fetch_add(1, Release);
        drop(current);
        self.wake();
    }

    /// Returns the port's security associations and IPsec policy.
    pub fn ipsec(&self) -> &Ipsec {
        &self.ipsec
    }

    /// Returns the source addresses allowed for the host.
    pub fn security(&self) -> &Arc<PortSecurity> {
        &self.security
    }

    /// Returns the host's transmit limit and receive limit.
    pub fn limits(&self) -> PortLimits {
        PortLimits { tx: self.tx_limiter.limit(), rx: self.rx_limiter.limit() }
    }

    /// Returns how many times a queue waited at the host's transmit limit, and at the host's receive limit.
    pub fn limits_reached(&self) -> [u64; 2] {
        [&self.tx_limiter, &self.rx_limiter].map(|limiter| limiter.reached())
    }

    /// Changes the host's transmit limit and receive limit, from the next batch on. A direction with a changed limit
    /// starts with a full bucket. Wakes the threads of the port.
    pub fn set_limits(&self, limits: PortLimits) {
        self.tx_limiter.set(limits.tx);
        self.rx_limiter.set(limits.rx);
        self.wake();
    }

    /// Makes all changes of associations and policy, from the next batch on. If a change fails, none of the changes is
    /// made. Wakes the thread of the port.
    ///
    /// # Errors
    /// Returns the index in `changes` of the first failing change, and the reason.
    pub fn change_ipsec(&self, changes: &[SaChange]) -> Result<(), (usize, SaError)> {
        self.prepare_ipsec(changes)?.make();
        Ok(())
    }

    /// Prepares changes as [`PortControl::change_ipsec`] does, without making them: the associations of several ports
    /// can then change together. Locks the port's associations against other changes until the returned value is
    /// dropped.
    ///
    /// # Errors
    /// Fails as [`PortControl::change_ipsec`] does.
    pub fn prepare_ipsec(&self, changes: &[SaChange]) -> Result<PreparedIpsec<'_>, (usize, SaError)> {
        Ok(PreparedIpsec { prepared: self.ipsec.prepare(changes)?, control: self })
    }

    /// Returns the counters, one entry per queue.
    pub fn queues(&self) -> &[QueueStats] {
        &self.queues
    }

    /// Returns the moderation if it has changed since the caller's last call. `seen` is the caller's copy of the change
    /// counter; the call updates the copy.
    #[inline]
    pub(crate) fn changed_moderation(&self, seen: &mut u32) -> Option<ModerationConfig> {
        let now = self.moderation_changes.load(Acquire);
        if now == *seen {
            return None;
        }
        *seen = now;
        Some(self.moderation())
    }

    /// Registers `waker`, which is woken after each change of the link, the moderation, the limits, or the associations
    /// and policy.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Removes all wakers from the list of a port driven by one thread.
    pub(crate) fn unregister(&self) {
        self.wakers.lock().clear();
    }

    fn wake(&self) {
        self.wakers.lock().iter().for_each(Waker::wake_by_ref);
    }
}
