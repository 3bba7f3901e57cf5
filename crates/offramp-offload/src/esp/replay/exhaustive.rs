//! Compares the anti-replay window with a set of all accepted numbers. Tries every sequence of a few packets, in
//! windows of a few numbers, near the borders of the ring's 64-bit words and near multiples of 2³².

use super::*;
use std::collections::BTreeSet;

/// Number of packets received after the start.
const PACKETS: usize = if cfg!(miri) { 2 } else { 4 };
/// The numbers at which a window starts: the highest number treated as received.
const STARTS: [u64; 15] =
    [0, 1, 2, 5, 62, 63, 64, 65, 127, 128, (1 << 32) - 3, (1 << 32) - 1, (1 << 32) + 1, (7 << 32) + 2, u64::MAX - 2];
/// Distances from the start to the next packet's number.
const DISTANCES: [i128; 13] = [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 63, 64, 129];

/// An anti-replay window, implemented literally as defined in RFC 4303 3.4.3 and A2.
#[derive(Clone)]
struct Slow {
    start: u64,
    highest: u64,
    len: u64,
    is_extended: bool,
    seen: BTreeSet<u64>,
}

impl Slow {
    /// Returns the smallest number with this lower half that does not lie left of the window.
    fn infer(&self, low: u32) -> Option<u64> {
        if !self.is_extended {
            return Some(low.into());
        }
        let left = i128::from(self.highest) - i128::from(self.len) + 1;
        let subspaces = (left >> 32) - 1..=(left >> 32) + 1;
        let numbers = subspaces.map(|subspace| (subspace << 32) + i128::from(low));
        numbers.filter(|number| *number >= left).min().and_then(|number| u64::try_from(number).ok())
    }

    fn check(&self, low: u32) -> Result<u64, ReplayRefused> {
        let number = self.infer(low).ok_or(ReplayRefused::TooOld)?;
        let is_left = i128::from(number) <= i128::from(self.highest) - i128::from(self.len);
        if number == 0 || is_left {
            Err(ReplayRefused::TooOld)
        } else if number <= self.start || self.seen.contains(&number) {
            Err(ReplayRefused::Replayed)
        } else {
            Ok(number)
        }
    }

    fn advance(&mut self, number: u64) {
        self.seen.insert(number);
        self.highest = self.highest.max(number);
    }
}

/// Compares both windows at every possible next packet, and then recursively at the packets after it.
fn every_history(fast: &ReplayWindow, slow: &Slow, packets: usize) {
    for distance in DISTANCES {
        let number = (i128::from(slow.start) + distance) as u64;
        let low = number as u32;
        let expected = slow.check(low);
        let what = || format!("{number} in {} after {:?} from {}", slow.len, slow.seen, slow.start);
        assert_eq!(fast.check(low), expected, "{}", what());
        let Ok(number) = expected else { continue };
        let what = what();
        let (mut fast, mut slow) = (fast.clone(), slow.clone());
        assert_eq!(fast.advance(number), Ok(()), "{what}");
        slow.advance(number);
        assert_eq!(fast.highest(), slow.highest, "{what}");
        assert_eq!(fast.advance(number), Err(ReplayRefused::Replayed), "{what}");
        if packets > 1 {
            every_history(&fast, &slow, packets - 1);
        }
    }
}

#[test]
fn every_history_of_four_packets_in_a_window_of_up_to_five_numbers_is_judged_as_by_a_set() {
    for len in 1..=5 {
        for (start, is_extended) in STARTS.into_iter().flat_map(|start| [(start, false), (start, true)]) {
            // Without extended numbers, no number exceeds 32 bits.
            if !is_extended && start > u64::from(u32::MAX) {
                continue;
            }
            let mut fast = ReplayWindow::new(REPLAY_WINDOW_MIN, is_extended, start);
            fast.len = len;
            let slow = Slow { start, highest: start, len, is_extended, seen: BTreeSet::new() };
            every_history(&fast, &slow, PACKETS);
        }
    }
}
