//! What happens next: a queue of events in the order of time, and of scheduling where times are equal.

use crate::time::Time;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The events that are to come.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    next_sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Time, u64) {
        (self.at, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), next_sequence: 0 }
    }
}

impl<E> EventQueue<E> {
    /// An event at a moment, behind all that are scheduled for the same.
    pub fn schedule(&mut self, at: Time, event: E) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.heap.push(Reverse(Entry { at, sequence, event }));
    }

    /// The next event and its moment, if it comes before `end`.
    pub fn next_before(&mut self, end: Time) -> Option<(Time, E)> {
        if self.heap.peek()?.0.at >= end {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// Whether nothing is to come any more.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Events that were scheduled so far.
    pub fn scheduled(&self) -> u64 {
        self.next_sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut queue = EventQueue::default();
        for (at, name) in [(5, 'b'), (3, 'a'), (5, 'c'), (9, 'd')] {
            queue.schedule(Time(at), name);
        }
        let mut order = Vec::new();
        while let Some((at, name)) = queue.next_before(Time(9)) {
            order.push((at.0, name));
        }
        assert_eq!(order, [(3, 'a'), (5, 'b'), (5, 'c')]);
        assert!(!queue.is_empty(), "what comes later stays");
    }
}
