//! Wrappers of a wire: they lose, duplicate or delay received frames. Transmitted frames are unchanged.

use crate::common::skipping;
use crate::read_out::{ReadOut, first};
use offramp_adapter::pass_on;
use offramp_adapter::port::{Arrival, Line, WirePort};
use offramp_adapter::stats::{Direction, Loss as LossReason};

/// Divides the frames into groups of `n` consecutive frames, and chooses one frame in each group. The seed determines
/// the position of the chosen frame in each group. So k complete groups contain exactly k chosen frames.
#[derive(Clone, Copy, Debug)]
struct OneIn {
    n: u64,
    seed: u64,
}

impl OneIn {
    fn new(n: Option<u32>, seed: u64) -> Self {
        Self { n: n.map_or(0, u64::from), seed }
    }

    fn is_off(self) -> bool {
        self.n == 0
    }

    fn chooses(self, index: u64) -> bool {
        let Some(group) = index.checked_div(self.n) else { return false };
        index % self.n == mix(self.seed ^ mix(group)) % self.n
    }
}

/// The output function of `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A wire that loses one frame in each group of `one_in` received frames. A lost frame is counted as
/// [`Loss::Fault`](offramp_adapter::stats::Loss::Fault).
#[derive(Debug)]
pub struct Loss<W> {
    /// The wrapped wire.
    pub line: W,
    choice: OneIn,
    /// Number of frames received from the wire.
    index: u64,
    lost: u64,
}

impl<W: Line> Loss<W> {
    /// Wraps a wire, and loses one frame in each group of `one_in` received frames. If `one_in` is `None`, no frame is
    /// lost.
    pub fn new(line: W, one_in: Option<u32>, seed: u64) -> Self {
        Self { line, choice: OneIn::new(one_in, seed), index: 0, lost: 0 }
    }

    /// Drops the arrived frames chosen for loss, up to the first frame not chosen.
    fn lose(&mut self, now_ns: u64) {
        while self.choice.chooses(self.index) && self.line.take(now_ns).is_some() {
            self.index += 1;
            self.lost += 1;
        }
    }
}

impl<W: Line> WirePort for Loss<W> {
    pass_on!(line: room lend put flush);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        self.lose(now_ns);
        if self.choice.chooses(self.index) {
            return None;
        }
        let frame = self.line.take(now_ns)?;
        self.index += 1;
        Some(frame)
    }

    /// Also returns the arrival of a frame chosen for loss. The caller then takes frames at this time, and the lost
    /// frame makes room on the wire for later frames.
    fn next_arrival_ns(&self) -> Option<u64> {
        self.line.next_arrival_ns()
    }

    fn arrivals(&self, skip: usize, until_ns: u64, note: impl FnMut(Arrival)) -> u32 {
        if self.choice.is_off() {
            return self.line.arrivals(skip, until_ns, note);
        }
        let (mut index, mut note) = (self.index, skipping(skip, note));
        self.line.arrivals(0, until_ns, |arrival| {
            if !self.choice.chooses(index) {
                note(arrival);
            }
            index += 1;
        })
    }

    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        self.lose(now_ns);
        stats.lose_on_line(LossReason::Fault, std::mem::take(&mut self.lost));
        self.line.advance(now_ns, stats)
    }
}

impl<W: Line> Line for Loss<W> {
    pass_on!(line: register unregister next_room_ns sent_ns is_idle);
}

impl<W: Line> ReadOut for Loss<W> {
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        self.lose(at_ns);
        first(self, at_ns)
    }
}

/// A wire that delivers one frame in each group of `one_in` received frames twice.
#[derive(Debug)]
pub struct Duplicate<W> {
    /// The wrapped wire.
    pub line: W,
    choice: OneIn,
    /// Number of frames received from the wire.
    index: u64,
    copy: Vec<u8>,
    /// The duplicate of the last taken frame, until the duplicate is taken.
    second: Option<Arrival>,
}

impl<W: Line> Duplicate<W> {
    /// Wraps a wire, and delivers one frame in each group of `one_in` received frames twice. If `one_in` is `None`, no
    /// frame is duplicated.
    pub fn new(line: W, one_in: Option<u32>, seed: u64) -> Self {
        Self { line, choice: OneIn::new(one_in, seed), index: 0, copy: Vec::new(), second: None }
    }
}

impl<W: Line> WirePort for Duplicate<W> {
    pass_on!(line: room lend put flush);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        if self.second.take_if(|second| second.at_ns <= now_ns).is_some() {
            return Some(&mut self.copy);
        }
        let is_chosen = self.choice.chooses(self.index);
        let at_ns = if is_chosen { self.line.next_arrival_ns() } else { None };
        let frame = self.line.take(now_ns)?;
        self.index += 1;
        if is_chosen {
            self.copy.clear();
            self.copy.extend_from_slice(frame);
            self.second = Some(Arrival { at_ns: at_ns.unwrap_or(now_ns), len: frame.len() });
        }
        Some(frame)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.second.map(|second| second.at_ns).or_else(|| self.line.next_arrival_ns())
    }

    fn arrivals(&self, skip: usize, until_ns: u64, note: impl FnMut(Arrival)) -> u32 {
        if self.choice.is_off() {
            return self.line.arrivals(skip, until_ns, note);
        }
        let (mut index, mut note) = (self.index, skipping(skip, note));
        self.second.filter(|second| second.at_ns <= until_ns).into_iter().for_each(&mut note);
        self.line.arrivals(0, until_ns, |arrival| {
            note(arrival);
            if self.choice.chooses(index) {
                note(arrival);
            }
            index += 1;
        })
    }

    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        self.line.advance(now_ns, stats)
    }
}

impl<W: Line> Line for Duplicate<W> {
    pass_on!(line: register unregister next_room_ns sent_ns);

    fn is_idle(&self) -> bool {
        self.second.is_none() && self.line.is_idle()
    }
}

impl<W: ReadOut> ReadOut for Duplicate<W> {
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        self.second.filter(|second| second.at_ns <= at_ns).or_else(|| self.line.begin(at_ns))
    }
}

/// A wire that delays each received frame.
#[derive(Debug)]
pub struct Delay<W> {
    /// The wrapped wire.
    pub line: W,
    delay_ns: u64,
}

impl<W: Line> Delay<W> {
    /// Wraps a wire, and delays each frame by `delay_ns`.
    pub fn new(line: W, delay_ns: u64) -> Self {
        Self { line, delay_ns }
    }

    fn late(&self, arrival: Arrival) -> Arrival {
        Arrival { at_ns: arrival.at_ns.saturating_add(self.delay_ns), ..arrival }
    }
}

impl<W: Line> WirePort for Delay<W> {
    pass_on!(line: room lend put flush);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        self.line.take(now_ns.checked_sub(self.delay_ns)?)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.line.next_arrival_ns().map(|at_ns| at_ns.saturating_add(self.delay_ns))
    }

    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        match until_ns.checked_sub(self.delay_ns) {
            // `u64::MAX` means no limit, also after the delay.
            Some(_) if until_ns == u64::MAX => self.line.arrivals(skip, u64::MAX, |arrival| note(self.late(arrival))),
            Some(until_ns) => self.line.arrivals(skip, until_ns, |arrival| note(self.late(arrival))),
            None => self.line.arrivals(usize::MAX, 0, |_| {}),
        }
    }

    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        self.line.advance(now_ns.saturating_sub(self.delay_ns), stats)
    }
}

impl<W: Line> Line for Delay<W> {
    pass_on!(line: register unregister next_room_ns sent_ns is_idle);
}

impl<W: ReadOut> ReadOut for Delay<W> {
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        let arrival = self.line.begin(at_ns.checked_sub(self.delay_ns)?)?;
        Some(self.late(arrival))
    }
}
