//! Counts the instructions per frame of each kind of work by callgrind, and compares the counts with a table in the
//! repository.
//!
//! Counts depend on the code, the compiler and the C library, but not on the processor or its load. Any machine
//! therefore detects changes that a clock detects only on an idle machine. Counts ignore caches: code can become faster
//! although its count grows.

use offramp_testbed::cargo;
use offramp_testbed::failure::{Doing, Result, failed, not_possible};
use offramp_testbed::packages;
use offramp_testbed::program;
use offramp_testbed::scratch::Scratch;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The table's path in the repository.
const TABLE: &str = "crates/offramp-ports/benches/instructions.txt";
/// The command that writes the table.
const UPDATE: &str = "cargo run --release -p xtask -- instructions --update";
/// The build profile of `.ci/run`, for which the table is valid.
const PROFILE: [(&str, &str); 2] = [("CARGO_PROFILE_BENCH_LTO", "off"), ("CARGO_PROFILE_BENCH_CODEGEN_UNITS", "16")];
/// Limits the C library to copy routines that run on every x86-64 processor.
const PORTABLE_LIBC: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-SSSE3");
/// Name of the benchmark's function that runs the counted workload.
const COUNTED: &str = "instructions::counted_by_callgrind";
/// Maximum difference between a count and the table, in percent.
const TOLERANCE_PERCENT: u64 = 3;

/// Compares the instructions per frame of each kind of work with the table.
#[derive(clap::Args)]
pub struct Args {
    /// Write a new table instead of comparing with the present one
    #[arg(long)]
    update: bool,
}

/// Number of instructions of each counted workload, in the order of execution.
type Counts = Vec<(String, u64)>;

/// Counts instructions, and compares the counts with the table or writes a new table. Returns whether the table allows
/// the counts.
///
/// # Errors
/// Returns an error if counting failed, or the table could not be read or written.
pub fn run(args: &Args) -> Result<bool> {
    if !cfg!(target_arch = "x86_64") {
        return not_possible(format!("{TABLE} holds for x86-64; run this on an x86-64 machine"));
    }
    let counts = count()?;
    let path = Path::new(cargo::ROOT).join(TABLE);
    if args.update {
        fs::write(path, table(&counts)?).doing(format!("writing {TABLE}"))?;
        return Ok(true);
    }
    let text = fs::read_to_string(path).doing(format!("reading {TABLE}"))?;
    Ok(compare(parse(&text)?, &counts))
}

/// Runs the benchmark under callgrind, and returns the counts.
fn count() -> Result<Counts> {
    let valgrind = packages::need(packages::VALGRIND)?;
    let benchmark = cargo::build(&["bench", "-p", "offramp-ports", "--bench", "instructions", "--no-run"], &PROFILE)?;
    let scratch = Scratch::new()?;
    let out = scratch.file("callgrind.out");
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--combine-dumps=yes", &format!("--callgrind-out-file={out}")]);
    command.args([format!("--toggle-collect={COUNTED}"), format!("--dump-after={COUNTED}")]);
    command.arg(benchmark).env(PORTABLE_LIBC.0, PORTABLE_LIBC.1);
    let names = program::output(command, None)?;
    let parts = fs::read_to_string(&out).doing(&out)?;
    // The last part of the output follows the last workload and is empty.
    let totals = parts.lines().filter_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok());
    let counts: Counts = names.lines().map(str::to_owned).zip(totals).filter(|(_, total)| *total > 0).collect();
    if counts.is_empty() || counts.len() != names.lines().count() {
        return failed(format!("callgrind counted {} of these works:\n{names}", counts.len()));
    }
    Ok(counts)
}

/// Formats a table with these counts.
fn table(counts: &Counts) -> Result<String> {
    let mut rustc = Command::new("rustc");
    rustc.arg("--version").current_dir(cargo::ROOT);
    let rustc = program::output(rustc, None)?;
    let profile = PROFILE.map(|(name, value)| format!("{name}={value}")).join(" ");
    let mut text = format!(
        "# Instructions of one run of each work, by callgrind: portable code, x86-64, glibc of Debian 12.\n\
         # {}, {profile}.\n\
         # Written by `{UPDATE}`.\n",
        rustc.trim()
    );
    for (name, instructions) in counts {
        let _ = writeln!(text, "{instructions:>8}  {name}");
    }
    Ok(text)
}

/// Parses the counts of a table.
fn parse(text: &str) -> Result<BTreeMap<String, u64>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let (instructions, name) = line.trim().split_once("  ")?;
        Some((name.to_owned(), instructions.parse().ok()?))
    };
    lines
        .map(|line| entry(line).map_or_else(|| failed(format!("{TABLE}: \"{line}\": expected COUNT  NAME")), Ok))
        .collect()
}

/// The result of comparing a count with the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Within,
    Grown,
    Shrunk,
}

impl Change {
    fn of(before: u64, now: u64) -> Self {
        match now.abs_diff(before) * 100 > before * TOLERANCE_PERCENT {
            false => Self::Within,
            true if now > before => Self::Grown,
            true => Self::Shrunk,
        }
    }
}

/// Prints each count next to the table's count. If the counts and the table do not fit, also prints what to do. Returns
/// whether the table allows the counts.
fn compare(mut table: BTreeMap<String, u64>, counts: &Counts) -> bool {
    let (mut is_allowed, mut is_stale) = (true, false);
    println!("{:<48} {:>10} {:>10} {:>8}", "instructions", "before", "now", "%");
    for (name, now) in counts {
        let Some(before) = table.remove(name) else {
            println!("{name:<48} {:>10} {now:>10}           not in the table", "");
            is_allowed = false;
            continue;
        };
        let change = Change::of(before, *now);
        let percent = (*now as f64 / before as f64 - 1.0) * 100.0;
        let verdict = match change {
            Change::Within => "",
            Change::Grown => "  grown",
            Change::Shrunk => "  shrunk",
        };
        println!("{name:<48} {before:>10} {now:>10} {percent:>+8.1}{verdict}");
        is_allowed &= change != Change::Grown;
        is_stale |= change == Change::Shrunk;
    }
    for (name, before) in &table {
        println!("{name:<48} {before:>10}                     not counted any more");
        is_allowed = false;
    }
    if !is_allowed {
        eprintln!(
            "Some work takes over {TOLERANCE_PERCENT} % more instructions than in {TABLE}, or is missing on one \
             side. Remove the extra instructions; if they are justified, run `{UPDATE}` and give the reason in the \
             commit."
        );
    } else if is_stale {
        eprintln!(
            "Some work takes over {TOLERANCE_PERCENT} % fewer instructions: please run `{UPDATE}` and commit {TABLE}."
        );
    }
    is_allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(entries: &[(&str, u64)]) -> Counts {
        entries.iter().map(|&(name, instructions)| (name.to_owned(), instructions)).collect()
    }

    #[test]
    fn a_count_may_differ_by_the_tolerance_and_no_more() {
        let changes = [969, 970, 1000, 1030, 1031].map(|now| Change::of(1000, now));
        assert_eq!(changes, [Change::Shrunk, Change::Within, Change::Within, Change::Within, Change::Grown]);
    }

    #[test]
    fn only_the_works_of_the_table_are_allowed_and_they_may_shrink() {
        let table = || parse("# A head.\n     100  parse a frame\n   20000  segment, 64 KiB\n").unwrap();
        assert!(compare(table(), &counted(&[("parse a frame", 50), ("segment, 64 KiB", 20_001)])));
        assert!(!compare(table(), &counted(&[("parse a frame", 104), ("segment, 64 KiB", 20_000)])));
        assert!(!compare(table(), &counted(&[("parse a frame", 100)])));
        assert!(!compare(table(), &counted(&[("parse a frame", 100), ("segment, 64 KiB", 20_000), ("new", 1)])));
    }

    #[test]
    fn a_line_that_is_no_count_is_named() {
        let error = parse("12 parse\n").unwrap_err().to_string();
        assert!(error.contains(TABLE) && error.contains("12 parse"), "{error}");
    }
}
