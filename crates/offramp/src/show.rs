//! `offramp show`: prints the features, counters, rates and losses of a running daemon's adapters.

mod overview;
mod style;
mod table;

pub use table::{ipsec_lines, library_reason, waits_text};

use crate::control::Control;
use crate::exit::{SETUP, fail};
use offramp_daemon::control::client::{self, ClientError};
use offramp_daemon::schema::{DirectionStatus, Outcome, Rates, Request, Status, VERSION};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use style::Style;

const NANOSECONDS_PER_SECOND: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;

/// Maximum duration on the command line, in seconds; the traffic library has the same maximum.
const SECONDS_MAX: f64 = 86_400.0;

/// Time between two outputs of `--watch` without `--interval`, in seconds.
const WATCH_SECONDS: f64 = 1.0;

/// Moves the cursor to the first column of the first line, and erases the screen (ECMA-48 CUP, ED).
const HOME: &str = "\x1b[H\x1b[J";

const NOTES: &str = "\
Examples:
  offramp show                     one line per port and switch, with rates of the last second
  offramp show vm0                 everything about a port
  offramp show lan                 a switch: its ports, stations, floods and reserved frames
  offramp show vm0 --interval 10   with rates over ten seconds
  offramp show --watch             again each second, until Ctrl-C
  offramp show --json              one JSON object; docs/show.schema.json has its schema

States: up; no guest; no driver (a guest is connected, its driver has not started); link off (by offramp set); \
stalled (its thread makes no progress); gone (the interface was deleted).

Exit status: 0 shown; 2 wrong options, or no daemon answered.";

/// Show the ports and switches of a running daemon: states, features, counters, rates
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Only this port, or this switch
    #[arg(value_name = "PORT|SWITCH")]
    name: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Print again after each interval, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Measure rates over this time in place of the last second
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    interval: Option<f64>,
    #[command(flatten)]
    control: Control,
}

/// Runs `offramp show`.
pub fn run(args: &Args) -> ExitCode {
    if args.watch && args.interval == Some(0.0) {
        return fail("show: --watch needs an --interval above 0", SETUP);
    }
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(format!("show: {error}"), SETUP),
    }
}

fn show(args: &Args) -> Result<(), ClientError> {
    let control = &args.control.path()?;
    let is_screen = args.watch && !args.json && io::stdout().is_terminal();
    let interval = args.interval.filter(|interval| *interval > 0.0);
    let mut status = ask(args, control)?;
    if let Some(seconds) = interval.filter(|_| !args.watch) {
        status = status_after(args, control, &status, seconds)?;
    }
    loop {
        let start = if is_screen { HOME } else { "" };
        let end = if args.watch && !args.json && !is_screen { "\n" } else { "" };
        let text = format!("{start}{}{end}", text(args, &status));
        let mut out = io::stdout().lock();
        // A failed write means that the reader has closed the output.
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() || !args.watch {
            return Ok(());
        }
        drop(out);
        status = if let Some(seconds) = interval {
            status_after(args, control, &status, seconds)?
        } else {
            thread::sleep(Duration::from_secs_f64(WATCH_SECONDS));
            ask(args, control)?
        };
    }
}

/// Requests the status after `seconds`, with the rates since `before`.
fn status_after(args: &Args, control: &Path, before: &Status, seconds: f64) -> Result<Status, ClientError> {
    thread::sleep(Duration::from_secs_f64(seconds));
    let mut status = ask(args, control)?;
    add_rates(&mut status, before);
    Ok(status)
}

fn text(args: &Args, status: &Status) -> String {
    if args.json {
        // Serialization to JSON cannot fail, because every map has string keys and all numbers are finite.
        return serde_json::to_string(status).unwrap_or_default() + "\n";
    }
    let style = Style::of(&io::stdout());
    let Some(name) = &args.name else { return overview::overview(status, style) };
    let port = status.ports.iter().find(|port| port.name == *name);
    let port = port.map(|port| table::port(status, port, style));
    let switches = status.switches.iter().filter(|switch| switch.name == *name);
    let switches = switches.map(|switch| overview::switch(status, switch, style));
    port.into_iter().chain(switches).collect::<Vec<_>>().join("\n")
}

/// Requests the status of one port or switch, or of all, from the daemon at `control`.
///
/// # Errors
/// Returns an error if no daemon answers, or the daemon refuses the request.
pub fn ask_status(control: &Path, name: Option<&String>) -> Result<Status, ClientError> {
    request_status(control, &Request::Show { version: VERSION, port: name.cloned(), summary: false })
}

/// Requests the part of the status that `args` need. The overview needs only a summary, unless rates are computed from
/// counters. An older daemon refuses the request for a summary, and is then asked for the whole status.
fn ask(args: &Args, control: &Path) -> Result<Status, ClientError> {
    let has_interval = args.interval.is_some_and(|interval| interval > 0.0);
    if args.name.is_none() && !args.json && !has_interval {
        let request = Request::Show { version: VERSION, port: None, summary: true };
        match request_status(control, &request) {
            Err(ClientError::Refused(_)) => {}
            answered => return answered,
        }
    }
    ask_status(control, args.name.as_ref())
}

fn request_status(control: &Path, request: &Request) -> Result<Status, ClientError> {
    match client::ask(control, request)? {
        Outcome::Status(status) => Ok(*status),
        _ => Err(ClientError::Unexpected(control.to_owned())),
    }
}

/// Adds rates computed from two answers of one daemon. Adds no rates if the daemon restarted between the two answers.
fn add_rates(now: &mut Status, before: &Status) {
    if now.process != before.process || now.uptime_ns <= before.uptime_ns {
        return;
    }
    let seconds = (now.uptime_ns - before.uptime_ns) as f64 / NANOSECONDS_PER_SECOND;
    for port in &mut now.ports {
        let Some(earlier) = before.ports.iter().find(|before| before.name == port.name) else { continue };
        for (queue, earlier) in port.queues.iter_mut().zip(&earlier.queues) {
            queue.transmit.rates = Some(rates(&queue.transmit, &earlier.transmit, seconds));
            queue.receive.rates = Some(rates(&queue.receive, &earlier.receive, seconds));
        }
    }
}

fn rates(now: &DirectionStatus, before: &DirectionStatus, seconds: f64) -> Rates {
    let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let rate = |name| Some(per_s(now.counts.get(name)?, before.counts.get(name)?));
    let lost = |direction: &DirectionStatus| direction.lost.values().sum::<u64>();
    Rates {
        frames_per_s: rate("frames_out").unwrap_or(0.0),
        bits_per_s: rate("bytes_out").unwrap_or(0.0) * BITS_PER_BYTE,
        lost_per_s: per_s(lost(now), lost(before)),
        interrupts_per_s: rate("interrupts"),
    }
}

/// Parses a number of seconds on a command line.
///
/// # Errors
/// Returns an error if the text is not a number, or the number is out of range.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.0..=SECONDS_MAX).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("must be within 0 and {SECONDS_MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_was_counted_between_over_the_time_between() {
        let direction = |frames_out, bytes_out, drop, interrupts| DirectionStatus {
            counts: [("frames_out", frames_out), ("bytes_out", bytes_out), ("interrupts", interrupts)]
                .into_iter()
                .collect(),
            lost: [("drop".into(), drop)].into(),
            ..DirectionStatus::default()
        };
        let rates = rates(&direction(300, 5000, 7, 50), &direction(100, 1000, 5, 40), 2.0);
        let Rates { frames_per_s, bits_per_s, lost_per_s, interrupts_per_s } = rates;
        assert_eq!((frames_per_s, bits_per_s, lost_per_s, interrupts_per_s), (100.0, 16_000.0, 1.0, Some(5.0)));
    }
}
