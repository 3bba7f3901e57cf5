//! One sample: a guest and a backend run for a while, and the counters of guest and backend are read.

use super::backend::{self, Report};
use super::placement::Placement;
use super::{Cell, Direction};
use nix::sys::signal::Signal;
use offramp_testbed::failure::{Doing, Result, failed};
use offramp_testbed::guest::mac_text;
use offramp_testbed::program::{self, Program, shown};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use offramp_testbed::testpmd::{Config, Memory, Testpmd};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Memory of one testpmd in MiB, for its 2-KiB buffers and for DPDK itself.
pub const MEMORY_MIB: u64 = 256;
/// Number of buffers of one testpmd, many more than a ring has entries, as in a virtual switch.
const BUFFERS: u32 = 32_768;
/// Number of the backend's processor.
const BACKEND_CPU: usize = 0;
/// Number of the guest's processor.
const GUEST_CPU: usize = 1;
/// Time from the start of the traffic to the first counted packet. In this time, caches and branch predictors warm up.
const WARM_UP: Duration = Duration::from_millis(700);
/// Number of turns of each version in a round of a comparison of two versions.
const TURNS: usize = 15;
/// Warm-up at the start of each turn, before packets are counted.
const TURN_WARM_UP: Duration = Duration::from_millis(50);
/// Time in each turn during which packets are counted, after the warm-up.
const TURN: Duration = Duration::from_millis(100);
/// Number of bursts that the guest sends to start the traffic of `Direction::Loop`: 8 bursts of 32 packets fill a ring.
const LOOP_BURSTS: u32 = 8;
/// Interval of offramp's reports, in milliseconds.
const REPORT_MS: u64 = 50;
/// Maximum wait for offramp's port, and for a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of profile samples per second.
const PROFILE_HZ: u32 = 4000;
/// Minimum share of the samples at which a function is printed, in percent.
const PROFILE_PERCENT_MIN: &str = "2";
/// Number of a testpmd's only port.
const PORT: usize = 0;

/// The backend of one side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// DPDK's backend.
    Dpdk,
    /// offramp's backend.
    Offramp,
    /// offramp's backend with sandbox, bound address, VLAN and limits.
    Protected,
    /// The backend of an earlier version of offramp.
    Before,
}

/// The result of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Packets that reached the receiving end of the path, in millions per second.
    pub mpps: f64,
    /// Busy time of the backend per packet, in nanoseconds.
    ///
    /// DPDK counts the cycles of bursts with received packets. As a generator, DPDK counts all bursts, including bursts
    /// for which the ring has no room. offramp counts rounds in which at least one frame moved.
    pub busy_ns: f64,
    /// Placement of the two processors.
    pub placement: Placement,
}

/// The common settings of all samples.
#[derive(Debug)]
pub struct Bench {
    memory: Memory,
    window: Duration,
    /// True if offramp's profile is printed after each sample of offramp.
    profile: bool,
    /// Path of the program with the earlier version's backend.
    before: Option<PathBuf>,
    scratch: Scratch,
}

enum Backend {
    Dpdk(Testpmd),
    Offramp(Program),
}

impl Bench {
    /// Creates a bench with a counted time of `window` per sample.
    ///
    /// # Errors
    /// Returns an error if the directory for sockets cannot be made.
    pub fn new(memory: Memory, window: Duration, profile: bool, before: Option<PathBuf>) -> Result<Self> {
        Ok(Self { memory, window, profile, before, scratch: Scratch::new()? })
    }

    fn socket(&self) -> String {
        self.scratch.file("vhost.sock")
    }

    fn testpmd(&self, name: &str, cpu: usize, vdev: String, cell: &Cell, forward: &str) -> Config {
        let args = vec![
            "--port-topology=loop".to_owned(),
            "--record-core-cycles".to_owned(),
            format!("--total-num-mbufs={BUFFERS}"),
            format!("--txpkts={}", cell.frame_len),
            format!("--forward-mode={forward}"),
        ];
        Config {
            name: name.to_owned(),
            cpu,
            memory: self.memory,
            memory_mib: MEMORY_MIB,
            vdevs: vec![vdev],
            eal_args: Vec::new(),
            args,
        }
    }

    fn guest(&self, cell: &Cell) -> Config {
        let mac = mac_text(backend::GUEST_MAC);
        let vdev = format!("net_virtio_user0,path={},queues=1,mac={mac},{}", self.socket(), cell.ring.arguments);
        let forward = match cell.direction {
            Direction::GuestToLine => "txonly",
            Direction::LineToGuest => "rxonly",
            Direction::Loop => "io",
        };
        self.testpmd("guest", GUEST_CPU, vdev, cell, forward)
    }

    fn dpdk(&self, cell: &Cell) -> Config {
        let forward = match cell.direction {
            Direction::GuestToLine => "rxonly",
            Direction::LineToGuest => "txonly",
            Direction::Loop => "io",
        };
        let vdev = format!("net_vhost0,iface={},queues=1", self.socket());
        self.testpmd("backend", BACKEND_CPU, vdev, cell, forward)
    }

    fn offramp(&self, cell: &Cell, side: Side) -> Result<Command> {
        let mode = match cell.direction {
            Direction::GuestToLine => "discard",
            Direction::LineToGuest => "generate",
            Direction::Loop => "echo",
        };
        let mut command = match &self.before {
            Some(program) if side == Side::Before => Command::new(program),
            _ => Command::new(std::env::current_exe().doing("finding this program")?),
        };
        command.args(["vhost-backend", "--socket", &self.socket(), "--mode", mode]);
        command.args(["--bytes", &cell.frame_len.to_string(), "--cpu", &BACKEND_CPU.to_string()]);
        command.args(["--report-ms", &REPORT_MS.to_string()]);
        if side == Side::Protected {
            command.arg("--protected");
        }
        Ok(command)
    }

    /// Prints the command lines of a cell.
    ///
    /// # Errors
    /// Returns an error if a program is missing.
    pub fn print_commands(&self, cell: &Cell, sides: &[Side]) -> Result<()> {
        println!("# {}", cell.name());
        for side in sides {
            let command = match side {
                Side::Dpdk => self.dpdk(cell).command()?.0,
                Side::Offramp | Side::Protected | Side::Before => self.offramp(cell, *side)?,
            };
            println!("{}", shown(&command));
        }
        println!("{}", shown(&self.guest(cell).command()?.0));
        Ok(())
    }

    /// Takes one sample.
    ///
    /// # Errors
    /// Returns an error if a program does not start or answer, or if no packet moves.
    pub fn sample(&self, cell: &Cell, side: Side) -> Result<Sample> {
        let before = Placement::probe(BACKEND_CPU, GUEST_CPU)?;
        let mut backend = self.start_backend(cell, side)?;
        let mut guest = self.start_guest(cell)?;
        backend.begin()?;
        begin(cell, &mut guest)?;
        let (mpps, busy_ns) = self.count(cell, &mut guest, &mut backend)?;
        if let (true, Backend::Offramp(program)) = (self.profile, &backend) {
            eprintln!("{}: offramp's backend\n{}", cell.name(), profile(program.id(), self.window, &self.scratch)?);
        }
        guest.quit();
        backend.end();
        let placement = before.and(Placement::probe(BACKEND_CPU, GUEST_CPU)?);
        if !(mpps > 0.0 && busy_ns.is_finite()) {
            return failed("no packet arrived in the measured time");
        }
        Ok(Sample { mpps, busy_ns, placement })
    }

    /// Starts each of two versions once, and takes samples of the two versions in turn. While one version runs, the
    /// other version is stopped.
    ///
    /// # Errors
    /// Returns an error if a program does not start or continue, or if no packet moves.
    pub fn turns(&self, cell: &Cell, sides: [Side; 2]) -> Result<Vec<(Side, Sample)>> {
        let placement = Placement::probe(BACKEND_CPU, GUEST_CPU)?;
        let mut versions = Vec::new();
        for side in sides {
            let mut version =
                Version { side, backend: self.start_offramp(cell, side)?, guest: self.start_guest(cell)? };
            begin(cell, &mut version.guest)?;
            version.signal(Signal::SIGSTOP)?;
            versions.push(version);
        }
        let mut samples = Vec::new();
        for _ in 0..TURNS {
            // The order alternates, so that neither version is always first.
            versions.reverse();
            for version in &mut versions {
                let (mpps, busy_ns) = version.turn(cell.direction)?;
                samples.push((version.side, Sample { mpps, busy_ns, placement }));
            }
        }
        drop(versions);
        let placement = placement.and(Placement::probe(BACKEND_CPU, GUEST_CPU)?);
        for (_, sample) in &mut samples {
            sample.placement = placement;
        }
        Ok(samples)
    }

    fn start_backend(&self, cell: &Cell, side: Side) -> Result<Backend> {
        if side != Side::Dpdk {
            return self.start_offramp(cell, side).map(Backend::Offramp);
        }
        self.remove_socket();
        let mut testpmd = Testpmd::start(&self.dpdk(cell))?;
        testpmd.wait_ready()?;
        program::wait_for_socket(&self.socket(), REPORT_TIMEOUT)?;
        Ok(Backend::Dpdk(testpmd))
    }

    fn start_offramp(&self, cell: &Cell, side: Side) -> Result<Program> {
        self.remove_socket();
        let mut program = Program::start("offramp", self.offramp(cell, side)?, None)?;
        program.wait_ready(REPORT_TIMEOUT)?;
        program::wait_for_socket(&self.socket(), REPORT_TIMEOUT)?;
        Ok(program)
    }

    fn remove_socket(&self) {
        // The removal fails if the socket does not exist, and this failure is harmless.
        let _ = std::fs::remove_file(self.socket());
    }

    fn start_guest(&self, cell: &Cell) -> Result<Testpmd> {
        let mut guest = Testpmd::start(&self.guest(cell))?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Returns the packet rate in millions per second, and the busy time per packet in nanoseconds, over the counted
    /// time.
    fn count(&self, cell: &Cell, guest: &mut Testpmd, backend: &mut Backend) -> Result<(f64, f64)> {
        let counts = |guest: &mut Testpmd, backend: &mut Backend| match cell.direction {
            Direction::GuestToLine => backend.sent(),
            Direction::LineToGuest | Direction::Loop => received(guest),
        };
        let own = backend.report()?;
        let first = counts(guest, backend)?;
        stop::sleep(self.window)?;
        let last = counts(guest, backend)?;
        let mpps = (last.packets - first.packets) as f64 / (last.at_ns - first.at_ns) as f64 * 1e3;
        let busy_ns = match (own, backend.report()?, backend) {
            (Some(first), Some(last), _) => busy_ns(cell.direction, &first, &last),
            (_, _, Backend::Dpdk(testpmd)) => testpmd.busy_ns_per_packet()?,
            _ => f64::NAN,
        };
        Ok((mpps, busy_ns))
    }
}

/// Starts the guest's traffic and waits for the warm-up.
fn begin(cell: &Cell, guest: &mut Testpmd) -> Result<()> {
    match cell.direction {
        Direction::Loop => guest.tell(&format!("start tx_first {LOOP_BURSTS}"))?,
        Direction::GuestToLine | Direction::LineToGuest => guest.tell("start")?,
    }
    stop::sleep(WARM_UP)
}

/// A version of offramp's backend with a separate guest.
struct Version {
    side: Side,
    backend: Program,
    guest: Testpmd,
}

impl Version {
    fn signal(&self, signal: Signal) -> Result<()> {
        self.guest.signal(signal)?;
        self.backend.signal(signal)
    }

    /// Runs a turn. Returns the packet rate in millions per second, and the busy time per packet in nanoseconds.
    fn turn(&mut self, direction: Direction) -> Result<(f64, f64)> {
        self.signal(Signal::SIGCONT)?;
        stop::sleep(TURN_WARM_UP)?;
        let first = next_report(&mut self.backend)?;
        stop::sleep(TURN)?;
        let last = next_report(&mut self.backend)?;
        self.signal(Signal::SIGSTOP)?;
        let arrived = |report: &Report| match direction {
            Direction::GuestToLine => report.sent,
            Direction::LineToGuest | Direction::Loop => report.given,
        };
        let packets = arrived(&last) - arrived(&first);
        if packets == 0 {
            return failed("no packet arrived in a turn");
        }
        Ok((packets as f64 / (last.t_ns - first.t_ns) as f64 * 1e3, busy_ns(direction, &first, &last)))
    }
}

/// The value of a packet counter, and the time of the value in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug)]
struct Count {
    at_ns: u64,
    packets: u64,
}

/// Returns the report of `perf`: the time of a process by function, over the next `time`.
fn profile(process: u32, time: Duration, scratch: &Scratch) -> Result<String> {
    let data = scratch.file("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", &PROFILE_HZ.to_string(), "-o", &data]);
    record.args(["-p", &process.to_string(), "--", "sleep", &time.as_secs_f64().to_string()]);
    if !record.status().doing("starting perf (Debian: package linux-perf)")?.success() {
        return failed("perf record failed; see the message above");
    }
    let mut report = Command::new("perf");
    report.args(["report", "-i", &data, "--stdio", "--no-children", "--percent-limit", PROFILE_PERCENT_MIN]);
    let text = program::output(report, None)?;
    Ok(text.lines().filter(|line| line.contains('%') && !line.starts_with('#')).collect::<Vec<_>>().join("\n"))
}

/// Returns the number of packets received by a testpmd. The time of the count is the midpoint between the request of
/// the count and the answer.
fn received(testpmd: &mut Testpmd) -> Result<Count> {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let epoch = EPOCH.get_or_init(Instant::now);
    let asked_ns = epoch.elapsed().as_nanos() as u64;
    let packets = testpmd.port_stats(PORT)?.rx_packets;
    Ok(Count { at_ns: asked_ns.midpoint(epoch.elapsed().as_nanos() as u64), packets })
}

/// Returns the busy time per packet between two reports, or NaN if no packet moved.
fn busy_ns(direction: Direction, first: &Report, last: &Report) -> f64 {
    let packets = match direction {
        Direction::GuestToLine | Direction::Loop => last.taken - first.taken,
        Direction::LineToGuest => last.given - first.given,
    };
    (last.busy_ns - first.busy_ns) as f64 / packets as f64
}

impl Backend {
    fn begin(&mut self) -> Result<()> {
        match self {
            Self::Dpdk(testpmd) => testpmd.tell("start"),
            Self::Offramp(_) => Ok(()),
        }
    }

    /// Returns the number of frames from the guest. For offramp, these are the frames sent on the wire. For DPDK, these
    /// are the frames received by testpmd.
    fn sent(&mut self) -> Result<Count> {
        match self {
            Self::Dpdk(testpmd) => received(testpmd),
            Self::Offramp(program) => {
                let report = next_report(program)?;
                Ok(Count { at_ns: report.t_ns, packets: report.sent })
            }
        }
    }

    /// Returns offramp's own counters, or `None` for another backend.
    fn report(&mut self) -> Result<Option<Report>> {
        match self {
            Self::Dpdk(_) => Ok(None),
            Self::Offramp(program) => next_report(program).map(Some),
        }
    }

    fn end(self) {
        match self {
            Self::Dpdk(testpmd) => testpmd.quit(),
            Self::Offramp(program) => {
                program.terminate(REPORT_TIMEOUT);
            }
        }
    }
}

/// Returns the next complete report of offramp.
fn next_report(program: &mut Program) -> Result<Report> {
    let mark = program.mark();
    program.wait_for("a report", mark, REPORT_TIMEOUT, last_report)
}

/// Returns the last complete report in a text.
fn last_report(text: &str) -> Option<Report> {
    let (whole, _) = text.rsplit_once('\n')?;
    whole.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_report_is_read_and_half_a_line_is_not() {
        let line = |sent| serde_json::to_string(&Report { sent, ..Report::default() }).unwrap();
        let text = format!("1}}\n{}\n{}\n{}", line(1), line(2), &line(3)[..10]);
        assert_eq!(last_report(&text).unwrap().sent, 2);
        assert!(last_report(&line(1)).is_none());
    }

    #[test]
    fn busy_time_is_per_packet_of_the_direction() {
        let first = Report { taken: 10, given: 100, busy_ns: 1000, ..Report::default() };
        let last = Report { taken: 20, given: 200, busy_ns: 2000, ..Report::default() };
        assert!((busy_ns(Direction::GuestToLine, &first, &last) - 100.0).abs() < 1e-9);
        assert!((busy_ns(Direction::LineToGuest, &first, &last) - 10.0).abs() < 1e-9);
        assert!(busy_ns(Direction::Loop, &first, &first).is_nan());
    }
}
