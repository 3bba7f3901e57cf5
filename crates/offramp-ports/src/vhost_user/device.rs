//! What a frontend sets up, message by message, and what follows for the queues.

use super::call_pipe::CallPipe;
use super::control::Control;
use super::features::{self, LOG_ALL, PROTOCOL_FEATURES};
use super::link::Link;
use super::mailbox::{self, NobodyThere, Sender};
use super::queue::{QueueState, Side, Start};
use super::{MTU_MIN, QueueCounters, VhostUserConfig};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::getpid;
use offramp_offload::caps::Offloads;
use offramp_virtio::MemoryError;
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::inflight;
use offramp_virtio::memory::{Extent, GuestMemory, REGIONS_MAX};
use offramp_virtio::notifier::{Event, Events, NoEventFd};
use offramp_virtio::ring::{BadRing, RingPlace};
use offramp_virtio::sigbus::Alarm;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

mod commands;
mod configuration;

/// Guest-physical bytes that a byte of the dirty log stands for: a bit for each page of 4096 bytes (vhost-user,
/// "Migration").
const LOG_BYTE_COVERS: u64 = 8 * 4096;
/// Guest-physical addresses that a processor can have (x86-64, Arm: 52 bits).
const GUEST_ADDRESSES_MAX: u64 = 1 << 52;
/// What QEMU makes a log longer for memory to come, and what rounding adds.
const LOG_SLACK_LEN: u64 = 2 * 4096;
/// Most threads for interrupts through pipes: of a frontend, and of one before it whose threads are just ending.
const CALL_THREADS_PER_VRING: usize = 2;

/// Why a message was refused. Each ends the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("vring {0}: there is none")]
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
    #[error("{what}: {len} bytes, which is more than the {len_max} that it can have use for")]
    TooLong { what: &'static str, len: u64, len_max: u64 },
    #[error("{0}; kick, call and err are eventfds, and a call may be a pipe or a socket")]
    NoEventFd(NoEventFd),
    #[error("interrupts through pipes that their reader does not read; end that process")]
    BlockedPipes,
    #[error("a vring is enabled by 1 and disabled by 0, not by {0}")]
    Enable(u32),
    #[error("MTU {0}: out of range")]
    Mtu(u64),
    #[error("{0} was not negotiated")]
    NotNegotiated(&'static str),
    #[error("{0:02x?}: no station's address")]
    Address([u8; 6]),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::ReqHandlerError(io::Error::other(refused.to_string()))
    }
}

/// How a ring that is started is kicked.
#[derive(Debug)]
enum Kick {
    Event(Event),
    /// Not at all: the ring is polled.
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

/// What was said of one vring.
#[derive(Debug, Default)]
struct Setup {
    place: RingPlace,
    has_place: bool,
    base: u32,
    /// Where the ring ended at a reset. QEMU resets the status of a device that moves before it asks for its bases (7.2:
    /// `vhost_dev_stop`).
    ended_at: Option<u32>,
    /// Set once the frontend starts the ring.
    kick: Option<Kick>,
    /// Set if interrupts go through a pipe.
    call_pipe: Option<CallPipe>,
    is_logged: bool,
    is_running: bool,
    /// What the frontend last said, of a ring of data.
    is_enabled: Option<bool>,
}

/// A guest's device as its frontend sees it.
#[derive(Debug)]
pub(super) struct Device {
    config: VhostUserConfig,
    /// What may be offered now; the user's switches.
    allowed: Arc<AtomicU32>,
    /// Rings when the frontend took away memory that it had shared.
    alarm: Alarm,
    /// Raises the eventfds of the frontend.
    events: Events,
    /// Shared by each thread for interrupts through a pipe, and by the device.
    call_threads: Arc<()>,
    queues: Vec<Sender<QueueState>>,
    vrings: Vec<Setup>,
    /// The control queue, if the port serves it. Its vring is one of those, too.
    control: Option<Control>,
    memory: Arc<GuestMemory>,
    features: u64,
    /// All that this frontend was shown. It may agree to that much later, and has no way to hear of a change: what was
    /// switched off meanwhile is granted to it until it connects again.
    shown: u64,
    protocol_features: u64,
    status: u8,
    frontend_mtu: Option<u16>,
    link: Arc<Link>,
    /// The `status` that the frontend last read, or that was last reported to it.
    status_reported: Option<u16>,
    inflight: Option<Arc<inflight::Region>>,
    /// No more than there are rings.
    replaced_inflight: Vec<Arc<inflight::Region>>,
    log: Option<Arc<DirtyLog>>,
}

impl Device {
    pub fn new(
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
            protocol_features: 0,
            status: 0,
            frontend_mtu: None,
            link,
            status_reported: None,
            inflight: None,
            replaced_inflight: Vec::new(),
            log: None,
        }
    }

    /// Whether a protocol feature was negotiated.
    pub fn speaks(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.protocol_features & feature.bits() != 0
    }

    pub fn features(&self) -> u64 {
        self.features
    }

    pub fn protocol_features(&self) -> u64 {
        self.protocol_features
    }

    pub fn frontend_mtu(&self) -> Option<u16> {
        self.frontend_mtu
    }

    pub fn device_status(&self) -> u8 {
        self.status
    }

    pub fn memory_size(&self) -> (usize, u64) {
        self.memory.size()
    }

    /// Size of each vring, 0 for one that does not run.
    pub fn ring_entries(&self) -> Vec<u16> {
        self.vrings.iter().map(|setup| if setup.is_running { setup.place.size } else { 0 }).collect()
    }

    fn offered(&self) -> u64 {
        let allowed = Offloads::from_bits_truncate(self.allowed.load(Ordering::Relaxed));
        let when = |is_on: bool, bits: u64| if is_on { bits } else { 0 };
        features::offer(self.config.rings, allowed, self.config.control_queue)
            | when(self.queues.len() > 1, features::MQ)
            | when(
                self.queues.len() > 1 && self.control.is_some() && self.config.steers,
                features::RSS | features::HASH_REPORT,
            )
            | when(self.config.mac.is_some(), features::MAC)
            | when(self.config.mtu.is_some(), features::MTU)
            | when(self.control.is_some() && self.config.speed_mbps.is_some(), features::SPEED_DUPLEX)
    }

    fn vring(&mut self, vring: usize) -> std::result::Result<&mut Setup, Refused> {
        let is_control = self.control.is_none() && vring == self.vrings.len() && self.features & features::CTRL_VQ != 0;
        let refused = if is_control { Refused::ControlVring(vring) } else { Refused::NoVring(vring) };
        self.vrings.get_mut(vring).ok_or(refused)
    }

    /// Whether a vring is the control queue's.
    fn is_control(&self, vring: usize) -> bool {
        self.would_be_control(vring, self.features)
    }

    fn would_be_control(&self, vring: usize, features: u64) -> bool {
        self.control.is_some() && Control::is_at(vring, features, self.config.queue_pairs)
    }

    /// Whether a vring is none of this driver's: the last one where the control queue is the third. Frontends speak of it all
    /// the same (QEMU).
    fn is_unused(&self, vring: usize) -> bool {
        vring == 2 * self.queues.len() && self.control.is_some() && !self.is_control(vring)
    }

    fn run<R: Send + 'static>(
        &mut self,
        vring: usize,
        work: impl FnOnce(&mut QueueState, Side) -> R + Send + 'static,
    ) -> std::result::Result<R, Refused> {
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

    /// Starts a ring once everything that it needs was said.
    fn start(&mut self, vring: usize) -> std::result::Result<(), Refused> {
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
            base: setup.base,
            kick,
            is_logged: setup.is_logged,
            inflight,
        };
        let base = start.base;
        self.run(vring, move |state, side| state.start(side, start))?
            .map_err(|cause| Refused::Ring { vring, cause })?;
        let setup = self.vring(vring)?;
        (setup.is_running, setup.ended_at) = (true, None);
        if self.is_control(vring) { self.control_started(base) } else { Ok(()) }
    }

    /// Stops a ring; what was said of it stays, but for its kick.
    fn stop(&mut self, vring: usize) -> std::result::Result<u32, Refused> {
        self.end(vring, QueueState::stop)
    }

    fn end(
        &mut self,
        vring: usize,
        end: impl FnOnce(&mut QueueState, Side) -> Option<u32> + Send + 'static,
    ) -> std::result::Result<u32, Refused> {
        if self.vring(vring)?.is_running {
            let base = self.run(vring, end)?;
            let setup = self.vring(vring)?;
            setup.is_running = false;
            // A ring that broke has no base of its own any more.
            setup.base = base.unwrap_or(setup.base);
            if self.is_control(vring) {
                self.control.iter_mut().for_each(|control| control.stopped(base));
            }
        }
        Ok(self.vring(vring)?.base)
    }

    /// Stops every ring and forgets what this frontend said.
    pub fn reset(&mut self) {
        mailbox::run_everywhere(&self.queues, QueueState::reset);
        if let Some(control) = &mut self.control {
            *control = Control::new(&self.config, control.queue.counters());
        }
        self.vrings.fill_with(Setup::default);
        self.memory = Arc::default();
        self.features = 0;
        self.shown = 0;
        self.protocol_features = 0;
        self.status = 0;
        self.frontend_mtu = None;
        self.status_reported = None;
        // What it says stays: the frontend may come again with it.
        self.inflight = None;
        self.replaced_inflight.clear();
        self.log = None;
    }

    /// Stops a ring of which the frontend knows where it is from then on: what the inflight region says of it is old.
    /// Of a ring that has not run the region says where a backend before this one ended.
    fn finish(&mut self, vring: usize) -> std::result::Result<u32, Refused> {
        let has_run = self.vring(vring)?.is_running;
        let base = self.stop(vring)?;
        if let Some(inflight) = self.inflight.as_ref().filter(|_| has_run) {
            inflight.forget(vring);
        }
        self.vring(vring)?.kick = None;
        Ok(base)
    }

    /// Has every queue use other memory; rings that ran go on where they were.
    fn replace_memory(&mut self, memory: GuestMemory) -> std::result::Result<(), Refused> {
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
        // The last who drops it unmaps it, which takes long: not the thread of the frames.
        drop(replaced);
        (0..self.vrings.len()).try_for_each(|vring| self.start(vring))
    }

    /// `SET_MEM_TABLE`: all regions anew.
    pub fn set_memory(&mut self, table: &[(Extent, File)]) -> std::result::Result<(), Refused> {
        let memory = GuestMemory::map(table, self.config.memory_bytes_max, &self.alarm)?;
        self.replace_memory(memory)
    }

    /// `SET_STATUS` (vhost-user, "Status"): 0 resets the device.
    pub fn set_status(&mut self, status: u8) -> std::result::Result<(), Refused> {
        self.status = status;
        if status == 0 {
            for vring in 0..self.vrings.len() {
                let has_run = self.vring(vring)?.is_running;
                let base = self.finish(vring)?;
                let setup = self.vring(vring)?;
                setup.base = 0;
                setup.ended_at = has_run.then_some(base).or(setup.ended_at);
            }
            self.control.iter_mut().for_each(Control::forget);
            self.follow_control()?;
        }
        Ok(())
    }

    /// `SET_VRING_ENABLE`, with 0 or 1.
    pub fn enable(&mut self, vring: usize, num: u32) -> std::result::Result<(), Refused> {
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

    /// `NET_SET_MTU`: what the frontend told the guest, in bytes of IP.
    pub fn set_mtu(&mut self, mtu: u64) -> std::result::Result<(), Refused> {
        let mtu = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MTU_MIN).ok_or(Refused::Mtu(mtu))?;
        self.frontend_mtu = Some(mtu);
        Ok(())
    }

    /// Bytes of the longest inflight region: one for all rings, each as large as the port takes it.
    fn inflight_len_max(&self) -> u64 {
        inflight::region_len(self.vrings.len() as u16, self.config.queue_size_max)
    }

    /// Bytes of the longest dirty log. A frontend that is about to add memory gives the log for it first (QEMU), so the log
    /// may be as long as for all the memory that the port maps.
    fn log_len_max(&self) -> u64 {
        let addresses = self.memory.end().min(GUEST_ADDRESSES_MAX).max(self.config.memory_bytes_max);
        addresses.div_ceil(LOG_BYTE_COVERS) + LOG_SLACK_LEN
    }

    fn event(&self, fd: File) -> std::result::Result<Event, Refused> {
        self.events.event(fd.into()).map_err(Refused::NoEventFd)
    }

    /// How the guest is interrupted: by an eventfd, or by one that stands for a pipe.
    fn call(&self, fd: File) -> std::result::Result<(Event, Option<CallPipe>), Refused> {
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

    fn set_every_feature(&mut self) -> std::result::Result<(), Refused> {
        let negotiated = self.features;
        // The frontend reads the log no more: the migration was cancelled.
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
        // Of another driver nothing is set.
        self.follow_control()?;
        if is_log_over {
            self.control.iter_mut().for_each(|control| control.queue.set_log(None));
            self.log = None;
        }
        // Without protocol features there is no SET_VRING_ENABLE: rings are enabled from the start.
        if negotiated & PROTOCOL_FEATURES == 0 {
            for vring in 0..self.vrings.len() {
                self.enable(vring, 1)?;
            }
        }
        Ok(())
    }
}

/// Whether a descriptor is the end of a pipe that is written, or a socket as User Mode Linux makes one for a pipe. One that
/// leads back into this process, as the frontend's connection does, is none; nor is an end that can be read, for whoever
/// has it keeps a writer waiting.
fn is_pipe(fd: &OwnedFd) -> bool {
    let kind = fstat(fd).map_or(SFlag::empty(), |stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
    let is_written = || fcntl(fd, FcntlArg::F_GETFL).is_ok_and(|flags| flags & libc::O_ACCMODE == libc::O_WRONLY);
    let leads_elsewhere = || getsockopt(fd, PeerCredentials).is_ok_and(|peer| peer.pid() != getpid().as_raw());
    (kind == SFlag::S_IFIFO && is_written()) || (kind == SFlag::S_IFSOCK && leads_elsewhere())
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.set_status(0)?;
        for vring in 0..self.vrings.len() {
            self.run(vring, QueueState::forget_enabled)?;
            self.vring(vring)?.is_enabled = None;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.shown |= self.offered();
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let never_offered = features & !(self.offered() | self.shown);
        if never_offered != 0 {
            return Err(Refused::Features(never_offered).into());
        }
        // A ring that runs as one of data, or as the control queue, is not the other's.
        let changes = |vring: &usize| self.is_control(*vring) != self.would_be_control(*vring, features);
        let changed = (0..self.vrings.len()).filter(|vring| self.vrings[*vring].is_running && changes(vring));
        for vring in changed.collect::<Vec<_>>() {
            self.finish(vring)?;
        }
        self.features = features;
        Ok(self.set_every_feature()?)
    }

    fn set_mem_table(
        &mut self,
        _regions: &[VhostUserMemoryRegion],
        _files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        // The session reads these tables itself.
        Err(Refused::Unsupported("SET_MEM_TABLE").into())
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let (max, vring) = (self.config.queue_size_max, index as usize);
        let size = u16::try_from(num).ok().filter(|size| (1..=max).contains(size));
        let size = size.ok_or(Refused::Ring { vring, cause: BadRing::Size })?;
        self.vring(vring)?.place.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let vring = index as usize;
        let setup = self.vring(vring)?;
        let place = RingPlace { size: setup.place.size, descriptors: descriptor, driver: available, device: used };
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let has_moved = setup.place != place;
        setup.is_logged = is_logged;
        setup.has_place = true;
        if setup.is_running && !has_moved {
            self.run(vring, move |state, side| state.set_logged(side, is_logged))?;
            return Ok(());
        }
        self.stop(vring)?;
        self.vring(vring)?.place = place;
        Ok(self.start(vring)?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let vring = index as usize;
        // A driver may be reset without a word but this (libkrun). What the ring holds is not the new driver's: it waits for its
        // kick. Whoever continues a guest has asked where the ring ended, so that it does not run.
        if self.vring(vring)?.is_running {
            self.finish(vring)?;
            if self.is_control(vring) {
                self.control.iter_mut().for_each(|control| control.stopped(None));
            }
        }
        let setup = self.vring(vring)?;
        (setup.base, setup.ended_at) = (base, None);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = index as usize;
        let base = self.finish(vring)?;
        let base = self.vring(vring)?.ended_at.take().unwrap_or(base);
        Ok(VhostUserVringState::new(index, base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let vring = usize::from(index);
        self.stop(vring)?;
        if self.is_control(vring)
            && let Some(control) = &mut self.control
        {
            control.kick =
                fd.as_ref().map(File::try_clone).transpose().map_err(Refused::Io)?.map(|fd| Arc::new(fd.into()));
        }
        let kick = fd.map(|fd| self.event(fd)).transpose()?;
        self.vring(vring)?.kick = Some(kick.map_or(Kick::Polled, Kick::Event));
        Ok(self.start(vring)?)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let vring = usize::from(index);
        let (call, call_pipe) = fd.map(|fd| self.call(fd)).transpose()?.unzip();
        self.run(vring, move |state, side| state.set_call(side, call))?;
        self.vring(vring)?.call_pipe = call_pipe.flatten();
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let err = fd.map(|fd| self.event(fd)).transpose()?;
        Ok(self.run(usize::from(index), move |state, side| state.set_err(side, err))?)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        use VhostUserProtocolFeatures as Feature;
        let mut offered = Feature::REPLY_ACK
            | Feature::MTU
            | Feature::RARP
            | Feature::INFLIGHT_SHMFD
            | Feature::RESET_DEVICE
            | Feature::CONFIGURE_MEM_SLOTS
            | Feature::STATUS
            | Feature::LOG_SHMFD;
        let is_served = self.control.is_some();
        offered.set(Feature::MQ, self.queues.len() > 1 || is_served);
        // A frontend that gives the guest an address itself (QEMU) refuses a backend with a configuration; it learns the
        // MTU by other means. The backend's channel serves for changes of the configuration alone.
        let of_config = Feature::CONFIG | Feature::BACKEND_REQ | Feature::BACKEND_SEND_FD;
        offered.set(of_config, self.config.mac.is_some() || is_served);
        Ok(offered)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let never_offered = features & !self.get_protocol_features()?.bits();
        if never_offered != 0 {
            return Err(Refused::Features(never_offered).into());
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // A frontend that leaves the control queue to the port counts vrings, any other queue pairs.
        Ok(if self.control.is_some() { self.vrings.len() } else { self.queues.len() } as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        Ok(self.enable(index as usize, u32::from(enable))?)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = self.net_config();
        let (start, len) = (offset as usize, size as usize);
        let bytes = start.checked_add(len).and_then(|end| config.get(start..end));
        bytes.map(<[u8]>::to_vec).ok_or_else(|| Refused::Unsupported("a longer configuration").into())
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // The configuration of a modern device is the driver's to read alone (virtio 1.3, 5.1.4).
        Err(Refused::Unsupported("SET_CONFIG").into())
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {}

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Refused::Unsupported("GPU_SET_SOCKET").into())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Refused::Unsupported("GET_SHARED_OBJECT").into())
    }

    /// Chains are used in the order in which they came, so none is in flight across a restart. A split ring
    /// has its used index where the frontend sees it; a packed ring's position is in the region.
    fn get_inflight_fd(&mut self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, entries) = (inflight.num_queues, inflight.queue_size);
        if usize::from(queues) > self.vrings.len() || entries > self.config.queue_size_max {
            return Err(Refused::Inflight.into());
        }
        let len = inflight::region_len(queues, entries);
        let flags = MFdFlags::MFD_CLOEXEC;
        let file = File::from(memfd_create(c"offramp-inflight", flags).map_err(|e| Refused::Io(e.into()))?);
        file.set_len(len).map_err(Refused::Io)?;
        Ok((VhostUserInflight { mmap_size: len, mmap_offset: 0, ..*inflight }, file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        if mmap_size > self.inflight_len_max() {
            return Err(
                Refused::TooLong { what: "inflight region", len: mmap_size, len_max: self.inflight_len_max() }.into()
            );
        }
        let region = inflight::Region::map(&file, mmap_offset, mmap_size, num_queues, queue_size, &self.alarm);
        let replaced = self.inflight.replace(Arc::new(region.map_err(Refused::from)?));
        // A ring that runs keeps it. Its thread must not be the last to have it, and unmap it.
        self.replaced_inflight.retain(|region| Arc::strong_count(region) > 1);
        self.replaced_inflight.extend(replaced);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let extent = Extent {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            len: region.memory_size,
            file_offset: region.mmap_offset,
        };
        let memory = self.memory.with(extent, &fd, self.config.memory_bytes_max, &self.alarm).map_err(Refused::from)?;
        self.replace_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without(region.guest_phys_addr, region.user_addr, region.memory_size);
        let memory = memory.map_err(Refused::from)?;
        Ok(self.replace_memory(memory)?)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Refused::Unsupported("SET_DEVICE_STATE_FD").into())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Refused::Unsupported("CHECK_DEVICE_STATE").into())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Refused::Unsupported("GET_SHMEM_CONFIG").into())
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        if log.mmap_size > self.log_len_max() {
            return Err(Refused::TooLong { what: "dirty log", len: log.mmap_size, len_max: self.log_len_max() }.into());
        }
        let log = Arc::new(DirtyLog::map(&file, log.mmap_offset, log.mmap_size, &self.alarm).map_err(Refused::from)?);
        let replaced = self.log.replace(Arc::clone(&log));
        for queue in &self.queues {
            let log = Some(Arc::clone(&log));
            queue.run(move |state| state.set_log(log)).map_err(Refused::from)?;
        }
        self.control.iter_mut().for_each(|control| control.queue.set_log(self.log.clone()));
        // As memory that is replaced.
        drop(replaced);
        Ok(())
    }
}
