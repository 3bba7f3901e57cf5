//! Tests of packed rings that start in the middle of operation: bases, laps and inflight regions.

use super::*;
use crate::inflight::Region;
use crate::memory::Extent;
use std::sync::Arc;

const SIZE: u16 = 8;
const USER: u64 = 0x7000_0000;
const MEMORY_LEN: usize = 4096;
const REGION_LEN: usize = 512;
const RING_LEN: usize = SIZE as usize * DESCRIPTOR_LEN as usize;
const PLACE: RingPlace = RingPlace {
    size: SIZE,
    descriptors: USER,
    driver: USER + RING_LEN as u64,
    device: USER + RING_LEN as u64 + EVENT_LEN,
};

fn bytes(memory: &GuestMemory) -> Vec<u8> {
    memory.mapping().bytes(MEMORY_LEN)
}

/// Sets up a ring with the given contents of memory and inflight region.
fn ring_over(memory: &[u8], region: &[u8], base: u32) -> (Ring, GuestMemory, Arc<Region>) {
    let guest = GuestMemory::anonymous(&[Extent { guest: 0, user: USER, len: MEMORY_LEN as u64, file_offset: 0 }]);
    guest.mapping().fill(memory);
    let inflight = Region::anonymous(region.len(), 1, SIZE);
    inflight.mapping().fill(region);
    let ring = Ring::new(&guest, &PLACE, base, RingOptions::default(), inflight.part(0, SIZE)).unwrap();
    (ring, guest, inflight)
}

/// Returns three chains around the end of a ring, with one, two and one descriptors.
fn three_chains() -> (Vec<u8>, Position, Position) {
    let mut memory = vec![0; 4096];
    for (index, flags, id) in [(6, AVAIL, 5), (7, AVAIL | NEXT, 0), (0, USED, 2), (1, USED, 7u16)] {
        let descriptor =
            [&(0x100 * index as u64).to_le_bytes()[..], &60u32.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()];
        memory[16 * index..16 * index + 16].copy_from_slice(&descriptor.concat());
    }
    (memory, Position { index: 6, wrap: true }, Position { index: 2, wrap: false })
}

#[test]
fn a_ring_goes_on_rightly_wherever_the_backend_was_killed_while_it_showed_a_batch() {
    let (memory, before, after) = three_chains();
    let base = u32::from(before.bits()) * 0x1_0001;
    let (mut ring, guest, inflight) = ring_over(&memory, &[0; REGION_LEN], base);
    let region_bytes = || inflight.mapping().bytes(REGION_LEN);
    let mut batch = Batch::default();
    assert_eq!(ring.fetch(&guest, &mut batch).unwrap().chains, 3);
    while let Some(chain) = batch.pop() {
        ring.add_used(&chain, 0);
    }
    let region_before = region_bytes();
    let part = ring.inflight.take().unwrap();
    ring.save_staged(&part);
    let region_between = region_bytes();
    ring.inflight = Some(part);
    ring.publish(0);
    let (shown, region_after) = (bytes(&guest), region_bytes());
    // All descriptors are overwritten, except the flags that publish the batch.
    let mut torn = shown.clone();
    let flags_at = 6 * DESCRIPTOR_LEN as usize + 14;
    torn[flags_at..flags_at + 2].copy_from_slice(&memory[flags_at..flags_at + 2]);
    assert!(torn != memory && torn != shown);
    let cases = [
        (&memory, &region_before, before),
        (&memory, &region_between, before),
        (&torn, &region_between, before),
        (&shown, &region_between, after),
        (&shown, &region_after, after),
    ];
    for (n, (left, region, expected)) in cases.into_iter().enumerate() {
        let (mut ring, guest, inflight) = ring_over(left, region, 0x8000_8000);
        assert_eq!((ring.next_used, ring.next_available), (expected, expected), "case {n}");
        let chains = if expected == before { 3 } else { 0 };
        assert!(bytes(&guest) == if expected == before { &*memory } else { &*shown }, "case {n}");
        let mut batch = Batch::default();
        assert_eq!(ring.fetch(&guest, &mut batch).unwrap().chains, chains, "case {n}");
        // The next backend finds no batch in progress.
        drop(ring);
        let settled = inflight.part(0, SIZE).unwrap().progress(SIZE);
        assert_eq!(settled, Some(Progress { before: expected.place(), after: expected.place(), saved: 0 }));
    }
}

#[test]
fn a_base_of_0_is_the_start_of_a_new_ring_or_of_a_lap_with_wrap_counter_0() {
    let laps = [
        ("new, nothing available", vec![], true),
        ("new, some chains available", vec![(0, AVAIL), (1, AVAIL | NEXT), (2, AVAIL)], true),
        ("new and full", (0..8).map(|at| (at, AVAIL)).collect(), true),
        ("all used in the first lap", (0..8).map(|at| (at, AVAIL | USED)).collect(), false),
        (
            "used as one chain, its other descriptors as the driver left them",
            {
                let rest = (1..8).map(|at| (at, AVAIL | NEXT));
                [(0, AVAIL | USED)].into_iter().chain(rest).collect()
            },
            false,
        ),
        (
            "the last chain used, and one before it that crossed the start",
            { vec![(0, AVAIL), (1, AVAIL | USED), (5, AVAIL | USED), (6, AVAIL | NEXT), (7, AVAIL)] },
            false,
        ),
        ("available again, all of it", (0..8).map(|at| (at, USED)).collect(), false),
    ];
    for (what, descriptors, wrap) in laps {
        let mut memory = vec![0; 4096];
        for (at, flags) in descriptors {
            memory[16 * at + 14..16 * at + 16].copy_from_slice(&flags.to_le_bytes());
        }
        let (ring, ..) = ring_over(&memory, &[0; 512], 0);
        let start = Position { index: 0, wrap };
        assert_eq!((ring.next_available, ring.next_used), (start, start), "{what}");
        // Any other base is used unchanged.
        let (ring, ..) = ring_over(&memory, &[0; 512], 0x0003_0003);
        assert_eq!(ring.next_used, Position { index: 3, wrap: false }, "{what}");
    }
}

#[test]
fn a_region_that_makes_no_sense_is_refused() {
    let (memory, ..) = three_chains();
    // The words are: version, descriptors, free lists, positions, wrap counters.
    for words in [[1, 8, 0, 0, 8, 0, 0], [1, 8, 0, 0, 0, 9, 0], [1, 8, 0, 9, 1, 0, 0]] {
        let mut region = vec![0; 512];
        let words: Vec<u8> = words.iter().flat_map(|word: &u16| word.to_le_bytes()).collect();
        region[8..8 + words.len()].copy_from_slice(&words);
        let (_, guest, inflight) = ring_over(&memory, &[0; 512], 0x8000_8000);
        inflight.mapping().fill(&region);
        let refused = Ring::new(&guest, &PLACE, 0x8000_8000, RingOptions::default(), inflight.part(0, SIZE));
        assert_eq!(refused.unwrap_err(), BadRing::Inflight);
    }
}

#[test]
fn a_chain_of_another_ring_leads_nowhere_out_of_this_one() {
    let (memory, ..) = three_chains();
    let (mut ring, _guest, ..) = ring_over(&memory, &[0; 512], 0x8000_8000);
    for slots in [SIZE + 1, u16::MAX] {
        ring.add_used(&Chain { id: 0, slots, first: 0, count: 0, len: 0 }, 0);
        ring.publish(0);
        assert!(ring.next_used.index < SIZE, "{slots} slots");
    }
}
