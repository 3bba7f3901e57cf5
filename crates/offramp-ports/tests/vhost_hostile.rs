//! Tests of attacks by a hostile guest or frontend on a vhost-user port. The attacks must be counted, must not affect
//! other guests, and must not cause a hang.
//!
//! On a cable, a test attacks pair 0 of a port with two pairs. After the attack, pair 1 must carry frames. On a switch,
//! a test attacks one port, and two other ports must carry frames. The worker that polls all ports must still run. The
//! numbers of attacks refer to the table in `docs/vhost-user.md`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::vhost_common::packet::{Checksum, Packet};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, Scratch, carry, cut, frame, rng, wait_until};
use nix::fcntl::{FcntlArg, OFlag};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::MsgFlags;
use offramp_adapter::stats::Loss;
use offramp_offload::frame::Frame;
use offramp_offload::meta::ChecksumState;
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{DirtyLog, FLAG_NEED_REPLY, FLAG_REPLY, Header, VERSION, request};
use offramp_testkit::ring::{DESC_AVAIL, DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_USED, DESC_WRITE};
use offramp_testkit::ring::{PackedDescriptor, SplitDescriptor, Virtqueue};
use offramp_testkit::vnet::{DATA_VALID, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM};
use offramp_testkit::{
    Buffer, Frontend, Guest, GuestBuilder, GuestMemory, HugePages, PeerError, RegionSpec, VnetHeader,
};
use rand::RngExt;

/// Number of descriptors in the attacked ring.
const RING: u16 = 64;
/// An address outside every guest's memory.
const NOWHERE: u64 = 0xdead_0000_0000;
/// All offload features that a frame's header can use.
const OFFLOADS: u64 = features::CSUM
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::HOST_USO
    | features::HOST_UFO
    | features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::GUEST_USO4
    | features::GUEST_USO6;

/// A descriptor of an attack. [`Raw::offer`] sets the flag `NEXT`.
#[derive(Clone, Copy, Debug)]
struct Desc {
    addr: u64,
    len: u32,
    flags: u16,
}

fn desc(addr: u64, len: u32) -> Desc {
    Desc { addr, len, flags: 0 }
}

/// Chains written directly into a ring that the test kit's driver no longer uses.
#[derive(Debug)]
struct Raw {
    next: u16,
    wrap: bool,
    sent: u16,
}

impl Raw {
    fn new() -> Self {
        Self { next: 0, wrap: true, sent: 0 }
    }

    /// Makes a chain available, with `NEXT` between its descriptors.
    fn offer(&mut self, ring: &mut Virtqueue, chain: &[Desc]) {
        let last = chain.len() - 1;
        match ring {
            Virtqueue::Split(split) => {
                for (at, desc) in chain.iter().enumerate() {
                    let flags = desc.flags | if at == last { 0 } else { DESC_NEXT };
                    let descriptor = SplitDescriptor { addr: desc.addr, len: desc.len, flags, next: at as u16 + 1 };
                    split.write_descriptor(at as u16, descriptor);
                }
                split.write_avail(self.sent, 0);
                self.sent += 1;
                split.set_avail_idx(self.sent);
            }
            Virtqueue::Packed(packed) => {
                for (at, desc) in chain.iter().enumerate().rev() {
                    let slot = self.next + at as u16;
                    let wrap = if slot < RING { self.wrap } else { !self.wrap };
                    let lap = if wrap { DESC_AVAIL } else { DESC_USED };
                    let flags = desc.flags | lap | if at == last { 0 } else { DESC_NEXT };
                    let descriptor = PackedDescriptor { addr: desc.addr, len: desc.len, id: 0, flags };
                    packed.write_descriptor(slot % RING, descriptor);
                }
            }
        }
    }

    /// Returns whether the device has used the last offered chain, which has `count` descriptors. If true, advances to
    /// the next chain.
    fn is_used(&mut self, ring: &mut Virtqueue, count: u16) -> bool {
        match ring {
            Virtqueue::Split(split) => split.used_idx() == self.sent,
            Virtqueue::Packed(packed) => {
                let flags = packed.read_descriptor(self.next).flags;
                let is_used = (flags & DESC_AVAIL != 0) == self.wrap && (flags & DESC_USED != 0) == self.wrap;
                if is_used {
                    self.next += count;
                    if self.next >= RING {
                        self.next -= RING;
                        self.wrap = !self.wrap;
                    }
                }
                is_used
            }
        }
    }
}

/// The network and the kind of memory of a hostile guest.
#[derive(Clone, Debug, Default)]
struct Place {
    on_switch: bool,
    pages: Option<Arc<HugePages>>,
}

/// Size of a guest's memory on huge pages, in bytes.
const HUGE_MEMORY_LEN: u64 = 32 << 20;

/// A hostile guest and its neighbours: pair 1 of both guests on a cable, or two other guests on a switch.
struct Attack {
    rig: Rig,
    a: Guest,
    b: Guest,
    c: Option<Guest>,
    case: Case,
    raw: Raw,
    /// Address of a header followed by a good frame, in the hostile guest's memory.
    good: u64,
    good_frame: Vec<u8>,
}

impl Attack {
    fn new(case: Case, offloads: u64) -> Self {
        Self::at(&Place::default(), case, offloads)
    }

    fn at(place: &Place, case: Case, offloads: u64) -> Self {
        let pairs = if place.on_switch { 1 } else { 2 };
        let rig = Rig::with(&RigConfig { on_switch: place.on_switch, ..RigConfig::mtu(1500).queue_pairs(pairs) });
        let builder = case.guest().queue_pairs(pairs).queue_size(RING).features(offloads);
        let builder = place.pages.as_ref().map_or(builder.clone(), |pages| {
            builder.memory(&[RegionSpec::new(0x4000_0000, HUGE_MEMORY_LEN)]).huge_pages(pages)
        });
        let [mut a, mut b] = rig.guests(&builder);
        let c = place.on_switch.then(|| rig.guest(2, &builder));
        for pair in 0..usize::from(pairs) {
            b.rx(pair).fill(60, 1526);
            a.rx(pair).fill(if pair == 0 { 0 } else { 60 }, 1526);
        }
        let good_frame = frame(&mut rng(), 100);
        let good = a.memory().alloc(4096, 64);
        a.memory().write(good + 12, &good_frame);
        Self { rig, a, b, c, case, raw: Raw::new(), good, good_frame }
    }

    fn good_chain(&self) -> Vec<Desc> {
        vec![desc(self.good, 12), desc(self.good + 12, 100)]
    }

    /// Sends one chain and waits until the chain is used.
    fn send(&mut self, chain: &[Desc], what: &str) {
        let tx = self.a.tx(0);
        self.raw.offer(tx.ring(), chain);
        tx.kick();
        let raw = &mut self.raw;
        wait_until(what, || raw.is_used(tx.ring(), chain.len() as u16));
    }

    fn lost(&self) -> u64 {
        self.rig.controls[0].queues()[0].transmit.lost_total()
    }

    /// Checks that a good frame passes through the attacked ring.
    fn goes_on(&mut self, what: &str) {
        self.send(&self.good_chain(), what);
        let received = self.b.rx(0).recv(PATIENCE);
        assert!(received.frame == self.good_frame, "{:?}: {what}", self.case);
    }

    /// Checks that no other guest is affected.
    fn others_go_on(&mut self, what: &str) {
        let frame = self.good_frame.clone();
        if let Some(c) = &mut self.c {
            c.rx(0).fill(60, 1526);
            // Frames from the hostile guest may fill all buffers of `b`.
            while self.b.rx(0).try_recv().is_some() {}
            // Further frames from the hostile guest may arrive first.
            let frame = [&[0xff; 6], &frame[6..]].concat();
            let send = |from: &mut Guest, to: &mut Guest| {
                from.tx(0).send(&VnetHeader::default(), &[&frame]);
                while to.rx(0).recv(PATIENCE).frame != frame {}
            };
            send(&mut self.b, c);
            send(c, &mut self.b);
        } else {
            carry(&mut self.a, &mut self.b, 1, &frame, &(self.case, what));
            carry(&mut self.b, &mut self.a, 1, &frame, &(self.case, what));
        }
        assert!(self.rig.is_running(), "{what}");
    }
}

/// Returns each of `kinds` with a cable. In addition, returns one split and one packed kind with a switch, and with
/// huge pages.
fn everywhere(kinds: impl Iterator<Item = Case>) -> impl Iterator<Item = (Case, Place)> {
    let kinds: Vec<Case> = kinds.collect();
    let layout = |packed| kinds.iter().copied().find(|case| case.packed == packed && case.event_idx);
    let layouts: Vec<Case> = [false, true].into_iter().filter_map(layout).collect();
    let at = |cases: Vec<Case>, on_switch, pages: Option<Arc<HugePages>>| {
        cases.into_iter().map(move |case| (case, Place { on_switch, pages: pages.clone() }))
    };
    let ordinary = at(kinds.clone(), false, None).chain(at(layouts.clone(), true, None));
    // Reserve huge pages only while in use: only one test at a time can have huge pages.
    let pages = std::iter::once_with(|| HugePages::reserve(3 * HUGE_MEMORY_LEN / (2 << 20)).map(Arc::new)).flatten();
    let huge = pages.flat_map(move |pages| {
        let layouts = layouts.clone();
        [false, true].into_iter().flat_map(move |on_switch| at(layouts.clone(), on_switch, Some(Arc::clone(&pages))))
    });
    ordinary.chain(huge).inspect(|(case, place)| println!("{case:?} {place:?}"))
}

fn every_kind() -> impl Iterator<Item = Case> {
    Case::all().filter(|case| case.mergeable && !case.in_order)
}

#[test]
fn bad_chains_are_counted_and_the_ring_goes_on() {
    // Covers attacks 2, 5, 6, 7 and 8.
    for (case, place) in everywhere(every_kind()) {
        let mut attack = Attack::at(&place, case, 0);
        let memory = attack.a.memory().clone();
        let region = &memory.regions()[0];
        let end = region.guest_addr() + region.len();
        let table = memory.alloc(64 * DESC_LEN, DESC_LEN);
        let (good, write) = (attack.good, |desc: Desc| Desc { flags: DESC_WRITE, ..desc });
        let indirect = |addr, len| Desc { addr, len, flags: DESC_INDIRECT };
        // An indirect table whose only entry is an indirect table.
        SplitDescriptor { addr: table + 32, len: 16, flags: DESC_INDIRECT, next: 0 }.write(&memory, table);
        let nested_packed = PackedDescriptor { addr: table + 32, len: 16, id: 0, flags: DESC_INDIRECT };
        if case.packed {
            nested_packed.write(&memory, table);
        }
        let chains: Vec<(&str, Vec<Desc>)> = vec![
            ("unmapped", vec![desc(NOWHERE, 112)]),
            ("unmapped behind a good header", vec![desc(good, 12), desc(NOWHERE, 100)]),
            ("wraps around", vec![desc(good, 12), desc(u64::MAX - 5, 100)]),
            ("wraps around to the first byte", vec![desc(u64::MAX, 1), desc(good, 12)]),
            ("past the end of memory", vec![desc(good, 12), desc(end - 50, 100)]),
            ("the first byte behind memory", vec![desc(good, 12), desc(end, 1)]),
            ("below memory", vec![desc(good, 12), desc(region.guest_addr() - 1, 100)]),
            ("4 GiB", vec![desc(good, 12), desc(good, u32::MAX)]),
            ("no bytes", vec![desc(good, 0)]),
            ("no bytes twice", vec![desc(good, 0), desc(NOWHERE, 0)]),
            ("shorter than the header", vec![desc(good, 11)]),
            ("the header alone", vec![desc(good, 12)]),
            ("the header alone in bytes", (0..12).map(|at| desc(good + at, 1)).collect()),
            ("a frame of one byte", vec![desc(good, 13)]),
            ("a frame of 13 bytes", vec![desc(good, 12), desc(good + 12, 13)]),
            ("more than the longest frame", vec![desc(good, 12), desc(region.guest_addr(), 65_559)]),
            ("a megabyte", vec![desc(good, 12), desc(region.guest_addr(), 1 << 20)]),
            ("writable", vec![write(desc(good, 112))]),
            ("writable behind readable", vec![desc(good, 12), write(desc(good + 12, 100))]),
            ("writable before readable", vec![write(desc(good, 12)), desc(good + 12, 100)]),
            ("a table in a table", vec![indirect(table, 16)]),
            ("a table of no bytes", vec![indirect(table, 0)]),
            ("a table of 17 bytes", vec![indirect(table, 17)]),
            ("a table of 15 bytes", vec![indirect(table, 15)]),
            ("a table of more than 64 Ki entries", vec![indirect(region.guest_addr(), 16 * 65_537)]),
            ("a table nowhere", vec![indirect(NOWHERE, 32)]),
            ("a table past the end", vec![indirect(end - 16, 32)]),
            ("a table at an odd address", vec![indirect(table + 1, 32)]),
            ("a table, and a descriptor after it", vec![indirect(table, 32), desc(good, 100)]),
        ];
        for (what, chain) in chains {
            let before = attack.lost();
            attack.send(&chain, what);
            let counted = attack.lost();
            assert_eq!(counted, before + 1, "{case:?}: {what}");
            attack.goes_on(what);
            assert_eq!(attack.lost(), counted, "{case:?}: {what}");
        }
        assert!(attack.rig.bad_chains(0) >= 15, "{case:?}: {}", attack.rig.bad_chains(0));
        assert_eq!(attack.rig.broken_rings(0), 0, "{case:?}");
        attack.others_go_on("bad chains");
    }
}

#[test]
fn chains_of_a_split_ring_without_end_are_bad_chains() {
    // Covers attacks 1 and 4.
    for (case, place) in everywhere(every_kind().filter(|case| !case.packed)) {
        let mut attack = Attack::at(&place, case, 0);
        let good = attack.good;
        let descriptor = |next| SplitDescriptor { addr: good, len: 20, flags: DESC_NEXT, next };
        let table = attack.a.memory().alloc(4 * DESC_LEN, DESC_LEN);
        let last_of_all = |index: u16| if index + 1 == RING { 0 } else { index + 1 };
        let attacks: Vec<(&str, Vec<(u16, SplitDescriptor)>)> = vec![
            ("points to itself", vec![(0, descriptor(0))]),
            ("a cycle of two", vec![(0, descriptor(1)), (1, descriptor(0))]),
            ("a cycle of all", (0..RING).map(|index| (index, descriptor(last_of_all(index)))).collect()),
            ("next is the size", vec![(0, descriptor(RING))]),
            ("next is 65535", vec![(0, descriptor(u16::MAX))]),
            ("a table's cycle", vec![(0, SplitDescriptor { addr: table, len: 32, flags: DESC_INDIRECT, next: 0 })]),
        ];
        for entry in 0..2 {
            descriptor(1 - entry).write(attack.a.memory(), table + u64::from(entry) * DESC_LEN);
        }
        for (what, descriptors) in attacks {
            let before = attack.lost();
            let tx = attack.a.tx(0);
            let ring = tx.ring().split();
            for (index, descriptor) in descriptors {
                ring.write_descriptor(index, descriptor);
            }
            ring.write_avail(attack.raw.sent, 0);
            attack.raw.sent += 1;
            ring.set_avail_idx(attack.raw.sent);
            tx.kick();
            let raw = &mut attack.raw;
            wait_until(what, || raw.is_used(tx.ring(), 1));
            assert_eq!(attack.lost(), before + 1, "{case:?}: {what}");
            attack.goes_on(what);
        }
        attack.others_go_on("endless chains");
    }
}

/// Waits until the port has stopped the ring, checks the report to the driver, and starts the ring again.
fn expect_broken(mut attack: Attack, what: &str) {
    attack.a.tx(0).kick();
    let rig = &attack.rig;
    wait_until(what, || rig.broken_rings(0) == 1);
    let case = attack.case;
    let a = &mut attack.a;
    wait_until("an error on the descriptor for errors", || a.tx(0).signals().errors == 1);
    attack.others_go_on(what);
    // After a new setup, the ring works as before.
    attack.a.stop().unwrap();
    attack.a.reset_rings();
    attack.a.start().unwrap();
    if attack.c.is_none() {
        attack.a.rx(1).fill(60, 1526);
    }
    let frame = attack.good_frame.clone();
    carry(&mut attack.a, &mut attack.b, 0, &frame, &(case, what));
    attack.others_go_on(what);
    assert_eq!(attack.rig.broken_rings(0), 1, "{case:?}: {what}");
}

#[test]
fn a_split_ring_whose_indices_make_no_sense_stops_until_it_is_set_up_again() {
    // Covers attacks 3 and 4.
    for (case, place) in everywhere(every_kind().filter(|case| !case.packed)) {
        for (what, idx, head) in [
            ("the index jumps past the ring", RING + 1, 0),
            ("the index jumps by half of its range", 0x8000, 0),
            ("the index goes back", u16::MAX, 0),
            ("a head as large as the ring", 1, RING),
            ("a head of 65535", 1, u16::MAX),
        ] {
            let mut attack = Attack::at(&place, case, 0);
            let ring = attack.a.tx(0).ring().split();
            ring.write_avail(0, head);
            ring.set_avail_idx(idx);
            expect_broken(attack, what);
        }
    }
}

#[test]
fn a_packed_ring_whose_chain_cannot_be_given_back_stops_until_it_is_set_up_again() {
    // Covers attacks 1 and 4.
    for (case, place) in everywhere(every_kind().filter(|case| case.packed)) {
        let mut attack = Attack::at(&place, case, 0);
        let good = attack.good;
        let ring = attack.a.tx(0).ring().packed();
        for slot in (0..RING).rev() {
            let flags = DESC_AVAIL | DESC_NEXT;
            ring.write_descriptor(slot, PackedDescriptor { addr: good, len: 20, id: 0, flags });
        }
        expect_broken(attack, "a chain longer than the ring");

        let mut attack = Attack::at(&place, case, 0);
        let descriptor = PackedDescriptor { addr: attack.good, len: 112, id: RING, flags: DESC_AVAIL };
        attack.a.tx(0).ring().packed().write_descriptor(0, descriptor);
        expect_broken(attack, "an ID as large as the ring");
    }
}

#[test]
fn a_receive_buffer_that_lies_on_a_ring_spoils_that_ring_alone() {
    // CVE-2023-3019 (QEMU's e1000e): a device that writes a frame to its own registers processes the frame again. A
    // port has no registers in guest memory, and reads only rings from guest memory.
    for case in every_kind() {
        for side in 0..6 {
            let mut attack = Attack::new(case, 0);
            let [of_rx, of_tx] = [attack.a.rx(0).ring().addresses(), attack.a.tx(0).ring().addresses()]
                .map(|at| [at.descriptors, at.driver, at.device]);
            let at = [of_rx, of_tx].concat()[side];
            // The event areas of a packed ring are shorter than any frame.
            if case.packed && side % 3 != 0 {
                continue;
            }
            offer_rx(&mut attack, 0, &[Desc { addr: at, len: 112, flags: DESC_WRITE }]);
            let frame = attack.good_frame.clone();
            attack.b.tx(0).send(&VnetHeader::default(), &[&frame]);
            attack.b.tx(0).drain(PATIENCE);
            // After delivery, the port overwrites the frame's first bytes with a used descriptor or a used-ring entry.
            wait_until("the frame is on the ring", || attack.a.memory().read_vec(at + 16, 96) == frame[4..]);
            // The kick makes the port read the bytes of the frame as ring contents.
            attack.a.tx(0).kick();
            attack.b.tx(0).send(&VnetHeader::default(), &[&frame]);
            attack.b.tx(0).drain(PATIENCE);
            attack.others_go_on("a frame on a ring");
            attack.a.stop().unwrap();
            attack.a.reset_rings();
            attack.a.start().unwrap();
            attack.a.rx(1).fill(60, 1526);
            carry(&mut attack.a, &mut attack.b, 0, &frame, &(case, side));
        }
    }
}

#[test]
fn bad_receive_chains_go_back_unused_and_are_no_part_of_a_frame() {
    // Covers attacks 5, 7 and 9.
    for (case, place) in everywhere(every_kind()) {
        let write = |addr, len| Desc { addr, len, flags: DESC_WRITE };
        // All guests have the same memory layout, so the same address is free in each guest.
        let good = Attack::at(&place, case, 0).a.memory().alloc(4096, 64);
        for (what, bad) in [
            ("unmapped", vec![write(NOWHERE, 1526)]),
            ("readable", vec![desc(good, 1526)]),
            ("no bytes", vec![write(good, 0)]),
            ("readable behind writable", vec![write(good, 500), desc(good + 500, 500)]),
            ("a table nowhere", vec![Desc { addr: NOWHERE, len: 16, flags: DESC_INDIRECT | DESC_WRITE }]),
        ] {
            // Place a bad chain before a frame's chains, and between these chains.
            for chains in [vec![&bad[..], &[write(good, 600)]], vec![&[write(good, 60)], &bad, &[write(good, 600)]]] {
                let mut attack = Attack::at(&place, case, 0);
                let mut offered = 0;
                let mut heads = Vec::new();
                for chain in &chains {
                    heads.push(offered);
                    offer_rx(&mut attack, offered, chain);
                    offered += chain.len() as u16;
                }
                let frame = attack.good_frame.clone();
                attack.b.tx(0).send(&VnetHeader::default(), &[&frame]);
                let ring = attack.a.rx(0).ring();
                wait_until(what, || used_lens(ring, &heads).len() == chains.len());
                let lens = used_lens(ring, &heads);
                // The last chain holds the whole frame. The bad chain, and a chain fetched before it, are returned with
                // length 0.
                let expected: Vec<_> = (1..chains.len()).map(|_| 0).chain([112]).collect();
                assert_eq!(lens, expected, "{case:?}: {what}");
                let header = VnetHeader::from_bytes(&attack.a.memory().read_vec(good, 12));
                assert_eq!(header.num_buffers, 1, "{case:?}: {what}");
                assert!(attack.a.memory().read_vec(good + 12, 100) == frame, "{case:?}: {what}");
                attack.others_go_on(what);
            }
        }
    }
}

/// Makes a chain of receive buffers available as the ring's next chain, in descriptors from `at` on.
fn offer_rx(attack: &mut Attack, at: u16, chain: &[Desc]) {
    let last = chain.len() - 1;
    match attack.a.rx(0).ring() {
        Virtqueue::Split(ring) => {
            for (n, desc) in chain.iter().enumerate() {
                let flags = desc.flags | if n == last { 0 } else { DESC_NEXT };
                let index = at + n as u16;
                let descriptor = SplitDescriptor { addr: desc.addr, len: desc.len, flags, next: index + 1 };
                ring.write_descriptor(index, descriptor);
            }
            let idx = ring.avail_idx();
            ring.write_avail(idx, at);
            ring.set_avail_idx(idx + 1);
        }
        Virtqueue::Packed(ring) => {
            for (n, desc) in chain.iter().enumerate().rev() {
                let flags = desc.flags | DESC_AVAIL | if n == last { 0 } else { DESC_NEXT };
                let descriptor = PackedDescriptor { addr: desc.addr, len: desc.len, id: at, flags };
                ring.write_descriptor(at + n as u16, descriptor);
            }
        }
    }
}

/// Returns the written lengths of the used chains, in order. `heads` has the first descriptor of each chain.
fn used_lens(ring: &mut Virtqueue, heads: &[u16]) -> Vec<u32> {
    match ring {
        Virtqueue::Split(ring) => (0..ring.used_idx()).map(|idx| ring.used_entry(idx).1).collect(),
        Virtqueue::Packed(ring) => {
            let used = heads.iter().map(|&head| ring.read_descriptor(head));
            let used = used.take_while(|used| used.flags & DESC_USED != 0);
            used.map(|used| if used.flags & DESC_WRITE != 0 { used.len } else { 0 }).collect()
        }
    }
}

#[test]
fn a_frame_that_has_no_room_takes_no_chain() {
    // Covers attacks 9 and 31.
    let mut rng = rng();
    for case in Case::all().filter(|case| !case.in_order) {
        let mut attack = Attack::new(case, 0);
        // The chains have fewer bytes than the frame needs.
        let added = attack.a.rx(0).fill(20, 13);
        let frame = frame(&mut rng, 1000);
        let drops = |attack: &Attack| {
            let direction = &attack.rig.controls[0].queues()[0].receive;
            direction.lost(Loss::Drop) + direction.lost(Loss::HostRefused)
        };
        for n in 1..=100 {
            attack.b.tx(0).send(&VnetHeader::default(), &[&frame]);
            wait_until("the drop", || drops(&attack) == n);
        }
        assert_eq!(attack.a.rx(0).in_flight(), added, "{case:?}");
        assert!(attack.a.rx(0).snoop_used().is_empty(), "{case:?}");
        if case.mergeable {
            // A frame that fits is delivered in the same chains.
            let small = frame[..60].to_vec();
            carry(&mut attack.b, &mut attack.a, 0, &small, &case);
        }
        attack.others_go_on("no room");
    }
}

#[test]
fn a_frame_in_chains_of_one_byte_arrives_whole() {
    // Covers attack 9. The test kit's receive queue needs the whole header in the first chain; in this test each chain
    // has one byte.
    for case in Case::layouts() {
        let mut attack = Attack::new(case, 0);
        let memory = attack.a.memory().clone();
        let buffer = memory.alloc(4096, 64);
        for byte in 0..RING {
            offer_rx(&mut attack, byte, &[Desc { addr: buffer + u64::from(byte), len: 1, flags: DESC_WRITE }]);
        }
        let heads: Vec<_> = (0..RING).collect();
        let frame = attack.good_frame[..40].to_vec();
        attack.b.tx(0).send(&VnetHeader::default(), &[&frame]);
        let ring = attack.a.rx(0).ring();
        wait_until("one chain for each byte", || used_lens(ring, &heads).len() == 52);
        assert!(used_lens(ring, &heads).iter().all(|len| *len == 1));
        assert_eq!(VnetHeader::from_bytes(&memory.read_vec(buffer, 12)).num_buffers, 52);
        assert!(memory.read_vec(buffer + 12, 40) == frame, "{case:?}");
        attack.others_go_on("chains of a byte");
    }
}

/// Returns a frame with `bytes` at offset `at`.
fn changed(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Returns headers and frames that contradict each other, for attacks 8, 10 to 13, 15 to 19, and 28.
#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn misfits() -> Vec<(VnetHeader, Vec<u8>)> {
    let tcp4 = Packet { checksum: Checksum::Partial, ..Packet::tcp(3000) };
    let tcp6 = Packet { is_ipv6: true, ..tcp4.clone() };
    let udp = Packet { checksum: Checksum::Partial, ..Packet::udp(3000) };
    let ask = |packet: &Packet, gso_type, gso_size| VnetHeader {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: packet.payload_start() as u16,
        gso_size,
        csum_start: packet.transport_start() as u16,
        csum_offset: packet.checksum_offset() as u16,
        num_buffers: 0,
    };
    let (frame4, frame6, frame_udp) = (tcp4.build(), tcp6.build(), udp.build());
    let (ask4, ask6, ask_udp) = (ask(&tcp4, GSO_TCPV4, 1000), ask(&tcp6, GSO_TCPV6, 1000), ask(&udp, GSO_UDP_L4, 1000));
    let mut all = Vec::new();
    for gso_size in [0, 1, 7, 65_535] {
        all.push((VnetHeader { gso_size, ..ask4 }, frame4.clone()));
        all.push((VnetHeader { gso_size, ..ask6 }, frame6.clone()));
        all.push((VnetHeader { gso_size, ..ask_udp }, frame_udp.clone()));
        all.push((VnetHeader { gso_size, gso_type: GSO_UDP, ..ask_udp }, frame_udp.clone()));
    }
    for hdr_len in [0, 1, 4000, 65_535] {
        all.push((VnetHeader { hdr_len, ..ask4 }, frame4.clone()));
    }
    for (csum_start, csum_offset) in [
        (34, 65_535),
        (65_535, 16),
        (3053, 0),
        (3054, 1),
        (4000, 16),
        (0, 0),
        (12, 0),
        (14, 2),
        (14, 10),
        (33, 16),
        (35, 15),
    ] {
        for gso_type in [GSO_NONE, GSO_TCPV4] {
            all.push((VnetHeader { csum_start, csum_offset, gso_type, ..ask4 }, frame4.clone()));
        }
    }
    for gso_type in 0..=255 {
        for (header, frame) in [(ask4, &frame4), (ask6, &frame6), (ask_udp, &frame_udp)] {
            all.push((VnetHeader { gso_type, ..header }, frame.clone()));
        }
    }
    // Vary the IPv4 header length and total length, TCP data offset, IPv6 payload length and next header, and UDP
    // length.
    for ihl in 0..=15 {
        all.push((ask4, changed(&frame4, 14, &[0x40 | ihl])));
    }
    for total in [0u16, 19, 20, 39, 40, 3041, 65_535] {
        all.push((ask4, changed(&frame4, 16, &total.to_be_bytes())));
        all.push((ask_udp, changed(&frame_udp, 16, &total.to_be_bytes())));
    }
    for doff in 0..=15u8 {
        all.push((ask4, changed(&frame4, 46, &[doff << 4])));
        all.push((ask6, changed(&frame6, 66, &[doff << 4])));
    }
    for len in [0u16, 7, 8, 65_535] {
        all.push((ask6, changed(&frame6, 18, &len.to_be_bytes())));
        all.push((ask_udp, changed(&frame_udp, 38, &len.to_be_bytes())));
    }
    for protocol in [0, 1, 43, 44, 50, 51, 60, 132, 135, 255] {
        all.push((ask4, changed(&frame4, 23, &[protocol])));
        all.push((ask6, changed(&frame6, 20, &[protocol])));
        all.push((VnetHeader { gso_type: GSO_NONE, ..ask4 }, changed(&frame4[..100], 23, &[protocol])));
    }
    // Use a chain of 200 extension headers, an extension header of 2 KiB, and a truncated extension header.
    let many = Packet { extensions: vec![(60, vec![0; 7]); 200], payload: vec![0; 500], ..tcp6.clone() };
    let long =
        Packet { extensions: vec![(0, [&[255][..], &[0; 2046]].concat())], payload: vec![0; 500], ..tcp6.clone() };
    all.push((ask(&many, GSO_TCPV6, 400), many.build()));
    all.push((ask(&long, GSO_TCPV6, 400), long.build()));
    all.push((ask(&long, GSO_TCPV6, 400), long.build()[..70].to_vec()));
    // Use 20 VLAN tags, a truncated tag, and mixed tags.
    let tagged = |tags: Vec<(u16, u16)>| Packet { tags, payload: vec![1; 700], ..tcp4.clone() };
    for tags in [vec![(0x8100, 5); 20], vec![(0x88a8, 5), (0x8100, 6)], vec![(0x8100, 6), (0x88a8, 5)]] {
        let packet = tagged(tags);
        all.push((ask(&packet, GSO_TCPV4, 500), packet.build()));
        all.push((VnetHeader::default(), packet.build()[..17].to_vec()));
    }
    for len in [14, 15, 33, 34, 53, 54, 60] {
        all.push((ask4, frame4[..len].to_vec()));
        all.push((VnetHeader { gso_type: GSO_NONE, ..ask4 }, frame4[..len].to_vec()));
    }
    // Use 60 bytes with a claimed length of 65535, and a datagram of 65507 bytes with segments of one byte.
    all.push((VnetHeader::default(), changed(&frame4[..60], 16, &[255, 255])));
    let bomb = Packet { payload: vec![7; 65_507], ..udp };
    all.push((VnetHeader { gso_size: 1, ..ask(&bomb, GSO_UDP_L4, 1) }, bomb.build()));
    all
}

/// Checks the header of a received frame: the checksum verdict must be true, and a super-frame must be segmentable.
fn check_told(header: &[u8], frame: &[u8], what: &dyn std::fmt::Debug) {
    let vnet = VnetHeader::from_bytes(header);
    assert!((14..=65_549).contains(&frame.len()), "{what:?}: {} bytes", frame.len());
    assert_eq!(vnet.flags & !(NEEDS_CSUM | DATA_VALID), 0, "{what:?}");
    if vnet.flags & DATA_VALID != 0 {
        assert_eq!(Frame::received(&mut frame.to_vec()).verify(), ChecksumState::Good, "{what:?}");
    }
    if vnet.gso_type != GSO_NONE {
        assert_eq!(vnet.flags, NEEDS_CSUM, "{what:?}: V37");
        assert!(cut(header, frame).len() > 1, "{what:?}");
    }
}

#[test]
fn headers_that_do_not_fit_their_frames_are_counted_or_sent_as_the_bytes_allow() {
    // Covers attacks 8, 10 to 13, 15 to 19, and 28.
    for (case, place) in everywhere(Case::layouts()) {
        let mut attack = Attack::at(&place, case, OFFLOADS);
        for (n, (header, frame)) in misfits().iter().enumerate() {
            let what = (case, n, header);
            attack.a.tx(0).send(header, &[frame]);
            attack.a.tx(0).drain(PATIENCE);
            while let Some(received) = attack.b.rx(0).try_recv() {
                check_told(&received.header, &received.frame, &what);
            }
        }
        let mark = attack.good_frame.clone();
        attack.a.tx(0).send(&VnetHeader::default(), &[&mark]);
        loop {
            let received = attack.b.rx(0).recv(PATIENCE);
            if received.frame == mark {
                break;
            }
            check_told(&received.header, &received.frame, &case);
        }
        let sent = &attack.rig.controls[0].queues()[0].transmit;
        assert!(sent.lost(Loss::BadRequest) > 100, "{case:?}: {}", sent.lost(Loss::BadRequest));
        assert_eq!(sent.frames_in.get(), sent.frames_out.get() + sent.lost_total(), "{case:?}");
        attack.others_go_on("misfits");
    }
}

#[test]
fn headers_of_any_bytes_never_stop_a_port() {
    let mut rng = rng();
    let frames = misfits();
    for (case, place) in everywhere(Case::layouts()) {
        let mut attack = Attack::at(&place, case, OFFLOADS);
        for n in 0..4000 {
            let (header, frame) = &frames[rng.random_range(0..frames.len())];
            let mut header = header.to_bytes();
            for _ in 0..rng.random_range(0..4) {
                header[rng.random_range(0..12)] = rng.random();
            }
            let frame = &frame[..frame.len().min(4000)];
            while attack.a.tx(0).stage_bytes(&header, &[frame]).is_none() {
                attack.a.tx(0).publish();
            }
            attack.a.tx(0).publish();
            while let Some(received) = attack.b.rx(0).try_recv() {
                check_told(&received.header, &received.frame, &(case, n, header));
            }
        }
        attack.a.tx(0).drain(PATIENCE);
        attack.others_go_on("any bytes");
    }
}

#[test]
fn a_guest_that_changes_what_it_sent_harms_nobody() {
    // Covers attack 14: headers, frames and descriptors change while the port reads them.
    const FRAMES: usize = 50_000;
    let mut rng = rng();
    let packet = Packet { checksum: Checksum::Partial, ..Packet::tcp(2000) };
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    // The payload of a long super-frame stays in the guest's memory until it is read.
    let long = Packet { checksum: Checksum::Partial, ..Packet::tcp(8000) };
    let frames = [packet.build(), frame(&mut rng, 300), long.build()];
    // The neighbour's address differs from the hostile guest's address in one bit. If a flip turns the source address
    // into the neighbour's address, the switch learns that address at the hostile guest's port, until the neighbour
    // sends.
    let mut reply = frame(&mut rng, 60);
    let (destination, source) = reply[..12].split_at_mut(6);
    destination.swap_with_slice(source);
    for (case, place) in everywhere(Case::layouts()) {
        let mut attack = Attack::at(&place, case, OFFLOADS);
        let memory = attack.a.memory().clone();
        let descriptors = attack.a.tx(0).ring().addresses().descriptors;
        // The test kit allocates its buffers from this address on.
        let buffers = memory.alloc(64, 64);
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, seed) = (Arc::clone(&is_over), rng.random::<u64>());
        let flipper = std::thread::spawn(move || {
            let mut rng = <rand_chacha::ChaCha8Rng as rand::SeedableRng>::seed_from_u64(seed);
            while !over.load(Ordering::Relaxed) {
                // Change a descriptor only rarely. With frequent changes, most chains would be refused on two free
                // processors.
                let at = if rng.random_bool(0.01) {
                    // Keep id and flags of a packed descriptor: they belong to the ring, and the test kit's driver
                    // reads them.
                    let bytes = if case.packed { 12 } else { 16 };
                    descriptors + u64::from(rng.random_range(0..RING)) * DESC_LEN + rng.random_range(0..bytes)
                } else {
                    buffers + rng.random_range(0..RING as u64 * 4096)
                };
                memory.write_u8(at, memory.read_u8(at) ^ 1 << rng.random_range(0..8));
            }
        });
        for n in 0..FRAMES {
            let frame = &frames[n % frames.len()];
            let header = if n % frames.len() == 1 { VnetHeader::default() } else { header };
            attack.a.tx(0).send(&header, &[frame]);
            if n % 16 == 0 {
                attack.b.tx(0).send(&VnetHeader::default(), &[&reply]);
            }
            while let Some(received) = attack.b.rx(0).try_recv() {
                check_told(&received.header, &received.frame, &(case, n));
            }
        }
        attack.a.tx(0).drain(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
        flipper.join().unwrap();
        attack.others_go_on("double fetches");
        let sent = &attack.rig.controls[0].queues()[0].transmit;
        assert_eq!(sent.frames_in.get(), sent.frames_out.get() + sent.lost_total(), "{case:?}");
        assert_eq!(attack.rig.broken_rings(0), 0, "{case:?}");
        // Enough frames must pass, because the test covers inspected frames, not refused chains.
        assert!(sent.frames_out.get() > FRAMES as u64 / 4, "{case:?}: {}", sent.frames_out.get());
    }
}

#[test]
fn a_flood_of_refused_frames_holds_nobody_up() {
    // Covers attack 25. A refused frame is not delivered, but must still be charged to the budget of the turn.
    // Otherwise, a flood of such frames would monopolise the thread.
    for (case, place) in everywhere(Case::layouts()) {
        let Attack { rig, mut a, mut b, mut c, good_frame, .. } = Attack::at(&place, case, 0);
        let mut pairs = a.take_pairs();
        // After the attack, b communicates with the second pair or with the guest of a third port.
        let pair = pairs.len() - 1;
        let second = if pair == 0 { None } else { pairs.pop() };
        let port_2 = c.as_mut().and_then(|c| {
            c.rx(0).fill(60, 1526);
            c.take_pairs().pop()
        });
        let (mut other_rx, mut other_tx) = second.or(port_2).expect("another one");
        let (_rx0, mut tx0) = pairs.pop().expect("the first pair");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // The frame is shorter than an Ethernet header.
                    while tx0.stage(&VnetHeader::default(), &[&[0; 5]]).is_some() {}
                    tx0.publish();
                }
            });
            wait_until("the flood to begin", || rig.refused(0, Loss::Malformed) > 0);
            for n in 0..500 {
                other_tx.send(&VnetHeader::default(), &[&good_frame]);
                assert!(b.rx(pair).recv(PATIENCE).frame == good_frame, "{case:?}: {n}");
                b.tx(pair).send(&VnetHeader::default(), &[&good_frame]);
                assert!(other_rx.recv(PATIENCE).frame == good_frame, "{case:?}: {n}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_guest_without_receive_buffers_loses_its_own_frames_alone() {
    // Covers attack 25.
    for (case, place) in everywhere(Case::layouts()) {
        let mut attack = Attack::at(&place, case, 0);
        let frame = attack.good_frame.clone();
        for _ in 0..20_000 {
            attack.b.tx(0).send(&VnetHeader::default(), &[&frame]);
        }
        attack.b.tx(0).drain(PATIENCE);
        let dropped = || attack.rig.received(0, |d| d.lost(Loss::Drop));
        wait_until("every drop to be counted", || dropped() == 20_000);
        attack.others_go_on("no buffers");
        attack.a.rx(0).fill(8, 1526);
        carry(&mut attack.b, &mut attack.a, 0, &frame, &case);
    }
}

#[test]
fn a_storm_of_kicks_and_a_call_that_cannot_be_made_change_nothing() {
    // Covers attack 25 and requirement R11.
    for case in Case::rings() {
        let mut attack = Attack::new(case, 0);
        let (read_end, closed) = nix::unistd::pipe().unwrap();
        drop(read_end);
        let frame = attack.good_frame.clone();
        for call in [full_event().as_fd(), closed.as_fd()] {
            // Vring 2 is the receive ring of pair 1.
            attack.a.frontend().set_vring_call(2, Some(call)).unwrap();
            attack.a.rx(1).ring().enable_interrupts();
            for _ in 0..20 {
                carry(&mut attack.b, &mut attack.a, 1, &frame, &case);
                attack.a.rx(1).ring().enable_interrupts();
            }
        }
        attack.a.frontend().set_vring_call(2, None).unwrap();
        for _ in 0..100_000 {
            attack.a.tx(0).kick();
        }
        attack.others_go_on("kicks");
        attack.goes_on("kicks");
    }
}

/// Returns an eventfd with a full counter.
fn full_event() -> EventFd {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
    event.write(u64::MAX - 1).unwrap();
    event
}

/// Makes reads and writes of a descriptor block. The call overrides flags set by the backend, because test and backend
/// share the open file description.
fn let_it_block(fd: impl AsFd) {
    nix::fcntl::fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

#[test]
fn descriptors_that_block_hold_up_nobody() {
    for case in Case::layouts() {
        let mut attack = Attack::new(case, 0);
        let kick = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        attack.a.frontend().set_vring_kick(1, Some(kick.as_fd())).unwrap();
        let_it_block(&kick);
        attack.others_go_on("a kick that blocks");
        let event = full_event();
        let (_read_end, pipe) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        while nix::unistd::write(&pipe, &[0; 4096]).is_ok() {}
        let frame = attack.good_frame.clone();
        for call in [event.as_fd(), pipe.as_fd()] {
            // Vring 2 is the receive ring of pair 1.
            attack.a.frontend().set_vring_call(2, Some(call)).unwrap();
            let_it_block(call);
            for _ in 0..20 {
                attack.a.rx(1).ring().enable_interrupts();
                carry(&mut attack.b, &mut attack.a, 1, &frame, &(case, call));
            }
        }
        attack.others_go_on("calls that block");
    }
}

#[test]
fn an_error_on_a_descriptor_that_blocks_holds_up_nobody() {
    for case in Case::layouts() {
        let mut attack = Attack::new(case, 0);
        let err = full_event();
        attack.a.frontend().set_vring_err(1, Some(err.as_fd())).unwrap();
        let_it_block(&err);
        match attack.a.tx(0).ring() {
            Virtqueue::Split(ring) => ring.set_avail_idx(u16::MAX),
            Virtqueue::Packed(ring) => {
                ring.write_descriptor(0, PackedDescriptor { addr: 0, len: 112, id: RING, flags: DESC_AVAIL });
            }
        }
        attack.a.tx(0).kick();
        wait_until("the end of the ring", || attack.rig.broken_rings(0) == 1);
        attack.others_go_on("an error that blocks");
    }
}

#[test]
fn a_descriptor_that_is_no_eventfd_is_refused() {
    let rig = Rig::with(&RigConfig::mtu(1500));
    let (_read_end, pipe) = nix::unistd::pipe().unwrap();
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let (_other_end, socket) = std::os::unix::net::UnixStream::pair().unwrap();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let memory = file_in_memory(4096);
    let others = [file.as_fd(), socket.as_fd(), epoll.0.as_fd(), memory.as_fd()];
    let is_refused = |answer: Result<(), PeerError>| matches!(answer, Err(PeerError::Refused { .. }));
    for fd in others.into_iter().chain([pipe.as_fd()]) {
        assert!(is_refused(negotiated(&rig).set_vring_kick(1, Some(fd))), "kick: {fd:?}");
        assert!(is_refused(negotiated(&rig).set_vring_err(1, Some(fd))), "err: {fd:?}");
    }
    // A descriptor opened for both ends of a pipe must be refused, too. A write to a full pipe waits for the reader,
    // and the only holder of this descriptor would wait for itself.
    let (read_end, _pipe) = nix::unistd::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let both_ends = std::fs::File::options().read(true).write(true).open(path).unwrap();
    for fd in others.into_iter().chain([read_end.as_fd(), both_ends.as_fd()]) {
        assert!(is_refused(negotiated(&rig).set_vring_call(1, Some(fd))), "call: {fd:?}");
    }
    // Pass the connection itself as the descriptor.
    let frontend = negotiated(&rig);
    assert!(is_refused(frontend.set_vring_kick(1, Some(frontend.stream().as_fd()))));
    let frontend = negotiated(&rig);
    assert!(is_refused(frontend.set_vring_call(1, Some(frontend.stream().as_fd()))));
}

/// Returns a connection to a port on which only features were negotiated.
fn negotiated(rig: &Rig) -> Frontend {
    let mut frontend = Frontend::connect(rig.socket(0));
    let offered = frontend.get_features().unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_owner().unwrap();
    frontend.set_features(offered & !features::RING_PACKED).unwrap();
    frontend
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn file_in_memory(len: i64) -> OwnedFd {
    let file = nix::sys::memfd::memfd_create("test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&file, len).unwrap();
    file
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn messages_that_make_no_sense_end_their_connection_and_nothing_else() {
    // Covers attacks 21, 22 and 23.
    let rig = Rig::with(&RigConfig::mtu(1500).queue_pairs(2));
    let page = file_in_memory(4096);
    let fds = |count: usize| vec![page.as_fd(); count];
    let header = |request, len| Header::new(request, len);
    let state = |index: u32, num: u32| [index.to_le_bytes(), num.to_le_bytes()].concat();
    let table = |regions: &[[u64; 4]]| {
        let head = words(&[regions.len() as u64]);
        regions.iter().fold(head, |bytes, region| [bytes, words(region)].concat())
    };
    let whole = |request, payload: Vec<u8>, fds: usize| (header(request, payload.len()), payload, fds);
    let as_flags = |flags, payload: Vec<u8>, fds: usize| {
        (Header { flags, ..header(request::SET_MEM_TABLE, payload.len()) }, payload, fds)
    };
    let version = |flags| Header { flags, ..header(request::GET_FEATURES, 0) };
    let attacks: Vec<(Header, Vec<u8>, usize)> = vec![
        (header(request::SET_FEATURES, 5000), vec![0; 5000], 0),
        (Header { payload_len: u32::MAX, ..header(request::SET_FEATURES, 8) }, vec![0; 8], 0),
        whole(request::SET_FEATURES, vec![0; 4], 0),
        whole(request::SET_FEATURES, vec![0; 16], 0),
        whole(request::SET_FEATURES, words(&[1 << 63]), 0),
        whole(request::SET_PROTOCOL_FEATURES, words(&[1 << 63]), 0),
        whole(request::SET_OWNER, vec![0; 8], 0),
        whole(request::GET_FEATURES, vec![0; 8], 0),
        whole(0, vec![], 0),
        whole(4711, vec![0; 8], 0),
        whole(u32::MAX, vec![], 0),
        (version(0), vec![], 0),
        (version(2), vec![], 0),
        (version(3), vec![], 0),
        (version(VERSION | 0x100), vec![], 0),
        whole(request::SET_VRING_NUM, state(4, 256), 0),
        whole(request::SET_VRING_NUM, state(u32::MAX, 256), 0),
        whole(request::SET_VRING_NUM, state(0x1_0000, 256), 0),
        whole(request::SET_VRING_NUM, state(0, 0), 0),
        whole(request::SET_VRING_NUM, state(0, 32769), 0),
        whole(request::SET_VRING_NUM, state(0, 65_536 + 256), 0),
        whole(request::SET_VRING_BASE, state(0x1_0000, 0), 0),
        whole(request::GET_VRING_BASE, state(0x1_0000, 0), 0),
        whole(request::SET_VRING_ENABLE, state(0x1_0000, 1), 0),
        whole(request::SET_VRING_ENABLE, state(0, 2), 0),
        whole(request::SET_VRING_ADDR, vec![0xff; 40], 0),
        whole(request::SET_VRING_ADDR, vec![0; 39], 0),
        whole(request::SET_VRING_KICK, words(&[200]), 1),
        whole(request::SET_VRING_CALL, words(&[200]), 1),
        whole(request::SET_VRING_ERR, words(&[200]), 1),
        whole(request::SET_VRING_KICK, words(&[0]), 0),
        whole(request::SET_VRING_KICK, words(&[0x100]), 1),
        whole(request::SET_VRING_CALL, words(&[0]), 2),
        whole(request::GET_FEATURES, vec![], 1),
        whole(request::SET_FEATURES, words(&[0]), 9),
        whole(request::SET_OWNER, vec![], 64),
        whole(request::SET_MEM_TABLE, table(&[]), 0),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, 0]]), 0),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, 0]]), 2),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, 0], [4095, 4096, 8192, 0]]), 2),
        whole(request::SET_MEM_TABLE, table(&[[0, 0, 0, 0]]), 1),
        whole(request::SET_MEM_TABLE, table(&[[0, 8192, 0, 0]]), 1),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, 4096]]), 1),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, u64::MAX - 100]]), 1),
        whole(request::SET_MEM_TABLE, table(&[[u64::MAX - 100, 4096, 0, 0]]), 1),
        whole(request::SET_MEM_TABLE, table(&[[0, u64::MAX, 0, 0]]), 1),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, 0]; 40]), 40),
        whole(request::SET_MEM_TABLE, [words(&[1 << 32 | 1]), words(&[0, 4096, 0, 0])].concat(), 1),
        // Only bytes after the last region are ignored. All other deviations are refused.
        whole(request::SET_MEM_TABLE, vec![], 0),
        whole(request::SET_MEM_TABLE, vec![1, 0, 0, 0], 1),
        whole(request::SET_MEM_TABLE, table(&[[0, 4096, 0, 0]])[..39].to_vec(), 1),
        whole(request::SET_MEM_TABLE, [words(&[2]), words(&[0, 4096, 0, 0])].concat(), 2),
        whole(request::SET_MEM_TABLE, [words(&[0]), words(&[0, 4096, 0, 0])].concat(), 1),
        whole(request::SET_MEM_TABLE, [words(&[1]), words(&[0; 8])].concat(), 1),
        whole(request::SET_MEM_TABLE, [words(&[1]), words(&[0, 4096, 0, 0]), words(&[0; 4])].concat(), 0),
        whole(request::SET_MEM_TABLE, [words(&[1]), words(&[0, 4096, 0, 0]), words(&[0; 4])].concat(), 2),
        whole(request::SET_MEM_TABLE, [words(&[1 << 32 | 1]), words(&[0, 4096, 0, 0]), words(&[0; 4])].concat(), 1),
        whole(request::SET_MEM_TABLE, [words(&[1]), words(&[0, 4096, 0, 0]), words(&[0; 128])].concat(), 1),
        whole(request::SET_MEM_TABLE, [words(&[33]), words(&[0; 128])].concat(), 32),
        as_flags(VERSION | FLAG_REPLY, words(&[1, 0, 4096, 0, 0]), 1),
        as_flags(VERSION | 0x100, words(&[1, 0, 4096, 0, 0]), 1),
        as_flags(2, words(&[1, 0, 4096, 0, 0]), 1),
        whole(request::ADD_MEM_REG, words(&[0, 0, 1 << 40, 0, 0]), 1),
        whole(request::REM_MEM_REG, words(&[0, 0, 4096, 0, 0]), 0),
        whole(request::SET_LOG_BASE, words(&[u64::MAX, 1]), 1),
        whole(request::SET_LOG_BASE, words(&[8192, 0]), 1),
        whole(request::SET_LOG_BASE, words(&[0, 0]), 1),
        whole(request::SET_LOG_BASE, words(&[4096, 0]), 0),
        whole(request::GET_INFLIGHT_FD, [words(&[0, 0]), vec![0xff; 8]].concat(), 0),
        whole(request::SET_INFLIGHT_FD, [words(&[u64::MAX, 1]), vec![1, 0, 1, 0, 0, 0, 0, 0]].concat(), 1),
        whole(request::SET_STATUS, vec![0; 4], 0),
        whole(request::GET_STATUS, vec![0; 8], 0),
        whole(request::NET_SET_MTU, words(&[67]), 0),
        whole(request::NET_SET_MTU, words(&[65_536]), 0),
        whole(request::SET_CONFIG, vec![0; 20], 0),
        whole(request::SEND_RARP, words(&[0]), 0),
        whole(26, vec![0; 64], 0),
        whole(request::SET_LOG_FD, vec![], 1),
        whole(request::SET_BACKEND_REQ_FD, vec![], 1),
        // Requests for postcopy, the display and shared objects.
        whole(28, vec![], 0),
        whole(29, vec![], 0),
        whole(30, vec![], 0),
        whole(33, vec![], 1),
        whole(41, vec![0; 16], 0),
    ];
    let count = attacks.len() as u64;
    for (n, (header, payload, with)) in attacks.into_iter().enumerate() {
        let frontend = negotiated(&rig);
        frontend.send_raw(header, &payload, &fds(with));
        assert!(frontend.is_closed_within(PATIENCE), "attack {n} was taken: {header:?} {payload:x?}");
    }
    assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), count);
    // After the refusals, a valid frontend must be accepted.
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(4, 1526);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"after bad messages");
}

#[test]
fn messages_out_of_order_or_marked_as_answers_stop_nobody() {
    // Covers attack 21.
    let rig = Rig::with(&RigConfig::mtu(1500));
    let flags = [VERSION | FLAG_REPLY, VERSION | FLAG_NEED_REPLY, VERSION | FLAG_REPLY | FLAG_NEED_REPLY];
    let requests = (0..60).flat_map(|request| flags.map(|flags| (request, flags)));
    for (request, flags) in requests {
        let frontend = Frontend::connect(rig.socket(0));
        // Send the message before any negotiation.
        frontend.send_raw(Header { request, flags, payload_len: 8 }, &[0; 8], &[]);
        frontend.send_raw(Header::new(request::GET_FEATURES, 0), &[], &[]);
    }
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(4, 1526);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"after messages out of order");
}

#[test]
fn a_frontend_that_stops_in_the_middle_of_a_message_is_given_up() {
    // Covers attack 24.
    let rig = Rig::with(&RigConfig::mtu(1500));
    for (n, len) in [1, 5, 11, 12, 15].into_iter().enumerate() {
        let whole = [&Header::new(request::SET_FEATURES, 8).to_bytes()[..], &[0; 8]].concat();
        let stays = Frontend::connect(rig.socket(0));
        stays.send_bytes(&whole[..len], &[]);
        assert!(stays.is_closed_within(PATIENCE), "{len} bytes");
        let goes = Frontend::connect(rig.socket(0));
        goes.send_bytes(&whole[..len], &[]);
        drop(goes);
        let counters = rig.ports[0].channel_counters();
        wait_until("the end of both", || counters.bad_messages.get() == 2 * (n as u64 + 1));
    }
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(4, 1526);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"after half messages");
}

#[test]
fn frontends_that_die_in_the_middle_of_a_message_cost_the_next_one_no_wait() {
    // Number of frontends. If the port waited for the remaining bytes of each frontend's message, the waits would
    // exceed the last frontend's time limit.
    const DYING: usize = 2000;
    let rig = Rig::with(&RigConfig::mtu(1500));
    let whole = Header::new(request::SET_FEATURES, 8).to_bytes();
    for nth in 0..DYING {
        Frontend::connect(rig.socket(0)).send_bytes(&whole[..=(nth % 11)], &[]);
    }
    let mut last = Frontend::connect(rig.socket(0));
    last.set_timeout(PATIENCE);
    assert!(last.get_features().is_ok());
}

#[test]
fn a_frontend_that_sends_single_bytes_is_served_as_any_other() {
    let model = frame(&mut rng(), 300);
    for case in every_kind() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = [0, 1].map(|side| {
            let mut frontend = Frontend::connect(rig.socket(side));
            frontend.set_piece_len(1);
            case.guest().inflight().over(frontend)
        });
        b.rx(0).fill(4, 1526);
        carry(&mut a, &mut b, 0, &model, &case);
        let memory = a.memory().clone();
        a.frontend().set_mem_table(&memory).unwrap();
        carry(&mut a, &mut b, 0, &model, &case);
        assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), 0);
    }
}

#[test]
fn a_byte_out_of_band_ends_its_connection_alone() {
    // The kernel counts an out-of-band byte as pending, but a read does not return it.
    let rig = Rig::with(&RigConfig::mtu(1500));
    for (nth, (size, len)) in [(8, 1), (8, 12), (8, 13), (8, 20), (0, 12), (1, 13)].into_iter().enumerate() {
        let whole = [&Header::new(request::SET_FEATURES, size).to_bytes()[..], &[0; 8]].concat();
        let frontend = Frontend::connect(rig.socket(0));
        // With this flag, the kernel sends the last byte of the message out of band.
        let flags = MsgFlags::MSG_OOB;
        assert_eq!(nix::sys::socket::send(frontend.stream().as_raw_fd(), &whole[..len], flags), Ok(len));
        assert!(frontend.is_closed_within(PATIENCE), "{len} bytes, {size}");
        assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), nth as u64 + 1, "{len} bytes, {size}");
    }
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(4, 1526);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"after bytes out of band");
}

#[test]
fn a_frontend_that_asks_and_never_reads_the_answers_is_given_up() {
    // Covers attack 25 for the message channel.
    let rig = Rig::with(&RigConfig::mtu(1500));
    let frontend = Frontend::connect(rig.socket(0));
    let ask = Header::new(request::GET_FEATURES, 0);
    let mut asked = 0;
    // An answer has 20 bytes, so the socket is full long before a million answers.
    while asked < 1_000_000 && frontend.send_raw(ask, &[], &[]) {
        asked += 1;
    }
    assert!(asked < 1_000_000);
    assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), 1);
    let [mut a, mut b] = rig.guests(&Guest::builder());
    b.rx(0).fill(4, 1526);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 60), &"after a flood of questions");
}

#[test]
fn rings_that_cannot_be_are_refused() {
    // Covers attacks 5 and 23 for the rings themselves.
    let rig = Rig::with(&RigConfig::mtu(1500));
    let memory = GuestMemory::new(&[RegionSpec::new(0x10_0000, 1 << 20)]);
    let base = memory.regions()[0].user_addr();
    let end = base + (1 << 20);
    let kick = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
    for (size, descriptors, available, used) in [
        (256, 0, base, base + 8192),
        (256, base, NOWHERE, base + 8192),
        (256, base, base + 8192, !15),
        (256, end - 16, base, base + 8192),
        (256, base, end - 16, base + 8192),
        (256, base, base + 8192, end - 16),
        (255, base, base + 8192, base + 16_384),
        (32_768, base, base + (1 << 19), base + (1 << 20) - 4096),
    ] {
        let frontend = negotiated(&rig);
        frontend.set_mem_table(&memory).unwrap();
        frontend.set_vring_num(0, size).unwrap();
        let addr = offramp_testkit::frontend::VringAddr { descriptors, available, used, ..Default::default() };
        let told = frontend.set_vring_addr(&addr).and_then(|()| frontend.set_vring_kick(0, Some(kick.as_fd())));
        let what = (size, descriptors, available, used);
        assert!(matches!(told, Err(PeerError::Refused { .. })), "{what:x?}: {told:?}");
    }
    let frontend = negotiated(&rig);
    frontend.set_mem_table(&memory).unwrap();
    frontend.set_vring_num(0, 256).unwrap();
    frontend.set_vring_base(0, 0x1_0000).unwrap();
    let addr = offramp_testkit::frontend::VringAddr {
        descriptors: base,
        available: base + 8192,
        used: base + 16_384,
        ..Default::default()
    };
    frontend.set_vring_addr(&addr).unwrap();
    assert!(frontend.set_vring_kick(0, Some(kick.as_fd())).is_err(), "a base beyond 16 bits");
}

/// Returns ordinary pages, and `count` huge pages if available.
fn kinds_of_pages(count: u64) -> impl Iterator<Item = Option<Arc<HugePages>>> {
    [None].into_iter().chain(HugePages::reserve(count).map(|pages| Some(Arc::new(pages))))
}

fn on_pages(guest: GuestBuilder, pages: Option<&Arc<HugePages>>) -> GuestBuilder {
    pages.map_or(guest.clone(), |pages| guest.huge_pages(pages))
}

#[test]
fn a_frontend_that_takes_its_memory_away_is_dropped_alone() {
    // Covers attack 23: the file of the guest's memory is truncated while the device uses the memory.
    let cases = || Case::layouts().collect::<Vec<_>>();
    for (pages, case) in kinds_of_pages(8).flat_map(|pages| cases().into_iter().map(move |case| (pages.clone(), case)))
    {
        let rig = Rig::with(&RigConfig::mtu(1500));
        // Rings are in the first region, which is kept, and buffers in the second region. Both regions are shorter than
        // a huge page.
        let regions = [RegionSpec::new(0x10_0000, 1 << 20), RegionSpec::new(0x4000_0000, 1 << 20)];
        let mut b = rig.guest(1, &case.guest());
        b.rx(0).fill(8, 1526);
        let frame = frame(&mut rng(), 100);
        for round in 1..=4 {
            let mut a = rig.guest(0, &on_pages(case.guest().memory(&regions), pages.as_ref()));
            let memory = a.memory().clone();
            let buffer = memory.alloc_in(1, 4096, 4096);
            let sends = round % 2 == 0;
            let ring = if sends { a.tx(0).ring() } else { a.rx(0).ring() };
            let chain = if sends { Buffer::readable(buffer, 112) } else { Buffer::writable(buffer, 1526) };
            ring.add(&[chain], &[]).unwrap();
            memory.shrink(1, 0);
            if sends {
                a.tx(0).publish();
            } else {
                a.rx(0).publish();
                b.tx(0).send(&VnetHeader::default(), &[&frame]);
            }
            assert!(a.frontend().is_closed_within(PATIENCE), "{case:?}, {pages:?}");
            assert_eq!(rig.ports[0].channel_counters().lost_memories.get(), round, "{case:?}, {pages:?}");
            while b.rx(0).try_recv().is_some() {}
        }
        assert!(rig.is_running());
        // The other port must be unaffected, and the next guest must be served.
        let mut a = rig.guest(0, &case.guest());
        a.rx(0).fill(8, 1526);
        carry(&mut b, &mut a, 0, &frame, &case);
    }
}

#[test]
fn a_frontend_that_takes_its_rings_or_its_log_away_is_dropped_alone() {
    // Covers attack 23.
    let cases = || Case::layouts().collect::<Vec<_>>();
    for (pages, case) in kinds_of_pages(8).flat_map(|pages| cases().into_iter().map(move |case| (pages.clone(), case)))
    {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let guest = on_pages(case.guest().memory(&[RegionSpec::new(0x4000_0000, 3 << 20)]), pages.as_ref());
        let [a, mut b] = [rig.guest(0, &guest), rig.guest(1, &case.guest())];
        b.rx(0).fill(8, 1526);
        let mut a = a;
        let memory = a.memory().clone();
        memory.shrink(0, 0);
        // A kick and a delivered frame make the device access its rings.
        a.tx(0).kick();
        b.tx(0).send(&VnetHeader::default(), &[&[0xff; 60]]);
        assert!(a.frontend().is_closed_within(PATIENCE), "{case:?}, {pages:?}");
        assert_eq!(rig.ports[0].channel_counters().lost_memories.get(), 1, "{case:?}, {pages:?}");
        drop((a, memory));

        let protocol = protocol::REPLY_ACK | protocol::LOG_SHMFD;
        let mut a = rig.guest(0, &guest.protocol_features(protocol));
        a.rx(0).fill(8, 1526);
        let log = pages
            .as_ref()
            .map_or_else(|| DirtyLog::new(a.memory()), |pages| DirtyLog::on_huge_pages(a.memory(), pages));
        a.frontend().set_log_base(&log).unwrap();
        nix::unistd::ftruncate(log.fd(), 0).unwrap();
        b.tx(0).send(&VnetHeader::default(), &[&[0xff; 60]]);
        assert!(a.frontend().is_closed_within(PATIENCE), "{case:?}, {pages:?}");
        assert_eq!(rig.ports[0].channel_counters().lost_memories.get(), 2, "{case:?}, {pages:?}");
        assert!(rig.is_running());
    }
}

#[test]
fn a_sigbus_of_anybody_else_still_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "OFFRAMP_TEST_SIGBUS";
    if let Ok(how) = std::env::var(CHILD) {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let _guests = rig.guests(&Guest::builder());
        if how == "raise" {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGBUS).unwrap();
        }
        // Access a page of this process whose file was truncated.
        let own = GuestMemory::contiguous(4096);
        own.shrink(0, 0);
        own.read_u8(0);
        return;
    }
    // The child process is killed and cannot remove its directory.
    let scratch = Scratch::new();
    for how in ["access", "raise"] {
        let test = "vhost_hostile::a_sigbus_of_anybody_else_still_ends_the_process";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", test]).env(CHILD, how).env("TMPDIR", scratch.path("")).output().unwrap();
        assert_eq!(ended.status.signal(), Some(nix::libc::SIGBUS), "{how}: {ended:?}");
    }
}
