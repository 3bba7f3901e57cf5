//! The security associations of a port, for `show`.

use offramp_adapter::ipsec::{NoMatch, Policy, PolicyEntry, SaState, SaStatus};
use offramp_offload::esp::{Mode, Prefix, Refused};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The associations and the policy of a port, as reported by `show`.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpsecStatus {
    /// The cipher library in use, and the reason if it is not the faster library.
    pub library: String,
    /// The treatment of the host's packets without a matching association.
    pub transmit: String,
    /// The treatment of packets from the wire without a matching association.
    pub receive: String,
    /// The entries of the policy in their order, then the selectors of removed associations, whose packets are lost.
    #[serde(default)]
    pub policies: Vec<String>,
    /// The associations.
    pub associations: Vec<AssociationStatus>,
    /// The last events, with the newest at the end.
    pub events: Vec<String>,
}

/// The status of one association.
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// The source address of the tunnel.
    pub source: Option<IpAddr>,
    /// The destination address of the tunnel, or of packets to a receiver.
    pub destination: Option<IpAddr>,
    /// Extended sequence numbers are in use.
    pub esn: bool,
    /// The length of the replay window, packets.
    pub replay_window: u32,
    /// The state: `alive`, `soft`, `retiring`, `expired` or `exhausted`.
    pub state: String,
    /// The last sequence number used (outbound), or the highest sequence number accepted (inbound).
    pub sequence: u64,
    /// Number of packets sealed (outbound), or opened (inbound).
    pub packets: u64,
    /// Bytes of the sealed or opened packets, counted unencrypted.
    pub bytes: u64,
    /// Number of NAT-keepalives sent for the association.
    #[serde(default)]
    pub keepalives: u64,
    /// Number of refused packets by reason, without reasons that did not occur.
    pub refused: BTreeMap<String, u64>,
}

impl IpsecStatus {
    /// Creates the status. `library` names the cipher library, and `events` are the latest events. `removed` are the
    /// selectors of removed associations.
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

/// Returns the name of a refusal, as used for lost frames.
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
