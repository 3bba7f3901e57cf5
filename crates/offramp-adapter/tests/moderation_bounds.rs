//! The cost of moderation compared with the cost of the best schedule with knowledge of the future.
//!
//! The tests check the bounds of `offramp_adapter::moderation` on 10,000 traces, random and adversarial. `OFFRAMP_SEED`
//! selects other traces.

use crate::trial::{Frame, Trial, optimum_ns};
use offramp_adapter::moderation::{AreaConfig, InterruptCost, ModerationConfig, Moderator, Policy};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const TRACES: usize = 10_000;
const FRAMES_MAX: usize = 40;
const SEED_DEFAULT: u64 = 82_571;
const NO_DEADLINE_NS: u64 = u64::MAX;
/// Bytes of a frame. The tested rules ignore the bytes of frames.
const BYTES: u64 = 60;

fn rng() -> ChaCha8Rng {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED_DEFAULT);
    println!("OFFRAMP_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// The constraints of every schedule, and the cost of an interrupt.
#[derive(Clone, Copy, Debug)]
struct Terms {
    interrupt_ns: u64,
    deadline_ns: u64,
    ring_frames: u32,
}

impl Terms {
    fn without_limits(rng: &mut ChaCha8Rng) -> Self {
        Self { interrupt_ns: rng.random_range(1000..100_000), deadline_ns: NO_DEADLINE_NS, ring_frames: u32::MAX }
    }

    fn with_limits(rng: &mut ChaCha8Rng) -> Self {
        let interrupt_ns = rng.random_range(1000..100_000);
        Self { interrupt_ns, deadline_ns: rng.random_range(0..interrupt_ns * 2), ring_frames: rng.random_range(1..20) }
    }

    /// Creates a moderator under these constraints. The ring is larger by the guard, so that `ring_frames` frames may
    /// wait.
    fn moderator(&self, policy: fn(AreaConfig) -> Policy) -> Moderator {
        const GUARD_FRAMES: u32 = 7;
        let cost = InterruptCost::Given { ns: self.interrupt_ns };
        let policy = policy(AreaConfig { cost, deadline_ns: self.deadline_ns });
        let mut moderator = Moderator::new(ModerationConfig { policy, ring_guard_frames: GUARD_FRAMES });
        if self.ring_frames < u32::MAX {
            moderator.ring_has(self.ring_frames + GUARD_FRAMES);
        }
        moderator
    }

    /// Returns the lowest cost of a schedule under these constraints: for every prefix of the trace, tries every start
    /// of the last batch. The best schedule interrupts at an arrival, since a later interrupt reports no more frames.
    fn optimum_ns(&self, frames: &[Frame]) -> u64 {
        let mut costs_ns = vec![0_u64];
        for end in 1..=frames.len() {
            let told_ns = frames[end - 1].at_ns;
            let mut waited_ns = 0;
            let mut best_ns = u64::MAX;
            for start in (0..end).rev() {
                let wait_ns = told_ns - frames[start].at_ns;
                if wait_ns > self.deadline_ns || end - start > self.ring_frames as usize {
                    break;
                }
                waited_ns += wait_ns;
                best_ns = best_ns.min(costs_ns[start] + self.interrupt_ns + waited_ns);
            }
            costs_ns.push(best_ns);
        }
        costs_ns[frames.len()]
    }
}

/// Returns frames at random distances, up to a maximum drawn for the trace. Some of the frames arrive at the same time.
fn random_trace(rng: &mut ChaCha8Rng, terms: &Terms) -> Vec<Frame> {
    let scale_ns = terms.interrupt_ns * rng.random_range(1..400) / 100;
    let together = rng.random_range(0.0..0.8);
    let mut at_ns = 0;
    let mut frame = || {
        let is_apart = !rng.random_bool(together);
        at_ns += if is_apart { rng.random_range(0..=scale_ns * 2) } else { 0 };
        Frame { at_ns, bytes: BYTES }
    };
    (0..FRAMES_MAX).map(|_| frame()).collect()
}

/// Returns frames at the worst times: right after an interrupt, right before an interrupt, and at the end of an idle
/// gap.
fn adversarial_trace(rng: &mut ChaCha8Rng, terms: &Terms, moderator: &Moderator) -> Vec<Frame> {
    let mut trial = Trial::new(moderator.clone());
    let mut frames = Vec::new();
    let mut at_ns = 0;
    let habits: [u32; 6] = std::array::from_fn(|_| rng.random_range(1..20));
    while frames.len() < FRAMES_MAX {
        let frame = Frame { at_ns, bytes: BYTES };
        trial.frame(frame);
        frames.push(frame);
        let due_ns = trial.moderator.next_due_ns().unwrap_or(at_ns);
        let quiet_ns = trial.fired_ns + terms.interrupt_ns;
        let moments = [
            due_ns + 1,
            due_ns.saturating_sub(1),
            quiet_ns,
            quiet_ns.saturating_sub(1),
            due_ns + terms.interrupt_ns,
            at_ns,
        ];
        at_ns = at_ns.max(moments[pick(rng, &habits)]);
    }
    frames
}

/// Picks an index in proportion to its weight.
fn pick(rng: &mut ChaCha8Rng, habits: &[u32]) -> usize {
    let mut rest = rng.random_range(0..habits.iter().sum());
    habits.iter().position(|&habit| rest.checked_sub(habit).map(|left| rest = left).is_none()).expect("below the total")
}

/// Checks that `policy` costs at most `factor` times the best schedule plus one interrupt, on random and adversarial
/// traces.
fn assert_bound(policy: fn(AreaConfig) -> Policy, factor: u64, terms_of: fn(&mut ChaCha8Rng) -> Terms) {
    let mut rng = rng();
    let mut worst = 0.0_f64;
    for turn in 0..TRACES {
        let terms = terms_of(&mut rng);
        let moderator = terms.moderator(policy);
        let frames = if turn % 2 == 0 {
            random_trace(&mut rng, &terms)
        } else {
            adversarial_trace(&mut rng, &terms, &moderator)
        };
        let outcome = Trial::of_trace(moderator, frames.iter().copied());
        assert!(outcome.longest_wait_ns <= terms.deadline_ns, "{outcome:?}; {terms:?}, {frames:?}");
        assert!(outcome.most_frames <= terms.ring_frames as usize, "{outcome:?}; {terms:?}, {frames:?}");
        let (cost_ns, best_ns) = (outcome.cost_ns(terms.interrupt_ns), terms.optimum_ns(&frames));
        // The proof assumes a continuous clock. With whole nanoseconds, each frame may be late by up to one nanosecond.
        let rounding_ns = frames.len() as u64;
        let bound_ns = factor * best_ns + terms.interrupt_ns + rounding_ns;
        assert!(cost_ns <= bound_ns, "{cost_ns} > {bound_ns} ns, best {best_ns}; {terms:?}, {frames:?}");
        worst = worst.max((cost_ns - terms.interrupt_ns) as f64 / best_ns as f64);
    }
    println!("worst (cost - K) / optimum: {worst:.3}; bound: {factor}");
}

#[test]
fn the_area_trigger_costs_at_most_twice_the_optimum_and_one_interrupt() {
    assert_bound(Policy::Area, 2, Terms::without_limits);
}

#[test]
fn the_area_trigger_with_deadline_and_ring_costs_at_most_twice_an_optimum_that_keeps_both() {
    assert_bound(Policy::Area, 2, Terms::with_limits);
}

#[test]
fn quiet_or_area_costs_at_most_three_times_the_optimum_and_one_interrupt() {
    assert_bound(Policy::QuietOrArea, 3, Terms::without_limits);
}

#[test]
fn quiet_or_area_with_deadline_and_ring_costs_at_most_three_times_an_optimum_that_keeps_both() {
    assert_bound(Policy::QuietOrArea, 3, Terms::with_limits);
}

#[test]
fn the_optimum_is_the_one_worked_out_by_hand() {
    let terms = Terms { interrupt_ns: 100, deadline_ns: NO_DEADLINE_NS, ring_frames: u32::MAX };
    let frames = [0, 10, 20, 500, 620].map(|at_ns| Frame { at_ns, bytes: BYTES });
    // The first three frames together wait for 20 + 10; each of the other frames costs an interrupt.
    assert_eq!(terms.optimum_ns(&frames), 130 + 100 + 100);
    // No frame may wait for 20 ns, so the first three frames need two interrupts.
    assert_eq!(Terms { deadline_ns: 19, ..terms }.optimum_ns(&frames), 110 + 100 + 200);
    assert_eq!(Terms { ring_frames: 1, ..terms }.optimum_ns(&frames), 500);
}

#[test]
fn the_optimum_for_long_traces_is_the_same() {
    let mut rng = rng();
    for _ in 0..TRACES / 10 {
        let terms = Terms::without_limits(&mut rng);
        let frames = random_trace(&mut rng, &terms);
        assert_eq!(optimum_ns(&frames, terms.interrupt_ns), terms.optimum_ns(&frames), "{terms:?}, {frames:?}");
    }
}

#[test]
fn no_schedule_beats_the_optimum_and_a_lone_frame_costs_quiet_or_area_no_more() {
    let mut rng = rng();
    for _ in 0..TRACES / 10 {
        let terms = Terms::without_limits(&mut rng);
        let frames = random_trace(&mut rng, &terms);
        let every_frame = Trial::of_trace(Moderator::default(), frames.iter().copied());
        assert_eq!((every_frame.interrupts, every_frame.waited_ns), (frames.len() as u64, 0));
        assert!(every_frame.cost_ns(terms.interrupt_ns) >= terms.optimum_ns(&frames));
        let lone = Trial::of_trace(terms.moderator(Policy::QuietOrArea), [frames[0]]);
        assert_eq!(lone.cost_ns(terms.interrupt_ns), terms.interrupt_ns);
    }
}
