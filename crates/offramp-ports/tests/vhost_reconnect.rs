//! Tests of guests and backends that connect and disconnect under traffic. No resource may leak, no traffic may stall,
//! and no frame may arrive twice.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, Scratch, carry, frame, rng, wait_until};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use offramp_adapter::port::PortError;
use offramp_adapter::stats::Direction;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_ports::vhost_user::{Mode, VhostPort, VhostUser, VhostUserConfig, VhostUserError};
use offramp_ports::worker::{Task, Watch, Worker};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{DirtyLog, Header, VringAddr, request};
use offramp_testkit::process::is_alone;
use offramp_testkit::{Frontend, Guest, GuestMemory, PeerError, RegionSpec, RxQueue, TxQueue, VnetHeader};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The resources of this process that could leak. Only a test that runs alone can compare these resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    /// Number of file mappings: guest memory and dirty logs.
    file_mappings: usize,
    /// Number of all mappings, including stacks and the slightly varying number of the allocator's mappings.
    mappings: usize,
}

/// Permitted variation of the allocator's number of mappings.
const ALLOCATOR_SLACK: usize = 16;

impl Held {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).expect("reading /proc/self").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("reading /proc/self/maps");
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            file_mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            mappings: maps.lines().count(),
        }
    }

    fn is_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.file_mappings <= before.file_mappings
            && self.mappings <= before.mappings + ALLOCATOR_SLACK
    }
}

#[track_caller]
fn expect_no_more_than(before: &Held) {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = Held::now();
        if now.is_no_more_than(before) {
            return;
        }
        assert!(Instant::now() < end, "held after {PATIENCE:?}: {now:?}, before: {before:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes a number into a frame.
fn numbered(frame: &mut [u8], number: u32) {
    frame[20..24].copy_from_slice(&number.to_le_bytes());
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_le_bytes([frame[20], frame[21], frame[22], frame[23]])
}

/// Takes the received frames, and checks that they are complete, in order and not duplicated.
#[track_caller]
fn take_in_order(rx: &mut RxQueue, model: &[u8], last: &mut Option<u32>, what: &dyn std::fmt::Debug) {
    while let Some(received) = rx.try_recv() {
        let number = number_of(&received.frame);
        assert!(last.is_none_or(|last| number > last), "{what:?}: {number} behind {last:?}");
        *last = Some(number);
        let mut expected = model.to_vec();
        numbered(&mut expected, number);
        assert!(received.frame == expected, "{what:?}: frame {number} is not as it was sent");
    }
}

#[test]
fn two_hundred_frontends_that_die_under_traffic_leave_nothing_behind() {
    const ROUNDS: usize = 200;
    if !is_alone("vhost_reconnect::two_hundred_frontends_that_die_under_traffic_leave_nothing_behind") {
        return;
    }
    let mut rng = rng();
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let mut b = rig.guest(1, &case.guest());
        b.rx(0).fill(128, 1526);
        let mut before = None;
        let model = frame(&mut rng, 700);
        let (mut sent, mut last) = (0, None);
        for round in 0..ROUNDS {
            let mut a = rig.guest(0, &case.guest());
            a.rx(0).fill(64, 1526);
            // Send traffic in both directions, some of it in flight when the frontend dies.
            for _ in 0..rng.random_range(1..60) {
                let mut frame = model.clone();
                numbered(&mut frame, sent);
                sent += 1;
                a.tx(0).stage(&VnetHeader::default(), &[&frame]);
                b.tx(0).send(&VnetHeader::default(), &[&frame]);
            }
            a.tx(0).publish();
            if round % 2 == 0 {
                a.rx(0).recv(PATIENCE);
            }
            drop(a);
            take_in_order(b.rx(0), &model, &mut last, &(case, round));
            if round == 20 {
                wait_until("the end of the first twenty", || !rig.ports[0].status().is_connected);
                before = Some(Held::now());
            }
        }
        wait_until("the end of the last", || !rig.ports[0].status().is_connected);
        expect_no_more_than(&before.expect("more than twenty rounds"));
        assert_eq!(rig.ports[0].channel_counters().connections.get(), ROUNDS as u64, "{case:?}");
        assert_eq!(rig.ports[0].channel_counters().refused_connections.get(), 0, "{case:?}");
        assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), 0, "{case:?}");
        // The remaining guest can still send, and a new guest receives its frames.
        while b.rx(0).recv_within(Duration::from_millis(50)).is_some() {}
        let mut a = rig.guest(0, &case.guest());
        a.rx(0).fill(8, 1526);
        carry(&mut b, &mut a, 0, &model, &case);
        carry(&mut a, &mut b, 0, &model, &case);
    }
}

#[test]
fn a_client_finds_its_frontend_again_and_again() {
    const ROUNDS: usize = 20;
    let model = frame(&mut rng(), 200);
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig { mode: Mode::Client, ..RigConfig::mtu(1500) });
        let listeners = [rig.listen(0), rig.listen(1)];
        let mut b = case.guest().accept(&listeners[1]);
        b.rx(0).fill(32, 1526);
        for round in 0..ROUNDS {
            let mut a = case.guest().accept(&listeners[0]);
            a.rx(0).fill(32, 1526);
            carry(&mut a, &mut b, 0, &model, &(case, round));
            carry(&mut b, &mut a, 0, &model, &(case, round));
        }
        assert!(rig.ports[0].channel_counters().connections.get() >= ROUNDS as u64);
    }
}

#[test]
fn a_port_that_is_opened_before_its_frontend_listens_waits_for_it() {
    let rig = Rig::with(&RigConfig { mode: Mode::Client, ..RigConfig::mtu(1500) });
    std::thread::sleep(Duration::from_millis(250));
    let listeners = [rig.listen(0), rig.listen(1)];
    let [mut a, mut b] = [&listeners[0], &listeners[1]].map(|listener| Guest::builder().accept(listener));
    b.rx(0).fill(4, 1526);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"a late listener");
}

#[test]
fn a_guest_goes_on_when_its_backend_is_restarted() {
    let model = frame(&mut rng(), 300);
    for case in Case::all().filter(|case| !case.indirect && case.mergeable) {
        let scratch = Arc::new(Scratch::new());
        let config = RigConfig { scratch: Some(scratch), ..RigConfig::mtu(1500) };
        let mut rig = Rig::with(&config);
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(16, 1526);
        for round in 0..10 {
            for _ in 0..30 {
                carry(&mut a, &mut b, 0, &model, &(case, round));
            }
            a.tx(0).drain(PATIENCE);
            let sockets = [rig.socket(0).to_owned(), rig.socket(1).to_owned()];
            drop(rig);
            assert!(!sockets[0].exists(), "a server takes its socket with it");
            rig = Rig::with(&config);
            if case.packed {
                // While chains are in flight, the driver of a packed ring cannot determine the backend's position in
                // the ring, so reset the rings.
                a.reset_rings();
                b.reset_rings();
            }
            a.reconnect(&sockets[0]);
            b.reconnect(&sockets[1]);
            if case.packed {
                b.rx(0).fill(16, 1526);
            }
        }
        carry(&mut a, &mut b, 0, &model, &case);
    }
}

/// Environment variable with the directory for the sockets of a backend in a separate process.
const SOCKETS: &str = "OFFRAMP_TEST_SOCKETS";

/// A backend in a process that can be killed.
struct Backend(std::process::Child);

impl Backend {
    fn start(scratch: &Scratch) -> Self {
        let program = std::env::current_exe().expect("the path of this program");
        let mut command = std::process::Command::new(program);
        command.args([
            "--exact",
            "vhost_reconnect::a_backend_in_a_process_of_its_own",
            "--ignored",
            "--test-threads=1",
        ]);
        command.env(SOCKETS, scratch.path("")).stdout(std::process::Stdio::null());
        Self(command.spawn().expect("starting a backend"))
    }
}

/// Kills the process with SIGKILL.
impl Drop for Backend {
    fn drop(&mut self) {
        self.0.kill().expect("killing the backend");
        self.0.wait().expect("waiting for its end");
    }
}

/// Runs the backend for other tests. Does nothing unless another test starts this test in a separate process.
#[test]
#[ignore = "started by another test"]
fn a_backend_in_a_process_of_its_own() {
    let Some(path) = std::env::var_os(SOCKETS) else { return };
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).expect("dying with the test");
    let scratch = Some(Arc::new(Scratch::at(path.into())));
    let _rig = Rig::with(&RigConfig { scratch, apart: true, ..RigConfig::mtu(1500) });
    loop {
        std::thread::park();
    }
}

/// Sends numbered frames while backends are killed at random times and replaced. The driver resends chains that the
/// killed backend had not returned, so the frames of these chains arrive. The driver resends no other frame, so each of
/// the other frames arrives at most once.
#[test]
fn a_guest_goes_on_when_its_backend_is_killed_in_the_middle() {
    const ROUNDS: usize = 25;
    let mut rng = rng();
    let model = frame(&mut rng, 300);
    for case in Case::rings() {
        let scratch = Scratch::new();
        let mut backend = Backend::start(&scratch);
        // Use a ring size that is not a power of two where possible, and chains of two descriptors.
        let size = if case.packed { 101 } else { 128 };
        let builder = case.guest().queue_size(size).inflight();
        let sockets = [scratch.path("guest0"), scratch.path("guest1")];
        let [mut a, mut b] = [0, 1].map(|side| builder.connect(&sockets[side]));
        b.rx(0).fill(100, 1526);
        let (mut sent, mut came): (u32, Vec<u32>) = (0, Vec::new());
        for round in 0..ROUNDS {
            let mut in_ring = std::collections::BTreeMap::new();
            for _ in 0..rng.random_range(1..50) {
                let mut frame = model.clone();
                numbered(&mut frame, sent);
                let id = a.tx(0).stage(&VnetHeader::default(), &[&frame]).expect("room in an empty ring");
                in_ring.insert(id, sent);
                sent += 1;
            }
            a.tx(0).publish();
            // The kill can happen at any time from before the first frame until after the last frame.
            std::thread::sleep(Duration::from_micros(rng.random_range(0..600)));
            drop(backend);
            while let Some(used) = a.tx(0).take_used() {
                in_ring.remove(&used.id).expect("a chain of this round");
            }
            let before = came.len();
            let take = |b: &mut Guest, came: &mut Vec<u32>, from: usize| {
                while let Some(received) = b.rx(0).try_recv() {
                    let number = number_of(&received.frame);
                    assert!(came[from..].last().is_none_or(|last| number > *last), "{case:?}, round {round}: order");
                    let mut expected = model.clone();
                    numbered(&mut expected, number);
                    assert!(received.frame == expected, "{case:?}, round {round}: frame {number}");
                    came.push(number);
                }
            };
            take(&mut b, &mut came, before);
            let restarted = came.len();
            backend = Backend::start(&scratch);
            // Reconnect the receiver first: resent frames must find a receiver.
            b.reconnect(&sockets[1]);
            a.reconnect(&sockets[0]);
            a.tx(0).kick();
            let mut last = model.clone();
            numbered(&mut last, sent);
            a.tx(0).send(&VnetHeader::default(), &[&last]);
            wait_until("the last frame", || {
                take(&mut b, &mut came, restarted);
                came.last() == Some(&sent)
            });
            a.tx(0).drain(PATIENCE);
            let again: Vec<_> = came[restarted..].iter().filter(|&number| *number != sent).collect();
            let mut expected: Vec<_> = in_ring.values().collect();
            expected.sort_unstable();
            assert_eq!(again, expected, "{case:?}, round {round}: exactly what was not given back is sent again");
            sent += 1;
        }
    }
}

#[test]
fn calls_that_lead_into_each_other_hold_no_thread() {
    // The two sockets of a socket pair are the call descriptors of two rings. After the guest has gone, only the
    // backend holds the two sockets.
    let scratch = Scratch::new();
    let backend = Backend::start(&scratch);
    let call_threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", backend.0.id())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "ofr-call").count()
    };
    let [mut a, mut b] = [0, 1].map(|side| Guest::builder().connect(scratch.path(&format!("guest{side}"))));
    a.rx(0).fill(64, 1526);
    let ends = UnixStream::pair().unwrap();
    let ends = [ends.0, ends.1];
    for (vring, end) in ends.iter().enumerate() {
        end.set_nonblocking(true).unwrap();
        while (&mut &*end).write(&[0; 4096]).is_ok() {}
        end.set_nonblocking(false).unwrap();
        a.frontend().set_vring_call(vring as u32, Some(end.as_fd())).unwrap();
    }
    drop(ends);
    // A thread sets its own name, so a thread can exist for a while without the name.
    wait_until("a thread for each call", || call_threads() == 2);
    let frame = frame(&mut rng(), 100);
    for _ in 0..20 {
        a.rx(0).ring().enable_interrupts();
        a.tx(0).ring().enable_interrupts();
        carry(&mut b, &mut a, 0, &frame, &"calls into each other");
        a.tx(0).send(&VnetHeader::default(), &[&frame]);
    }
    drop(a);
    wait_until("the end of the threads", || call_threads() == 0);
}

/// Returns the number of connections in the test with a storm of connections. `.ci/nightly` uses 10,000.
fn storm_connections() -> usize {
    std::env::var("OFFRAMP_STORM_CONNECTIONS").map_or(1000, |number| number.parse().expect("a number"))
}

/// Returns the resident memory of this process, in bytes (proc(5), `VmRSS`).
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Runs up to `steps` steps of a frontend's handshake. An error ends the handshake, because another connection may
/// occupy the port.
fn shake_hands(frontend: &mut Frontend, guest: &GuestMemory, event: &EventFd, steps: usize) -> Result<(), PeerError> {
    let ring = |index: u32| VringAddr {
        index,
        descriptors: guest.user_addr(0x10_0000 + u64::from(index) * 0x1_0000),
        available: guest.user_addr(0x10_4000 + u64::from(index) * 0x1_0000),
        used: guest.user_addr(0x10_8000 + u64::from(index) * 0x1_0000),
        ..VringAddr::default()
    };
    for step in 0..steps {
        let vring = (step / 7 % 2) as u32;
        match step {
            0 => frontend.get_features().map(drop)?,
            1 => frontend.get_protocol_features().map(drop)?,
            2 => frontend.set_protocol_features(protocol::REPLY_ACK | protocol::INFLIGHT_SHMFD)?,
            3 => frontend.set_owner()?,
            4 => frontend.set_features(features::VERSION_1 | features::PROTOCOL_FEATURES)?,
            5 => frontend.get_inflight_fd(2, 64).and_then(|inflight| frontend.set_inflight_fd(&inflight))?,
            6 => frontend.set_mem_table(guest)?,
            _ => match step % 7 {
                0 => frontend.set_vring_num(vring, 64)?,
                1 => frontend.set_vring_base(vring, 0)?,
                2 => frontend.set_vring_addr(&ring(vring))?,
                3 => frontend.set_vring_call(vring, Some(event.as_fd()))?,
                4 => frontend.set_vring_kick(vring, Some(event.as_fd()))?,
                5 => frontend.set_vring_enable(vring, true)?,
                _ => frontend.get_vring_base(vring).map(drop)?,
            },
        }
    }
    Ok(())
}

/// Connects `connections` times, and disconnects after a random step of the handshake, at times in the middle of a
/// message.
fn storm(seed: u64, socket: &Path, connections: usize) {
    const STEPS: usize = 21;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let guest = GuestMemory::new(&[RegionSpec::new(0x10_0000, 1 << 20)]);
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
    let half = Header::new(request::SET_FEATURES, 8).to_bytes();
    for _ in 0..connections {
        let mut frontend = Frontend::connect(socket);
        let steps = rng.random_range(0..=STEPS);
        if shake_hands(&mut frontend, &guest, &event, steps).is_ok() {
            match rng.random_range(0..3) {
                0 => frontend.send_bytes(&half[..rng.random_range(1..half.len())], &[event.as_fd()]),
                // Request an answer that nobody reads.
                1 => frontend.send_raw(Header::new(request::GET_FEATURES, 0), &[], &[]),
                _ => true,
            };
        }
    }
}

#[test]
fn after_a_storm_of_connections_at_any_point_of_the_handshake_each_right_one_is_accepted() {
    const AFTERWARDS: u32 = 300;
    if !is_alone(
        "vhost_reconnect::after_a_storm_of_connections_at_any_point_of_the_handshake_each_right_one_is_accepted",
    ) {
        return;
    }
    let rig = Rig::with(&RigConfig::mtu(1500));
    let model = frame(&mut rng(), 100);
    let right = Guest::builder().memory(&[RegionSpec::new(0x4000_0000, 4 << 20)]);
    let mut b = rig.guest(1, &right);
    b.rx(0).fill(64, 1526);
    let seed: u64 = rng().random();
    storm(seed, rig.socket(0), 100);
    drop(rig.guest(0, &right));
    let counters = rig.ports[0].channel_counters();
    wait_until("the end of the first", || !rig.ports[0].status().is_connected);
    let (before, resident) = (Held::now(), resident_bytes());
    let connections = storm_connections();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let socket = rig.socket(0);
            scope.spawn(move || storm(seed + thread, socket, connections / 2));
        }
    });
    println!(
        "{connections} connections in a storm: {:.0} a second",
        connections as f64 / began.elapsed().as_secs_f64()
    );
    let refused = counters.refused_connections.get();
    // Each frontend connects after the previous one has disconnected, half of them in the middle of a message. During
    // each connection, a frame crosses.
    let mut seconds = [0.0, 0.0];
    for nth in 0..AFTERWARDS {
        let began = Instant::now();
        let mut a = rig.guest(0, &right);
        carry(&mut a, &mut b, 0, &model, &nth);
        seconds[nth as usize % 2] += began.elapsed().as_secs_f64();
        if nth % 2 == 0 {
            a.frontend().send_bytes(&[1, 0, 0], &[]);
        }
    }
    let rate = |connections: u32, seconds: f64| f64::from(connections) / seconds;
    println!("right ones afterwards: {:.0} a second", rate(AFTERWARDS, seconds[0] + seconds[1]));
    let [after_whole, after_half] = seconds.map(|seconds| 1e6 / rate(AFTERWARDS / 2, seconds));
    println!("after a whole message {after_whole:.0} us each, after half of one {after_half:.0} us");
    assert_eq!(counters.refused_connections.get(), refused);
    wait_until("the end of the last", || !rig.ports[0].status().is_connected);
    expect_no_more_than(&before);
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 8 << 20, "{grown} bytes more than before");
}

#[test]
fn opening_and_closing_ports_leaves_nothing_behind() {
    if !is_alone("vhost_reconnect::opening_and_closing_ports_leaves_nothing_behind") {
        return;
    }
    let model = frame(&mut rng(), 300);
    let round = || {
        let rig = Rig::with(&RigConfig::mtu(1500).queue_pairs(3));
        let [mut a, mut b] = rig.guests(&Guest::builder().queue_pairs(3));
        b.rx(2).fill(16, 1526);
        carry(&mut a, &mut b, 2, &model, &"open and close");
        // Drop the ports while the guests are still connected.
        drop(rig);
        assert!(a.frontend().is_closed_within(PATIENCE));
    };
    round();
    let before = Held::now();
    for _ in 0..30 {
        round();
    }
    expect_no_more_than(&before);
}

#[test]
fn what_is_no_socket_is_never_replaced_by_one() {
    let scratch = Scratch::new();
    let (file, directory, link) = (scratch.path("file"), scratch.path("directory"), scratch.path("link"));
    std::fs::write(&file, "precious").unwrap();
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &directory, &link] {
        let error = VhostUser::open(&VhostUserConfig::new(path)).map(|_| ()).unwrap_err();
        assert!(matches!(&error, VhostUserError::NoSocket(named) if named == path), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "precious");
}

#[test]
fn a_port_that_ends_leaves_the_socket_of_another_that_has_its_place() {
    let scratch = Scratch::new();
    let config = VhostUserConfig::new(scratch.path("port"));
    let first = VhostUser::open(&config).unwrap();
    std::fs::remove_file(&config.socket).unwrap();
    let second = VhostUser::open(&config).unwrap();
    first.remove_socket();
    drop(first);
    assert!(config.socket.exists());
    second.remove_socket();
    assert!(!config.socket.exists());
    // The socket file left by a dead port is replaced.
    drop(std::os::unix::net::UnixListener::bind(&config.socket).unwrap());
    drop(VhostUser::open(&config).unwrap());
    assert!(!config.socket.exists());
}

#[test]
fn a_port_that_cannot_be_opened_leaves_nothing_behind() {
    if !is_alone("vhost_reconnect::a_port_that_cannot_be_opened_leaves_nothing_behind") {
        return;
    }
    let scratch = Scratch::new();
    let good = VhostUserConfig::new(scratch.path("port"));
    let mut first = VhostUser::open(&good).unwrap();
    // Drop the queue, so that the port need not wait for the queue.
    drop(first.queue(0));
    let before = Held::now();
    for _ in 0..20 {
        let refused = |config: VhostUserConfig| VhostUser::open(&config).map(|_| ()).unwrap_err();
        assert!(matches!(refused(good.clone()), VhostUserError::SocketInUse(_)));
        let nowhere = VhostUserConfig::new(scratch.path("no/such/directory"));
        let error = refused(nowhere);
        assert!(
            matches!(error, VhostUserError::Listening { .. }) && error.to_string().contains("; create the directory")
        );
        for queue_pairs in [0, 129] {
            let config = VhostUserConfig { queue_pairs, ..good.clone() };
            assert!(matches!(refused(config), VhostUserError::QueuePairs { .. }));
        }
        for queue_size_max in [0, 32_769] {
            let config = VhostUserConfig { queue_size_max, ..good.clone() };
            assert!(matches!(refused(config), VhostUserError::QueueSize { .. }));
        }
        for mtu in [0, 67] {
            let config = VhostUserConfig { mtu: Some(mtu), ..good.clone() };
            assert!(matches!(refused(config), VhostUserError::Mtu { .. }));
        }
    }
    expect_no_more_than(&before);
    assert!(good.socket.exists(), "the first port's socket is its own");
    drop(first);
    // A socket left by a dead backend is replaced.
    drop(std::os::unix::net::UnixListener::bind(&good.socket).unwrap());
    drop(VhostUser::open(&good).unwrap());
    assert!(!good.socket.exists());
}

#[test]
fn a_frontend_that_comes_while_no_descriptor_is_left_is_answered_when_there_is_one_again() {
    if !is_alone(
        "vhost_reconnect::a_frontend_that_comes_while_no_descriptor_is_left_is_answered_when_there_is_one_again",
    ) {
        return;
    }
    let rig = Rig::with(&RigConfig::mtu(1500));
    // Set a limit low enough to be reached at once.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 256, most).unwrap();
    let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    taken.pop();
    // The last free descriptor is used by the frontend itself.
    let frontend = Frontend::connect(rig.socket(0));
    assert!(std::fs::File::open("/dev/null").is_err());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.ports[0].channel_counters().connections.get(), 0);
    drop(taken);
    assert!(frontend.get_features().is_ok());
}

#[test]
fn a_second_frontend_is_turned_away_and_the_first_stays() {
    let model = frame(&mut rng(), 300);
    let rig = Rig::with(&RigConfig::mtu(1500));
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(16, 1526);
    for n in 1..=20 {
        let second = Frontend::connect(rig.socket(0));
        assert!(second.is_closed_within(PATIENCE));
        wait_until("it to be counted", || rig.ports[0].channel_counters().refused_connections.get() == n);
        carry(&mut a, &mut b, 0, &model, &"a second frontend");
    }
    drop(a);
    let mut a = rig.guest(0, &Guest::builder());
    carry(&mut a, &mut b, 0, &model, &"a third, when the first has gone");
}

#[test]
fn a_thousand_frontends_in_a_row_are_each_answered() {
    if !is_alone("vhost_reconnect::a_thousand_frontends_in_a_row_are_each_answered") {
        return;
    }
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut before = None;
    for round in 0..1000 {
        // A frontend that connects right after the end of the previous one does not count as a second frontend.
        let frontend = Frontend::connect(rig.socket(0));
        assert!(frontend.get_features().is_ok(), "frontend {round}");
        if round == 100 {
            before = Some(Held::now());
        }
    }
    expect_no_more_than(&before.expect("more than a hundred rounds"));
    assert_eq!(rig.ports[0].channel_counters().refused_connections.get(), 0);
}

#[test]
fn a_ring_that_is_stopped_under_traffic_goes_on_without_loss_or_repetition() {
    let mut rng = rng();
    let model = frame(&mut rng, 120);
    for case in Case::all().filter(|case| case.mergeable) {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(200, 1526);
        let (mut sent, mut last) = (0, None);
        for round in 0..60 {
            for _ in 0..rng.random_range(1..100) {
                let mut frame = model.clone();
                numbered(&mut frame, sent);
                sent += 1;
                assert!(a.tx(0).stage(&VnetHeader::default(), &[&frame]).is_some(), "{case:?}");
            }
            a.tx(0).publish();
            let bases = a.stop().unwrap();
            take_in_order(b.rx(0), &model, &mut last, &(case, round));
            a.start_at(&bases).unwrap();
            a.tx(0).kick();
            a.tx(0).drain(PATIENCE);
            wait_until("the last frame", || {
                take_in_order(b.rx(0), &model, &mut last, &(case, round));
                last == Some(sent - 1)
            });
        }
        // No frame was lost: a stop only delays the guest.
        assert_eq!(rig.received(1, |d| d.frames_out.get()), u64::from(sent), "{case:?}");
        assert_eq!(rig.received(1, Direction::lost_total), 0, "{case:?}");
    }
}

#[test]
fn a_receive_ring_that_is_stopped_under_traffic_shows_no_half_frame() {
    let mut rng = rng();
    let model = frame(&mut rng, 1000);
    for case in Case::all().filter(|case| case.mergeable && !case.indirect) {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest());
        // Each frame uses several chains.
        b.rx(0).fill(250, 100);
        let (mut sent, mut last) = (0, None);
        for round in 0..60 {
            for _ in 0..rng.random_range(1..60) {
                let mut frame = model.clone();
                numbered(&mut frame, sent);
                sent += 1;
                a.tx(0).send(&VnetHeader::default(), &[&frame]);
            }
            let bases = b.stop().unwrap();
            take_in_order(b.rx(0), &model, &mut last, &(case, round));
            b.start_at(&bases).unwrap();
        }
        a.tx(0).drain(PATIENCE);
        wait_until("a frame after the last stop", || {
            let mut frame = model.clone();
            numbered(&mut frame, sent);
            sent += 1;
            a.tx(0).send(&VnetHeader::default(), &[&frame]);
            take_in_order(b.rx(0), &model, &mut last, &case);
            last.is_some_and(|last| last + 10 > sent)
        });
    }
}

#[test]
fn rings_that_are_enabled_and_disabled_at_a_kilohertz_lose_frames_and_nothing_else() {
    const TOGGLES: usize = 1000;
    const INTERVAL: Duration = Duration::from_millis(1);
    let model = frame(&mut rng(), 500);
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(200, 1526);
        let (mut rx, mut tx): (RxQueue, TxQueue) = (b.take_pairs().remove(0).0, a.take_pairs().remove(0).1);
        let is_over = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let (mut sent, mut last) = (0, None);
                while !is_over.load(Ordering::Relaxed) {
                    let mut frame = model.clone();
                    numbered(&mut frame, sent);
                    sent += 1;
                    tx.send(&VnetHeader::default(), &[&frame]);
                    take_in_order(&mut rx, &model, &mut last, &case);
                }
                sent
            });
            for n in 0..TOGGLES {
                let is_on = n % 2 == 1;
                let (frontend, vring) = if n % 4 < 2 { (a.frontend(), 1) } else { (b.frontend(), 0) };
                frontend.set_vring_enable(vring, is_on).unwrap();
                std::thread::sleep(INTERVAL);
            }
            is_over.store(true, Ordering::Relaxed);
            traffic.join().expect("the traffic")
        });
        tx.drain(PATIENCE);
        let discarded = rig.ports[0].queue_counters()[0].discarded.get();
        let accounted = || rig.sent(0, |d| d.frames_in.get()) + discarded;
        wait_until("every frame to be accounted for", || accounted() == u64::from(sent));
        assert!(discarded > 0 && rig.received(1, |d| d.frames_out.get()) > 0, "{case:?}");
        // All rings are enabled: transmitted frames arrive.
        let mut frame = model.clone();
        numbered(&mut frame, sent);
        while rx.recv_within(Duration::from_millis(20)).is_some() {}
        tx.send(&VnetHeader::default(), &[&frame]);
        assert!(rx.recv(PATIENCE).frame == frame, "{case:?}");
    }
}

#[test]
fn a_disabled_ring_is_emptied_and_its_frames_go_nowhere() {
    let model = frame(&mut rng(), 60);
    for case in Case::rings() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest().queue_size(1024));
        b.rx(0).fill(16, 1526);
        a.frontend().set_vring_enable(1, false).unwrap();
        for _ in 0..500 {
            assert!(a.tx(0).stage(&VnetHeader::default(), &[&model]).is_some());
        }
        a.tx(0).publish();
        a.tx(0).drain(PATIENCE);
        assert_eq!(rig.ports[0].queue_counters()[0].discarded.get(), 500, "{case:?}");
        assert_eq!(rig.sent(0, |d| d.frames_in.get()), 0, "{case:?}");
        a.frontend().set_vring_enable(1, true).unwrap();
        carry(&mut a, &mut b, 0, &model, &case);
    }
}

#[test]
fn frames_wait_in_a_ring_whose_enabling_is_still_under_way() {
    let model = frame(&mut rng(), 60);
    for case in Case::rings() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest().queue_size(1024).enabled(false));
        b.frontend().set_vring_enable(0, true).unwrap();
        b.rx(0).fill(512, 1526);
        for number in 0..500 {
            let mut frame = model.clone();
            numbered(&mut frame, number);
            assert!(a.tx(0).stage(&VnetHeader::default(), &[&frame]).is_some());
        }
        a.tx(0).publish();
        assert!(b.rx(0).recv_within(Duration::from_millis(50)).is_none(), "{case:?}");
        a.frontend().set_vring_enable(1, true).unwrap();
        for number in 0..500 {
            let mut frame = model.clone();
            numbered(&mut frame, number);
            assert!(b.rx(0).recv(PATIENCE).frame == frame, "{case:?}");
        }
        assert_eq!(rig.ports[0].queue_counters()[0].discarded.get(), 0, "{case:?}");
    }
}

#[test]
fn memory_that_is_replaced_under_traffic_is_unmapped_and_no_frame_is_lost() {
    if !is_alone("vhost_reconnect::memory_that_is_replaced_under_traffic_is_unmapped_and_no_frame_is_lost") {
        return;
    }
    let model = frame(&mut rng(), 100);
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(200, 1526);
        let before = Held::now();
        let (mut sent, mut last) = (0, None);
        for round in 0..100 {
            for _ in 0..20 {
                let mut frame = model.clone();
                numbered(&mut frame, sent);
                sent += 1;
                a.tx(0).send(&VnetHeader::default(), &[&frame]);
            }
            let memory = a.memory().clone();
            // Send the same table again, as a frontend does when a device's memory appears or disappears.
            a.frontend().set_mem_table(&memory).unwrap();
            a.tx(0).kick();
            wait_until("all frames", || {
                take_in_order(b.rx(0), &model, &mut last, &(case, round));
                last == Some(sent - 1)
            });
        }
        expect_no_more_than(&before);
    }
}

#[test]
fn messages_with_descriptors_leave_none_behind_however_often_they_are_sent() {
    if !is_alone("vhost_reconnect::messages_with_descriptors_leave_none_behind_however_often_they_are_sent") {
        return;
    }
    let rig = Rig::with(&RigConfig::mtu(1500));
    let memory = GuestMemory::new(&[RegionSpec::new(0x10_0000, 1 << 20)]);
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
    let log = DirtyLog::new(&memory);
    let mut frontend = Frontend::connect(rig.socket(0));
    frontend.get_features().unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocol).unwrap();
    let round = |fd: BorrowedFd<'_>| {
        let inflight = frontend.get_inflight_fd(2, 256).unwrap();
        frontend.set_inflight_fd(&inflight).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        frontend.set_log_base(&log).unwrap();
        for index in 0..2 {
            frontend.set_vring_num(index, 256).unwrap();
            frontend.set_vring_call(index, Some(fd)).unwrap();
            frontend.set_vring_err(index, Some(fd)).unwrap();
            frontend.set_vring_kick(index, Some(fd)).unwrap();
        }
    };
    (0..10).for_each(|_| round(event.as_fd()));
    let before = Held::now();
    (0..500).for_each(|_| round(event.as_fd()));
    expect_no_more_than(&before);
    drop(frontend);
    // Send three kinds of invalid messages, with 1 to 253 descriptors: a message that takes no descriptors, an invalid
    // memory table, and an unknown request.
    let before = Held::now();
    for round in 0..300 {
        let frontend = Frontend::connect(rig.socket(0));
        let fds = vec![event.as_fd(); [1, 8, 9, 32, 33, 64, 253][round % 7]];
        let (request, len) = [(request::GET_FEATURES, 0), (request::SET_MEM_TABLE, 40), (4711, 0)][round % 3];
        frontend.send_raw(Header::new(request, len), &vec![0xff; len], &fds);
        assert!(frontend.is_closed_within(PATIENCE), "round {round}");
    }
    expect_no_more_than(&before);
}

/// A task that its test can block.
struct Gated<T> {
    task: T,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    lock: Mutex<()>,
    /// True if the task has reached the gate.
    is_reached: AtomicBool,
}

impl<T: Task> Task for Gated<T> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.gate.is_reached.store(true, Ordering::Release);
        let _passed = self.gate.lock.lock();
        self.task.poll(now_ns)
    }

    fn arm(&mut self, waker: &Waker) {
        self.task.arm(waker);
    }

    fn disarm(&mut self) {
        self.task.disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        self.task.watch(now_ns, watch);
    }
}

#[test]
fn a_frontend_is_disconnected_when_the_port_says_so_also_while_its_thread_stands_still() {
    let scratch = Scratch::new();
    let mut port = VhostUser::open(&VhostUserConfig::new(scratch.path("port"))).unwrap();
    let switch = Switch::new(&SwitchConfig::default());
    let host = VhostPort::new(vec![port.queue(0).unwrap()]).unwrap();
    switch.control().add(host, &PortConfig::default()).unwrap();
    let gate = Arc::new(Gate::default());
    let _worker = Worker::start("vhost-test", vec![Gated { task: switch, gate: Arc::clone(&gate) }], None).unwrap();
    assert!(!port.disconnect("nobody is there"));
    let connect = || Guest::builder().connect(scratch.path("port"));
    for (is_held, why) in [(false, "the operator says so"), (true, "its thread stands still")] {
        let mut guest = connect();
        let held = is_held.then(|| gate.lock.lock());
        if is_held {
            gate.is_reached.store(false, Ordering::Release);
            wait_until("the task at the gate", || gate.is_reached.load(Ordering::Acquire));
        }
        assert!(port.disconnect(why));
        assert!(guest.frontend().is_closed_within(PATIENCE), "{why}");
        wait_until("the reason", || port.status().last_refusal.as_deref() == Some(why));
        drop(held);
    }
    // The next frontend is accepted, and its frames are fetched.
    let mut guest = connect();
    guest.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng(), 60)]);
    guest.tx(0).drain(PATIENCE);
    assert_eq!(port.channel_counters().lost_memories.get(), 0);
}
