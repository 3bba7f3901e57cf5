//! The status of running ports and switches, for `show`.

use super::config::{Config, PortConfig, SwitchConfig};
use super::kind::WireConfig;
use super::kind::vhost_user::mac_text;
use super::port::{Port, Queue};
use super::switch::RunningSwitch;
use super::touched::{Mapping, bytes_at};
use crate::schema::moderation::gap_usecs;
use crate::schema::{
    Counts, DirectionStatus, FeatureStatus, FloodStatus, HostStatus, Limit, Moderation, PortStatus, QueueStatus,
    ReservedStatus, STATIONS_MAX, StationStatus, SwitchStatus, WaitsFor, WireLost, lost_frames,
};
use offramp_adapter::stats::{Direction, Loss, QueueStats};
use offramp_adapter::switch::{StationList, reserved_address};
use offramp_offload::caps::{NAMES, OffloadName, Offloads};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Maximum time for which an answer waits for the stations of all switches. A stalled switch thread does not send its
/// stations.
pub const STATIONS_TIME_MAX: Duration = Duration::from_millis(500);

/// The smallest MTU on each switch.
pub type SwitchMtus<'a> = BTreeMap<&'a str, usize>;

/// Returns the smallest MTU of a port on each switch.
pub fn switch_mtus(config: &Config) -> SwitchMtus<'_> {
    let mut mtus = SwitchMtus::new();
    for port in &config.ports {
        if let WireConfig::Switch(name) = &port.wire {
            mtus.entry(name).and_modify(|least| *least = port.mtu.min(*least)).or_insert(port.mtu);
        }
    }
    mtus
}

/// The selected content of a port's status.
#[derive(Debug)]
pub enum Detail {
    /// Names, states, features in use, losses that occurred, and rates.
    Summary,
    /// Everything. The field holds the mappings of the guests' memory; `None` if the kernel provides no list of
    /// mappings.
    Full(Option<Vec<Mapping>>),
}

/// Returns the status of a port.
pub fn port_status(port: &Port, config: &PortConfig, mtus: &SwitchMtus<'_>, detail: &Detail) -> PortStatus {
    let is_full = matches!(detail, Detail::Full(_));
    let moderation = port.control.moderation();
    let of_switch = || match &config.wire {
        WireConfig::Switch(name) => mtus.get(&**name).copied(),
        _ => None,
    };
    let mut host = port.host.status();
    if let HostStatus::VhostUser(guest) = &mut host {
        match detail {
            Detail::Summary => guest.counters = Counts::default(),
            Detail::Full(mappings) => {
                let places = port.with_guest(|guest| guest.status().memory_places).unwrap_or_default();
                guest.memory_touched_bytes = mappings.as_ref().map(|mappings| bytes_at(mappings, &places));
            }
        }
    }
    let states = FeatureStates::of(port);
    PortStatus {
        name: port.name.clone(),
        host,
        wire: config.wire.status(),
        wire_running: port.is_wire_there(),
        wire_lost: port.wire_stats().map(|stats| wire_lost(port, stats)),
        mtu: port.adapter.mtu,
        wire_mtu: port.wire.as_ref().and_then(|wire| wire.mtu()).or_else(of_switch),
        vlan: config.security.vlans.untagged(),
        vlans: config.security.vlans.tagged().iter().map(vlans_text).collect(),
        rx_usecs: gap_usecs(&moderation),
        moderation: is_full.then(|| Moderation::from(moderation)),
        limit: is_full.then(|| Limit(port.control.limits())),
        link: Some(port.control.is_link_on()),
        cpus: config.cpus.clone(),
        ipsec: is_full.then(|| port.ipsec_status()),
        features: states.list(if is_full { Offloads::all() } else { states.in_use }),
        queue_pairs: Some(port.queue_pairs),
        queues: port
            .queues
            .iter()
            .enumerate()
            .filter_map(|(index, queue)| {
                Some(queue_status(port, index, queue, port.control.queues().get(index)?, is_full))
            })
            .collect(),
    }
}

/// Formats a range of VLANs as in the configuration file.
fn vlans_text(range: &RangeInclusive<u16>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// The states of all features of a port.
#[derive(Clone, Copy, Debug)]
pub struct FeatureStates {
    allowed: Offloads,
    supported: Offloads,
    offered: Offloads,
    negotiated: Offloads,
    declined: Offloads,
    in_use: Offloads,
    is_absent: bool,
}

impl FeatureStates {
    /// Reads the states of a port's features.
    pub fn of(port: &Port) -> Self {
        let (host, allowed) = (&port.host, port.control.offloads());
        Self {
            allowed,
            supported: host.supported(),
            offered: host.offered(allowed),
            negotiated: host.negotiated(),
            declined: host.declined(),
            in_use: host.in_use(allowed),
            is_absent: host.is_absent(),
        }
    }

    /// Returns the status of each feature in `shown`.
    pub fn list(&self, shown: Offloads) -> Vec<FeatureStatus> {
        NAMES.iter().filter(|name| shown.contains(name.offload)).map(|name| self.status(name)).collect()
    }

    fn status(&self, name: &OffloadName) -> FeatureStatus {
        let has = |set: Offloads| set.contains(name.offload);
        let (allowed, in_use) = (has(self.allowed), has(self.in_use));
        FeatureStatus {
            name: name.name.into(),
            ethtool: name.ethtool.into(),
            virtio: name.virtio.into(),
            ndis: name.ndis.into(),
            allowed,
            offered: has(self.offered),
            negotiated: has(self.negotiated),
            in_use,
            waits_for: (allowed != in_use).then(|| self.waits_for(name.offload)),
        }
    }

    /// Returns the reason why the use of a feature differs from the user's setting.
    fn waits_for(&self, offload: Offloads) -> WaitsFor {
        match offload {
            _ if !self.allowed.contains(offload) => WaitsFor::Negotiation,
            _ if !self.supported.contains(offload) => WaitsFor::Host,
            _ if !self.offered.contains(offload) => WaitsFor::Prerequisite,
            _ if self.is_absent => WaitsFor::NoGuest,
            // A feature whose prerequisite was declined is not in use either.
            _ if self.declined.contains(offload) || self.negotiated.contains(offload) => WaitsFor::Declined,
            _ => WaitsFor::Negotiation,
        }
    }
}

fn queue_status(port: &Port, index: usize, queue: &Queue, stats: &QueueStats, is_full: bool) -> QueueStatus {
    let [transmit, receive] = port.rates.of(index);
    let counted = |direction: &Direction| {
        if is_full {
            return direction.into();
        }
        let lost = Loss::ALL.iter().map(|&reason| (reason, direction.lost(reason))).filter(|(_, count)| *count > 0);
        let lost = lost.map(|(reason, count)| (reason.name().into(), count)).collect();
        DirectionStatus { lost, ..DirectionStatus::default() }
    };
    let mut status = QueueStatus {
        index,
        running: queue.mark.ended().is_none() && queue.worker.is_running() && port.is_open(),
        stalled: queue.mark.stall(),
        thread: queue.worker.thread_id(),
        transmit: counted(&stats.transmit),
        receive: counted(&stats.receive),
    };
    (status.transmit.rates, status.receive.rates) = (transmit, receive);
    status
}

/// Returns the frames lost at the interface on a port's wire, in both directions.
fn wire_lost(port: &Port, stats: &QueueStats) -> WireLost {
    let mut receive = lost_frames(&stats.transmit);
    *receive.entry(Loss::Drop.name().into()).or_default() += port.wire_unread();
    WireLost { transmit: lost_frames(&stats.receive), receive }
}

/// The status of a switch whose thread is reading the list of stations.
#[derive(Debug)]
pub struct AskedSwitch {
    status: SwitchStatus,
    /// For each port's index on the switch: the port's place among the switch's ports in the configuration, and its
    /// name.
    ports: BTreeMap<usize, (usize, String)>,
    /// The configured `mac_addresses` of the switch's ports, each with the place and the name of its port.
    bound: Vec<(usize, String, [u8; 6])>,
    list: Receiver<StationList>,
}

impl AskedSwitch {
    /// Asks the thread of a switch for the switch's stations. If `has_list` is `false`, asks only for their number and
    /// ages. `ports` are all ports of the daemon with their configurations.
    pub fn ask<'a>(
        switch: &RunningSwitch,
        config: &SwitchConfig,
        ports: impl Iterator<Item = (&'a Arc<Port>, &'a Arc<PortConfig>)>,
        has_list: bool,
    ) -> Self {
        let list = switch.control.stations(if has_list { STATIONS_MAX } else { 0 });
        let on_it: Vec<_> = ports.filter(|(_, port)| port.is_on(&config.name)).enumerate().collect();
        let places = on_it.iter().filter_map(|(place, (port, config))| {
            let (on_switch, _) = port.on_switch.as_ref()?;
            Some((on_switch.index(), (*place, config.name.clone())))
        });
        let bound = on_it.iter().flat_map(|(place, (_, config))| {
            config.security.mac_addresses.iter().map(|mac| (*place, config.name.clone(), *mac))
        });
        let counts = switch.control.counts();
        let both = [(true, &counts.reserved_forwarded), (false, &counts.reserved_lost)];
        let reserved = both.into_iter().flat_map(|(forwarded, counts)| {
            (0..).zip(counts).map(move |(number, count)| ReservedStatus {
                address: mac_text(reserved_address(number)),
                forwarded,
                frames: count.get(),
            })
        });
        let status = SwitchStatus {
            name: config.name.clone(),
            ports: on_it.iter().map(|(_, (_, config))| config.name.clone()).collect(),
            mac_entries_max: config.mac_entries_max,
            age_seconds: config.age_seconds,
            stations_known: None,
            oldest_age_s: None,
            newest_age_s: None,
            stations: has_list.then(Vec::new),
            floods: FloodStatus {
                group_frames: counts.flooded_group.get(),
                unknown_frames: counts.flooded_unknown.get(),
                limited_frames: counts.flood_limited.get(),
            },
            reserved: reserved.filter(|reserved| reserved.frames > 0).collect(),
        };
        Self { status, ports: places.collect(), bound: bound.collect(), list }
    }

    /// Waits for the stations until `until` at the latest, and returns the status. After this time, the status has no
    /// stations.
    pub fn finish(self, until: Instant) -> SwitchStatus {
        let Self { mut status, ports, bound, list } = self;
        let left = until.saturating_duration_since(Instant::now());
        let Ok(StationList { stations, count, oldest_s, newest_s }) = list.recv_timeout(left) else { return status };
        (status.stations_known, status.oldest_age_s, status.newest_age_s) = (Some(count), oldest_s, newest_s);
        if let Some(shown) = &mut status.stations {
            let learned = stations.iter().filter_map(|station| {
                let (place, name) = ports.get(&station.port)?;
                Some((*place, station.mac, Some(station.vid), name, Some(station.age_s)))
            });
            let heard: BTreeSet<_> = stations.iter().map(|station| station.mac).collect();
            let silent = bound.iter().filter(|(.., mac)| !heard.contains(mac));
            let silent = silent.map(|(place, name, mac)| (*place, *mac, None, name, None));
            let mut all: Vec<_> = learned.chain(silent).collect();
            all.sort_unstable();
            shown.extend(all.into_iter().map(|(_, mac, vid, port, age_s)| StationStatus {
                mac: mac_text(mac),
                vlan: vid.filter(|vid| *vid != 0),
                port: port.clone(),
                age_s,
            }));
        }
        status
    }
}
