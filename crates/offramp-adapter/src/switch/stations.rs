//! The port of each station: learned from source addresses, forgotten with time.
//!
//! Every port has a quota of stations, set aside when it is added. At its quota, a port's longest idle station makes
//! room, so invented addresses displace only stations of the same port. No port can make another's stations be
//! forgotten, and the table is never full for a port below its quota.

use offramp_offload::table::{Order, Table};
use std::hash::{BuildHasher, RandomState};

const MAC_LEN: usize = 6;
/// The group bit of an address, in the first octet (IEEE 802 8.2).
const GROUP_BIT: u8 = 1;
/// Bits of a VLAN identifier (IEEE 802.1Q 9.6).
const VID_BITS: u32 = 12;

/// An address in a VLAN. A frame without tag and one with a priority tag (VID 0) are in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Station(u64);

impl Station {
    /// Returns the destination station of a frame in that VLAN; `None` for a group.
    pub(super) fn destination(frame: &[u8], vid: u16) -> Option<Self> {
        Self::at(frame, 0, vid)
    }

    /// Returns the source station of a frame; `None` for an address of no station: a group's, or zero.
    pub(super) fn source(frame: &[u8], vid: u16) -> Option<Self> {
        Self::at(frame, MAC_LEN, vid).filter(|station| station.0 >> VID_BITS != 0)
    }

    fn at(frame: &[u8], start: usize, vid: u16) -> Option<Self> {
        let mac: &[u8; MAC_LEN] = frame.get(start..)?.first_chunk()?;
        (mac[0] & GROUP_BIT == 0).then(|| Self(number(*mac) << VID_BITS | u64::from(vid)))
    }
}

/// Converts an address to a number.
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

/// The stations of one port, ordered by the time they were last heard.
#[derive(Clone, Copy, Debug)]
struct Quota {
    max: usize,
    len: usize,
    by_time: Order,
}

const NO_QUOTA: Quota = Quota { max: 0, len: 0, by_time: Order::EMPTY };

/// The table. Its entries are allocated once.
///
/// The hash has a secret factor, so that no outsider can choose addresses with long chains. No result depends on it.
#[derive(Debug)]
pub(super) struct Stations {
    entries: Table<Entry>,
    /// Bound addresses, in any VLAN, and their ports, sorted.
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

    /// Sets a port's quota and forgets the longest idle stations beyond it. The quotas of all ports together must not
    /// exceed `stations_max`.
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

    /// Binds exactly these addresses to a port: they are found there, and learned at no port without a binding. An
    /// address with several ports is found where it was heard last. Forgets stations learned with one of them before.
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

    /// Returns the ports to which the station's address is bound.
    fn owners(&self, station: Station) -> &[(u64, usize)] {
        let mac = station.0 >> VID_BITS;
        let first = self.bound.partition_point(|&(bound, _)| bound < mac);
        let end = first + self.bound[first..].partition_point(|&(bound, _)| bound == mac);
        &self.bound[first..end]
    }

    /// Returns the only port to which the station's address is bound.
    fn owner(&self, station: Station) -> Option<usize> {
        if let [(_, only)] = self.owners(station) { Some(*only) } else { None }
    }

    /// Counts the known stations behind a port, idle ones included.
    pub(super) fn len(&self, port: usize) -> usize {
        self.quotas[port].len
    }

    /// Notes `station` as heard at `port`; `false` if its address is bound to another port.
    pub(super) fn learn(&mut self, station: Station, port: usize, now_s: u64) -> bool {
        if let Some(slot) = self.slot_of(station) {
            let entry = self.entries.entry(slot);
            // Within a second the order does not count.
            if entry.port as usize == port && entry.seen_s == now_s {
                return true;
            }
        }
        let owners = self.owners(station);
        if !owners.is_empty() && owners.iter().all(|(_, owner)| *owner != port) {
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

    /// Returns the port at which the station was heard less than the ageing time ago, or its bound port.
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

    /// Inserts an unknown station as the youngest of its port.
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

    /// Hashes by multiplication: the upper bits of the product depend on every bit of the address.
    fn hash(&self, station: Station) -> u32 {
        (station.0.wrapping_mul(self.secret) >> u32::BITS) as u32
    }
}

#[cfg(test)]
mod tests;
