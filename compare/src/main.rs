//! Compares offramp with other implementations: each does the same work in turn, on the same machine.

mod guests;
mod tunnels;
mod vhost;

use clap::{Parser, Subcommand};
use offramp_testbed::failure::Result;
use offramp_testbed::stop;
use std::process::ExitCode;

/// Compare offramp with other implementations.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare Linux guests behind offramp and behind other backends: TCP and UDP, to the host and to each other
    Guests(guests::Args),
    /// Compare one TCP stream over encrypted links: offramp's adapters, wireguard-go, strongSwan's user-space ESP
    Tunnels(tunnels::Args),
    /// Compare throughput and backend time per packet of DPDK's and offramp's vhost-user backends
    Vhost(vhost::Args),
    /// Run offramp's vhost-user port on a wire that discards, generates or echoes frames
    VhostBackend(vhost::backend::Args),
}

fn run(command: &Command) -> Result<bool> {
    stop::listen()?;
    match command {
        Command::Guests(args) => guests::run(args),
        Command::Tunnels(args) => tunnels::run(args),
        Command::Vhost(args) => vhost::run(args),
        Command::VhostBackend(args) => vhost::backend::run(args).map(|()| true),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("compare: {why}");
            ExitCode::FAILURE
        }
    }
}
