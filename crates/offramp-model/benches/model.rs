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
const ISA_CASES: [(&str, Workload); 4] = [
    ("486-wd8003ep", Workload::TtcpReceive),
    ("486-3c503", Workload::TtcpReceive),
    ("486-wd8003e", Workload::NfsRead),
    ("486-wd8013", Workload::NfsRead),
];
/// How many times faster than real time a gigabit at an MTU of 1500 should run.
const GIGABIT_SPEEDUP_TARGET: f64 = 10.0;
const GIGABIT_CASES: [(&str, Workload); 3] = [
    ("p4-e1000-processor", Workload::TtcpSend),
    ("p4-e1000-processor", Workload::TtcpReceive),
    ("p4-e1000-pci", Workload::TtcpBoth),
];
/// Simulated time of each case.
const ISA_SIMULATED: &str = "2000s";
const GIGABIT_SIMULATED: &str = "10s";
/// The best of so many runs is shown: what others do on the machine can only make a run slower.
const RUNS: usize = 5;

fn main() {
    println!("target: {EVENTS_PER_SECOND_TARGET:.0} events/s, {SPEEDUP_TARGET:.0} times real time");
    measure(&ISA_CASES, ISA_SIMULATED);
    println!("target: {EVENTS_PER_SECOND_TARGET:.0} events/s, {GIGABIT_SPEEDUP_TARGET:.0} times real time");
    measure(&GIGABIT_CASES, GIGABIT_SIMULATED);
}

fn measure(cases: &[(&str, Workload)], simulated: &str) {
    for &(name, workload) in cases {
        let profile = Profile::load(name).expect("a profile that comes with offramp").with("workload.time", simulated);
        let (mut best_s, mut events, mut simulated_s) = (f64::INFINITY, 0, 0.0);
        for _ in 0..RUNS {
            let began = Instant::now();
            let outcome = run(&profile, workload).expect("a run");
            best_s = best_s.min(began.elapsed().as_secs_f64());
            (events, simulated_s) = (outcome.events, outcome.seconds);
        }
        println!(
            "{name:18} {:12} {:>6.1} million events/s, {:>6.0} times real time",
            workload.name(),
            events as f64 / best_s / 1e6,
            simulated_s / best_s
        );
    }
}
