//! The life of the chain of a sent super-frame whose payload stays in the guest's memory: every sequence of calls up to
//! a length.

use super::{QueueState, Side, Start, VhostQueue};
use crate::vhost_user::counters::QueueCounters;
use crate::vhost_user::features;
use crate::vhost_user::mailbox::{Sender, mailbox};
use nix::sys::eventfd::EventFd;
use offramp_adapter::host_io::HostIo;
use offramp_adapter::port::HostPort;
use offramp_testkit::features::{CSUM, HOST_TSO4};
use offramp_testkit::ring::{Buffer, RingOptions, Virtqueue};
use offramp_virtio::memory::{Extent, GuestMemory};
use offramp_virtio::ring::RingPlace;
use std::fs::File;
use std::sync::{Arc, mpsc};

const RING: u16 = 8;
const FRAMES: usize = 3;
const MEMORY_LEN: u64 = 64 * 1024;
const NET_HEADER_LEN: usize = 12;
const HEADERS_LEN: usize = 54;
const PAYLOAD_LEN: usize = 5000;
const FEATURES: u64 = CSUM | HOST_TSO4 | features::MRG_RXBUF;
/// Offset of the IPv4 ID from the frame's start. The ID is the number of the frame.
const ID_AT: usize = 18;
/// Number of steps after the first fetch.
const STEPS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The adapter fetches the next frame.
    Next,
    /// The adapter takes the whole frame in private memory.
    Gather,
    /// The adapter ends its batch.
    Publish,
    /// The adapter ends a batch of received frames. The adapter may still read the frame.
    Flush,
    /// The port's thread goes to sleep. The adapter may still read the frame.
    Sleep,
    /// A rate limit holds the port's frames.
    Hold,
    /// The frontend stops the ring.
    Stop,
    /// The frontend starts the stopped ring.
    Start,
    /// The guest overwrites the payload of every frame.
    Overwrite,
}

const ALL: [Step; 9] = [
    Step::Next,
    Step::Gather,
    Step::Publish,
    Step::Flush,
    Step::Sleep,
    Step::Hold,
    Step::Stop,
    Step::Start,
    Step::Overwrite,
];

/// A frame that the adapter may read.
struct Current {
    number: usize,
    /// The byte of which the payload consists, if the payload is in private memory.
    private: Option<u8>,
}

struct Bed {
    memory: offramp_testkit::GuestMemory,
    driver: Virtqueue,
    is_packed: bool,
    payloads: Vec<u64>,
    /// The byte of which each payload in the guest's memory consists.
    byte: u8,
    asks: Sender<QueueState>,
    queue: Option<VhostQueue>,
    /// The answer to the frontend's request to stop the ring.
    stopping: Option<mpsc::Receiver<Option<u32>>>,
    /// The base of the stopped ring.
    base: Option<u32>,
    current: Option<Current>,
    fetched: usize,
    returned: usize,
}

impl Bed {
    fn new(is_packed: bool) -> Self {
        let memory = offramp_testkit::GuestMemory::contiguous(MEMORY_LEN);
        let mut driver = Virtqueue::new(&memory, is_packed, RING, RingOptions::default());
        let payloads = (0..FRAMES).map(|number| add_frame(&memory, &mut driver, number)).collect();
        driver.publish();
        let (asks, inbox) = mailbox().unwrap();
        let mut state = QueueState::new(Arc::new(QueueCounters::default()));
        state.set_features(FEATURES);
        state.set_memory(Arc::new(mapped(&memory)));
        state.set_enabled(Side::Transmit, true);
        let queue = Some(VhostQueue::new(0, inbox, state, HEADERS_LEN + PAYLOAD_LEN));
        let base = if is_packed { 0x8000_8000 } else { 0 };
        let mut bed = Self {
            memory,
            driver,
            is_packed,
            payloads,
            byte: 0,
            asks,
            queue,
            stopping: None,
            base: Some(base),
            current: None,
            fetched: 0,
            returned: 0,
        };
        bed.step(Step::Start);
        bed
    }

    fn queue(&mut self) -> &mut VhostQueue {
        self.queue.as_mut().unwrap()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Next => {
                self.current = None;
                if self.queue().tx_next(0).unwrap() {
                    self.current = Some(Current { number: self.fetched, private: None });
                    self.fetched += 1;
                }
            }
            Step::Gather => {
                let is_private = self.queue().tx_frame().shared().is_empty();
                assert!(is_private);
            }
            Step::Flush => self.queue().rx_flush(0),
            Step::Publish => {
                self.current = None;
                self.queue().publish_sent();
            }
            Step::Sleep => {
                self.queue().arm();
                assert!(self.queue().state.kept.is_none(), "the port sleeps with the guest's chain");
                self.queue().disarm();
            }
            Step::Hold => {
                self.current = None;
                self.queue().tx_hold();
            }
            Step::Stop if self.stopping.is_none() && self.base.is_none() => {
                self.stopping = Some(self.asks.ask(|state| state.stop(Side::Transmit)).unwrap());
            }
            Step::Start => {
                if let Some(base) = self.base.take() {
                    let start = self.start_at(base);
                    drop(self.asks.ask(|state| state.start(Side::Transmit, start).unwrap()).unwrap());
                }
            }
            Step::Overwrite => {
                self.byte += 1;
                self.payloads.iter().for_each(|at| self.memory.fill(*at, PAYLOAD_LEN, self.byte));
            }
            Step::Stop => {}
        }
        if let Some(answer) = self.stopping.as_ref().and_then(|stopping| stopping.try_recv().ok()) {
            self.stopping = None;
            self.base = Some(answer.expect("a ring that ran"));
        }
    }

    fn start_at(&self, base: u32) -> Start {
        let addresses = self.driver.addresses();
        let features = if self.is_packed { FEATURES | features::RING_PACKED } else { FEATURES };
        let place = RingPlace {
            size: RING,
            descriptors: addresses.descriptors,
            driver: addresses.driver,
            device: addresses.device,
        };
        Start { features, place, base, kick: None, is_logged: false, inflight: None }
    }

    /// Checks the current frame's bytes, and the chains that the port has returned to the guest.
    fn check(&mut self) {
        while self.driver.take_used().is_some() {
            self.returned += 1;
        }
        assert!(self.returned <= self.fetched);
        let Some(Current { number, private }) = &mut self.current else { return };
        let frame = self.queue.as_mut().unwrap().tx_lend();
        let is_private = frame.shared().is_empty();
        assert!(is_private || self.base.is_none(), "the port reads the memory of a ring that has stopped");
        assert!(is_private || self.returned < self.fetched, "the guest has a chain that is still read");
        if is_private {
            private.get_or_insert(self.byte);
        }
        assert_eq!(frame.bytes()[ID_AT..ID_AT + 2], (*number as u16).to_be_bytes());
        let mut payload = frame.bytes()[HEADERS_LEN..].to_vec();
        // The front of the payload was copied when the frame was fetched.
        let front_len = super::transmit::FRONT_LEN - HEADERS_LEN;
        for piece in frame.shared() {
            let from = payload.len();
            payload.resize(from + piece.len(), 0xff);
            piece.copy_and_sum(&mut payload[from..]);
        }
        assert_eq!(payload.len(), PAYLOAD_LEN);
        let expected = private.unwrap_or(self.byte);
        assert!(payload[front_len..].iter().all(|byte| *byte == expected), "the payload is not that of {number}");
    }
}

/// Makes a super-frame available in two buffers. Returns the address of its payload.
fn add_frame(memory: &offramp_testkit::GuestMemory, driver: &mut Virtqueue, number: usize) -> u64 {
    let mut head = vec![0; NET_HEADER_LEN + HEADERS_LEN];
    // NEEDS_CSUM, TCPv4; header length, segment size, start and offset of the checksum.
    head[..10].copy_from_slice(&[1, 1, HEADERS_LEN as u8, 0, 0xe8, 3, 34, 0, 16, 0]);
    let frame = &mut head[NET_HEADER_LEN..];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    let packet_len = (HEADERS_LEN - 14 + PAYLOAD_LEN) as u16;
    frame[14..16].copy_from_slice(&[0x45, 0]);
    frame[16..18].copy_from_slice(&packet_len.to_be_bytes());
    frame[ID_AT..ID_AT + 2].copy_from_slice(&(number as u16).to_be_bytes());
    frame[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    let at = memory.alloc(head.len() as u64, 64);
    memory.write(at, &head);
    let payload = memory.alloc(PAYLOAD_LEN as u64, 64);
    memory.fill(payload, PAYLOAD_LEN, 0);
    let buffers = [Buffer::readable(at, head.len()), Buffer::readable(payload, PAYLOAD_LEN)];
    driver.add(&buffers, &[]).expect("room in the ring");
    payload
}

fn mapped(memory: &offramp_testkit::GuestMemory) -> GuestMemory {
    let file = memory.regions()[0].fd().try_clone_to_owned().unwrap();
    let extent = Extent { guest: 0, user: 0, len: MEMORY_LEN, file_offset: 0 };
    GuestMemory::map(&[(extent, File::from(file))], u64::MAX, &Arc::new(EventFd::new().unwrap())).unwrap()
}

#[test]
fn every_fetched_chain_is_returned_once_and_not_before_its_payload_was_read() {
    let mut kept = 0;
    for is_packed in [false, true] {
        for sequence in 0..ALL.len().pow(STEPS) {
            let steps = (0..STEPS).map(|n| ALL[sequence / ALL.len().pow(n) % ALL.len()]);
            let mut bed = Bed::new(is_packed);
            for step in std::iter::once(Step::Next).chain(steps) {
                bed.step(step);
                bed.check();
                kept += usize::from(bed.queue().state.kept.is_some());
            }
            bed.queue = None;
            bed.current = None;
            bed.check();
            assert_eq!(bed.returned, bed.fetched, "packed: {is_packed}, sequence {sequence}");
        }
    }
    assert!(kept > 0, "no payload stayed in the guest's memory");
}
