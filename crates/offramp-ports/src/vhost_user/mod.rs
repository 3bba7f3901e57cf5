//! A virtual machine as a host: virtio-net over vhost-user.
//!
//! The machine's monitor (the frontend: QEMU, Cloud Hypervisor, DPDK's virtio-user) shares the guest's
//! memory over a Unix socket and gives the addresses of the rings. Guest and adapter then communicate only
//! through that memory. Sources: virtio 1.3 (2.7, 2.8, 5.1) and QEMU's `docs/interop/vhost-user.rst`.
//!
//! ```text
//!  guest ── rings in shared memory ──▶ VhostQueue (one thread per pair: a HostPort)
//!    │                                      ▲ changes, between two batches
//!  monitor ── messages, descriptors ──▶ control thread (one per port)
//! ```
//!
//! Both sides may come and go in any order: a port without a guest takes nothing and has no room.
//! Every input from a guest or a frontend is checked. Invalid input is counted and refused, and affects only
//! that guest.

use offramp_offload::sync::lock;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_offload::caps::Offloads;
use offramp_virtio::notifier::Events;
use offramp_virtio::sigbus::Alarm;

mod call_pipe;
mod channel;
mod control;
mod counters;
mod device;
mod features;
mod filter;
mod link;
mod mailbox;
mod mem_table;
mod message;
mod port;
mod queue;
mod rarp;
mod rss;
mod session;
mod socket_file;

pub use control::{ControlStatus, FilterStatus, HashStatus};
pub use counters::{ChannelCounters, QueueCounters};
pub use features::{RingFeatures, feature_name};
pub use link::Link;
pub use offramp_virtio::control::ReceiveModes;
pub use offramp_virtio::ring::QUEUE_SIZE_MAX;
pub use port::VhostPort;
pub use queue::VhostQueue;

use crate::sys::link::CarrierWatch;
use crate::sys::sandbox::{Sandbox, ThreadKind};
use crate::sys::socket_file::{GIVING, SocketFile, SocketRights, hint};
use device::Device;
use link::Presence;
use mailbox::{Sender, mailbox};
use queue::QueueState;
use session::Session;

/// Most vrings that a frontend can name with a descriptor: `SET_VRING_KICK` has 8 bits for the number (vhost-user,
/// "Vring descriptor index").
const VRINGS_MAX: u16 = 256;
/// Smallest MTU that may be offered to a guest, in bytes of IP (virtio 1.3, 5.1.4.1).
pub const MTU_MIN: u16 = 68;
/// Longest super-frame that a guest sends by default, in bytes: an Ethernet header with two VLAN tags and an
/// IP packet of 65536 bytes.
pub const FRAME_LEN_MAX: usize = 65536 + 22;

/// Most bytes of guest memory mapped for a frontend by default: 1 TiB. A process has 128 TiB of addresses for all
/// its guests (x86-64 with four levels of page tables).
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The listening side of the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// This port listens, and frontends connect (QEMU's `server=off`).
    #[default]
    Server,
    /// The frontend listens; this port connects, again and again until it is there.
    Client,
}

/// The server of the guest's control queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlQueue {
    /// The frontend (QEMU, Cloud Hypervisor, DPDK's virtio-user); the port receives no commands.
    #[default]
    Frontend,
    /// The port: a guest's `ethtool -C` and `-L` reach the adapter. For a monitor that gives the control queue to the
    /// backend (QEMU's generic vhost-user device, crosvm, libkrun, User Mode Linux). It is the vring after those of all
    /// queue pairs, or after the first pair's for a driver without `MQ` and `RSS` (virtio 1.3, 5.1.2).
    Backend,
    /// No one: `CTRL_VQ` and the features that need it are not offered. For a frontend without a control queue of its
    /// own, such as User Mode Linux.
    None,
}

impl ControlQueue {
    /// Returns the most queue pairs of a port: 128, or one less if the control queue is a vring, too.
    pub fn queue_pairs_max(self) -> u16 {
        (VRINGS_MAX - u16::from(self == Self::Backend)) / 2
    }
}

/// The settings of a vhost-user port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// The Unix socket.
    pub socket: PathBuf,
    /// The listening side.
    pub mode: Mode,
    /// The access rights of a server's socket.
    pub socket_rights: SocketRights,
    /// The user of a permitted frontend's process; `None`: any that can connect, or listens there.
    pub allowed_uid: Option<u32>,
    /// Queue pairs, 1 to [`ControlQueue::queue_pairs_max`]. A guest may use fewer.
    pub queue_pairs: u16,
    /// The guest's Ethernet address; `None`: the frontend chooses it.
    pub mac: Option<[u8; 6]>,
    /// All queue pairs are driven as one [`VhostPort`], so that a guest may choose the receive pair of a flow.
    pub steers: bool,
    /// The addresses that the guest may take by its control queue; any when empty.
    pub mac_addresses: Vec<[u8; 6]>,
    /// The speed of the wire in megabits per second; `None`: unknown. A guest reads it if the port serves its control
    /// queue.
    pub speed_mbps: Option<u32>,
    /// The MTU in the guest's configuration, in bytes of IP; `None`: the configuration has none.
    pub mtu: Option<u16>,
    /// The offloads that may be offered to the guest at first; [`VhostUser::allow`] changes them.
    pub offloads: Offloads,
    /// The server of the control queue. Without a control queue a guest uses one queue pair.
    pub control_queue: ControlQueue,
    /// The offered features of rings and memory.
    pub rings: RingFeatures,
    /// Largest accepted ring, in descriptors.
    pub queue_size_max: u16,
    /// Longest frame accepted from the guest, in bytes with the Ethernet header.
    pub frame_len_max: usize,
    /// Most bytes of guest memory mapped for a frontend.
    pub memory_bytes_max: u64,
    /// The interface whose carrier the guest's link follows, in the namespace of the opening thread. `None`: the link
    /// is up unless [`VhostUser::link`] or [`VhostUser::join`] sets it down.
    pub carrier: Option<String>,
}

impl VhostUserConfig {
    /// Returns the settings of a server on `socket` with one queue pair and everything on.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            mode: Mode::Server,
            socket_rights: SocketRights::default(),
            allowed_uid: None,
            queue_pairs: 1,
            mac: None,
            steers: false,
            mac_addresses: Vec::new(),
            speed_mbps: None,
            mtu: None,
            offloads: Offloads::all(),
            control_queue: ControlQueue::default(),
            rings: RingFeatures::all(),
            queue_size_max: QUEUE_SIZE_MAX,
            frame_len_max: FRAME_LEN_MAX,
            memory_bytes_max: MEMORY_BYTES_MAX,
            carrier: None,
        }
    }

    fn check(&self) -> Result<(), VhostUserError> {
        let most = self.control_queue.queue_pairs_max();
        if !(1..=most).contains(&self.queue_pairs) {
            return Err(VhostUserError::QueuePairs {
                socket: self.socket.clone(),
                queue_pairs: self.queue_pairs,
                most,
            });
        }
        if self.queue_pairs > 1 && self.control_queue == ControlQueue::None {
            return Err(VhostUserError::ControlQueue { socket: self.socket.clone(), queue_pairs: self.queue_pairs });
        }
        if self.queue_size_max == 0 || self.queue_size_max > QUEUE_SIZE_MAX {
            return Err(VhostUserError::QueueSize { socket: self.socket.clone(), queue_size: self.queue_size_max });
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < MTU_MIN) {
            return Err(VhostUserError::Mtu { socket: self.socket.clone(), mtu });
        }
        Ok(())
    }
}

/// The reason for not making a vhost-user port.
#[derive(Debug, thiserror::Error)]
pub enum VhostUserError {
    /// The number of queue pairs is out of range.
    #[error("vhost-user \"{}\": {queue_pairs} queue pairs; use 1 to {most}", socket.display())]
    QueuePairs {
        /// The port's socket.
        socket: PathBuf,
        /// The queue pairs that were asked for.
        queue_pairs: u16,
        /// The maximum.
        most: u16,
    },
    /// Several queue pairs without a control queue: a guest cannot ask for them.
    #[error(
        "vhost-user \"{}\": {queue_pairs} queue pairs without a control queue, over which a guest asks for more than \
         one; use 1, or a frontend that has a control queue",
        socket.display()
    )]
    ControlQueue {
        /// The port's socket.
        socket: PathBuf,
        /// The queue pairs that were asked for.
        queue_pairs: u16,
    },
    /// The largest ring is out of range.
    #[error("vhost-user \"{}\": rings of {queue_size}; use 1 to {QUEUE_SIZE_MAX}", socket.display())]
    QueueSize {
        /// The port's socket.
        socket: PathBuf,
        /// The size that was asked for.
        queue_size: u16,
    },
    /// The MTU for the guest is out of range.
    #[error("vhost-user \"{}\": mtu {mtu} for the guest; use {MTU_MIN} to 65535 bytes of IP", socket.display())]
    Mtu {
        /// The port's socket.
        socket: PathBuf,
        /// The MTU that was asked for.
        mtu: u16,
    },
    /// The socket already has a listener.
    #[error("vhost-user \"{}\": the socket is in use; choose another, or stop who listens on it", .0.display())]
    SocketInUse(PathBuf),
    /// The socket's path names something else. It stays as it is.
    #[error("vhost-user \"{}\": it exists and is no socket; remove it, or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The socket cannot be made.
    #[error("vhost-user \"{}\": the socket: {doing}: {cause}{}", socket.display(), listening_hint(doing, cause, socket))]
    Listening {
        /// The port's socket.
        socket: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// A system call failed.
    #[error("vhost-user \"{}\": {doing}: {cause}", socket.display())]
    System {
        /// The port's socket.
        socket: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
}

fn listening_hint(doing: &str, cause: &io::Error, socket: &Path) -> String {
    if doing == GIVING && cause.kind() == io::ErrorKind::PermissionDenied {
        return "; the user of this process must be a member of that group".to_owned();
    }
    hint(cause, socket)
}

/// The current setup by a port's frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// A frontend is connected.
    pub is_connected: bool,
    /// Negotiated virtio features; names by [`feature_name`].
    pub features: u64,
    /// Negotiated vhost-user protocol features.
    pub protocol_features: u64,
    /// The device status of the guest's driver, if the frontend reports it (virtio 1.3, 2.1).
    pub device_status: u8,
    /// The MTU that the frontend gave the guest, if it reports it.
    pub frontend_mtu: Option<u16>,
    /// Entries of each ring, 0 for a stopped one: receive and transmit of the first pair, then of the second.
    pub ring_entries: Vec<u16>,
    /// Mapped regions of guest memory.
    pub memory_regions: usize,
    /// Mapped bytes of guest memory.
    pub memory_bytes: u64,
    /// The guest's settings through its control queue; `None` unless the port serves a running one.
    pub control: Option<ControlStatus>,
    /// The reason of the last disconnection of a frontend, if any.
    pub last_refusal: Option<String>,
}

impl PortStatus {
    /// Returns the negotiated offloads.
    pub fn offloads(&self) -> Offloads {
        features::offloads(self.features)
    }
}

/// An event at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A frontend has connected.
    Connected,
    /// Frontend and port have agreed on virtio features; names by [`feature_name`].
    Negotiated {
        /// Their bits.
        features: u64,
    },
    /// The frontend is gone.
    Disconnected {
        /// The reason if the port disconnected it; `None`: it went by itself.
        reason: Option<String>,
    },
}

/// A receiver of events. The port's control thread calls it, and waits for its return.
pub type Observer = Box<dyn Fn(PortEvent) + Send>;

/// A vhost-user port that is not open yet.
#[must_use = "the port is opened by `open`"]
pub struct VhostUserBuilder<'a> {
    config: &'a VhostUserConfig,
    listener: Option<UnixListener>,
    sandbox: Sandbox,
    observer: Observer,
}

impl<'a> VhostUserBuilder<'a> {
    /// Returns a builder with a socket of its own, no sandbox and no observer.
    pub fn new(config: &'a VhostUserConfig) -> Self {
        Self { config, listener: None, sandbox: Sandbox::default(), observer: Box::new(drop) }
    }

    /// Sets a listening, non-blocking socket for a server. The port never removes its file. `None`: the port makes one.
    pub fn listener(self, listener: Option<UnixListener>) -> Self {
        Self { listener, ..self }
    }

    /// Sets the sandbox of the control thread.
    pub fn sandbox(self, sandbox: Sandbox) -> Self {
        Self { sandbox, ..self }
    }

    /// Sets the receiver of the port's events.
    pub fn observer(self, observer: Observer) -> Self {
        Self { observer, ..self }
    }

    /// Opens the socket and starts the control thread. Frontends are answered once the queues are driven.
    ///
    /// # Errors
    /// When a number is out of range, or the socket cannot be made; nothing is left behind then.
    pub fn open(self) -> Result<VhostUser, VhostUserError> {
        let Self { config, listener, sandbox, observer } = self;
        config.check()?;
        let system = |doing| system_error(config, doing);
        let Queues { pairs: queues, senders, counters: queue_counters, of_control } = Queues::new(config)?;
        let event = || {
            EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
                .map_err(|e| system("making an eventfd")(e.into()))
        };
        let events =
            Events::new().map_err(system("making a context of asynchronous I/O (CONFIG_AIO, fs.aio-max-nr)"))?;
        let (stop, alarm) = (Arc::new(event()?), Arc::new(event()?));
        let link = Link::new().map_err(system("making an eventfd"))?;
        let carrier = config.carrier.as_deref().map(CarrierWatch::new).transpose();
        let carrier = carrier.map_err(|error| system("watching the carrier")(error.into()))?;
        let (listener, socket_file) = listening(config, listener)?;
        let mut port = VhostUser {
            config: config.clone(),
            allowed: Arc::new(AtomicU32::new(config.offloads.bits())),
            queues,
            queue_counters,
            channel_counters: Arc::default(),
            status: Arc::default(),
            link: Arc::clone(&link),
            presence: Arc::default(),
            alarm: Arc::clone(&alarm),
            ended: Arc::default(),
            stop,
            control: None,
            socket_file,
        };
        let allowed = Arc::clone(&port.allowed);
        let device =
            Device::new(config.clone(), allowed, Arc::clone(&alarm), events, Arc::clone(&link), senders, of_control);
        let session = Session {
            config: config.clone(),
            device: Arc::new(Mutex::new(device)),
            counters: Arc::clone(&port.channel_counters),
            status: Arc::clone(&port.status),
            stop: Arc::clone(&port.stop),
            last_refusal: None,
            alarm,
            ended: Arc::clone(&port.ended),
            link,
            carrier,
            presence: Arc::clone(&port.presence),
            channel: None,
            observer,
        };
        let builder = std::thread::Builder::new().name("ofr-vhost-user".to_owned());
        let serve = move || {
            sandbox.enter_thread(ThreadKind::Port);
            session.run(listener.as_ref());
        };
        port.control = Some(builder.spawn(serve).map_err(system("starting a thread"))?);
        Ok(port)
    }
}

fn system_error(config: &VhostUserConfig, doing: &'static str) -> impl FnOnce(io::Error) -> VhostUserError {
    let socket = config.socket.clone();
    move |cause| VhostUserError::System { socket, doing, cause }
}

/// The queue pairs of a port that opens.
struct Queues {
    pairs: Vec<Option<VhostQueue>>,
    senders: Vec<Sender<QueueState>>,
    counters: Vec<Arc<QueueCounters>>,
    /// The counters of the control queue, if the port serves it.
    of_control: Option<Arc<QueueCounters>>,
}

impl Queues {
    fn new(config: &VhostUserConfig) -> Result<Self, VhostUserError> {
        let of_control = (config.control_queue == ControlQueue::Backend).then(Arc::<QueueCounters>::default);
        let mut made = Self { pairs: Vec::new(), senders: Vec::new(), counters: Vec::new(), of_control };
        for index in 0..usize::from(config.queue_pairs) {
            let (sender, receiver) = mailbox().map_err(system_error(config, "making an eventfd"))?;
            let counters = Arc::new(QueueCounters::default());
            let state = QueueState::new(Arc::clone(&counters));
            made.pairs.push(Some(VhostQueue::new(index, receiver, state, config.frame_len_max)));
            made.senders.push(sender);
            made.counters.push(counters);
        }
        made.counters.extend(made.of_control.clone());
        Ok(made)
    }
}

/// Returns the listening socket of a server, and its file if the port is to remove it.
fn listening(
    config: &VhostUserConfig,
    given: Option<UnixListener>,
) -> Result<(Option<UnixListener>, Option<SocketFile>), VhostUserError> {
    match config.mode {
        Mode::Server if given.is_some() => Ok((given, None)),
        Mode::Server => {
            let (listener, file) = socket_file::listen(&config.socket, config.socket_rights)?;
            Ok((Some(listener), Some(file)))
        }
        Mode::Client => Ok((None, None)),
    }
}

/// A vhost-user port. When it and its queues are dropped, the frontend sees the socket close and a server's
/// socket is removed.
#[derive(Debug)]
pub struct VhostUser {
    config: VhostUserConfig,
    allowed: Arc<AtomicU32>,
    queues: Vec<Option<VhostQueue>>,
    queue_counters: Vec<Arc<QueueCounters>>,
    channel_counters: Arc<ChannelCounters>,
    status: Arc<Mutex<PortStatus>>,
    link: Arc<Link>,
    presence: Arc<Presence>,
    alarm: Alarm,
    ended: Arc<Mutex<Option<String>>>,
    stop: Arc<EventFd>,
    control: Option<JoinHandle<()>>,
    /// Set for a server that made its socket.
    socket_file: Option<SocketFile>,
}

impl VhostUser {
    /// Opens the socket and starts the control thread. Frontends are answered once the queues are driven.
    ///
    /// # Errors
    /// When a number is out of range, or the socket cannot be made; nothing is left behind then.
    pub fn open(config: &VhostUserConfig) -> Result<Self, VhostUserError> {
        VhostUserBuilder::new(config).open()
    }

    /// Takes queue pair `index` for one thread; `None` if there is none or it was taken.
    pub fn queue(&mut self, index: usize) -> Option<VhostQueue> {
        self.queues.get_mut(index)?.take()
    }

    /// Returns the settings of the port.
    pub fn config(&self) -> &VhostUserConfig {
        &self.config
    }

    /// Removes the file of a server's socket early: no new frontend finds the port. A file that replaced it stays.
    pub fn remove_socket(&self) {
        if let Some(file) = &self.socket_file {
            file.remove();
        }
    }

    /// Begins [`VhostUser::close`] without waiting: the end of several ports takes as long as that of one.
    pub fn begin_close(&self) {
        // A full counter rings already.
        let _ = self.stop.write(1);
    }

    /// Disconnects the frontend and ends the control thread; this unmaps the guest's memory. The queues go on without a
    /// guest until their threads drop them.
    pub fn close(&mut self) {
        self.begin_close();
        // No thread drives the queues that were not taken, and none must wait for them.
        self.queues.clear();
        if let Some(control) = self.control.take() {
            // A panic in the thread was reported when it happened.
            let _ = control.join();
        }
        self.socket_file = None;
    }

    /// Changes the offloads that may be offered, from the guest's next negotiation on.
    pub fn allow(&self, offloads: Offloads) {
        self.allowed.store(offloads.bits(), Ordering::Relaxed);
    }

    /// Returns the frontend's current setup.
    pub fn status(&self) -> PortStatus {
        lock(&self.status).clone()
    }

    /// Disconnects the frontend and sets [`PortStatus::last_refusal`] to `why`. Returns whether one was connected. The
    /// next one may connect.
    pub fn disconnect(&self, why: &str) -> bool {
        let is_connected = self.status().is_connected;
        if is_connected {
            *lock(&self.ended) = Some(why.to_owned());
            // A full counter rings already.
            let _ = self.alarm.write(1);
        }
        is_connected
    }

    /// Returns the state of the link, as the guest reads it. A port with a [`carrier`](VhostUserConfig::carrier) sets
    /// the wire's part of it itself.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Connects this port and `far` by a cable: the link of each is up while the other has a frontend.
    pub fn join(&self, far: &Self) {
        self.presence.follow(&far.link);
        far.presence.follow(&self.link);
    }

    /// Returns the counters of the message channel.
    pub fn channel_counters(&self) -> &ChannelCounters {
        &self.channel_counters
    }

    /// Returns the counters of each queue pair, then of the control queue if the port serves it.
    pub fn queue_counters(&self) -> &[Arc<QueueCounters>] {
        &self.queue_counters
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.close();
    }
}
