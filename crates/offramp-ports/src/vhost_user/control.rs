//! The control queue of a guest, if the port serves it: the guest's settings, and the events that reset these settings.
//!
//! The port's control thread serves the control queue, so that a guest that floods this queue delays no other guest. A
//! command that changes data queues is sent to the mailboxes of these queues. The guest gets the answer, and the status
//! shows the change, after all data queues have applied the command.
//!
//! Numbers such as V75 denote the requirements of the specifications that `docs/vhost-user.md` lists.

use super::config::VhostUserConfig;
use super::counters::QueueCounters;
use super::features::{
    self, CTRL_GUEST_OFFLOADS, CTRL_MAC_ADDR, CTRL_RX, CTRL_RX_EXTRA, CTRL_VLAN, CTRL_VQ, DEVICE_STATS, GUEST_ANNOUNCE,
    HASH_REPORT, LOG_ALL, MQ, NOTF_COAL, RSS, VQ_NOTF_COAL,
};
use super::filter::{Filter, VlanTable};
use super::queue::{QueueState, Side};
use super::rarp::is_station;
use super::rss::{HashStatus, Rss};
use offramp_adapter::moderation::Coalescing;
use offramp_offload::caps::Offloads;
use offramp_virtio::control::statistics::{StatisticsOf, StatisticsTypes};
use offramp_virtio::control::{Command, MacAddress, NotificationCoalescing, ReceiveModes};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A driver that has negotiated one of these features sees all queue pairs of the device. Any other driver sees only
/// one pair (virtio 1.3, 5.1.2).
const SEVERAL_PAIRS: u64 = MQ | RSS;

/// The settings that a guest made through its control queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlStatus {
    /// Number of queue pairs on which the guest receives.
    pub queue_pairs: u16,
    /// Receive offloads accepted by the guest, as feature bits.
    pub guest_offloads: u64,
    /// The guest's interrupt coalescing for each ring, in the order of the vrings. `None` for a ring whose coalescing
    /// the guest has not set.
    pub coalescing: Vec<Option<Coalescing>>,
    /// The guest's receive filter.
    pub filter: FilterStatus,
    /// The guest's hash settings for received frames. `None` if the guest has set none.
    pub hash: Option<HashStatus>,
    /// Number of refused commands.
    pub refused: u64,
}

/// A guest's receive filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterStatus {
    /// The guest's receive modes. If `None`, no mode was set, and the guest receives frames for every address.
    pub modes: Option<ReceiveModes>,
    /// The address that the guest has set in place of the port's address, if any.
    pub mac: Option<[u8; 6]>,
    /// Number of unicast addresses in the filter, in addition to the guest's own address.
    pub unicast_addresses: usize,
    /// Number of multicast addresses in the filter.
    pub multicast_addresses: usize,
    /// VLANs whose tagged frames the guest receives. If `None`, the guest receives all tagged frames.
    pub vlans: Option<Vec<u16>>,
}

/// The planned effect of a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Planned {
    /// The answer contains these bytes after `ack`.
    Answer(Vec<u8>),
    /// The guest requests these settings.
    Change(Settings),
    /// The guest requests these statistics, which must be read from the queues.
    Statistics(Vec<StatisticsOf>),
}

/// A guest's settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    queue_pairs: u16,
    guest_offloads: u64,
    coalescing: Vec<Option<Coalescing>>,
    /// The last coalescing settings for all receive rings and for all transmit rings. A queue that comes into use again
    /// gets these settings (requirements V75 and V76).
    of_all: [Option<Coalescing>; 2],
    filter: Arc<Filter>,
    rss: Option<Arc<Rss>>,
    /// The address set by the guest.
    mac: Option<MacAddress>,
    /// True if the guest was asked to announce itself and has not yet confirmed the announcement.
    is_asked_to_announce: bool,
}

/// The settings that apply to one data ring.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RingSettings {
    /// True for a transmit ring, and for a receive ring on which the guest receives.
    pub is_in_use: bool,
    /// The negotiated features, except offloads switched off by the guest.
    pub features: u64,
    /// The guest's interrupt coalescing for this ring. `None` if the guest has set none.
    pub wish: Option<Coalescing>,
    /// The guest's receive filter. If `None`, the guest receives every frame.
    pub filter: Option<Arc<Filter>>,
    /// The guest's hash and steering settings. If `None`, the port steers the flows.
    pub rss: Option<Arc<Rss>>,
}

/// The operator's settings of a port, which a guest cannot change.
#[derive(Clone, Debug)]
struct Rules {
    queue_pairs_max: u16,
    /// The address that the port assigns to its guest.
    mac: Option<MacAddress>,
    /// Addresses that the guest can set. If empty, the guest can set any address.
    mac_addresses: Vec<MacAddress>,
}

/// A control queue and the guest's settings.
#[derive(Debug)]
pub(super) struct Control {
    pub queue: QueueState,
    /// The descriptor of the guest's kicks.
    pub kick: Option<Arc<OwnedFd>>,
    negotiated: u64,
    rules: Rules,
    /// The guest's current settings.
    pub settings: Settings,
    /// Number of refused commands.
    refused: u64,
    /// Number of all commands, and number of successful commands, since the last reset of the driver.
    commands: [u64; 2],
    /// The control queue's base, and the negotiated features, when the control queue stopped.
    stopped_at: Option<(u32, u64)>,
    /// True if the control queue has been started since the frontend connected.
    has_run: bool,
}

impl Settings {
    /// Returns the settings of a device after a reset (requirements V51, V56 and V79).
    fn after_reset(negotiated: u64, rules: &Rules) -> Self {
        // A driver without a control queue cannot add a VLAN, even if `CTRL_VLAN` was negotiated (DPDK).
        let vlans = (negotiated & CTRL_VQ != 0 && negotiated & CTRL_VLAN != 0).then(VlanTable::default);
        Self {
            queue_pairs: 1,
            guest_offloads: negotiated & features::guest_offload_bits(),
            coalescing: vec![None; 2 * usize::from(rules.queue_pairs_max)],
            of_all: [None; 2],
            filter: Arc::new(Filter::new(rules.mac, vlans)),
            rss: None,
            mac: None,
            is_asked_to_announce: false,
        }
    }

    /// Applies `change` to the guest's receive filter. Returns `None` if the change is invalid.
    fn with_filter(mut self, change: impl FnOnce(&mut Filter) -> Option<()>) -> Option<Self> {
        change(Arc::make_mut(&mut self.filter))?;
        Some(self)
    }

    /// Changes the number of queue pairs in use. A queue that comes into use again gets the last coalescing settings
    /// that the guest made for all queues of its direction (requirements V75 and V76). The change removes the guest's
    /// indirection table, so afterwards the port steers the flows.
    fn with_queue_pairs(mut self, pairs: u16) -> Self {
        self.rss = self.rss.map(|rss| Arc::new(Arc::unwrap_or_clone(rss).without_table()));
        self.queue_pairs = pairs;
        for (vring, wish) in self.coalescing.iter_mut().enumerate().skip(2 * usize::from(pairs)) {
            *wish = self.of_all[vring % 2];
        }
        self
    }

    fn with_wish_of_all(mut self, side: Side, wish: NotificationCoalescing) -> Self {
        let nth = usize::from(side == Side::Transmit);
        self.of_all[nth] = Some(coalescing(wish));
        self.coalescing.iter_mut().skip(nth).step_by(2).for_each(|of_ring| *of_ring = self.of_all[nth]);
        self
    }
}

impl Control {
    pub(super) fn new(config: &VhostUserConfig, counters: Arc<QueueCounters>) -> Self {
        let rules =
            Rules { queue_pairs_max: config.queue_pairs, mac: config.mac, mac_addresses: config.mac_addresses.clone() };
        Self {
            queue: QueueState::of_commands(counters),
            kick: None,
            negotiated: 0,
            settings: Settings::after_reset(0, &rules),
            rules,
            refused: 0,
            commands: [0; 2],
            stopped_at: None,
            has_run: false,
        }
    }

    /// Returns whether a vring is the control queue: the last vring, or the third vring for a driver without `MQ` and
    /// `RSS` (virtio 1.3, 5.1.2).
    pub(super) fn is_at(vring: usize, negotiated: u64, queue_pairs_max: u16) -> bool {
        let has_one_pair = negotiated != 0 && negotiated & SEVERAL_PAIRS == 0;
        vring == if has_one_pair { 2 } else { 2 * usize::from(queue_pairs_max) }
    }

    /// Returns the guest's settings if the control queue is running.
    pub(super) fn status(&self) -> Option<ControlStatus> {
        let Settings { queue_pairs, guest_offloads, coalescing, filter, mac, .. } = &self.settings;
        let [unicast_addresses, multicast_addresses] = filter.address_counts();
        self.queue.is_live().then(|| ControlStatus {
            queue_pairs: *queue_pairs,
            guest_offloads: *guest_offloads,
            coalescing: coalescing.clone(),
            filter: FilterStatus {
                modes: filter.modes,
                mac: *mac,
                unicast_addresses,
                multicast_addresses,
                vlans: filter.vlans.as_ref().map(|vlans| vlans.vids().collect()),
            },
            hash: self.settings.rss.as_ref().map(|rss| rss.status(self.negotiated & HASH_REPORT != 0)),
            refused: self.refused,
        })
    }

    /// Applies the negotiated features. Changed features reset the settings, because another driver made these
    /// settings. The start or end of a migration does not change the settings.
    pub(super) fn set_features(&mut self, negotiated: u64) {
        if negotiated & !LOG_ALL != self.negotiated & !LOG_ALL {
            self.settings = Settings::after_reset(negotiated, &self.rules);
        }
        self.negotiated = negotiated;
        self.queue.set_features(negotiated);
    }

    /// Returns the negotiated features, except offloads switched off by the guest.
    pub(super) fn features_in_force(&self, settings: &Settings) -> u64 {
        self.negotiated & !features::guest_offload_bits() | settings.guest_offloads
    }

    /// Records that the control queue has stopped at `base`, or `None` if the ring broke or its driver was reset. A
    /// monitor sends the same messages for a pause of the guest as for a device reset. After a pause, the guest does
    /// not repeat its commands, so its settings must survive the pause.
    pub(super) fn stopped(&mut self, base: Option<u32>) {
        self.stopped_at = base.map(|base| (base, self.negotiated & !LOG_ALL));
    }

    /// Records that the control queue starts at `base`. Returns true if the guest's driver was reset since the control
    /// queue stopped. A reset makes the guest's settings void.
    pub(super) fn is_new(&mut self, base: u32) -> bool {
        self.has_run = true;
        self.stopped_at.take() != Some((base, self.negotiated & !LOG_ALL))
    }

    /// Resets the guest's settings.
    pub(super) fn forget(&mut self) {
        self.stopped_at = None;
        self.commands = [0; 2];
        self.settings = Settings::after_reset(self.negotiated, &self.rules);
    }

    /// Returns the address set by the guest, if any.
    pub(super) fn mac(&self) -> Option<MacAddress> {
        self.settings.mac
    }

    /// Asks the guest to announce itself.
    pub(super) fn ask_to_announce(&mut self) {
        self.settings.is_asked_to_announce = true;
    }

    pub(super) fn is_asked_to_announce(&self) -> bool {
        self.settings.is_asked_to_announce
    }

    /// Returns the settings for one data ring. The guest chooses its receive pairs, unless the frontend serves the
    /// control queue. The guest can transmit on all pairs enabled by its frontend. Otherwise, a guest with fewer pairs
    /// than before would lose the frames queued earlier.
    pub(super) fn of_ring(&self, settings: &Settings, vring: usize) -> RingSettings {
        let (side, pair) = Side::of(vring);
        let has_chosen = self.negotiated & CTRL_VQ != 0 && self.has_run;
        RingSettings {
            is_in_use: side == Side::Transmit || !has_chosen || pair < settings.queue_pairs.into(),
            features: self.features_in_force(settings),
            wish: settings.coalescing.get(vring).copied().flatten(),
            filter: (!settings.filter.is_open()).then(|| Arc::clone(&settings.filter)),
            rss: settings.rss.clone(),
        }
    }

    /// Counts an arriving command.
    pub(super) fn begin(&mut self) {
        self.commands[0] += 1;
    }

    /// Counts a command as done or refused.
    pub(super) fn end(&mut self, is_done: bool) {
        self.commands[1] += u64::from(is_done);
        self.refused += u64::from(!is_done);
    }

    /// Returns the number of commands and of successful commands. The command being executed counts as successful.
    pub(super) fn statistics(&self) -> [u64; 2] {
        [self.commands[0], self.commands[1] + 1]
    }

    /// Returns the statistics available with the negotiated features.
    fn statistics_types(&self) -> StatisticsTypes {
        let offloads = features::offloads(self.negotiated);
        let mut types = StatisticsTypes::CVQ
            | StatisticsTypes::RX_BASIC
            | StatisticsTypes::RX_SPEED
            | StatisticsTypes::TX_BASIC
            | StatisticsTypes::TX_SPEED;
        types.set(StatisticsTypes::RX_CSUM, offloads.contains(Offloads::RX_CHECKSUM));
        types.set(StatisticsTypes::TX_CSUM, offloads.contains(Offloads::TX_CHECKSUM));
        types.set(StatisticsTypes::RX_GSO, offloads.intersects(Offloads::RSC4 | Offloads::RSC6));
        types.set(StatisticsTypes::TX_GSO, offloads.intersects(Offloads::TSO4 | Offloads::TSO6 | Offloads::USO));
        types
    }

    /// Returns whether a queue exists and has all requested statistics (requirement V84).
    fn has_statistics(&self, of: &StatisticsOf) -> bool {
        let StatisticsOf { vq_index, types } = *of;
        let vring = usize::from(vq_index);
        let pairs = if self.negotiated & SEVERAL_PAIRS == 0 { 1 } else { usize::from(self.rules.queue_pairs_max) };
        let of_queue = match vring.cmp(&(2 * pairs)) {
            std::cmp::Ordering::Less if vring.is_multiple_of(2) => StatisticsTypes::RX,
            std::cmp::Ordering::Less => StatisticsTypes::TX,
            std::cmp::Ordering::Equal => StatisticsTypes::CVQ,
            std::cmp::Ordering::Greater => StatisticsTypes::empty(),
        };
        vring <= 2 * pairs && (self.statistics_types() & of_queue).contains(types)
    }

    /// Validates a command and returns its effect, which is not yet applied. Returns `None` if the command is malformed
    /// or its feature was not negotiated.
    pub(super) fn plan(&self, command: &Command) -> Option<Planned> {
        let mut next = self.settings.clone();
        Some(Planned::Change(match command {
            Command::ReceiveMode(mode, is_on) => {
                self.has(if ReceiveModes::EXTRA.contains(*mode) { CTRL_RX_EXTRA } else { CTRL_RX })?;
                next.with_filter(|filter| {
                    filter.modes.get_or_insert_default().set(*mode, *is_on);
                    Some(())
                })?
            }
            Command::MacTable { unicast, multicast } => {
                self.has(CTRL_RX)?;
                next.with_filter(|filter| {
                    filter.modes.get_or_insert_default();
                    filter.set_addresses(unicast, multicast);
                    Some(())
                })?
            }
            Command::MacAddress(mac) => {
                self.has(CTRL_MAC_ADDR).filter(|()| is_station(*mac) && self.may_take(mac))?;
                next.mac = Some(*mac);
                next.with_filter(|filter| {
                    filter.own = Some(*mac);
                    Some(())
                })?
            }
            Command::Vlan(vid, passes) => next.with_filter(|filter| filter.vlans.as_mut()?.set(*vid, *passes))?,
            Command::QueuePairs(pairs) => {
                self.has(MQ).filter(|()| (1..=self.rules.queue_pairs_max).contains(pairs))?;
                next.with_queue_pairs(*pairs)
            }
            // The guest can set different numbers of transmit pairs and receive pairs. The larger number counts as the
            // number of pairs in use.
            Command::Rss(config) => {
                self.has(RSS).filter(|()| (1..=self.rules.queue_pairs_max).contains(&config.max_tx_vq))?;
                let rss = Rss::spreading(config, self.rules.queue_pairs_max)?;
                let next = next.with_queue_pairs(config.max_tx_vq.max(rss.queue_pairs()));
                Settings { rss: Some(Arc::new(rss)), ..next }
            }
            Command::Hash(config) => {
                self.has(HASH_REPORT)?;
                Settings { rss: Some(Arc::new(Rss::hashing(config)?)), ..next }
            }
            Command::GuestOffloads(bits) => {
                let may_be = self.negotiated & features::guest_offload_bits();
                self.has(CTRL_GUEST_OFFLOADS).filter(|()| bits & !may_be == 0)?;
                Settings { guest_offloads: *bits, ..next }
            }
            Command::CoalesceReceive(wish) => {
                self.has(NOTF_COAL)?;
                next.with_wish_of_all(Side::Receive, *wish)
            }
            Command::CoalesceTransmit(wish) => {
                self.has(NOTF_COAL)?;
                next.with_wish_of_all(Side::Transmit, *wish)
            }
            Command::CoalesceQueue(vring, wish) => {
                *next.coalescing.get_mut(self.coalesced_queue(*vring)?)? = Some(coalescing(*wish));
                next
            }
            // Requirement V55: after the answer to this command, the status no longer requests an announcement.
            Command::Announced => {
                self.has(GUEST_ANNOUNCE).filter(|()| next.is_asked_to_announce)?;
                Settings { is_asked_to_announce: false, ..next }
            }
            Command::CoalescingOfQueue(_) | Command::StatisticsTypes | Command::Statistics(_) => {
                return self.answer(command);
            }
        }))
    }

    /// Validates a query and returns its answer.
    fn answer(&self, query: &Command) -> Option<Planned> {
        match query {
            Command::CoalescingOfQueue(vring) => {
                let wish = self.settings.coalescing.get(self.coalesced_queue(*vring)?)?.unwrap_or_default();
                let in_force = NotificationCoalescing { max_usecs: wish.max_usecs, max_packets: wish.max_packets };
                Some(Planned::Answer(in_force.to_bytes().to_vec()))
            }
            Command::StatisticsTypes => {
                self.has(DEVICE_STATS)?;
                Some(Planned::Answer(self.statistics_types().bits().to_le_bytes().to_vec()))
            }
            Command::Statistics(of) => {
                self.has(DEVICE_STATS).filter(|()| of.iter().all(|of| self.has_statistics(of)))?;
                Some(Planned::Statistics(of.clone()))
            }
            _ => None,
        }
    }

    /// Returns whether the port's rules permit this address.
    fn may_take(&self, mac: &MacAddress) -> bool {
        self.rules.mac_addresses.is_empty() || self.rules.mac_addresses.contains(mac)
    }

    fn has(&self, feature: u64) -> Option<()> {
        (self.negotiated & feature != 0).then_some(())
    }

    /// Returns the index of a queue in use, if the guest can set coalescing for a single queue (requirement V74).
    fn coalesced_queue(&self, vring: u16) -> Option<usize> {
        self.has(VQ_NOTF_COAL).filter(|()| vring / 2 < self.settings.queue_pairs)?;
        Some(usize::from(vring))
    }
}

fn coalescing(wish: NotificationCoalescing) -> Coalescing {
    Coalescing { max_usecs: wish.max_usecs, max_packets: wish.max_packets }
}

mod saved;

#[cfg(test)]
mod model;
#[cfg(test)]
mod random;
#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddress = [2, 0, 0, 0, 0, 1];
    const OTHER: MacAddress = [2, 0, 0, 0, 0, 2];
    const FILTERS: u64 = CTRL_RX | CTRL_RX_EXTRA | CTRL_VLAN | CTRL_MAC_ADDR;
    const ALL: u64 = MQ | NOTF_COAL | VQ_NOTF_COAL | CTRL_GUEST_OFFLOADS | DEVICE_STATS | FILTERS;
    const FIRST: NotificationCoalescing = NotificationCoalescing { max_usecs: 50, max_packets: 16 };
    const SECOND: NotificationCoalescing = NotificationCoalescing { max_usecs: 7, max_packets: 3 };

    fn control(negotiated: u64) -> Control {
        let config = VhostUserConfig {
            queue_pairs: 4,
            mac: Some(OWN),
            mac_addresses: vec![OWN, OTHER],
            ..VhostUserConfig::new("unused")
        };
        let mut control = Control::new(&config, Arc::default());
        control.set_features(negotiated | CTRL_VQ);
        control.forget();
        control
    }

    /// Applies a command at once. Returns whether the command is valid.
    fn obey(control: &mut Control, command: &Command) -> bool {
        let planned = control.plan(command);
        if let Some(Planned::Change(next)) = planned {
            control.settings = next;
            return true;
        }
        planned.is_some()
    }

    fn wish(control: &Control, vring: usize) -> Option<Coalescing> {
        control.of_ring(&control.settings, vring).wish
    }

    #[test]
    fn the_last_wish_for_a_ring_wins_whichever_command_brought_it() {
        let mut control = control(ALL);
        obey(&mut control, &Command::QueuePairs(2));
        let steps = [
            (Command::CoalesceReceive(FIRST), [Some(FIRST), None, Some(FIRST)]),
            (Command::CoalesceQueue(0, SECOND), [Some(SECOND), None, Some(FIRST)]),
            (Command::CoalesceTransmit(FIRST), [Some(SECOND), Some(FIRST), Some(FIRST)]),
            (Command::CoalesceReceive(SECOND), [Some(SECOND), Some(FIRST), Some(SECOND)]),
        ];
        for (command, expected) in steps {
            assert!(obey(&mut control, &command));
            assert_eq!([0, 1, 2].map(|vring| wish(&control, vring)), expected.map(|wish| wish.map(coalescing)));
        }
    }

    #[test]
    fn a_queue_that_is_used_again_has_the_last_wish_for_all() {
        let mut control = control(ALL);
        obey(&mut control, &Command::QueuePairs(2));
        obey(&mut control, &Command::CoalesceReceive(FIRST));
        obey(&mut control, &Command::CoalesceQueue(2, SECOND));
        obey(&mut control, &Command::CoalesceQueue(3, SECOND));
        obey(&mut control, &Command::QueuePairs(1));
        obey(&mut control, &Command::QueuePairs(2));
        assert_eq!([2, 3].map(|vring| wish(&control, vring)), [Some(coalescing(FIRST)), None]);
    }

    #[test]
    fn a_command_that_was_not_negotiated_or_names_what_is_not_there_changes_nothing() {
        let commands = [
            (MQ, Command::QueuePairs(2)),
            (NOTF_COAL, Command::CoalesceReceive(FIRST)),
            (NOTF_COAL, Command::CoalesceTransmit(FIRST)),
            (VQ_NOTF_COAL, Command::CoalesceQueue(0, FIRST)),
            (VQ_NOTF_COAL, Command::CoalescingOfQueue(0)),
            (CTRL_GUEST_OFFLOADS, Command::GuestOffloads(0)),
            (CTRL_RX, Command::ReceiveMode(ReceiveModes::PROMISC, true)),
            (CTRL_RX, Command::ReceiveMode(ReceiveModes::ALLMULTI, false)),
            (CTRL_RX_EXTRA, Command::ReceiveMode(ReceiveModes::NOBCAST, true)),
            (CTRL_RX, Command::MacTable { unicast: vec![OTHER], multicast: vec![] }),
            (CTRL_MAC_ADDR, Command::MacAddress(OTHER)),
            (CTRL_VLAN, Command::Vlan(5, true)),
            (CTRL_VLAN, Command::Vlan(5, false)),
            (DEVICE_STATS, Command::StatisticsTypes),
            (DEVICE_STATS, Command::Statistics(vec![])),
        ];
        for (feature, command) in commands {
            assert_eq!(control(ALL & !feature).plan(&command), None, "{command:?}");
            assert!(control(ALL).plan(&command).is_some(), "{command:?}");
        }
        let control = control(ALL);
        let wrong = [
            Command::QueuePairs(0),
            Command::QueuePairs(5),
            // A ring of an unused pair, and an index after the data rings.
            Command::CoalesceQueue(2, FIRST),
            Command::CoalesceQueue(8, FIRST),
            Command::CoalescingOfQueue(u16::MAX),
            // A transmit offload, and an offload that was not negotiated.
            Command::GuestOffloads(1),
            Command::GuestOffloads(1 << 7),
            // A VLAN out of range, a group address, a zero address, and an address forbidden by the port's rules.
            Command::Vlan(4096, true),
            Command::MacAddress([1, 0, 0x5e, 0, 0, 1]),
            Command::MacAddress([0; 6]),
            Command::MacAddress([2, 0, 0, 0, 0, 3]),
        ];
        for command in wrong {
            assert_eq!(control.plan(&command), None, "{command:?}");
        }
    }

    #[test]
    fn a_guest_that_says_nothing_of_filters_receives_from_all_addresses() {
        let of_data = |control: &Control| control.of_ring(&control.settings, 0).filter;
        let mut some = control(ALL & !CTRL_VLAN);
        assert_eq!(of_data(&some), None);
        assert!(obey(&mut some, &Command::MacAddress(OTHER)));
        assert_eq!((of_data(&some), some.mac()), (None, Some(OTHER)), "an address is no filter");
        assert!(obey(&mut some, &Command::ReceiveMode(ReceiveModes::ALLMULTI, false)));
        let filter = of_data(&some).expect("a filter");
        let to = |mac: MacAddress| filter.accepts(&[&mac[..], &[0; 60]].concat());
        assert!(to(OTHER) && to([0xff; 6]) && !to(OWN) && !to([1, 0, 0x5e, 0, 0, 1]));
        assert!(obey(&mut some, &Command::ReceiveMode(ReceiveModes::PROMISC, true)));
        assert_eq!(of_data(&some), None);
        some.forget();
        assert_eq!((of_data(&some), some.mac()), (None, None));
        assert!(of_data(&control(ALL)).is_some(), "without a VLAN in its table it receives no tagged frame");
    }

    #[test]
    fn what_is_set_outlives_a_pause_and_not_a_reset() {
        let mut control = control(ALL);
        control.stopped(Some(7));
        assert!(!control.is_new(7), "it goes on where it was");
        assert!(control.is_new(7), "nothing was said of a stop");
        control.stopped(Some(7));
        assert!(control.is_new(0), "a new ring");
        control.stopped(Some(7));
        control.set_features(MQ);
        assert!(control.is_new(7), "another driver");
        assert!(obey(&mut control, &Command::QueuePairs(2)));
        control.stopped(Some(9));
        control.set_features(MQ | LOG_ALL);
        assert!(!control.is_new(9), "a migration began");
        assert_eq!(control.settings.queue_pairs, 2);
    }
}
