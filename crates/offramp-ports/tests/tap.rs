//! Tests of a TAP as a host port, with the kernel as the host.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{HOST, HOST_MAC, PEER, PEER_MAC, host_tap, is_ipv4, namespace, tap_with_address, wait_for};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use offramp_adapter::port::{HostPort, PortError};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, SegmentationKind, TxMeta};
use offramp_ports::sys::ethtool::{self, Features};
use offramp_ports::sys::link::{self, CarrierWatch};
use offramp_ports::tap::{MTU_MAX, Tap, TapConfig, TapError, TapQueue};
use sha2::{Digest, Sha256};

mod existing;

const TCP: u8 = 6;
const UDP: u8 = 17;

#[test]
fn a_datagram_of_the_host_is_taken_with_its_checksum_to_complete() {
    let ns = namespace();
    let tap = host_tap(&ns);
    assert_eq!(tap.offer(Offloads::TX_CHECKSUM).unwrap(), Offloads::TX_CHECKSUM);
    let mut queue = tap.queue(0).unwrap();
    let socket = ns.run(|| UdpSocket::bind((HOST, 5000)).unwrap()).unwrap();
    socket.send_to(b"an offload is worth something", (PEER, 6000)).unwrap();

    let (meta, frame) = wait_for(&mut queue, |_, frame| is_ipv4(frame, UDP));
    assert_eq!(meta, TxMeta { checksum: Some(PartialChecksum { start: 34, offset: 6 }), segmentation: None });
    assert_eq!(frame[..12], [PEER_MAC, HOST_MAC].concat());
    assert_eq!(frame[34..38], [0x13, 0x88, 0x17, 0x70]);
    assert_eq!(&frame[42..], b"an offload is worth something");
}

#[test]
fn without_an_offer_the_host_completes_its_checksums_itself() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let mut queue = tap.queue(0).unwrap();
    let socket = ns.run(|| UdpSocket::bind((HOST, 5000)).unwrap()).unwrap();
    socket.send_to(b"packet", (PEER, 6000)).unwrap();
    let (meta, frame) = wait_for(&mut queue, |_, frame| is_ipv4(frame, UDP));
    assert_eq!(meta, TxMeta::default());
    assert_ne!(frame[40..42], [0, 0]);
}

#[test]
fn the_frame_lies_on_a_cache_line() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let mut queue = tap.queue(0).unwrap();
    let socket = ns.run(|| UdpSocket::bind((HOST, 5000)).unwrap()).unwrap();
    socket.send_to(b"x", (PEER, 6000)).unwrap();
    wait_for(&mut queue, |_, frame| is_ipv4(frame, UDP));
    assert_eq!(queue.tx_frame().bytes().as_ptr() as usize % 64, 0);
}

/// A relay's record of its frames.
#[derive(Default)]
struct Seen {
    longest: usize,
    kinds: Vec<SegmentationKind>,
}

/// Forwards frames unchanged from one host to another, until `stop`.
fn relay(from: &mut TapQueue, to: &mut TapQueue, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        while from.tx_next(0).unwrap() {
            let frame = from.tx_frame();
            let (tx, frame) = (frame.request(), frame.bytes());
            seen.longest = seen.longest.max(frame.len());
            seen.kinds.extend(tx.segmentation.map(|s| s.kind));
            let checksum = tx.checksum.map_or(ChecksumState::Unknown, ChecksumState::Partial);
            // If the queue is full, the frame is dropped, as on a wire.
            let _ = to.rx_deliver(&RxMeta { checksum, segmentation: tx.segmentation, ..RxMeta::default() }, frame);
        }
        let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(10u16)).unwrap();
    }
    seen
}

/// Sends `data` over TCP from one host to another, with `offer` for both hosts. Returns the received data, and the
/// relay's record of the frames with this data.
fn transfer(data: &[u8], offer: Offloads) -> (Vec<u8>, Seen) {
    let (near, far) = (namespace(), namespace());
    let near_tap = host_tap(&near);
    let far_tap = tap_with_address(&far, &TapConfig::new("ofr0"), (PEER, PEER_MAC), (HOST, HOST_MAC));
    assert_eq!(near_tap.offer(offer).unwrap(), offer);
    assert_eq!(far_tap.offer(offer).unwrap(), offer);
    let listener = far.run(|| TcpListener::bind((PEER, 7000)).unwrap()).unwrap();
    let stop = AtomicBool::new(false);
    let port = |tap: &Tap| tap.queue(0).unwrap();
    let (mut a, mut b) = (port(&near_tap), port(&far_tap));
    let (mut c, mut d) = (port(&near_tap), port(&far_tap));
    thread::scope(|scope| {
        let there = scope.spawn(|| relay(&mut a, &mut b, &stop));
        scope.spawn(|| relay(&mut d, &mut c, &stop));
        let receiver = scope.spawn(move || {
            let mut got = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
            got
        });
        let mut stream = near.run(|| TcpStream::connect((PEER, 7000)).unwrap()).unwrap();
        stream.write_all(data).unwrap();
        drop(stream);
        let got = receiver.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        (got, there.join().unwrap())
    })
}

fn some_data() -> Vec<u8> {
    (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn super_frames_come_when_segmentation_is_offered_and_go_to_another_host_unharmed() {
    let data = some_data();
    let (got, seen) = transfer(&data, Offloads::TX_CHECKSUM | Offloads::LSO);
    assert_eq!(Sha256::digest(&got), Sha256::digest(&data));
    assert!(seen.longest > 30_000, "the longest frame had {} bytes", seen.longest);
    assert!(seen.kinds.iter().all(|&k| k == SegmentationKind::Tcp4) && !seen.kinds.is_empty());
}

#[test]
fn no_super_frame_comes_when_segmentation_is_not_offered() {
    let data = some_data();
    let (got, seen) = transfer(&data, Offloads::TX_CHECKSUM);
    assert_eq!(Sha256::digest(&got), Sha256::digest(&data));
    assert_eq!((seen.longest, seen.kinds.len()), (1514, 0));
}

#[test]
fn datagrams_come_joined_when_uso_is_offered() {
    let ns = namespace();
    let tap = host_tap(&ns);
    if !tap.supported().contains(Offloads::USO) {
        return; // The kernel is older than 6.2.
    }
    tap.offer(Offloads::TX_CHECKSUM | Offloads::USO).unwrap();
    let mut queue = tap.queue(0).unwrap();
    let socket = ns.run(|| UdpSocket::bind((HOST, 5000)).unwrap()).unwrap();
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::UdpGsoSegment, &1000).unwrap();
    socket.send_to(&[7; 10_000], (PEER, 6000)).unwrap();
    let (meta, frame) = wait_for(&mut queue, |_, frame| is_ipv4(frame, UDP));
    let cut = meta.segmentation.unwrap();
    assert_eq!((cut.kind, cut.size, frame.len()), (SegmentationKind::Udp, 1000, 42 + 10_000));
}

/// `TUNSETOFFLOAD` rewrites the wanted features of the interface (Linux 6.18, `set_offload` in `drivers/net/tun.c`).
#[test]
fn what_the_host_switched_off_itself_stays_off_while_the_transmit_offer_stays() {
    let ns = namespace();
    let tap = Tap::open_in(&ns, &TapConfig::new("ofr0")).unwrap();
    let has_tso = || ns.run(|| Features::read("ofr0").unwrap().active("tx-tcp-segmentation")).unwrap();
    tap.offer(Offloads::all()).unwrap();
    assert_eq!(has_tso(), Some(true));
    ns.run(|| ethtool::set_features("ofr0", &[("tx-tcp-segmentation", false)]).unwrap()).unwrap();
    let accepted = tap.offer(Offloads::TX | Offloads::RX_CHECKSUM).unwrap();
    assert_eq!((accepted, has_tso()), (tap.offered(), Some(false)));
    tap.offer(Offloads::all() - Offloads::USO).unwrap();
    assert_eq!(has_tso(), Some(true), "another transmit offer is taken over whole");
}

#[test]
fn what_is_offered_at_run_time_is_what_the_host_then_has() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let names = ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation"];
    let host_has = || {
        let features = ns.run(|| Features::read("ofr0").unwrap()).unwrap();
        names.map(|name| features.active(name).unwrap())
    };
    let offers = [
        (Offloads::empty(), [false, false, false, false]),
        (Offloads::TX - Offloads::ACCECN, [true, true, true, true]),
        (Offloads::TX_CHECKSUM, [true, false, false, false]),
        (Offloads::TX_CHECKSUM | Offloads::TSO6, [true, false, true, false]),
        (Offloads::TSO4, [false, false, false, false]),
        (Offloads::TX_CHECKSUM | Offloads::USO, [true, false, false, true]),
    ];
    for (offer, expected) in offers {
        let accepted = thread::scope(|s| s.spawn(|| tap.offer(offer).unwrap()).join().unwrap());
        assert_eq!(accepted, offer.with_prerequisites());
        assert_eq!(host_has(), expected, "after offering {offer:?}");
        assert_eq!(tap.queue(0).unwrap().accepts(), accepted);
    }
}

#[test]
fn a_frame_given_to_the_host_reaches_its_socket() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let mut queue = tap.queue(0).unwrap();
    let socket = ns.run(|| UdpSocket::bind((HOST, 6000)).unwrap()).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let (sum, frame) = datagram_to_host(b"from the wire");
    queue.rx_deliver(&RxMeta { checksum: ChecksumState::Partial(sum), ..RxMeta::default() }, &frame).unwrap();
    let mut got = [0; 64];
    let (len, from) = socket.recv_from(&mut got).unwrap();
    assert_eq!((&got[..len], from.ip()), (&b"from the wire"[..], IpAddr::V4(PEER)));
    let counted = ns.run(|| link::statistics("ofr0").unwrap()).unwrap();
    assert_eq!((counted.rx_packets, counted.rx_bytes), (1, frame.len() as u64));
}

/// Returns an Ethernet frame with a datagram from the peer's port 5000 to the host's port 6000. The checksum is
/// partial. Its field can have any value, because the host does not verify a partial checksum.
fn datagram_to_host(payload: &[u8]) -> (PartialChecksum, Vec<u8>) {
    let mut ip = [0x45, 0, 0, 28 + payload.len() as u8, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&folded.to_be_bytes());
    let udp = [0x13, 0x88, 0x17, 0x70, 0, 8 + payload.len() as u8, 0, 0];
    let frame = [&HOST_MAC[..], &PEER_MAC, &[8, 0], &ip, &udp, payload].concat();
    (PartialChecksum { start: 34, offset: 6 }, frame)
}

#[test]
fn each_queue_takes_and_every_queue_can_be_given_to() {
    let ns = namespace();
    let config = TapConfig { queues: 4, ..TapConfig::new("ofr0") };
    let tap = tap_with_address(&ns, &config, (HOST, HOST_MAC), (PEER, PEER_MAC));
    assert_eq!(tap.queue_count(), 4);
    assert!(tap.queue(4).is_none());
    let socket = ns.run(|| UdpSocket::bind((HOST, 6000)).unwrap()).unwrap();
    let mut queue = tap.queue(3).unwrap();
    let (sum, frame) = datagram_to_host(b"to any");
    for number in [0, 1, 2, 3, 200] {
        let meta = RxMeta { checksum: ChecksumState::Partial(sum), queue: number, ..RxMeta::default() };
        queue.rx_deliver(&meta, &frame).unwrap();
        assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 6);
    }
    for index in 0..4 {
        // The queue is empty but still usable.
        let mut queue = tap.queue(index).unwrap();
        while queue.tx_next(0).unwrap() {}
    }
}

#[test]
fn what_the_host_refuses_is_told_and_the_port_goes_on() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let mut queue = tap.queue(0).unwrap();
    let (sum, frame) = datagram_to_host(b"x");
    let partial = |p| RxMeta { checksum: ChecksumState::Partial(p), ..RxMeta::default() };
    let beyond = PartialChecksum { start: 60_000, offset: 6 };
    assert_eq!(queue.rx_deliver(&partial(beyond), &frame), Err(PortError::Refused(libc::EINVAL)));
    assert_eq!(queue.rx_deliver(&partial(sum), &frame[..13]), Err(PortError::Refused(libc::EINVAL)));
    assert_eq!(queue.rx_deliver(&RxMeta::default(), &[]), Err(PortError::Refused(libc::EINVAL)));
    assert_eq!(queue.rx_deliver(&partial(sum), &frame), Ok(()));
    ns.run(|| link::set_down("ofr0").unwrap()).unwrap();
    assert_eq!(queue.rx_deliver(&partial(sum), &frame), Err(PortError::Refused(libc::EIO)));
    ns.run(|| link::set_up("ofr0").unwrap()).unwrap();
    assert_eq!(queue.rx_deliver(&partial(sum), &frame), Ok(()));
}

#[test]
fn the_host_sees_the_carrier_that_is_set_and_frames_come_again_with_it() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let has_carrier = || ns.run(|| CarrierWatch::new(tap.name()).unwrap().poll()).unwrap() == Some(true);
    assert!(has_carrier());
    let socket = ns.run(|| UdpSocket::bind((HOST, 5000)).unwrap()).unwrap();
    let mut queue = tap.queue(0).unwrap();
    tap.set_carrier(false).unwrap();
    // The kernel applies the change in a separate thread.
    while has_carrier() {
        thread::yield_now();
    }
    while queue.tx_next(0).unwrap() {}
    // The kernel refuses or drops this frame.
    let _ = socket.send_to(b"lost", (PEER, 6000));
    assert_eq!(queue.tx_next(0), Ok(false));
    tap.set_carrier(true).unwrap();
    while !has_carrier() {
        thread::yield_now();
    }
    socket.send_to(b"packet", (PEER, 6000)).unwrap();
    let (_, frame) = wait_for(&mut queue, |_, frame| is_ipv4(frame, UDP));
    assert_eq!(&frame[42..], b"packet");
}

#[test]
fn a_frame_longer_than_the_port_takes_is_refused_and_the_next_is_taken() {
    let ns = namespace();
    let config = TapConfig { frame_len_max: 500, ..TapConfig::new("ofr0") };
    let tap = tap_with_address(&ns, &config, (HOST, HOST_MAC), (PEER, PEER_MAC));
    let mut queue = tap.queue(0).unwrap();
    let socket = ns.run(|| UdpSocket::bind((HOST, 5000)).unwrap()).unwrap();
    for payload in [459, 458, 1] {
        socket.send_to(&vec![1; payload], (PEER, 6000)).unwrap();
    }
    assert_eq!(queue.tx_next(0), Err(PortError::Lost(Loss::TooLong)));
    assert!(queue.tx_frame().bytes().is_empty());
    for payload in [458, 1] {
        assert_eq!(queue.tx_next(0), Ok(true));
        assert_eq!(queue.tx_frame().bytes().len(), 42 + payload);
    }
    assert_eq!(queue.tx_next(0), Ok(false));
    assert!(queue.tx_frame().bytes().is_empty());
}

#[test]
fn a_deleted_interface_closes_its_ports() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let mut queue = tap.queue(0).unwrap();
    ns.run(|| link::delete("ofr0").unwrap()).unwrap();
    assert_eq!(queue.tx_next(0), Err(PortError::Closed(libc::EBADFD)));
    assert_eq!(queue.rx_deliver(&RxMeta::default(), &[0; 60]), Err(PortError::Closed(libc::EBADFD)));
    assert!(tap.offer(Offloads::TX).is_err());
}

#[test]
fn a_namespace_ends_with_a_tap_in_it_and_closes_its_ports() {
    for queues in [1, 3] {
        let ns = namespace();
        let tap =
            tap_with_address(&ns, &TapConfig { queues, ..TapConfig::new("ofr0") }, (HOST, HOST_MAC), (PEER, PEER_MAC));
        let mut last = tap.queue(usize::from(queues) - 1).unwrap();
        drop(ns);
        let ended = Instant::now();
        // The kernel ends namespaces in a separate thread.
        while last.rx_deliver(&RxMeta::default(), &[0; 60]) != Err(PortError::Closed(libc::EBADFD)) {
            assert!(ended.elapsed() < Duration::from_secs(10), "the TAP holds its namespace");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(tap.offer(Offloads::TX).is_err());
    }
}

#[test]
fn what_cannot_be_made_is_refused_in_one_clear_line() {
    let ns = namespace();
    let _first = Tap::open_in(&ns, &TapConfig::new("ofr0")).unwrap();
    let refusal = |config: &TapConfig| Tap::open_in(&ns, config).map(|_| ()).unwrap_err().to_string();
    let named = |name: &str| refusal(&TapConfig::new(name));
    let base = TapConfig::new("ofr1");
    let lines = [
        (named("ofr0"), "tap \"ofr0\": the name is taken; choose another, or delete the interface that has it"),
        (named("lo"), "tap \"lo\": the name is taken"),
        (named("a-name-that-is-too-long"), "tap \"a-name-that-is-too-long\": not an interface name; use 1 to 15 bytes"),
        (named(""), "tap \"\": not an interface name"),
        (named("a/b"), "tap \"a/b\": not an interface name"),
        (named("tap%d"), "tap \"tap%d\": not an interface name"),
        (refusal(&TapConfig { mtu: 67, ..base.clone() }), "tap \"ofr1\": MTU 67 is out of range; use 68 to 65521"),
        (refusal(&TapConfig { mtu: MTU_MAX + 1, ..base.clone() }), "tap \"ofr1\": MTU 65522 is out of range"),
        (refusal(&TapConfig { queues: 0, ..base.clone() }), "tap \"ofr1\": 0 queues; use 1 to 256"),
        (refusal(&TapConfig { queues: 257, ..base }), "tap \"ofr1\": 257 queues; use 1 to 256"),
    ];
    for (line, start) in lines {
        assert!(line.starts_with(start) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn the_smallest_and_the_largest_mtu_are_taken() {
    let ns = namespace();
    for mtu in [68, 1500, 9000, MTU_MAX] {
        let tap = Tap::open_in(&ns, &TapConfig { mtu, ..TapConfig::new("ofr0") }).unwrap();
        let set = ns.run(|| offramp_ports::sys::rps::read_attribute(&ns, "ofr0", "mtu").unwrap()).unwrap();
        assert_eq!((set, tap.mtu()), (mtu.to_string(), mtu));
    }
}

#[test]
fn a_name_is_taken_only_in_its_own_namespace() {
    let (one, other) = (namespace(), namespace());
    let first = Tap::open_in(&one, &TapConfig::new("ofr0")).unwrap();
    assert!(matches!(Tap::open_in(&one, &TapConfig::new("ofr0")), Err(TapError::NameTaken(_))));
    let second = Tap::open_in(&other, &TapConfig::new("ofr0")).unwrap();
    assert_eq!(first.name(), second.name());
}

#[test]
fn no_frame_of_a_tcp_handshake_is_lost_between_take_and_taken() {
    let ns = namespace();
    let tap = host_tap(&ns);
    let mut queue = tap.queue(0).unwrap();
    ns.run(|| {
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::SOCK_NONBLOCK,
            None,
        )
        .unwrap();
        let to = nix::sys::socket::SockaddrIn::from(std::net::SocketAddrV4::new(PEER, 80));
        let _ = nix::sys::socket::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &to);
        let (_, frame) = wait_for(&mut queue, |_, frame| is_ipv4(frame, TCP));
        assert_eq!(frame[47] & 0x3f, 0x02, "a SYN");
    })
    .unwrap();
}
