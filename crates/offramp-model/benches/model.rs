//! Speed of the model: events per second, simulated over real time, and the gain of a sweep from a second thread.
//!
//! `cargo bench -p offramp-model`; with `-- speed` or `-- scaling` one part alone. It asserts nothing; the targets are
//! printed beside the figures.
//!
//! On a shared machine, or one with a varying clock, a second thread gains less than a processor, and not the same from
//! one second to the next. So the bench measures scaling in short rounds. Each round also measures the machine's limit
//! for work without shared resources: two sweeps of one thread each at the same time, against one of them alone. The
//! distance to that limit is the loss of the sweep itself.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use offramp_model::sweep::{Axis, Design, Journal, Sweep};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Target of events per second for one core.
const EVENTS_PER_SECOND_TARGET: f64 = 5e6;
/// A run: a system, a workload, settings, and its target.
#[derive(Deserialize)]
struct Case {
    system: String,
    workload: Workload,
    set: BTreeMap<String, String>,
    target: String,
}
/// Runs of each case; the best is shown. Other programs on the machine can only make a run slower.
const RUNS: usize = 5;

/// Target of the gain of a sweep from a second thread.
const SCALING_TARGET: f64 = 1.9;
/// Sweeps for the scaling: description, points, and simulated time of each, with a second of warm-up. Both take about a
/// third of a second on one thread.
const SWEEPS: [(&str, usize, &str); 2] = [("many short points", 300, "1s"), ("few long points", 6, "100s")];
/// Rounds of each. The number is odd, so one of them is the median.
const ROUNDS: usize = 15;
const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn main() {
    // Skips cargo's own options.
    let parts: Vec<String> = std::env::args().skip(1).filter(|part| !part.starts_with('-')).collect();
    let is_asked = |part: &str| parts.is_empty() || parts.iter().any(|asked| asked == part);
    if is_asked("speed") {
        speed();
    }
    if is_asked("scaling") {
        scaling();
    }
}

fn speed() {
    println!("target: {EVENTS_PER_SECOND_TARGET:.0} events/s, and as each line says");
    let mut cases: BTreeMap<String, Vec<Case>> = toml::from_str(include_str!("cases.toml")).expect("cases");
    for Case { system, workload, set, target } in cases.remove("cases").expect("cases") {
        let mut profile = Profile::load(&system).expect("a profile that comes with offramp");
        profile.set_all(set).expect("parameters that there are");
        let times = (0..RUNS).map(|_| {
            let began = Instant::now();
            let outcome = run(&profile, workload).expect("a run");
            (began.elapsed().as_secs_f64(), outcome)
        });
        let (best_s, outcome) = times.min_by(|a, b| a.0.total_cmp(&b.0)).expect("several runs");
        println!(
            "{system:18} {:12} {:>6.1} million events/s, {best_s:>6.2} s, {:>6.0} times real time; target: {target}",
            workload.name(),
            outcome.events as f64 / best_s / 1e6,
            outcome.seconds / best_s
        );
    }
}

/// Times of one round.
struct Round {
    /// The sweep on one thread.
    one: Duration,
    /// The same on two.
    two: Duration,
    /// Two sweeps of one thread each, at the same time.
    copies: Duration,
}

impl Round {
    fn scaling(&self) -> f64 {
        self.one.as_secs_f64() / self.two.as_secs_f64()
    }

    /// Returns the machine's gain for work that shares nothing.
    fn limit(&self) -> f64 {
        2.0 * self.one.as_secs_f64() / self.copies.as_secs_f64()
    }
}

fn scaling() {
    println!("target: {SCALING_TARGET} times on 2 threads, where the machine gives 2 processors");
    for (name, points, simulated) in SWEEPS {
        let sweep = sweep(points, simulated);
        let rounds: Vec<Round> = (0..ROUNDS).map(|round| measure_round(&sweep, round)).collect();
        let over = |of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
        println!(
            "{name:18} {points:>5} points, {:>6.3} s on one thread: {:.2} times on two; the machine's limit {:.2}; {:.1} % of it",
            over(|round| round.one.as_secs_f64()),
            over(Round::scaling),
            over(Round::limit),
            100.0 * over(|round| round.scaling() / round.limit())
        );
    }
}

fn sweep(points: usize, simulated: &str) -> Sweep {
    let profile = Profile::load("486-wd8003ep").expect("a profile that comes with offramp");
    Sweep {
        profile: profile.with("workload.time", simulated),
        workload: Workload::TtcpReceive,
        axes: vec![Axis::parse("bus.clock=4MHz..30MHz").expect("a range")],
        design: Design::Latin { points, seed: 1 },
    }
}

/// Measures one round. Drift affects all three times alike; every other round reverses their order.
fn measure_round(sweep: &Sweep, round: usize) -> Round {
    let one = || time(|| run_sweep(sweep, NonZeroUsize::MIN, "one"));
    let two = || time(|| run_sweep(sweep, THREADS, "two"));
    let copies = || {
        time(|| {
            std::thread::scope(|scope| {
                for copy in ["first", "second"] {
                    scope.spawn(move || run_sweep(sweep, NonZeroUsize::MIN, copy));
                }
            });
        })
    };
    if round.is_multiple_of(2) {
        let (two, one, copies) = (two(), one(), copies());
        return Round { one, two, copies };
    }
    let (copies, one, two) = (copies(), one(), two());
    Round { one, two, copies }
}

/// Runs a sweep with its journal, as `offramp model sweep` does.
fn run_sweep(sweep: &Sweep, threads: NonZeroUsize, name: &str) {
    let path = std::env::temp_dir().join(format!("offramp-bench-{}-{name}.partial", std::process::id()));
    let (mut journal, done) = Journal::open(&path, sweep).expect("a journal");
    let rows = sweep.run(done, threads, |row| journal.add(row).is_ok()).expect("a sweep");
    assert_eq!(rows.len(), sweep.points().expect("points").len());
    journal.remove().expect("a journal that is done");
}

fn time(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
