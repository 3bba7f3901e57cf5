//! `offramp show`: prints the features, counters, rates and losses of a running daemon's adapters.

mod style;
mod table;

pub use table::{ipsec_lines, waits_text};

use crate::control::Control;
use crate::exit::{SETUP, fail};
use offramp_daemon::control::client::{ClientError, ask};
use offramp_daemon::schema::{DirectionStatus, Outcome, Rates, Request, Status, VERSION};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use style::Style;

const NANOSECONDS_PER_SECOND: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;

/// Maximum time on the command line, in seconds, as in the traffic library.
const SECONDS_MAX: f64 = 86_400.0;

const NOTES: &str = "\
Examples:
  offramp show                     all ports, with rates over half a second
  offramp show vm0 --interval 10   one port, with rates over ten seconds
  offramp show --json --interval 0 one JSON object, at once; docs/control.md describes it

Exit status: 0 shown; 2 wrong options, or no daemon answered.";

/// Show the adapters of a running daemon: features, counters, rates.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Only this port
    #[arg(value_name = "PORT")]
    port: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Measure rates over this time; 0 for none
    #[arg(long, value_name = "SECS", default_value = "0.5", value_parser = seconds)]
    interval: f64,
    #[command(flatten)]
    control: Control,
}

/// Runs `offramp show`.
pub fn run(args: &Args) -> ExitCode {
    match status(args) {
        Ok(status) => {
            let text = if args.json {
                // Serialization to JSON cannot fail, because every map has string keys and all numbers are finite.
                serde_json::to_string(&status).unwrap_or_default() + "\n"
            } else {
                table::status(&status, Style::of(&io::stdout()))
            };
            // A failed write means that the reader has closed the output.
            let _ = io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => fail(format!("show: {error}"), SETUP),
    }
}

fn status(args: &Args) -> Result<Status, ClientError> {
    let control = args.control.path()?;
    let mut status = ask_status(&control, args.port.as_ref())?;
    if args.interval > 0.0 {
        thread::sleep(Duration::from_secs_f64(args.interval));
        let before = std::mem::replace(&mut status, ask_status(&control, args.port.as_ref())?);
        add_rates(&mut status, &before);
    }
    Ok(status)
}

/// Requests the status of one port or of all ports from the daemon at `control`.
///
/// # Errors
/// Returns an error if no daemon answers, or the daemon refuses the request.
pub fn ask_status(control: &Path, port: Option<&String>) -> Result<Status, ClientError> {
    match ask(control, &Request::Show { version: VERSION, port: port.cloned() })? {
        Outcome::Status(status) => Ok(status),
        _ => Err(ClientError::Unexpected(control.to_owned())),
    }
}

/// Adds rates computed from two answers of one daemon. Adds no rates if the daemon restarted between the two answers.
fn add_rates(now: &mut Status, before: &Status) {
    if now.process != before.process || now.uptime_ns <= before.uptime_ns {
        return;
    }
    let seconds = (now.uptime_ns - before.uptime_ns) as f64 / NANOSECONDS_PER_SECOND;
    for (port, earlier) in now.ports.iter_mut().zip(&before.ports) {
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
            lost: [("drop".to_owned(), drop)].into(),
            ..DirectionStatus::default()
        };
        let rates = rates(&direction(300, 5000, 7, 50), &direction(100, 1000, 5, 40), 2.0);
        let Rates { frames_per_s, bits_per_s, lost_per_s, interrupts_per_s } = rates;
        assert_eq!((frames_per_s, bits_per_s, lost_per_s, interrupts_per_s), (100.0, 16_000.0, 1.0, Some(5.0)));
    }
}
