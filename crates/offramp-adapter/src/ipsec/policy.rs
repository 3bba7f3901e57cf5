//! The IPsec policy of a port (RFC 4301 4.4.1): entries with precedence over the associations, and the treatment of
//! packets without a matching entry or association.
//!
//! The entries are checked in order. A packet without a matching entry is checked against the associations, whose
//! selectors act as protecting entries. Without a matching association, [`NoMatch`] decides. The selectors of removed
//! associations also remain in force: a packet that a removed association would have protected is lost, not sent
//! unencrypted.

use super::SaDirection;
use crate::stats::Loss;
use offramp_offload::esp::Selector;
use offramp_offload::frame::Frame;
use offramp_offload::layout::Network;

/// EtherType of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Maximum number of stored selectors of removed associations, for each direction. Above this number, all IP packets in
/// the direction need protection.
const REMOVED_MAX: usize = 256;

/// The treatment of an IP packet without a matching entry or association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoMatch {
    /// The packet passes unprotected.
    #[default]
    Bypass,
    /// The packet is lost and counted ([`Loss::Discard`]).
    Discard,
}

/// The action of an entry on its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyAction {
    /// An association protects the packets. Packets without a matching association are lost.
    Protect,
    /// The packets pass unprotected, even if a selector of an association matches.
    Bypass,
    /// The packets are lost, including packets that an association has opened.
    Discard,
}

/// An entry of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The direction of the packets: to the wire or from the wire.
    pub direction: SaDirection,
    /// The action on the packets.
    pub action: PolicyAction,
    /// Selects the packets. An entry with ports and the action protect or discard also matches fragments that may
    /// belong to selected packets.
    pub selector: Selector,
}

/// The rules besides the associations: entries checked before the associations, and the treatment of packets that match
/// neither an entry nor an association. The default policy has no entries, and passes packets without an association.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Treatment of IP packets to the wire without a matching entry or association.
    pub transmit: NoMatch,
    /// Treatment of IP packets from the wire without a matching entry or association.
    pub receive: NoMatch,
    /// The entries in order; the first matching entry decides.
    pub entries: Vec<PolicyEntry>,
    /// `EtherTypes` that pass in addition to IP, in both directions; 0 stands for frames with a length field (IEEE
    /// 802.3). With `None`, only ARP passes if packets without a match are discarded, and every type passes if such
    /// packets are bypassed.
    pub other: Option<Vec<u16>>,
    /// True if IKE packets after a non-ESP marker pass to the host (RFC 3948 2.2). If `false`, IKE is treated like any
    /// other unencrypted packet.
    pub ike: bool,
}

/// The verdict of the policy entries on a packet.
pub(super) struct Said {
    /// The action of the first matching entry; `None` if no entry matches.
    pub(super) action: Option<PolicyAction>,
    /// True if an earlier protecting or discarding entry possibly matches the whole packet to which this frame belongs.
    /// Such an uncertain match exists only for a fragment, and for an unparsable frame.
    pub(super) may_need_more: bool,
}

impl Policy {
    pub(super) fn no_match(&self, direction: SaDirection) -> NoMatch {
        match direction {
            SaDirection::Out => self.transmit,
            SaDirection::In => self.receive,
        }
    }

    /// Returns whether every packet outside of the associations passes in this direction.
    pub(super) fn is_open(&self, direction: SaDirection) -> bool {
        self.no_match(direction) == NoMatch::Bypass
            && self.other.is_none()
            && !self.entries.iter().any(|entry| entry.direction == direction)
    }

    pub(super) fn ask(&self, direction: SaDirection, frame: &Frame<'_>) -> Said {
        let mut may_need_more = false;
        for entry in self.entries.iter().filter(|entry| entry.direction == direction) {
            if entry.selector.matches(frame) {
                return Said { action: Some(entry.action), may_need_more };
            }
            may_need_more |= entry.action != PolicyAction::Bypass && entry.selector.may_match(frame);
        }
        Said { action: None, may_need_more }
    }

    /// Passes or refuses a frame other than IP; returns `None` for an IP frame.
    pub(super) fn judge_other(&self, direction: SaDirection, frame: &Frame<'_>) -> Option<Result<(), Loss>> {
        let layout = frame.layout().ok().filter(|layout| layout.network == Network::Opaque)?;
        let listed = match (&self.other, self.no_match(direction)) {
            (Some(listed), _) => listed.as_slice(),
            (None, NoMatch::Discard) => &[ETHERTYPE_ARP],
            (None, NoMatch::Bypass) => return Some(Ok(())),
        };
        let ethertype =
            frame.bytes()[..layout.network_start].last_chunk().map_or(0, |field| u16::from_be_bytes(*field));
        let kind = if ethertype < ETHERTYPE_MIN { 0 } else { ethertype };
        Some(if listed.contains(&kind) { Ok(()) } else { Err(Loss::Discard) })
    }
}

/// Smallest EtherType; smaller values are lengths (IEEE 802.3 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;

/// Selectors of removed associations.
#[derive(Clone, Debug, Default)]
pub(super) struct Removed(Vec<(SaDirection, Selector)>);

impl Removed {
    pub(super) fn add(&mut self, direction: SaDirection, selector: &Selector) {
        if self.of(direction).any(|known| known == selector) {
            return;
        }
        if self.of(direction).count() >= REMOVED_MAX {
            self.0.retain(|(way, _)| *way != direction);
            self.0.push((direction, Selector::default()));
        } else {
            self.0.push((direction, selector.clone()));
        }
    }

    pub(super) fn of(&self, direction: SaDirection) -> impl Iterator<Item = &Selector> {
        self.0.iter().filter(move |(way, _)| *way == direction).map(|(_, selector)| selector)
    }

    /// Returns the selectors as policy entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = PolicyEntry> {
        let action = PolicyAction::Protect;
        self.0.iter().map(move |(direction, selector)| PolicyEntry {
            direction: *direction,
            action,
            selector: selector.clone(),
        })
    }
}
