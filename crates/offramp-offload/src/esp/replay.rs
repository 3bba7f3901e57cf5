//! The anti-replay window (RFC 4303 3.4.3) with extended sequence numbers (RFC 4303 appendix A,
//! RFC 4304).

/// Minimum window size, in packets (RFC 4303 3.4.3 requires support for at least 32).
pub const REPLAY_WINDOW_MIN: u32 = 32;
/// Maximum window size, packets. On one wire, a window of a few thousand packets is enough. With one thread per queue
/// pair, a pair without processor time lags behind by the number of packets that the other pairs send. A window of
/// 65,536 packets covers 65 ms at a million packets per second.
pub const REPLAY_WINDOW_MAX: u32 = 65_536;
/// Default window size, packets, as recommended by RFC 4303 3.4.3.
pub const REPLAY_WINDOW_DEFAULT: u32 = 64;

const BITS: u64 = u64::BITS as u64;

#[cfg(test)]
mod exhaustive;

/// The reason to refuse a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplayRefused {
    /// A packet with this sequence number was accepted before.
    Replayed,
    /// The sequence number lies left of the window, or is 0, which no sender uses.
    TooOld,
}

/// An anti-replay window: the highest accepted sequence number, and one bit for each of the `len` highest numbers.
///
/// The bits are stored in a ring of words. The ring is at least one word longer than the window, so a move of the
/// window clears whole words and shifts none (RFC 6479 2). Nearly every packet is received in order and only increments
/// the highest number. When a packet is received out of order, the ring is updated for all packets received in order
/// before.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    highest: u64,
    /// Highest number stored in the ring. All numbers after `noted`, up to `highest`, were accepted.
    noted: u64,
    len: u64,
    is_extended: bool,
    ring: Box<[u64]>,
}

impl ReplayWindow {
    /// Makes a window of `len` packets, clamped to [`REPLAY_WINDOW_MIN`] and [`REPLAY_WINDOW_MAX`]. The window ends at
    /// `highest`, the highest number treated as received, 0 for a new association. With `is_extended`, numbers have 64
    /// bits, and packets carry the lower 32 bits.
    pub fn new(len: u32, is_extended: bool, highest: u64) -> Self {
        let len = u64::from(len.clamp(REPLAY_WINDOW_MIN, REPLAY_WINDOW_MAX));
        let words = (len.div_ceil(BITS) + 1).next_power_of_two();
        // It is unknown which lower numbers were received, so all lower numbers are treated as received.
        let seen = if highest == 0 { 0 } else { u64::MAX };
        let mut window = Self { highest, noted: highest, len, is_extended, ring: vec![seen; words as usize].into() };
        window.forget_ahead();
        window
    }

    /// In the word of the highest number, clears the bits of all higher numbers, because these numbers were not
    /// received yet.
    fn forget_ahead(&mut self) {
        let word = self.word_at(self.highest);
        self.ring[word] &= up_to(self.highest);
    }

    /// Returns the highest accepted number, upper half included.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns the full sequence number of a packet with the lower half `low`, if the number is acceptable.
    ///
    /// Leaves the window unchanged: call [`ReplayWindow::advance`] after the packet has proved genuine. For extended
    /// numbers, the upper half is chosen so that the number lies inside or right of the window (RFC 4303 A2.2).
    ///
    /// # Errors
    /// Returns an error if the number was accepted before or lies left of the window.
    #[inline]
    pub fn check(&self, low: u32) -> Result<u64, ReplayRefused> {
        let next = self.highest.wrapping_add(1);
        // If `low` is 0, the next number has another upper half, or does not exist.
        if low == next as u32 && low != 0 { Ok(next) } else { self.check_any(low) }
    }

    /// Does the same as [`ReplayWindow::check`], also for numbers other than the next number.
    #[inline(never)]
    fn check_any(&self, low: u32) -> Result<u64, ReplayRefused> {
        let sequence = if self.is_extended { self.infer(low)? } else { u64::from(low) };
        self.check_whole(sequence)?;
        Ok(sequence)
    }

    fn check_whole(&self, sequence: u64) -> Result<(), ReplayRefused> {
        if sequence > self.highest {
            return Ok(());
        }
        // No packet has the number 0 (RFC 4303 3.3.3), so 0 is treated as left of the window.
        if sequence == 0 || self.highest - sequence >= self.len {
            return Err(ReplayRefused::TooOld);
        }
        let is_seen = sequence > self.noted || self.ring[self.word_at(sequence)] >> (sequence % BITS) & 1 == 1;
        if is_seen { Err(ReplayRefused::Replayed) } else { Ok(()) }
    }

    /// Infers the upper half of the sequence number (RFC 4303 A2.2). In case A of the RFC, the window lies in one
    /// subspace of 2³² numbers. In case B, the window spans two subspaces.
    fn infer(&self, low: u32) -> Result<u64, ReplayRefused> {
        let (highest_low, subspace) = (self.highest as u32, (self.highest >> 32) as u32);
        let bottom = highest_low.wrapping_sub(self.len as u32 - 1);
        let is_in_one = u64::from(highest_low) >= self.len - 1;
        let high = match (is_in_one, low >= bottom) {
            (true, true) | (false, false) => Some(subspace),
            (true, false) => subspace.checked_add(1),
            (false, true) => subspace.checked_sub(1),
        };
        high.map(|high| u64::from(high) << 32 | u64::from(low)).ok_or(ReplayRefused::TooOld)
    }

    /// Marks the number of a genuine packet as accepted. Moves the window if the number is the highest.
    ///
    /// Checks the number again: if two threads opened the same packet at the same time, only one thread must deliver
    /// the packet.
    ///
    /// # Errors
    /// Returns the errors of [`ReplayWindow::check`]. After an error, the window is unchanged.
    #[inline]
    pub fn advance(&mut self, sequence: u64) -> Result<(), ReplayRefused> {
        if sequence == self.highest.wrapping_add(1) && sequence != 0 {
            self.highest = sequence;
            return Ok(());
        }
        self.advance_any(sequence)
    }

    /// Does the same as [`ReplayWindow::advance`], also for numbers other than the next number.
    #[inline(never)]
    fn advance_any(&mut self, sequence: u64) -> Result<(), ReplayRefused> {
        self.check_whole(sequence)?;
        self.note_run();
        if sequence > self.highest {
            self.move_to(sequence);
        }
        let word = self.word_at(sequence);
        self.ring[word] |= 1 << (sequence % BITS);
        Ok(())
    }

    /// Sets the bits in the ring for the numbers that were received in order: the numbers after `noted`, up to
    /// `highest`.
    fn note_run(&mut self) {
        let (from, to) = (self.noted / BITS, self.highest / BITS);
        let word = self.word_at(self.noted);
        if from == to {
            self.ring[word] |= up_to(self.highest) & !up_to(self.noted);
        } else {
            self.ring[word] |= !up_to(self.noted);
            // If the numbers received in order span more words than the ring, only the last words matter.
            for between in (from + 1).max(to.saturating_sub(self.ring.len() as u64))..to {
                let word = self.word_at(between * BITS);
                self.ring[word] = u64::MAX;
            }
            let word = self.word_at(self.highest);
            self.ring[word] = up_to(self.highest);
        }
        self.noted = self.highest;
    }

    /// Moves the window to a higher number. The skipped numbers were not received.
    fn move_to(&mut self, sequence: u64) {
        let (from, to) = (self.highest / BITS, sequence / BITS);
        (self.highest, self.noted) = (sequence, sequence);
        let cleared = (to - from).min(self.ring.len() as u64);
        for n in 0..cleared {
            let word = self.word_at((to - n) * BITS);
            self.ring[word] = 0;
        }
    }

    fn word_at(&self, sequence: u64) -> usize {
        (sequence / BITS) as usize & (self.ring.len() - 1)
    }
}

/// Returns a mask of the number's bit and all lower bits in its word.
fn up_to(sequence: u64) -> u64 {
    u64::MAX >> (BITS - 1 - sequence % BITS)
}
