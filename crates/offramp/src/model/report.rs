//! `offramp model report`: the claims, and a chart of each mechanism.

use super::{claims_table, command_line, write_page};
use crate::exit::{FAILED, SETUP, fail};
use offramp_lab::report::modelled::claims as pages;
use offramp_model::claims::mechanism;
use std::path::PathBuf;
use std::process::ExitCode;

/// One page with every claim, and a chart of each mechanism.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").args(["html", "charts"]).required(true).multiple(true)))]
pub(super) struct Args {
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart as an SVG file into this directory
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
    /// Set beside the claims what the lab measured: what `offramp lab --json` printed
    #[arg(long, value_name = "FILE", requires = "html")]
    live: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    // Before the charts, which take longer: a file that cannot be read is reported at once.
    let table = match args.html.as_ref().map(|_| claims_table(args.live.as_deref(), |_| false)).transpose() {
        Ok(table) => table,
        Err(status) => return status,
    };
    let mechanisms = match mechanism::all() {
        Ok(mechanisms) => mechanisms,
        Err(error) => return fail(format_args!("model: {error}"), FAILED),
    };
    if let Some(directory) = &args.charts {
        match pages::write_charts(&mechanisms, directory) {
            Ok(charts) => eprintln!("model: wrote {charts} charts to {}", directory.display()),
            Err(error) => return fail(format_args!("model: {error}"), SETUP),
        }
    }
    match args.html.as_ref().zip(table) {
        Some((path, table)) => write_page(&pages::page(&table, &mechanisms, &command_line()), path),
        None => ExitCode::SUCCESS,
    }
}
