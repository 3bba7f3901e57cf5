//! `offramp model`: predicts adapters, buses and hosts that are not present, in virtual time.

mod compare;
mod dma;
mod params;
mod progress;
mod report;
mod sensitivity;
mod sweep;

use crate::exit::{FAILED, SETUP, fail, print};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand};
use offramp_lab::report::document::Document;
use offramp_lab::report::modelled::{explanation, live, load};
use offramp_model::claims;
use offramp_model::config::Workload;
use offramp_model::explain;
use offramp_model::profile::quantity::{Quantity, Tag};
use offramp_model::profile::schema::Key;
use offramp_model::profile::{self, Profile};
use offramp_model::simulation::{Outcome, run as simulate};
use offramp_model::uncertainty::{self, Samples, Spread};
use progress::Progress;
use serde::Serialize;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Predict throughput and processor load of adapters, buses and hosts not present here.
#[derive(ClapArgs)]
#[command(after_help = include_str!("model/examples.txt").trim_end())]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the built-in profiles
    List,
    /// List the parameters: unit, range, default, meaning, and the profiles with a value for them
    Params(params::Args),
    /// List the workloads, with their parameters
    Workloads {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Run published results from files, and compare
    Check(CheckArgs),
    /// Run a workload on a system
    Run {
        #[command(flatten)]
        run: RunArgs,
        #[command(flatten)]
        samples: SampleArgs,
        /// Write a page with charts
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Print the part of each stage in the time of a frame
    Explain(RunArgs),
    /// Set two systems side by side
    Compare(compare::Args),
    /// Print the throughput of a bus for its master, by the length of a transfer
    Dma(dma::Args),
    /// Run a workload over ranges of parameters
    Sweep(sweep::Args),
    /// Rank the parameters by their effect on an outcome
    Sensitivity(sensitivity::Args),
    /// Write a page with the claims and a chart of each mechanism
    Report(report::Args),
    /// Compare the published claims with the model
    Claims(ClaimsArgs),
}

// Options for the system and its workload.
#[derive(ClapArgs)]
struct SystemArgs {
    /// A system: its name, or a file that ends in .toml
    profile: String,
    /// The workload
    #[arg(long, value_parser = workload())]
    workload: Workload,
    /// Set a parameter, with its unit: bus.clock=13.4MHz, or bus.clock=8MHz..13.4MHz for an interval
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

impl SystemArgs {
    fn load(&self) -> Result<Profile, Failure> {
        load_with(&self.profile, &self.settings).or_setup()
    }
}

#[derive(ClapArgs)]
struct RunArgs {
    #[command(flatten)]
    system: SystemArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(ClapArgs)]
struct SampleArgs {
    /// Runs with random values of the intervals; 0: none
    #[arg(long, value_name = "COUNT", default_value_t = uncertainty::SAMPLES)]
    samples: usize,
}

impl SampleArgs {
    /// Runs the samples, and shows the progress on a terminal.
    fn run(&self, systems: &[&Profile], workload: Workload) -> Result<Option<Samples>, Failure> {
        let mut progress = Progress::new(0, self.samples * systems.len(), "runs");
        let samples = uncertainty::sample(systems, workload, self.samples, || progress.step());
        progress.clear();
        samples.map_err(|error| format!("--samples: {error}")).or_setup()
    }
}

// Options for the table of published results.
#[derive(ClapArgs)]
struct LedgerArgs {
    /// Print the parameters with an effect on each figure
    #[arg(long)]
    hangs_on: bool,
    #[command(flatten)]
    samples: SampleArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl LedgerArgs {
    /// Returns the filter for the numbers varied in each row: all numbers with `--hangs-on`, and no number without
    /// `--hangs-on`.
    fn tags(&self) -> fn(Tag) -> bool {
        if self.hangs_on { |_| true } else { |_| false }
    }
}

#[derive(ClapArgs)]
struct ClaimsArgs {
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Compare with the lab's measurements: the output of `offramp lab --json`
    #[arg(long, value_name = "FILE")]
    live: Option<PathBuf>,
}

#[derive(ClapArgs)]
struct CheckArgs {
    /// Files that end in .toml, or directories of them
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    ledger: LedgerArgs,
}

/// Returns the parser for a workload. Help and errors list all workloads.
fn workload() -> impl TypedValueParser<Value = Workload> {
    PossibleValuesParser::new(Workload::names().map(|(name, _)| name)).try_map(|name| name.parse::<Workload>())
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE, such as bus.clock=13.4MHz")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// The reason for a missing result, and its exit status.
struct Failure {
    why: String,
    status: u8,
}

/// The result of a subcommand.
type Done = Result<ExitCode, Failure>;

trait OrFail<T> {
    /// Converts an error in options, profiles or input files to a failure with the exit status [`SETUP`].
    fn or_setup(self) -> Result<T, Failure>;
    /// Converts an error in a run or an output file to a failure with the exit status [`FAILED`].
    fn or_failed(self) -> Result<T, Failure>;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn or_setup(self) -> Result<T, Failure> {
        self.map_err(|error| Failure { why: error.to_string(), status: SETUP })
    }

    fn or_failed(self) -> Result<T, Failure> {
        self.map_err(|error| Failure { why: error.to_string(), status: FAILED })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    run_command(args).unwrap_or_else(|Failure { why, status }| fail(format_args!("model: {why}"), status))
}

fn run_command(args: &Args) -> Done {
    match &args.command {
        Command::List => Ok(list()),
        Command::Params(args) => params::run(args),
        Command::Dma(args) => dma::run(args),
        Command::Check(args) => check(args),
        Command::Workloads { json } => params::workloads(*json),
        Command::Run { run, samples, html } => run_workload(run, samples, html.as_deref()),
        Command::Explain(args) => explain_workload(args),
        Command::Compare(args) => compare::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Sensitivity(args) => sensitivity::run(args),
        Command::Report(args) => report::run(args),
        Command::Claims(ClaimsArgs { ledger, live }) => {
            show_claims(ledger, &claims_table(live.as_deref(), ledger.tags(), ledger.samples.samples)?)
        }
    }
}

/// Name of the profile of this machine, which `offramp calibrate` writes.
pub const CALIBRATED: &str = "this-host";

/// Returns the path of the user's profile `name` (XDG Base Directory Specification, 0.8: `$XDG_DATA_HOME`, by default
/// `~/.local/share`).
pub fn own_profile(name: &str) -> Option<PathBuf> {
    let set = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data.or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
    Some(data.join("offramp").join("profiles").join(format!("{name}.toml")))
}

fn list() -> ExitCode {
    for listed in profile::list() {
        print(format_args!("{:8} {:20} {}\n", listed.kind, listed.name, listed.title));
    }
    ExitCode::SUCCESS
}

/// Prints warnings about the profile, and simulates the workload on the profile's system. Returns the profile and the
/// results of the simulation.
fn simulated(profile: Profile, workload: Workload) -> Result<(Profile, Outcome), Failure> {
    warn(&profile, workload);
    let outcome = simulate(&profile, workload).map_err(|error| format!("{}: {error}", profile.name)).or_failed()?;
    Ok((profile, outcome))
}

impl RunArgs {
    fn simulated(&self) -> Result<(Profile, Outcome), Failure> {
        simulated(self.system.load()?, self.system.workload)
    }
}

fn show(args: &RunArgs, profile: &Profile, outcome: &Outcome, spread: Option<Spread>, text: &str) -> Done {
    let parameter = |(key, quantity): (&'static Key, &Quantity)| JsonParameter {
        name: key.name,
        value: key.dimension.show(quantity.value),
        used: profile.used(key).0,
        interval: quantity.interval.map(|ends| ends.map(|end| key.dimension.show(end))),
        tag: quantity.tag.to_string(),
        source: quantity.source.clone(),
        fitted_to: quantity.fitted_to.clone(),
    };
    let json = JsonRun {
        profile: &profile.name,
        outcome,
        explanation: explain::explain(outcome),
        frames_dropped: outcome.counts.dropped,
        frames_overrun: outcome.counts.overrun,
        retransmissions: outcome.counts.retransmissions,
        timeouts: outcome.counts.timeouts,
        collisions: outcome.counts.collisions,
        spread,
        without_effect: profile.without_effect(args.system.workload),
        parameters: profile.said().map(parameter).collect(),
    };
    print_as(args.json, &json, format_args!("{}: {}, {}\n\n{text}", profile.name, profile.title, outcome.workload))
}

fn explain_workload(args: &RunArgs) -> Done {
    let (profile, outcome) = args.simulated()?;
    show(args, &profile, &outcome, None, &explain::text(&profile, &outcome))
}

fn run_workload(args: &RunArgs, samples: &SampleArgs, html: Option<&Path>) -> Done {
    let (profile, outcome) = args.simulated()?;
    let workload = args.system.workload;
    let spread = samples.run(&[&profile], workload)?.map(|samples| samples.spread(0, &outcome));
    let written = html.map(|path| {
        let load = load::charts(&[&profile], workload).or_failed()?;
        write_page(&explanation::page(&profile, &outcome, spread.as_ref(), load, &command_line()), path)
    });
    let mut text = explain::run_text(&profile, &outcome);
    if let Some(spread) = &spread {
        let _ = write!(text, "\n{}", uncertainty::text(spread));
    }
    show(args, &profile, &outcome, spread, &text).and(written.unwrap_or(Ok(ExitCode::SUCCESS)))
}

fn load_with(name: &str, settings: &[(String, String)]) -> Result<Profile, profile::ProfileError> {
    let own = own_profile(name).filter(|path| path.is_file() && !profile::list().iter().any(|of| of.name == name));
    let mut profile = match own {
        Some(path) => Profile::load(&path.to_string_lossy())?,
        None => Profile::load(name).map_err(|mut error| {
            // Add a hint: this machine has no profile before the first calibration.
            if let profile::ProfileError::Unknown { hint, .. } = &mut error
                && name == CALIBRATED
            {
                "; `offramp calibrate` makes it".clone_into(hint);
            }
            error
        })?,
    };
    name.clone_into(&mut profile.name);
    profile.set_all(settings.iter().cloned())?;
    Ok(profile)
}

/// Returns the command line, with the quotes that a shell needs, for the page of results.
fn command_line() -> String {
    let quoted = |word: String| if word.contains([' ', '"', '\'', '$', '*', ';']) { format!("'{word}'") } else { word };
    let words: Vec<_> = std::env::args().skip(1).map(quoted).collect();
    format!("offramp {}", words.join(" "))
}

/// Writes a page, and prints its path.
fn write_page(page: &Document, path: &Path) -> Done {
    page.write(path).or_failed()?;
    eprintln!("model: wrote {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Warns about settings without effect, and about a bus clock too fast for most hardware.
fn warn(profile: &Profile, workload: Workload) {
    for without_effect in profile.without_effect(workload) {
        eprintln!("model: {without_effect}");
    }
    if profile.value("bus.clock") > profile.value("bus.reliable_clock") {
        eprintln!("model: at this bus.clock most hardware fails (bus.reliable_clock); the model does not");
    }
}

/// Returns the table of claims, with the lab's measurements if a report is given.
fn claims_table(live: Option<&Path>, hangs_on: fn(Tag) -> bool, samples: usize) -> Result<claims::Table, Failure> {
    let report = live.map(live::read).transpose().or_setup()?;
    let mut table = claims::check(claims::all(), hangs_on, samples).or_failed()?;
    if let Some(report) = &report {
        live::fill(&mut table, report);
    }
    Ok(table)
}

fn check(args: &CheckArgs) -> Done {
    let CheckArgs { files, ledger } = args;
    let table = claims::read(files).and_then(|cases| claims::check(&cases, ledger.tags(), ledger.samples.samples));
    show_claims(ledger, &table.or_setup()?)
}

fn show_claims(args: &LedgerArgs, table: &claims::Table) -> Done {
    print_as(args.json, table, claims::text(table))?;
    Ok(if table.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Prints a command's results as JSON or as text.
fn print_as(is_json: bool, found: &impl Serialize, text: impl Display) -> Done {
    if is_json {
        print(format_args!("{}\n", serde_json::to_string_pretty(found).or_failed()?));
    } else {
        print(text);
    }
    Ok(ExitCode::SUCCESS)
}

/// A run as JSON: its outcome and its parameters.
#[derive(Serialize)]
struct JsonRun<'a> {
    profile: &'a str,
    outcome: &'a Outcome,
    explanation: explain::Explanation,
    frames_dropped: u64,
    frames_overrun: u64,
    retransmissions: u64,
    timeouts: u64,
    collisions: u64,
    /// Spread of the outcome over the intervals of the parameters, or `null` without intervals or samples.
    spread: Option<Spread>,
    /// Settings without effect, each with its reason.
    without_effect: Vec<String>,
    parameters: Vec<JsonParameter>,
}

#[derive(Serialize)]
struct JsonParameter {
    name: &'static str,
    value: String,
    /// The value used in the run. Processor times are scaled by `host.cost_scale`.
    used: String,
    /// Range of the published values, or `null` if no source has a range.
    interval: Option<[String; 2]>,
    tag: String,
    source: String,
    fitted_to: Vec<String>,
}
