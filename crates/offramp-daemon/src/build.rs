//! From a configuration to running adapters.
//!
//! A cable joins two ports queue pair by queue pair. Everything else is a switch in one thread: a named switch, or, for
//! a port with an interface on its wire, a link of its own with two ends.
//!
//! The same code opens the ports of the file and ports added later. Only the start opens privileged devices.

use super::config::{Config, HostConfig, PortConfig, WireConfig};
use super::error::BuildError;
use super::host::{Host, open_guest, open_privileged, open_tap_here};
use super::port::{Place, Port, Queue, Wire};
use super::switch::{RunningSwitch, SwitchThread, start_worker};
use super::threads::Threads;
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::switch::{self, Switch};
use offramp_offload::caps::Offloads;
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::tap::TapConfig;
use std::sync::Arc;

/// Open privileged devices: for each port a TAP as its host, and the interface on its wire.
#[derive(Debug)]
pub struct Devices(Vec<(Option<Host>, Option<Wire>)>);

/// Opens every privileged device. No later step needs privileges.
///
/// # Errors
/// The first device that fails to open; the devices before it are closed again.
pub fn open_devices(config: &Config) -> Result<Devices, BuildError> {
    let opened = config.ports.iter().map(|port| Ok((open_privileged(port)?, open_wire(port)?)));
    opened.collect::<Result<_, BuildError>>().map(Devices)
}

impl Devices {
    /// Returns the devices of ports without privileged ones: none.
    pub fn none(ports: usize) -> Self {
        Self((0..ports).map(|_| (None, None)).collect())
    }
}

/// Returns the first key that names a privileged device of the port.
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

/// Opens the guests, and starts the threads of cables and links. Ports on switches wait for [`connect_to`].
///
/// # Errors
/// When a guest's socket cannot be had or a thread cannot be started; what was started before has ended again.
pub fn open(ports: &[PortConfig], devices: Devices, threads: &Threads) -> Result<Vec<Port>, BuildError> {
    let mut opened = Vec::new();
    for (port, (host, wire)) in ports.iter().zip(devices.0) {
        // One of the two has it.
        if let Some(host) = host.or(open_guest(port, threads)?) {
            opened.push(Port::new(port, host, wire, &threads.keys)?);
        }
    }
    for (near, port) in ports.iter().enumerate() {
        match &port.wire {
            WireConfig::Switch(_) => {}
            WireConfig::Tap(_) | WireConfig::Packet(_) => run_link(&mut opened[near], port, threads)?,
            WireConfig::Cable(peer) => {
                let far = ports.iter().position(|other| &other.name == peer);
                // Each cable once: from the port nearer to the start of the list.
                if let Some(far) = far.filter(|&far| far > near)
                    && let Ok([near_port, far_port]) = opened.get_disjoint_mut([near, far])
                {
                    run_cable((near_port, port), (far_port, &ports[far]), threads)?;
                }
            }
        }
    }
    Ok(opened)
}

/// Connects a port to the switch named by `config`, if any, unless the port started with it.
///
/// # Errors
/// When the switch refuses it.
pub fn connect_to(port: &mut Port, config: &PortConfig, switches: &[RunningSwitch]) -> Result<(), BuildError> {
    match switches.iter().find(|switch| config.is_on(&switch.name)) {
        Some(switch) if port.on_switch.is_none() => switch.connect(port, config),
        _ => Ok(()),
    }
}

/// Runs a cable for each queue pair. If both ends use the same processor, one thread drives both and a frame stays in
/// its cache. Otherwise each end has a thread of its own.
fn run_cable(
    (near, near_config): (&mut Port, &PortConfig),
    (far, far_config): (&mut Port, &PortConfig),
    threads: &Threads,
) -> Result<(), BuildError> {
    near.host.join(&far.host);
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

/// Joins a port and the interface on its wire: a link with two ends.
fn run_link(port: &mut Port, config: &PortConfig, threads: &Threads) -> Result<(), BuildError> {
    let link = Switch::new(&switch::SwitchConfig::link());
    port.connect(config, link.control(), None)?;
    if let Some(wire) = port.wire.as_ref().and_then(Wire::switch_port) {
        let shape = switch::PortConfig { mtu: port.adapter.mtu, flood_limit: None, ..switch::PortConfig::default() };
        let added = link.control().add(wire, &shape);
        port.interface = Some(added.map_err(|cause| BuildError::Switch { port: port.name.clone(), cause })?);
    }
    let thread = SwitchThread::start(&port.name, link, config.cpu(0), config.polling(), threads)?;
    port.queues.push(thread.queue());
    Ok(())
}
