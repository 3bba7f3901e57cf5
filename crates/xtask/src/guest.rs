//! A Linux guest in QEMU, or as a program (User Mode Linux): its own driver, with every option, against a backend.
//!
//! Each combination of driver options boots a Debian kernel. The harness compares the negotiated features and the
//! guest's `ethtool` output with the offer, and sends bytes over TCP both ways, judged by SHA-256.

mod backports;
pub mod control_queue;
mod image;
pub mod kernel;
mod machine;
pub mod migrate;
mod options;
mod restart;
mod selftest;
mod switch;
pub mod tcp;

use crate::failure::{Doing, Failure, Result, failed, not_possible};
use crate::interop::Tally;
use crate::packages;
use crate::program::{Program, shown};
use crate::scratch::Scratch;
use image::Image;
use machine::{MachineConfig, Monitor};
use offramp_ports::sys::{NetNs, confine, link};
use options::Options;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time from the start of offramp to its ports.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for offramp to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The TAP of the host's TCP/IP.
pub const TAP: &str = "xtask0";
/// Queue pairs of a guest with several.
const QUEUE_PAIRS: u16 = 2;

pub use image::Extras;
pub use machine::{Machine, PREFIX_LEN};
pub use tcp::HOST;

/// Default IP bytes of a frame.
pub const MTU: u16 = 1500;

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

/// A Linux guest's virtio driver with every option, against a backend.
#[derive(clap::Args)]
pub struct Args {
    /// Every pair of options, not the short selection
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
    /// Only combinations and cases with this in their text
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
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
    /// Makes the boot files of guests in the scratch directory.
    ///
    /// # Errors
    /// When QEMU or the kernel is not available.
    pub fn base(&self, extras: Extras, scratch: &Scratch) -> Result<Base> {
        let qemu = packages::need(packages::QEMU)?;
        let image = Image::build(self.cache.as_deref(), extras, scratch)?;
        Ok(Base { qemu: Some((qemu, self.accel.clone())), image })
    }
}

/// The common part of all guests.
#[derive(Debug)]
pub struct Base {
    /// The program and its accelerators; none for User Mode Linux.
    qemu: Option<(PathBuf, Vec<String>)>,
    image: Image,
}

impl Base {
    /// Makes User Mode Linux and its boot files in the scratch directory.
    fn user_mode(scratch: &Scratch) -> Result<Self> {
        Ok(Self { qemu: None, image: Image::user_mode(Extras::default(), scratch)? })
    }

    /// Configures a guest with the address [`tcp::GUEST`], in QEMU.
    fn machine(&self, network: Vec<String>, device: String) -> Result<MachineConfig> {
        let Some((program, accel)) = self.qemu.clone() else { return failed("these guests are not QEMU's") };
        let device = ["virtio-net-pci,netdev=net0,romfile=".to_owned(), device].join(",");
        Ok(self.with(Monitor::Qemu { program, accel, network, device }))
    }

    fn with(&self, monitor: Monitor) -> MachineConfig {
        let Image { kernel, initramfs, .. } = &self.image;
        MachineConfig {
            monitor,
            kernel: kernel.clone(),
            initramfs: initramfs.clone(),
            address: tcp::GUEST,
            cpus: machine::CPUS,
            arguments: "",
        }
    }

    /// Returns the content of the guest's `/payload`.
    pub fn payload(&self) -> &[u8] {
        &self.image.payload
    }

    /// Starts a guest with one processor, and a card with one queue pair of split rings; [`Machine::wait_until_ready`]
    /// must follow.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_small(&self, small: Small, ns: &NetNs) -> Result<Machine> {
        let options = [("mq", "off"), ("packed", "off"), ("tx_queue_size", "1024"), ("host_mtu", small.mtu)];
        let device = options::short(&options).device_arguments(1, BackendKind::Offramp);
        let config = MachineConfig {
            address: small.address,
            cpus: 1,
            arguments: small.arguments,
            ..self.machine(small.network, format!("{device},mac={}", small.mac))?
        };
        Machine::start(&config, ns)
    }

    /// Boots a guest with one queue pair. Its card has every feature of both QEMU's own backend and offramp on, and
    /// interrupts supported by both.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn boot(&self, network: Vec<String>, ns: &NetNs) -> Result<Machine> {
        let options = options::short(&[("mq", "off")]);
        Machine::boot(&self.machine(network, options.device_arguments(1, BackendKind::Offramp))?, ns)
    }
}

/// The parameters of a guest with one processor.
#[derive(Clone, Debug)]
pub struct Small<'a> {
    /// The host's side of its card: [`vhost_user_network`] or [`qemu_tap_network`].
    pub network: Vec<String>,
    /// Its Ethernet address.
    pub mac: &'a str,
    /// Its address.
    pub address: Ipv4Addr,
    /// Largest MTU announced by its card, where its backend announces one.
    pub mtu: &'static str,
    /// Additions to its kernel's command line.
    pub arguments: &'static str,
}

/// The start of every case.
struct Bench<'a> {
    args: &'a Args,
    base: Base,
    scratch: Scratch,
}

impl Bench<'_> {
    fn is_wanted(&self, name: &str) -> bool {
        self.args.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Configures a guest with those options, behind a port or behind QEMU's own backend.
    fn machine(&self, options: &Options) -> Result<MachineConfig> {
        let backend = self.args.backend;
        match self.args.kind {
            GuestKind::Uml => Ok(self.user_mode(&socket(&self.scratch))),
            GuestKind::Qemu => self
                .base
                .machine(network(backend, options, &self.scratch), options.device_arguments(QUEUE_PAIRS, backend)),
        }
    }

    /// Configures a guest in User Mode Linux behind the port at that socket.
    fn user_mode(&self, socket: &str) -> MachineConfig {
        self.base.with(Monitor::Uml { socket: socket.into(), directory: self.scratch.path().to_owned() })
    }
}

/// A case with more than one guest, or more than one backend, one after another.
struct Case {
    name: &'static str,
    /// The short run has it, too.
    is_short: bool,
    /// The programs for its guests.
    guests: &'static [GuestKind],
    run: fn(&Bench) -> Result<()>,
}

/// Cases of a guest with offramp's daemon.
const CASES: [Case; 3] = [
    Case {
        name: "two guests on one switch, the offloads of one off and on",
        is_short: true,
        guests: &[GuestKind::Qemu, GuestKind::Uml],
        run: switch::run,
    },
    Case {
        name: "what a guest sets by its control queue",
        is_short: true,
        // QEMU's card serves the queue itself; control-queue-matrix tests its generic card.
        guests: &[GuestKind::Uml],
        run: control_queue::run_in_user_mode,
    },
    Case {
        name: "a TCP connection through a backend that is killed",
        is_short: false,
        // User Mode Linux does not connect again.
        guests: &[GuestKind::Qemu],
        run: restart::run,
    },
];

/// Runs the combinations and the cases, and prints a line for each. Returns whether none failed.
///
/// # Errors
/// When the guest's kernel cannot be had, or a signal comes.
pub fn run(args: &Args) -> Result<bool> {
    let scratch = Scratch::new()?;
    let base = match (args.kind, args.backend) {
        (GuestKind::Uml, BackendKind::Offramp) => Base::user_mode(&scratch)?,
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
        if !bench.is_wanted(&name) {
            continue;
        }
        let config = bench.machine(&options)?;
        if args.print_commands {
            println!("# {name}");
            if args.backend == BackendKind::Offramp {
                println!("{}", shown(&offramp_command(args.kind, &options, &bench.scratch)?));
            }
            println!("{}", shown(&config.command()));
            continue;
        }
        let began = Instant::now();
        let judged = run_one(args, &options, &config, &bench.base.image, &bench.scratch);
        boots.extend(judged.as_ref().ok());
        tally.count(&name, began, judged.map(drop))?;
    }
    if args.full && args.kind == GuestKind::Qemu && args.only.is_none() && !args.print_commands {
        let why = "QEMU 7.2's card has no such option, and Linux 6.1's driver does not take the feature";
        tally.count("in_order", Instant::now(), not_possible(why))?;
    }
    if let Some(slowest) = boots.iter().max() {
        println!("slowest boot: {:.1} s", slowest.as_secs_f64());
    }
    Ok(())
}

fn run_cases(bench: &Bench, tally: &mut Tally) -> Result<()> {
    let args = bench.args;
    for case in CASES.iter().filter(|case| (args.full || case.is_short) && bench.is_wanted(case.name)) {
        if !case.guests.contains(&args.kind) {
            continue;
        }
        if args.print_commands {
            println!("# {}: several programs, started and stopped as it goes", case.name);
            continue;
        }
        tally.count(case.name, Instant::now(), (case.run)(bench))?;
    }
    Ok(())
}

fn socket(scratch: &Scratch) -> String {
    scratch.file("guest.sock")
}

/// Returns QEMU's arguments for the host's side of the card.
fn network(backend: BackendKind, options: &Options, scratch: &Scratch) -> Vec<String> {
    let queues = options.queue_pairs(QUEUE_PAIRS);
    match backend {
        BackendKind::QemuTap => qemu_tap_network(TAP, queues),
        BackendKind::Offramp => vhost_user_network(&socket(scratch), queues, ""),
    }
}

/// Returns the same for QEMU's own backend, without the kernel's help (vhost).
pub fn qemu_tap_network(tap: &str, queues: u16) -> Vec<String> {
    vec!["-netdev".to_owned(), format!("tap,id=net0,ifname={tap},script=no,downscript=no,vhost=off,queues={queues}")]
}

/// Returns the same for a vhost-user port; `chardev` are more options of the socket (`,reconnect=1`).
pub fn vhost_user_network(socket: &str, queues: u16, chardev: &str) -> Vec<String> {
    vec![
        "-chardev".to_owned(),
        format!("socket,id=vhost0,path={socket}{chardev}"),
        "-netdev".to_owned(),
        format!("vhost-user,id=net0,chardev=vhost0,queues={queues}"),
    ]
}

fn offramp_command(kind: GuestKind, options: &Options, scratch: &Scratch) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().doing("finding this program")?);
    command.args(["vhost-relay", "--socket", &socket(scratch), "--tap", TAP]);
    command.args(["--queues", &options.queue_pairs(QUEUE_PAIRS).to_string(), "--mtu", &options.mtu().to_string()]);
    // QEMU's card filters the offer for its guest; User Mode Linux shows all of it.
    if kind == GuestKind::Uml {
        command.args(["--user-mode-linux", &format!("--without={}", options.off().join(","))]);
    }
    Ok(command)
}

/// Boots a guest, judges it, and returns the time of its boot.
fn run_one(
    args: &Args,
    options: &Options,
    config: &MachineConfig,
    image: &Image,
    scratch: &Scratch,
) -> Result<Duration> {
    let ns = NetNs::new().doing("making a network namespace (run as root)")?;
    let relay = match args.backend {
        BackendKind::QemuTap => None,
        BackendKind::Offramp => Some(start_offramp(args.kind, options, scratch, &ns)?),
    };
    let mut machine = Machine::boot(config, &ns)?;
    let mut judged = judge(args, options, &mut machine, &ns, image);
    let boot_time = machine.boot_time();
    if let Err(Failure::Failed(why)) = &mut judged {
        why.push_str(&counters(&mut machine, &ns));
    }
    machine.power_off();
    let last_words = relay.map(|relay| relay.terminate(END_TIMEOUT)).unwrap_or_default();
    if let Err(Failure::Failed(why)) = &mut judged {
        why.push_str(&last_words);
    }
    judged.map(|()| boot_time)
}

fn start_offramp(kind: GuestKind, options: &Options, scratch: &Scratch, ns: &NetNs) -> Result<Program> {
    // A missing file need not be removed.
    let _ = std::fs::remove_file(socket(scratch));
    let mut command = offramp_command(kind, options, scratch)?;
    confine(&mut command, Some(ns), None).doing("preparing offramp")?;
    let mut program = Program::start("offramp", command)?;
    program.wait_for("\"ready\"", 0, READY_TIMEOUT, |text| text.contains("ready\n").then_some(()))?;
    Ok(program)
}

fn judge(args: &Args, options: &Options, machine: &mut Machine, ns: &NetNs, image: &Image) -> Result<()> {
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
    tcp::guest_to_host(machine, ns, tcp::HOST.into(), &image.payload)?;
    tcp::host_to_guest(machine, ns, tcp::HOST.into())?;
    Ok(())
}

/// Returns the counters of both ends, for a message.
fn counters(machine: &mut Machine, ns: &NetNs) -> String {
    let guest =
        machine.run("grep -H . /sys/class/net/eth0/statistics/[rt]x_* | sed 's/.*statistics.//' | grep -v ':0'");
    let host =
        ns.run(|| link::statistics(TAP)).doing("the host's counters").and_then(|s| s.doing("the host's counters"));
    format!("\n--- guest ---\n{}\n--- host ---\n{host:?}", guest.unwrap_or_else(|why| why.to_string()).trim())
}

/// Gives the host's end of the TAP its address.
///
/// # Errors
/// When there is no TAP, or it has the address.
pub fn prepare_host(ns: &NetNs, mtu: u16) -> Result<()> {
    let prepared = ns.run(|| {
        link::set_mtu(TAP, u32::from(mtu))?;
        link::add_address(TAP, IpAddr::V4(tcp::HOST), PREFIX_LEN)?;
        link::set_up(TAP)
    });
    prepared.doing("entering the namespace")?.doing("preparing the host's end of the TAP")
}
