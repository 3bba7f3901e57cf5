//! A virtual machine as a host: virtio-net over vhost-user.
//!
//! The virtual machine monitor is the frontend: QEMU, Cloud Hypervisor or DPDK's virtio-user. The frontend shares the
//! guest's memory over a Unix socket, and sends the addresses of the rings. From the start of a ring, guest and adapter
//! exchange frames only through the shared memory. Sources: virtio 1.3 (2.7, 2.8, 5.1) and QEMU's
//! `docs/interop/vhost-user.rst`.
//!
//! ```text
//!  guest ── rings in shared memory ──▶ VhostQueue (one thread per pair: a HostPort)
//!    │                                      ▲ changes, between two batches
//!  monitor ── messages, descriptors ──▶ control thread (one per port)
//! ```
//!
//! Frontend and port can connect and disconnect in any order. A port without a guest fetches no frames, and refuses
//! delivered frames for lack of buffers. Every input from a guest or a frontend is checked. Invalid input is counted
//! and refused, and affects only the guest that caused it.

use offramp_offload::sync::lock;
use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_offload::caps::Offloads;
use offramp_virtio::notifier::Events;
use offramp_virtio::sigbus::Alarm;

mod call_pipe;
mod channel;
mod config;
mod control;
mod counters;
mod device;
mod error;
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
mod state;
mod status;

pub use config::{FRAME_LEN_MAX, MEMORY_BYTES_MAX, Mode, VhostUserConfig};
pub use control::{ControlStatus, FilterStatus};
pub use counters::{ChannelCounters, QueueCounters, guest_rows};
pub use error::VhostUserError;
pub use features::{ControlQueue, MTU_MIN, RingFeatures, feature_name};
pub use link::Link;
pub use offramp_virtio::control::ReceiveModes;
pub use offramp_virtio::ring::QUEUE_SIZE_MAX;
pub use port::VhostPort;
pub use queue::VhostQueue;
pub use rss::HashStatus;
pub use status::{Observer, PortEvent, PortStatus};

use crate::sys::link::CarrierWatch;
use crate::sys::sandbox::{Sandbox, ThreadKind};
use crate::sys::socket_file::SocketFile;
use device::Device;
use link::Presence;
use mailbox::{Sender, mailbox};
use offramp_adapter::stats::Row;
use queue::QueueState;
use session::Session;

/// The builder of a vhost-user port.
#[must_use = "the port is opened by `open`"]
pub struct VhostUserBuilder<'a> {
    config: &'a VhostUserConfig,
    listener: Option<UnixListener>,
    sandbox: Sandbox,
    observer: Observer,
}

impl<'a> VhostUserBuilder<'a> {
    /// Returns a builder for a port that creates its own socket, without sandbox and without observer.
    pub fn new(config: &'a VhostUserConfig) -> Self {
        Self { config, listener: None, sandbox: Sandbox::default(), observer: Box::new(drop) }
    }

    /// Sets a listening, non-blocking socket for a server. The port never removes the file of a given socket. If
    /// `None`, the port creates the socket.
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

    /// Opens the socket and starts the control thread. The port answers its frontend only while threads poll the
    /// queues.
    ///
    /// # Errors
    /// Returns an error if a number is out of range, or the socket cannot be created. After an error, no socket file
    /// remains.
    pub fn open(self) -> Result<VhostUser, VhostUserError> {
        let Self { config, listener, sandbox, observer } = self;
        config.check()?;
        let system = |doing| system_error(config, doing);
        let Queues { pairs: queues, senders, counters: queue_counters, of_control } = Queues::new(config)?;
        let event = || {
            EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
                .map_err(|e| system("creating an eventfd")(e.into()))
        };
        let events =
            Events::new().map_err(system("creating an asynchronous I/O context (check CONFIG_AIO, fs.aio-max-nr)"))?;
        let (stop, alarm) = (Arc::new(event()?), Arc::new(event()?));
        let link = Link::new().map_err(system("creating an eventfd"))?;
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
        let (context, link_of_device) = (events.clone(), Arc::clone(&link));
        let device =
            Device::new(config.clone(), allowed, Arc::clone(&alarm), events, link_of_device, senders, of_control);
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
        let (is_serving, served) = channel();
        let serve = move || {
            sandbox.enter_thread(ThreadKind::Port);
            session.run(listener.as_ref());
            drop((listener, is_serving));
            // `io_destroy(2)` waits tens of milliseconds for a grace period of the kernel (RCU). `VhostUser::close`
            // does not wait for this drop.
            drop(context);
        };
        builder.spawn(serve).map_err(system("starting a thread"))?;
        port.control = Some(served);
        Ok(port)
    }
}

fn system_error(config: &VhostUserConfig, doing: &'static str) -> impl FnOnce(io::Error) -> VhostUserError {
    let socket = config.socket.clone();
    move |cause| VhostUserError::System { socket, doing, cause }
}

/// The queue pairs of a port being opened.
struct Queues {
    pairs: Vec<Option<VhostQueue>>,
    senders: Vec<Sender<QueueState>>,
    counters: Vec<Arc<QueueCounters>>,
    /// The counters of the control queue, if the port serves the control queue.
    of_control: Option<Arc<QueueCounters>>,
}

impl Queues {
    fn new(config: &VhostUserConfig) -> Result<Self, VhostUserError> {
        let of_control = (config.control_queue == ControlQueue::Backend).then(Arc::<QueueCounters>::default);
        let mut made = Self { pairs: Vec::new(), senders: Vec::new(), counters: Vec::new(), of_control };
        for index in 0..usize::from(config.queue_pairs) {
            let (sender, receiver) = mailbox().map_err(system_error(config, "creating an eventfd"))?;
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

/// Returns the listening socket of a server, and the socket's file if the port must remove it.
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

/// A vhost-user port. Dropping the port and its queues closes the frontend's connection, and removes the socket file of
/// a server.
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
    /// A channel that disconnects when the control thread stops serving frontends. `None` after [`VhostUser::close`].
    control: Option<Receiver<Infallible>>,
    /// The socket's file, if this port is a server and created the socket.
    socket_file: Option<SocketFile>,
}

impl VhostUser {
    /// Opens the socket and starts the control thread. The port answers its frontend only while threads poll the
    /// queues.
    ///
    /// # Errors
    /// Returns an error if a number is out of range, or the socket cannot be created. After an error, no socket file
    /// remains.
    pub fn open(config: &VhostUserConfig) -> Result<Self, VhostUserError> {
        VhostUserBuilder::new(config).open()
    }

    /// Takes queue pair `index` for one thread. Returns `None` if `index` is out of range or the pair was already
    /// taken.
    pub fn queue(&mut self, index: usize) -> Option<VhostQueue> {
        self.queues.get_mut(index)?.take()
    }

    /// Returns the settings of the port.
    pub fn config(&self) -> &VhostUserConfig {
        &self.config
    }

    /// Removes the file of a server's socket before the port closes, so that no new frontend can connect. A file that
    /// has replaced the socket stays.
    pub fn remove_socket(&self) {
        if let Some(file) = &self.socket_file {
            file.remove();
        }
    }

    /// Starts [`VhostUser::close`] without waiting, so that several ports close in parallel.
    pub fn begin_close(&self) {
        // The write fails only if the eventfd's counter is full. An eventfd with a full counter is already readable.
        let _ = self.stop.write(1);
    }

    /// Disconnects the frontend, and waits until the control thread has unmapped the guest's memory. The thread then
    /// destroys its I/O context. The queues continue without a guest until the queues' threads drop the queues.
    pub fn close(&mut self) {
        self.begin_close();
        // `queues` still contains the queues that were not taken, and no thread polls them. Drop these queues;
        // otherwise the control thread would wait for their answers.
        self.queues.clear();
        if let Some(control) = self.control.take() {
            // The thread never sends: the call returns when the thread drops its end, also after a panic.
            let _ = control.recv();
        }
        self.socket_file = None;
    }

    /// Sets the offloads that the port can offer. The change takes effect when the guest next negotiates features.
    pub fn allow(&self, offloads: Offloads) {
        self.allowed.store(offloads.bits(), Ordering::Relaxed);
    }

    /// Returns the port's current status.
    pub fn status(&self) -> PortStatus {
        lock(&self.status).clone()
    }

    /// Disconnects the frontend and sets [`PortStatus::last_refusal`] to `why`. Returns whether a frontend was
    /// connected. After this call, another frontend can connect.
    pub fn disconnect(&self, why: &str) -> bool {
        let is_connected = self.status().is_connected;
        if is_connected {
            *lock(&self.ended) = Some(why.to_owned());
            // The write fails only if the eventfd's counter is full. An eventfd with a full counter is already
            // readable.
            let _ = self.alarm.write(1);
        }
        is_connected
    }

    /// Returns the state of the link, as read by the guest. A port with a [`carrier`](VhostUserConfig::carrier) updates
    /// the wire's state itself.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Connects this port and `far` by a cable. The link of each port is up while the opposite port has a frontend.
    pub fn join(&self, far: &Self) {
        self.presence.follow(&far.link);
        far.presence.follow(&self.link);
    }

    /// Returns the counters of the message channel.
    pub fn channel_counters(&self) -> &ChannelCounters {
        &self.channel_counters
    }

    /// Returns the counters of each queue pair, followed by the counters of the control queue if the port serves the
    /// control queue.
    pub fn queue_counters(&self) -> &[Arc<QueueCounters>] {
        &self.queue_counters
    }

    /// Returns each row of [`guest_rows`] with its value. For a row of the queues, the value is the sum over all
    /// queues.
    pub fn guest_counts(&self) -> impl Iterator<Item = (&'static Row, u64)> {
        let sum = |(place, row): (usize, _)| {
            let of_queues = self.queue_counters.iter().filter_map(|queue| queue.values().nth(place));
            (row, of_queues.map(|(_, count)| count).sum())
        };
        self.channel_counters.values().chain(QueueCounters::ROWS.iter().enumerate().map(sum))
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.close();
    }
}
