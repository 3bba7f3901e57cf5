//! What it costs to interrupt a processor that sleeps.

use offramp_model::config::Workload::TtcpReceive;
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};

/// Longer than any of the profile's other costs, and short beside the time between two interrupts of a light load.
const WAKE_US: f64 = 50.0;
const US_PER_S: f64 = 1e6;

/// A system at `rate`, with interrupts at least 500 µs apart, without and with a cost of waking.
fn at(rate: &str) -> [Outcome; 2] {
    let base = Profile::load("ndis-2011").unwrap();
    let base = base.with("adapter.moderation", "fixed-gap").with("adapter.interrupt_rate", "2000");
    let base = base.with("host.poll_interval", "0us").with("host.order", "forward").with("workload.rate", rate);
    ["0us".to_owned(), format!("{WAKE_US}us")]
        .map(|wake| run(&base.clone().with("host.wake_time", &wake), TtcpReceive).unwrap())
}

#[test]
fn under_a_light_load_each_interrupt_pays_for_waking() {
    let [asleep, woken] = at("10Mbit/s");
    let paid = (woken.cpu_percent - asleep.cpu_percent) / 100.0;
    let expected = woken.interrupts_per_second * WAKE_US / US_PER_S;
    assert!((paid / expected - 1.0).abs() < 0.1, "{paid} instead of {expected} of the processor");
    assert!((woken.bytes_per_second / asleep.bytes_per_second - 1.0).abs() < 0.01, "and nothing else changes");
}

#[test]
fn a_processor_that_is_never_idle_is_not_woken() {
    let [busy, woken] = at("1Gbit/s");
    assert!(busy.cpu_percent > 95.0, "{} %: the load is no limit", busy.cpu_percent);
    assert!((woken.bytes_per_second / busy.bytes_per_second - 1.0).abs() < 0.03, "{woken:?}\n{busy:?}");
}
