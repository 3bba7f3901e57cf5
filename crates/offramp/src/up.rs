//! `offramp up`: runs adapters until a signal ends the process.

use crate::exit::{FAILED, SETUP, fail};
use offramp_daemon::{GuestSockets, Process, StartError, check};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NOTES: &str = "\
Signals: SIGTERM and SIGINT end it, when every frame it took has gone out; SIGHUP reads the file again.
The file is described in docs/config.md; examples/two-taps.toml begins with how to run it.
Sockets of guests may come from a service manager (LISTEN_FDS), each named after its port: docs/deployment.md.

Exit status: 0 ended by a signal; 1 ended with frames left; 2 wrong options or file, or nothing began.";

/// The backend's capabilities, as specified in QEMU's `docs/interop/vhost-user.json`.
const CAPABILITIES: &str = "{\"type\":\"net\"}";

/// Run the adapters that a file describes.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Adapters, wires, features and processors
    #[arg(value_name = "FILE.toml", required_unless_present = "print_capabilities")]
    file: Option<PathBuf>,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// The listening socket of the file's only guest, inherited by this process
    #[arg(long, value_name = "N", conflicts_with = "socket_path")]
    fd: Option<RawFd>,
    /// The socket of the file's only guest, in place of the path there
    #[arg(long, value_name = "PATH")]
    socket_path: Option<PathBuf>,
    /// Only print what kind of vhost-user backend this is, as JSON
    #[arg(long)]
    print_capabilities: bool,
}

/// Runs `offramp up`.
pub fn run(args: &Args) -> ExitCode {
    let Some(file) = args.file.as_ref().filter(|_| !args.print_capabilities) else {
        println!("{CAPABILITIES}");
        return ExitCode::SUCCESS;
    };
    match up(args, file) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => fail("up: a host did not take the frames queued for it; they are lost", FAILED),
        Err(error) => fail(format!("up: {error}"), SETUP),
    }
}

/// Returns whether every frame accepted by the daemon was sent.
fn up(args: &Args, file: &Path) -> Result<bool, StartError> {
    let sockets = GuestSockets { fd: args.fd, path: args.socket_path.clone() };
    if args.check {
        println!("{}: {} ports, nothing wrong", file.display(), check(file, &sockets)?);
        return Ok(true);
    }
    Process::start(file, &sockets).map(Process::until_told)
}
