//! Finds the kinds of frames that a path does not carry, before the first verdict. Access ports drop tagged frames,
//! small switches drop jumbo frames, and snooping switches drop multicast. If the path drops a case only because of its
//! kind of frame, no offload is at fault.

use crate::case::{Case, Load, Train};
use crate::error::CheckError;
use crate::exchange::{Exchange, Outcome};
use crate::fault::Fault;
use crate::packet::{Ip, Way};
use crate::plan;

/// Maximum number of lengths in one round of the search for a path's MTU.
const LENGTHS: usize = 32;

/// A kind of frame that a path drops or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Frames with any VLAN tag.
    Tags,
    /// Frames of one VLAN.
    Vlan(u16),
    /// Frames of a VLAN whose tag the path removes, such as the native VLAN of a trunk.
    NativeVlan(u16),
    /// Tagged packets with more than this number of bytes. An untagged packet of the same length passes.
    TaggedLongerThan(usize),
    Ip(Ip),
    /// Datagrams to a multicast group.
    Groups(Ip),
    Fragments,
}

impl Obstacle {
    /// Returns whether the obstacle stops the frames of `case`.
    fn stops(self, case: &Case) -> bool {
        match self {
            Self::Tags => case.vlan.is_some(),
            Self::Vlan(vlan) | Self::NativeVlan(vlan) => case.vlan.is_some_and(|tag| plan::vlan_of(tag) == vlan),
            Self::TaggedLongerThan(len) => case.vlan.is_some() && case.packet_len_max() > len,
            Self::Ip(ip) => case.ip == ip,
            Self::Groups(ip) => case.ip == ip && case.way == Way::UdpSocket,
            Self::Fragments => matches!(case.load, Load::Train { kind: Train::Fragment, .. }),
        }
    }

    fn text(self) -> String {
        let version = |ip| if ip == Ip::V4 { 4 } else { 6 };
        match self {
            Self::Tags => "the path drops tagged frames".to_owned(),
            Self::Vlan(vlan) => format!("the path drops frames of VLAN {vlan}"),
            Self::NativeVlan(vlan) => format!("the path removes the tag of VLAN {vlan}"),
            Self::TaggedLongerThan(len) => format!("the path drops tagged packets of more than {len} bytes"),
            Self::Ip(ip) => format!("the path drops IPv{}", version(ip)),
            Self::Groups(ip) => format!(
                "no IPv{} datagram to a multicast group arrives; a firewall, or a switch that knows who is in which \
                 group, may keep them out",
                version(ip)
            ),
            Self::Fragments => "the path drops or reassembles IP fragments".to_owned(),
        }
    }
}

/// The kinds of frames carried by a path in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    obstacles: Vec<Obstacle>,
    /// Length of the longest packet that passes, if shorter than the interfaces' MTU.
    pub longest: Option<usize>,
}

impl Reach {
    /// Probes a path that carries plain frames, with every offload off. `mtu` is the smaller MTU of the two ends.
    pub(crate) fn probe(exchange: &mut Exchange<'_>, mtu: usize, has_sockets: bool) -> Result<Self, CheckError> {
        let tagged = plan::VLANS.map(|tag| Case { vlan: Some(tag), ..plan::probe(Ip::V4) });
        let [longest, tagged_longest] = [None, Some(plan::VLANS[1])].map(|vlan| plan::of_length(mtu, vlan));
        let others = [plan::probe(Ip::V6), longest, tagged_longest, plan::fragments()];
        let sockets = if has_sockets { &[Ip::V4, Ip::V6][..] } else { &[] };
        let datagrams = sockets.iter().map(|ip| plan::datagram(*ip));
        let cases: Vec<Case> = tagged.into_iter().chain(others).chain(datagrams).collect();
        let outcomes = exchange.probe(&plan::probe(Ip::V4), &cases)?;
        let is_dropped: Vec<bool> = outcomes.iter().map(Option::as_ref).map(is_dropped).collect();
        let (vlans, others) = is_dropped.split_at(plan::VLANS.len());
        let mut obstacles = Vec::new();
        if vlans.iter().all(|is_dropped| *is_dropped) {
            obstacles.push(Obstacle::Tags);
        } else {
            let lost: Vec<bool> = outcomes[..vlans.len()].iter().map(Option::as_ref).map(is_without_tag).collect();
            for (n, vlan) in plan::VLANS.into_iter().map(plan::vlan_of).enumerate() {
                obstacles.extend(vlans[n].then_some(Obstacle::Vlan(vlan)));
                // A path that removes the tags of every VLAN has no native VLAN. If every tag is removed, an interface
                // is at fault, and the check reports the fault.
                let is_native = lost[n] && lost.iter().any(|is_lost| !is_lost);
                obstacles.extend(is_native.then_some(Obstacle::NativeVlan(vlan)));
            }
        }
        let longest = if others[1] { longest_packet(exchange, mtu)? } else { None };
        let is_tagged_dropped = match longest {
            Some(len) => probe_one(exchange, plan::of_length(len, Some(plan::VLANS[1])))?,
            None => others[2] && !others[1],
        };
        let found = [
            (others[0], Obstacle::Ip(Ip::V6)),
            (is_tagged_dropped && !vlans[1], Obstacle::TaggedLongerThan(longest.unwrap_or(mtu) - plan::TAG_LEN)),
            (others[3], Obstacle::Fragments),
            (others.get(4) == Some(&true), Obstacle::Groups(Ip::V4)),
            (others.get(5) == Some(&true), Obstacle::Groups(Ip::V6)),
        ];
        obstacles.extend(found.iter().filter(|(is_found, _)| *is_found).map(|(_, obstacle)| *obstacle));
        Ok(Self { obstacles, longest })
    }

    /// Returns the cause as a text if the path carries no tagged frame.
    pub(crate) fn without_tags(&self) -> Option<String> {
        self.obstacles.contains(&Obstacle::Tags).then(|| Obstacle::Tags.text())
    }

    /// Returns the cause as a text if the path carries only one IP version.
    pub(crate) fn without_a_version(&self) -> Option<String> {
        self.obstacles.iter().find(|obstacle| matches!(obstacle, Obstacle::Ip(_))).map(|obstacle| obstacle.text())
    }

    /// Returns the cases that the path carries. Also returns, as texts, the reasons why the other cases are left out.
    pub(crate) fn passable(&self, cases: Vec<Case>) -> (Vec<Case>, Vec<String>) {
        let is_effective = |obstacle: &&Obstacle| cases.iter().any(|case| obstacle.stops(case));
        let causes = self.obstacles.iter().filter(is_effective).map(|obstacle| obstacle.text()).collect();
        let passes = |case: &Case| !self.obstacles.iter().any(|obstacle| obstacle.stops(case));
        (cases.into_iter().filter(passes).collect(), causes)
    }
}

/// Returns whether the path drops a case.
fn probe_one(exchange: &mut Exchange<'_>, case: Case) -> Result<bool, CheckError> {
    Ok(exchange.probe(&plan::probe(Ip::V4), &[case])?.iter().map(Option::as_ref).all(is_dropped))
}

fn is_dropped(outcome: Option<&Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Wrong(wrong)) if wrong.may_be_loss())
}

fn is_without_tag(outcome: Option<&Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Wrong(wrong)) if wrong.difference.fault == Fault::VlanTagLost)
}

/// Returns the length of the longest packet below `mtu` that passes. Returns `None` if not even the shortest tested
/// packet passes.
fn longest_packet(exchange: &mut Exchange<'_>, mtu: usize) -> Result<Option<usize>, CheckError> {
    let (mut passes, mut dropped) = (None, mtu);
    let mut least = plan::LONG_MIN;
    while least < dropped {
        let step = (dropped - least).div_ceil(LENGTHS);
        let lengths: Vec<usize> = (least..dropped).step_by(step).collect();
        let cases: Vec<Case> = lengths.iter().map(|len| plan::of_length(*len, None)).collect();
        let outcomes = exchange.probe(&plan::probe(Ip::V4), &cases)?;
        for (len, outcome) in lengths.into_iter().zip(&outcomes) {
            if is_dropped(outcome.as_ref()) {
                dropped = len;
                break;
            }
            passes = Some(len);
        }
        let Some(len) = passes else { break };
        least = len + 1;
    }
    Ok(passes)
}
