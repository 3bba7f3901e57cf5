//! What a guest costs others on the same switch: round trips between two guests beside a neighbour that is idle, that sends
//! frames to itself as fast as it can, and that sends bad chains as fast as it can.
//!
//! `cargo bench -p offramp-ports --bench hostile_neighbour`
//!
//! The switch, the neighbour and the other two want a processor each. With fewer, a part of what is measured is the wait for
//! one; so it is beside frames that go nowhere.

use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_ports::vhost_user::{VhostPort, VhostUser, VhostUserConfig};
use offramp_ports::worker::Worker;
use offramp_testkit::guest::TxQueue;
use offramp_testkit::{Buffer, Guest, VnetHeader};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Round trips of each state in a round, and rounds. The states take turns: what the machine does besides meets all alike.
const TRIPS: usize = 2000;
const ROUNDS: usize = 15;
/// Longer than any round trip takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a frame, and of the header in front of it.
const FRAME_LEN: usize = 100;
const HEADER_LEN: usize = 12;
/// An address where no guest has memory.
const NOWHERE: u64 = 0xdead_0000_0000;

/// What the neighbour does.
const IDLE: u8 = 0;
const GOOD: u8 = 1;
const BAD: u8 = 2;
const STATES: [&str; 3] = ["that is idle", "with frames to itself", "with bad chains"];
const OVER: u8 = 3;

fn main() {
    let (rounds, trips) = if std::env::args().any(|arg| arg == "--test") { (1, 20) } else { (ROUNDS, TRIPS) };
    println!(
        "{:<8}{:<24}{:>10}{:>10}{:>12}{:>14}",
        "ring", "beside a guest", "p50 us", "p99 us", "p99 / idle", "its frames/s"
    );
    for packed in [false, true] {
        measure(packed, rounds, trips);
    }
}

/// Three ports on a switch; their sockets go with them.
struct Bed {
    ports: Vec<(VhostUser, Arc<SwitchPort>)>,
    _worker: Worker,
}

impl Bed {
    fn new() -> Self {
        let switch = Switch::new(&SwitchConfig::default());
        let open = |number: usize| {
            let name = format!("offramp-neighbour-{}-{number}", std::process::id());
            let mut port =
                VhostUser::open(&VhostUserConfig::new(std::env::temp_dir().join(name))).expect("opening a port");
            let host = VhostPort::new(port.queue(0).into_iter().collect()).expect("a queue");
            let config = PortConfig { flood_limit: None, ..PortConfig::default() };
            let place = switch.control().add(host, &config).expect("a place on the switch");
            (port, place)
        };
        let ports = (0..3).map(open).collect();
        Self { ports, _worker: Worker::start("neighbours", vec![switch], None).expect("starting a worker") }
    }

    fn socket(&self, number: usize) -> &PathBuf {
        &self.ports[number].0.config().socket
    }

    /// Frames of the neighbour, bad chains among them.
    fn sent_by_neighbour(&self) -> u64 {
        self.ports[2].1.stats().transmit.frames_in.get()
    }
}

fn measure(packed: bool, rounds: usize, trips: usize) {
    let bed = Bed::new();
    let guest = |number: usize| {
        let guest = if packed { Guest::builder().packed() } else { Guest::builder().split() };
        // They sleep: on two processors there is room for them beside the two threads that never do.
        guest.interrupts(number < 2).connect(bed.socket(number))
    };
    let [mut near, mut far, mut neighbour] = [0, 1, 2].map(guest);
    near.rx(0).fill(64, 1526);
    far.rx(0).fill(64, 1526);
    let [out, back] = [frame(1, 2), frame(2, 1)];
    let mut trip = || {
        let began = Instant::now();
        near.tx(0).send(&VnetHeader::default(), &[&out]);
        far.rx(0).recv(PATIENCE);
        far.tx(0).send(&VnetHeader::default(), &[&back]);
        near.rx(0).recv(PATIENCE);
        began.elapsed()
    };
    // Each address is known from here on.
    trip();
    let memory = neighbour.memory().clone();
    let good = memory.alloc(4096, 64);
    memory.write(good + HEADER_LEN as u64, &frame(3, 3));
    let state = AtomicU8::new(IDLE);
    let mut times = STATES.map(|_| Vec::new());
    let mut sent = [(0, 0.0); STATES.len()];
    std::thread::scope(|scope| {
        let (_rx, tx) = neighbour.take_pairs().pop().expect("a pair");
        let (state, bed) = (&state, &bed);
        let sent_by_neighbour = scope.spawn(move || be_a_neighbour(tx, good, state));
        for _ in 0..rounds {
            for now in [IDLE, GOOD, BAD] {
                state.store(now, Ordering::Relaxed);
                let (before, began) = (bed.sent_by_neighbour(), Instant::now());
                times[usize::from(now)].extend((0..trips).map(|_| trip()));
                let (count, seconds) = &mut sent[usize::from(now)];
                *count += bed.sent_by_neighbour() - before;
                *seconds += began.elapsed().as_secs_f64();
            }
        }
        state.store(OVER, Ordering::Relaxed);
        sent_by_neighbour.join().expect("the neighbour");
    });
    for times in &mut times {
        times.sort_unstable();
    }
    let percentile = |state: usize, part: usize| times[state][times[state].len() * part / 100].as_secs_f64() * 1e6;
    for (state, name) in STATES.iter().enumerate() {
        let (p50, p99) = (percentile(state, 50), percentile(state, 99));
        let (ring, ratio) = (if packed { "packed" } else { "split" }, p99 / percentile(0, 99));
        let rate = format!("{:.0}", sent[state].0 as f64 / sent[state].1);
        let rate = if state == 0 { "" } else { &rate };
        println!("{ring:<8}{name:<24}{p50:>10.1}{p99:>10.1}{ratio:>12.2}{rate:>14}");
    }
}

/// A frame between two stations, which no offload looks into.
fn frame(from: u8, to: u8) -> Vec<u8> {
    let mut frame = vec![0x5a; FRAME_LEN];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5]);
    frame
}

/// The neighbour: chains of one buffer, which has a frame at `good` or lies where the guest has no memory.
fn be_a_neighbour(mut tx: TxQueue, good: u64, state: &AtomicU8) {
    loop {
        let addr = match state.load(Ordering::Relaxed) {
            IDLE => {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            GOOD => good,
            BAD => NOWHERE,
            _ => return,
        };
        while tx.ring().take_used().is_some() {}
        while tx.ring().add(&[Buffer::readable(addr, HEADER_LEN + FRAME_LEN)], &[]).is_some() {}
        tx.publish();
    }
}
