//! `offramp model sensitivity`: ranks the parameters by their effect on an outcome.

use super::{Done, OrFail, SystemArgs, command_line, print_as, write_page};
use clap::ValueEnum;
use offramp_lab::report::modelled;
use offramp_model::metrics::{self, METRICS, Metric};
use offramp_model::pool;
use offramp_model::sensitivity::{
    Ranges, Study, checked_runs, checked_share, elasticities, factors, morris, only, sobol, text,
};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Default variation of each parameter, in percent.
const RANGE_PERCENT: f64 = 10.0;

/// Measure the change of an outcome with each number of a profile.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    system: SystemArgs,
    /// The outcome
    #[arg(long, default_value = "throughput_kib_per_s", value_parser = metric)]
    metric: &'static Metric,
    /// The method: one parameter at a time, along random paths, or by shares of variance
    #[arg(long, value_enum, default_value = "elasticity")]
    method: Method,
    /// Only these parameters [default: every number of the profile that is not 0]
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    parameters: Vec<String>,
    /// Vary a number from value / (1 + PERCENT) to value * (1 + PERCENT) [default: 10; morris and sobol prefer the
    /// profile's interval, if it has one]
    #[arg(long, value_name = "PERCENT")]
    range: Option<f64>,
    /// Paths of Morris' method
    #[arg(long, default_value = "20")]
    paths: NonZeroUsize,
    /// Samples of Sobol's method; each takes a run for every parameter and two more
    #[arg(long, default_value = "256")]
    samples: NonZeroUsize,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write a page with a chart
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// Percent of the outcome for one percent of each parameter
    Elasticity,
    /// Elementary effects (Morris 1991)
    Morris,
    /// Shares of variance (Sobol; Saltelli et al. 2010, Jansen 1999)
    Sobol,
}

fn metric(name: &str) -> Result<&'static Metric, String> {
    metrics::find(name).ok_or_else(|| {
        let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        format!("there is no such figure; use one of: {}", names.join(", "))
    })
}

pub(super) fn run(args: &Args) -> Done {
    let Args { system: SystemArgs { workload, .. }, paths, samples, .. } = args;
    let profile = args.system.load()?;
    let (all, fixed) = factors(&profile, ranges(args).or_setup()?);
    let (factors, not_varied) = match args.parameters.as_slice() {
        [] => (all, fixed),
        names => (only(&all, names).or_setup()?, Vec::new()),
    };
    let study = Study {
        profile: &profile,
        workload: *workload,
        metric: args.metric,
        threads: pool::threads(),
        not_varied: &not_varied,
    };
    let within = |runs_each: usize, times: usize| checked_runs(runs_each, times).or_setup();
    let found = match args.method {
        Method::Elasticity => within(2, factors.len()).map(|_| elasticities(&study, &factors)),
        Method::Morris => {
            within(factors.len() + 1, paths.get()).map(|_| morris(&study, &factors, paths.get(), args.seed))
        }
        Method::Sobol => {
            within(factors.len() + 2, samples.get()).map(|_| sobol(&study, &factors, samples.get(), args.seed))
        }
    }?;
    let found = found.map_err(|error| format!("{}: {error}", profile.name)).or_failed()?;
    let written = args
        .html
        .as_ref()
        .map(|path| write_page(&modelled::sensitivity::page(&profile, workload.name(), &found, &command_line()), path));
    let text = format!("{}: {}, {}\n\n{}", profile.name, profile.title, workload.name(), text(&found));
    print_as(args.json, &found, text)?;
    written.unwrap_or(Ok(ExitCode::SUCCESS))
}

/// Returns the ranges of the parameters. An elasticity describes the neighbourhood of a value and ignores the
/// parameter's interval. All other methods prefer the parameter's interval, unless `--range` is given.
fn ranges(args: &Args) -> Result<Ranges, String> {
    let share = checked_share(args.range.unwrap_or(RANGE_PERCENT))?;
    match (args.range, args.method) {
        (None, Method::Morris | Method::Sobol) => Ok(Ranges::Intervals(share)),
        _ => Ok(Ranges::Share(share)),
    }
}
