//! A hash table of fixed capacity, with entries ordered by age.
//!
//! The caller must hash with a secret. Without a secret, an attacker could choose addresses and ports that make long
//! chains.

/// The slot number that means "no slot".
const NONE: u32 = u32::MAX;
/// Buckets per entry. With two buckets per entry, about nine of ten buckets of a full table hold at most one entry.
const BUCKETS_PER_ENTRY: usize = 2;

/// The links of an entry to other entries.
#[derive(Clone, Copy, Debug)]
struct Links {
    bucket: u32,
    /// Next entry of the same bucket.
    chain_next: u32,
    /// Next older entry of the same [`Order`].
    older: u32,
    newer: u32,
}

const UNLINKED: Links = Links { bucket: NONE, chain_next: NONE, older: NONE, newer: NONE };

/// Entries of a table in the order of insertion. A table can have several orders, and each entry belongs to one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    oldest: u32,
    newest: u32,
}

impl Order {
    /// An order without entries.
    pub const EMPTY: Self = Self { oldest: NONE, newest: NONE };

    /// Returns the slot of the oldest entry.
    #[inline]
    pub fn oldest(&self) -> Option<usize> {
        some(self.oldest)
    }
}

/// A hash table of fixed capacity. Only [`Table::new`] allocates. The table evicts no entry: the caller chooses which
/// entry to remove.
#[derive(Debug)]
pub struct Table<T> {
    entries: Box<[T]>,
    links: Box<[Links]>,
    buckets: Box<[u32]>,
    /// Shift that turns the upper bits of a hash into a bucket number.
    shift: u32,
    free: Vec<u32>,
}

impl<T: Clone> Table<T> {
    /// Allocates room for `entries_max` entries. Each slot holds a copy of `vacant` until the slot is written.
    pub fn new(entries_max: usize, vacant: T) -> Self {
        let buckets = (entries_max * BUCKETS_PER_ENTRY).next_power_of_two().max(2);
        Self {
            entries: vec![vacant; entries_max].into(),
            links: vec![UNLINKED; entries_max].into(),
            buckets: vec![NONE; buckets].into(),
            shift: u32::BITS - buckets.trailing_zeros(),
            free: (0..entries_max as u32).rev().collect(),
        }
    }
}

impl<T> Table<T> {
    /// Returns the slot of the first entry in this hash's bucket for which `is` returns true.
    #[inline]
    pub fn find(&self, hash: u32, is: impl Fn(&T) -> bool) -> Option<usize> {
        let mut slot = self.buckets[self.bucket(hash)];
        while slot != NONE {
            if is(&self.entries[slot as usize]) {
                return Some(slot as usize);
            }
            slot = self.links[slot as usize].chain_next;
        }
        None
    }

    /// Returns the slot for the next insertion, or `None` if the table is full.
    #[inline]
    pub fn vacant(&self) -> Option<usize> {
        self.free.last().map(|&slot| slot as usize)
    }

    /// Links the slot returned by [`Table::vacant`] under `hash`, as the newest entry of `order`.
    #[inline]
    pub fn insert(&mut self, hash: u32, order: &mut Order) -> Option<usize> {
        let slot = self.free.pop()?;
        let bucket = self.bucket(hash);
        let chain_next = std::mem::replace(&mut self.buckets[bucket], slot);
        self.links[slot as usize] = Links { bucket: bucket as u32, chain_next, older: order.newest, newer: NONE };
        match order.newest {
            NONE => order.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        order.newest = slot;
        Some(slot as usize)
    }

    /// Unlinks the entry in `slot` from its `order`, and makes the slot vacant.
    pub fn remove(&mut self, slot: usize, order: &mut Order) {
        let links = self.links[slot];
        let mut link = &mut self.buckets[links.bucket as usize];
        while *link != slot as u32 {
            link = &mut self.links[*link as usize].chain_next;
        }
        *link = links.chain_next;
        match links.older {
            NONE => order.oldest = links.newer,
            older => self.links[older as usize].newer = links.newer,
        }
        match links.newer {
            NONE => order.newest = links.older,
            newer => self.links[newer as usize].older = links.older,
        }
        self.free.push(slot as u32);
    }

    /// Returns the slot of the next newer entry in the same order.
    #[inline]
    pub fn newer(&self, slot: usize) -> Option<usize> {
        some(self.links[slot].newer)
    }

    /// Returns the entry in `slot`.
    #[inline]
    pub fn entry(&self, slot: usize) -> &T {
        &self.entries[slot]
    }

    /// Returns the entry in `slot`, mutably. The entry's hash must stay the same while the entry is linked.
    #[inline]
    pub fn entry_mut(&mut self, slot: usize) -> &mut T {
        &mut self.entries[slot]
    }

    /// Returns the total capacity of all parts of the table.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len() + self.links.len() + self.buckets.len() + self.free.capacity()
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }
}

#[inline]
fn some(slot: u32) -> Option<usize> {
    (slot != NONE).then_some(slot as usize)
}
