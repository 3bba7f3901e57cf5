//! Tests of the hill climb, with cases worked out by hand from the rules.

use super::*;

const GOOD: Rates = Rates { bytes: 100_000, frames: 100, events: 50 };

/// Returns rates `times` steps better than [`GOOD`], with twice the bytes per step.
fn better(times: u32) -> Rates {
    Rates { bytes: GOOD.bytes * 2_u64.pow(times), ..GOOD }
}

fn climb() -> Dim {
    Dim::new(DimProfiles::ReceiveEvent)
}

/// Returns the profile index after each decision.
fn indices(dim: &mut Dim, rates: impl IntoIterator<Item = Rates>) -> Vec<usize> {
    let decide = |rates| {
        dim.decide(rates);
        dim.index
    };
    rates.into_iter().map(decide).collect()
}

#[test]
fn bytes_decide_before_frames_and_frames_before_events() {
    let more_bytes = Rates { bytes: 113_000, frames: 50, events: 100 };
    let more_frames = Rates { frames: 113, events: 100, ..GOOD };
    let fewer_events = Rates { events: 44, ..GOOD };
    for better in [more_bytes, more_frames, fewer_events] {
        assert_eq!(better.compare(&GOOD), Ordering::Greater, "{better:?}");
        assert_eq!(GOOD.compare(&better), Ordering::Less, "{better:?}");
    }
}

#[test]
fn a_difference_counts_from_eleven_whole_percent_on() {
    let with_bytes = |bytes| Rates { bytes, ..GOOD };
    assert_eq!(with_bytes(110_999).compare(&GOOD), Ordering::Equal);
    assert_eq!(with_bytes(111_000).compare(&GOOD), Ordering::Greater);
    assert_eq!(with_bytes(89_001).compare(&GOOD), Ordering::Equal);
    assert_eq!(with_bytes(89_000).compare(&GOOD), Ordering::Less);
}

#[test]
fn anything_is_better_than_nothing_and_nothing_is_as_good_as_nothing() {
    let nothing = Rates::default();
    assert_eq!(GOOD.compare(&nothing), Ordering::Greater);
    assert_eq!(nothing.compare(&nothing), Ordering::Equal);
    assert_eq!(nothing.compare(&Rates { bytes: 0, frames: 9, events: 9 }), Ordering::Equal);
}

#[test]
fn while_it_gets_better_it_climbs_to_the_edge_and_parks() {
    let mut dim = climb();
    assert_eq!(indices(&mut dim, (0..4).map(better)), [2, 3, 4, 4]);
    assert_eq!(dim.tuning, Tuning::OnTop);
}

#[test]
fn it_turns_when_it_gets_worse_and_parks_one_step_back() {
    let mut dim = climb();
    // The hill climb takes two steps to the right. Then the rates get worse, so the climb takes one step to the left.
    // After this step, the rates improve, so the climb has reached a top.
    assert_eq!(indices(&mut dim, [better(0), better(1), better(0), better(1)]), [2, 3, 2, 2]);
    assert_eq!(dim.tuning, Tuning::OnTop);
}

#[test]
fn it_turns_when_nothing_changes_and_parks_at_the_lower_edge() {
    let mut dim = climb();
    // After one step right the rates are the same, so the climb turns left. The rates keep improving on the left, up to
    // the edge. Without an improvement, the climb would alternate between left and right until the maximum number of
    // steps.
    assert_eq!(indices(&mut dim, [better(0), better(0), better(1), better(2)]), [2, 1, 0, 0]);
    assert_eq!(dim.tuning, Tuning::OnTop);
}

#[test]
fn a_turn_after_a_single_step_is_no_top() {
    let mut dim = climb();
    // After one step right the rates are the same, so the climb turns left. The rates get worse, so the climb turns
    // right again. The rates improve, so the climb continues to the right.
    assert_eq!(indices(&mut dim, [better(1), better(1), better(0), better(1)]), [2, 1, 2, 3]);
    assert_eq!(dim.tuning, Tuning::Right);
}

#[test]
fn on_a_top_it_stays_until_the_rates_differ_from_those_of_the_top() {
    let mut dim = climb();
    indices(&mut dim, (0..4).map(better));
    let top = better(3);
    let drift = |percent: u64| Rates { bytes: top.bytes * (100 + percent) / 100, ..top };
    // Each rate is within ten percent of the previous rate; the third rate is not within ten percent of the rate on the
    // top.
    assert_eq!(indices(&mut dim, [drift(5), drift(10), drift(15)]), [4, 4, 3]);
    assert_eq!(dim.tuning, Tuning::Left);
}

#[test]
fn from_the_lowest_profile_it_can_only_go_right() {
    let mut dim = climb();
    indices(&mut dim, [better(0), better(0), better(1), better(2)]);
    assert_eq!((dim.index, dim.tuning), (0, Tuning::OnTop));
    assert_eq!(indices(&mut dim, [better(9)]), [1]);
    assert_eq!(dim.tuning, Tuning::Right);
}

#[test]
fn after_ten_steps_without_a_top_it_rests_for_ten_decisions() {
    let mut dim = climb();
    // With constant rates, the climb reverses at each decision.
    let same = std::iter::repeat_n(GOOD, 10);
    assert_eq!(indices(&mut dim, same), [2, 1, 2, 1, 2, 1, 2, 1, 2, 1]);
    assert_eq!(indices(&mut dim, [GOOD]), [1]);
    assert_eq!(dim.tuning, Tuning::Tired);
    assert_eq!(indices(&mut dim, std::iter::repeat_n(GOOD, 9)), [1; 9]);
    assert_eq!(dim.tuning, Tuning::Tired);
    assert_eq!(indices(&mut dim, [GOOD]), [0]);
    assert_eq!(dim.tuning, Tuning::Left);
}

#[test]
fn it_decides_after_sixty_four_interrupts_and_measures_anew_from_the_one_after_a_change() {
    const PERIOD_NS: u64 = 10_000;
    let mut dim = climb();
    let mut changes = Vec::new();
    for event in 0..=131_u64 {
        let before = dim.index;
        // From the second measurement on, each interrupt reports twice the bytes. So the rates improve, and the climb
        // continues.
        dim.fired(event * PERIOD_NS, 1, if event < 65 { 100 } else { 200 });
        if dim.index != before {
            changes.push(event);
        }
    }
    // Event 0 starts the first measurement; event 65 starts the second.
    assert_eq!(changes, [64, 129]);
    assert_eq!(dim.index, 3);
}

#[test]
fn a_clock_that_stands_or_goes_back_decides_nothing() {
    let mut dim = climb();
    for event in 0..1000_u64 {
        dim.fired(1_000_000 - event / 2, 1, u64::MAX);
    }
    assert_eq!(dim.index, PROFILE_START);
}

#[test]
fn the_profiles_are_linux_s() {
    let usecs = |profiles: DimProfiles| Dim::new(profiles).profiles.map(|profile| profile.max_usecs);
    let frames = |profiles: DimProfiles| Dim::new(profiles).profiles.map(|profile| profile.max_packets);
    assert_eq!(usecs(DimProfiles::ReceiveEvent), [1, 8, 64, 128, 256]);
    assert_eq!(frames(DimProfiles::ReceiveEvent), [256; 5]);
    assert_eq!(usecs(DimProfiles::ReceiveCompletion), [2, 8, 16, 32, 64]);
    assert_eq!(frames(DimProfiles::ReceiveCompletion), [256, 128, 64, 64, 64]);
    assert_eq!(usecs(DimProfiles::TransmitEvent), [1, 8, 32, 64, 128]);
    assert_eq!(frames(DimProfiles::TransmitEvent), [128; 5]);
    assert_eq!(usecs(DimProfiles::TransmitCompletion), [5, 8, 16, 32, 64]);
    assert_eq!(frames(DimProfiles::TransmitCompletion), [128, 64, 32, 32, 32]);
}
