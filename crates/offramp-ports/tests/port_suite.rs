//! Runs the common test suite of host ports on every kind of port.

use crate::common::namespace;
use offramp_adapter::port::{HostPort, InPlace};
use offramp_offload::checksum::{self, Sum};
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_ports::packet::{Packet, PacketConfig, PacketQueue};
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::vhost_user::{VhostPort, VhostUser, VhostUserConfig};
use offramp_testkit::guest::GuestBuilder;
use offramp_testkit::port_suite::{Bed, append_in_place, check};
use offramp_testkit::umem::UmemPort;
use offramp_testkit::{Guest, VnetHeader};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A port that shares one memory area with its host.
struct Umem {
    port: UmemPort,
    taken: VecDeque<usize>,
}

impl Bed for Umem {
    fn port(&mut self) -> &mut dyn HostPort {
        &mut self.port
    }

    fn send(&mut self, frame: &[u8]) {
        assert!(self.port.send(TxMeta::default(), frame), "room in the area");
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        self.port.recv().map(|(_, frame)| frame)
    }

    fn take_room(&mut self) -> bool {
        self.port.swap_free(&mut self.taken);
        true
    }

    fn make_room(&mut self) {
        self.port.swap_free(&mut self.taken);
    }
}

#[test]
fn a_port_that_lends_one_memory_area_both_ways() {
    check(|| Umem { port: UmemPort::new(64, 2048), taken: VecDeque::new() });
}

/// Length of a guest's receive buffer, in bytes.
const BUFFER_LEN: usize = 2048;

/// A vhost-user port and its guest.
struct Vhost {
    port: VhostPort,
    guest: Guest,
    _user: VhostUser,
}

impl Vhost {
    fn new(builder: &GuestBuilder) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("offramp-suite-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let socket = std::env::temp_dir().join(name);
        let mut user = VhostUser::open(&VhostUserConfig::new(socket.clone())).unwrap_or_else(|e| panic!("{e}"));
        let mut port = VhostPort::new(vec![user.queue(0).unwrap()]).unwrap();
        let builder = builder.clone();
        let connecting = std::thread::spawn(move || builder.connect(socket));
        while !connecting.is_finished() {
            port.tx_next(0).unwrap();
            port.rx_flush(0);
        }
        let mut guest = connecting.join().unwrap();
        guest.rx(0).fill(64, BUFFER_LEN);
        Self { port, guest, _user: user }
    }
}

impl Bed for Vhost {
    fn port(&mut self) -> &mut dyn HostPort {
        &mut self.port
    }

    fn send(&mut self, frame: &[u8]) {
        self.guest.tx(0).send(&VnetHeader::default(), &[frame]);
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        self.guest.rx(0).try_recv().map(|received| received.frame)
    }

    fn take_room(&mut self) -> bool {
        self.guest.rx(0).set_recycle(false);
        while self.port.rx_deliver(&RxMeta::default(), &[0; 60]).is_ok() {}
        self.port.rx_flush(0);
        while self.recv().is_some() {}
        true
    }

    fn make_room(&mut self) {
        self.guest.rx(0).fill(8, BUFFER_LEN);
    }
}

#[test]
fn vhost_user_with_rings_of_every_kind() {
    for packed in [false, true] {
        for mergeable in [false, true] {
            for in_order in [false, true] {
                let guest = if packed { Guest::builder().packed() } else { Guest::builder().split() };
                let guest = guest.mergeable(mergeable).in_order(in_order);
                check(|| Vhost::new(&guest));
            }
        }
    }
}

#[test]
fn frames_that_are_written_in_place_never_keep_more_than_half_a_ring_from_the_guest() {
    const RING: u16 = 128;
    for builder in [Guest::builder().split(), Guest::builder().packed()] {
        let mut bed = Vhost::new(&builder.mergeable(true).queue_size(RING));
        bed.guest.rx(0).fill(usize::from(RING), BUFFER_LEN);
        let mut segments = [0; 2];
        assert!(bed.port.rx_reserve(0, &[0; HEAD_LEN]) && bed.port.rx_reserve(1, &[0; HEAD_LEN]));
        while !bed.port.rx_wants_commit() {
            let slot = usize::from(segments[0] > segments[1]);
            append(&mut bed.port, slot);
            segments[slot] += 1;
        }
        let bytes = segments.iter().sum::<usize>() * PAYLOAD.len();
        assert!(bytes <= usize::from(RING / 2) * BUFFER_LEN, "{segments:?}");
        // Room for many payloads adds no more than the chains for one of them.
        let mut room = bed.port.rx_room(0, PAYLOAD.len(), usize::from(RING));
        let fitting = std::iter::from_fn(|| room.copy_and_sum(&PAYLOAD)).count();
        bed.port.rx_fill(0, 0);
        assert!(fitting * PAYLOAD.len() <= PAYLOAD.len() + 2 * BUFFER_LEN, "{fitting} payloads");
        for (slot, segments) in segments.iter().enumerate() {
            commit(&mut bed.port, slot, *segments);
        }
        // Both frames are published before the batch ends, so that the guest can post its buffers again.
        for segments in segments {
            assert_eq!(bed.recv().map(|frame| frame.len()), Some(HEAD_LEN + segments * PAYLOAD.len()));
        }
        assert!(!bed.port.rx_wants_commit());
    }
}

#[test]
fn a_frontend_that_stops_a_ring_takes_no_frame_that_is_being_written() {
    for builder in [Guest::builder().split(), Guest::builder().packed()] {
        let mut bed = Vhost::new(&builder.mergeable(true));
        assert!(bed.port.rx_reserve(0, &[0; HEAD_LEN]));
        append(&mut bed.port, 0);
        let Vhost { port, guest, .. } = &mut bed;
        std::thread::scope(|scope| {
            // The call returns after the queue has stopped its rings.
            let stopping = scope.spawn(|| guest.stop().unwrap());
            // Poll long enough for the request to arrive. After some seconds without an answer, the port would
            // disconnect the frontend.
            let until = Instant::now() + Duration::from_millis(100);
            while Instant::now() < until {
                port.tx_next(0).unwrap();
                std::thread::yield_now();
            }
            commit(port, 0, 1);
            while !stopping.is_finished() {
                port.rx_flush(0);
            }
        });
        assert_eq!(bed.recv().map(|frame| frame.len()), Some(HEAD_LEN + PAYLOAD.len()));
    }
}

#[test]
fn a_limit_that_is_reached_takes_no_frame_that_is_being_written() {
    for builder in [Guest::builder().split(), Guest::builder().packed()] {
        let mut bed = Vhost::new(&builder.mergeable(true));
        let Vhost { port, guest, .. } = &mut bed;
        std::thread::scope(|scope| {
            let enabling = scope.spawn(|| {
                guest.frontend().set_vring_enable(1, true).unwrap();
                guest.frontend().get_features().unwrap();
            });
            while !enabling.is_finished() {
                port.tx_next(0).unwrap();
            }
        });
        assert!(bed.port.rx_reserve(0, &[0; HEAD_LEN]));
        append(&mut bed.port, 0);
        bed.port.tx_hold();
        commit(&mut bed.port, 0, 1);
        bed.port.rx_flush(0);
        assert_eq!(bed.recv().map(|frame| frame.len()), Some(HEAD_LEN + PAYLOAD.len()));
    }
}

/// A segment written in place, and the length of its headers.
const PAYLOAD: [u8; 1400] = [7; 1400];
const HEAD_LEN: usize = 54;

fn append(port: &mut VhostPort, slot: usize) {
    let headers_sum = Sum::word(checksum::sum(&PAYLOAD).checksum());
    assert_eq!(append_in_place(port, slot, &PAYLOAD, headers_sum), Some(true));
}

fn commit(port: &mut VhostPort, slot: usize, segments: usize) {
    let meta = RxMeta { header_len: HEAD_LEN as u16, ..RxMeta::default() };
    assert_eq!(port.rx_commit(slot, &meta, &[9; HEAD_LEN], HEAD_LEN + segments * PAYLOAD.len()), Ok(()));
}

/// Brings up an interface without addresses and without IPv6.
fn prepare(ns: &NetNs, name: &str) {
    ns.run(|| {
        link::disable_ipv6(name).unwrap();
        link::set_up(name).unwrap();
    })
    .unwrap();
}

/// A port whose host is the kernel: a packet socket sends and receives the frames of an interface.
struct Kernel<P> {
    port: P,
    host: PacketQueue,
    _namespaces: Vec<NetNs>,
}

impl<P: HostPort> Bed for Kernel<P> {
    fn port(&mut self) -> &mut dyn HostPort {
        &mut self.port
    }

    fn send(&mut self, frame: &[u8]) {
        self.host.rx_deliver(&RxMeta::default(), frame).unwrap();
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        self.host.tx_next(0).unwrap().then(|| self.host.tx_frame().bytes().to_vec())
    }

    fn take_room(&mut self) -> bool {
        false
    }

    fn make_room(&mut self) {}
}

fn interface(ns: &NetNs, name: &str) -> PacketQueue {
    Packet::open_in(ns, &PacketConfig::new(name)).unwrap_or_else(|e| panic!("{e}")).queue(0).unwrap()
}

#[test]
fn a_tap() {
    check(|| -> Kernel<TapQueue> {
        let ns = namespace();
        let tap = Tap::open_in(&ns, &TapConfig::new("ofr0")).unwrap_or_else(|e| panic!("{e}"));
        prepare(&ns, "ofr0");
        Kernel { port: tap.queue(0).unwrap(), host: interface(&ns, "ofr0"), _namespaces: vec![ns] }
    });
}

#[test]
fn an_interface_that_exists() {
    check(|| -> Kernel<PacketQueue> {
        let (near, far) = (namespace(), namespace());
        near.run(|| {
            link::create_veth("near", "far").unwrap();
            link::move_to("far", &far).unwrap();
        })
        .unwrap();
        prepare(&near, "near");
        prepare(&far, "far");
        let mut bed =
            Kernel { port: interface(&near, "near"), host: interface(&far, "far"), _namespaces: vec![near, far] };
        // After an interface comes up, the kernel drops frames until it has checked the carrier.
        while !bed.port.tx_next(0).unwrap() {
            bed.send(&[0xff; 60]);
        }
        while bed.port.tx_next(0).unwrap() {}
        bed
    });
}
