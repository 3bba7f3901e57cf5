//! `offramp check`: checks each offload of an interface for correctness.

pub mod guest;
mod page;
mod port_end;
mod worth;

use crate::bench::stop::{STOPPED, stop_flag};
use crate::capture::percent;
use crate::control::Control;
use crate::exit::{FAILED, SETUP, fail, print};
use guest::GuestPath;
use offramp_check::end::{End, LocalEnd};
use offramp_check::error::CheckError;
use offramp_check::peer::{self, PORT_DEFAULT, RemoteEnd, Serve};
use offramp_check::plan::Depth;
use offramp_check::verdict::Report;
use offramp_check::{report, run as check};
use offramp_testbed::device::default_state_dir;
use offramp_testbed::error::TestbedError;
use offramp_testbed::guest::{Choice, GuestSpec};
use port_end::PortEnd;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use worth::WorthConfig;

const EXAMPLES: &str = "\
Examples:
  offramp check --pair eth0 eth1                  two interfaces here with a cable between them
  offramp check --pair va blue/vb                 the second one in the namespace blue (`ip netns`)
  offramp check --pair va vb --quick              a few cases of each kind
  offramp check --pair va vb --only tso4,rx-gro   two offloads
  offramp check --serve eth1                      the other end of a cable, on another machine
  offramp check --device eth0 --peer 10.0.0.2     this end, against that server
  offramp check --self a b                        two ports of a running daemon
  offramp check --guest-kernel vmlinuz            a kernel's virtio-net driver in QEMU, with a TAP
  offramp check --pair va vb --worth 10.0.0.2     also the worth of each right offload of va
  offramp check --list                            all offloads and cases

The check switches both interfaces by ethtool's kernel interface, and restores every setting. After a crash \
`offramp lab --restore` or the next check of the interface restores them. Frames have addresses from 198.18.0.0/15 and \
fd00::/8 and an unused Ethernet address: other traffic can go on.

Exit status: 0 all right; 1 at least one offload is wrong, or too much is lost; 2 not checked, or not tested in part; \
130 stopped.";

/// Check each offload of an interface for correctness: send known frames, and compare the received ones to the byte
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("what").args(["pair", "device", "serve", "ports", "guest_kernel", "list"]).required(true)))]
pub struct Args {
    /// The two ends of a path: interfaces, or NS/IF in another network namespace (a name of `ip netns`, or a path)
    #[arg(long, num_args = 2, value_names = ["IF", "IF"])]
    pair: Vec<String>,
    /// An interface of this machine, against that of a peer
    #[arg(long, value_name = "IF", requires = "peer")]
    device: Option<String>,
    /// Address of `offramp check --serve` at the other end of the path
    #[arg(long, value_name = "HOST[:PORT]", requires = "device")]
    peer: Option<String>,
    /// Let peers check against this interface, one after the other
    #[arg(long, value_name = "IF")]
    serve: Option<String>,
    /// Address of the server [default: every address, and public ones refuse]
    #[arg(long, value_name = "ADDR[:PORT]", requires = "serve")]
    bind: Option<String>,
    /// Two ports of a running daemon with TAPs as hosts; none if only one pair is possible
    #[arg(long = "self", num_args = 0..=2, value_names = ["PORT", "PORT"])]
    ports: Option<Vec<String>>,
    #[command(flatten)]
    control: Control,
    /// Boot this kernel (vmlinuz) in QEMU and check an interface there
    #[arg(long, value_name = "FILE")]
    guest_kernel: Option<PathBuf>,
    /// The kernel's modules [default: lib/modules beside its directory, else /lib/modules]
    #[arg(long, value_name = "DIR", requires = "guest_kernel")]
    guest_modules: Option<PathBuf>,
    /// Path to check in the guest
    #[arg(long, value_enum, default_value = "virtio-net", requires = "guest_kernel")]
    guest_path: GuestPath,
    /// List the offloads, each with its meaning
    #[arg(long)]
    list: bool,
    /// A few cases of each kind instead of every boundary
    #[arg(long)]
    quick: bool,
    /// Check only these offloads: names of --list, of ethtool, or groups such as tso, uso, rsc, checksum
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Also measure the worth of each correct offload of the first interface; `offramp ttcp --serve` runs there
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["serve", "ports", "guest_kernel", "list"])]
    worth: Option<String>,
    /// Seed of the payloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Write the verdicts as a test suite, for a CI
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the verdicts in the kernel's test format (KTAP)
    #[arg(long, value_name = "FILE")]
    ktap: Option<PathBuf>,
    /// Exit with 1 if more than this share of the cases lost frames
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_on_loss: Option<f64>,
    /// Write a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the frames of each failure: sent, expected and captured
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
    /// Directory of the settings to restore
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Args {
    fn depth(&self) -> Depth {
        if self.quick { Depth::Quick } else { Depth::Full }
    }

    fn state_dir(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(default_state_dir)
    }
}

/// Runs `offramp check`.
pub fn run(args: &Args) -> ExitCode {
    if args.list {
        for (name, about) in check::list() {
            print(format_args!("{name:<18} {about}\n"));
        }
        return ExitCode::SUCCESS;
    }
    if args.control.is_given() && args.ports.is_none() {
        return fail("check: --control belongs to --self; leave it out, or name two ports of the daemon", SETUP);
    }
    // A second signal ends the process at once. The next check, or `lab --restore`, then restores the settings.
    let stop = match stop_flag() {
        Ok(stop) => stop,
        Err(error) => return fail(format!("check: {error}"), SETUP),
    };
    if let Some(interface) = &args.serve {
        return serve_peers(args, interface, &stop);
    }
    match check_path(args, &stop) {
        Err(CheckError::Stopped | CheckError::Settings(TestbedError::Stopped)) => {
            fail("check: stopped; every setting was put back", STOPPED)
        }
        Err(error) => fail(format!("check: {error}"), SETUP),
        Ok(mut found) => {
            let measured = args.worth.as_ref().map_or(Ok(()), |peer| measure(args, peer, &mut found, &stop));
            let status = show(args, &found);
            match measured {
                Ok(()) => status,
                Err(CheckError::Settings(TestbedError::Stopped)) => {
                    fail("check: stopped; every setting was put back", STOPPED)
                }
                Err(error) => fail(format!("check: --worth: {error}"), SETUP),
            }
        }
    }
}

/// Returns the guest described by the options.
fn guest_spec(args: &Args, kernel: &Path) -> Result<GuestSpec, CheckError> {
    let program = std::env::current_exe()?;
    let spec = GuestSpec::find(Choice::Qemu(None), Some(kernel), args.guest_modules.as_deref(), program);
    Ok(spec.map_err(TestbedError::from)?)
}

/// Returns the two ends described by the options.
fn ends(args: &Args, stop: &Arc<AtomicBool>) -> Result<[Box<dyn End>; 2], CheckError> {
    let state_dir = args.state_dir();
    if let Some(ports) = &args.ports {
        let control = args.control.path().map_err(|error| CheckError::Daemon(error.to_string()))?;
        let [a, b] = port_end::two_of(&control, ports)?;
        let open = |status| PortEnd::open(&control, status, &state_dir, &mut |line| eprintln!("{line}"));
        return Ok([Box::new(open(a)?), Box::new(open(b)?)]);
    }
    let open = |name: &str| LocalEnd::open(name, &state_dir, &mut |line| eprintln!("{line}"));
    if let (Some(device), Some(peer)) = (&args.device, &args.peer) {
        let peer = with_port(peer);
        return Ok([Box::new(open(device)?), Box::new(RemoteEnd::connect(&peer, stop)?)]);
    }
    let [a, b] = args.pair.as_slice() else { unreachable!("the command line takes two") };
    if a == b {
        return Err(CheckError::SameInterface(a.clone()));
    }
    Ok([Box::new(open(a)?), Box::new(open(b)?)])
}

/// Returns `host` with a port, which is the server's default port if the text has none.
fn with_port(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, PORT_DEFAULT).to_string(),
        Err(_) if host.contains(':') => host.to_owned(),
        Err(_) => format!("{host}:{PORT_DEFAULT}"),
    }
}

fn serve_peers(args: &Args, interface: &str, stop: &AtomicBool) -> ExitCode {
    let bind = args.bind.as_deref().map_or_else(|| format!("[::]:{PORT_DEFAULT}"), with_port);
    let config =
        Serve { interface: interface.to_owned(), state_dir: args.state_dir(), allows_public: args.bind.is_some() };
    let listener = match TcpListener::bind(&bind) {
        Ok(listener) => listener,
        Err(error) => return fail(format!("check: cannot listen on {bind}: {error}; name another with --bind"), SETUP),
    };
    eprintln!("serving {interface} on {bind}");
    match peer::serve(&listener, &config, stop, &mut |line| eprintln!("{line}")) {
        Ok(()) => ExitCode::from(STOPPED),
        Err(error) => fail(format!("check: {error}"), SETUP),
    }
}

fn check_path(args: &Args, stop: &Arc<AtomicBool>) -> Result<Report, CheckError> {
    let config = check::Config { depth: args.depth(), only: args.only.clone(), seed: args.seed };
    let shows_progress = std::io::stderr().is_terminal();
    let mut progress = |line: &str| {
        if shows_progress {
            eprintln!("{line}");
        }
    };
    if let Some(kernel) = &args.guest_kernel {
        let (guest, mut ends) = guest::ends(&guest_spec(args, kernel)?, args.guest_path, &args.state_dir(), stop)?;
        let report = check::run(&mut ends, &config, stop, &mut progress)?;
        return Ok(Report { kernel: guest.kernel().to_owned(), ..report });
    }
    check::run(&mut ends(args, stop)?, &config, stop, &mut progress)
}

/// Measures the worth of the first end's offloads, and adds the results to the report.
fn measure(args: &Args, peer: &str, found: &mut Report, stop: &AtomicBool) -> Result<(), CheckError> {
    let config = WorthConfig {
        end: found.ends[0].name.clone(),
        peer: peer.to_owned(),
        depth: args.depth(),
        state_dir: args.state_dir(),
    };
    let shows_progress = std::io::stderr().is_terminal();
    let mut progress = |line: &str| {
        if shows_progress {
            eprintln!("{line}");
        }
    };
    worth::measure(found, &config, stop, &mut progress)
}

fn show(args: &Args, found: &Report) -> ExitCode {
    print(if args.json { report::json(found) + "\n" } else { report::text(found) });
    let files = [
        (&args.junit, report::junit(found).into_bytes()),
        (&args.ktap, report::ktap(found).into_bytes()),
        (&args.html, page::document(found).html().into_bytes()),
        (&args.pcapng, report::pcapng(found).expect("memory takes every write")),
    ];
    for (path, bytes) in files.iter().filter_map(|(path, bytes)| path.as_deref().map(|path: &Path| (path, bytes))) {
        if let Err(error) = std::fs::write(path, bytes) {
            return fail(format!("check: {} cannot be written: {error}", path.display()), SETUP);
        }
    }
    ExitCode::from(match () {
        () if found.is_wrong() || args.fail_on_loss.is_some_and(|most| found.loss_percent() > most) => FAILED,
        () if found.not_tested() > 0 => SETUP,
        () => 0,
    })
}
