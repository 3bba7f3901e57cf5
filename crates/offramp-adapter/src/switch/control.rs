//! Control of a running switch from any thread: adds and removes ports, changes their settings, and reads their
//! counters.

use super::config::{LINK_PORTS_MAX, PortConfig, SwitchConfig};
use super::view::{Reading, StationList, SwitchCounts};
use crate::config::{AdapterConfig, MTU_MAX, MTU_MIN};
use crate::pipeline::control::PortControl;
use crate::port_security::is_virtual_router;
use crate::stats::QueueStats;
use offramp_offload::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};
use offramp_offload::sync::{Mutex, MutexGuard};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::task::Waker;

/// The reason a port is not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// The port's MTU is outside [`MTU_MIN`]…[`MTU_MAX`].
    #[error("mtu {0} is out of range; use {MTU_MIN} to {MTU_MAX} IP bytes")]
    Mtu(usize),
    /// The switch already has its maximum of ports.
    #[error("the switch has {0} ports, its most; raise ports_max, or remove one")]
    Ports(usize),
    /// A link (a switch with `learning` off) already has two ports.
    #[error("a link has two ends, and both are taken; switch learning on for more ports")]
    LinkEnds,
    /// The address is bound to another port.
    #[error("the address {} is bound to another port of the switch; bind it to one of them", written(*.0))]
    Bound([u8; 6]),
    /// The sum of all ports' quotas would exceed the size of the table.
    #[error(
        "stations_max of the port is {wanted}, and {left} of the switch's are left; raise the switch's or lower the port's"
    )]
    Stations {
        /// Stations requested for the port.
        wanted: usize,
        /// Stations of the table that are not reserved for other ports.
        left: usize,
    },
}

/// Formats an Ethernet address.
fn written(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// A switch port as seen by other threads: its [`PortControl`], and the settings specific to a switch port.
///
/// `stats.transmit` counts the frames that the port sent into the switch: `frames_in` = `frames_out` (handed to at
/// least one port) + lost frames. `stats.receive` counts the frames for the port, one per copy: `frames_in` =
/// `frames_out` + lost frames + frames waiting to be coalesced. If a port has several queues, each frame counts in the
/// counters of the frame's queue. Frames lost before the host chose a queue count in the counters of the first queue.
#[derive(Debug)]
pub struct SwitchPort {
    pub(super) index: usize,
    pub(super) config: PortConfig,
    control: Arc<PortControl>,
    mtu: AtomicUsize,
    isolated: AtomicBool,
    /// Error number of the closed host; 0 while the port is open.
    closed: AtomicI32,
    removed: AtomicBool,
    pub(super) stations: AtomicUsize,
}

impl Deref for SwitchPort {
    type Target = PortControl;

    fn deref(&self) -> &PortControl {
        &self.control
    }
}

impl SwitchPort {
    /// Returns the port's number. The number is reused after the port was removed.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the maximum number of IP bytes in a frame for this port.
    pub fn mtu(&self) -> usize {
        self.mtu.load(Relaxed)
    }

    /// Changes the MTU.
    ///
    /// # Errors
    /// Returns [`SwitchError::Mtu`] outside [`MTU_MIN`]…[`MTU_MAX`]. After an error, the MTU is unchanged.
    pub fn set_mtu(&self, mtu: usize) -> Result<(), SwitchError> {
        check_mtu(mtu)?;
        self.mtu.store(mtu, Relaxed);
        Ok(())
    }

    /// Returns whether the port is isolated, so that it reaches no other isolated port.
    pub fn is_isolated(&self) -> bool {
        self.isolated.load(Relaxed)
    }

    /// Isolates the port, or ends its isolation.
    pub fn set_isolated(&self, isolated: bool) {
        self.isolated.store(isolated, Relaxed);
    }

    /// Returns the error number of a closed port ([`PortError::Closed`](crate::port::PortError::Closed)). The switch
    /// skips a closed port; the user should remove it.
    pub fn closed(&self) -> Option<i32> {
        Some(self.closed.load(Relaxed)).filter(|&errno| errno != 0)
    }

    /// Marks the port as closed. An error number of 0 is replaced, since 0 means open.
    pub(super) fn close(&self, errno: i32) {
        self.closed.store(if errno == 0 { i32::MAX } else { errno }, Relaxed);
    }

    /// Returns the number of known stations on this port, including idle stations.
    pub fn stations(&self) -> usize {
        self.stations.load(Relaxed)
    }

    /// Returns the port's counters; with several queues, returns the counters of the first queue.
    pub fn stats(&self) -> &QueueStats {
        &self.control.queues()[0]
    }
}

fn check_mtu(mtu: usize) -> Result<(), SwitchError> {
    if (MTU_MIN..=MTU_MAX).contains(&mtu) { Ok(()) } else { Err(SwitchError::Mtu(mtu)) }
}

/// The port that the switch's thread currently serves. If the thread stalls, a watchdog reads this value to find the
/// responsible port.
#[derive(Debug, Default)]
pub struct Serving(AtomicUsize);

impl Serving {
    #[inline]
    pub(super) fn enter(&self, index: usize) {
        self.0.store(index, Relaxed);
    }

    /// Returns the [number](SwitchPort::index) of the served port. While the thread serves no port, returns the number
    /// of the port served last.
    pub fn index(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// A request, executed by the switch before its next batch.
pub(super) enum Request<P> {
    Add(P, Arc<SwitchPort>),
    Remove(Arc<SwitchPort>),
    List(Reading),
}

struct Registry<P> {
    ports: Vec<Option<Arc<SwitchPort>>>,
    stations_left: usize,
    requests: Vec<Request<P>>,
}

impl<P> Registry<P> {
    fn has(&self, port: &Arc<SwitchPort>) -> bool {
        matches!(self.ports.get(port.index), Some(Some(here)) if Arc::ptr_eq(here, port))
    }
}

/// Adds and removes ports of a switch from any thread.
pub struct SwitchControl<P> {
    config: SwitchConfig,
    registry: Mutex<Registry<P>>,
    /// Set while requests are pending, so that batches without a pending request take no lock.
    asked: AtomicBool,
    /// Wakes the switch while it sleeps.
    waker: Mutex<Option<Waker>>,
    counts: SwitchCounts,
}

impl<P> fmt::Debug for SwitchControl<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchControl").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<P> SwitchControl<P> {
    pub(super) fn new(config: &SwitchConfig) -> Self {
        let registry = Registry { ports: Vec::new(), stations_left: config.stations_max, requests: Vec::new() };
        let registry = Mutex::new(registry);
        Self {
            config: *config,
            registry,
            asked: AtomicBool::new(false),
            waker: Mutex::new(None),
            counts: SwitchCounts::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry<P>> {
        self.registry.lock()
    }

    /// Adds a port, which carries frames from the switch's next batch on.
    ///
    /// # Errors
    /// Fails if a setting is out of range or a limit is reached; after a failure, `port` is dropped.
    pub fn add(&self, port: P, config: &PortConfig) -> Result<Arc<SwitchPort>, SwitchError> {
        let PortConfig { offloads, moderation, .. } = *config;
        let control = PortControl::new(&AdapterConfig { offloads, moderation, queues: 1, ..AdapterConfig::default() });
        self.add_controlled(port, &control, config)
    }

    /// Adds a port as [`SwitchControl::add`] does, but with existing settings, associations and counters. The
    /// corresponding settings in `config` are ignored.
    ///
    /// # Errors
    /// Fails as [`SwitchControl::add`] does.
    pub fn add_controlled(
        &self,
        port: P,
        control: &Arc<PortControl>,
        config: &PortConfig,
    ) -> Result<Arc<SwitchPort>, SwitchError> {
        check_mtu(config.mtu)?;
        let mut registry = self.lock();
        // The switch executes requests in order, so it drops a removed port before it adds this port.
        let present = || registry.ports.iter().flatten().filter(|port| !port.removed.load(Relaxed));
        let taken = present().count();
        if !self.config.learning && taken >= LINK_PORTS_MAX {
            return Err(SwitchError::LinkEnds);
        }
        let others: Vec<_> = present().flat_map(|port| port.security().mac_addresses.clone()).collect();
        let is_taken = |mac: &&[u8; 6]| others.contains(mac) && !is_virtual_router(mac);
        if let Some(mac) = control.security().mac_addresses.iter().find(is_taken) {
            return Err(SwitchError::Bound(*mac));
        }
        let stations = self.quota(config);
        if stations > registry.stations_left {
            return Err(SwitchError::Stations { wanted: stations, left: registry.stations_left });
        }
        if taken == self.config.ports_max {
            return Err(SwitchError::Ports(taken));
        }
        let index = registry.ports.iter().position(Option::is_none).unwrap_or(registry.ports.len());
        if index == registry.ports.len() {
            registry.ports.push(None);
        }
        let shared = Arc::new(SwitchPort {
            index,
            config: *config,
            control: Arc::clone(control),
            mtu: AtomicUsize::new(config.mtu),
            isolated: AtomicBool::new(config.isolated),
            closed: AtomicI32::new(0),
            removed: AtomicBool::new(false),
            stations: AtomicUsize::new(0),
        });
        registry.stations_left -= stations;
        registry.ports[index] = Some(Arc::clone(&shared));
        self.ask(registry, Request::Add(port, Arc::clone(&shared)));
        Ok(shared)
    }

    /// Removes a port before the switch's next batch. The switch's thread delivers the waiting frames, forgets the
    /// port's stations, and drops the port. Does nothing for a removed port, or for a port of another switch.
    pub fn remove(&self, port: &Arc<SwitchPort>) {
        let registry = self.lock();
        if registry.has(port) && !port.removed.swap(true, Relaxed) {
            self.ask(registry, Request::Remove(Arc::clone(port)));
        }
    }

    /// Returns whether the switch still has the port; `false` once the port was dropped.
    pub fn has(&self, port: &Arc<SwitchPort>) -> bool {
        self.lock().has(port)
    }

    /// Returns the present ports, in the order of their numbers.
    pub fn ports(&self) -> Vec<Arc<SwitchPort>> {
        self.lock().ports.iter().flatten().cloned().collect()
    }

    /// Requests the known stations, at most `stations_max` of them in the list. The switch's thread sends the list
    /// after some batches. A stalled or ended thread sends no list, so the caller must limit its wait.
    pub fn stations(&self, stations_max: usize) -> Receiver<StationList> {
        let (reading, list) = Reading::new(stations_max.min(self.config.stations_max));
        self.ask(self.lock(), Request::List(reading));
        list
    }

    /// Returns the switch's counters.
    pub fn counts(&self) -> &SwitchCounts {
        &self.counts
    }

    /// Returns the number of stations reserved for a new port.
    pub(super) fn quota(&self, config: &PortConfig) -> usize {
        if self.config.learning && !self.config.equal_shares { config.stations_max } else { 0 }
    }

    fn ask(&self, mut registry: MutexGuard<'_, Registry<P>>, request: Request<P>) {
        registry.requests.push(request);
        self.asked.store(true, Relaxed);
        drop(registry);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Returns and removes the requests made since the last call.
    pub(super) fn requests(&self) -> Vec<Request<P>> {
        if !self.asked.load(Relaxed) {
            return Vec::new();
        }
        let mut registry = self.lock();
        self.asked.store(false, Relaxed);
        std::mem::take(&mut registry.requests)
    }

    /// Frees the number and the quota of a dropped port for other ports.
    pub(super) fn release(&self, port: &SwitchPort) {
        let mut registry = self.lock();
        registry.ports[port.index] = None;
        registry.stations_left += self.quota(&port.config);
    }

    pub(super) fn register(&self, waker: Option<&Waker>) {
        *self.waker.lock() = waker.cloned();
    }
}
