//! Checks a veth pair inside a guest with a given kernel, or the guest's virtio-net card against a TAP of this machine.

use offramp_check::end::{End, LocalEnd};
use offramp_check::error::CheckError;
use offramp_check::peer::{self, PORT_DEFAULT, RemoteEnd, Serve};
use offramp_ports::sys::link;
use offramp_testbed::guest::GuestSpec;
use offramp_testbed::guest::protocol::INTERFACE;
use offramp_testbed::guest::{TapGuest, agent};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The first argument of the program when it runs as the guest's first process.
pub const ARGUMENT: &str = "check-guest";
/// Addresses of the TAP and of the guest, in a separate namespace (RFC 5737, addresses for documentation).
const HOST: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), PREFIX_LEN);
const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PREFIX_LEN: u8 = 24;
/// The kernel modules that the guest loads in addition to the modules for its virtio-net card. Packet sockets are built
/// into the kernel.
const MODULES: [&str; 1] = ["veth"];
const VETH: [&str; 2] = ["va", "vb"];
/// The guest's interfaces. A server for each accepts checks, on consecutive TCP ports from [`PORT_DEFAULT`] on.
const SERVED: [&str; 3] = [INTERFACE, VETH[0], VETH[1]];
/// Maximum wait for the card's carrier. Linux reports carrier changes at most once per second.
const CARRIER_PATIENCE: Duration = Duration::from_secs(10);
const CARRIER_POLL: Duration = Duration::from_millis(20);
/// Directory for saved settings. The guest's file system and interfaces vanish with the guest, so any directory is
/// suitable.
const STATE_DIR: &str = "/tmp";

/// A path of the guest to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GuestPath {
    /// The guest's virtio-net card, against a TAP of this machine
    VirtioNet,
    /// The virtio-net card with two queue pairs and RSS
    VirtioNetRss,
    /// A veth pair inside of the guest
    Veth,
}

/// Boots the guest and opens the two ends of the path. The guest must outlive both ends.
pub fn ends(
    spec: &GuestSpec,
    path: GuestPath,
    state_dir: &Path,
    stop: &Arc<AtomicBool>,
) -> Result<(TapGuest, [Box<dyn End>; 2]), CheckError> {
    let queue_pairs = if path == GuestPath::VirtioNetRss { 2 } else { 1 };
    let guest = TapGuest::boot(spec, ARGUMENT, &MODULES, HOST, queue_pairs, stop)?;
    let served = |at: usize| {
        let peer = format!("{GUEST}:{}", PORT_DEFAULT + at as u16);
        guest.host().run(|| RemoteEnd::connect(&peer, stop))?
    };
    let ends: [Box<dyn End>; 2] = match path {
        GuestPath::Veth => [Box::new(served(1)?), Box::new(served(2)?)],
        GuestPath::VirtioNet | GuestPath::VirtioNetRss => {
            let host = guest.host().try_clone()?;
            let tap =
                LocalEnd::open_in(host, TapGuest::TAP, TapGuest::TAP, state_dir, &mut |line| eprintln!("{line}"))?;
            [Box::new(served(0)?), Box::new(tap)]
        }
    };
    Ok((guest, ends))
}

/// Serves the interfaces of the guest until the guest is shut down.
///
/// # Errors
/// Returns an error if this process is not the first process of a guest, or the interfaces cannot be set up.
pub fn run() -> io::Result<()> {
    agent::first_program(|commands, mut port| {
        set_up()?;
        for (interface, number) in SERVED.into_iter().zip(PORT_DEFAULT..) {
            let listener = TcpListener::bind((GUEST, number))?;
            std::thread::Builder::new().name("server".to_owned()).spawn(move || serve(&listener, interface))?;
        }
        agent::say(&mut port, &agent::ready()?)?;
        wait_for_end(commands)
    })
}

fn set_up() -> io::Result<()> {
    link::create_veth(VETH[0], VETH[1])?;
    for interface in SERVED {
        link::set_up(interface)?;
    }
    link::add_address(INTERFACE, GUEST, PREFIX_LEN)?;
    wait_for_carrier(INTERFACE)
}

fn wait_for_carrier(interface: &str) -> io::Result<()> {
    let state = format!("/sys/class/net/{interface}/operstate");
    let begun = Instant::now();
    while std::fs::read_to_string(&state)?.trim_end() != "up" {
        if begun.elapsed() > CARRIER_PATIENCE {
            return Err(io::Error::other(format!("{interface} has no carrier")));
        }
        std::thread::sleep(CARRIER_POLL);
    }
    Ok(())
}

fn serve(listener: &TcpListener, interface: &str) {
    let config = Serve { interface: interface.to_owned(), state_dir: PathBuf::from(STATE_DIR), allows_public: true };
    if let Err(error) = peer::serve(listener, &config, &AtomicBool::new(false), &mut |line| eprintln!("{line}")) {
        eprintln!("guest: {interface}: {error}");
    }
}

/// Waits until the host closes the serial port `commands`, or ends the guest.
fn wait_for_end(commands: File) -> io::Result<()> {
    BufReader::new(commands).lines().try_for_each(|line| line.map(drop))
}
