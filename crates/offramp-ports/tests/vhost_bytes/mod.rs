//! Invariants for any ring contents from a guest and any messages from a frontend. The fuzz targets and the ordinary
//! tests share these functions.

pub mod commands;

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::port_security::PortSecurity;
use offramp_offload::caps::Offloads;
use offramp_offload::esp::Prefix;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::vhost_user::{VhostQueue, VhostUser, VhostUserConfig};
use offramp_ports::vnet_hdr::{HEADER_LEN, decode_rx, decode_tx, encode_rx};
use offramp_ports::worker::{HostIo, Worker};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{Header, VringAddr};
use offramp_testkit::{Frontend, GuestMemory, RegionSpec};

/// Size of guest memory in a ring test, in bytes: small enough that a random address is often valid.
const MEMORY_LEN: u64 = 16 * 1024;
/// Addresses of the two rings: descriptors, driver area, device area.
const PARTS: [[u64; 3]; 2] = [[0, 0x1000, 0x1400], [0x2000, 0x3000, 0x3400]];
/// Number of entries of the largest ring whose areas do not overlap.
const RING_MAX: u16 = 100;
/// Number of polls of the device per input.
const ROUNDS: usize = 4;
/// Maximum number of frames fetched and delivered per poll.
const FRAMES: usize = 40;
/// Number of settings bytes before the ring's memory.
pub const RING_SETTINGS_LEN: usize = 12;

fn socket(name: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("offramp-bytes-{name}-{}-{number}", std::process::id()))
}

fn event() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).expect("creating an eventfd")
}

/// A port whose queue is polled by this thread, and a frontend that sets the port up for every input.
struct RingBench {
    // The frontend and the queue are dropped before the port, so that the port need not wait for its queue.
    frontend: Frontend,
    queue: VhostQueue,
    port: VhostUser,
    memory: GuestMemory,
    kick: EventFd,
    offered: u64,
}

impl RingBench {
    fn new() -> Self {
        let config = VhostUserConfig::new(socket("ring"));
        let mut port = VhostUser::open(&config).expect("opening a port");
        let mut queue = port.queue(0).expect("the first queue");
        let mut frontend = Frontend::connect(&config.socket);
        let memory = GuestMemory::new(&[RegionSpec::new(0, MEMORY_LEN)]);
        let offered = drive(&mut queue, || {
            let offered = frontend.get_features().expect("an answer");
            frontend.set_protocol_features(protocol::REPLY_ACK).expect("an answer");
            frontend.set_features(features::VERSION_1 | features::PROTOCOL_FEATURES).expect("an answer");
            frontend.set_mem_table(&memory).expect("an answer");
            offered
        });
        Self { frontend, queue, port, memory, kick: event(), offered }
    }

    /// Sets up both rings from the settings. Returns whether the port accepted the rings. A refusal ends the
    /// connection.
    fn start(&mut self, settings: &[u8; RING_SETTINGS_LEN], packed: bool) -> bool {
        let on = |bit: u32, feature: u64| if settings[0] >> bit & 1 == 1 { feature } else { 0 };
        let features = features::VERSION_1
            | features::PROTOCOL_FEATURES
            | if packed { features::RING_PACKED } else { 0 }
            | on(0, features::EVENT_IDX)
            | on(1, features::INDIRECT_DESC)
            | on(2, features::MRG_RXBUF)
            | on(3, features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_USO)
            | on(4, features::GUEST_CSUM | features::GUEST_TSO4);
        let size = u32::from(settings[1]) % u32::from(RING_MAX) + 1;
        let size = if packed { size } else { size.next_power_of_two().min(64) };
        let bases =
            [4, 8].map(|at| u32::from_le_bytes([settings[at], settings[at + 1], settings[at + 2], settings[at + 3]]));
        let (frontend, memory, kick) = (&self.frontend, &self.memory, self.kick.as_fd());
        let features = features & self.offered;
        drive(&mut self.queue, || {
            let setup = |index: usize| {
                let [descriptors, available, used] = PARTS[index].map(|at| memory.user_addr(at));
                let index = index as u32;
                frontend.get_vring_base(index)?;
                frontend.set_vring_num(index, size)?;
                // A packed base contains a slot and a wrap counter. The base is kept inside the ring: the port refuses
                // any other base, as a separate test checks.
                let slot = |bits: u32| ((bits & 0x7fff) % size) | (bits & 0x8000);
                let base = bases[index as usize];
                let base = if packed { slot(base) | (slot(base >> 16) << 16) } else { base & 0xffff };
                frontend.set_vring_base(index, base)?;
                frontend.set_vring_addr(&VringAddr { index, descriptors, used, available, ..VringAddr::default() })?;
                frontend.set_vring_kick(index, Some(kick))?;
                frontend.set_vring_enable(index, true)
            };
            let stopped = (0..2).try_for_each(|index| frontend.get_vring_base(index).map(drop));
            stopped.and_then(|()| frontend.set_features(features)).and_then(|()| (0..2).try_for_each(setup)).is_ok()
        })
    }
}

/// Polls the queue while `ask` exchanges messages with the queue's port, so that the queue can answer.
fn drive<R: Send>(queue: &mut VhostQueue, ask: impl FnOnce() -> R + Send) -> R {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let answer = ask();
            is_done.store(true, Ordering::Release);
            answer
        });
        while !is_done.load(Ordering::Acquire) && !asking.is_finished() {
            queue.rx_flush(0);
            std::thread::yield_now();
        }
        asking.join().expect("the frontend")
    })
}

/// Runs an input: settings, then the bytes of the rings and their buffers. Between two polls of the device, bytes of
/// the rings and buffers change.
pub fn ring(bytes: &[u8], packed: bool) {
    thread_local! {
        static BENCH: RefCell<RingBench> = RefCell::new(RingBench::new());
    }
    let Some((settings, contents)) = bytes.split_first_chunk::<RING_SETTINGS_LEN>() else { return };
    BENCH.with_borrow_mut(|bench| {
        bench.memory.fill(0, MEMORY_LEN as usize, 0);
        bench.memory.write(0, &contents[..contents.len().min(MEMORY_LEN as usize)]);
        assert!(
            bench.start(settings, packed),
            "the port refuses rings that are right: {settings:x?}, packed: {packed}"
        );
        let given = vec![0x5a; 14 + usize::from(settings[2]) * 16];
        for round in 0..ROUNDS {
            exchange(&mut bench.queue, &given);
            flip(&bench.memory, contents, round);
        }
        // Without traffic, the rings can be stopped and report their positions.
        let RingBench { frontend, queue, port, .. } = bench;
        drive(queue, || (0..2).for_each(|index| assert!(frontend.get_vring_base(index).is_ok())));
        assert_eq!(port.channel_counters().bad_messages.get(), 0);
    });
}

/// Fetches and delivers frames, like an adapter.
fn exchange(queue: &mut VhostQueue, given: &[u8]) {
    queue.disarm();
    for _ in 0..FRAMES {
        match queue.tx_next(0) {
            Ok(false) => break,
            Ok(true) => {
                let frame = queue.tx_frame();
                let (meta, frame) = (frame.request(), frame.bytes());
                assert!((1..=offramp_ports::vhost_user::FRAME_LEN_MAX).contains(&frame.len()), "{meta:?}");
            }
            Err(PortError::Refused(_)) => {
                assert!(queue.tx_frame().bytes().is_empty() || queue.tx_frame().request() != TxMeta::default());
            }
            Err(error) => panic!("a guest's mistake ends the port: {error}"),
        }
    }
    for _ in 0..FRAMES {
        match queue.rx_deliver(&RxMeta::default(), given) {
            Ok(()) | Err(PortError::Full | PortError::Refused(_)) => {}
            Err(error) => panic!("a guest's mistake ends the port: {error}"),
        }
    }
    queue.rx_flush(0);
    queue.arm();
}

/// Changes bytes chosen by the input, so that the device finds the rings changed.
fn flip(memory: &GuestMemory, contents: &[u8], round: usize) {
    for pair in contents.chunks_exact(3).skip(round * 8).take(8) {
        let at = u64::from(u16::from_le_bytes([pair[0], pair[1]])) % MEMORY_LEN;
        memory.write_u8(at, pair[2]);
    }
}

/// A port polled by a worker, for messages with any bytes.
struct MessageBench {
    // The port is dropped first, while the worker still polls its queue.
    port: VhostUser,
    _worker: Worker,
}

impl MessageBench {
    fn new() -> Self {
        let config = VhostUserConfig::new(socket("messages"));
        let mut port = VhostUser::open(&config).expect("opening a port");
        let adapter = AdapterConfig::default();
        let (wire, _other_end) = cable(&CableConfig::default());
        let queue = port.queue(0).expect("the first queue");
        let pair = QueuePair::new(&adapter, &PortControl::new(&adapter), 0, queue, wire);
        let worker = Worker::start("messages", vec![pair], None).expect("starting a worker");
        Self { port, _worker: worker }
    }
}

/// Runs messages, each preceded by four bytes: request, flags, number of descriptors, and payload length. Checks that
/// the next frontend is answered after any messages.
pub fn messages(bytes: &[u8]) {
    thread_local! {
        static BENCH: MessageBench = MessageBench::new();
    }
    BENCH.with(|bench| send_messages(bench, bytes));
}

fn send_messages(bench: &MessageBench, bytes: &[u8]) {
    const FILE_LEN: i64 = 64 * 1024;
    let file: OwnedFd = nix::sys::memfd::memfd_create("bytes", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).expect("a file");
    nix::unistd::ftruncate(&file, FILE_LEN).expect("sizing a file");
    let event = event();
    let frontend = Frontend::connect(&bench.port.config().socket);
    let mut rest = bytes;
    while let Some((head, behind)) = rest.split_first_chunk::<4>() {
        let (payload, behind) = behind.split_at(usize::from(head[3]).min(behind.len()));
        rest = behind;
        let one = if head[2] & 0x80 != 0 { event.as_fd() } else { file.as_fd() };
        let fds: Vec<BorrowedFd<'_>> = vec![one; usize::from(head[2] & 0x3f) % 40];
        // Use version 1 and valid flags in half of the cases, because any other value is refused at once.
        let flags = if head[1] & 1 == 1 { 1 | u32::from(head[1] & 8) } else { u32::from(head[1]) };
        let header = Header { request: u32::from(head[0]), flags, payload_len: payload.len() as u32 };
        if !frontend.send_raw(header, payload, &fds) {
            break;
        }
    }
    drop(frontend);
    let next = Frontend::connect(&bench.port.config().socket);
    assert!(next.get_features().is_ok(), "the next frontend is not answered");
    assert!(bench.port.status().ring_entries.iter().all(|entries| *entries == 0), "a ring outlives its frontend");
}

/// A host that sends one frame, and checks the metadata and the sender addresses of each delivered frame.
#[derive(Default)]
struct OneFrame<'a> {
    frame: Option<(TxMeta, &'a mut [u8])>,
    given_frames: u64,
    /// True if the sending host is restricted to its bound addresses.
    is_bound: bool,
}

impl InPlace for OneFrame<'_> {}

impl HostPort for OneFrame<'_> {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        Ok(false)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        let (request, bytes) = self.frame.as_mut().expect("a frame that was fetched");
        Frame::new(bytes, *request)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let header = encode_rx(meta);
        let told = decode_rx(&header).expect("a header of our own");
        assert_eq!(told.segmentation, meta.segmentation);
        match (meta.checksum, meta.segmentation) {
            (ChecksumState::Good, segmentation) => {
                assert_eq!(Frame::received(&mut frame.to_vec()).verify(), ChecksumState::Good);
                assert_eq!(segmentation, None);
            }
            (ChecksumState::Partial(_), Some(_)) => {
                let asked = decode_tx(&header).expect("a header of our own");
                let mut copy = frame.to_vec();
                let plan = Segmenter::new(&Frame::new(&mut copy, asked), &SegmentPolicy::default());
                let plan = plan.expect("a coalesced frame can be segmented");
                assert_eq!(plan.frames_left(), usize::from(meta.segments));
            }
            (_, segmentation) => assert_eq!(segmentation, None),
        }
        assert!(!self.is_bound || is_of_bound_host(frame), "{frame:02x?}");
        self.given_frames += u64::from(meta.segments);
        Ok(())
    }

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }
}

/// The addresses of a bound host: its Ethernet address, 10.0.0.0/8, `fd00::/8`, and its link-local address.
pub const BOUND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const BOUND_LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1];

fn bound() -> PortSecurity {
    let prefixes = [Prefix::new([10, 0, 0, 0].into(), 8), Prefix::new([0xfd00, 0, 0, 0, 0, 0, 0, 0].into(), 8)];
    let ip_addresses = prefixes.into_iter().flatten().collect();
    PortSecurity { mac_addresses: vec![BOUND_MAC], ip_addresses, ..PortSecurity::default() }
}

/// Returns whether all sender addresses in a frame belong to the bound host. The check uses only the fixed positions of
/// the addresses.
fn is_of_bound_host(frame: &[u8]) -> bool {
    let mut at = 12;
    while let Some([0x81 | 0x91, 0] | [0x88, 0xa8]) = frame.get(at..at + 2) {
        at += 4;
    }
    let (kind, packet) = (frame.get(at..at + 2), frame.get(at + 2..).unwrap_or_default());
    let part = |from: usize, to: usize| packet.get(from..to).unwrap_or_default();
    let is_sender = match kind {
        Some([8, 0]) => part(12, 13) == [10] || (part(12, 16) == [0; 4] && matches!(part(9, 10), [2 | 17])),
        Some([0x86, 0xdd]) => part(8, 9) == [0xfd] || [[0; 16], BOUND_LINK_LOCAL].iter().any(|own| part(8, 24) == own),
        Some([8, 6] | [0x80, 0x35]) => part(8, 14) == BOUND_MAC && (part(14, 15) == [10] || part(14, 18) == [0; 4]),
        _ => true,
    };
    frame[6..12] == BOUND_MAC && is_sender
}

/// The sending host. The flag is true after the frame was fetched.
struct Sender<'a>(OneFrame<'a>, bool);

impl InPlace for Sender<'_> {}

impl HostPort for Sender<'_> {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        Ok(!std::mem::replace(&mut self.1, true))
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.0.tx_frame()
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.0.rx_deliver(meta, frame)
    }

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }
}

/// Sends a header and a frame through both adapters. An arriving frame must have true metadata, and a lost frame must
/// be counted. A header bit that has no meaning for a sender selects whether the sender is restricted to its bound
/// addresses. A frame from such a sender must not arrive with other sender addresses. Returns the number of frames that
/// arrived.
pub fn vnet_frame(bytes: &[u8]) -> u64 {
    const POLLS_MAX: usize = 5000;
    let Some((header, frame)) = bytes.split_first_chunk::<HEADER_LEN>() else { return 0 };
    let Ok(meta) = decode_tx(header) else { return 0 };
    let is_bound = header[HEADER_LEN - 2] & 1 != 0;
    let mut frame = frame[..frame.len().min(offramp_ports::vhost_user::FRAME_LEN_MAX)].to_vec();
    let adapter = AdapterConfig::default();
    let (a_wire, b_wire) = cable(&CableConfig::default());
    let security = if is_bound { bound() } else { PortSecurity::default() };
    let (a_control, b_control) = (PortControl::secured(&adapter, security), PortControl::new(&adapter));
    let sender = Sender(OneFrame { frame: Some((meta, &mut frame)), ..OneFrame::default() }, false);
    let receiver = OneFrame { is_bound, ..OneFrame::default() };
    let mut a = QueuePair::new(&adapter, &a_control, 0, sender, a_wire);
    let mut b = QueuePair::new(&adapter, &b_control, 0, receiver, b_wire);
    let mut polls = 0;
    loop {
        let moved = a.poll(polls).expect("a port that stays").moved | b.poll(polls).expect("a port that stays").moved;
        polls += 1;
        if !moved {
            break;
        }
        assert!(polls < POLLS_MAX as u64, "one frame keeps two adapters busy forever");
    }
    let (sent, received) = (&a_control.queues()[0].transmit, &b_control.queues()[0].receive);
    assert_eq!(sent.frames_in.get(), sent.frames_out.get() + sent.lost_total());
    assert_eq!(sent.frames_out.get(), received.frames_out.get() + received.lost_total());
    assert_eq!(b.host().given_frames, received.frames_out.get());
    assert_eq!((a.held(), b.held()), (0, 0));
    b.host().given_frames
}

/// Length in bytes of the hash at the end of a state: the 64-bit FNV-1a hash of all bytes before.
const SUM_LEN: usize = 8;

/// Loads a saved state with changed bytes. Each change takes three input bytes: two for the position, and one for the
/// value. If the first input byte is odd, the hash is corrected. The port must load or refuse the state, and must
/// answer the next frontend.
pub fn state(bytes: &[u8]) {
    thread_local! {
        static BENCH: MessageBench = MessageBench::new();
    }
    let Some((settings, changes)) = bytes.split_first() else { return };
    BENCH.with(|bench| {
        let connect = || {
            let mut frontend = Frontend::connect(&bench.port.config().socket);
            frontend.get_features().expect("an answer");
            frontend.set_protocol_features(protocol::DEVICE_STATE | protocol::REPLY_ACK).expect("an answer");
            frontend
        };
        let mut state = connect().save_state().expect("the state of a device without a driver");
        for change in changes.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (state.len() + 1);
            match state.get_mut(at) {
                Some(byte) => *byte = change[2],
                None => state.push(change[2]),
            }
        }
        if settings & 1 == 1 && state.len() > SUM_LEN {
            let content_len = state.len() - SUM_LEN;
            let (content, place) = state.split_at_mut(content_len);
            let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            place.copy_from_slice(&content.iter().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes());
        }
        let frontend = connect();
        let is_loaded = frontend.load_state(&state).is_ok();
        assert_eq!(frontend.get_features().is_ok(), is_loaded, "a refusal ends the connection, and nothing else does");
        drop(frontend);
        assert!(connect().get_features().is_ok(), "the next frontend is not answered");
    });
}
