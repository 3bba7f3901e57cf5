//! VLAN tags (IEEE 802.1Q 9): format, insertion and removal. Insertion and removal move only the two MAC addresses.

use crate::layout::VLAN_TAG_LEN;

/// Offset of the outer tag in a frame, after the two MAC addresses.
pub const TAG_AT: usize = 12;
/// Protocol identifier of a customer VLAN tag (IEEE 802.1Q 9.5).
pub const CUSTOMER_TAG: [u8; 2] = [0x81, 0x00];
/// Protocol identifier of a service VLAN tag (802.1ad).
pub const SERVICE_TAG: [u8; 2] = [0x88, 0xa8];
/// Protocol identifier commonly used for service tags before 802.1ad.
const OLD_SERVICE_TAG: [u8; 2] = [0x91, 0x00];
/// Mask for the VLAN identifier in the tag control information (IEEE 802.1Q 9.6). The other bits are the priority and
/// the drop eligible indicator.
pub const VID_MASK: u16 = 0x0fff;

/// Returns true for an EtherType that begins a VLAN tag.
#[inline]
pub fn begins_tag(ethertype: [u8; 2]) -> bool {
    matches!(ethertype, CUSTOMER_TAG | SERVICE_TAG | OLD_SERVICE_TAG)
}

/// A change to the outer tag of a frame. To remove or change a tag, the frame must contain a whole tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagChange {
    /// Leaves the tags unchanged.
    #[default]
    Keep,
    /// Inserts a customer tag with this control information.
    Push(u16),
    /// Removes the tag.
    Pop,
    /// Overwrites the tag's control information.
    Set(u16),
}

impl TagChange {
    /// Returns the growth of the frame in bytes, negative for a removed tag.
    pub fn added_len(self) -> isize {
        match self {
            Self::Push(_) => VLAN_TAG_LEN as isize,
            Self::Pop => -(VLAN_TAG_LEN as isize),
            Self::Keep | Self::Set(_) => 0,
        }
    }

    /// Returns the new start of the frame. The bytes after the MAC addresses stay in place.
    #[inline]
    pub(crate) fn new_start(self, start: usize) -> Option<usize> {
        start.checked_add_signed(-self.added_len())
    }

    /// Changes the frame at `start` of `memory` and returns the frame's new start. Only the two MAC addresses move.
    /// Returns `None`, and changes nothing, if `memory` has no room for a tag before the frame, or the frame is too
    /// short.
    #[inline]
    pub(crate) fn apply(self, memory: &mut [u8], start: usize) -> Option<usize> {
        let new_start = self.new_start(start)?;
        let (tag_at, end) = (new_start + TAG_AT, start.max(new_start) + TAG_AT);
        memory.get(..end)?;
        memory.copy_within(start..start + TAG_AT, new_start);
        match self {
            Self::Push(tci) => {
                memory[tag_at..tag_at + 2].copy_from_slice(&CUSTOMER_TAG);
                memory[tag_at + 2..tag_at + 4].copy_from_slice(&tci.to_be_bytes());
            }
            Self::Set(tci) => memory.get_mut(tag_at + 2..tag_at + 4)?.copy_from_slice(&tci.to_be_bytes()),
            Self::Keep | Self::Pop => {}
        }
        Some(new_start)
    }

    /// Reverts [`TagChange::apply`] on a frame. `start` and `tag` are the frame's start and tag before the change.
    pub(crate) fn undo(self, memory: &mut [u8], start: usize, tag: Option<[u8; VLAN_TAG_LEN]>) {
        let Some(new_start) = self.new_start(start) else { return };
        memory.copy_within(new_start..new_start + TAG_AT, start);
        let tag = tag.filter(|_| matches!(self, Self::Pop | Self::Set(_)));
        if let Some((tag, place)) = tag.zip(memory[start + TAG_AT..].first_chunk_mut()) {
            *place = tag;
        }
    }
}

/// Removes the outer tag and returns the frame without it. The frame must contain a whole tag.
#[inline]
pub fn pop_tag(frame: &mut [u8]) -> &mut [u8] {
    let start = TagChange::Pop.apply(frame, 0).unwrap_or(0);
    &mut frame[start..]
}
