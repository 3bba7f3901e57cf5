//! Tests of live migration: a Linux guest in QEMU moves from one vhost-user port to another under TCP load. Each port
//! is in a separate daemon.
//!
//! ```text
//!  guest in QEMU ────── vhost-user ── offramp up ── TAP ──┐
//!    │ moves, and back                                    bridge, namespace, TCP
//!  guest in QEMU ────── vhost-user ── offramp up ── TAP ──┘
//! ```
//!
//! One TCP connection survives all migrations of a guest. The host sends as fast as the guest returns the bytes, and
//! compares each byte. The same guest behind QEMU's own TAP backend shows QEMU's share of the down time.

use super::{BackendKind, GuestArgs, behind_port, options};
use crate::tally::{Only, Tally};
use crate::tcp;
use offramp_adapter::port::HostPort;
use offramp_offload::sync::lock;
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::{NetNs, link};
use offramp_testbed::daemon::{self, Daemon};
use offramp_testbed::failure::{Doing, Result, failed, inside, new_namespace};
use offramp_testbed::guest::busybox::{
    Base, Extras, HOST, MTU, PREFIX_LEN, qemu_tap_network, random_bytes, vhost_user_network,
};
use offramp_testbed::guest::mac_text;
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::guest::vmm::MachineConfig;
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stats::median;
use offramp_testbed::stop;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The TAPs of the two daemons (or of the two QEMUs), and the bridge that connects them.
const TAPS: [&str; 2] = ["xtask0", "xtask1"];
const BRIDGE: &str = "xtask-br";
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
/// Duration of the traffic before and after a migration.
const BESIDE: Duration = Duration::from_secs(1);
/// Time limit from the start of a program to its first answer, and from the end of a migration to the guest's
/// announcement.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of a migration.
const MOVE_TIMEOUT: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(5);
/// Length of the pattern that the host sends repeatedly, in bytes. The length is prime, so that a lost or duplicated
/// segment shifts all later bytes.
const PATTERN_LEN: usize = 1_048_573;
const PATTERN_SEED: u64 = 5;
/// Maximum down time as a multiple of the down time with QEMU's own backend, and minimum number of migrations for a
/// judgement.
const RATIO_MAX: f64 = 2.0;
const MOVES_MIN: u32 = 5;

/// Migrate a Linux guest from one daemon to another while TCP runs.
#[derive(clap::Args)]
pub struct Args {
    /// Migrations of each guest, there and back in turn; fewer than 5 leave the down time unjudged
    #[arg(long, default_value_t = MOVES_MIN, value_parser = clap::value_parser!(u32).range(1..))]
    moves: u32,
    #[command(flatten)]
    only: Only,
    #[command(flatten)]
    guest: GuestArgs,
}

/// A kind of guest, and the expected announcement after a migration.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: BackendKind,
    is_packed: bool,
    announcement: Announcement,
}

impl Case {
    const fn new(backend: BackendKind, is_packed: bool, announcement: Announcement) -> Self {
        Self { backend, is_packed, announcement }
    }

    fn name(&self) -> String {
        let backend = match self.backend {
            BackendKind::Offramp => "offramp",
            BackendKind::QemuTap => "QEMU's TAP",
        };
        let ring = if self.is_packed { "packed" } else { "split" };
        format!("{backend}, {ring} rings, {}", self.announcement.name())
    }
}

/// The announcement of a migrated guest to the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announcement {
    /// A gratuitous ARP from the guest's driver (`GUEST_ANNOUNCE`).
    GratuitousArp,
    /// A RARP frame from the backend or from QEMU.
    Rarp,
}

impl Announcement {
    fn name(self) -> &'static str {
        match self {
            Self::GratuitousArp => "announced by ARP of the guest",
            Self::Rarp => "announced by RARP",
        }
    }

    /// Returns the kind of announcement in a frame, if any.
    fn of(frame: &[u8]) -> Option<Self> {
        let word = |at: usize| frame.get(at..at + 4);
        match (frame.get(..6)?, frame.get(6..12)?, frame.get(12..14)?) {
            ([0xff, 0xff, 0xff, 0xff, 0xff, 0xff], source, kind) if source == GUEST_MAC => match kind {
                [0x80, 0x35] => Some(Self::Rarp),
                // In a gratuitous ARP, the requested address is the sender's address.
                [0x08, 0x06] if word(28)? == word(38)? => Some(Self::GratuitousArp),
                _ => None,
            },
            _ => None,
        }
    }
}

const CASES: [Case; 8] = [
    Case::new(BackendKind::Offramp, false, Announcement::GratuitousArp),
    Case::new(BackendKind::Offramp, true, Announcement::Rarp),
    Case::new(BackendKind::Offramp, false, Announcement::Rarp),
    Case::new(BackendKind::Offramp, true, Announcement::GratuitousArp),
    Case::new(BackendKind::QemuTap, false, Announcement::GratuitousArp),
    Case::new(BackendKind::QemuTap, true, Announcement::Rarp),
    Case::new(BackendKind::QemuTap, false, Announcement::Rarp),
    Case::new(BackendKind::QemuTap, true, Announcement::GratuitousArp),
];

/// The measurements of a migration.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// Down time and total time, as reported by QEMU.
    down: Duration,
    total: Duration,
    /// Longest time during which the host received no bytes.
    gap: Duration,
}

/// Migrates every guest, and prints the cost of the migrations. Returns whether all checks passed.
///
/// # Errors
/// Returns an error if QEMU or the guest's kernel is not available, or a signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let executable = daemon::build()?;
    let scratch = Scratch::new()?;
    let base = args.guest.base(Extras::default(), &scratch)?;
    let mut tally = Tally::default();
    let down_ms = RefCell::new([const { Vec::new() }; 2]);
    for case in CASES.iter().filter(|case| args.only.has(&case.name())) {
        let began = Instant::now();
        let moved = run_case(case, args.moves, &base, &executable);
        let moved = moved.map(|moves| {
            print(&moves);
            down_ms.borrow_mut()[case.backend as usize].extend(moves.iter().map(|of| ms(of.down)));
        });
        tally.count(&case.name(), began, moved)?;
    }
    let down_ms = down_ms.into_inner();
    let [theirs, ours] = [BackendKind::QemuTap, BackendKind::Offramp].map(|backend| median(&down_ms[backend as usize]));
    let is_short = ours.zip(theirs).is_none_or(|(ours, theirs)| {
        println!("median down time: offramp {ours:.0} ms, QEMU's TAP {theirs:.0} ms");
        ours <= RATIO_MAX * theirs
    });
    Ok(tally.end("migrate") && (is_short || args.moves < MOVES_MIN))
}

fn print(moves: &[Move]) {
    let list = |of: fn(&Move) -> Duration| {
        moves.iter().map(|one| format!("{:.0}", ms(of(one)))).collect::<Vec<_>>().join(", ")
    };
    println!("  down time by QEMU [ms]: {}", list(|one| one.down));
    println!("  longest gap at the receiver [ms]: {}", list(|one| one.gap));
    println!("  from the beginning to the end [ms]: {}", list(|one| one.total));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn run_case(case: &Case, moves: u32, base: &Base, executable: &Path) -> Result<Vec<Move>> {
    let mut bed = Bed::start(case, base, executable)?;
    let judged = bed.measure(moves);
    let mut last_words = bed.machine.tail();
    bed.machine.power_off();
    last_words.extend(bed.places.into_iter().filter_map(|place| place.daemon).map(Daemon::terminate));
    judged.map_err(|why| why.map(|why| why + &last_words))
}

/// One of the two places between which a guest migrates: a daemon and its files.
struct Place {
    daemon: Option<Daemon>,
    scratch: Scratch,
}

/// A running guest, and both places. The fields are dropped in order of declaration.
struct Bed<'a> {
    case: &'a Case,
    base: &'a Base,
    machine: Machine,
    /// Index of the place where the guest runs.
    at: usize,
    places: [Place; 2],
    ns: NetNs,
}

impl<'a> Bed<'a> {
    fn start(case: &'a Case, base: &'a Base, executable: &Path) -> Result<Self> {
        let ns = new_namespace()?;
        inside(&ns, "making a bridge", || {
            link::create_bridge(BRIDGE)?;
            link::set_mtu(BRIDGE, u32::from(MTU))?;
            link::add_address(BRIDGE, IpAddr::V4(HOST), PREFIX_LEN)?;
            link::set_up(BRIDGE)
        })?;
        let place = |tap: &str| {
            let scratch = Scratch::new()?;
            let daemon = match case.backend {
                BackendKind::QemuTap => None,
                BackendKind::Offramp => Some(Daemon::start(executable, &file(&scratch, tap), &scratch, &ns)?),
            };
            Ok(Place { daemon, scratch })
        };
        let places = [place(TAPS[0])?, place(TAPS[1])?];
        let mut machine = start_machine(case, base, &places[0], TAPS[0], &ns, None)?;
        machine.wait_until_ready()?;
        Ok(Self { case, base, machine, at: 0, places, ns })
    }

    fn measure(&mut self, moves: u32) -> Result<Vec<Move>> {
        let stream = Arc::new(Stream::default());
        let theirs = Arc::clone(&stream);
        let (port, host) = tcp::serve(&self.ns, HOST.into(), move |socket| theirs.exchange(&socket))?;
        let begun = self.machine.begin(&format!("nc {HOST} {port} -e cat"))?;
        let moved = (0..moves).map(|_| self.move_on(&stream)).collect::<Result<Vec<_>>>();
        stream.is_over.store(true, Ordering::Relaxed);
        let moved = moved?;
        let ended = tcp::join(host, self.machine.finish(&begun.elsewhere()));
        ended.map(|_| println!("  {} bytes there and back, compared", lock(&stream.received).last_total()))?;
        Ok(moved)
    }

    /// Migrates the guest to the place where the guest does not run.
    fn move_on(&mut self, stream: &Stream) -> Result<Move> {
        let to = 1 - self.at;
        let place = &self.places[to];
        let incoming = place.scratch.file("incoming.sock");
        let destination = start_machine(self.case, self.base, place, TAPS[to], &self.ns, Some(&incoming))?;
        // QEMU is ready for the guest when its monitor answers.
        Monitor::connect(&place.scratch)?;
        stop::sleep(BESIDE)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let announced = watch(&self.ns, TAPS[to], &is_over)?;
        let began = Instant::now();
        let report = Monitor::connect(&self.places[self.at].scratch)?.migrate(&incoming)?;
        // The source QEMU stays paused. Replacing `machine` ends the source QEMU.
        self.machine = destination;
        self.at = to;
        stop::sleep(BESIDE)?;
        let gap = lock(&stream.received).longest_gap(began, Instant::now());
        is_over.store(true, Ordering::Relaxed);
        let expected = self.case.announcement;
        match announced.join() {
            Ok(seen) if seen.contains(&expected) => {}
            seen => return failed(format!("the moved guest was not {}, but {seen:?}", expected.name())),
        }
        let time = |name: &str| Duration::from_millis(report[name].as_u64().unwrap_or_default());
        Ok(Move { down: time("downtime"), total: time("total-time"), gap })
    }
}

/// Returns the daemon's configuration file, without `[daemon]`.
fn file(scratch: &Scratch, tap: &str) -> String {
    let socket = scratch.file("vm0.sock");
    format!(
        "[[port]]\nname = \"vm0\"\nhost = {{ vhost_user = \"{socket}\" }}\nwire = {{ switch = \"lan\" }}\n\n\
         [[port]]\nname = \"uplink\"\nhost = {{ tap = \"{tap}\" }}\nwire = {{ switch = \"lan\" }}\n\n\
         [[switch]]\nname = \"lan\"\n"
    )
}

/// Starts QEMU at a place, and adds the place's TAP to the bridge. With `incoming`, QEMU receives a migrated guest
/// through the socket `incoming`.
fn start_machine(
    case: &Case,
    base: &Base,
    place: &Place,
    tap: &str,
    ns: &NetNs,
    incoming: Option<&str>,
) -> Result<Machine> {
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let options = options::short(&[("mq", "off"), ("packed", on(case.is_packed))]);
    let (mac, announces) = (mac_text(GUEST_MAC), on(case.announcement == Announcement::GratuitousArp));
    let mut arguments = match case.backend {
        BackendKind::Offramp => vhost_user_network(&place.scratch.file("vm0.sock"), 1, ""),
        BackendKind::QemuTap => qemu_tap_network(tap, 1),
    };
    let monitor = place.scratch.file(Monitor::SOCKET);
    let _ = std::fs::remove_file(&monitor);
    arguments.extend(["-qmp".to_owned(), format!("unix:{monitor},server=on,wait=off")]);
    arguments.extend(incoming.into_iter().flat_map(|socket| ["-incoming".to_owned(), format!("unix:{socket}")]));
    let config = behind_port(base, &options, arguments, &format!(",mac={mac},guest_announce={announces}"))?;
    let machine = Machine::start(&MachineConfig { cpus: 1, ..config }, ns)?;
    // QEMU creates its TAP at its start.
    let add = || inside(ns, tap, || link::set_master(tap, BRIDGE).and_then(|()| link::set_up(tap)));
    match stop::until(TIMEOUT, LOOK, || Ok(add().ok()))? {
        Some(()) => Ok(machine),
        None => failed(format!("no {tap} within {TIMEOUT:?}{}", machine.tail())),
    }
}

/// Watches an interface for announcements from the guest until `is_over`.
fn watch(ns: &NetNs, interface: &str, is_over: &Arc<AtomicBool>) -> Result<JoinHandle<Vec<Announcement>>> {
    let port = Packet::open_in(ns, &PacketConfig::new(interface)).doing("watching the wire")?;
    let Some(mut queue) = port.queue(0) else { return failed("a packet socket has no queue") };
    let is_over = Arc::clone(is_over);
    Ok(thread::spawn(move || {
        let _port = port;
        let mut seen = Vec::new();
        loop {
            match queue.tx_next(0) {
                Ok(true) => seen.extend(Announcement::of(queue.tx_frame().bytes())),
                Ok(false) if !is_over.load(Ordering::Relaxed) => thread::sleep(LOOK),
                _ => return seen,
            }
        }
    }))
}

/// QEMU's monitor (QMP).
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    const SOCKET: &str = "qmp.sock";

    /// Connects to the monitor as soon as QEMU answers.
    fn connect(scratch: &Scratch) -> Result<Self> {
        let path = scratch.file(Self::SOCKET);
        let stream = match stop::until(TIMEOUT, LOOK, || Ok(UnixStream::connect(&path).ok()))? {
            Some(stream) => stream,
            None => UnixStream::connect(&path).doing(&path)?,
        };
        stream.set_read_timeout(Some(TIMEOUT)).doing(&path)?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Sends QEMU's monitor a command, and returns the command's result. Skips the greeting and all events before the
    /// result.
    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.0.get_mut().write_all(line.as_bytes()).doing(command)?;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).doing(command)?;
            let answer: Value = serde_json::from_str(&line).doing(command)?;
            if !answer["error"].is_null() {
                return failed(format!("{command}: {}", answer["error"]));
            }
            if !answer["return"].is_null() {
                return Ok(answer["return"].clone());
            }
        }
    }

    /// Migrates the guest to a QEMU that listens at `socket`. Returns QEMU's report.
    fn migrate(mut self, socket: &str) -> Result<Value> {
        self.ask("migrate", &json!({"uri": format!("unix:{socket}")}))?;
        let moved = stop::until(MOVE_TIMEOUT, LOOK, || {
            let report = self.ask("query-migrate", &json!({}))?;
            match report["status"].as_str() {
                Some("completed") => Ok(Some(report)),
                Some("failed" | "cancelled") => failed(format!("the migration failed: {report}")),
                _ => Ok(None),
            }
        })?;
        moved.map_or_else(|| failed(format!("the migration took longer than {MOVE_TIMEOUT:?}")), Ok)
    }
}

/// The host's end of the TCP connection: bytes sent, and bytes returned by the guest.
#[derive(Default)]
struct Stream {
    /// True if the sender must stop.
    is_over: AtomicBool,
    received: Mutex<Received>,
}

/// The times at which bytes were received, each with the total number of bytes received until then.
#[derive(Debug, Default)]
struct Received(Vec<(Instant, u64)>);

impl Received {
    fn last_total(&self) -> u64 {
        self.0.last().map_or(0, |(_, total)| *total)
    }

    /// Returns the longest time without a received byte, between `from` and `to`.
    fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let times = self.0.iter().map(|(time, _)| *time).filter(|time| (from..to).contains(time));
        let mut last = from;
        times.chain([to]).map(|time| time - std::mem::replace(&mut last, time)).max().unwrap_or_default()
    }
}

impl Stream {
    /// Sends until `is_over`, and compares the bytes returned by the guest.
    fn exchange(&self, socket: &TcpStream) -> io::Result<Vec<u8>> {
        let pattern = random_bytes(PATTERN_SEED, PATTERN_LEN);
        thread::scope(|scope| {
            let sending = scope.spawn(|| self.send(socket, &pattern));
            let received = self.receive(socket, &pattern);
            // Stop the sender, which would otherwise wait for a failed receiver.
            self.is_over.store(true, Ordering::Relaxed);
            if received.is_err() {
                let _ = socket.shutdown(Shutdown::Both);
            }
            let sent = sending.join().unwrap_or_else(|_| Err(io::Error::other("the sender panicked")));
            match (received?, sent?) {
                (received, sent) if received == sent => Ok(Vec::new()),
                (received, sent) => Err(io::Error::other(format!("{sent} bytes were sent, {received} came back"))),
            }
        })
    }

    fn send(&self, mut socket: &TcpStream, pattern: &[u8]) -> io::Result<u64> {
        let mut sent = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let from = (sent % PATTERN_LEN as u64) as usize;
            sent += socket.write(&pattern[from..PATTERN_LEN.min(from + (64 << 10))])? as u64;
        }
        socket.shutdown(Shutdown::Write)?;
        Ok(sent)
    }

    fn receive(&self, mut socket: &TcpStream, pattern: &[u8]) -> io::Result<u64> {
        let (mut bytes, mut total) = (vec![0; 64 << 10], 0);
        loop {
            let room = PATTERN_LEN - (total % PATTERN_LEN as u64) as usize;
            let room = room.min(bytes.len());
            let len = socket.read(&mut bytes[..room])?;
            if len == 0 {
                return Ok(total);
            }
            let from = (total % PATTERN_LEN as u64) as usize;
            if bytes[..len] != pattern[from..from + len] {
                return Err(io::Error::other(format!("different bytes came back after the first {total}")));
            }
            total += len as u64;
            lock(&self.received).0.push((Instant::now(), total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn announcements_are_known_by_their_fields() {
        let frame = |kind: [u8; 2], target: u8| {
            let mut frame = [0; 60];
            frame[..6].fill(0xff);
            frame[6..12].copy_from_slice(&GUEST_MAC);
            frame[12..14].copy_from_slice(&kind);
            frame[28..32].copy_from_slice(&[198, 18, 0, 2]);
            frame[38..42].copy_from_slice(&[198, 18, 0, target]);
            frame
        };
        assert_eq!(Announcement::of(&frame([8, 6], 2)), Some(Announcement::GratuitousArp));
        assert_eq!(Announcement::of(&frame([8, 6], 1)), None);
        assert_eq!(Announcement::of(&frame([0x80, 0x35], 1)), Some(Announcement::Rarp));
        assert_eq!(Announcement::of(&frame([8, 0], 2)), None);
        let mut other = frame([8, 6], 2);
        other[11] += 1;
        assert_eq!((Announcement::of(&other), Announcement::of(&other[..20])), (None, None));
    }

    #[test]
    fn the_longest_gap_may_lie_before_the_first_byte_or_after_the_last() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let received = Received([10, 30, 35, 90].map(|ms| (at(ms), 0)).to_vec());
        let gap = |from, to| received.longest_gap(at(from), at(to)).as_millis();
        assert_eq!((gap(0, 40), gap(0, 100), gap(0, 300), gap(31, 32)), (20, 55, 210, 1));
    }

    #[test]
    fn a_byte_that_comes_back_otherwise_or_not_at_all_is_found() {
        for (change, found) in [(None, "is over"), (Some(true), "different bytes"), (Some(false), "came back")] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, _) = listener.accept().unwrap();
            let stream = Stream::default();
            let result = thread::scope(|scope| {
                let echo = scope.spawn(|| {
                    let mut bytes = vec![0; 3_000_000];
                    (&other).read_exact(&mut bytes).unwrap();
                    stream.is_over.store(true, Ordering::Relaxed);
                    (&other).read_to_end(&mut bytes).unwrap();
                    match change {
                        Some(true) => bytes[2_000_000] ^= 1,
                        Some(false) => bytes.truncate(2_000_000),
                        None => {}
                    }
                    let _ = (&other).write_all(&bytes);
                    let _ = other.shutdown(Shutdown::Write);
                });
                let result = stream.exchange(&socket);
                // After a wrong byte, `exchange` reads no further. Closing the socket ends the blocking write of the
                // thread `echo`.
                drop(socket);
                echo.join().unwrap();
                result
            });
            match result {
                Ok(_) => assert!(change.is_none()),
                Err(why) => assert!(change.is_some() && why.to_string().contains(found), "{why}"),
            }
        }
    }
}
