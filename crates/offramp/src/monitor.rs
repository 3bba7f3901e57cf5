//! `offramp monitor`: prints the events of a running daemon, one line of JSON per event.

use crate::control::Control;
use crate::exit::{FAILED, SETUP, fail};
use offramp_daemon::control::client::{ClientError, Subscription};
use offramp_daemon::schema::{EventKind, Outcome, Request, VERSION};
use std::io::{self, Write};
use std::process::ExitCode;

const NOTES: &str = "\
Each line is one JSON object with the moment and the event; docs/control.md lists the events. The last event of a \
daemon is \"ended\". A client that does not read its events for 5 s is disconnected.

Exit status: 0 the reader of its output has gone; 1 the daemon has ended, or has disconnected this client; \
2 wrong options, refused, or no daemon answered.";

/// The error message if the connection has ended, although the daemon still runs.
const TOO_SLOW: &str = "the daemon has disconnected this client, which did not read an event for 5 s; read faster";

/// Print the events of a running daemon, a line of JSON for each
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    #[command(flatten)]
    control: Control,
}

/// Runs `offramp monitor`.
pub fn run(args: &Args) -> ExitCode {
    let control = match args.control.path() {
        Ok(control) => control,
        Err(error) => return fail(format!("monitor: {error}"), SETUP),
    };
    let mut events = match Subscription::start(&control, &Request::Monitor { version: VERSION }) {
        Ok((Outcome::Monitoring {}, events)) => events,
        Ok(_) => return fail(format!("monitor: {}", ClientError::Unexpected(control)), SETUP),
        Err(error) => return fail(format!("monitor: {error}"), SETUP),
    };
    loop {
        match events.receive() {
            Ok(Some(Outcome::Event(event))) => {
                // Serialization to JSON cannot fail, because every map has string keys.
                let line = serde_json::to_string(&event).unwrap_or_default();
                let mut out = io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    return ExitCode::SUCCESS;
                }
                if event.event == (EventKind::Ended {}) {
                    return fail("monitor: the daemon has ended", FAILED);
                }
            }
            Ok(_) if events.is_daemon_alive() => return fail(format!("monitor: {TOO_SLOW}"), FAILED),
            Ok(_) => return fail("monitor: the daemon has ended without notice; its log has the reason", FAILED),
            Err(error) => return fail(format!("monitor: {error}"), FAILED),
        }
    }
}
