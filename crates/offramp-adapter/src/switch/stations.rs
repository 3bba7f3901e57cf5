//! Which station lies behind which port: learned from source addresses, forgotten with time.
//!
//! Every port has a quota of stations that is set aside when it is added, so a port that invents
//! addresses displaces only its own: at its quota, the station of that port which has been idle longest
//! makes room. No port can make another's stations be forgotten, and the table is never full for one
//! that is below its quota.

use offramp_offload::table::{Order, Table};
use std::hash::{BuildHasher, RandomState};

const MAC_LEN: usize = 6;
/// The bit of the first octet that marks a group address (IEEE 802 8.2).
const GROUP_BIT: u8 = 1;
/// Bits of a VLAN identifier (IEEE 802.1Q 9.6).
const VID_BITS: u32 = 12;

/// An address in a VLAN. A frame without tag and one with a priority tag (VID 0) are in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Station(u64);

impl Station {
    /// The station that a frame of that VLAN is for; none for a group.
    pub(super) fn destination(frame: &[u8], vid: u16) -> Option<Self> {
        Self::at(frame, 0, vid)
    }

    /// The station that a frame is from; none for an address that no station has: a group's, or zero.
    pub(super) fn source(frame: &[u8], vid: u16) -> Option<Self> {
        Self::at(frame, MAC_LEN, vid).filter(|station| station.0 >> VID_BITS != 0)
    }

    fn at(frame: &[u8], start: usize, vid: u16) -> Option<Self> {
        let mac: &[u8; MAC_LEN] = frame.get(start..)?.first_chunk()?;
        (mac[0] & GROUP_BIT == 0).then(|| Self(number(*mac) << VID_BITS | u64::from(vid)))
    }
}

/// An address as a number.
fn number(mac: [u8; MAC_LEN]) -> u64 {
    mac.iter().fold(0, |number, &octet| number << u8::BITS | u64::from(octet))
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    station: Station,
    port: u32,
    seen_s: u64,
}

const VACANT: Entry = Entry { station: Station(0), port: 0, seen_s: 0 };

/// The stations of one port, in the order in which they were heard last.
#[derive(Clone, Copy, Debug)]
struct Quota {
    max: usize,
    len: usize,
    by_time: Order,
}

const NO_QUOTA: Quota = Quota { max: 0, len: 0, by_time: Order::EMPTY };

/// The table. Its entries are allocated once.
///
/// The hash has a secret factor, so that nobody outside can choose addresses that make chains long. Nothing that
/// is handed out depends on it.
#[derive(Debug)]
pub(super) struct Stations {
    entries: Table<Entry>,
    /// Addresses that are one port's alone, in any VLAN, and their ports, sorted.
    bound: Vec<(u64, usize)>,
    /// By the ports' numbers.
    quotas: Vec<Quota>,
    ageing_s: u64,
    secret: u64,
}

impl Stations {
    pub(super) fn new(stations_max: usize, ageing_s: u64) -> Self {
        Self {
            entries: Table::new(stations_max, VACANT),
            bound: Vec::new(),
            quotas: Vec::new(),
            ageing_s,
            secret: RandomState::new().hash_one(0) | 1,
        }
    }

    /// Sets a port's quota; the stations beyond it that have been idle longest are forgotten. The quotas of all ports
    /// together must not exceed `stations_max`.
    pub(super) fn set_quota(&mut self, port: usize, stations_max: usize) {
        if self.quotas.len() <= port {
            self.quotas.resize(port + 1, NO_QUOTA);
        }
        self.quotas[port].max = stations_max;
        while self.quotas[port].len > stations_max
            && let Some(oldest) = self.quotas[port].by_time.oldest()
        {
            self.remove(oldest);
        }
    }

    /// Binds addresses to a port, and no others any more: they are always found there, and learnt nowhere else. Who was
    /// learnt with one of them before is forgotten.
    pub(super) fn bind(&mut self, port: usize, addresses: &[[u8; MAC_LEN]]) {
        self.bound.retain(|&(_, owner)| owner != port);
        self.bound.extend(addresses.iter().map(|mac| (number(*mac), port)));
        self.bound.sort_unstable();
        if addresses.is_empty() {
            return;
        }
        for other in 0..self.quotas.len() {
            let mut next = self.quotas[other].by_time.oldest();
            while let Some(slot) = next {
                next = self.entries.newer(slot);
                let mac = self.entries.entry(slot).station.0 >> VID_BITS;
                if addresses.iter().any(|bound| number(*bound) == mac) {
                    self.remove(slot);
                }
            }
        }
    }

    /// The port whose alone the station is.
    fn owner(&self, station: Station) -> Option<usize> {
        let mac = station.0 >> VID_BITS;
        let at = self.bound.binary_search_by_key(&mac, |&(bound, _)| bound).ok()?;
        Some(self.bound[at].1)
    }

    /// Stations that are known behind a port, idle ones among them.
    pub(super) fn len(&self, port: usize) -> usize {
        self.quotas[port].len
    }

    /// Notes that `station` was heard at `port`; `false` if it is another port's alone.
    pub(super) fn learn(&mut self, station: Station, port: usize, now_s: u64) -> bool {
        if let Some(slot) = self.slot_of(station) {
            let entry = self.entries.entry(slot);
            // Within a second the order does not count.
            if entry.port as usize == port && entry.seen_s == now_s {
                return true;
            }
        }
        if self.owner(station).is_some_and(|owner| owner != port) {
            return false;
        }
        if let Some(slot) = self.slot_of(station) {
            self.remove(slot);
        }
        let quota = self.quotas[port];
        if quota.max == 0 {
            return true;
        }
        if quota.len >= quota.max
            && let Some(oldest) = quota.by_time.oldest()
        {
            self.remove(oldest);
        }
        self.insert(station, port, now_s);
        true
    }

    /// The port behind which the station was heard less than the ageing time ago, or that it is bound to.
    pub(super) fn find(&mut self, station: Station, now_s: u64) -> Option<usize> {
        let Some(slot) = self.slot_of(station) else { return self.owner(station) };
        let entry = *self.entries.entry(slot);
        if now_s.saturating_sub(entry.seen_s) >= self.ageing_s {
            self.remove(slot);
            return self.owner(station);
        }
        Some(entry.port as usize)
    }

    /// Forgets all stations of a port.
    pub(super) fn forget(&mut self, port: usize) {
        while let Some(oldest) = self.quotas[port].by_time.oldest() {
            self.remove(oldest);
        }
    }

    fn slot_of(&self, station: Station) -> Option<usize> {
        self.entries.find(self.hash(station), |entry| entry.station == station)
    }

    /// An unknown station becomes the youngest of its port.
    fn insert(&mut self, station: Station, port: usize, now_s: u64) {
        let hash = self.hash(station);
        let quota = &mut self.quotas[port];
        let Some(slot) = self.entries.insert(hash, &mut quota.by_time) else { return };
        quota.len += 1;
        *self.entries.entry_mut(slot) = Entry { station, port: port as u32, seen_s: now_s };
    }

    fn remove(&mut self, slot: usize) {
        let quota = &mut self.quotas[self.entries.entry(slot).port as usize];
        quota.len -= 1;
        self.entries.remove(slot, &mut quota.by_time);
    }

    /// Multiplicative hashing: the upper bits of the product depend on every bit of the address.
    fn hash(&self, station: Station) -> u32 {
        (station.0.wrapping_mul(self.secret) >> u32::BITS) as u32
    }
}

#[cfg(test)]
mod tests;
