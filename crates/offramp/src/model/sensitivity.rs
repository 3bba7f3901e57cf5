//! `offramp model sensitivity`: which parameters an outcome hangs on.

use super::{Done, OrFail, command_line, load_with, print_json, setting, workload, write_page};
use crate::exit::print;
use clap::ValueEnum;
use offramp_lab::report::modelled;
use offramp_model::config::Workload;
use offramp_model::metrics::{self, METRICS, Metric};
use offramp_model::pool;
use offramp_model::profile::Profile;
use offramp_model::sensitivity::{
    Factor, Ranges, Sensitivity, Study, checked_runs, checked_share, elasticities, factors, morris, only, sobol, text,
};
use offramp_model::simulation::ModelError;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

/// How far a number is varied of which nothing else is said.
const RANGE_PERCENT: f64 = 10.0;

/// How much an outcome changes with each number of a profile.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A system: its name, or a file that ends in .toml
    profile: String,
    /// What is sent
    #[arg(long, value_parser = workload())]
    workload: Workload,
    /// What is read off
    #[arg(long, default_value = "throughput_kib_per_s", value_parser = metric)]
    metric: &'static Metric,
    /// How: one parameter at a time, along random paths, or by shares of variance
    #[arg(long, value_enum, default_value = "elasticity")]
    method: Method,
    /// Only these parameters [default: every number of the profile that is not 0]
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    parameters: Vec<String>,
    /// From value / (1 + this) to value * (1 + this) [default: 10; morris and sobol vary a number over the interval that
    /// the profile has of it, if it has one]
    #[arg(long, value_name = "PERCENT")]
    range: Option<f64>,
    /// Paths of Morris' method
    #[arg(long, default_value = "20")]
    paths: NonZeroUsize,
    /// Samples of Sobol's method; each takes a run for every parameter and two more
    #[arg(long, default_value = "256")]
    samples: NonZeroUsize,
    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Set a parameter, with its unit
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
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
    let (profile, factors, not_varied) = chosen(args).or_setup()?;
    let found = study(args, &profile, &factors, &not_varied);
    let found = found.map_err(|error| format!("{}: {error}", profile.name)).or_failed()?;
    let written = args.html.as_ref().map(|path| {
        let page = modelled::sensitivity::page(&profile, args.workload.name(), &found, &command_line());
        write_page(&page, path)
    });
    if args.json {
        print_json(&found)?;
    } else {
        print(format_args!("{}: {}, {}\n\n{}", profile.name, profile.title, args.workload.name(), text(&found)));
    }
    written.unwrap_or(Ok(ExitCode::SUCCESS))
}

fn chosen(args: &Args) -> Result<(Profile, Vec<Factor>, Vec<&'static str>), String> {
    let profile = load_with(&args.profile, &args.settings).map_err(|error| error.to_string())?;
    let (all, not_varied) = factors(&profile, ranges(args)?);
    let (factors, not_varied) = match args.parameters.as_slice() {
        [] => (all, not_varied),
        names => (only(&all, names)?, Vec::new()),
    };
    match args.method {
        Method::Elasticity => checked_runs(2, factors.len()),
        Method::Morris => checked_runs(factors.len() + 1, args.paths.get()),
        Method::Sobol => checked_runs(factors.len() + 2, args.samples.get()),
    }?;
    Ok((profile, factors, not_varied))
}

/// An elasticity is of the neighbourhood of a value, whatever is known of it; the other methods ask what follows from
/// all that it may be.
fn ranges(args: &Args) -> Result<Ranges, String> {
    let share = checked_share(args.range.unwrap_or(RANGE_PERCENT))?;
    match (args.range, args.method) {
        (None, Method::Morris | Method::Sobol) => Ok(Ranges::Intervals(share)),
        _ => Ok(Ranges::Share(share)),
    }
}

fn study(
    args: &Args,
    profile: &Profile,
    factors: &[Factor],
    not_varied: &[&'static str],
) -> Result<Sensitivity, ModelError> {
    let study = Study { profile, workload: args.workload, metric: args.metric, threads: pool::threads(), not_varied };
    match args.method {
        Method::Elasticity => elasticities(&study, factors),
        Method::Morris => morris(&study, factors, args.paths.get(), args.seed),
        Method::Sobol => sobol(&study, factors, args.samples.get(), args.seed),
    }
}
