//! Two hosts and the path between them: two namespaces with a TAP each, two adapters, and a cable.
//!
//! ```text
//!  namespace a            this process             namespace b
//!  TCP/IP ── TAP ── adapter ══ cable ══ adapter ── TAP ── TCP/IP
//! ```
//!
//! Every resource is held by a descriptor of this process, so that nothing remains after any exit.

mod config;
mod counts;
mod hosts;
mod settings;

pub use config::{ADDRESSES, Between, Card, INTERFACE, Placement, RigConfig, Threads};
pub(crate) use config::{GSO_SEGS, MACS, PREFIX_LEN};
pub use counts::{Count, Counts};
pub use hosts::Hosts;

use crate::error::TestbedError;
use crate::esp::{self, EspBy, EspLink, HostEsp, PROGRAM_INTERFACE};
use crate::guest::Machine;
use crate::host::Capture;
use crate::relay::Relay;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_impair::fault;
use offramp_offload::caps::Offloads;
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::sys::{NetNs, ethtool, link, rps};
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::worker::{Task, Worker};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Length of a host's transmit queue in frames, more than a host's largest send window. If the queue is full, a TAP
/// drops the frame. A driver would stop the host's queue instead.
const TX_QUEUE_LEN: u32 = 8192;
/// Minimum MTU of IPv6 on a Linux interface (RFC 8200 5).
const IPV6_MTU_MIN: usize = 1280;
/// Index of the host whose adapter can be a [`Card`].
const CARD_SIDE: usize = 1;

/// A running rig. Dropping the rig ends its threads and removes its devices and namespaces.
#[derive(Debug)]
pub struct Rig {
    // Fields in drop order: the threads, the devices driven by the threads, the namespaces that contain the devices.
    workers: Vec<Worker>,
    programs: Vec<Worker>,
    program_lost: Arc<AtomicU64>,
    relay: Option<Relay>,
    capture: Option<Capture>,
    taps: [Tap; 2],
    controls: [Arc<PortControl>; 2],
    hosts: [NetNs; 2],
    config: RigConfig,
    /// The reason why the hosts' receive work does not run on the hosts' processors, or `None` if it does.
    without_rps: Option<String>,
}

impl Rig {
    /// Builds and starts namespaces, TAPs, adapters and cable.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, or if the system refuses a namespace, a TAP or a thread. After an
    /// error, no namespace, TAP or thread remains.
    pub fn start(config: &RigConfig) -> Result<Self, TestbedError> {
        let adapter = AdapterConfig {
            mtu: config.mtu,
            offloads: config.offloads,
            moderation: config.moderation,
            queues: config.queues,
            ..AdapterConfig::default()
        };
        adapter.check()?;
        line_of(config).check()?;
        config.card.memory.check()?;
        config.card.faults.check()?;
        let hosts = [NetNs::new()?, NetNs::new()?];
        let taps = [open_tap(&hosts[0], config, 0)?, open_tap(&hosts[1], config, 1)?];
        for (side, host) in hosts.iter().enumerate() {
            host.run(|| set_up_host(config, side))??;
        }
        let without_rps = steer(&hosts, config).err();
        let controls = [PortControl::new(&adapter), PortControl::new(&adapter)];
        let mut rig = Self {
            workers: Vec::new(),
            programs: Vec::new(),
            program_lost: Arc::default(),
            relay: None,
            capture: None,
            taps,
            controls,
            hosts,
            config: config.clone(),
            without_rps,
        };
        rig.start_esp()?;
        rig.start_between(&adapter)?;
        if rig.config.host.captured {
            rig.capture = Some(Capture::start(&rig.hosts[CARD_SIDE], INTERFACE)?);
            rig.set_offloads(CARD_SIDE, rig.config.offloads - Offloads::RX_CHECKSUM - Offloads::RSC)?;
        }
        Ok(rig)
    }

    /// Sets up the encrypted link: adds associations to both adapters, or starts a program on each host.
    fn start_esp(&mut self) -> Result<(), TestbedError> {
        let Some(link) = self.config.esp else { return Ok(()) };
        for side in 0..self.hosts.len() {
            self.controls[side].ipsec().use_ciphers(esp::ciphers());
            self.controls[side].change_ipsec(&link.adapter_changes(side)).map_err(|(_, error)| error)?;
            if link.by == EspBy::Host {
                self.start_program(&link, side)?;
            }
        }
        Ok(())
    }

    fn start_program(&mut self, link: &EspLink, side: usize) -> Result<(), TestbedError> {
        let (host, config) = (&self.hosts[side], &self.config);
        let clear = open_tap_named(host, config, side, PROGRAM_INTERFACE, config.tcp_mtu()?)?;
        host.run(|| set_up_tcp(config, side))??;
        let packets = PacketConfig { promiscuous: false, ..PacketConfig::new(INTERFACE) };
        let line = Packet::open_in(host, &packets)?;
        let queues = clear.queue(0).zip(line.queue(0));
        let (clear, line) = queues.expect("both were opened with one queue");
        let program = HostEsp::new(link, side, clear, line, &self.program_lost)?;
        let cpus = config.placement.host_cpus.clone();
        self.programs.push(Worker::start("host-esp", vec![program], Some(cpus))?);
        Ok(())
    }

    fn start_between(&mut self, adapter: &AdapterConfig) -> Result<(), TestbedError> {
        match self.config.between {
            Between::Relay => {
                let cpus = Some(self.config.placement.adapter_cpus.as_slice());
                self.relay = Some(Relay::start(&self.taps[0], &self.taps[1], cpus)?);
            }
            Between::Adapters(threads) => self.start_adapters(adapter, threads)?,
        }
        Ok(())
    }

    /// Creates one cable for each queue pair, and starts the threads of the adapters at both ends of each cable.
    fn start_adapters(&mut self, adapter: &AdapterConfig, threads: Threads) -> Result<(), TestbedError> {
        let line = line_of(&self.config);
        for queue in 0..usize::from(adapter.queues) {
            let ends = cable(&line);
            if self.config.card.is_none() {
                let pair = |side, wire| self.queue_pair(adapter, side, queue, wire);
                let groups = groups(threads, ends, pair);
                self.start_workers(groups)?;
            } else {
                let pair = |side, wire| self.queue_pair_with_card(adapter, side, queue, wire);
                let groups = groups(threads, ends, pair);
                self.start_workers(groups)?;
            }
        }
        Ok(())
    }

    fn start_workers<T: Task + 'static>(&mut self, groups: Vec<(&str, Vec<T>)>) -> Result<(), TestbedError> {
        for (name, pairs) in groups {
            let cpus = Some(self.config.placement.adapter_cpus.clone());
            let worker = Worker::start_polling(name, pairs, cpus, self.config.polling, Sandbox::default())?;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn queue_pair(
        &self,
        adapter: &AdapterConfig,
        side: usize,
        queue: usize,
        wire: CableEnd,
    ) -> QueuePair<TapQueue, CableEnd> {
        QueuePair::new(adapter, &self.controls[side], queue, self.tap_queue(side, queue), wire)
    }

    /// Returns a host's queue pair in a rig with a card. Host B has the card's queue pair, and host A has an ordinary
    /// queue pair.
    fn queue_pair_with_card(
        &self,
        adapter: &AdapterConfig,
        side: usize,
        queue: usize,
        wire: CableEnd,
    ) -> Box<dyn Task> {
        if side != CARD_SIDE {
            return Box::new(self.queue_pair(adapter, side, queue, wire));
        }
        let Card { memory, faults } = &self.config.card;
        let control = &self.controls[side];
        let host = fault::host(self.tap_queue(side, queue), faults, control, queue);
        Box::new(QueuePair::new(adapter, control, queue, host, fault::wire(wire, faults, memory)))
    }

    fn tap_queue(&self, side: usize, queue: usize) -> TapQueue {
        self.taps[side].queue(queue).expect("the TAP was opened with all its queues")
    }

    /// Returns the capture, or `None` if no capture runs.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// Returns the namespace of host 0 or 1.
    pub fn host(&self, side: usize) -> &NetNs {
        &self.hosts[side]
    }

    /// Returns the rig's configuration.
    pub fn config(&self) -> &RigConfig {
        &self.config
    }

    /// Returns whether the hosts' receive work runs on the hosts' processors.
    pub fn has_rps(&self) -> bool {
        self.without_rps.is_none()
    }

    /// Returns the reason if the hosts' receive work does not run on the hosts' processors.
    pub fn without_rps(&self) -> Option<&str> {
        self.without_rps.as_deref()
    }

    /// Returns the number of packets that the hosts' programs could not encrypt, decrypt or deliver.
    pub fn program_lost(&self) -> u64 {
        self.program_lost.load(Ordering::Relaxed)
    }

    /// Returns the kernel thread numbers of the adapters' threads; a relay has none.
    pub fn adapter_threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.workers.iter().map(Worker::thread_id)
    }

    /// Switches the offloads of adapter 0 or 1 while frames flow. An offload to remove is withdrawn from the host
    /// before the adapter disables the offload. A new offload is enabled in the adapter before the offload is offered
    /// to the host.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists.
    pub fn set_offloads(&self, side: usize, offloads: Offloads) -> Result<(), TestbedError> {
        let control = &self.controls[side];
        control.set_offloads(control.offloads() | offloads);
        self.taps[side].offer(offloads)?;
        control.set_offloads(offloads);
        Ok(())
    }

    /// Returns the counters of both adapters.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.controls)
    }

    /// Returns the counters of the adapter of host 0 or 1.
    pub fn counts_of(&self, side: usize) -> Counts {
        Counts::of(&self.controls[side..=side])
    }
}

/// Moves the hosts' receive work to the hosts' processors. Returns the reason if this is impossible.
fn steer(hosts: &[NetNs; 2], config: &RigConfig) -> Result<(), String> {
    let placement = &config.placement;
    if !config.host.rps {
        return Err("switched off".to_owned());
    }
    if !(placement.is_apart() || placement.has_server_alone()) {
        return Err("hosts and adapters share the processors".to_owned());
    }
    let cpus_of = |side| placement.cpus_of(side == config.client);
    let mut sides = hosts.iter().enumerate();
    sides.try_for_each(|(side, host)| rps::set(host, INTERFACE, cpus_of(side)).map_err(|error| error.to_string()))
}

/// Returns the configuration of one queue pair's cable. The link rate is divided equally between the queue pairs.
fn line_of(config: &RigConfig) -> CableConfig {
    let rate_bps = config.rate_bps.map(|rate_bps| rate_bps / u64::from(config.queues.max(1)));
    CableConfig { mtu: config.mtu, rate_bps, ..CableConfig::default() }
}

/// Returns the threads of the adapters at both ends of one cable: each thread's name and its queue pairs.
fn groups<T>(
    threads: Threads,
    (a, b): (CableEnd, CableEnd),
    pair: impl Fn(usize, CableEnd) -> T,
) -> Vec<(&'static str, Vec<T>)> {
    match threads {
        Threads::Shared => vec![("ofr-adapters", vec![pair(0, a), pair(1, b)])],
        Threads::PerAdapter => vec![("ofr-adapter-a", vec![pair(0, a)]), ("ofr-adapter-b", vec![pair(1, b)])],
        Threads::PerDirection => {
            let ((a_out, a_in), (b_out, b_in)) = (a.split(), b.split());
            let there = vec![pair(0, a_out), pair(1, b_in)];
            vec![("ofr-a-to-b", there), ("ofr-b-to-a", vec![pair(1, b_out), pair(0, a_in)])]
        }
    }
}

impl Hosts for Rig {
    fn config(&self) -> &RigConfig {
        &self.config
    }

    fn adapter_threads(&self) -> Vec<i32> {
        self.adapter_threads().collect()
    }

    fn counts(&self) -> Counts {
        self.counts()
    }

    fn counts_of(&self, side: usize) -> Counts {
        self.counts_of(side)
    }

    fn program_lost(&self) -> u64 {
        self.program_lost()
    }

    fn has_rps(&self) -> bool {
        self.has_rps()
    }

    fn namespace(&self, side: usize) -> Option<&NetNs> {
        Some(self.host(side))
    }

    fn guest(&mut self) -> Option<&mut Machine> {
        None
    }
}

/// Opens a host's TAP with the configured offloads.
pub(crate) fn open_tap(host: &NetNs, config: &RigConfig, side: usize) -> Result<Tap, TestbedError> {
    let mtu = if config.has_esp_programs() { config.mtu } else { config.tcp_mtu()? };
    open_tap_named(host, config, side, INTERFACE, mtu)
}

fn open_tap_named(host: &NetNs, config: &RigConfig, side: usize, name: &str, mtu: usize) -> Result<Tap, TestbedError> {
    let tap = TapConfig {
        mtu: mtu as u32,
        queues: config.queues,
        mac: Some(MACS[side]),
        tx_queue_len: Some(TX_QUEUE_LEN),
        napi: config.host.gro,
        ..TapConfig::new(name)
    };
    let tap = Tap::open_in(host, &tap)?;
    tap.offer(config.offloads)?;
    Ok(tap)
}

/// Applies the host's settings and sets up its interface, in the host's namespace.
pub(crate) fn set_up_host(config: &RigConfig, side: usize) -> Result<(), TestbedError> {
    config.host.apply()?;
    if config.has_esp_programs() {
        // The interface gets no address, because only the host's ESP program sends and receives on the interface.
        link::disable_ipv6(INTERFACE)?;
        return Ok(link::set_up(INTERFACE)?);
    }
    set_up_tcp(config, side)
}

/// Sets the address, the neighbour and the GSO settings, in the host's namespace.
fn set_up_tcp(config: &RigConfig, side: usize) -> Result<(), TestbedError> {
    let interface = config.tcp_interface();
    if config.mtu >= IPV6_MTU_MIN {
        // IPv6 is disabled, because its neighbour and router messages would be counted with the traffic.
        link::disable_ipv6(interface)?;
    }
    set_host_gso(config)?;
    link::add_address(interface, IpAddr::V4(ADDRESSES[side]), PREFIX_LEN)?;
    link::set_up(interface)?;
    link::add_neighbour(interface, IpAddr::V4(ADDRESSES[1 - side]), MACS[1 - side])?;
    Ok(())
}

/// Sets the host's GSO, and its segment limit for super-frames (`gso_max_segs`), in the host's namespace.
pub(crate) fn set_host_gso(config: &RigConfig) -> Result<(), TestbedError> {
    let interface = config.tcp_interface();
    ethtool::set_features(interface, &[("tx-generic-segmentation", config.host_gso)])?;
    let is_limited = !config.host_gso && !config.offloads.intersects(Offloads::LSO);
    let segs = if is_limited { link::GSO_ONE_FRAME } else { GSO_SEGS };
    link::set_gso_segs_max(interface, segs)?;
    Ok(())
}
