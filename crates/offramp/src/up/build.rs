//! From a configuration to running adapters.
//!
//! A cable joins two ports queue pair by queue pair. Everything else is a switch in one thread: one of the file, or,
//! for a port whose wire is an interface, a link of its own with two ends.

use super::config::{Config, HostConfig, PortConfig, SwitchConfig, WireConfig};
use super::drain::{AnyHost, Mark, Named, Rest, Resting};
use super::host::{Host, HostError, TaskParts, open_guest, open_privileged, open_tap_here};
use super::ipsec::{EventLog, warn_of};
use super::privilege::Groups;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{KeyRegistry, SaError};
use offramp_adapter::pair::PortControl;
use offramp_adapter::stats::QueueStats;
use offramp_adapter::switch::{self, FloodLimit, Serving, Switch, SwitchError, SwitchPort};
use offramp_impair::fault::FaultConfig;
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::Offloads;
use offramp_ports::ipsec_mb;
use offramp_ports::packet::{Packet, PacketConfig, PacketError};
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::worker::{Polling, Task, Worker};
use std::io;
use std::sync::Arc;

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

/// One adapter.
#[derive(Debug)]
pub struct Port {
    pub name: String,
    pub host: Host,
    pub queue_pairs: u16,
    pub adapter: AdapterConfig,
    pub control: Arc<PortControl>,
    pub queues: Vec<Queue>,
    /// What happened to its security associations.
    pub events: Arc<EventLog>,
    /// Its place on a switch; `None` on a cable.
    on_switch: Option<Arc<SwitchPort>>,
    /// The place of the interface on its wire.
    interface: Option<Arc<SwitchPort>>,
    /// The interface on its wire; it lives as long as this.
    wire: Option<Wire>,
}

impl Port {
    /// Whether the host is there, as far as a switch knows.
    pub fn is_open(&self) -> bool {
        self.on_switch.as_ref().is_none_or(|port| port.closed().is_none())
    }

    /// Whether the interface on its wire is there, if it has one; `false`: gone for good.
    pub fn is_wire_there(&self) -> bool {
        self.interface.as_ref().is_none_or(|port| port.closed().is_none())
    }

    /// Whether the thread of one of its queue pairs is in its host now.
    pub fn is_served_by(&self, queue: &Queue) -> bool {
        let Some(task) = queue.worker.pulse().task else { return false };
        match &queue.place {
            Place::Task(own) => task == *own,
            Place::Switch(serving) => self.on_switch.as_ref().is_some_and(|port| port.index() == serving.index()),
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

    /// The ports of a switch or a link that are its: its own, and that of the interface on its wire.
    fn switch_ports(&self) -> impl Iterator<Item = Named> {
        let ends = [(&self.on_switch, "the host"), (&self.interface, "the interface on its wire")];
        ends.into_iter().filter_map(|(port, what)| {
            let port = port.as_ref()?;
            Some(Named::new(Some(port), format!("port \"{}\": {what}", self.name)))
        })
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
#[derive(Clone, Copy, Debug)]
pub struct Threads<'a> {
    /// What associations of all ports have used.
    pub keys: &'a Arc<KeyRegistry>,
    pub rest: &'a Arc<Rest>,
    pub sandbox: &'a Sandbox,
    /// Of sockets.
    pub groups: &'a Groups,
}

/// Opens the guests, joins hosts and wires, and starts the threads that drive them.
///
/// # Errors
/// When a guest's socket cannot be had or a thread cannot be started; what was started before has ended again.
pub fn start(config: &Config, devices: Devices, threads: Threads<'_>) -> Result<Vec<Port>, BuildError> {
    let mut hosts = Vec::new();
    for (port, (host, wire)) in config.ports.iter().zip(devices.0) {
        // One of the two has it.
        hosts.extend(host.or(open_guest(port, threads)?).map(|host| (host, wire)));
    }
    let made = config.ports.iter().zip(hosts).map(|(port, (host, wire))| Unwired::new(port, host, wire, threads.keys));
    let mut unwired = made.collect::<Result<Vec<Unwired>, BuildError>>()?;
    for (near, port) in config.ports.iter().enumerate() {
        match &port.wire {
            WireConfig::Switch(_) => {}
            WireConfig::Tap(_) | WireConfig::Packet(_) => run_link(&mut unwired[near], threads)?,
            WireConfig::Cable(peer) => {
                let far = config.ports.iter().position(|other| &other.name == peer);
                // Each cable once: from the port that stands first in the file.
                if let Some(far) = far.filter(|&far| far > near)
                    && let Ok([near, far]) = unwired.get_disjoint_mut([near, far])
                {
                    run_cable(near, far, threads)?;
                }
            }
        }
    }
    for switch in &config.switches {
        let wire = WireConfig::Switch(switch.name.clone());
        let on_it = unwired.iter_mut().zip(&config.ports).filter(|(_, port)| port.wire == wire);
        run_switch(switch, on_it.map(|(port, _)| port).collect(), threads)?;
    }
    Ok(unwired.into_iter().map(|port| port.port).collect())
}

/// A port, what its card is like, where its threads are to run, and how long they look for more.
struct Unwired {
    port: Port,
    memory: MemoryConfig,
    faults: FaultConfig,
    bits_per_second: Option<u64>,
    cpus: Vec<usize>,
    polling: Polling,
    isolated: bool,
}

impl Unwired {
    fn new(config: &PortConfig, host: Host, wire: Option<Wire>, keys: &Arc<KeyRegistry>) -> Result<Self, BuildError> {
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
        let port = Port { name, host, queue_pairs, adapter, control, queues, events, on_switch, interface, wire };
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
        let Port { name, host, adapter, control, .. } = &mut self.port;
        let (memory, faults) = (&self.memory, &self.faults);
        let parts = TaskParts { port: name, adapter, memory, faults, control, rest, mark: &mark };
        Some((host.cable_task(queue, wire, &parts)?, mark))
    }

    /// Puts the port on a switch.
    fn connect(
        &mut self,
        switch: &Switch<AnyHost>,
        stations_max: usize,
        flood_limit: Option<FloodLimit>,
    ) -> Result<(), BuildError> {
        let Some(host) = self.port.host.switch_port() else { return Ok(()) };
        let AdapterConfig { mtu, coalesce, queues, .. } = self.port.adapter;
        let shape = switch::PortConfig { mtu, coalesce, queues, stations_max, flood_limit, ..Default::default() };
        let config = switch::PortConfig { isolated: self.isolated, ..shape };
        let added = switch.control().add_controlled(host, &self.port.control, &config);
        let shared = added.map_err(|cause| BuildError::Switch { port: self.port.name.clone(), cause })?;
        self.port.on_switch = Some(shared);
        Ok(())
    }
}

/// A cable for each queue pair. Where both ends are to run on the same processor one thread drives both, so that a
/// frame stays in its cache; otherwise each has a thread of its own.
fn run_cable(near: &mut Unwired, far: &mut Unwired, threads: Threads<'_>) -> Result<(), BuildError> {
    near.port.host.join(&far.port.host);
    let line = CableConfig { mtu: near.port.adapter.mtu, rate_bps: near.bits_per_second, ..CableConfig::default() };
    for queue in 0..usize::from(near.port.queue_pairs) {
        let (near_end, far_end) = cable(&line);
        let ends = (near.cable_task(queue, near_end, threads.rest), far.cable_task(queue, far_end, threads.rest));
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
fn run_link(port: &mut Unwired, threads: Threads<'_>) -> Result<(), BuildError> {
    let link = Switch::new(&switch::SwitchConfig::link());
    port.connect(&link, 0, None)?;
    if let Some(wire) = port.port.wire.as_ref().and_then(Wire::switch_port) {
        let config =
            switch::PortConfig { mtu: port.port.adapter.mtu, flood_limit: None, ..switch::PortConfig::default() };
        let added = link.control().add(wire, &config);
        let shared = added.map_err(|cause| BuildError::Switch { port: port.port.name.clone(), cause })?;
        port.port.interface = Some(shared);
    }
    run_ports(link, vec![port], threads)
}

/// A switch of the file and the ports on it, which have equal shares of its table.
fn run_switch(config: &SwitchConfig, mut ports: Vec<&mut Unwired>, threads: Threads<'_>) -> Result<(), BuildError> {
    let shape = switch::SwitchConfig {
        ports_max: ports.len(),
        stations_max: config.mac_entries_max,
        ageing_s: u64::from(config.age_seconds),
        unknown_unicast: config.unknown_unicast,
        ..switch::SwitchConfig::default()
    };
    let Some(stations_max) = config.mac_entries_max.checked_div(ports.len()) else { return Ok(()) };
    let floods = flood_limit(config.flood_frames_per_second);
    let switch = Switch::new(&shape);
    for port in &mut ports {
        port.connect(&switch, stations_max, Some(floods))?;
    }
    run_ports(switch, ports, threads)
}

/// A port that may flood nothing has no burst to begin with either.
fn flood_limit(frames_per_s: u32) -> FloodLimit {
    let FloodLimit { burst_frames, .. } = FloodLimit::default();
    FloodLimit { frames_per_s, burst_frames: if frames_per_s == 0 { 0 } else { burst_frames } }
}

/// One thread for a switch, on the first processor that one of its ports names.
fn run_ports(switch: Switch<AnyHost>, ports: Vec<&mut Unwired>, threads: Threads<'_>) -> Result<(), BuildError> {
    let Some(first) = ports.first() else { return Ok(()) };
    let mark = Arc::new(Mark::default());
    let named = ports.iter().flat_map(|port| port.port.switch_ports()).collect();
    let serving = Arc::clone(switch.serving());
    let task: Box<dyn Task> = Box::new(Resting::new(switch, threads.rest, &mark, named));
    let cpu = ports.iter().find_map(|port| port.cpu(0));
    let polling = ports.iter().fold(Polling::Off, |polling, port| polling.or(port.polling));
    let worker = start_worker(&first.port.name, 0, vec![task], cpu, polling, threads)?;
    for port in ports {
        let (mark, worker, place) = (Arc::clone(&mark), Arc::clone(&worker), Place::Switch(Arc::clone(&serving)));
        port.port.queues.push(Queue { mark, worker, place });
    }
    Ok(())
}

fn start_worker(
    port: &str,
    queue: usize,
    tasks: Vec<Box<dyn Task>>,
    cpu: Option<Vec<usize>>,
    polling: Polling,
    threads: Threads<'_>,
) -> Result<Arc<Worker>, BuildError> {
    let name = format!("ofr-{port}-{queue}");
    let worker = Worker::start_polling(&name, tasks, cpu, polling, threads.sandbox.clone());
    Ok(Arc::new(worker.map_err(|cause| BuildError::Thread { port: port.to_owned(), cause })?))
}
