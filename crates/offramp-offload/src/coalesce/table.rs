//! The bounded table of flows, with look-up by key, ordered by the start of the flows.

use std::hash::{BuildHasher, RandomState};

use super::flow::Flow;
use super::head::Key;
use crate::table::{Order, Table};

/// The table of flows by key. The secrets of the hash function are random, but the order of the flows does not depend
/// on them.
#[derive(Debug)]
pub(super) struct FlowTable {
    pub(super) flows: Table<Flow>,
    by_start: Order,
    secrets: [u64; 5],
    /// Slot of the flow that was found or started last, because frames arrive in bursts of one flow. The slot can be
    /// vacant.
    pub(super) last: usize,
}

impl FlowTable {
    pub(super) fn new(flows_max: usize) -> Self {
        let random = RandomState::new();
        Self {
            flows: Table::new(flows_max, Flow::default()),
            by_start: Order::EMPTY,
            secrets: std::array::from_fn(|n| random.hash_one(n) | 1),
            last: 0,
        }
    }

    /// Returns the slot of the flow with this key.
    #[inline]
    pub(super) fn find(&mut self, key: &Key) -> Option<usize> {
        let slot = self.flows.find(key.hash(&self.secrets), |flow| flow.key.is(key))?;
        self.note(slot);
        Some(slot)
    }

    /// Adds the flow in the vacant slot as the newest flow.
    pub(super) fn insert(&mut self) {
        let Some(slot) = self.flows.vacant() else { return };
        let hash = self.flows.entry(slot).key.hash(&self.secrets);
        self.flows.insert(hash, &mut self.by_start);
        self.note(slot);
    }

    /// Notes that the current frame belongs to the flow in `slot`.
    #[inline]
    fn note(&mut self, slot: usize) {
        let last = std::mem::replace(&mut self.last, slot);
        self.flow_mut(last).successor = slot;
    }

    /// Removes the flow and frees the slot.
    pub(super) fn remove(&mut self, slot: usize) {
        self.flows.remove(slot, &mut self.by_start);
        self.flows.entry_mut(slot).vacate();
    }

    /// Returns the slot of the flow with the oldest aggregate.
    #[inline]
    pub(super) fn oldest(&self) -> Option<usize> {
        self.by_start.oldest()
    }

    #[inline]
    pub(super) fn flow(&self, slot: usize) -> &Flow {
        self.flows.entry(slot)
    }

    #[inline]
    pub(super) fn flow_mut(&mut self, slot: usize) -> &mut Flow {
        self.flows.entry_mut(slot)
    }
}
