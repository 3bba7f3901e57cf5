//! `offramp model compare`: compares two systems.

use super::{Done, OrFail, SampleArgs, command_line, load_with, print_as, setting, simulated, workload, write_page};
use offramp_lab::report::modelled::{explanation, load};
use offramp_model::compare;
use offramp_model::config::Workload;
use offramp_model::profile::{Profile, ProfileError};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compare throughput, processor time and latency of two systems, and the parts of their latencies.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A system: its name, or a file that ends in .toml
    first: String,
    /// The other one; the same again, with --set-second
    second: String,
    /// The workload
    #[arg(long, value_parser = workload())]
    workload: Workload,
    /// Set a parameter of both, with its unit
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Set a parameter of the second one alone
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set_second: Vec<(String, String)>,
    #[command(flatten)]
    samples: SampleArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Args {
    fn profiles(&self) -> Result<[Profile; 2], ProfileError> {
        let first = load_with(&self.first, &self.settings)?;
        let mut second = load_with(&self.second, &[self.settings.clone(), self.set_second.clone()].concat())?;
        if !self.set_second.is_empty() {
            let set: Vec<_> = self.set_second.iter().map(|(key, value)| format!("{key}={value}")).collect();
            // If both systems are the same, the changed settings suffice as the name of the second system.
            let system = if self.first == self.second { String::new() } else { format!("{} ", second.name) };
            second.name = format!("{system}{}", set.join(" "));
        }
        Ok([first, second])
    }
}

pub(super) fn run(args: &Args) -> Done {
    let [first, second] = args.profiles().or_setup()?;
    let ((first, of_first), (second, of_second)) =
        (simulated(first, args.workload)?, simulated(second, args.workload)?);
    let (systems, outcomes) = ([&first, &second], [&of_first, &of_second]);
    let samples = args.samples.run(&systems, args.workload)?;
    let comparison = compare::compare(systems, outcomes, samples.as_ref());
    let written = args.html.as_ref().map(|path| {
        let load = load::charts(&systems, args.workload).or_failed()?;
        write_page(&explanation::comparison_page(&comparison, outcomes, load, &command_line()), path)
    });
    print_as(args.json, &comparison, compare::text(&comparison))?;
    written.unwrap_or(Ok(ExitCode::SUCCESS))
}
