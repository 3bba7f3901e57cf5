//! A queue of future events, ordered by time. Events for the same time occur in the order in which they were scheduled.

use crate::time::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of future events.
#[derive(Debug)]
pub struct EventQueue<E> {
    /// Time, sequence number and slot of each event. The heap moves only these short entries, never the events.
    heap: BinaryHeap<Reverse<(Time, u64, usize)>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    next_sequence: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), next_sequence: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Schedules an event, after all events already scheduled for the same time.
    pub fn schedule(&mut self, at: Time, event: E) {
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.heap.push(Reverse((at, self.next_sequence, slot)));
        self.next_sequence += 1;
    }

    /// Removes the next event, and returns it with its time. `None` if no event is due before `end`.
    pub fn next_before(&mut self, end: Time) -> Option<(Time, E)> {
        let Reverse((at, ..)) = *self.heap.peek().filter(|Reverse((at, ..))| *at < end)?;
        let Reverse((_, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.events[slot].take().map(|event| (at, event))
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
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
