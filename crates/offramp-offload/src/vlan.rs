//! VLAN tags (IEEE 802.1Q 9): what a tag is, and how one is put into a frame or taken out without moving its payload.

use crate::layout::VLAN_TAG_LEN;

/// Where the outer tag stands: after both addresses.
pub const TAG_AT: usize = 12;
/// Protocol identifier of a customer VLAN tag (IEEE 802.1Q 9.5).
pub const CUSTOMER_TAG: [u8; 2] = [0x81, 0x00];
/// Protocol identifier of a service VLAN tag (802.1ad).
pub const SERVICE_TAG: [u8; 2] = [0x88, 0xa8];
/// The usual one of service tags before 802.1ad.
const OLD_SERVICE_TAG: [u8; 2] = [0x91, 0x00];
/// Bits of the tag control information that are the VLAN identifier (IEEE 802.1Q 9.6); the others are the priority.
pub const VID_MASK: u16 = 0x0fff;

/// Whether a receiver may find a tag after that type.
#[inline]
pub fn begins_tag(ethertype: [u8; 2]) -> bool {
    matches!(ethertype, CUSTOMER_TAG | SERVICE_TAG | OLD_SERVICE_TAG)
}

/// What is done to the outer tag of a frame. The frame begins with a whole tag where one is taken out or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagChange {
    /// Nothing.
    #[default]
    Keep,
    /// A customer tag with this control information is put in.
    Push(u16),
    /// The tag is taken out.
    Pop,
    /// The tag gets this control information.
    Set(u16),
}

impl TagChange {
    /// Bytes by which the frame becomes longer.
    pub fn added_len(self) -> isize {
        match self {
            Self::Push(_) => VLAN_TAG_LEN as isize,
            Self::Pop => -(VLAN_TAG_LEN as isize),
            Self::Keep | Self::Set(_) => 0,
        }
    }

    /// Where a frame starts then, of which the bytes after its addresses stay in place.
    #[inline]
    pub(crate) fn new_start(self, start: usize) -> Option<usize> {
        start.checked_add_signed(-self.added_len())
    }

    /// Changes the frame that starts at `start` of `memory`, and returns where it starts then. Both addresses move, and no
    /// other byte. `None`, and nothing is changed, where there is no room for a tag before the frame, or it is too short.
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

    /// Takes back [`TagChange::apply`] of a frame that started at `start` with this `tag`.
    pub(crate) fn undo(self, memory: &mut [u8], start: usize, tag: Option<[u8; VLAN_TAG_LEN]>) {
        let Some(new_start) = self.new_start(start) else { return };
        memory.copy_within(new_start..new_start + TAG_AT, start);
        let tag = tag.filter(|_| matches!(self, Self::Pop | Self::Set(_)));
        if let Some((tag, place)) = tag.zip(memory[start + TAG_AT..].first_chunk_mut()) {
            *place = tag;
        }
    }
}

/// Takes the outer tag out of a frame that begins with a whole one; the frame after that.
#[inline]
pub fn pop_tag(frame: &mut [u8]) -> &mut [u8] {
    let start = TagChange::Pop.apply(frame, 0).unwrap_or(0);
    &mut frame[start..]
}
