//! `offramp up`: runs adapters until a signal ends the process.

mod detach;
mod simple;

use crate::exit::{FAILED, SETUP, fail, print};
use offramp_daemon::{GuestSockets, Input, Process, check};
use simple::Simple;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NOTES: &str = "\
Examples:
  offramp up vm.toml
  offramp up --tap ofr0=198.18.0.1/24 --vhost-user /tmp/vm0.sock   one switch, without a file
  offramp up --tap ofr0=198.18.0.1/24 --vhost-user /tmp/vm0.sock --print-config > vm.toml
A line \"offramp: ready: …\" on standard output says that guests can connect and every address is set.
Signals: SIGTERM and SIGINT end it, when every frame it took has gone out; SIGHUP reads the file again.
The file is described in docs/config.md; examples/two-taps.toml begins with how to run it.
Sockets of guests may come from a service manager (LISTEN_FDS), each named after its port: \
docs/deployment.md.

Exit status: 0 ended by a signal; 1 ended with frames left; 2 wrong options or file, or nothing began.";

/// The example file proposed by the error for a missing file, at the path where the package installs it.
const EXAMPLE: &str = "/usr/share/doc/offramp/examples/vm.toml";
/// A command for a start without a file. [`NOTES`] shows the same command.
const WITHOUT_FILE: &str = "offramp up --tap ofr0=198.18.0.1/24 --vhost-user /tmp/vm0.sock";

/// The backend's capabilities, as specified in QEMU's `docs/interop/vhost-user.json`.
const CAPABILITIES: &str = "{\"type\":\"net\"}";

/// Run the adapters that a file describes.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Adapters, wires, features and processors
    #[arg(value_name = "FILE.toml", required_unless_present_any = ["tap", "vhost_user", "print_capabilities"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    simple: Simple,
    /// Only check the file, and what it needs on this machine
    #[arg(long)]
    check: bool,
    /// Run in the background, and return when the daemon is ready. Its messages still go to standard error
    #[arg(long, conflicts_with_all = ["check", "print_config"])]
    detach: bool,
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
    if args.print_capabilities {
        println!("{CAPABILITIES}");
        return ExitCode::SUCCESS;
    }
    if args.detach {
        return detach::run();
    }
    match up(args) {
        Ok(status) => status,
        Err(error) => fail(format!("up: {error}{}", args.file.as_deref().map_or(String::new(), missing_file)), SETUP),
    }
}

/// Returns the remedy for a missing file; empty if the file exists.
fn missing_file(file: &Path) -> String {
    match file.try_exists() {
        Ok(false) if Path::new(EXAMPLE).exists() => format!("; copy {EXAMPLE}, or without a file: {WITHOUT_FILE}"),
        Ok(false) => format!("; begin with the source's examples/vm.toml, or without a file: {WITHOUT_FILE}"),
        _ => String::new(),
    }
}

fn up(args: &Args) -> Result<ExitCode, String> {
    let input = match &args.file {
        Some(file) => Input::File(file.clone()),
        None => args.simple.file()?,
    };
    if let (Input::Text { toml, .. }, true) = (&input, args.simple.print_config) {
        print(toml);
        return Ok(ExitCode::SUCCESS);
    }
    let sockets = GuestSockets { fd: args.fd, path: args.socket_path.clone() };
    if args.check {
        let (ports, missing) = check(&input, &sockets).map_err(|error| error.to_string())?;
        let (name, right) = match &args.file {
            Some(file) => (file.display().to_string(), "the file is right"),
            None => ("the options".to_owned(), "they are right"),
        };
        let verdict =
            if missing.is_empty() { "nothing wrong".to_owned() } else { format!("{right}, but cannot start here now") };
        let noun = if ports == 1 { "port" } else { "ports" };
        print(format_args!("{name}: {ports} {noun}, {verdict}\n"));
        for missing in &missing {
            eprintln!("up: {missing}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let process = Process::start(&input, &sockets).map_err(|error| error.to_string())?;
    let are_all_sent = process.until_told();
    Ok(if are_all_sent {
        ExitCode::SUCCESS
    } else {
        fail("up: a host did not take the frames queued for it; they are lost", FAILED)
    })
}
