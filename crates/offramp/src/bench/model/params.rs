//! `offramp model params` and `offramp model workloads`: list the parameters and the workloads.

use super::{Done, OrFail, print_as};
use offramp_model::config::Workload;
use offramp_model::profile::parameters::{Parameter, parameters};
use serde::Serialize;
use std::fmt::Write as _;

/// Lists every parameter: unit, range, default, meaning, and the profiles with a value for it.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only parameters with this text in their name or meaning
    #[arg(default_value = "")]
    pattern: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Done {
    let found = parameters(&args.pattern).or_setup()?;
    let mut text = String::new();
    for Parameter { name, units, range, default, is_scaled, meaning, set_by } in &found {
        let range = range.as_ref().map_or_else(|| units.clone(), |[from, to]| format!("{from} to {to} ({units})"));
        let scaled = if *is_scaled { "; scaled by host.cost_scale" } else { "" };
        let _ = writeln!(text, "{name:30} default {default:16} {range}\n    {meaning}{scaled}");
        if !set_by.is_empty() {
            let _ = writeln!(text, "    set by {}", set_by.join(", "));
        }
    }
    print_as(args.json, &found, text)
}

#[derive(Serialize)]
struct About {
    name: &'static str,
    meaning: &'static str,
    parameters: Vec<&'static str>,
}

pub(super) fn workloads(json: bool) -> Done {
    let about = |(name, of): (_, Workload)| About { name, meaning: of.meaning(), parameters: of.parameters() };
    let all: Vec<_> = Workload::names().map(about).collect();
    let line =
        |About { name, meaning, parameters }: &About| format!("{name:14} {meaning}\n    {}\n", parameters.join(" "));
    print_as(json, &all, all.iter().map(line).collect::<String>())
}
