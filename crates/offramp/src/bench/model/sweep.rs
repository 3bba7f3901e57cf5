//! `offramp model sweep`: runs a workload over ranges of parameters.

use super::progress::Progress;
use super::{Done, Failure, OrFail, SystemArgs, command_line, write_page};
use crate::bench::stop::{STOPPED, stop_flag};
use crate::exit::{FAILED, SETUP};
use offramp_lab::report::modelled;
#[cfg(feature = "parquet")]
use offramp_lab::report::parquet;
use offramp_model::pool;
use offramp_model::sweep::{Axis, Design, Journal, Row, Sweep, SweepError, columns, csv};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Run a workload on every point of a grid, or of a Latin hypercube.
#[derive(clap::Args)]
#[command(after_help = include_str!("sweep-examples.txt").trim_end())]
pub(super) struct Args {
    #[command(flatten)]
    system: SystemArgs,
    /// Vary a parameter; several times: each value with each other one
    #[arg(long, value_name = "KEY=RANGE", required = true)]
    vary: Vec<String>,
    /// A Latin hypercube with this number of points instead of a grid
    #[arg(long, value_name = "POINTS")]
    latin: Option<usize>,
    /// Seed of the hypercube's random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The table's file, as CSV; an interrupted sweep keeps its finished points in FILE.partial
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the table as Parquet, too (a program built with `--features parquet`)
    #[arg(long, value_name = "FILE", value_parser = parquet_file)]
    parquet: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Runs at once [default: one for each processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<NonZeroUsize>,
}

/// Refuses `--parquet` before the first run if this program was built without Parquet support.
fn parquet_file(path: &str) -> Result<PathBuf, String> {
    if cfg!(feature = "parquet") {
        return Ok(path.into());
    }
    Err("this program writes no Parquet; build it with --features parquet, or use the CSV of --out".to_owned())
}

impl From<SweepError> for Failure {
    fn from(error: SweepError) -> Self {
        let status = if matches!(error, SweepError::File { .. }) { FAILED } else { SETUP };
        Self { why: error.to_string(), status }
    }
}

impl Args {
    fn sweep(&self) -> Result<Sweep, Failure> {
        let profile = self.system.load()?;
        let axes: Vec<Axis> = self.vary.iter().map(|axis| Axis::parse_for(axis, &profile)).collect::<Result<_, _>>()?;
        let design = self.latin.map_or(Design::Grid, |points| Design::Latin { points, seed: self.seed });
        Ok(Sweep { profile, workload: self.system.workload, axes, design })
    }

    fn journal(&self) -> PathBuf {
        let mut name = self.out.clone().into_os_string();
        name.push(".partial");
        name.into()
    }
}

pub(super) fn run(args: &Args) -> Done {
    let sweep = args.sweep()?;
    let of = sweep.points()?.len();
    // A signal ends the sweep after the points in progress, and a later run continues the sweep.
    let stop = stop_flag().or_setup()?;
    let (mut journal, done) = Journal::open(&args.journal(), &sweep)?;
    let threads = args.threads.unwrap_or_else(pool::threads);
    if !done.is_empty() {
        eprintln!("model: going on behind {} of {of} points", done.len());
    }
    let mut progress = Progress::new(done.len(), of, "points");
    let mut failure = None;
    let rows = sweep.run(done, threads, |row| {
        failure = failure.take().or_else(|| journal.add(row).err());
        progress.step();
        failure.is_none() && !stop.load(Ordering::Relaxed)
    })?;
    progress.clear();
    if let Some(error) = failure {
        return Err(error.into());
    }
    if rows.len() < of {
        let (done, kept) = (rows.len(), args.journal());
        let why =
            format!("stopped; {done} of {of} points are kept in {}, and the same command goes on", kept.display());
        return Err(Failure { why, status: STOPPED });
    }
    eprintln!("model: {of} points on {threads} threads in {:.2} s", progress.seconds());
    write(args, &sweep, &rows)?;
    journal.remove()?;
    match rows.iter().filter(|row| row.result.is_err()).count() {
        0 => Ok(ExitCode::SUCCESS),
        failed => {
            let why = format!("{failed} of {of} points failed; the column `error` of {} says why", args.out.display());
            Err(Failure { why, status: FAILED })
        }
    }
}

fn write(args: &Args, sweep: &Sweep, rows: &[Row]) -> Result<(), Failure> {
    let columns = columns(sweep, rows)?;
    replace(&args.out, &csv(&columns)).or_failed()?;
    #[cfg(feature = "parquet")]
    if let Some(path) = &args.parquet {
        parquet::write(&columns, path).or_failed()?;
    }
    if let Some(path) = &args.html {
        let page = modelled::sweep::page(sweep, rows, &command_line())?;
        write_page(&page, path)?;
    }
    Ok(())
}

/// Replaces the file atomically, so that a reader finds either the whole table or the old contents.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_parquet_refuses_it_and_names_the_feature() {
        match parquet_file("t.parquet") {
            Ok(file) => assert!(cfg!(feature = "parquet") && file == Path::new("t.parquet")),
            Err(why) => assert!(cfg!(not(feature = "parquet")) && why.contains("--features parquet"), "{why}"),
        }
    }
}
