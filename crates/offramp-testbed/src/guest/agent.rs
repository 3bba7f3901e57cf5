//! The guest's init program. The program mounts file systems, loads modules, and sets up the card. It then executes the
//! commands that `offramp lab` sends over the second serial port.

use super::image::MODULE_ORDER;
use super::protocol::{Answer, Command, GuestTime, INTERFACE, Network, Switches};
use crate::cpu::CpuTimes;
use crate::host::RxCoalescing;
use crate::traffic::{self, PORT_DEFAULT, ServeOptions, ServerStats};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use offramp_ports::sys::{ethtool, link};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// First command-line argument of this program if it runs as the agent of a guest.
pub const ARGUMENT: &str = "guest-agent";
/// Device of the second serial port, for commands. The kernel's console uses the first serial port.
const PORT: &str = "/dev/ttyS1";
/// File systems that the agent mounts first.
const MOUNTS: [(&str, &str); 3] = [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")];
/// Process number of the first program of a system (init).
const FIRST_PROCESS: u32 = 1;

/// Serves the commands of `offramp lab` until the guest is switched off. Returns only on failure.
///
/// # Errors
/// Returns an error if this process is not a system's first program, or the system cannot be prepared.
pub fn run() -> io::Result<()> {
    first_program(|commands, port| Agent { port, began: Instant::now() }.serve(commands))
}

/// Prepares the system, and runs `agent` with the serial port for commands and answers. Switches the guest off when
/// `agent` returns.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn first_program(agent: impl FnOnce(File, File) -> io::Result<()>) -> io::Result<()> {
    if std::process::id() != FIRST_PROCESS {
        return Err(io::Error::other("runs only inside the guest of offramp"));
    }
    let ran = prepare().and_then(|(commands, port)| agent(commands, port));
    if let Err(error) = &ran {
        // Standard error is the first serial port. `offramp lab` shows the first serial port's output if the guest does
        // not answer.
        eprintln!("guest: {error}");
    }
    reboot(RebootMode::RB_POWER_OFF)?;
    ran
}

/// Mounts the file systems, opens the serial port and loads the modules.
fn prepare() -> io::Result<(File, File)> {
    for (kind, place) in MOUNTS {
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>).map_err(|e| saying(place, e))?;
    }
    let port = OpenOptions::new().read(true).write(true).open(PORT).map_err(|e| saying(PORT, e))?;
    let mut settings = tcgetattr(&port)?;
    cfmakeraw(&mut settings);
    tcsetattr(&port, SetArg::TCSANOW, &settings)?;
    for module in fs::read_to_string(MODULE_ORDER)?.lines() {
        finit_module(&File::open(module)?, c"", ModuleInitFlags::empty()).map_err(|e| saying(module, e))?;
    }
    Ok((port.try_clone()?, port))
}

/// Returns the guest's first answer, which names the kernel's version.
///
/// # Errors
/// Returns an error if the kernel's version cannot be read.
pub fn ready() -> io::Result<Answer> {
    Ok(Answer::Ready { kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned() })
}

/// Writes an answer to the serial port.
///
/// # Errors
/// Returns an error if the port is closed.
pub fn say(port: &mut File, answer: &Answer) -> io::Result<()> {
    let line = serde_json::to_string(answer).map_err(io::Error::other)? + "\n";
    port.write_all(line.as_bytes())
}

fn saying(what: &str, cause: impl Into<io::Error>) -> io::Error {
    let cause: io::Error = cause.into();
    io::Error::new(cause.kind(), format!("{what}: {cause}"))
}

struct Agent {
    port: File,
    began: Instant,
}

impl Agent {
    fn serve(&mut self, commands: File) -> io::Result<()> {
        self.say(&ready()?)?;
        for line in BufReader::new(commands).lines() {
            let answer = match serde_json::from_str(&line?) {
                Ok(command) => self.obey(command).map_or_else(Answer::Failed, |()| Answer::Done),
                Err(error) => Answer::Failed(format!("not a command: {error}")),
            };
            self.say(&answer)?;
        }
        Ok(())
    }

    fn say(&mut self, answer: &Answer) -> io::Result<()> {
        say(&mut self.port, answer)
    }

    fn obey(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::SetUp(network) => set_up(&network),
            Command::Switch(switches) => switch(&switches),
            Command::Run { server, params } => {
                let mut lost = None;
                let mut tell = |event: &traffic::Event| {
                    let answer = Answer::Event { event: event.clone(), time: self.time() };
                    lost = lost.take().or(self.say(&answer).err());
                };
                let ran = traffic::run_client(&server.to_string(), PORT_DEFAULT, &params, &mut tell);
                ran.map_err(|error| error.to_string())?;
                lost.map_or(Ok(()), |error| Err(error.to_string()))
            }
            Command::Time => {
                let time = self.time();
                self.say(&Answer::Time(time)).map_err(|error| error.to_string())
            }
        }
    }

    fn time(&self) -> GuestTime {
        // The read of `/proc/stat` succeeds, because `prepare` has mounted `/proc`.
        let busy_us = CpuTimes::read().map_or(0, |times| times.busy_us());
        GuestTime { at_us: self.began.elapsed().as_micros() as u64, busy_us }
    }
}

fn set_up(network: &Network) -> Result<(), String> {
    let set = || {
        link::set_mtu(INTERFACE, network.mtu)?;
        // IPv6 is disabled, because its neighbour and router messages would be counted with the traffic. The call fails
        // on a kernel without IPv6, where the setting is not needed.
        let _ = link::disable_ipv6(INTERFACE);
        link::add_address(INTERFACE, IpAddr::V4(network.address), network.prefix_len)?;
        link::set_up(INTERFACE)?;
        link::add_neighbour(INTERFACE, IpAddr::V4(network.neighbour), network.neighbour_mac)
    };
    set().map_err(|error| error.to_string())?;
    let listener = TcpListener::bind((network.address, PORT_DEFAULT)).map_err(|error| error.to_string())?;
    let server = std::thread::Builder::new().name("ttcp".to_owned()).spawn(move || {
        let (stop, stats) = (AtomicBool::new(false), ServerStats::default());
        if let Err(error) = traffic::serve(&listener, ServeOptions::default(), &stop, &stats, &|_| ()) {
            eprintln!("guest: the traffic server: {error}");
        }
    });
    server.map(drop).map_err(|error| error.to_string())
}

fn switch(switches: &Switches) -> Result<(), String> {
    let features: Vec<_> = switches.features.iter().map(|(name, on)| (name.as_str(), *on)).collect();
    ethtool::set_features(INTERFACE, &features)
        .and_then(|()| link::set_gso_segs_max(INTERFACE, switches.gso_segs_max))
        .map_err(|error| error.to_string())?;
    match switches.rx_coalescing {
        None => Ok(()),
        Some(RxCoalescing::Fixed { usecs, frames }) => {
            ethtool::set_rx_coalescing(INTERFACE, usecs, frames).map_err(|error| error.to_string())
        }
        Some(RxCoalescing::Adaptive) => ethtool::set_adaptive_rx(INTERFACE)
            .map_err(|error| format!("{error}; name a kernel whose virtio_net has DIM with --guest-kernel")),
    }
}
