//! Compares the table of stations with a plain list of stations.

use super::*;
use crate::vlan::FrameVlan;
use proptest::prelude::*;

fn frame(source: [u8; 6], destination: [u8; 6], tail: &[u8]) -> Vec<u8> {
    [&destination[..], &source, tail].concat()
}

fn station_of(frame: &[u8]) -> Option<Station> {
    Station::source(frame, FrameVlan::of(frame).vid)
}

fn station(n: u8) -> Station {
    station_of(&frame([2, 0, 0, 0, 0, n], [0xff; 6], &[8, 0])).unwrap()
}

#[test]
fn groups_and_zero_are_no_source() {
    let tail = &[8, 0];
    for source in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [0; 6]] {
        assert_eq!(station_of(&frame(source, [2; 6], tail)), None);
    }
    assert_eq!(Station::destination(&frame([2; 6], [0xff; 6], tail), 0), None);
    assert_eq!(station_of(&[2; 11]), None);
}

#[test]
fn an_address_is_another_station_in_another_vlan_but_not_under_another_priority() {
    let of = |tail: &[u8]| station_of(&frame([2; 6], [4; 6], tail)).unwrap();
    let untagged = of(&[8, 0, 0x45, 0]);
    assert_eq!(of(&[0x81, 0, 0xe0, 0, 8, 0]), untagged, "a priority tag");
    assert_ne!(of(&[0x81, 0, 0, 5, 8, 0]), untagged);
    assert_eq!(of(&[0x81, 0, 0, 5, 8, 0]), of(&[0x81, 0, 0xe0, 5, 8, 0]));
    assert_eq!(of(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7]), of(&[0x81, 0, 0, 5, 8, 0]), "the outer one counts");
    assert_eq!(of(&[0x81, 0, 0]), untagged, "a tag that is cut off is none");
}

#[test]
fn a_station_is_forgotten_when_it_was_silent_for_the_ageing_time() {
    let mut table = Stations::new(4, 300);
    table.set_quota(0, 4);
    table.learn(station(1), 0, 1000);
    assert_eq!(table.find(station(1), 1299), Some(0));
    table.learn(station(1), 0, 1299);
    assert_eq!(table.find(station(1), 1598), Some(0));
    assert_eq!(table.find(station(1), 1599), None);
    assert_eq!(table.len(0), 0);
    table.learn(station(1), 0, 1000);
    assert_eq!(table.find(station(1), 5), Some(0), "a clock that goes back forgets nobody");
}

#[test]
fn a_port_that_invents_addresses_displaces_only_its_own() {
    let mut table = Stations::new(1000, 300);
    table.set_quota(0, 10);
    table.set_quota(1, 990);
    for n in 0..10 {
        table.learn(station(n), 0, 0);
    }
    for n in 0..100_000_u32 {
        let [a, b, c, d] = n.to_be_bytes();
        table.learn(station_of(&frame([6, a, b, c, d, 0], [4; 6], &[8, 0])).unwrap(), 1, 1);
    }
    assert_eq!((table.len(0), table.len(1)), (10, 990));
    assert!((0..10).all(|n| table.find(station(n), 1) == Some(0)));
}

#[test]
fn a_port_without_quota_learns_nothing_and_takes_over_nobody() {
    let mut table = Stations::new(4, 300);
    table.set_quota(0, 4);
    table.set_quota(1, 0);
    table.learn(station(1), 0, 0);
    table.learn(station(2), 1, 0);
    assert_eq!((table.find(station(2), 0), table.len(1)), (None, 0));
}

#[test]
fn a_quota_that_shrinks_forgets_those_that_were_idle_longest() {
    let mut table = Stations::new(4, 300);
    table.set_quota(0, 4);
    (1..=4).for_each(|n| assert!(table.learn(station(n), 0, u64::from(n))));
    table.learn(station(1), 0, 5);
    table.set_quota(0, 2);
    let known: Vec<_> = (1..=4).filter(|&n| table.find(station(n), 5).is_some()).collect();
    assert_eq!((known, table.len(0)), (vec![1, 4], 2));
}

#[test]
fn an_address_that_is_bound_is_forgotten_elsewhere_in_every_vlan_and_no_other_is() {
    let mut table = Stations::new(16, 300);
    (0..2).for_each(|port| table.set_quota(port, 8));
    let tagged = station_of(&frame([2, 0, 0, 0, 0, 1], [0xff; 6], &[0x81, 0, 0, 5])).unwrap();
    for known in [station(1), tagged, station(2), station(3)] {
        table.learn(known, 0, 0);
    }
    table.bind(1, &[[2, 0, 0, 0, 0, 1]]);
    assert_eq!((table.find(station(1), 0), table.find(tagged, 0)), (Some(1), Some(1)));
    assert_eq!((table.find(station(2), 0), table.find(station(3), 0), table.len(0)), (Some(0), Some(0), 2));
    assert!(!table.learn(tagged, 0, 0), "it is the other port's alone");
}

/// A model of the table: a list of stations in the order of their last frames.
struct Oracle {
    heard: Vec<(Station, usize, u64)>,
    quotas: [usize; 3],
    ageing_s: u64,
}

impl Oracle {
    fn learn(&mut self, station: Station, port: usize, now_s: u64) {
        if self.heard.contains(&(station, port, now_s)) {
            return;
        }
        self.heard.retain(|known| known.0 != station);
        if self.quotas[port] == 0 {
            return;
        }
        if self.len(port) == self.quotas[port] {
            let oldest = self.heard.iter().position(|known| known.1 == port).unwrap();
            self.heard.remove(oldest);
        }
        self.heard.push((station, port, now_s));
    }

    fn find(&mut self, station: Station, now_s: u64) -> Option<usize> {
        let at = self.heard.iter().position(|known| known.0 == station)?;
        let (_, port, seen_s) = self.heard[at];
        if now_s.saturating_sub(seen_s) >= self.ageing_s {
            self.heard.remove(at);
            return None;
        }
        Some(port)
    }

    fn len(&self, port: usize) -> usize {
        self.heard.iter().filter(|known| known.1 == port).count()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Learn(u8, usize),
    Find(u8),
    Forget(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..24_u8, 0..3_usize).prop_map(|(n, port)| Step::Learn(n, port)),
        8 => (0..24_u8).prop_map(Step::Find),
        1 => (0..3_usize).prop_map(Step::Forget),
        2 => (0..7_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn the_table_is_a_list_with_quotas(
        quotas in prop::array::uniform3(0..8_usize),
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let mut table = Stations::new(quotas.iter().sum(), 10);
        let mut oracle = Oracle { heard: Vec::new(), quotas, ageing_s: 10 };
        for (port, quota) in quotas.into_iter().enumerate() {
            table.set_quota(port, quota);
        }
        let mut now_s = 0;
        for step in steps {
            match step {
                Step::Learn(n, port) => {
                    table.learn(station(n), port, now_s);
                    oracle.learn(station(n), port, now_s);
                }
                Step::Find(n) => prop_assert_eq!(table.find(station(n), now_s), oracle.find(station(n), now_s)),
                Step::Forget(port) => {
                    table.forget(port);
                    oracle.heard.retain(|known| known.1 != port);
                }
                Step::Wait(seconds) => now_s += seconds,
            }
            for port in 0..3 {
                prop_assert_eq!(table.len(port), oracle.len(port));
            }
        }
    }
}
