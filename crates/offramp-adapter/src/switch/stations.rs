//! The port of each station, learned from source addresses and forgotten after the ageing time.
//!
//! Every port has a quota of stations, reserved when the port is added. A port at its quota replaces its own longest
//! idle station, so forged addresses displace only stations of the same port. No port can displace another port's
//! stations, and the table is never full for a port below its quota.

use offramp_offload::table::{Order, Table};
use std::hash::{BuildHasher, RandomState};

const MAC_LEN: usize = 6;
/// The group bit of an address, in the first octet (IEEE 802 8.2).
const GROUP_BIT: u8 = 1;
/// Bits of a VLAN identifier (IEEE 802.1Q 9.6).
const VID_BITS: u32 = 12;

/// A MAC address in a VLAN. Untagged frames and frames with a priority tag (VID 0) have the same VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Station(u64);

impl Station {
    /// Returns the destination station of a frame in this VLAN; `None` for a group address.
    pub(super) fn destination(frame: &[u8], vid: u16) -> Option<Self> {
        Self::at(frame, 0, vid)
    }

    /// Returns the source station of a frame; `None` for a group address or the zero address.
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

/// A station known to a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownStation {
    /// The Ethernet address.
    pub mac: [u8; 6],
    /// The VLAN; 0 for untagged frames.
    pub vid: u16,
    /// The [number](super::SwitchPort::index) of the port.
    pub port: usize,
    /// Time since the station's last frame, in seconds.
    pub age_s: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    station: Station,
    port: u32,
    seen_s: u64,
}

const VACANT: Entry = Entry { station: Station(0), port: 0, seen_s: 0 };

/// The stations of one port, ordered by the time of their last frame.
#[derive(Clone, Copy, Debug)]
struct Quota {
    max: usize,
    len: usize,
    by_time: Order,
}

const NO_QUOTA: Quota = Quota { max: 0, len: 0, by_time: Order::EMPTY };

/// The table of stations. Its entries are allocated once.
///
/// The hash has a secret factor, so that no attacker can choose addresses that form long chains in the table. The
/// factor does not affect which stations are found.
#[derive(Debug)]
pub(super) struct Stations {
    entries: Table<Entry>,
    capacity: usize,
    /// Bound addresses and their ports, sorted by address. A binding holds in every VLAN.
    bound: Vec<(u64, usize)>,
    /// Quotas, indexed by port number.
    quotas: Vec<Quota>,
    ageing_s: u64,
    secret: u64,
}

impl Stations {
    pub(super) fn new(stations_max: usize, ageing_s: u64) -> Self {
        Self {
            entries: Table::new(stations_max, VACANT),
            capacity: stations_max,
            bound: Vec::new(),
            quotas: Vec::new(),
            ageing_s,
            secret: RandomState::new().hash_one(0) | 1,
        }
    }

    /// Sets a port's quota, and forgets the longest idle stations that exceed the quota. The sum of all quotas must not
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

    /// Binds exactly the addresses in `addresses` to a port. A bound address is found at the port to which it is bound,
    /// and other ports do not learn the address. An address bound to several ports is found at the port that last
    /// received a frame from the address. Stations already learned with one of the addresses are forgotten.
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

    /// Returns the port to which the station's address is bound; `None` if the address is bound to several ports or to
    /// none.
    fn owner(&self, station: Station) -> Option<usize> {
        if let [(_, only)] = self.owners(station) { Some(*only) } else { None }
    }

    /// Returns the number of known stations on a port, including idle stations.
    pub(super) fn len(&self, port: usize) -> usize {
        self.quotas[port].len
    }

    /// Returns the number of entries, vacant entries included.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the station in an entry; `None` if the entry is vacant, or its station was idle for the ageing time.
    pub(super) fn known(&self, slot: usize, now_s: u64) -> Option<KnownStation> {
        let Entry { station: Station(number), port, seen_s } = *self.entries.entry(slot);
        let age_s = now_s.saturating_sub(seen_s);
        let [_, _, mac @ ..] = (number >> VID_BITS).to_be_bytes();
        let vid = (number & ((1 << VID_BITS) - 1)) as u16;
        (number != 0 && age_s < self.ageing_s).then_some(KnownStation { mac, vid, port: port as usize, age_s })
    }

    /// Records a frame of `station` received from `port`. Returns `false` if the station's address is bound to another
    /// port.
    pub(super) fn learn(&mut self, station: Station, port: usize, now_s: u64) -> bool {
        if let Some(slot) = self.slot_of(station) {
            let entry = self.entries.entry(slot);
            // An entry's time has a resolution of one second, so further frames in the same second change nothing.
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

    /// Returns the port from which the station sent a frame within the ageing time, or the port to which the station's
    /// address is bound.
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

    /// Inserts an unknown station as the most recent station of its port.
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
        *self.entries.entry_mut(slot) = VACANT;
    }

    /// Hashes by multiplication: the upper bits of the product depend on every bit of the address.
    fn hash(&self, station: Station) -> u32 {
        (station.0.wrapping_mul(self.secret) >> u32::BITS) as u32
    }
}

#[cfg(test)]
mod tests;
