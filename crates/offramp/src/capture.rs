//! `offramp capture`: writes the packets of a running daemon's port as pcapng.

mod filter;

use crate::control::Control;
use crate::exit::{FAILED, SETUP, fail};
use filter::Filter;
use offramp_daemon::control::client::{ClientError, Subscription};
use offramp_daemon::control::io_error;
use offramp_daemon::schema::{Outcome, Request, SNAPLEN_MAX, VERSION};
use pcap_file::PcapError;
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Size of the copy buffer, in bytes.
const COPIED_LEN: usize = 64 * 1024;

const NOTES: &str = "\
Examples:
  offramp capture vm0 | tcpdump -r -
  offramp capture vm0 -w vm0.pcapng          until SIGINT
  offramp capture vm0 --filter 'tcp port 80' | tcpdump -r -
Packets are captured as the host sends or receives them: super-frames are whole. A packet's comment has its vnet header, and
the reason of its loss. docs/control.md describes the format. A slow reader loses packets, and the capture counts them; the
port does not wait.

Exit status: 0 stopped by SIGINT or SIGTERM, or its reader has gone; 1 the port or the daemon is gone; 2 wrong options,
refused, or no daemon answered.";

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
    /// Bytes of each packet
    #[arg(long, value_name = "N", default_value_t = SNAPLEN_MAX, value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAPLEN_MAX)))]
    snaplen: u32,
    /// Only packets that match, as in pcap-filter(7); tcpdump compiles it. It sees the bytes that --snaplen leaves
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    #[command(flatten)]
    control: Control,
}

/// Runs `offramp capture`.
pub fn run(args: &Args) -> ExitCode {
    let is_output = args.file == Path::new("-");
    if is_output && io::stdout().is_terminal() {
        return fail("capture: pcapng is nothing for a terminal; use -w FILE, or: | tcpdump -r -", SETUP);
    }
    let filter = match args.filter.as_deref().map(Filter::new).transpose() {
        Ok(filter) => filter,
        Err(error) => return fail(format!("capture: --filter: {error}"), SETUP),
    };
    let request = Request::Capture { version: VERSION, port: args.port.clone(), snaplen: args.snaplen };
    let control = match args.control.path() {
        Ok(control) => control,
        Err(error) => return fail(format!("capture: {error}"), SETUP),
    };
    let packets = match Subscription::start(&control, &request) {
        Ok((Outcome::Capturing {}, packets)) => packets,
        Ok(_) => return fail(format!("capture: {}", ClientError::Unexpected(control)), SETUP),
        Err(error) => return fail(format!("capture: {error}"), SETUP),
    };
    // Handle signals before the file exists, because an observer of the file may stop the capture.
    let stopped = Arc::new(AtomicBool::new(false));
    let stoppable = stop_on_signal(&packets, &stopped);
    // Create the file only now, so that a refused capture leaves an existing file unchanged.
    let out: io::Result<Box<dyn Write>> =
        if is_output { Ok(Box::new(io::stdout())) } else { File::create(&args.file).map(|file| Box::new(file) as _) };
    let out = match out {
        Ok(out) => out,
        Err(error) => return fail(format!("capture: {}: {error}", args.file.display()), SETUP),
    };
    let copied = stoppable.and_then(|()| copy(packets.bytes()?, out, filter.as_ref()));
    match copied {
        Ok(()) if stopped.load(Ordering::Acquire) => ExitCode::SUCCESS,
        Ok(()) => fail(format!("capture: port \"{}\" or its daemon is gone", args.port), FAILED),
        Err(error) if is_output && error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(format!("capture: {}: {error}", args.file.display()), FAILED),
    }
}

/// Copies pcapng from `from` to `to` without delay, except packets rejected by the filter.
fn copy(mut from: impl Read, mut to: impl Write, filter: Option<&Filter>) -> io::Result<()> {
    if let Some(filter) = filter {
        return copy_filtered(from, to, filter).map_err(io_error);
    }
    let mut bytes = vec![0; COPIED_LEN];
    loop {
        to.flush()?;
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(len) => to.write_all(&bytes[..len])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn copy_filtered(from: impl Read, to: impl Write, filter: &Filter) -> Result<(), PcapError> {
    let mut reader = PcapNgReader::new(from)?;
    let mut writer = PcapNgWriter::with_section_header(to, reader.section().clone())?;
    while let Some(block) = reader.next_block() {
        let block = block?;
        let is_wanted = match &block {
            Block::EnhancedPacket(packet) => filter.accepts(&packet.data).map_err(PcapError::IoError)?,
            _ => true,
        };
        if is_wanted {
            writer.write_block(&block)?;
            writer.get_mut().flush().map_err(PcapError::IoError)?;
        }
    }
    Ok(())
}

/// Ends the capture in the daemon after a signal, so that the last block is complete.
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
