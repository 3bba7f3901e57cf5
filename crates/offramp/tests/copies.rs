//! Tests of the number of payload copies and frame parses on each path, with guests at vhost-user ports and a TAP. The
//! table in `docs/design.md` has the same numbers. A release build counts nothing.

#![cfg(debug_assertions)]

use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::HostPort;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::{checksum, count};
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::vhost_user::{VhostPort, VhostQueue, VhostUser, VhostUserConfig};
use offramp_testkit::guest::GuestBuilder;
use offramp_testkit::vnet::{GSO_TCPV4, NEEDS_CSUM};
use offramp_testkit::{Guest, VnetHeader, features};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A TCP super-frame over IPv4: number of segments, payload of a segment in bytes, and length of the headers in bytes.
const SEGMENTS: usize = 45;
const MSS: usize = 1448;
const HEADERS_LEN: usize = 54;
const PAYLOAD_LEN: usize = SEGMENTS * MSS;
/// Offset of the TCP header, and offset of the checksum in the TCP header.
const TCP_START: u16 = 34;
const TCP_CHECKSUM: u16 = 16;
/// Maximum wait in a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// Features for sending and receiving super-frames.
const SUPER_FRAMES: u64 = features::CSUM | features::HOST_TSO4 | features::GUEST_CSUM | features::GUEST_TSO4;

/// Number of wire frames that are parsed per coalesced frame: the first two frames determine the expected headers of
/// the others.
const RUN_PARSES: usize = 2;

/// The cost of a transfer: number of payload copies, and number of parses.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    copies: u64,
    parses: usize,
}

/// Returns the number of bytes copied and of frames parsed by this thread.
fn counted() -> (u64, u64) {
    (count::copied_bytes() + offramp_virtio::vring::copied_bytes(), count::parses())
}

/// Returns the cost of `work` for `bytes` of payload. Headers copied with the payload do not count.
fn cost(bytes: usize, work: impl FnOnce()) -> Cost {
    let before = counted();
    work();
    let after = counted();
    Cost { copies: (after.0 - before.0) / bytes as u64, parses: (after.1 - before.1) as usize }
}

/// Returns a TCP frame with `len` bytes of payload and a partial checksum.
fn tcp(sequence: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_LEN];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((HEADERS_LEN - 14 + len) as u16).to_be_bytes());
    // The IPv4 ID is the segment number.
    frame[18..20].copy_from_slice(&((sequence as usize / MSS) as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let header_sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    frame[34..38].copy_from_slice(&[0, 80, 0, 90]);
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[46..50].copy_from_slice(&[0x50, 0x10, 0x20, 0]);
    frame.extend((0..len).map(|n| (n * 7 + sequence as usize) as u8));
    let pseudo = Frame::received(&mut frame).pseudo_header((20 + len) as u32).fold();
    frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

/// Sends a super-frame with a segmentation request.
fn send_super_frame(guest: &mut Guest) {
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: HEADERS_LEN as u16,
        gso_size: MSS as u16,
        csum_start: TCP_START,
        csum_offset: TCP_CHECKSUM,
        ..VnetHeader::default()
    };
    guest.tx(0).send(&header, &[&tcp(0, PAYLOAD_LEN)]);
}

/// Sends the segments of a super-frame as complete frames, like a guest without offloads.
fn send_segments(guest: &mut Guest) {
    for n in 0..SEGMENTS {
        let mut frame = tcp((n * MSS) as u32, MSS);
        Frame::received(&mut frame).write_checksum();
        guest.tx(0).stage(&VnetHeader::default(), &[&frame]).expect("room in the ring");
    }
    guest.tx(0).publish();
}

/// Connects a guest to a port while `poll` polls the port.
fn connect(builder: &GuestBuilder, port: &VhostUser, mut poll: impl FnMut()) -> Guest {
    let (builder, socket) = (builder.clone(), port.config().socket.clone());
    let connecting = std::thread::spawn(move || builder.connect(socket));
    while !connecting.is_finished() {
        poll();
    }
    let mut guest = connecting.join().expect("a guest that came");
    guest.rx(0).fill(64, 4096);
    guest
}

fn open() -> VhostUser {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("offramp-copies-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    VhostUser::open(&VhostUserConfig::new(std::env::temp_dir().join(name))).unwrap_or_else(|e| panic!("{e}"))
}

fn guest_with(features: u64) -> GuestBuilder {
    Guest::builder().split().mergeable(true).in_order(false).queue_size(256).features(features)
}

/// Polls until `done` returns true, or panics after [`PATIENCE`].
fn poll_until(mut poll: impl FnMut(), mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "frames did not arrive");
        poll();
    }
}

/// A switch with hosts of several kinds, polled by the test's thread.
type HostSwitch = Switch<Box<dyn HostPort>>;

fn add_guest(switch: &mut HostSwitch, builder: &GuestBuilder) -> (VhostUser, Guest) {
    let mut port = open();
    let host = VhostPort::new(vec![port.queue(0).expect("the port's queue")]).expect("one queue");
    switch.control().add(Box::new(host), &PortConfig::default()).expect("room on the switch");
    let guest = connect(builder, &port, || {
        switch.poll(0);
    });
    (port, guest)
}

/// Returns the number of frames received by a guest. A super-frame counts as its number of segments.
fn take_all(guest: &mut Guest) -> usize {
    std::iter::from_fn(|| guest.rx(0).try_recv())
        .map(|received| (received.frame.len() - HEADERS_LEN).div_ceil(MSS))
        .sum()
}

/// Returns the cost of a transfer between two guests on a switch. The receiver negotiates `features`.
fn on_a_switch(features: u64, send: impl FnOnce(&mut Guest)) -> Cost {
    let mut switch = Switch::new(&SwitchConfig::link());
    let (_a_port, mut a) = add_guest(&mut switch, &guest_with(SUPER_FRAMES));
    let (_b_port, mut b) = add_guest(&mut switch, &guest_with(features));
    send(&mut a);
    let mut segments = 0;
    let spent = cost(PAYLOAD_LEN, || {
        poll_until(
            || {
                switch.poll(0);
            },
            || {
                segments += take_all(&mut b);
                segments == SEGMENTS
            },
        );
    });
    // Drop the switch before its ports, because the ports would wait for their queues.
    drop(switch);
    spent
}

#[test]
fn a_super_frame_between_guests_is_copied_once_and_parsed_once() {
    assert_eq!(on_a_switch(SUPER_FRAMES, send_super_frame), Cost { copies: 1, parses: 1 });
}

#[test]
fn a_super_frame_for_a_guest_that_takes_none_is_copied_twice_and_parsed_once() {
    assert_eq!(on_a_switch(features::GUEST_CSUM, send_super_frame), Cost { copies: 2, parses: 1 });
}

#[test]
fn finished_frames_between_guests_are_coalesced_in_the_receivers_buffers() {
    assert_eq!(on_a_switch(SUPER_FRAMES, send_segments), Cost { copies: 2, parses: SEGMENTS });
}

/// A guest's queue pair at an end of a cable.
struct End {
    pair: QueuePair<VhostQueue, CableEnd>,
    control: Arc<PortControl>,
    guest: Guest,
    _port: VhostUser,
}

impl End {
    fn new(wire: CableEnd, builder: &GuestBuilder) -> Self {
        let mut port = open();
        let config = AdapterConfig::default();
        let control = PortControl::new(&config);
        let mut pair = QueuePair::new(&config, &control, 0, port.queue(0).expect("the port's queue"), wire);
        let guest = connect(builder, &port, || {
            pair.poll(0).expect("a guest that is coming");
        });
        Self { pair, control, guest, _port: port }
    }

    fn poll(&mut self) {
        self.pair.poll(0).expect("a guest that is there");
    }
}

/// Returns the cost of sending a super-frame from a guest to a cable, and the cost of delivering it from the cable to
/// the guest `receiver`.
fn over_a_cable(receiver: &GuestBuilder) -> (Cost, Cost) {
    let (near, far) = cable(&CableConfig::default());
    let mut sender = End::new(near, &guest_with(SUPER_FRAMES));
    let mut receiver = End::new(far, receiver);
    send_super_frame(&mut sender.guest);
    let control = Arc::clone(&sender.control);
    let out = || control.queues()[0].transmit.frames_out.get() == SEGMENTS as u64;
    let sent = cost(PAYLOAD_LEN, || poll_until(|| sender.poll(), out));
    let mut segments = 0;
    let End { pair, guest, .. } = &mut receiver;
    let received = cost(PAYLOAD_LEN, || {
        poll_until(
            || {
                pair.poll(0).expect("a guest that is there");
            },
            || {
                segments += take_all(guest);
                segments == SEGMENTS
            },
        );
    });
    (sent, received)
}

#[test]
fn a_wire_takes_one_copy_of_what_a_guest_sends_and_one_of_what_it_receives() {
    for builder in [guest_with(SUPER_FRAMES), guest_with(SUPER_FRAMES).packed()] {
        let (sent, received) = over_a_cable(&builder);
        assert_eq!(sent, Cost { copies: 1, parses: 1 });
        assert_eq!(received, Cost { copies: 1, parses: RUN_PARSES });
    }
}

#[test]
fn a_driver_that_wants_its_buffers_in_order_costs_one_copy_more() {
    let (_, received) = over_a_cable(&guest_with(SUPER_FRAMES).in_order(true));
    assert_eq!(received, Cost { copies: 2, parses: RUN_PARSES });
}

/// Returns the cost of frames from a guest to a TAP on a switch, including the kernel's copy.
fn to_a_tap(features: u64, send: impl FnOnce(&mut Guest)) -> Cost {
    let ns = NetNs::new().unwrap_or_else(|e| panic!("this test needs a network namespace: {e}; run as root"));
    let tap = Tap::open_in(&ns, &TapConfig::new("ofr0")).unwrap_or_else(|e| panic!("{e}"));
    ns.run(|| {
        link::disable_ipv6("ofr0").expect("a TAP without IPv6");
        link::set_up("ofr0").expect("a TAP that is up");
    })
    .expect("a namespace");
    let mut switch: HostSwitch = Switch::new(&SwitchConfig::link());
    let (_port, mut guest) = add_guest(&mut switch, &guest_with(features));
    tap.offer(Offloads::RATIFIED).expect("the offloads of a TAP");
    // With moderation, the frame waits in a queue of the port, which costs one copy more.
    let config = PortConfig { moderation: ModerationConfig::default(), ..PortConfig::default() };
    let host = switch.control().add(Box::new(tap.queue(0).expect("the TAP's queue")), &config);
    let host = host.expect("room on the switch");
    // Fetch the frames that the kernel sends when the TAP comes up.
    for _ in 0..1000 {
        switch.poll(0);
    }
    send(&mut guest);
    let spent = cost(PAYLOAD_LEN, || {
        poll_until(
            || {
                switch.poll(0);
            },
            || host.stats().receive.frames_out.get() >= SEGMENTS as u64,
        );
    });
    drop(switch);
    spent
}

#[test]
fn a_super_frame_of_a_guest_reaches_a_tap_by_the_kernels_copy_alone() {
    assert_eq!(to_a_tap(SUPER_FRAMES, send_super_frame), Cost { copies: 1, parses: 1 });
}

#[test]
fn finished_frames_of_a_guest_reach_a_tap_without_a_scratch_copy() {
    // The three copies are: out of the guest's memory, into an aggregate, and by the kernel out of the aggregate.
    assert_eq!(to_a_tap(0, send_segments), Cost { copies: 3, parses: SEGMENTS });
}
