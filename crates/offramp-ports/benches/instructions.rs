//! The work that is done for a frame, for callgrind to count its instructions. Alone, this counts nothing:
//! `cargo run --release -p xtask -- instructions` runs it, and compares the counts with `instructions.txt`.

#[path = "../../offramp-offload/benches/peers/frames.rs"]
mod frames;

use frames::{CHECKSUM_OFFSET, CHECKSUM_START, HEADERS_LEN, MSS, SEGMENTS};
use nix::sys::eventfd::EventFd;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum};
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::layout::Transport;
use offramp_offload::meta::{PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::capture::Watched;
use offramp_ports::vhost_user::{VhostUser, VhostUserConfig};
use offramp_ports::worker::Task;
use offramp_testkit::{Buffer, Guest, GuestBuilder, Virtqueue, VnetHeader, ring};
use offramp_virtio::Vring;
use offramp_virtio::memory::{Extent, GuestMemory};
use offramp_virtio::ring::{FETCH_MAX, RingOptions, RingPlace};
use offramp_virtio::vring::VringSetup;
use std::cell::Cell;
use std::fs::File;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;

/// Distance of frames: whole cache lines, and room for the longest head.
const SLOT: usize = (HEADERS_LEN + MSS).next_multiple_of(64);
const SEQUENCE: u32 = 1000;
const ID: u16 = 7;
const ACK: u8 = 0x10;
const ACK_PSH: u8 = 0x18;
/// Entries of a ring.
const ENTRIES: u16 = 256;
/// Bytes of a guest's memory: its ring, and a buffer for all chains.
const GUEST_LEN: u64 = 64 * 1024;
const BUFFER_LEN: usize = 1526;
/// Frames of a batch over a cable.
const FRAMES: usize = 32;

fn main() {
    // The counts must be the same on every x86-64 processor.
    checksum::use_portable_kernel();
    parse("parse TCP/IPv4, 1448 B", frames::frame(0, SEQUENCE, ID, ACK, &frames::data(MSS)));
    parse("parse TCP/IPv6 with a VLAN tag, 1448 B", tagged_ipv6_frame());
    transmit();
    receive();
    drive("split", false);
    drive("packed", true);
    carry();
    carry_between_guests("split", || Guest::builder().split());
    carry_between_guests("packed", || Guest::builder().packed());
}

/// Does a work twice, with what must come before it, and has the second one counted: the first touches cold memory.
/// Prints the names in the order of the counts.
fn count<T>(name: &str, on: &mut T, prepare: impl Fn(&mut T), work: impl Fn(&mut T)) {
    prepare(on);
    work(on);
    prepare(on);
    counted_by_callgrind(&mut || work(on));
    println!("{name}");
}

/// Callgrind finds this function by its name.
#[inline(never)]
fn counted_by_callgrind(work: &mut dyn FnMut()) {
    work();
}

fn parse(name: &str, mut bytes: Vec<u8>) {
    let frame = Frame::received(&mut bytes);
    assert_eq!(frame.layout().map(|layout| layout.transport), Ok(Transport::Tcp), "{name}");
    count(name, &mut bytes, |_| {}, |bytes| _ = black_box(Frame::received(black_box(bytes))));
}

/// As far as a parser reads it: no addresses, no checksum.
fn tagged_ipv6_frame() -> Vec<u8> {
    const NETWORK: usize = 18;
    const TRANSPORT: usize = NETWORK + 40;
    let mut frame = vec![0; TRANSPORT + 20];
    frame[12..NETWORK].copy_from_slice(&[0x81, 0, 0, 7, 0x86, 0xdd]);
    frame[NETWORK] = 0x60;
    frame[NETWORK + 4..][..2].copy_from_slice(&(20 + MSS as u16).to_be_bytes());
    frame[NETWORK + 6] = 6;
    frame[TRANSPORT + 12..][..2].copy_from_slice(&[0x50, ACK]);
    frame.extend(frames::data(MSS));
    frame
}

fn transmit() {
    let meta = TxMeta {
        checksum: Some(PartialChecksum { start: CHECKSUM_START as u16, offset: CHECKSUM_OFFSET as u16 }),
        segmentation: Some(Segmentation { kind: SegmentationKind::Tcp4, size: MSS as u16, ecn: false }),
    };
    let mut bytes = frames::partial_frame(0, SEQUENCE, ID, ACK_PSH, &frames::data(SEGMENTS * MSS));
    let frame = Frame::new(&mut bytes, meta);
    let plan = || Segmenter::new(black_box(&frame), &SegmentPolicy::default()).expect("a frame of our own");
    count("plan a super-frame of 64 KiB, MSS 1448", &mut (), |()| {}, |()| _ = black_box(plan()));

    let mut line = vec![0; (SEGMENTS + 1) * SLOT];
    let segment = |line: &mut Vec<u8>| {
        let mut plan = plan();
        let written = plan.write_run(&frame, line, SLOT);
        plan.write_next(&frame, &mut line[written * SLOT..]);
        assert_eq!(plan.frames_left(), 0);
    };
    count("plan and write its 45 segments", &mut line, |_| {}, segment);
}

fn receive() {
    let payload = frames::data(MSS);
    let mut line = vec![0; SEGMENTS * SLOT];
    for (n, slot) in line.chunks_exact_mut(SLOT).enumerate() {
        let frame = frames::frame(0, SEQUENCE + (n * MSS) as u32, ID + n as u16, ACK, &payload);
        slot[..frame.len()].copy_from_slice(&frame);
    }
    let config = CoalesceConfig { rx_csum: RxCsum::NeedsCsum, ..CoalesceConfig::default() };
    let coalesce = |(coalescer, line): &mut (Coalescer, Vec<u8>)| {
        let mut len = 0;
        let mut out = |_: &RxMeta, frame: &[u8]| len = black_box(frame).len();
        for slot in line.chunks_exact_mut(SLOT) {
            let frame = Frame::received(&mut slot[..HEADERS_LEN + MSS]);
            coalescer.push(frame, Offloads::RX_CHECKSUM | Offloads::RSC, None, 0, &mut out);
        }
        coalescer.flush(&mut out);
        assert_eq!(len, HEADERS_LEN + SEGMENTS * MSS);
    };
    count("parse and coalesce 45 segments", &mut (Coalescer::new(config), line), |_| {}, coalesce);
}

fn drive(kind: &str, is_packed: bool) {
    let mut queue = Queue::new(is_packed);
    count(&format!("fetch {FETCH_MAX} chains, {kind} ring"), &mut queue, Queue::refill, Queue::fetch);
    let refill = |queue: &mut Queue| {
        queue.refill();
        queue.fetch();
    };
    count(&format!("add and publish {FETCH_MAX} used chains, {kind} ring"), &mut queue, refill, Queue::give_back);
}

/// Two queue pairs on a cable.
fn carry() {
    // Without moderation: what one side sends is there for the other at once.
    let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
    let (near, far) = cable(&CableConfig::default());
    let (left, received) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let pair = |line| {
        let control = PortControl::new(&config);
        let host = Host { frame: small_frame(), left: Rc::clone(&left), received: Rc::clone(&received) };
        QueuePair::new(&config, &control, 0, host, line)
    };
    let mut pairs = [pair(near), pair(far)];
    let poll = |pairs: &mut [QueuePair<Host, CableEnd>; 2]| {
        received.set(0);
        for pair in pairs {
            pair.poll(0).expect("a host that stays");
        }
        assert_eq!((left.get(), received.get()), (0, FRAMES));
    };
    count(&format!("carry {FRAMES} frames of 60 B over a cable"), &mut pairs, |_| left.set(FRAMES), poll);
}

/// Two guests behind vhost-user on a cable, as a daemon has them: each can be captured.
struct Guests {
    drivers: [Guest; 2],
    pairs: [Box<dyn Task>; 2],
    now_ns: u64,
    _ports: [VhostUser; 2],
}

impl Guests {
    fn new(kind: &str, guest: impl Fn() -> GuestBuilder) -> Self {
        let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
        let (near, far) = cable(&CableConfig::default());
        let mut ends = [(near, 0), (far, 1)].map(|(line, side)| {
            let socket = std::env::temp_dir().join(format!("offramp-carry-{}-{kind}-{side}", std::process::id()));
            let mut port = VhostUser::open(&VhostUserConfig::new(socket)).expect("a port");
            let control = PortControl::new(&config);
            let host = port.queue(0).expect("its queue");
            let host = Watched::new(host, &Arc::default(), &control, 0);
            (port, Box::new(QueuePair::new(&config, &control, 0, host, line)))
        });
        let sockets = [&ends[0], &ends[1]].map(|(port, _)| port.config().socket.clone());
        let builders = [guest(), guest()];
        let connecting = std::thread::spawn(move || {
            let mut sockets = sockets.into_iter();
            builders.map(|guest| guest.mergeable(true).connect(sockets.next().expect("two sockets")))
        });
        let mut now_ns = 0;
        while !connecting.is_finished() {
            now_ns += 1000;
            for (_, pair) in &mut ends {
                pair.poll(now_ns).expect("a port that stays");
            }
            std::thread::yield_now();
        }
        let mut drivers = connecting.join().expect("two guests");
        drivers[1].rx(0).fill(2 * FRAMES, BUFFER_LEN);
        let [(near, first), (far, second)] = ends;
        Self { drivers, pairs: [first, second], now_ns, _ports: [near, far] }
    }

    fn refill(&mut self) {
        let [sender, receiver] = &mut self.drivers;
        while sender.tx(0).take_used().is_some() {}
        while receiver.rx(0).try_recv().is_some() {}
        let frame = small_frame();
        for _ in 0..FRAMES {
            sender.tx(0).stage(&VnetHeader::default(), &[frame.unasked().expect("nothing asked")]).expect("room");
        }
        sender.tx(0).publish();
    }

    fn carry(&mut self) {
        self.now_ns += 1000;
        for pair in &mut self.pairs {
            pair.poll(self.now_ns).expect("a port that stays");
        }
    }
}

fn carry_between_guests(kind: &str, guest: impl Fn() -> GuestBuilder) {
    let mut guests = Guests::new(kind, guest);
    count(
        &format!("carry {FRAMES} frames of 60 B between guests, {kind} ring"),
        &mut guests,
        Guests::refill,
        Guests::carry,
    );
    let received = std::iter::from_fn(|| guests.drivers[1].rx(0).try_recv()).count();
    assert_eq!(received, FRAMES);
}

/// UDP over IPv4, for which the host asks nothing.
fn small_frame() -> FrameBuffer<Vec<u8>> {
    let mut frame = vec![0; 60];
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    let mut buffer = FrameBuffer::new(frame);
    buffer.set(0..60, TxMeta::default());
    buffer
}

/// A host that sends as many equal frames as are left, one side after the other.
struct Host {
    frame: FrameBuffer<Vec<u8>>,
    left: Rc<Cell<usize>>,
    received: Rc<Cell<usize>>,
}

impl HostPort for Host {
    fn tx_next(&mut self, _: u64) -> Result<bool, PortError> {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        Ok(left > 0)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    fn rx_deliver(&mut self, _: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        black_box(frame);
        self.received.set(self.received.get() + 1);
        Ok(())
    }

    fn rx_flush(&mut self, _: u64) {}

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }

    fn honours_data_valid(&self) -> bool {
        true
    }
}

/// Both ends of a virtqueue.
struct Queue {
    driver: Virtqueue,
    device: Vring,
    buffer: u64,
}

impl Queue {
    fn new(is_packed: bool) -> Self {
        let guest = offramp_testkit::GuestMemory::contiguous(GUEST_LEN);
        let options = ring::RingOptions { event_idx: true, ..Default::default() };
        let driver = Virtqueue::new(&guest, is_packed, ENTRIES, options);
        let ring::RingAddresses { descriptors, driver: driver_area, device: device_area } = driver.addresses();
        let file = guest.regions()[0].fd().try_clone_to_owned().expect("the file of the guest's memory");
        let extent = Extent { guest: 0, user: 0, len: GUEST_LEN, file_offset: 0 };
        let alarm = Arc::new(EventFd::new().expect("an eventfd"));
        let mut device = Vring::default();
        let setup = VringSetup {
            memory: Arc::new(
                GuestMemory::map(&[(extent, File::from(file))], u64::MAX, &alarm).expect("the guest's memory"),
            ),
            place: RingPlace { size: ENTRIES, descriptors, driver: driver_area, device: device_area },
            is_packed,
            options: RingOptions { event_idx: true, ..RingOptions::default() },
            base: if is_packed { 0x8000_8000 } else { 0 },
            kick: None,
            is_logged: false,
            inflight: None,
        };
        device.start(setup, None).expect("a ring of our own");
        Self { driver, device, buffer: guest.alloc(BUFFER_LEN as u64, 64) }
    }

    /// The driver takes back what was used, and makes a full batch available.
    fn refill(&mut self) {
        self.give_back();
        while self.driver.take_used().is_some() {}
        for _ in 0..FETCH_MAX {
            self.driver.add(&[Buffer::readable(self.buffer, BUFFER_LEN)], &[]).expect("room in the ring");
        }
        self.driver.publish();
    }

    fn fetch(&mut self) {
        let fetched = self.device.fetch(None).expect("a ring of our own");
        assert_eq!(fetched.chains, FETCH_MAX);
    }

    fn give_back(&mut self) {
        while let Some(chain) = self.device.pop() {
            self.device.add_used(&chain, 0);
        }
        black_box(self.device.publish(None));
    }
}
