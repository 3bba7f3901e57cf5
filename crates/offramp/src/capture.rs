//! `offramp capture`: writes the packets of a running daemon's port as pcapng.

mod blocks;
mod filter;
mod output;

use crate::control::Control;
use crate::exit::{FAILED, SETUP, fail};
use blocks::{Block, Blocks, Next, STATISTICS};
use filter::Filter;
use offramp_daemon::control::client::{ClientError, Subscription};
use offramp_daemon::schema::unit::Unit;
use offramp_daemon::schema::{Outcome, Request, SNAPLEN_MAX, VERSION};
use output::{Output, Ring};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two reports of the written and lost packets.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Default of `--max-loss`.
const LOSS_PERCENT_MAX: f64 = 0.1;
/// Unit of the number after `-C` if it has no suffix, in bytes, as in tcpdump.
const FILE_UNIT: u64 = 1_000_000;
/// Unit of the number after `-B` if it has no suffix, in bytes, as in tcpdump.
const BUFFER_UNIT: u64 = 1 << 10;

const NOTES: &str = "\
Examples:
  offramp capture vm0 | tcpdump -r -
  offramp capture vm0 -w vm0.pcapng                until SIGINT
  offramp capture vm0 -w vm0.pcapng -c 1000        until 1000 packets are written
  offramp capture vm0 -w vm0.pcapng --snaplen 96   only the headers: fewer packets are lost
  offramp capture vm0 -w ring -C 100MB -W 10       the last ten files of 100 MB: ring0 to ring9
  offramp capture vm0 --filter 'tcp port 80' | tcpdump -r -
Packets are captured as the host sends or receives them: super-frames are whole. A packet's comment has its vnet \
header, and the reason of its loss. docs/control.md describes the format. A slow reader loses packets of the capture, \
which are counted; the port does not wait, and loses no frame. A line on standard error has the written and the lost \
packets: each second after a change, and at the end.

Exit status: 0 stopped by SIGINT, SIGTERM or -c, or its reader has gone; 1 more packets were lost than --max-loss \
allows, the file cannot be written, or the port or the daemon is gone; 2 wrong options, refused, or no daemon answered.";

/// Capture the packets of a port of a running daemon as pcapng
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// The port
    #[arg(value_name = "PORT")]
    port: String,
    /// Output file; - is standard output
    #[arg(short = 'w', value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Stop after this number of written packets
    #[arg(short = 'c', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Start a new file before the file exceeds this size, such as 100MB; a number alone counts millions of bytes
    #[arg(short = 'C', value_name = "SIZE", value_parser = file_bytes)]
    file_bytes_max: Option<u64>,
    /// With -C, overwrite the oldest of this number of files
    #[arg(short = 'W', value_name = "FILES", requires = "file_bytes_max", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
    /// The daemon's buffer for packets that wait for this program, such as 64MiB; a number alone counts KiB
    /// [default: 48MiB]
    #[arg(short = 'B', value_name = "SIZE", value_parser = buffer_bytes)]
    buffer_bytes: Option<u64>,
    /// Exit with 1 if more than this share of the packets is missing from the capture
    #[arg(long, value_name = "PERCENT", default_value_t = LOSS_PERCENT_MAX, value_parser = percent)]
    max_loss: f64,
    /// Bytes of each packet
    #[arg(long, value_name = "N", default_value_t = SNAPLEN_MAX, value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAPLEN_MAX)))]
    snaplen: u32,
    /// Only packets that match, as in pcap-filter(7); tcpdump compiles it. It sees the bytes that --snaplen leaves
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    #[command(flatten)]
    control: Control,
}

fn file_bytes(text: &str) -> Result<u64, String> {
    bytes(text, FILE_UNIT)
}

fn buffer_bytes(text: &str) -> Result<u64, String> {
    bytes(text, BUFFER_UNIT)
}

/// Parses a size of at least one byte. `unit` is the unit of a number without a suffix, in bytes.
fn bytes(text: &str, unit: u64) -> Result<u64, String> {
    let bytes = Unit::Bytes.parse(text)?;
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = if is_bare { bytes.checked_mul(unit).ok_or("is too large")? } else { bytes };
    if bytes > 0 { Ok(bytes) } else { Err("is 0; use 1 or more".to_owned()) }
}

/// Parses a share in percent.
pub fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| "not a number from 0 to 100".to_owned())
}

/// Runs `offramp capture`.
pub fn run(args: &Args) -> ExitCode {
    let is_output = args.file == Path::new("-");
    if is_output && io::stdout().is_terminal() {
        return fail(
            "capture: standard output is a terminal, and pcapng is binary; use -w FILE, or: | tcpdump -r -",
            SETUP,
        );
    }
    if is_output && args.file_bytes_max.is_some() {
        return fail("capture: -C starts new files, and standard output is none; name a file with -w", SETUP);
    }
    let directory = args.file.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(missing) = directory.filter(|directory| !directory.is_dir()) {
        return fail(
            format!("capture: -w {}: there is no directory {}", args.file.display(), missing.display()),
            SETUP,
        );
    }
    let filter = match args.filter.as_deref().map(Filter::new).transpose() {
        Ok(filter) => filter,
        Err(error) => return fail(format!("capture: --filter: {error}"), SETUP),
    };
    let (port, snaplen, buffer_bytes) = (args.port.clone(), args.snaplen, args.buffer_bytes);
    let request = Request::Capture { version: VERSION, port, snaplen, buffer_bytes };
    let control = match args.control.path() {
        Ok(control) => control,
        Err(error) => return fail(format!("capture: {error}"), SETUP),
    };
    let packets = match Subscription::start(&control, &request) {
        Ok((Outcome::Capturing {}, packets)) => packets,
        Ok(_) => return fail(format!("capture: {}", ClientError::Unexpected(control)), SETUP),
        Err(error) => return fail(format!("capture: {error}"), SETUP),
    };
    // Install the signal handlers before the file is created: a program that waits for the file may stop the capture at
    // once.
    let stopped = Arc::new(AtomicBool::new(false));
    let stoppable = stop_on_signal(&packets, &stopped);
    // Create the file only now, so that a refused capture leaves an existing file unchanged.
    let ring =
        Ring { file_bytes_max: args.file_bytes_max.unwrap_or(0), files: args.files.map_or(0, |files| files as usize) };
    let mut out = match Output::create(&args.file, ring) {
        Ok(out) => out,
        Err(error) => return fail(format!("capture: {}: {error}", args.file.display()), SETUP),
    };
    let mut counts = Counts::new(is_output);
    let copied = stoppable.and_then(|()| {
        let from = packets.bytes()?;
        packets.end()?.set_read_timeout(Some(REPORT_INTERVAL))?;
        copy(from, &mut out, filter.as_ref(), args.count, &mut counts)
    });
    let is_stopped = stopped.load(Ordering::Acquire) || args.count.is_some_and(|most| counts.written >= most);
    counts.written = counts.written.saturating_sub(out.unwritten());
    counts.conclude();
    match copied {
        Err(error) if is_output && error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(format!("capture: {}: {error}{}", out.path().display(), remedy(&error)), FAILED),
        Ok(()) if !is_stopped => fail(format!("capture: port \"{}\" or its daemon is gone", args.port), FAILED),
        Ok(()) if counts.lost_percent() > args.max_loss => fail(
            format!(
                "capture: {:.3} % of the packets are missing, more than --max-loss {}; capture less of each packet \
                 (--snaplen 96), or raise the buffer (-B 128MiB)",
                counts.lost_percent(),
                args.max_loss
            ),
            FAILED,
        ),
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// Returns the remedy for an error in writing the file.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull => "; free space, or keep only the last files with -C SIZE -W FILES",
        _ => "",
    }
}

/// The numbers of written, rejected and lost packets of a capture, and the state of their reports on standard error.
struct Counts {
    written: u64,
    /// Packets that the filter rejected.
    rejected: u64,
    lost: u64,
    /// The counts of the last report.
    reported: (u64, u64),
    next: Instant,
    /// True if each report replaces the previous report in the same line of a terminal.
    is_in_place: bool,
    /// True if the packets go to standard output. Then only losses are reported, because reports could disturb the
    /// output of the program that reads the packets.
    is_output: bool,
}

impl Counts {
    fn new(is_output: bool) -> Self {
        let is_in_place = !is_output && io::stderr().is_terminal();
        let next = Instant::now() + REPORT_INTERVAL;
        Self { written: 0, rejected: 0, lost: 0, reported: (0, 0), next, is_in_place, is_output }
    }

    /// Returns the share of the port's packets that are missing from the capture.
    fn lost_percent(&self) -> f64 {
        let all = self.written + self.rejected + self.lost;
        self.lost as f64 * 100.0 / all.max(1) as f64
    }

    fn text(&self) -> String {
        let rejected = match self.rejected {
            0 => String::new(),
            packets => format!(", {packets} rejected by the filter"),
        };
        let share = if self.lost > 0 { format!(" ({:.3} %)", self.lost_percent()) } else { String::new() };
        format!("capture: {} packets written{rejected}, {} lost{share}", self.written, self.lost)
    }

    /// Reports the counts, at most once per second. If reports do not replace each other, only changed counts are
    /// reported.
    fn report(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + REPORT_INTERVAL;
        let is_changed = self.lost != self.reported.1 || self.written != self.reported.0 && !self.is_output;
        self.reported = (self.written, self.lost);
        if self.is_in_place {
            eprint!("\r{}", self.text());
        } else if is_changed {
            eprintln!("{}", self.text());
        }
    }

    fn conclude(&self) {
        let start = if self.is_in_place { "\r" } else { "" };
        eprintln!("{start}{}", self.text());
    }
}

/// Copies blocks from `from` to `out` without delay, except packets rejected by the filter. Ends after `count` packets.
fn copy(
    from: impl Read,
    out: &mut Output,
    filter: Option<&Filter>,
    count: Option<u64>,
    counts: &mut Counts,
) -> io::Result<()> {
    let mut blocks = Blocks::new(from);
    while count.is_none_or(|most| counts.written < most) {
        match blocks.next()? {
            Next::Block(block) => write(block, out, filter, counts)?,
            Next::Drained => {
                out.flush()?;
                counts.report();
            }
            Next::End => break,
        }
    }
    out.finish()
}

/// Writes a packet, or a block that precedes all packets. Does not write the daemon's last block, which contains the
/// statistics. Counts the packets lost after the last packet, as reported by this block.
fn write(block: Block<'_>, out: &mut Output, filter: Option<&Filter>, counts: &mut Counts) -> io::Result<()> {
    let lost = match block.kind() {
        STATISTICS => block.lost().saturating_sub(counts.lost),
        _ => block.lost(),
    };
    counts.lost += lost;
    out.count_lost(lost);
    match block.packet() {
        None if block.kind() == STATISTICS => Ok(()),
        None => out.head(block),
        Some(packet) if filter.map_or(Ok(true), |filter| filter.accepts(packet))? => {
            counts.written += 1;
            out.packet(block)
        }
        Some(_) => {
            counts.rejected += 1;
            Ok(())
        }
    }
}

/// Starts a thread that waits for a signal, and then lets the daemon end the capture. The last block is then complete.
fn stop_on_signal(packets: &Subscription, stopped: &Arc<AtomicBool>) -> io::Result<()> {
    let (mut signals, end) = (Signals::new([SIGINT, SIGTERM])?, packets.end()?);
    let stopped = Arc::clone(stopped);
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            stopped.store(true, Ordering::Release);
            // The shutdown fails if the daemon has ended.
            let _ = end.shutdown(std::net::Shutdown::Write);
        }
    });
    Ok(())
}
