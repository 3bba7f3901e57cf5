//! offramp: a network adapter in software, with a measurement of the worth of each offload.
//!
//! Without the feature `lab`, the program contains only the daemon and its commands.

#[cfg(feature = "lab")]
mod bench;
mod capture;
mod control;
mod exit;
mod monitor;
mod pages;
mod ports;
mod sa;
mod set;
mod show;
mod slip;
mod up;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The version with the commit, set by `build.rs` or by `tools/release`.
const VERSION: &str = env!("OFFRAMP_VERSION");

/// Maximum width of help in columns, also on a wider terminal.
const HELP_WIDTH_MAX: usize = 100;

/// A network adapter in software for Linux, and an honest figure for the worth of each offload.
#[derive(Parser)]
#[command(version = VERSION, propagate_version = true, max_term_width = HELP_WIDTH_MAX)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Bench(bench::Command),
    /// Run the adapters that a file describes
    Up(up::Args),
    /// Show the ports and switches of a running daemon: states, features, counters, rates
    Show(show::Args),
    /// Switch features of a running adapter
    Set(set::Args),
    /// Capture the packets of a port of a running daemon as pcapng
    Capture(capture::Args),
    /// Print the events of a running daemon, a line of JSON for each
    Monitor(monitor::Args),
    /// Add and remove ports of a running daemon
    #[command(subcommand)]
    Port(ports::Command),
    /// Add and remove switches of a running daemon
    #[command(subcommand)]
    Switch(ports::Command),
    /// Add, remove, replace and show security associations of a running adapter
    Sa(Box<sa::Args>),
    /// Print the completions of a shell
    Completions(pages::CompletionsArgs),
    /// Write the man pages
    Man(pages::ManArgs),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let words: Vec<String> = std::env::args().skip(1).collect();
        slip::explained(error, &words).exit()
    });
    match cli.command {
        #[cfg(feature = "lab")]
        Command::Bench(command) => bench::run(&command),
        Command::Up(args) => up::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Monitor(args) => monitor::run(&args),
        Command::Port(command) => ports::run("port", &command),
        Command::Switch(command) => ports::run("switch", &command),
        Command::Sa(args) => sa::run(&args),
        Command::Completions(args) => pages::completions(&args, &Cli::command()),
        Command::Man(args) => pages::man(&args, Cli::command()),
    }
}
