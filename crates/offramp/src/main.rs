//! offramp: a network adapter in software, and what each of its offloads is worth.
//!
//! Without the feature `lab` it is the daemon and its commands alone.

#[cfg(feature = "lab")]
mod calibrate;
mod capture;
#[cfg(feature = "lab")]
mod check;
mod exit;

#[cfg(feature = "lab")]
mod lab;

#[cfg(feature = "lab")]
mod model;

mod monitor;
mod pages;
mod ports;
mod sa;
mod set;
mod show;
#[cfg(feature = "lab")]
mod ttcp;
mod up;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The version with the commit, where `tools/release` has built the program.
const VERSION: Option<&str> = option_env!("OFFRAMP_VERSION");

/// A network adapter in software for Linux, and the honest answer to what each offload is worth.
#[derive(Parser)]
#[command(version = VERSION.unwrap_or(env!("CARGO_PKG_VERSION")), propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "lab")]
    /// Measure this machine, and write a host of the model that is like it
    Calibrate(calibrate::Args),
    #[cfg(feature = "lab")]
    /// Check whether each offload of an interface is right
    Check(Box<check::Args>),
    #[cfg(feature = "lab")]
    /// Measure what each offload is worth on this machine
    Lab(Box<lab::Args>),
    #[cfg(feature = "lab")]
    /// The program of the lab's own guest
    #[command(hide = true, name = offramp_testbed::guest::agent::ARGUMENT)]
    GuestAgent,
    #[cfg(feature = "lab")]
    /// The program of the guest of `check --guest-kernel`
    #[command(hide = true, name = check::guest::ARGUMENT)]
    CheckGuest,
    #[cfg(feature = "lab")]
    /// Predict adapters, buses and hosts that are not here
    Model(model::Args),
    #[cfg(feature = "lab")]
    /// Send traffic through the kernel's sockets and measure it at both ends
    Ttcp(Box<ttcp::Args>),
    /// Run the adapters that a file describes
    Up(up::Args),
    /// Show the adapters of a running daemon: features, counters, rates
    Show(show::Args),
    /// Switch features of a running adapter
    Set(set::Args),
    /// Capture the packets of a port of a running daemon as pcapng
    Capture(capture::Args),
    /// Print what happens in a running daemon, a line of JSON for each event
    Monitor(monitor::Args),
    /// Add and remove ports of a running daemon
    #[command(subcommand)]
    Port(ports::Command),
    /// Add and remove switches of a running daemon
    #[command(subcommand)]
    Switch(ports::Command),
    /// Add, remove, replace and show security associations of a running adapter
    Sa(Box<sa::Args>),
    /// Write the man pages and shell completions that packages bring
    #[command(hide = true)]
    Pages(pages::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        #[cfg(feature = "lab")]
        Command::Calibrate(args) => calibrate::run(&args),
        #[cfg(feature = "lab")]
        Command::Check(args) => check::run(&args),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(&args),
        #[cfg(feature = "lab")]
        Command::GuestAgent => match offramp_testbed::guest::agent::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::fail(format_args!("guest-agent: {error}"), exit::SETUP),
        },
        #[cfg(feature = "lab")]
        Command::CheckGuest => match check::guest::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::fail(format_args!("check-guest: {error}"), exit::SETUP),
        },
        #[cfg(feature = "lab")]
        Command::Model(args) => model::run(&args),
        #[cfg(feature = "lab")]
        Command::Ttcp(args) => ttcp::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Monitor(args) => monitor::run(&args),
        Command::Port(command) => ports::run("port", &command),
        Command::Switch(command) => ports::run("switch", &command),
        Command::Sa(args) => sa::run(&args),
        Command::Pages(args) => pages::run(&args, Cli::command()),
    }
}
