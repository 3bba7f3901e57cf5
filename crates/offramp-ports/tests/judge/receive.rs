//! Receive coalescing by the kernel and by offramp, and the comparison of the results.

use super::bench::{Bench, BenchConfig, INPUT, Told};
use super::support::difference;
use super::support::pieces::{Flows, Piece, by_flow, flow_of, id_at, ids_are_fixed, trimmed};
use nix::time::{ClockId, clock_gettime};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::ChecksumState;
use offramp_ports::sys::{ethtool, rps};
use offramp_ports::vnet_hdr::{HEADER_LEN, decode_rx};

/// Maximum time that the kernel holds frames, in nanoseconds. This time is far longer than a case takes, because each
/// case flushes the frames itself.
const FLUSH_TIMEOUT_NS: &str = "200000000";
/// Value of `napi_defer_hard_irqs`: the number of polls of the input TAP before its interrupts are on again. The value
/// is too large to be reached.
const DEFERRED_INTERRUPTS: &str = "1000";
/// Maximum number of attempts to write all frames of a case within one tick.
const ATTEMPTS_MAX: usize = 50;
/// A frame of at least this length in bytes, including the Ethernet header, is segmented before a TAP receives it
/// (Linux `GSO_LEGACY_MAX_SIZE`).
const KERNEL_FRAME_LEN_MAX: usize = 65_536;

/// The kernel's receive path.
pub struct Receiver {
    bench: Bench,
}

impl Receiver {
    /// Creates the bench, with GRO for TCP and for forwarded UDP.
    pub fn new() -> Self {
        let all = Offloads::TX;
        let bench = Bench::new(BenchConfig { input: all, output: all, napi: true });
        let features = [("rx-gro", true), ("rx-udp-gro-forwarding", true)];
        bench.ns().run(|| ethtool::set_features(INPUT, &features)).unwrap().unwrap();
        rps::write_attribute(bench.ns(), INPUT, "gro_flush_timeout", FLUSH_TIMEOUT_NS).unwrap();
        rps::write_attribute(bench.ns(), INPUT, "napi_defer_hard_irqs", DEFERRED_INTERRUPTS).unwrap();
        Self { bench }
    }

    /// Returns the kernel's output if these frames arrive together.
    ///
    /// The kernel holds frames until the end of a poll in a later clock tick than the first frame. All frames are
    /// therefore written within one tick, and a sentinel in the next tick ends the case.
    pub fn judge(&mut self, frames: &[Vec<u8>]) -> Vec<Piece> {
        for _ in 0..ATTEMPTS_MAX {
            let tick = next_tick();
            for frame in frames {
                self.bench.write(&[0; HEADER_LEN], frame).unwrap();
            }
            let is_in_time = ticks() == tick;
            next_tick();
            let mut told = self.bench.wait(); // This sentinel overtakes the frames that the same poll delivers.
            told.extend(self.bench.wait()); // This sentinel arrives after those frames.
            if is_in_time {
                return told.into_iter().map(piece).collect();
            }
        }
        panic!("the machine is too busy to write {} frames within one tick", frames.len());
    }
}

fn piece((header, bytes): Told) -> Piece {
    Piece::new(decode_rx(&header).expect("the kernel's own header"), &bytes)
}

/// Compares the kernel's output with offramp's output, piece by piece within each flow.
///
/// If the kernel segmented an aggregate again, the kernel's frames are compared with the frames of offramp's aggregate.
/// The kernel has two known reasons for segmenting an aggregate again; any other reason counts as a difference.
///
/// # Errors
/// Returns a description of the first difference.
pub fn check_same(frames: &[Vec<u8>], kernel: &[Piece], ours: &[Piece]) -> Result<(), String> {
    let mut originals = Flows::of(frames);
    let mut kernels = by_flow(kernel);
    for piece in ours {
        let originals = originals.next(&piece.bytes, piece.frames().len())?;
        let queue = kernels.entry(flow_of(&piece.bytes)).or_default();
        let is_cut_again = queue.first().is_some_and(|first| first.is_cut_again());
        if !is_cut_again {
            let same = queue.first().ok_or("the kernel handed out less than we did")?;
            check_piece(same, piece)?;
            queue.remove(0);
            continue;
        }
        if !piece.is_coalesced() {
            return Err("the kernel coalesced what we did not".into());
        }
        if !ids_are_fixed(&originals) && piece.bytes.len() < KERNEL_FRAME_LEN_MAX {
            return Err("the kernel segmented an aggregate again, for no reason that is known".into());
        }
        if queue.len() < originals.len() {
            return Err("the kernel handed out fewer frames than we coalesced".into());
        }
        for (original, again) in originals.iter().zip(queue.drain(..originals.len())) {
            if !again.is_cut_again() || again.frames()[0] != trimmed(original) {
                return Err("the kernel did not coalesce this frame, we did".into());
            }
        }
    }
    let left: usize = kernels.values().map(Vec::len).sum();
    if left == 0 { Ok(()) } else { Err(format!("the kernel handed out {left} pieces more")) }
}

/// Checks that the kernel's output contains the input frames, in any order. The comparison ignores the IPv4 ID, because
/// the kernel increments the ID in coalesced datagrams that had equal IDs.
///
/// # Errors
/// Returns an error if the output differs from the input.
pub fn check_nothing_lost(frames: &[Vec<u8>], kernel: &[Piece]) -> Result<(), String> {
    let without_id = |frame: &[u8]| {
        let mut frame = trimmed(frame).to_vec();
        if let Some(at) = id_at(&frame) {
            frame[at..at + 2].fill(0);
            frame[at + 6..at + 8].fill(0);
        }
        frame
    };
    let mut came: Vec<_> = kernel.iter().flat_map(Piece::frames).map(|frame| without_id(&frame)).collect();
    let mut went: Vec<_> = frames.iter().map(|frame| without_id(frame)).collect();
    came.sort();
    went.sort();
    if came == went { Ok(()) } else { Err("the kernel handed out other frames than came in".into()) }
}

fn check_piece(kernel: &Piece, ours: &Piece) -> Result<(), String> {
    if let Some(difference) = difference(&kernel.bytes, &ours.bytes) {
        return Err(format!("pieces of {} and {} bytes differ {difference}", kernel.payload_len(), ours.payload_len()));
    }
    if kernel.meta.segmentation != ours.meta.segmentation {
        return Err(format!("{:?} by the kernel, {:?} by us", kernel.meta.segmentation, ours.meta.segmentation));
    }
    match (kernel.meta.checksum, ours.meta.checksum) {
        (ChecksumState::Partial(_), _) | (_, ChecksumState::Partial(_))
            if kernel.meta.checksum != ours.meta.checksum =>
        {
            Err(format!("{:?} by the kernel, {:?} by us", kernel.meta.checksum, ours.meta.checksum))
        }
        (ChecksumState::Good, ChecksumState::Bad) => Err("good to the kernel, bad to us".into()),
        _ => Ok(()),
    }
}

/// Returns the time of the kernel's coarse clock, which advances once per tick, in nanoseconds.
fn ticks() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("Linux has had this clock since 2.6.32");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// Waits for the next tick and returns its time.
fn next_tick() -> i64 {
    let before = ticks();
    loop {
        let now = ticks();
        if now != before {
            return now;
        }
        std::hint::spin_loop();
    }
}
