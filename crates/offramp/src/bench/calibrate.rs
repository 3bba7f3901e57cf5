//! `offramp calibrate`: measures the costs of this machine, and writes them as the profile of a host for the model.

use crate::bench::model::{CALIBRATED, own_profile};
use crate::bench::stop::{STOPPED, stop_flag};
use crate::exit::{FAILED, SETUP, fail};
use offramp_lab::calibrate::{
    CalibrateError, Calibration, figures_text, plans, predict, predict_responses, predictions_text,
};
use offramp_lab::machine;
use offramp_lab::model::Experiment;
use offramp_lab::plan::Settings;
use offramp_lab::report::progress;
use offramp_lab::run as runner;
use offramp_lab::sample::{Bench, Stage};
use offramp_ports::sys::privilege;
use offramp_testbed::cpu::CpuTimes;
use offramp_testbed::error::TestbedError;
use offramp_testbed::rig::{Placement, Rig, RigConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Number of rounds of a default run, sufficient for a mean and a range.
const REPEATS: u16 = 12;
const SECONDS: f64 = 0.3;
/// Share of stolen processor time at which a warning is printed. The measured costs exclude stolen time, so the
/// predictions hold for a machine without a hypervisor.
const STOLEN_SHARE_TOLD: f64 = 0.02;

const EXAMPLES: &str = "\
Examples:
  offramp calibrate                                                   in four minutes
  offramp model run this-host --workload ttcp --set adapter.lso=off   then the model knows the host
  offramp model run this-host --workload ttcp-receive --set adapter.coalesce=off

Exit status: 0 measured and written, whatever the predictions are worth; 1 a measurement failed; 2 wrong options, or \
nothing began; 130 stopped.";

/// Measure this machine's cost of copies, checksums, frames and large sends. Write them as a host of the model, and
/// predict the lab's other experiments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Path of the profile [default: this-host, in offramp's directory of profiles]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Samples of each variant
    #[arg(long, default_value_t = REPEATS, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Measured time of each sample
    #[arg(long, value_name = "SECS", default_value_t = SECONDS, value_parser = crate::show::seconds)]
    seconds: f64,
}

enum Failure {
    Lab(TestbedError),
    Calibrate(CalibrateError),
    File(String),
}

impl From<TestbedError> for Failure {
    fn from(error: TestbedError) -> Self {
        Self::Lab(error)
    }
}

impl From<CalibrateError> for Failure {
    fn from(error: CalibrateError) -> Self {
        Self::Calibrate(error)
    }
}

/// Runs `offramp calibrate`.
pub fn run(args: &Args) -> ExitCode {
    match calibrate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Lab(TestbedError::Stopped)) => fail("calibrate: stopped; everything was put back", STOPPED),
        Err(Failure::Lab(error @ (TestbedError::Traffic(_) | TestbedError::Io(_)))) => {
            fail(format_args!("calibrate: {error}"), FAILED)
        }
        Err(Failure::Lab(error)) => fail(format_args!("calibrate: {error}"), SETUP),
        Err(Failure::Calibrate(error)) => fail(format_args!("calibrate: {error}"), FAILED),
        Err(Failure::File(error)) => fail(format_args!("calibrate: {error}"), FAILED),
    }
}

fn calibrate(args: &Args) -> Result<(), Failure> {
    let path = match &args.out {
        Some(path) => path.clone(),
        None => own_profile(CALIBRATED)
            .ok_or_else(|| Failure::File("neither XDG_DATA_HOME nor HOME is set; use --out".to_owned()))?,
    };
    let before = CpuTimes::read().map_err(TestbedError::Io)?;
    let (experiments, without_rps) = measure(args)?;
    let stolen_share = CpuTimes::read().map_err(TestbedError::Io)?.since(&before).stolen_share();
    let calibration = Calibration::of(&experiments)?;
    let machine = machine::describe(&Placement::apart(), without_rps.as_deref());
    let title = format!(
        "both hosts of the lab on one processor of this machine: {}, Linux {}",
        machine.processor, machine.kernel
    );
    write(&path, &calibration.profile(&title))
        .map_err(|error| Failure::File(format!("{}: {error}", path.display())))?;
    print!("{}", calibration.text());
    println!("\n{}\n", machine.cpu_split);
    let predictions = predict(&path.to_string_lossy(), &calibration, &experiments)?;
    print!("{}", predictions_text(&predictions));
    print!("\n{}", figures_text(&predict_responses(&path.to_string_lossy(), &calibration, &experiments)?));
    if calibration.costs.receiver.is_none() {
        println!(
            "\nthe cost of a host that only receives was not measured: its receive work could not move to another processor"
        );
    }
    if stolen_share > STOLEN_SHARE_TOLD {
        println!(
            "\nthe hypervisor took {:.0} % of the processors' time meanwhile, and no cost includes it: measure again when it takes less",
            stolen_share * 100.0
        );
    }
    println!("\nwrote {}", path.display());
    Ok(())
}

fn measure(args: &Args) -> Result<(Vec<Experiment>, Option<String>), TestbedError> {
    let stop = stop_flag()?;
    let settings = Settings { seconds: args.seconds, ..Settings::default() };
    let plans = plans(&settings);
    // Enter the namespaces before any thread starts, because only a single-threaded process can enter a user namespace.
    privilege::enter()?;
    let without_rps = Rig::start(&RigConfig::default())?.without_rps().map(str::to_owned);
    // The samples need no separate measurement of round trips, because one of the experiments measures requests.
    let bench = Bench { program: std::env::current_exe()?, rtt_time: Duration::ZERO, rtt_rounds: 0, stop: &stop };
    let repeats = usize::from(args.repeats);
    let (mut done, total) = (0, plans.iter().map(|plan| plan.variants.len()).sum::<usize>() * repeats);
    let started = Instant::now();
    let mut progress = progress::Progress::stderr();
    let mut on_sample = |at: usize, _round: usize, _turn: usize, _variant: &str| {
        let left_s = (done > 0).then(|| started.elapsed().as_secs_f64() / done as f64 * (total - done) as f64);
        done += 1;
        progress.step(&progress::Step { done, total, experiment: &plans[at].name, left_s });
    };
    let experiments = runner::run_together(&bench, &mut Stage::Namespaces, &plans, repeats, &mut on_sample)?;
    Ok((experiments, without_rps))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, text)
}
