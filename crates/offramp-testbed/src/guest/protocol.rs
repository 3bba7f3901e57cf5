//! The protocol between `offramp lab` and a guest over a serial port: one JSON object per line.
//!
//! The guest answers each command of `offramp lab` with [`Answer::Done`] or [`Answer::Failed`]. For some commands, the
//! guest sends further answers before [`Answer::Done`].

use crate::host::RxCoalescing;
use crate::rig::{GSO_SEGS, RigConfig};
use crate::traffic::{Event, Params};
use offramp_offload::caps::Offloads;
use offramp_ports::sys::link;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// Name of the guest's network interface.
pub const INTERFACE: &str = "eth0";

/// A command of `offramp lab` to the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Sets up the network, and starts a traffic server.
    SetUp(Network),
    /// Switches the offloads of the guest's TCP/IP and driver.
    Switch(Switches),
    /// Runs the client of one test. The guest sends each event of the client as an [`Answer::Event`].
    Run {
        /// Address of the test's server.
        server: Ipv4Addr,
        /// Parameters of the test.
        params: Box<Params>,
    },
    /// Requests an [`Answer::Time`].
    Time,
}

/// Addresses of the guest and of its neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The guest's address.
    pub address: Ipv4Addr,
    /// Network prefix length, in bits.
    pub prefix_len: u8,
    /// MTU of the interface, in IP bytes.
    pub mtu: u32,
    /// The neighbour's address.
    pub neighbour: Ipv4Addr,
    /// The neighbour's Ethernet address.
    pub neighbour_mac: [u8; 6],
}

/// Offloads of the guest's driver, and their replacements in the guest's kernel (GSO, GRO).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// Names of the interface's features (`ethtool -k`), and the state to request for each feature. The guest passes
    /// all states to its kernel in one request.
    pub features: Vec<(String, bool)>,
    /// Maximum number of segments in one super-frame of TCP.
    pub gso_segs_max: u32,
    /// Interrupt coalescing of the guest's driver; `None` leaves the coalescing unchanged.
    pub rx_coalescing: Option<RxCoalescing>,
}

impl Switches {
    /// Returns the offloads, and the state of GSO and GRO, for the guest of a rig with this configuration. Without GSO
    /// and TSO, the guest's TCP sends single frames.
    pub fn new(config: &RigConfig) -> Self {
        let (gso, gro) = (config.host_gso, config.host_gro);
        let offloads = config.offloads.with_prerequisites();
        let (tx_checksum, lso) = (offloads.contains(Offloads::TX_CHECKSUM), offloads.intersects(Offloads::LSO));
        let features = [
            ("tx-checksum-ip-generic", tx_checksum),
            ("tx-tcp-segmentation", lso),
            ("tx-tcp6-segmentation", lso),
            ("tx-generic-segmentation", gso),
            ("rx-gro", gro),
        ];
        Self {
            features: features.map(|(name, on)| (name.to_owned(), on)).to_vec(),
            gso_segs_max: if lso || gso { GSO_SEGS } else { link::GSO_ONE_FRAME },
            rx_coalescing: config.host.coalescing,
        }
    }
}

/// An answer of the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The guest is ready. The guest sends this answer once after boot, without a command.
    Ready {
        /// The guest's kernel version, as in `uname -r`.
        kernel: String,
    },
    /// The command succeeded.
    Done,
    /// The command failed. The text is the reason.
    Failed(String),
    /// The test's client reported an event.
    Event {
        /// The client's event.
        event: Event,
        /// Time of the event, and the busy time of the guest's processors until the event.
        time: GuestTime,
    },
    /// The present time, and the busy time of the guest's processors until now.
    Time(GuestTime),
}

/// A time in the guest, and the busy time of the guest's processors until this time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTime {
    /// The guest's clock in microseconds, with an arbitrary origin.
    pub at_us: u64,
    /// Non-idle time of all the guest's processors together in microseconds, from the guest's `/proc/stat`.
    pub busy_us: u64,
}

impl GuestTime {
    /// Returns the busy time since `earlier` as a share of one guest processor, or `None` if no time has passed.
    pub fn busy_share_since(&self, earlier: &Self) -> Option<f64> {
        let elapsed_us = self.at_us.checked_sub(earlier.at_us).filter(|us| *us > 0)?;
        Some(self.busy_us.saturating_sub(earlier.busy_us) as f64 / elapsed_us as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostSettings;

    fn reads_back(answer: &Answer) {
        let line = serde_json::to_string(answer).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(&serde_json::from_str::<Answer>(&line).unwrap(), answer);
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let time = GuestTime { at_us: 7, busy_us: 3 };
        reads_back(&Answer::Ready { kernel: "6.1.0".to_owned() });
        reads_back(&Answer::Done);
        reads_back(&Answer::Failed("no \"eth0\"\nat all".to_owned()));
        reads_back(&Answer::Event { event: Event::Start, time });
        reads_back(&Answer::Time(time));
    }

    #[test]
    fn commands_are_read_as_they_were_written() {
        let run = Command::Run { server: Ipv4Addr::LOCALHOST, params: Box::default() };
        let switch = |coalescing| {
            let host = HostSettings { coalescing: Some(coalescing), ..HostSettings::default() };
            Command::Switch(Switches::new(&RigConfig { host, host_gro: true, ..RigConfig::default() }))
        };
        let switches = [RxCoalescing::Fixed { usecs: 50, frames: 32 }, RxCoalescing::Adaptive].map(switch);
        for command in [Command::Time, run].into_iter().chain(switches) {
            let line = serde_json::to_string(&command).unwrap();
            assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        }
    }

    fn switches(offloads: Offloads, host_gso: bool) -> Switches {
        Switches::new(&RigConfig { offloads, host_gso, ..RigConfig::default() })
    }

    fn is_on(switches: &Switches, feature: &str) -> bool {
        switches.features.iter().any(|(name, on)| name == feature && *on)
    }

    #[test]
    fn without_sums_there_is_no_large_send() {
        let without = switches(Offloads::all() - Offloads::TX_CHECKSUM, true);
        assert!(!is_on(&without, "tx-checksum-ip-generic") && !is_on(&without, "tx-tcp-segmentation"));
        assert!(is_on(&switches(Offloads::all(), true), "tx-tcp-segmentation"));
    }

    #[test]
    fn a_guest_that_may_not_cut_and_has_nobody_to_cut_for_it_sends_one_frame_at_a_time() {
        let none = Offloads::all() - Offloads::LSO;
        assert_eq!(switches(none, false).gso_segs_max, 1);
        assert_eq!(switches(none, true).gso_segs_max, GSO_SEGS);
        assert_eq!(switches(Offloads::all(), false).gso_segs_max, GSO_SEGS);
    }

    #[test]
    fn a_share_is_of_the_time_that_has_passed_in_the_guest() {
        let (start, end) = (GuestTime { at_us: 100, busy_us: 50 }, GuestTime { at_us: 300, busy_us: 150 });
        assert_eq!(end.busy_share_since(&start), Some(0.5));
        assert_eq!(end.busy_share_since(&end), None);
        assert_eq!(start.busy_share_since(&end), None);
    }
}
