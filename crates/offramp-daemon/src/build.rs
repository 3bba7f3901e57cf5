//! Builds running ports from their configurations, and connects the ports to their wires.
//!
//! A cable connects two ports, queue pair by queue pair. All other wires are switches, each with one thread: a switch
//! of the configuration, or a switch with two ports (a link) between a port and the interface on its wire.
//!
//! The same code opens the ports in the file and the ports added later. Privileged devices are opened only at the start
//! of the daemon.

use super::config::{Config, PortConfig};
use super::error::BuildError;
use super::kind::host::Means;
use super::kind::wire::{self, Interface, WireKind};
use super::kind::{RunningHost, WireConfig};
use super::port::{Place, Port, Queue};
use super::switch::{RunningSwitch, SwitchThread, start_worker};
use super::threads::Threads;
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::switch::{self, Switch};
use offramp_offload::sync::lock;
use std::sync::Arc;

/// The privileged devices of a port: its host, and the interface on its wire.
type PortDevices = (Option<RunningHost>, Option<Box<dyn Interface>>);

/// The open privileged devices of each port.
#[derive(Debug)]
pub struct Devices(Vec<PortDevices>);

/// Opens every privileged device. No later step of the start needs privileges.
///
/// # Errors
/// Fails for the first device that cannot be opened, and closes the devices opened before the failure.
pub fn open_devices(config: &Config) -> Result<Devices, BuildError> {
    let open = |port: &Arc<PortConfig>| {
        let is_privileged = port.host.privileged_key.is_some();
        let host = is_privileged.then(|| port.host.open(&port.settings(), Means::default())).transpose();
        let wire = |(kind, name): (&WireKind, &str)| {
            let interface = (kind.open)(name, port.mtu)?;
            let too_small = |mtu| wire::too_small(name, mtu, port.mtu, &port.security.vlans);
            if let Some(warning) = interface.mtu().and_then(too_small) {
                log!("offramp: port \"{}\": {warning}", port.name);
            }
            Ok::<_, String>(interface)
        };
        let both = host.and_then(|host| Ok((host, port.wire.interface().map(wire).transpose()?)));
        both.map_err(|cause| BuildError::Device { port: port.name.clone(), cause })
    };
    config.ports.iter().map(open).collect::<Result<_, _>>().map(Devices)
}

impl Devices {
    /// Returns an empty entry for each of `ports` ports, which have no privileged devices.
    pub fn none(ports: usize) -> Self {
        Self((0..ports).map(|_| (None, None)).collect())
    }
}

/// Returns the port's first configuration key that names a privileged device.
pub fn privileged_key(config: &PortConfig) -> Option<String> {
    let of_wire = config.wire.interface().map(|(kind, _)| format!("wire.{}", kind.name));
    config.host.privileged_key.map(str::to_owned).or(of_wire)
}

/// Opens a host that needs no privileges.
fn open_host(config: &PortConfig, threads: &Threads) -> Result<RunningHost, BuildError> {
    let rights = config.host.socket.as_ref().map(|socket| threads.groups.rights(socket.mode, socket.group.as_ref()));
    let means = Means {
        events: Arc::clone(&threads.events),
        sandbox: threads.sandbox.clone(),
        listener: threads.given.listener(&config.name),
        rights: rights.unwrap_or_default(),
    };
    let opened = config.host.open(&config.settings(), means);
    opened.map_err(|cause| BuildError::Device { port: config.name.clone(), cause })
}

/// Opens the hosts that need no privileges, and starts the threads of cables and links. Ports on switches are connected
/// later by [`connect_to`].
///
/// # Errors
/// Fails if a host cannot be opened or a thread cannot be started. Ports and threads started before the failure are
/// ended again.
pub fn open(ports: &[Arc<PortConfig>], devices: Devices, threads: &Threads) -> Result<Vec<Port>, BuildError> {
    let mut opened = Vec::new();
    for (port, (host, wire)) in ports.iter().zip(devices.0) {
        let host = host.map_or_else(|| open_host(port, threads), Ok)?;
        opened.push(Port::new(port, host, wire, &threads.keys)?);
    }
    for (near, port) in ports.iter().enumerate() {
        match &port.wire {
            WireConfig::Switch(_) => {}
            WireConfig::Cable(peer) => {
                let far = ports.iter().position(|other| &other.name == peer);
                // Each cable is started once: from the port that is first in the list.
                if let Some(far) = far.filter(|&far| far > near)
                    && let Ok([near_port, far_port]) = opened.get_disjoint_mut([near, far])
                {
                    run_cable((near_port, port), (far_port, &ports[far]), threads)?;
                }
            }
            WireConfig::Interface(..) => run_link(&mut opened[near], port, threads)?,
        }
    }
    Ok(opened)
}

/// Connects a port to the switch in `config`, if any, unless the port was connected at the switch's start.
///
/// # Errors
/// Fails if the switch refuses the port.
pub fn connect_to(port: &mut Port, config: &PortConfig, switches: &[RunningSwitch]) -> Result<(), BuildError> {
    match switches.iter().find(|switch| config.is_on(&switch.name)) {
        Some(switch) if port.on_switch.is_none() => switch.connect(port, config),
        _ => Ok(()),
    }
}

/// Runs a cable for each queue pair. If both ends use the same processor, one thread drives both ends, and a frame
/// stays in that processor's cache. If the ends use different processors, each end has its own thread.
fn run_cable(
    (near, near_config): (&mut Port, &PortConfig),
    (far, far_config): (&mut Port, &PortConfig),
    threads: &Threads,
) -> Result<(), BuildError> {
    // Each guest sees its link up while the other guest is connected.
    if let (Some(near), Some(far)) = (near.host.guest(), far.host.guest()) {
        lock(near).join(&lock(far));
    }
    let line = CableConfig { mtu: near.adapter.mtu, rate_bps: near_config.bits_per_second, ..CableConfig::default() };
    let (near_polling, far_polling) = (near_config.polling(), far_config.polling());
    for queue in 0..usize::from(near.queue_pairs) {
        let (near_end, far_end) = cable(&line);
        let ends = (
            near.cable_task(near_config, queue, near_end, &threads.rest),
            far.cable_task(far_config, queue, far_end, &threads.rest),
        );
        let (Some((near_task, near_mark)), Some((far_task, far_mark))) = ends else { continue };
        let (near_cpu, far_cpu) = (near_config.cpu(queue), far_config.cpu(queue));
        let (near_worker, far_worker) = if near_cpu == far_cpu {
            let (tasks, polling) = (vec![near_task, far_task], near_polling.or(far_polling));
            let both = start_worker(&near.name, queue, tasks, near_cpu, polling, threads)?;
            (Arc::clone(&both), both)
        } else {
            let near_worker = start_worker(&near.name, queue, vec![near_task], near_cpu, near_polling, threads)?;
            (near_worker, start_worker(&far.name, queue, vec![far_task], far_cpu, far_polling, threads)?)
        };
        let far_task = usize::from(Arc::ptr_eq(&near_worker, &far_worker));
        near.queues.push(Queue { mark: near_mark, worker: near_worker, place: Place::Task(0) });
        far.queues.push(Queue { mark: far_mark, worker: far_worker, place: Place::Task(far_task) });
    }
    Ok(())
}

/// Connects a port and the interface on its wire by a link.
fn run_link(port: &mut Port, config: &PortConfig, threads: &Threads) -> Result<(), BuildError> {
    let link = Switch::new(&switch::SwitchConfig::link());
    port.connect(config, link.control(), None)?;
    if let Some(wire) = port.wire.as_ref().and_then(|wire| wire.switch_port()) {
        let shape = switch::PortConfig { mtu: port.adapter.mtu, flood_limit: None, ..switch::PortConfig::default() };
        let added = link.control().add(wire, &shape);
        port.interface = Some(added.map_err(|cause| BuildError::Switch { port: port.name.clone(), cause })?);
    }
    SwitchThread::start(&port.name, link, config.cpu(0), config.polling(), threads)?.drive(port);
    Ok(())
}
