//! `offramp model check`: published results, each in a file, beside what the model says.

use super::print_json;
use crate::exit::{FAILED, SETUP, fail, print};
use offramp_model::case::{CheckedRow, check};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run published results that files describe, and compare.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files that end in .toml, or directories of them
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let mut checked = Vec::new();
    for path in &args.files {
        let files = match files(path) {
            Ok(files) => files,
            Err(error) => return fail(format_args!("model: {}: {error}", path.display()), SETUP),
        };
        for file in files {
            match check(&file) {
                Ok(case) => checked.push(case),
                Err(error) => return fail(format_args!("model: {error}"), SETUP),
            }
        }
    }
    let rows: Vec<_> = checked.iter().flat_map(|case| &case.rows).collect();
    let missed = rows.iter().filter(|row| !row.ok).count();
    if args.json {
        print_json(&checked);
    } else {
        for case in &checked {
            print(format_args!("{}: {} ({})\n", case.file, case.published, case.source));
            for CheckedRow { metric, published, modelled, error, within, ok } in &case.rows {
                let ok = if *ok { "ok" } else { "MISS" };
                let unit = within.split_once(' ').map_or("", |(_, unit)| unit);
                print(format_args!(
                    "  {ok:4} {metric:24} {published} published, {modelled:.2} modelled: {error:+.1} {unit}, within {within}\n"
                ));
            }
        }
        print(format_args!("{} figures, {missed} outside their target\n", rows.len()));
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// The file, or those of a directory in the order of their names.
fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = entries.collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    Ok(files)
}
