//! Positions in a packed ring: an index and a wrap counter (virtio 1.3, 2.8.1).

use crate::inflight::Place;

/// Bit of the wrap counter, above a 15-bit index.
const WRAP: u16 = 1 << 15;

/// A position in a packed ring: index and wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub index: u16,
    pub wrap: bool,
}

impl From<Place> for Position {
    fn from(Place { index, wrap }: Place) -> Self {
        Self { index, wrap }
    }
}

impl Position {
    pub(super) fn from_bits(bits: u16) -> Self {
        Self { index: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    pub(super) fn place(self) -> Place {
        Place { index: self.index, wrap: self.wrap }
    }

    pub(super) fn bits(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    #[inline]
    pub(super) fn advance(&mut self, slots: u16, size: u16) {
        self.index += slots;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    /// Returns the number of slots from `earlier` to this position, at most one lap.
    pub(super) fn ahead_of(self, earlier: Self, size: u16) -> u16 {
        let lap = if self.wrap == earlier.wrap { 0 } else { size };
        (self.index + lap).saturating_sub(earlier.index)
    }

    pub(super) fn retreat(&mut self, slots: u16, size: u16) {
        if self.index < slots {
            self.index += size;
            self.wrap = !self.wrap;
        }
        self.index -= slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_goes_back_the_way_it_came_across_the_end_of_the_ring() {
        for size in [1, 2, 7, 256] {
            let mut at = Position { index: 0, wrap: true };
            for step in 0..5 * u32::from(size) {
                let expected =
                    Position { index: (step % u32::from(size)) as u16, wrap: (step / u32::from(size)) % 2 == 0 };
                assert_eq!(at, expected);
                for slots in 0..=size {
                    let mut there = at;
                    there.advance(slots, size);
                    there.retreat(slots, size);
                    assert_eq!(there, at, "{slots} slots of {size}");
                }
                assert_eq!(Position::from_bits(at.bits()), at);
                at.advance(1, size);
            }
        }
    }
}
