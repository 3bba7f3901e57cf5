//! The state of a device, set by its frontend's messages, and the resulting changes of the queues.

use super::call_pipe::CallPipe;
use super::config::VhostUserConfig;
use super::control::Control;
use super::counters::QueueCounters;
use super::features::{self, LOG_ALL, MTU_MIN, PROTOCOL_FEATURES};
use super::link::Link;
use super::mailbox::{self, NobodyThere, Sender};
use super::queue::{QueueState, Side, Start};
use super::state::Unusable;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::getpid;
use offramp_offload::caps::Offloads;
use offramp_virtio::MemoryError;
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::inflight;
use offramp_virtio::memory::{Extent, GuestMemory};
use offramp_virtio::notifier::{Event, Events, NoEventFd};
use offramp_virtio::ring::{BadRing, RingPlace};
use offramp_virtio::sigbus::Alarm;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vhost::vhost_user::Error;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

mod commands;
mod configuration;
mod messages;
mod transfer;

/// Number of guest-physical bytes covered by a byte of the dirty log: a bit for each page of 4096 bytes (vhost-user,
/// "Migration").
const LOG_BYTE_COVERS: u64 = 8 * 4096;
/// Maximum size of a processor's guest-physical address space, in bytes (x86-64, Arm: 52 bits).
const GUEST_ADDRESSES_MAX: u64 = 1 << 52;
/// Number of bytes that QEMU adds to a log for future memory, plus rounding.
const LOG_SLACK_LEN: u64 = 2 * 4096;
/// Maximum number of threads per vring for interrupts through pipes: one for the frontend, and one still ending for the
/// previous frontend.
const CALL_THREADS_PER_VRING: usize = 2;

/// The reason for refusing a message. Every refusal ends the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("vring {0}: out of range")]
    NoVring(usize),
    #[error(
        "vring {0}: the guest's control queue, which the port leaves to the frontend; with a frontend that has none \
         (User Mode Linux) set control_queue = \"none\", or \"backend\" to have the port serve it"
    )]
    ControlVring(usize),
    #[error("vring {vring}: {cause}")]
    Ring { vring: usize, cause: BadRing },
    #[error("memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("features {0:#x}: never offered")]
    Features(u64),
    #[error("{0}")]
    NobodyThere(#[from] NobodyThere),
    #[error("{0}: not supported")]
    Unsupported(&'static str),
    #[error("inflight region: out of range")]
    Inflight,
    #[error("{what}: {len} bytes exceeds the maximum of {len_max}")]
    TooLong { what: &'static str, len: u64, len_max: u64 },
    #[error("{0}; pass an eventfd for kick, call and err, or a pipe or a socket for call")]
    NoEventFd(NoEventFd),
    #[error("a process does not read its interrupt pipes; end that process")]
    BlockedPipes,
    #[error("vring enable {0}: not 0 or 1")]
    Enable(u32),
    #[error("MTU {0}: out of range")]
    Mtu(u64),
    #[error("{0} was not negotiated")]
    NotNegotiated(&'static str),
    #[error("{0:02x?}: not a unicast Ethernet address")]
    Address([u8; 6]),
    #[error("device state: {0}")]
    State(#[from] Unusable),
    #[error("device state: features {0:#x} are not offered here; switch them on before the guest is restored")]
    StateFeatures(u64),
    #[error(
        "device state: {state} vrings, and this port has {port}; give it as many queue pairs and the same control_queue"
    )]
    StateVrings { state: usize, port: usize },
    #[error("device state: this port does not permit the guest's command {0:02x?}")]
    StateSetting(Vec<u8>),
    #[error("device state: vring {0} runs; stop every vring before")]
    StateOfRunning(usize),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::ReqHandlerError(io::Error::other(refused.to_string()))
    }
}

/// The source of a started ring's kicks.
#[derive(Debug)]
enum Kick {
    Event(Event),
    /// The ring has no kick descriptor and is polled.
    Polled,
}

impl Kick {
    fn try_clone(&self) -> io::Result<Option<Event>> {
        match self {
            Self::Event(event) => event.try_clone().map(Some),
            Self::Polled => Ok(None),
        }
    }
}

/// The frontend's settings of one vring.
#[derive(Debug, Default)]
struct Setup {
    place: RingPlace,
    has_place: bool,
    base: u32,
    /// The ring's base when the device was reset. During a migration, QEMU resets the device status before it requests
    /// the rings' bases (`vhost_dev_stop` in QEMU 7.2).
    ended_at: Option<u32>,
    /// The base at which the ring stopped, or `None` after the frontend has set a new base for the ring.
    stopped_at: Option<u32>,
    /// The ring's base in the state that a frontend restored after a migration, or `None` once the ring has started.
    loaded: Option<u32>,
    /// The kick source, set when the frontend starts the ring.
    kick: Option<Kick>,
    /// The thread for interrupts through a pipe, if the call descriptor is a pipe.
    call_pipe: Option<CallPipe>,
    is_logged: bool,
    is_running: bool,
    /// True if the frontend last enabled the data ring, and false if it last disabled the ring. `None` before the first
    /// such message.
    is_enabled: Option<bool>,
}

/// A guest's device, as set up by its frontend.
#[derive(Debug)]
pub(super) struct Device {
    config: VhostUserConfig,
    /// Bits of the offloads that the operator currently allows to offer.
    allowed: Arc<AtomicU32>,
    /// Wakes the control thread when the frontend has truncated the file of shared memory in use.
    alarm: Alarm,
    /// Signals the eventfds of the frontend.
    events: Events,
    /// Counts the threads for interrupts through pipes: each thread holds a clone.
    call_threads: Arc<()>,
    queues: Vec<Sender<QueueState>>,
    vrings: Vec<Setup>,
    /// The control queue, if the port serves it. `vrings` includes the vring of the control queue.
    control: Option<Control>,
    memory: Arc<GuestMemory>,
    features: u64,
    /// Features offered on this connection. The frontend can accept these features at any time, because vhost-user
    /// cannot withdraw an offer. A feature that the operator switches off after the offer stays acceptable until the
    /// frontend reconnects.
    shown: u64,
    /// Features offered at the last negotiation, but not accepted.
    declined: u64,
    protocol_features: u64,
    status: u8,
    frontend_mtu: Option<u16>,
    link: Arc<Link>,
    /// The configuration field `status` last read by the frontend or last reported to the frontend.
    status_reported: Option<u16>,
    inflight: Option<Arc<inflight::Region>>,
    /// Former inflight regions still held by running rings, at most one per ring.
    replaced_inflight: Vec<Arc<inflight::Region>>,
    log: Option<Arc<DirtyLog>>,
    /// The file into which the frontend writes a state.
    incoming_state: Option<File>,
}

impl Device {
    pub(super) fn new(
        config: VhostUserConfig,
        allowed: Arc<AtomicU32>,
        alarm: Alarm,
        events: Events,
        link: Arc<Link>,
        queues: Vec<Sender<QueueState>>,
        of_control: Option<Arc<QueueCounters>>,
    ) -> Self {
        let control = of_control.map(|counters| Control::new(&config, counters));
        let count = 2 * queues.len() + usize::from(control.is_some());
        let vrings = (0..count).map(|_| Setup::default()).collect();
        Self {
            config,
            allowed,
            alarm,
            events,
            call_threads: Arc::default(),
            queues,
            vrings,
            control,
            memory: Arc::default(),
            features: 0,
            shown: 0,
            declined: 0,
            protocol_features: 0,
            status: 0,
            frontend_mtu: None,
            link,
            status_reported: None,
            inflight: None,
            replaced_inflight: Vec::new(),
            log: None,
            incoming_state: None,
        }
    }

    /// Returns whether a protocol feature was negotiated.
    pub(super) fn speaks(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.protocol_features & feature.bits() != 0
    }

    pub(super) fn features(&self) -> u64 {
        self.features
    }

    pub(super) fn declined(&self) -> u64 {
        self.declined
    }

    pub(super) fn protocol_features(&self) -> u64 {
        self.protocol_features
    }

    pub(super) fn frontend_mtu(&self) -> Option<u16> {
        self.frontend_mtu
    }

    pub(super) fn device_status(&self) -> u8 {
        self.status
    }

    pub(super) fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Returns the size of each vring, or 0 for a stopped vring.
    pub(super) fn ring_entries(&self) -> Vec<u16> {
        self.vrings.iter().map(|setup| if setup.is_running { setup.place.size } else { 0 }).collect()
    }

    fn offered(&self) -> u64 {
        let allowed = Offloads::from_bits_truncate(self.allowed.load(Ordering::Relaxed));
        let when = |is_on: bool, bits: u64| if is_on { bits } else { 0 };
        let offer = features::offer(self.config.rings, allowed, self.config.control_queue)
            | when(self.queues.len() > 1, features::MQ)
            | when(
                self.queues.len() > 1 && self.control.is_some() && self.config.steers,
                features::RSS | features::HASH_REPORT,
            )
            | when(self.config.mac.is_some(), features::MAC)
            | when(self.config.mtu.is_some(), features::MTU)
            | when(self.control.is_some() && self.config.speed_mbps.is_some(), features::SPEED_DUPLEX);
        features::with_one_meaning(offer, self.shown)
    }

    fn vring(&mut self, vring: usize) -> Result<&mut Setup, Refused> {
        let is_control = self.control.is_none() && vring == self.vrings.len() && self.features & features::CTRL_VQ != 0;
        let refused = if is_control { Refused::ControlVring(vring) } else { Refused::NoVring(vring) };
        self.vrings.get_mut(vring).ok_or(refused)
    }

    /// Returns whether a vring is the control queue.
    fn is_control(&self, vring: usize) -> bool {
        self.would_be_control(vring, self.features)
    }

    fn would_be_control(&self, vring: usize, features: u64) -> bool {
        self.control.is_some() && Control::is_at(vring, features, self.config.queue_pairs)
    }

    /// Returns whether the driver leaves a vring unused. If the control queue is the third vring, the driver does not
    /// use the last vring. QEMU sets up that vring nevertheless.
    fn is_unused(&self, vring: usize) -> bool {
        vring == 2 * self.queues.len() && self.control.is_some() && !self.is_control(vring)
    }

    fn run<R: Send + 'static>(
        &mut self,
        vring: usize,
        work: impl FnOnce(&mut QueueState, Side) -> R + Send + 'static,
    ) -> Result<R, Refused> {
        let (is_control, is_unused) = (self.is_control(vring), self.is_unused(vring));
        if let Some(control) = &mut self.control {
            if is_control {
                return Ok(work(&mut control.queue, Side::Transmit));
            } else if is_unused {
                return Ok(work(&mut QueueState::of_commands(control.queue.counters()), Side::Transmit));
            }
        }
        let (side, pair) = Side::of(vring);
        let queue = self.queues.get(pair).ok_or(Refused::NoVring(vring))?;
        Ok(queue.run(move |state| work(state, side))?)
    }

    /// Starts a ring if its addresses, size, memory and kick are set.
    fn start(&mut self, vring: usize) -> Result<(), Refused> {
        if self.is_unused(vring) {
            return Ok(());
        }
        let negotiated = self.features;
        let (has_memory, setup) = (self.memory.size().0 > 0, self.vring(vring)?);
        let is_said = setup.has_place && setup.place.size > 0 && has_memory;
        let Some(kick) = setup.kick.as_ref().filter(|_| is_said && !setup.is_running) else { return Ok(()) };
        let kick = kick.try_clone()?;
        let inflight = self.inflight.as_ref().and_then(|inflight| inflight.part(vring, self.vrings[vring].place.size));
        let setup = self.vring(vring)?;
        let start = Start {
            features: negotiated,
            place: setup.place,
            base: setup.start_base(negotiated & features::RING_PACKED != 0),
            kick,
            is_logged: setup.is_logged,
            inflight,
        };
        let base = start.base;
        self.run(vring, move |state, side| state.start(side, start))?
            .map_err(|cause| Refused::Ring { vring, cause })?;
        let setup = self.vring(vring)?;
        (setup.is_running, setup.ended_at, setup.stopped_at, setup.loaded) = (true, None, None, None);
        if self.is_control(vring) { self.control_started(base) } else { Ok(()) }
    }

    /// Stops a ring without clearing the frontend's settings of the ring. Returns the ring's base.
    fn stop(&mut self, vring: usize) -> Result<u32, Refused> {
        self.end(vring, QueueState::stop)
    }

    fn end(
        &mut self,
        vring: usize,
        end: impl FnOnce(&mut QueueState, Side) -> Option<u32> + Send + 'static,
    ) -> Result<u32, Refused> {
        if self.vring(vring)?.is_running {
            let base = self.run(vring, end)?;
            let setup = self.vring(vring)?;
            setup.is_running = false;
            // A broken ring has no base; keep the last known base.
            setup.base = base.unwrap_or(setup.base);
            setup.stopped_at = base;
            if self.is_control(vring) {
                self.control.iter_mut().for_each(|control| control.stopped(base));
            }
        }
        Ok(self.vring(vring)?.base)
    }

    /// Stops every ring and clears this frontend's settings.
    pub(super) fn reset(&mut self) {
        mailbox::run_everywhere(&self.queues, QueueState::reset);
        if let Some(control) = &mut self.control {
            *control = Control::new(&self.config, control.queue.counters());
        }
        self.vrings.fill_with(Setup::default);
        self.memory = Arc::default();
        self.features = 0;
        self.shown = 0;
        self.declined = 0;
        self.protocol_features = 0;
        self.status = 0;
        self.frontend_mtu = None;
        self.status_reported = None;
        // Unmapping does not change the region's contents, so the frontend can reconnect with the region.
        self.inflight = None;
        self.replaced_inflight.clear();
        self.log = None;
        self.incoming_state = None;
    }

    /// Stops a ring and returns its base. From this moment, the frontend supplies the ring's base, so the ring's part
    /// of the inflight region is cleared as stale. If the ring has not run, its part holds the base of an earlier
    /// backend and is not cleared.
    fn finish(&mut self, vring: usize) -> Result<u32, Refused> {
        let has_run = self.vring(vring)?.is_running;
        let base = self.stop(vring)?;
        if let Some(inflight) = self.inflight.as_ref().filter(|_| has_run) {
            inflight.forget(vring);
        }
        self.vring(vring)?.kick = None;
        Ok(base)
    }

    /// Replaces the memory of every queue. Running rings continue at their base.
    fn replace_memory(&mut self, memory: GuestMemory) -> Result<(), Refused> {
        let running: Vec<usize> = (0..self.vrings.len()).filter(|vring| self.vrings[*vring].is_running).collect();
        for vring in &running {
            self.end(*vring, QueueState::pause)?;
        }
        let replaced = std::mem::replace(&mut self.memory, Arc::new(memory));
        for queue in &self.queues {
            let memory = Arc::clone(&self.memory);
            queue.run(move |state| state.set_memory(memory)).map_err(Refused::from)?;
        }
        self.control.iter_mut().for_each(|control| control.queue.set_memory(Arc::clone(&self.memory)));
        // Drop the old memory here: the last owner unmaps the memory, which takes too long for a data thread.
        drop(replaced);
        (0..self.vrings.len()).try_for_each(|vring| self.start(vring))
    }

    /// Handles `SET_MEM_TABLE`: replaces all regions.
    pub(super) fn set_memory(&mut self, table: &[(Extent, File)]) -> Result<(), Refused> {
        let memory = GuestMemory::map(table, self.config.memory_bytes_max, &self.alarm)?;
        self.replace_memory(memory)
    }

    /// Handles `SET_STATUS` (vhost-user, "Status"): 0 resets the device.
    pub(super) fn set_status(&mut self, status: u8) -> Result<(), Refused> {
        self.status = status;
        if status == 0 {
            for vring in 0..self.vrings.len() {
                let has_run = self.vring(vring)?.is_running;
                let base = self.finish(vring)?;
                let setup = self.vring(vring)?;
                (setup.base, setup.stopped_at, setup.loaded) = (0, None, None);
                setup.ended_at = has_run.then_some(base).or(setup.ended_at);
            }
            self.control.iter_mut().for_each(Control::forget);
            self.follow_control()?;
        }
        Ok(())
    }

    /// Handles `SET_VRING_ENABLE`: enables the vring if `num` is 1, and disables the vring if `num` is 0.
    pub(super) fn enable(&mut self, vring: usize, num: u32) -> Result<(), Refused> {
        let is_enabled = match num {
            0 => false,
            1 => true,
            _ => return Err(Refused::Enable(num)),
        };
        if self.is_control(vring) {
            return self.run(vring, move |state, side| state.set_enabled(side, is_enabled));
        }
        if self.is_unused(vring) {
            return Ok(());
        }
        self.vring(vring)?.is_enabled = Some(is_enabled);
        self.follow_enabled(vring)
    }

    /// Handles `NET_SET_MTU`: the guest's MTU set by the frontend, in bytes of the IP packet.
    pub(super) fn set_mtu(&mut self, mtu: u64) -> Result<(), Refused> {
        let mtu = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MTU_MIN).ok_or(Refused::Mtu(mtu))?;
        self.frontend_mtu = Some(mtu);
        Ok(())
    }

    /// Returns the maximum length of an inflight region in bytes: a region for all rings at their maximum size.
    fn inflight_len_max(&self) -> u64 {
        inflight::region_len(self.vrings.len() as u16, self.config.queue_size_max)
    }

    /// Returns the maximum length of a dirty log, in bytes. Before adding memory, QEMU sends a log that already covers
    /// the new memory. The log can therefore cover as much memory as the port maps.
    fn log_len_max(&self) -> u64 {
        let addresses = self.memory.end().min(GUEST_ADDRESSES_MAX).max(self.config.memory_bytes_max);
        addresses.div_ceil(LOG_BYTE_COVERS) + LOG_SLACK_LEN
    }

    fn event(&self, fd: File) -> Result<Event, Refused> {
        self.events.event(fd.into()).map_err(Refused::NoEventFd)
    }

    /// Returns the event that interrupts the guest: the eventfd itself, or an eventfd that replaces a pipe.
    fn call(&self, fd: File) -> Result<(Event, Option<CallPipe>), Refused> {
        match self.events.event(fd.into()) {
            Ok(event) => Ok((event, None)),
            Err(NoEventFd { fd, .. }) if is_pipe(&fd) => {
                if Arc::strong_count(&self.call_threads) > CALL_THREADS_PER_VRING * self.vrings.len() {
                    return Err(Refused::BlockedPipes);
                }
                let pipe = CallPipe::start(fd, &self.call_threads)?;
                let bell = self.events.event(pipe.bell()?).map_err(Refused::NoEventFd)?;
                Ok((bell, Some(pipe)))
            }
            Err(refused) => Err(Refused::NoEventFd(refused)),
        }
    }

    fn set_every_feature(&mut self) -> Result<(), Refused> {
        let negotiated = self.features;
        // Without `LOG_ALL`, the frontend no longer reads the log: the migration was cancelled.
        let is_log_over = negotiated & LOG_ALL == 0;
        self.control.iter_mut().for_each(|control| control.set_features(negotiated));
        let in_force = self.control.as_ref().map(|control| control.features_in_force(&control.settings));
        let of_queues = in_force.unwrap_or(negotiated);
        for queue in &self.queues {
            let change = move |state: &mut QueueState| {
                state.set_features(of_queues);
                if is_log_over {
                    state.set_log(None);
                }
            };
            queue.run(change).map_err(Refused::from)?;
        }
        // Apply the settings again, because another driver starts without settings.
        self.follow_control()?;
        if is_log_over {
            self.control.iter_mut().for_each(|control| control.queue.set_log(None));
            self.log = None;
        }
        // Without protocol features, SET_VRING_ENABLE does not exist, and rings are enabled from the start.
        if negotiated & PROTOCOL_FEATURES == 0 {
            for vring in 0..self.vrings.len() {
                self.enable(vring, 1)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a descriptor is the write end of a pipe, or a socket (User Mode Linux uses a socket in place of a
/// pipe). Returns false for a socket whose peer is this process, such as the frontend's end of its connection to this
/// port. Returns false for a readable end of a pipe: while this process holds such an end, a write to the full pipe
/// blocks in place of failing.
fn is_pipe(fd: &OwnedFd) -> bool {
    let kind = fstat(fd).map_or(SFlag::empty(), |stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
    let is_written = || fcntl(fd, FcntlArg::F_GETFL).is_ok_and(|flags| flags & libc::O_ACCMODE == libc::O_WRONLY);
    let leads_elsewhere = || getsockopt(fd, PeerCredentials).is_ok_and(|peer| peer.pid() != getpid().as_raw());
    (kind == SFlag::S_IFIFO && is_written()) || (kind == SFlag::S_IFSOCK && leads_elsewhere())
}
