//! Interrupts wait in a run as the adapter's own rules say.

use offramp_model::config::Workload::TtcpReceive;
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};

/// Time that the first frame waits; shorter than the time between two frames of the load.
const WAIT_US: f64 = 200.0;

/// A gigabit adapter that receives at `rate`, and whose host reads frames only after an interrupt.
fn at(rate: &str, moderation: &[(&str, &str)]) -> Outcome {
    let base = Profile::load("ndis-2011").unwrap().with("workload.rate", rate);
    let base = base.with("host.poll_interval", "0us").with("host.order", "forward").with("adapter.checksum", "on");
    let profile = moderation.iter().fold(base, |profile, (key, value)| profile.with(key, value));
    run(&profile, TtcpReceive).unwrap()
}

fn coalescing(rate: &str, frames: &str) -> Outcome {
    let wait = format!("{WAIT_US}us");
    at(
        rate,
        &[
            ("adapter.moderation", "coalescing"),
            ("adapter.interrupt_wait", &wait),
            ("adapter.interrupt_frames", frames),
        ],
    )
}

#[test]
fn a_frame_that_finds_no_company_waits_as_long_as_coalescing_says() {
    let [off, waits] = [at("10Mbit/s", &[("adapter.moderation", "off")]), coalescing("10Mbit/s", "1000")];
    let longer = waits.ring_wait_us - off.ring_wait_us;
    assert!((longer / WAIT_US - 1.0).abs() < 0.05, "{longer} us");
    assert_eq!(coalescing("10Mbit/s", "1").counts, off.counts, "the first frame is all that is waited for");
}

#[test]
fn frames_in_company_are_told_together_before_the_first_has_waited_its_time() {
    // A frame each 117 us: the second one ends the wait of the first.
    let [off, waits] = [at("100Mbit/s", &[("adapter.moderation", "off")]), coalescing("100Mbit/s", "2")];
    let per_interrupt = |outcome: &Outcome| outcome.frames_per_second / outcome.interrupts_per_second;
    let (alone, together) = (per_interrupt(&off), per_interrupt(&waits));
    assert!(together > 1.5 * alone, "{together} frames an interrupt, {alone} without waiting");
    assert!(waits.ring_wait_us < WAIT_US, "{} us", waits.ring_wait_us);
    assert!((waits.bytes_per_second / off.bytes_per_second - 1.0).abs() < 0.01, "and nothing is slower");
}

#[test]
fn a_lone_frame_waits_for_an_interrupts_worth_by_area_and_not_at_all_by_quiet_or_area() {
    let of = |policy| at("10Mbit/s", &[("adapter.moderation", policy)]);
    let (off, area, quiet) = (of("off"), of("area"), of("quiet-or-area"));
    assert!(area.ring_wait_us > off.ring_wait_us, "{} {}", area.ring_wait_us, off.ring_wait_us);
    assert_eq!(quiet.counts, off.counts);
}

/// Ten gigabits with quiet-or-area and this interrupt cost: bursts of four frames, one every 232 us.
fn in_bursts(interrupt_time: &str) -> Outcome {
    let base = Profile::load("server-82599").unwrap().with("adapter.moderation", "quiet-or-area");
    let base = base.with("workload.flows", "4").with("workload.rate", "50Mbit/s");
    run(&base.with("host.interrupt_time", interrupt_time), TtcpReceive).unwrap()
}

#[test]
fn quiet_or_area_interrupts_less_where_interrupts_cost_more() {
    // Both costs are below the one that is assumed before the first measurement, and even the higher one is shorter than
    // the burst.
    let [cheap, costly] = ["0.3us", "2us"].map(in_bursts);
    let (often, seldom) = (cheap.interrupts_per_second, costly.interrupts_per_second);
    assert!(seldom < 0.75 * often, "{seldom} instead of {often} interrupts a second");
    assert!((costly.bytes_per_second / cheap.bytes_per_second - 1.0).abs() < 0.01, "at the same load");
}
