//! How fast the model runs: events per second, and how much faster than real time.
//!
//! `cargo bench -p offramp-model`. It asserts nothing; the targets are printed beside the figures.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use std::time::Instant;

/// Events per second that one core should reach.
const EVENTS_PER_SECOND_TARGET: f64 = 5e6;
/// How many times faster than real time the ISA profiles should run.
const SPEEDUP_TARGET: f64 = 2000.0;
const CASES: [(&str, Workload); 4] = [
    ("486-wd8003ep", Workload::TtcpReceive),
    ("486-3c503", Workload::TtcpReceive),
    ("486-wd8003e", Workload::NfsRead),
    ("486-wd8013", Workload::NfsRead),
];
/// Simulated time of each case.
const SIMULATED: &str = "2000s";
/// The best of so many runs is shown: what others do on the machine can only make a run slower.
const RUNS: usize = 5;

fn main() {
    println!("target: {EVENTS_PER_SECOND_TARGET:.0} events/s, {SPEEDUP_TARGET:.0} times real time");
    for (name, workload) in CASES {
        let profile = Profile::load(name).expect("a profile that comes with offramp").with("workload.time", SIMULATED);
        let (mut best_s, mut events, mut simulated_s) = (f64::INFINITY, 0, 0.0);
        for _ in 0..RUNS {
            let began = Instant::now();
            let outcome = run(&profile, workload).expect("a run");
            best_s = best_s.min(began.elapsed().as_secs_f64());
            (events, simulated_s) = (outcome.events, outcome.seconds);
        }
        println!(
            "{name:14} {:12} {:>6.1} million events/s, {:>6.0} times real time",
            workload.name(),
            events as f64 / best_s / 1e6,
            simulated_s / best_s
        );
    }
}
