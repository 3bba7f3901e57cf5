//! Compares backends for Linux guests. Each backend, offramp or another program, connects two guests and their host to
//! one network.
//!
//! ```text
//!  guest 0 ── QEMU ── backend ──┐
//!  guest 1 ── QEMU ── backend ──┼── switch or bridge ── the host's TCP/IP, in a namespace
//! ```
//!
//! The guests of all backends have the same kernel, file system, memory and card options. All guests run during the
//! whole comparison. Only one backend at a time has traffic. Idle backends with polling threads are stopped (SIGSTOP).
//! The printed table is Markdown, with a row for each kind of traffic and a column for each backend.

mod backend;

use backend::{Backend, Bed, Peers};
use clap::ValueEnum;
use offramp_testbed::cargo;
use offramp_testbed::daemon;
use offramp_testbed::failure::{Doing, Failure, Result};
use offramp_testbed::guest::busybox::{Base, Extras, HOST};
use offramp_testbed::guest::kernel::Kernel;
use offramp_testbed::program;
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stats::median;
use std::path::PathBuf;
use std::process::Command;

/// Maximum MTU announced by a guest's card. The guest can set a smaller MTU.
const MTU_MAX: u16 = 9000;
const MTUS: [u16; 2] = [1500, 9000];

/// Compare Linux guests behind offramp and behind other backends: TCP and UDP, to the host and to each other.
#[derive(clap::Args)]
pub struct Args {
    /// Samples of each cell, taken in turn over all backends
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of a sample, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The backends [default: all available ones]
    #[arg(long, value_enum, value_delimiter = ',')]
    backend: Vec<Backend>,
    /// Run only rows whose "path traffic MTU" contains FILTER
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
    /// Cloud Hypervisor's `vhost_user_net` [default: by PATH]
    #[arg(long, value_name = "PROGRAM")]
    vhost_user_net: Option<PathBuf>,
    /// A passt with `--vhost-user` [default: by PATH]
    #[arg(long, value_name = "PROGRAM")]
    passt: Option<PathBuf>,
    /// QEMU's accelerators for a guest (`-accel`), in order of preference
    #[arg(long, default_value = "tcg,thread=multi", value_name = "ACCELERATOR")]
    accel: Vec<String>,
    /// The guests' kernel file, next to its modules [default: Debian's, as `cargo xtask guest-kernel` prints it]
    #[arg(long, value_name = "FILE")]
    guest_kernel: Option<PathBuf>,
}

/// The peer of guest 0's traffic, and the direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    GuestToHost,
    HostToGuest,
    GuestToGuest,
}

impl Path {
    const ALL: [Self; 3] = [Self::GuestToHost, Self::HostToGuest, Self::GuestToGuest];

    fn name(self) -> &'static str {
        match self {
            Self::GuestToHost => "guest to host",
            Self::HostToGuest => "host to guest",
            Self::GuestToGuest => "guest to guest",
        }
    }
}

/// Kinds of traffic: name, and options of `ttcp`.
const TRAFFIC: [(&str, &str); 5] = [
    ("TCP", ""),
    ("TCP ping-pong", "--rr"),
    ("UDP 64 B", "--udp --datagram-bytes 64"),
    ("UDP 1472 B", "--udp --datagram-bytes 1472"),
    ("UDP 8 × 1472 B in a write", "--udp --datagram-bytes 1472 --gso-segments 8 --gro"),
];
const PING_PONG: &str = "--rr";

/// A row of the printed table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    path: Path,
    traffic: (&'static str, &'static str),
    mtu: u16,
}

impl Cell {
    /// Returns every row. A TCP stream has a row for each MTU. Datagrams and ping-pongs have rows only for the smaller
    /// MTU, because a larger MTU makes no difference. A ping-pong has no direction, so there is no ping-pong from host
    /// to guest.
    fn all() -> impl Iterator<Item = Self> {
        let cells = MTUS.into_iter().flat_map(|mtu| {
            TRAFFIC.into_iter().flat_map(move |traffic| Path::ALL.map(|path| Self { path, traffic, mtu }))
        });
        cells.filter(|cell| {
            let is_tcp = cell.traffic.1.is_empty();
            (is_tcp || cell.mtu == MTUS[0]) && !(cell.is_ping_pong() && cell.path == Path::HostToGuest)
        })
    }

    fn name(&self) -> String {
        format!("{} | {} | {}", self.path.name(), self.traffic.0, self.mtu)
    }

    fn is_ping_pong(&self) -> bool {
        self.traffic.1 == PING_PONG
    }

    /// Returns the command to run in the guest.
    fn command(&self, seconds: f64) -> String {
        let to = if self.path == Path::GuestToGuest { backend::GUESTS[1].0 } else { HOST };
        let direction = if self.path == Path::HostToGuest { "receive" } else { "send" };
        let way = if self.is_ping_pong() { String::new() } else { format!("--direction {direction}") };
        format!("offramp ttcp --to {to} --seconds {seconds} --json {way} {}", self.traffic.1)
    }
}

/// The result of one test.
#[derive(Clone, Copy, Debug)]
enum Sample {
    /// Bits per second counted by the receiver, and processor time of the whole machine in seconds per gigabyte.
    Bulk { bps: f64, cpu_s_per_gb: f64 },
    /// Percentiles of a ping-pong's round-trip time, in microseconds.
    Latency { p50_us: f64, p99_us: f64 },
}

/// Boots all guests, takes the samples, and prints the table.
///
/// # Errors
/// Returns an error if offramp or its guests do not start, if an interface refuses an MTU, or if a signal is received.
/// Another backend that does not start has no column in the table. A failed test has a cell with "–". For each of these
/// failures, a line below the table gives the reason.
pub fn run(args: &Args) -> Result<bool> {
    let executable = daemon::build()?;
    let scratch = Scratch::new()?;
    let extras = Extras { programs: std::slice::from_ref(&executable), ..Extras::default() };
    let kernel = Kernel::find(Some(&kernel(args)?), None).doing("the guests' kernel")?;
    let base = Base::in_qemu(&args.accel, kernel, extras, &scratch)?;
    let peers = Peers { offramp: executable, vhost_user_net: args.vhost_user_net.clone(), passt: args.passt.clone() };
    let wanted = if args.backend.is_empty() { Backend::value_variants() } else { &args.backend };
    let (mut beds, mut notes) = (Vec::new(), Vec::new());
    for &backend in wanted {
        eprintln!("starting two guests behind {}", backend.name());
        match Bed::start(backend, &base, &peers) {
            Ok(bed) => beds.push(bed),
            Err(Failure::Stopped) => return Err(Failure::Stopped),
            Err(why) if backend == Backend::Offramp => return Err(why),
            Err(why) => notes.push(format!("{}: {why}", backend.name())),
        }
    }
    print_heads(&beds);
    for mtu in MTUS {
        for bed in &mut beds {
            bed.set_mtu(mtu)?;
        }
        for cell in Cell::all().filter(|cell| cell.mtu == mtu) {
            if args.only.as_ref().is_none_or(|only| cell.name().contains(only.as_str())) {
                print_row(args, &cell, &mut beds, &mut notes)?;
            }
        }
    }
    println!();
    for note in notes {
        println!("- {}", note.replace('\n', "\n  "));
    }
    beds.into_iter().for_each(Bed::stop);
    Ok(true)
}

/// Returns the path of the guests' kernel.
fn kernel(args: &Args) -> Result<PathBuf> {
    if let Some(path) = &args.guest_kernel {
        return Ok(path.clone());
    }
    let mut command = Command::new("cargo");
    command.args(["xtask", "guest-kernel"]).current_dir(cargo::ROOT);
    Ok(program::output(command, None)?.trim().into())
}

fn print_heads(beds: &[Bed]) {
    let names: Vec<_> = beds.iter().map(|bed| bed.backend.name()).collect();
    println!("| path | traffic | MTU | {} |\n|---|---|---|{}", names.join(" | "), "---|".repeat(beds.len()));
    let memory = beds.iter().map(|bed| bed.memory_kib().map_or("in QEMU".to_owned(), |kib| format!("{kib} KiB")));
    println!("| own memory of the backend, two idle guests | | | {} |", memory.collect::<Vec<_>>().join(" | "));
}

/// Takes the samples of a row, and prints the row.
fn print_row(args: &Args, cell: &Cell, beds: &mut [Bed], notes: &mut Vec<String>) -> Result<()> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); beds.len()];
    let mut is_over = vec![false; beds.len()];
    for round in 0..args.rounds as usize {
        for turn in 0..beds.len() {
            // The first backend of a round rotates, so that any advantage of the first turn cancels out.
            let index = (round + turn) % beds.len();
            if is_over[index] {
                continue;
            }
            match beds[index].sample(cell, args.seconds) {
                Ok(sample) => samples[index].push(sample),
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(why) => {
                    is_over[index] = true;
                    notes.push(format!("{}, {}: {why}", beds[index].backend.name(), cell.name()));
                }
            }
        }
    }
    let columns =
        samples.iter().zip(is_over).map(|(samples, is_over)| if is_over { "–".to_owned() } else { shown(samples) });
    println!("| {} | {} |", cell.name(), columns.collect::<Vec<_>>().join(" | "));
    Ok(())
}

/// Formats the medians of a cell's samples.
fn shown(samples: &[Sample]) -> String {
    let medians = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN);
    let first = medians(|sample| match sample {
        Sample::Bulk { bps, .. } => bps / 1e6,
        Sample::Latency { p50_us, .. } => *p50_us,
    });
    let second = medians(|sample| match sample {
        Sample::Bulk { cpu_s_per_gb, .. } => *cpu_s_per_gb,
        Sample::Latency { p99_us, .. } => *p99_us,
    });
    match samples.first() {
        Some(Sample::Latency { .. }) => format!("{first:.0} µs, p99 {second:.0}"),
        _ => format!("{first:.0} Mbit/s, {second:.1} s/GB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_tcp_at_both_mtus_and_no_row_comes_twice() {
        let names: Vec<_> = Cell::all().map(|cell| cell.name()).collect();
        for path in Path::ALL {
            for mtu in MTUS {
                assert!(names.contains(&format!("{} | TCP | {mtu}", path.name())));
            }
        }
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn a_cell_shows_the_medians_of_its_samples() {
        let bulk = |bps, cpu_s_per_gb| Sample::Bulk { bps, cpu_s_per_gb };
        assert_eq!(shown(&[bulk(1e6, 3.0), bulk(9e6, 1.0), bulk(2e6, 2.0)]), "2 Mbit/s, 2.0 s/GB");
        assert_eq!(shown(&[Sample::Latency { p50_us: 5.0, p99_us: 7.4 }]), "5 µs, p99 7");
    }
}
