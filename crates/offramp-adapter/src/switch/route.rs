//! Route: the destination ports of a frame.

use super::config::UnknownUnicast;
use super::control::SwitchPort;
use super::reserved::Reserved;
use super::stations::Station;
use super::{NANOSECONDS_PER_SECOND, Switch};
use crate::limit::TokenBucket;
use crate::port::HostPort;
use crate::stats::Loss;
use crate::vlan::FrameVlan;
use std::ops::Range;

impl<P: HostPort> Switch<P> {
    /// Returns the destination ports of a frame. `from` is the ingress port, and `floods` is the ingress port's flood
    /// limit.
    pub(super) fn route(
        &mut self,
        from: &SwitchPort,
        floods: &mut Option<TokenBucket>,
        frame: &FrameStations,
        frames: usize,
        now_ns: u64,
    ) -> Result<Range<usize>, Loss> {
        let Self { config, ports, stations, control, .. } = self;
        let counts = control.counts();
        if config.learning {
            let now_s = now_ns / NANOSECONDS_PER_SECOND;
            if let Some(reserved) = frame.reserved {
                let passes = reserved.passes(config);
                let counters = if passes { &counts.reserved_forwarded } else { &counts.reserved_lost };
                counters[usize::from(reserved.number)].add(frames as u64);
                if !passes {
                    return Err(Loss::Reserved);
                }
            }
            if frame.source.is_some_and(|source| !stations.learn(source, from.index, now_s)) {
                return Err(Loss::Spoofed);
            }
            if let Some(to) = frame.destination.and_then(|station| stations.find(station, now_s)) {
                return match &ports[to] {
                    _ if to == from.index => Err(Loss::Hairpin),
                    Some(other) if other.is_reached(from, frame.vlan) => Ok(to..to + 1),
                    Some(other) if other.is_in(frame.vlan) => Err(Loss::Isolated),
                    Some(other) if other.is_open() => Err(Loss::Vlan),
                    _ => Err(Loss::NoDestination),
                };
            }
            if frame.destination.is_some() && config.unknown_unicast == UnknownUnicast::Drop {
                return Err(Loss::NoDestination);
            }
        }
        let others = || ports.iter().flatten();
        if !others().any(|other| other.is_reached(from, frame.vlan)) {
            let loss = if others().any(|other| other.is_in(frame.vlan)) {
                Loss::Isolated
            } else if !config.learning && others().any(|other| other.is_open()) {
                Loss::Vlan
            } else {
                Loss::NoDestination
            };
            return Err(loss);
        }
        if floods.as_mut().is_some_and(|bucket| !bucket.take(frames as u64, now_ns)) {
            counts.flood_limited.add(frames as u64);
            return Err(Loss::FloodLimit);
        }
        if config.learning {
            let flooded = if frame.destination.is_some() { &counts.flooded_unknown } else { &counts.flooded_group };
            flooded.add(frames as u64);
        }
        Ok(0..ports.len())
    }
}

/// The source station, the destination station and the VLAN of a frame.
pub(super) struct FrameStations {
    pub(super) source: Option<Station>,
    pub(super) destination: Option<Station>,
    pub(super) reserved: Option<Reserved>,
    pub(super) vlan: FrameVlan,
}

impl FrameStations {
    /// Reads the stations from a frame in the VLAN `vlan`.
    pub(super) fn of(frame: &[u8], vlan: FrameVlan) -> Self {
        let (source, destination) = (Station::source(frame, vlan.vid), Station::destination(frame, vlan.vid));
        Self { source, destination, reserved: Reserved::of(frame), vlan }
    }
}
