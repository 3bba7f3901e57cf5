//! Frames to the reserved addresses 01-80-C2-00-00-00 to -0F. No bridge forwards these frames (IEEE 802.1Q 8.6.3),
//! unless the operator lists their address or their protocol.

use super::config::SwitchConfig;
use offramp_offload::layout::VLAN_TAG_LEN;
use offramp_offload::vlan::begins_tag;

/// The first of the reserved addresses. The last four bits of a reserved address are its number (IEEE 802.1Q, table
/// 8-1).
const RESERVED_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00];
/// Offset of the EtherType or length in a frame without tags.
const ETHERTYPE: usize = 12;
/// Largest value of a length field (IEEE 802.3 3.2.6).
const LENGTH_MAX: u16 = 1500;

/// A protocol between neighbours on a link, with a reserved destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkProtocol {
    /// Spanning trees of all kinds: a BPDU in an LLC frame (IEEE 802.1Q 14).
    Stp,
    /// Link aggregation: LACP and its markers, subtypes 1 and 2 of the slow protocols (IEEE 802.3 annex 57A; IEEE
    /// 802.1AX).
    Lacp,
    /// Port authentication: EAP over LAN (IEEE 802.1X 11.1.4).
    Eapol,
    /// Discovery of neighbours (IEEE 802.1AB 7.1, 7.4).
    Lldp,
    /// Peer delay of the Precision Time Protocol (IEEE 1588 annex E). All other messages of PTP have a group address
    /// that every bridge forwards.
    Ptp,
}

/// A set of link protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkProtocols(u8);

impl FromIterator<LinkProtocol> for LinkProtocols {
    fn from_iter<I: IntoIterator<Item = LinkProtocol>>(protocols: I) -> Self {
        Self(protocols.into_iter().fold(0, |bits, protocol| bits | 1 << protocol as u8))
    }
}

impl LinkProtocols {
    fn contains(self, protocol: LinkProtocol) -> bool {
        self.0 >> protocol as u8 & 1 != 0
    }
}

/// A reserved destination address, and the protocol of its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    /// The last four bits of the address.
    pub(super) number: u8,
    protocol: Option<LinkProtocol>,
}

impl Reserved {
    /// Returns the reserved address of a frame; `None` if the frame has another destination.
    #[inline]
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let number = frame.first_chunk().and_then(reserved)?;
        Some(Self { number, protocol: protocol(frame) })
    }

    /// Returns whether a switch with these settings forwards the frame.
    pub(super) fn passes(self, config: &SwitchConfig) -> bool {
        config.forward_reserved >> self.number & 1 != 0
            || self.protocol.is_some_and(|protocol| config.forward.contains(protocol))
    }
}

/// Returns the number of a reserved address, 0 to 15; `None` for other addresses.
pub fn reserved([rest @ .., last]: &[u8; 6]) -> Option<u8> {
    (*rest == RESERVED_ADDRESS[..5] && *last < 16).then_some(*last)
}

/// Returns the reserved address with a number from 0 to 15.
pub fn reserved_address(number: u8) -> [u8; 6] {
    let mut address = RESERVED_ADDRESS;
    address[5] = number;
    address
}

/// Returns the protocol of a frame with at most one VLAN tag.
fn protocol(frame: &[u8]) -> Option<LinkProtocol> {
    let untagged = frame.get(ETHERTYPE..)?;
    let is_tagged = untagged.first_chunk().is_some_and(|ethertype| begins_tag(*ethertype));
    let (ethertype, data) = untagged.get(if is_tagged { VLAN_TAG_LEN } else { 0 }..)?.split_first_chunk()?;
    match (u16::from_be_bytes(*ethertype), data) {
        (0x8809, [1 | 2, ..]) => Some(LinkProtocol::Lacp),
        (0x888e, _) => Some(LinkProtocol::Eapol),
        (0x88cc, _) => Some(LinkProtocol::Lldp),
        (0x88f7, _) => Some(LinkProtocol::Ptp),
        (0..=LENGTH_MAX, [0x42, 0x42, 0x03, ..]) => Some(LinkProtocol::Stp),
        _ => None,
    }
}
