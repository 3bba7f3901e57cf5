//! Which station lies behind which port: learned from source addresses, forgotten with time.
//!
//! Every port has a quota of stations that is set aside when it is added, so a port that invents
//! addresses displaces only its own: at its quota, the station of that port which was silent longest
//! makes room. No port can make another's stations be forgotten, and the table is never full for one
//! that is below its quota.

use std::hash::{BuildHasher, RandomState};

/// No entry.
const NONE: u32 = u32::MAX;
/// Buckets per station: most chains of a full table have one link.
const BUCKETS_PER_STATION: usize = 2;
const MAC_LEN: usize = 6;
/// The bit of the first octet that marks a group address (IEEE 802 8.2).
const GROUP_BIT: u8 = 1;
/// Where the EtherType or the outer VLAN tag's protocol identifier stands.
const TYPE_AT: usize = 2 * MAC_LEN;
const TAG_PROTOCOLS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
/// Bits of a VLAN identifier (IEEE 802.1Q 9.6).
const VID_BITS: u32 = 12;

/// An address in a VLAN. A frame without tag and one with a priority tag (VID 0) are in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Station(u64);

impl Station {
    /// The station that a frame is for; none for a group.
    pub(super) fn destination(frame: &[u8]) -> Option<Self> {
        Self::at(frame, 0)
    }

    /// The station that a frame is from; none for an address that no station has: a group's, or zero.
    pub(super) fn source(frame: &[u8]) -> Option<Self> {
        Self::at(frame, MAC_LEN).filter(|station| station.0 >> VID_BITS != 0)
    }

    fn at(frame: &[u8], start: usize) -> Option<Self> {
        let mac: &[u8; MAC_LEN] = frame.get(start..)?.first_chunk()?;
        let number = mac.iter().fold(0, |number, &octet| number << u8::BITS | u64::from(octet));
        (mac[0] & GROUP_BIT == 0).then(|| Self(number << VID_BITS | u64::from(outer_vid(frame))))
    }
}

/// The outer VLAN identifier, 0 without a tag.
fn outer_vid(frame: &[u8]) -> u16 {
    match frame.get(TYPE_AT..TYPE_AT + 4) {
        Some([p, q, high, low]) if TAG_PROTOCOLS.contains(&[*p, *q]) => {
            u16::from_be_bytes([*high, *low]) & ((1 << VID_BITS) - 1)
        }
        _ => 0,
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    station: Station,
    port: u32,
    seen_s: u64,
    /// Next entry of the same bucket.
    chain_next: u32,
    /// Neighbours of the same port, in the order in which they were seen last.
    older: u32,
    newer: u32,
}

const VACANT: Entry = Entry { station: Station(0), port: NONE, seen_s: 0, chain_next: NONE, older: NONE, newer: NONE };

/// The stations of one port.
#[derive(Clone, Copy, Debug)]
struct Quota {
    max: usize,
    len: usize,
    oldest: u32,
    newest: u32,
}

const NO_QUOTA: Quota = Quota { max: 0, len: 0, oldest: NONE, newest: NONE };

/// The table. All memory is allocated once.
///
/// The bucket is chosen with a secret factor, so that nobody outside can choose addresses that make
/// chains long. Nothing that is handed out depends on it.
#[derive(Debug)]
pub(super) struct Stations {
    entries: Box<[Entry]>,
    buckets: Box<[u32]>,
    free: Vec<u32>,
    quotas: Box<[Quota]>,
    ageing_s: u64,
    secret: u64,
}

impl Stations {
    pub(super) fn new(stations_max: usize, ports_max: usize, ageing_s: u64) -> Self {
        Self {
            entries: vec![VACANT; stations_max].into(),
            buckets: vec![NONE; (stations_max * BUCKETS_PER_STATION).next_power_of_two().max(2)].into(),
            free: (0..stations_max as u32).rev().collect(),
            quotas: vec![NO_QUOTA; ports_max].into(),
            ageing_s,
            secret: RandomState::new().hash_one(0) | 1,
        }
    }

    /// Sets a port's quota. The quotas of all ports together must not exceed `stations_max`.
    pub(super) fn set_quota(&mut self, port: usize, stations_max: usize) {
        self.quotas[port].max = stations_max;
    }

    /// Stations that are known behind a port, silent ones among them.
    pub(super) fn len(&self, port: usize) -> usize {
        self.quotas[port].len
    }

    /// Notes that `station` was heard at `port`.
    pub(super) fn learn(&mut self, station: Station, port: usize, now_s: u64) {
        let known = self.slot_of(station);
        if let Some(slot) = known {
            let entry = &self.entries[slot as usize];
            // Within a second the order does not count.
            if entry.port as usize == port && entry.seen_s == now_s {
                return;
            }
            self.remove(slot);
        }
        let quota = self.quotas[port];
        if quota.max == 0 {
            return;
        }
        if quota.len >= quota.max {
            self.remove(quota.oldest);
        }
        self.insert(station, port, now_s);
    }

    /// The port behind which the station was heard less than the ageing time ago.
    pub(super) fn find(&mut self, station: Station, now_s: u64) -> Option<usize> {
        let slot = self.slot_of(station)?;
        let entry = self.entries[slot as usize];
        if now_s.saturating_sub(entry.seen_s) >= self.ageing_s {
            self.remove(slot);
            return None;
        }
        Some(entry.port as usize)
    }

    /// Forgets all stations of a port.
    pub(super) fn forget(&mut self, port: usize) {
        while self.quotas[port].oldest != NONE {
            self.remove(self.quotas[port].oldest);
        }
    }

    fn slot_of(&self, station: Station) -> Option<u32> {
        let mut slot = self.buckets[self.bucket(station)];
        while slot != NONE {
            let entry = &self.entries[slot as usize];
            if entry.station == station {
                return Some(slot);
            }
            slot = entry.chain_next;
        }
        None
    }

    /// Puts an unknown station at the front of its chain and at the young end of its port's list.
    fn insert(&mut self, station: Station, port: usize, now_s: u64) {
        let Some(slot) = self.free.pop() else { return };
        let bucket = self.bucket(station);
        let older = self.quotas[port].newest;
        let chain_next = self.buckets[bucket];
        self.entries[slot as usize] =
            Entry { station, port: port as u32, seen_s: now_s, chain_next, older, newer: NONE };
        self.buckets[bucket] = slot;
        let quota = &mut self.quotas[port];
        quota.newest = slot;
        quota.len += 1;
        match older {
            NONE => quota.oldest = slot,
            older => self.entries[older as usize].newer = slot,
        }
    }

    fn remove(&mut self, slot: u32) {
        let entry = self.entries[slot as usize];
        self.unlink_chain(slot, &entry);
        let quota = &mut self.quotas[entry.port as usize];
        quota.len -= 1;
        match entry.older {
            NONE => quota.oldest = entry.newer,
            older => self.entries[older as usize].newer = entry.newer,
        }
        match entry.newer {
            NONE => quota.newest = entry.older,
            newer => self.entries[newer as usize].older = entry.older,
        }
        self.entries[slot as usize] = VACANT;
        self.free.push(slot);
    }

    fn unlink_chain(&mut self, slot: u32, entry: &Entry) {
        let bucket = self.bucket(entry.station);
        if self.buckets[bucket] == slot {
            self.buckets[bucket] = entry.chain_next;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.entries[at as usize].chain_next != slot {
            at = self.entries[at as usize].chain_next;
        }
        self.entries[at as usize].chain_next = entry.chain_next;
    }

    /// Multiplicative hashing: the upper bits of the product depend on every bit of the address.
    fn bucket(&self, station: Station) -> usize {
        let bits = self.buckets.len().trailing_zeros();
        (station.0.wrapping_mul(self.secret) >> (u64::BITS - bits)) as usize
    }
}

#[cfg(test)]
mod tests;
