//! Tests of live migration: a guest under traffic moves from one port to another, with a copy of its memory.
//!
//! The test does the monitor's work, like QEMU's `migration/ram.c`. The test copies all pages while the guest runs,
//! then repeatedly the pages written since the previous copy. The last pages are copied after the rings were stopped.
//! The test records the guest's writes itself, and gets the device's writes only from the dirty log. `OFFRAMP_VECTORS`
//! sets the number of moving guests.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::vhost_common::packet::{Checksum, Packet, pattern};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, carry, check_received, frame, log_writes, rng, wait_until};
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::stats::Direction;
use offramp_offload::caps::Offloads;
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{DirtyLog, VringAddr};
use offramp_testkit::memory::PAGE_LEN;
use offramp_testkit::ring::RingAddresses;
use offramp_testkit::vnet::{GSO_TCPV4, NEEDS_CSUM};
use offramp_testkit::{DataPlacement, Guest, GuestMemory, HeaderPlacement, RegionSpec, TxLayout, TxQueue, VnetHeader};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Default number of moving guests; `OFFRAMP_VECTORS` overrides this number.
const GUESTS_DEFAULT: u64 = 20;
const MTU: usize = 1500;
const MSS: usize = 1448;
/// Maximum number of segments in a transmitted super-frame.
const SEGMENTS_MAX: usize = 12;
/// Memory of the moving guest, small enough for repeated comparison.
const MEMORY: [RegionSpec; 2] = [
    RegionSpec { guest_addr: 0x10_0000, len: 4 << 20, file_offset: 0 },
    RegionSpec { guest_addr: 0x80_0000, len: 8 << 20, file_offset: 0x3000 },
];
/// Byte value of unwritten memory: not 0, because the device writes 0 before it uses a buffer.
const UNTOUCHED: u8 = 0xee;
const SENDS: u64 = features::CSUM | features::HOST_TSO4;
const RECEIVES: u64 = features::GUEST_CSUM | features::GUEST_TSO4;
/// Length of a buffer for a wire frame, and for any coalesced frame, in bytes.
const BUFFER_LEN: usize = 12 + 14 + MTU;
const BUFFER_LEN_MAX: usize = 12 + 65_535 + 14;
/// TCP sequence number of a stream's first byte, chosen so that the numbers wrap around.
const FIRST_SEQ: u32 = 0xffff_8000;
/// Offset of a frame's number, and offset of its pattern.
const NUMBER_AT: usize = 14;
const PATTERN_AT: usize = 18;
/// Offset of the TCP sequence number, and offset of the payload.
const SEQ_AT: usize = 38;
const PAYLOAD_AT: usize = 54;
/// Index of the staying guest, and index of the moving guest.
const STAYS: usize = 0;
const MOVES: usize = 1;
/// Maximum number of traffic steps before the log is on, between two passes over the memory, and after the move.
const STEPS_MAX: u32 = 12;
/// Maximum number of passes over written pages while the guest runs.
const PASSES_MAX: u32 = 4;

/// Progress of one direction: the number of numbered frames, and of bytes in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    frames: u32,
    bytes: u32,
}

/// The frames from one guest to the other on a queue pair.
#[derive(Debug, Default)]
struct Flow {
    sent: Mark,
    received: Mark,
    /// IPv4 ID of the next segment.
    id: u16,
    /// Progress of the flow after each transmitted chain.
    chains: Vec<Mark>,
    /// For each chain not yet received: the progress after the chain, and its number of wire frames.
    under_way: VecDeque<(Mark, usize)>,
}

impl Flow {
    /// Stages a frame if the ring has room, and at most `room` wire frames would be in flight.
    fn send(&mut self, tx: &mut TxQueue, room: usize, may_segment: bool, rng: &mut ChaCha8Rng) {
        let mut next = self.sent;
        let (header, frame, frames) = if rng.random_bool(0.4) {
            let mut frame = frame(rng, PATTERN_AT);
            frame[NUMBER_AT..].copy_from_slice(&next.frames.to_le_bytes());
            frame.extend(pattern(next.frames, rng.random_range(42..MTU - 4)));
            next.frames += 1;
            (VnetHeader::default(), frame, 1)
        } else {
            let is_long = may_segment && rng.random_bool(0.4);
            let len = if is_long { rng.random_range(MSS + 1..=SEGMENTS_MAX * MSS) } else { rng.random_range(1..=MSS) };
            let seq = FIRST_SEQ.wrapping_add(next.bytes);
            let checksum = if is_long { Checksum::Partial } else { Checksum::Full };
            let packet = Packet { seq, id: self.id, payload: pattern(seq, len), checksum, ..Packet::tcp(0) };
            next.bytes += len as u32;
            let header = if is_long { large_send(&packet) } else { VnetHeader::default() };
            (header, packet.build(), len.div_ceil(MSS))
        };
        let under_way: usize = self.under_way.iter().map(|(_, frames)| frames).sum();
        if under_way + frames <= room && tx.stage(&header, &[&frame]).is_some() {
            self.id = self.id.wrapping_add(frames as u16);
            self.sent = next;
            self.chains.push(next);
            self.under_way.push_back((next, frames));
        }
    }

    /// Checks that a received frame is the next frame of its kind, with the correct bytes.
    fn take(&mut self, frame: &[u8]) {
        let now = &mut self.received;
        if frame[12..14] == [8, 0] {
            let seq = u32::from_be_bytes(*frame[SEQ_AT..].first_chunk().unwrap());
            assert_eq!(seq, FIRST_SEQ.wrapping_add(now.bytes), "a segment is lost, doubled or out of order");
            let payload = &frame[PAYLOAD_AT..];
            assert!(payload == pattern(seq, payload.len()), "other bytes at sequence number {seq}");
            now.bytes += payload.len() as u32;
        } else {
            let number = u32::from_le_bytes(*frame[NUMBER_AT..].first_chunk().unwrap());
            assert_eq!(number, now.frames, "a frame is lost, doubled or out of order");
            assert!(frame[PATTERN_AT..] == pattern(number, frame.len() - PATTERN_AT), "other bytes in frame {number}");
            now.frames += 1;
        }
        let has_come = |mark: &Mark| mark.frames <= now.frames && mark.bytes <= now.bytes;
        while self.under_way.pop_front_if(|(mark, _)| has_come(mark)).is_some() {}
    }

    /// Returns the number of wire frames that were sent but not received.
    fn missing(&self) -> u64 {
        let mut before = self.received;
        let missing = self.under_way.iter().map(|(mark, _)| {
            let frames = mark.frames.saturating_sub(before.frames);
            let segments = mark.bytes.saturating_sub(before.bytes).div_ceil(MSS as u32);
            before = Mark { frames: before.frames.max(mark.frames), bytes: before.bytes.max(mark.bytes) };
            u64::from(frames + segments)
        });
        missing.sum()
    }

    /// Forgets the frames that were sent but did not arrive. The flow continues after the last received frame.
    fn go_on_from_received(&mut self) {
        self.sent = self.received;
        self.under_way.clear();
    }
}

/// Returns the header of a super-frame.
fn large_send(packet: &Packet) -> VnetHeader {
    VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: packet.payload_start() as u16,
        gso_size: MSS as u16,
        csum_start: packet.transport_start() as u16,
        csum_offset: packet.checksum_offset() as u16,
        num_buffers: 0,
    }
}

/// The setup of a guest.
#[derive(Clone, Copy, Debug)]
struct Setup {
    case: Case,
    queue_size: u16,
    pairs: u16,
    sends: bool,
    receives: bool,
    interrupts: bool,
    /// Lengths of the buffers in a receive chain, which together hold a frame.
    buffer_lens: &'static [usize],
}

impl Setup {
    fn random(rng: &mut ChaCha8Rng, pairs: u16) -> Self {
        let cases: Vec<_> = Case::all().collect();
        let case = cases[rng.random_range(0..cases.len())];
        let sizes = if case.packed { [65, 100, 256] } else { [64, 128, 256] };
        let queue_size = sizes[rng.random_range(0..sizes.len())];
        let [sends, receives, interrupts] = rng.random();
        let buffer_lens: &[usize] = match (case.mergeable, receives) {
            (false, true) => &[BUFFER_LEN_MAX],
            _ if rng.random() => &[BUFFER_LEN],
            _ => &[400, BUFFER_LEN - 400],
        };
        Self { case, queue_size, pairs, sends, receives, interrupts, buffer_lens }
    }

    fn guest(&self) -> offramp_testkit::GuestBuilder {
        let features = if self.sends { SENDS } else { 0 } | if self.receives { RECEIVES } else { 0 };
        let protocol = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS | protocol::LOG_SHMFD;
        let guest = self.case.guest().queue_size(self.queue_size).queue_pairs(self.pairs).features(features);
        guest.interrupts(self.interrupts).protocol_features(protocol)
    }

    /// Posts receive buffers, the same number each time. Returns the number of wire frames that fit on each pair.
    fn fill(&self, guest: &mut Guest) -> usize {
        let lens = self.buffer_lens;
        let chains = if lens[0] == BUFFER_LEN_MAX { 8 } else { usize::from(self.queue_size) / 2 / lens.len() };
        for pair in 0..guest.pairs() {
            assert_eq!(guest.rx(pair).fill_chains(chains, lens), chains);
        }
        chains
    }

    fn random_layout(&self, rng: &mut ChaCha8Rng) -> TxLayout {
        let headers = [HeaderPlacement::Own, HeaderPlacement::WithData, HeaderPlacement::Split(3)];
        let data = [DataPlacement::OneBuffer, DataPlacement::Scattered(rng.random_range(2..=6))];
        TxLayout {
            header: headers[rng.random_range(0..headers.len())],
            data: data[rng.random_range(0..data.len())],
            indirect: self.case.indirect && rng.random(),
        }
    }
}

/// Both guests, and the frames in flight between them.
struct Traffic {
    rng: ChaCha8Rng,
    setups: [Setup; 2],
    guests: [Guest; 2],
    /// Number of wire frames that fit into each guest's buffers, per pair.
    room: [usize; 2],
    /// For each pair, the flow of each side.
    flows: Vec<[Flow; 2]>,
}

impl Traffic {
    /// Returns whether a guest has received all frames sent to it.
    fn is_received_by(&self, side: usize) -> bool {
        self.flows.iter().all(|flows| flows[1 - side].under_way.is_empty())
    }

    fn steps(&mut self, rig: &Rig) {
        for _ in 0..self.rng.random_range(0..=STEPS_MAX) {
            let side = self.rng.random_range(0..2);
            match self.rng.random_range(0..8) {
                0..4 => self.send(side),
                4..7 => self.receive(side),
                _ => self.switch(rig, side),
            }
        }
    }

    /// Sends a burst of frames from one guest.
    fn send(&mut self, side: usize) {
        let (rng, setup) = (&mut self.rng, self.setups[side]);
        let pair = rng.random_range(0..self.flows.len());
        let tx = self.guests[side].tx(pair);
        for _ in 0..rng.random_range(1..=8) {
            tx.set_layout(setup.random_layout(rng));
            self.flows[pair][side].send(tx, self.room[1 - side], setup.sends, rng);
        }
        tx.publish();
    }

    fn receive(&mut self, side: usize) {
        let is_mergeable = self.setups[side].case.mergeable;
        for (pair, flows) in self.flows.iter_mut().enumerate() {
            while let Some(received) = self.guests[side].rx(pair).try_recv() {
                check_received(&received, is_mergeable, &self.setups[side]);
                flows[1 - side].take(&received.frame);
            }
        }
    }

    /// Changes a random setting of the adapter.
    fn switch(&mut self, rig: &Rig, side: usize) {
        let control = &rig.controls[side];
        if self.rng.random() {
            control.set_offloads(Offloads::from_bits_truncate(self.rng.random()).with_prerequisites());
        } else {
            let coalescing = Coalescing { max_usecs: self.rng.random_range(0..200), max_packets: 16 };
            let policy = [Policy::Off, Policy::Coalescing(coalescing)][self.rng.random_range(0..2)];
            control.set_moderation(ModerationConfig { policy, ..ModerationConfig::default() });
        }
    }

    /// Receives until `is_done`.
    fn receive_until(&mut self, side: usize, what: &str, is_done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.receive(side);
            if is_done(self) {
                return;
            }
            assert!(Instant::now() < end, "waited in vain for {what}: {:?}", self.flows);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns the progress of the moving guest's flows, as shown by the device's used chains.
    fn used(&mut self) -> Vec<Mark> {
        let guest = &mut self.guests[MOVES];
        let used = self.flows.iter().enumerate().map(|(pair, flows)| {
            let chains = &flows[MOVES].chains;
            let seen = guest.tx(pair).ring().snoop_used().len();
            let used = chains.len() + seen - guest.tx(pair).in_flight();
            used.checked_sub(1).map_or(Mark::default(), |last| chains[last])
        });
        used.collect()
    }
}

/// A migration in progress: the dirty log, and the copy of the memory.
struct Migration {
    log: DirtyLog,
    copy: GuestMemory,
}

impl Migration {
    /// Makes the device log its writes, and copies the whole memory.
    fn begin(guest: &mut Guest) -> Self {
        let rings = rings(guest);
        let log = log_writes(guest, &rings);
        let memory = guest.memory();
        memory.take_written();
        let copy = memory.new_alike();
        pages().for_each(|page| copy.copy_page(memory, page));
        Self { log, copy }
    }

    /// Copies the pages written since the last pass.
    fn pass(&self, memory: &GuestMemory) {
        let written = self.log.take().into_iter().chain(memory.take_written());
        written.for_each(|page| self.copy.copy_page(memory, page));
    }

    /// Performs a random operation that a frontend is permitted at any time.
    fn disturb(&mut self, traffic: &mut Traffic) {
        let guest = &mut traffic.guests[MOVES];
        match traffic.rng.random_range(0..4) {
            // This operation restarts the rings: frames that arrive during the restart would find no buffer.
            0 if traffic.flows.iter().all(|flows| flows[STAYS].under_way.is_empty()) => {
                let memory = guest.memory().clone();
                guest.frontend().set_mem_table(&memory).unwrap();
            }
            1 => {
                let rings = rings(guest);
                let before = std::mem::replace(&mut self.log, log_writes(guest, &rings));
                let memory = guest.memory();
                before.take().into_iter().for_each(|page| self.copy.copy_page(memory, page));
            }
            _ => {}
        }
    }

    /// Returns the differing pages, each with its first different byte.
    fn differences(&self, memory: &GuestMemory) -> Vec<String> {
        let differing = pages().filter_map(|page| {
            let [new, old] = [memory, &self.copy].map(|memory| memory.read_vec(page, PAGE_LEN as usize));
            let at = new.iter().zip(&old).position(|(new, old)| new != old)?;
            Some(format!("{:#x}: {:#x} and not {:#x}", page + at as u64, new[at], old[at]))
        });
        differing.collect()
    }
}

fn pages() -> impl Iterator<Item = u64> {
    MEMORY.iter().flat_map(|region| (region.guest_addr..region.guest_addr + region.len).step_by(PAGE_LEN as usize))
}

fn rings(guest: &mut Guest) -> Vec<RingAddresses> {
    let pairs = 0..guest.pairs();
    pairs.flat_map(|pair| [guest.rx(pair).ring().addresses(), guest.tx(pair).ring().addresses()]).collect()
}

fn lost(rig: &Rig, side: usize) -> u64 {
    rig.received(side, Direction::lost_total)
}

#[test]
fn a_guest_moves_under_traffic_with_all_that_was_written_and_loses_no_frame() {
    let guests = std::env::var("OFFRAMP_VECTORS").map_or(GUESTS_DEFAULT, |text| text.parse().expect("a number"));
    let mut rng = rng();
    for guest in 0..guests {
        println!("guest {guest}");
        move_a_guest(ChaCha8Rng::from_rng(&mut rng));
    }
}

fn move_a_guest(mut rng: ChaCha8Rng) {
    let on_switch = rng.random_bool(0.3);
    // On a switch, the flow determines the pair.
    let pairs = if on_switch { 1 } else { rng.random_range(1..=2) };
    let config = RigConfig { on_switch, apart: rng.random(), ..RigConfig::mtu(MTU).queue_pairs(pairs) };
    let [source, destination] = [Rig::with(&config), Rig::with(&config)];
    let setups = [(); 2].map(|()| Setup::random(&mut rng, pairs));
    println!("{setups:?}, {}", if on_switch { "on a switch" } else { "on a cable" });
    let mut guests =
        [source.guest(STAYS, &setups[STAYS].guest()), source.guest(MOVES, &setups[MOVES].guest().memory(&MEMORY))];
    let memory = guests[MOVES].memory().clone();
    for (region, RegionSpec { guest_addr, len, .. }) in MEMORY.into_iter().enumerate() {
        let free = memory.alloc_in(region, 0, 1);
        memory.fill(free, (guest_addr + len - free) as usize, UNTOUCHED);
    }
    let room = [STAYS, MOVES].map(|side| setups[side].fill(&mut guests[side]));
    let flows = (0..pairs).map(|_| Default::default()).collect();
    let mut traffic = Traffic { rng, setups, guests, room, flows };

    traffic.steps(&source);
    let mut migration = Migration::begin(&mut traffic.guests[MOVES]);
    for _ in 0..traffic.rng.random_range(0..=PASSES_MAX) {
        traffic.steps(&source);
        migration.disturb(&mut traffic);
        migration.pass(&memory);
    }
    traffic.steps(&source);
    if traffic.rng.random() {
        traffic.receive_until(MOVES, "all frames before the stop", |traffic| traffic.is_received_by(MOVES));
    }
    if traffic.rng.random() {
        // QEMU 7.2 resets the device status before it stops the rings.
        traffic.guests[MOVES].frontend().set_status(0).unwrap();
    }
    let bases = traffic.guests[MOVES].stop().expect("stopping the rings");
    migration.pass(&memory);
    traffic.send(STAYS);
    let used = traffic.used();
    traffic.receive_until(STAYS, "what the source took", |traffic| {
        traffic.flows.iter().zip(&used).all(|(flows, used)| flows[MOVES].received == *used)
    });
    traffic.receive(MOVES);
    let missing: u64 = traffic.flows.iter().map(|flows| flows[STAYS].missing()).sum();
    wait_until("what came after the stop to be counted", || lost(&source, MOVES) == missing);
    // The driver has posted buffers since the last pass.
    migration.pass(&memory);
    let differences = migration.differences(&memory);
    assert!(differences.is_empty(), "written and not marked: {differences:#?}");

    let Migration { copy, .. } = migration;
    traffic.flows.iter_mut().for_each(|flows| flows[STAYS].go_on_from_received());
    traffic.guests[STAYS] = destination.guest(STAYS, &setups[STAYS].guest());
    traffic.room[STAYS] = setups[STAYS].fill(&mut traffic.guests[STAYS]);
    traffic.guests[MOVES].move_to(copy, destination.socket(MOVES), &bases).expect("starting the destination");
    traffic.steps(&destination);
    // Moved rings continue, including rings without earlier traffic.
    for side in [STAYS, MOVES] {
        traffic.send(side);
    }
    for side in [STAYS, MOVES] {
        traffic.receive_until(side, "all frames after the move", |traffic| traffic.is_received_by(side));
        (0..traffic.flows.len()).for_each(|pair| traffic.guests[side].tx(pair).drain(PATIENCE));
    }
    for rig in [&source, &destination] {
        assert!(rig.is_running());
        let bad = [STAYS, MOVES].map(|side| rig.bad_chains(side) + rig.broken_rings(side));
        assert_eq!(bad, [0, 0], "bad chains and broken rings");
    }
    assert_eq!([lost(&source, STAYS), lost(&destination, STAYS), lost(&destination, MOVES)], [0; 3], "lost frames");
}

#[test]
fn a_log_is_left_alone_once_the_migration_is_cancelled() {
    let mut rng = rng();
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(MTU));
        let builder = case.guest().protocol_features(protocol::REPLY_ACK | protocol::LOG_SHMFD);
        let [mut a, mut b] = rig.guests(&builder);
        for guest in [&mut a, &mut b] {
            guest.rx(0).fill(16, BUFFER_LEN);
        }
        let rings = rings(&mut b);
        let log = log_writes(&mut b, &rings);
        carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
        assert!(log.dirty_pages() > 0, "{case:?}");
        // Clear the feature, as QEMU does after a cancelled migration. Without the feature, QEMU no longer reads the
        // log.
        let (memory, negotiated) = (b.memory().clone(), b.negotiated().features);
        b.frontend().set_features(negotiated).unwrap();
        for (index, ring) in rings.iter().enumerate() {
            b.frontend().set_vring_addr(&VringAddr::new(&memory, index as u32, *ring)).unwrap();
        }
        log.clear();
        carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
        carry(&mut b, &mut a, 0, &frame(&mut rng, 60), &case);
        assert_eq!(log.dirty_pages(), 0, "{case:?}");
    }
}
