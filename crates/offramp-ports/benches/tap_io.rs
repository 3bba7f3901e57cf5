//! Measures the cost of a TAP per frame: one system call per frame, as in offramp, compared with `io_uring` in batches.
//! The benchmark uses one thread and no TCP. Delivered frames have an unknown Ethernet address, so that the kernel
//! drops them at once. Fetched frames come from a packet socket, whose work is not timed.
//!
//! `cargo bench -p offramp-ports --bench tap_io`

use std::hint::black_box;
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use nix::sys::uio::writev;
use nix::unistd::read;
use offramp_adapter::port::HostPort;
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind};
use offramp_ports::sys::{NetNs, cpu, link};
use offramp_ports::tap::{FRAME_LEN_MAX, Tap, TapConfig, TapQueue};
use offramp_ports::vnet_hdr::{HEADER_LEN, encode_rx};

/// Number of frames per batch.
const BATCH: usize = 32;
/// Measurement time for each frame length.
const PERIOD: Duration = Duration::from_millis(1500);
/// Size of the packet socket's send buffer in bytes: a batch of super-frames with the kernel's overhead.
const SEND_BUFFER: libc::c_int = 8 << 20;
/// Length of the Ethernet, IPv4 and TCP headers in bytes, with TCP timestamps.
const HEADERS: usize = 14 + 20 + 32;
/// Payload of a full segment at MTU 1500, in bytes.
const MSS: u16 = 1448;

/// A frame length, and the segmentation of the frame.
struct Shape {
    name: &'static str,
    len: usize,
    cut: bool,
}

const SHAPES: [Shape; 3] = [
    Shape { name: "64 B", len: 64, cut: false },
    Shape { name: "1514 B", len: 1514, cut: false },
    Shape { name: "64 KiB TSO", len: HEADERS + 45 * MSS as usize, cut: true },
];

fn main() {
    let ns = NetNs::new().unwrap_or_else(|e| panic!("no network namespace: {e}; run as root"));
    ns.run(|| {
        cpu::pin_current_thread(&cpu::online()[..1]).unwrap();
        bench().unwrap();
    })
    .unwrap();
}

fn bench() -> io::Result<()> {
    let tap = Tap::open(&TapConfig::new("ofr0")).map_err(io::Error::other)?;
    tap.offer(Offloads::TX).map_err(io::Error::other)?;
    link::disable_ipv6("ofr0")?;
    link::set_up("ofr0")?;
    let mut queue = tap.queue(0).unwrap();
    let source = PacketSocket::open("ofr0")?;
    let mut uring = Uring::new(&queue)?;
    println!("ns per frame, median of batches of {BATCH}; in brackets: port / io_uring (above 1: io_uring is faster)");
    println!("an empty system call: {:.0} ns\n", median(empty_calls()));
    println!("{:<12} {:>8} {:>8} {:>16} {:>16}", "give", "give()", "writev", "io_uring by 32", "io_uring by 1");
    let mut taken = Vec::new();
    for shape in &SHAPES {
        let (meta, frame) = make(shape);
        let [gives, takes] = measure(&mut queue, &mut uring, &source, &meta, &frame)?;
        print_line(shape.name, gives);
        taken.push((shape.name, takes));
    }
    println!("\n{:<12} {:>8} {:>8} {:>16} {:>16}", "take", "take()", "read", "io_uring by 32", "io_uring by 1");
    for (name, takes) in taken {
        print_line(name, takes);
    }
    Ok(())
}

/// Costs per frame in nanoseconds, for every batch: by the port, the plain system call, `io_uring` in batches, and
/// `io_uring` one by one.
type Costs = [Vec<f64>; 4];

fn print_line(name: &str, costs: Costs) {
    let [port, plain, by_batch, by_one] = costs.map(median);
    let ratio = |uring: f64| format!("{uring:.0} ({:.2})", port / uring);
    println!("{name:<12} {port:>8.0} {plain:>8.0} {:>16} {:>16}", ratio(by_batch), ratio(by_one));
}

/// Returns the costs of delivering and of fetching.
fn measure(
    queue: &mut TapQueue,
    uring: &mut Uring,
    source: &PacketSocket,
    meta: &RxMeta,
    frame: &[u8],
) -> io::Result<[Costs; 2]> {
    let (mut give, mut take) = (Costs::default(), Costs::default());
    let from_host = [&encode_rx(meta)[..10], frame].concat();
    let to_host = [&encode_rx(meta)[..], frame].concat();
    let parts = [IoSlice::new(&to_host[..HEADER_LEN]), IoSlice::new(frame)];
    let mut buffer = vec![0; HEADER_LEN + FRAME_LEN_MAX];
    let began = Instant::now();
    while began.elapsed() < PERIOD {
        give[0].push(timed(|| (0..BATCH).try_for_each(|_| queue.rx_deliver(meta, frame).map_err(io::Error::other)))?);
        give[1].push(timed(|| (0..BATCH).try_for_each(|_| Ok(writev(&*queue, &parts).map(drop)?)))?);
        give[2].push(timed(|| uring.write(&to_host, BATCH))?);
        give[3].push(timed(|| (0..BATCH).try_for_each(|_| uring.write(&to_host, 1)))?);
        source.fill(&from_host)?;
        take[0].push(timed(|| take_batch(queue, frame.len()))?);
        source.fill(&from_host)?;
        take[1].push(timed(|| (0..BATCH).try_for_each(|_| Ok(read(&*queue, &mut buffer).map(drop)?)))?);
        source.fill(&from_host)?;
        take[2].push(timed(|| uring.read(frame.len(), BATCH))?);
        source.fill(&from_host)?;
        take[3].push(timed(|| (0..BATCH).try_for_each(|_| uring.read(frame.len(), 1)))?);
    }
    Ok([give, take])
}

fn take_batch(queue: &mut TapQueue, len: usize) -> io::Result<()> {
    for _ in 0..BATCH {
        let taken = queue.tx_next(0).map_err(io::Error::other)?;
        if !taken || black_box(queue.tx_frame()).bytes().len() != len {
            return Err(io::Error::other("a frame is missing"));
        }
    }
    Ok(())
}

/// Returns the costs of a minimal system call.
fn empty_calls() -> Vec<f64> {
    let call = || {
        black_box(nix::unistd::getppid());
        Ok(())
    };
    (0..1000).filter_map(|_| timed(|| (0..BATCH).try_for_each(|_| call())).ok()).collect()
}

fn timed(f: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
    let began = Instant::now();
    f()?;
    Ok(began.elapsed().as_nanos() as f64 / BATCH as f64)
}

fn median(mut costs: Vec<f64>) -> f64 {
    let middle = costs.len() / 2;
    *costs.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Returns a TCP frame from 10.0.0.1 to 10.0.0.2, for an unused Ethernet address.
fn make(shape: &Shape) -> (RxMeta, Vec<u8>) {
    let mut frame = vec![0; shape.len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 0x77, 8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((shape.len - 14) as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[46..48].copy_from_slice(&[8 << 4, 0x10]);
    let mut meta = RxMeta::default();
    if shape.cut {
        meta.checksum = ChecksumState::Partial(PartialChecksum { start: 34, offset: 16 });
        meta.segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, MSS));
        meta.header_len = HEADERS as u16;
    }
    (meta, frame)
}

/// A packet socket that transmits frames on an interface, as the interface's host.
struct PacketSocket {
    fd: OwnedFd,
    to: libc::sockaddr_ll,
}

impl PacketSocket {
    fn open(name: &str) -> io::Result<Self> {
        // SAFETY: socket(2) takes its arguments by value.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)?;
        let to = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_IP as u16).to_be(),
            sll_ifindex: link::index(name)? as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        Ok(Self { fd, to })
    }

    /// Sends `packet` [`BATCH`] times. The packet starts with a vnet header of ten bytes.
    fn fill(&self, packet: &[u8]) -> io::Result<()> {
        for _ in 0..BATCH {
            // SAFETY: sendto(2) reads `packet` and `to` with the given lengths, and both live through the call.
            let sent = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    packet.as_ptr().cast(),
                    packet.len(),
                    0,
                    (&raw const self.to).cast(),
                    size_of::<libc::sockaddr_ll>() as u32,
                )
            };
            if sent < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as u32;
    // SAFETY: setsockopt(2) reads one int, which lives through the call.
    let outcome = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The fastest known setup of an `io_uring`: one issuer, no inter-processor interrupts, and a registered descriptor.
struct Uring {
    ring: IoUring,
    buffers: Vec<Vec<u8>>,
}

impl Uring {
    fn new(queue: &TapQueue) -> io::Result<Self> {
        use std::os::fd::AsFd;
        let mut builder = IoUring::<squeue::Entry, cqueue::Entry>::builder();
        builder.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
        let ring = builder.build(BATCH as u32)?;
        ring.submitter().register_files(&[queue.as_fd().as_raw_fd()])?;
        let buffers = (0..BATCH).map(|_| vec![0; HEADER_LEN + FRAME_LEN_MAX]).collect();
        Ok(Self { ring, buffers })
    }

    /// Writes a packet with its vnet header `count` times.
    fn write(&mut self, packet: &[u8], count: usize) -> io::Result<()> {
        let entry = opcode::Write::new(types::Fixed(0), packet.as_ptr(), packet.len() as u32).build();
        let entries: [squeue::Entry; BATCH] = std::array::from_fn(|_| entry.clone());
        self.submit(&entries[..count], packet.len())
    }

    /// Reads `count` frames of one length, each into its own buffer.
    fn read(&mut self, len: usize, count: usize) -> io::Result<()> {
        let entry = |b: &mut Vec<u8>| opcode::Read::new(types::Fixed(0), b.as_mut_ptr(), b.len() as u32).build();
        let mut buffers = self.buffers.iter_mut();
        let entries: [squeue::Entry; BATCH] = std::array::from_fn(|_| entry(buffers.next().unwrap()));
        self.submit(&entries[..count], HEADER_LEN + len)?;
        black_box(&self.buffers);
        Ok(())
    }

    /// Submits a batch to the kernel, and waits until it is complete.
    fn submit(&mut self, entries: &[squeue::Entry], expected: usize) -> io::Result<()> {
        // SAFETY: every entry points into a buffer of the given length. The buffer lives and is not accessed until the
        // batch has completed, which is before this function returns.
        unsafe { self.ring.submission().push_multiple(entries) }.map_err(io::Error::other)?;
        self.ring.submit_and_wait(entries.len())?;
        let right = self.ring.completion().filter(|done| done.result() == expected as i32).count();
        if right == entries.len() { Ok(()) } else { Err(io::Error::other("a frame is missing")) }
    }
}
