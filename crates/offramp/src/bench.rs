//! Commands that measure, check and predict. They use the crates of the lab, of the checks and of the model. A program
//! with only the daemon contains neither these commands nor these crates.

mod calibrate;
mod check;
mod lab;
mod model;
mod stop;
mod ttcp;

use crate::exit::{SETUP, fail};
use std::fmt::Display;
use std::process::ExitCode;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure this machine, and write it as a host of the model
    Calibrate(calibrate::Args),
    /// Check each offload of an interface for correctness
    Check(Box<check::Args>),
    /// Measure the worth of each offload on this machine
    Lab(Box<lab::Args>),
    /// The program of the lab's own guest
    #[command(hide = true, name = offramp_testbed::guest::agent::ARGUMENT)]
    GuestAgent,
    /// The program of the guest of `check --guest-kernel`
    #[command(hide = true, name = check::guest::ARGUMENT)]
    CheckGuest,
    /// Predict adapters, buses and hosts that are not here
    Model(model::Args),
    /// Send traffic through the kernel's sockets and measure it at both ends
    Ttcp(Box<ttcp::Args>),
}

/// Runs the command.
pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Calibrate(args) => calibrate::run(args),
        Command::Check(args) => check::run(args),
        Command::Lab(args) => lab::run(args),
        Command::GuestAgent => in_guest("guest-agent", offramp_testbed::guest::agent::run()),
        Command::CheckGuest => in_guest("check-guest", check::guest::run()),
        Command::Model(args) => model::run(args),
        Command::Ttcp(args) => ttcp::run(args),
    }
}

fn in_guest(name: &str, ended: Result<(), impl Display>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(format_args!("{name}: {error}"), SETUP),
    }
}
