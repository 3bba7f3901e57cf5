//! `offramp up --detach`: starts the daemon as a process of its own, and waits until it is ready.

use crate::exit::{FAILED, SETUP, fail, print};
use offramp_daemon::READY;
use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// Runs this program again without `--detach`, as the daemon, and prints the daemon's output until the daemon is ready.
/// Returns the status of a failed daemon. The daemon has its own process group: Ctrl-C in the terminal does not end it.
pub fn run() -> ExitCode {
    let args = env::args_os().skip(1).filter(|arg| arg != "--detach");
    let spawn =
        |program| Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut daemon = match env::current_exe().and_then(spawn) {
        Ok(daemon) => daemon,
        Err(error) => return fail(format!("up: --detach: starting the daemon: {error}"), SETUP),
    };
    let output = daemon.stdout.take().map(BufReader::new);
    for line in output.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
        print(format_args!("{line}\n"));
        if line.starts_with(READY) {
            return ExitCode::SUCCESS;
        }
    }
    // The daemon has printed its error.
    match daemon.wait().ok().and_then(|status| status.code()) {
        Some(code) if code != 0 => ExitCode::from(u8::try_from(code).unwrap_or(FAILED)),
        _ => fail("up: --detach: a signal ended the daemon before it was ready", FAILED),
    }
}
