//! Tests of an existing interface as a port: frames cross a veth pair between two namespaces unchanged.

mod gro_lists;
mod tunnels;
mod untaken;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace;
use caps::{CapSet, Capability};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::stats::Loss;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_offload::vlan::TagChange;
use offramp_ports::packet::{LinkState, Packet, PacketConfig, PacketError, PacketQueue};
use offramp_ports::sys::{NetNs, ethtool, link, rps};
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::worker::{HostIo, Worker};
use sha2::{Digest, Sha256};

/// Time limit in milliseconds, far above the transit time of a frame. A test that reaches this limit has failed.
const PATIENCE_MS: u16 = 10_000;
const PATIENCE: Duration = Duration::from_secs(20);
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 0x22];

/// Two namespaces connected by a veth pair that is up. The interfaces are `near` and `far`.
struct Cable {
    near: NetNs,
    far: NetNs,
}

impl Cable {
    fn new() -> Self {
        let (near, far) = (namespace(), namespace());
        near.run(|| {
            link::create_veth("near", "far").unwrap();
            link::move_to("far", &far).unwrap();
        })
        .unwrap();
        for (ns, name) in [(&near, "near"), (&far, "far")] {
            ns.run(|| {
                link::disable_ipv6(name).unwrap();
                link::set_up(name).unwrap();
            })
            .unwrap();
        }
        let cable = Self { near, far };
        cable.wait_until_frames_cross();
        cable
    }

    /// Waits until frames cross the veth pair. After an interface comes up, the kernel drops frames until it has
    /// checked the carrier.
    fn wait_until_frames_cross(&self) {
        let (mut near, mut far) = self.ports();
        let probe = [&[0xff; 6], &[2, 0, 0, 0, 0, 0x33][..], &[0x88, 0xb5], &[0; 46]].concat();
        let crosses = |from: &mut PacketQueue, to: &mut PacketQueue| {
            let _ = from.rx_deliver(&RxMeta::default(), &probe);
            to.tx_next(0).unwrap()
        };
        eventually("no frame goes there", || crosses(&mut near, &mut far));
        eventually("no frame comes back", || crosses(&mut far, &mut near));
    }

    /// Opens a port on each end.
    fn ports(&self) -> (PacketQueue, PacketQueue) {
        let open = |ns, name: &str| Packet::open_in(ns, &PacketConfig::new(name)).unwrap().queue(0).unwrap();
        (open(&self.near, "near"), open(&self.far, "far"))
    }
}

/// Returns a frame with `tags` and a TCP or UDP packet over IPv4. The packet's checksum is partial.
fn packet(tags: &[u8], is_tcp: bool, port: u16, payload_len: usize) -> (PartialChecksum, Vec<u8>) {
    let header_len = if is_tcp { 20 } else { 8 };
    let mut frame = [&DESTINATION[..], &SOURCE, tags, &[8, 0]].concat();
    let network = frame.len();
    frame.extend([0x45, 0]);
    frame.extend(((20 + header_len + payload_len) as u16).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, if is_tcp { 6 } else { 17 }, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
    let header_sum = checksum::sum(&frame[network..]).checksum();
    frame[network + 10..network + 12].copy_from_slice(&header_sum.to_be_bytes());
    let start = frame.len();
    frame.extend(port.to_be_bytes());
    frame.extend([0x17, 0x70]);
    let offset = if is_tcp {
        frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
        16
    } else {
        frame.extend(((8 + payload_len) as u16).to_be_bytes());
        frame.extend([0, 0]);
        6
    };
    frame.extend((0..payload_len).map(|n| (n * 7 + n / 251) as u8));
    let layout = Frame::received(&mut frame.clone()).layout().copied().unwrap();
    let pseudo = Frame::received(&mut frame.clone()).pseudo_header(layout.transport_len() as u32).fold();
    frame[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
    (PartialChecksum { start: start as u16, offset: offset as u16 }, frame)
}

/// Waits for the next frame from [`SOURCE`].
fn next(queue: &mut PacketQueue) -> (TxMeta, Vec<u8>) {
    loop {
        while queue.tx_next(0).unwrap() {
            let frame = queue.tx_frame();
            let (meta, frame) = (frame.request(), frame.bytes());
            if frame[6..12] == SOURCE {
                return (meta, frame.to_vec());
            }
        }
        let mut fds = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
        assert!(poll(&mut fds, PollTimeout::from(PATIENCE_MS)).unwrap() > 0, "the frame never came");
    }
}

/// Checks that no frame from [`SOURCE`] is queued.
fn assert_quiet(queue: &mut PacketQueue) {
    while queue.tx_next(0).unwrap() {
        assert_ne!(queue.tx_frame().bytes()[6..12], SOURCE);
    }
}

/// Waits until the kernel has reached the state checked by `is_so`.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Delivers a frame with its metadata, and checks that `to` receives frame and metadata unchanged.
fn cross(from: &mut PacketQueue, to: &mut PacketQueue, meta: TxMeta, frame: &[u8]) {
    let checksum = meta.checksum.map_or(ChecksumState::Unknown, ChecksumState::Partial);
    from.rx_deliver(&RxMeta { checksum, segmentation: meta.segmentation, ..RxMeta::default() }, frame).unwrap();
    let (got_meta, got) = next(to);
    assert_eq!((got_meta, got.len()), (meta, frame.len()));
    assert!(got == frame, "the bytes differ");
}

/// The VLAN tags of test frames: no tag, a customer tag, a service tag, and a customer tag inside a service tag.
const TAGS: [&[u8]; 4] = [&[], &[0x81, 0, 0x20, 5], &[0x88, 0xa8, 0, 7], &[0x88, 0xa8, 0, 7, 0x81, 0, 0x60, 9]];

#[test]
fn frames_cross_byte_for_byte_in_both_directions_with_their_tags() {
    let cable = Cable::new();
    let (mut near, mut far) = cable.ports();
    for tags in TAGS {
        for payload_len in [0, 1, 500, 1400] {
            let (partial, mut frame) = packet(tags, false, 5000, payload_len);
            let meta = TxMeta { checksum: Some(partial), segmentation: None };
            cross(&mut near, &mut far, meta, &frame);
            cross(&mut far, &mut near, meta, &frame);
            let len = frame.len();
            checksum::complete(&mut frame, partial, len).unwrap();
            cross(&mut near, &mut far, TxMeta::default(), &frame);
        }
    }
}

#[test]
fn super_frames_cross_whole_in_both_directions_with_their_tags() {
    let cable = Cable::new();
    let (mut near, mut far) = cable.ports();
    for tags in &TAGS[..3] {
        for (is_tcp, kind) in [(true, SegmentationKind::Tcp4), (false, SegmentationKind::Udp)] {
            if kind == SegmentationKind::Udp && !near.accepts().contains(Offloads::RSC_UDP) {
                continue; // The kernel is older than 6.2.
            }
            let (partial, frame) = packet(tags, is_tcp, 5000, 60_000);
            let segmentation = Some(Segmentation::new(kind, 1400));
            let meta = TxMeta { checksum: Some(partial), segmentation };
            cross(&mut near, &mut far, meta, &frame);
            cross(&mut far, &mut near, meta, &frame);
        }
    }
}

#[test]
fn frames_of_any_protocol_and_station_are_taken() {
    let cable = Cable::new();
    let (mut near, mut far) = cable.ports();
    for destination in [[0xff; 6], [1, 0x80, 0xc2, 0, 0, 0], [2, 9, 9, 9, 9, 9]] {
        let frame = [&destination[..], &SOURCE, &[0x88, 0xb5], &[7; 60]].concat();
        cross(&mut near, &mut far, TxMeta::default(), &frame);
    }
    let flags = rps::read_attribute(&cable.near, "near", "flags").unwrap();
    let is_promiscuous = |flags: &str| i64::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap() & 0x100 != 0;
    assert!(is_promiscuous(&flags), "{flags}");
    drop(near);
    let flags = rps::read_attribute(&cable.near, "near", "flags").unwrap();
    assert!(!is_promiscuous(&flags), "what was changed ends with the socket: {flags}");
    let quiet = PacketConfig { promiscuous: false, ..PacketConfig::new("near") };
    let _quiet = Packet::open_in(&cable.near, &quiet).unwrap();
    let flags = rps::read_attribute(&cable.near, "near", "flags").unwrap();
    assert!(!is_promiscuous(&flags), "{flags}");
}

#[test]
fn what_the_host_itself_sends_is_not_taken() {
    let cable = Cable::new();
    let (mut near, mut far) = cable.ports();
    let mut witness = Packet::open_in(&cable.near, &PacketConfig::new("near")).unwrap().queue(0).unwrap();
    let (partial, frame) = packet(&[], false, 5000, 100);
    let meta = TxMeta { checksum: Some(partial), segmentation: None };
    cross(&mut near, &mut far, meta, &frame);
    assert_quiet(&mut near);
    assert_quiet(&mut witness);
    cross(&mut far, &mut witness, meta, &frame);
}

#[test]
fn past_the_queueing_discipline_only_what_the_interface_cuts_is_accepted() {
    let cable = Cable::new();
    let config = PacketConfig { qdisc_bypass: true, ..PacketConfig::new("near") };
    let open = || Packet::open_in(&cable.near, &config).unwrap();
    assert!(open().accepts().contains(Offloads::RSC));
    let off = [("tx-tcp-segmentation", false), ("tx-tcp6-segmentation", false)];
    cable.near.run(|| ethtool::set_features("near", &off).unwrap()).unwrap();
    assert!(!open().accepts().intersects(Offloads::RSC));
    let mut near = open().queue(0).unwrap();
    let (_, mut far) = cable.ports();
    let (partial, frame) = packet(&[], true, 5000, 1000);
    cross(&mut near, &mut far, TxMeta { checksum: Some(partial), segmentation: None }, &frame);
}

#[test]
fn the_kernel_cuts_what_the_interface_does_not() {
    let cable = Cable::new();
    let off = [("tx-tcp-segmentation", false)];
    cable.near.run(|| ethtool::set_features("near", &off).unwrap()).unwrap();
    let (mut near, mut far) = cable.ports();
    let (partial, frame) = packet(&[], true, 5000, 5000);
    let segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, 1000));
    let checksum = ChecksumState::Partial(partial);
    near.rx_deliver(&RxMeta { checksum, segmentation, ..RxMeta::default() }, &frame).unwrap();
    for part in 0..5 {
        let (meta, got) = next(&mut far);
        assert_eq!((meta.segmentation, got.len()), (None, 1054));
        assert!(got[54..] == frame[54 + 1000 * part..][..1000]);
    }
}

#[test]
fn every_frame_is_taken_by_one_queue_and_those_of_a_flow_by_the_same() {
    const FLOWS: u16 = 64;
    const ROUNDS: usize = 3;
    let cable = Cable::new();
    let config = PacketConfig { queues: 4, ..PacketConfig::new("far") };
    let group = Packet::open_in(&cable.far, &config).unwrap();
    let mut queues: Vec<_> = (0..4).map(|n| group.queue(n).unwrap()).collect();
    assert!(group.queue(4).is_none());
    let (mut near, mut witness) = cable.ports();
    for _ in 0..ROUNDS {
        for flow in 0..FLOWS {
            let (partial, frame) = packet(&[], false, 5000 + flow, 10);
            let checksum = ChecksumState::Partial(partial);
            near.rx_deliver(&RxMeta { checksum, ..RxMeta::default() }, &frame).unwrap();
        }
    }
    for _ in 0..ROUNDS * usize::from(FLOWS) {
        next(&mut witness);
    }
    let mut taken = [[0; FLOWS as usize]; 4];
    eventually("frames are missing", || {
        for (queue, taken) in queues.iter_mut().zip(&mut taken) {
            while queue.tx_next(0).unwrap() {
                let frame = queue.tx_frame();
                let frame = frame.bytes();
                if frame[6..12] == SOURCE {
                    taken[usize::from(u16::from_be_bytes([frame[34], frame[35]]) - 5000)] += 1;
                }
            }
        }
        taken.as_flattened().iter().sum::<usize>() >= ROUNDS * usize::from(FLOWS)
    });
    for flow in 0..usize::from(FLOWS) {
        let mut counts = taken.map(|flows| flows[flow]);
        counts.sort_unstable();
        assert_eq!(counts, [0, 0, 0, ROUNDS]);
    }
    assert!(taken.iter().filter(|flows| flows.iter().any(|&n| n > 0)).count() > 1, "all on one queue");
    assert_eq!(group.dropped(), 0);
}

#[test]
fn what_finds_no_room_is_counted() {
    let cable = Cable::new();
    let config = PacketConfig { buffer_len: 4096, ..PacketConfig::new("far") };
    let small = Packet::open_in(&cable.far, &config).unwrap();
    let (mut near, mut witness) = cable.ports();
    let (partial, frame) = packet(&[], false, 5000, 1000);
    for _ in 0..100 {
        cross(&mut near, &mut witness, TxMeta { checksum: Some(partial), segmentation: None }, &frame);
    }
    let mut queue = small.queue(0).unwrap();
    let mut taken = 0;
    eventually("frames are not counted", || {
        while queue.tx_next(0).unwrap() {
            taken += u64::from(queue.tx_frame().bytes()[6..12] == SOURCE);
        }
        taken + small.dropped() >= 100
    });
    assert!(taken > 0 && small.dropped() > 0, "{taken} taken, {} dropped", small.dropped());
}

#[test]
fn a_frame_longer_than_the_port_or_the_interface_takes_is_refused_and_the_next_one_passes() {
    let cable = Cable::new();
    let (mut near, _) = cable.ports();
    let config = PacketConfig { frame_len_max: 500, ..PacketConfig::new("far") };
    let mut far = Packet::open_in(&cable.far, &config).unwrap().queue(0).unwrap();
    let too_long = packet(&[], false, 5000, 2000).1;
    assert_eq!(near.rx_deliver(&RxMeta::default(), &too_long), Err(PortError::Refused(libc::EMSGSIZE)));
    assert_eq!(near.rx_deliver(&RxMeta::default(), &[0; 5]), Err(PortError::Refused(libc::EINVAL)));
    let beyond = ChecksumState::Partial(PartialChecksum { start: 60_000, offset: 6 });
    let refused = near.rx_deliver(&RxMeta { checksum: beyond, ..RxMeta::default() }, &too_long[..200]);
    assert_eq!(refused, Err(PortError::Refused(libc::EINVAL)));
    for payload_len in [459, 458] {
        near.rx_deliver(&RxMeta::default(), &packet(&[], false, 5000, payload_len).1).unwrap();
    }
    let refused = loop {
        match far.tx_next(0) {
            Ok(_) => {
                let mut fds = [PollFd::new(far.as_fd(), PollFlags::POLLIN)];
                assert!(poll(&mut fds, PollTimeout::from(PATIENCE_MS)).unwrap() > 0, "the frame never came");
            }
            Err(error) => break error,
        }
    };
    assert_eq!((refused, far.tx_frame().bytes().len()), (PortError::Lost(Loss::TooLong), 0));
    assert_eq!(next(&mut far).1.len(), 500);
}

#[test]
fn mtu_and_state_of_the_interface_are_told_and_a_port_outlives_an_interface_that_is_down() {
    let cable = Cable::new();
    let packet_port = Packet::open_in(&cable.near, &PacketConfig::new("near")).unwrap();
    let (mut near, mut far) = cable.ports();
    let up = LinkState { mtu: 1500, is_up: true, has_carrier: true };
    assert_eq!(packet_port.link().unwrap(), up);
    cable.near.run(|| link::set_mtu("near", 9000).unwrap()).unwrap();
    assert_eq!(packet_port.link().unwrap(), LinkState { mtu: 9000, ..up });
    cable.far.run(|| link::set_down("far").unwrap()).unwrap();
    let alone = LinkState { mtu: 9000, is_up: true, has_carrier: false };
    eventually("the carrier stays", || packet_port.link().unwrap() == alone);
    cable.near.run(|| link::set_down("near").unwrap()).unwrap();
    assert_eq!(packet_port.link().unwrap(), LinkState { mtu: 9000, is_up: false, has_carrier: false });
    let (partial, frame) = packet(&[], false, 5000, 100);
    assert_eq!(near.rx_deliver(&RxMeta::default(), &frame), Err(PortError::Refused(libc::ENETDOWN)));
    assert_quiet(&mut near);
    assert_quiet(&mut far);
    // Open a port on an interface that is down.
    let mut early = Packet::open_in(&cable.near, &PacketConfig::new("near")).unwrap().queue(0).unwrap();
    assert_eq!(early.tx_next(0), Ok(false));
    cable.near.run(|| link::set_up("near").unwrap()).unwrap();
    cable.far.run(|| link::set_up("far").unwrap()).unwrap();
    cable.wait_until_frames_cross();
    let meta = TxMeta { checksum: Some(partial), segmentation: None };
    cross(&mut near, &mut far, meta, &frame);
    cross(&mut far, &mut early, meta, &frame);
    assert_eq!(next(&mut near), (meta, frame));
}

#[test]
fn a_deleted_or_moved_interface_closes_its_ports() {
    for is_moved in [false, true] {
        let cable = Cable::new();
        let packet_port = Packet::open_in(&cable.near, &PacketConfig::new("near")).unwrap();
        let (mut near, mut silent) = (cable.ports().0, cable.ports().0);
        let frame = packet(&[], false, 5000, 100).1;
        near.rx_deliver(&RxMeta::default(), &frame).unwrap();
        let go = || if is_moved { link::move_to("near", &cable.far) } else { link::delete("near") };
        cable.near.run(|| go().unwrap()).unwrap();
        for _ in 0..2 {
            assert_eq!(near.tx_next(0), Err(PortError::Closed(libc::ENODEV)));
            assert!(matches!(near.rx_deliver(&RxMeta::default(), &frame), Err(PortError::Closed(_))));
        }
        assert!(matches!(silent.rx_deliver(&RxMeta::default(), &frame), Err(PortError::Closed(_))));
        assert_eq!(silent.tx_next(0), Err(PortError::Closed(libc::ENODEV)));
        assert!(matches!(packet_port.link(), Err(PacketError::NoInterface(_))));
    }
}

#[test]
fn what_cannot_be_opened_is_refused_in_one_clear_line() {
    let cable = Cable::new();
    let refusal = |config: &PacketConfig| Packet::open_in(&cable.near, config).map(|_| ()).unwrap_err().to_string();
    let several = |queues| PacketConfig { queues, ..PacketConfig::new("near") };
    cable.near.run(|| link::set_down("near").unwrap()).unwrap();
    let lines = [
        (refusal(&PacketConfig::new("eth9")), "interface \"eth9\": not found"),
        (refusal(&PacketConfig::new("lo")), "interface \"lo\": not an Ethernet interface"),
        (refusal(&PacketConfig::new("a/b")), "interface \"a/b\": not an interface name"),
        (refusal(&several(0)), "interface \"near\": 0 queues; use 1 to 256"),
        (refusal(&several(257)), "interface \"near\": 257 queues; use 1 to 256"),
        (refusal(&several(2)), "interface \"near\": down; bring the interface up"),
    ];
    for (line, start) in lines {
        assert!(line.starts_with(start) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn a_user_without_the_capability_is_told_which_one_is_missing() {
    let cable = Cable::new();
    let refused = cable.near.run(|| {
        // Drop the capability only for this thread, which ends with this closure.
        caps::drop(None, CapSet::Effective, Capability::CAP_NET_RAW).unwrap();
        Packet::open(&PacketConfig::new("near")).map(|_| ()).unwrap_err().to_string()
    });
    let expected = "interface \"near\": permission denied opening a packet socket; run as root or grant CAP_NET_RAW";
    assert_eq!(refused.unwrap(), expected);
}

/// A TAP port or a packet-socket port.
#[derive(Debug)]
enum Either {
    Tap(Box<TapQueue>),
    Packet(Box<PacketQueue>),
}

impl Either {
    fn port(&mut self) -> &mut dyn HostPort {
        match self {
            Self::Tap(port) => port.as_mut(),
            Self::Packet(port) => port.as_mut(),
        }
    }

    fn port_ref(&self) -> &dyn HostPort {
        match self {
            Self::Tap(port) => port.as_ref(),
            Self::Packet(port) => port.as_ref(),
        }
    }
}

impl InPlace for Either {}

impl HostPort for Either {
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.port().tx_next(now_ns)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        match self {
            Self::Tap(port) => port.tx_frame(),
            Self::Packet(port) => port.tx_frame(),
        }
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.port().tx_frame_with_tag(change)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.port().rx_deliver(meta, frame)
    }

    fn accepts(&self) -> Offloads {
        self.port_ref().accepts()
    }

    fn honours_data_valid(&self) -> bool {
        self.port_ref().honours_data_valid()
    }
}

impl HostIo for Either {
    fn arm(&mut self) {}

    fn disarm(&mut self) {}

    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(std::os::fd::BorrowedFd<'a>)) {
        match self {
            Self::Tap(port) => port.watch(is_held, watch),
            Self::Packet(port) => port.watch(is_held, watch),
        }
    }
}

const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Sends `data` over TCP and returns the received bytes.
fn transfer(from: &NetNs, to: &NetNs, address: Ipv4Addr, data: &[u8]) -> Vec<u8> {
    let listener = to.run(|| TcpListener::bind((address, 7000)).unwrap()).unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        let mut stream = from.run(|| TcpStream::connect((address, 7000)).unwrap()).unwrap();
        stream.write_all(data).unwrap();
        drop(stream);
        receiver.join().unwrap()
    })
}

/// A TAP with address [`HERE`] and an interface, connected by a switch. The opposite interface of the veth pair has
/// address [`THERE`].
struct Wired {
    host: NetNs,
    cable: Cable,
    tap_port: Arc<SwitchPort>,
    wire_port: Arc<SwitchPort>,
    _tap: Tap,
    _worker: Worker,
}

impl Wired {
    fn new() -> Self {
        let (host, cable) = (namespace(), Cable::new());
        let tap = Tap::open_in(&host, &TapConfig::new("ofr0")).unwrap();
        tap.offer(Offloads::TX | Offloads::RX).unwrap();
        for (ns, name, address) in [(&host, "ofr0", HERE), (&cable.far, "far", THERE)] {
            ns.run(|| {
                link::disable_ipv6(name).unwrap();
                link::add_address(name, IpAddr::V4(address), 24).unwrap();
                link::set_up(name).unwrap();
            })
            .unwrap();
        }
        let packet_port = Packet::open_in(&cable.near, &PacketConfig::new("near")).unwrap();
        let switch = Switch::new(&SwitchConfig::link());
        let control = Arc::clone(switch.control());
        let add = |port| control.add(port, &PortConfig::default()).unwrap();
        let tap_port = add(Either::Tap(Box::new(tap.queue(0).unwrap())));
        let wire_port = add(Either::Packet(Box::new(packet_port.queue(0).unwrap())));
        let worker = Worker::start("ofr-switch", vec![switch], None).unwrap();
        Self { host, cable, tap_port, wire_port, _tap: tap, _worker: worker }
    }

    /// Returns the number of wire frames for the host, and the number of frames and super-frames delivered to the host.
    fn to_host(&self) -> (u64, u64) {
        let receive = &self.tap_port.stats().receive;
        (receive.frames_out.get(), receive.host_frames.get())
    }
}

#[test]
fn a_tap_reaches_a_host_behind_an_interface_until_that_is_deleted() {
    let wired = Wired::new();
    let Wired { host, cable, tap_port, wire_port, .. } = &wired;
    let data: Vec<u8> = (0..8_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (from, to, address) in [(host, &cable.far, THERE), (&cable.far, host, HERE)] {
        let got = transfer(from, to, address, &data);
        assert_eq!(Sha256::digest(&got), Sha256::digest(&data));
    }
    for port in [tap_port, wire_port] {
        let receive = &port.stats().receive;
        let (frames, given) = (receive.frames_out.get(), receive.host_frames.get());
        assert!(frames > 5000 && given * 5 < frames, "{frames} frames were given in {given}");
    }
    cable.near.run(|| link::delete("near").unwrap()).unwrap();
    eventually("the port never closed", || wire_port.closed().is_some());
    assert_eq!(tap_port.closed(), None);
}
