//! Two guests connected by a cable. Each guest has a vhost-user port and an adapter, polled by workers.
//!
//! ```text
//!  guest 0 ── VhostUser ── adapter ══ cable ══ adapter ── VhostUser ── guest 1
//! ```
#![allow(dead_code)]

#[path = "../../../offramp-offload/tests/support/packet.rs"]
#[allow(clippy::duplicate_mod, reason = "benchmarks have it without the tests whose judge is the kernel")]
pub mod packet;
pub mod refuse;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::{AdapterConfig, MTU_MAX};
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::stats::{Direction, Loss};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::TxMeta;
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::vhost_user::{
    ControlQueue, MEMORY_BYTES_MAX, Mode, VhostPort, VhostQueue, VhostUser, VhostUserConfig,
};
use offramp_ports::vnet_hdr::{HEADER_LEN, decode_tx};
use offramp_ports::worker::{CablePair, Task, Worker};
use offramp_testkit::features;
use offramp_testkit::frontend::{DirtyLog, VringAddr};
use offramp_testkit::ring::RingAddresses;
use offramp_testkit::{Guest, GuestBuilder, Received, VnetHeader};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Time limit that detects a hang, far above the need on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// EtherType of frames without offloads (IEEE 802, local experimental).
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

/// Returns a random generator, and prints its seed. `OFFRAMP_SEED` sets the seed.
pub fn rng() -> ChaCha8Rng {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Returns a frame of `len` bytes, at least 14, with an EtherType without offloads.
pub fn frame(rng: &mut ChaCha8Rng, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    rng.fill_bytes(&mut frame);
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0x0b, 1, 2, 0, 0, 0, 0x0a, 1]);
    frame[12..14].copy_from_slice(&EXPERIMENTAL);
    frame
}

/// Polls until `is_so` returns true. Panics with `what` after [`PATIENCE`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A kind of ring and driver.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "five independent features")]
pub struct Case {
    pub packed: bool,
    pub mergeable: bool,
    pub indirect: bool,
    pub event_idx: bool,
    pub in_order: bool,
}

impl Case {
    /// Returns all kinds of rings and drivers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..32).map(|bits| {
            let on = |bit: u32| bits >> bit & 1 == 1;
            Self { packed: on(0), mergeable: on(1), indirect: on(2), event_idx: on(3), in_order: on(4) }
        })
    }

    /// Returns split and packed kinds, with and without `EVENT_IDX`.
    pub fn rings() -> impl Iterator<Item = Self> {
        Self::all().filter(|case| case.mergeable && !case.indirect && !case.in_order)
    }

    /// Returns one split kind and one packed kind.
    pub fn layouts() -> impl Iterator<Item = Self> {
        Self::rings().filter(|case| case.event_idx)
    }

    /// Returns a guest with this kind of rings and driver.
    pub fn guest(&self) -> GuestBuilder {
        let guest = if self.packed { Guest::builder().packed() } else { Guest::builder().split() };
        let guest = guest.mergeable(self.mergeable).indirect(self.indirect);
        guest.event_idx(self.event_idx).in_order(self.in_order)
    }
}

/// A directory for sockets, removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("offramp-vhost-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("making a directory for sockets");
        Self(path)
    }

    /// Takes ownership of a directory created by another process. The other process removes the directory if this
    /// process is killed.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The settings of a rig.
#[derive(Clone, Debug)]
pub struct RigConfig {
    pub adapter: AdapterConfig,
    pub mode: Mode,
    /// The MTU that the ports report to the guests.
    pub mtu_told: Option<u16>,
    pub mac: Option<[u8; 6]>,
    /// The permitted addresses of the guests.
    pub mac_addresses: Vec<[u8; 6]>,
    pub control_queue: ControlQueue,
    /// True for one thread per port, instead of one thread for both ports.
    pub apart: bool,
    /// The link's rate in bits per second. If `None`, the rate is unlimited.
    pub rate_bps: Option<u64>,
    /// Directory of the sockets. If `None`, the rig creates a new directory.
    pub scratch: Option<Arc<Scratch>>,
    /// Restriction applied to the data threads before they start.
    pub confine_workers: fn(),
    /// Maximum size of a guest's memory, in bytes.
    pub memory_bytes_max: u64,
    /// True for a switch with a third port in place of the cable.
    pub on_switch: bool,
}

impl Default for RigConfig {
    fn default() -> Self {
        let adapter = AdapterConfig { mtu: MTU_MAX, ..AdapterConfig::default() };
        Self {
            adapter,
            mode: Mode::Server,
            mtu_told: None,
            mac: None,
            mac_addresses: Vec::new(),
            control_queue: ControlQueue::default(),
            apart: false,
            rate_bps: None,
            scratch: None,
            confine_workers: || (),
            memory_bytes_max: MEMORY_BYTES_MAX,
            on_switch: false,
        }
    }
}

impl RigConfig {
    /// Returns the settings of an Ethernet with this MTU.
    pub fn mtu(mtu: usize) -> Self {
        Self { adapter: AdapterConfig { mtu, ..AdapterConfig::default() }, ..Self::default() }
    }

    /// Turns off interrupt moderation.
    pub fn unmoderated(mut self) -> Self {
        self.adapter.moderation = ModerationConfig::default();
        self
    }

    pub fn queue_pairs(mut self, pairs: u16) -> Self {
        self.adapter.queues = pairs;
        self
    }
}

/// Running ports and adapters with a cable or a switch.
#[derive(Debug)]
pub struct Rig {
    // The fields are dropped in order of declaration.
    workers: Vec<Worker>,
    pub ports: Vec<VhostUser>,
    pub controls: Vec<Arc<PortControl>>,
    scratch: Arc<Scratch>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(&RigConfig::default())
    }

    pub fn with(config: &RigConfig) -> Self {
        config.adapter.check().expect("a configuration of this test");
        let scratch = config.scratch.clone().unwrap_or_else(|| Arc::new(Scratch::new()));
        let open = |side: usize| {
            let config = VhostUserConfig {
                mode: config.mode,
                queue_pairs: config.adapter.queues,
                mtu: config.mtu_told,
                mac: config.mac,
                mac_addresses: config.mac_addresses.clone(),
                steers: config.on_switch,
                speed_mbps: config.rate_bps.map(|rate| (rate / 1_000_000) as u32),
                control_queue: config.control_queue,
                memory_bytes_max: config.memory_bytes_max,
                ..VhostUserConfig::new(scratch.path(&format!("guest{side}")))
            };
            VhostUser::open(&config).unwrap_or_else(|e| panic!("{e}"))
        };
        let sides = if config.on_switch { 3 } else { 2 };
        let mut ports: Vec<VhostUser> = (0..sides).map(open).collect();
        let controls: Vec<_> = (0..sides).map(|_| PortControl::new(&config.adapter)).collect();
        let workers = if config.on_switch {
            vec![start(config.confine_workers, vec![switch(config, &mut ports, &controls)])]
        } else {
            let pairs = pairs(config, &mut ports, &controls);
            pairs.into_iter().map(|pairs| start(config.confine_workers, pairs)).collect()
        };
        Self { workers, ports, controls, scratch }
    }

    pub fn socket(&self, side: usize) -> &Path {
        &self.ports[side].config().socket
    }

    /// Creates a listener for port `side`, which is a client.
    pub fn listen(&self, side: usize) -> UnixListener {
        UnixListener::bind(self.socket(side)).expect("listening for a port")
    }

    /// Connects a guest to port `side`.
    pub fn guest(&self, side: usize, builder: &GuestBuilder) -> Guest {
        builder.connect(self.socket(side))
    }

    /// Connects a guest to each port.
    pub fn guests(&self, builder: &GuestBuilder) -> [Guest; 2] {
        [self.guest(0, builder), self.guest(1, builder)]
    }

    /// Returns the sum of a counter over all receive queues of port `side`.
    pub fn received(&self, side: usize, count: impl Fn(&Direction) -> u64) -> u64 {
        self.controls[side].queues().iter().map(|queue| count(&queue.receive)).sum()
    }

    /// Returns the sum of a counter over all transmit queues of port `side`.
    pub fn sent(&self, side: usize, count: impl Fn(&Direction) -> u64) -> u64 {
        self.controls[side].queues().iter().map(|queue| count(&queue.transmit)).sum()
    }

    /// Returns the number of frames from port `side` that were lost for one reason.
    pub fn refused(&self, side: usize, reason: Loss) -> u64 {
        self.sent(side, |direction| direction.lost(reason))
    }

    /// Returns the number of unusable chains of port `side`.
    pub fn bad_chains(&self, side: usize) -> u64 {
        self.ports[side].queue_counters().iter().map(|counters| counters.bad_chains.get()).sum()
    }

    /// Returns the number of rings of port `side` that were stopped for an invalid state.
    pub fn broken_rings(&self, side: usize) -> u64 {
        self.ports[side].queue_counters().iter().map(|counters| counters.broken_rings.get()).sum()
    }

    /// Returns whether every worker still runs.
    pub fn is_running(&self) -> bool {
        self.workers.iter().all(Worker::is_running)
    }
}

/// Starts a worker from a confined thread, because a thread inherits the limits of its creator.
fn start<T: Task + 'static>(confine: fn(), tasks: Vec<T>) -> Worker {
    let starter = std::thread::spawn(move || {
        confine();
        Worker::start("vhost-test", tasks, None).expect("starting a worker")
    });
    starter.join().expect("a thread that starts a worker")
}

/// Returns the queue pairs on a cable, grouped by worker.
fn pairs(
    config: &RigConfig,
    ports: &mut [VhostUser],
    controls: &[Arc<PortControl>],
) -> Vec<Vec<CablePair<VhostQueue>>> {
    let line = CableConfig { mtu: config.adapter.mtu, rate_bps: config.rate_bps, ..CableConfig::default() };
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for queue in 0..usize::from(config.adapter.queues) {
        let (a, b) = cable(&line);
        let mut pair = |side: usize, wire| {
            let host = ports[side].queue(queue).expect("a queue that nobody has taken");
            QueuePair::new(&config.adapter, &controls[side], queue, host, wire)
        };
        left.push(pair(0, a));
        right.push(pair(1, b));
    }
    if config.apart {
        vec![left, right]
    } else {
        left.append(&mut right);
        vec![left]
    }
}

fn switch(config: &RigConfig, ports: &mut [VhostUser], controls: &[Arc<PortControl>]) -> Switch<VhostPort> {
    let switch = Switch::new(&SwitchConfig::default());
    for (port, control) in ports.iter_mut().zip(controls) {
        let queues = (0..usize::from(config.adapter.queues)).map(|pair| port.queue(pair).unwrap()).collect();
        // Frames to a silent guest are flooded, and a fast machine would reach the flood limit.
        let config = PortConfig { mtu: config.adapter.mtu, flood_limit: None, ..PortConfig::default() };
        switch.control().add_controlled(VhostPort::new(queues).unwrap(), control, &config).unwrap();
    }
    switch
}

/// Two ports on a switch, polled by one worker.
#[derive(Debug)]
pub struct SwitchRig {
    // The fields are dropped in order of declaration.
    _worker: Worker,
    pub ports: Vec<VhostUser>,
    pub seats: Vec<Arc<SwitchPort>>,
    _scratch: Scratch,
}

impl SwitchRig {
    /// Creates ports with `queue_pairs` queue pairs, and offers the receive offloads `told` to their guests.
    pub fn new(queue_pairs: u16, told: Offloads) -> Self {
        let scratch = Scratch::new();
        let switch = Switch::new(&SwitchConfig::default());
        let offloads = Offloads::RATIFIED | told & Offloads::ACCECN;
        let open = |side: usize| {
            let socket = scratch.path(&format!("guest{side}"));
            let mut port =
                VhostUser::open(&VhostUserConfig { queue_pairs, offloads, ..VhostUserConfig::new(socket) }).unwrap();
            let queues = (0..usize::from(queue_pairs)).map(|pair| port.queue(pair).unwrap()).collect();
            // Frames to a silent guest are flooded, and a fast machine would reach the flood limit.
            let config = PortConfig { flood_limit: None, ..PortConfig::default() };
            let adapter = AdapterConfig {
                offloads: told,
                moderation: config.moderation,
                queues: queue_pairs,
                ..Default::default()
            };
            let control = PortControl::new(&adapter);
            let seat = switch.control().add_controlled(VhostPort::new(queues).unwrap(), &control, &config).unwrap();
            (port, seat)
        };
        let (ports, seats) = (0..2).map(open).unzip();
        let worker = Worker::start("vhost-test", vec![switch], None).expect("starting a worker");
        Self { _worker: worker, ports, seats, _scratch: scratch }
    }

    /// Connects a guest to port `side`.
    pub fn guest(&self, side: usize, builder: &GuestBuilder) -> Guest {
        builder.connect(&self.ports[side].config().socket)
    }
}

/// Checks a received frame against the requirements for every device (V22, V24, V25 and R9 in `docs/vhost-user.md`).
#[track_caller]
pub fn check_received(received: &Received, mergeable: bool, what: &dyn std::fmt::Debug) {
    let chains = &received.chains;
    let expected = if mergeable { chains.len() } else { 1 };
    assert_eq!(usize::from(received.num_buffers), expected, "num_buffers: {what:?}");
    assert!(received.visible_together, "chains of a frame became visible one by one: {what:?}");
    let is_full = |chain: &offramp_testkit::guest::ChainUse| chain.len == chain.capacity;
    assert!(chains.split_last().is_some_and(|(_, before)| before.iter().all(is_full)), "a gap: {what:?}: {chains:?}");
    let written: usize = chains.iter().map(|chain| chain.len as usize).sum();
    assert_eq!(written, received.header.len() + received.frame.len(), "{what:?}");
}

/// Sends a plain frame from one guest to the other, and checks the received frame.
#[track_caller]
pub fn carry(from: &mut Guest, to: &mut Guest, pair: usize, frame: &[u8], what: &dyn std::fmt::Debug) -> Received {
    from.tx(pair).send(&VnetHeader::default(), &[frame]);
    let came = to.rx(pair).recv_within(PATIENCE);
    let received = came.unwrap_or_else(|| panic!("{} bytes did not arrive: {what:?}", frame.len()));
    assert!(received.frame == frame, "{} bytes arrived otherwise: {what:?}", frame.len());
    received
}

/// Starts to log the device's writes, like a frontend that migrates its guest.
pub fn log_writes(guest: &mut Guest, rings: &[RingAddresses]) -> DirtyLog {
    let log = DirtyLog::new(guest.memory());
    let (memory, negotiated) = (guest.memory().clone(), guest.negotiated().features);
    let frontend = guest.frontend();
    frontend.set_log_base(&log).unwrap();
    frontend.set_features(negotiated | features::LOG_ALL).unwrap();
    for (index, ring) in rings.iter().enumerate() {
        let addr = VringAddr::new(&memory, index as u32, *ring).with_log(ring.device);
        frontend.set_vring_addr(&addr).unwrap();
    }
    log
}

/// Segments a super-frame as its header requests, and returns the segments.
pub fn cut(header: &[u8], frame: &[u8]) -> Vec<Vec<u8>> {
    let mut bytes = [0; HEADER_LEN];
    bytes[..header.len()].copy_from_slice(header);
    let meta: TxMeta = decode_tx(&bytes).expect("a header that can be read");
    let mut copy = frame.to_vec();
    let frame = Frame::new(&mut copy, meta);
    let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).expect("a super-frame that can be segmented");
    let mut frames = Vec::new();
    while plan.frames_left() > 0 {
        let mut out = vec![0; plan.next_len()];
        plan.write_next(&frame, &mut out);
        frames.push(out);
    }
    frames
}

/// Returns a random length, often a border value.
pub fn random_len(rng: &mut ChaCha8Rng, max: usize) -> usize {
    match rng.random_range(0..6) {
        0 => 14,
        1 => max,
        2 => rng.random_range(14..=64.min(max)),
        3 => rng.random_range(14..=1514.min(max)),
        _ => rng.random_range(14..=max),
    }
}
