//! `offramp model report`: writes a page with the claims and a chart of each mechanism.

use super::{Done, OrFail, claims_table, command_line, write_page};
use offramp_lab::report::modelled::claims as pages;
use offramp_model::claims::mechanism;
use std::path::PathBuf;
use std::process::ExitCode;

/// One page with every claim, and a chart of each mechanism.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").args(["html", "charts"]).required(true).multiple(true)))]
pub(super) struct Args {
    /// Draw these charts instead of offramp's own: files that end in .toml, or directories of them
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File of the page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart as an SVG file into this directory
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
    /// Compare the claims with the lab's measurements: the output of `offramp lab --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    live: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Done {
    // Read the lab's measurements before drawing the charts, which takes longer: an unreadable file is reported at
    // once.
    let table = args.html.as_ref().map(|_| claims_table(args.live.as_deref(), |_| false, 0)).transpose()?;
    let mechanisms = match args.files.as_slice() {
        [] => mechanism::all().or_failed()?,
        files => mechanism::read(files).or_setup()?,
    };
    if let Some(directory) = &args.charts {
        let charts = pages::write_charts(&mechanisms, directory).or_setup()?;
        eprintln!("model: wrote {charts} charts to {}", directory.display());
    }
    match args.html.as_ref().zip(table) {
        Some((path, table)) => write_page(&pages::page(&table, &mechanisms, &command_line()), path),
        None => Ok(ExitCode::SUCCESS),
    }
}
