//! Measures one operation for several contenders, with interleaved executions, and reports the results.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// offramp's name in the tables and in the results file.
pub const OURSELVES: &str = "offramp";
/// Name of the reference row in the tables.
pub const REFERENCE: &str = "limit_memcpy";

/// An allocator that counts every allocation of the process, by offramp and by the libraries compared with it.
pub struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`, and `System` allocated `at`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `realloc`, and `System` allocated `at`.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

/// A contender: one implementation of an operation. The closure `run` contains the loop over the executions, so that
/// the executions have no call overhead. The closure returns the total time of the executions in nanoseconds.
pub struct Contender<'a> {
    who: &'static str,
    run: Box<dyn FnMut(u64) -> f64 + 'a>,
}

impl<'a> Contender<'a> {
    /// Makes a contender. `work` executes the operation once and returns a value that depends on the whole operation.
    pub fn new<R>(who: &'static str, mut work: impl FnMut() -> R + 'a) -> Self {
        let run = Box::new(move |turns| {
            let start = Instant::now();
            for _ in 0..turns {
                black_box(work());
            }
            start.elapsed().as_nanos() as f64
        });
        Self { who, run }
    }

    /// Does the same as [`Contender::new`], for an operation that overwrites the input. `reset` restores the input
    /// before each execution, outside the measured time.
    pub fn with_reset<S, R>(
        who: &'static str,
        mut state: S,
        mut reset: impl FnMut(&mut S) + 'a,
        mut work: impl FnMut(&mut S) -> R + 'a,
    ) -> Self
    where
        S: 'a,
    {
        let run = Box::new(move |turns| {
            let mut total_ns = 0.0;
            for _ in 0..turns {
                reset(&mut state);
                let start = Instant::now();
                black_box(work(&mut state));
                total_ns += start.elapsed().as_nanos() as f64;
            }
            total_ns
        });
        Self { who, run }
    }

    /// Returns the time of `turns` executions in nanoseconds.
    fn sample_ns(&mut self, turns: u64) -> f64 {
        (self.run)(turns)
    }

    /// Returns the number of executions that take about `sample_ns`. Also warms caches and branch predictors. The first
    /// execution is ignored, because it touches new pages. Including the first execution would give too few executions
    /// to warm the caches.
    fn calibrate(&mut self, sample_ns: f64) -> u64 {
        self.sample_ns(1);
        let mut turns = 1;
        while self.sample_ns(turns) < sample_ns / 2.0 {
            turns *= 2;
        }
        turns
    }

    fn allocations_per_call(&mut self) -> f64 {
        const TURNS: u64 = 64;
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (self.run)(TURNS);
        (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / TURNS as f64
    }
}

/// The result of one contender for one operation.
struct Row {
    work: String,
    who: &'static str,
    ns: f64,
    bytes: usize,
    allocations: f64,
}

/// The number and the duration of the samples in a measurement.
#[derive(Clone, Copy)]
struct Effort {
    /// Number of samples per contender. The median is reported.
    repetitions: usize,
    /// Duration of one sample, in nanoseconds.
    sample_ns: f64,
}

impl Effort {
    const FULL: Self = Self { repetitions: 501, sample_ns: 50_000.0 };
    const QUICK: Self = Self { repetitions: 101, sample_ns: 30_000.0 };
    /// Effort for a profiler: two seconds per contender.
    const PROFILE: Self = Self { repetitions: 40_000, sample_ns: 50_000.0 };
    /// Effort for a test: runs every operation once, with meaningless figures.
    const TEST: Self = Self { repetitions: 1, sample_ns: 1_000.0 };
}

/// The collected rows of all operations.
pub struct Report {
    /// Name of the results file.
    name: &'static str,
    /// Name of the reference row.
    reference: &'static str,
    effort: Effort,
    filter: Option<String>,
    /// Name of the only contender to run, if set.
    only: Option<String>,
    writes_file: bool,
    rows: Vec<Row>,
}

impl Report {
    /// Parses the arguments. `--quick` shortens the measurement, and `--test` runs each operation once. `--profile WHO`
    /// runs only one contender, long enough for a profiler. An argument that is no flag is a filter for the names of
    /// operations. Other flags, such as Cargo's `--bench`, are ignored.
    ///
    /// `name` is the name of the results file, and `reference` the name of the reference row.
    pub fn named(name: &'static str, reference: &'static str, mut args: impl Iterator<Item = String>) -> Self {
        let (effort, rows) = (Effort::FULL, Vec::new());
        let mut report = Self { name, reference, effort, filter: None, only: None, writes_file: true, rows };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--profile" => {
                    report.effort = Effort::PROFILE;
                    report.only = args.next();
                    report.writes_file = false;
                }
                "--quick" => report.effort = Effort::QUICK,
                "--test" => {
                    report.effort = Effort::TEST;
                    report.writes_file = false;
                }
                flag if flag.starts_with('-') => {}
                word => {
                    report.filter = Some(word.to_owned());
                    report.writes_file = false;
                }
            }
        }
        report
    }

    /// Measures one operation on `bytes` bytes and prints the table. Every repetition runs all contenders, one after
    /// another. The result is the median of the repetitions.
    pub fn measure(&mut self, work: &str, bytes: usize, mut contenders: Vec<Contender>) {
        if self.filter.as_ref().is_some_and(|part| !work.contains(part)) {
            return;
        }
        contenders.retain(|contender| self.only.as_ref().is_none_or(|only| contender.who == only));
        let turns: Vec<u64> = contenders.iter_mut().map(|c| c.calibrate(self.effort.sample_ns)).collect();
        let mut samples = vec![Vec::with_capacity(self.effort.repetitions); contenders.len()];
        for _ in 0..self.effort.repetitions {
            for ((contender, &turns), samples) in contenders.iter_mut().zip(&turns).zip(&mut samples) {
                samples.push(contender.sample_ns(turns) / turns as f64);
            }
        }
        let first = self.rows.len();
        for (mut contender, mut samples) in contenders.into_iter().zip(samples) {
            samples.sort_by(f64::total_cmp);
            let (who, ns) = (contender.who, samples[samples.len() / 2]);
            let allocations = contender.allocations_per_call();
            assert!(who != OURSELVES || allocations == 0.0, "{work}: {allocations} heap allocations per call");
            self.rows.push(Row { work: work.to_owned(), who, ns, bytes, allocations });
        }
        print_table(&self.rows[first..], self.reference);
    }

    /// Prints offramp's speed, the reference's speed, and the target.
    pub fn aim_at_speed(&self, work: &str, target: f64) {
        self.aim_at_speed_of(work, self.reference, target);
    }

    /// Prints offramp's speed, the speed of `who`, and the target.
    pub fn aim_at_speed_of(&self, work: &str, who: &str, target: f64) {
        if let (Some(ours), Some(theirs)) = (self.ns_of(work, OURSELVES), self.ns_of(work, who)) {
            println!("  {:.3} x the speed of {who}; aimed at: {target:.3} x or more", theirs / ours);
        }
    }

    /// Prints offramp's time per item, for an operation on `turns` items, and the target.
    pub fn aim_at_ns(&self, work: &str, turns: f64, target: f64) {
        if let Some(ours) = self.ns_of(work, OURSELVES) {
            println!("  {:.2} ns each; aimed at: {target:.2} ns or less", ours / turns);
        }
    }

    fn ns_of(&self, work: &str, who: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.work == work && row.who == who).map(|row| row.ns)
    }

    /// Writes the results to the results file, unless the run was filtered, profiled or a test.
    pub fn finish(self) {
        if !self.writes_file {
            return;
        }
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| serde_json::json!({"work": row.work, "who": row.who, "ns": row.ns, "bytes": row.bytes}))
            .collect();
        let path = target_dir().join("bench").join(format!("{}.json", self.name));
        let written = std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
            .and_then(|()| std::fs::write(&path, format!("{:#}\n", serde_json::Value::from(rows))));
        match written {
            Ok(()) => println!("written to {}", path.display()),
            Err(error) => panic!("cannot write {}: {error}; set CARGO_TARGET_DIR to a writable place", path.display()),
        }
    }
}

/// Returns Cargo's target directory: `CARGO_TARGET_DIR`, or `target` in the workspace root.
fn target_dir() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn print_table(rows: &[Row], reference: &str) {
    let Some(first) = rows.first() else { return };
    println!("{} ({} bytes)", first.work, first.bytes);
    let against = format!("speed / {reference}");
    println!("  {:<18} {:>11} {:>8} {:>21} {:>12}", "who", "ns", "GB/s", against, "allocations");
    let reference = rows.iter().find(|row| row.who == reference);
    for row in rows {
        let ratio = reference.map_or(f64::NAN, |reference| reference.ns / row.ns);
        let speed = row.bytes as f64 / row.ns;
        println!("  {:<18} {:>11.2} {:>8.1} {:>21.2} {:>12.2}", row.who, row.ns, speed, ratio, row.allocations);
    }
}
