//! A rig with a guest and a namespace as hosts, and the adapters between them.

use super::command::{AgentConfig, Card};
use super::machine::Machine;
use super::protocol::{Command, Network, Switches};
use super::runner::{GuestSpec, Runner, boot_first};
use super::{GuestError, agent};
use crate::error::TestbedError;
use crate::host::RxCoalescing;
use crate::rig::{self, ADDRESSES, Between, Counts, Hosts, INTERFACE, MACS, PREFIX_LEN, RigConfig, Threads};
use crate::scratch::Scratch;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_ports::sys::{NetNs, rps};
use offramp_ports::tap::Tap;
use offramp_ports::vhost_user::{ControlQueue, VhostUser, VhostUserConfig};
use offramp_ports::worker::{HostIo, Task, Worker};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Index of the guest among the two hosts.
const GUEST: usize = 0;
/// Index of the namespace among the two hosts.
const OTHER: usize = 1;

/// The guests of a run, booted on first use. Each combination of MTU, link rate and driver coalescing (none, fixed or
/// adaptive) has its own guest.
#[derive(Debug)]
pub struct Guests<'a> {
    spec: GuestSpec,
    stop: &'a AtomicBool,
    rigs: Vec<GuestRig<'a>>,
    note: Option<String>,
}

impl<'a> Guests<'a> {
    /// Creates an empty set of guests. [`Guests::rig`] boots guests as described by `spec`.
    pub fn new(spec: GuestSpec, stop: &'a AtomicBool) -> Self {
        Self { spec, stop, rigs: Vec::new(), note: None }
    }

    /// Returns the rig whose guest was booted with the MTU, rate and kind of driver coalescing in `config`. All other
    /// settings of the rig are changed to the settings in `config`.
    ///
    /// # Errors
    /// Returns an error if the guest cannot be booted or switched, or the run is stopped.
    pub fn rig(&mut self, config: &RigConfig) -> Result<&mut GuestRig<'a>, TestbedError> {
        // Guests with different kinds of coalescing are booted separately. A driver keeps its coalescing until a reset,
        // and an adaptive driver begins with the last fixed values.
        let boots_as = |config: &RigConfig| {
            let coalescing = config.host.coalescing;
            (config.mtu, config.rate_bps, coalescing.is_some(), coalescing == Some(RxCoalescing::Adaptive))
        };
        let is_alike = |rig: &GuestRig| boots_as(&rig.config) == boots_as(config);
        let alike = self.rigs.iter().position(is_alike);
        let at = alike.unwrap_or(self.rigs.len());
        if alike.is_none() {
            let rig = self.boot(config)?;
            self.rigs.push(rig);
        }
        let rig = &mut self.rigs[at];
        rig.switch(config)?;
        Ok(rig)
    }

    /// Boots a guest with the first runner that succeeds. Later guests use the same runner.
    fn boot(&mut self, config: &RigConfig) -> Result<GuestRig<'a>, TestbedError> {
        let start = |runner: &Runner| GuestRig::start(runner, &self.spec.program, config, self.stop);
        let (rig, runner, refused) = boot_first(&self.spec.runners, start)?;
        if let Some(error) = refused {
            self.note = Some(format!("KVM is there, but {error}"));
        }
        self.spec.runners = vec![runner];
        Ok(rig)
    }

    /// Returns the first guest and its runner, or `None` before the first boot.
    pub fn first(&self) -> Option<(&Machine, &Runner)> {
        Some(&self.rigs.first()?.machine).zip(self.spec.runners.first())
    }

    /// Returns KVM's error, if KVM is present but cannot run the guests.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

/// A running guest and a namespace as hosts. Dropping the rig ends the guest and the namespace.
#[derive(Debug)]
pub struct GuestRig<'a> {
    // Fields in drop order: the guest (which uses the rings), the threads, the port and the TAP, the namespace.
    machine: Machine,
    workers: Vec<Worker>,
    port: VhostUser,
    tap: Tap,
    controls: [Arc<PortControl>; 2],
    host: NetNs,
    config: RigConfig,
    rps: bool,
    stop: &'a AtomicBool,
}

impl<'a> GuestRig<'a> {
    fn start(runner: &Runner, program: &Path, config: &RigConfig, stop: &'a AtomicBool) -> Result<Self, TestbedError> {
        let adapter = AdapterConfig {
            mtu: config.mtu,
            offloads: config.offloads,
            moderation: config.moderation,
            ..AdapterConfig::default()
        };
        adapter.check()?;
        let mtu = u16::try_from(config.mtu).map_err(|_| GuestError::Unsupported("the maximum MTU is 65535"))?;
        let host = NetNs::new()?;
        let tap = rig::open_tap(&host, config, OTHER)?;
        host.run(|| rig::set_up_host(config, OTHER))??;
        let cpus = &config.placement.host_cpus;
        let rps = config.placement.is_apart() && rps::set(&host, INTERFACE, cpus).is_ok();
        let controls = [PortControl::new(&adapter), PortControl::new(&adapter)];
        let scratch = Scratch::new()?;
        let socket = scratch.path().join("port");
        let control_queue = if runner.forwards_control_queue { ControlQueue::Backend } else { ControlQueue::Frontend };
        let (mac, mtu) = (Some(MACS[GUEST]), Some(mtu));
        let vhost = VhostUserConfig { mac, mtu, control_queue, ..VhostUserConfig::new(&socket) };
        let mut port = VhostUser::open(&vhost).map_err(GuestError::from)?;
        let workers = start_adapters(config, &adapter, &controls, &mut port, &tap)?;
        let machine = AgentConfig {
            runner,
            program,
            argument: agent::ARGUMENT,
            modules: &[],
            directory: scratch.path(),
            card: Card::VhostUser(&socket),
            mac: MACS[GUEST],
            mtu: config.mtu,
            cpus,
        };
        let mut machine = Machine::boot_agent(&machine, stop)?;
        machine.command(&Command::SetUp(network(config)), stop)?;
        let config = config.clone();
        // A running guest needs no file in the directory of `scratch`. The drop of `scratch` at the end of this
        // function removes the directory, so that no file remains however this process ends.
        Ok(Self { machine, workers, port, tap, controls, host, config, rps, stop })
    }

    /// Switches both hosts and adapters to the new configuration.
    fn switch(&mut self, config: &RigConfig) -> Result<(), TestbedError> {
        let offloads = config.offloads.with_prerequisites();
        for control in &self.controls {
            control.set_offloads(control.offloads() | offloads);
        }
        self.tap.offer(offloads)?;
        self.host.run(|| rig::set_host_gso(config))??;
        self.machine.command(&Command::Switch(Switches::new(config)), self.stop)?;
        for control in &self.controls {
            control.set_offloads(offloads);
            control.set_moderation(config.moderation);
        }
        self.config = config.clone();
        Ok(())
    }

    /// Checks that a driver with adaptive coalescing has set the coalescing at least once. In a guest with adaptive
    /// coalescing, only DIM sets the coalescing.
    ///
    /// # Errors
    /// Returns an error if the driver has not set the coalescing, because the sample would not measure DIM.
    pub fn check_adapted(&self) -> Result<(), TestbedError> {
        let set = self.port.status().control.and_then(|control| control.coalescing.first().copied().flatten());
        if self.config.host.coalescing == Some(RxCoalescing::Adaptive) && set.is_none() {
            let why = "the guest's DIM has set nothing so far, so adaptive coalescing was not measured; measure \
                 longer with --seconds";
            return Err(TestbedError::Traffic(why.to_owned()));
        }
        Ok(())
    }
}

fn network(config: &RigConfig) -> Network {
    Network {
        address: ADDRESSES[GUEST],
        prefix_len: PREFIX_LEN,
        mtu: config.mtu as u32,
        neighbour: ADDRESSES[OTHER],
        neighbour_mac: MACS[OTHER],
    }
}

/// Creates an adapter at each end of a cable, and starts the adapters' threads.
fn start_adapters(
    config: &RigConfig,
    adapter: &AdapterConfig,
    controls: &[Arc<PortControl>; 2],
    port: &mut VhostUser,
    tap: &Tap,
) -> Result<Vec<Worker>, TestbedError> {
    let line = CableConfig { mtu: config.mtu, rate_bps: config.rate_bps, ..CableConfig::default() };
    line.check()?;
    let (a, b) = cable(&line);
    let (guest, other) = port.queue(0).zip(tap.queue(0)).expect("both were opened with one queue pair");
    let (a, b) = (task(adapter, &controls[GUEST], guest, a), task(adapter, &controls[OTHER], other, b));
    let groups = match config.between {
        Between::Adapters(Threads::Shared) => vec![("ofr-adapters", vec![a, b])],
        Between::Adapters(Threads::PerAdapter) => vec![("ofr-adapter-a", vec![a]), ("ofr-adapter-b", vec![b])],
        Between::Adapters(Threads::PerDirection) => {
            return Err(
                GuestError::Unsupported("one thread serves a guest's rings; drop --threads per-direction").into()
            );
        }
        Between::Relay => return Err(GuestError::Unsupported("the relay joins TAPs").into()),
    };
    let cpus = &config.placement.adapter_cpus;
    let start = |(name, tasks)| Ok(Worker::start(name, tasks, Some(cpus.clone()))?);
    groups.into_iter().map(start).collect()
}

fn task<H: HostIo + Send + 'static>(
    adapter: &AdapterConfig,
    control: &Arc<PortControl>,
    host: H,
    end: CableEnd,
) -> Box<dyn Task> {
    Box::new(QueuePair::new(adapter, control, 0, host, end))
}

impl Hosts for GuestRig<'_> {
    fn config(&self) -> &RigConfig {
        &self.config
    }

    fn adapter_threads(&self) -> Vec<i32> {
        self.workers.iter().map(Worker::thread_id).collect()
    }

    fn counts(&self) -> Counts {
        Counts::of(&self.controls)
    }

    fn counts_of(&self, side: usize) -> Counts {
        Counts::of(&self.controls[side..=side])
    }

    fn has_rps(&self) -> bool {
        self.rps
    }

    fn namespace(&self, side: usize) -> Option<&NetNs> {
        (side == OTHER).then_some(&self.host)
    }

    fn guest(&mut self) -> Option<&mut Machine> {
        Some(&mut self.machine)
    }
}
