//! `offramp pages`: man pages and shell completions, generated from the options.

use crate::exit::{self, fail};
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shells with completions: those in Debian.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];
const NAME: &str = "offramp";

/// Write the man pages and shell completions for packages.
#[derive(clap::Args)]
pub struct Args {
    /// The directory, made if need be: pages go to `man` in it, completions to `completions`
    directory: PathBuf,
}

/// Runs `offramp pages`.
pub fn run(args: &Args, command: Command) -> ExitCode {
    match write(&args.directory, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(format_args!("pages: writing to {}: {error}", args.directory.display()), exit::FAILED),
    }
}

fn write(directory: &Path, command: Command) -> io::Result<()> {
    // `offramp help model` prints the same as `offramp model --help`.
    let mut command = command.disable_help_subcommand(true).mut_subcommands(|one| one.disable_help_subcommand(true));
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command, NAME, &completions)?;
    }
    clap_mangen::generate_to(command, man)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn each_command_that_is_shown_has_a_page_and_no_other_has() {
        let directory = std::env::temp_dir().join(format!("offramp-pages-{}", std::process::id()));
        write(&directory, crate::Cli::command()).unwrap();
        let has = |page: &str| directory.join("man").join(page).exists();
        assert!(has("offramp.1") && has("offramp-up.1") && has("offramp-port-add.1"));
        assert!(!has("offramp-pages.1") && !has("offramp-help.1") && !has("offramp-port-help.1"));
        let completions = fs::read_dir(directory.join("completions")).unwrap();
        assert_eq!(completions.count(), SHELLS.len());
        fs::remove_dir_all(directory).unwrap();
    }
}
