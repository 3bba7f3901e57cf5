//! Measures the cost per received frame of a guest's own settings: RSS, hashes in headers, and filters.
//!
//! `cargo bench -p offramp-ports --bench control_queue` makes one guest send small frames of many flows to another
//! guest over a switch. Several pairs of guests take turns, each with different settings of the receiver's control
//! queue. The benchmark prints medians, and the additional cost of each setting. The guests are scripted drivers in
//! this process, and their work is not timed. Figures are meaningful only on an otherwise idle processor. `--test` runs
//! the benchmark with minimal work.

use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_ports::vhost_user::{ControlQueue, VhostPort, VhostUser, VhostUserConfig};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::{Guest, VnetHeader};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of samples of each setting, taken in turn. The median is reported.
const SAMPLES: usize = 301;
/// Number of batches in a sample, and of warm-up batches before a sample.
const BATCHES: usize = 16;
const WARMING_BATCHES: usize = 4;
/// Number of frames in a batch.
const FRAMES: usize = 128;
const FLOWS: u16 = 64;
/// Number of queue pairs of the receiver.
const PAIRS: u16 = 8;
/// Number of descriptors of a ring, number of buffers in a receive ring, and length of a buffer in bytes.
const QUEUE_SIZE: u16 = 256;
const BUFFERS: usize = 64;
const BUFFER_LEN: usize = 256;
/// Length of a frame in bytes, without FCS and VLAN tag.
const FRAME_LEN: usize = 60;
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RECEIVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// An address in the receiver's address table, and a VLAN in the receiver's filter.
const OF_TABLE: [u8; 6] = [2, 0, 0, 0, 1, 16];
const VID: u8 = 5;
/// Number of station addresses and of group addresses in the receiver's table.
const ADDRESSES: u8 = 32;
const KEY_LEN: u8 = 40;
/// Time limit, longer than any sample takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The negotiated features and settings of a receiver, and the form of its frames.
struct Setting {
    name: &'static str,
    features: u64,
    commands: Vec<Vec<u8>>,
    to: [u8; 6],
    is_tagged: bool,
    /// The index of the setting with which this setting is compared.
    beside: usize,
}

impl Setting {
    fn new(name: &'static str, features: u64, commands: &[Vec<u8>]) -> Self {
        let pairs = [&[4, 0][..], &PAIRS.to_le_bytes()].concat();
        let commands = [&[pairs][..], commands].concat();
        Self { name, features, commands, to: RECEIVER, is_tagged: false, beside: 0 }
    }
}

fn settings() -> Vec<Setting> {
    let rss = {
        let mut command = vec![4, 1, 0x3f, 0, 0, 0, 127, 0, 0, 0];
        command.extend((0..128_u16).flat_map(|entry| (entry % PAIRS).to_le_bytes()));
        command.extend(PAIRS.to_le_bytes());
        command.push(KEY_LEN);
        command.extend(key());
        command
    };
    let hash = [&[4, 2, 0x3f, 0, 0, 0][..], &[0; 8], &[KEY_LEN], &key()].concat();
    let table = {
        let mut command = vec![1, 0];
        for first in [2, 1] {
            command.extend(u32::from(ADDRESSES).to_le_bytes());
            command.extend((0..ADDRESSES).flat_map(|last| [first, 0, 0, 0, 1, last]));
        }
        command
    };
    let vlan = vec![2, 0, VID, 0];
    let filters = features::CTRL_RX | features::CTRL_VLAN;
    let all = features::RSS | features::HASH_REPORT | filters;
    let tables = [table.clone(), vlan.clone()];
    vec![
        Setting::new("none", 0, &[]),
        Setting::new("none, once more", 0, &[]),
        Setting::new("RSS", features::RSS, std::slice::from_ref(&rss)),
        Setting::new("hash report", features::HASH_REPORT, &[hash]),
        Setting {
            beside: 2,
            ..Setting::new("RSS and hash report", features::RSS | features::HASH_REPORT, std::slice::from_ref(&rss))
        },
        Setting::new("filter, to its own address", filters, &tables),
        Setting { to: OF_TABLE, ..Setting::new("none, to another address", 0, &[]) },
        Setting { to: OF_TABLE, beside: 6, ..Setting::new("filter, to an address of its table", filters, &tables) },
        Setting { is_tagged: true, ..Setting::new("none, with a tag", 0, &[]) },
        Setting { is_tagged: true, beside: 8, ..Setting::new("filter, with a tag of its table", filters, &tables) },
        Setting::new("all of these", all, &[rss, table, vlan]),
    ]
}

fn key() -> Vec<u8> {
    (0..KEY_LEN).map(|at| at.wrapping_mul(37).wrapping_add(11)).collect()
}

fn main() {
    let samples = if std::env::args().any(|arg| arg == "--test") { 1 } else { SAMPLES };
    for packed in [false, true] {
        let mut beds: Vec<Bed> = settings().into_iter().map(|setting| Bed::new(setting, packed)).collect();
        for _ in 0..samples {
            beds.iter_mut().for_each(Bed::sample);
        }
        let kind = if packed { "packed" } else { "split" };
        println!(
            "{kind} rings, frames of {FRAME_LEN} bytes of {FLOWS} flows, {PAIRS} queue pairs, median of {samples} samples"
        );
        println!("  {:<36} {:>10} {:>10}  than", "the receiver has set", "ns a frame", "more, ns");
        let medians: Vec<f64> = beds.iter_mut().map(Bed::median_ns).collect();
        for (bed, median_ns) in beds.iter().zip(&medians) {
            let beside = bed.setting.beside;
            let (name, more_ns) = (bed.setting.name, median_ns - medians[beside]);
            println!("  {name:<36} {median_ns:>10.1} {more_ns:>10.1}  {}", beds[beside].setting.name);
        }
    }
}

/// Two guests on a switch polled by this thread.
struct Bed {
    setting: Setting,
    switch: Switch<VhostPort>,
    sender: Guest,
    receiver: Guest,
    place: Arc<SwitchPort>,
    frames: Vec<Vec<u8>>,
    now_ns: u64,
    samples_ns: Vec<f64>,
    _ports: [VhostUser; 2],
}

impl Bed {
    fn new(setting: Setting, packed: bool) -> Self {
        let mut switch: Switch<VhostPort> = Switch::new(&SwitchConfig::default());
        let open = |queue_pairs, mac| {
            let config = VhostUserConfig {
                queue_pairs,
                mac: Some(mac),
                steers: true,
                control_queue: ControlQueue::Backend,
                ..VhostUserConfig::new(socket())
            };
            let mut port = VhostUser::open(&config).expect("opening a port");
            let queues = (0..queue_pairs.into()).filter_map(|pair| port.queue(pair)).collect();
            let host = VhostPort::new(queues).expect("a queue");
            let place = switch.control().add(host, &PortConfig { flood_limit: None, ..PortConfig::default() });
            (port, place.expect("a place on the switch"))
        };
        let ([(near, _), (far, place)], mut now_ns) = ([open(1, SENDER), open(PAIRS, RECEIVER)], 0);
        let guest = |pairs: u16, features| {
            let protocol = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS | protocol::CONFIG;
            let guest = if packed { Guest::builder().packed() } else { Guest::builder().split() };
            let guest = guest.queue_size(QUEUE_SIZE).queue_pairs(pairs).mergeable(true).protocol_features(protocol);
            guest.features(features).control_queue()
        };
        let sender = guest(1, 0);
        let receiver = guest(PAIRS, setting.features | features::MQ);
        let [of_sender, of_receiver] = [&near, &far].map(|port| port.config().socket.clone());
        let commands = setting.commands.clone();
        let connecting = std::thread::spawn(move || {
            let sender = sender.connect(of_sender);
            let mut receiver = receiver.connect(of_receiver);
            for command in &commands {
                let answer = receiver.control().command(&[command], &[1]);
                assert_eq!(answer, Some(vec![0]), "{command:?}");
            }
            // Make the switch learn the port of the receiver's addresses.
            for from in [RECEIVER, OF_TABLE] {
                receiver.tx(0).send(&VnetHeader::default(), &[&frame(0, SENDER, from, false)]);
            }
            (sender, receiver)
        });
        while !connecting.is_finished() {
            now_ns += 1000;
            switch.poll(now_ns);
            std::thread::yield_now();
        }
        let (sender, mut receiver) = connecting.join().expect("two guests");
        for pair in 0..PAIRS {
            receiver.rx(pair.into()).fill(BUFFERS, BUFFER_LEN);
        }
        let frames = (0..FLOWS).map(|flow| frame(flow, setting.to, SENDER, setting.is_tagged)).collect();
        let ports = [near, far];
        let samples_ns = Vec::new();
        let mut bed = Self { setting, switch, sender, receiver, place, frames, now_ns, samples_ns, _ports: ports };
        // The port determines the receive pairs of its guest at the end of this first batch.
        bed.batch_ns(1);
        bed
    }

    fn sample(&mut self) {
        (0..WARMING_BATCHES).for_each(|_| _ = self.batch_ns(FRAMES));
        let sum: f64 = (0..BATCHES).map(|_| self.batch_ns(FRAMES)).sum();
        self.samples_ns.push(sum / BATCHES as f64);
    }

    /// Returns the mean time per frame for `count` frames, in nanoseconds.
    fn batch_ns(&mut self, count: usize) -> f64 {
        for frame in self.frames.iter().cycle().take(count) {
            self.sender.tx(0).stage(&VnetHeader::default(), &[frame]).expect("room in the ring");
        }
        self.sender.tx(0).publish();
        let received = || self.place.stats().receive.frames_out.get();
        let target = received() + count as u64;
        let begun = Instant::now();
        while received() < target {
            self.now_ns += 1000;
            self.switch.poll(self.now_ns);
            assert!(begun.elapsed() < PATIENCE, "{}: {:?}", self.setting.name, self.place.stats().receive);
        }
        let took_ns = begun.elapsed().as_nanos() as f64 / count as f64;
        self.now_ns += 1000;
        self.switch.poll(self.now_ns);
        let mut frames = 0;
        for pair in 0..PAIRS {
            while self.receiver.rx(pair.into()).try_recv().is_some() {
                frames += 1;
            }
        }
        assert_eq!(frames, count, "{}", self.setting.name);
        while self.sender.tx(0).take_used().is_some() {}
        took_ns
    }

    fn median_ns(&mut self) -> f64 {
        self.samples_ns.sort_by(f64::total_cmp);
        self.samples_ns[self.samples_ns.len() / 2]
    }
}

fn socket() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("offramp-settings-{}-{number}", std::process::id()))
}

/// Returns a frame with UDP or TCP over IPv4, alternating by flow, without offloads.
fn frame(flow: u16, to: [u8; 6], from: [u8; 6], is_tagged: bool) -> Vec<u8> {
    let is_tcp = flow % 2 == 1;
    let tag: &[u8] = if is_tagged { &[0x81, 0, 0, VID] } else { &[] };
    let protocol = if is_tcp { 6 } else { 17 };
    let ip = [0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let mut transport = [0; 26];
    transport[..2].copy_from_slice(&(1000 + flow).to_be_bytes());
    transport[2..4].copy_from_slice(&(2000 + 7 * flow).to_be_bytes());
    if is_tcp {
        transport[12..14].copy_from_slice(&[0x50, 0x10]);
    } else {
        transport[4..6].copy_from_slice(&26_u16.to_be_bytes());
    }
    [&to[..], &from, tag, &[8, 0], &ip, &transport].concat()
}
