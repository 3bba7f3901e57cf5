//! From a configuration to running adapters.
//!
//! A cable joins two ports queue pair by queue pair. Everything else is a switch in one thread: one that has a name, or,
//! for a port whose wire is an interface, a link of its own with two ends.
//!
//! The same code opens the ports of the file and those that come later. Only privileged devices are opened at the start
//! alone.

use super::config::{Config, HostConfig, PortConfig, SwitchConfig, WireConfig};
use super::drain::{AnyHost, Mark, Rest, Resting};
use super::events::Events;
use super::given::Given;
use super::host::{Host, HostError, TaskParts, open_guest, open_privileged, open_tap_here};
use super::ipsec::{EventLog, warn_of};
use super::privilege::Groups;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{KeyRegistry, SaError};
use offramp_adapter::pair::PortControl;
use offramp_adapter::stats::QueueStats;
use offramp_adapter::switch::{self, FloodLimit, Serving, Switch, SwitchControl, SwitchError, SwitchPort};
use offramp_impair::fault::FaultConfig;
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::Offloads;
use offramp_ports::capture::CapturePoint;
use offramp_ports::ipsec_mb;
use offramp_ports::packet::{Packet, PacketConfig, PacketError};
use offramp_ports::sys::cpu::online;
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::worker::{Polling, Task, Worker};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Why there are no adapters.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("port \"{port}\": wire: {cause}")]
    Packet { port: String, cause: PacketError },
    #[error("port \"{port}\": wire: {cause}")]
    Switch { port: String, cause: SwitchError },
    #[error("port \"{port}\": {cause}")]
    Ipsec { port: String, cause: SaError },
    #[error("port \"{port}\": starting a thread: {cause}")]
    Thread { port: String, cause: io::Error },
    #[error("the system has no descriptor left: {0}")]
    Rest(io::Error),
}

/// How long a switch that stands still may keep a port that is to end.
const END_TIME_MAX: Duration = Duration::from_secs(3);
/// Time between two checks whether it has let go of it.
const END_CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// One adapter.
#[derive(Debug)]
pub struct Port {
    /// No other port of this process has it, before or after.
    pub id: usize,
    pub name: String,
    pub host: Host,
    pub queue_pairs: u16,
    pub adapter: AdapterConfig,
    pub control: Arc<PortControl>,
    pub queues: Vec<Queue>,
    /// What happened to its security associations.
    pub events: Arc<EventLog>,
    /// Where its host's frames can be watched.
    pub capture: Arc<CapturePoint>,
    /// Its place on a switch or a link, and how it is given up; `None` on a cable.
    on_switch: Option<(Arc<SwitchPort>, Arc<SwitchControl<AnyHost>>)>,
    /// The place of the interface on its wire.
    interface: Option<Arc<SwitchPort>>,
    /// The interface on its wire; it lives as long as this.
    wire: Option<Wire>,
}

impl Port {
    /// Whether the host is there, as far as a switch knows.
    pub fn is_open(&self) -> bool {
        self.on_switch.as_ref().is_none_or(|(port, _)| port.closed().is_none())
    }

    /// Whether the interface on its wire is there, if it has one; `false`: gone for good.
    pub fn is_wire_there(&self) -> bool {
        self.interface.as_ref().is_none_or(|port| port.closed().is_none())
    }

    /// Has its threads see soon what was changed for them.
    pub fn wake(&self) {
        self.queues.iter().for_each(|queue| queue.worker.wake());
    }

    /// Whether the thread of one of its queue pairs is in its host now.
    pub fn is_served_by(&self, queue: &Queue) -> bool {
        let Some(task) = queue.worker.pulse().task else { return false };
        match &queue.place {
            Place::Task(own) => task == *own,
            Place::Switch(serving) => self.on_switch.as_ref().is_some_and(|(port, _)| port.index() == serving.index()),
        }
    }

    /// Counters of the interface on its wire, which is what a host is elsewhere: `receive` is what it was given.
    pub fn wire_stats(&self) -> Option<&QueueStats> {
        Some(self.interface.as_ref()?.stats())
    }

    /// Frames of the interface on its wire that nobody took in time, as far as the kernel counts them.
    pub fn wire_unread(&self) -> u64 {
        match &self.wire {
            Some(Wire::Packet(packet)) => packet.dropped(),
            Some(Wire::Tap(_)) | None => 0,
        }
    }

    /// What of it is gone for good, in words, with the error number.
    pub fn gone(&self) -> impl Iterator<Item = (String, i32)> {
        let on_switch = self.on_switch.as_ref().map(|(port, _)| port);
        let ends = [(on_switch, "the host"), (self.interface.as_ref(), "the interface on its wire")];
        let closed = ends.into_iter().filter_map(|(port, what)| Some((format!(": {what}"), port?.closed()?)));
        let queues = self.queues.iter().enumerate();
        let ended = queues.filter_map(|(n, queue)| Some((format!(", queue pair {n}: the host"), queue.mark.ended()?)));
        closed.chain(ended).map(|(what, errno)| (format!("port \"{}\"{what}", self.name), errno))
    }

    /// Ends it: its guest is disconnected, its switch lets go of it, and what it has opened is closed, all of it by the
    /// calling thread. No other port's frames wait for that.
    pub fn end(self) {
        self.host.close();
        if let Some((port, switch)) = &self.on_switch {
            switch.remove(port);
            let until = Instant::now() + END_TIME_MAX;
            while switch.has(port) && Instant::now() < until {
                thread::sleep(END_CHECK_INTERVAL);
            }
        }
    }
}

/// One queue pair of an adapter, or all of them where a switch drives them.
#[derive(Debug)]
pub struct Queue {
    pub mark: Arc<Mark>,
    pub worker: Arc<Worker>,
    /// How to find that its thread is in this host.
    place: Place,
}

/// The place of a host among those of its thread.
#[derive(Debug)]
enum Place {
    /// A task of the worker.
    Task(usize),
    /// A port of the switch that is the worker's only task.
    Switch(Arc<Serving>),
}

/// An interface on the wire's side.
#[derive(Debug)]
enum Wire {
    Tap(Tap),
    Packet(Packet),
}

impl Wire {
    fn switch_port(&self) -> Option<AnyHost> {
        Some(match self {
            Self::Tap(tap) => Box::new(tap.queue(0)?),
            Self::Packet(packet) => Box::new(packet.queue(0)?),
        })
    }
}

/// What needed privileges to open: for each port its host, unless that is a guest, and its wire, if that is an interface.
#[derive(Debug)]
pub struct Devices(Vec<(Option<Host>, Option<Wire>)>);

/// Opens all that needs privileges. Nothing that comes later does.
///
/// # Errors
/// The first that could not be opened; those before it are gone again.
pub fn open_devices(config: &Config) -> Result<Devices, BuildError> {
    let opened = config.ports.iter().map(|port| Ok((open_privileged(port)?, open_wire(port)?)));
    opened.collect::<Result<_, BuildError>>().map(Devices)
}

impl Devices {
    /// For ports that need no privileges.
    pub fn none(ports: usize) -> Self {
        Self((0..ports).map(|_| (None, None)).collect())
    }
}

/// The key of a port that names what only a privileged process opens.
pub fn privileged_key(config: &PortConfig) -> Option<&'static str> {
    match (&config.host, &config.wire) {
        (HostConfig::Tap(_), _) => Some("host.tap"),
        (_, WireConfig::Tap(_)) => Some("wire.tap"),
        (_, WireConfig::Packet(_)) => Some("wire.packet"),
        (_, WireConfig::Cable(_) | WireConfig::Switch(_)) => None,
    }
}

fn open_wire(config: &PortConfig) -> Result<Option<Wire>, BuildError> {
    match &config.wire {
        WireConfig::Cable(_) | WireConfig::Switch(_) => Ok(None),
        WireConfig::Tap(interface) => {
            let wanted = TapConfig { mtu: config.mtu as u32, ..TapConfig::new(interface) };
            let all = PortConfig { offloads: Offloads::all(), ..config.clone() };
            Ok(Some(Wire::Tap(open_tap_here(&wanted, &all)?)))
        }
        WireConfig::Packet(interface) => {
            let opened = Packet::open(&PacketConfig::new(interface));
            opened
                .map(|packet| Some(Wire::Packet(packet)))
                .map_err(|cause| BuildError::Packet { port: config.name.clone(), cause })
        }
    }
}

/// What all threads and sockets have in common.
#[derive(Clone, Debug)]
pub struct Threads {
    /// What associations of all ports have used.
    pub keys: Arc<KeyRegistry>,
    pub rest: Arc<Rest>,
    pub sandbox: Sandbox,
    /// Of sockets.
    pub groups: Groups,
    /// Where sockets can be made; `None`: wherever the process's user may.
    pub socket_directories: Option<Vec<PathBuf>>,
    /// Who hears what happens.
    pub events: Arc<Events>,
    /// Sockets that the file does not name.
    pub given: Arc<Given>,
}

/// Opens the guests, and starts the threads that drive cables and links. Ports on switches wait for
/// [`Unwired::connect_to`].
///
/// # Errors
/// When a guest's socket cannot be had or a thread cannot be started; what was started before has ended again.
pub fn open(ports: &[PortConfig], devices: Devices, threads: &Threads) -> Result<Vec<Unwired>, BuildError> {
    let mut unwired = Vec::new();
    for (port, (host, wire)) in ports.iter().zip(devices.0) {
        // One of the two has it.
        if let Some(host) = host.or(open_guest(port, threads)?) {
            unwired.push(Unwired::new(port, host, wire, threads)?);
        }
    }
    for (near, port) in ports.iter().enumerate() {
        match &port.wire {
            WireConfig::Switch(_) => {}
            WireConfig::Tap(_) | WireConfig::Packet(_) => run_link(&mut unwired[near], threads)?,
            WireConfig::Cable(peer) => {
                let far = ports.iter().position(|other| &other.name == peer);
                // Each cable once: from the port that stands first.
                if let Some(far) = far.filter(|&far| far > near)
                    && let Ok([near, far]) = unwired.get_disjoint_mut([near, far])
                {
                    run_cable(near, far, threads)?;
                }
            }
        }
    }
    Ok(unwired)
}

/// A port, what its card is like, where its threads are to run, and how long they look for more.
pub struct Unwired {
    port: Port,
    memory: MemoryConfig,
    faults: FaultConfig,
    bits_per_second: Option<u64>,
    cpus: Vec<usize>,
    polling: Polling,
    isolated: bool,
}

impl Unwired {
    fn new(config: &PortConfig, host: Host, wire: Option<Wire>, threads: &Threads) -> Result<Self, BuildError> {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
        let keys = &threads.keys;
        let queue_pairs = config.host.queue_pairs();
        let adapter = AdapterConfig {
            mtu: config.mtu,
            offloads: config.offloads,
            moderation: config.moderation,
            // A guest steers by itself over its queues.
            queues: if matches!(config.host, HostConfig::Tap(_)) { queue_pairs } else { 1 },
            ..AdapterConfig::default()
        };
        let name = config.name.clone();
        // A switch drives all queue pairs in one thread, and counts them as one.
        let counted = if matches!(config.wire, WireConfig::Cable(_)) { queue_pairs } else { 1 };
        let control = PortControl::secured(&AdapterConfig { queues: counted, ..adapter }, config.security.clone());
        control.set_limits(config.limits);
        let watched = EventLog::watch(&name, &control);
        let events = watched.map_err(|cause| BuildError::Thread { port: name.clone(), cause })?;
        control.ipsec().use_ciphers(ipsec_mb::preferred().0);
        control.ipsec().share_keys(keys, &name);
        config.ipsec.associations.iter().for_each(|entry| warn_of(&name, entry.direction, &entry.config));
        let installed = control.change_ipsec(&config.ipsec.changes(keys));
        installed.map_err(|(_, cause)| BuildError::Ipsec { port: name.clone(), cause })?;
        let (queues, on_switch, interface) = (Vec::new(), None, None);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let capture = Arc::default();
        let port =
            Port { id, name, host, queue_pairs, adapter, control, queues, events, capture, on_switch, interface, wire };
        Ok(Self {
            port,
            memory: config.memory,
            faults: config.faults,
            bits_per_second: config.bits_per_second,
            cpus: config.cpus.clone(),
            polling: config.polling(),
            isolated: config.isolated,
        })
    }

    /// The processor of queue pair `queue`; `None`: any.
    fn cpu(&self, queue: usize) -> Option<Vec<usize>> {
        let position = queue.checked_rem(self.cpus.len())?;
        Some(vec![self.cpus[position]])
    }

    fn cable_task(&mut self, queue: usize, wire: CableEnd, rest: &Arc<Rest>) -> Option<(Box<dyn Task>, Arc<Mark>)> {
        let mark = Arc::new(Mark::default());
        let Port { host, adapter, control, capture: point, .. } = &mut self.port;
        let (memory, faults) = (&self.memory, &self.faults);
        let parts = TaskParts { adapter, memory, faults, control, point, rest, mark: &mark };
        Some((host.cable_task(queue, wire, &parts)?, mark))
    }

    /// Connects it to the switch that `config` names, if it names one and has not started with it.
    ///
    /// # Errors
    /// When the switch refuses it.
    pub fn connect_to(self, config: &PortConfig, switches: &[RunningSwitch]) -> Result<Port, BuildError> {
        match switches.iter().find(|switch| config.is_on(&switch.name)) {
            Some(switch) if self.port.on_switch.is_none() => switch.connect(self),
            _ => Ok(self.port),
        }
    }

    /// Puts the port on a switch.
    fn connect(
        &mut self,
        switch: &Arc<SwitchControl<AnyHost>>,
        flood_limit: Option<FloodLimit>,
    ) -> Result<(), BuildError> {
        let Port { host, capture, control, .. } = &mut self.port;
        let Some(host) = host.switch_port(capture, control) else { return Ok(()) };
        let AdapterConfig { mtu, coalesce, queues, .. } = self.port.adapter;
        let shape = switch::PortConfig { mtu, coalesce, queues, flood_limit, ..Default::default() };
        let config = switch::PortConfig { isolated: self.isolated, ..shape };
        let added = switch.add_controlled(host, &self.port.control, &config);
        let shared = added.map_err(|cause| BuildError::Switch { port: self.port.name.clone(), cause })?;
        self.port.on_switch = Some((shared, Arc::clone(switch)));
        Ok(())
    }
}

/// A cable for each queue pair. Where both ends are to run on the same processor one thread drives both, so that a
/// frame stays in its cache; otherwise each has a thread of its own.
fn run_cable(near: &mut Unwired, far: &mut Unwired, threads: &Threads) -> Result<(), BuildError> {
    near.port.host.join(&far.port.host);
    let line = CableConfig { mtu: near.port.adapter.mtu, rate_bps: near.bits_per_second, ..CableConfig::default() };
    for queue in 0..usize::from(near.port.queue_pairs) {
        let (near_end, far_end) = cable(&line);
        let ends = (near.cable_task(queue, near_end, &threads.rest), far.cable_task(queue, far_end, &threads.rest));
        let (Some((near_task, near_mark)), Some((far_task, far_mark))) = ends else { continue };
        let (near_cpu, far_cpu) = (near.cpu(queue), far.cpu(queue));
        let (near_worker, far_worker) = if near_cpu == far_cpu {
            let both = start_worker(
                &near.port.name,
                queue,
                vec![near_task, far_task],
                near_cpu,
                near.polling.or(far.polling),
                threads,
            )?;
            (Arc::clone(&both), both)
        } else {
            let near_worker = start_worker(&near.port.name, queue, vec![near_task], near_cpu, near.polling, threads)?;
            (near_worker, start_worker(&far.port.name, queue, vec![far_task], far_cpu, far.polling, threads)?)
        };
        let far_task = usize::from(Arc::ptr_eq(&near_worker, &far_worker));
        near.port.queues.push(Queue { mark: near_mark, worker: near_worker, place: Place::Task(0) });
        far.port.queues.push(Queue { mark: far_mark, worker: far_worker, place: Place::Task(far_task) });
    }
    Ok(())
}

/// A port and the interface on its wire: a link with two ends.
fn run_link(port: &mut Unwired, threads: &Threads) -> Result<(), BuildError> {
    let link = Switch::new(&switch::SwitchConfig::link());
    port.connect(link.control(), None)?;
    if let Some(wire) = port.port.wire.as_ref().and_then(Wire::switch_port) {
        let config =
            switch::PortConfig { mtu: port.port.adapter.mtu, flood_limit: None, ..switch::PortConfig::default() };
        let added = link.control().add(wire, &config);
        let shared = added.map_err(|cause| BuildError::Switch { port: port.port.name.clone(), cause })?;
        port.port.interface = Some(shared);
    }
    let thread = SwitchThread::start(&port.port.name, link, port.cpu(0), port.polling, threads)?;
    port.port.queues.push(thread.queue());
    Ok(())
}

/// A switch and the thread that drives it.
#[derive(Debug)]
struct SwitchThread {
    mark: Arc<Mark>,
    worker: Arc<Worker>,
    serving: Arc<Serving>,
}

impl SwitchThread {
    fn start(
        name: &str,
        switch: Switch<AnyHost>,
        cpu: Option<Vec<usize>>,
        polling: Polling,
        threads: &Threads,
    ) -> Result<Self, BuildError> {
        let (mark, serving) = (Arc::new(Mark::default()), Arc::clone(switch.serving()));
        let task: Box<dyn Task> = Box::new(Resting::new(switch, &threads.rest, &mark));
        let worker = start_worker(name, 0, vec![task], cpu, polling, threads)?;
        Ok(Self { mark, worker, serving })
    }

    /// All queue pairs of a port: one thread drives them, and counts them as one.
    fn queue(&self) -> Queue {
        let Self { mark, worker, serving } = self;
        Queue { mark: Arc::clone(mark), worker: Arc::clone(worker), place: Place::Switch(Arc::clone(serving)) }
    }
}

/// A switch that has a name. Its ports have equal shares of its table.
#[derive(Debug)]
pub struct RunningSwitch {
    pub name: String,
    control: Arc<SwitchControl<AnyHost>>,
    floods: FloodLimit,
    thread: SwitchThread,
}

impl RunningSwitch {
    /// Starts it with those of `opened` that belong to it, all at once: what one of them sends finds the others. `ports` are
    /// their configurations, which say where its thread runs.
    ///
    /// # Errors
    /// When it refuses a port, or the thread cannot be started.
    pub fn start(
        config: &SwitchConfig,
        ports: &[PortConfig],
        opened: &mut [Unwired],
        threads: &Threads,
    ) -> Result<Self, BuildError> {
        let shape = switch::SwitchConfig {
            // Each has one entry of the table at least.
            ports_max: config.mac_entries_max,
            stations_max: config.mac_entries_max,
            equal_shares: true,
            ageing_s: u64::from(config.age_seconds),
            unknown_unicast: config.unknown_unicast,
            ..switch::SwitchConfig::default()
        };
        let switch = Switch::new(&shape);
        let (control, floods) = (Arc::clone(switch.control()), flood_limit(config.flood_frames_per_second));
        let on_it = opened.iter_mut().zip(ports).filter(|(_, port)| port.is_on(&config.name));
        let mut on_it: Vec<_> = on_it.map(|(opened, _)| opened).collect();
        on_it.iter_mut().try_for_each(|port| port.connect(&control, Some(floods)))?;
        let (cpu, polling) = placing(&config.name, ports);
        let thread = SwitchThread::start(&config.name, switch, cpu, polling, threads)?;
        for port in on_it {
            port.port.queues.push(thread.queue());
        }
        Ok(Self { name: config.name.clone(), control, floods, thread })
    }

    /// Connects a port.
    ///
    /// # Errors
    /// When the switch refuses it.
    fn connect(&self, mut port: Unwired) -> Result<Port, BuildError> {
        port.connect(&self.control, Some(self.floods))?;
        port.port.queues.push(self.thread.queue());
        Ok(port.port)
    }

    /// Places its thread as its ports ask for, which are those of `ports` that belong to it.
    pub fn place(&self, ports: &[PortConfig]) {
        let (cpu, polling) = placing(&self.name, ports);
        self.thread.worker.place(&cpu.unwrap_or_else(online), polling);
    }
}

/// The processor of a switch's thread, which is the first that one of its ports names, and how it polls.
fn placing(switch: &str, ports: &[PortConfig]) -> (Option<Vec<usize>>, Polling) {
    let on_it = || ports.iter().filter(|port| port.is_on(switch));
    let cpu = on_it().find_map(|port| port.cpus.first());
    (cpu.map(|&cpu| vec![cpu]), on_it().fold(Polling::Off, |polling, port| polling.or(port.polling())))
}

/// A port that may flood nothing has no burst to begin with either.
fn flood_limit(frames_per_s: u32) -> FloodLimit {
    let FloodLimit { burst_frames, .. } = FloodLimit::default();
    FloodLimit { frames_per_s, burst_frames: if frames_per_s == 0 { 0 } else { burst_frames } }
}

fn start_worker(
    port: &str,
    queue: usize,
    tasks: Vec<Box<dyn Task>>,
    cpu: Option<Vec<usize>>,
    polling: Polling,
    threads: &Threads,
) -> Result<Arc<Worker>, BuildError> {
    let name = format!("ofr-{port}-{queue}");
    let worker = Worker::start_polling(&name, tasks, cpu, polling, threads.sandbox.clone());
    Ok(Arc::new(worker.map_err(|cause| BuildError::Thread { port: port.to_owned(), cause })?))
}
