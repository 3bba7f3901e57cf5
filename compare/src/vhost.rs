//! Compares offramp's vhost-user backend with another backend: DPDK's, offramp's own with protection, or the backend of
//! an earlier version. The two backends take turns. The guest is a testpmd with DPDK's virtio driver.
//!
//! A hypervisor may move virtual processors between cores with a shared cache and cores without a shared cache. After a
//! move, a result can be several times higher or lower. Each sample therefore records the placement of the two
//! processors, derived from the cache-line latency between them. Only samples with the same placement are compared.

pub mod backend;
mod placement;
mod sample;
mod wire;

use offramp_testbed::failure::{Doing, Failure, Result, failed};
use offramp_testbed::stats;
use offramp_testbed::testpmd::Memory;
use offramp_testkit::HugePages;
use placement::Placement;
use sample::{Bench, Sample, Side};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// Huge pages for guest and backend together, in MiB.
const HUGE_MIB: u64 = 2 * sample::MEMORY_MIB + 64;
/// Frame lengths without FCS, in bytes. The short length shows the fixed cost of a packet, and the long length shows
/// the cost of a packet's bytes.
const FRAME_LENS: [usize; 2] = [64, 1500];

/// Compare throughput and backend time per packet of DPDK's and offramp's vhost-user backends.
#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Args {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Samples of each backend per cell, taken in turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run only cells whose "ring bytes direction" contains FILTER
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
    /// Measured time of a sample, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Use ordinary pages instead of huge pages
    #[arg(long)]
    no_huge: bool,
    /// After each sample of offramp, print its profile (needs `perf`)
    #[arg(long)]
    profile: bool,
    /// Compare offramp's backend with itself instead of DPDK's: with and without sandbox, bound address, VLAN and
    /// unreached limits
    #[arg(long)]
    protected: bool,
    /// Compare offramp's backend with an earlier version's instead of DPDK's. PROGRAM is the comparison program or
    /// xtask of that version. Both backends have a guest and take turns of a fraction of a second, 15 per round:
    /// other load on the machine affects both
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["protected", "profile", "seconds"])]
    before: Option<PathBuf>,
    /// Print the command lines of each cell instead of running it
    #[arg(long)]
    print_commands: bool,
}

/// The compared backends in the order of each round: first the peer, then offramp.
const SIDES: [Side; 2] = [Side::Dpdk, Side::Offramp];
const PROTECTED_SIDES: [Side; 2] = [Side::Offramp, Side::Protected];
const VERSIONS: [Side; 2] = [Side::Before, Side::Offramp];

/// The ring format of the guest's driver, and receive-buffer merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    name: &'static str,
    arguments: &'static str,
}

const RINGS: [Ring; 3] = [
    Ring { name: "split mergeable", arguments: "mrg_rxbuf=1,packed_vq=0" },
    Ring { name: "split plain", arguments: "mrg_rxbuf=0,packed_vq=0" },
    Ring { name: "packed mergeable", arguments: "mrg_rxbuf=1,packed_vq=1" },
];

/// The direction of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
pub enum Direction {
    /// The guest generates frames, and the wire discards them.
    #[strum(serialize = "guest>line")]
    GuestToLine,
    /// The wire generates frames, and the guest discards them.
    #[strum(serialize = "line>guest")]
    LineToGuest,
    /// The guest and the wire each return the frames they receive.
    #[strum(serialize = "loop")]
    Loop,
}

impl Direction {
    fn name(self) -> &'static str {
        self.into()
    }
}

/// A combination of ring, frame length and direction.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    ring: Ring,
    frame_len: usize,
    direction: Direction,
}

impl Cell {
    fn name(&self) -> String {
        format!("{} {} {}", self.ring.name, self.frame_len, self.direction.name())
    }
}

/// Medians of the samples of one cell and one placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    ring: &'static str,
    bytes: usize,
    direction: &'static str,
    placement: &'static str,
    /// Number of samples of each side in the medians.
    samples: usize,
    offramp_mpps: f64,
    /// Packet rate of the peer in millions per second: DPDK's backend, offramp's without protection, or an earlier
    /// version's.
    peer_mpps: f64,
    /// Busy time of offramp's backend per packet, in nanoseconds.
    offramp_ns: f64,
    peer_ns: f64,
    /// Median of the ratios of throughput: offramp's divided by the peer's.
    ratio: f64,
    /// Confidence interval of `ratio` ([`stats::median_interval`]).
    ratio_range: [f64; 2],
}

/// Measures all cells and prints a row per cell and placement. Returns whether every cell was measured.
///
/// # Errors
/// Returns an error if the machine cannot be prepared, or a signal is received.
pub fn run(args: &Args) -> Result<bool> {
    let memory = if args.no_huge { Memory::Ordinary } else { Memory::Huge };
    let window = Duration::try_from_secs_f64(args.seconds).doing("--seconds")?;
    let bench = Bench::new(memory, window, args.profile, args.before.clone())?;
    let _pages = if args.no_huge || args.print_commands {
        None
    } else {
        Some(HugePages::of_mib(HUGE_MIB).doing("huge pages (run as root, or use --no-huge)")?)
    };
    let cells = cells(args.only.as_deref());
    if cells.is_empty() {
        return failed("no cell matches the filter");
    }
    if !args.json && !args.print_commands {
        println!("{}", heading());
    }
    let sides = match args.before {
        Some(_) => VERSIONS,
        None if args.protected => PROTECTED_SIDES,
        None => SIDES,
    };
    let mut complete = true;
    for cell in cells {
        if args.print_commands {
            bench.print_commands(&cell, &sides)?;
            continue;
        }
        match measure(&bench, &cell, sides, args.rounds) {
            Ok(rows) if rows.is_empty() => {
                eprintln!("{}: no two samples of the same placement; use more --rounds", cell.name());
                complete = false;
            }
            Ok(rows) => rows.iter().try_for_each(|row| print(row, args.json))?,
            Err(Failure::Stopped) => return Err(Failure::Stopped),
            Err(why) => {
                eprintln!("{}: {why}", cell.name());
                complete = false;
            }
        }
    }
    Ok(complete)
}

fn cells(only: Option<&str>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for ring in RINGS {
        for frame_len in FRAME_LENS {
            cells.extend(Direction::VARIANTS.iter().map(|&direction| Cell { ring, frame_len, direction }));
        }
    }
    cells.retain(|cell| only.is_none_or(|only| cell.name().contains(only)));
    cells
}

fn measure(bench: &Bench, cell: &Cell, sides: [Side; 2], rounds: u32) -> Result<Vec<Row>> {
    let mut samples = Vec::new();
    for _ in 0..rounds {
        if sides == VERSIONS {
            samples.extend(bench.turns(cell, sides)?);
            continue;
        }
        for side in sides {
            samples.push((side, bench.sample(cell, side)?));
        }
    }
    Ok(rows(cell, sides, &samples))
}

/// Returns a row for every placement with samples of both sides. A row has the same number of samples for both sides.
/// If one side has more samples, only its first samples are used.
fn rows(cell: &Cell, [peer, ours]: [Side; 2], samples: &[(Side, Sample)]) -> Vec<Row> {
    let of = |side, placement| {
        let same = move |(s, sample): &&(Side, Sample)| *s == side && sample.placement == placement;
        samples.iter().filter(same).map(|(_, sample)| *sample).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for &placement in Placement::VARIANTS {
        let (peers, offramp) = (of(peer, placement), of(ours, placement));
        let count = peers.len().min(offramp.len());
        if count == 0 {
            continue;
        }
        let ratios: Vec<_> = offramp.iter().zip(&peers).map(|(offramp, peer)| offramp.mpps / peer.mpps).collect();
        rows.push(Row {
            ring: cell.ring.name,
            bytes: cell.frame_len,
            direction: cell.direction.name(),
            placement: placement.name(),
            samples: count,
            offramp_mpps: median(&offramp[..count], |sample| sample.mpps),
            peer_mpps: median(&peers[..count], |sample| sample.mpps),
            offramp_ns: median(&offramp[..count], |sample| sample.busy_ns),
            peer_ns: median(&peers[..count], |sample| sample.busy_ns),
            ratio: median(&ratios, |ratio| *ratio),
            ratio_range: stats::median_interval(&ratios),
        });
    }
    rows
}

fn median<T>(samples: &[T], value: impl Fn(&T) -> f64) -> f64 {
    stats::median(&samples.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

fn heading() -> String {
    format!(
        "{:18} {:>5} {:10} {:9} {:>7} {:>12} {:>9} {:>10} {:>7} {:>18}",
        "ring",
        "bytes",
        "direction",
        "placement",
        "samples",
        "offramp Mpps",
        "peer Mpps",
        "offramp ns",
        "peer ns",
        "ratio (range)"
    )
}

fn print(row: &Row, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(row).doing("writing a row")?);
        return Ok(());
    }
    println!(
        "{:18} {:>5} {:10} {:9} {:>7} {:>12.2} {:>9.2} {:>10.1} {:>7.1}  {:.3} ({:.3} … {:.3})",
        row.ring,
        row.bytes,
        row.direction,
        row.placement,
        row.samples,
        row.offramp_mpps,
        row.peer_mpps,
        row.offramp_ns,
        row.peer_ns,
        row.ratio,
        row.ratio_range[0],
        row.ratio_range[1]
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell { ring: RINGS[0], frame_len: 64, direction: Direction::Loop };

    fn sample(mpps: f64, placement: Placement) -> Sample {
        Sample { mpps, busy_ns: 1e3 / mpps, placement }
    }

    #[test]
    fn only_samples_of_the_same_placement_are_compared() {
        let samples = [
            (Side::Dpdk, sample(10.0, Placement::Near)),
            (Side::Offramp, sample(1.0, Placement::Far)),
            (Side::Dpdk, sample(30.0, Placement::Near)),
            (Side::Offramp, sample(20.0, Placement::Near)),
            (Side::Dpdk, sample(5.0, Placement::Mixed)),
        ];
        let rows = rows(&CELL, SIDES, &samples);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].placement, rows[0].samples), ("near", 1));
        assert_eq!((rows[0].offramp_mpps, rows[0].peer_mpps), (20.0, 10.0));
        assert_eq!((rows[0].ratio, rows[0].ratio_range), (2.0, [2.0; 2]));
    }

    #[test]
    fn a_placement_that_only_one_side_has_gives_no_row() {
        let samples = [(Side::Dpdk, sample(10.0, Placement::Mid)), (Side::Offramp, sample(30.0, Placement::Far))];
        assert!(rows(&CELL, SIDES, &samples).is_empty());
    }

    #[test]
    fn a_median_does_not_mind_one_bad_sample() {
        let samples = [1.0, 100.0, 2.0].map(|mpps| sample(mpps, Placement::Near));
        assert!((median(&samples, |sample| sample.mpps) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn cells_are_chosen_by_their_names() {
        assert_eq!(cells(None).len(), 18);
        assert_eq!(cells(Some("packed mergeable 64 line>guest")).len(), 1);
        assert!(cells(Some("none")).is_empty());
    }
}
