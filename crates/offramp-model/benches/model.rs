//! How fast the model runs: events per second, how much faster than real time, and what a second thread is worth to a
//! sweep.
//!
//! `cargo bench -p offramp-model`; with `-- speed` or `-- scaling` one part alone. It asserts nothing; the targets are
//! printed beside the figures.
//!
//! A machine that others use, or whose clock moves, gives a second thread less than a processor, and not the same from one
//! second to the next. So the scaling is measured in short rounds, and in each of them beside it what the machine gives to
//! work that shares nothing: two sweeps of one thread each at the same time against one of them alone. That is the limit,
//! and what the sweep itself loses is what it stays below it.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use offramp_model::sweep::{Axis, Design, Journal, Sweep};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

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
/// Seconds that forwarding of [`FORWARDED_FRAMES`] should take.
const FORWARDED_SECONDS_TARGET: f64 = 2.0;
const FORWARDED_FRAMES: u64 = 1_000_000;
type Settings = &'static [(&'static str, &'static str)];
/// Systems that forward the smallest frames, how many a second, and what they do beside what they do by default: a poll loop
/// that has more than it can, and livelock.
const FORWARDED: [(&str, &str, Settings); 2] = [
    ("server-82599", "4000000", &[("host.poll_budget", "64"), ("adapter.moderation", "off")]),
    ("pentium3-e1000", "80000", &[("host.receive", "interrupt"), ("adapter.moderation", "off")]),
];
/// Simulated time of each case.
const ISA_SIMULATED: &str = "2000s";
const GIGABIT_SIMULATED: &str = "10s";
/// The best of this number of runs is shown: what others do on the machine can only make a run slower.
const RUNS: usize = 5;

/// What a second thread should be worth to a sweep.
const SCALING_TARGET: f64 = 1.9;
/// Sweeps whose scaling is measured: what they are, points, and simulated time of each, with a second of warm-up. Both take
/// about a third of a second on one thread.
const SWEEPS: [(&str, usize, &str); 2] = [("many short points", 300, "1s"), ("few long points", 6, "100s")];
/// Rounds of each; odd, so that one of them is the median.
const ROUNDS: usize = 15;
const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn main() {
    // Cargo gives options of its own.
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
    println!("target: {EVENTS_PER_SECOND_TARGET:.0} events/s, {SPEEDUP_TARGET:.0} times real time");
    measure(&ISA_CASES, ISA_SIMULATED);
    println!("target: {EVENTS_PER_SECOND_TARGET:.0} events/s, {GIGABIT_SPEEDUP_TARGET:.0} times real time");
    measure(&GIGABIT_CASES, GIGABIT_SIMULATED);
    println!("target: {FORWARDED_FRAMES} frames offered within {FORWARDED_SECONDS_TARGET} s");
    for (name, rate, settings) in FORWARDED {
        measure_forwarding(name, rate, settings);
    }
}

fn measure_forwarding(name: &str, rate: &str, settings: &[(&str, &str)]) {
    let mut profile = Profile::load(name).expect("a profile that comes with offramp");
    let time_us = FORWARDED_FRAMES * 1_000_000 / rate.parse::<u64>().expect("a number");
    let time = format!("{time_us}us");
    let all = [("workload.request_rate", rate), ("workload.warmup", "0s"), ("workload.time", &time)];
    profile.set_all(all.into_iter().chain(settings.iter().copied())).expect("parameters that there are");
    let times = (0..RUNS).map(|_| {
        let began = Instant::now();
        let outcome = run(&profile, Workload::Forward).expect("a run");
        (began.elapsed().as_secs_f64(), outcome)
    });
    let (best_s, outcome) = times.min_by(|a, b| a.0.total_cmp(&b.0)).expect("several runs");
    let delivered = outcome.latency.expect("frames").done_per_second * outcome.seconds;
    println!(
        "{name:18} {:12} {best_s:>6.2} s for {FORWARDED_FRAMES} frames, {delivered:.0} of them delivered; {:.1} million events/s",
        Workload::Forward.name(),
        outcome.events as f64 / best_s / 1e6
    );
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

    /// What the machine gave to work that shares nothing.
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

/// What drifts hits all three alike, and in every other round the other way round.
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

/// A sweep with its journal, as `offramp model sweep` runs it.
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
