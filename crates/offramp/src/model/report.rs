//! `offramp model report`: the claims and the charts of what is behind them.

use super::{command_line, write_page};
use crate::exit::{FAILED, SETUP, fail};
use offramp_lab::report::modelled::claims as pages;
use offramp_model::{claims, mechanism};
use std::path::PathBuf;
use std::process::ExitCode;

/// One page with every claim, and for each mechanism behind them a chart.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct Args {
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart as an SVG file into this directory
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> ExitCode {
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
    let Some(path) = &args.html else { return ExitCode::SUCCESS };
    let page = |table| pages::page(&table, &mechanisms, &command_line());
    match claims::table().map(page) {
        Ok(page) => write_page(&page, path),
        Err(error) => fail(format_args!("model: {error}"), FAILED),
    }
}
