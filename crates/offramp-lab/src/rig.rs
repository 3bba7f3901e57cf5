//! Two hosts and what lies between them: a namespace with a TAP each, two adapters, and the cable.
//!
//! ```text
//!  namespace a            this process             namespace b
//!  TCP/IP ── TAP ── adapter ══ cable ══ adapter ── TAP ── TCP/IP
//! ```
//!
//! Everything is held by descriptors of this process, so that nothing is left however it ends.

use crate::error::LabError;
use crate::esp::{self, EspBy, EspLink, HostEsp, PROGRAM_INTERFACE};
use crate::guest::machine::Machine;
use crate::host::{Capture, HostSettings};
use crate::relay::Relay;
use crate::sample::Hosts;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::{AdapterConfig, MTU_DEFAULT};
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::stats::{Direction, Loss};
use offramp_impair::fault::{self, FaultConfig};
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::Offloads;
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::sys::{NetNs, cpu, ethtool, link, rps};
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::worker::{Polling, Task, Worker};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses of the two hosts, of the range that is set aside for measuring (RFC 2544 C.2.2).
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Bits of the network part of both.
pub(crate) const PREFIX_LEN: u8 = 24;
/// Ethernet addresses of the two hosts, of the range that is administered locally.
pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0x18, 1], [2, 0, 0, 0, 0x18, 2]];
/// Name of the interface in each namespace.
pub const INTERFACE: &str = "ofr0";

/// Frames that a host's queue holds: more than its largest send window. A TAP drops what its queue has
/// no room for, where a driver would hold the host back.
const TX_QUEUE_LEN: u32 = 8192;
/// Segments of a super-frame when nothing limits them (Linux `GSO_LEGACY_MAX_SEGS`).
pub(crate) const GSO_SEGS: u32 = u16::MAX as u32;
/// Smallest MTU at which Linux runs IPv6 on an interface (RFC 8200 5).
const IPV6_MTU_MIN: usize = 1280;
/// The host whose adapter may be a [`Card`].
const CARD_SIDE: usize = 1;

/// Who drives the adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread for each queue pair, which drives both ends of its cable: a frame stays in one processor's cache.
    Shared,
    /// One thread per adapter.
    PerAdapter,
    /// One thread per direction: each segments at one end and coalesces at the other. A frame stays in one
    /// processor's cache, and acknowledgements need not wait for data.
    PerDirection,
}

/// What lies between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Two adapters and a cable.
    Adapters(Threads),
    /// The bare relay.
    Relay,
}

/// Which processors do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Processors of the hosts' programs and of their receive work.
    pub host_cpus: Vec<usize>,
    /// Processors of the adapters.
    pub adapter_cpus: Vec<usize>,
    /// Processors of the host that serves, where only that host is measured: `host_cpus` are then those of the client's
    /// host, which may share them with the adapters.
    pub server_cpus: Option<Vec<usize>>,
}

impl Placement {
    /// The last processor for the adapters, the others for the hosts; one for both if there is no other.
    pub fn apart() -> Self {
        let mut host_cpus = cpu::online();
        let adapter_cpus = if host_cpus.len() > 1 { host_cpus.pop().into_iter().collect() } else { host_cpus.clone() };
        Self { host_cpus, adapter_cpus, server_cpus: None }
    }

    /// The first processor for the host that serves and nothing else, the last one for the other host and the adapters; one
    /// for all if there is no other.
    pub fn server_alone() -> Self {
        let online = cpu::online();
        let [first, last] = [online.first(), online.last()].map(|cpu| cpu.copied().into_iter().collect::<Vec<_>>());
        Self { host_cpus: last.clone(), adapter_cpus: last, server_cpus: Some(first) }
    }

    /// Whether the host that serves has processors that nobody else has.
    pub fn has_server_alone(&self) -> bool {
        let is_others = |cpu: &usize| self.host_cpus.contains(cpu) || self.adapter_cpus.contains(cpu);
        self.server_cpus.as_ref().is_some_and(|cpus| !cpus.iter().any(is_others))
    }

    /// Everything everywhere, as the scheduler likes.
    pub fn free() -> Self {
        Self { host_cpus: cpu::online(), adapter_cpus: cpu::online(), server_cpus: None }
    }

    /// Processors of the client's host, or of the one that serves.
    pub fn cpus_of(&self, is_client: bool) -> &[usize] {
        self.server_cpus.as_deref().filter(|_| !is_client).unwrap_or(&self.host_cpus)
    }

    /// Whether hosts and adapters share no processor.
    pub fn is_apart(&self) -> bool {
        self.host_cpus.iter().all(|cpu| !self.adapter_cpus.contains(cpu))
    }
}

/// What host B's adapter is besides: a card with little memory on a slow bus, or one with faults. By default it is
/// neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its packet memory.
    pub memory: MemoryConfig,
    /// Its bus to the host, and its faults.
    pub faults: FaultConfig,
}

impl Card {
    /// Whether it is nothing special.
    pub fn is_none(&self) -> bool {
        self.memory.is_none() && self.faults.is_none()
    }
}

/// What a rig is made with.
#[derive(Clone, Debug)]
pub struct RigConfig {
    /// IP bytes of a frame, of both hosts and the wire.
    pub mtu: usize,
    /// Link rate in bits per second; `None`: never the limit.
    pub rate_bps: Option<u64>,
    /// What both adapters offer.
    pub offloads: Offloads,
    /// When what has arrived is handed over to a host, of both adapters.
    pub moderation: ModerationConfig,
    /// Whether the hosts segment in software what they may not hand over (Linux' own GSO).
    pub host_gso: bool,
    /// Whether a guest coalesces in software (Linux' own GRO). Linux never coalesces what comes from a TAP.
    pub host_gro: bool,
    /// What the hosts themselves are set to.
    pub host: HostSettings,
    /// Which host runs the client, 0 or 1; the server is the other.
    pub client: usize,
    /// Queue pairs of each adapter, each with a cable of its own that has its share of the rate.
    pub queues: u16,
    /// What lies between.
    pub between: Between,
    /// Which processors do what.
    pub placement: Placement,
    /// How long the adapters' threads poll before they sleep.
    pub polling: Polling,
    /// What host B's adapter is besides.
    pub card: Card,
    /// Whether the hosts' packets are encrypted on the wire, and who does that.
    pub esp: Option<EspLink>,
}

impl RigConfig {
    /// Whether a program of each host seals and opens.
    fn has_esp_programs(&self) -> bool {
        self.esp.is_some_and(|link| link.by == EspBy::Host)
    }

    /// The interface that the hosts' TCP uses.
    fn tcp_interface(&self) -> &'static str {
        if self.has_esp_programs() { PROGRAM_INTERFACE } else { INTERFACE }
    }

    /// IP bytes of a frame that the hosts' TCP sends.
    fn tcp_mtu(&self) -> Result<usize, LabError> {
        Ok(self.esp.map(|link| link.clear_mtu(self.mtu)).transpose()?.unwrap_or(self.mtu))
    }
}

impl Default for RigConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            rate_bps: None,
            offloads: Offloads::all(),
            moderation: ModerationConfig::default(),
            host_gso: true,
            host_gro: false,
            host: HostSettings::default(),
            client: 0,
            queues: 1,
            between: Between::Adapters(Threads::Shared),
            placement: Placement::apart(),
            polling: Polling::Off,
            card: Card::default(),
            esp: None,
        }
    }
}

/// A rig that runs. Dropping it ends everything.
#[derive(Debug)]
pub struct Rig {
    // In the order in which they are to go: who drives, what is driven, where it lies.
    workers: Vec<Worker>,
    programs: Vec<Worker>,
    program_lost: Arc<AtomicU64>,
    relay: Option<Relay>,
    capture: Option<Capture>,
    taps: [Tap; 2],
    controls: [Arc<PortControl>; 2],
    hosts: [NetNs; 2],
    config: RigConfig,
    rps: bool,
}

impl Rig {
    /// Builds namespaces, TAPs, adapters and cable, and starts them.
    ///
    /// # Errors
    /// When the system refuses any of it; nothing is left behind then.
    pub fn start(config: &RigConfig) -> Result<Self, LabError> {
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
        let placement = &config.placement;
        let cpus_of = |side| placement.cpus_of(side == config.client);
        let rps = config.host.rps
            && (placement.is_apart() || placement.has_server_alone())
            && hosts.iter().enumerate().all(|(side, host)| rps::set(host, INTERFACE, cpus_of(side)).is_ok());
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
            rps,
        };
        rig.start_esp()?;
        rig.start_between(&adapter)?;
        if rig.config.host.captured {
            rig.capture = Some(Capture::start(&rig.hosts[CARD_SIDE], INTERFACE)?);
            rig.set_offloads(CARD_SIDE, rig.config.offloads - Offloads::RX_CHECKSUM - Offloads::RSC)?;
        }
        Ok(rig)
    }

    /// The ends of an encrypted link: associations of the adapters, or a program in each host.
    fn start_esp(&mut self) -> Result<(), LabError> {
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

    fn start_program(&mut self, link: &EspLink, side: usize) -> Result<(), LabError> {
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

    fn start_between(&mut self, adapter: &AdapterConfig) -> Result<(), LabError> {
        match self.config.between {
            Between::Relay => {
                let cpus = Some(self.config.placement.adapter_cpus.as_slice());
                self.relay = Some(Relay::start(&self.taps[0], &self.taps[1], cpus)?);
            }
            Between::Adapters(threads) => self.start_adapters(adapter, threads)?,
        }
        Ok(())
    }

    /// One cable for each queue pair, and threads that drive both its ends.
    fn start_adapters(&mut self, adapter: &AdapterConfig, threads: Threads) -> Result<(), LabError> {
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

    fn start_workers<T: Task + 'static>(&mut self, groups: Vec<(&str, Vec<T>)>) -> Result<(), LabError> {
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

    /// The same, where host B's adapter is a card.
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

    /// The capture, if one runs.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// The namespace of host 0 or 1.
    pub fn host(&self, side: usize) -> &NetNs {
        &self.hosts[side]
    }

    /// What the rig was made with.
    pub fn config(&self) -> &RigConfig {
        &self.config
    }

    /// Whether the hosts' receive work was moved to the hosts' processors.
    pub fn has_rps(&self) -> bool {
        self.rps
    }

    /// Packets that the hosts' programs could not seal, open or hand over.
    pub fn program_lost(&self) -> u64 {
        self.program_lost.load(Ordering::Relaxed)
    }

    /// Kernel numbers of the threads that drive the adapters; none for a relay.
    pub fn adapter_threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.workers.iter().map(Worker::thread_id)
    }

    /// Switches what adapter 0 or 1 offers, while frames flow. What is no longer offered is first
    /// taken from the host, what is newly offered is first known to the adapter.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn set_offloads(&self, side: usize, offloads: Offloads) -> Result<(), LabError> {
        let control = &self.controls[side];
        control.set_offloads(control.offloads() | offloads);
        self.taps[side].offer(offloads)?;
        control.set_offloads(offloads);
        Ok(())
    }

    /// Counters of both adapters.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.controls)
    }

    /// Counters of the adapter of host 0 or 1.
    pub fn counts_of(&self, side: usize) -> Counts {
        Counts::of(&self.controls[side..=side])
    }
}

/// The cable of one queue pair, which has its share of the rate.
fn line_of(config: &RigConfig) -> CableConfig {
    let rate_bps = config.rate_bps.map(|rate_bps| rate_bps / u64::from(config.queues.max(1)));
    CableConfig { mtu: config.mtu, rate_bps, ..CableConfig::default() }
}

/// The threads that drive the ends of one cable, by name, and what each of them drives.
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
        self.rps
    }

    fn namespace(&self, side: usize) -> Option<&NetNs> {
        Some(self.host(side))
    }

    fn guest(&mut self) -> Option<&mut Machine> {
        None
    }
}

/// A host's TAP, offering what the configuration says.
pub(crate) fn open_tap(host: &NetNs, config: &RigConfig, side: usize) -> Result<Tap, LabError> {
    let mtu = if config.has_esp_programs() { config.mtu } else { config.tcp_mtu()? };
    open_tap_named(host, config, side, INTERFACE, mtu)
}

fn open_tap_named(host: &NetNs, config: &RigConfig, side: usize, name: &str, mtu: usize) -> Result<Tap, LabError> {
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

/// In the host's namespace: what the host is set to, and its interface.
pub(crate) fn set_up_host(config: &RigConfig, side: usize) -> Result<(), LabError> {
    config.host.apply()?;
    if config.has_esp_programs() {
        // It has no address: what its programs send and take is nothing to the kernel.
        link::disable_ipv6(INTERFACE)?;
        return Ok(link::set_up(INTERFACE)?);
    }
    set_up_tcp(config, side)
}

/// In the host's namespace: address, the neighbour, and which features the host itself may use.
fn set_up_tcp(config: &RigConfig, side: usize) -> Result<(), LabError> {
    let interface = config.tcp_interface();
    if config.mtu >= IPV6_MTU_MIN {
        // Its neighbour and router messages would be counted with the traffic.
        link::disable_ipv6(interface)?;
    }
    set_host_gso(config)?;
    link::add_address(interface, IpAddr::V4(ADDRESSES[side]), PREFIX_LEN)?;
    link::set_up(interface)?;
    link::add_neighbour(interface, IpAddr::V4(ADDRESSES[1 - side]), MACS[1 - side])?;
    Ok(())
}

/// In the host's namespace: whether it segments in software, and how large its super-frames may be.
pub(crate) fn set_host_gso(config: &RigConfig) -> Result<(), LabError> {
    let interface = config.tcp_interface();
    ethtool::set_features(interface, &[("tx-generic-segmentation", config.host_gso)])?;
    let is_limited = !config.host_gso && !config.offloads.intersects(Offloads::LSO);
    let segs = if is_limited { link::GSO_ONE_FRAME } else { GSO_SEGS };
    link::set_gso_segs_max(interface, segs)?;
    Ok(())
}

/// Sums of one direction over adapters and queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Frames from the wire.
    pub frames_in: u64,
    /// Frames to the wire.
    pub frames_out: u64,
    /// Frames as the hosts saw them.
    pub host_frames: u64,
    /// Batches handed to a TAP, or interrupts of a guest.
    pub interrupts: u64,
    /// Frames lost, for any reason.
    pub lost: u64,
    /// Frames among `lost` for which the adapter's memory had no room.
    pub dropped: u64,
    /// Frames among `lost` that newer ones overwrote in the adapter's memory.
    pub overrun: u64,
    /// Most bytes that an adapter's memory has stored at one time, since it was made.
    pub memory_bytes_max: u64,
    /// Most frames that came into an adapter's memory one after another without a loss, since it was made.
    pub burst_frames_max: u64,
}

impl Count {
    fn of(direction: &Direction) -> Self {
        Self {
            frames_in: direction.frames_in.get(),
            frames_out: direction.frames_out.get(),
            host_frames: direction.host_frames.get(),
            interrupts: direction.interrupts.get(),
            lost: direction.lost_total(),
            dropped: direction.memory_dropped.get(),
            overrun: direction.lost(Loss::Overrun),
            memory_bytes_max: direction.memory_bytes_max.get(),
            burst_frames_max: direction.burst_frames_max.get(),
        }
    }

    /// What was counted since `earlier`. What is a maximum stays that since the beginning.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            frames_in: self.frames_in - earlier.frames_in,
            frames_out: self.frames_out - earlier.frames_out,
            host_frames: self.host_frames - earlier.host_frames,
            interrupts: self.interrupts - earlier.interrupts,
            lost: self.lost - earlier.lost,
            dropped: self.dropped - earlier.dropped,
            overrun: self.overrun - earlier.overrun,
            ..self
        }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.frames_in += other.frames_in;
        self.frames_out += other.frames_out;
        self.host_frames += other.host_frames;
        self.interrupts += other.interrupts;
        self.lost += other.lost;
        self.dropped += other.dropped;
        self.overrun += other.overrun;
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.burst_frames_max = self.burst_frames_max.max(other.burst_frames_max);
    }
}

/// Counters of both adapters together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Host to wire.
    pub transmit: Count,
    /// Wire to host.
    pub receive: Count,
}

impl Counts {
    /// Counters of adapters.
    pub fn of(controls: &[Arc<PortControl>]) -> Self {
        let mut counts = Self::default();
        for queue in controls.iter().flat_map(|control| control.queues()) {
            counts.transmit += Count::of(&queue.transmit);
            counts.receive += Count::of(&queue.receive);
        }
        counts
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { transmit: self.transmit.since(earlier.transmit), receive: self.receive.since(earlier.receive) }
    }

    /// Frames that were lost in either direction.
    pub fn lost(&self) -> u64 {
        self.transmit.lost + self.receive.lost
    }

    /// Whether every frame that went in came out or was counted.
    pub fn is_balanced(&self) -> bool {
        [self.transmit, self.receive].iter().all(|c| c.frames_in == c.frames_out + c.lost)
            && self.transmit.frames_out == self.receive.frames_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_adapter::port::PortError;
    use offramp_offload::meta::RxMeta;

    #[test]
    fn dropped_are_frames_without_room_in_the_memory_and_not_those_without_room_at_the_host() {
        let direction = Direction::default();
        direction.lose_on_line(Loss::Drop, 3);
        direction.frames_in.add(1);
        direction.given(&RxMeta::default(), 60, Err(PortError::Full));
        let count = Count::of(&direction);
        assert_eq!((count.dropped, count.lost, count.frames_in), (3, 4, 4));
    }
}
