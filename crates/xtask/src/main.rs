//! Judges of other projects: DPDK, Linux guests in QEMU, strongSwan.

mod adapters;
mod dist;
mod guest;
mod hostile_guest;
mod instructions;
mod interop;
mod ipsec_peer;
mod pcap;
mod ports_at_run_time;
mod seam;
mod strongswan_peer;
mod tally;
mod tcp;
mod vhost_relay;

use clap::{Parser, Subcommand};
use offramp_testbed::failure::Result;
use offramp_testbed::stop;
use std::process::ExitCode;

/// Judges of other projects: DPDK, Linux guests in QEMU, strongSwan.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A guest's settings by its control queue, in QEMU's generic vhost-user device: each command has its effect
    ControlQueueMatrix(guest::control_queue::Args),
    /// The parts of a release: package, static program, image of a container, checksums
    Dist(dist::Args),
    /// DPDK's virtio driver against a backend, in every ring path, judged by captures
    DpdkInterop(interop::Args),
    /// The path of the guests' kernel, downloaded if it is missing
    GuestKernel(guest::kernel::Args),
    /// A Linux guest's virtio driver with every option, against a backend
    GuestMatrix(guest::Args),
    /// Attack the backend from inside of a guest; SIGTERM ends it
    #[command(hide = true)]
    GuestAttack(hostile_guest::attack::Args),
    /// Two Linux guests under one daemon: one attacks, the other's TCP is measured
    HostileGuest(hostile_guest::Args),
    /// Instructions per frame of each kind of work, by callgrind, against the table in the repository
    Instructions(instructions::Args),
    /// A Linux kernel does IPsec at the other end of a port with IPsec
    IpsecPeer(ipsec_peer::Args),
    /// A Linux guest moves live from one daemon to another while TCP runs
    Migrate(guest::migrate::Args),
    /// The cost of ports added to a running daemon, and removed from it
    PortsAtRunTime(ports_at_run_time::Args),
    /// strongSwan's ESP in user space at the other end of a port with IPsec
    StrongswanPeer(strongswan_peer::Args),
    /// Two of offramp's adapters with a cable between them, guest to guest or guest to TAP; or an echo
    VhostRelay(vhost_relay::Args),
}

fn run(command: &Command) -> Result<bool> {
    stop::listen()?;
    match command {
        Command::VhostRelay(args) => vhost_relay::run(args).map(|()| true),
        Command::ControlQueueMatrix(args) => guest::control_queue::run(args),
        Command::Dist(args) => dist::run(args).map(|()| true),
        Command::GuestKernel(args) => guest::kernel::run(args).map(|()| true),
        Command::GuestMatrix(args) => guest::run(args),
        Command::GuestAttack(args) => hostile_guest::attack::run(args).map(|()| true),
        Command::HostileGuest(args) => hostile_guest::run(args),
        Command::Instructions(args) => instructions::run(args),
        Command::IpsecPeer(args) => ipsec_peer::run(args),
        Command::Migrate(args) => guest::migrate::run(args),
        Command::PortsAtRunTime(args) => ports_at_run_time::run(args),
        Command::StrongswanPeer(args) => strongswan_peer::run(args),
        Command::DpdkInterop(args) => interop::run(args),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
