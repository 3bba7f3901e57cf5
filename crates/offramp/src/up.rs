//! `offramp up`: adapters that run until a signal ends them.
//!
//! In this order: read the file, open what needs privileges, give them up, open the state of keys, enter the sandbox, take
//! the control socket, start the threads, say that all is ready.

mod apply;
mod build;
mod change;
pub mod config;
mod daemon;
mod drain;
mod error;
mod events;
mod given;
mod host;
mod ipsec;
mod metrics;
mod notify;
mod port;
pub mod privilege;
mod process;
mod report;
mod sa_log;
mod sandbox;
mod state;
mod switch;
mod threads;
mod watchdog;

use crate::control::server::{self, Access};
use crate::control::socket::{self, ControlSocket, SocketError};
use crate::exit::{FAILED, SETUP, fail};
use crate::schema::SandboxStatus;
use build::{Devices, connect_to};
use change::Change;
use config::{Config, ConfigError, DaemonConfig};
use daemon::Daemon;
use drain::Rest;
use error::BuildError;
use given::{Given, GivenError};
use metrics::MetricsSocket;
use offramp_ports::sys::sandbox::ThreadKind;
use port::Port;
use privilege::{Groups, Identity, PrivilegeError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use state::StateError;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use switch::RunningSwitch;
use threads::Threads;

const NOTES: &str = "\
Signals: SIGTERM and SIGINT end it, when every frame it took has gone out; SIGHUP reads the file again.
The file is described in docs/config.md; examples/two-taps.toml begins with how to run it.
Sockets of guests may come from a service manager (LISTEN_FDS), each named after its port: docs/deployment.md.

Exit status: 0 ended by a signal; 1 ended with frames left; 2 wrong options or file, or nothing began.";

/// What QEMU's `docs/interop/vhost-user.json` has a backend say of itself.
const CAPABILITIES: &str = "{\"type\":\"net\"}";

/// Permissions of directories that the daemon makes: anyone may see that the control socket is there.
const CONTROL_DIRECTORY_MODE: u32 = 0o755;
const STATE_DIRECTORY_MODE: u32 = 0o700;

/// Run the adapters that a file describes.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Adapters, wires, features and processors
    #[arg(value_name = "FILE.toml", required_unless_present = "print_capabilities")]
    file: Option<PathBuf>,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// The listening socket of the file's only guest, which this process was started with
    #[arg(long, value_name = "N", conflicts_with = "socket_path")]
    fd: Option<RawFd>,
    /// The socket of the file's only guest, in place of the path there
    #[arg(long, value_name = "PATH")]
    socket_path: Option<PathBuf>,
    /// Only print what kind of vhost-user backend this is, as JSON
    #[arg(long)]
    print_capabilities: bool,
}

/// Why nothing began.
#[derive(Debug, thiserror::Error)]
enum UpError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Given(#[from] GivenError),
    #[error("{doing}: {cause}")]
    System { doing: &'static str, cause: io::Error },
}

/// Runs `offramp up`.
pub fn run(args: &Args) -> ExitCode {
    match begin(args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(running)) => running.until_told(),
        Err(error) => fail(format!("up: {error}"), SETUP),
    }
}

/// Says what is in force. What the kernel lacks is a warning.
fn say(sandbox: &SandboxStatus) {
    if sandbox.lacks.is_empty() {
        // Nobody may read it; then it does not matter.
        let _ = writeln!(io::stdout(), "offramp: {sandbox}");
    } else {
        eprintln!("offramp: {sandbox}");
    }
}

/// What runs, until a signal ends it.
struct Running {
    daemon: Arc<Daemon>,
    controls: Vec<(Access, ControlSocket)>,
    metrics: Option<MetricsSocket>,
    signals: Signals,
}

fn begin(args: &Args) -> Result<Option<Running>, UpError> {
    let Some(file) = args.file.as_ref().filter(|_| !args.print_capabilities) else {
        println!("{CAPABILITIES}");
        return Ok(None);
    };
    let passed = given::take(args.fd)?;
    let mut config = Config::load(file)?;
    let system = |doing| move |cause| UpError::System { doing, cause };
    let socket_path = args.socket_path.as_ref().map(std::path::absolute).transpose();
    let given = Given::new(passed, socket_path.map_err(system("--socket-path"))?, &mut config)?;
    if args.check {
        println!("{}: {} ports, nothing wrong", file.display(), config.ports.len());
        return Ok(None);
    }
    process::prepare().map_err(system("setting the limits of the process"))?;
    // Before anything that a signal would leave half done.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(system("watching for signals"))?;
    let file = std::path::absolute(file).map_err(system("finding the file"))?;
    let identity = Identity::find(&config)?;
    config.daemon.sockets().try_for_each(|(key, path)| socket::check_free(key, path))?;
    let devices = build::open_devices(&config)?;
    identity.make_directory(config.daemon.control.parent().unwrap_or(Path::new("/")), CONTROL_DIRECTORY_MODE)?;
    if let Some(directory) = &config.daemon.state_directory {
        identity.make_directory(directory, STATE_DIRECTORY_MODE)?;
    }
    identity.assume()?;
    process::leave_no_core().map_err(system("keeping the process from being dumped"))?;
    let (keys, keeper) = state::open_keys(config.daemon.state_directory.as_deref())?;
    let groups = identity.groups();
    // A thread in the sandbox makes no socket of the Internet.
    let metrics = config.daemon.metrics.as_ref().map(|address| MetricsSocket::listen(address, groups)).transpose()?;
    let (sandbox, sandbox_status, socket_directories) =
        sandbox::enter(&config, &file, std::env::var(notify::SOCKET_VARIABLE).ok().as_deref());
    let controls = listen_for_clients(&config.daemon, groups)?;
    let rest = Rest::new().map_err(BuildError::Rest)?;
    keeper.start(&keys, &sandbox).map_err(system("starting a thread"))?;
    let (sandbox_of_ports, groups_of_ports, events, given) =
        (sandbox.clone(), groups.clone(), Arc::default(), Arc::new(given));
    let threads =
        Threads { keys, rest, sandbox: sandbox_of_ports, groups: groups_of_ports, socket_directories, events, given };
    let parts = start(&config, devices, &threads)?;
    let (daemon, asked) = Daemon::new(file, config, parts, threads, sandbox_status.clone());
    apply::start(&daemon, asked).map_err(system("starting a thread"))?;
    for (access, control) in &controls {
        let listener = control.listener().map_err(system("listening for clients"))?;
        server::serve(listener, *access, Arc::clone(&daemon), sandbox.clone()).map_err(system("starting a thread"))?;
    }
    if let Some(metrics) = &metrics {
        metrics.serve(Arc::clone(&daemon), sandbox.clone()).map_err(system("starting a thread"))?;
    }
    watchdog::start(&daemon, sandbox.clone()).map_err(system("starting a thread"))?;
    say(&sandbox_status);
    sandbox.enter_thread(ThreadKind::Main);
    Ok(Some(Running { daemon, controls, metrics, signals }))
}

/// Starts all ports and switches of the file.
fn start(
    config: &Config,
    devices: Devices,
    threads: &Threads,
) -> Result<(Vec<Arc<Port>>, Vec<RunningSwitch>), BuildError> {
    let mut opened = build::open(&config.ports, devices, threads)?;
    let start = |switch| RunningSwitch::start(switch, &config.ports, &mut opened, threads);
    let switches = config.switches.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    for (port, config) in opened.iter_mut().zip(&config.ports) {
        connect_to(port, config, &switches)?;
    }
    Ok((opened.into_iter().map(Arc::new).collect(), switches))
}

fn listen_for_clients(config: &DaemonConfig, groups: &Groups) -> Result<Vec<(Access, ControlSocket)>, SocketError> {
    let group = config.control_group.as_ref();
    let full = (Access::Full, config.control_mode, group);
    let read_only = config.control_read_only.iter().map(|(_, mode)| (Access::ReadOnly, *mode, None));
    let sockets = [full].into_iter().chain(read_only).zip(config.control_sockets());
    let listen = |((access, mode, group), (key, path)): ((Access, u32, Option<&String>), (&'static str, &PathBuf))| {
        Ok((access, ControlSocket::listen(key, path, groups.rights(mode, group))?))
    };
    sockets.map(listen).collect()
}

impl Running {
    fn until_told(mut self) -> ExitCode {
        notify::notify(notify::READY);
        while let Some(signal) = self.signals.forever().next() {
            if signal != SIGHUP {
                break;
            }
            self.reload();
        }
        notify::notify(notify::STOPPING);
        // Nobody new gets in while the last frames go out.
        drop((self.controls, self.metrics));
        let is_at_rest = self.daemon.rest();
        self.daemon.remove_sockets();
        if is_at_rest {
            ExitCode::SUCCESS
        } else {
            fail("up: a host did not take the frames queued for it; they are lost", FAILED)
        }
    }

    fn reload(&self) {
        notify::reloading();
        match self.daemon.change(Change::Reload) {
            Ok(difference) => eprint!("offramp: reloaded\n{difference}"),
            Err((_, error)) => eprintln!("offramp: reload: {error}; nothing has changed"),
        }
        notify::notify(notify::READY);
    }
}
