//! Exhaustive tests of small sizes, compared with slow reference rules: the arithmetic and chains of split and packed
//! rings, and the borders of memory. Miri runs the same tests with fewer positions.

use super::chain::{add_buffer, close_chain};
use super::descriptor::{INDIRECT, NEXT, WRITE, indirect_table, need_event};
use super::position::Position;
use super::tests::{page, poke};
use super::*;
use crate::memory::Extent;

const TABLE_AT: u64 = 0;
const INDIRECT_AT: u64 = 0x80;
const DRIVER_AT: u64 = 0x100;
const DEVICE_AT: u64 = 0x200;
const BUFFER_AT: u64 = 0x800;
/// Flags of a packed descriptor: `AVAIL` and `USED` (virtio 1.3, 2.8.1).
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Reads a value as the guest does.
fn peek<T: Copy>(memory: &GuestMemory, at: u64) -> T {
    let host = memory.at_guest(at, size_of::<T>() as u64).unwrap().cast::<T>();
    // SAFETY: the bytes lie in the page, every address used here is aligned, and every pattern of bytes is a number.
    unsafe { host.read_volatile() }
}

fn place(size: u16) -> RingPlace {
    RingPlace { size, descriptors: TABLE_AT, driver: DRIVER_AT, device: DEVICE_AT }
}

/// Returns positions of a split ring: all positions, or under Miri only the positions near every wrap and sign change.
fn indices() -> Vec<u16> {
    let about = |border: u16| (0..6).map(move |n| border.wrapping_sub(3).wrapping_add(n));
    if cfg!(miri) { [0, 0x8000].into_iter().flat_map(about).collect() } else { (0..=u16::MAX).collect() }
}

fn split_descriptor(memory: &GuestMemory, table: u64, at: u16, flags: u16, next: u16) {
    let descriptor = split::Descriptor { addr: BUFFER_AT + 16 * u64::from(at), len: 1 + u32::from(at), flags, next };
    poke(memory, table + DESCRIPTOR_LEN * u64::from(at), descriptor);
}

#[test]
fn a_split_ring_of_every_small_size_goes_on_at_every_index() {
    for size in [1u16, 2, 4, 8] {
        let memory = page();
        (0..size).for_each(|at| split_descriptor(&memory, TABLE_AT, at, 0, 0));
        // The driver makes its heads available in an arbitrary order.
        let head = |slot: u16| (slot % size) ^ (size - 1);
        (0..size).for_each(|slot| poke(&memory, DRIVER_AT + 4 + 2 * u64::from(slot), head(slot)));
        let mut batch = Batch::default();
        for start in indices() {
            for count in 0..=size + 1 {
                poke(&memory, DEVICE_AT + 2, start);
                poke(&memory, DRIVER_AT + 2, start.wrapping_add(count));
                let mut ring = split::Ring::new(&memory, &place(size), 0, RingOptions::default()).unwrap();
                batch.clear();
                let fetched = ring.fetch(&memory, &mut batch);
                if count > size {
                    assert_eq!(fetched, Err(Broken::AvailableIndex), "{count} of {size} from {start}");
                    continue;
                }
                assert_eq!(fetched.unwrap().chains, usize::from(count), "{count} of {size} from {start}");
                assert_eq!(ring.base(&batch), u32::from(start), "what waits is fetched again");
                for nth in 0..count {
                    let chain = batch.pop().unwrap();
                    assert_eq!(chain.id, head(start.wrapping_add(nth)), "{nth} of {size} from {start}");
                    ring.add_used(&chain, u32::from(nth) + 7);
                }
                assert_eq!(ring.publish(0).slots, count);
                assert_eq!(peek::<u16>(&memory, DEVICE_AT + 2), start.wrapping_add(count));
                for nth in 0..count {
                    let slot = start.wrapping_add(nth) % size;
                    let entry = peek::<[u32; 2]>(&memory, DEVICE_AT + 4 + 8 * u64::from(slot));
                    assert_eq!(entry, [head(slot).into(), u32::from(nth) + 7], "{nth} of {size} from {start}");
                }
            }
        }
    }
}

/// Follows a chain with a list of the visited descriptors. Each link is the index of the chain's next descriptor, or
/// `None` at the chain's end.
fn walk_naively(links: &[Option<u16>], head: u16) -> Result<usize, BadChain> {
    let (mut seen, mut at) = (vec![], head);
    loop {
        // A chain with more links than the table is a loop.
        if seen.contains(&at) || seen.len() == links.len() {
            return Err(BadChain::Endless);
        }
        let link = links.get(usize::from(at)).ok_or(BadChain::Index)?;
        seen.push(at);
        match link {
            Some(next) => at = *next,
            None => return Ok(seen.len()),
        }
    }
}

/// Returns all tables of `size` descriptors. Each descriptor ends its chain, links to a descriptor of the table, or
/// links past the table.
fn tables(size: u16) -> impl Iterator<Item = Vec<Option<u16>>> {
    let choices = u32::from(size) + 2;
    (0..choices.pow(size.into())).map(move |number| {
        let choice = |at| (number / choices.pow(at)) % choices;
        (0..u32::from(size)).map(|at| choice(at).checked_sub(1).map(|next| next as u16)).collect()
    })
}

#[test]
fn every_table_of_up_to_four_split_descriptors_is_a_chain_a_loop_or_leads_out() {
    // A table of three must be indirect, because a ring's size is a power of two.
    let sizes = [(1, false), (2, false), (1, true), (2, true), (3, true), (4, false)];
    // Skip the last size under Miri, because the test of this size would take many minutes.
    for (size, is_indirect) in sizes.into_iter().take(if cfg!(miri) { 5 } else { 6 }) {
        let memory = page();
        let ring_size = if is_indirect { 1 } else { size };
        let table = if is_indirect { INDIRECT_AT } else { TABLE_AT };
        let options = RingOptions { indirect: true, ..RingOptions::default() };
        for links in tables(size) {
            for (at, link) in links.iter().enumerate() {
                let flags = if link.is_some() { NEXT } else { 0 };
                split_descriptor(&memory, table, at as u16, flags, link.unwrap_or(u16::MAX));
            }
            for head in 0..ring_size {
                if is_indirect {
                    let len = u32::from(size) * DESCRIPTOR_LEN as u32;
                    let descriptor = split::Descriptor { addr: INDIRECT_AT, len, flags: INDIRECT, next: 0 };
                    poke(&memory, TABLE_AT, descriptor);
                }
                poke(&memory, DRIVER_AT + 4, head);
                poke(&memory, DRIVER_AT + 2, 1u16);
                poke(&memory, DEVICE_AT + 2, 0u16);
                let mut ring = split::Ring::new(&memory, &place(ring_size), 0, options).unwrap();
                let mut batch = Batch::default();
                let fetched = ring.fetch(&memory, &mut batch).unwrap();
                let found = fetched.reason.map_or(Ok(batch.buffers.len()), Err);
                assert_eq!(found, walk_naively(&links, head), "{links:?} from {head}, indirect: {is_indirect}");
                let chain = batch.pop().unwrap();
                assert_eq!((chain.id, batch.is_empty()), (head, true), "it goes back whatever it was");
                assert_eq!(found.is_err(), chain.len() == 0);
            }
        }
    }
}

/// Checks a chain of consecutive descriptors by the descriptors' flags. In a split ring, each descriptor except the
/// last continues the chain. An indirect table of a packed ring is a whole chain, and if the device reads the table's
/// buffers, `WRITE` has no meaning in the table.
fn judge(flags: &[u16], is_packed: bool, direction: Direction) -> Result<usize, BadChain> {
    for (at, flags) in flags.iter().enumerate() {
        if flags & INDIRECT != 0 {
            return Err(BadChain::Indirect);
        }
        let is_right = match direction {
            Direction::Transmit => flags & WRITE == 0 || is_packed,
            Direction::Receive => flags & WRITE != 0,
            Direction::Control => true,
        };
        if !is_right {
            return Err(BadChain::Direction);
        }
        if flags & NEXT == 0 && !is_packed {
            return Ok(at + 1);
        }
    }
    if is_packed { Ok(flags.len()) } else { Err(BadChain::Endless) }
}

#[test]
fn a_chain_of_up_to_four_descriptors_with_any_flags_has_the_direction_of_its_ring_and_no_table_in_a_table() {
    // A table without indirection is a split ring's descriptor table, so its size is a power of two.
    let split = [1u16, 2, 4].map(|size| (size, false, false));
    let indirect = [1, 2, 3, 4].into_iter().flat_map(|size| [(size, true, false), (size, true, true)]);
    let memory = page();
    for (size, is_indirect, is_packed) in
        split.into_iter().chain(indirect).filter(|(size, ..)| *size < 3 || !cfg!(miri))
    {
        let table = if is_indirect { INDIRECT_AT } else { TABLE_AT };
        let directions = [Direction::Transmit, Direction::Receive, Direction::Control];
        for (number, direction) in (0..8u16.pow(size.into())).flat_map(|number| directions.map(|one| (number, one))) {
            let flags: Vec<u16> = (0..size).map(|at| number >> (3 * at) & 7).collect();
            for (at, flags) in (0..size).zip(&flags) {
                let (place, addr) = (table + DESCRIPTOR_LEN * u64::from(at), BUFFER_AT + 16 * u64::from(at));
                if is_packed {
                    poke(&memory, place, packed::Descriptor { addr, len: 1, id: 0, flags: *flags });
                } else {
                    poke(&memory, place, split::Descriptor { addr, len: 1, flags: *flags, next: at + 1 });
                }
            }
            let len = u32::from(size) * DESCRIPTOR_LEN as u32;
            match (is_indirect, is_packed) {
                (false, _) => {}
                (true, false) => {
                    poke(&memory, TABLE_AT, split::Descriptor { addr: table, len, flags: INDIRECT, next: 0 });
                }
                (true, true) => {
                    poke(&memory, TABLE_AT, packed::Descriptor { addr: table, len, id: 0, flags: INDIRECT | AVAIL });
                }
            }
            // Only a split ring has available and used indices.
            if !is_packed {
                poke(&memory, DRIVER_AT + 4, 0u16);
                poke(&memory, DRIVER_AT + 2, 1u16);
                poke(&memory, DEVICE_AT + 2, 0u16);
            }
            let options = RingOptions { indirect: true, direction, ..RingOptions::default() };
            let ring_size = if is_indirect { 1 } else { size };
            let mut ring = Ring::new(&memory, is_packed, &place(ring_size), 0, options, None).unwrap();
            let mut batch = Batch::default();
            let fetched = match &mut ring {
                Ring::Split(ring) => ring.fetch(&memory, &mut batch),
                Ring::Packed(ring) => ring.fetch(&memory, &mut batch),
            };
            let found = fetched.unwrap().reason.map_or(Ok(batch.buffers.len()), Err);
            let what = format!("{flags:?}, indirect: {is_indirect}, packed: {is_packed}, {direction:?}");
            assert_eq!(found, judge(&flags, is_packed, direction), "{what}");
            if let ([chain], Direction::Control) = (batch.waiting(), direction)
                && found.is_ok()
            {
                let marks = batch.is_writable(chain);
                assert!(
                    marks.iter().zip(&flags).all(|(is_writable, flags)| *is_writable == (flags & WRITE != 0)),
                    "{what}"
                );
                assert_eq!(marks.len(), batch.buffers.len(), "{what}");
            }
        }
    }
}

#[test]
fn an_indirect_table_of_any_length_and_place_is_a_table_or_refused() {
    let most = u32::from(CHAIN_DESCRIPTORS_MAX) * DESCRIPTOR_LEN as u32;
    let end = 2 * u64::from(most);
    let memory = GuestMemory::anonymous(&[Extent { guest: 0, user: 0, len: end, file_offset: 0 }]);
    let lens = (0..=80).chain(most - 17..=most + 17).chain([u32::MAX - 15, u32::MAX]);
    for len in lens {
        let borders = [0, end.saturating_sub(len.into()), end, u64::MAX - u64::from(len)];
        for addr in borders.into_iter().flat_map(|at| at.saturating_sub(17)..=at.saturating_add(17)) {
            let entries = u64::from(len) / DESCRIPTOR_LEN;
            let is_table = len % 16 == 0 && (1..=u64::from(CHAIN_DESCRIPTORS_MAX)).contains(&entries);
            let is_mapped = u128::from(addr) + u128::from(len) <= u128::from(end);
            let expected = if is_table && !is_mapped {
                Err(BadChain::Address)
            } else if is_table && addr % 8 == 0 {
                Ok(entries as u16)
            } else {
                Err(BadChain::Indirect)
            };
            let found = indirect_table::<split::Descriptor>(&memory, addr, len).map(|(_, entries)| entries);
            assert_eq!(found, expected, "{len} bytes at {addr:#x}");
        }
    }
}

/// Returns all positions of a packed ring.
fn positions(size: u16) -> impl Iterator<Item = Position> {
    [true, false].into_iter().flat_map(move |wrap| (0..size).map(move |index| Position { index, wrap }))
}

fn after(at: Position, slots: u16, size: u16) -> Position {
    (0..slots).fold(at, |at, _| match at.index + 1 {
        index if index == size => Position { index: 0, wrap: !at.wrap },
        index => Position { index, ..at },
    })
}

fn packed_descriptor(memory: &GuestMemory, at: Position, id: u16, flags: u16) {
    let lap = if at.wrap { AVAIL } else { USED };
    let addr = BUFFER_AT + 16 * u64::from(at.index);
    let descriptor = packed::Descriptor { addr, len: 1, id, flags: lap | flags };
    poke(memory, DESCRIPTOR_LEN * u64::from(at.index), descriptor);
}

/// Writes the descriptors of a ring in which the device has used every descriptor before position `at`, and none from
/// `at` on.
fn used_up_to(memory: &GuestMemory, at: Position, size: u16) {
    for nth in 0..size {
        let slot = after(at, nth, size);
        // In the previous lap, the wrap counter has the other value.
        let flags = if slot.wrap { 0 } else { AVAIL | USED };
        poke(memory, DESCRIPTOR_LEN * u64::from(slot.index), packed::Descriptor { flags, ..Default::default() });
    }
}

#[test]
fn every_division_of_a_packed_ring_into_chains_is_fetched_and_given_back_at_every_position() {
    let largest = if cfg!(miri) { 4 } else { 8 };
    let memory = page();
    for size in 1..=largest {
        for start in positions(size) {
            for count in 0..=size {
                // One bit per descriptor except the last, set if the chain continues.
                for joints in 0..1u16 << count.saturating_sub(1) {
                    check_division(&memory, size, start, count, joints);
                }
            }
        }
    }
}

fn check_division(memory: &GuestMemory, size: u16, start: Position, count: u16, joints: u16) {
    used_up_to(memory, start, size);
    let mut chains = vec![];
    let mut slots = 0;
    for nth in 0..count {
        let goes_on = joints >> nth & 1 == 1;
        let id = chains.len() as u16;
        packed_descriptor(memory, after(start, nth, size), id, if goes_on { NEXT } else { 0 });
        slots += 1;
        if !goes_on {
            chains.push(std::mem::take(&mut slots));
        }
    }
    let what = format!("{chains:?} in {size} from {start:?}");
    let base = u32::from(start.bits()) * 0x1_0001;
    let mut ring = packed::Ring::new(memory, &place(size), base, RingOptions::default(), None).unwrap();
    let base = ring.base(&Batch::default());
    let mut batch = Batch::default();
    assert_eq!(ring.fetch(memory, &mut batch).unwrap().chains, chains.len(), "{what}");
    assert_eq!(ring.fetch(memory, &mut batch).unwrap().chains, 0, "{what}: nothing twice");
    assert_eq!(ring.base(&batch), base, "{what}: what waits is fetched again");
    let mut at = start;
    let mut expected = vec![];
    for (id, slots) in chains.iter().enumerate() {
        let chain = batch.pop().unwrap();
        assert_eq!((chain.id, chain.slots, chain.count), (id as u16, *slots, u32::from(*slots)), "{what}");
        ring.add_used(&chain, 1);
        expected.push((at, id as u16));
        at = after(at, *slots, size);
    }
    assert_eq!(ring.publish(0).slots, count, "{what}");
    for (at, id) in expected {
        let used = peek::<packed::Descriptor>(memory, DESCRIPTOR_LEN * u64::from(at.index));
        let lap = if at.wrap { AVAIL | USED } else { 0 };
        assert_eq!((used.id, used.len, used.flags), (id, 1, lap | WRITE), "{what}");
    }
    assert_eq!(ring.base(&batch), u32::from(at.bits()) * 0x1_0001, "{what}");
}

#[test]
fn a_packed_ring_of_up_to_four_descriptors_with_any_flags_is_fetched_as_far_as_it_is_available() {
    let largest = if cfg!(miri) { 2 } else { 4 };
    let memory = page();
    for size in 1..=largest {
        for start in positions(size) {
            for number in 0..8u16.pow(size.into()) {
                let flags = |at: u16| {
                    let bits = number >> (3 * at) & 7;
                    [NEXT, AVAIL, USED].iter().enumerate().fold(0, |flags, (n, flag)| flags | ((bits >> n & 1) * flag))
                };
                for at in 0..size {
                    let descriptor = packed::Descriptor { addr: BUFFER_AT, len: 1, id: at, flags: flags(at) };
                    poke(&memory, DESCRIPTOR_LEN * u64::from(at), descriptor);
                }
                let base = u32::from(start.bits()) * 0x1_0001;
                // A base of 0 has a separate test.
                let base = if base == 0 { 1 << 31 } else { base };
                let start = Position::from_bits((base >> 16) as u16);
                let mut ring = packed::Ring::new(&memory, &place(size), base, RingOptions::default(), None).unwrap();
                let mut batch = Batch::default();
                let found = ring.fetch(&memory, &mut batch).map(|fetched| (fetched.chains, fetched.bad));
                assert_eq!(found, fetch_naively(start, size, flags), "{number:#o} of {size} from {start:?}");
            }
        }
    }
}

/// Counts the chains from `start` on. Each chain begins with an available descriptor and ends before the lap is over.
fn fetch_naively(start: Position, size: u16, flags: impl Fn(u16) -> u16) -> Result<(usize, usize), Broken> {
    let (mut slots, mut chains) = (0, 0);
    while slots < size {
        let at = after(start, slots, size);
        if flags(at.index) & (AVAIL | USED) != if at.wrap { AVAIL } else { USED } {
            break;
        }
        while slots < size && flags(after(start, slots, size).index) & NEXT != 0 {
            slots += 1;
        }
        if slots == size {
            return Err(Broken::Head);
        }
        (slots, chains) = (slots + 1, chains + 1);
    }
    Ok((chains, 0))
}

#[test]
fn a_packed_driver_is_notified_exactly_when_its_place_is_among_those_that_it_was_shown() {
    let largest = if cfg!(miri) { 3 } else { 8 };
    let memory = page();
    for size in 1..=largest {
        for start in positions(size) {
            for shown in 0..=size {
                for wanted in positions(size) {
                    used_up_to(&memory, start, size);
                    let base = u32::from(start.bits()) * 0x1_0001;
                    let options = RingOptions { event_idx: true, ..RingOptions::default() };
                    let ring = packed::Ring::new(&memory, &place(size), base, options, None).unwrap();
                    let start = Position::from_bits((ring.base(&Batch::default()) >> 16) as u16);
                    poke(&memory, DRIVER_AT, u32::from(wanted.bits()) | 2 << 16);
                    let is_among = (1..=shown).any(|back| after(wanted, back, size) == start);
                    let what = format!("{wanted:?} of {shown} before {start:?} in {size}");
                    assert_eq!(ring.needs_notification(shown.into()), is_among, "{what}");
                }
            }
        }
    }
}

#[test]
fn an_event_is_among_those_that_passed_for_every_distance_and_every_border() {
    let step = if cfg!(miri) { 4099 } else { 1 };
    for count in (0..=u16::MAX).step_by(step) {
        let about = |border: u16| (0..5).map(move |n| border.wrapping_add(n).wrapping_sub(2));
        // The result does not depend on `old`, because `old`, `new` and `event` move together.
        for old in [0, 1, 0x7fff, 0x8000, 0xffff, count] {
            for distance in [0, count, 0x8000].into_iter().flat_map(about) {
                let (event, new) = (old.wrapping_add(distance), old.wrapping_add(count));
                assert_eq!(need_event(event, new, old), distance < count, "event {event}, {old} to {new}");
            }
        }
    }
}

#[test]
#[ignore = "four thousand million cases: with `--release`, some seconds"]
fn an_event_is_among_those_that_passed_for_every_distance_and_every_event() {
    for count in 0..=u16::MAX {
        assert!((0..=u16::MAX).all(|distance| need_event(distance, count, 0) == (distance < count)), "{count}");
    }
}

#[test]
fn every_address_and_length_about_the_borders_of_regions_is_inside_or_refused() {
    const LOW: u64 = 8;
    const TOP: u64 = u64::MAX - 8;
    let region = |guest, len| Extent { guest, user: guest, len, file_offset: 0 };
    // Two adjacent regions, a gap of two bytes, a third region, and a region at the end of the address space.
    let extents = [region(LOW, 8), region(LOW + 8, 4), region(LOW + 14, 2), region(TOP, 8)];
    let memory = GuestMemory::anonymous(&extents);
    let is_inside = |at: u64| extents.iter().any(|e| at.checked_sub(e.guest).is_some_and(|offset| offset < e.len));
    let holds = |e: &Extent, at: u64, len: u64| {
        at >= e.guest && u128::from(at) + u128::from(len) <= u128::from(e.guest + e.len)
    };
    for at in (0..LOW + 20).chain(TOP - 4..=u64::MAX) {
        let border = extents.iter().find(|e| holds(e, at, 1)).map(|e| e.guest + e.len - at);
        assert_eq!(memory.left_at_guest(at), border, "{at:#x}");
        for len in (1..28u32).chain([1 << 31, u32::MAX]) {
            let in_one = extents.iter().any(|e| holds(e, at, len.into()));
            assert_eq!(memory.at_guest(at, len.into()).is_some(), in_one, "{len} bytes at {at:#x}");
            assert_eq!(memory.at_user(at, len.into()).is_some(), in_one, "{len} bytes at {at:#x}");
            let in_largest = holds(&extents[0], at, len.into());
            assert_eq!(memory.window().at(at, len.into()).is_some(), in_largest, "{len} bytes at {at:#x}");
            let is_mapped = len < 64 && (0..u64::from(len)).all(|n| at.checked_add(n).is_some_and(is_inside));
            let mut buffers = vec![];
            let added = add_buffer(&memory, at, len, &mut buffers);
            assert_eq!(added, is_mapped.then_some(()).ok_or(BadChain::Address), "{len} bytes at {at:#x}");
            if is_mapped {
                assert_eq!(close_chain(0, 1, 0, &buffers).unwrap().len(), len as usize);
                let mut next = at;
                for buffer in &buffers {
                    assert_eq!((buffer.guest, buffer.host), (next, memory.at_guest(next, 1).unwrap()));
                    next += u64::from(buffer.len);
                }
            }
        }
    }
}
