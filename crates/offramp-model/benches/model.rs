//! The speed of the model: events per second, simulated time per real time, and the speed-up of a sweep by a second
//! thread.
//!
//! Run with `cargo bench -p offramp-model`. The argument `-- speed` or `-- scaling` selects one part. The bench prints
//! targets next to the figures, but asserts nothing.
//!
//! On a shared machine, or with a varying clock, the speed-up by a second thread is below 2 and varies over time. The
//! bench therefore measures scaling in short rounds. Each round also measures the largest speed-up that the machine
//! allows: the speed-up of two independent single-threaded sweeps at the same time. The difference between the sweep's
//! speed-up and this limit is the loss in the sweep itself.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use offramp_model::sweep::{Axis, Design, Journal, Sweep};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Target speed of the model on one core, events per second.
const EVENTS_PER_SECOND_TARGET: f64 = 5e6;
/// A benchmark case: system, workload, settings and target.
#[derive(Deserialize)]
struct Case {
    system: String,
    workload: Workload,
    set: BTreeMap<String, String>,
    target: String,
}
/// Number of runs per case. The best run is shown, because other programs on the machine only slow runs down.
const RUNS: usize = 5;

/// Target for the speed-up of a sweep by a second thread.
const SCALING_TARGET: f64 = 1.9;
/// Sweeps for scaling: description, number of points, and simulated time per point. The warm-up adds one second of
/// simulated time per point. Each sweep takes about a third of a second on one thread.
const SWEEPS: [(&str, usize, &str); 2] = [("many short points", 300, "1s"), ("few long points", 6, "100s")];
/// Number of rounds per sweep. The number is odd, so that the median is a measured round.
const ROUNDS: usize = 15;
const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn main() {
    // Ignore the options that cargo adds.
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

/// Durations of one round.
struct Round {
    /// Duration of the sweep on one thread.
    one: Duration,
    /// Duration of the sweep on two threads.
    two: Duration,
    /// Duration of two concurrent sweeps, on one thread each.
    copies: Duration,
}

impl Round {
    fn scaling(&self) -> f64 {
        self.one.as_secs_f64() / self.two.as_secs_f64()
    }

    /// Returns the machine's speed-up for independent work.
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

/// Measures one round. Every other round reverses the order, so that drift affects all three durations alike.
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

/// Runs a sweep with a journal, like `offramp model sweep`.
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
