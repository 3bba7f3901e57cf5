//! What the rings compute without memory. The rings themselves are judged from outside, by a driver that
//! shares no code with them (`tests/vhost_*.rs`).

use super::*;

#[test]
fn an_event_is_passed_exactly_when_an_index_on_the_way_is_it() {
    for old in [0, 1, 0x7fff, 0xfff0, 0xffff_u16] {
        for count in [0, 1, 2, 31, 256_u16] {
            let new = old.wrapping_add(count);
            for event in (0..600_u16).map(|n| old.wrapping_sub(300).wrapping_add(n)) {
                // The index after each of the entries that became visible.
                let naive = (0..count).any(|n| old.wrapping_add(n) == event);
                assert_eq!(is_passed(event, new, old), naive, "event {event}, {old} to {new}");
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
        // One chain waits whenever the next ones are fetched.
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
