//! Lines that lose, double and delay what they bring. What is put on them goes its way.

use offramp_adapter::port::{Arrival, Line, Loan, WirePort, first};
use offramp_adapter::stats::{Direction, Loss as LossReason};
use std::task::Waker;

/// Passes on what concerns the frames that leave.
macro_rules! pass_on_transmit {
    ($line:ident) => {
        fn room(&mut self, now_ns: u64) -> usize {
            self.$line.room(now_ns)
        }

        fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
            self.$line.lend(len, count)
        }

        fn put(&mut self, len: usize, count: usize, now_ns: u64) {
            self.$line.put(len, count, now_ns);
        }

        fn flush(&mut self) {
            self.$line.flush();
        }
    };
}

/// Passes on what concerns the thread that sleeps.
macro_rules! pass_on_line {
    ($line:ident) => {
        fn register(&self, waker: &Waker) {
            self.$line.register(waker);
        }

        fn unregister(&self) {
            self.$line.unregister();
        }

        fn sent_ns(&self) -> u64 {
            self.$line.sent_ns()
        }
    };
}

pub(super) use pass_on_line;

/// A choice of one in each group of so many, at a place that the seed draws anew for each group: after k whole
/// groups exactly k were chosen.
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

/// `SplitMix64`'s output function (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A line that loses one in so many of the frames that it brings; they are counted as
/// [`Loss::Fault`](offramp_adapter::stats::Loss::Fault).
#[derive(Debug)]
pub struct Loss<W> {
    line: W,
    choice: OneIn,
    /// Frames that the line has brought.
    index: u64,
    lost: u64,
}

impl<W: Line> Loss<W> {
    /// A line that loses one in `one_in` frames; none when that is `None`.
    pub fn new(line: W, one_in: Option<u32>, seed: u64) -> Self {
        Self { line, choice: OneIn::new(one_in, seed), index: 0, lost: 0 }
    }

    /// The line below.
    pub fn line(&self) -> &W {
        &self.line
    }

    /// The line below, to change it between polls.
    pub fn line_mut(&mut self) -> &mut W {
        &mut self.line
    }

    /// Loses those at the head that are to be lost and have arrived.
    fn lose(&mut self, now_ns: u64) {
        while self.choice.chooses(self.index) && self.line.take(now_ns).is_some() {
            self.index += 1;
            self.lost += 1;
        }
    }
}

impl<W: Line> WirePort for Loss<W> {
    pass_on_transmit!(line);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        self.lose(now_ns);
        if self.choice.chooses(self.index) {
            return None;
        }
        let frame = self.line.take(now_ns)?;
        self.index += 1;
        Some(frame)
    }

    /// That of a frame that is to be lost as well: it is to make room for the next one in time.
    fn next_arrival_ns(&self) -> Option<u64> {
        self.line.next_arrival_ns()
    }

    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        if self.choice.is_off() {
            return self.line.arrivals(skip, until_ns, note);
        }
        let (mut index, mut skip) = (self.index, skip);
        self.line.arrivals(0, until_ns, |arrival| {
            if !self.choice.chooses(index) {
                if skip == 0 {
                    note(arrival);
                }
                skip = skip.saturating_sub(1);
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
    pass_on_line!(line);

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        self.line.next_room_ns(now_ns)
    }

    fn is_idle(&self) -> bool {
        self.line.is_idle()
    }

    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        self.lose(at_ns);
        first(self, at_ns)
    }
}

/// A line that brings one in so many frames twice.
#[derive(Debug)]
pub struct Duplicate<W> {
    line: W,
    choice: OneIn,
    /// Frames that the line has brought.
    index: u64,
    copy: Vec<u8>,
    /// The copy, while it is to be taken.
    second: Option<Arrival>,
}

impl<W: Line> Duplicate<W> {
    /// A line that doubles one in `one_in` frames; none when that is `None`.
    pub fn new(line: W, one_in: Option<u32>, seed: u64) -> Self {
        Self { line, choice: OneIn::new(one_in, seed), index: 0, copy: Vec::new(), second: None }
    }

    /// The line below.
    pub fn line(&self) -> &W {
        &self.line
    }

    /// The line below, to change it between polls.
    pub fn line_mut(&mut self) -> &mut W {
        &mut self.line
    }
}

impl<W: Line> WirePort for Duplicate<W> {
    pass_on_transmit!(line);

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

    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        if self.choice.is_off() {
            return self.line.arrivals(skip, until_ns, note);
        }
        let (mut index, mut skip) = (self.index, skip);
        let mut unless_skipped = |arrival| {
            if skip == 0 {
                note(arrival);
            }
            skip = skip.saturating_sub(1);
        };
        self.second.filter(|second| second.at_ns <= until_ns).into_iter().for_each(&mut unless_skipped);
        self.line.arrivals(0, until_ns, |arrival| {
            unless_skipped(arrival);
            if self.choice.chooses(index) {
                unless_skipped(arrival);
            }
            index += 1;
        })
    }

    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        self.line.advance(now_ns, stats)
    }
}

impl<W: Line> Line for Duplicate<W> {
    pass_on_line!(line);

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        self.line.next_room_ns(now_ns)
    }

    fn is_idle(&self) -> bool {
        self.second.is_none() && self.line.is_idle()
    }

    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        self.second.filter(|second| second.at_ns <= at_ns).or_else(|| self.line.begin(at_ns))
    }
}

/// A line on which each frame that it brings is under way for longer.
#[derive(Debug)]
pub struct Delay<W> {
    line: W,
    delay_ns: u64,
}

impl<W: Line> Delay<W> {
    /// A line that brings each frame `delay_ns` later.
    pub fn new(line: W, delay_ns: u64) -> Self {
        Self { line, delay_ns }
    }

    /// The line below.
    pub fn line(&self) -> &W {
        &self.line
    }

    /// The line below, to change it between polls.
    pub fn line_mut(&mut self) -> &mut W {
        &mut self.line
    }

    fn late(&self, arrival: Arrival) -> Arrival {
        Arrival { at_ns: arrival.at_ns.saturating_add(self.delay_ns), ..arrival }
    }
}

impl<W: Line> WirePort for Delay<W> {
    pass_on_transmit!(line);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        self.line.take(now_ns.checked_sub(self.delay_ns)?)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.line.next_arrival_ns().map(|at_ns| at_ns.saturating_add(self.delay_ns))
    }

    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        match until_ns.checked_sub(self.delay_ns) {
            // For ever is for ever, however late.
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
    pass_on_line!(line);

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        self.line.next_room_ns(now_ns)
    }

    fn is_idle(&self) -> bool {
        self.line.is_idle()
    }

    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        let arrival = self.line.begin(at_ns.checked_sub(self.delay_ns)?)?;
        Some(self.late(arrival))
    }
}
