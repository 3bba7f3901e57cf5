//! Measures the effect of a guest, the neighbour, on other guests of the same switch. The benchmark measures round
//! trips between two guests, and the time until a command of one guest is answered and its setting applies. The
//! neighbour is idle, only computes, or sends as fast as possible. A sending neighbour sends frames to itself, bad
//! chains, or control-queue commands that change all rings of the neighbour.
//!
//! `cargo bench -p offramp-ports --bench hostile_neighbour`
//!
//! The switch, the neighbour and the two other guests need a processor each. With fewer processors, the figures include
//! waits for a processor, even while all frames of the neighbour are dropped.

use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_ports::vhost_user::{ControlQueue, VhostPort, VhostUser, VhostUserConfig};
use offramp_ports::worker::Worker;
use offramp_testkit::features;
use offramp_testkit::guest::{ControlQueue as Commands, TxQueue};
use offramp_testkit::{Buffer, Guest, VnetHeader};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of round trips per round for each activity of the neighbour, and number of rounds. The activities take turns,
/// so that other load on the machine affects all of them equally.
const TRIPS: usize = 2000;
const ROUNDS: usize = 15;
/// Number of timed commands per round for each activity of the neighbour, and the pause before each command. The pause
/// is long enough that the limit on a guest's command rate delays no command.
const TIMED_COMMANDS: usize = 40;
const COMMAND_PAUSE: Duration = Duration::from_millis(3);
/// Time between two activities, in which the port finishes the neighbour's pending work.
const REST: Duration = Duration::from_millis(30);
/// Time limit, longer than any round trip takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Length of a frame, and of the virtio header before it, in bytes.
const FRAME_LEN: usize = 100;
const HEADER_LEN: usize = 12;
/// An address outside every guest's memory.
const NOWHERE: u64 = 0xdead_0000_0000;

/// The activities of the neighbour.
const IDLE: u8 = 0;
const GOOD: u8 = 1;
const BAD: u8 = 2;
const COMMANDS: u8 = 3;
const COMPUTES: u8 = 4;
const STATES: [&str; 5] =
    ["that is idle", "with frames to itself", "with bad chains", "with commands", "that only computes"];
const OVER: u8 = 5;
/// Number of queue pairs of the neighbour, and of addresses in its table. High numbers make the neighbour's commands
/// expensive.
const PAIRS: u16 = 8;
const ADDRESSES: u32 = 1000;

fn main() {
    let (rounds, trips) = if std::env::args().any(|arg| arg == "--test") { (1, 20) } else { (ROUNDS, TRIPS) };
    println!(
        "{:<8}{:<24}{:>10}{:>10}{:>12}{:>14}{:>16}{:>10}",
        "ring", "beside a guest", "p50 us", "p99 us", "p99 / idle", "it sends/s", "command p50 us", "p99 us"
    );
    for packed in [false, true] {
        measure(packed, rounds, trips);
    }
}

/// Three ports on a switch. Dropping the ports removes their sockets.
struct Bed {
    ports: Vec<(VhostUser, Arc<SwitchPort>)>,
    _worker: Worker,
}

impl Bed {
    fn new() -> Self {
        let switch = Switch::new(&SwitchConfig::default());
        let open = |number: usize| {
            let name = format!("offramp-neighbour-{}-{number}", std::process::id());
            let socket = std::env::temp_dir().join(name);
            let queue_pairs = if number == 2 { PAIRS } else { 1 };
            let control_queue = ControlQueue::Backend;
            let config = VhostUserConfig { queue_pairs, steers: true, control_queue, ..VhostUserConfig::new(socket) };
            let mut port = VhostUser::open(&config).expect("opening a port");
            let queues = (0..queue_pairs.into()).filter_map(|pair| port.queue(pair)).collect();
            let host = VhostPort::new(queues).expect("a queue");
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

    /// Returns the number of frames that the neighbour has sent, including bad chains.
    fn sent_by_neighbour(&self) -> u64 {
        self.ports[2].1.stats().transmit.frames_in.get()
    }
}

fn measure(packed: bool, rounds: usize, trips: usize) {
    let bed = Bed::new();
    let guest = |number: usize| {
        let guest = if packed { Guest::builder().packed() } else { Guest::builder().split() };
        let of_commands = features::CTRL_RX | features::NOTF_COAL | features::RSS;
        let guest = match number {
            0 => guest.features(features::NOTF_COAL).control_queue(),
            2 => guest.queue_pairs(PAIRS).features(of_commands).control_queue(),
            _ => guest,
        };
        // The two measured guests sleep between frames. On a machine with two processors, these guests can therefore
        // run next to the two threads that never sleep.
        guest.interrupts(number < 2).connect(bed.socket(number))
    };
    let [mut near, mut far, mut neighbour] = [0, 1, 2].map(guest);
    near.rx(0).fill(64, 1526);
    far.rx(0).fill(64, 1526);
    let [out, back] = [frame(1, 2), frame(2, 1)];
    let mut trip = |near: &mut Guest| {
        let began = Instant::now();
        near.tx(0).send(&VnetHeader::default(), &[&out]);
        far.rx(0).recv(PATIENCE);
        far.tx(0).send(&VnetHeader::default(), &[&back]);
        near.rx(0).recv(PATIENCE);
        began.elapsed()
    };
    // After this trip, the switch has learnt every address.
    trip(&mut near);
    let memory = neighbour.memory().clone();
    let good = memory.alloc(4096, 64);
    memory.write(good + HEADER_LEN as u64, &frame(3, 3));
    let (state, commands) = (AtomicU8::new(IDLE), AtomicU64::new(0));
    let [mut times, mut in_force] = [(); 2].map(|()| STATES.map(|_| Vec::new()));
    let mut sent = [(0, 0.0); STATES.len()];
    std::thread::scope(|scope| {
        let (_rx, tx) = neighbour.take_pairs().swap_remove(0);
        let (state, commands, bed, control) = (&state, &commands, &bed, neighbour.control());
        let sent_by_neighbour = scope.spawn(move || be_a_neighbour(tx, control, good, (state, commands)));
        let sent_now = || bed.sent_by_neighbour() + commands.load(Ordering::Relaxed);
        for _ in 0..rounds {
            for now in [IDLE, COMPUTES, GOOD, BAD, COMMANDS] {
                state.store(IDLE, Ordering::Relaxed);
                std::thread::sleep(REST);
                state.store(now, Ordering::Relaxed);
                let (before, began) = (sent_now(), Instant::now());
                times[usize::from(now)].extend((0..trips).map(|_| trip(&mut near)));
                let (count, seconds) = &mut sent[usize::from(now)];
                *count += sent_now() - before;
                *seconds += began.elapsed().as_secs_f64();
                in_force[usize::from(now)].extend((0..TIMED_COMMANDS.min(trips)).map(|nth| command(&mut near, nth)));
            }
        }
        state.store(OVER, Ordering::Relaxed);
        sent_by_neighbour.join().expect("the neighbour");
        let refused = bed.ports[2].0.status().control.map(|control| control.refused);
        assert_eq!(refused, Some(0), "a command changes nothing");
    });
    times.iter_mut().chain(&mut in_force).for_each(|times| times.sort_unstable());
    let usecs = |times: &[Duration], part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    for (state, name) in STATES.iter().enumerate() {
        let [p50, p99] = [50, 99].map(|part| usecs(&times[state], part));
        let (ring, ratio) = (if packed { "packed" } else { "split" }, p99 / usecs(&times[0], 99));
        let (count, seconds) = sent[state];
        let rate = if count == 0 { String::new() } else { format!("{:.0}", count as f64 / seconds) };
        let [command_p50, command_p99] = [50, 99].map(|part| usecs(&in_force[state], part));
        println!(
            "{ring:<8}{name:<24}{p50:>10.1}{p99:>10.1}{ratio:>12.2}{rate:>14}{command_p50:>16.1}{command_p99:>10.1}"
        );
    }
}

/// Returns the time until one command is answered. The command sets the coalescing of transmit notifications on all
/// transmit rings, with values that do not affect the measurements.
fn command(guest: &mut Guest, nth: usize) -> Duration {
    std::thread::sleep(COMMAND_PAUSE);
    let began = Instant::now();
    let answer = guest.control().command(&[&[6, 0], &[(nth % 2) as u8, 0, 0, 0, 0, 0, 0, 0]], &[1]);
    let time = began.elapsed();
    assert_eq!(answer.as_deref(), Some(&[0][..]), "a command that makes sense");
    time
}

/// Returns a frame between two stations, with an EtherType without offloads.
fn frame(from: u8, to: u8) -> Vec<u8> {
    let mut frame = vec![0x5a; FRAME_LEN];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5]);
    frame
}

/// Runs the neighbour. In the states `GOOD` and `BAD`, the neighbour sends chains of one buffer. The buffer is at the
/// address `good` in the state `GOOD`, and outside the guest's memory in the state `BAD`. In the state `COMMANDS`, the
/// neighbour keeps the control ring full of commands, and counts the commands that the device has used.
fn be_a_neighbour(mut tx: TxQueue, control: &mut Commands, good: u64, (state, commands): (&AtomicU8, &AtomicU64)) {
    let chains = command_chains(control);
    let mut chains = chains.iter().cycle();
    loop {
        let addr = match state.load(Ordering::Relaxed) {
            IDLE => {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            COMPUTES => {
                std::hint::spin_loop();
                continue;
            }
            GOOD => good,
            BAD => NOWHERE,
            COMMANDS => {
                while control.ring().take_used().is_some() {
                    commands.fetch_add(1, Ordering::Relaxed);
                }
                while control.ring().free_descriptors() > 1 {
                    let chain = chains.next().expect("commands without end");
                    control.ring().add(chain, &[]).expect("room in the ring");
                }
                control.publish();
                continue;
            }
            _ => return,
        };
        while tx.ring().take_used().is_some() {}
        while tx.ring().add(&[Buffer::readable(addr, HEADER_LEN + FRAME_LEN)], &[]).is_some() {}
        tx.publish();
    }
}

/// Returns chains of commands. Each command changes a setting of all receive rings.
fn command_chains(control: &Commands) -> Vec<[Buffer; 2]> {
    let rss = |first: u16| {
        let mut command = vec![4, 1, 0x3f, 0, 0, 0, 127, 0, 0, 0];
        command.extend((first..first + 128).flat_map(|entry| (entry % PAIRS).to_le_bytes()));
        command.extend([PAIRS as u8, 0, 40]);
        command.extend([0x5a; 40]);
        command
    };
    let table = |first: u32| {
        let mut command = vec![1, 0];
        command.extend(ADDRESSES.to_le_bytes());
        let macs = (first..first + ADDRESSES).flat_map(|n| [2, 1, 0, (n >> 8) as u8, n as u8, 1]);
        command.extend(macs.chain([0; 4]));
        command
    };
    let coalescing = |frames: u8| vec![6, 1, frames, 0, 0, 0, 50, 0, 0, 0];
    let commands = [0, 1].map(|nth| [rss(nth), table(nth.into()), coalescing(nth as u8 + 1), vec![0, 1, nth as u8]]);
    let memory = control.memory();
    let chain = |command: Vec<u8>| {
        let [at, answer] = [command.len() as u64, 1].map(|len| memory.alloc(len, 64));
        memory.write(at, &command);
        [Buffer::readable(at, command.len()), Buffer::writable(answer, 1)]
    };
    commands.into_iter().flatten().map(chain).collect()
}
