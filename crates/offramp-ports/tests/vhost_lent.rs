//! Tests of super-frames whose payload stays in the guest's memory until the adapter has read it.

use crate::vhost_common::Case;
use crate::vhost_common::packet::{Checksum, Packet};
use crate::vhost_common::{PATIENCE, Scratch};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::host_io::HostIo;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, WirePort};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_ports::null::NullPort;
use offramp_ports::vhost_user::{VhostPort, VhostQueue, VhostUser, VhostUserConfig};
use offramp_testkit::features::{CSUM, HOST_TSO4};
use offramp_testkit::{Buffer, DataPlacement, Guest, RegionSpec, TxLayout, VnetHeader};
use std::net::Shutdown;
use std::time::Instant;

const MSS: usize = 1000;
const HEADERS_LEN: usize = 54;

/// A guest at a slow wire. At time 0, the wire takes a few segments of a super-frame and is then full.
struct Bed {
    pair: QueuePair<VhostQueue, CableEnd>,
    far: CableEnd,
    guest: Guest,
    port: VhostUser,
    _scratch: Scratch,
}

impl Bed {
    fn new(case: Case) -> Self {
        let scratch = Scratch::new();
        let mut port = VhostUser::open(&VhostUserConfig::new(scratch.path("guest"))).unwrap_or_else(|e| panic!("{e}"));
        let wire = CableConfig { rate_bps: Some(1_000_000), queue_bytes: 5_000, ..CableConfig::default() };
        let (near, far) = cable(&wire);
        let config = AdapterConfig::default();
        let queue = port.queue(0).expect("the port's queue");
        let mut pair = QueuePair::new(&config, &PortControl::new(&config), 0, queue, near);
        let (builder, socket) = (case.guest().features(CSUM | HOST_TSO4), port.config().socket.clone());
        let guest = beside(&mut pair, move || builder.connect(socket));
        Self { pair, far, guest, port, _scratch: scratch }
    }

    /// Sends a super-frame, and moves as many segments as the wire takes at time 0. Returns the payload.
    fn send(&mut self) -> Vec<u8> {
        let payload: Vec<u8> = (0..30 * MSS).map(|n| (n * 7 + n / 251) as u8).collect();
        let packet = Packet { checksum: Checksum::Partial, payload: payload.clone(), ..Packet::tcp(0) };
        self.guest.tx(0).set_layout(TxLayout { data: DataPlacement::Scattered(5), ..TxLayout::default() });
        self.guest.tx(0).send(&VnetHeader::tcp4(MSS as u16), &[&packet.build()]);
        for _ in 0..10 {
            self.pair.poll(0).expect("a guest that is there");
        }
        payload
    }

    /// Overwrites the buffers of all sent frames.
    fn overwrite(&mut self) {
        self.guest.tx(0).overwrite_sent(0xee);
    }

    /// Receives the payloads of all segments of a super-frame with `len` bytes of payload.
    fn receive(&mut self, len: usize) -> Vec<u8> {
        let (mut payload, mut now_ns) = (Vec::new(), 0);
        while payload.len() < len {
            now_ns += 1_000_000;
            assert!(now_ns < 100_000_000_000, "{} bytes arrived", payload.len());
            self.pair.poll(now_ns).expect("a port that goes on");
            while let Some(frame) = self.far.take(now_ns) {
                payload.extend_from_slice(&frame[HEADERS_LEN..]);
            }
        }
        payload
    }
}

/// Polls the pair at time 0, then arms and disarms its host, like a worker whose sleep ends at once.
fn turn(pair: &mut QueuePair<VhostQueue, CableEnd>) {
    pair.poll(0).expect("a port that goes on");
    pair.host_mut().arm();
    pair.host_mut().disarm();
}

/// Does `work` in another thread, while this thread polls the pair.
fn beside<R: Send + 'static>(
    pair: &mut QueuePair<VhostQueue, CableEnd>,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    let working = std::thread::spawn(work);
    let end = Instant::now() + PATIENCE;
    while !working.is_finished() {
        assert!(Instant::now() < end, "the port answers");
        turn(pair);
    }
    working.join().expect("work that ends")
}

#[test]
fn a_chain_goes_back_to_the_guest_once_its_last_segment_is_on_the_wire() {
    for case in Case::layouts() {
        let mut bed = Bed::new(case);
        let payload = bed.send();
        assert!(bed.guest.tx(0).take_used().is_none(), "{case:?}: the wire is full");
        assert!(bed.receive(payload.len()) == payload, "{case:?}");
        bed.pair.poll(u64::MAX / 2).expect("a guest that is there");
        assert!(bed.guest.tx(0).take_used().is_some(), "{case:?}");
    }
}

#[test]
fn a_guest_that_stops_its_ring_in_the_middle_of_a_super_frame_can_change_no_byte_of_it() {
    for (case, sleeps) in Case::layouts().flat_map(|case| [(case, true), (case, false)]) {
        let mut bed = Bed::new(case);
        let payload = bed.send();
        let Bed { pair, guest, .. } = &mut bed;
        std::thread::scope(|scope| {
            let stopping = scope.spawn(move || guest.stop().expect("the bases of the rings"));
            while !stopping.is_finished() {
                if sleeps {
                    turn(pair);
                } else {
                    pair.host_mut().rx_flush(0);
                }
            }
        });
        bed.overwrite();
        assert!(bed.receive(payload.len()) == payload, "{case:?}");
        assert!(bed.guest.tx(0).take_used().is_some(), "{case:?}: the frame was sent");
    }
}

#[test]
fn a_guest_that_goes_in_the_middle_of_a_super_frame_leaves_it_whole() {
    for case in Case::layouts() {
        let mut bed = Bed::new(case);
        let payload = bed.send();
        bed.guest.frontend().stream().shutdown(Shutdown::Both).expect("a connected socket");
        let end = Instant::now() + PATIENCE;
        while bed.port.status().is_connected {
            assert!(Instant::now() < end, "the end of the guest");
            turn(&mut bed.pair);
        }
        bed.overwrite();
        assert!(bed.receive(payload.len()) == payload, "{case:?}");
    }
}

#[test]
fn a_port_that_ends_keeps_no_chain() {
    for case in Case::layouts() {
        let mut bed = Bed::new(case);
        bed.send();
        drop(bed.pair);
        assert!(bed.guest.tx(0).take_used().is_some(), "{case:?}: the next backend would send the frame again");
    }
}

#[test]
fn a_port_that_sleeps_keeps_no_chain() {
    for case in Case::layouts() {
        let mut bed = Bed::new(case);
        let payload = bed.send();
        bed.pair.host_mut().arm();
        assert!(bed.guest.tx(0).take_used().is_some(), "{case:?}");
        bed.overwrite();
        assert!(bed.receive(payload.len()) == payload, "{case:?}");
    }
}

#[test]
fn a_guest_that_takes_the_payload_away_is_dropped_whoever_reads_it() {
    let ns = crate::common::namespace();
    let tap = crate::common::host_tap(&ns);
    tap.offer(Offloads::RATIFIED).expect("the offloads of a TAP");
    let receivers: [(&str, Box<dyn HostPort>); 2] = [
        ("a TAP: the kernel reads", Box::new(tap.queue(0).expect("the TAP's queue"))),
        ("a port that takes frames from private memory: the sender's port reads", Box::new(NullPort::new(Vec::new()))),
    ];
    for (what, host) in receivers {
        let scratch = Scratch::new();
        let mut port = VhostUser::open(&VhostUserConfig::new(scratch.path("guest"))).unwrap_or_else(|e| panic!("{e}"));
        let mut switch: Switch<Box<dyn HostPort>> = Switch::new(&SwitchConfig::link());
        let guest = VhostPort::new(vec![port.queue(0).expect("the port's queue")]).expect("one queue");
        switch.control().add(Box::new(guest), &PortConfig::default()).expect("room on the switch");
        let unmoderated = PortConfig { moderation: ModerationConfig::default(), ..PortConfig::default() };
        switch.control().add(host, &unmoderated).expect("room on the switch");
        // Rings, headers and the start of the payload are in the first region, the rest of the payload in the second.
        let regions = [RegionSpec::new(0x10_0000, 1 << 20), RegionSpec::new(0x4000_0000, 1 << 20)];
        let builder = Guest::builder().split().features(CSUM | HOST_TSO4).memory(&regions);
        let socket = port.config().socket.clone();
        let connecting = std::thread::spawn(move || builder.connect(socket));
        while !connecting.is_finished() {
            switch.poll(0);
        }
        let mut guest = connecting.join().expect("a guest that came");
        let packet = Packet { checksum: Checksum::Partial, payload: vec![7; 20_000], ..Packet::tcp(0) }.build();
        let front = [&VnetHeader::tcp4(MSS as u16).to_bytes()[..], &packet[..400]].concat();
        let memory = guest.memory().clone();
        let (first, second) = (memory.alloc_in(0, 4096, 4096), memory.alloc_in(1, 20_480, 4096));
        memory.write(first, &front);
        let chain = [Buffer::readable(first, front.len()), Buffer::readable(second, packet.len() - 400)];
        guest.tx(0).ring().add(&chain, &[]).expect("room in the ring");
        memory.shrink(1, 0);
        guest.tx(0).publish();
        let end = Instant::now() + PATIENCE;
        while port.channel_counters().lost_memories.get() == 0 {
            assert!(Instant::now() < end, "{what}: the port finds out");
            switch.poll(0);
        }
        assert!(guest.frontend().is_closed_within(PATIENCE), "{what}");
    }
}
