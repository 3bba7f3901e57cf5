//! Tests the drivers with a slow device that accesses memory as files.

mod support;

use offramp_testkit::ring::{PackedDescriptor, SplitDescriptor};
use offramp_testkit::{Buffer, GuestMemory, RegionSpec, RingOptions, Used, Virtqueue};
use support::{Chain, Device, Files};

const MEMORY_LEN: u64 = 1 << 20;
/// Address of the tests' buffers. Neither driver nor device accesses the bytes at this address.
const BUFFERS_AT: u64 = 0x8000;

struct Pair {
    files: Files,
    memory: GuestMemory,
    driver: Virtqueue,
    device: Device,
}

fn pair(packed: bool, size: u16, options: RingOptions) -> Pair {
    let memory = GuestMemory::new(&[RegionSpec { guest_addr: 0x10_0000, len: MEMORY_LEN, file_offset: 0x3000 }]);
    let driver = Virtqueue::new(&memory, packed, size, options);
    let device = Device::new(driver.addresses(), size, packed, options.event_idx);
    Pair { files: Files::of(&memory), memory, driver, device }
}

/// Returns all kinds of rings: packed or split, with and without each option. Includes sizes that only packed rings can
/// have.
fn all_kinds() -> impl Iterator<Item = Pair> {
    let options = |at: usize| RingOptions { event_idx: at & 1 != 0, in_order: at & 2 != 0 };
    let split = [4, 64].into_iter().flat_map(move |size| (0..4).map(move |at| pair(false, size, options(at))));
    let packed = [4, 5, 61].into_iter().flat_map(move |size| (0..4).map(move |at| pair(true, size, options(at))));
    split.chain(packed)
}

/// Returns a buffer identified by its length.
fn buffer(number: usize, writable: bool) -> Buffer {
    Buffer { addr: BUFFERS_AT + number as u64, len: number as u32 + 1, writable }
}

fn pieces(buffers: &[Buffer]) -> Vec<support::Piece> {
    buffers.iter().map(|buffer| (buffer.addr, buffer.len, buffer.writable)).collect()
}

#[test]
fn a_device_sees_every_chain_as_it_was_added_through_many_laps() {
    for mut pair in all_kinds() {
        for round in 0..200 {
            let buffers: Vec<_> = (0..=round % 3).map(|at| buffer(round + at, at == 2)).collect();
            let (direct, indirect) =
                buffers.split_at(if round % 4 == 3 { round % buffers.len() } else { buffers.len() });
            let id = pair.driver.add(direct, indirect).expect("room for one chain");
            assert_eq!(pair.device.pop(&pair.files), None, "not published yet");
            pair.driver.publish();
            let chain = pair.device.pop(&pair.files).expect("a published chain");
            assert_eq!((chain.id, &chain.pieces), (id, &pieces(&buffers)));
            let len = chain.writable_len() as u32;
            pair.device.push(&pair.files, &[(&chain, len)]);
            assert_eq!(pair.driver.take_used(), Some(Used { id, len }));
            assert_eq!(pair.driver.take_used(), None);
            assert_eq!(pair.driver.free_descriptors(), usize::from(pair.driver.size()));
        }
    }
}

#[test]
fn a_burst_becomes_visible_in_one_step() {
    for mut pair in all_kinds() {
        for round in 0..30 {
            let (first, second) = ([buffer(round, false), buffer(1, true)], [buffer(round + 1, true)]);
            let ids = [pair.driver.add(&first, &[]).unwrap(), pair.driver.add(&second, &[]).unwrap()];
            assert_eq!(pair.device.pop(&pair.files), None, "not published yet");
            pair.driver.publish();
            let chains = [pair.device.pop(&pair.files).unwrap(), pair.device.pop(&pair.files).unwrap()];
            assert_eq!(chains.each_ref().map(|chain| chain.id), ids);
            pair.device.push(&pair.files, &[(&chains[0], 2), (&chains[1], 1)]);
            assert_eq!(pair.driver.take_used(), Some(Used { id: ids[0], len: 2 }));
            assert_eq!(pair.driver.snapshot_len(), 1);
            assert_eq!(pair.driver.take_used(), Some(Used { id: ids[1], len: 1 }));
        }
    }
}

#[test]
fn a_full_ring_takes_no_chain_until_one_is_used() {
    for mut pair in all_kinds() {
        let size = usize::from(pair.driver.size());
        for at in 0..size {
            assert!(pair.driver.add(&[buffer(at, true)], &[]).is_some());
        }
        assert_eq!(pair.driver.add(&[buffer(0, true)], &[]), None);
        pair.driver.publish();
        let chain = pair.device.pop(&pair.files).unwrap();
        pair.device.push(&pair.files, &[(&chain, 0)]);
        assert_eq!(pair.driver.in_flight(), size);
        assert!(pair.driver.take_used().is_some());
        assert!(pair.driver.add(&[buffer(0, true)], &[]).is_some());
    }
}

#[test]
fn chains_may_be_used_in_any_order_unless_in_order_was_negotiated() {
    for packed in [false, true] {
        let mut pair = pair(packed, 8, RingOptions::default());
        for _ in 0..20 {
            let lens = [1, 2, 3];
            let ids = lens.map(|len| pair.driver.add(&vec![buffer(0, false); len], &[]).unwrap());
            pair.driver.publish();
            let chains = lens.map(|_| pair.device.pop(&pair.files).unwrap());
            pair.device.push(&pair.files, &[(&chains[2], 0), (&chains[0], 0), (&chains[1], 0)]);
            let used = pair.driver.snoop_used();
            assert_eq!(used, [ids[2], ids[0], ids[1]].map(|id| Used { id, len: 0 }));
            assert_eq!(std::iter::from_fn(|| pair.driver.take_used()).collect::<Vec<_>>(), used);
            assert_eq!(pair.driver.free_descriptors(), 8);
        }
    }
}

#[test]
fn a_batch_in_order_is_told_by_its_last_chain() {
    for packed in [false, true] {
        let mut pair = pair(packed, 8, RingOptions { in_order: true, event_idx: false });
        for _ in 0..20 {
            let ids = [1, 2, 3].map(|count| pair.driver.add(&vec![buffer(9, true); count], &[]).unwrap());
            pair.driver.publish();
            let chains: Vec<Chain> = std::iter::from_fn(|| pair.device.pop(&pair.files)).collect();
            pair.device.push_batch(&pair.files, &chains, 7);
            let used: Vec<_> = std::iter::from_fn(|| pair.driver.take_used()).collect();
            let lens = [10, 20, 7];
            assert_eq!(used, [0, 1, 2].map(|at| Used { id: ids[at], len: lens[at] }));
            assert_eq!(pair.driver.free_descriptors(), 8);
        }
    }
}

#[test]
fn in_order_split_descriptors_follow_each_other_in_the_table() {
    let mut pair = pair(false, 4, RingOptions { in_order: true, event_idx: false });
    for _ in 0..6 {
        let id = pair.driver.add(&[buffer(0, false); 3], &[]).unwrap();
        pair.driver.publish();
        let ring = pair.driver.split();
        let first = ring.read_descriptor(id);
        assert_eq!(first.next, (id + 1) % 4);
        assert_eq!(ring.read_descriptor(first.next).next, (id + 2) % 4);
        let chain = pair.device.pop(&pair.files).unwrap();
        pair.device.push(&pair.files, &[(&chain, 0)]);
        pair.driver.take_used().unwrap();
    }
}

#[test]
fn a_kick_is_due_exactly_when_the_device_asked_for_it() {
    for mut pair in all_kinds() {
        for round in 0..40 {
            let wanted = round % 3 != 0;
            pair.device.want_kicks(&pair.files, wanted);
            // With `event_idx`, the device requests a kick only for the position of the first chain. The second chain
            // is published separately, after this position.
            pair.driver.add(&[buffer(0, false)], &[]).unwrap();
            assert_eq!(pair.driver.publish(), wanted, "round {round}, packed {}", pair.device.packed);
            pair.driver.add(&[buffer(0, false)], &[]).unwrap();
            let by_position = pair.device.event_idx;
            assert_eq!(pair.driver.publish(), wanted && !by_position, "round {round}");
            while let Some(chain) = pair.device.pop(&pair.files) {
                pair.device.push(&pair.files, &[(&chain, 0)]);
            }
            while pair.driver.take_used().is_some() {}
            assert!(!pair.driver.publish(), "nothing to tell");
        }
    }
}

#[test]
fn a_device_interrupts_exactly_when_the_driver_asked_for_it() {
    for mut pair in all_kinds() {
        for round in 0..40 {
            let wanted = round % 3 != 0;
            if wanted {
                assert!(!pair.driver.enable_interrupts(), "nothing is used yet");
            } else {
                pair.driver.disable_interrupts();
            }
            pair.driver.add(&[buffer(0, false)], &[]).unwrap();
            pair.driver.publish();
            let before = pair.device.used;
            let chain = pair.device.pop(&pair.files).unwrap();
            pair.device.push(&pair.files, &[(&chain, 0)]);
            assert_eq!(pair.device.interrupt_wanted(&pair.files, before), wanted, "round {round}");
            assert!(pair.driver.enable_interrupts(), "a chain is used already");
            pair.driver.take_used().unwrap();
        }
    }
}

#[test]
fn interrupts_can_wait_for_a_number_of_chains() {
    for packed in [false, true] {
        let mut pair = pair(packed, 4, RingOptions { event_idx: true, in_order: false });
        for _ in 0..20 {
            pair.driver.interrupt_after(3);
            for used in 1..=3 {
                pair.driver.add(&[buffer(0, false)], &[]).unwrap();
                pair.driver.publish();
                let before = pair.device.used;
                let chain = pair.device.pop(&pair.files).unwrap();
                pair.device.push(&pair.files, &[(&chain, 0)]);
                assert_eq!(pair.device.interrupt_wanted(&pair.files, before), used == 3);
            }
            while pair.driver.take_used().is_some() {}
        }
    }
}

#[test]
fn a_packed_chain_carries_its_id_in_its_last_descriptor_alone() {
    let mut pair = pair(true, 8, RingOptions::default());
    let id = pair.driver.add(&[buffer(0, false); 3], &[]).unwrap();
    let ids = [0, 1, 2].map(|slot| pair.driver.packed().read_descriptor(slot).id);
    assert!(ids[0] != id && ids[1] != id && ids[2] == id);
}

#[test]
fn a_ring_that_was_reset_begins_anew() {
    for mut pair in all_kinds() {
        for _ in 0..3 {
            let id = pair.driver.add(&[buffer(0, false)], &[]).unwrap();
            pair.driver.publish();
            let chain = pair.device.pop(&pair.files).unwrap();
            assert_eq!(chain.id, id);
            pair.driver.reset();
            assert_eq!(pair.driver.in_flight(), 0);
            let base = if pair.device.packed { 0x8000_8000 } else { 0 };
            assert_eq!(pair.driver.resume_base(), base);
            (pair.device.taken, pair.device.used) = (0, 0);
            assert_eq!(pair.device.pop(&pair.files), None);
        }
    }
}

#[test]
fn raw_access_makes_what_no_driver_would() {
    let mut split = pair(false, 4, RingOptions::default());
    let ring = split.driver.split();
    let itself = SplitDescriptor { addr: BUFFERS_AT, len: 1, flags: 1, next: 2 };
    ring.write_descriptor(2, itself);
    assert_eq!(ring.read_descriptor(2), itself);
    ring.write_avail(0, 2);
    ring.jump_avail_idx(40_000);
    assert_eq!(split.files.u16(ring.addresses().driver + 2), 40_000);
    assert_eq!(split.files.u16(ring.addresses().driver + 4), 2);

    let mut packed = pair(true, 4, RingOptions::default());
    let ring = packed.driver.packed();
    let flags = ring.available_flags();
    ring.write_descriptor(0, PackedDescriptor { addr: 1, len: 2, id: 3, flags });
    let chain = packed.device.pop(&packed.files).unwrap();
    assert_eq!((chain.id, chain.pieces), (3, vec![(1, 2, false)]));

    let buffers = [buffer(0, false), buffer(1, true)];
    let id = split.driver.add(&[], &buffers).unwrap();
    let table = split.driver.split().indirect_table(id).expect("a table");
    assert_eq!(SplitDescriptor::read(&split.memory, table + 16).addr, buffers[1].addr);
}

#[test]
fn chains_made_by_hand_are_taken_back_like_others() {
    let mut split = pair(false, 8, RingOptions::default());
    let ring = split.driver.split();
    let own = ring.reserve(2);
    ring.write_descriptor(own[0], SplitDescriptor { addr: BUFFERS_AT, len: 5, flags: 1, next: own[1] });
    ring.write_descriptor(own[1], SplitDescriptor { addr: BUFFERS_AT, len: 6, flags: 2, next: 0 });
    ring.add_raw(own[0]);
    assert_eq!(ring.free_descriptors(), 6);
    split.driver.publish();
    let chain = split.device.pop(&split.files).unwrap();
    assert_eq!(chain.pieces, [(BUFFERS_AT, 5, false), (BUFFERS_AT, 6, true)]);
    split.device.push(&split.files, &[(&chain, 3)]);
    assert_eq!(split.driver.take_used(), Some(Used { id: own[0], len: 3 }));
    assert_eq!(split.driver.free_descriptors(), 6);

    let mut packed = pair(true, 3, RingOptions::default());
    for _ in 0..5 {
        let first = PackedDescriptor { addr: BUFFERS_AT, len: 5, id: 1, flags: 1 };
        packed.driver.packed().add_raw(&[first, PackedDescriptor { flags: 2, ..first }]);
        assert_eq!(packed.device.pop(&packed.files), None, "not published yet");
        packed.driver.publish();
        let chain = packed.device.pop(&packed.files).unwrap();
        assert_eq!(chain.pieces, [(BUFFERS_AT, 5, false), (BUFFERS_AT, 5, true)]);
        packed.device.push(&packed.files, &[(&chain, 3)]);
        assert_eq!(packed.driver.take_used(), Some(Used { id: 1, len: 3 }));
        assert_eq!(packed.driver.free_descriptors(), 3);
    }
}

#[test]
fn indices_wrap_at_65536() {
    for event_idx in [false, true] {
        let mut pair = pair(false, 64, RingOptions { event_idx, in_order: false });
        for _ in 0..1100 {
            pair.device.want_kicks(&pair.files, true);
            pair.driver.enable_interrupts();
            while pair.driver.add(&[buffer(0, false)], &[]).is_some() {}
            assert!(pair.driver.publish());
            let before = pair.device.used;
            let chains: Vec<Chain> = std::iter::from_fn(|| pair.device.pop(&pair.files)).collect();
            pair.device.push(&pair.files, &chains.iter().map(|chain| (chain, 0)).collect::<Vec<_>>());
            assert!(pair.device.interrupt_wanted(&pair.files, before));
            assert_eq!(std::iter::from_fn(|| pair.driver.take_used()).count(), 64);
        }
    }
}

#[test]
#[should_panic(expected = "which is not in flight")]
fn a_chain_used_twice_panics() {
    let mut pair = pair(false, 4, RingOptions::default());
    pair.driver.add(&[buffer(0, false)], &[]).unwrap();
    pair.driver.publish();
    let chain = pair.device.pop(&pair.files).unwrap();
    pair.device.push(&pair.files, &[(&chain, 0), (&chain, 0)]);
    pair.driver.take_used();
}

#[test]
#[should_panic(expected = "the device says that it wrote 2 bytes into the 1 writable bytes")]
fn a_length_beyond_the_writable_bytes_panics() {
    let mut pair = pair(true, 4, RingOptions::default());
    pair.driver.add(&[buffer(0, true)], &[]).unwrap();
    pair.driver.publish();
    let chain = pair.device.pop(&pair.files).unwrap();
    pair.device.push(&pair.files, &[(&chain, 2)]);
    pair.driver.take_used();
}
