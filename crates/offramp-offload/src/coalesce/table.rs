//! The bounded table of flows: found by key, ordered by start.

use std::hash::{BuildHasher, RandomState};

use super::flow::Flow;
use super::head::Key;

/// No slot.
const NONE: u32 = u32::MAX;
/// Buckets per flow: at two, more than half of all chains of a full table have one link at most.
const BUCKETS_PER_FLOW: usize = 2;

/// How a held flow hangs in the table.
#[derive(Clone, Copy, Debug)]
struct Links {
    /// The chain's first link.
    bucket: u32,
    /// Next flow of the same bucket.
    chain_next: u32,
    /// Neighbours in the order of starts.
    older: u32,
    newer: u32,
}

/// Flows by key. All memory is allocated once.
///
/// The bucket is chosen with secrets that nobody outside knows, so no choice of ports and addresses
/// makes chains long. Nothing that is handed out depends on them.
#[derive(Debug)]
pub(super) struct FlowTable {
    flows: Box<[Flow]>,
    links: Box<[Links]>,
    buckets: Box<[u32]>,
    free: Vec<u32>,
    secrets: [u64; 5],
    oldest: u32,
    newest: u32,
    /// Found or started last: frames come in bursts of one flow.
    last: u32,
}

impl FlowTable {
    pub(super) fn new(flows_max: usize) -> Self {
        let random = RandomState::new();
        Self {
            flows: vec![Flow::VACANT; flows_max].into(),
            links: vec![Links { bucket: NONE, chain_next: NONE, older: NONE, newer: NONE }; flows_max].into(),
            buckets: vec![NONE; (flows_max * BUCKETS_PER_FLOW).next_power_of_two()].into(),
            free: (0..flows_max as u32).rev().collect(),
            secrets: std::array::from_fn(|n| random.hash_one(n) | 1),
            oldest: NONE,
            newest: NONE,
            last: 0,
        }
    }

    /// The slot of the flow that was found or started last; it may be vacant by now.
    #[inline]
    pub(super) fn last(&self) -> usize {
        self.last as usize
    }

    /// The slot that holds the flow.
    #[inline]
    pub(super) fn find(&mut self, key: &Key) -> Option<usize> {
        let mut slot = self.buckets[self.bucket(key)];
        while slot != NONE {
            if self.flows[slot as usize].key.is(key) {
                self.last = slot;
                return Some(slot as usize);
            }
            slot = self.links[slot as usize].chain_next;
        }
        None
    }

    /// The slot that the next flow will get; none when every slot is held.
    pub(super) fn vacant(&self) -> Option<usize> {
        self.free.last().map(|slot| *slot as usize)
    }

    /// Holds the flow that was written to the slot that [`Self::vacant`] named, as the newest.
    pub(super) fn insert(&mut self) {
        let Some(slot) = self.free.pop() else { return };
        let bucket = self.bucket(&self.flows[slot as usize].key) as u32;
        self.links[slot as usize] =
            Links { bucket, chain_next: self.buckets[bucket as usize], older: self.newest, newer: NONE };
        self.buckets[bucket as usize] = slot;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.last = slot;
    }

    /// Gives the slot back.
    pub(super) fn remove(&mut self, slot: usize) {
        let links = self.links[slot];
        self.unlink_chain(slot as u32, links);
        match links.older {
            NONE => self.oldest = links.newer,
            older => self.links[older as usize].newer = links.newer,
        }
        match links.newer {
            NONE => self.newest = links.older,
            newer => self.links[newer as usize].older = links.older,
        }
        self.flows[slot].vacate();
        self.free.push(slot as u32);
    }

    fn unlink_chain(&mut self, slot: u32, links: Links) {
        let head = &mut self.buckets[links.bucket as usize];
        if *head == slot {
            *head = links.chain_next;
            return;
        }
        let mut at = *head;
        while self.links[at as usize].chain_next != slot {
            at = self.links[at as usize].chain_next;
        }
        self.links[at as usize].chain_next = links.chain_next;
    }

    /// The flow that was started first.
    #[inline]
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest as usize)
    }

    /// The flow that was started next after this one.
    pub(super) fn newer(&self, slot: usize) -> Option<usize> {
        let newer = self.links[slot].newer;
        (newer != NONE).then_some(newer as usize)
    }

    #[inline]
    pub(super) fn flow(&self, slot: usize) -> &Flow {
        &self.flows[slot]
    }

    #[inline]
    pub(super) fn flow_mut(&mut self, slot: usize) -> &mut Flow {
        &mut self.flows[slot]
    }

    /// Entries that all parts have room for.
    #[cfg(test)]
    pub(super) fn slots_capacity(&self) -> usize {
        self.flows.len() + self.links.len() + self.buckets.len() + self.free.capacity()
    }

    #[inline]
    fn bucket(&self, key: &Key) -> usize {
        key.hash(&self.secrets) as usize & (self.buckets.len() - 1)
    }
}
