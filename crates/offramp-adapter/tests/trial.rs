//! A moderator in virtual time, for a host that processes frames in no time, and the lowest cost of any schedule.

use offramp_adapter::moderation::Moderator;

/// One frame of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub at_ns: u64,
    pub bytes: u64,
}

/// The cost of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub interrupts: u64,
    /// Sum of the waiting times of all frames, in nanoseconds.
    pub waited_ns: u64,
    pub longest_wait_ns: u64,
    pub most_frames: usize,
}

impl Outcome {
    /// Returns the cost of the schedule, with an interrupt counted as `interrupt_ns` of waiting.
    pub fn cost_ns(&self, interrupt_ns: u64) -> u64 {
        self.interrupts * interrupt_ns + self.waited_ns
    }
}

/// A moderator, and an independent count of the waiting frames.
#[derive(Debug)]
pub struct Trial {
    pub moderator: Moderator,
    pub outcome: Outcome,
    pub fired_ns: u64,
    waiting: Vec<u64>,
}

impl Trial {
    pub fn new(moderator: Moderator) -> Self {
        Self { moderator, outcome: Outcome::default(), fired_ns: 0, waiting: Vec::new() }
    }

    /// Returns the cost of a trace, from the first frame to the last interrupt.
    pub fn of_trace(moderator: Moderator, frames: impl IntoIterator<Item = Frame>) -> Outcome {
        let mut trial = Self::new(moderator);
        frames.into_iter().for_each(|frame| trial.frame(frame));
        trial.finish();
        trial.outcome
    }

    /// Advances the time to the arrival of `frame`, and raises the interrupts due before this arrival. A frame that
    /// arrives when a timer expires is included in the interrupt of the timer.
    pub fn frame(&mut self, frame: Frame) {
        while let Some(due_ns) = self.moderator.next_due_ns().filter(|&due_ns| due_ns < frame.at_ns) {
            self.fire(due_ns);
        }
        self.moderator.arrived(frame.at_ns, frame.bytes);
        self.waiting.push(frame.at_ns);
        if self.moderator.is_due(frame.at_ns) {
            self.fire(frame.at_ns);
        } else {
            let due_ns = self.moderator.next_due_ns().expect("a frame waits");
            assert!(due_ns > frame.at_ns, "not due at {}, but since {due_ns}", frame.at_ns);
        }
    }

    /// Advances the time until no frame waits.
    pub fn finish(&mut self) {
        while let Some(due_ns) = self.moderator.next_due_ns() {
            self.fire(due_ns);
        }
        assert!(self.waiting.is_empty(), "{} frames were never told", self.waiting.len());
    }

    fn fire(&mut self, now_ns: u64) {
        assert!(self.moderator.is_due(now_ns), "due at {now_ns}, and then it was not");
        assert_eq!(self.moderator.fired(now_ns), self.waiting.len() as u64);
        self.outcome.interrupts += 1;
        let first_ns = self.waiting.first().copied().unwrap_or(now_ns);
        self.outcome.longest_wait_ns = self.outcome.longest_wait_ns.max(now_ns - first_ns);
        self.outcome.most_frames = self.outcome.most_frames.max(self.waiting.len());
        self.outcome.waited_ns += self.waiting.drain(..).map(|at_ns| now_ns - at_ns).sum::<u64>();
        self.fired_ns = now_ns;
    }
}

/// Returns the lowest cost of any schedule, for long traces. In the best schedule, the first frame of a batch waits no
/// longer than the interrupt cost. Otherwise, an additional interrupt for that frame alone would cost less.
pub fn optimum_ns(frames: &[Frame], interrupt_ns: u64) -> u64 {
    // Entry j: the lowest cost for the first j frames, and the sum of their arrival times.
    let mut costs_ns = vec![0; frames.len() + 1];
    let mut sums_ns = vec![0; frames.len() + 1];
    let mut earliest = 0;
    for (index, frame) in frames.iter().enumerate() {
        sums_ns[index + 1] = sums_ns[index] + frame.at_ns;
        while frame.at_ns - frames[earliest].at_ns > interrupt_ns {
            earliest += 1;
        }
        let with_batch_from = |start: usize| {
            let held = (index + 1 - start) as u64;
            costs_ns[start] + interrupt_ns + held * frame.at_ns - (sums_ns[index + 1] - sums_ns[start])
        };
        costs_ns[index + 1] = (earliest..=index).map(with_batch_from).min().expect("a batch of one");
    }
    costs_ns[frames.len()]
}
