//! Tests that each flow arrives complete and in order while random settings change ten thousand times a second.
//!
//! The default is a short run. `OFFRAMP_ORDER_FRAMES` (frames on the wire) and `OFFRAMP_ORDER_SECONDS` are the minimum
//! frames and the minimum time of a longer run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace;
use crate::vhost_common::packet::{ACK, Checksum, DF, Packet};
use crate::vhost_common::{Case, PATIENCE, rng};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{
    AreaConfig, Coalescing, DimProfiles, E1000Mode, InterruptCost, ModerationConfig, Policy,
};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::HostPort;
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_ports::packet::{Packet as PacketPort, PacketConfig, PacketQueue};
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::worker::Worker;
use offramp_testkit::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
use offramp_testkit::{Guest, VnetHeader, features};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of flows in each direction: a quarter each of TCP and UDP over IPv4 and IPv6.
const FLOWS: usize = 256;
const MTU: usize = 1500;
/// Number of frames on the wire in a short run.
const FRAMES_DEFAULT: u64 = 200_000;
/// Time between two changes of the settings, for 10,000 changes a second.
const CHANGE_EVERY: Duration = Duration::from_micros(100);
/// Limits on the data in flight in one direction. The limits prevent overflow of the kernel's queues and of a guest's
/// ring, even with the small socket buffer of an unprivileged process, and even if super-frames arrive as single
/// frames.
const UNDER_WAY_BYTES_MAX: u64 = 192 * 1024;
const UNDER_WAY_FRAMES_MAX: u64 = 192;
/// Number of buffers in a guest's receive ring: one for each frame in flight, and further buffers for a coalesced
/// frame.
const RING_BUFFERS: u16 = 512;
/// Number of segments in the longest super-frame.
const SEGMENTS_MAX: usize = 44;
/// Length of the number at the start of each datagram, in bytes.
const NUMBER_LEN: usize = 8;
/// Negotiated features of a guest for transmit and for receive.
const SENDS: u64 = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_USO;
const RECEIVES: u64 =
    features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_USO4 | features::GUEST_USO6;
/// TCP or UDP source port of the first flow, and destination port of all flows.
const PORT_FIRST: u16 = 20_000;
/// Period of a stream's payload, in bytes. The period is prime, so that a shift by whole segments is detected.
const PATTERN_LEN: usize = 65_521;
/// Maximum payload of a super-frame, in bytes.
const PAYLOAD_MAX: usize = SEGMENTS_MAX * MTU;

/// One of the two hosts between which a test runs traffic.
trait End: Send {
    /// Sends a frame. Returns whether the host accepted the frame.
    fn send(&mut self, meta: &TxMeta, segments: usize, frame: &[u8]) -> bool;

    /// Calls `each` for each received frame, with the segment size if the frame is coalesced.
    fn receive(&mut self, each: &mut dyn FnMut(Option<usize>, &[u8]));
}

/// A packet socket on the host's side of a TAP.
impl End for PacketQueue {
    fn send(&mut self, meta: &TxMeta, segments: usize, frame: &[u8]) -> bool {
        let checksum = meta.checksum.map_or(ChecksumState::Unknown, ChecksumState::Partial);
        let meta = RxMeta { checksum, segmentation: meta.segmentation, segments: segments as u16, ..RxMeta::default() };
        self.rx_deliver(&meta, frame).is_ok()
    }

    fn receive(&mut self, each: &mut dyn FnMut(Option<usize>, &[u8])) {
        while self.tx_next(0).expect("the interface is there") {
            let frame = self.tx_frame();
            let (meta, frame) = (frame.request(), frame.bytes());
            each(meta.segmentation.map(|segmentation| usize::from(segmentation.size)), frame);
        }
    }
}

impl End for Guest {
    fn send(&mut self, meta: &TxMeta, _segments: usize, frame: &[u8]) -> bool {
        let mut header = VnetHeader::default();
        if let Some(PartialChecksum { start, offset }) = meta.checksum {
            header = VnetHeader { flags: NEEDS_CSUM, csum_start: start, csum_offset: offset, ..header };
        }
        if let Some(Segmentation { kind, size, .. }) = meta.segmentation {
            let gso_type = match kind {
                SegmentationKind::Tcp4 => GSO_TCPV4,
                SegmentationKind::Tcp6 => GSO_TCPV6,
                SegmentationKind::Udp => GSO_UDP_L4,
                SegmentationKind::UdpFragments => unreachable!("no flow of this test asks for it"),
            };
            let hdr_len = header.csum_start + if kind == SegmentationKind::Udp { 8 } else { 20 };
            header = VnetHeader { gso_type, gso_size: size, hdr_len, ..header };
        }
        let is_staged = self.tx(0).stage(&header, &[frame]).is_some();
        self.tx(0).publish();
        is_staged
    }

    fn receive(&mut self, each: &mut dyn FnMut(Option<usize>, &[u8])) {
        while let Some(received) = self.rx(0).try_recv() {
            let header = received.vnet();
            let is_coalesced = header.gso_type != GSO_NONE;
            each(is_coalesced.then_some(usize::from(header.gso_size)), &received.frame);
        }
    }
}

/// The payload of a stream, readable from any offset.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        let mut bytes = vec![0; PATTERN_LEN + PAYLOAD_MAX];
        ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut bytes[..PATTERN_LEN]);
        bytes.copy_within(..PAYLOAD_MAX, PATTERN_LEN);
        Self(bytes)
    }

    fn of(&self, flow: usize, at: u64, len: usize) -> &[u8] {
        let start = (at as usize + flow * 251) % PATTERN_LEN;
        &self.0[start..start + len]
    }
}

fn is_udp(flow: usize) -> bool {
    flow & 1 == 1
}

fn is_ipv6(flow: usize) -> bool {
    flow & 2 == 2
}

fn header_len(flow: usize) -> usize {
    let network = if is_ipv6(flow) { 40 } else { 20 };
    14 + network + if is_udp(flow) { 8 } else { 20 }
}

/// The traffic sent in one direction, and its progress: in bytes for a TCP flow, in datagrams for a UDP flow.
struct Sender {
    rng: ChaCha8Rng,
    at: Vec<u64>,
    ids: Vec<u16>,
    /// The flow of the next frame, and the number of its frames before another flow is chosen.
    turn: (usize, usize),
}

/// A frame ready to send.
struct Outgoing {
    meta: TxMeta,
    segments: usize,
    frame: Vec<u8>,
}

impl Sender {
    fn new(rng: ChaCha8Rng) -> Self {
        Self { rng, at: vec![0; FLOWS], ids: vec![0; FLOWS], turn: (0, 0) }
    }

    fn next(&mut self, pattern: &Pattern) -> Outgoing {
        if self.turn.1 == 0 {
            self.turn = (self.rng.random_range(0..FLOWS), self.rng.random_range(1..=4));
        }
        self.turn.1 -= 1;
        let flow = self.turn.0;
        let segments = if self.rng.random_bool(0.5) { 1 } else { self.rng.random_range(2..=SEGMENTS_MAX) };
        let size_max = MTU + 14 - header_len(flow);
        let size = if self.rng.random_bool(0.7) { size_max } else { self.rng.random_range(64..=size_max) };
        let last = self.rng.random_range(NUMBER_LEN + 1..=size);
        let payload = self.payload(pattern, flow, segments, size, last);
        self.outgoing(flow, segments, size, payload)
    }

    fn payload(&mut self, pattern: &Pattern, flow: usize, segments: usize, size: usize, last: usize) -> Vec<u8> {
        let len = (segments - 1) * size + last;
        let at = self.at[flow];
        if !is_udp(flow) {
            self.at[flow] += len as u64;
            return pattern.of(flow, at, len).to_vec();
        }
        self.at[flow] += segments as u64;
        let datagram = |n: usize| {
            let len = if n + 1 == segments { last } else { size };
            let number = at + n as u64;
            let bytes =
                number.to_be_bytes().into_iter().chain(pattern.of(flow, number, len - NUMBER_LEN).iter().copied());
            bytes.collect::<Vec<u8>>()
        };
        (0..segments).flat_map(datagram).collect()
    }

    fn outgoing(&mut self, flow: usize, segments: usize, size: usize, payload: Vec<u8>) -> Outgoing {
        let is_cut = segments > 1;
        // In some cases the host computes the checksum itself, but not for a frame that requests segmentation.
        let is_summed = !is_cut && self.rng.random_bool(0.1);
        let packet = Packet {
            is_udp: is_udp(flow),
            is_ipv6: is_ipv6(flow),
            id: self.ids[flow],
            fragment: DF,
            ports: (PORT_FIRST + flow as u16, PORT_FIRST),
            seq: (self.at[flow] - if is_udp(flow) { 0 } else { payload.len() as u64 }) as u32,
            flags: ACK,
            payload,
            checksum: if is_summed { Checksum::Full } else { Checksum::Partial },
            ..Packet::tcp(0)
        };
        self.ids[flow] = self.ids[flow].wrapping_add(segments as u16);
        let kind = match (packet.is_udp, packet.is_ipv6) {
            (true, _) => SegmentationKind::Udp,
            (false, false) => SegmentationKind::Tcp4,
            (false, true) => SegmentationKind::Tcp6,
        };
        let start = packet.transport_start() as u16;
        let offset = packet.checksum_offset() as u16;
        let meta = TxMeta {
            checksum: (!is_summed).then_some(PartialChecksum { start, offset }),
            segmentation: is_cut.then_some(Segmentation::new(kind, size as u16)),
        };
        Outgoing { meta, segments, frame: packet.build() }
    }
}

/// The progress of each received flow of one direction, in the units of [`Sender`].
struct Receiver {
    at: Vec<u64>,
}

impl Receiver {
    /// Compares a frame with the expected frame of its flow. Returns the length of the frame's payload, in bytes.
    fn check(&mut self, pattern: &Pattern, size: Option<usize>, frame: &[u8]) -> u64 {
        let Some(flow) = flow_of(frame) else { return 0 };
        let payload = &frame[header_len(flow)..];
        let at = self.at[flow];
        if is_udp(flow) {
            for datagram in payload.chunks(size.unwrap_or(payload.len())) {
                self.check_datagram(pattern, flow, datagram);
            }
        } else {
            let seq = u32::from_be_bytes(frame[header_len(flow) - 16..][..4].try_into().unwrap());
            assert_eq!(seq, at as u32, "flow {flow}: {} bytes are out of order or lost", payload.len());
            assert!(payload == pattern.of(flow, at, payload.len()), "flow {flow}: other bytes at {at}");
            self.at[flow] += payload.len() as u64;
        }
        payload.len() as u64
    }

    fn check_datagram(&mut self, pattern: &Pattern, flow: usize, datagram: &[u8]) {
        let (number, rest) = datagram.split_at(NUMBER_LEN);
        let number = u64::from_be_bytes(number.try_into().unwrap());
        assert_eq!(number, self.at[flow], "flow {flow}: a datagram is out of order or lost");
        assert!(rest == pattern.of(flow, number, rest.len()), "flow {flow}: other bytes in datagram {number}");
        self.at[flow] += 1;
    }
}

/// Returns the flow of a frame, or `None` for a frame from another sender.
fn flow_of(frame: &[u8]) -> Option<usize> {
    let (protocol, transport) = match frame.get(12..14)? {
        [0x08, 0x00] => (frame.get(23)?, 34),
        [0x86, 0xdd] => (frame.get(20)?, 54),
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let flow = usize::from(port(transport)?.checked_sub(PORT_FIRST)?);
    let is_ours = matches!(protocol, 6 | 17) && port(transport + 2)? == PORT_FIRST && flow < FLOWS;
    is_ours.then_some(flow)
}

/// The progress of one direction: the payload bytes sent and received.
#[derive(Default)]
struct Way {
    sent: AtomicU64,
    received: AtomicU64,
    frames_since_empty: AtomicU64,
    /// True if the sender has finished.
    is_closed: AtomicBool,
}

impl Way {
    /// Returns whether the sender has finished and all sent payload has arrived.
    fn is_complete(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) && self.under_way() == 0
    }

    fn under_way(&self) -> u64 {
        self.sent.load(Ordering::Acquire) - self.received.load(Ordering::Acquire)
    }

    /// Returns whether another frame can be sent within the limits.
    fn is_open(&self) -> bool {
        let bytes = self.under_way();
        if bytes == 0 {
            self.frames_since_empty.store(0, Ordering::Relaxed);
        }
        bytes < UNDER_WAY_BYTES_MAX && self.frames_since_empty.load(Ordering::Relaxed) < UNDER_WAY_FRAMES_MAX
    }
}

/// Sends and receives at one end until `is_over`, and then receives until all frames have arrived.
fn play(end: &mut dyn End, out: &Way, into: &Way, rng: ChaCha8Rng, is_over: &AtomicBool) {
    let pattern = Pattern::new();
    let (mut sender, mut receiver) = (Sender::new(rng), Receiver { at: vec![0; FLOWS] });
    let mut waiting: Option<Outgoing> = None;
    let mut stalled = Instant::now();
    loop {
        let mut has_moved = false;
        let is_closing = is_over.load(Ordering::Relaxed);
        end.receive(&mut |size, frame| {
            let bytes = receiver.check(&pattern, size, frame);
            into.received.fetch_add(bytes, Ordering::Release);
            has_moved |= bytes > 0;
        });
        while waiting.is_some() || !is_closing && out.is_open() {
            let next = waiting.take().unwrap_or_else(|| sender.next(&pattern));
            let payload_len = next.frame.len() - header_len(flow_of(&next.frame).unwrap());
            // Count the frame first, because it may arrive before the call returns.
            out.sent.fetch_add(payload_len as u64, Ordering::Release);
            if !end.send(&next.meta, next.segments, &next.frame) {
                out.sent.fetch_sub(payload_len as u64, Ordering::Release);
                waiting = Some(next);
                break;
            }
            out.frames_since_empty.fetch_add(next.segments as u64, Ordering::Relaxed);
            has_moved = true;
        }
        if is_closing && waiting.is_none() {
            out.is_closed.store(true, Ordering::Release);
        }
        if has_moved {
            stalled = Instant::now();
        } else if out.is_complete() && into.is_complete() {
            return;
        } else {
            let left = (out.under_way(), into.under_way());
            assert!(
                stalled.elapsed() < PATIENCE,
                "nothing moves, with {left:?} bytes under way: lost, or held for ever"
            );
            thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Returns a random policy with random settings. The settings delay frames less than this test's time limit.
fn random_moderation(rng: &mut ChaCha8Rng) -> ModerationConfig {
    let area = AreaConfig {
        cost: match rng.random_range(0..3) {
            0 => InterruptCost::Given { ns: rng.random_range(0..200_000) },
            1 => InterruptCost::Measured { factor_percent: rng.random_range(0..1000) },
            _ => InterruptCost::Adaptive { interrupts_per_second: rng.random_range(2_000..1_000_000) },
        },
        deadline_ns: rng.random_range(0..500_000),
    };
    let policy = match rng.random_range(0..7) {
        0 => Policy::Off,
        1 => Policy::FixedGap { max_interrupts_per_second: rng.random_range(2_000..1_000_000) },
        2 => Policy::Coalescing(Coalescing {
            max_usecs: rng.random_range(0..500),
            max_packets: rng.random_range(0..100),
        }),
        3 => Policy::NetDim(DimProfiles::default()),
        4 => Policy::E1000(E1000Mode::default()),
        5 => Policy::Area(area),
        _ => Policy::QuietOrArea(area),
    };
    ModerationConfig { policy, ring_guard_frames: rng.random_range(0..64) }
}

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

/// Runs traffic in both directions between two ends, while `change` changes a random setting of a random port.
fn run(ends: [&mut dyn End; 2], controls: &[Arc<PortControl>], mut change: impl FnMut(&mut ChaCha8Rng, usize)) {
    let frames_min = number_from_environment("OFFRAMP_ORDER_FRAMES", FRAMES_DEFAULT);
    let time_min = Duration::from_secs(number_from_environment("OFFRAMP_ORDER_SECONDS", 0));
    let mut rng = rng();
    let ways = [Way::default(), Way::default()];
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let mut changes = 0;
    thread::scope(|scope| {
        for (side, end) in ends.into_iter().enumerate() {
            let (out, into, is_over) = (&ways[side], &ways[1 - side], &is_over);
            let rng = ChaCha8Rng::from_rng(&mut rng);
            scope.spawn(move || {
                let _over = OnDrop(is_over);
                play(end, out, into, rng, is_over);
            });
        }
        while !is_over.load(Ordering::Relaxed) && (frames(controls) < frames_min || begun.elapsed() < time_min) {
            // After a late change, the next changes follow immediately, so the average rate is correct.
            while begun + CHANGE_EVERY * changes < Instant::now() {
                let side = rng.random_range(0..2);
                change(&mut rng, side);
                changes += 1;
            }
            thread::sleep(CHANGE_EVERY);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for queue in controls.iter().flat_map(|control| control.queues()) {
        assert_eq!((queue.transmit.lost_total(), queue.receive.lost_total()), (0, 0));
        assert_eq!((queue.transmit.bad_checksum.get(), queue.receive.bad_checksum.get()), (0, 0));
        assert_eq!(queue.receive.frames_in.get(), queue.receive.frames_out.get());
    }
    let rate = f64::from(changes) / begun.elapsed().as_secs_f64();
    let bytes: u64 = ways.iter().map(|way| way.received.load(Ordering::Relaxed)).sum();
    println!(
        "{} frames of the wire, {bytes} bytes of {} flows in order and whole; {changes} changes of settings, {rate:.0} a second",
        frames(controls),
        2 * FLOWS
    );
    assert!(changes > 0 && bytes > 0);
}

/// Ends the run when the thread exits, even by a panic.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn frames(controls: &[Arc<PortControl>]) -> u64 {
    controls.iter().flat_map(|control| control.queues()).map(|queue| queue.receive.frames_in.get()).sum()
}

fn random_offloads(rng: &mut ChaCha8Rng) -> Offloads {
    (Offloads::from_bits_truncate(rng.random()) - Offloads::UFO).with_prerequisites()
}

/// Creates a TAP in a new namespace, brings the interface up, and opens a packet socket of the host on the interface.
fn tap(side: u8) -> (NetNs, Tap, PacketQueue) {
    let ns = namespace();
    let config = TapConfig { mac: Some([2, 0, 0, 0, 0xff, side]), tx_queue_len: Some(8192), ..TapConfig::new("ofr0") };
    let tap = Tap::open_in(&ns, &config).unwrap_or_else(|e| panic!("{e}"));
    tap.offer(Offloads::all()).unwrap();
    ns.run(|| {
        link::disable_ipv6(tap.name()).unwrap();
        link::set_up(tap.name()).unwrap();
    })
    .unwrap();
    let socket = PacketPort::open_in(&ns, &PacketConfig::new("ofr0")).unwrap_or_else(|e| panic!("{e}"));
    let queue = socket.queue(0).unwrap();
    (ns, tap, queue)
}

#[test]
fn every_flow_between_two_taps_arrives_in_order_while_all_settings_change() {
    let config = AdapterConfig { mtu: MTU, ..AdapterConfig::default() };
    let controls = [PortControl::new(&config), PortControl::new(&config)];
    let (_ns_a, tap_a, mut end_a) = tap(1);
    let (_ns_b, tap_b, mut end_b) = tap(2);
    let (wire_a, wire_b) = cable(&CableConfig::default());
    let start = |side: usize, tap: &Tap, wire| {
        let pair = QueuePair::new(&config, &controls[side], 0, tap.queue(0).unwrap(), wire);
        Worker::start("order-test", vec![pair], None).expect("starting a worker")
    };
    let _workers = [start(0, &tap_a, wire_a), start(1, &tap_b, wire_b)];
    let taps = [tap_a, tap_b];
    run([&mut end_a, &mut end_b], &controls, |rng, side| {
        let control = &controls[side];
        if rng.random_bool(0.5) {
            return control.set_moderation(random_moderation(rng));
        }
        // Withdraw an offload from the host before disabling it in the adapter. Enable an offload in the adapter before
        // offering it to the host.
        let offloads = random_offloads(rng);
        control.set_offloads(control.offloads() | offloads);
        taps[side].offer(offloads).unwrap();
        control.set_offloads(offloads);
    });
}

#[test]
fn every_flow_between_two_guests_arrives_in_order_while_all_settings_change() {
    for case in Case::layouts() {
        let config = crate::vhost_common::RigConfig { apart: true, ..crate::vhost_common::RigConfig::mtu(MTU) };
        let rig = crate::vhost_common::Rig::with(&config);
        let [mut a, mut b] = rig.guests(&case.guest().features(SENDS | RECEIVES).queue_size(RING_BUFFERS));
        for guest in [&mut a, &mut b] {
            guest.rx(0).fill(usize::from(RING_BUFFERS), 2048);
        }
        println!("{case:?}");
        run([&mut a, &mut b], &rig.controls, |rng, side| {
            if rng.random_bool(0.5) {
                rig.controls[side].set_moderation(random_moderation(rng));
            } else {
                rig.controls[side].set_offloads(random_offloads(rng));
            }
        });
        assert!(rig.is_running());
    }
}
