//! Tests of ring arithmetic without memory, and of the rings' reaction to a driver that does not wait. Integration
//! tests check whole rings with a driver that shares no code with the rings (`tests/vhost_*.rs` of `offramp-ports`).

use super::chain::TAKEN_MAX;
use super::descriptor::{NEXT, WRITE, need_event};
use super::*;
use crate::memory::Extent;

/// Number of entries in the test rings.
const ENTRIES: u16 = 4;
const PLACE: RingPlace = RingPlace { size: ENTRIES, descriptors: 0, driver: 0x100, device: 0x200 };
const BUFFER_AT: u64 = 0x800;
const BUFFER_LEN: u32 = 100;

/// Returns a page of guest memory.
pub(super) fn page() -> GuestMemory {
    GuestMemory::anonymous(&[Extent { guest: 0, user: 0, len: 4096, file_offset: 0 }])
}

/// Writes a value as the guest does.
pub(super) fn poke<T>(memory: &GuestMemory, at: u64, value: T) {
    let host = memory.at_guest(at, size_of::<T>() as u64).unwrap().cast::<T>();
    // SAFETY: the bytes lie in the page, and every address used here is aligned.
    unsafe { host.write_volatile(value) };
}

fn receive_ring(memory: &GuestMemory, is_packed: bool) -> Ring {
    let options = RingOptions { direction: Direction::Receive, ..RingOptions::default() };
    Ring::new(memory, is_packed, &PLACE, if is_packed { 1 << 15 } else { 0 }, options, None).unwrap()
}

/// Uses all waiting chains, without publishing the used chains.
fn use_all(ring: &mut Ring, batch: &mut Batch) {
    while let Some(chain) = batch.pop() {
        ring.add_used(&chain, 0);
    }
}

#[test]
fn a_split_ring_takes_nothing_twice_that_the_driver_was_not_given_back() {
    let (memory, mut batch) = (page(), Batch::default());
    let descriptor = split::Descriptor { addr: BUFFER_AT, len: BUFFER_LEN, flags: WRITE, next: 0 };
    for n in 0..ENTRIES {
        poke(&memory, DESCRIPTOR_LEN * u64::from(n), descriptor);
        poke(&memory, PLACE.driver + 4 + 2 * u64::from(n), n);
    }
    let mut ring = receive_ring(&memory, false);
    for lap in 1..=3 {
        poke(&memory, PLACE.driver + 2, lap * ENTRIES);
        assert_eq!(ring.fetch(&memory, &mut batch).unwrap().chains, usize::from(ENTRIES));
        use_all(&mut ring, &mut batch);
        ring.publish(0);
    }
    poke(&memory, PLACE.driver + 2, 4 * ENTRIES);
    ring.fetch(&memory, &mut batch).unwrap();
    use_all(&mut ring, &mut batch);
    poke(&memory, PLACE.driver + 2, 4 * ENTRIES + 1);
    assert_eq!(ring.fetch(&memory, &mut batch).unwrap_err(), Broken::AvailableIndex);
}

#[test]
fn a_packed_ring_takes_nothing_twice_that_the_driver_was_not_given_back() {
    const AVAIL: u16 = 1 << 7;
    const USED: u16 = 1 << 15;
    let (memory, mut batch) = (page(), Batch::default());
    let make_available = |n: u16, flags: u16| {
        let descriptor = packed::Descriptor { addr: BUFFER_AT, len: BUFFER_LEN, id: n, flags: WRITE | flags };
        poke(&memory, DESCRIPTOR_LEN * u64::from(n), descriptor);
    };
    let mut ring = receive_ring(&memory, true);
    (0..ENTRIES).for_each(|n| make_available(n, AVAIL));
    assert_eq!(ring.fetch(&memory, &mut batch).unwrap().chains, usize::from(ENTRIES));
    use_all(&mut ring, &mut batch);
    (0..ENTRIES).for_each(|n| make_available(n, USED));
    assert_eq!(ring.fetch(&memory, &mut batch).unwrap().chains, 0, "the driver has nothing back yet");
    ring.publish(0);
    (0..ENTRIES).for_each(|n| make_available(n, if n + 1 < ENTRIES { USED } else { USED | NEXT }));
    assert_eq!(ring.fetch(&memory, &mut batch).unwrap_err(), Broken::Head, "a chain beyond the lap");
}

#[test]
fn an_event_is_passed_exactly_when_an_index_on_the_way_is_it() {
    for old in [0, 1, 0x7fff, 0xfff0, 0xffff_u16] {
        for count in [0, 1, 2, 31, 256_u16] {
            let new = old.wrapping_add(count);
            for event in (0..600_u16).map(|n| old.wrapping_sub(300).wrapping_add(n)) {
                // Compare with the index after each newly visible entry.
                let naive = (0..count).any(|n| old.wrapping_add(n) == event);
                assert_eq!(need_event(event, new, old), naive, "event {event}, {old} to {new}");
            }
        }
    }
}

#[test]
fn what_waits_in_a_batch_is_taken_in_order_and_once() {
    let chain = |id| Chain { id, slots: 1, first: 0, count: 0, len: 0 };
    let mut batch = Batch { chains: (0..3).map(chain).collect(), ..Batch::default() };
    assert_eq!(batch.waiting().len(), 3);
    assert_eq!(batch.pop().map(|c| c.id), Some(0));
    batch.make_room();
    assert_eq!(batch.waiting().len(), 2);
    assert_eq!([batch.pop(), batch.pop(), batch.pop()].map(|c| c.map(|c| c.id)), [Some(1), Some(2), None]);
    batch.make_room();
    assert!(batch.is_empty() && batch.chains.is_empty());
}

#[test]
fn what_was_taken_does_not_pile_up_before_what_always_waits() {
    let mut batch = Batch::default();
    let (mut next, mut taken) = (0u16, 0u16);
    let host = std::ptr::NonNull::dangling();
    for _ in 0..10_000 {
        batch.make_room();
        // One chain is still waiting at every fetch, so the batch is never empty.
        while batch.waiting().len() < 3 {
            let first = batch.buffers.len() as u32;
            batch.buffers.push(Buffer { host, guest: u64::from(next), len: 1 });
            batch.chains.push(Chain { id: next, slots: 1, first, count: 1, len: 1 });
            next = next.wrapping_add(1);
        }
        for _ in 0..2 {
            let chain = batch.pop().unwrap();
            assert_eq!((chain.id, batch.buffers(&chain)[0].guest), (taken, u64::from(taken)));
            taken = taken.wrapping_add(1);
        }
        assert!(batch.chains.len() < 2 * TAKEN_MAX && batch.buffers.len() < 2 * TAKEN_MAX);
    }
}

/// Number of entries in a ring with room for chains above the maximum length.
const LARGE: u16 = 4 * CHAIN_DESCRIPTORS_MAX;
const LARGE_PLACE: RingPlace = RingPlace { size: LARGE, descriptors: 0, driver: 0x2_0000, device: 0x3_0000 };

/// Sets up a ring with available chains of these lengths.
fn ring_of_chains(memory: &GuestMemory, is_packed: bool, lengths: &[u16]) -> Ring {
    let mut slot = 0;
    for (nth, &len) in lengths.iter().enumerate() {
        poke(memory, LARGE_PLACE.driver + 4 + 2 * nth as u64, slot);
        for left in (0..len).rev() {
            let (addr, at) = (0x4_0000, DESCRIPTOR_LEN * u64::from(slot));
            let goes_on = if left > 0 { NEXT } else { 0 };
            slot += 1;
            if is_packed {
                poke(memory, at, packed::Descriptor { addr, len: 1, id: nth as u16, flags: goes_on | 1 << 7 });
            } else {
                poke(memory, at, split::Descriptor { addr, len: 1, flags: goes_on, next: slot });
            }
        }
    }
    if !is_packed {
        poke(memory, LARGE_PLACE.driver + 2, lengths.len() as u16);
    }
    let base = if is_packed { 1 << 15 } else { 0 };
    Ring::new(memory, is_packed, &LARGE_PLACE, base, RingOptions::default(), None).unwrap()
}

#[test]
fn a_chain_is_followed_as_far_as_those_of_other_devices_and_a_fetch_ends_after_one_such() {
    let memory = || GuestMemory::anonymous(&[Extent { guest: 0, user: 0, len: 0x5_0000, file_offset: 0 }]);
    for is_packed in [false, true] {
        let (longest, memory, mut batch) = (CHAIN_DESCRIPTORS_MAX, memory(), Batch::default());
        let mut ring = ring_of_chains(&memory, is_packed, &[longest + 1, longest, longest, 1]);
        let fetched = |chains, bad, reason| Fetched { chains, bad, reason };
        // No chain is fetched after a chain with more than the maximum number of descriptors. Chains of maximum length
        // are fetched one by one.
        assert_eq!(ring.fetch(&memory, &mut batch).unwrap(), fetched(0, 1, Some(BadChain::TooMany)));
        for _ in 0..3 {
            assert_eq!(ring.fetch(&memory, &mut batch).unwrap(), fetched(1, 0, None));
        }
        let costs: Vec<_> = batch.waiting().iter().map(Chain::descriptors).collect();
        let bad = if is_packed { longest + 1 } else { longest };
        assert_eq!(costs, [bad, longest, longest, 1].map(usize::from));
        use_all(&mut ring, &mut batch);
        assert_eq!(ring.publish(0).slots, if is_packed { 3 * longest + 2 } else { 4 });
    }
}
