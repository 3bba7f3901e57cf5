//! Starts and ends the daemon, either inside another program, whose process keeps its privileges, or as the process of
//! `offramp up`.
//!
//! `offramp up` first reads the file, opens privileged devices and gives up privileges. The process then opens the
//! stored sequence numbers of the keys, enters the sandbox and creates the control socket. Last, the process starts the
//! threads and reports readiness.

use crate::apply;
use crate::build::{self, Devices, connect_to};
use crate::change::Change;
use crate::config::{Config, ConfigError, DaemonConfig};
use crate::control::directory::{self, DirectoryError, MadeDirectory};
use crate::control::server::{self, Access};
use crate::control::socket::{self, ControlSocket, SocketError};
use crate::daemon::Daemon;
use crate::drain::Rest;
use crate::error::BuildError;
use crate::given::{self, Given, GivenError};
use crate::metrics::MetricsSocket;
use crate::missing::missing;
use crate::notify;
use crate::port::Port;
use crate::privilege::{Groups, Identity, PrivilegeError};
use crate::process;
use crate::sandbox;
use crate::schema::{SandboxLevel, SandboxStatus};
use crate::state::{self, StateError};
use crate::switch::RunningSwitch;
use crate::threads::Threads;
use crate::touched::TouchedMemory;
use crate::watchdog;
use offramp_ports::sys::sandbox::{Sandbox, ThreadKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Permissions of the directories that the daemon creates: the public directory of a control socket, and a directory
/// for the daemon's user only.
const CONTROL_DIRECTORY_MODE: u32 = 0o755;
const PRIVATE_DIRECTORY_MODE: u32 = 0o700;

/// The beginning of the line on standard output that reports readiness.
pub const READY: &str = "offramp: ready: ";

/// The error of a failed start, as a one-line message.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartError(Cause);

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Given(#[from] GivenError),
    #[error("{doing}: {cause}")]
    System { doing: &'static str, cause: io::Error },
}

/// Options that replace the socket path in the file. Each option requires a file with exactly one guest for which the
/// daemon listens.
#[derive(Clone, Debug, Default)]
pub struct GuestSockets {
    /// The descriptor of a listening socket, inherited from the parent process (`--fd`). The process takes ownership of
    /// the descriptor.
    pub fd: Option<RawFd>,
    /// A path that replaces the path in the file (`--socket-path`).
    pub path: Option<PathBuf>,
}

/// The configuration of a process.
#[derive(Clone, Debug)]
pub enum Input {
    /// A file. The process reads it again at SIGHUP.
    File(PathBuf),
    /// The text of a file, made from options of the command line.
    Text {
        /// The text.
        toml: String,
        /// The first line of each part of the text, and the option from which the part was made, in order. Errors name
        /// the option instead of the line.
        origins: Vec<(usize, String)>,
    },
}

impl Input {
    fn load(&self) -> Result<Config, ConfigError> {
        match self {
            Self::File(file) => Config::load(file),
            Self::Text { toml, origins } => Config::parse(Path::new(""), toml).map_err(|error| match error {
                ConfigError::Wrong { line, message, .. } => {
                    let origin = origins.iter().rev().find(|(first, _)| *first <= line);
                    let option = origin.map_or("the options".to_owned(), |(_, option)| option.clone());
                    ConfigError::Option { option, message }
                }
                error => error,
            }),
        }
    }

    fn file(&self) -> io::Result<Option<PathBuf>> {
        if let Self::File(file) = self { std::path::absolute(file).map(Some) } else { Ok(None) }
    }
}

/// Checks a configuration. Returns the number of its ports, and the reasons why it cannot start on this machine now,
/// each in one line. Takes ownership of sockets passed by a service manager, and gives up the process's privileges.
///
/// # Errors
/// Returns the first error of the configuration, in one line.
pub fn check(input: &Input, sockets: &GuestSockets) -> Result<(usize, Vec<String>), StartError> {
    let (config, given) = read(input, sockets).map_err(StartError)?;
    config.warnings(&config.ports).for_each(|warning| log!("offramp: {warning}"));
    Ok((config.ports.len(), missing(&config, &given)))
}

/// Reads the configuration, and takes ownership of the sockets passed by the parent process.
fn read(input: &Input, sockets: &GuestSockets) -> Result<(Config, Given), Cause> {
    let passed = given::take(sockets.fd)?;
    let mut config = input.load()?;
    let path = sockets.path.as_ref().map(std::path::absolute).transpose();
    let path = path.map_err(|cause| Cause::System { doing: "--socket-path", cause })?;
    let given = Given::new(passed, path, &mut config)?;
    Ok((config, given))
}

impl Daemon {
    /// Starts the ports and switches of a configuration. The process keeps its user and its rights, has no sandbox, and
    /// serves no control socket: clients call [`Daemon::answer`].
    ///
    /// # Errors
    /// Returns the error of the first port, switch or thread that fails to start, in one line. Ports, switches and
    /// threads started before the failure are ended.
    pub fn start(config: Config) -> Result<Arc<Self>, StartError> {
        start_here(config).map_err(StartError)
    }
}

fn start_here(config: Config) -> Result<Arc<Daemon>, Cause> {
    let devices = build::open_devices(&config)?;
    let (keys, keeper) = state::open_keys(config.daemon.state_directory.as_deref())?;
    let sandbox = Sandbox::default();
    keeper.start(&keys, &sandbox).map_err(|cause| Cause::System { doing: "starting a thread", cause })?;
    let threads = Threads {
        keys,
        rest: Rest::new().map_err(BuildError::Rest)?,
        sandbox,
        touched: Arc::new(TouchedMemory::open()),
        groups: Groups::find(&config)?,
        socket_directories: None,
        events: Arc::default(),
        given: Arc::default(),
    };
    let status = SandboxStatus { level: SandboxLevel::Off, seccomp: false, landlock: None, lacks: Vec::new() };
    start(None, config, devices, threads, status)
}

/// Starts the ports and switches of a configuration, and the thread that makes changes.
fn start(
    file: Option<PathBuf>,
    config: Config,
    devices: Devices,
    threads: Threads,
    sandbox: SandboxStatus,
) -> Result<Arc<Daemon>, Cause> {
    let parts = start_parts(&config, devices, &threads)?;
    let (daemon, asked) = Daemon::new(file, config, parts, threads, sandbox);
    apply::start(&daemon, asked).map_err(|cause| Cause::System { doing: "starting a thread", cause })?;
    Ok(daemon)
}

/// A daemon with its own process, as started by `offramp up`.
pub struct Process {
    daemon: Arc<Daemon>,
    controls: Vec<(Access, ControlSocket)>,
    metrics: Option<MetricsSocket>,
    signals: Signals,
    /// The directory of the control socket, if the daemon created it.
    made: Option<MadeDirectory>,
}

impl Process {
    /// Turns this process into a daemon: opens privileged devices, gives up privileges, enters the sandbox, serves the
    /// control sockets, and forwards frames. These steps cannot be undone.
    ///
    /// # Errors
    /// Returns the first failure, in one line.
    pub fn start(input: &Input, sockets: &GuestSockets) -> Result<Self, StartError> {
        begin(input, sockets).map_err(StartError)
    }

    /// Reports readiness, and runs until SIGTERM or SIGINT. Reads the file again at SIGHUP. Returns whether every
    /// fetched frame was sent.
    pub fn until_told(mut self) -> bool {
        say_ready(&self.daemon);
        notify::notify(notify::READY);
        while let Some(signal) = self.signals.forever().next() {
            if signal != SIGHUP {
                break;
            }
            self.reload();
        }
        notify::notify(notify::STOPPING);
        // No new client is accepted while the last frames are sent.
        drop((self.controls, self.metrics));
        let is_all_sent = self.daemon.stop();
        drop(self.made);
        is_all_sent
    }

    fn reload(&self) {
        notify::reloading();
        match self.daemon.change(Change::Reload) {
            Ok(difference) => log!("offramp: reloaded\n{}", difference.to_string().trim_end()),
            Err((_, error)) => log!("offramp: reload: {error}; nothing has changed"),
        }
        notify::notify(notify::READY);
    }
}

fn begin(input: &Input, sockets: &GuestSockets) -> Result<Process, Cause> {
    let (config, given) = read(input, sockets)?;
    let system = |doing| move |cause| Cause::System { doing, cause };
    process::prepare().map_err(system("setting the limits of the process"))?;
    // The signal handlers are installed first, so that no signal ends the process in the middle of a later step.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(system("watching for signals"))?;
    let file = input.file().map_err(system("finding the file"))?;
    let identity = Identity::find(&config)?;
    directory::is_private(config.daemon.directory())?;
    config.daemon.sockets().try_for_each(|(key, path)| socket::check_free(key, path))?;
    let devices = build::open_devices(&config)?;
    config.warnings(&config.ports).for_each(|warning| log!("offramp: {warning}"));
    let made = make_control_directory(&config.daemon, &identity)?;
    if let Some(directory) = &config.daemon.state_directory {
        identity.make_directory(directory, PRIVATE_DIRECTORY_MODE)?;
    }
    identity.assume()?;
    // The paths are checked before the sandbox is entered: in the sandbox, the daemon cannot find the cause of a
    // refusal.
    config.daemon.sockets().try_for_each(|(key, path)| socket::may_create(key, path))?;
    process::leave_no_core().map_err(system("keeping the process from being dumped"))?;
    let (keys, keeper) = state::open_keys(config.daemon.state_directory.as_deref())?;
    let groups = identity.groups();
    // The metrics socket is created before the sandbox is entered, in which no thread can create an Internet socket.
    let metrics = config.daemon.metrics.as_ref().map(|address| MetricsSocket::listen(address, groups)).transpose()?;
    let touched = Arc::new(TouchedMemory::open());
    let (sandbox, sandbox_status, socket_directories) =
        sandbox::enter(&config, file.as_deref(), std::env::var(notify::SOCKET_VARIABLE).ok().as_deref());
    let controls = listen_for_clients(&config.daemon, groups)?;
    let rest = Rest::new().map_err(BuildError::Rest)?;
    keeper.start(&keys, &sandbox).map_err(system("starting a thread"))?;
    let threads = Threads {
        keys,
        rest,
        sandbox: sandbox.clone(),
        touched,
        groups: groups.clone(),
        socket_directories,
        events: Arc::default(),
        given: Arc::new(given),
    };
    let daemon = start(file, config, devices, threads, sandbox_status.clone())?;
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
    Ok(Process { daemon, controls, metrics, signals, made })
}

/// Creates the directory of the control socket, if it is missing. Dropping the result removes the directory.
fn make_control_directory(config: &DaemonConfig, identity: &Identity) -> Result<Option<MadeDirectory>, Cause> {
    let path = config.directory();
    let is_private = directory::is_private(path)?;
    let mode = if is_private { PRIVATE_DIRECTORY_MODE } else { CONTROL_DIRECTORY_MODE };
    // A daemon that was killed may have left its private directory behind. So an existing private directory also counts
    // as created by this daemon, and is removed at the end.
    let is_own = identity.make_directory(path, mode)? || is_private;
    let made = is_own.then(|| MadeDirectory::new(path));
    // Another user may have created the directory since the first check.
    directory::is_private(path)?;
    Ok(made)
}

/// Prints the line that reports readiness, with the numbers of ports and switches, and the path of the control socket.
/// Standard output may have no reader, so a write error is ignored.
fn say_ready(daemon: &Daemon) {
    let state = daemon.state();
    let count = |number: usize, one: &str, more: &str| format!("{number} {}", if number == 1 { one } else { more });
    let ports = count(state.ports.len(), "port", "ports");
    let switches = count(state.switches.len(), "switch", "switches");
    let control = state.config.daemon.control.display();
    let _ = writeln!(io::stdout(), "{READY}{ports}, {switches}, control {control}");
}

/// Prints the active restrictions of the sandbox, and warns of restrictions that the kernel lacks.
fn say(sandbox: &SandboxStatus) {
    if sandbox.lacks.is_empty() {
        // Standard output may have no reader, so a write error is ignored.
        let _ = writeln!(io::stdout(), "offramp: {sandbox}");
    } else {
        log!("offramp: {sandbox}");
    }
}

/// Starts all ports and switches of the file.
fn start_parts(
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
