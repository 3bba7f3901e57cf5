//! Tests the frontend and the whole guest with a slow backend in this process.

mod support;

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{DirtyLog, Header, MemRegion, backend_request, request};
use offramp_testkit::{
    Buffer, DataPlacement, Dialect, Frontend, Guest, GuestBuilder, GuestMemory, HeaderPlacement, PeerError, Received,
    RegionSpec, TxLayout, VnetHeader,
};
use support::backend::{self, Fault, Journal};

/// Time limit against hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Features offered by the backend.
const OFFERED: u64 = features::VERSION_1
    | features::PROTOCOL_FEATURES
    | features::MRG_RXBUF
    | features::INDIRECT_DESC
    | features::EVENT_IDX
    | features::RING_PACKED
    | features::IN_ORDER;
/// Protocol features offered by the backend.
const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::STATUS
    | protocol::CONFIG
    | protocol::BACKEND_REQ
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::LOG_SHMFD;

fn connect(builder: &GuestBuilder, fault: Option<Fault>) -> (Guest, JoinHandle<Journal>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let backend = backend::spawn(theirs, OFFERED, PROTOCOL, fault);
    (builder.over(Frontend::new(ours)), backend)
}

fn frontend(fault: Option<Fault>) -> (Frontend, JoinHandle<Journal>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Frontend::new(ours), backend::spawn(theirs, OFFERED, PROTOCOL, fault))
}

fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7) as u8).collect()
}

fn echo(guest: &mut Guest, pair: usize, frame: &[u8]) -> Received {
    let (rx, tx) = guest.pair(pair);
    tx.send(&VnetHeader::default(), &[&frame[..frame.len() / 3], &frame[frame.len() / 3..]]);
    let received = rx.recv(PATIENCE);
    tx.drain(PATIENCE);
    assert!(received.frame == frame, "{} bytes came back otherwise", frame.len());
    received
}

#[test]
fn frames_come_back_from_every_kind_of_ring_in_every_layout() {
    let layouts = [
        TxLayout::default(),
        TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::Parts, indirect: false },
        TxLayout { header: HeaderPlacement::Split(12), data: DataPlacement::Scattered(3), indirect: false },
        TxLayout { header: HeaderPlacement::Own, data: DataPlacement::Scattered(14), indirect: true },
    ];
    for kind in 0..32 {
        let on = |bit: u32| kind >> bit & 1 == 1;
        let ring = if on(0) { Guest::builder().packed().queue_size(19) } else { Guest::builder().queue_size(16) };
        let ring = ring.event_idx(on(1)).in_order(on(2)).mergeable(on(3)).interrupts(on(4)).indirect(true);
        let (mut guest, backend) = connect(&ring, None);
        let len = if on(3) { 128 } else { 2048 };
        guest.rx(0).fill(14, len);
        guest.tx(0).set_compare(true);
        for round in 0..40 {
            guest.tx(0).set_layout(layouts[round % layouts.len()]);
            let received = echo(&mut guest, 0, &frame(60 + round * 37, round));
            assert!(received.visible_together);
            assert_eq!(usize::from(received.num_buffers), (received.frame.len() + 12).div_ceil(len));
            assert_eq!(received.chains.len(), usize::from(received.num_buffers));
        }
        let called = guest.rx(0).signals().calls > 0;
        assert_eq!(called, on(4), "interrupts only when they are wanted");
        drop(guest);
        backend.join().unwrap();
    }
}

#[test]
fn a_received_frame_may_lie_in_chains_of_several_buffers() {
    let (mut guest, _backend) = connect(&Guest::builder(), None);
    guest.rx(0).fill_chains(8, &[5, 7, 100, 900]);
    let received = echo(&mut guest, 0, &frame(700, 1));
    assert_eq!((received.chains[0].len, received.chains[0].capacity), (712, 1012));
}

#[test]
fn queue_pairs_do_not_disturb_each_other() {
    let (mut guest, _backend) = connect(&Guest::builder().queue_pairs(3), None);
    for pair in 0..3 {
        guest.rx(pair).fill(4, 256);
    }
    for pair in [2, 0, 1] {
        echo(&mut guest, pair, &frame(60, pair));
    }
}

#[test]
fn memory_may_have_several_regions_and_be_added_one_by_one() {
    let regions =
        [RegionSpec::new(0x1000, 0x4000), RegionSpec { guest_addr: 0x5000, len: 1 << 20, file_offset: 0x2000 }];
    for protocol in [protocol::REPLY_ACK, protocol::CONFIGURE_MEM_SLOTS | protocol::REPLY_ACK] {
        let builder = Guest::builder().memory(&regions).protocol_features(protocol);
        let (mut guest, backend) = connect(&builder, None);
        guest.rx(0).fill(16, 2048);
        for round in 0..20 {
            echo(&mut guest, 0, &frame(900, round));
        }
        drop(guest);
        let journal = backend.join().unwrap();
        let adds = journal.iter().filter(|(request, _)| *request == request::ADD_MEM_REG).count();
        assert_eq!(adds, if protocol & protocol::CONFIGURE_MEM_SLOTS != 0 { 2 } else { 0 });
    }
}

#[test]
fn a_buffer_may_lie_across_the_border_of_two_regions() {
    let regions = [RegionSpec::new(0x10_0000, 0x10_0000), RegionSpec::new(0x20_0000, 0x10_0000)];
    let (mut guest, _backend) = connect(&Guest::builder().memory(&regions), None);
    let memory = guest.memory().clone();
    let frame = frame(60, 3);
    for at in memory.border() - 71..memory.border() {
        memory.write(at, &[&[0; 12], &frame[..]].concat());
        guest.rx(0).fill(1, 256);
        guest.tx(0).ring().add(&[Buffer::readable(at, 72)], &[]).unwrap();
        guest.tx(0).publish();
        assert_eq!(guest.rx(0).recv(PATIENCE).frame, frame);
        guest.tx(0).drain(PATIENCE);
    }
}

#[test]
fn rings_go_on_where_they_were_stopped() {
    for builder in [Guest::builder().queue_size(8), Guest::builder().packed().queue_size(7)] {
        let (mut guest, _backend) = connect(&builder, None);
        guest.rx(0).fill(4, 256);
        for round in 0..30 {
            echo(&mut guest, 0, &frame(100, round));
            let bases = guest.stop().unwrap();
            guest.start_at(&bases).unwrap();
        }
    }
}

#[test]
fn a_guest_goes_on_at_another_backend() {
    let directory = std::env::temp_dir().join(format!("offramp-testkit-guest-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let backends = std::thread::spawn(move || {
        let next = |_| backend::spawn(listener.accept().unwrap().0, OFFERED, PROTOCOL, None);
        let backends: Vec<_> = (0..6).map(next).collect();
        for backend in backends {
            backend.join().unwrap();
        }
    });
    for builder in [Guest::builder().queue_size(8), Guest::builder().packed().queue_size(7)] {
        let mut guest = builder.connect(&path);
        guest.rx(0).fill(4, 256);
        for round in 0..10 {
            echo(&mut guest, 0, &frame(100, round));
        }
        guest.stop().unwrap();
        guest.reconnect(&path);
        echo(&mut guest, 0, &frame(100, 2));
        guest.stop().unwrap();
        guest.reset_rings();
        guest.reconnect(&path);
        guest.rx(0).fill(4, 256);
        echo(&mut guest, 0, &frame(100, 3));
    }
    backends.join().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

fn requests_of(builder: &GuestBuilder) -> Vec<u32> {
    let (guest, backend) = connect(builder, None);
    drop(guest);
    backend.join().unwrap().into_iter().map(|(request, _)| request).collect()
}

#[test]
fn each_dialect_has_the_order_of_its_frontend() {
    use request::*;
    let builder = Guest::builder().protocol_features(protocol::REPLY_ACK | protocol::MQ);
    let ring = [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR, SET_VRING_KICK];
    let enable = [SET_VRING_ENABLE; 2];

    let qemu = [GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_OWNER, GET_FEATURES];
    let prepare = [SET_VRING_CALL, SET_VRING_ERR, SET_VRING_CALL, SET_VRING_ERR, SET_FEATURES, SET_MEM_TABLE];
    let qemu_ring = [&ring[..], &[SET_VRING_CALL]].concat();
    let whole = [&qemu[..], &prepare, &qemu_ring, &qemu_ring, &enable].concat();
    assert_eq!(requests_of(&builder), whole);

    let dpdk = [SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM];
    let prepare = [SET_VRING_CALL, SET_VRING_CALL, SET_FEATURES, SET_MEM_TABLE];
    let whole = [&dpdk[..], &prepare, &ring, &ring, &enable].concat();
    assert_eq!(requests_of(&builder.clone().dialect(Dialect::Dpdk)), whole);

    let uml = [SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, SET_FEATURES, SET_MEM_TABLE];
    let ring = [SET_VRING_CALL, SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR];
    let start = [SET_VRING_KICK, SET_VRING_ENABLE];
    let whole = [&uml[..], &ring, &ring, &start, &start].concat();
    assert_eq!(requests_of(&builder.protocol_features(protocol::REPLY_ACK).dialect(Dialect::UserModeLinux)), whole);
}

#[test]
fn messages_have_the_bytes_of_the_specification() {
    let memory = GuestMemory::new(&[RegionSpec { guest_addr: 0x1000, len: 0x2000, file_offset: 0x3000 }]);
    let (frontend, backend) = frontend(None);
    frontend.set_mem_table(&memory).unwrap();
    frontend.set_vring_num(3, 0x0102).unwrap();
    frontend.set_vring_call(2, None).unwrap();
    frontend.set_config(4, &[9, 8]).unwrap();
    drop(frontend);
    let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_le_bytes()).collect::<Vec<u8>>();
    let user_addr = memory.regions()[0].user_addr();
    let expected = [
        (5, longs(&[1, 0x1000, 0x2000, user_addr, 0x3000])),
        (8, vec![3, 0, 0, 0, 2, 1, 0, 0]),
        (13, vec![2, 1, 0, 0, 0, 0, 0, 0]),
        (25, vec![4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 8]),
    ];
    assert_eq!(backend.join().unwrap(), expected);
}

#[test]
fn a_region_may_be_described_wrongly() {
    let memory = GuestMemory::contiguous(4096);
    let region = &memory.regions()[0];
    let wrong = MemRegion { len: u64::MAX, file_offset: 1, ..MemRegion::new(region) };
    let (frontend, backend) = frontend(None);
    frontend.set_mem_regions(&[wrong, wrong], &[region.fd(), region.fd()]).unwrap();
    drop(frontend);
    let (_, payload) = &backend.join().unwrap()[0];
    assert_eq!((payload.len(), payload[0], &payload[16..24]), (72, 2, &[255; 8][..]));
}

#[test]
fn a_refusal_and_an_end_are_told_apart() {
    let request = request::SET_VRING_NUM;
    let (mut refused, _backend) = frontend(Some(Fault::Refuse(request)));
    refused.set_protocol_features(protocol::REPLY_ACK).unwrap();
    assert_eq!(refused.set_vring_num(0, 3), Err(PeerError::Refused { request, code: 1 }));
    assert!(!refused.is_closed_within(Duration::from_millis(10)));

    let (mut closed, _backend) = frontend(Some(Fault::CloseAt(request)));
    closed.set_protocol_features(protocol::REPLY_ACK).unwrap();
    assert_eq!(closed.set_vring_num(0, 3), Err(PeerError::Closed { request }));
    assert!(closed.is_closed_within(PATIENCE));
    assert!(closed.recv_raw(PATIENCE).is_none());
}

#[test]
fn requests_with_answers_give_what_the_backend_says() {
    let (mut frontend, _backend) = frontend(None);
    assert_eq!(frontend.get_features(), Ok(OFFERED));
    assert_eq!(frontend.get_queue_num(), Ok(8));
    assert_eq!(frontend.get_status(), Ok(15));
    assert_eq!(frontend.get_config(2, 3), Ok(vec![2, 3, 4]));
    frontend.set_config(3, &[77]).unwrap();
    assert_eq!(frontend.get_config(2, 3), Ok(vec![2, 77, 4]));
    let inflight = frontend.get_inflight_fd(2, 256).unwrap();
    assert_eq!((inflight.mmap_size, inflight.num_queues, inflight.queue_size), (4096, 2, 256));
    frontend.set_inflight_fd(&inflight).unwrap();
    frontend.set_backend_req_fd().unwrap();
    let asked = frontend.backend_request(PATIENCE).expect("a request of the backend");
    assert_eq!(asked.header.request, backend_request::CONFIG_CHANGE_MSG);
    assert!(frontend.acknowledge_backend(&asked, 0));
}

#[test]
fn a_dirty_log_tells_the_pages_that_were_written() {
    let (frontend, _backend) = frontend(None);
    let log = DirtyLog::new(&GuestMemory::contiguous(1 << 20));
    frontend.set_log_base(&log).unwrap();
    assert_eq!(log.dirty_pages(), 1);
    assert!(log.is_dirty(9 * 4096 + 5) && !log.is_dirty(8 * 4096));
    log.clear();
    assert_eq!(log.dirty_pages(), 0);
}

#[test]
fn raw_messages_are_sent_as_they_are() {
    let (frontend, backend) = frontend(None);
    let memory = GuestMemory::contiguous(4096);
    let header = Header { request: 4711, flags: 0xffff_ffff, payload_len: 2 };
    let file = memory.regions()[0].fd();
    assert!(frontend.send_raw(header, b"ab", &[file; 9]));
    let answer = frontend.recv_raw(PATIENCE).expect("an acknowledgement, since the flags ask for one");
    assert_eq!((answer.header.request, answer.u64()), (4711, 0));
    assert!(frontend.send_bytes(&Header::new(1, 0).to_bytes()[..5], &[]));
    assert!(frontend.send_bytes(&Header::new(1, 0).to_bytes()[5..], &[]));
    assert_eq!(frontend.recv_raw(PATIENCE).expect("the features").u64(), OFFERED);
    drop(frontend);
    assert_eq!(backend.join().unwrap(), [(4711, b"ab".to_vec()), (1, vec![])]);
}

#[test]
fn a_torn_mergeable_frame_is_noticed() {
    for builder in [Guest::builder().split(), Guest::builder().packed()] {
        let (mut guest, _backend) = connect(&builder.mergeable(true), Some(Fault::Torn));
        guest.rx(0).fill(8, 64);
        let received = echo(&mut guest, 0, &frame(100, 1));
        assert_eq!(received.num_buffers, 2);
        assert!(!received.visible_together);
    }
}

#[test]
#[should_panic(expected = "sent no interrupt for it")]
fn a_missing_interrupt_panics() {
    let (mut guest, _backend) = connect(&Guest::builder().interrupts(true), Some(Fault::NoInterrupts));
    guest.rx(0).fill(8, 256);
    // If the backend answers before the guest's first poll, the guest needs no interrupt. No backend is that fast in
    // all rounds.
    for _ in 0..100 {
        guest.tx(0).send(&VnetHeader::default(), &[&frame(60, 1)]);
        guest.rx(0).recv_within(Duration::from_millis(200));
    }
}

#[test]
#[should_panic(expected = "the device wrote past the end of")]
fn a_byte_behind_a_buffer_panics() {
    let (mut guest, _backend) = connect(&Guest::builder(), Some(Fault::Overrun));
    guest.rx(0).fill(8, 256);
    echo(&mut guest, 0, &frame(60, 1));
}

#[test]
#[should_panic(expected = "that it may only read")]
fn a_write_into_a_sent_frame_panics() {
    let (mut guest, _backend) = connect(&Guest::builder(), Some(Fault::WritesReadOnly));
    guest.rx(0).fill(8, 256);
    guest.tx(0).set_compare(true);
    echo(&mut guest, 0, &frame(60, 1));
}

#[test]
#[should_panic(expected = "no frame came within")]
fn a_frame_that_does_not_come_panics() {
    let (mut guest, _backend) = connect(&Guest::builder(), None);
    guest.rx(0).recv(Duration::from_millis(10));
}

#[test]
fn a_frontend_that_goes_is_gone_even_if_its_socket_was_copied() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let _copy = ours.try_clone().unwrap();
    drop(Frontend::new(ours));
    theirs.set_nonblocking(true).unwrap();
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}
