//! From a configuration to running adapters.
//!
//! A cable joins two ports queue pair by queue pair. Everything else is a switch in one thread: one of the file, or,
//! for a port whose wire is an interface, a link of its own with two ends.

use super::config::{Config, PortConfig, SwitchConfig, WireConfig};
use super::drain::{Mark, Rest};
use super::host::{Host, HostError, TaskParts, on_wire, open_guest, open_privileged, open_tap_here, wire_task};
use super::ipsec::EventLog;
use super::seat::{AnyHost, Named, RestingSwitch};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::fault::FaultConfig;
use offramp_adapter::ipsec::SaError;
use offramp_adapter::memory::MemoryConfig;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::Control;
use offramp_adapter::stats::QueueStats;
use offramp_adapter::switch::{self, FloodLimit, Switch, SwitchError, SwitchPort};
use offramp_offload::caps::Offloads;
use offramp_ports::ipsec_mb;
use offramp_ports::packet::{Packet, PacketConfig, PacketError};
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
    pub adapter: AdapterConfig,
    pub carrier: Carrier,
    pub queues: Vec<Queue>,
    /// What happened to its security associations; `None` where the wire takes none.
    pub events: Option<Arc<EventLog>>,
    /// What drives the far end of the port's own cable, where it has one.
    pub wire_mark: Option<Arc<Mark>>,
    /// What carries the frames of the interface on its wire.
    wire_carrier: Option<Carrier>,
    /// The interface on its wire; it lives as long as this.
    wire: Option<Wire>,
}

impl Port {
    /// When the host is interrupted now; `None` for a TAP on a switch, which is given everything at once.
    pub fn moderation(&self) -> Option<ModerationConfig> {
        match (&self.carrier, &self.host) {
            (Carrier::Pairs(control), _) => Some(control.moderation()),
            (Carrier::Seat(seat), Host::VhostUser(_)) => Some(seat.moderation()),
            (Carrier::Seat(_), Host::Tap { .. }) => None,
        }
    }

    /// Whether the interface on its wire is there, if it has one; `false`: gone for good.
    pub fn is_wire_there(&self) -> bool {
        let has_ended = self.wire_mark.as_ref().is_some_and(|mark| mark.has_ended());
        !has_ended && self.wire_carrier.as_ref().is_none_or(Carrier::is_open)
    }

    /// Counters of the interface on its wire, which is what a host is elsewhere: `receive` is what it was given.
    pub fn wire_stats(&self) -> Option<&QueueStats> {
        self.wire_carrier.as_ref()?.stats(0)
    }

    /// Frames of the interface on its wire that nobody took in time, as far as the kernel counts them.
    pub fn wire_unread(&self) -> u64 {
        match &self.wire {
            Some(Wire::Packet(packet)) => packet.dropped(),
            Some(Wire::Tap(_)) | None => 0,
        }
    }

    /// The ports of a switch or a link that are its: its own, and that of the interface on its wire.
    fn seats(&self) -> impl Iterator<Item = Named> {
        let own = match &self.carrier {
            Carrier::Seat(seat) => Some(Named::new(seat, format!("port \"{}\": the host", self.name))),
            Carrier::Pairs(_) => None,
        };
        let on_wire = match &self.wire_carrier {
            Some(Carrier::Seat(seat)) => Some(Named::new(seat, on_wire(&self.name))),
            Some(Carrier::Pairs(_)) | None => None,
        };
        own.into_iter().chain(on_wire)
    }
}

/// What carries a port's frames.
#[derive(Debug)]
pub enum Carrier {
    /// Queue pairs on a cable.
    Pairs(Arc<Control>),
    /// A port of a switch.
    Seat(Arc<SwitchPort>),
}

impl Carrier {
    /// What the user allows now.
    pub fn offloads(&self) -> Offloads {
        match self {
            Self::Pairs(control) => control.offloads(),
            Self::Seat(seat) => seat.offloads(),
        }
    }

    /// Changes what the user allows, from the next batch on.
    pub fn set_offloads(&self, offloads: Offloads) {
        match self {
            Self::Pairs(control) => control.set_offloads(offloads),
            Self::Seat(seat) => seat.set_offloads(offloads),
        }
    }

    /// Changes when the host is interrupted, from the next batch on. Without effect on a switch for a host that is
    /// not called.
    pub fn set_moderation(&self, moderation: ModerationConfig) {
        match self {
            Self::Pairs(control) => control.set_moderation(moderation),
            Self::Seat(seat) => seat.set_moderation(moderation),
        }
    }

    /// Counters of a queue pair.
    pub fn stats(&self, queue: usize) -> Option<&QueueStats> {
        match self {
            Self::Pairs(control) => control.queues().get(queue),
            Self::Seat(seat) => Some(seat.stats()),
        }
    }

    /// Whether the host is there, as far as a switch knows.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Pairs(_) => true,
            Self::Seat(seat) => seat.closed().is_none(),
        }
    }
}

/// One queue pair of an adapter, or all of them where a switch drives them.
#[derive(Debug)]
pub struct Queue {
    pub mark: Arc<Mark>,
    pub worker: Arc<Worker>,
}

/// An interface on the line's side.
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

/// Opens the guests, joins hosts and wires, and starts the threads that drive them.
///
/// # Errors
/// When a guest's socket cannot be had or a thread cannot be started; what was started before has ended again.
pub fn start(config: &Config, devices: Devices, rest: &Arc<Rest>) -> Result<Vec<Port>, BuildError> {
    let mut hosts = Vec::new();
    for (port, (host, wire)) in config.ports.iter().zip(devices.0) {
        // One of the two has it.
        hosts.extend(host.or(open_guest(port)?).map(|host| (host, wire)));
    }
    let made = config.ports.iter().zip(hosts).map(|(port, (host, wire))| Unwired::new(port, host, wire));
    let mut unwired = made.collect::<Result<Vec<Unwired>, BuildError>>()?;
    for (near, port) in config.ports.iter().enumerate() {
        match &port.wire {
            WireConfig::Switch(_) => {}
            WireConfig::Tap(_) | WireConfig::Packet(_) if port.ipsec.is_wanted => {
                run_protected_link(&mut unwired[near], rest)?;
            }
            WireConfig::Tap(_) | WireConfig::Packet(_) => run_link(&mut unwired[near], rest)?,
            WireConfig::Cable(peer) => {
                let far = config.ports.iter().position(|other| &other.name == peer);
                // Each cable once: from the port that stands first in the file.
                if let Some(far) = far.filter(|&far| far > near)
                    && let Ok([near, far]) = unwired.get_disjoint_mut([near, far])
                {
                    run_cable(near, far, rest)?;
                }
            }
        }
    }
    for switch in &config.switches {
        let wire = WireConfig::Switch(switch.name.clone());
        let on_it = unwired.iter_mut().zip(&config.ports).filter(|(_, port)| port.wire == wire);
        run_switch(switch, on_it.map(|(port, _)| port).collect(), rest)?;
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
}

impl Unwired {
    fn new(config: &PortConfig, host: Host, wire: Option<Wire>) -> Result<Self, BuildError> {
        let adapter = AdapterConfig {
            mtu: config.mtu,
            offloads: config.offloads,
            moderation: config.moderation,
            queues: config.host.queue_pairs(),
            ..AdapterConfig::default()
        };
        let name = config.name.clone();
        let control = Control::new(&adapter);
        let watched = EventLog::watch(&name, &control);
        let events = Some(watched.map_err(|cause| BuildError::Thread { port: name.clone(), cause })?);
        control.ipsec().use_ciphers(ipsec_mb::preferred().0);
        let installed = control.change_ipsec(&config.ipsec.changes());
        installed.map_err(|(_, cause)| BuildError::Ipsec { port: name.clone(), cause })?;
        let (carrier, queues) = (Carrier::Pairs(control), Vec::new());
        let port = Port { name, host, adapter, carrier, queues, events, wire_mark: None, wire_carrier: None, wire };
        Ok(Self {
            port,
            memory: config.memory,
            faults: config.faults,
            bits_per_second: config.bits_per_second,
            cpus: config.cpus.clone(),
            polling: config.polling(),
        })
    }

    /// The processor of queue pair `queue`; `None`: any.
    fn cpu(&self, queue: usize) -> Option<Vec<usize>> {
        let position = queue.checked_rem(self.cpus.len())?;
        Some(vec![self.cpus[position]])
    }

    fn cable_task(&mut self, queue: usize, wire: CableEnd, rest: &Arc<Rest>) -> Option<(Box<dyn Task>, Arc<Mark>)> {
        let mark = Arc::new(Mark::default());
        let Port { name, host, adapter, carrier, .. } = &mut self.port;
        let Carrier::Pairs(control) = carrier else { return None };
        let (memory, faults) = (&self.memory, &self.faults);
        let parts = TaskParts { port: name, adapter, memory, faults, control, rest, mark: &mark };
        Some((host.cable_task(queue, wire, &parts)?, mark))
    }

    /// Puts the port on a switch.
    fn sit_down(
        &mut self,
        switch: &Switch<AnyHost>,
        stations_max: usize,
        flood_limit: Option<FloodLimit>,
    ) -> Result<(), BuildError> {
        let Some(seat) = self.port.host.switch_port() else { return Ok(()) };
        let AdapterConfig { mtu, offloads, coalesce, moderation, .. } = self.port.adapter;
        let isolated = false;
        let config = switch::PortConfig { mtu, offloads, coalesce, moderation, stations_max, flood_limit, isolated };
        let added = switch.control().add(seat, &config);
        let shared = added.map_err(|cause| BuildError::Switch { port: self.port.name.clone(), cause })?;
        self.port.carrier = Carrier::Seat(shared);
        self.port.events = None;
        Ok(())
    }
}

/// A cable for each queue pair. Where both ends are to run on the same processor one thread drives both, so that a
/// frame stays in its cache; otherwise each has a thread of its own.
fn run_cable(near: &mut Unwired, far: &mut Unwired, rest: &Arc<Rest>) -> Result<(), BuildError> {
    near.port.host.join(&far.port.host);
    let line = CableConfig { mtu: near.port.adapter.mtu, rate_bps: near.bits_per_second, ..CableConfig::default() };
    for queue in 0..usize::from(near.port.adapter.queues) {
        let (near_end, far_end) = cable(&line);
        let ends = (near.cable_task(queue, near_end, rest), far.cable_task(queue, far_end, rest));
        let (Some((near_task, near_mark)), Some((far_task, far_mark))) = ends else { continue };
        let (near_cpu, far_cpu) = (near.cpu(queue), far.cpu(queue));
        let (near_worker, far_worker) = if near_cpu == far_cpu {
            let both = start_worker(
                &near.port.name,
                queue,
                vec![near_task, far_task],
                near_cpu,
                near.polling.or(far.polling),
            )?;
            (Arc::clone(&both), both)
        } else {
            let near_worker = start_worker(&near.port.name, queue, vec![near_task], near_cpu, near.polling)?;
            (near_worker, start_worker(&far.port.name, queue, vec![far_task], far_cpu, far.polling)?)
        };
        near.port.queues.push(Queue { mark: near_mark, worker: near_worker });
        far.port.queues.push(Queue { mark: far_mark, worker: far_worker });
    }
    Ok(())
}

/// A port and the interface on its wire: a link with two ends.
fn run_link(port: &mut Unwired, rest: &Arc<Rest>) -> Result<(), BuildError> {
    let link = Switch::new(&switch::SwitchConfig::link());
    port.sit_down(&link, 0, None)?;
    if let Some(wire) = port.port.wire.as_ref().and_then(Wire::switch_port) {
        let config =
            switch::PortConfig { mtu: port.port.adapter.mtu, flood_limit: None, ..switch::PortConfig::default() };
        let added = link.control().add(wire, &config);
        let shared = added.map_err(|cause| BuildError::Switch { port: port.port.name.clone(), cause })?;
        port.port.wire_carrier = Some(Carrier::Seat(shared));
    }
    run_seats(link, vec![port], rest)
}

/// A port that seals for the interface on its wire: a cable, at whose other end the interface is what a host is
/// elsewhere. One thread drives both ends.
fn run_protected_link(port: &mut Unwired, rest: &Arc<Rest>) -> Result<(), BuildError> {
    let mtu = port.port.adapter.mtu;
    let (near_end, far_end) = cable(&CableConfig { mtu, ..CableConfig::default() });
    let Some(interface) = port.port.wire.as_ref().and_then(Wire::switch_port) else { return Ok(()) };
    let Some((near, near_mark)) = port.cable_task(0, near_end, rest) else { return Ok(()) };
    // What the interface brings is cut if it was joined; nothing is joined for it.
    let adapter = AdapterConfig {
        mtu,
        offloads: Offloads::TX,
        moderation: ModerationConfig::default(),
        ..AdapterConfig::default()
    };
    let (control, mark) = (Control::new(&adapter), Arc::new(Mark::default()));
    let (memory, faults) = (&MemoryConfig::default(), &FaultConfig::default());
    let parts =
        TaskParts { port: &port.port.name, adapter: &adapter, memory, faults, control: &control, rest, mark: &mark };
    let far = wire_task(interface, far_end, &parts);
    let worker = start_worker(&port.port.name, 0, vec![near, far], port.cpu(0), port.polling)?;
    port.port.queues.push(Queue { mark: near_mark, worker });
    port.port.wire_mark = Some(mark);
    port.port.wire_carrier = Some(Carrier::Pairs(control));
    Ok(())
}

/// A switch of the file and the ports on it, which have equal shares of its table.
fn run_switch(config: &SwitchConfig, mut ports: Vec<&mut Unwired>, rest: &Arc<Rest>) -> Result<(), BuildError> {
    let shape = switch::SwitchConfig {
        ports_max: ports.len(),
        stations_max: config.mac_entries_max,
        ageing_s: u64::from(config.age_seconds),
        ..switch::SwitchConfig::default()
    };
    let Some(stations_max) = config.mac_entries_max.checked_div(ports.len()) else { return Ok(()) };
    let floods = flood_limit(config.flood_frames_per_second);
    let switch = Switch::new(&shape);
    for port in &mut ports {
        port.sit_down(&switch, stations_max, Some(floods))?;
    }
    run_seats(switch, ports, rest)
}

/// A port that may flood nothing has no burst to begin with either.
fn flood_limit(frames_per_s: u32) -> FloodLimit {
    let FloodLimit { burst_frames, .. } = FloodLimit::default();
    FloodLimit { frames_per_s, burst_frames: if frames_per_s == 0 { 0 } else { burst_frames } }
}

/// One thread for a switch, on the first processor that one of its ports names.
fn run_seats(switch: Switch<AnyHost>, ports: Vec<&mut Unwired>, rest: &Arc<Rest>) -> Result<(), BuildError> {
    let Some(first) = ports.first() else { return Ok(()) };
    let mark = Arc::new(Mark::default());
    let named = ports.iter().flat_map(|port| port.port.seats()).collect();
    let task: Box<dyn Task> = Box::new(RestingSwitch::new(switch, rest, &mark, named));
    let cpu = ports.iter().find_map(|port| port.cpu(0));
    let polling = ports.iter().fold(Polling::Off, |polling, port| polling.or(port.polling));
    let worker = start_worker(&first.port.name, 0, vec![task], cpu, polling)?;
    for port in ports {
        port.port.queues.push(Queue { mark: Arc::clone(&mark), worker: Arc::clone(&worker) });
    }
    Ok(())
}

fn start_worker(
    port: &str,
    queue: usize,
    tasks: Vec<Box<dyn Task>>,
    cpu: Option<Vec<usize>>,
    polling: Polling,
) -> Result<Arc<Worker>, BuildError> {
    let worker = Worker::start_polling(&format!("ofr-{port}-{queue}"), tasks, cpu, polling);
    Ok(Arc::new(worker.map_err(|cause| BuildError::Thread { port: port.to_owned(), cause })?))
}
