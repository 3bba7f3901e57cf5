//! Measures the speed of the offload functions behind a vhost-user port. Super-frames from a guest are segmented for a
//! wire that discards them, and one TCP flow is coalesced for a guest. The benchmark compares segmentation and
//! coalescing behind the port with the segmenter and the coalescer alone. The guest is a scripted driver in this
//! process, and its work is not timed.
//!
//! `cargo bench -p offramp-ports --bench vhost_offload`

#[path = "../../offramp-offload/benches/peers/frames.rs"]
mod frames;

use frames::{CHECKSUM_OFFSET, CHECKSUM_START, HEADERS_LEN, MSS, SEGMENTS};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{Arrival, Loan, WirePort};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::vhost_user::{VhostQueue, VhostUser, VhostUserConfig};
use offramp_testkit::guest::GuestBuilder;
use offramp_testkit::{Guest, VnetHeader, features};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of samples of each workload, taken in turn. The benchmark prints the median.
const ROUNDS: usize = 301;
/// Number of super-frames that a guest sends or receives together in one of the two measurements, as many as a socket
/// buffer of 512 KiB holds. In the other measurement, the guest sends or receives one super-frame at a time.
const TOGETHER: usize = 8;
/// Number of descriptors in each of the guest's rings.
const QUEUE_SIZE: u16 = 1024;
/// Length of a receive buffer in bytes: a page, as in Linux' driver while large frames arrive.
const BUFFER_LEN: usize = 4096;
/// Distance between frames in the wire's memory, in bytes: whole cache lines.
const SLOT: usize = (HEADERS_LEN + MSS).next_multiple_of(64);
/// Sequence number of the first segment, and the first IPv4 ID.
const SEQUENCE: u32 = 1000;
const ID: u16 = 7;
/// TCP flags: ACK, and ACK with PSH.
const ACK: u8 = 0x10;
const ACK_PSH: u8 = 0x18;
/// Time limit, longer than any answer of the port takes.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--test") { 1 } else { ROUNDS };
    println!("{:<44} {:>12} {:>8} {:>8}", "64 KiB of one TCP flow, MSS 1448", "ns", "GB/s", "of alone");
    for packed in [false, true] {
        println!("{} ring", if packed { "packed" } else { "split" });
        let guest = || if packed { Guest::builder().packed() } else { Guest::builder().split() };
        transmit(guest(), rounds);
        receive(guest(), rounds);
    }
}

/// A wire that discards sent frames, and on which the frames in `arriving` arrive.
struct Line {
    sent: Vec<u8>,
    arriving: Vec<u8>,
    next: usize,
    end: usize,
}

impl Line {
    fn new(arriving: Vec<u8>) -> Self {
        Self { sent: vec![0; (SEGMENTS + 1) * SLOT], arriving, next: 0, end: 0 }
    }
}

impl WirePort for Line {
    fn room(&mut self, _now_ns: u64) -> usize {
        SEGMENTS
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let end = count.min(SEGMENTS).checked_sub(1)? * SLOT + len;
        Some(Loan { bytes: self.sent.get_mut(..end)?, stride: SLOT })
    }

    fn put(&mut self, _len: usize, _count: usize, _now_ns: u64) {}

    fn flush(&mut self) {
        black_box(&mut self.sent);
    }

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        self.take_run(now_ns, 1).next()
    }

    // Lends several frames together, as a cable does.
    fn take_run(&mut self, _now_ns: u64, frames_max: usize) -> impl Iterator<Item = &mut [u8]> {
        let from = self.next;
        self.next += frames_max.min(self.end - from);
        self.arriving[from * SLOT..self.next * SLOT].chunks_mut(SLOT).map(|slot| &mut slot[..HEADERS_LEN + MSS])
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        (self.next != self.end).then_some(0)
    }

    fn arrivals(&self, skip: usize, _until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        (self.next..self.end).skip(skip).for_each(|_| note(Arrival { at_ns: 0, len: HEADERS_LEN + MSS }));
        u32::MAX
    }
}

/// A port polled by this thread, with its guest.
struct Bed {
    guest: Guest,
    pair: QueuePair<VhostQueue, Line>,
    control: Arc<PortControl>,
    _port: VhostUser,
    socket: PathBuf,
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The socket may already be removed.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Bed {
    fn new(builder: GuestBuilder, line: Line) -> Self {
        let socket = std::env::temp_dir().join(format!("offramp-bench-{}.sock", std::process::id()));
        let mut port = VhostUser::open(&VhostUserConfig::new(socket.clone())).unwrap_or_else(|e| panic!("{e}"));
        let config = AdapterConfig { receive_batch_frames: 2 * TOGETHER * SEGMENTS, ..AdapterConfig::default() };
        let control = PortControl::new(&config);
        let mut pair = QueuePair::new(&config, &control, 0, port.queue(0).expect("the port's queue"), line);
        let at = socket.clone();
        let connecting = std::thread::spawn(move || builder.queue_size(QUEUE_SIZE).connect(at));
        while !connecting.is_finished() {
            pair.poll(0).expect("a guest that is coming");
        }
        let guest = connecting.join().expect("a guest that came");
        Self { guest, pair, control, _port: port, socket }
    }

    /// Polls the port until the count returned by `done` reaches `target`. Returns the time taken, in nanoseconds.
    fn poll_ns(&mut self, done: impl Fn(&PortControl) -> u64, target: u64) -> f64 {
        let start = Instant::now();
        while done(&self.control) < target {
            self.pair.poll(0).expect("a guest that is there");
        }
        start.elapsed().as_nanos() as f64
    }
}

/// The name of a workload, and a function that does the work and returns the time per super-frame in nanoseconds.
type Work<'a> = (&'static str, Box<dyn FnMut() -> f64 + 'a>);

/// Takes samples of all workloads in turn, prints their medians, and compares each median with the first workload's
/// median.
fn compare(mut works: Vec<Work>, rounds: usize) {
    let mut samples = vec![Vec::with_capacity(rounds); works.len()];
    for _ in 0..=rounds {
        for ((_, work), samples) in works.iter_mut().zip(&mut samples) {
            samples.push(work());
        }
    }
    let median = |samples: &mut Vec<f64>| {
        // The first sample ran with cold caches.
        samples.remove(0);
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    let medians: Vec<f64> = samples.iter_mut().map(median).collect();
    for ((name, _), ns) in works.iter().zip(&medians) {
        let speed = (SEGMENTS * MSS) as f64 / ns;
        println!("  {name:<42} {ns:>12.0} {speed:>8.1} {:>8.2}", medians[0] / ns);
    }
}

fn transmit(builder: GuestBuilder, rounds: usize) {
    let super_frame = frames::partial_frame(0, SEQUENCE, ID, ACK_PSH, &frames::data(SEGMENTS * MSS));
    let builder = builder.mergeable(true).features(features::CSUM | features::HOST_TSO4);
    let mut bed = Bed::new(builder, Line::new(Vec::new()));
    let mut send = |count: usize| {
        let header = VnetHeader::tcp4(MSS as u16);
        for _ in 0..count {
            bed.guest.tx(0).stage(&header, &[&super_frame]).expect("room in the ring");
        }
        bed.guest.tx(0).publish();
        let done = |control: &PortControl| control.queues()[0].transmit.frames_out.get();
        let target = done(&bed.control) + (count * SEGMENTS) as u64;
        let ns = bed.poll_ns(done, target);
        bed.pair.poll(0).expect("a guest that is there");
        bed.guest.tx(0).drain(PATIENCE);
        ns / count as f64
    };
    let send = std::cell::RefCell::new(&mut send);
    let (mut line, mut private) = (vec![0; (SEGMENTS + 1) * SLOT], vec![0; super_frame.len()]);
    let mut copied = super_frame.clone();
    let alone = || {
        let start = Instant::now();
        black_box(cut(black_box(&mut copied), black_box(&mut line)));
        start.elapsed().as_nanos() as f64
    };
    let copy = || {
        let start = Instant::now();
        black_box(&mut private).copy_from_slice(black_box(&super_frame));
        start.elapsed().as_nanos() as f64
    };
    compare(
        vec![
            ("segment alone", Box::new(alone)),
            ("one copy of the super-frame", Box::new(copy)),
            ("a guest sends, one at a time", Box::new(|| (send.borrow_mut())(1))),
            ("a guest sends, eight together", Box::new(|| (send.borrow_mut())(TOGETHER))),
        ],
        rounds,
    );
}

fn cut(super_frame: &mut [u8], line: &mut [u8]) -> usize {
    let meta = TxMeta {
        checksum: Some(PartialChecksum { start: CHECKSUM_START as u16, offset: CHECKSUM_OFFSET as u16 }),
        segmentation: Some(Segmentation::new(SegmentationKind::Tcp4, MSS as u16)),
    };
    let frame = Frame::new(super_frame, meta);
    let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).expect("a frame of our own");
    let written = plan.write_run(&frame, line, SLOT);
    plan.write_next(&frame, &mut line[written * SLOT..]);
    plan.frames_left()
}

/// Returns the segments of `super_frames` super-frames, in wire order.
fn segments(super_frames: usize) -> Vec<u8> {
    let payload = frames::data(MSS);
    let mut line = vec![0; super_frames * SEGMENTS * SLOT];
    for (n, slot) in line.chunks_exact_mut(SLOT).enumerate() {
        let frame = frames::frame(0, SEQUENCE + (n * MSS) as u32, ID + n as u16, ACK, &payload);
        slot[..frame.len()].copy_from_slice(&frame);
    }
    line
}

fn receive(builder: GuestBuilder, rounds: usize) {
    let builder = builder.mergeable(true).features(features::GUEST_CSUM | features::GUEST_TSO4);
    let mut bed = Bed::new(builder, Line::new(segments(TOGETHER)));
    bed.guest.rx(0).fill(usize::from(QUEUE_SIZE), BUFFER_LEN);
    let mut arrive = |count: usize| {
        let line = bed.pair.wire_mut();
        (line.next, line.end) = (0, count * SEGMENTS);
        let done = |control: &PortControl| control.queues()[0].receive.frames_out.get();
        let target = done(&bed.control) + (count * SEGMENTS) as u64;
        let ns = bed.poll_ns(done, target);
        for _ in 0..count {
            let received = bed.guest.rx(0).recv(PATIENCE);
            assert_eq!(received.frame.len(), HEADERS_LEN + SEGMENTS * MSS, "everything coalesced");
        }
        ns / count as f64
    };
    let arrive = std::cell::RefCell::new(&mut arrive);
    let config = CoalesceConfig { rx_csum: RxCsum::NeedsCsum, ..CoalesceConfig::default() };
    let (mut coalescer, mut line) = (Coalescer::new(config), segments(1));
    let alone = || {
        let start = Instant::now();
        black_box(join(&mut coalescer, black_box(&mut line)));
        start.elapsed().as_nanos() as f64
    };
    compare(
        vec![
            ("coalesce alone", Box::new(alone)),
            ("a guest receives, one at a time", Box::new(|| (arrive.borrow_mut())(1))),
            ("a guest receives, eight together", Box::new(|| (arrive.borrow_mut())(TOGETHER))),
        ],
        rounds,
    );
}

fn join(coalescer: &mut Coalescer, line: &mut [u8]) -> usize {
    let mut bytes = 0;
    let mut out = |_: &RxMeta, frame: &[u8]| bytes += black_box(frame).len();
    for slot in line.chunks_exact_mut(SLOT) {
        let frame = Frame::received(&mut slot[..HEADERS_LEN + MSS]);
        coalescer.push(frame, Offloads::RX_CHECKSUM | Offloads::RSC, None, 0, &mut out);
    }
    coalescer.flush(&mut out);
    bytes
}
