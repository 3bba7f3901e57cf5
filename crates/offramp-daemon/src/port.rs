//! A running port: its adapter, its host, its wire, and the threads that serve it.

use super::config::PortConfig;
use super::drain::{AnyHost, Mark, Rest};
use super::error::BuildError;
use super::kind::host::{TaskParts, Watch};
use super::kind::wire::Interface;
use super::kind::{RunningHost, WireConfig};
use super::rates::PortRates;
use super::sa_log::{EventLog, warn_of};
use offramp_adapter::cable::CableEnd;
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::KeyRegistry;
use offramp_adapter::pair::PortControl;
use offramp_adapter::stats::QueueStats;
use offramp_adapter::switch::{self, FloodLimit, Serving, SwitchControl, SwitchPort};
use offramp_offload::sync::lock;
use offramp_ports::capture::CapturePoint;
use offramp_ports::ipsec_mb;
use offramp_ports::vhost_user::VhostUser;
use offramp_ports::worker::{Task, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that an ending port waits for its switch to drop the port. Only a stalled switch takes this long.
const END_TIME_MAX: Duration = Duration::from_secs(3);

/// Time between two checks whether the switch has dropped the port.
const END_CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// A running port: one adapter.
#[derive(Debug)]
pub struct Port {
    /// Identifier of the port, never reused in this process.
    pub id: usize,
    pub name: String,
    pub host: RunningHost,
    pub queue_pairs: u16,
    pub adapter: AdapterConfig,
    pub control: Arc<PortControl>,
    pub queues: Vec<Queue>,
    /// Events of the port's security associations.
    pub events: Arc<EventLog>,
    /// The capture point for the frames of the port's host.
    pub capture: Arc<CapturePoint>,
    /// The rates over the last second, sampled by the watchdog.
    pub rates: PortRates,
    /// The port on its switch or link, and the handle for removing the port from it; `None` on a cable.
    pub on_switch: Option<(Arc<SwitchPort>, Arc<SwitchControl<AnyHost>>)>,
    /// The switch port of the interface on the wire.
    pub interface: Option<Arc<SwitchPort>>,
    /// The open interface on the wire, closed when the port is dropped.
    pub wire: Option<Box<dyn Interface>>,
}

impl Port {
    /// Creates a port with its associations, not yet connected to a wire.
    ///
    /// # Errors
    /// Fails if an association is refused, or if no thread can be started.
    pub fn new(
        config: &PortConfig,
        host: RunningHost,
        wire: Option<Box<dyn Interface>>,
        keys: &Arc<KeyRegistry>,
    ) -> Result<Self, BuildError> {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
        let queue_pairs = config.host.queue_pairs;
        let adapter = AdapterConfig {
            mtu: config.mtu,
            offloads: config.offloads,
            moderation: config.moderation,
            // For a guest, the guest's vhost-user port chooses the queue, so the adapter has one queue.
            queues: if config.host.is_steered { queue_pairs } else { 1 },
            ..AdapterConfig::default()
        };
        let name = config.name.clone();
        // A TAP on a switch counts all its queue pairs together.
        let is_one = config.host.is_steered && !matches!(config.wire, WireConfig::Cable(_));
        let counted = if is_one { 1 } else { queue_pairs };
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
        let (capture, rates) = (Arc::default(), PortRates::default());
        Ok(Self {
            id,
            name,
            host,
            queue_pairs,
            adapter,
            control,
            queues,
            events,
            capture,
            rates,
            on_switch,
            interface,
            wire,
        })
    }

    /// Connects the port to a switch.
    ///
    /// # Errors
    /// Fails if the switch refuses the port.
    pub fn connect(
        &mut self,
        config: &PortConfig,
        switch: &Arc<SwitchControl<AnyHost>>,
        flood_limit: Option<FloodLimit>,
    ) -> Result<(), BuildError> {
        let Some(host) = self.host.switch_port(Watch { point: &self.capture, control: &self.control }) else {
            return Ok(());
        };
        let AdapterConfig { mtu, coalesce, queues, .. } = self.adapter;
        let shape = switch::PortConfig { mtu, coalesce, queues, flood_limit, ..Default::default() };
        let shape = switch::PortConfig { isolated: config.isolated, ..shape };
        let added = switch.add_controlled(host, &self.control, &shape);
        let shared = added.map_err(|cause| BuildError::Switch { port: self.name.clone(), cause })?;
        self.on_switch = Some((shared, Arc::clone(switch)));
        Ok(())
    }

    /// Returns the task of one queue pair on a cable, with its progress; `None` if there is no such queue.
    pub fn cable_task(
        &self,
        config: &PortConfig,
        queue: usize,
        wire: CableEnd,
        rest: &Arc<Rest>,
    ) -> Option<(Box<dyn Task>, Arc<Mark>)> {
        let mark = Arc::new(Mark::default());
        let Self { host, adapter, control, capture: point, .. } = self;
        let PortConfig { memory, faults, .. } = config;
        let watch = Watch { point, control };
        let parts = TaskParts { queue, wire, adapter, memory, faults, watch, rest, mark: &mark };
        Some((host.cable_task(parts)?, mark))
    }

    /// Calls `function` with the port's guest; returns `None` if the host is not a guest.
    pub fn with_guest<T>(&self, function: impl FnOnce(&mut VhostUser) -> T) -> Option<T> {
        self.host.guest().map(|guest| function(&mut lock(guest)))
    }

    /// Returns whether a switch still has the host as an open port; always `true` on a cable.
    pub fn is_open(&self) -> bool {
        self.on_switch.as_ref().is_none_or(|(port, _)| port.closed().is_none())
    }

    /// Returns whether the interface on the wire is present; `false` if the interface is gone for good. Returns `true`
    /// on any other wire.
    pub fn is_wire_there(&self) -> bool {
        self.interface.as_ref().is_none_or(|port| port.closed().is_none())
    }

    /// Wakes the port's threads, so that changes take effect soon.
    pub fn wake(&self) {
        self.queues.iter().for_each(|queue| queue.worker.wake());
    }

    /// Returns whether the thread of this queue pair currently polls the port's host.
    pub fn is_served_by(&self, queue: &Queue) -> bool {
        let Some(task) = queue.worker.pulse().task else { return false };
        match &queue.place {
            Place::Task(own) => task == *own,
            Place::Switch(serving) => self.on_switch.as_ref().is_some_and(|(port, _)| port.index() == serving.index()),
        }
    }

    /// Returns the counters of the interface on the wire. The interface acts as a host: `receive` counts frames given
    /// to the interface.
    pub fn wire_stats(&self) -> Option<&QueueStats> {
        Some(self.interface.as_ref()?.stats())
    }

    /// Returns the number of frames lost at the interface on the wire because the port did not read the frames in time.
    /// Returns 0 if the kernel does not count these frames.
    pub fn wire_unread(&self) -> u64 {
        self.wire.as_ref().map_or(0, |wire| wire.unread())
    }

    /// Returns the name of each host and interface of the port that is gone for good, with the error number.
    pub fn gone(&self) -> impl Iterator<Item = (String, i32)> {
        let on_switch = self.on_switch.as_ref().map(|(port, _)| port);
        let ends = [(on_switch, "the host"), (self.interface.as_ref(), "the interface on its wire")];
        let closed = ends.into_iter().filter_map(|(port, what)| Some((format!(": {what}"), port?.closed()?)));
        let queues = self.queues.iter().enumerate();
        let ended = queues.filter_map(|(n, queue)| Some((format!(", queue pair {n}: the host"), queue.mark.ended()?)));
        closed.chain(ended).map(|(what, errno)| (format!("port \"{}\"{what}", self.name), errno))
    }

    /// Ends the port: disconnects its guest, removes the port from its switch, and closes its devices. All steps run in
    /// the calling thread, so no other port's frames are delayed.
    pub fn end(self) {
        self.with_guest(VhostUser::close);
        if let Some((port, switch)) = &self.on_switch {
            switch.remove(port);
            let until = Instant::now() + END_TIME_MAX;
            while switch.has(port) && Instant::now() < until {
                thread::sleep(END_CHECK_INTERVAL);
            }
        }
    }
}

/// One queue pair of a port, or all queue pairs of a TAP on a switch, with its thread.
#[derive(Debug)]
pub struct Queue {
    pub mark: Arc<Mark>,
    pub worker: Arc<Worker>,
    /// The position of the queue pair's host among the hosts of the thread.
    pub place: Place,
}

/// The position of a host among the hosts of its thread.
#[derive(Debug)]
pub enum Place {
    /// The index of the host's task among the worker's tasks.
    Task(usize),
    /// A port of a switch, which is the worker's only task.
    Switch(Arc<Serving>),
}

#[cfg(test)]
mod tests {
    use crate::{Config, Daemon};
    use std::path::Path;

    #[test]
    fn each_queue_pair_of_a_guest_is_shown_on_a_cable_and_a_switch() {
        let directory = std::env::temp_dir().join(format!("offramp-pairs-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        for wires in [["cable = \"b\"", "cable = \"a\""], ["switch = \"lan\""; 2]] {
            let port = |name: &str, wire: &str| {
                let socket = directory.join(name);
                format!(
                    "[[port]]\nname = {name:?}\nhost = {{ vhost_user = {socket:?}, queue_pairs = 3 }}\nwire.{wire}\n"
                )
            };
            let text = format!("[[switch]]\nname = \"lan\"\n{}{}", port("a", wires[0]), port("b", wires[1]));
            let daemon = Daemon::start(Config::parse(Path::new("x.toml"), &text).unwrap()).unwrap();
            for port in daemon.status().ports {
                let queues: Vec<_> = port.queues.iter().map(|queue| (queue.index, queue.running)).collect();
                assert_eq!(queues, [(0, true), (1, true), (2, true)], "{wires:?}");
            }
            assert!(daemon.stop());
        }
        std::fs::remove_dir(&directory).unwrap();
    }
}
