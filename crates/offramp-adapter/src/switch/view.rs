//! A switch as seen by an operator: counters of flooded and reserved frames, and the list of known stations.
//!
//! The switch's thread copies the list between two batches, a bounded part in each batch. So no lock protects the
//! table, and no frame waits for a reader.

use super::stations::{KnownStation, Stations};
use crate::stats::Counter;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Number of reserved addresses (IEEE 802.1Q 8.6.3).
pub const RESERVED_ADDRESSES: usize = 16;
/// Entries of the table read in one batch, 96 KiB: about the time of ten frames.
const BATCH_ENTRIES: usize = 4096;

/// Counters of a switch. A super-frame counts as its segments.
#[derive(Debug, Default)]
pub struct SwitchCounts {
    /// Frames to group addresses (broadcast and multicast), sent to all other ports.
    pub flooded_group: Counter,
    /// Frames to unknown stations, sent to all other ports.
    pub flooded_unknown: Counter,
    /// Frames lost because their ingress port was at its flood limit.
    pub flood_limited: Counter,
    /// Forwarded frames to each reserved address, by the address's [number](super::reserved).
    pub reserved_forwarded: [Counter; RESERVED_ADDRESSES],
    /// Lost frames to each reserved address, by the address's number.
    pub reserved_lost: [Counter; RESERVED_ADDRESSES],
}

/// The stations of a switch that are within the ageing time.
#[derive(Debug, Default)]
pub struct StationList {
    /// The stations, up to the requested maximum.
    pub stations: Vec<KnownStation>,
    /// Number of all stations.
    pub count: usize,
    /// Age of the station with the oldest last frame, in seconds; `None` without stations.
    pub oldest_s: Option<u64>,
    /// Age of the station with the most recent frame, in seconds; `None` without stations.
    pub newest_s: Option<u64>,
}

/// A list that the switch's thread reads from its table.
#[derive(Debug)]
pub(super) struct Reading {
    list: StationList,
    /// The entry to be read next.
    next: usize,
    reader: SyncSender<StationList>,
}

impl Reading {
    /// Creates a list of at most `stations_max` stations, and its receiver. The list has its memory from the start,
    /// because the switch's thread must not allocate.
    pub(super) fn new(stations_max: usize) -> (Self, Receiver<StationList>) {
        let (reader, list) = sync_channel(1);
        let stations = Vec::with_capacity(stations_max);
        (Self { list: StationList { stations, ..StationList::default() }, next: 0, reader }, list)
    }

    /// Reads the next part of the table. Returns whether the list is complete.
    pub(super) fn read(&mut self, table: &Stations, now_s: u64) -> bool {
        let end = table.capacity().min(self.next + BATCH_ENTRIES);
        let list = &mut self.list;
        for station in (self.next..end).filter_map(|slot| table.known(slot, now_s)) {
            list.count += 1;
            list.oldest_s = list.oldest_s.max(Some(station.age_s));
            list.newest_s = Some(list.newest_s.map_or(station.age_s, |newest| newest.min(station.age_s)));
            if list.stations.len() < list.stations.capacity() {
                list.stations.push(station);
            }
        }
        self.next = end;
        end == table.capacity()
    }

    /// Hands the list to its reader. A reader that no longer waits is ignored.
    pub(super) fn finish(self) {
        drop(self.reader.try_send(self.list));
    }
}

#[cfg(test)]
mod tests {
    use super::super::stations::Station;
    use super::*;

    fn station(n: u32) -> Station {
        let frame = [&[0; 6], &[2, 0][..], &n.to_be_bytes(), &[8, 0]].concat();
        Station::source(&frame, 7).unwrap()
    }

    #[test]
    fn a_list_has_every_station_within_the_ageing_time_up_to_its_maximum() {
        let entries = 2 * BATCH_ENTRIES + 1;
        let mut table = Stations::new(entries, 300);
        table.set_quota(3, entries);
        (0..entries as u32).for_each(|n| assert!(table.learn(station(n), 3, u64::from(n % 2))));
        let (mut reading, list) = Reading::new(5);
        let mut parts = 1;
        while !reading.read(&table, 300) {
            parts += 1;
        }
        assert_eq!(parts, 3, "each batch reads a bounded part");
        reading.finish();
        let list = list.recv().unwrap();
        // At 300 s, the stations heard at 0 s are too old.
        assert_eq!((list.count, list.stations.len()), (BATCH_ENTRIES, 5));
        assert_eq!((list.oldest_s, list.newest_s), (Some(299), Some(299)));
        assert!(list.stations.iter().all(|known| (&known.mac[..2], known.vid, known.port) == (&[2, 0], 7, 3)));
        table.forget(3);
        let (mut reading, list) = Reading::new(5);
        while !reading.read(&table, 1) {}
        reading.finish();
        assert_eq!(list.recv().unwrap().oldest_s, None, "a forgotten station is not listed");
    }
}
