//! The security associations of a port, for `show`.

use offramp_adapter::ipsec::{NoMatch, Policy, PolicyEntry, SaState, SaStatus};
use offramp_offload::esp::{Mode, Prefix, Refused};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The associations of a port and its policy, as `show` tells them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpsecStatus {
    /// The cipher library in use, and why it is not the faster one.
    pub library: String,
    /// The fate of packets of the host without a matching association.
    pub transmit: String,
    /// The same for packets from the wire.
    pub receive: String,
    /// The entries of the policy in their order, and what is lost because its association was removed.
    #[serde(default)]
    pub policies: Vec<String>,
    /// The associations.
    pub associations: Vec<AssociationStatus>,
    /// The last events, the newest at the end.
    pub events: Vec<String>,
}

/// One association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationStatus {
    /// `in` or `out`.
    pub direction: String,
    /// The security parameters index.
    pub spi: u32,
    /// The cipher suite.
    pub suite: String,
    /// `transport` or `tunnel`.
    pub mode: String,
    /// Ends of a tunnel.
    pub source: Option<IpAddr>,
    /// The far end of a tunnel, or the destination address of a receiver.
    pub destination: Option<IpAddr>,
    /// Extended sequence numbers are in use.
    pub esn: bool,
    /// The replay window in packets.
    pub replay_window: u32,
    /// The state: `alive`, `soft`, `retiring`, `expired` or `exhausted`.
    pub state: String,
    /// The last sequence number.
    pub sequence: u64,
    /// Packets protected or opened.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// NAT-keepalives sent for it.
    #[serde(default)]
    pub keepalives: u64,
    /// Packets refused, by reason; reasons without a packet are left out.
    pub refused: BTreeMap<String, u64>,
}

impl IpsecStatus {
    /// Returns the status. `library` is the source of ciphers, `events` the latest events. `removed` are the selectors
    /// of removed associations.
    pub fn new(
        library: String,
        policy: &Policy,
        removed: &[PolicyEntry],
        associations: &[SaStatus],
        events: Vec<String>,
    ) -> Self {
        let removed = removed.iter().map(|entry| entry_text(entry) + ", of an association that was removed");
        let policies = policy.entries.iter().map(entry_text).chain(removed).collect();
        Self {
            policies,
            library,
            transmit: no_match_name(policy.transmit).to_owned(),
            receive: no_match_name(policy.receive).to_owned(),
            associations: associations.iter().map(AssociationStatus::from).collect(),
            events,
        }
    }
}

fn entry_text(entry: &PolicyEntry) -> String {
    let PolicyEntry { direction, action, selector } = entry;
    let prefix = |what: &str, prefix: Option<Prefix>| {
        prefix.map(|prefix| format!("{what} {}/{}", prefix.address(), prefix.prefix_len()))
    };
    let ports = |what: &str, ports: &Option<RangeInclusive<u16>>| {
        ports.as_ref().map(|ports| format!("{what} {}-{}", ports.start(), ports.end()))
    };
    let parts = [
        prefix("source", selector.source),
        prefix("destination", selector.destination),
        selector.protocol.map(|protocol| format!("protocol {protocol}")),
        ports("source ports", &selector.source_ports),
        ports("destination ports", &selector.destination_ports),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let named = if parts.is_empty() { "all of IP".to_owned() } else { parts.join(", ") };
    format!("{direction} {action}: {named}")
}

impl From<&SaStatus> for AssociationStatus {
    fn from(sa: &SaStatus) -> Self {
        let config = &sa.config;
        let (mode, ends) = match &config.mode {
            Mode::Transport => ("transport", None),
            Mode::Tunnel(tunnel) => ("tunnel", Some((tunnel.source, tunnel.destination))),
        };
        let refused = sa.refused.iter().filter(|(_, count)| *count > 0);
        Self {
            direction: sa.direction.to_string(),
            spi: config.spi,
            suite: config.suite.name().to_owned(),
            mode: mode.to_owned(),
            source: ends.map(|(source, _)| source),
            destination: ends.map(|(_, destination)| destination).or(config.destination),
            esn: config.esn,
            replay_window: config.replay_window,
            state: state_name(sa.state).to_owned(),
            sequence: sa.sequence,
            packets: sa.packets,
            bytes: sa.bytes,
            keepalives: sa.keepalives,
            refused: refused.map(|&(reason, count)| (refused_name(reason).to_owned(), count)).collect(),
        }
    }
}

fn no_match_name(no_match: NoMatch) -> &'static str {
    match no_match {
        NoMatch::Bypass => "bypass",
        NoMatch::Discard => "discard",
    }
}

fn state_name(state: SaState) -> &'static str {
    match state {
        SaState::Alive => "alive",
        SaState::Soft => "soft",
        SaState::Retiring => "retiring",
        SaState::Expired => "expired",
        SaState::SequenceExhausted => "exhausted",
    }
}

/// Returns the reason in the naming of lost frames.
fn refused_name(reason: Refused) -> &'static str {
    match reason {
        Refused::UnknownSpi => "unknown_spi",
        Refused::BadTag => "bad_tag",
        Refused::Replayed => "replayed",
        Refused::TooOld => "too_old",
        Refused::Malformed => "esp_malformed",
        Refused::Policy => "sa_policy",
        Refused::Fragment => "esp_fragment",
        Refused::Expired => "sa_expired",
        Refused::Congestion => "congestion",
        Refused::Dummy => "dummy",
    }
}
