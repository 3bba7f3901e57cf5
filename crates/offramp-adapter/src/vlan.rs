//! VLANs of a port (IEEE 802.1Q): the frames its host may send, the frames its host receives, and their tags. The port
//! inserts and removes tags. Inside a switch and on a wire, a frame carries the tag of its VLAN.
//!
//! | a port with | accepts from its host | delivers to its host |
//! |---|---|---|
//! | neither | every frame, unchanged | every frame addressed to it, tagged |
//! | `untagged` (access) | untagged and priority-tagged (VID 0) frames, assigned to that VLAN | frames of that VLAN, untagged |
//! | `tagged` (trunk) | frames with one of these tags | frames with one of these tags |
//! | both | both kinds; `untagged` is the native VLAN | both kinds |
//!
//! Every frame that the table does not accept is refused ([`Loss::Vlan`]). A frame with a tag of another protocol than
//! 0x8100 (802.1ad, 0x9100) is refused, because the VID in the tag has another meaning. A frame with a second tag after
//! the removed tag is refused: its receiver would assign the frame to the second VLAN. On a trunk, further tags after a
//! permitted tag are payload.

use crate::stats::Loss;
use offramp_offload::layout::{ETHERNET_HEADER_LEN, VLAN_TAG_LEN};
use offramp_offload::vlan::{CUSTOMER_TAG, SERVICE_TAG, TagChange, VID_MASK, begins_tag, pop_tag};
use std::ops::RangeInclusive;

/// Valid VLAN numbers; 0 means priority only, and 4095 is reserved (IEEE 802.1Q 9.6).
pub const VIDS: RangeInclusive<u16> = 1..=4094;
/// Bytes up to and including the EtherType after the outer tag.
const TAGGED_HEADER_LEN: usize = ETHERNET_HEADER_LEN + VLAN_TAG_LEN;

/// The reason for refusing a VLAN configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VlanError {
    /// The number is outside the range of VLAN numbers.
    #[error("{0} is out of range; use {first} to {last}", first = VIDS.start(), last = VIDS.end())]
    Vid(u16),
    /// The range's last number is smaller than its first.
    #[error("the range {0}-{1} is empty; write the smaller number first")]
    Empty(u16, u16),
}

/// The VLANs of a port; the default is a port without VLANs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortVlans {
    untagged: Option<u16>,
    /// Ranges of tagged VLANs: sorted, neither overlapping nor adjacent.
    tagged: Vec<RangeInclusive<u16>>,
}

impl PortVlans {
    /// Creates a port's VLANs: the VLAN `untagged` for untagged frames of the host, and the VLANs `tagged` for tagged
    /// frames.
    ///
    /// # Errors
    /// Fails for a number outside the range of VLAN numbers, and for an empty range.
    pub fn new(untagged: Option<u16>, tagged: &[RangeInclusive<u16>]) -> Result<Self, VlanError> {
        let ends = tagged.iter().flat_map(|range| [*range.start(), *range.end()]);
        if let Some(vid) = untagged.into_iter().chain(ends).find(|vid| !VIDS.contains(vid)) {
            return Err(VlanError::Vid(vid));
        }
        if let Some(empty) = tagged.iter().find(|range| range.is_empty()) {
            return Err(VlanError::Empty(*empty.start(), *empty.end()));
        }
        let mut sorted = tagged.to_vec();
        sorted.sort_unstable_by_key(|range| *range.start());
        sorted.dedup_by(|next, range| {
            let is_adjacent = *next.start() <= range.end() + 1;
            if is_adjacent {
                *range = *range.start()..=*range.end().max(next.end());
            }
            is_adjacent
        });
        Ok(Self { untagged, tagged: sorted })
    }

    /// Returns the VLAN of untagged frames.
    pub fn untagged(&self) -> Option<u16> {
        self.untagged
    }

    /// Returns the VLANs of tagged frames as sorted ranges; adjacent ranges are merged.
    pub fn tagged(&self) -> &[RangeInclusive<u16>] {
        &self.tagged
    }

    /// Returns whether the port has no VLANs.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.untagged.is_none() && self.tagged.is_empty()
    }

    fn has_tag(&self, vid: u16) -> bool {
        let nth = self.tagged.partition_point(|range| *range.end() < vid);
        self.tagged.get(nth).is_some_and(|range| range.contains(&vid))
    }

    /// Returns whether the port's host receives frames of this VLAN.
    #[inline]
    pub(crate) fn takes(&self, vlan: FrameVlan) -> bool {
        self.is_off() || (vlan.is_customer() && (self.untagged == Some(vlan.vid) || self.has_tag(vlan.vid)))
    }

    /// Returns the VLAN of a frame sent by the host.
    ///
    /// # Errors
    /// Returns [`Loss::Vlan`] for a forbidden frame, and [`Loss::Malformed`] without an Ethernet header.
    pub(crate) fn of_sent(&self, frame: &[u8]) -> Result<FrameVlan, Loss> {
        let vlan = FrameVlan::of(frame);
        if self.is_off() { Ok(vlan) } else { self.admit(vlan, frame.len()) }
    }

    #[inline]
    fn admit(&self, vlan: FrameVlan, frame_len: usize) -> Result<FrameVlan, Loss> {
        if frame_len < ETHERNET_HEADER_LEN {
            return Err(Loss::Malformed);
        }
        match (vlan.tag, self.untagged) {
            (Tag::Customer(_), _) if vlan.vid != 0 && self.has_tag(vlan.vid) => Ok(vlan),
            (Tag::Customer(_), Some(vid)) if vlan.vid == 0 && !vlan.is_stacked => Ok(FrameVlan { vid, ..vlan }),
            (Tag::None, Some(vid)) => Ok(FrameVlan { vid, ..vlan }),
            _ => Err(Loss::Vlan),
        }
    }

    /// Returns the tag change for a frame delivered to the port's host.
    ///
    /// # Errors
    /// Returns [`Loss::Vlan`] if the host would find a second tag in place of the removed tag.
    #[inline]
    pub(crate) fn change_for(&self, vlan: FrameVlan) -> Result<TagChange, Loss> {
        if self.is_off() || self.untagged != Some(vlan.vid) {
            return Ok(vlan.tagged());
        }
        match vlan.tag {
            Tag::Customer(_) if vlan.is_stacked => Err(Loss::Vlan),
            Tag::Customer(_) => Ok(TagChange::Pop),
            Tag::None | Tag::Other => Ok(TagChange::Keep),
        }
    }

    /// Returns the tag change for a frame sent by the host to the wire.
    ///
    /// # Errors
    /// Fails as [`PortVlans::of_sent`] does.
    #[inline]
    pub(crate) fn change_to_wire(&self, frame: &[u8]) -> Result<TagChange, Loss> {
        match (self.untagged, frame.first_chunk::<ETHERNET_HEADER_LEN>()) {
            (None, _) if self.tagged.is_empty() => Ok(TagChange::Keep),
            // Fast path: almost every frame of an access port.
            (Some(vid), Some(&[.., a, b])) if !begins_tag([a, b]) => Ok(TagChange::Push(vid)),
            _ => self.of_sent(frame).map(FrameVlan::tagged),
        }
    }

    /// Returns whether [`PortVlans::take_from_wire`] returns every frame unchanged.
    #[inline]
    pub(crate) fn takes_all(&self) -> bool {
        self.untagged.is_none() && self.tagged.is_empty()
    }

    /// Returns a frame of the wire as delivered to the host.
    ///
    /// # Errors
    /// Returns [`Loss::Vlan`] if the frame is in none of the port's VLANs.
    #[inline]
    pub(crate) fn take_from_wire<'a>(&self, frame: &'a mut [u8]) -> Result<&'a mut [u8], Loss> {
        match (self.untagged, frame.first_chunk::<TAGGED_HEADER_LEN>()) {
            (None, _) if self.tagged.is_empty() => Ok(frame),
            // Fast path: almost every frame for an access port.
            (Some(vid), Some(&[.., t, p, high, low, a, b]))
                if [t, p] == CUSTOMER_TAG
                    && u16::from_be_bytes([high, low]) & VID_MASK == vid
                    && !begins_tag([a, b]) =>
            {
                Ok(pop_tag(frame))
            }
            _ => self.take_of(FrameVlan::of(frame), frame),
        }
    }

    /// Returns a frame of the wire as delivered to the host. The frame is in `vlan`.
    fn take_of<'a>(&self, vlan: FrameVlan, frame: &'a mut [u8]) -> Result<&'a mut [u8], Loss> {
        if !self.takes(vlan) {
            return Err(Loss::Vlan);
        }
        match self.change_for(vlan)? {
            TagChange::Pop => Ok(pop_tag(frame)),
            _ => Ok(frame),
        }
    }
}

/// The tag of a frame, or its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    None,
    /// A customer tag, with its tag control information.
    Customer(u16),
    /// A tag of another protocol.
    Other,
}

/// The VLAN of a frame, and its tag in the frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameVlan {
    /// VLAN number; 0 without a VLAN.
    pub(crate) vid: u16,
    tag: Tag,
    /// True if a second tag follows the first.
    is_stacked: bool,
}

impl FrameVlan {
    /// Reads the VLAN from the frame's bytes.
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Self {
        match frame.first_chunk::<ETHERNET_HEADER_LEN>() {
            Some(&[.., a, b]) if begins_tag([a, b]) => Self::of_tagged(frame, [a, b]),
            _ => Self { vid: 0, tag: Tag::None, is_stacked: false },
        }
    }

    /// Reads the VLAN of a frame whose tag, possibly truncated, has this protocol.
    fn of_tagged(frame: &[u8], protocol: [u8; 2]) -> Self {
        let Some(&[.., high, low, a, b]) = frame.first_chunk::<TAGGED_HEADER_LEN>() else {
            return Self { vid: 0, tag: Tag::Other, is_stacked: false };
        };
        let tci = u16::from_be_bytes([high, low]);
        let (vid, tag) = match protocol {
            CUSTOMER_TAG => (tci & VID_MASK, Tag::Customer(tci)),
            SERVICE_TAG => (tci & VID_MASK, Tag::Other),
            _ => (0, Tag::Other),
        };
        Self { vid, tag, is_stacked: begins_tag([a, b]) }
    }

    /// Returns whether the frame is in a VLAN of customer tags.
    fn is_customer(self) -> bool {
        self.vid != 0 && self.tag != Tag::Other
    }

    /// Returns the tag change that writes the frame's VLAN into its bytes.
    #[inline]
    pub(crate) fn tagged(self) -> TagChange {
        match self.tag {
            Tag::None if self.vid != 0 => TagChange::Push(self.vid),
            Tag::Customer(tci) if tci & VID_MASK != self.vid => TagChange::Set(tci & !VID_MASK | self.vid),
            _ => TagChange::Keep,
        }
    }
}

#[cfg(test)]
mod tests;
