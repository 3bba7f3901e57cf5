//! The policy (RFC 4301 4.4.1): what becomes of packets, apart from associations.
//!
//! The entries are checked in order. A packet without a matching entry goes to the associations, whose selectors act as
//! protecting entries. Without a match there either, [`NoMatch`] decides. Selectors of removed associations stay:
//! without its association, a protected packet is lost and does not go in the clear.

use super::SaDirection;
use crate::stats::Loss;
use offramp_offload::esp::Selector;
use offramp_offload::frame::Frame;
use offramp_offload::layout::Network;

/// EtherType of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Maximum of removed selectors in each direction. With more of them all of IP needs protection.
const REMOVED_MAX: usize = 256;

/// The fate of an IP packet without a matching entry or association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoMatch {
    /// It passes unprotected.
    #[default]
    Bypass,
    /// It is lost and counted ([`Loss::Discard`]).
    Discard,
}

/// The action of an entry on its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyAction {
    /// An association protects them; without one they are lost.
    Protect,
    /// They pass unprotected, even if a selector of an association names them.
    Bypass,
    /// They are lost, even after opening by an association.
    Discard,
}

/// An entry of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The direction of the packets, to the wire or from it.
    pub direction: SaDirection,
    /// The action on the packets.
    pub action: PolicyAction,
    /// The packets. An entry with ports that protects or discards also names fragments of possibly such packets.
    pub selector: Selector,
}

/// The rules for packets. The default passes everything outside the associations, but no IKE into a port with UDP
/// encapsulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// For IP packets to the wire without a matching entry or association.
    pub transmit: NoMatch,
    /// The same for packets from the wire.
    pub receive: NoMatch,
    /// The entries; the first match counts.
    pub entries: Vec<PolicyEntry>,
    /// `EtherTypes` that pass besides IP, 0 for frames with a length in that place (IEEE 802.3), both ways. `None`: ARP
    /// alone if packets without a match are discarded, else all.
    pub other: Option<Vec<u16>>,
    /// IKE after a non-ESP marker passes to the host (RFC 3948 2.2). Otherwise it is a clear packet like others.
    pub ike: bool,
}

/// The verdict of the entries on a packet.
pub(super) struct Said {
    /// `None` when none matches.
    pub(super) action: Option<PolicyAction>,
    /// An earlier entry, one that does not bypass, may name the packet of this fragment.
    pub(super) may_need_more: bool,
}

impl Policy {
    pub(super) fn no_match(&self, direction: SaDirection) -> NoMatch {
        match direction {
            SaDirection::Out => self.transmit,
            SaDirection::In => self.receive,
        }
    }

    /// Returns whether everything passes outside the associations.
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

    /// Judges a frame other than IP; `None` for IP.
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

/// Smaller values are lengths (IEEE 802.3 3.2.6).
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

    /// Returns them as entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = PolicyEntry> {
        let action = PolicyAction::Protect;
        self.0.iter().map(move |(direction, selector)| PolicyEntry {
            direction: *direction,
            action,
            selector: selector.clone(),
        })
    }
}
