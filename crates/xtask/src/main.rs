//! Tests of offramp against other projects: DPDK, Linux guests in QEMU, strongSwan.

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

/// Tests of offramp against other projects: DPDK, Linux guests in QEMU, strongSwan.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the effect of each control-queue command of a guest in QEMU's generic vhost-user device
    ControlQueueMatrix(guest::control_queue::Args),
    /// Build all parts of a release: package, static program, container image, checksums
    Dist(dist::Args),
    /// Test every ring path of DPDK's virtio driver against a backend, judged by captures
    DpdkInterop(interop::Args),
    /// Print the path of the guests' kernel; downloads a missing kernel
    GuestKernel(guest::kernel::Args),
    /// Test a Linux guest's virtio driver with every option against a backend
    GuestMatrix(guest::Args),
    /// Attack the backend from inside a guest until SIGTERM
    #[command(hide = true)]
    GuestAttack(hostile_guest::attack::Args),
    /// Measure a Linux guest's TCP while another guest of the same daemon attacks
    HostileGuest(hostile_guest::Args),
    /// Compare the instructions per frame of each kind of work, by callgrind, with the table in the repository
    Instructions(instructions::Args),
    /// Test a port with IPsec against a Linux kernel's IPsec
    IpsecPeer(ipsec_peer::Args),
    /// Migrate a Linux guest from one daemon to another while TCP runs
    Migrate(guest::migrate::Args),
    /// Measure the cost of adding ports to a running daemon and removing them
    PortsAtRunTime(ports_at_run_time::Args),
    /// Test a port with IPsec against strongSwan's ESP in user space
    StrongswanPeer(strongswan_peer::Args),
    /// Run two adapters with a cable between them, guest to guest or guest to TAP; or an echo
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
