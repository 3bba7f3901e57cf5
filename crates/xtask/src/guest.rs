//! Tests of a Linux guest's driver, with every option, against a backend. The guest runs in QEMU, or as an ordinary
//! program (User Mode Linux).
//!
//! For each combination of driver options, the harness boots a Debian kernel. The harness compares the negotiated
//! features and the guest's `ethtool` output with the offer. Finally, the harness sends bytes over TCP in both
//! directions, and checks their SHA-256.

mod accecn;
mod backports;
pub mod control_queue;
pub mod kernel;
pub mod migrate;
pub mod options;
mod restart;
mod selftest;
mod switch;

use crate::tally::{Only, Tally};
use crate::tcp;
use offramp_ports::sys::{NetNs, link};
use offramp_testbed::failure::{Doing, Result, failed, inside, new_namespace, not_possible};
use offramp_testbed::guest::Speech;
use offramp_testbed::guest::busybox::{Base, Extras, HOST, TAP, prepare_host, qemu_tap_network, vhost_user_network};
use offramp_testbed::guest::kernel::Kernel;
use offramp_testbed::guest::shell::{Machine, Shell};
use offramp_testbed::guest::vmm::MachineConfig;
use offramp_testbed::program::{Program, shown};
use offramp_testbed::scratch::Scratch;
use options::Options;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit from the start of offramp until its ports exist.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the end of offramp's process.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of queue pairs of a guest with several pairs.
const QUEUE_PAIRS: u16 = 2;

/// The backend of the guest's network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendKind {
    /// QEMU's own virtio-net device over a TAP
    QemuTap,
    /// offramp's vhost-user port, connected to a TAP
    Offramp,
}

/// The program for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GuestKind {
    /// QEMU
    Qemu,
    /// User Mode Linux; against offramp alone
    Uml,
}

/// Test a Linux guest's virtio driver with every option against a backend.
#[derive(clap::Args)]
pub struct Args {
    /// Run every pair of options, not the short selection
    #[arg(long)]
    full: bool,
    /// The backend of the guest's network card
    #[arg(long, value_enum, default_value_t = BackendKind::QemuTap)]
    backend: BackendKind,
    /// The program for the guest
    #[arg(long = "guest", value_enum, default_value_t = GuestKind::Qemu)]
    kind: GuestKind,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    only: Only,
    /// Print the command lines of each combination instead of running it
    #[arg(long)]
    print_commands: bool,
    /// Print ethtool's output in each guest
    #[arg(long)]
    show_ethtool: bool,
}

/// Options for running guests.
#[derive(clap::Args)]
pub struct GuestArgs {
    /// QEMU's accelerators for a guest (`-accel`), in order of preference
    #[arg(long, default_value = "tcg,thread=multi", value_name = "ACCELERATOR")]
    accel: Vec<String>,
    /// Directory of the guest's kernel (default: offramp-xtask in the user's cache directory)
    #[arg(long, value_name = "DIRECTORY")]
    cache: Option<PathBuf>,
}

impl GuestArgs {
    /// Creates the boot files of guests in the scratch directory.
    ///
    /// # Errors
    /// Returns an error if QEMU or the kernel is not available.
    pub fn base(&self, extras: Extras, scratch: &Scratch) -> Result<Base> {
        let kernel = Kernel::find(Some(&kernel::path(self.cache.as_deref())?), None).doing("the guest's kernel")?;
        Base::in_qemu(&self.accel, kernel, extras, scratch)
    }
}

/// Returns the configuration of a QEMU guest behind a vhost-user port. The guest's network card has the options
/// `options` and `more`.
pub fn behind_port(base: &Base, options: &Options, network: Vec<String>, more: &str) -> Result<MachineConfig> {
    let device = options.device_arguments(1, BackendKind::Offramp);
    base.machine(network, &format!("{device}{more}"))
}

/// The common setup of all cases.
struct Bench<'a> {
    args: &'a Args,
    base: Base,
    scratch: Scratch,
}

impl Bench<'_> {
    /// Configures a guest whose network card has the options `options`, behind a port or behind QEMU's own backend.
    fn machine(&self, options: &Options) -> Result<MachineConfig> {
        let (backend, socket) = (self.args.backend, socket(&self.scratch));
        let queues = options.queue_pairs(QUEUE_PAIRS);
        let network = match (self.args.kind, backend) {
            (GuestKind::Uml, _) => return Ok(self.base.in_user_mode(&socket, &self.scratch)),
            (GuestKind::Qemu, BackendKind::QemuTap) => qemu_tap_network(TAP, queues),
            (GuestKind::Qemu, BackendKind::Offramp) => vhost_user_network(&socket, queues, ""),
        };
        self.base.machine(network, &options.device_arguments(QUEUE_PAIRS, backend))
    }
}

/// A case with offramp's daemon, run in addition to the combinations of options.
struct Case {
    name: &'static str,
    /// True if the short run includes the case.
    is_short: bool,
    /// The programs that can run the guests of the case.
    guests: &'static [GuestKind],
    run: fn(&Bench) -> Result<()>,
}

/// All cases with offramp's daemon.
const CASES: [Case; 4] = [
    Case {
        name: "two guests on one switch, the offloads of one off and on",
        is_short: true,
        guests: &[GuestKind::Qemu, GuestKind::Uml],
        run: switch::run,
    },
    Case {
        name: "settings of a guest by its control queue",
        is_short: true,
        // QEMU's card serves the control queue itself. `control-queue-matrix` tests QEMU's generic card.
        guests: &[GuestKind::Uml],
        run: control_queue::run_in_user_mode,
    },
    Case {
        name: "a TCP connection across kills of the backend",
        is_short: false,
        // User Mode Linux does not reconnect.
        guests: &[GuestKind::Qemu],
        run: restart::run,
    },
    Case {
        name: "AccECN between two guests with Linux 7",
        is_short: false,
        guests: &[GuestKind::Qemu],
        run: accecn::run,
    },
];

/// Runs the combinations and the cases, and prints a line for each combination and each case. Returns `false` if a
/// combination or a case failed.
///
/// # Errors
/// Returns an error if the guest's kernel is not available, or a signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let scratch = Scratch::new()?;
    let base = match (args.kind, args.backend) {
        (GuestKind::Uml, BackendKind::Offramp) => Base::user_mode(Extras::default(), &scratch)?,
        (GuestKind::Uml, BackendKind::QemuTap) => return failed("User Mode Linux needs --backend offramp"),
        (GuestKind::Qemu, _) => args.guest.base(Extras::default(), &scratch)?,
    };
    let bench = Bench { args, base, scratch };
    let mut tally = Tally::default();
    run_matrix(&bench, &mut tally)?;
    if args.backend == BackendKind::Offramp {
        run_cases(&bench, &mut tally)?;
        if args.full && args.kind == GuestKind::Qemu && !args.print_commands {
            selftest::run(&bench, &mut tally)?;
        }
    }
    Ok(args.print_commands || tally.end("guest-matrix"))
}

fn run_matrix(bench: &Bench, tally: &mut Tally) -> Result<()> {
    let args = bench.args;
    let mut boots: Vec<Duration> = Vec::new();
    for options in options::combinations(args.full, args.backend, args.kind) {
        let name = options.name();
        if !args.only.has(&name) {
            continue;
        }
        let config = bench.machine(&options)?;
        if args.print_commands {
            println!("# {name}");
            if args.backend == BackendKind::Offramp {
                println!("{}", shown(&offramp_command(args.kind, &options, &bench.scratch)?));
            }
            println!("{}", shown(&config.command(Shell::LINES)));
            continue;
        }
        let began = Instant::now();
        let judged = run_one(bench, &options, &config);
        boots.extend(judged.as_ref().ok());
        tally.count(&name, began, judged.map(drop))?;
    }
    if args.full && args.kind == GuestKind::Qemu && args.only.has_all() && !args.print_commands {
        let why = "QEMU 7.2's card has no such option, and Linux 6.1's driver does not negotiate the feature";
        tally.count("in_order", Instant::now(), not_possible(why))?;
    }
    if let Some(slowest) = boots.iter().max() {
        println!("slowest boot: {:.1} s", slowest.as_secs_f64());
    }
    Ok(())
}

fn run_cases(bench: &Bench, tally: &mut Tally) -> Result<()> {
    let args = bench.args;
    for case in CASES.iter().filter(|case| (args.full || case.is_short) && args.only.has(case.name)) {
        if !case.guests.contains(&args.kind) {
            continue;
        }
        if args.print_commands {
            println!("# {}: several programs, started and stopped during the case", case.name);
            continue;
        }
        tally.count(case.name, Instant::now(), (case.run)(bench))?;
    }
    Ok(())
}

fn socket(scratch: &Scratch) -> String {
    scratch.file("guest.sock")
}

fn offramp_command(kind: GuestKind, options: &Options, scratch: &Scratch) -> Result<Command> {
    let mut command = relay_command(&socket(scratch), options.mtu())?;
    command.args(["--queues", &options.queue_pairs(QUEUE_PAIRS).to_string()]);
    // QEMU's card filters the features that offramp offers to the guest. User Mode Linux passes all offered features to
    // the guest.
    if kind == GuestKind::Uml {
        command.args(["--user-mode-linux", &format!("--without={}", options.off().join(","))]);
    }
    Ok(command)
}

/// Returns the command that runs two adapters between a socket and the host's TAP.
fn relay_command(socket: &str, mtu: u16) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().doing("finding this program")?);
    command.args(["vhost-relay", "--socket", socket, "--tap", TAP, "--mtu", &mtu.to_string()]);
    Ok(command)
}

fn start_relay(command: Command, socket: &str, ns: &NetNs) -> Result<Program> {
    // The removal fails if the file does not exist.
    let _ = std::fs::remove_file(socket);
    let mut program = Program::start("offramp", command, Some(ns))?;
    program.wait_ready(READY_TIMEOUT)?;
    Ok(program)
}

/// Boots a guest, checks its driver, and returns the duration of the boot.
fn run_one(bench: &Bench, options: &Options, config: &MachineConfig) -> Result<Duration> {
    let (args, scratch, ns) = (bench.args, &bench.scratch, new_namespace()?);
    let relay = match args.backend {
        BackendKind::QemuTap => None,
        BackendKind::Offramp => {
            let command = offramp_command(args.kind, options, scratch)?;
            Some(start_relay(command, &socket(scratch), &ns)?)
        }
    };
    let mut machine = Machine::boot(config, &ns)?;
    let judged = judge(args, options, &mut machine, &ns, &bench.base.payload);
    let judged = judged.map_err(|why| why.map(|why| why + &counters(&mut machine, &ns)));
    let boot_time = machine.boot_time();
    machine.power_off();
    let last_words = relay.map(|relay| relay.terminate(END_TIMEOUT)).unwrap_or_default();
    judged.map(|()| boot_time).map_err(|why| why.map(|why| why + &last_words))
}

fn judge(args: &Args, options: &Options, machine: &mut Machine, ns: &NetNs, payload: &[u8]) -> Result<()> {
    prepare_host(ns, options.mtu())?;
    let features = machine.run("ethtool -k eth0")?;
    if args.show_ethtool {
        println!("{features}");
    }
    let mut wrong = options.check_negotiated(&machine.run("cat /sys/bus/virtio/devices/virtio0/features")?);
    wrong.extend(options.check_features(&features));
    wrong.extend(options.check_rings(&machine.run("ethtool -g eth0")?));
    wrong.extend(options.check_queues(&machine.run("ls /sys/class/net/eth0/queues")?, QUEUE_PAIRS));
    wrong.extend(options.check_mtu(&machine.run("cat /sys/class/net/eth0/mtu")?));
    if !wrong.is_empty() {
        return failed(wrong.join("; "));
    }
    tcp::guest_to_host(machine, ns, HOST.into(), payload)?;
    tcp::host_to_guest(machine, ns, HOST.into())
}

/// Returns the counters of the guest's and the host's interface as text, for a message.
fn counters(machine: &mut Machine, ns: &NetNs) -> String {
    let guest =
        machine.run("grep -H . /sys/class/net/eth0/statistics/[rt]x_* | sed 's/.*statistics.//' | grep -v ':0'");
    let host = inside(ns, "the host's counters", || link::statistics(TAP));
    format!("\n--- guest ---\n{}\n--- host ---\n{host:?}", guest.unwrap_or_else(|why| why.to_string()).trim())
}
