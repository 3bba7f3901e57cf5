//! Does the work of an adapter per frame, so that callgrind can count the instructions of this work. This program
//! itself counts nothing: `cargo run --release -p xtask -- instructions` runs this program under callgrind, and
//! compares the counts with `instructions.txt`.

#[path = "../../offramp-offload/benches/peers/frames.rs"]
mod frames;

use frames::{CHECKSUM_OFFSET, CHECKSUM_START, HEADERS_LEN, MSS, SEGMENTS};
use nix::sys::eventfd::EventFd;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::switch::{PortConfig as SwitchPortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum};
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::layout::Transport;
use offramp_offload::meta::{PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::capture::Watched;
use offramp_ports::vhost_user::{ControlQueue, VhostPort, VhostUser, VhostUserConfig};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::{Buffer, Guest, GuestBuilder, Virtqueue, VnetHeader, ring};
use offramp_virtio::Vring;
use offramp_virtio::memory::{Extent, GuestMemory};
use offramp_virtio::ring::{FETCH_MAX, RingOptions, RingPlace};
use offramp_virtio::vring::VringSetup;
use std::cell::Cell;
use std::fs::File;
use std::hint::black_box;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Distance between frames in bytes: whole cache lines, with room for the longest headers.
const SLOT: usize = (HEADERS_LEN + MSS).next_multiple_of(64);
const SEQUENCE: u32 = 1000;
const ID: u16 = 7;
const ACK: u8 = 0x10;
const ACK_PSH: u8 = 0x18;
/// Number of entries in a ring.
const ENTRIES: u16 = 256;
/// Size of a guest's memory in bytes: its ring, and one buffer used by all chains.
const GUEST_LEN: u64 = 64 * 1024;
const BUFFER_LEN: usize = 1526;
/// Destination address of small frames.
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Number of frames in a batch over a cable.
const FRAMES: usize = 32;

fn main() {
    // Use the portable checksum routine, so that the counts are the same on every x86-64 processor.
    checksum::use_portable_kernel();
    parse("parse TCP/IPv4, 1448 B", frames::frame(0, SEQUENCE, ID, ACK, &frames::data(MSS)));
    parse("parse TCP/IPv6 with a VLAN tag, 1448 B", tagged_ipv6_frame());
    transmit();
    receive();
    drive("split", false);
    drive("packed", true);
    carry();
    for (kind, guest) in [("split", Guest::builder().split()), ("packed", Guest::builder().packed())] {
        carry_between(&format!("guests, {kind} ring"), Guests::on_cable(&guest));
        carry_super_frame(kind, &guest);
    }
    for (name, features, command) in settings() {
        carry_between(&format!("guests on a switch, {name}"), Guests::on_switch(features, command));
    }
}

/// Returns the settings of the measured receivers: a name, the negotiated features, and a control-queue command.
fn settings() -> [(&'static str, u64, Option<Vec<u8>>); 5] {
    const KEY_LEN: usize = 40;
    let key = [&[KEY_LEN as u8][..], &[7; KEY_LEN]].concat();
    let rss = [&[4, 1, 0x3f, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0][..], &key].concat();
    let hash = [&[4, 2, 0x3f, 0, 0, 0][..], &[0; 8], &key].concat();
    let table = [&[1, 0, 1, 0, 0, 0][..], &DESTINATION, &[0; 4]].concat();
    [
        ("nothing set", 0, None),
        ("RSS", features::RSS, Some(rss)),
        ("a hash report", features::HASH_REPORT, Some(hash)),
        ("a table of addresses", features::CTRL_RX, Some(table)),
        ("statistics", features::DEVICE_STATS, None),
    ]
}

/// Runs a workload twice, each time after its preparation. Only the second run is counted, because the first run
/// touches cold memory. The function prints the workload's name, so the printed names are in the same order as the
/// counts.
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

/// Returns a frame with only the fields that a parser reads, without addresses and checksum.
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
        segmentation: Some(Segmentation::new(SegmentationKind::Tcp4, MSS as u16)),
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

/// Counts the work of two queue pairs on a cable.
fn carry() {
    // Turn off moderation, so that frames sent by one adapter are available to the other adapter at once.
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

/// Two guests behind vhost-user ports. The first guest sends.
struct Guests {
    drivers: [Guest; 2],
    poll: Box<dyn FnMut(u64)>,
    now_ns: u64,
    ports: [VhostUser; 2],
}

impl Guests {
    /// Connects the guests by a cable, each host wrapped for captures as in the daemon.
    fn on_cable(guest: &GuestBuilder) -> Self {
        let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
        let mut ports = open_ports(|_| VhostUserConfig::new(PathBuf::new()));
        let (near, far) = cable(&CableConfig::default());
        let mut pair = |line, side: usize| {
            let control = PortControl::new(&config);
            let host = Watched::new(ports[side].queue(0).expect("its queue"), &Arc::default(), &control, 0);
            QueuePair::new(&config, &control, 0, host, line)
        };
        let mut pairs = [pair(near, 0), pair(far, 1)];
        let poll = move |now_ns| pairs.iter_mut().for_each(|pair| _ = pair.poll(now_ns).expect("a port that stays"));
        Self::connect(ports, Box::new(poll), [guest, guest].map(|guest| guest.clone().mergeable(true)), None)
    }

    /// Connects the guests by a switch. The second guest has two queue pairs, and sends a control-queue command.
    fn on_switch(features: u64, command: Option<Vec<u8>>) -> Self {
        let mut ports = open_ports(|side| VhostUserConfig {
            queue_pairs: 1 + u16::from(side),
            mac: Some([2, 0, 0, 0, 0, side]),
            steers: true,
            control_queue: ControlQueue::Backend,
            ..VhostUserConfig::new(PathBuf::new())
        });
        let mut switch: Switch<VhostPort> = Switch::new(&SwitchConfig::default());
        for (port, queues) in ports.iter_mut().zip([1, 2]) {
            let host = VhostPort::new((0..queues).filter_map(|pair| port.queue(pair)).collect()).expect("its queues");
            switch.control().add(host, &SwitchPortConfig::default()).expect("a place on the switch");
        }
        let protocol = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS | protocol::CONFIG;
        let receiver = Guest::builder().split().queue_pairs(2).features(features::MQ | features).control_queue();
        let builders = [Guest::builder().split(), receiver.protocol_features(protocol)];
        let poll = move |now_ns| _ = switch.poll(now_ns);
        Self::connect(ports, Box::new(poll), builders.map(|guest| guest.mergeable(true)), command)
    }

    fn connect(
        ports: [VhostUser; 2],
        mut poll: Box<dyn FnMut(u64)>,
        [sender, receiver]: [GuestBuilder; 2],
        command: Option<Vec<u8>>,
    ) -> Self {
        let [of_sender, of_receiver] = ports.each_ref().map(|port| port.config().socket.clone());
        let connecting = std::thread::spawn(move || {
            let mut drivers = [sender.connect(of_sender), receiver.connect(of_receiver)];
            if let Some(command) = command {
                assert_eq!(drivers[1].control().command(&[&command], &[1]), Some(vec![0]), "{command:?}");
            }
            drivers
        });
        let mut now_ns = 0;
        while !connecting.is_finished() {
            now_ns += 1000;
            poll(now_ns);
            std::thread::yield_now();
        }
        let mut drivers = connecting.join().expect("two guests");
        for pair in 0..ports[1].config().queue_pairs.into() {
            drivers[1].rx(pair).fill(2 * FRAMES, BUFFER_LEN);
        }
        // Make the switch learn the receiver's port.
        let mut frame = small_frame();
        let bytes = &mut frame.memory_mut()[..12];
        bytes.rotate_left(6);
        drivers[1].tx(0).send(&VnetHeader::default(), &[frame.unasked().expect("nothing asked")]);
        Self { drivers, poll, now_ns, ports }
    }

    fn refill(&mut self) {
        self.received();
        let sender = &mut self.drivers[0];
        while sender.tx(0).take_used().is_some() {}
        let frame = small_frame();
        for _ in 0..FRAMES {
            sender.tx(0).stage(&VnetHeader::default(), &[frame.unasked().expect("nothing asked")]).expect("room");
        }
        sender.tx(0).publish();
    }

    fn carry(&mut self) {
        self.now_ns += 1000;
        (self.poll)(self.now_ns);
    }

    /// Takes the frames received by the second guest, and returns their number.
    fn received(&mut self) -> usize {
        let [_, receiver] = &mut self.drivers;
        let pairs = self.ports[1].config().queue_pairs.into();
        (0..pairs).map(|pair| std::iter::from_fn(|| receiver.rx(pair).try_recv()).count()).sum()
    }
}

fn open_ports(config: impl Fn(u8) -> VhostUserConfig) -> [VhostUser; 2] {
    [0, 1].map(|side| {
        let socket = std::env::temp_dir().join(format!("offramp-carry-{}-{side}", std::process::id()));
        VhostUser::open(&VhostUserConfig { socket, ..config(side) }).expect("a port")
    })
}

fn carry_between(hosts: &str, mut guests: Guests) {
    let name = format!("carry {FRAMES} frames of 60 B between {hosts}");
    count(&name, &mut guests, Guests::refill, Guests::carry);
    assert_eq!(guests.received(), FRAMES, "{name}");
}

/// Counts a super-frame that one guest sends and another guest receives. On the cable between them, it is 45 segments.
fn carry_super_frame(kind: &str, guest: &GuestBuilder) {
    const OFFLOADS: u64 = features::CSUM | features::HOST_TSO4 | features::GUEST_CSUM | features::GUEST_TSO4;
    let bytes = frames::partial_frame(0, SEQUENCE, ID, ACK_PSH, &frames::data(SEGMENTS * MSS));
    let header = VnetHeader::tcp4(MSS as u16);
    let send = |guests: &mut Guests| {
        guests.received();
        let sender = &mut guests.drivers[0];
        while sender.tx(0).take_used().is_some() {}
        sender.tx(0).stage(&header, &[&bytes]).expect("room");
        sender.tx(0).publish();
    };
    let mut guests = Guests::on_cable(&guest.clone().features(OFFLOADS));
    guests.drivers[1].rx(0).fill(2 * SEGMENTS, BUFFER_LEN);
    let name = format!("carry a super-frame of 64 KiB between guests, {kind} ring");
    count(&name, &mut guests, send, Guests::carry);
    assert_eq!(guests.received(), 1, "{name}");
}

/// Returns a UDP frame over IPv4 without offload requests.
fn small_frame() -> FrameBuffer<Vec<u8>> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&DESTINATION);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    let mut buffer = FrameBuffer::new(frame);
    buffer.set(0..60, TxMeta::default());
    buffer
}

/// A host that sends a given number of equal frames.
struct Host {
    frame: FrameBuffer<Vec<u8>>,
    left: Rc<Cell<usize>>,
    received: Rc<Cell<usize>>,
}

impl InPlace for Host {}

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

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }
}

/// A virtqueue's driver and device.
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

    /// Takes back the driver's used chains, and makes a full batch available.
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
