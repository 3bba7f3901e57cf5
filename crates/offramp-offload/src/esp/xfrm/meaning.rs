//! The translation of states and policies into the associations of an adapter.

use super::XfrmConfig;
use super::fault::{Fault, Shown, XfrmError};
use super::policy::{PolicyDirection, Template, XfrmPolicy};
use super::selector;
use super::state::XfrmState;
use crate::esp::config::{Mode, SaConfig};
use crate::esp::error::SaFault;
use crate::esp::replay::{REPLAY_WINDOW_DEFAULT, REPLAY_WINDOW_MIN};
use crate::esp::selector::{Prefix, Selector};
use crate::esp::tunnel::{DfRule, DscpRule, EcnRule};

/// The machine to which a configuration belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The adapter's host. The adapter does the work of IPsec in place of the host's kernel.
    Host,
    /// The peer. The peer's outbound packets are the adapter's inbound packets.
    Peer,
}

/// The direction of an association's packets, from the view of the adapter's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Direction {
    /// Packets are received and opened.
    In,
    /// Packets are sealed and sent.
    Out,
}

impl Direction {
    fn opposite(self) -> Self {
        match self {
            Self::In => Self::Out,
            Self::Out => Self::In,
        }
    }
}

/// An association for the adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// Number of the line at which the association's state begins in the parsed text, counted from 1.
    pub line: usize,
    /// Direction of the packets.
    pub direction: Direction,
    /// Validated configuration.
    pub config: SaConfig,
}

impl XfrmConfig {
    /// Returns the associations to install, in the order of the states.
    ///
    /// A state's direction is taken from the policy with a matching template, or from the state's `dir` or `offload`.
    /// Without such a policy and without these words, the state has the opposite direction of the state with source and
    /// destination exchanged. The selector is the intersection of the state's selector and the policy's selector. In
    /// transport mode, the state's addresses also limit the selector. The anti-replay window is at least
    /// [`REPLAY_WINDOW_MIN`], and [`REPLAY_WINDOW_DEFAULT`] if Linux does no replay check. `is_legacy` allows the
    /// suites that exist only for old peers.
    ///
    /// # Errors
    /// Returns the line of the first state or policy that the adapter does not support, and the reason.
    pub fn associations(&self, owner: Owner, is_legacy: bool) -> Result<Vec<Association>, XfrmError> {
        self.check_templates()?;
        let mut associations: Vec<Association> = Vec::new();
        for state in &self.states {
            let there = self.direction_of(state)?;
            let selector = self.selector_of(state, there)?;
            let association = associate(state, there, owner, selector, is_legacy)?;
            check_against(&associations, &association)?;
            associations.push(association);
        }
        Ok(associations)
    }

    /// Returns the policies without a template, which concern packets outside any association.
    pub fn clear_policies(&self) -> impl Iterator<Item = &XfrmPolicy> {
        self.policies.iter().filter(|policy| policy.template.is_none())
    }

    fn check_templates(&self) -> Result<(), XfrmError> {
        for policy in &self.policies {
            // A policy for forwarded packets accompanies each policy for local packets, and is usually unused.
            let is_used = policy.template.is_none()
                || policy.direction == PolicyDirection::Forward
                || self.states.iter().any(|state| is_for(policy, state));
            if !is_used {
                return Err(Fault::NoState.at(policy.line));
            }
        }
        Ok(())
    }

    /// Returns the direction of the state's packets on the machine described by the text.
    fn direction_of(&self, state: &XfrmState) -> Result<Direction, XfrmError> {
        if let Some(direction) = self.direction_said(state)? {
            return Ok(direction);
        }
        // A state with source and destination exchanged has the opposite direction.
        for other in &self.states {
            let is_back = other.source == state.destination && other.destination == state.source;
            if is_back && let Some(direction) = self.direction_said(other)? {
                return Ok(direction.opposite());
            }
        }
        Err(Fault::NoDirection(state.config.spi).at(state.line))
    }

    fn direction_said(&self, state: &XfrmState) -> Result<Option<Direction>, XfrmError> {
        let mut said = state.direction;
        for policy in self.policies.iter().filter(|policy| is_for(policy, state)) {
            let direction = direction_of(policy);
            if said.is_some_and(|said| said != direction) {
                return Err(Fault::TwoDirections(state.config.spi).at(state.line));
            }
            said = Some(direction);
        }
        Ok(said)
    }

    fn selector_of(&self, state: &XfrmState, there: Direction) -> Result<Selector, XfrmError> {
        let (line, spi) = (state.line, state.config.spi);
        let own = own_selector(state);
        let mut found: Option<(usize, Selector)> = None;
        for policy in self.policies.iter().filter(|policy| is_for(policy, state)) {
            let both = selector::both(&own, &policy.selector);
            let both = both.ok_or(Fault::NoPacket { spi, policy: policy.line }.at(line))?;
            match &found {
                Some((first, selector)) if *selector != both => {
                    return Err(Fault::TwoSelectors { spi, first: *first, second: policy.line }.at(line));
                }
                _ => found = Some((policy.line, both)),
            }
        }
        match (found, there) {
            (Some((_, selector)), _) => Ok(selector),
            // A receiver's kernel opens packets of every state, with or without a policy.
            (None, Direction::In) => Ok(own),
            (None, direction) => Err(Fault::NoPolicy { spi, direction }.at(line)),
        }
    }
}

fn direction_of(policy: &XfrmPolicy) -> Direction {
    match policy.direction {
        PolicyDirection::Out => Direction::Out,
        PolicyDirection::In | PolicyDirection::Forward => Direction::In,
    }
}

/// Returns true for a policy whose template matches the state (Linux `xfrm_state_find`, `xfrm_state_ok`).
fn is_for(policy: &XfrmPolicy, state: &XfrmState) -> bool {
    policy.template.is_some_and(|template| fits(&template, policy, state))
}

fn fits(template: &Template, policy: &XfrmPolicy, state: &XfrmState) -> bool {
    let is_tunnel = matches!(state.config.mode, Mode::Tunnel(_));
    let is_any = template.reqid == 0 && policy.direction != PolicyDirection::Out;
    template.is_tunnel == is_tunnel
        && (is_any || template.reqid == state.reqid)
        && template.spi.is_none_or(|spi| spi == state.config.spi)
        && if is_tunnel {
            template.source.is_none_or(|source| source == state.source)
                && template.destination.is_none_or(|destination| destination == state.destination)
        } else {
            // In transport mode, the addresses of the packets are compared.
            selector::both(&own_selector(state), &policy.selector).is_some()
        }
}

/// Returns the selector of a state, without the selector of the policy.
fn own_selector(state: &XfrmState) -> Selector {
    let selector = state.config.selector.clone();
    if state.config.mode != Mode::Transport {
        return selector;
    }
    let host = |address: std::net::IpAddr| (!address.is_unspecified()).then(|| Prefix::of(address));
    let hosts = Selector { source: host(state.source), destination: host(state.destination), ..Selector::default() };
    // A selector that excludes the state's own addresses matches no packet. The state's addresses then replace the
    // selector.
    selector::both(&selector, &hosts).unwrap_or(hosts)
}

fn associate(
    state: &XfrmState,
    there: Direction,
    owner: Owner,
    selector: Selector,
    is_legacy: bool,
) -> Result<Association, XfrmError> {
    let (line, is_own) = (state.line, owner == Owner::Host);
    let direction = if is_own { there } else { there.opposite() };
    let mut config = SaConfig { selector, legacy: is_legacy, ..state.config.clone() };
    config.replay_window = match config.replay_window {
        0 => REPLAY_WINDOW_DEFAULT,
        window => window.max(REPLAY_WINDOW_MIN),
    };
    config.sequence = match there {
        Direction::In => state.received,
        Direction::Out => state.sent,
    };
    let is_sender = direction == Direction::Out;
    if is_sender && !is_own && config.sequence > 0 && config.suite.is_counter_mode() {
        return Err(Fault::UsedKey(config.spi).at(line));
    }
    config.destination = Some(state.destination).filter(|address| !is_sender && !address.is_unspecified());
    apply_flags(state, is_sender, is_own, &mut config)?;
    config.validate().map_err(|why| Fault::Association(why).at(line))?;
    Ok(Association { line, direction, config })
}

/// Applies the flags of `state` to `config`. A sender's flags concern only the sender, and a receiver's flags only the
/// receiver. The receiver's flag `noecn` is an exception: the sender uses no ECN, because the receiver loses congestion
/// marks (RFC 6040 4.1).
fn apply_flags(state: &XfrmState, is_sender: bool, is_own: bool, config: &mut SaConfig) -> Result<(), XfrmError> {
    let unsupported = |why| {
        let word = Shown(Some(if is_sender { "tfcpad" } else { "decap-dscp" }.to_owned()));
        Err(Fault::Unsupported { word, why }.at(state.line))
    };
    let Mode::Tunnel(tunnel) = &mut config.mode else { return Ok(()) };
    if is_sender && state.flags.no_ecn {
        tunnel.ecn = EcnRule::Compatibility;
    }
    if is_sender && is_own {
        tunnel.df = if state.flags.no_pmtu_discovery { DfRule::Clear } else { DfRule::Copy };
        tunnel.dscp = if state.flags.no_dscp { DscpRule::Set(0) } else { DscpRule::Copy };
        if state.flags.tfc_padding_len > 0 {
            return unsupported("packets are not padded to hide their length; remove it");
        }
    }
    if !is_sender && is_own && state.flags.decap_dscp {
        return unsupported("the DSCP of the inner packet is left alone; remove the flag");
    }
    Ok(())
}

/// Checks for conflicts. A receiver's SPIs must be unique. If two outbound associations select the same packets, only
/// one of the two associations is ever used.
fn check_against(others: &[Association], new: &Association) -> Result<(), XfrmError> {
    let (line, spi) = (new.line, new.config.spi);
    for other in others.iter().filter(|other| other.direction == new.direction) {
        if new.direction == Direction::In && other.config.spi == spi {
            return Err(Fault::Association(new.config.invalid(SaFault::DuplicateSpi)).at(line));
        }
        if new.direction == Direction::Out && other.config.selector == new.config.selector {
            return Err(Fault::SamePackets { spi, other: other.line }.at(line));
        }
    }
    Ok(())
}
