//! Judges of offramp's vhost-user port that are not ours: DPDK, and Linux guests in QEMU.

mod failure;
mod frames;
mod hugepages;
mod interop;
mod packages;
mod pcap;
mod program;
mod scratch;
mod stop;
mod testpmd;

use clap::{Parser, Subcommand};
use failure::Result;
use std::process::ExitCode;

/// Judges of offramp's vhost-user port that are not ours: DPDK, and Linux guests in QEMU.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// DPDK's virtio driver against a backend, in every ring path, judged by captures
    DpdkInterop(interop::Args),
}

fn run(command: &Command) -> Result<bool> {
    stop::listen()?;
    match command {
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
