//! A running switch of the configuration, and its thread.

use super::config::{PortConfig, SwitchConfig};
use super::drain::{AnyHost, Mark, Resting};
use super::error::BuildError;
use super::port::{Place, Port, Queue};
use super::threads::Threads;
use offramp_adapter::switch::{self, FloodLimit, Serving, Switch, SwitchControl};
use offramp_ports::sys::cpu::online;
use offramp_ports::worker::{Polling, Task, Worker};
use std::sync::Arc;

/// The thread of a switch.
#[derive(Debug)]
pub struct SwitchThread {
    mark: Arc<Mark>,
    worker: Arc<Worker>,
    serving: Arc<Serving>,
}

impl SwitchThread {
    /// Starts the thread of a switch.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(
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

    /// Registers this thread as the driver of each queue pair for which the port has separate counters.
    pub fn drive(&self, port: &mut Port) {
        let Self { mark, worker, serving } = self;
        port.queues.extend(port.control.queues().iter().map(|_| {
            let place = Place::Switch(Arc::clone(serving));
            Queue { mark: Arc::clone(mark), worker: Arc::clone(worker), place }
        }));
    }
}

/// A switch of the configuration. Its ports share its MAC table equally.
#[derive(Debug)]
pub struct RunningSwitch {
    pub name: String,
    pub control: Arc<SwitchControl<AnyHost>>,
    floods: FloodLimit,
    thread: SwitchThread,
}

impl RunningSwitch {
    /// Starts the switch with its ports among `opened`, all at once, so that the first frames of one port reach the
    /// other ports. `ports` holds the configurations of the ports, which also select the thread's processor.
    ///
    /// # Errors
    /// Fails if the switch refuses a port, or if the thread cannot be started.
    pub fn start(
        config: &SwitchConfig,
        ports: &[Arc<PortConfig>],
        opened: &mut [Port],
        threads: &Threads,
    ) -> Result<Self, BuildError> {
        let shape = switch::SwitchConfig {
            // Each port needs at least one entry of the table, so the number of entries also limits the number of
            // ports.
            ports_max: config.mac_entries_max,
            stations_max: config.mac_entries_max,
            equal_shares: true,
            ageing_s: u64::from(config.age_seconds),
            unknown_unicast: config.unknown_unicast,
            forward_reserved: config.forward_reserved,
            forward: config.forward,
            ..switch::SwitchConfig::default()
        };
        let switch = Switch::new(&shape);
        let (control, floods) = (Arc::clone(switch.control()), flood_limit(config.flood_frames_per_second));
        let on_it = opened.iter_mut().zip(ports).filter(|(_, port)| port.is_on(&config.name));
        let mut on_it: Vec<_> = on_it.collect();
        on_it.iter_mut().try_for_each(|(port, config)| port.connect(config, &control, Some(floods)))?;
        let (cpu, polling) = placing(&config.name, ports);
        let thread = SwitchThread::start(&config.name, switch, cpu, polling, threads)?;
        for (port, _) in on_it {
            thread.drive(port);
        }
        Ok(Self { name: config.name.clone(), control, floods, thread })
    }

    /// Connects a port that was not connected at the switch's start.
    ///
    /// # Errors
    /// Fails if the switch refuses the port.
    pub fn connect(&self, port: &mut Port, config: &PortConfig) -> Result<(), BuildError> {
        port.connect(config, &self.control, Some(self.floods))?;
        self.thread.drive(port);
        Ok(())
    }

    /// Moves the switch's thread to the processor that `ports`, the configurations of the ports, select for the switch.
    pub fn place(&self, ports: &[Arc<PortConfig>]) {
        let (cpu, polling) = placing(&self.name, ports);
        self.thread.worker.place(&cpu.unwrap_or_else(online), polling);
    }
}

/// Returns the processor and the polling mode of a switch's thread. The processor is the first entry of the first
/// `cpus` list that is not empty among the switch's ports; `None` if all lists are empty.
fn placing(switch: &str, ports: &[Arc<PortConfig>]) -> (Option<Vec<usize>>, Polling) {
    let on_it = || ports.iter().filter(|port| port.is_on(switch));
    let cpu = on_it().find_map(|port| port.cpus.first());
    (cpu.map(|&cpu| vec![cpu]), on_it().fold(Polling::Off, |polling, port| polling.or(port.polling())))
}

/// Returns the flood limit for `frames_per_s`. With a rate of 0, the burst is also 0, so the switch floods no frame.
fn flood_limit(frames_per_s: u32) -> FloodLimit {
    let FloodLimit { burst_frames, .. } = FloodLimit::default();
    FloodLimit { frames_per_s, burst_frames: if frames_per_s == 0 { 0 } else { burst_frames } }
}

/// Starts a thread that runs `tasks`: one or both ends of a queue pair's cable, or a switch.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn start_worker(
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
