//! Tests of the times of interrupts under every policy, and of virtio's requirements for the parameters set by a
//! driver.
//!
//! `OFFRAMP_SEED` selects other random cases.

use crate::trial::{Frame, Trial};
use offramp_adapter::moderation::{
    AreaConfig, COST_NS_MAX, COST_NS_MIN, COST_NS_START, Coalescing, CostEstimator, DimProfiles, E1000Mode,
    InterruptCost, ModerationConfig, Moderator, Policy,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEED_DEFAULT: u64 = 1_022;
const BYTES: u64 = 60;
const MICROSECOND_NS: u64 = 1000;
const MILLISECOND_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

fn rng() -> ChaCha8Rng {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED_DEFAULT);
    println!("OFFRAMP_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

fn of(policy: Policy) -> ModerationConfig {
    ModerationConfig { policy, ..ModerationConfig::default() }
}

fn coalescing(max_usecs: u32, max_packets: u32) -> ModerationConfig {
    of(Policy::Coalescing(Coalescing { max_usecs, max_packets }))
}

fn given(ns: u64, deadline_ns: u64) -> AreaConfig {
    AreaConfig { cost: InterruptCost::Given { ns }, deadline_ns }
}

/// Records `frames` frames that arrive one after the other at `now_ns`.
fn arrive(moderator: &mut Moderator, now_ns: u64, frames: usize) {
    (0..frames).for_each(|_| moderator.arrived(now_ns, BYTES));
}

mod virtio {
    use super::*;

    #[test]
    fn v80_a_queue_is_notified_when_max_usecs_went_by_since_the_first_frame() {
        let mut moderator = Moderator::new(coalescing(10, 15));
        moderator.arrived(5_000, BYTES);
        moderator.arrived(14_000, BYTES);
        assert_eq!(moderator.next_due_ns(), Some(15_000), "counted from the first");
        assert!(!moderator.is_due(14_999));
        assert!(moderator.is_due(15_000));
    }

    #[test]
    fn v80_a_queue_is_notified_upon_max_packets_frames() {
        let mut moderator = Moderator::new(coalescing(10, 15));
        arrive(&mut moderator, 5_000, 14);
        assert!(!moderator.is_due(5_000));
        arrive(&mut moderator, 5_001, 1);
        assert!(moderator.is_due(5_001));
        assert!(moderator.next_due_ns().is_some_and(|due_ns| due_ns <= 5_001));
    }

    #[test]
    fn v80_counting_starts_anew_with_the_first_frame_after_a_notification() {
        let mut moderator = Moderator::new(coalescing(10, 15));
        arrive(&mut moderator, 0, 15);
        assert_eq!(moderator.fired(0), 15);
        assert_eq!(moderator.next_due_ns(), None);
        assert!(!moderator.is_due(SECOND_NS), "nothing waits");
        arrive(&mut moderator, 7_000, 14);
        assert_eq!(moderator.next_due_ns(), Some(17_000));
    }

    #[test]
    fn v80_with_either_parameter_zero_every_frame_is_notified() {
        for config in [coalescing(0, 15), coalescing(10, 0), coalescing(0, 0), coalescing(u32::MAX, 0)] {
            let mut moderator = Moderator::new(config);
            for now_ns in [0, 1, 1, 50_000] {
                moderator.arrived(now_ns, BYTES);
                assert!(moderator.is_due(now_ns), "{config:?}");
                assert_eq!(moderator.fired(now_ns), 1);
            }
        }
    }

    #[test]
    fn v80_frames_and_time_are_counted_per_queue() {
        let mut queues = [Moderator::new(coalescing(10, 2)), Moderator::new(coalescing(10, 2))];
        queues[0].arrived(0, BYTES);
        queues[1].arrived(3_000, BYTES);
        assert!(queues.iter().all(|queue| !queue.is_due(3_000)));
        assert_eq!(queues.each_ref().map(Moderator::next_due_ns), [Some(10_000), Some(13_000)]);
    }

    #[test]
    fn v82_a_lower_limit_of_frames_is_met_at_once_by_those_that_wait() {
        let mut moderator = Moderator::new(coalescing(1000, 15));
        arrive(&mut moderator, 100, 10);
        assert!(!moderator.is_due(200));
        moderator.set(coalescing(1000, 8));
        assert!(moderator.is_due(200));
        assert_eq!(moderator.fired(200), 10);
    }

    #[test]
    fn v82_a_shorter_time_is_met_at_once_when_it_went_by_already_and_a_longer_one_is_waited_for() {
        let mut moderator = Moderator::new(coalescing(100, 15));
        moderator.arrived(0, BYTES);
        moderator.set(coalescing(10, 15));
        assert!(!moderator.is_due(9_999));
        assert!(moderator.is_due(10_000));
        moderator.set(coalescing(200, 15));
        assert!(!moderator.is_due(100_000));
        assert_eq!(moderator.next_due_ns(), Some(200_000), "since the first frame, not since the setting");
    }

    #[test]
    fn v82_a_parameter_set_to_zero_notifies_what_waits_at_once() {
        for zero in [coalescing(0, 15), coalescing(100, 0)] {
            let mut moderator = Moderator::new(coalescing(100, 15));
            moderator.arrived(0, BYTES);
            moderator.set(zero);
            assert!(moderator.is_due(1), "{zero:?}");
        }
    }

    #[test]
    fn v78_what_a_guest_sees_without_a_notification_is_not_notified_again() {
        let mut moderator = Moderator::new(coalescing(10, 15));
        arrive(&mut moderator, 0, 3);
        assert!(moderator.is_due(10_000));
        assert_eq!(moderator.seen(), 3);
        assert!(!moderator.is_due(SECOND_NS));
        assert_eq!(moderator.next_due_ns(), None);
        moderator.arrived(20_000, BYTES);
        assert_eq!(moderator.next_due_ns(), Some(30_000));
    }
}

#[test]
fn off_interrupts_for_every_frame() {
    let frames = (0..100).map(|index| Frame { at_ns: index * 10, bytes: BYTES });
    let outcome = Trial::of_trace(Moderator::default(), frames);
    assert_eq!((outcome.interrupts, outcome.waited_ns), (100, 0));
}

#[test]
fn a_fixed_gap_tells_a_frame_after_a_silence_at_once_and_the_next_ones_a_gap_later() {
    let mut moderator = Moderator::new(of(Policy::FixedGap { max_interrupts_per_second: 8000 }));
    moderator.arrived(1_000, BYTES);
    assert!(moderator.is_due(1_000));
    moderator.fired(1_000);
    moderator.arrived(2_000, BYTES);
    moderator.arrived(90_000, BYTES);
    assert_eq!(moderator.next_due_ns(), Some(126_000));
    moderator.fired(126_000);
    moderator.arrived(251_000, BYTES);
    assert!(moderator.is_due(251_000));
}

#[test]
fn a_fixed_gap_never_interrupts_more_often_than_it_says() {
    let mut rng = rng();
    for _ in 0..200 {
        let rate = rng.random_range(1000..=100_000);
        let mut moderator = Moderator::new(of(Policy::FixedGap { max_interrupts_per_second: rate }));
        let mut fired_ns = Vec::new();
        let mut now_ns = 0;
        while fired_ns.len() < 20 {
            now_ns += rng.random_range(0..2 * SECOND_NS / u64::from(rate));
            moderator.arrived(now_ns, BYTES);
            now_ns = moderator.next_due_ns().expect("a frame waits").max(now_ns);
            moderator.fired(now_ns);
            fired_ns.push(now_ns);
        }
        assert!(fired_ns.windows(2).all(|pair| (pair[1] - pair[0]) * u64::from(rate) >= SECOND_NS), "{rate}");
    }
}

#[test]
fn the_area_trigger_fires_when_the_frames_have_waited_an_interrupts_worth_together() {
    let mut moderator = Moderator::new(of(Policy::Area(given(10_000, SECOND_NS))));
    moderator.arrived(0, BYTES);
    assert_eq!(moderator.next_due_ns(), Some(10_000));
    // The sum of the waiting times is 4000 so far. From this time on, three frames wait.
    moderator.arrived_together(4_000, 2, 2 * BYTES);
    assert_eq!(moderator.next_due_ns(), Some(6_000));
    assert!(!moderator.is_due(5_999));
    assert!(moderator.is_due(6_000));
}

#[test]
fn frames_that_come_together_count_as_the_same_frames_one_by_one() {
    let mut rng = rng();
    let config = of(Policy::Area(given(10_000, SECOND_NS)));
    let (mut together, mut one_by_one) = (Moderator::new(config), Moderator::new(config));
    let mut now_ns = 0;
    for _ in 0..1000 {
        now_ns += rng.random_range(0..3_000);
        let frames = rng.random_range(0..5);
        together.arrived_together(now_ns, frames, u64::from(frames) * BYTES);
        arrive(&mut one_by_one, now_ns, frames as usize);
        assert_eq!(together.is_due(now_ns), one_by_one.is_due(now_ns));
        assert_eq!(together.next_due_ns(), one_by_one.next_due_ns());
        if together.is_due(now_ns) {
            assert_eq!(together.fired(now_ns), one_by_one.fired(now_ns));
        }
    }
}

#[test]
fn quiet_or_area_tells_a_lone_frame_at_once_and_a_hasty_one_by_its_area() {
    let mut moderator = Moderator::new(of(Policy::QuietOrArea(given(10_000, SECOND_NS))));
    moderator.arrived(500, BYTES);
    assert!(moderator.is_due(500), "the first frame of all");
    moderator.fired(500);
    moderator.arrived(10_499, BYTES);
    assert_eq!(moderator.next_due_ns(), Some(20_499), "one nanosecond short of quiet");
    moderator.fired(20_499);
    moderator.arrived(30_499, BYTES);
    assert!(moderator.is_due(30_499));
}

#[test]
fn a_deadline_ends_the_wait_before_the_area_does() {
    for policy in [Policy::Area, Policy::QuietOrArea] {
        let mut moderator = Moderator::new(of(policy(given(10_000, 3_000))));
        moderator.arrived(0, BYTES);
        moderator.fired(0);
        moderator.arrived(1_000, BYTES);
        assert_eq!(moderator.next_due_ns(), Some(4_000));
        assert!(moderator.is_due(4_000));
    }
}

#[test]
fn a_ring_with_only_its_guard_left_ends_every_wait() {
    let slow = [
        Policy::FixedGap { max_interrupts_per_second: 1 },
        Policy::Coalescing(Coalescing { max_usecs: u32::MAX, max_packets: u32::MAX }),
        Policy::Area(given(SECOND_NS, SECOND_NS)),
        Policy::QuietOrArea(given(SECOND_NS, SECOND_NS)),
    ];
    for policy in slow {
        let mut moderator = Moderator::new(ModerationConfig { policy, ring_guard_frames: 10 });
        moderator.fired(0);
        arrive(&mut moderator, 1, 2);
        moderator.ring_has(16);
        arrive(&mut moderator, 1, 5);
        assert!(!moderator.is_due(2), "11 places are left; {policy:?}");
        arrive(&mut moderator, 2, 1);
        assert!(moderator.is_due(2), "10 places are left; {policy:?}");
        moderator.ring_has(20);
        assert!(!moderator.is_due(2), "the host made room; {policy:?}");
        moderator.ring_has(0);
        assert!(moderator.is_due(2), "nothing is left; {policy:?}");
    }
}

#[test]
fn net_dim_finds_longer_waits_under_bulk_traffic_that_grows_with_them() {
    let mut moderator = Moderator::new(of(Policy::NetDim(DimProfiles::ReceiveEvent)));
    assert_eq!(moderator.wait_max_ns(), 8 * MICROSECOND_NS);
    let mut now_ns = 0;
    // A batch gathered for twice the time has four times the bytes, so each profile with a longer wait carries more
    // bytes per second.
    for _ in 0..64 * 6 {
        let wait_ns = moderator.wait_max_ns();
        moderator.arrived(now_ns, wait_ns * wait_ns);
        now_ns += wait_ns;
        assert!(moderator.is_due(now_ns));
        moderator.fired(now_ns);
    }
    assert_eq!(moderator.wait_max_ns(), 256 * MICROSECOND_NS);
}

#[test]
fn e1000_counts_what_the_host_saw_without_an_interrupt() {
    let mut moderator = Moderator::new(of(Policy::E1000(E1000Mode::Conservative)));
    // 20 full frames count as bulk data, even if a polling host has seen most of the frames.
    moderator.arrived_together(0, 19, 19 * 1514);
    moderator.seen();
    moderator.arrived(1, 1514);
    moderator.fired(1);
    assert_eq!(moderator.wait_max_ns(), SECOND_NS / 4000);
}

/// Tests of the effect of the cost factor that adapts to the load (`InterruptCost::Adaptive`), in virtual time.
mod adaptive {
    use super::*;

    const UNDER_LOAD_PER_SECOND: u32 = 8000;
    const GAP_NS: u64 = SECOND_NS / UNDER_LOAD_PER_SECOND as u64;
    /// Line time of a full frame at 1 Gbit/s, in nanoseconds.
    const FULL_NS: u64 = 12_304;
    const ROUND_TRIP_NS: u64 = 30_000;

    fn trial() -> Trial {
        let cost = InterruptCost::Adaptive { interrupts_per_second: UNDER_LOAD_PER_SECOND };
        Trial::new(Moderator::new(of(Policy::QuietOrArea(AreaConfig { cost, ..AreaConfig::default() }))))
    }

    fn bulk(trial: &mut Trial, start_ns: u64, frames: u64) -> u64 {
        (0..frames).for_each(|n| trial.frame(Frame { at_ns: start_ns + n * FULL_NS, bytes: 1514 }));
        start_ns + frames * FULL_NS
    }

    /// Sends one request at a time, each one round trip after the previous answer. Returns the number of delayed
    /// requests.
    fn requests(trial: &mut Trial, start_ns: u64, count: usize) -> usize {
        let (mut at_ns, mut delayed) = (start_ns, 0);
        for _ in 0..count {
            let waited_before_ns = trial.outcome.waited_ns;
            trial.frame(Frame { at_ns, bytes: 100 });
            trial.finish();
            let waited_ns = trial.outcome.waited_ns - waited_before_ns;
            delayed += usize::from(waited_ns > 0);
            at_ns += waited_ns + ROUND_TRIP_NS;
        }
        delayed
    }

    #[test]
    fn bulk_data_is_told_about_as_often_as_is_meant_and_no_frame_waits_longer_than_the_gap() {
        let mut trial = trial();
        let learned_ns = bulk(&mut trial, 0, 2_000);
        let before = trial.outcome.interrupts;
        let end_ns = bulk(&mut trial, learned_ns, 200_000);
        let per_second = (trial.outcome.interrupts - before) * SECOND_NS / (end_ns - learned_ns);
        let meant = u64::from(UNDER_LOAD_PER_SECOND);
        assert!((meant / 2..=meant).contains(&per_second), "{per_second}");
        assert!(trial.outcome.longest_wait_ns <= GAP_NS, "{}", trial.outcome.longest_wait_ns);
    }

    #[test]
    fn requests_one_at_a_time_hardly_ever_wait_however_fast_they_come() {
        let mut trial = trial();
        assert_eq!(requests(&mut trial, 0, 100_000) / 100, 0, "of 100,000, less than one in a thousand");
    }

    #[test]
    fn frames_that_the_host_saw_by_itself_are_not_taken_for_gathered_ones() {
        let cost = InterruptCost::Adaptive { interrupts_per_second: UNDER_LOAD_PER_SECOND };
        let mut moderator = Moderator::new(of(Policy::QuietOrArea(AreaConfig { cost, ..AreaConfig::default() })));
        let (mut now_ns, mut delayed) = (0, 0);
        for n in 0..100_000 {
            // Two frames arrive per round trip. The guest finds the first frame while it still polls.
            now_ns += ROUND_TRIP_NS / 2;
            moderator.arrived(now_ns, 100);
            moderator.seen();
            now_ns += ROUND_TRIP_NS / 2;
            moderator.arrived(now_ns, 100);
            let due_ns = moderator.next_due_ns().unwrap().max(now_ns);
            delayed += u32::from(due_ns > now_ns && n >= 1000);
            now_ns = due_ns;
            moderator.fired(now_ns);
        }
        assert!(delayed < 100, "of 99,000 less than one in a thousand: {delayed}");
    }

    #[test]
    fn calls_of_a_few_frames_one_at_a_time_hardly_ever_wait_behind_bulk_data_either() {
        const CALLS: u64 = 10_000;
        for frames in [2, 3] {
            for round_trip_ns in (20_000..100_000).step_by(5_000) {
                let (mut trial, mut now_ns) = (trial(), SECOND_NS);
                now_ns = bulk(&mut trial, now_ns, 20_000);
                trial.finish();
                let waited_before_ns = trial.outcome.waited_ns;
                for _ in 0..CALLS {
                    let last_ns = bulk(&mut trial, now_ns, frames) - FULL_NS;
                    trial.finish();
                    now_ns = trial.fired_ns.max(last_ns) + round_trip_ns;
                }
                let each_ns = (trial.outcome.waited_ns - waited_before_ns) / CALLS;
                assert!(each_ns < MICROSECOND_NS, "{frames} frames, {round_trip_ns} ns: {each_ns} ns");
            }
        }
    }

    #[test]
    fn bulk_data_fills_a_small_ring_before_each_interrupt() {
        for ring_frames in 2..=5 {
            let mut trial = trial();
            trial.moderator.ring_has(ring_frames);
            let learned_ns = bulk(&mut trial, SECOND_NS, 2_000);
            let before = trial.outcome.interrupts;
            bulk(&mut trial, learned_ns, 60_000);
            let most = 60_000 / u64::from(ring_frames) * 101 / 100;
            let interrupts = trial.outcome.interrupts - before;
            assert!(interrupts <= most, "{interrupts} for a ring of {ring_frames}");
        }
    }

    #[test]
    fn a_request_each_millisecond_never_waits() {
        let mut trial = trial();
        (0..10_000).for_each(|n| trial.frame(Frame { at_ns: n * MILLISECOND_NS, bytes: 100 }));
        assert_eq!(trial.outcome.waited_ns, 0);
    }

    #[test]
    fn requests_after_bulk_data_wait_a_few_times_and_then_no_more() {
        let mut trial = trial();
        let end_ns = bulk(&mut trial, 0, 100_000);
        trial.finish();
        let delayed = requests(&mut trial, end_ns + ROUND_TRIP_NS, 50);
        assert!(delayed <= 10, "{delayed}");
        assert_eq!(requests(&mut trial, end_ns + SECOND_NS, 20_000) / 100, 0);
    }

    /// Sends bursts of frames back to back, one burst per `every_ns`.
    fn bursts(trial: &mut Trial, start_ns: u64, count: u64, frames: u64, every_ns: u64) -> u64 {
        for n in 0..count {
            bulk(trial, start_ns + n * every_ns, frames);
        }
        start_ns + count * every_ns
    }

    #[test]
    fn requests_between_bursts_wait_for_an_idle_gap_and_split_no_burst_after_them() {
        const EVERY_NS: u64 = 20 * FULL_NS;
        for together in 1..=3 {
            let mut trial = trial();
            let learned_ns = bursts(&mut trial, 0, 1000, 10, EVERY_NS);
            let interrupts_before = trial.outcome.interrupts;
            for n in 0..1000 {
                // A request arrives in every second idle gap, at a position that drifts through the gap.
                let end_ns = bursts(&mut trial, learned_ns + 2 * n * EVERY_NS, 2, 10, EVERY_NS);
                let at_ns = end_ns - 10 * FULL_NS + 30_000 + n % 50 * 1000;
                (0..together).for_each(|_| trial.frame(Frame { at_ns, bytes: 100 }));
                let wait_ns = trial.moderator.next_due_ns().unwrap_or(at_ns) - at_ns;
                assert!(wait_ns <= GAP_NS / 8, "{wait_ns} ns for {together} in round {n}");
            }
            let interrupts = trial.outcome.interrupts - interrupts_before;
            assert!(interrupts <= 3010, "{interrupts} for 2000 bursts and 1000 times {together} requests");
        }
    }

    #[test]
    fn requests_after_bursts_and_requests_wait_a_few_times_and_then_no_more() {
        const EVERY_NS: u64 = 20 * FULL_NS;
        let (mut trial, mut now_ns) = (trial(), SECOND_NS);
        for _ in 0..2000 {
            now_ns = bursts(&mut trial, now_ns, 2, 10, EVERY_NS);
            (0..3).for_each(|_| trial.frame(Frame { at_ns: now_ns - 10 * FULL_NS + 30_000, bytes: 100 }));
        }
        trial.finish();
        let delayed = requests(&mut trial, now_ns + ROUND_TRIP_NS, 50);
        assert!(delayed <= 10, "{delayed}");
    }

    /// Sends frames with the mean distance `apart_ns`. Each frame is late by up to `jitter` times the distance.
    fn paced(trial: &mut Trial, start_ns: u64, count: u64, apart_ns: u64, jitter: f64, rng: &mut ChaCha8Rng) -> u64 {
        let mut at_ns = start_ns;
        for n in 0..count {
            let late_ns = (rng.random::<f64>() * jitter * apart_ns as f64) as u64;
            at_ns = at_ns.max(start_ns + n * apart_ns + late_ns);
            trial.frame(Frame { at_ns, bytes: 1514 });
        }
        start_ns + count * apart_ns
    }

    #[test]
    fn frames_that_come_thick_are_gathered_however_far_apart_they_are() {
        let mut rng = rng();
        for apart_ns in (8_000..=29_000).step_by(500) {
            for (jitter, behind_bulk) in [(0.0, false), (0.2, false), (0.5, true), (1.0, false), (0.0, true)] {
                let (mut trial, mut now_ns) = (trial(), SECOND_NS);
                if behind_bulk {
                    now_ns = bulk(&mut trial, now_ns, 20_000);
                }
                now_ns = paced(&mut trial, now_ns, 20_000, apart_ns, jitter, &mut rng);
                let before = trial.outcome.interrupts;
                let end_ns = paced(&mut trial, now_ns, 20_000, apart_ns, jitter, &mut rng);
                let per_second = (trial.outcome.interrupts - before) * SECOND_NS / (end_ns - now_ns);
                let most = u64::from(UNDER_LOAD_PER_SECOND) * 105 / 100;
                assert!(per_second <= most, "{apart_ns} ns apart, jitter {jitter}: {per_second}");
            }
        }
    }

    #[test]
    fn frames_that_come_thick_between_pauses_are_gathered_too() {
        for (frames, apart_ns, pause_ns) in [(200, 20_000, 1_200_000), (400, 20_000, 5_000_000), (200, 16_000, 900_000)]
        {
            let (mut trial, mut now_ns, mut rng) = (trial(), SECOND_NS, rng());
            for _ in 0..300 {
                now_ns = paced(&mut trial, now_ns, frames, apart_ns, 0.0, &mut rng) + pause_ns;
            }
            let before = trial.outcome.interrupts;
            for _ in 0..300 {
                now_ns = paced(&mut trial, now_ns, frames, apart_ns, 0.0, &mut rng) + pause_ns;
            }
            let each = (trial.outcome.interrupts - before) / 300;
            assert!(each <= frames / 4, "{each} for {frames} frames, {apart_ns} ns apart, pauses of {pause_ns} ns");
        }
    }

    #[test]
    fn silences_leave_no_more_interrupts_than_are_meant_to_be() {
        // Each load has a number of back-to-back frames per burst, and the time between bursts.
        let loads = [(1, 16_000), (1, 20_000), (4, 66_000), (6, 90_000), (10, 160_000), (10, 246_080)];
        for (frames, every_ns) in loads {
            let mut trial = trial();
            let learned_ns = bursts(&mut trial, SECOND_NS, 5_000, frames, every_ns);
            let before = trial.outcome.interrupts;
            let end_ns = bursts(&mut trial, learned_ns, 50_000, frames, every_ns);
            let per_second = (trial.outcome.interrupts - before) * SECOND_NS / (end_ns - learned_ns);
            let meant = u64::from(UNDER_LOAD_PER_SECOND);
            assert!(per_second <= meant * 101 / 100, "{frames} frames each {every_ns} ns: {per_second}");
        }
    }

    #[test]
    fn a_few_requests_at_random_moments_are_not_worth_waiting_for() {
        let (mut trial, mut rng, mut at_ns) = (trial(), rng(), 0);
        for _ in 0..100_000 {
            // Mean rate of 10,000 frames per second.
            at_ns += (-(1.0 - rng.random::<f64>()).ln() * 100_000.0) as u64;
            trial.frame(Frame { at_ns, bytes: 100 });
        }
        assert!(trial.outcome.waited_ns < 100_000 * MICROSECOND_NS, "a microsecond each: {}", trial.outcome.waited_ns);
    }
}

/// Returns a policy with random settings from the valid ranges.
fn random_policy(rng: &mut ChaCha8Rng) -> Policy {
    let cost = match rng.random_range(0..3) {
        0 => InterruptCost::Given { ns: rng.random_range(0..100_000) },
        1 => InterruptCost::Measured { factor_percent: rng.random_range(0..1000) },
        _ => InterruptCost::Adaptive { interrupts_per_second: rng.random_range(1_000..1_000_000) },
    };
    let area = AreaConfig { cost, deadline_ns: rng.random_range(0..MILLISECOND_NS) };
    let any = |rng: &mut ChaCha8Rng| if rng.random_bool(0.2) { u32::MAX } else { rng.random_range(0..300) };
    match rng.random_range(0..8) {
        0 => Policy::Off,
        1 => Policy::FixedGap { max_interrupts_per_second: rng.random_range(0..100_000) },
        2 | 3 => Policy::Coalescing(Coalescing { max_usecs: any(rng), max_packets: any(rng) }),
        4 => Policy::NetDim(DimProfiles::TransmitCompletion),
        5 => {
            Policy::E1000([E1000Mode::Dynamic, E1000Mode::Conservative, E1000Mode::Simplified][rng.random_range(0..3)])
        }
        6 => Policy::Area(area),
        _ => Policy::QuietOrArea(area),
    }
}

/// A host that changes all settings of its moderator while frames arrive, and computes the expected interrupts
/// independently.
#[derive(Default)]
struct Restless {
    moderator: Moderator,
    now_ns: u64,
    arrived: u64,
    told: u64,
    /// Arrival time of the first waiting frame, in nanoseconds.
    first_ns: Option<u64>,
    /// Deadline of the interrupt for the waiting frames, in nanoseconds.
    latest_ns: u64,
}

impl Restless {
    fn step(&mut self, rng: &mut ChaCha8Rng) {
        self.wait_until(self.now_ns + rng.random_range(0..20 * MICROSECOND_NS));
        match rng.random_range(0..10) {
            0 | 1 => self.set(rng),
            2 => {
                self.moderator.ring_has(rng.random_range(0..100));
                self.expect();
            }
            3 => {
                self.moderator.handled(rng.random_range(0..64), rng.random_range(0..50_000));
                self.expect();
            }
            4 => self.moderator.other_direction(rng.random()),
            5 => self.told += self.moderator.seen(),
            _ => self.frames(rng.random_range(0..4)),
        }
        if self.moderator.is_due(self.now_ns) {
            self.fire();
        }
        if self.moderator.waiting() == 0 {
            self.first_ns = None;
        }
    }

    fn set(&mut self, rng: &mut ChaCha8Rng) {
        self.moderator.set(ModerationConfig { policy: random_policy(rng), ring_guard_frames: rng.random_range(0..50) });
        self.expect();
    }

    fn frames(&mut self, frames: u32) {
        self.moderator.arrived_together(self.now_ns, frames, u64::from(frames) * 1514);
        self.arrived += u64::from(frames);
        if frames > 0 && self.first_ns.is_none() {
            self.first_ns = Some(self.now_ns);
            self.expect();
        }
    }

    /// Records the deadline under the current settings for the waiting frames. If the deadline has passed already, an
    /// interrupt is due at once.
    fn expect(&mut self) {
        let promised_ns = self.first_ns.map(|first_ns| first_ns.saturating_add(self.moderator.wait_max_ns()));
        self.latest_ns = promised_ns.unwrap_or(0).max(self.now_ns);
    }

    fn wait_until(&mut self, end_ns: u64) {
        while let Some(due_ns) = self.moderator.next_due_ns().filter(|&due_ns| due_ns <= end_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            assert!(self.moderator.is_due(self.now_ns));
            self.fire();
        }
        self.now_ns = end_ns;
    }

    fn fire(&mut self) {
        assert!(self.now_ns <= self.latest_ns, "{} > {} ns, {:?}", self.now_ns, self.latest_ns, self.moderator);
        self.told += self.moderator.fired(self.now_ns);
        self.first_ns = None;
    }
}

#[test]
fn settings_changed_at_random_lose_no_frame_and_keep_none_too_long() {
    let mut rng = rng();
    for _ in 0..50 {
        let mut host = Restless::default();
        (0..2000).for_each(|_| host.step(&mut rng));
        host.wait_until(u64::MAX);
        assert_eq!((host.told, host.moderator.waiting()), (host.arrived, 0));
    }
}

#[test]
fn the_same_setting_again_forgets_nothing() {
    let config = of(Policy::E1000(E1000Mode::Conservative));
    let mut moderator = Moderator::new(config);
    moderator.arrived_together(0, 20, 20 * 1514);
    moderator.fired(0);
    assert_eq!(moderator.wait_max_ns(), SECOND_NS / 4000);
    moderator.set(ModerationConfig { ring_guard_frames: 3, ..config });
    assert_eq!(moderator.wait_max_ns(), SECOND_NS / 4000);
}

#[test]
fn a_clock_that_goes_back_makes_waiting_frames_due_and_holds_none_for_ever() {
    let mut rng = rng();
    for _ in 0..1000 {
        let mut moderator = Moderator::new(of(random_policy(&mut rng)));
        moderator.arrived(SECOND_NS, BYTES);
        moderator.fired(SECOND_NS);
        moderator.arrived(SECOND_NS + 1, BYTES);
        assert!(moderator.is_due(0), "{moderator:?}");
        moderator.fired(SECOND_NS);
        moderator.arrived(7, BYTES);
        let due_ns = moderator.next_due_ns().expect("a frame waits");
        assert!(due_ns <= 7_u64.saturating_add(moderator.wait_max_ns()), "{moderator:?}");
    }
}

#[test]
fn a_frame_that_came_before_the_first_has_waited_longer() {
    let mut moderator = Moderator::new(of(Policy::Area(given(100, SECOND_NS))));
    moderator.arrived(100, BYTES);
    moderator.arrived(90, BYTES);
    // At 145 ns, the frames have waited for 45 ns and 55 ns.
    assert_eq!(moderator.next_due_ns(), Some(145));
    assert!(!moderator.is_due(144));
    assert!(moderator.is_due(145));
}

#[test]
fn any_times_and_sizes_are_taken() {
    let mut rng = rng();
    let any = |rng: &mut ChaCha8Rng| match rng.random_range(0..4) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.random(),
        _ => rng.random_range(0..1000),
    };
    for _ in 0..2000 {
        let mut moderator = Moderator::new(of(random_policy(&mut rng)));
        for _ in 0..50 {
            let now_ns = any(&mut rng);
            moderator.arrived_together(now_ns, any(&mut rng) as u32, any(&mut rng));
            moderator.handled(any(&mut rng) as u32, any(&mut rng));
            moderator.ring_has(any(&mut rng) as u32);
            moderator.other_direction(any(&mut rng));
            moderator.next_due_ns();
            if moderator.is_due(now_ns) {
                moderator.fired(any(&mut rng));
            }
        }
    }
}

mod cost {
    use super::*;

    /// Observes a host that needs `interrupt_ns` per batch and `frame_ns` per frame. The time of each batch varies by
    /// ±20 %.
    fn observe(estimator: &mut CostEstimator, rng: &mut ChaCha8Rng, interrupt_ns: u64, frame_ns: u64) {
        let frames = rng.random_range(1..=32);
        let took_ns = interrupt_ns + frame_ns * u64::from(frames);
        estimator.observe(frames, rng.random_range(took_ns * 4 / 5..=took_ns * 6 / 5));
    }

    fn assert_near(estimator: &CostEstimator, interrupt_ns: u64) {
        let off_ns = estimator.cost_ns().abs_diff(interrupt_ns);
        assert!(off_ns * 4 <= interrupt_ns, "{} instead of {interrupt_ns}", estimator.cost_ns());
    }

    #[test]
    fn the_cost_of_an_interrupt_is_told_from_that_of_the_frames() {
        let mut rng = rng();
        for (interrupt_ns, frame_ns) in [(7_000, 100), (20_000, 1_000), (1_500, 50)] {
            let mut estimator = CostEstimator::default();
            (0..4000).for_each(|_| observe(&mut estimator, &mut rng, interrupt_ns, frame_ns));
            assert_near(&estimator, interrupt_ns);
        }
    }

    #[test]
    fn without_noise_the_cost_is_exact() {
        let mut estimator = CostEstimator::default();
        (0..100).for_each(|batch| estimator.observe(1 + batch % 7, 3_000 + 250 * u64::from(1 + batch % 7)));
        assert!(estimator.cost_ns().abs_diff(3_000) <= 1, "{}", estimator.cost_ns());
    }

    #[test]
    fn a_change_is_followed_within_some_thousand_batches() {
        let mut rng = rng();
        let mut estimator = CostEstimator::default();
        for interrupt_ns in [5_000, 40_000, 5_000] {
            (0..3000).for_each(|_| observe(&mut estimator, &mut rng, interrupt_ns, 200));
            assert_near(&estimator, interrupt_ns);
        }
    }

    /// Models a thread that occasionally loses its processor for a millisecond.
    #[test]
    fn a_batch_in_a_hundred_that_something_interrupted_hardly_changes_the_cost() {
        let mut rng = rng();
        let (mut of_batches, mut of_calls) = (CostEstimator::default(), CostEstimator::default());
        for n in 0..20_000 {
            observe(&mut of_batches, &mut rng, 10_000, 200);
            of_calls.observe_interrupt(12_000);
            if n % 100 == 50 {
                of_batches.observe(1, 1_400_000);
                of_calls.observe_interrupt(1_400_000);
            }
        }
        assert_near(&of_batches, 10_000);
        assert_near(&of_calls, 12_000);
    }

    #[test]
    fn an_interrupt_among_the_first_that_something_interrupted_hardly_changes_the_cost() {
        let mut estimator = CostEstimator::default();
        estimator.observe_interrupt(1_000_000);
        (0..19).for_each(|_| estimator.observe_interrupt(12_000));
        assert!((12_000..14_000).contains(&estimator.cost_ns()), "{}", estimator.cost_ns());
        // The estimator still detects an expensive interrupt.
        let mut dear = CostEstimator::default();
        (0..1000).for_each(|_| dear.observe_interrupt(200_000));
        assert_near(&dear, 200_000);
    }

    #[test]
    fn batches_of_one_size_leave_the_cost_as_it_was_but_not_above_a_whole_batch() {
        let mut estimator = CostEstimator::default();
        (0..1000).for_each(|_| estimator.observe(1, 30_000));
        assert_eq!(estimator.cost_ns(), COST_NS_START);
        (0..10_000).for_each(|_| estimator.observe(1, 4_000));
        assert!(estimator.cost_ns() <= 4_001, "{}", estimator.cost_ns());
    }

    #[test]
    fn the_cost_stays_in_its_bounds_whatever_is_observed() {
        let mut rng = rng();
        let mut estimator = CostEstimator::default();
        let extremes = [0, 1, u64::from(u32::MAX), u64::MAX];
        for _ in 0..100_000 {
            let frames = extremes[rng.random_range(0..4)] as u32;
            estimator.observe(frames, extremes[rng.random_range(0..4)]);
            assert!((COST_NS_MIN..=COST_NS_MAX).contains(&estimator.cost_ns()));
        }
    }

    #[test]
    fn a_measured_cost_sets_how_long_a_frame_waits_and_the_price_scales_it() {
        let cost = InterruptCost::Measured { factor_percent: 50 };
        let mut moderator = Moderator::new(of(Policy::Area(AreaConfig { cost, deadline_ns: SECOND_NS })));
        assert_eq!(moderator.wait_max_ns(), COST_NS_START / 2);
        (0..100).for_each(|batch| moderator.handled(1 + batch % 7, 3_000 + 250 * u64::from(1 + batch % 7)));
        moderator.arrived(0, BYTES);
        let due_ns = moderator.next_due_ns().expect("a frame waits");
        assert!(due_ns.abs_diff(1_500) <= 1, "{due_ns}");
    }
}

#[test]
fn a_setting_out_of_range_is_refused_by_name_and_range() {
    let refusal = |policy| of(policy).check().unwrap_err().to_string();
    assert_eq!(
        refusal(Policy::FixedGap { max_interrupts_per_second: 0 }),
        "max_interrupts_per_second 0 is out of range; use 1 to 1000000, or the policy off"
    );
    assert_eq!(
        refusal(Policy::Area(given(0, 1_000_000_001))),
        "moderation deadline of 1000000001 ns is out of range; use 0 to 1000000000"
    );
    assert_eq!(
        refusal(Policy::QuietOrArea(given(10_000_001, 0))),
        "interrupt cost of 10000001 ns is out of range; use 0 to 10000000"
    );
    let cost = InterruptCost::Measured { factor_percent: 10_001 };
    assert_eq!(
        refusal(Policy::Area(AreaConfig { cost, ..AreaConfig::default() })),
        "interrupt cost factor of 10001 percent is out of range; use 0 to 10000"
    );
    let fine = [Policy::Off, Policy::QuietOrArea(AreaConfig::default()), Policy::Coalescing(Coalescing::default())];
    assert!(fine.into_iter().all(|policy| of(policy).check().is_ok()));
}
